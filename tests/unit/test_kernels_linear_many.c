/*
 * linear with many tokens: every level against portable bit for bit, for every token count around
 * the sizes of tiles, panels and blocks, and against its own bits for one token at a time.
 * Weights, scales and inputs end at protected pages.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/sanitized.h"

static const tamis_dtype weight_types[] = {
    TAMIS_DTYPE_F32,     TAMIS_DTYPE_BF16, TAMIS_DTYPE_F16, TAMIS_DTYPE_F8_E4M3,
    TAMIS_DTYPE_F4_E2M1, TAMIS_DTYPE_I8,   TAMIS_DTYPE_I4};
#define NUM_WEIGHT_TYPES 7
/* Around 16 lanes, two of them, stages of 64, 128, 256 and 512 columns, scale blocks. */
static const int64_t all_cols[] = {1,   5,   15,  16,  17,  31,  32,  33,  47,  48,  63,
                                   64,  65,  80,  96,  127, 128, 129, 136, 160, 255, 256,
                                   257, 272, 300, 511, 512, 513, 528, 530, 544, 640, 1025};

typedef struct many_case {
    kernel_matrix matrix;
    kernel_page x;
    int64_t row_begin, row_end, n_tokens, x_stride, y_stride;
} many_case;

/* I8 and I4 are filled here: one scale per row, or none. */
static kernel_matrix integer_matrix(test_rng *rng, tamis_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t stored = dtype == TAMIS_DTYPE_I4 ? (rows + 1) / 2 : rows;
    kernel_matrix m = {.view = {.dtype = dtype, .rows = rows, .cols = cols, .row_bytes = cols}};
    m.data = kernel_page_new((size_t)(stored * cols));
    m.scale = kernel_page_new((size_t)rows * sizeof(float));
    test_rng_fill_bytes(rng, m.data.data, (size_t)(stored * cols));
    kernel_fill(rng, KERNEL_DATA_NORMAL, m.scale.data, (size_t)rows);
    m.view.data = m.data.data;
    if (test_rng_int(rng, 0, 2) > 0) {
        m.view.scale = m.scale.data;
        m.view.scale_dtype = TAMIS_DTYPE_F32;
        m.view.block_rows = 1;
        m.view.block_cols = (int32_t)cols;
        m.view.scale_row_bytes = sizeof(float);
    }
    return m;
}

static many_case case_new(test_rng *rng, tamis_dtype dtype, int64_t rows, int64_t cols,
                          int64_t n_tokens, kernel_data kind)
{
    many_case c = {.n_tokens = n_tokens};
    const bool special = test_rng_int(rng, 0, 3) == 0;
    const bool scaled = test_rng_int(rng, 0, 3) > 0;
    c.matrix = dtype == TAMIS_DTYPE_I8 || dtype == TAMIS_DTYPE_I4
                   ? integer_matrix(rng, dtype, rows, cols)
                   : kernel_matrix_new(rng, dtype, rows, cols, scaled, special);
    c.row_begin = test_rng_int(rng, 0, 3) == 0 ? test_rng_int(rng, 0, rows - 1) : 0;
    c.row_end =
        rows - (test_rng_int(rng, 0, 3) == 0 ? test_rng_int(rng, 0, rows - c.row_begin) : 0);
    c.x_stride = cols + test_rng_int(rng, 0, 5);
    c.y_stride = rows + test_rng_int(rng, 0, 5);
    c.x = kernel_page_new((size_t)((n_tokens - 1) * c.x_stride + cols) * sizeof(float));
    for (int64_t t = 0; t < n_tokens; t++)
        kernel_fill(rng, kind, (float *)c.x.data + t * c.x_stride, (size_t)cols);
    return c;
}

static void case_free(many_case *c)
{
    kernel_matrix_free(&c->matrix);
    kernel_page_free(&c->x);
}

/* Tokens `step` at a time; noise behind what is written depends on `noise` only. */
static test_guard case_run(const many_case *c, tamis_cpu_level level, int64_t step, test_rng noise)
{
    test_guard y = new_floats(c->n_tokens * c->y_stride, &noise);
    test_guard scratch =
        test_guard_new(TAMIS_LINEAR_SCRATCH(c->matrix.view.cols) * sizeof(float), 0, &noise);
    for (int64_t t = 0; t < c->n_tokens; t += step)
        tamis_kernels_for(level)->linear(
            (float *)y.data + t * c->y_stride, c->y_stride, (float *)c->x.data + t * c->x_stride,
            c->x_stride, c->n_tokens - t < step ? c->n_tokens - t : step, &c->matrix.view,
            c->row_begin, c->row_end, scratch.data, false);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return y;
}

