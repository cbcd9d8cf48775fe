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
#include "kernels/x86/index_ahead_avx2.h"
#include "kernels/x86/index_query_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_KEYS 3
#define PATTERNS  16
/* Groups of 4 channels whose words of top bits cannot overflow: 4 * 128 * 63 < 2^15. */
#define BLOCK_GROUPS 63
/* One pointer for all that a group holds: gcc would walk with several. Emits nothing. */
#if defined(__GNUC__)
#define KEEP_POINTER(p) __asm__("" : "+r"(p))
#else
#define KEEP_POINTER(p) (void)(p)
#endif
/* Below it a dot has at most 23 bits, which add_step_8 counts on, and its step is an FP16 number.
 */
#define MAX_DIM 512

/* What the tile reads for 4 channels of a panel, side by side so that one pointer walks over it. */
typedef struct i8_group {
    int8_t codes[TAMIS_LANES][4];
    int16_t top_sums[PATTERNS][TAMIS_LANES];
} i8_group;

/* One panel of 16 heads of a query. */
typedef struct i8_panel {
    i8_group *groups;
    float *scaled; /* weights * 2^-10 */
    int64_t n_groups;
} i8_panel;

/* A query: 64 bytes unused, scaled [padded heads], the groups of every panel. */
static i8_panel panel_at(const void *query, int64_t n_heads, int64_t head_dim, int64_t first)
{
    const int64_t n_groups = round_up(head_dim, 4) / 4;
    float *scaled = (float *)((uint8_t *)query + 64);
    i8_group *groups = (i8_group *)(scaled + round_up(n_heads, TAMIS_LANES));
    return (i8_panel){.groups = groups + first / TAMIS_LANES * n_groups,
                      .scaled = scaled + first,
                      .n_groups = n_groups};
}

/* Channel c (0..3) of 4-channel codes of 16 heads, as words: heads 0-3, 8-11, 4-7, 12-15. */
static TAMIS_ALWAYS_INLINE __m256i channel_words(const int8_t *codes, int c)
{
    const __m128i up = _mm_cvtsi32_si128(24 - 8 * c);
    const __m256i lo = _mm256_srai_epi32(_mm256_sll_epi32(load_32_bytes(codes), up), 24);
    const __m256i hi = _mm256_srai_epi32(_mm256_sll_epi32(load_32_bytes(codes + 32), up), 24);
    return _mm256_packs_epi32(lo, hi);
}

/* The sums for every pattern of top bits: one more channel than an earlier one. */
static void top_sums_fill(i8_group *group)
{
    __m256i *to = (__m256i *)group->top_sums;
    _mm256_storeu_si256(to, _mm256_setzero_si256());
    for (int c = 0; c < 4; c++) {
        const __m256i channel = channel_words(group->codes[0], c);
        for (int pattern = 1 << c; pattern < 2 << c; pattern++)
            _mm256_storeu_si256(
                to + pattern,
                _mm256_add_epi16(_mm256_loadu_si256(to + pattern - (1 << c)), channel));
    }
}

TAMIS_KERNEL_index_query_i8(tamis_index_query_i8_avx2)
{
    if (head_dim >= MAX_DIM) {
        tamis_index_query_i8_c(query, q, weights, n_heads, head_dim);
        return;
    }
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        memset(panel.groups, 0, (size_t)panel.n_groups * sizeof *panel.groups);
        panel_codes_fill(panel.groups->codes[0], sizeof *panel.groups, q + first * head_dim,
                         head_dim);
        for (int64_t g = 0; g < panel.n_groups; g++)
            top_sums_fill(panel.groups + g);
        v16_store(panel.scaled, v16_scale(v16_load(weights + first), _mm256_set1_ps(0x1p-10f)));
    }
}

/* ---------------------------------------------------------------- keys */

/* 32 codes of a key, the first n of them and zeros if n is less. */
static TAMIS_ALWAYS_INLINE __m256i key_load(const uint8_t *codes, int64_t n)
{
    if (n >= 32)
        return load_32_bytes(codes);
    uint8_t buffer[32] = {0};
    if (n > 0)
        memcpy(buffer, codes, (size_t)n);
    return load_32_bytes(buffer);
}

