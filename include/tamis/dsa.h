/*
 * tamis/dsa.h - the DeepSeek-V4 attention layer as operators an engine can adopt: own weights, a
 * plan built from a batch description, caches addressed by block tables and ring slots.
 * ("DSA" as in vllm-ascend's dsa_v1: window + compressed + heavily compressed attention.)
 *
 * One step of an engine:
 *
 *     tamis_dsa_plan_build(plan, &batch, &err);        // may fail; nothing has changed then
 *     for (int i = 0; i < n_layers; i++)               // fails on misuse and on NaN only
 *         tamis_dsa_forward(&layers[i], i, plan, caches, x, out, team, &err);
 *
 * Rollback: plan the next step with a smaller seq_len; rows are addressed by position and written
 * again before they are read. How far is tamis_dsa_caches_rollback_floor's answer. Blocks need no
 * clearing when they pass to another sequence, ring slots do (tamis_dsa_caches_clear_slot).
 *
 * A complete program: examples/dsa_attention.c. Types shared with the other back end:
 * tamis/attention.h.
 *
 * Whose arithmetic a layer has is the profile its caches were opened with (tamis_cache_params):
 *
 *   exact     nothing is rounded but cache rows
 *   official  the vendor's rounding points: BF16 after every stage, FP8 inputs of FP8 and FP4
 *             weights, FP8 rows, Hadamard and FP4 in the indexer, best rows first; no I8 or I4
 *             weights
 *   ascend    vllm-ascend's: integer products of I8 and I4 weights, FP8 inputs of FP8 and FP4 ones,
 *             int8 in the indexer, BF16 after every stage
 *
 * docs/numerics-profiles.md has every point. In official and ascend x must hold BF16 values (in f32
 * memory; that is not checked, others give results that are nobody's), and out holds such values.
 *
 * Results are the same bits for any cut of a prompt into steps, any batch, any number of threads,
 * any physical blocks and any CPU level (docs/numerics.md), in every profile.
 */
#ifndef TAMIS_DSA_H
#define TAMIS_DSA_H

#include "tamis/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Dimensions of one attention layer; names as in config.json. */
typedef struct tamis_dsa_config {
    int32_t hidden_size;
    int32_t num_heads, head_dim, rope_head_dim; /* the last rope_head_dim channels rotate (even) */
    int32_t q_lora_rank;
    int32_t o_groups, o_lora_rank;
    int32_t sliding_window;
    int32_t compress_ratio; /* 0 window only, 4 with indexer, 128 all compressed rows */
    int32_t index_n_heads, index_head_dim, index_topk; /* ratio 4 */
    bool reuse_topk; /* IndexCache: use the selection of the nearest earlier ratio-4 layer; no indexer */
    float rms_norm_eps;
    tamis_rope_config rope;
} tamis_dsa_config;

/**
 * Weights of a compressor with head_dim d: width c = 2 d for ratio 4, d for ratio 128.
 * f32 arrays are borrowed; they must stay valid and 4-byte aligned.
 */
typedef struct tamis_compressor_weights {
    tamis_matrix wkv, wgate; /* [c][hidden_size] */
    const float *ape;        /* [ratio][c] */
    const float *norm;       /* [d] */
} tamis_compressor_weights;

typedef struct tamis_dsa_weights {
    tamis_matrix wq_a;      /* [q_lora_rank][hidden_size] */
    tamis_matrix wq_b;      /* [num_heads * head_dim][q_lora_rank] */
    tamis_matrix wkv;       /* [head_dim][hidden_size] */
    tamis_matrix wo_a;      /* [o_groups * o_lora_rank][num_heads * head_dim / o_groups] */
    tamis_matrix wo_b;      /* [hidden_size][o_groups * o_lora_rank] */
    const float *q_norm;    /* [q_lora_rank] */
    const float *kv_norm;   /* [head_dim] */
    const float *attn_sink; /* [num_heads] */
    tamis_compressor_weights compressor;         /* ratio 4 and 128 */
    tamis_matrix index_wq_b;                     /* ratio 4: [index_n_heads * index_head_dim][q_lora_rank] */
    tamis_matrix index_weights_proj;             /* ratio 4: [index_n_heads][hidden_size] */
    tamis_compressor_weights index_compressor;   /* ratio 4, d = index_head_dim */
} tamis_dsa_weights;

