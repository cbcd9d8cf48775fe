/* lanes16, quads16 and small loops shared by the portable kernels and the bodies compiled per
 * level. */
#ifndef TAMIS_KERNELS_LANES_H
#define TAMIS_KERNELS_LANES_H

#include <assert.h>

#include "kernels/kernels.h"
#include "kernels/math.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__GNUC__)
#define TAMIS_ALWAYS_INLINE inline __attribute__((always_inline))
#define TAMIS_NEVER_INLINE  __attribute__((noinline))
#else
#define TAMIS_ALWAYS_INLINE inline
#define TAMIS_NEVER_INLINE
#endif

/* acc[i] += acc[i + 8], 4, 2, 1. */
static inline float tamis_lanes_sum(const float acc[TAMIS_LANES])
{
    float a[8], b[4];
    for (int i = 0; i < 8; i++)
        a[i] = acc[i] + acc[i + 8];
    for (int i = 0; i < 4; i++)
        b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* acc[i] = fma(a[i], b[i], acc[i]) over n terms, term k on lane k % 16; a short group is padded. */
static inline void tamis_lanes_dot(float acc[TAMIS_LANES], const float *a, const float *b,
                                   int64_t n)
{
    int64_t k = 0;
    for (; k + TAMIS_LANES <= n; k += TAMIS_LANES)
        for (int i = 0; i < TAMIS_LANES; i++)
            acc[i] = fmaf(a[k + i], b[k + i], acc[i]);
    if (k == n)
        return;
    float a_pad[TAMIS_LANES] = {0}, b_pad[TAMIS_LANES] = {0};
    for (int i = 0; k + i < n; i++) {
        a_pad[i] = a[k + i];
        b_pad[i] = b[k + i];
    }
    for (int i = 0; i < TAMIS_LANES; i++)
        acc[i] = fmaf(a_pad[i], b_pad[i], acc[i]);
}

/* acc[k / 4 % 16] = fma(a[k], b[k], acc[k / 4 % 16]) over n terms and zeros up to 64. */
static inline void tamis_quads_dot(float acc[TAMIS_LANES], const float *a, const float *b,
                                   int64_t n)
{
    enum { GROUP = 4 * TAMIS_LANES };
    for (int64_t k = 0; k < n; k += GROUP) {
        float a_pad[GROUP] = {0}, b_pad[GROUP] = {0};
        const size_t bytes = (size_t)(n - k < GROUP ? n - k : GROUP) * sizeof(float);
        memcpy(a_pad, a + k, bytes);
        memcpy(b_pad, b + k, bytes);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < TAMIS_LANES; i++)
                acc[i] = fmaf(a_pad[4 * i + j], b_pad[4 * i + j], acc[i]);
    }
}

/* IEEE square root without the errno call that sqrtf may bring. */
static inline float tamis_sqrt(float x)
{
#if defined(__SSE2__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return sqrtf(x);
#endif
}

/* The factor of the norms. ss - ss adds +0; a sum that overflowed makes NaN of what would be 0. */
static inline float tamis_norm_factor(float ss, int64_t n, float eps)
{
    return 1.0f / tamis_sqrt(ss / (float)n + eps) + (ss - ss);
}

#endif
