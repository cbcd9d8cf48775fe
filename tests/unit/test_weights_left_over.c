/* Tensors that belong to a main layer but to no weight of the model: refused, not left unread. */
#include "weights_test.h"

#define FLASH_BF16 "tests/golden/v4-flash-bf16" /* layers 0 to 2 look experts up by token */
#define PRO_FP8    "tests/golden/v4-pro-fp8"
#define V32_BF16   "tests/golden/v32-bf16" /* layer 0 is dense */
#define V32_FP8    "tests/golden/v32-fp8"
#define GLM5_BF16  "tests/golden/glm5-bf16"
#define GLM52_FP8  "tests/golden/glm52-fp8"

/* The folder with one more tensor of two bytes. */
static void expect_left_over(const char *dir, const char *name, tamis_status status,
                             const char *part)
{
    const int64_t shape[] = {1};
    test_items items = test_items_read(dir);
    test_items_add(&items, name, "BF16", 1, shape, "\0\0", 2);
    test_expect_refused(&items, status, name, part);
    test_expect_refused(&items, status, "model.safetensors: ", part);
    test_items_free(&items);
}

static void test_left_over(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name;
    } cases[] = {
        /* biases */
        {V32_BF16, "model.layers.1.self_attn.q_a_proj.bias"},
        {V32_FP8, "model.layers.2.self_attn.kv_a_proj_with_mqa.bias"},
        {GLM5_BF16, "model.layers.0.self_attn.o_proj.bias"},
        {V32_BF16, "model.layers.0.input_layernorm.bias"},
        {GLM52_FP8, "model.layers.4.self_attn.kv_a_layernorm.bias"},
        {V32_BF16, "model.layers.1.self_attn.indexer.wk.bias"},
        {V32_BF16, "model.layers.0.mlp.up_proj.bias"},
        {V32_BF16, "model.layers.1.mlp.gate.bias"},
        {FLASH_BF16, "layers.2.attn.wq_a.bias"},
        {PRO_FP8, "layers.3.attn.compressor.norm.bias"},
        {FLASH_BF16, "model.layers.1.self_attn.o_b_proj.bias"},
        /* experts that no router knows, and experts twice */
        {V32_BF16, "model.layers.1.mlp.experts.16.up_proj.weight"},
        {GLM52_FP8, "model.layers.5.mlp.experts.100.gate_proj.weight"},
        {FLASH_BF16, "layers.2.ffn.experts.8.w1.weight"},
        {V32_BF16, "model.layers.1.mlp.experts.down_proj"},
        {FLASH_BF16, "model.layers.2.mlp.experts.down_proj"},
        /* other weights of layers, known and not */
        {V32_BF16, "model.layers.0.mlp.gate.e_score_correction_bias"},
        {FLASH_BF16, "layers.4.ffn.gate.tid2eid"},
        {V32_BF16, "model.layers.0.self_attn.q_proj.weight"},
        {GLM5_BF16, "model.layers.1.self_attn.indexer.q_rot"},
        {GLM5_BF16, "model.layers.1.self_attn.indexer.k_rot"},
        {FLASH_BF16, "layers.1.attn.indexer.wq_b.weight"}, /* no layer of ratio 4 */
        {GLM52_FP8, "model.layers.4.shared_head.norm.weight"},
        {FLASH_BF16, "layers.4.something.weight"},
        {V32_BF16, "layers.1.attn.wq_a.weight"},
        /* one weight under two names */
        {FLASH_BF16, "model.layers.4.self_attn.q_a_proj.weight"},
        {V32_BF16, "layers.2.post_attention_layernorm.weight"},
        /* around the layers */
        {V32_BF16, "lm_head.bias"},
        {V32_BF16, "model.norm.bias"},
        {FLASH_BF16, "model.embed_tokens.weight"},
        {PRO_FP8, "hc_head.hc_scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_left_over(cases[i].dir, cases[i].name, TAMIS_STATUS_FORMAT,
                         "is not part of this model");
}

/* Float weights beside what only int8 activations need. */
static void test_quantised_activations(void **state)
{
    (void)state;
    static const char *const ends[] = {"input_scale", "input_offset",  "quant_bias",
                                       "deq_scale",   "weight_offset", "weight_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.1.self_attn.q_a_proj.%s", ends[i]);
        expect_left_over(V32_BF16, name, TAMIS_STATUS_UNSUPPORTED, "W8A8");
        expect_left_over(GLM52_FP8, name, TAMIS_STATUS_UNSUPPORTED, "W8A8");
        snprintf(name, sizeof name, "layers.1.attn.wq_a.%s", ends[i]);
        expect_left_over(FLASH_BF16, name, TAMIS_STATUS_UNSUPPORTED, "W8A8");
    }
}

/* What changes nothing: the same weights are bound. */
static void test_harmless(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name;
    } cases[] = {
        {V32_BF16, "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {FLASH_BF16, "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {FLASH_BF16, "layers.0.ffn.gate.bias"},
        {FLASH_BF16, "model.layers.1.mlp.gate.e_score_correction_bias"},
        {GLM52_FP8, "model.layers.6.self_attn.q_a_proj.bias"}, /* of the MTP block */
        {V32_BF16, "visual.layers.0.bias"},
        {V32_BF16, "model.layers.77.self_attn.q_a_proj.bias"},
    };
    const int64_t shape[] = {1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_items_add(&items, cases[i].name, "BF16", 1, shape, "\0\0", 2);
        if (test_digest_of_items(&items) != test_digest_of(cases[i].dir, NULL))
            fail_msg("%s changes the weights", cases[i].name);
        test_items_free(&items);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_over),
        cmocka_unit_test(test_quantised_activations),
        cmocka_unit_test(test_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
