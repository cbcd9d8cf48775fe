/* Safetensors headers and folders: what is read, and every kind of damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/mem.h"
#include "support/make_safetensors.h"
#include "support/temp_dir.h"
#include "weights/checkpoint.h"

static const int64_t shape_2x3[] = {2, 3}, shape_4[] = {4}, shape_0x4[] = {0, 4}, shape_1[] = {1};
static const uint8_t some_bytes[24] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};

/* ---------------------------------------------------------------- helpers */

static void expect_part(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", message, part);
}

static tamis_checkpoint *open_ok(const char *dir)
{
    tamis_checkpoint *checkpoint;
    tamis_error err;
    if (tamis_checkpoint_open(&checkpoint, dir, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return checkpoint;
}

/* Opens the folder, which must fail so, with these parts in the message. */
static void expect_folder_refused(const char *dir, tamis_status status, const char *part,
                                  const char *part2)
{
    tamis_checkpoint *checkpoint;
    tamis_error err;
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    const tamis_status st = tamis_checkpoint_open(&checkpoint, dir, &err);
    if (st != status)
        fail_msg("status %d instead of %d: %s", st, status,
                 st == TAMIS_STATUS_OK ? "ok" : err.text);
    assert_null(checkpoint);
    assert_int_equal(err.status, status);
    expect_part(err.text, part);
    expect_part(err.text, part2);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
}

static void expect_file_refused(const void *bytes, size_t n, tamis_status status, const char *part,
                                const char *part2)
{
    char *dir = test_temp_dir_make();
    test_file_write(dir, "model.safetensors", bytes, n);
    expect_folder_refused(dir, status, part, part2);
    test_temp_dir_remove(dir);
}

static test_safetensors *small_file(void)
{
    test_safetensors *file = test_safetensors_new();
    test_safetensors_add(file, "embed.weight", "BF16", 2, shape_2x3, some_bytes, 12);
    test_safetensors_add(file, "norm.weight", "F16", 1, shape_4, some_bytes + 12, 8);
    test_safetensors_add(file, "w.scale", "F8_E8M0", 1, shape_1, some_bytes + 20, 1);
    return file;
}

static void expect_small_tensors(tamis_checkpoint *checkpoint)
{
    const tamis_tensor *embed = tamis_checkpoint_find(checkpoint, "embed.weight");
    const tamis_tensor *norm = tamis_checkpoint_find(checkpoint, "norm.weight");
    const tamis_tensor *scale = tamis_checkpoint_find(checkpoint, "w.scale");
    assert_non_null(embed);
    assert_int_equal(embed->dtype, TAMIS_DTYPE_BF16);
    assert_int_equal(embed->rank, 2);
    assert_int_equal(embed->shape[0], 2);
    assert_int_equal(embed->shape[1], 3);
    assert_int_equal(embed->bytes, 12);
    assert_memory_equal(embed->data, some_bytes, 12);
    assert_false(embed->is_used);
    assert_non_null(norm);
    assert_int_equal(norm->dtype, TAMIS_DTYPE_F16);
    assert_memory_equal(norm->data, some_bytes + 12, 8);
    assert_non_null(scale);
    assert_int_equal(scale->dtype, TAMIS_DTYPE_F8_E8M0);
    assert_memory_equal(scale->data, some_bytes + 20, 1);
    assert_null(tamis_checkpoint_find(checkpoint, "norm"));
    assert_null(tamis_checkpoint_find(checkpoint, ""));
}

/* ---------------------------------------------------------------- what is read */

static void test_any_header_length(void **state)
{
    (void)state;
    for (size_t residue = 0; residue < 8; residue++) {
        char *dir = test_temp_dir_make();
        test_safetensors *file = small_file();
        test_safetensors_set_residue(file, residue);
        test_safetensors_set_padding(file, residue * 64);
        test_safetensors_set_metadata(file, "\"format\":\"pt\",\"embed.weight\":\"no tensor\"");
        test_safetensors_write(file, dir, "model.safetensors");
        test_safetensors_free(file);
        tamis_checkpoint *checkpoint = open_ok(dir);
        assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), 3);
        expect_small_tensors(checkpoint);
        assert_int_equal((uintptr_t)tamis_checkpoint_find(checkpoint, "embed.weight")->data % 8,
                         residue);
        assert_string_equal(tamis_checkpoint_tensor(checkpoint, 0)->name, "embed.weight");
        assert_string_equal(tamis_checkpoint_tensor(checkpoint, 2)->name, "w.scale");
        assert_string_equal(tamis_checkpoint_file_name(checkpoint, 0), "model.safetensors");
        assert_string_equal(tamis_checkpoint_dir(checkpoint), dir);
        tamis_checkpoint_close(&checkpoint);
        assert_null(checkpoint);
        test_temp_dir_remove(dir);
    }
}

