/*
 * One layer at real dimensions, ready to run: its weights, caches, plan, inputs. Built twice by the
 * same code, once to learn its bytes.
 */
#ifndef TAMIS_MEASURE_RIG_H
#define TAMIS_MEASURE_RIG_H

#include "attention/common/profile.h"
#include "attention/dsa/dsa_internal.h"
#include "attention/sfa/sfa_internal.h"
#include "measure/shapes.h"
#include "measure/work.h"
#include "model/moe.h"

/* Layers of a rig: the measured one is the last; a layer that shares has one to share with. */
#define TAMIS_RIG_MAX_LAYERS 2

typedef struct tamis_rig {
    tamis_bench_layer_params params;
    tamis_model_config config;
    int32_t n_layers, first_layer; /* of the config */
    tamis_dsa_layer dsa[TAMIS_RIG_MAX_LAYERS];
    tamis_sfa_layer sfa[TAMIS_RIG_MAX_LAYERS];
    tamis_moe_weights moe_weights;
    tamis_expert_weights *experts;
    tamis_matrix head;
    const float *norm;
    float *x, *out; /* [num_tokens][hidden_size]; out of the head [num_tokens][vocab_size] */
    void *memory;   /* all of the above */
    uint64_t planned_bytes;

    tamis_team *team;
    tamis_exec exec; /* moe, head */
    tamis_moe moe;
    tamis_dsa_caches *dsa_caches;
    tamis_sfa_caches *sfa_caches;
    tamis_dsa_plan *dsa_plan;
    tamis_sfa_plan *sfa_plan;
    tamis_attn_profile profile;
} tamis_rig;

/* errors: INVALID, UNSUPPORTED, NO_MEMORY; close a rig that failed to open, too */
tamis_status tamis_rig_open(tamis_rig *rig, const tamis_bench_layer_params *params,
                            tamis_error *err);
void tamis_rig_close(tamis_rig *rig);
/* Whatever the measured layer needs of the layers before it in a step. */
tamis_status tamis_rig_prepare(tamis_rig *rig, tamis_error *err);
/* One step of the measured layer. */
tamis_status tamis_rig_run(tamis_rig *rig, tamis_error *err);
/* What the step has to do. */
void tamis_rig_count(const tamis_rig *rig, tamis_work_list *list);

#endif
