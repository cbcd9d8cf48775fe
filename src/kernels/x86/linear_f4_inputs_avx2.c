/*
 * Fixed point of the inputs of linear over FP4, AVX2. Two blocks of 32 columns lie side by side in
 * the halves of a register, four columns of each; bytes then move in three rounds of unpacking.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_f4_avx2.h"

#define F4_DIGITS 3

/* Blocks b and b + 1, 8 registers of four columns each. */
typedef struct two_blocks {
    __m256i digit[F4_DIGITS][2]; /* [part]: 8 even columns of a block, then 8 odd ones */
    __m256 unit;
} two_blocks;

static TAMIS_ALWAYS_INLINE __m256 load_columns(const float *x, int i)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + 4 * i)),
                                _mm_loadu_ps(x + 32 + 4 * i), 1);
}

/* tamis_amax_bits of both blocks, in all lanes of their halves. */
static TAMIS_ALWAYS_INLINE __m256i amax_of(const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i amax = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++)
        amax = _mm256_max_epi32(
            amax, _mm256_and_si256(_mm256_castps_si256(load_columns(x, i)), magnitude));
    amax = _mm256_max_epi32(amax, _mm256_shuffle_epi32(amax, 0x4e));
    return _mm256_max_epi32(amax, _mm256_shuffle_epi32(amax, 0xb1));
}

/*
 * Bytes of 16 columns to their places. q + 0x808080 has the digits + 128 as its bytes. Of four
 * columns a shuffle makes words (column 0, 2) and (1, 3) of each digit, which are then joined.
 */
static TAMIS_ALWAYS_INLINE void place_digits(two_blocks *to, int part, const __m256i q[4])
{
    const __m256i bias = _mm256_set1_epi32(0x808080);
    const __m256i words = _mm256_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, -1, -1, -1, -1,
                                           0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, -1, -1, -1, -1);
    __m256i w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_add_epi32(q[i], bias), bias), words);
    const __m256i a = _mm256_unpacklo_epi16(w[0], w[1]), b = _mm256_unpacklo_epi16(w[2], w[3]);
    const __m256i c = _mm256_unpackhi_epi16(w[0], w[1]), d = _mm256_unpackhi_epi16(w[2], w[3]);
    to->digit[0][part] = _mm256_unpacklo_epi32(a, b);
    to->digit[1][part] = _mm256_unpackhi_epi32(a, b);
    to->digit[2][part] = _mm256_unpacklo_epi32(c, d);
}

/* tamis_fixed_unit and tamis_fixed_round of 64 columns. */
static TAMIS_ALWAYS_INLINE void blocks_of(two_blocks *to, const float *x)
{
    const __m256i amax = amax_of(x);
    const __m256i no_number = _mm256_cmpgt_epi32(amax, _mm256_set1_epi32(0x7f7fffff));
    const __m256i exponent =
        _mm256_max_epi32(_mm256_srli_epi32(_mm256_add_epi32(amax, _mm256_set1_epi32(0x10101)), 23),
                         _mm256_set1_epi32(24));
    const __m256 factor = _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(276), exponent), 23));
    const __m256i unit = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(23)), 23);
    __m256i q[8];
    for (int i = 0; i < 8; i++)
        q[i] = _mm256_andnot_si256(no_number,
                                   _mm256_cvtps_epi32(_mm256_mul_ps(load_columns(x, i), factor)));
    place_digits(to, 0, q);
    place_digits(to, 1, q + 4);
    const __m256i zeros = _mm256_cmpeq_epi32(amax, _mm256_setzero_si256());
    const __m256i number = _mm256_blendv_epi8(unit, _mm256_set1_epi32(0x3f800000), zeros);
    to->unit =
        _mm256_castsi256_ps(_mm256_blendv_epi8(number, _mm256_set1_epi32(0x7fc00000), no_number));
}

static TAMIS_ALWAYS_INLINE void store(void *to, __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* -12 times the sum of the 16 columns of each lane. */
static TAMIS_ALWAYS_INLINE __m256i correction_of(const __m256i digit[4])
{
    const __m256i one = _mm256_set1_epi8(1), shift = _mm256_set1_epi16(-F4_CODE_SHIFT);
    __m256i sum = _mm256_setzero_si256();
    for (int v = 0; v < 4; v++)
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(one, digit[v]));
    return _mm256_madd_epi16(sum, shift);
}

static TAMIS_ALWAYS_INLINE void store_corrections(f4_inputs *to, __m256i digit[F4_DIGITS][4])
{
    const __m256i low = _mm256_add_epi32(correction_of(digit[0]), _mm256_set1_epi32(0x8000));
    const __m256i high = _mm256_slli_epi32(correction_of(digit[2]), 16);
    const __m256i half = _mm256_srai_epi32(correction_of(digit[1]), 1);
    const __m256i both = _mm256_blend_epi16(half, _mm256_slli_epi32(half, 16), 0xaa);
    store(to->correction, _mm256_blend_epi16(low, high, 0xaa));
    store(to->middle_correction, _mm256_sub_epi16(both, _mm256_set1_epi32(0x8000 / 256)));
}

static TAMIS_ALWAYS_INLINE void inputs_of(f4_inputs *to, const float *x, bool swapped)
{
    __m256i digit[F4_DIGITS][4];
    two_blocks a, b;
    blocks_of(&a, x);
    blocks_of(&b, x + 64);
    for (int d = 0; d < F4_DIGITS; d++)
        for (int part = 0; part < 2; part++) {
            digit[d][2 * part] = _mm256_unpacklo_epi64(a.digit[d][part], b.digit[d][part]);
            digit[d][2 * part + 1] = _mm256_unpackhi_epi64(a.digit[d][part], b.digit[d][part]);
        }
    for (int v = 0; v < 4; v++) {
        const __m256i far = _mm256_blend_epi16(digit[2][v], digit[0][v], 0xaa);
        store(to->near[v], _mm256_blend_epi16(digit[0][v], digit[2][v], 0xaa));
        store(to->far[v], swapped ? swap_words(far) : far);
        store(to->middle[v], digit[1][v]);
    }
    store_corrections(to, digit);
    const __m256i unit =
        _mm256_unpacklo_epi64(_mm256_castps_si256(a.unit), _mm256_castps_si256(b.unit));
    store(to->unit, unit);
    store(to->exponent, _mm256_sub_epi32(_mm256_srli_epi32(unit, 23), _mm256_set1_epi32(127)));
}

void tamis_f4_inputs_avx2(f4_inputs *to, const float *x, int64_t begin, int64_t cols, bool swapped)
{
    const int64_t left = cols - begin;
    if (left >= F4_STEP_COLS) {
        inputs_of(to, x + begin, swapped);
        return;
    }
    float padded[F4_STEP_COLS] = {0};
    memcpy(padded, x + begin, (size_t)left * sizeof *x);
    inputs_of(to, padded, swapped);
}
#endif
