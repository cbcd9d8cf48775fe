#include "attention/dsa/stages.h"

#include <math.h>

#include "attention/common/ring.h"
#include "core/size.h"
#include "ops/sparse_attn.h"

/* Letters and numbers in comments are the stages of the dependency graph in docs/architecture.md.
 */

static void report(tamis_dsa_call *call, bool is_finite)
{
    if (!is_finite)
        atomic_store_explicit(&call->plan->has_fault, true, memory_order_relaxed);
}

static tamis_compressor make_compressor(const tamis_dsa_config *config, tamis_profile profile,
                                        const tamis_compressor_weights *weights, int32_t head_dim,
                                        float *state, const tamis_cache *ring,
                                        const tamis_cache *out)
{
    return (tamis_compressor){.weights = weights,
                              .profile = profile,
                              .ratio = config->compress_ratio,
                              .head_dim = head_dim,
                              .rope_dim = config->rope_head_dim,
                              .eps = config->rms_norm_eps,
                              .state = state,
                              .ring = ring,
                              .out = out};
}

tamis_dsa_call tamis_dsa_call_make(const tamis_dsa_layer *layer, int32_t layer_idx,
                                   tamis_dsa_plan *plan, const tamis_dsa_caches *caches,
                                   tamis_team *team)
{
    const tamis_dsa_config *config = &layer->config;
    tamis_dsa_call call = {
        .config = config,
        .weights = &layer->weights,
        .plan = plan,
        .kind = &plan->kinds[plan->kind_of_layer[layer_idx]],
        .exec = {.team = team,
                 .kernels = tamis_kernels_current(),
                 .scratch = plan->scratch,
                 .scratch_floats = plan->scratch_floats,
                 .profile = plan->numerics,
                 .inputs = plan->inputs,
                 .input_bytes = plan->input_bytes},
        .window = tamis_dsa_cache(caches, layer_idx, TAMIS_DSA_WINDOW),
        .ckv = tamis_dsa_cache(caches, layer_idx, TAMIS_DSA_CKV),
        .index_key = tamis_dsa_cache(caches, layer_idx, TAMIS_DSA_INDEX_KEY),
    };
    call.has_compressor = call.ckv != NULL;
    call.has_indexer = call.index_key != NULL;
    if (call.has_compressor)
        call.compressor = make_compressor(
            config, plan->numerics, &layer->weights.compressor, config->head_dim, plan->ws.state,
            tamis_dsa_cache(caches, layer_idx, TAMIS_DSA_STATE), call.ckv);
    if (call.has_indexer) {
        call.index_compressor = make_compressor(
            config, plan->numerics, &layer->weights.index_compressor, config->index_head_dim,
            plan->ws.index_state, tamis_dsa_cache(caches, layer_idx, TAMIS_DSA_INDEX_STATE),
            call.index_key);
        call.index_compressor.is_index = true;
    }
    return call;
}

/* ---------------------------------------------------------------- inputs */

static int32_t num_pairs(const tamis_dsa_call *call)
{
    return call->config->rope_head_dim / 2;
}
static const float *cos_of(const tamis_dsa_call *call, int64_t token)
{
    return call->kind->cos + token * num_pairs(call);
}
static const float *sin_of(const tamis_dsa_call *call, int64_t token)
{
    return call->kind->sin + token * num_pairs(call);
}

/* Norm of a row, a BF16 value in profiles other than exact. */
static void norm_row(const tamis_exec *exec, float *x, const float *weight, int64_t n, float eps)
{
    exec->kernels->rmsnorm(x, x, weight, n, eps);
    tamis_exec_round(exec, x, n);
}

/* Rotate the last channels of a head or row of `width`; BF16 values as above. */
static void rotate(const tamis_dsa_call *call, float *x, int32_t width, int64_t token, bool inverse)
{
    const int32_t rope_dim = call->config->rope_head_dim;
    float *rotated = x + width - rope_dim;
    call->exec.kernels->rope(rotated, cos_of(call, token), sin_of(call, token), rope_dim / 2,
                             inverse);
    tamis_exec_round(&call->exec, rotated, rope_dim);
}

/* Q2: where wq_b quantises each token's input to int8, it does so from f32 (Ascend's fused
 * rms_norm_dynamic_quant). */
static void norm_low_rank_query(const tamis_dsa_call *call, float *qa)
{
    const tamis_dsa_config *c = call->config;
    const tamis_matrix *wq_b = &call->weights->wq_b;
    const bool is_dynamic =
        wq_b->dtype == TAMIS_DTYPE_I4 || (wq_b->dtype == TAMIS_DTYPE_I8 && wq_b->input == NULL);
    if (is_dynamic)
        call->exec.kernels->rmsnorm(qa, qa, call->weights->q_norm, c->q_lora_rank, c->rms_norm_eps);
    else
        norm_row(&call->exec, qa, call->weights->q_norm, c->q_lora_rank, c->rms_norm_eps);
}

