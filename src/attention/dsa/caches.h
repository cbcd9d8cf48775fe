/* The caches of V4 layers: which description each role of each layer has in the store. */
#ifndef TAMIS_ATTENTION_DSA_CACHES_H
#define TAMIS_ATTENTION_DSA_CACHES_H

#include "attention/dsa/dsa_internal.h"
#include "caches/cache_store.h"

struct tamis_dsa_caches {
    tamis_dsa_cache_params params;
    int32_t n_layers;
    tamis_dsa_config *layers;              /* [n_layers] */
    int32_t (*index)[TAMIS_DSA_NUM_ROLES]; /* [n_layers] number in the store, -1: none */
    tamis_cache_store store;
};

tamis_status tamis_dsa_config_check(const tamis_dsa_config *config, tamis_error *err);
bool tamis_dsa_config_equal(const tamis_dsa_config *a, const tamis_dsa_config *b);
bool tamis_rope_config_equal(const tamis_rope_config *a, const tamis_rope_config *b);

/* NULL if the layer has no such cache. */
static inline const tamis_cache *tamis_dsa_cache(const tamis_dsa_caches *caches, int32_t layer_idx,
                                                 tamis_dsa_role role)
{
    const int32_t i = caches->index[layer_idx][role];
    return i < 0 ? NULL : &caches->store.caches[i];
}

#endif