static void test_empty_and_scalar_tensors(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    test_safetensors *file = test_safetensors_new();
    test_safetensors_add(file, "none", "F32", 2, shape_0x4, NULL, 0);
    test_safetensors_add(file, "scalar", "I64", 0, NULL, some_bytes, 8);
    test_safetensors_add(file, "none at the end", "U8", 2, shape_0x4, NULL, 0);
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
    tamis_checkpoint *checkpoint = open_ok(dir);
    assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), 3);
    assert_int_equal(tamis_checkpoint_find(checkpoint, "none")->bytes, 0);
    assert_int_equal(tamis_checkpoint_find(checkpoint, "scalar")->rank, 0);
    assert_memory_equal(tamis_checkpoint_find(checkpoint, "scalar")->data, some_bytes, 8);
    tamis_checkpoint_close(&checkpoint);
    file = test_safetensors_new();
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
    checkpoint = open_ok(dir);
    assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), 0);
    assert_null(tamis_checkpoint_find(checkpoint, "none"));
    tamis_checkpoint_close(&checkpoint);
    tamis_checkpoint_close(&checkpoint); /* NULL is fine */
    test_temp_dir_remove(dir);
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const tamis_dtype dtypes[] = {
        TAMIS_DTYPE_F32,     TAMIS_DTYPE_BF16, TAMIS_DTYPE_F16, TAMIS_DTYPE_F8_E4M3,
        TAMIS_DTYPE_F8_E8M0, TAMIS_DTYPE_F64,  TAMIS_DTYPE_I64, TAMIS_DTYPE_F8_E5M2,
        TAMIS_DTYPE_I32,     TAMIS_DTYPE_I16,  TAMIS_DTYPE_I8,  TAMIS_DTYPE_U8,
        TAMIS_DTYPE_BOOL,
    };
    char *dir = test_temp_dir_make();
    test_safetensors *file = test_safetensors_new();
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        test_safetensors_add(file, tamis_dtype_name(dtypes[i]), tamis_dtype_name(dtypes[i]), 1,
                             shape_1, some_bytes, (size_t)tamis_dtype_bits(dtypes[i]) / 8);
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
    tamis_checkpoint *checkpoint = open_ok(dir);
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(checkpoint); i++)
        assert_int_equal(tamis_checkpoint_tensor(checkpoint, i)->dtype, dtypes[i]);
    tamis_checkpoint_close(&checkpoint);
    test_temp_dir_remove(dir);
}

/* Entries in any order of their data, members in any order, white space, escapes. */
static void test_other_writers(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *file = test_safetensors_raw(
        "\n{ \"w.sc\\u0061le\" :\t{\"data_offsets\": [20, 21], \"shape\": [1], \"dtype\": "
        "\"F8_E8M0\"},\r\n\"norm.weight\":{\"shape\":[4],\"dtype\":\"F16\",\"data_offsets\":[12,20]"
        ","
        "\"extra\":null},\n \"embed.weight\": {\"dtype\":\"BF16\",\"shape\":[2,3],"
        "\"data_offsets\":[0,12]}, \"__metadata__\": {} }  \n",
        some_bytes, 21, &bytes);
    char *dir = test_temp_dir_make();
    test_file_write(dir, "model.safetensors", file, bytes);
    free(file);
    tamis_checkpoint *checkpoint = open_ok(dir);
    expect_small_tensors(checkpoint);
    tamis_checkpoint_close(&checkpoint);
    test_temp_dir_remove(dir);
}

