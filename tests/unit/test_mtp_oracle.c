/*
 * The MTP blocks of the golden folders against the oracles (which test_mtp_demo and the tests of
 * the main models hold against other programs): over a step at every position, and two further
 * positions each, at lengths where faults hide. GLM-5.2 shares the first selection between them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden_compare.h"
#include "support/mtp_run.h"
#include "support/oracle_v32.h"
#include "support/oracle_v4.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM     2e-4
#define N_FURTHER 2

/* One folder; the oracle's values of every prefix length that is tried. */
typedef struct folder {
    const char *dir;
    int32_t *ids; /* [n + 1] */
    int32_t n;    /* positions that have a follower */
    double worst, margin;
} folder;

/* What the oracle says after the first `len` tokens, whichever family it is of. */
typedef struct further {
    double *logits[N_FURTHER]; /* [vocab_size] */
    int32_t next[N_FURTHER];   /* tokens given: the drafts before */
} further;

static int32_t best_of(const double *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static double *copy_row(const double *row, int32_t n)
{
    double *copy = malloc((size_t)n * sizeof *copy);
    assert_non_null(copy);
    return memcpy(copy, row, (size_t)n * sizeof *copy);
}

static void compare(folder *f, const char *what, int32_t pos, const float *seen,
                    const double *expected, int32_t vocab)
{
    const double diff = test_max_diff_f64(seen, expected, vocab, NULL);
    if (diff > CLAIM)
        fail_msg("%s: %s, position %d: %.2e from the oracle", f->dir, what, (int)pos, diff);
    f->worst = fmax(f->worst, diff);
}

/* ---------------------------------------------------------------- engine */

/* All positions at once, logits [n][vocab_size] of the oracle. */
static void check_step(folder *f, test_engine *engine, const double *expected)
{
    const int32_t vocab = engine->info->vocab_size;
    float *seen = calloc((size_t)(f->n * vocab), sizeof *seen);
    assert_non_null(seen);
    const int32_t seq = test_seq_new(engine);
    test_mtp_feed(engine, seq, f->ids, f->n, 0, seen);
    for (int32_t t = 0; t < f->n; t++)
        compare(f, "over the step", t, seen + (int64_t)t * vocab, expected + (int64_t)t * vocab,
                vocab);
    test_seq_drop(engine, seq);
    free(seen);
}

/* A prompt of `len` tokens, then further positions with the oracle's tokens. */
static void check_further(folder *f, test_engine *engine, int32_t len, further *expected)
{
    const int32_t vocab = engine->info->vocab_size, last = len - 1;
    float *seen = calloc((size_t)vocab, sizeof *seen);
    assert_non_null(seen);
    const int32_t seq = test_seq_new(engine);
    test_feed(engine, seq, f->ids, len, 0, NULL);
    test_mtp_over_step(engine, f->ids + 1, len, &last, 1, seen);
    for (int32_t i = 0; i < N_FURTHER; i++) {
        const int32_t seq_len = len + 1 + i;
        test_mtp_go_on(engine, &seq, &seq_len, &expected->next[i], 1, NULL, 0, seen);
        compare(f, "further position", len + i, seen, expected->logits[i], vocab);
        free(expected->logits[i]);
    }
    test_seq_drop(engine, seq);
    free(seen);
}

static folder folder_open(const char *dir)
{
    folder f = {.dir = dir, .margin = 1};
    int64_t n_ids;
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    f.ids = test_golden_ids(golden, "ids", &n_ids);
    f.n = (int32_t)n_ids - 1;
    if (TEST_IS_SANITIZED)
        f.n = 60;
    test_golden_close(golden);
    return f;
}

static test_engine folder_engine(const folder *f)
{
    const tamis_session_params params =
        test_mtp_params(TAMIS_DTYPE_F32, f->n + 1 + N_FURTHER, f->n);
    tamis_session_params small = params;
    small.num_blocks = 4;
    return test_engine_open(f->dir, &small);
}

static void folder_close(folder *f)
{
    printf("%s: MTP logits within %.2e, smallest margin of a choice %.1e\n", f->dir, f->worst,
           f->margin);
    free(f->ids);
}

/* Around one block of 128, the window and index_topk of these folders, and the whole text. */
static int32_t lengths(const folder *f, int32_t *out)
{
    const int32_t all[] = {1, 2, 15, 16, 17, 31, 127, 128, 129, 200, f->n};
    int32_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] < f->n || i + 1 == sizeof all / sizeof *all)
            out[n++] = all[i];
    return n;
}

/* ---------------------------------------------------------------- families */

