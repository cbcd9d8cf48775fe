/*
 * What index_f4_avx2.c and index_i8_avx2.c share: the codes of an index query, reordered so that a
 * vector holds 4 channels of 8 heads. Heads lie in lanes, as in attention_avx2.c: a key's same
 * channels are broadcast, a lane sums what belongs to its head, and no sum crosses lanes.
 */
#ifndef TAMIS_KERNELS_INDEX_QUERY_AVX2_H
#define TAMIS_KERNELS_INDEX_QUERY_AVX2_H

#include "kernels/x86/lowbit_avx2.h"

static inline int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* [16 heads][4] codes of every 4 channels, `stride` bytes apart, zeros behind head_dim. */
static inline void panel_codes_fill(int8_t *codes, size_t stride, const int8_t *q, int64_t head_dim)
{
    for (int64_t h = 0; h < TAMIS_LANES; h++)
        for (int64_t d = 0; d < head_dim; d += 4) {
            int8_t four[4] = {0};
            if (head_dim - d >= 4)
                memcpy(four, q + h * head_dim + d, sizeof four);
            else
                memcpy(four, q + h * head_dim + d, (size_t)(head_dim - d));
            memcpy(codes + (size_t)(d / 4) * stride + 4 * h, four, sizeof four);
        }
}

#endif
