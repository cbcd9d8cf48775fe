/*
 * Linear layers over integers for many tokens, as a matrix product, AVX2.
 *
 * w0 x0 + w1 x1 = (w0 + x1) (w1 + x0) - w0 w1 - x1 x0: one product does the work of two. The sums
 * in brackets have 9 bits, vpmaddwd adds two such products in 32, and the last two terms are sums
 * over a row or a token alone, formed once. That makes one multiplication and three additions for
 * 32 pairs of bytes, which are spread evenly over the vector units; vpmaddubsw with vpmaddwd needs
 * two multiplications and saturates at the extremes. Sums are modulo 2^32: what leaves 32 bits on
 * the way comes back.
 *
 * A register holds 8 rows; four columns of them are two registers, (w0, w2) and (w1, w3) as words,
 * and four columns of a token are (x1, x3) and (x0, x2) in all lanes. A tile is 16 rows x 4 tokens.
 * A block of COL_BLOCK columns of 16 rows is widened once and stays in the first cache level while
 * all tokens pass; inputs are widened once per call.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/lowbit_avx2.h"
#include "kernels/x86/table_x86.h"

#define COL_BLOCK   512
#define COL_STEP    16 /* columns that packing takes at a time */
#define TILE_TOKENS 4

typedef struct i8_product {
    const tamis_matrix *w;
    int16_t *words; /* inputs [token][word_stride], x1 x3 x0 x2 of four, zeros behind the last */
    int64_t word_stride;
    int64_t n_tokens, n_tiles;
    int32_t *sums;                   /* [token][PANEL_ROWS] */
    int32_t *own;                    /* [token]: sum of x0 x1 */
    int32_t own_of_rows[PANEL_ROWS]; /* sum of w0 w1 */
    const uint8_t *next;             /* weights of the next panel */
    int64_t next_lines;
} i8_product;

/* A block of a panel, as it is read: for four columns (w0, w2) of all rows, then (w1, w3). */
typedef struct i8_panel {
    _Alignas(64) int16_t four[COL_BLOCK / 4][2][PANEL_ROWS][2];
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

/* 16 bytes of two rows, each four columns c0 c1 c2 c3 as c0 c2 c1 c3. */
static TAMIS_ALWAYS_INLINE __m256i load_rows(const i8_stage *s, int a, int b, int64_t c)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    const __m256i both = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(const void *)(s->byte[a] + c))),
        _mm_load_si128((const __m128i *)(const void *)(s->byte[b] + c)), 1);
    return _mm256_shuffle_epi8(both, order);
}

/* COL_STEP columns: bytes are transposed two at a time, then widened. own += sum of w0 w1. */
static TAMIS_ALWAYS_INLINE void pack_step(i8_panel *to, __m256i own[2], const i8_stage *from,
                                          int64_t c)
{
    __m256i v[8], a[8], b[8], word[8][2];
    for (int r = 0; r < 8; r++)
        v[r] = load_rows(from, r, r + 8, c);
    for (int r = 0; r < 4; r++) { /* pairs of columns 0-3 and 4-7 of two rows */
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
        __m256i *at = (__m256i *)(void *)to->four[c / 4 + q / 2][q % 2];
        word[q][0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(rows));
        word[q][1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(rows, 1));
        for (int half = 0; half < 2; half++) {
            _mm256_store_si256(at + half, word[q][half]);
            if (q % 2 == 1)
                own[half] = _mm256_add_epi32(own[half],
                                             _mm256_madd_epi16(word[q - 1][half], word[q][half]));
        }
    }
}

/* Columns [begin, begin + n); the rows' own products are added to p's. */
static void pack_block(i8_panel *to, i8_product *p, int64_t row, int64_t begin, int64_t n)
{
    __m256i *rows = (__m256i *)(void *)p->own_of_rows;
    __m256i own[2] = {_mm256_loadu_si256(rows), _mm256_loadu_si256(rows + 1)};
    i8_stage stage;
    stage_rows(&stage, p->w, row, begin, n);
    for (int64_t c = 0; c < n; c += COL_STEP)
        pack_step(to, own, &stage, c);
    _mm256_storeu_si256(rows, own[0]);
    _mm256_storeu_si256(rows + 1, own[1]);
}

