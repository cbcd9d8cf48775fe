/*
 * DeepSeek-V3.2 and GLM-5 / 5.1 / 5.2: the vendors and transformers use the same names. Experts
 * stand one by one, or stacked as transformers' modules hold them. MTP blocks are further layers.
 */
#include "weights/names.h"

#define LAYER(rest)                                                                                \
    {                                                                                              \
        "model.layers.#." rest                                                                     \
    }
#define EXPERT(rest)                                                                               \
    {                                                                                              \
        "model.layers.#.mlp.experts.#." rest                                                       \
    }

static const tamis_name_prefix of_model[] = {
    {"embed_tokens.", TAMIS_GROUP_EMBEDDING},
    {"lm_head.", TAMIS_GROUP_HEAD},
    {"norm.", TAMIS_GROUP_NORMS},
    {NULL, TAMIS_GROUP_UNKNOWN},
};

static const tamis_name_prefix of_layer[] = {
    {"input_layernorm.", TAMIS_GROUP_NORMS},
    {"post_attention_layernorm.", TAMIS_GROUP_NORMS},
    {"self_attn.indexer.", TAMIS_GROUP_INDEXER},
    {"self_attn.", TAMIS_GROUP_ATTENTION},
    {"mlp.gate.", TAMIS_GROUP_ROUTER},
    {"mlp.experts.", TAMIS_GROUP_EXPERTS},
    {"mlp.shared_experts.", TAMIS_GROUP_SHARED_EXPERTS},
    {"mlp.gate_proj.", TAMIS_GROUP_DENSE_MLP},
    {"mlp.up_proj.", TAMIS_GROUP_DENSE_MLP},
    {"mlp.down_proj.", TAMIS_GROUP_DENSE_MLP},
    {NULL, TAMIS_GROUP_UNKNOWN},
};

const tamis_names tamis_sfa_names = {
    .spellings =
        {
            [TAMIS_WEIGHT_EMBED] = {"model.embed_tokens.weight"},
            [TAMIS_WEIGHT_HEAD] = {"lm_head.weight"},
            [TAMIS_WEIGHT_NORM] = {"model.norm.weight"},
            [TAMIS_WEIGHT_ATTN_NORM] = LAYER("input_layernorm.weight"),
            [TAMIS_WEIGHT_FFN_NORM] = LAYER("post_attention_layernorm.weight"),
            [TAMIS_WEIGHT_WQ_A] = LAYER("self_attn.q_a_proj.weight"),
            [TAMIS_WEIGHT_Q_NORM] = LAYER("self_attn.q_a_layernorm.weight"),
            [TAMIS_WEIGHT_Q_NORM_BIAS] = LAYER("self_attn.q_a_layernorm.bias"),
            [TAMIS_WEIGHT_WQ_B] = LAYER("self_attn.q_b_proj.weight"),
            [TAMIS_WEIGHT_KV_A_PROJ] = LAYER("self_attn.kv_a_proj_with_mqa.weight"),
            [TAMIS_WEIGHT_KV_NORM] = LAYER("self_attn.kv_a_layernorm.weight"),
            [TAMIS_WEIGHT_KV_B_PROJ] = LAYER("self_attn.kv_b_proj.weight"),
            [TAMIS_WEIGHT_O_PROJ] = LAYER("self_attn.o_proj.weight"),
            [TAMIS_WEIGHT_INDEX_WQ_B] = LAYER("self_attn.indexer.wq_b.weight"),
            [TAMIS_WEIGHT_INDEX_WK] = LAYER("self_attn.indexer.wk.weight"),
            [TAMIS_WEIGHT_INDEX_K_NORM] = LAYER("self_attn.indexer.k_norm.weight"),
            [TAMIS_WEIGHT_INDEX_K_NORM_BIAS] = LAYER("self_attn.indexer.k_norm.bias"),
            [TAMIS_WEIGHT_INDEX_WEIGHTS_PROJ] = LAYER("self_attn.indexer.weights_proj.weight"),
            [TAMIS_WEIGHT_DENSE_W1] = LAYER("mlp.gate_proj.weight"),
            [TAMIS_WEIGHT_DENSE_W2] = LAYER("mlp.down_proj.weight"),
            [TAMIS_WEIGHT_DENSE_W3] = LAYER("mlp.up_proj.weight"),
            [TAMIS_WEIGHT_GATE] = LAYER("mlp.gate.weight"),
            [TAMIS_WEIGHT_GATE_BIAS] = LAYER("mlp.gate.e_score_correction_bias"),
            [TAMIS_WEIGHT_SHARED_W1] = LAYER("mlp.shared_experts.gate_proj.weight"),
            [TAMIS_WEIGHT_SHARED_W2] = LAYER("mlp.shared_experts.down_proj.weight"),
            [TAMIS_WEIGHT_SHARED_W3] = LAYER("mlp.shared_experts.up_proj.weight"),
            [TAMIS_WEIGHT_STACKED_GATE_UP] = LAYER("mlp.experts.gate_up_proj"),
            [TAMIS_WEIGHT_STACKED_DOWN] = LAYER("mlp.experts.down_proj"),
            [TAMIS_WEIGHT_MTP_ENORM] = LAYER("enorm.weight"),
            [TAMIS_WEIGHT_MTP_HNORM] = LAYER("hnorm.weight"),
            [TAMIS_WEIGHT_MTP_NORM] = LAYER("shared_head.norm.weight"),
            [TAMIS_WEIGHT_MTP_EH_PROJ] = LAYER("eh_proj.weight"),
            [TAMIS_WEIGHT_MTP_EMBED] = LAYER("embed_tokens.weight"),
            [TAMIS_WEIGHT_MTP_HEAD] = LAYER("shared_head.head.weight"),
            [TAMIS_WEIGHT_EXPERT_W1] = EXPERT("gate_proj.weight"),
            [TAMIS_WEIGHT_EXPERT_W2] = EXPERT("down_proj.weight"),
            [TAMIS_WEIGHT_EXPERT_W3] = EXPERT("up_proj.weight"),
        },
    .of_model = of_model,
    .of_layer = of_layer,
};
