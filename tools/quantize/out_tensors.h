/* The tensors that a weight becomes: itself, and what stands beside it. */
#ifndef QUANTIZE_OUT_TENSORS_H
#define QUANTIZE_OUT_TENSORS_H

#include "quantize/weight_list.h"
#include "weights/quant_names.h"

#define OUT_MAX_TENSORS 8

typedef struct out_tensor {
    int companion; /* tamis_companion; -1: the weight */
    tamis_dtype dtype;
    int32_t rank;
    int64_t shape[TAMIS_MAX_RANK];
    uint64_t bytes;
} out_tensor;

/*
 * In the order of their data. A tensor of single bytes (input_offset) comes last, and its data
 * behind all others of a file, so that those stay aligned. The number of them.
 */
int out_tensors_of(out_tensor out[OUT_MAX_TENSORS], const quant_weight *weight);
/* false: the name would be too long. */
bool out_tensor_name(char out[TAMIS_NAME_BYTES], const quant_weight *weight, const out_tensor *t);

/* Parts of a row that scale_bias sums up by themselves: down projections have 16. */
int64_t out_scale_bias_parts(const quant_weight *weight);

static inline bool out_tensor_is_tail(const out_tensor *t)
{
    return t->companion == TAMIS_COMPANION_INPUT_OFFSET;
}

#endif
