/*
 * Index scores and attention over one chunk of rows, AVX2.
 *
 * Heads lie in vector lanes: 6 rows x 16 heads make 12 accumulators, one load of the panel serves
 * six rows, and neither ReLU nor softmax needs a shuffle. Rows are expanded to f32 once for all
 * heads and for both products. The expanded rows are padded by 16 floats, because rows a power of
 * two apart would share cache sets. Where a tile is short the same code is compiled for the
 * shorter size: an accumulator array under a run-time bound would leave the registers.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/index_ahead_avx2.h"
#include "kernels/x86/simd_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_ROWS 6
/* Depth of a pass over a panel: 128 x 16 floats stay in the first cache level. */
#define DEPTH_BLOCK 128

static int64_t round_up_16(int64_t n)
{
    return (n + TAMIS_LANES - 1) / TAMIS_LANES * TAMIS_LANES;
}

/* Calls CODE with a constant 1..6 for n. */
#define WITH_CONSTANT(n, CODE)                                                                     \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        CODE(1);                                                                                   \
        break;                                                                                     \
    case 2:                                                                                        \
        CODE(2);                                                                                   \
        break;                                                                                     \
    case 3:                                                                                        \
        CODE(3);                                                                                   \
        break;                                                                                     \
    case 4:                                                                                        \
        CODE(4);                                                                                   \
        break;                                                                                     \
    case 5:                                                                                        \
        CODE(5);                                                                                   \
        break;                                                                                     \
    default:                                                                                       \
        CODE(6);                                                                                   \
    }

/*
 * How many of the `left` rows or heads the next tile takes: as few tiles as there must be, as even
 * as they can be. A tile of few has too few sums to wait for one another.
 */
static TAMIS_ALWAYS_INLINE int64_t even_tile(int64_t left)
{
    const int64_t n_tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
    return (left + n_tiles - 1) / n_tiles;
}

/* Fewer turns of a loop, and its end is foreseen. */
#if defined(__clang__)
#define FOUR_A_TURN _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define FOUR_A_TURN _Pragma("GCC unroll 4")
#else
#define FOUR_A_TURN
#endif

/* dot[i] += panel . row i, over n channels. */
static TAMIS_ALWAYS_INLINE void dot_tile(int n_rows, v16 dot[TILE_ROWS], const float *panel,
                                         const float *rows, int64_t row_stride, int64_t n)
{
    FOUR_A_TURN
    for (int64_t d = 0; d < n; d++) {
        const v16 q = v16_in_registers(v16_load(panel + d * TAMIS_LANES));
        for (int i = 0; i < n_rows; i++) {
            const __m256 k = _mm256_broadcast_ss(rows + i * row_stride + d);
            dot[i].lo = _mm256_fmadd_ps(q.lo, k, dot[i].lo);
            dot[i].hi = _mm256_fmadd_ps(q.hi, k, dot[i].hi);
        }
    }
}

/* A row of a cache to f32, zeros up to the next multiple of 16. */
static void expand_row(float *dst, const void *row, const tamis_row_format *format,
                       int64_t head_dim)
{
    if (format->group_size == 0) {
        cached_row_expand(dst, row, format->dtype, head_dim);
        return;
    }
    tamis_unpack_row_avx2(dst, row, (const uint8_t *)row + format->scale_at, format);
    for (int64_t d = head_dim; d < round_up_16(head_dim); d++)
        dst[d] = 0.0f;
}

/* The codes of a key without its scale, zeros up to the next multiple of 16. */
static void expand_codes(float *dst, const uint8_t *row, const tamis_row_format *format,
                         int64_t head_dim)
{
    const uint8_t *codes = row + format->coded_at;
    if (format->dtype != TAMIS_DTYPE_F8_E4M3) {
        cached_row_expand(dst, codes, format->dtype, head_dim);
        return;
    }
    for (int64_t d = 0; d < head_dim; d += TAMIS_LANES) {
        uint8_t last[TAMIS_LANES] = {0};
        const uint8_t *from = codes + d;
        if (head_dim - d < TAMIS_LANES)
            from = memcpy(last, from, (size_t)(head_dim - d));
        v16_store(dst + d, e4m3_widen(from));
    }
}

/* ---------------------------------------------------------------- index scores */

/* +0 where v <= 0, else v (NaN stays); `keep` clears the lanes that hold no head. */
static TAMIS_ALWAYS_INLINE __m256 relu_8(__m256 v, __m256 keep)
{
    const __m256 positive = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NLE_UQ);
    return _mm256_and_ps(v, _mm256_and_ps(positive, keep));
}

