/* V4 with errors as large as a quantised twin's scales: see profile_ref_v4_noise.h. */
#include "support/profile_ref_v4_noise.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One run. Rows of all buffers are tokens. */
typedef struct run {
    const pv4_noise *m;
    const tamis_model_config *c;
    test_rng *rng; /* NULL: no errors */
    int32_t n;
} run;

/* ---------------------------------------------------------------- errors */

static double spread(const run *r, double step)
{
    return (double)test_rng_float(r->rng, -0.5f, 0.5f) * step;
}

/* Distance of two numbers of that size with `bits` bits behind the leading one, not below 2^low. */
static double step_of(double x, int bits, int low)
{
    int exponent;
    frexp(x, &exponent);
    exponent = exponent - 1 < low ? low : exponent - 1;
    return x == 0 ? 0 : ldexp(1, exponent - bits);
}

static double bf16_step(double x)
{
    return step_of(x, 7, -126);
}

static void round_all(const run *r, double *x, int64_t n)
{
    for (int64_t i = 0; r->rng != NULL && i < n; i++)
        x[i] += spread(r, bf16_step(x[i]));
}

static bool is_integer(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4;
}

static double row_scale(const tamis_matrix *w, int64_t row)
{
    float scale;
    memcpy(&scale, (const uint8_t *)w->scale + row / w->block_rows * w->scale_row_bytes,
           sizeof scale);
    return (double)scale;
}

/* Elements of the source with the errors that the twin's form makes. */
static double *take_matrix(const run *r, const tamis_matrix *source, const tamis_matrix *twin)
{
    double *w = oracle_matrix(source);
    if (r->rng == NULL || (!is_integer(twin) && twin->dtype == source->dtype))
        return w;
    for (int64_t i = 0; i < source->rows * source->cols; i++)
        w[i] += spread(r, is_integer(twin) ? row_scale(twin, i / source->cols) : bf16_step(w[i]));
    return w;
}

/* A token's input as an int8 layer reads it. */
static void take_int8(const run *r, double *out, int64_t n, const tamis_matrix *twin)
{
    double scale = 0, low = -INFINITY, high = INFINITY;
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(out[i]) / 127);
    if (twin->input != NULL) {
        scale = (double)twin->input->input_scale;
        low = (-128 - (double)twin->input->input_offset) * scale;
        high = (127 - (double)twin->input->input_offset) * scale;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = fmin(fmax(out[i] + spread(r, scale), low), high);
}

/* As a layer with FP8 or FP4 weights reads it; its small values are rare enough to ignore. */
static void take_fp8(const run *r, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += spread(r, step_of(out[i], 3, -126));
}

/* y [n][rows] = W x; w: of take_matrix; x [n][cols]. is_kept: x as it is, y f32. */
static double *multiply(const run *r, const double *w, const tamis_matrix *twin, const double *x,
                        int32_t n, bool is_kept)
{
    const int64_t cols = twin->cols, rows = twin->rows;
    double *y = oracle_take(n * rows, sizeof *y), *input = oracle_take(cols, sizeof *input);
    for (int64_t t = 0; t < n; t++) {
        memcpy(input, x + t * cols, (size_t)cols * sizeof *input);
        if (r->rng != NULL && !is_kept && is_integer(twin))
            take_int8(r, input, cols, twin);
        else if (r->rng != NULL && !is_kept &&
                 (twin->dtype == TAMIS_DTYPE_F8_E4M3 || twin->dtype == TAMIS_DTYPE_F4_E2M1))
            take_fp8(r, input, cols);
        oracle_multiply(y + t * rows, w, rows, cols, input);
    }
    if (!is_kept)
        round_all(r, y, n * rows);
    free(input);
    return y;
}

static double *project(const run *r, const tamis_matrix *source, const tamis_matrix *twin,
                       const double *x, int32_t n, bool is_kept)
{
    double *w = take_matrix(r, source, twin);
    double *y = multiply(r, w, twin, x, n, is_kept);
    free(w);
    return y;
}

