/*
 * Ascend's fused preprocessing as one operator. Everything but the two int8 products, their FP16
 * step and where the second one's input comes from is shared with the unfused path: stages.c looks
 * at call->mlapo. Source: mla_preprocess_mix_bf16_qdown.hpp; spec: docs/numerics-profiles.md.
 */
#include <string.h>

#include "attention/sfa/stages.h"
#include "core/error.h"
#include "core/size.h"

/* ---------------------------------------------------------------- int8 products */

/* plan->inputs has room for f32 rows as wide, see layer_input_need in plan.c. */
void tamis_mlapo_quantize(const tamis_sfa_call *call, const tamis_matrix *w, const float *x,
                          int64_t token)
{
    call->exec.kernels->quantize_i8_static((int8_t *)call->plan->inputs + token * w->cols, x,
                                           w->cols, w->input->input_scale, w->input->input_offset,
                                           true);
}

typedef struct int8_pass {
    const tamis_sfa_call *call;
    const tamis_matrix *w;
    int64_t row_begin, row_end; /* of w */
    const float *x;             /* to quantise; or NULL */
    float *y;                   /* [n_tokens][row_end - row_begin] */
} int8_pass;

static void quantize_thread(void *arg, int thread_idx, int n_threads)
{
    const int8_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range(pass->call->plan->step.n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        tamis_mlapo_quantize(pass->call, pass->w, pass->x + t * pass->w->cols, t);
}

static void quantize_inputs(const tamis_sfa_call *call, const tamis_matrix *w, const float *x)
{
    int8_pass pass = {.call = call, .w = w, .x = x};
    tamis_team_run_sized(call->exec.team,
                         tamis_exec_is_worth_waking(call->plan->step.n_tokens, w->cols),
                         quantize_thread, &pass);
}

static void multiply_thread(void *arg, int thread_idx, int n_threads)
{
    const int8_pass *pass = arg;
    const tamis_matrix *w = pass->w;
    const int64_t n_rows = pass->row_end - pass->row_begin;
    const int64_t n_tokens = pass->call->plan->step.n_tokens;
    int64_t begin, end;
    tamis_team_range(n_rows, TAMIS_LINEAR_ROWS, thread_idx, n_threads, &begin, &end);
    if (begin == end)
        return;
    pass->call->exec.kernels->linear_i8(
        pass->y + begin, n_rows, pass->call->plan->inputs, w->cols, NULL, n_tokens, w,
        w->input->deq_scale, w->input->quant_bias, pass->row_begin + begin, pass->row_begin + end,
        tamis_exec_scratch(&pass->call->exec, thread_idx));
    for (int64_t t = 0; t < n_tokens; t++)
        tamis_exec_round(&pass->call->exec, pass->y + t * n_rows + begin, end - begin);
}

/* y = rows [row_begin, row_end) of w times the quantised rows in plan->inputs. */
static void multiply(const tamis_sfa_call *call, const tamis_matrix *w, int64_t row_begin,
                     int64_t row_end, float *y)
{
    int8_pass pass = {.call = call, .w = w, .row_begin = row_begin, .row_end = row_end, .y = y};
    const int64_t n_products = (row_end - row_begin) * w->cols * call->plan->step.n_tokens;
    tamis_team_run_sized(call->exec.team, n_products > TAMIS_EXEC_SMALL_PASS, multiply_thread,
                         &pass);
}

/* ---------------------------------------------------------------- outputs */

/* n rows of `width` floats; to NULL: not wanted. */
static void copy_rows(float *to, const float *from, int64_t from_stride, int64_t n, int64_t width)
{
    for (int64_t i = 0; to != NULL && i < n; i++)
        memcpy(to + i * width, from + i * from_stride, (size_t)width * sizeof *to);
}

/* Rotated parts, which are pairs here. */
static void copy_rotated(float *to, const float *from, int64_t from_stride, int64_t n, int64_t rope,
                         bool halves)
{
    if (to == NULL || !halves) {
        copy_rows(to, from, from_stride, n, rope);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        tamis_rope_pairs_to_halves(to + i * rope, from + i * from_stride, (int32_t)rope);
}

static void give_outputs(const tamis_sfa_call *call, const tamis_mlapo_outputs *out)
{
    const tamis_sfa_config *c = call->config;
    const tamis_sfa_workspace *ws = &call->plan->ws;
    const int64_t n = call->plan->step.n_tokens, n_heads = n * c->num_heads;
    const int64_t row = tamis_sfa_row_values(c), rope = c->qk_rope_head_dim;
    copy_rows(out->q_c, ws->qa, c->q_lora_rank, n, c->q_lora_rank);
    copy_rows(out->query_nope, ws->q, row, n_heads, c->kv_lora_rank);
    copy_rotated(out->query_rope, ws->q + c->kv_lora_rank, row, n_heads, rope, out->halves);
    copy_rows(out->latent, ws->kv, row, n, c->kv_lora_rank);
    copy_rotated(out->key_rope, ws->kv + c->kv_lora_rank, row, n, rope, out->halves);
}

/* ---------------------------------------------------------------- operator */

static tamis_status check_shape(const char *name, const tamis_matrix *w, int64_t rows, int64_t cols,
                                tamis_error *err)
{
    if (w->rows == rows && w->cols == cols)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID,
                      "mlapo: %s is [%lld][%lld], the layer needs [%lld][%lld]", name,
                      (long long)w->rows, (long long)w->cols, (long long)rows, (long long)cols);
}

static tamis_status check_mlapo(const tamis_mlapo *mlapo, const tamis_sfa_plan *plan,
                                const tamis_sfa_config *c, tamis_error *err)
{
    const int64_t qk = c->qk_nope_head_dim + c->qk_rope_head_dim;
    if (mlapo == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "mlapo: it is NULL");
    if (plan->numerics != TAMIS_PROFILE_ASCEND)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "mlapo: the caches' profile is %s, allowed ascend",
                          tamis_profile_name(plan->numerics));
    TAMIS_TRY(check_shape("qkv_a_proj", &mlapo->qkv_a_proj,
                          tamis_sfa_row_values(c) + c->q_lora_rank, c->hidden_size, err));
    return check_shape("q_b_proj", &mlapo->q_b_proj, c->num_heads * qk, c->q_lora_rank, err);
}

