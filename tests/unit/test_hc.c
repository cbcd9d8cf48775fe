/* Hyper-connections against a double-precision reference; batch, threads and level do not show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/hyper_connection.h"
#include "support/exec.h"
#include "support/rng.h"

/* ---------------------------------------------------------------- a site with random weights */

typedef struct site {
    tamis_model_config config;
    tamis_hc_weights weights;
    float *fn, *base, *scale, *norm;
} site;

static float *random_floats(test_rng *rng, size_t n, float factor)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = factor * test_rng_normal(rng);
    return x;
}

static site make_site(test_rng *rng, int32_t m, int32_t hidden, bool is_head)
{
    site s = {.config = {.hidden_size = hidden,
                         .hc_mult = m,
                         .hc_sinkhorn_iters = 20,
                         .hc_eps = 1e-6f,
                         .rms_norm_eps = 1e-6f}};
    const int64_t rows = is_head ? m : (2 + m) * m, cols = (int64_t)m * hidden;
    s.fn = random_floats(rng, (size_t)(rows * cols), 1 / sqrtf((float)cols));
    s.base = random_floats(rng, (size_t)rows, 1);
    s.scale = random_floats(rng, 3, 1);
    s.norm = random_floats(rng, (size_t)hidden, 1);
    s.weights = (tamis_hc_weights){.fn = {.dtype = TAMIS_DTYPE_F32,
                                          .rows = rows,
                                          .cols = cols,
                                          .data = s.fn,
                                          .row_bytes = cols * 4},
                                   .base = s.base,
                                   .scale = s.scale};
    return s;
}

static void free_site(site *s)
{
    free(s->fn);
    free(s->base);
    free(s->scale);
    free(s->norm);
}

/* ---------------------------------------------------------------- the reference */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* z of one token, r applied. */
static void reference_z(const site *s, const float *streams, double *z)
{
    const int64_t n = s->weights.fn.cols;
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)streams[i] * streams[i];
    const double r = 1 / sqrt(squares / (double)n + (double)s->config.rms_norm_eps);
    for (int64_t row = 0; row < s->weights.fn.rows; row++) {
        z[row] = 0;
        for (int64_t i = 0; i < n; i++)
            z[row] += (double)s->fn[row * n + i] * streams[i] * r;
    }
}

static void reference_coefs(const site *s, const double *z, double *pre, double *post,
                            double comb[16][16])
{
    const int m = s->config.hc_mult;
    const double eps = (double)s->config.hc_eps;
    for (int i = 0; i < m; i++) {
        pre[i] = sigmoid(z[i] * s->scale[0] + s->base[i]) + eps;
        post[i] = 2 * sigmoid(z[m + i] * s->scale[1] + s->base[m + i]);
    }
    for (int a = 0; a < m; a++) {
        double sum = 0;
        for (int b = 0; b < m; b++) {
            const int i = 2 * m + a * m + b;
            sum += comb[a][b] = exp(z[i] * s->scale[2] + s->base[i]);
        }
        for (int b = 0; b < m; b++)
            comb[a][b] = comb[a][b] / sum + eps;
    }
    for (int step = 0; step < 2 * s->config.hc_sinkhorn_iters - 1; step++)
        for (int i = 0; i < m; i++) {
            double sum = eps;
            for (int j = 0; j < m; j++)
                sum += step % 2 == 0 ? comb[j][i] : comb[i][j];
            for (int j = 0; j < m; j++)
                *(step % 2 == 0 ? &comb[j][i] : &comb[i][j]) /= sum;
        }
}

static void reference_norm(const site *s, const double *u, double *x)
{
    double squares = 0;
    for (int64_t d = 0; d < s->config.hidden_size; d++)
        squares += u[d] * u[d];
    const double r = 1 / sqrt(squares / s->config.hidden_size + (double)s->config.rms_norm_eps);
    for (int64_t d = 0; d < s->config.hidden_size; d++)
        x[d] = u[d] * r * s->norm[d];
}

static void reference_mix(const site *s, const double *pre, const float *streams, double *x)
{
    const int64_t hidden = s->config.hidden_size;
    double *u = calloc((size_t)hidden, sizeof *u);
    for (int64_t d = 0; d < hidden; d++)
        for (int i = 0; i < s->config.hc_mult; i++)
            u[d] += pre[i] * streams[i * hidden + d];
    reference_norm(s, u, x);
    free(u);
}

/* ---------------------------------------------------------------- tests */

static void assert_near(double got, double want, double bound, const char *what)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
}

