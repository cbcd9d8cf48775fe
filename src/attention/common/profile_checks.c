#include "attention/common/profile_checks.h"

#include <math.h>

#include "core/error.h"

/* Columns whose integer sum stays within 32 bits, see kernel linear_i8. */
#define MAX_INTEGER_COLS INT64_C(65536)

static bool is_aligned(const void *data)
{
    return data != NULL && (uintptr_t)data % 4 == 0;
}

static tamis_status check_static(const char *object, const char *name,
                                 const tamis_static_quant *input, tamis_error *err)
{
    if (!(input->input_scale > 0) || !isfinite(input->input_scale))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "%s: %s has input_scale %g, must be above 0 and finite", object, name,
                          (double)input->input_scale);
    if (!(input->input_offset >= -128 && input->input_offset <= 127) ||
        input->input_offset != truncf(input->input_offset))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "%s: %s has input_offset %g, allowed integers -128..127", object, name,
                          (double)input->input_offset);
    if (!is_aligned(input->deq_scale) || !is_aligned(input->quant_bias))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "%s: %s needs deq_scale and quant_bias, 4-byte aligned, with its "
                          "input_scale",
                          object, name);
    return TAMIS_STATUS_OK;
}

static tamis_status check_integer(const char *object, const char *name, const tamis_matrix *w,
                                  tamis_error *err)
{
    if (w->cols > MAX_INTEGER_COLS)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %s is %s with %lld columns, allowed "
                          "1..%lld (integer sums of 32 bits)",
                          object, name, tamis_dtype_name(w->dtype), (long long)w->cols,
                          (long long)MAX_INTEGER_COLS);
    if (w->input != NULL)
        return check_static(object, name, w->input, err);
    if (!is_aligned(w->scale) || w->scale_dtype != TAMIS_DTYPE_F32 || w->block_rows != 1 ||
        w->block_cols < w->cols || w->scale_row_bytes != (int64_t)sizeof(float))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "%s: %s is %s, must have one F32 scale per row, side by side and 4-byte "
                          "aligned",
                          object, name, tamis_dtype_name(w->dtype));
    return TAMIS_STATUS_OK;
}

tamis_status tamis_check_profile_matrix(const char *object, const char *name, const tamis_matrix *w,
                                        tamis_profile profile, tamis_error *err)
{
    if (profile == TAMIS_PROFILE_EXACT ||
        (w->dtype != TAMIS_DTYPE_I8 && w->dtype != TAMIS_DTYPE_I4))
        return TAMIS_STATUS_OK;
    if (profile == TAMIS_PROFILE_ASCEND)
        return check_integer(object, name, w, err);
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: %s is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1 (profile %s)", object,
                      name, tamis_dtype_name(w->dtype), tamis_profile_name(profile));
}
