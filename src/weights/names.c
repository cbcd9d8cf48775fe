#include "weights/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tamis_names *tamis_names_of(tamis_family family)
{
    return family == TAMIS_FAMILY_DEEPSEEK_V4 ? &tamis_v4_names : &tamis_sfa_names;
}

bool tamis_names_spell(const tamis_names *names, char out[TAMIS_NAME_BYTES], tamis_weight weight,
                       tamis_weight_place place, int i)
{
    static const char of_layer[] = "layers.#.";
    const char *spelling = i < TAMIS_MAX_SPELLINGS ? names->spellings[weight][i] : NULL;
    int32_t number = place.layer;
    size_t n = 0;
    if (spelling == NULL)
        return false;
    if (place.is_mtp && names->mtp_prefix != NULL) {
        /* Only the vendor writes these blocks; its spelling comes first. */
        if (i > 0 || strncmp(spelling, of_layer, strlen(of_layer)) != 0)
            return false;
        n = strlen(names->mtp_prefix);
        memcpy(out, names->mtp_prefix, n);
        spelling += strlen(of_layer);
        number = place.expert;
    }
    for (; *spelling != '\0'; spelling++)
        if (*spelling == '#') {
            n += (size_t)snprintf(out + n, TAMIS_NAME_BYTES - n, "%d", (int)number);
            number = place.expert;
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

/* Of "mtp.N." or of layer N behind the last. */
static tamis_tensor_place mtp_place(const tamis_model_config *config, int32_t block)
{
    return (tamis_tensor_place){block == 0 ? config->num_hidden_layers : -2, TAMIS_GROUP_MTP};
}

tamis_tensor_place tamis_tensor_place_of(const tamis_model_config *config, const char *name)
{
    const tamis_names *names = tamis_names_of(config->family);
    const char *bare = skip(name, "model.");
    int32_t layer;
    const char *rest = rest_of_layer(bare, &layer);
    if (rest != NULL && names->mtp_prefix == NULL && layer >= config->num_hidden_layers)
        return mtp_place(config, layer - config->num_hidden_layers);
    if (rest != NULL)
        return (tamis_tensor_place){layer, group_of(names->of_layer, rest)};
    const tamis_weight_group group = group_of(names->of_model, bare);
    if (group == TAMIS_GROUP_MTP)
        return mtp_place(config, skip(bare, names->mtp_prefix) != bare ? 0 : -1);
    return (tamis_tensor_place){group == TAMIS_GROUP_UNKNOWN ? -2 : -1, group};
}

const char *tamis_weight_group_name(tamis_weight_group group)
{
    static const char *const groups[TAMIS_NUM_GROUPS] = {
        "embedding", "norms",   "attention", "compressor",     "indexer", "hyper-connections",
        "dense mlp", "router",  "experts",   "shared experts", "head",    "mtp",
        "dspark",    "unknown",
    };
    return groups[group];
}
