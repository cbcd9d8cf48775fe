/*
 * Rolling back by every amount up to the limit and going on, with the same tokens or with others,
 * gives the bits of a straight run; below the limit, which only V4 has, it is refused and nothing
 * changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"

enum { LEN = 300 };

static float *take_rows(int32_t n, int32_t vocab)
{
    float *rows = calloc((size_t)n * (size_t)vocab + 1, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* From length len: back by 1, 2, ... to the floor (without rings: to the limit that rings would
 * have), each time replayed up to len again. */
static void check_replays(test_engine *engine, const int32_t *ids, const float *straight,
                          int32_t len, int32_t max_rollback, const char *where)
{
    const int32_t vocab = engine->info->vocab_size, seq = test_seq_new(engine);
    test_feed(engine, seq, ids, len, 0, NULL);
    const int32_t floor = tamis_seq_rollback_floor(engine->session, seq);
    const int32_t limit = len > max_rollback ? len - max_rollback : 0;
    const int32_t most = len - (test_has_rings(engine) ? floor : limit);
    assert_true(test_has_rings(engine) ? floor <= limit : floor == 0);
    const int32_t n_after = LEN - len < 10 ? LEN - len : 10;
    float *seen = take_rows(most > n_after ? most : n_after, vocab);
    for (int32_t back = 1; back <= most; back++) {
        test_seq_rollback(engine, seq, len - back);
        assert_int_equal(tamis_seq_rollback_floor(engine->session, seq), floor);
        test_feed(engine, seq, ids + len - back, back, back % 3 == 0 ? 0 : back % 3, seen);
        test_assert_same_bits(seen, straight + (int64_t)(len - back) * vocab, back, vocab, where);
    }
    /* and on from there */
    test_feed(engine, seq, ids + len, n_after, 1, seen);
    test_assert_same_bits(seen, straight + (int64_t)len * vocab, n_after, vocab, where);
    free(seen);
    test_seq_drop(engine, seq);
}

/* The last `back` tokens are taken back and replaced: what speculative decoding will do. */
static void check_other_tokens(test_engine *engine, const int32_t *ids, const int32_t *others,
                               int32_t len, int32_t back, const char *where)
{
    const int32_t vocab = engine->info->vocab_size, n = back + 5;
    int32_t *clean = malloc((size_t)(len + 5) * sizeof *clean);
    assert_non_null(clean);
    memcpy(clean, ids, (size_t)(len - back) * sizeof *clean);
    memcpy(clean + len - back, others, (size_t)n * sizeof *clean);
    float *expected = test_logits_of(engine, clean, len + 5, 0), *seen = take_rows(n, vocab);
    const int32_t seq = test_seq_new(engine);
    test_feed(engine, seq, ids, len - back, 0, NULL);
    test_feed(engine, seq, ids + len - back, back, 1, NULL);
    test_seq_rollback(engine, seq, len - back);
    test_feed(engine, seq, others, n, 1, seen);
    test_assert_same_bits(seen, expected + (int64_t)(len - back) * vocab, n, vocab, where);
    test_seq_drop(engine, seq);
    free(seen);
    free(expected);
    free(clean);
}

static void check_refusals(test_engine *engine, const int32_t *ids, const float *straight,
                           const char *where)
{
    const int32_t vocab = engine->info->vocab_size, seq = test_seq_new(engine), len = 257;
    tamis_error err;
    test_feed(engine, seq, ids, len, 0, NULL);
    const int32_t floor = tamis_seq_rollback_floor(engine->session, seq);
    assert_int_equal(tamis_seq_rollback(engine->session, seq, len + 1, &err), TAMIS_STATUS_INVALID);
    if (floor > 1)
        assert_int_equal(tamis_seq_rollback(engine->session, seq, floor - 1, &err),
                         TAMIS_STATUS_LIMIT);
    assert_int_equal(tamis_seq_len(engine->session, seq), len);
    float *seen = take_rows(len, vocab);
    test_feed(engine, seq, ids + len, 3, 1, seen); /* nothing changed */
    test_assert_same_bits(seen, straight + (int64_t)len * vocab, 3, vocab, where);
    test_seq_rollback(engine, seq, 0); /* always allowed */
    test_feed(engine, seq, ids, len, 0, seen);
    test_assert_same_bits(seen, straight, len, vocab, where);
    free(seen);
    test_seq_drop(engine, seq);
}

