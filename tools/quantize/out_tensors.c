#include "quantize/out_tensors.h"

#include <stdio.h>
#include <string.h>

#define DOWN_PARTS 16

int64_t out_scale_bias_parts(const quant_weight *weight)
{
    return weight->is_down && weight->matrix.cols % DOWN_PARTS == 0 ? DOWN_PARTS : 1;
}

static void add(out_tensor *out, int *n, int companion, tamis_dtype dtype, int32_t rank,
                int64_t rows, int64_t cols)
{
    out[(*n)++] = (out_tensor){.companion = companion,
                               .dtype = dtype,
                               .rank = rank,
                               .shape = {rows, cols},
                               .bytes = (uint64_t)(rows * cols * tamis_dtype_bits(dtype) / 8)};
}

/* As it is in the source, or dequantised. */
static void add_float(out_tensor *out, int *n, const quant_weight *w)
{
    out_tensor *t = &out[(*n)++];
    *t = (out_tensor){.companion = -1, .dtype = w->dtype, .rank = w->rank};
    memcpy(t->shape, w->shape, sizeof t->shape);
    t->bytes = (uint64_t)tamis_dtype_bits(w->dtype) / 8;
    for (int32_t i = 0; i < w->rank; i++)
        t->bytes *= (uint64_t)w->shape[i];
}

int out_tensors_of(out_tensor out[OUT_MAX_TENSORS], const quant_weight *w)
{
    const int64_t rows = w->matrix.rows, cols = w->matrix.cols;
    const bool is_int4 = w->scheme == TAMIS_SCHEME_W4A8_DYNAMIC;
    int n = 0;
    if (w->scheme == TAMIS_SCHEME_FLOAT) {
        add_float(out, &n, w);
        return n;
    }
    add(out, &n, -1, TAMIS_DTYPE_I8, 2, is_int4 ? rows / 2 : rows, cols);
    add(out, &n, TAMIS_COMPANION_WEIGHT_SCALE, TAMIS_DTYPE_F32, 2, rows, 1);
    add(out, &n, TAMIS_COMPANION_WEIGHT_OFFSET, TAMIS_DTYPE_F32, 2, rows, 1);
    if (is_int4)
        add(out, &n, TAMIS_COMPANION_SCALE_BIAS, TAMIS_DTYPE_F32, 2, rows, out_scale_bias_parts(w));
    if (!quant_is_fixed(w->scheme))
        return n;
    add(out, &n, TAMIS_COMPANION_DEQ_SCALE, TAMIS_DTYPE_F32, 1, rows, 1);
    add(out, &n, TAMIS_COMPANION_QUANT_BIAS, TAMIS_DTYPE_I32, 1, rows, 1);
    add(out, &n, TAMIS_COMPANION_INPUT_SCALE, TAMIS_DTYPE_F32, 1, 1, 1);
    add(out, &n, TAMIS_COMPANION_INPUT_OFFSET, TAMIS_DTYPE_I8, 1, 1, 1);
    return n;
}

bool out_tensor_name(char out[TAMIS_NAME_BYTES], const quant_weight *weight, const out_tensor *t)
{
    if (t->companion >= 0)
        return tamis_companion_spell(out, weight->name, (tamis_companion)t->companion);
    snprintf(out, TAMIS_NAME_BYTES, "%s", weight->name);
    return true;
}
