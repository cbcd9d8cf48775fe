/*
 * Standard output: results only. Buffered here, written with write(2), so that every failure
 * (full disk, closed pipe) is seen; after the first one nothing more is written.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>
#include <tamis/base.h>

void cli_out(const char *bytes, size_t n);
void cli_outf(const char *fmt, ...) TAMIS_PRINTF(1, 2);
/* One JSON value and a newline; indent 0 puts it on one line. */
void cli_out_json(const json_t *value, size_t indent);
/* Writes what is buffered; false if this or an earlier write failed. */
bool cli_out_flush(void);
/* Flushes; CLI_EXIT_RUN with a message if anything was lost and `code` says nothing worse. */
int cli_out_finish(int code);
bool cli_out_is_terminal(void);
/* Both go to one file, pipe or terminal. */
bool cli_out_is_shared_with_stderr(void);
/* The last byte given was a newline, or there was none. */
bool cli_out_is_at_line_start(void);

#endif
