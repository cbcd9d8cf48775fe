#include "weights/bind_quantised.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"
#include "weights/quant_names.h"
#include "weights/tensor_matrix.h"

#define MAX_BIAS INT64_C(0x40000000) /* 2^30; the sum of the products is below that */
#define MAX_COLS 65535

static const char *file_of(const tamis_binder *b, const tamis_tensor *tensor)
{
    return tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx);
}

static bool is_measuring(const tamis_binder *b)
{
    return b->arena.base == NULL;
}

/* ---------------------------------------------------------------- schemes */

typedef enum scheme_set {
    ONLY_FLOAT = 0,
    INT8,         /* linear layers */
    INT8_OR_INT4, /* routed experts: no fixed input, every expert sees other tokens */
} scheme_set;

/*
 * Layers that Ascend's quantiser leaves alone: embedding and head, router, compressors,
 * weights_proj, hyper-connections, and what is not used as a linear layer of a token (kv_b, wo_a).
 */
static scheme_set schemes_of(tamis_weight weight)
{
    switch (weight) {
    case TAMIS_WEIGHT_EXPERT_W1:
    case TAMIS_WEIGHT_EXPERT_W2:
    case TAMIS_WEIGHT_EXPERT_W3:
        return INT8_OR_INT4;
    case TAMIS_WEIGHT_WQ_A:
    case TAMIS_WEIGHT_WQ_B:
    case TAMIS_WEIGHT_WKV:
    case TAMIS_WEIGHT_WO_B:
    case TAMIS_WEIGHT_KV_A_PROJ:
    case TAMIS_WEIGHT_O_PROJ:
    case TAMIS_WEIGHT_INDEX_WQ_B:
    case TAMIS_WEIGHT_INDEX_WK:
    case TAMIS_WEIGHT_DENSE_W1:
    case TAMIS_WEIGHT_DENSE_W2:
    case TAMIS_WEIGHT_DENSE_W3:
    case TAMIS_WEIGHT_SHARED_W1:
    case TAMIS_WEIGHT_SHARED_W2:
    case TAMIS_WEIGHT_SHARED_W3:
    case TAMIS_WEIGHT_MTP_EH_PROJ:
    case TAMIS_WEIGHT_MTP_E_PROJ:
    case TAMIS_WEIGHT_MTP_H_PROJ:
        return INT8;
    default:
        return ONLY_FLOAT;
    }
}

static bool is_allowed(scheme_set set, tamis_quant_scheme scheme)
{
    switch (scheme) {
    case TAMIS_SCHEME_FLOAT:
        return true;
    case TAMIS_SCHEME_W8A8:
        return set == INT8;
    case TAMIS_SCHEME_W4A8_DYNAMIC:
        return set == INT8_OR_INT4;
    default:
        return set != ONLY_FLOAT;
    }
}

static bool is_float(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F32 || dtype == TAMIS_DTYPE_BF16 || dtype == TAMIS_DTYPE_F16;
}

tamis_status tamis_binder_scheme(const tamis_binder *b, tamis_weight weight,
                                 const tamis_tensor *tensor, tamis_quant_scheme *out)
{
    static const char *const allowed[] = {
        [ONLY_FLOAT] = "FLOAT",
        [INT8] = "FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX",
        [INT8_OR_INT4] = "FLOAT, W8A8_DYNAMIC, W8A8_MIX, W4A8_DYNAMIC",
    };
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    const scheme_set set = schemes_of(weight);
    *out = TAMIS_SCHEME_FLOAT;
    if (d == NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_quant_description_scheme(d, tensor->name, out, b->err));
    if (!is_allowed(set, *out))
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED, "%s: %s is %s, allowed: %s",
                          tamis_quant_description_path(d), tensor->name,
                          tamis_quant_scheme_name(*out), allowed[set]);
    if (*out == TAMIS_SCHEME_FLOAT && !is_float(tensor->dtype) &&
        tamis_quant_description_has(d, tensor->name))
        return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                          "%s: %s: dtype is %s, allowed: F32, BF16, F16, for %s says FLOAT",
                          file_of(b, tensor), tensor->name, tamis_dtype_name(tensor->dtype),
                          tamis_quant_description_path(d));
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- companions */

