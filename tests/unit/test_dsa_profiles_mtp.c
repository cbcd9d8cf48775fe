/*
 * The MTP block of the demo model (V4) in the profiles official and ascend: the input of its layer
 * is put together by hand from the hidden streams before it, stage by stage; and the block keeps
 * its bits for any cut and team.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "model/hyper_connection.h"
#include "ops/linear.h"
#include "support/mtp_run.h"
#include "support/rng.h"
#include "support/sanitized.h"

#include <stdlib.h>
#include <string.h>

enum { N = TEST_IS_SANITIZED ? 20 : 75, LEN = 80 };

static test_engine open_engine(tamis_profile profile, int n_threads)
{
    tamis_session_params params = test_mtp_params(TAMIS_DTYPE_AUTO, LEN, N);
    params.n_threads = n_threads;
    return test_engine_open_as("models/demo", profile, &params);
}

static float *take(int64_t n)
{
    float *x = calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* norm, rounded, of n rows of `hidden` values. */
static void norm_rows(const tamis_net *net, const float *in, const float *weight, int64_t n,
                      float *out)
{
    const int64_t hidden = net->config->hidden_size;
    for (int64_t i = 0; i < n; i++)
        net->exec.kernels->rmsnorm(out + i * hidden, in + i * hidden, weight, hidden,
                                   net->config->rms_norm_eps);
    net->exec.kernels->round_bf16(out, n * hidden);
}

/*
 * X_s = bf16(bf16(e_proj . enorm(embedding)) + bf16(h_proj . hnorm(X_s))), collapsed and normed.
 * Uses the network's scratch, between its steps; x [N][hidden].
 */
static void expect_input(tamis_net *net, const float *hidden_streams, const int32_t *next, float *x)
{
    const tamis_mtp_weights *w = &net->weights->mtp;
    const tamis_layer_weights *layer = &net->weights->layers[net->weights->n_layers];
    const int64_t hidden = net->config->hidden_size, m = net->config->hc_mult;
    float *e = take(N * hidden), *v = take(N * hidden), *normed = take(N * m * hidden);
    float *streams = take(N * m * hidden), *coefs = take(N * tamis_hc_num_coefs(net->config));
    for (int64_t t = 0; t < N; t++)
        net->exec.kernels->expand_row(e + t * hidden, &w->embed, next[t]);
    net->exec.kernels->round_bf16(e, N * hidden);
    norm_rows(net, e, w->enorm, N, e);
    norm_rows(net, hidden_streams, w->hnorm, N * m, normed);
    const tamis_linear_job jobs[] = {tamis_linear_full(&w->e_proj, e, v, N),
                                     tamis_linear_full(&w->h_proj, normed, streams, N * m)};
    tamis_linear_run(&net->exec, jobs, 2);
    for (int64_t row = 0; row < N * m; row++)
        net->exec.kernels->add(streams + row * hidden, v + row / m * hidden, hidden);
    net->exec.kernels->round_bf16(streams, N * m * hidden);
    assert_true(tamis_hc_collapse(&net->exec, net->config, &layer->hc_attn, layer->attn_norm,
                                  streams, N, coefs, x));
    free(e);
    free(v);
    free(normed);
    free(streams);
    free(coefs);
}

static void check_input(tamis_profile profile, const int32_t *ids)
{
    test_engine engine = open_engine(profile, 1);
    tamis_net *net = tamis_session_net(engine.session);
    const int32_t n_layers = engine.info->num_hidden_layers, hidden = net->config->hidden_size;
    test_capture capture = test_capture_open(n_layers + 1);
    float *logits = take((int64_t)N * engine.info->vocab_size), *x = take((int64_t)N * hidden);
    const int32_t seq = test_seq_new(&engine);
    tamis_session_set_tap(engine.session, test_capture_tap, &capture);
    test_feed(&engine, seq, ids, N, 0, NULL);
    test_mtp_over_step(&engine, ids + 1, N, NULL, 0, logits);
    expect_input(net, test_capture_f32(&capture, n_layers - 1, TAMIS_TAP_HIDDEN, 0), ids + 1, x);
    test_assert_same_bits(test_capture_f32(&capture, n_layers, TAMIS_TAP_ATTN_IN, 0), x, N, hidden,
                          tamis_profile_name(profile));
    test_capture_close(&capture);
    free(logits);
    free(x);
    test_engine_close(&engine);
}

static float *run_block(tamis_profile profile, const int32_t *ids, int32_t chunk, int n_threads)
{
    test_engine engine = open_engine(profile, n_threads);
    float *logits = take((int64_t)N * engine.info->vocab_size);
    test_mtp_feed(&engine, test_seq_new(&engine), ids, N, chunk, logits);
    test_engine_close(&engine);
    return logits;
}

static void check_cuts(tamis_profile profile, const int32_t *ids)
{
    float *whole = run_block(profile, ids, 0, 1), *seen = run_block(profile, ids, 7, 3);
    test_engine engine = open_engine(profile, 1);
    test_assert_same_bits(seen, whole, N, engine.info->vocab_size, "7 tokens a step, 3 threads");
    test_engine_close(&engine);
    free(whole);
    free(seen);
}

static void test_block(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("MTP block", 20261208);
    int32_t ids[N + 1];
    for (int i = 0; i <= N; i++)
        ids[i] = (int32_t)test_rng_int(&rng, 3, 500);
    for (int p = TAMIS_PROFILE_OFFICIAL; p < TAMIS_NUM_PROFILES; p++) {
        check_input((tamis_profile)p, ids);
        check_cuts((tamis_profile)p, ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
