/*
 * Prefix reuse through the public API: what is taken over gives the bits of a cold run, in every
 * family and cache type; how much is taken over; rings of another slot full of NaN; what a refused
 * or faulty step leaves behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"
#include "support/sanitized.h"

#define GOLDEN  TAMIS_SOURCE_DIR "/tests/golden/"
#define V4_DIR  GOLDEN "v4-flash-bf16"
#define GLM_DIR GOLDEN "glm52-fp8"
enum { MAX_LEN = 720, BLOCK = 256 };

static const char *const dirs[] = {V4_DIR,
                                   GOLDEN "v4-flash-fp8",
                                   GOLDEN "v4-pro-fp8",
                                   GOLDEN "v32-bf16",
                                   GOLDEN "v32-fp8",
                                   GOLDEN "glm5-bf16",
                                   GLM_DIR};
enum { N_DIRS = sizeof dirs / sizeof *dirs };

static tamis_session_params params_of(tamis_dtype dtype)
{
    tamis_session_params p = test_session_params(dtype, MAX_LEN);
    p.max_model_len = 0; /* the model's: 1,024 of V4, 512 of the others */
    p.max_num_seqs = 3;
    p.prefix_caching = true;
    return p;
}

static void random_ids(test_rng *rng, const test_engine *e, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)test_rng_int(rng, 0, e->info->vocab_size - 1);
}

/* Tokens that a sequence of this test may have. */
static int32_t limit_of(const test_engine *e)
{
    const int32_t len = tamis_session_get_params(e->session)->max_model_len;
    return len < MAX_LEN ? len : MAX_LEN;
}

static bool has_rings(const test_engine *e)
{
    return e->session->net->store->slot_bytes > 0;
}

/* A new sequence that takes over what it can. */
static int32_t match(test_engine *e, const int32_t *ids, int32_t n, int32_t *n_reused)
{
    tamis_error err;
    const int32_t seq = test_seq_new(e);
    test_must(tamis_seq_match(e->session, seq, ids, n, n_reused, &err), &err, "match");
    assert_int_equal(tamis_seq_len(e->session, seq), *n_reused);
    return seq;
}

static void keep(test_engine *e, int32_t seq)
{
    tamis_error err;
    test_must(tamis_seq_keep(e->session, seq, &err), &err, "keep");
}

/* Computes a prompt and leaves it to others. */
static void leave(test_engine *e, const int32_t *ids, int32_t n, int32_t chunk)
{
    const int32_t seq = test_seq_new(e);
    test_feed(e, seq, ids, n, chunk, NULL);
    keep(e, seq);
    test_seq_drop(e, seq);
}

/* Feeds ids[from .. n) and compares with the rows of a cold run. */
static void assert_goes_on(test_engine *e, int32_t seq, const int32_t *ids, int32_t from, int32_t n,
                           int32_t chunk, const float *cold)
{
    const int64_t vocab = e->info->vocab_size;
    float *seen = calloc((size_t)(n - from) * (size_t)vocab + 1, sizeof *seen);
    test_feed(e, seq, ids + from, n - from, chunk, seen);
    test_assert_same_bits(seen, cold + from * vocab, n - from, vocab, "after a prefix");
    free(seen);
}

/* ---------------------------------------------------------------- case 15 */

static void check_same_prompt(const char *dir, tamis_dtype dtype, test_rng *rng)
{
    const tamis_session_params p = params_of(dtype);
    test_engine e = test_engine_open(dir, &p);
    const int32_t lengths[] = {1,   2,   127, 128, 129, 130, 255, 256,
                               257, 258, 384, 492, 512, 513, 640};
    int32_t ids[MAX_LEN];
    random_ids(rng, &e, ids, MAX_LEN);
    float *cold = test_logits_of(&e, ids, limit_of(&e), 0);
    const size_t first = dtype == TAMIS_DTYPE_F32, step = TEST_IS_SANITIZED ? 4 : 2;
    for (size_t i = first; i < sizeof lengths / sizeof *lengths; i += step) {
        const int32_t n = lengths[i], chunk = (int32_t)test_rng_int(rng, 60, 700);
        int32_t n_reused;
        if (n + 20 > limit_of(&e))
            break;
        tamis_session_drop_prefixes(e.session);
        leave(&e, ids, n, chunk);
        for (int round = 0; round < 2; round++) {
            const int32_t seq = match(&e, ids, n, &n_reused);
            assert_int_equal(n_reused, n - 1);
            if (has_rings(&e))
                assert_int_equal(tamis_seq_rollback_floor(e.session, seq), n - 1);
            assert_goes_on(&e, seq, ids, n - 1, n, 0, cold);
            keep(&e, seq); /* nothing new */
            assert_goes_on(&e, seq, ids, n, n + 20, round == 0 ? 1 : 0, cold);
            test_seq_drop(&e, seq);
        }
    }
    free(cold);
    test_engine_close(&e);
}

