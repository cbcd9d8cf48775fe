/* Rows, queries, attention and output of one layer: see profile_ref_sfa.h. */
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

const uint8_t *profile_cache_row(const profile_layer *l, tamis_sfa_role role, int32_t token,
                                 int32_t pos, const lowbit_row *row)
{
    const tamis_cache *cache = tamis_layer_cache(&l->caches->base, l->layer_idx, (int32_t)role);
    const tamis_step *step = &l->plan->step;
    assert_non_null(cache);
    assert_int_equal(cache->desc.format.row_bytes, row->bytes);
    const int32_t *table = tamis_step_table(step, step->tok_req[token]);
    return tamis_sfa_caches_row(l->caches, l->layer_idx, role, table[pos / cache->desc.rows],
                                pos % cache->desc.rows);
}

/* ---------------------------------------------------------------- rows */

/* raw: kv_a x. The row before it is coded stands in the workspace; its bytes follow exactly. */
static void check_latent(profile_case *c, const profile_layer *l, const float *raw, int32_t token)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t rank = config->kv_lora_rank, rope = config->qk_rope_head_dim, n = rank + rope;
    const int32_t pos = l->plan->step.tok_pos[token];
    const float *seen = l->plan->ws.kv + (int64_t)token * n;
    const lowbit_row row = lowbit_row_of(c->kv, n, c->kv == LOWBIT_ROW_BF16 ? 0 : rope);
    profile_value *x = oracle_take(n, sizeof *x);
    double *wide = oracle_take(n, sizeof *wide);
    uint8_t *bytes = oracle_take(row.bytes, 1);
    profile_rmsnorm(x, raw, l->layer->weights.kv_a_norm, rank, (double)config->rms_norm_eps);
    for (int32_t i = rank; i < n; i++)
        x[i] = (profile_value){(double)raw[i], 0};
    profile_rope(x + rank, rope, pos, true, &config->rope);
    for (int32_t i = 0; i < n; i++) {
        profile_expect_bf16(c, i < rank ? "latent" : "rotated key", token, i, seen[i], x[i]);
        wide[i] = (double)seen[i];
    }
    lowbit_row_encode(bytes, &row, wide);
    profile_expect_bytes(c, "row bytes", token,
                         profile_cache_row(l, TAMIS_SFA_LATENT, token, pos, &row), bytes,
                         row.bytes);
    free(x);
    free(wide);
    free(bytes);
}

static void check_rows(profile_case *c, const profile_layer *l)
{
    const tamis_sfa_weights *w = &l->layer->weights;
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t n = l->plan->step.n_tokens, rank = config->q_lora_rank;
    float *qa = profile_replay_linear(c, "q_a", &w->q_a_proj, l->x, n, PROFILE_TABLE);
    float *kv = profile_replay_linear(c, "kv_a", &w->kv_a_proj, l->x, n, PROFILE_TABLE);
    profile_value *x = oracle_take(rank, sizeof *x);
    for (int32_t t = 0; t < n; t++) {
        profile_rmsnorm(x, qa + (int64_t)t * rank, w->q_a_norm, rank, (double)config->rms_norm_eps);
        for (int32_t i = 0; i < rank && w->q_a_norm_bias != NULL; i++) {
            x[i].v += (double)w->q_a_norm_bias[i];
            x[i].e += fabs(x[i].v) * U;
        }
        for (int32_t i = 0; i < rank; i++)
            profile_expect_bf16(c, "q_a norm", t, i, l->plan->ws.qa[(int64_t)t * rank + i], x[i]);
        check_latent(c, l, kv + (int64_t)t * (config->kv_lora_rank + config->qk_rope_head_dim), t);
    }
    free(qa);
    free(kv);
    free(x);
}

/* ---------------------------------------------------------------- queries */

static int64_t row_values(const profile_layer *l)
{
    return l->layer->config.kv_lora_rank + l->layer->config.qk_rope_head_dim;
}

/* Column `col` of K-up of a head: nope values. */
static void take_column(double *out, const double *kv_b, const tamis_sfa_config *config, int32_t h,
                        int32_t col)
{
    const int64_t first = (int64_t)h * (config->qk_nope_head_dim + config->v_head_dim);
    for (int32_t i = 0; i < config->qk_nope_head_dim; i++)
        out[i] = kv_b[(first + i) * config->kv_lora_rank + col];
}

/* Absorbed parts of head h of all tokens: a chain over nope channels. */
static void check_absorbed(profile_case *c, const profile_layer *l, const double *kv_b, int32_t h)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t nope = config->qk_nope_head_dim, n = l->plan->step.n_tokens;
    const int64_t qk = nope + config->qk_rope_head_dim, heads = config->num_heads;
    double *column = oracle_take(nope, sizeof *column), *q = oracle_take(n * nope, sizeof *q);
    for (int64_t t = 0; t < n; t++)
        for (int32_t i = 0; i < nope; i++)
            q[t * nope + i] = (double)l->plan->ws.heads[(t * heads + h) * qk + i];
    for (int32_t col = 0; col < config->kv_lora_rank; col++) {
        take_column(column, kv_b, config, h, col);
        for (int64_t t = 0; t < n; t++)
            profile_expect_bf16(c, "absorbed query", t, h * row_values(l) + col,
                                l->plan->ws.q[(t * heads + h) * row_values(l) + col],
                                profile_chain(column, q + t * nope, nope));
    }
    free(column);
    free(q);
}

