#include "attention/sfa/plan.h"

#include "attention/common/layer_checks.h"
#include "attention/common/plan_params.h"
#include "attention/common/plan_view.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "ops/rope_table.h"
#include "ops/sparse_attn.h"

/* ---------------------------------------------------------------- layout */

/* Largest value over the layers. */
static int64_t max_of(const tamis_sfa_plan *plan, int64_t (*value)(const tamis_sfa_config *))
{
    int64_t max = 0;
    for (int32_t i = 0; i < plan->n_layers; i++)
        max = tamis_max_i64(max, value(&plan->layers[i]));
    return max;
}

/* clang-format off */
static int64_t q_lora_rank(const tamis_sfa_config *c) { return c->q_lora_rank; }
static int64_t num_heads(const tamis_sfa_config *c) { return c->num_heads; }
static int64_t row_values(const tamis_sfa_config *c) { return tamis_sfa_row_values(c); }
static int64_t q_width(const tamis_sfa_config *c) { return num_heads(c) * row_values(c); }
static int64_t qk_head_dim(const tamis_sfa_config *c)
{
    return c->qk_nope_head_dim + c->qk_rope_head_dim;
}
static int64_t heads_width(const tamis_sfa_config *c)
{
    return num_heads(c) * tamis_max_i64(qk_head_dim(c), c->v_head_dim);
}
static int64_t index_n_heads(const tamis_sfa_config *c)
{
    return tamis_sfa_has_indexer(c) ? c->index_n_heads : 0;
}
static int64_t index_head_dim(const tamis_sfa_config *c)
{
    return tamis_sfa_has_indexer(c) ? c->index_head_dim : 0;
}
static int64_t index_topk(const tamis_sfa_config *c) { return c->index_topk; }
/* clang-format on */

static int64_t scratch_need(const tamis_sfa_config *c)
{
    int64_t cols = tamis_max_i64(c->hidden_size, c->q_lora_rank);
    cols = tamis_max_i64(cols, tamis_max_i64(c->kv_lora_rank, c->num_heads * c->v_head_dim));
    const size_t needs[] = {
        TAMIS_LINEAR_SCRATCH(cols), TAMIS_LINEAR_T_SCRATCH,
        tamis_attn_scratch_floats(c->num_heads, tamis_sfa_row_values(c), c->kv_lora_rank),
        tamis_indexer_scratch_floats((tamis_indexer_dims){
            (int32_t)index_n_heads(c), (int32_t)index_head_dim(c), c->index_topk})};
    int64_t need = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        need = tamis_max_i64(need, (int64_t)needs[i]);
    return tamis_round_up(need, TAMIS_LANES);
}

static size_t partial_need(const tamis_sfa_plan *plan)
{
    size_t need = 0;
    for (int32_t i = 0; i < plan->n_layers; i++) {
        const tamis_sfa_config *c = &plan->layers[i];
        const size_t floats = tamis_attn_partial_floats(c->num_heads, c->kv_lora_rank,
                                                        tamis_attn_num_chunks(plan->longest_list),
                                                        plan->params.n_threads);
        need = floats > need ? floats : need;
    }
    return need;
}

/* The largest pass of projections.c. Jobs that read one x side by side share its quantised copy, or
 * they run one after the other; the value up-projections read theirs as they are. MLAPO keeps int8
 * rows of x, then of the low-rank query here. */
static size_t layer_input_need(const tamis_sfa_config *c, int64_t n_tokens)
{
    const size_t passes[] = {tamis_linear_input_bytes(4, n_tokens, c->hidden_size),
                             tamis_linear_input_bytes(2, n_tokens, c->q_lora_rank),
                             tamis_linear_input_bytes(c->num_heads, 0, c->kv_lora_rank),
                             tamis_linear_input_bytes(1, n_tokens, c->num_heads * c->v_head_dim)};
    size_t need = 0;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        need = passes[i] > need ? passes[i] : need;
    return need;
}

static size_t input_need(const tamis_sfa_plan *plan)
{
    size_t need = 0;
    for (int32_t i = 0; i < plan->n_layers && plan->numerics != TAMIS_PROFILE_EXACT; i++) {
        const size_t layer =
            layer_input_need(&plan->layers[i], plan->params.max_num_batched_tokens);
        need = layer > need ? layer : need;
    }
    return need;
}

