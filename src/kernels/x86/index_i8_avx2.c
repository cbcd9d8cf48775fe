/*
 * Index scores over int8 codes, AVX2.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and saturates above 7 bits times 8. So a key's
 * code k is read as 128 times its top bit less than k & 127: the low seven bits go through the
 * multiplier, and what the top bits take away is a sum of query codes that a table knows. Four
 * channels have 16 patterns of top bits; the table holds, for each, the 16 heads' sums as words, so
 * that four channels of 16 heads cost one addition from memory. (Moving the sign instead, with
 * vpsignb, would take a third of the multipliers' time: it runs on their ports.) All sums are
 * exact.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/index_query_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_KEYS 3
#define PATTERNS  16
/* Groups of 4 channels whose words of top bits cannot overflow: 4 * 128 * 63 < 2^15. */
#define BLOCK_GROUPS 63
/* From here on FP16 does not hold every step. */
#define MAX_DIM 4096

/* Behind it: scaled [padded heads], codes [padded heads][channels], top_sums of every panel. */
typedef struct i8_query {
    const int8_t *q;
    const float *weights;
} i8_query;

/* One panel of 16 heads of a query. */
typedef struct i8_panel {
    int8_t *codes;     /* [groups][16 heads][4] */
    int16_t *top_sums; /* [groups][PATTERNS][16 heads] */
    float *scaled;     /* weights * 2^-10 */
    int64_t n_groups;
} i8_panel;

static i8_panel panel_at(const void *query, int64_t n_heads, int64_t head_dim, int64_t first)
{
    const int64_t padded = round_up(n_heads, TAMIS_LANES), channels = round_up(head_dim, 4);
    float *scaled = (float *)((uint8_t *)query + 64);
    int8_t *codes = (int8_t *)(scaled + padded);
    int16_t *top_sums = (int16_t *)(codes + padded * channels);
    return (i8_panel){.codes = codes + first * channels,
                      .top_sums = top_sums + first * (channels / 4 * PATTERNS),
                      .scaled = scaled + first,
                      .n_groups = channels / 4};
}

/* Channel c (0..3) of 4-channel codes of 16 heads, as words. */
static TAMIS_ALWAYS_INLINE __m256i channel_words(const int8_t *codes, int c)
{
    const __m128i up = _mm_cvtsi32_si128(24 - 8 * c);
    const __m256i lo = _mm256_srai_epi32(_mm256_sll_epi32(load_32_bytes(codes), up), 24);
    const __m256i hi = _mm256_srai_epi32(_mm256_sll_epi32(load_32_bytes(codes + 32), up), 24);
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
}

/* The sums of one group for every pattern of top bits: one more channel than an earlier one. */
static void top_sums_fill(int16_t *sums, const int8_t *codes)
{
    __m256i *to = (__m256i *)sums;
    _mm256_storeu_si256(to, _mm256_setzero_si256());
    for (int c = 0; c < 4; c++) {
        const __m256i channel = channel_words(codes, c);
        for (int pattern = 1 << c; pattern < 2 << c; pattern++)
            _mm256_storeu_si256(
                to + pattern,
                _mm256_add_epi16(_mm256_loadu_si256(to + pattern - (1 << c)), channel));
    }
}

TAMIS_KERNEL_index_query_i8(tamis_index_query_i8_avx2)
{
    *(i8_query *)query = (i8_query){q, weights};
    if (head_dim >= MAX_DIM) {
        tamis_index_query_i8_c(query, q, weights, n_heads, head_dim);
        return;
    }
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        panel_codes_fill(panel.codes, q + first * head_dim, head_dim);
        for (int64_t g = 0; g < panel.n_groups; g++)
            top_sums_fill(panel.top_sums + g * PATTERNS * TAMIS_LANES,
                          panel.codes + g * 4 * TAMIS_LANES);
        v16_store(panel.scaled, v16_scale(v16_load(weights + first), _mm256_set1_ps(0x1p-10f)));
    }
}

/* ---------------------------------------------------------------- keys */

/* low: k & 127; tops[g]: 4 times the top bits of group g. Zeros from head_dim to a multiple of 32.
 */
static void key_split(uint8_t *low, uint8_t *tops, const uint8_t *codes, int64_t head_dim)
{
    const __m256i top = _mm256_set1_epi8((char)0x80), place = _mm256_set1_epi32(0x08040201);
    for (int64_t d = 0; d < head_dim; d += 32) {
        const int64_t left = head_dim - d;
        const __m128i first = bytes_load_up_to(codes + d, left);
        const __m128i second =
            left > 16 ? bytes_load_up_to(codes + d + 16, left - 16) : _mm_setzero_si128();
        const __m256i k = _mm256_set_m128i(second, first);
        _mm256_storeu_si256((__m256i *)(low + d), _mm256_andnot_si256(top, k));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_and_si256(top, k), place);
        const __m256i patterns =
            _mm256_srli_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), 5);
        const __m256i words = _mm256_packs_epi32(patterns, patterns);
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const int32_t lo = _mm256_cvtsi256_si32(bytes);
        const int32_t hi = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
        memcpy(tops + d / 4, &lo, sizeof lo);
        memcpy(tops + d / 4 + 4, &hi, sizeof hi);
    }
}

