/* How the caches of a layer code their rows: the back end's table, asked for a model's layer. */
#ifndef TAMIS_MODEL_CACHE_ROWS_H
#define TAMIS_MODEL_CACHE_ROWS_H

#include "config/model_config.h"
#include "tamis/rows.h"

typedef struct tamis_cache_rows {
    tamis_row_format kv;        /* window and compressed rows, or latents */
    tamis_row_format index_key; /* row_bytes 0: the layer keeps none */
} tamis_cache_rows;

/*
 * Rows of a layer under a profile and a kv_cache_dtype (AUTO: the profile's first); what was taken
 * is kv.dtype. errors: UNSUPPORTED, with the value, the profile and what it allows; INVALID
 */
tamis_status tamis_cache_rows_find(tamis_cache_rows *out, const tamis_model_config *config,
                                   int32_t layer, tamis_dtype kv_cache_dtype, tamis_error *err);
/* The layout that a format was made from. */
tamis_row_layout tamis_row_layout_of(const tamis_row_format *format);

#endif
