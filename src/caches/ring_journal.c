#include "caches/ring_journal.h"

#include <string.h>

#include "core/size.h"

uint64_t tamis_ring_journal_bytes(const tamis_cache_store *store, int32_t n_tokens, int32_t n_slots)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *ring = &store->caches[i];
        if (ring->desc.life == TAMIS_CACHE_RING)
            bytes += (uint64_t)tamis_min_i64(n_tokens, (int64_t)n_slots * ring->desc.rows) *
                     (uint64_t)ring->row_bytes;
    }
    return bytes;
}

uint8_t *tamis_ring_journal_save(const tamis_cache_store *store, int32_t slot, int32_t pos,
                                 int32_t n, uint8_t *journal)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *ring = &store->caches[i];
        if (ring->desc.life != TAMIS_CACHE_RING)
            continue;
        for (int32_t p = n > ring->desc.rows ? n - ring->desc.rows : 0; p < n; p++) {
            memcpy(journal, tamis_cache_ring_row(ring, slot, pos + p), (size_t)ring->row_bytes);
            journal += ring->row_bytes;
        }
    }
    return journal;
}

const uint8_t *tamis_ring_journal_restore(const tamis_cache_store *store, int32_t slot, int32_t pos,
                                          int32_t n, const uint8_t *journal)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *ring = &store->caches[i];
        if (ring->desc.life != TAMIS_CACHE_RING)
            continue;
        for (int32_t p = n > ring->desc.rows ? n - ring->desc.rows : 0; p < n; p++) {
            memcpy(tamis_cache_ring_row(ring, slot, pos + p), journal, (size_t)ring->row_bytes);
            journal += ring->row_bytes;
        }
    }
    return journal;
}
