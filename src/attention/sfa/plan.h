/*
 * A step's plan over V3.2 or GLM layers: what is computed once per step and shared by the layers of
 * a kind, and the workspace of one layer. Layers of one model are nearly always of one kind.
 */
#ifndef TAMIS_ATTENTION_SFA_PLAN_H
#define TAMIS_ATTENTION_SFA_PLAN_H

#include <stdatomic.h>

#include "attention/common/indexer.h"
#include "attention/sfa/caches.h"
#include "core/partition.h"
#include "ops/exec.h"
#include "ops/linear.h"

#define TAMIS_SFA_MAX_KINDS 8

/* Layers with one rotary table and lists of one length. */
typedef struct tamis_sfa_kind {
    tamis_sfa_config config; /* of the first layer of the kind */
    float *freq;             /* [rope / 2] */
    float *cos, *sin;        /* [T][rope / 2] */
    int32_t *list_len;       /* [T] visible or selected tokens */
    tamis_partition attn;    /* tokens, chunks of their lists */
    tamis_partition index;   /* tokens, key blocks to score */
} tamis_sfa_kind;

/* Activations of one layer; T = max_num_batched_tokens, row = kv_lora_rank + rope. */
typedef struct tamis_sfa_workspace {
    float *qa;      /* [T][q_lora_rank]; normed in place */
    float *kv;      /* [T][row] before it is stored */
    float *index_k; /* [T][index_head_dim] before it is stored */
    float *heads;   /* [T][num_heads * (nope + rope)], later [T][num_heads * v] */
    float *q;       /* [T][num_heads * row] absorbed; attention output [num_heads * kv_lora_rank]
                       at the start of a token's row afterwards */
    tamis_indexer indexer;
    tamis_linear_job *jobs; /* [num_heads] */
    float *attn_partials;
    int32_t *given_len;    /* [T] lists that a caller brings */
    tamis_partition given; /* their chunks */
} tamis_sfa_workspace;

/* How far the running layer is; each operator needs the one before it. */
typedef enum tamis_sfa_progress {
    TAMIS_SFA_NOTHING = 0,
    TAMIS_SFA_PREPROCESSED,
    TAMIS_SFA_SELECTED,
    TAMIS_SFA_ATTENDED
} tamis_sfa_progress;

struct tamis_sfa_plan {
    tamis_plan_params params;
    const tamis_sfa_config *layers; /* the caches' copy */
    int32_t n_layers;
    tamis_profile numerics; /* of the caches */
    int32_t *kind_of_layer; /* [n_layers] */
    tamis_sfa_kind kinds[TAMIS_SFA_MAX_KINDS];
    int32_t n_kinds;
    int32_t longest_list;
    tamis_step step;
    bool is_planned;  /* the last build succeeded, be it for no tokens; false: there was none */
    int32_t *visible; /* [T] position + 1 */
    tamis_sfa_workspace ws;
    float *scratch; /* [n_threads][scratch_floats] */
    size_t scratch_floats;
    void *inputs; /* quantised inputs of linear layers, see tamis_exec */
    size_t input_bytes;
    int32_t running_layer; /* of `progress` */
    tamis_sfa_progress progress;
    int32_t selected_by;   /* layer whose selection of this step stands, -1: none */
    atomic_bool has_fault; /* a NaN or infinity came up in the running layer */
    tamis_attn_profile *profile;
    void *memory;
};

#endif
