/* config.json of DeepSeek-V3.2 and GLM-5 / 5.2: values, spellings, refusals. */
#include "config_v32_test.h"

#include <math.h>

#include "attention/sfa/caches.h"

/* GLM-5.2 as published; to be freed. */
static char *glm52_text(void)
{
    char types[2048] = "FFF", mlp[2048], pattern[80] = "FFF";
    for (int i = 3; i < 78; i++)
        pattern[i] = (i - 2) % 4 == 0 ? 'F' : 'S';
    write_list(types, sizeof types, pattern, 78, "full", "shared");
    write_list(mlp, sizeof mlp, "SSS", 78, "sparse", "dense");
    return edited(glm5, "indexer_types", types, "mlp_layer_types", mlp, "index_topk_freq", "4",
                  "index_skip_topk_offset", "3", "index_topk_pattern", "null",
                  "index_share_for_mtp_iteration", "true", "moe_router_dtype", "\"float32\"",
                  "max_position_embeddings", "1048576", "rope_parameters.rope_theta", "8000000",
                  NULL);
}

/* ---------------------------------------------------------------- what is accepted */

static void test_v32_values(void **state)
{
    (void)state;
    const tamis_model_config c = parse_ok(v32, NULL);
    assert_int_equal(c.family, TAMIS_FAMILY_DEEPSEEK_V32);
    assert_string_equal(c.family_name, "deepseek_v32");
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 7168);
    assert_int_equal(c.num_hidden_layers, 61);
    assert_int_equal(c.num_nextn_predict_layers, 1);
    assert_int_equal(c.max_position_embeddings, 163840);
    assert_true(c.rms_norm_eps == 1e-6f);
    assert_int_equal(c.num_attention_heads, 128);
    assert_int_equal(c.q_lora_rank, 1536);
    assert_int_equal(c.kv_lora_rank, 512);
    assert_int_equal(c.qk_nope_head_dim, 128);
    assert_int_equal(c.qk_rope_head_dim, 64);
    assert_int_equal(c.v_head_dim, 128);
    assert_int_equal(c.index_n_heads, 64);
    assert_int_equal(c.index_head_dim, 128);
    assert_int_equal(c.index_topk, 2048);
    assert_false(c.index_rope_interleave);
    assert_false(c.has_index_cache);
    assert_true(c.rope.theta == 10000.0f && c.rope.yarn_factor == 40.0f);
    assert_true(c.rope.beta_fast == 32.0f && c.rope.beta_slow == 1.0f);
    assert_int_equal(c.rope.original_max_position, 4096);
    assert_true(c.mscale_all_dim == 1.0f);
    assert_int_equal(c.intermediate_size, 18432);
    assert_int_equal(c.moe_intermediate_size, 2048);
    assert_int_equal(c.n_routed_experts, 256);
    assert_int_equal(c.n_shared_experts, 1);
    assert_int_equal(c.num_experts_per_tok, 8);
    assert_int_equal(c.n_group, 8);
    assert_int_equal(c.topk_group, 4);
    for (int32_t i = 0; i < 61; i++)
        assert_int_equal(c.is_dense_layer[i], i < 3);
    assert_int_equal(c.scoring_func, TAMIS_SCORING_SIGMOID);
    assert_true(c.norm_topk_prob && c.routed_scaling_factor == 2.5f);
    assert_true(isinf(c.swiglu_limit) && c.swiglu_limit > 0);
    assert_true(c.has_quantization && c.weight_block_rows == 128 && c.weight_block_cols == 128);
    assert_int_equal(c.bos_token_id, 0);
    assert_int_equal(c.n_eos_token_ids, 1);
    assert_int_equal(c.eos_token_ids[0], 1);
    /* The vendor's recommendation, until generation_config.json says otherwise. */
    assert_true(c.do_sample && c.temperature == 1.0f && c.top_p == 0.95f);
}

