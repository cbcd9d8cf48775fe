/*
 * linear_i8, and I8 and I4 weights in linear, linear_t and expand_row: every level against portable
 * bit for bit, portable against 64-bit integers and doubles. Weights end at a protected page.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/kernel_ref_lowbit.h"
#include "support/sanitized.h"

/* Below, at and above 16 and 32 columns, the 256 between two widenings of 16-bit sums, blocks of
 * 2048. */
static const int64_t all_cols[] = {1,   2,   15,  16,  17,  31,  32,   33,   48,   63,   127, 128,
                                   255, 256, 257, 288, 300, 513, 1040, 2047, 2049, 2081, 4100};
static const int64_t token_counts[] = {1, 2, 3, 4, 5, 7, 8, 9};

typedef struct i8_case {
    tamis_matrix w;
    kernel_page data, x;
    float *row_scale, *token_scale;
    int32_t *bias;
    int64_t row_begin, row_end, n_tokens, x_stride, y_stride;
} i8_case;

static i8_case case_new(test_rng *rng, tamis_dtype dtype, int64_t cols, int64_t n_tokens)
{
    const int64_t rows = test_rng_int(rng, 1, 40);
    const int64_t stored = dtype == TAMIS_DTYPE_I4 ? (rows + 1) / 2 : rows;
    i8_case c = {.w = {.dtype = dtype, .rows = rows, .cols = cols}, .n_tokens = n_tokens};
    c.w.row_bytes = cols + test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 9);
    c.data = kernel_page_new((size_t)((stored - 1) * c.w.row_bytes + cols));
    test_rng_fill_bytes(rng, c.data.data, (size_t)((stored - 1) * c.w.row_bytes + cols));
    c.w.data = c.data.data;
    c.x_stride = cols + test_rng_int(rng, 0, 5);
    c.x = kernel_page_new((size_t)((n_tokens - 1) * c.x_stride + cols));
    test_rng_fill_bytes(rng, c.x.data, (size_t)((n_tokens - 1) * c.x_stride + cols));
    c.row_begin = test_rng_int(rng, 0, rows - 1);
    c.row_end = test_rng_int(rng, c.row_begin, rows);
    c.y_stride = rows + test_rng_int(rng, 0, 3);
    c.row_scale = malloc((size_t)rows * sizeof(float));
    c.bias = malloc((size_t)rows * sizeof(int32_t));
    c.token_scale = malloc((size_t)n_tokens * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        c.row_scale[r] = test_rng_float(rng, 0.0001f, 0.01f);
        c.bias[r] = (int32_t)test_rng_int(rng, -(1 << 29), 1 << 29);
    }
    for (int64_t t = 0; t < n_tokens; t++)
        c.token_scale[t] = test_rng_float(rng, 0.0f, 0.1f);
    return c;
}

static void case_free(i8_case *c)
{
    kernel_page_free(&c->data);
    kernel_page_free(&c->x);
    free(c->row_scale);
    free(c->token_scale);
    free(c->bias);
}

static test_guard case_run(const i8_case *c, tamis_cpu_level level, bool with_bias, bool dynamic,
                           test_rng noise)
{
    test_guard y = new_floats(c->n_tokens * c->y_stride, &noise);
    test_guard scratch = test_guard_new(TAMIS_LINEAR_SCRATCH(c->w.cols) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->linear_i8(y.data, c->y_stride, c->x.data, c->x_stride,
                                        dynamic ? c->token_scale : NULL, c->n_tokens, &c->w,
                                        c->row_scale, with_bias ? c->bias : NULL, c->row_begin,
                                        c->row_end, c->n_tokens > 1 ? scratch.data : NULL);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void check_values(const i8_case *c, const test_guard *y, bool with_bias, bool dynamic)
{
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t r = c->row_begin; r < c->row_end; r++) {
            const int64_t sum =
                lowbit_ref_dot_i8(&c->w, r, (const int8_t *)c->x.data + t * c->x_stride) +
                (with_bias ? c->bias[r] : 0);
            double want = lowbit_ref_f32((double)sum);
            want = lowbit_ref_f32(want * (double)c->row_scale[r]);
            want = dynamic ? lowbit_ref_f32(want * (double)c->token_scale[t]) : want;
            assert_true(((float *)y->data)[t * c->y_stride + r - c->row_begin] == (float)want);
        }
}

static void test_linear_i8_levels_and_values(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_i8", 81);
    for (int round = 0; round < (TEST_IS_SANITIZED ? 2 : 12); round++)
        for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++)
            for (int k = 0; k < 2; k++) {
                i8_case c = case_new(&rng, k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4, all_cols[i],
                                     PICK(&rng, token_counts));
                const bool with_bias = test_rng_int(&rng, 0, 1), dynamic = test_rng_int(&rng, 0, 1);
                test_guard want = case_run(&c, TAMIS_CPU_PORTABLE, with_bias, dynamic, rng);
                check_values(&c, &want, with_bias, dynamic);
                FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
                {
                    test_guard got = case_run(&c, level_at(level), with_bias, dynamic, rng);
                    expect_same(&want, &got, "y");
                    test_guard_free(&got);
                }
                test_guard_free(&want);
                case_free(&c);
            }
}

