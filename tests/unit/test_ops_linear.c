/*
 * Jobs of linear layers, straight and transposed: against doubles, and the same bits for any number
 * of threads. Outputs lie in one array of noise, of which nothing else may change.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/linear.h"
#include "support/exec.h"
#include "support/rng.h"

enum { MAX_JOBS = 9, MAX_DIM = 90, MAX_TOKENS = 7, MAX_THREADS = 5 };
enum { PLACE = MAX_TOKENS * (MAX_DIM + 3) }; /* floats of one job's input or output */

typedef struct job_set {
    int n_jobs;
    tamis_matrix matrix[MAX_JOBS];
    tamis_linear_job jobs[MAX_JOBS];
    float w[MAX_JOBS][MAX_DIM * MAX_DIM], x[MAX_JOBS][PLACE], y[MAX_JOBS][PLACE];
} job_set;

typedef void (*run_fn)(const tamis_exec *exec, const tamis_linear_job *jobs, int64_t n_jobs);

/* Jobs of unequal sizes, some without tokens or (straight ones) without rows. */
static void draw_jobs(job_set *set, test_rng *rng, bool transposed)
{
    set->n_jobs = (int)test_rng_int(rng, 1, MAX_JOBS);
    test_rng_fill_normal(rng, set->w[0], MAX_JOBS * MAX_DIM * MAX_DIM);
    test_rng_fill_normal(rng, set->x[0], MAX_JOBS * PLACE);
    for (int i = 0; i < set->n_jobs; i++) {
        tamis_matrix *m = &set->matrix[i];
        *m = (tamis_matrix){.dtype = TAMIS_DTYPE_F32,
                            .rows = test_rng_int(rng, 1, MAX_DIM),
                            .cols = test_rng_int(rng, 1, MAX_DIM),
                            .data = set->w[i]};
        m->row_bytes = m->cols * 4;
        tamis_linear_job *job = &set->jobs[i];
        *job = tamis_linear_full(m, set->x[i], set->y[i], test_rng_int(rng, 0, MAX_TOKENS));
        job->row_begin = test_rng_int(rng, 0, m->rows - 1);
        job->row_end = test_rng_int(rng, job->row_begin + (transposed ? 1 : 0), m->rows);
        const int64_t n_rows = job->row_end - job->row_begin;
        job->x_stride = (transposed ? n_rows : m->cols) + test_rng_int(rng, 0, 3);
        job->y_stride = (transposed ? m->cols : n_rows) + test_rng_int(rng, 0, 3);
    }
}

/* Output `o` of token t in double: a row of w, or a column over the job's rows. */
static double slow_output(const tamis_linear_job *job, int64_t t, int64_t o, bool transposed)
{
    const float *w = job->w->data, *x = job->x + t * job->x_stride;
    const int64_t cols = job->w->cols;
    double sum = 0;
    if (!transposed)
        for (int64_t k = 0; k < cols; k++)
            sum += (double)w[(job->row_begin + o) * cols + k] * (double)x[k];
    else
        for (int64_t r = job->row_begin; r < job->row_end; r++)
            sum += (double)w[r * cols + o] * (double)x[r - job->row_begin];
    return sum;
}

/* Every output of the jobs; everything else still is the byte 0x7f. */
static void check_outputs(const job_set *set, bool transposed)
{
    for (int i = 0; i < MAX_JOBS; i++) {
        const tamis_linear_job *job = &set->jobs[i];
        for (int64_t at = 0; at < PLACE; at++) {
            const float got = set->y[i][at];
            int64_t n_outputs = 0, t = 0;
            if (i < set->n_jobs && job->y_stride > 0) {
                n_outputs = transposed ? job->w->cols : job->row_end - job->row_begin;
                t = at / job->y_stride;
            }
            const int64_t o = n_outputs > 0 ? at % job->y_stride : 0;
            uint32_t bits;
            memcpy(&bits, &got, sizeof bits);
            if (o < n_outputs && t < job->n_tokens)
                assert_true(fabs(slow_output(job, t, o, transposed) - (double)got) < 1e-4);
            else
                assert_int_equal(bits, 0x7f7f7f7f);
        }
    }
}

