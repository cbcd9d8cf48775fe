/*
 * Linear layers over integers for many tokens, as a matrix product, AVX2.
 *
 * Bytes are widened to words and vpmaddwd adds two products in 32 bits, which holds even
 * 2 * (-128 * -128). Two of these and their two additions per 32 products are as many as the chain
 * of vpmaddubsw, vpmaddwd and addition with its correction of signs would need.
 *
 * A register holds two columns of 8 rows, an input is two columns of one token in all lanes, a tile
 * is 16 rows x 6 tokens. A block of COL_BLOCK columns of 16 rows is widened once and stays in the
 * first cache level while all tokens pass; inputs are widened once per call.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define COL_BLOCK 512
#define COL_STEP  16 /* columns that packing takes at a time */

typedef struct i8_product {
    const tamis_matrix *w;
    const int16_t *words; /* inputs [token][word_stride], zeros behind the last column */
    int64_t word_stride;
    int64_t n_tokens, n_tiles;
    int32_t *sums;       /* [token][PANEL_ROWS] */
    const uint8_t *next; /* weights of the next panel */
    int64_t next_lines;
} i8_product;

/* A block of a panel, as it is read. */
typedef struct i8_panel {
    _Alignas(64) int16_t pair[COL_BLOCK / 2][PANEL_ROWS][2];
} i8_panel;

/* 16 rows of bytes, which do not lie a power of two apart: see linear_pack_avx2.c. */
typedef struct i8_stage {
    _Alignas(64) uint8_t byte[PANEL_ROWS][COL_BLOCK + 64];
} i8_stage;

/* ---------------------------------------------------------------- weights */

/* Rows 2 i and 2 i + 1 of the stage out of the pair's n bytes. */
static void stage_nibbles(uint8_t *even, uint8_t *odd, const uint8_t *from, int64_t n)
{
    const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    int64_t c = 0;
    for (; c + 32 <= n; c += 32) {
        const __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)(from + c));
        const __m256i lower = _mm256_xor_si256(_mm256_and_si256(both, low), eight);
        const __m256i upper =
            _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), low), eight);
        _mm256_store_si256((__m256i *)(void *)(even + c), _mm256_sub_epi8(lower, eight));
        _mm256_store_si256((__m256i *)(void *)(odd + c), _mm256_sub_epi8(upper, eight));
    }
    for (; c < n; c++) {
        even[c] = (uint8_t)tamis_i4_decode(from, 0, c);
        odd[c] = (uint8_t)tamis_i4_decode(from, 1, c);
    }
}

static void stage_bytes(uint8_t *to, const uint8_t *from, int64_t n)
{
    int64_t c = 0;
    for (; c + 32 <= n; c += 32)
        _mm256_store_si256((__m256i *)(void *)(to + c),
                           _mm256_loadu_si256((const __m256i *)(const void *)(from + c)));
    memcpy(to + c, from + c, (size_t)(n - c));
}

/* Columns [begin, begin + n) of the panel's rows; rows behind the matrix repeat its last ones. */
static void stage_rows(i8_stage *to, const tamis_matrix *w, int64_t row, int64_t begin, int64_t n)
{
    const int64_t padded = (n + COL_STEP - 1) / COL_STEP * COL_STEP;
    for (int64_t r = 0; r < PANEL_ROWS; r++) {
        const int64_t at = row + r < w->rows ? row + r : w->rows - 1;
        if (w->dtype != TAMIS_DTYPE_I4)
            stage_bytes(to->byte[r], tamis_weight_row(w, at) + begin, n);
        else if (r % 2 == 0)
            stage_nibbles(to->byte[r], to->byte[r + 1], tamis_weight_row(w, at) + begin, n);
    }
    for (int64_t r = 0; r < PANEL_ROWS; r++)
        memset(to->byte[r] + n, 0, (size_t)(padded - n));
}

