/*
 * Linear layers of few tokens, AVX2: such a call is bound by the stream of weights, which are read,
 * decoded in registers and multiplied at once, some rows side by side. Inputs are put in plane
 * order first (planes_avx2.h), in which they meet the weights as those decode.
 *
 * The order of additions of one output is that of every path, quads16.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_fused_avx2.h"
#include "kernels/x86/table_x86.h"

/* One call, or the rows of it that share scaled inputs. Inputs are as planes_order_rows leaves
 * them.
 */
typedef struct few_pass {
    float *y;
    int64_t y_stride, n_tokens;
    const float *x;     /* as the tile multiplies it: as given, or scaled */
    const float *given; /* for the columns after the last whole 64 */
    const tamis_matrix *w;
    int64_t row_begin, row_end;
} few_pass;

/* The rows of a tile and what has been summed. */
typedef struct few_tile {
    const uint8_t *row[4];
    __m256 acc[4][FUSED_TOKENS][2]; /* lanes 0-7, 8-15 */
    __m256 factor[4];
    __m256i largest; /* e4m3_largest */
} few_tile;

/* 32 columns, the first or the second of 64. */
static TAMIS_ALWAYS_INLINE void step_32(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                        int n_tokens, const float *x, int64_t c, int half)
{
    const float *in = x + c * n_tokens;
    for (int r = 0; r < n_rows; r++) {
        KEEP_POINTER(in); /* inputs stay in memory: the sums need the registers */
        const uint8_t *at = tile->row[r] + c * weight_bits(dtype) / 8;
        const planes value = weights_32(dtype, folded, at, tile->factor[r]);
        if (dtype == TAMIS_DTYPE_F8_E4M3)
            tile->largest = e4m3_largest(tile->largest, load_codes(at));
        for (int b = 0; b < 4; b++)
            for (int t = 0; t < n_tokens; t++)
                tile->acc[r][t][half] =
                    _mm256_fmadd_ps(value.p[b], _mm256_loadu_ps(in + t * PLANE_COLS + 8 * b),
                                    tile->acc[r][t][half]);
    }
}

/* Columns [begin, end), multiples of 32, under one scale. */
static TAMIS_ALWAYS_INLINE void span(few_tile *tile, tamis_dtype dtype, bool folded, int n_rows,
                                     int n_tokens, const float *x, int64_t begin, int64_t end,
                                     const group_ahead *ahead)
{
    const int bits = weight_bits(dtype);
    int64_t c = begin;
    if (c % QUADS_COLS != 0) {
        step_32(tile, dtype, folded, n_rows, n_tokens, x, c, 1);
        c += PLANE_COLS;
    }
    for (; c + QUADS_COLS <= end; c += QUADS_COLS) {
        for (int line = 0; line < bits / 8; line++)
            group_ahead_fetch(ahead, n_rows, c * bits / 8 + 64 * line);
        step_32(tile, dtype, folded, n_rows, n_tokens, x, c, 0);
        step_32(tile, dtype, folded, n_rows, n_tokens, x, c + PLANE_COLS, 1);
    }
    if (c < end)
        step_32(tile, dtype, folded, n_rows, n_tokens, x, c, 0);
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
    const group_ahead ahead = group_ahead_of(w, row, n_rows, pass->row_end);
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
        span(&tile, dtype, folded, n_rows, n_tokens, pass->x, c, stop, &ahead);
    }
    if (dtype == TAMIS_DTYPE_F8_E4M3 && e4m3_has_nan(tile.largest))
        return false;
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++) {
            v16 acc = {tile.acc[r][t][0], tile.acc[r][t][1]};
            if (whole < w->cols)
                acc = row_rest(acc, w, row + r, whole, pass->given, n_tokens, t);
            pass->y[t * pass->y_stride + (row - pass->row_begin) + r] = v16_sum(acc);
        }
    return true;
}

/* ---------------------------------------------------------------- FP8, four rows of one token */

typedef struct e4m3_constants {
    __m256i sixteen, kept, high;
} e4m3_constants;

static TAMIS_ALWAYS_INLINE e4m3_constants e4m3_constants_make(void)
{
    return (e4m3_constants){integers_in_register(_mm256_set1_epi16(0x0010)),
                            integers_in_register(_mm256_set1_epi16((short)0x87f0)),
                            integers_in_register(_mm256_set1_epi32((int)0xffff0000))};
}

/*
 * acc += 32 codes (e4m3_small_planes) times inputs in plane order; largest as in e4m3_largest. The
 * compiler's own order of the same instructions, many rows mixed, keeps inputs in registers and
 * sums in memory: rows of 1024 columns took 15 % longer, of 4096 4 %.
 */
static TAMIS_ALWAYS_INLINE __m256 e4m3_step(__m256 acc, __m256i *largest, const uint8_t *codes,
                                            const float *x, const e4m3_constants *k)
{
#if defined(__GNUC__)
    __m256i a, b, c, d;
    __asm__("vmovdqu %[codes], %[a]\n\t"
            "vpsraw $4, %[a], %[c]\n\t"
            "vpmaddubsw %[a], %[sixteen], %[b]\n\t"
            "vpand %[b], %[kept], %[b]\n\t"
            "vpaddb %[a], %[a], %[a]\n\t"
            "vpand %[c], %[kept], %[c]\n\t"
            "vpslld $16, %[b], %[d]\n\t"
            "vpmaxub %[a], %[largest], %[largest]\n\t"
            "vfmadd231ps 0(%[x]), %[d], %[acc]\n\t"
            "vpslld $16, %[c], %[a]\n\t"
            "vpand %[c], %[high], %[c]\n\t"
            "vpand %[b], %[high], %[b]\n\t"
            "vfmadd231ps 32(%[x]), %[a], %[acc]\n\t"
            "vfmadd231ps 64(%[x]), %[b], %[acc]\n\t"
            "vfmadd231ps 96(%[x]), %[c], %[acc]"
            : [acc] "+x"(acc), [largest] "+x"(*largest), [a] "=&x"(a), [b] "=&x"(b), [c] "=&x"(c),
              [d] "=&x"(d)
            : [codes] "m"(*(const uint8_t(*)[PLANE_COLS])codes), [x] "r"(x),
              "m"(*(const float(*)[PLANE_COLS])x), [sixteen] "x"(k->sixteen), [kept] "x"(k->kept),
              [high] "x"(k->high));
#else
    const planes value = e4m3_small_planes(load_codes(codes));
    (void)k;
    *largest = e4m3_largest(*largest, load_codes(codes));
    for (int b = 0; b < 4; b++)
        acc = _mm256_fmadd_ps(value.p[b], _mm256_loadu_ps(x + 8 * b), acc);
#endif
    return acc;
}

