/* Cache store: addresses, ring sizes and the rollback floor against a brute-force model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/dsa/caches.h"
#include "caches/ring_history.h"
#include "core/mem.h"
#include "support/rng.h"

static void test_ring_sizes(void **state)
{
    (void)state;
    /* window 128, ratio 4 with its previous window, ratio 128; 8 tokens may be taken back */
    assert_int_equal(tamis_cache_ring_rows(1, 127, 8), 144);
    assert_int_equal(tamis_cache_ring_rows(4, 4, 8), 16);
    assert_int_equal(tamis_cache_ring_rows(128, 0, 8), 144);
    assert_int_equal(tamis_cache_ring_rows(1, 15, 8), 32);
    assert_int_equal(tamis_cache_ring_rows(1, 0, 0), 16);
}

/* First position that continuing at n reads, straight from the definitions. */
static int32_t first_needed(int32_t kind, int32_t window, int32_t n)
{
    if (kind == 0)
        return n - window + 1 > 0 ? n - window + 1 : 0;
    if (kind == 4)
        return n / 4 * 4 - 4 > 0 ? n / 4 * 4 - 4 : 0;
    return n / 128 * 128;
}

/* Writes positions 0..high-1 into a ring and asks which lengths can still go on. */
static void check_floor(int32_t kind, int32_t window, int32_t max_rollback, int32_t high)
{
    const int32_t align = kind == 0 ? 1 : kind, lead = kind == 0 ? window - 1 : kind == 4 ? 4 : 0;
    const int32_t rows = tamis_cache_ring_rows(align, lead, max_rollback);
    static int32_t ring[4096];
    assert_true(rows <= 4096);
    for (int32_t pos = 0; pos < high; pos++)
        ring[pos % rows] = pos;
    tamis_cache cache = {
        .desc = {.life = TAMIS_CACHE_RING, .rows = rows, .align = align, .lead = lead}};
    const tamis_cache_store store = {.caches = &cache, .n_caches = 1};
    const int32_t floor = tamis_cache_store_rollback_floor(&store, high);
    assert_true(floor <= (high > max_rollback ? high - max_rollback : 0));
    for (int32_t n = 0; n <= high; n++) {
        bool is_intact = true;
        for (int32_t pos = first_needed(kind, window, n); pos < n; pos++)
            is_intact = is_intact && ring[pos % rows] == pos;
        if (n >= floor)
            assert_true(is_intact);
        else if (n == floor - 1)
            assert_false(is_intact && first_needed(kind, window, n) < n);
    }
}

static void test_rollback_floor(void **state)
{
    (void)state;
    const int32_t windows[] = {1, 2, 8, 16, 24, 64, 128};
    for (int32_t high = 0; high < 700; high += 1 + high / 40) {
        for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
            for (int32_t k = 0; k < 24; k += 5)
                check_floor(0, windows[w], k, high);
        for (int32_t k = 0; k < 24; k += 5) {
            check_floor(4, 0, k, high);
            check_floor(128, 0, k, high);
        }
    }
}

static tamis_dsa_config layer_of(int32_t ratio)
{
    return (tamis_dsa_config){.hidden_size = 96,
                              .num_heads = 4,
                              .head_dim = 48,
                              .rope_head_dim = 16,
                              .q_lora_rank = 88,
                              .o_groups = 2,
                              .o_lora_rank = 32,
                              .sliding_window = 16,
                              .compress_ratio = ratio,
                              .index_n_heads = 8,
                              .index_head_dim = 40,
                              .index_topk = 8,
                              .rms_norm_eps = 1e-6f,
                              .rope = {.theta = 10000}};
}

