/* Checks of a batch description that the plan and the public functions on batches share. */
#ifndef TAMIS_PLAN_BATCH_H
#define TAMIS_PLAN_BATCH_H

#include "tamis/attention.h"

/* query_start_loc begins with 0 and does not decrease. errors: INVALID */
tamis_status tamis_batch_check_starts(const int32_t *query_start_loc, int32_t num_reqs,
                                      tamis_error *err);
/* Requests before the padding; the starts must be right. errors: INVALID naming the request */
tamis_status tamis_batch_check_seq_lens(const tamis_batch *batch, int32_t *num_real_reqs,
                                        tamis_error *err);
/* The same, and the shape of the block table. */
tamis_status tamis_batch_check_lengths(const tamis_batch *batch, int32_t *num_real_reqs,
                                       tamis_error *err);

static inline int32_t tamis_batch_query_len(const tamis_batch *batch, int32_t req)
{
    return batch->query_start_loc[req + 1] - batch->query_start_loc[req];
}
static inline int32_t tamis_batch_start_pos(const tamis_batch *batch, int32_t req)
{
    return batch->seq_lens[req] - tamis_batch_query_len(batch, req);
}
/* Flat slot of a position whose table column is there. */
static inline int64_t tamis_flat_slot(const int32_t *table, int32_t pos, int32_t block_tokens)
{
    return (int64_t)table[pos / block_tokens] * block_tokens + pos % block_tokens;
}

#endif
