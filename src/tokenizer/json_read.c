#include "tokenizer/json_read.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json_load.h"
#include "tokenizer/utf8.h"

tamis_status tamis_json_parse(json_t **out, const char *text, size_t bytes,
                              const tamis_json_source *src)
{
    json_error_t error;
    bool no_memory;
    *out = tamis_json_load(text, bytes, JSON_REJECT_DUPLICATES, &error, &no_memory);
    if (*out != NULL)
        return TAMIS_STATUS_OK;
    if (no_memory)
        return tamis_fail_memory(src->err, "a JSON document", bytes);
    return tamis_fail(src->err, TAMIS_STATUS_FORMAT,
                      "%s: line %d, column %d: %s, allowed: one JSON document", src->path,
                      error.line, error.column, error.text);
}

void tamis_json_show_text(char out[TAMIS_JSON_SHOWN_BYTES], const char *text, size_t bytes)
{
    const size_t room = TAMIS_JSON_SHOWN_BYTES - sizeof "\"...\"";
    size_t n = 0, at = 0;
    out[n++] = '"';
    while (at < bytes) {
        const size_t len = tamis_utf8_len(text[at]);
        if (at + len > room)
            break;
        for (size_t i = 0; i < len; ++i) {
            const char c = text[at + i];
            out[n++] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
        }
        at += len;
    }
    strcpy(out + n, at < bytes ? "...\"" : "\"");
}

static void show(char out[TAMIS_JSON_SHOWN_BYTES], const json_t *value)
{
    if (value == NULL)
        strcpy(out, "absent");
    else if (json_is_string(value))
        tamis_json_show_text(out, json_string_value(value), json_string_length(value));
    else if (json_is_integer(value))
        snprintf(out, TAMIS_JSON_SHOWN_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, TAMIS_JSON_SHOWN_BYTES, "%g", json_real_value(value));
    else if (json_is_object(value))
        strcpy(out, "an object");
    else if (json_is_array(value))
        snprintf(out, TAMIS_JSON_SHOWN_BYTES, "an array of %zu", json_array_size(value));
    else
        strcpy(out, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
}

static tamis_status complain(const tamis_json_source *src, tamis_status status, const char *key,
                             const json_t *value, const char *allowed)
{
    char seen[TAMIS_JSON_SHOWN_BYTES];
    show(seen, value);
    return tamis_fail(src->err, status, "%s: %s is %s, allowed: %s", src->path, key, seen, allowed);
}

tamis_status tamis_json_damaged(const tamis_json_source *src, const char *key, const json_t *value,
                                const char *allowed)
{
    return complain(src, TAMIS_STATUS_FORMAT, key, value, allowed);
}

tamis_status tamis_json_unsupported(const tamis_json_source *src, const char *key,
                                    const json_t *value, const char *allowed)
{
    return complain(src, TAMIS_STATUS_UNSUPPORTED, key, value, allowed);
}

tamis_status tamis_json_bool(bool *out, const json_t *object, const char *name, bool fallback,
                             const tamis_json_source *src, const char *key)
{
    const json_t *value = json_object_get(object, name);
    if (value != NULL && !json_is_boolean(value))
        return tamis_json_damaged(src, key, value, "true, false");
    *out = value == NULL ? fallback : json_is_true(value);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_json_type(const char **out, const json_t *value, const tamis_json_source *src,
                             const char *key)
{
    if (!json_is_object(value))
        return tamis_json_damaged(src, key, value, "an object");
    const json_t *type = json_object_get(value, "type");
    if (!json_is_string(type)) {
        char full[96];
        snprintf(full, sizeof full, "%s.type", key);
        return tamis_json_damaged(src, full, type, "a string");
    }
    *out = json_string_value(type);
    return TAMIS_STATUS_OK;
}
