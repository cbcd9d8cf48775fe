/*
 * Running jobs on the thread team: one barrier per job, parts fixed or taken as they come.
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

/*
 * For a job whose parts take unequal time (memory serves the cores in turns, neighbours of a
 * virtual machine come and go): before it runs, deal gives every thread its equal stretch of
 * n_pieces (below 2^32) pieces. In it a thread takes pieces until there are none: from the front of its own
 * stretch, half of what is left at a time, then half of what is left to another one, from its end.
 * Every piece is taken once; by whom is open, so results must not depend on it.
 */
void tamis_team_deal(tamis_team *team, int64_t n_pieces);
/* false: nothing is left. Else pieces [*begin, *end) are the caller's, who is thread_idx. */
bool tamis_team_take(tamis_team *team, int thread_idx, int64_t *begin, int64_t *end);

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
