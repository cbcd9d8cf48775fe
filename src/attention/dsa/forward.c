/*
 * One DeepSeek-V4 attention layer: window, C4 (compressor, indexer, top-k) or C128.
 *
 *   x -> wq_a -> norm -> wq_b -> head norm, rotation -> q -----------------.
 *   x -> wkv -> norm, rotation ------------------------> window rows ------+-> attention with sinks
 *   x -> wkv, wgate -> pool, norm, rotation -----------> compressed rows --|   -> inverse rotation
 *   x -> indexer: keys like compressed rows, q from qa's norm, weights     |   -> wo_a per group
 *        -> scores -> top-k ------------------------------------ selects --'   -> wo_b -> out
 *
 * Rows are coded as the cache holds them before anything reads them. Rings are written last, so a
 * step of any length reads its history first. Where the profiles official and ascend round is
 * docs/numerics-profiles.md; linear layers round their own inputs and outputs. Source: V4 reference
 * inference/model.py (Attention); dsa_v1.py forward; docs/numerics.md.
 */
#include "attention/common/layer_checks.h"
#include "attention/common/plan_view.h"
#include "attention/common/projections.h"
#include "attention/dsa/stages.h"
#include "core/error.h"
#include "ops/linear.h"

/* A matrix over x whose output rows start at y and are y_stride apart. */
static tamis_linear_job project(const tamis_dsa_call *call, const tamis_matrix *w, const float *x,
                                float *y, int64_t y_stride)
{
    tamis_linear_job job = tamis_linear_full(w, x, y, call->plan->step.n_tokens);
    job.y_stride = y_stride;
    return job;
}

/* A compressor's projection: f32 from x to the pooled row in every profile. */
static tamis_linear_job project_state(const tamis_dsa_call *call, const tamis_matrix *w,
                                      const float *x, float *y, int64_t y_stride)
{
    tamis_linear_job job = project(call, w, x, y, y_stride);
    job.keep_input = job.keep_output = true;
    return job;
}

/* Static int8 codes are numbers whatever they were made of: what would be hidden is looked for in
 * the n values of every token that w is about to code. */
static void check_coded(const tamis_dsa_call *call, const tamis_matrix *w, const float *x,
                        int64_t n)
{
    if (call->exec.profile == TAMIS_PROFILE_ASCEND && w->input != NULL &&
        !call->exec.kernels->all_finite(x, call->plan->step.n_tokens * n))
        atomic_store_explicit(&call->plan->has_fault, true, memory_order_relaxed);
}

/* Q1, K1, C1, J1, W1: everything that reads x, side by side. */
static void project_inputs(const tamis_dsa_call *call, const float *x)
{
    const tamis_dsa_weights *w = call->weights;
    const tamis_dsa_config *c = call->config;
    const tamis_dsa_workspace *ws = &call->plan->ws;
    tamis_linear_job jobs[7];
    int n = 0;
    check_coded(call, &w->wq_a, x, c->hidden_size);
    jobs[n++] = project(call, &w->wq_a, x, ws->qa, c->q_lora_rank);
    jobs[n++] = project(call, &w->wkv, x, ws->kv, c->head_dim);
    if (call->has_compressor) {
        const int64_t width = tamis_compressor_width(&call->compressor);
        jobs[n++] = project_state(call, &w->compressor.wkv, x, ws->state, 2 * width);
        jobs[n++] = project_state(call, &w->compressor.wgate, x, ws->state + width, 2 * width);
    }
    if (call->has_indexer) {
        const int64_t width = tamis_compressor_width(&call->index_compressor);
        jobs[n++] = project_state(call, &w->index_compressor.wkv, x, ws->index_state, 2 * width);
        jobs[n++] =
            project_state(call, &w->index_compressor.wgate, x, ws->index_state + width, 2 * width);
        jobs[n++] = project(call, &w->index_weights_proj, x, ws->indexer.w_raw, c->index_n_heads);
    }
    tamis_run_projections(&call->exec, call->plan->params.serial, jobs, n);
}

/* Q3, I1: both queries come from the normed low-rank query. */
static void project_queries(const tamis_dsa_call *call)
{
    const tamis_dsa_weights *w = call->weights;
    const tamis_dsa_workspace *ws = &call->plan->ws;
    const tamis_linear_job jobs[2] = {
        project(call, &w->wq_b, ws->qa, ws->q, w->wq_b.rows),
        project(call, &w->index_wq_b, ws->qa, ws->indexer.q, w->index_wq_b.rows),
    };
    tamis_run_projections(&call->exec, call->plan->params.serial, jobs, call->has_indexer ? 2 : 1);
}

/* O1: group g of wo_a's rows sees only the heads of group g; wo_b mixes the groups. The vendor runs
 * wo_a in BF16, its FP8 weights widened. */
