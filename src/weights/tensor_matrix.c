#include "weights/tensor_matrix.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/size.h"
#include "weights/names.h"

/* Block sizes come from the format, never from rows / scale rows: edge blocks may be short. */
#define FP8_BLOCK 128
#define FP4_BLOCK 32

#define SHAPE_BYTES 128

static const char *file_of(const tamis_checkpoint *checkpoint, const tamis_tensor *tensor)
{
    return tamis_checkpoint_file_name(checkpoint, tensor->file_idx);
}

static void show_shape(char out[SHAPE_BYTES], int32_t rank, const int64_t *shape)
{
    size_t n = (size_t)snprintf(out, SHAPE_BYTES, "[");
    for (int32_t i = 0; i < rank && n + 24 < SHAPE_BYTES; i++)
        n += (size_t)snprintf(out + n, SHAPE_BYTES - n, "%s%lld", i > 0 ? ", " : "",
                              (long long)shape[i]);
    snprintf(out + n, SHAPE_BYTES - n, "]");
}

tamis_status tamis_tensor_check_shape(const tamis_checkpoint *checkpoint,
                                      const tamis_tensor *tensor, int32_t rank,
                                      const int64_t *shape, tamis_error *err)
{
    char seen[SHAPE_BYTES], allowed[SHAPE_BYTES];
    if (tensor->rank == rank && memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0)
        return TAMIS_STATUS_OK;
    show_shape(seen, tensor->rank, tensor->shape);
    show_shape(allowed, rank, shape);
    return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: %s: shape is %s, allowed: %s (%s)",
                      file_of(checkpoint, tensor), tensor->name, seen, allowed,
                      tamis_dtype_name(tensor->dtype));
}

tamis_status tamis_tensor_refuse_dtype(const tamis_checkpoint *checkpoint,
                                       const tamis_tensor *tensor, const char *allowed,
                                       tamis_error *err)
{
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED, "%s: %s: dtype is %s, allowed: %s",
                      file_of(checkpoint, tensor), tensor->name, tamis_dtype_name(tensor->dtype),
                      allowed);
}

static bool is_float(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F32 || dtype == TAMIS_DTYPE_BF16 || dtype == TAMIS_DTYPE_F16;
}

tamis_tensor *tamis_tensor_find_scale(tamis_checkpoint *checkpoint, const tamis_tensor *tensor)
{
    char name[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_scale_spell(name, tensor->name, i); i++) {
        tamis_tensor *scale = tamis_checkpoint_find(checkpoint, name);
        if (scale != NULL)
            return scale;
    }
    return NULL;
}

/* Two spellings beside one weight may hold different numbers: none of them is the right one. */
static tamis_status expect_one_scale(tamis_checkpoint *checkpoint, const tamis_tensor *tensor,
                                     tamis_error *err)
{
    const tamis_tensor *first = NULL;
    char name[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_scale_spell(name, tensor->name, i); i++) {
        const tamis_tensor *scale = tamis_checkpoint_find(checkpoint, name);
        if (scale != NULL && first != NULL)
            return tamis_fail(err, TAMIS_STATUS_FORMAT,
                              "%s: %s and %s are both scales of %s, allowed: one of them",
                              file_of(checkpoint, scale), first->name, scale->name, tensor->name);
        first = scale != NULL ? scale : first;
    }
    return TAMIS_STATUS_OK;
}

/* Scales beside floats mean that the dtype is not what it says. */
static tamis_status expect_no_scale(const tamis_checkpoint *checkpoint, const tamis_tensor *tensor,
                                    const tamis_tensor *scale, tamis_error *err)
{
    if (scale == NULL)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: %s: belongs to a weight of %s, allowed: none",
                      file_of(checkpoint, scale), scale->name, tamis_dtype_name(tensor->dtype));
}

tamis_status tamis_tensor_check_float(tamis_checkpoint *checkpoint, const tamis_tensor *tensor,
                                      int32_t rank, const int64_t *shape, tamis_error *err)
{
    if (!is_float(tensor->dtype))
        return tamis_tensor_refuse_dtype(checkpoint, tensor, "F32, BF16, F16", err);
    TAMIS_TRY(tamis_tensor_check_shape(checkpoint, tensor, rank, shape, err));
    return expect_no_scale(checkpoint, tensor, tamis_tensor_find_scale(checkpoint, tensor), err);
}

tamis_matrix tamis_tensor_float_matrix(const tamis_tensor *tensor, const uint8_t *data,
                                       int64_t rows, int64_t cols)
{
    return (tamis_matrix){.dtype = tensor->dtype,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols * tamis_dtype_bits(tensor->dtype) / 8};
}