/* ---------------------------------------------------------------- product */

/* A value in a register, here and no sooner. Emits nothing. */
static TAMIS_ALWAYS_INLINE __m256i in_order(__m256i v)
{
#if defined(__GNUC__)
    __asm__ volatile("" : "+x"(v));
#endif
    return v;
}

/*
 * acc + v, here and in the register of acc. Left alone, the compiler forms all products of a column
 * before it adds them, and there is a register for one.
 */
static TAMIS_ALWAYS_INLINE __m256i add_in_place(__m256i acc, __m256i v)
{
#if defined(__GNUC__)
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(acc) : "x"(v));
    return acc;
#else
    return _mm256_add_epi32(acc, v);
#endif
}

/* 4 bytes in all lanes. */
static TAMIS_ALWAYS_INLINE __m256i two_words(const int16_t *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm256_set1_epi32(two);
}

/* sums += n_fours times four columns of 16 rows and n tokens, the own products among them. */
static TAMIS_ALWAYS_INLINE void tile(int n, int32_t *sums, const i8_panel *w, const int16_t *words,
                                     int64_t word_stride, int64_t n_fours)
{
    __m256i acc[TILE_TOKENS][2];
    for (int t = 0; t < n; t++)
        for (int half = 0; half < 2; half++)
            acc[t][half] = _mm256_load_si256((__m256i *)(sums + t * PANEL_ROWS + 8 * half));
    for (int64_t q = 0; q < n_fours; q++) {
        const __m256i *four = (const __m256i *)(const void *)w->four[q];
        __m256i even[2], odd[2];
        for (int half = 0; half < 2; half++) {
            even[half] = in_order(_mm256_load_si256(four + half));
            odd[half] = in_order(_mm256_load_si256(four + 2 + half));
        }
        for (int t = 0; t < n; t++) {
            const __m256i to_even = in_order(two_words(words + t * word_stride + 4 * q));
            const __m256i to_odd = in_order(two_words(words + t * word_stride + 4 * q + 2));
            for (int half = 0; half < 2; half++) {
                const __m256i a = _mm256_add_epi16(even[half], to_even);
                const __m256i b = _mm256_add_epi16(odd[half], to_odd);
                acc[t][half] = add_in_place(acc[t][half], _mm256_madd_epi16(a, b));
            }
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
        if (tokens == 4)
            tile(4, sums, w, words, p->word_stride, (n + 3) / 4);
        else if (tokens == 3)
            tile(3, sums, w, words, p->word_stride, (n + 3) / 4);
        else if (tokens == 2)
            tile(2, sums, w, words, p->word_stride, (n + 3) / 4);
        else
            tile(1, sums, w, words, p->word_stride, (n + 3) / 4);
    }
}

static void multiply_panel(i8_product *p, int64_t row)
{
    const int64_t cols = p->w->cols, n_blocks = (cols + COL_BLOCK - 1) / COL_BLOCK;
    const int64_t lines_per_tile = p->next_lines / (n_blocks * p->n_tiles) + 1;
    i8_panel panel;
    memset(p->sums, 0, (size_t)(p->n_tokens * PANEL_ROWS) * sizeof *p->sums);
    memset(p->own_of_rows, 0, sizeof p->own_of_rows);
    for (int64_t begin = 0; begin < cols; begin += COL_BLOCK) {
        const int64_t n = cols - begin < COL_BLOCK ? cols - begin : COL_BLOCK;
        pack_block(&panel, p, row, begin, n);
        multiply_block(p, &panel, begin, n, lines_per_tile);
    }
}

/* ---------------------------------------------------------------- inputs, outputs */

/* 16 columns of a token to words, and their own products, twice, added to *own. */
static TAMIS_ALWAYS_INLINE void widen_16(int16_t *to, __m256i *own, __m128i bytes)
{
    const __m128i order = _mm_setr_epi8(1, 3, 0, 2, 5, 7, 4, 6, 9, 11, 8, 10, 13, 15, 12, 14);
    const __m256i words = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
    _mm256_storeu_si256((__m256i *)(void *)to, words);
    *own = _mm256_add_epi32(*own, _mm256_madd_epi16(words, _mm256_shuffle_epi32(words, 0xb1)));
}

/* The tokens to words, zeros up to the stride. */
static void widen_inputs(const i8_product *p, const int8_t *x, int64_t x_stride)
{
    const int64_t cols = p->w->cols, whole = cols / 16 * 16;
    for (int64_t t = 0; t < p->n_tokens; t++, x += x_stride) {
        int16_t *to = p->words + t * p->word_stride;
        __m256i own = _mm256_setzero_si256();
        for (int64_t c = 0; c < whole; c += 16)
            widen_16(to + c, &own, load_8_words(x + c));
        if (whole < cols)
            widen_16(to + whole, &own, bytes_load_up_to(x + whole, cols - whole));
        p->own[t] = sum_of_8(own) / 2;
    }
}

/* Sum plus bias, exact in double and rounded once. */
static TAMIS_ALWAYS_INLINE __m128 biased_4(__m128i sum, __m128i bias)
{
    return _mm256_cvtpd_ps(_mm256_add_pd(_mm256_cvtepi32_pd(sum), _mm256_cvtepi32_pd(bias)));
}

static TAMIS_ALWAYS_INLINE __m256 biased_8(__m256i sum, __m256i bias)
{
    const __m128 high =
        biased_4(_mm256_extracti128_si256(sum, 1), _mm256_extracti128_si256(bias, 1));
    return _mm256_set_m128(high,
                           biased_4(_mm256_castsi256_si128(sum), _mm256_castsi256_si128(bias)));
}

/*
 * n rows of the panel from `first` on; row_scale, bias and y belong to the first of them. The rows
 * of y are often a large power of two apart: each is visited once.
 */
static void store_panel(const i8_product *p, int64_t first, int64_t n, float *y, int64_t y_stride,
                        const float *row_scale, const int32_t *bias, const float *token_scale)
{
    __m256i use[2], own[2], more[2];
    __m256 scale[2];
    for (int half = 0; half < 2; half++) {
        use[half] = first_lanes(n - 8 * half);
        own[half] = _mm256_maskload_epi32(p->own_of_rows + first + 8 * half, use[half]);
        scale[half] = _mm256_maskload_ps(row_scale + 8 * half, use[half]);
        if (bias)
            more[half] = _mm256_maskload_epi32(bias + 8 * half, use[half]);
    }
    for (int64_t t = 0; t < p->n_tokens; t++)
        for (int half = 0; half < 2; half++) {
            const int32_t *from = p->sums + t * PANEL_ROWS + first + 8 * half;
            const __m256i all = _mm256_maskload_epi32(from, use[half]);
            const __m256i sum =
                _mm256_sub_epi32(all, _mm256_add_epi32(_mm256_set1_epi32(p->own[t]), own[half]));
            __m256 v = bias ? biased_8(sum, more[half]) : _mm256_cvtepi32_ps(sum);
            v = _mm256_mul_ps(v, scale[half]);
            if (token_scale)
                v = _mm256_mul_ps(v, _mm256_set1_ps(token_scale[t]));
            _mm256_maskstore_ps(y + t * y_stride + 8 * half, use[half], v);
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
    int32_t *sums = (int32_t *)(void *)scratch, *own = sums + largest * PANEL_ROWS;
    i8_product p = {.w = w,
                    .words = (int16_t *)(void *)(own + largest),
                    .word_stride = w->cols + 64 - w->cols % 32,
                    .sums = sums,
                    .own = own};
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * n_tokens / n_blocks;
        p.n_tokens = (block + 1) * n_tokens / n_blocks - first;
        p.n_tiles = (p.n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
        widen_inputs(&p, x + first * x_stride, x_stride);
        multiply_rows(&p, y + first * y_stride, y_stride, token_scale ? token_scale + first : NULL,
                      row_scale, bias, row_begin, row_end);
    }
}
#endif
