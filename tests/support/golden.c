#include "support/golden.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/temp_dir.h"

struct test_golden {
    char *path;
    char *file;
    size_t bytes;
    size_t data; /* offset of the tensor data */
    json_t *header;
};

static void die(const test_golden *golden, const char *what, const char *name)
{
    fprintf(stderr, "golden file %s: %s: %s\n", golden->path, name, what);
    abort();
}

test_golden *test_golden_open(const char *dir, const char *name)
{
    test_golden *golden = calloc(1, sizeof *golden);
    if (golden == NULL)
        abort();
    golden->path = test_path(dir, name);
    golden->file = test_file_read(dir, name, &golden->bytes);
    uint64_t n = 0;
    if (golden->bytes < sizeof n)
        die(golden, "too short", "header length");
    memcpy(&n, golden->file, sizeof n);
    if (n > golden->bytes - sizeof n)
        die(golden, "longer than the file", "header");
    json_error_t error;
    golden->header = json_loadb(golden->file + sizeof n, (size_t)n, 0, &error);
    if (golden->header == NULL)
        die(golden, error.text, "header");
    golden->data = sizeof n + (size_t)n;
    return golden;
}

void test_golden_close(test_golden *golden)
{
    if (golden == NULL)
        return;
    json_decref(golden->header);
    free(golden->file);
    free(golden->path);
    free(golden);
}

bool test_golden_has(const test_golden *golden, const char *name)
{
    return json_object_get(golden->header, name) != NULL;
}

static json_t *entry(const test_golden *golden, const char *name, const char *key)
{
    json_t *value = json_object_get(json_object_get(golden->header, name), key);
    if (value == NULL)
        die(golden, "not in the header", name);
    return value;
}

static size_t offset_of(const test_golden *golden, const char *name, size_t which)
{
    return (size_t)json_integer_value(json_array_get(entry(golden, name, "data_offsets"), which));
}

int64_t test_golden_dim(const test_golden *golden, const char *name, int axis)
{
    json_t *dim = json_array_get(entry(golden, name, "shape"), (size_t)axis);
    if (dim == NULL)
        die(golden, "has too few dimensions", name);
    return json_integer_value(dim);
}

/* First byte of a tensor whose size has been compared with its shape. */
static const char *data_of(const test_golden *golden, const char *name, const char *dtype,
                           size_t width, int64_t *n)
{
    json_t *shape = entry(golden, name, "shape");
    int64_t count = 1;
    for (size_t i = 0; i < json_array_size(shape); i++)
        count *= json_integer_value(json_array_get(shape, i));
    const size_t begin = offset_of(golden, name, 0), end = offset_of(golden, name, 1);
    if (strcmp(json_string_value(entry(golden, name, "dtype")), dtype) != 0)
        die(golden, "has another dtype", name);
    if (end < begin || end - begin != (size_t)count * width || golden->data + end > golden->bytes)
        die(golden, "size does not fit its shape", name);
    *n = count;
    return golden->file + golden->data + begin;
}

const float *test_golden_f32(const test_golden *golden, const char *name, int64_t *n)
{
    int64_t count;
    const char *data = data_of(golden, name, "F32", sizeof(float), &count);
    if ((uintptr_t)data % sizeof(float) != 0)
        die(golden, "is not aligned", name);
    if (n != NULL)
        *n = count;
    return (const float *)(const void *)data;
}

float *test_golden_widened(const test_golden *golden, const char *name, int64_t *n)
{
    int64_t count;
    const char *data = data_of(golden, name, "BF16", sizeof(uint16_t), &count);
    float *out = malloc((size_t)count * sizeof *out + 1);
    if (out == NULL)
        abort();
    for (int64_t i = 0; i < count; i++) {
        uint16_t high;
        memcpy(&high, data + (size_t)i * sizeof high, sizeof high);
        const uint32_t bits = (uint32_t)high << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
    if (n != NULL)
        *n = count;
    return out;
}

const uint8_t *test_golden_e8m0(const test_golden *golden, const char *name, int64_t *n)
{
    int64_t count;
    const char *data = data_of(golden, name, "F8_E8M0", 1, &count);
    if (n != NULL)
        *n = count;
    return (const uint8_t *)data;
}

int32_t *test_golden_ids(const test_golden *golden, const char *name, int64_t *n)
{
    const bool is_wide = strcmp(json_string_value(entry(golden, name, "dtype")), "I64") == 0;
    const size_t width = is_wide ? sizeof(int64_t) : sizeof(int32_t);
    int64_t count;
    const char *data = data_of(golden, name, is_wide ? "I64" : "I32", width, &count);
    int32_t *out = malloc((size_t)count * sizeof *out + 1);
    if (out == NULL)
        abort();
    for (int64_t i = 0; i < count; i++) {
        int64_t wide = 0;
        memcpy(&wide, data + (size_t)i * width, width);
        out[i] = is_wide ? (int32_t)wide : (int32_t)(uint32_t)wide;
    }
    if (n != NULL)
        *n = count;
    return out;
}

double test_golden_meta(const test_golden *golden, const char *key)
{
    const char *text = json_string_value(entry(golden, "__metadata__", key));
    char *end;
    const double value = text == NULL ? 0 : strtod(text, &end);
    if (text == NULL || end == text)
        die(golden, "is not a number", key);
    return value;
}

bool test_safetensors_place(const char *dir, const char *file, const char *tensor,
                            test_tensor_place *out)
{
    test_golden *golden = test_golden_open(dir, file);
    const bool is_there = test_golden_has(golden, tensor);
    if (is_there) {
        snprintf(out->dtype, sizeof out->dtype, "%s",
                 json_string_value(entry(golden, tensor, "dtype")));
        out->offset = golden->data + offset_of(golden, tensor, 0);
        out->bytes = offset_of(golden, tensor, 1) - offset_of(golden, tensor, 0);
    }
    test_golden_close(golden);
    return is_there;
}
