/*
 * One step: check -> reserve blocks -> plan -> commit the blocks -> run -> commit the lengths.
 *
 * Until the plan stands, sequences are only read: the blocks of the step are claims beside them,
 * given back in reverse order if anything fails, so a refused step leaves no trace. From then on
 * nothing can fail but the arithmetic (a NaN) and hooks of a connector, and nothing is allocated.
 */
#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "engine/session_internal.h"

/* ---------------------------------------------------------------- check */

static tamis_status check_tokens(const tamis_session *session, const tamis_feed *feed,
                                 tamis_error *err)
{
    const int32_t vocab_size = session->model->info.vocab_size;
    for (int32_t i = 0; i < feed->n_tokens; i++)
        if (feed->tokens[i] < 0 || feed->tokens[i] >= vocab_size)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "sequence %d: token %d of this step is %d, allowed 0..%d", feed->seq,
                              i, feed->tokens[i], vocab_size - 1);
    return TAMIS_STATUS_OK;
}

static tamis_status check_feed(tamis_session *session, const tamis_feed *feed, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(tamis_session_find_fed(session, feed->seq, &s, err));
    if (s->in_step == session->step_number)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence %d is named twice in one step",
                          feed->seq);
    s->in_step = session->step_number;
    if (feed->n_tokens < 0 || (feed->n_tokens > 0 && feed->tokens == NULL))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence %d: %d tokens at address %p",
                          feed->seq, feed->n_tokens, (const void *)feed->tokens);
    if ((unsigned)feed->logits > TAMIS_LOGITS_MASK ||
        (feed->logits == TAMIS_LOGITS_MASK && feed->logits_mask == NULL))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sequence %d: logits is %d, allowed 0..3 (3 with a mask)", feed->seq,
                          (int)feed->logits);
    if (feed->n_tokens > session->params.max_model_len - s->len)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "sequence %d: %d tokens after %d exceed max_model_len %d", feed->seq,
                          feed->n_tokens, s->len, session->params.max_model_len);
    return check_tokens(session, feed, err);
}

static bool wants_logits(const tamis_feed *feed, int32_t i)
{
    switch (feed->logits) {
    case TAMIS_LOGITS_NONE:
        return false;
    case TAMIS_LOGITS_LAST:
        return i == feed->n_tokens - 1;
    case TAMIS_LOGITS_ALL:
        return true;
    case TAMIS_LOGITS_MASK:
        return feed->logits_mask[i] != 0;
    }
    return false;
}

static tamis_status check_feeds(tamis_session *session, const tamis_feed *feeds, int32_t n_feeds,
                                tamis_error *err)
{
    const tamis_session_params *p = &session->params;
    int64_t n_tokens = 0, n_logits = 0;
    if (n_feeds < 0 || (n_feeds > 0 && feeds == NULL))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "step: %d feeds at address %p", n_feeds,
                          (const void *)feeds);
    session->step_number++;
    for (int32_t f = 0; f < n_feeds; f++) {
        TAMIS_TRY(check_feed(session, &feeds[f], err));
        n_tokens += feeds[f].n_tokens;
        for (int32_t i = 0; i < feeds[f].n_tokens; i++)
            n_logits += wants_logits(&feeds[f], i);
    }
    if (n_tokens > p->max_num_batched_tokens)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "step: %lld tokens, allowed %d (max_num_batched_tokens)",
                          (long long)n_tokens, p->max_num_batched_tokens);
    if (n_logits > p->max_num_logits)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "step: %lld logits rows, allowed %d (max_num_logits)",
                          (long long)n_logits, p->max_num_logits);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- reserve */

static void give_back(tamis_session *session)
{
    tamis_step_buffers *step = &session->step;
    while (step->n_claims > 0) {
        const tamis_block_claim *c = &step->claims[--step->n_claims];
        tamis_block_pool_release(&session->pool, c->block);
        if (c->copy_of != 0)
            tamis_block_pool_retain(&session->pool, c->copy_of);
    }
}

/* The hold on a shared block is let go at once, so that of several sequences in this step the last
 * one finds the block its own and writes into it; all copies are made before the step runs. */
static bool claim(tamis_session *session, int32_t seq, int32_t table_idx, int32_t copy_of)
{
    const int32_t block = tamis_block_pool_take(&session->pool);
    if (block == 0)
        return false;
    if (copy_of != 0)
        tamis_block_pool_release(&session->pool, copy_of);
    session->step.claims[session->step.n_claims++] =
        (tamis_block_claim){seq, table_idx, block, copy_of};
    return true;
}

