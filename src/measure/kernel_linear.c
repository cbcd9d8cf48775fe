/* Linear layers: weights out of memory, 256 MiB of them are walked. */
#include <string.h>

#include "core/size.h"
#include "measure/kernel_bench.h"

#define SIDE       INT64_C(4096)
#define POOL_BYTES ((size_t)256 << 20)
#define MAX_TOKENS 128

typedef struct weight_format {
    tamis_dtype dtype;
    int32_t block_rows, block_cols; /* 0: no scales */
} weight_format;

typedef struct linear_arg {
    tamis_matrix w;
    const uint8_t *pool;
    float *x, *y, *scratch;
    const float *scales; /* a row's, a token's */
    const int8_t *codes;
    int64_t n_tokens, rows;
} linear_arg;

static void next_place(linear_arg *a, int64_t run)
{
    const int64_t bytes = a->w.row_bytes * a->w.rows, n_places = (int64_t)POOL_BYTES / bytes;
    a->w.data = a->pool + run % n_places * bytes;
}

static void run_linear(const tamis_kernels *kernels, void *arg, int64_t run)
{
    linear_arg *a = arg;
    next_place(a, run);
    kernels->linear(a->y, SIDE, a->x, SIDE, a->n_tokens, &a->w, 0, a->rows, a->scratch, false);
}

static void run_linear_i8(const tamis_kernels *kernels, void *arg, int64_t run)
{
    linear_arg *a = arg;
    next_place(a, run);
    kernels->linear_i8(a->y, SIDE, a->codes, SIDE, a->scales, a->n_tokens, &a->w, a->scales, NULL,
                       0, a->rows, a->scratch);
}

static void run_expand_row(const tamis_kernels *kernels, void *arg, int64_t run)
{
    linear_arg *a = arg;
    kernels->expand_row(a->y, &a->w, run % a->w.rows);
}

static tamis_matrix matrix(const weight_format *f, int64_t rows, int64_t cols, const void *scale)
{
    const bool is_integer = f->dtype == TAMIS_DTYPE_I8 || f->dtype == TAMIS_DTYPE_I4;
    const tamis_dtype scale_dtype = is_integer ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_F8_E8M0;
    tamis_matrix w = {.dtype = f->dtype,
                      .rows = rows,
                      .cols = cols,
                      .row_bytes = cols * tamis_dtype_bits(f->dtype) / 8};
    if (f->block_cols == 0)
        return w;
    w.scale = scale;
    w.scale_dtype = scale_dtype;
    w.block_rows = f->block_rows;
    w.block_cols = f->block_cols;
    w.scale_row_bytes = tamis_ceil_div(cols, f->block_cols) * tamis_dtype_bits(scale_dtype) / 8;
    return w;
}

/* ---------------------------------------------------------------- linear, linear_i8, expand_row */

static void bench_format(tamis_kernel_bench *bench, linear_arg *a, const weight_format *f,
                         const void *scale, const char *kernel)
{
    static const int64_t tokens[] = {1, 2, 4, 8, MAX_TOKENS};
    const bool is_int8 = kernel[sizeof "linear" - 1] != '\0';
    a->w = matrix(f, SIDE, SIDE, scale);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        a->n_tokens = tokens[i];
        a->rows = tokens[i] > 8 ? 512 : SIDE; /* portable kernels would take seconds */
        const double weights = (double)(a->rows * SIDE);
        const tamis_kernel_case c = {.kernel = kernel,
                                     .fn = is_int8 ? run_linear_i8 : run_linear,
                                     .arg = a,
                                     .ops = 2 * weights * (double)tokens[i],
                                     .bytes = (double)(a->rows * a->w.row_bytes),
                                     .is_int8 = is_int8,
                                     .is_cold = true};
        tamis_kernel_bench_run(bench, &c, "%s %dx%d, %d token%s", tamis_dtype_name(f->dtype),
                               (int)a->rows, (int)SIDE, (int)tokens[i], tokens[i] == 1 ? "" : "s");
    }
}

static void bench_expand(tamis_kernel_bench *bench, linear_arg *a, const weight_format *f,
                         const void *scale)
{
    a->w = matrix(f, SIDE, SIDE, scale);
    a->w.data = a->pool;
    const tamis_kernel_case c = {.kernel = "expand_row",
                                 .fn = run_expand_row,
                                 .arg = a,
                                 .bytes = (double)(a->w.row_bytes + 4 * SIDE)};
    tamis_kernel_bench_run(bench, &c, "%s %d", tamis_dtype_name(f->dtype), (int)SIDE);
}

