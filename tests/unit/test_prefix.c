/*
 * Prefix reuse through the public API: what is taken over gives the bits of a cold run, in every
 * family and cache type; how much is taken over; rings of another slot full of NaN.
 */
#include "prefix_test.h"

/* ---------------------------------------------------------------- case 15 */

/* Under sanitizers: V4 and GLM. */
enum { DIR_STEP = TEST_IS_SANITIZED ? N_DIRS - 1 : 1 };

static void check_same_prompt(const char *dir, tamis_dtype dtype, test_rng *rng)
{
    const tamis_session_params p = params_of(dtype);
    test_engine e = test_engine_open(dir, &p);
    const int32_t limit = TEST_IS_SANITIZED ? 420 : limit_of(&e);
    const int32_t lengths[] = {1,   2,   127, 128, 129, 130, 255, 256,
                               257, 258, 384, 492, 512, 513, 640};
    int32_t ids[MAX_LEN];
    random_ids(rng, &e, ids, MAX_LEN);
    float *cold = test_logits_of(&e, ids, limit, 0);
    const size_t first = dtype == TAMIS_DTYPE_F32, step = TEST_IS_SANITIZED ? 6 : 2;
    for (size_t i = first; i < sizeof lengths / sizeof *lengths; i += step) {
        const int32_t n = lengths[i], chunk = (int32_t)test_rng_int(rng, 60, 700);
        int32_t n_reused;
        if (n + 20 > limit)
            break;
        tamis_session_drop_prefixes(e.session);
        leave(&e, ids, n, chunk);
        for (int round = 0; round < 2; round++) {
            const int32_t seq = match(&e, ids, n, &n_reused);
            assert_int_equal(n_reused, n - 1);
            if (has_rings(&e))
                assert_int_equal(tamis_seq_rollback_floor(e.session, seq), n - 1);
            assert_goes_on(&e, seq, ids, n - 1, n, 0, cold);
            keep(&e, seq); /* nothing new */
            assert_goes_on(&e, seq, ids, n, n + 20, round == 0 ? 1 : 0, cold);
            test_seq_drop(&e, seq);
        }
    }
    free(cold);
    test_engine_close(&e);
}

static void case_15_the_same_prompt_computes_its_last_token_only(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_15_same_prompt", 151);
    if (TEST_IS_TSAN) /* one thread */
        skip();
    for (int i = 0; i < (TEST_IS_SANITIZED ? 1 : N_DIRS); i++)
        check_same_prompt(dirs[i], TAMIS_DTYPE_BF16, &rng);
    for (int i = TEST_IS_SANITIZED ? N_DIRS - 1 : 0; i < N_DIRS; i++)
        check_same_prompt(dirs[i], TAMIS_DTYPE_F32, &rng);
}

/* What a prompt with d tokens in common may take over of one of n tokens. */
static int32_t expected_reuse(const test_engine *e, int32_t d)
{
    return has_rings(e) ? d / BLOCK * BLOCK : d;
}

static void check_common_prefix(const char *dir, tamis_dtype dtype, test_rng *rng)
{
    tamis_session_params p = params_of(dtype);
    p.max_snapshots = 40;
    test_engine e = test_engine_open(dir, &p);
    const int32_t common[] = {1, 100, 255, 256, 257, 300, 482, 511, 512, 513, 650};
    int32_t ids[MAX_LEN], other[MAX_LEN];
    random_ids(rng, &e, ids, MAX_LEN);
    leave(&e, ids, limit_of(&e), dtype == TAMIS_DTYPE_BF16 ? 0 : 100); /* boundaries in mid-step */
    for (size_t i = 0; i < sizeof common / sizeof *common; i += TEST_IS_SANITIZED ? 4 : 1) {
        const int32_t d = common[i], n = d + 30;
        int32_t n_reused;
        if (n > limit_of(&e))
            break;
        random_ids(rng, &e, other, MAX_LEN);
        memcpy(other, ids, (size_t)d * sizeof *ids);
        other[d] = (ids[d] + 1) % e.info->vocab_size;
        const int32_t seq = match(&e, other, n, &n_reused);
        assert_int_equal(n_reused, expected_reuse(&e, d));
        if (d == (has_rings(&e) ? 650 : 482)) /* the last; the sequence holds what it took over */
            tamis_session_drop_prefixes(e.session);
        float *cold = test_logits_of(&e, other, n, 0);
        assert_goes_on(&e, seq, other, n_reused, n, 0, cold);
        test_seq_drop(&e, seq);
        free(cold);
    }
    test_engine_close(&e);
}