/* COL_STEP columns: bytes are transposed two at a time, then widened. */
static TAMIS_ALWAYS_INLINE void pack_step(i8_panel *to, const i8_stage *from, int64_t c)
{
    __m256i v[8], a[8], b[8];
    for (int r = 0; r < 8; r++)
        v[r] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(from->byte[r] + c))),
            _mm_load_si128((const __m128i *)(from->byte[r + 8] + c)), 1);
    for (int r = 0; r < 4; r++) { /* pairs 0-3 and 4-7 of two rows */
        a[r] = _mm256_unpacklo_epi16(v[2 * r], v[2 * r + 1]);
        a[4 + r] = _mm256_unpackhi_epi16(v[2 * r], v[2 * r + 1]);
    }
    for (int r = 0; r < 4; r++) { /* two pairs of four rows */
        b[2 * r] = _mm256_unpacklo_epi32(a[2 * r], a[2 * r + 1]);
        b[2 * r + 1] = _mm256_unpackhi_epi32(a[2 * r], a[2 * r + 1]);
    }
    for (int q = 0; q < 8; q++) {
        const int k = q / 4 * 4 + q / 2 % 2;
        const __m256i rows = q % 2 == 0 ? _mm256_unpacklo_epi64(b[k], b[k + 2])
                                        : _mm256_unpackhi_epi64(b[k], b[k + 2]);
        __m256i *pair = (__m256i *)(void *)to->pair[c / 2 + q];
        _mm256_store_si256(pair, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(rows)));
        _mm256_store_si256(pair + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(rows, 1)));
    }
}

static void pack_block(i8_panel *to, const tamis_matrix *w, int64_t row, int64_t begin, int64_t n)
{
    i8_stage stage;
    stage_rows(&stage, w, row, begin, n);
    for (int64_t c = 0; c < n; c += COL_STEP)
        pack_step(to, &stage, c);
}

/* ---------------------------------------------------------------- product */

/* See in_register of simd_avx2.h. */
static TAMIS_ALWAYS_INLINE __m256i integers_in_register(__m256i v)
{
#if defined(__GNUC__)
    __asm__("" : "+x"(v));
#endif
    return v;
}

/* sums += n_pairs pairs of columns of 16 rows times n tokens. */
static TAMIS_ALWAYS_INLINE void tile(int n, int32_t *sums, const i8_panel *w, const int16_t *words,
                                     int64_t word_stride, int64_t n_pairs)
{
    __m256i acc[PANEL_TOKENS][2];
    for (int t = 0; t < n; t++)
        for (int half = 0; half < 2; half++)
            acc[t][half] = _mm256_load_si256((__m256i *)(sums + t * PANEL_ROWS + 8 * half));
    for (int64_t q = 0; q < n_pairs; q++) {
        const __m256i *pair = (const __m256i *)(const void *)w->pair[q];
        const __m256i low = integers_in_register(_mm256_load_si256(pair));
        const __m256i high = integers_in_register(_mm256_load_si256(pair + 1));
        for (int t = 0; t < n; t++) {
            int32_t two;
            memcpy(&two, words + t * word_stride + 2 * q, sizeof two);
            const __m256i in = _mm256_set1_epi32(two);
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(low, in));
            acc[t][1] = _mm256_add_epi32(acc[t][1], _mm256_madd_epi16(high, in));
        }
    }
    for (int t = 0; t < n; t++)
        for (int half = 0; half < 2; half++)
            _mm256_store_si256((__m256i *)(sums + t * PANEL_ROWS + 8 * half), acc[t][half]);
}

/* A block of n columns from `begin` on against all tokens. */
static void multiply_block(i8_product *p, const i8_panel *w, int64_t begin, int64_t n,
                           int64_t lines_per_tile)
{
    for (int64_t i = 0; i < p->n_tiles; i++) {
        const int64_t first = i * p->n_tokens / p->n_tiles;
        const int64_t tokens = (i + 1) * p->n_tokens / p->n_tiles - first;
        const int16_t *words = p->words + first * p->word_stride + begin;
        int32_t *sums = p->sums + first * PANEL_ROWS;
        int64_t lines = lines_per_tile < p->next_lines ? lines_per_tile : p->next_lines;
        for (p->next_lines -= lines; lines > 0; lines--, p->next += 64)
            _mm_prefetch((const char *)p->next, _MM_HINT_T0);
#define CALL(n_tokens) tile(n_tokens, sums, w, words, p->word_stride, (n + 1) / 2)
        WITH_PANEL_TOKENS(tokens, CALL)
#undef CALL
    }
}

static void multiply_panel(i8_product *p, int64_t row)
{
    const int64_t cols = p->w->cols, n_blocks = (cols + COL_BLOCK - 1) / COL_BLOCK;
    const int64_t lines_per_tile = p->next_lines / (n_blocks * p->n_tiles) + 1;
    i8_panel panel;
    memset(p->sums, 0, (size_t)(p->n_tokens * PANEL_ROWS) * sizeof *p->sums);
    for (int64_t begin = 0; begin < cols; begin += COL_BLOCK) {
        const int64_t n = cols - begin < COL_BLOCK ? cols - begin : COL_BLOCK;
        pack_block(&panel, p->w, row, begin, n);
        multiply_block(p, &panel, begin, n, lines_per_tile);
    }
}

