/* One attention layer of V3.2 or GLM-5 in double precision: see oracle_v32.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_v32.h"

/* ---------------------------------------------------------------- choosing */

static bool is_better(const double *values, int32_t a, int32_t b)
{
    return values[a] > values[b] || (values[a] == values[b] && a < b);
}

double oracle_choose(int32_t *ids, int32_t k, const double *values, int32_t n)
{
    double worst_in = 0, best_out = -INFINITY, largest = 0;
    for (int32_t i = 0; i < k; i++)
        ids[i] = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t n_better = 0;
        if (values[i] == -INFINITY)
            continue;
        for (int32_t j = 0; j < n; j++)
            n_better += is_better(values, j, i);
        if (n_better < k)
            ids[n_better] = i;
        if (n_better == k - 1)
            worst_in = values[i];
        if (n_better == k)
            best_out = values[i];
        largest = fmax(largest, fabs(values[i]));
    }
    return best_out == -INFINITY ? 1 : (worst_in - best_out) / largest;
}

/* ---------------------------------------------------------------- rotation */

/* rope channels at x, of position pos: neighbouring pairs or channel j with j + rope / 2. */
static void rotate(double *x, int32_t pos, bool is_interleaved, const tamis_sfa_config *c)
{
    const int32_t half = c->qk_rope_head_dim / 2;
    double freq[512];
    oracle_rope_frequencies(freq, c->qk_rope_head_dim, &c->rope);
    for (int32_t j = 0; j < half; j++) {
        const double angle = (double)((float)pos * (float)freq[j]);
        double *a = is_interleaved ? x + 2 * j : x + j;
        double *b = is_interleaved ? x + 2 * j + 1 : x + half + j;
        const double first = *a, second = *b;
        *a = first * cos(angle) - second * sin(angle);
        *b = first * sin(angle) + second * cos(angle);
    }
}

static void round_rows(double *rows, int64_t n, const oracle_sfa_options *options)
{
    for (int64_t i = 0; options->bf16_rows && i < n; i++)
        rows[i] = oracle_round_bf16((double)(float)rows[i]);
}

/* ---------------------------------------------------------------- indexer */

static void layernorm(double *x, const float *weight, const float *bias, int32_t n)
{
    double mean = 0, variance = 0;
    for (int32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (int32_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int32_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) / sqrt(variance + 1e-6) * (double)weight[i] + (double)bias[i];
}

static void make_index_keys(oracle_sfa *a, const tamis_sfa_layer *layer, const double *x,
                            const oracle_sfa_options *options)
{
    const tamis_sfa_config *c = &layer->config;
    const int32_t d = c->index_head_dim;
    a->ikeys = oracle_project(&layer->weights.index_wk, x, a->n, NULL);
    for (int32_t t = 0; t < a->n; t++) {
        double *key = a->ikeys + (int64_t)t * d;
        layernorm(key, layer->weights.index_k_norm, layer->weights.index_k_norm_bias, d);
        rotate(key, t, c->index_rope_interleave, c);
    }
    round_rows(a->ikeys, (int64_t)a->n * d, options);
}

/* Scores of one query; q [heads][d] before its rotation. */
static void score_row(oracle_sfa *a, const tamis_sfa_config *c, double *q, const double *weight,
                      int32_t t)
{
    const int32_t heads = c->index_n_heads, d = c->index_head_dim;
    double *score = a->scores + (int64_t)t * a->n;
    for (int32_t h = 0; h < heads; h++)
        rotate(q + (int64_t)h * d, t, c->index_rope_interleave, c);
    for (int32_t s = 0; s < a->n; s++) {
        double sum = 0;
        for (int32_t h = 0; s <= t && h < heads; h++)
            sum +=
                weight[h] * fmax(oracle_dot(q + (int64_t)h * d, a->ikeys + (int64_t)s * d, d), 0);
        score[s] = s <= t ? sum / sqrt((double)d) / sqrt((double)heads) : -INFINITY;
    }
}

static void select_positions(oracle_sfa *a, const tamis_sfa_layer *layer, const double *x,
                             const double *qr, const uint8_t *want)
{
    const tamis_sfa_config *c = &layer->config;
    const int64_t q_width = (int64_t)c->index_n_heads * c->index_head_dim;
    double *q = oracle_project(&layer->weights.index_wq_b, qr, a->n, want);
    double *weight = oracle_project(&layer->weights.index_weights_proj, x, a->n, want);
    a->scores = oracle_take((int64_t)a->n * a->n, sizeof *a->scores);
    a->topk = oracle_take((int64_t)a->n * c->index_topk, sizeof *a->topk);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        score_row(a, c, q + t * q_width, weight + (int64_t)t * c->index_n_heads, t);
        a->margins[t] = oracle_choose(a->topk + (int64_t)t * c->index_topk, c->index_topk,
                                      a->scores + (int64_t)t * a->n, a->n);
    }
    free(q);
    free(weight);
}

