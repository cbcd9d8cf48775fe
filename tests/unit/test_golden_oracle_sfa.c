/*
 * The oracle of V3.2 and GLM-5 against the golden files of an independent program, and the engine
 * against the oracle: at the lengths where faults hide, each length as its own prompt, and with
 * bf16 caches. The oracle is causal and runs once at the longest length.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/golden_compare.h"
#include "support/oracle_v32.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM 2e-4

/* ---------------------------------------------------------------- worked examples */

static void test_oracle_softmax_scale(void **state)
{
    (void)state;
    assert_true(fabs(oracle_sfa_softmax_scale(192, 40, 1) - 0.13523378) < 1e-8);
    assert_true(oracle_sfa_softmax_scale(256, 1, 0) == 0.0625);
}

/* V3.2's own dimensions: plain up to 10, blended, a 40th from 23. */
static void test_oracle_frequencies(void **state)
{
    (void)state;
    const struct {
        int32_t j;
        double value;
    } table[] = {{0, 1},
                 {10, 0.0562341325},
                 {11, 0.0390069266},
                 {16, 0.0055},
                 {20, 0.000790569},
                 {22, 0.000177827942},
                 {23, 3.3338036e-5},
                 {31, 3.3338036e-6}};
    const tamis_rope_config rope = {.theta = 10000,
                                    .yarn_factor = 40,
                                    .original_max_position = 4096,
                                    .beta_fast = 32,
                                    .beta_slow = 1};
    double freq[32];
    oracle_rope_frequencies(freq, 64, &rope);
    for (size_t r = 0; r < sizeof table / sizeof *table; r++)
        assert_true(fabs(freq[table[r].j] / table[r].value - 1) < 1e-6);
}

static void test_oracle_choose(void **state)
{
    (void)state;
    const double scores[] = {0, -3, 0.5}, ties[] = {1, 2, 2, -INFINITY, 1};
    int32_t ids[4];
    assert_true(fabs(oracle_choose(ids, 2, scores, 3) - 1) < 1e-15); /* (0 - -3) / 3 */
    assert_true(ids[0] == 2 && ids[1] == 0);
    assert_true(oracle_choose(ids, 4, scores, 3) == 1);
    assert_true(ids[0] == 2 && ids[1] == 0 && ids[2] == 1 && ids[3] == -1);
    assert_true(oracle_choose(ids, 3, ties, 5) == 0);
    assert_true(ids[0] == 1 && ids[1] == 2 && ids[2] == 0);
}

/* ---------------------------------------------------------------- oracle against golden */

/* The oracle keeps the rotated part in neighbouring pairs, the file as two halves. */
static void check_pairs(test_oracle_check *check, int32_t layer, const char *stage,
                        const double *seen, int64_t first, int64_t rope)
{
    const char *name = test_golden_name(layer, stage);
    const int64_t n =
        test_golden_dim(check->golden, name, 0) * test_golden_dim(check->golden, name, 1);
    float *expected = test_golden_pairs(check->golden, name, first, rope);
    test_oracle_values(check, name, seen, expected, n);
    free(expected);
}

static void check_indexer(test_oracle_check *check, int32_t layer, const oracle_v32_run *run,
                          const tamis_model_config *config)
{
    const bool is_glm = config->family == TAMIS_FAMILY_GLM_MOE_DSA;
    const oracle_sfa *attn = &run->layers[layer].attn;
    assert_int_equal(test_golden_has(check->golden, test_golden_name(layer, "ikeys")),
                     attn->ikeys != NULL);
    if (attn->ikeys == NULL)
        return;
    check_pairs(check, layer, "ikeys", attn->ikeys, 0, is_glm ? config->qk_rope_head_dim : 0);
    const float *scores = test_golden_f32(check->golden, test_golden_name(layer, "iscores"), NULL);
    for (int64_t p = 0; p < check->n_pos; p++) {
        const int64_t pos = check->pos[p];
        test_oracle_values(check, "iscores", attn->scores + pos * run->n, scores + p * run->n,
                           pos + 1);
        for (int64_t t = pos + 1; t < run->n; t++)
            assert_true(scores[p * run->n + t] == -INFINITY &&
                        attn->scores[pos * run->n + t] == -INFINITY);
    }
}