static void test_golden_folders(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        int32_t n_tensors;
    } folders[] = {
        {"tests/golden/v4-flash-bf16", 255},
        {"tests/golden/v4-flash-fp8", 504},
        {"tests/golden/v4-pro-fp8", 365},
        {"tests/golden/v4-official", 180},
        {"models/demo", 504},
    };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        tamis_checkpoint *checkpoint = open_ok(folders[i].dir);
        assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), folders[i].n_tensors);
        assert_null(tamis_checkpoint_find(checkpoint, "logits")); /* of golden.safetensors */
        tamis_checkpoint_close(&checkpoint);
    }
}

/* ---------------------------------------------------------------- damaged files */

static void test_damaged_headers(void **state)
{
    (void)state;
#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *header;
        tamis_status status;
        const char *part, *part2;
    } cases[] = {
        {"[]", TAMIS_STATUS_FORMAT, "0x5b at 0", "'{'"},
        {"  ", TAMIS_STATUS_FORMAT, "ends at byte 2", "'{'"},
        {"{ ", TAMIS_STATUS_FORMAT, "ends at byte 2", "in quotes"},
        {"{\"a\"}", TAMIS_STATUS_FORMAT, "0x7d at 4", "':'"},
        {"{\"a\":1}", TAMIS_STATUS_FORMAT, "a: entry", "object"},
        {"{a:1}", TAMIS_STATUS_FORMAT, "0x61 at 1", "in quotes"},
        {"{\"a\":{\"dtype\":\"U8\"", TAMIS_STATUS_FORMAT, "after byte 5", "JSON"},
        {"{} x", TAMIS_STATUS_FORMAT, "0x78 at 3", "white space"},
        {"{}{}", TAMIS_STATUS_FORMAT, "0x7b at 2", "white space"},
        {"{\"__metadata__\":3}", TAMIS_STATUS_FORMAT, "__metadata__", "object"},
        {"{\"\":{}}", TAMIS_STATUS_FORMAT, "has 0 bytes", "1..512"},
        {"{\"a\\u0001\":{}}", TAMIS_STATUS_FORMAT, "0x01", "none"},
        {"{\"a\\u0000\":{}}", TAMIS_STATUS_FORMAT, "after byte 1", "JSON"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", TAMIS_STATUS_FORMAT, "duplicate", "dtype"},
        {"{\"a\":{}}", TAMIS_STATUS_FORMAT, "a: dtype", "absent"},
        {ENTRY("7", "[1]", "[0,1]"), TAMIS_STATUS_FORMAT, "a: dtype", "no string"},
        {ENTRY("\"F4\"", "[2]", "[0,1]"), TAMIS_STATUS_UNSUPPORTED, "a: dtype is \"F4\"", "F32"},
        {ENTRY("\"F4_E2M1\"", "[2]", "[0,1]"), TAMIS_STATUS_UNSUPPORTED, "F4_E2M1", "F32"},
        {ENTRY("\"bf16\"", "[1]", "[0,2]"), TAMIS_STATUS_UNSUPPORTED, "bf16", "BF16"},
        {ENTRY("\"U8\"", "1", "[0,1]"), TAMIS_STATUS_FORMAT, "a: shape", "no list"},
        {ENTRY("\"U8\"", "[1.0]", "[0,1]"), TAMIS_STATUS_FORMAT, "a: shape[0] is -1", "integer"},
        {ENTRY("\"U8\"", "[-1]", "[0,1]"), TAMIS_STATUS_FORMAT, "a: shape[0] is -1", "integer"},
        {ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), TAMIS_STATUS_UNSUPPORTED, "9 dimensions",
         "at most 8"},
        {ENTRY("\"F64\"", "[4294967296,4294967296]", "[0,1]"), TAMIS_STATUS_FORMAT,
         "a: shape[1] is 4294967296", "2^64"},
        {ENTRY("\"U8\"", "[0,4294967296,4294967296]", "[0,1]"), TAMIS_STATUS_FORMAT, "span 1",
         "allowed: 0"},
        {ENTRY("\"U8\"", "[18446744073709551616]", "[0,1]"), TAMIS_STATUS_FORMAT, "too big",
         "JSON"},
        {ENTRY("\"U8\"", "[1]", "[0]"), TAMIS_STATUS_FORMAT, "a: data_offsets", "two integers"},
        {ENTRY("\"U8\"", "[1]", "[0,1,2]"), TAMIS_STATUS_FORMAT, "a: data_offsets", "two integers"},
        {ENTRY("\"U8\"", "[1]", "{}"), TAMIS_STATUS_FORMAT, "a: data_offsets", "two integers"},
        {ENTRY("\"U8\"", "[1]", "[0.0,1.0]"), TAMIS_STATUS_FORMAT, "a: data_offsets", "two"},
        {ENTRY("\"U8\"", "[1]", "[-1,0]"), TAMIS_STATUS_FORMAT, "[-1, 0]", "<= 4"},
        {ENTRY("\"U8\"", "[1]", "[2,1]"), TAMIS_STATUS_FORMAT, "[2, 1]", "<= 4"},
        {ENTRY("\"U8\"", "[5]", "[0,5]"), TAMIS_STATUS_FORMAT, "[0, 5]", "<= 4"},
        {ENTRY("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]"), TAMIS_STATUS_FORMAT,
         "9223372036854775807", "<= 4"},
        {ENTRY("\"F32\"", "[2]", "[0,4]"), TAMIS_STATUS_FORMAT, "span 4 bytes", "allowed: 8"},
        {ENTRY("\"U8\"", "[3]", "[0,3]"), TAMIS_STATUS_FORMAT, "4 bytes of data", "allowed: 3"},
        {ENTRY("\"U8\"", "[3]", "[1,4]"), TAMIS_STATUS_FORMAT, "a: data begins at byte 1", "gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         TAMIS_STATUS_FORMAT, "b: data begins at byte 2", "allowed: 3"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         TAMIS_STATUS_FORMAT, "data begins at byte 0", "allowed: 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         TAMIS_STATUS_FORMAT, "a: is also in", "once"},
    };
