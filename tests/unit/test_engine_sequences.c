/*
 * Sequences against a fresh run of their tokens, bit for bit: forks, rollback, blocks that are
 * copied before they are overwritten, a pool that runs dry and recovers, shuffled blocks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"
#include "support/sanitized.h"

#define MODEL_DIR TAMIS_SOURCE_DIR "/tests/golden/v4-flash-bf16"
enum { VOCAB = 240, MAX_LEN = 420, MAX_SEQS = 4, N_ROUNDS = TEST_IS_SANITIZED ? 120 : 300 };

static tamis_session_params params_of(int32_t num_blocks)
{
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, MAX_LEN);
    p.block_tokens = 128;
    p.max_num_seqs = MAX_SEQS;
    p.max_num_batched_tokens = 160;
    p.max_num_logits = MAX_SEQS;
    p.max_rollback = 40;
    p.num_blocks = num_blocks;
    p.block_order_seed = 5;
    return p;
}

/* A fresh session that reads histories in one step. */
static test_engine open_oracle(const test_engine *engine)
{
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, MAX_LEN);
    return test_engine_share(engine, &p);
}

static void random_ids(test_rng *rng, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)test_rng_int(rng, 0, VOCAB - 1);
}

static void assert_last_row(test_engine *oracle, const int32_t *ids, int32_t n, const float *row)
{
    tamis_error err;
    const tamis_feed feed = {test_seq_new(oracle), ids, n, TAMIS_LOGITS_LAST, NULL};
    test_must(tamis_session_step(oracle->session, &feed, 1, &err), &err, "oracle");
    test_assert_same_bits(row, tamis_session_logits(oracle->session, 0), 1, VOCAB, "last row");
    test_seq_drop(oracle, feed.seq);
}

/* ---------------------------------------------------------------- given histories */

/* Both sides of a fork at every kind of place go their own way; the block they share stays. */
static void forks_go_their_own_way(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("forks_go_their_own_way", 41);
    const tamis_session_params p = params_of(0);
    test_engine e = test_engine_open(MODEL_DIR, &p), oracle = open_oracle(&e);
    const int32_t places[] = {0, 1, 127, 128, 129, 256, 300};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int32_t ids[2][MAX_LEN], n_blocks;
        const int32_t at = places[i], n = at + 20;
        random_ids(&rng, ids[0], n);
        memcpy(ids[1], ids[0], sizeof ids[0]);
        random_ids(&rng, ids[1] + at, 20);
        const int32_t a = test_seq_new(&e);
        if (at > 0)
            test_feed(&e, a, ids[0], at, 160, NULL);
        const int32_t b = test_seq_fork(&e, a);
        assert_int_equal(tamis_seq_len(e.session, b), at);
        const int32_t *table_a = tamis_session_block_table(e.session, a, &n_blocks);
        const int32_t *table_b = tamis_session_block_table(e.session, b, &n_blocks);
        for (int32_t k = 0; k < n_blocks; k++)
            assert_int_equal(table_a[k] == table_b[k], k < at / 128);
        for (int32_t t = at; t < n; t += 10) {
            const tamis_feed feeds[2] = {{b, ids[1] + t, 10, TAMIS_LOGITS_LAST, NULL},
                                         {a, ids[0] + t, 10, TAMIS_LOGITS_LAST, NULL}};
            tamis_error err;
            test_must(tamis_session_step(e.session, feeds, 2, &err), &err, "step");
            assert_last_row(&oracle, ids[1], t + 10, tamis_session_logits(e.session, 0));
            assert_last_row(&oracle, ids[0], t + 10, tamis_session_logits(e.session, 1));
        }
        test_seq_drop(&e, a); /* the fork outlives its origin */
        test_feed(&e, b, ids[0], 1, 0, NULL);
        test_seq_drop(&e, b);
        assert_int_equal(e.session->pool.n_free, e.session->pool.n_blocks - 1);
    }
    test_engine_close(&oracle);
    test_engine_close(&e);
}