/* ---------------------------------------------------------------- attention */

/* K and V of every token and head out of the latents: [n][heads][nope + v]. */
static double *expand_keys_values(const oracle_sfa *a, const tamis_sfa_layer *layer)
{
    const int64_t rank = layer->config.kv_lora_rank;
    const int64_t width = rank + layer->config.qk_rope_head_dim;
    double *latents = oracle_take(a->n * rank, sizeof *latents);
    for (int64_t t = 0; t < a->n; t++)
        memcpy(latents + t * rank, a->latent + t * width, (size_t)rank * sizeof *latents);
    double *kv = oracle_project(&layer->weights.kv_b_proj, latents, a->n, NULL);
    free(latents);
    return kv;
}

/* Positions that query t attends to. */
static int32_t list_positions(int32_t *list, const tamis_sfa_config *c, const int32_t *topk,
                              int32_t t)
{
    int32_t n = 0;
    for (int32_t s = 0; topk == NULL && s <= t; s++)
        list[n++] = s;
    for (int32_t i = 0; topk != NULL && i < c->index_topk; i++)
        if (topk[(int64_t)t * c->index_topk + i] >= 0)
            list[n++] = topk[(int64_t)t * c->index_topk + i];
    return n;
}

/* One head of one query q [nope + rope]: out [v]; returns the LSE. */
static double attend(double *out, const oracle_sfa *a, const tamis_sfa_config *c, const double *q,
                     const double *kv, int32_t head, const int32_t *list, int32_t n)
{
    const int32_t nope = c->qk_nope_head_dim, v = c->v_head_dim, rope = c->qk_rope_head_dim;
    double max = -INFINITY, sum = 0, *weight = oracle_take(n, sizeof *weight);
    for (int32_t i = 0; i < n; i++) {
        const double *key = kv + ((int64_t)list[i] * c->num_heads + head) * (nope + v);
        const double *key_rope = a->latent + (int64_t)list[i] * (c->kv_lora_rank + rope);
        weight[i] =
            (oracle_dot(q, key, nope) + oracle_dot(q + nope, key_rope + c->kv_lora_rank, rope)) *
            (double)c->softmax_scale;
        max = fmax(max, weight[i]);
    }
    for (int32_t i = 0; i < n; i++)
        sum += weight[i] = exp(weight[i] - max);
    memset(out, 0, (size_t)v * sizeof *out);
    for (int32_t i = 0; i < n; i++) {
        const double *value = kv + ((int64_t)list[i] * c->num_heads + head) * (nope + v) + nope;
        for (int32_t d = 0; d < v; d++)
            out[d] += weight[i] / sum * value[d];
    }
    free(weight);
    return max + log(sum);
}

