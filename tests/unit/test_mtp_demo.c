/*
 * The MTP block of the shipped model against its golden file, f32 caches: logits, drafts of every
 * position, the same bits in any cut of the text, and how often a draft is what the model says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden.h"
#include "support/mtp_run.h"
#include "support/oracle_v4.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEMO       "models/demo"
#define CLAIM      5e-5
#define ACCEPTANCE 0.6

static float *take(int64_t n)
{
    float *values = calloc((size_t)n + 1, sizeof *values);
    if (values == NULL)
        fail_msg("out of memory");
    return values;
}

/* The golden file's own: ids [n + 1], positions of mtp.logits [n_pos]. */
typedef struct demo_text {
    test_golden *golden;
    int32_t *ids, *pos;
    int64_t n, n_pos;
    const float *logits; /* [n_pos][vocab_size] */
} demo_text;

static demo_text demo_text_open(void)
{
    demo_text text = {.golden = test_golden_open(DEMO, "golden.safetensors")};
    int64_t n_ids;
    text.ids = test_golden_ids(text.golden, "ids", &n_ids);
    text.pos = test_golden_ids(text.golden, "mtp.positions", &text.n_pos);
    text.logits = test_golden_f32(text.golden, "mtp.logits", NULL);
    text.n = TEST_IS_SANITIZED ? 260 : n_ids - 1;
    for (int64_t p = text.n_pos; p-- > 0 && text.pos[p] >= text.n;)
        text.n_pos = p;
    return text;
}

static void demo_text_close(demo_text *text)
{
    free(text->ids);
    free(text->pos);
    test_golden_close(text->golden);
}

/* Whole text at once; the logits of the golden positions. */
static float *run_whole(const demo_text *text, test_engine *engine)
{
    float *logits = take(text->n_pos * engine->info->vocab_size);
    const int32_t seq = test_seq_new(engine);
    test_feed(engine, seq, text->ids, (int32_t)text->n, 0, NULL);
    test_mtp_over_step(engine, text->ids + 1, (int32_t)text->n, text->pos, (int32_t)text->n_pos,
                       logits);
    test_seq_drop(engine, seq);
    return logits;
}

static void check_drafts(const demo_text *text, const float *logits, int32_t vocab, int32_t chunk)
{
    int64_t n;
    int32_t *drafts = test_golden_ids(text->golden, "mtp.draft", &n);
    assert_true(n >= text->n);
    for (int64_t i = 0; i < text->n; i++)
        if (test_argmax(logits + i * vocab, vocab) != drafts[i])
            fail_msg("chunks of %d: draft at position %lld is %d, golden %d", (int)chunk,
                     (long long)i, (int)test_argmax(logits + i * vocab, vocab), (int)drafts[i]);
    free(drafts);
}

static void test_golden_logits(void **state)
{
    (void)state;
    demo_text text = demo_text_open();
    const int32_t chunks[] = {90, 1};
    tamis_session_params params = test_mtp_params(TAMIS_DTYPE_F32, (int32_t)text.n, 90);
    params.n_threads = 2;
    params.num_blocks = 8;
    test_engine engine = test_engine_open(DEMO, &params);
    const int32_t vocab = engine.info->vocab_size;
    float *whole = run_whole(&text, &engine), *all = take(text.n * vocab);
    double worst = 0;
    for (int64_t p = 0; p < text.n_pos; p++) {
        const double diff = test_max_diff(whole + p * vocab, text.logits + p * vocab, vocab, NULL);
        if (diff > CLAIM)
            fail_msg("position %d: MTP logits %.2e from golden", (int)text.pos[p], diff);
        worst = fmax(worst, diff);
    }
    for (int c = 0; c < (TEST_IS_SANITIZED ? 1 : 2); c++) {
        const int32_t seq = test_seq_new(&engine);
        test_mtp_feed(&engine, seq, text.ids, (int32_t)text.n, chunks[c], all);
        test_seq_drop(&engine, seq);
        for (int64_t p = 0; p < text.n_pos; p++)
            test_assert_same_bits(all + text.pos[p] * vocab, whole + p * vocab, 1, vocab,
                                  "MTP logits in chunks");
        check_drafts(&text, all, vocab, chunks[c]);
    }
    printf("demo: MTP logits within %.2e at %lld positions, %lld drafts equal\n", worst,
           (long long)text.n_pos, (long long)text.n);
    free(whole);
    free(all);
    test_engine_close(&engine);
    demo_text_close(&text);
}