static void case_15_the_same_prompt_computes_its_last_token_only(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_15_same_prompt", 151);
    for (int i = 0; i < N_DIRS; i++) {
        check_same_prompt(dirs[i], TAMIS_DTYPE_BF16, &rng);
        check_same_prompt(dirs[i], TAMIS_DTYPE_F32, &rng);
    }
}

/* What a prompt with d tokens in common may take over of one of n tokens. */
static int32_t expected_reuse(const test_engine *e, int32_t d)
{
    return has_rings(e) ? d / BLOCK * BLOCK : d;
}

static void check_common_prefix(const char *dir, tamis_dtype dtype, test_rng *rng)
{
    tamis_session_params p = params_of(dtype);
    p.max_snapshots = 40;
    test_engine e = test_engine_open(dir, &p);
    const int32_t common[] = {1, 100, 255, 256, 257, 300, 482, 511, 512, 513, 650};
    int32_t ids[MAX_LEN], other[MAX_LEN];
    random_ids(rng, &e, ids, MAX_LEN);
    leave(&e, ids, limit_of(&e), dtype == TAMIS_DTYPE_BF16 ? 0 : 100); /* boundaries in mid-step */
    for (size_t i = 0; i < sizeof common / sizeof *common; i += TEST_IS_SANITIZED ? 3 : 1) {
        const int32_t d = common[i], n = d + 30;
        int32_t n_reused;
        if (n > limit_of(&e))
            break;
        random_ids(rng, &e, other, MAX_LEN);
        memcpy(other, ids, (size_t)d * sizeof *ids);
        other[d] = (ids[d] + 1) % e.info->vocab_size;
        const int32_t seq = match(&e, other, n, &n_reused);
        assert_int_equal(n_reused, expected_reuse(&e, d));
        if (d == (has_rings(&e) ? 650 : 482)) /* the last; the sequence holds what it took over */
            tamis_session_drop_prefixes(e.session);
        float *cold = test_logits_of(&e, other, n, 0);
        assert_goes_on(&e, seq, other, n_reused, n, 0, cold);
        test_seq_drop(&e, seq);
        free(cold);
    }
    test_engine_close(&e);
}

static void case_15_a_common_prefix_costs_at_most_a_block(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_15_common_prefix", 152);
    for (int i = 0; i < N_DIRS; i++)
        check_common_prefix(dirs[i], i % 2 == 0 ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32, &rng);
}

static void case_15_a_prompt_of_2048_tokens(void **state)
{
    (void)state;
    enum { N = 2048, MORE = 8 };
    test_rng rng = test_rng_start("case_15_2048", 153);
    tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, 4096);
    p.max_num_batched_tokens = 1024;
    p.max_num_logits = MORE;
    p.n_threads = 2;
    p.max_num_seqs = 2;
    p.prefix_caching = true;
    test_engine e = test_engine_open(TAMIS_SOURCE_DIR "/models/demo", &p);
    int32_t ids[N + MORE], n_reused;
    float *cold = calloc((size_t)MORE * (size_t)e.info->vocab_size, sizeof *cold);
    random_ids(&rng, &e, ids, N + MORE);
    const int32_t first = test_seq_new(&e);
    test_feed(&e, first, ids, N - 1, 1024, NULL);
    test_feed(&e, first, ids + N - 1, 1, 0, cold);
    keep(&e, first);
    test_feed(&e, first, ids + N, MORE - 1, 1, cold + e.info->vocab_size);
    test_seq_drop(&e, first);
    const int32_t second = match(&e, ids, N, &n_reused);
    assert_int_equal(n_reused, N - 1);
    float *seen = calloc((size_t)MORE * (size_t)e.info->vocab_size, sizeof *seen);
    test_feed(&e, second, ids + N - 1, MORE, 0, seen);
    test_assert_same_bits(seen, cold, MORE, e.info->vocab_size, "2048 tokens");
    ids[1999]++; /* 1,792 is the last boundary before it */
    const int32_t third = match(&e, ids, N, &n_reused);
    assert_int_equal(n_reused, 1792);
    test_seq_drop(&e, second);
    test_seq_drop(&e, third);
    free(cold);
    free(seen);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- case 16 */

