/* Exit codes, and everything that goes to standard error. */
#ifndef CLI_MESSAGE_H
#define CLI_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tamis/base.h>

enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_RUN = 1,          /* something failed while running, or bad input data */
    CLI_EXIT_USAGE = 2,        /* the command line or the environment */
    CLI_EXIT_MODEL = 3,        /* the model folder is bad or not supported */
    CLI_EXIT_MEMORY = 4,       /* the plan does not fit, or memory was refused */
    CLI_EXIT_INTERRUPTED = 130 /* by whatever signal; main tells which */
};

void cli_message_set_quiet(bool quiet); /* silences cli_info, not cli_warn and cli_fail */
bool cli_message_is_quiet(void);

/* "tamis: " + text + newline. */
void cli_info(const char *fmt, ...) TAMIS_PRINTF(1, 2);
/* "tamis: warning: " + text + newline. */
void cli_warn(const char *fmt, ...) TAMIS_PRINTF(1, 2);
/* "tamis: error: " + text + newline; returns `code`. */
int cli_fail(int code, const char *fmt, ...) TAMIS_PRINTF(2, 3);

/* "name: what errno says"; returns `code`. */
int cli_fail_errno(int code, const char *name);

/* Exit code for a failing library call that did not concern the model folder's files. */
int cli_exit_code(tamis_status status);
/* The same for opening a model folder: an unreadable file is a bad model. */
int cli_exit_code_of_model(tamis_status status);

#define CLI_SIZE_BYTES 32
/* "512 B", "1.50 MiB", "3.20 GiB" into `text`, which is returned. */
const char *cli_format_size(uint64_t bytes, char text[CLI_SIZE_BYTES]);

#endif
