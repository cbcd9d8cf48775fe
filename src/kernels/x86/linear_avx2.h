/* The paths of the AVX2 linear layer; linear_avx2.c chooses. Arguments as in TAMIS_KERNEL_linear.
 */
#ifndef TAMIS_KERNELS_LINEAR_AVX2_H
#define TAMIS_KERNELS_LINEAR_AVX2_H

#include "kernels/x86/planes_avx2.h"
#include "kernels/x86/weights_avx2.h"

/* Weights decoded in registers, n_tokens <= FUSED_TOKENS, matrices that planes_can_fuse. */
TAMIS_KERNEL_linear(tamis_linear_few_avx2);
/* FP4 in blocks (tamis_f4_in_blocks): sums in integers, any number of tokens. */
TAMIS_KERNEL_linear(tamis_linear_f4_avx2);
/* Rows decoded to a buffer first: any matrix, any number of tokens. */
TAMIS_KERNEL_linear(tamis_linear_many_avx2);

/*
 * Rows are read a group at a time, side by side, and what lies behind is asked for in the order of
 * memory: that is the order which the hardware's own prefetch goes on with, and the pages of the
 * next group are looked up in time. A group ahead, but not less than AHEAD_BYTES, which the memory
 * needs. Into the second cache level: the first has the inputs.
 */
#define AHEAD_BYTES 12288
typedef struct group_ahead {
    const uint8_t *next; /* the last groups name themselves, which costs nothing */
} group_ahead;

static inline group_ahead group_ahead_of(const tamis_matrix *w, int64_t row, int64_t n_rows,
                                         int64_t row_end)
{
    const int64_t bytes = n_rows * w->row_bytes;
    const int64_t ahead = bytes < AHEAD_BYTES ? AHEAD_BYTES : bytes;
    const bool is_last = row * w->row_bytes + ahead + bytes > row_end * w->row_bytes;
    return (group_ahead){tamis_weight_row(w, row) + (is_last ? 0 : ahead)};
}

/* Called for every 64 bytes of the group's n_rows rows, `done` bytes from their start. */
static TAMIS_ALWAYS_INLINE void group_ahead_fetch(const group_ahead *ahead, int n_rows,
                                                  int64_t done)
{
    const uint8_t *at = ahead->next + n_rows * done;
    for (int i = 0; i < n_rows; i++)
        _mm_prefetch(at + 64 * i, _MM_HINT_T1);
}

/*
 * acc += the columns from `begin`, a multiple of 64, to the end of the row, times input `token` of
 * n_tokens that lie as planes_order_rows leaves them.
 */
static inline v16 row_rest(v16 acc, const tamis_matrix *w, int64_t row, int64_t begin,
                           const float *x, int64_t n_tokens, int64_t token)
{
    const int64_t step = n_tokens * PLANE_COLS;
    const float *in = x + begin * n_tokens + token * PLANE_COLS;
    _Alignas(32) float value[QUADS_COLS];
    tamis_expand_span_avx2(value, w, row, begin, w->cols);
    planes_order(value, value, w->cols - begin);
    for (int b = 0; b < 4; b++) {
        const float *at = value + 8 * b;
        acc.lo = _mm256_fmadd_ps(_mm256_load_ps(at), _mm256_loadu_ps(in + 8 * b), acc.lo);
        acc.hi = _mm256_fmadd_ps(_mm256_load_ps(at + PLANE_COLS),
                                 _mm256_loadu_ps(in + step + 8 * b), acc.hi);
    }
    return acc;
}

#endif
