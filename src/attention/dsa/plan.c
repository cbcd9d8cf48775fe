#include "attention/dsa/plan.h"

#include <string.h>

#include "attention/common/compressor.h"
#include "attention/common/layer_checks.h"
#include "attention/common/plan_params.h"
#include "attention/common/plan_view.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "ops/linear.h"
#include "ops/rope_table.h"
#include "ops/sparse_attn.h"

/* ---------------------------------------------------------------- layout */

/* Largest value over the layers. */
static int64_t max_of(const tamis_dsa_plan *plan, int64_t (*value)(const tamis_dsa_config *))
{
    int64_t max = 0;
    for (int32_t i = 0; i < plan->n_layers; i++)
        max = tamis_max_i64(max, value(&plan->layers[i]));
    return max;
}

static int64_t q_lora_rank(const tamis_dsa_config *c)
{
    return c->q_lora_rank;
}
static int64_t head_dim(const tamis_dsa_config *c)
{
    return c->head_dim;
}
static int64_t q_width(const tamis_dsa_config *c)
{
    return (int64_t)c->num_heads * c->head_dim;
}
static int64_t low_width(const tamis_dsa_config *c)
{
    return (int64_t)c->o_groups * c->o_lora_rank;
}
static int64_t state_width(const tamis_dsa_config *c)
{
    return c->compress_ratio == 0
               ? 0
               : (int64_t)2 * tamis_compressor_halves(c->compress_ratio) * c->head_dim;
}
/* All 0 where the layer has no indexer. */
tamis_indexer_dims tamis_dsa_index_dims(const tamis_dsa_config *c)
{
    return tamis_dsa_has_indexer(c)
               ? (tamis_indexer_dims){c->index_n_heads, c->index_head_dim, c->index_topk}
               : (tamis_indexer_dims){0};
}
static int64_t index_n_heads(const tamis_dsa_config *c)
{
    return tamis_dsa_index_dims(c).n_heads;
}
static int64_t index_head_dim(const tamis_dsa_config *c)
{
    return tamis_dsa_index_dims(c).head_dim;
}
static int64_t index_topk(const tamis_dsa_config *c)
{
    return tamis_dsa_index_dims(c).topk;
}
static int64_t index_state_width(const tamis_dsa_config *c)
{
    return tamis_dsa_has_indexer(c) ? (int64_t)4 * c->index_head_dim : 0;
}
static int64_t largest_cols(const tamis_dsa_config *c)
{
    int64_t cols = tamis_max_i64(c->hidden_size, c->q_lora_rank);
    cols = tamis_max_i64(cols, q_width(c) / c->o_groups);
    return tamis_max_i64(cols, low_width(c));
}

static int64_t scratch_need(const tamis_dsa_config *c)
{
    int64_t need = (int64_t)TAMIS_LINEAR_SCRATCH(largest_cols(c));
    need = tamis_max_i64(
        need, (int64_t)tamis_attn_scratch_floats(c->num_heads, c->head_dim, c->head_dim));
    need = tamis_max_i64(need, (int64_t)tamis_indexer_scratch_floats(tamis_dsa_index_dims(c)));
    return tamis_round_up(need, TAMIS_LANES);
}

/* Most inputs of linear layers that a layer quantises side by side. Each pass of forward.c reads
 * one x, but weights may want it in different forms: project_inputs has three that quantise (wq_a,
 * wkv, weights_proj; the compressors read x as it is), project_queries two; a group of wo_a has an
 * input of its own. */
static size_t layer_input_need(const tamis_dsa_config *c, tamis_profile profile, int64_t n_tokens)
{
    const bool is_grouped = profile == TAMIS_PROFILE_ASCEND; /* official: wo_a reads o as it is */
    const int64_t n_indexers = tamis_dsa_has_indexer(c) ? 1 : 0;
    const size_t passes[] = {
        tamis_linear_input_bytes(7, (2 + n_indexers) * n_tokens, c->hidden_size),
        tamis_linear_input_bytes(2, (1 + n_indexers) * n_tokens, c->q_lora_rank),
        tamis_linear_input_bytes(c->o_groups, is_grouped ? c->o_groups * n_tokens : 0,
                                 q_width(c) / c->o_groups),
        tamis_linear_input_bytes(1, n_tokens, low_width(c)),
    };
    size_t need = 0;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        need = passes[i] > need ? passes[i] : need;
    return need;
}

