/*
 * Kernels over rows of f32: rope, rope_halves, swiglu, axpy, scale, add, mix, all_finite.
 *
 * Included once per CPU level with TAMIS_FN(name) naming the functions; the level's flags decide
 * how fmaf and the loops compile, the order of operations is the same. Kernels whose output may be
 * their input work in groups of 16 through a local array, so that no aliasing check is needed.
 */
#include "kernels/body/lanes.h"

TAMIS_KERNEL_rope(TAMIS_FN(rope))
{
    float *restrict pair = x;
    const float *restrict c = cos;
    const float *restrict s = sin;
    const float sign = inverse ? -1.0f : 1.0f;
    for (int64_t i = 0; i < n_pairs; i++) {
        const float x0 = pair[2 * i], x1 = pair[2 * i + 1], sine = sign * s[i];
        pair[2 * i] = fmaf(x0, c[i], -(x1 * sine));
        pair[2 * i + 1] = fmaf(x0, sine, x1 * c[i]);
    }
}

TAMIS_KERNEL_rope_halves(TAMIS_FN(rope_halves))
{
    float *restrict first = x;
    float *restrict second = x + n_pairs;
    const float *restrict c = cos;
    const float *restrict s = sin;
    const float sign = inverse ? -1.0f : 1.0f;
    for (int64_t i = 0; i < n_pairs; i++) {
        const float x0 = first[i], x1 = second[i], sine = sign * s[i];
        first[i] = fmaf(x0, c[i], -(x1 * sine));
        second[i] = fmaf(x0, sine, x1 * c[i]);
    }
}

static TAMIS_ALWAYS_INLINE float swiglu_one(float g, float u, float limit)
{
    const float gate = g > limit ? limit : g;
    const float low = u < -limit ? -limit : u;
    return tamis_math_silu(gate) * (low > limit ? limit : low);
}

TAMIS_KERNEL_swiglu(TAMIS_FN(swiglu))
{
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES) {
        float t[TAMIS_LANES];
        for (int k = 0; k < TAMIS_LANES; k++)
            t[k] = swiglu_one(g[i + k], u[i + k], limit);
        memcpy(h + i, t, sizeof t);
    }
    for (; i < n; i++)
        h[i] = swiglu_one(g[i], u[i], limit);
}

TAMIS_KERNEL_axpy(TAMIS_FN(axpy))
{
    float *restrict to = y;
    const float *restrict from = x;
    for (int64_t i = 0; i < n; i++)
        to[i] = fmaf(a, from[i], to[i]);
}

TAMIS_KERNEL_scale(TAMIS_FN(scale))
{
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES) {
        float t[TAMIS_LANES];
        for (int k = 0; k < TAMIS_LANES; k++)
            t[k] = a * x[i + k];
        memcpy(y + i, t, sizeof t);
    }
    for (; i < n; i++)
        y[i] = a * x[i];
}

TAMIS_KERNEL_add(TAMIS_FN(add))
{
    float *restrict to = y;
    const float *restrict from = x;
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* One pass per stream over a block that stays in the first cache level. */
TAMIS_KERNEL_mix(TAMIS_FN(mix))
{
    enum { BLOCK = 1024 };
    float *restrict to = out;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
        for (int64_t i = begin; i < end; i++)
            to[i] = 0.0f;
        for (int s = 0; s < n_streams; s++) {
            const float *restrict from = streams + s * stride;
            const float c = coef[s];
            for (int64_t i = begin; i < end; i++)
                to[i] = fmaf(c, from[i], to[i]);
        }
    }
}

TAMIS_KERNEL_all_finite(TAMIS_FN(all_finite))
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (tamis_bits_of(x[i]) & 0x7f800000u) == 0x7f800000u;
    return bad == 0;
}
