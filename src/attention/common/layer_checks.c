#include "attention/common/layer_checks.h"

#include <math.h>

#include "core/error.h"
#include "core/size.h"

/* 65535 x 128 x 128 and a bias of 2^30 stay within 32 bits. */
#define MAX_INTEGER_COLS 65535

tamis_status tamis_check_ranges(const char *object, const tamis_field_range *fields, size_t n,
                                tamis_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "%s: %s is %d, allowed %d..%d", object,
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_check_above(const char *name, float value, float bound, tamis_error *err)
{
    if (value > bound && isfinite(value))
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s is %g, must be above %g and finite",
                      name, (double)value, (double)bound);
}

tamis_status tamis_check_rope(const tamis_rope_config *rope, tamis_error *err)
{
    const tamis_field_range position[] = {
        {"rope original_max_position", rope->original_max_position, 1, INT32_MAX}};
    TAMIS_TRY(tamis_check_above("rope theta", rope->theta, 1, err));
    if (!(rope->yarn_factor >= 0) || !isfinite(rope->yarn_factor))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: rope yarn_factor is %g, must be at least 0 and finite",
                          (double)rope->yarn_factor);
    if (rope->yarn_factor <= 1)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_check_ranges("layer", position, 1, err));
    TAMIS_TRY(tamis_check_above("rope beta_slow", rope->beta_slow, 0, err));
    TAMIS_TRY(tamis_check_above("rope beta_fast", rope->beta_fast, 0, err));
    if (rope->beta_fast < rope->beta_slow)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: rope beta_fast is %g, must be at least beta_slow %g",
                          (double)rope->beta_fast, (double)rope->beta_slow);
    return TAMIS_STATUS_OK;
}

/* Distance of n rows: at least what a row takes, and the last one's offset fits. */
static tamis_status check_stride(const char *name, const char *field, int64_t seen, int64_t min,
                                 int64_t n, tamis_error *err)
{
    if (seen >= min && seen <= INT64_MAX / n)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s has %s %lld, allowed %lld..%lld", name,
                      field, (long long)seen, (long long)min, (long long)(INT64_MAX / n));
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
    return check_stride(name, "scale_row_bytes", w->scale_row_bytes,
                        tamis_ceil_div(w->cols, w->block_cols) * tamis_dtype_bits(w->scale_dtype) /
                            8,
                        tamis_ceil_div(w->rows, w->block_rows), err);
}

static bool is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % sizeof(float) == 0;
}

/* Integer sums meet an array of f32, one for every row. */
static tamis_status check_row_scales(const char *name, const tamis_matrix *w, tamis_error *err)
{
    if (w->scale == NULL || w->scale_dtype != TAMIS_DTYPE_F32 || w->block_rows != 1 ||
        w->block_cols < w->cols || w->scale_row_bytes != sizeof(float) || !is_aligned(w->scale))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s is %s with %s scales in blocks of %dx%d, %lld bytes apart, "
                          "allowed: an aligned array of F32, one per row (1x%lld)",
                          name, tamis_dtype_name(w->dtype),
                          w->scale == NULL ? "no" : tamis_dtype_name(w->scale_dtype), w->block_rows,
                          w->block_cols, (long long)w->scale_row_bytes, (long long)w->cols);
    if (w->cols > MAX_INTEGER_COLS)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: %s is %s with %lld columns, allowed: up to %d, so that integer "
                          "sums fit",
                          name, tamis_dtype_name(w->dtype), (long long)w->cols, MAX_INTEGER_COLS);
    return TAMIS_STATUS_OK;
}

/* The bias itself is not read: it would be for every call. */
static tamis_status check_fixed_input(const char *name, const tamis_matrix *w, tamis_error *err)
{
    const tamis_static_quant *input = w->input;
    if (input == NULL)
        return TAMIS_STATUS_OK;
    if (w->dtype != TAMIS_DTYPE_I8)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: %s is %s with a fixed input scale, allowed: I8", name,
                          tamis_dtype_name(w->dtype));
    if (!(input->input_scale > 0) || !isfinite(input->input_scale))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has input_scale %g, allowed: above 0 and finite", name,
                          (double)input->input_scale);
    if (!(input->input_offset >= -128 && input->input_offset <= 127) ||
        input->input_offset != rintf(input->input_offset))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has input_offset %g, allowed: an integer in -128..127", name,
                          (double)input->input_offset);
    if (input->deq_scale != NULL && input->quant_bias != NULL && is_aligned(input->deq_scale) &&
        is_aligned(input->quant_bias))
        return TAMIS_STATUS_OK;
    return tamis_fail(
        err, TAMIS_STATUS_INVALID,
        "layer: %s has deq_scale %p and quant_bias %p, allowed: aligned arrays of one "
        "per row",
        name, (const void *)input->deq_scale, (const void *)input->quant_bias);
}

static tamis_status check_integers(const char *name, const tamis_matrix *w, tamis_error *err)
{
    if (w->dtype != TAMIS_DTYPE_I8 && w->dtype != TAMIS_DTYPE_I4)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_row_scales(name, w, err));
    return check_fixed_input(name, w, err);
}

tamis_status tamis_check_matrix(const char *name, const tamis_matrix *w, int64_t rows, int64_t cols,
                                tamis_error *err)
{
    if (w->data == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s has no data", name);
    if (w->rows != rows || w->cols != cols)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s is [%lld][%lld], must be [%lld][%lld]", name,
                          (long long)w->rows, (long long)w->cols, (long long)rows, (long long)cols);
    if (w->dtype > TAMIS_DTYPE_F4_E2M1 && w->dtype != TAMIS_DTYPE_I8 && w->dtype != TAMIS_DTYPE_I4)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: %s is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1, I8, I4", name,
                          tamis_dtype_name(w->dtype));
    const int bits = w->dtype == TAMIS_DTYPE_I4 ? 8 : tamis_dtype_bits(w->dtype);
    TAMIS_TRY(
        check_stride(name, "row_bytes", w->row_bytes, tamis_ceil_div(cols * bits, 8), rows, err));
    TAMIS_TRY(check_integers(name, w, err));
    return check_scale(name, w, err);
}

tamis_status tamis_check_vector(const char *name, const float *vector, tamis_error *err)
{
    return vector != NULL ? TAMIS_STATUS_OK
                          : tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s is missing", name);
}

tamis_status tamis_check_apart(const float *x, const float *out, int64_t n, tamis_error *err)
{
    const uintptr_t a = (uintptr_t)x, b = (uintptr_t)out;
    if (n < 1 || (a > b ? a - b : b - a) >= (uint64_t)n * sizeof *x)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: out overlaps x");
}

bool tamis_rope_config_equal(const tamis_rope_config *a, const tamis_rope_config *b)
{
    return a->theta == b->theta && a->yarn_factor == b->yarn_factor &&
           a->original_max_position == b->original_max_position && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow;
}
