/* zstd, if the library was built with it. */
#ifndef TAMIS_CORE_COMPRESS_H
#define TAMIS_CORE_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>

#define TAMIS_COMPRESS_MAX_LEVEL 19

bool tamis_compress_is_available(void);
/* Bytes written to out, or 0: it would not fit into max_bytes, memory was refused, or there is no
 * zstd. level 1..TAMIS_COMPRESS_MAX_LEVEL */
size_t tamis_compress(void *out, size_t max_bytes, const void *data, size_t bytes, int level);
/* Whether data unpacks to exactly out_bytes bytes. */
bool tamis_decompress(void *out, size_t out_bytes, const void *data, size_t bytes);

#endif
