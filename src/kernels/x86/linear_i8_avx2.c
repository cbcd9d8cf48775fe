/*
 * Linear layers over integers, AVX2.
 *
 * The sum of integers is exact in any order, so this file is free to choose it. I8: 16 columns at a
 * time are widened to words, and vpmaddwd adds two products of words in 32 bits, which holds even
 * 2 * (-128 * -128); vpmaddubsw on bytes would saturate there. I4: w + 8 is 0..15, so vpmaddubsw's
 * pair is at most 15 * 128 * 2 = 3840 and WORD_STEPS of them fit 16 bits; 8 * (sum of x) comes off
 * at the end.
 *
 * Rows go in groups of ROW_GROUP that stay in the second cache level, tokens in tiles of 4 that
 * stay in the first while all rows of the group pass.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/simd_avx2.h"
#include "kernels/x86/table_x86.h"

#define ROW_GROUP   16
#define TILE_TOKENS 4
#define WORD_STEPS  8

typedef struct i8_call {
    float *y; /* of the first row */
    int64_t y_stride;
    const int8_t *x;
    int64_t x_stride;
    const float *token_scale;
    const tamis_matrix *w;
    const float *row_scale;
    const int32_t *bias;
    int64_t row_begin, row_end;
} i8_call;

static TAMIS_ALWAYS_INLINE int32_t sum_8(__m256i v)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

static TAMIS_ALWAYS_INLINE void store_output(const i8_call *call, int64_t row, int64_t token,
                                             int32_t sum)
{
    const int32_t acc = call->bias ? sum + call->bias[row] : sum;
    const float value = (float)acc * call->row_scale[row];
    call->y[token * call->y_stride + row - call->row_begin] =
        call->token_scale ? value * call->token_scale[token] : value;
}

/* ---------------------------------------------------------------- I8 */

static TAMIS_ALWAYS_INLINE __m256i words_16(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(load_8_words(p));
}

/* Rows row .. row + n_rows - 1 for tokens token .. token + n_tokens - 1; sizes known when compiled.
 */
static TAMIS_ALWAYS_INLINE void tile_i8(const i8_call *call, int n_rows, int n_tokens, int64_t row,
                                        int64_t token)
{
    const int64_t cols = call->w->cols, whole = cols / 16 * 16;
    const int8_t *weights[4], *x = call->x + token * call->x_stride;
    __m256i acc[4][TILE_TOKENS];
    for (int r = 0; r < n_rows; r++) {
        weights[r] = (const int8_t *)tamis_weight_row(call->w, row + r);
        for (int t = 0; t < n_tokens; t++)
            acc[r][t] = _mm256_setzero_si256();
    }
    for (int64_t c = 0; c < whole; c += 16) {
        __m256i in[TILE_TOKENS];
        for (int t = 0; t < n_tokens; t++)
            in[t] = words_16(x + t * call->x_stride + c);
        for (int r = 0; r < n_rows; r++) {
            const __m256i value = words_16(weights[r] + c);
            for (int t = 0; t < n_tokens; t++)
                acc[r][t] = _mm256_add_epi32(acc[r][t], _mm256_madd_epi16(value, in[t]));
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++) {
            int32_t sum = sum_8(acc[r][t]);
            for (int64_t c = whole; c < cols; c++)
                sum += weights[r][c] * x[t * call->x_stride + c];
            store_output(call, row + r, token + t, sum);
        }
}

static void rows_i8(const i8_call *call, int64_t begin, int64_t end, int64_t token,
                    int64_t n_tokens)
{
    int64_t row = begin;
    for (; n_tokens == 1 && row + 4 <= end; row += 4)
        tile_i8(call, 4, 1, row, token);
    for (; row + 2 <= end; row += 2)
        switch (n_tokens) {
        case 1:
            tile_i8(call, 2, 1, row, token);
            break;
        case 2:
            tile_i8(call, 2, 2, row, token);
            break;
        case 3:
            tile_i8(call, 2, 3, row, token);
            break;
        default:
            tile_i8(call, 2, 4, row, token);
        }
    for (int64_t t = 0; row < end && t < n_tokens; t++)
        tile_i8(call, 1, 1, row, token + t);
}

/* ---------------------------------------------------------------- I4 */

/* Sum of one token's input over the columns that the tiles take 32 at a time. */
static int32_t sum_of_input(const int8_t *x, int64_t whole)
{
    __m256i sum = _mm256_setzero_si256();
    for (int64_t c = 0; c < whole; c += 32) {
        const __m256i in = _mm256_loadu_si256((const __m256i *)(const void *)(x + c));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), in);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum_8(sum);
}

