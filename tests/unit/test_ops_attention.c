/*
 * Sparse attention over lists: outputs and LSE against doubles; the same bits for any number of
 * threads, wherever the outputs lie, with and without LSE.
 */
#include "ops_attention_test.h"
#include "support/kernel_ref.h"
#include "support/sanitized.h"

enum { MAX_DIM = 50 };

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

static void test_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("sparse_attn", 6);
    int n_shared = 0;
    for (int round = 0; round < (TEST_IS_SANITIZED ? 8 : 25); round++) {
        /* up to 3 panels of heads, which threads share in the profiles with one maximum */
        attn_case *c = case_new(&rng, round % 2 == 0 ? 20 : MAX_HEADS, MAX_DIM);
        attn_result want = run_case(c, 1, TAMIS_CPU_PORTABLE, PLACE_PACKED, true);
        for (int32_t t = 0; t < c->n_tokens; t++)
            for (int32_t h = 0; h < c->num_heads; h++)
                check_head(c, &want, t, h);
        n_shared += expect_same_everywhere(c, &want, round);
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
    attn_case *c = case_new(&rng, 20, MAX_DIM);
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
        attn_case c = {.format = tamis_row_format_plain(TAMIS_DTYPE_F32, 3),
                       .rows = (uint8_t *)(uintptr_t)rows};
        memcpy(c.list[0], examples[e].list, sizeof examples[e].list);
        tamis_partition p = {1, 1, c.unit_start, c.bounds, c.first_item, false};
        c.unit_start[1] = 1;
        tamis_partition_build(&p);
        tamis_exec exec =
            test_exec_open(1, tamis_cpu_level_available(), tamis_attn_scratch_floats(1, 3, 2));
        const tamis_attn_job job = {.q = q,
                                    .o = out,
                                    .o_stride = 2,
                                    .lse = &lse,
                                    .n_tokens = 1,
                                    .num_heads = 1,
                                    .head_dim = 3,
                                    .value_dim = 2,
                                    .format = &c.format,
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
