/*
 * Added tokens: strings that are found in the text before anything is split, each being one id.
 *
 * Those with normalized = false are searched in the raw text, those with normalized = true in the
 * normalized rest; each search takes the leftmost match, the longest of several there.
 */
#ifndef TAMIS_TOKENIZER_ADDED_TOKENS_H
#define TAMIS_TOKENIZER_ADDED_TOKENS_H

#include "tokenizer/splitter.h"
#include "tokenizer/trie.h"

typedef struct tamis_added_token {
    int32_t id;
    bool single_word; /* not beside a word character */
    bool lstrip;      /* takes the white space before it along */
    bool rstrip;      /* and after it */
    bool normalized;
    bool special;
} tamis_added_token;

typedef struct tamis_added_tokens {
    tamis_added_token *tokens; /* [n] */
    size_t n;
    tamis_trie by_content; /* all of them; values are indices in tokens */
    tamis_trie raw;        /* the patterns searched in the raw text */
    tamis_trie normalized; /* the patterns searched in normalized text */
} tamis_added_tokens;

tamis_status tamis_added_tokens_init(tamis_added_tokens *added, size_t capacity, tamis_error *err);
void tamis_added_tokens_free(tamis_added_tokens *added); /* an all-zero one is fine */
size_t tamis_added_tokens_bytes(const tamis_added_tokens *added);

/* Append a token; *existing is the index of an earlier one with the same content (or -1). */
tamis_status tamis_added_tokens_add(tamis_added_tokens *added, const tamis_added_token *token,
                                    const char *content, size_t bytes, bool normalize_nfc,
                                    int32_t *existing, tamis_error *err);
/* Id of the token with exactly this content, -1 if there is none. */
int32_t tamis_added_tokens_find(const tamis_added_tokens *added, const char *text, size_t bytes);

/* A stretch of text before the next added token, and that token. */
typedef struct tamis_added_match {
    size_t from, to; /* what the token covers, white space it strips included */
    int32_t id;
} tamis_added_match;

/* Walks the matches of one pattern set over one text. */
typedef struct tamis_added_scan {
    const tamis_added_tokens *added;
    const tamis_trie *patterns;
    const char *text;
    size_t bytes;
    size_t at;      /* where the search goes on */
    size_t covered; /* end of the last match that counted */
} tamis_added_scan;

/* The next match; false at the end of the text. */
bool tamis_added_scan_next(tamis_added_scan *scan, tamis_added_match *match);

#endif
