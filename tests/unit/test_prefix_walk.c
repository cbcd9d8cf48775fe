/*
 * A random walk over everything that prefix reuse touches: open, match, feed, fork, roll back,
 * keep, evict, forget, save, load, drop, a pool that runs dry. Every row of logits of every
 * sequence is compared, bit for bit, with a cold run of its tokens. Whatever nobody may read is
 * full of NaN: free blocks, and the rings of a sequence before it begins.
 *
 * All sequences follow one of a few texts with common beginnings, and may change over to another
 * where the two part, so prefixes are hit often and a handful of cold runs is all the reference
 * that is needed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

enum {
    BLOCK = 128,
    MAX_LEN = 400,
    MAX_SEQS = 4,
    N_TEXTS = TEST_IS_SANITIZED ? 3 : 6,
    N_BLOCKS = 14, /* four whole sequences would need 16 and the null block */
    N_ROUNDS = TEST_IS_SANITIZED ? 75 : 1000
};

typedef struct text {
    int32_t ids[MAX_LEN];
    float *logits; /* [MAX_LEN][vocab_size] of a cold run */
} text;

typedef struct history {
    bool is_live;
    int32_t n, text; /* the sequence is ids[0 .. n) of it */
} history;

typedef struct walk {
    test_engine engine;
    test_rng rng;
    text texts[N_TEXTS];
    history seqs[MAX_SEQS];
    history saved; /* what the file holds, if is_live */
    char *dir, *file;
    int32_t n_done[12]; /* by operation */
    int32_t n_reused, n_refused;
} walk;

static int32_t pick(walk *w, int64_t low, int64_t high)
{
    return (int32_t)test_rng_int(&w->rng, low, high);
}

/* ---------------------------------------------------------------- texts */

/* Text t leaves an earlier one at a random place, now and then near a block's end. */
static void make_texts(walk *w)
{
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, MAX_LEN);
    p.kv_cache_dtype = tamis_session_get_params(w->engine.session)->kv_cache_dtype;
    test_engine cold = test_engine_share(&w->engine, &p);
    for (int32_t t = 0; t < N_TEXTS; t++) {
        int32_t from = t == 0 ? 0 : pick(w, 1, MAX_LEN - 20);
        if (t % 2 == 1)
            from = pick(w, 1, 2) * BLOCK + pick(w, -2, 2);
        for (int32_t i = 0; i < MAX_LEN; i++)
            w->texts[t].ids[i] = pick(w, 0, w->engine.info->vocab_size - 1);
        memcpy(w->texts[t].ids, w->texts[t == 0 ? 0 : pick(w, 0, t - 1)].ids,
               (size_t)from * sizeof(int32_t));
        w->texts[t].logits = test_logits_of(&cold, w->texts[t].ids, MAX_LEN, 0);
    }
    test_engine_close(&cold);
}

/* A text that begins with the sequence's tokens: its own, or another one. */
static int32_t text_for(walk *w, const history *h)
{
    const int32_t t = pick(w, 0, N_TEXTS - 1);
    const size_t bytes = (size_t)h->n * sizeof(int32_t);
    return memcmp(w->texts[t].ids, w->texts[h->text].ids, bytes) == 0 ? t : h->text;
}

/* ---------------------------------------------------------------- what must hold */

static void fill_with_nan(const tamis_cache_store *store, tamis_cache_life life, int32_t unit)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life == life)
            memset(c->base + unit * c->stride, 0xFF, (size_t)c->stride);
    }
}

/* Blocks are held by tables and entries and by nobody else; free ones are made unreadable. */
static void check_blocks(walk *w)
{
    const tamis_session *s = w->engine.session;
    int32_t refs[N_BLOCKS] = {0}, n_free = 0;
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        int32_t n = 0;
        const int32_t *table = tamis_session_block_table(s, i, &n);
        assert_int_equal(table != NULL, w->seqs[i].is_live);
        assert_int_equal(n, w->seqs[i].is_live ? (w->seqs[i].n + BLOCK - 1) / BLOCK : 0);
        for (int32_t k = 0; k < n; k++)
            refs[table[k]]++;
    }
    for (int32_t e = 0; e < s->prefix.max_entries; e++)
        if (s->prefix.entries[e].block != 0)
            refs[s->prefix.entries[e].block]++;
    for (int32_t block = 1; block < N_BLOCKS; block++) {
        assert_int_equal(s->pool.refs[block], refs[block]);
        if (refs[block] == 0)
            fill_with_nan(s->net->store, TAMIS_CACHE_PAGED, block);
        n_free += refs[block] == 0;
    }
    assert_int_equal(s->pool.n_free, n_free);
}

