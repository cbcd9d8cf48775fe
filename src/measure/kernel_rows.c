/* Kernels over single rows: norms, rotations, sums, roundings, rows of caches. Data lie near the
 * core. */
#include "measure/kernel_bench.h"

#define WIDTH      4096
#define POOL_SLOTS 128

typedef struct rows_arg {
    float *x, *y, *z, *scale;
    uint16_t *half;
    int8_t *codes;
    uint8_t *row;
    tamis_row_format format;
    bool is_false;
    const float *value[POOL_SLOTS], *score[POOL_SLOTS];
} rows_arg;

/* One kernel each, over `a`. */
#define ROW_CASE(name, call)                                                                       \
    static void run_##name(const tamis_kernels *kernels, void *arg, int64_t run)                   \
    {                                                                                              \
        rows_arg *a = arg;                                                                         \
        (void)run;                                                                                 \
        call;                                                                                      \
    }

/* clang-format off */
ROW_CASE(rmsnorm, kernels->rmsnorm(a->y, a->x, a->z, WIDTH, 1e-6f))
ROW_CASE(rmsnorm_bf16, kernels->rmsnorm_bf16(a->y, a->x, 512, 1e-6f))
ROW_CASE(layernorm, kernels->layernorm(a->y, a->x, a->z, a->z + 128, 128, 1e-6f))
ROW_CASE(swiglu, kernels->swiglu(a->y, a->x, a->z, WIDTH, 10.0f))
ROW_CASE(axpy, kernels->axpy(a->y, 1e-6f, a->x, WIDTH))
ROW_CASE(scale, kernels->scale(a->y, 0.5f, a->x, WIDTH))
ROW_CASE(pool, kernels->pool(a->y, a->value, a->score, POOL_SLOTS, 512))
ROW_CASE(widen, kernels->widen(a->y, a->half, TAMIS_DTYPE_BF16, WIDTH))
ROW_CASE(narrow, kernels->narrow(a->half, a->x, TAMIS_DTYPE_BF16, WIDTH))
ROW_CASE(all_finite, a->is_false |= !kernels->all_finite(a->x, WIDTH))
ROW_CASE(round_bf16, kernels->round_bf16(a->x, WIDTH))
ROW_CASE(round_f8, kernels->round_f8(a->y, a->x, WIDTH, 128))
ROW_CASE(quantize_i8, kernels->quantize_i8(a->codes, a->scale, a->x, WIDTH))
ROW_CASE(quantize_i8_static, kernels->quantize_i8_static(a->codes, a->x, WIDTH, 0.01f, 1, false))
ROW_CASE(quantize_f4, kernels->quantize_f4(a->codes, a->scale, a->x, WIDTH, 32))
ROW_CASE(pack_row, kernels->pack_row(a->row, a->row + a->format.scale_at, &a->format, a->x))
ROW_CASE(unpack_row, kernels->unpack_row(a->y, a->row, a->row + a->format.scale_at, &a->format))
/* clang-format on */

/* There and back, so that the values stay what they are. */
static void run_add(const tamis_kernels *kernels, void *arg, int64_t run)
{
    const rows_arg *a = arg;
    kernels->add(a->y, run % 2 == 0 ? a->x : a->x + WIDTH, WIDTH);
}

