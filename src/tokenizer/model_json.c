#include "tokenizer/model_json.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

enum { KEY_BYTES = 128 };
#define ALLOWED_IDS "an integer 0..2097151"
static_assert(TAMIS_MAX_TOKEN_ID == 2097151, "the message names the limit");

/* "model.vocab[\"...\"]" for a message. */
static void vocab_key(char out[KEY_BYTES], const char *token)
{
    char shown[TAMIS_JSON_SHOWN_BYTES];
    tamis_json_show_text(shown, token, strlen(token));
    snprintf(out, KEY_BYTES, "model.vocab[%s]", shown);
}

static tamis_status damaged_token(const tamis_json_source *src, const char *token,
                                  const json_t *value, const char *allowed)
{
    char key[KEY_BYTES];
    vocab_key(key, token);
    return tamis_json_damaged(src, key, value, allowed);
}

static tamis_status damaged_merge(const tamis_json_source *src, size_t idx, const json_t *value,
                                  const char *allowed)
{
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "model.merges[%zu]", idx);
    return tamis_json_damaged(src, key, value, allowed);
}

static tamis_status damaged_added(const tamis_json_source *src, size_t idx, const char *field,
                                  const json_t *value, const char *allowed)
{
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "added_tokens[%zu]%s%s", idx, field[0] ? "." : "", field);
    return tamis_json_damaged(src, key, value, allowed);
}

static bool is_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= TAMIS_MAX_TOKEN_ID;
}

/* ---------------------------------------------------------------- options of the model */

static bool is_neutral(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0.0);
}

/* What a byte-level vocabulary with all bytes never needs, and tamis does not do. */
static tamis_status check_options(const json_t *model, const tamis_json_source *src)
{
    static const struct {
        const char *name;
        json_type type, or_type; /* of a value that is well formed */
    } options[] = {{"unk_token", JSON_STRING, JSON_STRING},
                   {"byte_fallback", JSON_TRUE, JSON_FALSE},
                   {"dropout", JSON_REAL, JSON_INTEGER},
                   {"continuing_subword_prefix", JSON_STRING, JSON_STRING},
                   {"end_of_word_suffix", JSON_STRING, JSON_STRING}};
    for (size_t i = 0; i < sizeof options / sizeof *options; ++i) {
        const json_t *value = json_object_get(model, options[i].name);
        if (value == NULL || json_is_null(value))
            continue;
        char key[KEY_BYTES];
        snprintf(key, sizeof key, "model.%s", options[i].name);
        if (json_typeof(value) != options[i].type && json_typeof(value) != options[i].or_type)
            return tamis_json_damaged(src, key, value, "null or a value of its type");
        if (!is_neutral(value))
            return tamis_json_unsupported(src, key, value, "absent, null, false, 0 or empty");
    }
    bool unused;
    return tamis_json_bool(&unused, model, "fuse_unk", false, src, "model.fuse_unk");
}

static tamis_status check_kind(const json_t *model, const tamis_json_source *src)
{
    const char *type;
    TAMIS_TRY(tamis_json_type(&type, model, src, "model"));
    if (strcmp(type, "BPE") != 0)
        return tamis_json_unsupported(src, "model.type", json_object_get(model, "type"), "\"BPE\"");
    return check_options(model, src);
}

/* ---------------------------------------------------------------- sizes, checked first */

typedef struct table_sizes {
    int32_t max_id;
    size_t blob_bytes;
} table_sizes;

