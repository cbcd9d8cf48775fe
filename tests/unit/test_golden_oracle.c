/*
 * The oracle's oracle, and the oracle against the engine.
 *
 * First the double-precision reference is held against the golden files of an independent program;
 * then the engine is held against the reference at the lengths where faults hide, each length as
 * its own prompt. The reference is causal and runs once at the longest length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/golden_compare.h"
#include "support/oracle_v4.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM 5e-5

/* ---------------------------------------------------------------- oracle against golden */

static void compare_rows(test_oracle_check *check, int32_t layer, const char *stage,
                         const double *seen)
{
    const char *name = test_golden_name(layer, stage);
    int64_t count;
    if (!test_golden_has(check->golden, name))
        return;
    const float *expected = test_golden_f32(check->golden, name, &count);
    test_oracle_values(check, name, seen, expected, count);
}

static void check_oracle(const char *dir)
{
    if (TEST_IS_SANITIZED) /* slow, and nothing of the library runs here but its loader */
        skip();
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int64_t n, n_pos, n_logits;
    int32_t *ids = test_golden_ids(golden, "ids", &n),
            *pos = test_golden_ids(golden, "pos", &n_pos);
    oracle_v4 model = oracle_v4_open(dir);
    oracle_v4_run run = oracle_v4_forward(&model, ids, (int32_t)n, false);
    test_oracle_check check = {
        .dir = dir, .claim = CLAIM, .golden = golden, .pos = pos, .n_pos = n_pos};
    for (int32_t i = 0; i < run.n_layers; i++) {
        const oracle_v4_layer *layer = &run.layers[i];
        test_oracle_stage(&check, i, "attn_in", layer->attn_in);
        test_oracle_stage(&check, i, "attn_out", layer->attn.out);
        test_oracle_stage(&check, i, "ffn_in", layer->ffn_in);
        test_oracle_stage(&check, i, "ffn_out", layer->ffn_out);
        test_oracle_stage(&check, i, "hidden", layer->hidden);
        compare_rows(&check, i, "ckv", layer->attn.ckv);
        compare_rows(&check, i, "ikeys", layer->attn.ikeys);
    }
    const double worst = check.worst;
    check.worst = 0;
    const float *logits = test_golden_f32(golden, "logits", &n_logits);
    test_oracle_values(&check, "logits", run.logits, logits, n_logits);
    printf("%s: oracle's logits within %.2e of golden, stages and rows within %.2e\n", dir,
           check.worst, worst);
    /* the margins that the generator demanded, found again */
    printf("%s: margins of indexer %.3e, router %.3e\n", dir, run.index_margin, run.router_margin);
    assert_true(run.index_margin > 0.9e-4 && run.router_margin > 0.9e-4);
    oracle_v4_run_free(&run);
    oracle_v4_close(&model);
    free(ids);
    free(pos);
    test_golden_close(golden);
}

static void test_oracle_flash_bf16(void **state)
{
    (void)state;
    check_oracle("tests/golden/v4-flash-bf16");
}
static void test_oracle_flash_fp8(void **state)
{
    (void)state;
    check_oracle("tests/golden/v4-flash-fp8");
}
static void test_oracle_pro_fp8(void **state)
{
    (void)state;
    check_oracle("tests/golden/v4-pro-fp8");
}
static void test_oracle_official(void **state)
{
    (void)state;
    check_oracle("tests/golden/v4-official");
}

/* Worked example, V4's own dimensions: plain frequencies in window layers, YaRN in compressed. */
static void test_oracle_frequencies(void **state)
{
    (void)state;
    const struct {
        int32_t i;
        double window, compress;
    } table[] = {{0, 1, 1},
                 {1, 7.498942093e-1, 6.876560219e-1},
                 {8, 1e-1, 5e-2},
                 {15, 1.333521432e-2, 3.635538584e-3},
                 {16, 1e-2, 2.265625e-3},
                 {20, 3.162277660e-3, 2.969777783e-4},
                 {24, 1e-3, 1.953125e-5},
                 {25, 7.498942093e-4, 5.372312671e-6},
                 {31, 1.333521432e-4, 5.680529037e-7}};
    const tamis_rope_config window = {.theta = 10000, .yarn_factor = 1};
    const tamis_rope_config compress = {.theta = 160000,
                                        .yarn_factor = 16,
                                        .original_max_position = 65536,
                                        .beta_fast = 32,
                                        .beta_slow = 1};
    double a[32], b[32];
    oracle_rope_frequencies(a, 64, &window);
    oracle_rope_frequencies(b, 64, &compress);
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        assert_true(fabs(a[table[r].i] / table[r].window - 1) < 1e-6);
        assert_true(fabs(b[table[r].i] / table[r].compress - 1) < 1e-6);
    }
}

/* ---------------------------------------------------------------- engine against oracle */

