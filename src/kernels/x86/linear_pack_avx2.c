/*
 * Panels of weights, AVX2: 16 rows are decoded and transposed, so that a register holds one column
 * of 8 rows. Types of fewer bits are transposed before they are decoded: four times as many columns
 * of FP8 pass one shuffle. A piece of every row is copied to a stage first: rows often lie a
 * multiple of 4096 bytes apart, and 16 of them read side by side would push each other out of the
 * first cache level.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define STAGE_BYTES 256

/* A piece of 16 rows; the rows do not lie a power of two apart. */
typedef struct row_stage {
    _Alignas(64) uint8_t byte[PANEL_ROWS][STAGE_BYTES + 64];
} row_stage;

/* Where a panel goes: [lane][step][row]. */
typedef struct panel {
    float *to;
    int64_t lane_stride;
} panel;

/* Of column c, the first of four that lie one behind the other. */
static TAMIS_ALWAYS_INLINE float *place(const panel *p, int64_t c)
{
    const int64_t lane = c / LANE_COLS % TAMIS_LANES;
    return p->to + lane * p->lane_stride + c / (LANE_COLS * TAMIS_LANES) * LANE_COLS * PANEL_ROWS;
}

static TAMIS_ALWAYS_INLINE void put(float *to, __m256 lo, __m256 hi)
{
    _mm256_store_ps(to, lo);
    _mm256_store_ps(to + 8, hi);
}

/* 16 bytes of two rows, one in each half. */
static TAMIS_ALWAYS_INLINE __m256i load_pair(const row_stage *s, int a, int b, int64_t at)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(const void *)(s->byte[a] + at))),
        _mm_load_si128((const __m128i *)(const void *)(s->byte[b] + at)), 1);
}

/* ---------------------------------------------------------------- F32, BF16 */

/* 4 columns of 8 rows at a time, rows i and 4 + i in one register; c is a multiple of 16, as n is.
 */
static void pack_f32(const panel *p, int64_t c, int64_t n, const row_stage *in)
{
    for (int64_t i = 0; i < n; i += LANE_COLS)
        for (int row = 0; row < PANEL_ROWS; row += 8) {
            __m256 v[4], a[4];
            for (int r = 0; r < 4; r++)
                v[r] = _mm256_castsi256_ps(load_pair(in, row + r, row + 4 + r, 4 * i));
            for (int r = 0; r < 2; r++) {
                a[2 * r] = _mm256_unpacklo_ps(v[2 * r], v[2 * r + 1]);
                a[2 * r + 1] = _mm256_unpackhi_ps(v[2 * r], v[2 * r + 1]);
            }
            float *to = place(p, c + i) + row;
            _mm256_store_ps(to, _mm256_shuffle_ps(a[0], a[2], 0x44));
            _mm256_store_ps(to + PANEL_ROWS, _mm256_shuffle_ps(a[0], a[2], 0xee));
            _mm256_store_ps(to + 2 * PANEL_ROWS, _mm256_shuffle_ps(a[1], a[3], 0x44));
            _mm256_store_ps(to + 3 * PANEL_ROWS, _mm256_shuffle_ps(a[1], a[3], 0xee));
        }
}

/*
 * 8 columns of 16 rows at a time. Rows are paired so that the last unpacking, with zeros below the
 * 16 bits, finds rows 0-7 and 8-15 in order.
 */
static void pack_bf16(const panel *p, int64_t first, int64_t n, const row_stage *in)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t at = 2 * i;
        __m256i v[8], a[8];
        for (int r = 0; r < 4; r++) {
            v[r] = load_pair(in, r, r + 4, at);
            v[4 + r] = load_pair(in, r + 8, r + 12, at);
        }
        for (int r = 0; r < 4; r++) { /* columns 0-3 and 4-7 of two rows */
            a[r] = _mm256_unpacklo_epi16(v[2 * r], v[2 * r + 1]);
            a[4 + r] = _mm256_unpackhi_epi16(v[2 * r], v[2 * r + 1]);
        }
        for (int r = 0; r < 4;
             r++) { /* v[4 h + 2 g + k]: columns 4 h + 2 k of four rows, group g */
            v[2 * r] = _mm256_unpacklo_epi32(a[2 * r], a[2 * r + 1]);
            v[2 * r + 1] = _mm256_unpackhi_epi32(a[2 * r], a[2 * r + 1]);
        }
        for (int c = 0; c < 4; c++) {
            const int k = c / 2 * 4 + c % 2;
            float *to = place(p, first + i + c / 2 * 4) + c % 2 * 2 * PANEL_ROWS;
            const __m256i even = _mm256_unpacklo_epi64(v[k], v[k + 2]);
            const __m256i odd = _mm256_unpackhi_epi64(v[k], v[k + 2]);
            put(to, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, even)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, even)));
            put(to + PANEL_ROWS, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, odd)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, odd)));
        }
    }
}

