/* The tensors that stand beside a quantised weight X.weight: X.weight_scale, X.input_scale, ... */
#ifndef TAMIS_WEIGHTS_QUANT_NAMES_H
#define TAMIS_WEIGHTS_QUANT_NAMES_H

#include "weights/names.h"

typedef enum tamis_companion {
    TAMIS_COMPANION_WEIGHT_SCALE = 0,
    TAMIS_COMPANION_WEIGHT_OFFSET,
    TAMIS_COMPANION_INPUT_SCALE,
    TAMIS_COMPANION_INPUT_OFFSET,
    TAMIS_COMPANION_DEQ_SCALE,
    TAMIS_COMPANION_QUANT_BIAS,
    TAMIS_COMPANION_SCALE_BIAS,    /* of int4 kernels that tamis does not have */
    TAMIS_COMPANION_SECOND_SCALE,  /* scales of groups of columns: refused */
    TAMIS_COMPANION_SECOND_OFFSET, /* the same */
    TAMIS_NUM_COMPANIONS
} tamis_companion;

/* false: the name is too long. */
bool tamis_companion_spell(char out[TAMIS_NAME_BYTES], const char *weight,
                           tamis_companion companion);
/* The weight beside which `name` would stand by its ending; false: not such a name. */
bool tamis_companion_owner(char out[TAMIS_NAME_BYTES], const char *name);

#endif
