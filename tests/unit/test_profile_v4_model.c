/*
 * V4 around its attention in the profiles official and ascend against the slow reference
 * (support/profile_ref_v4.h): router, experts, hyper-connections, head, of the golden folders, each
 * stage from the engine's own inputs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "model/hyper_connection.h"
#include "ops/linear.h"
#include "support/exec.h"
#include "support/golden.h"
#include "support/oracle_math.h"
#include "support/profile_ref_v4.h"
#include "support/rig_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 40 };

/* One prefill of a folder's prompt, looked into while it runs. */
typedef struct looked_into {
    test_engine engine;
    test_capture capture;
    v4_folder folder;
    pv4_report report;
    tamis_profile profile;
    int32_t *ids;
    float *logits;
    uint8_t want[N_TOKENS];
} looked_into;

/* Between the experts and what comes next, their buffers still stand. */
static void look(void *user, int32_t layer, tamis_tap_stage stage, const void *data, int64_t n,
                 int64_t width)
{
    looked_into *l = user;
    test_capture_tap(&l->capture, layer, stage, data, n, width);
    if (stage != TAMIS_TAP_FFN_OUT)
        return;
    l->report.layer = layer;
    pv4_check_experts(&l->report, &l->folder.config, &l->folder.weights->layers[layer].moe,
                      l->profile, l->ids, &tamis_session_net(l->engine.session)->moe,
                      test_capture_f32(&l->capture, layer, TAMIS_TAP_FFN_IN, 0), data, n, l->want);
}

/* Runs the prompt; the experts are checked on the way. */
static looked_into look_into(const char *dir, tamis_profile profile)
{
    looked_into l = {.profile = profile,
                     .report = {.folder = dir, .profile = tamis_profile_name(profile)}};
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    l.ids = test_golden_ids(golden, "ids", NULL);
    test_golden_close(golden);
    for (int32_t t = 0; t < N_TOKENS; t++)
        l.want[t] = t < 3 || t % 4 == 0;
    l.engine = v4_engine_open(dir, profile, TAMIS_DTYPE_AUTO, N_TOKENS);
    l.folder = v4_folder_open(dir, profile);
    l.capture = test_capture_open(l.engine.info->num_hidden_layers);
    l.logits = test_take((int64_t)N_TOKENS * l.engine.info->vocab_size, sizeof *l.logits);
    const int32_t seq = test_seq_new(&l.engine);
    tamis_session_set_tap(l.engine.session, look, &l);
    test_feed(&l.engine, seq, l.ids, N_TOKENS, 0, l.logits);
    tamis_session_set_tap(l.engine.session, NULL, NULL);
    return l;
}

static void look_away(looked_into *l)
{
    test_capture_close(&l->capture);
    v4_folder_close(&l->folder);
    test_engine_close(&l->engine);
    free(l->logits);
    free(l->ids);
}

/* ---------------------------------------------------------------- hyper-connections and head */

typedef struct site {
    const tamis_hc_weights *hc;
    const float *norm;
    tamis_tap_stage in, out; /* of the sublayer */
} site;

/*
 * The operators that the engine runs, on the engine's own streams: what they leave must be what
 * the engine's next stage saw, bit for bit, and what the reference allows.
 */
static void check_site(looked_into *l, const tamis_exec *exec, const site *s, float *streams)
{
    const tamis_model_config *c = &l->folder.config;
    const int64_t hidden = c->hidden_size, width = c->hc_mult * hidden;
    const int64_t n_coefs = tamis_hc_num_coefs(c);
    const int32_t layer = l->report.layer;
    const float *v = test_capture_f32(&l->capture, layer, s->out, 0);
    float *coefs = test_take(N_TOKENS * n_coefs, sizeof *coefs);
    float *x = test_take(N_TOKENS * hidden, sizeof *x);
    float *before = test_take(N_TOKENS * width, sizeof *before);
    double *fn = oracle_matrix(&s->hc->fn);
    memcpy(before, streams, (size_t)(N_TOKENS * width) * sizeof *before);
    assert_true(tamis_hc_collapse(exec, c, s->hc, s->norm, streams, N_TOKENS, coefs, x));
    test_assert_same_bits(x, test_capture_f32(&l->capture, layer, s->in, 0), N_TOKENS, hidden,
                          "input of a sublayer");
    assert_true(tamis_hc_expand(exec, c, coefs, v, streams, N_TOKENS));
    for (int64_t t = 0; t < N_TOKENS; t++) {
        if (!l->want[t])
            continue;
        pv4_check_collapse(&l->report, c, s->hc, fn, s->norm, t, before + t * width,
                           coefs + t * n_coefs, x + t * hidden);
        pv4_check_expand(&l->report, c, t, before + t * width, coefs + t * n_coefs, v + t * hidden,
                         streams + t * width);
    }
    free(coefs);
    free(x);
    free(before);
    free(fn);
}

