/* DeepSeek-V3.2 and GLM folders that the binder refuses, and damaged values found by name. */
#include <fcntl.h>
#include <unistd.h>

#include "support/rng.h"
#include "support/sanitized.h"
#include "weights_test.h"

#define V32_BF16  "tests/golden/v32-bf16"
#define V32_FP8   "tests/golden/v32-fp8"
#define GLM5_BF16 "tests/golden/glm5-bf16"
#define GLM52_FP8 "tests/golden/glm52-fp8"
#define PRO_FP8   "tests/golden/v4-pro-fp8" /* DeepSeek-V4 */

/* Experts are alike: the first and the last stand for them. */
static bool is_middle_expert(const test_items *items, const char *name)
{
    int layer, expert;
    return sscanf(name, "model.layers.%d.mlp.experts.%d.", &layer, &expert) == 2 && expert > 0 &&
           expert < items->config.n_routed_experts - 1;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Every tensor in turn under another name. */
static void test_missing_tensors(void **state)
{
    (void)state;
    static const char *const dirs[] = {V32_BF16, GLM52_FP8};
    for (int d = 0; d < 2; d++) {
        test_items items = test_items_read(dirs[d]);
        for (int i = 0; i < items.n; i++) {
            test_item *item = &items.items[i];
            char name[256];
            if (is_middle_expert(&items, item->name) ||
                (d == 1 && !ends_with(item->name, "_scale_inv")))
                continue;
            snprintf(name, sizeof name, "%s", item->name);
            snprintf(item->name, sizeof item->name, "elsewhere");
            if (d == 1) {
                *strstr(name, "_scale_inv") = '\0';
                test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, "without scales");
                strcat(name, "_scale_inv");
            } else {
                test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, "is missing");
            }
            snprintf(item->name, sizeof item->name, "%s", name);
        }
        test_items_free(&items);
    }
}

/* Every shape in turn: transposed, or a vector as a row. Squares are left out. */
static void test_wrong_shapes(void **state)
{
    (void)state;
    static const char *const dirs[] = {GLM5_BF16, V32_FP8};
    for (int d = 0; d < 2; d++) {
        test_items items = test_items_read(dirs[d]);
        for (int i = 0; i < items.n; i++) {
            test_item *item = &items.items[i];
            const int rank = item->rank;
            const int64_t first = item->shape[0], second = rank == 2 ? item->shape[1] : 1;
            if (is_middle_expert(&items, item->name) || first == second)
                continue;
            item->rank = 2;
            item->shape[0] = second;
            item->shape[1] = first;
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, item->name, ": shape is [");
            item->rank = rank;
            item->shape[0] = first;
            item->shape[1] = rank == 2 ? second : 0;
        }
        test_items_free(&items);
    }
}

static void test_wrong_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name, *dtype, *part;
    } cases[] = {
        {V32_BF16, "model.embed_tokens.weight", "I16", "dtype is I16"},
        {V32_BF16, "model.norm.weight", "I16", "dtype is I16"},
        {V32_BF16, "model.layers.1.self_attn.indexer.k_norm.bias", "I16", "dtype is I16"},
        {V32_BF16, "model.layers.1.mlp.gate.e_score_correction_bias", "I32", "dtype is I32"},
        {V32_FP8, "model.layers.2.self_attn.kv_b_proj.weight", "F8_E5M2", "dtype is F8_E5M2"},
        {V32_FP8, "model.layers.2.self_attn.kv_b_proj.weight", "I8", "dtype is I8"},
        {V32_FP8, "model.layers.2.self_attn.kv_b_proj.weight_scale_inv", "I32", "dtype is I32"},
        {GLM52_FP8, "model.layers.0.mlp.up_proj.weight", "U8", "dtype is U8"},
        /* W8A8 or FP4: V4's only */
        {GLM52_FP8, "model.layers.3.mlp.experts.0.up_proj.weight", "I8",
         "dtype is I8, allowed: F32, BF16, F16, F8_E4M3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].name);
        strcpy(item->dtype, cases[i].dtype);
        test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, cases[i].name, cases[i].part);
        test_items_free(&items);
    }
}

