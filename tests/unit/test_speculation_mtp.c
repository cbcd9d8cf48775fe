/*
 * Drafting with the MTP block: how many of its guesses the demo model takes, that they are the same
 * guesses however the session is cut and run, and what happens when the block is damaged.
 */
#include "speculation_test.h"
#include "support/mtp_run.h"
#include "weights_test.h"

#include "engine/draft.h"

#define V4  "tests/golden/v4-flash-fp8"
#define V32 "tests/golden/v32-fp8"
#define GLM "tests/golden/glm52-fp8"

/* ---------------------------------------------------------------- acceptance */

/* What the block says of a text that is there: is its guess at position i the token i + 2? */
static bool *find_right_guesses(const char *dir, const spec_truth *truth)
{
    const int32_t n = truth->n - 1, vocab = truth->vocab;
    const tamis_session_params params = test_mtp_params(TAMIS_DTYPE_F32, truth->n, truth->n);
    test_engine engine = test_engine_open(dir, &params);
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    bool *is_right = calloc((size_t)n, sizeof *is_right);
    assert_true(logits != NULL && is_right != NULL);
    const int32_t seq = test_seq_new(&engine);
    test_mtp_feed(&engine, seq, truth->ids, n, 0, logits);
    for (int32_t i = 0; i + 2 < truth->n; i++)
        is_right[i] = test_argmax(logits + (int64_t)i * vocab, vocab) == truth->ids[i + 2];
    test_engine_close(&engine);
    free(logits);
    return is_right;
}

/*
 * Every first guess is the one that the block makes in a straight run over the final text: rows
 * that rejected tokens left in its cache are gone.
 */
static tamis_spec_stats draft_text(test_engine *base, const spec_truth *truth, const bool *is_right,
                                   int32_t k)
{
    const tamis_session_params params = spec_session(TAMIS_DTYPE_F32, truth->n + k, k, true);
    test_engine engine = test_engine_share(base, &params);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, k, NULL);
    spec_run run = spec_run_open(&engine, truth, &p);
    spec_run_prompt(&run, 0);
    spec_run_next(&run, "first step, nothing drafted");
    while (run.n < truth->n) {
        const int32_t pending = run.n - 1;
        const bool took_one = spec_run_next(&run, "mtp") > 1;
        if (pending + 1 < truth->n && took_one != is_right[pending - 1])
            fail_msg("position %d, k %d: guess taken %d, right in a straight run %d", pending, k,
                     took_one, is_right[pending - 1]);
    }
    const tamis_spec_stats stats = spec_run_close(&run);
    test_engine_close(&engine);
    return stats;
}

static void add(tamis_spec_stats *sum, const tamis_spec_stats *s)
{
    sum->n_steps += s->n_steps;
    sum->n_drafted += s->n_drafted;
    sum->n_accepted += s->n_accepted;
    sum->n_tokens += s->n_tokens;
}

/* sums [4]: of k = 1 .. 3, and n_drafted, n_accepted of all positions of the texts. */
static void draft_prompt(test_engine *base, const test_golden *golden, int which,
                         tamis_spec_stats *sums)
{
    char name[32];
    int64_t n_prompt;
    snprintf(name, sizeof name, "prompt.%d", which);
    int32_t *prompt = test_golden_ids(golden, name, &n_prompt);
    spec_truth truth = spec_truth_make(base, prompt, (int32_t)n_prompt, TEST_IS_SANITIZED ? 16 : 64,
                                       spec_sampling(0, 0));
    bool *is_right = find_right_guesses(SPEC_DEMO, &truth);
    for (int32_t k = 1; k <= (TEST_IS_SANITIZED ? 1 : 3); k++) {
        const tamis_spec_stats s = draft_text(base, &truth, is_right, k);
        add(&sums[k - 1], &s);
    }
    for (int32_t i = truth.n_prompt - 1; i + 2 < truth.n; i++) {
        sums[3].n_drafted++;
        sums[3].n_accepted += is_right[i];
    }
    free(is_right);
    spec_truth_free(&truth);
    free(prompt);
}

