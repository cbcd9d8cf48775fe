/* Ctrl-C: the first one is noted and asked for between steps, a second one ends the program. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* Also ignores SIGPIPE, so that a closed pipe is a failing write. Call once, before any thread. */
void cli_interrupt_install(void);
bool cli_interrupted(void);

#endif
