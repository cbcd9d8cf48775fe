/* Folders that the binder refuses, with the tensor, the value seen and the value allowed. */
#include <fcntl.h>
#include <unistd.h>

#include <jansson.h>

#include "support/rng.h"
#include "weights_test.h"

#define FLASH_BF16 "tests/golden/v4-flash-bf16"
#define FLASH_FP8  "tests/golden/v4-flash-fp8"
#define PRO_FP8    "tests/golden/v4-pro-fp8"

/* ---------------------------------------------------------------- what is refused */

static void test_missing_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {
        "embed.weight",
        "head.weight",
        "norm.weight",
        "hc_head_fn",
        "hc_head_base",
        "hc_head_scale",
        "layers.0.attn_norm.weight",
        "layers.4.ffn_norm.weight",
        "layers.1.hc_attn_fn",
        "layers.1.hc_ffn_scale",
        "layers.2.attn.wq_a.weight",
        "layers.2.attn.attn_sink",
        "layers.2.attn.compressor.ape",
        "layers.3.attn.compressor.wgate.weight",
        "layers.4.attn.indexer.wq_b.weight",
        "layers.4.attn.indexer.weights_proj.weight",
        "layers.2.attn.indexer.compressor.norm.weight",
        "layers.0.ffn.gate.tid2eid",
        "layers.3.ffn.gate.bias",
        "layers.3.ffn.gate.weight",
        "layers.3.ffn.experts.7.w2.weight",
        "layers.0.ffn.shared_experts.w3.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_items items = test_items_read(FLASH_BF16);
        test_items_drop(&items, test_items_find(&items, names[i]));
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, names[i], "missing");
        test_items_free(&items);
    }
}

static void test_wrong_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name;
        int rank;
        int64_t shape[3];
        const char *seen, *allowed;
    } cases[] = {
        {FLASH_BF16, "embed.weight", 2, {96, 240}, "[96, 240]", "[240, 96]"},
        {FLASH_BF16, "norm.weight", 2, {1, 96}, "[1, 96]", "[96]"},
        {FLASH_BF16, "layers.2.attn.wo_a.weight", 2, {128, 64}, "[128, 64]", "[64, 128]"},
        {FLASH_BF16, "layers.2.attn.compressor.ape", 2, {128, 4}, "[128, 4]", "[4, 128]"},
        {FLASH_BF16, "layers.2.attn.compressor.ape", 1, {512}, "[512]", "[4, 128]"},
        {FLASH_BF16, "layers.0.hc_attn_fn", 2, {48, 192}, "[48, 192]", "[24, 384]"},
        {FLASH_BF16, "layers.0.ffn.gate.tid2eid", 2, {2, 240}, "[2, 240]", "[240, 2]"},
        {FLASH_BF16, "layers.0.ffn.experts.0.w2.weight", 2, {32, 96}, "[32, 96]", "[96, 32]"},
        {PRO_FP8, "layers.2.attn.wq_b.scale", 2, {2, 3}, "[2, 3]", "[3, 2]"},
        {PRO_FP8, "layers.2.attn.wq_b.scale", 1, {6}, "[6]", "[3, 2]"},
        {PRO_FP8, "layers.2.attn.wq_b.weight", 2, {136, 288}, "[136, 288]", "[288, 136]"},
        {PRO_FP8, "layers.2.ffn.experts.0.w1.weight", 2, {64, 40}, "[64, 40]", "[32, 80]"},
        {PRO_FP8, "layers.2.ffn.experts.0.w1.scale", 2, {5, 32}, "[5, 32]", "[32, 5]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].name);
        item->rank = cases[i].rank;
        memcpy(item->shape, cases[i].shape, sizeof cases[i].shape);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, cases[i].name, cases[i].seen);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.safetensors: ", cases[i].allowed);
        test_items_free(&items);
    }
}

