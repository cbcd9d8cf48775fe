#include "model/v32.h"

#include <stdatomic.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

/* T = max_num_batched_tokens. */
typedef struct tamis_v32 {
    tamis_net base;
    float *h; /* [T][H] residual stream */
    tamis_sfa_caches *caches;
    tamis_sfa_plan *plan;
} tamis_v32;

/* ---------------------------------------------------------------- open and close */

static tamis_status collect_layers(const tamis_net *net, tamis_sfa_config **out, tamis_error *err)
{
    const size_t n = (size_t)net->config->num_hidden_layers;
    tamis_sfa_config *layers = *out = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *layers);
    if (layers == NULL)
        return tamis_fail_memory(err, "layers", n * sizeof *layers);
    for (size_t i = 0; i < n; i++)
        layers[i] = net->weights->layers[i].sfa.config;
    return TAMIS_STATUS_OK;
}

static tamis_status measure_v32(const tamis_net *net, tamis_net_bytes *out, tamis_error *err)
{
    const int32_t n_layers = net->config->num_hidden_layers;
    const tamis_cache_params *cache = &net->params.cache;
    tamis_sfa_config *layers = NULL;
    tamis_status st;
    TAMIS_TRY(collect_layers(net, &layers, err));
    TAMIS_TRY_GOTO(tamis_sfa_caches_measure(layers, n_layers, cache, &out->caches, err));
    TAMIS_TRY_GOTO(tamis_sfa_plan_measure(layers, n_layers, &net->params.plan, cache->block_tokens,
                                          &out->workspace, err));
fail:
    tamis_mem_free(layers);
    return st;
}

static tamis_status open_v32(tamis_net *net, tamis_error *err)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    tamis_sfa_config *layers = NULL;
    TAMIS_TRY(collect_layers(net, &layers, err));
    const tamis_status st = tamis_sfa_caches_open(
        &v32->caches, layers, net->config->num_hidden_layers, &net->params.cache, err);
    tamis_mem_free(layers);
    TAMIS_TRY(st);
    net->store = tamis_sfa_caches_store(v32->caches);
    return tamis_sfa_plan_open(&v32->plan, v32->caches, &net->params.plan, err);
}

static void close_v32(tamis_net *net)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    tamis_sfa_plan_close(&v32->plan);
    tamis_sfa_caches_close(&v32->caches);
}

/* Norms and sums work in place: no scratch. */
static size_t layout_v32(tamis_net *net, tamis_arena *arena)
{
    const size_t n_tokens = (size_t)net->params.plan.max_num_batched_tokens;
    ((tamis_v32 *)net)->h =
        tamis_arena_take(arena, n_tokens * (size_t)net->config->hidden_size, sizeof(float));
    return 0;
}

static tamis_status plan_v32(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_sfa_plan_build(((tamis_v32 *)net)->plan, batch, err);
}

tamis_sfa_caches *tamis_v32_caches(tamis_net *net)
{
    return ((tamis_v32 *)net)->caches;
}

/* ---------------------------------------------------------------- residual stream */

/* Of every row: h += v if there is a v, then out = norm(h) if there is a norm. */
typedef struct v32_pass {
    const tamis_v32 *v32;
    int64_t n_rows;
    const int32_t *rows; /* row i of out is of token rows[i]; NULL: of token i */
    const float *v, *norm;
    float *out;
    atomic_bool has_fault;
} v32_pass;

static bool residual_row(const v32_pass *pass, int64_t i)
{
    const tamis_net *net = &pass->v32->base;
    const tamis_kernels *kernels = net->exec.kernels;
    const int64_t hidden = net->config->hidden_size;
    float *h = pass->v32->h + (pass->rows == NULL ? i : pass->rows[i]) * hidden;
    bool is_finite = true;
    if (pass->v != NULL) {
        kernels->add(h, pass->v + i * hidden, hidden);
        is_finite = kernels->all_finite(h, hidden);
    }
    if (pass->norm != NULL) {
        float *out = pass->out + i * hidden;
        kernels->rmsnorm(out, h, pass->norm, hidden, net->config->rms_norm_eps);
        is_finite = is_finite && kernels->all_finite(out, hidden);
    }
    return is_finite;
}