/* x -> kv, q; the indexer's projections of x. */
static void project_inputs(const tamis_sfa_call *call, const float *x)
{
    const tamis_matrix *w = &call->mlapo->qkv_a_proj;
    const int64_t kv_rows = tamis_sfa_row_values(call->config);
    quantize_inputs(call, w, x);
    multiply(call, w, 0, kv_rows, call->plan->ws.kv);
    multiply(call, w, kv_rows, w->rows, call->plan->ws.qa);
    tamis_sfa_project_index_inputs(call, x);
}

/* The quantised queries are in place; the indexer reads the BF16 ones. */
static void project_queries(const tamis_sfa_call *call)
{
    const tamis_matrix *w = &call->mlapo->q_b_proj;
    multiply(call, w, 0, w->rows, call->plan->ws.heads);
    tamis_sfa_project_index_queries(call);
}

tamis_status tamis_mlapo_preprocess(const tamis_mlapo *mlapo, const tamis_sfa_layer *layer,
                                    int32_t layer_idx, tamis_sfa_plan *plan,
                                    tamis_sfa_caches *caches, const float *x,
                                    const tamis_mlapo_outputs *outputs, tamis_team *team,
                                    tamis_error *err)
{
    TAMIS_TRY(tamis_sfa_check_call(layer, layer_idx, plan, caches, team, err));
    TAMIS_TRY(check_mlapo(mlapo, plan, &layer->config, err));
    tamis_sfa_call call = tamis_sfa_call_make(layer, layer_idx, plan, caches, team);
    uint64_t clock = tamis_profile_clock(plan->profile);
    call.mlapo = mlapo;
    atomic_store_explicit(&plan->has_fault, false, memory_order_relaxed);
    project_inputs(&call, x);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_IN, &clock);
    tamis_sfa_store_rows(&call, x);
    tamis_sfa_book(&call, TAMIS_STAGE_ROWS, &clock);
    project_queries(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_Q, &clock);
    tamis_sfa_prepare_queries(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_ROWS, &clock);
    tamis_sfa_absorb(&call);
    tamis_sfa_book(&call, TAMIS_STAGE_PROJECT_Q, &clock);
    if (outputs != NULL)
        give_outputs(&call, outputs);
    return tamis_sfa_finish(plan, layer_idx, TAMIS_SFA_PREPROCESSED, err);
}
