/*
 * Linear layers over integers, few tokens or few rows, AVX2; linear_i8_panels_avx2.c has the
 * others.
 *
 * The sum of integers is exact in any order, so this file is free to choose it. I8: 16 columns at a
 * time are widened to words, and vpmaddwd adds two products of words in 32 bits, which holds even
 * 2 * (-128 * -128); vpmaddubsw on bytes would saturate there. I4: w + 8 is 0..15, so vpmaddubsw's
 * pair is at most 15 * 128 * 2 = 3840 and WORD_STEPS of them fit 16 bits; 8 * (sum of x) comes off
 * at the end.
 *
 * Rows go in groups that stay in the second cache level, tokens in tiles of 4, columns in blocks:
 * a tile's block of inputs, widened once, stays in the first level while the rows of the group
 * pass.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/lowbit_avx2.h"
#include "kernels/x86/table_x86.h"

#define ROW_GROUP   16
#define TILE_TOKENS 4
#define COL_BLOCK   2048
#define WORD_STEPS  8

/* Columns [begin, end) of some rows and of a tile of tokens, and where their sums grow. */
typedef struct i8_block {
    const tamis_matrix *w;
    int64_t row_begin, row_end; /* of the group; rows are counted in the matrix */
    int64_t begin, end;
    const int8_t *x; /* first token, column 0 */
    int64_t x_stride;
    int32_t (*sums)[TILE_TOKENS]; /* [row - row_begin][token] */
} i8_block;

static TAMIS_ALWAYS_INLINE __m256i load_32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* ---------------------------------------------------------------- I8 */

static TAMIS_ALWAYS_INLINE __m256i words_16(const void *p)
{
    return _mm256_cvtepi8_epi16(load_8_words(p));
}
/* The first n of 16 and zeros. */
static TAMIS_ALWAYS_INLINE __m256i words_first(const void *p, int64_t n)
{
    return _mm256_cvtepi8_epi16(bytes_load_up_to(p, n));
}

/* acc[r][t] += 16 columns of n_rows rows times n_tokens tokens. */
static TAMIS_ALWAYS_INLINE void step_i8(int n_rows, int n_tokens, __m256i acc[4][TILE_TOKENS],
                                        const __m256i *value, const int16_t *words)
{
    for (int t = 0; t < n_tokens; t++) {
        const __m256i in = load_32(words + t * COL_BLOCK);
        for (int r = 0; r < n_rows; r++)
            acc[r][t] = _mm256_add_epi32(acc[r][t], _mm256_madd_epi16(value[r], in));
    }
}

/* n_rows rows from `row` on against n_tokens tokens in words [token][COL_BLOCK]. */
static TAMIS_ALWAYS_INLINE void tile_i8(const i8_block *b, int n_rows, int n_tokens, int64_t row,
                                        const int16_t *words)
{
    const int64_t n = b->end - b->begin, whole = n / 16 * 16;
    const uint8_t *weights[4];
    __m256i acc[4][TILE_TOKENS], value[4];
    for (int r = 0; r < n_rows; r++) {
        weights[r] = tamis_weight_row(b->w, row + r) + b->begin;
        for (int t = 0; t < n_tokens; t++)
            acc[r][t] = _mm256_setzero_si256();
    }
    const uint8_t *next = weights[0] + n_rows * b->w->row_bytes;
    for (int64_t c = 0; c < whole; c += 16) {
        if (n_tokens == 1 && n_rows == 4) /* a line a step: the next rows, in the order of memory */
            _mm_prefetch((const char *)next + 4 * c, _MM_HINT_T0);
        for (int r = 0; r < n_rows; r++)
            value[r] = words_16(weights[r] + c);
        step_i8(n_rows, n_tokens, acc, value, words + c);
    }
    if (whole < n) {
        for (int r = 0; r < n_rows; r++)
            value[r] = words_first(weights[r] + whole, n - whole);
        step_i8(n_rows, n_tokens, acc, value, words + whole);
    }
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++)
            b->sums[row - b->row_begin + r][t] += sum_of_8(acc[r][t]);
}

static TAMIS_ALWAYS_INLINE void rows_i8(const i8_block *b, int n_tokens, const int16_t *words)
{
    int64_t row = b->row_begin;
    for (; n_tokens == 1 && row + 4 <= b->row_end; row += 4)
        tile_i8(b, 4, n_tokens, row, words);
    for (; row + 2 <= b->row_end; row += 2)
        tile_i8(b, 2, n_tokens, row, words);
    if (row < b->row_end)
        tile_i8(b, 1, n_tokens, row, words);
}

static void block_i8(const i8_block *b, int64_t n_tokens)
{
    _Alignas(32) int16_t words[TILE_TOKENS * COL_BLOCK];
    const int64_t n = b->end - b->begin, whole = n / 16 * 16;
    for (int64_t t = 0; t < n_tokens; t++) {
        const int8_t *in = b->x + t * b->x_stride + b->begin;
        int16_t *to = words + t * COL_BLOCK;
        for (int64_t c = 0; c < whole; c += 16)
            _mm256_store_si256((__m256i *)(to + c), words_16(in + c));
        if (whole < n)
            _mm256_store_si256((__m256i *)(to + whole), words_first(in + whole, n - whole));
    }
    switch (n_tokens) {
    case 1:
        rows_i8(b, 1, words);
        break;
    case 2:
        rows_i8(b, 2, words);
        break;
    case 3:
        rows_i8(b, 3, words);
        break;
    default:
        rows_i8(b, 4, words);
    }
}

/* ---------------------------------------------------------------- I4 */

/* Sum of one token's input over the columns that the tiles take 32 at a time. */
static int32_t sum_of_input(const int8_t *x, int64_t begin, int64_t whole)
{
    __m256i sum = _mm256_setzero_si256();
    for (int64_t c = begin; c < whole; c += 32) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_32(x + c));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum_of_8(sum);
}

