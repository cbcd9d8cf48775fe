#include "measure/random_weights.h"

#include <math.h>
#include <string.h>

#include "core/size.h"
#include "kernels/formats.h"

/* ---------------------------------------------------------------- forms */

typedef struct form_rule {
    tamis_dtype dtype, scale_dtype;
    int32_t block_rows, block_cols; /* 0: no scales; -1: whole rows */
} form_rule;

static const form_rule forms[] = {
    [TAMIS_FORM_BF16] = {TAMIS_DTYPE_BF16, TAMIS_DTYPE_F32, 0, 0},
    [TAMIS_FORM_FP8_E8M0] = {TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F8_E8M0, 128, 128},
    [TAMIS_FORM_FP8_F32] = {TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F32, 128, 128},
    [TAMIS_FORM_FP4] = {TAMIS_DTYPE_F4_E2M1, TAMIS_DTYPE_F8_E8M0, 1, 32},
    [TAMIS_FORM_I8] = {TAMIS_DTYPE_I8, TAMIS_DTYPE_F32, 1, -1},
};

tamis_matrix tamis_weight_form_matrix(tamis_weight_form form, int64_t rows, int64_t cols)
{
    const form_rule *rule = &forms[form];
    const int64_t block_cols = rule->block_cols < 0 ? cols : rule->block_cols;
    tamis_matrix w = {.dtype = rule->dtype,
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = tamis_ceil_div(cols * tamis_dtype_bits(rule->dtype), 8)};
    if (rule->block_rows == 0)
        return w;
    w.scale_dtype = rule->scale_dtype;
    w.block_rows = rule->block_rows;
    w.block_cols = (int32_t)block_cols;
    w.scale_row_bytes = tamis_ceil_div(cols, block_cols) * tamis_dtype_bits(rule->scale_dtype) / 8;
    return w;
}

size_t tamis_matrix_data_bytes(const tamis_matrix *w)
{
    return (size_t)(w->rows * w->row_bytes);
}

size_t tamis_matrix_scale_bytes(const tamis_matrix *w)
{
    if (w->block_rows == 0)
        return 0;
    return (size_t)(tamis_ceil_div(w->rows, w->block_rows) * w->scale_row_bytes);
}

/* ---------------------------------------------------------------- numbers */

static void fill_bytes(tamis_noise *noise, uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t bits = tamis_noise_next(noise);
        memcpy(to + i, &bits, bytes - i < 8 ? bytes - i : 8);
    }
}

/* Size of a weight so that a sum of cols products with inputs of size 1 has size 1. */
static float size_of(int64_t cols)
{
    return 1.7f / sqrtf((float)cols);
}

static void fill_bf16(tamis_noise *noise, uint8_t *to, size_t bytes, int64_t cols)
{
    const float size = size_of(cols);
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        const uint16_t h = tamis_f32_to_bf16(tamis_noise_unit(noise) * size);
        memcpy(to + i, &h, sizeof h);
    }
}

static void fill_f32(tamis_noise *noise, uint8_t *to, size_t bytes, float base, float spread)
{
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        const float v = base + spread * tamis_noise_unit(noise);
        memcpy(to + i, &v, sizeof v);
    }
}

void tamis_noise_fill_data(tamis_noise *noise, void *data, size_t bytes, tamis_dtype dtype,
                           int64_t cols)
{
    uint8_t *to = data;
    if (dtype == TAMIS_DTYPE_BF16) {
        fill_bf16(noise, to, bytes, cols);
        return;
    }
    if (dtype == TAMIS_DTYPE_F32) {
        fill_f32(noise, to, bytes, 0, size_of(cols));
        return;
    }
    fill_bytes(noise, to, bytes);
    /* the two NaN codes become the largest numbers */
    for (size_t i = 0; dtype == TAMIS_DTYPE_F8_E4M3 && i < bytes; i++)
        to[i] = (uint8_t)((to[i] & 0x7f) == 0x7f ? to[i] - 1 : to[i]);
}

/* Root of the mean square over all codes of a format. */
static float size_of_codes(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F8_E4M3 ? 128.0f : dtype == TAMIS_DTYPE_F4_E2M1 ? 3.0f : 74.0f;
}

void tamis_noise_fill_scales(tamis_noise *noise, void *scales, size_t bytes, tamis_dtype dtype,
                             tamis_dtype data_dtype, int64_t cols)
{
    const float scale = 1.0f / (sqrtf((float)cols) * size_of_codes(data_dtype));
    uint8_t *to = scales;
    if (data_dtype == TAMIS_DTYPE_I8) {
        fill_f32(noise, to, bytes, scale, scale * 0.25f);
        return;
    }
    const uint32_t exponent = tamis_bits_of(scale) >> 23;
    const size_t step = dtype == TAMIS_DTYPE_F32 ? 4 : 1;
    for (size_t i = 0; i + step <= bytes; i += step) {
        const uint32_t power = exponent - (uint32_t)(tamis_noise_next(noise) & 1);
        tamis_scale_store(to + i, dtype, tamis_float_of(power << 23));
    }
}
