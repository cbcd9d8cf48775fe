#include "attention/dsa/caches.h"

#include <string.h>

#include "attention/common/compressor.h"
#include "attention/common/row_choice.h"
#include "core/error.h"
#include "core/mem.h"

static const tamis_row_choice choices[] = {
    {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_BF16, TAMIS_ROWS_BF16, TAMIS_ROWS_BF16},
    {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F32, TAMIS_ROWS_F32, TAMIS_ROWS_F32},
    {TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, TAMIS_ROWS_V4_FP8, TAMIS_ROWS_INDEX_FP4},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, TAMIS_ROWS_BF16, TAMIS_ROWS_INDEX_INT8},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, TAMIS_ROWS_V4_A5, TAMIS_ROWS_INDEX_INT8},
};

tamis_status tamis_dsa_row_formats(tamis_row_format *kv, tamis_row_format *index_key,
                                   const tamis_dsa_config *layer, const tamis_cache_params *params,
                                   tamis_error *err)
{
    const tamis_row_choice *choice;
    TAMIS_TRY(
        tamis_row_choice_find(&choice, choices, sizeof choices / sizeof *choices, params, err));
    const bool is_packed = choice->kv == TAMIS_ROWS_V4_FP8 || choice->kv == TAMIS_ROWS_V4_A5;
    TAMIS_TRY(tamis_row_format_make(kv, choice->kv, layer->head_dim,
                                    is_packed ? layer->rope_head_dim : 0, err));
    if (!tamis_dsa_has_indexer(layer))
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_check_index_rotation(params, layer->index_head_dim, err));
    return tamis_row_format_make(index_key, choice->index_key, layer->index_head_dim, 0, err);
}

/* The compressor's ring and paged rows; d values a row. */
static void describe_compressor(const tamis_dsa_config *layer, const tamis_cache_params *p,
                                const tamis_row_format *format, tamis_cache_desc *state,
                                tamis_cache_desc *rows)
{
    const int32_t d = format->num_values;
    const int32_t ratio = layer->compress_ratio, halves = tamis_compressor_halves(ratio);
    const int32_t lead = halves == 2 ? ratio : 0;
    *state = (tamis_cache_desc){.life = TAMIS_CACHE_RING,
                                .format = tamis_row_format_plain(TAMIS_DTYPE_F32, 2 * halves * d),
                                .rows = tamis_cache_ring_rows(ratio, lead, p->max_rollback),
                                .align = ratio,
                                .lead = lead};
    *rows = (tamis_cache_desc){
        .life = TAMIS_CACHE_PAGED, .format = *format, .rows = p->block_tokens / ratio};
}

static void describe_layer(const void *layers, int32_t layer_idx, const tamis_cache_params *p,
                           tamis_cache_desc *descs)
{
    const tamis_dsa_config *layer = (const tamis_dsa_config *)layers + layer_idx;
    const int32_t lead = layer->sliding_window - 1;
    tamis_row_format kv = {0}, index_key = {0};
    if (tamis_dsa_row_formats(&kv, &index_key, layer, p, NULL) != TAMIS_STATUS_OK)
        return; /* not after describe's check */
    descs[TAMIS_DSA_WINDOW] =
        (tamis_cache_desc){.life = TAMIS_CACHE_RING,
                           .format = kv,
                           .rows = tamis_cache_ring_rows(1, lead, p->max_rollback),
                           .align = 1,
                           .lead = lead};
    if (layer->compress_ratio != 0)
        describe_compressor(layer, p, &kv, &descs[TAMIS_DSA_STATE], &descs[TAMIS_DSA_CKV]);
    if (tamis_dsa_has_indexer(layer))
        describe_compressor(layer, p, &index_key, &descs[TAMIS_DSA_INDEX_STATE],
                            &descs[TAMIS_DSA_INDEX_KEY]);
}

static tamis_status copy_layers(tamis_dsa_caches *caches, const tamis_dsa_config *layers,
                                int32_t n_layers, tamis_error *err)
{
    const size_t n = (size_t)n_layers;
    caches->layers = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *caches->layers);
    if (caches->layers == NULL)
        return tamis_fail_memory(err, "cache descriptions", n * sizeof *caches->layers);
    memcpy(caches->layers, layers, n * sizeof *layers);
    return TAMIS_STATUS_OK;
}

