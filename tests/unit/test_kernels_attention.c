/*
 * index_score, scan_above, attn_chunk, attn_merge, attn_finish, pool, pack_heads: every level
 * against portable bit for bit, portable against doubles, the specification's worked numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "kernels/math.h"
#include "support/kernel_ref.h"

static int64_t pick(test_rng *rng, const int64_t *list, int64_t n)
{
    return list[test_rng_int(rng, 0, n - 1)];
}
#define PICK(rng, list) pick(rng, list, (int64_t)(sizeof(list) / sizeof *(list)))

static const int64_t head_counts[] = {1, 2, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 32, 64};
static const int64_t head_dims[] = {1, 2, 7, 8, 15, 16, 17, 40, 48, 127, 128, 129, 144, 257, 320};
static const int64_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 60, 63, 64};

static test_guard new_floats(int64_t n, test_rng *rng)
{
    return test_guard_new((size_t)n * sizeof(float), 4 * (size_t)test_rng_int(rng, 0, 15), rng);
}
static int64_t panel_floats(int64_t n_heads, int64_t head_dim)
{
    return (n_heads + 15) / 16 * 16 * head_dim;
}
static tamis_cpu_level level_above(int level)
{
    return (tamis_cpu_level)level;
}
#define FOR_EACH_LEVEL(level) \
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
#define FOR_EACH_LEVEL_ABOVE_PORTABLE(level) \
    for (int level = 1; level <= (int)tamis_cpu_level_available(); level++)

/* Fails at the first difference, after both guards were found intact. */
static void expect_same(const test_guard *want, const test_guard *got, const char *what)
{
    assert_true(test_guard_intact(want));
    assert_true(test_guard_intact(got));
    const int64_t at = kernel_first_difference(want->data, got->data, want->bytes / sizeof(float));
    if (at >= 0)
        fail_msg("%s[%lld] is %a, portable %a", what, (long long)at,
                 (double)((float *)got->data)[at], (double)((float *)want->data)[at]);
}

/* ---------------------------------------------------------------- pack_heads */

static void test_pack_heads(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("pack_heads", 41);
    for (size_t i = 0; i < sizeof head_counts / sizeof *head_counts; i++)
        for (size_t k = 0; k < sizeof head_dims / sizeof *head_dims; k++) {
            const int64_t heads = head_counts[i], dim = head_dims[k];
            kernel_page q = kernel_page_new((size_t)(heads * dim) * sizeof(float));
            kernel_fill(&rng, KERNEL_DATA_SPECIAL, q.data, (size_t)(heads * dim));
            FOR_EACH_LEVEL(level)
            {
                test_guard out = new_floats(panel_floats(heads, dim), &rng);
                tamis_kernels_for(level_above(level))->pack_heads(out.data, q.data, heads, dim);
                for (int64_t n = 0; n < panel_floats(heads, dim); n++) {
                    const int64_t h = n / (16 * dim) * 16 + n % 16, d = n / 16 % dim;
                    const float want = h < heads ? ((float *)q.data)[h * dim + d] : 0.0f;
                    assert_true(kernel_same_f32(((float *)out.data)[n], want));
                }
                assert_true(test_guard_intact(&out));
                test_guard_free(&out);
            }
            kernel_page_free(&q);
        }
}

/* ---------------------------------------------------------------- index_score */

typedef struct score_case {
    int64_t heads, dim, n_keys, key_stride;
    tamis_dtype dtype;
    kernel_page keys;
    float *q, *panels, *weights;
} score_case;

static score_case score_case_new(test_rng *rng, int64_t heads, int64_t dim, int64_t n_keys,
                                 kernel_data kind)
{
    score_case c = {.heads = heads, .dim = dim, .n_keys = n_keys};
    c.dtype = test_rng_int(rng, 0, 1) ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32;
    const int64_t row = dim * (c.dtype == TAMIS_DTYPE_BF16 ? 2 : 4);
    c.key_stride = row + test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 7);
    c.keys = kernel_page_new((size_t)((n_keys - 1) * c.key_stride + row));
    for (int64_t j = 0; j < n_keys; j++)
        kernel_fill_cached(rng, kind, (uint8_t *)c.keys.data + j * c.key_stride, c.dtype,
                           (size_t)dim);
    c.q = malloc((size_t)(heads * dim) * sizeof(float));
    c.panels = malloc((size_t)panel_floats(heads, dim) * sizeof(float));
    c.weights = calloc((size_t)panel_floats(heads, 1), sizeof(float));
    kernel_fill(rng, kind, c.q, (size_t)(heads * dim));
    kernel_fill(rng, kind, c.weights, (size_t)heads);
    tamis_pack_heads_c(c.panels, c.q, heads, dim);
    return c;
}

