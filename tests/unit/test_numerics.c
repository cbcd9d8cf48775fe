/*
 * The lines of a profile's arithmetic: a line for each format that a stage's weights have, the
 * kinds of layers, and inputs that are what the linear layers really do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/size.h"
#include "engine/model_internal.h"
#include "ops/linear.h"
#include "support/engine_run.h"
#include "support/exec.h"
#include "support/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN TAMIS_SOURCE_DIR "/tests/golden/"

static tamis_model *open_model(const char *dir, tamis_profile profile)
{
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    tamis_error err;
    params.profile = profile;
    test_must(tamis_model_open_with(&model, dir, &params, &err), &err, dir);
    return model;
}

/* The n-th line of a stage; NULL: there are fewer. */
static const tamis_numerics_line *line_of(const tamis_model *model, const char *stage, int n)
{
    for (int32_t i = 0; i < model->numerics.n_lines; i++)
        if (strcmp(model->numerics.lines[i].stage, stage) == 0 && n-- == 0)
            return &model->numerics.lines[i];
    return NULL;
}

static void assert_line(const tamis_model *model, const char *stage, int n, const char *layers,
                        const char *weights, const char *input, const char *numeric)
{
    const tamis_numerics_line *line = line_of(model, stage, n);
    assert_non_null(line);
    assert_string_equal(line->layers, layers);
    assert_string_equal(line->weights, weights);
    assert_string_equal(line->input, input);
    assert_string_equal(line->numeric, numeric);
}

static const tamis_inspection *inspect(tamis_model *model)
{
    const tamis_inspection *in;
    tamis_error err;
    test_must(tamis_model_inspect(model, &in, &err), &err, "inspect");
    return in;
}

/* ---------------------------------------------------------------- lines */

/* Integers in some layers: layers 0 1 are windows, 2 4 C4, 3 C128. */
static void every_format_has_a_line(void **state)
{
    (void)state;
    static const tamis_static_quant input = {.input_scale = 1.0f};
    tamis_model *model = open_model(GOLDEN "v4-flash-fp8", TAMIS_PROFILE_ASCEND);
    tamis_layer_weights *layers = model->weights->layers;
    tamis_matrix *fixed = &layers[3].dsa.weights.wq_a, *per_token = &layers[4].dsa.weights.wq_a;
    tamis_error err;
    fixed->dtype = per_token->dtype = TAMIS_DTYPE_I8;
    fixed->input = &input;
    layers[2].moe.experts[1].w1.dtype = TAMIS_DTYPE_I4;
    test_must(tamis_numerics_make(&model->numerics, &model->config, model->weights, &err), &err,
              "lines");
    assert_line(model, "Q1 wq_a", 0, "window, C4", "F8_E4M3 + F8_E8M0 per 128x128",
                "FP8, groups of 32", "ordered");
    assert_line(model, "Q1 wq_a", 1, "C128", "I8, W8A8", "int8, scale and offset of the folder",
                "exact");
    assert_line(model, "Q1 wq_a", 2, "C4", "I8, W8A8_DYNAMIC", "int8, scale per token", "exact");
    assert_null(line_of(model, "Q1 wq_a", 3));
    const tamis_numerics_line *experts = line_of(model, "expert w1, w3", 1);
    assert_non_null(experts);
    assert_string_equal(experts->weights, "I4, W4A8_DYNAMIC");
    assert_string_equal(experts->layers, "experts");
    tamis_model_close(&model);
}

