#include "npy_writer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"
#include "message.h"

/* Magic, version, length of the rest, then a Python dict padded so that the data starts at 64 n. */
static int write_header(cli_npy *npy, int64_t n_rows)
{
    char header[192], dict[128];
    const int n = snprintf(dict, sizeof dict,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                           (long long)n_rows, (long long)npy->n_columns);
    const int total = (10 + n + 1 + 63) / 64 * 64;
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((total - 10) & 0xff);
    header[9] = (char)((total - 10) >> 8);
    memcpy(header + 10, dict, (size_t)n);
    memset(header + 10 + n, ' ', (size_t)(total - 10 - n));
    header[total - 1] = '\n';
    npy->header_bytes = total;
    return fwrite(header, (size_t)total, 1, npy->file) == 1
               ? CLI_EXIT_OK
               : cli_fail_errno(CLI_EXIT_RUN, npy->path);
}

static FILE *open_temporary(cli_npy *npy)
{
    const size_t bytes = strlen(npy->path) + 32;
    npy->temp_path = cli_alloc(bytes, 1);
    snprintf(npy->temp_path, bytes, "%s.%ld.part", npy->path, (long)getpid());
    const int fd = open(npy->temp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0)
        return fdopen(fd, "wb");
    free(npy->temp_path); /* nothing there to remove */
    npy->temp_path = NULL;
    return NULL;
}

int cli_npy_open(cli_npy *npy, const char *path, int64_t n_rows, int64_t n_columns)
{
    struct stat info;
    *npy = (cli_npy){.path = path, .n_columns = n_columns};
    const bool is_direct = lstat(path, &info) == 0 && !S_ISREG(info.st_mode);
    npy->file = is_direct ? fopen(path, "wb") : open_temporary(npy);
    return npy->file == NULL ? cli_fail_errno(CLI_EXIT_RUN, npy->path) : write_header(npy, n_rows);
}

int cli_npy_write_row(cli_npy *npy, int64_t row, const float *values)
{
    const size_t row_bytes = (size_t)npy->n_columns * sizeof *values;
    if (row != npy->next_row &&
        fseeko(npy->file, npy->header_bytes + (off_t)row * (off_t)row_bytes, SEEK_SET) != 0)
        return cli_fail_errno(CLI_EXIT_RUN, npy->path);
    npy->next_row = row + 1;
    return fwrite(values, row_bytes, 1, npy->file) == 1 ? CLI_EXIT_OK
                                                        : cli_fail_errno(CLI_EXIT_RUN, npy->path);
}

int cli_npy_commit(cli_npy *npy)
{
    FILE *file = npy->file;
    npy->file = NULL;
    if (fclose(file) != 0)
        return cli_fail_errno(CLI_EXIT_RUN, npy->path);
    if (npy->temp_path == NULL)
        return CLI_EXIT_OK;
    if (rename(npy->temp_path, npy->path) != 0)
        return cli_fail_errno(CLI_EXIT_RUN, npy->path);
    free(npy->temp_path);
    npy->temp_path = NULL;
    return CLI_EXIT_OK;
}

void cli_npy_close(cli_npy *npy)
{
    if (npy->file != NULL)
        fclose(npy->file);
    if (npy->temp_path != NULL)
        unlink(npy->temp_path);
    free(npy->temp_path);
    *npy = (cli_npy){0};
}
