/*
 * One layer with the attention dimensions of DeepSeek-V3.2 and of GLM-5.2 (only hidden_size is
 * smaller), 3,000 cached tokens, top 2,048 of them, against double precision with expanded keys at
 * a few queries and heads. Here every tile of every kernel is full, which small layers never reach.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/engine_run.h"
#include "support/oracle_math.h"
#include "support/sanitized.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers get a shorter list and a narrower query rank. */
enum {
    N_CACHED = TEST_IS_SANITIZED ? 400 : 3000,
    N_NEW = 3,
    N_ALL = N_CACHED + N_NEW,
    TOPK = TEST_IS_SANITIZED ? 200 : 2048,
    BLOCK = 256,
    N_HEADS = 2 /* whose attention is checked */
};
#define SCORE_BOUND 3e-6 /* of an index score, relative to the largest of its query */
#define BOUND       1e-5 /* of rows, latents and outputs, which are of size 1, and of the LSE */

static tamis_sfa_config real_config(test_sfa_family family)
{
    const bool is_glm = family == TEST_SFA_GLM;
    tamis_sfa_config c = test_sfa_odd_config(family);
    c.hidden_size = 256;
    c.num_heads = is_glm ? 64 : 128;
    c.q_lora_rank = TEST_IS_SANITIZED ? 256 : is_glm ? 2048 : 1536;
    c.kv_lora_rank = 512;
    c.qk_nope_head_dim = is_glm ? 192 : 128;
    c.qk_rope_head_dim = 64;
    c.v_head_dim = is_glm ? 256 : 128;
    c.index_n_heads = is_glm ? 32 : 64;
    c.index_head_dim = 128;
    c.index_topk = TOPK;
    c.softmax_scale =
        is_glm ? tamis_sfa_softmax_scale(256, 1, 0) : tamis_sfa_softmax_scale(192, 40, 1);
    return c;
}

/* A step of N_NEW tokens over cached rows that are random, run up to the attention. */
typedef struct scene {
    tamis_sfa_config c;
    test_sfa_layer layer;
    test_sfa_rig rig;
    test_sfa_seq seq;
    double *x;            /* [N_NEW][hidden_size] */
    double *qr;           /* [N_NEW][q_lora_rank] normed */
    float *latent, *keys; /* [N_ALL] rows as cached */
    float *lse, *latent_out, *out;
    int32_t *topk;
} scene;

static void fill_cache(scene *s, test_rng *rng)
{
    const tamis_dtype dtype = s->rig.params.kv_cache_dtype;
    const int32_t widths[] = {s->c.kv_lora_rank + s->c.qk_rope_head_dim, s->c.index_head_dim};
    float row[1024];
    for (int role = 0; role < 2; role++)
        for (int32_t pos = 0; pos < N_CACHED; pos++) {
            test_rng_fill_normal(rng, row, (size_t)widths[role]);
            void *at = (void *)(uintptr_t)tamis_sfa_caches_row(
                s->rig.caches, 0, (tamis_sfa_role)role, s->seq.table[pos / BLOCK], pos % BLOCK);
            tamis_kernels_current()->narrow(at, row, dtype, widths[role]);
        }
}

static float *read_cache(const scene *s, tamis_sfa_role role, int32_t width)
{
    float *rows = test_take((int64_t)N_ALL * width, sizeof *rows);
    for (int32_t pos = 0; pos < N_ALL; pos++) {
        float *row = test_sfa_row(&s->rig, &s->seq, 0, role, pos);
        memcpy(rows + (int64_t)pos * width, row, (size_t)width * sizeof *row);
        free(row);
    }
    return rows;
}

