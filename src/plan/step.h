/*
 * The batch of one step, checked and laid out: request and position of every token, block tables,
 * ring slots. Positions are derived (start = seq_len - new tokens), as the seeds' builders do.
 *
 * Padding stands at the end and is counted only: no array holds anything of it, so no stage meets
 * it. A dummy step is all padding.
 */
#ifndef TAMIS_PLAN_STEP_H
#define TAMIS_PLAN_STEP_H

#include "core/arena.h"
#include "tamis/attention.h"

typedef struct tamis_step {
    /* limits, fixed at open */
    int32_t max_tokens, max_reqs, max_model_len;
    int32_t block_tokens, n_blocks;
    int32_t n_slots;     /* 0: the layers have no rings, slots are not read */
    int32_t table_width; /* blocks of a sequence of max_model_len */
    /* the step */
    int32_t n_tokens, n_reqs; /* without padding */
    int32_t n_input_tokens;   /* with padding */
    int32_t *query_start;     /* [max_reqs + 1] */
    int32_t *start_pos;       /* [max_reqs] tokens before this step */
    int32_t *seq_len;         /* [max_reqs] tokens after this step */
    int32_t *slot;            /* [max_reqs] */
    int32_t *table;           /* [max_reqs][table_width] */
    int32_t *tok_req;         /* [max_tokens] */
    int32_t *tok_pos;         /* [max_tokens] */
    int32_t *units;           /* [max_tokens] room for counting work while a plan is built */
    int64_t *writer;          /* [n_blocks] 1 + table entry that this step writes through, or 0 */
    int32_t *slot_owner;      /* [n_slots] request that uses the slot in this step, or -1 */
} tamis_step;

/* Takes the arrays (limits must be set). */
void tamis_step_layout(tamis_step *step, tamis_arena *arena);
/* errors: INVALID, LIMIT; names the request, the value seen and allowed; the step is empty then. */
tamis_status tamis_step_build(tamis_step *step, const tamis_batch *batch, tamis_error *err);
/* n_tokens tokens of padding and nothing else. errors: LIMIT; the step is empty then */
tamis_status tamis_step_build_dummy(tamis_step *step, int32_t n_tokens, tamis_error *err);
tamis_step_view tamis_step_show(const tamis_step *step);

static inline const int32_t *tamis_step_table(const tamis_step *step, int32_t req)
{
    return step->table + (int64_t)req * step->table_width;
}

#endif