static void residual_thread(void *arg, int thread_idx, int n_threads)
{
    v32_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range(pass->n_rows, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        if (!residual_row(pass, i))
            atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
}

/* Relaxed: the barrier at the end of the pass orders it. */
static bool run(v32_pass *pass)
{
    atomic_init(&pass->has_fault, false);
    tamis_team_run_sized(pass->v32->base.exec.team, pass->n_rows > 1, residual_thread, pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

/* The output v of the sublayer before (NULL: none) joins the stream; x of the next one from it. */
static bool join(const tamis_v32 *v32, const float *v, const float *norm, int64_t n_tokens)
{
    v32_pass pass = {.v32 = v32, .n_rows = n_tokens, .v = v, .norm = norm, .out = v32->base.x};
    return run(&pass);
}

/* ---------------------------------------------------------------- forward */

static void emit_index(const tamis_v32 *v32, int32_t i, const tamis_net_step *step)
{
    const tamis_net *net = &v32->base;
    const tamis_sfa_config *c = &net->weights->layers[i].sfa.config;
    if (c->index_topk == 0)
        return;
    tamis_net_emit(net, i, TAMIS_TAP_TOPK, tamis_sfa_plan_topk(v32->plan), step, c->index_topk);
    if (c->reuse_topk)
        return;
    tamis_net_emit(net, i, TAMIS_TAP_INDEX_QUERY, tamis_sfa_plan_index_query(v32->plan), step,
                   (int64_t)c->index_n_heads * c->index_head_dim);
    tamis_net_emit(net, i, TAMIS_TAP_INDEX_WEIGHTS, tamis_sfa_plan_index_weights(v32->plan), step,
                   tamis_round_up(c->index_n_heads, TAMIS_LANES));
}

static bool run_attention(tamis_v32 *v32, int32_t i, const tamis_net_step *step)
{
    tamis_net *net = &v32->base;
    const tamis_layer_weights *w = &net->weights->layers[i];
    const int32_t hidden = net->config->hidden_size;
    if (!join(v32, NULL, w->attn_norm, step->n_tokens))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_IN, net->x, step, hidden);
    if (tamis_sfa_forward(&w->sfa, i, v32->plan, v32->caches, net->x, net->v, net->exec.team,
                          NULL) != TAMIS_STATUS_OK)
        return false;
    emit_index(v32, i, step);
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_OUT, net->v, step, hidden);
    return true;
}

static bool run_experts(tamis_v32 *v32, int32_t i, const tamis_net_step *step)
{
    tamis_net *net = &v32->base;
    if (!join(v32, net->v, net->weights->layers[i].ffn_norm, step->n_tokens) ||
        !tamis_net_experts(net, i, step) || !join(v32, net->v, NULL, step->n_tokens))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_HIDDEN, v32->h, step, net->config->hidden_size);
    return true;
}

static bool run_head(const tamis_v32 *v32, const tamis_net_step *step)
{
    const tamis_net *net = &v32->base;
    v32_pass pass = {.v32 = v32,
                     .n_rows = step->n_logits,
                     .rows = step->logit_rows,
                     .norm = net->weights->norm,
                     .out = net->head_x};
    return step->n_logits == 0 || (run(&pass) && tamis_net_head(net, step));
}

static int32_t forward_v32(tamis_net *net, const tamis_net_step *step)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    if (!tamis_net_embed(net, step, 1, v32->h))
        return TAMIS_NET_FAULT_ENDS;
    for (int32_t i = 0; i < net->config->num_hidden_layers; i++)
        if (!run_attention(v32, i, step) || !run_experts(v32, i, step))
            return i;
    return run_head(v32, step) ? TAMIS_NET_FINE : TAMIS_NET_FAULT_ENDS;
}

const tamis_net_ops tamis_v32_ops = {.net_bytes = sizeof(tamis_v32),
                                     .measure = measure_v32,
                                     .open = open_v32,
                                     .close = close_v32,
                                     .layout = layout_v32,
                                     .plan = plan_v32,
                                     .forward = forward_v32};
