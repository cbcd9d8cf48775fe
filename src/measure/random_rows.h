/* Rows of caches with random numbers in their own format. */
#ifndef TAMIS_MEASURE_RANDOM_ROWS_H
#define TAMIS_MEASURE_RANDOM_ROWS_H

#include "caches/cache_store.h"
#include "measure/random_weights.h"

/* Rows of block `block` of every cache in blocks. */
void tamis_fill_block(const tamis_cache_store *store, int32_t block, tamis_noise *noise);
/* All rows of ring slot `slot`. */
void tamis_fill_slot(const tamis_cache_store *store, int32_t slot, tamis_noise *noise);

#endif
