/*
 * Linear layers of more tokens than few and of a few rows, AVX2: TAMIS_LINEAR_ROWS rows are
 * expanded to f32, K_BLOCK columns at a time so that they lie in the first cache level, and
 * multiplied in tiles of 2 rows x 3 tokens x 16 lanes - 12 accumulators, the most that leaves
 * registers for the operands. Between two column blocks the accumulators wait in memory; tokens go
 * in blocks of TOKEN_BLOCK. Both operands are in plane order (planes_avx2.h).
 *
 * The order of additions of one output is that of every path, quads16.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define K_BLOCK     512
#define TOKEN_BLOCK 24

/*
 * acc[r][t] += w[r] * x[t] over n columns, a multiple of 64, in plane order. The two halves of the
 * lanes go one after the other: 12 accumulators, 2 weights and 1 input fill the registers.
 */
static TAMIS_ALWAYS_INLINE void product_tile(int n_rows, int n_tokens, float *acc,
                                             int64_t acc_stride, const float *w, int64_t w_stride,
                                             const float *x, int64_t x_stride, int64_t n)
{
    __m256 sum[2][2][3];
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < n_rows; r++)
            for (int t = 0; t < n_tokens; t++)
                sum[half][r][t] =
                    _mm256_loadu_ps(acc + r * acc_stride + t * TAMIS_LANES + 8 * half);
    for (int64_t c = 0; c < n; c += QUADS_COLS)
        for (int i = 0; i < 8; i++) {
            const int half = i / 4;
            __m256 value[2];
            for (int r = 0; r < n_rows; r++)
                value[r] = in_register(_mm256_loadu_ps(w + r * w_stride + c + 8 * i));
            for (int t = 0; t < n_tokens; t++) {
                const __m256 in = in_register(_mm256_loadu_ps(x + t * x_stride + c + 8 * i));
                for (int r = 0; r < n_rows; r++)
                    sum[half][r][t] = _mm256_fmadd_ps(value[r], in, sum[half][r][t]);
            }
        }
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < n_rows; r++)
            for (int t = 0; t < n_tokens; t++)
                _mm256_storeu_ps(acc + r * acc_stride + t * TAMIS_LANES + 8 * half,
                                 sum[half][r][t]);
}

/* product_tile over n_rows <= TAMIS_LINEAR_ROWS and n_tokens <= TOKEN_BLOCK. */
static void product_block(int64_t n_rows, int64_t n_tokens, float *acc, const float *w,
                          int64_t w_stride, const float *x, int64_t x_stride, int64_t n)
{
    const int64_t acc_stride = TOKEN_BLOCK * TAMIS_LANES;
#define TILE(rows, tokens)                                                                         \
    product_tile(rows, tokens, acc + r * acc_stride + t * TAMIS_LANES, acc_stride,                 \
                 w + r * w_stride, w_stride, x + t * x_stride, x_stride, n)
    for (int64_t t = 0, tokens; t < n_tokens; t += tokens) {
        const int64_t left = n_tokens - t;
        tokens = left == 4 ? 2 : left < 3 ? left : 3; /* 2 + 2 is faster than 3 + 1 */
        for (int64_t r = 0; r < n_rows; r += 2) {
            if (n_rows - r >= 2) {
                if (tokens == 3)
                    TILE(2, 3);
                else if (tokens == 2)
                    TILE(2, 2);
                else
                    TILE(2, 1);
            } else {
                if (tokens == 3)
                    TILE(1, 3);
                else if (tokens == 2)
                    TILE(1, 2);
                else
                    TILE(1, 1);
            }
        }
    }
#undef TILE
}

/* Columns [begin, end) of n_rows rows to f32 in plane order. */
static void expand_rows(float *dst, const tamis_matrix *w, int64_t row, int64_t n_rows,
                        int64_t begin, int64_t end)
{
    const int64_t n = end - begin, stride = planes_stride(n);
    for (int64_t r = 0; r < n_rows; r++) {
        tamis_expand_span_avx2(dst + r * stride, w, row + r, begin, end);
        planes_order(dst + r * stride, dst + r * stride, n);
    }
}

/* n_rows <= TAMIS_LINEAR_ROWS and n_tokens <= TOKEN_BLOCK; x is in plane order. */
static void expanded_rows(float *y, int64_t y_stride, const float *x, int64_t n_tokens,
                          const tamis_matrix *w, int64_t row, int64_t n_rows)
{
    _Alignas(64) float acc[TAMIS_LINEAR_ROWS * TOKEN_BLOCK * TAMIS_LANES] = {0};
    _Alignas(64) float block[TAMIS_LINEAR_ROWS * K_BLOCK];
    for (int64_t begin = 0; begin < w->cols; begin += K_BLOCK) {
        const int64_t end = w->cols - begin < K_BLOCK ? w->cols : begin + K_BLOCK;
        const int64_t stride = planes_stride(end - begin);
        expand_rows(block, w, row, n_rows, begin, end);
        product_block(n_rows, n_tokens, acc, block, stride, x + begin, planes_stride(w->cols),
                      stride);
    }
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t t = 0; t < n_tokens; t++)
            y[t * y_stride + r] = v16_sum(v16_load(acc + (r * TOKEN_BLOCK + t) * TAMIS_LANES));
}

TAMIS_KERNEL_linear(tamis_linear_many_avx2)
{
    if (n_tokens >= MIN_PANEL_TOKENS && row_end - row_begin >= PANEL_ROWS) {
        tamis_linear_panels_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end,
                                 scratch);
        return;
    }
    for (int64_t first = 0; first < n_tokens; first += TOKEN_BLOCK) {
        const int64_t tokens = n_tokens - first < TOKEN_BLOCK ? n_tokens - first : TOKEN_BLOCK;
        planes_order_rows(scratch, x + first * x_stride, x_stride, tokens, w->cols);
        for (int64_t row = row_begin; row < row_end; row += TAMIS_LINEAR_ROWS) {
            const int64_t left = row_end - row;
            expanded_rows(y + first * y_stride + (row - row_begin), y_stride, scratch, tokens, w,
                          row, left < TAMIS_LINEAR_ROWS ? left : TAMIS_LINEAR_ROWS);
        }
    }
}
#endif
