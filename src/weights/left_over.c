#include "weights/left_over.h"

#include <string.h>

#include "core/error.h"
#include "weights/quant_names.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether `name` is the weight in one of its spellings. */
static bool is_weight(const tamis_binder *b, const char *name, tamis_weight weight, int32_t layer)
{
    const tamis_weight_place at = {.layer = layer};
    char spelling[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_names_spell(b->names, spelling, weight, at, i); i++)
        if (strcmp(name, spelling) == 0)
            return true;
    return false;
}

static bool is_indexer_not_run(const tamis_binder *b, tamis_tensor_place place)
{
    return place.layer >= 0 && place.group == TAMIS_GROUP_INDEXER &&
           b->config->reuse_topk[place.layer];
}

/*
 * Vendors write folders with indexers in all layers and let IndexCache be switched on over them;
 * only GLM's leave out those that its config does not run, so one that is there contradicts it.
 */
static bool may_hold_indexers(const tamis_model_config *config)
{
    return config->family != TAMIS_FAMILY_GLM_MOE_DSA || config->is_sharing_given;
}

/* Of zeros: both signs of a float zero, and nothing else. */
static bool is_zero(const tamis_tensor *tensor)
{
    const uint64_t width = (uint64_t)tamis_dtype_bits(tensor->dtype) / 8;
    if (tensor->dtype > TAMIS_DTYPE_F16)
        return false;
    for (uint64_t i = 0; i < tensor->bytes; i++)
        if ((tensor->data[i] & (i % width == width - 1 ? 0x7f : 0xff)) != 0)
            return false;
    return true;
}

/* Ascend's quantiser writes norms with a bias whether it moved something there or not. */
static bool is_norm_bias(const tamis_binder *b, const tamis_tensor *tensor)
{
    return tamis_checkpoint_description(b->checkpoint) != NULL &&
           ends_with(tensor->name, "norm.bias");
}

/* The results are the same without it. */
static bool changes_nothing(const tamis_binder *b, const tamis_tensor *tensor,
                            tamis_tensor_place place)
{
    const char *name = tensor->name;
    if (is_norm_bias(b, tensor) && is_zero(tensor))
        return true;
    if (place.layer < 0)
        return false;
    return (is_indexer_not_run(b, place) && may_hold_indexers(b->config)) ||
           (b->config->is_hash_layer[place.layer] &&
            is_weight(b, name, TAMIS_WEIGHT_GATE_BIAS, place.layer)) ||
           ends_with(name, "rotary_emb.inv_freq");
}

/* What belongs to a quantised weight, beside one that is not, or not so. */
static tamis_status refuse_companion(const tamis_binder *b, const tamis_tensor *tensor,
                                     const char *owner)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    const char *file = tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx);
    tamis_quant_scheme scheme;
    if (d == NULL)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: tensor %s is there, allowed: none where the folder has no "
                          "quant_model_description.json (W8A8)",
                          file, tensor->name);
    TAMIS_TRY(tamis_quant_description_scheme(d, owner, &scheme, b->err));
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is there, allowed: none, %s is %s in %s", file, tensor->name,
                      owner, tamis_quant_scheme_name(scheme), tamis_quant_description_path(d));
}

static tamis_status refuse(const tamis_binder *b, const tamis_tensor *tensor,
                           tamis_tensor_place place)
{
    const char *file = tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx);
    char owner[TAMIS_NAME_BYTES];
    if (tamis_companion_owner(owner, tensor->name))
        return refuse_companion(b, tensor, owner);
    if (is_norm_bias(b, tensor))
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: tensor %s is there and not 0, allowed: norms without a bias, or one "
                          "of zeros in F32, BF16 or F16 (V3.2, GLM: q_a_layernorm any)",
                          file, tensor->name);
    if (is_indexer_not_run(b, place))
        return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                          "%s: tensor %s is there, allowed: no indexer, by config.json layer %d "
                          "shares an earlier selection",
                          file, tensor->name, place.layer);
    if (place.layer < 0)
        return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                          "%s: tensor %s is not part of this model, allowed: of the embedding, the "
                          "last norm and the head one spelling each and no bias",
                          file, tensor->name);
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is not part of this model, allowed: in layer %d the weights "
                      "that config.json asks for and no others",
                      file, tensor->name, place.layer);
}

tamis_status tamis_binder_refuse_left_over(const tamis_binder *b)
{
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(b->checkpoint); i++) {
        const tamis_tensor *tensor = tamis_checkpoint_tensor(b->checkpoint, i);
        const tamis_tensor_place place = tamis_tensor_place_of(b->config, tensor->name);
        const bool is_main = place.layer >= -1 && place.layer < b->config->num_hidden_layers;
        if (is_main && !tensor->is_used && !changes_nothing(b, tensor, place))
            TAMIS_TRY(refuse(b, tensor, place));
    }
    return TAMIS_STATUS_OK;
}