/* The pair of rows 2 * pair, 2 * pair + 1 for n_tokens tokens; those in the call's range are
 * stored. */
static TAMIS_ALWAYS_INLINE void tile_i4(const i8_call *call, int n_tokens, int64_t pair,
                                        int64_t token, const int32_t *input_sum)
{
    const int64_t cols = call->w->cols, whole = cols / 32 * 32;
    const uint8_t *weights = tamis_weight_row(call->w, 2 * pair);
    const int8_t *x = call->x + token * call->x_stride;
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(8);
    __m256i acc[2][TILE_TOKENS];
    for (int t = 0; t < n_tokens; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_si256();
    for (int64_t c = 0; c < whole;) {
        const int64_t stop = whole - c < 32 * WORD_STEPS ? whole : c + 32 * WORD_STEPS;
        __m256i words[2][TILE_TOKENS];
        for (int t = 0; t < n_tokens; t++)
            words[0][t] = words[1][t] = _mm256_setzero_si256();
        for (; c < stop; c += 32) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)(weights + c));
            const __m256i even = _mm256_xor_si256(_mm256_and_si256(both, low), flip);
            const __m256i odd =
                _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), low), flip);
            for (int t = 0; t < n_tokens; t++) {
                const __m256i in =
                    _mm256_loadu_si256((const __m256i *)(const void *)(x + t * call->x_stride + c));
                words[0][t] = _mm256_add_epi16(words[0][t], _mm256_maddubs_epi16(even, in));
                words[1][t] = _mm256_add_epi16(words[1][t], _mm256_maddubs_epi16(odd, in));
            }
        }
        for (int r = 0; r < 2; r++)
            for (int t = 0; t < n_tokens; t++)
                acc[r][t] = _mm256_add_epi32(acc[r][t],
                                             _mm256_madd_epi16(words[r][t], _mm256_set1_epi16(1)));
    }
    for (int r = 0; r < 2; r++) {
        const int64_t row = 2 * pair + r;
        if (row < call->row_begin || row >= call->row_end)
            continue;
        for (int t = 0; t < n_tokens; t++) {
            int32_t sum = sum_8(acc[r][t]) - 8 * input_sum[t];
            for (int64_t c = whole; c < cols; c++)
                sum += tamis_i4_decode(weights, row, c) * x[t * call->x_stride + c];
            store_output(call, row, token + t, sum);
        }
    }
}

static void rows_i4(const i8_call *call, int64_t begin, int64_t end, int64_t token,
                    int64_t n_tokens)
{
    int32_t input_sum[TILE_TOKENS];
    for (int64_t t = 0; t < n_tokens; t++)
        input_sum[t] =
            sum_of_input(call->x + (token + t) * call->x_stride, call->w->cols / 32 * 32);
    for (int64_t pair = begin / 2; 2 * pair < end; pair++)
        switch (n_tokens) {
        case 1:
            tile_i4(call, 1, pair, token, input_sum);
            break;
        case 2:
            tile_i4(call, 2, pair, token, input_sum);
            break;
        case 3:
            tile_i4(call, 3, pair, token, input_sum);
            break;
        default:
            tile_i4(call, 4, pair, token, input_sum);
        }
}

TAMIS_KERNEL_linear_i8(tamis_linear_i8_avx2)
{
    const i8_call call = {y, y_stride,  x,    x_stride,  token_scale,
                          w, row_scale, bias, row_begin, row_end};
    for (int64_t begin = row_begin; begin < row_end;) {
        const int64_t next = (begin / ROW_GROUP + 1) * ROW_GROUP; /* pairs stay whole */
        const int64_t end = next < row_end ? next : row_end;
        for (int64_t t = 0; t < n_tokens; t += TILE_TOKENS) {
            const int64_t tokens = n_tokens - t < TILE_TOKENS ? n_tokens - t : TILE_TOKENS;
            if (w->dtype == TAMIS_DTYPE_I4)
                rows_i4(&call, begin, end, t, tokens);
            else
                rows_i8(&call, begin, end, t, tokens);
        }
        begin = end;
    }
}
#endif
