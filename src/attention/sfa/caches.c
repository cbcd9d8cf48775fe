#include "attention/sfa/caches.h"

#include <string.h>

#include "attention/common/row_choice.h"
#include "core/error.h"
#include "core/mem.h"

static const tamis_row_choice choices[] = {
    {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_BF16, TAMIS_ROWS_BF16, TAMIS_ROWS_BF16},
    {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F32, TAMIS_ROWS_F32, TAMIS_ROWS_F32},
    {TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, TAMIS_ROWS_LATENT_FLASHMLA, TAMIS_ROWS_INDEX_FP8},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, TAMIS_ROWS_BF16, TAMIS_ROWS_INDEX_INT8},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, TAMIS_ROWS_LATENT_ASCEND, TAMIS_ROWS_INDEX_INT8},
};

tamis_status tamis_sfa_row_formats(tamis_row_format *latent, tamis_row_format *index_key,
                                   const tamis_sfa_config *layer, const tamis_cache_params *params,
                                   tamis_error *err)
{
    const tamis_row_choice *choice;
    TAMIS_TRY(
        tamis_row_choice_find(&choice, choices, sizeof choices / sizeof *choices, params, err));
    const bool is_packed =
        choice->kv == TAMIS_ROWS_LATENT_FLASHMLA || choice->kv == TAMIS_ROWS_LATENT_ASCEND;
    TAMIS_TRY(tamis_row_format_make(latent, choice->kv, tamis_sfa_row_values(layer),
                                    is_packed ? layer->qk_rope_head_dim : 0, err));
    if (!tamis_sfa_has_indexer(layer))
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_check_index_rotation(params, layer->index_head_dim, err));
    return tamis_row_format_make(index_key, choice->index_key, layer->index_head_dim, 0, err);
}

static void describe_layer(const void *layers, int32_t layer_idx, const tamis_cache_params *p,
                           tamis_cache_desc *descs)
{
    const tamis_sfa_config *layer = (const tamis_sfa_config *)layers + layer_idx;
    const tamis_cache_desc every_token = {.life = TAMIS_CACHE_PAGED, .rows = p->block_tokens};
    tamis_row_format latent, index_key;
    if (tamis_sfa_row_formats(&latent, &index_key, layer, p, NULL) != TAMIS_STATUS_OK)
        return; /* not after describe's check */
    descs[TAMIS_SFA_LATENT] = every_token;
    descs[TAMIS_SFA_LATENT].format = latent;
    if (!tamis_sfa_has_indexer(layer))
        return;
    descs[TAMIS_SFA_INDEX_KEY] = every_token;
    descs[TAMIS_SFA_INDEX_KEY].format = index_key;
}

static const char *const role_names[TAMIS_SFA_NUM_ROLES] = {"latent", "index_key"};

/* Everything but the memory itself. */
static tamis_status describe(tamis_sfa_caches *caches, const tamis_sfa_config *layers,
                             int32_t n_layers, const tamis_cache_params *params, tamis_error *err)
{
    tamis_row_format latent, index_key;
    for (int32_t i = 0; i < n_layers; i++) {
        TAMIS_TRY(tamis_sfa_config_check(&layers[i], err));
        TAMIS_TRY(tamis_sfa_row_formats(&latent, &index_key, &layers[i], params, err));
    }
    TAMIS_TRY(tamis_layer_caches_describe(&caches->base, layers, n_layers, TAMIS_SFA_NUM_ROLES,
                                          params, describe_layer, err));
    caches->base.role_names = role_names;
    const size_t n = (size_t)n_layers;
    caches->layers = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *caches->layers);
    if (caches->layers == NULL)
        return tamis_fail_memory(err, "cache descriptions", n * sizeof *caches->layers);
    memcpy(caches->layers, layers, n * sizeof *layers);
    return TAMIS_STATUS_OK;
}

static void release(tamis_sfa_caches *caches)
{
    tamis_layer_caches_release(&caches->base);
    tamis_mem_free(caches->layers);
}

tamis_status tamis_sfa_caches_measure(const tamis_sfa_config *layers, int32_t n_layers,
                                      const tamis_cache_params *params, tamis_cache_bytes *out,
                                      tamis_error *err)
{
    tamis_sfa_caches caches = {0};
    const tamis_status st = describe(&caches, layers, n_layers, params, err);
    if (st == TAMIS_STATUS_OK)
        *out = tamis_layer_caches_bytes(&caches.base);
    release(&caches);
    return st;
}

tamis_status tamis_sfa_caches_open(tamis_sfa_caches **out, const tamis_sfa_config *layers,
                                   int32_t n_layers, const tamis_cache_params *params,
                                   tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_sfa_caches *caches = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *caches);
    if (caches == NULL)
        return tamis_fail_memory(err, "caches", sizeof *caches);
    TAMIS_TRY_GOTO(describe(caches, layers, n_layers, params, err));
    TAMIS_TRY_GOTO(tamis_cache_store_allocate(&caches->base.store, err));
    *out = caches;
    return TAMIS_STATUS_OK;
fail:
    tamis_sfa_caches_close(&caches);
    return st;
}

void tamis_sfa_caches_close(tamis_sfa_caches **caches)
{
    if (caches == NULL || *caches == NULL)
        return;
    release(*caches);
    tamis_mem_free(*caches);
    *caches = NULL;
}

tamis_status tamis_sfa_caches_copy_block(tamis_sfa_caches *caches, int32_t dst, int32_t src,
                                         tamis_error *err)
{
    return tamis_layer_caches_copy_block(&caches->base, dst, src, err);
}

const tamis_layer_caches *tamis_sfa_caches_layers(const tamis_sfa_caches *caches)
{
    return &caches->base;
}

tamis_cache_store *tamis_sfa_caches_store(tamis_sfa_caches *caches)
{
    return &caches->base.store;
}

const void *tamis_sfa_caches_row(const tamis_sfa_caches *caches, int32_t layer_idx,
                                 tamis_sfa_role role, int32_t block, int32_t row)
{
    const tamis_cache *cache = tamis_layer_cache(&caches->base, layer_idx, (int32_t)role);
    return cache == NULL ? NULL : tamis_cache_block_row(cache, block, row);
}
