/*
 * Order: family, plain fields, things that must not be asked for, layers, rope, fields that must
 * fit together, tokens, generation_config.json.
 *
 * The ranges are far above any real model and far below what could overflow a product of three
 * dimensions in 64 bits; each dimension fits 21 bits, vocab_size 24.
 */
#include "config/model_config.h"

#include <math.h>
#include <string.h>

#include "config/model_fields.h"
#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"

#define MAX_CONFIG_BYTES     ((size_t)4 << 20)
#define MAX_GENERATION_BYTES ((size_t)1 << 20)

/* ---------------------------------------------------------------- family */

static const char family_name[] = "deepseek_v4";
static const char family_architecture[] = "DeepseekV4ForCausalLM";

/* architectures[0], or NULL */
static tamis_status read_architecture(const tamis_config_object *root, const char **out)
{
    const json_t *list = NULL;
    TAMIS_TRY(tamis_config_list(root, "architectures", 0, 16, &list));
    const json_t *first = json_array_get(list, 0);
    if (first != NULL && !json_is_string(first))
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "architectures[0]", first,
                                   "a string");
    *out = json_string_value(first);
    return TAMIS_STATUS_OK;
}

/* Similar configs of other families must not slip through: a name that is there must be ours. */
static tamis_status check_family(const tamis_config_object *root)
{
    const char *architecture = NULL, *type = NULL;
    TAMIS_TRY(read_architecture(root, &architecture));
    TAMIS_TRY(tamis_config_text(root, "model_type", &type));
    if (architecture == NULL && type == NULL)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "model_type", NULL, "%s",
                                   family_name);
    if (type != NULL && strcmp(type, family_name) != 0)
        return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "model_type",
                                   tamis_config_get(root, "model_type"), "%s", family_name);
    if (architecture != NULL && strcmp(architecture, family_architecture) != 0)
        return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "architectures[0]",
                                   json_array_get(tamis_config_get(root, "architectures"), 0),
                                   "%s (model_type %s)", family_architecture, family_name);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- plain fields */

typedef struct int_field {
    const char *key;
    size_t offset;
    int32_t min, max;
    bool is_required;
} int_field;

#define FIELD(key, member, min, max, is_required)                                                  \
    {                                                                                              \
        key, offsetof(tamis_model_config, member), min, max, is_required                           \
    }

static const int_field int_fields[] = {
    FIELD("vocab_size", vocab_size, 1, 1 << 24, true),
    FIELD("hidden_size", hidden_size, 1, 1 << 17, true),
    FIELD("num_hidden_layers", num_hidden_layers, 1, TAMIS_MAX_LAYERS - 16, true),
    FIELD("num_nextn_predict_layers", num_nextn_predict_layers, 0, 16, false),
    FIELD("max_position_embeddings", max_position_embeddings, 1, 1 << 26, true),
    FIELD("num_attention_heads", num_attention_heads, 1, 1024, true),
    FIELD("head_dim", head_dim, 2, 4096, true),
    FIELD("q_lora_rank", q_lora_rank, 1, 1 << 16, true),
    FIELD("o_groups", o_groups, 1, TAMIS_DSA_MAX_GROUPS, true),
    FIELD("o_lora_rank", o_lora_rank, 1, 1 << 13, true),
    FIELD("sliding_window", sliding_window, 1, 1 << 16, true),
    FIELD("moe_intermediate_size", moe_intermediate_size, 1, 1 << 17, true),
    FIELD("n_shared_experts", n_shared_experts, 0, 16, true),
    FIELD("num_experts_per_tok", num_experts_per_tok, 1, TAMIS_MAX_EXPERTS_PER_TOK, true),
    FIELD("hc_mult", hc_mult, 1, TAMIS_MAX_HC_MULT, true),
    FIELD("hc_sinkhorn_iters", hc_sinkhorn_iters, 1, 1000, true),
};

static tamis_status read_int_fields(tamis_model_config *out, const tamis_config_object *root)
{
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++) {
        const int_field *field = &int_fields[i];
        int32_t *value = (int32_t *)((char *)out + field->offset);
        if (field->is_required)
            TAMIS_TRY(tamis_config_require(root, field->key));
        TAMIS_TRY(tamis_config_int(root, field->key, field->min, field->max, value));
    }
    return TAMIS_STATUS_OK;
}

/* Three names for the same number; those that are there must agree. */
static tamis_status read_num_experts(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const keys[] = {"n_routed_experts", "num_local_experts", "num_experts"};
    int32_t min = 1, max = 4096;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        TAMIS_TRY(tamis_config_int(root, keys[i], min, max, &out->n_routed_experts));
        if (tamis_config_get(root, keys[i]) != NULL)
            min = max = out->n_routed_experts;
    }
    return out->n_routed_experts > 0 ? TAMIS_STATUS_OK : tamis_config_require(root, keys[0]);
}

