/*
 * Linear layers over FP4 in blocks, AVX2 (kernels.h, linear): sums of 16 products in integers.
 *
 * A table turns codes into bytes 2 value + 12, which are multiplied with digits of the inputs and
 * added in words (linear_f4_avx2.h says which); modulo 2^16 and 2^32 nothing is lost. Products are
 * made and added in turns, as few registers and the pipes that multiply like it. One token:
 * a pair of rows, sums in registers, and what comes next is decoded between the products, because a
 * processor looks ahead for less than two steps. More: 128 columns of a row are decoded once, and
 * all tokens of a tile follow, whose inputs of some columns lie in the first cache level.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_f4_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_TOKENS 24
#define TILE_ROWS   64
#define TILE_BYTES  22528 /* of inputs that a pass over the rows reads again and again */
#define TOKEN_ROWS  2
/* Of a unit times a scale, biased: times 2^31 and 2^24 such sums it is finite. */
#define MOST_EXPONENT 199

typedef struct f4_pass {
    const tamis_matrix *w;
    const f4_inputs *inputs; /* [step][token] */
    int64_t n_tokens, n_steps;
    int64_t whole;       /* steps of 128 columns that exist */
    int32_t least, most; /* exponents of the inputs' units; NaN: a large one */
    int32_t raise;       /* sums of fused rows are 2^raise times too large, ... */
    float lower;         /* ... which this, 2^-raise, undoes */
    float *y;
    int64_t y_stride, row_begin, row_end;
} f4_pass;

typedef struct f4_row {
    const uint8_t *codes, *scales;
    const uint8_t *next; /* codes that are asked for ahead; the last row names itself */
    bool fused;          /* whole steps: units times scales are formed as exponents */
} f4_row;

/* ---------------------------------------------------------------- weights */

static TAMIS_ALWAYS_INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Codes of vectors 2 part (low digits) and 2 part + 1 (high ones) of 128 columns. */
static TAMIS_ALWAYS_INLINE __m256i codes_of(const uint8_t *codes, int part)
{
    const __m256i a = load(codes), b = load(codes + 32);
    return part == 0 ? _mm256_unpacklo_epi64(a, b) : _mm256_unpackhi_epi64(a, b);
}

/* 2 value + 12 of the codes c of vector v. */
static TAMIS_ALWAYS_INLINE __m256i decode_vector(__m256i c, int v)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table =
        _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                         16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(table,
                               _mm256_and_si256(v % 2 == 0 ? c : _mm256_srli_epi16(c, 4), nibble));
}

/* 128 columns of a row. */
static TAMIS_ALWAYS_INLINE void decode(__m256i u[4], const uint8_t *codes)
{
    for (int v = 0; v < 4; v++)
        u[v] = decode_vector(codes_of(codes, v / 2), v);
}

/* The larger of `largest` and n bytes (a multiple of 4) less `low`, modulo 256. */
static TAMIS_ALWAYS_INLINE __m256i largest_above(__m256i largest, __m256i low, const uint8_t *bytes,
                                                 int64_t n)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        largest = _mm256_max_epu8(largest, _mm256_sub_epi8(load(bytes + i), low));
    for (; i < n; i += 4) {
        int32_t four;
        memcpy(&four, bytes + i, sizeof four);
        largest = _mm256_max_epu8(largest, _mm256_sub_epi8(_mm256_set1_epi32(four), low));
    }
    return largest;
}

/*
 * Whether, in the whole steps of n rows, every unit times a scale is a normal number, and no sum
 * times a unit overflows: then sum * unit, * scale within the fma, and sum * (unit * scale) are the
 * same, and an addition of exponents makes the product. All sums are multiples of that product's
 * least, so 2^raise more changes none of them, if no one overflows: 2^55 is left for columns. The
 * bytes 0 and 255 are no such scales.
 */
