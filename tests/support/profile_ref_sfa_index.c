/* Lightning indexer of one layer: see profile_ref_sfa.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_sfa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_math.h"

#define U (0x1p-24 * 1.001) /* one rounding to f32 */

static bool is_official(const profile_case *c)
{
    return c->profile == TAMIS_PROFILE_OFFICIAL;
}

/* Heads in whole panels of 16. */
static int64_t padded_heads(const profile_layer *l)
{
    return (l->layer->config.index_n_heads + 15) / 16 * 16;
}

/* ---------------------------------------------------------------- keys and queries */

/* Mean and variance are lanes16 sums of n terms; the spread of a term that is not exact passes on.
 */
static void layernorm(profile_value *out, const float *x, const float *weight, const float *bias,
                      int32_t n)
{
    double *wide = oracle_take(n, sizeof *wide), *ones = oracle_take(n, sizeof *ones);
    double spread = 0;
    for (int32_t i = 0; i < n; i++) {
        wide[i] = (double)x[i];
        ones[i] = 1;
    }
    const profile_value sum = profile_lanes16(wide, ones, n);
    const double mean = sum.v / n, mean_error = sum.e / n + fabs(mean) * U;
    for (int32_t i = 0; i < n; i++) {
        wide[i] -= mean;
        spread += 2 * fabs(wide[i]) * (mean_error + fabs(wide[i]) * U);
    }
    const profile_value squares = profile_lanes16(wide, wide, n);
    const double factor = 1 / sqrt(squares.v / n + (double)1e-6f);
    const double relative = (squares.e + spread) / squares.v / 2 + 4 * U;
    for (int32_t i = 0; i < n; i++) {
        const double size = fabs(factor * (double)weight[i]);
        out[i].v = wide[i] * factor * (double)weight[i] + (double)bias[i];
        out[i].e = size * (mean_error + fabs(wide[i]) * (relative + 2 * U)) + fabs(out[i].v) * U;
    }
    free(wide);
    free(ones);
}

/* Rotary embedding, Hadamard, each rounded to BF16; the last not rounded yet. */
static void rotate(profile_value *x, const profile_case *c, const profile_layer *l, int32_t pos)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t n = config->index_head_dim;
    profile_value y[512];
    double plain[512], turned[512], entry = lowbit_f32(1 / sqrt(n)), size = 0, open = 0;
    assert_true(n <= 512);
    entry = is_official(c) ? entry : lowbit_bf16(1 / sqrt(n));
    memcpy(y, x, (size_t)n * sizeof *y);
    profile_rope(y, config->qk_rope_head_dim, pos, config->index_rope_interleave, &config->rope);
    for (int32_t i = 0; i < n; i++) {
        y[i] = profile_bf16(y[i]);
        plain[i] = y[i].v;
        open += y[i].e;
        size += fabs(y[i].v);
    }
    lowbit_hadamard(turned, plain, n);
    for (int32_t i = 0; i < n; i++) { /* log2 n additions on the way of every term, one product */
        x[i].v = turned[i] * entry;
        x[i].e = (open + size * log2(n) * U) * entry + fabs(x[i].v) * U;
    }
}

static void check_key(profile_case *c, const profile_layer *l, const float *raw, int32_t token)
{
    const tamis_sfa_weights *w = &l->layer->weights;
    const int32_t n = l->layer->config.index_head_dim, pos = l->plan->step.tok_pos[token];
    const float *seen = l->plan->ws.index_k + (int64_t)token * n;
    const lowbit_row row = lowbit_row_of(c->index_key, n, 0);
    profile_value *x = oracle_take(n, sizeof *x);
    double *wide = oracle_take(n, sizeof *wide);
    uint8_t *bytes = oracle_take(row.bytes, 1);
    layernorm(x, raw, w->index_k_norm, w->index_k_norm_bias, n);
    for (int32_t i = 0; i < n; i++)
        x[i] = profile_bf16(x[i]);
    rotate(x, c, l, pos);
    for (int32_t i = 0; i < n; i++) {
        profile_expect_bf16(c, "index key", token, i, seen[i], x[i]);
        wide[i] = (double)seen[i];
    }
    lowbit_row_encode(bytes, &row, wide);
    profile_expect_bytes(c, "index key bytes", token,
                         profile_cache_row(l, TAMIS_SFA_INDEX_KEY, token, pos, &row), bytes,
                         row.bytes);
    free(x);
    free(wide);
    free(bytes);
}

/* Ascend: the rotated head stands beside its codes. */
static void check_i8_head(profile_case *c, const profile_layer *l, int64_t token, int32_t h,
                          const profile_value *x)
{
    const int32_t n = l->layer->config.index_head_dim;
    const int64_t head = token * padded_heads(l) + h;
    const float *q =
        l->plan->ws.indexer.q + (token * l->layer->config.index_n_heads + h) * (int64_t)n;
    double wide[512] = {0}, codes[512];
    for (int32_t i = 0; i < n; i++) {
        profile_expect_bf16(c, "index query", token, (int64_t)h * n + i, q[i], x[i]);
        wide[i] = (double)q[i];
    }
    const double scale = lowbit_quantize(codes, wide, n, LOWBIT_INT8, LOWBIT_AMAX);
    profile_expect_same(c, "query scale", token, h, (double)l->plan->ws.indexer.q_scales[head],
                        scale);
    for (int32_t i = 0; i < n; i++)
        profile_expect_same(c, "query codes", token, (int64_t)h * n + i,
                            l->plan->ws.indexer.q_codes[head * n + i], codes[i]);
}

