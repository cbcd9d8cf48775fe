/* UTF-8 one character at a time, with Unicode's rule of "maximal invalid parts". */
#ifndef TAMIS_TOKENIZER_UTF8_H
#define TAMIS_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tamis_utf8_kind {
    TAMIS_UTF8_CHAR, /* a whole character */
    TAMIS_UTF8_BAD,  /* bytes that no continuation can turn into a character */
    TAMIS_UTF8_CUT   /* the text ends inside a character */
} tamis_utf8_kind;

/* U+FFFD, the replacement character. */
#define TAMIS_UTF8_REPLACEMENT       "\xef\xbf\xbd"
#define TAMIS_UTF8_REPLACEMENT_BYTES 3

/* What begins at text[0] (bytes >= 1) and how many bytes belong to it: 1..4 for CHAR, 1..3 else. */
tamis_utf8_kind tamis_utf8_next(const char *text, size_t bytes, size_t *len);
/* The code point of a whole character. */
uint32_t tamis_utf8_code_point(const char *text, size_t len);
/* Length of a character by its first byte; the text is known to be valid. */
static inline size_t tamis_utf8_len(char first)
{
    const unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
/* How many bytes from the start are valid UTF-8. */
size_t tamis_utf8_valid_prefix(const char *text, size_t bytes);
/*
 * Copies text with U+FFFD for every invalid part and returns the bytes written, at most 3 * bytes.
 * With keep_cut, a character cut by the end is left out and *cut_bytes (0..3) says how long it is.
 */
size_t tamis_utf8_repair(char *out, const char *text, size_t bytes, bool keep_cut,
                         size_t *cut_bytes);
/* Unicode's White_Space property: 25 characters, unchanged since Unicode 6.3. */
bool tamis_is_white_space(uint32_t code_point);

#endif
