/*
 * Timing kernels: what the cases of kernel_*.c share. A case is a function over a kernel table, its
 * argument and what one call costs; every case is run at every CPU level.
 */
#ifndef TAMIS_MEASURE_KERNEL_BENCH_H
#define TAMIS_MEASURE_KERNEL_BENCH_H

#include "kernels/kernels.h"
#include "ops/exec.h"
#include "tamis/bench.h"

#define TAMIS_KERNEL_BENCH_BLOCKS 32

typedef struct tamis_kernel_bench {
    double seconds; /* of one line, about */
    int32_t n_threads;
    const char *only;
    tamis_bench_kernel_fn fn;
    void *user;
    int64_t n_lines;
    tamis_status status; /* not OK: nothing more is measured */
    tamis_error *err;
    void *blocks[TAMIS_KERNEL_BENCH_BLOCKS]; /* memory of the group that runs */
    int n_blocks;
} tamis_kernel_bench;

typedef struct tamis_kernel_case {
    const char *kernel;
    /* One call; `run` counts calls, so that data may be taken from another place each time. */
    void (*fn)(const tamis_kernels *kernels, void *arg, int64_t run);
    void *arg;
    double ops, bytes; /* of a call; 0: does not apply */
    bool is_int8, is_cold;
} tamis_kernel_case;

/* Whether a kernel of that name is asked for and nothing has failed. */
bool tamis_kernel_bench_wants(const tamis_kernel_bench *bench, const char *kernel);
/* Memory until the group ends, all zero; NULL: refused, and the bench's status says so. */
void *tamis_kernel_bench_take(tamis_kernel_bench *bench, size_t bytes);
/* The same, filled: bytes that are good numbers in every weight format, or floats in [-1, 1). */
uint8_t *tamis_kernel_bench_bytes(tamis_kernel_bench *bench, size_t bytes);
float *tamis_kernel_bench_floats(tamis_kernel_bench *bench, size_t n);
void tamis_kernel_bench_end_group(tamis_kernel_bench *bench);
/* Gives back what was taken since there were n_blocks blocks. */
void tamis_kernel_bench_end_part(tamis_kernel_bench *bench, int n_blocks);

/* A line for each CPU level. */
void tamis_kernel_bench_run(tamis_kernel_bench *bench, const tamis_kernel_case *c,
                            const char *shape_format, ...) TAMIS_PRINTF(3, 4);
/* A line at the level in use, for an operator on n_threads. */
void tamis_kernel_bench_run_operator(tamis_kernel_bench *bench, const tamis_kernel_case *c,
                                     int32_t n_threads, const char *shape);

/* The groups, in the order of the lines. */
void tamis_kernel_bench_linear(tamis_kernel_bench *bench);
void tamis_kernel_bench_scores(tamis_kernel_bench *bench);
void tamis_kernel_bench_attention(tamis_kernel_bench *bench);
void tamis_kernel_bench_rows(tamis_kernel_bench *bench);
void tamis_kernel_bench_project(tamis_kernel_bench *bench);
void tamis_kernel_bench_operators(tamis_kernel_bench *bench);

#endif
