#include "model/numerics_table.h"

#include "weights/model_weights.h"

#define LAYER(field)  TAMIS_BASE_LAYER, offsetof(tamis_layer_weights, field)
#define MODEL(field)  TAMIS_BASE_MODEL, offsetof(tamis_model_weights, field)
#define EXPERT(field) TAMIS_BASE_EXPERT, offsetof(tamis_expert_weights, field)
#define NO_WEIGHTS    TAMIS_BASE_NONE, 0

#define BY_WEIGHTS                                                                                 \
    {                                                                                              \
        NULL                                                                                       \
    }
#define OFFICIAL  (1u << TAMIS_PROFILE_OFFICIAL)
#define NOT_EXACT (1u << TAMIS_PROFILE_OFFICIAL | 1u << TAMIS_PROFILE_ASCEND)

#define F32                                                                                        \
    {                                                                                              \
        "f32"                                                                                      \
    }
#define BF16                                                                                       \
    {                                                                                              \
        "f32", "bf16"                                                                              \
    }
#define CACHE_ROW                                                                                  \
    {                                                                                              \
        "row", "bf16, then row"                                                                    \
    }
#define NO_ROWS TAMIS_STAGE_ROWS_NONE

#define SOURCE_OF(part, ascend)                                                                    \
    {                                                                                              \
        "numerics.md", "model.py " part, ascend                                                    \
    }
#define V4_SOURCE(part)  SOURCE_OF(part, "dsa_v1.py")
#define SFA_SOURCE(part) SOURCE_OF(part, "sfa_v1.py")
#define MODEL_SOURCE(part)                                                                         \
    {                                                                                              \
        "numerics-model.md", "model.py " part, "model.py " part                                    \
    }

#define ATTENTION_STEPS                                                                            \
    {                                                                                              \
        "chunks of 64, merged; P f32", "chunks of 64, running maximum; P bf16, sum f32"            \
    }

