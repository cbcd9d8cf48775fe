/*
 * DeepSeek-V4. Three spellings of every layer tensor:
 *
 *   layers.N.attn.wq_a.weight                      the vendor's ("official")
 *   model.layers.N.attn.wq_a.weight                as transformers saves (a few names differ)
 *   model.layers.N.self_attn.q_a_proj.weight       transformers' own module names
 *
 * and of the first MTP block mtp.0.attn.wq_a.weight.
 */
#include "weights/names.h"

#define LAYER(official, module)                                                                    \
    {                                                                                              \
        "layers.#." official, "model.layers.#." official, "model.layers.#." module                 \
    }
#define LAYER2(official, module, module2)                                                          \
    {                                                                                              \
        "layers.#." official, "model.layers.#." official, "model.layers.#." module,                \
            "model.layers.#." module2                                                              \
    }
#define EXPERT(official, module) LAYER("ffn.experts.#." official, "mlp.experts.#." module)

static const tamis_name_prefix of_model[] = {
    {"mtp.", TAMIS_GROUP_MTP},
    {"embed.", TAMIS_GROUP_EMBEDDING},
    {"embed_tokens.", TAMIS_GROUP_EMBEDDING},
    {"head.", TAMIS_GROUP_HEAD},
    {"lm_head.", TAMIS_GROUP_HEAD},
    {"norm.", TAMIS_GROUP_NORMS},
    {"hc_head_", TAMIS_GROUP_HC},
    {"hc_head.", TAMIS_GROUP_HC},
    {NULL, TAMIS_GROUP_UNKNOWN},
};

static const tamis_name_prefix of_layer[] = {
    {"attn_norm.", TAMIS_GROUP_NORMS},
    {"ffn_norm.", TAMIS_GROUP_NORMS},
    {"input_layernorm.", TAMIS_GROUP_NORMS},
    {"post_attention_layernorm.", TAMIS_GROUP_NORMS},
    {"hc_attn_", TAMIS_GROUP_HC},
    {"hc_ffn_", TAMIS_GROUP_HC},
    {"attn_hc.", TAMIS_GROUP_HC},
    {"ffn_hc.", TAMIS_GROUP_HC},
    {"attn.indexer.", TAMIS_GROUP_INDEXER},
    {"self_attn.compressor.indexer.", TAMIS_GROUP_INDEXER},
    {"attn.compressor.", TAMIS_GROUP_COMPRESSOR},
    {"self_attn.compressor.", TAMIS_GROUP_COMPRESSOR},
    {"attn.", TAMIS_GROUP_ATTENTION},
    {"self_attn.", TAMIS_GROUP_ATTENTION},
    {"ffn.gate.", TAMIS_GROUP_ROUTER},
    {"mlp.gate.", TAMIS_GROUP_ROUTER},
    {"ffn.experts.", TAMIS_GROUP_EXPERTS},
    {"mlp.experts.", TAMIS_GROUP_EXPERTS},
    {"ffn.shared_experts.", TAMIS_GROUP_SHARED_EXPERTS},
    {"mlp.shared_experts.", TAMIS_GROUP_SHARED_EXPERTS},
    {NULL, TAMIS_GROUP_UNKNOWN},
};

