#include "support/kernel_ref_lowbit.h"

#include <string.h>

/* Nearest multiple of the step that x has in a format of `bits` significant bits; ties to even. */
static double round_to(double x, int bits, int min_exponent, double overflow)
{
    if (x == 0.0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    const int top = exponent - 1 < min_exponent ? min_exponent : exponent - 1;
    const double step = ldexp(1.0, top - bits + 1);
    const double y = nearbyint(x / step) * step;
    return fabs(y) >= overflow ? copysign(INFINITY, x) : copysign(y, x);
}

double lowbit_ref_bf16(double x)
{
    return round_to(x, 8, -126, 0x1p+128);
}
double lowbit_ref_f16(double x)
{
    return round_to(x, 11, -14, 0x1p+16);
}
double lowbit_ref_f32(double x)
{
    return round_to(x, 24, -126, 0x1p+128);
}

/* Magnitudes ascend with the code in both formats. */
static double nearest_code(double x, double (*decode)(uint8_t), int n_codes)
{
    const double magnitude = fabs(x);
    int best = 0;
    for (int code = 1; code < n_codes; code++) {
        const double now = fabs(decode((uint8_t)code) - magnitude);
        const double before = fabs(decode((uint8_t)best) - magnitude);
        if (now < before || (now == before && code % 2 == 0))
            best = code;
    }
    return copysign(decode((uint8_t)best), x);
}

double lowbit_ref_code_value(tamis_dtype dtype, double x)
{
    if (isnan(x))
        return x;
    if (dtype == TAMIS_DTYPE_F8_E4M3)
        return nearest_code(x, kernel_ref_e4m3, 127);
    if (dtype == TAMIS_DTYPE_F4_E2M1)
        return nearest_code(x, kernel_ref_e2m1, 8);
    return fmin(127, fmax(-127, nearbyint(x))) + 0.0; /* integers have no -0 */
}

/* The smallest power of two not below v, and 2^-126 at least. */
static double power_above(double v)
{
    double power = 0x1p-126;
    while (power < v)
        power *= 2;
    return power;
}

double lowbit_ref_scale(tamis_scale_rule rule, tamis_dtype dtype, const float *x, int64_t n)
{
    const double max = dtype == TAMIS_DTYPE_F8_E4M3 ? 448 : dtype == TAMIS_DTYPE_F4_E2M1 ? 6 : 127;
    const double floor = dtype == TAMIS_DTYPE_F4_E2M1 ? 6 * 0x1p-126 : (double)1e-4f;
    double amax = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return (double)NAN;
        amax = fmax(amax, fabs((double)x[i]));
    }
    if (rule == TAMIS_SCALE_AMAX)
        return lowbit_ref_f32(amax / max);
    if (rule == TAMIS_SCALE_POW2_QUOTIENT)
        return power_above(fmax(lowbit_ref_f32(amax / max), (double)1e-4f));
    const double v = lowbit_ref_f32(fmax(amax, floor) * lowbit_ref_f32(1 / max));
    const double power = power_above(v);
    return rule == TAMIS_SCALE_POW2_ABOVE && power == v ? 2 * power : power;
}

void lowbit_ref_round_trip(double *out, const tamis_row_format *format, const float *x)
{
    const int64_t n_coded = format->num_values - format->num_plain, group = format->group_size;
    for (int64_t i = 0; i < format->num_values; i++) {
        if (group == 0 || i >= n_coded) {
            out[i] = format->dtype == TAMIS_DTYPE_F32 && group == 0 ? (double)x[i]
                                                                    : lowbit_ref_bf16((double)x[i]);
            continue;
        }
        const int64_t begin = i / group * group;
        const double scale = lowbit_ref_scale(format->scale_rule, format->dtype, x + begin,
                                              n_coded - begin < group ? n_coded - begin : group);
        const double stored =
            format->scale_dtype == TAMIS_DTYPE_F16 ? lowbit_ref_f16(scale) : scale;
        const double quotient = scale == 0 ? 0 : lowbit_ref_f32((double)x[i] / scale);
        const double code = isnan(scale) && format->dtype != TAMIS_DTYPE_F8_E4M3
                                ? 0
                                : lowbit_ref_code_value(format->dtype, quotient);
        out[i] = lowbit_ref_bf16(lowbit_ref_f32(code * stored));
    }
}

int64_t lowbit_ref_dot_i8(const tamis_matrix *w, int64_t row, const int8_t *x)
{
    const bool is_i4 = w->dtype == TAMIS_DTYPE_I4;
    const uint8_t *p = (const uint8_t *)w->data + (is_i4 ? row / 2 : row) * w->row_bytes;
    int64_t sum = 0;
    for (int64_t c = 0; c < w->cols; c++) {
        int value = is_i4 ? (row % 2 ? p[c] >> 4 : p[c] & 15) : p[c];
        const int half = is_i4 ? 8 : 128;
        value = value >= half ? value - 2 * half : value;
        sum += value * x[c];
    }
    return sum;
}
