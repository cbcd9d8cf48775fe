/* The folder that is written: files appear whole or not at all, and none stays after a failure. */
#ifndef QUANTIZE_OUT_FOLDER_H
#define QUANTIZE_OUT_FOLDER_H

#include "core/file_stream.h"

typedef struct out_folder {
    const char *dir;
    bool is_new; /* it was not there before */
    char **paths;
    int32_t n_paths, capacity;
} out_folder;

/* errors: INVALID (there is something in it), IO, NO_MEMORY */
tamis_status out_folder_open(out_folder *folder, const char *dir, tamis_error *err);
/* Begins a file, which counts as written from here on. */
tamis_status out_folder_begin(out_folder *folder, const char *name, tamis_file_writer *writer,
                              tamis_error *err);
/* A whole file. */
tamis_status out_folder_write(out_folder *folder, const char *name, const void *data, size_t bytes,
                              tamis_error *err);
/* is_done false: removes what was written. */
void out_folder_close(out_folder *folder, bool is_done);

#endif
