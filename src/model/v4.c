#include "model/v4.h"

#include <assert.h>
#include <stdio.h>

#include "core/error.h"
#include "core/mem.h"
#include "model/hyper_connection.h"

/* T = max_num_batched_tokens, m = hc_mult. */
typedef struct tamis_v4 {
    tamis_net base;
    float *streams; /* [T][m][H] */
    float *coefs;   /* [T][(2 + m) m] of the running site */
    tamis_dsa_caches *caches;
    tamis_dsa_plan *plan;
    /* with params.draft */
    float *normed; /* [T][m][H] streams after hnorm */
    tamis_dsa_plan *draft_plan;
} tamis_v4;

/* ---------------------------------------------------------------- open and close */

/* Whether the profile runs every layer's weights. */
static tamis_status check_layers(const tamis_net *net, tamis_error *err)
{
    char object[32];
    for (int32_t i = 0; i < tamis_net_num_layers(net); i++) {
        snprintf(object, sizeof object, "layer %d", i);
        TAMIS_TRY(tamis_dsa_profile_check(&net->weights->layers[i].dsa, net->params.cache.profile,
                                          object, err));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status collect_layers(const tamis_net *net, tamis_dsa_config **out, tamis_error *err)
{
    const size_t n = (size_t)tamis_net_num_layers(net);
    tamis_dsa_config *layers = *out = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *layers);
    if (layers == NULL)
        return tamis_fail_memory(err, "layers", n * sizeof *layers);
    for (size_t i = 0; i < n; i++)
        layers[i] = net->weights->layers[i].dsa.config;
    return TAMIS_STATUS_OK;
}

static tamis_status measure_plan(const tamis_net *net, const tamis_dsa_config *layers,
                                 const tamis_plan_params *params, uint64_t *bytes, tamis_error *err)
{
    const tamis_cache_params *cache = &net->params.cache;
    return tamis_dsa_plan_measure(layers, tamis_net_num_layers(net), params, cache, bytes, err);
}

static tamis_status measure_v4(const tamis_net *net, tamis_net_bytes *out, tamis_error *err)
{
    const tamis_plan_params draft = tamis_net_draft_plan_params(net);
    tamis_dsa_config *layers = NULL;
    uint64_t draft_bytes = 0;
    tamis_status st;
    TAMIS_TRY(check_layers(net, err));
    TAMIS_TRY(collect_layers(net, &layers, err));
    TAMIS_TRY_GOTO(tamis_dsa_caches_measure(layers, tamis_net_num_layers(net), &net->params.cache,
                                            &out->caches, err));
    TAMIS_TRY_GOTO(measure_plan(net, layers, &net->params.plan, &out->workspace, err));
    if (net->params.draft)
        TAMIS_TRY_GOTO(measure_plan(net, layers, &draft, &draft_bytes, err));
    out->workspace += draft_bytes;
fail:
    tamis_mem_free(layers);
    return st;
}

static tamis_status open_v4(tamis_net *net, tamis_error *err)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    tamis_dsa_config *layers = NULL;
    TAMIS_TRY(check_layers(net, err));
    TAMIS_TRY(collect_layers(net, &layers, err));
    const tamis_plan_params draft = tamis_net_draft_plan_params(net);
    const tamis_status st = tamis_dsa_caches_open(&v4->caches, layers, tamis_net_num_layers(net),
                                                  &net->params.cache, err);
    tamis_mem_free(layers);
    TAMIS_TRY(st);
    net->store = tamis_dsa_caches_store(v4->caches);
    net->layer_caches = tamis_dsa_caches_layers(v4->caches);
    if (net->params.draft)
        TAMIS_TRY(tamis_dsa_plan_open(&v4->draft_plan, v4->caches, &draft, err));
    return tamis_dsa_plan_open(&v4->plan, v4->caches, &net->params.plan, err);
}

static void close_v4(tamis_net *net)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    tamis_dsa_plan_close(&v4->plan);
    tamis_dsa_plan_close(&v4->draft_plan);
    tamis_dsa_caches_close(&v4->caches);
}

static size_t layout_v4(tamis_net *net, tamis_arena *arena)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    const tamis_model_config *c = net->config;
    const size_t n_tokens = (size_t)net->params.plan.max_num_batched_tokens;
    const size_t n_values = n_tokens * (size_t)c->hc_mult * (size_t)c->hidden_size;
    v4->streams = tamis_arena_take(arena, n_values, sizeof(float));
    v4->normed = net->params.draft ? tamis_arena_take(arena, n_values, sizeof(float)) : NULL;
    v4->coefs = tamis_arena_take(arena, n_tokens * (size_t)tamis_hc_num_coefs(c), sizeof(float));
    return tamis_hc_scratch_floats(c);
}

