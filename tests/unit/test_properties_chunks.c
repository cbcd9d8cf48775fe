/* Any cut of a prompt into steps, down to one token at a time, gives the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"
#include "support/rng.h"

enum { LEN = 300 };

static void check_chunks(const char *dir, tamis_dtype dtype, const int32_t *chunks, int n_chunks)
{
    int32_t *ids = test_prompt(dir);
    const tamis_session_params params = test_session_params(dtype, LEN);
    test_engine engine = test_engine_open(dir, &params);
    const int32_t vocab = engine.info->vocab_size;
    float *whole = test_logits_of(&engine, ids, LEN, 0);
    for (int i = 0; i < n_chunks; i++) {
        float *seen = test_logits_of(&engine, ids, LEN, chunks[i]);
        test_assert_same_bits(seen, whole, LEN, vocab, test_where(dir, dtype, "chunk", chunks[i]));
        free(seen);
    }
    free(whole);
    test_engine_close(&engine);
    free(ids);
}

static void check_single_tokens(const char *dir, tamis_dtype dtype)
{
    const int32_t chunks[] = {1};
    check_chunks(dir, dtype, chunks, 1);
}
static void test_decode_equals_prefill(void **state)
{
    (void)state;
    test_every_folder(check_single_tokens);
}

static void check_many_tokens(const char *dir, tamis_dtype dtype)
{
    const int32_t chunks[] = {3, 64, 2, 7, 129};
    check_chunks(dir, dtype, chunks, TEST_IS_SANITIZED ? 2 : 5);
}
static void test_chunk_sizes(void **state)
{
    (void)state;
    test_every_folder(check_many_tokens);
}

/* The demo model is wider: every lane is full and topk is 64. */
static void test_demo_chunks(void **state)
{
    (void)state;
    const int32_t chunks[] = {7, 129};
    for (int d = TEST_IS_SANITIZED; d < TEST_N_KV_DTYPES; d++)
        check_chunks("models/demo", test_kv_dtypes[d], chunks, TEST_IS_SANITIZED ? 1 : 2);
}

static test_rng rng;

static void check_random_cut(const char *dir, tamis_dtype dtype)
{
    int32_t *ids = test_prompt(dir);
    const tamis_session_params params = test_session_params(dtype, LEN);
    test_engine engine = test_engine_open(dir, &params);
    float *whole = test_logits_of(&engine, ids, LEN, 0);
    test_track track = test_track_open(&engine, ids, LEN), *tracks[] = {&track};
    while (track.fed < LEN) {
        /* mostly small steps, now and then a long one, sometimes an empty one */
        const int64_t longest = test_rng_int(&rng, 0, 3) == 0 ? 90 : 9;
        int32_t count = (int32_t)test_rng_int(&rng, 0, longest);
        count = count < LEN - track.fed ? count : LEN - track.fed;
        test_step(&engine, tracks, &count, 1);
    }
    test_assert_same_bits(track.logits, whole, LEN, engine.info->vocab_size,
                          test_where(dir, dtype, "random cut of", LEN));
    test_track_close(&engine, &track);
    free(whole);
    test_engine_close(&engine);
    free(ids);
}

static void test_random_cuts(void **state)
{
    (void)state;
    rng = test_rng_start("random cuts", 20250101);
    test_every_folder(check_random_cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_equals_prefill),
        cmocka_unit_test(test_chunk_sizes),
        cmocka_unit_test(test_demo_chunks),
        cmocka_unit_test(test_random_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
