/* Rounding to BF16, FP8, FP4 and int8, packed rows, Hadamard rotation: portable. */
#include "kernels/body/lanes.h"
#include "kernels/formats.h"

TAMIS_KERNEL_round_bf16(tamis_round_bf16_c)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tamis_bf16_to_f32(tamis_f32_to_bf16(x[i]));
}

static float group_scale(tamis_scale_rule rule, tamis_dtype dtype, const float *x, int64_t n)
{
    return tamis_group_scale(rule, dtype, tamis_amax_bits(x, n));
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

TAMIS_KERNEL_round_f8(tamis_round_f8_c)
{
    for (int64_t begin = 0; begin < n; begin += group) {
        const int64_t end = n - begin < group ? n : begin + group;
        const float scale =
            group_scale(TAMIS_SCALE_POW2, TAMIS_DTYPE_F8_E4M3, x + begin, end - begin);
        for (int64_t i = begin; i < end; i++)
            y[i] = tamis_f8_e4m3_to_f32(tamis_f32_to_f8_e4m3(clamp(x[i] / scale, 448.0f))) * scale;
    }
}

TAMIS_KERNEL_quantize_f4(tamis_quantize_f4_c)
{
    static const int8_t doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int64_t begin = 0; begin < n; begin += group) {
        const int64_t end = n - begin < group ? n : begin + group;
        const float s = scale[begin / group] =
            group_scale(TAMIS_SCALE_POW2, TAMIS_DTYPE_F4_E2M1, x + begin, end - begin);
        for (int64_t i = begin; i < end; i++) {
            const uint8_t code = tamis_f32_to_f4_e2m1(clamp(x[i] / s, 6.0f));
            q[i] = (int8_t)(code & 8 ? -doubled[code & 7] : doubled[code & 7]);
        }
    }
}

TAMIS_KERNEL_quantize_i8(tamis_quantize_i8_c)
{
    *scale = group_scale(TAMIS_SCALE_AMAX, TAMIS_DTYPE_I8, x, n);
    for (int64_t i = 0; i < n; i++)
        q[i] = (int8_t)(*scale > 0.0f ? tamis_round_within(x[i] / *scale, -127, 127) : 0);
}

TAMIS_KERNEL_quantize_i8_static(tamis_quantize_i8_static_c)
{
    const float inverse = 1.0f / input_scale;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * inverse + input_offset;
        if (through_f16)
            v = tamis_f16_to_f32(tamis_f32_to_f16(v));
        q[i] = (int8_t)tamis_round_within(v, -128, 127);
    }
}

/* ---------------------------------------------------------------- packed rows */

static int64_t scale_bytes(const tamis_row_format *format)
{
    return tamis_dtype_bits(format->scale_dtype) / 8;
}

/* One code. Scale 0 is a group of zeros (or one too small for a scale), NaN one with a NaN in it.
 */
static uint8_t encode(tamis_dtype dtype, float x, float scale)
{
    if (!(scale > 0.0f))
        return dtype == TAMIS_DTYPE_F8_E4M3 && scale != 0.0f ? 0x7f : 0;
    const float v = clamp(x / scale, tamis_max_code(dtype));
    if (dtype == TAMIS_DTYPE_F8_E4M3)
        return tamis_f32_to_f8_e4m3(v);
    return dtype == TAMIS_DTYPE_I8 ? (uint8_t)(int8_t)tamis_round_within(v, -127, 127)
                                   : tamis_f32_to_f4_e2m1(v);
}

/* Codes of values [begin, end) of a row under one scale. */
static void encode_group(uint8_t *to, tamis_dtype dtype, const float *x, int64_t begin, int64_t end,
                         float scale)
{
    for (int64_t i = begin; i < end; i++) {
        const uint8_t code = encode(dtype, x[i], scale);
        if (dtype != TAMIS_DTYPE_F4_E2M1)
            to[i] = code;
        else if (i % 2 == 0)
            to[i / 2] = code;
        else
            to[i / 2] = (uint8_t)(to[i / 2] | code << 4);
    }
}

TAMIS_KERNEL_pack_row(tamis_pack_row_c)
{
    uint8_t *bytes = row;
    const int64_t n_coded = format->num_values - format->num_plain, group = format->group_size;
    if (group == 0) {
        tamis_narrow_c(bytes + format->coded_at, x, format->dtype, n_coded);
        return;
    }
    if ((uint8_t *)scales == bytes + format->scale_at)
        memset(bytes, 0, (size_t)format->row_bytes);
    for (int64_t begin = 0; begin < n_coded; begin += group) {
        const int64_t end = n_coded - begin < group ? n_coded : begin + group;
        const float scale = group_scale(format->scale_rule, format->dtype, x + begin, end - begin);
        tamis_scale_store((uint8_t *)scales + begin / group * scale_bytes(format),
                          format->scale_dtype, scale);
        encode_group(bytes + format->coded_at, format->dtype, x, begin, end, scale);
    }
    tamis_narrow_c(bytes + format->plain_at, x + n_coded, TAMIS_DTYPE_BF16, format->num_plain);
}

TAMIS_KERNEL_unpack_row(tamis_unpack_row_c)
{
    const uint8_t *bytes = row, *coded = bytes + format->coded_at;
    const int64_t n_coded = format->num_values - format->num_plain;
    if (format->group_size == 0) {
        tamis_widen_c(x, coded, format->dtype, n_coded);
        return;
    }
    for (int64_t i = 0; i < n_coded; i++) {
        const float scale =
            tamis_scale_load((const uint8_t *)scales + i / format->group_size * scale_bytes(format),
                             format->scale_dtype);
        x[i] = tamis_bf16_to_f32(
            tamis_f32_to_bf16(tamis_weight_decode(format->dtype, coded, i) * scale));
    }
    tamis_widen_c(x + n_coded, bytes + format->plain_at, TAMIS_DTYPE_BF16, format->num_plain);
}

/* ---------------------------------------------------------------- rotation, head norm */

TAMIS_KERNEL_hadamard(tamis_hadamard_c)
{
    for (int64_t h = 1; h < n; h *= 2)
        for (int64_t first = 0; first < n; first += 2 * h)
            for (int64_t i = first; i < first + h; i++) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

static float bf16(float x)
{
    return tamis_bf16_to_f32(tamis_f32_to_bf16(x));
}

TAMIS_KERNEL_rmsnorm_bf16(tamis_rmsnorm_bf16_c)
{
    float acc[TAMIS_LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        acc[i % TAMIS_LANES] += bf16(x[i] * x[i]);
    const float mean = bf16(tamis_lanes_sum(acc) / (float)n);
    const float r = bf16(1.0f / tamis_sqrt(bf16(mean + eps)));
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16(x[i] * r);
}