/*
 * Rows 2 * pair and 2 * pair + 1 against n_tokens tokens; those in the group's range are added.
 * Columns from `whole` on, fewer than 32, go one by one.
 */
static TAMIS_ALWAYS_INLINE void tile_i4(const i8_block *b, int n_tokens, int64_t pair,
                                        int64_t whole, const int32_t *input_sum)
{
    const uint8_t *weights = tamis_weight_row(b->w, 2 * pair);
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(8);
    __m256i acc[2][TILE_TOKENS];
    for (int t = 0; t < n_tokens; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_si256();
    for (int64_t c = b->begin; c < whole;) {
        const int64_t stop = whole - c < 32 * WORD_STEPS ? whole : c + 32 * WORD_STEPS;
        __m256i words[2][TILE_TOKENS];
        for (int t = 0; t < n_tokens; t++)
            words[0][t] = words[1][t] = _mm256_setzero_si256();
        for (; c < stop; c += 32) {
            const __m256i both = load_32(weights + c);
            const __m256i even = _mm256_xor_si256(_mm256_and_si256(both, low), flip);
            const __m256i odd =
                _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), low), flip);
            for (int t = 0; t < n_tokens; t++) {
                const __m256i in = load_32(b->x + t * b->x_stride + c);
                words[0][t] = _mm256_add_epi16(words[0][t], _mm256_maddubs_epi16(even, in));
                words[1][t] = _mm256_add_epi16(words[1][t], _mm256_maddubs_epi16(odd, in));
            }
        }
        for (int r = 0; r < 2; r++)
            for (int t = 0; t < n_tokens; t++)
                acc[r][t] = _mm256_add_epi32(acc[r][t],
                                             _mm256_madd_epi16(words[r][t], _mm256_set1_epi16(1)));
    }
    for (int64_t row = 2 * pair; row < 2 * pair + 2; row++) {
        if (row < b->row_begin || row >= b->row_end)
            continue;
        for (int t = 0; t < n_tokens; t++) {
            int32_t sum = sum_of_8(acc[row % 2][t]) - 8 * input_sum[t];
            for (int64_t c = whole; c < b->end; c++)
                sum += tamis_i4_decode(weights, row, c) * b->x[t * b->x_stride + c];
            b->sums[row - b->row_begin][t] += sum;
        }
    }
}

static void block_i4(const i8_block *b, int64_t n_tokens)
{
    const int64_t whole = b->begin + (b->end - b->begin) / 32 * 32;
    int32_t input_sum[TILE_TOKENS];
    for (int64_t t = 0; t < n_tokens; t++)
        input_sum[t] = sum_of_input(b->x + t * b->x_stride, b->begin, whole);
    for (int64_t pair = b->row_begin / 2; 2 * pair < b->row_end; pair++)
        switch (n_tokens) {
        case 1:
            tile_i4(b, 1, pair, whole, input_sum);
            break;
        case 2:
            tile_i4(b, 2, pair, whole, input_sum);
            break;
        case 3:
            tile_i4(b, 3, pair, whole, input_sum);
            break;
        default:
            tile_i4(b, 4, pair, whole, input_sum);
        }
}

/* ---------------------------------------------------------------- all of it */

/* The integer sums of one group of rows and one tile of tokens. */
static void sum_tile(i8_block *b, int64_t n_tokens)
{
    const bool has_room = n_tokens == 1 && b->w->dtype == TAMIS_DTYPE_I8; /* of the other tokens */
    const int64_t most = has_room ? TILE_TOKENS * COL_BLOCK : COL_BLOCK;
    memset(b->sums, 0, ROW_GROUP * sizeof *b->sums);
    for (b->begin = 0; b->begin < b->w->cols; b->begin = b->end) {
        b->end = b->w->cols - b->begin < most ? b->w->cols : b->begin + most;
        if (b->w->dtype == TAMIS_DTYPE_I4)
            block_i4(b, n_tokens);
        else
            block_i8(b, n_tokens);
    }
}

TAMIS_KERNEL_linear_i8(tamis_linear_i8_avx2)
{
    const int64_t many = w->dtype == TAMIS_DTYPE_I4 ? MIN_I4_PANEL_TOKENS : MIN_I8_PANEL_TOKENS;
    if (n_tokens >= many && row_end - row_begin >= PANEL_ROWS) {
        tamis_linear_i8_panels_avx2(y, y_stride, x, x_stride, token_scale, n_tokens, w, row_scale,
                                    bias, row_begin, row_end, scratch);
        return;
    }
    int32_t sums[ROW_GROUP][TILE_TOKENS];
    i8_block block = {.w = w, .x_stride = x_stride, .sums = sums};
    for (int64_t begin = row_begin; begin < row_end; begin = block.row_end) {
        const int64_t next = (begin / ROW_GROUP + 1) * ROW_GROUP; /* pairs of I4 stay whole */
        block.row_begin = begin;
        block.row_end = next < row_end ? next : row_end;
        for (int64_t first = 0; first < n_tokens; first += TILE_TOKENS) {
            const int64_t tokens = n_tokens - first < TILE_TOKENS ? n_tokens - first : TILE_TOKENS;
            block.x = x + first * x_stride;
            sum_tile(&block, tokens);
            for (int64_t row = begin; row < block.row_end; row++)
                for (int64_t t = 0; t < tokens; t++) {
                    const int64_t sum = (int64_t)sums[row - begin][t] + (bias ? bias[row] : 0);
                    const float value = (float)sum * row_scale[row];
                    y[(first + t) * y_stride + row - row_begin] =
                        token_scale ? value * token_scale[first + t] : value;
                }
        }
    }
}
#endif
