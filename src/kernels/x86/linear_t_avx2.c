/*
 * The transposed product of some rows of a matrix, AVX2.
 *
 * The sum of an output runs over rows, so the outputs are what lies side by side in registers and
 * the weights pass through as they are stored. Up to 3 tokens: FUSED_ROWS rows at a time are read,
 * decoded in registers and multiplied at once, over all columns; the stream of weights bounds it.
 * More tokens: tiles of TILE x TILE weights are expanded to f32 and multiplied in tiles of 6 tokens
 * x 16 columns - 12 accumulators, which leaves room for the operands.
 *
 * Between two tiles of rows the accumulators wait in y. Rows ascend, so the chain is unbroken.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/table_x86.h"
#include "kernels/x86/weights_avx2.h"

#define FUSED_ROWS 8
#define TILE       64
_Static_assert((size_t)TILE *TILE <= TAMIS_LINEAR_T_SCRATCH, "scratch of linear_t");

/* ---------------------------------------------------------------- fused tile, few tokens */

/* Where columns c to c + 15 of a row lie, for a prefetch. */
static TAMIS_ALWAYS_INLINE const void *group_at(tamis_dtype dtype, const uint8_t *row, int64_t c)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return row + 4 * c;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
        return row + 2 * c;
    case TAMIS_DTYPE_F8_E4M3:
    case TAMIS_DTYPE_I8:
        return row + c;
    default:
        return row + c / 2;
    }
}

/*
 * y += n_rows rows over the columns before `end`, a multiple of 16; sizes known when compiled.
 * Rows are too short for the hardware to see a stream before they end, so the group of the row
 * `ahead` bytes behind is asked for with each group: the next tile's.
 */
static TAMIS_ALWAYS_INLINE void fused_tile(tamis_dtype dtype, int n_rows, int n_tokens, float *y,
                                           int64_t y_stride, const float *x, int64_t x_stride,
                                           const tamis_matrix *w, int64_t first_row, int64_t end,
                                           int64_t ahead)
{
    const bool low_bits = takes_factor(dtype);
    const uint8_t *row[FUSED_ROWS];
    __m256 factor[FUSED_ROWS], in[FUSED_ROWS][FUSED_TOKENS];
    for (int r = 0; r < n_rows; r++) {
        row[r] = tamis_weight_row(w, first_row + r);
        for (int t = 0; t < n_tokens; t++)
            in[r][t] = _mm256_set1_ps(x[t * x_stride + r]);
    }
    for (int64_t c = 0; c < end;) {
        int64_t stop = end;
        if (low_bits) {
            for (int r = 0; r < n_rows; r++)
                block_factor(&factor[r], dtype, w, first_row + r, c);
            if (w->scale && (c / w->block_cols + 1) * w->block_cols < end)
                stop = (c / w->block_cols + 1) * w->block_cols;
        }
        for (; c < stop; c += TAMIS_LANES) {
            v16 acc[FUSED_TOKENS];
            for (int t = 0; t < n_tokens; t++)
                acc[t] = v16_load(y + t * y_stride + c);
            for (int r = 0; r < n_rows; r++) {
                v16 value;
                _mm_prefetch(group_at(dtype, row[r] + ahead, c), _MM_HINT_T0);
                if (dtype == TAMIS_DTYPE_F8_E4M3)
                    value = v16_scale(halves_widen(e4m3_to_halves_nan(row[r] + c)), factor[r]);
                else if (dtype == TAMIS_DTYPE_F4_E2M1)
                    value = e2m1_widen(row[r] + c / 2, factor[r]);
                else if (dtype == TAMIS_DTYPE_I8)
                    value = v16_scale(decode_16(dtype, row[r], c), factor[r]);
                else
                    value = decode_16(dtype, row[r], c);
                for (int t = 0; t < n_tokens; t++)
                    acc[t] = v16_fma(value, (v16){in[r][t], in[r][t]}, acc[t]);
            }
            for (int t = 0; t < n_tokens; t++)
                v16_store(y + t * y_stride + c, acc[t]);
        }
    }
}

static TAMIS_ALWAYS_INLINE void fused_rows(tamis_dtype dtype, int n_tokens, float *y,
                                           int64_t y_stride, const float *x, int64_t x_stride,
                                           const tamis_matrix *w, int64_t begin, int64_t row_end,
                                           int64_t col_end)
{
    int64_t row = begin;
    for (; row + FUSED_ROWS <= row_end; row += FUSED_ROWS) {
        const bool is_last = row + 2 * FUSED_ROWS > row_end;
        fused_tile(dtype, FUSED_ROWS, n_tokens, y, y_stride, x + (row - begin), x_stride, w, row,
                   col_end, is_last ? 0 : FUSED_ROWS * w->row_bytes);
    }
    for (; row < row_end; row++)
        fused_tile(dtype, 1, n_tokens, y, y_stride, x + (row - begin), x_stride, w, row, col_end,
                   0);
}

static TAMIS_ALWAYS_INLINE void fused_tokens(tamis_dtype dtype, float *y, int64_t y_stride,
                                             const float *x, int64_t x_stride, int64_t n_tokens,
                                             const tamis_matrix *w, int64_t begin, int64_t row_end,
                                             int64_t col_end)
{
    if (n_tokens == 1)
        fused_rows(dtype, 1, y, y_stride, x, x_stride, w, begin, row_end, col_end);
    else if (n_tokens == 2)
        fused_rows(dtype, 2, y, y_stride, x, x_stride, w, begin, row_end, col_end);
    else
        fused_rows(dtype, 3, y, y_stride, x, x_stride, w, begin, row_end, col_end);
}