/* One panel's share of n_rows scores: sums[i][lane] = fma(weight, relu(dot), sums[i][lane]). */
static TAMIS_ALWAYS_INLINE void score_tile(int n_rows, float *sums, const float *panel,
                                           const float *weights, int64_t n_heads, const float *keys,
                                           int64_t key_stride, int64_t head_dim)
{
    v16 dot[TILE_ROWS];
    const __m256 keep_lo = _mm256_castsi256_ps(first_lanes(n_heads));
    const __m256 keep_hi = _mm256_castsi256_ps(first_lanes(n_heads - 8));
    const v16 weight = v16_load(weights);
    for (int i = 0; i < n_rows; i++)
        dot[i] = v16_zero();
    dot_tile(n_rows, dot, panel, keys, key_stride, head_dim);
    for (int i = 0; i < n_rows; i++) {
        const v16 gated = {relu_8(dot[i].lo, keep_lo), relu_8(dot[i].hi, keep_hi)};
        float *sum = sums + i * TAMIS_LANES;
        v16_store(sum, v16_fma(weight, gated, v16_load(sum)));
    }
}

TAMIS_KERNEL_index_score(tamis_index_score_avx2)
{
    const int64_t stride = round_up_16(head_dim) + TAMIS_LANES;
    float *expanded = scratch;           /* [n_keys][stride] */
    float *sums = scratch + 64 * stride; /* [n_keys][16] */
    for (int64_t j = 0; j < n_keys; j++)
        expand_codes(expanded + j * stride, (const uint8_t *)keys + j * key_stride, format,
                     head_dim);
    memset(sums, 0, (size_t)n_keys * TAMIS_LANES * sizeof *sums);
    index_ahead ahead = index_ahead_of(next, n_keys * key_stride,
                                       (n_heads + TAMIS_LANES - 1) / TAMIS_LANES *
                                           ((n_keys + TILE_ROWS - 1) / TILE_ROWS));
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES)
        for (int64_t j = 0; j < n_keys; j += TILE_ROWS) {
#define SCORE_TILE(n)                                                                              \
    score_tile(n, sums + j * TAMIS_LANES, q_panels + first * head_dim, weights + first,            \
               n_heads - first, expanded + j * stride, stride, head_dim)
            WITH_CONSTANT(n_keys - j, SCORE_TILE)
            index_ahead_fetch(&ahead);
#undef SCORE_TILE
        }
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        scores[j] = v16_sum(v16_load(sums + j * TAMIS_LANES));
        if (format->group_size != 0)
            scores[j] *= tamis_load_f32(row + format->scale_at);
    }
}

/* ---------------------------------------------------------------- attention */

/* scores[i] (+)= panel . row i over one depth block; the last block applies the scale. */
static TAMIS_ALWAYS_INLINE void logit_tile(int n_rows, float *scores, int64_t score_stride,
                                           const float *panel, const float *rows,
                                           int64_t row_stride, int64_t n, bool is_first,
                                           bool is_last, float scale)
{
    v16 dot[TILE_ROWS];
    for (int i = 0; i < n_rows; i++)
        dot[i] = is_first ? v16_zero() : v16_load(scores + i * score_stride);
    dot_tile(n_rows, dot, panel, rows, row_stride, n);
    for (int i = 0; i < n_rows; i++)
        v16_store(scores + i * score_stride,
                  is_last ? v16_scale(dot[i], _mm256_set1_ps(scale)) : dot[i]);
}

/* The scaled scores of one panel. */
static void panel_scores(float *scores, int64_t score_stride, const float *panel, const float *rows,
                         int64_t row_stride, int64_t n_rows, int64_t head_dim, float scale)
{
    for (int64_t begin = 0; begin < head_dim; begin += DEPTH_BLOCK) {
        const bool is_last = head_dim - begin <= DEPTH_BLOCK;
        const int64_t n = is_last ? head_dim - begin : DEPTH_BLOCK;
        for (int64_t j = 0, tile; j < n_rows; j += tile) {
            tile = even_tile(n_rows - j);
#define LOGIT_TILE(count)                                                                          \
    logit_tile(count, scores + j * score_stride, score_stride, panel + begin * TAMIS_LANES,        \
               rows + j * row_stride + begin, row_stride, n, begin == 0, is_last, scale)
            WITH_CONSTANT(tile, LOGIT_TILE)
#undef LOGIT_TILE
        }
    }
}

/* Differences from the maximum down to here need no subnormals on the way to exp. */
#define NEAR_TOP (-80.0f)

/*
 * exp_8 of numbers between NEAR_TOP and 0, or NaN: nothing is clamped, and 2^n is one number, whose
 * exponent is in the low bits of t.
 */
static TAMIS_ALWAYS_INLINE __m256 exp_near_8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p+23f);
    const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(TAMIS_LOG2E), magic);
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    const __m256i scale = _mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000));
    return _mm256_mul_ps(exp_reduced_8(x, _mm256_sub_ps(t, magic)), _mm256_castsi256_ps(scale));
}

