/* What an inspection sums up, the group of every name, and the search for damaged values. */
#include <jansson.h>

#include "weights/inspect.h"
#include "weights_test.h"

/* ---------------------------------------------------------------- groups */

static void expect_group(const tamis_model_config *config, const char *name, const char *group)
{
    const tamis_tensor_place place = tamis_tensor_place_of(config, name);
    assert_string_equal(tamis_weight_group_name(place.group), group);
}

static void expect_layer(const tamis_model_config *config, const char *name, int32_t layer)
{
    assert_int_equal(tamis_tensor_place_of(config, name).layer, layer);
}

static void test_groups(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"embed.weight", "embedding"},
        {"model.embed_tokens.weight", "embedding"},
        {"head.weight", "head"},
        {"lm_head.weight", "head"},
        {"norm.weight", "norms"},
        {"model.norm.weight", "norms"},
        {"hc_head_fn", "hyper-connections"},
        {"model.hc_head.hc_scale", "hyper-connections"},
        {"layers.0.attn_norm.weight", "norms"},
        {"model.layers.12.post_attention_layernorm.weight", "norms"},
        {"layers.0.hc_attn_base", "hyper-connections"},
        {"layers.0.hc_ffn_scale", "hyper-connections"},
        {"model.layers.3.attn_hc.fn", "hyper-connections"},
        {"layers.42.attn.wq_a.weight", "attention"},
        {"layers.42.attn.wq_a.scale", "attention"},
        {"model.layers.2.attn.norm.weight", "attention"},
        {"model.layers.2.self_attn.sinks", "attention"},
        {"layers.2.attn.compressor.ape", "compressor"},
        {"model.layers.2.self_attn.compressor.kv_norm.weight", "compressor"},
        {"layers.2.attn.indexer.wq_b.scale", "indexer"},
        {"layers.2.attn.indexer.compressor.wkv.weight", "indexer"},
        {"model.layers.2.self_attn.compressor.indexer.position_bias", "indexer"},
        {"layers.2.ffn.gate.tid2eid", "router"},
        {"model.layers.2.mlp.gate.e_score_correction_bias", "router"},
        {"layers.2.ffn.experts.255.w1.weight", "experts"},
        {"model.layers.2.mlp.experts.gate_up_proj", "experts"},
        {"layers.2.ffn.shared_experts.w1.scale", "shared experts"},
        {"model.layers.2.mlp.shared_experts.up_proj.weight", "shared experts"},
        {"mtp.0.attn.wq_a.weight", "mtp"},
        {"mtp.0.main_proj.weight", "mtp"},
        {"mtp.2.markov_head.markov_w1.weight", "mtp"},
        {"layers.2.unheard_of.weight", "unknown"},
        {"layers.x.attn.wq_a.weight", "unknown"},
        {"layers..attn.wq_a.weight", "unknown"},
        {"layers.99999999999.attn.wq_a.weight", "unknown"},
        {"visual.blocks.0.weight", "unknown"},
        {"", "unknown"},
    };
    const tamis_model_config v4 = {.num_hidden_layers = 5};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_group(&v4, cases[i][0], cases[i][1]);
    expect_layer(&v4, "layers.42.attn.wq_a.weight", 42);
    expect_layer(&v4, "model.layers.3.mlp.gate.weight", 3);
    expect_layer(&v4, "embed.weight", -1);
    expect_layer(&v4, "model.norm.weight", -1);
    expect_layer(&v4, "mtp.0.attn.wq_a.weight", 5);
    expect_layer(&v4, "mtp.1.attn.wq_a.weight", -2);
    expect_layer(&v4, "mtp.01.attn.wq_a.weight", -2);
    expect_layer(&v4, "visual.patch", -2);
}

