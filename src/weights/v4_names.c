#include "weights/v4_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OTHER 3

/* Rests behind "layers.N." (or whole names, for tensors of the model). */
typedef struct name_row {
    const char *official;
    const char *other[MAX_OTHER];
} name_row;

static const name_row rows[TAMIS_V4_NUM_NAMES] = {
    [TAMIS_V4_EMBED] = {"embed.weight", {"model.embed_tokens.weight", "embed_tokens.weight"}},
    [TAMIS_V4_HEAD] = {"head.weight", {"lm_head.weight", "model.head.weight"}},
    [TAMIS_V4_NORM] = {"norm.weight", {"model.norm.weight"}},
    [TAMIS_V4_HC_HEAD_FN] = {"hc_head_fn", {"model.hc_head.hc_fn", "hc_head.hc_fn"}},
    [TAMIS_V4_HC_HEAD_BASE] = {"hc_head_base", {"model.hc_head.hc_base", "hc_head.hc_base"}},
    [TAMIS_V4_HC_HEAD_SCALE] = {"hc_head_scale", {"model.hc_head.hc_scale", "hc_head.hc_scale"}},

    [TAMIS_V4_ATTN_NORM] = {"attn_norm.weight", {"input_layernorm.weight"}},
    [TAMIS_V4_FFN_NORM] = {"ffn_norm.weight", {"post_attention_layernorm.weight"}},
    [TAMIS_V4_HC_ATTN_FN] = {"hc_attn_fn", {"attn_hc.fn"}},
    [TAMIS_V4_HC_ATTN_BASE] = {"hc_attn_base", {"attn_hc.base"}},
    [TAMIS_V4_HC_ATTN_SCALE] = {"hc_attn_scale", {"attn_hc.scale"}},
    [TAMIS_V4_HC_FFN_FN] = {"hc_ffn_fn", {"ffn_hc.fn"}},
    [TAMIS_V4_HC_FFN_BASE] = {"hc_ffn_base", {"ffn_hc.base"}},
    [TAMIS_V4_HC_FFN_SCALE] = {"hc_ffn_scale", {"ffn_hc.scale"}},

    [TAMIS_V4_WQ_A] = {"attn.wq_a.weight", {"self_attn.q_a_proj.weight"}},
    [TAMIS_V4_Q_NORM] = {"attn.q_norm.weight", {"self_attn.q_a_norm.weight"}},
    [TAMIS_V4_WQ_B] = {"attn.wq_b.weight", {"self_attn.q_b_proj.weight"}},
    [TAMIS_V4_WKV] = {"attn.wkv.weight", {"self_attn.kv_proj.weight"}},
    [TAMIS_V4_KV_NORM] = {"attn.kv_norm.weight", {"attn.norm.weight", "self_attn.kv_norm.weight"}},
    [TAMIS_V4_WO_A] = {"attn.wo_a.weight", {"self_attn.o_a_proj.weight"}},
    [TAMIS_V4_WO_B] = {"attn.wo_b.weight", {"self_attn.o_b_proj.weight"}},
    [TAMIS_V4_ATTN_SINK] = {"attn.attn_sink", {"self_attn.sinks"}},

    [TAMIS_V4_COMPRESSOR_APE] = {"attn.compressor.ape", {"self_attn.compressor.position_bias"}},
    [TAMIS_V4_COMPRESSOR_WKV] = {"attn.compressor.wkv.weight",
                                 {"self_attn.compressor.kv_proj.weight"}},
    [TAMIS_V4_COMPRESSOR_WGATE] = {"attn.compressor.wgate.weight",
                                   {"self_attn.compressor.gate_proj.weight"}},
    [TAMIS_V4_COMPRESSOR_NORM] = {"attn.compressor.norm.weight",
                                  {"self_attn.compressor.kv_norm.weight"}},

    [TAMIS_V4_INDEX_WQ_B] = {"attn.indexer.wq_b.weight",
                             {"self_attn.compressor.indexer.q_b_proj.weight"}},
    [TAMIS_V4_INDEX_WEIGHTS_PROJ] = {"attn.indexer.weights_proj.weight",
                                     {"self_attn.compressor.indexer.weights_proj.weight",
                                      "self_attn.compressor.indexer.scorer.weights_proj.weight"}},
    [TAMIS_V4_INDEX_APE] = {"attn.indexer.compressor.ape",
                            {"self_attn.compressor.indexer.position_bias"}},
    [TAMIS_V4_INDEX_WKV] = {"attn.indexer.compressor.wkv.weight",
                            {"self_attn.compressor.indexer.kv_proj.weight"}},
    [TAMIS_V4_INDEX_WGATE] = {"attn.indexer.compressor.wgate.weight",
                              {"self_attn.compressor.indexer.gate_proj.weight"}},
    [TAMIS_V4_INDEX_NORM] = {"attn.indexer.compressor.norm.weight",
                             {"self_attn.compressor.indexer.kv_norm.weight"}},

    [TAMIS_V4_GATE] = {"ffn.gate.weight", {"mlp.gate.weight"}},
    [TAMIS_V4_GATE_BIAS] = {"ffn.gate.bias", {"mlp.gate.e_score_correction_bias"}},
    [TAMIS_V4_TID2EID] = {"ffn.gate.tid2eid", {"mlp.gate.tid2eid"}},
    [TAMIS_V4_SHARED_W1] = {"ffn.shared_experts.w1.weight",
                            {"mlp.shared_experts.gate_proj.weight"}},
    [TAMIS_V4_SHARED_W2] = {"ffn.shared_experts.w2.weight",
                            {"mlp.shared_experts.down_proj.weight"}},
    [TAMIS_V4_SHARED_W3] = {"ffn.shared_experts.w3.weight", {"mlp.shared_experts.up_proj.weight"}},
    [TAMIS_V4_STACKED_GATE_UP] = {"ffn.experts.gate_up_proj", {"mlp.experts.gate_up_proj"}},
    [TAMIS_V4_STACKED_DOWN] = {"ffn.experts.down_proj", {"mlp.experts.down_proj"}},

    /* behind "layers.N.ffn.experts.X." and "layers.N.mlp.experts.X." */
    [TAMIS_V4_EXPERT_W1] = {"w1.weight", {"gate_proj.weight"}},
    [TAMIS_V4_EXPERT_W2] = {"w2.weight", {"down_proj.weight"}},
    [TAMIS_V4_EXPERT_W3] = {"w3.weight", {"up_proj.weight"}},
};

