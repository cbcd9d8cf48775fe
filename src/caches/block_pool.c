#include "caches/block_pool.h"

#include <assert.h>

#include "core/error.h"
#include "core/mem.h"

uint64_t tamis_block_pool_bytes(int32_t n_blocks)
{
    return 2 * (uint64_t)n_blocks * sizeof(int32_t);
}

/* splitmix64: a fixed generator, so that a seed means the same order everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void shuffle(int32_t *ids, int32_t n, int32_t seed)
{
    uint64_t state = (uint32_t)seed;
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)(next_random(&state) % (uint64_t)(i + 1));
        const int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
}

tamis_status tamis_block_pool_open(tamis_block_pool *pool, int32_t n_blocks, int32_t seed,
                                   tamis_error *err)
{
    assert(n_blocks >= 1);
    const size_t n = (size_t)n_blocks;
    *pool = (tamis_block_pool){.n_blocks = n_blocks, .n_free = n_blocks - 1};
    pool->free = tamis_mem_array(TAMIS_MEM_CACHES, n, sizeof *pool->free);
    pool->refs = tamis_mem_array(TAMIS_MEM_CACHES, n, sizeof *pool->refs);
    if (pool->free == NULL || pool->refs == NULL) {
        tamis_block_pool_close(pool);
        return tamis_fail_memory(err, "block pool", (size_t)tamis_block_pool_bytes(n_blocks));
    }
    for (int32_t i = 0; i < pool->n_free; i++)
        pool->free[i] = n_blocks - 1 - i;
    if (seed != 0)
        shuffle(pool->free, pool->n_free, seed);
    return TAMIS_STATUS_OK;
}

void tamis_block_pool_close(tamis_block_pool *pool)
{
    tamis_mem_free(pool->free);
    tamis_mem_free(pool->refs);
    *pool = (tamis_block_pool){0};
}

int32_t tamis_block_pool_take(tamis_block_pool *pool)
{
    if (pool->n_free == 0)
        return 0;
    const int32_t block = pool->free[--pool->n_free];
    assert(pool->refs[block] == 0);
    pool->refs[block] = 1;
    return block;
}

void tamis_block_pool_retain(tamis_block_pool *pool, int32_t block)
{
    assert(block > 0 && block < pool->n_blocks && pool->refs[block] > 0);
    pool->refs[block]++;
}

void tamis_block_pool_release(tamis_block_pool *pool, int32_t block)
{
    assert(block > 0 && block < pool->n_blocks && pool->refs[block] > 0);
    if (--pool->refs[block] == 0)
        pool->free[pool->n_free++] = block;
}

void tamis_block_pool_unrelease(tamis_block_pool *pool, int32_t block)
{
    assert(block > 0 && block < pool->n_blocks);
    if (pool->refs[block]++ == 0) {
        pool->n_free--;
        assert(pool->free[pool->n_free] == block);
    }
}
