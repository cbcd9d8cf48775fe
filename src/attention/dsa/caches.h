/* The caches of V4 layers: which description each role of each layer has in the store. */
#ifndef TAMIS_ATTENTION_DSA_CACHES_H
#define TAMIS_ATTENTION_DSA_CACHES_H

#include "attention/common/layer_caches.h"
#include "attention/dsa/dsa_internal.h"

struct tamis_dsa_caches {
    tamis_layer_caches base;
    tamis_dsa_config *layers; /* [n_layers] */
};

/* Whether a layer selects for itself. */
static inline bool tamis_dsa_has_indexer(const tamis_dsa_config *config)
{
    return config->compress_ratio == 4 && !config->reuse_topk;
}

tamis_status tamis_dsa_config_check(const tamis_dsa_config *config, tamis_error *err);
bool tamis_dsa_config_equal(const tamis_dsa_config *a, const tamis_dsa_config *b);

/* Formats of a layer's rows under these params; index_key only if it has an indexer. errors: see
 * row_choice.h */
tamis_status tamis_dsa_row_formats(tamis_row_format *kv, tamis_row_format *index_key,
                                   const tamis_dsa_config *layer, const tamis_cache_params *params,
                                   tamis_error *err);

/* NULL if the layer has no such cache. */
static inline const tamis_cache *tamis_dsa_cache(const tamis_dsa_caches *caches, int32_t layer_idx,
                                                 tamis_dsa_role role)
{
    return tamis_layer_cache(&caches->base, layer_idx, (int32_t)role);
}

#endif