/* The oracle is what the folders without golden MTP values are held against. */
static void test_oracle(void **state)
{
    (void)state;
    demo_text text = demo_text_open();
    const int32_t n = TEST_IS_SANITIZED ? 128 : 256;
    oracle_v4 oracle = oracle_v4_open(DEMO);
    oracle_v4_run run = oracle_v4_forward(&oracle, text.ids, n, false);
    oracle_v4_mtp mtp = oracle_v4_mtp_open(&oracle, &run, text.ids + 1, n, 0);
    const int64_t vocab = oracle.config.vocab_size;
    int n_checked = 0;
    double worst = 0;
    for (int64_t p = 0; p < text.n_pos && text.pos[p] < n; p++, n_checked++) {
        const double diff = test_max_diff_f64(text.logits + p * vocab,
                                              mtp.run.logits + text.pos[p] * vocab, vocab, NULL);
        if (diff > CLAIM)
            fail_msg("position %d: the oracle's MTP logits %.2e from golden", (int)text.pos[p],
                     diff);
        worst = fmax(worst, diff);
    }
    assert_int_equal(n_checked, n / 128);
    printf("oracle: MTP logits within %.2e at %d positions\n", worst, n_checked);
    oracle_v4_mtp_close(&mtp);
    oracle_v4_run_free(&run);
    oracle_v4_close(&oracle);
    demo_text_close(&text);
}

/* A prompt continued greedily: drafts of its continuation against the continuation itself. */
static void count_accepted(test_engine *engine, const test_golden *golden, int k, int *n_right,
                           int *n_drafts)
{
    char name[32];
    int64_t n_prompt, n;
    snprintf(name, sizeof name, "prompt.%d", k);
    int32_t *prompt = test_golden_ids(golden, name, &n_prompt);
    snprintf(name, sizeof name, "greedy.%d", k);
    int32_t *greedy = test_golden_ids(golden, name, &n);
    int32_t *ids = calloc((size_t)(n_prompt + n), sizeof *ids);
    assert_non_null(ids);
    memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, greedy, (size_t)n * sizeof *ids);
    const int32_t vocab = engine->info->vocab_size, n_fed = (int32_t)(n_prompt + n) - 1;
    float *logits = take((int64_t)n_fed * vocab);
    const int32_t seq = test_seq_new(engine);
    test_mtp_feed(engine, seq, ids, n_fed, 0, logits);
    test_seq_drop(engine, seq);
    for (int32_t i = (int32_t)n_prompt - 1; i + 2 <= n_fed; i++) {
        *n_right += test_argmax(logits + (int64_t)i * vocab, vocab) == ids[i + 2];
        ++*n_drafts;
    }
    free(prompt);
    free(greedy);
    free(ids);
    free(logits);
}

static void test_acceptance(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* the same code as above, for a number */
        skip();
    test_golden *golden = test_golden_open(DEMO, "golden.safetensors");
    const tamis_session_params params = test_mtp_params(TAMIS_DTYPE_F32, 128, 128);
    test_engine engine = test_engine_open(DEMO, &params);
    int n_right = 0, n_drafts = 0;
    for (int k = 0; k < 4; k++)
        count_accepted(&engine, golden, k, &n_right, &n_drafts);
    const double rate = (double)n_right / n_drafts;
    printf("demo: %d of %d drafts of greedy text accepted, %.1f %%\n", n_right, n_drafts,
           100 * rate);
    assert_true(rate >= ACCEPTANCE);
    test_engine_close(&engine);
    test_golden_close(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_logits),
        cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_acceptance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
