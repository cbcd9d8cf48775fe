/*
 * The MTP block of GLM in profiles official and ascend: the same bits for any cut of a text, any
 * number of threads and any blocks, further drafts included; and another block than profile
 * exact's, though near it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/mtp_run.h"
#include "support/property.h"

#include <math.h>

enum { MAX_STEP = 48, N = TEST_IS_SANITIZED ? 34 : 120, N_FURTHER = 3 };
/* Positions before random weights let a rounding choose another expert or row. */
enum { N_NEAR = 5 };

static const char *const dir = "tests/golden/glm52-fp8";

static tamis_session_params params_of(tamis_dtype dtype)
{
    tamis_session_params params = test_mtp_params(dtype, 200, MAX_STEP);
    params.max_num_batched_tokens = MAX_STEP;
    params.block_tokens = 128;
    params.num_blocks = 7;
    return params;
}

static void open_as(test_engine *engine, tamis_profile profile, const tamis_session_params *params)
{
    tamis_model_params model = tamis_model_params_default();
    tamis_error err;
    *engine = (test_engine){0};
    model.profile = profile;
    test_must(tamis_model_open_with(&engine->model, dir, &model, &err), &err, dir);
    *engine = test_engine_share(engine, params);
    engine->owns_model = true;
}

/* N positions of the block in steps of `chunk`, the last one by itself, then drafts of drafts. */
static float *run_block(test_engine *engine, const int32_t *ids, int32_t chunk)
{
    const int64_t vocab = engine->info->vocab_size;
    float *logits = calloc((size_t)((N + N_FURTHER) * vocab), sizeof *logits);
    assert_non_null(logits);
    const int32_t seq = test_seq_new(engine);
    test_mtp_feed(engine, seq, ids, N - 1, chunk, logits);
    test_mtp_feed(engine, seq, ids + N - 1, 1, 1, logits + (N - 1) * vocab);
    for (int32_t i = 0; i < N_FURTHER; i++) {
        const int32_t len = N + 1 + i;
        const int32_t next = test_argmax(logits + (N - 1 + i) * vocab, (int32_t)vocab);
        test_mtp_go_on(engine, &seq, &len, &next, 1, NULL, 0, logits + (N + i) * vocab);
    }
    test_seq_drop(engine, seq);
    return logits;
}

static void check_cut(test_engine *engine, const int32_t *ids, int32_t chunk, const float *expected,
                      const char *what)
{
    float *seen = run_block(engine, ids, chunk);
    test_assert_same_bits(seen, expected, N + N_FURTHER, engine->info->vocab_size, what);
    free(seen);
}

static double size_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void check_profile(tamis_profile profile, tamis_dtype dtype, const int32_t *ids,
                          const float *exact)
{
    tamis_session_params params = params_of(dtype);
    test_engine engine, other;
    open_as(&engine, profile, &params);
    const int64_t n = (int64_t)N_NEAR * engine.info->vocab_size;
    float *whole = run_block(&engine, ids, MAX_STEP);
    check_cut(&engine, ids, 1, whole, "single tokens");
    if (!TEST_IS_SANITIZED)
        check_cut(&engine, ids, 33, whole, "chunks of 33");
    params.n_threads = 3;
    params.block_order_seed = 9;
    other = test_engine_share(&engine, &params);
    check_cut(&other, ids, 7, whole, "threads and shuffled blocks");
    float *difference = malloc((size_t)n * sizeof *difference);
    assert_non_null(difference);
    for (int64_t i = 0; i < n; i++)
        difference[i] = whole[i] - exact[i];
    const double relative = size_of(difference, n) / size_of(exact, n);
    print_message("%s, %s rows: logits of the block differ by %.3f of their size from exact\n",
                  tamis_profile_name(profile), tamis_dtype_name(dtype), relative);
    assert_true(relative > 0 && relative < 0.3);
    free(difference);
    free(whole);
    test_engine_close(&other);
    test_engine_close(&engine);
}

static void block_keeps_its_bits(void **state)
{
    (void)state;
    const tamis_session_params params = params_of(TAMIS_DTYPE_F32);
    test_engine engine;
    int32_t *ids = test_prompt(dir);
    open_as(&engine, TAMIS_PROFILE_EXACT, &params);
    float *exact = run_block(&engine, ids, MAX_STEP);
    check_profile(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, ids, exact);
    check_profile(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, ids, exact);
    if (!TEST_IS_SANITIZED)
        check_profile(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, ids, exact);
    free(exact);
    free(ids);
    test_engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(block_keeps_its_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