static void assert_is_unchanged(const walk *w)
{
    for (int32_t i = 0; i < MAX_SEQS; i++)
        assert_int_equal(tamis_seq_len(w->engine.session, i),
                         w->seqs[i].is_live ? w->seqs[i].n : -1);
}

/* ---------------------------------------------------------------- operations */

static void drop(walk *w, int32_t seq)
{
    test_seq_drop(&w->engine, seq);
    w->seqs[seq].is_live = false;
}

static void open_sequence(walk *w)
{
    tamis_error err;
    int32_t seq, n_reused = 0;
    if (tamis_seq_create(w->engine.session, &seq, &err) != TAMIS_STATUS_OK) {
        drop(w, pick(w, 0, MAX_SEQS - 1));
        test_must(tamis_seq_create(w->engine.session, &seq, &err), &err, "create");
    }
    fill_with_nan(w->engine.session->net->store, TAMIS_CACHE_RING, seq);
    w->seqs[seq] = (history){.is_live = true, .text = pick(w, 0, N_TEXTS - 1)};
    if (pick(w, 0, 4) == 0)
        return;
    const int32_t n = pick(w, 1, MAX_LEN), *ids = w->texts[w->seqs[seq].text].ids;
    test_must(tamis_seq_match(w->engine.session, seq, ids, n, &n_reused, &err), &err, "match");
    assert_in_range(n_reused, 0, n - 1);
    w->seqs[seq].n = n_reused;
    w->n_reused += n_reused;
}

static void feed(walk *w)
{
    tamis_feed feeds[MAX_SEQS];
    int32_t n_feeds = 0, order[MAX_SEQS], row = 0;
    const size_t vocab = (size_t)w->engine.info->vocab_size;
    test_rng_permutation(&w->rng, order, MAX_SEQS);
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        history *h = &w->seqs[order[i]];
        if (!h->is_live || pick(w, 0, 1) == 0)
            continue;
        const int32_t most = pick(w, 0, 9) == 0 ? 200 : pick(w, 0, 2) == 0 ? 1 : 60;
        int32_t n = pick(w, 1, most);
        n = n > MAX_LEN - h->n ? MAX_LEN - h->n : n;
        h->text = text_for(w, h);
        feeds[n_feeds++] =
            (tamis_feed){order[i], w->texts[h->text].ids + h->n, n, TAMIS_LOGITS_ALL, NULL};
    }
    const tamis_prefix_stats before = tamis_session_get_prefix_stats(w->engine.session);
    tamis_error err;
    const tamis_status st = tamis_session_step(w->engine.session, feeds, n_feeds, &err);
    if (st == TAMIS_STATUS_NO_BLOCKS) { /* nothing has gone, neither sequences nor prefixes */
        assert_int_equal(tamis_session_get_prefix_stats(w->engine.session).n_evicted_blocks,
                         before.n_evicted_blocks);
        assert_is_unchanged(w);
        w->n_refused++;
        return;
    }
    test_must(st, &err, "step");
    for (int32_t f = 0; f < n_feeds; f++) {
        history *h = &w->seqs[feeds[f].seq];
        for (int32_t i = 0; i < feeds[f].n_tokens; i++, h->n++)
            test_assert_same_bits(tamis_session_logits(w->engine.session, row++),
                                  w->texts[h->text].logits + (size_t)h->n * vocab, 1,
                                  (int64_t)vocab, "a token of the walk");
    }
}

static void fork(walk *w, int32_t seq)
{
    tamis_error err;
    int32_t copy;
    if (tamis_seq_fork(w->engine.session, seq, &copy, &err) == TAMIS_STATUS_OK)
        w->seqs[copy] = w->seqs[seq];
    else
        assert_int_equal(err.status, TAMIS_STATUS_NO_BLOCKS);
}

static void roll_back(walk *w, int32_t seq)
{
    history *h = &w->seqs[seq];
    const int32_t floor = tamis_seq_rollback_floor(w->engine.session, seq);
    assert_in_range(floor, 0, h->n);
    h->n = pick(w, 0, 9) == 0 ? 0 : pick(w, floor > h->n - 60 ? floor : h->n - 60, h->n);
    test_seq_rollback(&w->engine, seq, h->n);
}

static void save(walk *w, int32_t seq)
{
    tamis_error err;
    test_must(tamis_seq_save(w->engine.session, seq, w->file, &err), &err, "save");
    w->saved = w->seqs[seq];
}

/* The pool may be too full for it; then nothing has changed. */
static void load(walk *w)
{
    tamis_error err;
    int32_t seq;
    if (!w->saved.is_live || tamis_seq_create(w->engine.session, &seq, &err) != TAMIS_STATUS_OK)
        return;
    fill_with_nan(w->engine.session->net->store, TAMIS_CACHE_RING, seq);
    w->seqs[seq] = (history){.is_live = true};
    if (tamis_seq_load(w->engine.session, seq, w->file, &err) == TAMIS_STATUS_OK)
        w->seqs[seq] = w->saved;
    else
        assert_int_equal(err.status, TAMIS_STATUS_NO_BLOCKS);
    w->n_done[9]++;
}