static void check_selection(const char *dir, const oracle_v4_run *run, const test_capture *capture,
                            int32_t layer, int32_t t, int32_t k)
{
    const int32_t *own = run->layers[layer].attn.topk;
    const int32_t *seen = test_capture_i32(capture, layer, TAMIS_TAP_TOPK, t);
    for (int32_t i = 0; own != NULL && i < k; i++)
        if (seen[i] != own[(int64_t)t * k + i])
            fail_msg("%s: layer %d, position %d: selected row %d is %d, oracle %d", dir, layer, t,
                     i, seen[i], own[(int64_t)t * k + i]);
}

/* Each length as a prompt of its own; the last logits and selections against the oracle's. */
static void check_lengths(const char *dir)
{
    enum { LONGEST = 257 };
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL), lengths[64];
    oracle_v4 model = oracle_v4_open(dir);
    oracle_v4_run run = oracle_v4_forward(&model, ids, LONGEST, false);
    const int32_t centres[] = {model.config.sliding_window, 4 * model.config.index_topk};
    const int32_t n_lengths = test_border_lengths(lengths, centres, 2, LONGEST);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, LONGEST);
    test_engine engine = test_engine_open(dir, &params);
    double worst = 0;
    for (int32_t i = 0; i < n_lengths; i++) {
        const int32_t n = lengths[i];
        test_capture capture = test_capture_open(run.n_layers);
        tamis_session_set_tap(engine.session, test_capture_tap, &capture);
        worst = fmax(worst, test_prompt_against(&engine, dir, ids, n, run.logits, CLAIM, NULL));
        for (int32_t layer = 0; layer < run.n_layers; layer++)
            if (model.config.compress_ratios[layer] == 4)
                check_selection(dir, &run, &capture, layer, n - 1, model.config.index_topk);
        test_capture_close(&capture);
    }
    printf("%s: %d prompt lengths within %.2e of the oracle, selections equal\n", dir, n_lengths,
           worst);
    test_engine_close(&engine);
    oracle_v4_run_free(&run);
    oracle_v4_close(&model);
    free(ids);
    test_golden_close(golden);
}

static void test_lengths_flash_fp8(void **state)
{
    (void)state;
    check_lengths("tests/golden/v4-flash-fp8");
}
static void test_lengths_pro_fp8(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* one folder is enough to look for memory faults */
        skip();
    check_lengths("tests/golden/v4-pro-fp8");
}

/* Case 18: a token that matters at 28 of 57 positions, prompts of every residue of 4 and 128. */
static void check_needle(const char *dir)
{
    enum {
        NEEDLE = 28,
        SHORTEST = 57,
        LONGEST = SHORTEST + 127,
        STRIDE = TEST_IS_SANITIZED ? 11 : 3
    };
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    oracle_v4 model = oracle_v4_open(dir);
    const int32_t vocab = model.config.vocab_size;
    oracle_v4_run plain = oracle_v4_forward(&model, ids, LONGEST, false);
    ids[NEEDLE] = (ids[NEEDLE] + 1) % vocab;
    oracle_v4_run run = oracle_v4_forward(&model, ids, LONGEST, false);
    printf("%s: needle: margins of indexer %.2e, router %.2e\n", dir, run.index_margin,
           run.router_margin);
    assert_true(run.index_margin > 1e-6 && run.router_margin > 1e-6);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, LONGEST);
    test_engine engine = test_engine_open(dir, &params);
    double worst = 0, smallest_effect = INFINITY;
    float *last = calloc((size_t)vocab, sizeof *last);
    assert_non_null(last);
    for (int32_t n = SHORTEST; n <= LONGEST; n += n < SHORTEST + 4 ? 1 : STRIDE) {
        worst = fmax(worst, test_prompt_against(&engine, dir, ids, n, run.logits, CLAIM, last));
        smallest_effect =
            fmin(smallest_effect,
                 test_max_diff_f64(last, plain.logits + (int64_t)(n - 1) * vocab, vocab, NULL));
    }
    free(last);
    printf("%s: needle: within %.2e of the oracle; the needle moves logits by %.2e at least\n", dir,
           worst, smallest_effect);
    assert_true(smallest_effect > 10 * CLAIM);
    test_engine_close(&engine);
    oracle_v4_run_free(&plain);
    oracle_v4_run_free(&run);
    oracle_v4_close(&model);
    free(ids);
    test_golden_close(golden);
}

static void case_18_needle_at_any_residue(void **state)
{
    (void)state;
    check_needle("tests/golden/v4-flash-fp8");
    if (!TEST_IS_SANITIZED)
        check_needle("tests/golden/v4-pro-fp8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_frequencies), cmocka_unit_test(test_oracle_flash_bf16),
        cmocka_unit_test(test_oracle_flash_fp8),   cmocka_unit_test(test_oracle_pro_fp8),
        cmocka_unit_test(test_oracle_official),    cmocka_unit_test(test_lengths_flash_fp8),
        cmocka_unit_test(test_lengths_pro_fp8),    cmocka_unit_test(case_18_needle_at_any_residue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
