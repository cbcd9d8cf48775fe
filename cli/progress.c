#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "message.h"

double cli_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void cli_progress_start(cli_progress *progress, const char *what, int64_t total)
{
    const double now = cli_seconds();
    *progress = (cli_progress){
        .what = what, .unit = "tokens", .total = total, .started = now, .shown = now};
    progress->is_on = !cli_message_is_quiet() && isatty(STDERR_FILENO) == 1;
}

void cli_progress_show(cli_progress *progress, int64_t done)
{
    enum { CELLS = 30 };
    const double now = cli_seconds();
    const double wait = progress->is_drawn ? 0.1 : 0.5;
    if (!progress->is_on || now - progress->shown < wait)
        return;
    progress->shown = now;
    progress->is_drawn = true;
    const int filled = progress->total > 0 ? (int)(CELLS * done / progress->total) : CELLS;
    char bar[CELLS + 1] = "";
    for (int i = 0; i < CELLS; i++)
        bar[i] = i < filled ? '#' : '.';
    fprintf(stderr, "\r%s [%s] %lld/%lld %s, %.0f %s/s ", progress->what, bar,
            (long long)done, (long long)progress->total, progress->unit,
            (double)done / (now - progress->started), progress->unit);
    fflush(stderr);
}

void cli_progress_clear(cli_progress *progress)
{
    if (progress->is_drawn)
        fputs("\r\033[K", stderr);
    progress->is_drawn = false;
}
