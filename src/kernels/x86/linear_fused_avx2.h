/*
 * What the tiles that decode weights in registers share (linear_few_avx2.c, linear_many_avx2.c;
 * decoding also linear_t_avx2.c).
 *
 * FP8 decodes to numbers 2^120 too small; the 2^120 goes into the scale. Where the scale is a power
 * of two even that product is saved: (w * s) * x and w * (s * x) are the same number as long as
 * neither s * x nor w * s is rounded, so the inputs of a block are scaled once for all its rows
 * (tamis_fold_scales_avx2 checks the first, E4M3's few bits give the second).
 */
#ifndef TAMIS_KERNELS_LINEAR_FUSED_AVX2_H
#define TAMIS_KERNELS_LINEAR_FUSED_AVX2_H

#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/planes_avx2.h"

/* Scales below keep scale * 2^120 finite. */
#define E4M3_SCALE_LIMIT 0x1p+7f
#define E4M3_FACTOR      0x1p+120f
/* Fewer rows under one scale do not pay for scaled inputs. */
#define FOLD_ROWS 8

/*
 * dst = n_tokens inputs x, both as planes_order_rows leaves them, times the scales of the block row
 * that `row` lies in. false: it cannot be done exactly. Blocks are of whole planes.
 */
bool tamis_fold_scales_avx2(float *dst, const float *x, int64_t n_tokens, const tamis_matrix *w,
                            int64_t row);

/* Whether w has no scales, or scales over whole planes or whole rows that its type's decoding
 * knows.
 */
static inline bool scales_fit_planes(const tamis_matrix *w)
{
    const bool whole_planes = w->block_cols % PLANE_COLS == 0 || w->block_cols >= w->cols;
    return !w->scale || (takes_factor(w->dtype) && whole_planes);
}

/* Whether the tiles take w. */
static inline bool planes_can_fuse(const tamis_matrix *w)
{
    return w->dtype != TAMIS_DTYPE_I4 && w->dtype != TAMIS_DTYPE_F4_E2M1 && scales_fit_planes(w);
}

/* The first row after `row` that has other scales, if those are for many rows, or row_end. */
static inline int64_t fold_end(const tamis_matrix *w, int64_t row, int64_t row_end)
{
    if (!w->scale || w->block_rows < FOLD_ROWS)
        return row_end;
    const int64_t edge = (row / w->block_rows + 1) * w->block_rows;
    return edge < row_end ? edge : row_end;
}

/* The largest magnitude bits so far, doubled: 0xfe once a code was NaN. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_largest(__m256i largest, __m256i codes)
{
    return _mm256_max_epu8(largest, _mm256_add_epi8(codes, codes));
}
static inline bool e4m3_has_nan(__m256i largest)
{
    const __m256i nan = _mm256_cmpeq_epi8(largest, _mm256_set1_epi8((char)0xfe));
    return _mm256_movemask_epi8(nan) != 0;
}

/*
 * What multiplies row `row` from column c to the end of its scale block. false: the scale leaves no
 * room for 2^120.
 */
static TAMIS_ALWAYS_INLINE bool factor_of(__m256 *factor, tamis_dtype dtype, const tamis_matrix *w,
                                          int64_t row, int64_t c)
{
    float scale = 1.0f;
    if (w->scale)
        scale = tamis_scale_decode(w, tamis_scale_row(w, row), c / w->block_cols);
    *factor = _mm256_set1_ps(dtype == TAMIS_DTYPE_F8_E4M3 ? scale * E4M3_FACTOR : scale);
    return dtype != TAMIS_DTYPE_F8_E4M3 || fabsf(scale) < E4M3_SCALE_LIMIT;
}

/* Bits of a stored weight. */
static TAMIS_ALWAYS_INLINE int weight_bits(tamis_dtype dtype)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return 32;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
        return 16;
    case TAMIS_DTYPE_F4_E2M1:
        return 4;
    default:
        return 8;
    }
}

/* 32 columns from `at` on; `folded`: the inputs have the factor. FP8 NaN is the caller's business.
 */
static TAMIS_ALWAYS_INLINE planes weights_32(tamis_dtype dtype, bool folded, const uint8_t *at,
                                             __m256 factor)
{
    const __m256 nothing = _mm256_set1_ps(-0.0f);
    planes v;
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return f32_planes((const float *)(const void *)at);
    case TAMIS_DTYPE_BF16:
        return bf16_planes(at);
    case TAMIS_DTYPE_F16:
        return f16_planes(at);
    case TAMIS_DTYPE_I8:
        v = i8_planes(at);
        for (int b = 0; b < 4; b++)
            v.p[b] = _mm256_mul_ps(v.p[b], factor);
        return v;
    default:
        v = e4m3_small_planes(load_codes(at));
        /* Some processors multiply subnormals slowly but not in a multiply-add; -0 adds nothing. */
        for (int b = 0; b < 4 && !folded; b++)
            v.p[b] = _mm256_fmadd_ps(v.p[b], factor, nothing);
        return v;
    }
}

#endif