/* Every row of every block and slot is a place of its own, at any padding. */
static void test_addresses(void **state)
{
    (void)state;
    const tamis_dsa_config layers[3] = {layer_of(0), layer_of(4), layer_of(128)};
    tamis_cache_params params = tamis_cache_params_default();
    params.num_blocks = 3;
    params.num_slots = 2;
    params.block_pad_bytes = 64;
    tamis_dsa_caches *caches;
    tamis_cache_bytes bytes;
    assert_int_equal(tamis_dsa_caches_measure(layers, 3, &params, &bytes, NULL), TAMIS_STATUS_OK);
    const size_t before = tamis_mem_in_use(TAMIS_MEM_CACHES);
    assert_int_equal(tamis_dsa_caches_open(&caches, layers, 3, &params, NULL), TAMIS_STATUS_OK);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES) - before, bytes.blocks + bytes.rings);
    assert_int_equal(bytes.blocks, 3 * bytes.per_block);
    assert_int_equal(bytes.rings, 2 * bytes.per_slot);
    uint8_t mark = 0;
    for (int pass = 0; pass < 2; pass++) {
        mark = 0;
        for (int32_t i = 0; i < caches->base.store.n_caches; i++) {
            const tamis_cache *cache = &caches->base.store.caches[i];
            const int32_t n = cache->desc.life == TAMIS_CACHE_PAGED ? 3 : 2;
            for (int32_t unit = 0; unit < n; unit++)
                for (int32_t row = 0; row < cache->desc.rows; row++) {
                    uint8_t *at =
                        cache->desc.life == TAMIS_CACHE_PAGED
                            ? tamis_cache_block_row(cache, unit, row)
                            : tamis_cache_ring_row(cache, unit, row + 5 * cache->desc.rows);
                    mark = (uint8_t)(mark * 5 + 1);
                    if (pass == 0)
                        memset(at, mark, (size_t)cache->row_bytes);
                    for (int64_t b = 0; b < cache->row_bytes; b++)
                        assert_int_equal(at[b], mark);
                }
        }
    }
    assert_int_equal(tamis_dsa_caches_rows_per_block(caches, 1, TAMIS_DSA_CKV), 64);
    assert_int_equal(tamis_dsa_caches_rows_per_block(caches, 2, TAMIS_DSA_CKV), 2);
    assert_int_equal(tamis_dsa_caches_rows_per_block(caches, 0, TAMIS_DSA_CKV), 0);
    assert_null(tamis_dsa_caches_row(caches, 2, TAMIS_DSA_INDEX_KEY, 0, 0));
    tamis_dsa_caches_close(&caches);
    assert_null(caches);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES), before);
}