static void norm(const run *r, double *x, const float *weight, int64_t n, int64_t width)
{
    for (int64_t t = 0; t < n; t++)
        oracle_rmsnorm(x + t * width, x + t * width, weight, width, (double)r->c->rms_norm_eps);
    round_all(r, x, n * width);
}

/* ---------------------------------------------------------------- attention */

typedef struct attention {
    const run *r;
    const tamis_dsa_config *c;
    const tamis_dsa_weights *source, *twin;
    double *kv, *ckv, *q; /* [n][head_dim], [n / 4][head_dim], [n][heads * head_dim], o in place */
} attention;

/* The last channels of a head or row; direction -1 undoes it. */
static void rotate(const attention *a, double *x, int32_t width, int32_t pos, double direction)
{
    double freq[512], *part = x + width - a->c->rope_head_dim;
    oracle_rope_frequencies(freq, a->c->rope_head_dim, &a->c->rope);
    for (int32_t i = 0; i < a->c->rope_head_dim / 2; i++) {
        const double angle = (double)((float)pos * (float)freq[i]);
        const double first = part[2 * i], second = part[2 * i + 1];
        part[2 * i] = first * cos(angle) - direction * second * sin(angle);
        part[2 * i + 1] = direction * first * sin(angle) + second * cos(angle);
    }
}

static void rotate_rounded(const attention *a, double *x, int32_t pos, double direction)
{
    rotate(a, x, a->c->head_dim, pos, direction);
    round_all(a->r, x + a->c->head_dim - a->c->rope_head_dim, a->c->rope_head_dim);
}

/* Ratio 4: softmax over the own window's second and the previous one's first halves. */
static void pool_row(double *row, const double *u, const double *z, const float *ape, int32_t j,
                     int32_t d)
{
    for (int32_t ch = 0; ch < d; ch++) {
        double sum = 0, total = 0;
        for (int32_t t = j == 0 ? 0 : 4 * (j - 1); t < 4 * (j + 1); t++) {
            const int64_t at = ch + (t < 4 * j ? 0 : d);
            const double score = z[t * 2 * d + at] + (double)ape[t % 4 * 2 * d + at];
            sum += exp(score);
            total += exp(score) * u[t * 2 * d + at];
        }
        row[ch] = total / sum;
    }
}

/* f32 up to the rotated row, which is rounded. */
static void compress(attention *a, const double *x)
{
    const tamis_compressor_weights *w = &a->source->compressor, *twin = &a->twin->compressor;
    const int32_t d = a->c->head_dim, n_rows = a->r->n / 4;
    double *u = project(a->r, &w->wkv, &twin->wkv, x, a->r->n, true);
    double *z = project(a->r, &w->wgate, &twin->wgate, x, a->r->n, true);
    a->ckv = oracle_take((int64_t)n_rows * d, sizeof *a->ckv);
    for (int32_t j = 0; j < n_rows; j++) {
        double *row = a->ckv + (int64_t)j * d;
        pool_row(row, u, z, w->ape, j, d);
        oracle_rmsnorm(row, row, w->norm, d, (double)a->c->rms_norm_eps);
        rotate(a, row, d, 4 * j, 1);
        round_all(a->r, row, d);
    }
    free(u);
    free(z);
}

/* Query and window rows. */
static void prepare(attention *a, const double *x)
{
    const int32_t n = a->r->n, d = a->c->head_dim, heads = a->c->num_heads;
    const bool is_f32 = is_integer(&a->twin->wq_b) && a->twin->wq_b.input == NULL;
    double *qr = project(a->r, &a->source->wq_a, &a->twin->wq_a, x, n, false);
    for (int64_t t = 0; t < n; t++)
        oracle_rmsnorm(qr + t * a->c->q_lora_rank, qr + t * a->c->q_lora_rank, a->source->q_norm,
                       a->c->q_lora_rank, (double)a->c->rms_norm_eps);
    if (!is_f32)
        round_all(a->r, qr, (int64_t)n * a->c->q_lora_rank);
    a->q = project(a->r, &a->source->wq_b, &a->twin->wq_b, qr, n, false);
    norm(a->r, a->q, NULL, (int64_t)n * heads, d);
    a->kv = project(a->r, &a->source->wkv, &a->twin->wkv, x, n, false);
    norm(a->r, a->kv, a->source->kv_norm, n, d);
    for (int32_t t = 0; t < n; t++) {
        rotate_rounded(a, a->kv + (int64_t)t * d, t, 1);
        for (int32_t h = 0; h < heads; h++)
            rotate_rounded(a, a->q + ((int64_t)t * heads + h) * d, t, 1);
    }
    free(qr);
}