static void project_output(const tamis_dsa_call *call, float *out)
{
    const tamis_dsa_config *c = call->config;
    const tamis_dsa_workspace *ws = &call->plan->ws;
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low_width = (int64_t)c->o_groups * c->o_lora_rank;
    tamis_linear_job jobs[TAMIS_DSA_MAX_GROUPS];
    for (int32_t g = 0; g < c->o_groups; g++)
        jobs[g] = (tamis_linear_job){.w = &call->weights->wo_a,
                                     .row_begin = (int64_t)g * c->o_lora_rank,
                                     .row_end = (int64_t)(g + 1) * c->o_lora_rank,
                                     .x = ws->q + g * (q_width / c->o_groups),
                                     .x_stride = q_width,
                                     .y = ws->low + (int64_t)g * c->o_lora_rank,
                                     .y_stride = low_width,
                                     .n_tokens = call->plan->step.n_tokens,
                                     .keep_input = call->exec.profile == TAMIS_PROFILE_OFFICIAL};
    check_coded(call, &call->weights->wo_a, ws->q, q_width);
    tamis_linear_run(&call->exec, jobs, c->o_groups);
    check_coded(call, &call->weights->wo_b, ws->low, low_width);
    jobs[0] = project(call, &call->weights->wo_b, ws->low, out, c->hidden_size);
    tamis_linear_run(&call->exec, jobs, 1);
}

/* Misuse that would corrupt memory or give wrong numbers; cheap beside one matrix row. */
static tamis_status check_call(const tamis_dsa_layer *layer, int32_t layer_idx,
                               const tamis_dsa_plan *plan, const tamis_dsa_caches *caches,
                               const tamis_team *team, tamis_error *err)
{
    if (plan->layers != caches->layers)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: the plan belongs to other caches");
    if (layer_idx < 0 || layer_idx >= plan->n_layers)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: layer_idx is %d, allowed 0..%d",
                          layer_idx, plan->n_layers - 1);
    if (team == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: team is NULL");
    if (tamis_team_size(team) != plan->params.n_threads)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: the team has %d threads, the plan was opened for %d",
                          tamis_team_size(team), plan->params.n_threads);
    if (!tamis_dsa_config_equal(&layer->config, &plan->layers[layer_idx]))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: the config differs from that of layer %d of the caches",
                          layer_idx);
    if (!plan->is_planned)
        return tamis_fail(err, TAMIS_STATUS_STATE, "layer: no step is planned");
    TAMIS_TRY(tamis_dsa_layer_check(layer, err));
    return tamis_dsa_profile_check(layer, plan->numerics, "layer", err);
}

static int profile_kind(const tamis_dsa_config *config)
{
    return config->compress_ratio == 0 ? 0 : config->compress_ratio == 4 ? 1 : 2;
}

static void book(const tamis_dsa_call *call, tamis_attn_stage stage, uint64_t *since)
{
    tamis_profile_add(call->plan->profile, profile_kind(call->config), stage, since);
}

static tamis_status tell_fault(const tamis_dsa_plan *plan, int32_t layer_idx, tamis_error *err)
{
    if (atomic_load_explicit(&plan->has_fault, memory_order_relaxed))
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "layer %d: attention met a NaN or an infinity in its input or weights",
                          layer_idx);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_dsa_preprocess(const tamis_dsa_layer *layer, int32_t layer_idx,
                                  tamis_dsa_plan *plan, tamis_dsa_caches *caches, const float *x,
                                  tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(check_call(layer, layer_idx, plan, caches, team, err));
    tamis_dsa_call call = tamis_dsa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    atomic_store_explicit(&plan->has_fault, false, memory_order_relaxed);
    project_inputs(&call, x);
    book(&call, TAMIS_STAGE_PROJECT_IN, &clock);
    tamis_dsa_prepare_inputs(&call);
    book(&call, TAMIS_STAGE_ROWS, &clock);
    project_queries(&call);
    book(&call, TAMIS_STAGE_PROJECT_Q, &clock);
    tamis_dsa_close_rows_and_rotate(&call);
    book(&call, TAMIS_STAGE_ROWS, &clock);
    plan->preprocessed = layer_idx;
    return tell_fault(plan, layer_idx, err);
}

tamis_status tamis_dsa_attend(const tamis_dsa_layer *layer, int32_t layer_idx, tamis_dsa_plan *plan,
                              tamis_dsa_caches *caches, float *out, tamis_team *team,
                              tamis_error *err)
{
    TAMIS_TRY(check_call(layer, layer_idx, plan, caches, team, err));
    if (plan->preprocessed != layer_idx)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "layer %d: attend comes after preprocess of the same layer and step, the "
                          "last one was of layer %d (-1: none)",
                          layer_idx, plan->preprocessed);
    tamis_dsa_call call = tamis_dsa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    plan->preprocessed = -1;
    if (call.has_indexer)
        tamis_dsa_select(&call);
    book(&call, TAMIS_STAGE_SELECT, &clock);
    tamis_dsa_run_attend(&call);
    book(&call, TAMIS_STAGE_ATTEND, &clock);
    tamis_dsa_keep_history(&call);
    book(&call, TAMIS_STAGE_ROWS, &clock);
    project_output(&call, out);
    book(&call, TAMIS_STAGE_PROJECT_OUT, &clock);
    tamis_clear_padding(&plan->step, out, layer->config.hidden_size);
    return tell_fault(plan, layer_idx, err);
}

tamis_status tamis_dsa_forward(const tamis_dsa_layer *layer, int32_t layer_idx,
                               tamis_dsa_plan *plan, tamis_dsa_caches *caches, const float *x,
                               float *out, tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(tamis_check_apart(
        x, out, (int64_t)plan->step.n_input_tokens * layer->config.hidden_size, err));
    TAMIS_TRY(tamis_dsa_preprocess(layer, layer_idx, plan, caches, x, team, err));
    return tamis_dsa_attend(layer, layer_idx, plan, caches, out, team, err);
}
