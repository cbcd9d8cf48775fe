/*
 * Linear layers of few tokens over FP4, AVX2: two rows lie side by side in the halves of a
 * register.
 *
 * A value times its power-of-two scale is a BF16 number, so two tables of bytes hold the 16 values
 * under one scale: pshufb looks up 32 high and 32 low bytes at once, unpacking joins them to words,
 * and a shift or a mask makes f32 of every second word. Columns come out in the order 0, 4, 8, 12;
 * 2, 6, 10, 14; and the same of the odd ones. The inputs are put in that order once per call, the
 * accumulators stay in it: lane 4 i + j of lanes16 is element i of sum j. Every lane still adds
 * ascending columns.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/table_x86.h"

#define BLOCK_COLS 32
#define MAX_PAIRS  2

/* The 16 values under one scale: their BF16 bytes. */
typedef struct byte_tables {
    uint8_t high[TAMIS_LANES], low[TAMIS_LANES];
} byte_tables;

typedef struct nibble_pass {
    const tamis_matrix *w;
    const byte_tables *tables; /* of the 256 scales */
    const float *x, *ordered;  /* as given, and transposed 4 x 4 in every 16 columns */
    int64_t x_stride, ordered_stride;
    int64_t whole; /* columns in whole blocks */
    float *y;
    int64_t y_stride, row_begin, row_end;
} nibble_pass;

/* ---------------------------------------------------------------- preparation */

static void fill_tables(byte_tables *tables)
{
    for (int scale = 0; scale < 256; scale++) {
        const __m256 factor = _mm256_set1_ps(tamis_f8_e8m0_to_f32((uint8_t)scale));
        const __m256 value = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
        const __m256i words =
            _mm256_srli_epi32(_mm256_castps_si256(_mm256_mul_ps(value, factor)), 16);
        const __m128i half =
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        const __m128i minus = _mm_or_si128(half, _mm_set1_epi16((short)0x8000));
        const __m128i byte = _mm_set1_epi16(0xff);
        const __m128i high = _mm_packus_epi16(_mm_srli_epi16(half, 8), _mm_srli_epi16(minus, 8));
        const __m128i low = _mm_packus_epi16(_mm_and_si128(half, byte), _mm_and_si128(minus, byte));
        _mm_storeu_si128((__m128i *)(void *)tables[scale].high, high);
        _mm_storeu_si128((__m128i *)(void *)tables[scale].low, low);
    }
}

/* dst[16 g + 4 j + i] = x[16 g + 4 i + j] */
static void order_inputs(float *dst, const float *x, int64_t n)
{
    for (int64_t c = 0; c < n; c += TAMIS_LANES) {
        __m128 row[4];
        for (int i = 0; i < 4; i++)
            row[i] = _mm_loadu_ps(x + c + 4 * i);
        _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
        for (int j = 0; j < 4; j++)
            _mm_storeu_ps(dst + c + 4 * j, row[j]);
    }
}

/* ---------------------------------------------------------------- tile */

static TAMIS_ALWAYS_INLINE __m256i two_rows(const void *a, const void *b)
{
    /* Loads of both halves and a blend: inserting would take one of the two ports that shuffle. */
    return _mm256_blend_epi32(_mm256_broadcastsi128_si256(load_8_words(a)),
                              _mm256_broadcastsi128_si256(load_8_words(b)), 0xf0);
}

/* Sum j of every token += 4 values of both rows times its 4 inputs at x. */
static TAMIS_ALWAYS_INLINE void add_4(__m256 acc[FUSED_TOKENS][4], int j, int n_tokens,
                                      __m256i value, const float *x, int64_t x_stride)
{
    for (int t = 0; t < n_tokens; t++) {
        const __m256 in = _mm256_broadcast_ps((const __m128 *)(const void *)(x + t * x_stride));
        acc[t][j] = _mm256_fmadd_ps(_mm256_castsi256_ps(value), in, acc[t][j]);
    }
}

/* The 16 even (odd = 0) or odd (1) of 32 columns of two rows; nibbles: their codes. */
static TAMIS_ALWAYS_INLINE void add_half(__m256 acc[FUSED_TOKENS][4], int odd, int n_tokens,
                                         __m256i nibbles, __m256i high, __m256i low, const float *x,
                                         int64_t x_stride)
{
    const __m256i top = _mm256_set1_epi32((int)0xffff0000u);
    const __m256i high_bytes = _mm256_shuffle_epi8(high, nibbles);
    const __m256i low_bytes = _mm256_shuffle_epi8(low, nibbles);
    for (int group = 0; group < 2; group++) {
        const __m256i words = group == 0 ? _mm256_unpacklo_epi8(low_bytes, high_bytes)
                                         : _mm256_unpackhi_epi8(low_bytes, high_bytes);
        const float *in = x + group * TAMIS_LANES + 4 * odd;
        add_4(acc, odd, n_tokens, _mm256_slli_epi32(words, 16), in, x_stride);
        add_4(acc, odd + 2, n_tokens, _mm256_and_si256(words, top), in + 8, x_stride);
    }
}

