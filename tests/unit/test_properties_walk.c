/*
 * Random walks: sequences are created, fed in mixed steps, rolled back, forked and dropped in any
 * order over a pool with too few blocks. Now and then every sequence is compared with a straight
 * run of its tokens in a session of its own, bit for bit. A refused step must change nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"
#include "support/rng.h"

enum { MAX_SEQS = 5, MAX_LEN = 420, STEP_LIMIT = 160, N_MOVES = TEST_IS_SANITIZED ? 100 : 400 };

typedef struct sequence {
    bool is_live;
    int32_t seq, len;
    int32_t ids[MAX_LEN];
} sequence;

typedef struct walk {
    test_engine engine, reference; /* the reference runs one sequence at a time */
    test_rng rng;
    sequence sequences[MAX_SEQS];
    int n_steps, n_rollbacks, n_forks, n_refused, n_checks;
    const char *where;
} walk;

static int32_t draw(walk *w, int64_t low, int64_t high)
{
    return (int32_t)test_rng_int(&w->rng, low, high);
}

/* A live sequence, or NULL. */
static sequence *pick(walk *w)
{
    sequence *s = &w->sequences[draw(w, 0, MAX_SEQS - 1)];
    return s->is_live ? s : NULL;
}

static sequence *pick_free(walk *w)
{
    for (int i = 0; i < MAX_SEQS; i++)
        if (!w->sequences[i].is_live)
            return &w->sequences[i];
    return NULL;
}

/* The next logits of the sequence and of a straight run must be the same bits. */
static void check(walk *w, sequence *s)
{
    const int32_t vocab = w->engine.info->vocab_size;
    if (s->len == 0 || s->len >= MAX_LEN)
        return;
    s->ids[s->len++] = draw(w, 0, vocab - 1);
    float *expected = test_logits_of(&w->reference, s->ids, s->len, 0);
    const tamis_feed feed = {s->seq, &s->ids[s->len - 1], 1, TAMIS_LOGITS_LAST, NULL};
    tamis_error err;
    const tamis_status st = tamis_session_step(w->engine.session, &feed, 1, &err);
    if (st == TAMIS_STATUS_NO_BLOCKS) {
        s->len--;
        w->n_refused++;
    } else {
        test_must(st, &err, "check step");
        test_assert_same_bits(tamis_session_logits(w->engine.session, 0),
                              expected + (int64_t)(s->len - 1) * vocab, 1, vocab, w->where);
        w->n_checks++;
    }
    assert_int_equal(tamis_seq_len(w->engine.session, s->seq), s->len);
    free(expected);
}

/* One step over a random subset: long, short, single and empty feeds. */
static void step(walk *w)
{
    const int32_t vocab = w->engine.info->vocab_size;
    tamis_feed feeds[MAX_SEQS];
    sequence *fed[MAX_SEQS];
    int32_t n = 0, left = STEP_LIMIT;
    tamis_error err;
    for (int i = 0; i < MAX_SEQS; i++) {
        sequence *s = &w->sequences[i];
        if (!s->is_live || draw(w, 0, 3) == 0)
            continue;
        int32_t count = draw(w, 0, 4) == 0 ? draw(w, 0, 130) : draw(w, 0, 3);
        count = count < left ? count : left;
        count = count < MAX_LEN - s->len ? count : MAX_LEN - s->len;
        for (int32_t t = 0; t < count; t++)
            s->ids[s->len + t] = draw(w, 0, vocab - 1);
        feeds[n] = (tamis_feed){s->seq, s->ids + s->len, count, TAMIS_LOGITS_NONE, NULL};
        fed[n++] = s;
        left -= count;
    }
    if (n == 0)
        return;
    const tamis_status st = tamis_session_step(w->engine.session, feeds, n, &err);
    if (st != TAMIS_STATUS_NO_BLOCKS)
        test_must(st, &err, "step");
    w->n_refused += st != TAMIS_STATUS_OK;
    w->n_steps++;
    for (int32_t i = 0; i < n; i++) {
        fed[i]->len += st == TAMIS_STATUS_OK ? feeds[i].n_tokens : 0;
        assert_int_equal(tamis_seq_len(w->engine.session, fed[i]->seq), fed[i]->len);
    }
}

