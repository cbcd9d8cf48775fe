/* V3.2 and GLM-5 around their attention in double precision: see oracle_v32.h. */
#include "support/oracle_v32.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- experts */

/* Scores of experts outside the topk_group best groups become -inf; returns the margin. A group
 * counts as much as its two best experts together. */
static double mask_groups(double *choice, const tamis_model_config *config)
{
    const int32_t n_group = config->n_group, size = config->n_routed_experts / n_group;
    double *value = oracle_take(n_group, sizeof *value);
    int32_t *kept = oracle_take(config->topk_group, sizeof *kept), best[2];
    for (int32_t g = 0; g < n_group; g++) {
        oracle_choose(best, 2, choice + (int64_t)g * size, size);
        for (int32_t i = 0; i < 2; i++)
            value[g] += best[i] >= 0 ? choice[(int64_t)g * size + best[i]] : 0;
    }
    const double margin = oracle_choose(kept, config->topk_group, value, n_group);
    for (int32_t g = 0; g < n_group; g++) {
        bool is_kept = false;
        for (int32_t i = 0; i < config->topk_group; i++)
            is_kept = is_kept || kept[i] == g;
        for (int32_t e = 0; !is_kept && e < size; e++)
            choice[(int64_t)g * size + e] = -INFINITY;
    }
    free(value);
    free(kept);
    return margin;
}

/* Chooses by score + bias, weighs by score alone. */
static double route(int32_t *ids, double *weights, const double *x, const double *gate,
                    const float *bias, const tamis_model_config *config)
{
    const int32_t n = config->n_routed_experts;
    double *score = oracle_take(n, sizeof *score), *choice = oracle_take(n, sizeof *choice);
    oracle_multiply(score, gate, n, config->hidden_size, x);
    for (int32_t e = 0; e < n; e++) {
        score[e] = oracle_sigmoid(score[e]);
        choice[e] = score[e] + (double)bias[e];
    }
    double margin = config->n_group > 1 ? mask_groups(choice, config) : 1;
    margin = fmin(margin, oracle_choose(ids, config->num_experts_per_tok, choice, n));
    oracle_weigh_experts(weights, ids, score, config);
    free(score);
    free(choice);
    return margin;
}

static void moe(oracle_v32_layer *layer, int32_t n, const tamis_moe_weights *w,
                const tamis_model_config *config)
{
    const int32_t n_experts = config->n_routed_experts, k = config->num_experts_per_tok;
    const int64_t hidden = config->hidden_size;
    layer->experts = oracle_take((int64_t)n * k, sizeof *layer->experts);
    layer->expert_weights = oracle_take((int64_t)n * k, sizeof *layer->expert_weights);
    oracle_expert *experts = oracle_take(n_experts, sizeof *experts);
    for (int32_t e = 0; e < n_experts; e++)
        experts[e] = oracle_expert_open(&w->experts[e]);
    double *gate = oracle_matrix(&w->gate);
    for (int64_t t = 0; t < n; t++) {
        int32_t *ids = layer->experts + t * k;
        double *weights = layer->expert_weights + t * k;
        const double *x = layer->ffn_in + t * hidden;
        layer->margins[t] = route(ids, weights, x, gate, w->bias, config);
        for (int32_t i = 0; i < k; i++)
            oracle_expert_add(layer->ffn_out + t * hidden, &experts[ids[i]], x, weights[i],
                              INFINITY);
    }
    for (int32_t e = 0; e < n_experts; e++)
        oracle_expert_close(&experts[e]);
    free(gate);
    free(experts);
}

/* Dense layers are their shared expert alone. */
static void feed_forward(oracle_v32_layer *layer, int32_t n, const tamis_moe_weights *w,
                         const tamis_model_config *config)
{
    const int64_t hidden = config->hidden_size;
    layer->margins = oracle_take(n, sizeof *layer->margins);
    for (int32_t t = 0; t < n; t++)
        layer->margins[t] = 1;
    if (w->gate.rows > 0)
        moe(layer, n, w, config);
    oracle_expert shared = oracle_expert_open(&w->shared);
    for (int64_t t = 0; shared.w1 != NULL && t < n; t++)
        oracle_expert_add(layer->ffn_out + t * hidden, &shared, layer->ffn_in + t * hidden, 1,
                          INFINITY);
    oracle_expert_close(&shared);
}

/* ---------------------------------------------------------------- model */

oracle_v32 oracle_v32_open(const char *dir)
{
    oracle_v32 model = {.checkpoint = NULL};
    tamis_error err;
    oracle_stop_on(tamis_model_config_read(&model.config, dir, &err), &err);
    oracle_stop_on(tamis_checkpoint_open(&model.checkpoint, dir, &err), &err);
    oracle_stop_on(tamis_model_weights_bind(&model.weights, model.checkpoint, &model.config, &err),
                   &err);
    return model;
}

void oracle_v32_close(oracle_v32 *model)
{
    tamis_model_weights_free(&model->weights);
    tamis_checkpoint_close(&model->checkpoint);
}

