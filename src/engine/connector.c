/*
 * A session's side of include/tamis/connector.h: hooks called from the moments of a run, rings put
 * back after a step that a hook ended, sequences whose first tokens come from elsewhere.
 */
#include <string.h>

#include "caches/ring_journal.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "engine/session_internal.h"

tamis_connector_hooks tamis_connector_hooks_default(void)
{
    return (tamis_connector_hooks){.struct_size = sizeof(tamis_connector_hooks)};
}

/* ---------------------------------------------------------------- calling hooks */

static tamis_connector_step step_of(const tamis_session *session)
{
    const tamis_connector *c = &session->connector;
    return (tamis_connector_step){session, c->requests, c->n_requests, c->is_draft};
}

/* What a hook left in *err becomes the step's error. */
static tamis_status finish(tamis_status st, tamis_error *seen, const char *hook, int32_t layer,
                           tamis_error *err)
{
    if (st == TAMIS_STATUS_OK)
        return TAMIS_STATUS_OK;
    seen->text[sizeof seen->text - 1] = '\0'; /* whatever a hook did: strncpy puts none */
    if (seen->text[0] != '\0')
        return tamis_fail(err, st, "%s", seen->text);
    return layer < 0 ? tamis_fail(err, st, "connector: %s failed", hook)
                     : tamis_fail(err, st, "connector: %s of layer %d failed", hook, layer);
}

static tamis_status call_step(tamis_session *session, tamis_connector_step_fn fn, const char *hook,
                              tamis_error *err)
{
    const tamis_connector *c = &session->connector;
    const tamis_connector_step step = step_of(session);
    tamis_error seen = {TAMIS_STATUS_OK, ""};
    if (!c->is_set || fn == NULL)
        return TAMIS_STATUS_OK;
    session->is_calling_out = true;
    const tamis_status st = fn(c->hooks.user, &step, &seen);
    session->is_calling_out = false;
    return finish(st, &seen, hook, -1, err);
}

/* Called by the network. A hook may allocate; the run may not. */
static bool on_moment(void *user, tamis_net_moment moment, int32_t layer)
{
    static const char *const names[] = {"wait_for_layer_load", "notify_written", "save_layer"};
    tamis_session *session = user;
    tamis_connector *c = &session->connector;
    const tamis_connector_layer_fn fns[] = {c->hooks.wait_for_layer_load, c->hooks.notify_written,
                                            c->hooks.save_layer};
    const tamis_connector_step step = step_of(session);
    tamis_error seen = {TAMIS_STATUS_OK, ""};
    if (fns[moment] == NULL)
        return true;
    tamis_mem_run_end();
    session->is_calling_out = true;
    const tamis_status st = fns[moment](c->hooks.user, &step, layer, &seen);
    session->is_calling_out = false;
    tamis_mem_run_begin();
    return finish(st, &seen, names[moment], layer, &c->failure) == TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- steps */

static void save_rings(tamis_session *session)
{
    uint8_t *at = session->connector.journal;
    for (int32_t i = 0; at != NULL && i < session->connector.n_requests; i++) {
        const tamis_connector_request *r = &session->connector.requests[i];
        at = tamis_ring_journal_save(session->net->store, r->seq, r->start, r->n_tokens, at);
    }
}

void tamis_connector_undo(tamis_session *session)
{
    const uint8_t *at = session->connector.journal;
    for (int32_t i = 0; at != NULL && i < session->connector.n_requests; i++) {
        const tamis_connector_request *r = &session->connector.requests[i];
        at = tamis_ring_journal_restore(session->net->store, r->seq, r->start, r->n_tokens, at);
    }
}

tamis_status tamis_connector_begin(tamis_session *session, tamis_error *err)
{
    tamis_connector *c = &session->connector;
    const tamis_step_buffers *step = &session->step;
    if (!c->is_set)
        return TAMIS_STATUS_OK;
    c->is_draft = false;
    c->n_requests = step->n_reqs;
    c->failure.status = TAMIS_STATUS_OK;
    for (int32_t i = 0; i < step->n_reqs; i++) {
        const tamis_sequence *s = &session->sequences[step->seqs[i]];
        c->requests[i] = (tamis_connector_request){.seq = step->seqs[i],
                                                   .start = s->len,
                                                   .n_tokens = step->seq_lens[i] - s->len,
                                                   .n_expected = s->n_expected,
                                                   .block_table = s->table,
                                                   .n_blocks = s->n_blocks};
    }
    save_rings(session);
    return call_step(session, c->hooks.start_load, "start_load", err);
}

tamis_status tamis_connector_begin_draft(tamis_session *session, int32_t seq, int32_t start,
                                         int32_t n_tokens, tamis_error *err)
{
    tamis_connector *c = &session->connector;
    const tamis_sequence *s = &session->sequences[seq];
    if (!c->is_set)
        return TAMIS_STATUS_OK;
    c->is_draft = true;
    c->n_requests = 1;
    c->failure.status = TAMIS_STATUS_OK;
    c->requests[0] = (tamis_connector_request){.seq = seq,
                                               .start = start,
                                               .n_tokens = n_tokens,
                                               .block_table = s->table,
                                               .n_blocks = s->n_blocks};
    return call_step(session, c->hooks.start_load, "start_load", err);
}

tamis_status tamis_connector_status(const tamis_session *session, tamis_error *err)
{
    const tamis_error *failure = &session->connector.failure;
    return failure->status == TAMIS_STATUS_OK
               ? TAMIS_STATUS_OK
               : tamis_fail(err, failure->status, "%s", failure->text);
}

tamis_status tamis_connector_end(tamis_session *session, tamis_error *err)
{
    return call_step(session, session->connector.hooks.wait_for_save, "wait_for_save", err);
}

/* ---------------------------------------------------------------- calls of the engine's user */

uint64_t tamis_connector_journal_bytes(const tamis_session *session)
{
    const tamis_session_params *p = &session->params;
    return tamis_ring_journal_bytes(session->net->store, p->max_num_batched_tokens,
                                    p->max_num_seqs);
}

/* The plan that a session was opened with knows of no hooks: the journal needs room beside it. */
static tamis_status check_room(const tamis_session *session, uint64_t bytes, tamis_error *err)
{
    tamis_memory_plan plan;
    TAMIS_TRY(tamis_memory_plan_make(&plan, session->model, &session->params, err));
    const bool is_limited = session->params.memory_limit_bytes != 0;
    const uint64_t left = is_limited ? plan.limit - plan.total : tamis_available_memory();
    if (bytes <= left)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_NO_MEMORY,
                      "connector: the journal of rings needs %llu bytes, %s leaves %llu",
                      (unsigned long long)bytes, is_limited ? "memory_limit_bytes" : "the system",
                      (unsigned long long)left);
}

