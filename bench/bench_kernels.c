/*
 * Speed of single kernels at real shapes, one thread: median and best of several runs per
 * CPU level (on a busy machine the best is the truer figure).
 *
 *     bench_kernels [--kernel=NAME] [--level=portable|avx2]
 *
 * GB/s counts the stored bytes of weights, GFLOP/s two operations per multiply-add. Weights are
 * cold: 256 MiB of them are walked, so that no cache holds them at one token. Not a test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

#define HIDDEN           4096
#define POOL_BYTES       ((size_t)256 << 20)
#define MAX_RUNS         64
#define SECONDS_PER_CASE 0.25

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "bench_kernels: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Small pseudo-random integers as bytes: valid, finite, not denormal in every weight format. */
static void fill_bytes(uint8_t *p, size_t n)
{
    uint32_t s = 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        p[i] = (uint8_t)((s >> 24 & 0x8f) | 0x30);
    }
}
static void fill_floats(float *p, size_t n)
{
    uint32_t s = 54321;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)s * 0x1p-31f;
    }
}

/* ---------------------------------------------------------------- measuring */

typedef void (*bench_fn)(const tamis_kernels *kernels, void *arg, int run);

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one call; *best gets the shortest. */
static double measure(const tamis_kernels *kernels, bench_fn fn, void *arg, double *best)
{
    double seconds[MAX_RUNS], begin = now();
    int n = 0;
    fn(kernels, arg, 0);
    while (n < MAX_RUNS && (n < 3 || now() - begin < SECONDS_PER_CASE)) {
        const double start = now();
        fn(kernels, arg, n);
        seconds[n++] = now() - start;
    }
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    *best = seconds[0];
    return seconds[n / 2];
}

typedef struct options {
    const char *kernel, *level;
} options;

static void report(const options *opt, const char *kernel, const char *what, bench_fn fn, void *arg,
                   double flops, double bytes)
{
    if (opt->kernel && strcmp(opt->kernel, kernel) != 0)
        return;
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
        const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
        if (opt->level && strcmp(opt->level, kernels->level_of_name) != 0)
            continue;
        double best;
        const double s = measure(kernels, fn, arg, &best);
        printf("%-11s %-31s %-8s %9.4f ms %7.2f GFLOP/s %7.2f GB/s, best %7.2f %7.2f\n", kernel,
               what, kernels->level_of_name, s * 1e3, flops / s / 1e9, bytes / s / 1e9,
               flops / best / 1e9, bytes / best / 1e9);
        fflush(stdout);
    }
}

/* ---------------------------------------------------------------- linear */

typedef struct linear_arg {
    tamis_matrix w;
    uint8_t *pool;
    float *x, *y, *scratch;
    int64_t n_tokens;
    size_t bytes;
    int64_t rows;
} linear_arg;

static void run_linear(const tamis_kernels *kernels, void *arg, int run)
{
    linear_arg *a = arg;
    const size_t n_places = POOL_BYTES / a->bytes;
    a->w.data = a->pool + (size_t)run % n_places * a->bytes;
    kernels->linear(a->y, HIDDEN, a->x, HIDDEN + 0, a->n_tokens, &a->w, 0, a->rows, a->scratch);
}