#undef ENTRY
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        uint8_t *file = test_safetensors_raw(cases[i].header, some_bytes, 4, &bytes);
        expect_file_refused(file, bytes, cases[i].status, "model.safetensors: ", cases[i].part);
        expect_file_refused(file, bytes, cases[i].status, cases[i].part, cases[i].part2);
        free(file);
    }
}

static void test_header_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {
        0, 1, 3, 100000000, 100000001, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        char seen[64];
        for (int b = 0; b < 8; b++)
            file[b] = (uint8_t)(lengths[i] >> (8 * b));
        snprintf(seen, sizeof seen, "header length is %llu", (unsigned long long)lengths[i]);
        expect_file_refused(file, sizeof file, TAMIS_STATUS_FORMAT, seen, "allowed: 2..100000000");
    }
    char long_name[700];
    size_t bytes;
    memset(long_name, 'n', sizeof long_name);
    memcpy(long_name, "{\"", 2);
    memcpy(long_name + 600, "\":{}}", 6);
    uint8_t *file = test_safetensors_raw(long_name, NULL, 0, &bytes);
    expect_file_refused(file, bytes, TAMIS_STATUS_FORMAT, "has 598 bytes", "1..512");
    free(file);
}

static void test_cut_files(void **state)
{
    (void)state;
    size_t bytes;
    test_safetensors *file = small_file();
    uint8_t *all = test_safetensors_bytes(file, &bytes);
    for (size_t n = 0; n < bytes; n++)
        expect_file_refused(all, n, TAMIS_STATUS_FORMAT, "model.safetensors: ", "allowed: ");
    uint8_t *longer = malloc(bytes + 1);
    assert_non_null(longer);
    memcpy(longer, all, bytes);
    longer[bytes] = 0;
    expect_file_refused(longer, bytes + 1, TAMIS_STATUS_FORMAT, "22 bytes of data", "allowed: 21");
    free(longer);
    free(all);
    test_safetensors_free(file);
}

