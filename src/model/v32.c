#include "model/v32.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

/* T = max_num_batched_tokens. */
typedef struct tamis_v32 {
    tamis_net base;
    float *h; /* [T][H] residual stream */
    tamis_sfa_caches *caches;
    tamis_sfa_plan *plan;
    /* with params.draft; D = tokens of the draft plan */
    float *eh;            /* [T][2][H] normed embedding and hidden state, side by side */
    int32_t *shared_topk; /* [D][index_topk] index_share_for_mtp_iteration: of over_step's rows */
    tamis_sfa_plan *draft_plan;
} tamis_v32;

/* index_share_for_mtp_iteration, and there is something to share. */
static bool shares_topk(const tamis_net *net)
{
    return net->config->index_share_for_mtp_iteration && net->config->index_topk > 0;
}

/* ---------------------------------------------------------------- open and close */

/* Whether the profile runs every layer's weights. */
static tamis_status check_layers(const tamis_net *net, tamis_error *err)
{
    char object[32];
    for (int32_t i = 0; i < tamis_net_num_layers(net); i++) {
        snprintf(object, sizeof object, "layer %d", i);
        TAMIS_TRY(tamis_sfa_profile_check(&net->weights->layers[i].sfa, net->params.cache.profile,
                                          object, err));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status collect_layers(const tamis_net *net, tamis_sfa_config **out, tamis_error *err)
{
    const size_t n = (size_t)tamis_net_num_layers(net);
    tamis_sfa_config *layers = *out = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *layers);
    if (layers == NULL)
        return tamis_fail_memory(err, "layers", n * sizeof *layers);
    for (size_t i = 0; i < n; i++)
        layers[i] = net->weights->layers[i].sfa.config;
    return TAMIS_STATUS_OK;
}

static tamis_status measure_v32(const tamis_net *net, tamis_net_bytes *out, tamis_error *err)
{
    const int32_t n_layers = tamis_net_num_layers(net);
    const tamis_cache_params *cache = &net->params.cache;
    const tamis_plan_params draft = tamis_net_draft_plan_params(net);
    tamis_sfa_config *layers = NULL;
    uint64_t draft_bytes = 0;
    tamis_status st;
    TAMIS_TRY(check_layers(net, err));
    TAMIS_TRY(collect_layers(net, &layers, err));
    TAMIS_TRY_GOTO(tamis_sfa_caches_measure(layers, n_layers, cache, &out->caches, err));
    TAMIS_TRY_GOTO(
        tamis_sfa_plan_measure(layers, n_layers, &net->params.plan, cache, &out->workspace, err));
    if (net->params.draft)
        TAMIS_TRY_GOTO(tamis_sfa_plan_measure(layers, n_layers, &draft, cache, &draft_bytes, err));
    out->workspace += draft_bytes;
fail:
    tamis_mem_free(layers);
    return st;
}

static tamis_status open_v32(tamis_net *net, tamis_error *err)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    tamis_sfa_config *layers = NULL;
    TAMIS_TRY(check_layers(net, err));
    TAMIS_TRY(collect_layers(net, &layers, err));
    const tamis_plan_params draft = tamis_net_draft_plan_params(net);
    const tamis_status st = tamis_sfa_caches_open(&v32->caches, layers, tamis_net_num_layers(net),
                                                  &net->params.cache, err);
    tamis_mem_free(layers);
    TAMIS_TRY(st);
    net->store = tamis_sfa_caches_store(v32->caches);
    net->layer_caches = tamis_sfa_caches_layers(v32->caches);
    if (net->params.draft)
        TAMIS_TRY(tamis_sfa_plan_open(&v32->draft_plan, v32->caches, &draft, err));
    return tamis_sfa_plan_open(&v32->plan, v32->caches, &net->params.plan, err);
}

