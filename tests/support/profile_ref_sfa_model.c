/* The model with errors as large as a quantised twin's scales: see profile_ref_sfa_model.h. */
#include "support/profile_ref_sfa_model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_math.h"

/* One run. Rows of all buffers are tokens. */
typedef struct run {
    const profile_noise_model *m;
    const tamis_model_config *config;
    test_rng *rng; /* NULL: no errors */
    int32_t n;
} run;

/* ---------------------------------------------------------------- errors */

static double spread(const run *r, double step)
{
    return (double)test_rng_float(r->rng, -0.5f, 0.5f) * step;
}

/* Distance of two BF16 numbers of that size. */
static double bf16_step(double x)
{
    int exponent;
    frexp(x, &exponent);
    return x == 0 ? 0 : ldexp(1, exponent - 8);
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
static void take_input(const run *r, double *out, const double *x, const tamis_matrix *twin)
{
    double scale = 0, low = -INFINITY, high = INFINITY;
    memcpy(out, x, (size_t)twin->cols * sizeof *out);
    if (r->rng == NULL || !is_integer(twin))
        return;
    for (int64_t i = 0; i < twin->cols; i++)
        scale = fmax(scale, fabs(x[i]) / 127);
    if (twin->input != NULL) {
        scale = (double)twin->input->input_scale;
        low = (-128 - (double)twin->input->input_offset) * scale;
        high = (127 - (double)twin->input->input_offset) * scale;
    }
    for (int64_t i = 0; i < twin->cols; i++)
        out[i] = fmin(fmax(x[i] + spread(r, scale), low), high);
}

/* y [n][rows] = W x, rounded. */
static double *project(const run *r, const tamis_matrix *source, const tamis_matrix *twin,
                       const double *x, int32_t n)
{
    double *w = take_matrix(r, source, twin), *y = oracle_take(n * source->rows, sizeof *y);
    double *input = oracle_take(source->cols, sizeof *input);
    for (int64_t t = 0; t < n; t++) {
        take_input(r, input, x + t * source->cols, twin);
        oracle_multiply(y + t * source->rows, w, source->rows, source->cols, input);
    }
    round_all(r, y, n * source->rows);
    free(w);
    free(input);
    return y;
}

static void norm(const run *r, double *y, const double *x, const float *weight, int32_t n,
                 int64_t width, int64_t stride)
{
    for (int64_t t = 0; t < n; t++) {
        oracle_rmsnorm(y + t * stride, x + t * stride, weight, width,
                       (double)r->config->rms_norm_eps);
        round_all(r, y + t * stride, width);
    }
}

/* ---------------------------------------------------------------- attention */

typedef struct attention {
    const run *r;
    const tamis_sfa_config *c;
    double *kv_b; /* [heads * (nope + v)][rank] */
    double *rows; /* [n][rank + rope] */
    double *q;    /* [n][heads * (nope + rope)] */
    double *out;  /* [n][heads * v] */
} attention;

static void rotate(const attention *a, double *x, int32_t pos)
{
    double freq[512];
    oracle_rope_frequencies(freq, a->c->qk_rope_head_dim, &a->c->rope);
    for (int32_t j = 0; j < a->c->qk_rope_head_dim / 2; j++) {
        const double angle = (double)((float)pos * (float)freq[j]);
        const double first = x[2 * j], second = x[2 * j + 1];
        x[2 * j] = first * cos(angle) - second * sin(angle);
        x[2 * j + 1] = first * sin(angle) + second * cos(angle);
    }
    round_all(a->r, x, a->c->qk_rope_head_dim);
}

/* Absorbed and rotated query of a head: [rank + rope]. */
static void make_query(const attention *a, double *out, int32_t t, int32_t h)
{
    const int32_t nope = a->c->qk_nope_head_dim, rope = a->c->qk_rope_head_dim;
    const int32_t rank = a->c->kv_lora_rank;
    const double *q = a->q + ((int64_t)t * a->c->num_heads + h) * (nope + rope);
    const double *k_up = a->kv_b + (int64_t)h * (nope + a->c->v_head_dim) * rank;
    memset(out, 0, (size_t)rank * sizeof *out);
    for (int32_t i = 0; i < nope; i++)
        for (int32_t j = 0; j < rank; j++)
            out[j] += q[i] * k_up[(int64_t)i * rank + j];
    round_all(a->r, out, rank);
    memcpy(out + rank, q + nope, (size_t)rope * sizeof *out);
    rotate(a, out + rank, t);
}

/* One head of token t over tokens 0 .. t; P is rounded for the values. */
static void attend(const attention *a, int32_t t, int32_t h)
{
    const tamis_sfa_config *c = a->c;
    const int32_t rank = c->kv_lora_rank, width = rank + c->qk_rope_head_dim;
    double *q = oracle_take(width, sizeof *q), *p = oracle_take(t + 1, sizeof *p);
    double *o = oracle_take(rank, sizeof *o), max = -INFINITY, sum = 0;
    make_query(a, q, t, h);
    for (int32_t s = 0; s <= t; s++) {
        p[s] = oracle_dot(q, a->rows + (int64_t)s * width, width) * (double)c->softmax_scale;
        max = fmax(max, p[s]);
    }
    for (int32_t s = 0; s <= t; s++)
        sum += p[s] = exp(p[s] - max);
    round_all(a->r, p, t + 1);
    for (int32_t s = 0; s <= t; s++)
        for (int32_t j = 0; j < rank; j++)
            o[j] += p[s] / sum * a->rows[(int64_t)s * width + j];
    round_all(a->r, o, rank);
    const int64_t first = (int64_t)h * (c->qk_nope_head_dim + c->v_head_dim) + c->qk_nope_head_dim;
    double *out = a->out + ((int64_t)t * c->num_heads + h) * c->v_head_dim;
    oracle_multiply(out, a->kv_b + first * rank, c->v_head_dim, rank, o);
    round_all(a->r, out, c->v_head_dim);
    free(q);
    free(p);
    free(o);
}

/* Output [n][H] of a layer's attention. */
static double *run_attention(const run *r, int32_t layer, const double *x)
{
    const tamis_sfa_layer *source = &r->m->source->weights->layers[layer].sfa;
    const tamis_sfa_weights *w = &source->weights;
    const tamis_sfa_weights *twin = &r->m->twin->weights->layers[layer].sfa.weights;
    attention a = {.r = r, .c = &source->config};
    const int32_t rank = a.c->kv_lora_rank, width = rank + a.c->qk_rope_head_dim;
    double *qa = project(r, &w->q_a_proj, &twin->q_a_proj, x, r->n);
    norm(r, qa, qa, w->q_a_norm, r->n, a.c->q_lora_rank, a.c->q_lora_rank);
    a.q = project(r, &w->q_b_proj, &twin->q_b_proj, qa, r->n);
    a.rows = project(r, &w->kv_a_proj, &twin->kv_a_proj, x, r->n);
    norm(r, a.rows, a.rows, w->kv_a_norm, r->n, rank, width);
    for (int32_t t = 0; t < r->n; t++)
        rotate(&a, a.rows + (int64_t)t * width + rank, t);
    a.kv_b = take_matrix(r, &w->kv_b_proj, &twin->kv_b_proj);
    a.out = oracle_take((int64_t)r->n * a.c->num_heads * a.c->v_head_dim, sizeof *a.out);
    for (int32_t t = 0; t < r->n; t++)
        for (int32_t h = 0; h < a.c->num_heads; h++)
            attend(&a, t, h);
    double *out = project(r, &w->o_proj, &twin->o_proj, a.out, r->n);
    free(qa);
    free(a.q);
    free(a.rows);
    free(a.kv_b);
    free(a.out);
    return out;
}

/* ---------------------------------------------------------------- experts */

/* out [n][H] of one expert. */
static double *run_expert(const run *r, const tamis_expert_weights *source,
                          const tamis_expert_weights *twin, const double *x, int32_t n)
{
    double *gate = project(r, &source->w1, &twin->w1, x, n);
    double *up = project(r, &source->w3, &twin->w3, x, n);
    for (int64_t i = 0; i < n * source->w1.rows; i++)
        up[i] *= gate[i] * oracle_sigmoid(gate[i]);
    round_all(r, up, n * source->w1.rows);
    double *out = project(r, &source->w2, &twin->w2, up, n);
    free(gate);
    free(up);
    return out;
}

static void add_scaled(double *y, const double *x, double factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

/* The given experts of every token, each weighed by its own score. */
static void add_routed(const run *r, int32_t layer, const double *x, double *out)
{
    const tamis_model_config *config = r->config;
    const tamis_moe_weights *w = &r->m->source->weights->layers[layer].moe;
    const tamis_moe_weights *twin = &r->m->twin->weights->layers[layer].moe;
    const int64_t hidden = config->hidden_size, k = config->num_experts_per_tok;
    double *gate = oracle_matrix(&w->gate), *score = oracle_take(w->gate.rows, sizeof *score);
    double *weights = oracle_take(k, sizeof *weights);
    double **outputs = oracle_take(w->gate.rows, sizeof *outputs);
    for (int64_t e = 0; e < w->gate.rows; e++) /* one draw of its weights for all tokens */
        outputs[e] = run_expert(r, &w->experts[e], &twin->experts[e], x, r->n);
    for (int32_t t = 0; t < r->n; t++) {
        const int32_t *ids = r->m->experts(r->m->user, layer, t);
        oracle_multiply(score, gate, w->gate.rows, hidden, x + t * hidden);
        for (int64_t e = 0; e < w->gate.rows; e++)
            score[e] = oracle_sigmoid(score[e]);
        oracle_weigh_experts(weights, ids, score, config);
        for (int64_t i = 0; i < k; i++)
            add_scaled(out + t * hidden, outputs[ids[i]] + t * hidden, weights[i], hidden);
    }
    for (int64_t e = 0; e < w->gate.rows; e++)
        free(outputs[e]);
    free(outputs);
    free(gate);
    free(score);
    free(weights);
}

/* Output [n][H] of a layer's experts. */
static double *run_feed_forward(const run *r, int32_t layer, const double *x)
{
    const tamis_moe_weights *w = &r->m->source->weights->layers[layer].moe;
    const tamis_moe_weights *twin = &r->m->twin->weights->layers[layer].moe;
    double *out = run_expert(r, &w->shared, &twin->shared, x, r->n);
    if (w->gate.rows == 0)
        return out;
    add_routed(r, layer, x, out);
    round_all(r, out, r->n * (int64_t)r->config->hidden_size);
    return out;
}

/* ---------------------------------------------------------------- model */

static void run_layer(const run *r, int32_t layer, double *h)
{
    const tamis_layer_weights *w = &r->m->source->weights->layers[layer];
    const int64_t hidden = r->config->hidden_size, size = r->n * hidden;
    double *x = oracle_take(size, sizeof *x);
    norm(r, x, h, w->attn_norm, r->n, hidden, hidden);
    round_all(r, h, size); /* after the norm has read it */
    double *out = run_attention(r, layer, x);
    add_scaled(h, out, 1, size);
    free(out);
    norm(r, x, h, w->ffn_norm, r->n, hidden, hidden);
    round_all(r, h, size);
    out = run_feed_forward(r, layer, x);
    add_scaled(h, out, 1, size);
    free(out);
    free(x);
}

double *profile_noise_run(const profile_noise_model *m, const int32_t *ids, int32_t n,
                          test_rng *rng)
{
    const tamis_model_config *config = &m->source->config;
    const tamis_model_weights *w = m->source->weights;
    const run r = {.m = m, .config = config, .rng = rng, .n = n};
    const int64_t hidden = config->hidden_size, vocab = config->vocab_size;
    double *logits = oracle_take(n * vocab, sizeof *logits);
    double *embed = oracle_matrix(&w->embed), *head = oracle_matrix(&w->head);
    double *h = oracle_take(n * hidden, sizeof *h);
    assert(config->index_topk == 0 || n <= config->index_topk);
    for (int64_t t = 0; t < n; t++)
        memcpy(h + t * hidden, embed + ids[t] * hidden, (size_t)hidden * sizeof *h);
    for (int32_t layer = 0; layer < config->num_hidden_layers; layer++)
        run_layer(&r, layer, h);
    norm(&r, h, h, w->norm, n, hidden, hidden);
    for (int64_t t = 0; t < n; t++)
        oracle_multiply(logits + t * vocab, head, vocab, hidden, h + t * hidden);
    free(embed);
    free(head);
    free(h);
    return logits;
}
