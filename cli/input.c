#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interrupt.h"
#include "memory.h"
#include "message.h"

static const char *shown_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

static int read_all(int fd, const char *name, cli_buffer *out)
{
    for (;;) {
        out->bytes = cli_grow(out->bytes, &out->capacity, out->n + (1 << 16), 1);
        const ssize_t got = read(fd, out->bytes + out->n, out->capacity - out->n - 1);
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        if (got < 0 && errno != EINTR)
            return cli_fail_errno(CLI_EXIT_RUN, name);
        if (got == 0)
            break;
        if (got > 0)
            out->n += (size_t)got;
    }
    out->bytes[out->n] = '\0';
    return CLI_EXIT_OK;
}

int cli_read_file(const char *path, cli_buffer *out)
{
    *out = (cli_buffer){0};
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, shown_name(path), out);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cli_fail_errno(CLI_EXIT_RUN, path);
    const int code = read_all(fd, path, out);
    close(fd);
    return code;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* One word as an integer min .. max. */
static bool parse_int(const char *word, size_t bytes, int64_t min, int64_t max, int32_t *value)
{
    char digits[24];
    char *end;
    if (bytes >= sizeof digits || (word[0] != '-' && (word[0] < '0' || word[0] > '9')))
        return false;
    memcpy(digits, word, bytes);
    digits[bytes] = '\0';
    errno = 0;
    const long long number = strtoll(digits, &end, 10);
    *value = (int32_t)number;
    return errno == 0 && end == digits + bytes && number >= min && number <= max;
}

void cli_ints_push(cli_ints *ints, int32_t value)
{
    ints->values = cli_grow(ints->values, &ints->capacity, ints->n + 1, sizeof *ints->values);
    ints->values[ints->n++] = value;
}

int cli_parse_ints(const char *name, const char *text, size_t bytes, int64_t min, int64_t max,
                   cli_ints *out)
{
    size_t line = 1, at = 0;
    while (at < bytes) {
        if (is_space(text[at])) {
            line += text[at++] == '\n';
            continue;
        }
        size_t end = at;
        while (end < bytes && !is_space(text[end]))
            end++;
        int32_t value;
        if (!parse_int(text + at, end - at, min, max, &value))
            return cli_fail(CLI_EXIT_RUN,
                            "%s:%zu: value seen '%.*s', allowed: an integer from %lld to %lld",
                            name, line, (int)(end - at < 40 ? end - at : 40), text + at,
                            (long long)min, (long long)max);
        cli_ints_push(out, value);
        at = end;
    }
    return CLI_EXIT_OK;
}

int cli_read_ints(const char *path, int64_t min, int64_t max, cli_ints *out)
{
    cli_buffer text;
    *out = (cli_ints){0};
    int code = cli_read_file(path, &text);
    if (code == CLI_EXIT_OK)
        code = cli_parse_ints(shown_name(path), text.bytes, text.n, min, max, out);
    cli_buffer_free(&text);
    return code;
}

void cli_buffer_free(cli_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (cli_buffer){0};
}

void cli_ints_free(cli_ints *ints)
{
    free(ints->values);
    *ints = (cli_ints){0};
}
