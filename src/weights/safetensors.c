#include "weights/safetensors.h"

#include <jansson.h>
#include <string.h>

#include "core/error.h"
#include "core/json_load.h"
#include "core/size.h"

#define MAX_HEADER_BYTES ((size_t)100000000) /* the limit of the official reader */
#define MIN_HEADER_BYTES ((size_t)2)         /* {} */
#define LENGTH_BYTES     ((size_t)8)
#define MAX_NAME_BYTES   ((size_t)512)

typedef struct header_parser {
    const char *file_name, *text; /* text: the JSON, not terminated */
    size_t bytes, at;
    const uint8_t *data;
    size_t data_bytes;
    tamis_error *err;
} header_parser;

/* ---------------------------------------------------------------- JSON, one entry at a time */

static void skip_space(header_parser *p)
{
    while (p->at < p->bytes && memchr(" \t\n\r", p->text[p->at], 4) != NULL)
        p->at++;
}

static tamis_status fail_json(const header_parser *p, const char *allowed)
{
    if (p->at >= p->bytes)
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: header ends at byte %zu, allowed: %s",
                          p->file_name, p->at, allowed);
    return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: header has byte 0x%02x at %zu, allowed: %s",
                      p->file_name, (unsigned char)p->text[p->at], p->at, allowed);
}

static bool accept(header_parser *p, char c)
{
    skip_space(p);
    if (p->at >= p->bytes || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

/* The JSON value that begins here; the caller releases it. */
static tamis_status parse_value(header_parser *p, json_t **out)
{
    json_error_t error = {.line = 0};
    bool no_memory;
    skip_space(p);
    *out = tamis_json_load(p->text + p->at, p->bytes - p->at,
                           JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK,
                           &error, &no_memory);
    if (*out != NULL) {
        p->at += (size_t)error.position; /* bytes consumed */
        return TAMIS_STATUS_OK;
    }
    if (no_memory)
        return tamis_fail_memory(p->err, p->file_name, p->bytes);
    return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: header, after byte %zu: %s, allowed: JSON",
                      p->file_name, p->at, error.text);
}

/* ---------------------------------------------------------------- one tensor */

static bool find_dtype(const char *name, tamis_dtype *out)
{
    for (int i = 0; name != NULL && i < TAMIS_NUM_DTYPES; i++)
        if (i != TAMIS_DTYPE_F4_E2M1 && i != TAMIS_DTYPE_I4 &&
            strcmp(name, tamis_dtype_name((tamis_dtype)i)) == 0) {
            *out = (tamis_dtype)i;
            return true;
        }
    return false;
}

static tamis_status read_dtype(const header_parser *p, const json_t *entry, tamis_tensor *out)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (name == NULL)
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: %.160s: dtype is absent or no string",
                          p->file_name, out->name);
    if (!find_dtype(name, &out->dtype))
        return tamis_fail(p->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %.160s: dtype is \"%.32s\", allowed: F64, F32, F16, BF16, F8_E4M3, "
                          "F8_E5M2, F8_E8M0, I64, I32, I16, I8, U8, BOOL",
                          p->file_name, out->name, name);
    return TAMIS_STATUS_OK;
}

/* Fills shape and the bytes that it asks for. */
static tamis_status read_shape(const header_parser *p, const json_t *entry, tamis_tensor *out)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t bytes = (size_t)tamis_dtype_bits(out->dtype) / 8;
    if (!json_is_array(shape))
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: %.160s: shape is absent or no list",
                          p->file_name, out->name);
    if (json_array_size(shape) > TAMIS_MAX_RANK)
        return tamis_fail(p->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: %.160s: has %zu dimensions, allowed: at most %d", p->file_name,
                          out->name, json_array_size(shape), TAMIS_MAX_RANK);
    out->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < out->rank; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        out->shape[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
        if (out->shape[i] < 0 || !tamis_size_mul(bytes, (size_t)out->shape[i], &bytes))
            return tamis_fail(
                p->err, TAMIS_STATUS_FORMAT,
                "%s: %.160s: shape[%d] is %lld, allowed: an integer from 0, and fewer "
                "than 2^64 bytes in all",
                p->file_name, out->name, (int)i, (long long)out->shape[i]);
    }
    out->bytes = bytes;
    return TAMIS_STATUS_OK;
}

static tamis_status read_offsets(const header_parser *p, const json_t *entry, tamis_tensor *out)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT,
                          "%s: %.160s: data_offsets is absent or no list of two integers",
                          p->file_name, out->name);
    const json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || (uint64_t)end > p->data_bytes)
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT,
                          "%s: %.160s: data_offsets are [%lld, %lld], allowed: begin <= end <= %zu",
                          p->file_name, out->name, (long long)begin, (long long)end, p->data_bytes);
    if ((uint64_t)(end - begin) != out->bytes)
        return tamis_fail(
            p->err, TAMIS_STATUS_FORMAT,
            "%s: %.160s: data_offsets span %lld bytes, allowed: %llu (%s times shape)",
            p->file_name, out->name, (long long)(end - begin), (unsigned long long)out->bytes,
            tamis_dtype_name(out->dtype));
    out->data = p->data + begin;
    return TAMIS_STATUS_OK;
}

