/*
 * IndexCache by parameters: all layers full is no IndexCache, bit for bit; a layer that shares runs
 * no indexer, keeps no index keys and attends to the selection of the nearest layer before it that
 * made one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/property.h"
#include "support/temp_dir.h"

#include "caches/cache_store.h"
#include "engine/session_internal.h"
#include "model/v32.h"
#include "model/v4.h"

#define V4    "tests/golden/v4-flash-fp8" /* indexers in layers 2 and 4 */
#define V32   "tests/golden/v32-fp8"      /* in layers 0, 1, 2 */
#define GLM5  "tests/golden/glm5-bf16"    /* in layers 0 .. 3 */
#define GLM52 "tests/golden/glm52-fp8"    /* FFSSFS, by indexer_types */

enum { LEN = 200 };

static test_engine open_with(const char *dir, int32_t freq, const char *pattern)
{
    tamis_model_params params = tamis_model_params_default();
    const tamis_session_params session = test_session_params(TAMIS_DTYPE_F32, LEN);
    test_engine engine = {.owns_model = true};
    tamis_error err;
    params.index_topk_freq = freq;
    params.index_topk_pattern = pattern;
    test_must(tamis_model_open_with(&engine.model, dir, &params, &err), &err, dir);
    engine.info = tamis_model_get_info(engine.model);
    test_must(tamis_session_open(&engine.session, engine.model, &session, &err), &err, "session");
    return engine;
}

/* Letters of the layers that may share; '-': the others. */
static void check_layers(const test_engine *engine, const char *letters, bool is_approximate)
{
    int32_t n_shared = 0;
    for (int32_t i = 0; letters[i] != '\0'; i++) {
        assert_int_equal(engine->model->config.reuse_topk[i], letters[i] == 'S');
        n_shared += letters[i] == 'S';
    }
    assert_int_equal(strlen(letters), engine->info->num_hidden_layers);
    assert_int_equal(engine->info->num_shared_indexers, n_shared);
    assert_int_equal(engine->info->is_index_cache_approximate, is_approximate);
}

static void check_rule(const char *dir, int32_t freq, const char *pattern, const char *letters,
                       bool is_approximate)
{
    test_engine engine = open_with(dir, freq, pattern);
    check_layers(&engine, letters, is_approximate);
    test_engine_close(&engine);
}

static void test_which_layers_share(void **state)
{
    (void)state;
    check_rule(V4, 0, NULL, "--F-F", false);
    check_rule(V4, 0, "FS", "--F-S", true);
    check_rule(V4, 0, "F", "--F-F", false);
    check_rule(V4, 2, NULL, "--F-F", false); /* the first two select */
    check_rule(V32, 1, NULL, "FFF", false);
    check_rule(V32, 2, NULL, "FFS", true);
    check_rule(V32, 0, "FS", "FSF", true);
    check_rule(GLM5, 3, NULL, "FFSS", true);
    check_rule(GLM52, 0, NULL, "FFSSFS", false);
    check_rule(GLM52, 0, "FFSSFS", "FFSSFS", false);
    check_rule(GLM52, 0, "FSSSSS", "FSSSSS", true);
    check_rule(GLM52, 3, NULL, "FFSSFS", false); /* what its own index_topk_freq says */
}

/* GLM: the config that lets a layer share belongs to a folder without its indexer; the parameters
 * may let any layer share. */
