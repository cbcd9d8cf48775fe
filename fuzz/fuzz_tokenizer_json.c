/*
 * tokenizer.json and tokenizer_config.json from hostile hands, then a text through what opened.
 *
 * Parts of the input are separated by NUL. Two forms:
 *   {...} NUL config NUL text                          a whole tokenizer.json
 *   T NUL normalizer NUL pre_tokenizer NUL added_tokens NUL merges NUL config NUL text
 *                                                      parts for a document with all 256 bytes
 * The second reaches the split patterns and the encoder with short inputs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

enum { MAX_INPUT = 64 << 10, MAX_TEXT = 96, MAX_PARTS = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* ,"x":id entries of the byte alphabet and a few tokens that merges may name. */
static const char *base_vocab(void)
{
    static char vocab[8192];
    size_t n = 0;
    if (vocab[0] != '\0')
        return vocab;
    for (unsigned b = 0, next = 256; b < 256; ++b) {
        const bool same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        const unsigned c = same ? b : next++;
        n += (size_t)sprintf(vocab + n, "%s\"", b > 0 ? "," : "");
        if (c < 0x80)
            n += (size_t)sprintf(vocab + n, c == '"' || c == '\\' ? "\\%c" : "%c", (int)c);
        else
            n += (size_t)sprintf(vocab + n, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
        n += (size_t)sprintf(vocab + n, "\":%u", b);
    }
    sprintf(vocab + n, ",\"ab\":256,\"abab\":257,\"aa\":258,\"ba\":259,\"a b\":260");
    return vocab;
}

/* Parts as NUL-terminated strings inside `copy`; missing ones are "". */
static void split_parts(char *copy, size_t size, const char *parts[MAX_PARTS])
{
    size_t at = 0;
    for (int i = 0; i < MAX_PARTS; ++i) {
        parts[i] = at <= size ? copy + at : "";
        at += strlen(parts[i]) + 1;
    }
}

static const char *or_default(const char *part, const char *fallback)
{
    return part[0] != '\0' ? part : fallback;
}

static char *document_of_parts(const char *parts[MAX_PARTS], size_t size)
{
    const size_t room = size + 8192 + 512;
    char *document = malloc(room);
    require(document != NULL);
    const int n =
        snprintf(document, room,
                 "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"added_tokens\":%s,"
                 "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":%s,"
                 "\"vocab\":{%s}}}",
                 or_default(parts[1], "null"),
                 or_default(parts[2], "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                      "\"use_regex\":false}"),
                 or_default(parts[3], "[]"), or_default(parts[4], "[]"), base_vocab());
    require(n > 0 && (size_t)n < room);
    return document;
}

static void check_stream(const tamis_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                         const char *text, size_t bytes)
{
    tamis_stream *stream = NULL;
    size_t at = 0, n;
    const char *delta;
    require(tamis_stream_open(&stream, tokenizer, false, NULL) == TAMIS_STATUS_OK);
    for (size_t i = 0; i <= n_ids; ++i) {
        if (i < n_ids)
            require(tamis_stream_push(stream, ids[i], &delta, &n, NULL) == TAMIS_STATUS_OK);
        else
            tamis_stream_flush(stream, &delta, &n);
        require(n <= bytes - at && memcmp(text + at, delta, n) == 0);
        at += n;
    }
    require(at == bytes);
    tamis_stream_close(&stream);
}

static void run_text(const tamis_tokenizer *tokenizer, const char *text, size_t bytes,
                     tamis_encode_mode mode)
{
    int32_t *ids = NULL;
    size_t n_ids, n_decoded;
    char *decoded = NULL;
    tamis_error err = {0};
    const tamis_status st =
        tamis_tokenizer_encode(tokenizer, text, bytes, mode, &ids, &n_ids, &err);
    require(st == TAMIS_STATUS_OK || st == TAMIS_STATUS_LIMIT);
    if (st != TAMIS_STATUS_OK)
        return;
    require(tamis_tokenizer_decode(tokenizer, ids, n_ids, false, &decoded, &n_decoded, NULL) ==
            TAMIS_STATUS_OK);
    if (mode == TAMIS_ENCODE_PLAIN && !tokenizer->normalize_nfc)
        require(n_decoded >= bytes); /* invalid bytes only grow */
    check_stream(tokenizer, ids, n_ids, decoded, n_decoded);
    tamis_text_free(decoded);
    tamis_ids_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT)
        return 0;
    char *copy = malloc(size + 1), *document = NULL;
    const char *parts[MAX_PARTS];
    require(copy != NULL);
    memcpy(copy, data, size);
    copy[size] = '\0';
    split_parts(copy, size, parts);
    const bool in_parts = strcmp(parts[0], "T") == 0;
    if (in_parts)
        document = document_of_parts(parts, size);
    const char *json = in_parts ? document : parts[0];
    const char *config = parts[in_parts ? 5 : 1], *text = parts[in_parts ? 6 : 2];
    tamis_tokenizer *tokenizer = NULL;
    tamis_error err = {0};
    const tamis_status st = tamis_tokenizer_open_text(
        &tokenizer, json, strlen(json), "tokenizer.json", config[0] ? config : NULL, strlen(config),
        "tokenizer_config.json", &err);
    require((st == TAMIS_STATUS_OK) == (tokenizer != NULL));
    require((st == TAMIS_STATUS_OK) == (err.text[0] == '\0'));
    if (tokenizer != NULL) {
        const size_t bytes = strnlen(text, MAX_TEXT);
        run_text(tokenizer, text, bytes, TAMIS_ENCODE_ADDED_TOKENS);
        run_text(tokenizer, text, bytes, TAMIS_ENCODE_PLAIN);
    }
    tamis_tokenizer_close(&tokenizer);
    free(document);
    free(copy);
    return 0;
}
