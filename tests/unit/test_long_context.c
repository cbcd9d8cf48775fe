/*
 * A context longer than the demo model declares: memory grows by the printed plan and no more, and
 * far positions are as independent of the steps as near ones. bench/long_context.sh goes to
 * 100,000.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/long_text.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers are slow; the borders of interest lie below 1,500. */
enum { LEN = TEST_IS_SANITIZED ? 1500 : 6000, STEP = 512 };
#define MIB ((uint64_t)1 << 20)

static tamis_session_params long_params(void)
{
    tamis_session_params params = tamis_session_params_default();
    params.n_threads = 2;
    params.max_model_len = LEN;
    params.max_num_batched_tokens = STEP;
    return params;
}

/* First of all tests: what malloc keeps from earlier ones would hide growth. */
static void test_memory_grows_as_planned(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED)
        skip(); /* shadow memory and redzones are counted too */
    char *dir = test_demo_with_max_len(LEN);
    int32_t *ids = test_long_ids(LEN);
    const tamis_session_params params = long_params();
    tamis_memory_plan plan;
    tamis_error err;
    const uint64_t before = test_rss_anon();
    test_engine engine = test_engine_open(dir, &params);
    test_must(tamis_session_plan_memory(engine.model, &params, &plan, &err), &err, "plan");
    const int32_t seq = test_seq_new(&engine);
    test_feed(&engine, seq, ids, LEN, STEP, NULL);
    const uint64_t growth = test_rss_anon() - before;
    const double off = (double)growth - (double)plan.total;
    const double allowed = (double)(plan.total / 20 > 2 * MIB ? plan.total / 20 : 2 * MIB);
    printf("%d tokens: anonymous memory grew by %.2f MiB, plan %.2f MiB\n", LEN,
           (double)growth / (double)MIB, (double)plan.total / (double)MIB);
    assert_true(off < allowed && -off < allowed);
    test_engine_close(&engine);
    free(ids);
    test_temp_dir_remove(dir);
}

/* Logits of the last token for two cuts of the same prompt, on two and three threads. */
static void test_far_positions_do_not_depend_on_steps(void **state)
{
    (void)state;
    char *dir = test_demo_with_max_len(LEN);
    int32_t *ids = test_long_ids(LEN);
    float *logits[2];
    int32_t vocab = 0;
    for (int i = 0; i < 2; i++) {
        tamis_session_params params = long_params();
        params.n_threads = 2 + i;
        test_engine engine = test_engine_open(dir, &params);
        vocab = engine.info->vocab_size;
        logits[i] = calloc((size_t)vocab, sizeof(float));
        assert_non_null(logits[i]);
        const int32_t seq = test_seq_new(&engine);
        test_feed(&engine, seq, ids, LEN - 1, i == 0 ? STEP : 389, NULL);
        test_feed(&engine, seq, ids + LEN - 1, 1, 1, logits[i]);
        /* the maximum is a limit, not a crash */
        tamis_error err;
        const tamis_feed feed = {seq, ids, 1, TAMIS_LOGITS_LAST, NULL};
        assert_int_equal(tamis_session_step(engine.session, &feed, 1, &err), TAMIS_STATUS_LIMIT);
        test_engine_close(&engine);
    }
    test_assert_same_bits(logits[1], logits[0], 1, vocab, "last position");
    free(logits[0]);
    free(logits[1]);
    free(ids);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_grows_as_planned),
        cmocka_unit_test(test_far_positions_do_not_depend_on_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
