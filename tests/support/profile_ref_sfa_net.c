/* Residual stream, feed-forward layers and head around the layers: see profile_ref_sfa.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_sfa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session_internal.h"
#include "model/v32.h"
#include "support/mtp_run.h"
#include "support/oracle_math.h"

#define U (0x1p-24 * 1.001) /* one rounding to f32 */

/* One step of a session: tap and watch of its net. */
typedef struct profile_net {
    profile_case *c;
    tamis_net *net;
    const int32_t *ids; /* [n], and the one behind where there is an MTP block */
    int32_t n;
    float *h;      /* [n][H] residual stream, unrounded since the latest sublayer joined */
    float *ffn_in; /* [n][H] */
} profile_net;

static int64_t hidden_of(const profile_net *p)
{
    return p->net->config->hidden_size;
}

/* ---------------------------------------------------------------- residual stream */

/* The embedding of every token, rounded. */
static void embed(const profile_net *p, float *out, const tamis_matrix *w, const int32_t *ids)
{
    const int64_t hidden = hidden_of(p);
    double *values = profile_matrix(w);
    for (int64_t t = 0; t < p->n; t++)
        for (int64_t i = 0; i < hidden; i++)
            out[t * hidden + i] = (float)lowbit_bf16(values[ids[t] * hidden + i]);
    free(values);
}

/* seen: rows of n norms of h, stride floats apart. */
static void check_norm(const profile_net *p, const char *stage, const float *h, const float *weight,
                       int64_t n, const float *seen, int64_t stride)
{
    const int64_t hidden = hidden_of(p);
    profile_value *x = oracle_take(hidden, sizeof *x);
    for (int64_t t = 0; t < n; t++) {
        profile_rmsnorm(x, h + t * hidden, weight, hidden, (double)p->net->config->rms_norm_eps);
        for (int64_t i = 0; i < hidden; i++)
            profile_expect_bf16(p->c, stage, t, i, seen[t * stride + i], x[i]);
    }
    free(x);
}

/* The norm of a sublayer reads h as it is; h is rounded afterwards. */
static void check_sublayer_norm(profile_net *p, const char *stage, const float *seen,
                                const float *weight)
{
    const int64_t hidden = hidden_of(p);
    check_norm(p, stage, p->h, weight, p->n, seen, hidden);
    for (int64_t i = 0; i < p->n * hidden; i++)
        p->h[i] = (float)lowbit_bf16((double)p->h[i]);
}

/* h += v, one f32 addition. */
static void join(profile_net *p, const float *v)
{
    for (int64_t i = 0; i < p->n * hidden_of(p); i++)
        p->h[i] += v[i];
}

/* ---------------------------------------------------------------- router */

/* The two largest of a group, added. */
static float top_two(const float *choice, int32_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        second = choice[i] > first ? first : fmaxf(second, choice[i]);
        first = fmaxf(first, choice[i]);
    }
    return first + second;
}

/* How many of n values are better than value i: larger, or as large and before it. */
static int32_t num_better(const float *values, int32_t n, int32_t i)
{
    int32_t n_better = 0;
    for (int32_t j = 0; j < n; j++)
        n_better += values[j] > values[i] || (values[j] == values[i] && j < i);
    return n_better;
}

/* From the engine's own scores, so without any freedom: score + bias in f32, best groups, best
 * experts. */
static void check_choice(profile_net *p, const float *score, const float *bias, int64_t token)
{
    const tamis_model_config *config = p->net->config;
    const int32_t n = config->n_routed_experts, n_group = config->n_group, size = n / n_group;
    const int32_t k = config->num_experts_per_tok;
    float *choice = oracle_take(n, sizeof *choice), *groups = oracle_take(n_group, sizeof *groups);
    for (int32_t e = 0; e < n; e++)
        choice[e] = score[e] + bias[e];
    for (int32_t g = 0; g < n_group; g++)
        groups[g] = top_two(choice + g * size, size);
    for (int32_t g = 0; n_group > 1 && g < n_group; g++)
        for (int32_t e = g * size; e < (g + 1) * size; e++)
            if (num_better(groups, n_group, g) >= config->topk_group)
                choice[e] = -INFINITY;
    for (int32_t e = 0, i = 0; e < n; e++)
        if (choice[e] > -INFINITY && num_better(choice, n, e) < k) {
            assert_true(i < k);
            profile_expect_same(p->c, "experts", token, i, p->net->moe.ids[token * k + i], e);
            i++;
        }
    free(choice);
    free(groups);
}

