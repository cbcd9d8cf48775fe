/*
 * Profiles official and ascend on single layers of V3.2 and GLM with random weights, against the
 * slow reference of profile_ref_sfa.h: what the small golden folders do not have. Lists of several
 * chunks of attention, rows of several scale groups with a short last one, more than one panel of
 * index heads, several requests a step that go on from earlier ones; W8A8 static and dynamic, W4A8.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/profile_ref_sfa.h"
#include "support/sanitized.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST  (TEST_IS_SANITIZED ? 20 : 90) /* tokens of the steps below */
#define SECOND (TEST_IS_SANITIZED ? 90 : 110)
#define OTHER  (TEST_IS_SANITIZED ? 10 : 40)

/* 300 + 32 values a row: groups of 128, 128 and 44. */
static tamis_sfa_config small_config(test_sfa_family family)
{
    tamis_sfa_config c = test_sfa_odd_config(family);
    c.hidden_size = 96;
    c.kv_lora_rank = 300;
    c.qk_rope_head_dim = 32;
    c.index_n_heads = 20;
    c.index_head_dim = 64;
    c.index_topk = TEST_IS_SANITIZED ? 70 : 150;
    c.softmax_scale = tamis_sfa_softmax_scale(56, c.rope.yarn_factor, 1);
    return c;
}

/* ---------------------------------------------------------------- int8 weights */

typedef enum int_form { W8A8_DYNAMIC, W8A8_STATIC, W4A8 } int_form;

static void *own(test_owned *owned, int64_t n, size_t size)
{
    void *block = test_take(n, size);
    assert_true(owned->n_blocks < (int)(sizeof owned->blocks / sizeof *owned->blocks));
    owned->blocks[owned->n_blocks++] = block;
    return block;
}

/* Inputs have magnitudes up to 4 or so: some are clamped. */
static void add_static_input(tamis_matrix *w, test_owned *owned, test_rng *rng)
{
    tamis_static_quant *input = own(owned, 1, sizeof *input);
    float *deq_scale = own(owned, w->rows, sizeof *deq_scale);
    int32_t *bias = own(owned, w->rows, sizeof *bias);
    input->input_scale = test_rng_float(rng, 0.02f, 0.03f);
    input->input_offset = (float)test_rng_int(rng, -10, 10);
    for (int64_t r = 0; r < w->rows; r++) {
        const int8_t *row = (const int8_t *)w->data + r * w->row_bytes;
        float scale;
        memcpy(&scale, (const uint8_t *)w->scale + r * w->scale_row_bytes, sizeof scale);
        deq_scale[r] = input->input_scale * scale;
        for (int64_t c = 0; c < w->cols; c++)
            bias[r] -= (int32_t)input->input_offset * row[c];
    }
    input->deq_scale = deq_scale;
    input->quant_bias = bias;
    w->input = input;
}

/* Same shape, of the size that keeps activations near 1. */
static void make_integer(tamis_matrix *w, int_form form, test_owned *owned, test_rng *rng)
{
    const int64_t n_rows = form == W4A8 ? (w->rows + 1) / 2 : w->rows;
    int8_t *data = own(owned, n_rows * w->cols, 1);
    float *scale = own(owned, w->rows, sizeof *scale);
    const float unit = 1.7f / sqrtf((float)w->cols) / (form == W4A8 ? 8 : 128);
    test_rng_fill_bytes(rng, data, (size_t)(n_rows * w->cols));
    for (int64_t r = 0; r < w->rows; r++)
        scale[r] = unit * test_rng_float(rng, 0.5f, 1.5f);
    *w = (tamis_matrix){.dtype = form == W4A8 ? TAMIS_DTYPE_I4 : TAMIS_DTYPE_I8,
                        .rows = w->rows,
                        .cols = w->cols,
                        .data = data,
                        .row_bytes = w->cols,
                        .scale = scale,
                        .scale_dtype = TAMIS_DTYPE_F32,
                        .block_rows = 1,
                        .block_cols = (int32_t)w->cols,
                        .scale_row_bytes = sizeof *scale};
    if (form == W8A8_STATIC)
        add_static_input(w, owned, rng);
}

