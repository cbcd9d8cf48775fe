/* Linear layers of many tokens as a product of packed panels, AVX2. */
#ifndef TAMIS_KERNELS_LINEAR_PANELS_AVX2_H
#define TAMIS_KERNELS_LINEAR_PANELS_AVX2_H

#include "kernels/x86/weights_avx2.h"

/* Any matrix, any number of tokens; the faster path from so many tokens on. */
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

/* The same for linear_i8. */
TAMIS_KERNEL_linear_i8(tamis_linear_i8_panels_avx2);
#define MIN_I8_PANEL_TOKENS 4

/* Largest number of tokens of a tile, and CALL(n) for n of them with n known at compile time. */
#define PANEL_TOKENS 6
#define WITH_PANEL_TOKENS(n, CALL)                                                                 \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        CALL(1);                                                                                   \
        break;                                                                                     \
    case 2:                                                                                        \
        CALL(2);                                                                                   \
        break;                                                                                     \
    case 3:                                                                                        \
        CALL(3);                                                                                   \
        break;                                                                                     \
    case 4:                                                                                        \
        CALL(4);                                                                                   \
        break;                                                                                     \
    case 5:                                                                                        \
        CALL(5);                                                                                   \
        break;                                                                                     \
    default:                                                                                       \
        CALL(6);                                                                                   \
    }

#endif
