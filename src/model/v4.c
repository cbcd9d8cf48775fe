#include "model/v4.h"

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
} tamis_v4;

/* ---------------------------------------------------------------- open and close */

static tamis_status collect_layers(const tamis_net *net, tamis_dsa_config **out, tamis_error *err)
{
    const size_t n = (size_t)net->config->num_hidden_layers;
    tamis_dsa_config *layers = *out = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *layers);
    if (layers == NULL)
        return tamis_fail_memory(err, "layers", n * sizeof *layers);
    for (size_t i = 0; i < n; i++)
        layers[i] = net->weights->layers[i].dsa.config;
    return TAMIS_STATUS_OK;
}

static tamis_status measure_v4(const tamis_net *net, tamis_net_bytes *out, tamis_error *err)
{
    const int32_t n_layers = net->config->num_hidden_layers;
    const tamis_cache_params *cache = &net->params.cache;
    tamis_dsa_config *layers = NULL;
    tamis_status st;
    TAMIS_TRY(collect_layers(net, &layers, err));
    TAMIS_TRY_GOTO(tamis_dsa_caches_measure(layers, n_layers, cache, &out->caches, err));
    TAMIS_TRY_GOTO(tamis_dsa_plan_measure(layers, n_layers, &net->params.plan,
                                          cache->kv_cache_dtype, cache->block_tokens,
                                          &out->workspace, err));
fail:
    tamis_mem_free(layers);
    return st;
}

static tamis_status open_v4(tamis_net *net, tamis_error *err)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    tamis_dsa_config *layers = NULL;
    TAMIS_TRY(collect_layers(net, &layers, err));
    const tamis_status st = tamis_dsa_caches_open(
        &v4->caches, layers, net->config->num_hidden_layers, &net->params.cache, err);
    tamis_mem_free(layers);
    TAMIS_TRY(st);
    net->store = tamis_dsa_caches_store(v4->caches);
    return tamis_dsa_plan_open(&v4->plan, v4->caches, &net->params.plan, err);
}

static void close_v4(tamis_net *net)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    tamis_dsa_plan_close(&v4->plan);
    tamis_dsa_caches_close(&v4->caches);
}

static size_t layout_v4(tamis_net *net, tamis_arena *arena)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    const tamis_model_config *c = net->config;
    const size_t n_tokens = (size_t)net->params.plan.max_num_batched_tokens;
    v4->streams = tamis_arena_take(arena, n_tokens * (size_t)c->hc_mult * (size_t)c->hidden_size,
                                   sizeof(float));
    v4->coefs = tamis_arena_take(arena, n_tokens * (size_t)tamis_hc_num_coefs(c), sizeof(float));
    return tamis_hc_scratch_floats(c);
}

static tamis_status plan_v4(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_dsa_plan_build(((tamis_v4 *)net)->plan, batch, err);
}

tamis_dsa_caches *tamis_v4_caches(tamis_net *net)
{
    return ((tamis_v4 *)net)->caches;
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

static bool run_attention(tamis_v4 *v4, int32_t i, const tamis_net_step *step)
{
    tamis_net *net = &v4->base;
    const tamis_layer_weights *w = &net->weights->layers[i];
    const int32_t hidden = net->config->hidden_size;
    if (!collapse(v4, &w->hc_attn, w->attn_norm, step))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_IN, net->x, step, hidden);
    if (tamis_dsa_forward(&w->dsa, i, v4->plan, v4->caches, net->x, net->v, net->exec.team, NULL) !=
        TAMIS_STATUS_OK)
        return false;
    if (w->dsa.config.compress_ratio == 4)
        tamis_net_emit(net, i, TAMIS_TAP_TOPK, tamis_dsa_plan_topk(v4->plan), step,
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
           tamis_net_head(net, step);
}

static int32_t forward_v4(tamis_net *net, const tamis_net_step *step)
{
    tamis_v4 *v4 = (tamis_v4 *)net;
    if (!tamis_net_embed(net, step, net->config->hc_mult, v4->streams))
        return TAMIS_NET_FAULT_ENDS;
    for (int32_t i = 0; i < net->config->num_hidden_layers; i++)
        if (!run_attention(v4, i, step) || !run_experts(v4, i, step))
            return i;
    return run_head(v4, step) ? TAMIS_NET_FINE : TAMIS_NET_FAULT_ENDS;
}

const tamis_net_ops tamis_v4_ops = {.net_bytes = sizeof(tamis_v4),
                                    .measure = measure_v4,
                                    .open = open_v4,
                                    .close = close_v4,
                                    .layout = layout_v4,
                                    .plan = plan_v4,
                                    .forward = forward_v4};
