/*
 * Connector hooks: their exact order in every kind of step of every family, what is in the caches
 * at each of them, steps that a hook ends at any place, and a connector that carries a sequence
 * from one session to another.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/checksum.h"
#include "engine/draft.h"
#include "sequence_file_test.h"
#include "support/file_connector.h"
#include "support/sanitized.h"

enum { MAX_EVENTS = 512 };

typedef enum event_kind { START, WAIT, WRITTEN, SAVE, END } event_kind;

typedef struct event {
    event_kind kind;
    int32_t layer, n_requests;
    bool is_draft;
} event;

typedef struct recorder {
    event events[MAX_EVENTS];
    int32_t n;
    int32_t fail_at; /* the event that fails; -1: none */
    bool says_why;
    tamis_connector_request last; /* of the latest start_load, if it has one */
} recorder;

/* ---------------------------------------------------------------- a recording table */

static tamis_status record(void *user, const tamis_connector_step *step, event_kind kind,
                           int32_t layer, tamis_error *err)
{
    recorder *r = user;
    assert_true(r->n < MAX_EVENTS);
    r->events[r->n] = (event){kind, layer, step->n_requests, step->is_draft};
    if (r->n++ != r->fail_at)
        return TAMIS_STATUS_OK;
    if (r->says_why)
        snprintf(err->text, sizeof err->text, "event %d: the cable is out", r->fail_at);
    return TAMIS_STATUS_PEER;
}

static tamis_status start_load(void *user, const tamis_connector_step *step, tamis_error *err)
{
    if (step->n_requests > 0)
        ((recorder *)user)->last = step->requests[0];
    return record(user, step, START, -1, err);
}

static tamis_status wait_load(void *user, const tamis_connector_step *step, int32_t layer,
                              tamis_error *err)
{
    return record(user, step, WAIT, layer, err);
}

static tamis_status written(void *user, const tamis_connector_step *step, int32_t layer,
                            tamis_error *err)
{
    return record(user, step, WRITTEN, layer, err);
}

static tamis_status save_layer(void *user, const tamis_connector_step *step, int32_t layer,
                               tamis_error *err)
{
    return record(user, step, SAVE, layer, err);
}

static tamis_status wait_save(void *user, const tamis_connector_step *step, tamis_error *err)
{
    return record(user, step, END, -1, err);
}

static void set_hooks(test_engine *e, const tamis_connector_hooks *hooks)
{
    tamis_error err;
    test_must(tamis_session_set_connector(e->session, hooks, &err), &err, "set connector");
}

static void set_recorder(test_engine *e, recorder *r)
{
    tamis_connector_hooks hooks = tamis_connector_hooks_default();
    hooks.user = r;
    hooks.start_load = start_load;
    hooks.wait_for_layer_load = wait_load;
    hooks.notify_written = written;
    hooks.save_layer = save_layer;
    hooks.wait_for_save = wait_save;
    *r = (recorder){.fail_at = -1, .says_why = true};
    set_hooks(e, &hooks);
}

/* ---------------------------------------------------------------- order */

static void assert_event(const recorder *r, int32_t i, event_kind kind, int32_t layer, int32_t n,
                         bool is_draft)
{
    const event *seen = &r->events[i];
    if (seen->kind != kind || seen->layer != layer || seen->n_requests != n ||
        seen->is_draft != is_draft)
        fail_msg("event %d: kind %d, layer %d, %d requests, draft %d; expected %d, %d, %d, %d", i,
                 seen->kind, seen->layer, seen->n_requests, seen->is_draft, kind, layer, n,
                 is_draft);
}

/* Exactly one step over layers first .. end - 1; the record is empty afterwards. */
static void assert_step(recorder *r, int32_t n_requests, int32_t first, int32_t end, bool is_draft)
{
    int32_t i = 0;
    assert_event(r, i++, START, -1, n_requests, is_draft);
    for (int32_t layer = first; layer < end; layer++)
        for (int kind = WAIT; kind <= SAVE; kind++)
            assert_event(r, i++, (event_kind)kind, layer, n_requests, is_draft);
    assert_event(r, i++, END, -1, n_requests, is_draft);
    assert_int_equal(r->n, i);
    r->n = 0;
}