static void bench_linear(const options *opt)
{
    static const struct {
        tamis_dtype dtype;
        int bits, block_rows, block_cols;
    } formats[] = {{TAMIS_DTYPE_F32, 32, 0, 0},
                   {TAMIS_DTYPE_BF16, 16, 0, 0},
                   {TAMIS_DTYPE_F16, 16, 0, 0},
                   {TAMIS_DTYPE_F8_E4M3, 8, 128, 128},
                   {TAMIS_DTYPE_F4_E2M1, 4, 1, 32}};
    static const int64_t tokens[] = {1, 2, 3, 4, 8, 128};
    linear_arg a = {.pool = take(POOL_BYTES),
                    .x = take(128 * (HIDDEN + 0) * 4),
                    .y = take(128 * HIDDEN * 4),
                    .scratch = take(TAMIS_LINEAR_SCRATCH(HIDDEN) * 4)};
    uint8_t *scale = take(HIDDEN * HIDDEN / 32);
    memset(scale, 125, HIDDEN * HIDDEN / 32);
    fill_bytes(a.pool, POOL_BYTES);
    fill_floats(a.x, 128 * (HIDDEN + 0));
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            char what[64];
            const int64_t row_bytes = HIDDEN * formats[f].bits / 8;
            a.w = (tamis_matrix){.dtype = formats[f].dtype,
                                 .rows = HIDDEN,
                                 .cols = HIDDEN,
                                 .row_bytes = row_bytes,
                                 .scale = formats[f].block_cols ? scale : NULL,
                                 .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                                 .block_rows = formats[f].block_rows,
                                 .block_cols = formats[f].block_cols,
                                 .scale_row_bytes =
                                     formats[f].block_cols ? HIDDEN / formats[f].block_cols : 0};
            a.bytes = (size_t)row_bytes * HIDDEN;
            a.n_tokens = tokens[t];
            a.rows = tokens[t] > 8 ? 512 : HIDDEN; /* portable would take minutes */
            snprintf(what, sizeof what, "%s %dx%d, %d tokens", tamis_dtype_name(a.w.dtype),
                     (int)a.rows, HIDDEN, (int)tokens[t]);
            report(opt, "linear", what, run_linear, &a,
                   2.0 * (double)a.rows * HIDDEN * (double)tokens[t],
                   (double)row_bytes * (double)a.rows);
        }
    free(a.pool);
    free(a.x);
    free(a.y);
    free(a.scratch);
    free(scale);
}

/* ---------------------------------------------------------------- absorbed query */

#define MLA_HEADS 128
#define MLA_NOPE  128 /* rows of kv_b that make a head's keys; as many make its values */
#define MLA_RANK  512

typedef struct linear_t_arg {
    tamis_matrix w;
    uint8_t *pool;
    float *x, *y, *scratch;
    int64_t n_tokens, n_heads;
    size_t bytes;
} linear_t_arg;

static void run_linear_t(const tamis_kernels *kernels, void *arg, int run)
{
    linear_t_arg *a = arg;
    a->w.data = a->pool + (size_t)run % (POOL_BYTES / a->bytes) * a->bytes;
    for (int64_t h = 0; h < a->n_heads; h++)
        kernels->linear_t(a->y + h * MLA_RANK, a->n_heads * MLA_RANK, a->x + h * MLA_NOPE,
                          a->n_heads * MLA_NOPE, a->n_tokens, &a->w, h * 2 * MLA_NOPE,
                          h * 2 * MLA_NOPE + MLA_NOPE, a->scratch);
}

static void bench_linear_t(const options *opt)
{
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_BF16, TAMIS_DTYPE_F8_E4M3};
    static const int64_t tokens[] = {1, 3, 128};
    const size_t n = MLA_HEADS * MLA_RANK * 16; /* 128 tokens x 16 heads, or 3 x 128 */
    linear_t_arg a = {.pool = take(POOL_BYTES),
                      .x = take(n * 4),
                      .y = take(n * 4),
                      .scratch = take(TAMIS_LINEAR_T_SCRATCH * 4)};
    uint8_t scale[2 * MLA_HEADS * MLA_NOPE / 128 * MLA_RANK / 128];
    memset(scale, 125, sizeof scale);
    fill_bytes(a.pool, POOL_BYTES);
    fill_floats(a.x, n);
    for (size_t f = 0; f < sizeof dtypes / sizeof *dtypes; f++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            char what[64];
            const bool scaled = dtypes[f] == TAMIS_DTYPE_F8_E4M3;
            const int64_t row_bytes = MLA_RANK * (scaled ? 1 : 2);
            a.w = (tamis_matrix){.dtype = dtypes[f],
                                 .rows = 2 * MLA_HEADS * MLA_NOPE,
                                 .cols = MLA_RANK,
                                 .row_bytes = row_bytes,
                                 .scale = scaled ? scale : NULL,
                                 .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                                 .block_rows = 128,
                                 .block_cols = 128,
                                 .scale_row_bytes = MLA_RANK / 128};
            a.bytes = (size_t)(row_bytes * a.w.rows);
            a.n_tokens = tokens[t];
            a.n_heads = tokens[t] > 8 ? 16 : MLA_HEADS;
            const double weights = (double)(a.n_heads * MLA_NOPE * MLA_RANK);
            snprintf(what, sizeof what, "%s %d x 128x512, %d tokens", tamis_dtype_name(dtypes[f]),
                     (int)a.n_heads, (int)tokens[t]);
            report(opt, "linear_t", what, run_linear_t, &a, 2.0 * weights * (double)tokens[t],
                   weights * (scaled ? 1 : 2));
        }
    free(a.pool);
    free(a.x);
    free(a.y);
    free(a.scratch);
}

