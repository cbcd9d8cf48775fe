/*
 * Typed reading of JSON objects. Absent keys and nulls leave the output as it was; anything else
 * that is not of the type and in the range is refused with file, key, value seen and allowed.
 */
#ifndef TAMIS_CONFIG_CONFIG_JSON_H
#define TAMIS_CONFIG_CONFIG_JSON_H

#include <jansson.h>

#include "tamis/base.h"

typedef struct tamis_config_object {
    const json_t *json;
    const char *path;   /* of the file, for messages */
    const char *prefix; /* of the keys, for messages: "" or "rope_scaling." */
    tamis_error *err;
} tamis_config_object;

/* Parses one JSON object. Duplicate keys and bytes after the end are FORMAT. */
tamis_status tamis_config_json_parse(json_t **out, const char *path, const char *text, size_t bytes,
                                     tamis_error *err);

/* NULL if absent or null. */
const json_t *tamis_config_get(const tamis_config_object *object, const char *key);
/* "path: key is <seen>, allowed: ..."; a NULL value reads as absent. */
tamis_status tamis_config_refuse(const tamis_config_object *object, tamis_status status,
                                 const char *key, const json_t *seen, const char *allowed, ...)
    TAMIS_PRINTF(5, 6);
/* FORMAT if absent or null. */
tamis_status tamis_config_require(const tamis_config_object *object, const char *key);

tamis_status tamis_config_int(const tamis_config_object *object, const char *key, int32_t min,
                              int32_t max, int32_t *out);
tamis_status tamis_config_float(const tamis_config_object *object, const char *key, float min,
                                float max, float *out);
tamis_status tamis_config_bool(const tamis_config_object *object, const char *key, bool *out);
/* Lives as long as the JSON. */
tamis_status tamis_config_text(const tamis_config_object *object, const char *key,
                               const char **out);
tamis_status tamis_config_list(const tamis_config_object *object, const char *key, size_t min_items,
                               size_t max_items, const json_t **out);
/* Element `i` of a list under `key`: an integer in the range. */
tamis_status tamis_config_item_int(const tamis_config_object *object, const char *key,
                                   const json_t *list, size_t i, int32_t min, int32_t max,
                                   int32_t *out);
/* The object under `key`; out->json is NULL if absent. `prefix` must outlive *out. */
tamis_status tamis_config_child(const tamis_config_object *object, const char *key,
                                const char *prefix, tamis_config_object *out);

#endif
