/* A progress bar on standard error: only on a terminal, only for work of more than half a second.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_progress {
    const char *what; /* "prompt" */
    const char *unit; /* "tokens" unless set */
    int64_t total;    /* units */
    double started;   /* seconds */
    double shown;     /* when the bar was last drawn */
    bool is_on, is_drawn;
} cli_progress;

double cli_seconds(void); /* of a clock that only goes forward */
void cli_progress_start(cli_progress *progress, const char *what, int64_t total);
void cli_progress_show(cli_progress *progress, int64_t done);
void cli_progress_clear(cli_progress *progress); /* leaves an empty line */

#endif
