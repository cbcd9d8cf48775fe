/* One V4 attention layer in double precision: see oracle_v4.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_v4.h"

static void round_row(double *row, int32_t n, const oracle_attention_options *options)
{
    for (int32_t i = 0; options->bf16_rows && i < n; i++)
        row[i] = oracle_round_bf16((double)(float)row[i]);
}

/* ---------------------------------------------------------------- rotation */

/* The last rope_head_dim of `width` channels, pairs (2i, 2i + 1); direction -1 undoes it. */
static void rotate(double *x, int32_t width, int32_t pos, double direction,
                   const tamis_dsa_config *config)
{
    double freq[512];
    double *part = x + width - config->rope_head_dim;
    oracle_rope_frequencies(freq, config->rope_head_dim, &config->rope);
    for (int32_t i = 0; i < config->rope_head_dim / 2; i++) {
        const double angle = (double)((float)pos * (float)freq[i]);
        const double a = part[2 * i], b = part[2 * i + 1];
        part[2 * i] = a * cos(angle) - direction * b * sin(angle);
        part[2 * i + 1] = direction * a * sin(angle) + b * cos(angle);
    }
}

/* ---------------------------------------------------------------- compressor */

/* Value u and score z of token `token`, channel `channel` of the projections. */
typedef struct slots {
    double value[256], score[256];
    int n;
} slots;

static void add_slot(slots *s, double value, double score)
{
    s->value[s->n] = value;
    s->score[s->n++] = score;
}

static double pooled(const slots *s)
{
    double max = s->score[0], sum = 0, total = 0;
    for (int i = 1; i < s->n; i++)
        max = fmax(max, s->score[i]);
    for (int i = 0; i < s->n; i++) {
        const double weight = exp(s->score[i] - max);
        sum += weight;
        total += weight * s->value[i];
    }
    return total / sum;
}

/* Rows [n / ratio][d] after pooling, norm and rotation at the first token of each window. */
static double *compress(const tamis_compressor_weights *w, const tamis_dsa_config *config,
                        int32_t d, const double *x, int32_t n)
{
    const int32_t r = config->compress_ratio, width = r == 4 ? 2 * d : d, n_rows = n / r;
    double *u = oracle_project(&w->wkv, x, n, NULL), *z = oracle_project(&w->wgate, x, n, NULL);
    double *rows = oracle_take((int64_t)n_rows * d, sizeof *rows);
    for (int32_t t = 0; t < n; t++)
        for (int32_t c = 0; c < width; c++)
            z[(int64_t)t * width + c] += (double)w->ape[t % r * width + c];
    for (int32_t j = 0; j < n_rows; j++) {
        double *row = rows + (int64_t)j * d;
        for (int32_t c = 0; c < d; c++) {
            slots s = {.n = 0};
            for (int32_t t = (j - 1) * r; r == 4 && j > 0 && t < j * r; t++)
                add_slot(&s, u[(int64_t)t * width + c], z[(int64_t)t * width + c]);
            for (int32_t t = j * r; t < (j + 1) * r; t++)
                add_slot(&s, u[(int64_t)t * width + width - d + c],
                         z[(int64_t)t * width + width - d + c]);
            row[c] = pooled(&s);
        }
        oracle_rmsnorm(row, row, w->norm, d, (double)config->rms_norm_eps);
        rotate(row, d, j * r, 1, config);
    }
    free(u);
    free(z);
    return rows;
}

/* ---------------------------------------------------------------- indexer */

static void score_rows(oracle_attention *a, const tamis_dsa_layer *layer, const double *x,
                       const double *qr, const uint8_t *want)
{
    const tamis_dsa_config *c = &layer->config;
    const int32_t heads = c->index_n_heads, d = c->index_head_dim;
    double *q = oracle_project(&layer->weights.index_wq_b, qr, a->n, want);
    double *weight = oracle_project(&layer->weights.index_weights_proj, x, a->n, want);
    a->scores = oracle_take((int64_t)a->n * a->n_rows, sizeof *a->scores);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        for (int32_t h = 0; h < heads; h++)
            rotate(q + ((int64_t)t * heads + h) * d, d, t, 1, c);
        for (int32_t j = 0; j < (t + 1) / 4; j++) {
            double sum = 0;
            for (int32_t h = 0; h < heads; h++)
                sum +=
                    weight[(int64_t)t * heads + h] *
                    fmax(oracle_dot(q + ((int64_t)t * heads + h) * d, a->ikeys + (int64_t)j * d, d),
                         0);
            a->scores[(int64_t)t * a->n_rows + j] = sum / sqrt((double)d) / sqrt((double)heads);
        }
    }
    free(q);
    free(weight);
}

