/*
 * The edges of speculation: parameters, session limits, a full context, an empty pool, stop ids,
 * prompts in pieces, forks and shared prefixes, several specs over one session.
 */
#include "speculation_test.h"

#include "engine/speculation.h"

#define V4   "tests/golden/v4-flash-fp8"
#define V32  "tests/golden/v32-fp8"
#define NONE "tests/golden/v32-bf16" /* no MTP block */

static const char *const rings_and_blocks[] = {V4, V32};

typedef struct fixture {
    int32_t *ids;
    test_engine base, engine; /* engine: what the test runs in */
    spec_truth truth;
} fixture;

static fixture fixture_open(const char *dir, const tamis_session_params *params, int32_t n_prompt,
                            int32_t n_new)
{
    fixture f = {.ids = test_prompt(dir)};
    const tamis_session_params plain = test_session_params(TAMIS_DTYPE_BF16, n_prompt + n_new);
    f.base = test_engine_open(dir, &plain);
    f.engine = test_engine_share(&f.base, params);
    f.truth = spec_truth_make(&f.base, f.ids, n_prompt, n_new, spec_sampling(1, 77));
    return f;
}

static void fixture_close(fixture *f)
{
    spec_truth_free(&f->truth);
    test_engine_close(&f->engine);
    test_engine_close(&f->base);
    free(f->ids);
}

/* ---------------------------------------------------------------- refusals */

static void expect_open(test_engine *engine, int32_t seq, const tamis_spec_params *p,
                        tamis_status status, const char *part)
{
    tamis_spec *spec = (tamis_spec *)engine;
    tamis_error err;
    assert_int_equal(tamis_spec_open(&spec, engine->session, seq, p, &err), status);
    assert_null(spec);
    if (strstr(err.text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void test_bad_parameters(void **state)
{
    (void)state;
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, true);
    test_engine engine = test_engine_open(V4, &params);
    const int32_t seq = test_seq_new(&engine);
    const tamis_spec_params good = spec_params(TAMIS_DRAFTER_PROMPT_LOOKUP, 4, NULL);
    tamis_spec_params p;
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        p = good;                                                                                  \
        change;                                                                                    \
        expect_open(&engine, seq, &p, TAMIS_STATUS_INVALID, part);                                 \
    } while (0)
    REFUSED(p.struct_size = 8, "struct_size is 8");
    REFUSED(p.drafter = (tamis_drafter)4, "drafter is 4, allowed 0..3");
    REFUSED(p.max_draft = 0, "max_draft is 0, allowed 1..15");
    REFUSED(p.max_draft = 16, "max_draft is 16, allowed 1..15");
    REFUSED(p.ngram_min = 0, "ngram_min is 0, allowed 1..3");
    REFUSED(p.ngram_min = 4, "ngram_min is 4, allowed 1..3");
    REFUSED(p.ngram_max = 17, "ngram_max is 17, allowed 1..16");
    REFUSED(p.n_stop_ids = 17, "n_stop_ids is 17");
    REFUSED(p.n_stop_ids = 1, "stop_ids");
    REFUSED(p.drafter = TAMIS_DRAFTER_CUSTOM; p.fn = NULL, "fn is NULL");
#undef REFUSED
    expect_open(&engine, 1, &good, TAMIS_STATUS_INVALID, "sequence 1 does not exist");
    tamis_error err;
    assert_int_equal(tamis_spec_open(NULL, engine.session, seq, &good, &err), TAMIS_STATUS_INVALID);
    tamis_spec_close(NULL);
    assert_string_equal(tamis_drafter_name(TAMIS_DRAFTER_PROMPT_LOOKUP), "prompt-lookup");
    assert_string_equal(tamis_drafter_name((tamis_drafter)9), "unknown");
    test_engine_close(&engine);
}

static void test_session_limits(void **state)
{
    (void)state;
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, false);
    const tamis_spec_params five = spec_params(TAMIS_DRAFTER_PROMPT_LOOKUP, 5, NULL);
    const tamis_spec_params mtp = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    test_engine engine = test_engine_open(V4, &params);
    const int32_t seq = test_seq_new(&engine);
    expect_open(&engine, seq, &five, TAMIS_STATUS_LIMIT,
                "max_draft is 5, this session allows 4 (max_num_logits - 1)");
    expect_open(&engine, seq, &mtp, TAMIS_STATUS_STATE, "opened without mtp");
    test_feed(&engine, seq, (int32_t[]){1, 2}, 2, 0, NULL);
    expect_open(&engine, seq,
                &(tamis_spec_params){
                    .struct_size = sizeof mtp, .max_draft = 1, .ngram_min = 1, .ngram_max = 1},
                TAMIS_STATUS_STATE, "sequence 0 has 2 tokens, must be empty");
    params.max_num_logits = 6;
    test_engine rings = test_engine_share(&engine, &params);
    expect_open(&rings, test_seq_new(&rings), &five, TAMIS_STATUS_LIMIT, "4 (max_rollback)");
    params.max_rollback = 5;
    params.max_num_batched_tokens = 5;
    test_engine narrow = test_engine_share(&engine, &params);
    expect_open(&narrow, test_seq_new(&narrow), &five, TAMIS_STATUS_LIMIT, "(max_num_");
    test_engine_close(&narrow);
    test_engine_close(&rings);
    test_engine_close(&engine);
    /* without rings any length may be gone back to; without an MTP block none drafts */
    params = spec_session(TAMIS_DTYPE_BF16, 64, 5, false);
    params.max_rollback = 0;
    test_engine none = test_engine_open(NONE, &params);
    tamis_spec *spec = NULL;
    tamis_error err;
    expect_open(&none, test_seq_new(&none), &mtp, TAMIS_STATUS_UNSUPPORTED, "the folder's is none");
    test_must(tamis_spec_open(&spec, none.session, 0, &five, &err), &err, "no rings");
    tamis_spec_close(&spec);
    test_engine_close(&none);
}