static bool are_fused(const f4_pass *pass, int64_t row, int64_t n)
{
    const tamis_matrix *w = pass->w;
    const int32_t least = pass->least < 0 ? 1 - pass->least : 1;
    const int32_t most = MOST_EXPONENT - pass->most - pass->raise;
    if (w->scale == NULL || w->scale_dtype != TAMIS_DTYPE_F8_E8M0 || w->block_cols != 32 ||
        least > most || pass->most > 96)
        return false;
    const __m256i low = _mm256_set1_epi8((char)least);
    __m256i largest = _mm256_setzero_si256();
    for (int64_t r = 0; r < n; r++)
        largest = largest_above(largest, low, tamis_scale_row(w, row + r), pass->whole * 4);
    const __m256i over = _mm256_subs_epu8(largest, _mm256_set1_epi8((char)(most - least)));
    return _mm256_testz_si256(over, over);
}

static TAMIS_ALWAYS_INLINE f4_row row_at(const f4_pass *pass, int64_t row, bool fused)
{
    const tamis_matrix *w = pass->w;
    f4_row r = {.codes = tamis_weight_row(w, row), .fused = fused};
    r.next = r.codes + (row + 1 < pass->row_end ? w->row_bytes : 0);
    r.scales = w->scale != NULL ? tamis_scale_row(w, row) : NULL;
    return r;
}

/* The scales of 4 blocks in the order of sums, 0 0 2 2 1 1 3 3: 2^24 times their bytes. */
static TAMIS_ALWAYS_INLINE __m256i exponents_of(const uint8_t *at)
{
    const __m256i pick =
        _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 1,
                         -1, -1, -1, 1, -1, -1, -1, 3, -1, -1, -1, 3);
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm256_shuffle_epi8(_mm256_set1_epi32(four), pick);
}

static __m256i scales_of_any(const f4_pass *pass, const uint8_t *scales, int64_t step)
{
    const tamis_matrix *w = pass->w;
    float of[4];
    for (int b = 0; b < 4; b++) {
        const int64_t c = step * F4_STEP_COLS + 32 * b;
        of[b] =
            scales != NULL && c < w->cols ? tamis_scale_decode(w, scales, c / w->block_cols) : 1.0f;
    }
    return _mm256_castps_si256(
        _mm256_setr_ps(of[0], of[0], of[2], of[2], of[1], of[1], of[3], of[3]));
}

/* Exponents if fused, else numbers. */
static TAMIS_ALWAYS_INLINE __m256i scales_of(const f4_pass *pass, const f4_row *row, bool fused,
                                             int64_t step)
{
    return fused ? exponents_of(row->scales + 4 * step) : scales_of_any(pass, row->scales, step);
}

/* The codes behind the whole steps, zeros behind them. */
static void copy_rest(uint8_t to[F4_STEP_COLS / 2], const f4_pass *pass, const f4_row *row)
{
    const int64_t begin = pass->whole * F4_STEP_COLS;
    memset(to, 0, F4_STEP_COLS / 2);
    memcpy(to, row->codes + begin / 2, (size_t)(pass->w->cols - begin + 1) / 2);
}

/* ---------------------------------------------------------------- sums */

/* Words of d0 and d2, of d2 and d0, and of d1. */
typedef struct f4_words {
    __m256i near, far, middle;
} f4_words;

/*
 * What was read through x before is done before what follows: gcc would else begin all products of
 * a step at once and spill them, or keep the inputs of several rows. Emits nothing.
 */
static TAMIS_ALWAYS_INLINE const f4_inputs *in_order(const f4_inputs *x, f4_words *t)
{
#if defined(__GNUC__)
    __asm__ volatile("" : "+r"(x), "+x"(t->near), "+x"(t->far), "+x"(t->middle));
#endif
    return x;
}

/* The same for codes that are decoded between products. */
static TAMIS_ALWAYS_INLINE const f4_inputs *decoded_in_order(const f4_inputs *x, __m256i *u)
{
#if defined(__GNUC__)
    __asm__ volatile("" : "+r"(x), "+x"(*u));
#endif
    return x;
}

static TAMIS_ALWAYS_INLINE __m256i times(__m256i u, const int8_t digits[32])
{
    return _mm256_maddubs_epi16(u, load(digits));
}

static TAMIS_ALWAYS_INLINE f4_words corrections_of(const f4_inputs *x)
{
    return (f4_words){load(x->correction), _mm256_setzero_si256(), load(x->middle_correction)};
}

