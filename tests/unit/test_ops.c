/*
 * Rope tables, top-k and index selection against slow references, and the promise that neither
 * threads nor the cut of the work show in the bits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/size.h"
#include "ops/index_select.h"
#include "ops/rope_table.h"
#include "support/exec.h"
#include "support/rng.h"

#define MAX_THREADS 5

static void *take(size_t bytes)
{
    void *p = tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
    assert_non_null(p);
    return p;
}

/* ---------------------------------------------------------------- rope */

static void test_rope_frequencies(void **state)
{
    (void)state;
    const tamis_rope_config plain = {.theta = 10000};
    const tamis_rope_config compress = {160000, 16, 65536, 32, 1};
    const struct {
        int i;
        double plain, yarn;
    } expected[] = {{0, 1, 1},
                    {1, 7.498942093e-1, 6.876560219e-1},
                    {8, 1.0e-1, 5.0e-2},
                    {15, 1.333521432e-2, 3.635538584e-3},
                    {16, 1.0e-2, 2.265625000e-3},
                    {20, 3.162277660e-3, 2.969777783e-4},
                    {24, 1.0e-3, 1.953125e-5},
                    {25, 7.498942093e-4, 5.372312671e-6},
                    {31, 1.333521432e-4, 5.680529037e-7}};
    float a[32], b[32];
    tamis_rope_frequencies(a, 64, &plain);
    tamis_rope_frequencies(b, 64, &compress);
    for (size_t n = 0; n < sizeof expected / sizeof *expected; n++) {
        const int i = expected[n].i;
        assert_true(fabs((double)a[i] / expected[n].plain - 1) < 1e-6);
        assert_true(fabs((double)b[i] / expected[n].yarn - 1) < 1e-6);
    }
}

/* Case 6: at position 5000 a window layer turns by plain theta, angle rounded to f32 once. */
static void test_rope_rows(void **state)
{
    (void)state;
    const tamis_rope_config configs[2] = {{.theta = 10000}, {160000, 16, 65536, 32, 1}};
    const int32_t positions[] = {0, 1, 4990, 5000, 99999, 1048575};
    for (int c = 0; c < 2; c++) {
        float freq[32], cos_row[32], sin_row[32];
        tamis_rope_frequencies(freq, 64, &configs[c]);
        for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
            tamis_rope_row(cos_row, sin_row, freq, 32, positions[p]);
            for (int i = 0; i < 32; i++) {
                const double angle = (double)((float)positions[p] * freq[i]);
                assert_true(fabs((double)cos_row[i] - cos(angle)) < 1.2e-7);
                assert_true(fabs((double)sin_row[i] - sin(angle)) < 1.2e-7);
            }
        }
    }
}

/* ---------------------------------------------------------------- top-k */

static bool is_better(float a, int32_t ia, float b, int32_t ib)
{
    return a > b || (a == b && ia < ib);
}

/* k ids by repeated scanning. */
static int32_t slow_topk(const float *scores, int32_t n, int32_t k, int32_t *out)
{
    bool *taken = calloc((size_t)n + 1, sizeof *taken);
    int32_t found = 0;
    for (int32_t round = 0; round < k; round++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!taken[i] && !isnan(scores[i]) &&
                (best < 0 || is_better(scores[i], i, scores[best], best)))
                best = i;
        if (best < 0)
            break;
        taken[best] = true;
        found++;
    }
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++)
        if (taken[i])
            out[at++] = i;
    while (at < k)
        out[at++] = -1;
    free(taken);
    return found;
}

/* Insertion: best score first, then lower id. */
static void rank(const float *scores, int32_t *ids, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i;
             j > 0 && is_better(scores[ids[j]], ids[j], scores[ids[j - 1]], ids[j - 1]); j--) {
            const int32_t t = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = t;
        }
}

static void fill_scores(test_rng *rng, float *scores, int32_t n, int style)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e-45f};
    for (int32_t i = 0; i < n; i++)
        switch (style) {
        case 0:
            scores[i] = test_rng_normal(rng);
            break;
        case 1:
            scores[i] = (float)i;
            break;
        case 2:
            scores[i] = (float)-i;
            break;
        case 3:
            scores[i] = special[test_rng_int(rng, 0, 7)];
            break;
        case 4:
            scores[i] = (float)test_rng_int(rng, 0, 3);
            break;
        case 5:
            scores[i] = 0.0f;
            break;
        default:
            scores[i] = NAN;
            break;
        }
}