/* V3.2 and GLM: layers behind the last belong to MTP blocks, whatever their tensors are called. */
static void test_groups_of_v32(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"model.embed_tokens.weight", "embedding"},
        {"lm_head.weight", "head"},
        {"model.norm.weight", "norms"},
        {"model.layers.0.input_layernorm.weight", "norms"},
        {"model.layers.60.post_attention_layernorm.weight", "norms"},
        {"model.layers.0.self_attn.q_a_layernorm.weight", "attention"},
        {"model.layers.0.self_attn.kv_b_proj.weight_scale_inv", "attention"},
        {"model.layers.0.self_attn.indexer.k_norm.bias", "indexer"},
        {"model.layers.0.mlp.gate_proj.weight", "dense mlp"},
        {"model.layers.0.mlp.up_proj.weight_scale_inv", "dense mlp"},
        {"model.layers.0.mlp.down_proj.weight", "dense mlp"},
        {"model.layers.3.mlp.gate.weight", "router"},
        {"model.layers.3.mlp.gate.e_score_correction_bias", "router"},
        {"model.layers.3.mlp.experts.255.gate_proj.weight", "experts"},
        {"model.layers.3.mlp.experts.gate_up_proj", "experts"},
        {"model.layers.3.mlp.shared_experts.down_proj.weight", "shared experts"},
        {"model.layers.61.eh_proj.weight", "mtp"},
        {"model.layers.61.embed_tokens.weight", "mtp"},
        {"model.layers.61.shared_head.head.weight", "mtp"},
        {"model.layers.62.self_attn.q_a_proj.weight", "mtp"},
        {"model.layers.60.eh_proj.weight", "unknown"},
        {"embed.weight", "unknown"},
        {"mtp.0.e_proj.weight", "unknown"},
    };
    static const tamis_family families[] = {TAMIS_FAMILY_DEEPSEEK_V32, TAMIS_FAMILY_GLM_MOE_DSA};
    for (int f = 0; f < 2; f++) {
        const tamis_model_config config = {.family = families[f], .num_hidden_layers = 61};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            expect_group(&config, cases[i][0], cases[i][1]);
        expect_layer(&config, "model.layers.60.mlp.gate.weight", 60);
        expect_layer(&config, "model.layers.61.mlp.gate.weight", 61);
        expect_layer(&config, "model.layers.62.mlp.gate.weight", -2);
        expect_layer(&config, "lm_head.weight", -1);
        expect_layer(&config, "mtp.0.e_proj.weight", -2);
    }
}

/* ---------------------------------------------------------------- sums */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

typedef struct header_sums {
    int64_t n_tensors, n_params;
    uint64_t bytes;
} header_sums;

/* Sums over one file's header, read here with the JSON library alone. */
static void add_header(header_sums *sums, const char *dir, const char *name)
{
    size_t bytes, header_bytes = 0;
    char *file = test_file_read(dir, name, &bytes);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | (uint8_t)file[i];
    json_t *header = json_loadb(file + 8, header_bytes, 0, NULL), *entry, *dim;
    const char *tensor;
    size_t i;
    assert_non_null(header);
    json_object_foreach(header, tensor, entry)
    {
        int64_t n = 1;
        if (strcmp(tensor, "__metadata__") == 0)
            continue;
        const json_t *offsets = json_object_get(entry, "data_offsets");
        const char *dtype = json_string_value(json_object_get(entry, "dtype"));
        json_array_foreach(json_object_get(entry, "shape"), i, dim) n *= json_integer_value(dim);
        sums->n_tensors++;
        sums->bytes += (uint64_t)(json_integer_value(json_array_get(offsets, 1)) -
                                  json_integer_value(json_array_get(offsets, 0)));
        if (strcmp(dtype, "I8") == 0)
            n *= 2; /* FP4 */
        /* I64: tid2eid */
        if (strcmp(dtype, "F8_E8M0") != 0 && strcmp(dtype, "I64") != 0 &&
            !ends_with(tensor, "_scale_inv"))
            sums->n_params += n;
    }
    json_decref(header);
    free(file);
}

static void expect_sums(const char *dir, const char *const *files, int n_files)
{
    header_sums sums = {0, 0, 0};
    test_bound b = test_bind_ok(dir, NULL);
    for (int i = 0; i < n_files; i++)
        add_header(&sums, dir, files[i]);
    tamis_inspect *inspect;
    const tamis_model_info info = {.family = "deepseek_v4", .drafter = "mtp"};
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, &info, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    assert_ptr_equal(seen->info, &info);
    assert_int_equal(seen->n_tensors, sums.n_tensors);
    assert_int_equal(seen->n_params, sums.n_params);
    assert_int_equal(seen->tensor_bytes, sums.bytes);
    assert_int_equal(seen->n_unused, 0);
    int64_t n_tensors = 0, n_params = 0;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < seen->n_groups; i++) {
        const tamis_tensor_group *group = &seen->groups[i];
        n_tensors += group->n_tensors;
        n_params += group->n_params;
        bytes += group->bytes;
        assert_true(group->is_used);
    }
    assert_int_equal(n_tensors, sums.n_tensors);
    assert_int_equal(n_params, sums.n_params);
    assert_int_equal(bytes, sums.bytes);
    assert_int_equal(seen->layer_ratios != NULL, b.config.family == TAMIS_FAMILY_DEEPSEEK_V4);
    for (int32_t i = 0; seen->layer_ratios != NULL && i < b.config.num_hidden_layers; i++) {
        assert_int_equal(seen->layer_ratios[i], b.config.compress_ratios[i]);
        assert_string_equal(seen->layer_mlp[i], b.config.is_hash_layer[i] ? "hash" : "learned");
        assert_string_equal(seen->layer_attention[i], b.config.compress_ratios[i] == 0   ? "window"
                                                      : b.config.compress_ratios[i] == 4 ? "C4"
                                                                                         : "C128");
    }
    tamis_inspect_free(&inspect);
    assert_null(inspect);
    tamis_inspect_free(&inspect);
    test_unbind(&b);
}

