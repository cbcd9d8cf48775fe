/*
 * linear_t: every level against portable bit for bit, portable against the chain of the contract
 * and against doubles. Weights, scales and inputs end at protected pages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/kernel_levels.h"

static const tamis_dtype weight_types[] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F16,
                                           TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F4_E2M1};
#define NUM_WEIGHT_TYPES 5
/* Below, at and above 16 lanes, tiles of 64, scale blocks of 32 and 128. */
static const int64_t all_cols[] = {1,  2,  7,  15, 16, 17,  31,  32,  33,  40,
                                   48, 63, 64, 65, 96, 127, 128, 129, 136, 257};
static const int64_t all_rows[] = {1, 2, 3, 7, 8, 9, 14, 16, 24, 31, 32, 63, 64, 65, 130, 200};
/* In registers up to 3, then tiles of 6. */
static const int64_t all_tokens[] = {1, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 26};

typedef struct linear_t_case {
    kernel_matrix matrix;
    int64_t row_begin, row_end, n_tokens, x_stride, y_stride;
    kernel_page x;
} linear_t_case;

/* Rows [row_begin, row_begin + n_rows) of a matrix that may have some before and behind. */
static linear_t_case case_new(test_rng *rng, tamis_dtype dtype, int64_t n_rows, int64_t cols,
                              kernel_data kind, bool special)
{
    const bool low_bits = dtype == TAMIS_DTYPE_F8_E4M3 || dtype == TAMIS_DTYPE_F4_E2M1;
    const bool scaled = test_rng_int(rng, 0, 3) > (low_bits ? 0 : 2);
    linear_t_case c = {.row_begin = test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 140)};
    c.row_end = c.row_begin + n_rows;
    c.matrix = kernel_matrix_new(rng, dtype, c.row_end + test_rng_int(rng, 0, 1) * 5, cols, scaled,
                                 special);
    c.n_tokens = PICK(rng, all_tokens);
    c.x_stride = n_rows + test_rng_int(rng, 0, 5);
    c.y_stride = cols + test_rng_int(rng, 0, 5);
    c.x = kernel_page_new((size_t)((c.n_tokens - 1) * c.x_stride + n_rows) * sizeof(float));
    for (int64_t t = 0; t < c.n_tokens; t++)
        kernel_fill(rng, kind, (float *)c.x.data + t * c.x_stride, (size_t)n_rows);
    return c;
}

static void case_free(linear_t_case *c)
{
    kernel_matrix_free(&c->matrix);
    kernel_page_free(&c->x);
}

/* Tokens [first, first + n) at one level, into a guarded buffer of noise. */
static test_guard run_tokens(const linear_t_case *c, int level, int64_t first, int64_t n,
                             test_rng noise)
{
    test_guard y = new_floats((n - 1) * c->y_stride + c->matrix.view.cols, &noise);
    test_guard scratch = test_guard_new(TAMIS_LINEAR_T_SCRATCH * sizeof(float), 0, &noise);
    const float *x = (const float *)c->x.data + first * c->x_stride;
    tamis_kernels_for(level_at(level))
        ->linear_t(y.data, c->y_stride, x, c->x_stride, n, &c->matrix.view, c->row_begin,
                   c->row_end, scratch.data);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void check_levels(const linear_t_case *c, test_rng *rng)
{
    const tamis_matrix *w = &c->matrix.view;
    char what[160];
    snprintf(
        what, sizeof what, "%s, rows %lld..%lld, %lld columns, %lld tokens, scale %d (%d x %d)",
        tamis_dtype_name(w->dtype), (long long)c->row_begin, (long long)c->row_end,
        (long long)w->cols, (long long)c->n_tokens, w->scale != NULL, w->block_rows, w->block_cols);
    test_guard want = run_tokens(c, TAMIS_CPU_PORTABLE, 0, c->n_tokens, *rng);
    FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
    {
        test_guard got = run_tokens(c, level, 0, c->n_tokens, *rng);
        expect_same(&want, &got, what);
        test_guard_free(&got);
    }
    test_guard_free(&want);
    test_rng_u64(rng);
}

static void test_levels_agree(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t levels", 20240511);
    for (int round = 0; round < 12; round++)
        for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
            for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++) {
                const kernel_data kind = (kernel_data)test_rng_int(&rng, 0, KERNEL_NUM_DATA - 1);
                linear_t_case c = case_new(&rng, weight_types[type], PICK(&rng, all_rows),
                                           all_cols[i], kind, test_rng_int(&rng, 0, 2) == 0);
                check_levels(&c, &rng);
                case_free(&c);
            }
}

