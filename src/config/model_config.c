/*
 * Order: family, plain fields, experts, things that must not be asked for, layers, rope, fields
 * that must fit together, tokens, generation_config.json.
 */
#include "config/model_config.h"

#include <string.h>

#include "config/model_fields.h"
#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"

#define MAX_CONFIG_BYTES     ((size_t)4 << 20)
#define MAX_GENERATION_BYTES ((size_t)1 << 20)

/* ---------------------------------------------------------------- fields that must fit together */

static tamis_status check_together(const tamis_model_config *c, const tamis_config_object *root)
{
    if (!tamis_config_has_latent(c) && c->num_attention_heads % c->o_groups != 0)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "o_groups",
                                   tamis_config_get(root, "o_groups"),
                                   "a divisor of num_attention_heads %d", c->num_attention_heads);
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

static tamis_status read_config(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_read_family(out, root));
    TAMIS_TRY(tamis_config_read_plain(out, root));
    TAMIS_TRY(tamis_config_read_experts(out, root));
    TAMIS_TRY(tamis_config_check_variants(out, root));
    TAMIS_TRY(tamis_config_read_quantization(out, root));
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
    tamis_model_config config;
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

tamis_sfa_config tamis_model_config_sfa(const tamis_model_config *config, int32_t layer)
{
    return (tamis_sfa_config){
        .hidden_size = config->hidden_size,
        .num_heads = config->num_attention_heads,
        .q_lora_rank = config->q_lora_rank,
        .kv_lora_rank = config->kv_lora_rank,
        .qk_nope_head_dim = config->qk_nope_head_dim,
        .qk_rope_head_dim = config->qk_rope_head_dim,
        .v_head_dim = config->v_head_dim,
        .index_n_heads = config->index_n_heads,
        .index_head_dim = config->index_head_dim,
        .index_topk = config->index_topk,
        .index_rope_interleave = config->index_rope_interleave,
        .reuse_topk = config->reuse_topk[layer],
        .rms_norm_eps = config->rms_norm_eps,
        .softmax_scale =
            tamis_sfa_softmax_scale(config->qk_nope_head_dim + config->qk_rope_head_dim,
                                    config->rope.yarn_factor, config->mscale_all_dim),
        .rope = config->rope,
    };
}