static tamis_status read_tensor(const header_parser *p, const char *name, const json_t *entry,
                                tamis_tensor *out)
{
    *out = (tamis_tensor){.name = name};
    if (!json_is_object(entry))
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: %.160s: entry is no JSON object",
                          p->file_name, name);
    TAMIS_TRY(read_dtype(p, entry, out));
    TAMIS_TRY(read_shape(p, entry, out));
    return read_offsets(p, entry, out);
}

/* ---------------------------------------------------------------- the header */

static tamis_status parse_entry(header_parser *p, const char *name, tamis_tensor_visit_fn visit,
                                void *user)
{
    json_t *entry = NULL;
    tamis_tensor tensor;
    tamis_status st = TAMIS_STATUS_OK;
    if (!accept(p, ':'))
        return fail_json(p, "':'");
    TAMIS_TRY(parse_value(p, &entry));
    if (strcmp(name, "__metadata__") != 0) {
        st = read_tensor(p, name, entry, &tensor);
        if (st == TAMIS_STATUS_OK)
            st = visit(user, &tensor, p->err);
    } else if (!json_is_object(entry)) {
        st = tamis_fail(p->err, TAMIS_STATUS_FORMAT, "%s: __metadata__ is no JSON object",
                        p->file_name);
    }
    json_decref(entry);
    return st;
}

/* Names end up in messages: no control characters, no novels. */
static tamis_status check_name(const header_parser *p, const char *name)
{
    const size_t bytes = strlen(name);
    if (bytes == 0 || bytes > MAX_NAME_BYTES)
        return tamis_fail(p->err, TAMIS_STATUS_FORMAT,
                          "%s: header, before byte %zu: a tensor name has %zu bytes, allowed: "
                          "1..%zu",
                          p->file_name, p->at, bytes, MAX_NAME_BYTES);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return tamis_fail(p->err, TAMIS_STATUS_FORMAT,
                              "%s: header, before byte %zu: a tensor name has the control "
                              "character 0x%02x, allowed: none",
                              p->file_name, p->at, (unsigned char)name[i]);
    return TAMIS_STATUS_OK;
}

static tamis_status parse_named_entry(header_parser *p, tamis_tensor_visit_fn visit, void *user)
{
    json_t *name = NULL;
    skip_space(p);
    if (p->at >= p->bytes || p->text[p->at] != '"')
        return fail_json(p, "a tensor name in quotes");
    TAMIS_TRY(parse_value(p, &name));
    tamis_status st = check_name(p, json_string_value(name));
    if (st == TAMIS_STATUS_OK)
        st = parse_entry(p, json_string_value(name), visit, user);
    json_decref(name);
    return st;
}

static tamis_status parse_entries(header_parser *p, tamis_tensor_visit_fn visit, void *user)
{
    if (!accept(p, '{'))
        return fail_json(p, "'{'");
    if (!accept(p, '}')) {
        do
            TAMIS_TRY(parse_named_entry(p, visit, user));
        while (accept(p, ','));
        if (!accept(p, '}'))
            return fail_json(p, "',' or '}'");
    }
    skip_space(p);
    return p->at == p->bytes ? TAMIS_STATUS_OK : fail_json(p, "white space up to the data");
}

static uint64_t load_u64(const uint8_t *bytes)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

tamis_status tamis_safetensors_header_bytes(const char *file_name, const uint8_t *file,
                                            size_t file_bytes, size_t *out, tamis_error *err)
{
    if (file_bytes < LENGTH_BYTES + MIN_HEADER_BYTES)
        return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: has %zu bytes, allowed: at least %zu",
                          file_name, file_bytes, LENGTH_BYTES + MIN_HEADER_BYTES);
    const uint64_t n = load_u64(file);
    if (n < MIN_HEADER_BYTES || n > MAX_HEADER_BYTES || n > file_bytes - LENGTH_BYTES)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: header length is %llu, allowed: %zu..%zu and the file's rest (%zu)",
                          file_name, (unsigned long long)n, MIN_HEADER_BYTES, MAX_HEADER_BYTES,
                          file_bytes - LENGTH_BYTES);
    *out = (size_t)n;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_safetensors_parse_header(const char *file_name, const uint8_t *file,
                                            size_t file_bytes, tamis_tensor_visit_fn visit,
                                            void *user, size_t *data_bytes, tamis_error *err)
{
    size_t n = 0;
    TAMIS_TRY(tamis_safetensors_header_bytes(file_name, file, file_bytes, &n, err));
    header_parser parser = {.file_name = file_name,
                            .text = (const char *)file + LENGTH_BYTES,
                            .bytes = n,
                            .data = file + LENGTH_BYTES + n,
                            .data_bytes = file_bytes - LENGTH_BYTES - n,
                            .err = err};
    *data_bytes = parser.data_bytes;
    return parse_entries(&parser, visit, user);
}
