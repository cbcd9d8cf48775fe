/*
 * Softmax over slots and the running softmax of attention: pool, attn_merge, attn_finish.
 * Included once per CPU level with TAMIS_FN(name) naming the functions.
 */
#include "kernels/body/lanes.h"

/* `width` channels from channel c; a constant 16 in the main loop. */
static TAMIS_ALWAYS_INLINE void pool_channels(float *out, const float *const *value,
                                              const float *const *score, int n_slots, int64_t c,
                                              int width)
{
    float m[TAMIS_LANES], l[TAMIS_LANES] = {0}, o[TAMIS_LANES] = {0};
    for (int k = 0; k < width; k++)
        m[k] = score[0][c + k];
    for (int s = 1; s < n_slots; s++)
        for (int k = 0; k < width; k++)
            m[k] = score[s][c + k] > m[k] ? score[s][c + k] : m[k];
    for (int s = 0; s < n_slots; s++) {
        const float *score_row = score[s] + c, *value_row = value[s] + c;
        for (int k = 0; k < width; k++) {
            const float e = tamis_math_exp(score_row[k] - m[k]);
            l[k] += e;
            o[k] = fmaf(e, value_row[k], o[k]);
        }
    }
    for (int k = 0; k < width; k++)
        out[c + k] = o[k] / l[k];
}

TAMIS_KERNEL_pool(TAMIS_FN(pool))
{
    int64_t c = 0;
    for (; c + TAMIS_LANES <= n_channels; c += TAMIS_LANES)
        pool_channels(out, value, score, n_slots, c, TAMIS_LANES);
    if (c < n_channels)
        pool_channels(out, value, score, n_slots, c, (int)(n_channels - c));
}

TAMIS_KERNEL_attn_merge(TAMIS_FN(attn_merge))
{
    for (int64_t h = 0; h < n_heads; h++) {
        const float top = m_c[h] > m[h] ? m_c[h] : m[h];
        const float a = tamis_math_exp(m[h] - top), b = tamis_math_exp(m_c[h] - top);
        float *restrict to = o + h * o_stride;
        const float *restrict from = o_c + h * o_c_stride;
        l[h] = fmaf(l[h], a, l_c[h] * b);
        for (int64_t d = 0; d < value_dim; d++)
            to[d] = fmaf(to[d], a, from[d] * b);
        m[h] = top;
    }
}

TAMIS_KERNEL_attn_finish(TAMIS_FN(attn_finish))
{
    for (int64_t h = 0; h < n_heads; h++) {
        float *row = o + h * o_stride;
        if (m[h] == -INFINITY && l[h] == 0.0f) { /* no row at all */
            for (int64_t d = 0; d < value_dim; d++)
                row[d] = 0.0f;
            if (lse)
                lse[h] = sink ? sink[h] : -INFINITY;
            continue;
        }
        const float top = sink && sink[h] > m[h] ? sink[h] : m[h];
        const float a = sink ? tamis_math_exp(m[h] - top) : 1.0f;
        const float total = sink ? fmaf(l[h], a, tamis_math_exp(sink[h] - top)) : l[h];
        for (int64_t d = 0; d < value_dim; d++)
            row[d] = (row[d] * a) / total;
        if (lse)
            lse[h] = top + tamis_math_log(total);
    }
}
