/*
 * How the tensors of a folder are called: one list of weights for all families, and for each family
 * the spellings that its folders use (v4_names.c, sfa_names.c).
 */
#ifndef TAMIS_WEIGHTS_NAMES_H
#define TAMIS_WEIGHTS_NAMES_H

#include "config/model_config.h"

#define TAMIS_NAME_BYTES    256
#define TAMIS_MAX_SPELLINGS 4

typedef enum tamis_weight {
    /* of the model */
    TAMIS_WEIGHT_EMBED,
    TAMIS_WEIGHT_HEAD,
    TAMIS_WEIGHT_NORM,
    TAMIS_WEIGHT_HC_HEAD_FN,
    TAMIS_WEIGHT_HC_HEAD_BASE,
    TAMIS_WEIGHT_HC_HEAD_SCALE,
    /* of a layer */
    TAMIS_WEIGHT_ATTN_NORM,
    TAMIS_WEIGHT_FFN_NORM,
    TAMIS_WEIGHT_HC_ATTN_FN,
    TAMIS_WEIGHT_HC_ATTN_BASE,
    TAMIS_WEIGHT_HC_ATTN_SCALE,
    TAMIS_WEIGHT_HC_FFN_FN,
    TAMIS_WEIGHT_HC_FFN_BASE,
    TAMIS_WEIGHT_HC_FFN_SCALE,
    TAMIS_WEIGHT_WQ_A, /* q_a_proj */
    TAMIS_WEIGHT_Q_NORM,
    TAMIS_WEIGHT_Q_NORM_BIAS, /* V3.2, GLM as Ascend's quantiser leaves them */
    TAMIS_WEIGHT_WQ_B, /* q_b_proj */
    TAMIS_WEIGHT_WKV,  /* V4; the others: KV_A_PROJ, KV_B_PROJ, O_PROJ */
    TAMIS_WEIGHT_KV_NORM,
    TAMIS_WEIGHT_WO_A,
    TAMIS_WEIGHT_WO_B,
    TAMIS_WEIGHT_ATTN_SINK,
    TAMIS_WEIGHT_KV_A_PROJ,
    TAMIS_WEIGHT_KV_B_PROJ,
    TAMIS_WEIGHT_O_PROJ,
    TAMIS_WEIGHT_COMPRESSOR_APE,
    TAMIS_WEIGHT_COMPRESSOR_WKV,
    TAMIS_WEIGHT_COMPRESSOR_WGATE,
    TAMIS_WEIGHT_COMPRESSOR_NORM,
    TAMIS_WEIGHT_INDEX_WQ_B,
    TAMIS_WEIGHT_INDEX_WEIGHTS_PROJ,
    TAMIS_WEIGHT_INDEX_APE, /* V4; the others: WK, K_NORM, K_NORM_BIAS */
    TAMIS_WEIGHT_INDEX_WKV,
    TAMIS_WEIGHT_INDEX_WGATE,
    TAMIS_WEIGHT_INDEX_NORM,
    TAMIS_WEIGHT_INDEX_WK,
    TAMIS_WEIGHT_INDEX_K_NORM,
    TAMIS_WEIGHT_INDEX_K_NORM_BIAS,
    TAMIS_WEIGHT_DENSE_W1, /* MLP of a layer without experts: gate, down, up */
    TAMIS_WEIGHT_DENSE_W2,
    TAMIS_WEIGHT_DENSE_W3,
    TAMIS_WEIGHT_GATE,
    TAMIS_WEIGHT_GATE_BIAS,
    TAMIS_WEIGHT_TID2EID,
    TAMIS_WEIGHT_SHARED_W1,
    TAMIS_WEIGHT_SHARED_W2,
    TAMIS_WEIGHT_SHARED_W3,
    TAMIS_WEIGHT_STACKED_GATE_UP, /* [E, 2 I, H], gate rows first */
    TAMIS_WEIGHT_STACKED_DOWN,    /* [E, H, I] */
    /* of an MTP block, around its layer */
    TAMIS_WEIGHT_MTP_ENORM,
    TAMIS_WEIGHT_MTP_HNORM,
    TAMIS_WEIGHT_MTP_NORM,
    TAMIS_WEIGHT_MTP_EH_PROJ, /* V3.2, GLM; EMBED and HEAD are copies that may be left out */
    TAMIS_WEIGHT_MTP_EMBED,
    TAMIS_WEIGHT_MTP_HEAD,
    TAMIS_WEIGHT_MTP_E_PROJ, /* V4 */
    TAMIS_WEIGHT_MTP_H_PROJ,
    TAMIS_WEIGHT_MTP_HC_HEAD_FN,
    TAMIS_WEIGHT_MTP_HC_HEAD_BASE,
    TAMIS_WEIGHT_MTP_HC_HEAD_SCALE,
    TAMIS_WEIGHT_DSPARK_MAIN_PROJ, /* not run: the mtp.N blocks are another kind of drafter */
    /* of an expert */
    TAMIS_WEIGHT_EXPERT_W1,
    TAMIS_WEIGHT_EXPERT_W2,
    TAMIS_WEIGHT_EXPERT_W3,
    TAMIS_NUM_WEIGHTS
} tamis_weight;

