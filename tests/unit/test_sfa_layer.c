/*
 * One V3.2 or GLM layer behind tamis/sfa.h against the double-precision oracle
 * (support/oracle_v32.h: K and V expanded, no caches), with random weights of dimensions that no
 * vector width divides; and what its operators promise: given lists, LSE, the absorbed query.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/oracle_v32.h"
#include "support/sanitized.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* float32 against double: outputs and rows of size 1, LSE of size 3, scores relative */
#define BOUND       5e-6
#define SCORE_BOUND 1e-5

/* ---------------------------------------------------------------- against the oracle */

static void check_rows(const test_sfa_rig *rig, const test_sfa_seq *seq, const oracle_sfa *oracle)
{
    const tamis_sfa_config *c = &rig->layers[0].config;
    const int32_t width = c->kv_lora_rank + c->qk_rope_head_dim;
    for (int32_t t = 0; t < oracle->n; t++) {
        float *latent = test_sfa_row(rig, seq, 0, TAMIS_SFA_LATENT, t);
        float *key = test_sfa_row(rig, seq, 0, TAMIS_SFA_INDEX_KEY, t);
        test_assert_near(latent, oracle->latent + (int64_t)t * width, width, BOUND, "latent");
        test_assert_near(key, oracle->ikeys + (int64_t)t * c->index_head_dim, c->index_head_dim,
                         BOUND, "index key");
        free(latent);
        free(key);
    }
}

/* n tokens in one step: rows, selection, LSE and output. */
static void check_length(const tamis_sfa_layer *layer, const float *x, int32_t n)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_cache_params params = test_sfa_params(n);
    test_sfa_rig rig = test_sfa_rig_open(layer, 1, &params, n, 2);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    float *out = test_take(n * c->hidden_size, sizeof *out);
    float *lse = test_take(n * c->num_heads, sizeof *lse);
    test_sfa_plan(&rig, seqs, &n, 1);
    test_sfa_run_given(&rig, 0, x, NULL, 0, lse, out);
    const int32_t *topk = tamis_sfa_plan_topk(rig.plan);
    double *wide = test_widened(x, (int64_t)n * c->hidden_size);
    const oracle_sfa_options options = {.given_topk = topk};
    oracle_sfa oracle = oracle_sfa_run(layer, wide, n, &options);
    for (int32_t t = 0; t < n; t++)
        test_assert_topk(topk + (int64_t)t * c->index_topk, c->index_topk,
                         oracle.scores + (int64_t)t * n, t + 1, SCORE_BOUND, "selection");
    check_rows(&rig, &seq, &oracle);
    test_assert_near(lse, oracle.lse, n * c->num_heads, BOUND, "lse");
    test_assert_near(out, oracle.out, n * c->hidden_size, BOUND, "output");
    oracle_sfa_free(&oracle);
    free(wide);
    free(lse);
    free(out);
    test_sfa_rig_close(&rig);
}

static void layer_equals_oracle(void **state)
{
    (void)state;
    const tamis_dtype dtypes[] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F8_E4M3};
    const int32_t lengths[] = {1,  2,  3,  4,  5,  7,  8,   9,   10,  15,  16,
                               17, 31, 33, 63, 64, 65, 127, 128, 129, 130, 200};
    test_rng rng = test_rng_start("layer against oracle", 1);
    for (int family = 0; family < 2; family++)
        for (int d = 0; d < 3; d++) {
            const tamis_sfa_config c = test_sfa_odd_config((test_sfa_family)family);
            test_sfa_layer layer = test_sfa_layer_random(&c, dtypes[d], &rng);
            float *x = test_inputs(200, c.hidden_size, &rng);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i += TEST_IS_SANITIZED ? 4 : 1)
                check_length(&layer.layer, x, lengths[i]);
            free(x);
            test_sfa_layer_free(&layer);
        }
}

