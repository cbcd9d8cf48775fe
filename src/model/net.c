#include "model/net.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "attention/common/profile_checks.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

static const tamis_net_ops *const ops_of_family[] = {
    [TAMIS_FAMILY_DEEPSEEK_V4] = &tamis_v4_ops,
    [TAMIS_FAMILY_DEEPSEEK_V32] = &tamis_v32_ops,
    [TAMIS_FAMILY_GLM_MOE_DSA] = &tamis_v32_ops,
};

/* ---------------------------------------------------------------- open and close */

static tamis_status check_expert(const char *object, const char *prefix,
                                 const tamis_expert_weights *w, tamis_profile profile,
                                 tamis_error *err)
{
    const struct {
        const char *name;
        const tamis_matrix *matrix;
    } matrices[] = {{"w1", &w->w1}, {"w3", &w->w3}, {"w2", &w->w2}};
    char name[48];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s %s", prefix, matrices[i].name);
        TAMIS_TRY(tamis_check_profile_matrix(object, name, matrices[i].matrix, profile, err));
    }
    return TAMIS_STATUS_OK;
}

/* Whether the profile runs the weights outside attention, which the families check. */
static tamis_status check_profile(const tamis_net *net, tamis_error *err)
{
    const tamis_profile profile = net->params.cache.profile;
    const tamis_model_weights *w = net->weights;
    char object[32], prefix[32];
    if (profile == TAMIS_PROFILE_EXACT)
        return TAMIS_STATUS_OK;
    for (int32_t i = 0; i < tamis_net_num_layers(net); i++) {
        const tamis_moe_weights *moe = &w->layers[i].moe;
        snprintf(object, sizeof object, "layer %d", i);
        for (int64_t e = 0; e < moe->gate.rows; e++) {
            snprintf(prefix, sizeof prefix, "expert %lld", (long long)e);
            TAMIS_TRY(check_expert(object, prefix, &moe->experts[e], profile, err));
        }
        if (moe->shared.w1.rows > 0)
            TAMIS_TRY(check_expert(object, moe->gate.rows > 0 ? "shared expert" : "MLP",
                                   &moe->shared, profile, err));
    }
    if (net->params.draft && w->mtp.eh_proj.data != NULL)
        return tamis_check_profile_matrix("MTP", "eh_proj", &w->mtp.eh_proj, profile, err);
    if (!net->params.draft)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_check_profile_matrix("MTP", "e_proj", &w->mtp.e_proj, profile, err));
    return tamis_check_profile_matrix("MTP", "h_proj", &w->mtp.h_proj, profile, err);
}

/* Sizes only: what both measure and open start from. */
static tamis_status create(tamis_net **out, const tamis_model_config *config,
                           const tamis_model_weights *weights, const tamis_net_params *params,
                           tamis_error *err)
{
    assert((size_t)config->family < sizeof ops_of_family / sizeof *ops_of_family);
    const tamis_net_ops *ops = ops_of_family[config->family];
    tamis_net *net = tamis_mem_alloc(TAMIS_MEM_MISC, ops->net_bytes);
    if (net == NULL)
        return tamis_fail_memory(err, "network", ops->net_bytes);
    net->ops = ops;
    net->config = config;
    net->weights = weights;
    net->params = *params;
    net->exec.profile = params->cache.profile;
    net->moe.config = config;
    net->moe.max_tokens = params->plan.max_num_batched_tokens;
    assert(!params->draft || weights->n_mtp == 1);
    *out = net; /* the caller's to close even after a failure */
    return check_profile(net, err);
}

tamis_plan_params tamis_net_draft_plan_params(const tamis_net *net)
{
    tamis_plan_params params = net->params.plan;
    if (params.max_num_batched_tokens > params.max_num_seqs)
        params.max_num_batched_tokens = params.max_num_seqs;
    return params;
}

static size_t head_rows(const tamis_net *net)
{
    const int32_t logits = net->params.max_logits;
    const int32_t drafts =
        net->params.draft ? tamis_net_draft_plan_params(net).max_num_batched_tokens : 0;
    return (size_t)(logits > drafts ? logits : drafts);
}

/* Quantised inputs of the widest pass outside attention: experts, or the projections into an MTP
 * block: V4's e_proj and h_proj side by side, V3.2's eh_proj of rows twice as wide. */