static void test_sums(void **state)
{
    (void)state;
    static const char *const one[] = {"model.safetensors"};
    static const char *const three[] = {"model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    expect_sums("tests/golden/v4-flash-bf16", one, 1);
    expect_sums("tests/golden/v4-flash-fp8", three, 3);
    expect_sums("tests/golden/v4-pro-fp8", one, 1);
    expect_sums("tests/golden/v4-official", one, 1);
    expect_sums("models/demo", one, 1);
    static const char *const two[] = {"model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors"};
    expect_sums("tests/golden/v32-bf16", one, 1);
    expect_sums("tests/golden/v32-fp8", two, 2);
    expect_sums("tests/golden/glm5-bf16", one, 1);
    expect_sums("tests/golden/glm52-fp8", one, 1);
}

static const tamis_tensor_group *find_group(const tamis_inspection *inspection, const char *name,
                                            const char *dtype)
{
    for (int32_t i = 0; i < inspection->n_groups; i++)
        if (strcmp(inspection->groups[i].name, name) == 0 &&
            strcmp(inspection->groups[i].dtype, dtype) == 0)
            return &inspection->groups[i];
    fail_msg("no group %s / %s", name, dtype);
    return NULL;
}

static void test_groups_of_the_flash_folder(void **state)
{
    (void)state;
    test_bound b = test_bind_ok("tests/golden/v4-flash-fp8", NULL);
    tamis_inspect *inspect;
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    /* 5 layers x 8 experts x 3 matrices of 32x96, each with its scales */
    const tamis_tensor_group *experts = find_group(seen, "experts", "F4_E2M1 + F8_E8M0 per 1x32");
    assert_int_equal(experts->n_tensors, 2 * 5 * 8 * 3);
    assert_int_equal(experts->n_params, 5 * 8 * 3 * 32 * 96);
    assert_int_equal(experts->bytes, 5 * 8 * 3 * (32 * 96 / 2 + 32 * 96 / 32));
    assert_true(experts->is_used);
    const tamis_tensor_group *embedding = find_group(seen, "embedding", "BF16");
    assert_int_equal(embedding->n_tensors, 1);
    assert_int_equal(embedding->n_params, 240 * 96);
    assert_int_equal(embedding->bytes, 2 * 240 * 96);
    assert_int_equal(find_group(seen, "router", "I64")->n_tensors, 3);
    assert_int_equal(find_group(seen, "router", "I64")->n_params, 0);
    assert_int_equal(find_group(seen, "indexer", "F8_E4M3 + F8_E8M0 per 128x128")->n_tensors, 4);
    assert_int_equal(find_group(seen, "mtp", "F4_E2M1 + F8_E8M0 per 1x32")->n_params,
                     8 * 3 * 32 * 96);
    assert_string_equal(seen->groups[0].name, "embedding");
    assert_string_equal(seen->groups[seen->n_groups - 1].name, "mtp");
    tamis_inspect_free(&inspect);

    for (uint64_t n = 1;; n++) {
        const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, NULL);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK) {
            assert_true(n > 5);
            tamis_inspect_free(&inspect);
            break;
        }
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        assert_null(inspect);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
    }
    test_unbind(&b);
}

/* "full/dense full/dense shared/dense ..." */
static void expect_layers(const tamis_inspection *seen, int32_t n, const char *expected)
{
    char text[256] = "";
    for (int32_t i = 0; i < n; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s/%s", i == 0 ? "" : " ",
                 seen->layer_attention[i], seen->layer_mlp[i]);
    }
    assert_string_equal(text, expected);
}

