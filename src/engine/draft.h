/*
 * Drafting with the model's MTP block, one sequence at a time.
 *
 *     step of one sequence -> tamis_draft_over_step -> roll back what was rejected
 *                          -> tamis_draft_tokens
 *
 * over_step writes the block's own cache rows for the tokens of the step, from the hidden states
 * that the step left; nothing may come between the two, and only a step of this sequence alone
 * leaves them for it. So no rows are missing if every step of a sequence is followed by it. One row
 * gives the first guess, and tamis_draft_tokens goes on from there, a position per call. The rows
 * written for guesses lie behind the sequence's tokens: the next step writes them again.
 */
#ifndef TAMIS_ENGINE_DRAFT_H
#define TAMIS_ENGINE_DRAFT_H

#include "engine/session_internal.h"

/*
 * next_tokens [tokens of the step]: the token that follows each; of rejected ones anything in
 * range. row: the token of the step to go on from, -1: none.
 * errors: STATE (no step of this sequence alone came directly before), FORMAT (a NaN or infinity,
 * as in a step: the sequence may only be dropped)
 */
tamis_status tamis_draft_over_step(tamis_session *session, int32_t seq, const int32_t *next_tokens,
                                   int32_t row, tamis_error *err);
/*
 * Guesses up to max_draft ids below num_ids that follow the token behind the sequence; the sequence
 * ends with the row of over_step. Fewer where no blocks are free, and never above max_model_len.
 * errors: STATE (no row to go on from), FORMAT as above
 */
tamis_status tamis_draft_tokens(tamis_session *session, int32_t seq, int32_t num_ids,
                                int32_t max_draft, int32_t *draft, int32_t *n_draft,
                                tamis_error *err);

#endif
