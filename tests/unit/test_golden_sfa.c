/*
 * The engine with f32 caches against what transformers computed for the golden folders of V3.2 and
 * GLM-5: logits at every position, greedy continuation, every stage of every layer at the debug
 * positions, every cache row and index score, so that a fault names its layer and stage.
 * Claim: 2e-4 (tests/golden/README-sfa.md).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "model/v32.h"
#include "support/golden_compare.h"
#include "support/sanitized.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM 2e-4

typedef struct fixture {
    test_golden_run run;
    tamis_model_config config;
    const tamis_sfa_caches *caches;
    const int32_t *table; /* blocks of the sequence after the prefill */
    int32_t n_blocks, block_tokens;
} fixture;

static fixture fixture_open(const char *dir)
{
    fixture f = {.run = test_golden_run_open(dir, CLAIM)};
    tamis_error err;
    test_must(tamis_model_config_read(&f.config, dir, &err), &err, dir);
    tamis_session *session = f.run.engine.session;
    f.caches = tamis_v32_caches(tamis_session_net(session));
    f.table = tamis_session_block_table(session, f.run.seq, &f.n_blocks);
    f.block_tokens = session->params.block_tokens;
    assert_int_equal(f.n_blocks, (f.run.n + f.block_tokens - 1) / f.block_tokens);
    return f;
}

/* Cache row of a token; NULL if the layer has no such cache. */
static const float *cache_row(const fixture *f, int32_t layer, tamis_sfa_role role, int32_t token)
{
    return tamis_sfa_caches_row(f->caches, layer, role, f->table[token / f->block_tokens],
                                token % f->block_tokens);
}

/* ---------------------------------------------------------------- cache rows */

static void check_rows(const fixture *f, int32_t layer, const char *stage, tamis_sfa_role role,
                       const float *golden, double *worst)
{
    const int64_t width = test_golden_dim(f->run.golden, test_golden_name(layer, stage), 1);
    for (int32_t t = 0; t < f->run.n; t++) {
        const float *row = cache_row(f, layer, role, t);
        assert_non_null(row);
        test_golden_row(&f->run, layer, stage, t, row, golden + t * width, width, worst);
    }
}

static void check_latents(const fixture *f, int32_t layer, double *worst)
{
    float *golden = test_golden_pairs(f->run.golden, test_golden_name(layer, "latent"),
                                      f->config.kv_lora_rank, f->config.qk_rope_head_dim);
    check_rows(f, layer, "latent", TAMIS_SFA_LATENT, golden, worst);
    free(golden);
}

/* GLM rotates neighbouring pairs and V3.2 halves, which the file holds as they are. */
static void check_index_keys(const fixture *f, int32_t layer, double *worst)
{
    const bool is_glm = f->config.family == TAMIS_FAMILY_GLM_MOE_DSA;
    float *golden = test_golden_pairs(f->run.golden, test_golden_name(layer, "ikeys"), 0,
                                      is_glm ? f->config.qk_rope_head_dim : 0);
    check_rows(f, layer, "ikeys", TAMIS_SFA_INDEX_KEY, golden, worst);
    free(golden);
}

/* ---------------------------------------------------------------- index scores */

/* Scores of the query at `pos` over tokens 0..pos, by the kernel from the tapped query and the
 * cached keys. */
static void score_row(const fixture *f, int32_t layer, int32_t pos, float *scores)
{
    const tamis_kernels *kernels = tamis_kernels_current();
    const int32_t heads = f->config.index_n_heads, d = f->config.index_head_dim;
    const test_capture *capture = &f->run.capture;
    static _Alignas(64) float panels[4 * 16 * 256], keys[256],
        scratch[TAMIS_INDEX_SCRATCH(256, 64)];
    float weights[64] = {0};
    assert_true(heads <= 64 && d <= 256);
    kernels->pack_heads(panels, test_capture_f32(capture, layer, TAMIS_TAP_INDEX_QUERY, pos), heads,
                        d);
    memcpy(weights, test_capture_f32(capture, layer, TAMIS_TAP_INDEX_WEIGHTS, pos),
           (size_t)heads * sizeof *weights);
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, d);
    for (int32_t t = 0; t <= pos; t++) {
        memcpy(keys, cache_row(f, layer, TAMIS_SFA_INDEX_KEY, t), (size_t)d * sizeof *keys);
        kernels->index_score(&scores[t], panels, weights, heads, d, keys, &format,
                             d * (int64_t)sizeof *keys, 1, NULL, scratch);
    }
}

