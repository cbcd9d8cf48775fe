/*
 * Faults that other engines shipped, as inputs to one V4 attention layer behind tamis/dsa.h, with
 * random weights of dimensions that no vector width divides. Each case is named by its number in
 * the list of docs/cases.md; the engine-level ones are in test_cases_engine.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/dsa/dsa_internal.h"
#include "support/engine_run.h"
#include "support/layer_rig.h"
#include "support/oracle_v4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* float32 engine against double oracle, outputs of size 1 */
#define BOUND 5e-6

static void assert_close(const float *seen, const double *expected, int64_t n, const char *what)
{
    int64_t at = 0;
    const double diff = test_max_diff_f64(seen, expected, n, &at);
    if (diff > BOUND)
        fail_msg("%s: element %lld is %.9g, oracle %.9g", what, (long long)at, (double)seen[at],
                 expected[at]);
}

static float *take_rows(int32_t n, int32_t width)
{
    float *rows = calloc((size_t)n * (size_t)width + 1, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* Asserts that rows 0 .. n - 1 of a paged cache are those of the oracle. */
static void assert_rows(const test_rig *rig, const test_rig_seq *seq, int role,
                        const double *expected, int32_t n, int32_t width, const char *what)
{
    for (int32_t j = 0; j < n; j++) {
        float *row = test_rig_row(rig, seq, 0, role, j);
        assert_close(row, expected + (int64_t)j * width, width, what);
        free(row);
    }
}

/* ---------------------------------------------------------------- 1: one-token decode */

static void case_01_c4_prefill_then_decode(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case 1", 1);
    const tamis_dsa_config c = test_odd_config(4);
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    const tamis_cache_params params = test_rig_params(32);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 32, 1);
    float *x = test_inputs(12, c.hidden_size, &rng);
    float *whole = take_rows(12, c.hidden_size), *cut = take_rows(12, c.hidden_size);
    test_rig_seq a = test_rig_seq_open(&rig), b = test_rig_seq_open(&rig);
    test_rig_feed(&rig, &a, x, 12, 0, whole);
    test_rig_feed(&rig, &b, x, 8, 0, cut);
    test_rig_feed(&rig, &b, x + 8 * c.hidden_size, 4, 1, cut + 8 * c.hidden_size);
    test_assert_same_bits(cut, whole, 12, c.hidden_size, "8 tokens and 4 single ones");
    const struct {
        int role;
        int32_t width;
    } caches[] = {{TAMIS_DSA_CKV, c.head_dim}, {TAMIS_DSA_INDEX_KEY, c.index_head_dim}};
    for (int i = 0; i < 2; i++)
        for (int32_t j = 0; j < 3; j++) {
            float *row_a = test_rig_row(&rig, &a, 0, caches[i].role, j);
            float *row_b = test_rig_row(&rig, &b, 0, caches[i].role, j);
            test_assert_same_bits(row_b, row_a, 1, caches[i].width, "compressed row");
            free(row_a);
            free(row_b);
        }
    free(x);
    free(whole);
    free(cut);
    test_rig_close(&rig);
    test_layer_free(&layer);
}

/* Lengths 1..12 against the oracle: outputs, rows, and how many rows there are. */
static void case_01_c4_lengths_1_to_12(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case 1, lengths", 2);
    const tamis_dsa_config c = test_odd_config(4);
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(32);
    float *x = test_inputs(12, c.hidden_size, &rng), *out = take_rows(12, c.hidden_size);
    double *wide = test_widened(x, 12 * c.hidden_size);
    for (int32_t n = 1; n <= 12; n++) {
        test_rig rig = test_rig_open(&layer.layer, 1, &params, 32, 2);
        test_rig_seq seq = test_rig_seq_open(&rig);
        oracle_attention expected = oracle_attention_run(&layer.layer, wide, n, NULL);
        test_rig_feed(&rig, &seq, x, n, 0, out);
        assert_close(out, expected.out, n * c.hidden_size, "output");
        assert_rows(&rig, &seq, TAMIS_DSA_CKV, expected.ckv, n / 4, c.head_dim, "row");
        assert_rows(&rig, &seq, TAMIS_DSA_INDEX_KEY, expected.ikeys, n / 4, c.index_head_dim,
                    "index key");
        oracle_attention_free(&expected);
        test_rig_close(&rig);
    }
    free(x);
    free(out);
    free(wide);
    test_layer_free(&layer);
}

/* Row 0 uses only the own half: other weights for the first half change row 1, not row 0. */
static void case_01_first_row_has_no_predecessor(void **state)
{
    (void)state;
    const tamis_dsa_config c = test_odd_config(4);
    const tamis_cache_params params = test_rig_params(32);
    float *rows[2][2];
    for (int turn = 0; turn < 2; turn++) {
        test_rng rng = test_rng_start("case 1, first row", 3);
        test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
        float *x = test_inputs(8, c.hidden_size, &rng), *out = take_rows(8, c.hidden_size);
        tamis_compressor_weights *w = &layer.layer.weights.compressor;
        for (int64_t i = 0; turn == 1 && i < (int64_t)c.head_dim * c.hidden_size; i++) {
            ((float *)(uintptr_t)w->wkv.data)[i] = 3;
            ((float *)(uintptr_t)w->wgate.data)[i] = -2;
        }
        test_rig rig = test_rig_open(&layer.layer, 1, &params, 32, 1);
        test_rig_seq seq = test_rig_seq_open(&rig);
        test_rig_feed(&rig, &seq, x, 8, 0, out);
        for (int32_t j = 0; j < 2; j++)
            rows[turn][j] = test_rig_row(&rig, &seq, 0, TAMIS_DSA_CKV, j);
        test_rig_close(&rig);
        test_layer_free(&layer);
        free(x);
        free(out);
    }
    test_assert_same_bits(rows[1][0], rows[0][0], 1, c.head_dim, "row 0");
    assert_memory_not_equal(rows[1][1], rows[0][1], (size_t)c.head_dim * sizeof(float));
    for (int i = 0; i < 4; i++)
        free(rows[i / 2][i % 2]);
}

/* ---------------------------------------------------------------- 2, 3: batches */

/* Two sequences in one step; each must equal itself alone. Unwritten memory holds `poison`. */
static void check_pair(int32_t ratio, int32_t n_a, int32_t n_b, float poison, uint64_t seed)
{
    test_rng rng = {seed};
    const tamis_dsa_config c = test_odd_config(ratio);
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const int32_t hidden = c.hidden_size, longest = n_a > n_b ? n_a : n_b;
    const tamis_cache_params params = test_rig_params(longest);
    float *x = test_inputs(n_a + n_b, hidden, &rng), *both = take_rows(n_a + n_b, hidden);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, longest, 2);
    test_rig_seq a = test_rig_seq_open(&rig), b = test_rig_seq_open(&rig);
    test_rig_seq *pair[] = {&a, &b};
    const int32_t counts[] = {n_a, n_b};
    test_rig_poison(&rig, poison);
    test_rig_plan(&rig, pair, counts, 2);
    test_rig_run(&rig, 0, x, both);

    test_rig solo = test_rig_open(&layer.layer, 1, &params, longest, 1);
    test_rig_seq solo_seq[2] = {test_rig_seq_open(&solo), test_rig_seq_open(&solo)};
    for (int i = 0; i < 2; i++) {
        float *alone = take_rows(counts[i], hidden);
        const int64_t first = i == 0 ? 0 : (int64_t)n_a * hidden;
        test_rig_feed(&solo, &solo_seq[i], x + first, counts[i], 0, alone);
        test_assert_same_bits(both + first, alone, counts[i], hidden, "one of a pair");
        for (int32_t j = 0; j <= counts[i] / ratio; j++) { /* one past the last: untouched */
            float *seen = test_rig_row(&rig, pair[i], 0, TAMIS_DSA_CKV, j);
            float *expected = test_rig_row(&solo, &solo_seq[i], 0, TAMIS_DSA_CKV, j);
            if (j < counts[i] / ratio)
                test_assert_same_bits(seen, expected, 1, c.head_dim, "row of a pair");
            else
                assert_true(seen[0] == poison);
            free(seen);
            free(expected);
        }
        free(alone);
    }
    test_rig_close(&solo);
    test_rig_close(&rig);
    free(x);
    free(both);
    test_layer_free(&layer);
}

