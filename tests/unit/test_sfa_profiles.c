/*
 * V3.2 and GLM layers in profiles official and ascend: no bit depends on chunks, threads, blocks,
 * batches or CPU level; every stage ends in BF16 values; what a profile does not run is refused by
 * name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/sanitized.h"
#include "unit/int8_weights.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- subjects */

enum { N = TEST_IS_SANITIZED ? 72 : 150 };

typedef enum weight_form {
    WEIGHTS_FLOAT = 0, /* BF16 */
    WEIGHTS_FP8,
    WEIGHTS_INT8,  /* attention as Ascend's quantiser leaves it, one input scale per x */
    WEIGHTS_MIXED, /* every matrix over x wants it in another form */
} weight_form;

typedef struct subject_form {
    tamis_profile profile;
    tamis_dtype kv_cache_dtype;
    test_sfa_family family;
    weight_form weights;
} subject_form;

static const subject_form forms[] = {
    {TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, TEST_SFA_V32, WEIGHTS_FP8},
    {TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, TEST_SFA_GLM, WEIGHTS_FLOAT},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, TEST_SFA_V32, WEIGHTS_INT8},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, TEST_SFA_GLM, WEIGHTS_MIXED},
};
#define N_SUBJECTS (int)(sizeof forms / sizeof *forms)

/* A layer, a prompt, its straight run: one step, one thread. */
typedef struct subject {
    const subject_form *form;
    test_sfa_layer layer;
    float *x, *out; /* [N][hidden_size] */
} subject;
static subject subjects[N_SUBJECTS];

static void quantise_others(test_sfa_layer *layer, test_rng *rng)
{
    const tamis_sfa_config *c = &layer->layer.config;
    tamis_sfa_weights *w = &layer->layer.weights;
    test_owned *owned = &layer->owned;
    w->o_proj = int8_dynamic(owned, c->hidden_size, w->o_proj.cols, rng);
    w->index_wq_b = int8_dynamic(owned, w->index_wq_b.rows, c->q_lora_rank, rng);
}

static void mix_forms(test_sfa_layer *layer, test_rng *rng)
{
    const tamis_sfa_config *c = &layer->layer.config;
    tamis_sfa_weights *w = &layer->layer.weights;
    test_owned *owned = &layer->owned;
    w->kv_a_proj = int8_static(owned, w->kv_a_proj.rows, c->hidden_size, 0.02f, 0, rng);
    w->index_wk = int8_dynamic(owned, c->index_head_dim, c->hidden_size, rng);
    w->index_weights_proj = int8_static(owned, c->index_n_heads, c->hidden_size, 0.05f, 1, rng);
}

static test_sfa_layer make_layer(const subject_form *form, test_rng *rng)
{
    const tamis_sfa_config c = int8_config(form->family);
    const tamis_dtype dtype = form->weights == WEIGHTS_FP8 ? TAMIS_DTYPE_F8_E4M3 : TAMIS_DTYPE_BF16;
    test_sfa_layer layer = test_sfa_layer_random(&c, dtype, rng);
    if (form->weights < WEIGHTS_INT8)
        return layer;
    int8_make_static(&layer, rng);
    quantise_others(&layer, rng);
    if (form->weights == WEIGHTS_MIXED)
        mix_forms(&layer, rng);
    return layer;
}

static int32_t hidden_of(const subject *s)
{
    return s->layer.layer.config.hidden_size;
}

static test_sfa_rig open_rig(const subject *s, int32_t block_tokens, int n_threads)
{
    const tamis_cache_params params =
        int8_params(s->form->profile, s->form->kv_cache_dtype, N, block_tokens);
    test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, n_threads);
    test_sfa_poison(&rig, NAN);
    return rig;
}

