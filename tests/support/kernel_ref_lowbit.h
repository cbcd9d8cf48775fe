/*
 * Low-bit formats in double precision with explicit roundings, written from include/tamis/rows.h
 * and the contracts: codes are found by searching all values of a format, not by moving bits.
 */
#ifndef TAMIS_TEST_KERNEL_REF_LOWBIT_H
#define TAMIS_TEST_KERNEL_REF_LOWBIT_H

#include "support/kernel_ref.h"
#include "tamis/rows.h"

/* Nearest value, ties to even; NaN stays. bf16 and f16 overflow to infinity. */
double lowbit_ref_bf16(double x);
double lowbit_ref_f16(double x);
double lowbit_ref_f32(double x);
/* Nearest value of a format within its range, ties to the even code. I8: an integer. */
double lowbit_ref_code_value(tamis_dtype dtype, double x);
/* Scale of a group by its rule, before it is stored. */
double lowbit_ref_scale(tamis_scale_rule rule, tamis_dtype dtype, const float *x, int64_t n);
/* What reading back row x gives: codes times stored scale, BF16 rounded, the plain part as BF16. */
void lowbit_ref_round_trip(double *out, const tamis_row_format *format, const float *x);

/* y = x W^T over integers; exact. w I8 or I4. */
int64_t lowbit_ref_dot_i8(const tamis_matrix *w, int64_t row, const int8_t *x);

#endif
