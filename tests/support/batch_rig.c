#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/batch_rig.h"

#include <string.h>

#include "attention/dsa/dsa_internal.h"
#include "support/engine_run.h"

#define N_SLOTS 8

static void open_v4(test_batch_rig *rig, const tamis_cache_params *caches,
                    const tamis_plan_params *plan, test_rng *rng)
{
    static const int32_t ratios[TEST_BATCH_LAYERS] = {0, 4, 128};
    tamis_dsa_config configs[TEST_BATCH_LAYERS];
    tamis_error err;
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        configs[i] = test_odd_config(ratios[i]);
        rig->v4[i] = test_layer_random(&configs[i], TAMIS_DTYPE_F32, rng);
    }
    test_must(tamis_dsa_caches_open(&rig->dsa_caches, configs, TEST_BATCH_LAYERS, caches, &err),
              &err, "caches");
    test_must(tamis_dsa_plan_open(&rig->dsa, rig->dsa_caches, plan, &err), &err, "plan");
}

static void open_v32(test_batch_rig *rig, const tamis_cache_params *caches,
                     const tamis_plan_params *plan, test_rng *rng)
{
    tamis_sfa_config configs[TEST_BATCH_LAYERS];
    tamis_error err;
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        configs[i] = test_sfa_odd_config(TEST_SFA_V32);
        configs[i].reuse_topk = i == 1;
        configs[i].index_topk = i == 2 ? 0 : configs[i].index_topk;
        rig->v32[i] = test_sfa_layer_random(&configs[i], TAMIS_DTYPE_F32, rng);
    }
    test_must(tamis_sfa_caches_open(&rig->sfa_caches, configs, TEST_BATCH_LAYERS, caches, &err),
              &err, "caches");
    test_must(tamis_sfa_plan_open(&rig->sfa, rig->sfa_caches, plan, &err), &err, "plan");
}

static tamis_cache_store *store_of(const test_batch_rig *rig)
{
    return rig->family == TEST_V4 ? tamis_dsa_caches_store(rig->dsa_caches)
                                  : tamis_sfa_caches_store(rig->sfa_caches);
}

test_batch_rig test_batch_rig_open(test_family family, int32_t block_tokens, int n_threads,
                                   bool is_serial, uint64_t seed)
{
    test_batch_rig rig = {.family = family, .block_tokens = block_tokens};
    test_rng rng = {seed};
    tamis_error err;
    tamis_cache_params caches = tamis_cache_params_default();
    caches.kv_cache_dtype = TAMIS_DTYPE_F32;
    caches.block_tokens = block_tokens;
    caches.num_blocks = 2 + TEST_BATCH_REQS * ((TEST_BATCH_LEN + block_tokens - 1) / block_tokens);
    caches.num_slots = N_SLOTS;
    tamis_plan_params plan = tamis_plan_params_default();
    plan.max_num_batched_tokens = TEST_BATCH_TOKENS;
    plan.max_num_seqs = TEST_BATCH_REQS;
    plan.max_model_len = TEST_BATCH_LEN;
    plan.n_threads = n_threads;
    plan.serial = is_serial;
    if (family == TEST_V4)
        open_v4(&rig, &caches, &plan, &rng);
    else
        open_v32(&rig, &caches, &plan, &rng);
    test_must(tamis_team_open(&rig.team, n_threads, &err), &err, "team");
    test_store_fill(store_of(&rig), NAN);
    for (int32_t i = 0; family == TEST_V4 && i < N_SLOTS; i++)
        test_must(tamis_dsa_caches_clear_slot(rig.dsa_caches, i, &err), &err, "clear");
    return rig;
}

void test_batch_rig_close(test_batch_rig *rig)
{
    tamis_team_close(&rig->team);
    tamis_dsa_plan_close(&rig->dsa);
    tamis_dsa_caches_close(&rig->dsa_caches);
    tamis_sfa_plan_close(&rig->sfa);
    tamis_sfa_caches_close(&rig->sfa_caches);
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        test_layer_free(&rig->v4[i]);
        test_sfa_layer_free(&rig->v32[i]);
    }
}

tamis_status test_batch_plan(test_batch_rig *rig, const tamis_batch *batch, tamis_error *err)
{
    return rig->family == TEST_V4 ? tamis_dsa_plan_build(rig->dsa, batch, err)
                                  : tamis_sfa_plan_build(rig->sfa, batch, err);
}

