/* The example's way of running a layer gives the engine's bits, for every kind of layer and cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"

#define main example_main
#include "../../examples/dsa_attention.c"
#undef main

#define MODEL_DIR TAMIS_SOURCE_DIR "/models/demo"
enum { N_TOKENS = 300 };

static void compare_layer(const test_engine *e, const test_capture *capture, int32_t layer,
                          tamis_dtype kv_cache_dtype, const char *what)
{
    const tamis_dsa_layer *weights = &e->model->weights->layers[layer].dsa;
    const int32_t hidden = e->info->hidden_size, cuts[4] = {0, 1, 129, N_TOKENS};
    const float *x = test_capture_f32(capture, layer, TAMIS_TAP_ATTN_IN, 0);
    const float *want = test_capture_f32(capture, layer, TAMIS_TAP_ATTN_OUT, 0);
    float *out = malloc(N_TOKENS * (size_t)hidden * sizeof *out);
    assert_non_null(out);
    for (int i = 0; i < 4; i++) {
        tamis_error err;
        test_must(run_layer(weights, kv_cache_dtype, cuts[i], N_TOKENS, x, out, 1 + i % 3, &err),
                  &err, what);
        test_assert_same_bits(out, want, N_TOKENS, hidden, what);
    }
    free(out);
}

static void the_example_gives_what_the_engine_gives(void **state)
{
    (void)state;
    const tamis_dtype dtypes[2] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16};
    test_rng rng = test_rng_start("the_example_gives_what_the_engine_gives", 51);
    int32_t ids[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)test_rng_int(&rng, 3, 2000);
    for (int i = 0; i < 2; i++) {
        tamis_session_params params = test_session_params(dtypes[i], N_TOKENS);
        test_engine e = test_engine_open(MODEL_DIR, &params);
        test_capture capture = test_capture_open(e.info->num_hidden_layers);
        tamis_session_set_tap(e.session, test_capture_tap, &capture);
        test_feed(&e, test_seq_new(&e), ids, N_TOKENS, 0, NULL);
        compare_layer(&e, &capture, 1, dtypes[i], "window layer");
        compare_layer(&e, &capture, 2, dtypes[i], "layer of ratio 4");
        compare_layer(&e, &capture, 3, dtypes[i], "layer of ratio 128");
        test_capture_close(&capture);
        test_engine_close(&e);
    }
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