/* Normalised and scaled: k additions, a division, a product. */
static void check_expert_weights(profile_net *p, const float *score, int64_t token)
{
    const tamis_model_config *config = p->net->config;
    const int32_t k = config->num_experts_per_tok;
    double sum = 0;
    for (int32_t i = 0; i < k; i++)
        sum += (double)score[p->net->moe.ids[token * k + i]];
    for (int32_t i = 0; i < k; i++) {
        const double v = (double)score[p->net->moe.ids[token * k + i]] /
                         (config->norm_topk_prob ? sum : 1) * (double)config->routed_scaling_factor;
        profile_expect_f32(p->c, "expert weights", token, i, p->net->moe.weights[token * k + i],
                           (profile_value){v, fabs(v) * (k + 3) * U});
    }
}

/* Logits in f32 from x as it is, scores = sigmoid (3 ulp). */
static void check_router(profile_net *p, const tamis_moe_weights *w)
{
    const int32_t n = p->net->config->n_routed_experts, hidden = (int32_t)hidden_of(p);
    double *gate = profile_matrix(&w->gate), *x = oracle_take(hidden, sizeof *x);
    for (int64_t t = 0; t < p->n; t++) {
        const float *score = p->net->moe.scores + t * n;
        for (int32_t i = 0; i < hidden; i++)
            x[i] = (double)p->ffn_in[t * hidden + i];
        for (int32_t e = 0; e < n; e++) {
            const profile_value logit = profile_quads16(gate + (int64_t)e * hidden, x, hidden);
            const double v = oracle_sigmoid(logit.v);
            profile_expect_f32(p->c, "router scores", t, e, score[e],
                               (profile_value){v, logit.e / 4 + 6 * v * U});
        }
        check_choice(p, score, w->bias, t);
        check_expert_weights(p, score, t);
    }
    free(gate);
    free(x);
}

/* ---------------------------------------------------------------- experts */

/* silu(g) u: exp, 1 + , 1 / , two products; 3 ulp for the sigmoid. */
static void check_product(profile_case *c, int64_t row, const float *gate, const float *up,
                          const float *seen, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double g = (double)gate[i], v = g * oracle_sigmoid(g) * (double)up[i];
        profile_expect_bf16(c, "expert product", row, i, seen[i],
                            (profile_value){v, fabs(v) * 9 * U});
    }
}

/* One expert over n rows x: h [n][I] and up [n][I] are the engine's; out its output. */
static void check_expert(profile_case *c, const tamis_expert_weights *w, const float *x, int64_t n,
                         const float *up, const float *h, const float *out)
{
    const int64_t width = w->w1.rows, hidden = w->w1.cols;
    float *gate = profile_replay_linear(c, "expert w1", &w->w1, x, n, PROFILE_TABLE);
    profile_check_linear(c, "expert w3",
                         &(profile_linear){.w = &w->w3,
                                           .row_end = width,
                                           .x = x,
                                           .y = up,
                                           .x_stride = hidden,
                                           .y_stride = width,
                                           .n = n});
    for (int64_t row = 0; row < n; row++)
        check_product(c, row, gate + row * width, up + row * width, h + row * width, width);
    profile_check_linear(c, "expert w2",
                         &(profile_linear){.w = &w->w2,
                                           .row_end = hidden,
                                           .x = h,
                                           .y = out,
                                           .x_stride = width,
                                           .y_stride = hidden,
                                           .n = n});
    free(gate);
}

/* Rows of expert e: inputs gathered from the tokens. */
static void check_routed(profile_net *p, const tamis_expert_weights *w, int32_t e)
{
    const tamis_moe *moe = &p->net->moe;
    const int64_t hidden = hidden_of(p), first = moe->first_row[e];
    const int64_t n = moe->first_row[e + 1] - first, width = w->w1.rows;
    float *x = oracle_take(n * hidden, sizeof *x);
    for (int64_t row = 0; row < n; row++)
        memcpy(x + row * hidden, p->ffn_in + moe->token_of[first + row] * hidden,
               (size_t)hidden * sizeof *x);
    if (n > 0)
        check_expert(p->c, w, x, n, moe->up + first * width, moe->gate + first * width,
                     moe->rows + first * hidden);
    free(x);
}