/* K2: norm, rotation, and the coding as the cache's row that every reader sees. */
static void prepare_kv(tamis_dsa_call *call, int64_t token)
{
    const tamis_kernels *k = call->exec.kernels;
    const tamis_dsa_config *c = call->config;
    float *kv = call->plan->ws.kv + token * c->head_dim;
    norm_row(&call->exec, kv, call->weights->kv_norm, c->head_dim, c->rms_norm_eps);
    rotate(call, kv, c->head_dim, token, false);
    uint8_t *row = call->plan->ws.kv_rows + token * call->window->row_bytes;
    const tamis_row_format *format = &call->window->desc.format;
    k->pack_row(row, row + format->scale_at, format, kv);
    report(call, k->all_finite(kv, c->head_dim));
}

static void prepare_thread(void *arg, int thread_idx, int n_threads)
{
    tamis_dsa_call *call = arg;
    const tamis_dsa_config *c = call->config;
    const tamis_kernels *k = call->exec.kernels;
    int64_t begin, end;
    tamis_team_range(call->plan->step.n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        float *qa = call->plan->ws.qa + token * c->q_lora_rank;
        norm_low_rank_query(call, qa);
        report(call, k->all_finite(qa, c->q_lora_rank));
        prepare_kv(call, token);
        if (call->has_compressor)
            tamis_compressor_add_ape(&call->compressor, k, &call->plan->step, (int32_t)token);
        if (call->has_indexer)
            tamis_compressor_add_ape(&call->index_compressor, k, &call->plan->step, (int32_t)token);
    }
}

void tamis_dsa_prepare_inputs(tamis_dsa_call *call)
{
    const tamis_dsa_config *c = call->config;
    tamis_team_run_sized(
        call->exec.team,
        tamis_exec_is_worth_waking(call->plan->step.n_tokens, 2 * (c->q_lora_rank + c->head_dim)),
        prepare_thread, call);
}

/* ---------------------------------------------------------------- rows and queries */

/* Q4's norm of one head, without weight. */
static void norm_head(const tamis_dsa_call *call, float *head)
{
    const tamis_dsa_config *c = call->config;
    if (call->exec.profile == TAMIS_PROFILE_OFFICIAL)
        call->exec.kernels->rmsnorm_bf16(head, head, c->head_dim, c->rms_norm_eps);
    else
        norm_row(&call->exec, head, NULL, c->head_dim, c->rms_norm_eps);
}

/* Q4 */
static void prepare_query(const tamis_dsa_call *call, int64_t token)
{
    const tamis_dsa_config *c = call->config;
    float *q = call->plan->ws.q + token * c->num_heads * c->head_dim;
    for (int32_t h = 0; h < c->num_heads; h++, q += c->head_dim) {
        norm_head(call, q);
        rotate(call, q, c->head_dim, token, false);
    }
}

/* I2, second half of W1. */
static void prepare_index_query(tamis_dsa_call *call, int64_t token)
{
    const tamis_dsa_config *c = call->config;
    const tamis_indexer *indexer = &call->plan->ws.indexer;
    float *q = indexer->q + token * c->index_n_heads * c->index_head_dim;
    for (int32_t h = 0; h < c->index_n_heads; h++, q += c->index_head_dim)
        rotate(call, q, c->index_head_dim, token, false);
    report(call, tamis_indexer_prepare(indexer, &call->exec, tamis_dsa_index_dims(c),
                                       &call->index_key->desc.format, token));
}

static void close_row(tamis_dsa_call *call, const tamis_compressor *compressor, int64_t i,
                      float *scratch)
{
    const tamis_closed_rows *rows = &call->kind->rows;
    report(call, tamis_compressor_close_row(compressor, call->exec.kernels, &call->plan->step,
                                            rows->req[i], rows->idx[i],
                                            call->kind->row_cos + i * num_pairs(call),
                                            call->kind->row_sin + i * num_pairs(call), scratch));
}

static void close_and_rotate_thread(void *arg, int thread_idx, int n_threads)
{
    tamis_dsa_call *call = arg;
    float *scratch = tamis_exec_scratch(&call->exec, thread_idx);
    int64_t begin, end;
    if (call->has_compressor) {
        tamis_team_range(call->kind->rows.n, 1, thread_idx, n_threads, &begin, &end);
        for (int64_t i = begin; i < end; i++) {
            close_row(call, &call->compressor, i, scratch);
            if (call->has_indexer)
                close_row(call, &call->index_compressor, i, scratch);
        }
    }
    tamis_team_range(call->plan->step.n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        prepare_query(call, token);
        if (call->has_indexer)
            prepare_index_query(call, token);
    }
}