static void layout_kind(const tamis_sfa_plan *plan, tamis_sfa_kind *kind, tamis_arena *arena)
{
    const int32_t max_tokens = plan->params.max_num_batched_tokens;
    const int32_t n_threads = plan->params.n_threads;
    const size_t n_tokens = (size_t)max_tokens;
    const size_t n_pairs = (size_t)kind->config.qk_rope_head_dim / 2;
    kind->freq = tamis_arena_take(arena, n_pairs, sizeof(float));
    kind->cos = tamis_arena_take(arena, n_tokens * n_pairs, sizeof(float));
    kind->sin = tamis_arena_take(arena, n_tokens * n_pairs, sizeof(float));
    kind->list_len = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    tamis_partition_layout(&kind->attn, max_tokens, n_threads, arena);
    if (kind->config.index_topk > 0)
        tamis_partition_layout(&kind->index, max_tokens, n_threads, arena);
}

static void layout_workspace(tamis_sfa_plan *plan, tamis_arena *arena)
{
    tamis_sfa_workspace *ws = &plan->ws;
    const int32_t max_tokens = plan->params.max_num_batched_tokens;
    const int32_t n_threads = plan->params.n_threads;
#define TAKE(field, width)                                                                         \
    ws->field =                                                                                    \
        tamis_arena_take(arena, (size_t)max_tokens * (size_t)max_of(plan, width), sizeof(float))
    TAKE(qa, q_lora_rank);
    TAKE(kv, row_values);
    TAKE(index_k, index_head_dim);
    TAKE(heads, heads_width);
    TAKE(q, q_width);
#undef TAKE
    const tamis_indexer_dims dims = {(int32_t)max_of(plan, index_n_heads),
                                     (int32_t)max_of(plan, index_head_dim),
                                     (int32_t)max_of(plan, index_topk)};
    tamis_indexer_layout(&ws->indexer, plan->numerics, dims, max_tokens, n_threads, arena);
    ws->jobs = tamis_arena_take(arena, (size_t)max_of(plan, num_heads), sizeof *ws->jobs);
    ws->attn_partials = tamis_arena_take(arena, partial_need(plan), sizeof(float));
    ws->given_len = tamis_arena_take(arena, (size_t)max_tokens, sizeof(int32_t));
    tamis_partition_layout(&ws->given, max_tokens, n_threads, arena);
    plan->scratch_floats = (size_t)max_of(plan, scratch_need);
    plan->scratch =
        tamis_arena_take(arena, (size_t)n_threads * plan->scratch_floats, sizeof(float));
    plan->input_bytes = input_need(plan);
    plan->inputs = tamis_arena_take(arena, plan->input_bytes, 1);
}

static void layout(tamis_sfa_plan *plan, tamis_arena *arena)
{
    plan->kind_of_layer = tamis_arena_take(arena, (size_t)plan->n_layers, sizeof(int32_t));
    tamis_step_layout(&plan->step, arena);
    plan->visible =
        tamis_arena_take(arena, (size_t)plan->params.max_num_batched_tokens, sizeof(int32_t));
    for (int32_t i = 0; i < plan->n_kinds; i++)
        layout_kind(plan, &plan->kinds[i], arena);
    layout_workspace(plan, arena);
}

/* ---------------------------------------------------------------- open */

static bool same_kind(const tamis_sfa_config *a, const tamis_sfa_config *b)
{
    return a->index_topk == b->index_topk && a->qk_rope_head_dim == b->qk_rope_head_dim &&
           tamis_rope_config_equal(&a->rope, &b->rope);
}

static int32_t find_kind(const tamis_sfa_plan *plan, const tamis_sfa_config *layer)
{
    int32_t kind = 0;
    while (kind < plan->n_kinds && !same_kind(&plan->kinds[kind].config, layer))
        kind++;
    return kind;
}

static tamis_status collect_kinds(tamis_sfa_plan *plan, tamis_error *err)
{
    int32_t topk = 0; /* of the latest layer that selects for itself */
    for (int32_t i = 0; i < plan->n_layers; i++) {
        const tamis_sfa_config *layer = &plan->layers[i];
        const int32_t kind = find_kind(plan, layer);
        if (kind == TAMIS_SFA_MAX_KINDS)
            return tamis_fail(err, TAMIS_STATUS_LIMIT,
                              "layer %d: more than %d different kinds of layers", i,
                              TAMIS_SFA_MAX_KINDS);
        if (kind == plan->n_kinds)
            plan->kinds[plan->n_kinds++].config = *layer;
        if (layer->reuse_topk && topk == 0)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "layer %d reuses a selection, but no earlier layer selects", i);
        if (layer->reuse_topk && layer->index_topk != topk)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "layer %d: reuse_topk with index_topk %d, but the selection before "
                              "it has %d",
                              i, layer->index_topk, topk);
        if (tamis_sfa_has_indexer(layer))
            topk = layer->index_topk;
    }
    return TAMIS_STATUS_OK;
}