static size_t input_need(const tamis_net *net)
{
    const tamis_model_config *c = net->config;
    const int64_t n_tokens = net->params.plan.max_num_batched_tokens, hidden = c->hidden_size;
    const size_t moe = tamis_moe_input_bytes(c, n_tokens);
    const size_t mtp = c->family == TAMIS_FAMILY_DEEPSEEK_V4
                           ? tamis_linear_input_bytes(2, (c->hc_mult + 1) * n_tokens, hidden)
                           : tamis_linear_input_bytes(1, n_tokens, 2 * hidden);
    return net->params.draft && mtp > moe ? mtp : moe;
}

/* Carves (or measures) the activations, scratch of the threads included. */
static void layout(tamis_net *net, tamis_arena *arena)
{
    const size_t n_tokens = (size_t)net->params.plan.max_num_batched_tokens;
    const size_t hidden = (size_t)net->config->hidden_size;
    size_t scratch = TAMIS_LINEAR_SCRATCH(hidden); /* the head */
    const size_t family = net->ops->layout(net, arena), moe = tamis_moe_scratch_floats(net->config);
    net->x = tamis_arena_take(arena, n_tokens * hidden, sizeof(float));
    net->v = tamis_arena_take(arena, n_tokens * hidden, sizeof(float));
    net->head_x = tamis_arena_take(arena, head_rows(net) * hidden, sizeof(float));
    tamis_moe_layout(&net->moe, arena);
    scratch = family > scratch ? family : scratch;
    scratch = moe > scratch ? moe : scratch;
    net->exec.input_bytes = net->exec.profile == TAMIS_PROFILE_EXACT ? 0 : input_need(net);
    net->exec.inputs = tamis_arena_take(arena, net->exec.input_bytes, 1);
    net->exec.scratch_floats = (size_t)tamis_round_up((int64_t)scratch, TAMIS_LANES);
    net->exec.scratch = tamis_arena_take(
        arena, (size_t)net->params.plan.n_threads * net->exec.scratch_floats, sizeof(float));
}

static tamis_status measure_activations(tamis_net *net, size_t *bytes, tamis_error *err)
{
    tamis_arena arena = {0};
    layout(net, &arena);
    if (arena.used == SIZE_MAX)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "network: activations of %d tokens and %d logits rows exceed the address "
                          "space",
                          net->params.plan.max_num_batched_tokens, net->params.max_logits);
    *bytes = arena.used;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_net_measure(const tamis_model_config *config, const tamis_model_weights *weights,
                               const tamis_net_params *params, tamis_net_bytes *out,
                               tamis_error *err)
{
    tamis_net *net = NULL;
    tamis_status st;
    size_t activations = 0;
    TAMIS_TRY_GOTO(create(&net, config, weights, params, err));
    TAMIS_TRY_GOTO(net->ops->measure(net, out, err));
    TAMIS_TRY_GOTO(measure_activations(net, &activations, err));
    out->workspace += activations;
fail:
    tamis_net_close(&net);
    return st;
}

static tamis_status open_parts(tamis_net *net, tamis_error *err)
{
    size_t bytes = 0;
    TAMIS_TRY(measure_activations(net, &bytes, err));
    net->memory = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    if (net->memory == NULL)
        return tamis_fail_memory(err, "activations", bytes);
    tamis_arena arena = {.base = net->memory, .bytes = bytes};
    layout(net, &arena);
    return net->ops->open(net, err);
}

tamis_status tamis_net_open(tamis_net **out, const tamis_model_config *config,
                            const tamis_model_weights *weights, const tamis_net_params *params,
                            tamis_error *err)
{
    tamis_net *net = NULL;
    tamis_status st;
    *out = NULL;
    TAMIS_TRY_GOTO(create(&net, config, weights, params, err));
    TAMIS_TRY_GOTO(open_parts(net, err));
    *out = net;
    return TAMIS_STATUS_OK;
fail:
    tamis_net_close(&net);
    return st;
}

void tamis_net_close(tamis_net **net_ptr)
{
    if (net_ptr == NULL || *net_ptr == NULL)
        return;
    tamis_net *net = *net_ptr;
    *net_ptr = NULL;
    net->ops->close(net);
    tamis_mem_free(net->memory);
    tamis_mem_free(net);
}

/* ---------------------------------------------------------------- embedding, head, experts */

typedef struct net_pass {
    const tamis_net *net;
    const tamis_net_step *step;
    const tamis_matrix *embed;
    int32_t copies; /* of the embedding */
    const float *in, *norm;
    int64_t n_rows, out_stride;
    float *out;
    atomic_bool has_fault;
} net_pass;