static tamis_status measure_vocab(table_sizes *sizes, json_t *vocab, const tamis_json_source *src)
{
    const char *token;
    json_t *value;
    json_object_foreach(vocab, token, value)
    {
        const size_t bytes = strlen(token);
        if (!is_id(value))
            return damaged_token(src, token, value, ALLOWED_IDS);
        if (bytes > TAMIS_MAX_TOKEN_BYTES)
            return damaged_token(src, token, value, "a token of at most 4096 bytes");
        sizes->blob_bytes += bytes;
        if (json_integer_value(value) > sizes->max_id)
            sizes->max_id = (int32_t)json_integer_value(value);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status measure_added(table_sizes *sizes, const json_t *tokens,
                                  const tamis_json_source *src)
{
    size_t i;
    json_t *token;
    json_array_foreach(tokens, i, token)
    {
        const json_t *id = json_object_get(token, "id");
        const json_t *content = json_object_get(token, "content");
        if (!json_is_object(token))
            return damaged_added(src, i, "", token, "an object");
        if (!is_id(id))
            return damaged_added(src, i, "id", id, ALLOWED_IDS);
        if (!json_is_string(content) || json_string_length(content) == 0 ||
            json_string_length(content) > TAMIS_MAX_TOKEN_BYTES)
            return damaged_added(src, i, "content", content, "a string of 1..4096 bytes");
        sizes->blob_bytes += json_string_length(content);
        if (json_integer_value(id) > sizes->max_id)
            sizes->max_id = (int32_t)json_integer_value(id);
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- vocab */

static tamis_status read_vocab(tamis_vocab *vocab, json_t *object, const tamis_json_source *src)
{
    const char *token;
    json_t *value;
    json_object_foreach(object, token, value)
    {
        const int32_t id = (int32_t)json_integer_value(value);
        if (vocab->flags[id] != 0)
            return damaged_token(src, token, value, "an id that no other token has");
        tamis_vocab_add_base(vocab, id, token, strlen(token));
    }
    for (int byte = 0; byte <= 0xf4; ++byte) /* those that occur in UTF-8 */
        if (vocab->byte_id[byte] < 0 && byte != 0xc0 && byte != 0xc1)
            return tamis_fail(src->err, TAMIS_STATUS_FORMAT,
                              "%s: model.vocab has no token for byte 0x%02x, allowed: one for "
                              "every byte of UTF-8",
                              src->path, (unsigned)byte);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- merges */

typedef struct text_part {
    const char *text;
    size_t bytes;
} text_part;

/* The two parts of "a b" or ["a", "b"]. */
static bool split_merge(const json_t *merge, text_part *left, text_part *right)
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        *left = (text_part){json_string_value(a), json_string_length(a)};
        *right = (text_part){json_string_value(b), json_string_length(b)};
        return json_is_string(a) && json_is_string(b);
    }
    if (!json_is_string(merge))
        return false;
    const char *text = json_string_value(merge);
    const size_t bytes = json_string_length(merge);
    const char *space = memchr(text, ' ', bytes);
    if (space == NULL)
        return false;
    *left = (text_part){text, (size_t)(space - text)};
    *right = (text_part){space + 1, bytes - left->bytes - 1};
    return memchr(right->text, ' ', right->bytes) == NULL;
}

static tamis_status read_merge(tamis_vocab *vocab, size_t rank, const json_t *merge,
                               const tamis_json_source *src)
{
    char joined[2 * TAMIS_MAX_TOKEN_BYTES];
    text_part left, right;
    if (!split_merge(merge, &left, &right))
        return damaged_merge(src, rank, merge, "\"a b\" or [\"a\", \"b\"]");
    const int32_t left_id = tamis_vocab_find_string(vocab, left.text, left.bytes);
    const int32_t right_id = tamis_vocab_find_string(vocab, right.text, right.bytes);
    if (left_id < 0 || right_id < 0)
        return damaged_merge(src, rank, merge, "two tokens of model.vocab");
    memcpy(joined, left.text, left.bytes);
    memcpy(joined + left.bytes, right.text, right.bytes);
    const int32_t id = tamis_vocab_find_string(vocab, joined, left.bytes + right.bytes);
    if (id < 0)
        return damaged_merge(src, rank, merge, "a pair whose union is in model.vocab");
    tamis_vocab_add_merge(vocab, left_id, right_id, (int32_t)rank, id);
    return TAMIS_STATUS_OK;
}

static tamis_status read_merges(tamis_vocab *vocab, const json_t *merges,
                                const tamis_json_source *src)
{
    size_t rank;
    json_t *merge;
    json_array_foreach(merges, rank, merge) TAMIS_TRY(read_merge(vocab, rank, merge, src));
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- added tokens */

/* The flags are in every file; without them a token would be found in the wrong places. */
static tamis_status read_added_flags(tamis_added_token *out, const json_t *token, size_t idx,
                                     const tamis_json_source *src)
{
    const struct {
        const char *name;
        bool *out;
    } flags[] = {{"single_word", &out->single_word},
                 {"lstrip", &out->lstrip},
                 {"rstrip", &out->rstrip},
                 {"normalized", &out->normalized},
                 {"special", &out->special}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i) {
        const json_t *value = json_object_get(token, flags[i].name);
        if (!json_is_boolean(value))
            return damaged_added(src, idx, flags[i].name, value, "true, false");
        *flags[i].out = json_is_true(value);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_added_token(tamis_tokenizer *tokenizer, const json_t *token, size_t idx,
                                     const tamis_json_source *src)
{
    tamis_vocab *vocab = &tokenizer->vocab;
    const json_t *id_value = json_object_get(token, "id");
    const json_t *content = json_object_get(token, "content");
    const char *text = json_string_value(content);
    const size_t bytes = json_string_length(content);
    tamis_added_token added = {.id = (int32_t)json_integer_value(id_value)};
    TAMIS_TRY(read_added_flags(&added, token, idx, src));
    const int32_t base_id = tamis_vocab_find_string(vocab, text, bytes);
    if (base_id >= 0 && base_id != added.id)
        return damaged_added(src, idx, "id", id_value, "the id model.vocab gives this content");
    if (base_id < 0 && vocab->flags[added.id] != 0)
        return damaged_added(src, idx, "id", id_value, "an id that no other token has");
    int32_t existing;
    TAMIS_TRY(tamis_added_tokens_add(&tokenizer->added, &added, text, bytes,
                                     tokenizer->normalize_nfc, &existing, src->err));
    if (existing >= 0)
        return damaged_added(src, idx, "content", content, "a content that no other one has");
    tamis_vocab_add_added(vocab, added.id, text, bytes, added.special);
    return TAMIS_STATUS_OK;
}

static tamis_status read_added_tokens(tamis_tokenizer *tokenizer, const json_t *tokens,
                                      const tamis_json_source *src)
{
    size_t i;
    json_t *token;
    TAMIS_TRY(tamis_added_tokens_init(&tokenizer->added, json_array_size(tokens), src->err));
    json_array_foreach(tokens, i, token) TAMIS_TRY(read_added_token(tokenizer, token, i, src));
    return TAMIS_STATUS_OK;
}

tamis_status tamis_tokenizer_read_model(tamis_tokenizer *tokenizer, const json_t *model,
                                        const json_t *added_tokens, const tamis_json_source *src)
{
    TAMIS_TRY(check_kind(model, src));
    TAMIS_TRY(tamis_json_bool(&tokenizer->ignore_merges, model, "ignore_merges", false, src,
                              "model.ignore_merges"));
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab))
        return tamis_json_damaged(src, "model.vocab", vocab, "an object");
    if (!json_is_array(merges))
        return tamis_json_damaged(src, "model.merges", merges, "an array");
    if (added_tokens != NULL && !json_is_array(added_tokens))
        return tamis_json_damaged(src, "added_tokens", added_tokens, "an array");
    table_sizes sizes = {.max_id = 0};
    TAMIS_TRY(measure_vocab(&sizes, vocab, src));
    TAMIS_TRY(measure_added(&sizes, added_tokens, src));
    TAMIS_TRY(tamis_vocab_init(&tokenizer->vocab, sizes.max_id + 1, json_object_size(vocab),
                               json_array_size(merges), sizes.blob_bytes, src->err));
    TAMIS_TRY(read_vocab(&tokenizer->vocab, vocab, src));
    TAMIS_TRY(read_merges(&tokenizer->vocab, merges, src));
    return read_added_tokens(tokenizer, added_tokens, src);
}