static void test_misuse_between_calls(void **state)
{
    (void)state;
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, true);
    fixture f = fixture_open(V4, &params, 20, 10);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    int32_t tokens[5], n;
    tamis_error err;
#define NEXT(num_ids) tamis_spec_next(run.spec, run.sampler, num_ids, tokens, &n, &err)
    assert_int_equal(NEXT(f.truth.vocab), TAMIS_STATUS_STATE); /* no prompt yet */
    assert_int_equal(tamis_spec_prompt(run.spec, f.ids, -1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_spec_prompt(run.spec, (int32_t[]){1, f.truth.vocab}, 2, &err),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_spec_prompt(run.spec, f.ids, 65, &err), TAMIS_STATUS_LIMIT);
    assert_int_equal(tamis_seq_len(f.engine.session, run.seq), 0);
    test_must(tamis_spec_prompt(run.spec, NULL, 0, &err), &err, "nothing");
    spec_run_prompt(&run, 0);
    assert_int_equal(NEXT(0), TAMIS_STATUS_INVALID);
    assert_int_equal(NEXT(f.truth.vocab + 1), TAMIS_STATUS_INVALID);
    spec_run_next(&run, "in order");
    test_feed(&f.engine, run.seq, f.ids, 1, 0, NULL);
    assert_int_equal(NEXT(f.truth.vocab), TAMIS_STATUS_STATE); /* somebody fed it */
    assert_int_equal(tamis_spec_prompt(run.spec, f.ids, 1, &err), TAMIS_STATUS_STATE);
    test_seq_rollback(&f.engine, run.seq, run.n - 1); /* and took it back */
    while (run.n < f.truth.n)
        spec_run_next(&run, "again in order");
#undef NEXT
    spec_run_close(&run);
    fixture_close(&f);
}

/* An index that comes again is another sequence, however long it is. */
static void check_another(fixture *f, spec_run *run)
{
    int32_t tokens[5], n;
    char says[64];
    tamis_error err;
    snprintf(says, sizeof says, "sequence %d is another one now", run->seq);
    for (int i = 0; i < 2; i++) {
        const tamis_status st =
            i == 0 ? tamis_spec_next(run->spec, run->sampler, f->truth.vocab, tokens, &n, &err)
                   : tamis_spec_prompt(run->spec, f->ids, 1, &err);
        assert_int_equal(st, TAMIS_STATUS_STATE);
        assert_non_null(strstr(err.text, says));
    }
    spec_run_close(run);
}

