/* What the model, the engine and tests may see of a V4 layer's plan and caches. */
#ifndef TAMIS_ATTENTION_DSA_DSA_INTERNAL_H
#define TAMIS_ATTENTION_DSA_DSA_INTERNAL_H

#include "attention/common/layer_caches.h"
#include "attention/common/profile.h"
#include "tamis/dsa.h"

typedef enum tamis_dsa_role {
    TAMIS_DSA_WINDOW = 0,  /* ring: kv rows */
    TAMIS_DSA_STATE,       /* ring: main compressor, f32 [u | z] per token */
    TAMIS_DSA_INDEX_STATE, /* ring: indexer compressor */
    TAMIS_DSA_CKV,         /* paged: compressed kv rows */
    TAMIS_DSA_INDEX_KEY,   /* paged: indexer keys */
    TAMIS_DSA_NUM_ROLES
} tamis_dsa_role;

tamis_cache_store *tamis_dsa_caches_store(tamis_dsa_caches *caches);
const tamis_layer_caches *tamis_dsa_caches_layers(const tamis_dsa_caches *caches);
/* Row of a paged cache: block id and row within the block; NULL if the layer has no such cache. */
const void *tamis_dsa_caches_row(const tamis_dsa_caches *caches, int32_t layer_idx,
                                 tamis_dsa_role role, int32_t block, int32_t row);
/* Rows per block of a paged cache (64 for ratio 4 and 256-token blocks); 0 if there is none. */
int32_t tamis_dsa_caches_rows_per_block(const tamis_dsa_caches *caches, int32_t layer_idx,
                                        tamis_dsa_role role);
/* Whether the layer's weights, already checked, can be run in a profile; object: what errors call
 * the layer. errors: see tamis_check_profile_matrix */
tamis_status tamis_dsa_profile_check(const tamis_dsa_layer *layer, tamis_profile profile,
                                     const char *object, tamis_error *err);
/* int32 [num_tokens][index_topk]: selection of the last ratio-4 layer that ran in this step,
 * ascending; official: best score first. */
const int32_t *tamis_dsa_plan_topk(const tamis_dsa_plan *plan);
/* Tokens of the planned step; position of each. */
int32_t tamis_dsa_plan_num_tokens(const tamis_dsa_plan *plan);
const int32_t *tamis_dsa_plan_positions(const tamis_dsa_plan *plan);

/* NULL: off, the default. */
void tamis_dsa_plan_set_profile(tamis_dsa_plan *plan, tamis_attn_profile *profile);

#endif
