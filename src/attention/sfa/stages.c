#include "attention/sfa/stages.h"

#include <string.h>

#include "ops/sparse_attn.h"

/* Letters and numbers in comments are the stages of the dependency graph in docs/architecture.md.
 */

#define INDEX_NORM_EPS 1e-6f /* of the indexer's LayerNorm, whatever rms_norm_eps is */

void tamis_sfa_report(const tamis_sfa_call *call, bool is_finite)
{
    if (!is_finite)
        atomic_store_explicit(&call->plan->has_fault, true, memory_order_relaxed);
}

tamis_sfa_call tamis_sfa_call_make(const tamis_sfa_layer *layer, int32_t layer_idx,
                                   tamis_sfa_plan *plan, const tamis_sfa_caches *caches,
                                   tamis_team *team)
{
    return (tamis_sfa_call){.config = &layer->config,
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
                            .latent = tamis_layer_cache(&caches->base, layer_idx, TAMIS_SFA_LATENT),
                            .index_key =
                                tamis_layer_cache(&caches->base, layer_idx, TAMIS_SFA_INDEX_KEY)};
}

static tamis_indexer_dims index_dims(const tamis_sfa_call *call)
{
    const tamis_sfa_config *c = call->config;
    return (tamis_indexer_dims){c->index_n_heads, c->index_head_dim, c->index_topk};
}

/* Row of a position of the token's sequence. */
static uint8_t *row_of(const tamis_sfa_call *call, const tamis_cache *cache, int32_t token,
                       int32_t pos)
{
    const tamis_step *step = &call->plan->step;
    const int32_t rows = cache->desc.rows;
    const int32_t *table = tamis_step_table(step, step->tok_req[token]);
    return tamis_cache_block_row(cache, table[pos / rows], pos % rows);
}

/* ---------------------------------------------------------------- rows */

typedef TAMIS_KERNEL_rope((*rope_fn));

/* The first qk_rope_head_dim values of x; BF16 values in profiles other than exact. */
static void rotate(const tamis_sfa_call *call, rope_fn rope, float *x, int64_t token)
{
    const int64_t n_pairs = call->config->qk_rope_head_dim / 2;
    rope(x, call->kind->cos + token * n_pairs, call->kind->sin + token * n_pairs, n_pairs, false);
    tamis_exec_round(&call->exec, x, 2 * n_pairs);
}

/* V3.2 pairs index channels in halves, GLM neighbours; MLA pairs neighbours in both. */
static rope_fn index_rope(const tamis_sfa_call *call)
{
    const tamis_kernels *k = call->exec.kernels;
    return call->config->index_rope_interleave ? k->rope : k->rope_halves;
}

/* MLAPO's weights bring a rotated part as halves: rotated as such, then put into pairs, which is
 * what rotating the pairs gives, bit for bit. scratch: qk_rope_head_dim floats. */
static void rotate_part(const tamis_sfa_call *call, float *x, int64_t token, float *scratch)
{
    const int32_t rope = call->config->qk_rope_head_dim;
    if (call->mlapo == NULL) {
        rotate(call, call->exec.kernels->rope, x, token);
        return;
    }
    memcpy(scratch, x, (size_t)rope * sizeof *x);
    rotate(call, call->exec.kernels->rope_halves, scratch, token);
    tamis_rope_halves_to_pairs(x, scratch, rope);
}

/* Codes the token's row as the cache has it and stores it, before anything reads it. */
static void store(const tamis_sfa_call *call, const tamis_cache *cache, const float *row,
                  int32_t token)
{
    const tamis_row_format *format = &cache->desc.format;
    const int64_t n = format->num_values;
    uint8_t *to = row_of(call, cache, token, call->plan->step.tok_pos[token]);
    call->exec.kernels->pack_row(to, to + format->scale_at, format, row);
    tamis_sfa_report(call, call->exec.kernels->all_finite(row, n));
}

/* Of q_a_layernorm and kv_a_layernorm. */
static float norm_eps(const tamis_sfa_call *call)
{
    return call->mlapo != NULL ? call->mlapo->eps : call->config->rms_norm_eps;
}