static void check_order(const char *dir)
{
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.n_threads = 2;
    test_engine e = test_engine_open(dir, &p);
    const int32_t n_layers = e.info->num_hidden_layers;
    const int32_t a = test_seq_new(&e), b = test_seq_new(&e);
    int32_t ids[MAX_LEN] = {1, 2, 3};
    recorder r;
    tamis_error err;
    set_recorder(&e, &r);
    assert_int_equal(tamis_session_num_layers(e.session), n_layers);
    test_feed(&e, a, ids, 140, 0, NULL); /* prefill */
    assert_step(&r, 1, 0, n_layers, false);
    assert_true(r.last.seq == a && r.last.start == 0 && r.last.n_tokens == 140);
    assert_true(r.last.n_blocks == 2 && r.last.n_expected == 0);
    test_feed(&e, a, ids, 1, 0, NULL); /* decode */
    assert_step(&r, 1, 0, n_layers, false);
    assert_true(r.last.start == 140 && r.last.n_tokens == 1);
    const tamis_feed feeds[] = {{a, ids, 1, TAMIS_LOGITS_LAST, NULL},
                                {b, ids, 30, TAMIS_LOGITS_LAST, NULL}};
    test_must(tamis_session_step(e.session, feeds, 2, &err), &err, "mixed");
    assert_step(&r, 2, 0, n_layers, false);
    const tamis_feed nothing = {.seq = a};
    test_must(tamis_session_step(e.session, &nothing, 1, &err), &err, "empty feed");
    assert_step(&r, 0, 0, 0, false);
    test_must(tamis_session_step(e.session, NULL, 0, &err), &err, "empty step");
    assert_step(&r, 0, 0, 0, false);
    const tamis_feed refused = {b, ids, MAX_LEN, TAMIS_LOGITS_NONE, NULL};
    assert_int_equal(tamis_session_step(e.session, &refused, 1, &err), TAMIS_STATUS_LIMIT);
    assert_int_equal(r.n, 0); /* a step that is refused has not begun */
    set_hooks(&e, NULL);
    test_feed(&e, a, ids, 1, 0, NULL);
    assert_int_equal(r.n, 0);
    test_engine_close(&e);
}

static void order_in_every_kind_of_step(void **state)
{
    (void)state;
    check_order(V4_DIR);
    check_order(V32_DIR);
    check_order(GLM5_DIR);
}

static void check_mtp(const char *dir)
{
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.mtp = true;
    test_engine e = test_engine_open(dir, &p);
    const int32_t n_layers = e.info->num_hidden_layers, seq = test_seq_new(&e);
    int32_t ids[40] = {3, 4, 5}, draft[3], n_draft = 0;
    recorder r;
    tamis_error err;
    set_recorder(&e, &r);
    assert_int_equal(tamis_session_num_layers(e.session), n_layers + 1);
    test_feed(&e, seq, ids, 40, 0, NULL);
    assert_step(&r, 1, 0, n_layers, false);
    test_must(tamis_draft_over_step(e.session, seq, ids, 39, &err), &err, "over step");
    assert_true(r.last.start == 0 && r.last.n_tokens == 40);
    assert_step(&r, 1, n_layers, n_layers + 1, true);
    r.fail_at = 7; /* in the second run: its layer is written */
    assert_int_equal(
        tamis_draft_tokens(e.session, seq, e.info->vocab_size, 3, draft, &n_draft, &err),
        TAMIS_STATUS_PEER);
    assert_event(&r, 7, WRITTEN, n_layers, 1, true);
    assert_true(r.n == 8 && r.last.start == 41 && r.last.n_tokens == 1);
    r.fail_at = -1;
    r.n = 0;
    test_feed(&e, seq, ids, 1, 0, NULL); /* still usable */
    assert_step(&r, 1, 0, n_layers, false);
    test_engine_close(&e);
}

static void the_mtp_block_is_one_more_layer(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    check_mtp(GOLDEN "v32-fp8");
    check_mtp(GOLDEN "glm52-fp8");
    check_mtp(TAMIS_SOURCE_DIR "/models/demo");
}

/* ---------------------------------------------------------------- what is in the caches */

typedef struct witness {
    tamis_session *session;
    uint64_t at_rest[128], at_written[128], at_save[128]; /* per layer */
    int32_t n_checks;
} witness;

/* Of all caches of a layer that are rings, or in blocks. */
static uint64_t sum_of(const witness *w, int32_t layer, bool rings)
{
    uint64_t sum = 1;
    for (int32_t i = 0; i < tamis_session_num_caches(w->session, layer); i++) {
        const tamis_cache_view view = tamis_session_get_cache(w->session, layer, i);
        const int32_t n = rings ? w->session->params.max_num_seqs : w->session->params.num_blocks;
        if (view.is_ring == rings)
            sum = tamis_checksum(view.base, (size_t)(n * view.stride), sum);
    }
    return sum;
}