/* Codes of vector v; far: the ones that are multiplied with x->far. */
static TAMIS_ALWAYS_INLINE void add_products(f4_words *t, __m256i u, __m256i far,
                                             const f4_inputs *x, int v)
{
    t->near = _mm256_add_epi16(t->near, times(u, x->near[v]));
    t->far = v == 0 ? times(far, x->far[v]) : _mm256_add_epi16(t->far, times(far, x->far[v]));
    t->middle = _mm256_add_epi16(t->middle, times(u, x->middle[v]));
}

/* acc += the products of a step; scales as scales_of gives them. */
static TAMIS_ALWAYS_INLINE __m256 add_step(__m256 acc, const f4_words *t, bool fused,
                                           __m256i scales, const f4_inputs *x)
{
    const __m256i outer = _mm256_add_epi16(t->near, t->far);
    const __m256i middle = _mm256_madd_epi16(t->middle, _mm256_set1_epi16(256));
    const __m256 sum = _mm256_cvtepi32_ps(_mm256_add_epi32(outer, middle));
    if (fused) /* (2^24 a + 2^24 b) / 2 */
        return _mm256_fmadd_ps(
            sum, _mm256_castsi256_ps(_mm256_avg_epu16(load(x->exponent), scales)), acc);
    return _mm256_fmadd_ps(_mm256_mul_ps(sum, _mm256_loadu_ps(x->unit)),
                           _mm256_castsi256_ps(scales), acc);
}

/* The sums of whole steps as they are. */
static TAMIS_ALWAYS_INLINE __m256 lowered(const f4_pass *pass, bool fused, __m256 acc)
{
    return fused ? _mm256_mul_ps(acc, _mm256_set1_ps(pass->lower)) : acc;
}

static TAMIS_ALWAYS_INLINE float sum_8(__m256 acc)
{
    return v16_sum((v16){acc, _mm256_setzero_ps()});
}

/* ---------------------------------------------------------------- one token */

/*
 * The products of a step of one row, u, which become the vectors of `next`, the codes of the step
 * that follows.
 */
static TAMIS_ALWAYS_INLINE f4_words token_step(__m256i u[4], const f4_inputs *x,
                                               const uint8_t *next)
{
    f4_words t = corrections_of(x);
    for (int v = 0; v < 4; v++) {
        x = in_order(x, &t);
        add_products(&t, u[v], u[v], x, v);
        u[v] = decode_vector(codes_of(next, v / 2), v);
        x = decoded_in_order(x, &u[v]);
    }
    t.far = swap_words(t.far);
    return t;
}

/* The columns behind the whole steps. */
static __m256 token_rest(const f4_pass *pass, const f4_row *row, __m256 acc)
{
    const f4_inputs *x = pass->inputs + pass->whole;
    uint8_t rest[F4_STEP_COLS / 2];
    __m256i u[4];
    copy_rest(rest, pass, row);
    decode(u, rest);
    const f4_words t = token_step(u, x, rest);
    return add_step(acc, &t, false, scales_of_any(pass, row->scales, pass->whole), x);
}

static TAMIS_ALWAYS_INLINE void token_rows(const f4_pass *pass, const f4_row *rows, int n_rows,
                                           bool fused, int64_t row)
{
    const group_ahead ahead = group_ahead_of(pass->w, row, n_rows, pass->row_end);
    __m256 acc[TOKEN_ROWS];
    __m256i u[4];
    if (pass->whole > 0)
        decode(u, rows[0].codes);
    for (int i = 0; i < n_rows; i++)
        acc[i] = _mm256_setzero_ps();
    for (int64_t step = 0; step < pass->whole; step++) {
        const int64_t at = step * (F4_STEP_COLS / 2);
        const f4_inputs *x = pass->inputs + step;
        const uint8_t *first =
            rows[0].codes + (step + 1 < pass->whole ? at + F4_STEP_COLS / 2 : at);
        group_ahead_fetch(&ahead, n_rows, at);
        for (int i = 0; i < n_rows; i++) {
            const f4_words t = token_step(u, x, i + 1 < n_rows ? rows[i + 1].codes + at : first);
            acc[i] = add_step(acc[i], &t, fused, scales_of(pass, &rows[i], fused, step), x);
        }
    }
    for (int i = 0; i < n_rows; i++) {
        acc[i] = lowered(pass, fused, acc[i]);
        if (pass->whole < pass->n_steps)
            acc[i] = token_rest(pass, &rows[i], acc[i]);
        pass->y[row - pass->row_begin + i] = sum_8(acc[i]);
    }
}

