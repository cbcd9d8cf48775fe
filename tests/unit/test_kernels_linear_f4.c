/*
 * linear over FP4 in blocks: every level against a slow version written from docs/numerics.md, bit
 * for bit, over shapes, kinds of scales and inputs that reach every branch of the fixed point; and
 * how far the sums are from doubles. Weights, scales and inputs end at protected pages.
 */
#include <math.h>

#include "kernels/body/lanes.h"
#include "support/kernel_levels.h"
#include "support/sanitized.h"

#define BLOCK     32
#define MAX_STEPS 8355711 /* three balanced digits of 8 bits: 127 * 65793 */

/* ---------------------------------------------------------------- a slow version */

/* What all 32 inputs are multiples of, twice the unit; NaN if one of them is no number. */
static double ref_step(const float *x, int64_t n)
{
    double largest = 0, step = 0x1p-125;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        largest = fabs((double)x[i]) > largest ? fabs((double)x[i]) : largest;
    }
    while (nearbyint(largest / step) > MAX_STEPS)
        step *= 2;
    return step;
}

static double ref_scale(const tamis_matrix *w, int64_t row, int64_t c)
{
    const uint8_t *at = (const uint8_t *)w->scale + row / w->block_rows * w->scale_row_bytes;
    float value;
    if (w->scale_dtype != TAMIS_DTYPE_F32)
        return kernel_ref_e8m0(at[c / w->block_cols]);
    memcpy(&value, at + 4 * (c / w->block_cols), sizeof value);
    return (double)value;
}

static float ref_dot(const tamis_matrix *w, int64_t row, const float *x)
{
    const uint8_t *codes = (const uint8_t *)w->data + row * w->row_bytes;
    float acc[8] = {0};
    for (int64_t b = 0; b < (w->cols + 4 * BLOCK - 1) / (4 * BLOCK) * 4; b++) {
        const int64_t begin = b * BLOCK, end = w->cols < begin + BLOCK ? w->cols : begin + BLOCK;
        const double step = begin < end ? ref_step(x + begin, end - begin) : 2;
        const float scale = w->scale != NULL && begin < end ? (float)ref_scale(w, row, begin) : 1;
        int64_t sum[2] = {0, 0};
        for (int64_t c = begin; c < end && step == step; c++)
            sum[c / 8 % 2] +=
                (int64_t)(2 * kernel_ref_e2m1((uint8_t)(codes[c / 2] >> (c % 2 * 4) & 15))) *
                (int64_t)nearbyint((double)x[c] / step);
        for (int h = 0; h < 2; h++) {
            float *to = &acc[4 * (b % 2) + 2 * (b / 2 % 2) + h];
            *to = fmaf((float)sum[h] * (float)(step / 2), scale, *to);
        }
    }
    for (int n = 4; n > 0; n /= 2)
        for (int j = 0; j < n; j++)
            acc[j] += acc[j + n];
    return acc[0];
}

/* ---------------------------------------------------------------- cases */

typedef enum scale_kind {
    SCALE_NONE = 0,
    SCALE_MODERATE, /* E8M0 of checkpoints */
    SCALE_EDGES,    /* some 0, 1, 254, 255 among them */
    SCALE_ANY,      /* all bytes */
    SCALE_FLOAT,
    SCALE_NUM_KINDS
} scale_kind;

typedef enum input_kind {
    INPUT_ZEROS = KERNEL_NUM_DATA, /* blocks of zeros of both signs */
    INPUT_LARGEST,                 /* up to the largest number */
    INPUT_OUTLIER,                 /* 1e6 among 1e-3 */
    INPUT_LIMIT,                   /* on, just below and just above 8355711 steps */
    INPUT_TIES,                    /* half steps */
    INPUT_NUM_KINDS
} input_kind;

typedef struct f4_case {
    tamis_matrix w;
    kernel_page codes, scales, x;
    int64_t n_tokens, x_stride;
} f4_case;

static uint8_t scale_byte(test_rng *rng, scale_kind kind)
{
    static const uint8_t edges[] = {0, 1, 2, 253, 254, 255};
    if (kind == SCALE_ANY)
        return (uint8_t)test_rng_int(rng, 0, 255);
    if (kind == SCALE_EDGES && test_rng_int(rng, 0, 19) == 0)
        return edges[test_rng_int(rng, 0, 5)];
    return (uint8_t)test_rng_int(rng, 110, 130);
}