/* Scores of 8 heads become exp(score - top) in place, rounded if running; returns their sums. */
static TAMIS_ALWAYS_INLINE __m256 weights_8(tamis_attn_fold fold, bool is_near, float *scores,
                                            int64_t score_stride, int64_t n_rows, __m256 top)
{
    __m256 sum = _mm256_setzero_ps();
    for (int64_t j = 0; j < n_rows; j++) {
        float *s = scores + j * score_stride;
        const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(s), top);
        const __m256 p = is_near ? exp_near_8(x) : exp_8(x);
        _mm256_storeu_ps(s, fold == TAMIS_ATTN_RUNNING ? bf16_round_8(p) : p);
        sum = _mm256_add_ps(sum, p);
    }
    return sum;
}

/*
 * Scores of 8 heads become p in place (rounded if running); m and l of the first `here` of them are
 * stored. Unless the chunk is alone they go on from what m and l hold: shrink[0..7] is the factor
 * of what was there; grow[0..7], if merged, that of the chunk.
 */
static TAMIS_ALWAYS_INLINE void softmax_8(tamis_attn_fold fold, float *scores, int64_t score_stride,
                                          int64_t n_rows, float *m, float *l, int64_t here,
                                          float *shrink, float *grow)
{
    const __m256i lanes = first_lanes(here);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    const __m256 before = fold == TAMIS_ATTN_ALONE ? none : _mm256_maskload_ps(m, lanes);
    __m256 top = fold == TAMIS_ATTN_RUNNING ? before : none, bottom = _mm256_set1_ps(INFINITY);
    for (int64_t j = 0; j < n_rows; j++) {
        const __m256 s = _mm256_loadu_ps(scores + j * score_stride);
        top = _mm256_max_ps(s, top); /* s > m ? s : m */
        bottom = _mm256_min_ps(bottom, s);
    }
    const __m256 is_near =
        _mm256_cmp_ps(_mm256_sub_ps(bottom, top), _mm256_set1_ps(NEAR_TOP), _CMP_GE_OQ);
    __m256 sum = _mm256_movemask_ps(is_near) == 0xff
                     ? weights_8(fold, true, scores, score_stride, n_rows, top)
                     : weights_8(fold, false, scores, score_stride, n_rows, top);
    if (fold == TAMIS_ATTN_MERGED) {
        const __m256 chunk = top;
        top = _mm256_max_ps(chunk, before);
        const __m256 factor = exp_8(_mm256_sub_ps(chunk, top));
        _mm256_storeu_ps(grow, factor);
        sum = _mm256_mul_ps(sum, factor);
    }
    if (fold != TAMIS_ATTN_ALONE) {
        const __m256 factor = exp_8(_mm256_sub_ps(before, top));
        _mm256_storeu_ps(shrink, factor);
        sum = _mm256_fmadd_ps(_mm256_maskload_ps(l, lanes), factor, sum);
    }
    _mm256_maskstore_ps(m, lanes, top);
    _mm256_maskstore_ps(l, lanes, sum);
}

static TAMIS_ALWAYS_INLINE v16 output_load(const float *o, int64_t n)
{
    return n >= TAMIS_LANES ? v16_load(o) : v16_load_first(o, n);
}

/*
 * o[i][0..15] = chain over rows of p[j][i] * value[j][0..15]; n of the 16 columns are stored.
 * Running, the chain starts from o[i] * shrink[i]; merged, o[i] * shrink[i] + chain * grow[i].
 */
static TAMIS_ALWAYS_INLINE void value_tile(int n_heads, tamis_attn_fold fold, float *o,
                                           int64_t o_stride, int64_t n, const float *p,
                                           int64_t p_stride, const float *values,
                                           int64_t value_stride, int64_t n_rows,
                                           const float *shrink, const float *grow)
{
    v16 sum[TILE_ROWS];
    for (int i = 0; i < n_heads; i++)
        sum[i] = fold == TAMIS_ATTN_RUNNING
                     ? v16_scale(output_load(o + i * o_stride, n), _mm256_broadcast_ss(shrink + i))
                     : v16_zero();
    for (int64_t j = 0; j < n_rows; j++) {
        const v16 value = v16_in_registers(v16_load(values + j * value_stride));
        for (int i = 0; i < n_heads; i++) {
            const __m256 weight = _mm256_broadcast_ss(p + j * p_stride + i);
            sum[i].lo = _mm256_fmadd_ps(weight, value.lo, sum[i].lo);
            sum[i].hi = _mm256_fmadd_ps(weight, value.hi, sum[i].hi);
        }
    }
    for (int i = 0; i < n_heads; i++) {
        if (fold == TAMIS_ATTN_MERGED) {
            const __m256 a = _mm256_broadcast_ss(shrink + i);
            sum[i] = v16_fma(output_load(o + i * o_stride, n), (v16){a, a},
                             v16_scale(sum[i], _mm256_broadcast_ss(grow + i)));
        }
        if (n >= TAMIS_LANES)
            v16_store(o + i * o_stride, sum[i]);
        else
            v16_store_first(o + i * o_stride, n, sum[i]);
    }
}