/** Most groups of the output projection a layer may have. */
#define TAMIS_DSA_MAX_GROUPS 128

typedef struct tamis_dsa_layer {
    tamis_dsa_config config;
    tamis_dsa_weights weights;
} tamis_dsa_layer;

/**
 * Check dimensions, numbers (all finite; YaRN's where yarn_factor is above 1), shapes and strides of
 * the weights. errors: INVALID or UNSUPPORTED (a ratio, a dtype) naming the field.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_layer_check(const tamis_dsa_layer *layer,
                                                              tamis_error *err);

/* ---------------------------------------------------------------- caches */

typedef struct tamis_dsa_caches tamis_dsa_caches;

/**
 * errors: INVALID, LIMIT (overflow), UNSUPPORTED (a kv_cache_dtype that the profile has not; in
 * official and ascend an index_head_dim that is no power of two: the Hadamard rotation needs one)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_caches_measure(const tamis_dsa_config *layers,
                                                                 int32_t n_layers,
                                                                 const tamis_cache_params *params,
                                                                 tamis_cache_bytes *out,
                                                                 tamis_error *err);
/**
 * Allocate the caches of n_layers layers, zeroed. `layers` is copied. errors: as measure, NO_MEMORY
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_caches_open(tamis_dsa_caches **out,
                                                              const tamis_dsa_config *layers,
                                                              int32_t n_layers,
                                                              const tamis_cache_params *params,
                                                              tamis_error *err);
TAMIS_API void tamis_dsa_caches_close(tamis_dsa_caches **caches);
/**
 * Copy one block (all layers), one ring slot (all layers): fork and copy-on-write.
 *
 * range    blocks: dst 1..num_blocks - 1, src 0..num_blocks - 1; slots: 0..num_slots - 1; dst other
 *          than src
 * errors   INVALID (the value seen and allowed); nothing is written then
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_caches_copy_block(tamis_dsa_caches *caches,
                                                                    int32_t dst, int32_t src,
                                                                    tamis_error *err);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_caches_copy_slot(tamis_dsa_caches *caches,
                                                                   int32_t dst, int32_t src,
                                                                   tamis_error *err);
/** Zero a ring slot: before a new sequence uses it. errors: INVALID (slot, 0..num_slots - 1) */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_caches_clear_slot(tamis_dsa_caches *caches,
                                                                    int32_t slot, tamis_error *err);
/**
 * Smallest length a sequence may be rolled back to when `high` is the largest length its rings have
 * been written to since they were cleared. 0 is always allowed as well.
 */
TAMIS_API int32_t tamis_dsa_caches_rollback_floor(const tamis_dsa_caches *caches, int32_t high);

/* ---------------------------------------------------------------- batch and plan */

typedef struct tamis_dsa_plan tamis_dsa_plan;