static tamis_tensor *find_companion(const tamis_binder *b, const tamis_tensor *weight,
                                    tamis_companion companion)
{
    char name[TAMIS_NAME_BYTES];
    return tamis_companion_spell(name, weight->name, companion)
               ? tamis_checkpoint_find(b->checkpoint, name)
               : NULL;
}

/* Its entry in the description, where it has one, says the same as its weight's. */
static tamis_status check_scheme(const tamis_binder *b, const tamis_tensor *companion,
                                 tamis_quant_scheme scheme)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    tamis_quant_scheme seen;
    if (!tamis_quant_description_has(d, companion->name))
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_quant_description_scheme(d, companion->name, &seen, b->err));
    if (seen == scheme)
        return TAMIS_STATUS_OK;
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: %s is %s, allowed: %s, the scheme of its weight",
                      tamis_quant_description_path(d), companion->name,
                      tamis_quant_scheme_name(seen), tamis_quant_scheme_name(scheme));
}

static tamis_status require_companion(const tamis_binder *b, const tamis_tensor *weight,
                                      tamis_quant_scheme scheme, tamis_companion companion,
                                      tamis_tensor **out)
{
    char name[TAMIS_NAME_BYTES] = "";
    *out = find_companion(b, weight, companion);
    if (*out != NULL)
        return check_scheme(b, *out, scheme);
    tamis_companion_spell(name, weight->name, companion);
    return tamis_fail(
        b->err, TAMIS_STATUS_FORMAT, "%s: tensor %s is missing, allowed: beside %s, which is %s",
        tamis_checkpoint_dir(b->checkpoint), name, weight->name, tamis_quant_scheme_name(scheme));
}

/* [n] or [n, 1]: quantisers differ. */
static tamis_status check_column(const tamis_binder *b, const tamis_tensor *tensor, int64_t n)
{
    const int64_t shape[] = {n, 1};
    if (tensor->rank == 1)
        return tamis_tensor_check_shape(b->checkpoint, tensor, 1, shape, b->err);
    return tamis_tensor_check_shape(b->checkpoint, tensor, 2, shape, b->err);
}

/* A number of any type that a companion may have. */
static double number_of(const tamis_tensor *tensor, int64_t i)
{
    const uint8_t *at = tensor->data + i * tamis_dtype_bits(tensor->dtype) / 8;
    switch (tensor->dtype) {
    case TAMIS_DTYPE_F32:
        return (double)tamis_load_f32(at);
    case TAMIS_DTYPE_BF16:
        return (double)tamis_bf16_to_f32(tamis_load_u16(at));
    case TAMIS_DTYPE_F16:
        return (double)tamis_f16_to_f32(tamis_load_u16(at));
    default:
        return (double)*(const int8_t *)at;
    }
}

static tamis_status refuse_number(const tamis_binder *b, const tamis_tensor *tensor, int64_t i,
                                  double seen, tamis_status status, const char *allowed)
{
    return tamis_fail(b->err, status, "%s: %s: element %lld is %.9g, allowed: %s",
                      file_of(b, tensor), tensor->name, (long long)i, seen, allowed);
}

/* An aligned f32 array of n values: in place if it can be. NULL while measuring a copy. */
static const float *floats_of(tamis_binder *b, const tamis_tensor *tensor, int64_t n)
{
    if (tensor->dtype == TAMIS_DTYPE_F32 && (uintptr_t)tensor->data % sizeof(float) == 0)
        return (const float *)(const void *)tensor->data;
    float *copy = tamis_arena_take(&b->arena, (size_t)n, sizeof *copy);
    if (copy != NULL)
        tamis_kernels_current()->widen(copy, tensor->data, tensor->dtype, n);
    return copy;
}

/* ---------------------------------------------------------------- weight */

