/* Sequences of random rows: they step, the seed decides, and what cannot be filled is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "tamis/bench.h"

enum { DEPTH = 200, N_TOKENS = 5, MAX_VOCAB = 4096 };

static const char *const folders[] = {"models/demo", "tests/golden/v4-flash-fp8",
                                      "tests/golden/v32-fp8", "tests/golden/glm52-fp8"};

static const int32_t ids[N_TOKENS] = {5, 9, 2, 30, 11};

/* Logits of tokens behind DEPTH random rows, fed in steps of `chunk`. */
static void run_behind(test_engine *e, uint64_t seed, int32_t chunk, float *logits)
{
    tamis_error err = {0};
    const int32_t seq = test_seq_new(e);
    test_must(tamis_seq_fill_random(e->session, seq, DEPTH, seed, &err), &err, "fill_random");
    assert_int_equal(tamis_seq_len(e->session, seq), DEPTH);
    test_feed(e, seq, ids, N_TOKENS, chunk, logits);
    assert_int_equal(tamis_seq_len(e->session, seq), DEPTH + N_TOKENS);
    test_seq_drop(e, seq);
}

static bool are_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(x[i] > -1e30f && x[i] < 1e30f))
            return false;
    return true;
}

static void test_steps_behind_random_rows(void **state)
{
    (void)state;
    static float a[N_TOKENS * MAX_VOCAB], b[N_TOKENS * MAX_VOCAB];
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (int profile = 0; profile < TAMIS_NUM_PROFILES; profile++) {
            const tamis_session_params p = test_session_params(TAMIS_DTYPE_AUTO, DEPTH + N_TOKENS);
            if (f >= 2 && profile != TAMIS_PROFILE_EXACT)
                continue; /* their index_head_dim is no power of two */
            test_engine e = test_engine_open_as(folders[f], (tamis_profile)profile, &p);
            const size_t n = (size_t)e.info->vocab_size * N_TOKENS;
            assert_true(n <= N_TOKENS * MAX_VOCAB);
            run_behind(&e, 1, 0, a);
            assert_true(are_finite(a, n));
            run_behind(&e, 1, 1, b); /* the same rows, token by token: the same bits */
            assert_memory_equal(a, b, n * sizeof *a);
            run_behind(&e, 2, 0, b);
            assert_memory_not_equal(a, b, n * sizeof *a);
            test_engine_close(&e);
        }
}

/* A copy goes on from the same rows, as tamis bench model has it. */
static void test_forks(void **state)
{
    (void)state;
    static float a[N_TOKENS * MAX_VOCAB], b[N_TOKENS * MAX_VOCAB];
    tamis_session_params p = test_session_params(TAMIS_DTYPE_AUTO, DEPTH + N_TOKENS);
    tamis_error err = {0};
    p.max_num_seqs = 2;
    test_engine e = test_engine_open(folders[0], &p);
    const int32_t base = test_seq_new(&e);
    test_must(tamis_seq_fill_random(e.session, base, DEPTH, 7, &err), &err, "fill_random");
    for (int i = 0; i < 2; i++) {
        const int32_t seq = test_seq_fork(&e, base);
        test_feed(&e, seq, ids, N_TOKENS, 0, i == 0 ? a : b);
        test_seq_drop(&e, seq);
    }
    assert_memory_equal(a, b, (size_t)e.info->vocab_size * N_TOKENS * sizeof *a);
    test_engine_close(&e);
}

static void test_refusals(void **state)
{
    (void)state;
    tamis_session_params p = test_session_params(TAMIS_DTYPE_AUTO, 2048);
    tamis_error err = {0};
    p.num_blocks = 3;
    p.block_tokens = 256;
    p.max_num_seqs = 2;
    test_engine e = test_engine_open(folders[0], &p);
    const int32_t seq = test_seq_new(&e), other = test_seq_new(&e);
    assert_int_equal(tamis_seq_fill_random(NULL, seq, 1, 1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_fill_random(e.session, 99, 1, 1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_fill_random(e.session, seq, -1, 1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_fill_random(e.session, seq, 2049, 1, &err), TAMIS_STATUS_LIMIT);
    assert_int_equal(tamis_seq_fill_random(e.session, seq, 1000, 1, &err), TAMIS_STATUS_NO_BLOCKS);
    assert_int_equal(tamis_seq_len(e.session, seq), 0);
    /* nothing was kept by that: both blocks are there for another */
    test_must(tamis_seq_fill_random(e.session, other, 512, 1, &err), &err, "fill_random");
    assert_int_equal(tamis_seq_fill_random(e.session, other, 1, 1, &err), TAMIS_STATUS_STATE);
    assert_non_null(strstr(err.text, "has 512 tokens, must be empty"));
    test_must(tamis_seq_fill_random(e.session, seq, 0, 1, &err), &err, "no rows");
    assert_int_equal(tamis_seq_len(e.session, seq), 0);
    test_engine_close(&e);
    p.prefix_caching = true;
    e = test_engine_open(folders[0], &p);
    assert_int_equal(tamis_seq_fill_random(e.session, test_seq_new(&e), 1, 1, &err),
                     TAMIS_STATUS_INVALID);
    test_engine_close(&e);
}

/* Two steps of a prompt have the operations of one, less the shared reading of weights. */
static void test_work_adds_up(void **state)
{
    (void)state;
    const tamis_roof roof = {1, 100, 200, 10, 5};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        tamis_model *model = NULL;
        tamis_model_work whole, first, second;
        tamis_error err = {0};
        test_must(tamis_model_open(&model, folders[f], &err), &err, folders[f]);
        test_must(tamis_model_count_work(model, 100, 60, 1, &roof, &whole, &err), &err, "work");
        test_must(tamis_model_count_work(model, 100, 20, 0, &roof, &first, &err), &err, "work");
        test_must(tamis_model_count_work(model, 120, 40, 1, &roof, &second, &err), &err, "work");
        const double ops = first.f32_ops + second.f32_ops;
        assert_true(whole.f32_ops > 0.999999 * ops && whole.f32_ops < 1.000001 * ops);
        assert_true(whole.bytes > second.bytes && whole.bytes < first.bytes + second.bytes);
        assert_true(whole.floor_ms <= 1.000001 * (first.floor_ms + second.floor_ms));
        tamis_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_behind_random_rows),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_work_adds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