static void expect_invalid(tamis_status status, const tamis_error *err, const char *part)
{
    assert_int_equal(status, TAMIS_STATUS_INVALID);
    if (strstr(err->text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->text, part);
}

/* Of 4 blocks and 3 slots; whoever copies to a wrong place would write over another cache. */
static void refuse_places_outside(tamis_dsa_caches *caches)
{
    tamis_error err;
    expect_invalid(tamis_dsa_caches_copy_block(caches, 0, 1, &err), &err, "dst is 0, allowed 1..3");
    expect_invalid(tamis_dsa_caches_copy_block(caches, 4, 1, &err), &err, "dst is 4");
    expect_invalid(tamis_dsa_caches_copy_block(caches, 1, -1, &err), &err,
                   "src is -1, allowed 0..3");
    expect_invalid(tamis_dsa_caches_copy_block(caches, 1, 1, &err), &err, "both 1, must differ");
    expect_invalid(tamis_dsa_caches_copy_slot(caches, 3, 1, &err), &err, "dst is 3, allowed 0..2");
    expect_invalid(tamis_dsa_caches_copy_slot(caches, 0, INT32_MAX, &err), &err,
                   "src is 2147483647");
    expect_invalid(tamis_dsa_caches_copy_slot(caches, 2, 2, &err), &err, "both 2, must differ");
    expect_invalid(tamis_dsa_caches_clear_slot(caches, 3, &err), &err, "slot is 3, allowed 0..2");
    expect_invalid(tamis_dsa_caches_clear_slot(caches, -1, &err), &err, "slot is -1");
}

static void test_copy_and_clear(void **state)
{
    (void)state;
    const tamis_dsa_config layers[2] = {layer_of(4), layer_of(128)};
    tamis_cache_params params = tamis_cache_params_default();
    params.num_blocks = 4;
    params.num_slots = 3;
    tamis_dsa_caches *caches;
    assert_int_equal(tamis_dsa_caches_open(&caches, layers, 2, &params, NULL), TAMIS_STATUS_OK);
    for (int32_t i = 0; i < caches->base.store.n_caches; i++) {
        const tamis_cache *cache = &caches->base.store.caches[i];
        const int32_t n = cache->desc.life == TAMIS_CACHE_PAGED ? 4 : 3;
        for (int32_t unit = 0; unit < n; unit++)
            memset(cache->base + unit * cache->stride, 10 * unit + 1, (size_t)cache->stride);
    }
    assert_int_equal(tamis_dsa_caches_copy_block(caches, 2, 3, NULL), TAMIS_STATUS_OK);
    assert_int_equal(tamis_dsa_caches_copy_slot(caches, 0, 2, NULL), TAMIS_STATUS_OK);
    assert_int_equal(tamis_dsa_caches_clear_slot(caches, 1, NULL), TAMIS_STATUS_OK);
    refuse_places_outside(caches);
    for (int32_t i = 0; i < caches->base.store.n_caches; i++) {
        const tamis_cache *cache = &caches->base.store.caches[i];
        const bool is_paged = cache->desc.life == TAMIS_CACHE_PAGED;
        const uint8_t expected[4] = {is_paged ? 1 : 21, is_paged ? 11 : 0, is_paged ? 31 : 21, 31};
        for (int32_t unit = 0; unit < (is_paged ? 4 : 3); unit++)
            for (int64_t b = 0; b < cache->desc.rows * cache->row_bytes; b++)
                assert_int_equal(cache->base[unit * cache->stride + b], expected[unit]);
    }
    tamis_dsa_caches_close(&caches);
}

/* ---------------------------------------------------------------- history of rings */

enum { HISTORY_LEN = 400, MAX_WATCHES = 4 };

static uint8_t mark_of(int32_t cache, int32_t pos)
{
    return (uint8_t)(1 + (pos * 7 + cache * 31) % 250);
}

/* A step as the attention layers do it: every row passes the watches, the last ones stay. */
static void write_step(const tamis_cache_store *store, int32_t slot, int32_t begin, int32_t end)
{
    uint8_t row[4096];
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life != TAMIS_CACHE_RING)
            continue;
        assert_true((size_t)c->row_bytes <= sizeof row);
        for (int32_t pos = begin; pos < end; pos++) {
            memset(row, mark_of(i, pos), (size_t)c->row_bytes);
            tamis_history_note(c, slot, pos, row);
            if (pos >= end - c->desc.rows)
                memcpy(tamis_cache_ring_row(c, slot, pos), row, (size_t)c->row_bytes);
        }
    }
}

/* Exactly the rows that going on at pos reads are there. */
static void assert_is_history(tamis_cache_store *store, int32_t pos, const uint8_t *history)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life != TAMIS_CACHE_RING)
            continue;
        memset(c->base + c->stride, 255, (size_t)c->stride); /* slot 1 */
    }
    tamis_history_restore(store, 1, pos, history);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life != TAMIS_CACHE_RING)
            continue;
        const int32_t kind = c->desc.align == 1 ? 0 : c->desc.align;
        const int32_t first = first_needed(kind, c->desc.lead + 1, pos);
        for (int32_t p = pos - c->desc.rows; p < pos; p++) {
            if (p < 0)
                continue;
            const uint8_t expected = p >= first ? mark_of(i, p) : 255;
            const uint8_t *row = tamis_cache_ring_row(c, 1, p);
            for (int64_t b = 0; b < c->row_bytes; b++)
                assert_int_equal(row[b], expected);
        }
    }
}