/* The last step of an asymmetric weight would be missing. */
static tamis_status check_offset(tamis_binder *b, const tamis_tensor *weight,
                                 tamis_quant_scheme scheme, int64_t rows)
{
    tamis_tensor *offset = find_companion(b, weight, TAMIS_COMPANION_WEIGHT_OFFSET);
    if (offset == NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_scheme(b, offset, scheme));
    if (!is_float(offset->dtype) && offset->dtype != TAMIS_DTYPE_I8)
        return tamis_tensor_refuse_dtype(b->checkpoint, offset, "F32, BF16, F16, I8", b->err);
    TAMIS_TRY(check_column(b, offset, rows));
    for (int64_t i = 0; is_measuring(b) && i < rows; i++)
        if (number_of(offset, i) != 0)
            return refuse_number(b, offset, i, number_of(offset, i), TAMIS_STATUS_UNSUPPORTED,
                                 "0, weights are symmetric");
    offset->is_used = true;
    return TAMIS_STATUS_OK;
}

static tamis_status bind_scale(tamis_binder *b, tamis_matrix *out, const tamis_tensor *weight,
                               tamis_quant_scheme scheme)
{
    tamis_tensor *scale;
    TAMIS_TRY(require_companion(b, weight, scheme, TAMIS_COMPANION_WEIGHT_SCALE, &scale));
    if (!is_float(scale->dtype))
        return tamis_tensor_refuse_dtype(b->checkpoint, scale, "F32, BF16, F16", b->err);
    TAMIS_TRY(check_column(b, scale, out->rows));
    for (int64_t i = 0; is_measuring(b) && i < out->rows; i++)
        if (!(number_of(scale, i) >= 0) || !isfinite(number_of(scale, i)))
            return refuse_number(b, scale, i, number_of(scale, i), TAMIS_STATUS_FORMAT,
                                 "at least 0 and finite");
    out->scale = floats_of(b, scale, out->rows);
    out->scale_dtype = TAMIS_DTYPE_F32;
    out->block_rows = 1;
    out->block_cols = (int32_t)out->cols;
    out->scale_row_bytes = sizeof(float);
    tamis_binder_use(b, scale);
    return TAMIS_STATUS_OK;
}

/* int4 has scales of whole rows, or a second set of scales for groups of columns. */
static tamis_status refuse_groups(const tamis_binder *b, const tamis_tensor *weight)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    const tamis_tensor *second = find_companion(b, weight, TAMIS_COMPANION_SECOND_SCALE);
    if (second != NULL)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: tensor %s is there, allowed: none, int4 weights have one scale per "
                          "row",
                          file_of(b, second), second->name);
    if (tamis_quant_description_group_size(d) > 0)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: group_size is %d, allowed: 0, int4 weights such as %s have one "
                          "scale per row",
                          tamis_quant_description_path(d), tamis_quant_description_group_size(d),
                          weight->name);
    return TAMIS_STATUS_OK;
}

static tamis_status bind_int4(tamis_binder *b, tamis_matrix *out, const tamis_tensor *weight)
{
    const int64_t shape[] = {out->rows / 2, out->cols};
    if (out->rows % 2 != 0)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %s: is int4 with %lld rows, allowed: an even number",
                          file_of(b, weight), weight->name, (long long)out->rows);
    TAMIS_TRY(tamis_tensor_check_shape(b->checkpoint, weight, 2, shape, b->err));
    TAMIS_TRY(refuse_groups(b, weight));
    out->dtype = TAMIS_DTYPE_I4;
    tamis_tensor *scale_bias = find_companion(b, weight, TAMIS_COMPANION_SCALE_BIAS);
    if (scale_bias != NULL) /* 8 times the sum of a row's values, for kernels on nibbles */
        scale_bias->is_used = true;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- fixed inputs */

static tamis_status read_scalar(const tamis_binder *b, const tamis_tensor *weight,
                                tamis_companion companion, bool may_be_i8, tamis_tensor **out,
                                double *value)
{
    TAMIS_TRY(require_companion(b, weight, TAMIS_SCHEME_W8A8, companion, out));
    if (!is_float((*out)->dtype) && !(may_be_i8 && (*out)->dtype == TAMIS_DTYPE_I8))
        return tamis_tensor_refuse_dtype(
            b->checkpoint, *out, may_be_i8 ? "I8, F32, BF16, F16" : "F32, BF16, F16", b->err);
    TAMIS_TRY(check_column(b, *out, 1));
    *value = number_of(*out, 0);
    return TAMIS_STATUS_OK;
}