/* 4 times the top bits of every group, its first channel lowest, as words of 4 bytes. */
static TAMIS_ALWAYS_INLINE __m256i top_bits(__m256i codes)
{
    const __m256i bits = _mm256_and_si256(_mm256_srli_epi16(codes, 7), _mm256_set1_epi8(1));
    const __m256i twos = _mm256_maddubs_epi16(bits, _mm256_set1_epi32(0x20100804));
    return _mm256_madd_epi16(twos, _mm256_set1_epi16(1));
}

/* low: k & 127; tops[g]: 4 times the top bits of group g. Zeros from head_dim to a multiple of 64.
 */
static TAMIS_ALWAYS_INLINE void key_split(uint8_t *low, uint8_t *tops, const uint8_t *codes,
                                          int64_t head_dim)
{
    const __m256i seven = _mm256_set1_epi8(127);
    for (int64_t d = 0; d < head_dim; d += 64) {
        const __m256i first = key_load(codes + d, head_dim - d);
        const __m256i second = key_load(codes + d + 32, head_dim - d - 32);
        _mm256_storeu_si256((__m256i *)(low + d), _mm256_and_si256(first, seven));
        _mm256_storeu_si256((__m256i *)(low + d + 32), _mm256_and_si256(second, seven));
        /* groups 0-3, 8-11 and 4-7, 12-15 */
        const __m256i words = _mm256_packs_epi32(top_bits(first), top_bits(second));
        const __m128i bytes =
            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(tops + d / 4), _mm_shuffle_epi32(bytes, 0xd8));
    }
}

/* ---------------------------------------------------------------- scores */

/*
 * weight * f16(relu(dot) * 2^-10), added to the sums of 8 heads. FP16 keeps 11 bits of a step:
 * (2^13 + 1) times the number ends 13 bits above it, and what is left without 2^13 times the number
 * is it, rounded there, to nearest even. Not so for an odd number of 24 bits just below a power of
 * two, for the product then ends a bit higher. The power of two is with the weight.
 */
static TAMIS_ALWAYS_INLINE __m256 add_step_8(__m256 sum, __m256i dot, __m256 scaled)
{
    const __m256 relu = _mm256_cvtepi32_ps(_mm256_max_epi32(dot, _mm256_setzero_si256()));
    const __m256 big = _mm256_mul_ps(relu, _mm256_set1_ps(8193.0f));
    const __m256 step = _mm256_fmadd_ps(relu, _mm256_set1_ps(-8192.0f), big);
    return _mm256_fmadd_ps(scaled, step, sum);
}

/* dot -= 128 * the sum of the codes whose key has its top bit set; words stand above 16 zeros. */
static TAMIS_ALWAYS_INLINE __m256i take_tops(__m256i dot, __m256i words)
{
    return _mm256_sub_epi32(dot, _mm256_srai_epi32(words, 9));
}

/* One group's products of n_keys keys; low and tops point at it in the first key. */
static TAMIS_ALWAYS_INLINE void add_group(int n_keys, __m256i *lo, __m256i *hi, __m256i *top,
                                          const i8_group *group, const uint8_t *low,
                                          const uint8_t *tops, int64_t stride, __m256i one)
{
    const __m256i q_lo = integers_in_register(load_32_bytes(group->codes));
    const __m256i q_hi = integers_in_register(load_32_bytes(group->codes + 8));
    for (int i = 0; i < n_keys; i++) {
        const __m256i key = integers_in_register(broadcast_4_bytes(low + i * stride));
        const size_t pattern = tops[i * (stride / 4)]; /* times 4 */
        lo[i] = add_32_in_place(lo[i], _mm256_madd_epi16(_mm256_maddubs_epi16(key, q_lo), one));
        hi[i] = add_32_in_place(hi[i], _mm256_madd_epi16(_mm256_maddubs_epi16(key, q_hi), one));
        top[i] = integers_in_register(_mm256_add_epi16(
            top[i], load_32_bytes((const uint8_t *)group->top_sums + 8 * pattern)));
    }
}

