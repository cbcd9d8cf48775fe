/*
 * Kernels over rows: rmsnorm, layernorm, rope, rope_halves, swiglu, axpy, scale, add, mix, widen,
 * narrow, all_finite; every level against portable bit for bit, portable against doubles. Inputs
 * end at a protected page; the in-place forms that the contracts allow are run as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "support/kernel_ref.h"

static const int64_t lengths[] = {1,  2,  3,  7,   8,   9,   15,   16,   17,   31,  32,
                                  33, 40, 96, 100, 128, 255, 1023, 1024, 1025, 2600};
#define NUM_LENGTHS (sizeof lengths / sizeof *lengths)
#define MAX_LENGTH  2600
#define NUM_LEVELS  ((int)tamis_cpu_level_available() + 1)

/* What one call is about: n values of each of three inputs, an output, two parameters. */
typedef struct row_case {
    int64_t n;
    const float *a, *b, *c;
    float p;
    bool flag;
} row_case;
typedef void (*row_fn)(const tamis_kernels *kernels, float *out, const row_case *r);

static void call_rmsnorm(const tamis_kernels *kernels, float *out, const row_case *r)
{
    kernels->rmsnorm(out, r->a, r->flag ? r->b : NULL, r->n, 1e-6f);
}
static void call_rmsnorm_in_place(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->rmsnorm(out, out, r->flag ? r->b : NULL, r->n, 1e-6f);
}
static void call_layernorm(const tamis_kernels *kernels, float *out, const row_case *r)
{
    kernels->layernorm(out, r->a, r->b, r->c, r->n, 1e-6f);
}
static void call_layernorm_in_place(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->layernorm(out, out, r->b, r->c, r->n, 1e-6f);
}
static void call_rope_halves(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->rope_halves(out, r->b, r->c, r->n / 2, r->flag);
}
static void call_rope(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->rope(out, r->b, r->c, r->n / 2, r->flag);
}
static void call_swiglu(const tamis_kernels *kernels, float *out, const row_case *r)
{
    kernels->swiglu(out, r->a, r->b, r->n, r->flag ? INFINITY : 1.5f);
}
static void call_swiglu_over_g(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->swiglu(out, out, r->b, r->n, 1.5f);
}
static void call_swiglu_over_u(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->b, (size_t)r->n * sizeof *out);
    kernels->swiglu(out, r->a, out, r->n, 1.5f);
}
static void call_axpy(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->axpy(out, r->p, r->b, r->n);
}
static void call_scale(const tamis_kernels *kernels, float *out, const row_case *r)
{
    kernels->scale(out, r->p, r->a, r->n);
}
static void call_scale_in_place(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->scale(out, r->p, out, r->n);
}
static void call_add(const tamis_kernels *kernels, float *out, const row_case *r)
{
    memcpy(out, r->a, (size_t)r->n * sizeof *out);
    kernels->add(out, r->b, r->n);
}
static void call_mix(const tamis_kernels *kernels, float *out, const row_case *r)
{
    /* the three inputs as streams: test_levels lays them at equal distances */
    const float coef[3] = {r->p, -0.5f, 2.0f};
    kernels->mix(out, coef, r->a, r->b - r->a, 3, r->n);
}

static const struct {
    const char *name;
    row_fn call;
} row_kernels[] = {
    {"rmsnorm", call_rmsnorm},
    {"rmsnorm in place", call_rmsnorm_in_place},
    {"layernorm", call_layernorm},
    {"layernorm in place", call_layernorm_in_place},
    {"rope", call_rope},
    {"rope_halves", call_rope_halves},
    {"swiglu", call_swiglu},
    {"swiglu over g", call_swiglu_over_g},
    {"swiglu over u", call_swiglu_over_u},
    {"axpy", call_axpy},
    {"scale", call_scale},
    {"scale in place", call_scale_in_place},
    {"add", call_add},
    {"mix", call_mix},
};