/* Row j is chosen if fewer than k visible rows are better: larger score, or equal and lower. */
static void choose_rows(oracle_attention *a, int32_t k, const uint8_t *want)
{
    a->topk = oracle_take((int64_t)a->n * k, sizeof *a->topk);
    for (int32_t t = 0; t < a->n; t++) {
        const double *score = a->scores + (int64_t)t * a->n_rows;
        const int32_t visible = (t + 1) / 4;
        double worst_in = INFINITY, best_out = -INFINITY, largest = 0;
        int32_t n = 0;
        for (int32_t j = 0; (want == NULL || want[t]) && j < visible; j++) {
            int32_t n_better = 0;
            for (int32_t i = 0; i < visible; i++)
                n_better += score[i] > score[j] || (score[i] == score[j] && i < j);
            if (n_better < k)
                a->topk[(int64_t)t * k + n++] = j;
            worst_in = n_better < k ? fmin(worst_in, score[j]) : worst_in;
            best_out = n_better < k ? best_out : fmax(best_out, score[j]);
            largest = fmax(largest, fabs(score[j]));
        }
        while (n < k)
            a->topk[(int64_t)t * k + n++] = -1;
        if (visible > k && (want == NULL || want[t]))
            a->index_margin = fmin(a->index_margin, (worst_in - best_out) / largest);
    }
}

/* ---------------------------------------------------------------- attention */

/* Softmax over `n` rows with the head's sink in the denominator. */
static void attend(double *out, const double *q, const double *const *rows, int32_t n, double sink,
                   int32_t d)
{
    double max = sink, *weight = oracle_take(n, sizeof *weight), sum;
    for (int32_t i = 0; i < n; i++) {
        weight[i] = oracle_dot(q, rows[i], d) / sqrt((double)d);
        max = fmax(max, weight[i]);
    }
    sum = exp(sink - max);
    for (int32_t i = 0; i < n; i++)
        sum += weight[i] = exp(weight[i] - max);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < d; c++)
            out[c] += weight[i] / sum * rows[i][c];
    free(weight);
}

/* Everything the query at position t attends to: its window, then compressed or selected rows. */
static int32_t list_rows(const double **rows, const oracle_attention *a, const tamis_dsa_config *c,
                         const double *kv, const int32_t *topk, int32_t t)
{
    int32_t n = 0;
    for (int32_t s = 0; s <= t; s++)
        if (t - s < c->sliding_window)
            rows[n++] = kv + (int64_t)s * c->head_dim;
    const int32_t visible = c->compress_ratio == 0 ? 0 : (t + 1) / c->compress_ratio;
    for (int32_t j = 0; j < visible; j++) {
        bool is_chosen = c->compress_ratio == 128;
        for (int32_t i = 0; !is_chosen && topk != NULL && i < c->index_topk; i++)
            is_chosen = topk[(int64_t)t * c->index_topk + i] == j;
        if (is_chosen)
            rows[n++] = a->ckv + (int64_t)j * c->head_dim;
    }
    return n;
}

/* Group g of the low-rank projection sees the heads of group g only. */
static void project_output(double *out, const double *o, const tamis_dsa_config *c,
                           const double *wo_a, const double *wo_b)
{
    const int64_t rank = c->o_lora_rank, width = (int64_t)c->num_heads * c->head_dim / c->o_groups;
    double *low = oracle_take(c->o_groups * rank, sizeof *low);
    for (int32_t g = 0; g < c->o_groups; g++)
        oracle_multiply(low + g * rank, wo_a + g * rank * width, rank, width, o + g * width);
    oracle_multiply(out, wo_b, c->hidden_size, c->o_groups * rank, low);
    free(low);
}