/* The oracle tells the two pairings apart, so the test above tells them apart. */
static void pairings_differ(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("pairings", 2);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(40, c.hidden_size, &rng);
    double *wide = test_widened(x, 40 * c.hidden_size);
    oracle_sfa halves = oracle_sfa_run(&layer.layer, wide, 40, NULL);
    layer.layer.config.index_rope_interleave = true;
    oracle_sfa neighbours = oracle_sfa_run(&layer.layer, wide, 40, NULL);
    double largest = 0;
    for (int64_t i = 0; i < 40 * c.hidden_size; i++)
        largest = fmax(largest, fabs(halves.out[i] - neighbours.out[i]));
    assert_true(largest > 1000 * BOUND);
    oracle_sfa_free(&halves);
    oracle_sfa_free(&neighbours);
    free(wide);
    free(x);
    test_sfa_layer_free(&layer);
}

/* Rows are rounded before anything reads them: the oracle that rounds so agrees, others do not. */
static void rows_are_rounded_before_use(void **state)
{
    (void)state;
    enum { N = 100 };
    test_rng rng = test_rng_start("bf16 rows", 3);
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    c.index_topk = N; /* a selection must not hang on rounding here */
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(N, c.hidden_size, &rng);
    double *wide = test_widened(x, N * c.hidden_size), near = 0, far = 0;
    test_sfa_result seen = test_sfa_straight(&layer.layer, TAMIS_DTYPE_BF16, x, N);
    const oracle_sfa_options options = {.bf16_rows = true};
    oracle_sfa rounded = oracle_sfa_run(&layer.layer, wide, N, &options);
    oracle_sfa plain = oracle_sfa_run(&layer.layer, wide, N, NULL);
    for (int64_t i = 0; i < N * c.hidden_size; i++) {
        near += fabs((double)seen.out[i] - rounded.out[i]) / (N * c.hidden_size);
        far += fabs((double)seen.out[i] - plain.out[i]) / (N * c.hidden_size);
    }
    printf("bf16 rows are %.1e (mean) from the rounding oracle, %.1e from the other\n", near, far);
    assert_true(near * 20 < far);
    oracle_sfa_free(&rounded);
    oracle_sfa_free(&plain);
    test_sfa_result_free(&seen);
    free(wide);
    free(x);
    test_sfa_layer_free(&layer);
}

/* ---------------------------------------------------------------- operators */

static void forward_is_its_operators(void **state)
{
    (void)state;
    enum { N = 90 };
    test_rng rng = test_rng_start("operators", 4);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    float *x = test_inputs(N, c.hidden_size, &rng);
    float *out = test_take(N * c.hidden_size, sizeof *out);
    test_sfa_result parts = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x, N);
    const tamis_cache_params params = test_sfa_params(N);
    test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, N, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    test_sfa_feed(&rig, &seq, x, N, 0, out);
    assert_int_equal(tamis_sfa_plan_num_tokens(rig.plan), N);
    test_assert_same_bits(out, parts.out, N, c.hidden_size, "forward");
    assert_memory_equal(tamis_sfa_plan_topk(rig.plan), parts.topk,
                        (size_t)(N * c.index_topk) * sizeof(int32_t));
    test_sfa_rig_close(&rig);
    test_sfa_result_free(&parts);
    free(out);
    free(x);
    test_sfa_layer_free(&layer);
}

/* As long as everything is selected, the indexer changes no bit. */
static void full_selection_is_dense(void **state)
{
    (void)state;
    enum { N = 150 };
    test_rng rng = test_rng_start("full selection", 5);
    for (int family = 0; family < 2; family++) {
        tamis_sfa_config c = test_sfa_odd_config((test_sfa_family)family);
        c.index_topk = N;
        test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
        float *x = test_inputs(N, c.hidden_size, &rng);
        for (int d = 0; d < 2; d++) {
            const tamis_dtype dtype = d == 0 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_BF16;
            layer.layer.config.index_topk = N;
            test_sfa_result selected = test_sfa_straight(&layer.layer, dtype, x, N);
            layer.layer.config.index_topk = 0;
            test_sfa_result dense = test_sfa_straight(&layer.layer, dtype, x, N);
            test_assert_same_bits(selected.out, dense.out, N, c.hidden_size, "full selection");
            test_assert_same_bits(selected.lse, dense.lse, N, c.num_heads, "its lse");
            assert_null(dense.topk);
            for (int32_t t = 0; t < N; t++)
                for (int32_t i = 0; i < N; i++)
                    assert_int_equal(selected.topk[t * N + i], i <= t ? i : -1);
            test_sfa_result_free(&selected);
            test_sfa_result_free(&dense);
        }
        free(x);
        test_sfa_layer_free(&layer);
    }
}

