/*
 * linear_i8 with many tokens: every level against portable bit for bit, all pairs of bytes, the
 * longest sums. Weights and inputs end at protected pages.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/sanitized.h"

/* Around steps of 4, 16 and 32 columns and blocks of 512. */
static const int64_t all_cols[] = {1,  2,  3,   4,   5,   7,   8,   15,  16,  17,   18,   31,  32,
                                   33, 48, 127, 128, 255, 300, 511, 512, 513, 1024, 1041, 2050};
static const int64_t many_tokens[] = {126, 127, 128, 129, 130, 131, 255, 256, 257, 300};

typedef struct many_case {
    tamis_matrix w;
    kernel_page data, x;
    float *row_scale, *token_scale;
    int32_t *bias;
    int64_t row_begin, row_end, n_tokens, x_stride, y_stride;
} many_case;

static many_case case_new(test_rng *rng, tamis_dtype dtype, int64_t cols, int64_t n_tokens)
{
    const int64_t rows = test_rng_int(rng, 16, 60);
    const int64_t stored = dtype == TAMIS_DTYPE_I4 ? (rows + 1) / 2 : rows;
    many_case c = {.w = {.dtype = dtype, .rows = rows, .cols = cols}, .n_tokens = n_tokens};
    c.w.row_bytes = cols + test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 9);
    c.data = kernel_page_new((size_t)((stored - 1) * c.w.row_bytes + cols));
    test_rng_fill_bytes(rng, c.data.data, (size_t)((stored - 1) * c.w.row_bytes + cols));
    c.w.data = c.data.data;
    c.x_stride = cols + test_rng_int(rng, 0, 5);
    c.x = kernel_page_new((size_t)((n_tokens - 1) * c.x_stride + cols));
    test_rng_fill_bytes(rng, c.x.data, (size_t)((n_tokens - 1) * c.x_stride + cols));
    c.row_begin = test_rng_int(rng, 0, 2) == 0 ? test_rng_int(rng, 0, rows - 1) : 0;
    c.row_end =
        rows - (test_rng_int(rng, 0, 2) == 0 ? test_rng_int(rng, 0, rows - c.row_begin) : 0);
    c.y_stride = rows + test_rng_int(rng, 0, 3);
    c.row_scale = malloc((size_t)rows * sizeof(float));
    c.bias = malloc((size_t)rows * sizeof(int32_t));
    c.token_scale = malloc((size_t)n_tokens * sizeof(float));
    kernel_fill(rng, KERNEL_DATA_NORMAL, c.row_scale, (size_t)rows);
    kernel_fill(rng, KERNEL_DATA_NORMAL, c.token_scale, (size_t)n_tokens);
    for (int64_t r = 0; r < rows; r++)
        c.bias[r] = (int32_t)test_rng_u64(rng);
    return c;
}

static void case_free(many_case *c)
{
    kernel_page_free(&c->data);
    kernel_page_free(&c->x);
    free(c->row_scale);
    free(c->token_scale);
    free(c->bias);
}

