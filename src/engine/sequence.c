#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/size.h"
#include "engine/session_internal.h"

static bool is_live(const tamis_session *session, int32_t seq)
{
    return session != NULL && seq >= 0 && seq < session->params.max_num_seqs &&
           session->sequences[seq].is_live;
}

static tamis_status find_live(const tamis_session *session, int32_t seq, tamis_sequence **out,
                              tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_awake(session, err));
    if (!is_live(session, seq))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d does not exist (ids are 0..%d, from tamis_seq_create)", seq,
                          session->params.max_num_seqs - 1);
    *out = &session->sequences[seq];
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_find_fed(const tamis_session *session, int32_t seq, tamis_sequence **out,
                                    tamis_error *err)
{
    TAMIS_TRY(find_live(session, seq, out, err));
    if ((*out)->is_faulty)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d was in a step that failed; it can only be dropped", seq);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_find_seq(const tamis_session *session, int32_t seq, tamis_sequence **out,
                                    tamis_error *err)
{
    TAMIS_TRY(tamis_session_find_fed(session, seq, out, err));
    if ((*out)->n_expected > 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d: its first %d tokens come with its next step; until then it "
                          "can only be fed, rolled back to 0 or dropped",
                          seq, (*out)->n_expected);
    return TAMIS_STATUS_OK;
}

/* Index of a sequence that is not alive. errors: NO_BLOCKS */
static tamis_status find_unused(const tamis_session *session, int32_t *seq, tamis_error *err)
{
    for (int32_t i = 0; i < session->params.max_num_seqs; i++)
        if (!session->sequences[i].is_live) {
            *seq = i;
            return TAMIS_STATUS_OK;
        }
    return tamis_fail(err, TAMIS_STATUS_NO_BLOCKS, "all %d sequences are in use (max_num_seqs)",
                      session->params.max_num_seqs);
}

