/*
 * Index scores over int8 codes, AVX2.
 *
 * vpmaddubsw multiplies unsigned by signed bytes, so a key's magnitudes meet query codes that carry
 * the signs of both. Four channels of a key have 16 patterns of signs; a table holds, for each, the
 * codes of 16 heads, negated where the key is negative, and the pattern finds its row. Moving signs
 * with vpsignb would take a third of the time of the pipes that multiply; the table takes none, and
 * streams from the second cache level. A pair of products has at most 128 * 127 * 2 < 2^15, so
 * nothing saturates. A query with a code of -128, which quantize_i8 does not make, is left to the
 * portable level. All sums are exact.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/index_ahead_avx2.h"
#include "kernels/x86/index_query_avx2.h"
#include "kernels/x86/table_x86.h"

#define TILE_KEYS 4
#define PATTERNS  16
#define MAX_KEYS  64
/* One panel's dots of all keys. */
#define DOTS_STRIDE (MAX_KEYS * TAMIS_LANES)
/* Below it a dot has at most 23 bits, which add_step_8 counts on, and its step is an FP16 number.
 */
#define MAX_DIM 512

/* 4 channels of 16 heads, for every pattern of a key's signs. */
typedef struct i8_group {
    int8_t codes[PATTERNS][TAMIS_LANES][4];
} i8_group;

/* What the portable level keeps, and whether the tables below were made. */
typedef struct i8_query {
    const int8_t *q;
    const float *q_scale, *weights;
    bool has_tables;
} i8_query;

/* One panel of 16 heads of a query. */
typedef struct i8_panel {
    i8_group *groups;
    float *scaled; /* weights * 2^-10 */
    int64_t n_groups;
} i8_panel;

/* A query: i8_query, scaled [padded heads], the groups of every panel. */
static i8_panel panel_at(const void *query, int64_t n_heads, int64_t head_dim, int64_t first)
{
    const int64_t n_groups = round_up(head_dim, 4) / 4;
    float *scaled = (float *)((uint8_t *)query + 64);
    i8_group *groups = (i8_group *)(scaled + round_up(n_heads, TAMIS_LANES));
    return (i8_panel){.groups = groups + first / TAMIS_LANES * n_groups,
                      .scaled = scaled + first,
                      .n_groups = n_groups};
}

static bool has_tables(const int8_t *q, int64_t n_heads, int64_t head_dim)
{
    return head_dim < MAX_DIM && memchr(q, INT8_MIN, (size_t)(n_heads * head_dim)) == NULL;
}

/* The rows of pattern 0 are there: the others, each with one sign more than an earlier one. */
static void patterns_fill(i8_group *group)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int c = 0; c < 4; c++) {
        const __m256i channel = _mm256_set1_epi32((int32_t)(0xffu << 8 * c));
        for (int pattern = 1 << c; pattern < 2 << c; pattern++)
            for (int half = 0; half < TAMIS_LANES; half += 8) {
                const __m256i from = load_32_bytes(group->codes[pattern - (1 << c)][half]);
                const __m256i to = _mm256_blendv_epi8(from, _mm256_sub_epi8(zero, from), channel);
                _mm256_storeu_si256((__m256i *)group->codes[pattern][half], to);
            }
    }
}

