/*
 * The tensors of a synthetic folder, in file order: one walk tells names, types and sizes, another
 * fills them.
 */
#ifndef TAMIS_MEASURE_SYNTH_TENSORS_H
#define TAMIS_MEASURE_SYNTH_TENSORS_H

#include "config/model_config.h"
#include "measure/random_weights.h"

/* How the numbers of a tensor are drawn. */
typedef enum tamis_synth_fill {
    TAMIS_FILL_WEIGHT = 0, /* of a matrix with `cols` columns */
    TAMIS_FILL_SCALE,      /* of a matrix of dtype `of` */
    TAMIS_FILL_NORM,       /* 1 and a little */
    TAMIS_FILL_SMALL,      /* a little around 0 */
    TAMIS_FILL_IDS         /* tid2eid: distinct expert ids per row */
} tamis_synth_fill;

typedef struct tamis_synth_tensor {
    char name[192];
    tamis_dtype dtype; /* as the file says it; FP4 pairs are I8 there */
    int64_t shape[2];
    int32_t rank;
    tamis_synth_fill fill;
    tamis_dtype of; /* dtype of the numbers; of a scale: of the matrix it belongs to */
    int64_t cols;
    uint64_t bytes;
} tamis_synth_tensor;

/* false ends the walk. */
typedef bool (*tamis_synth_visit_fn)(void *user, const tamis_synth_tensor *tensor);
/* Every tensor that the config asks for, under the vendor's names. Returns false if fn did. */
bool tamis_synth_walk(const tamis_model_config *config, bool is_bf16, tamis_synth_visit_fn fn,
                      void *user);

#endif
