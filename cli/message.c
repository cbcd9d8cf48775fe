#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool is_quiet;

void cli_message_set_quiet(bool quiet)
{
    is_quiet = quiet;
}
bool cli_message_is_quiet(void)
{
    return is_quiet;
}

void cli_info(const char *fmt, ...)
{
    if (is_quiet)
        return;
    va_list args;
    va_start(args, fmt);
    fputs("tamis: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

void cli_warn(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("tamis: warning: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

int cli_fail(int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("tamis: error: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

int cli_fail_errno(int code, const char *name)
{
    return cli_fail(code, "%s: %s", name, strerror(errno));
}

int cli_exit_code(tamis_status status)
{
    switch (status) {
    case TAMIS_STATUS_OK:
        return CLI_EXIT_OK;
    case TAMIS_STATUS_NO_MEMORY:
        return CLI_EXIT_MEMORY;
    case TAMIS_STATUS_FORMAT:
    case TAMIS_STATUS_UNSUPPORTED:
        return CLI_EXIT_MODEL;
    default:
        return CLI_EXIT_RUN;
    }
}

int cli_exit_code_of_model(tamis_status status)
{
    return status == TAMIS_STATUS_IO ? CLI_EXIT_MODEL : cli_exit_code(status);
}

const char *cli_format_size(uint64_t bytes, char text[CLI_SIZE_BYTES])
{
    const double b = (double)bytes;
    if (bytes < 1024)
        snprintf(text, CLI_SIZE_BYTES, "%u B", (unsigned)bytes);
    else if (b < 1024.0 * 1024.0)
        snprintf(text, CLI_SIZE_BYTES, "%.1f KiB", b / 1024.0);
    else if (b < 1024.0 * 1024.0 * 1024.0)
        snprintf(text, CLI_SIZE_BYTES, "%.2f MiB", b / (1024.0 * 1024.0));
    else
        snprintf(text, CLI_SIZE_BYTES, "%.2f GiB", b / (1024.0 * 1024.0 * 1024.0));
    return text;
}
