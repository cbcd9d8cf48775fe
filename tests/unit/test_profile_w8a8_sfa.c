/*
 * V3.2 and GLM folders as Ascend's quantiser writes them (made by tools/quantize out of the golden
 * folders), in profile ascend: every stage bit for bit or within its bound (profile_ref_sfa.h), and
 * the logits from those of the folder before it was quantised no farther than the twin's scales
 * explain (profile_ref_sfa_model.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "quantize/quantize.h"
#include "support/golden_compare.h"
#include "support/mtp_run.h"
#include "support/profile_ref_sfa.h"
#include "support/profile_ref_sfa_model.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE_TOKENS (TEST_IS_SANITIZED ? 24 : 100)
#define PROMPT       16 /* index_topk of the folders */
#define N_PROMPTS    (TEST_IS_SANITIZED ? 1 : 3)
#define N_TRIALS     8

static test_engine open_engine(const char *dir, tamis_profile profile,
                               const tamis_session_params *session)
{
    tamis_model_params params = tamis_model_params_default();
    tamis_error err;
    test_engine model = {.model = NULL};
    params.profile = profile;
    test_must(tamis_model_open_with(&model.model, dir, &params, &err), &err, dir);
    test_engine engine = test_engine_share(&model, session);
    engine.owns_model = true;
    return engine;
}

static void check_stages(const char *name, const char *dir, const int32_t *ids,
                         tamis_dtype kv_cache_dtype)
{
    tamis_session_params params = test_mtp_params(kv_cache_dtype, STAGE_TOKENS, 3);
    params.mtp = strstr(name, "glm52") != NULL;
    test_engine engine = open_engine(dir, TAMIS_PROFILE_ASCEND, &params);
    profile_case c = profile_case_open(name, TAMIS_PROFILE_ASCEND, kv_cache_dtype);
    profile_check_prompt(&c, &engine, ids, STAGE_TOKENS);
    profile_case_close(&c);
    test_engine_close(&engine);
}

/* ---------------------------------------------------------------- logits */

/* A prompt's logits by the engine, and the experts it chose. */
typedef struct engine_run {
    test_capture capture;
    float *logits;
} engine_run;

static engine_run run_prompt(test_engine *engine, const int32_t *ids)
{
    engine_run r = {.capture = test_capture_open(engine->info->num_hidden_layers)};
    tamis_session_set_tap(engine->session, test_capture_tap, &r.capture);
    r.logits = test_logits_of(engine, ids, PROMPT, 0);
    tamis_session_set_tap(engine->session, NULL, NULL);
    return r;
}

static void end_run(engine_run *r)
{
    test_capture_close(&r->capture);
    free(r->logits);
}

static const int32_t *chosen_experts(const void *user, int32_t layer, int32_t token)
{
    return test_capture_i32(user, layer, TAMIS_TAP_EXPERTS, token);
}

/* Root of the mean square of n differences. */
static double rms(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum / (double)n);
}

/* The errors of trials are normal as good as, being sums of very many; a difference of 6 deviations
 * does not come up among some ten thousand, and means that something else is wrong. */
static void check_explained(const char *name, profile_noise_model *m, const int32_t *ids,
                            const engine_run *seen, test_rng *rng, double *ratio)
{
    const int64_t vocab = m->source->config.vocab_size, n = PROMPT * vocab;
    m->user = &seen->capture;
    double *exact = profile_noise_run(m, ids, PROMPT, NULL);
    double *squares = oracle_take(PROMPT, sizeof *squares), *wide = oracle_take(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)seen->logits[i];
    for (int trial = 0; trial < N_TRIALS; trial++) {
        double *noisy = profile_noise_run(m, ids, PROMPT, rng);
        for (int64_t t = 0; t < PROMPT; t++)
            squares[t] += pow(rms(noisy + t * vocab, exact + t * vocab, vocab), 2) / N_TRIALS;
        free(noisy);
    }
    double explained = 0;
    for (int64_t t = 0; t < PROMPT; t++) {
        const double deviation = sqrt(squares[t]);
        explained += squares[t] / PROMPT;
        for (int64_t i = t * vocab; i < (t + 1) * vocab; i++)
            if (!(fabs(wide[i] - exact[i]) <= 6 * deviation))
                fail_msg("%s: position %lld, id %lld: logit %.6g, unquantised %.6g, 6 deviations "
                         "are %.3g",
                         name, (long long)t, (long long)(i - t * vocab), wide[i], exact[i],
                         6 * deviation);
    }
    *ratio = rms(wide, exact, n) / sqrt(explained);
    printf("%s: logits %.3g from the unquantised ones, %.3g explained\n", name, rms(wide, exact, n),
           sqrt(explained));
    free(exact);
    free(squares);
    free(wide);
}