static tamis_status witness_wait(void *user, const tamis_connector_step *step, int32_t layer,
                                 tamis_error *err)
{
    witness *w = user;
    (void)step, (void)err;
    const uint64_t seen = sum_of(w, layer, false) ^ sum_of(w, layer, true);
    assert_true(w->at_rest[layer] == seen); /* untouched since the step before */
    return TAMIS_STATUS_OK;
}

static tamis_status witness_written(void *user, const tamis_connector_step *step, int32_t layer,
                                    tamis_error *err)
{
    witness *w = user;
    (void)step, (void)err;
    w->at_written[layer] = sum_of(w, layer, false);
    return TAMIS_STATUS_OK;
}

static tamis_status witness_save(void *user, const tamis_connector_step *step, int32_t layer,
                                 tamis_error *err)
{
    witness *w = user;
    (void)step, (void)err;
    w->at_save[layer] = sum_of(w, layer, true);
    return TAMIS_STATUS_OK;
}

static tamis_status witness_end(void *user, const tamis_connector_step *step, tamis_error *err)
{
    witness *w = user;
    (void)step, (void)err;
    for (int32_t layer = 0; layer < tamis_session_num_layers(w->session); layer++) {
        assert_true(w->at_written[layer] == sum_of(w, layer, false));
        assert_true(w->at_save[layer] == sum_of(w, layer, true));
        w->at_rest[layer] = w->at_written[layer] ^ w->at_save[layer];
        w->n_checks++;
    }
    return TAMIS_STATUS_OK;
}

static void rows_are_in_place_when_they_should_be(void **state)
{
    static const char *const dirs[] = {V4_DIR, V32_DIR, GLM5_DIR};
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_rng rng = test_rng_start("rows_are_in_place_when_they_should_be", 91);
    for (int i = 0; i < 3; i++) {
        const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
        test_engine e = test_engine_open(dirs[i], &p);
        int32_t ids[MAX_LEN];
        random_ids(&rng, e.info->vocab_size, ids, MAX_LEN);
        const int32_t seq = test_seq_new(&e);
        witness w = {.session = e.session};
        tamis_connector_hooks hooks = tamis_connector_hooks_default();
        hooks.user = &w;
        hooks.wait_for_layer_load = witness_wait;
        hooks.notify_written = witness_written;
        hooks.save_layer = witness_save;
        hooks.wait_for_save = witness_end;
        for (int32_t layer = 0; layer < tamis_session_num_layers(e.session); layer++)
            w.at_rest[layer] = sum_of(&w, layer, false) ^ sum_of(&w, layer, true);
        set_hooks(&e, &hooks);
        test_feed(&e, seq, ids, 200, 0, NULL);
        test_feed(&e, seq, ids + 200, 9, 1, NULL);
        assert_int_equal(w.n_checks, 10 * tamis_session_num_layers(e.session));
        test_engine_close(&e);
    }
}

/* ---------------------------------------------------------------- hooks that fail */

typedef struct trial {
    test_engine e;
    recorder r;
    int32_t ids[MAX_LEN], seq;
    float *want, *seen; /* [MAX_LEN][vocab] */
} trial;

/* Feeding n tokens fails at that event without a trace. */
static void assert_fails_at(trial *t, int32_t n, int32_t fail_at)
{
    tamis_session *session = t->e.session;
    const int32_t len = tamis_seq_len(session, t->seq);
    const int32_t floor = tamis_seq_rollback_floor(session, t->seq);
    const int32_t n_free = session->pool.n_free;
    char text[64];
    tamis_error err = {TAMIS_STATUS_OK, ""};
    const tamis_feed feed = {t->seq, t->ids + len, n, TAMIS_LOGITS_LAST, NULL};
    t->r.n = 0;
    t->r.fail_at = fail_at;
    t->r.says_why = fail_at % 2 == 0;
    assert_int_equal(tamis_session_step(session, &feed, 1, &err), TAMIS_STATUS_PEER);
    assert_int_equal(t->r.n, fail_at + 1); /* and nothing is called any more */
    snprintf(text, sizeof text, "event %d: the cable is out", fail_at);
    if (t->r.says_why)
        assert_string_equal(err.text, text);
    else
        assert_non_null(strstr(err.text, "connector: "));
    assert_int_equal(tamis_seq_len(session, t->seq), len);
    assert_int_equal(tamis_seq_rollback_floor(session, t->seq), floor);
    assert_int_equal(session->pool.n_free, n_free);
    assert_int_equal(tamis_session_num_logits(session), 0);
    t->r.n = 0;
    t->r.fail_at = -1;
}

