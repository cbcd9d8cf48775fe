/* The range of the inputs of weights that get a fixed input scale. */
#ifndef QUANTIZE_CALIBRATE_H
#define QUANTIZE_CALIBRATE_H

#include "quantize/weight_list.h"

/*
 * Runs the model, which is open in profile exact, over the tokens of params->calibrate and fills
 * min, max and is_seen of the list's weights. *n_tokens: how many there were; 0 if no weight asks
 * for it. errors: INVALID (ids: file, place, value seen and allowed; a weight that saw no input),
 * IO, those of the engine and of the tokenizer
 */
tamis_status quant_calibrate(quant_list *list, tamis_model *model,
                             const tamis_quantize_params *params, int64_t *n_tokens,
                             tamis_error *err);

/* How the input of a calibrated weight is quantised: the range laid over -128..127. */
void quant_fixed_input(const quant_weight *weight, float *scale, int8_t *offset);

#endif
