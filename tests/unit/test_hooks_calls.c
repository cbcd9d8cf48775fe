/*
 * The limits of hooks and of drafters of the caller: every call that would change the session they
 * run in is refused without a trace, a message without an end is cut, and what hooks take of memory
 * keeps to the session's limit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "sequence_file_test.h"
#include "tamis/connector.h"
#include "tamis/speculation.h"

typedef struct meddler {
    tamis_session *session;
    tamis_spec *spec; /* NULL: none runs */
    tamis_sampler *sampler;
    const char *path; /* a saved sequence */
    int32_t busy;     /* a sequence of the running step */
    int32_t idle;     /* an empty one */
    int32_t n;        /* times that everything was tried */
} meddler;

static void assert_refused(tamis_status st, const tamis_error *err, const char *what)
{
    if (st != TAMIS_STATUS_STATE || strstr(err->text, "hook") == NULL)
        fail_msg("%s: %s \"%s\", expected a refusal", what, tamis_status_name(st), err->text);
}
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        tamis_error err = {TAMIS_STATUS_OK, ""};                                                   \
        const tamis_status st = (call);                                                            \
        assert_refused(st, &err, #call);                                                           \
    } while (0)

static void try_sequences(const meddler *m)
{
    tamis_session *s = m->session;
    const int32_t ids[] = {1, 2, 3};
    const tamis_feed feed = {m->idle, ids, 3, TAMIS_LOGITS_LAST, NULL};
    int32_t out = -7;
    REFUSED(tamis_session_step(s, &feed, 1, &err));
    REFUSED(tamis_session_step(s, NULL, 0, &err));
    REFUSED(tamis_seq_create(s, &out, &err));
    REFUSED(tamis_seq_drop(s, m->busy, &err));
    REFUSED(tamis_seq_rollback(s, m->busy, 0, &err));
    REFUSED(tamis_seq_rollback(s, m->idle, 0, &err));
    REFUSED(tamis_seq_fork(s, m->busy, &out, &err));
    REFUSED(tamis_seq_save(s, m->busy, m->path, &err));
    REFUSED(tamis_seq_load(s, m->idle, m->path, &err));
    REFUSED(tamis_seq_expect(s, m->idle, ids, 2, &err));
    REFUSED(tamis_seq_match(s, m->idle, ids, 3, &out, &err));
    REFUSED(tamis_seq_keep(s, m->busy, &err));
    assert_int_equal(out, -7);
}

static void try_everything(meddler *m)
{
    tamis_session *s = m->session;
    const tamis_connector_hooks hooks = tamis_connector_hooks_default();
    const tamis_spec_params p = tamis_spec_params_default();
    const int32_t id = 1, n_blocks = tamis_session_get_prefix_stats(s).n_blocks;
    tamis_spec *spec = NULL;
    try_sequences(m);
    REFUSED(tamis_session_set_connector(s, &hooks, &err));
    REFUSED(tamis_session_set_connector(s, NULL, &err));
    REFUSED(tamis_session_sleep(s, 1, &err));
    REFUSED(tamis_session_wake(s, &err));
    REFUSED(tamis_spec_open(&spec, s, m->idle, &p, &err));
    if (m->spec != NULL) {
        int32_t tokens[TAMIS_MAX_DRAFT + 1], n = -7;
        REFUSED(tamis_spec_prompt(m->spec, &id, 1, &err));
        REFUSED(tamis_spec_next(m->spec, m->sampler, 1, tokens, &n, &err));
    }
    tamis_session_drop_prefixes(s);
    assert_int_equal(tamis_session_get_prefix_stats(s).n_blocks, n_blocks);
    tamis_session_close(&s);
    assert_ptr_equal(s, m->session);
    assert_int_equal(tamis_seq_len(s, m->idle), 0);
    m->n++;
}

static tamis_status in_step(void *user, const tamis_connector_step *step, tamis_error *err)
{
    (void)step, (void)err;
    try_everything(user);
    return TAMIS_STATUS_OK;
}

static tamis_status in_layer(void *user, const tamis_connector_step *step, int32_t layer,
                             tamis_error *err)
{
    (void)layer;
    return in_step(user, step, err);
}

static int32_t in_drafter(void *user, const int32_t *tokens, int32_t n_tokens, int32_t *draft,
                          int32_t max_draft)
{
    (void)max_draft;
    try_everything(user);
    draft[0] = tokens[n_tokens - 1];
    return 1;
}

static tamis_connector_hooks hooks_of(meddler *m)
{
    return (tamis_connector_hooks){.struct_size = sizeof(tamis_connector_hooks),
                                   .user = m,
                                   .start_load = in_step,
                                   .wait_for_layer_load = in_layer,
                                   .notify_written = in_layer,
                                   .save_layer = in_layer,
                                   .wait_for_save = in_step};
}

