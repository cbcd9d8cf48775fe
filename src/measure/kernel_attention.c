/* Attention over chunks of rows that lie spread over 33 MiB, and what belongs to it. */
#include <math.h>
#include <string.h>

#include "measure/kernel_bench.h"

#define POOL_BYTES ((size_t)33 << 20)
#define MAX_ROWS   2048

typedef struct attn_arg {
    int64_t n_heads, head_dim, value_dim, n_rows;
    tamis_row_format format;
    uint8_t *pool;
    const void *rows[MAX_ROWS];
    const float *q, *sink;
    float *panels, *m, *l, *o, *m_c, *l_c, *o_c, *scratch;
} attn_arg;

static void run_attention(const tamis_kernels *kernels, void *arg, int64_t run)
{
    attn_arg *a = arg;
    (void)run;
    for (int64_t h = 0; h < a->n_heads; h++) {
        a->m[h] = -INFINITY;
        a->l[h] = 0;
    }
    memset(a->o, 0, (size_t)(a->n_heads * a->value_dim) * sizeof *a->o);
    for (int64_t first = 0; first < a->n_rows; first += TAMIS_ATTN_CHUNK) {
        const bool is_last = first + TAMIS_ATTN_CHUNK >= a->n_rows;
        kernels->attn_chunk(a->m_c, a->l_c, a->o_c, a->value_dim, a->panels, a->n_heads,
                            a->head_dim, a->value_dim, a->rows + first, &a->format,
                            TAMIS_ATTN_CHUNK, a->rows + first + TAMIS_ATTN_CHUNK,
                            is_last ? 0 : TAMIS_ATTN_CHUNK, 0.04f, TAMIS_ATTN_ALONE, a->scratch);
        kernels->attn_merge(a->m, a->l, a->o, a->value_dim, a->m_c, a->l_c, a->o_c, a->value_dim,
                            a->n_heads, a->value_dim);
    }
    kernels->attn_finish(a->o, a->value_dim, NULL, a->m, a->l, a->sink, a->n_heads, a->value_dim);
}

static void run_merge(const tamis_kernels *kernels, void *arg, int64_t run)
{
    attn_arg *a = arg;
    (void)run;
    kernels->attn_merge(a->m, a->l, a->o, a->value_dim, a->m_c, a->l_c, a->o_c, a->value_dim,
                        a->n_heads, a->value_dim);
}

/* Dividing again and again would leave nothing: the sums are 1. */
static void run_finish(const tamis_kernels *kernels, void *arg, int64_t run)
{
    attn_arg *a = arg;
    (void)run;
    kernels->attn_finish(a->o_c, a->value_dim, NULL, a->m_c, a->l_c, NULL, a->n_heads,
                         a->value_dim);
}

static void run_pack(const tamis_kernels *kernels, void *arg, int64_t run)
{
    attn_arg *a = arg;
    (void)run;
    kernels->pack_heads(a->panels, a->q, a->n_heads, a->head_dim);
}

static void spread_rows(attn_arg *a)
{
    const size_t row_bytes = (size_t)a->format.row_bytes;
    const size_t apart = POOL_BYTES / row_bytes / (size_t)a->n_rows * row_bytes;
    for (int64_t j = 0; j < a->n_rows; j++) {
        uint8_t *row = a->pool + (size_t)j * apart;
        tamis_kernels_current()->pack_row(row, row + a->format.scale_at, &a->format,
                                          a->q + j % a->n_heads * a->head_dim);
        a->rows[j] = row;
    }
}

static void bench_rows_of(tamis_kernel_bench *bench, attn_arg *a, tamis_row_layout layout)
{
    const bool is_packed = layout != TAMIS_ROWS_BF16 && layout != TAMIS_ROWS_F32;
    if (tamis_row_format_make(&a->format, layout, (int32_t)a->head_dim, is_packed ? 64 : 0,
                              bench->err) != TAMIS_STATUS_OK)
        return;
    spread_rows(a);
    const tamis_kernel_case c = {
        .kernel = "attn_chunk",
        .fn = run_attention,
        .arg = a,
        .ops = 2.0 * (double)(a->n_rows * a->n_heads * (a->head_dim + a->value_dim)),
        .bytes = (double)a->n_rows * a->format.row_bytes};
    tamis_kernel_bench_run(bench, &c, "%d heads x %d/%d, %d %s rows", (int)a->n_heads,
                           (int)a->head_dim, (int)a->value_dim, (int)a->n_rows,
                           tamis_row_layout_name(layout));
}

