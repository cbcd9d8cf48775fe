#include "attention/dsa/caches.h"

#include <string.h>

#include "attention/common/compressor.h"
#include "core/error.h"
#include "core/mem.h"

tamis_dsa_cache_params tamis_dsa_cache_params_default(void)
{
    return (tamis_dsa_cache_params){.struct_size = sizeof(tamis_dsa_cache_params),
                                    .kv_cache_dtype = TAMIS_DTYPE_BF16,
                                    .block_tokens = 256,
                                    .num_blocks = 2,
                                    .num_slots = 1,
                                    .max_rollback = 8};
}

static tamis_status check_params(const tamis_dsa_cache_params *p, tamis_error *err)
{
    const struct {
        const char *name;
        int32_t value, min, max;
    } fields[] = {{"block_tokens", p->block_tokens, 128, 1 << 20},
                  {"num_blocks", p->num_blocks, 1, INT32_MAX},
                  {"num_slots", p->num_slots, 1, 1 << 20},
                  {"max_rollback", p->max_rollback, 0, 1 << 16},
                  {"block_pad_bytes", p->block_pad_bytes, 0, 1 << 30}};
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "cache params: struct_size is %zu, must be %zu", p->struct_size,
                          sizeof *p);
    if (p->kv_cache_dtype != TAMIS_DTYPE_BF16 && p->kv_cache_dtype != TAMIS_DTYPE_F32)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "cache params: kv_cache_dtype is %s, allowed BF16, F32",
                          tamis_dtype_name(p->kv_cache_dtype));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "cache params: %s is %d, allowed %d..%d",
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    if (p->block_tokens % 128 != 0 || p->block_pad_bytes % 64 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "cache params: block_tokens is %d, must be a multiple of 128; "
                          "block_pad_bytes is %d, must be a multiple of 64",
                          p->block_tokens, p->block_pad_bytes);
    return TAMIS_STATUS_OK;
}

/* The compressor's ring and paged rows; d values a row. */
static void describe_compressor(const tamis_dsa_config *layer, const tamis_dsa_cache_params *p,
                                int32_t d, tamis_cache_desc *state, tamis_cache_desc *rows)
{
    const int32_t ratio = layer->compress_ratio, halves = tamis_compressor_halves(ratio);
    const int32_t lead = halves == 2 ? ratio : 0;
    *state = (tamis_cache_desc){.life = TAMIS_CACHE_RING,
                                .dtype = TAMIS_DTYPE_F32,
                                .values_per_row = 2 * halves * d,
                                .rows = tamis_cache_ring_rows(ratio, lead, p->max_rollback),
                                .align = ratio,
                                .lead = lead};
    *rows = (tamis_cache_desc){.life = TAMIS_CACHE_PAGED,
                               .dtype = p->kv_cache_dtype,
                               .values_per_row = d,
                               .rows = p->block_tokens / ratio};
}

/* Descriptions of one layer by role; rows == 0 where the layer has none. */
static void describe_layer(const tamis_dsa_config *layer, const tamis_dsa_cache_params *p,
                           tamis_cache_desc descs[TAMIS_DSA_NUM_ROLES])
{
    const int32_t lead = layer->sliding_window - 1;
    memset(descs, 0, sizeof(*descs) * TAMIS_DSA_NUM_ROLES);
    descs[TAMIS_DSA_WINDOW] =
        (tamis_cache_desc){.life = TAMIS_CACHE_RING,
                           .dtype = p->kv_cache_dtype,
                           .values_per_row = layer->head_dim,
                           .rows = tamis_cache_ring_rows(1, lead, p->max_rollback),
                           .align = 1,
                           .lead = lead};
    if (layer->compress_ratio != 0)
        describe_compressor(layer, p, layer->head_dim, &descs[TAMIS_DSA_STATE],
                            &descs[TAMIS_DSA_CKV]);
    if (layer->compress_ratio == 4 && !layer->reuse_topk)
        describe_compressor(layer, p, layer->index_head_dim, &descs[TAMIS_DSA_INDEX_STATE],
                            &descs[TAMIS_DSA_INDEX_KEY]);
}