static void poison_slot(test_engine *e, int32_t slot)
{
    const tamis_cache_store *store = e->session->net->store;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life == TAMIS_CACHE_RING)
            memset(c->base + slot * c->stride, 0xFF, (size_t)c->stride); /* NaN in any type */
    }
}

static void case_16_rings_of_another_slot_full_of_nan(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("case_16", 161);
    for (int k = 0; k < 4; k++) {
        tamis_session_params p = params_of(k % 2 == 0 ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32);
        p.n_threads = 1 + k / 2;
        test_engine e = test_engine_open(dirs[k % 3], &p);
        int32_t ids[MAX_LEN], n_reused;
        random_ids(&rng, &e, ids, MAX_LEN);
        float *cold = test_logits_of(&e, ids, MAX_LEN, 0);
        leave(&e, ids, 700, 90);
        const int32_t in_slot_0 = test_seq_new(&e), seq = test_seq_new(&e);
        poison_slot(&e, seq);
        tamis_error err;
        test_must(tamis_seq_match(e.session, seq, ids, 700, &n_reused, &err), &err, "match");
        assert_int_equal(n_reused, 699);
        assert_goes_on(&e, seq, ids, 699, MAX_LEN, 3, cold);
        const int32_t copy = test_seq_fork(&e, seq);
        test_seq_rollback(&e, copy, MAX_LEN - 3);
        assert_goes_on(&e, copy, ids, MAX_LEN - 3, MAX_LEN, 0, cold);
        test_seq_drop(&e, copy);
        test_seq_drop(&e, in_slot_0);
        free(cold);
        test_engine_close(&e);
    }
}

/* ---------------------------------------------------------------- case 17 */

/* Kept at every length of a short sequence, also after going on and coming back. */
static void case_17_keep_and_go_on_at_every_length(void **state)
{
    (void)state;
    enum { N = 21 };
    test_rng rng = test_rng_start("case_17", 171);
    const char *const models[] = {V4_DIR, GLM_DIR};
    for (int m = 0; m < 2; m++) {
        const tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
        test_engine e = test_engine_open(models[m], &p);
        int32_t ids[MAX_LEN], n_reused;
        random_ids(&rng, &e, ids, N);
        float *cold = test_logits_of(&e, ids, N, 0);
        for (int32_t at = 1; at <= N; at++) {
            for (int32_t back = 0; back <= 8 && at + back <= N; back += 4) {
                tamis_session_drop_prefixes(e.session);
                const int32_t seq = test_seq_new(&e);
                test_feed(&e, seq, ids, at, 0, NULL);
                test_feed(&e, seq, ids, back, 0, NULL); /* other tokens, taken back */
                test_seq_rollback(&e, seq, at);
                keep(&e, seq);
                test_seq_drop(&e, seq);
                const int32_t again = match(&e, ids, N, &n_reused);
                assert_int_equal(n_reused, at == N || has_rings(&e) ? at - 1 : at);
                assert_goes_on(&e, again, ids, n_reused, N, 2, cold);
                test_seq_drop(&e, again);
            }
        }
        free(cold);
        test_engine_close(&e);
    }
}

