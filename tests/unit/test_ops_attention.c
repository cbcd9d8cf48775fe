/*
 * Sparse attention over lists: outputs and LSE against doubles; the same bits for any number of
 * threads, wherever the outputs lie, with and without LSE.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/sparse_attn.h"
#include "support/exec.h"
#include "support/kernel_ref.h"
#include "support/sanitized.h"

enum { MAX_THREADS = 5, MAX_TOKENS = 14, MAX_LIST = 400, NUM_ROWS = 400, MAX_DIM = 50 };
static const float SCALE = 0.3f;

typedef struct attn_case {
    int32_t n_tokens, num_heads, head_dim, value_dim;
    float *q, *rows, *partials;
    float sink[20];
    bool has_sink;
    int32_t list[MAX_TOKENS][MAX_LIST], list_len[MAX_TOKENS]; /* row numbers or -1 */
    int64_t unit_start[MAX_TOKENS + 1], bounds[MAX_THREADS + 1];
    int32_t first_item[MAX_THREADS];
} attn_case;

/* Where the outputs of a run go. */
typedef enum place {
    PLACE_PACKED, /* tokens side by side */
    PLACE_SPACED, /* a gap behind each token */
    PLACE_OF_Q,   /* in the queries' array */
    NUM_PLACES
} place;

typedef struct attn_result {
    float *o, *lse; /* [n_tokens][num_heads][value_dim], [n_tokens][num_heads] */
    bool was_shared;
} attn_result;

static int32_t case_rows(const void *user, int32_t token, int32_t first, int32_t n,
                         const void **out)
{
    const attn_case *c = user;
    int32_t n_found = 0;
    for (int32_t i = first; i < first + n; i++)
        if (c->list[token][i] >= 0)
            out[n_found++] = c->rows + c->list[token][i] * c->head_dim;
    return n_found;
}

static size_t q_floats(const attn_case *c)
{
    return (size_t)c->n_tokens * (size_t)c->num_heads * (size_t)c->head_dim;
}
static int64_t o_row(const attn_case *c)
{
    return (int64_t)c->num_heads * c->value_dim;
}

static attn_case *case_new(test_rng *rng)
{
    attn_case *c = calloc(1, sizeof *c);
    c->n_tokens = (int32_t)test_rng_int(rng, 1, test_rng_int(rng, 0, 1) ? 3 : MAX_TOKENS);
    c->num_heads = (int32_t)test_rng_int(rng, 1, 20);
    c->head_dim = (int32_t)test_rng_int(rng, 1, MAX_DIM);
    c->value_dim =
        test_rng_int(rng, 0, 2) == 0 ? c->head_dim : (int32_t)test_rng_int(rng, 1, c->head_dim);
    c->has_sink = test_rng_int(rng, 0, 1) == 0;
    c->q = malloc(q_floats(c) * sizeof(float));
    c->rows = malloc((size_t)(NUM_ROWS * c->head_dim) * sizeof(float));
    c->partials = aligned_alloc(
        64,
        (tamis_attn_partial_floats(c->num_heads, c->value_dim, 7, MAX_THREADS) * 4 + 64) / 64 * 64);
    test_rng_fill_normal(rng, c->q, q_floats(c));
    test_rng_fill_normal(rng, c->rows, (size_t)(NUM_ROWS * c->head_dim));
    test_rng_fill_normal(rng, c->sink, 20);
    for (int32_t t = 0; t < c->n_tokens; t++) {
        c->list_len[t] = (int32_t)test_rng_int(rng, t == 0 ? 0 : 1, MAX_LIST);
        for (int32_t i = 0; i < MAX_LIST; i++)
            c->list[t][i] =
                test_rng_int(rng, 0, 9) == 0 ? -1 : (int32_t)test_rng_int(rng, 0, NUM_ROWS - 1);
    }
    return c;
}

static void case_free(attn_case *c)
{
    free(c->q);
    free(c->rows);
    free(c->partials);
    free(c);
}

static void result_free(attn_result *result)
{
    free(result->o);
    free(result->lse);
}

/* What lies behind a token's outputs must still be what it was: noise, or the end of its query. */
static void collect(const attn_case *c, float *packed, const float *o, const float *before,
                    int64_t stride)
{
    const size_t row = (size_t)o_row(c), gap = (size_t)stride - row;
    for (int32_t t = 0; t < c->n_tokens; t++) {
        memcpy(packed + (size_t)t * row, o + t * stride, row * sizeof *o);
        if (gap > 0)
            assert_memory_equal(o + t * stride + row, before + t * stride + row, gap * sizeof *o);
    }
}