static void close_v32(tamis_net *net)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    tamis_sfa_plan_close(&v32->plan);
    tamis_sfa_plan_close(&v32->draft_plan);
    tamis_sfa_caches_close(&v32->caches);
}

/* Norms and sums work in place: no scratch but that of eh_proj. */
static size_t layout_v32(tamis_net *net, tamis_arena *arena)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    const size_t n_tokens = (size_t)net->params.plan.max_num_batched_tokens;
    const size_t hidden = (size_t)net->config->hidden_size;
    v32->h = tamis_arena_take(arena, n_tokens * hidden, sizeof(float));
    if (!net->params.draft)
        return 0;
    const size_t n_draft = (size_t)tamis_net_draft_plan_params(net).max_num_batched_tokens;
    const size_t topk = shares_topk(net) ? (size_t)net->config->index_topk : 0;
    v32->eh = tamis_arena_take(arena, n_tokens * 2 * hidden, sizeof(float));
    v32->shared_topk = tamis_arena_take(arena, n_draft * topk, sizeof(int32_t));
    return TAMIS_LINEAR_SCRATCH(2 * hidden);
}

static tamis_status plan_v32(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_sfa_plan_build(((tamis_v32 *)net)->plan, batch, err);
}

static tamis_status plan_draft_v32(tamis_net *net, const tamis_batch *batch, tamis_error *err)
{
    return tamis_sfa_plan_build(((tamis_v32 *)net)->draft_plan, batch, err);
}

tamis_sfa_caches *tamis_v32_caches(tamis_net *net)
{
    return ((tamis_v32 *)net)->caches;
}
tamis_sfa_plan *tamis_v32_plan(tamis_net *net)
{
    return ((tamis_v32 *)net)->plan;
}

/* ---------------------------------------------------------------- residual stream */

/*
 * Of every row: h += v if there is a v, then out = norm(h) if there is a norm. Profiles official
 * and ascend: a norm reads the sum as it is in f32, and h is rounded to BF16 only after that.
 */
