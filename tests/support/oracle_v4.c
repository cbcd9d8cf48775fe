/* DeepSeek-V4 around its attention in double precision: see oracle_v4.h. */
#include "support/oracle_v4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- hyper-connections */

/* fn (all streams) times the streams' common RMS factor. */
static void control(double *z, const double *streams, const double *fn, int64_t rows,
                    const tamis_model_config *config)
{
    const int64_t width = (int64_t)config->hc_mult * config->hidden_size;
    double *normed = oracle_take(width, sizeof *normed);
    oracle_rmsnorm(normed, streams, NULL, width, (double)config->rms_norm_eps);
    oracle_multiply(z, fn, rows, width, normed);
    free(normed);
}

/* combine[a][b] = entry [a * row_step + b * col_step]: divide every line by its sum plus eps. */
static void normalise_lines(double *combine, int m, int line_step, int item_step, double eps)
{
    for (int line = 0; line < m; line++) {
        double sum = eps;
        for (int i = 0; i < m; i++)
            sum += combine[line * line_step + i * item_step];
        for (int i = 0; i < m; i++)
            combine[line * line_step + i * item_step] /= sum;
    }
}

void oracle_hyper_connection(double *pre, double *post, double *combine, const double *streams,
                             const double *fn, const tamis_hc_weights *hc,
                             const tamis_model_config *config)
{
    const int m = config->hc_mult;
    const double eps = (double)config->hc_eps;
    double z[(2 + TAMIS_MAX_HC_MULT) * TAMIS_MAX_HC_MULT];
    control(z, streams, fn, hc->fn.rows, config);
    for (int i = 0; i < hc->fn.rows; i++)
        z[i] = z[i] * (double)hc->scale[i < m ? 0 : i < 2 * m ? 1 : 2] + (double)hc->base[i];
    for (int s = 0; s < m; s++) {
        pre[s] = oracle_sigmoid(z[s]) + eps;
        post[s] = 2 * oracle_sigmoid(z[m + s]);
        double max = z[2 * m + s * m], sum = 0;
        for (int b = 0; b < m; b++)
            max = fmax(max, z[2 * m + s * m + b]);
        for (int b = 0; b < m; b++)
            sum += exp(z[2 * m + s * m + b] - max);
        for (int b = 0; b < m; b++)
            combine[s * m + b] = exp(z[2 * m + s * m + b] - max) / sum + eps;
    }
    normalise_lines(combine, m, 1, m, eps); /* columns */
    for (int i = 1; i < config->hc_sinkhorn_iters; i++) {
        normalise_lines(combine, m, m, 1, eps); /* rows */
        normalise_lines(combine, m, 1, m, eps);
    }
}

static void collapse(double *u, const double *pre, const double *streams, int m, int64_t hidden)
{
    for (int64_t i = 0; i < hidden; i++) {
        u[i] = 0;
        for (int s = 0; s < m; s++)
            u[i] += pre[s] * streams[s * hidden + i];
    }
}

/* X'_b = post_b v + sum over a of combine[a][b] X_a, in place. */
static void expand(double *streams, const double *v, const double *post, const double *combine,
                   int m, int64_t hidden)
{
    for (int64_t i = 0; i < hidden; i++) {
        double old[TAMIS_MAX_HC_MULT];
        for (int a = 0; a < m; a++)
            old[a] = streams[a * hidden + i];
        for (int b = 0; b < m; b++) {
            double sum = post[b] * v[i];
            for (int a = 0; a < m; a++)
                sum += combine[a * m + b] * old[a];
            streams[b * hidden + i] = sum;
        }
    }
}

/* ---------------------------------------------------------------- experts */

static double router_score(double logit, tamis_scoring_func func)
{
    if (func == TAMIS_SCORING_SIGMOID)
        return oracle_sigmoid(logit);
    if (func == TAMIS_SCORING_SOFTMAX)
        return exp(logit); /* normalised by the caller */
    return sqrt(logit > 30 ? logit : log1p(exp(logit)));
}