/* Where the rings do not reach back to the last token, the end itself is kept. */
static void the_end_itself_is_kept_if_the_rings_begin_there(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_end_itself", 172);
    const tamis_session_params p = params_of(TAMIS_DTYPE_F32);
    test_engine e = test_engine_open(V4_DIR, &p);
    int32_t ids[MAX_LEN], n_reused;
    random_ids(&rng, &e, ids, 320);
    float *cold = test_logits_of(&e, ids, 320, 0);
    tamis_session_drop_prefixes(e.session);
    leave(&e, ids, 300, 0);
    const int32_t seq = match(&e, ids, 300, &n_reused); /* at 299, where its rings begin */
    keep(&e, seq);
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_snapshots, 2); /* 256 and 299 */
    test_seq_drop(&e, seq);
    tamis_error err;
    const int32_t other = match(&e, ids, 320, &n_reused);
    assert_int_equal(n_reused, 299);
    assert_int_equal(tamis_seq_rollback(e.session, other, 298, &err), TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "allowed 299..299 and 0"));
    assert_goes_on(&e, other, ids, 299, 320, 0, cold);
    test_seq_rollback(&e, other, 0);
    assert_int_equal(tamis_seq_rollback_floor(e.session, other), 0);
    test_must(tamis_seq_match(e.session, other, ids, 20, &n_reused, &err), &err, "match again");
    assert_int_equal(n_reused, 0); /* no snapshot that early */
    assert_goes_on(&e, other, ids, 0, 320, 77, cold);
    test_seq_drop(&e, other);
    free(cold);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- snapshots */

/* With fewer snapshots than boundaries the last ones stay, whatever the step's length. */
static void snapshots_are_as_many_as_allowed(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("snapshots_are_as_many_as_allowed", 181);
    for (int32_t chunk = 100; chunk <= MAX_LEN; chunk += MAX_LEN - 100) {
        tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
        p.block_tokens = 128;
        p.max_snapshots = 2;
        test_engine e = test_engine_open(V4_DIR, &p);
        int32_t ids[MAX_LEN], n_reused;
        random_ids(&rng, &e, ids, MAX_LEN);
        float *cold = test_logits_of(&e, ids, MAX_LEN, chunk);
        const tamis_prefix_stats stats = tamis_session_get_prefix_stats(e.session);
        assert_int_equal(stats.n_snapshots, 2);
        assert_int_equal(stats.n_blocks, MAX_LEN / 128);
        assert_int_equal(stats.n_blocks_alone, MAX_LEN / 128);
        const int32_t lengths[] = {MAX_LEN, 641, 640, 513, 512, 140};
        const int32_t expected[] = {640, 640, 512, 512, 0, 0};
        for (int i = 0; i < 6; i++) {
            const int32_t seq = match(&e, ids, lengths[i], &n_reused);
            assert_int_equal(n_reused, expected[i]);
            if (i < 4)
                assert_goes_on(&e, seq, ids, n_reused, n_reused + 9, 4, cold);
            test_seq_drop(&e, seq);
        }
        free(cold);
        test_engine_close(&e);
    }
}