/* The double-precision model is the engine's in profile exact when nothing is rounded. */
static void check_unrounded(profile_noise_model *m, const char *dir, const int32_t *ids)
{
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, PROMPT);
    test_engine engine = open_engine(dir, TAMIS_PROFILE_EXACT, &params);
    engine_run exact = run_prompt(&engine, ids);
    m->user = &exact.capture;
    double *logits = profile_noise_run(m, ids, PROMPT, NULL);
    const double diff =
        test_max_diff_f64(exact.logits, logits, PROMPT * (int64_t)engine.info->vocab_size, NULL);
    if (!(diff <= 2e-4)) /* tests/golden/README-sfa.md */
        fail_msg("%s: profile exact is %.3g from the double-precision model", dir, diff);
    free(logits);
    end_run(&exact);
    test_engine_close(&engine);
}

static void check_logits(const char *name, const char *source_dir, const char *twin_dir,
                         const int32_t *ids)
{
    test_rng rng = test_rng_start(name, 81);
    oracle_v32 source = oracle_v32_open(source_dir), twin = oracle_v32_open(twin_dir);
    profile_noise_model m = {.source = &source, .twin = &twin, .experts = chosen_experts};
    check_unrounded(&m, source_dir, ids);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_BF16, PROMPT);
    test_engine engine = open_engine(twin_dir, TAMIS_PROFILE_ASCEND, &params);
    double ratio, mean = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        engine_run seen = run_prompt(&engine, ids + i * PROMPT);
        check_explained(name, &m, ids + i * PROMPT, &seen, &rng, &ratio);
        mean += ratio / N_PROMPTS;
        end_run(&seen);
    }
    if (!(mean < 1.2 && mean > 0.75)) /* seen: 0.93 to 0.97 */
        fail_msg("%s: the logits' error is %.3g of what the scales explain", name, mean);
    test_engine_close(&engine);
    oracle_v32_close(&source);
    oracle_v32_close(&twin);
}

/* ---------------------------------------------------------------- cases */

static void check_twin(const char *source_dir, const char *what, tamis_quant_scheme attention,
                       tamis_quant_scheme experts, tamis_quant_scheme others)
{
    char name[128], *dir = test_temp_dir_make(), *twin_dir = test_path(dir, "twin");
    tamis_quantize_report report;
    tamis_error err;
    const tamis_quantize_params params = {.source = source_dir,
                                          .output = twin_dir,
                                          .attention = attention,
                                          .experts = experts,
                                          .others = others,
                                          .shard_bytes = 1 << 30,
                                          .n_threads = 1};
    test_must(tamis_quantize_folder(&params, &report, &err), &err, "quantize");
    test_golden *golden = test_golden_open(source_dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    snprintf(name, sizeof name, "%s, %s", source_dir, what);
    check_stages(name, twin_dir, ids,
                 experts == TAMIS_SCHEME_W4A8_DYNAMIC ? TAMIS_DTYPE_I8 : TAMIS_DTYPE_BF16);
    check_logits(name, source_dir, twin_dir, ids);
    free(ids);
    test_golden_close(golden);
    free(twin_dir);
    test_temp_dir_remove(dir);
}

static void v32_static(void **state)
{
    (void)state;
    check_twin("tests/golden/v32-bf16", "W8A8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC,
               TAMIS_SCHEME_W8A8);
}
static void v32_dynamic_int4(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* the other cases take the same ways */
        skip();
    check_twin("tests/golden/v32-bf16", "W8A8_DYNAMIC and W4A8", TAMIS_SCHEME_W8A8_DYNAMIC,
               TAMIS_SCHEME_W4A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC);
}
static void glm5_static_int4(void **state)
{
    (void)state;
    check_twin("tests/golden/glm5-bf16", "W8A8 and W4A8", TAMIS_SCHEME_W8A8,
               TAMIS_SCHEME_W4A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC);
}
static void glm52_dynamic(void **state)
{
    (void)state;
    check_twin("tests/golden/glm52-fp8", "W8A8_DYNAMIC", TAMIS_SCHEME_W8A8_DYNAMIC,
               TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC);
}
static void glm52_mix(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* the other cases take the same ways */
        skip();
    check_twin("tests/golden/glm52-fp8", "W8A8_MIX", TAMIS_SCHEME_W8A8_MIX,
               TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_FLOAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v32_static),       cmocka_unit_test(v32_dynamic_int4),
        cmocka_unit_test(glm5_static_int4), cmocka_unit_test(glm52_dynamic),
        cmocka_unit_test(glm52_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