bool tamis_v4_name_spell(char out[TAMIS_V4_NAME_BYTES], tamis_v4_name name, int32_t layer,
                         int32_t expert, int i)
{
    /* Tensors of a layer: official, then "model." + official, then "model." + the others. */
    const bool of_model = name < TAMIS_V4_FIRST_OF_LAYER;
    const int other_idx = of_model ? i - 1 : i - 2;
    const char *root = of_model || i == 0 ? "" : "model.";
    if (other_idx >= MAX_OTHER || (other_idx >= 0 && rows[name].other[other_idx] == NULL))
        return false;
    const char *rest = other_idx < 0 ? rows[name].official : rows[name].other[other_idx];
    if (of_model)
        snprintf(out, TAMIS_V4_NAME_BYTES, "%s", rest);
    else if (name < TAMIS_V4_FIRST_OF_EXPERT)
        snprintf(out, TAMIS_V4_NAME_BYTES, "%slayers.%d.%s", root, (int)layer, rest);
    else
        snprintf(out, TAMIS_V4_NAME_BYTES, "%slayers.%d.%s.experts.%d.%s", root, (int)layer,
                 other_idx < 0 ? "ffn" : "mlp", (int)expert, rest);
    return true;
}

/* ---------------------------------------------------------------- scales */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* `text` without its last `cut` bytes, then `end`. */
static bool replace_end(char out[TAMIS_V4_NAME_BYTES], const char *text, size_t cut,
                        const char *end)
{
    const size_t keep = strlen(text) - cut;
    if (keep + strlen(end) >= TAMIS_V4_NAME_BYTES)
        return false;
    memcpy(out, text, keep);
    strcpy(out + keep, end);
    return true;
}

bool tamis_v4_scale_spell(char out[TAMIS_V4_NAME_BYTES], const char *weight, int i)
{
    const size_t cut = ends_with(weight, ".weight") ? strlen(".weight") : 0;
    return i == 0   ? replace_end(out, weight, cut, ".scale")
           : i == 1 ? replace_end(out, weight, 0, "_scale_inv")
                    : false;
}

