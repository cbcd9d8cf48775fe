/* The example's way of running a V3.2 or GLM layer gives the engine's bits, for every cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"

#define main example_main
#include "../../examples/sfa_attention.c"
#undef main

enum { N_TOKENS = 150 };

static void compare_layer(const test_engine *e, const test_capture *capture, int32_t layer,
                          tamis_dtype kv_cache_dtype)
{
    const tamis_sfa_layer *weights = &e->model->weights->layers[layer].sfa;
    const int32_t hidden = e->info->hidden_size, cuts[4] = {0, 1, 129, N_TOKENS};
    const size_t n_lse = (size_t)N_TOKENS * (size_t)weights->config.num_heads;
    const float *x = test_capture_f32(capture, layer, TAMIS_TAP_ATTN_IN, 0);
    const float *want = test_capture_f32(capture, layer, TAMIS_TAP_ATTN_OUT, 0);
    float *out = malloc(N_TOKENS * (size_t)hidden * sizeof *out);
    float *lse = malloc(n_lse * sizeof *lse);
    assert_true(out != NULL && lse != NULL);
    for (int i = 0; i < 4; i++) {
        tamis_error err;
        test_must(
            run_layer(weights, kv_cache_dtype, cuts[i], N_TOKENS, x, out, lse, 1 + i % 3, &err),
            &err, "example");
        test_assert_same_bits(out, want, N_TOKENS, hidden, "layer of the example");
    }
    free(out);
    free(lse);
}

/* All layers with an indexer of their own; both types of caches. */
static void compare_model(const char *dir, int32_t n_expected, uint64_t seed)
{
    const tamis_dtype dtypes[2] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16};
    test_rng rng = test_rng_start(dir, seed);
    int32_t ids[N_TOKENS];
    for (int i = 0; i < 2; i++) {
        tamis_session_params params = test_session_params(dtypes[i], N_TOKENS);
        test_engine e = test_engine_open(dir, &params);
        test_capture capture = test_capture_open(e.info->num_hidden_layers);
        int32_t n_compared = 0;
        for (int t = 0; t < N_TOKENS; t++)
            ids[t] = (int32_t)test_rng_int(&rng, 0, e.info->vocab_size - 1);
        tamis_session_set_tap(e.session, test_capture_tap, &capture);
        test_feed(&e, test_seq_new(&e), ids, N_TOKENS, 0, NULL);
        for (int32_t layer = 0; layer < e.info->num_hidden_layers; layer++) {
            if (e.model->weights->layers[layer].sfa.config.reuse_topk)
                continue;
            compare_layer(&e, &capture, layer, dtypes[i]);
            n_compared++;
        }
        assert_int_equal(n_compared, n_expected);
        test_capture_close(&capture);
        test_engine_close(&e);
    }
}

static void the_example_gives_what_the_engine_gives(void **state)
{
    (void)state;
    compare_model(TAMIS_SOURCE_DIR "/tests/golden/v32-bf16", 3, 1);
    compare_model(TAMIS_SOURCE_DIR "/tests/golden/glm52-fp8", 3, 2);
}

static void the_example_runs(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_runs),
        cmocka_unit_test(the_example_gives_what_the_engine_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
