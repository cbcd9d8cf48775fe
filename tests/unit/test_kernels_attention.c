/*
 * attn_chunk, attn_merge, attn_finish, pool: every level against portable bit for bit, portable
 * against doubles, the specification's worked numbers.
 */
#include "support/kernel_levels.h"

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
        c->storage[j] = kernel_page_new((size_t)(dim * (c->dtype == TAMIS_DTYPE_BF16 ? 2 : 4)));
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

/* Rows [first, first + n_rows) into r. */
static void attn_chunk_into(attn_result *r, const attn_case *c, tamis_cpu_level level,
                            int64_t first, int64_t n_rows, tamis_attn_fold fold, test_rng noise)
{
    test_guard scratch =
        test_guard_new(TAMIS_ATTN_SCRATCH(c->heads, c->dim) * sizeof(float), 0, &noise);
    const tamis_row_format format = tamis_row_format_plain(c->dtype, (int32_t)c->dim);
    const int64_t n_ahead = c->n_rows - first - n_rows;
    tamis_kernels_for(level)->attn_chunk(
        r->m.data, r->l.data, r->o.data, c->o_stride, c->panels, c->heads, c->dim, c->value_dim,
        c->rows + first, &format, n_rows, c->rows + first + n_rows,
        n_ahead < TAMIS_ATTN_CHUNK ? n_ahead : TAMIS_ATTN_CHUNK, c->scale, fold, scratch.data);
    assert_true(test_guard_intact(&scratch));
    test_guard_free(&scratch);
}

static attn_result attn_chunk_run(const attn_case *c, tamis_cpu_level level, int64_t first,
                                  int64_t n_rows, test_rng noise)
{
    attn_result r = {new_floats(c->heads, &noise), new_floats(c->heads, &noise),
                     new_floats(c->heads * c->o_stride, &noise)};
    attn_chunk_into(&r, c, level, first, n_rows, TAMIS_ATTN_ALONE, noise);
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
            attn_result got = attn_chunk_run(c, level_at(level), 0, c->n_rows, rng);
            expect_same_attention(&want, &got);
            attn_result_free(&got);
        }
        attn_result_free(&want);
        attn_case_free(c);
    }
}

/*
 * All rows of a case in chunks of TAMIS_ATTN_CHUNK, merged (by attn_chunk itself if is_folded) and
 * finished; lse gets n_heads.
 */
static attn_result attn_run(const attn_case *c, tamis_cpu_level level, const float *sink,
                            bool is_folded, test_rng noise)
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
        const int64_t here = left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK;
        if (is_folded) {
            attn_chunk_into(&run, c, level, first, here, TAMIS_ATTN_MERGED, noise);
            continue;
        }
        attn_result chunk = attn_chunk_run(c, level, first, here, noise);
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
        attn_case *c =
            attn_case_new(&rng, PICK(&rng, head_counts), PICK(&rng, head_dims), PICK(&rng, counts),
                          round % 4 ? KERNEL_DATA_NORMAL : KERNEL_DATA_SPECIAL);
        float sinks[64];
        kernel_fill(&rng, KERNEL_DATA_NORMAL, sinks, 64);
        const float *sink = round % 3 ? sinks : NULL;
        attn_result want = attn_run(c, TAMIS_CPU_PORTABLE, sink, false, rng);
        FOR_EACH_LEVEL(level)
        for (int folded = 0; folded < 2; folded++) {
            attn_result got = attn_run(c, level_at(level), sink, folded != 0, rng);
            expect_same_attention(&want, &got);
            attn_result_free(&got);
        }
        for (int64_t h = 0; round % 4 && h < c->heads; h++) {
            double out[320];
            const double lse =
                kernel_ref_attention(out, c->q + h * c->dim, c->dim, c->value_dim, c->rows,
                                     c->dtype, c->n_rows, (double)c->scale, sink ? sink + h : NULL);
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
                tamis_kernels_for(level_at(level))
                    ->attn_merge(&m, &l, o, 40, &m_c, &l_c, o_c, 40, 1, dim);
                assert_true(m == top && l == l_want && isfinite(l));
                for (int64_t d = 0; d < 40; d++)
                    assert_true(o[d] == (d < dim ? fmaf(old[d], a, o_c[d] * b) : old[d]));
            }
}

/* Worked example: scores 1, 2, 0.5, values 10, 20, 30, sink 1.5. The score is channel 0, the
 * value channel 1 (the query does not see it). */
static void test_softmax_with_sink(void **state)
{
    (void)state;
    const float rows[3][2] = {{1, 10}, {2, 20}, {0.5f, 30}}, q[2] = {1, 0};
    const void *pointers[3] = {rows[0], rows[1], rows[2]};
    const float sink = 1.5f;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        float panels[2 * 16], m, l, o[2], lse;
        _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(1, 2)];
        kernels->pack_heads(panels, q, 1, 2);
        const tamis_row_format f32 = tamis_row_format_plain(TAMIS_DTYPE_F32, 2);
        kernels->attn_chunk(&m, &l, o, 2, panels, 1, 2, 2, pointers, &f32, 3, NULL, 0, 1.0f, false,
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
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
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
            const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
            const tamis_row_format f32 = tamis_row_format_plain(TAMIS_DTYPE_F32, 1);
            kernels->attn_chunk(m, l, o, 1, panels, 16, 1, 1, rows, &f32, 2, NULL, 0, 1.0f, false,
                                scratch);
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
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
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
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        const float rows[3][2] = {{1, 1}, {NAN, 2}, {0, 3}}, q[2] = {1, 0};
        const void *pointers[3] = {rows[0], rows[1], rows[2]};
        float panels[2 * 16], m, l, o[2];
        _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(1, 2)];
        kernels->pack_heads(panels, q, 1, 2);
        const tamis_row_format f32 = tamis_row_format_plain(TAMIS_DTYPE_F32, 2);
        kernels->attn_chunk(&m, &l, o, 2, panels, 1, 2, 2, pointers, &f32, 3, NULL, 0, 1.0f, false,
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
            tamis_kernels_for(level_at(level))->pool(got.data, value, score, n, channels);
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

/* Worked examples; a NaN score in any slot gives NaN, a -inf score no weight. */
static void test_pool_examples(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_cpu_level l = level_at(level);
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
