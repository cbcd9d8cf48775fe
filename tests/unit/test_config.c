/* config.json: spellings, defaults, and every field damaged in turn. */
#include "config_test.h"

#include <math.h>

#include "support/temp_dir.h"

/* V4-Flash as published, but for the length of its lists. */
static const char vendor_config[] =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\","
    " \"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 0,"
    " \"compress_ratios\": [0, 0, 4, 128, 4, 0], \"compress_rope_theta\": 160000,"
    " \"eos_token_id\": 1, \"expert_dtype\": \"fp4\", \"hc_eps\": 1e-06, \"hc_mult\": 4,"
    " \"hc_sinkhorn_iters\": 20, \"head_dim\": 512, \"hidden_act\": \"silu\","
    " \"hidden_size\": 4096, \"index_head_dim\": 128, \"index_n_heads\": 64,"
    " \"index_topk\": 512, \"initializer_range\": 0.02, \"max_position_embeddings\": 1048576,"
    " \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"
    " \"norm_topk_prob\": true, \"num_attention_heads\": 64, \"num_experts_per_tok\": 6,"
    " \"num_hash_layers\": 3, \"num_hidden_layers\": 5, \"num_key_value_heads\": 1,"
    " \"num_nextn_predict_layers\": 1, \"o_groups\": 8, \"o_lora_rank\": 1024,"
    " \"q_lora_rank\": 1024, \"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-06,"
    " \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\","
    "  \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128],"
    "  \"scale_fmt\": \"ue8m0\"},"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1,"
    "  \"original_max_position_embeddings\": 65536},"
    " \"rope_theta\": 10000, \"routed_scaling_factor\": 1.5, \"scoring_func\": \"sqrtsoftplus\","
    " \"sliding_window\": 128, \"swiglu_limit\": 10.0, \"tie_word_embeddings\": false,"
    " \"topk_method\": \"noaux_tc\", \"torch_dtype\": \"bfloat16\", \"vocab_size\": 129280}";

/* The same as transformers 5.24 saves it. */
static const char saved_config[] =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\","
    " \"attention_bias\": false, \"attention_dropout\": 0.0, \"bos_token_id\": 0,"
    " \"compress_rates\": {\"compressed_sparse_attention\": 4,"
    "  \"heavily_compressed_attention\": 128}, \"compress_rope_theta\": 160000,"
    " \"dtype\": \"bfloat16\", \"eos_token_id\": [1], \"hc_eps\": 1e-06, \"hc_mult\": 4,"
    " \"hc_sinkhorn_iters\": 20, \"head_dim\": 512, \"hidden_act\": \"silu\","
    " \"hidden_size\": 4096, \"index_head_dim\": 128, \"index_n_heads\": 64,"
    " \"index_topk\": 512, \"layer_types\": [\"sliding_attention\", \"sliding_attention\","
    "  \"compressed_sparse_attention\", \"heavily_compressed_attention\","
    "  \"compressed_sparse_attention\"], \"max_position_embeddings\": 1048576,"
    " \"mlp_bias\": false, \"mlp_layer_types\": [\"hash_moe\", \"hash_moe\", \"hash_moe\", \"moe\","
    "  \"moe\"], \"moe_intermediate_size\": 2048, \"num_local_experts\": 256,"
    " \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 64,"
    " \"num_experts_per_tok\": 6, \"num_hidden_layers\": 5, \"num_key_value_heads\": 1,"
    " \"num_nextn_predict_layers\": 1, \"o_groups\": 8, \"o_lora_rank\": 1024,"
    " \"output_router_logits\": false, \"pad_token_id\": null, \"partial_rotary_factor\": 0.125,"
    " \"q_lora_rank\": 1024, \"quantization_config\": {\"quant_method\": \"fp8\","
    "  \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128],"
    "  \"modules_to_not_convert\": null}, \"rms_norm_eps\": 1e-06,"
    " \"rope_parameters\": {\"compress\": {\"attention_factor\": 1.0, \"beta_fast\": 32,"
    "   \"beta_slow\": 1, \"factor\": 16, \"original_max_position_embeddings\": 65536,"
    "   \"partial_rotary_factor\": 0.125, \"rope_theta\": 160000, \"rope_type\": \"yarn\"},"
    "  \"main\": {\"partial_rotary_factor\": 0.125, \"rope_theta\": 10000,"
    "   \"rope_type\": \"default\"}},"
    " \"rope_theta\": 10000, \"routed_scaling_factor\": 1.5, \"router_jitter_noise\": 0.0,"
    " \"scoring_func\": \"sqrtsoftplus\", \"sliding_window\": 128, \"swiglu_limit\": 10.0,"
    " \"tie_word_embeddings\": false, \"use_cache\": true, \"vocab_size\": 129280}";

/* ---------------------------------------------------------------- what is accepted */