static attn_result run_case(attn_case *c, int n_threads, tamis_cpu_level level, place where,
                            bool wants_lse)
{
    tamis_partition p = {c->n_tokens, n_threads, c->unit_start, c->bounds, c->first_item, false};
    for (int32_t t = 0; t < c->n_tokens; t++) /* a list without entries still has its output */
        c->unit_start[t + 1] =
            c->unit_start[t] + (c->list_len[t] > 0 ? tamis_attn_num_chunks(c->list_len[t]) : 1);
    tamis_partition_build(&p);
    const int64_t q_stride = (int64_t)c->num_heads * c->head_dim;
    const int64_t stride = where == PLACE_OF_Q ? q_stride : o_row(c) + (where == PLACE_SPACED) * 9;
    const size_t o_bytes = (size_t)(c->n_tokens * stride) * sizeof(float);
    const size_t n_lse = (size_t)(c->n_tokens * c->num_heads);
    float *o = malloc(o_bytes), *before = malloc(o_bytes);
    attn_result result = {malloc((size_t)(c->n_tokens * o_row(c)) * sizeof(float)),
                          malloc(n_lse * sizeof(float)), p.has_split_items};
    memset(o, 0x55, o_bytes);
    memset(result.lse, 0x55, n_lse * sizeof(float));
    if (where == PLACE_OF_Q)
        memcpy(o, c->q, o_bytes);
    memcpy(before, o, o_bytes);
    tamis_exec exec = test_exec_open(
        n_threads, level, tamis_attn_scratch_floats(c->num_heads, c->head_dim, c->value_dim));
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, c->head_dim);
    const tamis_attn_job job = {.q = where == PLACE_OF_Q ? o : c->q,
                                .o = o,
                                .o_stride = stride,
                                .lse = wants_lse ? result.lse : NULL,
                                .n_tokens = c->n_tokens,
                                .num_heads = c->num_heads,
                                .head_dim = c->head_dim,
                                .value_dim = c->value_dim,
                                .format = &format,
                                .scale = SCALE,
                                .sink = c->has_sink ? c->sink : NULL,
                                .partition = &p,
                                .list_len = c->list_len,
                                .partials = c->partials,
                                .max_chunks = 7,
                                .rows = case_rows,
                                .user = c};
    tamis_attn_run(&exec, &job);
    test_exec_close(&exec);
    collect(c, result.o, o, before, stride);
    free(o);
    free(before);
    return result;
}

static void check_head(const attn_case *c, const attn_result *result, int32_t t, int32_t h)
{
    const void *rows[MAX_LIST];
    double want[MAX_DIM];
    const int32_t n = case_rows(c, t, 0, c->list_len[t], rows);
    const int64_t head = (int64_t)t * c->num_heads + h;
    const double lse =
        kernel_ref_attention(want, c->q + head * c->head_dim, c->head_dim, c->value_dim, rows,
                             TAMIS_DTYPE_F32, n, (double)SCALE, c->has_sink ? &c->sink[h] : NULL);
    for (int32_t d = 0; d < c->value_dim; d++)
        assert_true(fabs((double)result->o[head * c->value_dim + d] - want[d]) < 2e-5);
    if (isinf(lse))
        assert_true(result->lse[head] == -INFINITY);
    else
        assert_true(fabs((double)result->lse[head] - lse) < 1e-5 * (1 + fabs(lse)));
}

static void expect_same(const attn_case *c, const attn_result *want, const attn_result *got,
                        bool with_lse)
{
    assert_memory_equal(got->o, want->o, (size_t)(c->n_tokens * o_row(c)) * sizeof(float));
    if (with_lse)
        assert_memory_equal(got->lse, want->lse,
                            (size_t)(c->n_tokens * c->num_heads) * sizeof(float));
}

