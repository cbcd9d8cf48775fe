/*
 * The inside of tamis/speculation.h: drafters that need nothing but the tokens.
 */
#ifndef TAMIS_ENGINE_SPECULATION_H
#define TAMIS_ENGINE_SPECULATION_H

#include "tamis/speculation.h"

/*
 * What followed the latest earlier occurrence of the longest end of tokens[0 .. n_tokens), of
 * ngram_max down to ngram_min tokens, that occurs earlier at all. The copy may run into itself: a
 * repeated pattern goes on repeating. Returns the number of ids written: max_draft, or 0 if nothing
 * occurs. One pass over the tokens.
 */
int32_t tamis_draft_lookup(const int32_t *tokens, int32_t n_tokens, int32_t ngram_min,
                           int32_t ngram_max, int32_t *draft, int32_t max_draft);

#endif