/* Q2, in place. MLAPO's second quantisation reads the f32 values, all others the rounded ones. */
static void norm_query(const tamis_sfa_call *call, int64_t token)
{
    const tamis_sfa_config *c = call->config;
    const tamis_kernels *k = call->exec.kernels;
    float *qa = call->plan->ws.qa + token * c->q_lora_rank;
    k->rmsnorm(qa, qa, call->weights->q_a_norm, c->q_lora_rank, norm_eps(call));
    if (call->weights->q_a_norm_bias != NULL)
        k->add(qa, call->weights->q_a_norm_bias, c->q_lora_rank);
    if (call->mlapo != NULL)
        tamis_mlapo_quantize(call, &call->mlapo->q_b_proj, qa, token);
    tamis_exec_round(&call->exec, qa, c->q_lora_rank);
    tamis_sfa_report(call, k->all_finite(qa, c->q_lora_rank));
}

/* K2: the latent is normed, the key part behind it rotated. */
static void store_latent(const tamis_sfa_call *call, int32_t token, float *scratch)
{
    const tamis_sfa_config *c = call->config;
    float *kv = call->plan->ws.kv + (int64_t)token * tamis_sfa_row_values(c);
    call->exec.kernels->rmsnorm(kv, kv, call->weights->kv_a_norm, c->kv_lora_rank, norm_eps(call));
    tamis_exec_round(&call->exec, kv, c->kv_lora_rank);
    rotate_part(call, kv + c->kv_lora_rank, token, scratch);
    store(call, call->latent, kv, token);
}

/* J2: the first channels of an index key are rotated. */
static void store_index_key(const tamis_sfa_call *call, int32_t token)
{
    const tamis_sfa_config *c = call->config;
    const int32_t dim = c->index_head_dim;
    float *key = call->plan->ws.index_k + (int64_t)token * dim;
    call->exec.kernels->layernorm(key, key, call->weights->index_k_norm,
                                  call->weights->index_k_norm_bias, dim, INDEX_NORM_EPS);
    tamis_exec_round(&call->exec, key, dim);
    rotate(call, index_rope(call), key, token);
    tamis_indexer_rotate_key(call->exec.kernels, call->exec.profile, TAMIS_INDEX_LATENT, key, dim);
    store(call, call->index_key, key, token);
}

typedef struct store_pass {
    const tamis_sfa_call *call;
    const float *x;
} store_pass;

/* Static int8 codes are numbers whatever x is: what they hide is looked for in x itself. */
static void check_input(const store_pass *pass, int64_t token)
{
    const int64_t hidden = pass->call->config->hidden_size;
    if (pass->call->exec.profile == TAMIS_PROFILE_ASCEND)
        tamis_sfa_report(pass->call,
                         pass->call->exec.kernels->all_finite(pass->x + token * hidden, hidden));
}

static void store_thread(void *arg, int thread_idx, int n_threads)
{
    const store_pass *pass = arg;
    const tamis_sfa_call *call = pass->call;
    float *scratch = tamis_exec_scratch(&call->exec, thread_idx);
    int64_t begin, end;
    tamis_team_range(call->plan->step.n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        check_input(pass, token);
        norm_query(call, token);
        store_latent(call, (int32_t)token, scratch);
        if (call->index_key != NULL)
            store_index_key(call, (int32_t)token);
    }
}

void tamis_sfa_store_rows(tamis_sfa_call *call, const float *x)
{
    store_pass pass = {call, x};
    const tamis_sfa_config *c = call->config;
    const int64_t values = c->q_lora_rank + tamis_sfa_row_values(c) + c->index_head_dim;
    tamis_team_run_sized(call->exec.team,
                         tamis_exec_is_worth_waking(call->plan->step.n_tokens, 2 * values),
                         store_thread, &pass);
}

/* ---------------------------------------------------------------- queries */

/* Q4: a head's rotated part goes behind its absorbed part, as in a cache row. */
static void rotate_heads(const tamis_sfa_call *call, int64_t token, float *scratch)
{
    const tamis_sfa_config *c = call->config;
    const int64_t row = tamis_sfa_row_values(c), rope = c->qk_rope_head_dim;
    const int64_t qk = c->qk_nope_head_dim + rope;
    const float *from = call->plan->ws.heads + token * c->num_heads * qk + c->qk_nope_head_dim;
    float *to = call->plan->ws.q + token * c->num_heads * row + c->kv_lora_rank;
    for (int32_t h = 0; h < c->num_heads; h++, from += qk, to += row) {
        memcpy(to, from, (size_t)rope * sizeof *to);
        rotate_part(call, to, token, scratch);
    }
}

/* I2, W1: rotated queries, then what the scores read of them. */
static void prepare_index(const tamis_sfa_call *call, int64_t token)
{
    const tamis_sfa_config *c = call->config;
    const tamis_indexer *indexer = &call->plan->ws.indexer;
    float *q = indexer->q + token * c->index_n_heads * c->index_head_dim;
    for (int32_t h = 0; h < c->index_n_heads; h++)
        rotate(call, index_rope(call), q + (int64_t)h * c->index_head_dim, token);
    tamis_sfa_report(call, tamis_indexer_prepare(indexer, &call->exec, index_dims(call),
                                                 &call->index_key->desc.format, token));
}

