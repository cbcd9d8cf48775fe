/* The paths of the AVX2 linear layer; linear_avx2.c chooses. Arguments as in TAMIS_KERNEL_linear.
 */
#ifndef TAMIS_KERNELS_LINEAR_AVX2_H
#define TAMIS_KERNELS_LINEAR_AVX2_H

#include "kernels/x86/weights_avx2.h"

/*
 * Weights decoded in registers, n_tokens <= FUSED_TOKENS, matrices that weights_can_fuse. false: an
 * FP8 NaN or a scale too large to fold was met; y then holds nothing of use.
 */
bool tamis_linear_few_avx2(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                           int64_t n_tokens, const tamis_matrix *w, int64_t row_begin,
                           int64_t row_end);

/* Any matrix, any number of tokens: rows expanded to f32 first, or the path below. */
TAMIS_KERNEL_linear(tamis_linear_many_avx2);

/* The same as a product of packed panels, faster from MIN_PANEL_TOKENS tokens on. */
TAMIS_KERNEL_linear(tamis_linear_panels_avx2);
#define MIN_PANEL_TOKENS 8

/* Rows of a panel of weights. */
#define PANEL_ROWS 16
/*
 * A panel of f32 out of n_rows <= PANEL_ROWS rows of w from `row` on, the last one repeated:
 * to[lane * lane_stride + step * PANEL_ROWS + r] is column 16 * step + lane of row r, zero behind
 * the last column. `to` is 32-byte aligned, lane_stride a multiple of 8.
 */
void tamis_linear_pack_rows_avx2(float *to, int64_t lane_stride, const tamis_matrix *w, int64_t row,
                                 int64_t n_rows);

#endif
