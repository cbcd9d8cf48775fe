#include "caches/ring_history.h"

#include <assert.h>

void tamis_history_save(const tamis_cache_store *store, int32_t slot, int32_t pos, int32_t end,
                        uint8_t *history)
{
    assert(slot >= 0 && slot < store->n_slots && end <= pos);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *ring = &store->caches[i];
        if (ring->desc.life != TAMIS_CACHE_RING)
            continue;
        const int32_t first = tamis_history_first(&ring->desc, pos);
        for (int32_t p = first > 0 ? first : 0; p < end; p++)
            memcpy(history + tamis_history_offset(ring, pos, p),
                   tamis_cache_ring_row(ring, slot, p), (size_t)ring->row_bytes);
    }
}

void tamis_history_restore(const tamis_cache_store *store, int32_t slot, int32_t pos,
                           const uint8_t *history)
{
    assert(slot >= 0 && slot < store->n_slots);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *ring = &store->caches[i];
        if (ring->desc.life != TAMIS_CACHE_RING)
            continue;
        const int32_t first = tamis_history_first(&ring->desc, pos);
        for (int32_t p = first > 0 ? first : 0; p < pos; p++)
            memcpy(tamis_cache_ring_row(ring, slot, p),
                   history + tamis_history_offset(ring, pos, p), (size_t)ring->row_bytes);
    }
}

void tamis_history_set_watches(tamis_cache_store *store, const tamis_history_watches *watches)
{
    for (int32_t i = 0; i < store->n_caches; i++)
        if (store->caches[i].desc.life == TAMIS_CACHE_RING)
            store->caches[i].watches = watches;
}
