/*
 * Linear layers of few tokens, AVX2: such a call is bound by the stream of weights, which are read,
 * decoded in registers and multiplied at once, some rows side by side.
 *
 * FP8: the magnitude bits of an E4M3 code are those of an f32 2^120 times smaller, subnormals
 * included, so one shift and one mask decode it; the 2^120 goes into the scale. Where the scale is
 * a power of two even that product is saved: (w * s) * x and w * (s * x) are the same number as
 * long as neither s * x nor w * s is rounded, so the inputs of a block are scaled once for all its
 * rows (fold_inputs checks the first, E4M3's few bits give the second).
 *
 * The order of additions of one output is that of every path: 16 lanes over ascending columns.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/table_x86.h"

/* Scales below keep scale * 2^120 finite. */
#define E4M3_SCALE_LIMIT 0x1p+7f
#define E4M3_FACTOR      0x1p+120f
/* Fewer rows under one scale do not pay for scaled inputs. */
#define FOLD_ROWS 8

/* One call, or the rows of it that share scaled inputs. */
typedef struct few_pass {
    float *y;
    int64_t y_stride, n_tokens;
    const float *x; /* as the tile multiplies it: as given, or scaled */
    int64_t x_stride;
    const float *rest_x; /* as given: for the columns after the last whole 16 */
    int64_t rest_stride;
    const tamis_matrix *w;
    int64_t row_begin, row_end;
    float *scratch;
} few_pass;

/* ---------------------------------------------------------------- decoding */

/* 8 codes times 2^-120; NaN codes become numbers and are the caller's business. */
static TAMIS_ALWAYS_INLINE __m256 e4m3_small_8(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_slli_epi32(wide, 20), _mm256_set1_epi32((int)0x87f00000)));
}

/* The largest magnitude bits so far, doubled: 0xfe once a code was NaN. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_largest(__m256i largest, __m256i codes)
{
    return _mm256_max_epu8(largest, _mm256_add_epi8(codes, codes));
}
static TAMIS_ALWAYS_INLINE __m256i e4m3_largest_16(__m256i largest, const uint8_t *p)
{
    return e4m3_largest(largest, _mm256_broadcastsi128_si256(load_8_words(p)));
}
static TAMIS_ALWAYS_INLINE __m256i e4m3_largest_64(__m256i largest, const uint8_t *p)
{
    const __m256i *codes = (const __m256i *)(const void *)p;
    largest = e4m3_largest(largest, _mm256_loadu_si256(codes));
    return e4m3_largest(largest, _mm256_loadu_si256(codes + 1));
}

static inline bool e4m3_has_nan(__m256i largest)
{
    const __m256i nan = _mm256_cmpeq_epi8(largest, _mm256_set1_epi8((char)0xfe));
    return _mm256_movemask_epi8(nan) != 0;
}

/*
 * What multiplies row `row` from column c to the end of its scale block; E2M1: its table. false:
 * the scale leaves no room for 2^120.
 */
static TAMIS_ALWAYS_INLINE bool factor_of(__m256 *factor, tamis_dtype dtype, const tamis_matrix *w,
                                          int64_t row, int64_t c)
{
    float scale = 1.0f;
    if (w->scale)
        scale = tamis_scale_decode(w, tamis_scale_row(w, row), c / w->block_cols);
    if (dtype == TAMIS_DTYPE_F4_E2M1)
        *factor = e2m1_table(scale);
    else
        *factor = _mm256_set1_ps(dtype == TAMIS_DTYPE_F8_E4M3 ? scale * E4M3_FACTOR : scale);
    return dtype != TAMIS_DTYPE_F8_E4M3 || fabsf(scale) < E4M3_SCALE_LIMIT;
}

