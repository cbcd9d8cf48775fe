#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/v4_stage_run.h"

#include <stdlib.h>
#include <string.h>

#include "attention/dsa/plan.h"
#include "support/rig_parts.h"

enum { BLOCK_TOKENS = 128 };

test_engine v4_engine_open_with(const char *dir, tamis_profile profile,
                                const tamis_session_params *params)
{
    tamis_model_params model = tamis_model_params_default();
    test_engine engine = {.owns_model = true};
    tamis_error err;
    model.profile = profile;
    test_must(tamis_model_open_with(&engine.model, dir, &model, &err), &err, dir);
    engine.info = tamis_model_get_info(engine.model);
    test_must(tamis_session_open(&engine.session, engine.model, params, &err), &err, "session");
    return engine;
}

test_engine v4_engine_open(const char *dir, tamis_profile profile, tamis_dtype kv_cache_dtype,
                           int32_t max_len)
{
    const tamis_session_params params = test_session_params(kv_cache_dtype, max_len);
    return v4_engine_open_with(dir, profile, &params);
}

v4_folder v4_folder_open(const char *dir, tamis_profile profile)
{
    v4_folder folder = {.checkpoint = NULL};
    tamis_error err;
    test_must(tamis_model_config_read(&folder.config, dir, &err), &err, dir);
    folder.config.profile = profile;
    test_must(tamis_checkpoint_open(&folder.checkpoint, dir, &err), &err, dir);
    test_must(tamis_model_weights_bind(&folder.weights, folder.checkpoint, &folder.config, &err),
              &err, dir);
    return folder;
}

void v4_folder_close(v4_folder *folder)
{
    tamis_model_weights_free(&folder->weights);
    tamis_checkpoint_close(&folder->checkpoint);
}

/* ---------------------------------------------------------------- one sequence in one layer */

typedef struct run {
    const tamis_dsa_layer *layer;
    tamis_dsa_caches *caches;
    tamis_dsa_plan *plan;
    tamis_team *team;
    int32_t *table; /* blocks 1, 2, ... */
    int32_t n_blocks;
    v4_stages *to;
} run;

static run run_open(const tamis_dsa_layer *layer, tamis_profile profile, tamis_dtype kv_cache_dtype,
                    int32_t n, int32_t chunk)
{
    run r = {.layer = layer, .n_blocks = (n + BLOCK_TOKENS - 1) / BLOCK_TOKENS};
    tamis_error err;
    tamis_cache_params cache = tamis_cache_params_default();
    cache.profile = profile;
    cache.kv_cache_dtype = kv_cache_dtype;
    cache.block_tokens = BLOCK_TOKENS;
    cache.num_blocks = 1 + r.n_blocks;
    tamis_plan_params plan = tamis_plan_params_default();
    plan.max_num_batched_tokens = chunk;
    plan.max_model_len = n;
    test_must(tamis_dsa_caches_open(&r.caches, &layer->config, 1, &cache, &err), &err, "caches");
    test_must(tamis_dsa_plan_open(&r.plan, r.caches, &plan, &err), &err, "plan");
    test_must(tamis_team_open(&r.team, 1, &err), &err, "team");
    r.table = test_take(r.n_blocks, sizeof *r.table);
    for (int32_t i = 0; i < r.n_blocks; i++)
        r.table[i] = 1 + i;
    return r;
}

static void run_close(run *r)
{
    tamis_team_close(&r->team);
    tamis_dsa_plan_close(&r->plan);
    tamis_dsa_caches_close(&r->caches);
    free(r->table);
}

static tamis_row_format format_of(const run *r, tamis_dsa_role role)
{
    const tamis_cache *cache = tamis_dsa_cache(r->caches, 0, role);
    return cache == NULL ? (tamis_row_format){.num_values = 0} : cache->desc.format;
}

/* Compressor's state of a token: u and z, two halves each for ratio 4. */
static int64_t state_width(const tamis_dsa_config *c, int32_t head_dim)
{
    return (int64_t)(c->compress_ratio == 4 ? 4 : 2) * head_dim;
}

