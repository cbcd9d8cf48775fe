/*
 * Three small random layers of either family behind the calls that a batch description goes
 * through, and every byte of their caches in reach.
 */
#ifndef TAMIS_TEST_BATCH_RIG_H
#define TAMIS_TEST_BATCH_RIG_H

#include "support/layer_rig.h"
#include "support/sfa_rig.h"

typedef enum test_family {
    TEST_V4 = 0, /* ratios 0, 4, 128; window 16, top-k 4 */
    TEST_V32     /* own selection of 8, reused selection, all tokens */
} test_family;

#define TEST_BATCH_LAYERS 3
#define TEST_BATCH_HIDDEN 37
#define TEST_BATCH_TOKENS 64 /* of a step, and requests: the bucket */
#define TEST_BATCH_REQS   8
#define TEST_BATCH_LEN    320

typedef struct test_batch_rig {
    test_family family;
    int32_t block_tokens;
    test_layer v4[TEST_BATCH_LAYERS];
    test_sfa_layer v32[TEST_BATCH_LAYERS];
    tamis_dsa_caches *dsa_caches;
    tamis_dsa_plan *dsa;
    tamis_sfa_caches *sfa_caches;
    tamis_sfa_plan *sfa;
    tamis_team *team;
} test_batch_rig;

/*
 * The same seed gives the same weights. Blocks for all requests at full length; caches hold NaN
 * everywhere, the null block too, and rings are cleared.
 */
test_batch_rig test_batch_rig_open(test_family family, int32_t block_tokens, int n_threads,
                                   bool is_serial, uint64_t seed);
void test_batch_rig_close(test_batch_rig *rig);

tamis_status test_batch_plan(test_batch_rig *rig, const tamis_batch *batch, tamis_error *err);
tamis_status test_batch_plan_dummy(test_batch_rig *rig, int32_t num_tokens, tamis_error *err);
tamis_step_view test_batch_step(const test_batch_rig *rig);
tamis_layer_plan_view test_batch_layer(const test_batch_rig *rig, int32_t layer_idx);
/* All layers over the same x [num_input_tokens][hidden]; out [layers][num_input_tokens][hidden]. */
void test_batch_forward(test_batch_rig *rig, const float *x, float *out);

/* All cache bytes, to be freed by the caller. */
uint8_t *test_batch_bytes(const test_batch_rig *rig, size_t *n_bytes);
/*
 * Fails unless the caches differ from `before` at most in the rows that the batch's real tokens
 * write: paged rows that they complete, ring rows of their positions. A request of length 0 ends
 * the batch.
 */
void test_batch_assert_only_own_rows(const test_batch_rig *rig, const tamis_batch *batch,
                                     const uint8_t *before);

#endif
