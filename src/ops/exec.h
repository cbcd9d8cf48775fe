/* What a threaded operator runs with: a team, a kernel table, scratch of every thread. */
#ifndef TAMIS_OPS_EXEC_H
#define TAMIS_OPS_EXEC_H

#include "core/team.h"
#include "kernels/kernels.h"

typedef struct tamis_exec {
    tamis_team *team;
    const tamis_kernels *kernels;
    float *scratch;        /* [n_threads][scratch_floats], 64-byte aligned */
    size_t scratch_floats; /* per thread, a multiple of 16; each operator states its need */
    tamis_profile profile;
    void *inputs; /* quantised inputs of linear layers; exact: NULL */
    size_t input_bytes;
} tamis_exec;

/* Results of stages are BF16 values; in profile exact they stay as they are. */
static inline void tamis_exec_round(const tamis_exec *exec, float *x, int64_t n)
{
    if (exec->profile != TAMIS_PROFILE_EXACT)
        exec->kernels->round_bf16(x, n);
}

/*
 * Multiplications that one core does in some ten microseconds. Below that the caller finishes alone
 * before the team would be awake and, on a busy machine, before a preempted worker is back.
 */
#define TAMIS_EXEC_SMALL_PASS INT64_C(500000)

/* The same for passes over rows (norms, rotations, sums), which take about a cycle per value. */
#define TAMIS_EXEC_SMALL_VALUES INT64_C(16384)

static inline bool tamis_exec_is_worth_waking(int64_t n_rows, int64_t values_per_row)
{
    return n_rows > 1 && n_rows * values_per_row > TAMIS_EXEC_SMALL_VALUES;
}

static inline float *tamis_exec_scratch(const tamis_exec *exec, int thread_idx)
{
    return exec->scratch + (size_t)thread_idx * exec->scratch_floats;
}

#endif
