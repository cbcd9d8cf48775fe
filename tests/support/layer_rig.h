/*
 * One V4 attention layer with random weights behind the public layer API (tamis/dsa.h): what an
 * engine author builds around it, as short calls. Refused calls fail the running cmocka test.
 */
#ifndef TAMIS_TEST_LAYER_RIG_H
#define TAMIS_TEST_LAYER_RIG_H

#include "support/rig_parts.h"
#include "tamis/dsa.h"

/* Random weights of the size that keeps activations near 1; owns its arrays. */
typedef struct test_layer {
    tamis_dsa_layer layer;
    test_owned owned;
} test_layer;
/* dtype of the matrices: F32 or BF16 */
test_layer test_layer_random(const tamis_dsa_config *config, tamis_dtype dtype, test_rng *rng);
void test_layer_free(test_layer *layer);

/* No dimension is round: hidden 37, heads 3 x 48, ranks 88 and 23, indexer 5 x 40. */
tamis_dsa_config test_odd_config(int32_t ratio);

#define TEST_RIG_BLOCKS 64
typedef struct test_rig_seq {
    int32_t slot, len;
    int32_t table[TEST_RIG_BLOCKS];
} test_rig_seq;

typedef struct test_rig {
    const tamis_dsa_layer *layers; /* [n_layers] */
    int32_t n_layers, max_len;
    tamis_cache_params params;
    tamis_dsa_caches *caches;
    tamis_dsa_plan *plan;
    tamis_team *team;
    int32_t n_slots_used, n_blocks_used;
} test_rig;

/* Default parameters: f32 caches, 8 slots, blocks for 8 sequences of max_len tokens. */
tamis_cache_params test_rig_params(int32_t max_len);
test_rig test_rig_open(const tamis_dsa_layer *layers, int32_t n_layers,
                       const tamis_cache_params *params, int32_t max_len, int n_threads);
void test_rig_close(test_rig *rig);
/* The next free slot, cleared, with blocks for max_len tokens. */
test_rig_seq test_rig_seq_open(test_rig *rig);
/* Fills every row of every cache, rings and the null block too, with `value`. */
void test_rig_poison(test_rig *rig, float value);

/* One step: plans counts[i] further tokens of each sequence. */
void test_rig_plan(test_rig *rig, test_rig_seq *const *seqs, const int32_t *counts, int32_t n);
/* Runs a layer over the planned tokens; x, out [sum of counts][hidden_size]. */
void test_rig_run(test_rig *rig, int32_t layer_idx, const float *x, float *out);
/* Plan and run layer 0 for one sequence in steps of chunk tokens (0: one step). */
void test_rig_feed(test_rig *rig, test_rig_seq *seq, const float *x, int32_t n, int32_t chunk,
                   float *out);

/* Compressed row or index key j of a sequence as floats, to be freed by the caller. */
float *test_rig_row(const test_rig *rig, const test_rig_seq *seq, int32_t layer_idx, int role,
                    int32_t j);

#endif
