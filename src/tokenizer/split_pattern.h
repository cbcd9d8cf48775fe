/*
 * Translating the split patterns of tokenizer.json for PCRE2.
 *
 * They are written for Oniguruma (Ruby syntax with Unicode classes), which reads some constructs
 * differently from PCRE2: \s has no U+180E, \h is a hex digit, \w and \b cover marks, [a[b]] nests,
 * {n}? and {n,m}+ mean something else. Only constructs that mean the same, or can be rewritten to,
 * are let through; anything else is refused by name instead of splitting text differently.
 */
#ifndef TAMIS_TOKENIZER_SPLIT_PATTERN_H
#define TAMIS_TOKENIZER_SPLIT_PATTERN_H

#include "tamis/base.h"

/*
 * The pattern for PCRE2 (with UTF, UCP, MULTILINE), NUL-terminated, a block of the core allocator.
 * errors   UNSUPPORTED (`where` and the construct), NO_MEMORY
 */
tamis_status tamis_split_pattern_translate(char **out, const char *pattern, size_t bytes,
                                           const char *where, tamis_error *err);

#endif
