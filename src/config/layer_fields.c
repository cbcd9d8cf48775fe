/* What each layer is: its compression ratio (V4), hash, learned or no routing, its indexer. */
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

/* The first layers of a model may be of another kind: a count says how many, or a list names the
 * kind of each. */
typedef struct first_layers {
    const char *count_key, *first, *other, *names;
} first_layers;

static const first_layers hash_layers = {"num_hash_layers", "hash_moe", "moe", "hash_moe, moe"};
static const first_layers dense_layers = {"first_k_dense_replace", "dense", "sparse",
                                          "dense, sparse"};

static tamis_status read_mlp_layer_types(bool *is_first, int32_t n_layers, const first_layers *kind,
                                         const tamis_config_object *root, const json_t *list,
                                         const int32_t *count)
{
    for (int32_t i = 0; i < n_layers; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        char key[64];
        is_first[i] = strcmp(text, kind->first) == 0;
        snprintf(key, sizeof key, "mlp_layer_types[%d]", i);
        if (!is_first[i] && strcmp(text, kind->other) != 0)
            return tamis_config_refuse(
                root, json_is_string(item) ? TAMIS_STATUS_UNSUPPORTED : TAMIS_STATUS_FORMAT, key,
                item, "%s", kind->names);
        if (count != NULL && is_first[i] != (i < *count))
            return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, item, "what %s says (%d)",
                                       kind->count_key, *count);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_first_layers(bool *is_first, int32_t n_layers, const first_layers *kind,
                                      const tamis_config_object *root)
{
    const json_t *types = NULL;
    const bool has_count = tamis_config_get(root, kind->count_key) != NULL;
    int32_t count = 0;
    TAMIS_TRY(tamis_config_int(root, kind->count_key, 0, n_layers, &count));
    TAMIS_TRY(
        tamis_config_list(root, "mlp_layer_types", (size_t)n_layers, TAMIS_MAX_LAYERS, &types));
    if (types != NULL)
        return read_mlp_layer_types(is_first, n_layers, kind, root, types,
                                    has_count ? &count : NULL);
    TAMIS_TRY(tamis_config_require(root, kind->count_key));
    for (int32_t i = 0; i < count; i++)
        is_first[i] = true;
    return TAMIS_STATUS_OK;
}

/* intermediate_size is required only if some layer is dense. */
static tamis_status read_dense_layers(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(read_first_layers(out->is_dense_layer, out->num_hidden_layers, &dense_layers, root));
    for (int32_t i = 0; i < out->num_hidden_layers; i++)
        if (out->is_dense_layer[i])
            return tamis_config_require(root, "intermediate_size");
    return TAMIS_STATUS_OK;
}

/* index_* are required only if some layer has an indexer. */
static tamis_status read_indexer(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const keys[] = {"index_n_heads", "index_head_dim", "index_topk"};
    bool has_indexer = tamis_config_has_latent(out);
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
    if (tamis_config_has_latent(out)) {
        TAMIS_TRY(read_dense_layers(out, root));
    } else {
        TAMIS_TRY(read_ratios(out, root));
        TAMIS_TRY(
            read_first_layers(out->is_hash_layer, out->num_hidden_layers, &hash_layers, root));
    }
    TAMIS_TRY(tamis_config_read_sharing(out, root));
    return read_indexer(out, root);
}
