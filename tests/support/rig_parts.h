/*
 * What the rigs of both back ends (layer_rig.h, sfa_rig.h) are made of: random weights, token
 * vectors, cache rows as floats. A shortage of memory fails the running cmocka test.
 */
#ifndef TAMIS_TEST_RIG_PARTS_H
#define TAMIS_TEST_RIG_PARTS_H

#include "caches/cache_store.h"
#include "support/rng.h"

/* Zeroed elements, to be freed by the caller; n may be 0. */
void *test_take(int64_t n, size_t size);

/* Memory that weights borrow, freed together. */
typedef struct test_owned {
    void *blocks[48];
    int n_blocks;
} test_owned;
void test_owned_free(test_owned *owned);

/*
 * Random matrix of the size that keeps activations near 1. dtype: F32, BF16, or F8_E4M3 with F32
 * scales on blocks of block_size x block_size (not read for the others).
 */
tamis_matrix test_random_matrix(test_owned *owned, tamis_dtype dtype, int64_t rows, int64_t cols,
                                int32_t block_size, test_rng *rng);
const float *test_random_vector(test_owned *owned, int64_t n, float mean, float deviation,
                                test_rng *rng);

/* Token vectors [n][hidden_size], to be freed by the caller. */
float *test_inputs(int32_t n, int32_t hidden_size, test_rng *rng);
double *test_widened(const float *x, int64_t n); /* to be freed by the caller */

/* Fills every row of every cache, rings and the null block too, with `value`. */
void test_store_fill(const tamis_cache_store *store, float value);
/* A row of the cache as floats, to be freed by the caller. */
float *test_cache_row(const tamis_cache *cache, const void *row);

#endif
