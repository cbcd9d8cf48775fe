/*
 * tamis/sfa.h - the attention layer of DeepSeek-V3.2 and GLM-5 / 5.1 / 5.2 as operators an engine
 * can adopt: MLA in its absorbed form, lightning indexer over every token, sparse flash attention
 * over the latent cache. ("SFA" as in vllm-ascend's sfa_v1.)
 *
 * One step of an engine:
 *
 *     tamis_sfa_plan_build(plan, &batch, &err);        // may fail; nothing has changed then
 *     for (int i = 0; i < n_layers; i++)               // fails on misuse and on NaN only
 *         tamis_sfa_forward(&layers[i], i, plan, caches, x, out, team, &err);
 *
 * or the four operators that tamis_sfa_forward is made of, one by one.
 *
 * A token's cache row is its latent (kv_a_layernorm's output) followed by its rotated key part:
 * kv_lora_rank + qk_rope_head_dim values that all heads share; K and V are never expanded. The
 * key part stands in neighbouring pairs (x0 y0 x1 y1 ...), as the official code leaves it. There are
 * no rings: rollback to any length is planning the next step with a smaller seq_len, and blocks
 * need no clearing when they pass to another sequence.
 *
 * A complete program: examples/sfa_attention.c. Types shared with the other back end:
 * tamis/attention.h.
 *
 * Whose arithmetic a layer has is the profile its caches were opened with (tamis_cache_params). In
 * profiles official and ascend x must hold BF16 values; stages end in BF16, queries, latents and
 * outputs included, and cache rows are packed (docs/numerics-profiles.md). tamis_mlapo_preprocess is
 * Ascend's fused form of the first operator.
 *
 * Results are the same bits for any cut of a prompt into steps, any batch, any number of threads,
 * any physical blocks and any CPU level (docs/numerics.md). That is why there is one form for
 * decode and prefill: expanding K and V for prefill would add in another order.
 */
#ifndef TAMIS_SFA_H
#define TAMIS_SFA_H

#include "tamis/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Dimensions of one attention layer; names as in config.json. */
typedef struct tamis_sfa_config {
    int32_t hidden_size;
    int32_t num_heads;
    int32_t q_lora_rank, kv_lora_rank;
    int32_t qk_nope_head_dim, qk_rope_head_dim; /* the last qk_rope_head_dim channels rotate (even) */
    int32_t v_head_dim;
    int32_t index_n_heads, index_head_dim; /* the first qk_rope_head_dim index channels rotate */
    int32_t index_topk;           /* 0: no indexer, attention over all tokens */
    bool index_rope_interleave;   /* GLM: index channels pair (2j, 2j+1); V3.2: (j, j + rope/2) */
    bool reuse_topk;              /* use the selection of the nearest earlier layer; no indexer */
    float rms_norm_eps;           /* of q_a_layernorm and kv_a_layernorm; the indexer's is 1e-6 */
    float softmax_scale;          /* tamis_sfa_softmax_scale */
    tamis_rope_config rope;
} tamis_sfa_config;

/**
 * (nope + rope)^-0.5 m^2 with m = 0.1 mscale_all_dim ln(yarn_factor) + 1; m = 1 if yarn_factor <= 1
 * or mscale_all_dim is 0. V3.2: 192, 40, 1 -> 0.13523378; GLM-5: 256, 1, 0 -> 0.0625.
 */
TAMIS_API float tamis_sfa_softmax_scale(int32_t qk_head_dim, float yarn_factor,
                                        float mscale_all_dim);

/** Weights of a layer; f32 arrays are borrowed, must stay valid and be 4-byte aligned. */
typedef struct tamis_sfa_weights {
    tamis_matrix q_a_proj;  /* [q_lora_rank][hidden_size] */
    tamis_matrix q_b_proj;  /* [num_heads * (nope + rope)][q_lora_rank] */
    tamis_matrix kv_a_proj; /* [kv_lora_rank + rope][hidden_size] (kv_a_proj_with_mqa) */
    tamis_matrix kv_b_proj; /* [num_heads * (nope + v)][kv_lora_rank]: of each head nope key rows,
                               then v value rows; used in place, no copy of the halves is made */
    tamis_matrix o_proj;    /* [hidden_size][num_heads * v] */
    const float *q_a_norm;  /* [q_lora_rank] */
    const float *q_a_norm_bias; /* [q_lora_rank] added after it (Ascend's quantiser), or NULL */
    const float *kv_a_norm; /* [kv_lora_rank] */
    /* indexer; not read if index_topk is 0 or reuse_topk is set */
    tamis_matrix index_wq_b;         /* [index_n_heads * index_head_dim][q_lora_rank] */
    tamis_matrix index_wk;           /* [index_head_dim][hidden_size] */
    tamis_matrix index_weights_proj; /* [index_n_heads][hidden_size] */
    const float *index_k_norm;       /* [index_head_dim] LayerNorm, eps 1e-6 */
    const float *index_k_norm_bias;  /* [index_head_dim] */
} tamis_sfa_weights;

