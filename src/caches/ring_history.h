/*
 * The history of a ring slot at a position: the rows of all rings that a sequence reads when it
 * goes on from there, packed one ring after the other. With the blocks of the tokens before it, it
 * is all that going on later, or in another slot, needs; the rest of the rings is never looked at.
 *
 * Rings reach back little further than that, and a step may be longer than a ring: the history of a
 * position in the middle of a step is gone when the step ends. It is therefore gathered in two
 * parts: the rows before the step by tamis_history_save, the step's own by a watch, to which every
 * row goes that is on its way into a ring.
 */
#ifndef TAMIS_CACHES_RING_HISTORY_H
#define TAMIS_CACHES_RING_HISTORY_H

#include <string.h>

#include "caches/cache_store.h"

/* A history that the running step fills; `history` has store->history_bytes. */
typedef struct tamis_history_watch {
    int32_t slot, pos;
    uint8_t *history;
} tamis_history_watch;

typedef struct tamis_history_watches {
    tamis_history_watch *items;
    int32_t n;
} tamis_history_watches;

/* First position in the history of `pos`; below 0 at the start of a sequence, where the rows before
 * position 0 are left out. */
static inline int32_t tamis_history_first(const tamis_cache_desc *ring, int32_t pos)
{
    return pos / ring->align * ring->align - ring->lead;
}
static inline size_t tamis_history_offset(const tamis_cache *ring, int32_t pos, int32_t row_pos)
{
    return ring->history_at +
           (size_t)(row_pos - tamis_history_first(&ring->desc, pos)) * (size_t)ring->row_bytes;
}

/* The history's rows at positions below `end` (<= pos), which must still be in the rings. */
void tamis_history_save(const tamis_cache_store *store, int32_t slot, int32_t pos, int32_t end,
                        uint8_t *history);
/* Puts a whole history into a slot; other rows of the slot stay. */
void tamis_history_restore(const tamis_cache_store *store, int32_t slot, int32_t pos,
                           const uint8_t *history);
/* From now on rows that pass tamis_history_note go to these histories as well; NULL: to none. */
void tamis_history_set_watches(tamis_cache_store *store, const tamis_history_watches *watches);

/* The row of `row_pos` is about to be written into a ring. Threads may note different rows. */
static inline void tamis_history_note(const tamis_cache *ring, int32_t slot, int32_t row_pos,
                                      const void *row)
{
    const tamis_history_watches *watches = ring->watches;
    for (int32_t i = 0; watches != NULL && i < watches->n; i++) {
        const tamis_history_watch *w = &watches->items[i];
        if (w->slot == slot && row_pos < w->pos &&
            row_pos >= tamis_history_first(&ring->desc, w->pos))
            memcpy(w->history + tamis_history_offset(ring, w->pos, row_pos), row,
                   (size_t)ring->row_bytes);
    }
}

#endif