static void test_glm5_values(void **state)
{
    (void)state;
    static const int32_t eos[] = {154820, 154827, 154829};
    char pattern[TAMIS_MAX_LAYERS + 1];
    const tamis_model_config c = parse_ok(glm5, NULL);
    assert_int_equal(c.family, TAMIS_FAMILY_GLM_MOE_DSA);
    assert_string_equal(c.family_name, "glm_moe_dsa");
    assert_int_equal(c.num_hidden_layers, 78);
    assert_int_equal(c.num_attention_heads, 64);
    assert_int_equal(c.qk_nope_head_dim, 192);
    assert_int_equal(c.v_head_dim, 256);
    assert_true(c.rms_norm_eps == 1e-5f);
    assert_true(c.index_rope_interleave);
    assert_true(c.rope.theta == 1e6f && c.rope.yarn_factor == 1.0f && c.mscale_all_dim == 0.0f);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
    assert_false(c.has_quantization);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.n_eos_token_ids, 3);
    assert_memory_equal(c.eos_token_ids, eos, sizeof eos);
    write_pattern(pattern, &c);
    assert_null(strchr(pattern, 'S'));
    assert_true(c.top_p == 0.95f);
}

/* Spec 2.4: 21 full layers, 0, 1, 2, 6, 10, ... 74. */
static void test_glm52_values(void **state)
{
    (void)state;
    char *text = glm52_text(), pattern[TAMIS_MAX_LAYERS + 1];
    const tamis_model_config c = parse_ok(text, NULL);
    int n_full = 0;
    write_pattern(pattern, &c);
    for (const char *p = pattern; *p != '\0'; p++)
        n_full += *p == 'F';
    assert_int_equal(n_full, 21);
    assert_true(pattern[0] == 'F' && pattern[1] == 'F' && pattern[2] == 'F' && pattern[3] == 'S');
    assert_true(pattern[74] == 'F' && pattern[77] == 'S');
    assert_true(c.rope.theta == 8e6f);
    /* The frequency alone means the same. */
    char *by_freq = edited(text, "indexer_types", NULL, "mlp_layer_types", NULL, NULL);
    const tamis_model_config same = parse_ok(by_freq, NULL);
    expect_same(&c, &same);
    free(by_freq);
    free(text);
}

static void test_attention_of_a_layer(void **state)
{
    (void)state;
    tamis_model_config c = parse_ok(v32, NULL);
    tamis_sfa_config layer = tamis_model_config_sfa(&c, 60);
    assert_int_equal(layer.hidden_size, 7168);
    assert_int_equal(layer.num_heads, 128);
    assert_int_equal(layer.q_lora_rank, 1536);
    assert_int_equal(layer.kv_lora_rank, 512);
    assert_int_equal(layer.qk_nope_head_dim, 128);
    assert_int_equal(layer.qk_rope_head_dim, 64);
    assert_int_equal(layer.v_head_dim, 128);
    assert_int_equal(layer.index_n_heads, 64);
    assert_int_equal(layer.index_head_dim, 128);
    assert_int_equal(layer.index_topk, 2048);
    assert_false(layer.index_rope_interleave || layer.reuse_topk);
    assert_true(layer.rms_norm_eps == 1e-6f && layer.softmax_scale == 0.13523378f);
    assert_memory_equal(&layer.rope, &c.rope, sizeof layer.rope);
    assert_int_equal(tamis_sfa_config_check(&layer, NULL), TAMIS_STATUS_OK);

    char *text = glm52_text();
    c = parse_ok(text, NULL);
    free(text);
    layer = tamis_model_config_sfa(&c, 3);
    assert_true(layer.index_rope_interleave && layer.reuse_topk);
    assert_int_equal(layer.index_topk, 2048); /* also where the selection is another layer's */
    assert_true(layer.softmax_scale == 0.0625f);
    assert_int_equal(tamis_sfa_config_check(&layer, NULL), TAMIS_STATUS_OK);
}

static void test_softmax_scale(void **state)
{
    (void)state;
    assert_true(tamis_sfa_softmax_scale(192, 40.0f, 1.0f) == 0.13523378f);
    assert_true(tamis_sfa_softmax_scale(256, 1.0f, 0.0f) == 0.0625f);
    /* No factor, or a factor without mscale: plain. */
    assert_true(tamis_sfa_softmax_scale(192, 1.0f, 1.0f) == 0.07216878f);
    assert_true(tamis_sfa_softmax_scale(192, 40.0f, 0.0f) == 0.07216878f);
    /* (0.05 ln 8 + 1)^2 / 8 */
    assert_true(fabs(tamis_sfa_softmax_scale(64, 8.0f, 0.5f) - 0.15234429) < 1e-7);
}

