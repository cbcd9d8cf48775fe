/* Ctrl-C, SIGTERM, SIGHUP: the first is noted and asked for between steps, the same one again ends
 * the program. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* Also ignores SIGPIPE, so that a closed pipe is a failing write. Call once, before any thread. */
void cli_interrupt_install(void);
bool cli_interrupted(void);
/* As shells count: 128 + the number of the first signal; 130 for Ctrl-C. */
int cli_interrupt_exit_code(void);

#endif
