/*
 * Keys that announce a variant of the computation or of the number formats. tamis computes one;
 * whatever asks for another is refused.
 */
#include "config/model_fields.h"

#include <string.h>

#include "core/error.h"

static tamis_status expect_int(const tamis_config_object *root, const char *key, int32_t wanted)
{
    int32_t value = wanted;
    TAMIS_TRY(tamis_config_int(root, key, INT32_MIN, INT32_MAX, &value));
    return value == wanted ? TAMIS_STATUS_OK
                           : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                                 tamis_config_get(root, key), "%d", wanted);
}

static tamis_status expect_bool(const tamis_config_object *root, const char *key, bool wanted)
{
    bool value = wanted;
    TAMIS_TRY(tamis_config_bool(root, key, &value));
    return value == wanted
               ? TAMIS_STATUS_OK
               : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                     tamis_config_get(root, key), wanted ? "true" : "false");
}

static tamis_status expect_text(const tamis_config_object *root, const char *key,
                                const char *wanted)
{
    const char *value = wanted;
    TAMIS_TRY(tamis_config_text(root, key, &value));
    return strcmp(value, wanted) == 0
               ? TAMIS_STATUS_OK
               : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                     tamis_config_get(root, key), "%s", wanted);
}

static tamis_status check_v4(const tamis_config_object *root)
{
    TAMIS_TRY(expect_int(root, "num_key_value_heads", 1));
    TAMIS_TRY(expect_int(root, "n_group", 1));
    TAMIS_TRY(expect_int(root, "topk_group", 1));
    return expect_int(root, "first_k_dense_replace", 0);
}

/* Every head has its own keys before they are absorbed; the pairs that rotate are fixed. */
static tamis_status check_latent(const tamis_model_config *c, const tamis_config_object *root)
{
    const int32_t qk_head_dim = c->qk_nope_head_dim + c->qk_rope_head_dim;
    int32_t seen_dim = qk_head_dim;
    float limit = 0.0f;
    TAMIS_TRY(expect_int(root, "num_key_value_heads", c->num_attention_heads));
    TAMIS_TRY(tamis_config_int(root, "qk_head_dim", INT32_MIN, INT32_MAX, &seen_dim));
    if (seen_dim != qk_head_dim)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "qk_head_dim",
                                   tamis_config_get(root, "qk_head_dim"),
                                   "qk_nope_head_dim + qk_rope_head_dim, %d", qk_head_dim);
    TAMIS_TRY(expect_bool(root, "rope_interleave", true));
    TAMIS_TRY(expect_bool(root, "indexer_rope_interleave", c->index_rope_interleave));
    TAMIS_TRY(tamis_config_float(root, "swiglu_limit", 0.0f, 1e30f, &limit));
    return limit == 0.0f
               ? TAMIS_STATUS_OK
               : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "swiglu_limit",
                                     tamis_config_get(root, "swiglu_limit"), "0, no limit");
}

tamis_status tamis_config_check_variants(const tamis_model_config *config,
                                         const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_has_latent(config) ? check_latent(config, root) : check_v4(root));
    TAMIS_TRY(expect_int(root, "moe_layer_freq", 1));
    TAMIS_TRY(expect_bool(root, "attention_bias", false));
    TAMIS_TRY(expect_bool(root, "mlp_bias", false));
    TAMIS_TRY(expect_bool(root, "tie_word_embeddings", false));
    TAMIS_TRY(expect_text(root, "hidden_act", "silu"));
    return expect_text(root, "topk_method", "noaux_tc");
}

/* ---------------------------------------------------------------- number formats */

static tamis_status read_block_size(tamis_model_config *out, const tamis_config_object *quant)
{
    const json_t *block = NULL;
    int32_t *sizes[2] = {&out->weight_block_rows, &out->weight_block_cols};
    TAMIS_TRY(tamis_config_list(quant, "weight_block_size", 2, 2, &block));
    for (size_t i = 0; block != NULL && i < 2; i++) {
        TAMIS_TRY(
            tamis_config_item_int(quant, "weight_block_size", block, i, 1, INT32_MAX, sizes[i]));
        if (*sizes[i] != 128)
            return tamis_config_refuse(quant, TAMIS_STATUS_UNSUPPORTED,
                                       i == 0 ? "weight_block_size[0]" : "weight_block_size[1]",
                                       json_array_get(block, i), "128");
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_read_quantization(tamis_model_config *out,
                                            const tamis_config_object *root)
{
    tamis_config_object quant;
    TAMIS_TRY(tamis_config_child(root, "quantization_config", "quantization_config.", &quant));
    out->weight_block_rows = out->weight_block_cols = 128;
    if (quant.json == NULL)
        return TAMIS_STATUS_OK;
    const char *method = "fp8";
    out->has_quantization = true;
    TAMIS_TRY(tamis_config_text(&quant, "quant_method", &method));
    if (strcmp(method, "ascend") == 0) /* quant_model_description.json says the rest */
        return TAMIS_STATUS_OK;
    if (strcmp(method, "fp8") != 0)
        return tamis_config_refuse(&quant, TAMIS_STATUS_UNSUPPORTED, "quant_method",
                                   tamis_config_get(&quant, "quant_method"), "fp8, ascend");
    TAMIS_TRY(expect_text(&quant, "fmt", "e4m3"));
    return read_block_size(out, &quant);
}
