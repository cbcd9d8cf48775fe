/*
 * Linear layers over FP4 in blocks, AVX2 (kernels.h, linear): sums of 16 products in integers.
 *
 * A table turns codes into bytes 2 value + 12, which are multiplied with the three digits of the
 * inputs and added in pairs; of four such registers no lane of 16 bits overflows (4 * 2 * 24 *
 * 128 = 24576). The sums of the digits join modulo 2^32, less what the 12 brought. One token:
 * pairs of rows, sums in registers. More: of a pair of rows 128 columns are decoded once, and all
 * tokens of a tile follow, whose inputs of some columns lie in the first cache level.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_f4_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_TOKENS 24
#define TILE_ROWS   32
#define TILE_BYTES  22528 /* of inputs that a pass over the rows reads again and again */
#define PAIR        2

typedef struct f4_pass {
    const tamis_matrix *w;
    const f4_inputs *inputs; /* [step][token] */
    int64_t n_tokens, n_steps;
    int64_t whole; /* steps of 128 columns that exist */
    float *y;
    int64_t y_stride, row_begin, row_end;
} f4_pass;

/* Rows side by side: where they are. */
typedef struct f4_rows {
    int64_t row; /* the first */
    const uint8_t *codes[PAIR], *scales[PAIR];
    bool powers; /* the scales of whole steps: four bytes, neither 0 nor 255 */
} f4_rows;

/* ---------------------------------------------------------------- weights */

static TAMIS_ALWAYS_INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* 128 columns of a row: 2 value + 12. */
static TAMIS_ALWAYS_INLINE void decode(__m256i u[4], const uint8_t *codes)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table =
        _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                         16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i a = load(codes), b = load(codes + 32);
    for (int part = 0; part < 2; part++) {
        const __m256i c = part == 0 ? _mm256_unpacklo_epi64(a, b) : _mm256_unpackhi_epi64(a, b);
        u[2 * part] = _mm256_shuffle_epi8(table, _mm256_and_si256(c, nibble));
        u[2 * part + 1] =
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(c, 4), nibble));
    }
}

/* Whether the scales of a row's whole steps can be read as exponents. */
static bool are_powers(const f4_pass *pass, const uint8_t *scales)
{
    const __m256i one = _mm256_set1_epi8(1);
    const int64_t n = pass->whole * 4;
    __m256i least = _mm256_set1_epi8(-1); /* of byte + 1: 0 and 1 are of 255 and 0 */
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        least = _mm256_min_epu8(least, _mm256_add_epi8(load(scales + i), one));
    for (; i < n; i += 4) {
        int32_t four;
        memcpy(&four, scales + i, sizeof four);
        least = _mm256_min_epu8(least, _mm256_add_epi8(_mm256_set1_epi32(four), one));
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(least, _mm256_min_epu8(least, one))) == 0;
}

static f4_rows rows_at(const f4_pass *pass, int64_t row, int n_rows)
{
    const tamis_matrix *w = pass->w;
    f4_rows rows = {.row = row};
    rows.powers = w->scale != NULL && w->scale_dtype == TAMIS_DTYPE_F8_E8M0 && w->block_cols == 32;
    for (int i = 0; i < n_rows; i++) {
        rows.codes[i] = tamis_weight_row(w, row + i);
        rows.scales[i] = w->scale != NULL ? tamis_scale_row(w, row + i) : NULL;
        rows.powers = rows.powers && are_powers(pass, rows.scales[i]);
    }
    return rows;
}

/* The scales of 4 blocks in the order of sums: 0 0 2 2 1 1 3 3. */
static TAMIS_ALWAYS_INLINE __m256 scales_of_powers(const uint8_t *at)
{
    const __m256i pick =
        _mm256_setr_epi8(-1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 1, -1,
                         -1, -1, 1, -1, -1, -1, 3, -1, -1, -1, 3, -1);
    int32_t four;
    memcpy(&four, at, sizeof four);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(four), pick);
    return _mm256_castsi256_ps(_mm256_slli_epi32(bytes, 7));
}
static __m256 scales_of_any(const f4_pass *pass, const uint8_t *scales, int64_t step)
{
    const tamis_matrix *w = pass->w;
    float of[4];
    for (int b = 0; b < 4; b++) {
        const int64_t c = step * F4_STEP_COLS + 32 * b;
        of[b] =
            scales != NULL && c < w->cols ? tamis_scale_decode(w, scales, c / w->block_cols) : 1.0f;
    }
    return _mm256_setr_ps(of[0], of[0], of[2], of[2], of[1], of[1], of[3], of[3]);
}