static void check_calls(const char *dir)
{
    test_rng rng = test_rng_start(dir, 96);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(dir, &p);
    const int32_t vocab = e.info->vocab_size;
    int32_t ids[MAX_LEN], copy = 0;
    random_ids(&rng, vocab, ids, MAX_LEN);
    float *want = test_logits_of(&e, ids, 150, 0), *seen = calloc((size_t)(150 * vocab), 4);
    meddler m = {e.session, NULL, NULL, path, test_seq_new(&e), test_seq_new(&e), 0};
    test_feed(&e, m.busy, ids, 135, 0, NULL);
    save(&e, m.busy, path, 0);
    const tamis_connector_hooks hooks = hooks_of(&m);
    tamis_error err;
    test_must(tamis_session_set_connector(e.session, &hooks, &err), &err, "set connector");
    test_feed(&e, m.busy, ids + 135, 15, 8, seen);
    assert_int_equal(m.n, 2 * (3 * e.info->num_hidden_layers + 2));
    test_assert_same_bits(seen, want + 135 * vocab, 15, vocab, "with a meddler");
    copy = test_seq_fork(&e, m.busy); /* allowed again */
    test_seq_drop(&e, copy);
    test_must(tamis_session_set_connector(e.session, NULL, &err), &err, "no connector");
    free(want);
    free(seen);
    free(path);
    test_engine_close(&e);
    assert_null(e.session);
    test_temp_dir_remove(folder);
}

static void hooks_change_nothing(void **state)
{
    (void)state;
    check_calls(V4_DIR);
    check_calls(V32_DIR);
}

static void drafters_change_nothing(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(V4_DIR, &p);
    const int32_t ids[] = {5, 6, 7};
    meddler m = {e.session, NULL, NULL, path, test_seq_new(&e), test_seq_new(&e), 0};
    tamis_spec_params params = tamis_spec_params_default();
    params.drafter = TAMIS_DRAFTER_CUSTOM;
    params.fn = in_drafter;
    params.user = &m;
    const tamis_sampler_params plain = tamis_sampler_params_default();
    tamis_sampler *sampler = NULL;
    tamis_error err;
    int32_t tokens[TAMIS_MAX_DRAFT + 1], n = 0;
    test_must(tamis_sampler_open(&sampler, e.info->vocab_size, &plain, &err), &err, "sampler");
    m.sampler = sampler;
    test_must(tamis_spec_open(&m.spec, e.session, m.busy, &params, &err), &err, "spec");
    test_must(tamis_spec_prompt(m.spec, ids, 3, &err), &err, "prompt");
    for (int i = 0; i < 3; i++)
        test_must(tamis_spec_next(m.spec, sampler, e.info->vocab_size, tokens, &n, &err), &err,
                  "next");
    assert_int_equal(m.n, 3);
    tamis_spec_close(&m.spec);
    tamis_sampler_close(&sampler);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* ---------------------------------------------------------------- messages */

static tamis_status shout(void *user, const tamis_connector_step *step, tamis_error *err)
{
    (void)user, (void)step;
    memset(err->text, 'x', sizeof err->text);
    return TAMIS_STATUS_IO;
}

static void a_message_without_an_end(void **state)
{
    (void)state;
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V32_DIR, &p);
    tamis_connector_hooks hooks = tamis_connector_hooks_default();
    hooks.start_load = shout;
    const int32_t id = 1;
    const tamis_feed feed = {test_seq_new(&e), &id, 1, TAMIS_LOGITS_LAST, NULL};
    tamis_error err = {TAMIS_STATUS_OK, ""};
    test_must(tamis_session_set_connector(e.session, &hooks, &err), &err, "set connector");
    assert_int_equal(tamis_session_step(e.session, &feed, 1, &err), TAMIS_STATUS_IO);
    assert_int_equal(strspn(err.text, "x"), strlen(err.text)); /* nothing from behind the message */
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- memory */

/* The session with a limit of its plan and `more` bytes. */
static tamis_status set_within(const test_engine *base, uint64_t more, tamis_error *err)
{
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    tamis_memory_plan plan;
    test_must(tamis_session_plan_memory(base->model, &p, &plan, err), err, "plan");
    p.memory_limit_bytes = plan.total + more;
    test_engine e = test_engine_share(base, &p);
    const tamis_connector_hooks hooks = tamis_connector_hooks_default();
    const tamis_status st = tamis_session_set_connector(e.session, &hooks, err);
    const int32_t id = 1;
    test_feed(&e, test_seq_new(&e), &id, 1, 0, NULL); /* works with hooks and without */
    test_engine_close(&e);
    return st;
}

static void the_journal_keeps_to_the_limit(void **state)
{
    (void)state;
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine base = test_engine_open(V4_DIR, &p);
    const uint64_t bytes = tamis_connector_journal_bytes(base.session);
    tamis_error err = {TAMIS_STATUS_OK, ""};
    assert_true(bytes > 0);
    assert_int_equal(set_within(&base, bytes - 1, &err), TAMIS_STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "memory_limit_bytes leaves"));
    test_must(set_within(&base, bytes, &err), &err, "just enough");
    test_engine_close(&base);
    base = test_engine_open(V32_DIR, &p);
    test_must(set_within(&base, 0, &err), &err, "no rings");
    test_engine_close(&base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_change_nothing),
        cmocka_unit_test(drafters_change_nothing),
        cmocka_unit_test(a_message_without_an_end),
        cmocka_unit_test(the_journal_keeps_to_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
