/*
 * Streaming top-k: scores arrive in blocks, a running threshold lets nearly all of them be dropped
 * eight at a time, survivors are compacted by a selection when their buffer fills. No score row is
 * ever stored. Exact: larger score first, then lower id; NaN is never chosen.
 */
#ifndef TAMIS_OPS_TOPK_H
#define TAMIS_OPS_TOPK_H

#include "kernels/kernels.h"

#define TAMIS_TOPK_BLOCK 64 /* largest block of one push */

typedef struct tamis_candidate {
    float score;
    int32_t id;
} tamis_candidate;

typedef struct tamis_topk {
    tamis_candidate *items; /* [capacity], the caller's */
    int32_t k, n, capacity;
    float threshold; /* score of the k-th best so far; NaN while fewer than k are known */
} tamis_topk;

/* Candidates the caller provides for a given k. */
static inline int32_t tamis_topk_capacity(int32_t k)
{
    return 3 * k + 2 * TAMIS_TOPK_BLOCK;
}

void tamis_topk_init(tamis_topk *topk, tamis_candidate *items, int32_t k);
/* Scores of ids first_id .. first_id + n - 1, n <= TAMIS_TOPK_BLOCK; ids ascend over the pushes. */
void tamis_topk_push(tamis_topk *topk, const tamis_kernels *kernels, const float *scores, int32_t n,
                     int32_t first_id);
/* Reduce to the k best (fewer if fewer were pushed), in no particular order. */
void tamis_topk_reduce(tamis_topk *topk);
/* Take over what another selection of later ids found (reduced: at most k items). */
void tamis_topk_absorb(tamis_topk *topk, const tamis_candidate *items, int32_t n);
/* Reduce and write k ids, ascending, then -1; returns how many are real. */
int32_t tamis_topk_finish(tamis_topk *topk, int32_t *out);
/* The same, the best score first, equal scores by id. */
int32_t tamis_topk_finish_ranked(tamis_topk *topk, int32_t *out);

#endif
