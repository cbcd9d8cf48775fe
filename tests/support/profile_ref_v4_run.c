#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_v4_run.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "engine/session_internal.h"
#include "model/hyper_connection.h"
#include "ops/linear.h"
#include "support/exec.h"
#include "support/mtp_run.h"
#include "support/oracle_math.h"
#include "support/rig_parts.h"
#include "support/sanitized.h"

/* ---------------------------------------------------------------- attention */

uint8_t *pv4_wanted(const tamis_dsa_config *c)
{
    uint8_t *want = pv4_take(PV4_TOKENS, 1);
    const int32_t w = c->sliding_window, step = TEST_IS_SANITIZED ? 41 : 19;
    const int32_t borders[] = {0, w, 64, 128, 256, 4 * c->index_topk};
    for (int32_t t = 0; t < PV4_TOKENS; t++) {
        want[t] = t % step == 3;
        for (size_t b = 0; b < sizeof borders / sizeof *borders; b++)
            want[t] |= t - borders[b] >= -1 && t - borders[b] <= 1;
    }
    return want;
}

/* attn_in and attn_out of every layer, from a prefill. */
static test_capture capture_inputs(const char *dir, tamis_profile profile, tamis_dtype dtype,
                                   const int32_t *ids)
{
    test_engine engine = v4_engine_open(dir, profile, dtype, PV4_TOKENS);
    test_capture capture = test_capture_open(engine.info->num_hidden_layers);
    const int32_t seq = test_seq_new(&engine);
    tamis_session_set_tap(engine.session, test_capture_tap, &capture);
    test_feed(&engine, seq, ids, PV4_TOKENS, 0, NULL);
    test_engine_close(&engine);
    return capture;
}

static void check_layer(pv4_report *report, const v4_folder *folder, tamis_profile profile,
                        tamis_dtype dtype, const test_capture *capture)
{
    const tamis_dsa_layer *layer = &folder->weights->layers[report->layer].dsa;
    const float *x = test_capture_f32(capture, report->layer, TAMIS_TAP_ATTN_IN, 0);
    const float *out = test_capture_f32(capture, report->layer, TAMIS_TAP_ATTN_OUT, 0);
    const int64_t n_out = (int64_t)PV4_TOKENS * layer->config.hidden_size;
    uint8_t *want = pv4_wanted(&layer->config);
    v4_stages s = v4_stages_run(layer, profile, dtype, x, PV4_TOKENS, 0);
    test_assert_same_bits(s.out, out, 1, n_out, "the layer alone and in the model");
    pv4_check_attention(report, layer, profile, x, &s, want);
    v4_stages_free(&s);
    free(want);
}

void pv4_check_folder_attention(const char *label, const char *dir, tamis_profile profile,
                                tamis_dtype kv_cache_dtype, const int32_t *ids)
{
    test_capture capture = capture_inputs(dir, profile, kv_cache_dtype, ids);
    v4_folder folder = v4_folder_open(dir, profile);
    pv4_report report = {.folder = label, .profile = tamis_profile_name(profile)};
    for (; report.layer < folder.config.num_hidden_layers; report.layer++)
        check_layer(&report, &folder, profile, kv_cache_dtype, &capture);
    pv4_report_print(&report);
    assert_true(pv4_report_worst_share(&report) < 0.08);
    v4_folder_close(&folder);
    test_capture_close(&capture);
}

/* ---------------------------------------------------------------- experts, streams, head */

enum { N_MODEL = 40 };

