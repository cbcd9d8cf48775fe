/*
 * Linear layers, portable: a weight row is expanded to f32 once and multiplied with all tokens;
 * FP4 rows in blocks are multiplied as integers.
 */
#include "kernels/body/lanes.h"
#include "kernels/formats.h"

/* Decoded values of columns [begin, end) of a row, without the scale. */
static void decode_span(float *dst, const tamis_matrix *w, int64_t row_idx, int64_t begin,
                        int64_t end)
{
    const uint8_t *row = tamis_weight_row(w, row_idx);
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
    case TAMIS_DTYPE_F8_E4M3:
        tamis_widen_c(dst, row + begin * tamis_dtype_bits(w->dtype) / 8, w->dtype, end - begin);
        break;
    case TAMIS_DTYPE_F4_E2M1:
        for (int64_t c = begin; c < end; c++)
            dst[c - begin] = tamis_f4_e2m1_to_f32((uint8_t)(row[c / 2] >> (c % 2 * 4)));
        break;
    case TAMIS_DTYPE_I8:
        for (int64_t c = begin; c < end; c++)
            dst[c - begin] = (float)(int8_t)row[c];
        break;
    case TAMIS_DTYPE_I4:
        for (int64_t c = begin; c < end; c++)
            dst[c - begin] = (float)tamis_i4_decode(row, row_idx, c);
        break;
    default:
        assert(!"dtype that linear layers do not have");
    }
}

static void expand_span(float *dst, const tamis_matrix *w, int64_t row, int64_t begin, int64_t end)
{
    decode_span(dst, w, row, begin, end);
    if (!w->scale)
        return;
    const uint8_t *scale_row = tamis_scale_row(w, row);
    for (int64_t c = begin; c < end;) {
        const int64_t block = c / w->block_cols, next = (block + 1) * w->block_cols;
        const float scale = tamis_scale_decode(w, scale_row, block);
        for (; c < next && c < end; c++)
            dst[c - begin] *= scale;
    }
}

TAMIS_KERNEL_expand_row(tamis_expand_row_c)
{
    expand_span(dst, w, row, 0, w->cols);
}

/* ---------------------------------------------------------------- FP4 in integers */

/* T of one block of n columns. */
static void block_sums(int32_t sum[2], const uint8_t *codes, const float *x, int n,
                       uint32_t amax_bits)
{
    sum[0] = sum[1] = 0;
    for (int c = 0; c < n; c++) {
        const float value = tamis_f4_e2m1_to_f32((uint8_t)(codes[c / 2] >> (c % 2 * 4)));
        sum[c / 8 % 2] += (int32_t)(2 * value) * tamis_fixed_round(x[c], amax_bits);
    }
}

/* The blocks of one row times one token. */
static float row_in_blocks(const tamis_matrix *w, int64_t r, const float *x)
{
    enum { BLOCK = 32 };
    const uint8_t *codes = tamis_weight_row(w, r);
    const int64_t n_blocks = (w->cols + BLOCK - 1) / BLOCK;
    float acc[8] = {0};
    for (int64_t b = 0; b < (n_blocks + 3) / 4 * 4; b++) {
        const int64_t begin = b * BLOCK, left = w->cols - begin;
        const int n = (int)(left > BLOCK ? BLOCK : left > 0 ? left : 0);
        const bool has_scale = w->scale != NULL && n > 0;
        const uint32_t amax = n > 0 ? tamis_amax_bits(x + begin, n) : 0;
        const float unit = n > 0 ? tamis_fixed_unit(amax) : 1.0f;
        const float scale =
            has_scale ? tamis_scale_decode(w, tamis_scale_row(w, r), begin / w->block_cols) : 1.0f;
        int32_t sum[2];
        block_sums(sum, codes + begin / 2, x + begin, n, amax);
        for (int h = 0; h < 2; h++) {
            float *to = &acc[4 * (b % 2) + 2 * (b / 2 % 2) + h];
            *to = fmaf((float)sum[h] * unit, scale, *to);
        }
    }
    for (int n = 4; n > 0; n /= 2)
        for (int j = 0; j < n; j++)
            acc[j] += acc[j + n];
    return acc[0];
}

/* ---------------------------------------------------------------- kernels */

TAMIS_KERNEL_linear(tamis_linear_c)
{
    (void)same_inputs;
    const bool in_blocks = tamis_f4_in_blocks(w);
    for (int64_t r = row_begin; r < row_end; r++) {
        if (!in_blocks)
            tamis_expand_row_c(scratch, w, r);
        for (int64_t t = 0; t < n_tokens; t++) {
            float acc[TAMIS_LANES] = {0}, *to = y + t * y_stride + r - row_begin;
            if (!in_blocks)
                tamis_quads_dot(acc, scratch, x + t * x_stride, w->cols);
            *to = in_blocks ? row_in_blocks(w, r, x + t * x_stride) : tamis_lanes_sum(acc);
        }
    }
}

TAMIS_KERNEL_linear_t(tamis_linear_t_c)
{
    enum { COLS = 64 };
    for (int64_t begin = 0; begin < w->cols; begin += COLS) {
        const int64_t end = w->cols - begin < COLS ? w->cols : begin + COLS;
        for (int64_t t = 0; t < n_tokens; t++)
            memset(y + t * y_stride + begin, 0, (size_t)(end - begin) * sizeof *y);
        for (int64_t r = row_begin; r < row_end; r++) {
            expand_span(scratch, w, r, begin, end);
            for (int64_t t = 0; t < n_tokens; t++) {
                const float in = x[t * x_stride + r - row_begin];
                float *acc = y + t * y_stride;
                for (int64_t c = begin; c < end; c++)
                    acc[c] = fmaf(scratch[c - begin], in, acc[c]);
            }
        }
    }
}

TAMIS_KERNEL_linear_i8(tamis_linear_i8_c)
{
    for (int64_t r = row_begin; r < row_end; r++) {
        const uint8_t *row = tamis_weight_row(w, r);
        for (int64_t t = 0; t < n_tokens; t++) {
            const int8_t *in = x + t * x_stride;
            int32_t acc = 0;
            for (int64_t c = 0; c < w->cols; c++)
                acc += in[c] * (w->dtype == TAMIS_DTYPE_I4 ? tamis_i4_decode(row, r, c)
                                                           : (int32_t)(int8_t)row[c]);
            float value = (float)((int64_t)acc + (bias ? bias[r] : 0)) * row_scale[r];
            if (token_scale)
                value *= token_scale[t];
            y[t * y_stride + r - row_begin] = value;
        }
    }
}
