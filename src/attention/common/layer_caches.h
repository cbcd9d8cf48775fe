/*
 * The caches of a stack of layers: which description each role of each layer has in the store.
 * What roles there are and what a layer describes for them is the back end's.
 */
#ifndef TAMIS_ATTENTION_COMMON_LAYER_CACHES_H
#define TAMIS_ATTENTION_COMMON_LAYER_CACHES_H

#include "caches/cache_store.h"
#include "tamis/attention.h"

typedef struct tamis_layer_caches {
    tamis_cache_params params;
    int32_t n_layers, n_roles;
    int32_t *index;                /* [n_layers][n_roles] number in the store, -1: none */
    const char *const *role_names; /* [n_roles] */
    tamis_cache_store store;
} tamis_layer_caches;

/* Descriptions of one layer by role, given zeroed; rows stay 0 where the layer has none. */
typedef void (*tamis_describe_layer_fn)(const void *layers, int32_t layer_idx,
                                        const tamis_cache_params *params, tamis_cache_desc *descs);

/* Checks params and fills everything but the memory. errors: INVALID, UNSUPPORTED, NO_MEMORY */
tamis_status tamis_layer_caches_describe(tamis_layer_caches *caches, const void *layers,
                                         int32_t n_layers, int32_t n_roles,
                                         const tamis_cache_params *params,
                                         tamis_describe_layer_fn describe, tamis_error *err);
tamis_cache_bytes tamis_layer_caches_bytes(const tamis_layer_caches *caches);
/* Checked copies and clearing for callers outside. errors: INVALID; nothing is written then */
tamis_status tamis_layer_caches_copy_block(tamis_layer_caches *caches, int32_t dst, int32_t src,
                                           tamis_error *err);
tamis_status tamis_layer_caches_copy_slot(tamis_layer_caches *caches, int32_t dst, int32_t src,
                                          tamis_error *err);
tamis_status tamis_layer_caches_clear_slot(tamis_layer_caches *caches, int32_t slot,
                                           tamis_error *err);
void tamis_layer_caches_release(tamis_layer_caches *caches); /* all-zero is fine */

/* NULL if the layer has no such cache. */
static inline const tamis_cache *tamis_layer_cache(const tamis_layer_caches *caches,
                                                   int32_t layer_idx, int32_t role)
{
    const int32_t i = caches->index[layer_idx * caches->n_roles + role];
    return i < 0 ? NULL : &caches->store.caches[i];
}

#endif