/* Histories at places before, in and at the end of steps of any length, watched at once. */
static void check_histories(tamis_cache_store *store, test_rng *rng)
{
    uint8_t *memory = calloc(MAX_WATCHES, store->history_bytes);
    tamis_history_watch items[MAX_WATCHES];
    tamis_history_watches watches = {.items = items};
    tamis_history_set_watches(store, &watches);
    for (int32_t len = 0; len < HISTORY_LEN;) {
        const int32_t most = test_rng_int(rng, 0, 2) == 0 ? 200 : 9;
        const int32_t end = len + (int32_t)test_rng_int(rng, 1, most);
        memset(memory, 255, MAX_WATCHES * store->history_bytes);
        watches.n = (int32_t)test_rng_int(rng, 0, MAX_WATCHES);
        for (int32_t i = 0; i < watches.n; i++) {
            uint8_t *history = memory + (size_t)i * store->history_bytes;
            items[i] = (tamis_history_watch){0, (int32_t)test_rng_int(rng, len, end), history};
            tamis_history_save(store, 0, items[i].pos, len, history);
        }
        write_step(store, 2, len, end + 3); /* another sequence, at the same positions */
        write_step(store, 0, len, end);
        for (int32_t i = 0; i < watches.n; i++)
            assert_is_history(store, items[i].pos, items[i].history);
        watches.n = 0;
        len = end;
        tamis_history_save(store, 0, len, len, memory);
        assert_is_history(store, len, memory);
    }
    tamis_history_set_watches(store, NULL);
    free(memory);
}

static void test_history(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("test_history", 31);
    for (int round = 0; round < 6; round++) {
        tamis_dsa_config layers[3] = {layer_of(0), layer_of(4), layer_of(128)};
        layers[0].sliding_window = round % 2 == 0 ? 1 : 24;
        tamis_cache_params params = tamis_cache_params_default();
        params.num_slots = 3;
        params.max_rollback = round * 5;
        tamis_dsa_caches *caches;
        tamis_cache_bytes bytes;
        assert_int_equal(tamis_dsa_caches_open(&caches, layers, 3, &params, NULL), TAMIS_STATUS_OK);
        assert_int_equal(tamis_dsa_caches_measure(layers, 3, &params, &bytes, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(bytes.per_history, caches->base.store.history_bytes);
        check_histories(&caches->base.store, &rng);
        tamis_dsa_caches_close(&caches);
    }
}

static void expect_refused(tamis_cache_params params, tamis_status status, const char *part)
{
    const tamis_dsa_config layer = layer_of(4);
    tamis_dsa_caches *caches;
    tamis_error err = {0};
    assert_int_equal(tamis_dsa_caches_open(&caches, &layer, 1, &params, &err), status);
    assert_null(caches);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
}

static void test_bad_params(void **state)
{
    (void)state;
    const tamis_cache_params good = tamis_cache_params_default();
    tamis_cache_params p = good;
    p.block_tokens = 200;
    expect_refused(p, TAMIS_STATUS_INVALID, "block_tokens is 200");
    p = good;
    p.kv_cache_dtype = TAMIS_DTYPE_I8;
    expect_refused(p, TAMIS_STATUS_UNSUPPORTED, "kv_cache_dtype is I8");
    p = good;
    p.num_slots = 0;
    expect_refused(p, TAMIS_STATUS_INVALID, "num_slots is 0");
    p = good;
    p.struct_size = 1;
    expect_refused(p, TAMIS_STATUS_INVALID, "struct_size is 1");
    tamis_dsa_config layer = layer_of(2);
    tamis_error err;
    tamis_dsa_caches *caches;
    assert_int_equal(tamis_dsa_caches_open(&caches, &layer, 1, &good, &err),
                     TAMIS_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "compress_ratio is 2"));
}

static void test_refused_allocation(void **state)
{
    (void)state;
    const tamis_dsa_config layers[2] = {layer_of(4), layer_of(128)};
    const tamis_cache_params params = tamis_cache_params_default();
    size_t before[TAMIS_NUM_MEM_KINDS];
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        before[kind] = tamis_mem_in_use((tamis_mem_kind)kind);
    for (uint64_t n = 1;; n++) {
        tamis_dsa_caches *caches;
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_dsa_caches_open(&caches, layers, 2, &params, NULL);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK) {
            tamis_dsa_caches_close(&caches);
            assert_true(n > 4);
            break;
        }
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
            assert_int_equal(tamis_mem_in_use((tamis_mem_kind)kind), before[kind]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_sizes),
        cmocka_unit_test(test_rollback_floor),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_copy_and_clear),
        cmocka_unit_test(test_bad_params),
        cmocka_unit_test(test_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
