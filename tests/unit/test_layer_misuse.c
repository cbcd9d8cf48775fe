/* Mistakes of an engine author at the layer API are refused by name, before anything is written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/layer_rig.h"

static tamis_status measure_plan(const tamis_dsa_config *layers, int32_t n_layers,
                                 const tamis_plan_params *params, int32_t block_tokens,
                                 uint64_t *bytes, tamis_error *err)
{
    tamis_cache_params caches = tamis_cache_params_default();
    caches.block_tokens = block_tokens;
    return tamis_dsa_plan_measure(layers, n_layers, params, &caches, bytes, err);
}


enum { N_TOKENS = 9, HIDDEN = 37 };

static void expect_status(const tamis_dsa_layer *layer, int32_t layer_idx, test_rig *rig,
                          tamis_dsa_caches *caches, tamis_team *team, tamis_status status,
                          const char *part)
{
    float x[N_TOKENS * HIDDEN] = {0}, out[N_TOKENS * HIDDEN];
    tamis_error err = {0};
    memset(out, 0x55, sizeof out);
    assert_int_equal(tamis_dsa_forward(layer, layer_idx, rig->plan, caches, x, out, team, &err),
                     status);
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(((unsigned char *)out)[i], 0x55);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
}

static void expect_refused(const tamis_dsa_layer *layer, int32_t layer_idx, test_rig *rig,
                           tamis_dsa_caches *caches, tamis_team *team, const char *part)
{
    expect_status(layer, layer_idx, rig, caches, team, TAMIS_STATUS_INVALID, part);
}

static void test_forward(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layer misuse", 1);
    const tamis_dsa_config config = test_odd_config(4);
    assert_int_equal(config.hidden_size, HIDDEN);
    test_layer layer = test_layer_random(&config, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(64);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 64, 2);
    test_rig other = test_rig_open(&layer.layer, 1, &params, 64, 1);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[1] = {&seq};
    test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);

    expect_refused(&layer.layer, 0, &rig, rig.caches, other.team,
                   "the team has 1 threads, the plan was opened for 2");
    expect_refused(&layer.layer, 0, &rig, other.caches, rig.team, "other caches");
    expect_refused(&layer.layer, 1, &rig, rig.caches, rig.team, "layer_idx is 1, allowed 0..0");
    expect_refused(&layer.layer, -1, &rig, rig.caches, rig.team, "layer_idx is -1");
    expect_refused(&layer.layer, 0, &rig, rig.caches, NULL, "team is NULL");
    tamis_dsa_layer bad = layer.layer;
    bad.config.num_heads++;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "config differs");
    bad = layer.layer;
    bad.weights.wq_b.rows--;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "wq_b is [");
    bad = layer.layer;
    bad.weights.wkv.row_bytes = 0;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "wkv has row_bytes 0");
    bad.weights.wkv.row_bytes = INT64_MAX / 2;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "wkv has row_bytes 4611686018427387903");
    bad.weights.wkv.data = NULL;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "wkv has no data");
    bad = layer.layer;
    const float scale = 1;
    bad.weights.wo_b.scale = &scale;
    bad.weights.wo_b.scale_dtype = TAMIS_DTYPE_F32;
    bad.weights.wo_b.block_rows = bad.weights.wo_b.block_cols = 128;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "wo_b has scale_row_bytes 0");
    bad = layer.layer;
    bad.weights.kv_norm = NULL;
    expect_refused(&bad, 0, &rig, rig.caches, rig.team, "kv_norm is missing");

    float *x = test_inputs(N_TOKENS, HIDDEN, &rng), *out = malloc(N_TOKENS * HIDDEN * sizeof *out);
    test_rig_run(&rig, 0, x, out); /* the plan still stands */
    x[5] = NAN;
    test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);
    tamis_error err = {0};
    assert_int_equal(
        tamis_dsa_forward(&layer.layer, 0, rig.plan, rig.caches, x, out, rig.team, &err),
        TAMIS_STATUS_FORMAT);
    assert_non_null(strstr(err.text, "NaN"));
    for (int i = 0; i < N_TOKENS * HIDDEN; i++)
        x[i] = 1e20f;             /* finite, but a row too large for its norm */
    test_rig_poison(&rig, 0.25f); /* the NaN has left rows */
    test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);
    assert_int_equal(
        tamis_dsa_forward(&layer.layer, 0, rig.plan, rig.caches, x, out, rig.team, &err),
        TAMIS_STATUS_FORMAT);
    free(x);
    free(out);
    test_rig_close(&rig);
    test_rig_close(&other);
    test_layer_free(&layer);
}