static void test_topk_against_scan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("topk", 3);
    enum { MAX_N = 1500, MAX_K = 130 };
    float *scores = take(MAX_N * sizeof *scores);
    tamis_candidate *items = take((size_t)tamis_topk_capacity(MAX_K) * sizeof *items);
    int32_t expected[MAX_K], got[MAX_K];
    for (int round = 0; round < 700; round++) {
        const int32_t k = (int32_t)test_rng_int(&rng, 1, round % 3 ? 12 : MAX_K);
        const int32_t n = (int32_t)test_rng_int(&rng, 0, round % 5 ? 200 : MAX_N);
        fill_scores(&rng, scores, n, round % 7);
        const int32_t n_expected = slow_topk(scores, n, k, expected);
        const tamis_kernels *kernels =
            tamis_kernels_for(round % 2 ? tamis_cpu_level_available() : TAMIS_CPU_PORTABLE);
        tamis_topk topk;
        tamis_topk_init(&topk, items, k);
        for (int32_t i = 0; i < n;) {
            const int32_t most = n - i < TAMIS_TOPK_BLOCK ? n - i : TAMIS_TOPK_BLOCK;
            const int32_t block = (int32_t)test_rng_int(&rng, 1, most);
            tamis_topk_push(&topk, kernels, scores + i, block, i);
            i += block;
        }
        assert_int_equal(tamis_topk_finish(&topk, got), n_expected);
        assert_memory_equal(got, expected, (size_t)k * sizeof *got);
        rank(scores, expected, n_expected);
        assert_int_equal(tamis_topk_finish_ranked(&topk, got), n_expected);
        assert_memory_equal(got, expected, (size_t)k * sizeof *got);
    }
    tamis_mem_free(items);
    tamis_mem_free(scores);
}

/* ---------------------------------------------------------------- index selection */

typedef struct index_case {
    int32_t n_tokens, n_heads, head_dim, topk, max_visible, run;
    float *q, *weights, *keys;
    int32_t *visible, *out, *n_partials;
    int64_t *unit_start, *bounds;
    int32_t *first_item;
    tamis_candidate *partials;
} index_case;

static const void *case_keys(const void *user, int32_t token, int32_t j, int32_t n, int32_t *n_run,
                             int64_t *stride)
{
    const index_case *c = user;
    (void)token;
    const int32_t left = c->run - j % c->run; /* keys are contiguous up to block borders */
    *n_run = n < left ? n : left;
    *stride = (int64_t)c->head_dim * (int64_t)sizeof(float);
    return c->keys + (int64_t)j * c->head_dim;
}

static index_case make_index_case(test_rng *rng)
{
    index_case c = {.n_tokens = (int32_t)test_rng_int(rng, 1, 30),
                    .n_heads = (int32_t)test_rng_int(rng, 1, 20),
                    .head_dim = (int32_t)test_rng_int(rng, 1, 41),
                    .topk = (int32_t)test_rng_int(rng, 1, 24),
                    .max_visible = 700,
                    .run = 32 << test_rng_int(rng, 0, 2)};
    const size_t n = (size_t)c.n_tokens, padded = (size_t)tamis_round_up(c.n_heads, 16);
    c.q = take(n * (size_t)c.n_heads * (size_t)c.head_dim * sizeof(float));
    c.weights = take(n * padded * sizeof(float));
    c.keys = take(700 * (size_t)c.head_dim * sizeof(float));
    c.visible = take(n * sizeof(int32_t));
    c.out = take(n * (size_t)c.topk * sizeof(int32_t));
    c.unit_start = take((n + 1) * sizeof(int64_t));
    c.bounds = take((MAX_THREADS + 1) * sizeof(int64_t));
    c.first_item = take(MAX_THREADS * sizeof(int32_t));
    c.partials = take(2 * MAX_THREADS * (size_t)c.topk * sizeof(tamis_candidate));
    c.n_partials = take(2 * MAX_THREADS * sizeof(int32_t));
    test_rng_fill_normal(rng, c.q, n * (size_t)c.n_heads * (size_t)c.head_dim);
    test_rng_fill_normal(rng, c.keys, 700 * (size_t)c.head_dim);
    for (int32_t t = 0; t < c.n_tokens; t++) {
        test_rng_fill_normal(rng, c.weights + (size_t)t * padded, (size_t)c.n_heads);
        c.visible[t] = (int32_t)test_rng_int(rng, 0, c.max_visible);
    }
    return c;
}

static void free_index_case(index_case *c)
{
    void *blocks[] = {c->q,          c->weights, c->keys,       c->visible,  c->out,
                      c->unit_start, c->bounds,  c->first_item, c->partials, c->n_partials};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        tamis_mem_free(blocks[i]);
}

