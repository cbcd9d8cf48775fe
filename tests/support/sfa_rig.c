#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/sfa_rig.h"

#include <string.h>

#include "attention/sfa/caches.h"
#include "support/engine_run.h"

/* ---------------------------------------------------------------- weights */

static void add_indexer(test_sfa_layer *layer, tamis_dtype dtype, int32_t block, test_rng *rng)
{
    const tamis_sfa_config *c = &layer->layer.config;
    tamis_sfa_weights *w = &layer->layer.weights;
    const tamis_dtype plain = dtype == TAMIS_DTYPE_F8_E4M3 ? TAMIS_DTYPE_BF16 : dtype;
    const int64_t width = (int64_t)c->index_n_heads * c->index_head_dim;
    test_owned *owned = &layer->owned;
    w->index_wq_b = test_random_matrix(owned, dtype, width, c->q_lora_rank, block, rng);
    w->index_wk = test_random_matrix(owned, dtype, c->index_head_dim, c->hidden_size, block, rng);
    w->index_weights_proj =
        test_random_matrix(owned, plain, c->index_n_heads, c->hidden_size, block, rng);
    w->index_k_norm = test_random_vector(owned, c->index_head_dim, 1, 0.2f, rng);
    w->index_k_norm_bias = test_random_vector(owned, c->index_head_dim, 0, 0.3f, rng);
}

test_sfa_layer test_sfa_layer_random(const tamis_sfa_config *c, tamis_dtype dtype, test_rng *rng)
{
    test_sfa_layer layer = {.layer.config = *c};
    tamis_sfa_weights *w = &layer.layer.weights;
    const int64_t heads = c->num_heads, qk = c->qk_nope_head_dim + c->qk_rope_head_dim;
    const int32_t block = c->kv_lora_rank >= 128 ? 128 : 20;
    test_owned *owned = &layer.owned;
    w->q_a_proj = test_random_matrix(owned, dtype, c->q_lora_rank, c->hidden_size, block, rng);
    w->q_b_proj = test_random_matrix(owned, dtype, heads * qk, c->q_lora_rank, block, rng);
    w->kv_a_proj = test_random_matrix(owned, dtype, c->kv_lora_rank + c->qk_rope_head_dim,
                                      c->hidden_size, block, rng);
    w->kv_b_proj = test_random_matrix(owned, dtype, heads * (c->qk_nope_head_dim + c->v_head_dim),
                                      c->kv_lora_rank, block, rng);
    w->o_proj = test_random_matrix(owned, dtype, c->hidden_size, heads * c->v_head_dim, block, rng);
    w->q_a_norm = test_random_vector(owned, c->q_lora_rank, 1, 0.2f, rng);
    w->kv_a_norm = test_random_vector(owned, c->kv_lora_rank, 1, 0.2f, rng);
    if (tamis_sfa_has_indexer(c))
        add_indexer(&layer, dtype, block, rng);
    return layer;
}

void test_sfa_layer_free(test_sfa_layer *layer)
{
    test_owned_free(&layer->owned);
}

tamis_sfa_config test_sfa_odd_config(test_sfa_family family)
{
    const bool is_glm = family == TEST_SFA_GLM;
    const tamis_rope_config plain = {.theta = 1000000, .yarn_factor = 1};
    const tamis_rope_config yarn = {.theta = 10000,
                                    .yarn_factor = 40,
                                    .original_max_position = 4096,
                                    .beta_fast = 32,
                                    .beta_slow = 1};
    return (tamis_sfa_config){.hidden_size = 37,
                              .num_heads = 3,
                              .q_lora_rank = 88,
                              .kv_lora_rank = 72,
                              .qk_nope_head_dim = 24,
                              .qk_rope_head_dim = 16,
                              .v_head_dim = 40,
                              .index_n_heads = 5,
                              .index_head_dim = 40,
                              .index_topk = 8,
                              .index_rope_interleave = is_glm,
                              .rms_norm_eps = is_glm ? 1e-5f : 1e-6f,
                              .softmax_scale = tamis_sfa_softmax_scale(40, is_glm ? 1 : 40, 1),
                              .rope = is_glm ? plain : yarn};
}

/* ---------------------------------------------------------------- rig */

static int32_t blocks_of(const tamis_cache_params *params, int32_t max_len)
{
    return (max_len + params->block_tokens - 1) / params->block_tokens;
}