static void check_rotated(profile_case *c, const profile_layer *l, int32_t token, int32_t h)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t nope = config->qk_nope_head_dim, rope = config->qk_rope_head_dim;
    const int64_t head = (int64_t)token * config->num_heads + h;
    const float *from = l->plan->ws.heads + head * (nope + rope) + nope;
    const float *seen = l->plan->ws.q + head * row_values(l) + config->kv_lora_rank;
    profile_value *x = oracle_take(rope, sizeof *x);
    for (int32_t i = 0; i < rope; i++)
        x[i] = (profile_value){(double)from[i], 0};
    profile_rope(x, rope, l->plan->step.tok_pos[token], true, &config->rope);
    for (int32_t i = 0; i < rope; i++)
        profile_expect_bf16(c, "rotated query", token, h * rope + i, seen[i], x[i]);
    free(x);
}

static void check_queries(profile_case *c, const profile_layer *l)
{
    const tamis_sfa_config *config = &l->layer->config;
    const tamis_matrix *q_b = &l->layer->weights.q_b_proj;
    const int32_t n = l->plan->step.n_tokens;
    profile_check_linear(c, "q_b",
                         &(profile_linear){.w = q_b,
                                           .row_end = q_b->rows,
                                           .x = l->plan->ws.qa,
                                           .y = l->plan->ws.heads,
                                           .x_stride = q_b->cols,
                                           .y_stride = q_b->rows,
                                           .n = n});
    double *kv_b = profile_matrix(&l->layer->weights.kv_b_proj);
    for (int32_t h = 0; h < config->num_heads; h++) {
        check_absorbed(c, l, kv_b, h);
        for (int32_t t = 0; t < n; t++)
            check_rotated(c, l, t, h);
    }
    free(kv_b);
}

void profile_check_preprocess(profile_case *c, const profile_layer *l)
{
    const int64_t n_q = l->plan->step.n_tokens * l->layer->config.num_heads * row_values(l);
    c->layer = l->layer_idx;
    check_rows(c, l);
    check_queries(c, l);
    if (tamis_sfa_has_indexer(&l->layer->config))
        profile_check_index(c, l);
    free(c->q);
    c->q = oracle_take(n_q, sizeof *c->q);
    memcpy(c->q, l->plan->ws.q, (size_t)n_q * sizeof *c->q);
}

/* ---------------------------------------------------------------- attention */

/* Running softmax of one head: maximum, sum, weighted rows. */
typedef struct running {
    profile_value m, l, *o;
} running;

/* exp of a difference of two f32 values: the difference is rounded, exp is good to 1.1 ulp. */
static profile_value exp_of(profile_value x)
{
    const double e = x.e + fabs(x.v) * U, p = exp(x.v);
    return (profile_value){p, p * (expm1(e) + 3 * U)};
}

/* Scores of a chunk: a chain over channels, times scale. The maximum goes on from r->m. */
static void score_chunk(profile_value *s, running *r, const double *q, const double *rows,
                        int64_t width, int32_t n, double scale)
{
    for (int32_t j = 0; j < n; j++) {
        const profile_value dot = profile_chain(q, rows + j * width, width);
        s[j].v = dot.v * scale;
        s[j].e = dot.e * scale + fabs(s[j].v) * U;
        if (s[j].v > r->m.v)
            r->m = s[j];
    }
    for (int32_t j = 0; j < n; j++) /* another one may be the engine's maximum */
        if (s[j].v + s[j].e > r->m.v - r->m.e)
            r->m.e = fmax(r->m.e, s[j].e);
}

/* One chunk of at most 64 rows joins; P is rounded to BF16 for the values, not for the sum. */
static void add_chunk(running *r, const double *q, const double *rows, int64_t width, int32_t rank,
                      int32_t n, double scale)
{
    profile_value s[64], part = {0, 0};
    const profile_value before = r->m;
    double partials = 0;
    score_chunk(s, r, q, rows, width, n, scale);
    const bool is_same = before.v == r->m.v && before.e == r->m.e;
    const profile_value a =
        isinf(before.v)
            ? (profile_value){0, 0}
            : exp_of((profile_value){before.v - r->m.v, is_same ? 0 : before.e + r->m.e});
    for (int32_t j = 0; j < n; j++) {
        s[j] = exp_of((profile_value){s[j].v - r->m.v, s[j].e + r->m.e});
        part.v += s[j].v;
        part.e += s[j].e;
        partials += part.v;
        s[j] = profile_bf16(s[j]);
    }
    const double kept = r->l.v * a.v;
    r->l.e = r->l.e * a.v + r->l.v * a.e + part.e + (partials + kept + part.v) * U;
    r->l.v = kept + part.v;
    for (int32_t d = 0; d < rank; d++) {
        profile_value *o = &r->o[d];
        o->e = o->e * a.v + fabs(o->v) * a.e;
        o->v *= a.v;
        partials = fabs(o->v);
        for (int32_t j = 0; j < n; j++) {
            o->v += s[j].v * rows[j * width + d];
            o->e += s[j].e * fabs(rows[j * width + d]);
            partials += fabs(o->v);
        }
        o->e += partials * U;
    }
}