/* Every bit of length and header: refused with an explanation, or tensors that lie in the file. */
static void test_flipped_bits(void **state)
{
    (void)state;
    size_t bytes, n_refused = 0;
    test_safetensors *file = small_file();
    test_safetensors_set_padding(file, 16); /* room for a shorter length that still parses */
    test_safetensors_set_metadata(file, "\"format\":\"pt\"");
    uint8_t *all = test_safetensors_bytes(file, &bytes);
    test_safetensors_free(file);
    char *dir = test_temp_dir_make();
    const size_t header_end = bytes - 21;
    for (size_t bit = 0; bit < header_end * 8; bit++) {
        tamis_checkpoint *checkpoint;
        tamis_error err;
        all[bit / 8] ^= (uint8_t)(1 << bit % 8);
        test_file_write(dir, "model.safetensors", all, bytes);
        all[bit / 8] ^= (uint8_t)(1 << bit % 8);
        const tamis_status st = tamis_checkpoint_open(&checkpoint, dir, &err);
        if (st != TAMIS_STATUS_OK) {
            n_refused++;
            assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
            expect_part(err.text, "model.safetensors: ");
            continue;
        }
        /* Only names and metadata can change unnoticed here; the binder looks names up. */
        int64_t data_bytes = 0;
        for (int32_t i = 0; i < tamis_checkpoint_num_tensors(checkpoint); i++) {
            const tamis_tensor *tensor = tamis_checkpoint_tensor(checkpoint, i);
            assert_memory_equal(tensor->data, some_bytes + data_bytes, tensor->bytes);
            data_bytes += (int64_t)tensor->bytes;
        }
        assert_int_equal(data_bytes, 21);
        tamis_checkpoint_close(&checkpoint);
    }
    assert_true(n_refused > header_end * 4);
    free(all);
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- shards */

static void write_shards(const char *dir)
{
    test_safetensors *one = test_safetensors_new(), *two = test_safetensors_new();
    test_safetensors_add(one, "embed.weight", "BF16", 2, shape_2x3, some_bytes, 12);
    test_safetensors_add(two, "norm.weight", "F16", 1, shape_4, some_bytes + 12, 8);
    test_safetensors_add(two, "w.scale", "F8_E8M0", 1, shape_1, some_bytes + 20, 1);
    test_safetensors_set_residue(two, 5);
    test_safetensors_write(one, dir, "model-00001-of-00002.safetensors");
    test_safetensors_write(two, dir, "model-00002-of-00002.safetensors");
    test_safetensors_free(one);
    test_safetensors_free(two);
}

#define ONE "\"model-00001-of-00002.safetensors\""
#define TWO "\"model-00002-of-00002.safetensors\""

static void write_index(const char *dir, const char *text)
{
    test_file_write_text(dir, "model.safetensors.index.json", text);
}

static void test_shards(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    write_shards(dir);
    write_index(dir, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"norm.weight\": " TWO
                     ", \"embed.weight\": " ONE ", \"w.scale\": " TWO "}}");
    /* Never opened: not named by the index. */
    test_file_write_text(dir, "golden.safetensors", "not a safetensors file");
    test_file_write_text(dir, "model.safetensors", "left over");
    tamis_checkpoint *checkpoint = open_ok(dir);
    assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), 3);
    expect_small_tensors(checkpoint);
    const tamis_tensor *embed = tamis_checkpoint_find(checkpoint, "embed.weight");
    assert_string_equal(tamis_checkpoint_file_name(checkpoint, embed->file_idx),
                        "model-00001-of-00002.safetensors");
    tamis_checkpoint_close(&checkpoint);

    /* A tensor that the index forgot still counts. */
    write_index(dir, "{\"weight_map\": {\"norm.weight\": " TWO ", \"embed.weight\": " ONE "}}");
    checkpoint = open_ok(dir);
    expect_small_tensors(checkpoint);
    tamis_checkpoint_close(&checkpoint);
    test_temp_dir_remove(dir);
}