static void case_02_short_pair_among_poison(void **state)
{
    (void)state;
    check_pair(4, 3, 7, 1e30f, 4);
    check_pair(4, 7, 3, 1e30f, 5);
}

static void case_03_c128_long_and_short(void **state)
{
    (void)state;
    check_pair(128, 1300, 200, 1e30f, 6);
    check_pair(128, 200, 1300, 1e30f, 7);
}

/* ---------------------------------------------------------------- 4: counting */

static void check_counts(int32_t ratio)
{
    test_rng rng = {8};
    tamis_dsa_config c = test_odd_config(ratio);
    c.sliding_window = 128;
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(304);
    float *x = test_inputs(300, c.hidden_size, &rng), *out = take_rows(300, c.hidden_size);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 304, 1);
    test_rig_seq seq = test_rig_seq_open(&rig);
    test_rig_poison(&rig, 1e30f);
    for (int32_t n = 0; n <= 300; n++) {
        int32_t n_rows = 0;
        for (int32_t j = 0; j <= 300 / ratio; j++) {
            float *row = test_rig_row(&rig, &seq, 0, TAMIS_DSA_CKV, j);
            n_rows += row[0] != 1e30f;
            free(row);
        }
        assert_int_equal(n_rows, n / ratio);
        if (n < 300)
            test_rig_feed(&rig, &seq, x + n * c.hidden_size, 1, 0, out);
    }
    test_rig_close(&rig);
    test_layer_free(&layer);
    free(x);
    free(out);
}

