/*
 * kernels/math.h against libm in double over dense sweeps (the largest errors are printed), and
 * kernels/formats.h against the definitions of the formats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "support/kernel_ref.h"

/* ---------------------------------------------------------------- functions */

/* |got - want| in units of the last place of want; 0 if both are the same infinity or NaN. */
static double error_in_ulp(float got, double want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : INFINITY;
    const float rounded = (float)want;
    if (isinf(got) || isinf(rounded))
        return got == rounded ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    const double ulp = ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - want) / ulp;
}

static double ref_softplus(double x)
{
    return x > 40 ? x : log1p(exp(x));
}
static double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double ref_silu(double x)
{
    return x / (1 + exp(-x));
}

typedef struct sweep {
    const char *name;
    float (*function)(float);
    double (*reference)(double);
    float low, high; /* magnitudes */
    bool negative;
    double bound; /* ulp */
} sweep;

/* Every `step`-th float of a range of magnitudes: about 1.5 million values a sweep. */
static void run_sweep(const sweep *s)
{
    const uint32_t low = tamis_bits_of(s->low), high = tamis_bits_of(s->high);
    const uint32_t step = (high - low) / 1500000u + 1u;
    double worst = 0;
    float worst_at = 0;
    for (uint32_t bits = low; bits <= high; bits += step) {
        const float x = tamis_float_of(bits | (s->negative ? 0x80000000u : 0u));
        const double error = error_in_ulp(s->function(x), s->reference((double)x));
        if (error > worst) {
            worst = error;
            worst_at = x;
        }
    }
    printf("%-10s %11.4g .. %-11.4g max %.4f ulp at %a\n", s->name,
           (double)(s->negative ? -s->low : s->low), (double)(s->negative ? -s->high : s->high),
           worst, (double)worst_at);
    assert_true(worst <= s->bound);
}

static void test_functions(void **state)
{
    (void)state;
    static const sweep sweeps[] = {
        {"exp", tamis_math_exp, exp, 0, INFINITY, false, 1.1},
        {"exp", tamis_math_exp, exp, 0, INFINITY, true, 1.1},
        {"exp", tamis_math_exp, exp, 80, 90, false, 1.1},
        {"exp", tamis_math_exp, exp, 80, 110, true, 1.1},
        {"log", tamis_math_log, log, 0, INFINITY, false, 1},
        {"log", tamis_math_log, log, 0.5f, 2, false, 1},
        {"log1p", tamis_math_log1p, log1p, 0, INFINITY, false, 1.5},
        {"log1p", tamis_math_log1p, log1p, 0, 0.9999f, true, 1.5},
        {"softplus", tamis_math_softplus, ref_softplus, 0, INFINITY, false, 2},
        {"softplus", tamis_math_softplus, ref_softplus, 0, INFINITY, true, 2},
        {"softplus", tamis_math_softplus, ref_softplus, 19, 21, false, 2},
        {"sigmoid", tamis_math_sigmoid, ref_sigmoid, 0, INFINITY, false, 3},
        {"sigmoid", tamis_math_sigmoid, ref_sigmoid, 0, 87, true, 3},
        {"silu", tamis_math_silu, ref_silu, 0, 3e38f, false, 3},
        {"silu", tamis_math_silu, ref_silu, 0, 87, true, 3},
    };
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++)
        run_sweep(&sweeps[i]);
}

static void test_sincos(void **state)
{
    (void)state;
    double worst = 0;
    const uint32_t high = tamis_bits_of(1e8f), step = high / 3000000u;
    for (uint32_t bits = 0; bits <= high; bits += step)
        for (int sign = 0; sign < 2; sign++) {
            const float x = tamis_float_of(bits | (uint32_t)sign << 31);
            float s, c;
            tamis_math_sincos(x, &s, &c);
            worst = fmax(worst, error_in_ulp(s, sin((double)x)));
            worst = fmax(worst, error_in_ulp(c, cos((double)x)));
        }
    printf("sincos     to 1e8: max %.5f ulp\n", worst);
    assert_true(worst <= 0.501);
    /* worked example: the pair (1, 2) turned by 3 radians */
    float s, c;
    tamis_math_sincos(3.0f, &s, &c);
    assert_true(fabs((double)(1 * c - 2 * s) + 1.2722325) < 2e-7);
    assert_true(fabs((double)(1 * s + 2 * c) + 1.8388650) < 2e-7);
}

