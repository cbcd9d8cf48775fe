/* Independent projections: side by side in one pass, or one pass each where the plan is serial. */
#ifndef TAMIS_ATTENTION_COMMON_PROJECTIONS_H
#define TAMIS_ATTENTION_COMMON_PROJECTIONS_H

#include "ops/linear.h"

static inline void tamis_run_projections(const tamis_exec *exec, bool is_serial,
                                         const tamis_linear_job *jobs, int64_t n_jobs)
{
    const int64_t at_once = is_serial ? 1 : n_jobs;
    for (int64_t i = 0; i < n_jobs; i += at_once)
        tamis_linear_run(exec, jobs + i, at_once);
}

#endif
