/* Ids to text, all at once or one by one. Bytes are collected over tokens, then made valid. */
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

/* Longest incomplete character. */
enum { MAX_HELD = 3 };

static const char *token_text(const tamis_tokenizer *tokenizer, int32_t id, bool skip_special,
                              size_t *bytes)
{
    const tamis_vocab *vocab = &tokenizer->vocab;
    const char *text = tamis_vocab_text(vocab, id, bytes);
    if (skip_special && *bytes > 0 && (vocab->flags[id] & TAMIS_TOKEN_SPECIAL))
        *bytes = 0;
    return text;
}

/* The bytes of all tokens in one block, *bytes of them. */
static char *join_tokens(const tamis_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                         bool skip_special, size_t *bytes)
{
    size_t sum = 0, n;
    for (size_t i = 0; i < n_ids; ++i) {
        (void)token_text(tokenizer, ids[i], skip_special, &n);
        sum += n;
    }
    char *joined = tamis_mem_alloc(TAMIS_MEM_MISC, sum + 1);
    *bytes = sum;
    if (joined == NULL)
        return NULL;
    char *dst = joined;
    for (size_t i = 0; i < n_ids; ++i) {
        const char *text = token_text(tokenizer, ids[i], skip_special, &n);
        memcpy(dst, text, n);
        dst += n;
    }
    return joined;
}

tamis_status tamis_tokenizer_decode(const tamis_tokenizer *tokenizer, const int32_t *ids,
                                    size_t n_ids, bool skip_special, char **text, size_t *bytes,
                                    tamis_error *err)
{
    if (tokenizer == NULL || (ids == NULL && n_ids > 0) || text == NULL || bytes == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "tamis_tokenizer_decode: a pointer is NULL, allowed: all given");
    size_t n;
    char *joined = join_tokens(tokenizer, ids, n_ids, skip_special, &n);
    if (joined == NULL)
        return tamis_fail_memory(err, "a decoded text", n + 1);
    if (tamis_utf8_valid_prefix(joined, n) < n) {
        const size_t room = n * TAMIS_UTF8_REPLACEMENT_BYTES + 1;
        char *repaired = tamis_mem_alloc(TAMIS_MEM_MISC, room);
        size_t cut;
        if (repaired != NULL)
            n = tamis_utf8_repair(repaired, joined, n, false, &cut);
        tamis_mem_free(joined);
        if (repaired == NULL)
            return tamis_fail_memory(err, "a decoded text", room);
        joined = repaired;
    }
    joined[n] = '\0';
    *text = joined;
    *bytes = n;
    return TAMIS_STATUS_OK;
}

void tamis_text_free(char *text)
{
    tamis_mem_free(text);
}

/* ---------------------------------------------------------------- streaming */

struct tamis_stream {
    const tamis_tokenizer *tokenizer;
    bool skip_special;
    char held[MAX_HELD]; /* the start of a character that can still be completed */
    size_t n_held;
    char *raw, *shown; /* [capacity], [3 * capacity + 1] */
    size_t capacity;
    char flushed[MAX_HELD * TAMIS_UTF8_REPLACEMENT_BYTES + 1];
};

tamis_status tamis_stream_open(tamis_stream **out, const tamis_tokenizer *tokenizer,
                               bool skip_special, tamis_error *err)
{
    if (out == NULL || tokenizer == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "tamis_stream_open: out or tokenizer is NULL, allowed: both given");
    *out = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof **out);
    if (*out == NULL)
        return tamis_fail_memory(err, "a text stream", sizeof **out);
    (*out)->tokenizer = tokenizer;
    (*out)->skip_special = skip_special;
    return TAMIS_STATUS_OK;
}

void tamis_stream_close(tamis_stream **stream)
{
    if (stream == NULL || *stream == NULL)
        return;
    tamis_mem_free((*stream)->raw);
    tamis_mem_free((*stream)->shown);
    tamis_mem_free(*stream);
    *stream = NULL;
}

static tamis_status stream_reserve(tamis_stream *s, size_t bytes, tamis_error *err)
{
    if (bytes <= s->capacity && s->shown != NULL)
        return TAMIS_STATUS_OK;
    const size_t capacity = bytes < 32 ? 64 : 2 * bytes;
    const size_t shown = capacity * TAMIS_UTF8_REPLACEMENT_BYTES + 1;
    tamis_mem_free(s->raw);
    tamis_mem_free(s->shown);
    s->raw = tamis_mem_alloc(TAMIS_MEM_MISC, capacity);
    s->shown = tamis_mem_alloc(TAMIS_MEM_MISC, shown);
    s->capacity = capacity;
    if (s->raw != NULL && s->shown != NULL)
        return TAMIS_STATUS_OK;
    tamis_mem_free(s->raw);
    tamis_mem_free(s->shown);
    s->raw = s->shown = NULL;
    s->capacity = 0;
    return tamis_fail_memory(err, "a text stream", capacity + shown);
}

tamis_status tamis_stream_push(tamis_stream *s, int32_t id, const char **text, size_t *bytes,
                               tamis_error *err)
{
    size_t n, n_cut;
    const char *token = token_text(s->tokenizer, id, s->skip_special, &n);
    TAMIS_TRY(stream_reserve(s, s->n_held + n, err));
    memcpy(s->raw, s->held, s->n_held);
    memcpy(s->raw + s->n_held, token, n);
    n += s->n_held;
    *bytes = tamis_utf8_repair(s->shown, s->raw, n, true, &n_cut);
    memcpy(s->held, s->raw + n - n_cut, n_cut);
    s->n_held = n_cut;
    s->shown[*bytes] = '\0';
    *text = s->shown;
    return TAMIS_STATUS_OK;
}

void tamis_stream_flush(tamis_stream *s, const char **text, size_t *bytes)
{
    size_t n_cut;
    *bytes = tamis_utf8_repair(s->flushed, s->held, s->n_held, false, &n_cut);
    s->flushed[*bytes] = '\0';
    s->n_held = 0;
    *text = s->flushed;
}
