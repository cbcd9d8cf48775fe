/* tools/quantize: other spellings of a source, and what it refuses, leaving nothing behind. */
#include "quantize_test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "support/rng.h"
#include "support/sanitized.h"

#define V32_BF16   "tests/golden/v32-bf16"
#define FLASH_BF16 "tests/golden/v4-flash-bf16"
#define GLM52_FP8  "tests/golden/glm52-fp8"

/* ---------------------------------------------------------------- other spellings */

static char *write_source(const test_items *items, const char *config_dir)
{
    char *dir = test_temp_dir_make();
    test_items_write(items, dir);
    test_file_copy(config_dir, dir, "config.json");
    return dir;
}

/* Experts of a layer in two tensors, as transformers holds them. */
static void stack_experts(test_items *items, int layer)
{
    const int64_t n = items->config.n_routed_experts, hidden = items->config.hidden_size;
    const int64_t width = items->config.moe_intermediate_size;
    const size_t part = (size_t)(width * hidden) * 2;
    uint8_t *up = calloc((size_t)n, 2 * part), *down = calloc((size_t)n, part);
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int64_t e = 0; e < n; e++)
        for (int i = 0; i < 3; i++) {
            char name[256];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, (int)e,
                     names[i]);
            test_item *item = test_items_find(items, name);
            memcpy(i == 2 ? down + (size_t)e * part : up + ((size_t)e * 2 + (size_t)i) * part,
                   item->data, part);
            test_items_drop(items, item);
        }
    char name[256];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    test_items_add(items, name, "BF16", 3, (int64_t[]){n, 2 * width, hidden}, up,
                   (size_t)n * 2 * part);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
    test_items_add(items, name, "BF16", 3, (int64_t[]){n, hidden, width}, down, (size_t)n * part);
    free(up);
    free(down);
}

static void expect_same_twins(const test_items *items, const char *config_dir,
                              tamis_quant_scheme experts)
{
    char *source = write_source(items, config_dir);
    char *one = quantize_ok(quantize_params(config_dir, TAMIS_SCHEME_W8A8_DYNAMIC, experts), NULL);
    char *two = quantize_ok(quantize_params(source, TAMIS_SCHEME_W8A8_DYNAMIC, experts), NULL);
    assert_true(test_digest_of(one, NULL) == test_digest_of(two, NULL));
    test_temp_dir_remove(one);
    test_temp_dir_remove(two);
    test_temp_dir_remove(source);
}

static void test_stacked_experts(void **state)
{
    (void)state;
    static const tamis_quant_scheme schemes[] = {TAMIS_SCHEME_W8A8_DYNAMIC,
                                                 TAMIS_SCHEME_W4A8_DYNAMIC, TAMIS_SCHEME_FLOAT};
    for (int i = 0; i < 3; i++) {
        test_items items = test_items_read(V32_BF16);
        stack_experts(&items, 1);
        expect_same_twins(&items, V32_BF16, schemes[i]);
        test_items_free(&items);
    }
}

/* transformers' third spelling of V4: "model." in front of the vendor's. */
static void test_v4_spelling(void **state)
{
    (void)state;
    test_items items = test_items_read(FLASH_BF16);
    for (int i = 0; i < items.n; i++) {
        char *name = items.items[i].name;
        if (strncmp(name, "layers.", 7) == 0) {
            memmove(name + 6, name, strlen(name) + 1);
            memcpy(name, "model.", 6);
        } else if (strcmp(name, "embed.weight") == 0) {
            strcpy(name, "model.embed_tokens.weight");
        }
    }
    expect_same_twins(&items, FLASH_BF16, TAMIS_SCHEME_W8A8_DYNAMIC);
    test_items_free(&items);
}

/* ---------------------------------------------------------------- refusals */

/* Refused with both parts in the message, and the output is as it was: not there. */
static void expect_refused(tamis_quantize_params params, tamis_status status, const char *part,
                           const char *part2)
{
    tamis_quantize_report report;
    tamis_error err;
    char *folder = test_temp_dir_make();
    char *output = test_path(folder, "out");
    const size_t misc = tamis_mem_in_use(TAMIS_MEM_MISC);
    params.output = params.output != NULL ? params.output : output;
    const tamis_status st = tamis_quantize_folder(&params, &report, &err);
    if (st != status)
        fail_msg("%s: status %d instead of %d: %s", part, st, status,
                 st == TAMIS_STATUS_OK ? "ok" : err.text);
    test_expect_part(err.text, part);
    test_expect_part(err.text, part2);
    assert_int_equal(access(output, F_OK), -1);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), misc);
    free(output);
    test_temp_dir_remove(folder);
}

static tamis_quantize_params dynamic(const char *source)
{
    return quantize_params(source, TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC);
}

static void test_parameters(void **state)
{
    (void)state;
    tamis_quantize_params p = dynamic(V32_BF16);
    p.attention = TAMIS_SCHEME_W4A8_DYNAMIC;
    expect_refused(p, TAMIS_STATUS_INVALID, "W4A8_DYNAMIC", "allowed: FLOAT, W8A8,");
    p = dynamic(V32_BF16);
    p.experts = TAMIS_SCHEME_W8A8;
    expect_refused(p, TAMIS_STATUS_INVALID, "experts are W8A8", "allowed: FLOAT, W8A8_DYNAMIC");
    p = dynamic(V32_BF16);
    p.shard_bytes = 0;
    expect_refused(p, TAMIS_STATUS_INVALID, "shard_bytes is 0", "allowed: 1..");
    p = dynamic(V32_BF16);
    p.calibrate = "a.ids"; /* nothing would read it */
    expect_refused(p, TAMIS_STATUS_INVALID, "calibration by a.ids", "allowed: none");
    expect_refused(dynamic("tests/golden/none"), TAMIS_STATUS_IO, "tests/golden/none", "config");
}