/* ---------------------------------------------------------------- FP8 */

/* v[k]: bytes 2 k and 2 k + 1 behind `at`, rows 0-7 in the low half and 8-15 in the high one. */
static TAMIS_ALWAYS_INLINE void transpose_bytes(__m256i v[8], const row_stage *in, int64_t at)
{
    __m256i a[8], b[8];
    for (int r = 0; r < 8; r++)
        v[r] = load_pair(in, r, r + 8, at);
    for (int r = 0; r < 4; r++) { /* bytes 0-7 and 8-15 of two rows */
        a[r] = _mm256_unpacklo_epi8(v[2 * r], v[2 * r + 1]);
        a[4 + r] = _mm256_unpackhi_epi8(v[2 * r], v[2 * r + 1]);
    }
    for (int r = 0; r < 4; r++) { /* four bytes of four rows */
        b[2 * r] = _mm256_unpacklo_epi16(a[2 * r], a[2 * r + 1]);
        b[2 * r + 1] = _mm256_unpackhi_epi16(a[2 * r], a[2 * r + 1]);
    }
    for (int i = 0; i < 4; i++) {
        const int k = i / 2 * 4 + i % 2;
        v[2 * i] = _mm256_unpacklo_epi32(b[k], b[k + 2]);
        v[2 * i + 1] = _mm256_unpackhi_epi32(b[k], b[k + 2]);
    }
}

/* Binary16 numbers of 16 rows times the factor of each row. */
static TAMIS_ALWAYS_INLINE void put_halves(float *to, __m256i halves, v16 factor)
{
    const v16 v = halves_widen(halves);
    put(to, _mm256_mul_ps(v.lo, factor.lo), _mm256_mul_ps(v.hi, factor.hi));
}

/* E4M3 bytes at the top of 16-bit words to binary16, see e4m3_to_halves_nan. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_words_to_halves(__m256i top)
{
    const __m256i h = _mm256_and_si256(_mm256_srai_epi16(top, 1), _mm256_set1_epi16((short)0xbfff));
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_add_epi16(h, h), _mm256_set1_epi16(0x7f00));
    return _mm256_or_si256(h, nan);
}

/* Columns c + begin to c + end, 16 at a time; the stage starts with column c. */
static void pack_e4m3(const panel *p, int64_t c, int64_t begin, int64_t end, const row_stage *in,
                      v16 factor)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int64_t at = begin; at < end; at += TAMIS_LANES) {
        __m256i v[8];
        transpose_bytes(v, in, at);
        for (int i = 0; i < 8; i++) {
            float *to = place(p, c + at + i / 2 * 4) + i % 2 * 2 * PANEL_ROWS;
            put_halves(to, e4m3_words_to_halves(_mm256_unpacklo_epi8(zero, v[i])), factor);
            put_halves(to + PANEL_ROWS, e4m3_words_to_halves(_mm256_unpackhi_epi8(zero, v[i])),
                       factor);
        }
    }
}

/* ---------------------------------------------------------------- all of it */

/* 16 rows of a matrix, the last one repeated where there are fewer. */
typedef struct row_set {
    const tamis_matrix *w;
    int64_t row[PANEL_ROWS];
} row_set;

static void stage_rows(row_stage *to, const row_set *set, int64_t at, int64_t n)
{
    for (int r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *from = tamis_weight_row(set->w, set->row[r]) + at;
        int64_t b = 0;
        for (; b + 32 <= n; b += 32)
            _mm256_store_si256((__m256i *)(void *)(to->byte[r] + b),
                               _mm256_loadu_si256((const __m256i *)(const void *)(from + b)));
        memcpy(to->byte[r] + b, from + b, (size_t)(n - b));
    }
}

