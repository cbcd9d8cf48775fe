/* What the AVX2 level implements; a kernel that is not listed stays portable. */
#ifndef TAMIS_KERNELS_TABLE_X86_H
#define TAMIS_KERNELS_TABLE_X86_H

#include "kernels/kernels.h"

/* clang-format off */
#define TAMIS_AVX2_LIST(X) \
    X(linear)              \
    X(linear_t)            \
    X(expand_row)          \
    X(index_score)         \
    X(index_query_f4)      \
    X(index_query_i8)      \
    X(index_score_f4)      \
    X(index_score_i8)      \
    X(scan_above)          \
    X(attn_chunk)          \
    X(widen)               \
    X(narrow)              \
    X(rmsnorm)             \
    X(layernorm)           \
    X(rope)                \
    X(rope_halves)         \
    X(pool)                \
    X(pack_heads)          \
    X(attn_merge)          \
    X(attn_finish)         \
    X(swiglu)              \
    X(axpy)                \
    X(scale)               \
    X(add)                 \
    X(mix)                 \
    X(all_finite)          \
    X(round_bf16)          \
    X(round_f8)            \
    X(pack_row)            \
    X(unpack_row)          \
    X(quantize_i8)         \
    X(quantize_i8_static)  \
    X(quantize_f4)         \
    X(linear_i8)           \
    X(hadamard)            \
    X(rmsnorm_bf16)
/* clang-format on */

#define TAMIS_KERNEL_DECLARE_AVX2(name) TAMIS_KERNEL_##name(tamis_##name##_avx2);
TAMIS_AVX2_LIST(TAMIS_KERNEL_DECLARE_AVX2)
#undef TAMIS_KERNEL_DECLARE_AVX2

#endif