static tamis_status plan_v4(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_dsa_plan_build(((tamis_v4 *)net)->plan, batch, err);
}

static tamis_status plan_draft_v4(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_dsa_plan_build(((tamis_v4 *)net)->draft_plan, batch, err);
}

tamis_dsa_caches *tamis_v4_caches(tamis_net *net)
{
    return ((tamis_v4 *)net)->caches;
}
tamis_dsa_plan *tamis_v4_plan(tamis_net *net)
{
    return ((tamis_v4 *)net)->plan;
}

/* ---------------------------------------------------------------- forward */

/* Streams -> the sublayer's normed input net->x, and its output net->v -> streams. */
static bool collapse(tamis_v4 *v4, const tamis_hc_weights *site, const float *norm,
                     const tamis_net_step *step)
{
    const tamis_net *net = &v4->base;
    return tamis_hc_collapse(&net->exec, net->config, site, norm, v4->streams, step->n_tokens,
                             v4->coefs, net->x);
}

static bool expand(tamis_v4 *v4, const tamis_net_step *step)
{
    const tamis_net *net = &v4->base;
    return tamis_hc_expand(&net->exec, net->config, v4->coefs, net->v, v4->streams, step->n_tokens);
}

/* x -> v, with the moments that a watch sees. */
static bool attend(tamis_v4 *v4, int32_t i, tamis_dsa_plan *plan)
{
    const tamis_net *net = &v4->base;
    const tamis_dsa_layer *layer = &net->weights->layers[i].dsa;
    tamis_team *team = net->exec.team;
    return tamis_net_tell(net, TAMIS_NET_LAYER_BEGINS, i) &&
           tamis_dsa_preprocess(layer, i, plan, v4->caches, net->x, team, NULL) ==
               TAMIS_STATUS_OK &&
           tamis_net_tell(net, TAMIS_NET_ROWS_WRITTEN, i) &&
           tamis_dsa_attend(layer, i, plan, v4->caches, net->v, team, NULL) == TAMIS_STATUS_OK &&
           tamis_net_tell(net, TAMIS_NET_LAYER_DONE, i);
}

static bool run_attention(tamis_v4 *v4, int32_t i, tamis_dsa_plan *plan, const tamis_net_step *step)
{
    tamis_net *net = &v4->base;
    const tamis_layer_weights *w = &net->weights->layers[i];
    const int32_t hidden = net->config->hidden_size;
    if (!collapse(v4, &w->hc_attn, w->attn_norm, step))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_IN, net->x, step, hidden);
    if (!attend(v4, i, plan))
        return false;
    if (w->dsa.config.compress_ratio == 4)
        tamis_net_emit(net, i, TAMIS_TAP_TOPK, tamis_dsa_plan_topk(plan), step,
                       w->dsa.config.index_topk);
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_OUT, net->v, step, hidden);
    return expand(v4, step);
}

static bool run_experts(tamis_v4 *v4, int32_t i, const tamis_net_step *step)
{
    tamis_net *net = &v4->base;
    const tamis_layer_weights *w = &net->weights->layers[i];
    if (!collapse(v4, &w->hc_ffn, w->ffn_norm, step) || !tamis_net_experts(net, i, step) ||
        !expand(v4, step))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_HIDDEN, v4->streams, step,
                   (int64_t)net->config->hc_mult * net->config->hidden_size);
    return true;
}

static bool run_head(const tamis_v4 *v4, const tamis_net_step *step)
{
    const tamis_net *net = &v4->base;
    if (step->n_logits == 0)
        return true;
    return tamis_hc_head(&net->exec, net->config, &net->weights->hc_head, net->weights->norm,
                         v4->streams, step->logit_rows, step->n_logits, net->head_x) &&
           tamis_net_head(net, &net->weights->head, step);
}

static int32_t forward_v4(tamis_net *net, const tamis_net_step *step)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    if (!tamis_net_embed(net, &net->weights->embed, step, net->config->hc_mult, v4->streams))
        return TAMIS_NET_FAULT_ENDS;
    for (int32_t i = 0; i < net->config->num_hidden_layers; i++)
        if (!run_attention(v4, i, v4->plan, step) || !run_experts(v4, i, step))
            return i;
    return run_head(v4, step) ? TAMIS_NET_FINE : TAMIS_NET_FAULT_ENDS;
}

