#include "attention/common/layer_caches.h"

#include <string.h>

#include "attention/common/layer_checks.h"
#include "core/error.h"
#include "core/mem.h"

tamis_cache_params tamis_cache_params_default(void)
{
    return (tamis_cache_params){.struct_size = sizeof(tamis_cache_params),
                                .kv_cache_dtype = TAMIS_DTYPE_AUTO,
                                .block_tokens = 256,
                                .num_blocks = 2,
                                .num_slots = 1,
                                .max_rollback = 8};
}

static tamis_status check_params(const tamis_cache_params *p, tamis_error *err)
{
    const tamis_field_range fields[] = {{"block_tokens", p->block_tokens, 1, 1 << 20},
                                        {"num_blocks", p->num_blocks, 1, INT32_MAX},
                                        {"num_slots", p->num_slots, 1, 1 << 20},
                                        {"max_rollback", p->max_rollback, 0, 1 << 16},
                                        {"block_pad_bytes", p->block_pad_bytes, 0, 1 << 30}};
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "cache params: struct_size is %zu, must be %zu", p->struct_size,
                          sizeof *p);
    TAMIS_TRY(tamis_check_ranges("cache params", fields, sizeof fields / sizeof *fields, err));
    if (p->block_pad_bytes % 64 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "cache params: block_pad_bytes is %d, must be a multiple of 64",
                          p->block_pad_bytes);
    return TAMIS_STATUS_OK;
}

/* Numbers the described roles in order; returns how many there are. */
static int32_t collect(tamis_layer_caches *caches, const void *layers,
                       tamis_describe_layer_fn describe, tamis_cache_desc *descs)
{
    int32_t n = 0;
    for (int32_t i = 0; i < caches->n_layers; i++) {
        tamis_cache_desc *of_layer = descs + n; /* packed in place: n never passes the layer */
        int32_t *index = caches->index + (size_t)i * (size_t)caches->n_roles;
        memset(of_layer, 0, (size_t)caches->n_roles * sizeof *of_layer);
        describe(layers, i, &caches->params, of_layer);
        for (int32_t role = 0; role < caches->n_roles; role++) {
            const bool is_there = of_layer[role].rows > 0;
            index[role] = is_there ? n : -1;
            if (is_there)
                descs[n++] = of_layer[role];
        }
    }
    return n;
}

tamis_status tamis_layer_caches_describe(tamis_layer_caches *caches, const void *layers,
                                         int32_t n_layers, int32_t n_roles,
                                         const tamis_cache_params *params,
                                         tamis_describe_layer_fn describe, tamis_error *err)
{
    TAMIS_TRY(check_params(params, err));
    if (n_layers < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "caches: n_layers is %d, must be at least 1",
                          n_layers);
    const size_t n = (size_t)n_layers * (size_t)n_roles;
    *caches = (tamis_layer_caches){.params = *params, .n_layers = n_layers, .n_roles = n_roles};
    caches->index = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *caches->index);
    tamis_cache_desc *descs = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *descs);
    tamis_status st = TAMIS_STATUS_OK;
    if (caches->index == NULL || descs == NULL)
        st = tamis_fail_memory(err, "cache descriptions", n * sizeof *descs);
    else
        st = tamis_cache_store_describe(
            &caches->store, descs, collect(caches, layers, describe, descs), params->num_blocks,
            params->num_slots, params->block_pad_bytes, err);
    tamis_mem_free(descs);
    return st;
}

tamis_cache_bytes tamis_layer_caches_bytes(const tamis_layer_caches *caches)
{
    const tamis_cache_store *store = &caches->store;
    return (tamis_cache_bytes){.blocks = store->block_bytes * (uint64_t)store->n_blocks,
                               .rings = store->slot_bytes * (uint64_t)store->n_slots,
                               .per_block = store->block_bytes,
                               .per_slot = store->slot_bytes,
                               .per_history = store->history_bytes};
}

/* Two different places of 0..n - 1; nothing is copied to places before min_dst. */
static tamis_status check_copy(const char *object, int32_t dst, int32_t src, int32_t min_dst,
                               int32_t n, tamis_error *err)
{
    const tamis_field_range fields[] = {{"dst", dst, min_dst, n - 1}, {"src", src, 0, n - 1}};
    TAMIS_TRY(tamis_check_ranges(object, fields, sizeof fields / sizeof *fields, err));
    if (dst == src)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "%s: dst and src are both %d, must differ",
                          object, dst);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_layer_caches_copy_block(tamis_layer_caches *caches, int32_t dst, int32_t src,
                                           tamis_error *err)
{
    TAMIS_TRY(check_copy("copy of a block", dst, src, 1, caches->store.n_blocks, err));
    tamis_cache_store_copy_block(&caches->store, dst, src);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_layer_caches_copy_slot(tamis_layer_caches *caches, int32_t dst, int32_t src,
                                          tamis_error *err)
{
    TAMIS_TRY(check_copy("copy of a slot", dst, src, 0, caches->store.n_slots, err));
    tamis_cache_store_copy_slot(&caches->store, dst, src);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_layer_caches_clear_slot(tamis_layer_caches *caches, int32_t slot,
                                           tamis_error *err)
{
    const tamis_field_range field = {"slot", slot, 0, caches->store.n_slots - 1};
    TAMIS_TRY(tamis_check_ranges("clearing", &field, 1, err));
    tamis_cache_store_clear_slot(&caches->store, slot);
    return TAMIS_STATUS_OK;
}

void tamis_layer_caches_release(tamis_layer_caches *caches)
{
    tamis_cache_store_close(&caches->store);
    tamis_mem_free(caches->index);
    caches->index = NULL;
}
