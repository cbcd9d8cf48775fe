/*
 * One DeepSeek-V3.2 or GLM attention layer: MLA in absorbed form over the tokens that the indexer
 * selects.
 *
 *   x -> q_a -> norm -> q_b -> nope part -> times K-up of the head ---.
 *                           -> rope part -> rotation -----------------+-> q
 *   x -> kv_a -> norm of the latent, rotation of the key part -> cache row, key and value at once
 *   x -> indexer: wk -> LayerNorm, rotation -> key row; weights; q_a's norm -> wq_b, rotation
 *        -> scores over all tokens -> top-k -> list of cache rows
 *   attention over the list -> latent -> times V-up of the head -> o_proj -> out
 *
 * K-up and V-up are the two parts of each head in kv_b_proj, read in place. Rows are rounded to the
 * cache's type before anything reads them. Source: V3.2 inference/model.py (MLA, Indexer);
 * sfa_v1.py forward; docs/numerics.md, docs/numerics-profiles.md.
 */
#include "attention/common/layer_checks.h"
#include "attention/common/plan_view.h"
#include "attention/sfa/stages.h"
#include "core/error.h"

/* ---------------------------------------------------------------- checks */

/* Misuse that would corrupt memory or give wrong numbers; cheap beside one matrix row. */
tamis_status tamis_sfa_check_call(const tamis_sfa_layer *layer, int32_t layer_idx,
                                  const tamis_sfa_plan *plan, const tamis_sfa_caches *caches,
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
    if (!tamis_sfa_config_equal(&layer->config, &plan->layers[layer_idx]))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: the config differs from that of layer %d of the caches",
                          layer_idx);
    if (!plan->is_planned)
        return tamis_fail(err, TAMIS_STATUS_STATE, "layer: no step is planned");
    TAMIS_TRY(tamis_sfa_layer_check(layer, err));
    return tamis_sfa_profile_check(layer, plan->numerics, "layer", err);
}

/* Whether the layer has come as far as `needed` and no further than `latest`. */
static tamis_status check_progress(const tamis_sfa_plan *plan, int32_t layer_idx,
                                   tamis_sfa_progress needed, tamis_sfa_progress latest,
                                   const char *what, tamis_error *err)
{
    static const char *const names[] = {"nothing", "preprocess", "select", "attend"};
    const tamis_sfa_progress seen =
        plan->running_layer == layer_idx ? plan->progress : TAMIS_SFA_NOTHING;
    if (seen >= needed && seen <= latest)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_STATE, "layer %d: %s comes after %s, the last one was %s",
                      layer_idx, what, names[needed], names[seen]);
}

/* A layer without indexer uses the nearest one before it: of this step, and not a later layer's. */
static tamis_status check_selection(const tamis_sfa_plan *plan, int32_t layer_idx, tamis_error *err)
{
    int32_t nearest = layer_idx;
    if (!plan->layers[layer_idx].reuse_topk)
        return TAMIS_STATUS_OK;
    while (!tamis_sfa_has_indexer(&plan->layers[nearest]))
        nearest--; /* there is one, or the plan had not been opened */
    if (plan->selected_by == nearest)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_STATE,
                      "layer %d: reuse_topk needs the selection of layer %d in this step, the "
                      "latest is that of layer %d (-1: none)",
                      layer_idx, nearest, plan->selected_by);
}

static tamis_status check_indices(const tamis_sfa_plan *plan, const int32_t *indices,
                                  int32_t num_indices, tamis_error *err)
{
    if (num_indices < 0 || num_indices > plan->longest_list)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "attend: num_indices is %d, allowed 0..%d",
                          num_indices, plan->longest_list);
    for (int32_t t = 0; t < plan->step.n_tokens; t++)
        for (int32_t i = 0; i < num_indices; i++) {
            const int32_t pos = indices[(int64_t)t * num_indices + i];
            if (pos < -1 || pos > plan->step.tok_pos[t])
                return tamis_fail(err, TAMIS_STATUS_INVALID,
                                  "attend: token %d, entry %d is position %d, allowed -1..%d", t, i,
                                  pos, plan->step.tok_pos[t]);
        }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_sfa_finish(tamis_sfa_plan *plan, int32_t layer_idx, tamis_sfa_progress progress,
                              tamis_error *err)
{
    plan->running_layer = layer_idx;
    plan->progress = progress;
    if (atomic_load_explicit(&plan->has_fault, memory_order_relaxed))
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "layer %d: attention met a NaN or an infinity in its input or weights",
                          layer_idx);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- operators */

void tamis_sfa_book(const tamis_sfa_call *call, tamis_attn_stage stage, uint64_t *since)
{
    tamis_profile_add(call->plan->profile, call->config->reuse_topk ? 1 : 0, stage, since);
}

