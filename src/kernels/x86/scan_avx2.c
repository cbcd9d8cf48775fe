/* Candidates for the top-k, AVX2: compare 8 scores, then walk the bits of those that pass. */
#ifdef TAMIS_HAVE_AVX2
#include <immintrin.h>

#include "kernels/x86/table_x86.h"

/* Bit i: score i passes. */
static inline unsigned passing_8(const float *scores, __m256 threshold, bool any)
{
    const __m256 s = _mm256_loadu_ps(scores);
    const __m256 above = _mm256_cmp_ps(s, threshold, _CMP_GT_OQ);
    const __m256 not_nan = _mm256_cmp_ps(s, s, _CMP_ORD_Q);
    return (unsigned)_mm256_movemask_ps(any ? not_nan : above);
}

TAMIS_KERNEL_scan_above(tamis_scan_above_avx2)
{
    const bool any = threshold != threshold;
    const __m256 limit = _mm256_set1_ps(threshold);
    int64_t found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        unsigned pass = 0;
        for (int k = 0; k < 4; k++)
            pass |= passing_8(scores + i + 8 * k, limit, any) << (8 * k);
        for (; pass; pass &= pass - 1)
            out[found++] = (int32_t)(i + __builtin_ctz(pass));
    }
    for (; i < n; i++)
        if (any ? scores[i] == scores[i] : scores[i] > threshold)
            out[found++] = (int32_t)i;
    return found;
}
#endif
