/*
 * V4 layers in the profiles official and ascend: the same bits for any cut, team, batch, order of
 * projections and after a rollback, with every format of weights; results are BF16 values; what a
 * profile does not run is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/dsa/plan.h"
#include "ops/rope_table.h"
#include "support/engine_run.h"
#include "support/profile_layer.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <string.h>

enum { LEN = TEST_IS_SANITIZED ? 140 : 290, HIDDEN = 150, MAX_LAYERS = 2 };

/* Layers in a profile; x and what a straight run makes of it. */
typedef struct fixture {
    tamis_profile profile;
    tamis_dtype kv_cache_dtype;
    test_profile_layer owned[MAX_LAYERS];
    tamis_dsa_layer layers[MAX_LAYERS];
    int32_t n_layers;
    float *x, *whole;
    char name[96];
} fixture;

/* NaN in every row of every cache, the null block's too: nothing may read what nobody wrote. */
static void spoil(test_rig *rig)
{
    const tamis_cache_store *store = &rig->caches->base.store;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        const bool is_ring = cache->desc.life == TAMIS_CACHE_RING;
        for (int32_t b = 0; b < (is_ring ? store->n_slots : store->n_blocks); b++)
            memset(is_ring ? tamis_cache_ring_row(cache, b, 0) : tamis_cache_block_row(cache, b, 0),
                   0xff, (size_t)(cache->desc.rows * cache->row_bytes));
    }
}

static test_rig open_rig(const fixture *f, int n_threads)
{
    tamis_cache_params params = test_rig_params(LEN);
    params.profile = f->profile;
    params.kv_cache_dtype = f->kv_cache_dtype;
    test_rig rig = test_rig_open(f->layers, f->n_layers, &params, LEN, n_threads);
    spoil(&rig);
    return rig;
}

/* The planned step through all layers, each on the output of the one before. */
static void run_layers(test_rig *rig, const float *x, float *out, int32_t n)
{
    float *between = test_take((int64_t)n * HIDDEN, sizeof *between);
    memcpy(between, x, (size_t)n * HIDDEN * sizeof *x);
    for (int32_t i = 0; i < rig->n_layers; i++) {
        test_rig_run(rig, i, between, out);
        memcpy(between, out, (size_t)n * HIDDEN * sizeof *x);
    }
    free(between);
}

static void feed(test_rig *rig, test_rig_seq *seq, const float *x, int32_t n, float *out)
{
    test_rig_plan(rig, &seq, &n, 1);
    run_layers(rig, x, out, n);
}

/* x[0..LEN) in steps of `chunk` tokens. */
static float *run_cut(const fixture *f, int32_t chunk, int n_threads)
{
    test_rig rig = open_rig(f, n_threads);
    test_rig_seq seq = test_rig_seq_open(&rig);
    float *out = test_take(LEN * HIDDEN, sizeof *out);
    for (int32_t first = 0; first < LEN; first += chunk)
        feed(&rig, &seq, f->x + first * HIDDEN, LEN - first < chunk ? LEN - first : chunk,
             out + first * HIDDEN);
    test_rig_close(&rig);
    return out;
}

static fixture open_fixture(tamis_profile profile, tamis_dtype dtype, test_weight_form form,
                            const tamis_dsa_config *configs, int32_t n_layers, test_rng *rng)
{
    fixture f = {.profile = profile, .kv_cache_dtype = dtype, .n_layers = n_layers};
    snprintf(f.name, sizeof f.name, "%s, %s rows, %s weights, ratio %d%s",
             tamis_profile_name(profile), tamis_dtype_name(dtype), test_weight_form_name(form),
             configs[0].compress_ratio, n_layers > 1 ? ", reused" : "");
    for (int32_t i = 0; i < n_layers; i++) {
        f.owned[i] = test_profile_layer_random(&configs[i], form, rng);
        f.layers[i] = f.owned[i].layer;
    }
    f.x = test_bf16_inputs(LEN * HIDDEN, rng);
    f.whole = run_cut(&f, LEN, 1);
    return f;
}

static void close_fixture(fixture *f)
{
    for (int32_t i = 0; i < f->n_layers; i++)
        test_profile_layer_free(&f->owned[i]);
    free(f->x);
    free(f->whole);
}

static void same_as_whole(const fixture *f, const float *seen, int32_t n, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "%s: %s", f->name, what);
    test_assert_same_bits(seen, f->whole, n, HIDDEN, text);
}