static void score_case_free(score_case *c)
{
    kernel_page_free(&c->keys);
    free(c->q);
    free(c->panels);
    free(c->weights);
}

static test_guard score_case_run(const score_case *c, tamis_cpu_level level, test_rng noise)
{
    test_guard out = new_floats(c->n_keys, &noise);
    test_guard scratch =
        test_guard_new(TAMIS_INDEX_SCRATCH(c->dim, c->heads) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->index_score(out.data, c->panels, c->weights, c->heads, c->dim,
                                          c->keys.data, c->dtype, c->key_stride, c->n_keys,
                                          scratch.data);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return out;
}

static void test_index_score_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index_score levels", 42);
    for (int round = 0; round < 400; round++) {
        score_case c = score_case_new(&rng, PICK(&rng, head_counts), PICK(&rng, head_dims),
                                      PICK(&rng, row_counts), (kernel_data)(round % 5));
        test_guard want = score_case_run(&c, TAMIS_CPU_PORTABLE, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            test_guard got = score_case_run(&c, level_above(level), rng);
            expect_same(&want, &got, "score");
            test_guard_free(&got);
        }
        test_guard_free(&want);
        score_case_free(&c);
    }
}

static void test_index_score_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index_score double", 43);
    for (int round = 0; round < 60; round++) {
        score_case c = score_case_new(&rng, PICK(&rng, head_counts), PICK(&rng, head_dims),
                                      PICK(&rng, row_counts), KERNEL_DATA_NORMAL);
        test_guard got = score_case_run(&c, TAMIS_CPU_PORTABLE, rng);
        for (int64_t j = 0; j < c.n_keys; j++) {
            double magnitude;
            const double want = kernel_ref_index_score(
                c.q, c.weights, c.heads, c.dim,
                (const uint8_t *)c.keys.data + j * c.key_stride, c.dtype, &magnitude);
            const double bound = (double)(c.dim + c.heads / 16 + 6) * 0x1p-24 * magnitude + 1e-40;
            assert_true(fabs((double)((float *)got.data)[j] - want) <= bound);
        }
        test_guard_free(&got);
        score_case_free(&c);
    }
}

/* score of one key under 2 heads of 2 channels */
static float small_score(tamis_cpu_level level, const float q[4], const float weights[2],
                         const float key[2])
{
    float panels[2 * 16], w[16] = {weights[0], weights[1]}, score;
    _Alignas(64) float scratch[TAMIS_INDEX_SCRATCH(2, 2)];
    const tamis_kernels *kernels = tamis_kernels_for(level);
    kernels->pack_heads(panels, q, 2, 2);
    kernels->index_score(&score, panels, w, 2, 2, key, TAMIS_DTYPE_F32, 8, 1, scratch);
    return score;
}

/* Case 7 (ReLU per head before the weighted sum) and the numbers of v4-attention 8.9. */
static void test_index_score_examples(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_cpu_level l = level_above(level);
        const float unit[2] = {1.0f, 1.0f};
        assert_true(small_score(l, (float[]){-3, 0, 0, 2}, (float[]){1, -1}, unit) == -2.0f);
        const float q[4] = {1, 2, -1, 1}, w[2] = {0.5f, -0.25f};
        assert_true(small_score(l, q, w, (float[]){1, 0}) == 0.5f);
        assert_true(small_score(l, q, w, (float[]){0, 1}) == 0.75f);
        assert_true(small_score(l, q, w, (float[]){-1, -1}) == 0.0f);
        /* 0.5 inf - 0.25 relu(-inf): the 14 heads of padding, whose product is NaN, do not count */
        assert_true(small_score(l, (float[]){1, 1, -1, 1}, w, (float[]){INFINITY, 1}) == INFINITY);
    }
}

/* ---------------------------------------------------------------- scan_above */