/* The chain over a token's experts, the shared expert last; rounded once. */
static void check_sum(profile_net *p, const float *shared, const float *out)
{
    const tamis_moe *moe = &p->net->moe;
    const int64_t hidden = hidden_of(p), k = p->net->config->num_experts_per_tok;
    for (int64_t t = 0; t < p->n; t++)
        for (int64_t d = 0; d < hidden; d++) {
            double sum = 0, partials = 0;
            for (int64_t i = t * k; i < (t + 1) * k; i++) {
                sum += (double)moe->weights[i] * (double)moe->rows[moe->row_of[i] * hidden + d];
                partials += fabs(sum);
            }
            sum += (double)shared[t * hidden + d];
            profile_expect_bf16(p->c, "expert sum", t, d, out[t * hidden + d],
                                (profile_value){sum, (partials + fabs(sum)) * U});
        }
}

/* The shared expert's values stand behind those of the routed rows; its output is only kept in a
 * dense layer, else made again. */
static void check_feed_forward(profile_net *p, const tamis_moe_weights *w, const float *out)
{
    const tamis_moe *moe = &p->net->moe;
    const bool is_dense = w->gate.rows == 0;
    const int64_t n_routed =
        is_dense ? 0 : (int64_t)p->n * p->net->config->num_experts_per_tok * w->experts[0].w1.rows;
    const float *h = moe->gate + n_routed, *up = moe->up + n_routed;
    if (is_dense) {
        check_expert(p->c, &w->shared, p->ffn_in, p->n, up, h, out);
        return;
    }
    check_router(p, w);
    for (int32_t e = 0; e < p->net->config->n_routed_experts; e++)
        check_routed(p, &w->experts[e], e);
    float *shared = profile_replay_linear(p->c, "shared w2", &w->shared.w2, h, p->n, PROFILE_TABLE);
    check_expert(p->c, &w->shared, p->ffn_in, p->n, up, h, shared);
    check_sum(p, shared, out);
    free(shared);
}

/* ---------------------------------------------------------------- MTP block */

/* A norm that the engine keeps to itself, made again by the library and checked. */
static void replay_norm(const profile_net *p, const char *stage, const float *h,
                        const float *weight, float *out, int64_t stride)
{
    assert_true(tamis_net_norm_rows(p->net, h, weight, p->n, out, stride));
    check_norm(p, stage, h, weight, p->n, out, stride);
}

/* h = eh_proj . [enorm(embedding of the next token) ; hnorm(norm(h))] */
static void enter_mtp(profile_net *p)
{
    const tamis_mtp_weights *w = &p->net->weights->mtp;
    const int64_t hidden = hidden_of(p), size = p->n * hidden;
    float *x = oracle_take(size, sizeof *x), *eh = oracle_take(2 * size, sizeof *eh);
    embed(p, x, &w->embed, p->ids + 1);
    replay_norm(p, "enorm", x, w->enorm, eh, 2 * hidden);
    replay_norm(p, "final norm", p->h, p->net->weights->norm, x, hidden);
    replay_norm(p, "hnorm", x, w->hnorm, eh + hidden, 2 * hidden);
    free(p->h);
    p->h = profile_replay_linear(p->c, "eh_proj", &w->eh_proj, eh, p->n, PROFILE_TABLE);
    free(x);
    free(eh);
}

/* ---------------------------------------------------------------- tap and watch */