/* A head over its rows; P is rounded for the values. */
static void attend_head(const attention *a, double *head, const double *const *rows, int32_t n,
                        double sink)
{
    const int32_t d = a->c->head_dim;
    double *o = oracle_take(d, sizeof *o), *p = oracle_take(n, sizeof *p), max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, p[i] = oracle_dot(head, rows[i], d) / sqrt((double)d));
    for (int32_t i = 0; i < n; i++)
        sum += p[i] = exp(p[i] - max);
    sum += exp(sink - max);
    round_all(a->r, p, n);
    for (int32_t i = 0; i < n; i++)
        for (int32_t ch = 0; ch < d; ch++)
            o[ch] += p[i] / sum * rows[i][ch];
    memcpy(head, o, (size_t)d * sizeof *o);
    free(o);
    free(p);
}

static void attend(const attention *a)
{
    const int32_t d = a->c->head_dim, heads = a->c->num_heads;
    const double **rows = oracle_take(2 * a->r->n, sizeof *rows);
    for (int32_t t = 0; t < a->r->n; t++) {
        int32_t n = 0;
        for (int32_t s = t - a->c->sliding_window + 1; s <= t; s++)
            if (s >= 0)
                rows[n++] = a->kv + (int64_t)s * d;
        for (int32_t j = 0; a->ckv != NULL && j < (t + 1) / 4; j++)
            rows[n++] = a->ckv + (int64_t)j * d;
        for (int32_t h = 0; h < heads; h++) {
            double *head = a->q + ((int64_t)t * heads + h) * d;
            attend_head(a, head, rows, n, (double)a->source->attn_sink[h]);
            round_all(a->r, head, d);
            rotate_rounded(a, head, t, -1);
        }
    }
    free(rows);
}

/* wo_a: group g of its rows sees the heads of group g. */
static double *project_groups(const attention *a)
{
    const int64_t n = a->r->n, groups = a->c->o_groups, rank = a->c->o_lora_rank;
    const tamis_matrix *source = &a->source->wo_a, *twin = &a->twin->wo_a;
    const int64_t width = source->cols;
    double *w = take_matrix(a->r, source, twin);
    double *low = oracle_take(n * groups * rank, sizeof *low);
    double *input = oracle_take(width, sizeof *input);
    for (int64_t t = 0; t < n; t++)
        for (int64_t g = 0; g < groups; g++) {
            memcpy(input, a->q + (t * groups + g) * width, (size_t)width * sizeof *input);
            if (a->r->rng != NULL && is_integer(twin))
                take_int8(a->r, input, width, twin);
            else if (a->r->rng != NULL && twin->dtype == TAMIS_DTYPE_F8_E4M3)
                take_fp8(a->r, input, width);
            oracle_multiply(low + (t * groups + g) * rank, w + g * rank * width, rank, width,
                            input);
        }
    round_all(a->r, low, n * groups * rank);
    free(w);
    free(input);
    return low;
}

static double *run_attention(const run *r, const tamis_dsa_layer *source,
                             const tamis_dsa_layer *twin, const double *x)
{
    attention a = {r, &source->config, &source->weights, &twin->weights, NULL, NULL, NULL};
    prepare(&a, x);
    if (a.c->compress_ratio == 4)
        compress(&a, x);
    attend(&a);
    double *low = project_groups(&a);
    double *out = project(r, &a.source->wo_b, &a.twin->wo_b, low, r->n, false);
    free(low);
    free(a.kv);
    free(a.ckv);
    free(a.q);
    return out;
}

/* ---------------------------------------------------------------- experts */

typedef struct expert {
    const tamis_expert_weights *source, *twin;
    double *w1, *w3, *w2; /* NULL: not met yet */
} expert;

