/*
 * The prefix cache alone, with blocks of four tokens out of three: whatever was published and
 * evicted, a match is the best that the entries still there allow, and every block that it shares
 * was published with these very tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/prefix_cache.h"
#include "support/rng.h"
#include "support/sanitized.h"

enum { BLOCK = 4, MAX_LEN = 20, N_BLOCKS = 30, MAX_SNAPSHOTS = 6, HISTORY = 64, N_HOLDERS = 3 };

/* A sequence: its tokens and blocks. */
typedef struct holder {
    int32_t ids[MAX_LEN], n;
    int32_t table[MAX_LEN / BLOCK], n_blocks;
} holder;

typedef struct rig {
    tamis_block_pool pool;
    tamis_prefix_cache cache;
    void *memory, *histories;
    holder holders[N_HOLDERS];
    /* what each block was written with: all tokens up to its end */
    int32_t content[N_BLOCKS][MAX_LEN], n_content[N_BLOCKS];
} rig;

static void set_sizes(tamis_prefix_cache *cache)
{
    cache->block_tokens = BLOCK;
    cache->max_entries = N_BLOCKS;
    cache->max_snapshots = MAX_SNAPSHOTS;
}

static void rig_open(rig *r, bool has_rings)
{
    tamis_arena arena = {0};
    memset(r, 0, sizeof *r);
    assert_int_equal(tamis_block_pool_open(&r->pool, N_BLOCKS, 0, NULL), TAMIS_STATUS_OK);
    set_sizes(&r->cache);
    tamis_prefix_cache_layout(&r->cache, &arena);
    r->memory = calloc(1, arena.used);
    r->histories = calloc(MAX_SNAPSHOTS, HISTORY);
    arena = (tamis_arena){.base = r->memory, .bytes = arena.used};
    tamis_prefix_cache_layout(&r->cache, &arena);
    r->cache.pool = &r->pool;
    r->cache.histories = r->histories;
    r->cache.history_bytes = has_rings ? HISTORY : 0;
    tamis_prefix_cache_init(&r->cache);
}

static void rig_close(rig *r)
{
    tamis_block_pool_close(&r->pool);
    free(r->memory);
    free(r->histories);
}

/* ---------------------------------------------------------------- second opinion */

/* All tokens that lead to the end of an entry. */
static int32_t path_of(const tamis_prefix_cache *cache, int32_t entry, int32_t *ids)
{
    const tamis_prefix_entry *e = &cache->entries[entry];
    const int32_t start = e->parent == TAMIS_PREFIX_NONE ? 0 : path_of(cache, e->parent, ids);
    memcpy(ids + start, cache->tokens + entry * BLOCK, (size_t)e->n_tokens * sizeof *ids);
    return start + e->n_tokens;
}

static int32_t best_match(const tamis_prefix_cache *cache, const int32_t *ids, int32_t n)
{
    int32_t best = 0;
    for (int32_t e = 0; e < cache->max_entries; e++) {
        int32_t path[MAX_LEN], common = 0;
        if (cache->entries[e].block == 0)
            continue;
        const int32_t len = path_of(cache, e, path);
        while (common < len && common < n - 1 && path[common] == ids[common])
            common++;
        if (cache->history_bytes == 0)
            best = common > best ? common : best;
        for (int32_t s = cache->entries[e].snapshots; s != TAMIS_PREFIX_NONE;
             s = cache->snapshots[s].next) {
            const int32_t pos = cache->snapshots[s].pos;
            assert_in_range(pos, len - cache->entries[e].n_tokens + 1, len);
            best = pos <= common && pos > best ? pos : best;
        }
    }
    return best;
}

