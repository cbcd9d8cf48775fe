/* How a family's caches code their rows: a table over profile and kv_cache_dtype. */
#ifndef TAMIS_ATTENTION_COMMON_ROW_CHOICE_H
#define TAMIS_ATTENTION_COMMON_ROW_CHOICE_H

#include "tamis/attention.h"

typedef struct tamis_row_choice {
    tamis_profile profile;
    tamis_dtype kv_cache_dtype; /* TAMIS_DTYPE_AUTO takes the profile's first line */
    tamis_row_layout kv, index_key;
} tamis_row_choice;

/*
 * The line that params ask for.
 * errors: INVALID (profile), UNSUPPORTED "kv_cache_dtype is <value>, allowed <values> (profile <name>)"
 */
tamis_status tamis_row_choice_find(const tamis_row_choice **out, const tamis_row_choice *table,
                                   size_t n, const tamis_cache_params *params, tamis_error *err);
/*
 * Whether an indexer of that size can be rotated, which all profiles but exact do.
 * errors: UNSUPPORTED "index_head_dim is 40, must be a power of two (profile official: Hadamard)"
 */
tamis_status tamis_check_index_rotation(const tamis_cache_params *params, int32_t index_head_dim,
                                        tamis_error *err);

#endif