static tamis_status read_input(const tamis_binder *b, const tamis_tensor *weight,
                               tamis_static_quant *out, tamis_tensor *used[2])
{
    double scale = 0, offset = 0;
    TAMIS_TRY(read_scalar(b, weight, TAMIS_COMPANION_INPUT_SCALE, false, &used[0], &scale));
    if (!(scale > 0) || !isfinite(scale) || !isfinite(1.0f / (float)scale))
        return refuse_number(b, used[0], 0, scale, TAMIS_STATUS_FORMAT,
                             "above 0 and finite, and so is its inverse");
    TAMIS_TRY(read_scalar(b, weight, TAMIS_COMPANION_INPUT_OFFSET, true, &used[1], &offset));
    if (!(offset >= -128 && offset <= 127) || offset != rint(offset))
        return refuse_number(b, used[1], 0, offset, TAMIS_STATUS_FORMAT, "an integer in -128..127");
    out->input_scale = (float)scale;
    out->input_offset = (float)offset;
    return TAMIS_STATUS_OK;
}

/* FP16 models keep the bits of a float in the low half of an I64. */
static float deq_scale_of(const tamis_tensor *tensor, int64_t i)
{
    return tamis_load_f32(tensor->data + i * tamis_dtype_bits(tensor->dtype) / 8);
}

/*
 * deq_scale is input_scale x weight_scale, up to what some tools cut off its mantissa: else the
 * integer path and the dequantised weight would be two models.
 */
