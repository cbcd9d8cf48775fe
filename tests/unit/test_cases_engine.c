/*
 * The cases of docs/cases.md that meet the engine rather than one layer: top-k of odd scores (11),
 * residual streams (23), options and limits (25), dispatch (26), and IndexCache in a whole model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>

#include "kernels/kernels.h"
#include "model/hyper_connection.h"
#include "ops/topk.h"
#include "support/golden.h"
#include "support/engine_run.h"
#include "support/oracle_v4.h"
#include "support/rng.h"
#include "support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLASH "tests/golden/v4-flash-fp8"

/* ---------------------------------------------------------------- 11: top-k */

/* The rule, read off the page: NaN never; larger first; then the lower index; stored ascending. */
static int32_t choose(int32_t *out, const float *scores, int32_t n, int32_t k)
{
    int32_t n_out = 0;
    for (int32_t j = 0; j < n; j++) {
        int32_t n_better = 0;
        for (int32_t i = 0; i < n; i++)
            n_better +=
                !isnan(scores[i]) && (scores[i] > scores[j] || (scores[i] == scores[j] && i < j));
        if (!isnan(scores[j]) && n_better < k)
            out[n_out++] = j;
    }
    for (int32_t i = n_out; i < k; i++)
        out[i] = -1;
    return n_out;
}

static void check_topk(const float *scores, int32_t n, int32_t k)
{
    tamis_candidate items[400];
    int32_t expected[32], seen[32];
    assert_true(tamis_topk_capacity(k) <= 400 && k <= 32);
    const int32_t n_expected = choose(expected, scores, n, k);
    for (tamis_cpu_level level = TAMIS_CPU_PORTABLE; level <= tamis_cpu_level_available(); level++)
        for (int32_t block = 1; block <= 64; block += 21) {
            tamis_topk topk;
            tamis_topk_init(&topk, items, k);
            for (int32_t first = 0; first < n; first += block)
                tamis_topk_push(&topk, tamis_kernels_for(level), scores + first,
                                n - first < block ? n - first : block, first);
            assert_int_equal(tamis_topk_finish(&topk, seen), n_expected);
            assert_memory_equal(seen, expected, (size_t)k * sizeof *seen);
        }
}

static void case_11_topk_of_odd_scores(void **state)
{
    (void)state;
    enum { N = 150 };
    float scores[N];
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f, -NAN};
    for (int32_t k = 1; k <= 32; k += k < 4 ? 1 : 7) {
        for (int32_t i = 0; i < N; i++)
            scores[i] = 0.5f; /* all equal: the lowest indices */
        check_topk(scores, N, k);
        for (int32_t i = 0; i < N; i++)
            scores[i] = i % 2 == 0 ? 0.0f : -0.0f; /* equal too */
        check_topk(scores, N, k);
        for (int32_t i = 0; i < N; i++)
            scores[i] = odd[(unsigned)(i * i + k) % 8];
        check_topk(scores, N, k);
        for (int32_t i = 0; i < N; i++)
            scores[i] = i % 50 == 7 ? (float)-i : NAN; /* three numbers among NaN */
        check_topk(scores, N, k);
        for (int32_t i = 0; i < N; i++)
            scores[i] = NAN;
        check_topk(scores, N, k);
        for (int32_t n = 0; n <= 5; n++) { /* fewer than k */
            for (int32_t i = 0; i < n; i++)
                scores[i] = i == 2 ? -INFINITY : (float)-i;
            check_topk(scores, n, k);
        }
    }
}

/* ---------------------------------------------------------------- 23: residual streams */

/* An asymmetric combine matrix in reference order: X'_b = sum over a of C[a][b] X_a + post_b v. */
static void case_23_combine_reads_rows(void **state)
{
    (void)state;
    enum { M = 4, H = 37 };
    test_rng rng = test_rng_start("case 23", 23);
    const tamis_model_config config = {.hidden_size = H, .hc_mult = M};
    float coefs[(2 + M) * M], streams[M * H], expected[M * H], v[H];
    for (int i = 0; i < (2 + M) * M; i++)
        coefs[i] = test_rng_float(&rng, -1, 1);
    test_rng_fill_normal(&rng, streams, M * H);
    test_rng_fill_normal(&rng, v, H);
    for (int b = 0; b < M; b++)
        for (int i = 0; i < H; i++) {
            double sum = (double)coefs[M + b] * (double)v[i];
            for (int a = 0; a < M; a++)
                sum += (double)coefs[2 * M + a * M + b] * (double)streams[a * H + i];
            expected[b * H + i] = (float)sum;
        }
    tamis_team *team;
    tamis_error err;
    test_must(tamis_team_open(&team, 2, &err), &err, "team");
    const size_t floats = (tamis_hc_scratch_floats(&config) + 15) / 16 * 16;
    float *scratch = aligned_alloc(64, 2 * floats * sizeof *scratch);
    assert_non_null(scratch);
    const tamis_exec exec = {.team = team,
                             .kernels = tamis_kernels_current(),
                             .scratch = scratch,
                             .scratch_floats = floats};
    assert_true(tamis_hc_expand(&exec, &config, coefs, v, streams, 1));
    assert_true(test_max_diff(streams, expected, M * H, NULL) < 1e-6);
    free(scratch);
    tamis_team_close(&team);
}