/* Codes and scales of a step of the rows. */
static TAMIS_ALWAYS_INLINE void decode_rows(const f4_pass *pass, const f4_rows *rows, int n_rows,
                                            bool powers, int64_t step, __m256i u[PAIR][4],
                                            __m256 scale[PAIR])
{
    for (int i = 0; i < n_rows; i++) {
        decode(u[i], rows->codes[i] + step * (F4_STEP_COLS / 2));
        scale[i] = powers ? scales_of_powers(rows->scales[i] + 4 * step)
                          : scales_of_any(pass, rows->scales[i], step);
    }
}
/* The same of the columns behind the whole steps. */
static void decode_rest(const f4_pass *pass, const f4_rows *rows, int n_rows, __m256i u[PAIR][4],
                        __m256 scale[PAIR])
{
    const int64_t begin = pass->whole * F4_STEP_COLS;
    for (int i = 0; i < n_rows; i++) {
        uint8_t codes[F4_STEP_COLS / 2] = {0};
        memcpy(codes, rows->codes[i] + begin / 2, (size_t)(pass->w->cols - begin + 1) / 2);
        decode(u[i], codes);
        scale[i] = scales_of_any(pass, rows->scales[i], pass->whole);
    }
}

/* ---------------------------------------------------------------- sums */

/* acc[i] += the products of a step of row i with a token. */
static TAMIS_ALWAYS_INLINE void add_step(__m256 acc[PAIR], int n_rows, __m256i u[PAIR][4],
                                         const __m256 scale[PAIR], const f4_inputs *x)
{
    const __m256i one = _mm256_set1_epi16(1), k256 = _mm256_set1_epi16(256);
    __m256i sum[PAIR], t[PAIR];
    for (int d = F4_DIGITS - 1; d >= 0; d--) {
        for (int v = 0; v < 4; v++) {
            const __m256i in =
                _mm256_castps_si256(in_register(_mm256_castsi256_ps(load(x->digit[d][v]))));
            for (int i = 0; i < n_rows; i++) {
                const __m256i m = _mm256_maddubs_epi16(u[i][v], in);
                t[i] = v == 0 ? m : _mm256_add_epi16(t[i], m);
            }
        }
        for (int i = 0; i < n_rows; i++)
            if (d == 2)
                sum[i] = _mm256_slli_epi32(_mm256_madd_epi16(t[i], k256), 8);
            else
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(t[i], d == 1 ? k256 : one));
    }
    for (int i = 0; i < n_rows; i++) {
        const __m256i total = _mm256_sub_epi32(sum[i], load(x->shifted));
        const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(total), _mm256_loadu_ps(x->unit));
        acc[i] = _mm256_fmadd_ps(value, scale[i], acc[i]);
    }
}

static TAMIS_ALWAYS_INLINE float sum_8(__m256 acc)
{
    return v16_sum((v16){acc, _mm256_setzero_ps()});
}

/* ---------------------------------------------------------------- one token */

static TAMIS_ALWAYS_INLINE void token_rows(const f4_pass *pass, const f4_rows *rows, int n_rows,
                                           bool powers, const group_ahead *ahead)
{
    __m256 acc[PAIR] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, scale[PAIR];
    __m256i u[PAIR][4];
    for (int64_t step = 0; step < pass->whole; step++) {
        group_ahead_fetch(ahead, n_rows, step * (F4_STEP_COLS / 2));
        decode_rows(pass, rows, n_rows, powers, step, u, scale);
        add_step(acc, n_rows, u, scale, pass->inputs + step);
    }
    if (pass->whole < pass->n_steps) {
        decode_rest(pass, rows, n_rows, u, scale);
        add_step(acc, n_rows, u, scale, pass->inputs + pass->whole);
    }
    for (int i = 0; i < n_rows; i++)
        pass->y[rows->row - pass->row_begin + i] = sum_8(acc[i]);
}

static TAMIS_ALWAYS_INLINE void token_group(const f4_pass *pass, int64_t row, int n_rows)
{
    const f4_rows rows = rows_at(pass, row, n_rows);
    const group_ahead ahead =
        group_ahead_of(pass->w, row, n_rows, row + 2 * n_rows > pass->row_end);
    if (rows.powers)
        token_rows(pass, &rows, n_rows, true, &ahead);
    else
        token_rows(pass, &rows, n_rows, false, &ahead);
}