/* 32 columns of the rows a and b under the scales there. */
static TAMIS_ALWAYS_INLINE void add_block(__m256 acc[FUSED_TOKENS][4], int n_tokens,
                                          const uint8_t *a, const uint8_t *b,
                                          const byte_tables *of_a, const byte_tables *of_b,
                                          const float *x, int64_t x_stride)
{
    const __m256i codes = two_rows(a, b), nibble = _mm256_set1_epi8(15);
    const __m256i high = two_rows(of_a->high, of_b->high);
    const __m256i low = two_rows(of_a->low, of_b->low);
    add_half(acc, 0, n_tokens, _mm256_and_si256(codes, nibble), high, low, x, x_stride);
    add_half(acc, 1, n_tokens, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble), high, low, x,
             x_stride);
}

/* Sums j of up to two pairs of rows: [pair][token][j][row of the pair, 4 lanes]. */
typedef float pair_sums[FUSED_TOKENS][4][8];

/* The sums back in the order of lanes16, the columns after the last whole block, and y. */
static void finish_rows(const nibble_pass *pass, const pair_sums *sums, int n_tokens, int64_t row,
                        int n_stored)
{
    for (int r = 0; r < n_stored; r++)
        for (int t = 0; t < n_tokens; t++) {
            __m128 line[4];
            for (int j = 0; j < 4; j++)
                line[j] = _mm_load_ps(sums[r / 2][t][j] + r % 2 * 4);
            _MM_TRANSPOSE4_PS(line[0], line[1], line[2], line[3]);
            const v16 acc = {_mm256_set_m128(line[1], line[0]), _mm256_set_m128(line[3], line[2])};
            pass->y[t * pass->y_stride + (row - pass->row_begin) + r] =
                v16_sum(row_rest(acc, pass->w, row + r, pass->whole, pass->x + t * pass->x_stride));
        }
}

/* n_stored rows from `row` on; a single last one is its own partner. */
static TAMIS_ALWAYS_INLINE void nibble_rows(const nibble_pass *pass, int n_pairs, int n_tokens,
                                            int64_t row, int n_stored)
{
    const tamis_matrix *w = pass->w;
    const group_ahead ahead =
        group_ahead_of(w, row, n_stored, row + n_stored + 2 * n_pairs > pass->row_end);
    const uint8_t *codes[2 * MAX_PAIRS], *scales[2 * MAX_PAIRS];
    __m256 acc[MAX_PAIRS][FUSED_TOKENS][4];
    _Alignas(32) pair_sums sums[MAX_PAIRS];
    for (int r = 0; r < 2 * n_pairs; r++) {
        codes[r] = tamis_weight_row(w, row + (r < n_stored ? r : 0));
        scales[r] = tamis_scale_row(w, row + (r < n_stored ? r : 0));
    }
    for (int p = 0; p < n_pairs; p++)
        for (int t = 0; t < n_tokens; t++)
            for (int j = 0; j < 4; j++)
                acc[p][t][j] = _mm256_setzero_ps();
    for (int64_t c = 0; c < pass->whole; c += BLOCK_COLS) {
        if (c % 128 == 0)
            group_ahead_fetch(&ahead, 2 * n_pairs, c / 2);
        for (int p = 0; p < n_pairs; p++) {
            const uint8_t *a = scales[2 * p], *b = scales[2 * p + 1];
            add_block(acc[p], n_tokens, codes[2 * p] + c / 2, codes[2 * p + 1] + c / 2,
                      pass->tables + a[c / BLOCK_COLS], pass->tables + b[c / BLOCK_COLS],
                      pass->ordered + c, pass->ordered_stride);
        }
    }
    for (int p = 0; p < n_pairs; p++)
        for (int t = 0; t < n_tokens; t++)
            for (int j = 0; j < 4; j++)
                _mm256_store_ps(sums[p][t][j], acc[p][t][j]);
    finish_rows(pass, sums, n_tokens, row, n_stored);
}

static TAMIS_ALWAYS_INLINE void nibble_tokens(const nibble_pass *pass, int n_tokens)
{
    int64_t row = pass->row_begin;
    for (; n_tokens == 1 && row + 4 <= pass->row_end; row += 4)
        nibble_rows(pass, 2, n_tokens, row, 4);
    for (; row + 2 <= pass->row_end; row += 2)
        nibble_rows(pass, 1, n_tokens, row, 2);
    if (row < pass->row_end)
        nibble_rows(pass, 1, n_tokens, row, 1);
}

TAMIS_KERNEL_linear(tamis_linear_nibbles_avx2)
{
    byte_tables tables[256];
    const int64_t whole = w->cols / BLOCK_COLS * BLOCK_COLS;
    const nibble_pass pass = {.w = w,
                              .tables = tables,
                              .x = x,
                              .ordered = scratch,
                              .x_stride = x_stride,
                              .ordered_stride = whole,
                              .whole = whole,
                              .y = y,
                              .y_stride = y_stride,
                              .row_begin = row_begin,
                              .row_end = row_end};
    fill_tables(tables);
    for (int64_t t = 0; t < n_tokens; t++)
        order_inputs(scratch + t * whole, x + t * x_stride, whole);
    if (n_tokens == 1)
        nibble_tokens(&pass, 1);
    else if (n_tokens == 2)
        nibble_tokens(&pass, 2);
    else
        nibble_tokens(&pass, 3);
}
#endif
