/*
 * pack_heads, index_score, scan_above: every level against portable bit for bit, portable against
 * doubles, the specification's worked numbers.
 */
#include "support/kernel_levels.h"

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
                tamis_kernels_for(level_at(level))->pack_heads(out.data, q.data, heads, dim);
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
    const tamis_row_format format = tamis_row_format_plain(c->dtype, (int32_t)c->dim);
    tamis_kernels_for(level)->index_score(out.data, c->panels, c->weights, c->heads, c->dim,
                                          c->keys.data, &format, c->key_stride, c->n_keys,
                                          c->keys.data, scratch.data);
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
            test_guard got = score_case_run(&c, level_at(level), rng);
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
                c.q, c.weights, c.heads, c.dim, (const uint8_t *)c.keys.data + j * c.key_stride,
                c.dtype, &magnitude);
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
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, 2);
    kernels->index_score(&score, panels, w, 2, 2, key, &format, 8, 1, NULL, scratch);
    return score;
}

/* docs/cases.md 7 (ReLU per head before the weighted sum) and an example worked by hand. */
static void test_index_score_examples(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_cpu_level l = level_at(level);
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
                    tamis_kernels_for(level_at(level))->scan_above(idx, s, n, thresholds[k]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_heads),
        cmocka_unit_test(test_index_score_levels),
        cmocka_unit_test(test_index_score_against_double),
        cmocka_unit_test(test_index_score_examples),
        cmocka_unit_test(test_scan_above),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