static void scene_open(scene *s, test_sfa_family family, tamis_dtype kv_cache_dtype, test_rng *rng)
{
    s->c = real_config(family);
    s->layer = test_sfa_layer_random(&s->c, TAMIS_DTYPE_F8_E4M3, rng);
    tamis_cache_params params = test_sfa_params(N_ALL);
    params.kv_cache_dtype = kv_cache_dtype;
    params.block_tokens = BLOCK;
    params.num_blocks = 2 + N_ALL / BLOCK;
    s->rig = test_sfa_rig_open_sized(&s->layer.layer, 1, &params, N_ALL, N_NEW, 2);
    s->seq = test_sfa_seq_open(&s->rig);
    fill_cache(s, rng);
    s->seq.len = N_CACHED;
    float *x = test_inputs(N_NEW, s->c.hidden_size, rng);
    s->lse = test_take(N_NEW * s->c.num_heads, sizeof *s->lse);
    s->out = test_take(N_NEW * s->c.hidden_size, sizeof *s->out);
    s->topk = test_take(N_NEW * TOPK, sizeof *s->topk);
    const int64_t width = (int64_t)s->c.num_heads * s->c.kv_lora_rank;
    s->latent_out = test_take(N_NEW * width, sizeof(float));
    test_sfa_plan(&s->rig, (test_sfa_seq *[]){&s->seq}, (int32_t[]){N_NEW}, 1);
    test_sfa_run_given(&s->rig, 0, x, NULL, 0, s->lse, s->out);
    memcpy(s->topk, tamis_sfa_plan_topk(s->rig.plan), N_NEW * TOPK * sizeof *s->topk);
    for (int32_t t = 0; t < N_NEW; t++)
        memcpy(s->latent_out + t * width, tamis_sfa_plan_latent_out(s->rig.plan, t),
               (size_t)width * sizeof(float));
    s->latent = read_cache(s, TAMIS_SFA_LATENT, s->c.kv_lora_rank + s->c.qk_rope_head_dim);
    s->keys = read_cache(s, TAMIS_SFA_INDEX_KEY, s->c.index_head_dim);
    s->x = test_widened(x, N_NEW * s->c.hidden_size);
    s->qr = oracle_project(&s->layer.layer.weights.q_a_proj, s->x, N_NEW, NULL);
    for (int32_t t = 0; t < N_NEW; t++)
        oracle_rmsnorm(s->qr + t * s->c.q_lora_rank, s->qr + t * s->c.q_lora_rank,
                       s->layer.layer.weights.q_a_norm, s->c.q_lora_rank,
                       (double)s->c.rms_norm_eps);
    free(x);
}

static void scene_close(scene *s)
{
    test_sfa_rig_close(&s->rig);
    test_sfa_layer_free(&s->layer);
    free(s->x);
    free(s->qr);
    free(s->latent);
    free(s->keys);
    free(s->lse);
    free(s->latent_out);
    free(s->out);
    free(s->topk);
}

/* ---------------------------------------------------------------- double precision */

static void rotate(const scene *s, double *x, int32_t pos, bool is_interleaved)
{
    const int32_t half = s->c.qk_rope_head_dim / 2;
    double freq[32];
    oracle_rope_frequencies(freq, s->c.qk_rope_head_dim, &s->c.rope);
    for (int32_t j = 0; j < half; j++) {
        const double angle = (double)((float)pos * (float)freq[j]);
        double *a = is_interleaved ? x + 2 * j : x + j;
        double *b = is_interleaved ? x + 2 * j + 1 : x + half + j;
        const double first = *a, second = *b;
        *a = first * cos(angle) - second * sin(angle);
        *b = first * sin(angle) + second * cos(angle);
    }
}

static double dot_f(const double *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += a[i] * (double)b[i];
    return sum;
}

/* Rows [first, first + n) of a matrix, which start a block of scales. */
static tamis_matrix rows_of(const tamis_matrix *w, int64_t first, int64_t n)
{
    tamis_matrix part = *w;
    assert_int_equal(first % w->block_rows, 0);
    part.rows = n;
    part.data = (const uint8_t *)w->data + first * w->row_bytes;
    part.scale = (const uint8_t *)w->scale + first / w->block_rows * w->scale_row_bytes;
    return part;
}

/* ---------------------------------------------------------------- rows */

/* The latent rows of the new tokens; f32 caches only, others are rounded. */
static void check_new_rows(const scene *s)
{
    const int32_t rank = s->c.kv_lora_rank, width = rank + s->c.qk_rope_head_dim;
    double *rows = oracle_project(&s->layer.layer.weights.kv_a_proj, s->x, N_NEW, NULL);
    for (int32_t t = 0; t < N_NEW; t++) {
        double *row = rows + t * width;
        oracle_rmsnorm(row, row, s->layer.layer.weights.kv_a_norm, rank, (double)s->c.rms_norm_eps);
        rotate(s, row + rank, N_CACHED + t, true);
        test_assert_near(s->latent + (int64_t)(N_CACHED + t) * width, row, width, BOUND,
                         "latent row");
    }
    free(rows);
}

