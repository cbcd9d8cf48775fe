/* Index scores of one query over keys that lie in a cache near the core, and the threshold scan. */
#include <string.h>

#include "measure/kernel_bench.h"

#define KEYS  4096
#define HEADS 64
#define DIM   128

typedef struct scores_arg {
    uint8_t *keys;
    const float *panels, *weights, *q_scales;
    const int8_t *codes;
    float *scores, *scratch;
    void *query; /* of the level that is measured */
    tamis_row_format format;
} scores_arg;

/* Scores of the block of 64 keys from j on. */
static void score(const tamis_kernels *kernels, const scores_arg *a, int64_t j)
{
    const int64_t stride = a->format.row_bytes;
    const uint8_t *keys = a->keys + j * stride;
    if (a->format.dtype == TAMIS_DTYPE_F4_E2M1)
        kernels->index_score_f4(a->scores + j, a->query, HEADS, DIM, keys, &a->format, stride, 64,
                                NULL, a->scratch);
    else if (a->format.dtype == TAMIS_DTYPE_I8)
        kernels->index_score_i8(a->scores + j, a->query, HEADS, DIM, keys, &a->format, stride, 64,
                                NULL, a->scratch);
    else
        kernels->index_score(a->scores + j, a->panels, a->weights, HEADS, DIM, keys, &a->format,
                             stride, 64, NULL, a->scratch);
}

static void prepare(const tamis_kernels *kernels, const scores_arg *a)
{
    if (a->format.dtype == TAMIS_DTYPE_F4_E2M1)
        kernels->index_query_f4(a->query, a->codes, a->q_scales, a->weights, HEADS, DIM,
                                a->format.group_size);
    else if (a->format.dtype == TAMIS_DTYPE_I8)
        kernels->index_query_i8(a->query, a->codes, a->weights, HEADS, DIM);
}

static void run_scores(const tamis_kernels *kernels, void *arg, int64_t run)
{
    (void)run;
    prepare(kernels, arg);
    for (int64_t j = 0; j < KEYS; j += 64)
        score(kernels, arg, j);
}

static void run_query(const tamis_kernels *kernels, void *arg, int64_t run)
{
    (void)run;
    prepare(kernels, arg);
}

static void run_scan(const tamis_kernels *kernels, void *arg, int64_t run)
{
    const scores_arg *a = arg;
    (void)run;
    kernels->scan_above((int32_t *)(void *)a->scratch, a->scores, KEYS, 1e30f);
}

static void fill_keys(scores_arg *a, const float *values)
{
    for (int64_t j = 0; j < KEYS; j++) {
        uint8_t *row = a->keys + j * a->format.row_bytes;
        tamis_kernels_current()->pack_row(row, row + a->format.scale_at, &a->format,
                                          values + j % 64 * DIM);
    }
}

static void bench_layout(tamis_kernel_bench *bench, scores_arg *a, tamis_row_layout layout,
                         const float *values)
{
    if (tamis_row_format_make(&a->format, layout, DIM, 0, bench->err) != TAMIS_STATUS_OK ||
        a->keys == NULL || values == NULL)
        return;
    const bool is_f4 = layout == TAMIS_ROWS_INDEX_FP4, is_i8 = layout == TAMIS_ROWS_INDEX_INT8;
    fill_keys(a, values);
    const tamis_kernel_case c = {.kernel = is_f4   ? "index_score_f4"
                                           : is_i8 ? "index_score_i8"
                                                   : "index_score",
                                 .fn = run_scores,
                                 .arg = a,
                                 .ops = 2.0 * KEYS * HEADS * DIM,
                                 .bytes = (double)KEYS * a->format.row_bytes,
                                 .is_int8 = is_f4 || is_i8};
    const tamis_kernel_case query = {.kernel = is_f4 ? "index_query_f4" : "index_query_i8",
                                     .fn = run_query,
                                     .arg = a}; /* the portable form only notes where q lies */
    tamis_kernel_bench_run(bench, &c, "64 heads x 128, 4096 %s keys",
                           tamis_row_layout_name(layout));
    if (is_f4 || is_i8)
        tamis_kernel_bench_run(bench, &query, "64 heads x 128");
}

void tamis_kernel_bench_scores(tamis_kernel_bench *bench)
{
    static const tamis_row_layout layouts[] = {TAMIS_ROWS_BF16, TAMIS_ROWS_F32,
                                               TAMIS_ROWS_INDEX_FP8, TAMIS_ROWS_INDEX_FP4,
                                               TAMIS_ROWS_INDEX_INT8};
    const bool wants = tamis_kernel_bench_wants(bench, "index_score_f4") ||
                       tamis_kernel_bench_wants(bench, "index_query_f4") ||
                       tamis_kernel_bench_wants(bench, "index_query_i8") ||
                       tamis_kernel_bench_wants(bench, "index_score_i8") ||
                       tamis_kernel_bench_wants(bench, "scan_above");
    if (!wants)
        return;
    const float *values = tamis_kernel_bench_floats(bench, 64 * DIM);
    scores_arg a = {.keys = tamis_kernel_bench_take(bench, KEYS * DIM * sizeof(float)),
                    .panels = tamis_kernel_bench_floats(bench, HEADS * DIM),
                    .weights = tamis_kernel_bench_floats(bench, HEADS),
                    .query = tamis_kernel_bench_take(bench, TAMIS_INDEX_QUERY_BYTES(DIM, HEADS)),
                    .scores = tamis_kernel_bench_floats(bench, KEYS),
                    .scratch = tamis_kernel_bench_take(
                        bench, (TAMIS_INDEX_SCRATCH(DIM, HEADS) + KEYS) * sizeof(float))};
    int8_t *codes = tamis_kernel_bench_take(bench, HEADS * DIM);
    for (int i = 0; codes != NULL && i < HEADS * DIM; i++) /* doubled FP4 codes, good int8 ones */
        codes[i] = (int8_t)(i % 2 == 0 ? 2 * (i % 7) : -(i % 5));
    a.codes = codes;
    float *q_scales = tamis_kernel_bench_take(bench, HEADS * DIM / 32 * sizeof(float));
    for (int i = 0; q_scales != NULL && i < HEADS * DIM / 32; i++) /* powers of two, as FP4 has */
        q_scales[i] = 0.125f / (float)(1 << i % 4);
    a.q_scales = q_scales;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        bench_layout(bench, &a, layouts[i], values);
    const tamis_kernel_case scan = {
        .kernel = "scan_above", .fn = run_scan, .arg = &a, .bytes = KEYS * sizeof(float)};
    tamis_kernel_bench_run(bench, &scan, "4096 scores, none passes");
}