typedef enum recycling { DROPPED, DROPPED_EMPTY, SLEPT, FORKED, N_RECYCLINGS } recycling;

/* The index of run's sequence again, with as many tokens as it had. */
static int32_t recycle(fixture *f, const spec_run *run, recycling how, int32_t donor)
{
    tamis_session *session = f->engine.session;
    tamis_error err;
    if (how == SLEPT) {
        test_must(tamis_session_sleep(session, 1, &err), &err, "sleep");
        test_must(tamis_session_wake(session, &err), &err, "wake");
    } else {
        test_seq_drop(&f->engine, run->seq);
    }
    if (how == FORKED)
        return test_seq_fork(&f->engine, donor);
    const int32_t seq = test_seq_new(&f->engine);
    if (how != DROPPED_EMPTY)
        test_feed(&f->engine, seq, f->ids, 19, 0, NULL);
    return seq;
}

static void test_sequence_of_another(void **state)
{
    (void)state;
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, false);
    params.max_num_seqs = 2;
    fixture f = fixture_open(V4, &params, 20, 10);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_PROMPT_LOOKUP, 4, NULL);
    for (recycling how = DROPPED; how < N_RECYCLINGS; how++) {
        spec_run run = spec_run_open(&f.engine, &f.truth, &p);
        const int32_t donor = test_seq_new(&f.engine);
        test_feed(&f.engine, donor, f.ids, 19, 0, NULL);
        if (how != DROPPED_EMPTY)
            spec_run_prompt(&run, 0);
        assert_int_equal(recycle(&f, &run, how, donor), run.seq);
        check_another(&f, &run);
        if (how != SLEPT)
            test_seq_drop(&f.engine, donor);
    }
    fixture_close(&f);
}

/* ---------------------------------------------------------------- ends */

static void check_full_context(const char *dir, tamis_drafter drafter)
{
    const int32_t n_prompt = 20, len = 45;
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, len, 7, true);
    fixture f = fixture_open(dir, &params, n_prompt, len - n_prompt);
    spec_oracle oracle = {.truth = &f.truth, .n_right = 3};
    const tamis_spec_params p = spec_params(drafter, 7, &oracle);
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    int32_t tokens[8], n;
    tamis_error err;
    spec_run_prompt(&run, 0);
    while (run.n < f.truth.n)
        spec_run_next(&run, dir);
    /* the last position may still be fed, which gives a token that can no longer be */
    if (tamis_seq_len(f.engine.session, run.seq) < len)
        test_must(tamis_spec_next(run.spec, run.sampler, f.truth.vocab, tokens, &n, &err), &err,
                  "last position");
    assert_int_equal(tamis_seq_len(f.engine.session, run.seq), len);
    assert_int_equal(tamis_spec_next(run.spec, run.sampler, f.truth.vocab, tokens, &n, &err),
                     TAMIS_STATUS_LIMIT);
    spec_run_close(&run);
    fixture_close(&f);
}

static void test_full_context(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        check_full_context(rings_and_blocks[i], TAMIS_DRAFTER_MTP);
        if (TEST_IS_SANITIZED) /* the other drafters touch no memory of their own */
            continue;
        check_full_context(rings_and_blocks[i], TAMIS_DRAFTER_CUSTOM);
        check_full_context(rings_and_blocks[i], TAMIS_DRAFTER_PROMPT_LOOKUP);
    }
}

/* Drafts behind a stop id are right, but not given out; what follows may go on from there. */
static void test_stop_ids(void **state)
{
    (void)state;
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 8, false);
    fixture f = fixture_open(V4, &params, 20, 30);
    const int32_t stops[] = {f.truth.ids[24], f.truth.ids[31]};
    spec_oracle oracle = {.truth = &f.truth, .n_right = 99};
    tamis_spec_params p = spec_params(TAMIS_DRAFTER_CUSTOM, 8, &oracle);
    p.stop_ids = stops;
    p.n_stop_ids = 2;
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    spec_run_prompt(&run, 0);
    bool met = false;
    while (run.n < f.truth.n) {
        const int32_t before = run.n, n = spec_run_next(&run, "stop ids");
        for (int32_t i = before; i < before + n - 1 && i < f.truth.n; i++)
            assert_true(f.truth.ids[i] != stops[0] && f.truth.ids[i] != stops[1]);
        met |= before + n == 25; /* the text goes on behind it, the call did not */
    }
    assert_true(met);
    spec_run_close(&run);
    fixture_close(&f);
}

