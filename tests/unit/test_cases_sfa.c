/*
 * Faults that other engines shipped, as inputs to one V3.2 or GLM layer behind tamis/sfa.h: cases
 * by their number in docs/cases.md. Those that need numbers by hand are in test_cases_sfa_hand.c,
 * those of V4 in test_cases_v4.c.
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
#include <stdlib.h>
#include <string.h>

#define BOUND       5e-6 /* float32 engine against double oracle, outputs of size 1 */
#define SCORE_BOUND 1e-5

/* A layer, its input and the oracle's answer. */
typedef struct question {
    test_sfa_layer layer;
    int32_t n;
    float *x;
    double *wide;
    oracle_sfa oracle;
} question;

static question ask(const tamis_sfa_config *c, int32_t n, test_rng *rng)
{
    question q = {.layer = test_sfa_layer_random(c, TAMIS_DTYPE_F32, rng), .n = n};
    q.x = test_inputs(n, c->hidden_size, rng);
    q.wide = test_widened(q.x, (int64_t)n * c->hidden_size);
    q.oracle = oracle_sfa_run(&q.layer.layer, q.wide, n, NULL);
    return q;
}

static void forget(question *q)
{
    oracle_sfa_free(&q->oracle);
    free(q->wide);
    free(q->x);
    test_sfa_layer_free(&q->layer);
}

