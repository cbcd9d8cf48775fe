/* What is written: the weights of a model under the names of its vendor, each with its scheme. */
#ifndef QUANTIZE_WEIGHT_LIST_H
#define QUANTIZE_WEIGHT_LIST_H

#include "engine/model_internal.h"
#include "quantize/quantize.h"

typedef struct quant_weight {
    char name[TAMIS_NAME_BYTES]; /* as written */
    tamis_quant_scheme scheme;
    const tamis_tensor *tensor; /* as it is in the source */
    tamis_matrix matrix;        /* of a tensor of rank 2 that is a weight; rows 0: none */
    tamis_dtype dtype;          /* as written; I4 in bytes of I8 */
    int32_t rank;
    int64_t shape[TAMIS_MAX_RANK]; /* of the values, whatever they are packed in */
    const uint8_t *data;           /* to be copied; NULL: made from the matrix */
    bool is_down;                  /* down projection of an expert */
    float min, max;                /* of the input, 0 included; W8A8 and W8A8_MIX */
    bool is_seen;                  /* there was an input */
} quant_weight;

typedef struct quant_list {
    quant_weight *items;
    int32_t n, capacity;
    int32_t n_unused; /* tensors of the source that are none of them */
} quant_list;

/* errors: INVALID (a weight that its scheme does not fit), NO_MEMORY */
tamis_status quant_list_build(quant_list *list, tamis_model *model,
                              const tamis_quantize_params *params, tamis_error *err);
void quant_list_free(quant_list *list);

/* Whether the weight's input has a fixed scale, to be found by calibration. */
static inline bool quant_is_fixed(tamis_quant_scheme scheme)
{
    return scheme == TAMIS_SCHEME_W8A8 || scheme == TAMIS_SCHEME_W8A8_MIX;
}

#endif
