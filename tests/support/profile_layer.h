/*
 * V4 layers whose weights are in the formats that checkpoints have, for the profiles official and
 * ascend: test_layer_random of layer_rig.h has floats only.
 */
#ifndef TAMIS_TEST_PROFILE_LAYER_H
#define TAMIS_TEST_PROFILE_LAYER_H

#include "support/layer_rig.h"

/* What the large projections are; norms, sinks, compressors and the head weights stay BF16 and f32
 * as in the checkpoints, but for TEST_WEIGHTS_ALL_STATIC. */
typedef enum test_weight_form {
    TEST_WEIGHTS_BF16 = 0,
    TEST_WEIGHTS_FP8,        /* 128x128 blocks, E8M0 scales */
    TEST_WEIGHTS_I8,         /* W8A8 dynamic */
    TEST_WEIGHTS_I4,         /* W4A8 dynamic */
    TEST_WEIGHTS_I8_STATIC,  /* wq_a, wkv, wq_b; the rest dynamic */
    TEST_WEIGHTS_ALL_STATIC, /* every matrix with an input scale of its own, the compressors' too:
                                no two projections share a quantised input */
    TEST_NUM_WEIGHT_FORMS
} test_weight_form;
const char *test_weight_form_name(test_weight_form form);

typedef struct test_profile_layer {
    tamis_dsa_layer layer;
    void *blocks[128];
    int n_blocks;
} test_profile_layer;

test_profile_layer test_profile_layer_random(const tamis_dsa_config *config, test_weight_form form,
                                             test_rng *rng);
void test_profile_layer_free(test_profile_layer *layer);

/* Small, nothing round but the indexer's 32: window 70, so that the borders of 64 places fall into
 * window and selection; index_topk 11. */
tamis_dsa_config test_profile_config(int32_t ratio);

/* n BF16 values, to be freed by the caller. */
float *test_bf16_inputs(int64_t n, test_rng *rng);

#endif
