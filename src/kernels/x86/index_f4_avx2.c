/*
 * Index scores over FP4 codes, AVX2.
 *
 * Doubled codes are -12..12; a key's are stored as 0..24, so vpmaddubsw takes them as its unsigned
 * side: a pair is at most 24 * 12 * 2 = 576, and a group of up to MAX_GROUP channels stays within
 * 16 bits. The words start at minus 12 * (sum of q), so what they end at is the sum. The f32 steps
 * behind the exact sums are those of the contract; where all scales and weights are of moderate
 * size, the products by powers of two are exact in any order and one fused step does them, and
 * bf16 rounds by a sum and a difference. Everything else takes the contract's steps one by one.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/index_ahead_avx2.h"
#include "kernels/x86/index_query_avx2.h"
#include "kernels/x86/table_x86.h"

#define MAX_GROUP 128
#define TILE_KEYS 6
/* Scales and weights between 2^-30 and 2^30 leave no step of a score subnormal or infinite. */
#define MAX_EXPONENT 30

/* Behind it, of every panel: codes, bias, scale, as in f4_panel. */
typedef struct f4_query {
    const int8_t *q;
    const float *q_scale, *weights;
    bool is_moderate; /* scales zero or powers of two, they and the weights of moderate size */
} f4_query;

static int64_t group_end(int64_t g, int64_t group, int64_t channels)
{
    const int64_t end = (g + 1) * group;
    return end < channels ? end : channels;
}

/* One panel of 16 heads of a query. */
typedef struct f4_panel {
    int8_t *codes; /* [channels / 4][16 heads][4] */
    int16_t *bias; /* [groups][16 heads][2]: minus 12 * the sum of q, a word per channel parity */
    float *scale;  /* [groups][16] */
    const float *weights;
    int64_t n_groups, group, channels;
} f4_panel;

static f4_panel panel_at(const void *query, int64_t head_dim, int64_t group, int64_t first)
{
    const int64_t channels = round_up(head_dim, 4), n_groups = (head_dim + group - 1) / group;
    const int64_t bytes = TAMIS_LANES * (channels + 8 * n_groups);
    int8_t *codes = (int8_t *)query + 64 + first / TAMIS_LANES * bytes;
    int16_t *bias = (int16_t *)(codes + TAMIS_LANES * channels);
    return (f4_panel){.codes = codes,
                      .bias = bias,
                      .scale = (float *)(bias + 2 * TAMIS_LANES * n_groups),
                      .weights = ((const f4_query *)query)->weights + first,
                      .n_groups = n_groups,
                      .group = group,
                      .channels = channels};
}

static bool has_tiles(int64_t group)
{
    return group % 4 == 0 && group <= MAX_GROUP;
}

static bool is_moderate(float x)
{
    const uint32_t magnitude = tamis_bits_of(x) << 1 >> 1;
    return magnitude == 0 || (magnitude >= (uint32_t)(127 - MAX_EXPONENT) << 23 &&
                              magnitude <= (uint32_t)(127 + MAX_EXPONENT) << 23);
}

static bool is_power_of_two(float x)
{
    return (tamis_bits_of(x) & 0x7fffffu) == 0;
}

static void panel_fill(const f4_panel *panel, const int8_t *q, const float *q_scale,
                       int64_t head_dim)
{
    const __m256i one = _mm256_set1_epi8(1), twelve = _mm256_set1_epi16(12);
    panel_codes_fill(panel->codes, 4 * TAMIS_LANES, q, head_dim);
    for (int64_t g = 0; g < panel->n_groups; g++) {
        for (int64_t h = 0; h < TAMIS_LANES; h++)
            panel->scale[g * TAMIS_LANES + h] = q_scale[h * panel->n_groups + g];
        for (int half = 0; half < 2; half++) {
            __m256i sum = _mm256_setzero_si256();
            for (int64_t d = g * panel->group; d < group_end(g, panel->group, panel->channels);
                 d += 4)
                sum = _mm256_add_epi16(
                    sum, _mm256_maddubs_epi16(
                             one, load_32_bytes(panel->codes + d * TAMIS_LANES + 32 * half)));
            sum = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_mullo_epi16(sum, twelve));
            _mm256_storeu_si256((__m256i *)(panel->bias + (g * 2 + half) * TAMIS_LANES), sum);
        }
    }
}