/* Two sequences cross boundaries in one step, one of them with tokens that are known already. */
static void boundaries_of_several_sequences_in_a_step(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("boundaries_of_several_sequences", 182);
    const tamis_session_params p = params_of(TAMIS_DTYPE_F32);
    test_engine e = test_engine_open(dirs[2], &p);
    int32_t ids[2][MAX_LEN], n_reused;
    for (int round = 0; round < 2; round++) {
        random_ids(&rng, &e, ids[0], MAX_LEN);
        memcpy(ids[1], ids[0], sizeof ids[0]);
        if (round == 1)
            random_ids(&rng, &e, ids[1] + 200, MAX_LEN - 200);
        test_track tracks[2];
        for (int i = 0; i < 2; i++)
            tracks[i] = test_track_open(&e, ids[i], 600);
        test_track *list[2] = {&tracks[0], &tracks[1]};
        const int32_t first[2] = {250, 100}, second[2] = {20, 500}, third[2] = {330, 0};
        test_step(&e, list, first, 2);
        test_step(&e, list, second, 2);
        test_step(&e, list, third, 2);
        for (int i = 0; i < 2; i++) {
            const int32_t seq = match(&e, ids[i], 530, &n_reused);
            assert_int_equal(n_reused, 512);
            assert_goes_on(&e, seq, ids[i], 512, 600, 0, tracks[i].logits);
            test_seq_drop(&e, seq);
        }
        for (int i = 0; i < 2; i++)
            test_track_close(&e, &tracks[i]);
        tamis_session_drop_prefixes(e.session);
        assert_int_equal(e.session->pool.n_free, e.session->pool.n_blocks - 1);
    }
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- blocks run short */

static tamis_session_params tight_params(int32_t num_blocks)
{
    tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
    p.block_tokens = 128;
    p.num_blocks = num_blocks;
    return p;
}

static tamis_status step_of(test_engine *e, int32_t seq, const int32_t *ids, int32_t n,
                            tamis_error *err)
{
    const tamis_feed feed = {seq, ids, n, TAMIS_LOGITS_NONE, NULL};
    return tamis_session_step(e->session, &feed, 1, err);
}

static void the_oldest_prefix_goes_first(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_oldest_prefix_goes_first", 191);
    const tamis_session_params p = tight_params(7); /* 6 blocks */
    test_engine e = test_engine_open(GLM_DIR, &p);
    int32_t ids[3][MAX_LEN], n_reused;
    for (int i = 0; i < 3; i++)
        random_ids(&rng, &e, ids[i], MAX_LEN);
    leave(&e, ids[0], 256, 0);
    leave(&e, ids[1], 384, 0);                            /* 5 blocks are held */
    test_seq_drop(&e, match(&e, ids[0], 257, &n_reused)); /* 1 is the older one now */
    assert_int_equal(n_reused, 256);
    leave(&e, ids[2], 250, 0); /* needs one more: 1 loses its last block */
    test_seq_drop(&e, match(&e, ids[1], 385, &n_reused));
    assert_int_equal(n_reused, 256);
    test_seq_drop(&e, match(&e, ids[0], 257, &n_reused));
    assert_int_equal(n_reused, 256);
    tamis_prefix_stats stats = tamis_session_get_prefix_stats(e.session);
    assert_int_equal(stats.n_blocks, 6);
    assert_int_equal(stats.n_blocks_alone, 6);
    assert_int_equal(stats.n_evicted_blocks, 1);
    assert_int_equal(stats.n_matches, 3);
    assert_int_equal(stats.n_hits, 3);
    assert_int_equal(stats.n_tokens_reused, 768);
    assert_int_equal(e.session->pool.n_free, 0);
    tamis_session_drop_prefixes(e.session);
    stats = tamis_session_get_prefix_stats(e.session);
    assert_int_equal(stats.n_blocks + stats.n_snapshots, 0);
    assert_int_equal(e.session->pool.n_free, 6);
    test_engine_close(&e);
}

/* A step that cannot have its blocks even without them leaves the prefixes alone. */
static void a_refused_step_evicts_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_refused_step_evicts_nothing", 192);
    const char *const models[] = {V4_DIR, GLM_DIR};
    for (int m = 0; m < 2; m++) {
        const tamis_session_params p = tight_params(4); /* 3 blocks */
        test_engine e = test_engine_open(models[m], &p);
        int32_t ids[MAX_LEN], n_reused, n_blocks;
        random_ids(&rng, &e, ids, MAX_LEN);
        float *cold = test_logits_of(&e, ids, 384, 0);
        tamis_session_drop_prefixes(e.session);
        leave(&e, ids, 300, 0);
        const int32_t a = match(&e, ids, 300, &n_reused);
        assert_int_equal(n_reused, 299);
        const tamis_prefix_stats before = tamis_session_get_prefix_stats(e.session);
        const tamis_block_pool *pool = &e.session->pool;
        int32_t refs[4], free_ids[4];
        memcpy(refs, pool->refs, sizeof refs);
        memcpy(free_ids, pool->free, sizeof free_ids);
        tamis_error err;
        /* Four blocks, and one for a copy of the shared third one unless its entry goes. */
        assert_int_equal(step_of(&e, a, ids + 299, 100, &err), TAMIS_STATUS_NO_BLOCKS);
        assert_memory_equal(refs, pool->refs, sizeof refs);
        assert_memory_equal(free_ids, pool->free, (size_t)pool->n_free * sizeof *free_ids);
        assert_int_equal(tamis_session_get_prefix_stats(e.session).n_blocks, before.n_blocks);
        assert_int_equal(tamis_session_get_prefix_stats(e.session).n_evicted_blocks, 0);
        /* Three blocks are just enough if the copy is not made. */
        assert_goes_on(&e, a, ids, 299, 384, 0, cold);
        tamis_session_block_table(e.session, a, &n_blocks);
        assert_int_equal(n_blocks, 3);
        test_seq_drop(&e, a);
        assert_int_equal(pool->n_free, 0); /* all three are prefixes now */
        const int32_t b = match(&e, ids, 384, &n_reused);
        assert_int_equal(n_reused, has_rings(&e) ? 256 : 383);
        assert_goes_on(&e, b, ids, n_reused, 384, 0, cold);
        test_seq_drop(&e, b);
        free(cold);
        test_engine_close(&e);
    }
}