/*
 * No pair of bytes saturates: all 65,536 pairs of a weight and an input, each filling all of 512
 * columns, so that every intermediate sum of every level is at its extreme for that pair.
 */
static void test_no_saturation(void **state)
{
    (void)state;
    enum { COLS = 512, STEP = TEST_IS_SANITIZED ? 8 : 1 };
    static int8_t weights[256][COLS], x[COLS];
    static float scale[256], y[256];
    for (int r = 0; r < 256; r++) {
        memset(weights[r], r, COLS);
        scale[r] = 1.0f;
    }
    const tamis_matrix w = {
        .dtype = TAMIS_DTYPE_I8, .rows = 256, .cols = COLS, .data = weights, .row_bytes = COLS};
    FOR_EACH_LEVEL(level)
    {
        for (int in = -128; in < 128; in += in >= -120 && in < 119 ? STEP : 1) {
            memset(x, in, COLS);
            tamis_kernels_for(level_at(level))
                ->linear_i8(y, 256, x, COLS, NULL, 1, &w, scale, NULL, 0, 256, NULL);
            for (int r = 0; r < 256; r++)
                assert_true(y[r] == (float)(COLS * in * (int8_t)r));
        }
    }
}

/* The same for all nibbles, low and high, and for -128 * -128 with other pairs around it. */
static void test_no_saturation_in_tiles(void **state)
{
    (void)state;
    enum { COLS = 544, TOKENS = 256 };
    static int8_t x[TOKENS][COLS];
    static uint8_t pairs[8][COLS];
    static float scale[16], y[TOKENS][16];
    _Alignas(64) static float scratch[TAMIS_LINEAR_SCRATCH(COLS)];
    for (int t = 0; t < TOKENS; t++)
        memset(x[t], t, COLS);
    for (int r = 0; r < 8; r++)
        memset(pairs[r], (2 * r) | (2 * r + 1) << 4, COLS);
    for (int r = 0; r < 16; r++)
        scale[r] = 1.0f;
    const tamis_matrix w = {
        .dtype = TAMIS_DTYPE_I4, .rows = 16, .cols = COLS, .data = pairs, .row_bytes = COLS};
    FOR_EACH_LEVEL(level)
    {
        tamis_kernels_for(level_at(level))
            ->linear_i8(y[0], 16, x[0], COLS, NULL, TOKENS, &w, scale, NULL, 0, 16, scratch);
        for (int t = 0; t < TOKENS; t++)
            for (int r = 0; r < 16; r++)
                assert_true(y[t][r] == (float)(COLS * (int8_t)t * (r < 8 ? r : r - 16)));
    }
    /* two rows, four tokens: the tile of many tokens at its extreme */
    static int8_t low[4 * COLS];
    memset(low, -128, sizeof low);
    const tamis_matrix extreme = {
        .dtype = TAMIS_DTYPE_I8, .rows = 4, .cols = COLS, .data = low, .row_bytes = COLS};
    FOR_EACH_LEVEL(level)
    {
        tamis_kernels_for(level_at(level))
            ->linear_i8(y[0], 16, low, COLS, NULL, 4, &extreme, scale, NULL, 0, 4, scratch);
        for (int t = 0; t < 4; t++)
            for (int r = 0; r < 4; r++)
                assert_true(y[t][r] == (float)(COLS * 128 * 128));
    }
}

/* The longest row, 2^16 columns of -128 * -128, with no bias and with those that leave 32 bits. */
static void test_longest_sum(void **state)
{
    (void)state;
    enum { COLS = 1 << 16 };
    static int8_t low[COLS];
    const float one = 1.0f;
    const int32_t biases[3] = {0, INT32_MAX, 1 << 30};
    const float want[3] = {0x1p+30f, 0x1.8p+31f, 0x1p+31f};
    memset(low, -128, sizeof low);
    const tamis_matrix w = {
        .dtype = TAMIS_DTYPE_I8, .rows = 1, .cols = COLS, .data = low, .row_bytes = COLS};
    FOR_EACH_LEVEL(level)
    for (int i = 0; i < 3; i++) {
        float y;
        tamis_kernels_for(level_at(level))
            ->linear_i8(&y, 1, low, COLS, NULL, 1, &w, &one, &biases[i], 0, 1, NULL);
        assert_true(y == want[i]); /* 2^31 + 2^30 - 1 is rounded up */
    }
}

/* ---------------------------------------------------------------- integer weights as f32 */