/* Blocks of the request's new tokens: fresh ones, or copies of those it shares with a fork. */
static tamis_status reserve_request(tamis_session *session, int32_t req, int32_t seq, int32_t n_new,
                                    tamis_error *err)
{
    const tamis_sequence *s = &session->sequences[seq];
    const int32_t block_tokens = session->params.block_tokens;
    int32_t *table = session->step.block_table + (int64_t)req * session->table_width;
    const int32_t first = s->len / block_tokens, last = (s->len + n_new - 1) / block_tokens;
    memcpy(table, s->table, (size_t)s->n_blocks * sizeof *table);
    for (int32_t i = first; i <= last; i++) {
        const int32_t old = i < s->n_blocks ? s->table[i] : 0;
        if (old != 0 && !tamis_block_pool_is_shared(&session->pool, old))
            continue;
        if (!claim(session, seq, i, old))
            return tamis_fail(err, TAMIS_STATUS_NO_BLOCKS,
                              "sequence %d: no block for tokens %d..%d, all %d are in use", seq,
                              i * block_tokens, s->len + n_new - 1, session->params.num_blocks - 1);
        table[i] = session->step.claims[session->step.n_claims - 1].block;
    }
    return TAMIS_STATUS_OK;
}

static void add_logit_rows(tamis_step_buffers *step, const tamis_feed *feed)
{
    for (int32_t i = 0; i < feed->n_tokens; i++)
        if (wants_logits(feed, i))
            step->logit_rows[step->n_logits++] = step->n_tokens + i;
}

/* Feeds with tokens become requests. */
static tamis_status reserve(tamis_session *session, const tamis_feed *feeds, int32_t n_feeds,
                            tamis_error *err)
{
    tamis_step_buffers *step = &session->step;
    step->n_reqs = step->n_tokens = step->n_logits = step->n_claims = 0;
    step->query_start[0] = 0;
    for (int32_t f = 0; f < n_feeds; f++) {
        const tamis_feed *feed = &feeds[f];
        const int32_t req = step->n_reqs;
        if (feed->n_tokens == 0)
            continue;
        TAMIS_TRY(reserve_request(session, req, feed->seq, feed->n_tokens, err));
        memcpy(step->tokens + step->n_tokens, feed->tokens,
               (size_t)feed->n_tokens * sizeof *feed->tokens);
        add_logit_rows(step, feed);
        step->seqs[req] = feed->seq;
        step->seq_lens[req] = session->sequences[feed->seq].len + feed->n_tokens;
        step->n_tokens += feed->n_tokens;
        step->query_start[req + 1] = step->n_tokens;
        step->n_reqs++;
    }
    return TAMIS_STATUS_OK;
}

/* Would the step find its blocks if no prefix entry held one? The pool comes back as it was. */
static bool fits_without_prefixes(tamis_session *session, const tamis_feed *feeds, int32_t n_feeds)
{
    tamis_prefix_cache_let_go(&session->prefix);
    const bool fits = reserve(session, feeds, n_feeds, NULL) == TAMIS_STATUS_OK;
    give_back(session);
    tamis_prefix_cache_hold_again(&session->prefix);
    return fits;
}

/* Prefix entries go one by one until the step has its blocks, or none goes if it cannot have them:
 * entries of a refused step's sequences are what lets them come back. */
static tamis_status reserve_with_eviction(tamis_session *session, const tamis_feed *feeds,
                                          int32_t n_feeds, tamis_error *err)
{
    tamis_status st = reserve(session, feeds, n_feeds, err);
    if (st != TAMIS_STATUS_NO_BLOCKS || !session->params.prefix_caching)
        return st;
    give_back(session);
    if (!fits_without_prefixes(session, feeds, n_feeds))
        return st;
    while (st == TAMIS_STATUS_NO_BLOCKS && tamis_prefix_cache_evict(&session->prefix)) {
        st = reserve(session, feeds, n_feeds, err);
        if (st != TAMIS_STATUS_OK)
            give_back(session); /* entries go between two tries only */
    }
    return st;
}

static tamis_status plan(tamis_session *session, tamis_error *err)
{
    const tamis_step_buffers *step = &session->step;
    const tamis_batch batch = {.num_reqs = step->n_reqs,
                               .query_start_loc = step->query_start,
                               .seq_lens = step->seq_lens,
                               .block_table = step->block_table,
                               .block_table_stride = session->table_width,
                               .slots = step->seqs};
    return tamis_net_plan(session->net, &batch, err);
}

/* ---------------------------------------------------------------- run and commit */

/* From here on the claimed blocks are the sequences' own. */
static void commit_blocks(tamis_session *session)
{
    for (int32_t i = 0; i < session->step.n_claims; i++) {
        const tamis_block_claim *c = &session->step.claims[i];
        tamis_sequence *s = &session->sequences[c->seq];
        s->table[c->table_idx] = c->block;
        if (c->copy_of != 0) {
            tamis_cache_store_copy_block(session->net->store, c->block, c->copy_of);
        } else {
            assert(s->n_blocks == c->table_idx);
            s->n_blocks++;
        }
    }
    session->step.n_claims = 0;
}

tamis_status tamis_session_take_blocks(tamis_session *session, int32_t seq, int32_t n_new,
                                       tamis_error *err)
{
    session->step.n_claims = 0;
    const tamis_status st = reserve_request(session, 0, seq, n_new, err);
    if (st == TAMIS_STATUS_OK)
        commit_blocks(session);
    else
        give_back(session);
    return st;
}

