#include "model/hyper_connection.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "core/size.h"
#include "kernels/math.h"
#include "ops/linear.h"

/* Columns of a stream that one unit of the expansion mixes. */
#define EXPAND_COLS 256

typedef struct hc_pass {
    const tamis_exec *exec;
    const tamis_model_config *config;
    const tamis_hc_weights *site;
    const float *norm, *v;
    float *streams, *coefs, *x;
    const int32_t *rows;
    int64_t n; /* tokens or rows */
    atomic_bool has_fault;
} hc_pass;

static int64_t flat_width(const tamis_model_config *config)
{
    return (int64_t)config->hc_mult * config->hidden_size;
}

size_t tamis_hc_scratch_floats(const tamis_model_config *config)
{
    const size_t linear = TAMIS_LINEAR_SCRATCH(flat_width(config));
    const size_t expand = (size_t)config->hc_mult * EXPAND_COLS;
    return linear > expand ? linear : expand;
}

static void report(hc_pass *pass, bool is_finite)
{
    if (!is_finite)
        atomic_store_explicit(&pass->has_fault, true, memory_order_relaxed);
}

/* Relaxed: the barrier at the end of the pass orders it. */
static bool run(hc_pass *pass, tamis_job_fn fn)
{
    atomic_init(&pass->has_fault, false);
    const tamis_model_config *c = pass->config;
    const int64_t sinkhorn = (int64_t)4 * c->hc_sinkhorn_iters * c->hc_mult * c->hc_mult;
    tamis_team_run_sized(pass->exec->team,
                         tamis_exec_is_worth_waking(pass->n, 2 * flat_width(c) + sinkhorn), fn,
                         pass);
    return !atomic_load_explicit(&pass->has_fault, memory_order_relaxed);
}

/* ---------------------------------------------------------------- coefficients of a token */

static void softmax_row(float *row, int32_t m, float eps)
{
    float max = row[0], sum = 0;
    for (int32_t b = 1; b < m; b++)
        max = row[b] > max ? row[b] : max;
    for (int32_t b = 0; b < m; b++) {
        row[b] = tamis_math_exp(row[b] - max);
        sum += row[b];
    }
    for (int32_t b = 0; b < m; b++)
        row[b] = row[b] / sum + eps;
}

/* Divide each of m lines of m entries, `step` apart, by its sum plus eps. */
static void normalise_lines(float *comb, int32_t m, int32_t line_stride, int32_t step, float eps)
{
    for (int32_t i = 0; i < m; i++) {
        float *line = comb + i * line_stride, sum = 0;
        for (int32_t j = 0; j < m; j++)
            sum += line[j * step];
        for (int32_t j = 0; j < m; j++)
            line[j * step] /= sum + eps;
    }
}

/* Towards a doubly stochastic matrix; a column step first, one row step fewer. */
static void sinkhorn(float *comb, int32_t m, int32_t iters, float eps)
{
    for (int32_t i = 0; i < iters; i++) {
        if (i > 0)
            normalise_lines(comb, m, m, 1, eps);
        normalise_lines(comb, m, 1, m, eps);
    }
}

static float gate(float z, float r, float scale, float base)
{
    return tamis_math_sigmoid(fmaf(z * r, scale, base));
}

void tamis_hc_coefficients(const tamis_model_config *config, const tamis_hc_weights *site, float r,
                           float *z)
{
    const int32_t m = config->hc_mult;
    float *comb = z + 2 * m;
    for (int32_t s = 0; s < m; s++) {
        z[s] = gate(z[s], r, site->scale[0], site->base[s]) + config->hc_eps;
        z[m + s] = 2 * gate(z[m + s], r, site->scale[1], site->base[m + s]);
    }
    for (int32_t i = 0; i < m * m; i++)
        comb[i] = fmaf(comb[i] * r, site->scale[2], site->base[2 * m + i]);
    for (int32_t a = 0; a < m; a++)
        softmax_row(comb + a * m, m, config->hc_eps);
    sinkhorn(comb, m, config->hc_sinkhorn_iters, config->hc_eps);
}

/* ---------------------------------------------------------------- collapse */

/* The sum of squares is the linear kernel's product of the row with itself: lanes16. NaN where it
 * overflows, as in the rmsnorm kernel. */
static float inverse_rms(const hc_pass *pass, const float *row, float *scratch)
{
    const int64_t n = flat_width(pass->config);
    const tamis_matrix self = {.dtype = TAMIS_DTYPE_F32,
                               .rows = 1,
                               .cols = n,
                               .data = row,
                               .row_bytes = n * (int64_t)sizeof *row};
    float squares;
    pass->exec->kernels->linear(&squares, 1, row, n, 1, &self, 0, 1, scratch, false);
    return 1.0f / sqrtf(squares / (float)n + pass->config->rms_norm_eps) + (squares - squares);
}

/* x = norm(sum_s pre_s X_s) of one token; both steps give BF16 values in profiles other than exact.
 */
static void mix_and_norm(hc_pass *pass, const float *row, const float *pre, float *x)
{
    const tamis_kernels *k = pass->exec->kernels;
    const int64_t hidden = pass->config->hidden_size;
    k->mix(x, pre, row, hidden, pass->config->hc_mult, hidden);
    tamis_exec_round(pass->exec, x, hidden);
    k->rmsnorm(x, x, pass->norm, hidden, pass->config->rms_norm_eps);
    tamis_exec_round(pass->exec, x, hidden);
    report(pass, k->all_finite(x, hidden));
}