/* Runs one kernel at all levels on one case. */
static void compare_levels(size_t kernel, const row_case *r, test_rng *rng)
{
    const size_t offset = 4 * (size_t)test_rng_int(rng, 0, 15);
    test_rng noise = *rng;
    test_guard want = test_guard_new((size_t)r->n * sizeof(float), offset, &noise);
    row_kernels[kernel].call(tamis_kernels_for(TAMIS_CPU_PORTABLE), want.data, r);
    assert_true(test_guard_intact(&want));
    for (int level = 1; level < NUM_LEVELS; level++) {
        noise = *rng;
        test_guard got = test_guard_new((size_t)r->n * sizeof(float), offset, &noise);
        row_kernels[kernel].call(tamis_kernels_for((tamis_cpu_level)level), got.data, r);
        assert_true(test_guard_intact(&got));
        const int64_t at = kernel_first_difference(want.data, got.data, (size_t)r->n);
        if (at >= 0)
            fail_msg("%s, n %lld, level %d: [%lld] is %a, portable %a", row_kernels[kernel].name,
                     (long long)r->n, level, (long long)at, (double)((float *)got.data)[at],
                     (double)((float *)want.data)[at]);
        test_guard_free(&got);
    }
    test_guard_free(&want);
    test_rng_u64(rng);
}

static void test_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rows levels", 51);
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < NUM_LENGTHS; i++) {
            const int64_t n = lengths[i], stride = n + test_rng_int(&rng, 0, 5);
            const size_t total = (size_t)(2 * stride + n);
            kernel_page page = kernel_page_new(total * sizeof(float));
            float *in = page.data;
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), in, total);
            const row_case r = {n,
                                in,
                                in + stride,
                                in + 2 * stride,
                                test_rng_normal(&rng),
                                test_rng_int(&rng, 0, 1) != 0};
            for (size_t k = 0; k < sizeof row_kernels / sizeof *row_kernels; k++)
                compare_levels(k, &r, &rng);
            kernel_page_free(&page);
        }
}

/* ---------------------------------------------------------------- portable against doubles */

static void test_rmsnorm_value(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rmsnorm double", 52);
    static float x[MAX_LENGTH], w[MAX_LENGTH], y[MAX_LENGTH];
    for (size_t i = 0; i < NUM_LENGTHS; i++) {
        const int64_t n = lengths[i];
        double sum = 0;
        kernel_fill(&rng, KERNEL_DATA_NORMAL, x, (size_t)n);
        kernel_fill(&rng, KERNEL_DATA_NORMAL, w, (size_t)n);
        tamis_rmsnorm_c(y, x, w, n, 1e-6f);
        for (int64_t k = 0; k < n; k++)
            sum += (double)x[k] * (double)x[k];
        const double s = 1 / sqrt(sum / (double)n + (double)1e-6f);
        for (int64_t k = 0; k < n; k++) {
            const double want = (double)x[k] * s * (double)w[k];
            assert_true(fabs((double)y[k] - want) <= 1e-6 * fabs(want) + 1e-40);
        }
    }
}

/*
 * Mean and sum of squares have n / 16 + 4 additions in a row; what they lose counts against the
 * largest input, because the mean is subtracted.
 */
static void check_layernorm(const float *y, const float *x, const float *w, const float *b,
                            int64_t n)
{
    double mean = 0, squares = 0, largest = 0;
    for (int64_t k = 0; k < n; k++) {
        mean += (double)x[k] / (double)n;
        largest = fmax(largest, fabs((double)x[k]));
    }
    for (int64_t k = 0; k < n; k++)
        squares += ((double)x[k] - mean) * ((double)x[k] - mean);
    const double s = 1 / sqrt(squares / (double)n + (double)1e-6f);
    for (int64_t k = 0; k < n; k++) {
        const double weight = (double)w[k], bias = (double)b[k];
        const double bound =
            (double)(n / 16 + 16) * 0x1p-24 * (2 * largest * s * fabs(weight) + fabs(bias));
        assert_true(fabs((double)y[k] - (((double)x[k] - mean) * s * weight + bias)) <= bound);
    }
}