static void score_experts(double *score, const double *gate, const double *x,
                          const tamis_model_config *config)
{
    const int32_t n = config->n_routed_experts;
    double sum = 0;
    oracle_multiply(score, gate, n, config->hidden_size, x);
    for (int32_t e = 0; e < n; e++)
        sum += score[e] = router_score(score[e], config->scoring_func);
    for (int32_t e = 0; config->scoring_func == TAMIS_SCORING_SOFTMAX && e < n; e++)
        score[e] /= sum;
}

/* ids of the k largest score + bias, lower id first on ties; returns the margin to the next. */
static double choose_experts(int32_t *ids, const double *score, const float *bias,
                             const tamis_model_config *config)
{
    const int32_t n = config->n_routed_experts, k = config->num_experts_per_tok;
    double worst_in = INFINITY, best_out = -INFINITY, largest = 0;
    int32_t n_ids = 0;
    for (int32_t e = 0; e < n; e++) {
        const double value = score[e] + (double)bias[e];
        int32_t n_better = 0;
        for (int32_t i = 0; i < n; i++) {
            const double other = score[i] + (double)bias[i];
            n_better += other > value || (other == value && i < e);
        }
        if (n_better < k)
            ids[n_ids++] = e;
        worst_in = n_better < k ? fmin(worst_in, value) : worst_in;
        best_out = n_better < k ? best_out : fmax(best_out, value);
        largest = fmax(largest, fabs(value));
    }
    return k < n ? (worst_in - best_out) / largest : 1;
}

/* One token through router and experts. */
static void moe_token(oracle_v4_run *run, oracle_v4_layer *layer, int32_t t, int32_t id,
                      const tamis_moe_weights *w, const double *gate, const oracle_expert *experts,
                      const tamis_model_config *config)
{
    const int32_t k = config->num_experts_per_tok;
    const double *x = layer->ffn_in + (int64_t)t * config->hidden_size;
    int32_t *ids = layer->experts + (int64_t)t * k;
    double *weights = layer->expert_weights + (int64_t)t * k;
    double *y = layer->ffn_out + (int64_t)t * config->hidden_size;
    double *score = oracle_take(config->n_routed_experts, sizeof *score);
    score_experts(score, gate, x, config);
    if (w->tid2eid != NULL) {
        for (int32_t i = 0; i < k; i++) {
            int64_t wide;
            memcpy(&wide, (const char *)w->tid2eid + ((int64_t)id * k + i) * 8, sizeof wide);
            ids[i] = (int32_t)wide;
        }
    } else {
        run->router_margin = fmin(run->router_margin, choose_experts(ids, score, w->bias, config));
    }
    oracle_weigh_experts(weights, ids, score, config);
    for (int32_t i = 0; i < k; i++)
        oracle_expert_add(y, &experts[ids[i]], x, weights[i], (double)config->swiglu_limit);
    if (experts[config->n_routed_experts].w1 != NULL)
        oracle_expert_add(y, &experts[config->n_routed_experts], x, 1,
                          (double)config->swiglu_limit);
    free(score);
}

static void moe(oracle_v4_run *run, oracle_v4_layer *layer, const int32_t *token_ids,
                const tamis_moe_weights *w, const tamis_model_config *config)
{
    const int32_t n_experts = config->n_routed_experts;
    oracle_expert *experts = oracle_take(n_experts + 1, sizeof *experts);
    for (int32_t e = 0; e <= n_experts; e++)
        experts[e] = oracle_expert_open(e < n_experts ? &w->experts[e] : &w->shared);
    double *gate = oracle_matrix(&w->gate);
    for (int32_t t = 0; t < run->n; t++)
        moe_token(run, layer, t, token_ids[t], w, gate, experts, config);
    for (int32_t e = 0; e <= n_experts; e++)
        oracle_expert_close(&experts[e]);
    free(gate);
    free(experts);
}