/*
 * One output against the contract to the bit - weights by arithmetic in double, rounded once, then
 * a chain of fma - and against the sum in double: |error| <= (additions + product with the scale)
 * half ulps of the sum of |terms|.
 */
static void check_output(const linear_t_case *c, const float *y, int64_t t, int64_t col)
{
    double sum = 0, magnitude = 0;
    float chain = 0.0f;
    for (int64_t r = c->row_begin; r < c->row_end; r++) {
        const float x = ((const float *)c->x.data)[t * c->x_stride + r - c->row_begin];
        const double weight = kernel_ref_weight(&c->matrix.view, r, col);
        sum += weight * (double)x;
        magnitude += fabs(weight * (double)x);
        chain = fmaf((float)weight, x, chain);
    }
    const float got = y[t * c->y_stride + col];
    const double bound = (double)(c->row_end - c->row_begin + 2) * 0x1p-24 * magnitude + 1e-44;
    assert_true(kernel_same_f32(got, chain));
    assert_true(fabs((double)got - sum) <= bound);
}

static void test_portable_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t double", 20240512);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
        for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++) {
            linear_t_case c = case_new(&rng, weight_types[type], PICK(&rng, all_rows), all_cols[i],
                                       KERNEL_DATA_NORMAL, false);
            test_guard y = run_tokens(&c, TAMIS_CPU_PORTABLE, 0, c.n_tokens, rng);
            for (int64_t t = 0; t < c.n_tokens; t++)
                for (int64_t col = 0; col < all_cols[i]; col++)
                    check_output(&c, y.data, t, col);
            test_guard_free(&y);
            case_free(&c);
        }
}

/* A token's bits do not depend on which others are in the call. */
static void test_batch_independence(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t batch", 20240513);
    for (int round = 0; round < 4; round++)
        for (int type = 0; type < NUM_WEIGHT_TYPES; type++) {
            linear_t_case c = case_new(&rng, weight_types[type], 130, 136, KERNEL_DATA_WIDE, false);
            const int level = (int)tamis_cpu_level_available();
            test_guard all = run_tokens(&c, level, 0, c.n_tokens, rng);
            for (int64_t t = 0, n; t < c.n_tokens; t += n) {
                n = test_rng_int(&rng, 1, c.n_tokens - t < 9 ? c.n_tokens - t : 9);
                test_guard some = run_tokens(&c, level, t, n, rng);
                for (int64_t k = 0; k < n; k++)
                    assert_int_equal(
                        kernel_first_difference((float *)all.data + (t + k) * c.y_stride,
                                                (float *)some.data + k * c.y_stride, 136),
                        -1);
                test_guard_free(&some);
            }
            test_guard_free(&all);
            case_free(&c);
        }
}

/* ---------------------------------------------------------------- a kv_b matrix */

enum { NOPE = 192, VALUE = 40, HEADS = 3, ROWS = HEADS * (NOPE + VALUE), COLS = 256 };
enum { GRID_ROWS = (ROWS + 127) / 128, GRID_COLS = COLS / 128 };

/* Key rows of each head of an FP8 kv_b: heads begin inside scale blocks, the last block is short.
 */
static void test_heads_of_kv_b(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t kv_b", 20240514);
    static uint8_t data[ROWS][COLS];
    float scale[GRID_ROWS][GRID_COLS], x[4 * NOPE];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            data[r][c] = (uint8_t)test_rng_int(&rng, 0, 126);
    for (int b = 0; b < GRID_ROWS * GRID_COLS; b++)
        scale[b / GRID_COLS][b % GRID_COLS] = test_rng_float(&rng, 0.001f, 0.02f);
    test_rng_fill_normal(&rng, x, 4 * NOPE);
    const linear_t_case all = {.matrix.view = {.dtype = TAMIS_DTYPE_F8_E4M3,
                                               .rows = ROWS,
                                               .cols = COLS,
                                               .data = data,
                                               .row_bytes = COLS,
                                               .scale = scale,
                                               .scale_dtype = TAMIS_DTYPE_F32,
                                               .block_rows = 128,
                                               .block_cols = 128,
                                               .scale_row_bytes = sizeof scale[0]},
                               .n_tokens = 4,
                               .x = {.data = x},
                               .x_stride = NOPE,
                               .y_stride = COLS};
    for (int head = 0; head < HEADS; head++)
        FOR_EACH_LEVEL(level)
    for (int64_t n = 1; n <= 4; n += 3) { /* decoded in registers, expanded */
        linear_t_case c = all;
        c.row_begin = head * (NOPE + VALUE);
        c.row_end = c.row_begin + NOPE;
        test_guard y = run_tokens(&c, level, 0, n, rng);
        assert_true(test_guard_intact(&y));
        for (int64_t t = 0; t < n; t++)
            for (int64_t col = 0; col < COLS; col++)
                check_output(&c, y.data, t, col);
        test_guard_free(&y);
    }
}