static void run_mix(const tamis_kernels *kernels, void *arg, int64_t run)
{
    static const float coef[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    const rows_arg *a = arg;
    (void)run;
    kernels->mix(a->y, coef, a->x, WIDTH, 4, WIDTH);
}

static void run_rope(const tamis_kernels *kernels, void *arg, int64_t run)
{
    const rows_arg *a = arg;
    for (int h = 0; h < 64; h++)
        kernels->rope(a->y + h * 64, a->z, a->z + 32, 32, run % 2 == 0);
}

static void run_rope_halves(const tamis_kernels *kernels, void *arg, int64_t run)
{
    const rows_arg *a = arg;
    for (int h = 0; h < 64; h++)
        kernels->rope_halves(a->y + h * 64, a->z, a->z + 32, 32, run % 2 == 0);
}

static void run_hadamard(const tamis_kernels *kernels, void *arg, int64_t run)
{
    const rows_arg *a = arg;
    (void)run;
    for (int h = 0; h < 64; h++) /* orthogonal: sizes stay */
        kernels->hadamard(a->y + h * 64, 128, 0.08838834764831845f);
}

typedef struct row_case {
    tamis_kernel_case c;
    const char *shape;
} row_case;

/* pack_row and unpack_row of the layouts at their real dimensions. */
static void bench_formats(tamis_kernel_bench *bench, rows_arg *a)
{
    static const struct {
        tamis_row_layout layout;
        int32_t num_values, num_plain;
    } rows[] = {{TAMIS_ROWS_BF16, 512, 0},
                {TAMIS_ROWS_V4_FP8, 512, 64},
                {TAMIS_ROWS_LATENT_FLASHMLA, 576, 64},
                {TAMIS_ROWS_LATENT_ASCEND, 576, 64},
                {TAMIS_ROWS_INDEX_FP8, 128, 0},
                {TAMIS_ROWS_INDEX_FP4, 128, 0},
                {TAMIS_ROWS_INDEX_INT8, 128, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (tamis_row_format_make(&a->format, rows[i].layout, rows[i].num_values, rows[i].num_plain,
                                  bench->err) != TAMIS_STATUS_OK)
            continue;
        const double bytes = 4.0 * rows[i].num_values + a->format.row_bytes;
        const tamis_kernel_case pack = {
            .kernel = "pack_row", .fn = run_pack_row, .arg = a, .bytes = bytes};
        const tamis_kernel_case unpack = {
            .kernel = "unpack_row", .fn = run_unpack_row, .arg = a, .bytes = bytes};
        const char *name = tamis_row_layout_name(rows[i].layout);
        tamis_kernel_bench_run(bench, &pack, "%s %d", name, (int)rows[i].num_values);
        tamis_kernel_bench_run(bench, &unpack, "%s %d", name, (int)rows[i].num_values);
    }
}

static void bench_all(tamis_kernel_bench *bench, rows_arg *a)
{
    const double n = WIDTH;
    /* clang-format off */
    const row_case cases[] = {
        {{"rmsnorm", run_rmsnorm, a, 4 * n, 16 * n, false, false}, "4096"},
        {{"rmsnorm_bf16", run_rmsnorm_bf16, a, 4 * 512, 8 * 512, false, false}, "512"},
        {{"layernorm", run_layernorm, a, 7 * 128, 16 * 128, false, false}, "128"},
        {{"rope", run_rope, a, 6 * 2048, 16 * 2048, false, false}, "64 heads x 32 pairs"},
        {{"rope_halves", run_rope_halves, a, 6 * 2048, 16 * 2048, false, false}, "64 heads x 32 pairs"},
        {{"swiglu", run_swiglu, a, 0, 12 * n, false, false}, "4096"},
        {{"axpy", run_axpy, a, 2 * n, 12 * n, false, false}, "4096"},
        {{"scale", run_scale, a, n, 8 * n, false, false}, "4096"},
        {{"add", run_add, a, n, 12 * n, false, false}, "4096"},
        {{"mix", run_mix, a, 8 * n, 20 * n, false, false}, "4 streams x 4096"},
        {{"pool", run_pool, a, 0, 8.0 * POOL_SLOTS * 512, false, false}, "128 slots x 512"},
        {{"widen", run_widen, a, 0, 6 * n, false, false}, "bf16 4096"},
        {{"narrow", run_narrow, a, 0, 6 * n, false, false}, "bf16 4096"},
        {{"all_finite", run_all_finite, a, 0, 4 * n, false, false}, "4096"},
        {{"round_bf16", run_round_bf16, a, 0, 8 * n, false, false}, "4096"},
        {{"round_f8", run_round_f8, a, 0, 8 * n, false, false}, "4096 in groups of 128"},
        {{"quantize_i8", run_quantize_i8, a, 0, 5 * n, false, false}, "4096"},
        {{"quantize_i8_static", run_quantize_i8_static, a, 0, 5 * n, false, false}, "4096"},
        {{"quantize_f4", run_quantize_f4, a, 0, 5 * n, false, false}, "4096 in groups of 32"},
        {{"hadamard", run_hadamard, a, 64.0 * 128 * 8, 8.0 * 64 * 128, false, false}, "64 rows x 128"},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tamis_kernel_bench_run(bench, &cases[i].c, "%s", cases[i].shape);
    bench_formats(bench, a);
}

void tamis_kernel_bench_rows(tamis_kernel_bench *bench)
{
    rows_arg a = {.x = tamis_kernel_bench_floats(bench, 2 * POOL_SLOTS * 512),
                  .y = tamis_kernel_bench_floats(bench, 2 * WIDTH),
                  .z = tamis_kernel_bench_floats(bench, WIDTH),
                  .scale = tamis_kernel_bench_take(bench, WIDTH * sizeof(float)),
                  .half = tamis_kernel_bench_take(bench, WIDTH * 2),
                  .codes = tamis_kernel_bench_take(bench, WIDTH),
                  .row = tamis_kernel_bench_take(bench, WIDTH)};
    if (bench->status != TAMIS_STATUS_OK)
        return;
    for (size_t s = 0; s < POOL_SLOTS; s++) {
        a.value[s] = a.x + 2 * s * 512;
        a.score[s] = a.value[s] + 512;
    }
    bench_all(bench, &a);
}
