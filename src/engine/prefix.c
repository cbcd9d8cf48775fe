/*
 * Prefix reuse: what a step leaves in the prefix cache, and how a new sequence takes it over.
 *
 * Blocks are published when a step has filled them, by the tokens it was fed with: that is all a
 * row depends on, so blocks with tokens that are rolled back later are right as well, for whoever
 * comes with these tokens; the sequence itself then finds them shared and copies before it writes.
 *
 * The rings of a family that has them reach back little further than one position. A step longer
 * than a ring is therefore watched while it runs (caches/ring_history.h): the rows that make up the
 * history at a block boundary go into a snapshot on their way into the rings. Nothing is cut, so a
 * step has the same stages with and without prefix_caching. The watches stay until the next step:
 * the rows of the MTP block's rings come after the step, when it drafts.
 */
#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "engine/session_internal.h"

int32_t tamis_session_take_block(tamis_session *session)
{
    if (session->pool.n_free == 0 && tamis_prefix_cache_num_alone(&session->prefix) > 0)
        tamis_prefix_cache_evict(&session->prefix);
    return tamis_block_pool_take(&session->pool);
}

/* ---------------------------------------------------------------- in a step */

static int32_t watched_snapshot(const tamis_prefix_cache *prefix, const tamis_history_watch *watch)
{
    return (int32_t)((size_t)(watch->history - prefix->histories) / prefix->history_bytes);
}

/* Whether the history at `pos` holds rows that a connector brings only while the step runs. */
static bool is_history_expected(const tamis_session *session, const tamis_sequence *s, int32_t pos)
{
    const tamis_cache_store *store = session->net->store;
    for (int32_t i = 0; s->n_expected > 0 && i < store->n_caches; i++) {
        const tamis_cache_desc *desc = &store->caches[i].desc;
        if (desc->life == TAMIS_CACHE_RING && tamis_history_first(desc, pos) < s->n_expected)
            return true;
    }
    return false;
}

/* The history at `pos`, which the step crosses: rows before the step now, the others as they come.
 */
static void watch(tamis_session *session, int32_t seq, int32_t pos)
{
    tamis_prefix_cache *prefix = &session->prefix;
    const tamis_sequence *s = &session->sequences[seq];
    if (is_history_expected(session, s, pos) ||
        tamis_prefix_cache_has_snapshot(prefix, s->ids, pos))
        return;
    const int32_t snapshot = tamis_prefix_cache_take_snapshot(prefix, pos);
    if (snapshot == TAMIS_PREFIX_NONE)
        return;
    uint8_t *history = tamis_prefix_cache_history(prefix, snapshot);
    tamis_history_save(session->net->store, seq, pos, s->len, history);
    prefix->watches.items[prefix->watches.n++] = (tamis_history_watch){seq, pos, history};
}

/* Later boundaries first: if there are more than snapshots, these are worth more. */
static void watch_boundaries(tamis_session *session, int32_t seq, int32_t new_len)
{
    const int32_t block_tokens = session->params.block_tokens;
    int32_t pos = new_len / block_tokens * block_tokens;
    for (; pos > session->sequences[seq].len; pos -= block_tokens)
        if (pos < session->params.max_model_len) /* else nothing could follow */
            watch(session, seq, pos);
}

void tamis_prefix_step_begin(tamis_session *session)
{
    const tamis_step_buffers *step = &session->step;
    if (!session->params.prefix_caching)
        return;
    session->prefix.watches.n = 0;
    for (int32_t i = 0; i < step->n_reqs; i++) {
        const tamis_sequence *s = &session->sequences[step->seqs[i]];
        memcpy(s->ids + s->len, step->tokens + step->query_start[i],
               (size_t)(step->seq_lens[i] - s->len) * sizeof *s->ids);
        if (tamis_prefix_cache_has_rings(&session->prefix))
            watch_boundaries(session, step->seqs[i], step->seq_lens[i]);
    }
}

void tamis_prefix_step_commit(tamis_session *session)
{
    tamis_prefix_cache *prefix = &session->prefix;
    const tamis_step_buffers *step = &session->step;
    const int32_t block_tokens = session->params.block_tokens;
    if (!session->params.prefix_caching)
        return;
    for (int32_t i = 0; i < step->n_reqs; i++) {
        const tamis_sequence *s = &session->sequences[step->seqs[i]];
        const int32_t n_new = step->query_start[i + 1] - step->query_start[i];
        const int32_t n_full = s->len / block_tokens;
        if (n_full > (s->len - n_new) / block_tokens)
            tamis_prefix_cache_publish(prefix, s->ids, n_full * block_tokens, s->table);
    }
    for (int32_t i = prefix->watches.n; i-- > 0;) {
        const tamis_history_watch *w = &prefix->watches.items[i];
        tamis_prefix_cache_keep_snapshot(prefix, watched_snapshot(prefix, w),
                                         session->sequences[w->slot].ids);
    }
}