/* One prefill of a folder's prompt, looked into while it runs. */
typedef struct looked_into {
    test_engine engine;
    test_capture capture;
    v4_folder folder;
    pv4_report report;
    tamis_profile profile;
    const int32_t *ids;
    float *logits, *mtp_logits;
    uint8_t want[N_MODEL];
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

/* Runs the prompt and, if there is one, the MTP block behind it; the experts are checked on the
 * way. */
static looked_into look_into(const char *label, const char *dir, tamis_profile profile,
                             const int32_t *ids)
{
    looked_into l = {.profile = profile,
                     .ids = ids,
                     .report = {.folder = label, .profile = tamis_profile_name(profile)}};
    for (int32_t t = 0; t < N_MODEL; t++)
        l.want[t] = t < 3 || t % 4 == 0;
    tamis_session_params params = test_mtp_params(TAMIS_DTYPE_AUTO, N_MODEL, N_MODEL);
    l.folder = v4_folder_open(dir, profile);
    params.mtp = l.folder.weights->n_mtp == 1;
    l.engine = v4_engine_open_with(dir, profile, &params);
    l.capture = test_capture_open(l.engine.info->num_hidden_layers + 1);
    l.logits = test_take((int64_t)N_MODEL * l.engine.info->vocab_size, sizeof *l.logits);
    l.mtp_logits = test_take((int64_t)N_MODEL * l.engine.info->vocab_size, sizeof *l.logits);
    const int32_t seq = test_seq_new(&l.engine);
    tamis_session_set_tap(l.engine.session, look, &l);
    test_feed(&l.engine, seq, l.ids, N_MODEL, 0, l.logits);
    if (params.mtp)
        test_mtp_over_step(&l.engine, l.ids + 1, N_MODEL, NULL, 0, l.mtp_logits);
    tamis_session_set_tap(l.engine.session, NULL, NULL);
    return l;
}

static void look_away(looked_into *l)
{
    test_capture_close(&l->capture);
    v4_folder_close(&l->folder);
    test_engine_close(&l->engine);
    free(l->logits);
    free(l->mtp_logits);
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
    float *coefs = test_take(N_MODEL * n_coefs, sizeof *coefs);
    float *x = test_take(N_MODEL * hidden, sizeof *x);
    float *before = test_take(N_MODEL * width, sizeof *before);
    double *fn = oracle_matrix(&s->hc->fn);
    memcpy(before, streams, (size_t)(N_MODEL * width) * sizeof *before);
    assert_true(tamis_hc_collapse(exec, c, s->hc, s->norm, streams, N_MODEL, coefs, x));
    test_assert_same_bits(x, test_capture_f32(&l->capture, layer, s->in, 0), N_MODEL, hidden,
                          "input of a sublayer");
    assert_true(tamis_hc_expand(exec, c, coefs, v, streams, N_MODEL));
    for (int64_t t = 0; t < N_MODEL; t++) {
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

typedef struct head_weights {
    const tamis_hc_weights *hc;
    const float *norm;
    const tamis_matrix *head;
} head_weights;

static void check_head(looked_into *l, const tamis_exec *exec, const head_weights *w,
                       const float *streams, const float *logits)
{
    const tamis_model_config *c = &l->folder.config;
    const int64_t hidden = c->hidden_size, width = c->hc_mult * hidden;
    float *x = test_take(N_MODEL * hidden, sizeof *x);
    double *fn = oracle_matrix(&w->hc->fn);
    pv4_weight head = pv4_weight_open(w->head);
    int32_t rows[N_MODEL];
    for (int32_t t = 0; t < N_MODEL; t++)
        rows[t] = t;
    assert_true(tamis_hc_head(exec, c, w->hc, w->norm, streams, rows, N_MODEL, x));
    for (int64_t t = 0; t < N_MODEL; t++) {
        if (!l->want[t])
            continue;
        pv4_check_head(&l->report, c, w->hc, fn, w->norm, t, streams + t * width, x + t * hidden);
        pv4_check_logits(&l->report, &head, t, x + t * hidden, logits + t * c->vocab_size);
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
    float *streams = test_take(N_MODEL * m * hidden, sizeof *streams);
    for (int64_t i = 0; i < N_MODEL * m * hidden; i++)
        streams[i] = (float)lowbit_bf16(embed[l->ids[i / (m * hidden)] * hidden + i % hidden]);
    free(embed);
    return streams;
}

/* One layer's two sites: streams become what the engine's are after it. */
static void check_layer_streams(looked_into *l, const tamis_exec *exec, int32_t layer,
                                float *streams)
{
    const tamis_model_config *c = &l->folder.config;
    const tamis_layer_weights *w = &l->folder.weights->layers[layer];
    const site attn = {&w->hc_attn, w->attn_norm, TAMIS_TAP_ATTN_IN, TAMIS_TAP_ATTN_OUT};
    const site ffn = {&w->hc_ffn, w->ffn_norm, TAMIS_TAP_FFN_IN, TAMIS_TAP_FFN_OUT};
    l->report.layer = layer;
    check_site(l, exec, &attn, streams);
    check_site(l, exec, &ffn, streams);
    test_assert_same_bits(streams, test_capture_f32(&l->capture, layer, TAMIS_TAP_HIDDEN, 0),
                          N_MODEL, (int64_t)c->hc_mult * c->hidden_size, "streams");
}

static void norm_rows(const tamis_exec *exec, float *y, const float *x, const float *weight,
                      int64_t n, const tamis_model_config *c)
{
    for (int64_t i = 0; i < n * c->hidden_size; i += c->hidden_size)
        exec->kernels->rmsnorm(y + i, x + i, weight, c->hidden_size, c->rms_norm_eps);
    tamis_exec_round(exec, y, n * c->hidden_size);
}

/*
 * The MTP block's input is overwritten before a tap sees it: made again by the library's operators
 * (the same bits, or the layer's first site does not give the engine's attn_in), and checked.
 */
static void enter_mtp(looked_into *l, const tamis_exec *exec, float *streams)
{
    const tamis_model_config *c = &l->folder.config;
    const tamis_mtp_weights *w = &l->folder.weights->mtp;
    const int64_t hidden = c->hidden_size, m = c->hc_mult, n_rows = N_MODEL * m;
    float *embed = test_take(N_MODEL * hidden, sizeof *embed);
    float *normed = test_take((N_MODEL + n_rows) * hidden, sizeof *normed);
    float *out = test_take((N_MODEL + n_rows) * hidden, sizeof *out);
    double *table = oracle_matrix(&w->embed);
    for (int64_t i = 0; i < N_MODEL * hidden; i++)
        embed[i] = (float)lowbit_bf16(table[l->ids[1 + i / hidden] * hidden + i % hidden]);
    norm_rows(exec, normed, embed, w->enorm, N_MODEL, c);
    norm_rows(exec, normed + N_MODEL * hidden, streams, w->hnorm, n_rows, c);
    const tamis_linear_job jobs[] = {
        tamis_linear_full(&w->e_proj, normed, out, N_MODEL),
        tamis_linear_full(&w->h_proj, normed + N_MODEL * hidden, out + N_MODEL * hidden, n_rows)};
    tamis_linear_run(exec, jobs, 2);
    float *x = out + N_MODEL * hidden;
    for (int64_t row = 0; row < n_rows; row++)
        exec->kernels->add(x + row * hidden, out + row / m * hidden, hidden);
    tamis_exec_round(exec, x, n_rows * hidden);
    for (int64_t t = 0; t < N_MODEL; t++)
        if (l->want[t])
            pv4_check_mtp_input(&l->report, c, w, l->profile, t, embed + t * hidden,
                                streams + t * m * hidden, x + t * m * hidden);
    memcpy(streams, x, (size_t)(n_rows * hidden) * sizeof *streams);
    free(table);
    free(embed);
    free(normed);
    free(out);
}

/* An ordinary layer of ratio 0. */
static void check_mtp_attention(looked_into *l, int32_t layer)
{
    const tamis_dsa_layer *dsa = &l->folder.weights->layers[layer].dsa;
    const float *x = test_capture_f32(&l->capture, layer, TAMIS_TAP_ATTN_IN, 0);
    v4_stages s = v4_stages_run(dsa, l->profile, TAMIS_DTYPE_AUTO, x, N_MODEL, 0);
    test_assert_same_bits(s.out, test_capture_f32(&l->capture, layer, TAMIS_TAP_ATTN_OUT, 0),
                          N_MODEL, dsa->config.hidden_size, "the MTP layer alone and in the model");
    pv4_check_attention(&l->report, dsa, l->profile, x, &s, l->want);
    v4_stages_free(&s);
}

/* The whole block, from the streams after the last layer. */
static void check_mtp(looked_into *l, const tamis_exec *exec, float *streams)
{
    const tamis_mtp_weights *w = &l->folder.weights->mtp;
    const head_weights head = {&w->hc_head, w->norm, &w->head};
    const int32_t layer = l->folder.config.num_hidden_layers;
    enter_mtp(l, exec, streams);
    check_layer_streams(l, exec, layer, streams);
    check_mtp_attention(l, layer);
    check_head(l, exec, &head, streams, l->mtp_logits);
}

static void check_streams(looked_into *l)
{
    const tamis_model_config *c = &l->folder.config;
    const tamis_model_weights *w = l->folder.weights;
    const head_weights head = {&w->hc_head, w->norm, &w->head};
    tamis_exec exec = test_exec_open(1, tamis_cpu_level_current(), tamis_hc_scratch_floats(c));
    exec.profile = l->profile;
    exec.input_bytes = tamis_linear_input_bytes(2, (c->hc_mult + 1) * N_MODEL, c->hidden_size);
    exec.inputs = tamis_mem_alloc(TAMIS_MEM_MISC, exec.input_bytes);
    assert_non_null(exec.inputs);
    float *streams = first_streams(l);
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        check_layer_streams(l, &exec, i, streams);
    check_head(l, &exec, &head, streams, l->logits);
    if (w->n_mtp == 1)
        check_mtp(l, &exec, streams);
    free(streams);
    tamis_mem_free(exec.inputs);
    test_exec_close(&exec);
}

void pv4_check_folder_model(const char *label, const char *dir, tamis_profile profile,
                            const int32_t *ids)
{
    looked_into l = look_into(label, dir, profile, ids);
    check_streams(&l);
    pv4_report_print(&l.report);
    assert_true(pv4_report_worst_share(&l.report) < 0.08);
    look_away(&l);
}