static void create(walk *w)
{
    sequence *s = pick_free(w);
    if (s == NULL)
        return;
    s->seq = test_seq_new(&w->engine);
    s->len = 0;
    s->is_live = true;
}

static void fork_one(walk *w)
{
    sequence *from = pick(w), *to = pick_free(w);
    if (from == NULL || to == NULL)
        return;
    tamis_error err;
    const int32_t seq = from->seq;
    *to = *from;
    const tamis_status st = tamis_seq_fork(w->engine.session, seq, &to->seq, &err);
    to->is_live = st == TAMIS_STATUS_OK;
    if (st != TAMIS_STATUS_NO_BLOCKS)
        test_must(st, &err, "fork");
    w->n_forks += st == TAMIS_STATUS_OK;
}

static void roll_back(walk *w)
{
    sequence *s = pick(w);
    if (s == NULL || s->len == 0)
        return;
    const int32_t floor = tamis_seq_rollback_floor(w->engine.session, s->seq);
    const int32_t to = draw(w, 0, 19) == 0 ? 0 : draw(w, floor, s->len);
    test_seq_rollback(&w->engine, s->seq, to);
    s->len = to;
    w->n_rollbacks++;
}

static void drop(walk *w)
{
    sequence *s = pick(w);
    if (s == NULL)
        return;
    test_seq_drop(&w->engine, s->seq);
    s->is_live = false;
}

static void run_walk(const char *dir, tamis_dtype dtype, uint64_t seed)
{
    tamis_session_params params = test_session_params(dtype, MAX_LEN);
    walk w = {.rng = test_rng_start("walk", seed), .where = dir};
    params.max_num_logits = STEP_LIMIT;
    params.max_num_seqs = MAX_SEQS;
    params.max_num_batched_tokens = STEP_LIMIT;
    params.block_tokens = 128;
    params.num_blocks = 9; /* five long sequences would need 20 */
    params.block_order_seed = 1 + (int32_t)seed;
    params.max_rollback = 12;
    params.n_threads = 2;
    w.engine = test_engine_open(dir, &params);
    const tamis_session_params plain = test_session_params(dtype, MAX_LEN);
    w.reference = test_engine_share(&w.engine, &plain);
    for (int i = 0; i < N_MOVES; i++) {
        const int32_t move = draw(&w, 0, 15);
        if (move < 8)
            step(&w);
        else if (move < 10)
            roll_back(&w);
        else if (move < 12)
            fork_one(&w);
        else if (move < 13)
            create(&w);
        else if (move < 15)
            drop(&w);
        sequence *checked = i % 3 == 0 ? pick(&w) : NULL;
        if (checked != NULL)
            check(&w, checked);
    }
    printf("%s: %d steps, %d rollbacks, %d forks, %d refused steps, %d comparisons\n", dir,
           w.n_steps, w.n_rollbacks, w.n_forks, w.n_refused, w.n_checks);
    assert_true(w.n_steps > 0 && w.n_rollbacks > 0 && w.n_forks > 0 && w.n_checks > 0);
    test_engine_close(&w.reference);
    test_engine_close(&w.engine);
}

static void test_walk_v4_f32(void **state)
{
    (void)state;
    run_walk("tests/golden/v4-flash-fp8", TAMIS_DTYPE_F32, 51);
}
static void test_walk_v4_bf16(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* one walk of each back end */
        skip();
    run_walk("tests/golden/v4-pro-fp8", TAMIS_DTYPE_BF16, 52);
}
static void test_walk_v32_f32(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* one walk of each back end */
        skip();
    run_walk("tests/golden/v32-fp8", TAMIS_DTYPE_F32, 53);
}
static void test_walk_glm_bf16(void **state)
{
    (void)state;
    run_walk("tests/golden/glm52-fp8", TAMIS_DTYPE_BF16, 54);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_v4_f32),
        cmocka_unit_test(test_walk_v4_bf16),
        cmocka_unit_test(test_walk_v32_f32),
        cmocka_unit_test(test_walk_glm_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