static void test_scan_above(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("scan_above", 44);
    for (int round = 0; round < 600; round++) {
        const int64_t n = test_rng_int(&rng, 0, round % 3 == 0 ? 9 : 200);
        kernel_page scores = kernel_page_new((size_t)n * sizeof(float) + 4);
        float *s = (float *)scores.data + 1;
        kernel_fill(&rng, (kernel_data)(round % 5), s, (size_t)n);
        const float thresholds[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, n > 0 ? s[n / 2] : 1.0f};
        for (size_t k = 0; k < sizeof thresholds / sizeof *thresholds; k++)
            FOR_EACH_LEVEL(level)
            {
                test_guard out = new_floats(n, &rng);
                int32_t *idx = out.data;
                const int64_t found =
                    tamis_kernels_for(level_above(level))->scan_above(idx, s, n, thresholds[k]);
                int64_t want = 0;
                for (int64_t i = 0; i < n; i++)
                    if (isnan(thresholds[k]) ? !isnan(s[i]) : s[i] > thresholds[k]) {
                        assert_true(want < found);
                        assert_int_equal(idx[want], i);
                        want++;
                    }
                assert_int_equal(found, want);
                assert_true(test_guard_intact(&out));
                test_guard_free(&out);
            }
        kernel_page_free(&scores);
    }
}

/* ---------------------------------------------------------------- attention */

typedef struct attn_case {
    int64_t heads, dim, value_dim, n_rows, o_stride;
    tamis_dtype dtype;
    float scale;
    kernel_page storage[300];
    const void *rows[300];
    float *q, *panels;
} attn_case;

/* Every row ends at its own protected page, at any alignment of its start. */
static attn_case *attn_case_new(test_rng *rng, int64_t heads, int64_t dim, int64_t n_rows,
                                kernel_data kind)
{
    attn_case *c = calloc(1, sizeof *c);
    c->heads = heads;
    c->dim = dim;
    c->n_rows = n_rows;
    c->value_dim = test_rng_int(rng, 0, 2) ? dim : test_rng_int(rng, 1, dim);
    c->o_stride = c->value_dim + test_rng_int(rng, 0, 3);
    c->dtype = test_rng_int(rng, 0, 1) ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32;
    c->scale = 1.0f / sqrtf((float)dim);
    for (int64_t j = 0; j < n_rows; j++) {
        c->storage[j] =
            kernel_page_new((size_t)(dim * (c->dtype == TAMIS_DTYPE_BF16 ? 2 : 4)));
        kernel_fill_cached(rng, kind, c->storage[j].data, c->dtype, (size_t)dim);
        c->rows[j] = c->storage[j].data;
    }
    c->q = malloc((size_t)(heads * dim) * sizeof(float));
    c->panels = malloc((size_t)panel_floats(heads, dim) * sizeof(float));
    kernel_fill(rng, kind, c->q, (size_t)(heads * dim));
    tamis_pack_heads_c(c->panels, c->q, heads, dim);
    return c;
}

static void attn_case_free(attn_case *c)
{
    for (int64_t j = 0; j < c->n_rows; j++)
        kernel_page_free(&c->storage[j]);
    free(c->q);
    free(c->panels);
    free(c);
}

typedef struct attn_result {
    test_guard m, l, o;
} attn_result;

static attn_result attn_chunk_run(const attn_case *c, tamis_cpu_level level, int64_t first,
                                  int64_t n_rows, test_rng noise)
{
    attn_result r = {new_floats(c->heads, &noise), new_floats(c->heads, &noise),
                     new_floats(c->heads * c->o_stride, &noise)};
    test_guard scratch =
        test_guard_new(TAMIS_ATTN_SCRATCH(c->heads, c->dim) * sizeof(float), 0, &noise);
    tamis_kernels_for(level)->attn_chunk(r.m.data, r.l.data, r.o.data, c->o_stride, c->panels,
                                         c->heads, c->dim, c->value_dim, c->rows + first, c->dtype,
                                         n_rows, c->scale, scratch.data);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
    return r;
}

static void attn_result_free(attn_result *r)
{
    test_guard_free(&r->m);
    test_guard_free(&r->l);
    test_guard_free(&r->o);
}

static void expect_same_attention(const attn_result *want, const attn_result *got)
{
    expect_same(&want->m, &got->m, "m");
    expect_same(&want->l, &got->l, "l");
    expect_same(&want->o, &got->o, "o");
}

static void test_attn_chunk_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("attn_chunk levels", 45);
    for (int round = 0; round < 300; round++) {
        attn_case *c = attn_case_new(&rng, PICK(&rng, head_counts), PICK(&rng, head_dims),
                                     PICK(&rng, row_counts), (kernel_data)(round % 5));
        attn_result want = attn_chunk_run(c, TAMIS_CPU_PORTABLE, 0, c->n_rows, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            attn_result got = attn_chunk_run(c, level_above(level), 0, c->n_rows, rng);
            expect_same_attention(&want, &got);
            attn_result_free(&got);
        }
        attn_result_free(&want);
        attn_case_free(c);
    }
}

