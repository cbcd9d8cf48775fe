/* int8 and int4 matrices at the layers' door: what linear layers rely on is checked there. */
#include <math.h>

#include "attention/common/layer_checks.h"
#include "weights_test.h"

#define ROWS 6
#define COLS 10

typedef struct int_matrix {
    int8_t data[ROWS * COLS];
    float scale[ROWS + 1], deq_scale[ROWS + 1];
    int32_t bias[ROWS + 1];
    tamis_static_quant input;
    tamis_matrix w;
} int_matrix;

static void fill(int_matrix *m, tamis_dtype dtype)
{
    memset(m, 0, sizeof *m);
    m->input = (tamis_static_quant){0.5f, -128.0f, m->deq_scale, m->bias};
    m->w = (tamis_matrix){.dtype = dtype,
                          .rows = ROWS,
                          .cols = COLS,
                          .data = m->data,
                          .row_bytes = COLS,
                          .scale = m->scale,
                          .scale_dtype = TAMIS_DTYPE_F32,
                          .block_rows = 1,
                          .block_cols = COLS,
                          .scale_row_bytes = sizeof(float)};
}

static void expect_ok(const tamis_matrix *w)
{
    tamis_error err;
    if (tamis_check_matrix("wq_a", w, ROWS, w->cols, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
}

static void expect_refused(const tamis_matrix *w, tamis_status status, const char *part)
{
    tamis_error err;
    const tamis_status st = tamis_check_matrix("wq_a", w, ROWS, w->cols, &err);
    if (st != status)
        fail_msg("%s: status %d instead of %d", part, st, status);
    test_expect_part(err.text, "wq_a");
    test_expect_part(err.text, part);
    test_expect_part(err.text, "allowed");
}

static void test_scales(void **state)
{
    (void)state;
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_I8, TAMIS_DTYPE_I4};
    for (int i = 0; i < 2; i++) {
        int_matrix m;
        fill(&m, dtypes[i]);
        expect_ok(&m.w);
        m.w.block_cols = INT32_MAX;
        expect_ok(&m.w);
        m.w.block_cols = COLS - 1;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "1x9");
        m.w.block_cols = COLS;
        m.w.block_rows = 2;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "2x10");
        m.w.block_rows = 1;
        m.w.scale_dtype = TAMIS_DTYPE_F8_E8M0;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "F8_E8M0");
        m.w.scale_dtype = TAMIS_DTYPE_F32;
        m.w.scale_row_bytes = 8;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "8 bytes apart");
        m.w.scale_row_bytes = 4;
        m.w.scale = (const uint8_t *)(const void *)m.scale + 1;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "aligned");
        m.w.scale = NULL;
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "no scales");
    }
}

static void test_columns(void **state)
{
    (void)state;
    int_matrix m;
    fill(&m, TAMIS_DTYPE_I8);
    m.w.cols = m.w.row_bytes = m.w.block_cols = 65535; /* no data is read */
    expect_ok(&m.w);
    m.w.cols = m.w.row_bytes = m.w.block_cols = 65536;
    expect_refused(&m.w, TAMIS_STATUS_UNSUPPORTED, "65536 columns");
}

static void test_fixed_input(void **state)
{
    (void)state;
    static const float bad_scales[] = {0, -1, INFINITY, NAN};
    static const float bad_offsets[] = {-129, 128, 0.5f, NAN};
    int_matrix m;
    fill(&m, TAMIS_DTYPE_I8);
    m.w.input = &m.input;
    expect_ok(&m.w);
    for (int i = 0; i < 4; i++) {
        m.input.input_scale = bad_scales[i];
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "input_scale");
        m.input.input_scale = 1;
        m.input.input_offset = bad_offsets[i];
        expect_refused(&m.w, TAMIS_STATUS_INVALID, "input_offset");
        m.input.input_offset = 127;
        expect_ok(&m.w);
    }
    m.input.deq_scale = NULL;
    expect_refused(&m.w, TAMIS_STATUS_INVALID, "deq_scale");
    m.input.deq_scale = (const float *)(const void *)((const uint8_t *)m.deq_scale + 2);
    expect_refused(&m.w, TAMIS_STATUS_INVALID, "deq_scale");
    m.input.deq_scale = m.deq_scale;
    m.input.quant_bias = NULL;
    expect_refused(&m.w, TAMIS_STATUS_INVALID, "quant_bias");
    m.input.quant_bias = m.bias;
    m.w.dtype = TAMIS_DTYPE_I4;
    expect_refused(&m.w, TAMIS_STATUS_UNSUPPORTED, "I4 with a fixed input scale");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_fixed_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
