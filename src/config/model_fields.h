/*
 * Parts of reading config.json, called in this order by model_config.c: family (it sets the
 * defaults), plain fields, experts, variants, layers (they need num_hidden_layers), rope (it needs
 * head_dim and the layers), tokens and sampling.
 */
#ifndef TAMIS_CONFIG_MODEL_FIELDS_H
#define TAMIS_CONFIG_MODEL_FIELDS_H

#include "config/config_json.h"
#include "config/model_config.h"

/* V3.2 and GLM: latent attention, dense and sparse layers. V4 is the other kind. */
static inline bool tamis_config_has_latent(const tamis_model_config *config)
{
    return config->family != TAMIS_FAMILY_DEEPSEEK_V4;
}

/* architectures and model_type; all of *out is set to the family's defaults. */
tamis_status tamis_config_read_family(tamis_model_config *out, const tamis_config_object *root);
/* Integers and floats that need nothing else; each family has its own set. */
tamis_status tamis_config_read_plain(tamis_model_config *out, const tamis_config_object *root);
/* Numbers of experts and groups, scoring_func. */
tamis_status tamis_config_read_experts(tamis_model_config *out, const tamis_config_object *root);
/* Keys that may only have the value that tamis computes. */
tamis_status tamis_config_check_variants(const tamis_model_config *config,
                                         const tamis_config_object *root);
/* quantization_config */
tamis_status tamis_config_read_quantization(tamis_model_config *out,
                                            const tamis_config_object *root);
/* compress_ratios or layer_types; hash or dense layers; index sharing; indexer fields. */
tamis_status tamis_config_read_layers(tamis_model_config *out, const tamis_config_object *root);
/* The part of it that says which layers reuse a selection. */
tamis_status tamis_config_read_sharing(tamis_model_config *out, const tamis_config_object *root);
/* rope_theta, compress_rope_theta, rope_scaling or rope_parameters, rotated channels. */
tamis_status tamis_config_read_rope(tamis_model_config *out, const tamis_config_object *root);
/* bos_token_id, eos_token_id (integer or list); both files may have them. */
tamis_status tamis_config_read_tokens(tamis_model_config *out, const tamis_config_object *root);
/* Sampling fields of generation_config.json. */
tamis_status tamis_config_read_sampling(tamis_model_config *out, const tamis_config_object *root);

#endif