static void test_golden_folders(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        tamis_family family;
        int32_t hidden_size, n_dense, n_group, eos;
        const char *pattern;
        float yarn_factor, softmax_scale;
        bool has_quantization;
    } folders[] = {
        /* (0.1 ln 8 + 1)^2 = 1.4591290 */
        {"tests/golden/v32-bf16", TAMIS_FAMILY_DEEPSEEK_V32, 128, 1, 4, 1, "FFF", 8.0f, 0.21060714f,
         false},
        {"tests/golden/v32-fp8", TAMIS_FAMILY_DEEPSEEK_V32, 160, 1, 4, 1, "FFF", 8.0f, 0.18239112f,
         true},
        {"tests/golden/glm5-bf16", TAMIS_FAMILY_GLM_MOE_DSA, 128, 1, 1, 250, "FFFF", 1.0f,
         0.15811388f, false},
        {"tests/golden/glm52-fp8", TAMIS_FAMILY_GLM_MOE_DSA, 160, 3, 1, 185, "FFSSFS", 1.0f,
         0.15811388f, true},
    };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char pattern[TAMIS_MAX_LAYERS + 1];
        tamis_model_config c;
        tamis_error err;
        if (tamis_model_config_read(&c, folders[i].dir, &err) != TAMIS_STATUS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(c.family, folders[i].family);
        assert_int_equal(c.hidden_size, folders[i].hidden_size);
        for (int32_t l = 0; l < c.num_hidden_layers; l++)
            assert_int_equal(c.is_dense_layer[l], l < folders[i].n_dense);
        assert_int_equal(c.n_group, folders[i].n_group);
        assert_int_equal(c.eos_token_ids[0], folders[i].eos);
        assert_true(c.rope.yarn_factor == folders[i].yarn_factor);
        assert_int_equal(c.has_quantization, folders[i].has_quantization);
        write_pattern(pattern, &c);
        assert_string_equal(pattern, folders[i].pattern);
        const tamis_sfa_config layer = tamis_model_config_sfa(&c, 0);
        assert_true(fabsf(layer.softmax_scale - folders[i].softmax_scale) < 1e-7f);
    }
}

/* One field spelled in another way each, same meaning. */
static void test_v32_spellings(void **state)
{
    (void)state;
    static const char yarn[] = "{\"rope_type\": \"yarn\", \"factor\": 40.0, \"mscale\": 1, "
                               "\"mscale_all_dim\": 1, \"original_max_position_embeddings\": 4096}";
    static const char with_theta[] =
        "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 40, \"mscale\": 1.0, "
        "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, "
        "\"attention_factor\": 1.0, \"truncate\": true}";
    char mlp[2048];
    write_list(mlp, sizeof mlp, "SSS", 62, "sparse", "dense"); /* 61 and an MTP block */
    char *texts[] = {
        edited(v32, "rope_scaling", yarn, NULL),
        edited(v32, "rope_scaling", NULL, "rope_parameters", yarn, NULL),
        edited(v32, "rope_scaling", NULL, "rope_theta", NULL, "rope_parameters", with_theta, NULL),
        edited(v32, "rope_scaling", NULL, "rope_parameters", with_theta, NULL),
        edited(v32, "rope_scaling", yarn, "rope_parameters", yarn, NULL),
        edited(v32, "rope_scaling.mscale", NULL, NULL), /* the reference's default is 1 */
        edited(v32, "first_k_dense_replace", NULL, "mlp_layer_types", mlp, NULL),
        edited(v32, "mlp_layer_types", mlp, NULL),
        edited(v32, "n_routed_experts", NULL, "num_local_experts", "256", NULL),
        edited(v32, "num_key_value_heads", NULL, NULL),
        edited(v32, "scoring_func", NULL, "topk_method", NULL, "hidden_act", NULL, NULL),
        edited(v32, "eos_token_id", "[1]", NULL),
        edited(v32, "architectures", NULL, NULL),
        edited(v32, "model_type", NULL, NULL),
        edited(v32, "swiglu_limit", "0", "moe_router_dtype", "\"float32\"", NULL),
        edited(v32, "rope_interleave", "true", "indexer_rope_interleave", "false", NULL),
        edited(v32, "qk_head_dim", "192", "head_dim", "64", NULL),
        edited(v32, "some_new_key", "{\"a\": [1, null]}", "hc_mult", "4", NULL),
        edited(v32, "index_topk_freq", "4", NULL), /* without use_index_cache */
    };
    const tamis_model_config vendor = parse_ok(v32, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const tamis_model_config other = parse_ok(texts[i], NULL);
        expect_same(&vendor, &other);
        free(texts[i]);
    }
}

