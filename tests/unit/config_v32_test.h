/* The published configs of V3.2 and GLM-5, and what their tests share. */
#ifndef TAMIS_TEST_CONFIG_V32_H
#define TAMIS_TEST_CONFIG_V32_H

#include "config_test.h"

/* V3.2 as published. */
static const char v32[] =
    "{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\","
    " \"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 0,"
    " \"eos_token_id\": 1, \"ep_size\": 1, \"first_k_dense_replace\": 3,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 7168, \"index_head_dim\": 128,"
    " \"index_n_heads\": 64, \"index_topk\": 2048, \"initializer_range\": 0.02,"
    " \"intermediate_size\": 18432, \"kv_lora_rank\": 512, \"max_position_embeddings\": 163840,"
    " \"moe_intermediate_size\": 2048, \"moe_layer_freq\": 1, \"n_group\": 8,"
    " \"n_routed_experts\": 256, \"n_shared_experts\": 1, \"norm_topk_prob\": true,"
    " \"num_attention_heads\": 128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 61,"
    " \"num_key_value_heads\": 128, \"num_nextn_predict_layers\": 1, \"q_lora_rank\": 1536,"
    " \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
    " \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\","
    "  \"quant_method\": \"fp8\", \"scale_fmt\": \"ue8m0\", \"weight_block_size\": [128, 128]},"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1,"
    "  \"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
    "  \"original_max_position_embeddings\": 4096, \"type\": \"yarn\"},"
    " \"rope_theta\": 10000, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\","
    " \"tie_word_embeddings\": false, \"topk_group\": 4, \"topk_method\": \"noaux_tc\","
    " \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"v_head_dim\": 128,"
    " \"vocab_size\": 129280}";

/* GLM-5 as published. */
static const char glm5[] =
    "{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"model_type\": \"glm_moe_dsa\","
    " \"attention_bias\": false, \"attention_dropout\": 0.0, \"dtype\": \"bfloat16\","
    " \"eos_token_id\": [154820, 154827, 154829], \"ep_size\": 1, \"first_k_dense_replace\": 3,"
    " \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 6144, \"index_head_dim\": 128,"
    " \"index_n_heads\": 32, \"index_topk\": 2048, \"indexer_rope_interleave\": true,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 12288, \"kv_lora_rank\": 512,"
    " \"max_position_embeddings\": 202752, \"moe_intermediate_size\": 2048,"
    " \"moe_layer_freq\": 1, \"n_group\": 1, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"
    " \"norm_topk_prob\": true, \"num_attention_heads\": 64, \"num_experts_per_tok\": 8,"
    " \"num_hidden_layers\": 78, \"num_key_value_heads\": 64, \"num_nextn_predict_layers\": 1,"
    " \"pad_token_id\": 154820, \"pretraining_tp\": 1, \"q_lora_rank\": 2048,"
    " \"qk_head_dim\": 256, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64,"
    " \"rms_norm_eps\": 1e-05, \"rope_interleave\": true,"
    " \"rope_parameters\": {\"rope_theta\": 1000000, \"rope_type\": \"default\"},"
    " \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\","
    " \"tie_word_embeddings\": false, \"topk_group\": 1, \"topk_method\": \"noaux_tc\","
    " \"use_cache\": true, \"v_head_dim\": 256, \"vocab_size\": 154880}";

#define EXPECT_ALL_REFUSED(good, cases)                                                            \
    expect_all_refused(good, cases, sizeof cases / sizeof *cases)

/* JSON list of n strings: `b` where the pattern has an S, else `a`; past its end `a`. */
static inline void write_list(char *out, size_t bytes, const char *pattern, int n, const char *a,
                              const char *b)
{
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        const bool is_b = (size_t)i < strlen(pattern) && pattern[i] == 'S';
        used += (size_t)snprintf(out + used, bytes - used, "%s\"%s\"", i == 0 ? "[" : ", ",
                                 is_b ? b : a);
        assert_true(used + 2 < bytes);
    }
    strcpy(out + used, "]");
}

/* F and S of every main layer; the attention of each says the same. */
static inline void write_pattern(char out[TAMIS_MAX_LAYERS + 1], const tamis_model_config *c)
{
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        out[i] = c->reuse_topk[i] ? 'S' : 'F';
        assert_int_equal(tamis_model_config_sfa(c, i).reuse_topk, c->reuse_topk[i]);
    }
    out[c->num_hidden_layers] = '\0';
    assert_int_equal(c->has_index_cache, strchr(out, 'S') != NULL);
    for (int32_t i = c->num_hidden_layers; i < TAMIS_MAX_LAYERS; i++)
        assert_false(c->reuse_topk[i]); /* MTP blocks never share */
}

#endif
