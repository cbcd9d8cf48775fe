/* What `tamis bench model` measured, between running and printing. */
#ifndef CLI_BENCH_MODEL_H
#define CLI_BENCH_MODEL_H

#include "bench_machine.h"

typedef struct bench_test {
    bool is_prompt; /* ppN, else tgN */
    int32_t n, depth, n_threads;
    double *seconds;       /* [repetitions] */
    tamis_model_work work; /* of the whole test, by the better roof */
} bench_test;

/* All tests of one number of threads. */
typedef struct bench_group {
    bench_roofs roofs;
    uint64_t planned_bytes, taken_bytes; /* anonymous: the session's plan; the most that was seen */
    size_t first_test, n_tests;
} bench_group;

typedef struct bench_model {
    const cli_args *args;
    const char *dir;
    const tamis_model_info *info;
    uint64_t bytes; /* of all tensors */
    int64_t n_params;
    tamis_dtype kv_cache_dtype; /* in force */
    int32_t repetitions, step_tokens;
    bool is_random; /* rows of a depth */
    bench_test *tests;
    size_t n_tests;
    bench_group *groups;
    size_t n_groups;
} bench_model;

/* In the form that was asked for: a table, --json or --csv. */
void bench_model_print(const bench_model *bench);

#endif
