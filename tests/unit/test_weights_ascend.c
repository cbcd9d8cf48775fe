/* Folders of Ascend's quantiser: what is read, and that every number arrives. */
#include "weights/inspect.h"
#include "weights_ascend_test.h"

#define FLASH_BF16 "tests/golden/v4-flash-bf16"
#define V32_BF16   "tests/golden/v32-bf16"
#define GLM5_BF16  "tests/golden/glm5-bf16"

#define Q_A   "model.layers.1.self_attn.q_a_proj.weight"
#define KV_A  "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
#define Q_B   "model.layers.1.self_attn.q_b_proj.weight"
#define O     "model.layers.1.self_attn.o_proj.weight"
#define WQ_B  "model.layers.1.self_attn.indexer.wq_b.weight"
#define UP    "model.layers.0.mlp.up_proj.weight"
#define GATE  "model.layers.0.mlp.gate_proj.weight"
#define MOE   "model.layers.1.mlp.experts"
#define V4_QA "layers.2.attn.wq_a.weight"

/* Every element of the matrix is code x scale, one f32 product, codes as the folder's item has
 * them. */
static void expect_codes(const ascend_folder *f, const char *weight, const tamis_matrix *w)
{
    ascend_folder *folder = (ascend_folder *)f;
    const test_item *item = test_items_find(&folder->items, weight);
    const test_item *scales = ascend_find(folder, weight, ".weight_scale");
    float *row = calloc((size_t)w->cols, sizeof *row);
    for (int64_t r = 0; r < w->rows; r++) {
        float scale;
        memcpy(&scale, scales->data + 4 * r, 4);
        tamis_kernels_current()->expand_row(row, w, r);
        for (int64_t c = 0; c < w->cols; c++) {
            int code;
            if (w->dtype == TAMIS_DTYPE_I4) {
                const int nibble = item->data[r / 2 * w->cols + c] >> (r % 2 * 4) & 15;
                code = nibble < 8 ? nibble : nibble - 16;
            } else {
                code = (int8_t)item->data[r * w->cols + c];
            }
            assert_true(row[c] == (float)code * scale);
        }
    }
    free(row);
}

static void expect_fixed_input(ascend_folder *f, const char *weight, const tamis_matrix *w)
{
    const test_item *deq = ascend_find(f, weight, ".deq_scale");
    const test_item *bias = ascend_find(f, weight, ".quant_bias");
    assert_non_null(w->input);
    assert_true(w->input->input_scale == ASCEND_INPUT_SCALE);
    assert_true(w->input->input_offset == ASCEND_INPUT_OFFSET);
    assert_memory_equal(w->input->deq_scale, deq->data, (size_t)w->rows * 4);
    assert_memory_equal(w->input->quant_bias, bias->data, (size_t)w->rows * 4);
}

static ascend_folder v32_static(void)
{
    ascend_folder f = ascend_read(V32_BF16);
    ascend_quantise(&f, Q_A, "W8A8");
    ascend_quantise(&f, KV_A, "W8A8");
    ascend_quantise(&f, Q_B, "W8A8");
    ascend_quantise(&f, O, "W8A8");
    return f;
}

static void test_static(void **state)
{
    (void)state;
    ascend_folder f = v32_static();
    test_bound b = ascend_bind_ok(&f);
    const tamis_sfa_weights *w = &b.weights->layers[1].sfa.weights;
    const tamis_matrix *matrices[] = {&w->q_a_proj, &w->kv_a_proj, &w->q_b_proj, &w->o_proj};
    const char *const names[] = {Q_A, KV_A, Q_B, O};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(matrices[i]->dtype, TAMIS_DTYPE_I8);
        expect_codes(&f, names[i], matrices[i]);
        expect_fixed_input(&f, names[i], matrices[i]);
    }
    assert_int_equal(w->kv_b_proj.dtype, TAMIS_DTYPE_BF16);
    assert_int_equal(b.weights->layers[2].sfa.weights.q_a_proj.dtype, TAMIS_DTYPE_BF16);
    test_unbind(&b);
    ascend_free(&f);
}