static void case_04_rows_after_n_tokens(void **state)
{
    (void)state;
    check_counts(4);
    check_counts(128);
}

/* ---------------------------------------------------------------- 6: rotation far out */

/* The last query of n tokens: layer against oracle, and how far a wrong rotation would be. */
static void check_far(int32_t ratio, int32_t n, const tamis_rope_config *wrong, uint64_t seed)
{
    test_rng rng = {seed};
    tamis_dsa_config c = test_odd_config(ratio);
    c.index_topk = 8;
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(n);
    const int32_t hidden = c.hidden_size;
    float *x = test_inputs(n, hidden, &rng), *out = take_rows(n, hidden);
    double *wide = test_widened(x, (int64_t)n * hidden);
    uint8_t *want = calloc((size_t)n, 1);
    assert_non_null(want);
    want[n - 1] = 1;
    test_rig rig = test_rig_open(&layer.layer, 1, &params, n, 2);
    test_rig_seq seq = test_rig_seq_open(&rig);
    test_rig_feed(&rig, &seq, x, n, 512, out);
    const oracle_attention_options options = {.want = want};
    oracle_attention right = oracle_attention_run(&layer.layer, wide, n, &options);
    layer.layer.config.rope = *wrong;
    oracle_attention other = oracle_attention_run(&layer.layer, wide, n, &options);
    const float *seen = out + (int64_t)(n - 1) * hidden;
    const double diff =
        test_max_diff_f64(seen, right.out + (int64_t)(n - 1) * hidden, hidden, NULL);
    const double wrong_diff =
        test_max_diff_f64(seen, other.out + (int64_t)(n - 1) * hidden, hidden, NULL);
    printf("ratio %d, query at %d: %.2e from the oracle, %.2e from the wrong rotation\n", ratio,
           n - 1, diff, wrong_diff);
    assert_true(diff < BOUND && wrong_diff > 100 * BOUND);
    oracle_attention_free(&right);
    oracle_attention_free(&other);
    test_rig_close(&rig);
    test_layer_free(&layer);
    free(want);
    free(wide);
    free(x);
    free(out);
}

static void case_06_plain_rope_on_window_layers(void **state)
{
    (void)state;
    const tamis_dsa_config compressed = test_odd_config(4);
    check_far(0, 5001, &compressed.rope, 9);
}

static void case_06_yarn_on_compressed_layers(void **state)
{
    (void)state;
    const tamis_dsa_config window = test_odd_config(0), compressed = test_odd_config(4);
    tamis_rope_config no_yarn = compressed.rope;
    no_yarn.yarn_factor = 1;
    check_far(4, 5001, &no_yarn, 10);
    check_far(4, 5001, &window.rope, 10);
    check_far(128, 5001, &no_yarn, 11);
}

/* ---------------------------------------------------------------- 8, 9, 10: indexer */

