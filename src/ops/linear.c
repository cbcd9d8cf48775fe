#include "ops/linear.h"

#include <assert.h>

#include "core/size.h"

/* A thread's stretch of a pass in pieces that others may take. */
#define PIECES_PER_THREAD 32
/* From here on every call packs so many inputs that pieces cost more than waiting. */
#define MANY_TOKENS 25

/* ---------------------------------------------------------------- watch */

static tamis_linear_watch_fn watch_fn;
static void *watch_user;

void tamis_linear_watch(tamis_linear_watch_fn fn, void *user)
{
    watch_fn = fn;
    watch_user = user;
}

/* ---------------------------------------------------------------- inputs */

typedef enum input_form {
    INPUT_FLOAT = 0,
    INPUT_F8_128,
    INPUT_F8_32,
    INPUT_I8_TOKEN,
    INPUT_I8_STATIC
} input_form;

/* What a job reads: x itself, or what became of it. */
typedef struct job_input {
    input_form form;
    const void *x; /* f32 or int8 */
    int64_t x_stride;
    const float *token_scale;
    bool is_new; /* this job's x is to be quantised; else the job before did */
} job_input;

static input_form form_of(tamis_profile profile, const tamis_linear_job *job)
{
    const tamis_dtype dtype = job->w->dtype;
    if (profile == TAMIS_PROFILE_EXACT || job->keep_input)
        return INPUT_FLOAT;
    if (dtype == TAMIS_DTYPE_F8_E4M3 || dtype == TAMIS_DTYPE_F4_E2M1)
        return profile == TAMIS_PROFILE_OFFICIAL ? INPUT_F8_128 : INPUT_F8_32;
    if (dtype != TAMIS_DTYPE_I8 && dtype != TAMIS_DTYPE_I4)
        return INPUT_FLOAT;
    return job->w->input != NULL ? INPUT_I8_STATIC : INPUT_I8_TOKEN;
}

static bool is_integer(input_form form)
{
    return form == INPUT_I8_TOKEN || form == INPUT_I8_STATIC;
}

/* Whether b reads what was made for a. */
static bool same_input(const tamis_linear_job *a, const tamis_linear_job *b, input_form form)
{
    if (a->x != b->x || a->x_stride != b->x_stride || a->n_tokens != b->n_tokens ||
        a->w->cols != b->w->cols)
        return false;
    return form != INPUT_I8_STATIC || (a->w->input->input_scale == b->w->input->input_scale &&
                                       a->w->input->input_offset == b->w->input->input_offset);
}

/* A row is 64-byte aligned, f32 and int8 rows take the same room. */
static int64_t row_floats(int64_t cols)
{
    return tamis_round_up(cols, TAMIS_LANES);
}

static size_t list_bytes(int64_t n_jobs)
{
    return (size_t)tamis_round_up(n_jobs * (int64_t)sizeof(job_input), 64);
}

size_t tamis_linear_input_bytes(int64_t n_jobs, int64_t n_rows, int64_t cols)
{
    const int64_t floats = n_rows * (row_floats(cols) + 1) + n_jobs * TAMIS_LANES;
    return list_bytes(n_jobs) + (size_t)floats * sizeof(float);
}

/* Room for a job's quantised input at *at, which moves on. */
static job_input place_input(const tamis_linear_job *job, input_form form, uint8_t **at)
{
    const int64_t row_bytes = row_floats(job->w->cols) * (int64_t)sizeof(float);
    job_input input = {.form = form, .x = *at, .is_new = true};
    input.x_stride = is_integer(form) ? row_bytes : row_bytes / (int64_t)sizeof(float);
    *at += job->n_tokens * row_bytes;
    if (form == INPUT_I8_TOKEN)
        input.token_scale = (const float *)(const void *)*at;
    *at += tamis_round_up(job->n_tokens, TAMIS_LANES) * (int64_t)sizeof(float);
    return input;
}

static void resolve_inputs(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs,
                           job_input *inputs)
{
    uint8_t *at = (uint8_t *)exec->inputs + list_bytes(n_jobs);
    int64_t latest = -1; /* job whose input was made last */
    for (int64_t i = 0; i < n_jobs; i++) {
        const tamis_linear_job *job = &jobs[i];
        const input_form form = form_of(exec->profile, job);
        if (form == INPUT_FLOAT || job->n_tokens == 0) {
            inputs[i] = (job_input){.x = job->x, .x_stride = job->x_stride};
            continue;
        }
        if (latest >= 0 && inputs[latest].form == form && same_input(&jobs[latest], job, form)) {
            inputs[i] = inputs[latest];
            inputs[i].is_new = false;
            continue;
        }
        inputs[i] = place_input(job, form, &at);
        latest = i;
    }
    assert(at <= (uint8_t *)exec->inputs + exec->input_bytes);
}