tamis_status tamis_sfa_preprocess(const tamis_sfa_layer *layer, int32_t layer_idx,
                                  tamis_sfa_plan *plan, tamis_sfa_caches *caches, const float *x,
                                  tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(tamis_sfa_check_call(layer, layer_idx, plan, caches, team, err));
    tamis_sfa_call call = tamis_sfa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    atomic_store_explicit(&plan->has_fault, false, memory_order_relaxed);
    tamis_sfa_project_inputs(&call, x);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_IN, &clock);
    tamis_sfa_store_rows(&call, x);
    tamis_sfa_book(&call, TAMIS_STAGE_ROWS, &clock);
    tamis_sfa_project_queries(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_Q, &clock);
    tamis_sfa_prepare_queries(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_ROWS, &clock);
    tamis_sfa_absorb(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_Q, &clock);
    return tamis_sfa_finish(plan, layer_idx, TAMIS_SFA_PREPROCESSED, err);
}

tamis_status tamis_sfa_select(const tamis_sfa_layer *layer, int32_t layer_idx, tamis_sfa_plan *plan,
                              tamis_sfa_caches *caches, tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(tamis_sfa_check_call(layer, layer_idx, plan, caches, team, err));
    TAMIS_TRY(
        check_progress(plan, layer_idx, TAMIS_SFA_PREPROCESSED, TAMIS_SFA_SELECTED, "select", err));
    TAMIS_TRY(check_selection(plan, layer_idx, err));
    tamis_sfa_call call = tamis_sfa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    if (call.index_key != NULL) {
        tamis_sfa_run_select(&call);
        plan->selected_by = layer_idx;
    }
    tamis_sfa_book(&call, TAMIS_STAGE_SELECT, &clock);
    return tamis_sfa_finish(plan, layer_idx, TAMIS_SFA_SELECTED, err);
}

tamis_status tamis_sfa_attend(const tamis_sfa_layer *layer, int32_t layer_idx, tamis_sfa_plan *plan,
                              tamis_sfa_caches *caches, const int32_t *indices, int32_t num_indices,
                              float *lse, tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(tamis_sfa_check_call(layer, layer_idx, plan, caches, team, err));
    TAMIS_TRY(check_progress(plan, layer_idx,
                             indices != NULL ? TAMIS_SFA_PREPROCESSED : TAMIS_SFA_SELECTED,
                             TAMIS_SFA_SELECTED, "attend", err));
    if (indices != NULL)
        TAMIS_TRY(check_indices(plan, indices, num_indices, err));
    tamis_sfa_call call = tamis_sfa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    tamis_sfa_run_attend(&call, indices, num_indices, lse);
    tamis_sfa_book(&call, TAMIS_STAGE_ATTEND, &clock);
    return tamis_sfa_finish(plan, layer_idx, TAMIS_SFA_ATTENDED, err);
}

tamis_status tamis_sfa_output(const tamis_sfa_layer *layer, int32_t layer_idx, tamis_sfa_plan *plan,
                              tamis_sfa_caches *caches, float *out, tamis_team *team,
                              tamis_error *err)
{
    TAMIS_TRY(tamis_sfa_check_call(layer, layer_idx, plan, caches, team, err));
    TAMIS_TRY(
        check_progress(plan, layer_idx, TAMIS_SFA_ATTENDED, TAMIS_SFA_ATTENDED, "output", err));
    tamis_sfa_call call = tamis_sfa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    tamis_sfa_project_output(&call, out);
    tamis_clear_padding(&plan->step, out, layer->config.hidden_size);
    tamis_sfa_report(&call, call.exec.kernels->all_finite(out, (int64_t)plan->step.n_tokens *
                                                                   layer->config.hidden_size));
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_OUT, &clock);
    return tamis_sfa_finish(plan, layer_idx, TAMIS_SFA_NOTHING, err);
}

tamis_status tamis_sfa_forward(const tamis_sfa_layer *layer, int32_t layer_idx,
                               tamis_sfa_plan *plan, tamis_sfa_caches *caches, const float *x,
                               float *out, tamis_team *team, tamis_error *err)
{
    TAMIS_TRY(tamis_check_apart(
        x, out, (int64_t)plan->step.n_input_tokens * layer->config.hidden_size, err));
    TAMIS_TRY(tamis_sfa_preprocess(layer, layer_idx, plan, caches, x, team, err));
    TAMIS_TRY(tamis_sfa_select(layer, layer_idx, plan, caches, team, err));
    TAMIS_TRY(tamis_sfa_attend(layer, layer_idx, plan, caches, NULL, 0, NULL, team, err));
    return tamis_sfa_output(layer, layer_idx, plan, caches, out, team, err);
}
