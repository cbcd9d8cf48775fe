#include "ops/linear.h"

#include "core/size.h"

/*
 * The rows of all jobs form one line, weighted by the work of a row; every thread takes an equal
 * stretch of it, cut at groups of TAMIS_LINEAR_ROWS rows. A row belongs to one thread, so no sum
 * is ever split.
 */
typedef struct linear_pass {
    const tamis_exec *exec;
    const tamis_linear_job *jobs;
    int64_t n_jobs;
    int64_t total_cost;
} linear_pass;

/* Streaming a row costs about as much as four tokens' arithmetic on it. */
static int64_t row_cost(const tamis_linear_job *job)
{
    return job->n_tokens == 0 ? 0 : job->w->cols * (4 + job->n_tokens);
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

static void linear_thread(void *arg, int thread_idx, int n_threads)
{
    const linear_pass *pass = arg;
    const double share = (double)pass->total_cost / n_threads;
    const int64_t from = (int64_t)(share * thread_idx);
    const int64_t to =
        thread_idx + 1 == n_threads ? pass->total_cost : (int64_t)(share * (thread_idx + 1));
    int64_t start = 0;
    for (int64_t i = 0; i < pass->n_jobs && start < to; i++) {
        const tamis_linear_job *job = &pass->jobs[i];
        const int64_t cost = row_cost(job) * (job->row_end - job->row_begin);
        if (cost > 0 && start + cost > from) {
            const int64_t begin = row_at(job, start, from), end = row_at(job, start, to);
            if (begin < end)
                pass->exec->kernels->linear(job->y + (begin - job->row_begin), job->y_stride,
                                            job->x, job->x_stride, job->n_tokens, job->w, begin,
                                            end, tamis_exec_scratch(pass->exec, thread_idx));
        }
        start += cost;
    }
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
    linear_pass pass = {exec, jobs, n_jobs, 0};
    for (int64_t i = 0; i < n_jobs; i++)
        pass.total_cost += row_cost(&jobs[i]) * (jobs[i].row_end - jobs[i].row_begin);
    if (pass.total_cost > 0)
        tamis_team_run_sized(exec->team, pass.total_cost > TAMIS_EXEC_SMALL_PASS, linear_thread,
                             &pass);
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
    }
}

void tamis_linear_t_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs)
{
    linear_pass pass = {exec, jobs, n_jobs, 0};
    for (int64_t i = 0; i < n_jobs; i++)
        pass.total_cost += row_cost(&jobs[i]) * (jobs[i].row_end - jobs[i].row_begin);
    if (pass.total_cost > 0)
        tamis_team_run_sized(exec->team, pass.total_cost > TAMIS_EXEC_SMALL_PASS, linear_t_thread,
                             &pass);
}