/* Feeds cuts[0], cuts[1], ... tokens; selections of the last step, [last cut][topk]. */
static int32_t *selections(const test_layer *layer, const float *x, const int32_t *cuts, int n_cuts)
{
    const tamis_dsa_config *c = &layer->layer.config;
    const tamis_cache_params params = test_rig_params(256);
    test_rig rig = test_rig_open(&layer->layer, 1, &params, 256, 1);
    test_rig_seq seq = test_rig_seq_open(&rig);
    float *out = take_rows(256, c->hidden_size);
    for (int i = 0, first = 0; i < n_cuts; first += cuts[i++])
        test_rig_feed(&rig, &seq, x + (int64_t)first * c->hidden_size, cuts[i], 0, out);
    const size_t n = (size_t)cuts[n_cuts - 1] * (size_t)c->index_topk;
    int32_t *copy = malloc(n * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, tamis_dsa_plan_topk(rig.plan), n * sizeof *copy);
    free(out);
    test_rig_close(&rig);
    return copy;
}

/* 64 cached tokens, chunk of 8, the best row of the chunk's last query is row 12. */
static void case_08_rows_of_earlier_chunks_are_scored(void **state)
{
    (void)state;
    const tamis_dsa_config c = test_odd_config(4);
    const int32_t cuts[] = {64, 8};
    int n_found = 0;
    for (uint64_t seed = 100; seed < 400 && n_found < 3; seed++) {
        test_rng rng = {seed};
        test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
        float *x = test_inputs(72, c.hidden_size, &rng);
        double *wide = test_widened(x, 72 * c.hidden_size);
        oracle_attention oracle = oracle_attention_run(&layer.layer, wide, 72, NULL);
        const double *score = oracle.scores + 71 * oracle.n_rows;
        int32_t best = 0;
        for (int32_t j = 1; j < 18; j++)
            best = score[j] > score[best] ? j : best;
        if (best == 12) {
            int32_t *seen = selections(&layer, x, cuts, 2);
            bool has_12 = false;
            for (int32_t i = 0; i < c.index_topk; i++)
                has_12 = has_12 || seen[7 * c.index_topk + i] == 12;
            assert_true(has_12);
            for (int32_t i = 0; i < 8 * c.index_topk; i++)
                assert_int_equal(seen[i], oracle.topk[64 * c.index_topk + i]);
            free(seen);
            n_found++;
        }
        oracle_attention_free(&oracle);
        free(wide);
        free(x);
        test_layer_free(&layer);
    }
    assert_int_equal(n_found, 3);
}

/* A chunk of 16 with topk 2: each query selects among its own visible rows. */
static void case_09_masking_before_ranking(void **state)
{
    (void)state;
    tamis_dsa_config c = test_odd_config(4);
    c.index_topk = 2;
    test_rng rng = test_rng_start("case 9", 12);
    for (int turn = 0; turn < 20; turn++) {
        test_layer layer = test_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
        float *x = test_inputs(16, c.hidden_size, &rng);
        double *wide = test_widened(x, 16 * c.hidden_size);
        oracle_attention oracle = oracle_attention_run(&layer.layer, wide, 16, NULL);
        const int32_t cuts[] = {16};
        int32_t *seen = selections(&layer, x, cuts, 1);
        for (int32_t t = 0; t < 16; t++) {
            const int32_t visible = (t + 1) / 4, n = visible < 2 ? visible : 2;
            for (int32_t i = 0; i < 2; i++) {
                assert_true(i < n ? seen[2 * t + i] >= 0 && seen[2 * t + i] < visible
                                  : seen[2 * t + i] == -1);
                assert_int_equal(seen[2 * t + i], oracle.topk[2 * t + i]);
            }
        }
        free(seen);
        oracle_attention_free(&oracle);
        free(wide);
        free(x);
        test_layer_free(&layer);
    }
}

