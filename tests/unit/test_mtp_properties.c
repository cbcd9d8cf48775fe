/*
 * The MTP block gives the same bits for any cut of a text, any batch, any number of threads, on
 * every CPU level, wherever its rows lie, and after rejected tokens; it changes nothing in the main
 * model. Folders of the three families that have one, both cache types.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/mtp_run.h"
#include "support/property.h"
#include "support/rng.h"

#include <stdlib.h>

#define N_SEQS 3

enum {
    N_FURTHER = 2,
    MAX_STEP = 48, /* tokens of a step: all rows of the block are looked at */
    BLOCK = 128,
    N_TOKENS = TEST_IS_SANITIZED ? 34 : 140,
};

static const char *const folders[] = {"tests/golden/glm52-fp8", "tests/golden/v4-flash-fp8",
                                      "tests/golden/v32-fp8"};

static tamis_session_params mtp_params(tamis_dtype dtype)
{
    tamis_session_params params = test_mtp_params(dtype, 200, MAX_STEP);
    params.max_num_batched_tokens = MAX_STEP;
    params.num_blocks = 2 * (N_SEQS + 1) + 1;
    params.block_tokens = BLOCK;
    return params;
}

static void every_folder(void (*body)(const char *dir, tamis_dtype dtype))
{
    for (int i = 0; i < (TEST_IS_SANITIZED ? 2 : 3); i++)
        for (int d = 0; d < TEST_N_KV_DTYPES; d++)
            if (!TEST_IS_SANITIZED || i == d)
                body(folders[i], test_kv_dtypes[d]);
}

static float *take(int64_t n)
{
    float *values = calloc((size_t)n + 1, sizeof *values);
    if (values == NULL)
        fail_msg("out of memory");
    return values;
}

/* ---------------------------------------------------------------- one sequence alone */

/* From what the last call left: the logits of further positions, each with the draft before. */
static void go_on(test_engine *engine, int32_t seq, int32_t len, const float *last, float *out)
{
    const int32_t vocab = engine->info->vocab_size;
    for (int32_t i = 0; i < N_FURTHER; i++, last = out, out += vocab) {
        const int32_t next = test_argmax(last, vocab), seq_len = len + 1 + i;
        test_mtp_go_on(engine, &seq, &seq_len, &next, 1, NULL, 0, out);
    }
}

/* n positions over steps, the last one a step of its own, then further ones: [n + 2][vocab]. */
static float *run_alone(test_engine *engine, const int32_t *ids, int32_t n, int32_t chunk)
{
    const int64_t vocab = engine->info->vocab_size;
    float *logits = take((n + N_FURTHER) * vocab);
    const int32_t seq = test_seq_new(engine);
    test_mtp_feed(engine, seq, ids, n - 1, chunk, logits);
    test_mtp_feed(engine, seq, ids + n - 1, 1, 1, logits + (n - 1) * vocab);
    go_on(engine, seq, n, logits + (n - 1) * vocab, logits + n * vocab);
    test_seq_drop(engine, seq);
    return logits;
}

static void expect_alone(test_engine *engine, const int32_t *ids, int32_t chunk,
                         const float *expected, const char *where)
{
    float *seen = run_alone(engine, ids, N_TOKENS, chunk);
    test_assert_same_bits(seen, expected, N_TOKENS + N_FURTHER, engine->info->vocab_size, where);
    free(seen);
}

/* ---------------------------------------------------------------- cuts, threads, levels, blocks */

static void check_alone(const char *dir, tamis_dtype dtype)
{
    const int32_t chunks[] = {5, 1, 33};
    const tamis_cpu_level level = tamis_cpu_level_current();
    tamis_session_params params = mtp_params(dtype);
    int32_t *ids = test_prompt(dir);
    test_engine engine = test_engine_open(dir, &params);
    float *expected = run_alone(&engine, ids, N_TOKENS, MAX_STEP);
    for (int i = 0; i < (TEST_IS_SANITIZED ? 1 : 3); i++)
        expect_alone(&engine, ids, chunks[i], expected,
                     test_where(dir, dtype, "MTP block, chunks of", chunks[i]));
    for (int l = 0; l < (TEST_IS_SANITIZED ? 0 : (int)level); l++) {
        assert_int_equal(tamis_cpu_level_set((tamis_cpu_level)l), TAMIS_STATUS_OK);
        expect_alone(&engine, ids, 33, expected, test_where(dir, dtype, "MTP block, level", l));
    }
    assert_int_equal(tamis_cpu_level_set(level), TAMIS_STATUS_OK);
    params.n_threads = 3;
    params.block_order_seed = 9;
    test_engine other = test_engine_share(&engine, &params);
    expect_alone(&other, ids, 33, expected,
                 test_where(dir, dtype, "MTP block, shuffled blocks and threads", 3));
    test_engine_close(&other);
    test_engine_close(&engine);
    free(expected);
    free(ids);
}