/* The indexer's weights_proj is floats in every release: FP8 there is another kind of folder. */
static void test_fp8_weights_proj(void **state)
{
    (void)state;
    static const char name[] = "model.layers.1.self_attn.indexer.weights_proj.weight";
    const uint8_t bytes[8 * 160] = {0};
    const float ones[] = {1, 1};
    const int64_t grid[] = {1, 2};
    test_items items = test_items_read(V32_FP8);
    test_item_set(test_items_find(&items, name), "F8_E4M3", bytes, sizeof bytes);
    test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, name, "dtype is F8_E4M3");
    test_items_add(&items, "model.layers.1.self_attn.indexer.weights_proj.weight_scale_inv", "F32",
                   2, grid, ones, sizeof ones);
    test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, name, "allowed: F32, BF16, F16");
    test_items_free(&items);
}

/* Grids without the short last block, of rows or of columns; scales beside floats. */
static void test_scale_grids(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name;
        int64_t rows, cols;
        const char *seen, *allowed;
    } cases[] = {
        {V32_FP8, "model.layers.1.self_attn.kv_a_proj_with_mqa", 1, 2, "[1, 2]", "[2, 2]"},
        {V32_FP8, "model.layers.1.self_attn.kv_a_proj_with_mqa", 2, 1, "[2, 1]", "[2, 2]"},
        {V32_FP8, "model.layers.1.self_attn.kv_a_proj_with_mqa", 3, 2, "[3, 2]", "[2, 2]"},
        {GLM52_FP8, "model.layers.5.self_attn.kv_b_proj", 2, 1, "[2, 1]", "[3, 1]"},
        {GLM52_FP8, "model.layers.5.self_attn.kv_b_proj", 5, 1, "[5, 1]", "[3, 1]"},
        {GLM52_FP8, "model.layers.0.self_attn.indexer.wq_b", 1, 1, "[1, 1]", "[2, 1]"},
    };
    const float ones[] = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.weight_scale_inv", cases[i].name);
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, name);
        item->shape[0] = cases[i].rows;
        item->shape[1] = cases[i].cols;
        test_item_set(item, "F32", ones, (size_t)(cases[i].rows * cases[i].cols) * 4);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, cases[i].seen);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, "safetensors: ", cases[i].allowed);
        test_items_free(&items);
    }
    static const char *const floats[] = {"model.layers.0.self_attn.q_a_proj.weight_scale_inv",
                                         "model.layers.0.self_attn.indexer.k_norm.scale",
                                         "model.layers.2.mlp.gate.weight_scale_inv"};
    for (int i = 0; i < 3; i++) {
        test_items items = test_items_read(V32_BF16);
        test_items_add(&items, floats[i], "F32", 2, (int64_t[]){1, 1}, ones, 4);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, floats[i], "belongs to a weight of BF16");
        test_items_free(&items);
    }
}

/* Scales under both names, even equal ones. */
static void test_two_scales(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *weight, *other;
    } cases[] = {
        {V32_FP8, "model.layers.1.self_attn.q_a_proj", "scale"},
        {GLM52_FP8, "model.layers.4.mlp.experts.3.down_proj", "scale"},
        {GLM52_FP8, "model.layers.0.mlp.up_proj", "scale"},
        {PRO_FP8, "layers.2.attn.wq_a", "weight_scale_inv"},
        {PRO_FP8, "layers.3.ffn.experts.1.w2", "weight_scale_inv"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool is_v4 = strcmp(cases[i].dir, PRO_FP8) == 0;
        char own[128], other[128];
        snprintf(own, sizeof own, "%s.%s", cases[i].weight, is_v4 ? "scale" : "weight_scale_inv");
        snprintf(other, sizeof other, "%s.%s", cases[i].weight, cases[i].other);
        test_items items = test_items_read(cases[i].dir);
        const test_item item = *test_items_find(&items, own);
        test_items_add(&items, other, item.dtype, item.rank, item.shape, item.data, item.bytes);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, own, "are both scales of");
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, other, cases[i].weight);
        test_items_free(&items);
    }
}