static void check_head(looked_into *l, const tamis_exec *exec, const float *streams)
{
    const tamis_model_config *c = &l->folder.config;
    const tamis_model_weights *w = l->folder.weights;
    const int64_t hidden = c->hidden_size, width = c->hc_mult * hidden;
    float *x = test_take(N_TOKENS * hidden, sizeof *x);
    double *fn = oracle_matrix(&w->hc_head.fn);
    pv4_weight head = pv4_weight_open(&w->head);
    int32_t rows[N_TOKENS];
    for (int32_t t = 0; t < N_TOKENS; t++)
        rows[t] = t;
    assert_true(tamis_hc_head(exec, c, &w->hc_head, w->norm, streams, rows, N_TOKENS, x));
    for (int64_t t = 0; t < N_TOKENS; t++) {
        if (!l->want[t])
            continue;
        pv4_check_head(&l->report, c, &w->hc_head, fn, w->norm, t, streams + t * width,
                       x + t * hidden);
        pv4_check_logits(&l->report, &head, t, x + t * hidden, l->logits + t * c->vocab_size);
    }
    pv4_weight_close(&head);
    free(fn);
    free(x);
}

/* Every stream begins as the token's embedding in BF16. */
static float *first_streams(const looked_into *l)
{
    const tamis_model_config *c = &l->folder.config;
    const int64_t hidden = c->hidden_size, m = c->hc_mult;
    double *embed = oracle_matrix(&l->folder.weights->embed);
    float *streams = test_take(N_TOKENS * m * hidden, sizeof *streams);
    for (int64_t i = 0; i < N_TOKENS * m * hidden; i++)
        streams[i] = (float)lowbit_bf16(embed[l->ids[i / (m * hidden)] * hidden + i % hidden]);
    free(embed);
    return streams;
}

static void check_streams(looked_into *l)
{
    const tamis_model_config *c = &l->folder.config;
    tamis_exec exec = test_exec_open(1, tamis_cpu_level_current(), tamis_hc_scratch_floats(c));
    exec.profile = l->profile;
    exec.input_bytes = tamis_linear_input_bytes(1, 0, 0); /* nothing here is quantised */
    exec.inputs = test_take((int64_t)exec.input_bytes, 1);
    float *streams = first_streams(l);
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const tamis_layer_weights *w = &l->folder.weights->layers[i];
        const site attn = {&w->hc_attn, w->attn_norm, TAMIS_TAP_ATTN_IN, TAMIS_TAP_ATTN_OUT};
        const site ffn = {&w->hc_ffn, w->ffn_norm, TAMIS_TAP_FFN_IN, TAMIS_TAP_FFN_OUT};
        l->report.layer = i;
        check_site(l, &exec, &attn, streams);
        check_site(l, &exec, &ffn, streams);
        test_assert_same_bits(streams, test_capture_f32(&l->capture, i, TAMIS_TAP_HIDDEN, 0),
                              N_TOKENS, (int64_t)c->hc_mult * c->hidden_size, "streams");
    }
    check_head(l, &exec, streams);
    free(streams);
    free(exec.inputs);
    test_exec_close(&exec);
}

static void check_profiles(const char *dir)
{
    static const tamis_profile profiles[] = {TAMIS_PROFILE_OFFICIAL, TAMIS_PROFILE_ASCEND};
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        looked_into l = look_into(dir, profiles[i]);
        check_streams(&l);
        pv4_report_print(&l.report);
        assert_true(pv4_report_worst_share(&l.report) < 0.08);
        look_away(&l);
    }
}

static void test_v4_flash_bf16(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-flash-bf16");
}
static void test_v4_flash_fp8(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-flash-fp8");
}
static void test_v4_pro_fp8(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-pro-fp8");
}
static void test_v4_official(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-official");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v4_flash_bf16),
        cmocka_unit_test(test_v4_flash_fp8),
        cmocka_unit_test(test_v4_pro_fp8),
        cmocka_unit_test(test_v4_official),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
