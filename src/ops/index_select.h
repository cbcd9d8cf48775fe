/*
 * Lightning indexer: score all visible keys of each token and keep the k best, block by block, so
 * that no score row of context length ever exists.
 *
 * score(t, j) = sum over heads h of weight[t][h] * relu(q[t][h] . key[j]); larger first, then lower
 * j; NaN never. A token that sees at most k keys selects them all and is not scored, unless the
 * order of the scores is wanted. The keys' format decides the kernel: index_score_f4 for F4_E2M1,
 * index_score_i8 for I8, index_score for the others.
 */
#ifndef TAMIS_OPS_INDEX_SELECT_H
#define TAMIS_OPS_INDEX_SELECT_H

#include "core/partition.h"
#include "ops/exec.h"
#include "ops/topk.h"

#define TAMIS_INDEX_BLOCK 64 /* keys of one unit of work */

typedef struct tamis_index_job {
    const float *q;       /* [n_tokens][n_heads][head_dim] */
    const float *weights; /* [n_tokens][round_up(n_heads, 16)], zeros after n_heads */
    int32_t n_tokens, n_heads, head_dim, topk;
    const tamis_row_format *format; /* of the keys: F4_E2M1 and I8 are scored as integers */
    const int8_t *q_codes; /* F4, I8: [n_tokens][round_up(n_heads, 16)][head_dim] instead of q */
    const float *q_scales; /* F4: [n_tokens][round_up(n_heads, 16)][groups of a key] */
    bool best_first; /* out is in descending order of score, so tokens that select all are scored */
    const int32_t *visible;           /* [n_tokens] */
    const tamis_partition *partition; /* items: tokens, units: tamis_index_units */
    int32_t *out;                     /* [n_tokens][topk] ascending (or best_first), then -1 */
    tamis_candidate *partials;        /* [2 n_threads][topk] */
    int32_t *n_partials;              /* [2 n_threads] */
    /* Keys from j on that lie at a constant stride, at most n of them; returns the first. */
    const void *(*keys)(const void *user, int32_t token, int32_t j, int32_t n, int32_t *n_run,
                        int64_t *stride);
    const void *user;
} tamis_index_job;

static inline int32_t tamis_index_units(int32_t visible, int32_t topk, bool best_first)
{
    return visible <= topk && !best_first ? 0
                                          : (visible + TAMIS_INDEX_BLOCK - 1) / TAMIS_INDEX_BLOCK;
}
size_t tamis_index_scratch_floats(int32_t n_heads, int32_t head_dim, int32_t topk);
/* false if some scored token selects fewer than min(k, visible) keys: its scores are no numbers.
 * One or two barriers. */
bool tamis_index_run(const tamis_exec *exec, const tamis_index_job *job);

#endif