/* A full block of 64 distinct keys: what the writer put where is what readers find there. */
static void case_10_one_key_layout(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case 10", 13);
    const tamis_dsa_config c = test_odd_config(4);
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(260, c.hidden_size, &rng), *out = take_rows(260, c.hidden_size);
    double *wide = test_widened(x, 260 * c.hidden_size);
    oracle_attention oracle = oracle_attention_run(&layer.layer, wide, 260, NULL);
    const tamis_cache_params params = test_rig_params(260);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 260, 1);
    test_rig_seq seq = test_rig_seq_open(&rig);
    test_rig_feed(&rig, &seq, x, 260, 100, out);
    assert_int_equal(tamis_dsa_caches_rows_per_block(rig.caches, 0, TAMIS_DSA_INDEX_KEY), 64);
    assert_rows(&rig, &seq, TAMIS_DSA_INDEX_KEY, oracle.ikeys, 65, c.index_head_dim, "index key");
    float *key = test_rig_row(&rig, &seq, 0, TAMIS_DSA_INDEX_KEY, 1);
    for (int32_t j = 0; j < 65; j++) /* key 1 is nobody else's */
        assert_true(j == 1 || test_max_diff_f64(key, oracle.ikeys + j * c.index_head_dim,
                                                c.index_head_dim, NULL) > 0.01);
    free(key);
    test_rig_close(&rig);
    oracle_attention_free(&oracle);
    test_layer_free(&layer);
    free(wide);
    free(x);
    free(out);
}

/* ---------------------------------------------------------------- 12: missing entries */

/*
 * A layer that reuses an earlier selection is given lists with -1 in them: `given` [n][topk] of the
 * second layer's queries against the oracle that is given the same.
 */
static void check_given(int32_t topk, const int32_t *given, int32_t n, uint64_t seed)
{
    test_rng rng = {seed};
    tamis_dsa_config c = test_odd_config(4);
    c.index_topk = topk;
    test_layer first = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    c.reuse_topk = true;
    test_layer second = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_dsa_layer layers[] = {first.layer, second.layer};
    const tamis_cache_params params = test_rig_params(n);
    test_rig rig = test_rig_open(layers, 2, &params, n, 2);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[] = {&seq};
    float *x = test_inputs(n, c.hidden_size, &rng), *out = take_rows(n, c.hidden_size);
    double *wide = test_widened(x, n * c.hidden_size);
    test_rig_plan(&rig, seqs, &n, 1);
    test_rig_run(&rig, 0, x, out);
    memcpy((void *)(uintptr_t)tamis_dsa_plan_topk(rig.plan), given,
           (size_t)(n * topk) * sizeof *given);
    test_rig_run(&rig, 1, x, out);
    const oracle_attention_options options = {.given_topk = given};
    oracle_attention oracle = oracle_attention_run(&second.layer, wide, n, &options);
    assert_close(out, oracle.out, n * c.hidden_size, "given selection");
    oracle_attention_free(&oracle);
    test_rig_close(&rig);
    test_layer_free(&first);
    test_layer_free(&second);
    free(wide);
    free(x);
    free(out);
}

static void case_12_missing_entries_anywhere(void **state)
{
    (void)state;
    enum { N = 80, K = 17 };
    int32_t given[N * K];
    /* [-1 x 16, 5] for every query that sees 17 rows or more, nothing else anywhere */
    for (int32_t i = 0; i < N * K; i++)
        given[i] = i % K == K - 1 && i / K >= 4 * K ? 5 : -1;
    check_given(K, given, N, 14);
    /* every pattern of -1 in a list of four: query t has pattern t % 16 */
    for (int32_t t = 0; t < N; t++)
        for (int32_t i = 0; i < 4; i++)
            given[4 * t + i] = t >= 19 && (t >> i & 1) != 0 ? i + 1 : -1;
    check_given(4, given, N, 15);
}

/* IndexCache: a layer without indexer attends to the rows that the layer before selected. */
static void test_reused_selection(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("reused selection", 16);
    tamis_dsa_config c = test_odd_config(4);
    test_layer first = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(60, c.hidden_size, &rng);
    double *wide = test_widened(x, 60 * c.hidden_size);
    oracle_attention oracle = oracle_attention_run(&first.layer, wide, 60, NULL);
    const int32_t cuts[] = {60};
    int32_t *seen = selections(&first, x, cuts, 1);
    assert_memory_equal(seen, oracle.topk, (size_t)(60 * c.index_topk) * sizeof *seen);
    check_given(c.index_topk, seen, 60, 17);
    free(seen);
    oracle_attention_free(&oracle);
    free(wide);
    free(x);
    test_layer_free(&first);
}

/* ---------------------------------------------------------------- 14: strides */

