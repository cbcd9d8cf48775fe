/*
 * Index scores over FP4 and int8 codes, AVX2.
 *
 * Heads lie in lanes, as in attention_avx2.c: the codes of a panel of 16 heads are reordered once
 * so that a vector holds a few channels of 8 heads, a key's same channels are broadcast, and a lane
 * sums what belongs to its head; no sum crosses lanes. The integer sums are exact in any order; the
 * f32 steps behind them are those of the contract.
 *
 * FP4: 4 channels a lane. Doubled codes are -12..12; the key's are stored as 0..24, so vpmaddubsw
 * takes them as its unsigned side: a pair is at most 24 * 12 * 2 = 576, and a group of up to
 * MAX_GROUP channels stays within 16 bits. 12 * (sum of q) comes off afterwards.
 * int8: 2 channels a lane, widened to words; vpmaddwd holds 2 * (-128 * -128).
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/lowbit_avx2.h"
#include "kernels/x86/table_x86.h"

#define MAX_GROUP 128
#define TILE_KEYS 4

static int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* +0 where v <= 0, else v; NaN stays. */
static TAMIS_ALWAYS_INLINE __m256 relu_8(__m256 v)
{
    return _mm256_and_ps(v, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NLE_UQ));
}

static TAMIS_ALWAYS_INLINE __m256i load_32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* The same 4 bytes in every lane. */
static TAMIS_ALWAYS_INLINE __m256i broadcast_4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* ---------------------------------------------------------------- FP4 */

/* What the tiles of one panel read; the arrays lie in the kernel's scratch. */
typedef struct f4_panel {
    int8_t *q;                         /* [channels / 4][16 heads][4] */
    int32_t *q_sum;                    /* [groups][16] 12 * the sum of q over the group */
    float *q_scale;                    /* [groups][16] */
    int64_t n_groups, group, channels; /* channels: a multiple of 4 */
} f4_panel;

static TAMIS_ALWAYS_INLINE int64_t group_end(const f4_panel *panel, int64_t g)
{
    const int64_t end = (g + 1) * panel->group;
    return end < panel->channels ? end : panel->channels;
}

static void f4_panel_fill(f4_panel *panel, const int8_t *q, const float *q_scale, int64_t head_dim)
{
    for (int64_t h = 0; h < TAMIS_LANES; h++) {
        for (int64_t d = 0; d < panel->channels; d += 4) {
            const int8_t *from = q + h * head_dim + d;
            int32_t four = 0;
            if (head_dim - d >= 4)
                memcpy(&four, from, sizeof four);
            else
                memcpy(&four, from, (size_t)(head_dim - d));
            memcpy(panel->q + (d / 4 * TAMIS_LANES + h) * 4, &four, sizeof four);
        }
        for (int64_t g = 0; g < panel->n_groups; g++)
            panel->q_scale[g * TAMIS_LANES + h] = q_scale[h * panel->n_groups + g];
    }
    const __m256i twelve = _mm256_set1_epi8(12), one = _mm256_set1_epi16(1);
    for (int64_t g = 0; g < panel->n_groups; g++)
        for (int half = 0; half < 2; half++) {
            __m256i sum = _mm256_setzero_si256();
            for (int64_t d = g * panel->group; d < group_end(panel, g); d += 4)
                sum = _mm256_add_epi16(
                    sum,
                    _mm256_maddubs_epi16(twelve, load_32(panel->q + d * TAMIS_LANES + 32 * half)));
            _mm256_storeu_si256((__m256i *)(panel->q_sum + g * TAMIS_LANES + 8 * half),
                                _mm256_madd_epi16(sum, one));
        }
}

/* Codes of a key: doubled plus 12, zeros' code up to the stride. */
static void f4_key_expand(uint8_t *to, int64_t stride, const uint8_t *codes, int64_t head_dim)
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

/* dot of 8 heads: += group sum times scales, as the contract orders it. */
static TAMIS_ALWAYS_INLINE __m256 f4_add_group(__m256 dot, __m256i words, const int32_t *q_sum,
                                               const float *q_scale, __m256 key_scale)
{
    const __m256i sum =
        _mm256_sub_epi32(_mm256_madd_epi16(words, _mm256_set1_epi16(1)), load_32(q_sum));
    const __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(q_scale), key_scale);
    const __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
    return _mm256_add_ps(dot, _mm256_mul_ps(term, _mm256_set1_ps(0.25f)));
}