/* The layer with what the library derives for it (scale, pairing, eps) derived here again. */
static tamis_sfa_layer attention_layer(const oracle_v32 *model, int32_t i)
{
    const tamis_model_config *config = &model->config;
    tamis_sfa_layer layer = model->weights->layers[i].sfa;
    layer.config.softmax_scale = (float)oracle_sfa_softmax_scale(
        config->qk_nope_head_dim + config->qk_rope_head_dim, (double)config->rope.yarn_factor,
        (double)config->mscale_all_dim);
    layer.config.index_rope_interleave = config->family == TAMIS_FAMILY_GLM_MOE_DSA;
    layer.config.rms_norm_eps = config->rms_norm_eps;
    return layer;
}

static void norm_all(double *y, const double *x, const float *weight, int32_t n,
                     const tamis_model_config *config)
{
    for (int64_t t = 0; t < n; t++)
        oracle_rmsnorm(y + t * config->hidden_size, x + t * config->hidden_size, weight,
                       config->hidden_size, (double)config->rms_norm_eps);
}

/* residual [n][hidden_size] before -> after layer `number` of the weights, kept in run->layers[i];
 * given_topk: the selection to use instead of its own, NULL: its own. */
static void run_layer(oracle_v32_run *run, int32_t i, int32_t number, double *residual,
                      const int32_t *given_topk, const oracle_v32 *model, bool bf16_rows)
{
    const tamis_model_config *config = &model->config;
    const tamis_layer_weights *w = &model->weights->layers[number];
    const tamis_sfa_layer attention = attention_layer(model, number);
    const int64_t size = (int64_t)run->n * config->hidden_size;
    oracle_v32_layer *layer = &run->layers[i];
    layer->attn_in = oracle_take(size, sizeof(double));
    layer->ffn_in = oracle_take(size, sizeof(double));
    layer->ffn_out = oracle_take(size, sizeof(double));
    layer->hidden = oracle_take(size, sizeof(double));

    norm_all(layer->attn_in, residual, w->attn_norm, run->n, config);
    const oracle_sfa_options options = {.given_topk = given_topk, .bf16_rows = bf16_rows};
    layer->attn = oracle_sfa_run(&attention, layer->attn_in, run->n, &options);
    layer->topk = given_topk != NULL ? given_topk : layer->attn.topk;
    for (int64_t j = 0; j < size; j++)
        residual[j] += layer->attn.out[j];

    norm_all(layer->ffn_in, residual, w->ffn_norm, run->n, config);
    feed_forward(layer, run->n, &w->moe, config);
    for (int64_t j = 0; j < size; j++)
        layer->hidden[j] = residual[j] += layer->ffn_out[j];
}

static void run_head(oracle_v32_run *run, double *residual, const float *norm,
                     const tamis_matrix *head_weight, const tamis_model_config *config)
{
    double *head = oracle_matrix(head_weight);
    norm_all(residual, residual, norm, run->n, config);
    for (int64_t t = 0; t < run->n; t++)
        oracle_multiply(run->logits + t * config->vocab_size, head, config->vocab_size,
                        config->hidden_size, residual + t * config->hidden_size);
    free(head);
}

oracle_v32_run oracle_v32_forward(const oracle_v32 *model, const int32_t *ids, int32_t n,
                                  bool bf16_rows)
{
    const tamis_model_config *config = &model->config;
    const int64_t hidden = config->hidden_size;
    oracle_v32_run run = {.n = n, .n_layers = config->num_hidden_layers};
    run.layers = oracle_take(run.n_layers, sizeof *run.layers);
    run.logits = oracle_take((int64_t)n * config->vocab_size, sizeof *run.logits);
    double *embed = oracle_matrix(&model->weights->embed);
    double *residual = oracle_take(n * hidden, sizeof *residual);
    for (int64_t t = 0; t < n; t++)
        memcpy(residual + t * hidden, embed + ids[t] * hidden, (size_t)hidden * sizeof *residual);
    const int32_t *last_topk = NULL; /* of the nearest earlier layer */
    for (int32_t i = 0; i < run.n_layers; i++) {
        const bool reuses = model->weights->layers[i].sfa.config.reuse_topk;
        run_layer(&run, i, i, residual, reuses ? last_topk : NULL, model, bf16_rows);
        last_topk = run.layers[i].topk;
    }
    run_head(&run, residual, model->weights->norm, &model->weights->head, config);
    free(residual);
    free(embed);
    return run;
}

void oracle_v32_run_free(oracle_v32_run *run)
{
    for (int32_t i = 0; i < run->n_layers; i++) {
        oracle_v32_layer *layer = &run->layers[i];
        oracle_sfa_free(&layer->attn);
        free(layer->attn_in);
        free(layer->ffn_in);
        free(layer->ffn_out);
        free(layer->hidden);
        free(layer->experts);
        free(layer->expert_weights);
        free(layer->margins);
    }
    free(run->layers);
    free(run->logits);
    *run = (oracle_v32_run){0};
}

