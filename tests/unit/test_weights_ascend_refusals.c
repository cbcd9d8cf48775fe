/* Folders of Ascend's quantiser that are refused: what the message names. */
#include "weights_ascend_test.h"

#define V32_BF16   "tests/golden/v32-bf16"
#define FLASH_BF16 "tests/golden/v4-flash-bf16"

#define Q_A  "model.layers.1.self_attn.q_a_proj.weight"
#define KV_A "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
#define Q_B  "model.layers.1.self_attn.q_b_proj.weight"
#define O    "model.layers.1.self_attn.o_proj.weight"
#define MOE  "model.layers.1.mlp.experts"

#define JSON_NAME "quant_model_description.json"

/* V3.2 with one weight of a scheme. */
static ascend_folder v32_with(const char *weight, const char *scheme)
{
    ascend_folder f = ascend_read(V32_BF16);
    ascend_quantise(&f, weight, scheme);
    return f;
}

static void set_f32(ascend_folder *f, const char *weight, const char *ending, int64_t i,
                    float value)
{
    memcpy(ascend_find(f, weight, ending)->data + 4 * i, &value, 4);
}

static void set_i32(ascend_folder *f, const char *weight, const char *ending, int64_t i,
                    int32_t value)
{
    memcpy(ascend_find(f, weight, ending)->data + 4 * i, &value, 4);
}

/* ---------------------------------------------------------------- schemes */

static void test_schemes(void **state)
{
    (void)state;
    static const char *const others[] = {"W4A16", "W8A16", "W8A8_MXFP8", "W4A4_DYNAMIC", "w8a8",
                                         "W8A8 ", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ascend_folder f = ascend_read(V32_BF16);
        ascend_describe(&f, O, others[i]);
        char seen[64];
        snprintf(seen, sizeof seen, O " is \"%s\"", others[i]);
        ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, seen,
                              "allowed: FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX, W4A8_DYNAMIC");
        ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, JSON_NAME ": ", O);
        json_object_set_new(f.description, O, json_integer(8));
        ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O " is 8", "allowed: FLOAT");
        json_object_set_new(f.description, O, json_null());
        ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O " is null", "allowed: FLOAT");
        ascend_free(&f);
    }
}

/* Weights that may not be quantised, or not so. */
static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *weight, *scheme, *allowed;
    } cases[] = {
        {V32_BF16, "model.embed_tokens.weight", "W8A8_DYNAMIC", "allowed: FLOAT"},
        {V32_BF16, "lm_head.weight", "W8A8", "allowed: FLOAT"},
        {V32_BF16, "model.layers.1.self_attn.kv_b_proj.weight", "W8A8", "allowed: FLOAT"},
        {V32_BF16, "model.layers.1.self_attn.indexer.weights_proj.weight", "W8A8_DYNAMIC",
         "allowed: FLOAT"},
        {V32_BF16, "model.layers.1.mlp.gate.weight", "W8A8_DYNAMIC", "allowed: FLOAT"},
        {V32_BF16, O, "W4A8_DYNAMIC", "allowed: FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX"},
        {V32_BF16, "model.layers.1.mlp.shared_experts.up_proj.weight", "W4A8_DYNAMIC",
         "allowed: FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX"},
        {V32_BF16, "model.layers.1.mlp.experts.0.gate_proj.weight", "W8A8",
         "allowed: FLOAT, W8A8_DYNAMIC, W8A8_MIX, W4A8_DYNAMIC"},
        {FLASH_BF16, "layers.2.attn.wo_a.weight", "W8A8_DYNAMIC", "allowed: FLOAT"},
        {FLASH_BF16, "layers.2.attn.compressor.wkv.weight", "W8A8_DYNAMIC", "allowed: FLOAT"},
        {FLASH_BF16, "layers.2.hc_attn_fn", "W8A8_DYNAMIC", "allowed: FLOAT"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ascend_folder f = ascend_read(cases[i].dir);
        ascend_describe(&f, cases[i].weight, cases[i].scheme);
        char seen[160];
        snprintf(seen, sizeof seen, JSON_NAME ": %s is %s", cases[i].weight, cases[i].scheme);
        ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, seen, cases[i].allowed);
        ascend_free(&f);
    }
}

