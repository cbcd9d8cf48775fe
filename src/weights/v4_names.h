/*
 * How the tensors of a DeepSeek-V4 folder are called. Three spellings of every layer tensor:
 *
 *   layers.N.attn.wq_a.weight                      the vendor's ("official")
 *   model.layers.N.attn.wq_a.weight                as transformers saves (a few names differ)
 *   model.layers.N.self_attn.q_a_proj.weight       transformers' own module names
 */
#ifndef TAMIS_WEIGHTS_V4_NAMES_H
#define TAMIS_WEIGHTS_V4_NAMES_H

#include "tamis/base.h"

#define TAMIS_V4_NAME_BYTES 256

typedef enum tamis_v4_name {
    /* of the model */
    TAMIS_V4_EMBED,
    TAMIS_V4_HEAD,
    TAMIS_V4_NORM,
    TAMIS_V4_HC_HEAD_FN,
    TAMIS_V4_HC_HEAD_BASE,
    TAMIS_V4_HC_HEAD_SCALE,
    /* of a layer */
    TAMIS_V4_FIRST_OF_LAYER,
    TAMIS_V4_ATTN_NORM = TAMIS_V4_FIRST_OF_LAYER,
    TAMIS_V4_FFN_NORM,
    TAMIS_V4_HC_ATTN_FN,
    TAMIS_V4_HC_ATTN_BASE,
    TAMIS_V4_HC_ATTN_SCALE,
    TAMIS_V4_HC_FFN_FN,
    TAMIS_V4_HC_FFN_BASE,
    TAMIS_V4_HC_FFN_SCALE,
    TAMIS_V4_WQ_A,
    TAMIS_V4_Q_NORM,
    TAMIS_V4_WQ_B,
    TAMIS_V4_WKV,
    TAMIS_V4_KV_NORM,
    TAMIS_V4_WO_A,
    TAMIS_V4_WO_B,
    TAMIS_V4_ATTN_SINK,
    TAMIS_V4_COMPRESSOR_APE,
    TAMIS_V4_COMPRESSOR_WKV,
    TAMIS_V4_COMPRESSOR_WGATE,
    TAMIS_V4_COMPRESSOR_NORM,
    TAMIS_V4_INDEX_WQ_B,
    TAMIS_V4_INDEX_WEIGHTS_PROJ,
    TAMIS_V4_INDEX_APE,
    TAMIS_V4_INDEX_WKV,
    TAMIS_V4_INDEX_WGATE,
    TAMIS_V4_INDEX_NORM,
    TAMIS_V4_GATE,
    TAMIS_V4_GATE_BIAS,
    TAMIS_V4_TID2EID,
    TAMIS_V4_SHARED_W1,
    TAMIS_V4_SHARED_W2,
    TAMIS_V4_SHARED_W3,
    TAMIS_V4_STACKED_GATE_UP, /* [E, 2 I, H], gate rows first */
    TAMIS_V4_STACKED_DOWN,    /* [E, H, I] */
    /* of an expert */
    TAMIS_V4_FIRST_OF_EXPERT,
    TAMIS_V4_EXPERT_W1 = TAMIS_V4_FIRST_OF_EXPERT,
    TAMIS_V4_EXPERT_W2,
    TAMIS_V4_EXPERT_W3,
    TAMIS_V4_NUM_NAMES
} tamis_v4_name;

/*
 * Writes the i-th spelling, the official one first; layer and expert are ignored where the tensor
 * has none. false: there are no more.
 */
bool tamis_v4_name_spell(char out[TAMIS_V4_NAME_BYTES], tamis_v4_name name, int32_t layer,
                         int32_t expert, int i);

/* Names that the scales of a weight may have: i = 0, 1. false: no more, or the name is too long. */
bool tamis_v4_scale_spell(char out[TAMIS_V4_NAME_BYTES], const char *weight, int i);
/* The weight whose scales `name` would hold by its ending; false: not such a name. */
bool tamis_v4_scale_owner(char out[TAMIS_V4_NAME_BYTES], const char *name);

/* Layer of a tensor of a main layer, -1 for tensors of the model, -2 for MTP and unknown names. */
int32_t tamis_v4_tensor_layer(const char *name);

/*
 * Group of a tensor for inspection: "embedding", "norms", "attention", "compressor", "indexer",
 * "hyper-connections", "router", "experts", "shared experts", "head", "mtp" (MTP and DSpark
 * blocks), "unknown".
 */
const char *tamis_v4_tensor_group(const char *name);
/* Order of the groups: 0 .. TAMIS_V4_NUM_GROUPS - 1. */
#define TAMIS_V4_NUM_GROUPS 12
int tamis_v4_tensor_group_idx(const char *name);
const char *tamis_v4_group_name(int group_idx);

#endif