/*
 * The combine matrix of lopsided logits is the oracle's, and its columns, normalised last, sum to
 * one; rows do as far as 20 iterations bring them.
 */
static void case_23_combine_is_doubly_stochastic(void **state)
{
    (void)state;
    enum { M = 4, N = (2 + M) * M };
    test_rng rng = test_rng_start("case 23, Sinkhorn", 24);
    const tamis_model_config config = {.hidden_size = 1,
                                       .hc_mult = M,
                                       .hc_sinkhorn_iters = 20,
                                       .hc_eps = 1e-6f,
                                       .rms_norm_eps = 1e-6f};
    for (int turn = 0; turn < 50; turn++) {
        float base[N], z[N], scale[3] = {0.7f, 1.3f, 0.4f}, fn[N * M];
        double streams[M], pre[M], post[M], combine[M * M], sum = 0;
        for (int i = 0; i < N; i++)
            base[i] = test_rng_normal(&rng);
        test_rng_fill_normal(&rng, fn, N * M);
        for (int s = 0; s < M; s++) {
            streams[s] = (double)test_rng_normal(&rng);
            sum += streams[s] * streams[s];
        }
        const tamis_hc_weights site = {
            .fn = {.dtype = TAMIS_DTYPE_F32, .rows = N, .cols = M, .data = fn, .row_bytes = M * 4},
            .base = base,
            .scale = scale};
        double *wide = oracle_matrix(&site.fn);
        oracle_hyper_connection(pre, post, combine, streams, wide, &site, &config);
        for (int i = 0; i < N; i++) {
            double dot = 0;
            for (int s = 0; s < M; s++)
                dot += wide[i * M + s] * streams[s];
            z[i] = (float)dot;
        }
        tamis_hc_coefficients(&config, &site, (float)(1 / sqrt(sum / M + 1e-6)), z);
        assert_true(test_max_diff_f64(z, pre, M, NULL) < 1e-5);
        assert_true(test_max_diff_f64(z + M, post, M, NULL) < 1e-5);
        assert_true(test_max_diff_f64(z + 2 * M, combine, M * M, NULL) < 1e-5);
        for (int a = 0; a < M; a++) {
            float row = 0, column = 0;
            for (int b = 0; b < M; b++) {
                row += z[2 * M + a * M + b];
                column += z[2 * M + b * M + a];
            }
            assert_true(fabsf(column - 1) < 1e-4f && fabsf(row - 1) < 1e-2f);
        }
        free(wide);
    }
}

/* ---------------------------------------------------------------- 25: options */

static void refuse(const tamis_model *model, const tamis_session_params *params,
                   tamis_status expected, const char *name, const char *value)
{
    tamis_session *session = NULL;
    tamis_error err = {.text = ""};
    assert_int_equal(tamis_session_open(&session, model, params, &err), expected);
    assert_null(session);
    if (strstr(err.text, name) == NULL || strstr(err.text, value) == NULL)
        fail_msg("message \"%s\" does not name %s and %s", err.text, name, value);
}

static void case_25_options_are_obeyed_or_refused(void **state)
{
    (void)state;
    tamis_model *model;
    tamis_error err;
    test_must(tamis_model_open(&model, FLASH, &err), &err, "open");
    const tamis_session_params good = test_session_params(TAMIS_DTYPE_BF16, 512);
    tamis_session_params p = good;
    p.max_model_len = 1025; /* the folder says 1024 */
    refuse(model, &p, TAMIS_STATUS_LIMIT, "max_model_len", "1025");
    p = good;
    p.block_tokens = 200;
    refuse(model, &p, TAMIS_STATUS_INVALID, "block_tokens", "200");
    p = good;
    p.n_threads = 0;
    refuse(model, &p, TAMIS_STATUS_INVALID, "n_threads", "0");
    p = good;
    p.max_num_batched_tokens = -3;
    refuse(model, &p, TAMIS_STATUS_INVALID, "max_num_batched_tokens", "-3");
    p = good;
    p.kv_cache_dtype = TAMIS_DTYPE_F8_E4M3;
    refuse(model, &p, TAMIS_STATUS_UNSUPPORTED, "kv_cache_dtype", "F8_E4M3");
    /* a step size is obeyed: the session says so, and one token more is refused */
    p = good;
    p.max_num_batched_tokens = 33;
    test_engine engine = {.model = model};
    engine = test_engine_share(&engine, &p);
    assert_int_equal(tamis_session_get_params(engine.session)->max_num_batched_tokens, 33);
    const int32_t ids[34] = {0};
    tamis_feed feed = {.seq = test_seq_new(&engine), .tokens = ids, .n_tokens = 34};
    assert_int_equal(tamis_session_step(engine.session, &feed, 1, &err), TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "33"));
    feed.n_tokens = 33;
    test_must(tamis_session_step(engine.session, &feed, 1, &err), &err, "33 tokens");
    test_engine_close(&engine);
    tamis_model_close(&model);
}