static void test_wrong_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name, *dtype;
        tamis_status status;
        const char *part;
    } cases[] = {
        {FLASH_BF16, "embed.weight", "I16", TAMIS_STATUS_UNSUPPORTED, "dtype is I16"},
        {FLASH_BF16, "norm.weight", "I16", TAMIS_STATUS_UNSUPPORTED, "dtype is I16"},
        {FLASH_BF16, "layers.0.hc_attn_fn", "I32", TAMIS_STATUS_UNSUPPORTED, "dtype is I32"},
        {FLASH_BF16, "layers.0.ffn.gate.tid2eid", "F64", TAMIS_STATUS_UNSUPPORTED, "allowed: I64"},
        {PRO_FP8, "layers.2.attn.wq_b.weight", "I8", TAMIS_STATUS_UNSUPPORTED, "dtype is I8"},
        {PRO_FP8, "layers.2.attn.wq_b.weight", "F8_E5M2", TAMIS_STATUS_UNSUPPORTED, "F8_E5M2"},
        {PRO_FP8, "layers.2.attn.wq_b.scale", "BOOL", TAMIS_STATUS_UNSUPPORTED, "dtype is BOOL"},
        {PRO_FP8, "layers.2.attn.wq_b.scale", "F8_E4M3", TAMIS_STATUS_UNSUPPORTED,
         "dtype is F8_E4M3"},
        {PRO_FP8, "layers.2.ffn.experts.0.w1.weight", "U8", TAMIS_STATUS_UNSUPPORTED, "FP4 as I8"},
        {PRO_FP8, "layers.2.ffn.shared_experts.w1.weight", "I8", TAMIS_STATUS_UNSUPPORTED,
         "dtype is I8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(cases[i].dir);
        test_item *item = test_items_find(&items, cases[i].name);
        strcpy(item->dtype, cases[i].dtype);
        test_expect_refused(&items, cases[i].status, cases[i].name, cases[i].part);
        test_items_free(&items);
    }
}

static void test_tid2eid_type_and_values(void **state)
{
    (void)state;
    static const int64_t ids[] = {-1, 8, INT64_MIN, INT64_MAX, INT64_C(1) << 32};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char seen[64];
        test_items items = test_items_read(FLASH_BF16);
        test_item *item = test_items_find(&items, "layers.1.ffn.gate.tid2eid");
        memcpy(item->data + 8 * 479, &ids[i], 8); /* the last one */
        snprintf(seen, sizeof seen, "element 479 is %lld", (long long)ids[i]);
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, "layers.1.ffn.gate.tid2eid", seen);
        test_items_free(&items);
    }
    test_items items = test_items_read(FLASH_BF16);
    test_item *item = test_items_find(&items, "layers.1.ffn.gate.tid2eid");
    int32_t narrow[480] = {0};
    test_item_set(item, "I32", narrow, sizeof narrow);
    test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, "dtype is I32", "allowed: I64");
    test_items_free(&items);
}

static void test_scales_that_should_not_be(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t rows, cols;
    } cases[] = {
        {"layers.2.attn.wq_a.scale", 1, 1},         {"layers.2.attn.wq_a.weight_scale_inv", 1, 1},
        {"layers.2.attn_norm.scale", 1, 1},         {"embed.scale", 2, 1},
        {"layers.2.ffn.experts.3.w1.scale", 32, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_items items = test_items_read(FLASH_BF16);
        const int64_t shape[] = {cases[i].rows, cases[i].cols};
        const uint8_t bytes[96] = {127};
        test_items_add(&items, cases[i].name, "F8_E8M0", 2, shape, bytes,
                       (size_t)(shape[0] * shape[1]));
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, cases[i].name,
                            "belongs to a weight of BF16");
        test_items_free(&items);
    }
    /* And the opposite. */
    static const char *const missing[] = {"layers.2.attn.wq_a", "layers.2.ffn.experts.1.w3"};
    for (int i = 0; i < 2; i++) {
        char name[128];
        test_items items = test_items_read(PRO_FP8);
        snprintf(name, sizeof name, "%s.scale", missing[i]);
        test_items_drop(&items, test_items_find(&items, name));
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, missing[i], "without scales");
        test_items_free(&items);
    }
}

/* FP4 needs whole groups of 32 columns; the width of w2 is the config's. */
static void test_fp4_columns(void **state)
{
    (void)state;
    test_items items = test_items_read(PRO_FP8);
    for (int i = 0; i < items.n; i++) {
        test_item *item = &items.items[i];
        const char *rest = strstr(item->name, ".ffn.");
        if (rest == NULL || strstr(rest, "experts") == NULL || item->rank != 2)
            continue;
        /* 40 instead of 32 columns of w2, rows of w1 and w3 */
        const bool is_w2 = strstr(rest, ".w2.") != NULL;
        const bool is_scale = strstr(rest, ".scale") != NULL;
        const bool is_fp4 = strstr(rest, "shared") == NULL;
        if (is_w2 && !is_scale)
            item->shape[1] = is_fp4 ? 20 : 40;
        else if (!is_w2 && (!is_scale || is_fp4))
            item->shape[0] = 40;
        const size_t bytes = (size_t)(item->shape[0] * item->shape[1]);
        uint8_t *data = calloc(bytes + 1, 1);
        assert_non_null(data);
        test_item_set(item, item->dtype, data, bytes);
        free(data);
    }
    items.config.moe_intermediate_size = 40;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "experts.0.w2.weight: is FP4 with 40 columns",
                        "a multiple of 32");
    test_items_free(&items);
}

