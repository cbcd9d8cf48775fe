/*
 * Linear layers of few tokens, AVX2: such a call is bound by the stream of weights, which are read,
 * decoded in registers and multiplied at once.
 *
 * The order of additions of one output is that of every path: 16 lanes over ascending columns.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/table_x86.h"

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

bool tamis_linear_few_avx2(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                           int64_t n_tokens, const tamis_matrix *w, int64_t row_begin,
                           int64_t row_end)
{
#define FUSED(dtype)                                                                               \
    fused_rows(dtype, y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end - row_begin)
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
#endif
