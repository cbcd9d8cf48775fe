#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/layer_rig.h"

#include <string.h>

#include "attention/dsa/caches.h"
#include "support/engine_run.h"

/* ---------------------------------------------------------------- weights */

static tamis_matrix random_matrix(test_layer *layer, tamis_dtype dtype, int64_t rows, int64_t cols,
                                  test_rng *rng)
{
    return test_random_matrix(&layer->owned, dtype, rows, cols, 0, rng);
}

static const float *random_vector(test_layer *layer, int64_t n, float mean, float deviation,
                                  test_rng *rng)
{
    return test_random_vector(&layer->owned, n, mean, deviation, rng);
}

static tamis_compressor_weights random_compressor(test_layer *layer, const tamis_dsa_config *c,
                                                  int32_t d, tamis_dtype dtype, test_rng *rng)
{
    const int32_t width = c->compress_ratio == 4 ? 2 * d : d;
    return (tamis_compressor_weights){
        .wkv = random_matrix(layer, dtype, width, c->hidden_size, rng),
        .wgate = random_matrix(layer, dtype, width, c->hidden_size, rng),
        .ape = random_vector(layer, (int64_t)c->compress_ratio * width, 0, 1, rng),
        .norm = random_vector(layer, d, 1, 0.2f, rng)};
}

test_layer test_layer_random(const tamis_dsa_config *c, tamis_dtype dtype, test_rng *rng)
{
    test_layer layer = {.layer.config = *c};
    tamis_dsa_weights *w = &layer.layer.weights;
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    w->wq_a = random_matrix(&layer, dtype, c->q_lora_rank, c->hidden_size, rng);
    w->wq_b = random_matrix(&layer, dtype, q_width, c->q_lora_rank, rng);
    w->wkv = random_matrix(&layer, dtype, c->head_dim, c->hidden_size, rng);
    w->wo_a = random_matrix(&layer, dtype, low, q_width / c->o_groups, rng);
    w->wo_b = random_matrix(&layer, dtype, c->hidden_size, low, rng);
    w->q_norm = random_vector(&layer, c->q_lora_rank, 1, 0.2f, rng);
    w->kv_norm = random_vector(&layer, c->head_dim, 1, 0.2f, rng);
    w->attn_sink = random_vector(&layer, c->num_heads, 0, 1, rng);
    if (c->compress_ratio != 0)
        w->compressor = random_compressor(&layer, c, c->head_dim, dtype, rng);
    if (c->compress_ratio == 4 && !c->reuse_topk) {
        w->index_wq_b = random_matrix(&layer, dtype, (int64_t)c->index_n_heads * c->index_head_dim,
                                      c->q_lora_rank, rng);
        w->index_weights_proj = random_matrix(&layer, dtype, c->index_n_heads, c->hidden_size, rng);
        w->index_compressor = random_compressor(&layer, c, c->index_head_dim, dtype, rng);
    }
    return layer;
}

void test_layer_free(test_layer *layer)
{
    test_owned_free(&layer->owned);
}

tamis_dsa_config test_odd_config(int32_t ratio)
{
    const tamis_rope_config plain = {.theta = 10000, .yarn_factor = 1};
    const tamis_rope_config yarn = {.theta = 160000,
                                    .yarn_factor = 16,
                                    .original_max_position = 65536,
                                    .beta_fast = 32,
                                    .beta_slow = 1};
    return (tamis_dsa_config){.hidden_size = 37,
                              .num_heads = 3,
                              .head_dim = 48,
                              .rope_head_dim = 16,
                              .q_lora_rank = 88,
                              .o_groups = 3,
                              .o_lora_rank = 23,
                              .sliding_window = 16,
                              .compress_ratio = ratio,
                              .index_n_heads = 5,
                              .index_head_dim = 40,
                              .index_topk = 4,
                              .rms_norm_eps = 1e-6f,
                              .rope = ratio == 0 ? plain : yarn};
}

/* ---------------------------------------------------------------- rig */

tamis_cache_params test_rig_params(int32_t max_len)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.kv_cache_dtype = TAMIS_DTYPE_F32;
    params.num_slots = 8;
    params.num_blocks = 1 + 8 * ((max_len + params.block_tokens - 1) / params.block_tokens);
    return params;
}