TAMIS_KERNEL_index_query_f4(tamis_index_query_f4_avx2)
{
    f4_query *to = query;
    if (!has_tiles(group_size)) {
        tamis_index_query_f4_c(query, q, q_scale, weights, n_heads, head_dim, group_size);
        return;
    }
    *to = (f4_query){q, q_scale, weights, true};
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const f4_panel panel = panel_at(query, head_dim, group_size, first);
        panel_fill(&panel, q + first * head_dim, q_scale + first * panel.n_groups, head_dim);
        for (int64_t i = 0; i < panel.n_groups * TAMIS_LANES; i++)
            to->is_moderate &= is_moderate(panel.scale[i]) && is_power_of_two(panel.scale[i]);
        for (int64_t i = 0; i < TAMIS_LANES; i++)
            to->is_moderate &= is_moderate(weights[first + i]);
    }
}

/* ---------------------------------------------------------------- keys */

/* Codes of a key: doubled plus 12, zero's code up to the stride. */
static void key_expand(uint8_t *to, int64_t stride, const uint8_t *codes, int64_t head_dim)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    for (int64_t d = 0; d < stride; d += 2 * TAMIS_LANES) {
        const int64_t left = (head_dim + 1 - d) / 2;
        const __m128i pairs = bytes_load_up_to(codes + d / 2, left < 0 ? 0 : left);
        const __m128i low = _mm_and_si128(pairs, _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
        _mm_storeu_si128((__m128i *)(to + d),
                         _mm_shuffle_epi8(table, _mm_unpacklo_epi8(low, high)));
        _mm_storeu_si128((__m128i *)(to + d + TAMIS_LANES),
                         _mm_shuffle_epi8(table, _mm_unpackhi_epi8(low, high)));
    }
}

/* Scales of a key, times `factor`; false if one is not of moderate size. */
static bool key_scales(float *to, const uint8_t *scales, int64_t n, float factor)
{
    bool all = true;
    for (int64_t g = 0; g < n; g++) {
        all &= scales[g] >= 127 - MAX_EXPONENT && scales[g] <= 127 + MAX_EXPONENT;
        to[g] = tamis_f8_e8m0_to_f32(scales[g]) * factor;
    }
    return all;
}

/* ---------------------------------------------------------------- scores */

/* dot of 8 heads: += group sum times scales, as the contract orders it. */
static TAMIS_ALWAYS_INLINE __m256 add_group(bool is_fused, __m256 dot, __m256i words,
                                            const float *q_scale, const float *key_scale)
{
    const __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    const __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(q_scale), _mm256_broadcast_ss(key_scale));
    if (is_fused) /* the quarter is with the key's scale */
        return _mm256_fmadd_ps(sum, scale, dot);
    const __m256 term = _mm256_mul_ps(sum, scale);
    return _mm256_add_ps(dot, _mm256_mul_ps(term, _mm256_set1_ps(0.25f)));
}

/* sum + bf16(weight * relu(bf16(dot))) of 8 heads. */
static TAMIS_ALWAYS_INLINE __m256 add_head_8(bool is_fused, __m256 sum, __m256 dot, __m256 weight)
{
    if (is_fused) {
        const __m256 relu = _mm256_max_ps(bf16_round_moderate_8(dot), _mm256_setzero_ps());
        return _mm256_add_ps(sum, bf16_round_moderate_8(_mm256_mul_ps(weight, relu)));
    }
    const __m256 rounded = bf16_round_8(dot);
    const __m256 relu = _mm256_and_ps(
        rounded, _mm256_cmp_ps(rounded, _mm256_setzero_ps(), _CMP_NLE_UQ)); /* NaN stays */
    return _mm256_add_ps(sum, bf16_round_8(_mm256_mul_ps(weight, relu)));
}