static void test_fused_parts(void **state)
{
    (void)state;
    ascend_folder f = v32_with(Q_A, "W8A8");
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, KV_A " is FLOAT", "allowed: W8A8");
    ascend_quantise(&f, KV_A, "W8A8");
    set_f32(&f, KV_A, ".input_scale", 0, 2 * ASCEND_INPUT_SCALE);
    float *deq = (float *)(void *)ascend_find(&f, KV_A, ".deq_scale")->data;
    for (int64_t r = 0; r < ascend_find(&f, KV_A, ".deq_scale")->shape[0]; r++)
        deq[r] *= 2;
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, KV_A " has input scale 0.125",
                          "allowed: 0.0625 and 7");
    ascend_free(&f);
    f = v32_with("model.layers.0.mlp.up_proj.weight", "W8A8_DYNAMIC");
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "mlp.up_proj.weight is W8A8_DYNAMIC",
                          "mlp.gate_proj.weight");
    ascend_free(&f);
    f = ascend_read(V32_BF16);
    ascend_quantise_experts(&f, MOE, "W8A8_DYNAMIC");
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {MOE ".5.gate_proj.weight", MOE ".5.up_proj.weight",
                                            MOE ".5.down_proj.weight"};
        ascend_describe(&f, names[i], "W8A8_MIX");
        static const char *const endings[] = {".weight_scale", ".weight_offset"};
        char name[256];
        for (int j = 0; j < 2; j++)
            json_object_del(f.description, ascend_name(name, names[i], endings[j]));
    }
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "experts.5.", "W8A8_DYNAMIC, as ");
    ascend_free(&f);
}

/* ---------------------------------------------------------------- description against tensors */

static void test_disagreement(void **state)
{
    (void)state;
    ascend_folder f = ascend_read(V32_BF16);
    ascend_describe(&f, O, "W8A8_DYNAMIC"); /* and the tensor is BF16 */
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O ": dtype is BF16, allowed: I8",
                          "says W8A8_DYNAMIC");
    ascend_quantise(&f, O, "W8A8_DYNAMIC");
    ascend_describe(&f, O, "FLOAT");
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O ": dtype is I8", "says FLOAT");
    json_object_del(f.description, O);
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O ": dtype is I8", "does not name it");
    ascend_describe(&f, O, "W8A8");
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, "o_proj.weight_scale is W8A8_DYNAMIC",
                          "allowed: W8A8, ");
    ascend_free(&f);
    f = v32_with(O, "W8A8");
    ascend_describe(&f, O, "W8A8_DYNAMIC");
    char name[256];
    json_object_del(f.description, ascend_name(name, O, ".weight_scale"));
    json_object_del(f.description, ascend_name(name, O, ".weight_offset"));
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, "o_proj.input_scale", O " is W8A8_DYNAMIC");
    ascend_free(&f);
}

/* FP8 under the name FLOAT. */
static void test_float_is_not(void **state)
{
    (void)state;
    ascend_folder f = {test_items_read("tests/golden/v32-fp8"), json_object()};
    ascend_describe(&f, O, "FLOAT");
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, O ": dtype is F8_E4M3", "says FLOAT");
    ascend_free(&f);
}

static void test_no_description(void **state)
{
    (void)state;
    static const char *const weights[][2] = {{V32_BF16, O},
                                             {FLASH_BF16, "layers.2.ffn.experts.0.w1.weight"}};
    for (int i = 0; i < 2; i++) {
        ascend_folder f = ascend_read(weights[i][0]);
        ascend_quantise(&f, weights[i][1], "W8A8_DYNAMIC");
        test_expect_refused(&f.items, TAMIS_STATUS_UNSUPPORTED, weights[i][1], JSON_NAME);
        ascend_free(&f);
    }
}

static void test_missing_parts(void **state)
{
    (void)state;
    static const char *const endings[] = {".weight_scale", ".input_scale", ".input_offset",
                                          ".deq_scale", ".quant_bias"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        ascend_folder f = v32_with(O, "W8A8");
        test_items_drop(&f.items, ascend_find(&f, O, endings[i]));
        ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, endings[i], "is missing");
        ascend_free(&f);
    }
}

/* ---------------------------------------------------------------- numbers */

static void expect_f32_refused(const char *ending, int64_t i, float value, tamis_status status,
                               const char *part)
{
    ascend_folder f = v32_with(O, "W8A8");
    char name[256];
    set_f32(&f, O, ending, i, value);
    ascend_expect_refused(&f, status, ascend_name(name, O, ending), part);
    ascend_free(&f);
}

static void test_floats(void **state)
{
    (void)state;
    expect_f32_refused(".weight_offset", 3, 1, TAMIS_STATUS_UNSUPPORTED, "element 3 is 1");
    expect_f32_refused(".weight_offset", 0, NAN, TAMIS_STATUS_UNSUPPORTED, "element 0 is ");
    expect_f32_refused(".weight_scale", 2, -1, TAMIS_STATUS_FORMAT, "element 2 is -1");
    expect_f32_refused(".weight_scale", 2, INFINITY, TAMIS_STATUS_FORMAT, "element 2 is inf");
    expect_f32_refused(".weight_scale", 2, NAN, TAMIS_STATUS_FORMAT, "element 2 is ");
    expect_f32_refused(".input_scale", 0, 0, TAMIS_STATUS_FORMAT, "element 0 is 0");
    expect_f32_refused(".input_scale", 0, -1, TAMIS_STATUS_FORMAT, "above 0");
    expect_f32_refused(".input_scale", 0, 1e-42f, TAMIS_STATUS_FORMAT, "inverse");
    expect_f32_refused(".input_scale", 0, NAN, TAMIS_STATUS_FORMAT, "above 0");
    expect_f32_refused(".deq_scale", 5, 3, TAMIS_STATUS_FORMAT, "input_scale x weight_scale");
    expect_f32_refused(".deq_scale", 5, NAN, TAMIS_STATUS_FORMAT, "input_scale x weight_scale");
}