static void test_values(void **state)
{
    (void)state;
    const tamis_model_config c = parse_ok(vendor_config, NULL);
    static const int32_t ratios[] = {0, 0, 4, 128, 4, 0};
    static const bool is_hash[] = {true, true, true, false, false};
    assert_string_equal(c.family_name, "deepseek_v4");
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 4096);
    assert_int_equal(c.num_hidden_layers, 5);
    assert_int_equal(c.num_nextn_predict_layers, 1);
    assert_int_equal(c.max_position_embeddings, 1048576);
    assert_int_equal(c.num_attention_heads, 64);
    assert_int_equal(c.head_dim, 512);
    assert_int_equal(c.qk_rope_head_dim, 64);
    assert_int_equal(c.q_lora_rank, 1024);
    assert_int_equal(c.o_groups, 8);
    assert_int_equal(c.o_lora_rank, 1024);
    assert_int_equal(c.sliding_window, 128);
    assert_int_equal(c.index_n_heads, 64);
    assert_int_equal(c.index_head_dim, 128);
    assert_int_equal(c.index_topk, 512);
    assert_int_equal(c.n_compress_ratios, 6);
    assert_memory_equal(c.compress_ratios, ratios, sizeof ratios);
    assert_memory_equal(c.is_hash_layer, is_hash, sizeof is_hash);
    assert_false(c.has_index_cache);
    assert_int_equal(c.moe_intermediate_size, 2048);
    assert_int_equal(c.n_routed_experts, 256);
    assert_int_equal(c.num_experts_per_tok, 6);
    assert_int_equal(c.scoring_func, TAMIS_SCORING_SQRTSOFTPLUS);
    assert_true(c.norm_topk_prob);
    assert_true(c.routed_scaling_factor == 1.5f && c.swiglu_limit == 10.0f);
    assert_true(c.rms_norm_eps == 1e-6f && c.hc_eps == 1e-6f);
    assert_int_equal(c.hc_mult, 4);
    assert_int_equal(c.hc_sinkhorn_iters, 20);
    assert_true(c.has_quantization && c.weight_block_rows == 128 && c.weight_block_cols == 128);
    assert_int_equal(c.bos_token_id, 0);
    assert_int_equal(c.n_eos_token_ids, 1);
    assert_int_equal(c.eos_token_ids[0], 1);
    assert_true(c.do_sample && c.temperature == 1.0f && c.top_p == 1.0f && c.min_p == 0.0f);
    assert_int_equal(c.top_k, 0);
}

static void test_attention_of_a_layer(void **state)
{
    (void)state;
    const tamis_model_config c = parse_ok(vendor_config, NULL);
    const tamis_dsa_config window = tamis_model_config_dsa(&c, 1);
    const tamis_dsa_config csa = tamis_model_config_dsa(&c, 2);
    const tamis_dsa_config hca = tamis_model_config_dsa(&c, 3);
    assert_int_equal(window.compress_ratio, 0);
    assert_true(window.rope.theta == 10000.0f && window.rope.yarn_factor == 1.0f);
    assert_int_equal(csa.compress_ratio, 4);
    assert_int_equal(hca.compress_ratio, 128);
    assert_memory_equal(&csa.rope, &hca.rope, sizeof csa.rope);
    assert_true(csa.rope.theta == 160000.0f && csa.rope.yarn_factor == 16.0f);
    assert_true(csa.rope.beta_fast == 32.0f && csa.rope.beta_slow == 1.0f);
    assert_int_equal(csa.rope.original_max_position, 65536);
    assert_int_equal(csa.index_topk, 512);
    assert_int_equal(csa.rope_head_dim, 64);
    assert_int_equal(csa.num_heads, 64);
    assert_false(csa.reuse_topk);
}

static void test_both_spellings_are_equal(void **state)
{
    (void)state;
    const tamis_model_config vendor = parse_ok(vendor_config, NULL);
    const tamis_model_config saved = parse_ok(saved_config, NULL);
    expect_same(&vendor, &saved);
}

/* One field spelled in another way each, same meaning. */
static void test_single_spellings(void **state)
{
    (void)state;
    const tamis_model_config vendor = parse_ok(vendor_config, NULL);
    static const char yarn[] =
        "{\"rope_type\": \"yarn\", \"factor\": 16.0, \"original_max_position_embeddings\": 65536}";
    char *texts[] = {
        edited(vendor_config, "rope_scaling", NULL, "rope_parameters", yarn, NULL),
        edited(vendor_config, "rope_scaling", yarn, NULL),
        edited(vendor_config, "rope_scaling", NULL, "rope_theta", NULL, "rope_parameters",
               "{\"rope_type\": \"yarn\", \"rope_theta\": 10000, \"factor\": 16, "
               "\"original_max_position_embeddings\": 65536, \"mscale\": 1.0, "
               "\"mscale_all_dim\": 1.0}",
               NULL),
        edited(vendor_config, "n_routed_experts", NULL, "num_experts", "256", NULL),
        edited(vendor_config, "n_routed_experts", NULL, "num_local_experts", "256", NULL),
        edited(vendor_config, "num_local_experts", "256", NULL),
        edited(vendor_config, "eos_token_id", "[1]", NULL),
        edited(vendor_config, "qk_rope_head_dim", NULL, "partial_rotary_factor", "0.125", NULL),
        edited(vendor_config, "num_hash_layers", NULL, "mlp_layer_types",
               "[\"hash_moe\", \"hash_moe\", \"hash_moe\", \"moe\", \"moe\"]", NULL),
        edited(vendor_config, "architectures", NULL, NULL),
        edited(vendor_config, "model_type", NULL, NULL),
        edited(vendor_config, "architectures", "null", NULL),
        edited(vendor_config, "norm_topk_prob", NULL, NULL),
        edited(vendor_config, "scoring_func", "null", NULL),
        edited(vendor_config, "n_group", "1", "topk_group", "1", "moe_layer_freq", "1",
               "first_k_dense_replace", "0", NULL),
        edited(vendor_config, "rope_theta", "1e4", "swiglu_limit", "10", NULL),
        edited(vendor_config, "some_new_key", "{\"a\": [1, null]}", "ep_size", "null", NULL),
        edited(vendor_config, "dspark_block_size", "5", "dspark_target_layer_ids", "[40, 41]",
               NULL),
        edited(vendor_config, "quantization_config.scale_fmt", NULL, NULL),
        edited(vendor_config, "index_topk_freq", "4", NULL), /* without use_index_cache */
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const tamis_model_config other = parse_ok(texts[i], NULL);
        expect_same(&vendor, &other);
        free(texts[i]);
    }
}

