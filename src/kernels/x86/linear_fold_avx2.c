/* Inputs times the scales of FP8 weights, where that is exact; see linear_fused_avx2.h. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_fused_avx2.h"
#include "kernels/x86/table_x86.h"

/*
 * dst = x * factor over n values, a multiple of 8. false: a product was rounded, overflowed, or x
 * has a NaN. factor is a power of two, so dividing again shows it.
 */
static bool scale_exactly(float *dst, const float *x, int64_t n, float factor)
{
    const __m256 there = _mm256_set1_ps(factor), back = _mm256_set1_ps(1.0f / factor);
    __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256 scaled = _mm256_mul_ps(v, there);
        _mm256_storeu_ps(dst + i, scaled);
        all = _mm256_and_ps(all, _mm256_cmp_ps(_mm256_mul_ps(scaled, back), v, _CMP_EQ_OQ));
    }
    return _mm256_movemask_ps(all) == 0xff;
}

/* Whether scale * 2^120 is a power of two that factor and its inverse can be. */
static bool scale_folds(float scale)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return scale > 0x1p-126f && scale < E4M3_SCALE_LIMIT && (bits & 0x7fffff) == 0;
}

bool tamis_fold_scales_avx2(float *dst, const float *x, int64_t n_tokens, const tamis_matrix *w,
                            int64_t row)
{
    const int64_t all = planes_stride(w->cols);
    const int64_t block_cols = w->scale && w->block_cols < w->cols ? w->block_cols : all;
    for (int64_t c = 0; c < w->cols; c += block_cols) {
        const int64_t n = all - c < block_cols ? all - c : block_cols;
        const float scale =
            w->scale ? tamis_scale_decode(w, tamis_scale_row(w, row), c / block_cols) : 1.0f;
        if (!scale_folds(scale) ||
            !scale_exactly(dst + c * n_tokens, x + c * n_tokens, n * n_tokens, scale * E4M3_FACTOR))
            return false;
    }
    return true;
}
#endif