static void test_dynamic_and_mix(void **state)
{
    (void)state;
    static const char *const schemes[] = {"W8A8_DYNAMIC", "W8A8_MIX"};
    for (int i = 0; i < 2; i++) {
        ascend_folder f = ascend_read(GLM5_BF16);
        ascend_quantise(&f, Q_B, schemes[i]);
        ascend_quantise(&f, WQ_B, schemes[i]);
        ascend_quantise(&f, UP, schemes[i]);
        ascend_quantise(&f, GATE, schemes[i]);
        test_bound b = ascend_bind_ok(&f);
        const tamis_sfa_weights *w = &b.weights->layers[1].sfa.weights;
        const tamis_expert_weights *mlp = &b.weights->layers[0].moe.shared;
        expect_codes(&f, Q_B, &w->q_b_proj);
        expect_codes(&f, WQ_B, &w->index_wq_b);
        expect_codes(&f, UP, &mlp->w3);
        expect_codes(&f, GATE, &mlp->w1);
        assert_null(w->q_b_proj.input); /* MIX runs as DYNAMIC */
        assert_null(mlp->w3.input);
        test_unbind(&b);
        ascend_free(&f);
    }
}

static void test_experts(void **state)
{
    (void)state;
    static const char *const schemes[] = {"W8A8_DYNAMIC", "W4A8_DYNAMIC"};
    for (int i = 0; i < 2; i++) {
        ascend_folder f = ascend_read(FLASH_BF16);
        ascend_quantise_experts(&f, "layers.2.ffn.experts", schemes[i]);
        ascend_quantise(&f, V4_QA, "W8A8_DYNAMIC");
        ascend_add(&f, "layers.2.ffn.experts.0.w1.weight", ".scale_bias", schemes[i], "F32", 1, 1,
                   "abcd", 4);
        if (i == 0) { /* only int4 may have that */
            ascend_expect_refused(&f, TAMIS_STATUS_FORMAT, "experts.0.w1.scale_bias",
                                  "W8A8_DYNAMIC");
            ascend_free(&f);
            continue;
        }
        test_bound b = ascend_bind_ok(&f);
        const tamis_expert_weights *expert = &b.weights->layers[2].moe.experts[3];
        assert_int_equal(expert->w2.dtype, TAMIS_DTYPE_I4);
        expect_codes(&f, "layers.2.ffn.experts.3.w1.weight", &expert->w1);
        expect_codes(&f, "layers.2.ffn.experts.3.w2.weight", &expert->w2);
        expect_codes(&f, "layers.2.ffn.experts.3.w3.weight", &expert->w3);
        expect_codes(&f, V4_QA, &b.weights->layers[2].dsa.weights.wq_a);
        test_unbind(&b);
        ascend_free(&f);
    }
}

/* ---------------------------------------------------------------- spellings of the numbers */

/* deq_scale of FP16 models, and an offset that is stored as a float. */
static void test_other_types(void **state)
{
    (void)state;
    ascend_folder f = v32_static();
    test_item *deq = ascend_find(&f, Q_B, ".deq_scale");
    const int64_t rows = deq->shape[0];
    int64_t *wide = calloc((size_t)rows, sizeof *wide);
    for (int64_t r = 0; r < rows; r++) {
        uint32_t bits;
        memcpy(&bits, deq->data + 4 * r, 4);
        wide[r] = (int64_t)(bits | UINT64_C(0x5a5a5a5a) << 32);
    }
    uint8_t *f32 = malloc((size_t)rows * 4);
    memcpy(f32, deq->data, (size_t)rows * 4);
    test_item_set(deq, "I64", wide, (size_t)rows * 8);
    const float offset = ASCEND_INPUT_OFFSET;
    test_item_set(ascend_find(&f, Q_B, ".input_offset"), "F32", &offset, 4);
    test_bound b = ascend_bind_ok(&f);
    const tamis_matrix *w = &b.weights->layers[1].sfa.weights.q_b_proj;
    assert_memory_equal(w->input->deq_scale, f32, (size_t)rows * 4);
    assert_true(w->input->input_offset == offset);
    test_unbind(&b);
    ascend_free(&f);
    free(wide);
    free(f32);
}

