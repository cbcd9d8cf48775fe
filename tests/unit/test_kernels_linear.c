/*
 * linear and expand_row: every level against portable bit for bit, portable against doubles.
 *
 * Weights and scales end at protected pages, so reading one byte too far is a crash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/kernel_ref.h"

static const tamis_dtype weight_types[] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F16,
                                           TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F4_E2M1};
#define NUM_WEIGHT_TYPES 5
/* Below, at and above 16 lanes, scale blocks of 32 and 128, column blocks of 512. */
static const int64_t all_cols[] = {1,   2,   3,   7,   15,  16,  17,  31,  32,  33,
                                   40,  48,  88,  96,  127, 128, 129, 136, 255, 256,
                                   257, 300, 511, 512, 513, 530, 640, 1025};
#define NUM_COLS (int64_t)(sizeof all_cols / sizeof *all_cols)

typedef struct linear_case {
    kernel_matrix matrix;
    int64_t row_begin, row_end, n_tokens, x_stride, y_stride;
    kernel_page x;
} linear_case;

static linear_case case_new(test_rng *rng, tamis_dtype dtype, int64_t cols, int64_t n_tokens,
                            kernel_data kind, bool special)
{
    const bool low_bits = dtype == TAMIS_DTYPE_F8_E4M3 || dtype == TAMIS_DTYPE_F4_E2M1;
    const bool scaled = test_rng_int(rng, 0, 3) > (low_bits ? 0 : 2);
    const int64_t rows =
        test_rng_int(rng, 0, 7) == 0 ? test_rng_int(rng, 120, 140) : test_rng_int(rng, 1, 14);
    linear_case c = {.matrix = kernel_matrix_new(rng, dtype, rows, cols, scaled, special)};
    c.row_begin = test_rng_int(rng, rows > 20 ? rows - 14 : 0, rows - 1);
    c.row_end = test_rng_int(rng, c.row_begin, rows);
    c.n_tokens = n_tokens;
    c.x_stride = cols + test_rng_int(rng, 0, 5);
    c.y_stride = rows + test_rng_int(rng, 0, 5);
    c.x = kernel_page_new((size_t)((n_tokens - 1) * c.x_stride + cols) * sizeof(float));
    for (int64_t t = 0; t < n_tokens; t++)
        kernel_fill(rng, kind, (float *)c.x.data + t * c.x_stride, (size_t)cols);
    return c;
}

static void case_free(linear_case *c)
{
    kernel_matrix_free(&c->matrix);
    kernel_page_free(&c->x);
}

/* Runs one level into a guarded buffer whose noise depends on `noise` only. */
static test_guard case_run(const linear_case *c, tamis_cpu_level level, test_rng noise)
{
    const size_t n = (size_t)(c->n_tokens * c->y_stride);
    test_guard y = test_guard_new(n * sizeof(float), 4 * (noise.state % 16), &noise);
    test_guard scratch =
        test_guard_new(TAMIS_LINEAR_SCRATCH(c->matrix.view.cols) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->linear(y.data, c->y_stride, c->x.data, c->x_stride, c->n_tokens,
                                     &c->matrix.view, c->row_begin, c->row_end, scratch.data,
                                     false);
    assert_true(test_guard_intact(&y));
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void check_levels(const linear_case *c, test_rng *rng)
{
    const test_rng noise = *rng;
    test_guard want = case_run(c, TAMIS_CPU_PORTABLE, noise);
    for (int level = 1; level <= (int)tamis_cpu_level_available(); level++) {
        test_guard got = case_run(c, (tamis_cpu_level)level, noise);
        const int64_t at = kernel_first_difference(want.data, got.data, want.bytes / sizeof(float));
        if (at >= 0)
            fail_msg("level %d, %s, %lld x %lld, scale %d (%d x %d, %s), rows %lld..%lld, %lld "
                     "tokens: y[%lld] is %a, portable %a",
                     level, tamis_dtype_name(c->matrix.view.dtype), (long long)c->matrix.view.rows,
                     (long long)c->matrix.view.cols, c->matrix.view.scale != NULL,
                     c->matrix.view.block_rows, c->matrix.view.block_cols,
                     tamis_dtype_name(c->matrix.view.scale_dtype), (long long)c->row_begin,
                     (long long)c->row_end, (long long)c->n_tokens, (long long)at,
                     (double)((float *)got.data)[at], (double)((float *)want.data)[at]);
        test_guard_free(&got);
    }
    test_guard_free(&want);
    test_rng_u64(rng);
}

static void test_levels_agree(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear levels", 20240501);
    static const int64_t tokens[] = {1, 1, 2, 3, 4, 5, 6, 7, 8, 23, 24, 25, 26, 50};
    for (int round = 0; round < 8; round++)
        for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
            for (int64_t i = 0; i < NUM_COLS; i++) {
                const kernel_data kind = (kernel_data)test_rng_int(&rng, 0, KERNEL_NUM_DATA - 1);
                linear_case c = case_new(&rng, weight_types[type], all_cols[i],
                                         tokens[test_rng_int(&rng, 0, all_cols[i] > 300 ? 8 : 13)],
                                         kind, test_rng_int(&rng, 0, 2) == 0);
                check_levels(&c, &rng);
                case_free(&c);
            }
}

/* |error| <= (additions per lane + tree + product with the scale) half ulps of the sum of |terms|.
 */
static void check_against_double(const linear_case *c, test_rng noise)
{
    test_guard y = case_run(c, TAMIS_CPU_PORTABLE, noise);
    const tamis_matrix *w = &c->matrix.view;
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t r = c->row_begin; r < c->row_end; r++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < w->cols; k++) {
                const double term =
                    kernel_ref_weight(w, r, k) * (double)((float *)c->x.data)[t * c->x_stride + k];
                sum += term;
                magnitude += fabs(term);
            }
            const double bound = (double)(w->cols / 16 + 7) * 0x1p-24 * magnitude + 1e-44;
            const double got = (double)((float *)y.data)[t * c->y_stride + r - c->row_begin];
            assert_true(fabs(got - sum) <= bound);
        }
    test_guard_free(&y);
}