static tamis_status copy_layers(tamis_dsa_caches *caches, const tamis_dsa_config *layers,
                                int32_t n_layers, tamis_error *err)
{
    const size_t n = (size_t)n_layers;
    caches->n_layers = n_layers;
    caches->layers = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *caches->layers);
    caches->index = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *caches->index);
    if (caches->layers == NULL || caches->index == NULL)
        return tamis_fail_memory(err, "cache descriptions", n * sizeof *caches->layers);
    for (int32_t i = 0; i < n_layers; i++) {
        TAMIS_TRY(tamis_dsa_config_check(&layers[i], err));
        caches->layers[i] = layers[i];
    }
    return TAMIS_STATUS_OK;
}

/* Everything but the memory itself. */
static tamis_status describe(tamis_dsa_caches *caches, const tamis_dsa_config *layers,
                             int32_t n_layers, const tamis_dsa_cache_params *params,
                             tamis_error *err)
{
    TAMIS_TRY(check_params(params, err));
    if (n_layers < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "caches: n_layers is %d, must be at least 1",
                          n_layers);
    TAMIS_TRY(copy_layers(caches, layers, n_layers, err));
    caches->params = *params;
    const size_t max_descs = (size_t)n_layers * TAMIS_DSA_NUM_ROLES;
    tamis_cache_desc *all = tamis_mem_array(TAMIS_MEM_MISC, max_descs, sizeof *all);
    if (all == NULL)
        return tamis_fail_memory(err, "cache descriptions", max_descs * sizeof *all);
    int32_t n = 0;
    for (int32_t i = 0; i < n_layers; i++) {
        tamis_cache_desc descs[TAMIS_DSA_NUM_ROLES];
        describe_layer(&layers[i], params, descs);
        for (int role = 0; role < TAMIS_DSA_NUM_ROLES; role++) {
            caches->index[i][role] = descs[role].rows > 0 ? n : -1;
            if (descs[role].rows > 0)
                all[n++] = descs[role];
        }
    }
    const tamis_status st =
        tamis_cache_store_describe(&caches->store, all, n, params->num_blocks, params->num_slots,
                                   params->block_pad_bytes, err);
    tamis_mem_free(all);
    return st;
}

static void release(tamis_dsa_caches *caches)
{
    tamis_cache_store_close(&caches->store);
    tamis_mem_free(caches->layers);
    tamis_mem_free(caches->index);
}

tamis_status tamis_dsa_caches_measure(const tamis_dsa_config *layers, int32_t n_layers,
                                      const tamis_dsa_cache_params *params,
                                      tamis_dsa_cache_bytes *out, tamis_error *err)
{
    tamis_dsa_caches caches = {0};
    const tamis_status st = describe(&caches, layers, n_layers, params, err);
    if (st == TAMIS_STATUS_OK) {
        const tamis_cache_store *store = &caches.store;
        *out = (tamis_dsa_cache_bytes){.blocks = store->block_bytes * (uint64_t)store->n_blocks,
                                       .rings = store->slot_bytes * (uint64_t)store->n_slots,
                                       .per_block = store->block_bytes,
                                       .per_slot = store->slot_bytes};
    }
    release(&caches);
    return st;
}

tamis_status tamis_dsa_caches_open(tamis_dsa_caches **out, const tamis_dsa_config *layers,
                                   int32_t n_layers, const tamis_dsa_cache_params *params,
                                   tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_dsa_caches *caches = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *caches);
    if (caches == NULL)
        return tamis_fail_memory(err, "caches", sizeof *caches);
    TAMIS_TRY_GOTO(describe(caches, layers, n_layers, params, err));
    TAMIS_TRY_GOTO(tamis_cache_store_allocate(&caches->store, err));
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

void tamis_dsa_caches_copy_block(tamis_dsa_caches *caches, int32_t dst, int32_t src)
{
    tamis_cache_store_copy_block(&caches->store, dst, src);
}

void tamis_dsa_caches_copy_slot(tamis_dsa_caches *caches, int32_t dst, int32_t src)
{
    tamis_cache_store_copy_slot(&caches->store, dst, src);
}

void tamis_dsa_caches_clear_slot(tamis_dsa_caches *caches, int32_t slot)
{
    tamis_cache_store_clear_slot(&caches->store, slot);
}

int32_t tamis_dsa_caches_rollback_floor(const tamis_dsa_caches *caches, int32_t high)
{
    return tamis_cache_store_rollback_floor(&caches->store, high);
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
