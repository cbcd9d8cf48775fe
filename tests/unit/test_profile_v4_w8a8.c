/*
 * V4 folders as Ascend's quantiser writes them (made by tools/quantize out of the golden folders
 * and the demo model), in profile ascend: every stage bit for bit or within its bound
 * (profile_ref_v4.h), the logits no farther from those of the folder before it was quantised than
 * the twin's scales explain (profile_ref_v4_noise.h), the demo model's choices and perplexity.
 *
 *     test_profile_v4_w8a8 all        from the project root: the demo model over all of valid.txt
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "quantize/quantize.h"
#include "support/golden_compare.h"
#include "support/oracle_math.h"
#include "support/profile_ref_v4_noise.h"
#include "support/profile_ref_v4_run.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "tamis/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEMO      "models/demo"
#define PROMPT    32 /* 4 index_topk of the folders: all visible rows are selected */
#define N_PROMPTS (TEST_IS_SANITIZED ? 1 : 2)
#define N_TRIALS  6

/* ---------------------------------------------------------------- twins */

typedef struct twin {
    char *parent, *dir; /* both to be freed; the parent goes with everything in it */
} twin;

static twin twin_make(const char *source, tamis_quant_scheme attention, tamis_quant_scheme experts)
{
    twin t = {.parent = test_temp_dir_make()};
    t.dir = test_path(t.parent, "twin");
    tamis_quantize_report report;
    tamis_error err;
    const tamis_quantize_params params = {.source = source,
                                          .output = t.dir,
                                          .attention = attention,
                                          .experts = experts,
                                          .others = attention,
                                          .shard_bytes = 1 << 30,
                                          .n_threads = 1};
    test_must(tamis_quantize_folder(&params, &report, &err), &err, "quantize");
    return t;
}

static void twin_remove(twin *t)
{
    free(t->dir);
    test_temp_dir_remove(t->parent);
}

/* ---------------------------------------------------------------- logits of a folder's twin */

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

/* Deviation of each position's logits over some runs with errors. */
static double *spread_of(const pv4_noise *m, const int32_t *ids, const double *exact, int64_t vocab,
                         test_rng *rng)
{
    double *squares = oracle_take(PROMPT, sizeof *squares);
    for (int trial = 0; trial < N_TRIALS; trial++) {
        double *noisy = pv4_noise_run(m, ids, PROMPT, rng);
        for (int64_t t = 0; t < PROMPT; t++)
            squares[t] += pow(rms(noisy + t * vocab, exact + t * vocab, vocab), 2) / N_TRIALS;
        free(noisy);
    }
    for (int64_t t = 0; t < PROMPT; t++)
        squares[t] = sqrt(squares[t]);
    return squares;
}

/*
 * The twin's error as a share of what is explained. The errors of trials are sums of very many, as
 * good as normal: a difference of 6 deviations does not come up among some ten thousand.
 */
static double explained_share(const char *name, pv4_noise *m, const int32_t *ids,
                              const engine_run *seen, test_rng *rng)
{
    const int64_t vocab = m->source->config.vocab_size, n = PROMPT * vocab;
    m->user = &seen->capture;
    double *exact = pv4_noise_run(m, ids, PROMPT, NULL), *wide = oracle_take(n, sizeof *wide);
    double *deviation = spread_of(m, ids, exact, vocab, rng), explained = 0;
    for (int64_t i = 0; i < n; i++) {
        wide[i] = (double)seen->logits[i];
        if (!(fabs(wide[i] - exact[i]) <= 6 * deviation[i / vocab]))
            fail_msg("%s: position %lld, id %lld: logit %.6g, unquantised %.6g, 6 deviations are "
                     "%.3g",
                     name, (long long)(i / vocab), (long long)(i % vocab), wide[i], exact[i],
                     6 * deviation[i / vocab]);
    }
    for (int64_t t = 0; t < PROMPT; t++)
        explained += deviation[t] * deviation[t] / PROMPT;
    const double error = rms(wide, exact, n);
    printf("%s: logits %.3g from the unquantised ones, %.3g explained\n", name, error,
           sqrt(explained));
    free(exact);
    free(wide);
    free(deviation);
    return error / sqrt(explained);
}

