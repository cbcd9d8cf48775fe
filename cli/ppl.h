/* What tamis ppl measures, shared by measuring (ppl.c) and printing (ppl_print.c). */
#ifndef CLI_PPL_H
#define CLI_PPL_H

#include "run_engine.h"

/* The text under one profile. */
typedef struct cli_ppl_run {
    cli_engine engine;
    tamis_memory_plan plan;
    double nats, seconds;
    /* against the first run, token by token */
    int64_t n_same_argmax;
    double diff_sum, diff_max; /* of |difference of the NLLs| */
} cli_ppl_run;

typedef struct cli_ppl {
    const cli_args *args;
    cli_ppl_run runs[CLI_MAX_CHOICES];
    int n_runs;
    cli_ints ids; /* of the text, without BOS, or as given by --ids */
    bool has_bos; /* every window stands behind bos_id */
    int32_t bos_id;
    int64_t window; /* ids per window */
    int64_t n_windows;
    int64_t n_predicted;
    uint64_t n_bytes; /* of the predicted tokens' text */
    double *nll;      /* [n_predicted] of the first run; NULL: there is no other */
    int32_t *argmax;  /* the same */
} cli_ppl;

void cli_ppl_print(const cli_ppl *ppl);

#endif