void tamis_dsa_close_rows_and_rotate(tamis_dsa_call *call)
{
    const tamis_dsa_config *c = call->config;
    const int32_t n_rows = call->has_compressor ? call->kind->rows.n : 0;
    tamis_team_run_sized(call->exec.team,
                         tamis_exec_is_worth_waking(call->plan->step.n_tokens + n_rows,
                                                    (int64_t)2 * c->num_heads * c->head_dim),
                         close_and_rotate_thread, call);
}

/* ---------------------------------------------------------------- selection */

void tamis_dsa_select(tamis_dsa_call *call)
{
    tamis_profile_count_selection(call->plan->profile);
    report(call, tamis_indexer_select(&call->plan->ws.indexer, &call->exec,
                                      tamis_dsa_index_dims(call->config), &call->plan->step,
                                      call->index_key, call->kind->visible, &call->kind->index));
}

/* ---------------------------------------------------------------- attention */

static const void *window_row(const tamis_dsa_call *call, int32_t req, int32_t pos)
{
    const tamis_step *step = &call->plan->step;
    if (pos < step->start_pos[req])
        return tamis_cache_ring_row(call->window, step->slot[req], pos);
    const int64_t token = step->query_start[req] + (pos - step->start_pos[req]);
    return call->plan->ws.kv_rows + token * call->window->row_bytes;
}

/* List of a token: window rows, oldest first, then compressed rows in ascending order or as they
 * were selected. */
static int32_t list_rows(const void *user, int32_t token, int32_t first, int32_t n,
                         const void **out)
{
    const tamis_dsa_call *call = user;
    const tamis_dsa_config *c = call->config;
    const tamis_step *step = &call->plan->step;
    const int32_t req = step->tok_req[token], pos = step->tok_pos[token];
    const int32_t window_start = tamis_dsa_window_start(c, pos);
    const int32_t n_window = tamis_dsa_window_places(call->plan, c, pos);
    const int32_t *table = tamis_step_table(step, req);
    const int32_t *topk = call->plan->ws.indexer.topk + (int64_t)token * c->index_topk;
    int32_t n_rows = 0;
    for (int32_t i = first; i < first + n; i++) {
        if (i < n_window) {
            if (window_start + i <= pos)
                out[n_rows++] = window_row(call, req, window_start + i);
            continue;
        }
        const int32_t j = c->compress_ratio == 4 ? topk[i - n_window] : i - n_window;
        const int32_t rows = call->ckv->desc.rows;
        if (j >= 0)
            out[n_rows++] = tamis_cache_block_row(call->ckv, table[j / rows], j % rows);
    }
    return n_rows;
}

/* O1, first half: V was rotated because V = K; undo it at the query's position. */
static void unrotate(const void *user, int32_t token, float *o, int32_t head_begin,
                     int32_t head_end)
{
    const tamis_dsa_call *call = user;
    const int32_t head_dim = call->config->head_dim;
    for (int32_t h = head_begin; h < head_end; h++)
        rotate(call, o + (int64_t)h * head_dim, head_dim, token, true);
}

void tamis_dsa_run_attend(tamis_dsa_call *call)
{
    const tamis_dsa_config *c = call->config;
    const tamis_attn_job job = {.q = call->plan->ws.q,
                                .o = call->plan->ws.q,
                                .o_stride = (int64_t)c->num_heads * c->head_dim,
                                .n_tokens = call->plan->step.n_tokens,
                                .num_heads = c->num_heads,
                                .head_dim = c->head_dim,
                                .value_dim = c->head_dim,
                                .format = &call->window->desc.format,
                                .scale = 1.0f / sqrtf((float)c->head_dim),
                                .sink = call->weights->attn_sink,
                                .partition = &call->kind->attn,
                                .list_len = call->kind->list_len,
                                .partials = call->plan->ws.attn_partials,
                                .max_chunks = call->plan->max_chunks,
                                .rows = list_rows,
                                .done = unrotate,
                                .user = call};
    tamis_attn_run(&call->exec, &job);
}

/* ---------------------------------------------------------------- history */

static void keep_thread(void *arg, int thread_idx, int n_threads)
{
    tamis_dsa_call *call = arg;
    const tamis_step *step = &call->plan->step;
    int64_t begin, end;
    tamis_team_range(step->n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int32_t token = (int32_t)i;
        tamis_ring_keep(call->window, step, token,
                        call->plan->ws.kv_rows + i * call->window->row_bytes);
        if (call->has_compressor)
            tamis_compressor_keep_state(&call->compressor, step, token);
        if (call->has_indexer)
            tamis_compressor_keep_state(&call->index_compressor, step, token);
    }
}

void tamis_dsa_keep_history(tamis_dsa_call *call)
{
    const tamis_dsa_config *c = call->config;
    tamis_team_run_sized(call->exec.team,
                         tamis_exec_is_worth_waking(call->plan->step.n_tokens, 4 * c->head_dim),
                         keep_thread, call);
}