/* Sizes 1 to 70 and the usual ones, values around 0 and around 100; spec example 7.9. */
static void test_layernorm_value(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layernorm double", 55);
    static float x[MAX_LENGTH], w[MAX_LENGTH], b[MAX_LENGTH], y[MAX_LENGTH], level_y[MAX_LENGTH];
    for (int64_t i = 1; i <= 70 + (int64_t)NUM_LENGTHS; i++) {
        const int64_t n = i <= 70 ? i : lengths[i - 71];
        kernel_fill(&rng, KERNEL_DATA_NORMAL, x, (size_t)n);
        kernel_fill(&rng, KERNEL_DATA_NORMAL, w, (size_t)n);
        kernel_fill(&rng, KERNEL_DATA_NORMAL, b, (size_t)n);
        for (int64_t k = 0; k < n && i % 2 == 0; k++)
            x[k] += 100.0f;
        tamis_layernorm_c(y, x, w, b, n, 1e-6f);
        check_layernorm(y, x, w, b, n);
        for (int level = 1; level < NUM_LEVELS; level++) {
            tamis_kernels_for((tamis_cpu_level)level)->layernorm(level_y, x, w, b, n, 1e-6f);
            assert_int_equal(kernel_first_difference(y, level_y, (size_t)n), -1);
        }
    }
    const float in[4] = {1, 2, 3, 4}, one[4] = {1, 1, 1, 1}, zero[4] = {0};
    const double want[4] = {-1.3416402, -0.4472136, 0.4472136, 1.3416402};
    for (int level = 0; level < NUM_LEVELS; level++) {
        tamis_kernels_for((tamis_cpu_level)level)->layernorm(y, in, one, zero, 4, 1e-6f);
        for (int k = 0; k < 4; k++)
            assert_true(fabs((double)y[k] - want[k]) < 2e-7);
    }
}

/* Finite rows whose sum of squares is not: NaN, since 1 / sqrt(infinity) would make zeros of them.
 */
static void test_norms_of_too_large_rows(void **state)
{
    (void)state;
    static float x[MAX_LENGTH], one[MAX_LENGTH], zero[MAX_LENGTH], y[MAX_LENGTH];
    for (int64_t k = 0; k < MAX_LENGTH; k++) {
        x[k] = k % 2 == 0 ? 1e20f : -1e20f;
        one[k] = 1;
    }
    for (int level = 0; level < NUM_LEVELS; level++)
        for (size_t i = 0; i < NUM_LENGTHS; i++) {
            const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
            const int64_t n = lengths[i];
            for (int with_weight = 0; with_weight < 2; with_weight++) {
                kernels->rmsnorm(y, x, with_weight ? one : NULL, n, 1e-6f);
                for (int64_t k = 0; k < n; k++)
                    assert_true(isnan(y[k]));
            }
            kernels->layernorm(y, x, one, zero, n, 1e-6f);
            for (int64_t k = 0; k < n && n > 1; k++) /* of one value nothing remains but the mean */
                assert_true(isnan(y[k]));
            const float kept = x[0];
            x[0] = 1e18f; /* the largest order that still has a square */
            kernels->rmsnorm(y, x, NULL, 1, 1e-6f);
            assert_true(fabsf(y[0] - 1) < 1e-6f);
            x[0] = kept;
        }
}