static int32_t run(tamis_session *session)
{
    const tamis_step_buffers *step = &session->step;
    const tamis_net_step net_step = {.tokens = step->tokens,
                                     .n_tokens = step->n_tokens,
                                     .logit_rows = step->logit_rows,
                                     .n_logits = step->n_logits,
                                     .logits = session->logits};
    tamis_mem_run_begin();
    session->net->exec.kernels = tamis_kernels_current();
    const int32_t result = tamis_net_forward(session->net, &net_step);
    tamis_mem_run_end();
    return result;
}

static void commit_lengths(tamis_session *session)
{
    const tamis_step_buffers *step = &session->step;
    for (int32_t i = 0; i < step->n_reqs; i++) {
        tamis_sequence *s = &session->sequences[step->seqs[i]];
        s->len = step->seq_lens[i];
        s->high = s->len > s->high ? s->len : s->high;
        s->n_expected = 0;
    }
    session->n_logits = step->n_logits;
    session->hidden_of = step->n_reqs == 1 ? step->seqs[0] : -1;
}

/* Whether the running step has tokens whose rows a connector loaded: they may hold the NaN. */
static bool has_loaded_rows(const tamis_session *session)
{
    for (int32_t i = 0; i < session->step.n_reqs; i++)
        if (session->sequences[session->step.seqs[i]].n_expected > 0)
            return true;
    return false;
}

/* Every stage is checked as it ends, so the damage lies where the fault came up. */
tamis_status tamis_session_tell_fault(const tamis_session *session, int32_t where, tamis_error *err)
{
    tamis_weight_fault fault;
    if (tamis_weights_find_fault(session->model->checkpoint, &session->model->config, where,
                                 &fault))
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "a NaN or infinity came up: tensor %s, element %lld is damaged (%s)",
                          fault.tensor, (long long)fault.element, fault.what);
    if (where == TAMIS_NET_FAULT_ENDS)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "a NaN or infinity came up in the embedding or the head; no tensor there "
                          "holds one, so some weights are too large");
    return tamis_fail(err, TAMIS_STATUS_FORMAT,
                      "a NaN or infinity came up in layer %d; no tensor there holds one, so %ssome "
                      "weights are too large",
                      where,
                      has_loaded_rows(session) ? "rows that the connector loaded do, or " : "");
}

static tamis_status fail_run(tamis_session *session, int32_t where, tamis_error *err)
{
    session->n_logits = 0;
    tamis_prefix_step_abort(session);
    for (int32_t i = 0; i < session->step.n_reqs; i++)
        session->sequences[session->step.seqs[i]].is_faulty = true;
    return tamis_session_tell_fault(session, where, err);
}

/* A hook of the connector failed: everything is again as if the step had not been, but that blocks
 * which were shared may have been copied. */
static tamis_status undo(tamis_session *session, tamis_status st)
{
    session->n_logits = 0;
    tamis_prefix_step_abort(session);
    for (int32_t i = session->step.n_reqs; i-- > 0;)
        tamis_session_trim_blocks(session, session->step.seqs[i]);
    return st;
}

static tamis_status run_and_commit(tamis_session *session, tamis_error *err)
{
    tamis_status st = tamis_connector_begin(session, err);
    if (st != TAMIS_STATUS_OK)
        return undo(session, st);
    if (session->step.n_tokens > 0) {
        tamis_prefix_step_begin(session);
        const int32_t where = run(session);
        st = tamis_connector_status(session, err);
        if (st == TAMIS_STATUS_OK && where != TAMIS_NET_FINE)
            return fail_run(session, where, err);
    }
    if (st == TAMIS_STATUS_OK)
        st = tamis_connector_end(session, err);
    if (st != TAMIS_STATUS_OK) {
        tamis_connector_undo(session);
        return undo(session, st);
    }
    if (session->step.n_tokens > 0) {
        commit_lengths(session);
        tamis_prefix_step_commit(session);
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_step(tamis_session *session, const tamis_feed *feeds, int32_t n_feeds,
                                tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_awake(session, err));
    session->hidden_of = session->draft_of = -1;
    TAMIS_TRY(check_feeds(session, feeds, n_feeds, err));
    tamis_status st = reserve_with_eviction(session, feeds, n_feeds, err);
    if (st == TAMIS_STATUS_OK)
        st = plan(session, err);
    if (st != TAMIS_STATUS_OK) {
        give_back(session);
        return st;
    }
    commit_blocks(session);
    session->n_logits = 0;
    return run_and_commit(session, err);
}

int32_t tamis_session_num_logits(const tamis_session *session)
{
    return session != NULL ? session->n_logits : 0;
}

const float *tamis_session_logits(const tamis_session *session, int32_t row)
{
    if (session == NULL || row < 0 || row >= session->n_logits)
        return NULL;
    return session->logits + (int64_t)row * session->model->info.vocab_size;
}

uint64_t tamis_num_allocs_in_run(void)
{
    return tamis_mem_num_allocs_in_run();
}