/* ---------------------------------------------------------------- blocks */

/* Two blocks of 128: the other sequence holds one until this one has filled its own. */
static void check_empty_pool(const char *dir, tamis_drafter drafter)
{
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 160, 5, true);
    params.block_tokens = 128;
    params.num_blocks = 3;
    params.max_num_seqs = 2;
    fixture f = fixture_open(dir, &params, 118, 20);
    spec_oracle oracle = {.truth = &f.truth, .n_right = 2};
    const tamis_spec_params p = spec_params(drafter, 5, &oracle);
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    const int32_t other = test_seq_new(&f.engine);
    int32_t tokens[6], n;
    tamis_error err;
    test_feed(&f.engine, other, f.ids, 3, 0, NULL);
    spec_run_prompt(&run, 0);
    while (tamis_seq_len(f.engine.session, run.seq) < 128)
        spec_run_next(&run, dir);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tamis_spec_next(run.spec, run.sampler, f.truth.vocab, tokens, &n, &err),
                         TAMIS_STATUS_NO_BLOCKS);
    test_seq_drop(&f.engine, other);
    while (run.n < f.truth.n)
        spec_run_next(&run, dir);
    spec_run_close(&run);
    fixture_close(&f);
}

static void test_empty_pool(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        check_empty_pool(rings_and_blocks[i], TAMIS_DRAFTER_MTP);
        if (TEST_IS_SANITIZED)
            continue;
        check_empty_pool(rings_and_blocks[i], TAMIS_DRAFTER_CUSTOM);
        check_empty_pool(rings_and_blocks[i], TAMIS_DRAFTER_NONE);
    }
}

/* A fork made between two calls keeps its bits while the original drafts on, and the other way. */
static void check_forks(const char *dir)
{
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 300, 6, true);
    params.block_tokens = 128;
    params.max_num_seqs = 2;
    fixture f = fixture_open(dir, &params, 118, 20);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 6, NULL);
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    float *row = malloc((size_t)f.truth.vocab * sizeof *row);
    assert_non_null(row);
    spec_run_prompt(&run, 0);
    while (run.n < f.truth.n) {
        const int32_t at = run.n;
        const int32_t fork = test_seq_fork(&f.engine, run.seq);
        spec_run_next(&run, dir);
        test_feed(&f.engine, fork, f.truth.ids + at - 1, 1, 0, row);
        test_assert_same_bits(row,
                              f.truth.logits + (int64_t)(at - f.truth.n_prompt) * f.truth.vocab, 1,
                              f.truth.vocab, dir);
        test_seq_drop(&f.engine, fork);
    }
    free(row);
    spec_run_close(&run);
    fixture_close(&f);
}

static void test_forks(void **state)
{
    (void)state;
    check_forks(V4);
    check_forks(V32);
}

/* The second and third time the prompt is there already, up to where blocks or rows end. */
static void check_prefixes(const char *dir, int32_t least_reused)
{
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 300, 4, true);
    params.block_tokens = 128;
    params.prefix_caching = true;
    params.max_snapshots = 4;
    fixture f = fixture_open(dir, &params, 140, 20);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    for (int i = 0; i < 3; i++)
        spec_check(&f.engine, &f.truth, &p, dir);
    const tamis_prefix_stats stats = tamis_session_get_prefix_stats(f.engine.session);
    assert_int_equal(stats.n_hits, 2);
    assert_true(stats.n_tokens_reused >= 2 * (uint64_t)least_reused);
    fixture_close(&f);
}

static void test_shared_prefixes(void **state)
{
    (void)state;
    check_prefixes(V4, 128);
    check_prefixes(V32, 128);
}