static void expect_config(const tamis_dsa_config *config, const char *part)
{
    const tamis_cache_params params = tamis_cache_params_default();
    tamis_cache_bytes bytes;
    tamis_error err = {0};
    assert_int_equal(tamis_dsa_caches_measure(config, 1, &params, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
}

static void test_numbers(void **state)
{
    (void)state;
    tamis_dsa_config good = test_odd_config(4), c;
    good.rope = (tamis_rope_config){1e4f, 16, 4096, 32, 1};
    c = good;
    c.rms_norm_eps = INFINITY;
    expect_config(&c, "rms_norm_eps is inf, must be above 0 and finite");
    c = good;
    c.rope.theta = INFINITY;
    expect_config(&c, "theta is inf, must be above 1");
    c = good;
    c.rope.yarn_factor = NAN;
    expect_config(&c, "yarn_factor is nan, must be at least 0");
    c = good;
    c.rope.original_max_position = -1;
    expect_config(&c, "original_max_position is -1, allowed 1..");
    c = good;
    c.rope.beta_fast = 0.5f;
    expect_config(&c, "beta_fast is 0.5, must be at least beta_slow 1");
    c = good;
    c.reuse_topk = true;
    const tamis_plan_params params = tamis_plan_params_default();
    uint64_t bytes;
    tamis_error err = {0};
    assert_int_equal(measure_plan(&c, 1, &params, 256, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "layer 0 reuses a selection, but no earlier layer selects"));
}

/* The two halves of a layer belong together, once per step. */
static void test_halves(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layer halves", 2);
    const tamis_dsa_config config = test_odd_config(4);
    test_layer layer = test_layer_random(&config, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(64);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 64, 1);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[1] = {&seq};
    float *x = test_inputs(N_TOKENS, HIDDEN, &rng), *out = malloc(N_TOKENS * HIDDEN * sizeof *out);
    const tamis_dsa_layer *l = &layer.layer;
    for (int i = 0; i < 3; i++) { /* fresh, planned, after a whole layer */
        tamis_error err = {0};
        if (i > 0)
            test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);
        if (i > 1)
            test_rig_run(&rig, 0, x, out);
        assert_int_equal(tamis_dsa_attend(l, 0, rig.plan, rig.caches, out, rig.team, &err),
                         TAMIS_STATUS_STATE);
        assert_non_null(
            strstr(err.text, i > 0 ? "attend comes after preprocess" : "no step is planned"));
    }
    test_rig_close(&rig);
    test_layer_free(&layer);
    free(x);
    free(out);
}

/* A layer needs a step whose build succeeded; one of no tokens is a step. */
static void test_unplanned(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layer without a plan", 3);
    const tamis_dsa_config config = test_odd_config(4);
    test_layer layer = test_layer_random(&config, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(64);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 64, 1);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[1] = {&seq};
    const tamis_dsa_layer *l = &layer.layer;
    const tamis_batch empty = {.num_reqs = 0, .query_start_loc = (int32_t[]){0}},
                      bad = {.num_reqs = -1};
    expect_status(l, 0, &rig, rig.caches, rig.team, TAMIS_STATUS_STATE, "no step is planned");
    for (int i = 0; i < 3; i++) { /* after a step, an empty one, a dummy */
        tamis_error err = {0};
        if (i == 0)
            test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);
        else if (i == 1)
            test_must(tamis_dsa_plan_build(rig.plan, &empty, &err), &err, "empty step");
        else
            test_must(tamis_dsa_plan_build_dummy(rig.plan, 0, &err), &err, "empty dummy");
        if (i > 0)
            test_rig_run(&rig, 0, NULL, NULL);
        assert_int_equal(i == 0 ? tamis_dsa_plan_build(rig.plan, &bad, &err)
                                : tamis_dsa_plan_build_dummy(rig.plan, -1, &err),
                         TAMIS_STATUS_LIMIT);
        expect_status(l, 0, &rig, rig.caches, rig.team, TAMIS_STATUS_STATE, "no step is planned");
    }
    test_rig_close(&rig);
    test_layer_free(&layer);
}

/* out may begin where x ends, and no earlier. */
static void test_overlap(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layer overlap", 4);
    const tamis_dsa_config config = test_odd_config(4);
    test_layer layer = test_layer_random(&config, TAMIS_DTYPE_F32, &rng);
    const tamis_cache_params params = test_rig_params(64);
    test_rig rig = test_rig_open(&layer.layer, 1, &params, 64, 1);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[1] = {&seq};
    enum { N = N_TOKENS * HIDDEN };
    float *xs = test_inputs(3 * N_TOKENS, HIDDEN, &rng), *x = xs + N;
    test_rig_plan(&rig, seqs, (int32_t[]){N_TOKENS}, 1);
    for (int i = 0; i < 3; i++) {
        tamis_error err = {0};
        float *out = x + (int[]){0, 1 - N, N - 1}[i];
        assert_int_equal(
            tamis_dsa_forward(&layer.layer, 0, rig.plan, rig.caches, x, out, rig.team, &err),
            TAMIS_STATUS_INVALID);
        assert_non_null(strstr(err.text, "out overlaps x"));
    }
    test_rig_run(&rig, 0, x, x + N);
    test_rig_run(&rig, 0, x, x - N);
    free(xs);
    test_rig_close(&rig);
    test_layer_free(&layer);
}

static void test_measure(void **state)
{
    (void)state;
    const tamis_dsa_config config = test_odd_config(128);
    tamis_plan_params params = tamis_plan_params_default();
    uint64_t bytes = 77;
    tamis_error err;
    assert_int_equal(measure_plan(&config, 1, &params, 0, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "block_tokens is 0"));
    assert_int_equal(
        measure_plan(&config, 0, &params, 256, &bytes, &err),
        TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "n_layers is 0"));
    params.n_threads = 0;
    assert_int_equal(
        measure_plan(&config, 1, &params, 256, &bytes, &err),
        TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "n_threads is 0"));
    assert_int_equal(bytes, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_halves),  cmocka_unit_test(test_unplanned),
        cmocka_unit_test(test_overlap), cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