double oracle_v32_index_margin(const oracle_v32_run *run, int32_t first, int32_t last)
{
    double smallest = 1;
    for (int32_t i = 0; i < run->n_layers; i++)
        for (int32_t t = first; t <= last; t++)
            smallest = fmin(smallest, run->layers[i].attn.margins[t]);
    return smallest;
}

double oracle_v32_router_margin(const oracle_v32_run *run, int32_t first, int32_t last)
{
    double smallest = 1;
    for (int32_t i = 0; i < run->n_layers; i++)
        for (int32_t t = first; t <= last; t++)
            smallest = fmin(smallest, run->layers[i].margins[t]);
    return smallest;
}

/* ---------------------------------------------------------------- MTP block */

/* Of n tokens: out = eh_proj . [enorm(embed[id]) ; hnorm(h)] */
static void mtp_inputs(double *out, const double *h, const int32_t *ids, int32_t n,
                       const oracle_v32 *model)
{
    const tamis_model_config *config = &model->config;
    const tamis_mtp_weights *w = &model->weights->mtp;
    const int64_t hidden = config->hidden_size;
    const double eps = (double)config->rms_norm_eps;
    double *embed = oracle_matrix(&w->embed), *eh_proj = oracle_matrix(&w->eh_proj);
    double *both = oracle_take(2 * hidden, sizeof *both);
    for (int64_t t = 0; t < n; t++) {
        oracle_rmsnorm(both, embed + ids[t] * hidden, w->enorm, hidden, eps);
        oracle_rmsnorm(both + hidden, h + t * hidden, w->hnorm, hidden, eps);
        oracle_multiply(out + t * hidden, eh_proj, hidden, 2 * hidden, both);
    }
    free(embed);
    free(eh_proj);
    free(both);
}

/* What every position attends to if further ones share the choice of the last first one. */
static const int32_t *shared_choice(oracle_v32_mtp *mtp)
{
    const int32_t k = mtp->model->config.index_topk;
    if (!mtp->model->config.index_share_for_mtp_iteration || mtp->n == mtp->n_first)
        return NULL;
    for (int64_t t = mtp->n_first; t < mtp->n; t++)
        memcpy(mtp->topk + t * k, mtp->topk + (int64_t)(mtp->n_first - 1) * k,
               (size_t)k * sizeof *mtp->topk);
    return mtp->topk;
}

/* The layer and the head over all inputs: rows that were there before come out as before. */
static void mtp_run(oracle_v32_mtp *mtp)
{
    const oracle_v32 *model = mtp->model;
    const tamis_model_config *config = &model->config;
    const tamis_mtp_weights *w = &model->weights->mtp;
    const int64_t size = (int64_t)mtp->n * config->hidden_size;
    if (mtp->run.layers != NULL)
        oracle_v32_run_free(&mtp->run);
    mtp->run = (oracle_v32_run){.n = mtp->n, .n_layers = 1};
    mtp->run.layers = oracle_take(1, sizeof *mtp->run.layers);
    mtp->run.logits = oracle_take((int64_t)mtp->n * config->vocab_size, sizeof(double));
    double *residual = oracle_take(size, sizeof *residual);
    memcpy(residual, mtp->inputs, (size_t)size * sizeof *residual);
    run_layer(&mtp->run, 0, config->num_hidden_layers, residual, shared_choice(mtp), model, false);
    if (mtp->n == mtp->n_first)
        memcpy(mtp->topk, mtp->run.layers[0].attn.topk,
               (size_t)mtp->n * (size_t)config->index_topk * sizeof *mtp->topk);
    run_head(&mtp->run, residual, w->norm, &w->head, config);
    free(residual);
}

oracle_v32_mtp oracle_v32_mtp_open(const oracle_v32 *model, const oracle_v32_run *run,
                                   const int32_t *next, int32_t n, int32_t n_further)
{
    const tamis_model_config *config = &model->config;
    const int64_t hidden = config->hidden_size;
    oracle_v32_mtp mtp = {.model = model, .n = n, .n_first = n};
    mtp.inputs = oracle_take((n + n_further) * hidden, sizeof(double));
    mtp.topk = oracle_take((int64_t)(n + n_further) * config->index_topk, sizeof *mtp.topk);
    double *h = oracle_take(n * hidden, sizeof *h);
    norm_all(h, run->layers[run->n_layers - 1].hidden, model->weights->norm, n, config);
    mtp_inputs(mtp.inputs, h, next, n, model);
    free(h);
    mtp_run(&mtp);
    return mtp;
}

void oracle_v32_mtp_go_on(oracle_v32_mtp *mtp, int32_t next)
{
    const int64_t hidden = mtp->model->config.hidden_size;
    mtp_inputs(mtp->inputs + mtp->n * hidden, mtp->run.layers[0].hidden + (mtp->n - 1) * hidden,
               &next, 1, mtp->model);
    mtp->n++;
    mtp_run(mtp);
}

void oracle_v32_mtp_close(oracle_v32_mtp *mtp)
{
    oracle_v32_run_free(&mtp->run);
    free(mtp->inputs);
    free(mtp->topk);
}