/* sums[i][0..15] += the panel's share of the scores of n_keys keys. */
static TAMIS_ALWAYS_INLINE void f4_tile(int n_keys, bool is_fused, float *sums,
                                        const f4_panel *panel, const uint8_t *keys, int64_t stride,
                                        const float *key_scale)
{
    float dot[TILE_KEYS][TAMIS_LANES]; /* the words fill the registers */
    for (int i = 0; i < n_keys; i++)
        v16_store(dot[i], v16_zero());
    for (int64_t g = 0; g < panel->n_groups; g++) {
        const int16_t *bias = panel->bias + g * 2 * TAMIS_LANES;
        const int64_t end = group_end(g, panel->group, panel->channels);
        __m256i lo[TILE_KEYS], hi[TILE_KEYS];
        for (int i = 0; i < n_keys; i++) {
            lo[i] = load_32_bytes(bias);
            hi[i] = load_32_bytes(bias + TAMIS_LANES);
        }
        for (int64_t d = g * panel->group; d < end; d += 4) {
            const int8_t *codes = panel->codes + d * TAMIS_LANES;
            const __m256i q_lo = integers_in_register(load_32_bytes(codes));
            const __m256i q_hi = integers_in_register(load_32_bytes(codes + 32));
            for (int i = 0; i < n_keys; i++) {
                const __m256i key = integers_in_register(broadcast_4_bytes(keys + i * stride + d));
                lo[i] =
                    integers_in_register(_mm256_add_epi16(lo[i], _mm256_maddubs_epi16(key, q_lo)));
                hi[i] =
                    integers_in_register(_mm256_add_epi16(hi[i], _mm256_maddubs_epi16(key, q_hi)));
            }
        }
        const float *q_scale = panel->scale + g * TAMIS_LANES;
        for (int i = 0; i < n_keys; i++) {
            const float *scale = key_scale + i * panel->n_groups + g;
            const v16 before = v16_load(dot[i]);
            v16_store(dot[i], (v16){add_group(is_fused, before.lo, lo[i], q_scale, scale),
                                    add_group(is_fused, before.hi, hi[i], q_scale + 8, scale)});
        }
    }
    const v16 weight = v16_load(panel->weights);
    for (int i = 0; i < n_keys; i++) {
        float *sum = sums + i * TAMIS_LANES;
        const v16 before = v16_load(sum), d = v16_load(dot[i]);
        v16_store(sum, (v16){add_head_8(is_fused, before.lo, d.lo, weight.lo),
                             add_head_8(is_fused, before.hi, d.hi, weight.hi)});
    }
}

/* All keys of one panel. */
static TAMIS_ALWAYS_INLINE void panel_scores(bool is_fused, float *sums, const f4_panel *panel,
                                             const uint8_t *keys, int64_t stride,
                                             const float *key_scale, int64_t n_keys,
                                             index_ahead *ahead)
{
    int64_t j = 0;
    for (; j + TILE_KEYS <= n_keys; j += TILE_KEYS) {
        f4_tile(TILE_KEYS, is_fused, sums + j * TAMIS_LANES, panel, keys + j * stride, stride,
                key_scale + j * panel->n_groups);
        index_ahead_fetch(ahead);
    }
    for (; j + 2 <= n_keys; j += 2)
        f4_tile(2, is_fused, sums + j * TAMIS_LANES, panel, keys + j * stride, stride,
                key_scale + j * panel->n_groups);
    if (j < n_keys)
        f4_tile(1, is_fused, sums + j * TAMIS_LANES, panel, keys + j * stride, stride,
                key_scale + j * panel->n_groups);
}

static float round_one(float x)
{
    return tamis_bf16_to_f32(tamis_f32_to_bf16(x));
}

TAMIS_KERNEL_index_score_f4(tamis_index_score_f4_avx2)
{
    const int64_t stride = round_up(head_dim, 32), group = format->group_size;
    if (!has_tiles(group)) {
        tamis_index_score_f4_c(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys,
                               next, scratch);
        return;
    }
    const int64_t n_groups = tamis_row_num_groups(format);
    float *sums = scratch;                                   /* [n_keys][16] */
    float *key_scale = sums + 64 * TAMIS_LANES;              /* [n_keys][groups] */
    uint8_t *codes = (uint8_t *)(key_scale + 64 * n_groups); /* [n_keys][stride] */
    bool is_fused = ((const f4_query *)query)->is_moderate;
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        is_fused &= key_scales(key_scale + j * n_groups, row + format->scale_at, n_groups, 0.25f);
        key_expand(codes + j * stride, stride, row + format->coded_at, head_dim);
    }
    for (int64_t j = 0; !is_fused && j < n_keys; j++)
        key_scales(key_scale + j * n_groups,
                   (const uint8_t *)keys + j * key_stride + format->scale_at, n_groups, 1.0f);
    memset(sums, 0, (size_t)n_keys * TAMIS_LANES * sizeof *sums);
    index_ahead ahead =
        index_ahead_of(next, n_keys * key_stride,
                       round_up(n_heads, TAMIS_LANES) / TAMIS_LANES * (n_keys / TILE_KEYS));
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const f4_panel panel = panel_at(query, head_dim, group, first);
        if (is_fused)
            panel_scores(true, sums, &panel, codes, stride, key_scale, n_keys, &ahead);
        else
            panel_scores(false, sums, &panel, codes, stride, key_scale, n_keys, &ahead);
    }
    for (int64_t j = 0; j < n_keys; j++)
        scores[j] = round_one(v16_sum(v16_load(sums + j * TAMIS_LANES)));
}
#endif