static void test_variants(void **state)
{
    (void)state;
    char *text = edited(vendor_config, "swiglu_limit", NULL, "quantization_config", NULL,
                        "bos_token_id", "null", "eos_token_id", "[1, 5, 7]", "scoring_func",
                        "\"sigmoid\"", "norm_topk_prob", "false", "rope_scaling", NULL, NULL);
    tamis_model_config c = parse_ok(text, NULL);
    free(text);
    assert_true(isinf(c.swiglu_limit) && c.swiglu_limit > 0);
    assert_false(c.has_quantization);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.n_eos_token_ids, 3);
    assert_int_equal(c.eos_token_ids[2], 7);
    assert_int_equal(c.scoring_func, TAMIS_SCORING_SIGMOID);
    assert_false(c.norm_topk_prob);
    assert_true(c.rope_compress.yarn_factor == 1.0f && c.rope_compress.theta == 160000.0f);

    text = edited(vendor_config, "swiglu_limit", "0", "eos_token_id", NULL, NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_true(isinf(c.swiglu_limit));
    assert_int_equal(c.n_eos_token_ids, 0);

    /* Without a ratio-4 layer no index_* is needed, without any compressed one no second theta. */
    text = edited(vendor_config, "compress_ratios", "[0, 0, 128, 128, 0]", "index_n_heads", NULL,
                  "index_head_dim", NULL, "index_topk", NULL, NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_int_equal(c.n_compress_ratios, 5);
    text = edited(vendor_config, "compress_ratios", "[0, 0, 0, 0, 0]", "index_topk", NULL,
                  "compress_rope_theta", NULL, NULL);
    parse_ok(text, NULL);
    free(text);
}

static void expect_reuse(const char *freq, const char *pattern, const char *expected)
{
    char *text = edited(vendor_config, "num_hidden_layers", "13", "use_index_cache", "true",
                        "index_topk_freq", freq, "index_topk_pattern", pattern, "compress_ratios",
                        "[0, 4, 128, 4, 4, 128, 4, 4, 4, 4, 4, 4, 4, 4, 4]", NULL);
    const tamis_model_config c = parse_ok(text, NULL);
    char seen[16];
    int n = 0;
    for (int32_t i = 0; i < 13; i++)
        if (c.compress_ratios[i] == 4)
            seen[n++] = c.reuse_topk[i] ? 'S' : 'F';
        else
            assert_false(c.reuse_topk[i]);
    seen[n] = '\0';
    assert_string_equal(seen, expected);
    assert_int_equal(c.has_index_cache, strchr(expected, 'S') != NULL);
    for (int32_t i = 13; i < 15; i++) /* MTP blocks never reuse */
        assert_false(c.reuse_topk[i]);
    assert_int_equal(tamis_model_config_dsa(&c, 4).reuse_topk, c.reuse_topk[4]);
    free(text);
}

static void test_index_cache(void **state)
{
    (void)state;
    expect_reuse("1", "null", "FFFFFFFFFF");
    expect_reuse("2", "null", "FFSFSFSFSF");
    expect_reuse("4", "null", "FFSSSFSSSF");
    expect_reuse("100", "null", "FFSSSSSSSS");
    expect_reuse("4", "\"FSSFS\"", "FSSFSFFFFF"); /* the pattern wins; past its end: own */
    expect_reuse("1", "\"FSFSFSFSFSFSFS\"", "FSFSFSFSFS");
    char *text =
        edited(vendor_config, "use_index_cache", "true", "index_topk_pattern", "\"SF\"", NULL);
    expect_refused(text, TAMIS_STATUS_FORMAT, "index_topk_pattern", "\"SF\"");
    free(text);
    text = edited(vendor_config, "use_index_cache", "true", "index_topk_freq", "0", NULL);
    expect_refused(text, TAMIS_STATUS_FORMAT, "index_topk_freq", " 0,");
    free(text);
}

static void test_generation(void **state)
{
    (void)state;
    tamis_model_config c = parse_ok(
        vendor_config, "{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": "
                       "20, \"min_p\": 0.05, \"eos_token_id\": [2, 3], \"bos_token_id\": 9, "
                       "\"_from_model_config\": true, \"pad_token_id\": null}");
    assert_false(c.do_sample);
    assert_true(c.temperature == 0.6f && c.top_p == 0.95f && c.min_p == 0.05f);
    assert_int_equal(c.top_k, 20);
    assert_int_equal(c.n_eos_token_ids, 2);
    assert_int_equal(c.eos_token_ids[0], 2);
    assert_int_equal(c.bos_token_id, 9);
    c = parse_ok(vendor_config, "{}");
    assert_true(c.do_sample && c.temperature == 1.0f);
    assert_int_equal(c.eos_token_ids[0], 1);

    static const char *const bad[][2] = {
        {"{\"temperature\": -1}", "temperature"},
        {"{\"top_p\": 1.5}", "top_p"},
        {"{\"top_k\": -3}", "top_k"},
        {"{\"min_p\": \"a\"}", "min_p"},
        {"{\"do_sample\": 1}", "do_sample"},
        {"{\"eos_token_id\": 129280}", "eos_token_id"},
        {"[]", "array"},
        {"{\"top_p\": 0.5,", "line"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tamis_error err;
        assert_int_equal(parse(&c, vendor_config, bad[i][0], &err), TAMIS_STATUS_FORMAT);
        expect_part(err.text, "generation_config.json: ");
        expect_part(err.text, bad[i][1]);
    }
}

/* The shapes of the two published models. */
static void test_published_models(void **state)
{
    (void)state;
    char ratios[512] = "[0, 0";
    for (int i = 0; i < 20; i++)
        strcat(ratios, ", 4, 128");
    strcat(ratios, ", 4, 0]");
    char *text = edited(vendor_config, "num_hidden_layers", "43", "compress_ratios", ratios, NULL);
    tamis_model_config c = parse_ok(text, NULL);
    free(text);
    assert_int_equal(c.n_compress_ratios, 44);
    assert_int_equal(c.compress_ratios[42], 4);
    strcpy(ratios, "[128, 128");
    for (int i = 0; i < 29; i++)
        strcat(ratios, ", 4, 128");
    strcat(ratios, ", 4, 0]");
    text = edited(vendor_config, "num_hidden_layers", "61", "compress_ratios", ratios,
                  "hidden_size", "7168", "num_attention_heads", "128", "q_lora_rank", "1536",
                  "o_groups", "16", "index_topk", "1024", "moe_intermediate_size", "3072",
                  "n_routed_experts", "384", "routed_scaling_factor", "2.5", NULL);
    c = parse_ok(text, NULL);
    free(text);
    assert_int_equal(c.n_compress_ratios, 62);
    assert_int_equal(c.compress_ratios[0], 128);
}

static void test_golden_folders(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        int32_t hidden_size, head_dim, n_ratios;
        bool has_quantization;
    } folders[] = {
        {"tests/golden/v4-flash-bf16", 96, 64, 6, false},
        {"tests/golden/v4-flash-fp8", 96, 64, 6, true},
        {"tests/golden/v4-pro-fp8", 160, 48, 6, true},
        {"tests/golden/v4-official", 256, 128, 4, true},
        {"models/demo", 128, 64, 6, true},
    };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        tamis_model_config c;
        tamis_error err;
        if (tamis_model_config_read(&c, folders[i].dir, &err) != TAMIS_STATUS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(c.hidden_size, folders[i].hidden_size);
        assert_int_equal(c.head_dim, folders[i].head_dim);
        assert_int_equal(c.n_compress_ratios, folders[i].n_ratios);
        assert_int_equal(c.has_quantization, folders[i].has_quantization);
    }
}

/* ---------------------------------------------------------------- what is refused */

static void test_damaged_fields(void **state)
{
    (void)state;
    static const test_damage cases[] = {
        BAD("vocab_size", "0", "vocab_size", " 0,"),
        BAD("vocab_size", "-5", "vocab_size", "-5"),
        BAD("vocab_size", "4294967296", "vocab_size", "4294967296"),
        BAD("vocab_size", "\"129280\"", "vocab_size", "\"129280\""),
        BAD("vocab_size", "129280.0", "vocab_size", "129280"),
        BAD("vocab_size", "[1, 2]", "vocab_size", "a list of 2"),
        BAD("vocab_size", "{}", "vocab_size", "an object of 0"),
        BAD("vocab_size", "true", "vocab_size", "true"),
        BAD("hidden_size", "1000000", "hidden_size", "1000000"),
        BAD("hidden_size", "0", "hidden_size", " 0,"),
        BAD("num_hidden_layers", "0", "num_hidden_layers", " 0,"),
        BAD("num_hidden_layers", "1000", "num_hidden_layers", "1000"),
        BAD("num_hidden_layers", "7", "compress_ratios", "a list of 6"),
        BAD("num_nextn_predict_layers", "-1", "num_nextn_predict_layers", "-1"),
        BAD("max_position_embeddings", "0", "max_position_embeddings", " 0,"),
        BAD("max_position_embeddings", "2147483648", "max_position_embeddings", "2147483648"),
        BAD("rms_norm_eps", "0", "rms_norm_eps", " 0,"),
        BAD("rms_norm_eps", "1e-300", "rms_norm_eps", "1e-300"),
        BAD("rms_norm_eps", "-1e-6", "rms_norm_eps", "-1e-06"),
        BAD("rms_norm_eps", "false", "rms_norm_eps", "false"),
        BAD("num_attention_heads", "0", "num_attention_heads", " 0,"),
        BAD("num_attention_heads", "100000", "num_attention_heads", "100000"),
        BAD("head_dim", "1", "head_dim", " 1,"),
        BAD("head_dim", "65536", "head_dim", "65536"),
        BAD("head_dim", "32", "qk_rope_head_dim", "64"),
        BAD("qk_rope_head_dim", "63", "qk_rope_head_dim", "63"),
        BAD("qk_rope_head_dim", "0", "qk_rope_head_dim", " 0,"),
        BAD("qk_rope_head_dim", "514", "qk_rope_head_dim", "514"),
        BAD("q_lora_rank", "0", "q_lora_rank", " 0,"),
        BAD("o_groups", "7", "o_groups", " 7,"),
        BAD("o_groups", "0", "o_groups", " 0,"),
        BAD("o_lora_rank", "-1", "o_lora_rank", "-1"),
        BAD("sliding_window", "0", "sliding_window", " 0,"),
        BAD("sliding_window", "65537", "sliding_window", "65537"),
        BAD("index_n_heads", "0", "index_n_heads", " 0,"),
        BAD("index_head_dim", "32", "index_head_dim", "32"),
        BAD("index_topk", "0", "index_topk", " 0,"),
        BAD("index_topk", "8193", "index_topk", "8193"),
        BAD("index_topk", "512.5", "index_topk", "512.5"),
        BAD("moe_intermediate_size", "0", "moe_intermediate_size", " 0,"),
        BAD("n_routed_experts", "0", "n_routed_experts", " 0,"),
        BAD("n_routed_experts", "5", "num_experts_per_tok", " 6,"),
        BAD("num_local_experts", "255", "num_local_experts", "255"),
        BAD("n_shared_experts", "-1", "n_shared_experts", "-1"),
        BAD("num_experts_per_tok", "0", "num_experts_per_tok", " 0,"),
        BAD("num_experts_per_tok", "65", "num_experts_per_tok", "65"),
        BAD("num_hash_layers", "6", "num_hash_layers", " 6,"),
        BAD("num_hash_layers", "-1", "num_hash_layers", "-1"),
        BAD("mlp_layer_types", "[\"moe\", \"moe\", \"moe\", \"moe\", \"moe\"]",
            "mlp_layer_types[0]", "\"moe\""),
        BAD("mlp_layer_types", "[\"hash_moe\"]", "mlp_layer_types", "a list of 1"),
        BAD("mlp_layer_types", "[1, 1, 1, 1, 1]", "mlp_layer_types[0]", " 1,"),
        NO("mlp_layer_types", "[\"dense\", \"moe\", \"moe\", \"moe\", \"moe\"]",
           "mlp_layer_types[0]", "\"dense\""),
        BAD("norm_topk_prob", "1", "norm_topk_prob", " 1,"),
        BAD("routed_scaling_factor", "0", "routed_scaling_factor", " 0,"),
        BAD("routed_scaling_factor", "-1.5", "routed_scaling_factor", "-1.5"),
        BAD("routed_scaling_factor", "1e30", "routed_scaling_factor", "1e+30"),
        BAD("swiglu_limit", "-10", "swiglu_limit", "-10"),
        BAD("swiglu_limit", "\"ten\"", "swiglu_limit", "\"ten\""),
        BAD("hc_mult", "0", "hc_mult", " 0,"),
        BAD("hc_mult", "17", "hc_mult", "17"),
        BAD("hc_sinkhorn_iters", "0", "hc_sinkhorn_iters", " 0,"),
        BAD("hc_eps", "-1", "hc_eps", "-1"),
        BAD("compress_ratios", "[0, 0, 4]", "compress_ratios", "a list of 3"),
        BAD("compress_ratios", "\"0,0,4\"", "compress_ratios", "\"0,0,4\""),
        BAD("compress_ratios", "{\"a\": 1}", "compress_ratios", "an object of 1"),
        BAD("compress_ratios.2", "-4", "compress_ratios[2]", "-4"),
        BAD("compress_ratios.2", "\"4\"", "compress_ratios[2]", "\"4\""),
        BAD("compress_ratios.2", "4.0", "compress_ratios[2]", " 4,"),
        BAD("compress_ratios.2", "null", "compress_ratios[2]", "null"),
        NO("compress_ratios.2", "8", "compress_ratios[2]", " 8,"),
        NO("compress_ratios.0", "1", "compress_ratios[0]", " 1,"),
        NO("compress_ratios.5", "64", "compress_ratios[5]", "64"),
        BAD("layer_types",
            "[\"sliding_attention\", \"sliding_attention\", "
            "\"sliding_attention\", \"heavily_compressed_attention\", "
            "\"compressed_sparse_attention\"]",
            "layer_types[2]", "\"sliding_attention\""),
        BAD("layer_types", "[]", "layer_types", "a list of 0"),
        BAD("rope_theta", "0", "rope_theta", " 0,"),
        BAD("rope_theta", "1", "rope_theta", " 1,"),
        BAD("rope_theta", "\"10000\"", "rope_theta", "\"10000\""),
        BAD("compress_rope_theta", "-160000", "compress_rope_theta", "-160000"),
        BAD("rope_scaling", "[]", "rope_scaling", "a list of 0"),
        NO("rope_scaling.type", "\"linear\"", "rope_scaling.type", "\"linear\""),
        BAD("rope_scaling.type", "3", "rope_scaling.type", " 3,"),
        BAD("rope_scaling.factor", "0.5", "rope_scaling.factor", "0.5"),
        BAD("rope_scaling.factor", NULL, "rope_scaling.factor", "absent"),
        BAD("rope_scaling.beta_fast", "0", "rope_scaling.beta_fast", " 0,"),
        BAD("rope_scaling.beta_slow", "33", "rope_scaling.beta_slow", "33"),
        BAD("rope_scaling.original_max_position_embeddings", "0",
            "rope_scaling.original_max_position_embeddings", " 0,"),
        BAD("rope_scaling.original_max_position_embeddings", NULL,
            "rope_scaling.original_max_position_embeddings", "absent"),
        NO("rope_scaling.attention_factor", "1.2", "rope_scaling.attention_factor", "1.2"),
        NO("rope_scaling.truncate", "false", "rope_scaling.truncate", "false"),
        BAD("rope_parameters", "{\"main\": {\"rope_theta\": 10000}}", "rope_parameters.compress",
            "absent"),
        BAD("rope_parameters", "{\"main\": 1, \"compress\": {}}", "rope_parameters.main", " 1,"),
        NO("rope_parameters",
           "{\"main\": {\"rope_theta\": 10000, \"rope_type\": \"yarn\"}, \"compress\": {}}",
           "rope_parameters.main.rope_type", "\"yarn\""),
        BAD("bos_token_id", "-1", "bos_token_id", "-1"),
        BAD("bos_token_id", "129280", "bos_token_id", "129280"),
        BAD("eos_token_id", "129280", "eos_token_id", "129280"),
        BAD("eos_token_id", "\"</s>\"", "eos_token_id", "\"</s>\""),
        BAD("eos_token_id", "[1, -1]", "eos_token_id[1]", "-1"),
        BAD("eos_token_id", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "eos_token_id",
            "a list of 17"),
        NO("scoring_func", "\"relu\"", "scoring_func", "\"relu\""),
        BAD("scoring_func", "0", "scoring_func", " 0,"),
        NO("topk_method", "\"greedy\"", "topk_method", "\"greedy\""),
        NO("hidden_act", "\"gelu\"", "hidden_act", "\"gelu\""),
        NO("attention_bias", "true", "attention_bias", "true"),
        NO("mlp_bias", "true", "mlp_bias", "true"),
        NO("tie_word_embeddings", "true", "tie_word_embeddings", "true"),
        NO("num_key_value_heads", "64", "num_key_value_heads", "64"),
        NO("n_group", "8", "n_group", " 8,"),
        NO("topk_group", "4", "topk_group", " 4,"),
        NO("first_k_dense_replace", "3", "first_k_dense_replace", " 3,"),
        NO("moe_layer_freq", "2", "moe_layer_freq", " 2,"),
        BAD("use_index_cache", "\"yes\"", "use_index_cache", "\"yes\""),
        BAD("quantization_config", "\"fp8\"", "quantization_config", "\"fp8\""),
        NO("quantization_config.quant_method", "\"gptq\"", "quantization_config.quant_method",
           "\"gptq\""),
        NO("quantization_config.fmt", "\"e5m2\"", "quantization_config.fmt", "\"e5m2\""),
        NO("quantization_config.weight_block_size.1", "64",
           "quantization_config.weight_block_size[1]", "64"),
        BAD("quantization_config.weight_block_size", "[128]",
            "quantization_config.weight_block_size", "a list of 1"),
        BAD("architectures", "[7]", "architectures[0]", " 7,"),
        BAD("architectures", "\"DeepseekV4ForCausalLM\"", "architectures", "\"DeepseekV4"),
        BAD("model_type", "4", "model_type", " 4,"),
    };
    expect_all_refused(vendor_config, cases, sizeof cases / sizeof *cases);
}

static void test_damaged_saved_fields(void **state)
{
    (void)state;
    static const test_damage cases[] = {
        {"compress_rates.compressed_sparse_attention", "8", TAMIS_STATUS_UNSUPPORTED,
         "compress_rates.compressed_sparse_attention", " 8,"},
        {"compress_rates.heavily_compressed_attention", "64", TAMIS_STATUS_UNSUPPORTED,
         "compress_rates.heavily_compressed_attention", "64"},
        {"compress_rate_csa", "2", TAMIS_STATUS_UNSUPPORTED, "compress_rate_csa", " 2,"},
        {"compress_rates", "4", TAMIS_STATUS_FORMAT, "compress_rates", " 4,"},
        {"layer_types.2", "\"full_attention\"", TAMIS_STATUS_UNSUPPORTED, "layer_types[2]",
         "\"full_attention\""},
        {"layer_types.2", "4", TAMIS_STATUS_FORMAT, "layer_types[2]", " 4,"},
        {"layer_types", NULL, TAMIS_STATUS_FORMAT, "compress_ratios", "absent"},
        {"mlp_layer_types", NULL, TAMIS_STATUS_FORMAT, "num_hash_layers", "absent"},
        {"partial_rotary_factor", "0.1234", TAMIS_STATUS_FORMAT, "partial_rotary_factor", "0.1234"},
        {"partial_rotary_factor", "1.5", TAMIS_STATUS_FORMAT, "partial_rotary_factor", "1.5"},
        {"rope_parameters.compress.rope_theta", NULL, TAMIS_STATUS_OK, NULL, NULL},
        {"partial_rotary_factor", NULL, TAMIS_STATUS_OK, NULL, NULL},
        {"rope_parameters.main.rope_type", "\"dynamic\"", TAMIS_STATUS_UNSUPPORTED,
         "rope_parameters.main.rope_type", "\"dynamic\""},
        {"rope_parameters.compress.factor", "\"16\"", TAMIS_STATUS_FORMAT,
         "rope_parameters.compress.factor", "\"16\""},
        {"rope_parameters.compress.attention_factor", "1.277", TAMIS_STATUS_UNSUPPORTED,
         "rope_parameters.compress.attention_factor", "1.277"},
    };
    const tamis_model_config good = parse_ok(saved_config, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = edited(saved_config, cases[i].path, cases[i].value, NULL);
        if (cases[i].status == TAMIS_STATUS_OK) {
            const tamis_model_config same = parse_ok(text, NULL);
            expect_same(&good, &same);
        } else {
            expect_refused(text, cases[i].status, cases[i].key, cases[i].seen);
        }
        free(text);
    }
}

static void test_missing_fields(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "rms_norm_eps",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "sliding_window",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "compress_ratios",
        "rope_theta",
        "compress_rope_theta",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "num_hash_layers",
        "routed_scaling_factor",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
    };
    expect_all_required(vendor_config, keys, sizeof keys / sizeof *keys);
}

