/*
 * Experts and dense layers in profiles official and ascend: every rounding point against numbers
 * computed here, for every form of weights; room for quantised inputs is never exceeded; company
 * in the batch and threads change no bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/mem.h"
#include "model/moe.h"
#include "support/engine_run.h"
#include "support/exec.h"
#include "support/guard.h"
#include "support/lowbit_ref.h"
#include "support/rig_parts.h"
#include "unit/int8_weights.h"

#include <stdlib.h>

enum { MAX_T = 9, HIDDEN = 40, WIDTH = 24, EXPERTS = 12, PER_TOKEN = 3, DENSE = 150 };

/* ---------------------------------------------------------------- weights */

typedef enum weight_form {
    FORM_BF16 = 0,
    FORM_FP8,
    FORM_INT8,   /* each token its own scale */
    FORM_STATIC, /* w1 and w3 share an input */
    FORM_APART,  /* w1 and w3 quantise x in two ways */
    NUM_FORMS
} weight_form;

/* BF16 eighths up to 7/8: all sums of products with few-bit inputs are exact in f32. */
static tamis_matrix eighths(test_owned *owned, int64_t rows, int64_t cols, test_rng *rng)
{
    uint16_t *data = int8_keep(owned, rows * cols, sizeof *data);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = (float)test_rng_int(rng, -7, 7) / 8;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        data[i] = (uint16_t)(bits >> 16);
    }
    return (tamis_matrix){
        .dtype = TAMIS_DTYPE_BF16, .rows = rows, .cols = cols, .data = data, .row_bytes = 2 * cols};
}

/* E4M3 from 1/8 to 4, one E8M0 scale of 1/4 for blocks of 128 x 128. */
static tamis_matrix fp8(test_owned *owned, int64_t rows, int64_t cols, test_rng *rng)
{
    uint8_t *data = int8_keep(owned, rows * cols, 1);
    uint8_t *scale = int8_keep(owned, 16, 1);
    memset(scale, 125, 16);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = (uint8_t)(test_rng_int(rng, 0, 1) << 7 | test_rng_int(rng, 4 << 3, (9 << 3) - 1));
    return (tamis_matrix){.dtype = TAMIS_DTYPE_F8_E4M3,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols,
                          .scale = scale,
                          .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                          .block_rows = 128,
                          .block_cols = 128,
                          .scale_row_bytes = (cols + 127) / 128};
}

static tamis_matrix weight(test_owned *owned, weight_form form, int64_t rows, int64_t cols,
                           float input_scale, test_rng *rng)
{
    if (form == FORM_BF16)
        return eighths(owned, rows, cols, rng);
    if (form == FORM_FP8)
        return fp8(owned, rows, cols, rng);
    if (form == FORM_INT8)
        return int8_dynamic(owned, rows, cols, rng);
    return int8_static(owned, rows, cols, input_scale, 2, rng);
}

typedef struct layer {
    tamis_model_config config;
    tamis_moe_weights weights;
    tamis_moe moe;
    tamis_profile profile;
    void *memory;
    test_owned owned[EXPERTS + 1];
} layer;

static tamis_expert_weights expert(test_owned *owned, weight_form form, int64_t width,
                                   test_rng *rng)
{
    const float other = form == FORM_APART ? 0.04f : 0.02f;
    return (tamis_expert_weights){.w1 = weight(owned, form, width, HIDDEN, 0.02f, rng),
                                  .w3 = weight(owned, form, width, HIDDEN, other, rng),
                                  .w2 = weight(owned, form, HIDDEN, width, 0.01f, rng)};
}

static layer *layer_open(tamis_profile profile, tamis_family family, weight_form form,
                         bool is_dense, test_rng *rng)
{
    layer *l = test_take(1, sizeof *l);
    l->profile = profile;
    l->config =
        (tamis_model_config){.family = family,
                             .vocab_size = 50,
                             .hidden_size = HIDDEN,
                             .num_hidden_layers = 1,
                             .moe_intermediate_size = WIDTH,
                             .intermediate_size = DENSE,
                             .n_routed_experts = EXPERTS,
                             .num_experts_per_tok = PER_TOKEN,
                             .n_shared_experts = 1,
                             .n_group = 1,
                             .topk_group = 1,
                             .scoring_func = TAMIS_SCORING_SIGMOID,
                             .norm_topk_prob = true,
                             .routed_scaling_factor = 1.5f,
                             .swiglu_limit = family == TAMIS_FAMILY_DEEPSEEK_V4 ? 1.0f : INFINITY};
    l->config.is_dense_layer[0] = is_dense;
    l->weights.experts = test_take(EXPERTS, sizeof *l->weights.experts);
    for (int e = 0; e < EXPERTS && !is_dense; e++)
        l->weights.experts[e] = expert(&l->owned[e], form, WIDTH, rng);
    l->weights.shared = expert(&l->owned[EXPERTS], form, is_dense ? DENSE : WIDTH, rng);
    if (!is_dense)
        l->weights.gate = eighths(&l->owned[EXPERTS], EXPERTS, HIDDEN, rng);
    l->moe = (tamis_moe){.config = &l->config, .max_tokens = MAX_T};
    tamis_arena arena = {0};
    tamis_moe_layout(&l->moe, &arena);
    arena = (tamis_arena){.bytes = arena.used, .base = tamis_mem_alloc(TAMIS_MEM_MISC, arena.used)};
    l->memory = arena.base;
    assert_non_null(l->memory);
    tamis_moe_layout(&l->moe, &arena);
    return l;
}