/* The same sets; `all` holds k ids of every token. */
static void check_sets(const test_oracle_check *check, int32_t layer, const char *stage,
                       const int32_t *all)
{
    const char *name = test_golden_name(layer, stage);
    int32_t *golden = test_golden_ids(check->golden, name, NULL);
    const int64_t k = test_golden_dim(check->golden, name, 1);
    for (int64_t p = 0; p < check->n_pos; p++)
        test_golden_same_set(check->dir, layer, stage, check->pos[p], all + check->pos[p] * k,
                             golden + p * k, k);
    free(golden);
}

/* The file lists experts by number, the oracle by score. */
static void check_experts(test_oracle_check *check, int32_t layer, const oracle_v32_layer *seen)
{
    assert_int_equal(test_golden_has(check->golden, test_golden_name(layer, "experts")),
                     seen->experts != NULL);
    if (seen->experts == NULL)
        return;
    check_sets(check, layer, "experts", seen->experts);
    const float *weights =
        test_golden_f32(check->golden, test_golden_name(layer, "expert_weights"), NULL);
    const char *name = test_golden_name(layer, "experts");
    int32_t *ids = test_golden_ids(check->golden, name, NULL);
    const int64_t k = test_golden_dim(check->golden, name, 1);
    for (int64_t p = 0; p < check->n_pos; p++)
        for (int64_t i = 0; i < k * k; i++) {
            const int64_t own = check->pos[p] * k + i / k, given = p * k + i % k;
            if (seen->experts[own] == ids[given])
                test_oracle_values(check, "expert_weights", &seen->expert_weights[own],
                                   &weights[given], 1);
        }
    free(ids);
}

static void check_layer(test_oracle_check *check, int32_t i, const oracle_v32_run *run,
                        const tamis_model_config *config)
{
    const oracle_v32_layer *layer = &run->layers[i];
    test_oracle_stage(check, i, "attn_in", layer->attn_in);
    check_pairs(check, i, "latent", layer->attn.latent, config->kv_lora_rank,
                config->qk_rope_head_dim);
    check_indexer(check, i, run, config);
    check_sets(check, i, "topk", layer->topk);
    test_oracle_stage(check, i, "attn_out", layer->attn.out);
    check_experts(check, i, layer);
    test_oracle_stage(check, i, "ffn_out", layer->ffn_out);
    test_oracle_stage(check, i, "hidden", layer->hidden);
}

static void check_oracle(const char *dir)
{
    if (TEST_IS_SANITIZED) /* slow, and nothing of the library runs here but its loader */
        skip();
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int64_t n, n_pos, n_logits;
    int32_t *ids = test_golden_ids(golden, "ids", &n),
            *pos = test_golden_ids(golden, "pos", &n_pos);
    oracle_v32 model = oracle_v32_open(dir);
    oracle_v32_run run = oracle_v32_forward(&model, ids, (int32_t)n, false);
    test_oracle_check check = {
        .dir = dir, .claim = CLAIM, .golden = golden, .pos = pos, .n_pos = n_pos};
    for (int32_t i = 0; i < run.n_layers; i++)
        check_layer(&check, i, &run, &model.config);
    const double worst = check.worst;
    check.worst = 0;
    const float *logits = test_golden_f32(golden, "logits", &n_logits);
    test_oracle_values(&check, "logits", run.logits, logits, n_logits);
    printf("%s: oracle's logits within %.2e of golden, stages and rows within %.2e\n", dir,
           check.worst, worst);
    /* the margins that the generator demanded, found again */
    const double index_margin = oracle_v32_index_margin(&run, 0, (int32_t)n - 1),
                 router_margin = oracle_v32_router_margin(&run, 0, (int32_t)n - 1);
    printf("%s: margins of indexer %.3e, router %.3e\n", dir, index_margin, router_margin);
    assert_true(index_margin > 0.9e-4 && router_margin > 0.9e-4);
    oracle_v32_run_free(&run);
    oracle_v32_close(&model);
    free(ids);
    free(pos);
    test_golden_close(golden);
}