static TAMIS_ALWAYS_INLINE void token_group(const f4_pass *pass, int64_t row, int n_rows,
                                            bool fused)
{
    f4_row rows[TOKEN_ROWS];
    for (int i = 0; i < n_rows; i++)
        rows[i] = row_at(pass, row + i, fused);
    if (fused)
        token_rows(pass, rows, n_rows, true, row);
    else
        token_rows(pass, rows, n_rows, false, row);
}

static void one_token(const f4_pass *pass)
{
    for (int64_t row = pass->row_begin, end; row < pass->row_end; row = end) {
        end = pass->row_end - row < TILE_ROWS ? pass->row_end : row + TILE_ROWS;
        const bool fused = are_fused(pass, row, end - row);
        int64_t r = row;
        for (; r + TOKEN_ROWS <= end; r += TOKEN_ROWS)
            token_group(pass, r, TOKEN_ROWS, fused || are_fused(pass, r, TOKEN_ROWS));
        for (; r < end; r++)
            token_group(pass, r, 1, fused || are_fused(pass, r, 1));
    }
}

/* ---------------------------------------------------------------- a tile of tokens */

/* One step of a row with n tokens; sums: [token][8]. */
static TAMIS_ALWAYS_INLINE void tile_step(const f4_inputs *x, int64_t n, const uint8_t *codes,
                                          bool fused, __m256i scales, float *sums)
{
    __m256i u[4], far[4];
    decode(u, codes);
    for (int v = 0; v < 4; v++)
        far[v] = swap_words(u[v]);
    for (int64_t i = 0; i < n; i++) {
        const f4_inputs *in = x + i;
        f4_words t = corrections_of(in);
        for (int v = 0; v < 4; v++) {
            in = in_order(in, &t);
            add_products(&t, u[v], far[v], in, v);
        }
        _mm256_store_ps(sums + 8 * i,
                        add_step(_mm256_load_ps(sums + 8 * i), &t, fused, scales, in));
    }
}

/* Whole steps [begin, end) of a row. */
static TAMIS_ALWAYS_INLINE void tile_steps(const f4_pass *pass, const f4_row *row, bool fused,
                                           int64_t n, int64_t begin, int64_t end, float *sums)
{
    for (int64_t step = begin; step < end; step++) {
        const int64_t at = step * (F4_STEP_COLS / 2);
        _mm_prefetch(row->next + at, _MM_HINT_T0);
        tile_step(pass->inputs + step * n, n, row->codes + at, fused,
                  scales_of(pass, row, fused, step), sums);
    }
}

/* Two and three tokens know their number: their loops over tokens are none. */
static void tile_row(const f4_pass *pass, const f4_row *row, int64_t begin, int64_t end,
                     float *sums)
{
    const int64_t n = pass->n_tokens, stop = end < pass->whole ? end : pass->whole;
    if (!row->fused)
        tile_steps(pass, row, false, n, begin, stop, sums);
    else if (n == 2)
        tile_steps(pass, row, true, 2, begin, stop, sums);
    else if (n == 3)
        tile_steps(pass, row, true, 3, begin, stop, sums);
    else
        tile_steps(pass, row, true, n, begin, stop, sums);
    if (end == pass->n_steps)
        for (int64_t i = 0; i < n; i++)
            _mm256_store_ps(sums + 8 * i, lowered(pass, row->fused, _mm256_load_ps(sums + 8 * i)));
    if (end > pass->whole) {
        uint8_t rest[F4_STEP_COLS / 2];
        copy_rest(rest, pass, row);
        tile_step(pass->inputs + pass->whole * n, n, rest, false,
                  scales_of_any(pass, row->scales, pass->whole), sums);
    }
}