/* ---------------------------------------------------------------- model */

oracle_v4 oracle_v4_open(const char *dir)
{
    oracle_v4 model = {.checkpoint = NULL};
    tamis_error err;
    oracle_stop_on(tamis_model_config_read(&model.config, dir, &err), &err);
    oracle_stop_on(tamis_checkpoint_open(&model.checkpoint, dir, &err), &err);
    oracle_stop_on(tamis_model_weights_bind(&model.weights, model.checkpoint, &model.config, &err),
                   &err);
    return model;
}

void oracle_v4_close(oracle_v4 *model)
{
    tamis_model_weights_free(&model->weights);
    tamis_checkpoint_close(&model->checkpoint);
}

/* What one hyper-connection site of all tokens keeps between collapse and expansion. */
typedef struct site {
    double *pre, *post, *combine; /* [n][m], [n][m], [n][m * m] */
} site;

static site site_enter(double *x, const double *streams, const tamis_hc_weights *hc,
                       const float *norm, const tamis_model_config *config, int32_t n)
{
    const int m = config->hc_mult;
    const int64_t hidden = config->hidden_size;
    site s = {oracle_take(n * m, sizeof(double)), oracle_take(n * m, sizeof(double)),
              oracle_take(n * m * m, sizeof(double))};
    double *fn = oracle_matrix(&hc->fn);
    for (int32_t t = 0; t < n; t++) {
        const double *mine = streams + t * m * hidden;
        oracle_hyper_connection(s.pre + t * m, s.post + t * m, s.combine + t * m * m, mine, fn, hc,
                                config);
        collapse(x + t * hidden, s.pre + t * m, mine, m, hidden);
        oracle_rmsnorm(x + t * hidden, x + t * hidden, norm, hidden, (double)config->rms_norm_eps);
    }
    free(fn);
    return s;
}

static void site_leave(site *s, double *streams, const double *v, const tamis_model_config *config,
                       int32_t n)
{
    const int m = config->hc_mult;
    const int64_t hidden = config->hidden_size;
    for (int32_t t = 0; t < n; t++)
        expand(streams + t * m * hidden, v + t * hidden, s->post + t * m, s->combine + t * m * m, m,
               hidden);
    free(s->pre);
    free(s->post);
    free(s->combine);
}

/* Layer `number` of the weights, kept in run->layers[i]. */
static void run_layer(oracle_v4_run *run, int32_t i, int32_t number, double *streams,
                      const int32_t *ids, const oracle_v4 *model,
                      const oracle_attention_options *options)
{
    const tamis_model_config *config = &model->config;
    const tamis_layer_weights *w = &model->weights->layers[number];
    const int64_t size = (int64_t)run->n * config->hidden_size;
    const int64_t n_chosen = (int64_t)run->n * config->num_experts_per_tok;
    oracle_v4_layer *layer = &run->layers[i];
    layer->attn_in = oracle_take(size, sizeof(double));
    layer->ffn_in = oracle_take(size, sizeof(double));
    layer->ffn_out = oracle_take(size, sizeof(double));
    layer->hidden = oracle_take(size * config->hc_mult, sizeof(double));
    layer->experts = oracle_take(n_chosen, sizeof(int32_t));
    layer->expert_weights = oracle_take(n_chosen, sizeof(double));

    site s = site_enter(layer->attn_in, streams, &w->hc_attn, w->attn_norm, config, run->n);
    layer->attn = oracle_attention_run(&w->dsa, layer->attn_in, run->n, options);
    run->index_margin = fmin(run->index_margin, layer->attn.index_margin);
    site_leave(&s, streams, layer->attn.out, config, run->n);

    s = site_enter(layer->ffn_in, streams, &w->hc_ffn, w->ffn_norm, config, run->n);
    moe(run, layer, ids, &w->moe, config);
    site_leave(&s, streams, layer->ffn_out, config, run->n);
    memcpy(layer->hidden, streams, (size_t)(size * config->hc_mult) * sizeof(double));
}