/* ---------------------------------------------------------------- index scores */

/* The engine's own scores of a query: its kernel over its query, weights and cached keys. */
static void engine_scores(const scene *s, int32_t t, float *scores)
{
    const int32_t heads = s->c.index_n_heads, d = s->c.index_head_dim;
    const tamis_kernels *k = tamis_kernels_current();
    float *panels = aligned_alloc(64, (size_t)heads * (size_t)d * sizeof *panels);
    float *scratch = aligned_alloc(64, TAMIS_INDEX_SCRATCH(d, heads) * sizeof *scratch);
    assert_true(panels != NULL && scratch != NULL);
    k->pack_heads(panels, tamis_sfa_plan_index_query(s->rig.plan) + t * heads * d, heads, d);
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, d);
    for (int32_t j = 0; j < N_ALL; j += 64)
        k->index_score(scores + j, panels, tamis_sfa_plan_index_weights(s->rig.plan) + t * heads,
                       heads, d, s->keys + (int64_t)j * d, &format, d * (int64_t)sizeof(float),
                       N_ALL - j < 64 ? N_ALL - j : 64, NULL, scratch);
    free(panels);
    free(scratch);
}

static void check_selection(const scene *s)
{
    const int32_t heads = s->c.index_n_heads, d = s->c.index_head_dim;
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    double *q = oracle_project(&w->index_wq_b, s->qr, N_NEW, NULL), worst = 0;
    double *weights = oracle_project(&w->index_weights_proj, s->x, N_NEW, NULL);
    double *scores = test_take(N_ALL, sizeof *scores);
    float *seen = test_take(N_ALL, sizeof *seen);
    for (int32_t t = 0; t < N_NEW; t++) {
        double largest = 0, diff = 0;
        for (int32_t h = 0; h < heads; h++)
            rotate(s, q + (t * heads + h) * d, N_CACHED + t, s->c.index_rope_interleave);
        engine_scores(s, t, seen);
        for (int32_t j = 0; j < N_ALL; j++) {
            scores[j] = 0;
            for (int32_t h = 0; h < heads; h++)
                scores[j] += weights[t * heads + h] *
                             fmax(dot_f(q + (t * heads + h) * d, s->keys + (int64_t)j * d, d), 0);
            scores[j] /= sqrt((double)d) * sqrt((double)heads);
            largest = fmax(largest, fabs(scores[j]));
            diff = fmax(diff, fabs(scores[j] - (double)seen[j]));
        }
        worst = fmax(worst, diff / largest);
        test_assert_topk(s->topk + t * TOPK, TOPK, scores, N_CACHED + t + 1, SCORE_BOUND,
                         "selection");
    }
    printf("%d index heads, %d keys: scores within %.1e of double precision (bound %.0e)\n", heads,
           N_ALL, worst, SCORE_BOUND);
    assert_true(worst < SCORE_BOUND);
    free(q);
    free(weights);
    free(scores);
    free(seen);
}

/* ---------------------------------------------------------------- attention */

/*
 * One head of one query over the engine's own selection, keys expanded: LSE and weighted latents.
 * up [nope][kv_lora_rank] are the head's key rows of kv_b_proj.
 */
static double attend(const scene *s, const double *q, const double *up, const int32_t *list,
                     double *latent_out)
{
    const int32_t rank = s->c.kv_lora_rank, nope = s->c.qk_nope_head_dim;
    const int32_t rope = s->c.qk_rope_head_dim;
    double max = -INFINITY, sum = 0, *weight = test_take(TOPK, sizeof *weight);
    for (int32_t i = 0; i < TOPK; i++) {
        const float *row = s->latent + (int64_t)list[i] * (rank + rope);
        double score = dot_f(q + nope, row + rank, rope);
        for (int32_t p = 0; p < nope; p++)
            score += q[p] * dot_f(up + (int64_t)p * rank, row, rank);
        weight[i] = score * (double)s->c.softmax_scale;
        max = fmax(max, weight[i]);
    }
    for (int32_t i = 0; i < TOPK; i++)
        sum += weight[i] = exp(weight[i] - max);
    memset(latent_out, 0, (size_t)rank * sizeof *latent_out);
    for (int32_t i = 0; i < TOPK; i++)
        for (int32_t d = 0; d < rank; d++)
            latent_out[d] +=
                weight[i] / sum * (double)s->latent[(int64_t)list[i] * (rank + rope) + d];
    free(weight);
    return max + log(sum);
}

