/*
 * The engine with f32 caches against what transformers computed for the golden folders: logits at
 * every position, greedy continuation, and every stage of every layer at the debug positions, so
 * that a fault names its layer and stage. Claim: 5e-5 (tests/golden/README-v4.md).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/dsa/dsa_internal.h"
#include "engine/session_internal.h"
#include "model/v4.h"
#include "support/engine_run.h"
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM 5e-5

typedef struct fixture {
    const char *dir;
    test_golden *golden;
    test_engine engine;
    test_capture capture;
    int32_t *ids, *pos;
    int64_t n, n_pos;
    int32_t seq;
    float *logits; /* [n][vocab_size] of the one-shot prefill */
} fixture;

static fixture fixture_open(const char *dir)
{
    fixture f = {.dir = dir, .golden = test_golden_open(dir, "golden.safetensors")};
    f.ids = test_golden_ids(f.golden, "ids", &f.n);
    f.pos = test_golden_ids(f.golden, "pos", &f.n_pos);
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, (int32_t)f.n + 40);
    f.engine = test_engine_open(dir, &params);
    f.capture = test_capture_open(f.engine.info->num_hidden_layers);
    f.logits = calloc((size_t)f.n * (size_t)f.engine.info->vocab_size, sizeof *f.logits);
    assert_non_null(f.logits);
    f.seq = test_seq_new(&f.engine);
    tamis_session_set_tap(f.engine.session, test_capture_tap, &f.capture);
    test_feed(&f.engine, f.seq, f.ids, (int32_t)f.n, 0, f.logits);
    tamis_session_set_tap(f.engine.session, NULL, NULL);
    return f;
}

static void fixture_close(fixture *f)
{
    free(f->logits);
    free(f->ids);
    free(f->pos);
    test_capture_close(&f->capture);
    test_engine_close(&f->engine);
    test_golden_close(f->golden);
}

/* ---------------------------------------------------------------- stages */

static const struct {
    const char *name;
    tamis_tap_stage stage;
} stages[] = {{"attn_in", TAMIS_TAP_ATTN_IN},
              {"attn_out", TAMIS_TAP_ATTN_OUT},
              {"ffn_in", TAMIS_TAP_FFN_IN},
              {"ffn_out", TAMIS_TAP_FFN_OUT},
              {"hidden", TAMIS_TAP_HIDDEN}};

/* One row of a stage; keeps the largest difference in *worst. */
static void check_row(const fixture *f, int32_t layer, const char *stage, int32_t pos,
                      const float *seen, const float *expected, int64_t width, double *worst)
{
    int64_t at = 0;
    const double diff = test_max_diff(seen, expected, width, &at);
    if (diff > CLAIM)
        fail_msg("%s: layer %d, stage %s, position %d, channel %lld: %.9g, expected %.9g "
                 "(difference %.2e, allowed %.0e)",
                 f->dir, layer, stage, pos, (long long)at, (double)seen[at], (double)expected[at],
                 diff, CLAIM);
    *worst = fmax(*worst, diff);
}

static void check_stages(const fixture *f, int32_t layer, double *worst)
{
    char name[64];
    for (size_t s = 0; s < sizeof stages / sizeof *stages; s++) {
        snprintf(name, sizeof name, "layer.%d.%s", layer, stages[s].name);
        int64_t count;
        const float *golden = test_golden_f32(f->golden, name, &count);
        const int64_t width = count / f->n_pos;
        for (int64_t p = 0; p < f->n_pos; p++)
            check_row(f, layer, stages[s].name, f->pos[p],
                      test_capture_f32(&f->capture, layer, stages[s].stage, f->pos[p]),
                      golden + p * width, width, worst);
    }
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void check_set(const fixture *f, int32_t layer, const char *stage, int32_t pos,
                      const int32_t *seen, const int32_t *expected, int64_t n)
{
    int32_t a[256], b[256];
    assert_true(n <= 256);
    memcpy(a, seen, (size_t)n * sizeof *a);
    memcpy(b, expected, (size_t)n * sizeof *b);
    qsort(a, (size_t)n, sizeof *a, compare_ids);
    qsort(b, (size_t)n, sizeof *b, compare_ids);
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i])
            fail_msg("%s: layer %d, stage %s, position %d: sorted id %lld is %d, expected %d",
                     f->dir, layer, stage, pos, (long long)i, a[i], b[i]);
}

static void check_topk(const fixture *f, int32_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "layer.%d.topk", layer);
    int32_t *golden = test_golden_ids(f->golden, name, NULL);
    const int64_t k = test_golden_dim(f->golden, name, 1);
    for (int64_t p = 0; p < f->n_pos; p++) {
        const int32_t *seen = test_capture_i32(&f->capture, layer, TAMIS_TAP_TOPK, f->pos[p]);
        for (int64_t i = 1; i < k; i++) /* stored ascending, then -1 */
            assert_true(seen[i] > seen[i - 1] || seen[i] == -1);
        check_set(f, layer, "topk", f->pos[p], seen, golden + p * k, k);
    }
    free(golden);
}