typedef struct tamis_sfa_layer {
    tamis_sfa_config config;
    tamis_sfa_weights weights;
} tamis_sfa_layer;

/**
 * Check dimensions, numbers (all finite; YaRN's where yarn_factor is above 1), shapes and strides of
 * the weights. errors: INVALID or UNSUPPORTED (a dtype) naming the field.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_layer_check(const tamis_sfa_layer *layer,
                                                              tamis_error *err);

/* ---------------------------------------------------------------- caches */

typedef struct tamis_sfa_caches tamis_sfa_caches;

/** errors: INVALID, UNSUPPORTED, LIMIT (overflow) */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_caches_measure(const tamis_sfa_config *layers,
                                                                 int32_t n_layers,
                                                                 const tamis_cache_params *params,
                                                                 tamis_cache_bytes *out,
                                                                 tamis_error *err);
/** Allocate the caches of n_layers layers, zeroed. `layers` is copied. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_caches_open(tamis_sfa_caches **out,
                                                              const tamis_sfa_config *layers,
                                                              int32_t n_layers,
                                                              const tamis_cache_params *params,
                                                              tamis_error *err);
TAMIS_API void tamis_sfa_caches_close(tamis_sfa_caches **caches);
/**
 * Copy one block (all layers): fork and copy-on-write.
 *
 * range    dst 1..num_blocks - 1, src 0..num_blocks - 1, dst other than src
 * errors   INVALID (the value seen and allowed); nothing is written then
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_caches_copy_block(tamis_sfa_caches *caches,
                                                                    int32_t dst, int32_t src,
                                                                    tamis_error *err);

/* ---------------------------------------------------------------- plan */

typedef struct tamis_sfa_plan tamis_sfa_plan;

/**
 * Bytes a plan takes for these layers and cache parameters (block_tokens, profile), its workspace
 * included. Not in them, as the caches are not
 * known here: 8 for each of the caches' num_blocks, which tamis_sfa_plan_open takes on top; whoever
 * needs the exact sum adds 8 * num_blocks.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_plan_measure(const tamis_sfa_config *layers,
                                                               int32_t n_layers,
                                                               const tamis_plan_params *params,
                                                               const tamis_cache_params *caches,
                                                               uint64_t *bytes, tamis_error *err);
/** A plan for these layers and caches. Nothing is allocated after this call. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_plan_open(tamis_sfa_plan **out,
                                                            const tamis_sfa_caches *caches,
                                                            const tamis_plan_params *params,
                                                            tamis_error *err);
TAMIS_API void tamis_sfa_plan_close(tamis_sfa_plan **plan);
/**
 * Plan a step; batch->slots is not read. Nothing is allocated, no buffer moves; what is at most as
 * large as the plan's limits fits. errors: INVALID (query_start_loc, lengths, block ids, padding
 * before a request, a slot_mapping that the block tables do not give, a block that this step writes
 * and another of its requests holds: the request, the value seen and allowed), LIMIT (tokens,
 * requests, context). The plan is empty after a failure.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_plan_build(tamis_sfa_plan *plan,
                                                             const tamis_batch *batch,
                                                             tamis_error *err);
/**
 * Plan a step without any request, for dummy and profiling runs: num_tokens rows of padding. Layers
 * enter every stage as in any step, read neither x nor caches, write no cache and leave zeros in
 * out. errors: LIMIT (num_tokens above the plan's)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_plan_build_dummy(tamis_sfa_plan *plan,
                                                                   int32_t num_tokens,
                                                                   tamis_error *err);
/** The step as planned; all zero counts after a refused build. */
TAMIS_API tamis_step_view tamis_sfa_plan_step(const tamis_sfa_plan *plan);
/** What the step means for a layer; all zero if there is no such layer. */
TAMIS_API tamis_layer_plan_view tamis_sfa_plan_layer(const tamis_sfa_plan *plan, int32_t layer_idx);