/* ---------------------------------------------------------------- properties of a layer */

static void check_cuts(const fixture *f)
{
    static const struct {
        int32_t chunk;
        int n_threads;
        const char *what;
    } cuts[] = {{1, 3, "one token a step, 3 threads"},
                {7, 2, "7 tokens, 2 threads"},
                {129, 1, "129 tokens"}};
    for (int i = 0; i < (TEST_IS_SANITIZED ? 2 : 3); i++) {
        float *seen = run_cut(f, cuts[i].chunk, cuts[i].n_threads);
        same_as_whole(f, seen, LEN, cuts[i].what);
        free(seen);
    }
}

/* Three sequences in common steps of a serial plan: f's x, and others around it. */
static void check_batch(const fixture *f, test_rng *rng)
{
    enum { STEP = 31 };
    test_rig rig = open_rig(f, 2);
    tamis_plan_params plan = rig.plan->params;
    plan.serial = true;
    tamis_error err;
    tamis_dsa_plan_close(&rig.plan);
    test_must(tamis_dsa_plan_open(&rig.plan, rig.caches, &plan, &err), &err, "serial plan");
    test_rig_seq seqs[3], *order[3] = {&seqs[0], &seqs[1], &seqs[2]};
    for (int i = 0; i < 3; i++)
        seqs[i] = test_rig_seq_open(&rig);
    float *x = test_bf16_inputs(3 * STEP * HIDDEN, rng), *out = test_take(3 * STEP * HIDDEN, 4);
    float *seen = test_take(LEN * HIDDEN, sizeof *seen);
    for (int32_t first = 0; first < LEN; first += STEP) {
        const int32_t n = LEN - first < STEP ? LEN - first : STEP, counts[3] = {1, n, n / 2};
        memcpy(x + HIDDEN, f->x + first * HIDDEN, (size_t)n * HIDDEN * sizeof *x);
        test_rig_plan(&rig, order, counts, 3);
        run_layers(&rig, x, out, 1 + n + n / 2);
        memcpy(seen + first * HIDDEN, out + HIDDEN, (size_t)n * HIDDEN * sizeof *x);
    }
    same_as_whole(f, seen, LEN, "in a batch of three, serial plan");
    free(x);
    free(out);
    free(seen);
    test_rig_close(&rig);
}

/* Six tokens of something else are taken back, then the right ones follow. */
static void check_rollback(const fixture *f, test_rng *rng)
{
    enum { AT = 133, N_WRONG = 6 };
    test_rig rig = open_rig(f, 1);
    test_rig_seq seq = test_rig_seq_open(&rig);
    float *wrong = test_bf16_inputs(N_WRONG * HIDDEN, rng);
    float *seen = test_take(LEN * HIDDEN, sizeof *seen);
    feed(&rig, &seq, f->x, AT, seen);
    feed(&rig, &seq, wrong, N_WRONG, seen + AT * HIDDEN);
    seq.len -= N_WRONG;
    feed(&rig, &seq, f->x + AT * HIDDEN, LEN - AT, seen + AT * HIDDEN);
    same_as_whole(f, seen, LEN, "after a rollback");
    free(wrong);
    free(seen);
    test_rig_close(&rig);
}

static void check_bf16_values(const fixture *f)
{
    float *rounded = test_take(LEN * HIDDEN, sizeof *rounded);
    double squares = 0;
    memcpy(rounded, f->whole, LEN * HIDDEN * sizeof *rounded);
    tamis_kernels_current()->round_bf16(rounded, LEN * HIDDEN);
    same_as_whole(f, rounded, LEN, "rounded to BF16");
    for (int32_t i = 0; i < LEN * HIDDEN; i++)
        squares += (double)rounded[i] * (double)rounded[i];
    if (!(squares > 1e-3 * LEN * HIDDEN && squares < 10.0 * LEN * HIDDEN))
        fail_msg("%s: outputs have squares of %g on average", f->name, squares / (LEN * HIDDEN));
    free(rounded);
}

static void check_layers(tamis_profile profile, tamis_dtype dtype, test_weight_form form,
                         const tamis_dsa_config *configs, int32_t n_layers, test_rng *rng)
{
    fixture f = open_fixture(profile, dtype, form, configs, n_layers, rng);
    check_bf16_values(&f);
    check_cuts(&f);
    check_batch(&f, rng);
    check_rollback(&f, rng);
    close_fixture(&f);
}