/* Whether a list holds exactly the positions that the oracle chose (best first there). */
static bool is_choice(const oracle_sfa *oracle, const int32_t *topk, int32_t k, int32_t t)
{
    for (int32_t i = 0; i < k; i++) {
        bool is_found = false;
        for (int32_t j = 0; j < k; j++)
            is_found = is_found || oracle->topk[(int64_t)t * k + j] == topk[i];
        if (!is_found)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- 5: pairing of the indexer */

static void check_pairing(test_sfa_family family, int32_t topk, uint64_t seed)
{
    enum { N = 8, TURNS = 10 };
    test_rng rng = {seed};
    tamis_sfa_config c = test_sfa_odd_config(family);
    c.index_topk = topk;
    int n_other = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        question q = ask(&c, N, &rng);
        tamis_sfa_layer other = q.layer.layer;
        other.config.index_rope_interleave = !c.index_rope_interleave;
        oracle_sfa wrong = oracle_sfa_run(&other, q.wide, N, NULL);
        test_sfa_result seen = test_sfa_straight(&q.layer.layer, TAMIS_DTYPE_F32, q.x, N);
        for (int32_t t = 0; t < N; t++) {
            test_assert_topk(seen.topk + t * topk, topk, q.oracle.scores + t * N, t + 1,
                             SCORE_BOUND, "selection");
            n_other += !is_choice(&wrong, seen.topk + t * topk, topk, t);
        }
        oracle_sfa_free(&wrong);
        test_sfa_result_free(&seen);
        forget(&q);
    }
    /* the other pairing is another function, which a topk of all rows cannot show */
    assert_int_equal(n_other > 0, topk < N);
}

static void case_05_pairing_of_the_indexer(void **state)
{
    (void)state;
    check_pairing(TEST_SFA_V32, 2, 5);
    check_pairing(TEST_SFA_V32, 8, 6);
    check_pairing(TEST_SFA_GLM, 2, 7);
    check_pairing(TEST_SFA_GLM, 8, 8);
}

/* ---------------------------------------------------------------- 8, 9, 10: indexer */

/* Feeds cuts[0], cuts[1], ... tokens; selections of the last step, [last cut][topk]. */
static int32_t *selections(const question *q, const int32_t *cuts, int n_cuts)
{
    const tamis_sfa_config *c = &q->layer.layer.config;
    const tamis_cache_params params = test_sfa_params(q->n);
    test_sfa_rig rig = test_sfa_rig_open(&q->layer.layer, 1, &params, q->n, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    float *out = test_take((int64_t)q->n * c->hidden_size, sizeof *out);
    for (int i = 0, first = 0; i < n_cuts; first += cuts[i++])
        test_sfa_feed(&rig, &seq, q->x + (int64_t)first * c->hidden_size, cuts[i], 0, out);
    const int64_t n = (int64_t)cuts[n_cuts - 1] * c->index_topk;
    int32_t *copy = test_take(n, sizeof *copy);
    memcpy(copy, tamis_sfa_plan_topk(rig.plan), (size_t)n * sizeof *copy);
    free(out);
    test_sfa_rig_close(&rig);
    return copy;
}

/* 64 cached tokens, chunk of 8, topk 4: whenever the best position is 12, it is selected. */
static void case_08_rows_of_earlier_chunks_are_scored(void **state)
{
    (void)state;
    enum { CACHED = 64, CHUNK = 8, N = CACHED + CHUNK, TOPK = 4 };
    const int32_t cuts[] = {CACHED, CHUNK};
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_rng rng = test_rng_start("case 8", 8);
    c.index_topk = TOPK;
    int n_found = 0;
    for (int turn = 0; turn < 60 && n_found < 3; turn++) {
        question q = ask(&c, N, &rng);
        int32_t *seen = selections(&q, cuts, 2);
        for (int32_t t = CACHED; t < N; t++) {
            const int32_t *list = seen + (t - CACHED) * TOPK;
            test_assert_topk(list, TOPK, q.oracle.scores + t * N, t + 1, SCORE_BOUND, "selection");
            if (q.oracle.topk[t * TOPK] != 12)
                continue;
            n_found++;
            assert_true(list[0] == 12 || list[1] == 12 || list[2] == 12 || list[3] == 12);
        }
        free(seen);
        forget(&q);
    }
    assert_true(n_found >= 3);
}

/* A chunk of 16 with topk 2: each query selects among what it sees itself. */
static void case_09_masking_before_ranking(void **state)
{
    (void)state;
    enum { N = 16, TOPK = 2 };
    const int32_t cuts[] = {N};
    test_rng rng = test_rng_start("case 9", 9);
    for (int turn = 0; turn < 20; turn++) {
        tamis_sfa_config c = test_sfa_odd_config((test_sfa_family)(turn % 2));
        c.index_topk = TOPK;
        question q = ask(&c, N, &rng);
        int32_t *seen = selections(&q, cuts, 1);
        for (int32_t t = 0; t < N; t++)
            test_assert_topk(seen + t * TOPK, TOPK, q.oracle.scores + t * N, t + 1, SCORE_BOUND,
                             "selection");
        free(seen);
        forget(&q);
    }
}

/* Blocks of 64 distinct keys: what the writer put where is what readers find there. */
static void case_10_one_key_layout(void **state)
{
    (void)state;
    enum { N = 130 };
    test_rng rng = test_rng_start("case 10", 10);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    const int32_t d = c.index_head_dim;
    question q = ask(&c, N, &rng);
    const tamis_cache_params params = test_sfa_params(N);
    assert_int_equal(params.block_tokens, 64);
    test_sfa_rig rig = test_sfa_rig_open(&q.layer.layer, 1, &params, N, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    float *out = test_take(N * c.hidden_size, sizeof *out);
    test_sfa_feed(&rig, &seq, q.x, N, 50, out);
    for (int32_t j = 0; j < N; j++) {
        float *key = test_sfa_row(&rig, &seq, 0, TAMIS_SFA_INDEX_KEY, j);
        test_assert_near(key, q.oracle.ikeys + j * d, d, BOUND, "index key");
        if (j == 1) /* key 1 is nobody else's */
            for (int32_t i = 0; i < N; i++)
                assert_true(i == 1 ||
                            test_max_diff_f64(key, q.oracle.ikeys + i * d, d, NULL) > 0.01);
        free(key);
    }
    free(out);
    test_sfa_rig_close(&rig);
    forget(&q);
}

/* ---------------------------------------------------------------- 13: causality */

static void check_causality(int32_t topk, uint64_t seed)
{
    enum { N = 16 };
    test_rng rng = {seed};
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    c.index_topk = topk;
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(N, c.hidden_size, &rng);
    test_sfa_result before = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x, N);
    for (int32_t d = 0; d < c.hidden_size; d++)
        x[(N - 1) * c.hidden_size + d] += 1;
    test_sfa_result last = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x, N);
    test_assert_same_bits(last.out, before.out, N - 1, c.hidden_size, "rows before a change");
    assert_memory_not_equal(last.out + (N - 1) * c.hidden_size,
                            before.out + (N - 1) * c.hidden_size,
                            (size_t)c.hidden_size * sizeof(float));
    for (int32_t d = 0; d < c.hidden_size; d++)
        x[d] += 1;
    test_sfa_result first = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x, N);
    assert_memory_not_equal(first.out + (N - 1) * c.hidden_size, last.out + (N - 1) * c.hidden_size,
                            (size_t)c.hidden_size * sizeof(float));
    test_sfa_result_free(&before);
    test_sfa_result_free(&last);
    test_sfa_result_free(&first);
    free(x);
    test_sfa_layer_free(&layer);
}

