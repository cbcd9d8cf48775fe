/* tamis_bench_kernels: runs the groups, times their cases. */
#include "measure/kernel_bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/mem.h"
#include "measure/random_weights.h"

/* Calls that are timed together last at least so long: the clock's own time does not show. */
#define LEAST_SECONDS 20e-6

/* ---------------------------------------------------------------- memory */

bool tamis_kernel_bench_wants(const tamis_kernel_bench *bench, const char *kernel)
{
    return bench->status == TAMIS_STATUS_OK &&
           (bench->only == NULL || strstr(kernel, bench->only) != NULL);
}

void *tamis_kernel_bench_take(tamis_kernel_bench *bench, size_t bytes)
{
    if (bench->status != TAMIS_STATUS_OK || bench->n_blocks == TAMIS_KERNEL_BENCH_BLOCKS)
        return NULL;
    void *block = tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
    if (block == NULL)
        bench->status = tamis_fail_memory(bench->err, "bench: kernels", bytes);
    else
        bench->blocks[bench->n_blocks++] = block;
    return block;
}

uint8_t *tamis_kernel_bench_bytes(tamis_kernel_bench *bench, size_t bytes)
{
    uint8_t *to = tamis_kernel_bench_take(bench, bytes);
    uint32_t s = 12345;
    for (size_t i = 0; to != NULL && i < bytes; i++) {
        s = s * 1664525u + 1013904223u;
        to[i] = (uint8_t)((s >> 24 & 0x8f) | 0x30); /* finite, not denormal in any format */
    }
    return to;
}

float *tamis_kernel_bench_floats(tamis_kernel_bench *bench, size_t n)
{
    float *to = tamis_kernel_bench_take(bench, n * sizeof *to);
    tamis_noise noise = {54321};
    for (size_t i = 0; to != NULL && i < n; i++)
        to[i] = tamis_noise_unit(&noise);
    return to;
}

void tamis_kernel_bench_end_part(tamis_kernel_bench *bench, int n_blocks)
{
    while (bench->n_blocks > n_blocks)
        tamis_mem_free(bench->blocks[--bench->n_blocks]);
}

void tamis_kernel_bench_end_group(tamis_kernel_bench *bench)
{
    tamis_kernel_bench_end_part(bench, 0);
}

/* ---------------------------------------------------------------- time */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Least seconds of a call. */
static double best_of(const tamis_kernel_bench *bench, const tamis_kernel_case *c,
                      const tamis_kernels *kernels)
{
    const double start = now();
    double best = 1e300;
    int64_t run = 0, n = 1;
    c->fn(kernels, c->arg, run++);
    for (int i = 0; i == 0 || now() - start < bench->seconds; i++) {
        const double begin = now();
        for (int64_t k = 0; k < n; k++)
            c->fn(kernels, c->arg, run++);
        const double took = now() - begin;
        best = took / (double)n < best ? took / (double)n : best;
        if (took < LEAST_SECONDS)
            n *= 2;
    }
    return best;
}

static void report(tamis_kernel_bench *bench, const tamis_kernel_case *c,
                   tamis_bench_kernel_line line, const tamis_kernels *kernels)
{
    const double seconds = best_of(bench, c, kernels);
    line.kernel = c->kernel;
    line.us = 1e6 * seconds;
    line.gops = 1e-9 * c->ops / seconds;
    line.gbs = 1e-9 * c->bytes / seconds;
    line.is_int8 = c->is_int8;
    line.is_cold = c->is_cold;
    bench->n_lines++;
    if (!bench->fn(&line, bench->user))
        bench->status = tamis_fail(bench->err, TAMIS_STATUS_CANCELLED, "bench: stopped");
}

void tamis_kernel_bench_run(tamis_kernel_bench *bench, const tamis_kernel_case *c,
                            const char *shape_format, ...)
{
    char shape[64];
    va_list args;
    va_start(args, shape_format);
    vsnprintf(shape, sizeof shape, shape_format, args);
    va_end(args);
    for (int level = 0; level <= (int)tamis_cpu_level_current(); level++) {
        if (!tamis_kernel_bench_wants(bench, c->kernel))
            return;
        const tamis_bench_kernel_line line = {
            .shape = shape, .level = (tamis_cpu_level)level, .n_threads = 1};
        report(bench, c, line, tamis_kernels_for((tamis_cpu_level)level));
    }
}

void tamis_kernel_bench_run_operator(tamis_kernel_bench *bench, const tamis_kernel_case *c,
                                     int32_t n_threads, const char *shape)
{
    const tamis_bench_kernel_line line = {
        .shape = shape, .level = tamis_cpu_level_current(), .n_threads = n_threads};
    if (tamis_kernel_bench_wants(bench, c->kernel))
        report(bench, c, line, tamis_kernels_current());
}

/* ---------------------------------------------------------------- the whole */

static tamis_status check(double seconds, int32_t n_threads, tamis_bench_kernel_fn fn,
                          tamis_error *err)
{
    if (fn == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: fn is NULL");
    if (!(seconds >= 0 && seconds <= 60))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: seconds_each is %g, allowed 0..60",
                          seconds);
    if (n_threads < 1 || n_threads > 256)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: n_threads is %d, allowed 1..256",
                          n_threads);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_bench_kernels(double seconds_each, int32_t n_threads, const char *only,
                                 tamis_bench_kernel_fn fn, void *user, tamis_error *err)
{
    static void (*const groups[])(tamis_kernel_bench *) = {
        tamis_kernel_bench_linear, tamis_kernel_bench_scores,  tamis_kernel_bench_attention,
        tamis_kernel_bench_rows,   tamis_kernel_bench_project, tamis_kernel_bench_operators};
    TAMIS_TRY(check(seconds_each, n_threads, fn, err));
    tamis_kernel_bench bench = {.seconds = seconds_each,
                                .n_threads = n_threads,
                                .only = only,
                                .fn = fn,
                                .user = user,
                                .err = err};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        groups[i](&bench);
        tamis_kernel_bench_end_group(&bench);
    }
    if (bench.status == TAMIS_STATUS_OK && bench.n_lines == 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: no kernel's name contains '%.100s'",
                          only);
    return bench.status;
}
