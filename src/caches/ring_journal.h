/*
 * What a step is about to overwrite in the rings of a slot, so that it can be undone: the rows at
 * the places of the step's positions, the last ones if the step is longer than a ring. Blocks need
 * no such thing: a step writes behind the rows that are there.
 */
#ifndef TAMIS_CACHES_RING_JOURNAL_H
#define TAMIS_CACHES_RING_JOURNAL_H

#include "caches/cache_store.h"

/* Bytes that n_tokens new tokens of up to n_slots sequences take at most. */
uint64_t tamis_ring_journal_bytes(const tamis_cache_store *store, int32_t n_tokens,
                                  int32_t n_slots);
/* Rows at the places of positions pos .. pos + n - 1, packed; returns the end of them. */
uint8_t *tamis_ring_journal_save(const tamis_cache_store *store, int32_t slot, int32_t pos,
                                 int32_t n, uint8_t *journal);
const uint8_t *tamis_ring_journal_restore(const tamis_cache_store *store, int32_t slot, int32_t pos,
                                          int32_t n, const uint8_t *journal);

#endif