static void case_13_causality(void **state)
{
    (void)state;
    check_causality(0, 13);
    check_causality(15, 13);
}

/* ---------------------------------------------------------------- 14: strides */

static void case_14_block_stride(void **state)
{
    (void)state;
    enum { N = 300 };
    test_rng rng = test_rng_start("case 14", 14);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    float *x = test_inputs(N, c.hidden_size, &rng);
    float *out = test_take(N * c.hidden_size, sizeof *out);
    const int32_t block_tokens[] = {16, 64, 256}, pads[] = {0, 64, 4096};
    for (int d = 0; d < 2; d++) {
        tamis_cache_params params = test_sfa_params(N);
        params.kv_cache_dtype = d == 0 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_BF16;
        test_sfa_result straight = test_sfa_straight(&layer.layer, params.kv_cache_dtype, x, N);
        for (int i = 0; i < 9; i += TEST_IS_SANITIZED ? 4 : 1) {
            params.block_tokens = block_tokens[i / 3];
            params.block_pad_bytes = pads[i % 3];
            params.num_blocks = 2 + N / params.block_tokens + 1;
            test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, N, 2);
            test_sfa_seq seq = test_sfa_seq_open(&rig);
            test_sfa_poison(&rig, 1e30f);
            test_sfa_feed(&rig, &seq, x, N, 90, out);
            test_assert_same_bits(out, straight.out, N, c.hidden_size, "padded blocks");
            test_sfa_rig_close(&rig);
        }
        test_sfa_result_free(&straight);
    }
    free(out);
    free(x);
    test_sfa_layer_free(&layer);
}

/* ---------------------------------------------------------------- 18: any residue */

/* A prompt of n tokens and three single ones: outputs and selections are the oracle's. */
static void check_residue(const tamis_sfa_layer *layer, const float *x, const double *wide,
                          int32_t n, int32_t block_tokens)
{
    const tamis_sfa_config *c = &layer->config;
    const int32_t n_all = n + 3, topk = c->index_topk;
    tamis_cache_params params = test_sfa_params(n_all);
    params.block_tokens = block_tokens;
    params.num_blocks = 2 + n_all / block_tokens;
    test_sfa_rig rig = test_sfa_rig_open(layer, 1, &params, n_all, 2);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    float *out = test_take((int64_t)n_all * c->hidden_size, sizeof *out);
    int32_t *lists = test_take((int64_t)n_all * topk, sizeof *lists);
    for (int32_t first = 0, count = n; first < n_all; first += count, count = 1) {
        test_sfa_feed(&rig, &seq, x + (int64_t)first * c->hidden_size, count, 0,
                      out + (int64_t)first * c->hidden_size);
        memcpy(lists + (int64_t)first * topk, tamis_sfa_plan_topk(rig.plan),
               (size_t)(count * topk) * sizeof *lists);
    }
    const oracle_sfa_options options = {.given_topk = lists};
    oracle_sfa oracle = oracle_sfa_run(layer, wide, n_all, &options);
    for (int32_t t = 0; t < n_all; t++)
        test_assert_topk(lists + (int64_t)t * topk, topk, oracle.scores + (int64_t)t * n_all, t + 1,
                         SCORE_BOUND, "selection");
    test_assert_near(out, oracle.out, (int64_t)n_all * c->hidden_size, BOUND, "any residue");
    oracle_sfa_free(&oracle);
    free(lists);
    free(out);
    test_sfa_rig_close(&rig);
}

