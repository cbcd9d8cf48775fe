/*
 * quads16 in registers (numerics.md): 64 columns go to 16 lanes, four neighbours to each; so of 32
 * columns 4 q + b, b = 0..3, lane q of one register takes four *planes* b, one after the other. The
 * first 32 of 64 columns are lanes 0-7, the others 8-15.
 *
 * Stored weights decode to planes as they lie: plane b of a register of FP8 is byte b of its
 * dwords. Inputs are brought to *plane order* once per call, [32 columns][b][q], zeros up to a
 * multiple of 64, and are read from there without a shuffle.
 */
#ifndef TAMIS_KERNELS_PLANES_AVX2_H
#define TAMIS_KERNELS_PLANES_AVX2_H

#include "kernels/x86/simd_avx2.h"

#define PLANE_COLS 32 /* of a register's planes */
#define QUADS_COLS 64 /* of all lanes */

/* Floats of a row in plane order. */
static inline int64_t planes_stride(int64_t cols)
{
    return (cols + QUADS_COLS - 1) / QUADS_COLS * QUADS_COLS;
}

/* 32 columns. */
typedef struct planes {
    __m256 p[4];
} planes;

static TAMIS_ALWAYS_INLINE planes planes_load(const float *at)
{
    planes v;
    for (int b = 0; b < 4; b++)
        v.p[b] = _mm256_loadu_ps(at + 8 * b);
    return v;
}
static TAMIS_ALWAYS_INLINE void planes_store(float *at, planes v)
{
    for (int b = 0; b < 4; b++)
        _mm256_storeu_ps(at + 8 * b, v.p[b]);
}

/* 16 bytes at p in the lower half, 16 bytes at q in the upper one. */
static TAMIS_ALWAYS_INLINE __m256i load_halves(const void *p, const void *q)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_8_words(p)), load_8_words(q), 1);
}

/* Of registers that hold columns 4 i to 4 i + 3 and 16 columns further on. */
static TAMIS_ALWAYS_INLINE planes planes_transpose(const __m256 v[4])
{
    const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
    return (planes){{_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee),
                     _mm256_shuffle_ps(b, d, 0x44), _mm256_shuffle_ps(b, d, 0xee)}};
}
static TAMIS_ALWAYS_INLINE planes f32_planes(const float *p)
{
    __m256 v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_castsi256_ps(load_halves(p + 4 * i, p + 16 + 4 * i));
    return planes_transpose(v);
}

/* Planes 0 and 2 of registers whose dwords hold two BF16 numbers, or 1 and 3. */
static TAMIS_ALWAYS_INLINE __m256 low_bf16(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
static TAMIS_ALWAYS_INLINE __m256 high_bf16(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

/* 32 columns as words that are BF16 numbers. */
typedef struct word_pair {
    __m256i first, second;
} word_pair;

/* Planes 0 and 1, 2 and 3. */
static TAMIS_ALWAYS_INLINE word_pair bf16_words(const uint8_t *p)
{
    const __m256 v = _mm256_castsi256_ps(load_halves(p, p + 32));
    const __m256 w = _mm256_castsi256_ps(load_halves(p + 16, p + 48));
    return (word_pair){_mm256_castps_si256(_mm256_shuffle_ps(v, w, 0x88)),
                       _mm256_castps_si256(_mm256_shuffle_ps(v, w, 0xdd))};
}
static TAMIS_ALWAYS_INLINE planes bf16_planes(const uint8_t *p)
{
    const word_pair v = bf16_words(p);
    return (planes){
        {low_bf16(v.first), high_bf16(v.first), low_bf16(v.second), high_bf16(v.second)}};
}
static TAMIS_ALWAYS_INLINE planes f16_planes(const uint8_t *p)
{
    __m256 v[4];
    for (int i = 0; i < 2; i++) {
        const __m128i a = load_8_words(p + 16 * i), b = load_8_words(p + 32 + 16 * i);
        v[2 * i] = _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
        v[2 * i + 1] = _mm256_cvtph_ps(_mm_unpackhi_epi64(a, b));
    }
    return planes_transpose(v);
}
static TAMIS_ALWAYS_INLINE planes i8_planes(const uint8_t *p)
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    planes to;
    for (int b = 0; b < 4; b++)
        to.p[b] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * b), 24));
    return to;
}
/*
 * E4M3 times 2^-120: the magnitude bits of a code are those of a BF16 number 2^120 times smaller,
 * subnormals included; both shifts leave sign and magnitude in place. NaN codes become numbers and
 * are the caller's business. Planes 0 and 2, 1 and 3.
 */
static TAMIS_ALWAYS_INLINE word_pair e4m3_small_words(__m256i codes)
{
    const __m256i kept = _mm256_set1_epi16((short)0x87f0);
    const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(0x0010), codes);
    return (word_pair){_mm256_and_si256(even, kept),
                       _mm256_and_si256(_mm256_srai_epi16(codes, 4), kept)};
}
static TAMIS_ALWAYS_INLINE planes e4m3_small_planes(__m256i codes)
{
    const word_pair v = e4m3_small_words(codes);
    return (planes){
        {low_bf16(v.first), low_bf16(v.second), high_bf16(v.first), high_bf16(v.second)}};
}
static TAMIS_ALWAYS_INLINE __m256i load_codes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* Columns in their order to plane order; dst may be x. Zeros up to planes_stride(n). */
static inline void planes_order(float *dst, const float *x, int64_t n)
{
    _Alignas(32) float last[QUADS_COLS] = {0};
    int64_t c = 0;
    for (; c + PLANE_COLS <= n; c += PLANE_COLS)
        planes_store(dst + c, f32_planes(x + c));
    if (c < n)
        memcpy(last, x + c, (size_t)(n - c) * sizeof *x);
    for (int64_t i = 0; c < planes_stride(n); c += PLANE_COLS, i += PLANE_COLS)
        planes_store(dst + c, f32_planes(last + i));
}
/*
 * Of n_rows inputs side by side, [32 columns][row][b][q]: all of a step of a tile lies together,
 * and rows a power of two apart do not push each other out of the first cache level.
 */
static inline void planes_order_rows(float *dst, const float *x, int64_t x_stride, int64_t n_rows,
                                     int64_t n)
{
    const int64_t step = n_rows * PLANE_COLS, last = n / QUADS_COLS * QUADS_COLS;
    for (int64_t r = 0; r < n_rows; r++) {
        float *to = dst + r * PLANE_COLS;
        _Alignas(32) float rest[QUADS_COLS];
        for (int64_t c = 0; c < last; c += PLANE_COLS, to += step)
            planes_store(to, f32_planes(x + r * x_stride + c));
        if (last == n)
            continue;
        planes_order(rest, x + r * x_stride + last, n - last);
        planes_store(to, planes_load(rest));
        planes_store(to + step, planes_load(rest + PLANE_COLS));
    }
}

#endif