static int open_subjects(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("subjects", 41);
    for (int i = 0; i < N_SUBJECTS; i++) {
        subject *s = &subjects[i];
        s->form = &forms[i];
        s->layer = make_layer(s->form, &rng);
        s->x = test_inputs(N, hidden_of(s), &rng);
        s->out = test_take((int64_t)N * hidden_of(s), sizeof *s->out);
        int8_to_bf16(s->x, (int64_t)N * hidden_of(s));
        test_sfa_rig rig = open_rig(s, 64, 1);
        test_sfa_seq seq = test_sfa_seq_open(&rig);
        test_sfa_feed(&rig, &seq, s->x, N, 0, s->out);
        test_sfa_rig_close(&rig);
    }
    return 0;
}

static int close_subjects(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        test_sfa_layer_free(&subjects[i].layer);
        free(subjects[i].x);
        free(subjects[i].out);
    }
    return 0;
}

/* ---------------------------------------------------------------- invariance */

/* The prompt in steps of `chunk`, in blocks of any size and order, is the straight run. */
static void check_run(const subject *s, int32_t block_tokens, int n_threads, int32_t chunk,
                      test_rng *rng, const char *what)
{
    test_sfa_rig rig = open_rig(s, block_tokens, n_threads);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    const int32_t n_blocks = (N + block_tokens - 1) / block_tokens;
    int32_t *order = test_take(rig.params.num_blocks, sizeof *order);
    float *out = test_take((int64_t)N * hidden_of(s), sizeof *out);
    test_rng_permutation(rng, order, rig.params.num_blocks - 1);
    for (int32_t i = 0; i < n_blocks; i++)
        seq.table[i] = 1 + order[i];
    test_sfa_feed(&rig, &seq, s->x, N, chunk, out);
    test_assert_same_bits(out, s->out, N, hidden_of(s), what);
    free(order);
    free(out);
    test_sfa_rig_close(&rig);
}

static void chunks_blocks_and_threads_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("chunks", 42);
    const int32_t chunks[] = {1, 7, 64, 65, N - 1}, blocks[] = {3, 16, 64, 100, 256};
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int k = 0; k < 5; k += TEST_IS_SANITIZED ? 3 : 1)
            check_run(&subjects[i], blocks[k], 1 + k % 4, chunks[(k + i) % 5], &rng,
                      tamis_profile_name(forms[i].profile));
}

static void cpu_levels_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("levels", 43);
    const tamis_cpu_level best = tamis_cpu_level_current();
    for (int level = TEST_IS_SANITIZED ? (int)best : 0; level <= (int)tamis_cpu_level_available();
         level++) {
        assert_int_equal(tamis_cpu_level_set((tamis_cpu_level)level), TAMIS_STATUS_OK);
        for (int i = 0; i < N_SUBJECTS; i++)
            check_run(&subjects[i], 64, 2, 40, &rng, tamis_cpu_level_name((tamis_cpu_level)level));
    }
    assert_int_equal(tamis_cpu_level_set(best), TAMIS_STATUS_OK);
}

/* Two sequences of the prompt, one ahead of the other, side by side in every step. */
static void batches_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = &subjects[i];
        const int64_t hidden = hidden_of(s);
        test_sfa_rig rig = open_rig(s, 16, 3);
        test_sfa_seq a = test_sfa_seq_open(&rig), b = test_sfa_seq_open(&rig);
        float *x = test_take(N * hidden, sizeof *x), *out = test_take(N * hidden, sizeof *out);
        test_sfa_feed(&rig, &a, s->x, N - 40, 0, out);
        for (int32_t step = 0; step < 10; step++) {
            const int32_t counts[] = {4, step};
            const int32_t at_a = a.len, at_b = b.len;
            memcpy(x, s->x + at_a * hidden, (size_t)(4 * hidden) * sizeof *x);
            memcpy(x + 4 * hidden, s->x + at_b * hidden, (size_t)(step * hidden) * sizeof *x);
            test_sfa_plan(&rig, (test_sfa_seq *[]){&a, &b}, counts, 2);
            test_sfa_run(&rig, 0, x, out);
            test_assert_same_bits(out, s->out + at_a * hidden, 4, hidden, "first of two");
            test_assert_same_bits(out + 4 * hidden, s->out + at_b * hidden, step, hidden,
                                  "second of two");
        }
        free(x);
        free(out);
        test_sfa_rig_close(&rig);
    }
}