static void check_levels(const many_case *c, test_rng *rng)
{
    char what[160];
    snprintf(what, sizeof what, "%s%s, rows %d..%d of %d columns, %d tokens: y",
             tamis_dtype_name(c->matrix.view.dtype), c->matrix.view.scale ? " with scales" : "",
             (int)c->row_begin, (int)c->row_end, (int)c->matrix.view.cols, (int)c->n_tokens);
    test_guard want = case_run(c, TAMIS_CPU_PORTABLE, c->n_tokens, *rng);
    FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
    {
        test_guard got = case_run(c, level_at(level), c->n_tokens, *rng);
        expect_same(&want, &got, what);
        test_guard_free(&got);
    }
    test_guard_free(&want);
    test_rng_u64(rng);
}

static void check_new_case(test_rng *rng, tamis_dtype dtype, int64_t rows, int64_t cols,
                           int64_t n_tokens)
{
    const kernel_data kind = (kernel_data)test_rng_int(rng, 0, KERNEL_NUM_DATA - 1);
    many_case c = case_new(rng, dtype, rows, cols, n_tokens, kind);
    check_levels(&c, rng);
    case_free(&c);
}

/* Every type at 1 to 40 tokens, rows and columns of every remainder. */
static void test_all_token_counts(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear many", 20241130);
    for (int round = 0; round < (TEST_IS_SANITIZED ? 1 : 2); round++)
        for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
            for (int64_t tokens = 1; tokens <= 40; tokens++)
                check_new_case(&rng, weight_types[type], test_rng_int(&rng, 1, 40),
                               PICK(&rng, all_cols), tokens);
}

/* Every number of columns, with rows enough for panels. */
static void test_all_columns(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear columns", 20241131);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
        for (size_t i = 0; i < sizeof all_cols / sizeof *all_cols; i++)
            check_new_case(&rng, weight_types[type], test_rng_int(&rng, 16, 33), all_cols[i],
                           test_rng_int(&rng, 8, 13));
}

/* More columns than one block of a lane holds, and more tokens than are packed at a time. */
static void test_blocks(void **state)
{
    (void)state;
    static const int64_t long_cols[] = {4095, 4096, 4097, 4112, 8192, 8208, 12300, 16384, 16400};
    static const int64_t many_tokens[] = {126, 127, 128, 129, 130, 131, 191, 255, 256, 257, 300};
    test_rng rng = test_rng_start("linear blocks", 20241132);
    const int types = TEST_IS_SANITIZED ? 1 : NUM_WEIGHT_TYPES;
    for (int type = 0; type < types; type++) {
        for (size_t i = 0; i < sizeof long_cols / sizeof *long_cols; i++)
            check_new_case(&rng, weight_types[(type + (int)i) % NUM_WEIGHT_TYPES],
                           test_rng_int(&rng, 16, 18), long_cols[i], test_rng_int(&rng, 8, 10));
        for (size_t i = 0; i < sizeof many_tokens / sizeof *many_tokens; i++)
            check_new_case(&rng, weight_types[type], test_rng_int(&rng, 16, 20),
                           test_rng_int(&rng, 1, 70), many_tokens[i]);
    }
    /* the number of tokens packed at a time depends on the columns */
    check_new_case(&rng, TAMIS_DTYPE_BF16, 16, 16401, 33);
}

/* A token's bits are those it gets alone. */
static void test_tokens_alone(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear tokens alone", 20241133);
    for (int type = 0; type < NUM_WEIGHT_TYPES; type++)
        for (int64_t cols = 4090; cols <= 4130; cols += TEST_IS_SANITIZED ? 40 : 20) {
            many_case c = case_new(&rng, weight_types[type], 35, cols, 131, KERNEL_DATA_WIDE);
            const tamis_cpu_level level = tamis_cpu_level_available();
            test_guard all = case_run(&c, level, c.n_tokens, rng);
            test_guard alone = case_run(&c, level, 1, rng);
            expect_same(&alone, &all, "y");
            test_guard_free(&all);
            test_guard_free(&alone);
            case_free(&c);
        }
}

