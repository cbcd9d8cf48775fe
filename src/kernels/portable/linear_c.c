/*
 * Linear layers, portable: a weight row is expanded to f32 once and multiplied with all tokens.
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

TAMIS_KERNEL_linear(tamis_linear_c)
{
    for (int64_t r = row_begin; r < row_end; r++) {
        tamis_expand_row_c(scratch, w, r);
        for (int64_t t = 0; t < n_tokens; t++) {
            float acc[TAMIS_LANES] = {0};
            tamis_lanes_dot(acc, scratch, x + t * x_stride, w->cols);
            y[t * y_stride + r - row_begin] = tamis_lanes_sum(acc);
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
