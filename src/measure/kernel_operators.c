/*
 * Operators made of kernels, as layers run them: choosing keys for one query (scores alone, scores
 * with streaming top-k) and attention of one token to a list of rows, warm or out of a pool of 1
 * GiB.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/size.h"
#include "engine/memory_plan.h"
#include "measure/kernel_bench.h"
#include "measure/random_weights.h"
#include "ops/index_select.h"
#include "ops/sparse_attn.h"

/* A team with scratch; one item of work cut over its threads. */
typedef struct operator_run {
    tamis_exec exec;
    tamis_partition partition;
} operator_run;

static bool open_run(tamis_kernel_bench *bench, operator_run *r, int32_t n_threads,
                     size_t scratch_floats, int32_t units)
{
    tamis_arena measuring = {0};
    r->exec = (tamis_exec){.kernels = tamis_kernels_current(),
                           .scratch_floats = (size_t)tamis_round_up((int64_t)scratch_floats, 16)};
    tamis_partition_layout(&r->partition, 1, n_threads, &measuring);
    tamis_arena arena = {.base = tamis_kernel_bench_take(bench, measuring.used),
                         .bytes = measuring.used};
    r->exec.scratch =
        tamis_kernel_bench_take(bench, r->exec.scratch_floats * (size_t)n_threads * sizeof(float));
    if (bench->status == TAMIS_STATUS_OK)
        bench->status = tamis_team_open(&r->exec.team, n_threads, bench->err);
    if (bench->status != TAMIS_STATUS_OK)
        return false;
    tamis_partition_layout(&r->partition, 1, n_threads, &arena);
    tamis_partition_set(&r->partition, &units, 1);
    return true;
}

/* ---------------------------------------------------------------- select */

#define INDEX_HEADS 64
#define INDEX_DIM   128
#define INDEX_TOPK  512

typedef struct select_arg {
    operator_run run;
    tamis_index_job job;
    uint8_t *keys;
    tamis_row_format format;
    int32_t n_keys;
    float *scores; /* [n_threads][64] */
    void *query;   /* panels, or what index_query_f4 or _i8 makes */
} select_arg;

static const void *find_keys(const void *user, int32_t token, int32_t j, int32_t n, int32_t *n_run,
                             int64_t *stride)
{
    const select_arg *a = user;
    (void)token;
    *n_run = n;
    *stride = a->format.row_bytes;
    return a->keys + j * a->format.row_bytes;
}

static void score_block(const select_arg *a, float *scores, int64_t j, int64_t n, float *scratch)
{
    const tamis_index_job *job = &a->job;
    const tamis_kernels *k = a->run.exec.kernels;
    const int64_t stride = a->format.row_bytes;
    const uint8_t *keys = a->keys + j * stride, *next = keys + n * stride;
    if (a->format.dtype == TAMIS_DTYPE_F4_E2M1)
        k->index_score_f4(scores, a->query, INDEX_HEADS, INDEX_DIM, keys, &a->format, stride, n,
                          next, scratch);
    else if (a->format.dtype == TAMIS_DTYPE_I8)
        k->index_score_i8(scores, a->query, INDEX_HEADS, INDEX_DIM, keys, &a->format, stride, n,
                          next, scratch);
    else
        k->index_score(scores, a->query, job->weights, INDEX_HEADS, INDEX_DIM, keys, &a->format,
                       stride, n, next, scratch);
}

static void score_thread(void *arg, int thread_idx, int n_threads)
{
    const select_arg *a = arg;
    int64_t begin, end;
    tamis_team_range(a->n_keys, TAMIS_INDEX_BLOCK, thread_idx, n_threads, &begin, &end);
    for (int64_t j = begin; j < end; j += TAMIS_INDEX_BLOCK)
        score_block(a, a->scores + thread_idx * TAMIS_INDEX_BLOCK, j,
                    end - j < TAMIS_INDEX_BLOCK ? end - j : TAMIS_INDEX_BLOCK,
                    tamis_exec_scratch(&a->run.exec, thread_idx));
}

