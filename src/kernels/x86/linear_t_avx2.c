/*
 * The transposed product of some rows of a matrix, AVX2.
 *
 * The sum of an output runs over rows, so the outputs are what lies side by side in registers and
 * the weights pass through as they are stored. Up to 3 tokens: FUSED_ROWS rows at a time are read,
 * decoded in registers and multiplied at once, over all columns; the stream of weights bounds it.
 * Meanwhile y is in plane order (planes_avx2.h), in which codes decode without a shuffle; it is put
 * in its own at the end.
 * More tokens: tiles of TILE x TILE weights are expanded to f32 and multiplied in tiles of 6 tokens
 * x 16 columns - 12 accumulators, which leaves room for the operands.
 *
 * Between two tiles of rows the accumulators wait in y. Rows ascend, so the chain is unbroken.
 */
#ifdef TAMIS_HAVE_AVX2
#include "core/size.h"
#include "kernels/x86/linear_fused_avx2.h"
#include "kernels/x86/table_x86.h"

#define FUSED_ROWS 4
#define TILE       64
_Static_assert((size_t)TILE *TILE <= TAMIS_LINEAR_T_SCRATCH, "scratch of linear_t");

/* ---------------------------------------------------------------- fused tile, few tokens */

/* Some rows over the columns before `end`, a multiple of 32. */
typedef struct fused_pass {
    float *y;
    int64_t y_stride;
    const float *x; /* of the first row */
    int64_t x_stride;
    const tamis_matrix *w;
    int64_t row, end;
    const uint8_t *ahead; /* where the rows after these lie, NULL: nowhere */
    __m256i largest;      /* e4m3_largest of FP8's codes so far */
} fused_pass;

/* Stored types whose numbers take a factor: the scale, of FP8 with the 2^120 of its decoding. */
static TAMIS_ALWAYS_INLINE float row_factor(tamis_dtype dtype, const tamis_matrix *w, int64_t row,
                                            int64_t c)
{
    float scale = 1.0f;
    if (w->scale)
        scale = tamis_scale_decode(w, tamis_scale_row(w, row), c / w->block_cols);
    return dtype == TAMIS_DTYPE_F8_E4M3 ? scale * E4M3_FACTOR : scale;
}

/* E2M1: a word holds the four neighbours of a lane. */
static TAMIS_ALWAYS_INLINE planes e2m1_planes(const uint8_t *p, __m256 table)
{
    const __m256i words = _mm256_cvtepu16_epi32(load_8_words(p));
    planes v;
    for (int b = 0; b < 4; b++) {
        const __m256i nibble = _mm256_srli_epi32(words, 4 * b);
        const __m256 top = _mm256_castsi256_ps(_mm256_slli_epi32(nibble, 28));
        v.p[b] = _mm256_xor_ps(_mm256_permutevar8x32_ps(table, nibble), top);
    }
    return v;
}

/* 32 weights of a row from column c on; E2M1: factor is its table. */
static TAMIS_ALWAYS_INLINE planes row_planes(__m256i *largest, tamis_dtype dtype,
                                             const uint8_t *row, int64_t c, __m256 factor)
{
    if (dtype == TAMIS_DTYPE_F4_E2M1)
        return e2m1_planes(row + c / 2, factor);
    const uint8_t *at = row + c * weight_bits(dtype) / 8;
    if (dtype == TAMIS_DTYPE_F8_E4M3)
        *largest = e4m3_largest(*largest, load_codes(at));
    return weights_32(dtype, false, at, factor);
}

/*
 * Rows are too short for the hardware to see a stream before they end, so with every 32 columns of
 * n_rows rows as many bytes of the rows behind them are asked for, in the order of memory.
 */
static TAMIS_ALWAYS_INLINE void fetch_ahead(const uint8_t *ahead, int n_rows, int row_bytes)
{
    for (int i = 0; i < n_rows * row_bytes; i += 64)
        _mm_prefetch(ahead + i, _MM_HINT_T0);
}

/* y += n_rows rows; sizes known when compiled. */
static TAMIS_ALWAYS_INLINE void fused_tile(fused_pass *pass, tamis_dtype dtype, int n_rows,
                                           int n_tokens)
{
    const tamis_matrix *w = pass->w;
    const bool has_factor = takes_factor(dtype);
    const int step_bytes = PLANE_COLS * weight_bits(dtype) / 8;
    const uint8_t *row[FUSED_ROWS], *ahead = pass->ahead;
    __m256 factor[FUSED_ROWS], in[FUSED_ROWS][FUSED_TOKENS];
    __m256i largest = pass->largest; /* y could be the one in memory */
    for (int r = 0; r < n_rows; r++) {
        row[r] = tamis_weight_row(w, pass->row + r);
        factor[r] = _mm256_setzero_ps();
        for (int t = 0; t < n_tokens; t++)
            in[r][t] = _mm256_set1_ps(pass->x[t * pass->x_stride + r]);
    }
    for (int64_t c = 0; c < pass->end;) {
        int64_t stop = pass->end;
        for (int r = 0; has_factor && r < n_rows; r++) {
            const float f = row_factor(dtype, w, pass->row + r, c);
            factor[r] = dtype == TAMIS_DTYPE_F4_E2M1 ? e2m1_table(f) : _mm256_set1_ps(f);
        }
        if (has_factor && w->scale)
            stop = tamis_min_i64((c / w->block_cols + 1) * w->block_cols, stop);
        for (; c < stop; c += PLANE_COLS) {
            planes acc[FUSED_TOKENS];
            for (int t = 0; t < n_tokens; t++)
                acc[t] = planes_load(pass->y + t * pass->y_stride + c);
            if (ahead != NULL) {
                fetch_ahead(ahead, n_rows, step_bytes);
                ahead += n_rows * step_bytes;
            }
            for (int r = 0; r < n_rows; r++) {
                const planes weight = row_planes(&largest, dtype, row[r], c, factor[r]);
                for (int t = 0; t < n_tokens; t++)
                    for (int b = 0; b < 4; b++)
                        acc[t].p[b] = _mm256_fmadd_ps(weight.p[b], in[r][t], acc[t].p[b]);
            }
            for (int t = 0; t < n_tokens; t++)
                planes_store(pass->y + t * pass->y_stride + c, acc[t]);
        }
    }
    pass->largest = largest;
}

