/*
 * What each layer is: its compression ratio, hash or learned routing, and whether it reuses the
 * selection of an earlier layer.
 */
#include "config/model_fields.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

typedef struct layer_type {
    const char *name, *legacy_rate_key;
    int32_t ratio;
} layer_type;

static const layer_type layer_types[] = {
    {"sliding_attention", NULL, 0},
    {"compressed_sparse_attention", "compress_rate_csa", 4},
    {"heavily_compressed_attention", "compress_rate_hca", 128},
};

static bool is_known_ratio(int32_t ratio)
{
    return ratio == 0 || ratio == 4 || ratio == 128;
}

static tamis_status read_compress_ratios(tamis_model_config *out, const tamis_config_object *root,
                                         const json_t *list)
{
    out->n_compress_ratios = (int32_t)json_array_size(list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t ratio = 0;
        TAMIS_TRY(tamis_config_item_int(root, "compress_ratios", list, i, 0, INT32_MAX, &ratio));
        if (!is_known_ratio(ratio)) {
            char key[64];
            snprintf(key, sizeof key, "compress_ratios[%zu]", i);
            return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key, json_array_get(list, i),
                                       "0, 4, 128");
        }
        out->compress_ratios[i] = ratio;
    }
    return TAMIS_STATUS_OK;
}

/* compress_rates and its older scalar spelling may only repeat what the layer types mean. */
static tamis_status check_compress_rates(const tamis_config_object *root)
{
    tamis_config_object rates;
    TAMIS_TRY(tamis_config_child(root, "compress_rates", "compress_rates.", &rates));
    for (size_t i = 1; i < sizeof layer_types / sizeof *layer_types; i++) {
        const layer_type *type = &layer_types[i];
        int32_t rate = type->ratio, legacy_rate = type->ratio;
        TAMIS_TRY(tamis_config_int(&rates, type->name, 0, INT32_MAX, &rate));
        if (rate != type->ratio)
            return tamis_config_refuse(&rates, TAMIS_STATUS_UNSUPPORTED, type->name,
                                       tamis_config_get(&rates, type->name), "%d", type->ratio);
        TAMIS_TRY(tamis_config_int(root, type->legacy_rate_key, 0, INT32_MAX, &legacy_rate));
        if (legacy_rate != type->ratio)
            return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, type->legacy_rate_key,
                                       tamis_config_get(root, type->legacy_rate_key), "%d",
                                       type->ratio);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status layer_type_ratio(int32_t *out, const tamis_config_object *root,
                                     const json_t *list, size_t i)
{
    const json_t *item = json_array_get(list, i);
    char key[64];
    for (size_t t = 0; t < sizeof layer_types / sizeof *layer_types; t++)
        if (json_is_string(item) && strcmp(json_string_value(item), layer_types[t].name) == 0) {
            *out = layer_types[t].ratio;
            return TAMIS_STATUS_OK;
        }
    snprintf(key, sizeof key, "layer_types[%zu]", i);
    return tamis_config_refuse(
        root, json_is_string(item) ? TAMIS_STATUS_UNSUPPORTED : TAMIS_STATUS_FORMAT, key, item,
        "sliding_attention, compressed_sparse_attention, heavily_compressed_attention");
}

/* layer_types names the main layers only; MTP blocks are window layers then. */
static tamis_status read_layer_types(tamis_model_config *out, const tamis_config_object *root,
                                     const json_t *list, bool has_ratios)
{
    TAMIS_TRY(check_compress_rates(root));
    for (size_t i = 0; i < (size_t)out->num_hidden_layers; i++) {
        int32_t ratio = 0;
        TAMIS_TRY(layer_type_ratio(&ratio, root, list, i));
        if (has_ratios && ratio != out->compress_ratios[i]) {
            char key[64];
            snprintf(key, sizeof key, "layer_types[%zu]", i);
            return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, json_array_get(list, i),
                                       "what compress_ratios says (%d)", out->compress_ratios[i]);
        }
        out->compress_ratios[i] = ratio;
    }
    if (!has_ratios)
        out->n_compress_ratios = out->num_hidden_layers + out->num_nextn_predict_layers;
    return TAMIS_STATUS_OK;
}

static tamis_status read_ratios(tamis_model_config *out, const tamis_config_object *root)
{
    const size_t n = (size_t)out->num_hidden_layers;
    const json_t *ratios = NULL, *types = NULL;
    TAMIS_TRY(tamis_config_list(root, "compress_ratios", n, TAMIS_MAX_LAYERS, &ratios));
    TAMIS_TRY(tamis_config_list(root, "layer_types", n, TAMIS_MAX_LAYERS, &types));
    if (ratios == NULL && types == NULL)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "compress_ratios", NULL,
                                   "a list of 0, 4, 128, one per layer, or layer_types");
    if (ratios != NULL)
        TAMIS_TRY(read_compress_ratios(out, root, ratios));
    return types == NULL ? TAMIS_STATUS_OK : read_layer_types(out, root, types, ratios != NULL);
}