static void run_v4(const char *dir)
{
    folder f = folder_open(dir);
    test_engine engine = folder_engine(&f);
    oracle_v4 oracle = oracle_v4_open(dir);
    const int32_t vocab = oracle.config.vocab_size;
    oracle_v4_run run = oracle_v4_forward(&oracle, f.ids, f.n, false);
    oracle_v4_mtp all = oracle_v4_mtp_open(&oracle, &run, f.ids + 1, f.n, 0);
    check_step(&f, &engine, all.run.logits);
    int32_t lens[16];
    const int32_t n_lens = lengths(&f, lens);
    for (int32_t l = 0; l < n_lens; l++) {
        further expected;
        oracle_v4_mtp mtp = oracle_v4_mtp_open(&oracle, &run, f.ids + 1, lens[l], N_FURTHER);
        for (int32_t i = 0; i < N_FURTHER; i++) {
            expected.next[i] = best_of(mtp.run.logits + (int64_t)(mtp.n - 1) * vocab, vocab);
            oracle_v4_mtp_go_on(&mtp, expected.next[i]);
            expected.logits[i] = copy_row(mtp.run.logits + (int64_t)(mtp.n - 1) * vocab, vocab);
            f.margin = fmin(f.margin, mtp.run.router_margin);
        }
        check_further(&f, &engine, lens[l], &expected);
        oracle_v4_mtp_close(&mtp);
    }
    oracle_v4_mtp_close(&all);
    oracle_v4_run_free(&run);
    oracle_v4_close(&oracle);
    test_engine_close(&engine);
    folder_close(&f);
}

/* Or the comparison could not tell: with its own selection the next position comes out otherwise.
 */
static void check_that_sharing_shows(oracle_v32 *oracle, const oracle_v32_run *run, const folder *f)
{
    double *logits[2];
    const int32_t vocab = oracle->config.vocab_size;
    for (int i = 0; i < 2; i++) {
        oracle->config.index_share_for_mtp_iteration = i == 0;
        oracle_v32_mtp mtp = oracle_v32_mtp_open(oracle, run, f->ids + 1, f->n, 1);
        oracle_v32_mtp_go_on(&mtp, 1);
        logits[i] = copy_row(mtp.run.logits + (int64_t)f->n * vocab, vocab);
        oracle_v32_mtp_close(&mtp);
    }
    double diff = 0;
    for (int32_t i = 0; i < vocab; i++)
        diff = fmax(diff, fabs(logits[0][i] - logits[1][i]));
    assert_true(diff > 10 * CLAIM);
    free(logits[0]);
    free(logits[1]);
}

static void run_v32(const char *dir, bool shares)
{
    folder f = folder_open(dir);
    test_engine engine = folder_engine(&f);
    oracle_v32 oracle = oracle_v32_open(dir);
    const int32_t vocab = oracle.config.vocab_size;
    assert_int_equal(oracle.config.index_share_for_mtp_iteration, shares);
    oracle_v32_run run = oracle_v32_forward(&oracle, f.ids, f.n, false);
    oracle_v32_mtp all = oracle_v32_mtp_open(&oracle, &run, f.ids + 1, f.n, 0);
    check_step(&f, &engine, all.run.logits);
    int32_t lens[16];
    const int32_t n_lens = lengths(&f, lens);
    for (int32_t l = 0; l < n_lens; l++) {
        further expected;
        oracle_v32_mtp mtp = oracle_v32_mtp_open(&oracle, &run, f.ids + 1, lens[l], N_FURTHER);
        for (int32_t i = 0; i < N_FURTHER; i++) {
            expected.next[i] = best_of(mtp.run.logits + (int64_t)(mtp.n - 1) * vocab, vocab);
            oracle_v32_mtp_go_on(&mtp, expected.next[i]);
            expected.logits[i] = copy_row(mtp.run.logits + (int64_t)(mtp.n - 1) * vocab, vocab);
            f.margin = fmin(f.margin, oracle_v32_router_margin(&mtp.run, 0, mtp.n - 1));
            f.margin = fmin(f.margin, oracle_v32_index_margin(&mtp.run, 0, mtp.n - 1));
        }
        check_further(&f, &engine, lens[l], &expected);
        oracle_v32_mtp_close(&mtp);
    }
    if (shares)
        check_that_sharing_shows(&oracle, &run, &f);
    oracle_v32_mtp_close(&all);
    oracle_v32_run_free(&run);
    oracle_v32_close(&oracle);
    test_engine_close(&engine);
    folder_close(&f);
}

static void test_v4(void **state)
{
    (void)state;
    run_v4("tests/golden/v4-flash-fp8");
}

static void test_v32(void **state)
{
    (void)state;
    run_v32("tests/golden/v32-fp8", false);
}

static void test_glm52(void **state)
{
    (void)state;
    run_v32("tests/golden/glm52-fp8", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v4),
        cmocka_unit_test(test_v32),
        cmocka_unit_test(test_glm52),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
