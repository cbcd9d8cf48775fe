/*
 * Projections as layers run them: one linear layer on the team, weights out of memory. 256 MiB of
 * them are walked, so that no cache holds them.
 */
#include <stdio.h>

#include "core/size.h"
#include "measure/kernel_bench.h"
#include "measure/random_weights.h"
#include "ops/linear.h"

#define ROWS       INT64_C(8192)
#define COLS       INT64_C(4096)
#define POOL_BYTES ((size_t)256 << 20)
#define MAX_TOKENS 128

typedef struct project_arg {
    tamis_exec exec;
    tamis_matrix w;
    const uint8_t *pool;
    const float *x;
    float *y;
    int64_t n_tokens;
} project_arg;

static void run_project(const tamis_kernels *kernels, void *arg, int64_t run)
{
    project_arg *a = arg;
    const int64_t bytes = (int64_t)tamis_matrix_data_bytes(&a->w);
    (void)kernels;
    a->w.data = a->pool + run % ((int64_t)POOL_BYTES / bytes) * bytes;
    const tamis_linear_job job = tamis_linear_full(&a->w, a->x, a->y, a->n_tokens);
    tamis_linear_run(&a->exec, &job, 1);
}

/* int8 weights as profile ascend multiplies them, others as exact does. */
static void bench_form(tamis_kernel_bench *bench, project_arg *a, tamis_weight_form form,
                       const void *scales)
{
    static const int64_t tokens[] = {1, 8, MAX_TOKENS};
    const bool is_int8 = form == TAMIS_FORM_I8;
    a->exec.profile = is_int8 ? TAMIS_PROFILE_ASCEND : TAMIS_PROFILE_EXACT;
    a->w = tamis_weight_form_matrix(form, ROWS, COLS);
    a->w.scale = a->w.block_rows == 0 ? NULL : scales;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        char shape[64];
        a->n_tokens = tokens[i];
        snprintf(shape, sizeof shape, "%s 8192x4096, %d token%s%s", tamis_dtype_name(a->w.dtype),
                 (int)tokens[i], tokens[i] == 1 ? "" : "s", is_int8 ? ", int8 sums" : "");
        const tamis_kernel_case c = {
            .kernel = "project",
            .fn = run_project,
            .arg = a,
            .ops = 2.0 * (double)(ROWS * COLS * tokens[i]),
            .bytes = (double)(tamis_matrix_data_bytes(&a->w) + tamis_matrix_scale_bytes(&a->w)),
            .is_int8 = is_int8,
            .is_cold = true};
        tamis_kernel_bench_run_operator(bench, &c, tamis_team_size(a->exec.team), shape);
    }
}

static void bench_forms(tamis_kernel_bench *bench, project_arg *a, const void *powers,
                        const void *floats)
{
    bench_form(bench, a, TAMIS_FORM_BF16, NULL);
    bench_form(bench, a, TAMIS_FORM_FP8_E8M0, powers);
    bench_form(bench, a, TAMIS_FORM_FP4, powers);
    bench_form(bench, a, TAMIS_FORM_I8, floats);
}

void tamis_kernel_bench_project(tamis_kernel_bench *bench)
{
    const size_t scratch = (size_t)tamis_round_up((int64_t)TAMIS_LINEAR_SCRATCH(COLS), 16);
    if (!tamis_kernel_bench_wants(bench, "project"))
        return;
    project_arg a = {.pool = tamis_kernel_bench_bytes(bench, POOL_BYTES),
                     .x = tamis_kernel_bench_floats(bench, MAX_TOKENS * COLS),
                     .y = tamis_kernel_bench_take(bench, MAX_TOKENS * ROWS * sizeof(float))};
    void *powers = tamis_kernel_bench_take(bench, ROWS * COLS / 32);
    const void *floats = tamis_kernel_bench_floats(bench, ROWS);
    tamis_noise noise = {7};
    if (powers != NULL) /* such as checkpoints have: all of about one size */
        tamis_noise_fill_scales(&noise, powers, ROWS * COLS / 32, TAMIS_DTYPE_F8_E8M0,
                                TAMIS_DTYPE_F8_E4M3, COLS);
    a.exec.kernels = tamis_kernels_current();
    a.exec.scratch_floats = scratch;
    a.exec.scratch =
        tamis_kernel_bench_take(bench, scratch * (size_t)bench->n_threads * sizeof(float));
    a.exec.input_bytes = tamis_linear_input_bytes(1, MAX_TOKENS, COLS);
    a.exec.inputs = tamis_kernel_bench_take(bench, a.exec.input_bytes);
    for (int32_t n = 1; bench->status == TAMIS_STATUS_OK; n = bench->n_threads) {
        bench->status = tamis_team_open(&a.exec.team, n, bench->err);
        if (bench->status == TAMIS_STATUS_OK)
            bench_forms(bench, &a, powers, floats);
        tamis_team_close(&a.exec.team);
        if (n == bench->n_threads)
            break;
    }
}