/* A fork needs a block of its own for the last partial one. */
static void a_fork_takes_a_block_from_the_prefixes(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_fork_takes_a_block", 193);
    const tamis_session_params p = tight_params(4);
    test_engine e = test_engine_open(V4_DIR, &p);
    int32_t ids[MAX_LEN], other[MAX_LEN], copy;
    random_ids(&rng, &e, ids, MAX_LEN);
    random_ids(&rng, &e, other, MAX_LEN);
    float *cold = test_logits_of(&e, ids, 120, 0);
    leave(&e, other, 256, 0);
    const int32_t a = test_seq_new(&e);
    test_feed(&e, a, ids, 100, 0, NULL);
    assert_int_equal(e.session->pool.n_free, 0);
    const int32_t b = test_seq_fork(&e, a);
    assert_goes_on(&e, b, ids, 100, 120, 0, cold);
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_blocks, 1);
    const int32_t c = test_seq_fork(&e, a);
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_blocks, 0);
    test_seq_drop(&e, b);
    keep(&e, c);
    const int32_t d = test_seq_fork(&e, c);
    keep(&e, d); /* the same tokens in another block: one entry is enough */
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_blocks, 1);
    test_seq_drop(&e, a);
    test_seq_drop(&e, d);
    test_feed(&e, c, ids, 1, 0, NULL);
    tamis_error err;
    test_must(tamis_seq_fork(e.session, c, &copy, &err), &err, "fork");
    free(cold);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- edges */

static void a_faulty_step_publishes_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_faulty_step_publishes_nothing", 201);
    const tamis_session_params p = tight_params(0);
    test_engine e = test_engine_open(V4_DIR, &p);
    int32_t ids[MAX_LEN], n_reused;
    random_ids(&rng, &e, ids, MAX_LEN);
    float *cold = test_logits_of(&e, ids, 400, 0);
    tamis_session_drop_prefixes(e.session);
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, ids, 200, 0, NULL);
    poison_slot(&e, seq);
    tamis_error err;
    assert_int_equal(step_of(&e, seq, ids + 200, 200, &err), TAMIS_STATUS_FORMAT);
    const tamis_prefix_stats stats = tamis_session_get_prefix_stats(e.session);
    assert_int_equal(stats.n_blocks, 1);
    assert_int_equal(stats.n_snapshots, 1);
    assert_int_equal(tamis_seq_keep(e.session, seq, &err), TAMIS_STATUS_STATE);
    assert_int_equal(tamis_seq_match(e.session, seq, ids, 9, &n_reused, &err), TAMIS_STATUS_STATE);
    test_seq_drop(&e, seq);
    const int32_t again = match(&e, ids, 400, &n_reused);
    assert_int_equal(n_reused, 128);
    assert_goes_on(&e, again, ids, 128, 400, 0, cold);
    test_seq_drop(&e, again);
    free(cold);
    test_engine_close(&e);
}

