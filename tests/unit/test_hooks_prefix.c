/*
 * Prefix reuse and a connector together: what a sequence leaves in the prefix cache whose first
 * rows came from elsewhere while its step ran.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "sequence_file_test.h"
#include "support/file_connector.h"
#include "support/sanitized.h"

static void set_connector(test_engine *e, test_file_connector *c)
{
    const tamis_connector_hooks hooks = test_file_connector_hooks(c);
    tamis_error err;
    test_must(tamis_session_set_connector(e->session, &hooks, &err), &err, "set connector");
}

/* A new sequence takes over what it finds of ids[0 .. n); the rest has the right bits. */
static int32_t assert_match(test_engine *e, const int32_t *ids, int32_t n, const float *want)
{
    const int32_t vocab = e->info->vocab_size, seq = test_seq_new(e);
    float *seen = calloc((size_t)n * (size_t)vocab, sizeof *seen);
    int32_t n_reused = 0;
    tamis_error err;
    test_must(tamis_seq_match(e->session, seq, ids, n, &n_reused, &err), &err, "match");
    test_feed(e, seq, ids + n_reused, n - n_reused, 150, seen);
    test_assert_same_bits(seen, want + (int64_t)n_reused * vocab, n - n_reused, vocab, "matched");
    free(seen);
    test_seq_drop(e, seq);
    return n_reused;
}

/* n tokens come from a connector, and the step behind them crosses a block boundary. */
static void check_boundary(const char *dir, int32_t n, int32_t len)
{
    test_rng rng = test_rng_start(dir, 95);
    char *folder = test_temp_dir_make();
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(dir, &p);
    int32_t ids[MAX_LEN];
    random_ids(&rng, e.info->vocab_size, ids, MAX_LEN);
    float *want = test_logits_of(&e, ids, MAX_LEN, 150);
    test_file_connector from = {.folder = folder, .seq = test_seq_new(&e)};
    set_connector(&e, &from);
    test_feed(&e, from.seq, ids, n, 0, NULL);
    p.prefix_caching = true;
    test_engine f = test_engine_share(&e, &p);
    test_file_connector to = {.folder = folder, .seq = -1};
    set_connector(&f, &to);
    const int32_t seq = test_seq_new(&f);
    tamis_error err;
    test_must(tamis_seq_expect(f.session, seq, ids, n, &err), &err, "expect");
    test_feed(&f, seq, ids + n, len - n, 0, NULL);
    assert_match(&f, ids, len, want);
    assert_match(&f, ids, MAX_LEN, want);
    tamis_session_drop_prefixes(f.session);
    test_feed(&f, seq, ids + len, 256 - len, 0, NULL); /* its own rows, in rings that are whole */
    test_feed(&f, seq, ids + 256, 10, 0, NULL);
    assert_int_equal(assert_match(&f, ids, 270, want), 256);
    free(want);
    test_engine_close(&f);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

static void loaded_rows_and_snapshots(void **state)
{
    (void)state;
    check_boundary(V4_DIR, 120, 140);
    if (TEST_IS_SANITIZED)
        return;
    check_boundary(GOLDEN "v4-flash-fp8", 5, 140); /* before some rings' history, not all */
    check_boundary(V32_DIR, 120, 140);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loaded_rows_and_snapshots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
