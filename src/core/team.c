/*
 * The thread team. A job is published by raising `generation`; every worker runs it once and
 * lowers `num_pending`; the caller, who is thread 0, returns when that is zero. Both sides look
 * at their atomic for a short while before they park on a condition variable: jobs of a step
 * follow each other within microseconds, while between steps nobody should burn a core.
 *
 * No wake-up is lost: generation changes, and the checks before parking are made, under the
 * mutex; the last worker takes the mutex before it looks whether the caller has parked.
 */
#include "core/team.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/mem.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define MAX_THREADS 256
#define NUM_SPINS   2000 /* looks before parking, a pause apart ... */
#define NUM_YIELDS  50   /* ... or a yield apart, where there are more threads than CPUs */
#define STACK_BYTES ((size_t)1 << 20) /* jobs keep no large arrays; see "Memory" in the style */

typedef struct member {
    _Alignas(64) atomic_uint_fast64_t pieces; /* left of its stretch: first 2^32 + end */
    tamis_team *team;
    pthread_t thread; /* not of member 0, the caller */
    int idx;
} member;

struct tamis_team {
    int n_threads;
    int n_started; /* workers running, so that close copes with a half-opened team */
    int n_spins;
    bool is_crowded;    /* more threads than CPUs: a waiting thread gives its CPU away */
    bool has_sync;      /* mutex and condition variables are initialised */
    bool caller_parked; /* under mutex */
    bool stop;          /* under mutex, published by generation */
    int n_parked;       /* workers waiting on `wake`, under mutex */
    tamis_job_fn fn;    /* published by generation */
    void *arg;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    _Alignas(64) atomic_uint_fast64_t generation;
    _Alignas(64) atomic_int num_pending; /* workers that have not finished the job */
    member members[];                    /* [n_threads] */
};

