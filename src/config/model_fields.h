/*
 * Parts of reading config.json, called in this order by model_config.c: plain fields, layers (they
 * need num_hidden_layers), rope (it needs head_dim and the layers), tokens and sampling.
 */
#ifndef TAMIS_CONFIG_MODEL_FIELDS_H
#define TAMIS_CONFIG_MODEL_FIELDS_H

#include "config/config_json.h"
#include "config/model_config.h"

/* compress_ratios or layer_types, num_hash_layers or mlp_layer_types, IndexCache, indexer fields.
 */
tamis_status tamis_config_read_layers(tamis_model_config *out, const tamis_config_object *root);
/* rope_theta, compress_rope_theta, rope_scaling or rope_parameters, rotated channels. */
tamis_status tamis_config_read_rope(tamis_model_config *out, const tamis_config_object *root);
/* bos_token_id, eos_token_id (integer or list); both files may have them. */
tamis_status tamis_config_read_tokens(tamis_model_config *out, const tamis_config_object *root);
/* Sampling fields of generation_config.json. */
tamis_status tamis_config_read_sampling(tamis_model_config *out, const tamis_config_object *root);

#endif
