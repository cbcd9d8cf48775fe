/*
 * Running jobs on the thread team: static partition, one barrier per job.
 *
 * tamis_team_run calls fn(arg, thread_idx, n_threads) once on every thread, the caller being
 * thread 0, and returns when all are done. Workers spin briefly, then park (3 threads on 2 cores
 * are normal). Jobs must not start jobs.
 */
#ifndef TAMIS_CORE_TEAM_H
#define TAMIS_CORE_TEAM_H

#include "tamis/base.h"

typedef void (*tamis_job_fn)(void *arg, int thread_idx, int n_threads);
void tamis_team_run(tamis_team *team, tamis_job_fn fn, void *arg);
/*
 * The same, but where waking the team would take longer than the job (a few microseconds), the
 * caller runs all parts itself, one after the other. Same parts, same results.
 */
void tamis_team_run_sized(tamis_team *team, bool is_worth_waking, tamis_job_fn fn, void *arg);

/* The part of [0, n) that belongs to thread_idx, in units of `grain` items: static and balanced. */
static inline void tamis_team_range(int64_t n, int64_t grain, int thread_idx, int n_threads,
                                    int64_t *begin, int64_t *end)
{
    const int64_t units = (n + grain - 1) / grain;
    const int64_t b = units * thread_idx / n_threads * grain;
    const int64_t e = units * (thread_idx + 1) / n_threads * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