static double weight_value(const tamis_matrix *w, int64_t row, int64_t c)
{
    int8_t unit[1] = {1};
    tamis_matrix one = *w;
    one.cols = 1;
    one.data = (const uint8_t *)w->data + c;
    const double code = (double)lowbit_ref_dot_i8(&one, row, unit);
    float scale;
    memcpy(&scale,
           (const uint8_t *)w->scale + row / w->block_rows * w->scale_row_bytes +
               c / w->block_cols * 4,
           sizeof scale);
    return lowbit_ref_f32(code * (double)scale);
}

/* One scale a row as quantised folders have it, or blocks as the contract allows. */
static void set_scales(test_rng *rng, i8_case *c, kernel_page *page)
{
    static const int32_t block_cols[] = {32, 128, 20};
    const bool per_row = test_rng_int(rng, 0, 2) > 0;
    c->w.block_rows = per_row ? 1 : (int32_t)test_rng_int(rng, 1, 3);
    c->w.block_cols = per_row ? (int32_t)c->w.cols : block_cols[test_rng_int(rng, 0, 2)];
    c->w.scale_dtype = TAMIS_DTYPE_F32;
    const int64_t grid_cols = (c->w.cols + c->w.block_cols - 1) / c->w.block_cols;
    const int64_t grid_rows = (c->w.rows + c->w.block_rows - 1) / c->w.block_rows;
    c->w.scale_row_bytes = 4 * grid_cols;
    *page = kernel_page_new((size_t)(4 * grid_cols * grid_rows));
    kernel_fill(rng, KERNEL_DATA_NORMAL, page->data, (size_t)(grid_cols * grid_rows));
    c->w.scale = page->data;
}

static test_guard float_linear(const i8_case *c, tamis_cpu_level level, const float *x,
                               bool transposed, test_rng noise)
{
    const tamis_kernels *kernels = tamis_kernels_for(level);
    const int64_t n_rows = c->row_end - c->row_begin;
    const int64_t stride = transposed ? c->w.cols : n_rows + 1;
    test_guard y = new_floats(c->n_tokens * stride, &noise);
    test_guard scratch = test_guard_new(
        (TAMIS_LINEAR_SCRATCH(c->w.cols) + TAMIS_LINEAR_T_SCRATCH) * sizeof(float), 0, &noise);
    if (transposed)
        kernels->linear_t(y.data, stride, x, n_rows, c->n_tokens, &c->w, c->row_begin, c->row_end,
                          scratch.data);
    else
        kernels->linear(y.data, stride, x, c->w.cols, c->n_tokens, &c->w, c->row_begin, c->row_end,
                        scratch.data, false);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void test_integer_weights_as_f32(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("I8 and I4 as f32", 82);
    for (int round = 0; round < (TEST_IS_SANITIZED ? 2 : 6); round++)
        for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++)
            for (int k = 0; k < 2; k++) {
                i8_case c = case_new(&rng, k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4, all_cols[i],
                                     PICK(&rng, token_counts));
                kernel_page scales;
                set_scales(&rng, &c, &scales);
                FOR_EACH_LEVEL(level)
                {
                    test_guard row = new_floats(c.w.cols, &rng);
                    tamis_kernels_for(level_at(level))->expand_row(row.data, &c.w, c.row_begin);
                    for (int64_t col = 0; col < c.w.cols; col++)
                        assert_true((double)((float *)row.data)[col] ==
                                    weight_value(&c.w, c.row_begin, col));
                    assert_true(test_guard_intact(&row));
                    test_guard_free(&row);
                }
                const size_t n_in = (size_t)(c.n_tokens * (c.w.cols + c.w.rows));
                float *x = malloc(n_in * sizeof(float));
                kernel_fill(&rng, KERNEL_DATA_NORMAL, x, n_in);
                for (int transposed = 0; transposed < 2; transposed++) {
                    test_guard want = float_linear(&c, TAMIS_CPU_PORTABLE, x, transposed, rng);
                    FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
                    {
                        test_guard got = float_linear(&c, level_at(level), x, transposed, rng);
                        expect_same(&want, &got, transposed ? "linear_t" : "linear");
                        test_guard_free(&got);
                    }
                    test_guard_free(&want);
                }
                free(x);
                kernel_page_free(&scales);
                case_free(&c);
            }
}

/* Without scales the weights are the integers themselves. */
static void test_integer_weights_without_scale(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("I8 and I4 without scale", 83);
    for (int k = 0; k < 2; k++) {
        i8_case c = case_new(&rng, k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4, 80, 2);
        float x[160];
        kernel_fill(&rng, KERNEL_DATA_NORMAL, x, 160);
        test_guard want = float_linear(&c, TAMIS_CPU_PORTABLE, x, false, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            test_guard got = float_linear(&c, level_at(level), x, false, rng);
            expect_same(&want, &got, "y");
            test_guard_free(&got);
        }
        test_guard_free(&want);
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_i8_levels_and_values),
        cmocka_unit_test(test_no_saturation),
        cmocka_unit_test(test_no_saturation_in_tiles),
        cmocka_unit_test(test_longest_sum),
        cmocka_unit_test(test_integer_weights_as_f32),
        cmocka_unit_test(test_integer_weights_without_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