static void open_expert(const run *r, expert *e)
{
    if (e->w1 != NULL)
        return;
    e->w1 = take_matrix(r, &e->source->w1, &e->twin->w1);
    e->w3 = take_matrix(r, &e->source->w3, &e->twin->w3);
    e->w2 = take_matrix(r, &e->source->w2, &e->twin->w2);
}

/* y += weight times the output of one expert for one token. */
static void add_expert(const run *r, double *y, expert *e, const double *x, double weight)
{
    const double limit = (double)r->c->swiglu_limit;
    open_expert(r, e);
    double *g = multiply(r, e->w1, &e->twin->w1, x, 1, false);
    double *u = multiply(r, e->w3, &e->twin->w3, x, 1, false);
    for (int64_t i = 0; i < e->source->w1.rows; i++) {
        const double gate = fmin(g[i], limit);
        g[i] = gate * oracle_sigmoid(gate) * fmax(fmin(u[i], limit), -limit);
    }
    round_all(r, g, e->source->w1.rows);
    double *out = multiply(r, e->w2, &e->twin->w2, g, 1, false);
    for (int64_t i = 0; i < r->c->hidden_size; i++)
        y[i] += weight * out[i];
    free(g);
    free(u);
    free(out);
}

/* Weights of the given experts; the router is f32. */
static void weigh(const run *r, double *weights, const int32_t *ids, const tamis_matrix *gate,
                  const double *x)
{
    double *score = oracle_project(gate, x, 1, NULL);
    for (int64_t e = 0; e < gate->rows; e++)
        score[e] = sqrt(score[e] > 30 ? score[e] : log1p(exp(score[e])));
    oracle_weigh_experts(weights, ids, score, r->c);
    free(score);
}

static double *run_experts(const run *r, int32_t layer, const double *x)
{
    const tamis_moe_weights *source = &r->m->source->weights->layers[layer].moe;
    const tamis_moe_weights *twin =
        r->rng == NULL ? source : &r->m->twin->weights->layers[layer].moe;
    const int64_t hidden = r->c->hidden_size, n_experts = r->c->n_routed_experts;
    double *y = oracle_take(r->n * hidden, sizeof *y), weights[64];
    expert *experts = oracle_take(n_experts + 1, sizeof *experts);
    assert(r->c->scoring_func == TAMIS_SCORING_SQRTSOFTPLUS);
    for (int64_t e = 0; e <= n_experts; e++)
        experts[e] = (expert){e == n_experts ? &source->shared : &source->experts[e],
                              e == n_experts ? &twin->shared : &twin->experts[e], NULL, NULL, NULL};
    for (int32_t t = 0; t < r->n; t++) {
        const int32_t *ids = r->m->experts(r->m->user, layer, t);
        weigh(r, weights, ids, &source->gate, x + t * hidden);
        for (int32_t i = 0; i < r->c->num_experts_per_tok; i++)
            add_expert(r, y + t * hidden, &experts[ids[i]], x + t * hidden, weights[i]);
        add_expert(r, y + t * hidden, &experts[n_experts], x + t * hidden, 1);
    }
    for (int64_t e = 0; e <= n_experts; e++) {
        free(experts[e].w1);
        free(experts[e].w3);
        free(experts[e].w2);
    }
    free(experts);
    round_all(r, y, r->n * hidden);
    return y;
}

/* ---------------------------------------------------------------- streams */

typedef struct site {
    double *pre, *post, *combine, *x; /* [n][m], [n][m], [n][m * m], [n][hidden] */
} site;

static void collapse(const run *r, double *x, const double *pre, const double *streams,
                     const float *weight)
{
    const int64_t hidden = r->c->hidden_size, m = r->c->hc_mult;
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < hidden; i++) {
            x[t * hidden + i] = 0;
            for (int64_t s = 0; s < m; s++)
                x[t * hidden + i] += pre[t * m + s] * streams[(t * m + s) * hidden + i];
        }
    round_all(r, x, r->n * hidden);
    norm(r, x, weight, r->n, hidden);
}