static void check_rollback(const char *dir, tamis_dtype dtype, int32_t max_rollback,
                           const int32_t *lengths, int n_lengths)
{
    int32_t *ids = test_prompt(dir);
    tamis_session_params params = test_session_params(dtype, LEN);
    params.max_rollback = max_rollback;
    test_engine engine = test_engine_open(dir, &params);
    int32_t *others = test_shifted(ids, 64, 31, engine.info->vocab_size);
    float *straight = test_logits_of(&engine, ids, LEN, 0);
    const char *where = test_where(dir, dtype, "max_rollback", max_rollback);
    for (int i = 0; i < n_lengths; i++) {
        check_replays(&engine, ids, straight, lengths[i], max_rollback, where);
        const int32_t most = lengths[i] < max_rollback ? lengths[i] : max_rollback;
        check_other_tokens(&engine, ids, others, lengths[i], most, where);
        check_other_tokens(&engine, ids, others, lengths[i], 1 + i % most, where);
    }
    check_refusals(&engine, ids, straight, where);
    free(straight);
    free(others);
    test_engine_close(&engine);
    free(ids);
}

static void check_default_limit(const char *dir, tamis_dtype dtype)
{
    /* around closings of ratio 4 and 128, inside the window, at a block border, and long after */
    static const int32_t lengths[] = {9, 128, 290, 127, 131, 256};
    check_rollback(dir, dtype, 8, lengths, TEST_IS_SANITIZED ? 3 : 6);
}
static void test_rollback_8(void **state)
{
    (void)state;
    test_every_folder(check_default_limit);
}

static void check_larger_limit(const char *dir, tamis_dtype dtype)
{
    static const int32_t lengths[] = {129, 40, 257};
    check_rollback(dir, dtype, 20, lengths, TEST_IS_SANITIZED ? 1 : 3);
}
static void test_rollback_20(void **state)
{
    (void)state;
    test_every_folder(check_larger_limit);
}

/* One sequence goes back to `to`, on with other tokens, back again and forth to LEN. */
static void check_way(test_engine *engine, int32_t seq, const int32_t *ids, const int32_t *others,
                      const float *straight, int32_t to, const char *where)
{
    enum { N_OTHERS = 5 };
    const int32_t vocab = engine->info->vocab_size;
    int32_t *clean = malloc((size_t)(to + N_OTHERS) * sizeof *clean);
    assert_non_null(clean);
    memcpy(clean, ids, (size_t)to * sizeof *clean);
    memcpy(clean + to, others, N_OTHERS * sizeof *clean);
    float *expected = test_logits_of(engine, clean, to + N_OTHERS, 0),
          *seen = take_rows(LEN, vocab);
    assert_int_equal(tamis_seq_rollback_floor(engine->session, seq), 0);
    test_seq_rollback(engine, seq, to);
    test_feed(engine, seq, others, N_OTHERS, 2, seen);
    test_assert_same_bits(seen, expected + (int64_t)to * vocab, N_OTHERS, vocab, where);
    test_seq_rollback(engine, seq, to);
    test_feed(engine, seq, ids + to, LEN - to, 50, seen);
    test_assert_same_bits(seen, straight + (int64_t)to * vocab, LEN - to, vocab, where);
    free(seen);
    free(expected);
    free(clean);
}

/* Families without rings go back to any length, at once and over many blocks. */
static void check_deep(const char *dir, tamis_dtype dtype)
{
    static const int32_t lengths[] = {3, 290, 129, 128, 0, 127, 1, 260, 17, 16, 200};
    tamis_session_params params = test_session_params(dtype, LEN + 5);
    params.max_num_seqs = 2;
    params.block_tokens = 128;
    test_engine engine = test_engine_open(dir, &params);
    if (!test_has_rings(&engine)) {
        int32_t *ids = test_prompt(dir);
        int32_t *others = test_shifted(ids, 64, 31, engine.info->vocab_size);
        float *straight = test_logits_of(&engine, ids, LEN, 0);
        const int32_t seq = test_seq_new(&engine);
        test_feed(&engine, seq, ids, LEN, 0, NULL);
        for (size_t i = 0; i < (TEST_IS_SANITIZED ? 4 : sizeof lengths / sizeof *lengths); i++)
            check_way(&engine, seq, ids, others, straight, lengths[i],
                      test_where(dir, dtype, "back to", lengths[i]));
        free(straight);
        free(others);
        free(ids);
    }
    test_engine_close(&engine);
}
static void test_rollback_to_any_length(void **state)
{
    (void)state;
    test_every_folder(check_deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollback_8),
        cmocka_unit_test(test_rollback_20),
        cmocka_unit_test(test_rollback_to_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