/* All rows of a case in chunks of TAMIS_ATTN_CHUNK, merged and finished; lse gets n_heads. */
static attn_result attn_run(const attn_case *c, tamis_cpu_level level, const float *sink,
                            test_rng noise)
{
    const tamis_kernels *kernels = tamis_kernels_for(level);
    attn_result run = {new_floats(c->heads, &noise), new_floats(c->heads, &noise),
                       new_floats(c->heads * c->o_stride, &noise)};
    float *m = run.m.data, *l = run.l.data, *o = run.o.data;
    for (int64_t h = 0; h < c->heads; h++) {
        m[h] = -INFINITY;
        l[h] = 0.0f;
        memset(o + h * c->o_stride, 0, (size_t)c->value_dim * sizeof *o);
    }
    for (int64_t first = 0; first < c->n_rows; first += TAMIS_ATTN_CHUNK) {
        const int64_t left = c->n_rows - first;
        attn_result chunk = attn_chunk_run(
            c, level, first, left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK, noise);
        kernels->attn_merge(m, l, o, c->o_stride, chunk.m.data, chunk.l.data, chunk.o.data,
                            c->o_stride, c->heads, c->value_dim);
        attn_result_free(&chunk);
    }
    test_guard lse = new_floats(c->heads, &noise);
    kernels->attn_finish(o, c->o_stride, lse.data, m, l, sink, c->heads, c->value_dim);
    test_guard_free(&run.m);
    run.m = lse; /* from here on the LSE stands in m's place */
    return run;
}

static void test_attention_levels_and_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("attention", 46);
    static const int64_t counts[] = {1, 63, 64, 65, 128, 129, 200};
    for (int round = 0; round < 60; round++) {
        attn_case *c = attn_case_new(&rng, PICK(&rng, head_counts), PICK(&rng, head_dims),
                                     PICK(&rng, counts),
                                     round % 4 ? KERNEL_DATA_NORMAL : KERNEL_DATA_SPECIAL);
        float sinks[64];
        kernel_fill(&rng, KERNEL_DATA_NORMAL, sinks, 64);
        const float *sink = round % 3 ? sinks : NULL;
        attn_result want = attn_run(c, TAMIS_CPU_PORTABLE, sink, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            attn_result got = attn_run(c, level_above(level), sink, rng);
            expect_same_attention(&want, &got);
            attn_result_free(&got);
        }
        for (int64_t h = 0; round % 4 && h < c->heads; h++) {
            double out[320];
            const double lse = kernel_ref_attention(
                out, c->q + h * c->dim, c->dim, c->value_dim, c->rows, c->dtype, c->n_rows,
                (double)c->scale, sink ? sink + h : NULL);
            assert_true(fabs((double)((float *)want.m.data)[h] - lse) < 2e-5);
            for (int64_t d = 0; d < c->value_dim; d++)
                assert_true(fabs((double)((float *)want.o.data)[h * c->o_stride + d] - out[d]) <
                            2e-5);
        }
        attn_result_free(&want);
        attn_case_free(c);
    }
}

/* attn_merge by its formula, maxima far apart and a running state that is still empty included. */
static void test_merge_formula(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("attn_merge", 48);
    const float maxima[] = {-INFINITY, -300.0f, -1.0f, 0.0f, 2.5f, 300.0f};
    for (int i = 0; i < 6; i++)
        for (int k = 1; k < 6; k++)
            FOR_EACH_LEVEL(level)
            {
                const int64_t dim = test_rng_int(&rng, 1, 40);
                const float m_c = maxima[k], top = m_c > maxima[i] ? m_c : maxima[i];
                const float a = tamis_math_exp(maxima[i] - top), b = tamis_math_exp(m_c - top);
                const bool empty = i == 0;
                float m = maxima[i], l = empty ? 0.0f : 3.0f, l_c = 1.75f, o[40], o_c[40], old[40];
                kernel_fill(&rng, KERNEL_DATA_NORMAL, o_c, 40);
                kernel_fill(&rng, KERNEL_DATA_NORMAL, o, 40);
                if (empty)
                    memset(o, 0, sizeof o);
                memcpy(old, o, sizeof o);
                const float l_want = fmaf(l, a, l_c * b);
                tamis_kernels_for(level_above(level))
                    ->attn_merge(&m, &l, o, 40, &m_c, &l_c, o_c, 40, 1, dim);
                assert_true(m == top && l == l_want && isfinite(l));
                for (int64_t d = 0; d < 40; d++)
                    assert_true(o[d] == (d < dim ? fmaf(old[d], a, o_c[d] * b) : old[d]));
            }
}