static tamis_status add_scale(tamis_matrix *out, const tamis_checkpoint *checkpoint,
                              const tamis_tensor *tensor, const tamis_tensor *scale,
                              int32_t block_rows, int32_t block_cols, tamis_error *err)
{
    const int64_t grid[] = {tamis_ceil_div(out->rows, block_rows),
                            tamis_ceil_div(out->cols, block_cols)};
    if (scale == NULL)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: %s: is %s without scales, allowed: with .scale or _scale_inv beside "
                          "it",
                          file_of(checkpoint, tensor), tensor->name,
                          tamis_dtype_name(tensor->dtype));
    const bool is_f32 = scale->dtype == TAMIS_DTYPE_F32;
    if (!is_f32 && scale->dtype != TAMIS_DTYPE_F8_E8M0 && scale->dtype != TAMIS_DTYPE_U8 &&
        scale->dtype != TAMIS_DTYPE_I8)
        return tamis_tensor_refuse_dtype(checkpoint, scale, "F8_E8M0, F32, U8, I8", err);
    TAMIS_TRY(tamis_tensor_check_shape(checkpoint, scale, 2, grid, err));
    out->scale = scale->data;
    out->scale_dtype = is_f32 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_F8_E8M0;
    out->block_rows = block_rows;
    out->block_cols = block_cols;
    out->scale_row_bytes = grid[1] * (is_f32 ? 4 : 1);
    return TAMIS_STATUS_OK;
}

static tamis_status fp8_matrix(tamis_matrix *out, const tamis_checkpoint *checkpoint,
                               const tamis_tensor *tensor, const tamis_tensor *scale,
                               tamis_error *err)
{
    const int64_t shape[] = {out->rows, out->cols};
    TAMIS_TRY(tamis_tensor_check_shape(checkpoint, tensor, 2, shape, err));
    out->dtype = TAMIS_DTYPE_F8_E4M3;
    out->row_bytes = out->cols;
    return add_scale(out, checkpoint, tensor, scale, FP8_BLOCK, FP8_BLOCK, err);
}

/* Two columns per byte under the name I8. */
static tamis_status fp4_matrix(tamis_matrix *out, const tamis_checkpoint *checkpoint,
                               const tamis_tensor *tensor, const tamis_tensor *scale,
                               tamis_error *err)
{
    const int64_t shape[] = {out->rows, out->cols / 2};
    if (out->cols % FP4_BLOCK != 0)
        return tamis_fail(
            err, TAMIS_STATUS_FORMAT, "%s: %s: is FP4 with %lld columns, allowed: a multiple of %d",
            file_of(checkpoint, tensor), tensor->name, (long long)out->cols, FP4_BLOCK);
    TAMIS_TRY(tamis_tensor_check_shape(checkpoint, tensor, 2, shape, err));
    out->dtype = TAMIS_DTYPE_F4_E2M1;
    out->row_bytes = out->cols / 2;
    return add_scale(out, checkpoint, tensor, scale, 1, FP4_BLOCK, err);
}

tamis_status tamis_tensor_to_matrix(tamis_matrix *out, tamis_checkpoint *checkpoint,
                                    const tamis_tensor *tensor, tamis_tensor **scale, int64_t rows,
                                    int64_t cols, bool may_be_fp4, tamis_error *err)
{
    const int64_t shape[] = {rows, cols};
    *out = (tamis_matrix){.rows = rows, .cols = cols, .data = tensor->data};
    TAMIS_TRY(expect_one_scale(checkpoint, tensor, err));
    *scale = tamis_tensor_find_scale(checkpoint, tensor);
    if (tensor->dtype == TAMIS_DTYPE_F8_E4M3)
        return fp8_matrix(out, checkpoint, tensor, *scale, err);
    if (tensor->dtype == TAMIS_DTYPE_I8 && may_be_fp4)
        return fp4_matrix(out, checkpoint, tensor, *scale, err);
    if (!is_float(tensor->dtype))
        return tamis_tensor_refuse_dtype(
            checkpoint, tensor,
            may_be_fp4 ? "F32, BF16, F16, F8_E4M3, FP4 as I8" : "F32, BF16, F16, F8_E4M3", err);
    TAMIS_TRY(tamis_tensor_check_shape(checkpoint, tensor, 2, shape, err));
    TAMIS_TRY(expect_no_scale(checkpoint, tensor, *scale, err));
    *out = tamis_tensor_float_matrix(tensor, tensor->data, rows, cols);
    return TAMIS_STATUS_OK;
}

int64_t tamis_tensor_i64(const tamis_tensor *tensor, int64_t i)
{
    int64_t value;
    memcpy(&value, tensor->data + 8 * i, sizeof value);
    return value;
}
