#include "weights/left_over.h"

#include <string.h>

#include "core/error.h"

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

/* The results are the same without it. */
static bool changes_nothing(const tamis_binder *b, const char *name, tamis_tensor_place place)
{
    if (place.layer < 0)
        return false;
    return (is_indexer_not_run(b, place) && may_hold_indexers(b->config)) ||
           (b->config->is_hash_layer[place.layer] &&
            is_weight(b, name, TAMIS_WEIGHT_GATE_BIAS, place.layer)) ||
           ends_with(name, "rotary_emb.inv_freq");
}

/* Of activations in 8 bits (W8A8), in the names of the tools that make such folders. */
static bool is_quantisation(const char *name)
{
    static const char *const ends[] = {".input_scale", ".input_offset",  ".quant_bias",
                                       ".deq_scale",   ".weight_offset", ".weight_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static tamis_status refuse(const tamis_binder *b, const tamis_tensor *tensor,
                           tamis_tensor_place place)
{
    const char *file = tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx);
    if (is_quantisation(tensor->name))
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: tensor %s is there, allowed: none, tamis runs no quantised "
                          "activations (W8A8)",
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
        if (is_main && !tensor->is_used && !changes_nothing(b, tensor->name, place))
            TAMIS_TRY(refuse(b, tensor, place));
    }
    return TAMIS_STATUS_OK;
}