static void fill_scales(test_rng *rng, f4_case *c, scale_kind kind)
{
    const int64_t n_cols = (c->w.cols + c->w.block_cols - 1) / c->w.block_cols;
    const int64_t n_rows = (c->w.rows + c->w.block_rows - 1) / c->w.block_rows;
    const bool is_float = kind == SCALE_FLOAT;
    c->w.scale_row_bytes = n_cols * (is_float ? 4 : 1);
    c->scales = kernel_page_new((size_t)(n_rows * c->w.scale_row_bytes));
    for (int64_t i = 0; i < n_rows * n_cols; i++)
        if (is_float)
            kernel_fill(rng, test_rng_int(rng, 0, 9) ? KERNEL_DATA_NORMAL : KERNEL_DATA_SPECIAL,
                        (float *)c->scales.data + i, 1);
        else
            ((uint8_t *)c->scales.data)[i] = scale_byte(rng, kind);
    c->w.scale = c->scales.data;
    c->w.scale_dtype = is_float ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_F8_E8M0;
}

static float one_input(test_rng *rng, input_kind kind, int64_t i)
{
    const float sign = test_rng_int(rng, 0, 1) ? 1.0f : -1.0f;
    switch (kind) {
    case INPUT_ZEROS:
        return i / BLOCK % 2 ? sign * 0.0f : test_rng_normal(rng);
    case INPUT_LARGEST:
        return sign * test_rng_float(rng, 0x1p+120f, 3.4e38f);
    case INPUT_OUTLIER:
        return test_rng_int(rng, 0, 31) ? sign * 1e-3f * test_rng_float(rng, 0, 2) : sign * 1e6f;
    case INPUT_LIMIT: /* half steps: 8355711.5 is a tie that rounds up, to one step too many */
        return sign * (float)(2 * MAX_STEPS + test_rng_int(rng, -3, i % 64 < 32 ? 0 : 3)) * 0.5f;
    default: /* steps are of 1: the first input of a block has all 24 bits of them */
        return i % BLOCK == 0 ? 8000000.0f : sign * ((float)test_rng_int(rng, 0, 200) + 0.5f);
    }
}

static void fill_inputs(test_rng *rng, int kind, float *x, int64_t n)
{
    if (kind < (int)KERNEL_NUM_DATA)
        kernel_fill(rng, (kernel_data)kind, x, (size_t)n);
    for (int64_t i = 0; kind >= (int)KERNEL_NUM_DATA && i < n; i++)
        x[i] = one_input(rng, (input_kind)kind, i);
}

/* block_cols 0: one scale for a row. */
static f4_case case_new(test_rng *rng, int64_t rows, int64_t cols, int64_t n_tokens,
                        scale_kind scale, int64_t block_cols, int inputs)
{
    f4_case c = {.w = {.dtype = TAMIS_DTYPE_F4_E2M1, .rows = rows, .cols = cols}};
    c.w.row_bytes = (cols + 1) / 2;
    c.codes = kernel_page_new((size_t)(rows * c.w.row_bytes));
    test_rng_fill_bytes(rng, c.codes.data, (size_t)(rows * c.w.row_bytes));
    c.w.data = c.codes.data;
    c.w.block_rows = (int32_t)test_rng_int(rng, 1, 2);
    c.w.block_cols = (int32_t)(block_cols == 0 ? cols : block_cols);
    if (scale != SCALE_NONE)
        fill_scales(rng, &c, scale);
    c.n_tokens = n_tokens;
    c.x_stride = cols + test_rng_int(rng, 0, 3);
    c.x = kernel_page_new((size_t)((n_tokens - 1) * c.x_stride + cols) * sizeof(float));
    for (int64_t t = 0; t < n_tokens; t++)
        fill_inputs(rng, inputs, (float *)c.x.data + t * c.x_stride, cols);
    return c;
}

static void case_free(f4_case *c)
{
    kernel_page_free(&c->codes);
    kernel_page_free(&c->x);
    if (c->w.scale != NULL)
        kernel_page_free(&c->scales);
}

static void check_level(const f4_case *c, tamis_cpu_level level, const float *want, test_rng noise)
{
    const int64_t y_stride = c->w.rows + 3;
    test_guard y = new_floats((c->n_tokens - 1) * y_stride + c->w.rows, &noise);
    test_guard scratch = test_guard_new(TAMIS_LINEAR_SCRATCH(c->w.cols) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->linear(y.data, y_stride, c->x.data, c->x_stride, c->n_tokens, &c->w,
                                     0, c->w.rows, scratch.data, false);
    assert_true(test_guard_intact(&y));
    assert_true(test_guard_intact(&scratch));
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t r = 0; r < c->w.rows; r++) {
            const float got = ((float *)y.data)[t * y_stride + r];
            if (!kernel_same_f32(got, want[t * c->w.rows + r]))
                fail_msg("level %d, %d columns, %d tokens, scales of %d: row %d of token %d is %a, "
                         "not %a",
                         (int)level, (int)c->w.cols, (int)c->n_tokens,
                         c->w.scale != NULL ? c->w.block_cols : -1, (int)r, (int)t, (double)got,
                         (double)want[t * c->w.rows + r]);
        }
    test_guard_free(&scratch);
    test_guard_free(&y);
}