/* Long lists, many heads, few tokens: threads share a token by heads, not by chunks. */
static void shared_tokens_change_nothing(void **state)
{
    (void)state;
    enum { LONG = TEST_IS_SANITIZED ? 200 : 600 };
    test_rng rng = test_rng_start("shared tokens", 44);
    for (int i = 0; i < (TEST_IS_SANITIZED ? 1 : N_SUBJECTS); i += 2) {
        tamis_sfa_config c = int8_config(TEST_SFA_GLM);
        c.num_heads = 37;
        c.index_topk = LONG - 120;
        test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
        const tamis_cache_params params =
            int8_params(forms[i].profile, forms[i].kv_cache_dtype, LONG, 64);
        float *x = test_inputs(LONG, c.hidden_size, &rng);
        float *out[2] = {test_take(LONG * c.hidden_size, sizeof(float)),
                         test_take(LONG * c.hidden_size, sizeof(float))};
        int8_to_bf16(x, LONG * c.hidden_size);
        for (int k = 0; k < 2; k++) {
            test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, LONG, k == 0 ? 1 : 4);
            test_sfa_seq seq = test_sfa_seq_open(&rig);
            test_sfa_feed(&rig, &seq, x, LONG - 12, 0, out[k]);
            test_sfa_feed(&rig, &seq, x + (LONG - 12) * c.hidden_size, 12, 1 + 2 * k,
                          out[k] + (LONG - 12) * c.hidden_size);
            test_sfa_rig_close(&rig);
        }
        test_assert_same_bits(out[1], out[0], LONG, c.hidden_size, "shared tokens");
        test_sfa_layer_free(&layer);
        free(x);
        free(out[0]);
        free(out[1]);
    }
}

/* ---------------------------------------------------------------- values */

static void assert_bf16(const float *x, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0xffff) != 0)
            fail_msg("%s: value %lld is %.9g, no BF16 value", what, (long long)i, (double)x[i]);
    }
}

static void stages_end_in_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = &subjects[i];
        const tamis_sfa_layer *layer = &s->layer.layer;
        const tamis_sfa_config *c = &layer->config;
        const int32_t n = 20, row = c->kv_lora_rank + c->qk_rope_head_dim;
        test_sfa_rig rig = open_rig(s, 64, 1);
        test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
        tamis_error err;
        test_sfa_plan(&rig, seqs, &n, 1);
        test_must(tamis_sfa_preprocess(layer, 0, rig.plan, rig.caches, s->x, rig.team, &err), &err,
                  "preprocess");
        assert_bf16(tamis_sfa_plan_query(rig.plan), (int64_t)n * c->num_heads * row, "query");
        test_must(tamis_sfa_select(layer, 0, rig.plan, rig.caches, rig.team, &err), &err, "select");
        test_must(tamis_sfa_attend(layer, 0, rig.plan, rig.caches, NULL, 0, NULL, rig.team, &err),
                  &err, "attend");
        for (int32_t t = 0; t < n; t++)
            assert_bf16(tamis_sfa_plan_latent_out(rig.plan, t), c->num_heads * c->kv_lora_rank,
                        "attention");
        assert_bf16(s->out, (int64_t)N * c->hidden_size, "output");
        test_sfa_rig_close(&rig);
    }
}

/* A profile rounds; it does not compute something else: attention over the same rows stays within
 * a few steps of the coarsest numbers on the way (E4M3: 2^-4 of a value) of that of profile exact.
 */
