/*
 * What holds of the bits of a token in profile exact holds in the others: whatever the cut of a
 * prompt, the batch, threads, CPU level, blocks, block size, forks, rollbacks and prefixes taken
 * over, the same logits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"

/* A sanitizer sees one block and one row of ratio 128. */
enum { LEN = TEST_IS_SANITIZED ? 150 : 300, TAIL = 20 };

/* A profile over a folder, with one type of cache; TAMIS_DTYPE_AUTO: the profile's first. */
static const struct combination {
    const char *dir;
    tamis_profile profile;
    tamis_dtype dtype;
} combinations[] = {
    {"tests/golden/v4-flash-fp8", TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO},
    {"tests/golden/glm52-fp8", TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8},
    {"tests/golden/v4-pro-fp8", TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3},
    {"tests/golden/glm52-fp8", TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO},
    {"tests/golden/v4-flash-bf16", TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO},
    {"tests/golden/v32-bf16", TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO},
    {"tests/golden/glm5-bf16", TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO},
    {"tests/golden/v4-official", TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO},
};
enum { N_USED = TEST_IS_SANITIZED ? 2 : sizeof combinations / sizeof *combinations };

enum { N_ON_PORTABLE = 3 }; /* of them run on the portable kernels, too, which are slow */

/* A combination with its prompt and what one step of one sequence gives for it. */
typedef struct scene {
    const struct combination *c;
    test_engine engine;
    int32_t *ids;
    float *whole; /* [LEN][vocab] */
    int32_t vocab;
} scene;

static tamis_session_params params_of(const struct combination *c)
{
    tamis_session_params p = test_session_params(c->dtype, LEN);
    p.block_tokens = 128;
    p.max_num_seqs = 3;
    p.max_num_batched_tokens = p.max_num_logits = 2 * LEN;
    return p;
}

static scene scene_open(const struct combination *c)
{
    scene s = {.c = c};
    tamis_model_params params = tamis_model_params_default();
    const tamis_session_params session = params_of(c);
    tamis_model *model = NULL;
    tamis_error err;
    params.profile = c->profile;
    test_must(tamis_model_open_with(&model, c->dir, &params, &err), &err, c->dir);
    s.engine = test_engine_share(&(test_engine){.model = model}, &session);
    s.engine.owns_model = true;
    s.vocab = s.engine.info->vocab_size;
    assert_string_equal(s.engine.info->profile, tamis_profile_name(c->profile));
    s.ids = test_prompt(c->dir);
    s.whole = test_logits_of(&s.engine, s.ids, LEN, 0);
    return s;
}

static void scene_close(scene *s)
{
    free(s->whole);
    free(s->ids);
    test_engine_close(&s->engine);
}

/* Logits of n tokens from `first` on are those of the whole. */
static void assert_as_whole(const scene *s, const float *seen, int32_t first, int32_t n,
                            const char *what, int32_t value)
{
    char text[256];
    snprintf(text, sizeof text, "%s, profile %s, %s %d", s->c->dir,
             tamis_profile_name(s->c->profile), what, (int)value);
    test_assert_same_bits(seen, s->whole + (int64_t)first * s->vocab, n, s->vocab, text);
}

static void assert_run(const scene *s, test_engine *engine, int32_t chunk, const char *what,
                       int32_t value)
{
    float *seen = test_logits_of(engine, s->ids, LEN, chunk);
    assert_as_whole(s, seen, 0, LEN, what, value);
    free(seen);
}

/* ---------------------------------------------------------------- steps and sessions */

static void check_steps(scene *s)
{
    static const int32_t chunks[] = {7, 129};
    for (size_t i = TEST_IS_SANITIZED; i < sizeof chunks / sizeof *chunks; i++)
        assert_run(s, &s->engine, chunks[i], "chunk", chunks[i]);
    int32_t *other_ids = test_shifted(s->ids, LEN, 11, s->vocab);
    test_track a = test_track_open(&s->engine, s->ids, LEN);
    test_track b = test_track_open(&s->engine, other_ids, LEN), *tracks[] = {&b, &a};
    for (int i = 0; i < 5; i++)
        test_step(&s->engine, tracks, (const int32_t[]){i % 2 == 0 ? LEN / 6 : 1, LEN / 5}, 2);
    assert_as_whole(s, a.logits, 0, LEN, "beside another sequence, step of", LEN / 5);
    test_track_close(&s->engine, &b);
    test_track_close(&s->engine, &a);
    free(other_ids);
}

static void check_sessions(scene *s)
{
    tamis_session_params p = params_of(s->c);
    p.n_threads = 3;
    p.block_tokens = 256;
    p.max_rollback = 20;
    p.block_order_seed = 9;
    test_engine other = test_engine_share(&s->engine, &p);
    assert_run(s, &other, 33, "threads", 3);
    test_engine_close(&other);
}