/* 18 heads are two panels, which threads may share. */
static tamis_dsa_config config_of(int32_t ratio)
{
    tamis_dsa_config config = test_profile_config(ratio);
    config.hidden_size = HIDDEN;
    config.num_heads = 18;
    return config;
}

static void test_official(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("official", 20261201);
    for (int32_t ratio = TEST_IS_SANITIZED ? 4 : 0; ratio <= (TEST_IS_SANITIZED ? 4 : 128);
         ratio = ratio == 0 ? 4 : 32 * ratio) {
        const tamis_dsa_config config = config_of(ratio);
        check_layers(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, TEST_WEIGHTS_FP8, &config, 1, &rng);
    }
    if (TEST_IS_SANITIZED)
        return;
    const tamis_dsa_config config = config_of(4);
    check_layers(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, TEST_WEIGHTS_BF16, &config, 1, &rng);
}

static void test_ascend(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("ascend", 20261202);
    const tamis_dsa_config config = config_of(4);
    for (int form = 0; form < TEST_NUM_WEIGHT_FORMS; form += TEST_IS_SANITIZED ? 3 : 1)
        check_layers(TAMIS_PROFILE_ASCEND, form % 2 == 0 ? TAMIS_DTYPE_AUTO : TAMIS_DTYPE_F8_E4M3,
                     (test_weight_form)form, &config, 1, &rng);
    if (TEST_IS_SANITIZED)
        return;
    const tamis_dsa_config window = config_of(0), heavy = config_of(128);
    check_layers(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, TEST_WEIGHTS_I8, &window, 1, &rng);
    check_layers(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, TEST_WEIGHTS_ALL_STATIC, &heavy, 1,
                 &rng);
}

/* A layer that reuses the selection of the one before: lists, and room for fewer inputs. */
static void test_reused_selection(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("reused selection", 20261203);
    tamis_dsa_config configs[2] = {config_of(4), config_of(4)};
    configs[1].reuse_topk = true;
    check_layers(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, TEST_WEIGHTS_FP8, configs, 2, &rng);
    check_layers(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, TEST_WEIGHTS_ALL_STATIC, configs, 2, &rng);
}

/* One full step of layers in which each pass of projections has the widest inputs in turn, none of
 * them shared: the plan's room for quantised inputs is asserted in linear layers. */
static void test_inputs_fit(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("inputs fit", 20261206);
    enum { N = 8 };
    for (int widest = 0; widest < 4; widest++) {
        tamis_dsa_config config = test_profile_config(4);
        config.hidden_size = widest == 0 ? 2000 : 50;
        config.q_lora_rank = widest == 1 ? 2000 : 50;
        config.head_dim = widest == 2 ? 700 : 16;
        config.o_lora_rank = widest == 3 ? 700 : 16;
        test_profile_layer owned =
            test_profile_layer_random(&config, TEST_WEIGHTS_ALL_STATIC, &rng);
        tamis_cache_params params = test_rig_params(LEN);
        params.profile = TAMIS_PROFILE_ASCEND;
        params.kv_cache_dtype = TAMIS_DTYPE_AUTO;
        test_rig rig = test_rig_open(&owned.layer, 1, &params, N / 2, 1);
        assert_int_equal(rig.plan->params.max_num_batched_tokens, N);
        test_rig_seq a = test_rig_seq_open(&rig), b = test_rig_seq_open(&rig), *seqs[] = {&a, &b};
        const int32_t counts[] = {N / 2, N / 2};
        float *x = test_bf16_inputs((int64_t)N * config.hidden_size, &rng);
        float *out = test_take((int64_t)N * config.hidden_size, sizeof *out);
        test_rig_plan(&rig, seqs, counts, 2);
        test_rig_run(&rig, 0, x, out);
        free(x);
        free(out);
        test_rig_close(&rig);
        test_profile_layer_free(&owned);
    }
}

/* ---------------------------------------------------------------- lists and tables */