/* The same keys in the same shares as the selection, every score thrown away. */
static void run_score(const tamis_kernels *kernels, void *arg, int64_t run)
{
    select_arg *a = arg;
    (void)kernels, (void)run;
    tamis_team_run(a->run.exec.team, score_thread, a);
}

static void run_select(const tamis_kernels *kernels, void *arg, int64_t run)
{
    select_arg *a = arg;
    (void)kernels, (void)run;
    (void)tamis_index_run(&a->run.exec, &a->job);
}

/* Keys repeat every 4,099, rotated by that, so that scores are in no order. */
static void fill_keys(const select_arg *a, const float *values)
{
    for (int64_t j = 0; j < a->n_keys; j++) {
        uint8_t *row = a->keys + j * a->format.row_bytes;
        tamis_kernels_current()->pack_row(row, row + a->format.scale_at, &a->format,
                                          values + j % 4099 * 7);
    }
}

static void fill_codes(int8_t *codes, bool is_f4)
{
    tamis_noise noise = {99};
    for (int i = 0; codes != NULL && i < INDEX_HEADS * INDEX_DIM; i++) {
        const int value = (int)(tamis_noise_next(&noise) % 255) - 127;
        codes[i] = (int8_t)(is_f4 ? value % 7 * 2 : value);
    }
}

/* FP4 scales are powers of two. */
static float *power_scales(tamis_kernel_bench *bench, int n)
{
    tamis_noise noise = {98};
    float *scales = tamis_kernel_bench_take(bench, sizeof(float) * (size_t)n);
    for (int i = 0; scales != NULL && i < n; i++)
        scales[i] = 0.125f / (float)(1 << tamis_noise_next(&noise) % 4);
    return scales;
}

static void prepare_query(const select_arg *a)
{
    const tamis_index_job *job = &a->job;
    const tamis_kernels *k = tamis_kernels_current();
    if (a->format.dtype == TAMIS_DTYPE_F4_E2M1)
        k->index_query_f4(a->query, job->q_codes, job->q_scales, job->weights, INDEX_HEADS,
                          INDEX_DIM, a->format.group_size);
    else if (a->format.dtype == TAMIS_DTYPE_I8)
        k->index_query_i8(a->query, job->q_codes, job->weights, INDEX_HEADS, INDEX_DIM);
    else
        k->pack_heads(a->query, job->q, INDEX_HEADS, INDEX_DIM);
}

static void set_job(tamis_kernel_bench *bench, select_arg *a, int32_t n_threads)
{
    int8_t *codes = tamis_kernel_bench_take(bench, INDEX_HEADS * INDEX_DIM);
    const float *q = tamis_kernel_bench_floats(bench, INDEX_HEADS * INDEX_DIM);
    fill_codes(codes, a->format.dtype == TAMIS_DTYPE_F4_E2M1);
    a->query = tamis_kernel_bench_take(bench, TAMIS_INDEX_QUERY_BYTES(INDEX_DIM, INDEX_HEADS));
    a->scores =
        tamis_kernel_bench_take(bench, sizeof(float) * TAMIS_INDEX_BLOCK * (size_t)n_threads);
    a->job = (tamis_index_job){
        .q = q,
        .weights = tamis_kernel_bench_floats(bench, INDEX_HEADS),
        .n_tokens = 1,
        .n_heads = INDEX_HEADS,
        .head_dim = INDEX_DIM,
        .topk = INDEX_TOPK,
        .format = &a->format,
        .q_codes = codes,
        .q_scales = power_scales(bench, INDEX_HEADS * INDEX_DIM / 32),
        .visible = &a->n_keys,
        .partition = &a->run.partition,
        .out = tamis_kernel_bench_take(bench, INDEX_TOPK * sizeof(int32_t)),
        .partials = tamis_kernel_bench_take(bench, 2 * (size_t)n_threads * INDEX_TOPK *
                                                       sizeof(tamis_candidate)),
        .n_partials = tamis_kernel_bench_take(bench, 2 * (size_t)n_threads * sizeof(int32_t)),
        .keys = find_keys,
        .user = a};
}