/* A beginning that closes one row of ratio 128. */
static void check_levels(scene *s)
{
    enum { SHORT = 135 };
    const tamis_cpu_level level = tamis_cpu_level_current();
    const tamis_session_params p = params_of(s->c);
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_PORTABLE), TAMIS_STATUS_OK);
    test_engine portable = test_engine_share(&s->engine, &p);
    float *seen = test_logits_of(&portable, s->ids, SHORT, 100);
    assert_as_whole(s, seen, 0, SHORT, "CPU level", TAMIS_CPU_PORTABLE);
    free(seen);
    test_engine_close(&portable);
    assert_int_equal(tamis_cpu_level_set(level), TAMIS_STATUS_OK);
}

/* ---------------------------------------------------------------- sequences */

static void check_sequences(scene *s)
{
    test_engine *e = &s->engine;
    float *seen = calloc((size_t)LEN * (size_t)s->vocab, sizeof *seen);
    int32_t *other_ids = test_shifted(s->ids, LEN, 5, s->vocab);
    assert_non_null(seen);
    const int32_t seq = test_seq_new(e);
    test_feed(e, seq, s->ids, LEN - TAIL, 0, NULL);
    const int32_t fork = test_seq_fork(e, seq);
    test_feed(e, seq, other_ids, 6, 2, NULL); /* drafts that are wrong */
    test_seq_rollback(e, seq, LEN - TAIL);
    test_feed(e, seq, s->ids + LEN - TAIL, TAIL, 3, seen);
    assert_as_whole(s, seen, LEN - TAIL, TAIL, "behind a rollback of", 6);
    test_feed(e, fork, s->ids + LEN - TAIL, TAIL, 1, seen);
    assert_as_whole(s, seen, LEN - TAIL, TAIL, "a fork at", LEN - TAIL);
    test_seq_drop(e, fork);
    test_seq_drop(e, seq);
    free(other_ids);
    free(seen);
}

static void check_prefixes(scene *s)
{
    tamis_session_params p = params_of(s->c);
    p.prefix_caching = true;
    test_engine e = test_engine_share(&s->engine, &p);
    float *seen = calloc((size_t)LEN * (size_t)s->vocab, sizeof *seen);
    tamis_error err;
    int32_t n_reused = 0;
    assert_non_null(seen);
    const int32_t first = test_seq_new(&e);
    test_feed(&e, first, s->ids, LEN - TAIL, 0, NULL);
    test_must(tamis_seq_keep(e.session, first, &err), &err, "keep");
    test_seq_drop(&e, first);
    const int32_t seq = test_seq_new(&e);
    test_must(tamis_seq_match(e.session, seq, s->ids, LEN, &n_reused, &err), &err, "match");
    assert_in_range(n_reused, LEN - TAIL - 1, LEN - TAIL); /* V4: a snapshot at the last token */
    test_feed(&e, seq, s->ids + n_reused, LEN - n_reused, 4, seen);
    assert_as_whole(s, seen, n_reused, LEN - n_reused, "behind a prefix of", n_reused);
    free(seen);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- the profiles differ */

/* Or the checks above would pass with a profile that is never looked at. */
static void check_difference(scene *s)
{
    const tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, LEN);
    test_engine exact = test_engine_open(s->c->dir, &p);
    float *logits = test_logits_of(&exact, s->ids, LEN, 0);
    const double diff = test_max_diff(logits, s->whole, (int64_t)LEN * s->vocab, NULL);
    printf("%s, profile %s: at most %.3g from exact\n", s->c->dir,
           tamis_profile_name(s->c->profile), diff);
    assert_true(diff > 1e-4 && diff < 100.0);
    free(logits);
    test_engine_close(&exact);
}

static void check_combination(const struct combination *c)
{
    scene s = scene_open(c);
    check_steps(&s);
    check_sessions(&s);
    if (!TEST_IS_SANITIZED && c < combinations + N_ON_PORTABLE)
        check_levels(&s);
    check_sequences(&s);
    check_prefixes(&s);
    check_difference(&s);
    scene_close(&s);
}

static void official_keeps_its_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_USED; i++)
        if (combinations[i].profile == TAMIS_PROFILE_OFFICIAL)
            check_combination(&combinations[i]);
}

static void ascend_keeps_its_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_USED; i++)
        if (combinations[i].profile == TAMIS_PROFILE_ASCEND)
            check_combination(&combinations[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(official_keeps_its_bits),
        cmocka_unit_test(ascend_keeps_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
