/*
 * The pre-tokenizer: cutting text into the pieces that BPE works on.
 *
 * Up to TAMIS_MAX_SPLITS patterns run one after the other, each on every piece the one before left;
 * matches and the gaps between them both become pieces ("Isolated"). A pattern sees its piece as if
 * it were the whole text.
 */
#ifndef TAMIS_TOKENIZER_SPLITTER_H
#define TAMIS_TOKENIZER_SPLITTER_H

#include <stddef.h>

#include "tamis/base.h"

#define TAMIS_MAX_SPLITS 8

typedef struct tamis_splitter {
    void *memory;                  /* pcre2_general_context: PCRE2 allocates through core/mem */
    void *codes[TAMIS_MAX_SPLITS]; /* pcre2_code */
    int n_codes;
} tamis_splitter;

tamis_status tamis_splitter_init(tamis_splitter *splitter, tamis_error *err);
void tamis_splitter_free(tamis_splitter *splitter); /* an all-zero one is fine */
/* Compile and append a pattern; `where` names it in messages. Errors: UNSUPPORTED, NO_MEMORY. */
tamis_status tamis_splitter_add(tamis_splitter *splitter, const char *pattern, size_t bytes,
                                const char *where, tamis_error *err);
size_t tamis_splitter_bytes(const tamis_splitter *splitter);

/* What one running call needs; a splitter may be used by several calls at the same time. */
typedef struct tamis_split_scratch {
    void *context;                   /* pcre2_match_context */
    void *matches[TAMIS_MAX_SPLITS]; /* pcre2_match_data of each pattern */
} tamis_split_scratch;

tamis_status tamis_split_scratch_init(tamis_split_scratch *scratch, const tamis_splitter *splitter,
                                      tamis_error *err);
void tamis_split_scratch_free(tamis_split_scratch *scratch); /* an all-zero one is fine */

typedef tamis_status (*tamis_piece_fn)(void *user, const char *piece, size_t bytes,
                                       tamis_error *err);
/*
 * Call fn for every piece of valid UTF-8, in order; none is empty.
 * errors   what fn returned; LIMIT (a pattern backtracks too much on this text), NO_MEMORY
 */
tamis_status tamis_splitter_run(const tamis_splitter *splitter, tamis_split_scratch *scratch,
                                const char *text, size_t bytes, tamis_piece_fn fn, void *user,
                                tamis_error *err);

#endif
