#include "core/compress.h"

#ifdef TAMIS_HAVE_ZSTD
#include <zstd.h>

bool tamis_compress_is_available(void)
{
    return true;
}

size_t tamis_compress(void *out, size_t max_bytes, const void *data, size_t bytes, int level)
{
    const size_t n = ZSTD_compress(out, max_bytes, data, bytes, level);
    return ZSTD_isError(n) ? 0 : n;
}

bool tamis_decompress(void *out, size_t out_bytes, const void *data, size_t bytes)
{
    return ZSTD_decompress(out, out_bytes, data, bytes) == out_bytes;
}

#else

bool tamis_compress_is_available(void)
{
    return false;
}

size_t tamis_compress(void *out, size_t max_bytes, const void *data, size_t bytes, int level)
{
    (void)out, (void)max_bytes, (void)data, (void)bytes, (void)level;
    return 0;
}

bool tamis_decompress(void *out, size_t out_bytes, const void *data, size_t bytes)
{
    (void)out, (void)out_bytes, (void)data, (void)bytes;
    return false;
}

#endif