tamis_status tamis_seq_create(tamis_session *session, int32_t *seq, tamis_error *err)
{
    int32_t i = 0;
    if (session == NULL || seq == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence: session or seq is NULL");
    TAMIS_TRY(tamis_session_check_awake(session, err));
    TAMIS_TRY(find_unused(session, &i, err));
    tamis_cache_store_clear_slot(session->net->store, i);
    tamis_sequence *s = &session->sequences[i];
    *s = (tamis_sequence){
        .is_live = true, .table = s->table, .ids = s->ids, .serial = ++session->n_created};
    *seq = i;
    return TAMIS_STATUS_OK;
}

/* Keeps the first n blocks; the others go back last first, so that the pool's order is kept. */
static void keep_blocks(tamis_session *session, tamis_sequence *s, int32_t n)
{
    while (s->n_blocks > n)
        tamis_block_pool_release(&session->pool, s->table[--s->n_blocks]);
}

/* Keeps the blocks of the first len tokens. */
static void keep_tokens(tamis_session *session, tamis_sequence *s, int32_t len)
{
    const int32_t block_tokens = session->params.block_tokens;
    keep_blocks(session, s, len / block_tokens + (len % block_tokens != 0));
}

void tamis_session_trim_blocks(tamis_session *session, int32_t seq)
{
    keep_tokens(session, &session->sequences[seq], session->sequences[seq].len);
}

tamis_status tamis_session_fill_table(tamis_session *session, int32_t seq, int32_t len,
                                      tamis_error *err)
{
    tamis_sequence *s = &session->sequences[seq];
    const int32_t n = (int32_t)tamis_ceil_div(len, session->params.block_tokens);
    const int32_t n_free = session->pool.n_free + tamis_prefix_cache_num_alone(&session->prefix);
    assert(s->len == 0 && s->n_blocks == 0);
    if (n > n_free)
        return tamis_fail(err, TAMIS_STATUS_NO_BLOCKS,
                          "sequence %d: %d tokens need %d blocks, %d of %d are free", seq, len, n,
                          n_free, session->params.num_blocks - 1);
    while (s->n_blocks < n)
        s->table[s->n_blocks++] = tamis_session_take_block(session);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_drop(tamis_session *session, int32_t seq, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(find_live(session, seq, &s, err));
    keep_blocks(session, s, 0);
    s->is_live = false;
    return TAMIS_STATUS_OK;
}

int32_t tamis_seq_len(const tamis_session *session, int32_t seq)
{
    return is_live(session, seq) ? session->sequences[seq].len : -1;
}

int32_t tamis_seq_rollback_floor(const tamis_session *session, int32_t seq)
{
    if (!is_live(session, seq))
        return -1;
    const tamis_sequence *s = &session->sequences[seq];
    const int32_t floor = tamis_cache_store_rollback_floor(session->net->store, s->high);
    return floor > s->base ? floor : s->base;
}

/*
 * Nothing is copied or cleared: rows are addressed by position and rewritten before they are read.
 * Blocks past the new length are given back; a block that stays and is shared with a fork is
 * copied by the step that writes into it.
 */
tamis_status tamis_seq_rollback(tamis_session *session, int32_t seq, int32_t len, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(len == 0 ? tamis_session_find_fed(session, seq, &s, err)
                       : tamis_session_find_seq(session, seq, &s, err));
    const int32_t floor = tamis_seq_rollback_floor(session, seq);
    if (len < 0 || len > s->len)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d: rollback to %d, its length is %d", seq, len, s->len);
    if (len != 0 && len < floor)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "sequence %d: rollback to %d, allowed %d..%d and 0 (max_rollback %d)",
                          seq, len, floor, s->len, session->params.max_rollback);
    keep_tokens(session, s, len);
    s->len = len;
    if (len == 0)
        s->high = s->base = s->n_expected = 0; /* nothing in the rings is history any more */
    return TAMIS_STATUS_OK;
}

/* Full blocks are shared, the last partial one and the ring slot are copied. */
static void copy_sequence(tamis_session *session, int32_t from, int32_t to, int32_t partial_block)
{
    const tamis_sequence *s = &session->sequences[from];
    tamis_sequence *t = &session->sequences[to];
    *t = (tamis_sequence){.is_live = true,
                          .len = s->len,
                          .high = s->high,
                          .base = s->base,
                          .n_blocks = s->n_blocks,
                          .table = t->table,
                          .ids = t->ids,
                          .serial = ++session->n_created};
    memcpy(t->table, s->table, (size_t)s->n_blocks * sizeof *t->table);
    if (t->ids != NULL)
        memcpy(t->ids, s->ids, (size_t)s->len * sizeof *t->ids);
    const int32_t n_full = s->len / session->params.block_tokens;
    for (int32_t i = 0; i < n_full; i++)
        tamis_block_pool_retain(&session->pool, t->table[i]);
    if (n_full < s->n_blocks) {
        t->table[n_full] = partial_block;
        tamis_cache_store_copy_block(session->net->store, partial_block, s->table[n_full]);
    }
    tamis_cache_store_copy_slot(session->net->store, to, from);
}

tamis_status tamis_seq_fork(tamis_session *session, int32_t seq, int32_t *new_seq, tamis_error *err)
{
    tamis_sequence *s = NULL;
    int32_t to = 0, block = 0;
    if (new_seq == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence: new_seq is NULL");
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    TAMIS_TRY(find_unused(session, &to, err));
    if (s->len % session->params.block_tokens != 0) {
        block = tamis_session_take_block(session);
        if (block == 0)
            return tamis_fail(err, TAMIS_STATUS_NO_BLOCKS,
                              "sequence %d: its copy needs 1 block, 0 of %d are free", seq,
                              session->params.num_blocks - 1);
    }
    copy_sequence(session, seq, to, block);
    *new_seq = to;
    return TAMIS_STATUS_OK;
}