tamis_status tamis_connector_take_journal(tamis_session *session, tamis_error *err)
{
    const size_t bytes = (size_t)tamis_connector_journal_bytes(session);
    if (bytes == 0 || session->connector.journal != NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_room(session, bytes, err));
    session->connector.journal = tamis_mem_alloc(TAMIS_MEM_CACHES, bytes);
    return session->connector.journal != NULL ? TAMIS_STATUS_OK
                                              : tamis_fail_memory(err, "journal of rings", bytes);
}

tamis_status tamis_session_set_connector(tamis_session *session, const tamis_connector_hooks *hooks,
                                         tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_awake(session, err));
    tamis_connector *c = &session->connector;
    if (hooks != NULL && hooks->struct_size != sizeof *hooks)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "connector: struct_size is %zu, must be %zu",
                          hooks->struct_size, sizeof *hooks);
    if (hooks == NULL) {
        tamis_mem_free(c->journal);
        *c = (tamis_connector){.requests = c->requests};
        session->net->watch = (tamis_net_watch){NULL, NULL};
        return TAMIS_STATUS_OK;
    }
    TAMIS_TRY(tamis_connector_take_journal(session, err));
    c->hooks = *hooks;
    c->is_set = true;
    session->net->watch = (tamis_net_watch){on_moment, session};
    return TAMIS_STATUS_OK;
}

static tamis_status check_expected(const tamis_session *session, int32_t seq,
                                   const tamis_sequence *s, const int32_t *tokens, int32_t n,
                                   tamis_error *err)
{
    if (!session->connector.is_set)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d: expects tokens, but the session has no connector", seq);
    if (s->len != 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d has %d tokens, allowed 0: only an empty one can expect some",
                          seq, s->len);
    if (tokens == NULL || n < 1 || n >= session->params.max_model_len)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d: expects %d tokens (ids at address %p), allowed 1..%d", seq,
                          n, (const void *)tokens, session->params.max_model_len - 1);
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= session->model->info.vocab_size)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "sequence %d: expected token %d is %d, allowed 0..%d", seq, i,
                              tokens[i], session->model->info.vocab_size - 1);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_expect(tamis_session *session, int32_t seq, const int32_t *tokens, int32_t n,
                              tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    TAMIS_TRY(check_expected(session, seq, s, tokens, n, err));
    TAMIS_TRY(tamis_session_fill_table(session, seq, n, err));
    if (s->ids != NULL)
        memcpy(s->ids, tokens, (size_t)n * sizeof *s->ids);
    s->len = s->high = s->base = s->n_expected = n;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- where rows lie */

int32_t tamis_session_num_layers(const tamis_session *session)
{
    return session != NULL ? session->net->layer_caches->n_layers : 0;
}

/* The i-th cache that the layer has, and its role; NULL: there is none. */
static const tamis_cache *find_cache(const tamis_session *session, int32_t layer, int32_t i,
                                     int32_t *role)
{
    const tamis_layer_caches *caches = session->net->layer_caches;
    if (layer < 0 || layer >= caches->n_layers || i < 0)
        return NULL;
    for (*role = 0; *role < caches->n_roles; ++*role) {
        const tamis_cache *cache = tamis_layer_cache(caches, layer, *role);
        if (cache != NULL && i-- == 0)
            return cache;
    }
    return NULL;
}

int32_t tamis_session_num_caches(const tamis_session *session, int32_t layer)
{
    int32_t n = 0, role;
    while (find_cache(session, layer, n, &role) != NULL)
        n++;
    return n;
}

tamis_cache_view tamis_session_get_cache(const tamis_session *session, int32_t layer, int32_t i)
{
    int32_t role = 0;
    const tamis_cache *cache = find_cache(session, layer, i, &role);
    if (cache == NULL)
        return (tamis_cache_view){0};
    const tamis_cache_desc *d = &cache->desc;
    const bool is_ring = d->life == TAMIS_CACHE_RING;
    return (tamis_cache_view){.name = session->net->layer_caches->role_names[role],
                              .is_ring = is_ring,
                              .format = d->format,
                              .rows = d->rows,
                              .tokens_per_row =
                                  is_ring ? 1 : session->params.block_tokens / d->rows,
                              .row_bytes = cache->row_bytes,
                              .base = cache->base,
                              .stride = cache->stride,
                              .align = d->align,
                              .lead = d->lead};
}
