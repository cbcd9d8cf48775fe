/*
 * Sparse attention of all heads over per-token lists of rows that are key and value at once (MQA).
 *
 * A list is cut every TAMIS_ATTN_CHUNK entries; chunks are computed independently and merged by LSE
 * in list order, whether one thread does them all or several share a token. Where a row lies is
 * the caller's business: a callback turns list entries into pointers, so rings, paged blocks and
 * rows of the running step mix freely. In profiles other than exact the chunks of a token follow
 * one another under one running maximum, p is rounded to BF16 for the values and the output to
 * BF16; threads then share a token by panels of 16 heads, never by chunks. Complexity: heads x list
 * length x (head_dim + value_dim).
 */
#ifndef TAMIS_OPS_SPARSE_ATTN_H
#define TAMIS_OPS_SPARSE_ATTN_H

#include "core/arena.h"
#include "core/partition.h"
#include "ops/exec.h"

typedef struct tamis_attn_job {
    const float *q; /* [n_tokens][num_heads][head_dim] */
    float *o;       /* [n_tokens][num_heads][value_dim], tokens o_stride floats apart; may be
                       q if o_stride is q's num_heads * head_dim */
    int64_t o_stride;
    float *lse; /* [n_tokens][num_heads] or NULL: log of the sum of exponentials, sink
                   included; -inf where there is neither row nor sink */
    int32_t n_tokens, num_heads, head_dim, value_dim;
    const tamis_row_format *format; /* of the rows */
    float scale;
    const float *sink;                /* [num_heads] or NULL */
    const tamis_partition *partition; /* items: tokens, units: chunks of their lists */
    const int32_t *list_len;          /* [n_tokens] */
    float *partials;    /* chunks of tokens that several threads share: tamis_attn_partial_floats */
    int32_t max_chunks; /* of one list, as given to tamis_attn_partial_floats; 1 is enough where
                           chunks follow one another */
    /* Pointers of list places first .. first + n - 1 (n <= TAMIS_ATTN_CHUNK) that are not empty, in
     * order; returns their number. Chunks begin at multiples of TAMIS_ATTN_CHUNK places. */
    int32_t (*rows)(const void *user, int32_t token, int32_t first, int32_t n, const void **out);
    /* Heads [head_begin, head_end) of the token's output are final (o points at head 0). */
    void (*done)(const void *user, int32_t token, float *o, int32_t head_begin, int32_t head_end);
    const void *user;
} tamis_attn_job;

static inline int32_t tamis_attn_num_chunks(int64_t list_len)
{
    return (int32_t)((list_len + TAMIS_ATTN_CHUNK - 1) / TAMIS_ATTN_CHUNK);
}
size_t tamis_attn_scratch_floats(int32_t num_heads, int32_t head_dim, int32_t value_dim);
size_t tamis_attn_partial_floats(int32_t num_heads, int32_t value_dim, int32_t max_chunks,
                                 int32_t n_threads);
/* One barrier, two if some token is shared. */
void tamis_attn_run(const tamis_exec *exec, const tamis_attn_job *job);

#endif
