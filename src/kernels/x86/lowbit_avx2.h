/* Vector forms of the low-bit formats for the AVX2 files: scales, codes and roundings, 16 at a
 * time. */
#ifndef TAMIS_KERNELS_LOWBIT_AVX2_H
#define TAMIS_KERNELS_LOWBIT_AVX2_H

#include "kernels/x86/simd_avx2.h"

/* 16 values from p on, or the first n of them and zeros; reads nothing else. */
static TAMIS_ALWAYS_INLINE v16 v16_load_up_to(const float *p, int64_t n)
{
    return n >= TAMIS_LANES ? v16_load(p) : v16_load_first(p, n);
}
static TAMIS_ALWAYS_INLINE void v16_store_up_to(float *p, int64_t n, v16 v)
{
    if (n >= TAMIS_LANES)
        v16_store(p, v);
    else
        v16_store_first(p, n, v);
}
/* 16 bytes from p on, or the first n of them and zeros. */
static TAMIS_ALWAYS_INLINE __m128i bytes_load_up_to(const void *p, int64_t n)
{
    if (n >= TAMIS_LANES)
        return load_8_words(p);
    uint8_t buffer[TAMIS_LANES] = {0};
    memcpy(buffer, p, (size_t)n);
    return load_8_words(buffer);
}
static TAMIS_ALWAYS_INLINE void bytes_store_up_to(void *p, int64_t n, __m128i v)
{
    if (n >= TAMIS_LANES) {
        _mm_storeu_si128((__m128i *)p, v);
        return;
    }
    uint8_t buffer[TAMIS_LANES];
    _mm_storeu_si128((__m128i *)buffer, v);
    memcpy(p, buffer, (size_t)n);
}

static TAMIS_ALWAYS_INLINE __m256i load_32_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
/* The same 4 bytes in every lane. */
static TAMIS_ALWAYS_INLINE __m256i broadcast_4_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/*
 * acc + v in acc's own register: gcc may write a sum over v instead and copy it back, and a tile
 * that the decoders bind pays for the copies.
 */
static TAMIS_ALWAYS_INLINE __m256i add_32_in_place(__m256i acc, __m256i v)
{
#if defined(__GNUC__)
    __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(v));
    return acc;
#else
    return _mm256_add_epi32(acc, v);
#endif
}
static TAMIS_ALWAYS_INLINE __m256i add_16_in_place(__m256i acc, __m256i v)
{
#if defined(__GNUC__)
    __asm__("vpaddw %1, %0, %0" : "+x"(acc) : "x"(v));
    return acc;
#else
    return _mm256_add_epi16(acc, v);
#endif
}

/* ---------------------------------------------------------------- scales and quotients */

/* Bits of the largest magnitude of n values, for tamis_group_scale. */
static inline uint32_t max_bits_of(const float *x, int64_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += TAMIS_LANES) {
        const v16 v = v16_load_up_to(x + i, n - i);
        max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(v.lo), magnitude));
        max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(v.hi), magnitude));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* x / scale within +-limit; NaN stays. */
static TAMIS_ALWAYS_INLINE __m256 quotient_8(__m256 x, __m256 scale, float limit)
{
    const __m256 v = _mm256_min_ps(_mm256_set1_ps(limit), _mm256_div_ps(x, scale));
    return _mm256_max_ps(_mm256_set1_ps(-limit), v);
}
static TAMIS_ALWAYS_INLINE v16 quotient_16(v16 x, __m256 scale, float limit)
{
    return (v16){quotient_8(x.lo, scale, limit), quotient_8(x.hi, scale, limit)};
}

/* ---------------------------------------------------------------- roundings */

/* Nearest E4M3 value of |x| <= 448, as f32. Below 2^-6 the steps are 2^-9, the ulp of 2^14. */
static TAMIS_ALWAYS_INLINE __m256 e4m3_round_8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), big = _mm256_set1_ps(0x1p+14f);
    const __m256 magnitude = _mm256_andnot_ps(sign, x);
    const __m256 small = _mm256_sub_ps(_mm256_add_ps(magnitude, big), big);
    const __m256i bits = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
    const __m256 normal =
        _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32((int)0xfff00000u)));
    const __m256 is_small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    return _mm256_or_ps(_mm256_blendv_ps(normal, small, is_small), _mm256_and_ps(sign, x));
}

/* The code of a value that e4m3_round_8 gave. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_code_8(__m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const __m256i rest = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i normal =
        _mm256_srli_epi32(_mm256_sub_epi32(rest, _mm256_set1_epi32(0x3c000000)), 20);
    const __m256i steps =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(rest), _mm256_set1_ps(0x1p+9f)));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), rest);
    return _mm256_or_si256(_mm256_blendv_epi8(normal, steps, is_small), sign);
}

/* tamis_f32_to_f4_e2m1: the magnitude counts the borders it has passed. NaN gives 0. */
static TAMIS_ALWAYS_INLINE __m256i e2m1_code_8(__m256 x)
{
    static const float above[4] = {0.25f, 1.25f, 2.5f, 5.0f}, from[3] = {0.75f, 1.75f, 3.5f};
    const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    __m256i code = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(
                                          magnitude, _mm256_set1_ps(above[i]), _CMP_GT_OQ)));
    for (int i = 0; i < 3; i++)
        code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(
                                          magnitude, _mm256_set1_ps(from[i]), _CMP_GE_OQ)));
    const __m256i number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
    const __m256i sign =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 28), _mm256_set1_epi32(8));
    return _mm256_and_si256(_mm256_or_si256(code, sign), number);
}

/* tamis_round_within. */
static TAMIS_ALWAYS_INLINE __m256i nearest_8(__m256 x, float low, float high)
{
    const __m256 within =
        _mm256_max_ps(_mm256_set1_ps(low), _mm256_min_ps(_mm256_set1_ps(high), x));
    return _mm256_cvtps_epi32(_mm256_and_ps(within, _mm256_cmp_ps(x, x, _CMP_ORD_Q)));
}

/* ---------------------------------------------------------------- codes in memory */

/* 16 integers, -128..127 or 0..255, to bytes. */
static TAMIS_ALWAYS_INLINE __m128i to_bytes(__m256i lo, __m256i hi, bool is_signed)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    const __m128i first = _mm256_castsi256_si128(words), last = _mm256_extracti128_si256(words, 1);
    return is_signed ? _mm_packs_epi16(first, last) : _mm_packus_epi16(first, last);
}

/* 16 codes in bytes to 8 bytes of pairs, low nibble first. */
static TAMIS_ALWAYS_INLINE __m128i pair_nibbles(__m128i codes)
{
    const __m128i pairs = _mm_maddubs_epi16(codes, _mm_set1_epi16(0x1001));
    return _mm_packus_epi16(pairs, pairs);
}

#endif