/* Worked example 7.7 of the V3.2 specification: pairs of neighbours (A) and of halves (C). */
static void test_rope_pairings(void **state)
{
    (void)state;
    const double pi = 3.14159265358979323846;
    const struct {
        double angles[2], neighbours[4], halves[4];
    } examples[] = {
        {{pi / 2, pi}, {-2, 1, -3, -4}, {-3, -2, 1, -4}},
        {{1, 0.01},
         {-1.142640, 1.922076, 2.959851, 4.029800},
         {-1.984111, 1.959901, 2.462378, 4.019800}},
    };
    for (int level = 0; level < NUM_LEVELS; level++)
        for (size_t e = 0; e < sizeof examples / sizeof *examples; e++) {
            const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
            const double *angles = examples[e].angles;
            const float c[2] = {(float)cos(angles[0]), (float)cos(angles[1])};
            const float s[2] = {(float)sin(angles[0]), (float)sin(angles[1])};
            float a[4] = {1, 2, 3, 4}, h[4] = {1, 2, 3, 4}, sorted[4] = {1, 3, 2, 4};
            kernels->rope(a, c, s, 2, false);
            kernels->rope_halves(h, c, s, 2, false);
            kernels->rope_halves(sorted, c, s, 2, false);
            for (int k = 0; k < 4; k++) {
                assert_true(fabs((double)a[k] - examples[e].neighbours[k]) < 1e-6);
                assert_true(fabs((double)h[k] - examples[e].halves[k]) < 1e-6);
                /* even channels first, then odd ones: the same turn in another place */
                assert_true(sorted[k] == a[k % 2 * 2 + k / 2]);
            }
            kernels->rope_halves(h, c, s, 2, true);
            for (int k = 0; k < 4; k++)
                assert_true(fabs((double)h[k] - (k + 1)) < 1e-6);
        }
}

static void test_rope_value(void **state)
{
    (void)state;
    for (int level = 0; level < NUM_LEVELS; level++) {
        const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
        /* worked example: the pair (1, 2) turned by 3 radians, and back */
        const float c3 = cosf(3.0f), s3 = sinf(3.0f);
        float pair[2] = {1, 2};
        kernels->rope(pair, &c3, &s3, 1, false);
        assert_true(fabs((double)pair[0] + 1.2722325) < 3e-7);
        assert_true(fabs((double)pair[1] + 1.8388650) < 3e-7);
        kernels->rope(pair, &c3, &s3, 1, true);
        assert_true(fabs((double)pair[0] - 1) < 3e-7 && fabs((double)pair[1] - 2) < 3e-7);
        /* keys (1, 0) at 5 and 7, weights .25 and .5, the sum turned back by the query's 7 */
        float sum[2] = {0, 0};
        const int positions[2] = {5, 7};
        const float weights[2] = {.25f, .5f};
        for (int k = 0; k < 2; k++) {
            float key[2] = {1, 0};
            const float c = (float)cos(positions[k]), s = (float)sin(positions[k]);
            kernels->rope(key, &c, &s, 1, false);
            kernels->axpy(sum, weights[k], key, 2);
        }
        assert_true(fabs((double)sum[0] - 0.4478667) < 1e-7);
        assert_true(fabs((double)sum[1] - 0.0887622) < 1e-7);
        const float c7 = (float)cos(7.0), s7 = (float)sin(7.0);
        kernels->rope(sum, &c7, &s7, 1, true);
        assert_true(fabs((double)sum[0] - 0.3959633) < 1e-7);
        assert_true(fabs((double)sum[1] + 0.2273244) < 1e-7);
    }
}

/* Case 22: the gate is clamped above only, up on both sides, before the product. */
static void test_swiglu_value(void **state)
{
    (void)state;
    const double silu10 = 10 / (1 + exp(-10)), silu_low = -50 / (1 + exp(50));
    const float g[4] = {50, -50, 3, NAN}, u[4] = {-50, 50, NAN, 1};
    for (int level = 0; level < NUM_LEVELS; level++) {
        float h[4];
        tamis_kernels_for((tamis_cpu_level)level)->swiglu(h, g, u, 4, 10.0f);
        assert_true(fabs((double)h[0] + 10 * silu10) < 1e-5);
        assert_true(fabs((double)h[1] / (10 * silu_low) - 1) < 1e-6);
        assert_true(isnan(h[2]) && isnan(h[3]));
        tamis_kernels_for((tamis_cpu_level)level)->swiglu(h, g, u, 2, INFINITY);
        assert_true(h[0] == -2500.0f);
    }
}