static void check_near_exact(const subject *s, const char *what)
{
    const int32_t n = N, topk = s->layer.layer.config.index_topk;
    const int64_t n_values = (int64_t)N * hidden_of(s);
    const tamis_cache_params params = int8_params(TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F32, N, 64);
    test_sfa_rig rigs[2] = {open_rig(s, 64, 1),
                            test_sfa_rig_open(&s->layer.layer, 1, &params, N, 1)};
    float *out[2] = {test_take(n_values, sizeof(float)), test_take(n_values, sizeof(float))};
    int32_t *lists = test_take((int64_t)n * topk, sizeof *lists);
    double difference = 0, size = 0;
    for (int k = 0; k < 2; k++) {
        test_sfa_seq seq = test_sfa_seq_open(&rigs[k]), *seqs[] = {&seq};
        test_sfa_plan(&rigs[k], seqs, &n, 1);
        test_sfa_run_given(&rigs[k], 0, s->x, k == 0 ? NULL : lists, k == 0 ? 0 : topk, NULL,
                           out[k]);
        if (k == 0)
            memcpy(lists, tamis_sfa_plan_topk(rigs[k].plan),
                   (size_t)n * (size_t)topk * sizeof *lists);
        test_sfa_rig_close(&rigs[k]);
    }
    for (int64_t i = 0; i < n_values; i++) {
        difference += pow((double)out[0][i] - (double)out[1][i], 2);
        size += pow((double)out[1][i], 2);
    }
    print_message("%s: relative difference from exact %.4f\n", what, sqrt(difference / size));
    assert_true(sqrt(difference / size) < 0.1 && difference > 0);
    free(lists);
    free(out[0]);
    free(out[1]);
}

static void profiles_stay_near_exact(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++)
        check_near_exact(&subjects[i], tamis_profile_name(forms[i].profile));
}

/* Lists that a caller brings: its own selection, shuffled with holes, attends to the same rows. */
static void given_lists(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = &subjects[i];
        const int32_t topk = s->layer.layer.config.index_topk, n = N;
        test_sfa_rig rig = open_rig(s, 64, 2);
        test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
        int32_t *lists = test_take((int64_t)n * topk, sizeof *lists);
        float *out = test_take((int64_t)n * hidden_of(s), sizeof *out);
        test_sfa_plan(&rig, seqs, &n, 1);
        test_sfa_run(&rig, 0, s->x, out);
        memcpy(lists, tamis_sfa_plan_topk(rig.plan), (size_t)n * (size_t)topk * sizeof *lists);
        test_sfa_run_given(&rig, 0, s->x, lists, topk, NULL, out);
        test_assert_same_bits(out, s->out, n, hidden_of(s), "given lists");
        free(lists);
        free(out);
        test_sfa_rig_close(&rig);
    }
}

/* ---------------------------------------------------------------- refusals */

static void assert_refused(tamis_status seen, tamis_status expected, const tamis_error *err,
                           const char *const *parts, int n_parts)
{
    if (seen != expected)
        fail_msg("status %s, expected %s", tamis_status_name(seen), tamis_status_name(expected));
    for (int i = 0; i < n_parts; i++)
        if (strstr(err->text, parts[i]) == NULL)
            fail_msg("\"%s\" does not name %s", err->text, parts[i]);
}
#define ASSERT_REFUSED(seen, expected, err, ...)                                                   \
    assert_refused(seen, expected, err, (const char *[]){__VA_ARGS__},                             \
                   (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)))

static tamis_status open_caches(const tamis_sfa_config *c, tamis_profile profile,
                                tamis_dtype kv_cache_dtype, tamis_error *err)
{
    const tamis_cache_params params = int8_params(profile, kv_cache_dtype, 64, 64);
    tamis_sfa_caches *caches = NULL;
    const tamis_status st = tamis_sfa_caches_open(&caches, c, 1, &params, err);
    tamis_sfa_caches_close(&caches);
    return st;
}