static void check_attention(const scene *s)
{
    const int32_t rank = s->c.kv_lora_rank, nope = s->c.qk_nope_head_dim;
    const int32_t qk = nope + s->c.qk_rope_head_dim, queries[] = {0, N_NEW - 1};
    const int32_t heads[N_HEADS] = {4, s->c.num_heads - 2}; /* even: see rows_of */
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    double *expected = test_take(rank, sizeof *expected), worst = 0, worst_lse = 0;
    for (int i = 0; i < N_HEADS; i++) {
        const tamis_matrix q_rows = rows_of(&w->q_b_proj, (int64_t)heads[i] * qk, qk);
        const tamis_matrix k_rows =
            rows_of(&w->kv_b_proj, (int64_t)heads[i] * (nope + s->c.v_head_dim), nope);
        double *q = oracle_project(&q_rows, s->qr, N_NEW, NULL), *up = oracle_matrix(&k_rows);
        for (int j = 0; j < 2; j++) {
            const int32_t t = queries[j];
            rotate(s, q + t * qk + nope, N_CACHED + t, true);
            const double lse = attend(s, q + t * qk, up, s->topk + t * TOPK, expected);
            const float *seen = s->latent_out + ((int64_t)t * s->c.num_heads + heads[i]) * rank;
            worst = fmax(worst, test_max_diff_f64(seen, expected, rank, NULL));
            worst_lse = fmax(worst_lse, fabs(lse - (double)s->lse[t * s->c.num_heads + heads[i]]));
        }
        free(q);
        free(up);
    }
    printf("top %d: latents within %.1e, LSE within %.1e of double precision (bound %.0e)\n", TOPK,
           worst, worst_lse, BOUND);
    assert_true(worst < BOUND && worst_lse < BOUND);
    free(expected);
}

/* Values and o_proj over the engine's own latents of all heads. */
static void check_output(const scene *s)
{
    const int32_t rank = s->c.kv_lora_rank, nope = s->c.qk_nope_head_dim, v = s->c.v_head_dim;
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    double *up = oracle_matrix(&w->kv_b_proj), worst = 0;
    double *values = test_take(N_NEW * s->c.num_heads * v, sizeof *values);
    for (int32_t t = 0; t < N_NEW; t++)
        for (int32_t h = 0; h < s->c.num_heads; h++)
            for (int32_t d = 0; d < v; d++)
                values[(t * s->c.num_heads + h) * v + d] =
                    dot_f(up + ((int64_t)h * (nope + v) + nope + d) * rank,
                          s->latent_out + ((int64_t)t * s->c.num_heads + h) * rank, rank);
    double *out = oracle_project(&w->o_proj, values, N_NEW, NULL);
    worst = test_max_diff_f64(s->out, out, N_NEW * s->c.hidden_size, NULL);
    printf("outputs within %.1e of double precision (bound %.0e)\n", worst, BOUND);
    assert_true(worst < BOUND);
    free(up);
    free(values);
    free(out);
}

static void deepseek_v32_dimensions(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("dimensions of V3.2", 1);
    scene s;
    scene_open(&s, TEST_SFA_V32, TAMIS_DTYPE_BF16, &rng);
    check_selection(&s);
    check_attention(&s);
    check_output(&s);
    scene_close(&s);
}

static void glm_52_dimensions(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("dimensions of GLM-5.2", 2);
    scene s;
    scene_open(&s, TEST_SFA_GLM, TAMIS_DTYPE_F32, &rng);
    check_new_rows(&s);
    check_selection(&s);
    check_attention(&s);
    check_output(&s);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_v32_dimensions),
        cmocka_unit_test(glm_52_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