static void attend_all(oracle_sfa *a, const tamis_sfa_layer *layer, double *q, const int32_t *topk,
                       const uint8_t *want)
{
    const tamis_sfa_config *c = &layer->config;
    const int64_t qk = c->qk_nope_head_dim + c->qk_rope_head_dim, v = c->v_head_dim;
    double *kv = expand_keys_values(a, layer), *o_proj = oracle_matrix(&layer->weights.o_proj);
    double *o = oracle_take(c->num_heads * v, sizeof *o);
    int32_t *list = oracle_take(a->n + c->index_topk, sizeof *list);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        const int32_t n = list_positions(list, c, topk, t);
        for (int32_t h = 0; h < c->num_heads; h++) {
            double *head = q + ((int64_t)t * c->num_heads + h) * qk;
            rotate(head + c->qk_nope_head_dim, t, true, c);
            a->lse[(int64_t)t * c->num_heads + h] = attend(o + h * v, a, c, head, kv, h, list, n);
        }
        oracle_multiply(a->out + (int64_t)t * c->hidden_size, o_proj, c->hidden_size,
                        c->num_heads * v, o);
    }
    free(kv);
    free(o_proj);
    free(o);
    free(list);
}

static void make_latents(oracle_sfa *a, const tamis_sfa_layer *layer, const double *x,
                         const oracle_sfa_options *options)
{
    const tamis_sfa_config *c = &layer->config;
    const int32_t width = c->kv_lora_rank + c->qk_rope_head_dim;
    a->latent = oracle_project(&layer->weights.kv_a_proj, x, a->n, NULL);
    for (int32_t t = 0; t < a->n; t++) {
        double *row = a->latent + (int64_t)t * width;
        oracle_rmsnorm(row, row, layer->weights.kv_a_norm, c->kv_lora_rank,
                       (double)c->rms_norm_eps);
        rotate(row + c->kv_lora_rank, t, true, c);
    }
    round_rows(a->latent, (int64_t)a->n * width, options);
}

oracle_sfa oracle_sfa_run(const tamis_sfa_layer *layer, const double *x, int32_t n,
                          const oracle_sfa_options *options)
{
    const oracle_sfa_options none = {0};
    const tamis_sfa_config *c = &layer->config;
    options = options == NULL ? &none : options;
    oracle_sfa a = {.n = n};
    a.out = oracle_take((int64_t)n * c->hidden_size, sizeof *a.out);
    a.lse = oracle_take((int64_t)n * c->num_heads, sizeof *a.lse);
    a.margins = oracle_take(n, sizeof *a.margins);
    for (int32_t t = 0; t < n; t++)
        a.margins[t] = 1;
    double *qr = oracle_project(&layer->weights.q_a_proj, x, n, options->want);
    for (int32_t t = 0; t < n; t++) {
        double *row = qr + (int64_t)t * c->q_lora_rank;
        oracle_rmsnorm(row, row, layer->weights.q_a_norm, c->q_lora_rank, (double)c->rms_norm_eps);
    }
    make_latents(&a, layer, x, options);
    if (c->index_topk > 0 && !c->reuse_topk) {
        make_index_keys(&a, layer, x, options);
        select_positions(&a, layer, x, qr, options->want);
    }
    double *q = oracle_project(&layer->weights.q_b_proj, qr, n, options->want);
    attend_all(&a, layer, q, options->given_topk != NULL ? options->given_topk : a.topk,
               options->want);
    free(q);
    free(qr);
    return a;
}

void oracle_sfa_free(oracle_sfa *attention)
{
    free(attention->out);
    free(attention->lse);
    free(attention->latent);
    free(attention->ikeys);
    free(attention->scores);
    free(attention->topk);
    free(attention->margins);
    *attention = (oracle_sfa){0};
}

double oracle_sfa_softmax_scale(int32_t qk_head_dim, double yarn_factor, double mscale_all_dim)
{
    const double m = yarn_factor > 1 ? 0.1 * mscale_all_dim * log(yarn_factor) + 1 : 1;
    return m * m / sqrt((double)qk_head_dim);
}