static void test_other_families(void **state)
{
    (void)state;
    static const char *const families[][2] = {
        {"DeepseekV41ForCausalLM", "deepseek_v41"}, {"Glm5NextForCausalLM", "glm5_next"},
        {"DeepseekV3ForCausalLM", "deepseek_v3"},   {"LlamaForCausalLM", "llama"},
        {"Qwen3MoeForCausalLM", "qwen3_moe"},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char architecture[64], type[64];
        snprintf(architecture, sizeof architecture, "[\"%s\"]", families[i][0]);
        snprintf(type, sizeof type, "\"%s\"", families[i][1]);
        char *text = edited(vendor_config, "architectures", architecture, "model_type", type, NULL);
        expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "model_type", families[i][1]);
        free(text);
        text = edited(vendor_config, "architectures", architecture, NULL);
        expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "architectures[0]", families[i][0]);
        free(text);
        text = edited(vendor_config, "model_type", type, NULL);
        expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "model_type", families[i][1]);
        free(text);
    }
    /* Two known families in one file, whichever key is believed. */
    char *text = edited(vendor_config, "model_type", "\"deepseek_v32\"", NULL);
    expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "model_type deepseek_v32",
                   "DeepseekV4ForCausalLM");
    free(text);
    text = edited(vendor_config, "architectures", "[\"GlmMoeDsaForCausalLM\"]", NULL);
    expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "model_type deepseek_v4",
                   "GlmMoeDsaForCausalLM");
    free(text);
    text = edited(vendor_config, "architectures", NULL, "model_type", NULL, NULL);
    expect_refused(text, TAMIS_STATUS_FORMAT, "model_type", "absent");
    free(text);
    expect_refused("{\"model_type\": \"llama\"}", TAMIS_STATUS_UNSUPPORTED, "llama",
                   "allowed: deepseek_v4, deepseek_v32, glm_moe_dsa");
    expect_refused("{\"architectures\": [\"LlamaForCausalLM\"]}", TAMIS_STATUS_UNSUPPORTED,
                   "LlamaForCausalLM",
                   "allowed: DeepseekV4ForCausalLM, DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM");
    expect_refused("{}", TAMIS_STATUS_FORMAT, "model_type", "absent");
}

