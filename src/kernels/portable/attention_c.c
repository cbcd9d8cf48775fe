/*
 * Index scores and attention over one chunk of rows, portable: heads lie in lanes, so every inner
 * loop runs over the 16 heads of a panel.
 */
#include "kernels/body/lanes.h"
#include "kernels/formats.h"

/* dot[h] = chain over d of fma(q[h][d], row[d], dot[h]) for the 16 heads of a panel. */
static void panel_dot(float dot[TAMIS_LANES], const float *panel, const float *row,
                      int64_t head_dim)
{
    for (int h = 0; h < TAMIS_LANES; h++)
        dot[h] = 0.0f;
    for (int64_t d = 0; d < head_dim; d++)
        for (int h = 0; h < TAMIS_LANES; h++)
            dot[h] = fmaf(panel[d * TAMIS_LANES + h], row[d], dot[h]);
}

TAMIS_KERNEL_index_score(tamis_index_score_c)
{
    for (int64_t j = 0; j < n_keys; j++) {
        float *key = scratch, acc[TAMIS_LANES] = {0};
        tamis_widen_c(key, (const uint8_t *)keys + j * key_stride, dtype, head_dim);
        for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
            float dot[TAMIS_LANES];
            panel_dot(dot, q_panels + first * head_dim, key, head_dim);
            for (int h = 0; h < TAMIS_LANES; h++) {
                const float v = dot[h] <= 0.0f || first + h >= n_heads ? 0.0f : dot[h];
                acc[h] = fmaf(weights[first + h], v, acc[h]);
            }
        }
        scores[j] = tamis_lanes_sum(acc);
    }
}

/* Softmax of one head's scores in place: s becomes p; returns l and the maximum in *m. */
static float softmax_scores(float *s, int64_t stride, int64_t n_rows, float *m)
{
    float top = -INFINITY, l = 0.0f;
    for (int64_t j = 0; j < n_rows; j++)
        top = s[j * stride] > top ? s[j * stride] : top;
    for (int64_t j = 0; j < n_rows; j++) {
        const float p = tamis_math_exp(s[j * stride] - top);
        s[j * stride] = p;
        l += p;
    }
    *m = top;
    return l;
}

TAMIS_KERNEL_attn_chunk(tamis_attn_chunk_c)
{
    const int64_t row_floats = (head_dim + 15) / 16 * 16;
    float *values = scratch;                                 /* [n_rows][row_floats] */
    float *scores = scratch + TAMIS_ATTN_CHUNK * row_floats; /* [n_rows][16], one panel at a time */
    for (int64_t j = 0; j < n_rows; j++)
        tamis_widen_c(values + j * row_floats, rows[j], dtype, head_dim);
    for (int64_t h = 0; h < n_heads; h++) {
        const int64_t lane = h % TAMIS_LANES;
        if (lane == 0)
            for (int64_t j = 0; j < n_rows; j++) {
                float *s = scores + j * TAMIS_LANES;
                panel_dot(s, q_panels + h * head_dim, values + j * row_floats, head_dim);
                for (int k = 0; k < TAMIS_LANES; k++)
                    s[k] *= scale;
            }
        l[h] = softmax_scores(scores + lane, TAMIS_LANES, n_rows, &m[h]);
        float *out = o + h * o_stride;
        for (int64_t d = 0; d < value_dim; d++)
            out[d] = 0.0f;
        for (int64_t j = 0; j < n_rows; j++)
            for (int64_t d = 0; d < value_dim; d++)
                out[d] = fmaf(scores[j * TAMIS_LANES + lane], values[j * row_floats + d], out[d]);
    }
}