static void test_integers(void **state)
{
    (void)state;
    ascend_folder f = v32_with(O, "W8A8");
    const int32_t limit = 1 << 30;
    f.items.config.profile = TAMIS_PROFILE_ASCEND;
    set_i32(&f, O, ".quant_bias", 1, limit);
    set_i32(&f, O, ".quant_bias", 2, -limit);
    test_bound b = ascend_bind_ok(&f);
    assert_int_equal(b.weights->layers[1].sfa.weights.o_proj.input->quant_bias[1], limit);
    test_unbind(&b);
    set_i32(&f, O, ".quant_bias", 2, -limit - 1);
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "o_proj.quant_bias", "-2^30..2^30");
    ascend_free(&f);
    static const float offsets[] = {128, -129, 0.5f, NAN};
    for (int i = 0; i < 4; i++) {
        f = v32_with(O, "W8A8");
        test_item_set(ascend_find(&f, O, ".input_offset"), "F32", &offsets[i], 4);
        ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, "o_proj.input_offset",
                              "an integer in -128..127");
        ascend_free(&f);
    }
}

/* Types and shapes of what stands beside a weight. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *ending, *dtype;
        tamis_status status;
        const char *part;
        int64_t rows; /* 0: as they are */
    } cases[] = {
        {".weight_scale", "I32", TAMIS_STATUS_UNSUPPORTED, "dtype is I32", 0},
        {".weight_offset", "I32", TAMIS_STATUS_UNSUPPORTED, "dtype is I32", 0},
        {".input_scale", "I32", TAMIS_STATUS_UNSUPPORTED, "dtype is I32", 0},
        {".deq_scale", "I32", TAMIS_STATUS_UNSUPPORTED, "dtype is I32", 0},
        {".quant_bias", "F32", TAMIS_STATUS_UNSUPPORTED, "dtype is F32", 0},
        {".weight_scale", "F32", TAMIS_STATUS_FORMAT, "allowed: [128, 1]", 127},
        {".weight_offset", "F32", TAMIS_STATUS_FORMAT, "allowed: [128, 1]", 127},
        {".deq_scale", "F32", TAMIS_STATUS_FORMAT, "allowed: [128]", 127},
        {".quant_bias", "I32", TAMIS_STATUS_FORMAT, "allowed: [128]", 127},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ascend_folder f = v32_with(O, "W8A8");
        test_item *item = ascend_find(&f, O, cases[i].ending);
        snprintf(item->dtype, sizeof item->dtype, "%s", cases[i].dtype);
        if (cases[i].rows > 0) {
            item->shape[0] = cases[i].rows;
            item->bytes = (size_t)cases[i].rows * 4;
        }
        ascend_expect_refused(&f, cases[i].status, cases[i].ending, cases[i].part);
        ascend_free(&f);
    }
}

/* ---------------------------------------------------------------- int4 */

static void test_int4(void **state)
{
    (void)state;
    static const char weight[] = MOE ".3.down_proj.weight";
    ascend_folder f = ascend_read(V32_BF16);
    ascend_quantise_experts(&f, MOE, "W4A8_DYNAMIC");
    json_object_set_new(f.description, "group_size", json_integer(256));
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "group_size is 256", "allowed: 0");
    json_object_set_new(f.description, "group_size", json_integer(0));
    ascend_add(&f, weight, ".weight_scale_second", "W4A8_DYNAMIC", "F32", 1, 1, "abcd", 4);
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, MOE ".3.down_proj.weight_scale_second",
                          "one scale per row");
    ascend_free(&f);
    /* int8 that says it is int4, and the other way round */
    f = ascend_read(V32_BF16);
    ascend_quantise_experts(&f, MOE, "W8A8_DYNAMIC");
    for (int i = 0; i < f.items.n; i++)
        if (strncmp(f.items.items[i].name, MOE, strlen(MOE)) == 0)
            ascend_describe(&f, f.items.items[i].name, "W4A8_DYNAMIC");
    ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, "experts.0.gate_proj.weight: shape is [32, 128]",
                          "allowed: [16, 128]");
    ascend_free(&f);
}

/* ---------------------------------------------------------------- profiles */