static void test_quantised_source(void **state)
{
    (void)state;
    char *dir = quantize_ok(dynamic(V32_BF16), NULL);
    expect_refused(dynamic(dir), TAMIS_STATUS_INVALID, "quant_model_description.json",
                   "allowed: a folder that is not quantised yet");
    test_temp_dir_remove(dir);
}

/* What is in a folder stays. */
static void test_output(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    test_file_write_text(dir, "notes", "mine");
    tamis_quantize_params p = dynamic(V32_BF16);
    p.output = dir;
    expect_refused(p, TAMIS_STATUS_INVALID, "holds notes", "allowed: a new or an empty folder");
    assert_int_equal(quantize_num_files(dir), 1);
    char *file = test_path(dir, "notes");
    p.output = file;
    expect_refused(p, TAMIS_STATUS_IO, file, "directory");
    char *inside = test_path(dir, "a/b");
    p.output = inside;
    expect_refused(p, TAMIS_STATUS_IO, inside, "directory");
    p = dynamic(V32_BF16);
    p.output = V32_BF16;
    expect_refused(p, TAMIS_STATUS_INVALID, V32_BF16 ": holds ", "allowed: ");
    free(file);
    free(inside);
    test_temp_dir_remove(dir);
}

/* Files may be read by whom the umask lets, not by their writer alone. */
static void test_modes(void **state)
{
    (void)state;
    const mode_t mask = umask(0027);
    char *dir = quantize_ok(dynamic(V32_BF16), NULL);
    umask(mask);
    const char *const names[] = {"config.json", "quant_model_description.json",
                                 "model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = test_path(dir, names[i]);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0640);
        free(path);
    }
    test_temp_dir_remove(dir);
}

static void test_calibration_files(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *part;
        tamis_status status;
    } cases[] = {
        {"a.ids", "1 2 x", "byte 4 is 'x'", TAMIS_STATUS_INVALID},
        {"b.ids", "1 -2", "byte 2 is '-2'", TAMIS_STATUS_INVALID},
        {"c.ids", "1 1024", "byte 2 is '1024'", TAMIS_STATUS_INVALID},
        {"d.ids", "99999999999999999999", "byte 0 is '9999", TAMIS_STATUS_INVALID},
        {"e.ids", "12,13", "byte 0 is '12,13'", TAMIS_STATUS_INVALID},
        {"f.ids", " \n", "is empty", TAMIS_STATUS_INVALID},
        {"g.txt", "a text", "tokenizer.json", TAMIS_STATUS_IO}, /* the folder has none */
    };
    char *dir = test_temp_dir_make();
    tamis_quantize_params p = dynamic(V32_BF16);
    p.attention = TAMIS_SCHEME_W8A8;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_file_write_text(dir, cases[i].name, cases[i].text);
        char *path = test_path(dir, cases[i].name);
        p.calibrate = path;
        expect_refused(p, cases[i].status, cases[i].part, "");
        free(path);
    }
    p.calibrate = "tests/none.ids";
    expect_refused(p, TAMIS_STATUS_IO, "tests/none.ids", "");
    test_temp_dir_remove(dir);
}

/* A NaN among floats, found while its tensor is written: the files before it go again. */
static void test_damaged_weight(void **state)
{
    (void)state;
    test_items items = test_items_read(V32_BF16);
    test_item *item = test_items_find(&items, "model.layers.2.self_attn.o_proj.weight");
    item->data[2 * 5] = 0xc0;
    item->data[2 * 5 + 1] = 0x7f;
    char *source = write_source(&items, V32_BF16);
    tamis_quantize_params p = dynamic(source);
    p.shard_bytes = 10000;
    expect_refused(p, TAMIS_STATUS_FORMAT,
                   "model.layers.2.self_attn.o_proj.weight: row 0, column 5", "is not finite");
    char *dir = test_temp_dir_make(); /* an empty folder that was there stays */
    p.output = dir;
    expect_refused(p, TAMIS_STATUS_FORMAT, "is not finite", "model.safetensors");
    assert_int_equal(quantize_num_files(dir), 0);
    test_temp_dir_remove(dir);
    test_temp_dir_remove(source);
    test_items_free(&items);
}

/* Memory refused here and there: a clean failure, and nothing is left. */
static void test_refused_allocation(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("refused allocation", 31);
    char *folder = test_temp_dir_make();
    char *output = test_path(folder, "out");
    tamis_quantize_params p =
        quantize_params(V32_BF16, TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W4A8_DYNAMIC);
    p.output = output;
    const size_t misc = tamis_mem_in_use(TAMIS_MEM_MISC);
    int n_failed = 0;
    tamis_status st = TAMIS_STATUS_NO_MEMORY;
    for (uint64_t n = 1; st != TAMIS_STATUS_OK;
         n += (uint64_t)test_rng_int(&rng, 1, TEST_IS_SANITIZED ? 20 : 8)) {
        tamis_quantize_report report;
        tamis_error err;
        tamis_mem_fail_at(n);
        st = tamis_quantize_folder(&p, &report, &err);
        tamis_mem_fail_at(0);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), misc);
        if (st == TAMIS_STATUS_OK)
            break;
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(access(output, F_OK), -1);
        n_failed++;
    }
    assert_true(n_failed > 10);
    test_digest_of(output, NULL); /* the last one is whole */
    free(output);
    test_temp_dir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacked_experts),
        cmocka_unit_test(test_v4_spelling),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_quantised_source),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_calibration_files),
        cmocka_unit_test(test_damaged_weight),
        cmocka_unit_test(test_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
