/*
 * V3.2 and GLM layers small enough for numbers by hand: cases of docs/cases.md that need them, and
 * the examples worked out in the literature of these models. Rows are written into the caches,
 * queries into the plan; the operators do the rest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- hand-made layers */

/*
 * A layer small enough for numbers by hand: latent 2, key part 2 (or 1 of the literature and a
 * zero), one head, indexer n_heads x 2. Rows are written into the caches, queries into the plan.
 */
typedef struct hand {
    test_sfa_layer layer;
    test_sfa_rig rig;
    test_sfa_seq seq;
    float *x;
} hand;

static hand hand_open(int32_t index_n_heads, int32_t topk, float softmax_scale, int32_t n)
{
    test_rng rng = {1};
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    c.num_heads = 1;
    c.kv_lora_rank = 2;
    c.qk_rope_head_dim = 2;
    c.index_n_heads = index_n_heads;
    c.index_head_dim = 2;
    c.index_topk = topk;
    c.softmax_scale = softmax_scale;
    hand h = {.layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng)};
    const tamis_cache_params params = test_sfa_params(n);
    h.rig = test_sfa_rig_open(&h.layer.layer, 1, &params, n, 1);
    h.rig.layers = NULL; /* the layer moves with h; calls below pass it themselves */
    h.seq = test_sfa_seq_open(&h.rig);
    h.x = test_inputs(1, c.hidden_size, &rng);
    return h;
}

static void hand_close(hand *h)
{
    test_sfa_rig_close(&h->rig);
    test_sfa_layer_free(&h->layer);
    free(h->x);
}

/* Preprocesses one token at position n - 1; its rows are overwritten afterwards. */
static void hand_step(hand *h, int32_t n)
{
    tamis_error err;
    h->seq.len = n - 1;
    test_sfa_plan(&h->rig, (test_sfa_seq *[]){&h->seq}, (int32_t[]){1}, 1);
    test_must(tamis_sfa_preprocess(&h->layer.layer, 0, h->rig.plan, h->rig.caches, h->x,
                                   h->rig.team, &err),
              &err, "preprocess");
}

static void put_row(hand *h, tamis_sfa_role role, int32_t pos, const float *values, int32_t n)
{
    const int32_t rows = h->rig.params.block_tokens;
    void *row = (void *)(uintptr_t)tamis_sfa_caches_row(h->rig.caches, 0, role,
                                                        h->seq.table[pos / rows], pos % rows);
    memcpy(row, values, (size_t)n * sizeof *values);
}

/* Selection of a step at position n - 1 with the index query, weights and keys of the caller. */
static tamis_status hand_select(hand *h, int32_t n, const float *q, const float *weights,
                                const float (*keys)[2], int32_t *topk)
{
    const tamis_sfa_config *c = &h->layer.layer.config;
    tamis_error err;
    hand_step(h, n);
    memcpy((void *)(uintptr_t)tamis_sfa_plan_index_query(h->rig.plan), q,
           (size_t)(2 * c->index_n_heads) * sizeof *q);
    memcpy((void *)(uintptr_t)tamis_sfa_plan_index_weights(h->rig.plan), weights,
           (size_t)c->index_n_heads * sizeof *weights);
    for (int32_t j = 0; j < n; j++)
        put_row(h, TAMIS_SFA_INDEX_KEY, j, keys[j], 2);
    const tamis_status st =
        tamis_sfa_select(&h->layer.layer, 0, h->rig.plan, h->rig.caches, h->rig.team, &err);
    memcpy(topk, tamis_sfa_plan_topk(h->rig.plan), (size_t)c->index_topk * sizeof *topk);
    return st;
}

/* ---------------------------------------------------------------- 7: ReLU per head */

/* Heads weigh +1 and -1; dots (-3, 2) make -2, better than -2.1 and worse than -1.9. */
static void case_07_relu_per_head(void **state)
{
    (void)state;
    const float q[] = {1, 0, 0, 1}, weights[] = {1, -1};
    const float below[3][2] = {{0, 2.1f}, {-3, 2}, {0, 2.1f}};
    const float above[3][2] = {{0, 1.9f}, {-3, 2}, {0, 1.9f}};
    int32_t topk[2];
    hand h = hand_open(2, 1, 1, 3);
    assert_int_equal(hand_select(&h, 3, q, weights, below, topk), TAMIS_STATUS_OK);
    assert_int_equal(topk[0], 1);
    hand_close(&h);
    h = hand_open(2, 2, 1, 3);
    assert_int_equal(hand_select(&h, 3, q, weights, above, topk), TAMIS_STATUS_OK);
    assert_true(topk[0] == 0 && topk[1] == 2);
    hand_close(&h);
}