static void assert_is_sound(const rig *r)
{
    const tamis_prefix_cache *c = &r->cache;
    int32_t refs[N_BLOCKS] = {0}, n_entries = 0, n_snapshots = 0, n_children[N_BLOCKS] = {0};
    for (int32_t i = 0; i < N_HOLDERS; i++)
        for (int32_t b = 0; b < r->holders[i].n_blocks; b++)
            refs[r->holders[i].table[b]]++;
    for (int32_t e = 0; e < c->max_entries; e++) {
        if (c->entries[e].block == 0)
            continue;
        int32_t path[MAX_LEN];
        n_entries++;
        refs[c->entries[e].block]++;
        assert_true(r->n_content[c->entries[e].block] >= path_of(c, e, path));
        for (int32_t s = c->entries[e].snapshots; s != TAMIS_PREFIX_NONE;
             s = c->snapshots[s].next, n_snapshots++) {
            assert_int_equal(c->snapshots[s].use, TAMIS_SNAPSHOT_KEPT);
            assert_int_equal(c->snapshots[s].entry, e);
        }
        if (c->entries[e].parent == TAMIS_PREFIX_NONE)
            continue;
        n_children[c->entries[e].parent]++;
        assert_int_equal(c->entries[c->entries[e].parent].n_tokens, BLOCK);
        assert_true(c->entries[c->entries[e].parent].last_use >= c->entries[e].last_use);
    }
    for (int32_t e = 0; e < c->max_entries; e++)
        assert_int_equal(c->entries[e].n_children, n_children[e]);
    assert_memory_equal(refs, r->pool.refs, sizeof refs);
    assert_int_equal(c->counts.n_entries, n_entries);
    assert_int_equal(c->counts.n_snapshots, n_snapshots);
}

/* ---------------------------------------------------------------- a sequence's life */

static void release(rig *r, holder *h)
{
    while (h->n_blocks > 0)
        tamis_block_pool_release(&r->pool, h->table[--h->n_blocks]);
    h->n = 0;
}

/* Blocks of a sequence are written at once; one that is shared is copied first. */
static bool fill(rig *r, holder *h, const int32_t *ids, int32_t n)
{
    const int32_t n_blocks = (n + BLOCK - 1) / BLOCK, from = h->n / BLOCK;
    memcpy(h->ids, ids, (size_t)n * sizeof *ids);
    for (int32_t b = from; b < n_blocks; b++) {
        const bool is_new = b >= h->n_blocks;
        if (is_new || tamis_block_pool_is_shared(&r->pool, h->table[b])) {
            const int32_t block = tamis_block_pool_take(&r->pool);
            if (block == 0)
                return false;
            if (!is_new)
                tamis_block_pool_release(&r->pool, h->table[b]);
            h->table[b] = block;
            h->n_blocks = is_new ? b + 1 : h->n_blocks;
        }
        const int32_t end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        memcpy(r->content[h->table[b]], ids, (size_t)end * sizeof *ids);
        r->n_content[h->table[b]] = end;
        h->n = end;
    }
    h->n = n;
    return true;
}

static void add_snapshot(rig *r, const int32_t *ids, int32_t pos)
{
    if (tamis_prefix_cache_has_snapshot(&r->cache, ids, pos))
        return;
    const int32_t s = tamis_prefix_cache_take_snapshot(&r->cache, pos);
    assert_in_range(s, 0, MAX_SNAPSHOTS - 1);
    *tamis_prefix_cache_history(&r->cache, s) = (uint8_t)pos;
    tamis_prefix_cache_keep_snapshot(&r->cache, s, ids);
    assert_true(tamis_prefix_cache_has_snapshot(&r->cache, ids, pos));
}

static void check_match(rig *r, test_rng *rng, const int32_t *ids, int32_t n)
{
    holder *h = &r->holders[test_rng_int(rng, 0, N_HOLDERS - 1)];
    const tamis_prefix_match m = tamis_prefix_cache_match(&r->cache, ids, n);
    assert_int_equal(m.n_tokens, best_match(&r->cache, ids, n));
    if (m.n_tokens == 0)
        return;
    release(r, h);
    h->n_blocks = tamis_prefix_cache_share(&r->cache, &m, h->table);
    h->n = m.n_tokens;
    memcpy(h->ids, ids, (size_t)h->n * sizeof *ids);
    assert_int_equal(h->n_blocks, (h->n + BLOCK - 1) / BLOCK);
    for (int32_t b = 0; b < h->n_blocks; b++) {
        const int32_t end = (b + 1) * BLOCK < h->n ? (b + 1) * BLOCK : h->n;
        assert_true(r->n_content[h->table[b]] >= end);
        assert_memory_equal(r->content[h->table[b]], ids, (size_t)end * sizeof *ids);
    }
    if (r->cache.history_bytes > 0)
        assert_int_equal(*tamis_prefix_cache_history(&r->cache, m.snapshot), m.n_tokens);
}

