/*
 * V3.2 and GLM attention layers with random weights behind the public layer API (tamis/sfa.h): what
 * an engine author builds around them, as short calls. Refused calls fail the running cmocka test.
 */
#ifndef TAMIS_TEST_SFA_RIG_H
#define TAMIS_TEST_SFA_RIG_H

#include "attention/sfa/sfa_internal.h"
#include "support/rig_parts.h"

/* Random weights of the size that keeps activations near 1; owns its arrays. */
typedef struct test_sfa_layer {
    tamis_sfa_layer layer;
    test_owned owned;
} test_sfa_layer;
/* dtype of the matrices: F32, BF16, or F8_E4M3 with scales (index_weights_proj is BF16 then, as in
 * checkpoints); FP8 blocks are small for odd dimensions and 128 x 128 for real ones. */
test_sfa_layer test_sfa_layer_random(const tamis_sfa_config *config, tamis_dtype dtype,
                                     test_rng *rng);
void test_sfa_layer_free(test_sfa_layer *layer);

/*
 * No dimension is round: hidden 37, heads 3 x (24 + 16) and 40 values, latent 72, rank 88, indexer
 * 5 x 40, topk 8. V3.2: YaRN, index channels pair in halves. GLM: plain, neighbours, eps 1e-5.
 */
typedef enum test_sfa_family { TEST_SFA_V32 = 0, TEST_SFA_GLM } test_sfa_family;
tamis_sfa_config test_sfa_odd_config(test_sfa_family family);

#define TEST_SFA_BLOCKS   64
#define TEST_SFA_MAX_SEQS 8
typedef struct test_sfa_seq {
    int32_t len;
    int32_t table[TEST_SFA_BLOCKS];
} test_sfa_seq;

typedef struct test_sfa_rig {
    const tamis_sfa_layer *layers; /* [n_layers] */
    int32_t n_layers, max_len;
    tamis_cache_params params;
    tamis_sfa_caches *caches;
    tamis_sfa_plan *plan;
    tamis_team *team;
    int32_t n_blocks_used;
} test_sfa_rig;

/* Default parameters: f32 caches, blocks of 64 tokens for 8 sequences of max_len tokens. */
tamis_cache_params test_sfa_params(int32_t max_len);
test_sfa_rig test_sfa_rig_open(const tamis_sfa_layer *layers, int32_t n_layers,
                               const tamis_cache_params *params, int32_t max_len, int n_threads);
/* For steps of at most max_tokens instead of 2 max_len. */
test_sfa_rig test_sfa_rig_open_sized(const tamis_sfa_layer *layers, int32_t n_layers,
                                     const tamis_cache_params *params, int32_t max_len,
                                     int32_t max_tokens, int n_threads);
void test_sfa_rig_close(test_sfa_rig *rig);
/* A sequence with blocks for max_len tokens, the next free ones in ascending order. */
test_sfa_seq test_sfa_seq_open(test_sfa_rig *rig);
/* Fills every row of every cache, the null block too, with `value`. */
void test_sfa_poison(test_sfa_rig *rig, float value);

/* One step: plans counts[i] further tokens of each sequence. */
void test_sfa_plan(test_sfa_rig *rig, test_sfa_seq *const *seqs, const int32_t *counts, int32_t n);
/* Runs a layer over the planned tokens; x, out [sum of counts][hidden_size]. */
void test_sfa_run(test_sfa_rig *rig, int32_t layer_idx, const float *x, float *out);
/* The layer's operators up to attention over given lists; lse may be NULL. */
void test_sfa_run_given(test_sfa_rig *rig, int32_t layer_idx, const float *x,
                        const int32_t *indices, int32_t num_indices, float *lse, float *out);
/* Plan and run layer 0 for one sequence in steps of chunk tokens (0: one step). */
void test_sfa_feed(test_sfa_rig *rig, test_sfa_seq *seq, const float *x, int32_t n, int32_t chunk,
                   float *out);

/* Cache row of a position as floats, to be freed by the caller. */
float *test_sfa_row(const test_sfa_rig *rig, const test_sfa_seq *seq, int32_t layer_idx,
                    tamis_sfa_role role, int32_t pos);

/* All n tokens of one layer in one step: the straight run that others are compared with. */
typedef struct test_sfa_result {
    float *out;    /* [n][hidden_size] */
    float *lse;    /* [n][num_heads] */
    int32_t *topk; /* [n][index_topk]; NULL without indexer */
} test_sfa_result;
test_sfa_result test_sfa_straight(const tamis_sfa_layer *layer, tamis_dtype kv_cache_dtype,
                                  const float *x, int32_t n);
void test_sfa_result_free(test_sfa_result *result);

/* ---------------------------------------------------------------- against the oracle */

/* Fails unless every element is within the bound. */
void test_assert_near(const float *seen, const double *expected, int64_t n, double bound,
                      const char *what);
/*
 * Fails unless topk [k] is what a query may select whose scores of its n_visible positions are
 * given: min(k, n_visible) ascending positions, then -1, none of them below the k-th best score by
 * more than bound times the largest.
 */
void test_assert_topk(const int32_t *topk, int32_t k, const double *scores, int32_t n_visible,
                      double bound, const char *what);

#endif
