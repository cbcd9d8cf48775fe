#include "interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t first_signal; /* 0: none yet */

static void note(int number)
{
    if (first_signal == 0)
        first_signal = number;
}

/*
 * No SA_RESTART: a read that waits for the keyboard ends. A signal stays ignored where the caller
 * ignores it (SIGINT in a background job of a shell script, SIGHUP under nohup).
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
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
}

bool cli_interrupted(void)
{
    return first_signal != 0;
}

int cli_interrupt_exit_code(void)
{
    return 128 + (int)first_signal;
}
