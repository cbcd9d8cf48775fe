/*
 * What must not change a bit of a V3.2 or GLM layer: how a prompt is cut into steps, what else is
 * in a step, which physical blocks hold the rows, how many threads run, the CPU level, what unowned
 * memory holds, tokens that were rolled back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/sanitized.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One layer, one prompt, its straight run over caches of one type. */
enum { N = TEST_IS_SANITIZED ? 90 : 150 };
typedef struct subject {
    test_sfa_layer layer;
    tamis_dtype kv_cache_dtype;
    float *x;
    test_sfa_result straight;
} subject;

#define N_SUBJECTS 4
#define STRIDE     (TEST_IS_SANITIZED ? 3 : 1) /* sanitizers take the first and the last */
static subject subjects[N_SUBJECTS];           /* V3.2 and GLM, f32 and bf16 caches */

static int open_subjects(void **state)
{
    (void)state;
    const tamis_dtype weights[] = {TAMIS_DTYPE_BF16, TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_F32,
                                   TAMIS_DTYPE_BF16};
    test_rng rng = test_rng_start("subjects", 1);
    for (int i = 0; i < N_SUBJECTS; i++) {
        subject *s = &subjects[i];
        const tamis_sfa_config c = test_sfa_odd_config((test_sfa_family)(i % 2));
        s->layer = test_sfa_layer_random(&c, weights[i], &rng);
        s->kv_cache_dtype = i < 2 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_BF16;
        s->x = test_inputs(N, c.hidden_size, &rng);
        s->straight = test_sfa_straight(&s->layer.layer, s->kv_cache_dtype, s->x, N);
    }
    return 0;
}

static int close_subjects(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i++) {
        test_sfa_layer_free(&subjects[i].layer);
        free(subjects[i].x);
        test_sfa_result_free(&subjects[i].straight);
    }
    return 0;
}

static int32_t hidden_of(const subject *s)
{
    return s->layer.layer.config.hidden_size;
}

static tamis_cache_params params_of(const subject *s, int32_t block_tokens)
{
    tamis_cache_params params = test_sfa_params(N);
    params.kv_cache_dtype = s->kv_cache_dtype;
    params.block_tokens = block_tokens;
    params.num_blocks = 1 + TEST_SFA_MAX_SEQS * ((N + block_tokens - 1) / block_tokens);
    return params;
}

/* ---------------------------------------------------------------- sequences on their way */

typedef struct track {
    test_sfa_seq seq;
    const float *x;        /* [N][hidden_size] */
    const float *expected; /* output of these tokens */
} track;

/* One step: counts[i] further tokens of tracks[i]; each row must be the expected one. */
static void step(test_sfa_rig *rig, track *const *tracks, const int32_t *counts, int32_t n,
                 const char *what)
{
    const int64_t hidden = rig->layers[0].config.hidden_size;
    test_sfa_seq *seqs[TEST_SFA_MAX_SEQS];
    int32_t total = 0, row = 0;
    for (int32_t i = 0; i < n; i++) {
        seqs[i] = &tracks[i]->seq;
        total += counts[i];
    }
    float *x = test_take(total * hidden, sizeof *x), *out = test_take(total * hidden, sizeof *out);
    for (int32_t i = 0; i < n; row += counts[i++])
        memcpy(x + row * hidden, tracks[i]->x + tracks[i]->seq.len * hidden,
               (size_t)(counts[i] * hidden) * sizeof *x);
    test_sfa_plan(rig, seqs, counts, n);
    test_sfa_run(rig, 0, x, out);
    row = 0;
    for (int32_t i = 0; i < n; row += counts[i++])
        test_assert_same_bits(out + row * hidden,
                              tracks[i]->expected + (tracks[i]->seq.len - counts[i]) * hidden,
                              counts[i], hidden, what);
    free(x);
    free(out);
}

/* A fresh sequence with the subject's prompt. */
static track track_open(test_sfa_rig *rig, const subject *s)
{
    return (track){test_sfa_seq_open(rig), s->x, s->straight.out};
}

/* A step of one track. */
static void advance(test_sfa_rig *rig, track *t, int32_t count, const char *what)
{
    track *tracks[] = {t};
    step(rig, tracks, &count, 1, what);
}

