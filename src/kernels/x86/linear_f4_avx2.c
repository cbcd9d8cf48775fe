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
#define STEP_BYTES  (F4_STEP_COLS / 2)
/* Of a unit times a scale, biased: times 2^31 and 2^24 such sums it is finite. */
#define MOST_EXPONENT 199

/* What all units of a call have in common; the inputs lie behind it in the scratch. */
typedef struct f4_units {
    _Alignas(64) int32_t least, most; /* exponents; NaN: a large one */
    int32_t raise;                    /* sums of fused rows are 2^raise times too large, ... */
    float lower;                      /* ... which this, 2^-raise, undoes */
} f4_units;

typedef struct f4_pass {
    const tamis_matrix *w;
    f4_units units;
    const f4_inputs *inputs; /* [step][token] */
    int64_t n_tokens, n_steps;
    int64_t whole; /* steps of 128 columns that exist */
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

typedef struct decoder {
    __m256i nibble, table;
} decoder;

static TAMIS_ALWAYS_INLINE decoder decoder_make(void)
{
    const __m256i table =
        _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                         16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return (decoder){integers_in_register(_mm256_set1_epi8(15)), integers_in_register(table)};
}

/* 128 columns of a row: 2 value + 12. */
static TAMIS_ALWAYS_INLINE void decode(__m256i u[4], const uint8_t *codes, const decoder *k)
{
    const __m256i a = load(codes), b = load(codes + 32);
    for (int part = 0; part < 2; part++) {
        const __m256i c = part == 0 ? _mm256_unpacklo_epi64(a, b) : _mm256_unpackhi_epi64(a, b);
        u[2 * part] = _mm256_shuffle_epi8(k->table, _mm256_and_si256(c, k->nibble));
        u[2 * part + 1] =
            _mm256_shuffle_epi8(k->table, _mm256_and_si256(_mm256_srli_epi16(c, 4), k->nibble));
    }
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
    const int32_t least = pass->units.least < 0 ? 1 - pass->units.least : 1;
    const int32_t most = MOST_EXPONENT - pass->units.most - pass->units.raise;
    if (w->scale == NULL || w->scale_dtype != TAMIS_DTYPE_F8_E8M0 || w->block_cols != 32 ||
        least > most || pass->units.most > 96)
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
static void copy_rest(uint8_t to[STEP_BYTES], const f4_pass *pass, const f4_row *row)
{
    const int64_t begin = pass->whole * F4_STEP_COLS;
    memset(to, 0, STEP_BYTES);
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
    return fused ? _mm256_mul_ps(acc, _mm256_set1_ps(pass->units.lower)) : acc;
}

static TAMIS_ALWAYS_INLINE float sum_8(__m256 acc)
{
    return v16_sum((v16){acc, _mm256_setzero_ps()});
}

/* ---------------------------------------------------------------- one token */

/*
 * The products of a step of one row, u, which become the vectors of `next`, the codes of the step
 * that follows. Compilers spill some of u or a constant of the other form as the code around it
 * changes: up to 8 % slower.
 */
static TAMIS_ALWAYS_INLINE f4_words token_step(__m256i u[4], const f4_inputs *x,
                                               const uint8_t *next, const decoder *k)
{
#if defined(__GNUC__)
    f4_words t;
    __m256i c, d;
    __asm__(
        "vpmaddubsw (%[x]), %[u0], %[near]\n\t"
        "vpmaddubsw 128(%[x]), %[u0], %[far]\n\t"
        "vpmaddubsw 256(%[x]), %[u0], %[middle]\n\t"
        "vpaddw 384(%[x]), %[near], %[near]\n\t"
        "vpaddw 416(%[x]), %[middle], %[middle]\n\t"
        "vmovdqu (%[next]), %[c]\n\t"
        "vpunpcklqdq 32(%[next]), %[c], %[c]\n\t"
        "vpand %[c], %[nibble], %[u0]\n\t"
        "vpshufb %[u0], %[table], %[u0]\n\t"
        "vpmaddubsw 32(%[x]), %[u1], %[d]\n\t"
        "vpaddw %[d], %[near], %[near]\n\t"
        "vpmaddubsw 160(%[x]), %[u1], %[d]\n\t"
        "vpaddw %[d], %[far], %[far]\n\t"
        "vpmaddubsw 288(%[x]), %[u1], %[d]\n\t"
        "vpaddw %[d], %[middle], %[middle]\n\t"
        "vpsrlw $4, %[c], %[c]\n\t"
        "vpand %[c], %[nibble], %[u1]\n\t"
        "vpshufb %[u1], %[table], %[u1]\n\t"
        "vpmaddubsw 64(%[x]), %[u2], %[d]\n\t"
        "vpaddw %[d], %[near], %[near]\n\t"
        "vpmaddubsw 192(%[x]), %[u2], %[d]\n\t"
        "vpaddw %[d], %[far], %[far]\n\t"
        "vpmaddubsw 320(%[x]), %[u2], %[d]\n\t"
        "vpaddw %[d], %[middle], %[middle]\n\t"
        "vmovdqu (%[next]), %[c]\n\t"
        "vpunpckhqdq 32(%[next]), %[c], %[c]\n\t"
        "vpand %[c], %[nibble], %[u2]\n\t"
        "vpshufb %[u2], %[table], %[u2]\n\t"
        "vpmaddubsw 96(%[x]), %[u3], %[d]\n\t"
        "vpaddw %[d], %[near], %[near]\n\t"
        "vpmaddubsw 224(%[x]), %[u3], %[d]\n\t"
        "vpaddw %[d], %[far], %[far]\n\t"
        "vpmaddubsw 352(%[x]), %[u3], %[d]\n\t"
        "vpaddw %[d], %[middle], %[middle]\n\t"
        "vpsrlw $4, %[c], %[c]\n\t"
        "vpand %[c], %[nibble], %[u3]\n\t"
        "vpshufb %[u3], %[table], %[u3]"
        : [u0] "+x"(u[0]), [u1] "+x"(u[1]), [u2] "+x"(u[2]), [u3] "+x"(u[3]), [near] "=&x"(t.near),
          [far] "=&x"(t.far), [middle] "=&x"(t.middle), [c] "=&x"(c), [d] "=&x"(d)
        : [x] "r"(x), [next] "r"(next), [nibble] "x"(k->nibble), [table] "x"(k->table),
          "m"(*(const uint8_t(*)[STEP_BYTES])next), "m"(*x));
#else
    f4_words t = corrections_of(x);
    for (int v = 0; v < 4; v++)
        add_products(&t, u[v], u[v], x, v);
    decode(u, next, k);
#endif
    t.far = swap_words(t.far);
    return t;
}

/* The columns behind the whole steps. */
static __m256 token_rest(const f4_pass *pass, const f4_row *row, __m256 acc)
{
    const f4_inputs *x = pass->inputs + pass->whole;
    uint8_t rest[STEP_BYTES];
    const decoder k = decoder_make();
    __m256i u[4];
    copy_rest(rest, pass, row);
    decode(u, rest, &k);
    const f4_words t = token_step(u, x, rest, &k);
    return add_step(acc, &t, false, scales_of_any(pass, row->scales, pass->whole), x);
}

/* What is behind the whole steps, and y. */
static void token_finish(const f4_pass *pass, const f4_row *f4, int64_t row, __m256 acc)
{
    acc = lowered(pass, f4->fused, acc);
    if (pass->whole < pass->n_steps)
        acc = token_rest(pass, f4, acc);
    pass->y[row - pass->row_begin] = sum_8(acc);
}

static void token_row(const f4_pass *pass, int64_t row, bool fused)
{
    const f4_row f4 = row_at(pass, row, fused);
    const decoder k = decoder_make();
    __m256 acc = _mm256_setzero_ps();
    for (int64_t step = 0; step < pass->whole; step++) {
        const uint8_t *codes = f4.codes + step * STEP_BYTES;
        __m256i u[4];
        decode(u, codes, &k);
        const f4_words t = token_step(u, pass->inputs + step, codes, &k);
        acc = add_step(acc, &t, fused, scales_of(pass, &f4, fused, step), pass->inputs + step);
    }
    token_finish(pass, &f4, row, acc);
}

/*
 * n_steps of two fused rows, the second of which follows the first in memory; codes of the next one
 * are always decoded, in the end the last once more. A function by itself: what is around it would
 * take some of its registers.
 */
static TAMIS_NEVER_INLINE void token_steps(__m256 acc[2], const f4_row *row, int64_t row_bytes,
                                           const f4_inputs *x, int64_t n_steps, group_ahead ahead)
{
    const uint8_t *codes = row[0].codes, *scales[2] = {row[0].scales, row[1].scales};
    const decoder k = decoder_make();
    __m256 first = _mm256_setzero_ps(), second = first;
    __m256i u[4];
    decode(u, codes, &k);
    for (int64_t step = 0; step < n_steps; step++, codes += STEP_BYTES, x++) {
        group_ahead_fetch(&ahead, 2, step * STEP_BYTES);
        f4_words t = token_step(u, x, codes + row_bytes, &k);
        first = add_step(first, &t, true, exponents_of(scales[0] + 4 * step), x);
        t = token_step(u, x, step + 1 < n_steps ? codes + STEP_BYTES : codes, &k);
        second = add_step(second, &t, true, exponents_of(scales[1] + 4 * step), x);
    }
    acc[0] = first;
    acc[1] = second;
}

static void token_two_rows(const f4_pass *pass, int64_t row)
{
    const f4_row rows[2] = {row_at(pass, row, true), row_at(pass, row + 1, true)};
    __m256 acc[2];
    token_steps(acc, rows, pass->w->row_bytes, pass->inputs, pass->whole,
                group_ahead_of(pass->w, row, 2, pass->row_end));
    for (int i = 0; i < 2; i++)
        token_finish(pass, &rows[i], row + i, acc[i]);
}

static void one_token(const f4_pass *pass)
{
    for (int64_t row = pass->row_begin, end; row < pass->row_end; row = end) {
        end = pass->row_end - row < TILE_ROWS ? pass->row_end : row + TILE_ROWS;
        const bool fused = are_fused(pass, row, end - row);
        int64_t r = row;
        for (; r + 2 <= end && pass->whole > 0 && fused; r += 2)
            token_two_rows(pass, r);
        for (; r < end; r++)
            token_row(pass, r, fused || are_fused(pass, r, 1));
    }
}

/* ---------------------------------------------------------------- a tile of tokens */

/* One step of a row with n tokens; sums: [token][8]. */
static TAMIS_ALWAYS_INLINE void tile_step(const f4_inputs *x, int64_t n, const uint8_t *codes,
                                          bool fused, __m256i scales, float *sums)
{
    const decoder k = decoder_make();
    __m256i u[4], far[4];
    decode(u, codes, &k);
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
        const int64_t at = step * STEP_BYTES;
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
        uint8_t rest[STEP_BYTES];
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

/* The exponents of n inputs. */
static f4_units units_range(const f4_inputs *inputs, int64_t n)
{
    __m256i low = _mm256_set1_epi32(INT32_MAX), high = _mm256_set1_epi32(INT32_MIN);
    for (int64_t i = 0; i < n; i++) {
        low = _mm256_min_epi32(low, load(inputs[i].exponent));
        high = _mm256_max_epi32(high, load(inputs[i].exponent));
    }
    int32_t of[2][8];
    _mm256_storeu_si256((__m256i *)of[0], low);
    _mm256_storeu_si256((__m256i *)of[1], high);
    f4_units units = {.least = INT32_MAX, .most = INT32_MIN};
    for (int i = 0; i < 8; i++) {
        units.least = of[0][i] < units.least ? of[0][i] : units.least;
        units.most = of[1][i] > units.most ? of[1][i] : units.most;
    }
    units.raise = units.least < 0 ? -units.least : 0;
    units.lower = ldexpf(1.0f, -units.raise);
    return units;
}

/* Inputs of the pass's tokens, exponents raised so that none is below zero and 2^24 times. */
static f4_units prepare_inputs(const f4_pass *pass, f4_inputs *inputs, const float *x,
                               int64_t x_stride)
{
    const int64_t n = pass->n_tokens, n_inputs = pass->n_steps * n;
    for (int64_t t = 0; t < n; t++)
        for (int64_t s = 0; s < pass->n_steps; s++)
            tamis_f4_inputs_avx2(&inputs[s * n + t], x + t * x_stride, s * F4_STEP_COLS,
                                 pass->w->cols, n > 1);
    const f4_units units = units_range(inputs, n_inputs);
    const __m256i raise = _mm256_set1_epi32(units.raise);
    for (int64_t i = 0; i < n_inputs; i++)
        _mm256_storeu_si256(
            (__m256i *)inputs[i].exponent,
            _mm256_slli_epi32(_mm256_add_epi32(load(inputs[i].exponent), raise), 24));
    return units;
}

TAMIS_KERNEL_linear(tamis_linear_f4_avx2)
{
    f4_units *units = (f4_units *)(void *)scratch;
    f4_inputs *inputs = (f4_inputs *)(void *)(units + 1);
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
        if (!same_inputs || n_tokens > TILE_TOKENS)
            *units = prepare_inputs(&pass, inputs, x + first * x_stride, x_stride);
        pass.units = *units;
        if (n == 1)
            one_token(&pass);
        else
            tile_tokens(&pass, (float *)(void *)(inputs + pass.n_steps * n));
    }
}
#endif
