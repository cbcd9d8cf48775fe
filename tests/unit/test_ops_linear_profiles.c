/*
 * Linear layers in the profiles: what becomes of inputs and outputs, line by line of the table in
 * ops/linear.h, against doubles; which inputs are quantised together; the room that they take; the
 * same bits for any number of threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/linear.h"
#include "support/exec.h"
#include "support/kernel_ref.h"
#include "support/lowbit_ref.h"
#include "support/rng.h"
#include "support/sanitized.h"

enum { MAX_JOBS = 7, NUM_INPUTS = 3, MAX_ROWS = 70, MAX_COLS = 300, MAX_TOKENS = 6 };
enum { MAX_THREADS = 4, CANARY = 0xc5, CANARY_BYTES = 4096 };

/* ---------------------------------------------------------------- weights */

typedef enum weight_kind {
    WEIGHT_F32,
    WEIGHT_BF16,
    WEIGHT_F16,
    WEIGHT_F8,
    WEIGHT_F4,
    WEIGHT_I8_STATIC,
    WEIGHT_I8_TOKEN,
    WEIGHT_I4,
    NUM_WEIGHTS
} weight_kind;

typedef struct weight {
    weight_kind kind;
    kernel_matrix floats; /* F32 to F4 */
    tamis_matrix view;
    int8_t values[MAX_ROWS * MAX_COLS]; /* I8; of I4 [rows][cols], too */
    uint8_t pairs[(MAX_ROWS + 1) / 2 * MAX_COLS];
    float row_scale[MAX_ROWS], deq_scale[MAX_ROWS];
    int32_t bias[MAX_ROWS];
    tamis_static_quant fixed;
} weight;

static bool is_integer(weight_kind kind)
{
    return kind >= WEIGHT_I8_STATIC;
}

static void fill_integers(weight *w, test_rng *rng, int64_t rows, int64_t cols)
{
    const bool is_i4 = w->kind == WEIGHT_I4;
    const int largest = is_i4 ? 7 : 127;
    w->view = (tamis_matrix){.dtype = is_i4 ? TAMIS_DTYPE_I4 : TAMIS_DTYPE_I8,
                             .rows = rows,
                             .cols = cols,
                             .data = is_i4 ? (const void *)w->pairs : (const void *)w->values,
                             .row_bytes = cols,
                             .scale = w->row_scale,
                             .scale_dtype = TAMIS_DTYPE_F32,
                             .block_rows = 1,
                             .block_cols = (int32_t)cols,
                             .scale_row_bytes = 4};
    memset(w->pairs, 0, sizeof w->pairs);
    for (int64_t r = 0; r < rows; r++) {
        w->row_scale[r] = test_rng_float(rng, 0.01f, 0.03f);
        for (int64_t c = 0; c < cols; c++) {
            const int8_t value = (int8_t)test_rng_int(rng, -largest - 1, largest);
            uint8_t *pair = &w->pairs[r / 2 * cols + c];
            w->values[r * cols + c] = value;
            *pair = (uint8_t)(*pair | (value & 15) << (r % 2 * 4));
        }
    }
}

static void make_static(weight *w, test_rng *rng, int64_t rows)
{
    w->fixed = (tamis_static_quant){.input_scale = test_rng_int(rng, 0, 1) ? 0.03f : 0.04f,
                                    .input_offset = (float)test_rng_int(rng, -1, 1),
                                    .deq_scale = w->deq_scale,
                                    .quant_bias = w->bias};
    for (int64_t r = 0; r < rows; r++) {
        w->deq_scale[r] = w->fixed.input_scale * w->row_scale[r];
        w->bias[r] = (int32_t)test_rng_int(rng, -100000, 100000);
    }
    w->view.input = &w->fixed;
}

static void weight_fill(weight *w, test_rng *rng, weight_kind kind, int64_t rows, int64_t cols)
{
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F16,
                                         TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F4_E2M1};
    w->kind = kind;
    if (is_integer(kind)) {
        fill_integers(w, rng, rows, cols);
        if (kind == WEIGHT_I8_STATIC)
            make_static(w, rng, rows);
        return;
    }
    w->floats = kernel_matrix_new(rng, dtypes[kind], rows, cols, kind >= WEIGHT_F8, false);
    w->view = w->floats.view;
}

static void weight_release(weight *w)
{
    if (!is_integer(w->kind))
        kernel_matrix_free(&w->floats);
}

/* ---------------------------------------------------------------- one output in double */