static site enter(const run *r, const double *streams, const tamis_hc_weights *hc,
                  const float *weight)
{
    const int64_t n = r->n, m = r->c->hc_mult, hidden = r->c->hidden_size;
    site s = {oracle_take(n * m, sizeof(double)), oracle_take(n * m, sizeof(double)),
              oracle_take(n * m * m, sizeof(double)), oracle_take(n * hidden, sizeof(double))};
    double *fn = oracle_matrix(&hc->fn);
    for (int64_t t = 0; t < n; t++)
        oracle_hyper_connection(s.pre + t * m, s.post + t * m, s.combine + t * m * m,
                                streams + t * m * hidden, fn, hc, r->c);
    collapse(r, s.x, s.pre, streams, weight);
    free(fn);
    return s;
}

/* Streams after the sublayer's output v, which is freed. */
static void leave(const run *r, site *s, double *streams, double *v)
{
    const int64_t m = r->c->hc_mult, hidden = r->c->hidden_size;
    double old[TAMIS_MAX_HC_MULT];
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < hidden; i++) {
            double *own = streams + t * m * hidden + i;
            for (int64_t a = 0; a < m; a++)
                old[a] = own[a * hidden];
            for (int64_t b = 0; b < m; b++) {
                own[b * hidden] = s->post[t * m + b] * v[t * hidden + i];
                for (int64_t a = 0; a < m; a++)
                    own[b * hidden] += s->combine[(t * m + a) * m + b] * old[a];
            }
        }
    round_all(r, streams, r->n * m * hidden);
    free(s->pre);
    free(s->post);
    free(s->combine);
    free(s->x);
    free(v);
}

static double *run_head(const run *r, const double *streams)
{
    const tamis_model_weights *w = r->m->source->weights;
    const int64_t n = r->n, m = r->c->hc_mult, hidden = r->c->hidden_size, width = m * hidden;
    double *fn = oracle_matrix(&w->hc_head.fn), *normed = oracle_take(width, sizeof *normed);
    double *pre = oracle_take(n * m, sizeof *pre), *x = oracle_take(n * hidden, sizeof *x);
    for (int64_t t = 0; t < n; t++) {
        oracle_rmsnorm(normed, streams + t * width, NULL, width, (double)r->c->rms_norm_eps);
        oracle_multiply(pre + t * m, fn, m, width, normed);
        for (int64_t s = 0; s < m; s++)
            pre[t * m + s] = oracle_sigmoid(pre[t * m + s] * (double)w->hc_head.scale[0] +
                                            (double)w->hc_head.base[s]) +
                             (double)r->c->hc_eps;
    }
    collapse(r, x, pre, streams, w->norm);
    double *logits = oracle_project(&w->head, x, r->n, NULL);
    free(fn);
    free(normed);
    free(pre);
    free(x);
    return logits;
}

double *pv4_noise_run(const pv4_noise *m, const int32_t *ids, int32_t n, test_rng *rng)
{
    const run r = {m, &m->source->config, rng, n};
    const tamis_layer_weights *source = m->source->weights->layers;
    const tamis_layer_weights *twin = rng == NULL ? source : m->twin->weights->layers;
    const int64_t hidden = r.c->hidden_size, width = r.c->hc_mult * hidden;
    assert(n <= 4 * r.c->index_topk && n < 128);
    double *embed = oracle_matrix(&m->source->weights->embed);
    double *streams = oracle_take(n * width, sizeof *streams);
    for (int64_t i = 0; i < n * width; i++)
        streams[i] = embed[ids[i / width] * hidden + i % hidden];
    for (int32_t i = 0; i < r.c->num_hidden_layers; i++) {
        site s = enter(&r, streams, &source[i].hc_attn, source[i].attn_norm);
        leave(&r, &s, streams, run_attention(&r, &source[i].dsa, &twin[i].dsa, s.x));
        s = enter(&r, streams, &source[i].hc_ffn, source[i].ffn_norm);
        leave(&r, &s, streams, run_experts(&r, i, s.x));
    }
    double *logits = run_head(&r, streams);
    free(embed);
    free(streams);
    return logits;
}
