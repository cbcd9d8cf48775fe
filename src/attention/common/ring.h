/* Writing a step's rows into rings, after everything that reads their history is done. */
#ifndef TAMIS_ATTENTION_COMMON_RING_H
#define TAMIS_ATTENTION_COMMON_RING_H

#include "caches/ring_history.h"
#include "plan/step.h"

/* A step longer than the ring leaves only its last rows, so no two tokens write one row; all of
 * them pass the watched histories. */
static inline void tamis_ring_keep(const tamis_cache *ring, const tamis_step *step, int32_t token,
                                   const void *row)
{
    const int32_t req = step->tok_req[token], pos = step->tok_pos[token];
    tamis_history_note(ring, step->slot[req], pos, row);
    if (pos >= step->seq_len[req] - ring->desc.rows)
        memcpy(tamis_cache_ring_row(ring, step->slot[req], pos), row, (size_t)ring->row_bytes);
}

#endif