/* sums[i][0..15] += this panel's share of the scores of n_keys keys. */
static TAMIS_ALWAYS_INLINE void f4_tile(int n_keys, float *sums, const f4_panel *panel,
                                        const float *weights, const uint8_t *keys,
                                        int64_t key_stride, const uint8_t *const *key_scale)
{
    v16 dot[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        dot[i] = v16_zero();
    for (int64_t g = 0; g < panel->n_groups; g++) {
        __m256i lo[TILE_KEYS], hi[TILE_KEYS];
        for (int i = 0; i < n_keys; i++)
            lo[i] = hi[i] = _mm256_setzero_si256();
        for (int64_t d = g * panel->group; d < group_end(panel, g); d += 4) {
            const __m256i q_lo = load_32(panel->q + d * TAMIS_LANES);
            const __m256i q_hi = load_32(panel->q + d * TAMIS_LANES + 32);
            for (int i = 0; i < n_keys; i++) {
                const __m256i key = broadcast_4(keys + i * key_stride + d);
                lo[i] = _mm256_add_epi16(lo[i], _mm256_maddubs_epi16(key, q_lo));
                hi[i] = _mm256_add_epi16(hi[i], _mm256_maddubs_epi16(key, q_hi));
            }
        }
        const int32_t *q_sum = panel->q_sum + g * TAMIS_LANES;
        const float *q_scale = panel->q_scale + g * TAMIS_LANES;
        for (int i = 0; i < n_keys; i++) {
            const __m256 scale = _mm256_set1_ps(tamis_f8_e8m0_to_f32(key_scale[i][g]));
            dot[i].lo = f4_add_group(dot[i].lo, lo[i], q_sum, q_scale, scale);
            dot[i].hi = f4_add_group(dot[i].hi, hi[i], q_sum + 8, q_scale + 8, scale);
        }
    }
    const v16 weight = v16_load(weights);
    for (int i = 0; i < n_keys; i++) {
        const v16 rounded = bf16_round(dot[i]);
        const v16 term = {_mm256_mul_ps(weight.lo, relu_8(rounded.lo)),
                          _mm256_mul_ps(weight.hi, relu_8(rounded.hi))};
        float *sum = sums + i * TAMIS_LANES;
        v16_store(sum, v16_add(v16_load(sum), bf16_round(term)));
    }
}

static float round_one(float x)
{
    return tamis_bf16_to_f32(tamis_f32_to_bf16(x));
}

TAMIS_KERNEL_index_score_f4(tamis_index_score_f4_avx2)
{
    const int64_t key_bytes = round_up(head_dim, 32);
    if (format->group_size % 4 != 0 || format->group_size > MAX_GROUP) {
        tamis_index_score_f4_c(scores, q, q_scale, weights, n_heads, head_dim, keys, format,
                               key_stride, n_keys, scratch);
        return;
    }
    float *sums = scratch; /* [n_keys][16] */
    f4_panel panel = {.n_groups = tamis_row_num_groups(format),
                      .group = format->group_size,
                      .channels = round_up(head_dim, 4)};
    panel.q_sum = (int32_t *)(sums + 64 * TAMIS_LANES);
    panel.q_scale = (float *)(panel.q_sum + panel.n_groups * TAMIS_LANES);
    panel.q = (int8_t *)(panel.q_scale + panel.n_groups * TAMIS_LANES);
    uint8_t *codes = (uint8_t *)(panel.q + panel.channels * TAMIS_LANES); /* [n_keys][key_bytes] */
    const uint8_t *key_scale[64];
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        key_scale[j] = row + format->scale_at;
        f4_key_expand(codes + j * key_bytes, key_bytes, row + format->coded_at, head_dim);
    }
    memset(sums, 0, (size_t)n_keys * TAMIS_LANES * sizeof *sums);
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        f4_panel_fill(&panel, q + first * head_dim, q_scale + first * panel.n_groups, head_dim);
        int64_t j = 0;
        for (; j + TILE_KEYS <= n_keys; j += TILE_KEYS)
            f4_tile(TILE_KEYS, sums + j * TAMIS_LANES, &panel, weights + first,
                    codes + j * key_bytes, key_bytes, key_scale + j);
        for (; j < n_keys; j++)
            f4_tile(1, sums + j * TAMIS_LANES, &panel, weights + first, codes + j * key_bytes,
                    key_bytes, key_scale + j);
    }
    for (int64_t j = 0; j < n_keys; j++)
        scores[j] = round_one(v16_sum(v16_load(sums + j * TAMIS_LANES)));
}