static void quantize_row(const tamis_kernels *kernels, const tamis_linear_job *job,
                         const job_input *input, int64_t row)
{
    const float *x = job->x + row * job->x_stride;
    const int64_t n = job->w->cols;
    const tamis_static_quant *fixed = job->w->input;
    if (!is_integer(input->form))
        kernels->round_f8((float *)input->x + row * input->x_stride, x, n,
                          input->form == INPUT_F8_128 ? 128 : 32);
    else if (input->form == INPUT_I8_TOKEN)
        kernels->quantize_i8((int8_t *)input->x + row * input->x_stride,
                             (float *)input->token_scale + row, x, n);
    else
        kernels->quantize_i8_static((int8_t *)input->x + row * input->x_stride, x, n,
                                    fixed->input_scale, fixed->input_offset, false);
}

/* ---------------------------------------------------------------- products */

/*
 * The rows of all jobs form one line, weighted by the work of a row; threads take pieces of it,
 * cut at groups of TAMIS_LINEAR_ROWS rows. A row belongs to one piece, so no sum is ever split.
 */
typedef struct linear_pass {
    const tamis_exec *exec;
    const tamis_linear_job *jobs;
    int64_t n_jobs;
    int64_t total_cost, n_pieces;
    const job_input *inputs; /* NULL: every job reads its x */
} linear_pass;

static void quantize_thread(void *arg, int thread_idx, int n_threads)
{
    const linear_pass *pass = arg;
    for (int64_t i = 0; i < pass->n_jobs; i++) {
        int64_t begin, end;
        if (!pass->inputs[i].is_new)
            continue;
        tamis_team_range(pass->jobs[i].n_tokens, 1, thread_idx, n_threads, &begin, &end);
        for (int64_t row = begin; row < end; row++)
            quantize_row(pass->exec->kernels, &pass->jobs[i], &pass->inputs[i], row);
    }
}

static void run_integers(const linear_pass *pass, const tamis_linear_job *job,
                         const job_input *input, int64_t begin, int64_t end, int thread_idx)
{
    const bool is_static = input->form == INPUT_I8_STATIC;
    pass->exec->kernels->linear_i8(job->y + (begin - job->row_begin), job->y_stride, input->x,
                                   input->x_stride, input->token_scale, job->n_tokens, job->w,
                                   is_static ? job->w->input->deq_scale
                                             : (const float *)job->w->scale,
                                   is_static ? job->w->input->quant_bias : NULL, begin, end,
                                   tamis_exec_scratch(pass->exec, thread_idx));
}

static job_input input_of(const linear_pass *pass, int64_t i)
{
    return pass->inputs != NULL
               ? pass->inputs[i]
               : (job_input){.x = pass->jobs[i].x, .x_stride = pass->jobs[i].x_stride};
}

/* Whether what the kernel made of job a's inputs serves job b. */
static bool same_kernel_inputs(const linear_pass *pass, int64_t a, int64_t b)
{
    const tamis_matrix *v = pass->jobs[a].w, *w = pass->jobs[b].w;
    const job_input x = input_of(pass, a), y = input_of(pass, b);
    return a == b || (x.x == y.x && x.x_stride == y.x_stride && !is_integer(x.form) &&
                      pass->jobs[a].n_tokens == pass->jobs[b].n_tokens && v->dtype == w->dtype &&
                      v->cols == w->cols && v->block_cols == w->block_cols &&
                      (v->scale == NULL) == (w->scale == NULL));
}

/* Rows [begin, end) of job i, all tokens; last: the job that the thread had before, or -1. */
static void run_rows(const linear_pass *pass, int64_t i, int64_t begin, int64_t end, int thread_idx,
                     int64_t last)
{
    const tamis_exec *exec = pass->exec;
    const tamis_linear_job *job = &pass->jobs[i];
    const job_input input = input_of(pass, i);
    float *y = job->y + (begin - job->row_begin);
    if (is_integer(input.form))
        run_integers(pass, job, &input, begin, end, thread_idx);
    else
        exec->kernels->linear(y, job->y_stride, input.x, input.x_stride, job->n_tokens, job->w,
                              begin, end, tamis_exec_scratch(exec, thread_idx),
                              last >= 0 && same_kernel_inputs(pass, last, i));
    for (int64_t t = 0; !job->keep_output && t < job->n_tokens; t++)
        tamis_exec_round(exec, y + t * job->y_stride, end - begin);
}

/* What bringing and decoding a weight costs, in tokens' arithmetic on it: 8 bits about four. */
static int64_t weight_cost(tamis_dtype dtype)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return 14;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
        return 7;
    case TAMIS_DTYPE_F4_E2M1:
        return 3;
    default:
        return 4;
    }
}

/* In eighths. FP4 is decoded to integers, which pays for few tokens. */
static int64_t row_cost(const tamis_linear_job *job)
{
    const tamis_dtype dtype = job->w->dtype;
    const bool is_slow = dtype == TAMIS_DTYPE_F4_E2M1 && job->n_tokens >= MANY_TOKENS;
    return job->n_tokens == 0
               ? 0
               : job->w->cols * (8 * weight_cost(dtype) + (is_slow ? 9 : 8) * job->n_tokens);
}