/*
 * Official: codes as f32 numbers in the head's place. Where a channel is open the codes follow from
 * a number within its error: the code times the scale is that near to it, and half a step of E4M3.
 */
static void check_f8_head(profile_case *c, const profile_layer *l, int64_t token, int32_t h,
                          const profile_value *x)
{
    const int32_t n = l->layer->config.index_head_dim;
    const int64_t head = token * padded_heads(l) + h;
    const float *q =
        l->plan->ws.indexer.q + (token * l->layer->config.index_n_heads + h) * (int64_t)n;
    const double seen_scale = (double)l->plan->ws.indexer.q_scales[head];
    double wide[512] = {0}, codes[512], open = 0;
    for (int32_t i = 0; i < n; i++) {
        const profile_value rounded = profile_bf16(x[i]);
        wide[i] = rounded.v;
        open = fmax(open, rounded.e);
    }
    const double scale = lowbit_quantize(codes, wide, n, LOWBIT_E4M3, LOWBIT_POW2);
    if (open == 0)
        profile_expect_same(c, "query scale", token, h, seen_scale, scale);
    for (int32_t i = 0; i < n; i++) {
        const double step = ldexp(fmax(fabs(wide[i]) / seen_scale, 0x1p-6), -3);
        if (open == 0)
            profile_expect_same(c, "query codes", token, (int64_t)h * n + i, (double)q[i],
                                codes[i]);
        else
            profile_expect_f32(
                c, "open query codes", token, (int64_t)h * n + i, q[i],
                (profile_value){wide[i] / seen_scale, step / 2 + open / seen_scale + step / 16});
    }
}

static void check_heads(profile_case *c, const profile_layer *l, const float *raw)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t n = config->index_head_dim;
    profile_value *x = oracle_take(n, sizeof *x);
    for (int64_t t = 0; t < l->plan->step.n_tokens; t++)
        for (int32_t h = 0; h < config->index_n_heads; h++) {
            for (int32_t i = 0; i < n; i++)
                x[i] = (profile_value){(double)raw[(t * config->index_n_heads + h) * n + i], 0};
            rotate(x, c, l, l->plan->step.tok_pos[t]);
            if (is_official(c))
                check_f8_head(c, l, t, h, x);
            else
                check_i8_head(c, l, t, h, x);
        }
    free(x);
}

/* ---------------------------------------------------------------- head weights */

/* ((w heads^-0.5) scale) dim^-0.5 in f32, or f16(f16(w) f16(scale)). */
static double weight_of(const profile_case *c, const tamis_sfa_config *config, double w,
                        double scale)
{
    if (!is_official(c))
        return lowbit_f16(lowbit_f16(w) * lowbit_f16(scale));
    w = lowbit_f32(w * lowbit_f32(1 / sqrt(config->index_n_heads)));
    return lowbit_f32(lowbit_f32(w * scale) * lowbit_f32(1 / sqrt(config->index_head_dim)));
}

static void check_weights(profile_case *c, const profile_layer *l)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t heads = config->index_n_heads;
    const int64_t padded = padded_heads(l);
    const tamis_matrix *w = &l->layer->weights.index_weights_proj;
    const tamis_indexer *seen = &l->plan->ws.indexer;
    profile_check_linear(c, "weights_proj",
                         &(profile_linear){.w = w,
                                           .row_end = w->rows,
                                           .x = l->x,
                                           .y = seen->w_raw,
                                           .x_stride = w->cols,
                                           .y_stride = w->rows,
                                           .n = l->plan->step.n_tokens,
                                           .flags = is_official(c) ? PROFILE_KEEP_OUTPUT : 0});
    for (int64_t t = 0; t < l->plan->step.n_tokens; t++)
        for (int32_t h = 0; h < padded; h++)
            profile_expect_same(c, "head weights", t, h, (double)seen->w[t * padded + h],
                                h >= heads
                                    ? 0
                                    : weight_of(c, config, (double)seen->w_raw[t * heads + h],
                                                (double)seen->q_scales[t * padded + h]));
}

void profile_check_index(profile_case *c, const profile_layer *l)
{
    const tamis_sfa_weights *w = &l->layer->weights;
    const int32_t n = l->plan->step.n_tokens;
    float *keys = profile_replay_linear(c, "wk", &w->index_wk, l->x, n, PROFILE_TABLE);
    float *heads =
        profile_replay_linear(c, "wq_b", &w->index_wq_b, l->plan->ws.qa, n, PROFILE_TABLE);
    for (int32_t t = 0; t < n; t++)
        check_key(c, l, keys + (int64_t)t * w->index_wk.rows, t);
    check_heads(c, l, heads);
    check_weights(c, l);
    free(keys);
    free(heads);
}

