/*
 * The MTP block's own caches in a reused prefix: guesses after it have the bits of those after a
 * cold run, wherever the prefix ends and however the prompt was cut. (Text never depends on them.)
 */
#include "prefix_test.h"

#include "engine/draft.h"

enum { N_GUESSES = 4 };

typedef struct guesses {
    int32_t ids[N_GUESSES], n;
    float *logits; /* of the last one */
} guesses;

/* Goes on with a prompt in steps of `chunk`, each followed by its run of the block, then guesses.
 */
static void go_on(test_engine *e, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk,
                  bool keeps, guesses *out)
{
    const int32_t vocab = e->info->vocab_size;
    tamis_error err;
    while (tamis_seq_len(e->session, seq) < n) {
        const int32_t at = tamis_seq_len(e->session, seq);
        const int32_t n_new = n - at < chunk ? n - at : chunk;
        test_feed(e, seq, ids + at, n_new, 0, NULL);
        test_must(tamis_draft_over_step(e->session, seq, ids + at + 1,
                                        at + n_new == n ? n_new - 1 : -1, &err),
                  &err, "over step");
    }
    if (keeps)
        keep(e, seq);
    test_must(tamis_draft_tokens(e->session, seq, vocab, N_GUESSES, out->ids, &out->n, &err), &err,
              "guess");
    out->logits = malloc((size_t)vocab * sizeof *out->logits);
    memcpy(out->logits,
           e->session->logits +
               (int64_t)tamis_session_get_params(e->session)->max_num_logits * vocab,
           (size_t)vocab * sizeof *out->logits);
}

static void check_guesses(test_engine *e, const int32_t *ids, int32_t n, int32_t chunk,
                          const guesses *cold, int32_t least_reused)
{
    guesses seen;
    int32_t n_reused;
    const int32_t seq = match(e, ids, n, &n_reused);
    assert_true(n_reused >= least_reused);
    go_on(e, seq, ids, n, chunk, false, &seen);
    assert_int_equal(seen.n, cold->n);
    assert_memory_equal(seen.ids, cold->ids, (size_t)seen.n * sizeof *seen.ids);
    test_assert_same_bits(seen.logits, cold->logits, 1, e->info->vocab_size, "guess");
    test_seq_drop(e, seq);
    free(seen.logits);
}

static void check_model(const char *dir, test_rng *rng)
{
    tamis_session_params p = params_of(TAMIS_DTYPE_BF16);
    p.mtp = true;
    p.block_tokens = 128;
    test_engine e = test_engine_open(dir, &p);
    const int32_t lengths[] = {130, 257, 300};
    const int32_t chunks[] = {MAX_LEN, 100, 7};
    for (int i = TEST_IS_SANITIZED ? 1 : 0; i < (TEST_IS_SANITIZED ? 2 : 3); i++) {
        const int32_t n = lengths[i];
        int32_t ids[MAX_LEN];
        guesses cold;
        random_ids(rng, &e, ids, n + 1);
        int32_t seq = test_seq_new(&e);
        go_on(&e, seq, ids, n, chunks[i], false, &cold);
        test_seq_drop(&e, seq);
        check_guesses(&e, ids, n, 50, &cold, (n - 1) / 128 * 128); /* from a block's end */
        tamis_session_drop_prefixes(e.session);
        guesses again;
        seq = test_seq_new(&e);
        go_on(&e, seq, ids, n, chunks[(i + 1) % 3], true, &again);
        test_assert_same_bits(again.logits, cold.logits, 1, e.info->vocab_size, "again");
        test_seq_drop(&e, seq);
        check_guesses(&e, ids, n, 50, &cold, n - 1); /* from the prompt's end */
        tamis_session_drop_prefixes(e.session);
        free(cold.logits);
        free(again.logits);
    }
    test_engine_close(&e);
}

static void guesses_after_a_prefix_are_those_of_a_cold_run(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("guesses_after_a_prefix", 501);
    check_model(TAMIS_SOURCE_DIR "/models/demo", &rng);
    check_model(GOLDEN "v32-fp8", &rng);
    if (!TEST_IS_SANITIZED)
        check_model(GLM_DIR, &rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_after_a_prefix_are_those_of_a_cold_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