static void refusals_say_why(void **state)
{
    (void)state;
    tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    const int32_t ids[4] = {1, 2, 3, 4};
    int32_t n_reused = -1;
    tamis_error err;
    const int32_t seq = test_seq_new(&e);
    test_must(tamis_seq_match(e.session, seq, NULL, 0, &n_reused, &err), &err, "no tokens");
    assert_int_equal(n_reused, 0);
    test_must(tamis_seq_keep(e.session, seq, &err), &err, "keep nothing");
    assert_int_equal(tamis_seq_match(e.session, 7, ids, 4, &n_reused, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_match(e.session, seq, NULL, 4, &n_reused, &err),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_match(e.session, seq, ids, -1, &n_reused, &err),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_match(e.session, seq, ids, 4, NULL, &err), TAMIS_STATUS_INVALID);
    test_feed(&e, seq, ids, 4, 0, NULL);
    assert_int_equal(tamis_seq_match(e.session, seq, ids, 4, &n_reused, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "sequence 0 has 4 tokens"));
    p.max_snapshots = 0;
    tamis_session *none;
    assert_int_equal(tamis_session_open(&none, e.model, &p, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "max_snapshots is 0, allowed 1.."));
    test_engine_close(&e);
    p = test_session_params(TAMIS_DTYPE_BF16, MAX_LEN);
    e = test_engine_open(V4_DIR, &p);
    const int32_t plain = test_seq_new(&e);
    assert_int_equal(tamis_seq_match(e.session, plain, ids, 4, &n_reused, &err),
                     TAMIS_STATUS_STATE);
    assert_non_null(strstr(err.text, "prefix_caching is false"));
    assert_int_equal(tamis_seq_keep(e.session, plain, &err), TAMIS_STATUS_STATE);
    tamis_session_drop_prefixes(e.session);
    tamis_session_drop_prefixes(NULL);
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_blocks, 0);
    test_engine_close(&e);
}

static uint64_t in_use(void)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

/* Two sessions that differ in one parameter: what is planned more is taken more, to the byte. */
static void the_plan_counts_every_byte(void **state)
{
    (void)state;
    const char *const models[] = {V4_DIR, GLM_DIR};
    for (int m = 0; m < 2; m++) {
        tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
        uint64_t planned[3], taken[3];
        test_engine e = test_engine_open(models[m], &p);
        for (int i = 0; i < 3; i++) {
            tamis_memory_plan plan;
            tamis_error err;
            p.prefix_caching = i > 0;
            p.max_snapshots = i == 2 ? 40 : 16;
            test_must(tamis_session_plan_memory(e.model, &p, &plan, &err), &err, "plan");
            assert_int_equal(plan.total, plan.weights_widened + plan.cache_blocks +
                                             plan.cache_rings + plan.cache_snapshots +
                                             plan.workspace + plan.logits);
            assert_int_equal(plan.cache_snapshots > 0, i > 0 && m == 0);
            planned[i] = plan.total;
            const uint64_t before = in_use();
            test_engine session = test_engine_share(&e, &p);
            taken[i] = in_use() - before;
            test_engine_close(&session);
            assert_int_equal(in_use(), before);
        }
        for (int i = 1; i < 3; i++)
            assert_int_equal(planned[i] - planned[0], taken[i] - taken[0]);
        test_engine_close(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_15_the_same_prompt_computes_its_last_token_only),
        cmocka_unit_test(case_15_a_common_prefix_costs_at_most_a_block),
        cmocka_unit_test(case_15_a_prompt_of_2048_tokens),
        cmocka_unit_test(case_16_rings_of_another_slot_full_of_nan),
        cmocka_unit_test(case_17_keep_and_go_on_at_every_length),
        cmocka_unit_test(the_end_itself_is_kept_if_the_rings_begin_there),
        cmocka_unit_test(snapshots_are_as_many_as_allowed),
        cmocka_unit_test(boundaries_of_several_sequences_in_a_step),
        cmocka_unit_test(the_oldest_prefix_goes_first),
        cmocka_unit_test(a_refused_step_evicts_nothing),
        cmocka_unit_test(a_fork_takes_a_block_from_the_prefixes),
        cmocka_unit_test(a_faulty_step_publishes_nothing),
        cmocka_unit_test(refusals_say_why),
        cmocka_unit_test(the_plan_counts_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