/* What the plan tells of a step of one sequence. */
static void test_lists(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("lists", 20261204);
    for (int p = TAMIS_PROFILE_OFFICIAL; p < TAMIS_NUM_PROFILES; p++) {
        const tamis_dsa_config config = config_of(4);
        fixture f =
            open_fixture((tamis_profile)p, TAMIS_DTYPE_AUTO, TEST_WEIGHTS_BF16, &config, 1, &rng);
        test_rig rig = open_rig(&f, 1);
        test_rig_seq seq = test_rig_seq_open(&rig), *seqs[] = {&seq};
        const int32_t n = LEN;
        test_rig_plan(&rig, seqs, &n, 1);
        const tamis_layer_plan_view view = tamis_dsa_plan_layer(rig.plan, 0);
        for (int32_t t = 0; t < n; t++) {
            const int32_t visible = (t + 1) / 4, selected = visible < 11 ? visible : 11;
            const int32_t window = p == TAMIS_PROFILE_OFFICIAL || t >= 70 ? 70 : t + 1;
            assert_int_equal(view.list_len[t], window + selected);
            assert_int_equal(view.index_scores.unit_start[t + 1] - view.index_scores.unit_start[t],
                             p == TAMIS_PROFILE_OFFICIAL || visible > 11 ? (visible + 63) / 64 : 0);
        }
        test_rig_close(&rig);
        close_fixture(&f);
    }
}

/* Every step in f32, so up to two units in the last place off; the first frequencies are exact. */
static void test_frequencies(void **state)
{
    (void)state;
    for (int32_t ratio = 0; ratio <= 4; ratio += 4) {
        const tamis_rope_config rope = test_odd_config(ratio).rope;
        float exact[32], steps[32];
        int n_different = 0;
        tamis_rope_frequencies(exact, 64, &rope);
        tamis_rope_frequencies_f32(steps, 64, &rope);
        assert_true(steps[0] == 1.0f);
        for (int i = 0; i < 32; i++) {
            n_different += steps[i] != exact[i];
            assert_true(fabsf(steps[i] - exact[i]) <= 3 * 0x1p-24f * exact[i] * 2);
        }
        assert_in_range(n_different, 1, 31);
    }
    /* 1 / 10^(4 * 1/32) by hand: 10^0.125 = 1.3335214321633240 -> f32 0x1.5561a0p+0 */
    float steps[32];
    const tamis_rope_config plain = {.theta = 10000, .yarn_factor = 1};
    tamis_rope_frequencies_f32(steps, 64, &plain);
    assert_true(steps[1] == 1.0f / 1.33352148532867431640625f);
}

/* The normed low-rank query holds BF16 values unless wq_b quantises each token's to int8. */
static void test_low_rank_query(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("low-rank query", 20261209);
    const tamis_dsa_config config = config_of(0);
    for (int form = 0; form < TEST_NUM_WEIGHT_FORMS; form++) {
        fixture f = open_fixture(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, (test_weight_form)form,
                                 &config, 1, &rng);
        test_rig rig = open_rig(&f, 1);
        test_rig_seq seq = test_rig_seq_open(&rig), *seqs[] = {&seq};
        const int32_t n = 3, n_values = n * config.q_lora_rank;
        float *rounded = test_take(n_values, sizeof *rounded);
        tamis_error err;
        test_rig_plan(&rig, seqs, &n, 1);
        test_must(tamis_dsa_preprocess(&f.layers[0], 0, rig.plan, rig.caches, f.x, rig.team, &err),
                  &err, "preprocess");
        memcpy(rounded, rig.plan->ws.qa, (size_t)n_values * sizeof *rounded);
        tamis_kernels_current()->round_bf16(rounded, n_values);
        const bool is_bf16 =
            memcmp(rounded, rig.plan->ws.qa, (size_t)n_values * sizeof *rounded) == 0;
        assert_int_equal(is_bf16, form != TEST_WEIGHTS_I8 && form != TEST_WEIGHTS_I4);
        free(rounded);
        test_rig_close(&rig);
        close_fixture(&f);
    }
}

/* ---------------------------------------------------------------- refusals */