static void test_element_values(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rows double", 53);
    float x[40], y[40], out[40], streams[4 * 40];
    const float coef[4] = {0.5f, -2.0f, 0.125f, 3.0f};
    kernel_fill(&rng, KERNEL_DATA_NORMAL, x, 40);
    kernel_fill(&rng, KERNEL_DATA_NORMAL, y, 40);
    kernel_fill(&rng, KERNEL_DATA_NORMAL, streams, 160);
    memcpy(out, y, sizeof out);
    tamis_axpy_c(out, 0.3f, x, 40);
    for (int i = 0; i < 40; i++)
        assert_true(out[i] == fmaf(0.3f, x[i], y[i]));
    tamis_scale_c(out, 0.3f, x, 40);
    for (int i = 0; i < 40; i++)
        assert_true(out[i] == 0.3f * x[i]);
    memcpy(out, y, sizeof out);
    tamis_add_c(out, x, 40);
    for (int i = 0; i < 40; i++)
        assert_true(out[i] == x[i] + y[i]);
    tamis_mix_c(out, coef, streams, 40, 4, 40);
    for (int i = 0; i < 40; i++) {
        double want = 0;
        for (int s = 0; s < 4; s++)
            want += (double)coef[s] * (double)streams[s * 40 + i];
        assert_true(fabs((double)out[i] - want) < 2e-6);
    }
}

/* ---------------------------------------------------------------- conversions */

/* Every code of a format through widen, at every level, at an odd address, ending at a page. */
static void check_widen(tamis_dtype dtype, size_t size, int n, double (*value)(uint16_t))
{
    kernel_page page = kernel_page_new((size_t)n * size + 1);
    static float out[65536 + 16];
    for (int odd = 0; odd < 2; odd++) {
        uint8_t *codes = (uint8_t *)page.data + odd;
        for (int i = 0; i < n; i++)
            memcpy(codes + (size_t)i * size, &i, size); /* little endian, as the formats are */
        for (int level = 0; level < NUM_LEVELS; level++) {
            out[n] = 77.0f;
            tamis_kernels_for((tamis_cpu_level)level)->widen(out, codes, dtype, n);
            for (int i = 0; i < n; i++)
                assert_true(kernel_same_f32(out[i], (float)value((uint16_t)i)));
            assert_true(out[n] == 77.0f);
        }
    }
    kernel_page_free(&page);
}
static double e4m3_code(uint16_t code)
{
    return kernel_ref_e4m3((uint8_t)code);
}
static double e8m0_code(uint16_t code)
{
    return kernel_ref_e8m0((uint8_t)code);
}

static void test_widen(void **state)
{
    (void)state;
    check_widen(TAMIS_DTYPE_BF16, 2, 65536, kernel_ref_bf16);
    check_widen(TAMIS_DTYPE_F16, 2, 65536, kernel_ref_f16);
    check_widen(TAMIS_DTYPE_F8_E4M3, 1, 256, e4m3_code);
    check_widen(TAMIS_DTYPE_F8_E8M0, 1, 256, e8m0_code);
}

/* narrow at every level equals the scalar rounding (tested in test_kernels_math), to the bit. */
static void test_narrow(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("narrow", 54);
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < NUM_LENGTHS; i++) {
            const int64_t n = lengths[i];
            kernel_page page = kernel_page_new((size_t)n * sizeof(float));
            float *x = page.data;
            if (round % 4 == 0)
                test_rng_fill_bytes(&rng, x, (size_t)n * sizeof *x);
            else
                kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), x, (size_t)n);
            for (int level = 0; level < NUM_LEVELS; level++)
                for (int half = 0; half < 2; half++) {
                    test_guard out = test_guard_new((size_t)n * 2, 1, &rng);
                    tamis_kernels_for((tamis_cpu_level)level)
                        ->narrow(out.data, x, half ? TAMIS_DTYPE_F16 : TAMIS_DTYPE_BF16, n);
                    for (int64_t k = 0; k < n; k++)
                        assert_int_equal(tamis_load_u16((uint8_t *)out.data + 2 * k),
                                         half ? tamis_f32_to_f16(x[k]) : tamis_f32_to_bf16(x[k]));
                    assert_true(test_guard_intact(&out));
                    test_guard_free(&out);
                }
            kernel_page_free(&page);
        }
}

