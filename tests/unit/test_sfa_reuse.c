/*
 * GLM-5.2's shared selections: a layer with reuse_topk has no indexer and no key cache, and attends
 * to exactly what the nearest earlier layer of the same step selected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/oracle_v32.h"
#include "support/sfa_rig.h"

#include <stdlib.h>
#include <string.h>

static tamis_status measure_plan(const tamis_sfa_config *layers, int32_t n_layers,
                                 const tamis_plan_params *params, int32_t block_tokens,
                                 uint64_t *bytes, tamis_error *err)
{
    tamis_cache_params caches = tamis_cache_params_default();
    caches.block_tokens = block_tokens;
    return tamis_sfa_plan_measure(layers, n_layers, params, &caches, bytes, err);
}


/* full, shared, shared, full, shared */
enum { N_LAYERS = 5, N = 100, TOPK = 8 };
static const bool is_shared[N_LAYERS] = {false, true, true, false, true};

typedef struct stack {
    test_sfa_layer owners[N_LAYERS];
    tamis_sfa_layer layers[N_LAYERS];
    test_sfa_rig rig;
    test_sfa_seq seq;
    float *x[N_LAYERS]; /* every layer has an input of its own */
    int32_t hidden;
} stack;

static void stack_open(stack *s, int n_threads, test_rng *rng)
{
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    const tamis_cache_params params = test_sfa_params(N);
    s->hidden = c.hidden_size;
    for (int i = 0; i < N_LAYERS; i++) {
        c.reuse_topk = is_shared[i];
        s->owners[i] = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, rng);
        s->layers[i] = s->owners[i].layer;
        s->x[i] = test_inputs(N, s->hidden, rng);
    }
    s->rig = test_sfa_rig_open(s->layers, N_LAYERS, &params, N, n_threads);
    s->seq = test_sfa_seq_open(&s->rig);
    test_sfa_poison(&s->rig, 7.5f);
}

static void stack_close(stack *s)
{
    test_sfa_rig_close(&s->rig);
    for (int i = 0; i < N_LAYERS; i++) {
        test_sfa_layer_free(&s->owners[i]);
        free(s->x[i]);
    }
}

static void plan_all(stack *s)
{
    test_sfa_plan(&s->rig, (test_sfa_seq *[]){&s->seq}, (int32_t[]){N}, 1);
}

static int32_t *copy_topk(const stack *s)
{
    int32_t *copy = test_take(N * TOPK, sizeof *copy);
    memcpy(copy, tamis_sfa_plan_topk(s->rig.plan), N * TOPK * sizeof *copy);
    return copy;
}

/* A shared layer equals itself given the earlier layer's lists from outside, and the oracle. */
static void check_shared(stack *s, int layer, const int32_t *topk)
{
    float *own = test_take(N * s->hidden, sizeof *own);
    float *given = test_take(N * s->hidden, sizeof *given);
    test_sfa_run(&s->rig, layer, s->x[layer], own);
    assert_memory_equal(tamis_sfa_plan_topk(s->rig.plan), topk, N * TOPK * sizeof *topk);
    test_sfa_run_given(&s->rig, layer, s->x[layer], topk, TOPK, NULL, given);
    test_assert_same_bits(own, given, N, s->hidden, "shared layer");
    double *wide = test_widened(s->x[layer], N * s->hidden);
    const oracle_sfa_options options = {.given_topk = topk};
    oracle_sfa oracle = oracle_sfa_run(&s->layers[layer], wide, N, &options);
    test_assert_near(own, oracle.out, N * s->hidden, 5e-6, "shared layer, oracle");
    oracle_sfa_free(&oracle);
    free(wide);
    free(own);
    free(given);
}

static void shared_layers_use_the_nearest_selection(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("nearest selection", 1);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        stack s;
        stack_open(&s, n_threads, &rng);
        float *out = test_take(N * s.hidden, sizeof *out);
        plan_all(&s);
        test_sfa_run(&s.rig, 0, s.x[0], out);
        int32_t *first = copy_topk(&s);
        check_shared(&s, 1, first);
        check_shared(&s, 2, first);
        test_sfa_run(&s.rig, 3, s.x[3], out);
        int32_t *second = copy_topk(&s);
        assert_memory_not_equal(first, second, N * TOPK * sizeof *first);
        check_shared(&s, 4, second);
        free(first);
        free(second);
        free(out);
        stack_close(&s);
    }
}

/* Cut into steps, a stack with shared layers gives the same bits. */
static void chunks_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("shared layers in chunks", 2);
    stack s;
    stack_open(&s, 2, &rng);
    const int32_t chunks[] = {N, 1, 9, 64};
    float *expected = test_take(N_LAYERS * N * s.hidden, sizeof *expected);
    float *out = test_take(N * s.hidden, sizeof *out);
    for (int k = 0; k < 4; k++) {
        s.seq.len = 0;
        for (int32_t first = 0, n; first < N; first += n) {
            n = N - first < chunks[k] ? N - first : chunks[k];
            test_sfa_plan(&s.rig, (test_sfa_seq *[]){&s.seq}, &n, 1);
            for (int i = 0; i < N_LAYERS; i++) {
                float *rows = expected + (i * N + first) * s.hidden;
                test_sfa_run(&s.rig, i, s.x[i] + first * s.hidden, k == 0 ? rows : out);
                if (k > 0)
                    test_assert_same_bits(out, rows, n, s.hidden, "shared layers in chunks");
            }
        }
    }
    free(expected);
    free(out);
    stack_close(&s);
}