/* All rows over the columns before col_end, n_tokens <= FUSED_TOKENS. */
static void fused_columns(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                          int64_t n_tokens, const tamis_matrix *w, int64_t row_begin,
                          int64_t row_end, int64_t col_end)
{
#define FUSED(dtype)                                                                               \
    fused_tokens(dtype, y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, col_end)
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
        FUSED(TAMIS_DTYPE_F32);
        break;
    case TAMIS_DTYPE_BF16:
        FUSED(TAMIS_DTYPE_BF16);
        break;
    case TAMIS_DTYPE_F16:
        FUSED(TAMIS_DTYPE_F16);
        break;
    case TAMIS_DTYPE_F8_E4M3:
        FUSED(TAMIS_DTYPE_F8_E4M3);
        break;
    case TAMIS_DTYPE_I8:
        FUSED(TAMIS_DTYPE_I8);
        break;
    default:
        FUSED(TAMIS_DTYPE_F4_E2M1);
    }
#undef FUSED
}

/* Whether every scale of the rows takes the factor of FP8's decoding (block_factor). */
static bool scales_fold(const tamis_matrix *w, int64_t row_begin, int64_t row_end)
{
    __m256 factor;
    if (!w->scale || w->dtype != TAMIS_DTYPE_F8_E4M3)
        return true;
    for (int64_t r = row_begin; r < row_end; r = (r / w->block_rows + 1) * w->block_rows)
        for (int64_t c = 0; c < w->cols; c += w->block_cols)
            if (!block_factor(&factor, w->dtype, w, r, c))
                return false;
    return true;
}

/* ---------------------------------------------------------------- expanded tile, more tokens */

/*
 * y[t] += sum over r of w[r] x[t][r] for the first n (<= 16) columns of a tile of weights. Lanes
 * from n on meet whatever scratch holds there; they are never stored.
 */
static TAMIS_ALWAYS_INLINE void product_tile(int n_tokens, float *y, int64_t y_stride,
                                             const float *x, int64_t x_stride, const float *w,
                                             int64_t n_rows, int64_t n)
{
    v16 acc[6];
    for (int t = 0; t < n_tokens; t++)
        acc[t] =
            n == TAMIS_LANES ? v16_load(y + t * y_stride) : v16_load_first(y + t * y_stride, n);
    for (int64_t r = 0; r < n_rows; r++) {
        const v16 value = v16_in_registers(v16_load(w + r * TILE));
        for (int t = 0; t < n_tokens; t++) {
            const __m256 in = in_register(_mm256_set1_ps(x[t * x_stride + r]));
            acc[t] = v16_fma(value, (v16){in, in}, acc[t]);
        }
    }
    for (int t = 0; t < n_tokens; t++)
        if (n == TAMIS_LANES)
            v16_store(y + t * y_stride, acc[t]);
        else
            v16_store_first(y + t * y_stride, n, acc[t]);
}

/* product_tile over all n_cols <= TILE columns and all tokens. */
static void product_block(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                          int64_t n_tokens, const float *w, int64_t n_rows, int64_t n_cols)
{
#define PRODUCT(tokens)                                                                            \
    product_tile(tokens, y + t * y_stride + c, y_stride, x + t * x_stride, x_stride, w + c,        \
                 n_rows, n)
    for (int64_t t = 0; t < n_tokens; t += 6)
        for (int64_t c = 0; c < n_cols; c += TAMIS_LANES) {
            const int64_t n = n_cols - c < TAMIS_LANES ? n_cols - c : TAMIS_LANES;
            switch (n_tokens - t) {
            case 1:
                PRODUCT(1);
                break;
            case 2:
                PRODUCT(2);
                break;
            case 3:
                PRODUCT(3);
                break;
            case 4:
                PRODUCT(4);
                break;
            case 5:
                PRODUCT(5);
                break;
            default:
                PRODUCT(6);
            }
        }
#undef PRODUCT
}

/* All rows over the columns from col_begin on. */
static void expanded_columns(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                             int64_t n_tokens, const tamis_matrix *w, int64_t row_begin,
                             int64_t row_end, int64_t col_begin, float *scratch)
{
    for (int64_t c = col_begin; c < w->cols; c += TILE) {
        const int64_t n_cols = w->cols - c < TILE ? w->cols - c : TILE;
        for (int64_t row = row_begin; row < row_end; row += TILE) {
            const int64_t n_rows = row_end - row < TILE ? row_end - row : TILE;
            for (int64_t r = 0; r < n_rows; r++)
                tamis_expand_span_avx2(scratch + r * TILE, w, row + r, c, c + n_cols);
            product_block(y + c, y_stride, x + (row - row_begin), x_stride, n_tokens, scratch,
                          n_rows, n_cols);
        }
    }
}

TAMIS_KERNEL_linear_t(tamis_linear_t_avx2)
{
    int64_t fused = 0;
    for (int64_t t = 0; t < n_tokens; t++)
        memset(y + t * y_stride, 0, (size_t)w->cols * sizeof *y);
    if (n_tokens <= FUSED_TOKENS && weights_can_fuse(w) && scales_fold(w, row_begin, row_end)) {
        fused = w->cols / TAMIS_LANES * TAMIS_LANES;
        fused_columns(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, fused);
    }
    expanded_columns(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, fused, scratch);
}
#endif