static void test_copies(void **state)
{
    (void)state;
    const float x[5] = {1.0f, -0.0f, INFINITY, 1e-45f, NAN};
    uint8_t bytes[4 * 5 + 1];
    float back[5];
    for (int level = 0; level < NUM_LEVELS; level++) {
        const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
        kernels->narrow(bytes + 1, x, TAMIS_DTYPE_F32, 5);
        kernels->widen(back, bytes + 1, TAMIS_DTYPE_F32, 5);
        assert_memory_equal(x, back, sizeof x);
    }
}

static void test_all_finite(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN, -NAN}, good[] = {3.4e38f, -0.0f, 1e-45f, 0.0f};
    for (size_t i = 0; i < NUM_LENGTHS; i++) {
        kernel_page page = kernel_page_new((size_t)lengths[i] * sizeof(float));
        float *x = page.data;
        for (int level = 0; level < NUM_LEVELS; level++) {
            const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
            for (int64_t k = 0; k < lengths[i]; k++)
                x[k] = good[k % 4];
            assert_true(kernels->all_finite(x, lengths[i]));
            assert_true(kernels->all_finite(x, 0));
            for (int64_t k = 0; k < lengths[i]; k += 1 + lengths[i] / 50) {
                x[k] = bad[k % 4];
                assert_false(kernels->all_finite(x, lengths[i]));
                x[k] = 1.0f;
            }
        }
        kernel_page_free(&page);
    }
}

/* ---------------------------------------------------------------- the table */

/* Case 26: a machine with AVX2 has AVX2 kernels, and the table says so. */
static void test_table(void **state)
{
    (void)state;
    const tamis_kernels *portable = tamis_kernels_for(TAMIS_CPU_PORTABLE);
    assert_string_equal(portable->level_of_name, "portable");
    assert_true(portable->linear == tamis_linear_c);
#define ENTRY_IS_SET(name) assert_true(portable->name == tamis_##name##_c);
    TAMIS_KERNEL_LIST(ENTRY_IS_SET)
#undef ENTRY_IS_SET
    if (tamis_cpu_level_available() < TAMIS_CPU_AVX2)
        return;
    const tamis_kernels *avx2 = tamis_kernels_for(TAMIS_CPU_AVX2);
    assert_string_equal(avx2->level_of_name, "avx2");
#define ENTRY_IS_OWN(name) assert_true(avx2->name && avx2->name != tamis_##name##_c);
    TAMIS_KERNEL_LIST(ENTRY_IS_OWN)
#undef ENTRY_IS_OWN
}

static void test_current_follows_level(void **state)
{
    (void)state;
    const tamis_cpu_level before = tamis_cpu_level_current();
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_PORTABLE), TAMIS_STATUS_OK);
    assert_string_equal(tamis_kernels_current()->level_of_name, "portable");
    assert_int_equal(tamis_cpu_level_set(tamis_cpu_level_available()), TAMIS_STATUS_OK);
    assert_ptr_equal(tamis_kernels_current(), tamis_kernels_for(tamis_cpu_level_available()));
    assert_int_equal(tamis_cpu_level_set(before), TAMIS_STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),          cmocka_unit_test(test_rmsnorm_value),
        cmocka_unit_test(test_layernorm_value), cmocka_unit_test(test_norms_of_too_large_rows),
        cmocka_unit_test(test_rope_pairings),   cmocka_unit_test(test_rope_value),
        cmocka_unit_test(test_swiglu_value),    cmocka_unit_test(test_element_values),
        cmocka_unit_test(test_widen),           cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_copies),          cmocka_unit_test(test_all_finite),
        cmocka_unit_test(test_table),           cmocka_unit_test(test_current_follows_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