static void test_damaged_json(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "[]",
        "7",
        "{\"a\": 1, \"a\": 2}",
        "{\"a\": NaN}",
        "{\"a\": Infinity}",
        "{\"a\": 1e999}",
        "{\"a\": 99999999999999999999}",
        "{\"a\": 1} x",
        "{'a': 1}",
        "{\"a\": \"\xff\"}",
        "{\"a\": \"\\u0000\"}",
        "{\"a\": 01}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tamis_model_config config;
        tamis_error err;
        assert_int_equal(parse(&config, texts[i], NULL, &err), TAMIS_STATUS_FORMAT);
        expect_part(err.text, "config.json: ");
    }
    char deep[5001];
    memset(deep, '[', 5000);
    deep[5000] = '\0';
    tamis_model_config config;
    assert_int_equal(parse(&config, deep, NULL, NULL), TAMIS_STATUS_FORMAT);
    /* A long value of many bytes per character is cut at a character. */
    char *text = edited(vendor_config, "scoring_func",
                        "\"\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9"
                        "\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9"
                        "\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9"
                        "\\u00e9\\u00e9\\u00e9\\u00e9\\n\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\"",
                        NULL);
    expect_refused(text, TAMIS_STATUS_UNSUPPORTED, "scoring_func", "\xc3\xa9...\"");
    free(text);
}