/* V3.2 brings an embedding and a head for its MTP block, GLM-5.2 does not. */
static void test_groups_of_v32_and_glm_folders(void **state)
{
    (void)state;
    tamis_inspect *inspect;
    test_bound b = test_bind_ok("tests/golden/v32-fp8", NULL);
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    expect_layers(seen, 3, "full/dense full/learned full/learned");
    const tamis_tensor_group *experts = find_group(seen, "experts", "F8_E4M3 + F32 per 128x128");
    assert_int_equal(experts->n_tensors, 2 * 2 * 12 * 3);
    assert_int_equal(experts->n_params, 2 * 12 * 3 * 32 * 160);
    assert_int_equal(experts->bytes, 2 * 12 * 3 * (32 * 160 + 2 * 4));
    const tamis_tensor_group *dense = find_group(seen, "dense mlp", "F8_E4M3 + F32 per 128x128");
    assert_int_equal(dense->n_params, 3 * 208 * 160);
    assert_int_equal(find_group(seen, "indexer", "F32")->n_tensors, 2 * 3);
    assert_int_equal(find_group(seen, "indexer", "BF16")->n_params, 3 * 8 * 160);
    assert_int_equal(find_group(seen, "embedding", "BF16")->n_tensors, 1);
    /* embed_tokens, eh_proj, shared_head.head, gate, weights_proj and six norms of the block */
    assert_int_equal(find_group(seen, "mtp", "BF16")->n_tensors, 5 + 7);
    assert_int_equal(seen->n_unused, 0);
    assert_string_equal(seen->groups[seen->n_groups - 1].name, "mtp");
    tamis_inspect_free(&inspect);
    test_unbind(&b);

    b = test_bind_ok("tests/golden/glm52-fp8", NULL);
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, NULL),
                     TAMIS_STATUS_OK);
    seen = tamis_inspect_get(inspect);
    expect_layers(seen, 6,
                  "full/dense full/dense shared/dense shared/learned full/learned shared/learned");
    assert_int_equal(find_group(seen, "mtp", "BF16")->n_tensors, 3 + 9); /* k_norm is BF16 here */
    assert_int_equal(find_group(seen, "indexer", "BF16")->n_tensors, 3 * 3);
    tamis_inspect_free(&inspect);
    test_unbind(&b);
}

/* Another drafter's blocks, MTP blocks after the first, scales without a weight, unknown names:
 * listed, not run. */
