/* Reading JSON that may be damaged: every complaint names path, key, value seen, value allowed. */
#ifndef TAMIS_TOKENIZER_JSON_READ_H
#define TAMIS_TOKENIZER_JSON_READ_H

#include <jansson.h>

#include "tamis/base.h"

/* Where the JSON came from and where to complain. */
typedef struct tamis_json_source {
    const char *path;
    tamis_error *err;
} tamis_json_source;

/* Parse one document. Duplicate keys, nesting over 2048 and bytes after the end are FORMAT. */
tamis_status tamis_json_parse(json_t **out, const char *text, size_t bytes,
                              const tamis_json_source *src);

/* "path: key is <value>, allowed: ...". NULL as value reads as absent. */
tamis_status tamis_json_damaged(const tamis_json_source *src, const char *key, const json_t *value,
                                const char *allowed);
tamis_status tamis_json_unsupported(const tamis_json_source *src, const char *key,
                                    const json_t *value, const char *allowed);

/* object[name] as a bool; absent gives `fallback`. `key` is the full name for messages. */
tamis_status tamis_json_bool(bool *out, const json_t *object, const char *name, bool fallback,
                             const tamis_json_source *src, const char *key);
/* The "type" of a component ({"type": "NFC", ...}); FORMAT if value is no such object. */
tamis_status tamis_json_type(const char **out, const json_t *value, const tamis_json_source *src,
                             const char *key);

/* A string made readable for a message: in quotes, cut at a character, no control characters. */
#define TAMIS_JSON_SHOWN_BYTES 64
void tamis_json_show_text(char out[TAMIS_JSON_SHOWN_BYTES], const char *text, size_t bytes);

#endif