/* What the product reads instead of x, and the token's scale. */
static double input_of(double *out, tamis_profile profile, const tamis_linear_job *job,
                       const weight *w, int64_t t)
{
    const int64_t n = job->w->cols;
    double x[MAX_COLS];
    for (int64_t c = 0; c < n; c++)
        x[c] = (double)job->x[t * job->x_stride + c];
    memcpy(out, x, (size_t)n * sizeof *x);
    if (profile == TAMIS_PROFILE_EXACT || job->keep_input || w->kind < WEIGHT_F8)
        return 1;
    if (!is_integer(w->kind)) {
        const int64_t group = profile == TAMIS_PROFILE_OFFICIAL ? 128 : 32;
        lowbit_round_trip(out, x, n, group, LOWBIT_E4M3, LOWBIT_POW2);
        return 1;
    }
    if (w->kind != WEIGHT_I8_STATIC)
        return lowbit_quantize(out, x, n, LOWBIT_INT8, LOWBIT_AMAX);
    lowbit_quantize_static(out, x, n, w->fixed.input_scale, w->fixed.input_offset, false);
    return 1;
}

/* The output before any rounding to BF16; *error gets what sums in f32 may be off. */
static double output_of(tamis_profile profile, const tamis_linear_job *job, const weight *w,
                        int64_t t, int64_t row, double *error)
{
    double x[MAX_COLS], sum = 0, magnitude = 0;
    const double scale = input_of(x, profile, job, w, t);
    const bool is_exact = is_integer(w->kind) && profile != TAMIS_PROFILE_EXACT && !job->keep_input;
    for (int64_t c = 0; c < job->w->cols; c++) {
        const double value = w->kind < WEIGHT_I8_STATIC ? kernel_ref_weight(job->w, row, c)
                                                        : (double)w->values[row * job->w->cols + c];
        sum += value * x[c];
        magnitude += fabs(value * x[c]);
    }
    *error = 0;
    if (is_exact && w->kind == WEIGHT_I8_STATIC)
        return lowbit_f32((sum + w->bias[row]) * (double)w->deq_scale[row]);
    if (is_exact)
        return lowbit_f32(lowbit_f32(sum * (double)w->row_scale[row]) * scale);
    const double by_row = is_integer(w->kind) ? (double)w->row_scale[row] : 1;
    *error = magnitude * by_row * 4e-6;
    return sum * by_row;
}

static void check_value(float got, double want, double error, bool is_rounded)
{
    if (!is_rounded)
        assert_true(fabs((double)got - want) <= error);
    else if (lowbit_bf16_border(want) > error || error == 0)
        assert_true((double)got == lowbit_bf16(want));
    else
        assert_true(fabs((double)got - want) <= error + fabs(want) * 0x1p-7);
}

/* ---------------------------------------------------------------- lists of jobs */

typedef struct job_list {
    int n_jobs;
    tamis_linear_job jobs[MAX_JOBS];
    weight weights[MAX_JOBS];
    float x[NUM_INPUTS][MAX_TOKENS * MAX_COLS], y[MAX_JOBS][MAX_TOKENS * MAX_ROWS];
} job_list;

/* Inputs hold BF16 values and come up again and again; columns of a first few tokens. */
static void draw(job_list *list, test_rng *rng, tamis_profile profile)
{
    const int64_t cols = test_rng_int(rng, 1, MAX_COLS),
                  n_tokens = test_rng_int(rng, 0, MAX_TOKENS);
    const weight_kind last = profile == TAMIS_PROFILE_OFFICIAL ? WEIGHT_F4 : WEIGHT_I4;
    weight_kind kind = (weight_kind)test_rng_int(rng, 0, last);
    list->n_jobs = (int)test_rng_int(rng, 1, MAX_JOBS);
    test_rng_fill_normal(rng, list->x[0], sizeof list->x / sizeof(float));
    tamis_kernels_for(TAMIS_CPU_PORTABLE)->round_bf16(list->x[0], sizeof list->x / sizeof(float));
    for (int i = 0; i < list->n_jobs; i++) {
        const int64_t rows = test_rng_int(rng, 1, MAX_ROWS);
        tamis_linear_job *job = &list->jobs[i];
        if (test_rng_int(rng, 0, 1) == 0)
            kind = (weight_kind)test_rng_int(rng, 0, last);
        weight_fill(&list->weights[i], rng, kind, rows,
                    test_rng_int(rng, 0, 3) ? cols : test_rng_int(rng, 1, MAX_COLS));
        *job = tamis_linear_full(
            &list->weights[i].view, list->x[test_rng_int(rng, 0, 1 + i % 2)], list->y[i],
            test_rng_int(rng, 0, 3) ? n_tokens : test_rng_int(rng, 0, MAX_TOKENS));
        job->row_begin = test_rng_int(rng, 0, rows - 1);
        job->row_end = test_rng_int(rng, job->row_begin, rows);
        job->x_stride = test_rng_int(rng, 0, 2) ? MAX_COLS : job->w->cols;
        job->y_stride = job->row_end - job->row_begin;
        job->keep_input = test_rng_int(rng, 0, 5) == 0;
        job->keep_output = test_rng_int(rng, 0, 3) == 0;
    }
}