static void random_operation(walk *w)
{
    const int32_t seq = pick(w, 0, MAX_SEQS - 1), op = pick(w, 0, 45);
    tamis_error err;
    if (op < 22) {
        feed(w);
        w->n_done[0]++;
    } else if (op < 28) {
        open_sequence(w);
        w->n_done[1]++;
    } else if (op == 28) {
        tamis_prefix_cache_evict(&w->engine.session->prefix);
        w->n_done[2]++;
    } else if (op == 29 && pick(w, 0, 2) == 0) {
        tamis_session_drop_prefixes(w->engine.session);
        w->n_done[3]++;
    } else if (op > 43) {
        load(w);
    } else if (w->seqs[seq].is_live && op > 41) {
        save(w, seq);
        w->n_done[8]++;
    } else if (w->seqs[seq].is_live && op < 33) {
        test_must(tamis_seq_keep(w->engine.session, seq, &err), &err, "keep");
        w->n_done[4]++;
    } else if (w->seqs[seq].is_live && op < 36) {
        roll_back(w, seq);
        w->n_done[5]++;
    } else if (w->seqs[seq].is_live && op < 38) {
        fork(w, seq);
        w->n_done[6]++;
    } else if (w->seqs[seq].is_live) {
        drop(w, seq);
        w->n_done[7]++;
    }
}

static void run_walk(const char *name, const char *dir, tamis_dtype dtype, int32_t n_rounds,
                     uint64_t seed)
{
    walk *w = calloc(1, sizeof *w);
    w->rng = test_rng_start(name, seed);
    tamis_session_params p = test_session_params(dtype, MAX_LEN);
    p.block_tokens = BLOCK;
    p.max_num_seqs = MAX_SEQS;
    p.max_num_batched_tokens = p.max_num_logits = MAX_SEQS * 200;
    p.num_blocks = N_BLOCKS;
    p.block_order_seed = 9;
    p.prefix_caching = true;
    p.max_snapshots = 5;
    w->engine = test_engine_open(dir, &p);
    make_texts(w);
    w->dir = test_temp_dir_make();
    w->file = test_path(w->dir, "sequence");
    for (int32_t round = 0; round < n_rounds; round++) {
        random_operation(w);
        check_blocks(w);
    }
    const tamis_prefix_stats s = tamis_session_get_prefix_stats(w->engine.session);
    printf(
        "%s: steps %d, opened %d, evicted %d, forgot %d, kept %d, back %d, forked %d, dropped %d, "
        "saved %d, loaded %d; "
        "%d tokens reused in %d hits, %d steps refused, %d blocks and %d snapshots evicted\n",
        name, w->n_done[0], w->n_done[1], w->n_done[2], w->n_done[3], w->n_done[4], w->n_done[5],
        w->n_done[6], w->n_done[7], w->n_done[8], w->n_done[9], w->n_reused, (int)s.n_hits,
        w->n_refused, (int)s.n_evicted_blocks, (int)s.n_evicted_snapshots);
    if (n_rounds >= 300)
        assert_true(s.n_hits > 0 && s.n_evicted_blocks > 0);
    assert_int_equal(tamis_num_allocs_in_run(), 0);
    free(w->file);
    test_temp_dir_remove(w->dir);
    for (int32_t t = 0; t < N_TEXTS; t++)
        free(w->texts[t].logits);
    test_engine_close(&w->engine);
    free(w);
}

static void walk_of_the_demo_model(void **state)
{
    (void)state;
    run_walk("walk_of_the_demo_model", TAMIS_SOURCE_DIR "/models/demo", TAMIS_DTYPE_BF16, N_ROUNDS,
             401);
}

static void walk_of_v4_with_f32_caches(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED)
        skip(); /* what a sanitizer could see is in the demo model's walk */
    run_walk("walk_of_v4_with_f32_caches", TAMIS_SOURCE_DIR "/tests/golden/v4-flash-fp8",
             TAMIS_DTYPE_F32, N_ROUNDS / 3, 402);
}

static void walk_of_glm(void **state)
{
    (void)state;
    run_walk("walk_of_glm", TAMIS_SOURCE_DIR "/tests/golden/glm52-fp8", TAMIS_DTYPE_BF16,
             N_ROUNDS / 3, 403);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walk_of_the_demo_model),
        cmocka_unit_test(walk_of_v4_with_f32_caches),
        cmocka_unit_test(walk_of_glm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
