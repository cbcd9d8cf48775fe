/* What the model, the engine and tests may see of a V3.2 or GLM layer's plan and caches. */
#ifndef TAMIS_ATTENTION_SFA_SFA_INTERNAL_H
#define TAMIS_ATTENTION_SFA_SFA_INTERNAL_H

#include "attention/common/layer_caches.h"
#include "attention/common/profile.h"
#include "tamis/sfa.h"

typedef enum tamis_sfa_role {
    TAMIS_SFA_LATENT = 0, /* paged: latent and rotated key part of every token */
    TAMIS_SFA_INDEX_KEY,  /* paged: indexer key of every token */
    TAMIS_SFA_NUM_ROLES
} tamis_sfa_role;

tamis_cache_store *tamis_sfa_caches_store(tamis_sfa_caches *caches);
const tamis_layer_caches *tamis_sfa_caches_layers(const tamis_sfa_caches *caches);
/* Row of a cache: block id and row within the block; NULL if the layer has no such cache. */
const void *tamis_sfa_caches_row(const tamis_sfa_caches *caches, int32_t layer_idx,
                                 tamis_sfa_role role, int32_t block, int32_t row);
/* Whether the layer's weights, already checked, can be run in a profile; object: how a message
 * calls the layer. errors: see attention/common/profile_checks.h */
tamis_status tamis_sfa_profile_check(const tamis_sfa_layer *layer, tamis_profile profile,
                                     const char *object, tamis_error *err);
/* After preprocess of a layer with indexer: f32 [num_tokens][index_n_heads * index_head_dim]
 * rotated (official: FP8 codes), and [num_tokens][round_up(index_n_heads, 16)] scaled, zeros after
 * index_n_heads. */
const float *tamis_sfa_plan_index_query(const tamis_sfa_plan *plan);
const float *tamis_sfa_plan_index_weights(const tamis_sfa_plan *plan);
const int32_t *tamis_sfa_plan_positions(const tamis_sfa_plan *plan);
/* NULL: off, the default. Kinds: 0 own selection or none, 1 reused selection. */
void tamis_sfa_plan_set_profile(tamis_sfa_plan *plan, tamis_attn_profile *profile);

#endif