/* Factors of FP8 in the scale block of column c, with the 2^8 of its decoding. false: one of them
 * overflows. */
static bool row_factors(v16 *factor, const row_set *set, int64_t c)
{
    const tamis_matrix *w = set->w;
    float value[PANEL_ROWS];
    bool fits = true;
    for (int r = 0; r < PANEL_ROWS; r++) {
        const float scale =
            w->scale ? tamis_scale_decode(w, tamis_scale_row(w, set->row[r]), c / w->block_cols)
                     : 1.0f;
        fits &= fabsf(scale) < 0x1p+119f;
        value[r] = scale * 256.0f;
    }
    *factor = v16_load(value);
    return fits;
}

/* Columns [c, c + n) of FP8, staged. false: a scale is too large to fold. */
static bool pack_scaled(const panel *p, int64_t c, int64_t n, const row_set *set,
                        const row_stage *in)
{
    const tamis_matrix *w = set->w;
    v16 factor;
    for (int64_t begin = 0, end; begin < n; begin = end) {
        end = n;
        if (w->scale) {
            const int64_t edge = ((c + begin) / w->block_cols + 1) * w->block_cols - c;
            end = edge < n ? edge : n;
        }
        if (!row_factors(&factor, set, c + begin))
            return false;
        pack_e4m3(p, c, begin, end, in, factor);
    }
    return true;
}

/* Columns that packing before decoding can take: 16 at a time, whole scale blocks. */
static int64_t narrow_cols(const tamis_matrix *w)
{
    const bool scales = w->dtype == TAMIS_DTYPE_F8_E4M3;
    if (!scales && w->dtype != TAMIS_DTYPE_F32 && w->dtype != TAMIS_DTYPE_BF16)
        return 0;
    if (w->scale && (!scales || w->block_cols % TAMIS_LANES != 0))
        return 0;
    return w->cols / TAMIS_LANES * TAMIS_LANES;
}

/* Returns the number of columns done. */
static int64_t pack_narrow(const panel *p, const row_set *set)
{
    const tamis_matrix *w = set->w;
    const int64_t all = narrow_cols(w), col_bytes = tamis_dtype_bits(w->dtype) / 8;
    row_stage stage;
    for (int64_t c = 0, n; c < all; c += n) {
        n = all - c < STAGE_BYTES / col_bytes ? all - c : STAGE_BYTES / col_bytes;
        stage_rows(&stage, set, c * col_bytes, n * col_bytes);
        if (w->dtype == TAMIS_DTYPE_F32)
            pack_f32(p, c, n, &stage);
        else if (w->dtype == TAMIS_DTYPE_BF16)
            pack_bf16(p, c, n, &stage);
        else if (!pack_scaled(p, c, n, set, &stage))
            return c;
    }
    return all;
}

/* Any type: columns from `begin` on are expanded to f32, zeros behind the last one. */
static void pack_expanded(const panel *p, const row_set *set, int64_t begin)
{
    enum { STAGE_COLS = STAGE_BYTES / sizeof(float) };
    const tamis_matrix *w = set->w;
    const int64_t all = panel_steps(w->cols) * TAMIS_LANES;
    row_stage stage;
    for (int64_t c = begin, n; c < all; c += n) {
        const int64_t end = w->cols - c < STAGE_COLS ? w->cols : c + STAGE_COLS;
        n = all - c < STAGE_COLS ? all - c : STAGE_COLS;
        for (int r = 0; r < PANEL_ROWS; r++) {
            float *to = (float *)(void *)stage.byte[r];
            if (c < end)
                tamis_expand_span_avx2(to, w, set->row[r], c, end);
            for (int64_t i = c < end ? end - c : 0; i < n; i++)
                to[i] = 0.0f;
        }
        pack_f32(p, c, n, &stage);
    }
}

void tamis_linear_pack_rows_avx2(float *to, int64_t lane_stride, const tamis_matrix *w, int64_t row,
                                 int64_t n_rows)
{
    const panel p = {to, lane_stride};
    row_set set = {.w = w};
    for (int64_t r = 0; r < PANEL_ROWS; r++)
        set.row[r] = row + (r < n_rows ? r : n_rows - 1);
    pack_expanded(&p, &set, pack_narrow(&p, &set));
}
#endif