static void test_alone(void **state)
{
    (void)state;
    every_folder(check_alone);
}

/* ---------------------------------------------------------------- batches */

typedef struct mix {
    test_track tracks[N_SEQS];
    int32_t *ids[N_SEQS];
    float *seen[N_SEQS]; /* [n + 2][vocab] of the block */
} mix;

/* One step over all of them with the block behind it; rows land where they belong. */
static void mixed_step(test_engine *engine, mix *m, const int32_t *counts)
{
    const int64_t vocab = engine->info->vocab_size;
    test_track *order[N_SEQS];
    int32_t next[MAX_STEP], n = 0, first[N_SEQS];
    float *logits = take(MAX_STEP * vocab);
    for (int i = 0; i < N_SEQS; i++) {
        order[i] = &m->tracks[i];
        first[i] = m->tracks[i].fed;
        for (int32_t t = 0; t < counts[i]; t++)
            next[n++] = m->ids[i][first[i] + t + 1];
    }
    test_step(engine, order, counts, N_SEQS);
    test_mtp_over_step(engine, next, n, NULL, 0, logits);
    n = 0;
    for (int i = 0; i < N_SEQS; i++) {
        memcpy(m->seen[i] + first[i] * vocab, logits + n * vocab,
               (size_t)(counts[i] * vocab) * sizeof *logits);
        n += counts[i];
    }
    free(logits);
}

/* One position more of some of the sequences, of which rows [n_rows] go on after that. */
static void go_on_together(test_engine *engine, mix *m, const int32_t *which, int32_t n, int32_t k,
                           const int32_t *rows, int32_t n_rows)
{
    const int64_t vocab = engine->info->vocab_size;
    int32_t seqs[N_SEQS], lens[N_SEQS], next[N_SEQS];
    float *logits = take(N_SEQS * vocab);
    for (int32_t i = 0; i < n; i++) {
        const test_track *track = &m->tracks[which[i]];
        seqs[i] = track->seq;
        lens[i] = track->n + 1 + k;
        next[i] = test_argmax(m->seen[which[i]] + (lens[i] - 2) * vocab, (int32_t)vocab);
    }
    test_mtp_go_on(engine, seqs, lens, next, n, rows, n_rows, logits);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(m->seen[which[rows[i]]] + (lens[rows[i]] - 1) * vocab, logits + i * vocab,
               (size_t)vocab * sizeof *logits);
    free(logits);
}

/* The last token of every sequence in one step, then further ones together; the one in the middle
 * stops early, and what it would have had is not compared. */
static void finish_together(test_engine *engine, mix *m)
{
    const int32_t one[N_SEQS] = {1, 1, 1}, all[N_SEQS] = {0, 1, 2}, outer[2] = {0, 2};
    mixed_step(engine, m, one);
    go_on_together(engine, m, all, N_SEQS, 0, outer, 2);
    go_on_together(engine, m, outer, 2, 1, all, 2);
}

static test_rng rng;

static void check_batch(const char *dir, tamis_dtype dtype)
{
    const tamis_session_params params = mtp_params(dtype);
    test_engine engine = test_engine_open(dir, &params);
    const int32_t vocab = engine.info->vocab_size;
    int32_t *ids = test_prompt(dir);
    mix m;
    for (int i = 0; i < N_SEQS; i++) {
        const int32_t n = N_TOKENS - 4 * i;
        m.ids[i] = test_shifted(ids, n + 1, 3 * i, vocab);
        m.tracks[i] = test_track_open(&engine, m.ids[i], n);
        m.seen[i] = take((int64_t)(n + N_FURTHER) * vocab);
    }
    for (bool is_done = false; !is_done;) {
        int32_t counts[N_SEQS], sum = 0;
        is_done = true;
        for (int i = 0; i < N_SEQS; i++) {
            const int32_t left = m.tracks[i].n - 1 - m.tracks[i].fed;
            counts[i] = (int32_t)test_rng_int(&rng, 0, left < 16 ? left : 16);
            is_done = is_done && left == counts[i];
            sum += counts[i];
        }
        if (sum > 0)
            mixed_step(&engine, &m, counts);
    }
    finish_together(&engine, &m);
    for (int i = 0; i < N_SEQS; i++) {
        float *alone = run_alone(&engine, m.ids[i], m.tracks[i].n, MAX_STEP);
        test_assert_same_bits(m.seen[i], alone, m.tracks[i].n + (i == 1 ? 0 : N_FURTHER), vocab,
                              test_where(dir, dtype, "MTP block in a batch, sequence", i));
        test_track_close(&engine, &m.tracks[i]);
        free(alone);
        free(m.ids[i]);
        free(m.seen[i]);
    }
    test_engine_close(&engine);
    free(ids);
}

