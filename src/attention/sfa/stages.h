/* The stages of one V3.2 or GLM layer between its linear layers; forward.c puts them in order. */
#ifndef TAMIS_ATTENTION_SFA_STAGES_H
#define TAMIS_ATTENTION_SFA_STAGES_H

#include "attention/sfa/plan.h"

/* One call of an operator: everything the stages read, resolved once. */
typedef struct tamis_sfa_call {
    const tamis_sfa_config *config;
    const tamis_sfa_weights *weights;
    tamis_sfa_plan *plan;
    const tamis_sfa_kind *kind;
    tamis_exec exec;
    const tamis_cache *latent, *index_key; /* index_key NULL: no indexer */
} tamis_sfa_call;

tamis_sfa_call tamis_sfa_call_make(const tamis_sfa_layer *layer, int32_t layer_idx,
                                   tamis_sfa_plan *plan, const tamis_sfa_caches *caches,
                                   tamis_team *team);
void tamis_sfa_report(const tamis_sfa_call *call, bool is_finite);

/* Q2, K2, J2, W1: norms, rotations and cache rows of the step's tokens; index weights scaled. */
void tamis_sfa_store_rows(tamis_sfa_call *call);
/* Q4, I2: rotated parts of the queries; the absorbed part of q is still missing. */
void tamis_sfa_rotate_queries(tamis_sfa_call *call);
/* S1 */
void tamis_sfa_run_select(tamis_sfa_call *call);
/* A1 over the layer's own lists, or over given ones of num_indices entries a token. */
void tamis_sfa_run_attend(tamis_sfa_call *call, const int32_t *indices, int32_t num_indices,
                          float *lse);

#endif
