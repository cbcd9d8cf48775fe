/*
 * The feed-forward part of a layer: router, K routed experts per token, a shared expert; or, in a
 * dense layer (weights->gate.rows 0), the shared expert alone.
 *
 *   logits = gate . x; s = scoring(logits)
 *   ids: the K largest c = s + bias (ties: lower id), or the token id's row of tid2eid
 *        n_group > 1: only from the topk_group groups of consecutive experts whose two largest c
 *        have the largest sums (ties: lower group)
 *   w_j = s_j / (sum_j s_j + 1e-20) if norm_topk_prob, times routed_scaling_factor
 *   e(x) = w2 . (silu(min(w1 . x, limit)) clamp(w3 . x, -limit, limit))
 *   y = sum_j w_j e_j(x) + e_shared(x)
 *
 * A token's experts are kept in ascending order of their ids; both sums run in that order, the
 * shared expert is added last. Tokens are grouped by expert only to read each weight once: a row
 * of the linear kernel does not depend on its neighbours, so the grouping does not show.
 *
 * Profiles official and ascend: the router stays in f32; w1 . x, w3 . x, the product, e_j and y are
 * rounded to BF16, the sum is f32. V4's vendor multiplies w_j into the product before it is rounded
 * and w2 reads it: y = sum_j (w2 . bf16(w_j h_j)) + e_shared(x).
 * Source: V4 and V3.2 references inference/model.py (Gate, Expert, MoE, MLP).
 */
#ifndef TAMIS_MODEL_MOE_H
#define TAMIS_MODEL_MOE_H

#include "config/model_config.h"
#include "core/arena.h"
#include "ops/exec.h"
#include "ops/linear.h"
#include "weights/model_weights.h"

/* Routing and activations of the layer that runs; T = max_tokens, K = num_experts_per_tok,
 * D = intermediate_size. */
typedef struct tamis_moe {
    const tamis_model_config *config;
    int32_t max_tokens;
    float *scores;          /* [T][n_routed_experts] logits, then scores */
    int32_t *ids;           /* [T][K] ascending */
    float *weights;         /* [T][K] */
    int32_t *first_row;     /* [n_routed_experts + 1] rows of an expert, in order of tokens */
    int32_t *row_of;        /* [T][K] */
    int32_t *token_of;      /* [T K] */
    float *row_weights;     /* [T K] weight of a row */
    float *rows;            /* [T K][H] inputs by expert, later their outputs */
    float *gate, *up;       /* [T K][I], then the shared expert's [T][I n_shared]; dense [T][D] */
    tamis_linear_job *jobs; /* [2 (n_routed_experts + 1)] */
} tamis_moe;

/* Takes the arrays; config and max_tokens must be set. */
void tamis_moe_layout(tamis_moe *moe, tamis_arena *arena);
size_t tamis_moe_scratch_floats(const tamis_model_config *config); /* per thread */
/* Room for quantised inputs (tamis_exec) of n_tokens tokens; not in profile exact. */
size_t tamis_moe_input_bytes(const tamis_model_config *config, int64_t n_tokens);

/*
 * y [n_tokens][H] from x [n_tokens][H]; tokens [n_tokens] are the ids (hash layers). Afterwards ids
 * and weights hold the routing, but for dense layers: these leave them alone.
 * false: a router logit or score was NaN or infinite, or what a static int8 w2 codes was and would be
 * hidden; y is then undefined.
 */
bool tamis_moe_forward(tamis_moe *moe, const tamis_exec *exec, const tamis_moe_weights *weights,
                       const int32_t *tokens, const float *x, int64_t n_tokens, float *y);

#endif
