/* What a tokenizer holds. Filled by tokenizer_json.c, read by encode.c and decode.c. */
#ifndef TAMIS_TOKENIZER_TOKENIZER_IMPL_H
#define TAMIS_TOKENIZER_TOKENIZER_IMPL_H

#include "tamis/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/splitter.h"
#include "tokenizer/vocab.h"

struct tamis_tokenizer {
    tamis_vocab vocab;
    tamis_added_tokens added;
    tamis_splitter splitter;
    bool normalize_nfc; /* text is put into normal form C first */
    bool ignore_merges; /* a piece that is a token is that token, whatever the merges give */
    bool add_bos_token;
    int32_t bos_id, eos_id; /* -1: none */
};

/* Largest files that are read. */
#define TAMIS_MAX_TOKENIZER_JSON_BYTES   ((size_t)64 << 20)
#define TAMIS_MAX_TOKENIZER_CONFIG_BYTES ((size_t)16 << 20)

/*
 * Open from text in memory: what tamis_tokenizer_open does with the two files of a folder. config
 * may be NULL; the paths only name the documents in messages.
 */
tamis_status tamis_tokenizer_open_text(tamis_tokenizer **out, const char *json, size_t json_bytes,
                                       const char *json_path, const char *config,
                                       size_t config_bytes, const char *config_path,
                                       tamis_error *err);

/* The parts of opening, each for one file. */
tamis_status tamis_tokenizer_read_json(tamis_tokenizer *tokenizer, const char *text, size_t bytes,
                                       const char *path, tamis_error *err);
tamis_status tamis_tokenizer_read_config(tamis_tokenizer *tokenizer, const char *text, size_t bytes,
                                         const char *path, tamis_error *err);

#endif