static void list_release(job_list *list)
{
    for (int i = 0; i < list->n_jobs; i++)
        weight_release(&list->weights[i]);
}

static int64_t largest_cols(const job_list *list)
{
    int64_t cols = 1;
    for (int i = 0; i < list->n_jobs; i++)
        cols = list->jobs[i].w->cols > cols ? list->jobs[i].w->cols : cols;
    return cols;
}

/* Whether the job reads what was made for the other one. */
static bool is_same_input(const job_list *list, int a, int b)
{
    const tamis_linear_job *p = &list->jobs[a], *q = &list->jobs[b];
    const weight *v = &list->weights[a], *w = &list->weights[b];
    const bool is_f8 = v->kind == WEIGHT_F8 || v->kind == WEIGHT_F4;
    const bool same_form =
        is_f8 ? w->kind == WEIGHT_F8 || w->kind == WEIGHT_F4
              : v->kind == w->kind || (v->kind >= WEIGHT_I8_TOKEN && w->kind >= WEIGHT_I8_TOKEN);
    return same_form && p->x == q->x && p->x_stride == q->x_stride && p->n_tokens == q->n_tokens &&
           p->w->cols == q->w->cols &&
           (v->kind != WEIGHT_I8_STATIC || (v->fixed.input_scale == w->fixed.input_scale &&
                                            v->fixed.input_offset == w->fixed.input_offset));
}

/* Rows that are quantised: an input again only where another one was quantised in between. */
static int64_t rows_to_quantise(const job_list *list, tamis_profile profile)
{
    int64_t n_rows = 0, n_outputs = 0;
    int latest = -1;
    for (int i = 0; i < list->n_jobs; i++)
        n_outputs += list->jobs[i].n_tokens * (list->jobs[i].row_end - list->jobs[i].row_begin);
    if (n_outputs == 0)
        return 0;
    for (int i = 0; i < list->n_jobs; i++) {
        const tamis_linear_job *job = &list->jobs[i];
        if (profile == TAMIS_PROFILE_EXACT || job->keep_input || job->n_tokens == 0 ||
            list->weights[i].kind < WEIGHT_F8 || (latest >= 0 && is_same_input(list, latest, i)))
            continue;
        n_rows += job->n_tokens;
        latest = i;
    }
    return n_rows;
}

/* ---------------------------------------------------------------- runs */

static atomic_long n_quantised;
static const tamis_kernels *counted;

static TAMIS_KERNEL_round_f8(count_round_f8)
{
    atomic_fetch_add(&n_quantised, 1);
    counted->round_f8(y, x, n, group);
}
static TAMIS_KERNEL_quantize_i8(count_quantize_i8)
{
    atomic_fetch_add(&n_quantised, 1);
    counted->quantize_i8(q, scale, x, n);
}
static TAMIS_KERNEL_quantize_i8_static(count_quantize_i8_static)
{
    atomic_fetch_add(&n_quantised, 1);
    counted->quantize_i8_static(q, x, n, input_scale, input_offset, through_f16);
}

/* Runs with just the memory that the list may use; returns how many rows were quantised. */
static int64_t run(const job_list *list, tamis_profile profile, int n_threads,
                   tamis_cpu_level level)
{
    const int64_t cols = largest_cols(list);
    tamis_exec exec = test_exec_open(n_threads, level, TAMIS_LINEAR_SCRATCH(cols));
    tamis_kernels kernels = *exec.kernels;
    counted = exec.kernels;
    kernels.round_f8 = count_round_f8;
    kernels.quantize_i8 = count_quantize_i8;
    kernels.quantize_i8_static = count_quantize_i8_static;
    exec.kernels = &kernels;
    exec.profile = profile;
    exec.input_bytes =
        tamis_linear_input_bytes(list->n_jobs, rows_to_quantise(list, profile), cols);
    uint8_t *inputs = aligned_alloc(64, (exec.input_bytes + 63) / 64 * 64 + CANARY_BYTES);
    memset(inputs, CANARY, exec.input_bytes + CANARY_BYTES);
    exec.inputs = inputs;
    atomic_store(&n_quantised, 0);
    tamis_linear_run(&exec, list->jobs, list->n_jobs);
    for (size_t i = 0; i < CANARY_BYTES; i++)
        assert_int_equal(inputs[exec.input_bytes + i], CANARY);
    free(inputs);
    test_exec_close(&exec);
    return atomic_load(&n_quantised);
}