/* ---------------------------------------------------------------- 11: top-k */

/* One head of weight 1 and query (1, 0): the score of a position is its key's first value. */
static void check_scores(const float *scores, int32_t n, int32_t topk, const int32_t *expected)
{
    const float q[] = {1, 0}, weights[] = {1};
    float keys[100][2] = {{0}};
    int32_t seen[100], n_expected = 0;
    hand h = hand_open(1, topk, 1, 100);
    for (int32_t j = 0; j < n; j++)
        keys[j][0] = scores[j];
    const tamis_status st = hand_select(&h, n, q, weights, keys, seen);
    for (int32_t i = 0; i < topk; i++) {
        assert_int_equal(seen[i], expected[i]);
        n_expected += expected[i] >= 0;
    }
    /* fewer scores that are numbers than topk is damage, and says so */
    assert_int_equal(st, n_expected < topk ? TAMIS_STATUS_FORMAT : TAMIS_STATUS_OK);
    hand_close(&h);
}

static void case_11_unusual_scores(void **state)
{
    (void)state;
    const float some_nan[] = {NAN, 3, NAN, 2, 1, NAN, 5};
    check_scores(some_nan, 7, 3, (int32_t[]){1, 3, 6});
    const float few_numbers[] = {NAN, 3, NAN, NAN, NAN, NAN, 5};
    check_scores(few_numbers, 7, 3, (int32_t[]){1, 6, -1});
    const float all_nan[] = {NAN, NAN, NAN, NAN};
    check_scores(all_nan, 4, 2, (int32_t[]){-1, -1});
    const float infinite[] = {1, INFINITY, 2, INFINITY, -INFINITY, 3};
    check_scores(infinite, 6, 2, (int32_t[]){1, 3});
    check_scores(infinite, 6, 4, (int32_t[]){1, 2, 3, 5});
    const float zeros[] = {-0.0f, 0, -0.0f, -1, -2, 0}; /* negative dots are zeros, too */
    check_scores(zeros, 6, 4, (int32_t[]){0, 1, 2, 3});
    float equal[100];
    for (int i = 0; i < 100; i++)
        equal[i] = i == 90 ? 8 : 7;
    check_scores(equal, 100, 3, (int32_t[]){0, 1, 90});
}

/* ---------------------------------------------------------------- 12: missing entries */

/* Attends from position n - 1 to a list; the latent output. */
static tamis_status hand_attend(hand *h, int32_t n, const float *q, const float (*rows)[4],
                                const int32_t *list, int32_t n_list, float *lse, float *out,
                                tamis_error *err)
{
    hand_step(h, n);
    memcpy(tamis_sfa_plan_query(h->rig.plan), q, 4 * sizeof *q);
    for (int32_t j = 0; j < n; j++)
        put_row(h, TAMIS_SFA_LATENT, j, rows[j], 4);
    const tamis_status st = tamis_sfa_attend(&h->layer.layer, 0, h->rig.plan, h->rig.caches, list,
                                             n_list, lse, h->rig.team, err);
    if (st == TAMIS_STATUS_OK)
        memcpy(out, tamis_sfa_plan_latent_out(h->rig.plan, 0), 2 * sizeof *out);
    return st;
}

