/* Root mean square norm and layer norm, AVX2. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/simd_avx2.h"
#include "kernels/x86/table_x86.h"

static float sum_of_squares(const float *x, int64_t n)
{
    v16 acc = v16_zero();
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES) {
        const v16 v = v16_load(x + i);
        acc = v16_fma(v, v, acc);
    }
    if (i < n) {
        const v16 v = v16_load_first(x + i, n - i);
        acc = v16_fma(v, v, acc);
    }
    return v16_sum(acc);
}

TAMIS_KERNEL_rmsnorm(tamis_rmsnorm_avx2)
{
    const float s = tamis_norm_factor(sum_of_squares(x, n), n, eps);
    const __m256 factor = _mm256_set1_ps(s);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(y + i,
                         weight ? _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)) : scaled);
    }
    for (; i < n; i++)
        y[i] = weight ? (x[i] * s) * weight[i] : x[i] * s;
}

static float sum_of_values(const float *x, int64_t n)
{
    v16 acc = v16_zero();
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES)
        acc = v16_add(acc, v16_load(x + i));
    if (i < n)
        acc = v16_add(acc, v16_load_first(x + i, n - i));
    return v16_sum(acc);
}

static float sum_of_deviations(const float *x, float mean, int64_t n)
{
    const v16 center = {_mm256_set1_ps(-mean), _mm256_set1_ps(-mean)};
    v16 acc = v16_zero();
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES) {
        const v16 d = v16_add(v16_load(x + i), center);
        acc = v16_fma(d, d, acc);
    }
    if (i < n) {
        const v16 d = v16_first(v16_add(v16_load_first(x + i, n - i), center), n - i);
        acc = v16_fma(d, d, acc);
    }
    return v16_sum(acc);
}

TAMIS_KERNEL_layernorm(tamis_layernorm_avx2)
{
    const float mean = sum_of_values(x, n) / (float)n;
    const float s = tamis_norm_factor(sum_of_deviations(x, mean, n), n, eps);
    const __m256 factor = _mm256_set1_ps(s), center = _mm256_set1_ps(mean);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + i), center);
        _mm256_storeu_ps(y + i,
                         _mm256_fmadd_ps(_mm256_mul_ps(d, factor), _mm256_loadu_ps(weight + i),
                                         _mm256_loadu_ps(bias + i)));
    }
    for (; i < n; i++)
        y[i] = fmaf((x[i] - mean) * s, weight[i], bias[i]);
}
#endif
