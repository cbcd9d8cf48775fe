/*
 * Vector forms for the AVX2 files: 16 lanes as two registers, the storage formats read 16 values
 * at a time, exp of kernels/math.h on 8 values.
 */
#ifndef TAMIS_KERNELS_SIMD_AVX2_H
#define TAMIS_KERNELS_SIMD_AVX2_H

#include <immintrin.h>

#include "kernels/body/lanes.h"
#include "kernels/formats.h"

/* Lanes 0-7 and 8-15 of lanes16. */
typedef struct v16 {
    __m256 lo, hi;
} v16;

static TAMIS_ALWAYS_INLINE v16 v16_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
static TAMIS_ALWAYS_INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static TAMIS_ALWAYS_INLINE void v16_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
static TAMIS_ALWAYS_INLINE v16 v16_scale(v16 v, __m256 s)
{
    return (v16){_mm256_mul_ps(v.lo, s), _mm256_mul_ps(v.hi, s)};
}
static TAMIS_ALWAYS_INLINE v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static TAMIS_ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 acc)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, acc.lo), _mm256_fmadd_ps(a.hi, b.hi, acc.hi)};
}

/*
 * A loaded value that several products use: gcc would rather read it again as the memory operand
 * of each, and the tile would be bound by its loads. Emits nothing.
 */
static TAMIS_ALWAYS_INLINE __m256 in_register(__m256 v)
{
#if defined(__GNUC__)
    __asm__("" : "+x"(v));
#endif
    return v;
}
static TAMIS_ALWAYS_INLINE __m256i integers_in_register(__m256i v)
{
#if defined(__GNUC__)
    __asm__("" : "+x"(v));
#endif
    return v;
}
static TAMIS_ALWAYS_INLINE v16 v16_in_registers(v16 v)
{
    return (v16){in_register(v.lo), in_register(v.hi)};
}

/* What lies behind p is read again where it is used next, not kept in registers. Emits nothing. */
#if defined(__GNUC__)
#define KEEP_POINTER(p) __asm__("" : "+r"(p))
#else
#define KEEP_POINTER(p) (void)(p)
#endif

/* The halving tree of lanes16. */
static TAMIS_ALWAYS_INLINE float v16_sum(v16 v)
{
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* Lanes 0-3 + 4-7 of a, then of b. */
static TAMIS_ALWAYS_INLINE __m256 add_halves(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* v16_sum of four, the same additions. */
static TAMIS_ALWAYS_INLINE __m128 v16_sum_4(const v16 v[4])
{
    const __m256 a = add_halves(_mm256_add_ps(v[0].lo, v[0].hi), _mm256_add_ps(v[1].lo, v[1].hi));
    const __m256 b = add_halves(_mm256_add_ps(v[2].lo, v[2].hi), _mm256_add_ps(v[3].lo, v[3].hi));
    /* two lanes each of v[0], v[2], v[1], v[3] */
    const __m256 c = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    const __m128 even = _mm256_castps256_ps128(c), odd = _mm256_extractf128_ps(c, 1);
    const __m128 low = _mm_unpacklo_ps(even, odd), high = _mm_unpackhi_ps(even, odd);
    return _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
}

/* All ones in the first n of 8 lanes (n may lie outside 0..8). */
static TAMIS_ALWAYS_INLINE __m256i first_lanes(int64_t n)
{
    const int count = n < 0 ? 0 : n > 8 ? 8 : (int)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* v in the first n (1..15) lanes, zeros behind them. */
static TAMIS_ALWAYS_INLINE v16 v16_first(v16 v, int64_t n)
{
    return (v16){_mm256_and_ps(v.lo, _mm256_castsi256_ps(first_lanes(n))),
                 _mm256_and_ps(v.hi, _mm256_castsi256_ps(first_lanes(n - 8)))};
}
/* The first n (1..15) of 16 floats, zeros behind them; reads nothing else. */
static TAMIS_ALWAYS_INLINE v16 v16_load_first(const float *p, int64_t n)
{
    v16 v = v16_zero();
    v.lo = _mm256_maskload_ps(p, first_lanes(n));
    if (n > 8)
        v.hi = _mm256_maskload_ps(p + 8, first_lanes(n - 8));
    return v;
}
static TAMIS_ALWAYS_INLINE void v16_store_first(float *p, int64_t n, v16 v)
{
    _mm256_maskstore_ps(p, first_lanes(n), v.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, first_lanes(n - 8), v.hi);
}

/* ---------------------------------------------------------------- 16 stored values to f32 */

static TAMIS_ALWAYS_INLINE __m128i load_8_words(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}
static TAMIS_ALWAYS_INLINE __m256 bf16_widen_8(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_8_words(p)), 16));
}
/* tamis_f32_to_bf16 and back. The carry could make a number of a NaN, so its bits are put back. */
static TAMIS_ALWAYS_INLINE __m256 bf16_round_8(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i kept = _mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000u));
    const __m256 nan = _mm256_and_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q),
                                     _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
    return _mm256_or_ps(_mm256_castsi256_ps(kept), nan);
}
/* The same for numbers that are neither subnormal nor near the largest: 2^16 + 1 times x and back.
 */