static tamis_status read_scoring(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const names[] = {[TAMIS_SCORING_SQRTSOFTPLUS] = "sqrtsoftplus",
                                        [TAMIS_SCORING_SIGMOID] = "sigmoid",
                                        [TAMIS_SCORING_SOFTMAX] = "softmax"};
    const char *name = names[0];
    TAMIS_TRY(tamis_config_text(root, "scoring_func", &name));
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            out->scoring_func = (tamis_scoring_func)i;
            return TAMIS_STATUS_OK;
        }
    return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "scoring_func",
                               tamis_config_get(root, "scoring_func"),
                               "sqrtsoftplus, sigmoid, softmax");
}

static tamis_status read_float_fields(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_require(root, "rms_norm_eps"));
    TAMIS_TRY(tamis_config_float(root, "rms_norm_eps", 1e-12f, 1.0f, &out->rms_norm_eps));
    TAMIS_TRY(tamis_config_require(root, "hc_eps"));
    TAMIS_TRY(tamis_config_float(root, "hc_eps", 0.0f, 1.0f, &out->hc_eps));
    TAMIS_TRY(tamis_config_require(root, "routed_scaling_factor"));
    TAMIS_TRY(tamis_config_float(root, "routed_scaling_factor", 1e-6f, 1e6f,
                                 &out->routed_scaling_factor));
    float limit = 0.0f; /* absent or 0: no clamp */
    TAMIS_TRY(tamis_config_float(root, "swiglu_limit", 0.0f, 1e30f, &limit));
    out->swiglu_limit = limit == 0.0f ? INFINITY : limit;
    return tamis_config_bool(root, "norm_topk_prob", &out->norm_topk_prob);
}

/* ---------------------------------------------------------------- what must not be asked for */

static tamis_status expect_int(const tamis_config_object *root, const char *key, int32_t wanted)
{
    int32_t value = wanted;
    TAMIS_TRY(tamis_config_int(root, key, INT32_MIN, INT32_MAX, &value));
    return value == wanted ? TAMIS_STATUS_OK
                           : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                                 tamis_config_get(root, key), "%d", wanted);
}

static tamis_status expect_false(const tamis_config_object *root, const char *key)
{
    bool value = false;
    TAMIS_TRY(tamis_config_bool(root, key, &value));
    return value ? tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                       tamis_config_get(root, key), "false")
                 : TAMIS_STATUS_OK;
}

static tamis_status expect_text(const tamis_config_object *root, const char *key,
                                const char *wanted)
{
    const char *value = wanted;
    TAMIS_TRY(tamis_config_text(root, key, &value));
    return strcmp(value, wanted) == 0
               ? TAMIS_STATUS_OK
               : tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, key,
                                     tamis_config_get(root, key), "%s", wanted);
}

static tamis_status check_variants(const tamis_config_object *root)
{
    TAMIS_TRY(expect_int(root, "num_key_value_heads", 1));
    TAMIS_TRY(expect_int(root, "n_group", 1));
    TAMIS_TRY(expect_int(root, "topk_group", 1));
    TAMIS_TRY(expect_int(root, "moe_layer_freq", 1));
    TAMIS_TRY(expect_int(root, "first_k_dense_replace", 0));
    TAMIS_TRY(expect_false(root, "attention_bias"));
    TAMIS_TRY(expect_false(root, "mlp_bias"));
    TAMIS_TRY(expect_false(root, "tie_word_embeddings"));
    TAMIS_TRY(expect_text(root, "hidden_act", "silu"));
    return expect_text(root, "topk_method", "noaux_tc");
}

/* ---------------------------------------------------------------- number formats */

static tamis_status read_block_size(tamis_model_config *out, const tamis_config_object *quant)
{
    const json_t *block = NULL;
    int32_t *sizes[2] = {&out->weight_block_rows, &out->weight_block_cols};
    TAMIS_TRY(tamis_config_list(quant, "weight_block_size", 2, 2, &block));
    for (size_t i = 0; block != NULL && i < 2; i++) {
        TAMIS_TRY(
            tamis_config_item_int(quant, "weight_block_size", block, i, 1, INT32_MAX, sizes[i]));
        if (*sizes[i] != 128)
            return tamis_config_refuse(quant, TAMIS_STATUS_UNSUPPORTED,
                                       i == 0 ? "weight_block_size[0]" : "weight_block_size[1]",
                                       json_array_get(block, i), "128");
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_quantization(tamis_model_config *out, const tamis_config_object *root)
{
    tamis_config_object quant;
    TAMIS_TRY(tamis_config_child(root, "quantization_config", "quantization_config.", &quant));
    out->weight_block_rows = out->weight_block_cols = 128;
    if (quant.json == NULL)
        return TAMIS_STATUS_OK;
    out->has_quantization = true;
    TAMIS_TRY(expect_text(&quant, "quant_method", "fp8"));
    TAMIS_TRY(expect_text(&quant, "fmt", "e4m3"));
    return read_block_size(out, &quant);
}

/* ---------------------------------------------------------------- fields that must fit together */

static tamis_status check_together(const tamis_model_config *c, const tamis_config_object *root)
{
    if (c->num_attention_heads % c->o_groups != 0)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "o_groups",
                                   tamis_config_get(root, "o_groups"),
                                   "a divisor of num_attention_heads %d", c->num_attention_heads);
    if (c->num_experts_per_tok > c->n_routed_experts)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "num_experts_per_tok",
                                   tamis_config_get(root, "num_experts_per_tok"),
                                   "at most n_routed_experts %d", c->n_routed_experts);
    if (c->qk_rope_head_dim % 2 != 0)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "qk_rope_head_dim",
                                   tamis_config_get(root, "qk_rope_head_dim"), "an even number");
    if (c->index_head_dim != 0 && c->index_head_dim < c->qk_rope_head_dim)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "index_head_dim",
                                   tamis_config_get(root, "index_head_dim"),
                                   "at least qk_rope_head_dim %d", c->qk_rope_head_dim);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- all of it */

