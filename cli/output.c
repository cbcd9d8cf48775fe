#include "output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"
#include "message.h"

static struct {
    char buffer[1 << 16];
    size_t used;
    int error; /* errno of the first failing write */
    char last;
} out = {.last = '\n'};

static void write_all(const char *bytes, size_t n)
{
    while (n > 0 && out.error == 0) {
        const ssize_t written = write(STDOUT_FILENO, bytes, n);
        if (written < 0 && errno != EINTR)
            out.error = errno;
        if (written > 0) {
            bytes += written;
            n -= (size_t)written;
        }
    }
}

bool cli_out_flush(void)
{
    write_all(out.buffer, out.used);
    out.used = 0;
    return out.error == 0;
}

void cli_out(const char *bytes, size_t n)
{
    if (n == 0)
        return;
    out.last = bytes[n - 1];
    if (n > sizeof out.buffer - out.used)
        cli_out_flush();
    if (n > sizeof out.buffer) {
        write_all(bytes, n);
        return;
    }
    memcpy(out.buffer + out.used, bytes, n);
    out.used += n;
}

void cli_outf(const char *fmt, ...)
{
    char line[1024]; /* longer texts go through cli_out */
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n > 0)
        cli_out(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static int append(const char *bytes, size_t n, void *user)
{
    (void)user;
    cli_out(bytes, n);
    return 0;
}

void cli_out_json(const json_t *value, size_t indent)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_INDENT(indent) | JSON_REAL_PRECISION(12);
    if (value == NULL || json_dump_callback(value, append, NULL, flags) != 0)
        exit(cli_fail(CLI_EXIT_MEMORY, "the system refused memory for JSON output"));
    cli_out("\n", 1);
}

int cli_out_finish(int code)
{
    if (cli_out_flush())
        return code;
    cli_fail(CLI_EXIT_RUN, "standard output: %s", strerror(out.error));
    return code == CLI_EXIT_OK ? CLI_EXIT_RUN : code;
}

bool cli_out_is_terminal(void)
{
    return isatty(STDOUT_FILENO) == 1;
}
bool cli_out_is_shared_with_stderr(void)
{
    struct stat a, b;
    return fstat(STDOUT_FILENO, &a) == 0 && fstat(STDERR_FILENO, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
bool cli_out_is_at_line_start(void)
{
    return out.last == '\n';
}