static tamis_status read_mlp_layer_types(tamis_model_config *out, const tamis_config_object *root,
                                         const json_t *list, const int32_t *n_hash)
{
    for (int32_t i = 0; i < out->num_hidden_layers; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        const bool is_hash = strcmp(text, "hash_moe") == 0;
        char key[64];
        snprintf(key, sizeof key, "mlp_layer_types[%d]", i);
        if (!is_hash && strcmp(text, "moe") != 0)
            return tamis_config_refuse(
                root, json_is_string(item) ? TAMIS_STATUS_UNSUPPORTED : TAMIS_STATUS_FORMAT, key,
                item, "hash_moe, moe");
        if (n_hash != NULL && is_hash != (i < *n_hash))
            return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, item,
                                       "what num_hash_layers says (%d)", *n_hash);
        out->is_hash_layer[i] = is_hash;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_hash_layers(tamis_model_config *out, const tamis_config_object *root)
{
    const json_t *types = NULL;
    const bool has_count = tamis_config_get(root, "num_hash_layers") != NULL;
    int32_t n_hash = 0;
    TAMIS_TRY(tamis_config_int(root, "num_hash_layers", 0, out->num_hidden_layers, &n_hash));
    TAMIS_TRY(tamis_config_list(root, "mlp_layer_types", (size_t)out->num_hidden_layers,
                                TAMIS_MAX_LAYERS, &types));
    if (types != NULL)
        return read_mlp_layer_types(out, root, types, has_count ? &n_hash : NULL);
    TAMIS_TRY(tamis_config_require(root, "num_hash_layers"));
    for (int32_t i = 0; i < n_hash; i++)
        out->is_hash_layer[i] = true;
    return TAMIS_STATUS_OK;
}

static tamis_status check_pattern(const tamis_config_object *root, const char *pattern)
{
    if (pattern == NULL || (pattern[0] == 'F' && pattern[strspn(pattern, "FS")] == '\0'))
        return TAMIS_STATUS_OK;
    return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "index_topk_pattern",
                               tamis_config_get(root, "index_topk_pattern"),
                               "a string of F and S that begins with F");
}

/*
 * IndexCache: which ratio-4 layers use the selection of an earlier one. Layer n of the ratio-4
 * layers (from 0) skips its indexer if the pattern has an S there, or, without a pattern, unless
 * max(n - 1, 0) is a multiple of the frequency. The first never skips.
 */
static tamis_status read_index_cache(tamis_model_config *out, const tamis_config_object *root)
{
    bool is_on = false;
    int32_t freq = 1, n = 0;
    const char *pattern = NULL;
    TAMIS_TRY(tamis_config_bool(root, "use_index_cache", &is_on));
    TAMIS_TRY(tamis_config_int(root, "index_topk_freq", 1, INT32_MAX, &freq));
    TAMIS_TRY(tamis_config_text(root, "index_topk_pattern", &pattern));
    TAMIS_TRY(check_pattern(root, pattern));
    const size_t pattern_len = pattern == NULL ? 0 : strlen(pattern);
    for (int32_t i = 0; is_on && i < out->num_hidden_layers; i++) {
        if (out->compress_ratios[i] != 4)
            continue;
        if (pattern != NULL)
            out->reuse_topk[i] = (size_t)n < pattern_len && pattern[n] == 'S';
        else
            out->reuse_topk[i] = n > 1 && (n - 1) % freq != 0;
        out->has_index_cache = out->has_index_cache || out->reuse_topk[i];
        n++;
    }
    return TAMIS_STATUS_OK;
}

/* index_* are required only if some layer has an indexer. */
static tamis_status read_indexer(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const keys[] = {"index_n_heads", "index_head_dim", "index_topk"};
    bool has_indexer = false;
    for (int32_t i = 0; i < out->num_hidden_layers; i++)
        has_indexer = has_indexer || out->compress_ratios[i] == 4;
    for (size_t i = 0; has_indexer && i < sizeof keys / sizeof *keys; i++)
        TAMIS_TRY(tamis_config_require(root, keys[i]));
    TAMIS_TRY(tamis_config_int(root, "index_n_heads", 1, 1024, &out->index_n_heads));
    TAMIS_TRY(tamis_config_int(root, "index_head_dim", 2, 4096, &out->index_head_dim));
    return tamis_config_int(root, "index_topk", 1, 8192, &out->index_topk);
}

tamis_status tamis_config_read_layers(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(read_ratios(out, root));
    TAMIS_TRY(read_hash_layers(out, root));
    TAMIS_TRY(read_index_cache(out, root));
    return read_indexer(out, root);
}
