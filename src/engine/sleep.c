/*
 * Sleep: a session without its cache memory. Nothing but rows lies in there: constants, tables and
 * descriptions of caches stay, so waking up is taking the memory again.
 */
#include "core/error.h"
#include "core/mem.h"
#include "engine/session_internal.h"

tamis_status tamis_session_check_call(const tamis_session *session, tamis_error *err)
{
    if (session == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "session is NULL");
    if (session->is_calling_out)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "session: a hook or a drafter of it is running, allowed: no calls from "
                          "there");
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_check_awake(const tamis_session *session, tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_call(session, err));
    if (session->sleep_level != 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "session: is asleep (level %d), allowed: wake, sleep and close",
                          session->sleep_level);
    return TAMIS_STATUS_OK;
}

int32_t tamis_session_sleep_level(const tamis_session *session)
{
    return session != NULL ? session->sleep_level : -1;
}

static void forget_sequences(tamis_session *session)
{
    for (int32_t i = session->params.max_num_seqs; i-- > 0;) {
        tamis_sequence *s = &session->sequences[i];
        s->len = 0;
        tamis_session_trim_blocks(session, i);
        s->is_live = false;
    }
    tamis_session_drop_prefixes(session);
    session->n_logits = 0;
    session->hidden_of = session->draft_of = -1;
}

static void release(tamis_session *session)
{
    tamis_cache_store_release(session->net->store);
    tamis_mem_free(session->prefix.histories);
    tamis_mem_free(session->connector.journal);
    session->prefix.histories = session->connector.journal = NULL;
    tamis_mem_trim();
}

tamis_status tamis_session_sleep(tamis_session *session, int32_t level, tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_call(session, err));
    if (level != 1 && level != 2)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "session: sleep level is %d, allowed 1, 2",
                          level);
    if (session->sleep_level == 0) {
        forget_sequences(session);
        release(session);
    }
    if (level == 2)
        tamis_checkpoint_release_pages(session->model->checkpoint);
    session->sleep_level = level > session->sleep_level ? level : session->sleep_level;
    return TAMIS_STATUS_OK;
}

/* As at open: better no memory than a process that the system kills. */
static tamis_status check_available(const tamis_session *session, tamis_error *err)
{
    const tamis_cache_store *store = session->net->store;
    const uint64_t journal = session->connector.is_set ? tamis_connector_journal_bytes(session) : 0;
    const uint64_t needed = journal + store->block_bytes * (uint64_t)store->n_blocks +
                            store->slot_bytes * (uint64_t)store->n_slots +
                            tamis_session_snapshot_bytes(&session->params, store->history_bytes);
    const uint64_t available = tamis_available_memory();
    if (session->params.memory_limit_bytes != 0 || needed <= available)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_NO_MEMORY,
                      "session: needs %.1f MiB to wake up, the system has %.1f MiB left",
                      (double)needed / (1 << 20), (double)available / (1 << 20));
}

static tamis_status take(tamis_session *session, tamis_error *err)
{
    TAMIS_TRY(check_available(session, err));
    TAMIS_TRY(tamis_cache_store_allocate(session->net->store, err));
    TAMIS_TRY(tamis_session_take_snapshots(session, err));
    return session->connector.is_set ? tamis_connector_take_journal(session, err) : TAMIS_STATUS_OK;
}

tamis_status tamis_session_wake(tamis_session *session, tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_call(session, err));
    if (session->sleep_level == 0)
        return TAMIS_STATUS_OK;
    const tamis_status st = take(session, err);
    if (st != TAMIS_STATUS_OK) {
        release(session);
        return st;
    }
    session->sleep_level = 0;
    return TAMIS_STATUS_OK;
}