static void attend_all(oracle_attention *a, const tamis_dsa_layer *layer, double *q,
                       const double *kv, const int32_t *topk, const uint8_t *want)
{
    const tamis_dsa_config *c = &layer->config;
    const int32_t d = c->head_dim;
    double *wo_a = oracle_matrix(&layer->weights.wo_a), *wo_b = oracle_matrix(&layer->weights.wo_b);
    double *o = oracle_take((int64_t)c->num_heads * d, sizeof *o);
    const double **rows = oracle_take(a->n + a->n_rows, sizeof *rows);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        const int32_t n_rows = list_rows(rows, a, c, kv, topk, t);
        for (int32_t h = 0; h < c->num_heads; h++) {
            double *head = q + ((int64_t)t * c->num_heads + h) * d;
            oracle_rmsnorm(head, head, NULL, d, (double)c->rms_norm_eps);
            rotate(head, d, t, 1, c);
            attend(o + (int64_t)h * d, head, rows, n_rows, (double)layer->weights.attn_sink[h], d);
            rotate(o + (int64_t)h * d, d, t, -1, c);
        }
        project_output(a->out + (int64_t)t * c->hidden_size, o, c, wo_a, wo_b);
    }
    free(rows);
    free(o);
    free(wo_a);
    free(wo_b);
}

static void compress_all(oracle_attention *a, const tamis_dsa_layer *layer, const double *x,
                         const oracle_attention_options *options)
{
    const tamis_dsa_config *c = &layer->config;
    a->n_rows = a->n / c->compress_ratio;
    a->ckv = compress(&layer->weights.compressor, c, c->head_dim, x, a->n);
    round_row(a->ckv, a->n_rows * c->head_dim, options);
    if (c->compress_ratio == 4 && !c->reuse_topk) {
        a->ikeys = compress(&layer->weights.index_compressor, c, c->index_head_dim, x, a->n);
        round_row(a->ikeys, a->n_rows * c->index_head_dim, options);
    }
}

oracle_attention oracle_attention_run(const tamis_dsa_layer *layer, const double *x, int32_t n,
                                      const oracle_attention_options *options)
{
    const oracle_attention_options none = {0};
    const tamis_dsa_config *c = &layer->config;
    const double eps = (double)c->rms_norm_eps;
    options = options == NULL ? &none : options;
    oracle_attention a = {.n = n, .index_margin = 1};
    a.out = oracle_take((int64_t)n * c->hidden_size, sizeof *a.out);
    double *qr = oracle_project(&layer->weights.wq_a, x, n, options->want);
    double *kv = oracle_project(&layer->weights.wkv, x, n, NULL);
    for (int32_t t = 0; t < n; t++) {
        double *row = kv + (int64_t)t * c->head_dim, *rank = qr + (int64_t)t * c->q_lora_rank;
        oracle_rmsnorm(row, row, layer->weights.kv_norm, c->head_dim, eps);
        rotate(row, c->head_dim, t, 1, c);
        oracle_rmsnorm(rank, rank, layer->weights.q_norm, c->q_lora_rank, eps);
    }
    round_row(kv, n * c->head_dim, options);
    if (c->compress_ratio != 0)
        compress_all(&a, layer, x, options);
    if (a.ikeys != NULL) {
        score_rows(&a, layer, x, qr, options->want);
        choose_rows(&a, c->index_topk, options->want);
    }
    double *q = oracle_project(&layer->weights.wq_b, qr, n, options->want);
    attend_all(&a, layer, q, kv, options->given_topk != NULL ? options->given_topk : a.topk,
               options->want);
    free(q);
    free(kv);
    free(qr);
    return a;
}

void oracle_attention_free(oracle_attention *attention)
{
    free(attention->out);
    free(attention->ckv);
    free(attention->ikeys);
    free(attention->scores);
    free(attention->topk);
    *attention = (oracle_attention){0};
}
