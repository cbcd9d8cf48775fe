/*
 * A session: a network with its caches, plan and activations, and the sequences over it.
 *
 * A sequence has an index that is also its ring slot. Its table holds exactly the blocks of its
 * tokens, ceil(len / block_tokens); blocks may be shared with forks and are copied before a step
 * writes into them.
 */
#ifndef TAMIS_ENGINE_SESSION_INTERNAL_H
#define TAMIS_ENGINE_SESSION_INTERNAL_H

#include "caches/block_pool.h"
#include "engine/memory_plan.h"
#include "engine/prefix_cache.h"
#include "tamis/connector.h"

typedef struct tamis_sequence {
    bool is_live;
    bool is_faulty; /* was in a step that met a NaN: may only be dropped */
    int32_t len;    /* tokens */
    int32_t high;   /* largest length its rings were written to since they were cleared */
    int32_t base;   /* length of a prefix taken over: its rings hold no earlier history */
    int32_t n_blocks;
    int32_t *table;     /* [table_width] */
    int32_t *ids;       /* [max_model_len] its tokens, with prefix_caching; else NULL */
    uint64_t in_step;   /* number of the latest step that named it */
    int32_t n_expected; /* tokens whose rows the connector has to load in its next step */
    uint64_t serial;    /* of all that were created or forked, which one: indices come again */
} tamis_sequence;

/* A block that a step takes: the next one of a sequence, or in place of a shared one. */
typedef struct tamis_block_claim {
    int32_t seq, table_idx, block;
    int32_t copy_of; /* 0: a new block */
} tamis_block_claim;

/* One step as the network reads it; B = max_num_seqs, T = max_num_batched_tokens. */
typedef struct tamis_step_buffers {
    int32_t n_reqs, n_tokens, n_logits, n_claims;
    int32_t *seqs;             /* [B] sequence of each request */
    int32_t *query_start;      /* [B + 1] */
    int32_t *seq_lens;         /* [B] */
    int32_t *block_table;      /* [B][table_width] */
    int32_t *tokens;           /* [T] */
    int32_t *logit_rows;       /* [max_num_logits] */
    tamis_block_claim *claims; /* [T / block_tokens + 2 B] */
} tamis_step_buffers;

/* Hooks, and what they are told of the running step. */
typedef struct tamis_connector {
    tamis_connector_hooks hooks;
    bool is_set, is_draft;
    tamis_connector_request *requests; /* [max_num_seqs] */
    int32_t n_requests;
    tamis_error failure; /* of a hook that was called while layers ran; status OK: none */
    uint8_t *journal;    /* rows of rings that the step overwrites; NULL: no rings, no hooks */
} tamis_connector;

/* What tamis_seq_match has done so far. */
typedef struct tamis_prefix_tally {
    uint64_t n_matches, n_hits, n_reused;
} tamis_prefix_tally;

struct tamis_session {
    const tamis_model *model;
    tamis_session_params params; /* resolved */
    int32_t table_width;
    tamis_team *team;
    tamis_net *net;
    tamis_block_pool pool;
    void *workspace; /* sequences and step buffers lie here */
    float *logits;   /* [max_num_logits][vocab_size]; with params.mtp one more row, for drafts */
    int32_t n_logits;
    tamis_step_buffers step;
    tamis_sequence *sequences; /* [max_num_seqs] */
    tamis_prefix_cache prefix; /* with prefix_caching; else all-zero */
    tamis_prefix_tally prefix_tally;
    tamis_connector connector;
    uint64_t step_number;
    uint64_t n_created; /* sequences so far */
    int32_t sleep_level;
    bool is_calling_out; /* a hook or a drafter of the user's runs: it may not change anything */
    int32_t hidden_of; /* sequence whose step left its hidden states in the network; -1: none */
    int32_t draft_of;  /* sequence whose draft can go on; -1: none */
};

/* Bytes of workspace and logits. errors: LIMIT (address space) */
tamis_status tamis_session_workspace_measure(const tamis_model *model,
                                             const tamis_session_params *params, size_t *workspace,
                                             size_t *logits, tamis_error *err);