/* ---------------------------------------------------------------- scores */

/*
 * weight * f16(relu(dot) * 2^-10), added to the sums of 8 heads. FP16 keeps 11 bits of a step: the
 * sum with 2^13 + 1 times the number and back rounds there, to nearest even, and the power of two
 * is with the weight.
 */
static TAMIS_ALWAYS_INLINE __m256 add_step_8(__m256 sum, __m256i dot, __m256 scaled)
{
    const __m256 relu = _mm256_cvtepi32_ps(_mm256_max_epi32(dot, _mm256_setzero_si256()));
    const __m256 big = _mm256_mul_ps(relu, _mm256_set1_ps(8193.0f));
    const __m256 step = _mm256_sub_ps(big, _mm256_sub_ps(big, relu));
    return _mm256_fmadd_ps(scaled, step, sum);
}

/* dot -= 128 * the sum of the codes whose key has its top bit set. */
static TAMIS_ALWAYS_INLINE __m256i take_tops(__m256i dot, __m128i words)
{
    return _mm256_sub_epi32(dot, _mm256_slli_epi32(_mm256_cvtepi16_epi32(words), 7));
}

/* sums[i][0..15] += the panel's share of the scores of n_keys keys. */
static TAMIS_ALWAYS_INLINE void i8_tile(int n_keys, float *sums, const i8_panel *panel,
                                        const uint8_t *low, const uint8_t *tops, int64_t stride)
{
    const __m256i one = integers_in_register(_mm256_set1_epi16(1));
    __m256i lo[TILE_KEYS], hi[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        lo[i] = hi[i] = _mm256_setzero_si256();
    for (int64_t begin = 0; begin < panel->n_groups; begin += BLOCK_GROUPS) {
        const int64_t left = panel->n_groups - begin;
        const int64_t end = begin + (left < BLOCK_GROUPS ? left : BLOCK_GROUPS);
        __m256i top[TILE_KEYS];
        for (int i = 0; i < n_keys; i++)
            top[i] = _mm256_setzero_si256();
        for (int64_t g = begin; g < end; g++) {
            const int8_t *codes = panel->codes + g * 4 * TAMIS_LANES;
            const int16_t *table = panel->top_sums + g * PATTERNS * TAMIS_LANES;
            const __m256i q_lo = integers_in_register(load_32_bytes(codes));
            const __m256i q_hi = integers_in_register(load_32_bytes(codes + 32));
            for (int i = 0; i < n_keys; i++) {
                const __m256i key =
                    integers_in_register(broadcast_4_bytes(low + i * stride + 4 * g));
                lo[i] = integers_in_register(_mm256_add_epi32(
                    lo[i], _mm256_madd_epi16(_mm256_maddubs_epi16(key, q_lo), one)));
                hi[i] = integers_in_register(_mm256_add_epi32(
                    hi[i], _mm256_madd_epi16(_mm256_maddubs_epi16(key, q_hi), one)));
                top[i] = integers_in_register(_mm256_add_epi16(
                    top[i], load_32_bytes(table + 4 * (size_t)tops[i * (stride / 4) + g])));
            }
        }
        for (int i = 0; i < n_keys; i++) {
            lo[i] = take_tops(lo[i], _mm256_castsi256_si128(top[i]));
            hi[i] = take_tops(hi[i], _mm256_extracti128_si256(top[i], 1));
        }
    }
    const v16 scaled = v16_load(panel->scaled);
    for (int i = 0; i < n_keys; i++) {
        float *sum = sums + i * TAMIS_LANES;
        const v16 before = v16_load(sum);
        v16_store(sum, (v16){add_step_8(before.lo, lo[i], scaled.lo),
                             add_step_8(before.hi, hi[i], scaled.hi)});
    }
}

TAMIS_KERNEL_index_score_i8(tamis_index_score_i8_avx2)
{
    const int64_t stride = round_up(head_dim, 32);
    float *sums = scratch;                                  /* [n_keys][16] */
    uint8_t *low = (uint8_t *)(scratch + 64 * TAMIS_LANES); /* [n_keys][stride] */
    uint8_t *tops = low + n_keys * stride;                  /* [n_keys][stride / 4] */
    if (head_dim >= MAX_DIM) {
        tamis_index_score_i8_c(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys,
                               scratch);
        return;
    }
    for (int64_t j = 0; j < n_keys; j++)
        key_split(low + j * stride, tops + j * (stride / 4),
                  (const uint8_t *)keys + j * key_stride + format->coded_at, head_dim);
    memset(sums, 0, (size_t)n_keys * TAMIS_LANES * sizeof *sums);
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        int64_t j = 0;
        for (; j + TILE_KEYS <= n_keys; j += TILE_KEYS)
            i8_tile(TILE_KEYS, sums + j * TAMIS_LANES, &panel, low + j * stride,
                    tops + j * (stride / 4), stride);
        for (; j < n_keys; j++)
            i8_tile(1, sums + j * TAMIS_LANES, &panel, low + j * stride, tops + j * (stride / 4),
                    stride);
    }
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        scores[j] = v16_sum(v16_load(sums + j * TAMIS_LANES)) *
                    tamis_f16_to_f32(tamis_load_u16(row + format->scale_at));
    }
}
#endif