static void bench_keys(tamis_kernel_bench *bench, tamis_row_layout layout, int32_t n_keys,
                       int32_t n_threads)
{
    char shape[64];
    select_arg a = {.n_keys = n_keys};
    if (tamis_row_format_make(&a.format, layout, INDEX_DIM, 0, bench->err) != TAMIS_STATUS_OK)
        return;
    const float *values = tamis_kernel_bench_floats(bench, 4099 * 7 + INDEX_DIM);
    a.keys = tamis_kernel_bench_take(bench, (size_t)n_keys * (size_t)a.format.row_bytes);
    set_job(bench, &a, n_threads);
    if (open_run(bench, &a.run, n_threads,
                 tamis_index_scratch_floats(INDEX_HEADS, INDEX_DIM, INDEX_TOPK),
                 tamis_index_units(n_keys, INDEX_TOPK, false))) {
        fill_keys(&a, values);
        prepare_query(&a);
        snprintf(shape, sizeof shape, "64 heads x 128, %d %s keys", (int)n_keys,
                 tamis_row_layout_name(layout));
        tamis_kernel_case c = {.kernel = "select_score",
                               .fn = run_score,
                               .arg = &a,
                               .ops = 2.0 * n_keys * INDEX_HEADS * INDEX_DIM,
                               .bytes = (double)n_keys * a.format.row_bytes,
                               .is_int8 = layout == TAMIS_ROWS_INDEX_FP4 ||
                                          layout == TAMIS_ROWS_INDEX_INT8};
        tamis_kernel_bench_run_operator(bench, &c, n_threads, shape);
        c.kernel = "select_topk";
        c.fn = run_select;
        tamis_kernel_bench_run_operator(bench, &c, n_threads, shape);
    }
    tamis_team_close(&a.run.exec.team);
    tamis_kernel_bench_end_group(bench);
}

/* ---------------------------------------------------------------- attend */

#define COLD_BYTES ((size_t)1 << 30)
#define WARM_BYTES ((size_t)2 << 20) /* a list or two */

typedef struct attend_arg {
    operator_run run;
    tamis_attn_job job;
    tamis_row_format format;
    const uint8_t *pool;
    size_t pool_rows;
    int32_t n_rows;
    int64_t list; /* number of the list in use */
} attend_arg;

/*
 * Places ascend over the whole pool, as a selection does: the i-th of n lies somewhere in the i-th
 * part. Every list has others.
 */
static int32_t find_rows(const void *user, int32_t token, int32_t first, int32_t n,
                         const void **out)
{
    const attend_arg *a = user;
    const size_t part = a->pool_rows / (size_t)a->n_rows;
    (void)token;
    for (int32_t i = 0; i < n; i++) {
        tamis_noise noise = {(uint64_t)a->list << 32 | (uint32_t)(first + i)};
        const size_t row = (size_t)(first + i) * part + tamis_noise_next(&noise) % part;
        out[i] = a->pool + row * (size_t)a->format.row_bytes;
    }
    return n;
}

static void run_attend(const tamis_kernels *kernels, void *arg, int64_t run)
{
    attend_arg *a = arg;
    (void)kernels;
    a->list = a->pool_rows * (size_t)a->format.row_bytes > 2 * WARM_BYTES ? run : 0;
    tamis_attn_run(&a->run.exec, &a->job);
}

typedef struct attend_shape {
    int32_t n_heads, head_dim, value_dim, n_rows;
} attend_shape;

static void set_attend_job(tamis_kernel_bench *bench, attend_arg *a, const attend_shape *s,
                           int32_t n_threads, const int32_t *list_len)
{
    const int32_t max_chunks = tamis_attn_num_chunks(s->n_rows);
    a->job = (tamis_attn_job){
        .q = tamis_kernel_bench_floats(bench, (size_t)s->n_heads * (size_t)s->head_dim),
        .o = tamis_kernel_bench_take(bench,
                                     (size_t)s->n_heads * (size_t)s->value_dim * sizeof(float)),
        .o_stride = (int64_t)s->n_heads * s->value_dim,
        .n_tokens = 1,
        .num_heads = s->n_heads,
        .head_dim = s->head_dim,
        .value_dim = s->value_dim,
        .format = &a->format,
        .scale = 0.04f,
        .sink = tamis_kernel_bench_floats(bench, (size_t)s->n_heads),
        .partition = &a->run.partition,
        .list_len = list_len,
        .partials = tamis_kernel_bench_take(
            bench, sizeof(float) *
                       tamis_attn_partial_floats(s->n_heads, s->value_dim, max_chunks, n_threads)),
        .max_chunks = max_chunks,
        .rows = find_rows,
        .user = a};
}