tamis_cache_params test_sfa_params(int32_t max_len)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.kv_cache_dtype = TAMIS_DTYPE_F32;
    params.block_tokens = 64;
    params.num_blocks = 1 + TEST_SFA_MAX_SEQS * blocks_of(&params, max_len);
    return params;
}

test_sfa_rig test_sfa_rig_open_sized(const tamis_sfa_layer *layers, int32_t n_layers,
                                     const tamis_cache_params *params, int32_t max_len,
                                     int32_t max_tokens, int n_threads)
{
    test_sfa_rig rig = {
        .layers = layers, .n_layers = n_layers, .max_len = max_len, .params = *params};
    tamis_sfa_config configs[8];
    tamis_error err;
    assert_in_range(n_layers, 1, 8);
    for (int32_t i = 0; i < n_layers; i++) {
        configs[i] = layers[i].config;
        test_must(tamis_sfa_layer_check(&layers[i], &err), &err, "check layer");
    }
    tamis_plan_params plan = tamis_plan_params_default();
    plan.max_num_batched_tokens = max_tokens;
    plan.max_num_seqs = TEST_SFA_MAX_SEQS;
    plan.max_model_len = max_len;
    plan.n_threads = n_threads;
    test_must(tamis_sfa_caches_open(&rig.caches, configs, n_layers, params, &err), &err, "caches");
    test_must(tamis_sfa_plan_open(&rig.plan, rig.caches, &plan, &err), &err, "plan");
    test_must(tamis_team_open(&rig.team, n_threads, &err), &err, "team");
    return rig;
}

test_sfa_rig test_sfa_rig_open(const tamis_sfa_layer *layers, int32_t n_layers,
                               const tamis_cache_params *params, int32_t max_len, int n_threads)
{
    return test_sfa_rig_open_sized(layers, n_layers, params, max_len, 2 * max_len, n_threads);
}

void test_sfa_rig_close(test_sfa_rig *rig)
{
    tamis_team_close(&rig->team);
    tamis_sfa_plan_close(&rig->plan);
    tamis_sfa_caches_close(&rig->caches);
}

test_sfa_seq test_sfa_seq_open(test_sfa_rig *rig)
{
    test_sfa_seq seq = {.len = 0};
    const int32_t n = blocks_of(&rig->params, rig->max_len);
    assert_true(n <= TEST_SFA_BLOCKS);
    for (int32_t i = 0; i < n; i++)
        seq.table[i] = ++rig->n_blocks_used;
    assert_true(rig->n_blocks_used < rig->params.num_blocks);
    return seq;
}

void test_sfa_poison(test_sfa_rig *rig, float value)
{
    test_store_fill(tamis_sfa_caches_store(rig->caches), value);
}

void test_sfa_plan(test_sfa_rig *rig, test_sfa_seq *const *seqs, const int32_t *counts, int32_t n)
{
    int32_t query_start[TEST_SFA_MAX_SEQS + 1] = {0}, seq_lens[TEST_SFA_MAX_SEQS];
    int32_t tables[TEST_SFA_MAX_SEQS][TEST_SFA_BLOCKS];
    tamis_error err;
    assert_in_range(n, 1, TEST_SFA_MAX_SEQS);
    for (int32_t i = 0; i < n; i++) {
        seqs[i]->len += counts[i];
        query_start[i + 1] = query_start[i] + counts[i];
        seq_lens[i] = seqs[i]->len;
        memcpy(tables[i], seqs[i]->table, sizeof tables[i]);
    }
    const tamis_batch batch = {.num_reqs = n,
                               .query_start_loc = query_start,
                               .seq_lens = seq_lens,
                               .block_table = &tables[0][0],
                               .block_table_stride = TEST_SFA_BLOCKS};
    test_must(tamis_sfa_plan_build(rig->plan, &batch, &err), &err, "plan step");
}

void test_sfa_run(test_sfa_rig *rig, int32_t layer_idx, const float *x, float *out)
{
    tamis_error err;
    test_must(tamis_sfa_forward(&rig->layers[layer_idx], layer_idx, rig->plan, rig->caches, x, out,
                                rig->team, &err),
              &err, "layer");
}