static void test_batch(void **state)
{
    (void)state;
    rng = test_rng_start("MTP batches", 17);
    every_folder(check_batch);
}

/* ---------------------------------------------------------------- rejected tokens */

/* A step of one right token and k drafts of which `right` are, the block behind it and on from
 * there, as a drafter does; then the sequence goes back. */
static void reject(test_engine *engine, int32_t seq, const int32_t *ids, int32_t at, int32_t k,
                   int32_t right)
{
    const int32_t vocab = engine->info->vocab_size;
    int32_t fed[8], next[8];
    float *logits = take((int64_t)(1 + N_FURTHER) * vocab);
    for (int32_t i = 0; i <= k; i++) {
        fed[i] = i <= right ? ids[at + i] : (ids[at + i] + 1) % vocab;
        next[i] = i <= right ? ids[at + i + 1] : 0;
    }
    test_feed(engine, seq, fed, 1 + k, 0, NULL);
    test_mtp_over_step(engine, next, 1 + k, &right, 1, logits);
    test_seq_rollback(engine, seq, at + 1 + right);
    if ((at + right + N_FURTHER) / BLOCK == (at + right) / BLOCK) /* the block is still there */
        go_on(engine, seq, at + 1 + right, logits, logits + vocab);
    free(logits);
}

static void check_rejection(const char *dir, tamis_dtype dtype)
{
    const tamis_session_params params = mtp_params(dtype);
    test_engine engine = test_engine_open(dir, &params);
    const int64_t vocab = engine.info->vocab_size;
    int32_t *ids = test_prompt(dir);
    float *expected = run_alone(&engine, ids, N_TOKENS, MAX_STEP), *seen = take(N_TOKENS * vocab);
    const int32_t seq = test_seq_new(&engine), k = 3;
    int32_t at = N_TOKENS / 3;
    test_mtp_feed(&engine, seq, ids, at, MAX_STEP, seen);
    for (int32_t right = 0; at + k + 3 < N_TOKENS; right = (right + 1) % (k + 1)) {
        reject(&engine, seq, ids, at, k, right);
        at += 1 + right;
        /* The next two positions are as if nothing had been tried. */
        test_mtp_feed(&engine, seq, ids + at, 2, 0, seen);
        test_assert_same_bits(
            seen, expected + at * vocab, 2, vocab,
            test_where(dir, dtype, "MTP block after rejected tokens, position", at));
        at += 2;
    }
    test_seq_drop(&engine, seq);
    free(expected);
    free(seen);
    free(ids);
    test_engine_close(&engine);
}

static void test_rejection(void **state)
{
    (void)state;
    every_folder(check_rejection);
}

/* ---------------------------------------------------------------- the main model */

static void check_main_model(const char *dir, tamis_dtype dtype)
{
    tamis_session_params params = mtp_params(dtype);
    test_engine with = test_engine_open(dir, &params);
    params.mtp = false;
    test_engine without = test_engine_share(&with, &params);
    const int32_t vocab = with.info->vocab_size;
    int32_t *ids = test_prompt(dir);
    float *expected = test_logits_of(&without, ids, N_TOKENS, 20);
    float *seen = take((int64_t)N_TOKENS * vocab), *draft = take(20 * (int64_t)vocab);
    const int32_t seq = test_seq_new(&with);
    for (int32_t t = 0; t < N_TOKENS; t += 20) {
        const int32_t n = N_TOKENS - t < 20 ? N_TOKENS - t : 20, last = n - 1;
        test_feed(&with, seq, ids + t, n, 0, seen + (int64_t)t * vocab);
        test_mtp_over_step(&with, ids + t + 1, n, &last, 1, draft);
        go_on(&with, seq, t + n, draft, draft + vocab);
    }
    test_assert_same_bits(seen, expected, N_TOKENS, vocab,
                          test_where(dir, dtype, "main model beside its MTP block", 0));
    test_engine_close(&without);
    test_engine_close(&with);
    free(expected);
    free(seen);
    free(draft);
    free(ids);
}

static void test_main_model(void **state)
{
    (void)state;
    every_folder(check_main_model);
    assert_int_equal(tamis_num_allocs_in_run(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_rejection),
        cmocka_unit_test(test_main_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
