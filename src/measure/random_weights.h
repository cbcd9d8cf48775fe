/*
 * Random numbers in the formats of checkpoints: the same seed gives the same bytes on any machine.
 * Values are uniform over the codes of a format or over +-1, scaled so that a product with inputs
 * of size 1 has size 1.
 */
#ifndef TAMIS_MEASURE_RANDOM_WEIGHTS_H
#define TAMIS_MEASURE_RANDOM_WEIGHTS_H

#include "tamis/base.h"

typedef struct tamis_noise {
    uint64_t state;
} tamis_noise;

/* SplitMix64. */
static inline uint64_t tamis_noise_next(tamis_noise *noise)
{
    uint64_t z = noise->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
/* Uniform in [-1, 1). */
static inline float tamis_noise_unit(tamis_noise *noise)
{
    return (float)(int32_t)(tamis_noise_next(noise) >> 32) * 0x1p-31f;
}

/* A matrix's data and scales, in the vendors' layouts; what tamis_random_matrix_bytes says. */
typedef enum tamis_weight_form {
    TAMIS_FORM_BF16 = 0,
    TAMIS_FORM_FP8_E8M0, /* 128x128 blocks, E8M0 scales: V4 */
    TAMIS_FORM_FP8_F32,  /* 128x128 blocks, powers of two as F32: V3.2 */
    TAMIS_FORM_FP4,      /* 1x32, E8M0 scales: experts of V4 */
    TAMIS_FORM_I8        /* F32 scale per row: W8A8 dynamic */
} tamis_weight_form;

/* Format, strides and block sizes of a matrix of that form; data and scale are NULL. */
tamis_matrix tamis_weight_form_matrix(tamis_weight_form form, int64_t rows, int64_t cols);
size_t tamis_matrix_data_bytes(const tamis_matrix *w);
size_t tamis_matrix_scale_bytes(const tamis_matrix *w);
/* Fills `bytes` of a matrix's data; cols sets the size of floating-point values. */
void tamis_noise_fill_data(tamis_noise *noise, void *data, size_t bytes, tamis_dtype dtype,
                           int64_t cols);
/* Powers of two for FP8 and FP4: so are V4's and, by scale_fmt ue8m0, V3.2's, which come as F32. */
void tamis_noise_fill_scales(tamis_noise *noise, void *scales, size_t bytes, tamis_dtype dtype,
                             tamis_dtype data_dtype, int64_t cols);

#endif
