/*
 * Inputs of linear over FP4 in blocks (kernels.h, linear), as the AVX2 rows read them: 128 columns
 * at a time, split into digits that lie where two registers of codes bring their columns.
 *
 * Registers A and B of 64 codes each hold blocks 0, 1 and 2, 3. Joining their low and their high
 * quarters (unpacklo/hi_epi64) gives two registers, part 0 and 1, of which int32 lane j holds 8
 * columns of sum j = 4 (b % 2) + 2 (b / 2) + h: an even and an odd one in each byte.
 */
#ifndef TAMIS_KERNELS_LINEAR_F4_AVX2_H
#define TAMIS_KERNELS_LINEAR_F4_AVX2_H

#include "kernels/x86/linear_avx2.h"

#define F4_STEP_COLS  128
#define F4_DIGITS     3
#define F4_CODE_SHIFT 12 /* weights are multiplied as 2 value + 12, which has no sign */

/* 128 columns of a token: q = digit 0 + 2^8 digit 1 + 2^16 digit 2, all in -128 .. 127. */
typedef struct f4_inputs {
    int8_t digit[F4_DIGITS][4][32]; /* [2 part + (column % 2)], as the codes lie */
    int32_t shifted[8];             /* F4_CODE_SHIFT sum(q): what the sums have too much */
    float unit[8];
} f4_inputs;

/* Of columns [begin, begin + 128) of a token that has cols of them; zeros behind the last. */
void tamis_f4_inputs_avx2(f4_inputs *to, const float *x, int64_t begin, int64_t cols);

#endif