/* Rolled back into a block it shares, a sequence must not write into its fork's past. */
static void a_shared_block_is_copied_before_it_is_overwritten(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_shared_block_is_copied_before_it_is_overwritten", 42);
    const tamis_session_params p = params_of(9); /* 8 blocks: not one to spare */
    test_engine e = test_engine_open(MODEL_DIR, &p), oracle = open_oracle(&e);
    int32_t ids[3][MAX_LEN], seqs[3], n_blocks;
    random_ids(&rng, ids[0], MAX_LEN);
    seqs[0] = test_seq_new(&e);
    test_feed(&e, seqs[0], ids[0], 256, 128, NULL);
    for (int i = 1; i < 3; i++) {
        seqs[i] = test_seq_fork(&e, seqs[0]);
        memcpy(ids[i], ids[0], sizeof ids[0]);
        random_ids(&rng, ids[i] + 240 - i, MAX_LEN - 256);
    }
    assert_int_equal(e.session->pool.n_free, 6);
    /* 1 and 2 write at 239 and 238 in one step, 0 after it still has its own past. */
    test_seq_rollback(&e, seqs[1], 239);
    test_seq_rollback(&e, seqs[2], 238);
    tamis_error err;
    const tamis_feed feeds[2] = {{seqs[1], ids[1] + 239, 7, TAMIS_LOGITS_LAST, NULL},
                                 {seqs[2], ids[2] + 238, 9, TAMIS_LOGITS_LAST, NULL}};
    test_must(tamis_session_step(e.session, feeds, 2, &err), &err, "step");
    assert_int_equal(e.session->pool.n_free, 4);
    assert_last_row(&oracle, ids[1], 246, tamis_session_logits(e.session, 0));
    assert_last_row(&oracle, ids[2], 247, tamis_session_logits(e.session, 1));
    const int32_t shared = tamis_session_block_table(e.session, seqs[0], &n_blocks)[0];
    for (int i = 1; i < 3; i++)
        assert_int_equal(tamis_session_block_table(e.session, seqs[i], &n_blocks)[0], shared);
    const tamis_feed more = {seqs[0], ids[0] + 256, 3, TAMIS_LOGITS_LAST, NULL};
    test_must(tamis_session_step(e.session, &more, 1, &err), &err, "step");
    assert_last_row(&oracle, ids[0], 259, tamis_session_logits(e.session, 0));
    test_engine_close(&oracle);
    test_engine_close(&e);
}

/* All holders of a shared block overwrite it in one step: the last one needs no copy. */
static void the_last_holder_keeps_the_block(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_last_holder_keeps_the_block", 43);
    const tamis_session_params p = params_of(3);
    test_engine e = test_engine_open(MODEL_DIR, &p), oracle = open_oracle(&e);
    int32_t ids[2][MAX_LEN];
    random_ids(&rng, ids[0], 128);
    memcpy(ids[1], ids[0], sizeof ids[0]);
    const int32_t a = test_seq_new(&e);
    test_feed(&e, a, ids[0], 128, 0, NULL);
    const int32_t b = test_seq_fork(&e, a);
    test_seq_rollback(&e, a, 120);
    test_seq_rollback(&e, b, 120);
    random_ids(&rng, ids[0] + 120, 8);
    random_ids(&rng, ids[1] + 120, 8);
    tamis_error err;
    const tamis_feed feeds[2] = {{a, ids[0] + 120, 8, TAMIS_LOGITS_LAST, NULL},
                                 {b, ids[1] + 120, 8, TAMIS_LOGITS_LAST, NULL}};
    assert_int_equal(e.session->pool.n_free, 1);
    test_must(tamis_session_step(e.session, feeds, 2, &err), &err, "step");
    assert_int_equal(e.session->pool.n_free, 0);
    assert_last_row(&oracle, ids[0], 128, tamis_session_logits(e.session, 0));
    assert_last_row(&oracle, ids[1], 128, tamis_session_logits(e.session, 1));
    test_engine_close(&oracle);
    test_engine_close(&e);
}

static void every_rollback_within_the_limit_replays(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("every_rollback_within_the_limit_replays", 44);
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, MAX_LEN);
    p.block_tokens = 128;
    p.max_rollback = 12;
    test_engine e = test_engine_open(MODEL_DIR, &p);
    int32_t ids[MAX_LEN];
    random_ids(&rng, ids, 270);
    float *want = test_logits_of(&e, ids, 270, 0), *seen = calloc(270 * VOCAB, sizeof *seen);
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, ids, 259, 7, NULL);
    for (int32_t back = 1; back <= 12; back++) {
        assert_true(tamis_seq_rollback_floor(e.session, seq) <= 259 - 12);
        test_seq_rollback(&e, seq, 259 - back);
        int32_t n_blocks;
        tamis_session_block_table(e.session, seq, &n_blocks);
        assert_int_equal(n_blocks, (259 - back + 127) / 128);
        test_feed(&e, seq, ids, back, 3, NULL); /* something else first */
        test_seq_rollback(&e, seq, 259 - back);
        test_feed(&e, seq, ids + 259 - back, back, back, seen);
        test_assert_same_bits(seen, want + (259 - back) * VOCAB, back, VOCAB, "replay");
    }
    test_seq_rollback(&e, seq, 0); /* always allowed */
    assert_int_equal(tamis_seq_rollback_floor(e.session, seq), 0);
    test_feed(&e, seq, ids, 270, 64, seen);
    test_assert_same_bits(seen, want, 270, VOCAB, "from the start");
    free(want);
    free(seen);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- random histories */

typedef struct history {
    bool is_live;
    int32_t n, ids[MAX_LEN];
} history;

