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

/* Rows expanded to f32 first: any matrix, any number of tokens. */
TAMIS_KERNEL_linear(tamis_linear_many_avx2);

#endif
