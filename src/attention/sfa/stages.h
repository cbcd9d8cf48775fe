/*
 * What the operators of a V3.2 or GLM layer are made of: checks (forward.c), linear layers
 * (projections.c) and the stages between them (stages.c). Letters and numbers are the stages of the
 * dependency graph in docs/architecture.md.
 */
#ifndef TAMIS_ATTENTION_SFA_STAGES_H
#define TAMIS_ATTENTION_SFA_STAGES_H

#include "attention/common/profile.h"
#include "attention/sfa/plan.h"

/* One call of an operator: everything the stages read, resolved once. */
typedef struct tamis_sfa_call {
    const tamis_sfa_config *config;
    const tamis_sfa_weights *weights;
    tamis_sfa_plan *plan;
    const tamis_sfa_kind *kind;
    tamis_exec exec;
    const tamis_cache *latent, *index_key; /* index_key NULL: no indexer */
    const tamis_mlapo
        *mlapo; /* instead of q_a, kv_a and q_b: rotated parts come as halves; or NULL */
} tamis_sfa_call;

tamis_sfa_call tamis_sfa_call_make(const tamis_sfa_layer *layer, int32_t layer_idx,
                                   tamis_sfa_plan *plan, const tamis_sfa_caches *caches,
                                   tamis_team *team);

/* ---------------------------------------------------------------- around an operator */

/* Misuse that would corrupt memory or give wrong numbers; cheap beside one matrix row. */
tamis_status tamis_sfa_check_call(const tamis_sfa_layer *layer, int32_t layer_idx,
                                  const tamis_sfa_plan *plan, const tamis_sfa_caches *caches,
                                  const tamis_team *team, tamis_error *err);
void tamis_sfa_report(const tamis_sfa_call *call, bool is_finite);
void tamis_sfa_book(const tamis_sfa_call *call, tamis_attn_stage stage, uint64_t *since);
/* How far the layer is now. errors: FORMAT if something was reported that is not finite */
tamis_status tamis_sfa_finish(tamis_sfa_plan *plan, int32_t layer_idx, tamis_sfa_progress progress,
                              tamis_error *err);

/* ---------------------------------------------------------------- linear layers */

/* Q1, K1, J1, W1: everything that reads x, side by side. */
void tamis_sfa_project_inputs(const tamis_sfa_call *call, const float *x);
/* Q3, I1: both queries come from the normed low-rank query. */
void tamis_sfa_project_queries(const tamis_sfa_call *call);
/* The indexer's share of the two: J1, W1; I1. */
void tamis_sfa_project_index_inputs(const tamis_sfa_call *call, const float *x);
void tamis_sfa_project_index_queries(const tamis_sfa_call *call);
/* Q5 */
void tamis_sfa_absorb(const tamis_sfa_call *call);
/* O1: latents of the heads become values, then the layer's output. */
void tamis_sfa_project_output(const tamis_sfa_call *call, float *out);

/* Int8 row `token` of plan->inputs = x, W8A8 static with MLAPO's FP16 step. */
void tamis_mlapo_quantize(const tamis_sfa_call *call, const tamis_matrix *w, const float *x,
                          int64_t token);

/* ---------------------------------------------------------------- stages */

/* Q2, K2, J2: norms, rotations and cache rows of the step's tokens; x is looked at for NaN only. */
void tamis_sfa_store_rows(tamis_sfa_call *call, const float *x);
/* Q4, I2, W1: rotated parts of the queries and the indexer's weights; the absorbed part of q is
 * still missing. */
void tamis_sfa_prepare_queries(tamis_sfa_call *call);
/* S1 */
void tamis_sfa_run_select(tamis_sfa_call *call);
/* A1 over the layer's own lists, or over given ones of num_indices entries a token. */
void tamis_sfa_run_attend(tamis_sfa_call *call, const int32_t *indices, int32_t num_indices,
                          float *lse);

#endif