void tamis_prefix_step_abort(tamis_session *session)
{
    if (session->params.prefix_caching)
        tamis_prefix_cache_drop_pending(&session->prefix);
}

/* ---------------------------------------------------------------- calls of the engine's user */

static tamis_status find_seq(const tamis_session *session, int32_t seq, tamis_sequence **out,
                             tamis_error *err)
{
    TAMIS_TRY(tamis_session_find_seq(session, seq, out, err));
    if (!session->params.prefix_caching)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d: prefix_caching is false, must be true to reuse prefixes",
                          seq);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_match(tamis_session *session, int32_t seq, const int32_t *tokens, int32_t n,
                             int32_t *n_reused, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(find_seq(session, seq, &s, err));
    if (n_reused == NULL || n < 0 || (n > 0 && tokens == NULL))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d: %d tokens at address %p, n_reused at %p", seq, n,
                          (const void *)tokens, (const void *)n_reused);
    if (s->len != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d has %d tokens, only one with 0 can take over a prefix", seq,
                          s->len);
    const tamis_prefix_match match = tamis_prefix_cache_match(&session->prefix, tokens, n);
    session->prefix_tally.n_matches++;
    *n_reused = match.n_tokens;
    if (match.n_tokens == 0)
        return TAMIS_STATUS_OK;
    s->n_blocks = tamis_prefix_cache_share(&session->prefix, &match, s->table);
    memcpy(s->ids, tokens, (size_t)match.n_tokens * sizeof *s->ids);
    s->len = s->high = match.n_tokens;
    if (match.snapshot != TAMIS_PREFIX_NONE) {
        s->base = match.n_tokens;
        tamis_history_restore(session->net->store, seq, match.n_tokens,
                              tamis_prefix_cache_history(&session->prefix, match.snapshot));
    }
    session->prefix_tally.n_hits++;
    session->prefix_tally.n_reused += (uint64_t)match.n_tokens;
    return TAMIS_STATUS_OK;
}

/* A snapshot at the last token, or at the length itself if the rings do not reach back to it. */
static void keep_end(tamis_session *session, int32_t seq, int32_t pos)
{
    tamis_prefix_cache *prefix = &session->prefix;
    const tamis_sequence *s = &session->sequences[seq];
    if (pos == 0 || tamis_prefix_cache_has_snapshot(prefix, s->ids, pos))
        return;
    const int32_t snapshot = tamis_prefix_cache_take_snapshot(prefix, pos);
    assert(snapshot != TAMIS_PREFIX_NONE); /* pending ones exist inside a step only */
    tamis_history_save(session->net->store, seq, pos, pos,
                       tamis_prefix_cache_history(prefix, snapshot));
    tamis_prefix_cache_keep_snapshot(prefix, snapshot, s->ids);
}

tamis_status tamis_seq_keep(tamis_session *session, int32_t seq, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(find_seq(session, seq, &s, err));
    if (s->len == 0)
        return TAMIS_STATUS_OK;
    if (!tamis_prefix_cache_has_rings(&session->prefix)) {
        tamis_prefix_cache_publish(&session->prefix, s->ids, s->len, s->table);
        return TAMIS_STATUS_OK;
    }
    const int32_t floor = tamis_seq_rollback_floor(session, seq);
    const int32_t pos = floor < s->len ? s->len - 1 : s->len;
    /* A last block with nothing but the last token would never be used. */
    const bool is_at_boundary = pos % session->params.block_tokens == 0;
    tamis_prefix_cache_publish(&session->prefix, s->ids, is_at_boundary ? pos : s->len, s->table);
    keep_end(session, seq, pos);
    return TAMIS_STATUS_OK;
}

void tamis_session_drop_prefixes(tamis_session *session)
{
    if (session != NULL && !session->is_calling_out && session->params.prefix_caching)
        tamis_prefix_cache_clear(&session->prefix);
}

tamis_prefix_stats tamis_session_get_prefix_stats(const tamis_session *session)
{
    if (session == NULL)
        return (tamis_prefix_stats){0};
    const tamis_prefix_cache *prefix = &session->prefix;
    return (tamis_prefix_stats){.n_blocks = prefix->counts.n_entries,
                                .n_blocks_alone = tamis_prefix_cache_num_alone(prefix),
                                .n_snapshots = prefix->counts.n_snapshots,
                                .n_matches = session->prefix_tally.n_matches,
                                .n_hits = session->prefix_tally.n_hits,
                                .n_tokens_reused = session->prefix_tally.n_reused,
                                .n_evicted_blocks = prefix->counts.n_evicted_blocks,
                                .n_evicted_snapshots = prefix->counts.n_evicted_snapshots};
}
