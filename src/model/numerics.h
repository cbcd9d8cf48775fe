/* The arithmetic of an open folder, stage by stage: the table's rules that it has layers for. */
#ifndef TAMIS_MODEL_NUMERICS_H
#define TAMIS_MODEL_NUMERICS_H

#include "config/model_config.h"
#include "weights/model_weights.h"

typedef struct tamis_numerics {
    tamis_numerics_line *lines; /* [n_lines] */
    int32_t n_lines;
    struct tamis_numerics_text *texts; /* what lines point into */
} tamis_numerics;

/* The profile is config's, rows are those of AUTO. errors: NO_MEMORY, those of the rows */
tamis_status tamis_numerics_make(tamis_numerics *out, const tamis_model_config *config,
                                 const tamis_model_weights *weights, tamis_error *err);
void tamis_numerics_free(tamis_numerics *numerics); /* all-zero is fine */

#endif
