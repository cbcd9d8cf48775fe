/*
 * Drafting with a connector whose hooks fail in runs of the MTP block: drafts may get worse, the
 * text does not change, and whoever gets the error can go on.
 */
#include "speculation_test.h"
#include "support/sanitized.h"
#include "tamis/connector.h"

enum { N_PROMPT = 150, N_NEW = 12, STEP = 64, DRAFTS = 3 };

typedef struct faults {
    int32_t n_drafts;          /* runs of the MTP block so far */
    int32_t fail_at, n_failed; /* run that fails; so many did */
    tamis_status status;       /* what the hook says */
} faults;

static tamis_status start_load(void *user, const tamis_connector_step *step, tamis_error *err)
{
    faults *f = user;
    (void)err;
    if (!step->is_draft || f->n_drafts++ != f->fail_at)
        return TAMIS_STATUS_OK;
    f->n_failed++;
    return f->status;
}

/* Feeds the whole prompt in spite of the fault. */
static void prompt(spec_run *run, const faults *f)
{
    const spec_truth *t = run->truth;
    tamis_error err;
    tamis_status st = tamis_spec_prompt(run->spec, t->ids, t->n_prompt, &err);
    run->n = t->n_prompt;
    if (f->n_failed == 0) {
        test_must(st, &err, "prompt");
        return;
    }
    assert_int_equal(st, f->status);
    const int32_t n = tamis_seq_len(run->engine->session, run->seq) + 1;
    assert_int_equal(n, (f->fail_at + 1) * STEP < N_PROMPT ? (f->fail_at + 1) * STEP : N_PROMPT);
    test_must(tamis_spec_prompt(run->spec, t->ids + n, t->n_prompt - n, &err), &err, "the rest");
}

/* As spec_run_next, but a fault may come up behind the tokens. */
static void next(spec_run *run, const faults *f)
{
    int32_t tokens[1 + TAMIS_MAX_DRAFT], n = 0;
    const int32_t n_failed = f->n_failed;
    const spec_truth *t = run->truth;
    tamis_error err;
    const tamis_status st = tamis_spec_next(run->spec, run->sampler, t->vocab, tokens, &n, &err);
    assert_int_equal(st, f->n_failed > n_failed ? f->status : TAMIS_STATUS_OK);
    assert_true(n > 0);
    spec_check_sequence(run, run->n + n - 1);
    for (int32_t i = 0; i < n && run->n < t->n; i++, run->n++)
        assert_int_equal(tokens[i], t->ids[run->n]);
}

static void check(test_engine *e, const spec_truth *truth, int32_t fail_at, tamis_status status)
{
    faults f = {.fail_at = fail_at, .status = status};
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_MTP, DRAFTS, NULL);
    tamis_connector_hooks hooks = tamis_connector_hooks_default();
    tamis_error err;
    hooks.user = &f;
    hooks.start_load = start_load;
    test_must(tamis_session_set_connector(e->session, &hooks, &err), &err, "set connector");
    spec_run run = spec_run_open(e, truth, &p);
    prompt(&run, &f);
    while (run.n < truth->n)
        next(&run, &f);
    assert_int_equal(f.n_failed, 1);
    spec_run_close(&run);
}

static void check_folder(const char *dir)
{
    test_rng rng = test_rng_start(dir, 97);
    const tamis_session_params p =
        spec_session(TAMIS_DTYPE_F32, N_PROMPT + N_NEW + 4, DRAFTS, true);
    const tamis_session_params all = test_session_params(TAMIS_DTYPE_F32, N_PROMPT + N_NEW);
    test_engine base = test_engine_open(dir, &all), e = test_engine_share(&base, &p);
    int32_t ids[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)test_rng_int(&rng, 0, e.info->vocab_size - 1);
    assert_int_equal(p.max_num_batched_tokens, STEP);
    spec_truth truth = spec_truth_make(&base, ids, N_PROMPT, N_NEW, spec_sampling(0, 0));
    /* 3 steps of the prompt, then drafts */
    for (int32_t fail_at = TEST_IS_SANITIZED ? 1 : 0; fail_at < 6;
         fail_at += TEST_IS_SANITIZED ? 3 : 1)
        check(&e, &truth, fail_at, fail_at % 2 == 1 ? TAMIS_STATUS_PEER : TAMIS_STATUS_FORMAT);
    spec_truth_free(&truth);
    test_engine_close(&e);
    test_engine_close(&base);
}

static void failed_runs_cost_no_text(void **state)
{
    (void)state;
    for (int i = 0; i < (TEST_IS_SANITIZED ? 1 : 3); i++)
        check_folder(spec_folders[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failed_runs_cost_no_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