static void whole_site(test_rng *rng, int32_t m, int32_t hidden, int64_t n_tokens)
{
    site s = make_site(rng, m, hidden, false);
    const int64_t width = (int64_t)m * hidden, n_coefs = tamis_hc_num_coefs(&s.config);
    float *streams = random_floats(rng, (size_t)(n_tokens * width), 3);
    float *v = random_floats(rng, (size_t)(n_tokens * hidden), 1);
    float *old = malloc((size_t)(n_tokens * width) * sizeof *old);
    float *coefs = malloc((size_t)(n_tokens * n_coefs) * sizeof *coefs);
    float *x = malloc((size_t)(n_tokens * hidden) * sizeof *x);
    double *want_x = malloc((size_t)hidden * sizeof *want_x);
    memcpy(old, streams, (size_t)(n_tokens * width) * sizeof *old);
    tamis_exec exec =
        test_exec_open(2, tamis_cpu_level_available(), tamis_hc_scratch_floats(&s.config));
    assert_true(
        tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, streams, n_tokens, coefs, x));
    assert_memory_equal(old, streams, (size_t)(n_tokens * width) * sizeof *old);
    assert_true(tamis_hc_expand(&exec, &s.config, coefs, v, streams, n_tokens));
    for (int64_t t = 0; t < n_tokens; t++) {
        double z[18 * 16], pre[16], post[16], comb[16][16];
        reference_z(&s, old + t * width, z);
        reference_coefs(&s, z, pre, post, comb);
        reference_mix(&s, pre, old + t * width, want_x);
        for (int64_t d = 0; d < hidden; d++) {
            assert_near((double)x[t * hidden + d], want_x[d], 2e-5, "collapse");
            for (int b = 0; b < m; b++) {
                double want = post[b] * v[t * hidden + d];
                for (int a = 0; a < m; a++)
                    want += comb[a][b] * old[t * width + a * hidden + d];
                assert_near((double)streams[t * width + b * hidden + d], want, 5e-5, "expand");
            }
        }
    }
    test_exec_close(&exec);
    free_site(&s);
    free(streams);
    free(v);
    free(old);
    free(coefs);
    free(x);
    free(want_x);
}

static void a_site_agrees_with_the_reference(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_site_agrees_with_the_reference", 5);
    whole_site(&rng, 4, 96, 5);
    whole_site(&rng, 4, 40, 1);
    whole_site(&rng, 1, 7, 3);
    whole_site(&rng, 3, 300, 2); /* more than one part of columns */
    whole_site(&rng, 16, 17, 2);
}

/* cases.md 23: an asymmetric matrix. */
static void rows_and_columns_of_the_mixing_matrix_sum_to_one(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rows_and_columns_of_the_mixing_matrix_sum_to_one", 6);
    site s = make_site(&rng, 4, 8, false);
    for (int round = 0; round < 50; round++) {
        float z[24];
        test_rng_fill_normal(&rng, z, 24);
        tamis_hc_coefficients(&s.config, &s.weights, 0.7f, z);
        const float *comb = z + 8;
        bool is_symmetric = true;
        for (int i = 0; i < 4; i++) {
            double row = 0, column = 0;
            for (int j = 0; j < 4; j++) {
                assert_true(comb[i * 4 + j] > 0 && comb[i * 4 + j] < 1);
                row += (double)comb[i * 4 + j];
                column += (double)comb[j * 4 + i];
                is_symmetric = is_symmetric && comb[i * 4 + j] == comb[j * 4 + i];
            }
            assert_near(column, 1, 1e-5, "column");
            assert_near(row, 1, 1e-3, "row"); /* the last pass was over columns */
        }
        assert_false(is_symmetric);
    }
    free_site(&s);
}

/* C close to a permutation, stream a feeding stream a + 1: a transposed sum would turn it back. */
static void the_sum_runs_over_the_first_index(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_sum_runs_over_the_first_index", 7);
    site s = make_site(&rng, 4, 16, false);
    memset(s.fn, 0, 24 * 64 * sizeof(float));
    memset(s.base, 0, 24 * sizeof(float));
    for (int a = 0; a < 4; a++)
        s.base[8 + a * 4 + (a + 1) % 4] = 12;
    float streams[4][16], old[4][16], coefs[24], x[16];
    const float v[16] = {0};
    test_rng_fill_normal(&rng, &streams[0][0], 64);
    memcpy(old, streams, sizeof old);
    tamis_exec exec = test_exec_open(1, TAMIS_CPU_PORTABLE, tamis_hc_scratch_floats(&s.config));
    assert_true(
        tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, &streams[0][0], 1, coefs, x));
    assert_true(tamis_hc_expand(&exec, &s.config, coefs, v, &streams[0][0], 1));
    for (int a = 0; a < 4; a++)
        for (int d = 0; d < 16; d++)
            assert_near((double)streams[(a + 1) % 4][d], (double)old[a][d], 1e-3, "stream");
    test_exec_close(&exec);
    free_site(&s);
}

