/* tokenizer.json and tokenizer_config.json: all but the tables (model_json.c has those). */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "tokenizer/json_read.h"
#include "tokenizer/model_json.h"
#include "tokenizer/tokenizer_impl.h"

enum { KEY_BYTES = 96 };

/* ---------------------------------------------------------------- normalizer */

static tamis_status read_one_normalizer(tamis_tokenizer *tokenizer, const json_t *value,
                                        const char *key, const tamis_json_source *src)
{
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, value, src, key));
    if (strcmp(type, "NFC") != 0)
        return tamis_json_unsupported(src, key, json_object_get(value, "type"),
                                      "null, \"NFC\" or a \"Sequence\" of \"NFC\"");
    tokenizer->normalize_nfc = true;
    return TAMIS_STATUS_OK;
}

static tamis_status read_normalizer(tamis_tokenizer *tokenizer, const json_t *value,
                                    const tamis_json_source *src)
{
    if (value == NULL || json_is_null(value))
        return TAMIS_STATUS_OK;
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, value, src, "normalizer"));
    if (strcmp(type, "Sequence") != 0)
        return read_one_normalizer(tokenizer, value, "normalizer", src);
    const json_t *list = json_object_get(value, "normalizers");
    if (!json_is_array(list))
        return tamis_json_damaged(src, "normalizer.normalizers", list, "an array");
    for (size_t i = 0; i < json_array_size(list); ++i) {
        char key[KEY_BYTES];
        snprintf(key, sizeof key, "normalizer.normalizers[%zu]", i);
        TAMIS_TRY(read_one_normalizer(tokenizer, json_array_get(list, i), key, src));
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- pre_tokenizer */

/* A flag that must have one value, or be absent where `fallback` is that value. */
static tamis_status require_bool(const json_t *object, const char *name, bool wanted, bool fallback,
                                 const char *key, const tamis_json_source *src)
{
    char full[KEY_BYTES + 32];
    bool value;
    snprintf(full, sizeof full, "%s.%s", key, name);
    TAMIS_TRY(tamis_json_bool(&value, object, name, fallback, src, full));
    if (value != wanted)
        return tamis_json_unsupported(src, full, json_object_get(object, name),
                                      wanted ? "true" : "false");
    return TAMIS_STATUS_OK;
}

static tamis_status read_byte_level(const json_t *value, const char *key,
                                    const tamis_json_source *src)
{
    TAMIS_TRY(require_bool(value, "add_prefix_space", false, true, key, src));
    return require_bool(value, "use_regex", false, true, key, src);
}

static tamis_status read_split(tamis_tokenizer *tokenizer, const json_t *value, const char *key,
                               const tamis_json_source *src)
{
    char full[KEY_BYTES + 32], where[512];
    const json_t *pattern = json_object_get(value, "pattern");
    const json_t *behavior = json_object_get(value, "behavior");
    snprintf(full, sizeof full, "%s.pattern", key);
    if (!json_is_object(pattern) || json_object_size(pattern) != 1)
        return tamis_json_damaged(src, full, pattern, "{\"Regex\": a string}");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (regex == NULL)
        return tamis_json_unsupported(src, full, pattern, "{\"Regex\": a string}");
    if (!json_is_string(regex))
        return tamis_json_damaged(src, full, regex, "{\"Regex\": a string}");
    snprintf(full, sizeof full, "%s.behavior", key);
    if (!json_is_string(behavior))
        return tamis_json_damaged(src, full, behavior, "\"Isolated\"");
    if (strcmp(json_string_value(behavior), "Isolated") != 0)
        return tamis_json_unsupported(src, full, behavior, "\"Isolated\"");
    TAMIS_TRY(require_bool(value, "invert", false, false, key, src));
    snprintf(where, sizeof where, "%s: %s", src->path, key);
    return tamis_splitter_add(&tokenizer->splitter, json_string_value(regex),
                              json_string_length(regex), where, src->err);
}

/* Splits, and last the byte level, which here has no split of its own. */
static tamis_status read_step(tamis_tokenizer *tokenizer, const json_t *value, bool is_last,
                              const char *key, const tamis_json_source *src)
{
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, value, src, key));
    if (is_last && strcmp(type, "ByteLevel") == 0)
        return read_byte_level(value, key, src);
    if (!is_last && strcmp(type, "Split") == 0)
        return read_split(tokenizer, value, key, src);
    return tamis_json_unsupported(src, key, json_object_get(value, "type"),
                                  is_last ? "\"ByteLevel\" as the last step"
                                          : "\"Split\" before the last step");
}