static void test_profiles(void **state)
{
    (void)state;
    ascend_folder f = v32_with(O, "W8A8");
    f.items.config.profile = TAMIS_PROFILE_OFFICIAL;
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, O ": is I8 (W8A8)", "profile official");
    f.items.config.profile = TAMIS_PROFILE_EXACT;
    int32_t bias;
    memcpy(&bias, ascend_find(&f, O, ".quant_bias")->data + 4 * 9, 4);
    set_i32(&f, O, ".quant_bias", 9, bias + 1);
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "o_proj.quant_bias: element 9 is",
                          "profile exact");
    f.items.config.profile = TAMIS_PROFILE_ASCEND;
    test_bound b = ascend_bind_ok(&f);
    assert_int_equal(b.weights->layers[1].sfa.weights.o_proj.input->quant_bias[9], bias + 1);
    test_unbind(&b);
    ascend_free(&f);
    f = ascend_read(V32_BF16);
    ascend_quantise_experts(&f, MOE, "W4A8_DYNAMIC");
    f.items.config.profile = TAMIS_PROFILE_OFFICIAL;
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, "is I8 (W4A8_DYNAMIC)", "profile official");
    ascend_free(&f);
}

/* ---------------------------------------------------------------- the file itself */

static void expect_file_refused(const char *text, tamis_status status, const char *part)
{
    test_items items = test_items_read(V32_BF16);
    char *dir = test_temp_dir_make();
    test_bound b;
    tamis_error err;
    test_items_write(&items, dir);
    test_file_write_text(dir, JSON_NAME, text);
    const tamis_status st = test_bind(&b, dir, &items.config, &err);
    assert_int_equal(st, status);
    test_expect_part(err.text, part);
    test_expect_part(err.text, JSON_NAME);
    test_expect_part(err.text, "allowed: ");
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

static void test_damaged_file(void **state)
{
    (void)state;
    expect_file_refused("", TAMIS_STATUS_FORMAT, "line 1");
    expect_file_refused("{", TAMIS_STATUS_FORMAT, "line 1");
    expect_file_refused("[]", TAMIS_STATUS_FORMAT, "array");
    expect_file_refused("{\"a\": \"FLOAT\"} x", TAMIS_STATUS_FORMAT, "line 1");
    expect_file_refused("{\"a\": \"FLOAT\", \"a\": \"W8A8\"}", TAMIS_STATUS_FORMAT, "duplicate");
    expect_file_refused("{\"a\": \"\xff\"}", TAMIS_STATUS_FORMAT, "line 1");
    expect_file_refused("{\"is_rot_used\": \"yes\"}", TAMIS_STATUS_FORMAT,
                        "is_rot_used is \"yes\"");
    expect_file_refused("{\"group_size\": -1}", TAMIS_STATUS_FORMAT, "group_size is -1");
    expect_file_refused("{\"group_size\": 1.5}", TAMIS_STATUS_FORMAT, "group_size is 1.5");
}

static void test_both_files(void **state)
{
    (void)state;
    ascend_folder f = v32_with(O, "W8A8");
    char *dir = ascend_write(&f);
    test_bound b;
    tamis_error err;
    test_file_write_text(dir, "quant_model_descriptions.json", "{}");
    assert_int_equal(test_bind(&b, dir, &f.items.config, &err), TAMIS_STATUS_FORMAT);
    test_expect_part(err.text, "are both there");
    test_unbind(&b);
    test_temp_dir_remove(dir);
    ascend_free(&f);
}

/* Refused memory at every allocation: a clean failure. */
static void test_refused_allocation(void **state)
{
    (void)state;
    ascend_folder f = v32_with(O, "W8A8");
    char *dir = ascend_write(&f);
    const size_t misc = tamis_mem_in_use(TAMIS_MEM_MISC);
    const size_t weights = tamis_mem_in_use(TAMIS_MEM_WEIGHTS);
    test_bound b;
    tamis_error err;
    tamis_status st = TAMIS_STATUS_NO_MEMORY;
    for (uint64_t n = 1; st != TAMIS_STATUS_OK; n++) {
        assert_true(n < 1000);
        tamis_mem_fail_at(n);
        st = test_bind(&b, dir, &f.items.config, &err);
        tamis_mem_fail_at(0);
        if (st != TAMIS_STATUS_OK)
            assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        test_unbind(&b);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), misc);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), weights);
    }
    test_temp_dir_remove(dir);
    ascend_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_fused_parts),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_float_is_not),
        cmocka_unit_test(test_no_description),
        cmocka_unit_test(test_missing_parts),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_int4),
        cmocka_unit_test(test_profiles),
        cmocka_unit_test(test_damaged_file),
        cmocka_unit_test(test_both_files),
        cmocka_unit_test(test_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
