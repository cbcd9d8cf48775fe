#include "model/moe.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "core/size.h"
#include "kernels/math.h"
#include "ops/linear_inputs.h"
#include "ops/topk.h"
#include "weights/expert_ids.h"

/* Columns or elements of one unit of the elementwise passes. */
#define GRAIN 256

typedef struct moe_pass {
    tamis_moe *moe;
    const tamis_exec *exec;
    const tamis_moe_weights *weights;
    const int32_t *tokens;
    const float *x;
    float *y;
    int64_t n_tokens;
    atomic_bool has_fault;
} moe_pass;

/* clang-format off */
static bool is_dense(const moe_pass *pass) { return pass->weights->gate.rows == 0; }
static int64_t num_experts(const moe_pass *pass) { return pass->weights->gate.rows; }
static int64_t per_token(const moe_pass *pass) { return is_dense(pass) ? 0 : pass->moe->config->num_experts_per_tok; }
static int64_t hidden_size(const moe_pass *pass) { return pass->moe->config->hidden_size; }
static int64_t width(const moe_pass *pass) { return pass->moe->config->moe_intermediate_size; }
static int64_t shared_width(const moe_pass *pass) { return pass->weights->shared.w1.rows; }
/* clang-format on */

/* Width of the dense layers; 0: there are none. */
static int64_t dense_width(const tamis_model_config *config)
{
    for (int32_t i = 0; i < config->num_hidden_layers; i++)
        if (config->is_dense_layer[i])
            return config->intermediate_size;
    return 0;
}

/* Inner values of a token in the widest layer. */
static int64_t inner_floats(const tamis_model_config *config)
{
    const int64_t n_experts = (int64_t)config->num_experts_per_tok + config->n_shared_experts;
    return tamis_max_i64(n_experts * config->moe_intermediate_size, dense_width(config));
}

void tamis_moe_layout(tamis_moe *moe, tamis_arena *arena)
{
    const tamis_model_config *c = moe->config;
    const size_t n_tokens = (size_t)moe->max_tokens, n_experts = (size_t)c->n_routed_experts;
    const size_t n_rows = n_tokens * (size_t)c->num_experts_per_tok;
    const size_t inner = n_tokens * (size_t)inner_floats(c);
    moe->scores = tamis_arena_take(arena, n_tokens * n_experts, sizeof(float));
    moe->ids = tamis_arena_take(arena, n_rows, sizeof(int32_t));
    moe->weights = tamis_arena_take(arena, n_rows, sizeof(float));
    moe->first_row = tamis_arena_take(arena, n_experts + 1, sizeof(int32_t));
    moe->row_of = tamis_arena_take(arena, n_rows, sizeof(int32_t));
    moe->token_of = tamis_arena_take(arena, n_rows, sizeof(int32_t));
    moe->row_weights = tamis_arena_take(arena, n_rows, sizeof(float));
    moe->rows = tamis_arena_take(arena, n_rows * (size_t)c->hidden_size, sizeof(float));
    moe->gate = tamis_arena_take(arena, inner, sizeof(float));
    moe->up = tamis_arena_take(arena, inner, sizeof(float));
    moe->jobs = tamis_arena_take(arena, 2 * (n_experts + 1), sizeof *moe->jobs);
}

size_t tamis_moe_scratch_floats(const tamis_model_config *config)
{
    int64_t cols = tamis_max_i64(config->hidden_size, dense_width(config));
    cols = tamis_max_i64(cols, (int64_t)config->moe_intermediate_size *
                                   tamis_max_i64(config->n_shared_experts, 1));
    const size_t linear = TAMIS_LINEAR_SCRATCH(cols);
    const size_t routing = (size_t)config->n_routed_experts + (size_t)config->n_group;
    return linear > routing ? linear : routing;
}