/* A query of zeros weighs its list evenly: LSE log n, output the mean of the latents. */
static void query_may_be_changed(void **state)
{
    (void)state;
    enum { N = 70 };
    test_rng rng = test_rng_start("changed query", 6);
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    c.index_topk = 0;
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_sfa_params(N);
    test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, N, 2);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    float *x = test_inputs(N, c.hidden_size, &rng), lse[N * 3];
    const int32_t width = c.kv_lora_rank + c.qk_rope_head_dim, n = N;
    tamis_error err;
    test_sfa_plan(&rig, seqs, &n, 1);
    test_must(tamis_sfa_preprocess(&layer.layer, 0, rig.plan, rig.caches, x, rig.team, &err), &err,
              "preprocess");
    memset(tamis_sfa_plan_query(rig.plan), 0, (size_t)(N * c.num_heads * width) * sizeof *x);
    test_must(tamis_sfa_select(&layer.layer, 0, rig.plan, rig.caches, rig.team, &err), &err,
              "select");
    test_must(tamis_sfa_attend(&layer.layer, 0, rig.plan, rig.caches, NULL, 0, lse, rig.team, &err),
              &err, "attend");
    double *sum = test_take(c.kv_lora_rank, sizeof *sum);
    double *mean = test_take(c.kv_lora_rank, sizeof *mean);
    for (int32_t t = 0; t < N; t++) {
        float *row = test_sfa_row(&rig, &seq, 0, TAMIS_SFA_LATENT, t);
        for (int32_t d = 0; d < c.kv_lora_rank; d++)
            mean[d] = (sum[d] += (double)row[d]) / (t + 1);
        free(row);
        for (int32_t h = 0; h < c.num_heads; h++) {
            test_assert_near(tamis_sfa_plan_latent_out(rig.plan, t) + h * c.kv_lora_rank, mean,
                             c.kv_lora_rank, BOUND, "mean");
            assert_true(fabs((double)lse[t * c.num_heads + h] - log(t + 1)) < BOUND);
        }
    }
    free(sum);
    free(mean);
    free(x);
    test_sfa_rig_close(&rig);
    test_sfa_layer_free(&layer);
}

/* ---------------------------------------------------------------- given lists */

/* A layer, its first N_FED tokens fed, and a step of N_GIVEN more planned but not run. */
enum { N_FED = 50, N_GIVEN = 40, N_ALL = N_FED + N_GIVEN };
typedef struct given_rig {
    test_sfa_layer layer;
    test_sfa_rig rig;
    test_sfa_seq seq;
    float *x;
} given_rig;

static void given_open(given_rig *g, int32_t topk, test_rng *rng)
{
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    c.index_topk = topk;
    g->layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, rng);
    const tamis_cache_params params = test_sfa_params(N_ALL);
    g->rig = test_sfa_rig_open(&g->layer.layer, 1, &params, N_ALL, 3);
    g->seq = test_sfa_seq_open(&g->rig);
    g->x = test_inputs(N_ALL, c.hidden_size, rng);
    float *out = test_take(N_FED * c.hidden_size, sizeof *out);
    test_sfa_feed(&g->rig, &g->seq, g->x, N_FED, 0, out);
    free(out);
    test_sfa_plan(&g->rig, (test_sfa_seq *[]){&g->seq}, (int32_t[]){N_GIVEN}, 1);
}

static void given_close(given_rig *g)
{
    test_sfa_rig_close(&g->rig);
    test_sfa_layer_free(&g->layer);
    free(g->x);
}

static void given_run(given_rig *g, const int32_t *indices, int32_t n, float *lse, float *out)
{
    test_sfa_run_given(&g->rig, 0, g->x + N_FED * g->layer.layer.config.hidden_size, indices, n,
                       lse, out);
}