static void case_18_any_residue(void **state)
{
    (void)state;
    const int32_t borders[] = {61, 62, 63, 64, 65, 125, 126, 127, 128, 129, 190, 191, 192, 193};
    test_rng rng = test_rng_start("case 18", 18);
    for (int family = 0; family < 2; family++) {
        const tamis_sfa_config c = test_sfa_odd_config((test_sfa_family)family);
        test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
        float *x = test_inputs(200, c.hidden_size, &rng);
        double *wide = test_widened(x, 200 * c.hidden_size);
        for (int32_t n = 1; n <= 40; n += TEST_IS_SANITIZED ? 7 : 1)
            check_residue(&layer.layer, x, wide, n, 16);
        for (size_t i = 0; i < sizeof borders / sizeof *borders; i += TEST_IS_SANITIZED ? 3 : 1)
            check_residue(&layer.layer, x, wide, borders[i], 64);
        free(wide);
        free(x);
        test_sfa_layer_free(&layer);
    }
}

/* ---------------------------------------------------------------- 20: a mixed step */

/* A 5-token prefill, a decode and a 130-token prefill in one step, in every order. */
static void case_20_mixed_step(void **state)
{
    (void)state;
    enum { BEFORE = 77, MOST = 130 };
    const int32_t counts[] = {5, 1, MOST};
    const int32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    test_rng rng = test_rng_start("case 20", 20);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    const tamis_cache_params params = test_sfa_params(MOST);
    float *x[3], *out = test_take(3 * MOST * c.hidden_size, sizeof *out);
    test_sfa_result alone[3];
    for (int i = 0; i < 3; i++) {
        x[i] = test_inputs(MOST, c.hidden_size, &rng);
        alone[i] = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x[i], MOST);
    }
    for (int k = 0; k < 6; k += TEST_IS_SANITIZED ? 2 : 1) {
        test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, MOST, 1 + k % 4);
        test_sfa_seq seqs[3], *in_step[3];
        float *joined = test_take(3 * MOST * c.hidden_size, sizeof *joined), *at = joined;
        int32_t in_counts[3];
        test_sfa_poison(&rig, NAN);
        for (int i = 0; i < 3; i++)
            seqs[i] = test_sfa_seq_open(&rig);
        test_sfa_feed(&rig, &seqs[1], x[1], BEFORE, 0, out);
        for (int i = 0; i < 3; i++) {
            const int32_t id = orders[k][i];
            in_step[i] = &seqs[id];
            in_counts[i] = counts[id];
            memcpy(at, x[id] + seqs[id].len * c.hidden_size,
                   (size_t)(counts[id] * c.hidden_size) * sizeof *at);
            at += counts[id] * c.hidden_size;
        }
        test_sfa_plan(&rig, in_step, in_counts, 3);
        test_sfa_run(&rig, 0, joined, out);
        const float *row = out;
        for (int i = 0; i < 3; i++) {
            const int32_t id = orders[k][i], first = id == 1 ? BEFORE : 0;
            test_assert_same_bits(row, alone[id].out + first * c.hidden_size, counts[id],
                                  c.hidden_size, "one of a mixed step");
            row += counts[id] * c.hidden_size;
        }
        free(joined);
        test_sfa_rig_close(&rig);
    }
    for (int i = 0; i < 3; i++) {
        test_sfa_result_free(&alone[i]);
        free(x[i]);
    }
    free(out);
    test_sfa_layer_free(&layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_05_pairing_of_the_indexer),
        cmocka_unit_test(case_08_rows_of_earlier_chunks_are_scored),
        cmocka_unit_test(case_09_masking_before_ranking),
        cmocka_unit_test(case_10_one_key_layout),
        cmocka_unit_test(case_13_causality),
        cmocka_unit_test(case_14_block_stride),
        cmocka_unit_test(case_18_any_residue),
        cmocka_unit_test(case_20_mixed_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