/* few_rows of four rows, E4M3 with scaled inputs, one token. */
static bool e4m3_four_rows(const few_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const int64_t whole = w->cols / QUADS_COLS * QUADS_COLS, stride = w->row_bytes;
    const group_ahead ahead = group_ahead_of(w, row, 4, pass->row_end);
    const e4m3_constants k = e4m3_constants_make();
    const uint8_t *at = tamis_weight_row(w, row);
    const float *x = pass->x;
    v16 s0 = v16_zero(), s1 = s0, s2 = s0, s3 = s0;
    __m256i largest = _mm256_setzero_si256();
    for (int64_t c = 0; c < whole; c += QUADS_COLS, at += QUADS_COLS, x += QUADS_COLS) {
        group_ahead_fetch(&ahead, 4, c);
        s0.lo = e4m3_step(s0.lo, &largest, at, x, &k);
        s1.lo = e4m3_step(s1.lo, &largest, at + stride, x, &k);
        s2.lo = e4m3_step(s2.lo, &largest, at + 2 * stride, x, &k);
        s3.lo = e4m3_step(s3.lo, &largest, at + 3 * stride, x, &k);
        s0.hi = e4m3_step(s0.hi, &largest, at + 32, x + 32, &k);
        s1.hi = e4m3_step(s1.hi, &largest, at + stride + 32, x + 32, &k);
        s2.hi = e4m3_step(s2.hi, &largest, at + 2 * stride + 32, x + 32, &k);
        s3.hi = e4m3_step(s3.hi, &largest, at + 3 * stride + 32, x + 32, &k);
    }
    if (e4m3_has_nan(largest))
        return false;
    v16 sums[4] = {s0, s1, s2, s3};
    for (int r = 0; r < 4 && whole < w->cols; r++)
        sums[r] = row_rest(sums[r], w, row + r, whole, pass->given, 1, 0);
    _mm_storeu_ps(pass->y + (row - pass->row_begin), v16_sum_4(sums));
    return true;
}

/* The number of rows, 1 to 4, done at `row`, or 0: they need the other path. */
static TAMIS_ALWAYS_INLINE int few_group(tamis_dtype dtype, bool folded, int64_t n_tokens,
                                         const few_pass *pass, int64_t row, int64_t end)
{
#define ROWS(rows, tokens) (few_rows(dtype, folded, rows, tokens, pass, row) ? rows : 0)
    const int64_t left = end - row;
    if (n_tokens == 1 && left >= 4 && dtype == TAMIS_DTYPE_F8_E4M3 && folded)
        return e4m3_four_rows(pass, row) ? 4 : 0;
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

/* ---------------------------------------------------------------- FP8 */

/* Rows [row, end), of one block row if those are tall, with scaled inputs, in `scaled`, where they
 * can be; returns as few_typed. */
static int64_t few_e4m3_block(few_pass *pass, float *scaled, int64_t row, int64_t end)
{
    const bool same_scales = !pass->w->scale || pass->w->block_rows >= FOLD_ROWS;
    pass->x = pass->given;
    if (!same_scales || end - row < FOLD_ROWS ||
        !tamis_fold_scales_avx2(scaled, pass->given, pass->n_tokens, pass->w, row))
        return few_typed(TAMIS_DTYPE_F8_E4M3, false, pass, row, end);
    pass->x = scaled;
    return few_typed(TAMIS_DTYPE_F8_E4M3, true, pass, row, end);
}

/* E4M3, one block row after the other; rows with NaN or large scales take the other path, which
 * needs the inputs as they came. */
static void few_e4m3(few_pass *pass, const float *x, int64_t x_stride, float *scratch)
{
    const tamis_matrix *w = pass->w;
    float *other_scratch = scratch + pass->n_tokens * planes_stride(w->cols);
    for (int64_t row = pass->row_begin; row < pass->row_end;) {
        const int64_t end = fold_end(w, row, pass->row_end);
        row = few_e4m3_block(pass, scratch, row, end);
        if (row < end) {
            const int64_t next = end - row < 4 ? end : row + 4;
            tamis_linear_many_avx2(pass->y + (row - pass->row_begin), pass->y_stride, x, x_stride,
                                   pass->n_tokens, w, row, next, other_scratch, false);
            row = next;
        }
    }
}

TAMIS_KERNEL_linear(tamis_linear_few_avx2)
{
    few_pass pass = {.y = y,
                     .y_stride = y_stride,
                     .n_tokens = n_tokens,
                     .x = scratch,
                     .given = scratch,
                     .w = w,
                     .row_begin = row_begin,
                     .row_end = row_end};
    if (!same_inputs)
        planes_order_rows(scratch, x, x_stride, n_tokens, w->cols);
    scratch += n_tokens * planes_stride(w->cols);
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
