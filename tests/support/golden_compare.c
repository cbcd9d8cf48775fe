#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session_internal.h"

test_golden_run test_golden_run_open(const char *dir, double claim)
{
    test_golden_run run = {
        .dir = dir, .claim = claim, .golden = test_golden_open(dir, "golden.safetensors")};
    run.ids = test_golden_ids(run.golden, "ids", &run.n);
    run.pos = test_golden_ids(run.golden, "pos", &run.n_pos);
    const int64_t n_reply = test_golden_dim(run.golden, "greedy_ids", 0);
    const tamis_session_params params =
        test_session_params(TAMIS_DTYPE_F32, (int32_t)(run.n + n_reply));
    run.engine = test_engine_open(dir, &params);
    run.capture = test_capture_open(run.engine.info->num_hidden_layers);
    run.logits = calloc((size_t)run.n * (size_t)run.engine.info->vocab_size, sizeof *run.logits);
    assert_non_null(run.logits);
    run.seq = test_seq_new(&run.engine);
    tamis_session_set_tap(run.engine.session, test_capture_tap, &run.capture);
    test_feed(&run.engine, run.seq, run.ids, (int32_t)run.n, 0, run.logits);
    tamis_session_set_tap(run.engine.session, NULL, NULL);
    return run;
}

void test_golden_run_close(test_golden_run *run)
{
    free(run->logits);
    free(run->ids);
    free(run->pos);
    test_capture_close(&run->capture);
    test_engine_close(&run->engine);
    test_golden_close(run->golden);
}

/* ---------------------------------------------------------------- stages */

const char *test_golden_name(int32_t layer, const char *stage)
{
    static char name[64];
    snprintf(name, sizeof name, "layer.%d.%s", layer, stage);
    return name;
}

void test_golden_row(const test_golden_run *run, int32_t layer, const char *stage, int32_t pos,
                     const float *seen, const float *expected, int64_t width, double *worst)
{
    int64_t at = 0;
    const double diff = test_max_diff(seen, expected, width, &at);
    if (diff > run->claim)
        fail_msg("%s: layer %d, stage %s, position %d, channel %lld: %.9g, expected %.9g "
                 "(difference %.2e, allowed %.0e)",
                 run->dir, layer, stage, pos, (long long)at, (double)seen[at], (double)expected[at],
                 diff, run->claim);
    *worst = fmax(*worst, diff);
}

void test_golden_stage(const test_golden_run *run, int32_t layer, const char *name,
                       tamis_tap_stage stage, double *worst)
{
    int64_t count;
    const float *golden = test_golden_f32(run->golden, test_golden_name(layer, name), &count);
    const int64_t width = count / run->n_pos;
    for (int64_t p = 0; p < run->n_pos; p++)
        test_golden_row(run, layer, name, run->pos[p],
                        test_capture_f32(&run->capture, layer, stage, run->pos[p]),
                        golden + p * width, width, worst);
}

/* ---------------------------------------------------------------- choices */

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

void test_golden_same_set(const char *dir, int32_t layer, const char *stage, int32_t pos,
                          const int32_t *seen, const int32_t *expected, int64_t n)
{
    int32_t a[256], b[256];
    assert_true(n <= 256);
    memcpy(a, seen, (size_t)n * sizeof *a);
    memcpy(b, expected, (size_t)n * sizeof *b);
    qsort(a, (size_t)n, sizeof *a, compare_ids);
    qsort(b, (size_t)n, sizeof *b, compare_ids);
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i])
            fail_msg("%s: layer %d, stage %s, position %d: sorted id %lld is %d, expected %d", dir,
                     layer, stage, pos, (long long)i, a[i], b[i]);
}

void test_golden_topk(const test_golden_run *run, int32_t layer)
{
    const char *name = test_golden_name(layer, "topk");
    int32_t *golden = test_golden_ids(run->golden, name, NULL);
    const int64_t k = test_golden_dim(run->golden, name, 1);
    for (int64_t p = 0; p < run->n_pos; p++) {
        const int32_t *seen = test_capture_i32(&run->capture, layer, TAMIS_TAP_TOPK, run->pos[p]);
        for (int64_t i = 1; i < k; i++)
            assert_true(seen[i] > seen[i - 1] || seen[i] == -1);
        test_golden_same_set(run->dir, layer, "topk", run->pos[p], seen, golden + p * k, k);
    }
    free(golden);
}

void test_golden_experts(const test_golden_run *run, int32_t layer, double *worst)
{
    const float *weights =
        test_golden_f32(run->golden, test_golden_name(layer, "expert_weights"), NULL);
    const char *name = test_golden_name(layer, "experts");
    int32_t *ids = test_golden_ids(run->golden, name, NULL);
    const int64_t k = test_golden_dim(run->golden, name, 1);
    for (int64_t p = 0; p < run->n_pos; p++) {
        const int32_t pos = run->pos[p];
        const int32_t *seen = test_capture_i32(&run->capture, layer, TAMIS_TAP_EXPERTS, pos);
        const float *seen_weights =
            test_capture_f32(&run->capture, layer, TAMIS_TAP_EXPERT_WEIGHTS, pos);
        test_golden_same_set(run->dir, layer, "experts", pos, seen, ids + p * k, k);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++)
                if (seen[j] == ids[p * k + i])
                    test_golden_row(run, layer, "expert_weights", pos, &seen_weights[j],
                                    &weights[p * k + i], 1, worst);
    }
    free(ids);
}