/* After all failures the next tokens, and those after a rollback, are the right ones. */
static void assert_goes_on(trial *t, int32_t n)
{
    const int32_t vocab = t->e.info->vocab_size, len = tamis_seq_len(t->e.session, t->seq);
    const int32_t floor = tamis_seq_rollback_floor(t->e.session, t->seq);
    test_seq_rollback(&t->e, t->seq, floor);
    test_feed(&t->e, t->seq, t->ids + floor, len + n - floor, 0, t->seen);
    test_assert_same_bits(t->seen, t->want + (int64_t)floor * vocab, len + n - floor, vocab,
                          "after failures");
    test_feed(&t->e, t->seq, t->ids + len + n, 2, 1, t->seen);
    test_assert_same_bits(t->seen, t->want + (int64_t)(len + n) * vocab, 2, vocab, "decode");
}

static void check_failures(const char *dir, int32_t stride)
{
    trial t = {.r = {.n = 0}};
    test_rng rng = test_rng_start(dir, 92);
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.max_num_logits = MAX_LEN;
    t.e = test_engine_open(dir, &p);
    const int32_t vocab = t.e.info->vocab_size;
    const int32_t n_events = 3 * t.e.info->num_hidden_layers + 2;
    random_ids(&rng, vocab, t.ids, MAX_LEN);
    t.want = test_logits_of(&t.e, t.ids, MAX_LEN, 0);
    t.seen = calloc((size_t)MAX_LEN * (size_t)vocab, sizeof *t.seen);
    t.seq = test_seq_new(&t.e);
    set_recorder(&t.e, &t.r);
    for (int32_t k = 0; k < n_events; k += stride)
        assert_fails_at(&t, 20, k); /* the first tokens */
    test_feed(&t.e, t.seq, t.ids, 40, 0, NULL);
    for (int32_t k = 0; k < n_events; k += TEST_IS_SANITIZED ? 2 : 1)
        assert_fails_at(&t, 1, k);
    for (int32_t k = n_events - 1; k >= 0; k -= stride)
        assert_fails_at(&t, 230, k); /* longer than every ring: all of the history goes */
    assert_goes_on(&t, 230);
    for (int32_t k = n_events % stride; k < n_events; k += stride)
        assert_fails_at(&t, 3, k);
    assert_goes_on(&t, 7);
    free(t.want);
    free(t.seen);
    test_engine_close(&t.e);
}

static void a_failing_hook_leaves_no_trace(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    check_failures(V4_DIR, TEST_IS_SANITIZED ? 9 : 2);
    if (TEST_IS_SANITIZED)
        return;
    check_failures(V32_DIR, 3);
    check_failures(GLM5_DIR, 3);
}

