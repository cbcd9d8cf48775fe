/* From a tensor with its checks to a matrix: which number formats and scales are accepted. */
#ifndef TAMIS_WEIGHTS_TENSOR_MATRIX_H
#define TAMIS_WEIGHTS_TENSOR_MATRIX_H

#include "weights/checkpoint.h"

/* FORMAT "file: tensor: shape is [..], allowed: [..]" */
tamis_status tamis_tensor_check_shape(const tamis_checkpoint *checkpoint,
                                      const tamis_tensor *tensor, int32_t rank,
                                      const int64_t *shape, tamis_error *err);
/* UNSUPPORTED "file: tensor: dtype is .., allowed: .." */
tamis_status tamis_tensor_refuse_dtype(const tamis_checkpoint *checkpoint,
                                       const tamis_tensor *tensor, const char *allowed,
                                       tamis_error *err);
/* F32, BF16 or F16 of that shape, and no scales beside it. */
tamis_status tamis_tensor_check_float(tamis_checkpoint *checkpoint, const tamis_tensor *tensor,
                                      int32_t rank, const int64_t *shape, tamis_error *err);
/* rows x cols values of a float tensor from `data` on. */
tamis_matrix tamis_tensor_float_matrix(const tamis_tensor *tensor, const uint8_t *data,
                                       int64_t rows, int64_t cols);
/*
 * A weight [rows][cols]: F32, BF16, F16; F8_E4M3 with scales per 128x128; with may_be_fp4 also I8
 * [rows][cols / 2] with scales per 1x32. Scales: F8_E8M0, F32, or U8 and I8 holding E8M0 bytes.
 * *scale: the tensor of the scales, or NULL; scales under two names are refused.
 */
tamis_status tamis_tensor_to_matrix(tamis_matrix *out, tamis_checkpoint *checkpoint,
                                    const tamis_tensor *tensor, tamis_tensor **scale, int64_t rows,
                                    int64_t cols, bool may_be_fp4, tamis_error *err);
/* The tensor that holds the scales of a weight, by its name (the first of two); NULL if there is none. */
tamis_tensor *tamis_tensor_find_scale(tamis_checkpoint *checkpoint, const tamis_tensor *tensor);

int64_t tamis_tensor_i64(const tamis_tensor *tensor, int64_t i);

#endif
