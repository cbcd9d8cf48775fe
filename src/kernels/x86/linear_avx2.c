/*
 * Linear layers, AVX2: which path a call takes. FP4 in blocks is summed in integers
 * (linear_f4_avx2.c). Of the others few tokens are bound by the stream of weights
 * (linear_few_avx2.c), many by arithmetic (linear_many_avx2.c); both give the same bits.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_fused_avx2.h"
#include "kernels/x86/table_x86.h"

TAMIS_KERNEL_linear(tamis_linear_avx2)
{
    if (tamis_f4_in_blocks(w))
        tamis_linear_f4_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, scratch,
                             same_inputs);
    else if (n_tokens > FUSED_TOKENS || !planes_can_fuse(w))
        tamis_linear_many_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, scratch,
                               false);
    else
        tamis_linear_few_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, scratch,
                              same_inputs);
}
#endif
