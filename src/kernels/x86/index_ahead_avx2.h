/*
 * The index keys of the next call, brought near while the keys of this one are multiplied: a few
 * lines with every tile. All at once they would fill the core's line buffers, and the multipliers
 * would wait as they do for keys that nobody asked for.
 */
#ifndef TAMIS_KERNELS_INDEX_AHEAD_AVX2_H
#define TAMIS_KERNELS_INDEX_AHEAD_AVX2_H

#include <immintrin.h>

#include "kernels/body/lanes.h"

#define LINE_BYTES 64

typedef struct index_ahead {
    const char *at;
    int64_t left, per_tile; /* lines */
} index_ahead;

/* `bytes` from next on (NULL: nothing), over n_tiles calls of index_ahead_fetch. */
static inline index_ahead index_ahead_of(const void *next, int64_t bytes, int64_t n_tiles)
{
    const int64_t n_lines = next == NULL ? 0 : (bytes + LINE_BYTES - 1) / LINE_BYTES;
    return (index_ahead){next, n_lines, n_tiles < 1 ? 0 : (n_lines + n_tiles - 1) / n_tiles};
}

static TAMIS_ALWAYS_INLINE void index_ahead_fetch(index_ahead *ahead)
{
    int64_t n = ahead->per_tile < ahead->left ? ahead->per_tile : ahead->left;
    ahead->left -= n;
    for (; n > 0; n--, ahead->at += LINE_BYTES)
        _mm_prefetch(ahead->at, _MM_HINT_T0);
}

#endif
