#include "weights/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tamis_names *tamis_names_of(tamis_family family)
{
    return family == TAMIS_FAMILY_DEEPSEEK_V4 ? &tamis_v4_names : &tamis_sfa_names;
}

bool tamis_names_spell(const tamis_names *names, char out[TAMIS_NAME_BYTES], tamis_weight weight,
                       int32_t layer, int32_t expert, int i)
{
    const char *spelling = i < TAMIS_MAX_SPELLINGS ? names->spellings[weight][i] : NULL;
    int32_t number = layer;
    size_t n = 0;
    if (spelling == NULL)
        return false;
    for (; *spelling != '\0'; spelling++)
        if (*spelling == '#') {
            n += (size_t)snprintf(out + n, TAMIS_NAME_BYTES - n, "%d", (int)number);
            number = expert;
        } else {
            out[n++] = *spelling;
        }
    out[n] = '\0';
    return true;
}

/* ---------------------------------------------------------------- scales */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* `text` without its last `cut` bytes, then `end`. */
static bool replace_end(char out[TAMIS_NAME_BYTES], const char *text, size_t cut, const char *end)
{
    const size_t keep = strlen(text) - cut;
    if (keep + strlen(end) >= TAMIS_NAME_BYTES)
        return false;
    memcpy(out, text, keep);
    strcpy(out + keep, end);
    return true;
}

bool tamis_scale_spell(char out[TAMIS_NAME_BYTES], const char *weight, int i)
{
    const size_t cut = ends_with(weight, ".weight") ? strlen(".weight") : 0;
    return i == 0   ? replace_end(out, weight, cut, ".scale")
           : i == 1 ? replace_end(out, weight, 0, "_scale_inv")
                    : false;
}

bool tamis_scale_owner(char out[TAMIS_NAME_BYTES], const char *name)
{
    if (ends_with(name, ".scale"))
        return replace_end(out, name, strlen(".scale"), ".weight");
    return ends_with(name, "_scale_inv") && replace_end(out, name, strlen("_scale_inv"), "");
}

/* ---------------------------------------------------------------- places */

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

static tamis_weight_group group_of(const tamis_name_prefix *list, const char *name)
{
    for (; list->prefix != NULL; list++)
        if (strncmp(name, list->prefix, strlen(list->prefix)) == 0)
            return list->group;
    return TAMIS_GROUP_UNKNOWN;
}

tamis_tensor_place tamis_tensor_place_of(const tamis_model_config *config, const char *name)
{
    const tamis_names *names = tamis_names_of(config->family);
    const char *bare = skip(name, "model.");
    int32_t layer;
    const char *rest = rest_of_layer(bare, &layer);
    if (rest != NULL && names->has_mtp_layers && layer >= config->num_hidden_layers)
        return (tamis_tensor_place){-2, TAMIS_GROUP_MTP};
    if (rest != NULL)
        return (tamis_tensor_place){layer, group_of(names->of_layer, rest)};
    const tamis_weight_group group = group_of(names->of_model, bare);
    const bool is_main = group != TAMIS_GROUP_MTP && group != TAMIS_GROUP_UNKNOWN;
    return (tamis_tensor_place){is_main ? -1 : -2, group};
}

const char *tamis_weight_group_name(tamis_weight_group group)
{
    static const char *const groups[TAMIS_NUM_GROUPS] = {
        "embedding", "norms",  "attention", "compressor",     "indexer", "hyper-connections",
        "dense mlp", "router", "experts",   "shared experts", "head",    "mtp",
        "unknown",
    };
    return groups[group];
}
