#include "tokenizer/utf8.h"

#include <assert.h>
#include <string.h>

static bool is_continuation(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* Range of the second byte: it alone excludes overlong forms, surrogates, more than U+10FFFF. */
static void second_byte_range(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
}

tamis_utf8_kind tamis_utf8_next(const char *text, size_t bytes, size_t *len)
{
    const unsigned char *s = (const unsigned char *)text;
    assert(bytes >= 1);
    *len = 1;
    if (s[0] < 0x80)
        return TAMIS_UTF8_CHAR;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return TAMIS_UTF8_BAD;
    if (bytes < 2)
        return TAMIS_UTF8_CUT;
    unsigned char low, high;
    second_byte_range(s[0], &low, &high);
    if (s[1] < low || s[1] > high)
        return TAMIS_UTF8_BAD;
    const size_t want = tamis_utf8_len(text[0]);
    for (*len = 2; *len < want; ++*len) {
        if (*len == bytes)
            return TAMIS_UTF8_CUT;
        if (!is_continuation(s[*len]))
            return TAMIS_UTF8_BAD;
    }
    return TAMIS_UTF8_CHAR;
}

uint32_t tamis_utf8_code_point(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (len == 1)
        return s[0];
    uint32_t code_point = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; ++i)
        code_point = code_point << 6 | (s[i] & 0x3fu);
    return code_point;
}

static bool eight_are_ascii(const char *text)
{
    uint64_t word;
    memcpy(&word, text, sizeof word);
    return (word & UINT64_C(0x8080808080808080)) == 0;
}

size_t tamis_utf8_valid_prefix(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        size_t len = 8;
        if (bytes - at >= 8 && eight_are_ascii(text + at))
            ;
        else if (tamis_utf8_next(text + at, bytes - at, &len) != TAMIS_UTF8_CHAR)
            return at;
        at += len;
    }
    return at;
}

/*
 * A surrogate (ED A0 80 .. ED BF BF) is no character, but it has the shape of one: like the
 * reference's decoder, a stream reports its three bad bytes when the third has come.
 */
static bool is_cut_surrogate(const char *text, size_t bytes)
{
    return bytes == 2 && (unsigned char)text[0] == 0xed && is_continuation((unsigned char)text[1]);
}

size_t tamis_utf8_repair(char *out, const char *text, size_t bytes, bool keep_cut,
                         size_t *cut_bytes)
{
    size_t n_out = 0;
    *cut_bytes = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t good = tamis_utf8_valid_prefix(text + at, bytes - at);
        memcpy(out + n_out, text + at, good);
        n_out += good;
        at += good;
        if (at == bytes)
            break;
        size_t len;
        const tamis_utf8_kind kind = tamis_utf8_next(text + at, bytes - at, &len);
        if (keep_cut && (kind == TAMIS_UTF8_CUT || is_cut_surrogate(text + at, bytes - at))) {
            *cut_bytes = bytes - at;
            break;
        }
        at += len;
        memcpy(out + n_out, TAMIS_UTF8_REPLACEMENT, TAMIS_UTF8_REPLACEMENT_BYTES);
        n_out += TAMIS_UTF8_REPLACEMENT_BYTES;
    }
    return n_out;
}

bool tamis_is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
