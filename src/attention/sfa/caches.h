/* The caches of V3.2 and GLM layers. */
#ifndef TAMIS_ATTENTION_SFA_CACHES_H
#define TAMIS_ATTENTION_SFA_CACHES_H

#include "attention/common/layer_caches.h"
#include "attention/sfa/sfa_internal.h"

struct tamis_sfa_caches {
    tamis_layer_caches base;
    tamis_sfa_config *layers; /* [n_layers] */
};

tamis_status tamis_sfa_config_check(const tamis_sfa_config *config, tamis_error *err);
bool tamis_sfa_config_equal(const tamis_sfa_config *a, const tamis_sfa_config *b);

/* Formats of a layer's rows under these params; index_key only if it has an indexer. errors: see
 * row_choice.h */
tamis_status tamis_sfa_row_formats(tamis_row_format *latent, tamis_row_format *index_key,
                                   const tamis_sfa_config *layer, const tamis_cache_params *params,
                                   tamis_error *err);

static inline int32_t tamis_sfa_row_values(const tamis_sfa_config *config)
{
    return config->kv_lora_rank + config->qk_rope_head_dim;
}
static inline bool tamis_sfa_has_indexer(const tamis_sfa_config *config)
{
    return config->index_topk > 0 && !config->reuse_topk;
}

#endif