static void test_unused_groups(void **state)
{
    (void)state;
    test_items items = test_items_read("tests/golden/v4-flash-bf16");
    const int64_t shape[] = {2, 2};
    test_items_add(&items, "mtp.0.main_proj.weight", "F8_E4M3", 2, shape, "abcd", 4);
    test_items_add(&items, "mtp.0.main_proj.scale", "F8_E8M0", 2, (int64_t[]){1, 1}, "a", 1);
    test_items_add(&items, "stray.scale", "F8_E8M0", 2, shape, "abcd", 4);
    test_items_add(&items, "layers.7.attn.wq_a.weight", "BF16", 2, shape, "abcdefgh", 8);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_int_equal(b.weights->mtp_kind, TAMIS_MTP_DSPARK);
    tamis_inspect *inspect;
    const tamis_model_info info = {.drafter = "dspark"};
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, &info, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    assert_int_equal(seen->n_unused, 4);
    assert_string_equal(seen->unused[0], "mtp.0.main_proj.weight");
    assert_string_equal(seen->unused[3], "layers.7.attn.wq_a.weight");
    const tamis_tensor_group *drafter = find_group(seen, "dspark", "F8_E4M3 + F8_E8M0 per 128x128");
    assert_int_equal(drafter->n_tensors, 2);
    assert_int_equal(drafter->n_params, 4);
    assert_int_equal(drafter->bytes, 5);
    assert_false(drafter->is_used);
    assert_false(find_group(seen, "unknown", "F8_E8M0")->is_used);
    int n_attention = 0; /* the layer that the config does not have gets its own row */
    for (int32_t i = 0; i < seen->n_groups; i++)
        if (strcmp(seen->groups[i].name, "attention") == 0 &&
            strcmp(seen->groups[i].dtype, "BF16") == 0)
            n_attention++;
    assert_int_equal(n_attention, 2);
    tamis_inspect_free(&inspect);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

/* ---------------------------------------------------------------- damaged values */

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *tensor;
        int32_t layer;
        int64_t element;
        size_t n_bytes;
        uint8_t bytes[4];
        const char *what;
    } cases[] = {
        {"tests/golden/v4-pro-fp8", "layers.2.attn.wq_b.weight", 2, 39167, 1, {0x7f}, "FP8 NaN"},
        {"tests/golden/v4-pro-fp8", "layers.2.attn.wq_b.weight", 2, 0, 1, {0xff}, "FP8 NaN"},
        {"tests/golden/v4-pro-fp8",
         "layers.0.ffn.experts.3.w2.scale",
         0,
         159,
         1,
         {255},
         "E8M0 scale byte 255"},
        {"tests/golden/v4-flash-bf16", "embed.weight", -1, 7, 2, {0x80, 0x7f}, "infinity"},
        {"tests/golden/v4-flash-bf16", "embed.weight", -1, 23039, 2, {0xc0, 0xff}, "NaN"},
        {"tests/golden/v4-flash-bf16", "norm.weight", -1, 3, 2, {0x81, 0x7f}, "NaN"},
        {"tests/golden/v4-flash-bf16",
         "layers.4.ffn.gate.bias",
         4,
         5,
         4,
         {0, 0, 0x80, 0xff},
         "infinity"},
        {"tests/golden/v4-flash-bf16",
         "layers.4.hc_attn_scale",
         4,
         2,
         4,
         {1, 0, 0x80, 0x7f},
         "NaN"},
        {"tests/golden/v4-flash-fp8", "mtp.0.e_proj.weight", 5, 9215, 1, {0x7f}, "FP8 NaN"},
        {"tests/golden/v4-flash-fp8",
         "mtp.0.hc_head_base",
         5,
         3,
         4,
         {0, 0, 0x80, 0xff},
         "infinity"},
        {"tests/golden/v4-flash-fp8",
         "mtp.0.ffn.experts.7.w1.scale",
         5,
         95,
         1,
         {255},
         "E8M0 scale byte 255"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].tensor);
        memcpy(item->data + (size_t)cases[i].element * cases[i].n_bytes, cases[i].bytes,
               cases[i].n_bytes);
        char *dir = test_temp_dir_make();
        test_items_write(&items, dir);
        test_bound b = test_bind_ok(dir, &items.config); /* values are not read at open */
        for (int32_t layer = -1; layer <= b.config.num_hidden_layers; layer++) {
            tamis_weight_fault fault;
            const bool is_found = tamis_weights_find_fault(b.checkpoint, &b.config, layer, &fault);
            assert_int_equal(is_found, layer == cases[i].layer);
            if (!is_found)
                continue;
            assert_string_equal(fault.tensor, cases[i].tensor);
            assert_int_equal(fault.element, cases[i].element);
            assert_string_equal(fault.what, cases[i].what);
        }
        test_unbind(&b);
        test_temp_dir_remove(dir);
        test_items_free(&items);
    }
}

/* Scale bytes stored as U8 count as E8M0; FP4 bytes and tensors that are not used do not. */
static void test_what_is_no_fault(void **state)
{
    (void)state;
    test_items items = test_items_read("tests/golden/v4-flash-fp8");
    memset(test_items_find(&items, "layers.1.ffn.experts.0.w1.weight")->data, 0xff, 16);
    test_items_add(&items, "mtp.1.attn.wq_a.scale", "F8_E8M0", 1, (int64_t[]){1}, "\xff", 1);
    test_item *scale = test_items_find(&items, "layers.3.attn.wq_a.scale");
    strcpy(scale->dtype, "U8");
    char *dir = test_temp_dir_make();
    tamis_weight_fault fault;
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    for (int32_t layer = -1; layer <= 5; layer++)
        assert_false(tamis_weights_find_fault(b.checkpoint, &b.config, layer, &fault));
    test_unbind(&b);
    scale->data[0] = 255;
    test_items_write(&items, dir);
    b = test_bind_ok(dir, &items.config);
    assert_true(tamis_weights_find_fault(b.checkpoint, &b.config, 3, &fault));
    assert_string_equal(fault.tensor, "layers.3.attn.wq_a.scale");
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_of_v32),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_groups_of_the_flash_folder),
        cmocka_unit_test(test_groups_of_v32_and_glm_folders),
        cmocka_unit_test(test_unused_groups),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_what_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