static void test_portable_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear double", 20240502);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
        for (int64_t i = 0; i < NUM_COLS; i++) {
            linear_case c = case_new(&rng, weight_types[type], all_cols[i],
                                     test_rng_int(&rng, 1, 3), KERNEL_DATA_NORMAL, false);
            check_against_double(&c, rng);
            case_free(&c);
        }
}

/* expand_row: the one f32 product of decoded value and scale, at every level. */
static void test_expand_row(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("expand_row", 20240503);
    for (int round = 0; round < 4; round++)
        for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
            for (int64_t i = 0; i < NUM_COLS; i++) {
                const int64_t cols = all_cols[i], row = test_rng_int(&rng, 0, 4);
                kernel_matrix m = kernel_matrix_new(&rng, weight_types[type], 5, cols,
                                                    test_rng_int(&rng, 0, 2) > 0, round % 2 == 0);
                for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
                    test_guard out = test_guard_new((size_t)cols * sizeof(float), 4, &rng);
                    tamis_kernels_for((tamis_cpu_level)level)->expand_row(out.data, &m.view, row);
                    for (int64_t c = 0; c < cols; c++)
                        assert_true(kernel_same_f32(((float *)out.data)[c],
                                                    (float)kernel_ref_weight(&m.view, row, c)));
                    assert_true(test_guard_intact(&out));
                    test_guard_free(&out);
                }
                kernel_matrix_free(&m);
            }
}

/* ---------------------------------------------------------------- formats in a matrix */

/* The value that linear gives for one weight in column `col` of 32, others zero, x = 1. */
static float weight_through_linear(tamis_cpu_level level, tamis_dtype dtype, uint8_t byte, int col,
                                   uint8_t scale_byte)
{
    uint8_t row[32] = {0};
    float x[32], y = 77.0f;
    _Alignas(64) float scratch[TAMIS_LINEAR_SCRATCH(32)];
    row[col] = byte;
    for (int i = 0; i < 32; i++)
        x[i] = 1.0f;
    const tamis_matrix w = {.dtype = dtype,
                            .rows = 1,
                            .cols = 32,
                            .data = row,
                            .row_bytes = 32,
                            .scale = &scale_byte,
                            .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                            .block_rows = 1,
                            .block_cols = 32,
                            .scale_row_bytes = 1};
    tamis_kernels_for(level)->linear(&y, 1, x, 32, 1, &w, 0, 1, scratch, false);
    return y;
}

/* Case 21: E8M0 bytes 0, 120, 127, 254, 255 are 2^-127, 2^-7, 1, 2^127, NaN; no level folds a
 * factor into the scale that overflows; an FP8 NaN in any column is NaN. */
static void test_scales_and_nan(void **state)
{
    (void)state;
    static const uint8_t scales[] = {0, 1, 7, 8, 120, 127, 246, 247, 248, 254, 255};
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
        for (size_t s = 0; s < sizeof scales; s++)
            for (int byte = 0; byte < 256; byte++) {
                const float got = weight_through_linear((tamis_cpu_level)level, TAMIS_DTYPE_F8_E4M3,
                                                        (uint8_t)byte, byte % 32, scales[s]);
                /* a sum that starts at +0 never ends at -0; 0 * NaN of the other columns is NaN */
                const float want =
                    (float)(kernel_ref_e4m3((uint8_t)byte) * kernel_ref_e8m0(scales[s])) + 0.0f;
                assert_true(kernel_same_f32(got, want));
            }
    assert_true(weight_through_linear(tamis_cpu_level_available(), TAMIS_DTYPE_F8_E4M3, 0x38, 3,
                                      254) == 0x1p+127f);
}

