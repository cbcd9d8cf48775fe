/*
 * Integers and floats that stand alone: one table says which families have a field.
 *
 * The ranges are far above any real model and far below what could overflow a product of three
 * dimensions in 64 bits: each dimension fits 21 bits, vocab_size 24, heads times channels 23.
 */
#include "config/model_fields.h"

#include <math.h>

#include "core/error.h"

enum {
    V4 = 1,
    LATENT = 2, /* V3.2, GLM */
    ALL = V4 | LATENT,
};

typedef struct int_field {
    const char *key;
    size_t offset;
    int32_t min, max;
    int read_by;
    bool is_required;
} int_field;

#define FIELD(key, member, min, max, read_by, is_required)                                         \
    {                                                                                              \
        key, offsetof(tamis_model_config, member), min, max, read_by, is_required                  \
    }

static const int_field int_fields[] = {
    FIELD("vocab_size", vocab_size, 1, 1 << 24, ALL, true),
    FIELD("hidden_size", hidden_size, 1, 1 << 17, ALL, true),
    FIELD("num_hidden_layers", num_hidden_layers, 1, TAMIS_MAX_LAYERS - 16, ALL, true),
    FIELD("num_nextn_predict_layers", num_nextn_predict_layers, 0, 16, ALL, false),
    FIELD("max_position_embeddings", max_position_embeddings, 1, 1 << 26, ALL, true),
    FIELD("num_attention_heads", num_attention_heads, 1, 1024, ALL, true),
    /* In a GLM config this key holds the rotated channels. */
    FIELD("head_dim", head_dim, 2, 4096, V4, true),
    FIELD("q_lora_rank", q_lora_rank, 1, 1 << 16, ALL, true),
    FIELD("o_groups", o_groups, 1, TAMIS_DSA_MAX_GROUPS, V4, true),
    FIELD("o_lora_rank", o_lora_rank, 1, 1 << 13, V4, true),
    FIELD("sliding_window", sliding_window, 1, 1 << 16, V4, true),
    FIELD("kv_lora_rank", kv_lora_rank, 1, 4096, LATENT, true),
    FIELD("qk_nope_head_dim", qk_nope_head_dim, 1, 4096, LATENT, true),
    FIELD("qk_rope_head_dim", qk_rope_head_dim, 2, 4096, LATENT, true), /* V4: rope_fields.c */
    FIELD("v_head_dim", v_head_dim, 1, 4096, LATENT, true),
    FIELD("intermediate_size", intermediate_size, 1, 1 << 17, LATENT, false),
    FIELD("moe_intermediate_size", moe_intermediate_size, 1, 1 << 17, ALL, true),
    FIELD("n_shared_experts", n_shared_experts, 0, 16, ALL, true),
    FIELD("num_experts_per_tok", num_experts_per_tok, 1, TAMIS_MAX_EXPERTS_PER_TOK, ALL, true),
    FIELD("hc_mult", hc_mult, 1, TAMIS_MAX_HC_MULT, V4, true),
    FIELD("hc_sinkhorn_iters", hc_sinkhorn_iters, 1, 1000, V4, true),
};

static tamis_status read_int_fields(tamis_model_config *out, const tamis_config_object *root)
{
    const int kind = tamis_config_has_latent(out) ? LATENT : V4;
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++) {
        const int_field *field = &int_fields[i];
        int32_t *value = (int32_t *)((char *)out + field->offset);
        if ((field->read_by & kind) == 0)
            continue;
        if (field->is_required)
            TAMIS_TRY(tamis_config_require(root, field->key));
        TAMIS_TRY(tamis_config_int(root, field->key, field->min, field->max, value));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_v4_floats(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_require(root, "hc_eps"));
    TAMIS_TRY(tamis_config_float(root, "hc_eps", 0.0f, 1.0f, &out->hc_eps));
    float limit = 0.0f; /* absent or 0: no clamp */
    TAMIS_TRY(tamis_config_float(root, "swiglu_limit", 0.0f, 1e30f, &limit));
    out->swiglu_limit = limit == 0.0f ? INFINITY : limit;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_read_plain(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(read_int_fields(out, root));
    TAMIS_TRY(tamis_config_require(root, "rms_norm_eps"));
    TAMIS_TRY(tamis_config_float(root, "rms_norm_eps", 1e-12f, 1.0f, &out->rms_norm_eps));
    TAMIS_TRY(tamis_config_require(root, "routed_scaling_factor"));
    TAMIS_TRY(tamis_config_float(root, "routed_scaling_factor", 1e-6f, 1e6f,
                                 &out->routed_scaling_factor));
    return tamis_config_has_latent(out) ? TAMIS_STATUS_OK : read_v4_floats(out, root);
}
