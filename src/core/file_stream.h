/*
 * Large files in pieces. A written file appears under its name whole or not at all: it is written
 * under a temporary name in the same folder (PATH.XXXXXX, readable by its owner only), synced and
 * renamed; whoever is killed on the way leaves at most that temporary file. Where the name is a
 * symbolic link, all this happens where it leads to. Errors name the path and the reason.
 */
#ifndef TAMIS_CORE_FILE_STREAM_H
#define TAMIS_CORE_FILE_STREAM_H

#include "tamis/base.h"

typedef struct tamis_file_writer {
    char *path, *temp_path; /* NULL: not open */
    int fd;
    uint8_t *buffer; /* what was not written yet; NULL: everything goes out at once */
    size_t buffered;
} tamis_file_writer;

/* errors: IO (path is something else than a regular file; the system's reason), NO_MEMORY */
tamis_status tamis_file_writer_open(tamis_file_writer *writer, const char *path, tamis_error *err);
/* Goes out in whole blocks of 2 MiB: Linux keeps what is written so in huge pages, and maps them.
 * An error may belong to data of earlier calls. */
tamis_status tamis_file_writer_write(tamis_file_writer *writer, const void *data, size_t bytes,
                                     tamis_error *err);
/* Makes the file appear, replacing an older one, and closes the writer. errors: IO; nothing is left
 * behind then, unless only the folder could not be synced: that the message says. */
tamis_status tamis_file_writer_commit(tamis_file_writer *writer, tamis_error *err);
void tamis_file_writer_abandon(tamis_file_writer *writer); /* closed and all-zero ones are fine */

typedef struct tamis_file_reader {
    const char *path; /* borrowed; NULL: not open */
    int fd;
    uint64_t bytes, at; /* of the file when it was opened; read so far */
} tamis_file_reader;

tamis_status tamis_file_reader_open(tamis_file_reader *reader, const char *path, tamis_error *err);
/* All the bytes. errors: FORMAT (the file ends before: what, bytes seen and wanted), IO */
tamis_status tamis_file_reader_read(tamis_file_reader *reader, void *data, size_t bytes,
                                    const char *what, tamis_error *err);
void tamis_file_reader_close(tamis_file_reader *reader); /* closed and all-zero ones are fine */

#endif