/* The whole prompt in equal chunks over poisoned caches. */
static void run_chunks(const subject *s, const tamis_cache_params *params, int n_threads,
                       int32_t chunk, const char *what)
{
    test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, params, N, n_threads);
    test_sfa_poison(&rig, NAN);
    track t = track_open(&rig, s);
    while (t.seq.len < N)
        advance(&rig, &t, N - t.seq.len < chunk ? N - t.seq.len : chunk, what);
    test_sfa_rig_close(&rig);
}

/* ---------------------------------------------------------------- one thing at a time */

static void chunks_change_nothing(void **state)
{
    (void)state;
    const int32_t chunks[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, N - 1};
    for (int i = 0; i < N_SUBJECTS; i += STRIDE) {
        const tamis_cache_params params = params_of(&subjects[i], 64);
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k += STRIDE)
            run_chunks(&subjects[i], &params, 1, chunks[k], "chunk");
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_SUBJECTS; i += STRIDE) {
        const tamis_cache_params params = params_of(&subjects[i], 64);
        for (int n_threads = 1; n_threads <= 4; n_threads += STRIDE) {
            run_chunks(&subjects[i], &params, n_threads, N, "threads");
            run_chunks(&subjects[i], &params, n_threads, 1 + 2 * n_threads, "threads, chunks");
        }
    }
}

/* More heads, longer lists and fewer tokens than threads: chunks of one token are shared out. */
static void shared_tokens_change_nothing(void **state)
{
    (void)state;
    enum { LONG = TEST_IS_SANITIZED ? 250 : 700 };
    test_rng rng = test_rng_start("shared tokens", 2);
    tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_GLM);
    c.num_heads = 24;
    c.index_n_heads = 32;
    c.index_topk = LONG - 120;
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    float *x = test_inputs(LONG, c.hidden_size, &rng);
    test_sfa_result straight = test_sfa_straight(&layer.layer, TAMIS_DTYPE_F32, x, LONG);
    tamis_cache_params params = test_sfa_params(LONG);
    float *out = test_take(LONG * c.hidden_size, sizeof *out);
    for (int n_threads = 2; n_threads <= 4; n_threads++) {
        test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, LONG, n_threads);
        test_sfa_seq seq = test_sfa_seq_open(&rig);
        test_sfa_feed(&rig, &seq, x, LONG - 12, 0, out);
        for (int32_t count = 1; seq.len < LONG; count++) /* 1, 2, 3, ... tokens */
            test_sfa_feed(&rig, &seq, x + seq.len * c.hidden_size,
                          LONG - seq.len < count ? LONG - seq.len : count, 0,
                          out + seq.len * c.hidden_size);
        test_assert_same_bits(out, straight.out, LONG, c.hidden_size, "shared tokens");
        test_sfa_rig_close(&rig);
    }
    test_sfa_result_free(&straight);
    test_sfa_layer_free(&layer);
    free(out);
    free(x);
}

static void cpu_levels_change_nothing(void **state)
{
    (void)state;
    const tamis_cpu_level best = tamis_cpu_level_current();
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
        assert_int_equal(tamis_cpu_level_set((tamis_cpu_level)level), TAMIS_STATUS_OK);
        for (int i = 0; i < N_SUBJECTS; i += STRIDE) {
            const tamis_cache_params params = params_of(&subjects[i], 64);
            run_chunks(&subjects[i], &params, 2, 40, tamis_cpu_level_name((tamis_cpu_level)level));
        }
    }
    assert_int_equal(tamis_cpu_level_set(best), TAMIS_STATUS_OK);
}

/* Any block size, any order of physical blocks. */
static void blocks_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("blocks", 3);
    const int32_t sizes[] = {3, 16, 64, 100, 256};
    for (int i = 0; i < N_SUBJECTS; i += STRIDE)
        for (int k = 0; k < 5; k += TEST_IS_SANITIZED ? 2 : 1) {
            const tamis_cache_params params = params_of(&subjects[i], sizes[k]);
            const int32_t n_blocks = params.num_blocks - 1;
            int32_t *order = test_take(n_blocks, sizeof *order);
            test_rng_permutation(&rng, order, n_blocks);
            test_sfa_rig rig = test_sfa_rig_open(&subjects[i].layer.layer, 1, &params, N, 2);
            test_sfa_poison(&rig, NAN);
            track t = track_open(&rig, &subjects[i]);
            for (int32_t b = 0; b < (N + sizes[k] - 1) / sizes[k]; b++)
                t.seq.table[b] = 1 + order[b];
            advance(&rig, &t, 60, "physical blocks");
            while (t.seq.len < N)
                advance(&rig, &t, 15, "physical blocks");
            test_sfa_rig_close(&rig);
            free(order);
        }
}