test_rig test_rig_open(const tamis_dsa_layer *layers, int32_t n_layers,
                       const tamis_cache_params *params, int32_t max_len, int n_threads)
{
    test_rig rig = {.layers = layers, .n_layers = n_layers, .max_len = max_len, .params = *params};
    tamis_dsa_config configs[4];
    tamis_error err;
    assert_in_range(n_layers, 1, 4);
    for (int32_t i = 0; i < n_layers; i++) {
        configs[i] = layers[i].config;
        test_must(tamis_dsa_layer_check(&layers[i], &err), &err, "check layer");
    }
    tamis_plan_params plan = tamis_plan_params_default();
    plan.max_num_batched_tokens = 2 * max_len;
    plan.max_num_seqs = params->num_slots;
    plan.max_model_len = max_len;
    plan.n_threads = n_threads;
    test_must(tamis_dsa_caches_open(&rig.caches, configs, n_layers, params, &err), &err, "caches");
    test_must(tamis_dsa_plan_open(&rig.plan, rig.caches, &plan, &err), &err, "plan");
    test_must(tamis_team_open(&rig.team, n_threads, &err), &err, "team");
    return rig;
}

void test_rig_close(test_rig *rig)
{
    tamis_team_close(&rig->team);
    tamis_dsa_plan_close(&rig->plan);
    tamis_dsa_caches_close(&rig->caches);
}

test_rig_seq test_rig_seq_open(test_rig *rig)
{
    test_rig_seq seq = {.slot = rig->n_slots_used++};
    assert_true(rig->n_slots_used <= rig->params.num_slots);
    tamis_error err;
    test_must(tamis_dsa_caches_clear_slot(rig->caches, seq.slot, &err), &err, "clear");
    const int32_t n = (rig->max_len + rig->params.block_tokens - 1) / rig->params.block_tokens;
    assert_true(n <= TEST_RIG_BLOCKS);
    for (int32_t i = 0; i < n; i++)
        seq.table[i] = ++rig->n_blocks_used;
    assert_true(rig->n_blocks_used < rig->params.num_blocks);
    return seq;
}

void test_rig_poison(test_rig *rig, float value)
{
    test_store_fill(&rig->caches->base.store, value);
}

void test_rig_plan(test_rig *rig, test_rig_seq *const *seqs, const int32_t *counts, int32_t n)
{
    int32_t query_start[9] = {0}, seq_lens[8], slots[8], tables[8][TEST_RIG_BLOCKS];
    tamis_error err;
    assert_in_range(n, 1, 8);
    for (int32_t i = 0; i < n; i++) {
        seqs[i]->len += counts[i];
        query_start[i + 1] = query_start[i] + counts[i];
        seq_lens[i] = seqs[i]->len;
        slots[i] = seqs[i]->slot;
        memcpy(tables[i], seqs[i]->table, sizeof tables[i]);
    }
    const tamis_batch batch = {.num_reqs = n,
                               .query_start_loc = query_start,
                               .seq_lens = seq_lens,
                               .block_table = &tables[0][0],
                               .block_table_stride = TEST_RIG_BLOCKS,
                               .slots = slots};
    test_must(tamis_dsa_plan_build(rig->plan, &batch, &err), &err, "plan step");
}

void test_rig_run(test_rig *rig, int32_t layer_idx, const float *x, float *out)
{
    tamis_error err;
    test_must(tamis_dsa_forward(&rig->layers[layer_idx], layer_idx, rig->plan, rig->caches, x, out,
                                rig->team, &err),
              &err, "layer");
}

void test_rig_feed(test_rig *rig, test_rig_seq *seq, const float *x, int32_t n, int32_t chunk,
                   float *out)
{
    const int32_t hidden = rig->layers[0].config.hidden_size;
    chunk = chunk == 0 ? n : chunk;
    for (int32_t first = 0; first < n; first += chunk) {
        const int32_t count = n - first < chunk ? n - first : chunk;
        test_rig_plan(rig, &seq, &count, 1);
        test_rig_run(rig, 0, x + (int64_t)first * hidden, out + (int64_t)first * hidden);
    }
}

float *test_rig_row(const test_rig *rig, const test_rig_seq *seq, int32_t layer_idx, int role,
                    int32_t j)
{
    const tamis_cache *cache = tamis_dsa_cache(rig->caches, layer_idx, (tamis_dsa_role)role);
    assert_non_null(cache);
    return test_cache_row(cache, tamis_dsa_caches_row(rig->caches, layer_idx, (tamis_dsa_role)role,
                                                      seq->table[j / cache->desc.rows],
                                                      j % cache->desc.rows));
}