static void test_glm_spellings(void **state)
{
    (void)state;
    char *texts[] = {
        edited(glm5, "rope_parameters", NULL, "rope_theta", "1000000", NULL),
        edited(glm5, "rope_parameters", "{\"rope_theta\": 1e6}", NULL),
        edited(glm5, "rope_parameters", NULL, "rope_scaling", "null", "rope_theta", "1e6", NULL),
        edited(glm5, "n_group", NULL, "topk_group", NULL, NULL),
        edited(glm5, "head_dim", "192", NULL),
        edited(glm5, "head_dim", NULL, "qk_head_dim", NULL, NULL),
        edited(glm5, "rope_interleave", NULL, "indexer_rope_interleave", NULL, NULL),
        edited(glm5, "index_topk_freq", "1", "index_skip_topk_offset", "2", NULL),
        edited(glm5, "index_topk_freq", "1", "index_skip_topk_offset", "0", NULL),
        edited(glm5, "use_index_cache", "true", NULL),
    };
    const tamis_model_config vendor = parse_ok(glm5, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const tamis_model_config other = parse_ok(texts[i], NULL);
        expect_same(&vendor, &other);
        free(texts[i]);
    }
}

static void test_variants(void **state)
{
    (void)state;
    /* No dense layer: its width is not needed. All dense: every layer has one. */
    char *text = edited(v32, "first_k_dense_replace", "0", "intermediate_size", NULL, NULL);
    tamis_model_config c = parse_ok(text, NULL);
    free(text);
    assert_false(c.is_dense_layer[0]);
    text = edited(v32, "first_k_dense_replace", "61", NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_true(c.is_dense_layer[60] && !c.is_dense_layer[61]);
    text = edited(v32, "num_hidden_layers", "3", "first_k_dense_replace", NULL, "mlp_layer_types",
                  "[\"sparse\", \"dense\", \"sparse\"]", NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_true(!c.is_dense_layer[0] && c.is_dense_layer[1] && !c.is_dense_layer[2]);

    /* GLM with YaRN follows V3.2's rule; V3.2 without it is plain. */
    text = edited(glm5, "rope_parameters",
                  "{\"rope_theta\": 10000, \"rope_type\": \"yarn\", \"factor\": 4, "
                  "\"original_max_position_embeddings\": 1024, \"mscale\": 0.5, "
                  "\"mscale_all_dim\": 0.5}",
                  NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_true(c.rope.yarn_factor == 4.0f && c.mscale_all_dim == 0.5f);
    text = edited(v32, "rope_scaling", NULL, NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_true(c.rope.yarn_factor == 1.0f && c.mscale_all_dim == 0.0f);
    assert_true(tamis_model_config_sfa(&c, 0).softmax_scale == 0.07216878f);

    text = edited(v32, "norm_topk_prob", "false", "n_group", "128", "topk_group", "4", NULL);
    c = parse_ok(text, NULL); /* groups of 2, 4 of them: exactly 8 experts */
    free(text);
    assert_false(c.norm_topk_prob);
    assert_int_equal(c.n_group, 128);
}

static void test_generation(void **state)
{
    (void)state;
    const tamis_model_config c =
        parse_ok(glm5, "{\"temperature\": 0.6, \"top_p\": 0.9, \"eos_token_id\": [2, 3]}");
    assert_true(c.temperature == 0.6f && c.top_p == 0.9f);
    assert_int_equal(c.n_eos_token_ids, 2);
    assert_true(parse_ok(v32, "{}").top_p == 0.95f);
    assert_true(parse_ok(v32, "{\"top_p\": 1.0}").top_p == 1.0f);
}

/* ---------------------------------------------------------------- what is refused */

static void test_damaged_fields(void **state)
{
    (void)state;
    static const test_damage cases[] = {
        BAD("vocab_size", "0", "vocab_size", " 0,"),
        BAD("hidden_size", "131073", "hidden_size", "131073"),
        BAD("num_hidden_layers", "497", "num_hidden_layers", "497"),
        BAD("num_attention_heads", "1025", "num_attention_heads", "1025"),
        BAD("q_lora_rank", "0", "q_lora_rank", " 0,"),
        BAD("q_lora_rank", "null", "q_lora_rank", "absent"),
        BAD("kv_lora_rank", "0", "kv_lora_rank", " 0,"),
        BAD("kv_lora_rank", "4097", "kv_lora_rank", "4097"),
        BAD("qk_nope_head_dim", "0", "qk_nope_head_dim", " 0,"),
        BAD("qk_nope_head_dim", "\"128\"", "qk_nope_head_dim", "\"128\""),
        BAD("qk_rope_head_dim", "63", "qk_rope_head_dim", "63"),
        BAD("qk_rope_head_dim", "0", "qk_rope_head_dim", " 0,"),
        BAD("qk_rope_head_dim", "130", "index_head_dim", "at least qk_rope_head_dim 130"),
        BAD("v_head_dim", "4097", "v_head_dim", "4097"),
        BAD("index_n_heads", "0", "index_n_heads", " 0,"),
        BAD("index_head_dim", "63", "index_head_dim", "63"),
        BAD("index_topk", "0", "index_topk", " 0,"),
        BAD("index_topk", "8193", "index_topk", "8193"),
        BAD("intermediate_size", "0", "intermediate_size", " 0,"),
        BAD("intermediate_size", NULL, "intermediate_size", "absent"),
        BAD("moe_intermediate_size", "-1", "moe_intermediate_size", "-1"),
        BAD("rms_norm_eps", "0", "rms_norm_eps", " 0,"),
        BAD("routed_scaling_factor", "0", "routed_scaling_factor", " 0,"),
        BAD("first_k_dense_replace", "62", "first_k_dense_replace", "62"),
        BAD("first_k_dense_replace", "-1", "first_k_dense_replace", "-1"),
        BAD("first_k_dense_replace", NULL, "first_k_dense_replace", "absent"),
        BAD("mlp_layer_types", "[\"dense\"]", "mlp_layer_types", "a list of 1"),
        BAD("n_group", "0", "n_group", " 0,"),
        BAD("n_group", "7", "n_group", " 7,"),
        BAD("n_group", "256", "n_group", "256"), /* one expert per group */
        BAD("n_group", "257", "n_group", "257"),
        BAD("n_group", NULL, "topk_group", " 4,"),
        BAD("topk_group", NULL, "topk_group", "required"),
        BAD("topk_group", "null", "topk_group", "required"),
        BAD("topk_group", "0", "topk_group", " 0,"),
        BAD("topk_group", "9", "topk_group", " 9,"),
        BAD("num_experts_per_tok", "0", "num_experts_per_tok", " 0,"),
        BAD("n_routed_experts", "7", "num_experts_per_tok", " 8,"),
        BAD("n_routed_experts", "8", "n_group", " 8,"),
        BAD("num_experts", "255", "num_experts", "255"),
        NO("num_key_value_heads", "1", "num_key_value_heads", "allowed: 128"),
        NO("num_key_value_heads", "64", "num_key_value_heads", "64"),
        BAD("qk_head_dim", "128", "qk_head_dim", "192"),
        NO("scoring_func", "\"softmax\"", "scoring_func", "\"softmax\""),
        NO("scoring_func", "\"sqrtsoftplus\"", "scoring_func", "allowed: sigmoid"),
        NO("topk_method", "\"group_limited_greedy\"", "topk_method", "\"group_limited_greedy\""),
        NO("hidden_act", "\"gelu\"", "hidden_act", "\"gelu\""),
        NO("attention_bias", "true", "attention_bias", "true"),
        NO("mlp_bias", "true", "mlp_bias", "true"),
        NO("tie_word_embeddings", "true", "tie_word_embeddings", "true"),
        NO("moe_layer_freq", "2", "moe_layer_freq", " 2,"),
        NO("swiglu_limit", "10.0", "swiglu_limit", "10"),
        BAD("swiglu_limit", "\"ten\"", "swiglu_limit", "\"ten\""),
        NO("rope_interleave", "false", "rope_interleave", "false"),
        NO("indexer_rope_interleave", "true", "indexer_rope_interleave", "allowed: false"),
        NO("quantization_config.quant_method", "\"gptq\"", "quantization_config.quant_method",
           "\"gptq\""),
        NO("quantization_config.weight_block_size.0", "64",
           "quantization_config.weight_block_size[0]", "64"),
        BAD("norm_topk_prob", "1", "norm_topk_prob", " 1,"),
        BAD("eos_token_id", "129280", "eos_token_id", "129280"),
    };
    EXPECT_ALL_REFUSED(v32, cases);
    static const test_damage glm_cases[] = {
        NO("indexer_rope_interleave", "false", "indexer_rope_interleave", "allowed: true"),
        NO("rope_interleave", "false", "rope_interleave", "false"),
        NO("num_key_value_heads", "8", "num_key_value_heads", "allowed: 64"),
        BAD("qk_head_dim", "64", "qk_head_dim", "256"),
        BAD("topk_group", "2", "topk_group", " 2,"),
    };
    EXPECT_ALL_REFUSED(glm5, glm_cases);
}

static void test_groups_hold_the_experts(void **state)
{
    (void)state;
    char *text = edited(v32, "n_group", "128", "topk_group", "3", NULL); /* 6 experts for 8 */
    expect_refused(text, TAMIS_STATUS_FORMAT, "topk_group", "num_experts_per_tok 8");
    free(text);
}

static void test_damaged_layer_types(void **state)
{
    (void)state;
    static const test_damage cases[] = {
        BAD("mlp_layer_types.1", "\"sparse\"", "mlp_layer_types[1]", "first_k_dense_replace"),
        BAD("mlp_layer_types.2", "\"dense\"", "mlp_layer_types[2]", "first_k_dense_replace"),
        BAD("mlp_layer_types.2", "7", "mlp_layer_types[2]", " 7,"),
        NO("mlp_layer_types.2", "\"moe\"", "mlp_layer_types[2]", "dense, sparse"),
        BAD("first_k_dense_replace", "1", "mlp_layer_types[1]", "\"dense\""),
    };
    char *text = edited(v32, "num_hidden_layers", "3", "first_k_dense_replace", "2",
                        "mlp_layer_types", "[\"dense\", \"dense\", \"sparse\"]", NULL);
    EXPECT_ALL_REFUSED(text, cases);
    free(text);
}

static void test_damaged_rope(void **state)
{
    (void)state;
    static const test_damage cases[] = {
        BAD("rope_theta", "1", "rope_theta", " 1,"),
        BAD("rope_theta", NULL, "rope_theta", "absent"),
        NO("rope_scaling.type", "\"linear\"", "rope_scaling.type", "\"linear\""),
        BAD("rope_scaling.type", "3", "rope_scaling.type", " 3,"),
        BAD("rope_scaling", "[]", "rope_scaling", "a list of 0"),
        BAD("rope_scaling.factor", "0.5", "rope_scaling.factor", "0.5"),
        BAD("rope_scaling.factor", NULL, "rope_scaling.factor", "absent"),
        BAD("rope_scaling.original_max_position_embeddings", NULL,
            "rope_scaling.original_max_position_embeddings", "absent"),
        BAD("rope_scaling.beta_slow", "33", "rope_scaling.beta_slow", "33"),
        NO("rope_scaling.attention_factor", "1.2", "rope_scaling.attention_factor", "1.2"),
        NO("rope_scaling.truncate", "false", "rope_scaling.truncate", "false"),
        NO("rope_scaling.mscale", "0.707", "rope_scaling.mscale_all_dim", "mscale (0.707"),
        NO("rope_scaling.mscale_all_dim", "0.5", "rope_scaling.mscale_all_dim", "mscale (1)"),
        NO("rope_scaling.mscale_all_dim", "0", "rope_scaling.mscale_all_dim", " 0,"),
        NO("rope_scaling.mscale_all_dim", NULL, "rope_scaling.mscale_all_dim", "absent"),
        BAD("rope_scaling.mscale", "-1", "rope_scaling.mscale", "-1"),
        BAD("rope_scaling.mscale_all_dim", "true", "rope_scaling.mscale_all_dim", "true"),
        BAD("rope_scaling.rope_theta", "20000", "rope_scaling.rope_theta", "20000"),
        BAD("rope_scaling.rope_theta", "\"a\"", "rope_scaling.rope_theta", "\"a\""),
        BAD("rope_parameters", "{\"rope_type\": \"default\"}", "rope_parameters", "rope_scaling"),
        BAD("rope_parameters", "7", "rope_parameters", " 7,"),
    };
    EXPECT_ALL_REFUSED(v32, cases);
    char *text = edited(v32, "rope_scaling.mscale", "0", "rope_scaling.mscale_all_dim", "0", NULL);
    expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "rope_scaling.mscale_all_dim", "above 0");
    free(text);
    static const test_damage glm_cases[] = {
        BAD("rope_parameters.rope_theta", NULL, "rope_theta", "absent"),
        NO("rope_parameters.rope_type", "\"dynamic\"", "rope_parameters.rope_type", "\"dynamic\""),
        BAD("rope_parameters.rope_type", "\"yarn\"", "rope_parameters.factor", "absent"),
    };
    EXPECT_ALL_REFUSED(glm5, glm_cases);
}

static void test_missing_fields(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "num_attention_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "intermediate_size",
        "first_k_dense_replace",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "rms_norm_eps",
        "routed_scaling_factor",
    };
    expect_all_required(v32, keys, sizeof keys / sizeof *keys);
    expect_all_required(glm5, keys, sizeof keys / sizeof *keys);
}

/* The same three names in every combination but the right one. */
static void test_families_do_not_mix(void **state)
{
    (void)state;
    static const char *const architectures[] = {"DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM",
                                                "DeepseekV3ForCausalLM", "DeepseekV41ForCausalLM",
                                                "Glm5NextForCausalLM"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        char list[64];
        snprintf(list, sizeof list, "[\"%s\"]", architectures[i]);
        char *text = edited(v32, "architectures", list, NULL);
        expect_refused(text, TAMIS_STATUS_UNSUPPORTED, architectures[i], "model_type deepseek_v32");
        free(text);
    }
    static const char *const types[] = {"deepseek_v3", "deepseek_v41", "glm5_next", "glm4_moe"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char type[64];
        snprintf(type, sizeof type, "\"%s\"", types[i]);
        char *text = edited(glm5, "model_type", type, NULL);
        expect_refused(text, TAMIS_STATUS_UNSUPPORTED, type,
                       "deepseek_v4, deepseek_v32, glm_moe_dsa");
        free(text);
    }
    /* A V4 name on a V3.2 body, and the reverse, lack the other's fields. */
    char *text = edited(v32, "architectures", NULL, "model_type", "\"deepseek_v4\"", NULL);
    expect_refused(text, TAMIS_STATUS_FORMAT, "head_dim", "absent");
    free(text);
}

/* Every bit of the text flipped: a status that explains, or a config that is sound. */
static void test_flips(void **state)
{
    (void)state;
    const char *const goods[] = {v32, glm5};
    for (size_t g = 0; g < 2; g++) {
        const size_t bytes = strlen(goods[g]);
        char *text = strdup(goods[g]);
        assert_non_null(text);
        for (size_t i = 0; i < bytes * 8; i++) {
            tamis_model_config c;
            tamis_error err;
            text[i / 8] ^= (char)(1 << (i % 8));
            const tamis_status st =
                tamis_model_config_parse(&c, "config.json", text, bytes, NULL, 0, &err);
            text[i / 8] ^= (char)(1 << (i % 8));
            if (st != TAMIS_STATUS_OK) {
                assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
                expect_part(err.text, "config.json: ");
                expect_part(err.text, "allowed: ");
                continue;
            }
            const tamis_sfa_config layer = tamis_model_config_sfa(&c, c.num_hidden_layers - 1);
            assert_int_equal(tamis_sfa_config_check(&layer, NULL), TAMIS_STATUS_OK);
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v32_values),
        cmocka_unit_test(test_glm5_values),
        cmocka_unit_test(test_glm52_values),
        cmocka_unit_test(test_attention_of_a_layer),
        cmocka_unit_test(test_softmax_scale),
        cmocka_unit_test(test_golden_folders),
        cmocka_unit_test(test_v32_spellings),
        cmocka_unit_test(test_glm_spellings),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_damaged_fields),
        cmocka_unit_test(test_groups_hold_the_experts),
        cmocka_unit_test(test_damaged_layer_types),
        cmocka_unit_test(test_damaged_rope),
        cmocka_unit_test(test_missing_fields),
        cmocka_unit_test(test_families_do_not_mix),
        cmocka_unit_test(test_flips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