/* ---------------------------------------------------------------- config and folder disagree */

/* Everything around the layer of the MTP block. */
static void drop_mtp_frame(test_items *items)
{
    static const char *const parts[] = {"enorm.", "hnorm.", "eh_proj.", "shared_head.", "embed_"};
    for (int i = items->n - 1; i >= 0; i--) {
        char prefix[64];
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            snprintf(prefix, sizeof prefix, "model.layers.%d.%s",
                     (int)items->config.num_hidden_layers, parts[p]);
            if (strncmp(items->items[i].name, prefix, strlen(prefix)) == 0) {
                test_items_drop(items, &items->items[i]);
                break;
            }
        }
    }
}

/* One layer less, or an MTP block run as a main layer, would be another model. */
static void test_number_of_layers(void **state)
{
    (void)state;
    static const char *const dirs[] = {V32_BF16, V32_FP8, GLM5_BF16, GLM52_FP8};
    for (int d = 0; d < 4; d++) {
        test_items items = test_items_read(dirs[d]);
        const int32_t n = items.config.num_hidden_layers;
        for (int32_t fewer = 1; fewer < n; fewer++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight is there",
                     (int)fewer);
            items.config.num_hidden_layers = fewer;
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, "num_hidden_layers");
        }
        items.config.num_hidden_layers = n + 1;
        if (d % 2 == 1) /* with an MTP block */
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, "eh_proj.weight is there",
                                "num_hidden_layers");
        else
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, "input_layernorm.weight", "missing");
        items.config.num_hidden_layers = n;
        if (d % 2 == 1) { /* an MTP block that does not look like one */
            drop_mtp_frame(&items);
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, "input_layernorm.weight is there",
                                "num_hidden_layers");
        }
        test_items_free(&items);
    }
}

static void test_left_over_parts(void **state)
{
    (void)state;
    test_items items = test_items_read(V32_BF16);
    const tamis_model_config good = items.config;
    items.config.is_dense_layer[1] = true;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.1.mlp.gate.weight is there",
                        "a dense MLP in layer 1");
    items.config = good;
    items.config.is_dense_layer[0] = false;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.0.mlp.gate_proj.weight is there",
                        "experts in layer 0");
    items.config = good;
    items.config.n_shared_experts = 0;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT,
                        "model.layers.1.mlp.shared_experts.gate_proj.weight is there",
                        "n_shared_experts 0");
    items.config = good;
    items.config.index_topk = 0;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT,
                        "model.layers.0.self_attn.indexer.wq_b.weight is there", "index_topk 0");
    items.config = good;
    items.config.intermediate_size = 32;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.0.mlp.gate_proj.weight",
                        "shape is [192, 128], allowed: [32, 128]");
    items.config = good;
    items.config.n_routed_experts = 12;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.1.mlp.gate.weight",
                        "shape is [16, 128], allowed: [12, 128]");
    items.config = good;
    items.config.n_shared_experts = 2;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "shared_experts.gate_proj.weight",
                        "shape is [32, 128], allowed: [64, 128]");
    test_items_free(&items);
}