static void shared_layers_have_no_keys(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("no keys", 3);
    stack s;
    stack_open(&s, 1, &rng);
    for (int i = 0; i < N_LAYERS; i++) {
        const void *key = tamis_sfa_caches_row(s.rig.caches, i, TAMIS_SFA_INDEX_KEY, 1, 0);
        assert_int_equal(key == NULL, is_shared[i]);
        assert_non_null(tamis_sfa_caches_row(s.rig.caches, i, TAMIS_SFA_LATENT, 1, 0));
    }
    /* f32 rows of 72 + 16 values in every layer, 40 more in two of them */
    tamis_sfa_config configs[N_LAYERS];
    tamis_cache_bytes bytes;
    for (int i = 0; i < N_LAYERS; i++)
        configs[i] = s.layers[i].config;
    assert_int_equal(tamis_sfa_caches_measure(configs, N_LAYERS, &s.rig.params, &bytes, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(bytes.per_block, s.rig.params.block_tokens * (5 * 88 + 2 * 40) * 4);
    assert_int_equal(bytes.rings, 0);
    stack_close(&s);
}

static void expect_state(stack *s, int layer, const char *part)
{
    float *out = test_take(N * s->hidden, sizeof *out);
    tamis_error err = {0};
    memset(out, 0x55, (size_t)(N * s->hidden) * sizeof *out);
    assert_int_equal(tamis_sfa_forward(&s->layers[layer], layer, s->rig.plan, s->rig.caches,
                                       s->x[layer], out, s->rig.team, &err),
                     TAMIS_STATUS_STATE);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
    for (size_t i = 0; i < (size_t)(N * s->hidden) * sizeof *out; i++)
        assert_int_equal(((unsigned char *)out)[i], 0x55);
    free(out);
}

/* Nothing is taken from another step, nor from a layer that is not the nearest one. */
static void stale_selections_are_refused(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("stale selections", 4);
    stack s;
    stack_open(&s, 2, &rng);
    float *out = test_take(N * s.hidden, sizeof *out);
    plan_all(&s);
    expect_state(&s, 1, "layer 1: reuse_topk needs the selection of layer 0 in this step");
    test_sfa_run(&s.rig, 0, s.x[0], out);
    test_sfa_run(&s.rig, 1, s.x[1], out);
    expect_state(&s, 4, "layer 4: reuse_topk needs the selection of layer 3");
    test_sfa_run(&s.rig, 3, s.x[3], out);
    test_sfa_run(&s.rig, 4, s.x[4], out);
    expect_state(&s, 1, "layer 1: reuse_topk needs the selection of layer 0");
    s.seq.len = 0;
    plan_all(&s);
    expect_state(&s, 4, "layer 4: reuse_topk needs the selection of layer 3");
    free(out);
    stack_close(&s);
}

static void bad_stacks_are_refused(void **state)
{
    (void)state;
    tamis_sfa_config configs[2] = {test_sfa_odd_config(TEST_SFA_GLM),
                                   test_sfa_odd_config(TEST_SFA_GLM)};
    const tamis_cache_params params = test_sfa_params(N);
    const tamis_plan_params plan_params = tamis_plan_params_default();
    const struct {
        int32_t topk;
        bool is_first_shared;
        const char *part;
    } cases[] = {
        {TOPK, true, "layer 0 reuses a selection, but no earlier layer selects"},
        {TOPK + 1, false,
         "layer 1: reuse_topk with index_topk 9, but the selection before it has 8"},
    };
    for (int i = 0; i < 2; i++) {
        tamis_sfa_caches *caches;
        tamis_sfa_plan *plan;
        uint64_t bytes = 77;
        tamis_error err = {0};
        configs[0].reuse_topk = cases[i].is_first_shared;
        configs[1].reuse_topk = true;
        configs[1].index_topk = cases[i].topk;
        assert_int_equal(tamis_sfa_caches_open(&caches, configs, 2, &params, &err),
                         TAMIS_STATUS_OK);
        assert_int_equal(tamis_sfa_plan_open(&plan, caches, &plan_params, &err),
                         TAMIS_STATUS_INVALID);
        assert_null(plan);
        assert_non_null(strstr(err.text, cases[i].part));
        assert_int_equal(measure_plan(configs, 2, &plan_params, 64, &bytes, &err),
                         TAMIS_STATUS_INVALID);
        assert_int_equal(bytes, 77);
        tamis_sfa_caches_close(&caches);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_layers_use_the_nearest_selection),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(shared_layers_have_no_keys),
        cmocka_unit_test(stale_selections_are_refused),
        cmocka_unit_test(bad_stacks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
