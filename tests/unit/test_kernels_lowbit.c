/*
 * round_bf16, round_f8, quantize_*, hadamard, rmsnorm_bf16, pack_row, unpack_row: every level
 * against portable bit for bit (the whole buffer, its guards included), portable against doubles
 * with explicit roundings, and the floors, ties, NaN and zero rows of the contracts.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/kernel_ref_lowbit.h"
#include "support/sanitized.h"

static const int64_t lengths[] = {1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32, 33,
                                  40, 63, 64, 65, 100, 127, 128, 129, 256, 448, 515};
#define NUM_LENGTHS (int64_t)(sizeof lengths / sizeof *lengths)
#define MAX_LENGTH  1024
#define ROUNDS      (TEST_IS_SANITIZED ? 5 : 25)

/* ---------------------------------------------------------------- rows of f32 to rows of f32 */

typedef void (*row_fn)(const tamis_kernels *kernels, float *out, const float *x, int64_t n,
                       int64_t group);

static void call_round_bf16(const tamis_kernels *kernels, float *out, const float *x, int64_t n,
                            int64_t group)
{
    (void)group;
    memcpy(out, x, (size_t)n * sizeof *out);
    kernels->round_bf16(out, n);
}
static void call_round_f8(const tamis_kernels *kernels, float *out, const float *x, int64_t n,
                          int64_t group)
{
    kernels->round_f8(out, x, n, group);
}
static void call_round_f8_in_place(const tamis_kernels *kernels, float *out, const float *x,
                                   int64_t n, int64_t group)
{
    memcpy(out, x, (size_t)n * sizeof *out);
    kernels->round_f8(out, out, n, group);
}
static void call_rmsnorm_bf16(const tamis_kernels *kernels, float *out, const float *x, int64_t n,
                              int64_t group)
{
    (void)group;
    kernels->rmsnorm_bf16(out, x, n, 1e-6f);
}
static void call_rmsnorm_bf16_in_place(const tamis_kernels *kernels, float *out, const float *x,
                                       int64_t n, int64_t group)
{
    (void)group;
    memcpy(out, x, (size_t)n * sizeof *out);
    kernels->rmsnorm_bf16(out, out, n, 1e-6f);
}
/* Over the largest power of two within n; the rest is copied. */
static void call_hadamard(const tamis_kernels *kernels, float *out, const float *x, int64_t n,
                          int64_t group)
{
    (void)group;
    int64_t power = 1;
    while (2 * power <= n)
        power *= 2;
    memcpy(out, x, (size_t)n * sizeof *out);
    kernels->hadamard(out, power, 0x1.6a09e6p-4f);
}

static const struct {
    const char *name;
    row_fn call;
} row_kernels[] = {
    {"round_bf16", call_round_bf16},
    {"round_f8", call_round_f8},
    {"round_f8 in place", call_round_f8_in_place},
    {"rmsnorm_bf16", call_rmsnorm_bf16},
    {"rmsnorm_bf16 in place", call_rmsnorm_bf16_in_place},
    {"hadamard", call_hadamard},
};

static void compare_row_kernels(test_rng *rng, const float *x, int64_t n, int64_t group)
{
    for (size_t k = 0; k < sizeof row_kernels / sizeof *row_kernels; k++) {
        test_rng noise = *rng;
        test_guard want = new_floats(n, &noise);
        row_kernels[k].call(tamis_kernels_for(TAMIS_CPU_PORTABLE), want.data, x, n, group);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            noise = *rng;
            test_guard got = new_floats(n, &noise);
            row_kernels[k].call(tamis_kernels_for(level_at(level)), got.data, x, n, group);
            expect_same(&want, &got, row_kernels[k].name);
            test_guard_free(&got);
        }
        test_guard_free(&want);
    }
    test_rng_u64(rng);
}

