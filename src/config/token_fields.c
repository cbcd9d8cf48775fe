/* Special token ids and sampling: what generation_config.json may override. */
#include "config/model_fields.h"

#include "core/error.h"

static tamis_status read_eos(tamis_model_config *out, const tamis_config_object *root)
{
    const json_t *value = tamis_config_get(root, "eos_token_id"), *list = NULL;
    const int32_t max_id = out->vocab_size - 1;
    if (value == NULL)
        return TAMIS_STATUS_OK;
    if (!json_is_array(value)) {
        TAMIS_TRY(tamis_config_int(root, "eos_token_id", 0, max_id, &out->eos_token_ids[0]));
        out->n_eos_token_ids = 1;
        return TAMIS_STATUS_OK;
    }
    TAMIS_TRY(tamis_config_list(root, "eos_token_id", 0, TAMIS_MAX_EOS, &list));
    out->n_eos_token_ids = (int32_t)json_array_size(list);
    for (int32_t i = 0; i < out->n_eos_token_ids; i++)
        TAMIS_TRY(tamis_config_item_int(root, "eos_token_id", list, (size_t)i, 0, max_id,
                                        &out->eos_token_ids[i]));
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_read_tokens(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_int(root, "bos_token_id", 0, out->vocab_size - 1, &out->bos_token_id));
    return read_eos(out, root);
}

tamis_status tamis_config_read_sampling(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_bool(root, "do_sample", &out->do_sample));
    TAMIS_TRY(tamis_config_float(root, "temperature", 0.0f, 100.0f, &out->temperature));
    TAMIS_TRY(tamis_config_int(root, "top_k", 0, INT32_MAX, &out->top_k));
    TAMIS_TRY(tamis_config_float(root, "top_p", 0.0f, 1.0f, &out->top_p));
    return tamis_config_float(root, "min_p", 0.0f, 1.0f, &out->min_p);
}