/* Every call that may change a session, or reads all of it, begins with one of these. errors:
 * INVALID (NULL), STATE (called from a hook or a drafter; awake: asleep) */
tamis_status tamis_session_check_call(const tamis_session *session, tamis_error *err);
tamis_status tamis_session_check_awake(const tamis_session *session, tamis_error *err);
/* Memory for snapshots of rings; for the rows of rings that a connector's step overwrites. None if
 * the family or the parameters need none. errors: NO_MEMORY */
tamis_status tamis_session_take_snapshots(tamis_session *session, tamis_error *err);
uint64_t tamis_connector_journal_bytes(const tamis_session *session);
tamis_status tamis_connector_take_journal(tamis_session *session, tamis_error *err);

/* The live sequence of that index. errors: INVALID, STATE (faulty; its first tokens are not there
 * yet) */
tamis_status tamis_session_find_seq(const tamis_session *session, int32_t seq, tamis_sequence **out,
                                    tamis_error *err);

/* The same, but one whose first tokens the connector still has to load will do: for steps. */
tamis_status tamis_session_find_fed(const tamis_session *session, int32_t seq, tamis_sequence **out,
                                    tamis_error *err);

/* A free block for whoever needs one outside a step; prefix entries make room. 0: none, and no
 * entry has gone. */
int32_t tamis_session_take_block(tamis_session *session);
/* Blocks for the first len tokens of an empty sequence, as above. errors: NO_BLOCKS */
tamis_status tamis_session_fill_table(tamis_session *session, int32_t seq, int32_t len,
                                      tamis_error *err);

/*
 * What a step does for prefix reuse (prefix.c; nothing without prefix_caching). begin, with its
 * blocks in place and before it runs: notes its tokens, and gathers the rings' history at every
 * block boundary it crosses. commit: publishes the blocks that it filled. abort: a step that met a
 * NaN publishes nothing.
 */
void tamis_prefix_step_begin(tamis_session *session);
void tamis_prefix_step_commit(tamis_session *session);
void tamis_prefix_step_abort(tamis_session *session);

/*
 * The connector's part in a step (connector.c; nothing without hooks). begin, with the step's
 * blocks in place: start_load. Layers then call the hooks by themselves. status: what one of them
 * failed with. end: wait_for_save. undo: puts the rings back as they were before a step of which
 * layers ran.
 */
tamis_status tamis_connector_begin(tamis_session *session, tamis_error *err);
tamis_status tamis_connector_begin_draft(tamis_session *session, int32_t seq, int32_t start,
                                         int32_t n_tokens, tamis_error *err);
tamis_status tamis_connector_status(const tamis_session *session, tamis_error *err);
tamis_status tamis_connector_end(tamis_session *session, tamis_error *err);
void tamis_connector_undo(tamis_session *session);

/* ---------------------------------------------------------------- for drafting (draft.h) */

/* Blocks for n_new positions behind a sequence, as a step takes them (no prefix entry makes room);
 * its table lies in step.block_table. errors: NO_BLOCKS, nothing has changed */
tamis_status tamis_session_take_blocks(tamis_session *session, int32_t seq, int32_t n_new,
                                       tamis_error *err);
/* Gives back blocks behind the sequence's tokens. */
void tamis_session_trim_blocks(tamis_session *session, int32_t seq);
/* What to tell of a NaN: `where` is a TAMIS_NET_FAULT_ENDS or a layer. */
tamis_status tamis_session_tell_fault(const tamis_session *session, int32_t where,
                                      tamis_error *err);

/* ---------------------------------------------------------------- for tests */

void tamis_session_set_tap(tamis_session *session, tamis_tap_fn fn, void *user);
tamis_net *tamis_session_net(tamis_session *session);
/* NULL if there is no such sequence. */
const int32_t *tamis_session_block_table(const tamis_session *session, int32_t seq,
                                         int32_t *n_blocks);

#endif