static bool run_index_case(index_case *c, int n_threads, tamis_cpu_level level)
{
    tamis_partition p = {c->n_tokens, n_threads, c->unit_start, c->bounds, c->first_item, false};
    c->unit_start[0] = 0;
    for (int32_t t = 0; t < c->n_tokens; t++)
        c->unit_start[t + 1] = c->unit_start[t] + tamis_index_units(c->visible[t], c->topk, false);
    tamis_partition_build(&p);
    tamis_exec exec = test_exec_open(n_threads, level,
                                     tamis_index_scratch_floats(c->n_heads, c->head_dim, c->topk));
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, c->head_dim);
    const tamis_index_job job = {.q = c->q,
                                 .weights = c->weights,
                                 .n_tokens = c->n_tokens,
                                 .n_heads = c->n_heads,
                                 .head_dim = c->head_dim,
                                 .topk = c->topk,
                                 .format = &format,
                                 .visible = c->visible,
                                 .partition = &p,
                                 .out = c->out,
                                 .partials = c->partials,
                                 .n_partials = c->n_partials,
                                 .keys = case_keys,
                                 .user = c};
    const bool ok = tamis_index_run(&exec, &job);
    test_exec_close(&exec);
    return ok;
}

static double slow_score(const index_case *c, int32_t t, int32_t j)
{
    const size_t padded = (size_t)tamis_round_up(c->n_heads, 16);
    double sum = 0;
    for (int32_t h = 0; h < c->n_heads; h++) {
        double dot = 0;
        for (int32_t d = 0; d < c->head_dim; d++)
            dot += (double)c->q[((int64_t)t * c->n_heads + h) * c->head_dim + d] *
                   (double)c->keys[(int64_t)j * c->head_dim + d];
        sum += dot > 0 ? dot * (double)c->weights[(size_t)t * padded + (size_t)h] : 0;
    }
    return sum;
}

/* The selection must be the top k of double scores, but for entries closer than the bound. */
static void check_selection(const index_case *c, int32_t t)
{
    const int32_t *out = c->out + (int64_t)t * c->topk;
    const int32_t n = c->visible[t] < c->topk ? c->visible[t] : c->topk;
    double worst = INFINITY;
    bool chosen[700] = {false};
    for (int32_t i = 0; i < c->topk; i++) {
        if (i >= n) {
            assert_int_equal(out[i], -1);
            continue;
        }
        assert_in_range(out[i], i == 0 ? 0 : (uint64_t)out[i - 1] + 1, (uint64_t)c->visible[t] - 1);
        chosen[out[i]] = true;
        worst = fmin(worst, slow_score(c, t, out[i]));
    }
    for (int32_t j = 0; j < c->visible[t]; j++)
        if (!chosen[j])
            assert_true(slow_score(c, t, j) <= worst + 1e-3);
}

static void test_index_select(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index_select", 4);
    for (int round = 0; round < 25; round++) {
        index_case c = make_index_case(&rng);
        const size_t bytes = (size_t)c.n_tokens * (size_t)c.topk * sizeof(int32_t);
        int32_t *first = take(bytes);
        assert_true(run_index_case(&c, 1, TAMIS_CPU_PORTABLE));
        memcpy(first, c.out, bytes);
        for (int32_t t = 0; t < c.n_tokens; t++)
            check_selection(&c, t);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            memset(c.out, 0x55, bytes);
            assert_true(run_index_case(&c, n_threads, tamis_cpu_level_available()));
            assert_memory_equal(c.out, first, bytes);
        }
        tamis_mem_free(first);
        free_index_case(&c);
    }
}

/* A key that is not a number is never chosen; too few numbers are reported. */
static void test_index_select_nan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index_select nan", 5);
    index_case c = make_index_case(&rng);
    for (int32_t t = 0; t < c.n_tokens; t++)
        c.visible[t] = 100 + c.topk;
    for (int32_t j = 0; j < 100; j++)
        c.keys[(int64_t)j * c.head_dim + c.head_dim / 2] = NAN;
    assert_true(run_index_case(&c, 2, tamis_cpu_level_available()));
    for (int32_t i = 0; i < c.topk; i++)
        assert_int_equal(c.out[i], 100 + i);
    c.keys[(int64_t)100 * c.head_dim] = NAN;
    assert_false(run_index_case(&c, 2, tamis_cpu_level_available()));
    free_index_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_frequencies),  cmocka_unit_test(test_rope_rows),
        cmocka_unit_test(test_topk_against_scan), cmocka_unit_test(test_index_select),
        cmocka_unit_test(test_index_select_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