/* Output and LSE of the planned step against the oracle that is given the same lists. */
static void check_given(given_rig *g, const int32_t *indices, int32_t n_indices)
{
    const tamis_sfa_config *c = &g->layer.layer.config;
    float *out = test_take(N_GIVEN * c->hidden_size, sizeof *out);
    float *lse = test_take(N_GIVEN * c->num_heads, sizeof *lse);
    given_run(g, indices, n_indices, lse, out);
    int32_t *all = test_take(N_ALL * n_indices, sizeof *all);
    memset(all, 0xff, (size_t)(N_FED * n_indices) * sizeof *all);
    memcpy(all + N_FED * n_indices, indices, (size_t)(N_GIVEN * n_indices) * sizeof *all);
    tamis_sfa_layer reusing = g->layer.layer;
    reusing.config.reuse_topk = true;
    reusing.config.index_topk = n_indices;
    double *wide = test_widened(g->x, N_ALL * c->hidden_size);
    const oracle_sfa_options options = {.given_topk = all};
    oracle_sfa oracle = oracle_sfa_run(&reusing, wide, N_ALL, &options);
    test_assert_near(out, oracle.out + N_FED * c->hidden_size, N_GIVEN * c->hidden_size, BOUND,
                     "given lists");
    for (int32_t i = 0; i < N_GIVEN * c->num_heads; i++) {
        const double expected = oracle.lse[N_FED * c->num_heads + i];
        assert_true(isinf(expected) ? (double)lse[i] == expected
                                    : fabs((double)lse[i] - expected) < BOUND);
    }
    oracle_sfa_free(&oracle);
    free(wide);
    free(all);
    free(lse);
    free(out);
}

/* Any order, -1 anywhere, positions twice: random lists of one to three chunks. */
static void given_lists_equal_oracle(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("given lists", 7);
    const int32_t sizes[] = {1, 2, 8, 17, 64, 65, 150};
    given_rig g;
    given_open(&g, 150, &rng);
    int32_t *lists = test_take(N_GIVEN * 150, sizeof *lists);
    for (int i = 0; i < 7; i++) {
        for (int32_t j = 0; j < N_GIVEN * sizes[i]; j++) {
            const int32_t pos = N_FED + j / sizes[i];
            lists[j] = test_rng_int(&rng, 0, 3) == 0 ? -1 : (int32_t)test_rng_int(&rng, 0, pos);
        }
        for (int32_t j = 0; j < sizes[i]; j++)
            lists[j] = -1; /* the first token's list is empty */
        check_given(&g, lists, sizes[i]);
    }
    free(lists);
    given_close(&g);
}

/* The same entries in the same order, with and without -1 between them: one chunk, same bits. */
static void missing_entries_are_skipped(void **state)
{
    (void)state;
    enum { K = 20, PADDED = 60 };
    test_rng rng = test_rng_start("missing entries", 8);
    given_rig g;
    given_open(&g, PADDED, &rng);
    const tamis_sfa_config *c = &g.layer.layer.config;
    int32_t plain[N_GIVEN * K], padded[N_GIVEN * PADDED];
    for (int32_t t = 0; t < N_GIVEN; t++) {
        int32_t places[PADDED], n = 0;
        test_rng_permutation(&rng, places, PADDED);
        for (int32_t i = 0; i < PADDED; i++) {
            const bool is_there = places[i] < K;
            padded[t * PADDED + i] = is_there ? (int32_t)test_rng_int(&rng, 0, N_FED + t) : -1;
            if (is_there)
                plain[t * K + n++] = padded[t * PADDED + i];
        }
    }
    float *out[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        out[i] = test_take(N_GIVEN * c->hidden_size, sizeof(float));
        lse[i] = test_take(N_GIVEN * c->num_heads, sizeof(float));
        given_run(&g, i == 0 ? plain : padded, i == 0 ? K : PADDED, lse[i], out[i]);
    }
    test_assert_same_bits(out[1], out[0], N_GIVEN, c->hidden_size, "skipped entries");
    test_assert_same_bits(lse[1], lse[0], N_GIVEN, c->num_heads, "their lse");
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(lse[i]);
    }
    given_close(&g);
}