/* Sums of n_keys keys over groups [begin, end). */
static TAMIS_ALWAYS_INLINE void add_groups(int n_keys, __m256i *lo, __m256i *hi,
                                           const i8_panel *panel, int64_t begin, int64_t end,
                                           const uint8_t *low, const uint8_t *tops, int64_t stride)
{
    const __m256i one = integers_in_register(_mm256_set1_epi16(1));
    const __m256i zero = _mm256_setzero_si256();
    const i8_group *group = panel->groups + begin;
    __m256i top[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        top[i] = zero;
    for (int64_t g = begin; g < end; g++, group++) {
        KEEP_POINTER(group);
        add_group(n_keys, lo, hi, top, group, low + 4 * g, tops + g, stride, one);
    }
    for (int i = 0; i < n_keys; i++) {
        lo[i] = take_tops(lo[i], _mm256_unpacklo_epi16(zero, top[i]));
        hi[i] = take_tops(hi[i], _mm256_unpackhi_epi16(zero, top[i]));
    }
}

/* Dots of n_keys keys with the panel's 16 heads. */
static TAMIS_ALWAYS_INLINE void i8_tile(int n_keys, int32_t *dots, int64_t dot_stride,
                                        const i8_panel *panel, const uint8_t *low,
                                        const uint8_t *tops, int64_t stride)
{
    __m256i lo[TILE_KEYS], hi[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        lo[i] = hi[i] = _mm256_setzero_si256();
    int64_t begin = 0;
    for (; panel->n_groups - begin > BLOCK_GROUPS; begin += BLOCK_GROUPS)
        add_groups(n_keys, lo, hi, panel, begin, begin + BLOCK_GROUPS, low, tops, stride);
    add_groups(n_keys, lo, hi, panel, begin, panel->n_groups, low, tops, stride);
    for (int i = 0; i < n_keys; i++) {
        _mm256_storeu_si256((__m256i *)(dots + i * dot_stride), lo[i]);
        _mm256_storeu_si256((__m256i *)(dots + i * dot_stride + 8), hi[i]);
    }
}

static TAMIS_ALWAYS_INLINE void score_keys(float *scores, const void *query, int64_t n_heads,
                                           int64_t head_dim, const void *keys,
                                           const tamis_row_format *format, int64_t key_stride,
                                           int64_t n_keys, const void *next, float *scratch)
{
    const int64_t stride = round_up(head_dim, 64);
    const int64_t padded = round_up(n_heads, TAMIS_LANES);
    int32_t *dots = (int32_t *)scratch;             /* [n_keys][padded] */
    uint8_t *low = (uint8_t *)(dots + 64 * padded); /* [n_keys][stride] */
    uint8_t *tops = low + n_keys * stride;          /* [n_keys][stride / 4] */
    for (int64_t j = 0; j < n_keys; j++)
        key_split(low + j * stride, tops + j * (stride / 4),
                  (const uint8_t *)keys + j * key_stride + format->coded_at, head_dim);
    /* two and two are better than three and one */
    index_ahead ahead =
        index_ahead_of(next, n_keys * key_stride, padded / TAMIS_LANES * (n_keys / 3));
    const int64_t in_threes = n_keys % 3 == 1 && n_keys > 1 ? n_keys - 4 : n_keys / 3 * 3;
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        int32_t *to = dots + first;
        int64_t j = 0;
#define I8_TILE(n)                                                                                 \
    i8_tile(n, to + j * padded, padded, &panel, low + j * stride, tops + j * (stride / 4), stride)
        for (; j < in_threes; j += TILE_KEYS) {
            I8_TILE(TILE_KEYS);
            index_ahead_fetch(&ahead);
        }
        for (; j + 2 <= n_keys; j += 2)
            I8_TILE(2);
        if (j < n_keys)
            I8_TILE(1);
#undef I8_TILE
    }
    const float *scaled = panel_at(query, n_heads, head_dim, 0).scaled;
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        const int32_t *dot = dots + j * padded;
        v16 sum = v16_zero();
        for (int64_t h = 0; h < padded; h += TAMIS_LANES)
            sum = (v16){
                add_step_8(sum.lo, load_32_bytes(dot + h), _mm256_loadu_ps(scaled + h)),
                add_step_8(sum.hi, load_32_bytes(dot + h + 8), _mm256_loadu_ps(scaled + h + 8))};
        scores[j] = v16_sum(sum) * _cvtsh_ss(tamis_load_u16(row + format->scale_at));
    }
}

/* The published models' dimension is compiled in: the tile's addresses are constants then. */
TAMIS_KERNEL_index_score_i8(tamis_index_score_i8_avx2)
{
    if (head_dim >= MAX_DIM)
        tamis_index_score_i8_c(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys,
                               next, scratch);
    else if (head_dim == 128)
        score_keys(scores, query, n_heads, 128, keys, format, key_stride, n_keys, next, scratch);
    else
        score_keys(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys, next,
                   scratch);
}
#endif