static tamis_model_config defaults(void)
{
    return (tamis_model_config){.family = TAMIS_FAMILY_DEEPSEEK_V4,
                                .family_name = family_name,
                                .norm_topk_prob = true,
                                .bos_token_id = -1,
                                .do_sample = true,
                                .temperature = 1.0f,
                                .top_p = 1.0f};
}

static tamis_status read_config(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(check_family(root));
    TAMIS_TRY(read_int_fields(out, root));
    TAMIS_TRY(read_num_experts(out, root));
    TAMIS_TRY(read_float_fields(out, root));
    TAMIS_TRY(read_scoring(out, root));
    TAMIS_TRY(check_variants(root));
    TAMIS_TRY(read_quantization(out, root));
    TAMIS_TRY(tamis_config_read_layers(out, root));
    TAMIS_TRY(tamis_config_read_rope(out, root));
    TAMIS_TRY(check_together(out, root));
    return tamis_config_read_tokens(out, root);
}

static tamis_status read_generation(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_read_tokens(out, root));
    return tamis_config_read_sampling(out, root);
}

tamis_status tamis_model_config_parse(tamis_model_config *out, const char *path, const char *text,
                                      size_t bytes, const char *generation, size_t generation_bytes,
                                      tamis_error *err)
{
    tamis_model_config config = defaults();
    json_t *json = NULL;
    TAMIS_TRY(tamis_config_json_parse(&json, path, text, bytes, err));
    tamis_status st = read_config(&config, &(tamis_config_object){json, path, "", err});
    json_decref(json);
    if (st != TAMIS_STATUS_OK)
        return st;
    if (generation != NULL) {
        static const char generation_path[] = "generation_config.json";
        TAMIS_TRY(
            tamis_config_json_parse(&json, generation_path, generation, generation_bytes, err));
        st = read_generation(&config, &(tamis_config_object){json, generation_path, "", err});
        json_decref(json);
    }
    if (st == TAMIS_STATUS_OK)
        *out = config;
    return st;
}

/* A file of the folder; *text stays NULL if it is optional and not there. */
static tamis_status read_file(char **path, char **text, size_t *bytes, const char *dir,
                              const char *name, size_t max_bytes, bool is_optional,
                              tamis_error *err)
{
    *path = tamis_path_join(dir, name);
    if (*path == NULL)
        return tamis_fail_memory(err, name, strlen(dir) + strlen(name) + 2);
    if (is_optional && !tamis_file_exists(*path))
        return TAMIS_STATUS_OK;
    return tamis_file_read(text, bytes, *path, max_bytes, err);
}

tamis_status tamis_model_config_read(tamis_model_config *out, const char *dir, tamis_error *err)
{
    char *path = NULL, *text = NULL, *generation_path = NULL, *generation = NULL;
    size_t bytes = 0, generation_bytes = 0;
    tamis_status st =
        read_file(&path, &text, &bytes, dir, "config.json", MAX_CONFIG_BYTES, false, err);
    if (st == TAMIS_STATUS_OK)
        st = read_file(&generation_path, &generation, &generation_bytes, dir,
                       "generation_config.json", MAX_GENERATION_BYTES, true, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_model_config_parse(out, path, text, bytes, generation, generation_bytes, err);
    tamis_mem_free(path);
    tamis_mem_free(text);
    tamis_mem_free(generation_path);
    tamis_mem_free(generation);
    return st;
}

tamis_dsa_config tamis_model_config_dsa(const tamis_model_config *config, int32_t layer)
{
    const int32_t ratio = config->compress_ratios[layer];
    return (tamis_dsa_config){
        .hidden_size = config->hidden_size,
        .num_heads = config->num_attention_heads,
        .head_dim = config->head_dim,
        .rope_head_dim = config->qk_rope_head_dim,
        .q_lora_rank = config->q_lora_rank,
        .o_groups = config->o_groups,
        .o_lora_rank = config->o_lora_rank,
        .sliding_window = config->sliding_window,
        .compress_ratio = ratio,
        .index_n_heads = config->index_n_heads,
        .index_head_dim = config->index_head_dim,
        .index_topk = config->index_topk,
        .reuse_topk = config->reuse_topk[layer],
        .rms_norm_eps = config->rms_norm_eps,
        .rope = ratio == 0 ? config->rope_window : config->rope_compress,
    };
}