static void case_12_missing_entries_anywhere(void **state)
{
    (void)state;
    enum { N = 9, K = 17 };
    float rows[N][4], q[4], out[2], lse;
    tamis_error err;
    test_rng rng = test_rng_start("case 12", 12);
    hand h = hand_open(1, K, 0.5f, 32);
    test_rng_fill_normal(&rng, &rows[0][0], N * 4);
    test_rng_fill_normal(&rng, q, 4);
    int32_t list[K];
    memset(list, 0xff, sizeof list);
    list[K - 1] = 5; /* [-1 x 16, 5]: exactly the latent of position 5 */
    test_must(hand_attend(&h, N, q, rows, list, K, &lse, out, &err), &err, "attend");
    test_assert_same_bits(out, rows[5], 1, 2, "value of position 5");
    for (int pattern = 0; pattern < 64; pattern++) { /* every pattern of -1 in a list of six */
        double sum = 0, value[2] = {0, 0};
        for (int i = 0; i < 6; i++) {
            list[i] = (pattern >> i & 1) != 0 ? (5 * i + 2) % 8 : -1;
            if (list[i] < 0)
                continue;
            const float *r = rows[list[i]];
            double score = 0;
            for (int d = 0; d < 4; d++)
                score += 0.5 * (double)q[d] * (double)r[d];
            sum += exp(score);
            value[0] += exp(score) * (double)r[0];
            value[1] += exp(score) * (double)r[1];
        }
        test_must(hand_attend(&h, N, q, rows, list, 6, &lse, out, &err), &err, "attend");
        for (int d = 0; d < 2; d++)
            assert_true(pattern == 0 ? out[d] == 0 : fabs((double)out[d] - value[d] / sum) < 1e-6);
        assert_true(pattern == 0 ? lse == -INFINITY : fabs((double)lse - log(sum)) < 1e-6);
    }
    hand_close(&h);
}

/* ---------------------------------------------------------------- worked examples */

/* Entries of a list that are there; they must be 0 .. n - 1 of what a token sees, in order. */
static int32_t count_entries(const int32_t *list, int32_t topk)
{
    int32_t n = 0;
    while (n < topk && list[n] >= 0)
        n++;
    for (int32_t i = n; i < topk; i++)
        assert_int_equal(list[i], -1);
    return n;
}

/* Plans requests of lens[i] tokens whose last counts[i] are new and selects: entries of each row.
 */
static void check_visible(int32_t topk, int32_t n_reqs, const int32_t *counts, const int32_t *lens,
                          const int32_t *expected)
{
    test_rng rng = {1};
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    c.index_topk = topk;
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_sfa_params(2050);
    test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, 2050, 2);
    test_sfa_seq seqs[3], *in_step[3];
    float *x = test_inputs(12, c.hidden_size, &rng), *out = test_take(12 * c.hidden_size, 4);
    int32_t token = 0;
    for (int i = 0; i < n_reqs; i++) {
        seqs[i] = test_sfa_seq_open(&rig);
        seqs[i].len = lens[i] - counts[i]; /* rows before the step are zeros: all of one score */
        in_step[i] = &seqs[i];
    }
    test_sfa_plan(&rig, in_step, counts, n_reqs);
    test_sfa_run(&rig, 0, x, out);
    for (int i = 0; i < n_reqs; i++)
        for (int32_t j = 0; j < counts[i]; j++, token++) {
            const int32_t position = lens[i] - counts[i] + j;
            assert_int_equal(tamis_sfa_plan_positions(rig.plan)[token], position);
            assert_int_equal(count_entries(tamis_sfa_plan_topk(rig.plan) + token * topk, topk),
                             expected[token]);
        }
    test_sfa_rig_close(&rig);
    test_sfa_layer_free(&layer);
    free(x);
    free(out);
}

/* New tokens stand at the right end: token j of n new ones sees length - n + j + 1 positions. */
static void hand_causal_ranges(void **state)
{
    (void)state;
    check_visible(16, 1, (int32_t[]){1}, (int32_t[]){10}, (int32_t[]){10});
    check_visible(16, 1, (int32_t[]){4}, (int32_t[]){10}, (int32_t[]){7, 8, 9, 10});
    check_visible(16, 1, (int32_t[]){3}, (int32_t[]){3}, (int32_t[]){1, 2, 3});
    check_visible(2048, 1, (int32_t[]){4}, (int32_t[]){2050}, (int32_t[]){2047, 2048, 2048, 2048});
    check_visible(1024, 3, (int32_t[]){2, 2, 2}, (int32_t[]){256, 512, 1024},
                  (int32_t[]){255, 256, 511, 512, 1023, 1024});
}

/* Where the literature lets four queries see -1, 0, 1, 2 of two tokens, tamis refuses. */
static void hand_more_new_tokens_than_length(void **state)
{
    (void)state;
    hand h = hand_open(1, 4, 1, 32);
    const int32_t start[] = {0, 4}, lens[] = {2};
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = start,
                               .seq_lens = lens,
                               .block_table = h.seq.table,
                               .block_table_stride = TEST_SFA_BLOCKS};
    tamis_error err = {0};
    assert_int_equal(tamis_sfa_plan_build(h.rig.plan, &batch, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "seq_len is 2, must be at least its 4 new tokens"));
    hand_close(&h);
}