tamis_status test_batch_plan_dummy(test_batch_rig *rig, int32_t num_tokens, tamis_error *err)
{
    return rig->family == TEST_V4 ? tamis_dsa_plan_build_dummy(rig->dsa, num_tokens, err)
                                  : tamis_sfa_plan_build_dummy(rig->sfa, num_tokens, err);
}

tamis_step_view test_batch_step(const test_batch_rig *rig)
{
    return rig->family == TEST_V4 ? tamis_dsa_plan_step(rig->dsa) : tamis_sfa_plan_step(rig->sfa);
}

tamis_layer_plan_view test_batch_layer(const test_batch_rig *rig, int32_t layer_idx)
{
    return rig->family == TEST_V4 ? tamis_dsa_plan_layer(rig->dsa, layer_idx)
                                  : tamis_sfa_plan_layer(rig->sfa, layer_idx);
}

void test_batch_forward(test_batch_rig *rig, const float *x, float *out)
{
    const int64_t n = (int64_t)test_batch_step(rig).num_input_tokens * TEST_BATCH_HIDDEN;
    tamis_error err;
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        const tamis_status st =
            rig->family == TEST_V4
                ? tamis_dsa_forward(&rig->v4[i].layer, i, rig->dsa, rig->dsa_caches, x, out + i * n,
                                    rig->team, &err)
                : tamis_sfa_forward(&rig->v32[i].layer, i, rig->sfa, rig->sfa_caches, x,
                                    out + i * n, rig->team, &err);
        test_must(st, &err, "layer");
    }
}

/* ---------------------------------------------------------------- cache bytes */

static int32_t count_of(const tamis_cache_store *store, const tamis_cache *cache)
{
    return cache->desc.life == TAMIS_CACHE_RING ? store->n_slots : store->n_blocks;
}

uint8_t *test_batch_bytes(const test_batch_rig *rig, size_t *n_bytes)
{
    const tamis_cache_store *store = store_of(rig);
    size_t total = 0, at = 0;
    for (int32_t i = 0; i < store->n_caches; i++)
        total += (size_t)store->caches[i].stride * (size_t)count_of(store, &store->caches[i]);
    uint8_t *bytes = test_take((int64_t)total, 1);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        const size_t n = (size_t)cache->stride * (size_t)count_of(store, cache);
        memcpy(bytes + at, cache->base, n);
        at += n;
    }
    *n_bytes = total;
    return bytes;
}

/* [block or slot][row]: what the batch may write of a cache; to be freed. */
static bool *own_rows(const test_batch_rig *rig, const tamis_cache *cache, const tamis_batch *batch)
{
    const int32_t rows = cache->desc.rows;
    bool *own = test_take((int64_t)count_of(store_of(rig), cache) * rows, sizeof *own);
    tamis_compressed_row closed[TEST_BATCH_TOKENS];
    int32_t n_closed = 0;
    if (cache->desc.life == TAMIS_CACHE_RING) {
        for (int32_t i = 0; i < batch->num_reqs && batch->seq_lens[i] > 0; i++) {
            const int32_t n = batch->query_start_loc[i + 1] - batch->query_start_loc[i];
            for (int32_t pos = batch->seq_lens[i] - n; pos < batch->seq_lens[i]; pos++)
                own[batch->slots[i] * rows + pos % rows] = true;
        }
        return own;
    }
    assert_int_equal(tamis_batch_compressed_rows(batch, rig->block_tokens / rows, rows, closed,
                                                 TEST_BATCH_TOKENS, &n_closed, NULL),
                     TAMIS_STATUS_OK);
    for (int32_t i = 0; i < n_closed; i++)
        own[closed[i].block * rows + closed[i].row] = true;
    return own;
}

void test_batch_assert_only_own_rows(const test_batch_rig *rig, const tamis_batch *batch,
                                     const uint8_t *before)
{
    const tamis_cache_store *store = store_of(rig);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        bool *own = own_rows(rig, cache, batch);
        for (int32_t b = 0; b < count_of(store, cache); b++)
            for (int64_t at = 0; at < cache->stride; at++) {
                const int64_t row = at / cache->row_bytes, byte = b * cache->stride + at;
                if (row < cache->desc.rows && own[b * cache->desc.rows + row])
                    continue;
                if (cache->base[byte] != before[byte])
                    fail_msg("cache %d: block or slot %d, row %d has changed", i, b, (int)row);
            }
        free(own);
        before += cache->stride * count_of(store, cache);
    }
}
