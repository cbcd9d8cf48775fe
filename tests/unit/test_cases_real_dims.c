/*
 * One V4 layer at V4-Flash's attention dimensions (64 heads of 512, window 128, indexer 64 x 128),
 * only hidden_size, the ranks and topk smaller, against the double oracle at a few queries. Here
 * every tile of every kernel is full, which the small golden folders never reach.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/dsa/dsa_internal.h"
#include "support/engine_run.h"
#include "support/layer_rig.h"
#include "support/oracle_v4.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More visible rows than topk; sanitizers get a shorter run. */
enum { N = TEST_IS_SANITIZED ? 272 : 400, FIRST = 250, TOPK = 64 };
#define OUT_BOUND   5e-6
#define SCORE_BOUND 1e-5 /* of a selected row below the k-th best, relative to the largest score   \
                          */

static tamis_dsa_config real_config(int32_t ratio)
{
    tamis_dsa_config c = test_odd_config(ratio);
    c.hidden_size = 256;
    c.num_heads = 64;
    c.head_dim = 512;
    c.rope_head_dim = 64;
    c.q_lora_rank = 128;
    c.o_groups = 8;
    c.o_lora_rank = 64;
    c.sliding_window = 128;
    c.index_n_heads = 64;
    c.index_head_dim = 128;
    c.index_topk = TOPK;
    return c;
}

/* Queries at the start, at the borders of windows and chunks, and at the end. */
static uint8_t *wanted(void)
{
    static const int32_t queries[] = {0, 3, 127, 128, 200, 249, 250, 260, 261, 300, 383, 399};
    uint8_t *want = calloc(N, 1);
    assert_non_null(want);
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
        if (queries[i] < N)
            want[queries[i]] = 1;
    return want;
}

/* Every selected row must be visible, and no worse than the k-th best by more than the bound. */
static void check_selection(const oracle_attention *oracle, const int32_t *topk, int32_t t)
{
    const double *score = oracle->scores + (int64_t)t * oracle->n_rows;
    const int32_t *own = oracle->topk + (int64_t)t * TOPK, *seen = topk + (int64_t)t * TOPK;
    double worst_own = INFINITY, largest = 0;
    const int32_t visible = (t + 1) / 4, n = visible < TOPK ? visible : TOPK;
    for (int32_t j = 0; j < visible; j++)
        largest = fmax(largest, fabs(score[j]));
    for (int32_t i = 0; i < n; i++)
        worst_own = fmin(worst_own, score[own[i]]);
    for (int32_t i = 0; i < TOPK; i++) {
        if (i >= n) {
            assert_int_equal(seen[i], -1);
            continue;
        }
        assert_true(seen[i] >= 0 && seen[i] < visible && (i == 0 || seen[i] > seen[i - 1]));
        if (score[seen[i]] < worst_own - SCORE_BOUND * largest)
            fail_msg("query %d: row %d scores %.9g, the %d-th best %.9g", t, seen[i],
                     score[seen[i]], n, worst_own);
    }
}

static void check_real_dims(int32_t ratio, tamis_dtype matrix_dtype)
{
    test_rng rng = test_rng_start("real dimensions", 21 + (uint64_t)ratio);
    const tamis_dsa_config c = real_config(ratio);
    test_layer layer = test_layer_random(&c, matrix_dtype, &rng);
    const tamis_cache_params params = test_rig_params(N);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, N, 2);
    test_rig_seq seq = test_rig_seq_open(&rig);
    float *x = test_inputs(N, c.hidden_size, &rng);
    float *out = calloc((size_t)N * (size_t)c.hidden_size, sizeof *out);
    int32_t *topk = calloc((size_t)N * TOPK, sizeof *topk);
    assert_true(out != NULL && topk != NULL);
    for (int32_t first = 0; first < N; first += FIRST) { /* 250 tokens, then 150 */
        const int32_t n = N - first < FIRST ? N - first : FIRST;
        test_rig_feed(&rig, &seq, x + (int64_t)first * c.hidden_size, n, 0,
                      out + (int64_t)first * c.hidden_size);
        if (ratio == 4)
            memcpy(topk + (int64_t)first * TOPK, tamis_dsa_plan_topk(rig.plan),
                   (size_t)n * TOPK * sizeof *topk);
    }
    uint8_t *want = wanted();
    double *wide = test_widened(x, (int64_t)N * c.hidden_size), worst = 0;
    const oracle_attention_options options = {.want = want, .given_topk = ratio == 4 ? topk : NULL};
    oracle_attention oracle = oracle_attention_run(&layer.layer, wide, N, &options);
    for (int32_t t = 0; t < N; t++) {
        if (!want[t])
            continue;
        if (ratio == 4)
            check_selection(&oracle, topk, t);
        worst = fmax(worst, test_max_diff_f64(out + (int64_t)t * c.hidden_size,
                                              oracle.out + (int64_t)t * c.hidden_size,
                                              c.hidden_size, NULL));
    }
    printf("ratio %d: outputs within %.2e of the oracle (bound %.0e)\n", ratio, worst, OUT_BOUND);
    assert_true(worst < OUT_BOUND);
    oracle_attention_free(&oracle);
    test_rig_close(&rig);
    test_layer_free(&layer);
    free(want);
    free(wide);
    free(topk);
    free(out);
    free(x);
}

static void test_window_layer(void **state)
{
    (void)state;
    check_real_dims(0, TAMIS_DTYPE_F32);
}
static void test_c4_layer(void **state)
{
    (void)state;
    check_real_dims(4, TAMIS_DTYPE_BF16);
}
static void test_c128_layer(void **state)
{
    (void)state;
    check_real_dims(128, TAMIS_DTYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_layer),
        cmocka_unit_test(test_c4_layer),
        cmocka_unit_test(test_c128_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