static void test_oracle_v32_bf16(void **state)
{
    (void)state;
    check_oracle("tests/golden/v32-bf16");
}
static void test_oracle_v32_fp8(void **state)
{
    (void)state;
    check_oracle("tests/golden/v32-fp8");
}
static void test_oracle_glm5_bf16(void **state)
{
    (void)state;
    check_oracle("tests/golden/glm5-bf16");
}
static void test_oracle_glm52_fp8(void **state)
{
    (void)state;
    check_oracle("tests/golden/glm52-fp8");
}

/* ---------------------------------------------------------------- engine against oracle */

/* The engine keeps a selection ascending, the oracle best first. */
static void check_selections(const char *dir, const oracle_v32_run *run,
                             const test_capture *capture, int32_t t, int32_t k)
{
    for (int32_t i = 0; i < run->n_layers; i++)
        test_golden_same_set(dir, i, "topk", t, test_capture_i32(capture, i, TAMIS_TAP_TOPK, t),
                             run->layers[i].topk + (int64_t)t * k, k);
}

/* Each length as a prompt of its own; the last logits and selections against the oracle's. */
static void check_lengths(const char *dir)
{
    enum { LONGEST = TEST_IS_SANITIZED ? 40 : 257 };
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL), lengths[64];
    oracle_v32 model = oracle_v32_open(dir);
    oracle_v32_run run = oracle_v32_forward(&model, ids, LONGEST, false);
    const int32_t k = model.config.index_topk;
    const int32_t n_lengths = test_border_lengths(lengths, &k, 1, LONGEST);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, LONGEST);
    test_engine engine = test_engine_open(dir, &params);
    double worst = 0;
    for (int32_t i = 0; i < n_lengths; i++) {
        const int32_t n = lengths[i];
        test_capture capture = test_capture_open(run.n_layers);
        tamis_session_set_tap(engine.session, test_capture_tap, &capture);
        worst = fmax(worst, test_prompt_against(&engine, dir, ids, n, run.logits, CLAIM, NULL));
        check_selections(dir, &run, &capture, n - 1, k);
        test_capture_close(&capture);
    }
    printf("%s: %d prompt lengths within %.2e of the oracle, selections equal\n", dir, n_lengths,
           worst);
    test_engine_close(&engine);
    oracle_v32_run_free(&run);
    oracle_v32_close(&model);
    free(ids);
    test_golden_close(golden);
}

static void test_lengths_v32_fp8(void **state)
{
    (void)state;
    check_lengths("tests/golden/v32-fp8");
}
static void test_lengths_glm52_fp8(void **state)
{
    (void)state;
    check_lengths("tests/golden/glm52-fp8");
}