static tamis_status check_deq_scale(const tamis_binder *b, const tamis_tensor *deq,
                                    const tamis_tensor *weight, const tamis_static_quant *input,
                                    int64_t rows)
{
    const tamis_tensor *scale = find_companion(b, weight, TAMIS_COMPANION_WEIGHT_SCALE);
    for (int64_t i = 0; i < rows; i++) {
        const double seen = (double)deq_scale_of(deq, i);
        const double wanted = (double)input->input_scale * number_of(scale, i);
        if (!(fabs(seen - wanted) <= wanted / 128))
            return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                              "%s: %s: element %lld is %.9g, allowed: input_scale x weight_scale, "
                              "%.9g",
                              file_of(b, deq), deq->name, (long long)i, seen, wanted);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status bind_deq_scale(tamis_binder *b, const tamis_tensor *weight,
                                   tamis_static_quant *input, int64_t rows)
{
    tamis_tensor *deq;
    TAMIS_TRY(require_companion(b, weight, TAMIS_SCHEME_W8A8, TAMIS_COMPANION_DEQ_SCALE, &deq));
    if (deq->dtype != TAMIS_DTYPE_F32 && deq->dtype != TAMIS_DTYPE_I64)
        return tamis_tensor_refuse_dtype(b->checkpoint, deq, "F32, I64", b->err);
    TAMIS_TRY(check_column(b, deq, rows));
    if (is_measuring(b))
        TAMIS_TRY(check_deq_scale(b, deq, weight, input, rows));
    tamis_binder_use(b, deq);
    if (deq->dtype == TAMIS_DTYPE_F32) {
        input->deq_scale = floats_of(b, deq, rows);
        return TAMIS_STATUS_OK;
    }
    float *copy = tamis_arena_take(&b->arena, (size_t)rows, sizeof *copy);
    for (int64_t i = 0; copy != NULL && i < rows; i++)
        copy[i] = deq_scale_of(deq, i);
    input->deq_scale = copy;
    return TAMIS_STATUS_OK;
}

static int32_t i32_of(const tamis_tensor *tensor, int64_t i)
{
    int32_t value;
    memcpy(&value, tensor->data + 4 * i, sizeof value);
    return value;
}

/* Whether an element is more than the correction of the input's offset. */
static tamis_status check_correction(const tamis_binder *b, const tamis_tensor *bias,
                                     const tamis_tensor *weight, const tamis_static_quant *input,
                                     int64_t row, int64_t cols)
{
    const int8_t *w = (const int8_t *)weight->data + row * cols;
    int64_t sum = 0;
    for (int64_t c = 0; c < cols; c++)
        sum += w[c];
    const int64_t wanted = -(int64_t)input->input_offset * sum;
    if (i32_of(bias, row) == wanted)
        return TAMIS_STATUS_OK;
    return tamis_fail(
        b->err, TAMIS_STATUS_UNSUPPORTED,
        "%s: %s: element %lld is %d, allowed: -input_offset x the row's sum, %lld, in "
        "profile exact; a bias is folded in, which profile ascend runs",
        file_of(b, bias), bias->name, (long long)row, (int)i32_of(bias, row), (long long)wanted);
}

static tamis_status check_bias(const tamis_binder *b, const tamis_tensor *bias,
                               const tamis_tensor *weight, const tamis_static_quant *input,
                               int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t value = i32_of(bias, i);
        if (value > MAX_BIAS || value < -MAX_BIAS)
            return refuse_number(b, bias, i, (double)value, TAMIS_STATUS_UNSUPPORTED,
                                 "-2^30..2^30");
        if (b->config->profile == TAMIS_PROFILE_EXACT)
            TAMIS_TRY(check_correction(b, bias, weight, input, i, cols));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status bind_bias(tamis_binder *b, const tamis_tensor *weight,
                              tamis_static_quant *input, int64_t rows, int64_t cols)
{
    tamis_tensor *bias;
    TAMIS_TRY(require_companion(b, weight, TAMIS_SCHEME_W8A8, TAMIS_COMPANION_QUANT_BIAS, &bias));
    if (bias->dtype != TAMIS_DTYPE_I32)
        return tamis_tensor_refuse_dtype(b->checkpoint, bias, "I32", b->err);
    TAMIS_TRY(check_column(b, bias, rows));
    if (is_measuring(b))
        TAMIS_TRY(check_bias(b, bias, weight, input, rows, cols));
    tamis_binder_use(b, bias);
    if ((uintptr_t)bias->data % sizeof(int32_t) == 0) {
        input->quant_bias = (const int32_t *)(const void *)bias->data;
        return TAMIS_STATUS_OK;
    }
    int32_t *copy = tamis_arena_take(&b->arena, (size_t)rows, sizeof *copy);
    if (copy != NULL)
        memcpy(copy, bias->data, (size_t)rows * sizeof *copy);
    input->quant_bias = copy;
    return TAMIS_STATUS_OK;
}

static tamis_status bind_input(tamis_binder *b, tamis_matrix *out, const tamis_tensor *weight)
{
    tamis_static_quant input = {0};
    tamis_tensor *used[2];
    TAMIS_TRY(read_input(b, weight, &input, used));
    used[0]->is_used = used[1]->is_used = true;
    TAMIS_TRY(bind_deq_scale(b, weight, &input, out->rows));
    TAMIS_TRY(bind_bias(b, weight, &input, out->rows, out->cols));
    tamis_static_quant *kept = tamis_arena_take(&b->arena, 1, sizeof *kept);
    if (kept != NULL)
        *kept = input;
    out->input = kept;
    return TAMIS_STATUS_OK;
}

/* The fixed inputs of a MIX weight stay unread. */
static void skip_input(const tamis_binder *b, const tamis_tensor *weight)
{
    for (int i = TAMIS_COMPANION_INPUT_SCALE; i <= TAMIS_COMPANION_QUANT_BIAS; i++) {
        tamis_tensor *tensor = find_companion(b, weight, (tamis_companion)i);
        if (tensor != NULL)
            tensor->is_used = true;
    }
}

/* ---------------------------------------------------------------- no description */

tamis_status tamis_binder_refuse_undescribed(const tamis_binder *b, const tamis_tensor *tensor,
                                             bool may_be_fp4)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    const bool is_fp4 =
        may_be_fp4 && find_companion(b, tensor, TAMIS_COMPANION_WEIGHT_SCALE) == NULL;
    if (tensor->dtype != TAMIS_DTYPE_I8 || is_fp4)
        return TAMIS_STATUS_OK;
    if (d != NULL)
        return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                          "%s: %s: dtype is I8, allowed: F32, BF16, F16, F8_E4M3, for %s does not "
                          "name it",
                          file_of(b, tensor), tensor->name, tamis_quant_description_path(d));
    return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: %s: dtype is I8, allowed: F32, BF16, F16, F8_E4M3%s; int8 weights need "
                      "quant_model_description.json, which %s does not have",
                      file_of(b, tensor), tensor->name, may_be_fp4 ? ", FP4 as I8" : "",
                      tamis_checkpoint_dir(b->checkpoint));
}