/* Without shared experts and without an indexer a folder is complete, too. */
static void test_parts_left_out(void **state)
{
    (void)state;
    test_items items = test_items_read(V32_BF16);
    items.config.n_shared_experts = 0;
    items.config.index_topk = 0;
    for (int i = items.n - 1; i >= 0; i--)
        if (strstr(items.items[i].name, ".shared_experts.") != NULL ||
            strstr(items.items[i].name, ".indexer.") != NULL)
            test_items_drop(&items, &items.items[i]);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_int_equal(b.weights->layers[0].moe.shared.w1.rows, 192); /* the dense layer */
    assert_int_equal(b.weights->layers[1].moe.shared.w1.rows, 0);
    assert_null(b.weights->layers[1].sfa.weights.index_wq_b.data);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

/* ---------------------------------------------------------------- damaged files */

/* A flipped bit of the header: refused, or the same weights (it fell into what nothing reads). */
static void test_flipped_header_bits(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("test_flipped_header_bits", 23);
    const uint64_t digest = test_digest_of(GLM52_FP8, NULL);
    const int64_t longest = TEST_IS_SANITIZED ? 600 : 120;
    char *dir = test_temp_dir_make();
    uint8_t length[8];
    test_file_copy(GLM52_FP8, dir, "config.json");
    test_file_copy(GLM52_FP8, dir, "model.safetensors");
    char *path = test_path(dir, "model.safetensors");
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, length, 8, 0), 8);
    const off_t end = 8 + (length[0] | length[1] << 8 | length[2] << 16);
    int n_refused = 0, n_same = 0;
    for (off_t at = 8; at < end; at += test_rng_int(&rng, 1, longest)) {
        uint8_t byte, flipped;
        test_bound b;
        tamis_error err;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ (uint8_t)(1 << test_rng_int(&rng, 0, 7));
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        const tamis_status st = test_bind(&b, dir, NULL, &err);
        if (st == TAMIS_STATUS_OK) {
            n_same++;
            assert_true(test_weights_digest(b.weights, &b.config) == digest);
        } else {
            n_refused++;
            assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
            test_expect_part(err.text, ": ");
        }
        test_unbind(&b);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_true(n_refused > 3 * n_same);
    close(fd);
    free(path);
    test_temp_dir_remove(dir);
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
        {V32_FP8, "model.layers.1.self_attn.kv_b_proj.weight", 1, 32767, 1, {0x7f}, "FP8 NaN"},
        {V32_FP8,
         "model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
         2,
         3,
         4,
         {0, 0, 0xc0, 0x7f},
         "NaN"},
        {V32_FP8,
         "model.layers.0.self_attn.indexer.k_norm.bias",
         0,
         39,
         4,
         {0, 0, 0x80, 0x7f},
         "infinity"},
        {V32_FP8, "lm_head.weight", -1, 28159, 2, {0xc0, 0xff}, "NaN"},
        {V32_FP8, "model.layers.3.embed_tokens.weight", 3, 0, 2, {0xc0, 0xff}, "NaN"},
        {V32_FP8, "model.layers.3.self_attn.kv_b_proj.weight", 3, 5, 1, {0xff}, "FP8 NaN"},
        {GLM52_FP8, "model.layers.0.mlp.down_proj.weight", 0, 7, 1, {0xff}, "FP8 NaN"},
        {GLM52_FP8,
         "model.layers.4.mlp.experts.7.up_proj.weight_scale_inv",
         4,
         1,
         4,
         {1, 0, 0x80, 0xff},
         "NaN"},
        {GLM52_FP8, "model.embed_tokens.weight", -1, 1, 2, {0x80, 0x7f}, "infinity"},
        {GLM52_FP8, "model.layers.6.hnorm.weight", 6, 3, 2, {0x80, 0x7f}, "infinity"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].tensor);
        assert_true((size_t)(cases[i].element + 1) * cases[i].n_bytes <= item->bytes);
        memcpy(item->data + (size_t)cases[i].element * cases[i].n_bytes, cases[i].bytes,
               cases[i].n_bytes);
        char *dir = test_temp_dir_make();
        test_items_write(&items, dir);
        test_bound b = test_bind_ok(dir, &items.config);
        for (int32_t layer = -2; layer <= b.config.num_hidden_layers; layer++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_tensors),  cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_wrong_dtypes),     cmocka_unit_test(test_fp8_weights_proj),
        cmocka_unit_test(test_scale_grids),      cmocka_unit_test(test_two_scales),
        cmocka_unit_test(test_number_of_layers), cmocka_unit_test(test_left_over_parts),
        cmocka_unit_test(test_parts_left_out),   cmocka_unit_test(test_flipped_header_bits),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
