#include "caches/cache_store.h"

#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

#define CACHE_ALIGN 64

int32_t tamis_cache_ring_rows(int32_t align, int32_t lead, int32_t max_rollback)
{
    return (int32_t)tamis_round_up((int64_t)max_rollback + lead + align, 16);
}

static void describe_one(tamis_cache *cache, const tamis_cache_desc *desc, int32_t pad_bytes)
{
    cache->desc = *desc;
    cache->row_bytes = desc->format.row_bytes;
    cache->stride = tamis_round_up(desc->rows * cache->row_bytes, CACHE_ALIGN) +
                    (desc->life == TAMIS_CACHE_PAGED ? pad_bytes : 0);
}

static void add_bytes(tamis_cache_store *store, tamis_cache *cache)
{
    const tamis_cache_desc *desc = &cache->desc;
    if (desc->life == TAMIS_CACHE_PAGED) {
        store->block_bytes += (uint64_t)cache->stride;
        return;
    }
    store->slot_bytes += (uint64_t)cache->stride;
    cache->history_at = store->history_bytes;
    store->history_bytes +=
        (uint64_t)tamis_round_up((desc->lead + desc->align - 1) * cache->row_bytes, CACHE_ALIGN);
}

static size_t count_of(const tamis_cache_store *store, const tamis_cache *cache)
{
    return (size_t)(cache->desc.life == TAMIS_CACHE_PAGED ? store->n_blocks : store->n_slots);
}

tamis_status tamis_cache_store_describe(tamis_cache_store *store, const tamis_cache_desc *descs,
                                        int32_t n_caches, int32_t n_blocks, int32_t n_slots,
                                        int32_t block_pad_bytes, tamis_error *err)
{
    *store = (tamis_cache_store){.n_caches = n_caches, .n_blocks = n_blocks, .n_slots = n_slots};
    store->caches = tamis_mem_array(TAMIS_MEM_MISC, (size_t)n_caches, sizeof *store->caches);
    if (store->caches == NULL)
        return tamis_fail_memory(err, "cache list", (size_t)n_caches * sizeof *store->caches);
    for (int32_t i = 0; i < n_caches; i++) {
        describe_one(&store->caches[i], &descs[i], block_pad_bytes);
        add_bytes(store, &store->caches[i]);
    }
    size_t blocks, slots, total;
    if (!tamis_size_mul(store->block_bytes, (size_t)n_blocks, &blocks) ||
        !tamis_size_mul(store->slot_bytes, (size_t)n_slots, &slots) ||
        !tamis_size_add(blocks, slots, &total)) {
        tamis_cache_store_close(store);
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "caches: %d blocks and %d slots exceed the address space", n_blocks,
                          n_slots);
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_cache_store_allocate(tamis_cache_store *store, tamis_error *err)
{
    const size_t bytes =
        store->block_bytes * (size_t)store->n_blocks + store->slot_bytes * (size_t)store->n_slots;
    uint8_t *at = store->memory = tamis_mem_alloc(TAMIS_MEM_CACHES, bytes);
    if (at == NULL)
        return tamis_fail_memory(err, "caches", bytes);
    for (int32_t i = 0; i < store->n_caches; i++) {
        store->caches[i].base = at;
        at += (size_t)store->caches[i].stride * count_of(store, &store->caches[i]);
    }
    return TAMIS_STATUS_OK;
}

void tamis_cache_store_release(tamis_cache_store *store)
{
    tamis_mem_free(store->memory);
    store->memory = NULL;
    for (int32_t i = 0; i < store->n_caches; i++)
        store->caches[i].base = NULL;
}

void tamis_cache_store_close(tamis_cache_store *store)
{
    tamis_mem_free(store->memory);
    tamis_mem_free(store->caches);
    *store = (tamis_cache_store){0};
}

/* Copies block or slot `src` of every cache of one life to `dst`. */
static void copy_one(tamis_cache_store *store, tamis_cache_life life, int32_t dst, int32_t src)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        if (cache->desc.life == life)
            memcpy(cache->base + dst * cache->stride, cache->base + src * cache->stride,
                   (size_t)(cache->desc.rows * cache->row_bytes));
    }
}

void tamis_cache_store_copy_block(tamis_cache_store *store, int32_t dst, int32_t src)
{
    assert(dst > 0 && dst < store->n_blocks && src >= 0 && src < store->n_blocks && dst != src);
    copy_one(store, TAMIS_CACHE_PAGED, dst, src);
}

void tamis_cache_store_copy_slot(tamis_cache_store *store, int32_t dst, int32_t src)
{
    assert(dst >= 0 && dst < store->n_slots && src >= 0 && src < store->n_slots && dst != src);
    copy_one(store, TAMIS_CACHE_RING, dst, src);
}

void tamis_cache_store_clear_slot(tamis_cache_store *store, int32_t slot)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        if (cache->desc.life == TAMIS_CACHE_RING)
            memset(cache->base + slot * cache->stride, 0,
                   (size_t)(cache->desc.rows * cache->row_bytes));
    }
}

int32_t tamis_cache_store_rollback_floor(const tamis_cache_store *store, int32_t high)
{
    int64_t floor = 0;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache_desc *desc = &store->caches[i].desc;
        if (desc->life == TAMIS_CACHE_RING && high > desc->rows)
            floor = tamis_max_i64(
                floor, tamis_round_up((int64_t)high - desc->rows + desc->lead, desc->align));
    }
    return (int32_t)floor;
}