static void check_stride(int32_t ratio, tamis_dtype kv_dtype)
{
    enum { N = 400 };
    const tamis_dsa_config c = test_odd_config(ratio);
    test_rng rng = {18};
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    float *x = test_inputs(N, c.hidden_size, &rng);
    float *out[3];
    static const int32_t pads[] = {0, 64, 4096};
    for (int i = 0; i < 3; i++) {
        tamis_cache_params params = test_rig_params(N);
        params.kv_cache_dtype = kv_dtype;
        params.block_pad_bytes = pads[i];
        params.block_tokens = 128;
        params.num_blocks = 64;
        test_rig rig = test_rig_open(&layer.layer, 1, &params, N, 2);
        test_rig_seq seq = test_rig_seq_open(&rig);
        test_rig_poison(&rig, 1e30f);
        out[i] = take_rows(N, c.hidden_size);
        test_rig_feed(&rig, &seq, x, N, 90, out[i]);
        test_assert_same_bits(out[i], out[0], N, c.hidden_size, "padded blocks");
        test_rig_close(&rig);
    }
    for (int i = 0; i < 3; i++)
        free(out[i]);
    free(x);
    test_layer_free(&layer);
}

static void case_14_block_stride(void **state)
{
    (void)state;
    check_stride(4, TAMIS_DTYPE_F32);
    check_stride(4, TAMIS_DTYPE_BF16);
    check_stride(128, TAMIS_DTYPE_F32);
    check_stride(128, TAMIS_DTYPE_BF16);
}

/* ---------------------------------------------------------------- bf16 caches */

/* Rows are rounded before anything reads them: the oracle that rounds so agrees, others do not. */
static void check_rounding(int32_t ratio)
{
    enum { N = 140 };
    test_rng rng = {19};
    tamis_dsa_config c = test_odd_config(ratio);
    c.index_topk = 40; /* all visible: a selection must not hang on rounding here */
    test_layer layer = test_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    tamis_cache_params params = test_rig_params(N);
    params.kv_cache_dtype = TAMIS_DTYPE_BF16;
    test_rig rig = test_rig_open(&layer.layer, 1, &params, N, 1);
    test_rig_seq seq = test_rig_seq_open(&rig);
    float *x = test_inputs(N, c.hidden_size, &rng), *out = take_rows(N, c.hidden_size);
    double *wide = test_widened(x, N * c.hidden_size);
    test_rig_feed(&rig, &seq, x, N, 0, out);
    const oracle_attention_options options = {.bf16_rows = true};
    oracle_attention rounded = oracle_attention_run(&layer.layer, wide, N, &options);
    oracle_attention plain = oracle_attention_run(&layer.layer, wide, N, NULL);
    double near = 0, far = 0;
    for (int64_t i = 0; i < N * c.hidden_size; i++) {
        near += fabs((double)out[i] - rounded.out[i]);
        far += fabs((double)out[i] - plain.out[i]);
    }
    printf("ratio %d: bf16 rows are %.1e (mean) from the rounding oracle, %.1e from the other\n",
           ratio, near / (N * c.hidden_size), far / (N * c.hidden_size));
    assert_true(near * 20 < far);
    oracle_attention_free(&rounded);
    oracle_attention_free(&plain);
    test_rig_close(&rig);
    test_layer_free(&layer);
    free(wide);
    free(x);
    free(out);
}

static void test_rows_are_rounded_before_use(void **state)
{
    (void)state;
    check_rounding(0);
    check_rounding(4);
    check_rounding(128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_01_c4_prefill_then_decode),
        cmocka_unit_test(case_01_c4_lengths_1_to_12),
        cmocka_unit_test(case_01_first_row_has_no_predecessor),
        cmocka_unit_test(case_02_short_pair_among_poison),
        cmocka_unit_test(case_03_c128_long_and_short),
        cmocka_unit_test(case_04_rows_after_n_tokens),
        cmocka_unit_test(case_06_plain_rope_on_window_layers),
        cmocka_unit_test(case_06_yarn_on_compressed_layers),
        cmocka_unit_test(case_08_rows_of_earlier_chunks_are_scored),
        cmocka_unit_test(case_09_masking_before_ranking),
        cmocka_unit_test(case_10_one_key_layout),
        cmocka_unit_test(case_12_missing_entries_anywhere),
        cmocka_unit_test(test_reused_selection),
        cmocka_unit_test(case_14_block_stride),
        cmocka_unit_test(test_rows_are_rounded_before_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