bool tamis_v4_scale_owner(char out[TAMIS_V4_NAME_BYTES], const char *name)
{
    if (ends_with(name, ".scale"))
        return replace_end(out, name, strlen(".scale"), ".weight");
    return ends_with(name, "_scale_inv") && replace_end(out, name, strlen("_scale_inv"), "");
}

/* ---------------------------------------------------------------- groups */

static const char *skip(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

/* What follows "layers.N."; NULL if the name does not begin so. */
static const char *rest_of_layer(const char *name, int32_t *layer)
{
    const char *number = skip(name, "layers."), *at = number;
    if (number == name)
        return NULL;
    while (*at >= '0' && *at <= '9')
        at++;
    if (at == number || at - number > 6 || *at != '.')
        return NULL;
    *layer = (int32_t)strtol(number, NULL, 10);
    return at + 1;
}

static const char *const groups[TAMIS_V4_NUM_GROUPS] = {
    "embedding", "norms",   "attention",      "compressor", "indexer", "hyper-connections",
    "router",    "experts", "shared experts", "head",       "mtp",     "unknown",
};
enum {
    GROUP_EMBEDDING,
    GROUP_NORMS,
    GROUP_ATTENTION,
    GROUP_COMPRESSOR,
    GROUP_INDEXER,
    GROUP_HC,
    GROUP_ROUTER,
    GROUP_EXPERTS,
    GROUP_SHARED,
    GROUP_HEAD,
    GROUP_MTP,
    GROUP_UNKNOWN
};

typedef struct group_prefix {
    const char *prefix;
    int group;
} group_prefix;

/* Of the model; the first that fits counts. */
static const group_prefix model_prefixes[] = {
    {"mtp.", GROUP_MTP},    {"embed.", GROUP_EMBEDDING}, {"embed_tokens.", GROUP_EMBEDDING},
    {"head.", GROUP_HEAD},  {"lm_head.", GROUP_HEAD},    {"norm.", GROUP_NORMS},
    {"hc_head_", GROUP_HC}, {"hc_head.", GROUP_HC},
};
static const group_prefix layer_prefixes[] = {
    {"attn_norm.", GROUP_NORMS},
    {"ffn_norm.", GROUP_NORMS},
    {"input_layernorm.", GROUP_NORMS},
    {"post_attention_layernorm.", GROUP_NORMS},
    {"hc_attn_", GROUP_HC},
    {"hc_ffn_", GROUP_HC},
    {"attn_hc.", GROUP_HC},
    {"ffn_hc.", GROUP_HC},
    {"attn.indexer.", GROUP_INDEXER},
    {"self_attn.compressor.indexer.", GROUP_INDEXER},
    {"attn.compressor.", GROUP_COMPRESSOR},
    {"self_attn.compressor.", GROUP_COMPRESSOR},
    {"attn.", GROUP_ATTENTION},
    {"self_attn.", GROUP_ATTENTION},
    {"ffn.gate.", GROUP_ROUTER},
    {"mlp.gate.", GROUP_ROUTER},
    {"ffn.experts.", GROUP_EXPERTS},
    {"mlp.experts.", GROUP_EXPERTS},
    {"ffn.shared_experts.", GROUP_SHARED},
    {"mlp.shared_experts.", GROUP_SHARED},
};

static int group_of(const group_prefix *prefixes, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, prefixes[i].prefix, strlen(prefixes[i].prefix)) == 0)
            return prefixes[i].group;
    return GROUP_UNKNOWN;
}

int tamis_v4_tensor_group_idx(const char *name)
{
    int32_t layer;
    const char *bare = skip(name, "model."), *rest = rest_of_layer(bare, &layer);
    return rest != NULL
               ? group_of(layer_prefixes, sizeof layer_prefixes / sizeof *layer_prefixes, rest)
               : group_of(model_prefixes, sizeof model_prefixes / sizeof *model_prefixes, bare);
}

const char *tamis_v4_group_name(int group_idx)
{
    return groups[group_idx];
}

const char *tamis_v4_tensor_group(const char *name)
{
    return groups[tamis_v4_tensor_group_idx(name)];
}

int32_t tamis_v4_tensor_layer(const char *name)
{
    int32_t layer;
    const char *bare = skip(name, "model.");
    if (rest_of_layer(bare, &layer) != NULL)
        return layer;
    const int group = tamis_v4_tensor_group_idx(name);
    return group == GROUP_MTP || group == GROUP_UNKNOWN ? -2 : -1;
}
