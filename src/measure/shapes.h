/*
 * The published models' dimensions as config.json texts: what synthetic folders hold and what
 * single layers are measured with. Source: the vendors' config.json files (docs/models.md).
 */
#ifndef TAMIS_MEASURE_SHAPES_H
#define TAMIS_MEASURE_SHAPES_H

#include "config/model_config.h"
#include "tamis/bench.h"

#define TAMIS_SHAPE_TEXT_BYTES 8192
#define TAMIS_SHAPE_MAX_LAYERS 128

/* Of a shape what a cut-down model may change; 0 and NULL: as tamis_synth_params says. */
typedef struct tamis_shape_cut {
    const int32_t *layers; /* V4: ratios */
    int32_t n_layers, n_experts, vocab_size;
} tamis_shape_cut;

bool tamis_shape_is_v4(tamis_shape shape);
bool tamis_shape_is_bf16(tamis_shape shape); /* its linear layers, published without FP8 */
/*
 * The config.json of a cut-down model. n_experts -1: as many as the published model has.
 * errors: INVALID (value seen and allowed)
 */
tamis_status tamis_shape_config_text(tamis_shape shape, const tamis_shape_cut *cut,
                                     char text[TAMIS_SHAPE_TEXT_BYTES], tamis_error *err);
/* The same, parsed. */
tamis_status tamis_shape_config(tamis_shape shape, const tamis_shape_cut *cut,
                                tamis_model_config *out, tamis_error *err);

#endif
