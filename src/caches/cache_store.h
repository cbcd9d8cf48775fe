/*
 * Storage of all caches of a model: a list of descriptions, one allocation, addresses by block or
 * ring slot. Fork, copy-on-write, clearing and accounting are loops over the list; what a row means
 * is the attention's business.
 *
 *   paged   base + block * stride holds `rows` rows; grows with the sequence, one block id
 *           addresses every paged cache; block 0 is the null block, zero and owned by nobody
 *   ring    base + slot * stride holds `rows` rows; the row of position p is p % rows
 *
 * How a row is coded (floats, packed FP8, FP4 or int8 with scales) is data of its format.
 */
#ifndef TAMIS_CACHES_CACHE_STORE_H
#define TAMIS_CACHES_CACHE_STORE_H

#include "tamis/rows.h"

typedef enum tamis_cache_life { TAMIS_CACHE_PAGED = 0, TAMIS_CACHE_RING } tamis_cache_life;

typedef struct tamis_cache_desc {
    tamis_cache_life life;
    tamis_row_format format;
    int32_t rows; /* per block, or of the ring */
    /* ring: continuing at position n reads positions >= n / align * align - lead */
    int32_t align, lead;
} tamis_cache_desc;

typedef struct tamis_cache {
    tamis_cache_desc desc;
    uint8_t *base;
    int64_t row_bytes;
    int64_t stride; /* bytes between blocks or ring slots */
    /* ring: see ring_history.h */
    size_t history_at; /* where its rows lie in a packed history */
    const struct tamis_history_watches *watches;
} tamis_cache;

typedef struct tamis_cache_store {
    tamis_cache *caches; /* [n_caches] */
    int32_t n_caches, n_blocks, n_slots;
    void *memory;
    uint64_t block_bytes, slot_bytes; /* of one block, one slot, over all caches */
    uint64_t history_bytes; /* of the rows of all rings that going on from a position may read */
} tamis_cache_store;

/*
 * Rows a ring needs so that `max_rollback` tokens can be taken back at any length: one more than
 * lead + align - 1 + max_rollback, so that no ring is empty, rounded up to 16 (read-before-write: a
 * step uses history before it overwrites it).
 */
int32_t tamis_cache_ring_rows(int32_t align, int32_t lead, int32_t max_rollback);

/* Fills caches[i].desc, row_bytes, stride and the byte counts; allocates the list only. */
tamis_status tamis_cache_store_describe(tamis_cache_store *store, const tamis_cache_desc *descs,
                                        int32_t n_caches, int32_t n_blocks, int32_t n_slots,
                                        int32_t block_pad_bytes, tamis_error *err);
/* Takes the memory, zeroed. errors: NO_MEMORY */
tamis_status tamis_cache_store_allocate(tamis_cache_store *store, tamis_error *err);
/* Gives the memory back and keeps the list: allocate may follow. */
void tamis_cache_store_release(tamis_cache_store *store);
void tamis_cache_store_close(tamis_cache_store *store); /* all-zero is fine */

void tamis_cache_store_copy_block(tamis_cache_store *store, int32_t dst, int32_t src);
void tamis_cache_store_copy_slot(tamis_cache_store *store, int32_t dst, int32_t src);
void tamis_cache_store_clear_slot(tamis_cache_store *store, int32_t slot);
/* Smallest length whose history is still in every ring after positions < high were written. */
int32_t tamis_cache_store_rollback_floor(const tamis_cache_store *store, int32_t high);

static inline uint8_t *tamis_cache_block_row(const tamis_cache *cache, int32_t block, int32_t row)
{
    return cache->base + block * cache->stride + row * cache->row_bytes;
}
static inline uint8_t *tamis_cache_ring_row(const tamis_cache *cache, int32_t slot, int32_t pos)
{
    return cache->base + slot * cache->stride + pos % cache->desc.rows * cache->row_bytes;
}

#endif
