/*
 * Writes a folder as Ascend's quantiser would: int8 and int4 weights with their scales,
 * quant_model_description.json, and the small files around them.
 *
 * Every row of a weight gets the scale amax / 127 (int4: amax / 7) and codes rounded to nearest
 * even. A fixed input scale (W8A8) comes from running the model in profile exact over some tokens:
 * the range of each layer's input, zero included, is laid over -128..127.
 */
#ifndef QUANTIZE_QUANTIZE_H
#define QUANTIZE_QUANTIZE_H

#include "weights/quant_description.h"

typedef struct tamis_quantize_params {
    const char *source; /* a folder of floats, FP8 or FP4 */
    const char *output; /* a new or an empty folder */
    /* Attention projections may have any scheme but W4A8_DYNAMIC, experts any but W8A8. Other
     * linear layers likewise as attention; those of the indexer and of an MTP block, which a
     * calibration does not reach, are W8A8_DYNAMIC where W8A8 or W8A8_MIX is asked for. */
    tamis_quant_scheme attention, experts, others;
    /* NAME.ids: token ids between white space; else a text; NULL: fixed ids. Only with W8A8,
     * W8A8_MIX */
    const char *calibrate;
    int64_t shard_bytes; /* a file is closed once it has that many; at least one weight in each */
    int32_t n_threads;   /* of the calibration */
} tamis_quantize_params;

typedef struct tamis_quantize_report {
    int64_t n_weights[TAMIS_NUM_SCHEMES]; /* written with that scheme; FLOAT: all other tensors */
    int32_t n_unused;                     /* tensors of the source that its model does not run */
    int32_t n_files;                      /* of tensors */
    uint64_t bytes;                       /* of tensors */
    int64_t n_tokens;                     /* of the calibration; 0: there was none */
} tamis_quantize_report;

/*
 * Nothing is left of the output when it fails, but the folder itself if it was there before.
 * errors: those of opening the source; INVALID (a scheme where it cannot be, a weight it does not
 * fit, calibration ids), IO, NO_MEMORY
 */
tamis_status tamis_quantize_folder(const tamis_quantize_params *params,
                                   tamis_quantize_report *report, tamis_error *err);

#endif