static void one_token(const f4_pass *pass)
{
    int64_t row = pass->row_begin;
    for (; row + PAIR <= pass->row_end; row += PAIR)
        token_group(pass, row, PAIR);
    if (row < pass->row_end)
        token_group(pass, row, 1);
}

/* ---------------------------------------------------------------- a tile of tokens */

/* Sums of a pair of rows: [token][row of the pair][8]. */
static TAMIS_ALWAYS_INLINE void tile_step(const f4_pass *pass, int n_rows, __m256i u[PAIR][4],
                                          const __m256 scale[PAIR], int64_t step, float *sums)
{
    const f4_inputs *x = pass->inputs + step * pass->n_tokens;
    for (int64_t t = 0; t < pass->n_tokens; t++, sums += 8 * PAIR) {
        __m256 acc[PAIR];
        for (int i = 0; i < n_rows; i++)
            acc[i] = _mm256_load_ps(sums + 8 * i);
        add_step(acc, n_rows, u, scale, x + t);
        for (int i = 0; i < n_rows; i++)
            _mm256_store_ps(sums + 8 * i, acc[i]);
    }
}

/* Steps [begin, end) of the rows. */
static TAMIS_ALWAYS_INLINE void tile_rows(const f4_pass *pass, const f4_rows *rows, int n_rows,
                                          bool powers, int64_t begin, int64_t end, float *sums)
{
    __m256i u[PAIR][4];
    __m256 scale[PAIR];
    for (int64_t step = begin; step < end; step++) {
        if (step < pass->whole)
            decode_rows(pass, rows, n_rows, powers, step, u, scale);
        else
            decode_rest(pass, rows, n_rows, u, scale);
        tile_step(pass, n_rows, u, scale, step, sums);
    }
}

static void tile_group(const f4_pass *pass, const f4_rows *rows, int n_rows, int64_t begin,
                       int64_t end, float *sums)
{
    if (n_rows == 1)
        tile_rows(pass, rows, 1, false, begin, end, sums);
    else if (rows->powers)
        tile_rows(pass, rows, PAIR, true, begin, end, sums);
    else
        tile_rows(pass, rows, PAIR, false, begin, end, sums);
}

static void store_sums(const f4_pass *pass, int64_t row, int n_rows, const float *sums)
{
    for (int64_t t = 0; t < pass->n_tokens; t++)
        for (int i = 0; i < n_rows; i++)
            pass->y[t * pass->y_stride + row - pass->row_begin + i] =
                sum_8(_mm256_load_ps(sums + 8 * (PAIR * t + i)));
}

/* Up to TILE_ROWS rows from `row` on, chunks of steps outside, so that inputs are read once. */
static void tile_block(const f4_pass *pass, int64_t row, int n_rows, float *sums)
{
    const int64_t fit = TILE_BYTES / (pass->n_tokens * (int64_t)sizeof(f4_inputs));
    const int64_t chunk = fit < 1 ? 1 : fit, pair_floats = 8 * PAIR * pass->n_tokens;
    f4_rows rows[TILE_ROWS / PAIR];
    for (int r = 0; r < n_rows; r += PAIR)
        rows[r / PAIR] = rows_at(pass, row + r, n_rows - r < PAIR ? n_rows - r : PAIR);
    memset(sums, 0, (size_t)((n_rows + 1) / PAIR * pair_floats) * sizeof *sums);
    for (int64_t step = 0; step < pass->n_steps; step += chunk) {
        const int64_t end = pass->n_steps - step < chunk ? pass->n_steps : step + chunk;
        for (int r = 0; r < n_rows; r += PAIR)
            tile_group(pass, &rows[r / PAIR], n_rows - r < PAIR ? 1 : PAIR, step, end,
                       sums + r / PAIR * pair_floats);
    }
    for (int r = 0; r < n_rows; r += PAIR)
        store_sums(pass, row + r, n_rows - r < PAIR ? 1 : PAIR, sums + r / PAIR * pair_floats);
}

static void tile_tokens(const f4_pass *pass, float *sums)
{
    for (int64_t row = pass->row_begin; row < pass->row_end; row += TILE_ROWS) {
        const int64_t left = pass->row_end - row;
        tile_block(pass, row, (int)(left < TILE_ROWS ? left : TILE_ROWS), sums);
    }
}

/* ---------------------------------------------------------------- kernel */

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
                                     s * F4_STEP_COLS, w->cols);
        if (n == 1)
            one_token(&pass);
        else
            tile_tokens(&pass, (float *)(void *)(inputs + pass.n_steps * n));
    }
}
#endif
