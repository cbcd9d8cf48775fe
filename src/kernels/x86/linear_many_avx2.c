/*
 * Linear layers of more tokens than few and of a few rows, AVX2: TAMIS_LINEAR_ROWS rows are
 * expanded to f32, K_BLOCK columns at a time so that they lie in the first cache level, and
 * multiplied in tiles of 2 rows x 3 tokens x 16 lanes - 12 accumulators, the most that leaves
 * registers for the operands. Between two column blocks the accumulators wait in memory; tokens go
 * in blocks of TOKEN_BLOCK, and the second block finds the rows expanded.
 *
 * The order of additions of one output is that of every path: 16 lanes over ascending columns.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define K_BLOCK     512
#define TOKEN_BLOCK 24

/*
 * acc[r][t] += w[r] * x[t] over n columns; w is padded with zeros to 16, x is not. The two halves
 * of the lanes go one after the other: 12 accumulators, 2 weights and 1 input fill the registers.
 */
static TAMIS_ALWAYS_INLINE void product_tile(int n_rows, int n_tokens, float *acc,
                                             int64_t acc_stride, const float *w, int64_t w_stride,
                                             const float *x, int64_t x_stride, int64_t n)
{
    __m256 sum[2][2][3];
    int64_t c = 0;
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < n_rows; r++)
            for (int t = 0; t < n_tokens; t++)
                sum[half][r][t] =
                    _mm256_loadu_ps(acc + r * acc_stride + t * TAMIS_LANES + 8 * half);
    for (; c + TAMIS_LANES <= n; c += TAMIS_LANES)
        for (int half = 0; half < 2; half++) {
            __m256 value[2];
            for (int r = 0; r < n_rows; r++)
                value[r] = in_register(_mm256_loadu_ps(w + r * w_stride + c + 8 * half));
            for (int t = 0; t < n_tokens; t++) {
                const __m256 in = in_register(_mm256_loadu_ps(x + t * x_stride + c + 8 * half));
                for (int r = 0; r < n_rows; r++)
                    sum[half][r][t] = _mm256_fmadd_ps(value[r], in, sum[half][r][t]);
            }
        }
    if (c < n)
        for (int half = 0; half < 2; half++)
            for (int t = 0; t < n_tokens; t++) {
                const v16 tail = v16_load_first(x + t * x_stride + c, n - c);
                for (int r = 0; r < n_rows; r++)
                    sum[half][r][t] =
                        _mm256_fmadd_ps(_mm256_loadu_ps(w + r * w_stride + c + 8 * half),
                                        half ? tail.hi : tail.lo, sum[half][r][t]);
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

/* Columns [begin, end) of n_rows rows to f32, zeros up to the stride, a multiple of 16. */
static void expand_rows(float *dst, int64_t stride, const tamis_matrix *w, int64_t row,
                        int64_t n_rows, int64_t begin, int64_t end)
{
    for (int64_t r = 0; r < n_rows; r++) {
        tamis_expand_span_avx2(dst + r * stride, w, row + r, begin, end);
        for (int64_t c = end - begin; c < stride; c++)
            dst[r * stride + c] = 0.0f;
    }
}

static void expanded_rows(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                          int64_t n_tokens, const tamis_matrix *w, int64_t row, int64_t n_rows,
                          float *scratch)
{
    _Alignas(64) float acc[TAMIS_LINEAR_ROWS * TOKEN_BLOCK * TAMIS_LANES];
    for (int64_t first = 0; first < n_tokens; first += TOKEN_BLOCK) {
        const int64_t tokens = n_tokens - first < TOKEN_BLOCK ? n_tokens - first : TOKEN_BLOCK;
        const float *in = x + first * x_stride;
        memset(acc, 0, sizeof acc);
        for (int64_t begin = 0; begin < w->cols; begin += K_BLOCK) {
            const int64_t end = w->cols - begin < K_BLOCK ? w->cols : begin + K_BLOCK;
            /* The rows of a block lie side by side: [block][row][stride]. */
            const int64_t stride = (end - begin + TAMIS_LANES - 1) / TAMIS_LANES * TAMIS_LANES;
            float *block = scratch + begin * TAMIS_LINEAR_ROWS;
            if (first == 0)
                expand_rows(block, stride, w, row, n_rows, begin, end);
            product_block(n_rows, tokens, acc, block, stride, in + begin, x_stride, end - begin);
        }
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t t = 0; t < tokens; t++)
                y[(first + t) * y_stride + r] =
                    v16_sum(v16_load(acc + (r * TOKEN_BLOCK + t) * TAMIS_LANES));
    }
}

TAMIS_KERNEL_linear(tamis_linear_many_avx2)
{
    if (n_tokens >= MIN_PANEL_TOKENS && row_end - row_begin >= PANEL_ROWS) {
        tamis_linear_panels_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end,
                                 scratch);
        return;
    }
    for (int64_t row = row_begin; row < row_end; row += TAMIS_LINEAR_ROWS) {
        const int64_t n_rows =
            row_end - row < TAMIS_LINEAR_ROWS ? row_end - row : TAMIS_LINEAR_ROWS;
        expanded_rows(y + (row - row_begin), y_stride, x, x_stride, n_tokens, w, row, n_rows,
                      scratch);
    }
}
#endif