/* Several sequences in the step, one of them sharing blocks with a fork, with prefixes kept. */
static void failures_in_a_mixed_step(void **state)
{
    (void)state;
    if (TEST_IS_TSAN) /* one thread */
        skip();
    test_rng rng = test_rng_start("failures_in_a_mixed_step", 93);
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(V4_DIR, &p);
    const int32_t vocab = e.info->vocab_size;
    int32_t ids[MAX_LEN], other[MAX_LEN];
    random_ids(&rng, vocab, ids, MAX_LEN);
    random_ids(&rng, vocab, other, MAX_LEN);
    float *want = test_logits_of(&e, ids, 300, 150),
          *want_other = test_logits_of(&e, other, 100, 0);
    recorder r;
    set_recorder(&e, &r);
    const int32_t a = test_seq_new(&e);
    test_feed(&e, a, ids, 130, 0, NULL);
    const int32_t b = test_seq_fork(&e, a), c = test_seq_new(&e);
    const tamis_feed feeds[] = {{a, ids + 130, 140, TAMIS_LOGITS_LAST, NULL},
                                {c, other, 100, TAMIS_LOGITS_LAST, NULL},
                                {b, ids + 130, 1, TAMIS_LOGITS_LAST, NULL}};
    tamis_error err;
    for (r.fail_at = 0; r.fail_at < 3 * e.info->num_hidden_layers + 2; r.fail_at += 3) {
        r.n = 0;
        assert_int_equal(tamis_session_step(e.session, feeds, 3, &err), TAMIS_STATUS_PEER);
        assert_int_equal(tamis_seq_len(e.session, a), 130);
        assert_int_equal(tamis_seq_len(e.session, b), 130);
        assert_int_equal(tamis_seq_len(e.session, c), 0);
    }
    r.fail_at = -1;
    r.n = 0;
    test_must(tamis_session_step(e.session, feeds, 3, &err), &err, "mixed");
    test_assert_same_bits(tamis_session_logits(e.session, 0), want + 269 * vocab, 1, vocab, "a");
    test_assert_same_bits(tamis_session_logits(e.session, 1), want_other + 99 * vocab, 1, vocab,
                          "c");
    test_assert_same_bits(tamis_session_logits(e.session, 2), want + 130 * vocab, 1, vocab, "b");
    free(want);
    free(want_other);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- a connector at work */

static void expect(test_engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    tamis_error err;
    test_must(tamis_seq_expect(e->session, seq, ids, n, &err), &err, "expect");
    assert_int_equal(tamis_seq_len(e->session, seq), n);
}

static void carry(const char *dir, tamis_dtype dtype, int32_t n)
{
    test_rng rng = test_rng_start(dir, 94);
    char *folder = test_temp_dir_make();
    tamis_session_params p = file_params(dtype);
    test_engine e = test_engine_open(dir, &p);
    const int32_t vocab = e.info->vocab_size, n_layers = e.info->num_hidden_layers;
    int32_t ids[MAX_LEN];
    random_ids(&rng, vocab, ids, MAX_LEN);
    float *want = test_logits_of(&e, ids, n + 12, 150), *seen = calloc((size_t)(12 * vocab), 4);
    test_feed(&e, test_seq_new(&e), ids + 9, 20, 0, NULL);
    test_file_connector from = {.folder = folder, .seq = test_seq_new(&e)};
    tamis_connector_hooks hooks = test_file_connector_hooks(&from);
    set_hooks(&e, &hooks);
    test_feed(&e, from.seq, ids, n, 75, NULL);
    assert_false(from.has_begun);
    p.n_threads = 3;
    p.max_rollback = 30;
    p.max_num_seqs = 2;
    p.block_order_seed = 99;
    p.max_num_batched_tokens = 50;
    p.max_num_logits = 50;
    p.prefix_caching = true;
    test_engine f = test_engine_share(&e, &p);
    test_file_connector to = {.folder = folder, .seq = -1};
    hooks = test_file_connector_hooks(&to);
    set_hooks(&f, &hooks);
    test_feed(&f, test_seq_new(&f), ids + 30, 60, 40, NULL);
    const int32_t seq = test_seq_new(&f);
    expect(&f, seq, ids, n);
    test_feed(&f, seq, ids + n, 12, 5, seen);
    assert_int_equal(to.n_loaded, n_layers);
    test_assert_same_bits(seen, want + (int64_t)n * vocab, 12, vocab, "carried");
    test_seq_rollback(&f, seq, n);
    test_feed(&f, seq, ids + n, 12, 0, seen);
    test_assert_same_bits(seen, want + (int64_t)n * vocab, 12, vocab, "after a rollback");
    free(want);
    free(seen);
    test_engine_close(&f);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

static void a_connector_carries_sequences(void **state)
{
    (void)state;
    carry(V4_DIR, TAMIS_DTYPE_BF16, 203);
    carry(V32_DIR, TAMIS_DTYPE_BF16, 150);
    if (TEST_IS_SANITIZED)
        return;
    carry(V4_DIR, TAMIS_DTYPE_F32, 256);
    carry(GLM5_DIR, TAMIS_DTYPE_F32, 129);
    carry(V4_DIR, TAMIS_DTYPE_BF16, 5);
}

static void assert_says(tamis_status seen, tamis_status status, const tamis_error *err,
                        const char *text)
{
    if (seen != status || strstr(err->text, text) == NULL)
        fail_msg("%s: \"%s\", expected %s and \"%s\"", tamis_status_name(seen), err->text,
                 tamis_status_name(status), text);
}

/* Until its rows are there, a sequence can be fed, rolled back to 0 and dropped; a load that fails
 * can be tried again. */
static void expected_tokens_that_have_not_come(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    tamis_session *s = e.session;
    int32_t ids[MAX_LEN] = {7, 8, 9}, seq = test_seq_new(&e), copy;
    const int32_t n_free = s->pool.n_free;
    tamis_error err;
    assert_says(tamis_seq_expect(s, seq, ids, 130, &err), TAMIS_STATUS_STATE, &err, "no connector");
    test_file_connector c = {.folder = folder, .seq = -1};
    const tamis_connector_hooks hooks = test_file_connector_hooks(&c);
    set_hooks(&e, &hooks);
    assert_says(tamis_seq_expect(s, seq, ids, 0, &err), TAMIS_STATUS_INVALID, &err, "1..329");
    assert_says(tamis_seq_expect(s, seq, ids, MAX_LEN, &err), TAMIS_STATUS_INVALID, &err, "1..329");
    ids[5] = e.info->vocab_size;
    assert_says(tamis_seq_expect(s, seq, ids, 130, &err), TAMIS_STATUS_INVALID, &err,
                "expected token 5");
    ids[5] = 0;
    expect(&e, seq, ids, 130);
    assert_int_equal(s->pool.n_free, n_free - 2);
    assert_says(tamis_seq_fork(s, seq, &copy, &err), TAMIS_STATUS_STATE, &err, "first 130 tokens");
    assert_says(tamis_seq_save(s, seq, path, &err), TAMIS_STATUS_STATE, &err, "first 130 tokens");
    assert_says(tamis_seq_rollback(s, seq, 130, &err), TAMIS_STATUS_STATE, &err, "first 130");
    assert_says(tamis_seq_expect(s, seq, ids, 9, &err), TAMIS_STATUS_STATE, &err, "first 130");
    for (int i = 0; i < 2; i++) {
        const tamis_feed feed = {seq, ids, 1, TAMIS_LOGITS_LAST, NULL};
        assert_says(tamis_session_step(s, &feed, 1, &err), TAMIS_STATUS_IO, &err, folder);
        assert_int_equal(tamis_seq_len(s, seq), 130);
        assert_int_equal(s->sequences[seq].n_expected, 130);
    }
    test_seq_rollback(&e, seq, 0);
    assert_int_equal(s->pool.n_free, n_free);
    test_feed(&e, seq, ids, 10, 0, NULL);
    assert_says(tamis_seq_expect(s, seq, ids, 9, &err), TAMIS_STATUS_STATE, &err, "has 10 tokens");
    const tamis_connector_hooks wrong = {.struct_size = 8};
    assert_says(tamis_session_set_connector(s, &wrong, &err), TAMIS_STATUS_INVALID, &err,
                "struct_size");
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

static tamis_status load_nan(void *user, const tamis_connector_step *step, int32_t layer,
                             tamis_error *err)
{
    const tamis_connector_request *r = &step->requests[0];
    (void)user, (void)err;
    for (int32_t i = 0; r->n_expected > 0 && i < tamis_session_num_caches(step->session, layer);
         i++) {
        const tamis_cache_view view = tamis_session_get_cache(step->session, layer, i);
        const int64_t at = view.is_ring ? r->seq : r->block_table[0];
        memset(view.base + at * view.stride, 0xff, (size_t)view.row_bytes * (size_t)view.rows);
    }
    return TAMIS_STATUS_OK;
}

static void a_loaded_nan_is_not_blamed_on_weights(void **state)
{
    (void)state;
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    tamis_connector_hooks hooks = tamis_connector_hooks_default();
    hooks.wait_for_layer_load = load_nan;
    set_hooks(&e, &hooks);
    const int32_t ids[50] = {1, 2, 3}, seq = test_seq_new(&e);
    expect(&e, seq, ids, 49);
    const tamis_feed feed = {seq, ids, 1, TAMIS_LOGITS_LAST, NULL};
    tamis_error err;
    assert_says(tamis_session_step(e.session, &feed, 1, &err), TAMIS_STATUS_FORMAT, &err,
                "rows that the connector loaded");
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_in_every_kind_of_step),
        cmocka_unit_test(the_mtp_block_is_one_more_layer),
        cmocka_unit_test(rows_are_in_place_when_they_should_be),
        cmocka_unit_test(a_failing_hook_leaves_no_trace),
        cmocka_unit_test(failures_in_a_mixed_step),
        cmocka_unit_test(a_connector_carries_sequences),
        cmocka_unit_test(expected_tokens_that_have_not_come),
        cmocka_unit_test(a_loaded_nan_is_not_blamed_on_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