static size_t input_need(const tamis_dsa_plan *plan)
{
    size_t need = 0;
    for (int32_t i = 0; i < plan->n_layers && plan->numerics != TAMIS_PROFILE_EXACT; i++) {
        const size_t layer =
            layer_input_need(&plan->layers[i], plan->numerics, plan->params.max_num_batched_tokens);
        need = layer > need ? layer : need;
    }
    return need;
}

/* Places in the list of the token at pos, which sees so many compressed rows. */
static int32_t list_places(const tamis_dsa_plan *plan, const tamis_dsa_config *c, int32_t pos,
                           int32_t visible)
{
    const bool is_selection = c->compress_ratio == 4 && visible > c->index_topk;
    return tamis_dsa_window_places(plan, c, pos) + (is_selection ? c->index_topk : visible);
}

/* Both parts of a list only grow with the position. */
static int32_t longest_list(const tamis_dsa_plan *plan, const tamis_dsa_config *c)
{
    const int32_t last = plan->params.max_model_len - 1;
    return list_places(plan, c, last, tamis_visible_rows(last, c->compress_ratio));
}

static size_t partial_need(const tamis_dsa_plan *plan)
{
    size_t need = 0;
    for (int32_t i = 0; i < plan->n_layers; i++) {
        const tamis_dsa_config *c = &plan->layers[i];
        const size_t floats = tamis_attn_partial_floats(c->num_heads, c->head_dim, plan->max_chunks,
                                                        plan->params.n_threads);
        need = floats > need ? floats : need;
    }
    return need;
}

static void layout_kind(const tamis_dsa_plan *plan, tamis_dsa_kind *kind, tamis_arena *arena)
{
    const size_t n_tokens = (size_t)plan->params.max_num_batched_tokens;
    const size_t n_pairs = (size_t)kind->config.rope_head_dim / 2;
    kind->freq = tamis_arena_take(arena, n_pairs, sizeof(float));
    kind->cos = tamis_arena_take(arena, n_tokens * n_pairs, sizeof(float));
    kind->sin = tamis_arena_take(arena, n_tokens * n_pairs, sizeof(float));
    kind->visible = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    kind->list_len = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    tamis_partition_layout(&kind->attn, plan->params.max_num_batched_tokens, plan->params.n_threads,
                           arena);
    if (kind->config.compress_ratio == 0)
        return;
    const int32_t capacity =
        tamis_closed_rows_capacity(plan->params.max_num_batched_tokens, plan->params.max_num_seqs,
                                   kind->config.compress_ratio);
    tamis_closed_rows_layout(&kind->rows, capacity, arena);
    kind->row_cos = tamis_arena_take(arena, (size_t)capacity * n_pairs, sizeof(float));
    kind->row_sin = tamis_arena_take(arena, (size_t)capacity * n_pairs, sizeof(float));
    if (kind->config.compress_ratio == 4)
        tamis_partition_layout(&kind->index, plan->params.max_num_batched_tokens,
                               plan->params.n_threads, arena);
}

static void layout_workspace(tamis_dsa_plan *plan, tamis_arena *arena)
{
    tamis_dsa_workspace *ws = &plan->ws;
    const size_t n_tokens = (size_t)plan->params.max_num_batched_tokens;
    const size_t n_threads = (size_t)plan->params.n_threads;
#define TAKE(field, width)                                                                         \
    ws->field = tamis_arena_take(arena, n_tokens * (size_t)max_of(plan, width), sizeof *ws->field)
    TAKE(qa, q_lora_rank);
    TAKE(kv, head_dim);
    TAKE(state, state_width);
    TAKE(index_state, index_state_width);
    TAKE(q, q_width);
    TAKE(low, low_width);
#undef TAKE
    ws->kv_rows = tamis_arena_take(arena, n_tokens, (size_t)plan->kv_row_bytes);
    ws->attn_partials = tamis_arena_take(arena, partial_need(plan), sizeof(float));
    const tamis_indexer_dims dims = {(int32_t)max_of(plan, index_n_heads),
                                     (int32_t)max_of(plan, index_head_dim),
                                     (int32_t)max_of(plan, index_topk)};
    ws->indexer.family = TAMIS_INDEX_V4;
    tamis_indexer_layout(&ws->indexer, plan->numerics, dims, plan->params.max_num_batched_tokens,
                         plan->params.n_threads, arena);
    plan->scratch_floats = (size_t)max_of(plan, scratch_need);
    plan->scratch = tamis_arena_take(arena, n_threads * plan->scratch_floats, sizeof(float));
    plan->input_bytes = input_need(plan);
    plan->inputs = tamis_arena_take(arena, plan->input_bytes, 1);
}