/* The double-precision model is the engine's in profile exact when nothing is rounded. */
static void check_unrounded(pv4_noise *m, const char *dir, const int32_t *ids)
{
    test_engine engine = v4_engine_open(dir, TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F32, PROMPT);
    engine_run exact = run_prompt(&engine, ids);
    m->user = &exact.capture;
    double *logits = pv4_noise_run(m, ids, PROMPT, NULL);
    const double diff =
        test_max_diff_f64(exact.logits, logits, PROMPT * (int64_t)engine.info->vocab_size, NULL);
    if (!(diff <= 5e-5)) /* tests/golden/README-v4.md */
        fail_msg("%s: profile exact is %.3g from the double-precision model", dir, diff);
    free(logits);
    end_run(&exact);
    test_engine_close(&engine);
}

static void check_logits(const char *name, const char *source_dir, const char *twin_dir,
                         const int32_t *ids)
{
    test_rng rng = test_rng_start(name, 82);
    oracle_v4 source = oracle_v4_open(source_dir), quantised = oracle_v4_open(twin_dir);
    pv4_noise m = {.source = &source, .twin = &quantised, .experts = chosen_experts};
    check_unrounded(&m, source_dir, ids);
    test_engine engine = v4_engine_open(twin_dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, PROMPT);
    double mean = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        engine_run seen = run_prompt(&engine, ids + i * PROMPT);
        mean += explained_share(name, &m, ids + i * PROMPT, &seen, &rng) / N_PROMPTS;
        end_run(&seen);
    }
    if (!(mean < 1.2 && mean > 0.8)) /* seen: 0.93 to 1.03 */
        fail_msg("%s: the logits' error is %.3g of what the scales explain", name, mean);
    test_engine_close(&engine);
    oracle_v4_close(&source);
    oracle_v4_close(&quantised);
}