/* Rows of the next chunk, brought towards the second cache level while this one is multiplied. */
typedef struct fetch_ahead {
    const void *const *rows;
    int64_t n_rows, row_bytes;
    int64_t per_tile;  /* lines to ask for with each of the value tiles */
    int64_t row, done; /* what comes next: bytes `done` of this row */
} fetch_ahead;

static fetch_ahead fetch_ahead_of(const void *const *rows, int64_t n_rows, int64_t row_bytes,
                                  int64_t n_heads, int64_t value_dim)
{
    const int64_t n_lines = n_rows * ((row_bytes + 63) / 64);
    const int64_t n_tiles =
        (value_dim + TAMIS_LANES - 1) / TAMIS_LANES * ((n_heads + TILE_ROWS - 1) / TILE_ROWS);
    return (fetch_ahead){rows, n_rows, row_bytes, (n_lines + n_tiles - 1) / n_tiles, 0, 0};
}

static TAMIS_ALWAYS_INLINE void fetch_lines(fetch_ahead *ahead)
{
    for (int64_t i = 0; i < ahead->per_tile && ahead->row < ahead->n_rows; i++) {
        _mm_prefetch((const char *)ahead->rows[ahead->row] + ahead->done, _MM_HINT_T1);
        ahead->done += 64;
        if (ahead->done >= ahead->row_bytes) {
            ahead->done = 0;
            ahead->row++;
        }
    }
}

/* Softmax of the scores and the product with the values. */
static TAMIS_ALWAYS_INLINE void
softmax_and_values(tamis_attn_fold fold, float *m, float *l, float *o, int64_t o_stride,
                   int64_t n_heads, int64_t value_dim, float *scores, int64_t score_stride,
                   const float *values, int64_t row_stride, int64_t n_rows, fetch_ahead *ahead)
{
    float *shrink = scores + TAMIS_ATTN_CHUNK * score_stride; /* [n_heads], up to 8 more */
    float *grow = shrink + score_stride;                      /* the same */
    for (int64_t h = 0; h < n_heads; h += 8)
        softmax_8(fold, scores + h, score_stride, n_rows, m + h, l + h, n_heads - h, shrink + h,
                  grow + h);
    for (int64_t d = 0; d < value_dim; d += TAMIS_LANES)
        for (int64_t h = 0, tile; h < n_heads; h += tile) {
            tile = even_tile(n_heads - h);
#define VALUE_TILE(count)                                                                          \
    value_tile(count, fold, o + h * o_stride + d, o_stride, value_dim - d, scores + h,             \
               score_stride, values + d, row_stride, n_rows, shrink + h, grow + h)
            WITH_CONSTANT(tile, VALUE_TILE)
            fetch_lines(ahead);
#undef VALUE_TILE
        }
}

/* Brings a gathered row towards the cache while the rows before it are expanded. */
static void prefetch_row(const void *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)row + i, _MM_HINT_T0);
}

TAMIS_KERNEL_attn_chunk(tamis_attn_chunk_avx2)
{
    const int64_t row_stride = round_up_16(head_dim) + TAMIS_LANES;
    const int64_t score_stride = round_up_16(n_heads) + TAMIS_LANES;
    fetch_ahead next = fetch_ahead_of(ahead, n_ahead, format->row_bytes, n_heads, value_dim);
    float *values = scratch;                                 /* [n_rows][row_stride] */
    float *scores = scratch + TAMIS_ATTN_CHUNK * row_stride; /* [n_rows][score_stride] */
    for (int64_t j = 0; j < n_rows; j++) {
        if (j + 2 < n_rows)
            prefetch_row(rows[j + 2], format->row_bytes);
        expand_row(values + j * row_stride, rows[j], format, head_dim);
    }
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES)
        panel_scores(scores + first, score_stride, q_panels + first * head_dim, values, row_stride,
                     n_rows, head_dim, scale);
#define SOFTMAX_AND_VALUES(fold)                                                                   \
    softmax_and_values(fold, m, l, o, o_stride, n_heads, value_dim, scores, score_stride, values,  \
                       row_stride, n_rows, &next)
    if (fold == TAMIS_ATTN_ALONE)
        SOFTMAX_AND_VALUES(TAMIS_ATTN_ALONE);
    else if (fold == TAMIS_ATTN_MERGED)
        SOFTMAX_AND_VALUES(TAMIS_ATTN_MERGED);
    else
        SOFTMAX_AND_VALUES(TAMIS_ATTN_RUNNING);
#undef SOFTMAX_AND_VALUES
}
#endif