static void random_operation(rig *r, test_rng *rng)
{
    holder *h = &r->holders[test_rng_int(rng, 0, N_HOLDERS - 1)];
    int32_t ids[MAX_LEN];
    const int32_t n = (int32_t)test_rng_int(rng, 1, MAX_LEN);
    for (int32_t i = 0; i < MAX_LEN; i++)
        ids[i] = test_rng_int(rng, 0, 3) == 0 ? (int32_t)test_rng_int(rng, 1, 2) : 0;
    switch (test_rng_int(rng, 0, 9)) {
    case 0:
        release(r, h);
        break;
    case 1:
        tamis_prefix_cache_evict(&r->cache);
        break;
    case 2:
    case 3:
    case 4:
        check_match(r, rng, ids, n);
        break;
    case 5: /* back, and on with something else */
        if (h->n > 0) {
            h->n = (int32_t)test_rng_int(rng, 0, h->n - 1);
            while (h->n_blocks > (h->n + BLOCK - 1) / BLOCK)
                tamis_block_pool_release(&r->pool, h->table[--h->n_blocks]);
        }
        memcpy(ids, h->ids, (size_t)h->n * sizeof *ids);
        fill(r, h, ids, h->n > n ? h->n : n);
        break;
    default:
        release(r, h);
        if (!fill(r, h, ids, n))
            return;
    }
    if (h->n == 0)
        return;
    const int32_t kind = (int32_t)test_rng_int(rng, 0, 2);
    const int32_t end = kind == 0 ? h->n : h->n / BLOCK * BLOCK;
    tamis_prefix_cache_publish(&r->cache, h->ids, end, h->table);
    if (r->cache.history_bytes > 0 && end > 0 && kind < 2)
        add_snapshot(r, h->ids, kind == 0 ? (end > 1 ? end - 1 : 1) : end);
}

static void run_histories(const char *name, bool has_rings, uint64_t seed)
{
    test_rng rng = test_rng_start(name, seed);
    rig *r = calloc(1, sizeof *r);
    for (int round = 0; round < (TEST_IS_SANITIZED ? 10 : 60); round++) {
        rig_open(r, has_rings);
        for (int i = 0; i < 400; i++) {
            random_operation(r, &rng);
            assert_is_sound(r);
        }
        tamis_prefix_cache_clear(&r->cache);
        assert_is_sound(r);
        for (int i = 0; i < N_HOLDERS; i++)
            release(r, &r->holders[i]);
        assert_int_equal(r->pool.n_free, N_BLOCKS - 1);
        rig_close(r);
    }
    free(r);
}

static void random_histories_without_rings(void **state)
{
    (void)state;
    run_histories("random_histories_without_rings", false, 301);
}

static void random_histories_with_rings(void **state)
{
    (void)state;
    run_histories("random_histories_with_rings", true, 302);
}

/* ---------------------------------------------------------------- given histories */

/* Whatever is published is found while nothing has to go. */
static void everything_published_is_found(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, false);
    int32_t ids[5][MAX_LEN] = {{0}};
    for (int32_t i = 0; i < 5; i++) { /* one more token differs from each to the next */
        for (int32_t k = 0; k < i; k++)
            ids[i][3 * k + 2] = 1;
        assert_true(fill(&r, &r.holders[0], ids[i], 17));
        tamis_prefix_cache_publish(&r.cache, ids[i], 17, r.holders[0].table);
        release(&r, &r.holders[0]);
    }
    for (int32_t i = 0; i < 5; i++) {
        const tamis_prefix_match m = tamis_prefix_cache_match(&r.cache, ids[i], 18);
        assert_int_equal(m.n_tokens, 17);
        assert_int_equal(tamis_prefix_cache_match(&r.cache, ids[i], 17).n_tokens, 16);
    }
    rig_close(&r);
}