static void bench_attend(tamis_kernel_bench *bench, const uint8_t *pool, size_t pool_bytes,
                         const attend_shape *s, int32_t n_threads)
{
    char shape[64];
    attend_arg a = {.format = tamis_row_format_plain(TAMIS_DTYPE_BF16, s->head_dim),
                    .pool = pool,
                    .n_rows = s->n_rows};
    const int first_block = bench->n_blocks;
    a.pool_rows = pool_bytes / (size_t)a.format.row_bytes;
    set_attend_job(bench, &a, s, n_threads, &a.n_rows);
    if (open_run(bench, &a.run, n_threads,
                 tamis_attn_scratch_floats(s->n_heads, s->head_dim, s->value_dim),
                 tamis_attn_num_chunks(s->n_rows))) {
        snprintf(shape, sizeof shape, "%d heads x %d/%d, %d %s bf16 rows", (int)s->n_heads,
                 (int)s->head_dim, (int)s->value_dim, (int)s->n_rows,
                 pool_bytes > 2 * WARM_BYTES ? "cold" : "warm");
        const tamis_kernel_case c = {.kernel = "attend",
                                     .fn = run_attend,
                                     .arg = &a,
                                     .ops = 2.0 * s->n_rows * s->n_heads *
                                            (s->head_dim + s->value_dim),
                                     .bytes = (double)s->n_rows * a.format.row_bytes};
        tamis_kernel_bench_run_operator(bench, &c, n_threads, shape);
    }
    tamis_team_close(&a.run.exec.team);
    tamis_kernel_bench_end_part(bench, first_block);
}

static void bench_all_attend(tamis_kernel_bench *bench, int32_t n_threads)
{
    static const attend_shape v4 = {64, 512, 512, 640}, v32 = {128, 576, 512, 2048};
    const size_t v32_bytes = (size_t)v32.n_rows * (size_t)v32.head_dim * 2;
    if (tamis_available_memory() < COLD_BYTES + COLD_BYTES / 4 && bench->status == TAMIS_STATUS_OK)
        bench->status = tamis_fail_memory(bench->err, "bench: cold rows", COLD_BYTES);
    const uint8_t *pool = tamis_kernel_bench_bytes(bench, COLD_BYTES);
    for (int32_t n = 1; pool != NULL; n = n_threads) {
        bench_attend(bench, pool, WARM_BYTES, &v4, n);
        bench_attend(bench, pool, COLD_BYTES, &v4, n);
        bench_attend(bench, pool, v32_bytes, &v32, n);
        if (n == n_threads)
            break;
    }
}

void tamis_kernel_bench_operators(tamis_kernel_bench *bench)
{
    static const tamis_row_layout layouts[] = {TAMIS_ROWS_BF16, TAMIS_ROWS_INDEX_FP4,
                                               TAMIS_ROWS_INDEX_INT8};
    static const int32_t sizes[] = {32768, 262144};
    const bool wants_select = tamis_kernel_bench_wants(bench, "select_score") ||
                              tamis_kernel_bench_wants(bench, "select_topk");
    for (size_t i = 0; wants_select && i < 6; i++) {
        bench_keys(bench, layouts[i / 2], sizes[i % 2], 1);
        if (bench->n_threads > 1)
            bench_keys(bench, layouts[i / 2], sizes[i % 2], bench->n_threads);
    }
    if (tamis_kernel_bench_wants(bench, "attend"))
        bench_all_attend(bench, bench->n_threads);
}