static tamis_status read_pre_tokenizer(tamis_tokenizer *tokenizer, const json_t *value,
                                       const tamis_json_source *src)
{
    if (value == NULL || json_is_null(value))
        return tamis_json_unsupported(src, "pre_tokenizer", value,
                                      "\"ByteLevel\" or a \"Sequence\" of \"Split\" before it");
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, value, src, "pre_tokenizer"));
    if (strcmp(type, "Sequence") != 0)
        return read_step(tokenizer, value, true, "pre_tokenizer", src);
    const json_t *steps = json_object_get(value, "pretokenizers");
    const size_t n = json_array_size(steps);
    if (!json_is_array(steps) || n == 0)
        return tamis_json_damaged(src, "pre_tokenizer.pretokenizers", steps,
                                  "an array with at least one step");
    for (size_t i = 0; i < n; ++i) {
        char key[KEY_BYTES];
        snprintf(key, sizeof key, "pre_tokenizer.pretokenizers[%zu]", i);
        TAMIS_TRY(read_step(tokenizer, json_array_get(steps, i), i + 1 == n, key, src));
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- the rest */

/* decoder and post_processor: ByteLevel, whose flags say nothing about the result. */
static tamis_status check_byte_level(const json_t *root, const char *key, bool may_be_null,
                                     const tamis_json_source *src)
{
    const json_t *value = json_object_get(root, key);
    const char *allowed = may_be_null ? "null or \"ByteLevel\"" : "\"ByteLevel\"";
    if (value == NULL || json_is_null(value))
        return may_be_null ? TAMIS_STATUS_OK : tamis_json_unsupported(src, key, value, allowed);
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, value, src, key));
    if (strcmp(type, "ByteLevel") != 0)
        return tamis_json_unsupported(src, key, json_object_get(value, "type"), allowed);
    return TAMIS_STATUS_OK;
}

static tamis_status check_header(const json_t *root, const tamis_json_source *src)
{
    static const char *const unused[] = {"truncation", "padding"};
    const json_t *version = json_object_get(root, "version");
    if (version != NULL && !json_is_string(version))
        return tamis_json_damaged(src, "version", version, "\"1.0\"");
    if (version != NULL && strcmp(json_string_value(version), "1.0") != 0)
        return tamis_json_unsupported(src, "version", version, "\"1.0\"");
    for (size_t i = 0; i < sizeof unused / sizeof *unused; ++i) {
        const json_t *value = json_object_get(root, unused[i]);
        if (value != NULL && !json_is_null(value))
            return json_is_object(value) ? tamis_json_unsupported(src, unused[i], value, "null")
                                         : tamis_json_damaged(src, unused[i], value, "null");
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_root(tamis_tokenizer *tokenizer, const json_t *root,
                              const tamis_json_source *src)
{
    if (!json_is_object(root))
        return tamis_json_damaged(src, "the document", root, "an object");
    TAMIS_TRY(check_header(root, src));
    TAMIS_TRY(read_normalizer(tokenizer, json_object_get(root, "normalizer"), src));
    TAMIS_TRY(read_pre_tokenizer(tokenizer, json_object_get(root, "pre_tokenizer"), src));
    TAMIS_TRY(check_byte_level(root, "decoder", false, src));
    TAMIS_TRY(check_byte_level(root, "post_processor", true, src));
    return tamis_tokenizer_read_model(tokenizer, json_object_get(root, "model"),
                                      json_object_get(root, "added_tokens"), src);
}

tamis_status tamis_tokenizer_read_json(tamis_tokenizer *tokenizer, const char *text, size_t bytes,
                                       const char *path, tamis_error *err)
{
    const tamis_json_source src = {path, err};
    json_t *root = NULL;
    TAMIS_TRY(tamis_json_parse(&root, text, bytes, &src));
    const tamis_status st = read_root(tokenizer, root, &src);
    json_decref(root);
    return st;
}

/* "bos_token": a string, an object with the string as "content", null or absent. */
static tamis_status read_config_token(int32_t *out, const tamis_tokenizer *tokenizer,
                                      const json_t *root, const char *key,
                                      const tamis_json_source *src)
{
    const json_t *value = json_object_get(root, key);
    if (value == NULL || json_is_null(value))
        return TAMIS_STATUS_OK;
    const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!json_is_string(text))
        return tamis_json_damaged(src, key, text, "null, a string, an object with \"content\"");
    *out = tamis_tokenizer_find(tokenizer, json_string_value(text), json_string_length(text));
    if (*out < 0)
        return tamis_json_damaged(src, key, text, "a token of tokenizer.json");
    return TAMIS_STATUS_OK;
}

static tamis_status read_config_root(tamis_tokenizer *tokenizer, const json_t *root,
                                     const tamis_json_source *src)
{
    if (!json_is_object(root))
        return tamis_json_damaged(src, "the document", root, "an object");
    TAMIS_TRY(read_config_token(&tokenizer->bos_id, tokenizer, root, "bos_token", src));
    TAMIS_TRY(read_config_token(&tokenizer->eos_id, tokenizer, root, "eos_token", src));
    if (json_is_null(json_object_get(root, "add_bos_token")))
        return TAMIS_STATUS_OK;
    return tamis_json_bool(&tokenizer->add_bos_token, root, "add_bos_token", false, src,
                           "add_bos_token");
}

tamis_status tamis_tokenizer_read_config(tamis_tokenizer *tokenizer, const char *text, size_t bytes,
                                         const char *path, tamis_error *err)
{
    const tamis_json_source src = {path, err};
    json_t *root = NULL;
    TAMIS_TRY(tamis_json_parse(&root, text, bytes, &src));
    const tamis_status st = read_config_root(tokenizer, root, &src);
    json_decref(root);
    return st;
}