/* The largest of the four passes. Inputs of w1 and w3 count once: see project_up. */
size_t tamis_moe_input_bytes(const tamis_model_config *config, int64_t n_tokens)
{
    const int64_t n_experts = config->n_routed_experts, hidden = config->hidden_size;
    const int64_t n_rows = n_tokens * config->num_experts_per_tok;
    const int64_t shared = (int64_t)config->moe_intermediate_size * config->n_shared_experts;
    const size_t sparse_up = tamis_linear_input_bytes(2 * n_experts + 2, n_rows + n_tokens, hidden);
    const size_t sparse_down =
        tamis_linear_input_bytes(n_experts + 1, n_rows, config->moe_intermediate_size) +
        tamis_linear_input_bytes(1, n_tokens, shared);
    const size_t dense_up = tamis_linear_input_bytes(2, n_tokens, hidden);
    const size_t dense_down = tamis_linear_input_bytes(1, n_tokens, dense_width(config));
    const size_t sparse = sparse_up > sparse_down ? sparse_up : sparse_down;
    const size_t dense = dense_up > dense_down ? dense_up : dense_down;
    return sparse > dense ? sparse : dense;
}

/* ---------------------------------------------------------------- router */

static float score_of(tamis_scoring_func scoring, float logit)
{
    return scoring == TAMIS_SCORING_SIGMOID ? tamis_math_sigmoid(logit)
                                            : sqrtf(tamis_math_softplus(logit));
}

