#include "weights/binder.h"

#include "core/error.h"
#include "kernels/kernels.h"
#include "weights/bind_quantised.h"
#include "weights/tensor_matrix.h"

tamis_tensor *tamis_binder_find(const tamis_binder *b, tamis_weight weight)
{
    char text[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_names_spell(b->names, text, weight, b->at, i); i++) {
        tamis_tensor *tensor = tamis_checkpoint_find(b->checkpoint, text);
        if (tensor != NULL)
            return tensor;
    }
    return NULL;
}

tamis_status tamis_binder_require(const tamis_binder *b, tamis_weight weight, tamis_tensor **out)
{
    char text[TAMIS_NAME_BYTES] = "";
    *out = tamis_binder_find(b, weight);
    if (*out != NULL)
        return TAMIS_STATUS_OK;
    tamis_names_spell(b->names, text, weight, b->at, 0);
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is missing, allowed: one of its spellings",
                      tamis_checkpoint_dir(b->checkpoint), text);
}

tamis_status tamis_binder_refuse(const tamis_binder *b, tamis_weight weight, const char *field,
                                 int32_t value)
{
    const tamis_tensor *tensor = tamis_binder_find(b, weight);
    if (tensor == NULL)
        return TAMIS_STATUS_OK;
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is there, allowed: none of this part where config.json has "
                      "%s %d",
                      tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx), tensor->name,
                      field, (int)value);
}

void tamis_binder_use(tamis_binder *b, tamis_tensor *tensor)
{
    tensor->is_used = true;
    b->mapped_bytes += tensor->bytes;
}

tamis_status tamis_bind_matrix(tamis_binder *b, tamis_matrix *out, tamis_weight weight,
                               int64_t rows, int64_t cols)
{
    tamis_tensor *tensor, *scale;
    const bool may_be_fp4 =
        weight >= TAMIS_WEIGHT_EXPERT_W1 && b->config->family == TAMIS_FAMILY_DEEPSEEK_V4;
    tamis_quant_scheme scheme;
    TAMIS_TRY(tamis_binder_require(b, weight, &tensor));
    TAMIS_TRY(tamis_binder_scheme(b, weight, tensor, &scheme));
    if (scheme != TAMIS_SCHEME_FLOAT) {
        tamis_binder_use(b, tensor);
        return tamis_bind_quantised(b, out, tensor, scheme, rows, cols);
    }
    TAMIS_TRY(tamis_binder_refuse_undescribed(b, tensor, may_be_fp4));
    TAMIS_TRY(
        tamis_tensor_to_matrix(out, b->checkpoint, tensor, &scale, rows, cols, may_be_fp4, b->err));
    tamis_binder_use(b, tensor);
    if (scale != NULL)
        tamis_binder_use(b, scale);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_bind_float_matrix(tamis_binder *b, tamis_matrix *out, tamis_weight weight,
                                     int64_t rows, int64_t cols)
{
    tamis_tensor *tensor;
    const int64_t shape[] = {rows, cols};
    tamis_quant_scheme scheme;
    TAMIS_TRY(tamis_binder_require(b, weight, &tensor));
    TAMIS_TRY(tamis_binder_scheme(b, weight, tensor, &scheme)); /* FLOAT, or refused */
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, tensor, 2, shape, b->err));
    *out = tamis_tensor_float_matrix(tensor, tensor->data, rows, cols);
    tamis_binder_use(b, tensor);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_bind_floats(tamis_binder *b, const float **out, tamis_weight weight,
                               int32_t rank, const int64_t *shape)
{
    tamis_tensor *tensor;
    int64_t n = 1;
    TAMIS_TRY(tamis_binder_require(b, weight, &tensor));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, tensor, rank, shape, b->err));
    for (int32_t i = 0; i < rank; i++)
        n *= shape[i];
    float *copy = tamis_arena_take(&b->arena, (size_t)n, sizeof *copy);
    if (copy != NULL)
        tamis_kernels_current()->widen(copy, tensor->data, tensor->dtype, n);
    tensor->is_used = true;
    *out = copy;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_bind_vector(tamis_binder *b, const float **out, tamis_weight weight, int64_t n)
{
    return tamis_bind_floats(b, out, weight, 1, &n);
}