static void check_index_scores(const fixture *f, int32_t layer, double *worst)
{
    const test_golden_run *run = &f->run;
    const float *golden = test_golden_f32(run->golden, test_golden_name(layer, "iscores"), NULL);
    float *scores = calloc((size_t)run->n, sizeof *scores);
    assert_non_null(scores);
    for (int64_t p = 0; p < run->n_pos; p++) {
        const int32_t pos = run->pos[p];
        score_row(f, layer, pos, scores);
        test_golden_row(run, layer, "iscores", pos, scores, golden + p * run->n, pos + 1, worst);
        for (int64_t t = pos + 1; t < run->n; t++)
            assert_true(golden[p * run->n + t] == -INFINITY);
    }
    free(scores);
}

/* ---------------------------------------------------------------- layers */

/* No key cache, and the very lists of the nearest earlier layer that has one. */
static void check_shared(const fixture *f, int32_t layer)
{
    const int32_t k = f->config.index_topk;
    int32_t owner = layer;
    while (f->config.reuse_topk[owner])
        owner--;
    assert_null(cache_row(f, layer, TAMIS_SFA_INDEX_KEY, 0));
    for (int32_t t = 0; t < f->run.n; t++)
        assert_memory_equal(test_capture_i32(&f->run.capture, layer, TAMIS_TAP_TOPK, t),
                            test_capture_i32(&f->run.capture, owner, TAMIS_TAP_TOPK, t),
                            (size_t)k * sizeof(int32_t));
}

typedef struct differences {
    double stages, rows, scores;
} differences;

static void check_layer(const fixture *f, int32_t layer, differences *worst)
{
    const test_golden_run *run = &f->run;
    test_golden_stage(run, layer, "attn_in", TAMIS_TAP_ATTN_IN, &worst->stages);
    check_latents(f, layer, &worst->rows);
    assert_int_equal(f->config.reuse_topk[layer],
                     !test_golden_has(run->golden, test_golden_name(layer, "ikeys")));
    if (f->config.reuse_topk[layer]) {
        check_shared(f, layer);
    } else {
        check_index_keys(f, layer, &worst->rows);
        check_index_scores(f, layer, &worst->scores);
    }
    test_golden_topk(run, layer);
    test_golden_stage(run, layer, "attn_out", TAMIS_TAP_ATTN_OUT, &worst->stages);
    assert_int_equal(f->config.is_dense_layer[layer],
                     !test_golden_has(run->golden, test_golden_name(layer, "experts")));
    if (!f->config.is_dense_layer[layer])
        test_golden_experts(run, layer, &worst->stages);
    test_golden_stage(run, layer, "ffn_out", TAMIS_TAP_FFN_OUT, &worst->stages);
    test_golden_stage(run, layer, "hidden", TAMIS_TAP_HIDDEN, &worst->stages);
}

static void check_folder(const char *dir)
{
    fixture f = fixture_open(dir);
    differences worst = {0};
    for (int32_t layer = 0; layer < f.config.num_hidden_layers; layer++)
        check_layer(&f, layer, &worst);
    printf("%s: stages within %.2e at %lld positions, cache rows within %.2e, index scores within "
           "%.2e\n",
           dir, worst.stages, (long long)f.run.n_pos, worst.rows, worst.scores);
    test_golden_logits(&f.run);
    test_golden_greedy(&f.run);
    test_golden_run_close(&f.run);
}

static void test_v32_bf16(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* the FP8 folder takes the same way and more */
        skip();
    check_folder("tests/golden/v32-bf16");
}
static void test_v32_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/v32-fp8");
}
static void test_glm5_bf16(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED)
        skip();
    check_folder("tests/golden/glm5-bf16");
}
static void test_glm52_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/glm52-fp8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v32_bf16),
        cmocka_unit_test(test_v32_fp8),
        cmocka_unit_test(test_glm5_bf16),
        cmocka_unit_test(test_glm52_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