/* First row of the job that lies at or after `cost` on the line, which starts at `start` here. */
static int64_t row_at(const tamis_linear_job *job, int64_t start, int64_t cost)
{
    const int64_t n_rows = job->row_end - job->row_begin;
    if (cost <= start)
        return job->row_begin;
    const int64_t rows =
        tamis_round_up(tamis_ceil_div(cost - start, row_cost(job)), TAMIS_LINEAR_ROWS);
    return job->row_begin + tamis_min_i64(rows, n_rows);
}

static int64_t cost_before(const linear_pass *pass, int64_t piece)
{
    return piece == pass->n_pieces
               ? pass->total_cost
               : (int64_t)((double)pass->total_cost / (double)pass->n_pieces * (double)piece);
}

/* What lies in [from, to) of the line; returns its last job. */
static int64_t run_stretch(const linear_pass *pass, int64_t from, int64_t to, int thread_idx,
                           int64_t last)
{
    int64_t start = 0;
    for (int64_t i = 0; i < pass->n_jobs && start < to; i++) {
        const tamis_linear_job *job = &pass->jobs[i];
        const int64_t cost = row_cost(job) * (job->row_end - job->row_begin);
        if (cost > 0 && start + cost > from) {
            const int64_t begin = row_at(job, start, from), end = row_at(job, start, to);
            if (begin < end) {
                run_rows(pass, i, begin, end, thread_idx, last);
                last = i;
            }
        }
        start += cost;
    }
    return last;
}

static void linear_thread(void *arg, int thread_idx, int n_threads)
{
    const linear_pass *pass = arg;
    int64_t begin, end, last = -1;
    (void)n_threads;
    while (tamis_team_take(pass->exec->team, thread_idx, &begin, &end))
        last =
            run_stretch(pass, cost_before(pass, begin), cost_before(pass, end), thread_idx, last);
}

static int num_pieces(const linear_pass *pass, int n_threads)
{
    for (int64_t i = 0; i < pass->n_jobs; i++)
        if (pass->jobs[i].n_tokens >= MANY_TOKENS)
            return n_threads;
    return PIECES_PER_THREAD * n_threads;
}

static void run_products(linear_pass *pass)
{
    tamis_team *team = pass->exec->team;
    const int n_threads = tamis_team_size(team);
    const bool is_shared = n_threads > 1 && pass->total_cost > 8 * TAMIS_EXEC_SMALL_PASS;
    pass->n_pieces = is_shared ? num_pieces(pass, n_threads) : 1;
    tamis_team_deal(team, pass->n_pieces);
    tamis_team_run_sized(team, is_shared, linear_thread, pass);
}

tamis_linear_job tamis_linear_full(const tamis_matrix *w, const float *x, float *y,
                                   int64_t n_tokens)
{
    return (tamis_linear_job){.w = w,
                              .row_begin = 0,
                              .row_end = w->rows,
                              .x = x,
                              .x_stride = w->cols,
                              .y = y,
                              .y_stride = w->rows,
                              .n_tokens = n_tokens};
}

void tamis_linear_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs)
{
    linear_pass pass = {exec, jobs, n_jobs, 0, 0, NULL};
    int64_t new_values = 0;
    if (watch_fn != NULL)
        watch_fn(watch_user, jobs, n_jobs);
    for (int64_t i = 0; i < n_jobs; i++)
        pass.total_cost += row_cost(&jobs[i]) * (jobs[i].row_end - jobs[i].row_begin);
    if (pass.total_cost == 0)
        return;
    if (exec->profile != TAMIS_PROFILE_EXACT) {
        job_input *inputs = exec->inputs;
        resolve_inputs(exec, jobs, n_jobs, inputs);
        for (int64_t i = 0; i < n_jobs; i++)
            new_values += inputs[i].is_new ? jobs[i].n_tokens * jobs[i].w->cols : 0;
        pass.inputs = inputs;
    }
    if (new_values > 0)
        tamis_team_run_sized(exec->team, new_values > TAMIS_EXEC_SMALL_VALUES, quantize_thread,
                             &pass);
    run_products(&pass);
}

static void linear_t_thread(void *arg, int thread_idx, int n_threads)
{
    const linear_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range(pass->n_jobs, 1, thread_idx, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const tamis_linear_job *job = &pass->jobs[i];
        pass->exec->kernels->linear_t(job->y, job->y_stride, job->x, job->x_stride, job->n_tokens,
                                      job->w, job->row_begin, job->row_end,
                                      tamis_exec_scratch(pass->exec, thread_idx));
        for (int64_t t = 0; !job->keep_output && t < job->n_tokens; t++)
            tamis_exec_round(pass->exec, job->y + t * job->y_stride, job->w->cols);
    }
}

void tamis_linear_t_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs)
{
    linear_pass pass = {exec, jobs, n_jobs, 0, 0, NULL};
    for (int64_t i = 0; i < n_jobs; i++)
        pass.total_cost += row_cost(&jobs[i]) * (jobs[i].row_end - jobs[i].row_begin);
    if (pass.total_cost > 0)
        tamis_team_run_sized(exec->team, pass.total_cost > 8 * TAMIS_EXEC_SMALL_PASS,
                             linear_t_thread, &pass);
}