/* ---------------------------------------------------------------- damaged files, memory */

/* Bits of the header flipped in place: refused with an explanation, or the same weights. */
static void test_flipped_header_bits(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("test_flipped_header_bits", 7);
    const uint64_t digest = test_digest_of(FLASH_BF16, NULL);
    char *dir = test_temp_dir_make();
    test_file_copy(FLASH_BF16, dir, "config.json");
    test_file_copy(FLASH_BF16, dir, "model.safetensors");
    char *path = test_path(dir, "model.safetensors");
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    int n_refused = 0;
    for (off_t at = 0; at < 8 + 24568; at += at < 400 ? 1 : test_rng_int(&rng, 20, 80)) {
        uint8_t byte, flipped;
        test_bound b;
        tamis_error err;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ (uint8_t)(1 << test_rng_int(&rng, 0, 7));
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        const tamis_status st = test_bind(&b, dir, NULL, &err);
        if (st == TAMIS_STATUS_OK) {
            assert_true(test_weights_digest(b.weights, &b.config) == digest);
        } else {
            n_refused++;
            assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
            test_expect_part(err.text, ": ");
        }
        test_unbind(&b);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_true(n_refused > 500);
    close(fd);
    free(path);
    assert_true(test_digest_of(dir, NULL) == digest);
    test_temp_dir_remove(dir);
}

static void test_cut_folders(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("test_cut_folders", 11);
    size_t bytes;
    char *dir = test_temp_dir_make();
    char *file = test_file_read(FLASH_FP8, "model-00002-of-00003.safetensors", &bytes);
    test_dir_copy_files(FLASH_FP8, dir);
    for (int i = 0; i < 40; i++) {
        test_bound b;
        tamis_error err;
        const size_t n = i < 20 ? (size_t)i : (size_t)test_rng_int(&rng, 20, (int64_t)bytes - 1);
        test_file_write(dir, "model-00002-of-00003.safetensors", file, n);
        assert_int_equal(test_bind(&b, dir, NULL, &err), TAMIS_STATUS_FORMAT);
        test_expect_part(err.text, "model-00002-of-00003.safetensors: ");
        test_unbind(&b);
    }
    free(file);
    test_temp_dir_remove(dir);
}

static void *jansson_alloc(size_t bytes)
{
    return tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
}

/* The n-th allocation fails: nothing is left over, and the library works afterwards. */
static void test_refused_allocation(void **state)
{
    (void)state;
    json_set_alloc_funcs(jansson_alloc, tamis_mem_free);
    test_bound b = test_bind_ok(FLASH_BF16, NULL);
    const uint64_t digest = test_weights_digest(b.weights, &b.config);
    test_unbind(&b);
    const size_t misc = tamis_mem_in_use(TAMIS_MEM_MISC);
    uint64_t n_refused = 0, step = 1;
    for (uint64_t n = 1;; n += step) {
        const uint64_t calls = tamis_mem_num_allocs();
        tamis_error err;
        tamis_mem_fail_at(n);
        const tamis_status st = test_bind(&b, FLASH_BF16, NULL, &err);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK)
            assert_true(test_weights_digest(b.weights, &b.config) == digest);
        n_refused += st == TAMIS_STATUS_NO_MEMORY;
        test_unbind(&b);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), misc);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), 0);
        const uint64_t made = tamis_mem_num_allocs() - calls;
        if (made < n)
            break;
        /* One JSON entry of the header is like the next: thin them out, not the ends. */
        step = n > 400 ? 97 : 1;
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n_refused > 100);
    assert_true(test_digest_of(FLASH_BF16, NULL) == digest);
}

/* Those of the binder alone, every one. */
static void test_refused_allocation_of_the_binder(void **state)
{
    (void)state;
    test_bound b = test_bind_ok(FLASH_FP8, NULL);
    tamis_model_weights_free(&b.weights);
    for (uint64_t n = 1;; n++) {
        tamis_error err;
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_model_weights_bind(&b.weights, b.checkpoint, &b.config, &err);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK) {
            assert_int_equal(n, 5); /* object, layers, experts, vectors */
            break;
        }
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        assert_null(b.weights);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), 0);
    }
    test_unbind(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_tensors),
        cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_wrong_dtypes),
        cmocka_unit_test(test_tid2eid_type_and_values),
        cmocka_unit_test(test_scales_that_should_not_be),
        cmocka_unit_test(test_fp4_columns),
        cmocka_unit_test(test_flipped_header_bits),
        cmocka_unit_test(test_cut_folders),
        cmocka_unit_test(test_refused_allocation),
        cmocka_unit_test(test_refused_allocation_of_the_binder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
