/*
 * Linear layers, AVX2: which path a call takes. Few tokens are bound by the stream of weights
 * (linear_few_avx2.c), many by arithmetic (linear_many_avx2.c); both give the same bits.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/table_x86.h"

TAMIS_KERNEL_linear(tamis_linear_avx2)
{
    if (n_tokens > FUSED_TOKENS || !weights_can_fuse(w)) {
        tamis_linear_many_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, scratch);
        return;
    }
    for (int64_t row = row_begin; row < row_end; row += TAMIS_LINEAR_ROWS) {
        const int64_t next = row + TAMIS_LINEAR_ROWS, end = next < row_end ? next : row_end;
        float *to = y + (row - row_begin);
        if (!tamis_linear_few_avx2(to, y_stride, x, x_stride, n_tokens, w, row, end))
            tamis_linear_many_avx2(to, y_stride, x, x_stride, n_tokens, w, row, end, scratch);
    }
}
#endif
