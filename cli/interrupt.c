#include "interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t is_interrupted;

static void note(int number)
{
    (void)number;
    is_interrupted = 1;
}

/*
 * No SA_RESTART: a read that waits for the keyboard ends. SIGINT stays ignored where the caller
 * ignores it (a background job of a shell script).
 */
void cli_interrupt_install(void)
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL); /* a file size limit: the write fails and says so */
    action.sa_handler = note;
    action.sa_flags = SA_RESETHAND;
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void)
{
    return is_interrupted != 0;
}