/* As the header tells: a loaded sequence is kept, a second one takes it over and drafts. */
static void check_loaded_prefix(const char *dir)
{
    static const char *const path = "test_speculation_limits.seq";
    enum { N_SAVED = 137 };
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 300, 4, true);
    params.max_num_seqs = 2;
    params.prefix_caching = true;
    fixture f = fixture_open(dir, &params, 140, 20);
    test_engine loading = test_engine_share(&f.base, &params);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    tamis_error err;
    const int32_t saved = test_seq_new(&f.engine), loaded = test_seq_new(&loading);
    test_feed(&f.engine, saved, f.ids, 64, 0, NULL);
    test_feed(&f.engine, saved, f.ids + 64, 64, 0, NULL);
    test_feed(&f.engine, saved, f.ids + 128, N_SAVED - 128, 0, NULL);
    test_must(tamis_seq_save(f.engine.session, saved, path, &err), &err, "save");
    test_must(tamis_seq_load(loading.session, loaded, path, &err), &err, "load");
    remove(path);
    expect_open(&loading, loaded, &p, TAMIS_STATUS_STATE, "has 137 tokens, must be empty");
    test_must(tamis_seq_keep(loading.session, loaded, &err), &err, "keep");
    spec_check(&loading, &f.truth, &p, dir);
    /* V4 goes on before the last token kept */
    assert_true(tamis_session_get_prefix_stats(loading.session).n_tokens_reused >= N_SAVED - 1);
    test_engine_close(&loading);
    fixture_close(&f);
}

static void test_loaded_prefix(void **state)
{
    (void)state;
    check_loaded_prefix(V4);
    check_loaded_prefix(V32);
}

/*
 * A step fills a block with tokens that are rejected then: whoever comes with just these tokens
 * finds the block, so what the sequence writes in their place must go into another one.
 */
static void check_blocks_of_rejected_tokens(const char *dir)
{
    enum { PENDING = 125, N = 128 + 3 };
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 160, 4, false);
    params.block_tokens = 128;
    params.max_num_seqs = 2;
    params.max_num_logits = N;
    params.prefix_caching = true;
    fixture f = fixture_open(dir, &params, PENDING + 1, 20);
    spec_oracle oracle = {.truth = &f.truth, .n_right = 0};
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_CUSTOM, 4, &oracle);
    spec_check(&f.engine, &f.truth, &p, dir);
    int32_t ids[N], n_reused = 0;
    tamis_error err;
    memcpy(ids, f.truth.ids, sizeof ids);
    for (int32_t i = PENDING + 1; i < 128; i++) /* what the drafter said */
        ids[i] = (ids[i] + 1) % f.truth.vocab;
    float *expected = test_logits_of(&f.base, ids, N, 0);
    float *seen = malloc((size_t)N * (size_t)f.truth.vocab * sizeof *seen);
    assert_non_null(seen);
    const int32_t seq = test_seq_new(&f.engine);
    test_must(tamis_seq_match(f.engine.session, seq, ids, N, &n_reused, &err), &err, "match");
    assert_int_equal(n_reused, 128);
    test_feed(&f.engine, seq, ids + n_reused, N - n_reused, 0, seen);
    test_assert_same_bits(seen, expected + (int64_t)n_reused * f.truth.vocab, N - n_reused,
                          f.truth.vocab, dir);
    free(seen);
    free(expected);
    fixture_close(&f);
}

static void test_blocks_of_rejected_tokens(void **state)
{
    (void)state;
    check_blocks_of_rejected_tokens(V4);
    check_blocks_of_rejected_tokens(V32);
}

/* ---------------------------------------------------------------- prompts, several specs */