/* ---------------------------------------------------------------- operators */

/**
 * One attention layer over the planned tokens; also writes their rows into the caches.
 *
 * shapes   x, out  [num_input_tokens][hidden_size] f32, contiguous; out must not overlap x. x is
 *          the normed input of the layer, its rows of padding are not read; out is without the
 *          residual, zero in rows of padding
 * args     layer_idx: number of the layer among those the caches were opened with; layers are run
 *          in ascending order within a step (a reuse_topk layer reads an earlier selection).
 *          team: of plan's n_threads
 * numeric  class ordered
 * threads  plan, caches and team belong to one caller at a time
 * errors   INVALID before anything is written: layer_idx, a config or weight shape other than the
 *          caches were opened for, no team or one of another size, caches of another plan,
 *          out that overlaps x. UNSUPPORTED: a weight in a format that the profile does not run
 *          (official: I8, I4; ascend: kv_b_proj as I8, I4). STATE: no step is planned (nothing was
 *          built yet, or the latest build was refused); a step of no tokens is one.
 *          FORMAT afterwards: a NaN or infinity came up (damaged weights or input)
 * source   V3.2 inference/model.py (MLA, Indexer); sfa_v1.py forward
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_forward(const tamis_sfa_layer *layer,
                                                          int32_t layer_idx, tamis_sfa_plan *plan,
                                                          tamis_sfa_caches *caches, const float *x,
                                                          float *out, tamis_team *team,
                                                          tamis_error *err);

/**
 * The parts of tamis_sfa_forward, to be called in this order for a layer; arguments and errors as
 * there, and STATE for a part that comes before its predecessors.
 *
 * preprocess  x -> norms, rotations, cache rows of the step (latent and index key), absorbed query
 *             (tamis_sfa_plan_query), query and weights of the indexer
 * select      top-k of every token (tamis_sfa_plan_topk); does nothing in a layer without indexer
 * attend      sparse flash attention (tamis_sfa_plan_latent_out). indices NULL: the selection of
 *             this step; else [num_tokens][num_indices] logical positions of the token's sequence in
 *             any order, -1 (skipped) anywhere, others in 0..position (INVALID names token, entry
 *             and value); a position that stands twice counts twice. num_indices: up to the
 *             largest index_topk of the layers, max_model_len if one has none. lse NULL or
 *             [num_tokens][num_heads]: natural log of the sum of exponentials of scaled scores,
 *             -inf for a token without any index, whose output is zero
 * output      value up-projection and o_proj -> out
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_preprocess(const tamis_sfa_layer *layer,
                                                             int32_t layer_idx,
                                                             tamis_sfa_plan *plan,
                                                             tamis_sfa_caches *caches,
                                                             const float *x, tamis_team *team,
                                                             tamis_error *err);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_select(const tamis_sfa_layer *layer,
                                                         int32_t layer_idx, tamis_sfa_plan *plan,
                                                         tamis_sfa_caches *caches, tamis_team *team,
                                                         tamis_error *err);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_attend(const tamis_sfa_layer *layer,
                                                         int32_t layer_idx, tamis_sfa_plan *plan,
                                                         tamis_sfa_caches *caches,
                                                         const int32_t *indices,
                                                         int32_t num_indices, float *lse,
                                                         tamis_team *team, tamis_error *err);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sfa_output(const tamis_sfa_layer *layer,
                                                         int32_t layer_idx, tamis_sfa_plan *plan,
                                                         tamis_sfa_caches *caches, float *out,
                                                         tamis_team *team, tamis_error *err);

/** Tokens of the planned step, without padding; num_tokens in the shapes here. */
TAMIS_API int32_t tamis_sfa_plan_num_tokens(const tamis_sfa_plan *plan);
/** [num_tokens][index_topk] ascending positions, then -1: the latest selection of this step. */
TAMIS_API const int32_t *tamis_sfa_plan_topk(const tamis_sfa_plan *plan);
/** After preprocess: [num_tokens][num_heads][kv_lora_rank + rope] absorbed query; may be changed. */
TAMIS_API float *tamis_sfa_plan_query(tamis_sfa_plan *plan);
/**
 * After attend: attention output of a token, [num_heads][kv_lora_rank] (in the query's place). NULL
 * if the token is not in 0..num_tokens - 1.
 */
