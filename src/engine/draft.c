#include "engine/draft.h"

#include "core/error.h"
#include "core/mem.h"

/* The row behind those of steps, so that the logits of a step stay. */
static float *draft_logits(const tamis_session *session)
{
    return session->logits +
           (int64_t)session->params.max_num_logits * session->model->info.vocab_size;
}

/* Over positions `start` .. of a sequence. */
static tamis_status run(tamis_session *session, int32_t seq, int32_t start,
                        const tamis_net_draft *draft, tamis_error *err)
{
    TAMIS_TRY(tamis_connector_begin_draft(session, seq, start, draft->n_tokens, err));
    tamis_mem_run_begin();
    session->net->exec.kernels = tamis_kernels_current();
    const int32_t where = tamis_net_draft_forward(session->net, draft);
    tamis_mem_run_end();
    TAMIS_TRY(tamis_connector_status(session, err));
    if (where == TAMIS_NET_FINE)
        return tamis_connector_end(session, err);
    session->sequences[seq].is_faulty = true;
    return tamis_session_tell_fault(session, where, err);
}

tamis_status tamis_draft_over_step(tamis_session *session, int32_t seq, const int32_t *next_tokens,
                                   int32_t row, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    if (session->hidden_of != seq || s->len != session->step.seq_lens[0])
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d: drafting must follow a step of this sequence alone", seq);
    const tamis_net_draft draft = {.over_step = true,
                                   .next_tokens = next_tokens,
                                   .n_tokens = session->step.n_tokens,
                                   .rows = &row,
                                   .n_rows = row >= 0 ? 1 : 0,
                                   .logits = draft_logits(session)};
    session->hidden_of = -1; /* the block writes over them */
    TAMIS_TRY(run(session, seq, s->len - draft.n_tokens, &draft, err));
    session->draft_of = row >= 0 ? seq : -1;
    return TAMIS_STATUS_OK;
}

/* One more position: its hidden state is the one that the call before left in row 0. */
static tamis_status run_position(tamis_session *session, int32_t seq, int32_t pos, int32_t token,
                                 tamis_error *err)
{
    static const int32_t query_start[] = {0, 1}, row = 0;
    const int32_t seq_len = pos + 1;
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = query_start,
                               .seq_lens = &seq_len,
                               .block_table = session->step.block_table,
                               .block_table_stride = session->table_width,
                               .slots = &seq};
    const tamis_net_draft draft = {.next_tokens = &token,
                                   .n_tokens = 1,
                                   .rows = &row,
                                   .n_rows = 1,
                                   .logits = draft_logits(session)};
    TAMIS_TRY(tamis_net_plan_draft(session->net, &batch, err));
    return run(session, seq, pos, &draft, err);
}

/* The id that the last call rates highest, the lowest of equals. */
static int32_t best_id(const tamis_session *session, int32_t num_ids)
{
    const float *logits = draft_logits(session);
    int32_t best = 0;
    for (int32_t i = 1; i < num_ids; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Blocks for up to n positions behind the sequence: a further one only if the pool has it. */
static int32_t take_positions(tamis_session *session, int32_t seq, int32_t n)
{
    const int32_t block_tokens = session->params.block_tokens;
    const int32_t past = session->sequences[seq].len % block_tokens;
    const int32_t in_block = past == 0 ? 0 : block_tokens - past;
    tamis_error err;
    if (n <= 0)
        return 0;
    if (tamis_session_take_blocks(session, seq, n, &err) == TAMIS_STATUS_OK)
        return n;
    n = n <= in_block ? 0 : in_block;
    return n > 0 && tamis_session_take_blocks(session, seq, n, &err) == TAMIS_STATUS_OK ? n : 0;
}

static tamis_status run_positions(tamis_session *session, int32_t seq, int32_t num_ids, int32_t n,
                                  int32_t *draft, int32_t *n_draft, tamis_error *err)
{
    tamis_sequence *s = &session->sequences[seq];
    for (int32_t i = 0; i < n; i++) {
        const int32_t pos = s->len + i;
        s->high = pos + 1 > s->high ? pos + 1 : s->high;
        TAMIS_TRY(run_position(session, seq, pos, draft[i], err));
        draft[(*n_draft)++] = best_id(session, num_ids);
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_draft_tokens(tamis_session *session, int32_t seq, int32_t num_ids,
                                int32_t max_draft, int32_t *draft, int32_t *n_draft,
                                tamis_error *err)
{
    tamis_sequence *s = NULL;
    *n_draft = 0;
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    if (session->draft_of != seq)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d: no step of it was drafted over just before", seq);
    session->draft_of = -1;
    /* The token behind the sequence has position len, guess i position len + 1 + i. */
    const int32_t room = session->params.max_model_len - 1 - s->len;
    max_draft = max_draft < room ? max_draft : room;
    if (max_draft <= 0)
        return TAMIS_STATUS_OK;
    draft[(*n_draft)++] = best_id(session, num_ids);
    const int32_t n = take_positions(session, seq, max_draft - 1);
    const tamis_status st = run_positions(session, seq, num_ids, n, draft, n_draft, err);
    tamis_session_trim_blocks(session, seq);
    return st;
}
