/* Rows of integers with one scale. */
#ifndef QUANTIZE_CODES_H
#define QUANTIZE_CODES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * codes[i] = rne(x[i] / scale) within -top..top, scale = amax / top; a row of zeros has scale 1.
 * false: a value is not finite, *scale is its number then.
 */
bool quant_row(int8_t *codes, float *scale, const float *x, int64_t n, int32_t top);
/* Two rows of int4 codes in one of bytes: the first in the low halves. */
void quant_pack_rows(uint8_t *out, const int8_t *low, const int8_t *high, int64_t n);
/* The sum of codes begin .. end - 1. */
int32_t quant_sum(const int8_t *codes, int64_t begin, int64_t end);

#endif
