/*
 * Linear layers on the team: any number of jobs side by side, so that independent projections of
 * one input, the groups of an output projection or all experts of a layer are one pass.
 *
 * What a layer does with its input and output follows from the profile and the weight's format:
 *
 *             F32 BF16 F16   F8_E4M3 F4_E2M1          I8 static       I8, I4
 *   exact     -              -                        -               -          y f32
 *   official  -              FP8 in groups of 128     (refused)       (refused)  y rounded to BF16
 *   ascend    -              FP8 in groups of 32      int8            int8       y rounded to BF16
 *
 * FP8: x goes through FP8 and back (kernel round_f8) and meets the dequantised weight in f32: with
 * power-of-two scales that differs from scaling block sums in the order of additions only. int8:
 * integer sums (kernel linear_i8). An input that follows the same one in the list of jobs is
 * quantised once.
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
    bool keep_input;  /* x is used as it is, whatever the table says */
    bool keep_output; /* y stays f32 */
} tamis_linear_job;

/*
 * For calibration (tools/quantize): fn sees the jobs of every tamis_linear_run of the process, on the
 * stepping thread before they run. NULL, the default: nobody watches. Not to be set while a step
 * runs.
 */
typedef void (*tamis_linear_watch_fn)(void *user, const tamis_linear_job *jobs, int64_t n_jobs);
void tamis_linear_watch(tamis_linear_watch_fn fn, void *user);

/*
 * Bytes of exec->inputs that a profile other than exact needs for n_jobs jobs, n_rows rows (summed over
 * jobs whose inputs differ) and at most `cols` columns.
 */
size_t tamis_linear_input_bytes(int64_t n_jobs, int64_t n_rows, int64_t cols);

/* A job over all rows of w, x and y contiguous. */
tamis_linear_job tamis_linear_full(const tamis_matrix *w, const float *x, float *y,
                                   int64_t n_tokens);
/* Scratch: TAMIS_LINEAR_SCRATCH(largest cols) floats per thread. One barrier, two if an input is
 * quantised. */
void tamis_linear_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs);
/*
 * The transposed product of each job: y[t][c] = sum over its rows of w[r][c] x[t][r - row_begin], x
 * [n_tokens][row_end - row_begin], y [n_tokens][w->cols]; see kernel `linear_t`. A job is one
 * thread's. Scratch: TAMIS_LINEAR_T_SCRATCH floats per thread. One barrier.
 */
void tamis_linear_t_run(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs);

#endif