static void test_acceptance(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_golden *golden = test_golden_open(SPEC_DEMO, "golden.safetensors");
    const tamis_session_params plain = test_session_params(TAMIS_DTYPE_F32, 160);
    test_engine base = test_engine_open(SPEC_DEMO, &plain);
    tamis_spec_stats sums[4] = {{0}};
    for (int i = 0; i < (TEST_IS_SANITIZED ? 1 : 4); i++)
        draft_prompt(&base, golden, i, sums);
    for (int i = 0; i < 4 && sums[i].n_drafted > 0; i++) {
        printf("demo, greedy, ");
        if (i < 3)
            printf("%d per step, %.2f tokens per step: ", i + 1,
                   (double)sums[i].n_tokens / (double)sums[i].n_steps);
        else
            printf("at every position: ");
        printf("%llu of %llu guesses right, %.1f %%\n", (unsigned long long)sums[i].n_accepted,
               (unsigned long long)sums[i].n_drafted,
               100 * (double)sums[i].n_accepted / (double)sums[i].n_drafted);
    }
    /* Right guesses come in runs, and a step jumps over what it took, so less of them are met. */
    if (!TEST_IS_SANITIZED)
        assert_true(10 * sums[3].n_accepted >= 6 * sums[3].n_drafted &&
                    2 * sums[0].n_accepted >= sums[0].n_drafted);
    test_engine_close(&base);
    test_golden_close(golden);
}

/* ---------------------------------------------------------------- the same guesses */

/* The drafts are a function of the text: the counts do not depend on how it was run. */
static void check_same_guesses(const char *dir)
{
    const int32_t n_prompt = 120, n_new = TEST_IS_SANITIZED ? 12 : 24, k = 4;
    int32_t *ids = test_prompt(dir);
    const tamis_session_params plain = test_session_params(TAMIS_DTYPE_BF16, 256);
    test_engine base = test_engine_open(dir, &plain);
    spec_truth truth = spec_truth_make(&base, ids, n_prompt, n_new, spec_sampling(1, 5));
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, k, NULL);
    tamis_spec_stats first = {0};
    for (int i = 0; i < 3; i++) {
        tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 256, k, true);
        params.max_num_batched_tokens = (int32_t[]){256, 5, 32}[i];
        params.n_threads = 1 + i % 2;
        params.block_tokens = i < 2 ? 128 : 256;
        params.max_rollback = k + 10 * i;
        params.block_order_seed = i;
        test_engine engine = test_engine_share(&base, &params);
        const tamis_spec_stats stats = spec_check(&engine, &truth, &p, dir);
        first = i == 0 ? stats : first;
        assert_memory_equal(&stats, &first, sizeof stats);
        test_engine_close(&engine);
    }
    printf("%s: %llu of %llu guesses right in every session\n", dir,
           (unsigned long long)first.n_accepted, (unsigned long long)first.n_drafted);
    spec_truth_free(&truth);
    test_engine_close(&base);
    free(ids);
}

static void test_same_guesses(void **state)
{
    (void)state;
    check_same_guesses(V4);
    check_same_guesses(V32);
    if (TEST_IS_SANITIZED)
        return;
    check_same_guesses(GLM);
    check_same_guesses(SPEC_DEMO);
}

/* Guess by guess what the network says when a test drives it, position after position. */
static void check_further_guesses(const char *dir)
{
    enum { N = 90, K = 6 };
    int32_t *ids = test_prompt(dir), expected[K], draft[K], n;
    const tamis_session_params params = test_mtp_params(TAMIS_DTYPE_BF16, 128, 2);
    test_engine engine = test_engine_open(dir, &params);
    const int32_t vocab = engine.info->vocab_size, last = N - 1;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    tamis_error err;
    assert_non_null(logits);
    const int32_t a = test_seq_new(&engine), b = test_seq_new(&engine);
    test_feed(&engine, a, ids, N, 0, NULL);
    test_mtp_over_step(&engine, ids + 1, N, &last, 1, logits);
    for (int32_t i = 0; i < K; i++) {
        expected[i] = test_argmax(logits, vocab);
        const int32_t seq_len = N + i + 1;
        test_mtp_go_on(&engine, &a, &seq_len, &expected[i], 1, &(int32_t){0}, 1, logits);
    }
    test_feed(&engine, b, ids, N, 0, NULL);
    test_must(tamis_draft_over_step(engine.session, b, ids + 1, last, &err), &err, dir);
    test_must(tamis_draft_tokens(engine.session, b, vocab, K, draft, &n, &err), &err, dir);
    assert_int_equal(n, K);
    for (int32_t i = 0; i < K; i++)
        if (draft[i] != expected[i])
            fail_msg("%s: guess %d is %d, expected %d", dir, i, draft[i], expected[i]);
    free(logits);
    test_engine_close(&engine);
    free(ids);
}

static void test_further_guesses(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    check_further_guesses(V4);
    check_further_guesses(V32);
    check_further_guesses(GLM);
    check_further_guesses(SPEC_DEMO);
}

