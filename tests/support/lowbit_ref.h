/*
 * Low-bit numbers in double precision, by their definitions: roundings, scale rules, Hadamard,
 * packed rows by the byte offsets of the specifications. Written from the specifications (V4 6.1 to
 * 6.4 and 8.8; V3.2 2.6, 2.7, 4.1, 6.2 to 6.4), not from the library's kernels; finite values only.
 */
#ifndef TAMIS_TEST_LOWBIT_REF_H
#define TAMIS_TEST_LOWBIT_REF_H

#include <stdbool.h>
#include <stdint.h>

/* ---------------------------------------------------------------- roundings, ties to even */

double lowbit_f32(double value);
double lowbit_bf16(double value); /* overflows to infinity, as f16 does */
double lowbit_f16(double value);
double lowbit_e4m3(double value); /* the caller clamps to 448 */
double lowbit_e2m1(double value); /* the caller clamps to 6 */
void lowbit_bf16_all(double *x, int64_t n);
/* Distance to the nearest number where the rounding to bf16 changes, i.e. halfway between two. */
double lowbit_bf16_border(double value);

/* Numbers of codes, codes of numbers that are on the grid. */
double lowbit_e4m3_value(uint8_t code); /* NAN for 0x7f, 0xff */
double lowbit_e2m1_value(uint8_t nibble);
uint8_t lowbit_e4m3_code(double value);
uint8_t lowbit_e2m1_code(double value);

/* ---------------------------------------------------------------- groups with a scale */

typedef enum lowbit_kind { LOWBIT_E4M3, LOWBIT_E2M1, LOWBIT_INT8 } lowbit_kind;
typedef enum lowbit_rule {
    LOWBIT_POW2,       /* power of two at or above max(amax, floor) * f32(1 / largest) */
    LOWBIT_POW2_ABOVE, /* A5: the next above even where that is one already */
    LOWBIT_AMAX        /* f32(amax / largest) */
} lowbit_rule;

/* The scale of a group of n values. */
double lowbit_scale(const double *x, int64_t n, lowbit_kind kind, lowbit_rule rule);
/* codes[i]: number on the kind's grid, nearest to x[i] / scale; returns the scale (0: all zero). */
double lowbit_quantize(double *codes, const double *x, int64_t n, lowbit_kind kind,
                       lowbit_rule rule);
/* y = codes * scale in groups; the last group may be short; y may be x. */
void lowbit_round_trip(double *y, const double *x, int64_t n, int64_t group, lowbit_kind kind,
                       lowbit_rule rule);
/* W8A8 static: clamp(rne(x * (1 / scale) + offset), -128, 127), three f32 roundings; with
 * through_f16 (MLAPO) the sum becomes FP16 first. */
void lowbit_quantize_static(double *codes, const double *x, int64_t n, float input_scale,
                            float input_offset, bool through_f16);

/* ---------------------------------------------------------------- Hadamard */

/* y[a] = sum over b of (-1)^popcount(a & b) x[b], unscaled; n a power of two; y is not x. */
void lowbit_hadamard(double *y, const double *x, int64_t n);

/* ---------------------------------------------------------------- packed rows */

typedef enum lowbit_layout {
    LOWBIT_ROW_F32,
    LOWBIT_ROW_BF16,
    LOWBIT_ROW_V4_584,       /* VLLM: coded, plain, scales, padded to 8 bytes */
    LOWBIT_ROW_V4_640,       /* A5: plain, coded, scales, zeros to a multiple of 64 */
    LOWBIT_ROW_656_FLASHMLA, /* coded, f32 scales, plain */
    LOWBIT_ROW_656_ASCEND,   /* int8, plain, f32 scales */
    LOWBIT_ROW_INDEX_FP8,    /* coded, one f32 scale */
    LOWBIT_ROW_INDEX_FP4,    /* nibbles, even channel low; e8m0 scales of 32 */
    LOWBIT_ROW_INDEX_INT8    /* int8, one f16 scale */
} lowbit_layout;

/* Where the parts of a row of n values lie whose last n_plain are bf16. */
typedef struct lowbit_row {
    lowbit_layout layout;
    int32_t n, n_plain, group;
    int32_t coded_at, plain_at, scale_at, scale_bytes, n_groups, bytes;
} lowbit_row;

lowbit_row lowbit_row_of(lowbit_layout layout, int32_t n, int32_t n_plain);
void lowbit_row_encode(uint8_t *bytes, const lowbit_row *row, const double *x);
/* Numbers as attention reads them: codes times scale, rounded to bf16. */
void lowbit_row_decode(double *x, const lowbit_row *row, const uint8_t *bytes);
/* Codes as numbers [n - n_plain] and scales [n_groups] of a row with scales. */
void lowbit_row_codes(double *codes, double *scales, const lowbit_row *row, const uint8_t *bytes);

#endif