static void layout(tamis_dsa_plan *plan, tamis_arena *arena)
{
    plan->kind_of_layer = tamis_arena_take(arena, (size_t)plan->n_layers, sizeof(int32_t));
    tamis_step_layout(&plan->step, arena);
    for (int32_t i = 0; i < plan->n_kinds; i++)
        layout_kind(plan, &plan->kinds[i], arena);
    layout_workspace(plan, arena);
}

/* ---------------------------------------------------------------- open */

/* Whether two layers share rotary rows, list lengths and partitions. */
static bool same_kind(const tamis_dsa_config *a, const tamis_dsa_config *b)
{
    return a->compress_ratio == b->compress_ratio && a->sliding_window == b->sliding_window &&
           a->rope_head_dim == b->rope_head_dim && tamis_rope_config_equal(&a->rope, &b->rope) &&
           (a->compress_ratio != 4 || a->index_topk == b->index_topk);
}

static int32_t find_kind(const tamis_dsa_plan *plan, const tamis_dsa_config *layer)
{
    int32_t kind = 0;
    while (kind < plan->n_kinds && !same_kind(&plan->kinds[kind].config, layer))
        kind++;
    return kind;
}

static tamis_status collect_kinds(tamis_dsa_plan *plan, tamis_error *err)
{
    int32_t topk = 0; /* of the latest layer that selects for itself */
    for (int32_t i = 0; i < plan->n_layers; i++) {
        const tamis_dsa_config *layer = &plan->layers[i];
        const int32_t kind = find_kind(plan, layer);
        if (kind == TAMIS_DSA_MAX_KINDS)
            return tamis_fail(err, TAMIS_STATUS_LIMIT,
                              "layer %d: more than %d different kinds of layers", i,
                              TAMIS_DSA_MAX_KINDS);
        if (kind == plan->n_kinds)
            plan->kinds[plan->n_kinds++].config = *layer;
        if (layer->compress_ratio == 4 && layer->reuse_topk && topk == 0)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "layer %d reuses a selection, but no earlier layer selects", i);
        if (layer->compress_ratio == 4 && layer->reuse_topk && layer->index_topk != topk)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "layer %d: reuse_topk with index_topk %d, but the selection before "
                              "it has %d",
                              i, layer->index_topk, topk);
        if (tamis_dsa_has_indexer(layer))
            topk = layer->index_topk;
    }
    return TAMIS_STATUS_OK;
}