static void caches_are_refused_by_name(void **state)
{
    (void)state;
    tamis_sfa_config c = int8_config(TEST_SFA_V32);
    tamis_error err;
    ASSERT_REFUSED(open_caches(&c, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_BF16, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "kv_cache_dtype is BF16", "allowed F8_E4M3",
                   "profile official");
    ASSERT_REFUSED(open_caches(&c, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "kv_cache_dtype is F8_E4M3", "BF16, I8",
                   "profile ascend");
    c.index_head_dim = 40;
    ASSERT_REFUSED(open_caches(&c, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "index_head_dim is 40", "power of two",
                   "official");
    ASSERT_REFUSED(open_caches(&c, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "index_head_dim is 40", "ascend");
    assert_int_equal(open_caches(&c, TAMIS_PROFILE_EXACT, TAMIS_DTYPE_AUTO, &err), TAMIS_STATUS_OK);
    c.index_topk = 0; /* no indexer, no rotation */
    assert_int_equal(open_caches(&c, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, &err),
                     TAMIS_STATUS_OK);
}

/* Runs a token of a layer whose weights were changed; the first operator refuses. */
static tamis_status run_changed(const tamis_sfa_layer *layer, tamis_profile profile,
                                tamis_error *err)
{
    const tamis_cache_params params = int8_params(profile, TAMIS_DTYPE_AUTO, 64, 64);
    test_sfa_rig rig = test_sfa_rig_open(layer, 1, &params, 64, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    const int32_t one = 1;
    float *x = test_take(layer->config.hidden_size, sizeof *x);
    test_sfa_plan(&rig, seqs, &one, 1);
    const tamis_status st = tamis_sfa_preprocess(layer, 0, rig.plan, rig.caches, x, rig.team, err);
    free(x);
    test_sfa_rig_close(&rig);
    return st;
}

static void weights_are_refused_by_name(void **state)
{
    (void)state;
    const tamis_sfa_layer *int8 = &subjects[2].layer.layer;
    tamis_sfa_layer layer = *int8;
    test_rng rng = test_rng_start("weights", 45);
    test_owned owned = {0};
    tamis_error err;
    ASSERT_REFUSED(run_changed(&layer, TAMIS_PROFILE_OFFICIAL, &err), TAMIS_STATUS_UNSUPPORTED,
                   &err, "q_a_proj is I8", "allowed F32, BF16", "profile official");
    layer.weights.kv_b_proj =
        int8_dynamic(&owned, int8->weights.kv_b_proj.rows, int8->config.kv_lora_rank, &rng);
    ASSERT_REFUSED(run_changed(&layer, TAMIS_PROFILE_ASCEND, &err), TAMIS_STATUS_UNSUPPORTED, &err,
                   "kv_b_proj is I8", "profile ascend");
    assert_int_equal(run_changed(int8, TAMIS_PROFILE_ASCEND, &err), TAMIS_STATUS_OK);
    assert_int_equal(run_changed(int8, TAMIS_PROFILE_EXACT, &err), TAMIS_STATUS_OK);
    test_owned_free(&owned);
}

/* A NaN in the input ends in an error, not in numbers. */
static void nan_is_reported(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        const subject *s = &subjects[i];
        test_sfa_rig rig = open_rig(s, 64, 1);
        test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
        const int32_t n = 3;
        float *x = test_take((int64_t)n * hidden_of(s), sizeof *x);
        float *out = test_take((int64_t)n * hidden_of(s), sizeof *out);
        tamis_error err;
        memcpy(x, s->x, (size_t)(n * hidden_of(s)) * sizeof *x);
        x[hidden_of(s) + 1] = NAN;
        test_sfa_plan(&rig, seqs, &n, 1);
        const tamis_status st =
            tamis_sfa_forward(&s->layer.layer, 0, rig.plan, rig.caches, x, out, rig.team, &err);
        ASSERT_REFUSED(st, TAMIS_STATUS_FORMAT, &err, "layer 0", "NaN");
        free(x);
        free(out);
        test_sfa_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_blocks_and_threads_change_nothing),
        cmocka_unit_test(cpu_levels_change_nothing),
        cmocka_unit_test(batches_change_nothing),
        cmocka_unit_test(shared_tokens_change_nothing),
        cmocka_unit_test(stages_end_in_bf16),
        cmocka_unit_test(profiles_stay_near_exact),
        cmocka_unit_test(given_lists),
        cmocka_unit_test(caches_are_refused_by_name),
        cmocka_unit_test(weights_are_refused_by_name),
        cmocka_unit_test(nan_is_reported),
    };
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
