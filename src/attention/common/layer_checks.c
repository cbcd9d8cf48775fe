#include "attention/common/layer_checks.h"

#include "core/error.h"
#include "core/size.h"

tamis_status tamis_check_ranges(const char *object, const tamis_field_range *fields, size_t n,
                                tamis_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "%s: %s is %d, allowed %d..%d", object,
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    return TAMIS_STATUS_OK;
}

static tamis_status check_scale(const char *name, const tamis_matrix *w, tamis_error *err)
{
    if (w->scale == NULL)
        return TAMIS_STATUS_OK;
    if (w->block_rows < 1 || w->block_cols < 1 ||
        (w->scale_dtype != TAMIS_DTYPE_F32 && w->scale_dtype != TAMIS_DTYPE_F8_E8M0))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has scales of %s in blocks of %dx%d, allowed F32 or F8_E8M0",
                          name, tamis_dtype_name(w->scale_dtype), w->block_rows, w->block_cols);
    if (w->scale_row_bytes <
        tamis_ceil_div(w->cols, w->block_cols) * tamis_dtype_bits(w->scale_dtype) / 8)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has scale_row_bytes %lld, a row of %lld scales needs more",
                          name, (long long)w->scale_row_bytes,
                          (long long)tamis_ceil_div(w->cols, w->block_cols));
    return TAMIS_STATUS_OK;
}

tamis_status tamis_check_matrix(const char *name, const tamis_matrix *w, int64_t rows, int64_t cols,
                                tamis_error *err)
{
    if (w->data == NULL || w->rows != rows || w->cols != cols)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s is [%lld][%lld], must be [%lld][%lld]", name,
                          (long long)w->rows, (long long)w->cols, (long long)rows, (long long)cols);
    if (w->dtype > TAMIS_DTYPE_F4_E2M1)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: %s is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1", name,
                          tamis_dtype_name(w->dtype));
    const int64_t row_bytes = tamis_ceil_div(cols * tamis_dtype_bits(w->dtype), 8);
    if (w->row_bytes < row_bytes)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has row_bytes %lld, a row of %lld %s needs %lld", name,
                          (long long)w->row_bytes, (long long)cols, tamis_dtype_name(w->dtype),
                          (long long)row_bytes);
    return check_scale(name, w, err);
}

tamis_status tamis_check_vector(const char *name, const float *vector, tamis_error *err)
{
    return vector != NULL ? TAMIS_STATUS_OK
                          : tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s is missing", name);
}

bool tamis_rope_config_equal(const tamis_rope_config *a, const tamis_rope_config *b)
{
    return a->theta == b->theta && a->yarn_factor == b->yarn_factor &&
           a->original_max_position == b->original_max_position && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow;
}