static void softmax(float *x, int64_t n)
{
    float max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = tamis_math_exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Logits to scores, in place. false: a logit is not finite; a score would hide an infinity, as 0
 * or 1. */
static bool score(const moe_pass *pass, float *scores)
{
    const tamis_scoring_func scoring = pass->moe->config->scoring_func;
    if (!pass->exec->kernels->all_finite(scores, num_experts(pass)))
        return false;
    if (scoring == TAMIS_SCORING_SOFTMAX)
        softmax(scores, num_experts(pass));
    else
        for (int64_t e = 0; e < num_experts(pass); e++)
            scores[e] = score_of(scoring, scores[e]);
    return true;
}

/* The larger plus the second largest of n >= 2 scores. */
static float top_two(const float *x, int64_t n)
{
    float first = x[0], second = -INFINITY;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    return first + second;
}

/* Whether fewer than `k` of n groups have a larger score, or the same one and a lower number. */
static bool is_kept(const float *group_scores, int32_t n, int32_t group, int32_t k)
{
    int32_t n_better = 0;
    for (int32_t g = 0; g < n; g++)
        n_better += group_scores[g] > group_scores[group] ||
                    (g < group && group_scores[g] == group_scores[group]);
    return n_better < k;
}

static void push(tamis_topk *topk, const tamis_kernels *kernels, const float *biased, int32_t first,
                 int32_t end)
{
    for (; first < end; first += TAMIS_TOPK_BLOCK) {
        const int32_t n = end - first;
        tamis_topk_push(topk, kernels, biased + first, n < TAMIS_TOPK_BLOCK ? n : TAMIS_TOPK_BLOCK,
                        first);
    }
}

/* Only experts of the best groups stand for election: a biased score may be negative, so no finite
 * value could stand in for those of the others. */
static void push_groups(const moe_pass *pass, tamis_topk *topk, const float *biased,
                        float *group_scores)
{
    const tamis_model_config *c = pass->moe->config;
    const int32_t size = c->n_routed_experts / c->n_group;
    for (int32_t g = 0; g < c->n_group; g++)
        group_scores[g] = top_two(biased + g * size, size);
    for (int32_t g = 0; g < c->n_group; g++)
        if (is_kept(group_scores, c->n_group, g, c->topk_group))
            push(topk, pass->exec->kernels, biased, g * size, (g + 1) * size);
}

/* The bias chooses, but does not weigh. false: some score is not a number. */
static bool choose(const moe_pass *pass, const float *scores, int32_t *ids, float *scratch)
{
    const tamis_kernels *k = pass->exec->kernels;
    const int32_t n_experts = (int32_t)num_experts(pass);
    float *biased = scratch; /* [n_experts]; group scores [n_group] follow */
    tamis_candidate items[3 * TAMIS_MAX_EXPERTS_PER_TOK + 2 * TAMIS_TOPK_BLOCK];
    tamis_topk topk;
    memcpy(biased, scores, (size_t)n_experts * sizeof *biased);
    if (pass->weights->bias != NULL)
        k->add(biased, pass->weights->bias, n_experts);
    if (!k->all_finite(biased, n_experts))
        return false;
    tamis_topk_init(&topk, items, (int32_t)per_token(pass));
    if (pass->moe->config->n_group > 1)
        push_groups(pass, &topk, biased, biased + n_experts);
    else
        push(&topk, k, biased, 0, n_experts);
    return tamis_topk_finish(&topk, ids) == topk.k;
}

/* A row of tid2eid, sorted; an expert may stand there twice. */
static void look_up(const moe_pass *pass, int32_t token, int32_t *ids)
{
    const int64_t n = per_token(pass);
    for (int64_t j = 0; j < n; j++) {
        const int32_t id = tamis_expert_id(pass->weights->tid2eid, token * n + j);
        int64_t at = j;
        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

static void weigh(const moe_pass *pass, const float *scores, const int32_t *ids, float *weights)
{
    const tamis_model_config *c = pass->moe->config;
    float sum = 0;
    for (int32_t j = 0; j < c->num_experts_per_tok; j++)
        sum += weights[j] = scores[ids[j]];
    for (int32_t j = 0; j < c->num_experts_per_tok; j++) {
        if (c->norm_topk_prob)
            weights[j] /= sum + 1e-20f;
        weights[j] *= c->routed_scaling_factor;
    }
}

static void route_thread(void *arg, int thread_idx, int n_threads)
{
    moe_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range(pass->n_tokens, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *scores = pass->moe->scores + t * num_experts(pass);
        float *weights = pass->moe->weights + t * per_token(pass);
        int32_t *ids = pass->moe->ids + t * per_token(pass);
        bool ok = score(pass, scores);
        if (ok && pass->weights->tid2eid != NULL)
            look_up(pass, pass->tokens[t], ids);
        else if (ok)
            ok = choose(pass, scores, ids, tamis_exec_scratch(pass->exec, thread_idx));
        if (ok)
            weigh(pass, scores, ids, weights);
        if (!ok || !pass->exec->kernels->all_finite(weights, per_token(pass)))
            atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
    }
}

/* Routing of every token. false: a logit or a biased score is not finite. */
static bool route(moe_pass *pass)
{
    tamis_linear_job job =
        tamis_linear_full(&pass->weights->gate, pass->x, pass->moe->scores, pass->n_tokens);
    job.keep_input = job.keep_output = true;
    tamis_linear_run(pass->exec, &job, 1);
    tamis_team_run_sized(pass->exec->team,
                         tamis_exec_is_worth_waking(pass->n_tokens, 4 * num_experts(pass)),
                         route_thread, pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

/* ---------------------------------------------------------------- grouping */

static int32_t num_rows_of(const tamis_moe *moe, int64_t expert)
{
    return moe->first_row[expert + 1] - moe->first_row[expert];
}

/* A counting sort of (token, expert) pairs by expert; tokens stay in order. */
static void group_by_expert(const moe_pass *pass)
{
    tamis_moe *moe = pass->moe;
    const int64_t n_experts = num_experts(pass), k = per_token(pass), n = pass->n_tokens * k;
    int32_t *next = moe->first_row;
    memset(next, 0, (size_t)(n_experts + 1) * sizeof *next);
    for (int64_t i = 0; i < n; i++)
        next[moe->ids[i] + 1]++;
    for (int64_t e = 0; e < n_experts; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < n; i++) { /* next[e] runs from the first row of e to that of e + 1 */
        const int32_t row = next[moe->ids[i]]++;
        moe->row_of[i] = row;
        moe->token_of[row] = (int32_t)(i / k);
        moe->row_weights[row] = moe->weights[i];
    }
    memmove(next + 1, next, (size_t)n_experts * sizeof *next);
    next[0] = 0;
}

static void gather_thread(void *arg, int thread_idx, int n_threads)
{
    const moe_pass *pass = arg;
    const int64_t hidden = hidden_size(pass);
    int64_t begin, end;
    tamis_team_range(pass->n_tokens * per_token(pass), 1, thread_idx, n_threads, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        memcpy(pass->moe->rows + row * hidden, pass->x + pass->moe->token_of[row] * hidden,
               (size_t)hidden * sizeof(float));
}

/* Rows of an expert must lie at one stride; a single token is read where it is. */
static void gather(moe_pass *pass)
{
    bool must_gather = false;
    for (int64_t e = 0; e < num_experts(pass); e++)
        must_gather |= num_rows_of(pass->moe, e) > 1;
    if (must_gather)
        tamis_team_run_sized(
            pass->exec->team,
            tamis_exec_is_worth_waking(pass->n_tokens, per_token(pass) * hidden_size(pass)),
            gather_thread, pass);
}

/* ---------------------------------------------------------------- experts */

static float *shared_gate(const moe_pass *pass)
{
    return pass->moe->gate + pass->n_tokens * per_token(pass) * width(pass);
}
static float *shared_up(const moe_pass *pass)
{
    return pass->moe->up + pass->n_tokens * per_token(pass) * width(pass);
}

/* Whether w1 and w3 of an expert read one quantised input at most. */
static bool shares_input(const tamis_expert_weights *w)
{
    return tamis_linear_shares_input((const tamis_matrix *[]){&w->w1, &w->w3}, 2);
}

/* Whether all experts of the layer do; else w1 and w3 run one after the other, so that the
 * quantised inputs of both never need room at once. */
static bool shares_inputs(const moe_pass *pass)
{
    bool shares = shared_width(pass) == 0 || shares_input(&pass->weights->shared);
    for (int64_t e = 0; shares && e < num_experts(pass); e++)
        shares = shares_input(&pass->weights->experts[e]);
    return shares;
}

/* Jobs of w1, w3 or both of every expert that has a token, and of the shared one. */
static void project_up_with(const moe_pass *pass, bool with_w1, bool with_w3)
{
    tamis_moe *moe = pass->moe;
    const tamis_expert_weights *shared = &pass->weights->shared;
    const int64_t hidden = hidden_size(pass);
    int64_t n_jobs = 0;
    for (int64_t e = 0; e < num_experts(pass); e++) {
        const tamis_expert_weights *w = &pass->weights->experts[e];
        const int64_t first = moe->first_row[e], n = num_rows_of(moe, e);
        const float *x =
            n == 1 ? pass->x + moe->token_of[first] * hidden : moe->rows + first * hidden;
        if (n > 0 && with_w1)
            moe->jobs[n_jobs++] = tamis_linear_full(&w->w1, x, moe->gate + first * width(pass), n);
        if (n > 0 && with_w3)
            moe->jobs[n_jobs++] = tamis_linear_full(&w->w3, x, moe->up + first * width(pass), n);
    }
    if (shared_width(pass) > 0 && with_w1)
        moe->jobs[n_jobs++] =
            tamis_linear_full(&shared->w1, pass->x, shared_gate(pass), pass->n_tokens);
    if (shared_width(pass) > 0 && with_w3)
        moe->jobs[n_jobs++] =
            tamis_linear_full(&shared->w3, pass->x, shared_up(pass), pass->n_tokens);
    tamis_linear_run(pass->exec, moe->jobs, n_jobs);
}

/* w1 and w3 side by side wherever that is possible. */
static void project_up(const moe_pass *pass)
{
    if (pass->exec->profile == TAMIS_PROFILE_EXACT || shares_inputs(pass)) {
        project_up_with(pass, true, true);
        return;
    }
    project_up_with(pass, true, false);
    project_up_with(pass, false, true);
}

/* V4's vendor weighs the input of w2, all others its output. */
static bool weighs_input(const moe_pass *pass)
{
    return pass->exec->profile == TAMIS_PROFILE_OFFICIAL &&
           pass->moe->config->family == TAMIS_FAMILY_DEEPSEEK_V4;
}

/* Values [begin, end) of gate, as far as they belong to routed rows, times the row's weight. */
static void weigh_inputs(const moe_pass *pass, int64_t begin, int64_t end)
{
    const int64_t w = width(pass);
    end = tamis_min_i64(end, pass->n_tokens * per_token(pass) * w);
    while (begin < end) {
        const int64_t row = begin / w, n = tamis_min_i64(end, (row + 1) * w) - begin;
        float *h = pass->moe->gate + begin;
        pass->exec->kernels->scale(h, pass->moe->row_weights[row], h, n);
        begin += n;
    }
}

/* Routed and shared rows lie one after the other: one elementwise pass, gate becomes h. */
static void swiglu_thread(void *arg, int thread_idx, int n_threads)
{
    const moe_pass *pass = arg;
    const int64_t n = pass->n_tokens * (per_token(pass) * width(pass) + shared_width(pass));
    int64_t begin, end;
    tamis_team_range(n, GRAIN, thread_idx, n_threads, &begin, &end);
    float *h = pass->moe->gate + begin;
    pass->exec->kernels->swiglu(h, h, pass->moe->up + begin, end - begin,
                                pass->moe->config->swiglu_limit);
    if (weighs_input(pass))
        weigh_inputs(pass, begin, end);
    tamis_exec_round(pass->exec, h, end - begin);
}

static void run_swiglu(moe_pass *pass)
{
    const int64_t values = per_token(pass) * width(pass) + shared_width(pass);
    tamis_team_run_sized(pass->exec->team, tamis_exec_is_worth_waking(pass->n_tokens, 8 * values),
                         swiglu_thread, pass);
}

/* Static int8 codes are numbers whatever they were made of: a NaN that w2's would hide is looked
 * for before. Only shared experts and dense layers have them. */
static void check_coded(moe_pass *pass)
{
    const bool is_coded =
        pass->exec->profile == TAMIS_PROFILE_ASCEND && pass->weights->shared.w2.input != NULL;
    if (is_coded &&
        !pass->exec->kernels->all_finite(shared_gate(pass), pass->n_tokens * shared_width(pass)))
        atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
}

/* w2: routed outputs into rows, the shared one into y. */
static void project_down(moe_pass *pass)
{
    tamis_moe *moe = pass->moe;
    int64_t n_jobs = 0;
    check_coded(pass);
    for (int64_t e = 0; e < num_experts(pass); e++) {
        const int64_t first = moe->first_row[e], n = num_rows_of(moe, e);
        if (n > 0)
            moe->jobs[n_jobs++] =
                tamis_linear_full(&pass->weights->experts[e].w2, moe->gate + first * width(pass),
                                  moe->rows + first * hidden_size(pass), n);
    }
    if (shared_width(pass) > 0)
        moe->jobs[n_jobs++] = tamis_linear_full(&pass->weights->shared.w2, shared_gate(pass),
                                                pass->y, pass->n_tokens);
    tamis_linear_run(pass->exec, moe->jobs, n_jobs);
}

/* Columns of one token: the chain over its experts, then the shared output. */
static void combine_columns(const moe_pass *pass, int64_t token, int64_t first, int64_t n)
{
    const tamis_kernels *kernels = pass->exec->kernels;
    const tamis_moe *moe = pass->moe;
    float sum[GRAIN] = {0}, *y = pass->y + token * hidden_size(pass) + first;
    for (int64_t i = token * per_token(pass); i < (token + 1) * per_token(pass); i++)
        kernels->axpy(sum, weighs_input(pass) ? 1 : moe->weights[i],
                      moe->rows + moe->row_of[i] * hidden_size(pass) + first, n);
    if (shared_width(pass) > 0)
        kernels->add(sum, y, n);
    tamis_exec_round(pass->exec, sum, n);
    memcpy(y, sum, (size_t)n * sizeof *y);
}

static void combine_thread(void *arg, int thread_idx, int n_threads)
{
    const moe_pass *pass = arg;
    const int64_t n_parts = tamis_ceil_div(hidden_size(pass), GRAIN);
    int64_t begin, end;
    tamis_team_range(pass->n_tokens * n_parts, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % n_parts * GRAIN;
        combine_columns(pass, i / n_parts, first, tamis_min_i64(GRAIN, hidden_size(pass) - first));
    }
}

/* y is the shared output. */
static void forward_dense(moe_pass *pass)
{
    project_up(pass);
    run_swiglu(pass);
    project_down(pass);
}

bool tamis_moe_forward(tamis_moe *moe, const tamis_exec *exec, const tamis_moe_weights *weights,
                       const int32_t *tokens, const float *x, int64_t n_tokens, float *y)
{
    assert(n_tokens <= moe->max_tokens);
    moe_pass pass = {.moe = moe,
                     .exec = exec,
                     .weights = weights,
                     .tokens = tokens,
                     .x = x,
                     .y = y,
                     .n_tokens = n_tokens};
    atomic_init(&pass.has_fault, false);
    if (is_dense(&pass)) {
        forward_dense(&pass);
        return !atomic_load_explicit(&pass.has_fault, memory_order_relaxed);
    }
    if (!route(&pass))
        return false;
    group_by_expert(&pass);
    gather(&pass);
    project_up(&pass);
    run_swiglu(&pass);
    project_down(&pass);
    tamis_team_run_sized(
        exec->team,
        tamis_exec_is_worth_waking(n_tokens, (per_token(&pass) + 1) * hidden_size(&pass)),
        combine_thread, &pass);
    return !atomic_load_explicit(&pass.has_fault, memory_order_relaxed);
}