/*
 * Rows 100 to 139: the second scale block begins inside them, and only it has a scale that FP8's
 * decoding cannot take a factor into.
 */
static void test_last_block_scale(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t last block", 20240516);
    static uint8_t data[140][32];
    const float scale[2] = {1.0f, 0x1p+120f};
    float x[40];
    for (int i = 0; i < 140 * 32; i++)
        data[i / 32][i % 32] = (uint8_t)test_rng_int(&rng, 0, 63); /* at most 1.875 */
    test_rng_fill_normal(&rng, x, 40);
    const linear_t_case c = {.matrix.view = {.dtype = TAMIS_DTYPE_F8_E4M3,
                                             .rows = 140,
                                             .cols = 32,
                                             .data = data,
                                             .row_bytes = 32,
                                             .scale = scale,
                                             .scale_dtype = TAMIS_DTYPE_F32,
                                             .block_rows = 128,
                                             .block_cols = 128,
                                             .scale_row_bytes = 4},
                             .row_begin = 100,
                             .row_end = 140,
                             .n_tokens = 1,
                             .x = {.data = x},
                             .x_stride = 40,
                             .y_stride = 32};
    FOR_EACH_LEVEL(level)
    {
        test_guard y = run_tokens(&c, level, 0, 1, rng);
        for (int64_t col = 0; col < 32; col++)
            check_output(&c, y.data, 0, col);
        test_guard_free(&y);
    }
}

/* ---------------------------------------------------------------- special values */

/* Output `col` of 32 for one code at (row, col) of 9 x 32, other weights 0, x = 1. */
static float weight_through(int level, uint8_t byte, int row, int col, uint8_t scale_byte,
                            int64_t n_tokens)
{
    uint8_t data[9][32] = {{0}};
    float x[4 * 9], y[4 * 32];
    _Alignas(64) float scratch[TAMIS_LINEAR_T_SCRATCH];
    data[row][col] = byte;
    for (int i = 0; i < 4 * 9; i++)
        x[i] = 1.0f;
    const tamis_matrix w = {.dtype = TAMIS_DTYPE_F8_E4M3,
                            .rows = 9,
                            .cols = 32,
                            .data = data,
                            .row_bytes = 32,
                            .scale = &scale_byte,
                            .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                            .block_rows = 128,
                            .block_cols = 128,
                            .scale_row_bytes = 1};
    tamis_kernels_for(level_at(level))->linear_t(y, 32, x, 9, n_tokens, &w, 0, 9, scratch);
    for (int i = 0; i < 32 * n_tokens; i++)
        assert_true(kernel_same_f32(y[i], i % 32 == col ? y[col] : scale_byte == 255 ? NAN : 0.0f));
    return y[col];
}

/* Every FP8 code under every kind of scale; a NaN code stays in its column, a NaN scale does not.
 */
static void test_scales_and_nan(void **state)
{
    (void)state;
    static const uint8_t scales[] = {0, 1, 7, 8, 120, 127, 246, 247, 248, 254, 255};
    FOR_EACH_LEVEL(level)
    for (size_t s = 0; s < sizeof scales; s++)
        for (int byte = 0; byte < 256; byte++) {
            const float got = weight_through(level, (uint8_t)byte, byte % 9, byte % 32, scales[s],
                                             byte % 2 ? 1 : 4);
            const float want =
                (float)(kernel_ref_e4m3((uint8_t)byte) * kernel_ref_e8m0(scales[s])) + 0.0f;
            assert_true(kernel_same_f32(got, want));
        }
}

/* No rows: a sum without terms is +0, and nothing else is touched. */
static void test_no_rows(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_t no rows", 20240515);
    linear_t_case c = case_new(&rng, TAMIS_DTYPE_BF16, 8, 33, KERNEL_DATA_NORMAL, false);
    c.row_end = c.row_begin;
    FOR_EACH_LEVEL(level)
    {
        test_guard y = run_tokens(&c, level, 0, c.n_tokens, rng);
        assert_true(test_guard_intact(&y));
        for (int64_t t = 0; t < c.n_tokens; t++)
            for (int64_t col = 0; col < 33; col++)
                assert_true(kernel_same_f32(((float *)y.data)[t * c.y_stride + col], 0.0f));
        test_guard_free(&y);
    }
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_portable_against_double),
        cmocka_unit_test(test_batch_independence),
        cmocka_unit_test(test_heads_of_kv_b),
        cmocka_unit_test(test_last_block_scale),
        cmocka_unit_test(test_scales_and_nan),
        cmocka_unit_test(test_no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