static void layer_close(layer *l)
{
    for (int e = 0; e <= EXPERTS; e++)
        test_owned_free(&l->owned[e]);
    free((void *)l->weights.experts);
    tamis_mem_free(l->memory);
    free(l);
}

/* Runs n tokens with exactly the room for inputs that the layer asks for. */
static void run(layer *l, const float *x, int32_t n, int n_threads, float *y, test_rng *rng)
{
    const size_t bytes = tamis_moe_input_bytes(&l->config, n);
    test_guard inputs = test_guard_new(bytes, 0, rng);
    tamis_exec exec = test_exec_open(n_threads, tamis_cpu_level_available(),
                                     tamis_moe_scratch_floats(&l->config));
    exec.profile = l->profile;
    exec.inputs = inputs.data;
    exec.input_bytes = bytes;
    assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, NULL, x, n, y));
    assert_true(test_guard_intact(&inputs));
    test_exec_close(&exec);
    test_guard_free(&inputs);
}

/* ---------------------------------------------------------------- the reference */

/* A BF16 value; is_sure: no f32 order or last bit of an exponential could have made it another. */
typedef struct bf16_value {
    double v;
    bool is_sure;
} bf16_value;

static bf16_value rounded(double value, double error)
{
    return (bf16_value){lowbit_bf16(value), error == 0 || lowbit_bf16_border(value) > error};
}

static double decoded(const tamis_matrix *w, int64_t r, int64_t c)
{
    float row[256];
    assert_true(w->cols <= 256);
    tamis_kernels_for(TAMIS_CPU_PORTABLE)->expand_row(row, w, r);
    return (double)row[c];
}

/* has_few_bits: of x, so that no f32 sum is rounded. */
static bf16_value float_product(const tamis_matrix *w, int64_t r, const double *x,
                                bool has_few_bits)
{
    float row[256];
    double sum = 0, size = 0;
    assert_true(w->cols <= 256);
    tamis_kernels_for(TAMIS_CPU_PORTABLE)->expand_row(row, w, r);
    for (int64_t c = 0; c < w->cols; c++) {
        sum += (double)row[c] * x[c];
        size += fabs((double)row[c] * x[c]);
    }
    return rounded(sum, has_few_bits ? 0 : size * 0x1p-20);
}

static bf16_value integer_product(const tamis_matrix *w, int64_t r, const double *codes,
                                  double token_scale)
{
    const tamis_static_quant *input = w->input;
    int64_t sum = input != NULL ? input->quant_bias[r] : 0;
    for (int64_t c = 0; c < w->cols; c++)
        sum += (int64_t)codes[c] * ((const int8_t *)w->data)[r * w->row_bytes + c];
    const float scale = input != NULL ? input->deq_scale[r] : ((const float *)w->scale)[r];
    const double y = lowbit_f32((double)(float)sum * (double)scale);
    return rounded(input != NULL ? y : lowbit_f32(y * token_scale), 0);
}

/* y = W x as the profile has it. */
static void multiply(bf16_value *y, const tamis_matrix *w, const double *x, tamis_profile profile,
                     bool has_few_bits)
{
    double in[256], scale = 0;
    const bool is_integer = w->dtype == TAMIS_DTYPE_I8;
    memcpy(in, x, (size_t)w->cols * sizeof *in);
    if (is_integer && w->input != NULL)
        lowbit_quantize_static(in, x, w->cols, w->input->input_scale, w->input->input_offset,
                               false);
    else if (is_integer)
        scale = lowbit_quantize(in, x, w->cols, LOWBIT_INT8, LOWBIT_AMAX);
    else if (w->dtype == TAMIS_DTYPE_F8_E4M3)
        lowbit_round_trip(in, x, w->cols, profile == TAMIS_PROFILE_OFFICIAL ? 128 : 32, LOWBIT_E4M3,
                          LOWBIT_POW2);
    for (int64_t r = 0; r < w->rows; r++)
        y[r] =
            is_integer ? integer_product(w, r, in, scale) : float_product(w, r, in, has_few_bits);
}