/* Limits and kinds; nothing is laid out yet. */
static tamis_status set_up(tamis_dsa_plan *plan, const tamis_dsa_config *layers, int32_t n_layers,
                           const tamis_plan_params *params, const tamis_cache_params *caches,
                           tamis_error *err)
{
    const int32_t block_tokens = caches->block_tokens;
    TAMIS_TRY(tamis_plan_params_check(params, err));
    if (n_layers < 1 || block_tokens < 128 || block_tokens % 128 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "plan: n_layers is %d, must be at least 1; block_tokens is %d, must be a "
                          "multiple of 128",
                          n_layers, block_tokens);
    plan->params = *params;
    plan->layers = layers;
    plan->n_layers = n_layers;
    plan->numerics = caches->profile;
    for (int32_t i = 0; i < n_layers; i++) {
        tamis_row_format kv, index_key;
        TAMIS_TRY(tamis_dsa_row_formats(&kv, &index_key, &layers[i], caches, err));
        plan->kv_row_bytes = kv.row_bytes > plan->kv_row_bytes ? kv.row_bytes : plan->kv_row_bytes;
    }
    TAMIS_TRY(collect_kinds(plan, err));
    plan->step = (tamis_step){.max_tokens = params->max_num_batched_tokens,
                              .max_reqs = params->max_num_seqs,
                              .max_model_len = params->max_model_len,
                              .block_tokens = block_tokens,
                              .n_slots = params->max_num_seqs};
    plan->max_chunks = 1; /* all that a running maximum keeps */
    for (int32_t i = 0; i < n_layers && plan->numerics == TAMIS_PROFILE_EXACT; i++) {
        const int32_t n = tamis_attn_num_chunks(longest_list(plan, &layers[i]));
        plan->max_chunks = n > plan->max_chunks ? n : plan->max_chunks;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status measure(tamis_dsa_plan *plan, size_t *bytes, tamis_error *err)
{
    tamis_arena arena = {0};
    layout(plan, &arena);
    if (arena.used == SIZE_MAX)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "plan: a workspace for %d tokens exceeds the address space",
                          plan->params.max_num_batched_tokens);
    *bytes = arena.used;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_dsa_plan_measure(const tamis_dsa_config *layers, int32_t n_layers,
                                    const tamis_plan_params *params,
                                    const tamis_cache_params *caches, uint64_t *bytes,
                                    tamis_error *err)
{
    tamis_dsa_plan plan = {0};
    size_t used = 0;
    for (int32_t i = 0; i < n_layers; i++)
        TAMIS_TRY(tamis_dsa_config_check(&layers[i], err));
    TAMIS_TRY(set_up(&plan, layers, n_layers, params, caches, err));
    TAMIS_TRY(measure(&plan, &used, err));
    *bytes = used + sizeof plan;
    return TAMIS_STATUS_OK;
}

static tamis_status take_memory(tamis_dsa_plan *plan, tamis_error *err)
{
    size_t bytes = 0;
    TAMIS_TRY(measure(plan, &bytes, err));
    plan->memory = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    if (plan->memory == NULL)
        return tamis_fail_memory(err, "workspace of a step", bytes);
    tamis_arena arena = {.base = plan->memory, .bytes = bytes};
    layout(plan, &arena);
    return TAMIS_STATUS_OK;
}

static void set_frequencies(tamis_dsa_kind *kind, tamis_profile profile)
{
    const tamis_dsa_config *c = &kind->config;
    if (profile == TAMIS_PROFILE_EXACT)
        tamis_rope_frequencies(kind->freq, c->rope_head_dim, &c->rope);
    else
        tamis_rope_frequencies_f32(kind->freq, c->rope_head_dim, &c->rope);
}

tamis_status tamis_dsa_plan_open(tamis_dsa_plan **out, const tamis_dsa_caches *caches,
                                 const tamis_plan_params *params, tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_dsa_plan *plan = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *plan);
    if (plan == NULL)
        return tamis_fail_memory(err, "plan", sizeof *plan);
    TAMIS_TRY_GOTO(
        set_up(plan, caches->layers, caches->base.n_layers, params, &caches->base.params, err));
    plan->step.n_blocks = caches->base.store.n_blocks;
    plan->step.n_slots = caches->base.store.n_slots;
    plan->preprocessed = -1;
    TAMIS_TRY_GOTO(take_memory(plan, err));
    for (int32_t i = 0; i < plan->n_kinds; i++)
        set_frequencies(&plan->kinds[i], plan->numerics);
    for (int32_t i = 0; i < plan->n_layers; i++)
        plan->kind_of_layer[i] = find_kind(plan, &plan->layers[i]);
    *out = plan;
    return TAMIS_STATUS_OK;
fail:
    tamis_dsa_plan_close(&plan);
    return st;
}

void tamis_dsa_plan_close(tamis_dsa_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return;
    tamis_mem_free((*plan)->memory);
    tamis_mem_free(*plan);
    *plan = NULL;
}

/* ---------------------------------------------------------------- build */

static void build_rope(tamis_dsa_kind *kind, const tamis_step *step)
{
    tamis_rope_rows(kind->cos, kind->sin, kind->freq, kind->config.rope_head_dim / 2, step->tok_pos,
                    step->n_tokens, 1);
}

static void build_rows(tamis_dsa_kind *kind, const tamis_step *step)
{
    tamis_closed_rows_build(&kind->rows, step, kind->config.compress_ratio);
    tamis_rope_rows(kind->row_cos, kind->row_sin, kind->freq, kind->config.rope_head_dim / 2,
                    kind->rows.idx, kind->rows.n, kind->config.compress_ratio);
}

/* Lists of every token and how their chunks are shared out. `units` is room for n_tokens. */
static void build_lists(const tamis_dsa_plan *plan, tamis_dsa_kind *kind, int32_t *units)
{
    const tamis_dsa_config *c = &kind->config;
    const tamis_step *step = &plan->step;
    const bool best_first = tamis_indexer_is_ranked(plan->numerics, plan->ws.indexer.family);
    for (int32_t t = 0; t < step->n_tokens; t++) {
        const int32_t pos = step->tok_pos[t];
        kind->visible[t] = tamis_visible_rows(pos, c->compress_ratio);
        kind->list_len[t] = list_places(plan, c, pos, kind->visible[t]);
        units[t] = tamis_attn_num_chunks(kind->list_len[t]);
    }
    tamis_partition_set(&kind->attn, units, step->n_tokens);
    if (c->compress_ratio != 4)
        return;
    for (int32_t t = 0; t < step->n_tokens; t++)
        units[t] = tamis_index_units(kind->visible[t], c->index_topk, best_first);
    tamis_partition_set(&kind->index, units, step->n_tokens);
}

/* Everything that follows from the step, which a refused batch has left empty. */
static tamis_status build_kinds(tamis_dsa_plan *plan, tamis_status st)
{
    plan->preprocessed = -1;
    for (int32_t i = 0; i < plan->n_kinds; i++) {
        tamis_dsa_kind *kind = &plan->kinds[i];
        build_rope(kind, &plan->step);
        if (kind->config.compress_ratio != 0)
            build_rows(kind, &plan->step);
        build_lists(plan, kind, plan->step.units);
    }
    plan->is_planned = st == TAMIS_STATUS_OK;
    return st;
}

tamis_status tamis_dsa_plan_build(tamis_dsa_plan *plan, const tamis_batch *batch, tamis_error *err)
{
    return build_kinds(plan, tamis_step_build(&plan->step, batch, err));
}

tamis_status tamis_dsa_plan_build_dummy(tamis_dsa_plan *plan, int32_t num_tokens, tamis_error *err)
{
    return build_kinds(plan, tamis_step_build_dummy(&plan->step, num_tokens, err));
}

tamis_step_view tamis_dsa_plan_step(const tamis_dsa_plan *plan)
{
    return tamis_step_show(&plan->step);
}

tamis_layer_plan_view tamis_dsa_plan_layer(const tamis_dsa_plan *plan, int32_t layer_idx)
{
    if (layer_idx < 0 || layer_idx >= plan->n_layers)
        return (tamis_layer_plan_view){0};
    const tamis_dsa_kind *kind = &plan->kinds[plan->kind_of_layer[layer_idx]];
    tamis_layer_plan_view view = {.compress_ratio = kind->config.compress_ratio,
                                  .visible_rows = kind->visible,
                                  .list_len = kind->list_len,
                                  .num_closed_rows = kind->rows.n,
                                  .closed_req = kind->rows.req,
                                  .closed_row = kind->rows.idx,
                                  .attention = tamis_work_show(&kind->attn)};
    if (tamis_dsa_has_indexer(&plan->layers[layer_idx]))
        view.index_scores = tamis_work_show(&kind->index);
    return view;
}

const int32_t *tamis_dsa_plan_topk(const tamis_dsa_plan *plan)
{
    return plan->ws.indexer.topk;
}
int32_t tamis_dsa_plan_num_tokens(const tamis_dsa_plan *plan)
{
    return plan->step.n_tokens;
}
const int32_t *tamis_dsa_plan_positions(const tamis_dsa_plan *plan)
{
    return plan->step.tok_pos;
}
void tamis_dsa_plan_set_profile(tamis_dsa_plan *plan, tamis_attn_profile *profile)
{
    plan->profile = profile;
}