/* v4-attention 8.6: scores 1, 2, 0.5, values 10, 20, 30, sink 1.5. The score is channel 0, the
 * value channel 1 (the query does not see it). */
static void test_softmax_with_sink(void **state)
{
    (void)state;
    const float rows[3][2] = {{1, 10}, {2, 20}, {0.5f, 30}}, q[2] = {1, 0};
    const void *pointers[3] = {rows[0], rows[1], rows[2]};
    const float sink = 1.5f;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_above(level));
        float panels[2 * 16], m, l, o[2], lse;
        _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(1, 2)];
        kernels->pack_heads(panels, q, 1, 2);
        kernels->attn_chunk(&m, &l, o, 2, panels, 1, 2, 2, pointers, TAMIS_DTYPE_F32, 3, 1.0f,
                            scratch);
        kernels->attn_finish(o, 2, &lse, &m, &l, &sink, 1, 2);
        assert_true(fabs((double)o[1] - 13.8212254) < 2e-6);
        assert_true(fabs((double)lse - 2.7873387) < 3e-7);
    }
}

/* Case 12 at kernel level: a head without any row gives zeros; the LSE is the sink's, or -inf. */
static void test_empty_rows(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_above(level));
        const float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, sink[2] = {0.25f, -INFINITY};
        float o[2 * 20] = {0}, lse[2] = {7, 7};
        kernels->attn_finish(o, 20, lse, m, l, sink, 2, 20);
        assert_true(lse[0] == 0.25f && lse[1] == -INFINITY);
        kernels->attn_finish(o, 20, lse, m, l, NULL, 2, 20);
        assert_true(lse[0] == -INFINITY && lse[1] == -INFINITY);
        kernels->attn_finish(o, 20, NULL, m, l, NULL, 2, 20);
        for (int i = 0; i < 40; i++)
            assert_true(o[i] == 0.0f);
    }
}

/* The levels' exp on its own, densely over its whole range: rows (0) and (x), so p = exp(q x). */
static void test_exp_in_lanes(void **state)
{
    (void)state;
    float q[16], panels[16], m[16], l[16], o[16];
    _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(16, 1)];
    for (int h = 0; h < 16; h++)
        q[h] = 1.0f + 0.0625f * (float)h;
    tamis_pack_heads_c(panels, q, 16, 1);
    for (int i = 0; i < 20000; i++) {
        const float zero = 0.0f, x = -112.0f * (float)i / 20000.0f;
        const void *rows[2] = {&zero, &x};
        FOR_EACH_LEVEL(level)
        {
            const tamis_kernels *kernels = tamis_kernels_for(level_above(level));
            kernels->attn_chunk(m, l, o, 1, panels, 16, 1, 1, rows, TAMIS_DTYPE_F32, 2,
                                1.0f, scratch);
            for (int h = 0; h < 16; h++) {
                const float p = tamis_math_exp(q[h] * x);
                assert_true(kernel_same_f32(o[h], fmaf(p, x, 0.0f)));
                assert_true(l[h] == 1.0f + p);
            }
        }
    }
}

/* A sink far above or below the scores: no overflow, no NaN. */
static void test_extreme_sinks(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_above(level));
        const float m = 2.0f, l = 1.5f, sinks[3] = {3.0e38f, -3.0e38f, -INFINITY};
        for (int i = 0; i < 3; i++) {
            float o = 3.0f, lse;
            kernels->attn_finish(&o, 1, &lse, &m, &l, &sinks[i], 1, 1);
            assert_true(o == (i == 0 ? 0.0f : 2.0f));
            assert_true(i == 0 ? lse == 3.0e38f : fabsf(lse - 2.4054651f) < 1e-6f);
        }
    }
}