TAMIS_API float *tamis_sfa_plan_latent_out(tamis_sfa_plan *plan, int32_t token);

/* ---------------------------------------------------------------- MLAPO */

/**
 * Weights of Ascend's fused preprocessing (mla_preprocess), made from a layer whose q_a_proj,
 * kv_a_proj and q_b_proj are W8A8 static: the first two become one matrix, kv_a_proj's rows first;
 * the rotated rows of kv_a_proj and of every head of q_b_proj stand in the order 0, 2, 4, ..., 1, 3,
 * 5, ..., and with them deq_scale and quant_bias. A product so leaves its rotated part as halves,
 * and rotating halves (layout B of what was pairs) is what the kernel does.
 */
typedef struct tamis_mlapo {
    tamis_matrix qkv_a_proj; /* I8 [kv_lora_rank + rope + q_lora_rank][hidden_size] */
    tamis_matrix q_b_proj;   /* I8 [num_heads * (nope + rope)][q_lora_rank] */
    float eps;               /* of both norms, whatever the layer's rms_norm_eps is */
} tamis_mlapo;

/** eps that Ascend's kernel has built in. */
#define TAMIS_MLAPO_EPS 1e-6f

/**
 * Reordered copies of a layer's weights; the layer's own may go afterwards but for those that
 * tamis_mlapo_preprocess still reads (norms, kv_b_proj, the indexer's) and the shapes of the others.
 *
 * range    eps above 0
 * errors   what tamis_sfa_layer_check finds; UNSUPPORTED: a weight that is not W8A8 static (name,
 *          type seen and allowed); INVALID: kv_a_proj with another input scale or offset than
 *          q_a_proj (the fused matrix has one), eps; NO_MEMORY
 * source   sfa_v1.py _process_weights_for_fused_mlapo
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_mlapo_prepare(tamis_mlapo **out,
                                                            const tamis_sfa_layer *layer,
                                                            float eps, tamis_error *err);
TAMIS_API void tamis_mlapo_free(tamis_mlapo **mlapo);

/** What else a caller may want of tamis_mlapo_preprocess; NULL: not wanted. */
typedef struct tamis_mlapo_outputs {
    float *q_c;        /* [num_tokens][q_lora_rank] normed low-rank query, bias included */
    float *query_nope; /* [num_tokens][num_heads][kv_lora_rank] absorbed */
    float *query_rope; /* [num_tokens][num_heads][rope] rotated */
    float *latent;     /* [num_tokens][kv_lora_rank] normed, before it is coded for the cache */
    float *key_rope;   /* [num_tokens][rope] rotated */
    bool halves;       /* rotated parts as halves (x0 x1 ... y0 y1 ...: Ascend's layout B) instead
                          of pairs (x0 y0 x1 y1 ...: layout A, which plan and caches have) */
} tamis_mlapo_outputs;

/**
 * tamis_sfa_preprocess with the projections q_a, kv_a and q_b in MLAPO's form; select, attend and
 * output follow as after that. The indexer's projections are the layer's own.
 *
 *   x8 = int8 of x, the scaled value rounded to FP16 first; [kv | q] = bf16((x8 w + bias) deq)
 *   q_c = norm(q) + bias in f32; bf16(q_c) is what the indexer reads, int8 of the f32 values (again
 *   through FP16) is what q_b_proj reads; latent, rotations, absorbed query as in profile ascend
 *
 * args     as tamis_sfa_preprocess; outputs NULL: none. Rows of padding (slot -1) are skipped: not
 *          read, not written
 * numeric  class ordered. Against the unfused path: the FP16 step, q_b_proj's input from f32 instead
 *          of BF16 values, eps; each moves a quantised value by one step at most where it does
 * errors   as tamis_sfa_preprocess; UNSUPPORTED: caches of another profile than ascend; INVALID:
 *          mlapo of another shape than the layer
 * source   csrc mla_preprocess_mix_bf16_qdown.hpp
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_mlapo_preprocess(
    const tamis_mlapo *mlapo, const tamis_sfa_layer *layer, int32_t layer_idx, tamis_sfa_plan *plan,
    tamis_sfa_caches *caches, const float *x, const tamis_mlapo_outputs *outputs, tamis_team *team,
    tamis_error *err);

#ifdef __cplusplus
}
#endif
#endif