static void test_damaged_index(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tamis_status status;
        const char *part, *part2;
    } cases[] = {
        {"", TAMIS_STATUS_FORMAT, "line", "one JSON object"},
        {"{\"weight_map\": {}", TAMIS_STATUS_FORMAT, "line", "one JSON object"},
        {"{}", TAMIS_STATUS_FORMAT, "weight_map", "absent"},
        {"[]", TAMIS_STATUS_FORMAT, "weight_map", "absent"},
        {"{\"weight_map\": []}", TAMIS_STATUS_FORMAT, "weight_map", "no object"},
        {"{\"weight_map\": {\"a\": 1}}", TAMIS_STATUS_FORMAT, "weight_map.a", "no string"},
        {"{\"weight_map\": {\"a\": \"../x\"}}", TAMIS_STATUS_FORMAT, "weight_map.a is \"../x\"",
         "no '/'"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", TAMIS_STATUS_FORMAT, "/etc/passwd",
         "no '/'"},
        {"{\"weight_map\": {\"a\": \"sub/x.safetensors\"}}", TAMIS_STATUS_FORMAT, "sub/x",
         "no '/'"},
        {"{\"weight_map\": {\"a\": \"..\"}}", TAMIS_STATUS_FORMAT, "\"..\"", "no '..'"},
        {"{\"weight_map\": {\"a\": \".\"}}", TAMIS_STATUS_FORMAT, "\".\"", "file name"},
        {"{\"weight_map\": {\"a\": \"\"}}", TAMIS_STATUS_FORMAT, "\"\"", "file name"},
        {"{\"weight_map\": {\"a\": \"x\\ny\"}}", TAMIS_STATUS_FORMAT, "weight_map.a", "file name"},
        {"{\"weight_map\": {\"a\": \"none.safetensors\"}}", TAMIS_STATUS_IO, "none.safetensors",
         "open"},
        {"{\"weight_map\": {\"norm.weight\": " ONE ", \"embed.weight\": " ONE ", \"w.scale\": " TWO
         "}}",
         TAMIS_STATUS_FORMAT, "weight_map.norm.weight", "model-00002-of-00002"},
        {"{\"weight_map\": {\"norm.weighs\": " TWO "}}", TAMIS_STATUS_FORMAT,
         "weight_map.norm.weighs", "no shard has that tensor"},
        {"{\"weight_map\": {\"norm.weight\": " TWO ", \"norm.weight\": " TWO "}}",
         TAMIS_STATUS_FORMAT, "duplicate", "one JSON object"},
        {"{\"weight_map\": {\"norm.weight\": " TWO ", \"embed.weight\": \"copy.safetensors\", "
         "\"w.scale\": \"again.safetensors\"}}",
         TAMIS_STATUS_FORMAT, "is also in", "once"},
    };
    char *dir = test_temp_dir_make();
    write_shards(dir);
    size_t bytes;
    char *shard = test_file_read(dir, "model-00001-of-00002.safetensors", &bytes);
    test_file_write(dir, "copy.safetensors", shard, bytes);
    test_file_write(dir, "again.safetensors", shard, bytes);
    free(shard);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(dir, cases[i].text);
        expect_folder_refused(dir, cases[i].status, cases[i].part, cases[i].part2);
    }
    test_temp_dir_remove(dir);
}