/* Experts as sets; the weight of each by its id. */
static void check_experts(const fixture *f, int32_t layer, double *worst)
{
    char ids_name[64], weights_name[64];
    snprintf(ids_name, sizeof ids_name, "layer.%d.experts", layer);
    snprintf(weights_name, sizeof weights_name, "layer.%d.expert_weights", layer);
    int32_t *ids = test_golden_ids(f->golden, ids_name, NULL);
    const float *weights = test_golden_f32(f->golden, weights_name, NULL);
    const int64_t k = test_golden_dim(f->golden, ids_name, 1);
    for (int64_t p = 0; p < f->n_pos; p++) {
        const int32_t *seen = test_capture_i32(&f->capture, layer, TAMIS_TAP_EXPERTS, f->pos[p]);
        const float *seen_weights =
            test_capture_f32(&f->capture, layer, TAMIS_TAP_EXPERT_WEIGHTS, f->pos[p]);
        check_set(f, layer, "experts", f->pos[p], seen, ids + p * k, k);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++)
                if (seen[j] == ids[p * k + i])
                    check_row(f, layer, "expert_weights", f->pos[p], &seen_weights[j],
                              &weights[p * k + i], 1, worst);
    }
    free(ids);
}

/* Every row of a paged cache, read through the sequence's block table. */
static void check_rows(const fixture *f, int32_t layer, const char *stage, tamis_dsa_role role,
                       double *worst)
{
    char name[64];
    snprintf(name, sizeof name, "layer.%d.%s", layer, stage);
    const tamis_dsa_caches *caches = tamis_v4_caches(tamis_session_net(f->engine.session));
    const int32_t per_block = tamis_dsa_caches_rows_per_block(caches, layer, role);
    if (!test_golden_has(f->golden, name)) {
        assert_int_equal(per_block, 0);
        return;
    }
    const float *golden = test_golden_f32(f->golden, name, NULL);
    const int64_t n_rows = test_golden_dim(f->golden, name, 0);
    const int64_t width = test_golden_dim(f->golden, name, 1);
    int32_t n_blocks;
    const int32_t *table = tamis_session_block_table(f->engine.session, f->seq, &n_blocks);
    assert_int_equal(n_rows, f->n / tamis_model_layer_ratio(f->engine.model, layer));
    for (int32_t j = 0; j < n_rows; j++) {
        assert_true(per_block > 0 && j / per_block < n_blocks);
        const float *row =
            tamis_dsa_caches_row(caches, layer, role, table[j / per_block], j % per_block);
        check_row(f, layer, stage, j, row, golden + j * width, width, worst);
    }
}

/* ---------------------------------------------------------------- logits */

static void check_logits(const fixture *f)
{
    const int64_t vocab = f->engine.info->vocab_size;
    int64_t count, at = 0;
    const float *golden = test_golden_f32(f->golden, "logits", &count);
    assert_int_equal(count, f->n * vocab);
    const double diff = test_max_diff(f->logits, golden, count, &at);
    printf("%s: logits within %.2e of golden at %lld positions\n", f->dir, diff, (long long)f->n);
    if (diff > CLAIM)
        fail_msg("%s: logits, position %lld, id %lld: %.9g, expected %.9g (difference %.2e)",
                 f->dir, (long long)(at / vocab), (long long)(at % vocab), (double)f->logits[at],
                 (double)golden[at], diff);
}

static void check_greedy(fixture *f)
{
    const int32_t vocab = f->engine.info->vocab_size;
    int64_t n;
    int32_t *ids = test_golden_ids(f->golden, "greedy_ids", &n);
    const float *golden = test_golden_f32(f->golden, "greedy_logits", NULL);
    float *row = calloc((size_t)vocab, sizeof *row);
    assert_non_null(row);
    int32_t next = test_argmax(f->logits + (f->n - 1) * vocab, vocab);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (next != ids[i])
            fail_msg("%s: greedy id %lld is %d, expected %d", f->dir, (long long)i, next, ids[i]);
        test_feed(&f->engine, f->seq, &next, 1, 1, row);
        check_row(f, -1, "greedy_logits", (int32_t)i, row, golden + i * vocab, vocab, &worst);
        next = test_argmax(row, vocab);
    }
    printf("%s: %lld greedy ids equal, their logits within %.2e\n", f->dir, (long long)n, worst);
    free(row);
    free(ids);
}

static void check_folder(const char *dir)
{
    fixture f = fixture_open(dir);
    double worst = 0, worst_rows = 0;
    for (int32_t layer = 0; layer < f.engine.info->num_hidden_layers; layer++) {
        check_stages(&f, layer, &worst);
        if (tamis_model_layer_ratio(f.engine.model, layer) == 4)
            check_topk(&f, layer);
        check_experts(&f, layer, &worst);
        check_rows(&f, layer, "ckv", TAMIS_DSA_CKV, &worst_rows);
        check_rows(&f, layer, "ikeys", TAMIS_DSA_INDEX_KEY, &worst_rows);
    }
    printf("%s: stages within %.2e at %lld positions, cache rows within %.2e\n", dir, worst,
           (long long)f.n_pos, worst_rows);
    check_logits(&f);
    check_greedy(&f);
    fixture_close(&f);
}

static void test_v4_flash_bf16(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-flash-bf16");
}
static void test_v4_flash_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-flash-fp8");
}
static void test_v4_pro_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-pro-fp8");
}
static void test_v4_official(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-official");
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