static TAMIS_ALWAYS_INLINE void fused_rows(fused_pass *pass, tamis_dtype dtype, int n_tokens,
                                           int64_t row_end)
{
    for (int64_t n; pass->row < row_end; pass->row += n, pass->x += n) {
        const int64_t left = row_end - pass->row;
        n = left >= FUSED_ROWS ? FUSED_ROWS : 1;
        pass->ahead =
            left >= 2 * FUSED_ROWS ? tamis_weight_row(pass->w, pass->row + FUSED_ROWS) : NULL;
        if (n == FUSED_ROWS)
            fused_tile(pass, dtype, FUSED_ROWS, n_tokens);
        else
            fused_tile(pass, dtype, 1, n_tokens);
    }
}

static TAMIS_ALWAYS_INLINE void fused_tokens(fused_pass *pass, tamis_dtype dtype, int64_t n_tokens,
                                             int64_t row_end)
{
    if (n_tokens == 1)
        fused_rows(pass, dtype, 1, row_end);
    else if (n_tokens == 2)
        fused_rows(pass, dtype, 2, row_end);
    else
        fused_rows(pass, dtype, 3, row_end);
}

static void fused_columns(fused_pass *pass, int64_t n_tokens, int64_t row_end)
{
    switch (pass->w->dtype) {
    case TAMIS_DTYPE_F32:
        fused_tokens(pass, TAMIS_DTYPE_F32, n_tokens, row_end);
        break;
    case TAMIS_DTYPE_BF16:
        fused_tokens(pass, TAMIS_DTYPE_BF16, n_tokens, row_end);
        break;
    case TAMIS_DTYPE_F16:
        fused_tokens(pass, TAMIS_DTYPE_F16, n_tokens, row_end);
        break;
    case TAMIS_DTYPE_F8_E4M3:
        fused_tokens(pass, TAMIS_DTYPE_F8_E4M3, n_tokens, row_end);
        break;
    case TAMIS_DTYPE_I8:
        fused_tokens(pass, TAMIS_DTYPE_I8, n_tokens, row_end);
        break;
    default:
        fused_tokens(pass, TAMIS_DTYPE_F4_E2M1, n_tokens, row_end);
    }
}

/* The columns before `end` from plane order to their own. */
static void columns_order(float *y, int64_t end)
{
    for (int64_t c = 0; c < end; c += PLANE_COLS) {
        const planes v = planes_load(y + c), to = planes_transpose(v.p);
        for (int i = 0; i < 4; i++) {
            _mm_storeu_ps(y + c + 4 * i, _mm256_castps256_ps128(to.p[i]));
            _mm_storeu_ps(y + c + 16 + 4 * i, _mm256_extractf128_ps(to.p[i], 1));
        }
    }
}

/* Whether groups of 32 columns lie under one scale each, and FP8's factors are finite. */
static bool can_fuse(const tamis_matrix *w, int64_t row_begin, int64_t row_end)
{
    if (w->dtype == TAMIS_DTYPE_I4 || !scales_fit_planes(w))
        return false;
    if (!w->scale)
        return true;
    for (int64_t r = row_begin; w->dtype == TAMIS_DTYPE_F8_E4M3 && r < row_end;
         r = (r / w->block_rows + 1) * w->block_rows)
        for (int64_t c = 0; c < w->cols; c += w->block_cols)
            if (!(fabsf(row_factor(w->dtype, w, r, c)) < INFINITY))
                return false;
    return true;
}

/* The first columns by fused tiles; returns how many. A NaN among FP8's codes leaves all to do. */
static int64_t fused_part(float *y, int64_t y_stride, const float *x, int64_t x_stride,
                          int64_t n_tokens, const tamis_matrix *w, int64_t row_begin,
                          int64_t row_end)
{
    fused_pass pass = {.y = y,
                       .y_stride = y_stride,
                       .x = x,
                       .x_stride = x_stride,
                       .w = w,
                       .row = row_begin,
                       .end = w->cols / PLANE_COLS * PLANE_COLS,
                       .largest = _mm256_setzero_si256()};
    fused_columns(&pass, n_tokens, row_end);
    const bool has_nan = e4m3_has_nan(pass.largest);
    for (int64_t t = 0; t < n_tokens; t++)
        if (has_nan)
            memset(y + t * y_stride, 0, (size_t)pass.end * sizeof *y);
        else
            columns_order(y + t * y_stride, pass.end);
    return has_nan ? 0 : pass.end;
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
    if (n_tokens <= FUSED_TOKENS && can_fuse(w, row_begin, row_end))
        fused = fused_part(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end);
    expanded_columns(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, fused, scratch);
}
#endif