/* Cache rows of the positions of a list, as attention reads them. */
static void gather(double *rows, const profile_case *c, const profile_layer *l, int32_t token,
                   const int32_t *list, int32_t n)
{
    const int32_t width = (int32_t)row_values(l);
    const lowbit_row row = lowbit_row_of(
        c->kv, width, c->kv == LOWBIT_ROW_BF16 ? 0 : l->layer->config.qk_rope_head_dim);
    for (int32_t j = 0; j < n; j++)
        lowbit_row_decode(rows + (int64_t)j * width, &row,
                          profile_cache_row(l, TAMIS_SFA_LATENT, token, list[j], &row));
}

static void attend_head(profile_case *c, const profile_layer *l, int32_t token, int32_t h,
                        const double *rows, int32_t n)
{
    const int64_t width = row_values(l), heads = l->layer->config.num_heads;
    const int32_t rank = l->layer->config.kv_lora_rank;
    const float *seen = l->plan->ws.q + token * heads * width + (int64_t)h * rank;
    running r = {.m = {-INFINITY, 0}, .o = oracle_take(rank, sizeof *r.o)};
    double *q = oracle_take(width, sizeof *q);
    for (int64_t i = 0; i < width; i++)
        q[i] = (double)c->q[(token * heads + h) * width + i];
    for (int32_t first = 0; first < n; first += 64)
        add_chunk(&r, q, rows + first * width, width, rank, n - first < 64 ? n - first : 64,
                  (double)l->layer->config.softmax_scale);
    for (int32_t d = 0; d < rank; d++) {
        const double v = r.o[d].v / r.l.v;
        const double e = (r.o[d].e + fabs(v) * r.l.e) / (r.l.v - r.l.e) + fabs(v) * U;
        profile_expect_bf16(c, "attention", token, (int64_t)h * rank + d, seen[d],
                            (profile_value){v, e});
    }
    free(r.o);
    free(q);
}

static void check_attention(profile_case *c, const profile_layer *l)
{
    const tamis_sfa_config *config = &l->layer->config;
    const int32_t k = config->index_topk;
    for (int32_t t = 0; t < l->plan->step.n_tokens; t++) {
        const int32_t pos = l->plan->step.tok_pos[t];
        const int32_t *topk = k > 0 ? l->plan->ws.indexer.topk + (int64_t)t * k : NULL;
        int32_t n = 0, *list = oracle_take(pos + 1 + k, sizeof *list);
        for (int32_t i = 0; i < (k > 0 ? k : pos + 1); i++)
            if (k == 0 || topk[i] >= 0)
                list[n++] = k == 0 ? i : topk[i];
        double *rows = oracle_take(n * row_values(l), sizeof *rows);
        gather(rows, c, l, t, list, n);
        for (int32_t h = 0; h < config->num_heads; h++)
            attend_head(c, l, t, h, rows, n);
        free(rows);
        free(list);
    }
}

/* ---------------------------------------------------------------- output */

static void check_values(profile_case *c, const profile_layer *l, const float *out)
{
    const tamis_sfa_config *config = &l->layer->config;
    const tamis_sfa_weights *w = &l->layer->weights;
    const int64_t heads = config->num_heads, v = config->v_head_dim;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t end = (h + 1) * (config->qk_nope_head_dim + v);
        profile_check_linear(c, "value",
                             &(profile_linear){.w = &w->kv_b_proj,
                                               .row_begin = end - v,
                                               .row_end = end,
                                               .x = l->plan->ws.q + h * config->kv_lora_rank,
                                               .y = l->plan->ws.heads + h * v,
                                               .x_stride = heads * row_values(l),
                                               .y_stride = heads * v,
                                               .n = l->plan->step.n_tokens,
                                               .flags = PROFILE_KEEP_INPUT});
    }
    profile_check_linear(c, "o_proj",
                         &(profile_linear){.w = &w->o_proj,
                                           .row_end = w->o_proj.rows,
                                           .x = l->plan->ws.heads,
                                           .y = out,
                                           .x_stride = heads * v,
                                           .y_stride = w->o_proj.rows,
                                           .n = l->plan->step.n_tokens});
}

void profile_check_output(profile_case *c, const profile_layer *l, const float *out)
{
    c->layer = l->layer_idx;
    if (tamis_sfa_has_indexer(&l->layer->config))
        profile_check_selection(c, l);
    check_attention(c, l);
    check_values(c, l, out);
}