/* BF16 scales in one dimension, widened. */
static void test_bf16_scales(void **state)
{
    (void)state;
    ascend_folder f = ascend_read(V32_BF16);
    ascend_quantise(&f, O, "W8A8_DYNAMIC");
    test_item *scale = ascend_find(&f, O, ".weight_scale");
    const int64_t rows = scale->shape[0];
    uint16_t *narrow = calloc((size_t)rows, sizeof *narrow);
    for (int64_t r = 0; r < rows; r++)
        memcpy(&narrow[r], scale->data + 4 * r + 2, 2);
    test_item_set(scale, "BF16", narrow, (size_t)rows * 2);
    scale->rank = 1;
    test_items_drop(&f.items, ascend_find(&f, O, ".weight_offset"));
    test_bound b = ascend_bind_ok(&f);
    const tamis_matrix *w = &b.weights->layers[1].sfa.weights.o_proj;
    assert_int_equal((uintptr_t)w->scale % 4, 0);
    for (int64_t r = 0; r < rows; r++)
        assert_true(((const float *)w->scale)[r] == ascend_bf16((const uint8_t *)narrow, r));
    test_unbind(&b);
    ascend_free(&f);
    free(narrow);
}

/* A row of zeros has scale 0, or any other. */
static void test_zero_row(void **state)
{
    (void)state;
    ascend_folder f = ascend_read(V32_BF16);
    test_item *item = test_items_find(&f.items, O);
    memset(item->data, 0, (size_t)item->shape[1] * 2);
    ascend_quantise(&f, O, "W8A8_DYNAMIC");
    memset(test_items_find(&f.items, O)->data, 0, (size_t)item->shape[1]);
    test_bound b = ascend_bind_ok(&f);
    expect_codes(&f, O, &b.weights->layers[1].sfa.weights.o_proj);
    test_unbind(&b);
    ascend_free(&f);
}

static void test_plural(void **state)
{
    (void)state;
    ascend_folder f = v32_static();
    char *dir = ascend_write(&f);
    char *text = test_file_read(dir, "quant_model_description.json", NULL);
    char *path = test_path(dir, "quant_model_description.json");
    assert_int_equal(remove(path), 0);
    test_file_write_text(dir, "quant_model_descriptions.json", text);
    test_bound b = test_bind_ok(dir, &f.items.config);
    assert_int_equal(b.weights->layers[1].sfa.weights.q_a_proj.dtype, TAMIS_DTYPE_I8);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    free(text);
    free(path);
    ascend_free(&f);
}

/* ---------------------------------------------------------------- what else is in such folders */

/* Norms get a bias whether it is used or not; that of q_a is read, another one must be 0. */
static void test_norm_bias(void **state)
{
    (void)state;
    static const char q_a[] = "model.layers.1.self_attn.q_a_layernorm.bias";
    static const char kv_a[] = "model.layers.1.self_attn.kv_a_layernorm.bias";
    ascend_folder f = v32_static();
    uint16_t bias[512] = {0};
    const int64_t n = f.items.config.q_lora_rank;
    bias[7] = 0x3fc0; /* 1.5 */
    test_items_add(&f.items, q_a, "BF16", 1, &n, bias, (size_t)n * 2);
    test_bound b = ascend_bind_ok(&f);
    assert_true(b.weights->layers[1].sfa.weights.q_a_norm_bias[7] == 1.5f);
    assert_true(b.weights->layers[1].sfa.weights.q_a_norm_bias[8] == 0.0f);
    assert_null(b.weights->layers[2].sfa.weights.q_a_norm_bias);
    test_unbind(&b);
    bias[7] = 0x8000; /* -0 */
    test_item *item = test_items_add(&f.items, kv_a, "BF16", 1, &n, bias, (size_t)n * 2);
    ascend_describe(&f, kv_a, "W8A8");
    b = ascend_bind_ok(&f);
    test_unbind(&b);
    bias[7] = 0x0100;
    test_item_set(item, "BF16", bias, (size_t)n * 2);
    ascend_expect_refused(&f, TAMIS_STATUS_UNSUPPORTED, kv_a, "not 0");
    ascend_free(&f);
    /* Without a description it is another model. */
    test_items items = test_items_read(V32_BF16);
    test_items_add(&items, q_a, "BF16", 1, &n, bias, (size_t)n * 2);
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, q_a, "is not part of this model");
    test_items_free(&items);
}

/* vLLM's name for such folders, in place of what config.json says about FP8. */
static void test_quant_method(void **state)
{
    (void)state;
    char *text = test_file_read(V32_BF16, "config.json", NULL);
    json_t *json = json_loads(text, 0, NULL);
    json_object_set_new(json, "quantization_config", json_pack("{s:s}", "quant_method", "ascend"));
    char *changed = json_dumps(json, 0);
    tamis_model_config config;
    tamis_error err;
    assert_int_equal(
        tamis_model_config_parse(&config, "c", changed, strlen(changed), NULL, 0, &err), 0);
    json_decref(json);
    free(text);
    free(changed);
}