static TAMIS_ALWAYS_INLINE v16 weights_16(tamis_dtype dtype, bool folded, const uint8_t *row,
                                          int64_t c, __m256 factor)
{
    v16 value;
    if (dtype == TAMIS_DTYPE_F4_E2M1)
        return e2m1_widen(row + c / 2, factor);
    if (dtype == TAMIS_DTYPE_F8_E4M3)
        value = (v16){e4m3_small_8(row + c), e4m3_small_8(row + c + 8)};
    else
        value = decode_16(dtype, row, c);
    if (dtype == TAMIS_DTYPE_F8_E4M3 && !folded) {
        /* Some processors multiply subnormals slowly but not in a multiply-add; -0 adds nothing. */
        const __m256 nothing = _mm256_set1_ps(-0.0f);
        return v16_fma(value, (v16){factor, factor}, (v16){nothing, nothing});
    }
    return takes_factor(dtype) && !folded ? v16_scale(value, factor) : value;
}

/* ---------------------------------------------------------------- tile */

/* The rows of a tile and what has been summed. */
typedef struct few_tile {
    const uint8_t *row[4];
    v16 acc[4][FUSED_TOKENS];
    __m256 factor[4];
    __m256i largest; /* e4m3_largest */
} few_tile;

/* 16 columns. */
static TAMIS_ALWAYS_INLINE void step_16(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                        int n_tokens, const float *x, int64_t x_stride, int64_t c)
{
    v16 in[FUSED_TOKENS];
    for (int t = 0; t < n_tokens; t++)
        in[t] = v16_load(x + t * x_stride + c);
    if (n_tokens < 3) /* with 3 tokens the accumulators leave no room */
        for (int t = 0; t < n_tokens; t++)
            in[t] = v16_in_registers(in[t]);
    for (int r = 0; r < n_rows; r++) {
        const v16 value = weights_16(dtype, folded, tile->row[r], c, tile->factor[r]);
        for (int t = 0; t < n_tokens; t++)
            tile->acc[r][t] = v16_fma(value, in[t], tile->acc[r][t]);
    }
}

/* Bits of a stored weight. */
static TAMIS_ALWAYS_INLINE int weight_bits(tamis_dtype dtype)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return 32;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
        return 16;
    case TAMIS_DTYPE_F4_E2M1:
        return 4;
    default:
        return 8;
    }
}

/* Hides a bound from the compiler, which would unroll more than the registers can hold. */
static TAMIS_ALWAYS_INLINE int64_t opaque(int64_t n)
{
#if defined(__GNUC__)
    __asm__("" : "+r"(n));
#endif
    return n;
}

/* Columns [begin, end), multiples of 16, under one scale: 64 bytes of every row at a time. */
static TAMIS_ALWAYS_INLINE void span(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                     int n_tokens, const float *x, int64_t x_stride, int64_t begin,
                                     int64_t end, const group_ahead *ahead)
{
    const int step = 512 / weight_bits(dtype);
    int64_t c = begin;
    for (; c + step <= end; c += step) {
        group_ahead_fetch(ahead, n_rows, c * weight_bits(dtype) / 8);
        if (dtype == TAMIS_DTYPE_F8_E4M3)
            for (int r = 0; r < n_rows; r++)
                tile->largest = e4m3_largest_64(tile->largest, tile->row[r] + c);
        for (int64_t k = c, stop = opaque(c + step); k < stop; k += TAMIS_LANES)
            step_16(tile, dtype, folded, n_rows, n_tokens, x, x_stride, k);
    }
    for (; c < end; c += TAMIS_LANES) {
        if (dtype == TAMIS_DTYPE_F8_E4M3)
            for (int r = 0; r < n_rows; r++)
                tile->largest = e4m3_largest_16(tile->largest, tile->row[r] + c);
        step_16(tile, dtype, folded, n_rows, n_tokens, x, x_stride, c);
    }
}

/*
 * y for n_rows x n_tokens outputs, everything known at compile time but the number of columns.
 * false: an FP8 NaN or a scale too large was met and nothing was written.
 */
