/*
 * Folders as Ascend's quantiser writes them, made tensor by tensor from a BF16 folder: the items of
 * weights_test.h, and what quant_model_description.json says about them.
 */
#ifndef TAMIS_TEST_WEIGHTS_ASCEND_H
#define TAMIS_TEST_WEIGHTS_ASCEND_H

#include <jansson.h>
#include <math.h>

#include "weights_test.h"

typedef struct ascend_folder {
    test_items items;
    json_t *description;
} ascend_folder;

/* A BF16 folder in which everything is FLOAT. */
static inline ascend_folder ascend_read(const char *dir)
{
    ascend_folder f = {test_items_read(dir), json_object()};
    for (int i = 0; i < f.items.n; i++)
        json_object_set_new(f.description, f.items.items[i].name, json_string("FLOAT"));
    json_object_set_new(f.description, "version", json_string("1.0.0"));
    json_object_set_new(f.description, "model_quant_type", json_string("W8A8"));
    return f;
}

static inline void ascend_free(ascend_folder *f)
{
    test_items_free(&f->items);
    json_decref(f->description);
}

static inline void ascend_describe(ascend_folder *f, const char *name, const char *scheme)
{
    json_object_set_new(f->description, name, json_string(scheme));
}

/* "model.layers.1.x.weight" -> "model.layers.1.x" ending */
static inline const char *ascend_name(char out[256], const char *weight, const char *ending)
{
    snprintf(out, 256, "%.*s%s", (int)(strlen(weight) - strlen(".weight")), weight, ending);
    return out;
}

static inline test_item *ascend_find(ascend_folder *f, const char *weight, const char *ending)
{
    char name[256];
    return test_items_find(&f->items, ascend_name(name, weight, ending));
}

static inline void ascend_add(ascend_folder *f, const char *weight, const char *ending,
                              const char *scheme, const char *dtype, int rank, int64_t n,
                              const void *data, size_t bytes)
{
    char name[256];
    const int64_t shape[] = {n, 1};
    test_items_add(&f->items, ascend_name(name, weight, ending), dtype, rank, shape, data, bytes);
    ascend_describe(f, name, scheme);
}

static inline float ascend_bf16(const uint8_t *data, int64_t i)
{
    const uint32_t bits = (uint32_t)(data[2 * i] | data[2 * i + 1] << 8) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define ASCEND_INPUT_SCALE  0.0625f
#define ASCEND_INPUT_OFFSET 7

/* What a fixed input needs, for int8 codes w8. */
static inline void ascend_add_input(ascend_folder *f, const char *weight, const char *scheme,
                                    const int8_t *w8, const float *scale, int64_t rows,
                                    int64_t cols)
{
    const float input_scale = ASCEND_INPUT_SCALE;
    const int8_t offset = ASCEND_INPUT_OFFSET;
    float *deq = calloc((size_t)rows, sizeof *deq);
    int32_t *bias = calloc((size_t)rows, sizeof *bias);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            bias[r] -= offset * w8[r * cols + c];
        deq[r] = input_scale * scale[r];
    }
    ascend_add(f, weight, ".input_scale", scheme, "F32", 1, 1, &input_scale, 4);
    ascend_add(f, weight, ".input_offset", scheme, "I8", 1, 1, &offset, 1);
    ascend_add(f, weight, ".deq_scale", scheme, "F32", 1, rows, deq, (size_t)rows * 4);
    ascend_add(f, weight, ".quant_bias", scheme, "I32", 1, rows, bias, (size_t)rows * 4);
    free(deq);
    free(bias);
}