static void collapse_thread(void *arg, int thread_idx, int n_threads)
{
    hc_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range(pass->n, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        const float *row = pass->streams + t * flat_width(pass->config);
        float *coefs = pass->coefs + t * tamis_hc_num_coefs(pass->config);
        const float r = inverse_rms(pass, row, tamis_exec_scratch(pass->exec, thread_idx));
        tamis_hc_coefficients(pass->config, pass->site, r, coefs);
        mix_and_norm(pass, row, coefs, pass->x + t * pass->config->hidden_size);
    }
}

bool tamis_hc_collapse(const tamis_exec *exec, const tamis_model_config *config,
                       const tamis_hc_weights *site, const float *norm, const float *streams,
                       int64_t n_tokens, float *coefs, float *x)
{
    hc_pass pass = {.exec = exec,
                    .config = config,
                    .site = site,
                    .norm = norm,
                    .streams = (float *)streams,
                    .coefs = coefs,
                    .x = x,
                    .n = n_tokens};
    tamis_linear_job job = tamis_linear_full(&site->fn, streams, coefs, n_tokens);
    job.keep_input = job.keep_output = true;
    tamis_linear_run(exec, &job, 1);
    return run(&pass, collapse_thread);
}

static void head_thread(void *arg, int thread_idx, int n_threads)
{
    hc_pass *pass = arg;
    const tamis_hc_weights *site = pass->site;
    const int64_t width = flat_width(pass->config);
    int64_t begin, end;
    tamis_team_range(pass->n, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const float *row = pass->streams + pass->rows[i] * width;
        float *scratch = tamis_exec_scratch(pass->exec, thread_idx), pre[TAMIS_MAX_HC_MULT];
        const float r = inverse_rms(pass, row, scratch);
        pass->exec->kernels->linear(pre, pass->config->hc_mult, row, width, 1, &site->fn, 0,
                                    pass->config->hc_mult, scratch, false);
        for (int32_t s = 0; s < pass->config->hc_mult; s++)
            pre[s] = gate(pre[s], r, site->scale[0], site->base[s]) + pass->config->hc_eps;
        mix_and_norm(pass, row, pre, pass->x + i * pass->config->hidden_size);
    }
}

bool tamis_hc_head(const tamis_exec *exec, const tamis_model_config *config,
                   const tamis_hc_weights *site, const float *norm, const float *streams,
                   const int32_t *rows, int64_t n_rows, float *x)
{
    assert(config->hc_mult <= TAMIS_MAX_HC_MULT);
    hc_pass pass = {.exec = exec,
                    .config = config,
                    .site = site,
                    .norm = norm,
                    .streams = (float *)streams,
                    .x = x,
                    .rows = rows,
                    .n = n_rows};
    return run(&pass, head_thread);
}

/* ---------------------------------------------------------------- expand */

/* Columns [first, first + n) of all streams of a token; old is room for their copy. */
static void expand_columns(hc_pass *pass, int64_t token, int64_t first, int64_t n, float *old)
{
    const tamis_kernels *k = pass->exec->kernels;
    const int32_t m = pass->config->hc_mult;
    const int64_t hidden = pass->config->hidden_size;
    const float *coefs = pass->coefs + token * tamis_hc_num_coefs(pass->config);
    const float *post = coefs + m, *comb = coefs + 2 * m;
    float *streams = pass->streams + token * flat_width(pass->config) + first;
    for (int32_t a = 0; a < m; a++)
        memcpy(old + a * EXPAND_COLS, streams + a * hidden, (size_t)n * sizeof *old);
    for (int32_t b = 0; b < m; b++) {
        float column[TAMIS_MAX_HC_MULT], *out = streams + b * hidden;
        for (int32_t a = 0; a < m; a++)
            column[a] = comb[a * m + b];
        k->mix(out, column, old, EXPAND_COLS, m, n);
        k->axpy(out, post[b], pass->v + token * hidden + first, n);
        tamis_exec_round(pass->exec, out, n);
        report(pass, k->all_finite(out, n));
    }
}

static void expand_thread(void *arg, int thread_idx, int n_threads)
{
    hc_pass *pass = arg;
    const int64_t hidden = pass->config->hidden_size;
    const int64_t n_parts = tamis_ceil_div(hidden, EXPAND_COLS);
    int64_t begin, end;
    tamis_team_range(pass->n * n_parts, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % n_parts * EXPAND_COLS;
        expand_columns(pass, i / n_parts, first, tamis_min_i64(EXPAND_COLS, hidden - first),
                       tamis_exec_scratch(pass->exec, thread_idx));
    }
}

bool tamis_hc_expand(const tamis_exec *exec, const tamis_model_config *config, const float *coefs,
                     const float *v, float *streams, int64_t n_tokens)
{
    assert(config->hc_mult <= TAMIS_MAX_HC_MULT);
    hc_pass pass = {.exec = exec,
                    .config = config,
                    .streams = streams,
                    .coefs = (float *)coefs,
                    .v = v,
                    .n = n_tokens};
    return run(&pass, expand_thread);
}