static void test_special_arguments(void **state)
{
    (void)state;
    float s, c;
    assert_true(tamis_math_exp(0.0f) == 1.0f && tamis_math_exp(-0.0f) == 1.0f);
    assert_true(tamis_math_exp(-INFINITY) == 0.0f && !signbit(tamis_math_exp(-INFINITY)));
    assert_true(tamis_math_exp(INFINITY) == INFINITY && isnan(tamis_math_exp(NAN)));
    assert_true(isfinite(tamis_math_exp(88.72283f)) && isinf(tamis_math_exp(88.72284f)));
    assert_true(tamis_math_exp(-103.97f) == 0x1p-149f && tamis_math_exp(-104.0f) == 0.0f);
    assert_true(tamis_math_log(0.0f) == -INFINITY && isnan(tamis_math_log(-1.0f)));
    assert_true(tamis_math_log(1.0f) == 0.0f && tamis_math_log(INFINITY) == INFINITY);
    assert_true(isnan(tamis_math_log(NAN)) && isnan(tamis_math_log1p(NAN)));
    assert_true(tamis_math_log1p(-1.0f) == -INFINITY && tamis_math_log1p(INFINITY) == INFINITY);
    assert_true(tamis_math_softplus(-INFINITY) == 0.0f && tamis_math_softplus(30.0f) == 30.0f);
    assert_true(isnan(tamis_math_softplus(NAN)));
    assert_true(tamis_math_sigmoid(-200.0f) == 0.0f && tamis_math_sigmoid(200.0f) == 1.0f);
    assert_true(tamis_math_sigmoid(0.0f) == 0.5f && isnan(tamis_math_silu(NAN)));
    tamis_math_sincos(0.0f, &s, &c);
    assert_true(s == 0.0f && c == 1.0f);
    tamis_math_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
}

/* ---------------------------------------------------------------- formats */

static void test_small_formats(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++) {
        assert_true(
            kernel_same_f32(tamis_f8_e4m3_to_f32((uint8_t)b), (float)kernel_ref_e4m3((uint8_t)b)));
        assert_true(
            kernel_same_f32(tamis_f8_e8m0_to_f32((uint8_t)b), (float)kernel_ref_e8m0((uint8_t)b)));
    }
    for (int n = 0; n < 16; n++)
        assert_true(
            kernel_same_f32(tamis_f4_e2m1_to_f32((uint8_t)n), (float)kernel_ref_e2m1((uint8_t)n)));
    assert_true(tamis_f8_e4m3_to_f32(0x7e) == 448.0f && isnan(tamis_f8_e4m3_to_f32(0x7f)) &&
                isnan(tamis_f8_e4m3_to_f32(0xff)) && tamis_f8_e4m3_to_f32(1) == 0x1p-9f);
    /* case 21 */
    assert_true(tamis_f8_e8m0_to_f32(0) == 0x1p-127f && tamis_f8_e8m0_to_f32(120) == 0x1p-7f &&
                tamis_f8_e8m0_to_f32(127) == 1.0f && tamis_f8_e8m0_to_f32(254) == 0x1p+127f &&
                isnan(tamis_f8_e8m0_to_f32(255)));
    assert_true(signbit(tamis_f4_e2m1_to_f32(8)) != 0 && tamis_f4_e2m1_to_f32(15) == -6.0f);
}

static void test_half_formats(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        const float bf = tamis_bf16_to_f32((uint16_t)h), f = tamis_f16_to_f32((uint16_t)h);
        assert_true(kernel_same_f32(bf, (float)kernel_ref_bf16((uint16_t)h)));
        assert_true(kernel_same_f32(f, (float)kernel_ref_f16((uint16_t)h)));
        /* what came from a half returns to it, unless it is NaN */
        assert_true(isnan(bf) || tamis_f32_to_bf16(bf) == h);
        assert_true(isnan(f) || tamis_f32_to_f16(f) == h);
    }
}

/* Rounding x to a half whose neighbours are h and h + 1 (positive): nearest, ties to even. */
static void check_rounding(double (*value)(uint16_t), uint16_t (*narrow)(float), uint16_t last)
{
    for (uint32_t h = 0; h < last; h++) {
        const double low = value((uint16_t)h), high = value((uint16_t)(h + 1));
        const float middle = (float)((low + high) / 2); /* exact: one more bit */
        const uint16_t even = (uint16_t)(h % 2 == 0 ? h : h + 1);
        assert_int_equal(narrow(middle), even);
        assert_int_equal(narrow(nextafterf(middle, 0.0f)), h);
        assert_int_equal(narrow(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(narrow(-middle), even | 0x8000);
    }
}

static void test_rounding_to_halves(void **state)
{
    (void)state;
    check_rounding(kernel_ref_f16, tamis_f32_to_f16, 0x7bff);
    check_rounding(kernel_ref_bf16, tamis_f32_to_bf16, 0x7f7f);
    assert_int_equal(tamis_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(tamis_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(tamis_f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(tamis_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(tamis_f32_to_bf16(3.4028235e38f), 0x7f80);
    assert_int_equal(tamis_f32_to_bf16(-INFINITY), 0xff80);
    /* NaN stays NaN, also one whose upper bits are all zero */
    assert_int_equal(tamis_f32_to_bf16(tamis_float_of(0x7f800001u)), 0x7fc0);
    assert_true((tamis_f32_to_f16(tamis_float_of(0xff800001u)) & 0x7fff) > 0x7c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions),         cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_special_arguments), cmocka_unit_test(test_small_formats),
        cmocka_unit_test(test_half_formats),      cmocka_unit_test(test_rounding_to_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