static void check_outputs(const job_list *list, tamis_profile profile)
{
    for (int i = 0; i < list->n_jobs; i++) {
        const tamis_linear_job *job = &list->jobs[i];
        for (int64_t t = 0; t < job->n_tokens; t++)
            for (int64_t r = job->row_begin; r < job->row_end; r++) {
                double error;
                const double want = output_of(profile, job, &list->weights[i], t, r, &error);
                check_value(job->y[t * job->y_stride + r - job->row_begin], want, error,
                            profile != TAMIS_PROFILE_EXACT && !job->keep_output);
            }
    }
}

static void test_table(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("linear profiles", 41);
    job_list *list = calloc(1, sizeof *list);
    float *first = malloc(sizeof list->y);
    int64_t n_saved = 0;
    for (int round = 0; round < (TEST_IS_SANITIZED ? 30 : 150); round++) {
        const tamis_profile profile = (tamis_profile)(round % TAMIS_NUM_PROFILES);
        draw(list, &rng, profile);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            memset(list->y, 0x55, sizeof list->y);
            assert_int_equal(run(list, profile, n_threads,
                                 n_threads == 1 ? TAMIS_CPU_PORTABLE : tamis_cpu_level_available()),
                             rows_to_quantise(list, profile));
            if (n_threads == 1)
                memcpy(first, list->y, sizeof list->y);
            assert_memory_equal(list->y, first, sizeof list->y);
        }
        check_outputs(list, profile);
        for (int i = 0; i < list->n_jobs; i++)
            n_saved += list->weights[i].kind >= WEIGHT_F8 ? list->jobs[i].n_tokens : 0;
        n_saved -= rows_to_quantise(list, profile);
        list_release(list);
    }
    assert_true(n_saved > 0);
    free(first);
    free(list);
}

/* ---------------------------------------------------------------- examples by hand */

/* One row of ones: the output is the sum of what became of x. */
static float sum_of(tamis_profile profile, tamis_dtype dtype, const float *x, int64_t n,
                    bool keep_input, bool keep_output)
{
    static const float one = 1;
    static uint8_t ones[256];
    float y = NAN;
    memset(ones, dtype == TAMIS_DTYPE_F8_E4M3 ? 0x38 : 1, sizeof ones);
    const tamis_matrix w = {.dtype = dtype,
                            .rows = 1,
                            .cols = n,
                            .data = ones,
                            .row_bytes = n,
                            .scale = &one,
                            .scale_dtype = TAMIS_DTYPE_F32,
                            .block_rows = 128,
                            .block_cols = 256,
                            .scale_row_bytes = 4};
    tamis_linear_job job = tamis_linear_full(&w, x, &y, 1);
    job.keep_input = keep_input;
    job.keep_output = keep_output;
    tamis_exec exec = test_exec_open(1, tamis_cpu_level_available(), TAMIS_LINEAR_SCRATCH(n));
    exec.profile = profile;
    exec.input_bytes = tamis_linear_input_bytes(1, 1, n);
    exec.inputs = aligned_alloc(64, (exec.input_bytes + 63) / 64 * 64);
    tamis_linear_run(&exec, &job, 1);
    free(exec.inputs);
    test_exec_close(&exec);
    return y;
}

/*
 * 448 sets the scale of its group to 1, under which numbers below 2^-6 are multiples of 2^-9: 1.25
 * * 2^-10 becomes 2^-9 in a group of 128, and stays what it is in another group of 32.
 */
static void test_by_hand(void **state)
{
    (void)state;
    float x[128] = {448};
    const float small = 0x1.4p-10f;
    x[64] = small;
    assert_true(sum_of(TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F8_E4M3, x, 128, false, false) ==
                448 + small);
    assert_true(sum_of(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, x, 128, false, true) ==
                448 + 0x1p-9f);
    assert_true(sum_of(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, x, 128, false, true) ==
                448 + small);
    assert_true(sum_of(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, x, 128, true, true) ==
                448 + small);
    assert_true(sum_of(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, x, 128, false, false) == 448);
    /* int8: amax 448, so the small one is no part of it */
    assert_true(sum_of(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, x, 128, false, true) ==
                127 * (448.0f / 127));
    x[0] = 451;
    assert_true(sum_of(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, x, 1, true, false) == 452);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