/* A limit one byte under the plan is refused before memory is taken; the plan itself fits. */
static void case_25_memory_limit(void **state)
{
    (void)state;
    tamis_model *model;
    tamis_session *session;
    tamis_memory_plan plan;
    tamis_error err;
    test_must(tamis_model_open(&model, FLASH, &err), &err, "open");
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, 1024);
    test_must(tamis_session_plan_memory(model, &p, &plan, &err), &err, "plan");
    assert_true(plan.total == plan.weights_widened + plan.cache_blocks + plan.cache_rings +
                                  plan.workspace + plan.logits);
    p.memory_limit_bytes = plan.total - 1;
    test_must(tamis_session_plan_memory(model, &p, &plan, &err), &err, "plan above its limit");
    assert_true(plan.total > plan.limit);
    assert_int_equal(tamis_session_open(&session, model, &p, &err), TAMIS_STATUS_NO_MEMORY);
    p.memory_limit_bytes = plan.total;
    test_must(tamis_session_open(&session, model, &p, &err), &err, "open at the limit");
    tamis_session_close(&session);
    tamis_model_close(&model);
}

/* ---------------------------------------------------------------- 26: dispatch */

static void case_26_avx2_kernels_are_chosen(void **state)
{
    (void)state;
    if (tamis_cpu_level_available() < TAMIS_CPU_AVX2)
        skip();
    const tamis_kernels *portable = tamis_kernels_for(TAMIS_CPU_PORTABLE);
    const tamis_kernels *avx2 = tamis_kernels_for(TAMIS_CPU_AVX2);
    assert_string_equal(portable->level_of_name, "portable");
    assert_string_equal(avx2->level_of_name, "avx2");
    /* everything that is hot has a body of its own */
    assert_true(avx2->linear != portable->linear);
    assert_true(avx2->index_score != portable->index_score);
    assert_true(avx2->scan_above != portable->scan_above);
    assert_true(avx2->attn_chunk != portable->attn_chunk);
    assert_true(avx2->pool != portable->pool);
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_PORTABLE), TAMIS_STATUS_OK);
    assert_true(tamis_kernels_current() == portable);
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_AVX2), TAMIS_STATUS_OK);
    assert_true(tamis_kernels_current() == avx2);
}

/* ---------------------------------------------------------------- IndexCache */

/* A copied folder whose second ratio-4 layer reuses the rows of the first, against the oracle. */
static void test_index_cache_in_a_model(void **state)
{
    (void)state;
    enum { N = 200 };
    char *dir = test_temp_dir_make(), *text = test_file_read(FLASH, "config.json", NULL);
    test_dir_copy_files(FLASH, dir);
    json_t *config = json_loads(text, 0, NULL);
    json_object_set_new(config, "use_index_cache", json_true());
    json_object_set_new(config, "index_topk_pattern", json_string("FS"));
    char *changed = json_dumps(config, 0);
    test_file_write_text(dir, "config.json", changed);

    test_golden *golden = test_golden_open(FLASH, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    oracle_v4 model = oracle_v4_open(dir);
    assert_true(model.config.reuse_topk[4] && !model.config.reuse_topk[2]);
    oracle_v4_run run = oracle_v4_forward(&model, ids, N, false);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, N);
    test_engine engine = test_engine_open(dir, &params);
    assert_true(engine.info->has_index_cache);
    const int64_t vocab = engine.info->vocab_size;
    float *whole = test_logits_of(&engine, ids, N, 0), *cut = test_logits_of(&engine, ids, N, 7);
    const double diff = test_max_diff_f64(whole, run.logits, N * vocab, NULL);
    const float *plain = test_golden_f32(golden, "logits", NULL);
    printf("IndexCache: logits within %.2e of the oracle (router margin %.1e), %.2e from the "
           "model without\n",
           diff, run.router_margin, test_max_diff(whole, plain, N * vocab, NULL));
    assert_true(diff < 5e-5);
    assert_true(test_max_diff(whole, plain, N * vocab, NULL) > 1e-2);
    test_assert_same_bits(cut, whole, N, vocab, "IndexCache, chunks of 7");
    free(whole);
    free(cut);
    test_engine_close(&engine);
    oracle_v4_run_free(&run);
    oracle_v4_close(&model);
    free(ids);
    test_golden_close(golden);
    free(changed);
    json_decref(config);
    free(text);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_11_topk_of_odd_scores),
        cmocka_unit_test(case_23_combine_reads_rows),
        cmocka_unit_test(case_23_combine_is_doubly_stochastic),
        cmocka_unit_test(case_25_options_are_obeyed_or_refused),
        cmocka_unit_test(case_25_memory_limit),
        cmocka_unit_test(case_26_avx2_kernels_are_chosen),
        cmocka_unit_test(test_index_cache_in_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
