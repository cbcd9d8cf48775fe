#include "model/v4.h"

#include <stdatomic.h>
#include <string.h>

#include "core/size.h"
#include "model/hyper_connection.h"

void tamis_v4_layout(tamis_v4 *v4, tamis_arena *arena)
{
    const tamis_model_config *c = v4->config;
    const size_t n_tokens = (size_t)v4->max_tokens, hidden = (size_t)c->hidden_size;
    const size_t hc = tamis_hc_scratch_floats(c), moe = tamis_moe_scratch_floats(c);
    v4->streams = tamis_arena_take(arena, n_tokens * (size_t)c->hc_mult * hidden, sizeof(float));
    v4->coefs = tamis_arena_take(arena, n_tokens * (size_t)tamis_hc_num_coefs(c), sizeof(float));
    v4->x = tamis_arena_take(arena, n_tokens * hidden, sizeof(float));
    v4->v = tamis_arena_take(arena, n_tokens * hidden, sizeof(float));
    v4->head_x = tamis_arena_take(arena, (size_t)v4->max_logits * hidden, sizeof(float));
    v4->moe.config = c;
    v4->moe.max_tokens = v4->max_tokens;
    tamis_moe_layout(&v4->moe, arena);
    v4->exec.scratch_floats = (size_t)tamis_round_up((int64_t)(hc > moe ? hc : moe), TAMIS_LANES);
    v4->exec.scratch =
        tamis_arena_take(arena, (size_t)v4->n_threads * v4->exec.scratch_floats, sizeof(float));
}

typedef struct v4_pass {
    tamis_v4 *v4;
    const tamis_v4_step *step;
    atomic_bool has_fault;
} v4_pass;

/* Relaxed: the barrier at the end of the pass orders it. */
static bool run(v4_pass *pass, tamis_job_fn fn)
{
    atomic_init(&pass->has_fault, false);
    tamis_team_run_sized(pass->v4->exec.team, pass->step->n_tokens > 1, fn, pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

static void report(v4_pass *pass, bool is_finite)
{
    if (!is_finite)
        atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
}

static void emit(const tamis_v4 *v4, int32_t layer, tamis_tap_stage stage, const void *data,
                 const tamis_v4_step *step, int64_t width)
{
    tamis_tap_emit(&v4->tap, layer, stage, data, step->n_tokens, width);
}

/* ---------------------------------------------------------------- embedding */

/* All streams of a token start as its embedding. */
static void embed_thread(void *arg, int thread_idx, int n_threads)
{
    v4_pass *pass = arg;
    const tamis_v4 *v4 = pass->v4;
    const int64_t hidden = v4->config->hidden_size, m = v4->config->hc_mult;
    int64_t begin, end;
    tamis_team_range(pass->step->n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *streams = v4->streams + t * m * hidden;
        v4->exec.kernels->expand_row(streams, &v4->weights->embed, pass->step->tokens[t]);
        for (int64_t s = 1; s < m; s++)
            memcpy(streams + s * hidden, streams, (size_t)hidden * sizeof *streams);
        report(pass, v4->exec.kernels->all_finite(streams, hidden));
    }
}

/* ---------------------------------------------------------------- layers */

static bool run_attention(tamis_v4 *v4, int32_t i, const tamis_v4_step *step)
{
    const tamis_layer_weights *w = &v4->weights->layers[i];
    const int32_t hidden = v4->config->hidden_size;
    if (!tamis_hc_collapse(&v4->exec, v4->config, &w->hc_attn, w->attn_norm, v4->streams,
                           step->n_tokens, v4->coefs, v4->x))
        return false;
    emit(v4, i, TAMIS_TAP_ATTN_IN, v4->x, step, hidden);
    if (tamis_dsa_forward(&w->dsa, i, step->plan, step->caches, v4->x, v4->v, v4->exec.team,
                          NULL) != TAMIS_STATUS_OK)
        return false;
    if (w->dsa.config.compress_ratio == 4)
        emit(v4, i, TAMIS_TAP_TOPK, tamis_dsa_plan_topk(step->plan), step,
             w->dsa.config.index_topk);
    emit(v4, i, TAMIS_TAP_ATTN_OUT, v4->v, step, hidden);
    return tamis_hc_expand(&v4->exec, v4->config, v4->coefs, v4->v, v4->streams, step->n_tokens);
}

static bool run_experts(tamis_v4 *v4, int32_t i, const tamis_v4_step *step)
{
    const tamis_layer_weights *w = &v4->weights->layers[i];
    const int32_t hidden = v4->config->hidden_size, k = v4->config->num_experts_per_tok;
    if (!tamis_hc_collapse(&v4->exec, v4->config, &w->hc_ffn, w->ffn_norm, v4->streams,
                           step->n_tokens, v4->coefs, v4->x))
        return false;
    emit(v4, i, TAMIS_TAP_FFN_IN, v4->x, step, hidden);
    if (!tamis_moe_forward(&v4->moe, &v4->exec, &w->moe, step->tokens, v4->x, step->n_tokens,
                           v4->v))
        return false;
    emit(v4, i, TAMIS_TAP_EXPERTS, v4->moe.ids, step, k);
    emit(v4, i, TAMIS_TAP_EXPERT_WEIGHTS, v4->moe.weights, step, k);
    emit(v4, i, TAMIS_TAP_FFN_OUT, v4->v, step, hidden);
    if (!tamis_hc_expand(&v4->exec, v4->config, v4->coefs, v4->v, v4->streams, step->n_tokens))
        return false;
    emit(v4, i, TAMIS_TAP_HIDDEN, v4->streams, step, (int64_t)v4->config->hc_mult * hidden);
    return true;
}

/* ---------------------------------------------------------------- head */

static void check_logits_thread(void *arg, int thread_idx, int n_threads)
{
    v4_pass *pass = arg;
    const int64_t n = (int64_t)pass->step->n_logits * pass->v4->config->vocab_size;
    int64_t begin, end;
    tamis_team_range(n, 4096, thread_idx, n_threads, &begin, &end);
    report(pass, pass->v4->exec.kernels->all_finite(pass->step->logits + begin, end - begin));
}

static bool run_head(v4_pass *pass)
{
    const tamis_v4 *v4 = pass->v4;
    const tamis_v4_step *step = pass->step;
    if (step->n_logits == 0)
        return true;
    if (!tamis_hc_head(&v4->exec, v4->config, &v4->weights->hc_head, v4->weights->norm, v4->streams,
                       step->logit_rows, step->n_logits, v4->head_x))
        return false;
    const tamis_linear_job job =
        tamis_linear_full(&v4->weights->head, v4->head_x, step->logits, step->n_logits);
    tamis_linear_run(&v4->exec, &job, 1);
    return run(pass, check_logits_thread);
}

int32_t tamis_v4_forward(tamis_v4 *v4, const tamis_v4_step *step)
{
    v4_pass pass = {.v4 = v4, .step = step};
    if (!run(&pass, embed_thread))
        return TAMIS_V4_FAULT_ENDS;
    for (int32_t i = 0; i < v4->config->num_hidden_layers; i++)
        if (!run_attention(v4, i, step) || !run_experts(v4, i, step))
            return i;
    return run_head(&pass) ? TAMIS_V4_FINE : TAMIS_V4_FAULT_ENDS;
}
