/* Rows of a weight matrix for the AVX2 files of linear layers: 16 values at a time, or expanded. */
#ifndef TAMIS_KERNELS_WEIGHTS_AVX2_H
#define TAMIS_KERNELS_WEIGHTS_AVX2_H

#include "kernels/x86/simd_avx2.h"

/* Up to so many tokens weights are decoded in registers, beyond they are expanded to memory. */
#define FUSED_TOKENS 3

/* dst[c - begin] = value of element (row, c), begin <= c < end. */
void tamis_expand_span_avx2(float *dst, const tamis_matrix *w, int64_t row, int64_t begin,
                            int64_t end);

/* 16 decoded values from column c on, without the scale; not for F4 and I4. */
static TAMIS_ALWAYS_INLINE v16 decode_16(tamis_dtype dtype, const uint8_t *row, int64_t c)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return f32_widen(row + 4 * c);
    case TAMIS_DTYPE_BF16:
        return bf16_widen(row + 2 * c);
    case TAMIS_DTYPE_F16:
        return f16_widen(row + 2 * c);
    case TAMIS_DTYPE_I8:
        return (v16){i8_widen_8(row + c), i8_widen_8(row + c + 8)};
    default:
        return e4m3_widen(row + c);
    }
}

/* Types whose scales the tiles that decode in registers know. */
static TAMIS_ALWAYS_INLINE bool takes_factor(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F8_E4M3 || dtype == TAMIS_DTYPE_F4_E2M1 || dtype == TAMIS_DTYPE_I8;
}

#endif