static void bench_square(tamis_kernel_bench *bench)
{
    static const weight_format formats[] = {
        {TAMIS_DTYPE_F32, 0, 0},         {TAMIS_DTYPE_BF16, 0, 0},     {TAMIS_DTYPE_F16, 0, 0},
        {TAMIS_DTYPE_F8_E4M3, 128, 128}, {TAMIS_DTYPE_F4_E2M1, 1, 32}, {TAMIS_DTYPE_I8, 1, SIDE},
        {TAMIS_DTYPE_I4, 1, SIDE}};
    enum { N_FORMATS = sizeof formats / sizeof *formats, FIRST_INTEGER = 5 };
    linear_arg a = {.pool = tamis_kernel_bench_bytes(bench, POOL_BYTES),
                    .x = tamis_kernel_bench_floats(bench, MAX_TOKENS * SIDE),
                    .y = tamis_kernel_bench_take(bench, MAX_TOKENS * SIDE * sizeof(float)),
                    .scratch =
                        tamis_kernel_bench_take(bench, TAMIS_LINEAR_SCRATCH(SIDE) * sizeof(float)),
                    .scales = tamis_kernel_bench_floats(bench, SIDE)};
    a.codes = (const int8_t *)a.pool;
    uint8_t *powers = tamis_kernel_bench_take(bench, SIDE * SIDE / 32);
    if (powers != NULL)
        memset(powers, 120,
               SIDE * SIDE / 32); /* scales of a checkpoint are all of about one size */
    for (int i = 0; i < N_FORMATS; i++)
        bench_format(bench, &a, &formats[i], i < FIRST_INTEGER ? (const void *)powers : a.scales,
                     "linear");
    for (int i = FIRST_INTEGER; i < N_FORMATS; i++)
        bench_format(bench, &a, &formats[i], a.scales, "linear_i8");
    for (int i = 0; i < N_FORMATS; i++)
        bench_expand(bench, &a, &formats[i], i < FIRST_INTEGER ? (const void *)powers : a.scales);
}

/* ---------------------------------------------------------------- absorbed query */

#define MLA_HEADS 128
#define MLA_NOPE  128 /* rows of kv_b that make a head's keys; as many make its values */
#define MLA_RANK  512

typedef struct absorb_arg {
    linear_arg base;
    int64_t n_heads;
} absorb_arg;

static void run_linear_t(const tamis_kernels *kernels, void *arg, int64_t run)
{
    absorb_arg *a = arg;
    linear_arg *l = &a->base;
    next_place(l, run);
    for (int64_t h = 0; h < a->n_heads; h++)
        kernels->linear_t(l->y + h * MLA_RANK, a->n_heads * MLA_RANK, l->x + h * MLA_NOPE,
                          a->n_heads * MLA_NOPE, l->n_tokens, &l->w, h * 2 * MLA_NOPE,
                          h * 2 * MLA_NOPE + MLA_NOPE, l->scratch);
}

static void bench_absorb(tamis_kernel_bench *bench)
{
    static const weight_format formats[] = {{TAMIS_DTYPE_BF16, 0, 0},
                                            {TAMIS_DTYPE_F8_E4M3, 128, 128}};
    static const int64_t tokens[] = {1, 3, 128};
    const size_t n = (size_t)MLA_HEADS * MLA_RANK * 16; /* 128 tokens x 16 heads, or 3 x 128 */
    absorb_arg a = {.base = {.pool = tamis_kernel_bench_bytes(bench, POOL_BYTES),
                             .x = tamis_kernel_bench_floats(bench, n),
                             .y = tamis_kernel_bench_take(bench, n * sizeof(float)),
                             .scratch = tamis_kernel_bench_take(bench, TAMIS_LINEAR_T_SCRATCH *
                                                                           sizeof(float))}};
    uint8_t *powers = tamis_kernel_bench_take(bench, 4096);
    if (powers != NULL)
        memset(powers, 120, 4096); /* as above */
    for (size_t f = 0; f < 2; f++)
        for (size_t t = 0; t < 3; t++) {
            a.base.w = matrix(&formats[f], 2 * MLA_HEADS * MLA_NOPE, MLA_RANK, powers);
            a.base.n_tokens = tokens[t];
            a.n_heads = tokens[t] > 8 ? 16 : MLA_HEADS;
            const double rows = (double)(a.n_heads * MLA_NOPE);
            const tamis_kernel_case c = {.kernel = "linear_t",
                                         .fn = run_linear_t,
                                         .arg = &a,
                                         .ops = 2 * rows * MLA_RANK * (double)tokens[t],
                                         .bytes = rows * (double)a.base.w.row_bytes,
                                         .is_cold = true};
            tamis_kernel_bench_run(bench, &c, "%s %d x 128x512, %d token%s",
                                   tamis_dtype_name(formats[f].dtype), (int)a.n_heads,
                                   (int)tokens[t], tokens[t] == 1 ? "" : "s");
        }
}

void tamis_kernel_bench_linear(tamis_kernel_bench *bench)
{
    const bool wants_square = tamis_kernel_bench_wants(bench, "linear") ||
                              tamis_kernel_bench_wants(bench, "linear_i8") ||
                              tamis_kernel_bench_wants(bench, "expand_row");
    if (wants_square)
        bench_square(bench);
    tamis_kernel_bench_end_group(bench);
    if (tamis_kernel_bench_wants(bench, "linear_t"))
        bench_absorb(bench);
}