static TAMIS_ALWAYS_INLINE bool few_rows(tamis_dtype dtype, bool folded, int n_rows, int n_tokens,
                                         const few_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const float *x = pass->x;
    const int64_t x_stride = pass->x_stride, whole = w->cols / TAMIS_LANES * TAMIS_LANES;
    const bool has_factor = takes_factor(dtype) && !folded;
    const group_ahead ahead = group_ahead_of(w, row, n_rows, row + 2 * n_rows > pass->row_end);
    few_tile tile = {.largest = _mm256_setzero_si256()};
    for (int r = 0; r < n_rows; r++) {
        tile.row[r] = tamis_weight_row(w, row + r);
        for (int t = 0; t < n_tokens; t++)
            tile.acc[r][t] = v16_zero();
    }
    for (int64_t c = 0, stop; c < whole; c = stop) {
        stop = whole;
        if (has_factor) {
            for (int r = 0; r < n_rows; r++)
                if (!factor_of(&tile.factor[r], dtype, w, row + r, c))
                    return false;
            if (w->scale && (c / w->block_cols + 1) * w->block_cols < whole)
                stop = (c / w->block_cols + 1) * w->block_cols;
        }
        span(&tile, dtype, folded, n_rows, n_tokens, x, x_stride, c, stop, &ahead);
    }
    if (dtype == TAMIS_DTYPE_F8_E4M3 && e4m3_has_nan(tile.largest))
        return false;
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++) {
            v16 acc = tile.acc[r][t];
            if (whole < w->cols)
                acc = row_rest(acc, w, row + r, whole, pass->rest_x + t * pass->rest_stride);
            pass->y[t * pass->y_stride + (row - pass->row_begin) + r] = v16_sum(acc);
        }
    return true;
}

/* The number of rows, 1 to 4, done at `row`, or 0: they need the other path. */
static TAMIS_ALWAYS_INLINE int few_group(tamis_dtype dtype, bool folded, int64_t n_tokens,
                                         const few_pass *pass, int64_t row, int64_t end)
{
#define ROWS(rows, tokens) (few_rows(dtype, folded, rows, tokens, pass, row) ? rows : 0)
    const int64_t left = end - row;
    if (n_tokens == 1)
        return left >= 4 ? ROWS(4, 1) : left >= 2 ? ROWS(2, 1) : ROWS(1, 1);
    if (n_tokens == 2)
        return left >= 2 ? ROWS(2, 2) : ROWS(1, 2);
    return left >= 2 ? ROWS(2, 3) : ROWS(1, 3);
#undef ROWS
}

/* Rows [row, end); returns the first that is not done because of a NaN or too large a scale. */
static TAMIS_ALWAYS_INLINE int64_t few_typed(tamis_dtype dtype, bool folded, const few_pass *pass,
                                             int64_t row, int64_t end)
{
    int done = 1;
    for (; row < end && done > 0; row += done)
        done = few_group(dtype, folded, pass->n_tokens, pass, row, end);
    return row;
}

/* ---------------------------------------------------------------- scaled inputs */

/*
 * dst = x * factor over n values. false: a product was rounded, overflowed, or x has a NaN. factor
 * is a power of two, so dividing again shows it.
 */
static bool scale_exactly(float *dst, const float *x, int64_t n, float factor)
{
    const float back = 1.0f / factor;
    int64_t i = 0;
    int all = 0xff;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256 scaled = _mm256_mul_ps(v, _mm256_set1_ps(factor));
        const __m256 again = _mm256_mul_ps(scaled, _mm256_set1_ps(back));
        _mm256_storeu_ps(dst + i, scaled);
        all &= _mm256_movemask_ps(_mm256_cmp_ps(again, v, _CMP_EQ_OQ));
    }
    for (; i < n; i++) {
        dst[i] = x[i] * factor;
        all = dst[i] * back == x[i] ? all : 0;
    }
    return all == 0xff;
}