/* Every bit of the text flipped, and every length: a status that explains, or a config. */
static void test_flips_and_cuts(void **state)
{
    (void)state;
    const size_t bytes = strlen(vendor_config);
    char *text = strdup(vendor_config);
    size_t n_refused = 0;
    assert_non_null(text);
    for (size_t i = 0; i < bytes * 8; i++) {
        tamis_model_config config;
        tamis_error err;
        text[i / 8] ^= (char)(1 << (i % 8));
        const tamis_status st =
            tamis_model_config_parse(&config, "config.json", text, bytes, NULL, 0, &err);
        text[i / 8] ^= (char)(1 << (i % 8));
        if (st == TAMIS_STATUS_OK)
            continue;
        n_refused++;
        assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
        expect_part(err.text, "config.json: ");
        expect_part(err.text, "allowed: ");
    }
    assert_true(n_refused > bytes * 4);
    for (size_t n = 0; n < bytes; n++) {
        tamis_model_config config;
        assert_int_equal(tamis_model_config_parse(&config, "config.json", text, n, NULL, 0, NULL),
                         TAMIS_STATUS_FORMAT);
    }
    free(text);
}

/* ---------------------------------------------------------------- files and memory */

static void test_files(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    tamis_model_config c;
    tamis_error err;
    assert_int_equal(tamis_model_config_read(&c, dir, &err), TAMIS_STATUS_IO);
    expect_part(err.text, "config.json");
    test_file_write_text(dir, "config.json", vendor_config);
    assert_int_equal(tamis_model_config_read(&c, dir, &err), TAMIS_STATUS_OK);
    test_file_write_text(dir, "generation_config.json", "{\"temperature\": 0.25}");
    assert_int_equal(tamis_model_config_read(&c, dir, &err), TAMIS_STATUS_OK);
    assert_true(c.temperature == 0.25f);
    char *large = malloc((size_t)5 << 20);
    assert_non_null(large);
    memset(large, ' ', (size_t)5 << 20);
    memcpy(large, vendor_config, sizeof vendor_config - 1);
    test_file_write(dir, "config.json", large, (size_t)5 << 20);
    assert_int_equal(tamis_model_config_read(&c, dir, &err), TAMIS_STATUS_FORMAT);
    expect_part(err.text, "allowed at most");
    free(large);
    test_temp_dir_remove(dir);
}