static void query_thread(void *arg, int thread_idx, int n_threads)
{
    const tamis_sfa_call *call = arg;
    float *scratch = tamis_exec_scratch(&call->exec, thread_idx);
    int64_t begin, end;
    tamis_team_range(call->plan->step.n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        rotate_heads(call, token, scratch);
        if (call->index_key != NULL)
            prepare_index(call, token);
    }
}

void tamis_sfa_prepare_queries(tamis_sfa_call *call)
{
    const tamis_sfa_config *c = call->config;
    const int64_t heads = c->num_heads + c->index_n_heads;
    tamis_team_run_sized(
        call->exec.team,
        tamis_exec_is_worth_waking(call->plan->step.n_tokens, 2 * heads * c->qk_rope_head_dim),
        query_thread, call);
}

/* ---------------------------------------------------------------- selection and attention */

void tamis_sfa_run_select(tamis_sfa_call *call)
{
    tamis_sfa_plan *plan = call->plan;
    tamis_profile_count_selection(plan->profile);
    tamis_sfa_report(call, tamis_indexer_select(&plan->ws.indexer, &call->exec, index_dims(call),
                                                &plan->step, call->index_key, plan->visible,
                                                &call->kind->index));
}

/* Positions that a token attends to: a row of a table, or all of them in order. */
typedef struct position_lists {
    const tamis_sfa_call *call;
    const int32_t *positions; /* [num_tokens][stride], -1 is skipped; NULL: 0, 1, 2, ... */
    int64_t stride;
} position_lists;

static int32_t list_rows(const void *user, int32_t token, int32_t first, int32_t n,
                         const void **out)
{
    const position_lists *lists = user;
    const int32_t *positions = lists->positions;
    int32_t n_rows = 0;
    for (int32_t i = first; i < first + n; i++) {
        const int32_t pos = positions == NULL ? i : positions[token * lists->stride + i];
        if (pos >= 0)
            out[n_rows++] = row_of(lists->call, lists->call->latent, token, pos);
    }
    return n_rows;
}

static void run_attention(const tamis_sfa_call *call, const position_lists *lists,
                          const int32_t *list_len, const tamis_partition *partition, float *lse)
{
    const tamis_sfa_config *c = call->config;
    const tamis_attn_job job = {.q = call->plan->ws.q,
                                .o = call->plan->ws.q,
                                .o_stride = (int64_t)c->num_heads * tamis_sfa_row_values(c),
                                .lse = lse,
                                .n_tokens = call->plan->step.n_tokens,
                                .num_heads = c->num_heads,
                                .head_dim = tamis_sfa_row_values(c),
                                .value_dim = c->kv_lora_rank,
                                .format = &call->latent->desc.format,
                                .scale = c->softmax_scale,
                                .partition = partition,
                                .list_len = list_len,
                                .partials = call->plan->ws.attn_partials,
                                .max_chunks = tamis_attn_num_chunks(call->plan->longest_list),
                                .rows = list_rows,
                                .user = lists};
    tamis_attn_run(&call->exec, &job);
}

static void attend_given(tamis_sfa_call *call, const int32_t *indices, int32_t num_indices,
                         float *lse)
{
    tamis_sfa_workspace *ws = &call->plan->ws;
    const tamis_step *step = &call->plan->step;
    const position_lists lists = {call, indices, num_indices};
    const int32_t n_chunks = tamis_attn_num_chunks(num_indices);
    for (int32_t t = 0; t < step->n_tokens; t++) {
        ws->given_len[t] = num_indices;
        step->units[t] = n_chunks > 0 ? n_chunks : 1; /* an empty list has an output, too */
    }
    tamis_partition_set(&ws->given, step->units, step->n_tokens);
    run_attention(call, &lists, ws->given_len, &ws->given, lse);
}

void tamis_sfa_run_attend(tamis_sfa_call *call, const int32_t *indices, int32_t num_indices,
                          float *lse)
{
    const int32_t topk = call->config->index_topk;
    const position_lists own = {call, topk == 0 ? NULL : call->plan->ws.indexer.topk, topk};
    if (indices != NULL)
        attend_given(call, indices, num_indices, lse);
    else
        run_attention(call, &own, call->kind->list_len, &call->kind->attn, lse);
}