/* Makes a BF16 weight what the scheme calls for, with all that stands beside it. */
static inline void ascend_quantise(ascend_folder *f, const char *weight, const char *scheme)
{
    test_item *item = test_items_find(&f->items, weight);
    const int64_t rows = item->shape[0], cols = item->shape[1];
    const bool is_int4 = strcmp(scheme, "W4A8_DYNAMIC") == 0;
    const float top = is_int4 ? 7 : 127;
    int8_t *w8 = calloc((size_t)(rows * cols), 1);
    uint8_t *packed = calloc((size_t)(rows * cols), 1);
    float *scale = calloc((size_t)rows, sizeof *scale), *zero = calloc((size_t)rows, sizeof *zero);
    for (int64_t r = 0; r < rows; r++) {
        float amax = 0;
        for (int64_t c = 0; c < cols; c++)
            amax = fmaxf(amax, fabsf(ascend_bf16(item->data, r * cols + c)));
        scale[r] = amax / top;
        for (int64_t c = 0; c < cols; c++) {
            w8[r * cols + c] = (int8_t)rintf(ascend_bf16(item->data, r * cols + c) / scale[r]);
            packed[r / 2 * cols + c] |= (uint8_t)((w8[r * cols + c] & 15) << (r % 2 * 4));
        }
    }
    test_item_set(item, "I8", is_int4 ? packed : (const void *)w8,
                  (size_t)(is_int4 ? rows / 2 * cols : rows * cols));
    snprintf(item->dtype, sizeof item->dtype, "I8");
    item->shape[0] = is_int4 ? rows / 2 : rows;
    ascend_describe(f, weight, scheme);
    ascend_add(f, weight, ".weight_scale", scheme, "F32", 2, rows, scale, (size_t)rows * 4);
    ascend_add(f, weight, ".weight_offset", scheme, "F32", 2, rows, zero, (size_t)rows * 4);
    if (strcmp(scheme, "W8A8") == 0 || strcmp(scheme, "W8A8_MIX") == 0)
        ascend_add_input(f, weight, scheme, w8, scale, rows, cols);
    free(w8);
    free(packed);
    free(scale);
    free(zero);
}

/* All experts of a layer, by a name with %d for the expert and a list of three weights. */
static inline void ascend_quantise_experts(ascend_folder *f, const char *prefix, const char *scheme)
{
    static const char *const names[][3] = {{"gate_proj", "down_proj", "up_proj"},
                                           {"w1", "w2", "w3"}};
    const bool is_v4 = f->items.config.family == TAMIS_FAMILY_DEEPSEEK_V4;
    for (int e = 0; e < f->items.config.n_routed_experts; e++)
        for (int i = 0; i < 3; i++) {
            char name[256];
            snprintf(name, sizeof name, "%s.%d.%s.weight", prefix, e, names[is_v4][i]);
            ascend_quantise(f, name, scheme);
        }
}

/* A new folder with the tensors and the description; the config is not in it. */
static inline char *ascend_write(const ascend_folder *f)
{
    char *dir = test_temp_dir_make();
    char *text = json_dumps(f->description, JSON_INDENT(1));
    test_items_write(&f->items, dir);
    test_file_write_text(dir, "quant_model_description.json", text);
    free(text);
    return dir;
}

static inline test_bound ascend_bind_ok(const ascend_folder *f)
{
    char *dir = ascend_write(f);
    const test_bound b = test_bind_ok(dir, &f->items.config);
    test_temp_dir_remove(dir); /* what is mapped stays */
    return b;
}

/* The folder is refused so: a message with both parts. */
static inline void ascend_expect_refused(const ascend_folder *f, tamis_status status,
                                         const char *part, const char *part2)
{
    char *dir = ascend_write(f);
    test_bound b;
    tamis_error err;
    const size_t weights = tamis_mem_in_use(TAMIS_MEM_WEIGHTS);
    const tamis_status st = test_bind(&b, dir, &f->items.config, &err);
    if (st != status)
        fail_msg("%s: status %d instead of %d: %s", part, st, status,
                 st == TAMIS_STATUS_OK ? "ok" : err.text);
    assert_null(b.weights);
    test_expect_part(err.text, part);
    test_expect_part(err.text, part2);
    test_expect_part(err.text, "allowed: ");
    test_unbind(&b);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), weights);
    test_temp_dir_remove(dir);
}

#endif