static void take_indexer(v4_stages *s, const tamis_dsa_config *c)
{
    const int64_t n = s->n;
    s->padded_heads = (c->index_n_heads + TAMIS_LANES - 1) / TAMIS_LANES * TAMIS_LANES;
    s->n_groups = (c->index_head_dim + TAMIS_INDEX_GROUP - 1) / TAMIS_INDEX_GROUP;
    s->keys = test_take((int64_t)s->n_rows * s->key_format.row_bytes, 1);
    s->index_state = test_take(n * state_width(c, c->index_head_dim), sizeof(float));
    s->iq_codes = test_take(n * s->padded_heads * c->index_head_dim, 1);
    s->iq_scales = test_take(n * s->padded_heads * s->n_groups, sizeof(float));
    s->w = test_take(n * s->padded_heads, sizeof(float));
    s->topk = test_take(n * c->index_topk, sizeof(int32_t));
}

static v4_stages take_stages(const run *r, int32_t n)
{
    const tamis_dsa_config *c = &r->layer->config;
    v4_stages s = {.n = n, .n_rows = c->compress_ratio == 0 ? 0 : n / c->compress_ratio};
    s.kv_format = format_of(r, TAMIS_DSA_WINDOW);
    s.ckv_format = format_of(r, TAMIS_DSA_CKV);
    s.key_format = format_of(r, TAMIS_DSA_INDEX_KEY);
    s.kv = test_take((int64_t)n * s.kv_format.row_bytes, 1);
    s.qr = test_take((int64_t)n * c->q_lora_rank, sizeof(float));
    s.q = test_take((int64_t)n * c->num_heads * c->head_dim, sizeof(float));
    s.o = test_take((int64_t)n * c->num_heads * c->head_dim, sizeof(float));
    s.low = test_take((int64_t)n * c->o_groups * c->o_lora_rank, sizeof(float));
    s.out = test_take((int64_t)n * c->hidden_size, sizeof(float));
    if (c->compress_ratio != 0) {
        s.ckv = test_take((int64_t)s.n_rows * s.ckv_format.row_bytes, 1);
        s.state = test_take(n * state_width(c, c->head_dim), sizeof(float));
    }
    if (s.key_format.num_values > 0)
        take_indexer(&s, c);
    return s;
}

/* count rows of `width` elements behind the first `from` of dst; a missing stage is skipped. */
static void keep(void *dst, const void *src, int64_t from, int64_t count, int64_t width,
                 size_t size)
{
    if (dst != NULL && src != NULL)
        memcpy((char *)dst + (size_t)(from * width) * size, src, (size_t)(count * width) * size);
}

static void keep_inputs(const run *r, int32_t first, int32_t n)
{
    const tamis_dsa_config *c = &r->layer->config;
    const tamis_dsa_workspace *ws = &r->plan->ws;
    v4_stages *s = r->to;
    keep(s->kv, ws->kv_rows, first, n, s->kv_format.row_bytes, 1);
    keep(s->qr, ws->qa, first, n, c->q_lora_rank, sizeof(float));
    keep(s->q, ws->q, first, n, (int64_t)c->num_heads * c->head_dim, sizeof(float));
    keep(s->state, ws->state, first, n, state_width(c, c->head_dim), sizeof(float));
    keep(s->index_state, ws->index_state, first, n, state_width(c, c->index_head_dim),
         sizeof(float));
}

static void keep_outputs(const run *r, int32_t first, int32_t n)
{
    const tamis_dsa_config *c = &r->layer->config;
    const tamis_dsa_workspace *ws = &r->plan->ws;
    v4_stages *s = r->to;
    const int64_t heads = s->padded_heads;
    keep(s->o, ws->q, first, n, (int64_t)c->num_heads * c->head_dim, sizeof(float));
    keep(s->low, ws->low, first, n, (int64_t)c->o_groups * c->o_lora_rank, sizeof(float));
    keep(s->iq_codes, ws->indexer.q_codes, first, n, heads * c->index_head_dim, 1);
    keep(s->iq_scales, ws->indexer.q_scales, first, n, heads * s->n_groups, sizeof(float));
    keep(s->w, ws->indexer.w, first, n, heads, sizeof(float));
    keep(s->topk, ws->indexer.topk, first, n, c->index_topk, sizeof(int32_t));
}

