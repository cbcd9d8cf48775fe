/* What every benchmark says about where it ran: machine, CPU level, date, and the machine's roof.
 */
#ifndef CLI_BENCH_MACHINE_H
#define CLI_BENCH_MACHINE_H

#include <jansson.h>
#include <tamis/bench.h>

#include "args.h"

#define BENCH_DATE_BYTES 32

const char *bench_cpu_name(void);                    /* "AMD EPYC ..." */
const char *bench_date(char text[BENCH_DATE_BYTES]); /* now, UTC: "2026-11-30T14:00:00Z" */
void bench_print_machine(void);                      /* one line */
json_t *bench_machine_json(void);

/* The roof of n threads before and after a measurement; ratios are taken to the better figures. */
typedef struct bench_roofs {
    tamis_roof before, after, best;
} bench_roofs;

/* Takes about `seconds`; prints what is wrong, returns an exit code. */
int bench_measure_roof(int32_t n_threads, double seconds, tamis_roof *out);
int bench_roofs_begin(bench_roofs *roofs, int32_t n_threads, double seconds);
int bench_roofs_end(bench_roofs *roofs, double seconds);
void bench_print_roofs(const bench_roofs *roofs);
json_t *bench_roof_json(const tamis_roof *roof);
json_t *bench_roofs_json(const bench_roofs *roofs);

/* Values of a list option, or the one default. */
typedef struct bench_list {
    const int32_t *values;
    size_t n;
} bench_list;
bench_list bench_list_of(const cli_args *args, cli_option_id id, const int32_t *default_value);
int32_t bench_default_threads(void);
/* The exit code; says so where a run was interrupted. */
int bench_end(int code);
/* --seconds, or the default. */
double bench_seconds(const cli_args *args, double default_value);

#endif