static void check_case(f4_case *c, test_rng *rng)
{
    float want[40 * 70];
    assert_true(c->n_tokens * c->w.rows <= 40 * 70);
    for (int64_t t = 0; t < c->n_tokens; t++)
        for (int64_t r = 0; r < c->w.rows; r++)
            want[t * c->w.rows + r] = ref_dot(&c->w, r, (const float *)c->x.data + t * c->x_stride);
    FOR_EACH_LEVEL(level)
    check_level(c, level_at(level), want, *rng);
    case_free(c);
    test_rng_u64(rng);
}

/* A case of random kinds. */
static void check_shape(test_rng *rng, int64_t rows, int64_t cols, int64_t n_tokens)
{
    static const int64_t blocks[] = {32, 32, 32, 64, 128, 0};
    const scale_kind scale = (scale_kind)test_rng_int(rng, 0, SCALE_NUM_KINDS - 1);
    f4_case c = case_new(rng, rows, cols, n_tokens, scale, PICK(rng, blocks),
                         (int)test_rng_int(rng, 0, INPUT_NUM_KINDS - 1));
    check_case(&c, rng);
}

/* ---------------------------------------------------------------- tests */

static void test_columns(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("FP4 columns", 20261201);
    for (int64_t cols = 1; cols <= 300; cols += TEST_IS_SANITIZED ? 3 : 1)
        for (int round = 0; round < 2; round++)
            check_shape(&rng, test_rng_int(&rng, 1, 5), cols,
                        round == 0 ? 1 : test_rng_int(&rng, 2, 6));
    static const int64_t long_cols[] = {512, 1000, 4096 + 33, 8192};
    for (int i = 0; i < 4; i++)
        for (int64_t tokens = 1; tokens <= 3; tokens++)
            check_shape(&rng, 3, long_cols[i], tokens);
}

static void test_tokens(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("FP4 tokens", 20261202);
    for (int64_t tokens = 1; tokens <= 40; tokens++) {
        check_shape(&rng, test_rng_int(&rng, 1, 9), test_rng_int(&rng, 100, 900), tokens);
        if (!TEST_IS_SANITIZED || tokens % 8 == 0)
            check_shape(&rng, test_rng_int(&rng, 30, 70), 160, tokens);
    }
}

/* Every kind of scale with every kind of input. */
static void test_kinds(void **state)
{
    (void)state;
    static const int64_t blocks[] = {32, 64, 128, 0};
    test_rng rng = test_rng_start("FP4 kinds", 20261203);
    for (int scale = 0; scale < SCALE_NUM_KINDS; scale++)
        for (int block = 0; block < (scale == SCALE_NONE ? 1 : 4); block++)
            for (int inputs = 0; inputs < INPUT_NUM_KINDS; inputs++)
                for (int64_t tokens = 1; tokens <= 3; tokens += 2) {
                    f4_case c =
                        case_new(&rng, 5, 480, tokens, (scale_kind)scale, blocks[block], inputs);
                    check_case(&c, &rng);
                }
}

/* Each byte as the scale of one of a row's 4 blocks. */
static void check_every_scale(f4_case *c, test_rng *rng)
{
    for (int64_t first = 0; first < 256; first += 64) {
        for (int64_t r = 0; r < 64; r++)
            for (int64_t b = 0; b < 4; b++)
                ((uint8_t *)c->scales.data)[4 * r + b] =
                    b == r % 4 ? (uint8_t)(first + r) : (uint8_t)127;
        for (int64_t t = 0; t < 2; t++) {
            float want[2 * 64];
            for (int64_t i = 0; i < 2 * 64; i++)
                want[i] = ref_dot(&c->w, i % 64, (float *)c->x.data + i / 64 * c->x_stride);
            c->n_tokens = t + 1;
            FOR_EACH_LEVEL(level)
            check_level(c, level_at(level), want, *rng);
        }
    }
}