/* Limits and kinds; nothing is laid out yet. */
static tamis_status set_up(tamis_sfa_plan *plan, const tamis_sfa_config *layers, int32_t n_layers,
                           const tamis_plan_params *params, const tamis_cache_params *caches,
                           tamis_error *err)
{
    const int32_t block_tokens = caches->block_tokens;
    TAMIS_TRY(tamis_plan_params_check(params, err));
    if (n_layers < 1 || block_tokens < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "plan: n_layers is %d and block_tokens %d, must be at least 1", n_layers,
                          block_tokens);
    plan->params = *params;
    plan->layers = layers;
    plan->n_layers = n_layers;
    plan->numerics = caches->profile;
    plan->ws.indexer.family = TAMIS_INDEX_LATENT;
    TAMIS_TRY(collect_kinds(plan, err));
    plan->step = (tamis_step){.max_tokens = params->max_num_batched_tokens,
                              .max_reqs = params->max_num_seqs,
                              .max_model_len = params->max_model_len,
                              .block_tokens = block_tokens};
    for (int32_t i = 0; i < plan->n_kinds; i++) {
        const int32_t topk = plan->kinds[i].config.index_topk;
        const int32_t longest = topk > 0 ? topk : params->max_model_len;
        plan->longest_list = longest > plan->longest_list ? longest : plan->longest_list;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status measure(tamis_sfa_plan *plan, size_t *bytes, tamis_error *err)
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

tamis_status tamis_sfa_plan_measure(const tamis_sfa_config *layers, int32_t n_layers,
                                    const tamis_plan_params *params,
                                    const tamis_cache_params *caches, uint64_t *bytes,
                                    tamis_error *err)
{
    tamis_sfa_plan plan = {0};
    size_t used = 0;
    for (int32_t i = 0; i < n_layers; i++)
        TAMIS_TRY(tamis_sfa_config_check(&layers[i], err));
    TAMIS_TRY(set_up(&plan, layers, n_layers, params, caches, err));
    TAMIS_TRY(measure(&plan, &used, err));
    *bytes = used + sizeof plan;
    return TAMIS_STATUS_OK;
}

/* Double, rounded once; the profiles that follow other code round where that does. */
static void set_frequencies(tamis_sfa_kind *kind, tamis_profile numerics)
{
    const tamis_sfa_config *c = &kind->config;
    if (numerics == TAMIS_PROFILE_EXACT)
        tamis_rope_frequencies(kind->freq, c->qk_rope_head_dim, &c->rope);
    else
        tamis_rope_frequencies_f32(kind->freq, c->qk_rope_head_dim, &c->rope);
}

static tamis_status take_memory(tamis_sfa_plan *plan, tamis_error *err)
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

tamis_status tamis_sfa_plan_open(tamis_sfa_plan **out, const tamis_sfa_caches *caches,
                                 const tamis_plan_params *params, tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_sfa_plan *plan = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *plan);
    if (plan == NULL)
        return tamis_fail_memory(err, "plan", sizeof *plan);
    TAMIS_TRY_GOTO(
        set_up(plan, caches->layers, caches->base.n_layers, params, &caches->base.params, err));
    plan->step.n_blocks = caches->base.store.n_blocks;
    TAMIS_TRY_GOTO(take_memory(plan, err));
    for (int32_t i = 0; i < plan->n_kinds; i++)
        set_frequencies(&plan->kinds[i], plan->numerics);
    for (int32_t i = 0; i < plan->n_layers; i++)
        plan->kind_of_layer[i] = find_kind(plan, &plan->layers[i]);
    *out = plan;
    return TAMIS_STATUS_OK;
fail:
    tamis_sfa_plan_close(&plan);
    return st;
}

void tamis_sfa_plan_close(tamis_sfa_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return;
    tamis_mem_free((*plan)->memory);
    tamis_mem_free(*plan);
    *plan = NULL;
}

/* ---------------------------------------------------------------- build */

/* Lists of every token and how their chunks are shared out. */
static void build_lists(const tamis_sfa_plan *plan, tamis_sfa_kind *kind)
{
    const tamis_step *step = &plan->step;
    const int32_t topk = kind->config.index_topk;
    for (int32_t t = 0; t < step->n_tokens; t++) {
        const int32_t visible = plan->visible[t];
        kind->list_len[t] = topk > 0 && visible > topk ? topk : visible;
        step->units[t] = tamis_attn_num_chunks(kind->list_len[t]);
    }
    tamis_partition_set(&kind->attn, step->units, step->n_tokens);
    if (topk == 0)
        return;
    for (int32_t t = 0; t < step->n_tokens; t++)
        step->units[t] = tamis_index_units(plan->visible[t], topk, false);
    tamis_partition_set(&kind->index, step->units, step->n_tokens);
}

/* Everything that follows from the step, which a refused batch has left empty. */
static tamis_status build_kinds(tamis_sfa_plan *plan, tamis_status st)
{
    plan->progress = TAMIS_SFA_NOTHING;
    plan->selected_by = -1;
    for (int32_t t = 0; t < plan->step.n_tokens; t++)
        plan->visible[t] = plan->step.tok_pos[t] + 1;
    for (int32_t i = 0; i < plan->n_kinds; i++) {
        tamis_sfa_kind *kind = &plan->kinds[i];
        tamis_rope_rows(kind->cos, kind->sin, kind->freq, kind->config.qk_rope_head_dim / 2,
                        plan->step.tok_pos, plan->step.n_tokens, 1);
        build_lists(plan, kind);
    }
    plan->is_planned = st == TAMIS_STATUS_OK;
    return st;
}

tamis_status tamis_sfa_plan_build(tamis_sfa_plan *plan, const tamis_batch *batch, tamis_error *err)
{
    return build_kinds(plan, tamis_step_build(&plan->step, batch, err));
}

tamis_status tamis_sfa_plan_build_dummy(tamis_sfa_plan *plan, int32_t num_tokens, tamis_error *err)
{
    return build_kinds(plan, tamis_step_build_dummy(&plan->step, num_tokens, err));
}

tamis_step_view tamis_sfa_plan_step(const tamis_sfa_plan *plan)
{
    return tamis_step_show(&plan->step);
}

tamis_layer_plan_view tamis_sfa_plan_layer(const tamis_sfa_plan *plan, int32_t layer_idx)
{
    if (layer_idx < 0 || layer_idx >= plan->n_layers)
        return (tamis_layer_plan_view){0};
    const tamis_sfa_kind *kind = &plan->kinds[plan->kind_of_layer[layer_idx]];
    tamis_layer_plan_view view = {.compress_ratio = 1,
                                  .visible_rows = plan->visible,
                                  .list_len = kind->list_len,
                                  .attention = tamis_work_show(&kind->attn)};
    if (tamis_sfa_has_indexer(&plan->layers[layer_idx]))
        view.index_scores = tamis_work_show(&kind->index);
    return view;
}

int32_t tamis_sfa_plan_num_tokens(const tamis_sfa_plan *plan)
{
    return plan->step.n_tokens;
}
const int32_t *tamis_sfa_plan_positions(const tamis_sfa_plan *plan)
{
    return plan->step.tok_pos;
}
const int32_t *tamis_sfa_plan_topk(const tamis_sfa_plan *plan)
{
    return plan->ws.indexer.topk;
}
float *tamis_sfa_plan_query(tamis_sfa_plan *plan)
{
    return plan->ws.q;
}
float *tamis_sfa_plan_latent_out(tamis_sfa_plan *plan, int32_t token)
{
    if (token < 0 || token >= plan->step.n_tokens)
        return NULL;
    return plan->ws.q + token * q_width(&plan->layers[plan->running_layer]);
}
const float *tamis_sfa_plan_index_query(const tamis_sfa_plan *plan)
{
    return plan->ws.indexer.q;
}
const float *tamis_sfa_plan_index_weights(const tamis_sfa_plan *plan)
{
    return plan->ws.indexer.w;
}
void tamis_sfa_plan_set_profile(tamis_sfa_plan *plan, tamis_attn_profile *profile)
{
    plan->profile = profile;
}