/* ---------------------------------------------------------------- all of it */

static tamis_status check_quantised(const tamis_binder *b, const tamis_tensor *tensor,
                                    tamis_quant_scheme scheme, int64_t cols)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    if (tensor->dtype != TAMIS_DTYPE_I8)
        return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                          "%s: %s: dtype is %s, allowed: I8, for %s says %s", file_of(b, tensor),
                          tensor->name, tamis_dtype_name(tensor->dtype),
                          tamis_quant_description_path(d), tamis_quant_scheme_name(scheme));
    if (b->config->profile == TAMIS_PROFILE_OFFICIAL)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %s: is I8 (%s), allowed: F32, BF16, F16, F8_E4M3, FP4 in profile "
                          "official; profiles exact and ascend run it",
                          file_of(b, tensor), tensor->name, tamis_quant_scheme_name(scheme));
    if (cols > MAX_COLS)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %s: has %lld columns, allowed: up to %d, so that integer sums fit",
                          file_of(b, tensor), tensor->name, (long long)cols, MAX_COLS);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_bind_quantised(tamis_binder *b, tamis_matrix *out, const tamis_tensor *tensor,
                                  tamis_quant_scheme scheme, int64_t rows, int64_t cols)
{
    const int64_t shape[] = {rows, cols};
    *out = (tamis_matrix){.dtype = TAMIS_DTYPE_I8,
                          .rows = rows,
                          .cols = cols,
                          .data = tensor->data,
                          .row_bytes = cols};
    TAMIS_TRY(check_quantised(b, tensor, scheme, cols));
    if (scheme == TAMIS_SCHEME_W4A8_DYNAMIC)
        TAMIS_TRY(bind_int4(b, out, tensor));
    else
        TAMIS_TRY(tamis_tensor_check_shape(b->checkpoint, tensor, 2, shape, b->err));
    TAMIS_TRY(bind_scale(b, out, tensor, scheme));
    TAMIS_TRY(check_offset(b, tensor, scheme, rows));
    if (scheme == TAMIS_SCHEME_W8A8_MIX)
        skip_input(b, tensor);
    return scheme == TAMIS_SCHEME_W8A8 ? bind_input(b, out, tensor) : TAMIS_STATUS_OK;
}

static tamis_status expect_one_input(const tamis_binder *b, const tamis_tensor *first,
                                     const tamis_tensor *second)
{
    tamis_static_quant inputs[2];
    tamis_tensor *used[2];
    TAMIS_TRY(read_input(b, first, &inputs[0], used));
    TAMIS_TRY(read_input(b, second, &inputs[1], used));
    if (inputs[0].input_scale == inputs[1].input_scale &&
        inputs[0].input_offset == inputs[1].input_offset)
        return TAMIS_STATUS_OK;
    return tamis_fail(
        b->err, TAMIS_STATUS_FORMAT,
        "%s: %s has input scale %.9g and offset %g, allowed: %.9g and %g, as %s, with "
        "which it is one module",
        file_of(b, second), second->name, (double)inputs[1].input_scale,
        (double)inputs[1].input_offset, (double)inputs[0].input_scale,
        (double)inputs[0].input_offset, first->name);
}

tamis_status tamis_binder_expect_fused(const tamis_binder *b, const tamis_tensor *first,
                                       tamis_weight weight)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    const tamis_tensor *second = d != NULL ? tamis_binder_find(b, weight) : NULL;
    tamis_quant_scheme schemes[2];
    if (first == NULL || second == NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_quant_description_scheme(d, first->name, &schemes[0], b->err));
    TAMIS_TRY(tamis_quant_description_scheme(d, second->name, &schemes[1], b->err));
    if (schemes[0] == schemes[1])
        return schemes[0] == TAMIS_SCHEME_W8A8 ? expect_one_input(b, first, second)
                                               : TAMIS_STATUS_OK;
    return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: %s is %s, allowed: %s, as %s, with which it is one module",
                      tamis_quant_description_path(d), second->name,
                      tamis_quant_scheme_name(schemes[1]), tamis_quant_scheme_name(schemes[0]),
                      first->name);
}
