/*
 * Linear layers, AVX2.
 *
 * Up to 3 tokens: the weights are read, decoded in registers and multiplied at once (the fused
 * tile), because such a call is bound by the stream of weights. More tokens: TAMIS_LINEAR_ROWS
 * rows are expanded to f32, K_BLOCK columns at a time so that they lie in the first cache level,
 * and multiplied in tiles of 2 rows x 3 tokens x 16 lanes - 12 accumulators, the most that leaves
 * registers for the operands. Between two column blocks the accumulators wait in memory; tokens
 * go in blocks of TOKEN_BLOCK, and the second block finds the rows expanded.
 *
 * The order of additions of one output is the same in every path: 16 lanes over ascending columns.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/table_x86.h"
#include "kernels/x86/weights_avx2.h"

#define K_BLOCK     512
#define TOKEN_BLOCK 24

/* ---------------------------------------------------------------- fused tile, few tokens */

/* The last cols % 16 columns: both operands padded with zeros. */
static TAMIS_ALWAYS_INLINE v16 tail_weights(const tamis_matrix *w, int64_t row, int64_t begin)
{
    _Alignas(32) float buffer[TAMIS_LANES] = {0};
    tamis_expand_span_avx2(buffer, w, row, begin, w->cols);
    return v16_load(buffer);
}

/*
 * y for n_rows x n_tokens outputs, everything known at compile time but the number of columns.
 * false: an FP8 NaN or a scale too large to fold was met and nothing was written.
 */
static TAMIS_ALWAYS_INLINE bool fused_tile(tamis_dtype dtype, int n_rows, int n_tokens, float *y,
                                           int64_t y_stride, const float *x, int64_t x_stride,
                                           const tamis_matrix *w, int64_t first_row)
{
    const bool low_bits = takes_factor(dtype);
    const int64_t whole = w->cols / TAMIS_LANES * TAMIS_LANES;
    const uint8_t *row[4];
    v16 acc[4][FUSED_TOKENS];
    __m256 factor[4];
    __m256i largest = _mm256_setzero_si256(); /* twice the binary16 magnitudes met: finds NaN */
    for (int r = 0; r < n_rows; r++) {
        row[r] = tamis_weight_row(w, first_row + r);
        for (int t = 0; t < n_tokens; t++)
            acc[r][t] = v16_zero();
    }
    for (int64_t c = 0; c < whole;) {
        int64_t stop = whole;
        if (low_bits) {
            for (int r = 0; r < n_rows; r++)
                if (!block_factor(&factor[r], dtype, w, first_row + r, c))
                    return false;
            if (w->scale && (c / w->block_cols + 1) * w->block_cols < whole)
                stop = (c / w->block_cols + 1) * w->block_cols;
        }
        for (; c < stop; c += TAMIS_LANES) {
            v16 in[FUSED_TOKENS];
            for (int t = 0; t < n_tokens; t++)
                in[t] = v16_load(x + t * x_stride + c);
            if (n_tokens < 3) /* with 3 tokens the accumulators leave no room */
                for (int t = 0; t < n_tokens; t++)
                    in[t] = v16_in_registers(in[t]);
            for (int r = 0; r < n_rows; r++) {
                v16 value;
                if (dtype == TAMIS_DTYPE_F8_E4M3) {
                    const __m256i h = e4m3_to_halves(row[r] + c);
                    largest = _mm256_max_epu16(largest, _mm256_add_epi16(h, h));
                    value = v16_scale(halves_widen(h), factor[r]);
                } else if (dtype == TAMIS_DTYPE_F4_E2M1) {
                    value = e2m1_widen(row[r] + c / 2, factor[r]);
                } else {
                    value = decode_16(dtype, row[r], c);
                    if (dtype == TAMIS_DTYPE_I8)
                        value = v16_scale(value, factor[r]);
                }
                for (int t = 0; t < n_tokens; t++)
                    acc[r][t] = v16_fma(value, in[t], acc[r][t]);
            }
        }
    }
    if (dtype == TAMIS_DTYPE_F8_E4M3) {
        const __m256i nan = _mm256_cmpeq_epi16(largest, _mm256_set1_epi16(0x7f00));
        if (!_mm256_testz_si256(nan, nan))
            return false;
    }
    if (whole < w->cols)
        for (int r = 0; r < n_rows; r++) {
            const v16 value = tail_weights(w, first_row + r, whole);
            for (int t = 0; t < n_tokens; t++)
                acc[r][t] = v16_fma(
                    value, v16_load_first(x + t * x_stride + whole, w->cols - whole), acc[r][t]);
        }
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++)
            y[t * y_stride + r] = v16_sum(acc[r][t]);
    return true;
}

/* Rows [row, row + n_rows) for n_tokens <= FUSED_TOKENS; y[0] belongs to the first of them. */
static TAMIS_ALWAYS_INLINE bool fused_rows(tamis_dtype dtype, float *y, int64_t y_stride,
                                           const float *x, int64_t x_stride, int64_t n_tokens,
                                           const tamis_matrix *w, int64_t row, int64_t n_rows)
{
#define FUSED(rows, tokens)                                                                        \
    fused_tile(dtype, rows, tokens, y + (row - first), y_stride, x, x_stride, w, row)
    bool done = true;
    const int64_t first = row, end = row + n_rows;
    for (; n_tokens == 1 && row + 4 <= end && done; row += 4)
        done = FUSED(4, 1);
    while (row < end && done) {
        const bool pair = row + 2 <= end;
        if (n_tokens == 1)
            done = pair ? FUSED(2, 1) : FUSED(1, 1);
        else if (n_tokens == 2)
            done = pair ? FUSED(2, 2) : FUSED(1, 2);
        else
            done = pair ? FUSED(2, 3) : FUSED(1, 3);
        row += pair ? 2 : 1;
    }
    return done;
#undef FUSED
}

static bool fused_any(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                      int64_t n_tokens, const tamis_matrix *w, int64_t row, int64_t n_rows)
{
#define FUSED(dtype) fused_rows(dtype, y, y_stride, x, x_stride, n_tokens, w, row, n_rows)
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
        return FUSED(TAMIS_DTYPE_F32);
    case TAMIS_DTYPE_BF16:
        return FUSED(TAMIS_DTYPE_BF16);
    case TAMIS_DTYPE_F16:
        return FUSED(TAMIS_DTYPE_F16);
    case TAMIS_DTYPE_F8_E4M3:
        return FUSED(TAMIS_DTYPE_F8_E4M3);
    case TAMIS_DTYPE_I8:
        return FUSED(TAMIS_DTYPE_I8);
    default:
        return FUSED(TAMIS_DTYPE_F4_E2M1);
    }
#undef FUSED
}

/* ---------------------------------------------------------------- expanded rows, more tokens */

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

TAMIS_KERNEL_linear(tamis_linear_avx2)
{
    const bool fused = n_tokens <= FUSED_TOKENS && weights_can_fuse(w);
    for (int64_t row = row_begin; row < row_end; row += TAMIS_LINEAR_ROWS) {
        const int64_t n_rows =
            row_end - row < TAMIS_LINEAR_ROWS ? row_end - row : TAMIS_LINEAR_ROWS;
        float *to = y + (row - row_begin);
        if (fused && fused_any(to, y_stride, x, x_stride, n_tokens, w, row, n_rows))
            continue;
        expanded_rows(to, y_stride, x, x_stride, n_tokens, w, row, n_rows, scratch);
    }
}
#endif