static void test_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("sparse_attn", 6);
    int n_shared = 0;
    for (int round = 0; round < (TEST_IS_SANITIZED ? 8 : 25); round++) {
        attn_case *c = case_new(&rng);
        attn_result want = run_case(c, 1, TAMIS_CPU_PORTABLE, PLACE_PACKED, true);
        for (int32_t t = 0; t < c->n_tokens; t++)
            for (int32_t h = 0; h < c->num_heads; h++)
                check_head(c, &want, t, h);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++)
            for (int where = 0; where < NUM_PLACES; where++) {
                const bool wants_lse = (n_threads + where + round) % 4 != 0;
                attn_result got =
                    run_case(c, n_threads, tamis_cpu_level_available(), (place)where, wants_lse);
                expect_same(c, &want, &got, wants_lse);
                n_shared += got.was_shared;
                result_free(&got);
            }
        result_free(&want);
        case_free(c);
    }
    assert_true(n_shared > 0);
}

/* One token alone, all of whose entries are -1 but perhaps one, for any number of threads. */
static void check_missing_rows(attn_case *c, int32_t list_len, int32_t present, bool has_sink)
{
    c->n_tokens = 1;
    c->list_len[0] = list_len;
    c->has_sink = has_sink;
    for (int32_t i = 0; i < MAX_LIST; i++)
        c->list[0][i] = i == present ? 5 : -1;
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        attn_result got = run_case(c, n_threads, tamis_cpu_level_available(), PLACE_OF_Q, true);
        assert_true(got.was_shared == (n_threads > 1 && list_len > TAMIS_ATTN_CHUNK));
        for (int32_t h = 0; h < c->num_heads; h++) {
            check_head(c, &got, 0, h);
            if (present < list_len)
                continue;
            assert_true(got.lse[h] == (has_sink ? c->sink[h] : -INFINITY));
            for (int32_t d = 0; d < c->value_dim; d++)
                assert_true(got.o[h * c->value_dim + d] == 0);
        }
        result_free(&got);
    }
}

/*
 * Case 12: sixteen -1 before the only row. No row at all gives zeros, never NaN, and the sink or
 * -inf as LSE - also where several threads share the token.
 */
static void test_missing_rows(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("sparse_attn -1", 7);
    attn_case *c = case_new(&rng);
    for (int sink = 0; sink < 2; sink++) {
        check_missing_rows(c, 17, 16, sink != 0);
        check_missing_rows(c, 400, 390, sink != 0);
        check_missing_rows(c, 0, MAX_LIST, sink != 0);
        check_missing_rows(c, 17, MAX_LIST, sink != 0);
        check_missing_rows(c, 200, MAX_LIST, sink != 0);
    }
    case_free(c);
}

/* Worked example 7.13 of the V3.2 specification: latent of 2, rotated part of 1, no sink. */
static void test_latent_example(void **state)
{
    (void)state;
    const float rows[3][3] = {{1, 0, 2}, {0, 2, 0}, {3, 1, -2}}, q[3] = {1, 0, 0.5f};
    const struct {
        int32_t n, list[4];
        double lse, out[2];
    } examples[] = {{2, {0, 2}, 1.6931472, {2, 0.5}},
                    {3, {0, 1, 2}, 1.8619948, {1.6892752, 0.7330436}},
                    {4, {0, 2, -1, 1}, 1.8619948, {1.6892752, 0.7330436}}};
    for (size_t e = 0; e < sizeof examples / sizeof *examples; e++) {
        float out[2] = {NAN, NAN}, lse = NAN;
        attn_case c = {.head_dim = 3, .rows = (float *)(uintptr_t)rows};
        memcpy(c.list[0], examples[e].list, sizeof examples[e].list);
        tamis_partition p = {1, 1, c.unit_start, c.bounds, c.first_item, false};
        c.unit_start[1] = 1;
        tamis_partition_build(&p);
        tamis_exec exec =
            test_exec_open(1, tamis_cpu_level_available(), tamis_attn_scratch_floats(1, 3, 2));
        const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, 3);
        const tamis_attn_job job = {.q = q,
                                    .o = out,
                                    .o_stride = 2,
                                    .lse = &lse,
                                    .n_tokens = 1,
                                    .num_heads = 1,
                                    .head_dim = 3,
                                    .value_dim = 2,
                                    .format = &format,
                                    .scale = 0.5f,
                                    .partition = &p,
                                    .list_len = &examples[e].n,
                                    .max_chunks = 1,
                                    .rows = case_rows,
                                    .user = &c};
        tamis_attn_run(&exec, &job);
        test_exec_close(&exec);
        assert_true(fabs((double)lse - examples[e].lse) < 1e-6);
        for (int d = 0; d < 2; d++)
            assert_true(fabs((double)out[d] - examples[e].out[d]) < 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_missing_rows),
        cmocka_unit_test(test_latent_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
