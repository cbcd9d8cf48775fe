/*
 * Inputs of linear over FP4 in blocks (kernels.h, linear) as the AVX2 rows read them: 128 columns
 * at a time, split into digits that lie where two registers of codes bring their columns.
 *
 * Registers A and B of 64 codes hold blocks 0, 1 and 2, 3. Joining their low and their high
 * quarters (unpacklo/hi_epi64) gives two registers, part 0 and 1, of which int32 lane j holds 8
 * columns of sum j = 4 (b % 2) + 2 (b / 2) + h: an even and an odd one in each byte.
 *
 * Weights come as u = 2 value + 12, which has no sign. A sum of 16 products with q = d0 + 2^8 d1 +
 * 2^16 d2 is made of words: those of d0 and of d2 are the low and the high word of one lane. d0 of
 * the columns in a lane's low word and d2 of those in its high word are multiplied together
 * (`near`), and the other way round (`far`), whose words must change places.
 */
#ifndef TAMIS_KERNELS_LINEAR_F4_AVX2_H
#define TAMIS_KERNELS_LINEAR_F4_AVX2_H

#include "kernels/x86/linear_avx2.h"

#define F4_STEP_COLS  128
#define F4_CODE_SHIFT 12

/*
 * 128 columns of a token; vectors [2 part + (column % 2)] as the codes lie. The corrections take
 * away what F4_CODE_SHIFT brings, 12 sum(q). The low word of the first has 2^15 more: no sign
 * there, which would borrow from the high word; the second has it less. A block of zeros has the
 * unit 1.
 */
typedef struct f4_inputs {
    int8_t near[4][32], far[4][32], middle[4][32]; /* d0 and d2, d2 and d0, d1 */
    int16_t correction[16], middle_correction[16];
    float unit[8];
    int32_t exponent[8]; /* of the unit, 128 if that is NaN; the kernel makes its own of it */
} f4_inputs;

/*
 * Of columns [begin, begin + 128) of a token that has cols of them; zeros behind the last. swapped:
 * `far` is for codes whose words have changed places already.
 */
void tamis_f4_inputs_avx2(f4_inputs *to, const float *x, int64_t begin, int64_t cols, bool swapped);

/* The words of each lane change places. */
static TAMIS_ALWAYS_INLINE __m256i swap_words(__m256i v)
{
    return _mm256_shuffle_epi8(v, _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12,
                                                   13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15,
                                                   12, 13));
}

#endif
