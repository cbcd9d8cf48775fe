/*
 * A step's plan over V4 layers: what the seeds' metadata builders compute once per step and share
 * between the layers of a kind, and the workspace of one layer.
 */
#ifndef TAMIS_ATTENTION_DSA_PLAN_H
#define TAMIS_ATTENTION_DSA_PLAN_H

#include <stdatomic.h>

#include "attention/common/indexer.h"
#include "attention/dsa/caches.h"
#include "core/partition.h"
#include "ops/exec.h"
#include "plan/closed_rows.h"

#define TAMIS_DSA_MAX_KINDS 16

/* Layers with one geometry and one rotary table. */
typedef struct tamis_dsa_kind {
    tamis_dsa_config config;  /* of the first layer of the kind */
    float *freq;              /* [rope_head_dim / 2] */
    float *cos, *sin;         /* [max_tokens][rope_head_dim / 2] */
    tamis_closed_rows rows;   /* ratio > 0 */
    float *row_cos, *row_sin; /* [rows capacity][rope_head_dim / 2] at position j * ratio */
    int32_t *visible;         /* [max_tokens] compressed rows the token may see */
    int32_t *list_len;        /* [max_tokens] places: window + compressed or selected */
    tamis_partition attn;     /* tokens, chunks of their lists */
    tamis_partition index;    /* tokens, key blocks to score (ratio 4) */
} tamis_dsa_kind;

/* Activations of one layer; T = max_tokens. */
typedef struct tamis_dsa_workspace {
    float *qa;          /* [T][q_lora_rank]; normed in place */
    float *kv;          /* [T][head_dim] */
    uint8_t *kv_rows;   /* [T][row_bytes of the window cache]: rows of this step */
    float *state;       /* [T][2 * width] u | z of the main compressor */
    float *index_state; /* [T][2 * width] of the indexer's */
    float *q;           /* [T][num_heads * head_dim]; attention output in place */
    tamis_indexer indexer;
    float *low; /* [T][o_groups * o_lora_rank] */
    float *attn_partials;
} tamis_dsa_workspace;

struct tamis_dsa_plan {
    tamis_plan_params params;
    const tamis_dsa_config *layers; /* the caches' copy */
    int32_t n_layers;
    tamis_profile numerics; /* of the caches */
    int32_t kv_row_bytes;   /* of the widest layer */
    int32_t *kind_of_layer; /* [n_layers] */
    tamis_dsa_kind kinds[TAMIS_DSA_MAX_KINDS];
    int32_t n_kinds;
    int32_t max_chunks; /* that attention keeps of a list: see tamis_attn_job */
    tamis_step step;
    bool is_planned; /* the last build succeeded, be it for no tokens; false: there was none */
    tamis_dsa_workspace ws;
    float *scratch; /* [n_threads][scratch_floats] */
    size_t scratch_floats;
    void *inputs; /* quantised inputs of linear layers, see tamis_exec */
    size_t input_bytes;
    int32_t preprocessed;  /* layer whose rows are in place and that has not attended, -1: none */
    atomic_bool has_fault; /* a NaN or infinity came up in the running layer */
    tamis_attn_profile *profile; /* NULL: off */
    void *memory;
};

tamis_indexer_dims tamis_dsa_index_dims(const tamis_dsa_config *config);

/* First position of the window of the token at pos. */
static inline int32_t tamis_dsa_window_start(const tamis_dsa_config *config, int32_t pos)
{
    return pos < config->sliding_window ? 0 : pos - config->sliding_window + 1;
}
/*
 * Places that the window has in the token's list, positions from its start on. The vendor's lists
 * have sliding_window of them, those behind the token's own position empty: where a block of 64
 * places ends decides which running maximum a weight is rounded under.
 */
static inline int32_t tamis_dsa_window_places(const tamis_dsa_plan *plan,
                                              const tamis_dsa_config *config, int32_t pos)
{
    return plan->numerics == TAMIS_PROFILE_OFFICIAL ? config->sliding_window
                                                    : pos + 1 - tamis_dsa_window_start(config, pos);
}

#endif
