/* Reading texts and lists of integers from files, "-" being standard input. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>

/* A text with its length; NUL-terminated, from cli_alloc. */
typedef struct cli_buffer {
    char *bytes;
    size_t n;
    size_t capacity;
} cli_buffer;

typedef struct cli_ints {
    int32_t *values;
    size_t n;
    size_t capacity;
} cli_ints;

/* The whole file. Prints what is wrong; CLI_EXIT_RUN, or CLI_EXIT_INTERRUPTED while waiting. */
int cli_read_file(const char *path, cli_buffer *out);
/*
 * Integers min .. max between white space. `name` stands in messages: "ids.txt:3: value seen 'x',
 * allowed: an integer from 0 to 2047". CLI_EXIT_RUN.
 */
int cli_parse_ints(const char *name, const char *text, size_t bytes, int64_t min, int64_t max,
                   cli_ints *out);
/* Both together. */
int cli_read_ints(const char *path, int64_t min, int64_t max, cli_ints *out);
void cli_ints_push(cli_ints *ints, int32_t value);
void cli_buffer_free(cli_buffer *buffer);
void cli_ints_free(cli_ints *ints);

#endif
