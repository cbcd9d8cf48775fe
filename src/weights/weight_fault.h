/* Which weight is damaged, once a NaN or infinity came up. */
#ifndef TAMIS_WEIGHTS_WEIGHT_FAULT_H
#define TAMIS_WEIGHTS_WEIGHT_FAULT_H

#include "config/model_config.h"
#include "weights/checkpoint.h"

typedef struct tamis_weight_fault {
    const char *tensor;
    int64_t element;
    const char *what; /* "E8M0 scale byte 255" */
} tamis_weight_fault;

/*
 * Looks through the used tensors of a layer (-1: embedding, norm, head) for FP8 NaN codes, E8M0 255
 * and NaN or infinite floats; the first in file order is reported. Reads the whole layer: slow.
 * false: nothing found.
 */
bool tamis_weights_find_fault(tamis_checkpoint *checkpoint, const tamis_model_config *config,
                              int32_t layer, tamis_weight_fault *out);

#endif