static void check_twin(const char *source, const char *what, tamis_quant_scheme attention,
                       tamis_quant_scheme experts, tamis_dtype kv_cache_dtype)
{
    char name[128];
    twin t = twin_make(source, attention, experts);
    test_golden *golden = test_golden_open(source, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    snprintf(name, sizeof name, "%s as %s", source, what);
    pv4_check_folder_attention(name, t.dir, TAMIS_PROFILE_ASCEND, kv_cache_dtype, ids);
    pv4_check_folder_model(name, t.dir, TAMIS_PROFILE_ASCEND, ids);
    check_logits(name, source, t.dir, ids);
    free(ids);
    test_golden_close(golden);
    twin_remove(&t);
}

static void flash_static(void **state)
{
    (void)state;
    check_twin("tests/golden/v4-flash-bf16", "W8A8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC,
               TAMIS_DTYPE_BF16);
}
static void flash_dynamic_int4(void **state)
{
    (void)state;
    check_twin("tests/golden/v4-flash-fp8", "W8A8_DYNAMIC and W4A8", TAMIS_SCHEME_W8A8_DYNAMIC,
               TAMIS_SCHEME_W4A8_DYNAMIC, TAMIS_DTYPE_F8_E4M3);
}
static void pro_mix(void **state)
{
    (void)state;
    check_twin("tests/golden/v4-pro-fp8", "W8A8_MIX", TAMIS_SCHEME_W8A8_MIX,
               TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_DTYPE_BF16);
}
static void official_static_int4(void **state)
{
    (void)state;
    check_twin("tests/golden/v4-official", "W8A8 and W4A8", TAMIS_SCHEME_W8A8,
               TAMIS_SCHEME_W4A8_DYNAMIC, TAMIS_DTYPE_BF16);
}

/* ---------------------------------------------------------------- the demo model */

enum { WINDOW = 1024 }; /* tokens predicted behind one beginning-of-text token, as in tamis ppl */

typedef struct text {
    int32_t *ids; /* tamis_ids_free */
    int32_t n, bos;
} text;

static text read_text(void)
{
    size_t n_bytes, n;
    char *bytes = test_file_read(DEMO, "valid.txt", &n_bytes);
    text t = {.ids = NULL};
    tamis_tokenizer *tokenizer;
    tamis_error err;
    test_must(tamis_tokenizer_open(&tokenizer, DEMO, &err), &err, "tokenizer");
    test_must(
        tamis_tokenizer_encode(tokenizer, bytes, n_bytes, TAMIS_ENCODE_PLAIN, &t.ids, &n, &err),
        &err, "encode");
    t.n = (int32_t)n;
    t.bos = tamis_tokenizer_get_info(tokenizer).bos_id;
    tamis_tokenizer_close(&tokenizer);
    free(bytes);
    return t;
}

static double nll_of(const float *logits, int32_t n, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[id];
}

/* A twin against the model it was made of, both fed with the text itself. */
typedef struct agreement {
    int32_t n, n_same;    /* tokens predicted; of them, those where both prefer one id */
    double nll, twin_nll; /* sums */
} agreement;

static void compare_window(agreement *a, test_engine *exact, test_engine *quantised, const text *t,
                           int32_t first)
{
    const int32_t n = t->n - first < WINDOW ? t->n - first : WINDOW;
    const int64_t vocab = exact->info->vocab_size;
    int32_t ids[WINDOW];
    ids[0] = t->bos;
    memcpy(ids + 1, t->ids + first, (size_t)(n - 1) * sizeof *ids);
    float *x = test_logits_of(exact, ids, n, 0), *y = test_logits_of(quantised, ids, n, 0);
    for (int32_t i = 0; i < n; i++) {
        const float *own = x + i * vocab, *other = y + i * vocab;
        a->n_same += test_argmax(own, (int32_t)vocab) == test_argmax(other, (int32_t)vocab);
        a->nll += nll_of(own, (int32_t)vocab, t->ids[first + i]);
        a->twin_nll += nll_of(other, (int32_t)vocab, t->ids[first + i]);
    }
    a->n += n;
    free(x);
    free(y);
}

static void check_demo(const char *what, tamis_quant_scheme attention, tamis_quant_scheme experts,
                       int32_t n_tokens)
{
    text t = read_text();
    twin quantised = twin_make(DEMO, attention, experts);
    test_engine exact = v4_engine_open(DEMO, TAMIS_PROFILE_EXACT, TAMIS_DTYPE_AUTO, WINDOW);
    test_engine engine =
        v4_engine_open(quantised.dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, WINDOW);
    agreement a = {.n = 0};
    t.n = n_tokens < t.n ? n_tokens : t.n;
    for (int32_t first = 0; first < t.n; first += WINDOW)
        compare_window(&a, &exact, &engine, &t, first);
    const double ppl = exp(a.nll / a.n), twin_ppl = exp(a.twin_nll / a.n);
    printf("demo model as %s: %d of %d choices equal (%.2f %%), perplexity %.4f, unquantised "
           "%.4f (%+.3f %%)\n",
           what, a.n_same, a.n, 100.0 * a.n_same / a.n, twin_ppl, ppl, 100 * (twin_ppl / ppl - 1));
    assert_true(a.n_same >= 0.97 * a.n);
    assert_true(fabs(twin_ppl / ppl - 1) < 0.01);
    test_engine_close(&engine);
    test_engine_close(&exact);
    twin_remove(&quantised);
    tamis_ids_free(t.ids);
}

static void demo_static(void **state)
{
    (void)state;
    check_demo("W8A8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC, TEST_IS_SANITIZED ? 128 : 512);
}
static void demo_dynamic(void **state)
{
    (void)state;
    check_demo("W8A8_DYNAMIC", TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC,
               TEST_IS_SANITIZED ? 128 : 512);
}
static void demo_static_all(void **state)
{
    (void)state;
    check_demo("W8A8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC, INT32_MAX);
}
static void demo_dynamic_all(void **state)
{
    (void)state;
    check_demo("W8A8_DYNAMIC", TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC, INT32_MAX);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flash_static), cmocka_unit_test(flash_dynamic_int4),
        cmocka_unit_test(pro_mix),      cmocka_unit_test(official_static_int4),
        cmocka_unit_test(demo_static),  cmocka_unit_test(demo_dynamic),
    };
    const struct CMUnitTest whole_text[] = {
        cmocka_unit_test(demo_static_all),
        cmocka_unit_test(demo_dynamic_all),
    };
    if (argc == 2 && strcmp(argv[1], "all") == 0)
        return cmocka_run_group_tests(whole_text, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
