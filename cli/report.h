/* The short block on standard error before a run: what will run, how, and what it takes. Quiet:
 * only that results are an approximation. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "run_engine.h"

/* As --kv-cache-dtype spells it. */
const char *cli_kv_cache_name(tamis_dtype dtype);
void cli_report(const cli_engine *engine, const tamis_session_params *params,
                const tamis_memory_plan *plan);

#endif
