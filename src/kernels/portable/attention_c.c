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
    (void)next;
    for (int64_t j = 0; j < n_keys; j++) {
        float *key = scratch, acc[TAMIS_LANES] = {0};
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        tamis_widen_c(key, row + format->coded_at, format->dtype, head_dim);
        for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
            float dot[TAMIS_LANES];
            panel_dot(dot, q_panels + first * head_dim, key, head_dim);
            for (int h = 0; h < TAMIS_LANES; h++) {
                const float v = dot[h] <= 0.0f || first + h >= n_heads ? 0.0f : dot[h];
                acc[h] = fmaf(weights[first + h], v, acc[h]);
            }
        }
        scores[j] = tamis_lanes_sum(acc);
        if (format->group_size != 0)
            scores[j] *= tamis_load_f32(row + format->scale_at);
    }
}

static float bf16(float x)
{
    return tamis_bf16_to_f32(tamis_f32_to_bf16(x));
}

/* Nothing is worth preparing here: where the inputs are. */
typedef struct index_query {
    const int8_t *q;
    const float *q_scale, *weights;
} index_query;

TAMIS_KERNEL_index_query_f4(tamis_index_query_f4_c)
{
    *(index_query *)query = (index_query){q, q_scale, weights};
}

TAMIS_KERNEL_index_query_i8(tamis_index_query_i8_c)
{
    *(index_query *)query = (index_query){q, NULL, weights};
}

/* dot of one head and key: integer sums of groups, scaled. q_scale of the head. */
static float dot_f4(const int8_t *q, const float *q_scale, const uint8_t *row, int64_t head_dim,
                    const tamis_row_format *format)
{
    const uint8_t *key = row + format->coded_at, *key_scale = row + format->scale_at;
    float dot = 0.0f;
    for (int64_t begin = 0, g = 0; begin < head_dim; begin += format->group_size, g++) {
        const int64_t end =
            head_dim - begin < format->group_size ? head_dim : begin + format->group_size;
        int32_t sum = 0;
        for (int64_t d = begin; d < end; d++)
            sum += q[d] * (int32_t)(2.0f * tamis_weight_decode(TAMIS_DTYPE_F4_E2M1, key, d));
        dot += (float)sum * (q_scale[g] * tamis_f8_e8m0_to_f32(key_scale[g])) * 0.25f;
    }
    return bf16(dot);
}

TAMIS_KERNEL_index_score_f4(tamis_index_score_f4_c)
{
    const index_query *from = query;
    const int32_t n_groups = tamis_row_num_groups(format);
    (void)next;
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        float acc[TAMIS_LANES] = {0};
        for (int64_t h = 0; h < n_heads; h++) {
            const float dot =
                dot_f4(from->q + h * head_dim, from->q_scale + h * n_groups, row, head_dim, format);
            acc[h % TAMIS_LANES] += bf16(from->weights[h] * (dot <= 0.0f ? 0.0f : dot));
        }
        scores[j] = bf16(tamis_lanes_sum(acc));
    }
}

TAMIS_KERNEL_index_score_i8(tamis_index_score_i8_c)
{
    const index_query *from = query;
    (void)next;
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        const uint8_t *key = row + format->coded_at;
        float acc[TAMIS_LANES] = {0};
        for (int64_t h = 0; h < n_heads; h++) {
            int32_t dot = 0;
            for (int64_t d = 0; d < head_dim; d++)
                dot += from->q[h * head_dim + d] * (int32_t)(int8_t)key[d];
            const float step = (float)(dot > 0 ? dot : 0) * 0x1p-10f;
            acc[h % TAMIS_LANES] = fmaf(from->weights[h], tamis_f16_to_f32(tamis_f32_to_f16(step)),
                                        acc[h % TAMIS_LANES]);
        }
        scores[j] = tamis_lanes_sum(acc) * tamis_f16_to_f32(tamis_load_u16(row + format->scale_at));
    }
}

/* Softmax of one head's scores in place: s becomes p; returns l and the maximum from *m on in *m.
 */
static float softmax_scores(float *s, int64_t stride, int64_t n_rows, float *m)
{
    float top = *m, l = 0.0f;
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

/* Factors of what was there before and of what the chunk adds. */
typedef struct head_factors {
    float before, chunk;
} head_factors;

/* Maximum and sum of one head; p, rounded if running, in s. */
static head_factors head_softmax(float *s, int64_t n_rows, float *m, float *l, tamis_attn_fold fold)
{
    const float before = *m;
    float top = fold == TAMIS_ATTN_RUNNING ? before : -INFINITY;
    const float sum = softmax_scores(s, TAMIS_LANES, n_rows, &top);
    if (fold == TAMIS_ATTN_ALONE) {
        *m = top;
        *l = sum;
        return (head_factors){0.0f, 1.0f};
    }
    *m = fold == TAMIS_ATTN_RUNNING || top > before ? top : before;
    const head_factors factors = {tamis_math_exp(before - *m), tamis_math_exp(top - *m)};
    *l = fmaf(*l, factors.before, fold == TAMIS_ATTN_RUNNING ? sum : sum * factors.chunk);
    for (int64_t j = 0; fold == TAMIS_ATTN_RUNNING && j < n_rows; j++)
        s[j * TAMIS_LANES] = bf16(s[j * TAMIS_LANES]);
    return factors;
}

/* 16 columns of one head's output, n of them there. */
static void head_values(float *o, int64_t n, const float *p, const float *values,
                        int64_t row_floats, int64_t n_rows, head_factors factors,
                        tamis_attn_fold fold)
{
    float sum[TAMIS_LANES];
    for (int64_t d = 0; d < n; d++)
        sum[d] = fold == TAMIS_ATTN_RUNNING ? o[d] * factors.before : 0.0f;
    for (int64_t j = 0; j < n_rows; j++)
        for (int64_t d = 0; d < n; d++)
            sum[d] = fmaf(p[j * TAMIS_LANES], values[j * row_floats + d], sum[d]);
    for (int64_t d = 0; d < n; d++)
        o[d] =
            fold == TAMIS_ATTN_MERGED ? fmaf(o[d], factors.before, sum[d] * factors.chunk) : sum[d];
}

TAMIS_KERNEL_attn_chunk(tamis_attn_chunk_c)
{
    const int64_t row_floats = (head_dim + 15) / 16 * 16;
    float *values = scratch;                                 /* [n_rows][row_floats] */
    float *scores = scratch + TAMIS_ATTN_CHUNK * row_floats; /* [n_rows][16], one panel at a time */
    (void)ahead;
    (void)n_ahead;
    for (int64_t j = 0; j < n_rows; j++)
        tamis_unpack_row_c(values + j * row_floats, rows[j],
                           (const uint8_t *)rows[j] + format->scale_at, format);
    for (int64_t h = 0; h < n_heads; h++) {
        const int64_t lane = h % TAMIS_LANES;
        if (lane == 0)
            for (int64_t j = 0; j < n_rows; j++) {
                float *s = scores + j * TAMIS_LANES;
                panel_dot(s, q_panels + h * head_dim, values + j * row_floats, head_dim);
                for (int k = 0; k < TAMIS_LANES; k++)
                    s[k] *= scale;
            }
        const head_factors factors = head_softmax(scores + lane, n_rows, &m[h], &l[h], fold);
        for (int64_t d = 0; d < value_dim; d += TAMIS_LANES)
            head_values(o + h * o_stride + d,
                        value_dim - d < TAMIS_LANES ? value_dim - d : TAMIS_LANES, scores + lane,
                        values + d, row_floats, n_rows, factors, fold);
    }
}