/* Case 18: a token that matters at 28 of 57 positions, prompts n..n + 3 and up to n + 127. */
static void check_needle(const char *dir)
{
    enum { NEEDLE = 28, SHORTEST = 57, LONGEST = SHORTEST + 127 };
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    oracle_v32 model = oracle_v32_open(dir);
    const int32_t vocab = model.config.vocab_size;
    oracle_v32_run plain = oracle_v32_forward(&model, ids, LONGEST, false);
    ids[NEEDLE] = (ids[NEEDLE] + 1) % vocab;
    oracle_v32_run run = oracle_v32_forward(&model, ids, LONGEST, false);
    const double index_margin = oracle_v32_index_margin(&run, 0, LONGEST - 1),
                 router_margin = oracle_v32_router_margin(&run, 0, LONGEST - 1);
    printf("%s: needle: margins of indexer %.2e, router %.2e\n", dir, index_margin, router_margin);
    assert_true(index_margin > 1e-6 && router_margin > 1e-6);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, LONGEST);
    test_engine engine = test_engine_open(dir, &params);
    float *last = oracle_take(vocab, sizeof *last);
    double worst = 0, smallest_effect = INFINITY;
    for (int32_t n = SHORTEST; n <= LONGEST; n += n < SHORTEST + 4 ? 1 : 3) {
        worst = fmax(worst, test_prompt_against(&engine, dir, ids, n, run.logits, CLAIM, last));
        smallest_effect =
            fmin(smallest_effect,
                 test_max_diff_f64(last, plain.logits + (int64_t)(n - 1) * vocab, vocab, NULL));
    }
    printf("%s: needle: within %.2e of the oracle; the needle moves logits by %.2e at least\n", dir,
           worst, smallest_effect);
    assert_true(smallest_effect > 10 * CLAIM);
    free(last);
    test_engine_close(&engine);
    oracle_v32_run_free(&plain);
    oracle_v32_run_free(&run);
    oracle_v32_close(&model);
    free(ids);
    test_golden_close(golden);
}

static void case_18_needle_at_any_residue(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED)
        skip();
    check_needle("tests/golden/v32-fp8");
    check_needle("tests/golden/glm52-fp8");
}

/* ---------------------------------------------------------------- bf16 caches */
#define NEAR_TIE 2e-3 /* what a value rounded the other way may move a score by */

/* Rows of a tap over all n tokens in double, to be freed by the caller. */
static double *widened_stage(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                             int32_t n, int64_t width)
{
    double *out = oracle_take(n * width, sizeof *out);
    for (int32_t t = 0; t < n; t++) {
        const float *row = test_capture_f32(capture, layer, stage, t);
        for (int64_t i = 0; i < width; i++)
            out[t * width + i] = (double)row[i];
    }
    return out;
}

typedef struct distance {
    double largest, mean;
} distance;

static distance distance_of(const double *a, const double *b, int64_t n)
{
    distance d = {0};
    for (int64_t i = 0; i < n; i++) {
        d.largest = fmax(d.largest, fabs(a[i] - b[i]));
        d.mean += fabs(a[i] - b[i]) / (double)n;
    }
    return d;
}

/*
 * One layer with bf16 caches against the oracle that rounds the same rows, from the engine's own
 * input and selection: errors of earlier layers and near ties cannot add up. A value that falls on
 * the other side of a rounding border shows in `largest`, hardly in `mean`.
 */
static void check_rounded_layer(const char *dir, const tamis_sfa_layer *layer, int32_t i,
                                const test_capture *capture, int32_t n, int64_t *n_clear)
{
    const tamis_sfa_config *c = &layer->config;
    const int64_t hidden = c->hidden_size, k = c->index_topk;
    double *x = widened_stage(capture, i, TAMIS_TAP_ATTN_IN, n, hidden);
    double *seen = widened_stage(capture, i, TAMIS_TAP_ATTN_OUT, n, hidden);
    int32_t *topk = oracle_take(n * k, sizeof *topk);
    for (int32_t t = 0; t < n; t++)
        memcpy(topk + t * k, test_capture_i32(capture, i, TAMIS_TAP_TOPK, t),
               (size_t)k * sizeof *topk);
    const oracle_sfa_options rounding = {.given_topk = topk, .bf16_rows = true},
                             exact = {.given_topk = topk};
    oracle_sfa rounded = oracle_sfa_run(layer, x, n, &rounding);
    oracle_sfa plain = oracle_sfa_run(layer, x, n, &exact);
    const distance right = distance_of(seen, rounded.out, n * hidden),
                   other = distance_of(seen, plain.out, n * hidden);
    printf("%s: layer %d, bf16 rows: mean %.1e, largest %.1e from the rounding oracle, mean %.1e "
           "from the other\n",
           dir, i, right.mean, right.largest, other.mean);
    assert_true(right.mean < 1e-4 && right.largest < 5e-3 && other.mean > 50 * right.mean);
    for (int32_t t = 0; rounded.topk != NULL && t < n; t++)
        if (rounded.margins[t] > NEAR_TIE) {
            test_golden_same_set(dir, i, "topk", t, topk + t * k, rounded.topk + t * k, k);
            ++*n_clear;
        }
    oracle_sfa_free(&rounded);
    oracle_sfa_free(&plain);
    free(topk);
    free(seen);
    free(x);
}