static void test_indexers_where_the_config_shares(void **state)
{
    (void)state;
    static const char full[] = "\"num_hidden_layers\":";
    size_t bytes;
    tamis_model *model = NULL;
    tamis_error err;
    char *dir = test_temp_dir_make(), text[8192];
    test_dir_copy_files(GLM5, dir);
    char *config = test_file_read(dir, "config.json", &bytes), *at = strstr(config, full);
    assert_non_null(at);
    const int n =
        snprintf(text, sizeof text, "%.*s\"index_topk_freq\": 3, \"index_skip_topk_offset\": 2, %s",
                 (int)(at - config), config, at);
    assert_in_range(n, 1, sizeof text - 1);
    test_file_write(dir, "config.json", text, (size_t)n);
    assert_int_equal(tamis_model_open(&model, dir, &err), TAMIS_STATUS_FORMAT);
    assert_non_null(strstr(err.text, "by config.json layer 2 shares"));
    assert_non_null(strstr(err.text, "model.layers.2.self_attn.indexer."));
    check_rule(dir, 3, NULL, "FFSS", false);
    check_rule(dir, 0, "FFFF", "FFFF", false);
    free(config);
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- refusals */

static void check_refused(const char *dir, int32_t freq, const char *pattern, const char *part)
{
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    tamis_error err;
    params.index_topk_freq = freq;
    params.index_topk_pattern = pattern;
    assert_int_equal(tamis_model_open_with(&model, dir, &params, &err), TAMIS_STATUS_INVALID);
    assert_null(model);
    if (strstr(err.text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void test_refusals(void **state)
{
    (void)state;
    check_refused(V32, -1, NULL, "index_topk_freq is -1");
    check_refused(V32, 2, "FFF", "allowed: one of them");
    check_refused(V32, 0, "", "allowed: F and S, F first");
    check_refused(V32, 0, "SFF", "\"SFF\"");
    check_refused(V32, 0, "FfF", "\"FfF\"");
    check_refused(V32, 0, "FFFF", "at most 3");
    check_refused(V4, 0, "FFF", "at most 2");
    check_refused(GLM52, 0, "FFFSFS", "layer 2");
    check_refused(GLM52, 0, "FFSSF", "layer 5"); /* past its end: full */
    check_refused(GLM52, 1, NULL, "index_topk_freq makes layer 2");
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    tamis_error err;
    params.struct_size--;
    assert_int_equal(tamis_model_open_with(&model, V32, &params, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_model_open_with(&model, V32, NULL, &err), TAMIS_STATUS_INVALID);
}

/* ---------------------------------------------------------------- results */

static void check_all_full(const char *dir, const char *pattern)
{
    int32_t *ids = test_prompt(dir);
    test_engine plain = open_with(dir, 0, NULL), full = open_with(dir, 0, pattern);
    const int32_t n = TEST_IS_SANITIZED ? 80 : LEN;
    float *a = test_logits_of(&plain, ids, n, 0), *b = test_logits_of(&full, ids, n, 7);
    test_assert_same_bits(b, a, n, plain.info->vocab_size, dir);
    free(a);
    free(b);
    test_engine_close(&plain);
    test_engine_close(&full);
    free(ids);
}

static void test_all_full_is_no_index_cache(void **state)
{
    (void)state;
    check_all_full(V4, "FF");
    check_all_full(V32, "FFF");
}

/* A selection that a layer has made for itself; tap rows of layers that share repeat it. */
static void check_shared_selection(const char *dir, const char *pattern, int32_t maker,
                                   int32_t sharer)
{
    int32_t *ids = test_prompt(dir);
    test_engine plain = open_with(dir, 0, NULL), shared = open_with(dir, 0, pattern);
    const int32_t n = TEST_IS_SANITIZED ? 80 : LEN, topk = plain.info->index_topk;
    test_capture a = test_capture_open(plain.info->num_hidden_layers);
    test_capture b = test_capture_open(plain.info->num_hidden_layers);
    tamis_session_set_tap(plain.session, test_capture_tap, &a);
    tamis_session_set_tap(shared.session, test_capture_tap, &b);
    float *x = test_logits_of(&plain, ids, n, 16), *y = test_logits_of(&shared, ids, n, 16);
    bool differs = false;
    for (int32_t t = 0; t < n; t++) {
        const size_t bytes = (size_t)topk * sizeof(int32_t);
        const int32_t *made = test_capture_i32(&b, maker, TAMIS_TAP_TOPK, t);
        assert_memory_equal(made, test_capture_i32(&a, maker, TAMIS_TAP_TOPK, t), bytes);
        assert_memory_equal(made, test_capture_i32(&b, sharer, TAMIS_TAP_TOPK, t), bytes);
        differs |= memcmp(made, test_capture_i32(&a, sharer, TAMIS_TAP_TOPK, t), bytes) != 0;
    }
    /* an approximation, and one that reaches the logits */
    assert_true(differs);
    assert_memory_not_equal(x, y, (size_t)n * (size_t)plain.info->vocab_size * sizeof *x);
    free(x);
    free(y);
    test_capture_close(&a);
    test_capture_close(&b);
    test_engine_close(&plain);
    test_engine_close(&shared);
    free(ids);
}

static void test_shared_layers_attend_to_the_earlier_selection(void **state)
{
    (void)state;
    check_shared_selection(V4, "FS", 2, 4);
    check_shared_selection(V32, "FFS", 1, 2);
    check_shared_selection(V32, "FSS", 0, 2);
}

/* Weights of an indexer are there for exactly the layers that select: no other could run one. */
static int32_t num_bound_indexers(const test_engine *engine)
{
    const tamis_model_weights *w = engine->model->weights;
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_layers; i++) {
        const bool is_v4 = engine->model->config.family == TAMIS_FAMILY_DEEPSEEK_V4;
        const void *data = is_v4 ? w->layers[i].dsa.weights.index_wq_b.data
                                 : w->layers[i].sfa.weights.index_wq_b.data;
        n += data != NULL;
        if (engine->model->config.reuse_topk[i])
            assert_null(data);
    }
    return n;
}

/* The paged cache of index keys is missing from a layer that shares, and nothing else is. */
static void check_no_index_keys(const char *dir, const char *pattern)
{
    test_engine plain = open_with(dir, 0, NULL), shared = open_with(dir, 0, pattern);
    const tamis_cache_store *a = tamis_session_net(plain.session)->store;
    const tamis_cache_store *b = tamis_session_net(shared.session)->store;
    const int32_t head_dim = plain.model->config.index_head_dim;
    int32_t keys_a = 0, keys_b = 0;
    for (int32_t i = 0; i < a->n_caches; i++)
        keys_a += a->caches[i].desc.life == TAMIS_CACHE_PAGED &&
                  a->caches[i].desc.format.num_values == head_dim;
    for (int32_t i = 0; i < b->n_caches; i++)
        keys_b += b->caches[i].desc.life == TAMIS_CACHE_PAGED &&
                  b->caches[i].desc.format.num_values == head_dim;
    printf("%s, %s: %d of %d layers keep index keys\n", dir, pattern, keys_b, keys_a);
    assert_int_equal(keys_b, keys_a - shared.info->num_shared_indexers);
    assert_true(b->block_bytes < a->block_bytes);
    assert_int_equal(num_bound_indexers(&plain), keys_a);
    assert_int_equal(num_bound_indexers(&shared), keys_b);
    test_engine_close(&plain);
    test_engine_close(&shared);
}

/* Runs of indexers while 40 tokens are fed in 4 steps. */
static uint64_t num_selections(test_engine *engine)
{
    int32_t ids[40];
    tamis_attn_profile profile = {0};
    tamis_net *net = tamis_session_net(engine->session);
    for (int32_t i = 0; i < 40; i++)
        ids[i] = 3 + 7 * i % 100;
    if (engine->model->config.family == TAMIS_FAMILY_DEEPSEEK_V4)
        tamis_dsa_plan_set_profile(tamis_v4_plan(net), &profile);
    else
        tamis_sfa_plan_set_profile(tamis_v32_plan(net), &profile);
    test_feed(engine, test_seq_new(engine), ids, 40, 10, NULL);
    return profile.n_selections;
}

static void check_selections(const char *dir, const char *pattern, uint64_t n_own)
{
    test_engine engine = open_with(dir, 0, pattern);
    assert_int_equal(num_selections(&engine), 4 * n_own);
    test_engine_close(&engine);
}

static void test_shared_layers_run_no_indexer(void **state)
{
    (void)state;
    check_selections(V4, NULL, 2);
    check_selections(V4, "FS", 1);
    check_selections(V32, NULL, 3);
    check_selections(V32, "FSS", 1);
    check_selections(GLM52, NULL, 3);
}

static void test_shared_layers_have_no_indexer(void **state)
{
    (void)state;
    check_no_index_keys(V4, "FS");
    check_no_index_keys(V32, "FSS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_layers_share),
        cmocka_unit_test(test_indexers_where_the_config_shares),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_all_full_is_no_index_cache),
        cmocka_unit_test(test_shared_layers_attend_to_the_earlier_selection),
        cmocka_unit_test(test_shared_layers_have_no_indexer),
        cmocka_unit_test(test_shared_layers_run_no_indexer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