/* Scores 0, -3, 0.5 of three keys. */
static void hand_index_scores(void **state)
{
    (void)state;
    const float q[] = {1, 0, 0, 1}, weights[] = {0.5f, -1};
    const float keys[3][2] = {{2, 1}, {-1, 3}, {1, -1}};
    int32_t topk[4];
    hand h = hand_open(2, 1, 1, 3);
    assert_int_equal(hand_select(&h, 3, q, weights, keys, topk), TAMIS_STATUS_OK);
    assert_int_equal(topk[0], 2);
    hand_close(&h);
    h = hand_open(2, 2, 1, 3);
    assert_int_equal(hand_select(&h, 3, q, weights, keys, topk), TAMIS_STATUS_OK);
    assert_memory_equal(topk, ((int32_t[]){0, 2}), 2 * sizeof *topk); /* stored ascending */
    hand_close(&h);
    h = hand_open(2, 4, 1, 4);
    assert_int_equal(hand_select(&h, 3, q, weights, keys, topk), TAMIS_STATUS_OK);
    assert_memory_equal(topk, ((int32_t[]){0, 1, 2, -1}), 4 * sizeof *topk);
    hand_close(&h);
}

/* Three rows, scores 1, 0, 1; a -1 is skipped and does not end the list. */
static void hand_sparse_attention(void **state)
{
    (void)state;
    const float rows[3][4] = {{1, 0, 2, 0}, {0, 2, 0, 0}, {3, 1, -2, 0}}, q[] = {1, 0, 0.5f, 0};
    const struct {
        int32_t list[4], n;
        double lse, out[2];
    } cases[] = {
        {{0, 2}, 2, 1.6931472, {2, 0.5}},
        {{2, 0}, 2, 1.6931472, {2, 0.5}},
        {{0, 1, 2}, 3, 1.8619948, {1.6892752, 0.7330436}},
        {{0, 2, -1, 1}, 4, 1.8619948, {1.6892752, 0.7330436}},
        {{0, 2, -1, -1}, 4, 1.6931472, {2, 0.5}},
    };
    float lse, out[2];
    tamis_error err;
    hand h = hand_open(1, 4, 0.5f, 32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_must(hand_attend(&h, 3, q, rows, cases[i].list, cases[i].n, &lse, out, &err), &err,
                  "attend");
        assert_true(fabs((double)lse - cases[i].lse) < 1e-6);
        test_assert_near(out, cases[i].out, 2, 1e-6, "attention by hand");
    }
    const int32_t future[] = {5, 0, 2, 1}; /* refused, not skipped: it would push others out */
    assert_int_equal(hand_attend(&h, 3, q, rows, future, 4, &lse, out, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "token 0, entry 0 is position 5, allowed -1..2"));
    hand_close(&h);
}

/* Block table [7, 2], blocks of 128: position 130 is row 258 of the cache, and no other changes. */
static void hand_slot_of_a_position(void **state)
{
    (void)state;
    test_rng rng = {1};
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
    tamis_cache_params params = test_sfa_params(256);
    params.block_tokens = 128;
    params.num_blocks = 8;
    test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, 256, 1);
    test_sfa_seq seq = {.len = 130, .table = {7, 2}};
    float *x = test_inputs(1, c.hidden_size, &rng), out[64];
    test_sfa_feed(&rig, &seq, x, 1, 0, out);
    const int32_t widths[] = {c.kv_lora_rank + c.qk_rope_head_dim, c.index_head_dim};
    for (int role = 0; role < 2; role++) {
        const float *base = tamis_sfa_caches_row(rig.caches, 0, (tamis_sfa_role)role, 0, 0);
        for (int32_t row = 0; row < 8 * 128; row++) {
            bool is_written = false;
            for (int32_t d = 0; d < widths[role]; d++)
                is_written = is_written || base[row * widths[role] + d] != 0;
            assert_int_equal(is_written, row == 258);
        }
    }
    free(x);
    test_sfa_rig_close(&rig);
    test_sfa_layer_free(&layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_07_relu_per_head),
        cmocka_unit_test(case_11_unusual_scores),
        cmocka_unit_test(case_12_missing_entries_anywhere),
        cmocka_unit_test(hand_causal_ranges),
        cmocka_unit_test(hand_more_new_tokens_than_length),
        cmocka_unit_test(hand_index_scores),
        cmocka_unit_test(hand_sparse_attention),
        cmocka_unit_test(hand_slot_of_a_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
