/*
 * Linear layers on the team: any number of jobs side by side, so that independent projections of
 * one input, the groups of an output projection or all experts of a layer are one pass.
 */
#ifndef TAMIS_OPS_LINEAR_H
#define TAMIS_OPS_LINEAR_H

#include "ops/exec.h"

/* y[t][r - row_begin] = w[r] . x[t] for row_begin <= r < row_end; see kernel `linear`. */
typedef struct tamis_linear_job {
    const tamis_matrix *w;
    int64_t row_begin, row_end;
    const float *x;   /* [n_tokens][w->cols] */
    int64_t x_stride; /* floats */
    float *y;         /* [n_tokens][row_end - row_begin] */
    int64_t y_stride;
    int64_t n_tokens; /* 0: the job does nothing */
} tamis_linear_job;

/* A job over all rows of w, x and y contiguous. */
tamis_linear_job tamis_linear_full(const tamis_matrix *w, const float *x, float *y,
                                   int64_t n_tokens);
/* Scratch: TAMIS_LINEAR_SCRATCH(largest cols) floats per thread. One barrier. */
void tamis_linear_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs);
/*
 * The transposed product of each job: y[t][c] = sum over its rows of w[r][c] x[t][r - row_begin], x
 * [n_tokens][row_end - row_begin], y [n_tokens][w->cols]; see kernel `linear_t`. A job is one
 * thread's. Scratch: TAMIS_LINEAR_T_SCRATCH floats per thread. One barrier.
 */
void tamis_linear_t_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs);

#endif