static void test_row_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("lowbit rows", 61);
    static const int64_t groups[] = {1, 5, 16, 20, 32, 64, 128};
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t i = 0; i < NUM_LENGTHS; i++) {
            const int64_t n = lengths[i];
            kernel_page page = kernel_page_new((size_t)n * sizeof(float));
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), page.data, (size_t)n);
            compare_row_kernels(&rng, page.data, n, PICK(&rng, groups));
            kernel_page_free(&page);
        }
}

/* NaN of every payload stay NaN, at each level (a carry out of the payload must not reach the
 * sign). */
static void test_round_bf16_of_every_kind(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("round_bf16", 62);
    const uint32_t payloads[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u, 0x7fc00000u,
                                 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0x80000000u, 0x00007fffu};
    for (int round = 0; round < 20000; round++) {
        float x[16], y[16];
        for (int i = 0; i < 16; i++)
            y[i] = x[i] = round == 0 && i < 10 ? tamis_float_of(payloads[i])
                                               : tamis_float_of((uint32_t)test_rng_u64(&rng));
        FOR_EACH_LEVEL(level)
        {
            memcpy(y, x, sizeof y);
            tamis_kernels_for(level_at(level))->round_bf16(y, 16);
            for (int i = 0; i < 16; i++)
                assert_true(kernel_same_f32(y[i], (float)lowbit_ref_bf16((double)x[i])));
        }
    }
}

static void test_round_f8_value(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("round_f8 double", 63);
    static float x[MAX_LENGTH], y[MAX_LENGTH];
    for (int round = 0; round < 10; round++)
        for (int64_t i = 0; i < NUM_LENGTHS; i++) {
            const int64_t n = lengths[i], group = 1 + test_rng_int(&rng, 0, 130);
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), x, (size_t)n);
            tamis_round_f8_c(y, x, n, group);
            for (int64_t k = 0; k < n; k++) {
                const int64_t begin = k / group * group;
                const double s = lowbit_ref_scale(TAMIS_SCALE_POW2, TAMIS_DTYPE_F8_E4M3, x + begin,
                                                  n - begin < group ? n - begin : group);
                const double want =
                    lowbit_ref_code_value(TAMIS_DTYPE_F8_E4M3, lowbit_ref_f32((double)x[k] / s)) *
                    s;
                assert_true(kernel_same_f32(y[k], isnan(s) ? NAN : (float)want));
            }
        }
}

/*
 * The sum differs from the double one by f32's roundings, so a mean next to a border between two
 * BF16 numbers may fall on its other side: such a row is one step off, and rare. All other rows are
 * exact.
 */
static void test_rmsnorm_bf16_value(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rmsnorm_bf16 double", 64);
    static float x[MAX_LENGTH], y[MAX_LENGTH];
    int64_t exact = 0, rows = 0;
    for (int round = 0; round < 20; round++)
        for (int64_t i = 0; i < NUM_LENGTHS; i++, rows++) {
            const int64_t n = lengths[i];
            double sum = 0, worst = 0;
            kernel_fill(&rng, KERNEL_DATA_NORMAL, x, (size_t)n);
            tamis_round_bf16_c(x, n);
            tamis_rmsnorm_bf16_c(y, x, n, 1e-6f);
            for (int64_t k = 0; k < n; k++)
                sum += lowbit_ref_bf16((double)x[k] * (double)x[k]);
            const double mean = lowbit_ref_bf16(sum / (double)n);
            const double r = lowbit_ref_bf16(1 / sqrt(lowbit_ref_bf16(mean + (double)1e-6f)));
            for (int64_t k = 0; k < n; k++) {
                const double want = lowbit_ref_bf16((double)x[k] * r);
                worst = fmax(worst, fabs((double)y[k] - want) / (fabs(want) + 1e-30));
            }
            assert_true(worst <= 0x1p-6);
            exact += worst == 0;
        }
    assert_true(exact * 100 >= rows * 98);
}

/* ---------------------------------------------------------------- codes of inputs */

typedef struct code_case {
    int64_t n, group;
    float input_scale, input_offset;
    bool through_f16;
} code_case;
typedef void (*code_fn)(const tamis_kernels *kernels, int8_t *q, float *scale, const float *x,
                        const code_case *c);

