/*
 * What the machine gives. Every figure is the best of many short runs of the whole team: a busy
 * machine lowers some runs, none can be above the roof.
 */
#include "measure/roof.h"

#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/team.h"
#include "tamis/bench.h"

#define STREAM_BYTES ((size_t)512 << 20)
#define ROW_BYTES    1024
#define GATHER_ROWS  INT64_C(131072) /* of one run, others every time */
#define ROUNDS       INT64_C(200000) /* of the arithmetic loops: about a millisecond */

/* ---------------------------------------------------------------- portable loops */

static void run_f32(int64_t rounds)
{
    volatile float start = 0.999f;
    float sum[32], x = start;
    for (int i = 0; i < 32; i++)
        sum[i] = x * (float)i;
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 32; i++)
            sum[i] = sum[i] * x + 0.001f;
    for (int i = 0; i < 32; i++)
        start = sum[i];
}

static void run_int8(int64_t rounds)
{
    volatile int8_t start = 3;
    int8_t a[64];
    int32_t sum[64] = {0};
    for (int i = 0; i < 64; i++)
        a[i] = (int8_t)(start + i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 64; i++)
            sum[i] += a[i] * (int8_t)(a[63 - i] + (int8_t)r);
    for (int i = 0; i < 64; i++)
        start = (int8_t)sum[i];
}

static void run_read(const uint8_t *data, size_t bytes)
{
    volatile uint64_t end;
    uint64_t sum[4] = {0};
    for (size_t at = 0; at < bytes; at += 32) {
        uint64_t v[4];
        memcpy(v, data + at, sizeof v);
        for (int i = 0; i < 4; i++)
            sum[i] ^= v[i];
    }
    end = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    (void)end;
}

const tamis_roof_loops tamis_roof_portable = {
    .f32_ops = 32 * 2, .int8_ops = 64 * 2, .f32 = run_f32, .int8 = run_int8, .read = run_read};

static const tamis_roof_loops *loops_of(tamis_cpu_level level)
{
#ifdef TAMIS_HAVE_AVX2
    if (level >= TAMIS_CPU_AVX2)
        return &tamis_roof_avx2;
#endif
    (void)level;
    return &tamis_roof_portable;
}

/* ---------------------------------------------------------------- runs */

typedef struct roof_pass {
    const tamis_roof_loops *loops;
    const uint8_t *data;
    int run; /* number of the run */
} roof_pass;

static void f32_thread(void *arg, int thread_idx, int n_threads)
{
    (void)thread_idx, (void)n_threads;
    ((const roof_pass *)arg)->loops->f32(ROUNDS);
}

static void int8_thread(void *arg, int thread_idx, int n_threads)
{
    (void)thread_idx, (void)n_threads;
    ((const roof_pass *)arg)->loops->int8(ROUNDS);
}

static void stream_thread(void *arg, int thread_idx, int n_threads)
{
    const roof_pass *pass = arg;
    int64_t begin, end;
    tamis_team_range((int64_t)STREAM_BYTES, 4096, thread_idx, n_threads, &begin, &end);
    pass->loops->read(pass->data + begin, (size_t)(end - begin));
}

/* Rows in the order of a full-period generator over all of them, each thread from a start of its
 * own. */
static void gather_thread(void *arg, int thread_idx, int n_threads)
{
    const roof_pass *pass = arg;
    const uint32_t n_rows = (uint32_t)(STREAM_BYTES / ROW_BYTES); /* a power of two */
    int64_t begin, end;
    tamis_team_range(GATHER_ROWS, 1, thread_idx, n_threads, &begin, &end);
    uint32_t row = ((uint32_t)begin + (uint32_t)pass->run * 40503u) * 7919u % n_rows;
    for (int64_t i = begin; i < end; i++) {
        row = (row * 1664525u + 1013904223u) % n_rows;
        pass->loops->read(pass->data + (size_t)row * ROW_BYTES, ROW_BYTES);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Least seconds of one run, over about `seconds` and at least three runs. */
static double best_of(tamis_team *team, tamis_job_fn fn, roof_pass *pass, double seconds)
{
    const double start = now();
    double best = 1e300;
    for (int i = 0; i < 3 || now() - start < seconds; i++) {
        pass->run = i;
        const double begin = now();
        tamis_team_run(team, fn, pass);
        const double took = now() - begin;
        best = took < best ? took : best;
    }
    return best;
}

static tamis_status check(const tamis_team *team, double seconds, const tamis_roof *out,
                          tamis_error *err)
{
    if (team == NULL || out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "roof: team or out is NULL");
    if (!(seconds >= 0.05 && seconds <= 60))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "roof: seconds is %g, allowed 0.05..60",
                          seconds);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_roof_measure(tamis_team *team, double seconds, tamis_roof *out, tamis_error *err)
{
    TAMIS_TRY(check(team, seconds, out, err));
    roof_pass pass = {.loops = loops_of(tamis_cpu_level_current())};
    uint8_t *data = tamis_mem_alloc(TAMIS_MEM_MISC, STREAM_BYTES);
    if (data == NULL)
        return tamis_fail_memory(err, "roof: stream", STREAM_BYTES);
    memset(data, 1, STREAM_BYTES); /* pages that nobody wrote would all be one page of zeros */
    pass.data = data;
    const int n = tamis_team_size(team);
    const double share = seconds / 4, work = (double)ROUNDS * n * 1e-9;
    *out = (tamis_roof){
        .n_threads = n,
        .f32_gflops = work * pass.loops->f32_ops / best_of(team, f32_thread, &pass, share),
        .int8_gops = work * pass.loops->int8_ops / best_of(team, int8_thread, &pass, share),
        .stream_gbs = (double)STREAM_BYTES * 1e-9 / best_of(team, stream_thread, &pass, share),
        .gather_gbs =
            (double)GATHER_ROWS * ROW_BYTES * 1e-9 / best_of(team, gather_thread, &pass, share)};
    tamis_mem_free(data);
    return TAMIS_STATUS_OK;
}