static void test_flipped_index(void **state)
{
    (void)state;
    char text[] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"norm.weight\": " TWO
                  ", \"embed.weight\": " ONE ", \"w.scale\": " TWO "}}";
    char *dir = test_temp_dir_make();
    write_shards(dir);
    for (size_t bit = 0; bit < strlen(text) * 8; bit++) {
        tamis_checkpoint *checkpoint;
        tamis_error err;
        text[bit / 8] ^= (char)(1 << bit % 8);
        test_file_write(dir, "model.safetensors.index.json", text, sizeof text - 1);
        text[bit / 8] ^= (char)(1 << bit % 8);
        const tamis_status st = tamis_checkpoint_open(&checkpoint, dir, &err);
        if (st == TAMIS_STATUS_OK)
            expect_small_tensors(checkpoint);
        else
            assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_IO);
        tamis_checkpoint_close(&checkpoint);
    }
    test_temp_dir_remove(dir);
}

static void test_missing_files(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    expect_folder_refused(dir, TAMIS_STATUS_IO, "model.safetensors", "open");
    test_file_write(dir, "model.safetensors", "", 0);
    expect_folder_refused(dir, TAMIS_STATUS_FORMAT, "has 0 bytes", "at least 10");
    expect_folder_refused("tests/golden/no-such-folder", TAMIS_STATUS_IO, "no-such-folder", "open");
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- size and memory */

/* As many tensors as V4-Flash has, with names of the same length. */
static void test_many_tensors(void **state)
{
    (void)state;
    const int n = 72317;
    char name[64];
    char *dir = test_temp_dir_make();
    test_safetensors *file = test_safetensors_new();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.w1.weight", i / 1600, i);
        test_safetensors_add(file, name, "I8", 1, shape_1, some_bytes + i % 24, 1);
    }
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    tamis_checkpoint *checkpoint = open_ok(dir);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%d tensors opened in %.3f s\n", n,
           (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    assert_int_equal(tamis_checkpoint_num_tensors(checkpoint), n);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.w1.weight", i / 1600, i);
        const tamis_tensor *tensor = tamis_checkpoint_find(checkpoint, name);
        assert_non_null(tensor);
        assert_int_equal(tensor->data[0], some_bytes[i % 24]);
    }
    assert_null(tamis_checkpoint_find(checkpoint, "layers.0.ffn.experts.0.w2.weight"));
    tamis_checkpoint_close(&checkpoint);
    test_temp_dir_remove(dir);
}

static void *jansson_alloc(size_t bytes)
{
    return tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
}

/* The n-th allocation fails, the JSON library's included (see test_config.c on its weakness). */
static void test_refused_allocation(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make();
    uint64_t n_refused = 0;
    write_shards(dir);
    write_index(dir, "{\"weight_map\": {\"norm.weight\": " TWO ", \"embed.weight\": " ONE
                     ", \"w.scale\": " TWO "}}");
    json_set_alloc_funcs(jansson_alloc, tamis_mem_free);
    tamis_checkpoint *warm = open_ok(dir);
    tamis_checkpoint_close(&warm);
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    for (uint64_t n = 1;; n++) {
        const uint64_t calls = tamis_mem_num_allocs();
        tamis_checkpoint *checkpoint;
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_checkpoint_open(&checkpoint, dir, NULL);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK)
            expect_small_tensors(checkpoint);
        n_refused += st == TAMIS_STATUS_NO_MEMORY;
        tamis_checkpoint_close(&checkpoint);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
        if (tamis_mem_num_allocs() - calls < n)
            break;
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n_refused > 50);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_header_length),  cmocka_unit_test(test_empty_and_scalar_tensors),
        cmocka_unit_test(test_every_dtype),        cmocka_unit_test(test_other_writers),
        cmocka_unit_test(test_golden_folders),     cmocka_unit_test(test_damaged_headers),
        cmocka_unit_test(test_header_lengths),     cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_flipped_bits),       cmocka_unit_test(test_shards),
        cmocka_unit_test(test_damaged_index),      cmocka_unit_test(test_flipped_index),
        cmocka_unit_test(test_missing_files),      cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_refused_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
