/*
 * tamis/speculation.h - generating one sequence with a drafter: several tokens are guessed, the
 * model checks them in one step, and keeps those it would have chosen itself.
 *
 *     tamis_session_params s = tamis_session_params_default();
 *     s.mtp = true;                        // for TAMIS_DRAFTER_MTP only
 *     s.max_num_logits = 1 + 3;            // 1 + max_draft: a row per token that is checked
 *     if (tamis_session_open(&session, model, &s, &err)) die(err.text);
 *     if (tamis_seq_create(session, &seq, &err)) die(err.text);
 *     tamis_spec_params p = tamis_spec_params_default();
 *     p.drafter = TAMIS_DRAFTER_MTP;  p.max_draft = 3;
 *     if (tamis_spec_open(&spec, session, seq, &p, &err)) die(err.text);
 *     if (tamis_spec_prompt(spec, ids, n, &err)) die(err.text);
 *     while (!done && tamis_spec_next(spec, sampler, num_ids, tokens, &n, &err) == TAMIS_STATUS_OK)
 *         use tokens[0 .. n)
 *
 * The tokens are exactly those that generating without a drafter gives: every token is drawn by the
 * sampler from the model's own logits, one draw each, in order; a draft only decides whether the
 * logits behind it are already there. So greedy text is identical, sampled text is identical for a
 * seed, and a bad drafter costs time, never text.
 *
 * A spec begins with an empty sequence, since it keeps the tokens and the MTP block's rows itself.
 * Behind a prefix that was loaded from a file or forked, draft in a second sequence: open the
 * session with prefix_caching and max_num_seqs 2, tamis_seq_load into the first (or fork it),
 * tamis_seq_keep it, then give tamis_spec_prompt all ids, the prefix's too, for the second: it
 * takes over what was kept and feeds the rest.
 */
#ifndef TAMIS_SPECULATION_H
#define TAMIS_SPECULATION_H

#include "tamis/engine.h"
#include "tamis/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Most tokens that may be drafted at once. */
#define TAMIS_MAX_DRAFT 15

typedef enum tamis_drafter {
    TAMIS_DRAFTER_NONE = 0,
    TAMIS_DRAFTER_MTP,           /* the model's own MTP block; the session needs params.mtp */
    TAMIS_DRAFTER_PROMPT_LOOKUP, /* what followed the latest earlier occurrence of the last tokens */
    TAMIS_DRAFTER_CUSTOM
} tamis_drafter;

/** "none", "mtp", "prompt-lookup", "custom". */
TAMIS_API const char *tamis_drafter_name(tamis_drafter drafter);

/**
 * A drafter of the caller: tokens [n_tokens] so far, the latest included; writes at most max_draft
 * ids to draft and returns their number. Ids outside 0 .. num_ids-1 end the draft. Not called when
 * nothing may be drafted (the context is nearly full). It must not touch the session.
 */
typedef int32_t (*tamis_draft_fn)(void *user, const int32_t *tokens, int32_t n_tokens,
                                  int32_t *draft, int32_t max_draft);

typedef struct tamis_spec_params {
    size_t struct_size;
    tamis_drafter drafter;
    int32_t max_draft;            /* tokens per step, 1..TAMIS_MAX_DRAFT; default 3 */
    int32_t ngram_min, ngram_max; /* prompt lookup: lengths of the end that is looked up, longest
                                     first; default 1, 3; range 1..16 */
    tamis_draft_fn fn;            /* TAMIS_DRAFTER_CUSTOM */
    void *user;
    /* Ids that end the text, copied by open; default none, at most TAMIS_MAX_EOS. A call of
     * tamis_spec_next gives out nothing behind the first of them and draws nothing for it. */
    const int32_t *stop_ids;
    int32_t n_stop_ids;
} tamis_spec_params;
TAMIS_API tamis_spec_params tamis_spec_params_default(void);

typedef struct tamis_spec tamis_spec;

/**
 * Generate in sequence `seq`, which nobody else may feed or roll back meanwhile; other sequences of
 * the session may run in between, with specs of their own or without. session, seq outlive spec.
 * errors   INVALID (a parameter, no such sequence), LIMIT (max_draft above the session's
 *          max_rollback (V4), max_num_logits - 1 or max_num_batched_tokens - 1: value seen and
 *          allowed), UNSUPPORTED (the folder has no MTP block, or one of another kind: its name),
 *          STATE (any drafter, none too: the sequence is not empty, also if it was loaded or
 *          forked; MTP: the session was opened without params.mtp), NO_MEMORY
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_spec_open(tamis_spec **out, tamis_session *session,
                                                        int32_t seq,
                                                        const tamis_spec_params *params,
                                                        tamis_error *err);
TAMIS_API void tamis_spec_close(tamis_spec **spec);
/**
 * Feed a prompt (more of it, if called again, also between calls of tamis_spec_next) in steps of
 * the session's size. The last token waits for the next call, so tamis_seq_len is one less than
 * the tokens given. With the session's prefix_caching the first call takes over what it can from
 * sequences with the same first tokens (tamis_seq_match).
 *
 * errors   of a step (what earlier steps of this call fed stays, and so does this step's if a hook
 *          failed in the MTP block's run behind it: tamis_seq_len + 1 tokens are in then, go on with
 *          the next); INVALID (a token id) and LIMIT (max_model_len) before anything is fed; STATE
 *          (the sequence was changed by another call, or it is gone and its id is another's now)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_spec_prompt(tamis_spec *spec, const int32_t *tokens,
                                                          int32_t n, tamis_error *err);
/**
 * The next 1 .. 1 + max_draft tokens. The last of them is drawn but not fed yet; the next call does
 * that. A caller may stop anywhere within them; the sequence then holds tokens that were not used.
 * The drafts are fitted to what is there: near max_model_len, or where the pool has no more blocks,
 * fewer tokens are drafted. tamis_session_logits gives the rows of the checking step: row i is what
 * tokens[i] was drawn from.
 *
 * shapes   tokens [1 + max_draft], *n of them are written
 * range    num_ids 1..vocab_size: ids that may be drawn, as in tamis_sampler_draw
 * errors   of a step (*n is 0 then, and after NO_BLOCKS the call may be repeated; *n > 0: it came
 *          up while the MTP block drafted, these tokens are drawn); INVALID (num_ids), STATE (no
 *          prompt yet; the sequence was changed by another call, or is another one now), LIMIT (max_model_len reached)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_spec_next(tamis_spec *spec, tamis_sampler *sampler,
                                                        int32_t num_ids, int32_t *tokens,
                                                        int32_t *n, tamis_error *err);

typedef struct tamis_spec_stats {
    uint64_t n_steps;    /* checking steps */
    uint64_t n_drafted;  /* tokens guessed */
    uint64_t n_accepted; /* guessed right */
    uint64_t n_tokens;   /* given out */
} tamis_spec_stats;
/** All zero if spec is NULL. */
TAMIS_API tamis_spec_stats tamis_spec_get_stats(const tamis_spec *spec);

#ifdef __cplusplus
}
#endif
#endif