/* The end of a prompt, then more of it: one block is enough, with the snapshots of both. */
static void a_longer_entry_takes_over_a_shorter_one(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, true);
    const int32_t ids[MAX_LEN] = {1, 1, 2, 0, 1, 2, 2, 1};
    holder *a = &r.holders[0];
    fill(&r, a, ids, 6);
    tamis_prefix_cache_publish(&r.cache, ids, 6, a->table);
    add_snapshot(&r, ids, 5);
    assert_int_equal(r.cache.counts.n_entries, 2);
    fill(&r, a, ids, 8); /* copies the second block */
    tamis_prefix_cache_publish(&r.cache, ids, 8, a->table);
    add_snapshot(&r, ids, 8);
    assert_int_equal(r.cache.counts.n_entries, 2);
    assert_int_equal(r.cache.counts.n_snapshots, 2);
    assert_int_equal(r.pool.n_free, N_BLOCKS - 3); /* the shorter one's block is free again */
    assert_int_equal(tamis_prefix_cache_match(&r.cache, ids, 9).n_tokens, 8);
    assert_int_equal(tamis_prefix_cache_match(&r.cache, ids, 8).n_tokens, 5);
    assert_is_sound(&r);
    rig_close(&r);
}

static void snapshots_go_by_use_and_pending_ones_stay(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, true);
    int32_t ids[MAX_LEN] = {0};
    fill(&r, &r.holders[0], ids, MAX_LEN);
    tamis_prefix_cache_publish(&r.cache, ids, MAX_LEN, r.holders[0].table);
    for (int32_t pos = 4; pos < 4 + MAX_SNAPSHOTS; pos++)
        add_snapshot(&r, ids, pos);
    assert_true(tamis_prefix_cache_has_snapshot(&r.cache, ids, 4)); /* a use */
    add_snapshot(&r, ids, 15);
    assert_true(tamis_prefix_cache_has_snapshot(&r.cache, ids, 4));
    assert_false(tamis_prefix_cache_has_snapshot(&r.cache, ids, 5));
    for (int32_t i = 0; i < MAX_SNAPSHOTS; i++)
        assert_true(tamis_prefix_cache_take_snapshot(&r.cache, 16) >= 0);
    assert_int_equal(tamis_prefix_cache_take_snapshot(&r.cache, 16), TAMIS_PREFIX_NONE);
    assert_int_equal(tamis_prefix_cache_match(&r.cache, ids, MAX_LEN).n_tokens, 0);
    assert_int_equal(r.cache.counts.n_snapshots, 0);
    tamis_prefix_cache_drop_pending(&r.cache);
    ids[3] = 2; /* an entry of these tokens is not there: nothing is kept */
    const int32_t s = tamis_prefix_cache_take_snapshot(&r.cache, 8);
    tamis_prefix_cache_keep_snapshot(&r.cache, s, ids);
    assert_int_equal(r.cache.counts.n_snapshots, 0);
    assert_is_sound(&r);
    rig_close(&r);
}

/* What a step may have at most is seen without a trace. */
static void letting_go_for_a_look_leaves_the_pool_as_it_was(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("letting_go_for_a_look", 303);
    rig *r = calloc(1, sizeof *r), *before = calloc(1, sizeof *before);
    int32_t free_ids[N_BLOCKS];
    rig_open(r, false);
    for (int i = 0; i < 300; i++) {
        random_operation(r, &rng);
        memcpy(before, r, sizeof *r);
        memcpy(free_ids, r->pool.free, sizeof free_ids);
        tamis_prefix_cache_let_go(&r->cache);
        const int32_t a = tamis_block_pool_take(&r->pool), b = tamis_block_pool_take(&r->pool);
        if (b != 0)
            tamis_block_pool_release(&r->pool, b);
        if (a != 0)
            tamis_block_pool_release(&r->pool, a);
        tamis_prefix_cache_hold_again(&r->cache);
        assert_memory_equal(before, r, sizeof *r);
        assert_memory_equal(free_ids, r->pool.free, (size_t)r->pool.n_free * sizeof *free_ids);
        assert_is_sound(r);
    }
    rig_close(r);
    free(r);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_without_rings),
        cmocka_unit_test(random_histories_with_rings),
        cmocka_unit_test(everything_published_is_found),
        cmocka_unit_test(a_longer_entry_takes_over_a_shorter_one),
        cmocka_unit_test(snapshots_go_by_use_and_pending_ones_stay),
        cmocka_unit_test(letting_go_for_a_look_leaves_the_pool_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