static test_guard case_run(const many_case *c, tamis_cpu_level level, int form, test_rng noise)
{
    test_guard y = new_floats(c->n_tokens * c->y_stride, &noise);
    test_guard scratch = test_guard_new(TAMIS_LINEAR_SCRATCH(c->w.cols) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->linear_i8(
        y.data, c->y_stride, c->x.data, c->x_stride, form % 2 ? c->token_scale : NULL, c->n_tokens,
        &c->w, c->row_scale, form / 2 ? c->bias : NULL, c->row_begin, c->row_end, scratch.data);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void check_new_case(test_rng *rng, tamis_dtype dtype, int64_t cols, int64_t n_tokens)
{
    many_case c = case_new(rng, dtype, cols, n_tokens);
    const int form = (int)test_rng_int(rng, 0, 3);
    char what[120];
    snprintf(what, sizeof what, "%s, rows %d..%d of %d columns, %d tokens: y",
             tamis_dtype_name(dtype), (int)c.row_begin, (int)c.row_end, (int)cols, (int)n_tokens);
    test_guard want = case_run(&c, TAMIS_CPU_PORTABLE, form, *rng);
    FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
    {
        test_guard got = case_run(&c, level_at(level), form, *rng);
        expect_same(&want, &got, what);
        test_guard_free(&got);
    }
    test_guard_free(&want);
    case_free(&c);
}

static void test_all_token_counts(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_i8 many", 84);
    for (int round = 0; round < (TEST_IS_SANITIZED ? 1 : 3); round++)
        for (int64_t tokens = 4; tokens <= 40; tokens++)
            for (int k = 0; k < 2; k++)
                check_new_case(&rng, k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4, PICK(&rng, all_cols),
                               tokens);
}

/* All columns with tokens enough for either type, and more tokens than are widened at a time. */
static void test_blocks(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear_i8 blocks", 85);
    for (int k = 0; k < 2; k++) {
        const tamis_dtype dtype = k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4;
        for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++)
            check_new_case(&rng, dtype, all_cols[i], test_rng_int(&rng, 32, 37));
        for (size_t i = 0; i < sizeof many_tokens / sizeof *many_tokens; i++)
            check_new_case(&rng, dtype, test_rng_int(&rng, 1, 70), many_tokens[i]);
    }
    check_new_case(&rng, TAMIS_DTYPE_I8, 16385, 33); /* fewer tokens are widened at a time */
}

/* Every pair of bytes, over all columns, so that sums on the way are at that pair's extreme. */
static void test_all_pairs(void **state)
{
    (void)state;
    enum { COLS = 72 };
    static uint8_t bytes[256][COLS];
    static float scale[256], y[256][256];
    _Alignas(64) static float scratch[TAMIS_LINEAR_SCRATCH(COLS)];
    for (int r = 0; r < 256; r++) {
        memset(bytes[r], r, COLS);
        scale[r] = 1.0f;
    }
    for (int k = 0; k < 2; k++) { /* of I4, row 2 i has the low nibbles of line i */
        const tamis_matrix w = {.dtype = k == 0 ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_I4,
                                .rows = 256,
                                .cols = COLS,
                                .data = bytes,
                                .row_bytes = COLS};
        FOR_EACH_LEVEL(level)
        {
            tamis_kernels_for(level_at(level))
                ->linear_i8(y[0], 256, (const int8_t *)bytes[0], COLS, NULL, 256, &w, scale, NULL,
                            0, 256, scratch);
            for (int t = 0; t < 256; t++)
                for (int r = 0; r < 256; r++) {
                    const int nibble = (r % 2 == 0 ? r / 2 : r / 2 / 16) % 16;
                    const int value = k == 0 ? (int8_t)r : nibble < 8 ? nibble : nibble - 16;
                    assert_true(y[t][r] == (float)(COLS * (int8_t)t * value));
                }
        }
    }
}

/* 2^16 columns at the extremes: partial sums may leave 32 bits, the results do not. */
static void test_longest_sums(void **state)
{
    (void)state;
    enum { COLS = 1 << 16, ROWS = 16, TOKENS = 13 };
    static int8_t w[ROWS][COLS], x[TOKENS][COLS];
    static const int8_t extremes[3] = {-128, 127, -1};
    float *scratch = aligned_alloc(64, (TAMIS_LINEAR_SCRATCH(COLS) + 15) / 16 * 64);
    float scale[ROWS], y[TOKENS][ROWS];
    for (int r = 0; r < ROWS; r++) {
        memset(w[r], extremes[r % 3], COLS);
        scale[r] = 1.0f;
    }
    for (int t = 0; t < TOKENS; t++)
        memset(x[t], extremes[t % 3], COLS);
    const tamis_matrix matrix = {
        .dtype = TAMIS_DTYPE_I8, .rows = ROWS, .cols = COLS, .data = w, .row_bytes = COLS};
    FOR_EACH_LEVEL(level)
    {
        tamis_kernels_for(level_at(level))
            ->linear_i8(y[0], ROWS, x[0], COLS, NULL, TOKENS, &matrix, scale, NULL, 0, ROWS,
                        scratch);
        for (int t = 0; t < TOKENS; t++)
            for (int r = 0; r < ROWS; r++)
                assert_true(y[t][r] == (float)(COLS * extremes[r % 3] * extremes[t % 3]));
    }
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_token_counts),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_all_pairs),
        cmocka_unit_test(test_longest_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
