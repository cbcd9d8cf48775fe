/* Low-bit numbers by their definitions: see lowbit_ref.h. */
#include "support/lowbit_ref.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- roundings */

/* To `bits` bits behind the leading one; below 2^low the steps stay those at 2^low. */
static double round_to(double value, int bits, int low)
{
    int exponent;
    if (value == 0 || isnan(value) || isinf(value))
        return value;
    frexp(value, &exponent);
    exponent = exponent - 1 < low ? low : exponent - 1;
    return copysign(ldexp(nearbyint(ldexp(fabs(value), bits - exponent)), exponent - bits), value);
}

double lowbit_f32(double value)
{
    return (double)(float)value;
}

double lowbit_bf16(double value)
{
    const double rounded = round_to(value, 7, -126);
    return fabs(rounded) >= ldexp(1, 128) ? copysign((double)INFINITY, value) : rounded;
}

double lowbit_f16(double value)
{
    const double rounded = round_to(value, 10, -14);
    return fabs(rounded) >= 65536 ? copysign((double)INFINITY, value) : rounded;
}

double lowbit_e4m3(double value)
{
    return round_to(value, 3, -6);
}

double lowbit_e2m1(double value)
{
    return round_to(value, 1, 0);
}

void lowbit_bf16_all(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = lowbit_bf16(x[i]);
}

double lowbit_bf16_border(double value)
{
    int exponent;
    frexp(value, &exponent);
    const double step = ldexp(1, (exponent - 1 < -126 ? -126 : exponent - 1) - 7);
    const double place = fmod(fabs(value), step);
    return fabs(place - step / 2);
}

static double fields_value(uint32_t bits, int exp_bits, int man_bits, int bias)
{
    const int exponent = (int)(bits >> man_bits & ((1u << exp_bits) - 1));
    const double mantissa = (double)(bits & ((1u << man_bits) - 1)) / (1u << man_bits);
    const double size =
        exponent == 0 ? ldexp(mantissa, 1 - bias) : ldexp(1 + mantissa, exponent - bias);
    return bits >> (exp_bits + man_bits) & 1 ? -size : size;
}

/* The fields of a number that the format has. */
static uint32_t fields_of(double value, int exp_bits, int man_bits, int bias)
{
    const uint32_t sign = (uint32_t)(signbit(value) != 0) << (exp_bits + man_bits);
    int exponent;
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    exponent = exponent - 1 + bias;
    const bool is_subnormal = exponent < 1;
    const double size = ldexp(fabs(value), man_bits + bias - (is_subnormal ? 1 : exponent));
    const uint32_t whole = (uint32_t)size; /* with the leading one of a normal number */
    return sign | (is_subnormal ? whole : whole + ((uint32_t)(exponent - 1) << man_bits));
}

double lowbit_e4m3_value(uint8_t code)
{
    return (code & 0x7f) == 0x7f ? (double)NAN : fields_value(code, 4, 3, 7);
}

double lowbit_e2m1_value(uint8_t nibble)
{
    return fields_value(nibble, 2, 1, 1);
}

uint8_t lowbit_e4m3_code(double value)
{
    return (uint8_t)fields_of(value, 4, 3, 7);
}

uint8_t lowbit_e2m1_code(double value)
{
    return (uint8_t)fields_of(value, 2, 1, 1);
}

/* ---------------------------------------------------------------- groups with a scale */

static double largest_of(lowbit_kind kind)
{
    return kind == LOWBIT_E4M3 ? 448 : kind == LOWBIT_E2M1 ? 6 : 127;
}

static double floor_of(lowbit_kind kind)
{
    return kind == LOWBIT_E4M3 ? lowbit_f32(1e-4) : ldexp(6, -126);
}

double lowbit_scale(const double *x, int64_t n, lowbit_kind kind, lowbit_rule rule)
{
    double amax = 0;
    for (int64_t i = 0; i < n; i++)
        amax = fmax(amax, fabs(x[i]));
    if (rule == LOWBIT_AMAX)
        return lowbit_f32(amax / largest_of(kind));
    amax = fmax(amax, floor_of(kind));
    int exponent;
    const double mantissa = frexp(lowbit_f32(amax * lowbit_f32(1 / largest_of(kind))), &exponent);
    const bool is_power = mantissa == 0.5 && rule == LOWBIT_POW2;
    return ldexp(1, is_power ? exponent - 1 : exponent);
}

double lowbit_quantize(double *codes, const double *x, int64_t n, lowbit_kind kind,
                       lowbit_rule rule)
{
    const double scale = lowbit_scale(x, n, kind, rule), top = largest_of(kind);
    for (int64_t i = 0; i < n; i++) {
        const double quotient = scale == 0 ? 0 : lowbit_f32(x[i] / scale);
        const double clamped = fmax(fmin(quotient, top), -top);
        codes[i] = kind == LOWBIT_E4M3   ? lowbit_e4m3(clamped)
                   : kind == LOWBIT_E2M1 ? lowbit_e2m1(clamped)
                                         : nearbyint(clamped);
    }
    return scale;
}