/* Up to TILE_ROWS rows from `row` on, chunks of steps outside, so that inputs are read once. */
static void tile_block(const f4_pass *pass, int64_t row, int64_t n_rows, float *sums)
{
    const int64_t n = pass->n_tokens, fit = TILE_BYTES / (n * (int64_t)sizeof(f4_inputs));
    const int64_t chunk = fit < 1 ? 1 : fit;
    f4_row rows[TILE_ROWS];
    const bool fused = are_fused(pass, row, n_rows);
    for (int64_t r = 0; r < n_rows; r++)
        rows[r] = row_at(pass, row + r, fused || are_fused(pass, row + r, 1));
    memset(sums, 0, (size_t)(8 * n * n_rows) * sizeof *sums);
    for (int64_t step = 0; step < pass->n_steps; step += chunk) {
        const int64_t end = pass->n_steps - step < chunk ? pass->n_steps : step + chunk;
        for (int64_t r = 0; r < n_rows; r++)
            tile_row(pass, &rows[r], step, end, sums + 8 * n * r);
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t r = 0; r < n_rows; r++)
            pass->y[t * pass->y_stride + row - pass->row_begin + r] =
                sum_8(_mm256_load_ps(sums + 8 * (n * r + t)));
}

static void tile_tokens(const f4_pass *pass, float *sums)
{
    for (int64_t row = pass->row_begin; row < pass->row_end; row += TILE_ROWS) {
        const int64_t left = pass->row_end - row;
        tile_block(pass, row, left < TILE_ROWS ? left : TILE_ROWS, sums);
    }
}

/* ---------------------------------------------------------------- kernel */

/* The exponents of the inputs that are there. */
static void units_range(f4_pass *pass)
{
    __m256i low = _mm256_set1_epi32(INT32_MAX), high = _mm256_set1_epi32(INT32_MIN);
    for (int64_t i = 0; i < pass->n_steps * pass->n_tokens; i++) {
        low = _mm256_min_epi32(low, load(pass->inputs[i].exponent));
        high = _mm256_max_epi32(high, load(pass->inputs[i].exponent));
    }
    int32_t of[2][8];
    _mm256_storeu_si256((__m256i *)of[0], low);
    _mm256_storeu_si256((__m256i *)of[1], high);
    pass->least = INT32_MAX;
    pass->most = INT32_MIN;
    for (int i = 0; i < 8; i++) {
        pass->least = of[0][i] < pass->least ? of[0][i] : pass->least;
        pass->most = of[1][i] > pass->most ? of[1][i] : pass->most;
    }
}

/* Exponents so that none is below zero, 2^24 times. */
static void raise_units(f4_pass *pass, f4_inputs *inputs)
{
    pass->raise = pass->least < 0 ? -pass->least : 0;
    pass->lower = ldexpf(1.0f, -pass->raise);
    const __m256i raise = _mm256_set1_epi32(pass->raise);
    for (int64_t i = 0; i < pass->n_steps * pass->n_tokens; i++)
        _mm256_storeu_si256(
            (__m256i *)inputs[i].exponent,
            _mm256_slli_epi32(_mm256_add_epi32(load(inputs[i].exponent), raise), 24));
}

TAMIS_KERNEL_linear(tamis_linear_f4_avx2)
{
    f4_inputs *inputs = (f4_inputs *)(void *)scratch;
    f4_pass pass = {.w = w,
                    .inputs = inputs,
                    .n_steps = (w->cols + F4_STEP_COLS - 1) / F4_STEP_COLS,
                    .whole = w->cols / F4_STEP_COLS,
                    .y_stride = y_stride,
                    .row_begin = row_begin,
                    .row_end = row_end};
    for (int64_t first = 0; first < n_tokens; first += TILE_TOKENS) {
        const int64_t left = n_tokens - first, n = left < TILE_TOKENS ? left : TILE_TOKENS;
        pass.n_tokens = n;
        pass.y = y + first * y_stride;
        for (int64_t t = 0; t < n; t++)
            for (int64_t s = 0; s < pass.n_steps; s++)
                tamis_f4_inputs_avx2(&inputs[s * n + t], x + (first + t) * x_stride,
                                     s * F4_STEP_COLS, w->cols, n > 1);
        units_range(&pass);
        raise_units(&pass, inputs);
        if (n == 1)
            one_token(&pass);
        else
            tile_tokens(&pass, (float *)(void *)(inputs + pass.n_steps * n));
    }
}
#endif
