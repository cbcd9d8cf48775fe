/*
 * Sleep gives back what the plan says and takes it again: resident memory as the system counts it,
 * the same bits afterwards, and every other call refused meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/mem.h"
#include "engine/session_internal.h"
#include "sequence_file_test.h"
#include "support/file_connector.h"
#include "support/sanitized.h"

enum { LEN = 200 };

/* ---------------------------------------------------------------- resident memory */

/* A line of /proc/self/status, in bytes. */
static int64_t resident(const char *field)
{
    char line[256];
    long long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            sscanf(line + strlen(field), " %lld", &kib);
    fclose(file);
    assert_true(kib >= 0);
    return kib * 1024;
}

/* Every byte of every tensor. */
static uint64_t read_all_weights(const test_engine *e)
{
    tamis_checkpoint *c = e->model->checkpoint;
    uint64_t sum = 0;
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(c); i++) {
        const tamis_tensor *t = tamis_checkpoint_tensor(c, i);
        for (uint64_t k = 0; k < t->bytes; k++)
            sum += t->data[k];
    }
    return sum;
}

static void assert_near(int64_t seen, uint64_t wanted, const char *what)
{
    const int64_t slack = (int64_t)(wanted / 20) + (1 << 19);
    if (seen < (int64_t)wanted - slack || seen > (int64_t)wanted + slack)
        fail_msg("%s: %.1f MiB, expected %.1f", what, (double)seen / (1 << 20),
                 (double)wanted / (1 << 20));
}

static void sleep_now(test_engine *e, int32_t level)
{
    tamis_error err;
    test_must(tamis_session_sleep(e->session, level, &err), &err, "sleep");
    assert_int_equal(tamis_session_sleep_level(e->session), level);
}

static void wake_now(test_engine *e)
{
    tamis_error err;
    test_must(tamis_session_wake(e->session, &err), &err, "wake");
    assert_int_equal(tamis_session_sleep_level(e->session), 0);
}

static void memory_goes_down_and_comes_back(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED) /* its allocator keeps what is freed */
        skip();
    tamis_session_params p = file_params(TAMIS_DTYPE_F32);
    p.num_blocks = 1200;
    p.max_rollback = 5000; /* rings of some weight, too */
    p.prefix_caching = true;
    tamis_memory_plan plan;
    tamis_error err;
    test_engine e = test_engine_open(TAMIS_SOURCE_DIR "/models/demo", &p);
    test_must(tamis_session_plan_memory(e.model, &p, &plan, &err), &err, "plan");
    const uint64_t caches = plan.cache_blocks + plan.cache_rings + plan.cache_snapshots;
    int32_t ids[LEN] = {3, 4, 5};
    test_feed(&e, test_seq_new(&e), ids, LEN, 0, NULL);
    const uint64_t sum = read_all_weights(&e);
    const int64_t before = resident("RssAnon:"), files = resident("RssFile:");
    sleep_now(&e, 1);
    assert_near(before - resident("RssAnon:"), caches, "given back");
    assert_near(files - resident("RssFile:"), 0, "files at level 1");
    sleep_now(&e, 2);
    assert_near(files - resident("RssFile:"), plan.weights_mapped, "weights given back");
    wake_now(&e);
    assert_near(before - resident("RssAnon:"), 0, "taken again");
    assert_true(read_all_weights(&e) == sum);
    assert_near(files - resident("RssFile:"), 0, "weights read again");
    printf("memory_goes_down_and_comes_back: caches %.1f MiB, weights %.1f MiB\n",
           (double)caches / (1 << 20), (double)plan.weights_mapped / (1 << 20));
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- same bits */

static void check_family(const char *dir)
{
    test_rng rng = test_rng_start(dir, 61);
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    p.max_num_logits = LEN;
    test_engine e = test_engine_open(dir, &p), other = test_engine_share(&e, &p);
    const int32_t vocab = e.info->vocab_size;
    int32_t ids[LEN], n_reused = 0;
    tamis_error err;
    random_ids(&rng, vocab, ids, LEN);
    float *want = test_logits_of(&e, ids, LEN, 0), *seen;
    for (int32_t level = 1; level <= 2; level++) {
        const int32_t a = test_seq_new(&e);
        test_feed(&e, a, ids + 1, 150, 0, NULL);
        test_must(tamis_seq_keep(e.session, a, &err), &err, "keep");
        sleep_now(&e, level);
        wake_now(&e);
        assert_int_equal(tamis_seq_len(e.session, a), -1); /* forgotten */
        assert_int_equal(e.session->pool.n_free, e.session->pool.n_blocks - 1);
        const int32_t b = test_seq_new(&e);
        test_must(tamis_seq_match(e.session, b, ids, LEN, &n_reused, &err), &err, "match");
        assert_int_equal(n_reused, 0); /* prefixes too */
        test_seq_drop(&e, b);
        seen = test_logits_of(&e, ids, LEN, 60);
        test_assert_same_bits(seen, want, LEN, vocab, "after waking up");
        free(seen);
        seen = test_logits_of(&other, ids, LEN, 60);
        test_assert_same_bits(seen, want, LEN, vocab, "another session over the model");
        free(seen);
    }
    free(want);
    test_engine_close(&other);
    test_engine_close(&e);
}