/* What stands between the streams and the logits: of the main model, or of its MTP block. */
typedef struct head_weights {
    const tamis_hc_weights *hc;
    const float *norm;
    const tamis_matrix *head;
} head_weights;

static void run_head(oracle_v4_run *run, const double *streams, const head_weights *w,
                     const tamis_model_config *config)
{
    const int m = config->hc_mult;
    const int64_t hidden = config->hidden_size;
    const tamis_hc_weights *hc = w->hc;
    double *head = oracle_matrix(w->head), *u = oracle_take(hidden, sizeof *u);
    double *fn = oracle_matrix(&hc->fn);
    for (int32_t t = 0; t < run->n; t++) {
        double z[TAMIS_MAX_HC_MULT];
        control(z, streams + t * m * hidden, fn, hc->fn.rows, config);
        for (int s = 0; s < m; s++)
            z[s] = oracle_sigmoid(z[s] * (double)hc->scale[0] + (double)hc->base[s]) +
                   (double)config->hc_eps;
        collapse(u, z, streams + t * m * hidden, m, hidden);
        oracle_rmsnorm(u, u, w->norm, hidden, (double)config->rms_norm_eps);
        oracle_multiply(run->logits + (int64_t)t * config->vocab_size, head, config->vocab_size,
                        hidden, u);
    }
    free(fn);
    free(head);
    free(u);
}

oracle_v4_run oracle_v4_forward(const oracle_v4 *model, const int32_t *ids, int32_t n,
                                bool bf16_rows)
{
    const tamis_model_config *config = &model->config;
    const int32_t n_layers = config->num_hidden_layers;
    const int64_t hidden = config->hidden_size, m = config->hc_mult;
    oracle_v4_run run = {.n = n, .n_layers = n_layers, .index_margin = 1, .router_margin = 1};
    run.layers = oracle_take(n_layers, sizeof *run.layers);
    run.logits = oracle_take((int64_t)n * config->vocab_size, sizeof *run.logits);
    double *embed = oracle_matrix(&model->weights->embed);
    double *streams = oracle_take(n * m * hidden, sizeof *streams);
    for (int64_t t = 0; t < n; t++)
        for (int64_t s = 0; s < m; s++)
            memcpy(streams + (t * m + s) * hidden, embed + ids[t] * hidden,
                   (size_t)hidden * sizeof *streams);
    const int32_t *last_topk = NULL; /* of the nearest earlier layer that chose */
    for (int32_t i = 0; i < n_layers; i++) {
        const oracle_attention_options options = {
            .given_topk = model->weights->layers[i].dsa.config.reuse_topk ? last_topk : NULL,
            .bf16_rows = bf16_rows};
        run_layer(&run, i, i, streams, ids, model, &options);
        last_topk = run.layers[i].attn.topk != NULL ? run.layers[i].attn.topk : last_topk;
    }
    const head_weights head = {&model->weights->hc_head, model->weights->norm,
                               &model->weights->head};
    run_head(&run, streams, &head, config);
    free(streams);
    free(embed);
    return run;
}

void oracle_v4_run_free(oracle_v4_run *run)
{
    for (int32_t i = 0; i < run->n_layers; i++) {
        oracle_v4_layer *layer = &run->layers[i];
        oracle_attention_free(&layer->attn);
        free(layer->attn_in);
        free(layer->ffn_in);
        free(layer->ffn_out);
        free(layer->hidden);
        free(layer->experts);
        free(layer->expert_weights);
    }
    free(run->layers);
    free(run->logits);
    *run = (oracle_v4_run){0};
}

/* ---------------------------------------------------------------- MTP block */

/* Of n tokens: out [m][hidden] = e_proj . enorm(embed[id]) + h_proj . hnorm(streams), per stream.
 */