static void case_15_a_common_prefix_costs_at_most_a_block(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_15_common_prefix", 152);
    if (TEST_IS_TSAN) /* one thread */
        skip();
    for (int i = 0; i < N_DIRS; i += DIR_STEP)
        check_common_prefix(dirs[i], i % 2 == 0 ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32, &rng);
}

static void case_15_a_prompt_of_2048_tokens(void **state)
{
    (void)state;
    enum { N = TEST_IS_SANITIZED ? 600 : 2048, MORE = 8 };
    test_rng rng = test_rng_start("case_15_2048", 153);
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, 4096);
    p.max_num_batched_tokens = 1024;
    p.max_num_logits = MORE;
    p.n_threads = 2;
    p.max_num_seqs = 2;
    p.prefix_caching = true;
    test_engine e = test_engine_open(TAMIS_SOURCE_DIR "/models/demo", &p);
    int32_t ids[N + MORE], n_reused;
    float *cold = calloc((size_t)MORE * (size_t)e.info->vocab_size, sizeof *cold);
    random_ids(&rng, &e, ids, N + MORE);
    const int32_t first = test_seq_new(&e);
    test_feed(&e, first, ids, N - 1, 1024, NULL);
    test_feed(&e, first, ids + N - 1, 1, 0, cold);
    keep(&e, first);
    test_feed(&e, first, ids + N, MORE - 1, 1, cold + e.info->vocab_size);
    test_seq_drop(&e, first);
    const int32_t second = match(&e, ids, N, &n_reused);
    assert_int_equal(n_reused, N - 1);
    float *seen = calloc((size_t)MORE * (size_t)e.info->vocab_size, sizeof *seen);
    test_feed(&e, second, ids + N - 1, MORE, 0, seen);
    test_assert_same_bits(seen, cold, MORE, e.info->vocab_size, "2048 tokens");
    ids[N - 49]++; /* 1,999 of 2,048: the last boundary before it is 1,792 */
    const int32_t third = match(&e, ids, N, &n_reused);
    assert_int_equal(n_reused, (N - 49) / BLOCK * BLOCK);
    test_seq_drop(&e, second);
    test_seq_drop(&e, third);
    free(cold);
    free(seen);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- case 16 */

static void case_16_rings_of_another_slot_full_of_nan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_16", 161);
    for (int k = TEST_IS_SANITIZED ? 3 : 0; k < 4; k++) {
        tamis_session_params p = params_of(k % 2 == 0 ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32);
        p.n_threads = 1 + k / 2;
        test_engine e = test_engine_open(dirs[k % 3], &p);
        int32_t ids[MAX_LEN], n_reused;
        random_ids(&rng, &e, ids, MAX_LEN);
        float *cold = test_logits_of(&e, ids, MAX_LEN, 0);
        leave(&e, ids, 700, 90);
        const int32_t in_slot_0 = test_seq_new(&e), seq = test_seq_new(&e);
        poison_slot(&e, seq);
        tamis_error err;
        test_must(tamis_seq_match(e.session, seq, ids, 700, &n_reused, &err), &err, "match");
        assert_int_equal(n_reused, 699);
        assert_goes_on(&e, seq, ids, 699, MAX_LEN, 3, cold);
        const int32_t copy = test_seq_fork(&e, seq);
        test_seq_rollback(&e, copy, MAX_LEN - 3);
        assert_goes_on(&e, copy, ids, MAX_LEN - 3, MAX_LEN, 0, cold);
        test_seq_drop(&e, copy);
        test_seq_drop(&e, in_slot_0);
        free(cold);
        test_engine_close(&e);
    }
}