/* Groups of an inspection, in its order. */
typedef enum tamis_weight_group {
    TAMIS_GROUP_EMBEDDING,
    TAMIS_GROUP_NORMS,
    TAMIS_GROUP_ATTENTION,
    TAMIS_GROUP_COMPRESSOR,
    TAMIS_GROUP_INDEXER,
    TAMIS_GROUP_HC,
    TAMIS_GROUP_DENSE_MLP,
    TAMIS_GROUP_ROUTER,
    TAMIS_GROUP_EXPERTS,
    TAMIS_GROUP_SHARED_EXPERTS,
    TAMIS_GROUP_HEAD,
    TAMIS_GROUP_MTP,    /* MTP blocks */
    TAMIS_GROUP_DSPARK, /* what stands in their place in a folder with a DSpark drafter */
    TAMIS_GROUP_UNKNOWN,
    TAMIS_NUM_GROUPS
} tamis_weight_group;

/* The beginning of a name, and where such a tensor belongs; the first that fits counts. */
typedef struct tamis_name_prefix {
    const char *prefix; /* NULL ends the list */
    tamis_weight_group group;
} tamis_name_prefix;

typedef struct tamis_names {
    /* Up to a NULL; the first # stands for the layer, the second for the expert. */
    const char *spellings[TAMIS_NUM_WEIGHTS][TAMIS_MAX_SPELLINGS];
    const tamis_name_prefix *of_model; /* behind "model." */
    const tamis_name_prefix *of_layer; /* behind "layers.#." */
    /* How the first MTP block's names begin in place of "layers.#."; NULL: MTP blocks are the
     * layers from num_hidden_layers on. */
    const char *mtp_prefix;
} tamis_names;

extern const tamis_names tamis_v4_names, tamis_sfa_names;
const tamis_names *tamis_names_of(tamis_family family);

/* Where a weight is looked for. */
typedef struct tamis_weight_place {
    int32_t layer, expert;
    bool is_mtp; /* the layer of the first MTP block, of number num_hidden_layers */
} tamis_weight_place;

/* Writes the i-th spelling of a weight. false: there are no more. */
bool tamis_names_spell(const tamis_names *names, char out[TAMIS_NAME_BYTES], tamis_weight weight,
                       tamis_weight_place place, int i);

/* Names that the scales of a weight may have: i = 0, 1. false: no more, or the name is too long. */
bool tamis_scale_spell(char out[TAMIS_NAME_BYTES], const char *weight, int i);
/* The weight whose scales `name` would hold by its ending; false: not such a name. */
bool tamis_scale_owner(char out[TAMIS_NAME_BYTES], const char *name);

/* Where a tensor belongs by its name. */
typedef struct tamis_tensor_place {
    int32_t layer; /* num_hidden_layers: of the first MTP block; -1: of the model; -2: of a further
                      block, or unknown */
    tamis_weight_group group;
} tamis_tensor_place;

tamis_tensor_place tamis_tensor_place_of(const tamis_model_config *config, const char *name);
/* "embedding", "shared experts", "mtp", ... */
const char *tamis_weight_group_name(tamis_weight_group group);

#endif