/* ---------------------------------------------------------------- int8 */

/* A panel of 16 heads: [channels / 2][16 heads][2] words, zeros behind head_dim. */
static void i8_panel_fill(int16_t *panel, const int8_t *q, int64_t head_dim)
{
    for (int64_t d = 0; d < head_dim; d += TAMIS_LANES) {
        _Alignas(32) int32_t pairs[TAMIS_LANES][8]; /* of 16 channels a head */
        for (int h = 0; h < TAMIS_LANES; h++)
            _mm256_store_si256((__m256i *)pairs[h], _mm256_cvtepi8_epi16(bytes_load_up_to(
                                                        q + h * head_dim + d, head_dim - d)));
        for (int k = 0; k < 8; k++)
            for (int h = 0; h < TAMIS_LANES; h++)
                memcpy(panel + ((d / 2 + k) * TAMIS_LANES + h) * 2, &pairs[h][k],
                       sizeof pairs[h][k]);
    }
}

/* f16(relu(dot) * 2^-10) of 8 heads. */
static TAMIS_ALWAYS_INLINE __m256 i8_step_8(__m256i dot)
{
    const __m256 relu = _mm256_cvtepi32_ps(_mm256_max_epi32(dot, _mm256_setzero_si256()));
    return _mm256_cvtph_ps(
        _mm256_cvtps_ph(_mm256_mul_ps(relu, _mm256_set1_ps(0x1p-10f)), _MM_FROUND_TO_NEAREST_INT));
}

static TAMIS_ALWAYS_INLINE void i8_tile(int n_keys, float *sums, const int16_t *panel,
                                        const float *weights, const int16_t *keys,
                                        int64_t key_stride, int64_t head_dim)
{
    __m256i lo[TILE_KEYS], hi[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        lo[i] = hi[i] = _mm256_setzero_si256();
    for (int64_t d = 0; d < head_dim; d += 2) {
        const __m256i q_lo = load_32(panel + d * TAMIS_LANES);
        const __m256i q_hi = load_32(panel + d * TAMIS_LANES + 16);
        for (int i = 0; i < n_keys; i++) {
            const __m256i key = broadcast_4(keys + i * key_stride + d);
            lo[i] = _mm256_add_epi32(lo[i], _mm256_madd_epi16(key, q_lo));
            hi[i] = _mm256_add_epi32(hi[i], _mm256_madd_epi16(key, q_hi));
        }
    }
    const v16 weight = v16_load(weights);
    for (int i = 0; i < n_keys; i++) {
        float *sum = sums + i * TAMIS_LANES;
        const v16 step = {i8_step_8(lo[i]), i8_step_8(hi[i])};
        v16_store(sum, v16_fma(weight, step, v16_load(sum)));
    }
}

TAMIS_KERNEL_index_score_i8(tamis_index_score_i8_avx2)
{
    const int64_t stride = round_up(head_dim, TAMIS_LANES);
    float *sums = scratch;                                    /* [n_keys][16] */
    int16_t *panel = (int16_t *)(scratch + 64 * TAMIS_LANES); /* [stride / 2][16][2] */
    int16_t *words = panel + stride * TAMIS_LANES;            /* [n_keys][stride] */
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *key = (const uint8_t *)keys + j * key_stride + format->coded_at;
        for (int64_t d = 0; d < head_dim; d += TAMIS_LANES)
            _mm256_storeu_si256((__m256i *)(words + j * stride + d),
                                _mm256_cvtepi8_epi16(bytes_load_up_to(key + d, head_dim - d)));
    }
    memset(sums, 0, (size_t)n_keys * TAMIS_LANES * sizeof *sums);
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        i8_panel_fill(panel, q + first * head_dim, head_dim);
        int64_t j = 0;
        for (; j + TILE_KEYS <= n_keys; j += TILE_KEYS)
            i8_tile(TILE_KEYS, sums + j * TAMIS_LANES, panel, weights + first, words + j * stride,
                    stride, head_dim);
        for (; j < n_keys; j++)
            i8_tile(1, sums + j * TAMIS_LANES, panel, weights + first, words + j * stride, stride,
                    head_dim);
    }
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        scores[j] = v16_sum(v16_load(sums + j * TAMIS_LANES)) *
                    tamis_f16_to_f32(tamis_load_u16(row + format->scale_at));
    }
}
#endif