static void call_quantize_i8(const tamis_kernels *kernels, int8_t *q, float *scale, const float *x,
                             const code_case *c)
{
    kernels->quantize_i8(q, scale, x, c->n);
}
static void call_quantize_i8_static(const tamis_kernels *kernels, int8_t *q, float *scale,
                                    const float *x, const code_case *c)
{
    (void)scale;
    kernels->quantize_i8_static(q, x, c->n, c->input_scale, c->input_offset, c->through_f16);
}
static void call_quantize_f4(const tamis_kernels *kernels, int8_t *q, float *scale, const float *x,
                             const code_case *c)
{
    kernels->quantize_f4(q, scale, x, c->n, c->group);
}

static void compare_code_kernels(test_rng *rng, const float *x, const code_case *c)
{
    static const code_fn calls[] = {call_quantize_i8, call_quantize_i8_static, call_quantize_f4};
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        test_rng noise = *rng;
        test_guard want = test_guard_new((size_t)c->n, (size_t)c->n % 16, &noise);
        test_guard want_scale = new_floats(c->n, &noise);
        calls[k](tamis_kernels_for(TAMIS_CPU_PORTABLE), want.data, want_scale.data, x, c);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            noise = *rng;
            test_guard got = test_guard_new((size_t)c->n, (size_t)c->n % 16, &noise);
            test_guard scale = new_floats(c->n, &noise);
            calls[k](tamis_kernels_for(level_at(level)), got.data, scale.data, x, c);
            expect_same(&want_scale, &scale, "scale");
            assert_true(test_guard_intact(&got));
            assert_memory_equal(want.data, got.data, (size_t)c->n);
            test_guard_free(&got);
            test_guard_free(&scale);
        }
        assert_true(test_guard_intact(&want));
        test_guard_free(&want);
        test_guard_free(&want_scale);
    }
    test_rng_u64(rng);
}

static void test_code_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("lowbit codes", 65);
    static const int64_t groups[] = {1, 6, 16, 20, 32, 64};
    for (int round = 0; round < ROUNDS; round++)
        for (int64_t i = 0; i < NUM_LENGTHS; i++) {
            const code_case c = {lengths[i], PICK(&rng, groups), test_rng_float(&rng, 0.01f, 2.0f),
                                 (float)test_rng_int(&rng, -128, 127),
                                 test_rng_int(&rng, 0, 1) != 0};
            kernel_page page = kernel_page_new((size_t)c.n * sizeof(float));
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), page.data, (size_t)c.n);
            compare_code_kernels(&rng, page.data, &c);
            kernel_page_free(&page);
        }
}

static void test_quantize_values(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("quantize double", 66);
    static float x[MAX_LENGTH], scale[MAX_LENGTH];
    static int8_t q[MAX_LENGTH];
    for (int round = 0; round < 10; round++)
        for (int64_t i = 0; i < NUM_LENGTHS; i++) {
            const int64_t n = lengths[i], group = 1 + test_rng_int(&rng, 0, 40);
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), x, (size_t)n);
            tamis_quantize_i8_c(q, scale, x, n);
            const double s = lowbit_ref_scale(TAMIS_SCALE_AMAX, TAMIS_DTYPE_I8, x, n);
            assert_true(kernel_same_f32(scale[0], (float)s));
            for (int64_t k = 0; k < n; k++)
                assert_true(q[k] == (s > 0 ? lowbit_ref_code_value(TAMIS_DTYPE_I8,
                                                                   lowbit_ref_f32((double)x[k] / s))
                                           : 0));
            tamis_quantize_f4_c(q, scale, x, n, group);
            for (int64_t k = 0; k < n; k++) {
                const int64_t begin = k / group * group;
                const double f = lowbit_ref_scale(TAMIS_SCALE_POW2, TAMIS_DTYPE_F4_E2M1, x + begin,
                                                  n - begin < group ? n - begin : group);
                assert_true(kernel_same_f32(scale[k / group], (float)f));
                assert_true(q[k] == (isnan(f) ? 0
                                              : 2 * lowbit_ref_code_value(
                                                        TAMIS_DTYPE_F4_E2M1,
                                                        lowbit_ref_f32((double)x[k] / f))));
            }
        }
}