/* Relaxed: the barrier at the end of the pass orders it. */
static bool run(net_pass *pass, bool is_worth_waking, tamis_job_fn fn)
{
    atomic_init(&pass->has_fault, false);
    tamis_team_run_sized(pass->net->exec.team, is_worth_waking, fn, pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

static void report(net_pass *pass, bool is_finite)
{
    if (!is_finite)
        atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
}

static void embed_thread(void *arg, int thread_idx, int n_threads)
{
    net_pass *pass = arg;
    const tamis_net *net = pass->net;
    const int64_t hidden = net->config->hidden_size;
    int64_t begin, end;
    tamis_team_range(pass->step->n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *out = pass->out + t * pass->copies * hidden;
        net->exec.kernels->expand_row(out, pass->embed, pass->step->tokens[t]);
        tamis_exec_round(&net->exec, out, hidden);
        for (int32_t i = 1; i < pass->copies; i++)
            memcpy(out + i * hidden, out, (size_t)hidden * sizeof *out);
        report(pass, net->exec.kernels->all_finite(out, hidden));
    }
}

bool tamis_net_embed(const tamis_net *net, const tamis_matrix *embed, const tamis_net_step *step,
                     int32_t copies, float *out)
{
    net_pass pass = {.net = net, .step = step, .embed = embed, .copies = copies, .out = out};
    return run(&pass, tamis_exec_is_worth_waking(step->n_tokens, 2 * net->config->hidden_size),
               embed_thread);
}

static void norm_thread(void *arg, int thread_idx, int n_threads)
{
    net_pass *pass = arg;
    const tamis_kernels *kernels = pass->net->exec.kernels;
    const int64_t hidden = pass->net->config->hidden_size;
    int64_t begin, end;
    tamis_team_range(pass->n_rows, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *out = pass->out + i * pass->out_stride;
        kernels->rmsnorm(out, pass->in + i * hidden, pass->norm, hidden,
                         pass->net->config->rms_norm_eps);
        tamis_exec_round(&pass->net->exec, out, hidden);
        report(pass, kernels->all_finite(out, hidden));
    }
}

bool tamis_net_norm_rows(const tamis_net *net, const float *in, const float *norm, int64_t n_rows,
                         float *out, int64_t out_stride)
{
    net_pass pass = {
        .net = net, .in = in, .norm = norm, .n_rows = n_rows, .out = out, .out_stride = out_stride};
    return run(&pass, tamis_exec_is_worth_waking(n_rows, 2 * net->config->hidden_size),
               norm_thread);
}

static void check_logits_thread(void *arg, int thread_idx, int n_threads)
{
    net_pass *pass = arg;
    const int64_t n = (int64_t)pass->step->n_logits * pass->net->config->vocab_size;
    int64_t begin, end;
    tamis_team_range(n, 4096, thread_idx, n_threads, &begin, &end);
    report(pass, pass->net->exec.kernels->all_finite(pass->step->logits + begin, end - begin));
}

bool tamis_net_head(const tamis_net *net, const tamis_matrix *head, const tamis_net_step *step)
{
    net_pass pass = {.net = net, .step = step};
    tamis_linear_job job = tamis_linear_full(head, net->head_x, step->logits, step->n_logits);
    job.keep_input = job.keep_output = true;
    tamis_linear_run(&net->exec, &job, 1);
    return run(&pass, tamis_exec_is_worth_waking(step->n_logits, net->config->vocab_size / 8),
               check_logits_thread);
}

void tamis_net_keep_rows(void *data, size_t row_bytes, const int32_t *rows, int32_t n_rows)
{
    for (int32_t i = 0; i < n_rows; i++)
        if (rows[i] != i) /* rows ascend, so nothing is overwritten that is still needed */
            memcpy((uint8_t *)data + (size_t)i * row_bytes,
                   (const uint8_t *)data + (size_t)rows[i] * row_bytes, row_bytes);
}

bool tamis_net_experts(tamis_net *net, int32_t layer, const tamis_net_step *step)
{
    const tamis_moe_weights *weights = &net->weights->layers[layer].moe;
    const int32_t hidden = net->config->hidden_size, k = net->config->num_experts_per_tok;
    tamis_net_emit(net, layer, TAMIS_TAP_FFN_IN, net->x, step, hidden);
    if (!tamis_moe_forward(&net->moe, &net->exec, weights, step->tokens, net->x, step->n_tokens,
                           net->v))
        return false;
    if (weights->gate.rows > 0) {
        tamis_net_emit(net, layer, TAMIS_TAP_EXPERTS, net->moe.ids, step, k);
        tamis_net_emit(net, layer, TAMIS_TAP_EXPERT_WEIGHTS, net->moe.weights, step, k);
    }
    tamis_net_emit(net, layer, TAMIS_TAP_FFN_OUT, net->v, step, hidden);
    return true;
}
