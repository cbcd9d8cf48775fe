/*
 * Linear layers of few tokens, AVX2: such a call is bound by the stream of weights, which are read,
 * decoded in registers and multiplied at once, some rows side by side. Inputs are put in plane
 * order first (planes_avx2.h), in which they meet the weights as those decode.
 *
 * FP8 decodes to numbers 2^120 too small; the 2^120 goes into the scale. Where the scale is a power
 * of two even that product is saved: (w * s) * x and w * (s * x) are the same number as long as
 * neither s * x nor w * s is rounded, so the inputs of a block are scaled once for all its rows
 * (fold_inputs checks the first, E4M3's few bits give the second).
 *
 * The order of additions of one output is that of every path, quads16.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/table_x86.h"

/* Scales below keep scale * 2^120 finite. */
#define E4M3_SCALE_LIMIT 0x1p+7f
#define E4M3_FACTOR      0x1p+120f
/* Fewer rows under one scale do not pay for scaled inputs. */
#define FOLD_ROWS 8

/* One call, or the rows of it that share scaled inputs. Inputs are in plane order. */
typedef struct few_pass {
    float *y;
    int64_t y_stride, n_tokens;
    const float *x;     /* as the tile multiplies it: as given, or scaled */
    const float *given; /* for the columns after the last whole 64 */
    int64_t x_stride;   /* of both */
    const tamis_matrix *w;
    int64_t row_begin, row_end;
} few_pass;

/* ---------------------------------------------------------------- decoding */

/* The largest magnitude bits so far, doubled: 0xfe once a code was NaN. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_largest(__m256i largest, __m256i codes)
{
    return _mm256_max_epu8(largest, _mm256_add_epi8(codes, codes));
}

static inline bool e4m3_has_nan(__m256i largest)
{
    const __m256i nan = _mm256_cmpeq_epi8(largest, _mm256_set1_epi8((char)0xfe));
    return _mm256_movemask_epi8(nan) != 0;
}

/*
 * What multiplies row `row` from column c to the end of its scale block. false: the scale leaves no
 * room for 2^120.
 */
static TAMIS_ALWAYS_INLINE bool factor_of(__m256 *factor, tamis_dtype dtype, const tamis_matrix *w,
                                          int64_t row, int64_t c)
{
    float scale = 1.0f;
    if (w->scale)
        scale = tamis_scale_decode(w, tamis_scale_row(w, row), c / w->block_cols);
    *factor = _mm256_set1_ps(dtype == TAMIS_DTYPE_F8_E4M3 ? scale * E4M3_FACTOR : scale);
    return dtype != TAMIS_DTYPE_F8_E4M3 || fabsf(scale) < E4M3_SCALE_LIMIT;
}

/* ---------------------------------------------------------------- tile */

/* The rows of a tile and what has been summed. */
typedef struct few_tile {
    const uint8_t *row[4];
    __m256 acc[4][FUSED_TOKENS][2]; /* lanes 0-7, 8-15 */
    __m256 factor[4];
    __m256i largest; /* e4m3_largest */
} few_tile;

/* 32 columns of row r, in the tile's form: without a factor that the inputs have. */
static TAMIS_ALWAYS_INLINE planes weights_32(few_tile *tile, tamis_dtype dtype, bool folded, int r,
                                             int64_t c)
{
    const uint8_t *row = tile->row[r];
    const __m256 factor = tile->factor[r], nothing = _mm256_set1_ps(-0.0f);
    planes v;
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return f32_planes((const float *)(const void *)(row + 4 * c));
    case TAMIS_DTYPE_BF16:
        return bf16_planes(row + 2 * c);
    case TAMIS_DTYPE_F16:
        return f16_planes(row + 2 * c);
    case TAMIS_DTYPE_I8:
        v = i8_planes(row + c);
        for (int b = 0; b < 4; b++)
            v.p[b] = _mm256_mul_ps(v.p[b], factor);
        return v;
    default: {
        const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(row + c));
        tile->largest = e4m3_largest(tile->largest, codes);
        v = e4m3_small_planes(codes);
        /* Some processors multiply subnormals slowly but not in a multiply-add; -0 adds nothing. */
        for (int b = 0; b < 4 && !folded; b++)
            v.p[b] = _mm256_fmadd_ps(v.p[b], factor, nothing);
        return v;
    }
    }
}

/* 32 columns, the first or the second of 64. */
static TAMIS_ALWAYS_INLINE void step_32(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                        int n_tokens, const few_pass *pass, int64_t c, int half)
{
    for (int r = 0; r < n_rows; r++) {
        const planes value = weights_32(tile, dtype, folded, r, c);
        for (int b = 0; b < 4; b++)
            for (int t = 0; t < n_tokens; t++)
                tile->acc[r][t][half] = _mm256_fmadd_ps(
                    value.p[b], _mm256_loadu_ps(pass->x + t * pass->x_stride + c + 8 * b),
                    tile->acc[r][t][half]);
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
    default:
        return 8;
    }
}

/* Columns [begin, end), multiples of 32, under one scale. */
static TAMIS_ALWAYS_INLINE void span(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                     int n_tokens, const few_pass *pass, int64_t begin, int64_t end,
                                     const group_ahead *ahead)
{
    const int bits = weight_bits(dtype);
    int64_t c = begin;
    if (c % QUADS_COLS != 0) {
        step_32(tile, dtype, folded, n_rows, n_tokens, pass, c, 1);
        c += PLANE_COLS;
    }
    for (; c + QUADS_COLS <= end; c += QUADS_COLS) {
        for (int line = 0; line < bits / 8; line++)
            group_ahead_fetch(ahead, n_rows, c * bits / 8 + 64 * line);
        step_32(tile, dtype, folded, n_rows, n_tokens, pass, c, 0);
        step_32(tile, dtype, folded, n_rows, n_tokens, pass, c + PLANE_COLS, 1);
    }
    if (c < end)
        step_32(tile, dtype, folded, n_rows, n_tokens, pass, c, 0);
}