/* In pieces of every size, with text generated in between: it is part of the prompt then. */
static void check_pieces(const char *dir, int32_t piece)
{
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 120, 3, true);
    fixture f = fixture_open(dir, &params, 40, 30);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 3, NULL);
    spec_run run = spec_run_open(&f.engine, &f.truth, &p);
    tamis_error err;
    for (int32_t at = 0; at < 40; at += piece) {
        const int32_t n = 40 - at < piece ? 40 - at : piece;
        test_must(tamis_spec_prompt(run.spec, f.ids + at, n, &err), &err, "piece");
    }
    run.n = 40;
    while (run.n < 55)
        spec_run_next(&run, dir);
    const int32_t given = run.n;
    test_must(tamis_spec_prompt(run.spec, f.truth.ids + given, 5, &err), &err, "between");
    run.n += 5;
    for (int32_t i = 0; i < 5; i++) /* the sampler's draws for them */
        tamis_sampler_draw(run.sampler, f.truth.logits + (int64_t)(given - 40 + i) * f.truth.vocab,
                           f.truth.vocab);
    while (run.n < f.truth.n)
        spec_run_next(&run, dir);
    spec_run_close(&run);
    fixture_close(&f);
}

static void test_prompt_in_pieces(void **state)
{
    (void)state;
    static const int32_t pieces[] = {1, 7, 40};
    for (int i = TEST_IS_SANITIZED; i < 2 + !TEST_IS_SANITIZED; i++) {
        check_pieces(V4, pieces[i]);
        check_pieces(V32, pieces[i]);
    }
}

/* Turn by turn over one session, each drafts as it does alone. */
static void check_several(const char *dir)
{
    enum { N = 3 };
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 200, 4, true);
    params.max_num_seqs = N;
    fixture f = fixture_open(dir, &params, 30, 40);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    const tamis_spec_stats alone = spec_check(&f.engine, &f.truth, &p, dir);
    spec_run runs[N];
    for (int i = 0; i < N; i++)
        runs[i] = spec_run_open(&f.engine, &f.truth, &p);
    for (int i = 0; i < N; i++)
        spec_run_prompt(&runs[i], 0);
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (int i = 0; i < N; i++)
            if (runs[i].n < f.truth.n) {
                spec_run_next(&runs[i], dir);
                goes_on = true;
            }
    }
    for (int i = 0; i < N; i++) {
        const tamis_spec_stats stats = spec_run_close(&runs[i]);
        assert_memory_equal(&stats, &alone, sizeof stats);
    }
    fixture_close(&f);
}

static void test_several_specs(void **state)
{
    (void)state;
    check_several(V4);
    if (!TEST_IS_SANITIZED)
        check_several(V32);
}

/* ---------------------------------------------------------------- prompt lookup */

static void check_lookup(const int32_t *tokens, int32_t n, int32_t min, int32_t max,
                         const int32_t *expected, int32_t n_expected)
{
    int32_t draft[4];
    assert_int_equal(tamis_draft_lookup(tokens, n, min, max, draft, 4), n_expected);
    assert_memory_equal(draft, expected, (size_t)n_expected * sizeof *draft);
}

static void test_lookup(void **state)
{
    (void)state;
    /* the longest match wins, of equals the latest; a copy may run into itself */
    check_lookup((int32_t[]){1, 2, 3, 9, 2, 3, 8, 1, 2, 3}, 10, 1, 3, (int32_t[]){9, 2, 3, 8}, 4);
    check_lookup((int32_t[]){1, 2, 3, 9, 2, 3, 8, 1, 2, 3}, 10, 1, 2, (int32_t[]){8, 1, 2, 3}, 4);
    check_lookup((int32_t[]){5, 6, 5, 6}, 4, 1, 3, (int32_t[]){5, 6, 5, 6}, 4);
    check_lookup((int32_t[]){7, 7}, 2, 1, 3, (int32_t[]){7, 7, 7, 7}, 4);
    check_lookup((int32_t[]){1, 2, 3, 4}, 4, 1, 3, NULL, 0);
    check_lookup((int32_t[]){1, 2, 3, 2}, 4, 2, 3, NULL, 0); /* one token is too few */
    check_lookup((int32_t[]){1}, 1, 1, 3, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_parameters),
        cmocka_unit_test(test_session_limits),
        cmocka_unit_test(test_misuse_between_calls),
        cmocka_unit_test(test_sequence_of_another),
        cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_empty_pool),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_shared_prefixes),
        cmocka_unit_test(test_loaded_prefix),
        cmocka_unit_test(test_blocks_of_rejected_tokens),
        cmocka_unit_test(test_prompt_in_pieces),
        cmocka_unit_test(test_several_specs),
        cmocka_unit_test(test_lookup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