/* ---------------------------------------------------------------- scores and attention */

#define KEYS        4096
#define INDEX_HEADS 64
#define INDEX_DIM   128

typedef struct index_arg {
    uint8_t *keys;
    float *panels, *weights, *scores, *scratch;
} index_arg;

static void run_index(const tamis_kernels *kernels, void *arg, int run)
{
    const index_arg *a = arg;
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_BF16, INDEX_DIM);
    for (int64_t j = 0; j < KEYS; j += 64)
        kernels->index_score(a->scores + j, a->panels, a->weights, INDEX_HEADS, INDEX_DIM,
                             a->keys + j * INDEX_DIM * 2, &format, INDEX_DIM * 2, 64,
                             a->scratch);
}

static void run_scan(const tamis_kernels *kernels, void *arg, int run)
{
    const index_arg *a = arg;
    kernels->scan_above((int32_t *)(void *)a->scratch, a->scores, KEYS, 100.0f);
}

static void bench_index(const options *opt)
{
    index_arg a = {take(KEYS * INDEX_DIM * 2), take(INDEX_HEADS * INDEX_DIM * 4),
                   take(INDEX_HEADS * 4), take(KEYS * 4),
                   take((TAMIS_INDEX_SCRATCH(INDEX_DIM, INDEX_HEADS) + KEYS) * 4)};
    fill_bytes(a.keys, KEYS * INDEX_DIM * 2);
    fill_floats(a.panels, INDEX_HEADS * INDEX_DIM);
    fill_floats(a.weights, INDEX_HEADS);
    fill_floats(a.scores, KEYS);
    report(opt, "index_score", "64 heads x 128, 4096 bf16 keys", run_index, &a,
           2.0 * KEYS * INDEX_HEADS * INDEX_DIM, KEYS * INDEX_DIM * 2.0);
    report(opt, "scan_above", "4096 scores, none passes", run_scan, &a, 0, KEYS * 4.0);
    free(a.keys);
    free(a.panels);
    free(a.weights);
    free(a.scores);
    free(a.scratch);
}

#define ATTN_POOL_BYTES ((size_t)33 << 20)
#define ATTN_MAX_ROWS   2048

typedef struct attn_arg {
    int64_t n_heads, head_dim, value_dim, n_rows;
    uint8_t *pool;
    const void *rows[ATTN_MAX_ROWS];
    float *q, *panels, *m, *l, *o, *m_c, *l_c, *o_c, *scratch;
} attn_arg;

static void run_attention(const tamis_kernels *kernels, void *arg, int run)
{
    attn_arg *a = arg;
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_BF16, (int32_t)a->head_dim);
    for (int64_t h = 0; h < a->n_heads; h++) {
        a->m[h] = -__builtin_inff();
        a->l[h] = 0;
    }
    memset(a->o, 0, (size_t)(a->n_heads * a->value_dim) * 4);
    for (int64_t first = 0; first < a->n_rows; first += TAMIS_ATTN_CHUNK) {
        kernels->attn_chunk(a->m_c, a->l_c, a->o_c, a->value_dim, a->panels, a->n_heads,
                            a->head_dim, a->value_dim, a->rows + first, &format,
                            TAMIS_ATTN_CHUNK, 0.04f, false, a->scratch);
        kernels->attn_merge(a->m, a->l, a->o, a->value_dim, a->m_c, a->l_c, a->o_c, a->value_dim,
                            a->n_heads, a->value_dim);
    }
    kernels->attn_finish(a->o, a->value_dim, NULL, a->m, a->l, NULL, a->n_heads, a->value_dim);
}