static void the_same_bits_after_waking_up(void **state)
{
    (void)state;
    check_family(V4_DIR);
    check_family(V32_DIR);
    check_family(GLM5_DIR);
}

/* ---------------------------------------------------------------- calls while asleep */

static void everything_else_is_refused(void **state)
{
    (void)state;
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(V4_DIR, &p);
    tamis_session *s = e.session;
    int32_t ids[9] = {1}, seq = test_seq_new(&e), out;
    const tamis_feed feed = {seq, ids, 9, TAMIS_LOGITS_LAST, NULL};
    tamis_error err;
    test_feed(&e, seq, ids, 9, 0, NULL);
    for (int32_t level = -1; level <= 3; level += level == 0 ? 3 : 1)
        assert_int_equal(tamis_session_sleep(s, level, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_len(s, seq), 9);
    sleep_now(&e, 2);
    test_must(tamis_session_sleep(s, 1, &err), &err, "sleep");
    assert_int_equal(tamis_session_sleep_level(s), 2);
    const tamis_connector_hooks hooks = tamis_connector_hooks_default();
    const tamis_status seen[] = {tamis_session_step(s, &feed, 1, &err),
                                 tamis_session_step(s, NULL, 0, &err),
                                 tamis_seq_create(s, &out, &err),
                                 tamis_seq_drop(s, seq, &err),
                                 tamis_seq_rollback(s, seq, 0, &err),
                                 tamis_seq_fork(s, seq, &out, &err),
                                 tamis_seq_match(s, seq, ids, 9, &out, &err),
                                 tamis_seq_keep(s, seq, &err),
                                 tamis_seq_save(s, seq, "/tmp/tamis-test-not-written", &err),
                                 tamis_seq_load(s, seq, "/tmp/tamis-test-not-read", &err),
                                 tamis_seq_expect(s, seq, ids, 3, &err),
                                 tamis_session_set_connector(s, &hooks, &err)};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        assert_int_equal(seen[i], TAMIS_STATUS_STATE);
    assert_non_null(strstr(err.text, "asleep (level 2)"));
    assert_int_equal(tamis_seq_len(s, seq), -1);
    assert_int_equal(tamis_session_num_logits(s), 0);
    tamis_session_drop_prefixes(s);
    wake_now(&e);
    wake_now(&e); /* awake already */
    sleep_now(&e, 1);
    test_engine_close(&e); /* asleep */
}

/* Memory that is refused at any place leaves the session asleep, and it can still wake up. */
static void refused_memory_leaves_it_asleep(void **state)
{
    (void)state;
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(V4_DIR, &p);
    test_file_connector c = {.folder = "/nowhere", .seq = -1};
    const tamis_connector_hooks hooks = test_file_connector_hooks(&c);
    tamis_error err;
    test_must(tamis_session_set_connector(e.session, &hooks, &err), &err, "connector");
    const size_t awake = tamis_mem_in_use(TAMIS_MEM_CACHES);
    sleep_now(&e, 1);
    const size_t asleep = tamis_mem_in_use(TAMIS_MEM_CACHES);
    assert_true(asleep < awake / 100);
    for (uint64_t n = 1; n <= 3; n++) { /* caches, snapshots, journal */
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_session_wake(e.session, &err);
        tamis_mem_fail_at(0);
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES), asleep);
        assert_int_equal(tamis_session_sleep_level(e.session), 1);
    }
    wake_now(&e);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES), awake);
    const int32_t ids[9] = {1};
    test_feed(&e, test_seq_new(&e), ids, 9, 0, NULL); /* with the connector, as before */
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_goes_down_and_comes_back),
        cmocka_unit_test(the_same_bits_after_waking_up),
        cmocka_unit_test(everything_else_is_refused),
        cmocka_unit_test(refused_memory_leaves_it_asleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