void lowbit_round_trip(double *y, const double *x, int64_t n, int64_t group, lowbit_kind kind,
                       lowbit_rule rule)
{
    for (int64_t first = 0; first < n; first += group) {
        const int64_t count = n - first < group ? n - first : group;
        const double scale = lowbit_quantize(y + first, x + first, count, kind, rule);
        for (int64_t i = first; i < first + count; i++)
            y[i] *= scale;
    }
}

void lowbit_quantize_static(double *codes, const double *x, int64_t n, float input_scale,
                            float input_offset, bool through_f16)
{
    const double inverse = lowbit_f32(1 / (double)input_scale);
    for (int64_t i = 0; i < n; i++) {
        double place = lowbit_f32(lowbit_f32(x[i] * inverse) + (double)input_offset);
        place = through_f16 ? lowbit_f16(place) : place;
        codes[i] = fmax(fmin(nearbyint(place), 127), -128);
    }
}

/* ---------------------------------------------------------------- Hadamard */

void lowbit_hadamard(double *y, const double *x, int64_t n)
{
    for (int64_t a = 0; a < n; a++) {
        y[a] = 0;
        for (int64_t b = 0; b < n; b++)
            y[a] += __builtin_popcountll((unsigned long long)(a & b)) % 2 == 0 ? x[b] : -x[b];
    }
}

/* ---------------------------------------------------------------- packed rows */

/* Bytes of the coded values. */
static int32_t coded_bytes(lowbit_layout layout, int32_t n_coded)
{
    if (layout == LOWBIT_ROW_INDEX_FP4)
        return n_coded / 2;
    return n_coded * (layout == LOWBIT_ROW_F32 ? 4 : layout == LOWBIT_ROW_BF16 ? 2 : 1);
}

static int32_t group_of(lowbit_layout layout, int32_t n_coded)
{
    switch (layout) {
    case LOWBIT_ROW_V4_584:
    case LOWBIT_ROW_V4_640:
        return 64;
    case LOWBIT_ROW_656_FLASHMLA:
    case LOWBIT_ROW_656_ASCEND:
        return 128;
    case LOWBIT_ROW_INDEX_FP4:
        return 32;
    default:
        return n_coded;
    }
}

static int32_t scale_bytes_of(lowbit_layout layout)
{
    switch (layout) {
    case LOWBIT_ROW_F32:
    case LOWBIT_ROW_BF16:
        return 0;
    case LOWBIT_ROW_V4_584:
    case LOWBIT_ROW_V4_640:
    case LOWBIT_ROW_INDEX_FP4:
        return 1;
    case LOWBIT_ROW_INDEX_INT8:
        return 2;
    default:
        return 4;
    }
}

lowbit_row lowbit_row_of(lowbit_layout layout, int32_t n, int32_t n_plain)
{
    const int32_t n_coded = n - n_plain, coded = coded_bytes(layout, n_coded);
    lowbit_row row = {.layout = layout, .n = n, .n_plain = n_plain};
    row.group = group_of(layout, n_coded);
    row.scale_bytes = scale_bytes_of(layout);
    row.n_groups = row.scale_bytes == 0 ? 0 : (n_coded + row.group - 1) / row.group;
    const int32_t scales = row.n_groups * row.scale_bytes, plain = 2 * n_plain;
    row.bytes = coded + scales + plain;
    switch (layout) {
    case LOWBIT_ROW_V4_640: /* 0 rope, 128 codes, 576 scales */
        row.coded_at = plain;
        row.scale_at = plain + coded;
        row.bytes = (row.bytes + 63) / 64 * 64;
        break;
    case LOWBIT_ROW_656_FLASHMLA: /* 0 codes, 512 scales, 528 rope */
        row.scale_at = coded;
        row.plain_at = coded + scales;
        break;
    default: /* 584: 0 codes, 448 rope, 576 scales; Ascend's 656: 0, 512, 640 */
        row.plain_at = coded;
        row.scale_at = coded + plain;
        row.bytes = layout == LOWBIT_ROW_V4_584 ? (row.bytes + 7) / 8 * 8 : row.bytes;
    }
    return row;
}

static lowbit_kind kind_of(lowbit_layout layout)
{
    if (layout == LOWBIT_ROW_656_ASCEND || layout == LOWBIT_ROW_INDEX_INT8)
        return LOWBIT_INT8;
    return layout == LOWBIT_ROW_INDEX_FP4 ? LOWBIT_E2M1 : LOWBIT_E4M3;
}

static lowbit_rule rule_of(lowbit_layout layout)
{
    if (layout == LOWBIT_ROW_V4_640)
        return LOWBIT_POW2_ABOVE;
    return kind_of(layout) == LOWBIT_INT8 ? LOWBIT_AMAX : LOWBIT_POW2;
}