static void empty_lists_give_zero(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("empty lists", 9);
    given_rig g;
    given_open(&g, 100, &rng);
    const tamis_sfa_config *c = &g.layer.layer.config;
    int32_t nothing[N_GIVEN * 100];
    memset(nothing, 0xff, sizeof nothing);
    float *out = test_take(N_GIVEN * c->hidden_size, sizeof *out);
    float *lse = test_take(N_GIVEN * c->num_heads, sizeof *lse);
    for (int32_t n = 0; n <= 100; n += 50) {
        memset(out, 0x55, (size_t)(N_GIVEN * c->hidden_size) * sizeof *out);
        given_run(&g, nothing, n, lse, out);
        for (int32_t i = 0; i < N_GIVEN * c->hidden_size; i++)
            assert_true(out[i] == 0);
        for (int32_t i = 0; i < N_GIVEN * c->num_heads; i++)
            assert_true(lse[i] == -INFINITY);
    }
    free(out);
    free(lse);
    given_close(&g);
}

/* A list that stands twice weighs everything twice: same output, LSE up by log 2. */
static void duplicates_count_twice(void **state)
{
    (void)state;
    enum { K = 6 };
    test_rng rng = test_rng_start("duplicates", 10);
    given_rig g;
    given_open(&g, 2 * K, &rng);
    const tamis_sfa_config *c = &g.layer.layer.config;
    int32_t once[N_GIVEN * K], twice[N_GIVEN * 2 * K], uneven[N_GIVEN * 2];
    for (int32_t i = 0; i < N_GIVEN * K; i++) {
        once[i] = (int32_t)test_rng_int(&rng, 0, N_FED);
        twice[i / K * 2 * K + i % K] = twice[i / K * 2 * K + K + i % K] = once[i];
    }
    float *out[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        out[i] = test_take(N_GIVEN * c->hidden_size, sizeof(float));
        lse[i] = test_take(N_GIVEN * c->num_heads, sizeof(float));
        given_run(&g, i == 0 ? once : twice, i == 0 ? K : 2 * K, lse[i], out[i]);
    }
    for (int32_t i = 0; i < N_GIVEN * c->hidden_size; i++)
        assert_true(fabs((double)(out[1][i] - out[0][i])) < BOUND);
    for (int32_t i = 0; i < N_GIVEN * c->num_heads; i++)
        assert_true(fabs((double)(lse[1][i] - lse[0][i]) - log(2)) < BOUND);
    for (int32_t i = 0; i < N_GIVEN * 2; i++)
        uneven[i] = 7;
    given_run(&g, uneven, 2, lse[0], out[0]); /* a single value, however often */
    given_run(&g, uneven, 1, lse[1], out[1]);
    test_assert_same_bits(out[0], out[1], N_GIVEN, c->hidden_size, "one position twice");
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(lse[i]);
    }
    given_close(&g);
}

/* The own selection, handed in from outside, is the own selection. */
static void given_own_selection(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("own selection given", 11);
    given_rig g;
    given_open(&g, 8, &rng);
    const tamis_sfa_config *c = &g.layer.layer.config;
    float *own = test_take(N_GIVEN * c->hidden_size, sizeof *own);
    float *given = test_take(N_GIVEN * c->hidden_size, sizeof *given);
    given_run(&g, NULL, 0, NULL, own);
    int32_t topk[N_GIVEN * 8];
    memcpy(topk, tamis_sfa_plan_topk(g.rig.plan), sizeof topk);
    given_run(&g, topk, 8, NULL, given);
    test_assert_same_bits(given, own, N_GIVEN, c->hidden_size, "own selection");
    free(own);
    free(given);
    given_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_equals_oracle),
        cmocka_unit_test(pairings_differ),
        cmocka_unit_test(rows_are_rounded_before_use),
        cmocka_unit_test(forward_is_its_operators),
        cmocka_unit_test(full_selection_is_dense),
        cmocka_unit_test(query_may_be_changed),
        cmocka_unit_test(given_lists_equal_oracle),
        cmocka_unit_test(missing_entries_are_skipped),
        cmocka_unit_test(empty_lists_give_zero),
        cmocka_unit_test(duplicates_count_twice),
        cmocka_unit_test(given_own_selection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
