/* Rounding rows to BF16 and FP8, int8 and FP4 codes of inputs, Hadamard, the BF16 head norm: AVX2.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/lowbit_avx2.h"
#include "kernels/x86/table_x86.h"

TAMIS_KERNEL_round_bf16(tamis_round_bf16_avx2)
{
    for (int64_t i = 0; i < n; i += TAMIS_LANES)
        v16_store_up_to(x + i, n - i, bf16_round(v16_load_up_to(x + i, n - i)));
}

TAMIS_KERNEL_round_f8(tamis_round_f8_avx2)
{
    for (int64_t begin = 0; begin < n; begin += group) {
        const int64_t end = n - begin < group ? n : begin + group;
        const __m256 scale = _mm256_set1_ps(tamis_group_scale(TAMIS_SCALE_POW2, TAMIS_DTYPE_F8_E4M3,
                                                              max_bits_of(x + begin, end - begin)));
        for (int64_t i = begin; i < end; i += TAMIS_LANES) {
            const v16 v = quotient_16(v16_load_up_to(x + i, end - i), scale, 448.0f);
            const v16 rounded = {e4m3_round_8(v.lo), e4m3_round_8(v.hi)};
            v16_store_up_to(y + i, end - i, v16_scale(rounded, scale));
        }
    }
}

TAMIS_KERNEL_quantize_f4(tamis_quantize_f4_avx2)
{
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    for (int64_t begin = 0; begin < n; begin += group) {
        const int64_t end = n - begin < group ? n : begin + group;
        const float s = scale[begin / group] = tamis_group_scale(
            TAMIS_SCALE_POW2, TAMIS_DTYPE_F4_E2M1, max_bits_of(x + begin, end - begin));
        for (int64_t i = begin; i < end; i += TAMIS_LANES) {
            const v16 v = quotient_16(v16_load_up_to(x + i, end - i), _mm256_set1_ps(s), 6.0f);
            const __m128i codes = to_bytes(e2m1_code_8(v.lo), e2m1_code_8(v.hi), false);
            bytes_store_up_to(q + i, end - i, _mm_shuffle_epi8(doubled, codes));
        }
    }
}

TAMIS_KERNEL_quantize_i8(tamis_quantize_i8_avx2)
{
    const float s = *scale = tamis_group_scale(TAMIS_SCALE_AMAX, TAMIS_DTYPE_I8, max_bits_of(x, n));
    if (!(s > 0.0f)) {
        memset(q, 0, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i += TAMIS_LANES) {
        const v16 v = quotient_16(v16_load_up_to(x + i, n - i), _mm256_set1_ps(s), 127.0f);
        bytes_store_up_to(
            q + i, n - i,
            to_bytes(nearest_8(v.lo, -127.0f, 127.0f), nearest_8(v.hi, -127.0f, 127.0f), true));
    }
}

static TAMIS_ALWAYS_INLINE __m256 f16_round_8(__m256 x)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

TAMIS_KERNEL_quantize_i8_static(tamis_quantize_i8_static_avx2)
{
    const __m256 inverse = _mm256_set1_ps(1.0f / input_scale);
    const v16 offset = {_mm256_set1_ps(input_offset), _mm256_set1_ps(input_offset)};
    for (int64_t i = 0; i < n; i += TAMIS_LANES) {
        v16 v = v16_add(v16_scale(v16_load_up_to(x + i, n - i), inverse), offset);
        if (through_f16)
            v = (v16){f16_round_8(v.lo), f16_round_8(v.hi)};
        bytes_store_up_to(
            q + i, n - i,
            to_bytes(nearest_8(v.lo, -128.0f, 127.0f), nearest_8(v.hi, -128.0f, 127.0f), true));
    }
}

/* ---------------------------------------------------------------- Hadamard */

/* a + b and a - b of partners 1, 2 and 4 lanes apart. Adding -b is the same as subtracting b. */
static TAMIS_ALWAYS_INLINE __m256 butterflies_8(__m256 x)
{
    const __m256 minus_1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 minus_2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 minus_4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    x = _mm256_add_ps(_mm256_moveldup_ps(x), _mm256_xor_ps(_mm256_movehdup_ps(x), minus_1));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x44),
                      _mm256_xor_ps(_mm256_permute_ps(x, 0xee), minus_2));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 0x00),
                         _mm256_xor_ps(_mm256_permute2f128_ps(x, x, 0x11), minus_4));
}

TAMIS_KERNEL_hadamard(tamis_hadamard_avx2)
{
    if (n < 8) {
        tamis_hadamard_c(x, n, scale);
        return;
    }
    for (int64_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, butterflies_8(_mm256_loadu_ps(x + i)));
    for (int64_t h = 8; h < n; h *= 2)
        for (int64_t first = 0; first < n; first += 2 * h)
            for (int64_t i = first; i < first + h; i += 8) {
                const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + h);
                _mm256_storeu_ps(x + i, _mm256_add_ps(a, b));
                _mm256_storeu_ps(x + i + h, _mm256_sub_ps(a, b));
            }
    for (int64_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale)));
}

/* ---------------------------------------------------------------- head norm */

static float bf16(float x)
{
    return tamis_bf16_to_f32(tamis_f32_to_bf16(x));
}

TAMIS_KERNEL_rmsnorm_bf16(tamis_rmsnorm_bf16_avx2)
{
    v16 acc = v16_zero();
    for (int64_t i = 0; i < n; i += TAMIS_LANES) {
        const v16 v = v16_load_up_to(x + i, n - i);
        const v16 square = {_mm256_mul_ps(v.lo, v.lo), _mm256_mul_ps(v.hi, v.hi)};
        acc = v16_add(acc, bf16_round(square));
    }
    const float mean = bf16(v16_sum(acc) / (float)n);
    const __m256 r = _mm256_set1_ps(bf16(1.0f / tamis_sqrt(bf16(mean + eps))));
    for (int64_t i = 0; i < n; i += TAMIS_LANES)
        v16_store_up_to(y + i, n - i, bf16_round(v16_scale(v16_load_up_to(x + i, n - i), r)));
}
#endif
