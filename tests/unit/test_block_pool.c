/* Block ids and their holders: order, shuffling, sharing, exhaustion, exact give-back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "caches/block_pool.h"
#include "core/mem.h"
#include "support/rng.h"

static tamis_block_pool open_pool(int32_t n_blocks, int32_t seed)
{
    tamis_block_pool pool;
    assert_int_equal(tamis_block_pool_open(&pool, n_blocks, seed, NULL), TAMIS_STATUS_OK);
    return pool;
}

static void ids_come_in_order_and_zero_when_empty(void **state)
{
    (void)state;
    tamis_block_pool pool = open_pool(5, 0);
    for (int32_t i = 1; i < 5; i++)
        assert_int_equal(tamis_block_pool_take(&pool), i);
    assert_int_equal(tamis_block_pool_take(&pool), 0);
    tamis_block_pool_release(&pool, 3);
    assert_int_equal(tamis_block_pool_take(&pool), 3);
    tamis_block_pool_close(&pool);
    pool = open_pool(1, 0); /* the null block alone */
    assert_int_equal(tamis_block_pool_take(&pool), 0);
    tamis_block_pool_close(&pool);
    tamis_block_pool_close(&pool);
}

static void a_seed_gives_another_order_of_the_same_ids(void **state)
{
    (void)state;
    enum { N = 64 };
    int32_t order[3][N], seen[N] = {0};
    const int32_t seeds[3] = {7, 7, 8};
    for (int s = 0; s < 3; s++) {
        tamis_block_pool pool = open_pool(N, seeds[s]);
        for (int32_t i = 1; i < N; i++)
            order[s][i] = tamis_block_pool_take(&pool);
        tamis_block_pool_close(&pool);
    }
    assert_memory_equal(order[0] + 1, order[1] + 1, (N - 1) * sizeof(int32_t));
    assert_memory_not_equal(order[0] + 1, order[2] + 1, (N - 1) * sizeof(int32_t));
    for (int32_t i = 1; i < N; i++)
        seen[order[2][i]]++;
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(seen[i], i > 0);
}

static void a_shared_block_is_free_after_its_last_holder(void **state)
{
    (void)state;
    tamis_block_pool pool = open_pool(3, 0);
    const int32_t block = tamis_block_pool_take(&pool);
    assert_false(tamis_block_pool_is_shared(&pool, block));
    tamis_block_pool_retain(&pool, block);
    assert_true(tamis_block_pool_is_shared(&pool, block));
    tamis_block_pool_release(&pool, block);
    assert_false(tamis_block_pool_is_shared(&pool, block));
    assert_int_equal(pool.n_free, 1);
    tamis_block_pool_release(&pool, block);
    assert_int_equal(pool.n_free, 2);
    tamis_block_pool_close(&pool);
}

/* Random traffic against a plain table of holders; the next ids after a give-back are the same. */
/* Releases taken back in reverse order leave the pool as it was, whatever was taken between. */
static void releases_can_be_undone(void **state)
{
    (void)state;
    tamis_block_pool pool = open_pool(6, 3);
    int32_t ids[4], refs[6], free_ids[6];
    for (int i = 0; i < 4; i++)
        ids[i] = tamis_block_pool_take(&pool);
    tamis_block_pool_retain(&pool, ids[1]);
    memcpy(refs, pool.refs, sizeof refs);
    memcpy(free_ids, pool.free, sizeof free_ids);
    for (int i = 0; i < 4; i++)
        tamis_block_pool_release(&pool, ids[i]);
    assert_int_equal(pool.n_free, 4);
    const int32_t a = tamis_block_pool_take(&pool), b = tamis_block_pool_take(&pool);
    tamis_block_pool_release(&pool, b);
    tamis_block_pool_release(&pool, a);
    for (int i = 4; i-- > 0;)
        tamis_block_pool_unrelease(&pool, ids[i]);
    assert_int_equal(pool.n_free, 1);
    assert_memory_equal(refs, pool.refs, sizeof refs);
    assert_int_equal(pool.free[0], free_ids[0]);
    tamis_block_pool_close(&pool);
}

static void random_traffic(void **state)
{
    (void)state;
    enum { N = 40, STEPS = 20000 };
    test_rng rng = test_rng_start("random_traffic", 11);
    tamis_block_pool pool = open_pool(N, 3);
    int32_t refs[N] = {0}, n_held = 0;
    for (int i = 0; i < STEPS; i++) {
        const int32_t block = (int32_t)test_rng_int(&rng, 1, N - 1);
        switch (test_rng_int(&rng, 0, 3)) {
        case 0: {
            const int32_t taken = tamis_block_pool_take(&pool);
            assert_int_equal(taken != 0, n_held < N - 1);
            if (taken != 0) {
                assert_int_equal(refs[taken], 0);
                refs[taken] = 1;
                n_held++;
            }
            break;
        }
        case 1:
            if (refs[block] > 0) {
                tamis_block_pool_retain(&pool, block);
                refs[block]++;
            }
            break;
        case 2:
            if (refs[block] > 0) {
                tamis_block_pool_release(&pool, block);
                n_held -= --refs[block] == 0;
            }
            break;
        default: { /* take some, give them back in reverse: nothing has changed */
            int32_t before[N], taken[N], n = 0;
            memcpy(before, pool.free, sizeof before);
            const int32_t n_free = pool.n_free;
            while (n < 3 && (taken[n] = tamis_block_pool_take(&pool)) != 0)
                n++;
            while (n > 0)
                tamis_block_pool_release(&pool, taken[--n]);
            assert_int_equal(pool.n_free, n_free);
            assert_memory_equal(pool.free, before, (size_t)n_free * sizeof *before);
        }
        }
        assert_int_equal(pool.n_free, N - 1 - n_held);
    }
    tamis_block_pool_close(&pool);
}

static void refused_memory_leaves_nothing(void **state)
{
    (void)state;
    const size_t before = tamis_mem_in_use(TAMIS_MEM_CACHES);
    tamis_block_pool pool;
    tamis_error err;
    for (uint64_t n = 1; n <= 2; n++) {
        tamis_mem_fail_at(n);
        assert_int_equal(tamis_block_pool_open(&pool, 9, 0, &err), TAMIS_STATUS_NO_MEMORY);
        assert_non_null(strstr(err.text, "block pool"));
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES), before);
    }
    tamis_mem_fail_at(0);
    pool = open_pool(9, 0);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES) - before, tamis_block_pool_bytes(9));
    tamis_block_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_come_in_order_and_zero_when_empty),
        cmocka_unit_test(a_seed_gives_another_order_of_the_same_ids),
        cmocka_unit_test(a_shared_block_is_free_after_its_last_holder),
        cmocka_unit_test(releases_can_be_undone),
        cmocka_unit_test(random_traffic),
        cmocka_unit_test(refused_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