/* w2 of the rounded product; route: what V4's vendor multiplies in, else 1. false: not sure. */
static bool run_expert(bf16_value *y, const layer *l, const tamis_expert_weights *e,
                       const double *x, double route)
{
    bf16_value g[256], u[256];
    double h[256];
    const double limit = (double)l->config.swiglu_limit;
    bool is_sure = true;
    multiply(g, &e->w1, x, l->profile, true);
    multiply(u, &e->w3, x, l->profile, true);
    for (int64_t i = 0; i < e->w1.rows; i++) {
        const double gate = fmin(g[i].v, limit), up = fmax(fmin(u[i].v, limit), -limit);
        const double product = gate / (1 + exp(-gate)) * up * route;
        const bf16_value value = rounded(product, 1e-6 * fabs(product));
        is_sure = is_sure && g[i].is_sure && u[i].is_sure && (value.is_sure || product == 0);
        h[i] = value.v;
    }
    multiply(y, &e->w2, h, l->profile, false);
    return is_sure;
}

/* Counts channels of a token that agree; those that are not sure count as nothing. */
static int32_t check_token(const layer *l, int32_t t, const double *x, const float *y)
{
    const bool is_dense = l->weights.gate.rows == 0;
    const bool weighs_input =
        l->profile == TAMIS_PROFILE_OFFICIAL && l->config.family == TAMIS_FAMILY_DEEPSEEK_V4;
    float sum[HIDDEN] = {0};
    bool is_sure[HIDDEN], all_sure = true;
    bf16_value out[HIDDEN];
    int32_t n = 0;
    memset(is_sure, 1, sizeof is_sure);
    for (int32_t j = 0; j < PER_TOKEN && !is_dense; j++) {
        const int32_t id = l->moe.ids[t * PER_TOKEN + j];
        const float weight = l->moe.weights[t * PER_TOKEN + j];
        all_sure =
            run_expert(out, l, &l->weights.experts[id], x, weighs_input ? (double)weight : 1) &&
            all_sure;
        for (int32_t d = 0; d < HIDDEN; d++) {
            sum[d] = fmaf(weighs_input ? 1 : weight, (float)out[d].v, sum[d]);
            is_sure[d] = is_sure[d] && out[d].is_sure;
        }
    }
    all_sure = run_expert(out, l, &l->weights.shared, x, 1) && all_sure;
    for (int32_t d = 0; d < HIDDEN && all_sure; d++) {
        const double expected = lowbit_bf16((double)(sum[d] + (float)out[d].v));
        if (!is_sure[d] || !out[d].is_sure)
            continue;
        if ((double)y[d] != expected)
            fail_msg("token %d, channel %d: %.9g, expected %.9g", t, d, (double)y[d], expected);
        n++;
    }
    return n;
}

/* The router is f32: sigmoid of exact logits, normalised, times the factor. */
static void check_router(const layer *l, int32_t t, const double *x)
{
    double sum = 0, w[PER_TOKEN];
    for (int32_t j = 0; j < PER_TOKEN; j++) {
        double logit = 0;
        for (int32_t c = 0; c < HIDDEN; c++)
            logit += decoded(&l->weights.gate, l->moe.ids[t * PER_TOKEN + j], c) * x[c];
        sum += w[j] = 1 / (1 + exp(-logit));
    }
    for (int32_t j = 0; j < PER_TOKEN; j++)
        assert_true(fabs((double)l->moe.weights[t * PER_TOKEN + j] - 1.5 * w[j] / sum) < 1e-6);
}

/* ---------------------------------------------------------------- tests */

