/*
 * Hyper-connections in the profiles official and ascend: coefficients keep exact's bits, streams
 * and what is collapsed from them are rounded to BF16 once per step. test_hc has exact's numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/hyper_connection.h"
#include "ops/linear.h"
#include "support/exec.h"
#include "support/profile_layer.h"

#include <string.h>

enum { TOKENS = 9, STREAMS = 4, HIDDEN = 300, COEFS = (2 + STREAMS) * STREAMS };

static const tamis_model_config config = {.hidden_size = HIDDEN,
                                          .hc_mult = STREAMS,
                                          .hc_sinkhorn_iters = 20,
                                          .hc_eps = 1e-6f,
                                          .rms_norm_eps = 1e-6f};

typedef struct fixture {
    test_owned owned;
    tamis_hc_weights site, head;
    const float *norm;
    float *streams, *v; /* BF16 values */
    tamis_exec exec;
    void *inputs;
} fixture;

static fixture open_fixture(test_rng *rng)
{
    fixture f = {0};
    const int64_t width = STREAMS * HIDDEN;
    f.site.fn = test_random_matrix(&f.owned, TAMIS_DTYPE_F32, COEFS, width, 0, rng);
    f.site.base = test_random_vector(&f.owned, COEFS, 0, 1, rng);
    f.site.scale = test_random_vector(&f.owned, 3, 0, 1, rng);
    f.head.fn = test_random_matrix(&f.owned, TAMIS_DTYPE_F32, STREAMS, width, 0, rng);
    f.head.base = f.site.base;
    f.head.scale = f.site.scale;
    f.norm = test_random_vector(&f.owned, HIDDEN, 1, 0.3f, rng);
    f.streams = test_bf16_inputs(TOKENS * width, rng);
    f.v = test_bf16_inputs(TOKENS * HIDDEN, rng);
    f.exec = test_exec_open(2, tamis_cpu_level_available(), tamis_hc_scratch_floats(&config));
    f.exec.input_bytes = tamis_linear_input_bytes(1, 0, width);
    f.exec.inputs = f.inputs = aligned_alloc(64, (f.exec.input_bytes + 63) / 64 * 64);
    assert_non_null(f.inputs);
    return f;
}

static void close_fixture(fixture *f)
{
    test_owned_free(&f->owned);
    test_exec_close(&f->exec);
    free(f->streams);
    free(f->v);
    free(f->inputs);
}

static void same_bits(const float *seen, const float *expected, size_t n)
{
    assert_memory_equal(seen, expected, n * sizeof *seen);
}

/* bf16(norm(bf16(sum_s pre_s X_s))) */
static void expect_collapsed(const fixture *f, const float *streams, const float *pre, float *x)
{
    const tamis_kernels *k = f->exec.kernels;
    k->mix(x, pre, streams, HIDDEN, STREAMS, HIDDEN);
    k->round_bf16(x, HIDDEN);
    k->rmsnorm(x, x, f->norm, HIDDEN, config.rms_norm_eps);
    k->round_bf16(x, HIDDEN);
}

static void check_collapse(fixture *f, tamis_profile profile)
{
    float coefs[TOKENS * COEFS], exact_coefs[TOKENS * COEFS], expected[HIDDEN];
    static float x[TOKENS * HIDDEN], exact_x[TOKENS * HIDDEN];
    f->exec.profile = TAMIS_PROFILE_EXACT;
    assert_true(tamis_hc_collapse(&f->exec, &config, &f->site, f->norm, f->streams, TOKENS,
                                  exact_coefs, exact_x));
    f->exec.profile = profile;
    assert_true(
        tamis_hc_collapse(&f->exec, &config, &f->site, f->norm, f->streams, TOKENS, coefs, x));
    same_bits(coefs, exact_coefs, TOKENS * COEFS);
    for (int t = 0; t < TOKENS; t++) {
        expect_collapsed(f, f->streams + t * STREAMS * HIDDEN, coefs + t * COEFS, expected);
        same_bits(x + t * HIDDEN, expected, HIDDEN);
    }
    assert_true(memcmp(x, exact_x, sizeof x) != 0);
}

/* Only the result is rounded, so it is exact's result rounded. */
static void check_expand(fixture *f, tamis_profile profile, test_rng *rng)
{
    const size_t n = TOKENS * STREAMS * HIDDEN;
    float coefs[TOKENS * COEFS];
    float *exact = test_take((int64_t)n, sizeof *exact),
          *seen = test_take((int64_t)n, sizeof *seen);
    for (int i = 0; i < TOKENS * COEFS; i++)
        coefs[i] = test_rng_float(rng, 0, 1);
    memcpy(exact, f->streams, n * sizeof *exact);
    memcpy(seen, f->streams, n * sizeof *seen);
    f->exec.profile = TAMIS_PROFILE_EXACT;
    assert_true(tamis_hc_expand(&f->exec, &config, coefs, f->v, exact, TOKENS));
    f->exec.profile = profile;
    assert_true(tamis_hc_expand(&f->exec, &config, coefs, f->v, seen, TOKENS));
    f->exec.kernels->round_bf16(exact, (int64_t)n);
    same_bits(seen, exact, n);
    free(exact);
    free(seen);
}

/* The head does not hand out its weights of the streams: BF16 values near exact's. */
static void check_head(fixture *f, tamis_profile profile)
{
    const int32_t rows[] = {1, 4, 8};
    float x[3 * HIDDEN], rounded[3 * HIDDEN];
    f->exec.profile = profile;
    assert_true(tamis_hc_head(&f->exec, &config, &f->head, f->norm, f->streams, rows, 3, x));
    memcpy(rounded, x, sizeof x);
    f->exec.kernels->round_bf16(rounded, 3 * HIDDEN);
    same_bits(x, rounded, 3 * HIDDEN);
    f->exec.profile = TAMIS_PROFILE_EXACT;
    assert_true(tamis_hc_head(&f->exec, &config, &f->head, f->norm, f->streams, rows, 3, rounded));
    for (int i = 0; i < 3 * HIDDEN; i++) /* two roundings of 2^-8 each, and a norm that they move */
        assert_true(fabsf(x[i] - rounded[i]) <= 3 * 0x1p-8f * fabsf(rounded[i]) + 1e-6f);
}

static void test_profiles(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("streams", 20261207);
    fixture f = open_fixture(&rng);
    for (int p = TAMIS_PROFILE_OFFICIAL; p < TAMIS_NUM_PROFILES; p++) {
        check_collapse(&f, (tamis_profile)p);
        check_expand(&f, (tamis_profile)p, &rng);
        check_head(&f, (tamis_profile)p);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
