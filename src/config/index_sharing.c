/*
 * Which layers use the selection of an earlier one instead of running an indexer. Counted are the
 * layers that may have one: V4's ratio-4 layers, every layer of V3.2 and GLM; MTP blocks never
 * share. Layer n of them is
 *
 *   full or shared     as indexer_types[n] says (GLM), else
 *   F or S             as index_topk_pattern[n] says, else
 *   shared unless      max(n - offset + 1, 0) is a multiple of index_topk_freq; the offset is
 *                      index_skip_topk_offset in GLM and 2 elsewhere.
 *
 * V4 and V3.2 do all this only if use_index_cache is set. The first layer always has to be full.
 *
 * tamis_config_set_sharing puts a frequency or a pattern in place of all that, for any family.
 */
#include "config/model_fields.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

typedef struct sharing_rule {
    const json_t *types; /* NULL: none */
    const char *pattern; /* NULL: none */
    int32_t freq, offset;
} sharing_rule;

static bool shares(const sharing_rule *rule, int32_t n)
{
    if (rule->types != NULL)
        return strcmp(json_string_value(json_array_get(rule->types, (size_t)n)), "shared") == 0;
    if (rule->pattern != NULL) /* past its end: full */
        return (size_t)n < strlen(rule->pattern) && rule->pattern[n] == 'S';
    const int32_t past = n - rule->offset + 1;
    return past > 0 && past % rule->freq != 0;
}

static tamis_status read_pattern(sharing_rule *rule, const tamis_config_object *root,
                                 int32_t min_layers)
{
    static const char *const key = "index_topk_pattern";
    TAMIS_TRY(tamis_config_text(root, key, &rule->pattern));
    const char *pattern = rule->pattern;
    if (pattern == NULL || (pattern[0] == 'F' && pattern[strspn(pattern, "FS")] == '\0' &&
                            strlen(pattern) >= (size_t)min_layers))
        return TAMIS_STATUS_OK;
    return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, tamis_config_get(root, key),
                               "a string of F and S that begins with F, of at least %d characters",
                               min_layers);
}

/* Every entry must be known, the first full, and a pattern beside the list must say the same. */
static tamis_status check_types(const sharing_rule *rule, const tamis_config_object *root,
                                int32_t n_layers)
{
    for (int32_t i = 0; i < n_layers; i++) {
        const json_t *item = json_array_get(rule->types, (size_t)i);
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        const bool is_shared = strcmp(text, "shared") == 0;
        char key[64];
        snprintf(key, sizeof key, "indexer_types[%d]", i);
        if (!is_shared && strcmp(text, "full") != 0)
            return tamis_config_refuse(
                root, json_is_string(item) ? TAMIS_STATUS_UNSUPPORTED : TAMIS_STATUS_FORMAT, key,
                item, "full, shared");
        if (i == 0 && is_shared)
            return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, item,
                                       "full, there is no earlier layer");
        if (rule->pattern != NULL && is_shared != (rule->pattern[i] == 'S'))
            return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, key, item,
                                       "what index_topk_pattern says (%c)", rule->pattern[i]);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_glm_rule(sharing_rule *rule, const tamis_config_object *root,
                                  int32_t n_layers)
{
    TAMIS_TRY(tamis_config_int(root, "index_skip_topk_offset", 0, INT32_MAX, &rule->offset));
    TAMIS_TRY(read_pattern(rule, root, n_layers));
    TAMIS_TRY(
        tamis_config_list(root, "indexer_types", (size_t)n_layers, TAMIS_MAX_LAYERS, &rule->types));
    if (rule->types != NULL)
        return check_types(rule, root, n_layers);
    if (shares(rule, 0))
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "index_skip_topk_offset",
                                   tamis_config_get(root, "index_skip_topk_offset"),
                                   "at least 1, the first layer has no earlier one");
    return TAMIS_STATUS_OK;
}

/* V4: the layers of ratio 4; the others: every layer. */
static bool may_share(const tamis_model_config *config, int32_t layer)
{
    return tamis_config_has_latent(config) || config->compress_ratios[layer] == 4;
}

tamis_status tamis_config_read_sharing(tamis_model_config *out, const tamis_config_object *root)
{
    const bool is_glm = out->family == TAMIS_FAMILY_GLM_MOE_DSA;
    sharing_rule rule = {.types = NULL, .pattern = NULL, .freq = 1, .offset = 2};
    bool is_on = is_glm;
    int32_t n = 0;
    TAMIS_TRY(tamis_config_int(root, "index_topk_freq", 1, INT32_MAX, &rule.freq));
    if (is_glm) {
        TAMIS_TRY(tamis_config_bool(root, "index_share_for_mtp_iteration",
                                    &out->index_share_for_mtp_iteration));
        TAMIS_TRY(read_glm_rule(&rule, root, out->num_hidden_layers));
    } else {
        TAMIS_TRY(tamis_config_bool(root, "use_index_cache", &is_on));
        TAMIS_TRY(read_pattern(&rule, root, 1));
    }
    out->index_skip_topk_offset = rule.offset;
    for (int32_t i = 0; is_on && i < out->num_hidden_layers; i++)
        if (may_share(out, i)) {
            out->reuse_topk[i] = shares(&rule, n++);
            out->has_index_cache = out->has_index_cache || out->reuse_topk[i];
        }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- in place of the config's rule */

static tamis_status check_rule(int32_t freq, const char *pattern, int32_t n_layers,
                               tamis_error *err)
{
    if (freq != 0 && pattern != NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "model: index_topk_freq is %d and index_topk_pattern is \"%s\", allowed: "
                          "one of them",
                          freq, pattern);
    if (n_layers == 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "model: %s is set, but the model has no layers with an indexer",
                          freq != 0 ? "index_topk_freq" : "index_topk_pattern");
    if (freq < 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "model: index_topk_freq is %d, allowed: 0 (as config.json says) or more",
                          freq);
    if (pattern != NULL && (pattern[0] != 'F' || pattern[strspn(pattern, "FS")] != '\0' ||
                            strlen(pattern) > (size_t)n_layers))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "model: index_topk_pattern is \"%.80s\", allowed: F and S, F first, at "
                          "most %d of them (layers with an indexer)",
                          pattern, n_layers);
    return TAMIS_STATUS_OK;
}

static int32_t num_indexers(const tamis_model_config *config)
{
    int32_t n = 0;
    for (int32_t i = 0; i < config->num_hidden_layers; i++)
        n += may_share(config, i);
    return config->index_topk == 0 ? 0 : n;
}

tamis_status tamis_config_set_sharing(tamis_model_config *config, int32_t freq, const char *pattern,
                                      tamis_error *err)
{
    const sharing_rule rule = {NULL, pattern, freq, config->index_skip_topk_offset};
    int32_t n = 0;
    if (freq == 0 && pattern == NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_rule(freq, pattern, num_indexers(config), err));
    if (shares(&rule, 0))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "model: index_topk_freq is %d, but with index_skip_topk_offset %d the "
                          "first layer would have no earlier one",
                          freq, config->index_skip_topk_offset);
    config->is_sharing_given = true;
    for (int32_t i = 0; i < config->num_hidden_layers; i++)
        if (may_share(config, i)) {
            const bool is_shared = shares(&rule, n++);
            config->is_index_cache_approximate |= is_shared && !config->reuse_topk[i];
            config->reuse_topk[i] = is_shared;
        }
    return TAMIS_STATUS_OK;
}