TAMIS_KERNEL_index_query_i8(tamis_index_query_i8_avx2)
{
    *(i8_query *)query = (i8_query){q, NULL, weights, has_tables(q, n_heads, head_dim)};
    if (!((i8_query *)query)->has_tables)
        return;
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        panel_codes_fill(panel.groups->codes[0][0], sizeof *panel.groups, q + first * head_dim,
                         head_dim);
        for (int64_t g = 0; g < panel.n_groups; g++)
            patterns_fill(panel.groups + g);
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

/* Sums of neighbouring bytes of a, then of b, in their 16-byte halves. */
static TAMIS_ALWAYS_INLINE __m256i add_neighbours(__m256i a, __m256i b)
{
    const __m256i one = _mm256_set1_epi8(1);
    return _mm256_packus_epi16(_mm256_maddubs_epi16(a, one), _mm256_maddubs_epi16(b, one));
}

/* magnitudes: |k|; signs[g]: 8 times the pattern of group g. Zeros from head_dim to a multiple of
 * 128. */
static TAMIS_ALWAYS_INLINE void key_split(uint8_t *magnitudes, uint8_t *signs, const uint8_t *codes,
                                          int64_t head_dim)
{
    const __m256i bits = _mm256_set1_epi32(0x40201008), zero = _mm256_setzero_si256();
    for (int64_t d = 0; d < head_dim; d += 128) {
        __m256i of[4];
        for (int i = 0; i < 4; i++) {
            const __m256i k = key_load(codes + d + 32 * i, head_dim - d - 32 * i);
            _mm256_storeu_si256((__m256i *)(magnitudes + d + 32 * i), _mm256_abs_epi8(k));
            of[i] = _mm256_and_si256(_mm256_cmpgt_epi8(zero, k), bits);
        }
        /* 32-bit lanes: groups 0-3, 8-11, 16-19, 24-27, then 4-7 and so on */
        const __m256i all =
            add_neighbours(add_neighbours(of[0], of[1]), add_neighbours(of[2], of[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256((__m256i *)(signs + d / 4), _mm256_permutevar8x32_epi32(all, order));
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

/*
 * acc += dots of 4 magnitudes, u, with 4 codes each, `at` bytes behind the group's row of `pattern`
 * (times 8); one: words. In this order the pipes that multiply lose nothing to the additions; two
 * products first and two sums behind them cost 5 % (AMD family 25), and a computed address takes a
 * slot that the loop needs.
 */
#if defined(__GNUC__)
#define ADD_DOTS(acc, u, group, pattern, at, one)                                                  \
    do {                                                                                           \
        __m256i t;                                                                                 \
        __asm__("vpmaddubsw " #at "(%2,%3,8), %4, %1\n\t"                                          \
                "vpmaddwd %5, %1, %1\n\t"                                                          \
                "vpaddd %1, %0, %0"                                                                \
                : "+x"(acc), "=&x"(t)                                                              \
                : "r"(group), "r"(pattern), "x"(u), "x"(one), "m"(*(group)));                      \
    } while (0)
#else
#define ADD_DOTS(acc, u, group, pattern, at, one)                                                  \
    ((acc) = _mm256_add_epi32(                                                                     \
         acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, load_32_bytes((const int8_t *)(group) +    \
                                                                      8 * (pattern) + (at))),      \
                                one)))
#endif

/* Dots of n_keys keys with the panel's 16 heads. */
static TAMIS_ALWAYS_INLINE void i8_tile(int n_keys, int32_t *dots, const i8_panel *panel,
                                        const uint8_t *magnitudes, const uint8_t *signs,
                                        int64_t stride)
{
    const __m256i one = integers_in_register(_mm256_set1_epi16(1));
    const i8_group *group = panel->groups;
    __m256i lo[TILE_KEYS], hi[TILE_KEYS];
    for (int i = 0; i < n_keys; i++)
        lo[i] = hi[i] = _mm256_setzero_si256();
    for (int64_t g = 0; g < panel->n_groups; g++, group++) {
        KEEP_POINTER(group); /* one pointer for all of it: gcc would walk with several */
        for (int i = 0; i < n_keys; i++) {
            const __m256i key =
                integers_in_register(broadcast_4_bytes(magnitudes + i * stride + 4 * g));
            const size_t pattern = signs[i * (stride / 4) + g]; /* times 8 */
            ADD_DOTS(lo[i], key, group, pattern, 0, one);
            ADD_DOTS(hi[i], key, group, pattern, 32, one);
        }
    }
    for (int i = 0; i < n_keys; i++, dots += TAMIS_LANES) {
        _mm256_storeu_si256((__m256i *)dots, lo[i]);
        _mm256_storeu_si256((__m256i *)(dots + 8), hi[i]);
    }
}

/* Dots of the keys with all heads, [panel][MAX_KEYS][16]. */
static TAMIS_ALWAYS_INLINE void dots_fill(int32_t *dots, const void *query, int64_t n_heads,
                                          int64_t head_dim, const uint8_t *magnitudes,
                                          const uint8_t *signs, int64_t n_keys, index_ahead *ahead)
{
    const int64_t stride = round_up(head_dim, 128);
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES, dots += DOTS_STRIDE) {
        const i8_panel panel = panel_at(query, n_heads, head_dim, first);
        int64_t j = 0;
#define I8_TILE(n)                                                                                 \
    i8_tile(n, dots + j * TAMIS_LANES, &panel, magnitudes + j * stride, signs + j * (stride / 4),  \
            stride)
        for (; j + TILE_KEYS <= n_keys; j += TILE_KEYS) {
            I8_TILE(TILE_KEYS);
            index_ahead_fetch(ahead);
        }
        for (; j + 2 <= n_keys; j += 2)
            I8_TILE(2);
        if (j < n_keys)
            I8_TILE(1);
#undef I8_TILE
    }
}

/* Steps of one key's heads times their weights, before the halving tree. */
static TAMIS_ALWAYS_INLINE v16 steps_sum(const int32_t *dots, const float *scaled, int64_t padded)
{
    v16 sum = v16_zero();
    for (int64_t h = 0; h < padded; h += TAMIS_LANES, dots += DOTS_STRIDE) {
        const v16 weight = v16_load(scaled + h);
        sum = (v16){add_step_8(sum.lo, load_32_bytes(dots), weight.lo),
                    add_step_8(sum.hi, load_32_bytes(dots + 8), weight.hi)};
    }
    return sum;
}

static TAMIS_ALWAYS_INLINE void score_keys(float *scores, const void *query, int64_t n_heads,
                                           int64_t head_dim, const void *keys,
                                           const tamis_row_format *format, int64_t key_stride,
                                           int64_t n_keys, const void *next, float *scratch)
{
    const int64_t stride = round_up(head_dim, 128), padded = round_up(n_heads, TAMIS_LANES);
    int32_t *dots = (int32_t *)scratch;
    uint8_t *magnitudes = (uint8_t *)(dots + MAX_KEYS * padded); /* [n_keys][stride] */
    uint8_t *signs = magnitudes + n_keys * stride;               /* [n_keys][stride / 4] */
    float scales[MAX_KEYS];
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *row = (const uint8_t *)keys + j * key_stride;
        key_split(magnitudes + j * stride, signs + j * (stride / 4), row + format->coded_at,
                  head_dim);
        scales[j] = _cvtsh_ss(tamis_load_u16(row + format->scale_at));
    }
    index_ahead ahead =
        index_ahead_of(next, n_keys * key_stride, padded / TAMIS_LANES * (n_keys / TILE_KEYS));
    dots_fill(dots, query, n_heads, head_dim, magnitudes, signs, n_keys, &ahead);
    const float *scaled = panel_at(query, n_heads, head_dim, 0).scaled;
    int64_t j = 0;
    for (; j + 4 <= n_keys; j += 4) {
        v16 sums[4];
        for (int i = 0; i < 4; i++)
            sums[i] = steps_sum(dots + (j + i) * TAMIS_LANES, scaled, padded);
        _mm_storeu_ps(scores + j, _mm_mul_ps(v16_sum_4(sums), _mm_loadu_ps(scales + j)));
    }
    for (; j < n_keys; j++)
        scores[j] = v16_sum(steps_sum(dots + j * TAMIS_LANES, scaled, padded)) * scales[j];
}

/* The published models' dimension is compiled in: the tile's addresses are constants then. */
TAMIS_KERNEL_index_score_i8(tamis_index_score_i8_avx2)
{
    if (!((const i8_query *)query)->has_tables)
        tamis_index_score_i8_c(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys,
                               next, scratch);
    else if (head_dim == 128)
        score_keys(scores, query, n_heads, 128, keys, format, key_stride, n_keys, next, scratch);
    else
        score_keys(scores, query, n_heads, head_dim, keys, format, key_stride, n_keys, next,
                   scratch);
}
#endif