static void run_merge(const tamis_kernels *kernels, void *arg, int run)
{
    attn_arg *a = arg;
    kernels->attn_merge(a->m, a->l, a->o, a->value_dim, a->m_c, a->l_c, a->o_c, a->value_dim,
                        a->n_heads, a->value_dim);
}

static void run_pack(const tamis_kernels *kernels, void *arg, int run)
{
    attn_arg *a = arg;
    kernels->pack_heads(a->panels, a->q, a->n_heads, a->head_dim);
}

static void bench_attention(const options *opt, int64_t n_heads, int64_t head_dim,
                            int64_t value_dim, int64_t n_rows)
{
    char what[64];
    const size_t n = (size_t)(n_heads * head_dim), heads = (size_t)n_heads * 4;
    const double values = (double)(n_heads * value_dim);
    attn_arg a = {.n_heads = n_heads,
                  .head_dim = head_dim,
                  .value_dim = value_dim,
                  .n_rows = n_rows,
                  .pool = take(ATTN_POOL_BYTES),
                  .q = take(n * 4),
                  .panels = take(n * 4),
                  .m = take(heads),
                  .l = take(heads),
                  .o = take(n * 4),
                  .m_c = take(heads),
                  .l_c = take(heads),
                  .o_c = take(n * 4),
                  .scratch = take(TAMIS_ATTN_SCRATCH(n_heads, head_dim) * 4)};
    const size_t row_bytes = (size_t)head_dim * 2;
    const size_t spread = ATTN_POOL_BYTES / row_bytes / (size_t)n_rows;
    fill_bytes(a.pool, ATTN_POOL_BYTES);
    fill_floats(a.q, n);
    for (size_t j = 0; j < (size_t)n_rows; j++)
        a.rows[j] = a.pool + j * spread * row_bytes;
    tamis_kernels_for(TAMIS_CPU_PORTABLE)->pack_heads(a.panels, a.q, n_heads, head_dim);
    snprintf(what, sizeof what, "%d heads x %d/%d, %d bf16 rows", (int)n_heads, (int)head_dim,
             (int)value_dim, (int)n_rows);
    report(opt, "attention", what, run_attention, &a, 2.0 * (double)n_rows * ((double)n + values),
           (double)n_rows * (double)row_bytes);
    snprintf(what, sizeof what, "%d heads x %d", (int)n_heads, (int)value_dim);
    report(opt, "attn_merge", what, run_merge, &a, 3.0 * values, 12.0 * values);
    snprintf(what, sizeof what, "%d heads x %d", (int)n_heads, (int)head_dim);
    report(opt, "pack_heads", what, run_pack, &a, 0, 8.0 * (double)n);
    float *blocks[] = {a.q, a.panels, a.m, a.l, a.o, a.m_c, a.l_c, a.o_c, a.scratch};
    free(a.pool);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

/* ---------------------------------------------------------------- rows */

#define POOL_SLOTS 128

typedef struct rows_arg {
    float *x, *y, *z;
    uint16_t *half;
    const float *value[POOL_SLOTS], *score[POOL_SLOTS];
} rows_arg;

static void run_rmsnorm(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->rmsnorm(a->y, a->x, a->z, HIDDEN, 1e-6f);
}
static void run_layernorm(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->layernorm(a->y, a->x, a->z, a->z + 128, 128, 1e-6f);
}
static void run_rope_halves(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    for (int h = 0; h < 64; h++)
        kernels->rope_halves(a->y + h * 64, a->x, a->z, 32, run % 2 == 0);
}
static void run_rope(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    for (int h = 0; h < 64; h++)
        kernels->rope(a->y + h * 64, a->x, a->z, 32, run % 2 == 0);
}
static void run_swiglu(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->swiglu(a->y, a->x, a->z, HIDDEN, 10.0f);
}
static void run_axpy(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->axpy(a->y, 0.5f, a->x, HIDDEN);
}
static void run_mix(const tamis_kernels *kernels, void *arg, int run)
{
    static const float coef[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    const rows_arg *a = arg;
    kernels->mix(a->y, coef, a->x, HIDDEN, 4, HIDDEN);
}
static void run_pool(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->pool(a->y, a->value, a->score, POOL_SLOTS, 512);
}
static void run_widen(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->widen(a->y, a->half, TAMIS_DTYPE_BF16, HIDDEN);
}
static void run_narrow(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    kernels->narrow(a->half, a->x, TAMIS_DTYPE_BF16, HIDDEN);
}
static void run_all_finite(const tamis_kernels *kernels, void *arg, int run)
{
    const rows_arg *a = arg;
    if (!kernels->all_finite(a->x, HIDDEN))
        abort();
}

static void bench_rows(const options *opt)
{
    const size_t n = 2 * POOL_SLOTS * 512;
    rows_arg a = {
        .x = take(n * 4), .y = take(HIDDEN * 4), .z = take(HIDDEN * 4), .half = take(HIDDEN * 2)};
    fill_floats(a.x, n);
    fill_floats(a.z, HIDDEN);
    fill_floats(a.y, HIDDEN);
    fill_bytes((uint8_t *)a.half, HIDDEN * 2);
    for (size_t s = 0; s < POOL_SLOTS; s++) {
        a.value[s] = a.x + 2 * s * 512;
        a.score[s] = a.value[s] + 512;
    }
    report(opt, "rmsnorm", "4096", run_rmsnorm, &a, 4.0 * HIDDEN, 16.0 * HIDDEN);
    report(opt, "layernorm", "128", run_layernorm, &a, 7.0 * 128, 16.0 * 128);
    report(opt, "rope_halves", "64 heads x 32 pairs", run_rope_halves, &a, 6.0 * 2048, 16.0 * 2048);
    report(opt, "rope", "64 heads x 32 pairs", run_rope, &a, 6.0 * 2048, 16.0 * 2048);
    report(opt, "swiglu", "4096", run_swiglu, &a, 0, 12.0 * HIDDEN);
    report(opt, "axpy", "4096", run_axpy, &a, 2.0 * HIDDEN, 12.0 * HIDDEN);
    report(opt, "mix", "4 streams x 4096", run_mix, &a, 8.0 * HIDDEN, 20.0 * HIDDEN);
    report(opt, "pool", "128 slots x 512", run_pool, &a, 0, 8.0 * POOL_SLOTS * 512);
    report(opt, "widen", "bf16 4096", run_widen, &a, 0, 6.0 * HIDDEN);
    report(opt, "narrow", "bf16 4096", run_narrow, &a, 0, 6.0 * HIDDEN);
    report(opt, "all_finite", "4096", run_all_finite, &a, 0, 4.0 * HIDDEN);
    free(a.x);
    free(a.y);
    free(a.z);
    free(a.half);
}

int main(int argc, char **argv)
{
    options opt = {NULL, NULL};
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--kernel=", 9) == 0) {
            opt.kernel = argv[i] + 9;
        } else if (strncmp(argv[i], "--level=", 8) == 0) {
            opt.level = argv[i] + 8;
        } else {
            fprintf(stderr, "usage: bench_kernels [--kernel=NAME] [--level=portable|avx2]\n");
            return 2;
        }
    }
    bench_linear(&opt);
    bench_linear_t(&opt);
    bench_index(&opt);
    bench_attention(&opt, 64, 512, 512, 640);
    bench_attention(&opt, 128, 576, 512, 2048);
    bench_attention(&opt, 64, 576, 512, 2048);
    bench_rows(&opt);
    return 0;
}
