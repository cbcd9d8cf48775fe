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

typedef struct tamis_sequence {
    bool is_live;
    bool is_faulty; /* was in a step that met a NaN: may only be dropped */
    int32_t len;    /* tokens */
    int32_t high;   /* largest length its rings were written to since they were cleared */
    int32_t n_blocks;
    int32_t *table;   /* [table_width] */
    uint64_t in_step; /* number of the latest step that named it */
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

struct tamis_session {
    const tamis_model *model;
    tamis_session_params params; /* resolved */
    int32_t table_width;
    tamis_team *team;
    tamis_net *net;
    tamis_block_pool pool;
    void *workspace; /* sequences and step buffers lie here */
    float *logits;   /* [max_num_logits][vocab_size] */
    int32_t n_logits;
    tamis_step_buffers step;
    tamis_sequence *sequences; /* [max_num_seqs] */
    uint64_t step_number;
};

/* Bytes of workspace and logits. errors: LIMIT (address space) */
tamis_status tamis_session_workspace_measure(const tamis_model *model,
                                             const tamis_session_params *params, size_t *workspace,
                                             size_t *logits, tamis_error *err);

/* The live sequence of that index. errors: INVALID, STATE (faulty) */
tamis_status tamis_session_find_seq(const tamis_session *session, int32_t seq, tamis_sequence **out,
                                    tamis_error *err);

/* ---------------------------------------------------------------- for tests */

void tamis_session_set_tap(tamis_session *session, tamis_tap_fn fn, void *user);
tamis_net *tamis_session_net(tamis_session *session);
/* NULL if there is no such sequence. */
const int32_t *tamis_session_block_table(const tamis_session *session, int32_t seq,
                                         int32_t *n_blocks);

#endif