/* With inputs of many sizes: where the product of a unit and a scale leaves the normal numbers. */
static void test_every_scale(void **state)
{
    (void)state;
    static const int powers[] = {0, -126, -100, -40, 23, 60, 96, 117, 118, 119, 120, 124};
    test_rng rng = test_rng_start("FP4 scales", 20261204);
    for (int p = 0; p < 12; p++) {
        f4_case c = case_new(&rng, 64, 128, 2, SCALE_MODERATE, 32, KERNEL_DATA_NORMAL);
        c.w.block_rows = 1;
        c.w.scale_row_bytes = 4;
        kernel_page_free(&c.scales);
        c.scales = kernel_page_new(64 * 4);
        c.w.scale = c.scales.data;
        for (int64_t i = 0; i < c.x_stride + 128; i++)
            ((float *)c.x.data)[i] = ldexpf(((float *)c.x.data)[i], powers[p]);
        check_every_scale(&c, &rng);
        case_free(&c);
    }
}

/* The largest sums that can be: all weights 6 or -6, all inputs 8355711 steps, of every sign. */
static void test_largest_sums(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("FP4 largest", 20261205);
    for (int signs = 0; signs < 8; signs++) {
        f4_case c = case_new(&rng, 3, 384, 2, SCALE_NONE, 32, KERNEL_DATA_NORMAL);
        for (int64_t i = 0; i < 3 * c.w.row_bytes; i++)
            ((uint8_t *)c.codes.data)[i] =
                (uint8_t)((signs & 1 ? 0xf : 7) | (signs & 2 ? 0xf0 : 0x70));
        for (int64_t t = 0; t < 2; t++)
            for (int64_t i = 0; i < 384; i++)
                ((float *)c.x.data)[t * c.x_stride + i] =
                    (float)MAX_STEPS * (signs & 4 && i % 2 ? -1.0f : 1.0f);
        const double sum = (double)ref_dot(&c.w, 0, c.x.data);
        if (signs == 0) /* 384 * 6 * 8355711: the reference itself */
            assert_true(fabs(sum - 384.0 * 6 * MAX_STEPS) <= sum * 0x1p-23);
        check_case(&c, &rng);
    }
}

/* ---------------------------------------------------------------- accuracy */

static float heavy_tailed(test_rng *rng)
{
    const float v = test_rng_normal(rng);
    return v * v * v * expf(1.5f * test_rng_normal(rng));
}

/*
 * Squared errors of the blocks and of f32 in quads16, over the sum of the squares of all terms. The
 * fixed point rounds inputs, which f32 does not, and far fewer sums.
 */
static void add_errors(const f4_case *c, double of[2])
{
    _Alignas(64) static float scratch[TAMIS_LINEAR_SCRATCH(4096)];
    float row[4096], y[64];
    double error[2] = {0, 0}, squares = 0;
    const float *x = c->x.data;
    tamis_kernels_current()->linear(y, 64, x, c->x_stride, 1, &c->w, 0, c->w.rows, scratch, false);
    for (int64_t r = 0; r < c->w.rows; r++) {
        float acc[TAMIS_LANES] = {0};
        double sum = 0;
        for (int64_t i = 0; i < c->w.cols; i++) {
            const double term = kernel_ref_weight(&c->w, r, i) * (double)x[i];
            sum += term;
            squares += term * term;
        }
        tamis_kernels_current()->expand_row(row, &c->w, r);
        tamis_quads_dot(acc, row, x, c->w.cols);
        error[0] += pow((double)y[r] - sum, 2);
        error[1] += pow((double)tamis_lanes_sum(acc) - sum, 2);
    }
    for (int i = 0; i < 2; i++)
        of[i] += error[i] / squares * (double)c->w.rows;
}

/* RMS errors of many rows. Long sums of normal inputs gain; the rounding of inputs bounds all. */
static void test_error(void **state)
{
    (void)state;
    enum { CALLS = TEST_IS_SANITIZED ? 2 : 12, ROWS = 64 };
    test_rng rng = test_rng_start("FP4 error", 20261206);
    for (int heavy = 0; heavy < 2; heavy++)
        for (int64_t cols = 512; cols <= 4096; cols *= 2) {
            double of[2] = {0, 0};
            for (int call = 0; call < CALLS; call++) {
                f4_case c = case_new(&rng, ROWS, cols, 1, SCALE_MODERATE, 32, KERNEL_DATA_NORMAL);
                for (int64_t i = 0; heavy && i < cols; i++)
                    ((float *)c.x.data)[i] = heavy_tailed(&rng);
                add_errors(&c, of);
                case_free(&c);
            }
            const double blocks = sqrt(of[0] / (CALLS * ROWS)),
                         quads = sqrt(of[1] / (CALLS * ROWS));
            printf("%s, %d columns: RMS error %.3g in blocks, %.3g in quads16\n",
                   heavy ? "heavy tails" : "normal", (int)cols, blocks, quads);
            assert_true(blocks <= 0x1p-21);
            assert_true(heavy || cols < 2048 || blocks <= quads);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns),      cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_every_scale),
        cmocka_unit_test(test_largest_sums), cmocka_unit_test(test_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
