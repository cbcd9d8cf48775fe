/*
 * config.json and generation_config.json -> one validated struct.
 *
 * Unknown keys and nulls are ignored; both spellings of every field are read: docs/models.md
 * lists them. Every value is range-checked here, so nothing later needs to doubt it.
 */
#ifndef TAMIS_CONFIG_MODEL_CONFIG_H
#define TAMIS_CONFIG_MODEL_CONFIG_H

#include "tamis/dsa.h"
#include "tamis/engine.h"
#include "tamis/sfa.h"

#define TAMIS_MAX_LAYERS          512 /* main and MTP layers; real models have up to 79 */
#define TAMIS_MAX_HC_MULT         16
#define TAMIS_MAX_EXPERTS_PER_TOK 64

typedef enum tamis_family {
    TAMIS_FAMILY_DEEPSEEK_V4 = 0,
    TAMIS_FAMILY_DEEPSEEK_V32,
    TAMIS_FAMILY_GLM_MOE_DSA
} tamis_family;

typedef enum tamis_scoring_func {
    TAMIS_SCORING_SQRTSOFTPLUS = 0,
    TAMIS_SCORING_SIGMOID,
    TAMIS_SCORING_SOFTMAX
} tamis_scoring_func;

typedef struct tamis_model_config {
    tamis_family family;
    const char *family_name; /* static: "deepseek_v4", "deepseek_v32", "glm_moe_dsa" */

    int32_t vocab_size, hidden_size, num_hidden_layers, num_nextn_predict_layers;
    int32_t max_position_embeddings;
    float rms_norm_eps;

    /* attention */
    int32_t num_attention_heads, head_dim, qk_rope_head_dim, q_lora_rank;
    int32_t o_groups, o_lora_rank, sliding_window;      /* V4 */
    int32_t kv_lora_rank, qk_nope_head_dim, v_head_dim; /* V3.2, GLM */
    int32_t index_n_heads, index_head_dim, index_topk;
    int32_t n_compress_ratios; /* V4: >= num_hidden_layers; the rest belongs to MTP blocks */
    int32_t compress_ratios[TAMIS_MAX_LAYERS]; /* V4 */
    /* Which layers use an earlier selection. V4, V3.2: use_index_cache with index_topk_freq or
     * index_topk_pattern. GLM: indexer_types, index_topk_pattern, or freq with offset. */
    bool reuse_topk[TAMIS_MAX_LAYERS];
    bool has_index_cache;
    bool is_index_cache_approximate; /* tamis_config_set_sharing made layers share beyond that */
    bool is_sharing_given;          /* reuse_topk is tamis_config_set_sharing's, not the config's */
    int32_t index_skip_topk_offset; /* of the rule of index_topk_freq: see index_sharing.c */
    /* GLM: the MTP block selects once per drafted sequence of tokens; later ones reuse that. */
    bool index_share_for_mtp_iteration;
    bool index_rope_interleave;      /* GLM true, V3.2 false: fixed per family */
    float mscale_all_dim;            /* V3.2: in the softmax scale; 0: none */
    tamis_rope_config rope_window;   /* V4 ratio 0: plain */
    tamis_rope_config rope_compress; /* V4 ratio 4 and 128: compress_rope_theta, YaRN */
    tamis_rope_config rope;          /* V3.2 (YaRN), GLM (plain): every layer */

    /* experts */
    int32_t moe_intermediate_size, n_routed_experts, n_shared_experts, num_experts_per_tok;
    bool is_hash_layer[TAMIS_MAX_LAYERS];  /* V4: num_hash_layers or mlp_layer_types */
    bool is_dense_layer[TAMIS_MAX_LAYERS]; /* V3.2, GLM: first_k_dense_replace or mlp_layer_types */
    int32_t intermediate_size;             /* width of dense layers; 0 in V4 */
    int32_t n_group, topk_group;           /* experts are chosen within the best groups; V4: 1 */
    tamis_scoring_func scoring_func;
    bool norm_topk_prob;
    float routed_scaling_factor;
    float swiglu_limit; /* +inf: none, as in V3.2 and GLM */

    /* residual streams of V4 */
    int32_t hc_mult, hc_sinkhorn_iters;
    float hc_eps;

    tamis_profile profile; /* not of the file: what the model was opened with */

    /* number formats as announced; the tensors decide */
    bool has_quantization;
    int32_t weight_block_rows, weight_block_cols; /* 128, 128 */

    int32_t bos_token_id; /* -1: none */
    int32_t eos_token_ids[TAMIS_MAX_EOS];
    int32_t n_eos_token_ids;

    /* generation_config.json */
    bool do_sample;
    float temperature, top_p, min_p;
    int32_t top_k;
} tamis_model_config;

/*
 * Reads dir/config.json and, if there, dir/generation_config.json.
 * errors: IO, FORMAT (file, key, value seen and allowed), UNSUPPORTED (family by its name, ratio,
 * scoring function, activation, attention bias, ... ), NO_MEMORY
 */
tamis_status tamis_model_config_read(tamis_model_config *out, const char *dir, tamis_error *err);
/* The same from text; generation may be NULL. `path` only names the file in messages. */
tamis_status tamis_model_config_parse(tamis_model_config *out, const char *path, const char *text,
                                      size_t bytes, const char *generation, size_t generation_bytes,
                                      tamis_error *err);
/*
 * Another reuse_topk, by a frequency or a pattern in place of the config's (index_sharing.c), for
 * any family. 0 and NULL leave it as it is. errors: INVALID
 */
tamis_status tamis_config_set_sharing(tamis_model_config *config, int32_t freq, const char *pattern,
                                      tamis_error *err);
/* Attention dimensions of a layer, of V4 and of the others; num_hidden_layers: of an MTP block. */
tamis_dsa_config tamis_model_config_dsa(const tamis_model_config *config, int32_t layer);
tamis_sfa_config tamis_model_config_sfa(const tamis_model_config *config, int32_t layer);

#endif