static void check_layer(tamis_profile profile, tamis_family family, weight_form form, bool is_dense,
                        test_rng *rng)
{
    layer *l = layer_open(profile, family, form, is_dense, rng);
    float x[MAX_T * HIDDEN], y[MAX_T * HIDDEN], alone[HIDDEN];
    double wide[MAX_T * HIDDEN];
    int32_t n = 0;
    for (int32_t i = 0; i < MAX_T * HIDDEN; i++)
        wide[i] = (double)(x[i] = (float)test_rng_int(rng, -7, 7) / 4);
    run(l, x, MAX_T, 2, y, rng);
    for (int32_t t = 0; t < MAX_T; t++) {
        n += check_token(l, t, wide + t * HIDDEN, y + t * HIDDEN);
        if (!is_dense)
            check_router(l, t, wide + t * HIDDEN);
    }
    print_message("%s, family %d, form %d%s: %d of %d values compared\n",
                  tamis_profile_name(profile), (int)family, (int)form, is_dense ? ", dense" : "", n,
                  MAX_T * HIDDEN);
    assert_true(n > MAX_T * HIDDEN / 4);
    for (int32_t t = 0; t < MAX_T; t++) {
        run(l, x + t * HIDDEN, 1, 1, alone, rng);
        test_assert_same_bits(alone, y + t * HIDDEN, 1, HIDDEN, "a token alone");
    }
    layer_close(l);
}

static void official_experts(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("official", 61);
    for (int form = 0; form <= FORM_FP8; form++) {
        check_layer(TAMIS_PROFILE_OFFICIAL, TAMIS_FAMILY_DEEPSEEK_V4, (weight_form)form, false,
                    &rng);
        check_layer(TAMIS_PROFILE_OFFICIAL, TAMIS_FAMILY_DEEPSEEK_V32, (weight_form)form, false,
                    &rng);
        check_layer(TAMIS_PROFILE_OFFICIAL, TAMIS_FAMILY_GLM_MOE_DSA, (weight_form)form, true,
                    &rng);
    }
}

static void ascend_experts(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("ascend", 62);
    for (int form = 0; form < NUM_FORMS; form++) {
        check_layer(TAMIS_PROFILE_ASCEND, TAMIS_FAMILY_DEEPSEEK_V4, (weight_form)form, false, &rng);
        check_layer(TAMIS_PROFILE_ASCEND, TAMIS_FAMILY_GLM_MOE_DSA, (weight_form)form, false, &rng);
        check_layer(TAMIS_PROFILE_ASCEND, TAMIS_FAMILY_DEEPSEEK_V32, (weight_form)form, true, &rng);
    }
}

/* Weighing before w2 and after it are two things: V4's vendor does the one, V3.2's the other. */
static void families_weigh_in_different_places(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("places", 63);
    layer *l = layer_open(TAMIS_PROFILE_OFFICIAL, TAMIS_FAMILY_DEEPSEEK_V4, FORM_FP8, false, &rng);
    float x[MAX_T * HIDDEN], y[2][MAX_T * HIDDEN];
    l->config.swiglu_limit = INFINITY;
    for (int32_t i = 0; i < MAX_T * HIDDEN; i++)
        x[i] = (float)test_rng_int(&rng, -7, 7) / 4;
    run(l, x, MAX_T, 1, y[0], &rng);
    l->config.family = TAMIS_FAMILY_DEEPSEEK_V32;
    run(l, x, MAX_T, 1, y[1], &rng);
    assert_memory_not_equal(y[0], y[1], sizeof y[0]);
    layer_close(l);
}

/* A NaN that only a float w1 brings in: the static int8 codes of w2 would be numbers again. */
static void static_codes_hide_no_nan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("NaN", 64);
    for (int is_dense = 0; is_dense < 2; is_dense++) {
        layer *l = layer_open(TAMIS_PROFILE_ASCEND, TAMIS_FAMILY_DEEPSEEK_V32, FORM_STATIC,
                              is_dense, &rng);
        tamis_expert_weights *shared = &l->weights.shared;
        float x[MAX_T * HIDDEN], y[MAX_T * HIDDEN];
        for (int32_t i = 0; i < MAX_T * HIDDEN; i++)
            x[i] = (float)test_rng_int(&rng, -7, 7) / 4;
        shared->w1 = eighths(&l->owned[EXPERTS], shared->w1.rows, HIDDEN, &rng);
        run(l, x, MAX_T, 1, y, &rng);
        ((uint16_t *)shared->w1.data)[3 * HIDDEN + 5] = 0x7fc0;
        tamis_exec exec =
            test_exec_open(1, tamis_cpu_level_available(), tamis_moe_scratch_floats(&l->config));
        exec.profile = l->profile;
        exec.input_bytes = tamis_moe_input_bytes(&l->config, MAX_T);
        exec.inputs = test_take((int64_t)exec.input_bytes, 1);
        assert_false(tamis_moe_forward(&l->moe, &exec, &l->weights, NULL, x, MAX_T, y));
        free(exec.inputs);
        test_exec_close(&exec);
        layer_close(l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(official_experts),
        cmocka_unit_test(ascend_experts),
        cmocka_unit_test(families_weigh_in_different_places),
        cmocka_unit_test(static_codes_hide_no_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
