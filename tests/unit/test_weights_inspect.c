/* What an inspection sums up, the group of every name, and the search for damaged values. */
#include <jansson.h>

#include "weights/inspect.h"
#include "weights_test.h"

/* ---------------------------------------------------------------- groups */

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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(tamis_v4_tensor_group(cases[i][0]), cases[i][1]);
    assert_int_equal(tamis_v4_tensor_layer("layers.42.attn.wq_a.weight"), 42);
    assert_int_equal(tamis_v4_tensor_layer("model.layers.7.mlp.gate.weight"), 7);
    assert_int_equal(tamis_v4_tensor_layer("embed.weight"), -1);
    assert_int_equal(tamis_v4_tensor_layer("model.norm.weight"), -1);
    assert_int_equal(tamis_v4_tensor_layer("mtp.0.attn.wq_a.weight"), -2);
    assert_int_equal(tamis_v4_tensor_layer("visual.patch"), -2);
}

/* ---------------------------------------------------------------- sums */

typedef struct header_sums {
    int64_t n_tensors, n_params, n_mtp;
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
        sums->n_mtp += strncmp(tensor, "mtp.", 4) == 0;
        sums->bytes += (uint64_t)(json_integer_value(json_array_get(offsets, 1)) -
                                  json_integer_value(json_array_get(offsets, 0)));
        if (strcmp(dtype, "I8") == 0)
            n *= 2;                                                     /* FP4 */
        if (strcmp(dtype, "F8_E8M0") != 0 && strcmp(dtype, "I64") != 0) /* I64: tid2eid */
            sums->n_params += n;
    }
    json_decref(header);
    free(file);
}

static void expect_sums(const char *dir, const char *const *files, int n_files)
{
    header_sums sums = {0, 0, 0, 0};
    for (int i = 0; i < n_files; i++)
        add_header(&sums, dir, files[i]);
    test_bound b = test_bind_ok(dir, NULL);
    tamis_inspect *inspect;
    const tamis_model_info info = {.family = "deepseek_v4"};
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, &info, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    assert_ptr_equal(seen->info, &info);
    assert_int_equal(seen->n_tensors, sums.n_tensors);
    assert_int_equal(seen->n_params, sums.n_params);
    assert_int_equal(seen->tensor_bytes, sums.bytes);
    assert_int_equal(seen->n_unused, sums.n_mtp);
    int64_t n_tensors = 0, n_params = 0;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < seen->n_groups; i++) {
        const tamis_tensor_group *group = &seen->groups[i];
        n_tensors += group->n_tensors;
        n_params += group->n_params;
        bytes += group->bytes;
        assert_int_equal(group->is_used, strcmp(group->name, "mtp") != 0);
    }
    assert_int_equal(n_tensors, sums.n_tensors);
    assert_int_equal(n_params, sums.n_params);
    assert_int_equal(bytes, sums.bytes);
    for (int32_t i = 0; i < seen->n_unused; i++)
        assert_true(strncmp(seen->unused[i], "mtp.", 4) == 0);
    for (int32_t i = 0; i < b.config.num_hidden_layers; i++) {
        assert_int_equal(seen->layer_ratios[i], b.config.compress_ratios[i]);
        assert_string_equal(seen->layer_moe[i], b.config.is_hash_layer[i] ? "hash" : "learned");
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

/* Another drafter's blocks, scales without a weight, unknown names: listed, not run. */
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
    tamis_inspect *inspect;
    assert_int_equal(tamis_inspect_build(&inspect, b.checkpoint, &b.config, NULL, NULL),
                     TAMIS_STATUS_OK);
    const tamis_inspection *seen = tamis_inspect_get(inspect);
    assert_int_equal(seen->n_unused, 4);
    assert_string_equal(seen->unused[0], "mtp.0.main_proj.weight");
    assert_string_equal(seen->unused[3], "layers.7.attn.wq_a.weight");
    const tamis_tensor_group *mtp = find_group(seen, "mtp", "F8_E4M3 + F8_E8M0 per 128x128");
    assert_int_equal(mtp->n_tensors, 2);
    assert_int_equal(mtp->n_params, 4);
    assert_int_equal(mtp->bytes, 5);
    assert_false(mtp->is_used);
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].tensor);
        memcpy(item->data + (size_t)cases[i].element * cases[i].n_bytes, cases[i].bytes,
               cases[i].n_bytes);
        char *dir = test_temp_dir_make();
        test_items_write(&items, dir);
        test_bound b = test_bind_ok(dir, &items.config); /* values are not read at open */
        for (int32_t layer = -1; layer < b.config.num_hidden_layers; layer++) {
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
    test_items_find(&items, "mtp.0.attn.wq_a.scale")->data[0] = 255;
    test_item *scale = test_items_find(&items, "layers.3.attn.wq_a.scale");
    strcpy(scale->dtype, "U8");
    char *dir = test_temp_dir_make();
    tamis_weight_fault fault;
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    for (int32_t layer = -1; layer < 5; layer++)
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
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_groups_of_the_flash_folder),
        cmocka_unit_test(test_unused_groups),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_what_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