/* Whether scale * 2^120 is a power of two that factor and its inverse can be. */
static bool scale_folds(float scale)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return scale > 0x1p-126f && scale < E4M3_SCALE_LIMIT && (bits & 0x7fffff) == 0;
}

/* All inputs times the scales of the block row that `row` lies in. */
static bool fold_inputs(float *dst, int64_t dst_stride, const few_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const int64_t block_cols = w->scale ? w->block_cols : w->cols;
    for (int64_t c = 0; c < w->cols; c += block_cols) {
        const int64_t n = w->cols - c < block_cols ? w->cols - c : block_cols;
        const float scale =
            w->scale ? tamis_scale_decode(w, tamis_scale_row(w, row), c / block_cols) : 1.0f;
        if (!scale_folds(scale))
            return false;
        for (int64_t t = 0; t < pass->n_tokens; t++)
            if (!scale_exactly(dst + t * dst_stride + c, pass->rest_x + t * pass->rest_stride + c,
                               n, scale * E4M3_FACTOR))
                return false;
    }
    return true;
}

/* Rows [row, end), of one block row if those are tall, with scaled inputs where they can be;
 * returns as few_typed. */
static int64_t few_e4m3_block(few_pass *pass, int64_t row, int64_t end)
{
    const int64_t stride = (pass->w->cols + TAMIS_LANES - 1) / TAMIS_LANES * TAMIS_LANES;
    pass->x = pass->rest_x;
    pass->x_stride = pass->rest_stride;
    const bool same_scales = !pass->w->scale || pass->w->block_rows >= FOLD_ROWS;
    if (!same_scales || end - row < FOLD_ROWS || !fold_inputs(pass->scratch, stride, pass, row))
        return few_typed(TAMIS_DTYPE_F8_E4M3, false, pass, row, end);
    pass->x = pass->scratch;
    pass->x_stride = stride;
    return few_typed(TAMIS_DTYPE_F8_E4M3, true, pass, row, end);
}

/* E4M3, one block row after the other; rows with NaN or large scales take the other path. */
static void few_e4m3(few_pass *pass)
{
    const tamis_matrix *w = pass->w;
    for (int64_t row = pass->row_begin; row < pass->row_end;) {
        int64_t end = pass->row_end;
        if (w->scale && w->block_rows >= FOLD_ROWS &&
            (row / w->block_rows + 1) * w->block_rows < end)
            end = (row / w->block_rows + 1) * w->block_rows;
        row = few_e4m3_block(pass, row, end);
        if (row < end) {
            const int64_t next = end - row < 4 ? end : row + 4;
            tamis_linear_many_avx2(pass->y + (row - pass->row_begin), pass->y_stride, pass->rest_x,
                                   pass->rest_stride, pass->n_tokens, w, row, next, pass->scratch);
            row = next;
        }
    }
}

TAMIS_KERNEL_linear(tamis_linear_few_avx2)
{
    few_pass pass = {.y = y,
                     .y_stride = y_stride,
                     .n_tokens = n_tokens,
                     .x = x,
                     .x_stride = x_stride,
                     .rest_x = x,
                     .rest_stride = x_stride,
                     .w = w,
                     .row_begin = row_begin,
                     .row_end = row_end,
                     .scratch = scratch};
#define FEW(dtype) few_typed(dtype, false, &pass, row_begin, row_end)
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
        FEW(TAMIS_DTYPE_F32);
        break;
    case TAMIS_DTYPE_BF16:
        FEW(TAMIS_DTYPE_BF16);
        break;
    case TAMIS_DTYPE_F16:
        FEW(TAMIS_DTYPE_F16);
        break;
    case TAMIS_DTYPE_F8_E4M3:
        few_e4m3(&pass);
        break;
    case TAMIS_DTYPE_I8:
        FEW(TAMIS_DTYPE_I8);
        break;
    default:
        FEW(TAMIS_DTYPE_F4_E2M1);
    }
#undef FEW
}
#endif