/* A NaN or infinite row poisons its heads visibly instead of vanishing. */
static void test_poison_is_visible(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_above(level));
        const float rows[3][2] = {{1, 1}, {NAN, 2}, {0, 3}}, q[2] = {1, 0};
        const void *pointers[3] = {rows[0], rows[1], rows[2]};
        float panels[2 * 16], m, l, o[2];
        _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(1, 2)];
        kernels->pack_heads(panels, q, 1, 2);
        kernels->attn_chunk(&m, &l, o, 2, panels, 1, 2, 2, pointers, TAMIS_DTYPE_F32, 3, 1.0f,
                            scratch);
        assert_true(isnan(l) && isnan(o[0]) && isnan(o[1]));
    }
}

/* ---------------------------------------------------------------- pool */

static void test_pool_levels_and_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("pool", 47);
    static const int64_t slots[] = {1, 2, 4, 7, 8, 128, 256};
    for (int round = 0; round < 120; round++) {
        const int n = (int)PICK(&rng, slots);
        const int64_t channels = PICK(&rng, head_dims);
        const kernel_data kind = (kernel_data)(round % 5);
        kernel_page storage = kernel_page_new((size_t)(2 * n * channels) * sizeof(float));
        const float *value[256], *score[256];
        kernel_fill(&rng, kind, storage.data, (size_t)(2 * n * channels));
        for (int s = 0; s < n; s++) {
            value[s] = (float *)storage.data + (2 * s) * channels;
            score[s] = value[s] + channels;
        }
        const test_rng noise = rng;
        test_rng a = noise;
        test_guard want = new_floats(channels, &a);
        tamis_pool_c(want.data, value, score, n, channels);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            test_rng b = noise;
            test_guard got = new_floats(channels, &b);
            tamis_kernels_for(level_above(level))->pool(got.data, value, score, n, channels);
            expect_same(&want, &got, "pool");
            test_guard_free(&got);
        }
        for (int64_t c = 0; kind == KERNEL_DATA_NORMAL && c < channels; c++) {
            double p[256], out = 0;
            for (int s = 0; s < n; s++)
                p[s] = (double)score[s][c];
            kernel_ref_softmax(p, p, n, NULL);
            for (int s = 0; s < n; s++)
                out += p[s] * (double)value[s][c];
            assert_true(fabs((double)((float *)want.data)[c] - out) < 1e-5);
        }
        test_guard_free(&want);
        kernel_page_free(&storage);
        test_rng_u64(&rng);
    }
}

static float pool_one_channel(tamis_cpu_level level, const float *values, const float *scores,
                              int n)
{
    const float *value[8], *score[8];
    float out;
    for (int s = 0; s < n; s++) {
        value[s] = values + s;
        score[s] = scores + s;
    }
    tamis_kernels_for(level)->pool(&out, value, score, n, 1);
    return out;
}

/* v4-attention 8.4; a NaN score in any slot gives NaN, a -inf score no weight. */
static void test_pool_examples(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_cpu_level l = level_above(level);
        const float own[4] = {10, 11, 12, 13}, own_scores[4] = {.3f, .1f, -.1f, -.3f};
        assert_true(fabs((double)pool_one_channel(l, own, own_scores, 4) - 11.2527907) < 2e-6);
        const float both[8] = {0, 1, 2, 3, 14, 15, 16, 17};
        float scores[8] = {0, .2f, .4f, .6f, -.1f, -.3f, -.5f, -.7f};
        assert_true(fabs((double)pool_one_channel(l, both, scores, 8) - 6.2285264) < 2e-6);
        scores[0] = scores[1] = scores[2] = scores[3] = -INFINITY;
        assert_true(pool_one_channel(l, both, scores, 8) ==
                    pool_one_channel(l, both + 4, scores + 4, 4));
        for (int s = 0; s < 8; s++) {
            float bad[8] = {0};
            bad[s] = NAN;
            assert_true(isnan(pool_one_channel(l, both, bad, 8)));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_heads),
        cmocka_unit_test(test_index_score_levels),
        cmocka_unit_test(test_index_score_against_double),
        cmocka_unit_test(test_index_score_examples),
        cmocka_unit_test(test_scan_above),
        cmocka_unit_test(test_attn_chunk_levels),
        cmocka_unit_test(test_attention_levels_and_double),
        cmocka_unit_test(test_merge_formula),
        cmocka_unit_test(test_softmax_with_sink),
        cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_exp_in_lanes),
        cmocka_unit_test(test_extreme_sinks),
        cmocka_unit_test(test_poison_is_visible),
        cmocka_unit_test(test_pool_levels_and_double),
        cmocka_unit_test(test_pool_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