/*
 * y for n_rows x n_tokens outputs, everything known at compile time but the number of columns.
 * false: an FP8 NaN or a scale too large was met and nothing was written.
 */
static TAMIS_ALWAYS_INLINE bool few_rows(tamis_dtype dtype, bool folded, int n_rows, int n_tokens,
                                         const few_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const int64_t whole = w->cols / QUADS_COLS * QUADS_COLS;
    const bool has_factor = takes_factor(dtype) && !folded;
    const group_ahead ahead = group_ahead_of(w, row, n_rows, row + 2 * n_rows > pass->row_end);
    few_tile tile = {.largest = _mm256_setzero_si256()};
    for (int r = 0; r < n_rows; r++) {
        tile.row[r] = tamis_weight_row(w, row + r);
        for (int t = 0; t < n_tokens; t++)
            tile.acc[r][t][0] = tile.acc[r][t][1] = _mm256_setzero_ps();
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
        span(&tile, dtype, folded, n_rows, n_tokens, pass, c, stop, &ahead);
    }
    if (dtype == TAMIS_DTYPE_F8_E4M3 && e4m3_has_nan(tile.largest))
        return false;
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++) {
            v16 acc = {tile.acc[r][t][0], tile.acc[r][t][1]};
            if (whole < w->cols)
                acc = row_rest(acc, w, row + r, whole, pass->given + t * pass->x_stride);
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

/* All inputs times the scales of the block row that `row` lies in. Blocks are of whole planes. */
static bool fold_inputs(float *dst, const few_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const int64_t block_cols = w->scale ? w->block_cols : w->cols;
    for (int64_t c = 0; c < w->cols; c += block_cols) {
        const int64_t left = pass->x_stride - c, n = left < block_cols ? left : block_cols;
        const float scale =
            w->scale ? tamis_scale_decode(w, tamis_scale_row(w, row), c / block_cols) : 1.0f;
        if (!scale_folds(scale))
            return false;
        for (int64_t t = 0; t < pass->n_tokens; t++)
            if (!scale_exactly(dst + t * pass->x_stride + c, pass->given + t * pass->x_stride + c,
                               n, scale * E4M3_FACTOR))
                return false;
    }
    return true;
}

/* Rows [row, end), of one block row if those are tall, with scaled inputs, in `scaled`, where they
 * can be; returns as few_typed. */
static int64_t few_e4m3_block(few_pass *pass, float *scaled, int64_t row, int64_t end)
{
    const bool same_scales = !pass->w->scale || pass->w->block_rows >= FOLD_ROWS;
    pass->x = pass->given;
    if (!same_scales || end - row < FOLD_ROWS || !fold_inputs(scaled, pass, row))
        return few_typed(TAMIS_DTYPE_F8_E4M3, false, pass, row, end);
    pass->x = scaled;
    return few_typed(TAMIS_DTYPE_F8_E4M3, true, pass, row, end);
}

/* E4M3, one block row after the other; rows with NaN or large scales take the other path, which
 * needs the inputs as they came. */
static void few_e4m3(few_pass *pass, const float *x, int64_t x_stride, float *scratch)
{
    const tamis_matrix *w = pass->w;
    float *other_scratch = scratch + FUSED_TOKENS * pass->x_stride;
    for (int64_t row = pass->row_begin; row < pass->row_end;) {
        int64_t end = pass->row_end;
        if (w->scale && w->block_rows >= FOLD_ROWS &&
            (row / w->block_rows + 1) * w->block_rows < end)
            end = (row / w->block_rows + 1) * w->block_rows;
        row = few_e4m3_block(pass, scratch, row, end);
        if (row < end) {
            const int64_t next = end - row < 4 ? end : row + 4;
            tamis_linear_many_avx2(pass->y + (row - pass->row_begin), pass->y_stride, x, x_stride,
                                   pass->n_tokens, w, row, next, other_scratch);
            row = next;
        }
    }
}

/* Scales over whole planes or whole rows, of the types above. */
static bool can_fuse(const tamis_matrix *w)
{
    const bool whole_planes = w->block_cols % PLANE_COLS == 0 || w->block_cols >= w->cols;
    if (w->dtype == TAMIS_DTYPE_I4 || w->dtype == TAMIS_DTYPE_F4_E2M1)
        return false;
    return !w->scale || (takes_factor(w->dtype) && whole_planes);
}

TAMIS_KERNEL_linear(tamis_linear_few_avx2)
{
    if (!can_fuse(w)) {
        tamis_linear_many_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end, scratch);
        return;
    }
    few_pass pass = {.y = y,
                     .y_stride = y_stride,
                     .n_tokens = n_tokens,
                     .x = scratch,
                     .given = scratch,
                     .x_stride = planes_stride(w->cols),
                     .w = w,
                     .row_begin = row_begin,
                     .row_end = row_end};
    planes_order_rows(scratch, x, x_stride, n_tokens, w->cols);
    scratch += n_tokens * pass.x_stride;
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
    case TAMIS_DTYPE_I8:
        FEW(TAMIS_DTYPE_I8);
        break;
    default:
        few_e4m3(&pass, x, x_stride, scratch);
    }
#undef FEW
}
#endif