/* kv_b_proj stays BF16 (it is absorbed), weights_proj too. */
static void make_layer_integer(test_sfa_layer *layer, int_form form, test_rng *rng)
{
    tamis_sfa_weights *w = &layer->layer.weights;
    tamis_matrix *const all[] = {&w->q_a_proj, &w->kv_a_proj, &w->q_b_proj,
                                 &w->o_proj,   &w->index_wk,  &w->index_wq_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        make_integer(all[i], form, &layer->owned, rng);
    w->q_a_norm_bias =
        test_random_vector(&layer->owned, layer->layer.config.q_lora_rank, 0, 0.3f, rng);
}

/* ---------------------------------------------------------------- steps */

/* One step of n sequences, checked between the operators. */
static void check_step(profile_case *c, test_sfa_rig *rig, test_sfa_seq *const *seqs,
                       const int32_t *counts, int32_t n, test_rng *rng)
{
    const tamis_sfa_layer *layer = &rig->layers[0];
    int32_t n_tokens = 0;
    tamis_error err;
    for (int32_t i = 0; i < n; i++)
        n_tokens += counts[i];
    float *x = test_inputs(n_tokens, layer->config.hidden_size, rng);
    float *out = test_take((int64_t)n_tokens * layer->config.hidden_size, sizeof *out);
    for (int64_t i = 0; i < (int64_t)n_tokens * layer->config.hidden_size; i++)
        x[i] = ldexpf(x[i], -(int)(i % 11)); /* far apart, so that scales and groups count */
    tamis_kernels_current()->round_bf16(x, (int64_t)n_tokens * layer->config.hidden_size);
    test_sfa_plan(rig, seqs, counts, n);
    const profile_layer l = {layer, 0, rig->plan, rig->caches, x};
    test_must(tamis_sfa_preprocess(layer, 0, rig->plan, rig->caches, x, rig->team, &err), &err,
              "preprocess");
    profile_check_preprocess(c, &l);
    test_must(tamis_sfa_select(layer, 0, rig->plan, rig->caches, rig->team, &err), &err, "select");
    test_must(tamis_sfa_attend(layer, 0, rig->plan, rig->caches, NULL, 0, NULL, rig->team, &err),
              &err, "attend");
    test_must(tamis_sfa_output(layer, 0, rig->plan, rig->caches, out, rig->team, &err), &err,
              "output");
    profile_check_output(c, &l, out);
    free(x);
    free(out);
}

static void check_layer(const char *name, const test_sfa_layer *layer, tamis_profile profile,
                        tamis_dtype kv_cache_dtype, test_rng *rng)
{
    const int32_t max_len = FIRST + SECOND;
    tamis_cache_params params = test_sfa_params(max_len);
    params.profile = profile;
    params.kv_cache_dtype = kv_cache_dtype;
    test_sfa_rig rig = test_sfa_rig_open(&layer->layer, 1, &params, max_len, 1);
    test_sfa_seq a = test_sfa_seq_open(&rig), b = test_sfa_seq_open(&rig), *seqs[] = {&b, &a};
    profile_case c = profile_case_open(name, profile, kv_cache_dtype);
    check_step(&c, &rig, seqs + 1, (int32_t[]){FIRST}, 1, rng);
    check_step(&c, &rig, seqs, (int32_t[]){OTHER, SECOND}, 2, rng);
    profile_case_close(&c);
    test_sfa_rig_close(&rig);
}

/* ---------------------------------------------------------------- cases */

static void official(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("official", 71);
    for (int i = 0; i < 2; i++) {
        const tamis_sfa_config config = small_config(i == 0 ? TEST_SFA_V32 : TEST_SFA_GLM);
        const tamis_dtype dtype = i == 0 ? TAMIS_DTYPE_F8_E4M3 : TAMIS_DTYPE_BF16;
        test_sfa_layer layer = test_sfa_layer_random(&config, dtype, &rng);
        check_layer(i == 0 ? "V3.2 in FP8" : "GLM in BF16", &layer, TAMIS_PROFILE_OFFICIAL,
                    TAMIS_DTYPE_F8_E4M3, &rng);
        test_sfa_layer_free(&layer);
    }
}

static void ascend_float(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("ascend_float", 72);
    const tamis_sfa_config config = small_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&config, TAMIS_DTYPE_F8_E4M3, &rng);
    check_layer("V3.2 in MX-FP8", &layer, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, &rng);
    test_sfa_layer_free(&layer);
}

static void ascend_integer(void **state)
{
    (void)state;
    static const char *const names[] = {"W8A8 dynamic", "W8A8 static", "W4A8"};
    test_rng rng = test_rng_start("ascend_integer", 73);
    for (int i = 0; i < 3; i++) {
        const tamis_sfa_config config = small_config(i == 1 ? TEST_SFA_V32 : TEST_SFA_GLM);
        test_sfa_layer layer = test_sfa_layer_random(&config, TAMIS_DTYPE_BF16, &rng);
        make_layer_integer(&layer, (int_form)i, &rng);
        check_layer(names[i], &layer, TAMIS_PROFILE_ASCEND,
                    i == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_BF16, &rng);
        test_sfa_layer_free(&layer);
    }
}

/* Rows of 512 + 64 values and index heads of 128, as published: 656 and 132 or 130 bytes. */
static void real_rows(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("real_rows", 74);
    tamis_sfa_config config = small_config(TEST_SFA_V32);
    config.num_heads = 2;
    config.kv_lora_rank = 512;
    config.qk_rope_head_dim = 64;
    config.index_n_heads = 8;
    config.index_head_dim = 128;
    config.index_topk = 40;
    test_sfa_layer layer = test_sfa_layer_random(&config, TAMIS_DTYPE_F8_E4M3, &rng);
    check_layer("real rows", &layer, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, &rng);
    check_layer("real rows", &layer, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, &rng);
    test_sfa_layer_free(&layer);
    assert_int_equal(lowbit_row_of(LOWBIT_ROW_656_FLASHMLA, 576, 64).bytes, 656);
    assert_int_equal(lowbit_row_of(LOWBIT_ROW_656_ASCEND, 576, 64).bytes, 656);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(official),
        cmocka_unit_test(ascend_float),
        cmocka_unit_test(ascend_integer),
        cmocka_unit_test(real_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