/* First token at which some choice of some layer is a near tie. */
static int32_t first_near_tie(const oracle_v32_run *run)
{
    for (int32_t t = 0; t < run->n; t++)
        if (fmin(oracle_v32_index_margin(run, t, t), oracle_v32_router_margin(run, t, t)) <
            NEAR_TIE)
            return t;
    return run->n;
}

/* Prompts of every length before the first near tie: from then on the engine may rightly choose
 * otherwise, and everything after it differs. */
static void check_rounded_prompts(test_engine *engine, const char *dir, const oracle_v32 *model,
                                  const oracle_v32_run *run, const int32_t *ids)
{
    const int32_t n = first_near_tie(run);
    assert_true(n >= 10);
    oracle_v32_run plain = oracle_v32_forward(model, ids, n, false);
    const int64_t count = (int64_t)n * model->config.vocab_size;
    double worst = 0;
    for (int32_t i = 1; i <= n; i++)
        worst = fmax(worst, test_prompt_against(engine, dir, ids, i, run->logits, 1e-3, NULL));
    const double other = distance_of(run->logits, plain.logits, count).largest;
    printf("%s: bf16 rows: prompts of 1..%d within %.1e of the rounding oracle, %.1e from the "
           "other\n",
           dir, n, worst, other);
    assert_true(other > 10 * worst);
    oracle_v32_run_free(&plain);
}

static void check_bf16(const char *dir)
{
    enum { N = TEST_IS_SANITIZED ? 40 : 257 };
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    oracle_v32 model = oracle_v32_open(dir);
    oracle_v32_run run = oracle_v32_forward(&model, ids, N, true);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_BF16, N);
    test_engine engine = test_engine_open(dir, &params);
    test_capture capture = test_capture_open(run.n_layers);
    tamis_session_set_tap(engine.session, test_capture_tap, &capture);
    free(test_logits_of(&engine, ids, N, 0));
    int64_t n_clear = 0;
    for (int32_t i = 0; i < run.n_layers; i++)
        check_rounded_layer(dir, &model.weights->layers[i].sfa, i, &capture, N, &n_clear);
    printf("%s: bf16 rows: %lld clear selections equal\n", dir, (long long)n_clear);
    assert_true(n_clear > N);
    tamis_session_set_tap(engine.session, NULL, NULL);
    check_rounded_prompts(&engine, dir, &model, &run, ids);
    test_capture_close(&capture);
    test_engine_close(&engine);
    oracle_v32_run_free(&run);
    oracle_v32_close(&model);
    free(ids);
    test_golden_close(golden);
}

static void test_bf16_v32_fp8(void **state)
{
    (void)state;
    check_bf16("tests/golden/v32-fp8");
}
static void test_bf16_glm52_fp8(void **state)
{
    (void)state;
    check_bf16("tests/golden/glm52-fp8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_softmax_scale),
        cmocka_unit_test(test_oracle_frequencies),
        cmocka_unit_test(test_oracle_choose),
        cmocka_unit_test(test_oracle_v32_bf16),
        cmocka_unit_test(test_oracle_v32_fp8),
        cmocka_unit_test(test_oracle_glm5_bf16),
        cmocka_unit_test(test_oracle_glm52_fp8),
        cmocka_unit_test(test_lengths_v32_fp8),
        cmocka_unit_test(test_lengths_glm52_fp8),
        cmocka_unit_test(case_18_needle_at_any_residue),
        cmocka_unit_test(test_bf16_v32_fp8),
        cmocka_unit_test(test_bf16_glm52_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