static TAMIS_ALWAYS_INLINE __m256 bf16_round_moderate_8(__m256 x)
{
    const __m256 big = _mm256_mul_ps(x, _mm256_set1_ps(65537.0f));
    return _mm256_sub_ps(big, _mm256_sub_ps(big, x));
}
static TAMIS_ALWAYS_INLINE v16 bf16_round(v16 v)
{
    return (v16){bf16_round_8(v.lo), bf16_round_8(v.hi)};
}
static TAMIS_ALWAYS_INLINE __m256 i8_widen_8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
static TAMIS_ALWAYS_INLINE v16 bf16_widen(const uint8_t *p)
{
    return (v16){bf16_widen_8(p), bf16_widen_8(p + 16)};
}
static TAMIS_ALWAYS_INLINE v16 f16_widen(const uint8_t *p)
{
    return (v16){_mm256_cvtph_ps(load_8_words(p)), _mm256_cvtph_ps(load_8_words(p + 16))};
}
static TAMIS_ALWAYS_INLINE v16 f32_widen(const uint8_t *p)
{
    return v16_load((const float *)(const void *)p);
}

/*
 * E4M3 through binary16: sign and 7 magnitude bits shifted into place are the value times 2^-8,
 * subnormals included; the two NaN codes come out as +-1.875 and are the caller's business.
 */
static TAMIS_ALWAYS_INLINE __m256i e4m3_to_halves(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepi8_epi16(load_8_words(p));
    return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
}
static TAMIS_ALWAYS_INLINE v16 halves_widen(__m256i h)
{
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
/* The same with a NaN where the code is NaN. */
static TAMIS_ALWAYS_INLINE __m256i e4m3_to_halves_nan(const uint8_t *p)
{
    const __m256i h = e4m3_to_halves(p);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_add_epi16(h, h), _mm256_set1_epi16(0x7f00));
    return _mm256_or_si256(h, nan);
}
/* NaN codes included, the factor undone. */
static TAMIS_ALWAYS_INLINE v16 e4m3_widen(const uint8_t *p)
{
    return v16_scale(halves_widen(e4m3_to_halves_nan(p)), _mm256_set1_ps(256.0f));
}

/*
 * E2M1: lane k of a register gets nibble k of 4 bytes in its low bits; its 3 magnitude bits index
 * a table of 8 floats. The nibble shifted to the top brings the sign, and the magnitude bits below
 * it, which the table has flipped beforehand (e2m1_table).
 */
static TAMIS_ALWAYS_INLINE __m256 e2m1_table(float scale)
{
    const __m256 value = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i flips = _mm256_slli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), 28);
    const __m256 scaled = _mm256_mul_ps(value, _mm256_set1_ps(scale));
    return _mm256_xor_ps(scaled, _mm256_castsi256_ps(flips));
}
static TAMIS_ALWAYS_INLINE __m256 e2m1_widen_8(const uint8_t *p, __m256 table)
{
    int32_t eight;
    memcpy(&eight, p, sizeof eight);
    const __m256i nibble =
        _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256 top = _mm256_castsi256_ps(_mm256_slli_epi32(nibble, 28));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, nibble), top);
}
static TAMIS_ALWAYS_INLINE v16 e2m1_widen(const uint8_t *p, __m256 table)
{
    return (v16){e2m1_widen_8(p, table), e2m1_widen_8(p + 4, table)};
}

/* 16 values of F32 or BF16, the types of cached rows. */
static TAMIS_ALWAYS_INLINE v16 cached_widen(tamis_dtype dtype, const uint8_t *row, int64_t c)
{
    return dtype == TAMIS_DTYPE_BF16 ? bf16_widen(row + 2 * c) : f32_widen(row + 4 * c);
}

/* A cached row to f32, zeros up to the next multiple of 16. */
static inline void cached_row_expand(float *dst, const void *src, tamis_dtype dtype, int64_t n)
{
    const uint8_t *row = src;
    int64_t c = 0;
    for (; c + TAMIS_LANES <= n; c += TAMIS_LANES)
        v16_store(dst + c, cached_widen(dtype, row, c));
    if (c == n)
        return;
    v16_store(dst + c, v16_zero());
    for (; c < n; c++)
        dst[c] = tamis_weight_decode(dtype, row, c);
}

/* ---------------------------------------------------------------- exp */

/* The rest of tamis_math_exp after its n: exp(c) / 2^n. */
static TAMIS_ALWAYS_INLINE __m256 exp_reduced_8(__m256 c, __m256 n)
{
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-TAMIS_LN2_HI), c);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-TAMIS_LN2_LO), r);
    __m256 p = _mm256_set1_ps(0x1.6a23f2p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.123a0ap-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    return _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r), _mm256_set1_ps(1.0f));
}

/* tamis_math_exp, operation by operation. */
static TAMIS_ALWAYS_INLINE __m256 exp_8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p+23f);
    const __m256 c =
        _mm256_max_ps(_mm256_set1_ps(-110.0f), _mm256_min_ps(_mm256_set1_ps(90.0f), x));
    const __m256 t = _mm256_fmadd_ps(c, _mm256_set1_ps(TAMIS_LOG2E), magic);
    __m256 p = exp_reduced_8(c, _mm256_sub_ps(t, magic));
    const __m256i biased =
        _mm256_add_epi32(_mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic)),
                         _mm256_set1_epi32(256));
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i half = _mm256_srli_epi32(biased, 1);
    const __m256i rest = _mm256_sub_epi32(biased, half);
    const __m256i scale1 = _mm256_slli_epi32(_mm256_sub_epi32(half, one), 23);
    const __m256i scale2 = _mm256_slli_epi32(_mm256_sub_epi32(rest, one), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(scale1));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(scale2));
}

#endif
