/*
 * Number formats, one value at a time: what every level decodes and rounds to, and where a
 * matrix keeps a value and its scale. Loads go through memcpy: nothing needs alignment.
 */
#ifndef TAMIS_KERNELS_FORMATS_H
#define TAMIS_KERNELS_FORMATS_H

#include "kernels/math.h"
#include "tamis/rows.h"

static inline uint16_t tamis_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline float tamis_load_f32(const void *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float tamis_bf16_to_f32(uint16_t h)
{
    return tamis_float_of((uint32_t)h << 16);
}

/* Round to nearest even; the carry makes infinity out of what overflows. NaN stays a quiet NaN. */
static inline uint16_t tamis_f32_to_bf16(float x)
{
    const uint32_t bits = tamis_bits_of(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/*
 * Exponent and mantissa moved into the place f32 has them, then times 2^112, which is exact and
 * normalises subnormals; infinity and NaN (made quiet) get their exponent directly.
 */
static inline float tamis_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u)
        return tamis_float_of(sign | 0x7f800000u | rest << 13 | (rest > 0x7c00u ? 0x400000u : 0u));
    return tamis_float_of(sign | tamis_bits_of(tamis_float_of(rest << 13) * 0x1p+112f));
}

/*
 * Round to nearest even. A normal result rounds in the integer domain; a subnormal one is rounded
 * by the f32 addition of 0.5, whose ulp is the step 2^-24 of binary16's subnormals.
 */
static inline uint16_t tamis_f32_to_f16(float x)
{
    const uint32_t bits = tamis_bits_of(x);
    const uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520 and up */
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) /* below 2^-14 */
        return (uint16_t)(sign | (tamis_bits_of(tamis_float_of(rest) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}

/* fn: bias 7, no infinity, magnitude 0x7f is NaN, magnitude below 8 is subnormal (steps of 2^-9).
 */
static inline float tamis_f8_e4m3_to_f32(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24, rest = b & 0x7fu;
    const uint32_t normal = (rest << 20) + (120u << 23);
    const uint32_t subnormal = tamis_bits_of((float)(int32_t)rest * 0x1p-9f);
    const uint32_t value = rest < 8u ? subnormal : normal;
    return tamis_float_of(sign | (rest == 0x7fu ? 0x7fc00000u : value));
}

/* 2^(b - 127): byte 0 is the subnormal 2^-127, 255 is NaN. */
static inline float tamis_f8_e8m0_to_f32(uint8_t b)
{
    const uint32_t power = b == 0 ? 0x00400000u : (uint32_t)b << 23;
    return tamis_float_of(b == 255 ? 0x7fc00000u : power);
}

/* Sign in bit 3, magnitudes 0 0.5 1 1.5 2 3 4 6. -0 keeps its sign. */
static inline float tamis_f4_e2m1_to_f32(uint8_t nibble)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[nibble & 15];
}

/* Bits of the largest magnitude of n values; those of infinity and NaN are above all numbers. */
static inline uint32_t tamis_amax_bits(const float *x, int64_t n)
{
    uint32_t amax = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = tamis_bits_of(x[i]) & 0x7fffffffu;
        amax = bits > amax ? bits : amax;
    }
    return amax;
}

/*
 * Fixed point of a block of inputs for the integer sums of FP4 (kernels.h, linear): from the bits
 * of its largest magnitude the exponent of tamis_fixed_unit, the least with which all values round
 * to at most 8355711 in magnitude = three balanced digits of 8 bits, 127 * (2^16 + 2^8 + 1). Not
 * below 24, where the factor and the unit are normal numbers still: values below 2^-126 vanish.
 */
static inline int32_t tamis_fixed_exponent(uint32_t amax_bits)
{
    const int32_t exponent = (int32_t)((amax_bits + 0x10101u) >> 23);
    return exponent < 24 ? 24 : exponent;
}
/* What a half of one step is worth: sums are of doubled weights. NaN: the block has no number. */
static inline float tamis_fixed_unit(uint32_t amax_bits)
{
    if (amax_bits >= 0x7f800000u)
        return tamis_float_of(0x7fc00000u);
    return tamis_float_of((uint32_t)(tamis_fixed_exponent(amax_bits) - 23) << 23);
}
/* Steps nearest to x, ties to even; 0 in a block that has no number. */
static inline int32_t tamis_fixed_round(float x, uint32_t amax_bits)
{
    if (amax_bits >= 0x7f800000u)
        return 0;
    const float factor = tamis_float_of((uint32_t)(276 - tamis_fixed_exponent(amax_bits)) << 23);
    const float steps = (fabsf(x * factor) + 0x1p+23f) - 0x1p+23f;
    return x < 0 ? -(int32_t)steps : (int32_t)steps;
}

/* Round to nearest even, to 448 at most; NaN gives the NaN code. */
static inline uint8_t tamis_f32_to_f8_e4m3(float x)
{
    const uint32_t bits = tamis_bits_of(x);
    const uint32_t sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (rest < 0x3c800000u) /* below 2^-6: steps of 2^-9, rounded by the ulp of 2^14 */
        return (uint8_t)(sign | (tamis_bits_of(tamis_float_of(rest) + 0x1p+14f) - 0x46800000u));
    const uint32_t code = (rest - 0x3c000000u + 0x7ffffu + (rest >> 20 & 1u)) >> 20;
    return (uint8_t)(sign | (code > 0x7eu ? 0x7eu : code));
}

/* Code of the nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code; -0 keeps its sign, NaN gives 0.
 */
static inline uint8_t tamis_f32_to_f4_e2m1(float x)
{
    const float a = x != x ? 0.0f : fabsf(x);
    const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                     (a >= 3.5f) + (a > 5.0f);
    const uint32_t sign = x != x ? 0u : tamis_bits_of(x) >> 28 & 8u;
    return (uint8_t)(code | (int)sign);
}

/* The smallest power of two that is at least v > 0, from the bits of v; 2^-126 for subnormals. */
static inline float tamis_pow2_ceil(float v)
{
    const uint32_t bits = tamis_bits_of(v);
    return tamis_float_of(((bits >> 23) + ((bits & 0x7fffffu) != 0)) << 23);
}

/* Largest magnitude of a code. */
static inline float tamis_max_code(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F8_E4M3 ? 448.0f : dtype == TAMIS_DTYPE_F4_E2M1 ? 6.0f : 127.0f;
}

/*
 * Scale of a group from the bits of its largest magnitude, see tamis_scale_rule. Bits of infinity
 * or NaN, which are larger than those of all numbers, give NaN.
 */
static inline float tamis_group_scale(tamis_scale_rule rule, tamis_dtype dtype, uint32_t amax_bits)
{
    const float floor = dtype == TAMIS_DTYPE_F4_E2M1 ? 6 * 0x1p-126f : 1e-4f;
    const float max = tamis_max_code(dtype), amax = tamis_float_of(amax_bits);
    if (amax_bits >= 0x7f800000u)
        return tamis_float_of(0x7fc00000u);
    if (rule == TAMIS_SCALE_AMAX)
        return amax / max;
    if (rule == TAMIS_SCALE_POW2_QUOTIENT)
        return tamis_pow2_ceil(amax / max > 1e-4f ? amax / max : 1e-4f);
    const float v = (amax > floor ? amax : floor) * (1.0f / max);
    return rule == TAMIS_SCALE_POW2_ABOVE ? tamis_float_of(((tamis_bits_of(v) >> 23) + 1u) << 23)
                                          : tamis_pow2_ceil(v);
}

/* A stored scale: E8M0 (of powers of two), F16 or F32. */
static inline void tamis_scale_store(uint8_t *to, tamis_dtype dtype, float scale)
{
    const uint16_t half = tamis_f32_to_f16(scale);
    if (dtype == TAMIS_DTYPE_F8_E8M0)
        *to = (uint8_t)(scale != scale ? 255 : tamis_bits_of(scale) >> 23);
    else if (dtype == TAMIS_DTYPE_F16)
        memcpy(to, &half, sizeof half);
    else
        memcpy(to, &scale, sizeof scale);
}
static inline float tamis_scale_load(const uint8_t *from, tamis_dtype dtype)
{
    if (dtype == TAMIS_DTYPE_F8_E8M0)
        return tamis_f8_e8m0_to_f32(*from);
    return dtype == TAMIS_DTYPE_F16 ? tamis_f16_to_f32(tamis_load_u16(from)) : tamis_load_f32(from);
}

/* Nearest integer, ties to even, within low .. high; NaN gives 0. */
static inline int32_t tamis_round_within(float x, int32_t low, int32_t high)
{
    const float magic = 0x1.8p+23f;
    const float c = x >= (float)high ? (float)high : x <= (float)low ? (float)low : x;
    return c != c ? 0 : (int32_t)((c + magic) - magic);
}

/* Column c of a row that starts at `row`. */
static inline float tamis_weight_decode(tamis_dtype dtype, const uint8_t *row, int64_t c)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return tamis_load_f32(row + 4 * c);
    case TAMIS_DTYPE_BF16:
        return tamis_bf16_to_f32(tamis_load_u16(row + 2 * c));
    case TAMIS_DTYPE_F16:
        return tamis_f16_to_f32(tamis_load_u16(row + 2 * c));
    case TAMIS_DTYPE_F8_E4M3:
        return tamis_f8_e4m3_to_f32(row[c]);
    case TAMIS_DTYPE_I8:
        return (float)(int8_t)row[c];
    default: /* F4_E2M1: low nibble = even column */
        return tamis_f4_e2m1_to_f32(row[c / 2] >> (c % 2 * 4) & 15);
    }
}