static void keep_rows(const run *r, tamis_dsa_role role, uint8_t *dst, int64_t row_bytes)
{
    if (dst == NULL)
        return;
    const int32_t per_block = tamis_dsa_caches_rows_per_block(r->caches, 0, role);
    for (int32_t j = 0; j < r->to->n_rows; j++)
        memcpy(dst + j * row_bytes,
               tamis_dsa_caches_row(r->caches, 0, role, r->table[j / per_block], j % per_block),
               (size_t)row_bytes);
}

static void step(const run *r, const float *x, int32_t first, int32_t n)
{
    const int32_t query_start[2] = {0, n}, seq_len = first + n, slot = 0;
    const int64_t hidden = r->layer->config.hidden_size;
    tamis_error err;
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = query_start,
                               .seq_lens = &seq_len,
                               .block_table = r->table,
                               .block_table_stride = r->n_blocks,
                               .slots = &slot};
    test_must(tamis_dsa_plan_build(r->plan, &batch, &err), &err, "plan step");
    test_must(
        tamis_dsa_preprocess(r->layer, 0, r->plan, r->caches, x + first * hidden, r->team, &err),
        &err, "preprocess");
    keep_inputs(r, first, n);
    test_must(tamis_dsa_attend(r->layer, 0, r->plan, r->caches, r->to->out + first * hidden,
                               r->team, &err),
              &err, "attend");
    keep_outputs(r, first, n);
}

v4_stages v4_stages_run(const tamis_dsa_layer *layer, tamis_profile profile,
                        tamis_dtype kv_cache_dtype, const float *x, int32_t n, int32_t chunk)
{
    chunk = chunk == 0 ? n : chunk;
    run r = run_open(layer, profile, kv_cache_dtype, n, chunk);
    v4_stages stages = take_stages(&r, n);
    r.to = &stages;
    for (int32_t first = 0; first < n; first += chunk)
        step(&r, x, first, n - first < chunk ? n - first : chunk);
    keep_rows(&r, TAMIS_DSA_CKV, stages.ckv, stages.ckv_format.row_bytes);
    keep_rows(&r, TAMIS_DSA_INDEX_KEY, stages.keys, stages.key_format.row_bytes);
    run_close(&r);
    return stages;
}

void v4_stages_free(v4_stages *s)
{
    void *blocks[] = {s->kv,          s->ckv, s->keys,     s->qr,        s->state,
                      s->index_state, s->q,   s->iq_codes, s->iq_scales, s->w,
                      s->topk,        s->o,   s->low,      s->out};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
    *s = (v4_stages){.n = 0};
}

/* ---------------------------------------------------------------- same bits */

static void same(const void *a, const void *b, int64_t n, int64_t row_bytes, const char *stage,
                 const char *what)
{
    for (int64_t t = 0; a != NULL && t < n; t++)
        if (memcmp((const char *)a + t * row_bytes, (const char *)b + t * row_bytes,
                   (size_t)row_bytes) != 0)
            fail_msg("%s: stage %s, row %lld differs", what, stage, (long long)t);
}

void v4_stages_same_bits(const tamis_dsa_layer *layer, const v4_stages *a, const v4_stages *b,
                         const char *what)
{
    const tamis_dsa_config *c = &layer->config;
    const int64_t n = a->n, f = sizeof(float), heads = a->padded_heads;
    same(a->kv, b->kv, n, a->kv_format.row_bytes, "window rows", what);
    same(a->ckv, b->ckv, a->n_rows, a->ckv_format.row_bytes, "compressed rows", what);
    same(a->keys, b->keys, a->n_rows, a->key_format.row_bytes, "index keys", what);
    same(a->qr, b->qr, n, c->q_lora_rank * f, "qr", what);
    same(a->q, b->q, n, (int64_t)c->num_heads * c->head_dim * f, "q", what);
    same(a->iq_codes, b->iq_codes, n, heads * c->index_head_dim, "index query", what);
    same(a->w, b->w, n, heads * f, "index weights", what);
    same(a->topk, b->topk, n, c->index_topk * (int64_t)sizeof(int32_t), "topk", what);
    same(a->o, b->o, n, (int64_t)c->num_heads * c->head_dim * f, "o", what);
    same(a->out, b->out, n, c->hidden_size * f, "out", what);
}