/* Low nibble = even column, at every level and in every column. */
static void test_nibble_order(void **state)
{
    (void)state;
    uint8_t row[16];
    const uint8_t scale_bytes[1] = {128};
    float out[32];
    for (int i = 0; i < 16; i++)
        row[i] = (uint8_t)(i | (15 - i) << 4);
    const tamis_matrix w = {.dtype = TAMIS_DTYPE_F4_E2M1,
                            .rows = 1,
                            .cols = 32,
                            .data = row,
                            .row_bytes = 16,
                            .scale = scale_bytes,
                            .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                            .block_rows = 1,
                            .block_cols = 32,
                            .scale_row_bytes = 1};
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
        tamis_kernels_for((tamis_cpu_level)level)->expand_row(out, &w, 0);
        for (int i = 0; i < 16; i++) {
            assert_true(kernel_same_f32(out[2 * i], (float)(2 * kernel_ref_e2m1((uint8_t)i))));
            assert_true(
                kernel_same_f32(out[2 * i + 1], (float)(2 * kernel_ref_e2m1((uint8_t)(15 - i)))));
        }
        assert_true(signbit(out[16]) != 0 && out[16] == 0.0f); /* code 8 is -0 */
    }
}

/* A row's bits do not depend on which other rows or tokens are in the call. */
static void test_batch_independence(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear batch", 20240504);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++) {
        linear_case c = case_new(&rng, weight_types[type], 530, 29, KERNEL_DATA_WIDE, false);
        c.row_begin = 0;
        c.row_end = c.matrix.view.rows;
        const tamis_cpu_level level = tamis_cpu_level_available();
        test_guard all = case_run(&c, level, rng);
        for (int64_t t = 0; t < c.n_tokens; t++)
            for (int64_t r = 0; r < c.row_end; r++) {
                float y[140];
                _Alignas(64) float scratch[TAMIS_LINEAR_SCRATCH(530)];
                tamis_kernels_for(level)->linear(y + r, 140, (float *)c.x.data + t * c.x_stride,
                                                 c.x_stride, 1, &c.matrix.view, r, r + 1, scratch,
                                                 false);
                assert_true(kernel_same_f32(y[r], ((float *)all.data)[t * c.y_stride + r]));
            }
        test_guard_free(&all);
        case_free(&c);
    }
}

/* All rows in pieces that say so give the bits of one call, whichever rows come first. */
static void check_pieces(const linear_case *c, tamis_cpu_level level, test_rng *rng)
{
    const int64_t rows = c->row_end;
    test_guard want = case_run(c, level, *rng);
    test_guard y = test_guard_new((size_t)(c->n_tokens * c->y_stride) * sizeof(float), 0, rng);
    test_guard scratch =
        test_guard_new(TAMIS_LINEAR_SCRATCH(c->matrix.view.cols) * sizeof(float), 0, rng);
    const int64_t cut = test_rng_int(rng, 0, rows), part[4] = {cut, rows, 0, cut};
    for (int i = 0; i < 4; i += 2)
        tamis_kernels_for(level)->linear((float *)y.data + part[i], c->y_stride, c->x.data,
                                         c->x_stride, c->n_tokens, &c->matrix.view, part[i],
                                         part[i + 1], scratch.data, i > 0);
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t r = 0; r < rows; r++)
            assert_true(kernel_same_f32(((float *)y.data)[t * c->y_stride + r],
                                        ((float *)want.data)[t * c->y_stride + r]));
    assert_true(test_guard_intact(&y) && test_guard_intact(&scratch));
    test_guard_free(&scratch);
    test_guard_free(&y);
    test_guard_free(&want);
}

static void test_same_inputs(void **state)
{
    (void)state;
    const int64_t tokens[] = {1, 1, 2, 3, 5, 24, 29};
    test_rng rng = test_rng_start("linear with the same inputs", 20261130);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
        for (int i = 0; i < 14; i++) {
            const int64_t cols = test_rng_int(&rng, 1, 400);
            linear_case c = case_new(&rng, weight_types[type], cols, tokens[i % 7],
                                     i < 7 ? KERNEL_DATA_NORMAL : KERNEL_DATA_WIDE, i % 2 == 0);
            c.row_begin = 0;
            c.row_end = c.matrix.view.rows;
            for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
                check_pieces(&c, (tamis_cpu_level)level, &rng);
            case_free(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_inputs),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_portable_against_double),
        cmocka_unit_test(test_expand_row),
        cmocka_unit_test(test_scales_and_nan),
        cmocka_unit_test(test_nibble_order),
        cmocka_unit_test(test_batch_independence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