static void check_tap(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                      int64_t n_tokens, int64_t width)
{
    profile_net *p = user;
    const tamis_layer_weights *w = &p->net->weights->layers[layer];
    const size_t bytes = (size_t)(n_tokens * width) * sizeof(float);
    assert_int_equal(n_tokens, p->n);
    p->c->layer = layer;
    switch (stage) {
    case TAMIS_TAP_ATTN_IN:
        if (layer == 0)
            embed(p, p->h, &p->net->weights->embed, p->ids);
        else if (layer == p->net->weights->n_layers)
            enter_mtp(p);
        check_sublayer_norm(p, "attn_in", data, w->attn_norm);
        break;
    case TAMIS_TAP_ATTN_OUT:
        join(p, data);
        break;
    case TAMIS_TAP_FFN_IN:
        check_sublayer_norm(p, "ffn_in", data, w->ffn_norm);
        memcpy(p->ffn_in, data, bytes);
        break;
    case TAMIS_TAP_FFN_OUT:
        check_feed_forward(p, &w->moe, data);
        join(p, data);
        break;
    case TAMIS_TAP_HIDDEN:
        for (int64_t i = 0; i < n_tokens * width; i++)
            profile_expect_same(p->c, "residual", i / width, i % width,
                                (double)((const float *)data)[i], (double)p->h[i]);
        break;
    default:
        break;
    }
}

static bool check_moment(void *user, tamis_net_moment moment, int32_t layer)
{
    profile_net *p = user;
    const profile_layer l = {.layer = &p->net->weights->layers[layer].sfa,
                             .layer_idx = layer,
                             .plan = tamis_v32_plan(p->net),
                             .caches = tamis_v32_caches(p->net),
                             .x = p->net->x};
    if (moment == TAMIS_NET_ROWS_WRITTEN)
        profile_check_preprocess(p->c, &l);
    else if (moment == TAMIS_NET_LAYER_DONE)
        profile_check_output(p->c, &l, p->net->v);
    return true;
}

/* ---------------------------------------------------------------- prompt */

/* Final norm and logits [n_rows][vocab_size] of tokens rows. */
static void check_head(profile_net *p, const float *norm, const tamis_matrix *head,
                       const int32_t *rows, int32_t n_rows, const float *logits)
{
    const int64_t hidden = hidden_of(p);
    float *h = oracle_take(n_rows * hidden, sizeof *h);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(h + i * hidden, p->h + rows[i] * hidden, (size_t)hidden * sizeof *h);
    p->c->layer++;
    check_norm(p, "final norm", h, norm, n_rows, p->net->head_x, hidden);
    profile_check_linear(p->c, "logits",
                         &(profile_linear){.w = head,
                                           .row_end = head->rows,
                                           .x = p->net->head_x,
                                           .y = logits,
                                           .x_stride = head->cols,
                                           .y_stride = head->rows,
                                           .n = n_rows,
                                           .flags = PROFILE_KEEP_INPUT | PROFILE_KEEP_OUTPUT});
    free(h);
}

/* The block over all tokens; logits of some. */
static void run_mtp(profile_net *p, test_engine *engine)
{
    const int32_t rows[] = {0, p->n / 2, p->n - 1};
    const tamis_mtp_weights *w = &p->net->weights->mtp;
    float *logits = oracle_take(3 * (int64_t)engine->info->vocab_size, sizeof *logits);
    test_mtp_over_step(engine, p->ids + 1, p->n, rows, 3, logits);
    check_head(p, w->norm, &w->head, rows, 3, logits);
    free(logits);
}

void profile_check_prompt(profile_case *c, test_engine *engine, const int32_t *ids, int32_t n)
{
    tamis_net *net = tamis_session_net(engine->session);
    const int64_t size = n * (int64_t)net->config->hidden_size;
    profile_net p = {.c = c,
                     .net = net,
                     .ids = ids,
                     .n = n,
                     .h = oracle_take(size, sizeof(float)),
                     .ffn_in = oracle_take(size, sizeof(float))};
    float *logits = oracle_take(n * (int64_t)engine->info->vocab_size, sizeof *logits);
    int32_t *rows = oracle_take(n, sizeof *rows);
    for (int32_t i = 0; i < n; i++)
        rows[i] = i;
    const int32_t seq = test_seq_new(engine);
    tamis_session_set_tap(engine->session, check_tap, &p);
    net->watch = (tamis_net_watch){check_moment, &p};
    test_feed(engine, seq, ids, n, 0, logits);
    check_head(&p, net->weights->norm, &net->weights->head, rows, n, logits);
    if (net->params.draft)
        run_mtp(&p, engine);
    net->watch = (tamis_net_watch){NULL, NULL};
    tamis_session_set_tap(engine->session, NULL, NULL);
    test_seq_drop(engine, seq);
    free(p.h);
    free(p.ffn_in);
    free(logits);
    free(rows);
}
