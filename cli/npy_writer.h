/*
 * A float32 matrix in NumPy's .npy format, version 1.0, row by row in any order. It is written
 * under a temporary name beside the target and renamed when complete, so a reader never sees a
 * part of it. What is not a regular file (a pipe, a device, a link such as /dev/stdout) must not be
 * replaced and is written directly.
 */
#ifndef CLI_NPY_WRITER_H
#define CLI_NPY_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_npy {
    FILE *file;
    const char *path; /* the caller's */
    char *temp_path;  /* NULL: written directly */
    int64_t n_columns;
    int64_t next_row; /* where the file position is */
    long header_bytes;
} cli_npy;

/* All print what is wrong and return an exit code. */
int cli_npy_open(cli_npy *npy, const char *path, int64_t n_rows, int64_t n_columns);
int cli_npy_write_row(cli_npy *npy, int64_t row, const float *values);
int cli_npy_commit(cli_npy *npy);
/* Removes the temporary file unless it was committed. */
void cli_npy_close(cli_npy *npy);

#endif