static void test_quantize_i8_static_value(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("quantize_i8_static double", 67);
    static float x[MAX_LENGTH];
    static int8_t q[MAX_LENGTH];
    for (int round = 0; round < 40; round++) {
        const float input_scale = test_rng_float(&rng, 0.001f, 3.0f);
        const float offset = (float)test_rng_int(&rng, -128, 127);
        const bool half = round % 2 != 0;
        kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), x, MAX_LENGTH);
        tamis_quantize_i8_static_c(q, x, MAX_LENGTH, input_scale, offset, half);
        const double inverse = lowbit_ref_f32(1 / (double)input_scale);
        for (int k = 0; k < MAX_LENGTH; k++) {
            double v = lowbit_ref_f32(lowbit_ref_f32((double)x[k] * inverse) + (double)offset);
            v = half ? lowbit_ref_f16(v) : v;
            assert_true(q[k] == (isnan(v) ? 0 : fmin(127, fmax(-128, nearbyint(v)))));
        }
    }
}

/* ---------------------------------------------------------------- Hadamard */

static void test_hadamard_against_definition(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("hadamard", 68);
    for (int64_t n = 1; n <= 256; n *= 2) {
        float x[256], y[256];
        kernel_fill(&rng, KERNEL_DATA_NORMAL, x, (size_t)n);
        memcpy(y, x, sizeof y);
        const float scale = (float)(1 / sqrt((double)n));
        tamis_hadamard_c(y, n, scale);
        for (int64_t a = 0; a < n; a++) {
            double sum = 0, magnitude = 0;
            for (int64_t b = 0; b < n; b++) {
                sum +=
                    __builtin_parityll((unsigned long long)(a & b)) ? -(double)x[b] : (double)x[b];
                magnitude += fabs((double)x[b]);
            }
            assert_true(fabs((double)y[a] - sum * (double)scale) <=
                        10 * 0x1p-24 * magnitude * (double)scale);
        }
    }
}

/* ---------------------------------------------------------------- packed rows */

/* Any layout with any sizes; sometimes a group size or a rule that only the contract allows. */
static tamis_row_format random_format(test_rng *rng)
{
    tamis_row_format f;
    const tamis_row_layout layout =
        (tamis_row_layout)test_rng_int(rng, 0, TAMIS_NUM_ROW_LAYOUTS - 1);
    const bool has_plain = layout >= TAMIS_ROWS_V4_FP8 && layout <= TAMIS_ROWS_LATENT_ASCEND;
    const int32_t n = 2 * (int32_t)test_rng_int(rng, 1, 300);
    const int32_t odd = has_plain ? (int32_t)test_rng_int(rng, 0, 1) : 0;
    const int32_t plain = has_plain ? (int32_t)test_rng_int(rng, 0, n - 1) : 0;
    assert_int_equal(tamis_row_format_make(&f, layout, n + odd, plain, NULL), TAMIS_STATUS_OK);
    if (f.dtype == TAMIS_DTYPE_F8_E4M3 && test_rng_int(rng, 0, 2) == 0)
        f.scale_rule = (tamis_scale_rule)test_rng_int(
            rng, TAMIS_SCALE_POW2,
            f.scale_dtype == TAMIS_DTYPE_F32 ? TAMIS_SCALE_AMAX : TAMIS_SCALE_POW2_ABOVE);
    return f;
}

static void fill_row(test_rng *rng, float *x, int32_t n)
{
    kernel_fill(rng, (kernel_data)test_rng_int(rng, 0, KERNEL_NUM_DATA - 1), x, (size_t)n);
    if (test_rng_int(rng, 0, 9) == 0)
        memset(x, 0, (size_t)n * sizeof *x);
}