/* ---------------------------------------------------------------- case 17 */

/* Kept at every length of a short sequence, also after going on and coming back. */
static void case_17_keep_and_go_on_at_every_length(void **state)
{
    (void)state;
    enum { N = 21 };
    test_rng rng = test_rng_start("case_17", 171);
    const char *const models[] = {V4_DIR, GLM_DIR};
    for (int m = 0; m < 2; m++) {
        const tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
        test_engine e = test_engine_open(models[m], &p);
        int32_t ids[MAX_LEN], n_reused;
        random_ids(&rng, &e, ids, N);
        float *cold = test_logits_of(&e, ids, N, 0);
        for (int32_t at = 1; at <= N; at++) {
            for (int32_t back = 0; back <= 8 && at + back <= N; back += TEST_IS_SANITIZED ? 8 : 4) {
                tamis_session_drop_prefixes(e.session);
                const int32_t seq = test_seq_new(&e);
                test_feed(&e, seq, ids, at, 0, NULL);
                test_feed(&e, seq, ids, back, 0, NULL); /* other tokens, taken back */
                test_seq_rollback(&e, seq, at);
                keep(&e, seq);
                test_seq_drop(&e, seq);
                const int32_t again = match(&e, ids, N, &n_reused);
                assert_int_equal(n_reused, at == N || has_rings(&e) ? at - 1 : at);
                assert_goes_on(&e, again, ids, n_reused, N, 2, cold);
                test_seq_drop(&e, again);
            }
        }
        free(cold);
        test_engine_close(&e);
    }
}

/* Where the rings do not reach back to the last token, the end itself is kept. */
static void the_end_itself_is_kept_if_the_rings_begin_there(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_end_itself", 172);
    const tamis_session_params p = params_of(TAMIS_DTYPE_F32);
    test_engine e = test_engine_open(V4_DIR, &p);
    int32_t ids[MAX_LEN], n_reused;
    random_ids(&rng, &e, ids, 320);
    float *cold = test_logits_of(&e, ids, 320, 0);
    tamis_session_drop_prefixes(e.session);
    leave(&e, ids, 300, 0);
    const int32_t seq = match(&e, ids, 300, &n_reused); /* at 299, where its rings begin */
    keep(&e, seq);
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_snapshots, 2); /* 256 and 299 */
    test_seq_drop(&e, seq);
    tamis_error err;
    const int32_t other = match(&e, ids, 320, &n_reused);
    assert_int_equal(n_reused, 299);
    assert_int_equal(tamis_seq_rollback(e.session, other, 298, &err), TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "allowed 299..299 and 0"));
    assert_goes_on(&e, other, ids, 299, 320, 0, cold);
    test_seq_rollback(&e, other, 0);
    assert_int_equal(tamis_seq_rollback_floor(e.session, other), 0);
    test_must(tamis_seq_match(e.session, other, ids, 20, &n_reused, &err), &err, "match again");
    assert_int_equal(n_reused, 0); /* no snapshot that early */
    assert_goes_on(&e, other, ids, 0, 320, 77, cold);
    test_seq_drop(&e, other);
    free(cold);
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_15_the_same_prompt_computes_its_last_token_only),
        cmocka_unit_test(case_15_a_common_prefix_costs_at_most_a_block),
        cmocka_unit_test(case_15_a_prompt_of_2048_tokens),
        cmocka_unit_test(case_16_rings_of_another_slot_full_of_nan),
        cmocka_unit_test(case_17_keep_and_go_on_at_every_length),
        cmocka_unit_test(the_end_itself_is_kept_if_the_rings_begin_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