/* Back to any length, other tokens in between, and on again. */
static void rollback_changes_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rollback", 4);
    for (int i = 0; i < N_SUBJECTS; i += STRIDE) {
        const subject *s = &subjects[i];
        const tamis_cache_params params = params_of(s, 16);
        test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, 2);
        test_sfa_poison(&rig, NAN);
        track t = track_open(&rig, s);
        float *other = test_inputs(N, hidden_of(s), &rng);
        float *out = test_take((int64_t)N * hidden_of(s), sizeof *out);
        advance(&rig, &t, N, "before rollback");
        for (int32_t len = 0; len < N; len += TEST_IS_SANITIZED ? 23 : 5) {
            const int32_t n_other = (int32_t)test_rng_int(&rng, 0, N - len);
            t.seq.len = len;
            test_sfa_feed(&rig, &t.seq, other, n_other, 0, out); /* another continuation */
            t.seq.len = len;
            advance(&rig, &t, (int32_t)test_rng_int(&rng, 1, N - len), "after rollback");
            t.seq.len = len;
            advance(&rig, &t, N - len, "replay");
        }
        free(other);
        free(out);
        test_sfa_rig_close(&rig);
    }
}

/* Full blocks shared, the open one copied: both branches go on as if they were alone. */
static void fork_by_block_copy(void **state)
{
    (void)state;
    enum { SHARED = 70, BLOCK = 16 };
    for (int i = 0; i < N_SUBJECTS; i += STRIDE) {
        const subject *s = &subjects[i];
        const tamis_cache_params params = params_of(s, BLOCK);
        test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, 2);
        test_sfa_poison(&rig, NAN);
        track parent = track_open(&rig, s), child = track_open(&rig, s);
        advance(&rig, &parent, SHARED, "parent");
        memcpy(child.seq.table, parent.seq.table, (SHARED / BLOCK) * sizeof(int32_t));
        tamis_error err;
        test_must(tamis_sfa_caches_copy_block(rig.caches, child.seq.table[SHARED / BLOCK],
                                              parent.seq.table[SHARED / BLOCK], &err),
                  &err, "copy");
        child.seq.len = SHARED;
        float *other = test_take((int64_t)20 * hidden_of(s), sizeof *other);
        float *out = test_take((int64_t)20 * hidden_of(s), sizeof *out);
        test_sfa_feed(&rig, &parent.seq, other, 20, 0, out); /* the parent goes another way */
        advance(&rig, &child, N - SHARED, "child");
        parent.seq.len = SHARED;
        advance(&rig, &parent, N - SHARED, "parent after all");
        free(other);
        free(out);
        test_sfa_rig_close(&rig);
    }
}

/* ---------------------------------------------------------------- everything at once */

/* Up to four sequences of one layer advance by random counts, in random order, in random places. */
static void walk(const subject *s, test_rng *rng)
{
    const int32_t sizes[] = {16, 64, 256};
    tamis_cache_params params = params_of(s, sizes[test_rng_int(rng, 0, 2)]);
    params.block_pad_bytes = 64 * (int32_t)test_rng_int(rng, 0, 3);
    const int n_threads = (int)test_rng_int(rng, 1, 4), n_seqs = (int)test_rng_int(rng, 1, 4);
    test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, n_threads);
    test_sfa_poison(&rig, NAN);
    track tracks[4];
    for (int i = 0; i < n_seqs; i++)
        tracks[i] = track_open(&rig, s);
    for (bool is_running = true; is_running;) {
        int32_t order[4] = {0}, counts[4], total = 0;
        track *in_step[4];
        is_running = false;
        test_rng_permutation(rng, order, n_seqs);
        for (int i = 0; i < n_seqs; i++) {
            track *t = in_step[i] = &tracks[order[i]];
            if (test_rng_int(rng, 0, 9) == 0)
                t->seq.len = (int32_t)test_rng_int(rng, 0, t->seq.len);
            const int32_t left = N - t->seq.len;
            counts[i] = (int32_t)test_rng_int(rng, 0, test_rng_int(rng, 0, 2) == 0 ? left : 3);
            counts[i] = counts[i] < left ? counts[i] : left;
            counts[i] = total + counts[i] <= 2 * N ? counts[i] : 0;
            total += counts[i];
            is_running = is_running || counts[i] < left;
        }
        step(&rig, in_step, counts, n_seqs, "walk");
    }
    test_sfa_rig_close(&rig);
}