static const char *const role_names[TAMIS_DSA_NUM_ROLES] = {"window", "state", "index_state", "ckv",
                                                            "index_key"};

/* Everything but the memory itself. */
static tamis_status describe(tamis_dsa_caches *caches, const tamis_dsa_config *layers,
                             int32_t n_layers, const tamis_cache_params *params, tamis_error *err)
{
    tamis_row_format kv, index_key;
    for (int32_t i = 0; i < n_layers; i++) {
        TAMIS_TRY(tamis_dsa_config_check(&layers[i], err));
        TAMIS_TRY(tamis_dsa_row_formats(&kv, &index_key, &layers[i], params, err));
    }
    TAMIS_TRY(tamis_layer_caches_describe(&caches->base, layers, n_layers, TAMIS_DSA_NUM_ROLES,
                                          params, describe_layer, err));
    caches->base.role_names = role_names;
    if (params->block_tokens % 128 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "cache params: block_tokens is %d, must be a multiple of 128",
                          params->block_tokens);
    return copy_layers(caches, layers, n_layers, err);
}

static void release(tamis_dsa_caches *caches)
{
    tamis_layer_caches_release(&caches->base);
    tamis_mem_free(caches->layers);
}

tamis_status tamis_dsa_caches_measure(const tamis_dsa_config *layers, int32_t n_layers,
                                      const tamis_cache_params *params, tamis_cache_bytes *out,
                                      tamis_error *err)
{
    tamis_dsa_caches caches = {0};
    const tamis_status st = describe(&caches, layers, n_layers, params, err);
    if (st == TAMIS_STATUS_OK)
        *out = tamis_layer_caches_bytes(&caches.base);
    release(&caches);
    return st;
}

tamis_status tamis_dsa_caches_open(tamis_dsa_caches **out, const tamis_dsa_config *layers,
                                   int32_t n_layers, const tamis_cache_params *params,
                                   tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_dsa_caches *caches = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *caches);
    if (caches == NULL)
        return tamis_fail_memory(err, "caches", sizeof *caches);
    TAMIS_TRY_GOTO(describe(caches, layers, n_layers, params, err));
    TAMIS_TRY_GOTO(tamis_cache_store_allocate(&caches->base.store, err));
    *out = caches;
    return TAMIS_STATUS_OK;
fail:
    tamis_dsa_caches_close(&caches);
    return st;
}

void tamis_dsa_caches_close(tamis_dsa_caches **caches)
{
    if (caches == NULL || *caches == NULL)
        return;
    release(*caches);
    tamis_mem_free(*caches);
    *caches = NULL;
}

tamis_status tamis_dsa_caches_copy_block(tamis_dsa_caches *caches, int32_t dst, int32_t src,
                                         tamis_error *err)
{
    return tamis_layer_caches_copy_block(&caches->base, dst, src, err);
}

tamis_status tamis_dsa_caches_copy_slot(tamis_dsa_caches *caches, int32_t dst, int32_t src,
                                        tamis_error *err)
{
    return tamis_layer_caches_copy_slot(&caches->base, dst, src, err);
}

tamis_status tamis_dsa_caches_clear_slot(tamis_dsa_caches *caches, int32_t slot, tamis_error *err)
{
    return tamis_layer_caches_clear_slot(&caches->base, slot, err);
}

int32_t tamis_dsa_caches_rollback_floor(const tamis_dsa_caches *caches, int32_t high)
{
    return tamis_cache_store_rollback_floor(&caches->base.store, high);
}

const tamis_layer_caches *tamis_dsa_caches_layers(const tamis_dsa_caches *caches)
{
    return &caches->base;
}

tamis_cache_store *tamis_dsa_caches_store(tamis_dsa_caches *caches)
{
    return &caches->base.store;
}

const void *tamis_dsa_caches_row(const tamis_dsa_caches *caches, int32_t layer_idx,
                                 tamis_dsa_role role, int32_t block, int32_t row)
{
    const tamis_cache *cache = tamis_dsa_cache(caches, layer_idx, role);
    return cache == NULL ? NULL : tamis_cache_block_row(cache, block, row);
}

int32_t tamis_dsa_caches_rows_per_block(const tamis_dsa_caches *caches, int32_t layer_idx,
                                        tamis_dsa_role role)
{
    const tamis_cache *cache = tamis_dsa_cache(caches, layer_idx, role);
    return cache == NULL ? 0 : cache->desc.rows;
}