static void the_head_collapses_the_rows_it_is_asked_for(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_head_collapses_the_rows_it_is_asked_for", 8);
    enum { M = 4, H = 50, T = 6 };
    site s = make_site(&rng, M, H, true);
    float *streams = random_floats(&rng, T * M * H, 2), x[3][H];
    const int32_t rows[3] = {0, 3, 5};
    tamis_exec exec =
        test_exec_open(2, tamis_cpu_level_available(), tamis_hc_scratch_floats(&s.config));
    assert_true(tamis_hc_head(&exec, &s.config, &s.weights, s.norm, streams, rows, 3, &x[0][0]));
    for (int i = 0; i < 3; i++) {
        double z[M], pre[M], want[H];
        const float *row = streams + rows[i] * M * H;
        reference_z(&s, row, z);
        for (int k = 0; k < M; k++)
            pre[k] = sigmoid(z[k] * s.scale[0] + s.base[k]) + (double)s.config.hc_eps;
        reference_mix(&s, pre, row, want);
        for (int d = 0; d < H; d++)
            assert_near((double)x[i][d], want[d], 2e-5, "head");
    }
    test_exec_close(&exec);
    free_site(&s);
    free(streams);
}

/* Whole batch on several threads and levels = token by token on one thread, bit for bit. */
static void batch_threads_and_level_do_not_show(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("batch_threads_and_level_do_not_show", 9);
    enum { M = 4, H = 300, T = 7, C = 24 };
    site s = make_site(&rng, M, H, false);
    float *input = random_floats(&rng, T * M * H, 2), *v = random_floats(&rng, T * H, 1);
    float want_streams[T * M * H], want_x[T * H], streams[T * M * H], x[T * H], coefs[T * C];
    memcpy(want_streams, input, sizeof want_streams);
    tamis_exec one = test_exec_open(1, TAMIS_CPU_PORTABLE, tamis_hc_scratch_floats(&s.config));
    for (int t = 0; t < T; t++) {
        float *row = want_streams + t * M * H;
        assert_true(
            tamis_hc_collapse(&one, &s.config, &s.weights, s.norm, row, 1, coefs, want_x + t * H));
        assert_true(tamis_hc_expand(&one, &s.config, coefs, v + t * H, row, 1));
    }
    test_exec_close(&one);
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            tamis_exec exec = test_exec_open(n_threads, (tamis_cpu_level)level,
                                             tamis_hc_scratch_floats(&s.config));
            memcpy(streams, input, sizeof streams);
            assert_true(
                tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, streams, T, coefs, x));
            assert_true(tamis_hc_expand(&exec, &s.config, coefs, v, streams, T));
            assert_memory_equal(x, want_x, sizeof x);
            assert_memory_equal(streams, want_streams, sizeof streams);
            test_exec_close(&exec);
        }
    free_site(&s);
    free(input);
    free(v);
}

static void what_is_not_finite_is_reported(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("what_is_not_finite_is_reported", 10);
    enum { M = 4, H = 24 };
    site s = make_site(&rng, M, H, false), head = make_site(&rng, M, H, true);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    const int32_t rows[1] = {1};
    float too_large[2 * M * H], coefs[2 * 24], x[2 * H];
    tamis_exec exec =
        test_exec_open(1, tamis_cpu_level_available(), tamis_hc_scratch_floats(&s.config));
    for (int i = 0; i < 3; i++) {
        float streams[2 * M * H], v[2 * H];
        test_rng_fill_normal(&rng, streams, 2 * M * H);
        test_rng_fill_normal(&rng, v, 2 * H);
        assert_true(tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, streams, 2, coefs, x));
        v[H + 3] = bad[i];
        assert_false(tamis_hc_expand(&exec, &s.config, coefs, v, streams, 2));
        test_rng_fill_normal(&rng, streams, 2 * M * H);
        streams[M * H + 30] = bad[i];
        assert_false(tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, streams, 2, coefs, x));
        assert_false(tamis_hc_head(&exec, &s.config, &head.weights, s.norm, streams, rows, 1, x));
    }
    /* finite, but its squares are not: r would be 0 */
    for (int i = 0; i < 2 * M * H; i++)
        too_large[i] = i % H == 0 ? 1e20f : 0;
    assert_false(tamis_hc_collapse(&exec, &s.config, &s.weights, s.norm, too_large, 2, coefs, x));
    assert_true(isnan(coefs[0]) && isnan(coefs[24 + 23]));
    assert_false(tamis_hc_head(&exec, &s.config, &head.weights, s.norm, too_large, rows, 1, x));
    test_exec_close(&exec);
    free_site(&s);
    free_site(&head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_site_agrees_with_the_reference),
        cmocka_unit_test(rows_and_columns_of_the_mixing_matrix_sum_to_one),
        cmocka_unit_test(the_sum_runs_over_the_first_index),
        cmocka_unit_test(the_head_collapses_the_rows_it_is_asked_for),
        cmocka_unit_test(batch_threads_and_level_do_not_show),
        cmocka_unit_test(what_is_not_finite_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