static void *jansson_alloc(size_t bytes)
{
    return tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
}

/*
 * The n-th allocation fails, those of the JSON library included. That library ignores a refusal
 * while it grows a long string, so the text may come out changed: any refusal will do there.
 */
static void test_refused_allocation(void **state)
{
    (void)state;
    const char *const dir = "models/demo";
    tamis_model_config good, config;
    uint64_t n_refused = 0;
    json_set_alloc_funcs(jansson_alloc, tamis_mem_free);
    assert_int_equal(tamis_model_config_read(&good, dir, NULL), TAMIS_STATUS_OK);
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    for (uint64_t n = 1;; n++) {
        const uint64_t calls = tamis_mem_num_allocs();
        tamis_error err;
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_model_config_read(&config, dir, &err);
        tamis_mem_fail_at(0);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
        if (st == TAMIS_STATUS_OK)
            expect_same(&good, &config);
        else
            assert_true(st == TAMIS_STATUS_NO_MEMORY || st == TAMIS_STATUS_FORMAT ||
                        st == TAMIS_STATUS_UNSUPPORTED);
        n_refused += st == TAMIS_STATUS_NO_MEMORY;
        if (tamis_mem_num_allocs() - calls < n)
            break;
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n_refused > 100);
    assert_int_equal(tamis_model_config_read(&config, dir, NULL), TAMIS_STATUS_OK);
    expect_same(&good, &config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_attention_of_a_layer),
        cmocka_unit_test(test_both_spellings_are_equal),
        cmocka_unit_test(test_single_spellings),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_index_cache),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_published_models),
        cmocka_unit_test(test_golden_folders),
        cmocka_unit_test(test_damaged_fields),
        cmocka_unit_test(test_damaged_saved_fields),
        cmocka_unit_test(test_missing_fields),
        cmocka_unit_test(test_other_families),
        cmocka_unit_test(test_damaged_json),
        cmocka_unit_test(test_flips_and_cuts),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
