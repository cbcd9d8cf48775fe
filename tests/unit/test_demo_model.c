/*
 * The shipped model against its golden file, f32 caches: logits, greedy continuations token for
 * token, and the mean NLL that the file's metadata states.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEMO      "models/demo"
#define CLAIM     5e-5
#define NLL_CLAIM 1e-4

/* -log softmax(logits)[id] in double precision */
static double nll_of(const float *logits, int32_t n, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[id];
}

static void test_logits_and_nll(void **state)
{
    (void)state;
    test_golden *golden = test_golden_open(DEMO, "golden.safetensors");
    int64_t n, n_pos;
    int32_t *ids = test_golden_ids(golden, "ids", &n);
    int32_t *pos = test_golden_ids(golden, "positions", &n_pos);
    const float *expected = test_golden_f32(golden, "logits", NULL);
    tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, (int32_t)n);
    params.n_threads = 2;
    test_engine engine = test_engine_open(DEMO, &params);
    const int64_t vocab = engine.info->vocab_size;
    float *logits = test_logits_of(&engine, ids, (int32_t)n, 0);
    double worst = 0;
    for (int64_t p = 0; p < n_pos; p++) {
        const double diff =
            test_max_diff(logits + pos[p] * vocab, expected + p * vocab, vocab, NULL);
        if (diff > CLAIM)
            fail_msg("position %d: logits %.2e from golden", pos[p], diff);
        worst = fmax(worst, diff);
    }
    double nll = 0;
    for (int64_t t = 0; t + 1 < n; t++)
        nll += nll_of(logits + t * vocab, (int32_t)vocab, ids[t + 1]);
    nll /= (double)(n - 1);
    const double mean_nll = test_golden_meta(golden, "mean_nll");
    printf("demo: logits within %.2e at %lld positions, mean NLL %.6f, golden %.6f\n", worst,
           (long long)n_pos, nll, mean_nll);
    assert_true(fabs(nll - mean_nll) < NLL_CLAIM);
    free(logits);
    test_engine_close(&engine);
    free(ids);
    free(pos);
    test_golden_close(golden);
}

static void check_greedy(test_engine *engine, const test_golden *golden, int k)
{
    char name[32];
    int64_t n_prompt, n;
    snprintf(name, sizeof name, "prompt.%d", k);
    int32_t *prompt = test_golden_ids(golden, name, &n_prompt);
    snprintf(name, sizeof name, "greedy.%d", k);
    int32_t *expected = test_golden_ids(golden, name, &n);
    const int32_t vocab = engine->info->vocab_size, seq = test_seq_new(engine);
    float *logits = calloc((size_t)(n_prompt * vocab), sizeof *logits);
    assert_non_null(logits);
    test_feed(engine, seq, prompt, (int32_t)n_prompt, 0, logits);
    int32_t next = test_argmax(logits + (n_prompt - 1) * vocab, vocab);
    for (int64_t i = 0; i < n; i++) {
        if (next != expected[i])
            fail_msg("greedy.%d: token %lld is %d, expected %d", k, (long long)i, next,
                     expected[i]);
        test_feed(engine, seq, &next, 1, 1, logits);
        next = test_argmax(logits, vocab);
    }
    test_seq_drop(engine, seq);
    free(logits);
    free(prompt);
    free(expected);
}

static void test_greedy_continuations(void **state)
{
    (void)state;
    test_golden *golden = test_golden_open(DEMO, "golden.safetensors");
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, 128);
    test_engine engine = test_engine_open(DEMO, &params);
    for (int k = 0; k < 4; k++)
        check_greedy(&engine, golden, k);
    test_engine_close(&engine);
    test_golden_close(golden);
}

/* bf16 caches are what a user gets by default: close to f32, and not by accident the same. */
static void test_bf16_caches_are_close(void **state)
{
    (void)state;
    test_golden *golden = test_golden_open(DEMO, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    const int32_t n = 300;
    const tamis_session_params wide = test_session_params(TAMIS_DTYPE_F32, n);
    const tamis_session_params narrow = test_session_params(TAMIS_DTYPE_BF16, n);
    test_engine a = test_engine_open(DEMO, &wide), b = test_engine_share(&a, &narrow);
    const int32_t vocab = a.info->vocab_size;
    float *x = test_logits_of(&a, ids, n, 0), *y = test_logits_of(&b, ids, n, 0);
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)n * vocab; i++)
        sum += fabs((double)x[i] - (double)y[i]);
    const double mean = sum / ((double)n * vocab);
    printf("demo: bf16 caches move logits by %.2e on average\n", mean);
    assert_true(mean > 1e-5 && mean < 5e-2);
    free(x);
    free(y);
    test_engine_close(&b);
    test_engine_close(&a);
    free(ids);
    test_golden_close(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_and_nll),
        cmocka_unit_test(test_greedy_continuations),
        cmocka_unit_test(test_bf16_caches_are_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