/* ---------------------------------------------------------------- scores */

/* weight relu(dot) of one head: FP8 codes multiply in f32, int8 ones as integers with an FP16 step.
 */
static profile_value head_score(const profile_case *c, const double *q, const double *key,
                                int32_t n)
{
    if (is_official(c)) {
        const profile_value dot = profile_chain(q, key, n);
        return (profile_value){fmax(dot.v, 0), dot.v + dot.e > 0 ? dot.e : 0};
    }
    return (profile_value){lowbit_f16(ldexp(fmax(oracle_dot(q, key, n), 0), -10)), 0};
}

/* Sum over heads, times the key's scale. q [heads][n], w [heads]. */
static profile_value score(const profile_case *c, const double *q, const double *w, int32_t heads,
                           const double *key, double key_scale, int32_t n)
{
    double relu[256], open = 0;
    assert_true(heads <= 256);
    for (int32_t h = 0; h < heads; h++) {
        const profile_value s = head_score(c, q + (int64_t)h * n, key, n);
        relu[h] = s.v;
        open += fabs(w[h]) * s.e;
    }
    const profile_value sum = profile_lanes16(w, relu, heads);
    const double v = sum.v * key_scale;
    return (profile_value){v, (sum.e + open) * key_scale + fabs(v) * U};
}

/* Query codes as numbers and weights of a token. */
static void take_query(double *q, double *w, const profile_case *c, const profile_layer *l,
                       int64_t token)
{
    const tamis_indexer *seen = &l->plan->ws.indexer;
    const int32_t heads = l->layer->config.index_n_heads, n = l->layer->config.index_head_dim;
    const int64_t padded = padded_heads(l);
    for (int64_t h = 0; h < heads; h++) {
        w[h] = (double)seen->w[token * padded + h];
        for (int64_t i = 0; i < n; i++)
            q[h * n + i] = is_official(c) ? (double)seen->q[(token * heads + h) * n + i]
                                          : (double)seen->q_codes[(token * padded + h) * n + i];
    }
}

/* Scores of all positions that a token sees. */
static profile_value *score_all(const profile_case *c, const profile_layer *l, int32_t token,
                                int32_t n_visible)
{
    const int32_t heads = l->layer->config.index_n_heads, n = l->layer->config.index_head_dim;
    const lowbit_row row = lowbit_row_of(c->index_key, n, 0);
    profile_value *scores = oracle_take(n_visible, sizeof *scores);
    double *q = oracle_take((int64_t)heads * n, sizeof *q), w[256], key[512], key_scale;
    assert_true(heads <= 256 && n <= 512);
    take_query(q, w, c, l, token);
    for (int32_t pos = 0; pos < n_visible; pos++) {
        lowbit_row_codes(key, &key_scale, &row,
                         profile_cache_row(l, TAMIS_SFA_INDEX_KEY, token, pos, &row));
        scores[pos] = score(c, q, w, heads, key, key_scale, n);
    }
    free(q);
    return scores;
}

/* Ascending positions, min(k, visible) of them; none that was left out can be better. */
static void check_choice(profile_case *c, const int32_t *topk, int32_t k,
                         const profile_value *scores, int32_t n_visible, int32_t token)
{
    const int32_t n = k < n_visible ? k : n_visible;
    double worst_in = INFINITY, best_out = -INFINITY, worst_low = INFINITY, best_high = -INFINITY;
    int32_t next = 0;
    for (int32_t i = 0; i < n_visible; i++) {
        const double low = scores[i].v - scores[i].e, high = scores[i].v + scores[i].e;
        if (next < n && topk[next] == i) {
            next++;
            worst_in = fmin(worst_in, high);
            worst_low = fmin(worst_low, low);
        } else {
            best_out = fmax(best_out, low);
            best_high = fmax(best_high, high);
        }
    }
    profile_expect_same(c, "selected", token, 0, next, n);
    for (int32_t i = n; i < k; i++)
        profile_expect_same(c, "padding", token, i, topk[i], -1);
    profile_count(c, "selections", worst_low < best_high);
    if (worst_in < best_out)
        fail_msg("%s, %s: layer %d, token %d: a selected position scores at most %.9g, one that "
                 "was left out at least %.9g",
                 c->name, tamis_profile_name(c->profile), c->layer, token, worst_in, best_out);
}

void profile_check_selection(profile_case *c, const profile_layer *l)
{
    const int32_t k = l->layer->config.index_topk;
    for (int32_t t = 0; t < l->plan->step.n_tokens; t++) {
        const int32_t n_visible = l->plan->step.tok_pos[t] + 1;
        profile_value *scores = score_all(c, l, t, n_visible);
        check_choice(c, l->plan->ws.indexer.topk + (int64_t)t * k, k, scores, n_visible, t);
        free(scores);
    }
}