static void walks_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("walks", 5);
    for (int turn = 0; turn < (TEST_IS_SANITIZED ? 1 : 12); turn++)
        for (int i = 0; i < N_SUBJECTS; i += STRIDE)
            walk(&subjects[i], &rng);
}

/* Different prompts side by side: each row is that of its own prompt alone. */
static void strangers_in_a_step(void **state)
{
    (void)state;
    const subject *s = &subjects[0];
    test_rng rng = test_rng_start("strangers", 6);
    const tamis_cache_params params = params_of(s, 16);
    test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, 3);
    test_sfa_poison(&rig, NAN);
    track tracks[3];
    track *in_step[3];
    float *x[3];
    test_sfa_result alone[3];
    for (int i = 0; i < 3; i++) {
        x[i] = test_inputs(N, hidden_of(s), &rng);
        alone[i] = test_sfa_straight(&s->layer.layer, s->kv_cache_dtype, x[i], N);
        tracks[i] = (track){test_sfa_seq_open(&rig), x[i], alone[i].out};
        in_step[i] = &tracks[i];
    }
    step(&rig, in_step, (int32_t[]){N - 50, 20, 5}, 3, "strangers");
    step(&rig, in_step, (int32_t[]){1, N - 20, 0}, 3, "strangers");
    step(&rig, in_step, (int32_t[]){49, 0, N - 5}, 3, "strangers");
    for (int i = 0; i < 3; i++) {
        free(x[i]);
        test_sfa_result_free(&alone[i]);
    }
    test_sfa_rig_close(&rig);
}

/* Layers of other sizes, rotations and list lengths in the same caches and plan. */
static void layers_of_different_kinds(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("kinds", 7);
    tamis_sfa_config c[4] = {test_sfa_odd_config(TEST_SFA_V32), test_sfa_odd_config(TEST_SFA_GLM),
                             test_sfa_odd_config(TEST_SFA_GLM), test_sfa_odd_config(TEST_SFA_V32)};
    c[1].index_topk = 0;
    c[2].index_topk = 20;
    c[2].num_heads = 7;
    c[2].kv_lora_rank = 50;
    c[2].index_n_heads = 17;
    c[3].hidden_size = 66;
    c[3].qk_rope_head_dim = 12;
    c[3].index_head_dim = 13;
    test_sfa_layer owners[4];
    tamis_sfa_layer layers[4];
    test_sfa_result alone[4];
    float *x[4], *out = test_take(N * 66, sizeof *out);
    for (int i = 0; i < 4; i++) {
        owners[i] = test_sfa_layer_random(&c[i], TAMIS_DTYPE_BF16, &rng);
        layers[i] = owners[i].layer;
        x[i] = test_inputs(N, c[i].hidden_size, &rng);
        alone[i] = test_sfa_straight(&layers[i], TAMIS_DTYPE_F32, x[i], N);
    }
    const tamis_cache_params params = test_sfa_params(N);
    test_sfa_rig rig = test_sfa_rig_open(layers, 4, &params, N, 3);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    test_sfa_poison(&rig, NAN);
    for (int32_t first = 0, n; first < N; first += n) {
        n = first == 0 ? N - 40 : 8;
        test_sfa_plan(&rig, (test_sfa_seq *[]){&seq}, &n, 1);
        for (int i = 0; i < 4; i++) {
            const int32_t hidden = c[i].hidden_size;
            test_sfa_run(&rig, i, x[i] + first * hidden, out);
            test_assert_same_bits(out, alone[i].out + first * hidden, n, hidden, "kinds");
        }
    }
    for (int i = 0; i < 4; i++) {
        test_sfa_layer_free(&owners[i]);
        test_sfa_result_free(&alone[i]);
        free(x[i]);
    }
    free(out);
    test_sfa_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_change_nothing),        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(shared_tokens_change_nothing), cmocka_unit_test(cpu_levels_change_nothing),
        cmocka_unit_test(blocks_change_nothing),        cmocka_unit_test(rollback_changes_nothing),
        cmocka_unit_test(fork_by_block_copy),           cmocka_unit_test(walks_change_nothing),
        cmocka_unit_test(strangers_in_a_step),          cmocka_unit_test(layers_of_different_kinds),
    };
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
