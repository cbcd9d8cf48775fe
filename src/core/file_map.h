/* A file mapped read-only, and a small file read whole. Errors name the path and the reason. */
#ifndef TAMIS_CORE_FILE_MAP_H
#define TAMIS_CORE_FILE_MAP_H

#include "tamis/base.h"

typedef struct tamis_file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
} tamis_file_map;

tamis_status tamis_file_map_open(tamis_file_map *out, const char *path, tamis_error *err);
void tamis_file_map_close(tamis_file_map *map); /* an all-zero map is fine */
/* Lets the pages go that this process holds of it; whoever reads on gets them again. */
void tamis_file_map_release_pages(const tamis_file_map *map);

/* Reads a file of at most max_bytes into a NUL-terminated block of the core allocator. */
tamis_status tamis_file_read(char **out, size_t *bytes, const char *path, size_t max_bytes,
                             tamis_error *err);
/* "dir/name" in a block of the core allocator; NULL if memory is refused. */
char *tamis_path_join(const char *dir, const char *name);
bool tamis_file_exists(const char *path);

#endif