/* ---------------------------------------------------------------- logits */

void test_golden_logits(const test_golden_run *run)
{
    const int64_t vocab = run->engine.info->vocab_size;
    int64_t count, at = 0;
    const float *golden = test_golden_f32(run->golden, "logits", &count);
    assert_int_equal(count, run->n * vocab);
    const double diff = test_max_diff(run->logits, golden, count, &at);
    printf("%s: logits within %.2e of golden at %lld positions\n", run->dir, diff,
           (long long)run->n);
    if (diff > run->claim)
        fail_msg("%s: logits, position %lld, id %lld: %.9g, expected %.9g (difference %.2e)",
                 run->dir, (long long)(at / vocab), (long long)(at % vocab),
                 (double)run->logits[at], (double)golden[at], diff);
}

void test_golden_greedy(test_golden_run *run)
{
    const int32_t vocab = run->engine.info->vocab_size;
    int64_t n;
    int32_t *ids = test_golden_ids(run->golden, "greedy_ids", &n);
    const float *golden = test_golden_f32(run->golden, "greedy_logits", NULL);
    float *row = calloc((size_t)vocab, sizeof *row);
    assert_non_null(row);
    int32_t next = test_argmax(run->logits + (run->n - 1) * vocab, vocab);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (next != ids[i])
            fail_msg("%s: greedy id %lld is %d, expected %d", run->dir, (long long)i, next, ids[i]);
        test_feed(&run->engine, run->seq, &next, 1, 1, row);
        test_golden_row(run, -1, "greedy_logits", (int32_t)i, row, golden + i * vocab, vocab,
                        &worst);
        next = test_argmax(row, vocab);
    }
    printf("%s: %lld greedy ids equal, their logits within %.2e\n", run->dir, (long long)n, worst);
    free(row);
    free(ids);
}

/* ---------------------------------------------------------------- layouts */

float *test_golden_pairs(const test_golden *golden, const char *name, int64_t first, int64_t rope)
{
    int64_t count;
    const float *halves = test_golden_f32(golden, name, &count);
    const int64_t width = test_golden_dim(golden, name, 1);
    float *out = malloc((size_t)count * sizeof *out + 1);
    assert_non_null(out);
    memcpy(out, halves, (size_t)count * sizeof *out);
    for (int64_t row = first; row < count; row += width)
        for (int64_t j = 0; j < rope / 2; j++) {
            out[row + 2 * j] = halves[row + j];
            out[row + 2 * j + 1] = halves[row + rope / 2 + j];
        }
    return out;
}

/* ---------------------------------------------------------------- oracle */

void test_oracle_values(test_oracle_check *check, const char *name, const double *seen,
                        const float *expected, int64_t n)
{
    int64_t at = 0;
    const double diff = test_max_diff_f64(expected, seen, n, &at);
    if (diff > check->claim)
        fail_msg("%s: oracle's %s, element %lld: %.9g, golden %.9g", check->dir, name,
                 (long long)at, seen[at], (double)expected[at]);
    check->worst = fmax(check->worst, diff);
}

void test_oracle_stage(test_oracle_check *check, int32_t layer, const char *stage,
                       const double *seen)
{
    const char *name = test_golden_name(layer, stage);
    int64_t count;
    const float *expected = test_golden_f32(check->golden, name, &count);
    const int64_t width = count / check->n_pos;
    for (int64_t p = 0; p < check->n_pos; p++)
        test_oracle_values(check, name, seen + check->pos[p] * width, expected + p * width, width);
}

int32_t test_border_lengths(int32_t *out, const int32_t *centres, int32_t n_centres,
                            int32_t longest)
{
    const int32_t fixed[] = {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 127, 128, 129, 255, 256, 257};
    int32_t n = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        out[n++] = fixed[i];
    for (int32_t i = 0; i < n_centres; i++)
        for (int32_t offset = -1; offset <= 5; offset++)
            out[n++] = centres[i] + offset;
    qsort(out, (size_t)n, sizeof *out, compare_ids);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (out[i] >= 1 && out[i] <= longest && (kept == 0 || out[kept - 1] != out[i]))
            out[kept++] = out[i];
    return kept;
}

double test_prompt_against(test_engine *engine, const char *dir, const int32_t *ids, int32_t n,
                           const double *expected, double claim, float *last)
{
    const int32_t vocab = engine->info->vocab_size;
    const int64_t row = (int64_t)(n - 1) * vocab;
    float *logits = test_logits_of(engine, ids, n, 0);
    const double diff = test_max_diff_f64(logits + row, expected + row, vocab, NULL);
    if (last != NULL)
        memcpy(last, logits + row, (size_t)vocab * sizeof *last);
    free(logits);
    if (diff > claim)
        fail_msg("%s: prompt of %d: last logits %.2e from the oracle's", dir, n, diff);
    return diff;
}