static void check_jobs(const char *name, uint64_t seed, run_fn run, size_t scratch, bool transposed)
{
    test_rng rng = test_rng_start(name, seed);
    job_set *set = calloc(1, sizeof *set);
    float *first = calloc(1, sizeof set->y);
    assert_true(set != NULL && first != NULL);
    for (int round = 0; round < 40; round++) {
        draw_jobs(set, &rng, transposed);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            const tamis_cpu_level level =
                n_threads == 1 ? TAMIS_CPU_PORTABLE : tamis_cpu_level_available();
            tamis_exec exec = test_exec_open(n_threads, level, scratch);
            memset(set->y, 0x7f, sizeof set->y);
            run(&exec, set->jobs, set->n_jobs);
            test_exec_close(&exec);
            if (n_threads == 1)
                memcpy(first, set->y, sizeof set->y);
            assert_memory_equal(set->y, first, sizeof set->y);
        }
        check_outputs(set, transposed);
    }
    free(first);
    free(set);
}

static void test_linear_jobs(void **state)
{
    (void)state;
    check_jobs("linear jobs", 8, tamis_linear_run, TAMIS_LINEAR_SCRATCH(MAX_DIM), false);
}

static void test_linear_t_jobs(void **state)
{
    (void)state;
    check_jobs("linear_t jobs", 9, tamis_linear_t_run, TAMIS_LINEAR_T_SCRATCH, true);
}

/*
 * A pass that is large enough to wake the team: as many heads as MLA has, one matrix between them,
 * keys' and values' rows in turn; fewer jobs than threads, too.
 */
static void test_heads_of_one_matrix(void **state)
{
    (void)state;
    enum { NOPE = 48, VALUE = 16, RANK = 192, HEADS = 64, TOKENS = 4 };
    test_rng rng = test_rng_start("linear_t heads", 10);
    float *w = malloc(HEADS * (NOPE + VALUE) * RANK * sizeof *w);
    float *x = malloc(TOKENS * HEADS * NOPE * sizeof *x);
    float *y = malloc(2 * TOKENS * HEADS * RANK * sizeof *y), *first = y + TOKENS * HEADS * RANK;
    test_rng_fill_normal(&rng, w, HEADS * (NOPE + VALUE) * RANK);
    test_rng_fill_normal(&rng, x, TOKENS * HEADS * NOPE);
    const tamis_matrix m = {.dtype = TAMIS_DTYPE_F32,
                            .rows = HEADS * (NOPE + VALUE),
                            .cols = RANK,
                            .data = w,
                            .row_bytes = RANK * 4};
    tamis_linear_job jobs[HEADS];
    for (int h = 0; h < HEADS; h++)
        jobs[h] = (tamis_linear_job){.w = &m,
                                     .row_begin = h * (NOPE + VALUE),
                                     .row_end = h * (NOPE + VALUE) + NOPE,
                                     .x = x + h * NOPE,
                                     .x_stride = HEADS * NOPE,
                                     .y = y + h * RANK,
                                     .y_stride = HEADS * RANK,
                                     .n_tokens = TOKENS};
    for (int n_jobs = 1; n_jobs <= HEADS; n_jobs += n_jobs == 1 ? 2 : HEADS - 3)
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            tamis_exec exec =
                test_exec_open(n_threads, tamis_cpu_level_available(), TAMIS_LINEAR_T_SCRATCH);
            memset(y, 0x7f, TOKENS * HEADS * RANK * sizeof *y);
            tamis_linear_t_run(&exec, jobs, n_jobs);
            test_exec_close(&exec);
            if (n_threads == 1)
                memcpy(first, y, TOKENS * HEADS * RANK * sizeof *y);
            assert_memory_equal(y, first, TOKENS * HEADS * RANK * sizeof *y);
        }
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < RANK; c++)
                assert_true(fabs(slow_output(&jobs[h], t, c, true) -
                                 (double)y[(t * HEADS + h) * RANK + c]) < 1e-4);
    free(w);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_jobs),
        cmocka_unit_test(test_linear_t_jobs),
        cmocka_unit_test(test_heads_of_one_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