/* ---------------------------------------------------------------- MTP block */

typedef struct mtp_pass {
    const tamis_v4 *v4;
    int64_t n_tokens;
} mtp_pass;

static void add_embedding_thread(void *arg, int thread_idx, int n_threads)
{
    const mtp_pass *pass = arg;
    const tamis_net *net = &pass->v4->base;
    const int64_t m = net->config->hc_mult, hidden = net->config->hidden_size;
    int64_t begin, end;
    tamis_team_range(pass->n_tokens * m, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        float *stream = pass->v4->streams + row * hidden;
        net->exec.kernels->add(stream, net->v + row / m * hidden, hidden);
        tamis_exec_round(&net->exec, stream, hidden);
    }
}

/*
 * X_s = e_proj . enorm(embedding of the next token) + h_proj . hnorm(X_s), in place. The embedding
 * is not masked at position 0. A NaN in the projections shows in the first collapse.
 */
static int32_t enter_mtp(tamis_v4 *v4, const tamis_net_step *step)
{
    tamis_net *net = &v4->base;
    const tamis_mtp_weights *w = &net->weights->mtp;
    const int64_t n_tokens = step->n_tokens, n_rows = n_tokens * net->config->hc_mult;
    const int64_t hidden = net->config->hidden_size;
    if (!tamis_net_embed(net, &w->embed, step, 1, net->x))
        return tamis_net_mtp_fault(net, &w->embed, &net->weights->embed);
    if (!tamis_net_norm_rows(net, net->x, w->enorm, n_tokens, net->x, hidden) ||
        !tamis_net_norm_rows(net, v4->streams, w->hnorm, n_rows, v4->normed, hidden))
        return net->weights->n_layers;
    const tamis_linear_job jobs[] = {
        tamis_linear_full(&w->e_proj, net->x, net->v, n_tokens),
        tamis_linear_full(&w->h_proj, v4->normed, v4->streams, n_rows)};
    tamis_linear_run(&net->exec, jobs, 2);
    mtp_pass pass = {v4, n_tokens};
    tamis_team_run_sized(net->exec.team,
                         tamis_exec_is_worth_waking(n_tokens, (int64_t)net->config->hc_mult *
                                                                  net->config->hidden_size),
                         add_embedding_thread, &pass);
    return TAMIS_NET_FINE;
}

static int32_t run_mtp_head(const tamis_v4 *v4, const tamis_net_step *step)
{
    const tamis_net *net = &v4->base;
    const tamis_mtp_weights *w = &net->weights->mtp;
    if (step->n_logits == 0)
        return TAMIS_NET_FINE;
    if (!tamis_hc_head(&net->exec, net->config, &w->hc_head, w->norm, v4->streams, step->logit_rows,
                       step->n_logits, net->head_x))
        return net->weights->n_layers;
    return tamis_net_head(net, &w->head, step)
               ? TAMIS_NET_FINE
               : tamis_net_mtp_fault(net, &w->head, &net->weights->head);
}

/* Uses up the streams of the last forward, or of the call before, and leaves its own. */
static int32_t draft_v4(tamis_net *net, const tamis_net_draft *draft)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    const tamis_net_step step = tamis_net_draft_step(draft);
    const int32_t layer = net->weights->n_layers;
    tamis_dsa_plan *plan = draft->over_step ? v4->plan : v4->draft_plan;
    assert(tamis_dsa_plan_num_tokens(plan) == draft->n_tokens);
    int32_t result = enter_mtp(v4, &step);
    if (result != TAMIS_NET_FINE)
        return result;
    if (!run_attention(v4, layer, plan, &step) || !run_experts(v4, layer, &step))
        return layer;
    result = run_mtp_head(v4, &step);
    tamis_net_keep_rows(v4->streams,
                        (size_t)net->config->hc_mult * (size_t)net->config->hidden_size *
                            sizeof(float),
                        draft->rows, draft->n_rows);
    return result;
}

const tamis_net_ops tamis_v4_ops = {.net_bytes = sizeof(tamis_v4),
                                    .measure = measure_v4,
                                    .open = open_v4,
                                    .close = close_v4,
                                    .layout = layout_v4,
                                    .plan = plan_v4,
                                    .forward = forward_v4,
                                    .plan_draft = plan_draft_v4,
                                    .draft = draft_v4};