/**
 * Bytes a plan takes for these layers and cache parameters (block_tokens, profile, kv_cache_dtype),
 * its workspace included, if the caches have num_slots as many as max_num_seqs. Not in them, as the
 * caches are not known here: 8 for each of the caches' num_blocks and 4 for each slot beyond, which
 * tamis_dsa_plan_open takes on top; whoever needs the exact sum adds them.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_plan_measure(const tamis_dsa_config *layers,
                                                               int32_t n_layers,
                                                               const tamis_plan_params *params,
                                                               const tamis_cache_params *caches,
                                                               uint64_t *bytes, tamis_error *err);
/**
 * A plan for these layers and caches: everything that is computed once per step and shared by all
 * layers of a kind, and the workspace of one layer. Nothing is allocated after this call.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_plan_open(tamis_dsa_plan **out,
                                                            const tamis_dsa_caches *caches,
                                                            const tamis_plan_params *params,
                                                            tamis_error *err);
TAMIS_API void tamis_dsa_plan_close(tamis_dsa_plan **plan);
/**
 * Plan a step. Nothing is allocated, no buffer moves; what is at most as large as the plan's limits
 * fits. errors: INVALID (query_start_loc, lengths, block ids, slots, padding before a request, a
 * slot_mapping that the block tables do not give, a block that this step writes and another of its
 * requests holds: the request, the value seen and allowed), LIMIT (tokens, requests, context). The
 * plan is empty after a failure. Requests may share blocks that hold only tokens before this step.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_plan_build(tamis_dsa_plan *plan,
                                                             const tamis_batch *batch,
                                                             tamis_error *err);
/**
 * Plan a step without any request, for dummy and profiling runs: num_tokens rows of padding. Layers
 * enter every stage as in any step, read neither x nor caches, write no cache and leave zeros in
 * out. errors: LIMIT (num_tokens above the plan's)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_plan_build_dummy(tamis_dsa_plan *plan,
                                                                   int32_t num_tokens,
                                                                   tamis_error *err);
/** The step as planned; all zero counts after a refused build. */
TAMIS_API tamis_step_view tamis_dsa_plan_step(const tamis_dsa_plan *plan);
/** What the step means for a layer; all zero if there is no such layer. */
TAMIS_API tamis_layer_plan_view tamis_dsa_plan_layer(const tamis_dsa_plan *plan, int32_t layer_idx);

/**
 * One attention layer over the planned tokens; also writes their rows into the caches.
 *
 * shapes   x, out  [num_input_tokens][hidden_size] f32, contiguous; out must not overlap x. x is
 *          the normed input of the layer (attn_norm is the caller's), its rows of padding are not
 *          read; out is without the residual, zero in rows of padding
 * args     layer_idx: number of the layer among those the caches were opened with; layers are run
 *          in ascending order within a step (a reuse_topk layer reads an earlier selection).
 *          team: of plan's n_threads
 * numeric  class ordered
 * threads  plan, caches and team belong to one caller at a time
 * errors   INVALID before anything is written: layer_idx, a config or weight shape other than the
 *          caches were opened for, no team or one of another size, caches of another plan,
 *          out that overlaps x. UNSUPPORTED, likewise: a weight in a format that the profile does not
 *          run (official: I8, I4). STATE: no step is planned (nothing was built yet, or the latest
 *          build was refused); a step of no tokens is one.
 *          FORMAT afterwards: a NaN or infinity came up (damaged weights or input); the outputs
 *          are not to be used, and the ring slots of this step's requests are spoilt: clear them
 *          (tamis_dsa_caches_clear_slot) and start the sequences again
 * source   V4 reference inference/model.py (Attention, Compressor, Indexer); dsa_v1.py forward
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_forward(const tamis_dsa_layer *layer,
                                                          int32_t layer_idx, tamis_dsa_plan *plan,
                                                          tamis_dsa_caches *caches, const float *x,
                                                          float *out, tamis_team *team,
                                                          tamis_error *err);
/**
 * The same in two halves, for engines that move cache rows while they compute. After the first one
 * every row of this step that lies in a block (compressed rows, index keys) is in place, before
 * attention reads any: sending may begin. The rings follow in the second half, after attention: a
 * step reads their history before it overwrites it. x is not read by the second half.
 * errors   as above; STATE: attend without preprocess of the same layer before it in this step
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_preprocess(const tamis_dsa_layer *layer,
                                                             int32_t layer_idx,
                                                             tamis_dsa_plan *plan,
                                                             tamis_dsa_caches *caches,
                                                             const float *x, tamis_team *team,
                                                             tamis_error *err);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_attend(const tamis_dsa_layer *layer,
                                                         int32_t layer_idx, tamis_dsa_plan *plan,
                                                         tamis_dsa_caches *caches, float *out,
                                                         tamis_team *team, tamis_error *err);

#ifdef __cplusplus
}
#endif
#endif