/* Value of column c of row `row` of an I4 matrix; data points at the pair of rows. */
static inline int32_t tamis_i4_decode(const uint8_t *pair, int64_t row, int64_t c)
{
    const int32_t nibble = pair[c] >> (row % 2 * 4) & 15;
    return (nibble ^ 8) - 8;
}

/* Of I4 the row of bytes that holds the pair. */
static inline const uint8_t *tamis_weight_row(const tamis_matrix *w, int64_t row)
{
    return (const uint8_t *)w->data + (w->dtype == TAMIS_DTYPE_I4 ? row / 2 : row) * w->row_bytes;
}

/* The row of the scale grid that belongs to matrix row `row`; only if w->scale. */
static inline const uint8_t *tamis_scale_row(const tamis_matrix *w, int64_t row)
{
    return (const uint8_t *)w->scale + row / w->block_rows * w->scale_row_bytes;
}

static inline float tamis_scale_decode(const tamis_matrix *w, const uint8_t *scale_row,
                                       int64_t block)
{
    return w->scale_dtype == TAMIS_DTYPE_F32 ? tamis_load_f32(scale_row + 4 * block)
                                             : tamis_f8_e8m0_to_f32(scale_row[block]);
}

/* Whether linear forms the sums of w in integers, in blocks of 32 columns under one scale. */
static inline bool tamis_f4_in_blocks(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_F4_E2M1 &&
           (w->scale == NULL || w->block_cols % 32 == 0 || w->block_cols >= w->cols);
}

#endif