static void mtp_inputs(double *out, const double *streams, const int32_t *ids, int32_t n,
                       const oracle_v4 *model)
{
    const tamis_model_config *config = &model->config;
    const tamis_mtp_weights *w = &model->weights->mtp;
    const int64_t hidden = config->hidden_size, m = config->hc_mult;
    const double eps = (double)config->rms_norm_eps;
    double *embed = oracle_matrix(&w->embed), *e_proj = oracle_matrix(&w->e_proj);
    double *h_proj = oracle_matrix(&w->h_proj), *e = oracle_take(hidden, sizeof *e);
    double *normed = oracle_take(hidden, sizeof *normed);
    for (int64_t row = 0; row < n * m; row++) {
        if (row % m == 0) {
            oracle_rmsnorm(normed, embed + ids[row / m] * hidden, w->enorm, hidden, eps);
            oracle_multiply(e, e_proj, hidden, hidden, normed);
        }
        oracle_rmsnorm(normed, streams + row * hidden, w->hnorm, hidden, eps);
        oracle_multiply(out + row * hidden, h_proj, hidden, hidden, normed);
        for (int64_t i = 0; i < hidden; i++)
            out[row * hidden + i] += e[i];
    }
    free(embed);
    free(e_proj);
    free(h_proj);
    free(e);
    free(normed);
}

/* The layer and the head over all inputs: rows that were there before come out as before. */
static void mtp_run(oracle_v4_mtp *mtp)
{
    const oracle_v4 *model = mtp->model;
    const tamis_mtp_weights *w = &model->weights->mtp;
    const int64_t size = (int64_t)mtp->n * model->config.hc_mult * model->config.hidden_size;
    const head_weights head = {&w->hc_head, w->norm, &w->head};
    const oracle_attention_options options = {.bf16_rows = false};
    if (mtp->run.layers != NULL)
        oracle_v4_run_free(&mtp->run);
    mtp->run = (oracle_v4_run){.n = mtp->n, .n_layers = 1, .index_margin = 1, .router_margin = 1};
    mtp->run.layers = oracle_take(1, sizeof *mtp->run.layers);
    mtp->run.logits = oracle_take((int64_t)mtp->n * model->config.vocab_size, sizeof(double));
    double *streams = oracle_take(size, sizeof *streams);
    int32_t *no_ids = oracle_take(mtp->n, sizeof *no_ids); /* routing is learned */
    memcpy(streams, mtp->inputs, (size_t)size * sizeof *streams);
    run_layer(&mtp->run, 0, model->config.num_hidden_layers, streams, no_ids, model, &options);
    run_head(&mtp->run, streams, &head, &model->config);
    free(streams);
    free(no_ids);
}

oracle_v4_mtp oracle_v4_mtp_open(const oracle_v4 *model, const oracle_v4_run *run,
                                 const int32_t *next, int32_t n, int32_t n_further)
{
    const int64_t width = (int64_t)model->config.hc_mult * model->config.hidden_size;
    oracle_v4_mtp mtp = {.model = model, .n = n};
    mtp.inputs = oracle_take((n + n_further) * width, sizeof(double));
    mtp_inputs(mtp.inputs, run->layers[run->n_layers - 1].hidden, next, n, model);
    mtp_run(&mtp);
    return mtp;
}

void oracle_v4_mtp_go_on(oracle_v4_mtp *mtp, int32_t next)
{
    const int64_t width = (int64_t)mtp->model->config.hc_mult * mtp->model->config.hidden_size;
    mtp_inputs(mtp->inputs + mtp->n * width, mtp->run.layers[0].hidden + (mtp->n - 1) * width,
               &next, 1, mtp->model);
    mtp->n++;
    mtp_run(mtp);
}

void oracle_v4_mtp_close(oracle_v4_mtp *mtp)
{
    oracle_v4_run_free(&mtp->run);
    free(mtp->inputs);
}