/* Stages of layers that the folder has not are not listed; sharing layers have no indexer. */
static void lines_are_those_of_the_folder(void **state)
{
    (void)state;
    tamis_model *model = open_model(GOLDEN "glm52-fp8", TAMIS_PROFILE_OFFICIAL);
    const tamis_inspection *in = inspect(model);
    assert_ptr_equal(in->numerics, model->numerics.lines);
    assert_int_equal(in->n_numerics, model->numerics.n_lines);
    assert_null(line_of(model, "Q1 wq_a", 0));
    assert_null(line_of(model, "e_proj, h_proj", 0));
    assert_string_equal(line_of(model, "q_a_proj", 0)->layers, "all");
    assert_string_equal(line_of(model, "index key", 0)->layers, "full");
    assert_string_equal(line_of(model, "index key", 0)->rows, "index-fp8");
    assert_int_equal(line_of(model, "index key", 0)->row_bytes, 32 + 4);
    assert_string_equal(line_of(model, "eh_proj", 0)->layers, "mtp");
    assert_string_equal(line_of(model, "w1, w3", 0)->layers, "dense");
    for (int32_t i = 0; i < in->n_numerics; i++) {
        const tamis_numerics_line *line = &in->numerics[i];
        assert_true(line->layers[0] != '\0' && line->weights[0] != '\0');
        assert_true(line->input != NULL && line->output != NULL && line->source != NULL);
        assert_true(strcmp(line->numeric, "exact") == 0 || strcmp(line->numeric, "ordered") == 0);
    }
    tamis_model_close(&model);
}

/* ---------------------------------------------------------------- inputs */

enum { ROWS = 6, COLS = 256 };

static void run(const tamis_matrix *w, const float *x, tamis_profile profile, float *y)
{
    tamis_exec exec = test_exec_open(1, TAMIS_CPU_PORTABLE, TAMIS_LINEAR_SCRATCH(COLS));
    const tamis_linear_job job = tamis_linear_full(w, x, y, 1);
    exec.profile = profile;
    exec.input_bytes = (size_t)tamis_round_up((int64_t)tamis_linear_input_bytes(1, 1, COLS), 64);
    exec.inputs = aligned_alloc(64, exec.input_bytes);
    assert_non_null(exec.inputs);
    tamis_linear_run(&exec, &job, 1);
    free(exec.inputs);
    test_exec_close(&exec);
}

/* "FP8, groups of 32" is what the table says of such a weight, and what is done with its input. */
static void inputs_are_as_the_lines_say(void **state)
{
    static const struct {
        tamis_profile profile;
        const char *input;
        int group; /* 0: as it is */
    } cases[] = {{TAMIS_PROFILE_EXACT, "as it is", 0},
                 {TAMIS_PROFILE_OFFICIAL, "FP8, groups of 128", 128},
                 {TAMIS_PROFILE_ASCEND, "FP8, groups of 32", 32}};
    (void)state;
    test_rng rng = test_rng_start("inputs_are_as_the_lines_say", 411);
    uint8_t codes[ROWS * COLS], scales[ROWS * 2];
    float x[COLS], rounded[COLS], seen[ROWS], expected[ROWS];
    for (int i = 0; i < ROWS * COLS; i++)
        codes[i] = (uint8_t)test_rng_int(&rng, 0x20, 0x50);
    for (int i = 0; i < ROWS * 2; i++)
        scales[i] = (uint8_t)test_rng_int(&rng, 120, 128);
    for (int i = 0; i < COLS; i++)
        x[i] = (float)test_rng_int(&rng, -999, 999) / (float)test_rng_int(&rng, 1, 300);
    const tamis_matrix w = {.dtype = TAMIS_DTYPE_F8_E4M3,
                            .rows = ROWS,
                            .cols = COLS,
                            .data = codes,
                            .row_bytes = COLS,
                            .scale = scales,
                            .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                            .block_rows = 1,
                            .block_cols = 128,
                            .scale_row_bytes = 2};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tamis_model *model = open_model(GOLDEN "v4-flash-fp8", cases[i].profile);
        inspect(model);
        assert_line(model, "Q1 wq_a", 0, "all", "F8_E4M3 + F8_E8M0 per 128x128", cases[i].input,
                    "ordered");
        tamis_model_close(&model);
        memcpy(rounded, x, sizeof x);
        if (cases[i].group > 0)
            tamis_kernels_current()->round_f8(rounded, x, COLS, cases[i].group);
        run(&w, rounded, TAMIS_PROFILE_EXACT, expected);
        if (cases[i].group > 0)
            tamis_kernels_current()->round_bf16(expected, ROWS);
        run(&w, x, cases[i].profile, seen);
        test_assert_same_bits(seen, expected, 1, ROWS, tamis_profile_name(cases[i].profile));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_has_a_line),
        cmocka_unit_test(lines_are_those_of_the_folder),
        cmocka_unit_test(inputs_are_as_the_lines_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
