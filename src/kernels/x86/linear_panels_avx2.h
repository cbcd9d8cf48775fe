/* Linear layers of many tokens as a product of packed panels, AVX2. */
#ifndef TAMIS_KERNELS_LINEAR_PANELS_AVX2_H
#define TAMIS_KERNELS_LINEAR_PANELS_AVX2_H

#include "kernels/x86/weights_avx2.h"

/* Any matrix, any number of tokens. */
TAMIS_KERNEL_linear(tamis_linear_panels_avx2);

/* Rows of a panel of weights. */
#define PANEL_ROWS 16
/* Neighbouring columns of a lane; column c is step c / 64 * 4 + c % 4 of lane c / 4 % 16. */
#define LANE_COLS 4
/* Columns of a lane. */
static inline int64_t panel_steps(int64_t cols)
{
    enum { GROUP = LANE_COLS * TAMIS_LANES };
    return (cols + GROUP - 1) / GROUP * LANE_COLS;
}
/*
 * A panel of f32 out of n_rows <= PANEL_ROWS rows of w from `row` on, the last one repeated:
 * to[lane * lane_stride + step * PANEL_ROWS + r] is that column of row r, zero behind the last one.
 * `to` is 32-byte aligned, lane_stride a multiple of 8.
 */
void tamis_linear_pack_rows_avx2(float *to, int64_t lane_stride, const tamis_matrix *w, int64_t row,
                                 int64_t n_rows);

/* The same for linear_i8; sums of nibbles are faster formed in 16 bits while there are few. */
TAMIS_KERNEL_linear_i8(tamis_linear_i8_panels_avx2);
#define MIN_I8_PANEL_TOKENS 12
#define MIN_I4_PANEL_TOKENS 32

/* Sum of the 8 integers, modulo 2^32. */
static TAMIS_ALWAYS_INLINE int32_t sum_of_8(__m256i v)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

#endif
