/*
 * The weights of a main model, bound from a checkpoint to what the layers read; one struct for all
 * families.
 *
 * Matrices point into the mapping; vectors (norms, sinks, ape, biases, hyper-connection base and
 * scale) are widened to f32 copies once. A first MTP block is bound whenever one of its tensors is
 * there; further ones and DSpark drafters stay unbound and unused.
 */
#ifndef TAMIS_WEIGHTS_MODEL_WEIGHTS_H
#define TAMIS_WEIGHTS_MODEL_WEIGHTS_H

#include "config/model_config.h"
#include "weights/checkpoint.h"
#include "weights/names.h"
#include "weights/weight_fault.h"

/* One hyper-connection site; m = hc_mult. */
typedef struct tamis_hc_weights {
    tamis_matrix fn;    /* [(2 + m) m][m * hidden_size]; head: [m][m * hidden_size] */
    const float *base;  /* [(2 + m) m]; head: [m] */
    const float *scale; /* [3]; head: [1] */
} tamis_hc_weights;

typedef struct tamis_expert_weights {
    tamis_matrix w1, w3; /* gate, up: [moe_intermediate_size][hidden_size] */
    tamis_matrix w2;     /* down: [hidden_size][moe_intermediate_size] */
} tamis_expert_weights;

/* A dense layer is its shared expert alone: gate.rows 0, width intermediate_size. */
typedef struct tamis_moe_weights {
    tamis_matrix gate;   /* [n_routed_experts][hidden_size] */
    const float *bias;   /* [n_routed_experts]; NULL in hash layers */
    const void *tid2eid; /* hash layers: [vocab_size][num_experts_per_tok] I64, any alignment,
                            values checked; NULL in learned layers */
    tamis_expert_weights *experts; /* [n_routed_experts] */
    tamis_expert_weights shared; /* width moe_intermediate_size * n_shared_experts; rows 0: none */
} tamis_moe_weights;

typedef struct tamis_layer_weights {
    tamis_dsa_layer dsa;               /* V4 */
    tamis_sfa_layer sfa;               /* V3.2, GLM */
    const float *attn_norm, *ffn_norm; /* [hidden_size] */
    tamis_hc_weights hc_attn, hc_ffn;  /* V4 */
    tamis_moe_weights moe;
} tamis_layer_weights;

/* What an MTP block has around its layer. V4: mtp.0; V3.2, GLM: the layer behind the last. */
typedef struct tamis_mtp_weights {
    const float *enorm,
        *hnorm; /* [hidden_size] of the next token's embedding, of the hidden state */
    tamis_matrix e_proj, h_proj; /* V4: [hidden_size][hidden_size] */
    tamis_matrix eh_proj;        /* V3.2, GLM: [hidden_size][2 hidden_size], embedding half first */
    const float *norm;           /* [hidden_size] before the head */
    tamis_hc_weights hc_head;    /* V4 */
    tamis_matrix embed, head;    /* the block's own copies, or the main model's */
} tamis_mtp_weights;

/* What stands where an MTP block may stand. */
typedef enum tamis_mtp_kind {
    TAMIS_MTP_NONE = 0,
    TAMIS_MTP_BLOCK,
    TAMIS_MTP_DSPARK, /* V4: another kind of drafter under the same names (mtp.0.main_proj) */
    TAMIS_MTP_ROTATED /* a block that needs a rotation which tamis does not make (is_rot_used) */
} tamis_mtp_kind;

typedef struct tamis_model_weights {
    tamis_matrix embed, head; /* [vocab_size][hidden_size] */
    const float *norm;        /* [hidden_size] */
    tamis_hc_weights hc_head; /* V4 */
    int32_t n_layers;         /* main layers */
    tamis_mtp_kind mtp_kind;
    int32_t n_mtp; /* 0 or 1: an MTP block that can draft, its layer is layers[n_layers] */
    tamis_layer_weights *layers; /* [n_layers + n_mtp] */
    tamis_mtp_weights mtp;
    uint64_t mapped_bytes;  /* of the tensors used in place */
    uint64_t widened_bytes; /* what this object holds: f32 copies of vectors, and its tables */
} tamis_model_weights;

/*
 * errors: FORMAT (missing tensor, one that the model has no use for, shape, scales, an expert id
 * out of range: file, tensor, value seen and allowed), UNSUPPORTED (a dtype that tamis does not
 * run), NO_MEMORY. Marks what it binds as used. The checkpoint must outlive the weights.
 */
tamis_status tamis_model_weights_bind(tamis_model_weights **out, tamis_checkpoint *checkpoint,
                                      const tamis_model_config *config, tamis_error *err);
void tamis_model_weights_free(tamis_model_weights **weights);

#endif
