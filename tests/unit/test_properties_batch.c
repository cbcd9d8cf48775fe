/*
 * What else is in the batch does not show: alone, with one other, with seven others of mixed
 * phase, in any order, and in a slot that others used before. Bitwise.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"
#include "support/rng.h"

enum { MAX_TRACKS = 8, STEP_LIMIT = 512 };

/* Eight prompts of different lengths and contents, and what each gives alone. */
typedef struct prompts {
    int32_t *ids[MAX_TRACKS];
    int32_t n[MAX_TRACKS];
    float *solo[MAX_TRACKS];
} prompts;

static tamis_session_params batch_params(tamis_dtype dtype)
{
    tamis_session_params params = test_session_params(dtype, 320);
    params.max_num_seqs = MAX_TRACKS;
    params.max_num_batched_tokens = params.max_num_logits = STEP_LIMIT;
    return params;
}

static prompts prompts_open(const char *dir, test_engine *engine)
{
    static const int32_t lengths[MAX_TRACKS] = {260, 133, 7, 64, 190, 1, 129, 35};
    prompts p;
    int32_t *ids = test_prompt(dir);
    for (int i = 0; i < MAX_TRACKS; i++) {
        p.n[i] = lengths[i];
        p.ids[i] = test_shifted(ids, p.n[i], 7 * i, engine->info->vocab_size);
        p.solo[i] = test_logits_of(engine, p.ids[i], p.n[i], 0);
    }
    free(ids);
    return p;
}

static void prompts_close(prompts *p)
{
    for (int i = 0; i < MAX_TRACKS; i++) {
        free(p->ids[i]);
        free(p->solo[i]);
    }
}

/* Tokens the track gets now: a burst of prefill, a single token, or none. */
static int32_t draw_count(test_rng *rng, const test_track *track)
{
    const int64_t kind = test_rng_int(rng, 0, 5);
    const int32_t left = track->n - track->fed;
    const int32_t count = kind == 0   ? (int32_t)test_rng_int(rng, 20, 64)
                          : kind == 1 ? 0
                          : kind == 2 ? (int32_t)test_rng_int(rng, 2, 9)
                                      : 1;
    return count < left ? count : left;
}

/* The first `n` prompts together, steps drawn by rng; each must equal its solo run. */
static void check_together(test_engine *engine, const prompts *p, int n, bool is_reversed,
                           test_rng *rng, const char *where)
{
    test_track tracks[MAX_TRACKS], *order[MAX_TRACKS];
    bool is_done = false;
    for (int i = 0; i < n; i++) {
        tracks[i] = test_track_open(engine, p->ids[i], p->n[i]);
        order[is_reversed ? n - 1 - i : i] = &tracks[i];
    }
    while (!is_done) {
        int32_t counts[MAX_TRACKS];
        is_done = true;
        for (int i = 0; i < n; i++)
            counts[i] = draw_count(rng, order[i]);
        test_step(engine, order, counts, n);
        for (int i = 0; i < n; i++)
            is_done = is_done && tracks[i].fed == tracks[i].n;
    }
    for (int i = 0; i < n; i++) {
        test_assert_same_bits(tracks[i].logits, p->solo[i], p->n[i], engine->info->vocab_size,
                              where);
        test_track_close(engine, &tracks[i]);
    }
}

static test_rng rng;

static void check_batches(const char *dir, tamis_dtype dtype)
{
    const tamis_session_params params = batch_params(dtype);
    test_engine engine = test_engine_open(dir, &params);
    prompts p = prompts_open(dir, &engine);
    if (!TEST_IS_SANITIZED)
        check_together(&engine, &p, 2, false, &rng, test_where(dir, dtype, "sequences", 2));
    if (!TEST_IS_TSAN) /* one thread */
        check_together(&engine, &p, 8, false, &rng, test_where(dir, dtype, "sequences", 8));
    tamis_session_params shared = params; /* work is split over threads across sequences */
    shared.n_threads = 2;
    test_engine threaded = test_engine_share(&engine, &shared);
    check_together(&threaded, &p, 8, true, &rng, test_where(dir, dtype, "reversed sequences", 8));
    test_engine_close(&threaded);
    prompts_close(&p);
    test_engine_close(&engine);
}

static void test_batches(void **state)
{
    (void)state;
    rng = test_rng_start("batches", 42);
    test_every_folder(check_batches);
}

/* Case 20: one step with a 5-token prefill, a 1-token decode and a 130-token prefill. */
static void check_mixed_step(const char *dir, tamis_dtype dtype)
{
    const tamis_session_params params = batch_params(dtype);
    test_engine engine = test_engine_open(dir, &params);
    prompts p = prompts_open(dir, &engine);
    const int32_t vocab = engine.info->vocab_size;
    const int32_t before[3] = {0, 127, 0}, counts[3] = {5, 1, 130};
    const int which[3] = {4, 1, 0};
    for (int turn = 0; turn < 3; turn++) { /* every order of the three in turn */
        test_track tracks[3], *order[3];
        int32_t order_counts[3];
        for (int i = 0; i < 3; i++) {
            tracks[i] = test_track_open(&engine, p.ids[which[i]], p.n[which[i]]);
            order[(i + turn) % 3] = &tracks[i];
            order_counts[(i + turn) % 3] = counts[i];
            test_track *alone[] = {&tracks[i]};
            if (before[i] > 0)
                test_step(&engine, alone, &before[i], 1);
        }
        test_step(&engine, order, order_counts, 3);
        for (int i = 0; i < 3; i++) {
            test_assert_same_bits(tracks[i].logits, p.solo[which[i]], tracks[i].fed, vocab,
                                  test_where(dir, dtype, "mixed step, sequence", i));
            test_track_close(&engine, &tracks[i]);
        }
    }
    prompts_close(&p);
    test_engine_close(&engine);
}

static void case_20_prefill_and_decode_in_one_step(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_every_folder(check_mixed_step);
}

/* One slot, one sequence's worth of blocks: what earlier users left behind must not show. */
static void check_replay(const char *dir, tamis_dtype dtype)
{
    tamis_session_params params = batch_params(dtype);
    params.max_num_seqs = 1;
    test_engine engine = test_engine_open(dir, &params);
    prompts p = prompts_open(dir, &engine); /* each solo run already reuses the slot */
    static const int turns[] = {5, 0, 2, 0, 6, 2, 5, 1};
    for (size_t i = 0; i < (TEST_IS_SANITIZED ? 4 : sizeof turns / sizeof *turns); i++) {
        const int32_t n = p.n[turns[i]];
        test_engine fresh = test_engine_share(&engine, &params);
        float *expected = test_logits_of(&fresh, p.ids[turns[i]], n, 0);
        test_assert_same_bits(p.solo[turns[i]], expected, n, engine.info->vocab_size,
                              test_where(dir, dtype, "fresh session, turn", (int32_t)i));
        float *seen = test_logits_of(&engine, p.ids[turns[i]], n, n > 100 ? 64 : 1);
        test_assert_same_bits(seen, expected, n, engine.info->vocab_size,
                              test_where(dir, dtype, "reused slot, turn", (int32_t)i));
        free(seen);
        free(expected);
        test_engine_close(&fresh);
    }
    prompts_close(&p);
    test_engine_close(&engine);
}

static void test_slot_reuse(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_every_folder(check_replay);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(case_20_prefill_and_decode_in_one_step),
        cmocka_unit_test(test_slot_reuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