static inline void cpu_relax(const tamis_team *team)
{
    if (team->is_crowded) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int num_usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

/* Returns the generation that followed `seen`. */
static uint_fast64_t wait_for_job(tamis_team *team, uint_fast64_t seen)
{
    uint_fast64_t now;
    for (int i = 0; i < team->n_spins; i++) {
        now = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (now != seen)
            return now;
        cpu_relax(team);
    }
    pthread_mutex_lock(&team->mutex);
    team->n_parked++;
    while ((now = atomic_load(&team->generation)) == seen)
        pthread_cond_wait(&team->wake, &team->mutex);
    team->n_parked--;
    pthread_mutex_unlock(&team->mutex);
    return now;
}

static void finish_job(tamis_team *team)
{
    if (atomic_fetch_sub_explicit(&team->num_pending, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&team->mutex);
    if (team->caller_parked)
        pthread_cond_signal(&team->done);
    pthread_mutex_unlock(&team->mutex);
}

static void *worker_main(void *arg)
{
    member *self = arg;
    tamis_team *team = self->team;
    uint_fast64_t seen = 0;
    for (;;) {
        seen = wait_for_job(team, seen);
        if (team->stop)
            return NULL;
        team->fn(team->arg, self->idx, team->n_threads);
        finish_job(team);
    }
}

static void publish(tamis_team *team)
{
    pthread_mutex_lock(&team->mutex);
    atomic_fetch_add(&team->generation, 1);
    if (team->n_parked > 0)
        pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
}

static void wait_until_done(tamis_team *team)
{
    for (int i = 0; i < team->n_spins; i++) {
        if (atomic_load_explicit(&team->num_pending, memory_order_acquire) == 0)
            return;
        cpu_relax(team);
    }
    pthread_mutex_lock(&team->mutex);
    team->caller_parked = true;
    while (atomic_load(&team->num_pending) != 0)
        pthread_cond_wait(&team->done, &team->mutex);
    team->caller_parked = false;
    pthread_mutex_unlock(&team->mutex);
}

void tamis_team_run(tamis_team *team, tamis_job_fn fn, void *arg)
{
    if (team->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    assert(atomic_load(&team->num_pending) == 0); /* jobs must not start jobs */
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->num_pending, team->n_threads - 1, memory_order_relaxed);
    publish(team);
    fn(arg, 0, team->n_threads);
    wait_until_done(team);
}

void tamis_team_run_sized(tamis_team *team, bool is_worth_waking, tamis_job_fn fn, void *arg)
{
    if (is_worth_waking) {
        tamis_team_run(team, fn, arg);
        return;
    }
    for (int i = 0; i < team->n_threads; i++)
        fn(arg, i, team->n_threads);
}

/* ---------------------------------------------------------------- pieces */

static uint_fast64_t stretch(int64_t begin, int64_t end)
{
    return (uint_fast64_t)begin << 32 | (uint_fast64_t)end;
}

/* Relaxed: the pieces are only handed out here, what is in them the job's barriers order. */
void tamis_team_deal(tamis_team *team, int64_t n_pieces)
{
    for (int i = 0; i < team->n_threads; i++) {
        int64_t begin, end;
        tamis_team_range(n_pieces, 1, i, team->n_threads, &begin, &end);
        atomic_store_explicit(&team->members[i].pieces, stretch(begin, end), memory_order_relaxed);
    }
}

/* Half of what is left to `of`, from its front or its end. */
static bool take_half(member *of, bool is_front, int64_t *begin, int64_t *end)
{
    uint_fast64_t left = atomic_load_explicit(&of->pieces, memory_order_relaxed), rest;
    do {
        const int64_t first = (int64_t)(left >> 32), last = (int64_t)(left & UINT32_MAX);
        const int64_t n = (last - first + 1) / 2;
        if (n == 0)
            return false;
        *begin = is_front ? first : last - n;
        *end = *begin + n;
        rest = is_front ? stretch(*end, last) : stretch(first, *begin);
    } while (!atomic_compare_exchange_weak_explicit(&of->pieces, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool tamis_team_take(tamis_team *team, int thread_idx, int64_t *begin, int64_t *end)
{
    for (int i = 0; i < team->n_threads; i++) {
        const int of = (thread_idx + i) % team->n_threads;
        if (take_half(&team->members[of], i == 0, begin, end))
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- open and close */

/* Workers block all signals, so that handlers of the program run on its own threads. */
static int start_worker(member *w)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (rc == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = pthread_create(&w->thread, &attr, worker_main, w);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    return rc;
}

static tamis_status init_sync(tamis_team *team, tamis_error *err)
{
    if (pthread_mutex_init(&team->mutex, NULL) != 0)
        return tamis_fail(err, TAMIS_STATUS_NO_MEMORY, "thread team: the system has no mutex left");
    if (pthread_cond_init(&team->wake, NULL) != 0)
        goto no_wake;
    if (pthread_cond_init(&team->done, NULL) != 0)
        goto no_done;
    team->has_sync = true;
    return TAMIS_STATUS_OK;
no_done:
    pthread_cond_destroy(&team->wake);
no_wake:
    pthread_mutex_destroy(&team->mutex);
    return tamis_fail(err, TAMIS_STATUS_NO_MEMORY,
                      "thread team: the system has no condition variable left");
}

static tamis_status start_workers(tamis_team *team, tamis_error *err)
{
    while (team->n_started < team->n_threads - 1) {
        member *w = &team->members[team->n_started + 1];
        w->team = team;
        w->idx = team->n_started + 1;
        const int rc = start_worker(w);
        if (rc != 0)
            return tamis_fail(err, TAMIS_STATUS_NO_MEMORY,
                              "thread team: the system refused thread %d of %d: %s", w->idx + 1,
                              team->n_threads, strerror(rc));
        team->n_started++;
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_team_open(tamis_team **out, int n_threads, tamis_error *err)
{
    if (out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "thread team: out is NULL");
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "thread team: %d threads, allowed 1 to %d",
                          n_threads, MAX_THREADS);
    const size_t bytes = sizeof(tamis_team) + (size_t)n_threads * sizeof(member);
    tamis_team *team = tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
    if (team == NULL)
        return tamis_fail_memory(err, "thread team", bytes);
    tamis_status st;
    team->n_threads = n_threads;
    team->is_crowded = n_threads > num_usable_cpus();
    team->n_spins = team->is_crowded ? NUM_YIELDS : NUM_SPINS;
    TAMIS_TRY_GOTO(init_sync(team, err));
    TAMIS_TRY_GOTO(start_workers(team, err));
    *out = team;
    return TAMIS_STATUS_OK;
fail:
    tamis_team_close(&team);
    return st;
}

void tamis_team_close(tamis_team **team_ptr)
{
    if (team_ptr == NULL || *team_ptr == NULL)
        return;
    tamis_team *team = *team_ptr;
    *team_ptr = NULL;
    if (team->n_started > 0) {
        team->stop = true;
        publish(team);
        for (int i = 0; i < team->n_started; i++)
            pthread_join(team->members[i + 1].thread, NULL);
    }
    if (team->has_sync) {
        pthread_cond_destroy(&team->done);
        pthread_cond_destroy(&team->wake);
        pthread_mutex_destroy(&team->mutex);
    }
    tamis_mem_free(team);
}

int tamis_team_size(const tamis_team *team)
{
    return team->n_threads;
}