const tamis_names tamis_v4_names = {
    .spellings =
        {
            [TAMIS_WEIGHT_EMBED] = {"embed.weight", "model.embed_tokens.weight",
                                    "embed_tokens.weight"},
            [TAMIS_WEIGHT_HEAD] = {"head.weight", "lm_head.weight", "model.head.weight"},
            [TAMIS_WEIGHT_NORM] = {"norm.weight", "model.norm.weight"},
            [TAMIS_WEIGHT_HC_HEAD_FN] = {"hc_head_fn", "model.hc_head.hc_fn", "hc_head.hc_fn"},
            [TAMIS_WEIGHT_HC_HEAD_BASE] = {"hc_head_base", "model.hc_head.hc_base",
                                           "hc_head.hc_base"},
            [TAMIS_WEIGHT_HC_HEAD_SCALE] = {"hc_head_scale", "model.hc_head.hc_scale",
                                            "hc_head.hc_scale"},
            [TAMIS_WEIGHT_ATTN_NORM] = LAYER("attn_norm.weight", "input_layernorm.weight"),
            [TAMIS_WEIGHT_FFN_NORM] = LAYER("ffn_norm.weight", "post_attention_layernorm.weight"),
            [TAMIS_WEIGHT_HC_ATTN_FN] = LAYER("hc_attn_fn", "attn_hc.fn"),
            [TAMIS_WEIGHT_HC_ATTN_BASE] = LAYER("hc_attn_base", "attn_hc.base"),
            [TAMIS_WEIGHT_HC_ATTN_SCALE] = LAYER("hc_attn_scale", "attn_hc.scale"),
            [TAMIS_WEIGHT_HC_FFN_FN] = LAYER("hc_ffn_fn", "ffn_hc.fn"),
            [TAMIS_WEIGHT_HC_FFN_BASE] = LAYER("hc_ffn_base", "ffn_hc.base"),
            [TAMIS_WEIGHT_HC_FFN_SCALE] = LAYER("hc_ffn_scale", "ffn_hc.scale"),
            [TAMIS_WEIGHT_WQ_A] = LAYER("attn.wq_a.weight", "self_attn.q_a_proj.weight"),
            [TAMIS_WEIGHT_Q_NORM] = LAYER("attn.q_norm.weight", "self_attn.q_a_norm.weight"),
            [TAMIS_WEIGHT_WQ_B] = LAYER("attn.wq_b.weight", "self_attn.q_b_proj.weight"),
            [TAMIS_WEIGHT_WKV] = LAYER("attn.wkv.weight", "self_attn.kv_proj.weight"),
            [TAMIS_WEIGHT_KV_NORM] =
                LAYER2("attn.kv_norm.weight", "attn.norm.weight", "self_attn.kv_norm.weight"),
            [TAMIS_WEIGHT_WO_A] = LAYER("attn.wo_a.weight", "self_attn.o_a_proj.weight"),
            [TAMIS_WEIGHT_WO_B] = LAYER("attn.wo_b.weight", "self_attn.o_b_proj.weight"),
            [TAMIS_WEIGHT_ATTN_SINK] = LAYER("attn.attn_sink", "self_attn.sinks"),
            [TAMIS_WEIGHT_COMPRESSOR_APE] =
                LAYER("attn.compressor.ape", "self_attn.compressor.position_bias"),
            [TAMIS_WEIGHT_COMPRESSOR_WKV] =
                LAYER("attn.compressor.wkv.weight", "self_attn.compressor.kv_proj.weight"),
            [TAMIS_WEIGHT_COMPRESSOR_WGATE] =
                LAYER("attn.compressor.wgate.weight", "self_attn.compressor.gate_proj.weight"),
            [TAMIS_WEIGHT_COMPRESSOR_NORM] =
                LAYER("attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight"),
            [TAMIS_WEIGHT_INDEX_WQ_B] =
                LAYER("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight"),
            [TAMIS_WEIGHT_INDEX_WEIGHTS_PROJ] =
                LAYER2("attn.indexer.weights_proj.weight",
                       "self_attn.compressor.indexer.weights_proj.weight",
                       "self_attn.compressor.indexer.scorer.weights_proj.weight"),
            [TAMIS_WEIGHT_INDEX_APE] =
                LAYER("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
            [TAMIS_WEIGHT_INDEX_WKV] = LAYER("attn.indexer.compressor.wkv.weight",
                                             "self_attn.compressor.indexer.kv_proj.weight"),
            [TAMIS_WEIGHT_INDEX_WGATE] = LAYER("attn.indexer.compressor.wgate.weight",
                                               "self_attn.compressor.indexer.gate_proj.weight"),
            [TAMIS_WEIGHT_INDEX_NORM] = LAYER("attn.indexer.compressor.norm.weight",
                                              "self_attn.compressor.indexer.kv_norm.weight"),
            [TAMIS_WEIGHT_GATE] = LAYER("ffn.gate.weight", "mlp.gate.weight"),
            [TAMIS_WEIGHT_GATE_BIAS] = LAYER("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
            [TAMIS_WEIGHT_TID2EID] = LAYER("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
            [TAMIS_WEIGHT_SHARED_W1] =
                LAYER("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight"),
            [TAMIS_WEIGHT_SHARED_W2] =
                LAYER("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight"),
            [TAMIS_WEIGHT_SHARED_W3] =
                LAYER("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight"),
            [TAMIS_WEIGHT_STACKED_GATE_UP] =
                LAYER("ffn.experts.gate_up_proj", "mlp.experts.gate_up_proj"),
            [TAMIS_WEIGHT_STACKED_DOWN] = LAYER("ffn.experts.down_proj", "mlp.experts.down_proj"),
            [TAMIS_WEIGHT_MTP_ENORM] = {"layers.#.enorm.weight"},
            [TAMIS_WEIGHT_MTP_HNORM] = {"layers.#.hnorm.weight"},
            [TAMIS_WEIGHT_MTP_NORM] = {"layers.#.norm.weight"},
            [TAMIS_WEIGHT_MTP_E_PROJ] = {"layers.#.e_proj.weight"},
            [TAMIS_WEIGHT_MTP_H_PROJ] = {"layers.#.h_proj.weight"},
            [TAMIS_WEIGHT_MTP_HC_HEAD_FN] = {"layers.#.hc_head_fn"},
            [TAMIS_WEIGHT_MTP_HC_HEAD_BASE] = {"layers.#.hc_head_base"},
            [TAMIS_WEIGHT_MTP_HC_HEAD_SCALE] = {"layers.#.hc_head_scale"},
            [TAMIS_WEIGHT_DSPARK_MAIN_PROJ] = {"layers.#.main_proj.weight"},
            [TAMIS_WEIGHT_EXPERT_W1] = EXPERT("w1.weight", "gate_proj.weight"),
            [TAMIS_WEIGHT_EXPERT_W2] = EXPERT("w2.weight", "down_proj.weight"),
            [TAMIS_WEIGHT_EXPERT_W3] = EXPERT("w3.weight", "up_proj.weight"),
        },
    .of_model = of_model,
    .of_layer = of_layer,
    .mtp_prefix = "mtp.0.",
};
