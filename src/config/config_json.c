#include "config/config_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/json_load.h"

#define SHOWN_BYTES 64
#define KEY_BYTES   96

tamis_status tamis_config_json_parse(json_t **out, const char *path, const char *text, size_t bytes,
                                     tamis_error *err)
{
    json_error_t error = {.line = 0};
    bool no_memory;
    *out = tamis_json_load(text, bytes, JSON_REJECT_DUPLICATES, &error, &no_memory);
    if (no_memory)
        return tamis_fail_memory(err, path, bytes);
    if (*out == NULL)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: line %d, column %d: %s, allowed: one JSON object", path, error.line,
                          error.column, error.text);
    if (json_is_object(*out))
        return TAMIS_STATUS_OK;
    json_decref(*out);
    *out = NULL;
    return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: is a JSON array, allowed: one JSON object",
                      path);
}

const json_t *tamis_config_get(const tamis_config_object *object, const char *key)
{
    const json_t *value = json_object_get(object->json, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

/* A string in quotes, cut at a character, control characters replaced. */
static void show_text(char out[SHOWN_BYTES], const char *text)
{
    size_t n = 0;
    out[n++] = '"';
    while (*text != '\0' && n < SHOWN_BYTES - sizeof "...\"") {
        out[n++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
        text++;
    }
    while (*text != '\0' && ((unsigned char)*text & 0xC0) == 0x80 && n > 1) {
        n--;
        text--;
    }
    strcpy(out + n, *text != '\0' ? "...\"" : "\"");
}

static void show(char out[SHOWN_BYTES], const json_t *value)
{
    if (value == NULL)
        strcpy(out, "absent");
    else if (json_is_string(value))
        show_text(out, json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, SHOWN_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, SHOWN_BYTES, "%.9g", json_real_value(value));
    else if (json_is_array(value))
        snprintf(out, SHOWN_BYTES, "a list of %zu", json_array_size(value));
    else if (json_is_object(value))
        snprintf(out, SHOWN_BYTES, "an object of %zu", json_object_size(value));
    else
        strcpy(out, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
}

tamis_status tamis_config_refuse(const tamis_config_object *object, tamis_status status,
                                 const char *key, const json_t *seen, const char *allowed, ...)
{
    char seen_text[SHOWN_BYTES], allowed_text[256];
    va_list args;
    show(seen_text, seen);
    va_start(args, allowed);
    vsnprintf(allowed_text, sizeof allowed_text, allowed, args);
    va_end(args);
    return tamis_fail(object->err, status, "%s: %s%s is %s, allowed: %s", object->path,
                      object->prefix, key, seen_text, allowed_text);
}

tamis_status tamis_config_require(const tamis_config_object *object, const char *key)
{
    if (tamis_config_get(object, key) != NULL)
        return TAMIS_STATUS_OK;
    return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, NULL, "a value, it is required");
}

static tamis_status int_of(const tamis_config_object *object, const char *key, const json_t *value,
                           int32_t min, int32_t max, int32_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value, "an integer in %d..%d",
                                   min, max);
    *out = (int32_t)json_integer_value(value);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_int(const tamis_config_object *object, const char *key, int32_t min,
                              int32_t max, int32_t *out)
{
    const json_t *value = tamis_config_get(object, key);
    return value == NULL ? TAMIS_STATUS_OK : int_of(object, key, value, min, max, out);
}

tamis_status tamis_config_float(const tamis_config_object *object, const char *key, float min,
                                float max, float *out)
{
    const json_t *value = tamis_config_get(object, key);
    if (value == NULL)
        return TAMIS_STATUS_OK;
    /* Checked after rounding to float: 1e-300 would be 0. */
    const float number = (float)json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max))
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value, "a number in %g..%g",
                                   (double)min, (double)max);
    *out = number;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_bool(const tamis_config_object *object, const char *key, bool *out)
{
    const json_t *value = tamis_config_get(object, key);
    if (value == NULL)
        return TAMIS_STATUS_OK;
    if (!json_is_boolean(value))
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value, "true, false");
    *out = json_is_true(value);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_text(const tamis_config_object *object, const char *key, const char **out)
{
    const json_t *value = tamis_config_get(object, key);
    if (value == NULL)
        return TAMIS_STATUS_OK;
    if (!json_is_string(value))
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value, "a string");
    *out = json_string_value(value);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_list(const tamis_config_object *object, const char *key, size_t min_items,
                               size_t max_items, const json_t **out)
{
    const json_t *value = tamis_config_get(object, key);
    if (value == NULL)
        return TAMIS_STATUS_OK;
    if (!json_is_array(value) || json_array_size(value) < min_items ||
        json_array_size(value) > max_items)
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value,
                                   "a list of %zu..%zu items", min_items, max_items);
    *out = value;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_config_item_int(const tamis_config_object *object, const char *key,
                                   const json_t *list, size_t i, int32_t min, int32_t max,
                                   int32_t *out)
{
    char item_key[KEY_BYTES];
    snprintf(item_key, sizeof item_key, "%s[%zu]", key, i);
    return int_of(object, item_key, json_array_get(list, i), min, max, out);
}

tamis_status tamis_config_child(const tamis_config_object *object, const char *key,
                                const char *prefix, tamis_config_object *out)
{
    const json_t *value = tamis_config_get(object, key);
    *out = (tamis_config_object){NULL, object->path, prefix, object->err};
    if (value != NULL && !json_is_object(value))
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, value, "an object");
    out->json = value;
    return TAMIS_STATUS_OK;
}