/* The low n bytes of an integer, least significant first. */
static void put(uint8_t *bytes, uint32_t value, int n)
{
    for (int i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get(const uint8_t *bytes, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return value;
}

static void put_code(uint8_t *coded, lowbit_kind kind, int32_t i, double code)
{
    if (kind == LOWBIT_INT8)
        coded[i] = (uint8_t)(int8_t)code;
    else if (kind == LOWBIT_E4M3)
        coded[i] = lowbit_e4m3_code(code);
    else
        coded[i / 2] |= (uint8_t)(lowbit_e2m1_code(code) << (i % 2 == 0 ? 0 : 4));
}

static double code_at(const uint8_t *coded, lowbit_kind kind, int32_t i)
{
    if (kind == LOWBIT_INT8)
        return (double)(int8_t)coded[i];
    if (kind == LOWBIT_E4M3)
        return lowbit_e4m3_value(coded[i]);
    return lowbit_e2m1_value(i % 2 == 0 ? coded[i / 2] & 15 : coded[i / 2] >> 4);
}

static void put_scale(uint8_t *at, int32_t n_bytes, double scale)
{
    if (n_bytes == 1)
        at[0] = (uint8_t)(ilogb(scale) + 127);
    else if (n_bytes == 2)
        put(at, fields_of(lowbit_f16(scale), 5, 10, 15), 2);
    else
        put(at, fields_of(scale, 8, 23, 127), 4);
}

static double scale_value(const uint8_t *at, int32_t n_bytes)
{
    if (n_bytes == 1)
        return at[0] == 255 ? (double)NAN : ldexp(1, at[0] - 127);
    return n_bytes == 2 ? fields_value(get(at, 2), 5, 10, 15)
                        : fields_value(get(at, 4), 8, 23, 127);
}

static void put_bf16(uint8_t *at, double value)
{
    put(at, fields_of(lowbit_bf16(value), 8, 7, 127), 2);
}

static void encode_unscaled(uint8_t *bytes, const lowbit_row *row, const double *x)
{
    for (int32_t i = 0; i < row->n - row->n_plain; i++)
        if (row->layout == LOWBIT_ROW_F32)
            put(bytes + 4 * i, fields_of(x[i], 8, 23, 127), 4);
        else
            put_bf16(bytes + 2 * i, x[i]);
}

void lowbit_row_encode(uint8_t *bytes, const lowbit_row *row, const double *x)
{
    const int32_t n_coded = row->n - row->n_plain;
    const lowbit_kind kind = kind_of(row->layout);
    double codes[1024];
    memset(bytes, 0, (size_t)row->bytes);
    for (int32_t i = 0; i < row->n_plain; i++)
        put_bf16(bytes + row->plain_at + 2 * i, x[n_coded + i]);
    if (row->n_groups == 0)
        encode_unscaled(bytes, row, x);
    for (int32_t g = 0; g < row->n_groups; g++) {
        const int32_t first = g * row->group;
        const int32_t n = n_coded - first < row->group ? n_coded - first : row->group;
        const double scale = lowbit_quantize(codes, x + first, n, kind, rule_of(row->layout));
        for (int32_t i = 0; i < n; i++)
            put_code(bytes + row->coded_at, kind, first + i, codes[i]);
        put_scale(bytes + row->scale_at + g * row->scale_bytes, row->scale_bytes, scale);
    }
}

void lowbit_row_codes(double *codes, double *scales, const lowbit_row *row, const uint8_t *bytes)
{
    for (int32_t i = 0; i < row->n - row->n_plain; i++)
        codes[i] = code_at(bytes + row->coded_at, kind_of(row->layout), i);
    for (int32_t g = 0; g < row->n_groups; g++)
        scales[g] = scale_value(bytes + row->scale_at + g * row->scale_bytes, row->scale_bytes);
}

void lowbit_row_decode(double *x, const lowbit_row *row, const uint8_t *bytes)
{
    const int32_t n_coded = row->n - row->n_plain;
    double codes[1024], scales[64];
    for (int32_t i = 0; i < row->n_plain; i++)
        x[n_coded + i] = fields_value(get(bytes + row->plain_at + 2 * i, 2), 8, 7, 127);
    if (row->n_groups > 0)
        lowbit_row_codes(codes, scales, row, bytes);
    for (int32_t i = 0; i < n_coded; i++)
        if (row->n_groups > 0)
            x[i] = lowbit_bf16(lowbit_f32(codes[i] * scales[i / row->group])); /* one f32 product */
        else if (row->layout == LOWBIT_ROW_F32)
            x[i] = fields_value(get(bytes + 4 * i, 4), 8, 23, 127);
        else
            x[i] = fields_value(get(bytes + 2 * i, 2), 8, 7, 127);
}
