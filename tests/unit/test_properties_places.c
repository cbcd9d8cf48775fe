/*
 * Threads, physical blocks, rows per block and the CPU level change nothing, bit for bit. Every
 * run is a prefill in two steps and then single tokens, so all work partitions are met.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"

/* Rows of ratio 128 close and more than topk rows are visible; the portable level is slow. */
enum { LEN = 290, LEN_PORTABLE = 160, SINGLE = 20 };

static float *run(const test_engine *base, const tamis_session_params *params, const int32_t *ids)
{
    const int32_t n = params->max_model_len, half = n / 2, second = n - half - SINGLE;
    test_engine engine = test_engine_share(base, params);
    const int64_t vocab = engine.info->vocab_size;
    float *logits = calloc((size_t)(n * vocab), sizeof *logits);
    assert_non_null(logits);
    const int32_t seq = test_seq_new(&engine);
    test_feed(&engine, seq, ids, half, 0, logits);
    test_feed(&engine, seq, ids + half, second, 0, logits + half * vocab);
    test_feed(&engine, seq, ids + n - SINGLE, SINGLE, 1, logits + (n - SINGLE) * vocab);
    test_engine_close(&engine);
    return logits;
}

typedef struct plain_run {
    test_engine engine;
    tamis_session_params params;
    int32_t *ids;
    float *logits;
} plain_run;

static plain_run plain_open(const char *dir, tamis_dtype dtype, int32_t n)
{
    plain_run p = {.params = test_session_params(dtype, n), .ids = test_prompt(dir)};
    p.engine = test_engine_open(dir, &p.params);
    p.logits = run(&p.engine, &p.params, p.ids);
    return p;
}

static void plain_compare(const plain_run *p, const tamis_session_params *params, const char *where)
{
    float *seen = run(&p->engine, params, p->ids);
    test_assert_same_bits(seen, p->logits, p->params.max_model_len, p->engine.info->vocab_size,
                          where);
    free(seen);
}

static void plain_close(plain_run *p)
{
    free(p->logits);
    free(p->ids);
    test_engine_close(&p->engine);
}

static void check_threads(const char *dir, tamis_dtype dtype)
{
    plain_run p = plain_open(dir, dtype, LEN);
    for (int32_t n_threads = 2; n_threads <= 3; n_threads++) {
        tamis_session_params params = p.params;
        params.n_threads = n_threads;
        plain_compare(&p, &params, test_where(dir, dtype, "threads", n_threads));
    }
    plain_close(&p);
}
static void test_threads(void **state)
{
    (void)state;
    test_every_folder(check_threads);
    check_threads("models/demo", TAMIS_DTYPE_BF16); /* lists of 128: a token's chunks are shared */
}

static void check_blocks(const char *dir, tamis_dtype dtype)
{
    static const int32_t block_tokens[] = {128, 256, 512};
    plain_run p = plain_open(dir, dtype, LEN);
    for (int b = 0; b < 3; b++) {
        tamis_session_params params = p.params;
        params.block_tokens = block_tokens[b];
        plain_compare(&p, &params, test_where(dir, dtype, "block_tokens", block_tokens[b]));
        params.block_order_seed = 11 + b;
        params.num_blocks = 12; /* more than needed, so that the order is a real choice */
        plain_compare(&p, &params,
                      test_where(dir, dtype, "shuffled block_tokens", block_tokens[b]));
    }
    plain_close(&p);
}
static void test_blocks(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_every_folder(check_blocks);
}

/* Case 26: with the level masked down to portable the run gives the same bits. */
static void check_levels(const char *dir, tamis_dtype dtype)
{
    plain_run p = plain_open(dir, dtype, LEN_PORTABLE);
    for (tamis_cpu_level level = TAMIS_CPU_PORTABLE; level <= tamis_cpu_level_available();
         level++) {
        assert_int_equal(tamis_cpu_level_set(level), TAMIS_STATUS_OK);
        plain_compare(&p, &p.params,
                      test_where(dir, dtype, tamis_cpu_level_name(level), LEN_PORTABLE));
    }
    assert_int_equal(tamis_cpu_level_set(tamis_cpu_level_available()), TAMIS_STATUS_OK);
    plain_close(&p);
}
static void case_26_cpu_levels(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_every_folder(check_levels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(case_26_cpu_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