typedef struct v32_pass {
    const tamis_v32 *v32;
    int64_t n_rows;
    const int32_t *rows; /* row i of out is of token rows[i], h stays; NULL: of token i */
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
        tamis_exec_round(&net->exec, out, hidden);
        if (pass->rows == NULL)
            tamis_exec_round(&net->exec, h, hidden);
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
    const tamis_net *net = &pass->v32->base;
    tamis_team_run_sized(net->exec.team,
                         tamis_exec_is_worth_waking(pass->n_rows, 2 * net->config->hidden_size),
                         residual_thread, pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

/* The output v of the sublayer before (NULL: none) joins the stream; x of the next one from it. */
static bool join(const tamis_v32 *v32, const float *v, const float *norm, int64_t n_tokens)
{
    v32_pass pass = {.v32 = v32, .n_rows = n_tokens, .v = v, .norm = norm, .out = v32->base.x};
    return run(&pass);
}

/* ---------------------------------------------------------------- forward */

static void emit_index(const tamis_v32 *v32, int32_t i, const tamis_sfa_plan *plan,
                       const tamis_net_step *step)
{
    const tamis_net *net = &v32->base;
    const tamis_sfa_config *c = &net->weights->layers[i].sfa.config;
    if (c->index_topk == 0)
        return;
    tamis_net_emit(net, i, TAMIS_TAP_TOPK, tamis_sfa_plan_topk(plan), step, c->index_topk);
    if (c->reuse_topk)
        return;
    tamis_net_emit(net, i, TAMIS_TAP_INDEX_QUERY, tamis_sfa_plan_index_query(plan), step,
                   (int64_t)c->index_n_heads * c->index_head_dim);
    tamis_net_emit(net, i, TAMIS_TAP_INDEX_WEIGHTS, tamis_sfa_plan_index_weights(plan), step,
                   tamis_round_up(c->index_n_heads, TAMIS_LANES));
}

/* x -> v, with the moments that a watch sees; over given positions [n_tokens][index_topk] instead
 * of the layer's own selection if there are some. */
static bool attend(tamis_v32 *v32, int32_t i, tamis_sfa_plan *plan, const int32_t *given)
{
    const tamis_net *net = &v32->base;
    const tamis_sfa_layer *layer = &net->weights->layers[i].sfa;
    tamis_team *team = net->exec.team;
    const int32_t num_given = given != NULL ? layer->config.index_topk : 0;
    return tamis_net_tell(net, TAMIS_NET_LAYER_BEGINS, i) &&
           tamis_sfa_preprocess(layer, i, plan, v32->caches, net->x, team, NULL) ==
               TAMIS_STATUS_OK &&
           tamis_net_tell(net, TAMIS_NET_ROWS_WRITTEN, i) &&
           (given != NULL ||
            tamis_sfa_select(layer, i, plan, v32->caches, team, NULL) == TAMIS_STATUS_OK) &&
           tamis_sfa_attend(layer, i, plan, v32->caches, given, num_given, NULL, team, NULL) ==
               TAMIS_STATUS_OK &&
           tamis_sfa_output(layer, i, plan, v32->caches, net->v, team, NULL) == TAMIS_STATUS_OK &&
           tamis_net_tell(net, TAMIS_NET_LAYER_DONE, i);
}

static bool run_attention(tamis_v32 *v32, int32_t i, tamis_sfa_plan *plan, const int32_t *given,
                          const tamis_net_step *step)
{
    tamis_net *net = &v32->base;
    const tamis_layer_weights *w = &net->weights->layers[i];
    const int32_t hidden = net->config->hidden_size;
    if (!join(v32, NULL, w->attn_norm, step->n_tokens))
        return false;
    tamis_net_emit(net, i, TAMIS_TAP_ATTN_IN, net->x, step, hidden);
    if (!attend(v32, i, plan, given))
        return false;
    if (given == NULL)
        emit_index(v32, i, plan, step);
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

/* head_x = norm(h) of the wanted rows */
static bool norm_for_head(const tamis_v32 *v32, const float *norm, const tamis_net_step *step)
{
    v32_pass pass = {.v32 = v32,
                     .n_rows = step->n_logits,
                     .rows = step->logit_rows,
                     .norm = norm,
                     .out = v32->base.head_x};
    return run(&pass);
}

static bool run_head(const tamis_v32 *v32, const tamis_net_step *step)
{
    const tamis_model_weights *w = v32->base.weights;
    return step->n_logits == 0 ||
           (norm_for_head(v32, w->norm, step) && tamis_net_head(&v32->base, &w->head, step));
}

static int32_t forward_v32(tamis_net *net, const tamis_net_step *step)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    if (!tamis_net_embed(net, &net->weights->embed, step, 1, v32->h))
        return TAMIS_NET_FAULT_ENDS;
    for (int32_t i = 0; i < net->config->num_hidden_layers; i++)
        if (!run_attention(v32, i, v32->plan, NULL, step) || !run_experts(v32, i, step))
            return i;
    return run_head(v32, step) ? TAMIS_NET_FINE : TAMIS_NET_FAULT_ENDS;
}

/* ---------------------------------------------------------------- MTP block */

/* h = eh_proj . [enorm(embedding of the next token) ; hnorm(h)], in place. A NaN in the projection
 * shows in the layer's first norm. */
static int32_t enter_mtp(tamis_v32 *v32, bool over_step, const tamis_net_step *step)
{
    tamis_net *net = &v32->base;
    const tamis_mtp_weights *w = &net->weights->mtp;
    const int64_t n_tokens = step->n_tokens, hidden = net->config->hidden_size;
    if (!tamis_net_embed(net, &w->embed, step, 1, net->x))
        return tamis_net_mtp_fault(net, &w->embed, &net->weights->embed);
    bool is_finite = tamis_net_norm_rows(net, net->x, w->enorm, n_tokens, v32->eh, 2 * hidden);
    /* The main model's hidden state counts after its final norm; public texts do not settle it, and
     * without this line it would count before. The block's own goes on as it is. */
    is_finite = is_finite && (!over_step || tamis_net_norm_rows(net, v32->h, net->weights->norm,
                                                                n_tokens, v32->h, hidden));
    if (!is_finite ||
        !tamis_net_norm_rows(net, v32->h, w->hnorm, n_tokens, v32->eh + hidden, 2 * hidden))
        return net->weights->n_layers;
    const tamis_linear_job job = tamis_linear_full(&w->eh_proj, v32->eh, v32->h, n_tokens);
    tamis_linear_run(&net->exec, &job, 1);
    return TAMIS_NET_FINE;
}

static int32_t run_mtp_head(const tamis_v32 *v32, const tamis_net_step *step)
{
    const tamis_net *net = &v32->base;
    const tamis_mtp_weights *w = &net->weights->mtp;
    if (step->n_logits == 0)
        return TAMIS_NET_FINE;
    if (!norm_for_head(v32, w->norm, step))
        return net->weights->n_layers;
    return tamis_net_head(net, &w->head, step)
               ? TAMIS_NET_FINE
               : tamis_net_mtp_fault(net, &w->head, &net->weights->head);
}

/* What the next call goes on from: hidden states, and with shared selections theirs. */
static void keep_rows(tamis_v32 *v32, const tamis_net_draft *draft)
{
    const tamis_net *net = &v32->base;
    const size_t topk = (size_t)net->config->index_topk, hidden = (size_t)net->config->hidden_size;
    tamis_net_keep_rows(v32->h, hidden * sizeof *v32->h, draft->rows, draft->n_rows);
    tamis_exec_round(&net->exec, v32->h, (int64_t)hidden * draft->n_rows);
    if (!shares_topk(net))
        return;
    if (!draft->over_step)
        tamis_net_keep_rows(v32->shared_topk, topk * sizeof *v32->shared_topk, draft->rows,
                            draft->n_rows);
    for (int32_t i = 0; draft->over_step && i < draft->n_rows; i++)
        memcpy(v32->shared_topk + (size_t)i * topk,
               tamis_sfa_plan_topk(v32->plan) + (size_t)draft->rows[i] * topk,
               topk * sizeof *v32->shared_topk);
}

/*
 * Uses up the residual stream of the last forward, or of the call before, and leaves its own. With
 * index_share_for_mtp_iteration further calls attend to what the first one selected, as it is:
 * positions that came later are not in it.
 */
static int32_t draft_v32(tamis_net *net, const tamis_net_draft *draft)
{
    tamis_v32 *v32 = (tamis_v32 *)net;
    const tamis_net_step step = tamis_net_draft_step(draft);
    const int32_t layer = net->weights->n_layers;
    tamis_sfa_plan *plan = draft->over_step ? v32->plan : v32->draft_plan;
    const int32_t *given = draft->over_step || !shares_topk(net) ? NULL : v32->shared_topk;
    assert(tamis_sfa_plan_num_tokens(plan) == draft->n_tokens);
    int32_t result = enter_mtp(v32, draft->over_step, &step);
    if (result != TAMIS_NET_FINE)
        return result;
    if (!run_attention(v32, layer, plan, given, &step) || !run_experts(v32, layer, &step))
        return layer;
    result = run_mtp_head(v32, &step);
    keep_rows(v32, draft);
    return result;
}

const tamis_net_ops tamis_v32_ops = {.net_bytes = sizeof(tamis_v32),
                                     .measure = measure_v32,
                                     .open = open_v32,
                                     .close = close_v32,
                                     .layout = layout_v32,
                                     .plan = plan_v32,
                                     .forward = forward_v32,
                                     .plan_draft = plan_draft_v32,
                                     .draft = draft_v32};