/* All bytes of FP8 and all nibbles of FP4 in every column, against the values one by one. */
static void test_every_code(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 64, TOKENS = COLS };
    static uint8_t bytes[ROWS][COLS];
    static float x[TOKENS][COLS], y[TOKENS][ROWS];
    _Alignas(64) static float scratch[TAMIS_LINEAR_SCRATCH(COLS)];
    for (int t = 0; t < TOKENS; t++)
        x[t][t] = 1.0f;
    for (int first = 0; first < 256; first += 4)
        for (int type = 0; type < 2; type++) {
            const tamis_dtype dtype = type == 0 ? TAMIS_DTYPE_F8_E4M3 : TAMIS_DTYPE_F4_E2M1;
            const tamis_matrix w = {
                .dtype = dtype, .rows = ROWS, .cols = COLS, .data = bytes, .row_bytes = COLS};
            for (int r = 0; r < ROWS; r++) /* no NaN in a row of others: it would be in each sum */
                for (int c = 0; c < COLS; c++)
                    bytes[r][c] = (uint8_t)(first + (r + c) % 4) % 128 == 127
                                      ? 1
                                      : (uint8_t)(first + (r + c) % 4);
            FOR_EACH_LEVEL(level)
            {
                const int64_t step = first % 8 == 0 ? TOKENS : TOKENS / 4; /* panels or not */
                for (int64_t t = 0; t < TOKENS; t += step)
                    tamis_kernels_for(level_at(level))
                        ->linear(y[t], ROWS, x[t], COLS, step, &w, 0, ROWS, scratch, false);
                for (int t = 0; t < TOKENS; t++)
                    for (int r = 0; r < ROWS; r++)
                        assert_true(y[t][r] == (float)kernel_ref_weight(&w, r, t));
            }
        }
}

/*
 * FP8 under scales that inputs can take, but for one NaN, one scale too large for that, one that is
 * no power of two, or one input that would vanish: all levels agree, and no row but that of the NaN
 * is one.
 */
static void test_one_odd_value(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 1408, BLOCK = 128, SCALES = COLS / BLOCK, TOKENS = 26 };
    static uint8_t bytes[ROWS][COLS];
    static float x[TOKENS][COLS], scale[1][SCALES];
    test_rng rng = test_rng_start("linear odd value", 20241134);
    for (int round = 0; round < 4 * TOKENS; round += TEST_IS_SANITIZED ? 5 : 1) {
        const int kind = round % 4;
        const int64_t row = test_rng_int(&rng, 0, ROWS - 1), col = test_rng_int(&rng, 0, COLS - 1);
        many_case c = {.n_tokens = round / 4 + 1, .row_end = ROWS, .x_stride = COLS};
        c.matrix.view = (tamis_matrix){.dtype = TAMIS_DTYPE_F8_E4M3,
                                       .rows = ROWS,
                                       .cols = COLS,
                                       .data = bytes,
                                       .row_bytes = COLS,
                                       .scale = scale,
                                       .scale_dtype = TAMIS_DTYPE_F32,
                                       .block_rows = BLOCK,
                                       .block_cols = BLOCK,
                                       .scale_row_bytes = sizeof scale[0]};
        c.y_stride = ROWS;
        c.x.data = (void *)x;
        test_rng_fill_bytes(&rng, bytes, sizeof bytes);
        for (int64_t i = 0; i < ROWS * COLS; i++)
            bytes[i / COLS][i % COLS] &= 0xf7; /* no NaN */
        for (int i = 0; i < SCALES; i++)
            scale[0][i] = 0x1p-7f * (float)(1 << test_rng_int(&rng, 0, 3));
        for (int64_t t = 0; t < TOKENS; t++)
            kernel_fill(&rng, KERNEL_DATA_NORMAL, x[t], COLS);
        if (kind == 0)
            bytes[row][col] = 0xff;
        else if (kind == 3)
            x[c.n_tokens - 1][col] = 0x1p-149f;
        else
            scale[0][col / BLOCK] = kind == 1 ? 0x1p+8f : 0.7f;
        check_levels(&c, &rng);
        test_guard y = case_run(&c, tamis_cpu_level_available(), c.n_tokens, rng);
        for (int64_t i = 0; i < c.n_tokens * ROWS; i++)
            assert_true((((float *)y.data)[i] != ((float *)y.data)[i]) ==
                        (kind == 0 && i % ROWS == row));
        test_guard_free(&y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_token_counts), cmocka_unit_test(test_all_columns),
        cmocka_unit_test(test_blocks),           cmocka_unit_test(test_tokens_alone),
        cmocka_unit_test(test_every_code),       cmocka_unit_test(test_one_odd_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
