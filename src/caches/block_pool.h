/*
 * Who owns a cache block. Ids 1 .. n_blocks - 1 are handed out; block 0 is the null block and
 * belongs to nobody. Several sequences may hold one block (fork): it is free when the last one
 * lets go. Every call is O(1).
 *
 * Free ids form a stack, so blocks given back in reverse order of taking leave the pool exactly as
 * it was before.
 */
#ifndef TAMIS_CACHES_BLOCK_POOL_H
#define TAMIS_CACHES_BLOCK_POOL_H

#include "tamis/base.h"

typedef struct tamis_block_pool {
    int32_t n_blocks, n_free;
    int32_t *free; /* [n_blocks] stack; free[n_free - 1] is handed out next */
    int32_t *refs; /* [n_blocks] holders of each block */
} tamis_block_pool;

/* Bytes that open takes. */
uint64_t tamis_block_pool_bytes(int32_t n_blocks);
/*
 * n_blocks counts the null block and is at least 1. Ids come out as 1, 2, 3, ..., or in an order
 * drawn from `seed` if that is not 0 (tests). errors: NO_MEMORY
 */
tamis_status tamis_block_pool_open(tamis_block_pool *pool, int32_t n_blocks, int32_t seed,
                                   tamis_error *err);
void tamis_block_pool_close(tamis_block_pool *pool); /* all-zero is fine */

/* A block with one holder, or 0 (the null block) if none is free. */
int32_t tamis_block_pool_take(tamis_block_pool *pool);
void tamis_block_pool_retain(tamis_block_pool *pool, int32_t block);
void tamis_block_pool_release(tamis_block_pool *pool, int32_t block);
/* Undoes the latest release that is not undone yet; what was taken since must be back, too. */
void tamis_block_pool_unrelease(tamis_block_pool *pool, int32_t block);
static inline bool tamis_block_pool_is_shared(const tamis_block_pool *pool, int32_t block)
{
    return pool->refs[block] > 1;
}

#endif
