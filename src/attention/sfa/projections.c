/*
 * The linear layers of a V3.2 or GLM layer. What each does with its input and output follows from
 * profile and weight (ops/linear.h) but for the exceptions of docs/numerics-profiles.md: kv_b takes
 * its input as it is, and the indexer's head weights stay f32 in profile official.
 */
#include "attention/common/projections.h"
#include "attention/sfa/stages.h"
#include "ops/linear_inputs.h"

static tamis_linear_job project(const tamis_sfa_call *call, const tamis_matrix *w, const float *x,
                                float *y)
{
    return tamis_linear_full(w, x, y, call->plan->step.n_tokens);
}

/* Jobs over one x side by side, unless it must be quantised in several ways: there is room for one
 * copy. */
static void run_jobs(const tamis_sfa_call *call, const tamis_linear_job *jobs, int64_t n_jobs)
{
    const tamis_matrix *weights[4];
    for (int64_t i = 0; i < n_jobs; i++)
        weights[i] = jobs[i].w;
    const bool is_serial =
        call->plan->params.serial ||
        (call->exec.profile != TAMIS_PROFILE_EXACT && !tamis_linear_shares_input(weights, n_jobs));
    tamis_run_projections(&call->exec, is_serial, jobs, n_jobs);
}

/* J1, W1: what the indexer reads of x. */
static int64_t index_input_jobs(const tamis_sfa_call *call, const float *x, tamis_linear_job *jobs)
{
    const tamis_sfa_weights *w = call->weights;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    if (call->index_key == NULL)
        return 0;
    jobs[0] = project(call, &w->index_wk, x, ws->index_k);
    jobs[1] = project(call, &w->index_weights_proj, x, ws->indexer.w_raw);
    jobs[1].keep_output = call->exec.profile == TAMIS_PROFILE_OFFICIAL;
    return 2;
}

void tamis_sfa_project_index_inputs(const tamis_sfa_call *call, const float *x)
{
    tamis_linear_job jobs[2];
    run_jobs(call, jobs, index_input_jobs(call, x, jobs));
}

void tamis_sfa_project_inputs(const tamis_sfa_call *call, const float *x)
{
    const tamis_sfa_weights *w = call->weights;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    tamis_linear_job jobs[4];
    jobs[0] = project(call, &w->q_a_proj, x, ws->qa);
    jobs[1] = project(call, &w->kv_a_proj, x, ws->kv);
    run_jobs(call, jobs, 2 + index_input_jobs(call, x, jobs + 2));
}

void tamis_sfa_project_index_queries(const tamis_sfa_call *call)
{
    const tamis_sfa_workspace *ws = &call->plan->ws;
    const tamis_linear_job job = project(call, &call->weights->index_wq_b, ws->qa, ws->indexer.q);
    run_jobs(call, &job, call->index_key != NULL ? 1 : 0);
}

void tamis_sfa_project_queries(const tamis_sfa_call *call)
{
    const tamis_sfa_weights *w = call->weights;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    const tamis_linear_job jobs[] = {project(call, &w->q_b_proj, ws->qa, ws->heads),
                                     project(call, &w->index_wq_b, ws->qa, ws->indexer.q)};
    run_jobs(call, jobs, call->index_key != NULL ? 2 : 1);
}

/* q_h . (K_h c) = (q_h K_h) . c, so the query meets the latent itself. */
void tamis_sfa_absorb(const tamis_sfa_call *call)
{
    const tamis_sfa_config *c = call->config;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    const int64_t qk = c->qk_nope_head_dim + c->qk_rope_head_dim, row = tamis_sfa_row_values(c);
    for (int64_t h = 0; h < c->num_heads; h++) {
        const int64_t first = h * (c->qk_nope_head_dim + c->v_head_dim);
        ws->jobs[h] = (tamis_linear_job){.w = &call->weights->kv_b_proj,
                                         .row_begin = first,
                                         .row_end = first + c->qk_nope_head_dim,
                                         .x = ws->heads + h * qk,
                                         .x_stride = c->num_heads * qk,
                                         .y = ws->q + h * row,
                                         .y_stride = c->num_heads * row,
                                         .n_tokens = call->plan->step.n_tokens,
                                         .keep_input = true};
    }
    tamis_linear_t_run(&call->exec, ws->jobs, c->num_heads);
}

void tamis_sfa_project_output(const tamis_sfa_call *call, float *out)
{
    const tamis_sfa_config *c = call->config;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    const int64_t row = tamis_sfa_row_values(c);
    for (int64_t h = 0; h < c->num_heads; h++) {
        const int64_t end = (h + 1) * (c->qk_nope_head_dim + c->v_head_dim);
        ws->jobs[h] = (tamis_linear_job){.w = &call->weights->kv_b_proj,
                                         .row_begin = end - c->v_head_dim,
                                         .row_end = end,
                                         .x = ws->q + h * c->kv_lora_rank,
                                         .x_stride = c->num_heads * row,
                                         .y = ws->heads + h * c->v_head_dim,
                                         .y_stride = (int64_t)c->num_heads * c->v_head_dim,
                                         .n_tokens = call->plan->step.n_tokens,
                                         .keep_input = true};
    }
    tamis_linear_run(&call->exec, ws->jobs, c->num_heads);
    if (call->weights->o_proj.input != NULL) /* its int8 codes would hide a NaN */
        tamis_sfa_report(call, call->exec.kernels->all_finite(ws->heads, call->plan->step.n_tokens *
                                                                             (int64_t)c->num_heads *
                                                                             c->v_head_dim));
    const tamis_linear_job job = project(call, &call->weights->o_proj, ws->heads, out);
    tamis_linear_run(&call->exec, &job, 1);
}