/* ---------------------------------------------------------------- order of calls */

static void test_hidden_states_belong_to_one_step(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, true);
    params.max_num_seqs = 2;
    test_engine engine = test_engine_open(V4, &params);
    const int32_t a = test_seq_new(&engine), b = test_seq_new(&engine);
    tamis_session *s = engine.session;
    int32_t draft[3], n;
    tamis_error err;
#define OVER(seq)  tamis_draft_over_step(s, seq, ids + 1, 1, &err)
#define DRAFT(seq) tamis_draft_tokens(s, seq, 100, 3, draft, &n, &err)
    assert_int_equal(OVER(a), TAMIS_STATUS_STATE); /* no step yet */
    test_feed(&engine, a, ids, 2, 0, NULL);
    assert_int_equal(OVER(b), TAMIS_STATUS_STATE);
    assert_int_equal(DRAFT(a), TAMIS_STATUS_STATE);
    test_must(OVER(a), &err, "after its step");
    assert_int_equal(OVER(a), TAMIS_STATUS_STATE); /* used up */
    assert_int_equal(DRAFT(b), TAMIS_STATUS_STATE);
    test_must(DRAFT(a), &err, "after the step");
    assert_int_equal(n, 3);
    assert_int_equal(s->sequences[a].high, 2 + 2); /* two guesses were fed behind the tokens */
    assert_int_equal(s->sequences[a].n_blocks, 1);
    assert_int_equal(DRAFT(a), TAMIS_STATUS_STATE);
    test_feed(&engine, a, ids, 2, 0, NULL);
    test_feed(&engine, b, ids, 2, 0, NULL);
    assert_int_equal(OVER(a), TAMIS_STATUS_STATE); /* the step before the last */
    test_seq_rollback(&engine, b, 1);
    assert_int_equal(OVER(b), TAMIS_STATUS_STATE); /* too late */
    const tamis_feed both[] = {{.seq = a, .tokens = ids, .n_tokens = 1},
                               {.seq = b, .tokens = ids, .n_tokens = 1}};
    test_must(tamis_session_step(s, both, 2, &err), &err, "both");
    assert_int_equal(OVER(a), TAMIS_STATUS_STATE);
    assert_int_equal(OVER(b), TAMIS_STATUS_STATE);
#undef OVER
#undef DRAFT
    test_engine_close(&engine);
}

/* ---------------------------------------------------------------- a damaged block */

static void check_damage(const char *from, const char *tensor)
{
    char *dir = test_temp_dir_make();
    test_items items = test_items_read(from);
    memcpy(test_items_find(&items, tensor)->data + 2, (uint8_t[]){0xc0, 0x7f}, 2); /* BF16 NaN */
    test_items_write(&items, dir);
    test_items_free(&items);
    test_file_copy(from, dir, "config.json");
    const tamis_session_params params = spec_session(TAMIS_DTYPE_BF16, 64, 4, true);
    test_engine engine = test_engine_open(dir, &params);
    const tamis_sampler_params greedy = spec_sampling(0, 0);
    tamis_sampler *sampler = spec_sampler(engine.info, &greedy);
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, 4, NULL);
    tamis_spec *spec = NULL;
    int32_t tokens[5], n = -1;
    const int32_t seq = test_seq_new(&engine);
    tamis_error err;
    test_must(tamis_spec_open(&spec, engine.session, seq, &p, &err), &err, "open");
    test_must(tamis_spec_prompt(spec, (int32_t[]){7}, 1, &err), &err, "prompt");
    assert_int_equal(tamis_spec_next(spec, sampler, 100, tokens, &n, &err), TAMIS_STATUS_FORMAT);
    assert_int_equal(n, 1);
    if (strstr(err.text, tensor) == NULL)
        fail_msg("\"%s\" does not name %s", err.text, tensor);
    assert_int_equal(tamis_spec_next(spec, sampler, 100, tokens, &n, &err), TAMIS_STATUS_STATE);
    tamis_spec_close(&spec);
    test_seq_drop(&engine, seq);
    tamis_sampler_close(&sampler);
    test_engine_close(&engine);
    test_temp_dir_remove(dir);
}

static void test_damaged_block(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    check_damage(V4, "mtp.0.norm.weight");
    check_damage(V32, "model.layers.3.hnorm.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_acceptance),
        cmocka_unit_test(test_same_guesses),
        cmocka_unit_test(test_further_guesses),
        cmocka_unit_test(test_hidden_states_belong_to_one_step),
        cmocka_unit_test(test_damaged_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
