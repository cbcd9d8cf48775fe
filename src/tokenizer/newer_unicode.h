/*
 * Characters of Unicode 15 and 16, for a regex library with older tables.
 *
 * The reference splits with Unicode 16, Debian's PCRE2 10.42 with Unicode 14, to which 10,301 later
 * characters are unassigned. For matching only, each is replaced by an old character of the same
 * general category and the same number of bytes; the pieces are then cut from the real text. That
 * is exact for patterns that tell characters apart by category (split_pattern.c lets no other
 * property through), and changes nothing where the library's tables are new enough.
 */
#ifndef TAMIS_TOKENIZER_NEWER_UNICODE_H
#define TAMIS_TOKENIZER_NEWER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>

/* First newer character at or after `from` in valid UTF-8; `bytes` if there is none. */
size_t tamis_newer_unicode_find(const char *text, size_t bytes, size_t from);
/* Put the old stand-in over the newer character at text. */
void tamis_newer_unicode_replace(char *text);

#endif