void test_sfa_run_given(test_sfa_rig *rig, int32_t layer_idx, const float *x,
                        const int32_t *indices, int32_t num_indices, float *lse, float *out)
{
    const tamis_sfa_layer *layer = &rig->layers[layer_idx];
    tamis_error err;
    test_must(tamis_sfa_preprocess(layer, layer_idx, rig->plan, rig->caches, x, rig->team, &err),
              &err, "preprocess");
    if (indices == NULL)
        test_must(tamis_sfa_select(layer, layer_idx, rig->plan, rig->caches, rig->team, &err), &err,
                  "select");
    test_must(tamis_sfa_attend(layer, layer_idx, rig->plan, rig->caches, indices, num_indices, lse,
                               rig->team, &err),
              &err, "attend");
    test_must(tamis_sfa_output(layer, layer_idx, rig->plan, rig->caches, out, rig->team, &err),
              &err, "output");
}

void test_sfa_feed(test_sfa_rig *rig, test_sfa_seq *seq, const float *x, int32_t n, int32_t chunk,
                   float *out)
{
    const int32_t hidden = rig->layers[0].config.hidden_size;
    chunk = chunk == 0 ? n : chunk;
    for (int32_t first = 0; first < n; first += chunk) {
        const int32_t count = n - first < chunk ? n - first : chunk;
        test_sfa_plan(rig, &seq, &count, 1);
        test_sfa_run(rig, 0, x + (int64_t)first * hidden, out + (int64_t)first * hidden);
    }
}

float *test_sfa_row(const test_sfa_rig *rig, const test_sfa_seq *seq, int32_t layer_idx,
                    tamis_sfa_role role, int32_t pos)
{
    const tamis_cache *cache = tamis_layer_cache(&rig->caches->base, layer_idx, (int32_t)role);
    assert_non_null(cache);
    const int32_t rows = cache->desc.rows;
    return test_cache_row(cache, tamis_sfa_caches_row(rig->caches, layer_idx, role,
                                                      seq->table[pos / rows], pos % rows));
}

test_sfa_result test_sfa_straight(const tamis_sfa_layer *layer, tamis_dtype kv_cache_dtype,
                                  const float *x, int32_t n)
{
    const tamis_sfa_config *c = &layer->config;
    tamis_cache_params params = test_sfa_params(n);
    params.kv_cache_dtype = kv_cache_dtype;
    test_sfa_rig rig = test_sfa_rig_open(layer, 1, &params, n, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    test_sfa_result result = {.out = test_take((int64_t)n * c->hidden_size, sizeof(float)),
                              .lse = test_take((int64_t)n * c->num_heads, sizeof(float))};
    test_sfa_plan(&rig, seqs, &n, 1);
    test_sfa_run_given(&rig, 0, x, NULL, 0, result.lse, result.out);
    if (c->index_topk > 0) {
        const size_t n_ids = (size_t)n * (size_t)c->index_topk;
        result.topk = test_take((int64_t)n_ids, sizeof(int32_t));
        memcpy(result.topk, tamis_sfa_plan_topk(rig.plan), n_ids * sizeof(int32_t));
    }
    test_sfa_rig_close(&rig);
    return result;
}

void test_sfa_result_free(test_sfa_result *result)
{
    free(result->out);
    free(result->lse);
    free(result->topk);
}

/* ---------------------------------------------------------------- against the oracle */

void test_assert_near(const float *seen, const double *expected, int64_t n, double bound,
                      const char *what)
{
    int64_t at = 0;
    const double diff = test_max_diff_f64(seen, expected, n, &at);
    if (!(diff <= bound))
        fail_msg("%s: element %lld is %.9g, oracle %.9g", what, (long long)at, (double)seen[at],
                 expected[at]);
}

static int compare_descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

void test_assert_topk(const int32_t *topk, int32_t k, const double *scores, int32_t n_visible,
                      double bound, const char *what)
{
    const int32_t n = k < n_visible ? k : n_visible;
    double *sorted = test_take(n_visible, sizeof *sorted), largest = 0;
    for (int32_t j = 0; j < n_visible; j++) {
        sorted[j] = scores[j];
        largest = fmax(largest, fabs(scores[j]));
    }
    qsort(sorted, (size_t)n_visible, sizeof *sorted, compare_descending);
    const double least = n == 0 ? 0 : sorted[n - 1] - bound * largest;
    free(sorted);
    for (int32_t i = 0; i < k; i++) {
        const int32_t pos = topk[i];
        if (i >= n ? pos != -1 : pos <= (i > 0 ? topk[i - 1] : -1) || pos >= n_visible)
            fail_msg("%s: entry %d of %d is position %d, %d visible", what, i, n, pos, n_visible);
        if (i < n && scores[pos] < least)
            fail_msg("%s: position %d scores %.9g, the least allowed is %.9g", what, pos,
                     scores[pos], least);
    }
}
