/*
 * Prefix reuse where something runs out or goes wrong: snapshots and blocks, steps that are refused
 * or meet a NaN, calls that cannot be obeyed; what it takes in memory.
 */
#include "prefix_test.h"

#include "core/mem.h"

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
    for (int round = TEST_IS_SANITIZED; round < 2; round++) {
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