/* clang-format off */
const tamis_stage_rule tamis_stage_rules[] = {
    {TAMIS_AT_ENDS, "embedding", MODEL(embed), {"the row as it is"}, 0, BF16, NO_ROWS, "exact", MODEL_SOURCE("Transformer")},

    /* V4 attention */
    {TAMIS_AT_V4, "streams", LAYER(hc_attn.fn), {"coefficients, Sinkhorn, mixing f32"}, 0, {"f32", "bf16 after collapse, expansion"}, NO_ROWS, "ordered", MODEL_SOURCE("Block")},
    {TAMIS_AT_V4, "attn_norm, ffn_norm", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("RMSNorm")},
    {TAMIS_AT_V4, "rotary frequencies", NO_WEIGHTS, {"double, rounded once", "f32 at every step"}, 0, F32, NO_ROWS, "ordered", V4_SOURCE("precompute_freqs_cis")},
    {TAMIS_AT_V4, "Q1 wq_a", LAYER(dsa.weights.wq_a), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "Q2 q_norm", NO_WEIGHTS, {"f32"}, 0, {"f32", "bf16", "bf16; f32 before an I8 dynamic wq_b"}, NO_ROWS, "ordered", V4_SOURCE("RMSNorm")},
    {TAMIS_AT_V4, "Q3 wq_b", LAYER(dsa.weights.wq_b), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "Q4 head norm, rotation", NO_WEIGHTS, {"f32", "norm: every step bf16; rotation f32", "f32"}, 0, BF16, NO_ROWS, "ordered", V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "K1 wkv", LAYER(dsa.weights.wkv), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "K2 kv_norm, rotation", NO_WEIGHTS, {"f32", "norm -> bf16, rotation f32"}, 0, CACHE_ROW, TAMIS_STAGE_ROWS_KV, "ordered", V4_SOURCE("Attention")},
    {TAMIS_AT_C4 | TAMIS_AT_C4_SHARED | TAMIS_AT_C128, "C1 compressor wkv, wgate", LAYER(dsa.weights.compressor.wkv), {"as it is"}, 0, F32, NO_ROWS, "ordered", V4_SOURCE("Compressor")},
    {TAMIS_AT_C4 | TAMIS_AT_C4_SHARED | TAMIS_AT_C128, "C2 pool, norm, rotation", NO_WEIGHTS, {"f32", "pool -> bf16, norm -> bf16, rotation f32", "f32"}, 0, CACHE_ROW, TAMIS_STAGE_ROWS_KV, "ordered", V4_SOURCE("Compressor")},
    {TAMIS_AT_C4, "J1 index compressor", LAYER(dsa.weights.index_compressor.wkv), {"as it is"}, 0, F32, NO_ROWS, "ordered", V4_SOURCE("Compressor")},
    {TAMIS_AT_C4, "J2 index key", NO_WEIGHTS, {"as C2", "as C2, then Hadamard", "as C2, then +-1 Hadamard -> bf16, dim^-0.5"}, 0, CACHE_ROW, TAMIS_STAGE_ROWS_INDEX, "ordered", V4_SOURCE("Indexer")},
    {TAMIS_AT_C4, "I1 index wq_b", LAYER(dsa.weights.index_wq_b), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, V4_SOURCE("Indexer")},
    {TAMIS_AT_C4, "I2 index query", NO_WEIGHTS, {"rotation f32", "rotation -> bf16, Hadamard -> bf16", "rotation -> bf16, +-1 Hadamard -> bf16, dim^-0.5 -> bf16"}, 0, {"f32", "FP4, groups of 32", "int8 per head"}, NO_ROWS, "ordered", V4_SOURCE("Indexer")},
    {TAMIS_AT_C4, "W1 index weights_proj", LAYER(dsa.weights.index_weights_proj), BY_WEIGHTS, 0, {"f32", "bf16, times f32 constant -> bf16", "bf16, times constant -> bf16; times query scale f16"}, NO_ROWS, NULL, V4_SOURCE("Indexer")},
    {TAMIS_AT_C4, "S1 scores", NO_WEIGHTS, {"f32 dots", "integer dots; products bf16", "integer dots; f16(relu(dot) / 1024), sum f32"}, 0, {"f32", "bf16", "f32, times key scale"}, NO_ROWS, "ordered", V4_SOURCE("Indexer")},
    {TAMIS_AT_C4, "selection", NO_WEIGHTS, {"k rows ascending; all if at most k", "k rows, best first; all are scored", "k rows ascending; all if at most k"}, 0, {"-"}, NO_ROWS, "exact", V4_SOURCE("Indexer")},
    {TAMIS_AT_V4, "A1 attention", NO_WEIGHTS, ATTENTION_STEPS, 0, BF16, NO_ROWS, "ordered", V4_SOURCE("sparse_attn")},
    {TAMIS_AT_V4, "inverse rotation", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "O1 wo_a", LAYER(dsa.weights.wo_a), BY_WEIGHTS, OFFICIAL, BF16, NO_ROWS, NULL, V4_SOURCE("Attention")},
    {TAMIS_AT_V4, "O1 wo_b", LAYER(dsa.weights.wo_b), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, V4_SOURCE("Attention")},

    /* V3.2 and GLM attention */
    {TAMIS_AT_LATENT, "residual, norms", NO_WEIGHTS, {"h + v f32; the norm reads the sum"}, 0, {"f32", "bf16 each"}, NO_ROWS, "ordered", MODEL_SOURCE("RMSNorm")},
    {TAMIS_AT_LATENT, "rotary frequencies", NO_WEIGHTS, {"double, rounded once", "f32 at every step"}, 0, F32, NO_ROWS, "ordered", SFA_SOURCE("precompute_freqs_cis")},
    {TAMIS_AT_LATENT, "q_a_proj", LAYER(sfa.weights.q_a_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "q_a_norm", NO_WEIGHTS, {"f32, plus a quantiser's bias"}, 0, BF16, NO_ROWS, "ordered", SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "q_b_proj", LAYER(sfa.weights.q_b_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "absorbed query: kv_b K-up", LAYER(sfa.weights.kv_b_proj), BY_WEIGHTS, NOT_EXACT, BF16, NO_ROWS, "ordered", SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "rotated query", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "kv_a_proj", LAYER(sfa.weights.kv_a_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "latent, rotated key", NO_WEIGHTS, {"norm, rotation f32"}, 0, CACHE_ROW, TAMIS_STAGE_ROWS_KV, "ordered", SFA_SOURCE("MLA")},
    {TAMIS_AT_FULL, "index wk", LAYER(sfa.weights.index_wk), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "index key", NO_WEIGHTS, {"LayerNorm, rotation f32", "LayerNorm -> bf16, rotation -> bf16, Hadamard", "LayerNorm -> bf16, rotation -> bf16, +-bf16 Hadamard"}, 0, CACHE_ROW, TAMIS_STAGE_ROWS_INDEX, "ordered", SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "index wq_b", LAYER(sfa.weights.index_wq_b), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "index query", NO_WEIGHTS, {"rotation f32", "rotation -> bf16, Hadamard -> bf16", "rotation -> bf16, +-bf16 Hadamard -> bf16"}, 0, {"f32", "FP8 per head", "int8 per head"}, NO_ROWS, "ordered", SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "index weights_proj", LAYER(sfa.weights.index_weights_proj), BY_WEIGHTS, 0, {"f32", "f32, times heads^-0.5, query scale, dim^-0.5", "bf16, times query scale f16"}, NO_ROWS, NULL, SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "scores", NO_WEIGHTS, {"f32 dots", "f32 dots of FP8 codes", "integer dots; f16(relu(dot) / 1024), sum f32"}, 0, {"f32", "f32, times key scale"}, NO_ROWS, "ordered", SFA_SOURCE("Indexer")},
    {TAMIS_AT_FULL, "selection", NO_WEIGHTS, {"k tokens ascending"}, 0, {"-"}, NO_ROWS, "exact", SFA_SOURCE("Indexer")},
    {TAMIS_AT_LATENT, "attention", NO_WEIGHTS, ATTENTION_STEPS, 0, BF16, NO_ROWS, "ordered", SOURCE_OF("MLA, FlashMLA", "sfa_v1.py")},
    {TAMIS_AT_LATENT, "values: kv_b V-up", LAYER(sfa.weights.kv_b_proj), BY_WEIGHTS, NOT_EXACT, BF16, NO_ROWS, "ordered", SFA_SOURCE("MLA")},
    {TAMIS_AT_LATENT, "o_proj", LAYER(sfa.weights.o_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, SFA_SOURCE("MLA")},

    /* experts, dense layers */
    {TAMIS_AT_EXPERTS, "router", LAYER(moe.gate), {"as it is"}, 0, F32, NO_ROWS, "ordered", MODEL_SOURCE("Gate")},
    {TAMIS_AT_EXPERTS, "expert w1, w3", EXPERT(w1), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS_V4, "expert silu, product", NO_WEIGHTS, {"f32, clamped", "f32, clamped, times the routing weight", "f32, clamped"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS_V4, "expert w2", EXPERT(w2), BY_WEIGHTS, 0, {"f32, times the routing weight", "bf16", "bf16, times the routing weight f32"}, NO_ROWS, NULL, MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS_LATENT, "expert silu, product", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS_LATENT, "expert w2", EXPERT(w2), BY_WEIGHTS, 0, {"f32, times the routing weight", "bf16, times the routing weight f32"}, NO_ROWS, NULL, MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS, "shared expert w1, w3", LAYER(moe.shared.w1), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS, "shared expert w2", LAYER(moe.shared.w2), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("Expert")},
    {TAMIS_AT_EXPERTS, "sum of experts", NO_WEIGHTS, {"f32, ascending, then + shared"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("MoE")},
    {TAMIS_AT_DENSE, "w1, w3", LAYER(moe.shared.w1), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("MLP")},
    {TAMIS_AT_DENSE, "silu, product", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("MLP")},
    {TAMIS_AT_DENSE, "w2", LAYER(moe.shared.w2), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("MLP")},

    {TAMIS_AT_ENDS, "final norm", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("Transformer")},
    {TAMIS_AT_ENDS, "head", MODEL(head), {"as it is"}, 0, F32, NO_ROWS, "ordered", MODEL_SOURCE("ParallelHead")},
    {TAMIS_AT_MTP, "enorm, hnorm", NO_WEIGHTS, {"f32"}, 0, BF16, NO_ROWS, "ordered", MODEL_SOURCE("MTPBlock")},
    {TAMIS_AT_MTP, "e_proj, h_proj", MODEL(mtp.e_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("MTPBlock")},
    {TAMIS_AT_MTP, "eh_proj", MODEL(mtp.eh_proj), BY_WEIGHTS, 0, BF16, NO_ROWS, NULL, MODEL_SOURCE("MTPBlock")},
};
/* clang-format on */

const size_t tamis_num_stage_rules = sizeof tamis_stage_rules / sizeof *tamis_stage_rules;
