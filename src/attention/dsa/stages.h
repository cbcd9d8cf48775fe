/* The stages of one V4 layer between its linear layers; forward.c puts them in order. */
#ifndef TAMIS_ATTENTION_DSA_STAGES_H
#define TAMIS_ATTENTION_DSA_STAGES_H

#include "attention/common/compressor.h"
#include "attention/dsa/plan.h"

/* One call of tamis_dsa_forward: everything the stages read, resolved once. */
typedef struct tamis_dsa_call {
    const tamis_dsa_config *config;
    const tamis_dsa_weights *weights;
    tamis_dsa_plan *plan;
    const tamis_dsa_kind *kind;
    tamis_exec exec;
    const tamis_cache *window, *ckv, *index_key;
    tamis_compressor compressor;       /* ratio 4 and 128 */
    tamis_compressor index_compressor; /* ratio 4 with own selection */
    bool has_compressor, has_indexer;
} tamis_dsa_call;

tamis_dsa_call tamis_dsa_call_make(const tamis_dsa_layer *layer, int32_t layer_idx,
                                   tamis_dsa_plan *plan, const tamis_dsa_caches *caches,
                                   tamis_team *team);

/* Q2, K2, C1: norms of qa and kv, kv rotated and coded as its row, ape. */
void tamis_dsa_prepare_inputs(tamis_dsa_call *call);
/* Q4, I2, W1, C2, J2: head norm and rotation of q, index q and its head weights as the scores read
 * them, rows closed and stored. */
void tamis_dsa_close_rows_and_rotate(tamis_dsa_call *call);
/* S1: index scores and top-k. */
void tamis_dsa_select(tamis_dsa_call *call);
/* A1 and the inverse rotation: q becomes o in place. */
void tamis_dsa_run_attend(tamis_dsa_call *call);
/* K3, C3: this step's rows go into the rings, whose history nobody needs any more. */
void tamis_dsa_keep_history(tamis_dsa_call *call);

#endif