/* The main model of a rotated folder runs, its MTP block does not. FP8 that the description does
 * not name stays what it is. */
static void test_rotated(void **state)
{
    (void)state;
    static const char *const dirs[] = {"models/demo", "tests/golden/glm52-fp8"};
    for (int i = 0; i < 2; i++) {
        ascend_folder f = {test_items_read(dirs[i]), json_object()};
        json_object_set_new(f.description, "is_rot_used", json_false());
        test_bound b = ascend_bind_ok(&f);
        assert_int_equal(b.weights->mtp_kind, TAMIS_MTP_BLOCK);
        test_unbind(&b);
        json_object_set_new(f.description, "is_rot_used", json_true());
        b = ascend_bind_ok(&f);
        assert_int_equal(b.weights->mtp_kind, TAMIS_MTP_ROTATED);
        assert_int_equal(b.weights->n_mtp, 0);
        test_unbind(&b);
        ascend_free(&f);
    }
}

/* Facts that tamis does not use, of any type, and entries of tensors that nobody binds. */
static void test_other_keys(void **state)
{
    (void)state;
    ascend_folder f = ascend_read(V32_BF16);
    json_object_set_new(f.description, "optional",
                        json_pack("{s:{s:{s:s}}}", "quarot", "rotation_map", "global_rotation",
                                  "optional/quarot.safetensors"));
    json_object_set_new(f.description, "metadata", json_object());
    json_object_set_new(f.description, "group_size", json_integer(0));
    json_object_set_new(f.description, "kv_cache_type", json_null());
    json_object_set_new(f.description, "future.fact", json_integer(3));
    ascend_describe(&f, "model.layers.77.self_attn.q_a_proj.weight", "W4A4_FLATQUANT_DYNAMIC");
    json_object_del(f.description, Q_A); /* missing: FLOAT */
    test_bound b = ascend_bind_ok(&f);
    assert_true(test_weights_digest(b.weights, &b.config) == test_digest_of(V32_BF16, NULL));
    test_unbind(&b);
    ascend_free(&f);
}

static const tamis_tensor_group *find_group(const tamis_inspection *inspection, const char *name,
                                            const char *dtype)
{
    for (int32_t i = 0; i < inspection->n_groups; i++)
        if (strcmp(inspection->groups[i].name, name) == 0 &&
            strcmp(inspection->groups[i].dtype, dtype) == 0)
            return &inspection->groups[i];
    fail_msg("no group %s of %s", name, dtype);
    return NULL;
}

static void test_inspection(void **state)
{
    (void)state;
    ascend_folder f = v32_static();
    ascend_quantise_experts(&f, MOE, "W4A8_DYNAMIC");
    ascend_quantise(&f, WQ_B, "W8A8_MIX");
    test_bound b = ascend_bind_ok(&f);
    tamis_inspect *inspect;
    tamis_error err;
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, &err), 0);
    const tamis_inspection *i = tamis_inspect_get(inspect);
    const tamis_tensor_group *experts = find_group(i, "experts", "I4, W4A8_DYNAMIC");
    const tamis_tensor_group *attention = find_group(i, "attention", "I8, W8A8");
    const int64_t n = b.config.n_routed_experts;
    assert_int_equal(experts->n_tensors, 9 * n);
    assert_int_equal(experts->n_params,
                     3 * n * b.config.hidden_size * b.config.moe_intermediate_size);
    assert_int_equal(attention->n_tensors, 4 * 7);
    assert_true(attention->is_used);
    assert_true(find_group(i, "indexer", "I8, W8A8_MIX")->is_used);
    assert_int_equal(i->n_unused, 0);
    tamis_inspect_free(&inspect);
    test_unbind(&b);
    ascend_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static),      cmocka_unit_test(test_dynamic_and_mix),
        cmocka_unit_test(test_experts),     cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_bf16_scales), cmocka_unit_test(test_zero_row),
        cmocka_unit_test(test_plural),      cmocka_unit_test(test_norm_bias),
        cmocka_unit_test(test_rotated),     cmocka_unit_test(test_other_keys),
        cmocka_unit_test(test_inspection),  cmocka_unit_test(test_quant_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