static void bench_small(tamis_kernel_bench *bench, attn_arg *a)
{
    const double values = (double)(a->n_heads * a->value_dim);
    for (int64_t h = 0; h < a->n_heads; h++)
        a->l_c[h] = 1;
    const tamis_kernel_case merge = {
        .kernel = "attn_merge", .fn = run_merge, .arg = a, .ops = 3 * values, .bytes = 12 * values};
    const tamis_kernel_case finish = {.kernel = "attn_finish",
                                      .fn = run_finish,
                                      .arg = a,
                                      .ops = 2 * values,
                                      .bytes = 8 * values};
    const tamis_kernel_case pack = {.kernel = "pack_heads",
                                    .fn = run_pack,
                                    .arg = a,
                                    .bytes = 8.0 * (double)(a->n_heads * a->head_dim)};
    tamis_kernel_bench_run(bench, &merge, "%d heads x %d", (int)a->n_heads, (int)a->value_dim);
    tamis_kernel_bench_run(bench, &finish, "%d heads x %d", (int)a->n_heads, (int)a->value_dim);
    tamis_kernel_bench_run(bench, &pack, "%d heads x %d", (int)a->n_heads, (int)a->head_dim);
}

static void bench_shape(tamis_kernel_bench *bench, int64_t n_heads, int64_t head_dim,
                        int64_t value_dim, int64_t n_rows, const tamis_row_layout layouts[2])
{
    const size_t n = (size_t)(n_heads * head_dim), heads = (size_t)n_heads * sizeof(float);
    attn_arg a = {.n_heads = n_heads,
                  .head_dim = head_dim,
                  .value_dim = value_dim,
                  .n_rows = n_rows,
                  .pool = tamis_kernel_bench_take(bench, POOL_BYTES),
                  .q = tamis_kernel_bench_floats(bench, n),
                  .sink = tamis_kernel_bench_floats(bench, (size_t)n_heads),
                  .panels = tamis_kernel_bench_take(bench, n * sizeof(float)),
                  .m = tamis_kernel_bench_take(bench, heads),
                  .l = tamis_kernel_bench_take(bench, heads),
                  .o = tamis_kernel_bench_take(bench, n * sizeof(float)),
                  .m_c = tamis_kernel_bench_take(bench, heads),
                  .l_c = tamis_kernel_bench_take(bench, heads),
                  .o_c = tamis_kernel_bench_take(bench, n * sizeof(float)),
                  .scratch = tamis_kernel_bench_take(bench, TAMIS_ATTN_SCRATCH(n_heads, head_dim) *
                                                                sizeof(float))};
    if (bench->status == TAMIS_STATUS_OK) {
        tamis_kernels_current()->pack_heads(a.panels, a.q, n_heads, head_dim);
        for (int i = 0; i < 2; i++)
            bench_rows_of(bench, &a, layouts[i]);
        bench_small(bench, &a);
    }
    tamis_kernel_bench_end_group(bench);
}

void tamis_kernel_bench_attention(tamis_kernel_bench *bench)
{
    static const tamis_row_layout v4[] = {TAMIS_ROWS_BF16, TAMIS_ROWS_V4_FP8};
    static const tamis_row_layout v32[] = {TAMIS_ROWS_BF16, TAMIS_ROWS_LATENT_FLASHMLA};
    static const tamis_row_layout glm[] = {TAMIS_ROWS_BF16, TAMIS_ROWS_LATENT_ASCEND};
    const bool wants = tamis_kernel_bench_wants(bench, "attn_chunk") ||
                       tamis_kernel_bench_wants(bench, "attn_merge") ||
                       tamis_kernel_bench_wants(bench, "attn_finish") ||
                       tamis_kernel_bench_wants(bench, "pack_heads");
    if (!wants)
        return;
    bench_shape(bench, 64, 512, 512, 640, v4);
    bench_shape(bench, 128, 576, 512, 2048, v32);
    bench_shape(bench, 64, 576, 512, 2048, glm);
}