/* ---------------------------------------------------------------- inputs, outputs */

/* n tokens to words, zeros up to `stride`. */
static void widen_inputs(int16_t *to, int64_t stride, const int8_t *x, int64_t x_stride, int64_t n,
                         int64_t cols)
{
    for (int64_t t = 0; t < n; t++, to += stride, x += x_stride) {
        int64_t c = 0;
        for (; c + 16 <= cols; c += 16)
            _mm256_store_si256((__m256i *)(void *)(to + c),
                               _mm256_cvtepi8_epi16(load_8_words(x + c)));
        for (; c < cols; c++)
            to[c] = x[c];
        memset(to + c, 0, (size_t)(stride - c) * sizeof *to);
    }
}

/* Sums of 4 rows to f32; the sum with the bias is exact in double and rounded once. */
static TAMIS_ALWAYS_INLINE __m128 sums_to_f32(__m128i sum, const int32_t *bias, __m128i use)
{
    if (!bias)
        return _mm_cvtepi32_ps(sum);
    const __m256d more = _mm256_cvtepi32_pd(_mm_maskload_epi32(bias, use));
    return _mm256_cvtpd_ps(_mm256_add_pd(_mm256_cvtepi32_pd(sum), more));
}

/* n rows of the panel from `first` on; row_scale, bias and y belong to the first of them. */
static void store_panel(const i8_product *p, int64_t first, int64_t n, float *y, int64_t y_stride,
                        const float *row_scale, const int32_t *bias, const float *token_scale)
{
    for (int64_t r = 0; r < n; r += 4) {
        const __m128i use =
            _mm_cmpgt_epi32(_mm_set1_epi32((int)(n - r)), _mm_setr_epi32(0, 1, 2, 3));
        const __m128 scale = _mm_maskload_ps(row_scale + r, use);
        for (int64_t t = 0; t < p->n_tokens; t++) {
            const int32_t *sum = p->sums + t * PANEL_ROWS + first + r;
            const __m128i four = _mm_maskload_epi32(sum, use);
            __m128 v = _mm_mul_ps(sums_to_f32(four, bias ? bias + r : NULL, use), scale);
            if (token_scale)
                v = _mm_mul_ps(v, _mm_set1_ps(token_scale[t]));
            _mm_maskstore_ps(y + t * y_stride + r, use, v);
        }
    }
}

/* Rows [row_begin, row_end) against the widened tokens. Panels of I4 begin at a whole pair. */
static void multiply_rows(i8_product *p, float *y, int64_t y_stride, const float *token_scale,
                          const float *row_scale, const int32_t *bias, int64_t row_begin,
                          int64_t row_end)
{
    int64_t panel = row_begin;
    if (p->w->dtype == TAMIS_DTYPE_I4)
        panel -= row_begin % 2;
    for (int64_t row = row_begin; row < row_end; row = panel) {
        const int64_t first = row - panel, after = panel + PANEL_ROWS;
        const int64_t end = row_end < after ? row_end : after;
        p->next = tamis_weight_row(p->w, end);
        p->next_lines = end == row_end ? 0 : (p->next - tamis_weight_row(p->w, panel)) / 64;
        multiply_panel(p, panel);
        store_panel(p, first, end - row, y + (row - row_begin), y_stride, row_scale + row,
                    bias ? bias + row : NULL, token_scale);
        panel = after;
    }
}

TAMIS_KERNEL_linear_i8(tamis_linear_i8_panels_avx2)
{
    const int64_t largest = (int64_t)TAMIS_LINEAR_TOKENS(w->cols);
    const int64_t n_blocks = (n_tokens + largest - 1) / largest;
    int16_t *words = (int16_t *)(void *)(scratch + largest * PANEL_ROWS);
    i8_product p = {.w = w,
                    .words = words,
                    .word_stride = w->cols + 64 - w->cols % 32,
                    .sums = (int32_t *)(void *)scratch};
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * n_tokens / n_blocks;
        p.n_tokens = (block + 1) * n_tokens / n_blocks - first;
        p.n_tiles = (p.n_tokens + PANEL_TOKENS - 1) / PANEL_TOKENS;
        widen_inputs(words, p.word_stride, x + first * x_stride, x_stride, p.n_tokens, w->cols);
        multiply_rows(&p, y + first * y_stride, y_stride, token_scale ? token_scale + first : NULL,
                      row_scale, bias, row_begin, row_end);
    }
}
#endif