static void refused(tamis_status st, tamis_status expected, const tamis_error *err,
                    const char *text)
{
    assert_int_equal(st, expected);
    if (strstr(err->text, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->text, text);
}

static void test_refused_weights(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("refused weights", 20261205);
    const tamis_dsa_config config = config_of(4);
    fixture f =
        open_fixture(TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, TEST_WEIGHTS_FP8, &config, 1, &rng);
    test_profile_layer integers = test_profile_layer_random(&config, TEST_WEIGHTS_I4, &rng);
    const tamis_dsa_weights *w = &integers.layer.weights;
    test_rig rig = open_rig(&f, 1);
    test_rig_seq seq = test_rig_seq_open(&rig), *seqs[] = {&seq};
    const int32_t n = 1;
    float *out = test_take(HIDDEN, sizeof *out);
    tamis_error err;
    test_rig_plan(&rig, seqs, &n, 1);
    tamis_dsa_layer layer = f.layers[0];
    layer.weights.wo_a = w->wo_a;
    refused(tamis_dsa_forward(&layer, 0, rig.plan, rig.caches, f.x, out, rig.team, &err),
            TAMIS_STATUS_UNSUPPORTED, &err, "wo_a is I4, allowed F32, BF16, F16, F8_E4M3, F4_E2M1");
    layer = f.layers[0];
    layer.weights.index_wq_b = w->index_wq_b;
    refused(tamis_dsa_forward(&layer, 0, rig.plan, rig.caches, f.x, out, rig.team, &err),
            TAMIS_STATUS_UNSUPPORTED, &err, "index_wq_b is I4");
    test_rig_run(&rig, 0, f.x, out); /* nothing has happened */
    same_as_whole(&f, out, 1, "after refusals");
    free(out);
    test_rig_close(&rig);
    test_profile_layer_free(&integers);
    close_fixture(&f);
}

/* A NaN in x, or one that a sink brings into the attention, is an error whatever codes hide. */
static void test_nan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("NaN", 20261210);
    const tamis_dsa_config config = config_of(0);
    for (int form = 0; form < TEST_NUM_WEIGHT_FORMS; form++) {
        fixture f = open_fixture(TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, (test_weight_form)form,
                                 &config, 1, &rng);
        const bool is_static = f.layers[0].weights.wo_b.input != NULL;
        float sinks[64], *out = test_take(3 * HIDDEN, sizeof *out);
        for (int in_sink = 0; in_sink < (is_static ? 2 : 1); in_sink++) {
            test_rig rig = open_rig(&f, 1);
            test_rig_seq seq = test_rig_seq_open(&rig), *seqs[] = {&seq};
            const int32_t n = 3;
            tamis_dsa_layer layer = f.layers[0];
            float *x = test_take(3 * HIDDEN, sizeof *x);
            tamis_error err;
            memcpy(x, f.x, 3 * HIDDEN * sizeof *x);
            memcpy(sinks, layer.weights.attn_sink, (size_t)config.num_heads * sizeof *sinks);
            *(in_sink ? &sinks[1] : &x[HIDDEN + 7]) = NAN;
            layer.weights.attn_sink = sinks;
            test_rig_plan(&rig, seqs, &n, 1);
            refused(tamis_dsa_forward(&layer, 0, rig.plan, rig.caches, x, out, rig.team, &err),
                    TAMIS_STATUS_FORMAT, &err, "layer 0: attention met a NaN");
            free(x);
            test_rig_close(&rig);
        }
        free(out);
        close_fixture(&f);
    }
}

static void test_refused_caches(void **state)
{
    (void)state;
    tamis_dsa_config config = config_of(4);
    tamis_cache_params params = test_rig_params(LEN);
    tamis_dsa_caches *caches;
    tamis_cache_bytes bytes;
    tamis_error err;
    params.profile = TAMIS_PROFILE_OFFICIAL; /* with the rig's F32 */
    refused(tamis_dsa_caches_open(&caches, &config, 1, &params, &err), TAMIS_STATUS_UNSUPPORTED,
            &err, "kv_cache_dtype is F32, allowed F8_E4M3 (profile official)");
    params.profile = TAMIS_PROFILE_ASCEND;
    refused(tamis_dsa_caches_measure(&config, 1, &params, &bytes, &err), TAMIS_STATUS_UNSUPPORTED,
            &err, "kv_cache_dtype is F32, allowed BF16, F8_E4M3 (profile ascend)");
    params.kv_cache_dtype = TAMIS_DTYPE_AUTO;
    config.index_head_dim = 40;
    refused(tamis_dsa_caches_open(&caches, &config, 1, &params, &err), TAMIS_STATUS_UNSUPPORTED,
            &err, "index_head_dim is 40, must be a power of two");
    assert_null(caches);
    config.reuse_topk = true; /* has no indexer to rotate */
    test_must(tamis_dsa_caches_open(&caches, &config, 1, &params, &err), &err, "caches");
    tamis_dsa_caches_close(&caches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_official),
        cmocka_unit_test(test_ascend),
        cmocka_unit_test(test_reused_selection),
        cmocka_unit_test(test_inputs_fit),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_low_rank_query),
        cmocka_unit_test(test_refused_weights),
        cmocka_unit_test(test_refused_caches),
        cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
