/*
 * Linear layers, portable: a weight row is expanded to f32 once and multiplied with all tokens.
 */
#include "kernels/body/lanes.h"
#include "kernels/formats.h"

/* Decoded values of a row, without the scale. */
static void decode_row(float *dst, const tamis_matrix *w, const uint8_t *row)
{
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
        memcpy(dst, row, (size_t)w->cols * sizeof *dst);
        break;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
    case TAMIS_DTYPE_F8_E4M3:
        tamis_widen_c(dst, row, w->dtype, w->cols);
        break;
    case TAMIS_DTYPE_F4_E2M1:
        for (int64_t c = 0; c < w->cols; c++)
            dst[c] = tamis_f4_e2m1_to_f32((uint8_t)(row[c / 2] >> (c % 2 * 4)));
        break;
    default:
        assert(!"dtype that linear layers do not have");
    }
}

TAMIS_KERNEL_expand_row(tamis_expand_row_c)
{
    decode_row(dst, w, tamis_weight_row(w, row));
    if (!w->scale)
        return;
    const uint8_t *scale_row = tamis_scale_row(w, row);
    int64_t block = 0;
    for (int64_t begin = 0; begin < w->cols; begin += w->block_cols, block++) {
        const int64_t end = begin + w->block_cols < w->cols ? begin + w->block_cols : w->cols;
        const float scale = tamis_scale_decode(w, scale_row, block);
        for (int64_t c = begin; c < end; c++)
            dst[c] *= scale;
    }
}

TAMIS_KERNEL_linear(tamis_linear_c)
{
    for (int64_t r = row_begin; r < row_end; r++) {
        tamis_expand_row_c(scratch, w, r);
        for (int64_t t = 0; t < n_tokens; t++) {
            float acc[TAMIS_LANES] = {0};
            tamis_lanes_dot(acc, scratch, x + t * x_stride, w->cols);
            y[t * y_stride + r] = tamis_lanes_sum(acc);
        }
    }
}