/* A step over random sequences; refused for blocks now and then, and then without a trace. */
static bool random_step(test_rng *rng, test_engine *e, test_engine *oracle, history *h,
                        bool compare)
{
    tamis_feed feeds[MAX_SEQS];
    int32_t order[MAX_SEQS], n_feeds = 0, ids[MAX_SEQS][40];
    test_rng_permutation(rng, order, MAX_SEQS);
    for (int i = 0; i < MAX_SEQS; i++) {
        const int32_t seq = order[i];
        if (!h[seq].is_live || test_rng_int(rng, 0, 3) == 0)
            continue;
        int32_t n = test_rng_int(rng, 0, 2) == 0 ? 1 : (int32_t)test_rng_int(rng, 0, 40);
        n = n > MAX_LEN - h[seq].n ? MAX_LEN - h[seq].n : n;
        random_ids(rng, ids[n_feeds], n);
        feeds[n_feeds] = (tamis_feed){seq, ids[n_feeds], n, TAMIS_LOGITS_LAST, NULL};
        n_feeds++;
    }
    const int32_t n_free = e->session->pool.n_free;
    tamis_error err;
    const tamis_status st = tamis_session_step(e->session, feeds, n_feeds, &err);
    if (st == TAMIS_STATUS_NO_BLOCKS) {
        assert_int_equal(e->session->pool.n_free, n_free);
        for (int i = 0; i < MAX_SEQS; i++)
            assert_int_equal(tamis_seq_len(e->session, i), h[i].is_live ? h[i].n : -1);
        return false;
    }
    test_must(st, &err, "step");
    for (int32_t f = 0, row = 0; f < n_feeds; f++) {
        history *fed = &h[feeds[f].seq];
        memcpy(fed->ids + fed->n, feeds[f].tokens, (size_t)feeds[f].n_tokens * sizeof *fed->ids);
        fed->n += feeds[f].n_tokens;
        assert_int_equal(tamis_seq_len(e->session, feeds[f].seq), fed->n);
        if (feeds[f].n_tokens > 0 && compare)
            assert_last_row(oracle, fed->ids, fed->n, tamis_session_logits(e->session, row));
        row += feeds[f].n_tokens > 0;
    }
    return true;
}

static void random_change(test_rng *rng, test_engine *e, history *h)
{
    const int32_t seq = (int32_t)test_rng_int(rng, 0, MAX_SEQS - 1);
    if (!h[seq].is_live) { /* the lowest unused index is handed out */
        int32_t first = 0;
        while (h[first].is_live)
            first++;
        assert_int_equal(test_seq_new(e), first);
        h[first] = (history){.is_live = true};
        return;
    }
    int32_t copy;
    tamis_error err;
    const int32_t floor = tamis_seq_rollback_floor(e->session, seq);
    switch (test_rng_int(rng, 0, 4)) {
    case 0:
        test_seq_drop(e, seq);
        h[seq].is_live = false;
        break;
    case 1:
    case 2:
        if (tamis_seq_fork(e->session, seq, &copy, &err) == TAMIS_STATUS_OK)
            h[copy] = h[seq];
        else
            assert_int_equal(err.status, TAMIS_STATUS_NO_BLOCKS);
        break;
    default:
        assert_true(floor <= h[seq].n);
        h[seq].n = test_rng_int(rng, 0, 9) == 0 ? 0 : (int32_t)test_rng_int(rng, floor, h[seq].n);
        test_seq_rollback(e, seq, h[seq].n);
    }
}

static void assert_no_block_is_lost(const test_engine *e, const history *h)
{
    const tamis_session *s = e->session;
    int32_t refs[16] = {0};
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        int32_t n = 0;
        const int32_t *table = tamis_session_block_table(s, i, &n);
        assert_int_equal(table != NULL, h[i].is_live);
        assert_int_equal(n, h[i].is_live ? (h[i].n + 127) / 128 : 0);
        for (int32_t k = 0; k < n; k++)
            refs[table[k]]++;
    }
    int32_t n_free = 0;
    for (int32_t block = 1; block < s->pool.n_blocks; block++) {
        assert_int_equal(s->pool.refs[block], refs[block]);
        n_free += refs[block] == 0;
    }
    assert_int_equal(s->pool.n_free, n_free);
}

static void random_histories(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("random_histories", 45);
    const tamis_session_params p = params_of(11); /* 10 blocks for sequences of up to 4 x 4 */
    test_engine e = test_engine_open(MODEL_DIR, &p), oracle = open_oracle(&e);
    static history h[MAX_SEQS];
    memset(h, 0, sizeof h);
    int n_refused = 0, n_steps = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        if (test_rng_int(&rng, 0, 3) == 0)
            random_change(&rng, &e, h);
        else if (random_step(&rng, &e, &oracle, h, round % 15 == 14))
            n_steps++;
        else
            n_refused++;
        assert_no_block_is_lost(&e, h);
    }
    printf("random_histories: %d steps, %d refused for want of blocks\n", n_steps, n_refused);
    assert_true(n_steps > 50 && n_refused > 0);
    test_engine_close(&oracle);
    test_engine_close(&e);
    assert_int_equal(tamis_num_allocs_in_run(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_go_their_own_way),
        cmocka_unit_test(a_shared_block_is_copied_before_it_is_overwritten),
        cmocka_unit_test(the_last_holder_keeps_the_block),
        cmocka_unit_test(every_rollback_within_the_limit_replays),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