/* One row at an odd address, scales within it or elsewhere. */
static test_guard packed(tamis_cpu_level level, const tamis_row_format *f, const float *x,
                         bool planar, test_guard *scales, test_rng noise)
{
    test_guard row = test_guard_new((size_t)f->row_bytes, (size_t)(noise.state % 16), &noise);
    *scales = test_guard_new((size_t)(tamis_row_num_groups(f) * 4 + 1), (size_t)(noise.state % 7),
                             &noise);
    tamis_kernels_for(level)->pack_row(
        row.data, planar ? scales->data : (uint8_t *)row.data + f->scale_at, f, x);
    assert_true(test_guard_intact(&row) && test_guard_intact(scales));
    return row;
}

static void test_pack_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("pack_row", 69);
    static float x[MAX_LENGTH];
    for (int round = 0; round < 100 * ROUNDS; round++) {
        const tamis_row_format f = random_format(&rng);
        const bool planar = f.group_size != 0 && test_rng_int(&rng, 0, 1) != 0;
        fill_row(&rng, x, f.num_values);
        const test_rng noise = rng;
        test_guard want_scales,
            want = packed(TAMIS_CPU_PORTABLE, &f, x, planar, &want_scales, noise);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            test_guard scales, got = packed(level_at(level), &f, x, planar, &scales, noise);
            assert_memory_equal(want.data, got.data, want.bytes);
            assert_memory_equal(want_scales.data, scales.data, scales.bytes);
            test_guard_free(&got);
            test_guard_free(&scales);
        }
        test_guard_free(&want);
        test_guard_free(&want_scales);
        test_rng_u64(&rng);
    }
}

/* Any bytes are read the same by all levels; rows end at a protected page. */
static void test_unpack_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("unpack_row", 70);
    for (int round = 0; round < 100 * ROUNDS; round++) {
        const tamis_row_format f = random_format(&rng);
        kernel_page row = kernel_page_new((size_t)f.row_bytes);
        test_rng_fill_bytes(&rng, row.data, (size_t)f.row_bytes);
        const uint8_t *scales = (uint8_t *)row.data + f.scale_at;
        test_rng noise = rng;
        test_guard want = new_floats(f.num_values, &noise);
        tamis_unpack_row_c(want.data, row.data, scales, &f);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            noise = rng;
            test_guard got = new_floats(f.num_values, &noise);
            tamis_kernels_for(level_at(level))->unpack_row(got.data, row.data, scales, &f);
            expect_same(&want, &got, "value");
            test_guard_free(&got);
        }
        test_guard_free(&want);
        kernel_page_free(&row);
        test_rng_u64(&rng);
    }
}

static void test_round_trip_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("row round trip", 71);
    static float x[MAX_LENGTH], y[MAX_LENGTH];
    static double want[MAX_LENGTH];
    static uint8_t row[4 * MAX_LENGTH];
    for (int round = 0; round < 20 * ROUNDS; round++) {
        const tamis_row_format f = random_format(&rng);
        fill_row(&rng, x, f.num_values);
        tamis_pack_row_c(row, row + f.scale_at, &f, x);
        tamis_unpack_row_c(y, row, row + f.scale_at, &f);
        lowbit_ref_round_trip(want, &f, x);
        for (int32_t i = 0; i < f.num_values; i++)
            if (!kernel_same_f32(y[i], (float)want[i]))
                fail_msg("%s, group %d: value %d of %d, %a, becomes %a, double says %a",
                         tamis_dtype_name(f.dtype), f.group_size, i, f.num_values, (double)x[i],
                         (double)y[i], want[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_levels),
        cmocka_unit_test(test_round_bf16_of_every_kind),
        cmocka_unit_test(test_round_f8_value),
        cmocka_unit_test(test_rmsnorm_bf16_value),
        cmocka_unit_test(test_code_levels),
        cmocka_unit_test(test_quantize_values),
        cmocka_unit_test(test_quantize_i8_static_value),
        cmocka_unit_test(test_hadamard_against_definition),
        cmocka_unit_test(test_pack_levels),
        cmocka_unit_test(test_unpack_levels),
        cmocka_unit_test(test_round_trip_against_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
