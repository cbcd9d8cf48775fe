#include "tokenizer/split_pattern.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/utf8.h"

#define WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* By itself, not inside [...], \w also takes six number characters: so do Oniguruma's tables. */
#define WORD_ALONE WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
/* \W grows most, from 2 bytes to 65. */
enum { GROWTH = 36, MAX_PATTERN_BYTES = 16384, MAX_REPEAT_DIGITS = 4 };

typedef struct translator {
    const char *at, *end;
    char *out;
    size_t n_out;
    bool can_repeat; /* a quantifier may follow */
    const char *where;
    tamis_error *err;
} translator;

static void put(translator *t, const char *text, size_t bytes)
{
    memcpy(t->out + t->n_out, text, bytes);
    t->n_out += bytes;
}

static void put_text(translator *t, const char *text)
{
    put(t, text, strlen(text));
}

static bool begins(const translator *t, const char *text)
{
    const size_t n = strlen(text);
    return (size_t)(t->end - t->at) >= n && memcmp(t->at, text, n) == 0;
}

/* Copy `bytes` of the pattern unchanged. */
static void keep(translator *t, size_t bytes)
{
    put(t, t->at, bytes);
    t->at += bytes;
}

static tamis_status refuse(translator *t, const char *what)
{
    return tamis_fail(t->err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: the split pattern has %s, allowed: literals, classes, groups, "
                      "look-around, alternatives, repeats, \\s \\w \\d \\p{general category}",
                      t->where, what);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* \p{L}, \P{Lu}, \p{^N}: general categories only, since other names differ between the engines. */
static tamis_status translate_property(translator *t)
{
    static const char majors[] = "CLMNPSZ";
    static const char minors[][8] = {"cfnos", "lmotu", "cen", "dlo", "cdefios", "ckmo", "lps"};
    const char *s = t->at + 2;
    size_t n = 0;
    if (s < t->end && *s == '{')
        while (s + 1 + n < t->end && s[1 + n] != '}' && n < 4)
            ++n;
    const char *name = s + 1;
    const size_t negated = n > 0 && name[0] == '^';
    const size_t letters = n - negated;
    const char *major = letters > 0 && name[negated] ? strchr(majors, name[negated]) : NULL;
    bool ok = major != NULL && letters <= 2 && name + n < t->end && name[n] == '}';
    if (ok && letters == 2) {
        const char minor = name[negated + 1];
        ok = minor != '\0' && strchr(minors[major - majors], minor) != NULL;
    }
    if (!ok)
        return refuse(t, "a property that is no general category");
    keep(t, n + 4); /* \p { name } */
    return TAMIS_STATUS_OK;
}

/* \x{1F600}, \x41 (ASCII only: more is a raw byte to Oniguruma), \u00e9. */
static tamis_status translate_code_point(translator *t)
{
    const char *s = t->at + 2;
    const bool braces = s < t->end && *s == '{' && t->at[1] == 'x';
    const size_t want = braces ? 6 : t->at[1] == 'x' ? 2 : 4;
    size_t n = 0;
    s += braces;
    while (s + n < t->end && n < want && is_hex(s[n]))
        ++n;
    if (n == 0 || (!braces && n != want) || (want == 2 && s[0] > '7'))
        return refuse(t, "an unclear \\x or \\u");
    if (braces && (s + n == t->end || s[n] != '}'))
        return refuse(t, "an unclear \\x{...}");
    put_text(t, "\\x{");
    put(t, s, n);
    put_text(t, "}");
    t->at = s + n + braces;
    return TAMIS_STATUS_OK;
}

static tamis_status translate_class_letter(translator *t, bool in_class)
{
    const char c = t->at[1];
    if (c == 's')
        put_text(t, "\\p{White_Space}");
    else if (c == 'S')
        put_text(t, "\\P{White_Space}");
    else if (c == 'd' || c == 'D') /* \p{Nd} in both */
        put(t, t->at, 2);
    else if (c == 'w')
        put_text(t, in_class ? WORD_IN_CLASS : "[" WORD_ALONE "]");
    else if (c == 'W' && !in_class)
        put_text(t, "[^" WORD_ALONE "]");
    else
        return refuse(t, "\\W inside [...]");
    t->at += 2;
    return TAMIS_STATUS_OK;
}

static tamis_status translate_escape(translator *t, bool in_class)
{
    if (t->end - t->at < 2)
        return refuse(t, "a \\ at its end");
    const char c = t->at[1];
    if (c == 'p' || c == 'P')
        return translate_property(t);
    if (c == 'x' || c == 'u')
        return translate_code_point(t);
    if (strchr("sSdDwW", c) != NULL && c != '\0')
        return translate_class_letter(t, in_class);
    if (c == 'v') { /* to PCRE2 a class */
        put_text(t, "\\x{b}");
        t->at += 2;
        return TAMIS_STATUS_OK;
    }
    if (c != '\0' && (strchr("tnrfae", c) != NULL || (!in_class && strchr("Az", c) != NULL))) {
        keep(t, 2);
        return TAMIS_STATUS_OK;
    }
    if (is_letter(c) || is_digit(c) || (unsigned char)c >= 0x80 || (unsigned char)c < 0x20) {
        const char what[] = {'\\', is_letter(c) || is_digit(c) ? c : '?', '\0'};
        return refuse(t, what);
    }
    keep(t, 2); /* escaped punctuation is itself */
    return TAMIS_STATUS_OK;
}

static tamis_status translate_class(translator *t)
{
    keep(t, 1);
    if (begins(t, "^"))
        keep(t, 1);
    if (begins(t, "]"))
        return refuse(t, "an empty class");
    while (t->at < t->end && *t->at != ']') {
        if (*t->at == '[')
            return refuse(t, "a class inside a class");
        if (begins(t, "&&"))
            return refuse(t, "&& inside [...]");
        if (*t->at == '\\')
            TAMIS_TRY(translate_escape(t, true));
        else
            keep(t, 1);
    }
    if (t->at == t->end)
        return refuse(t, "a [ without ]");
    keep(t, 1);
    t->can_repeat = true;
    return TAMIS_STATUS_OK;
}

static tamis_status translate_group(translator *t)
{
    static const char *const openers[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    t->can_repeat = false;
    if (begins(t, "(*"))
        return refuse(t, "(*");
    if (!begins(t, "(?")) {
        keep(t, 1);
        return TAMIS_STATUS_OK;
    }
    for (size_t i = 0; i < sizeof openers / sizeof *openers; ++i) {
        if (begins(t, openers[i])) {
            keep(t, strlen(openers[i]));
            return TAMIS_STATUS_OK;
        }
    }
    /* Elsewhere Oniguruma's (?i) also takes the alternatives that follow into its group. */
    if (begins(t, "(?i)") && t->n_out == 0) {
        keep(t, 4);
        return TAMIS_STATUS_OK;
    }
    return refuse(t, "a (?...) of another kind");
}

/* {n}, {n,}, {n,m}, {,m}: false if it is not one of them. */
static bool translate_braces(translator *t, bool *fixed)
{
    const char *s = t->at + 1;
    size_t low = 0, high = 0;
    while (s + low < t->end && is_digit(s[low]))
        ++low;
    const bool comma = s + low < t->end && s[low] == ',';
    const char *h = s + low + comma;
    while (comma && h + high < t->end && is_digit(h[high]))
        ++high;
    const char *close = h + high;
    if (close == t->end || *close != '}' || low + high == 0 || low > MAX_REPEAT_DIGITS ||
        high > MAX_REPEAT_DIGITS)
        return false;
    *fixed = !comma;
    put_text(t, "{");
    put(t, low ? s : "0", low ? low : 1);
    put(t, s + low, (size_t)(close + 1 - (s + low)));
    t->at = close + 1;
    return true;
}

static tamis_status translate_repeat(translator *t)
{
    if (!t->can_repeat)
        return refuse(t, "a repeat with nothing to repeat");
    const bool braces = *t->at == '{';
    bool fixed = false;
    if (!braces)
        keep(t, 1);
    else if (!translate_braces(t, &fixed))
        return refuse(t, "a { that is no repeat");
    if (begins(t, "+") && braces)
        return refuse(t, "{...}+");
    if (begins(t, "?") && fixed)
        return refuse(t, "{n}?");
    if (begins(t, "?") || begins(t, "+"))
        keep(t, 1);
    t->can_repeat = false; /* a** means different things */
    return TAMIS_STATUS_OK;
}

static tamis_status translate_one(translator *t)
{
    const char c = *t->at;
    if (c == '\\') {
        t->can_repeat = true;
        return translate_escape(t, false);
    }
    if (c == '[')
        return translate_class(t);
    if (c == '(')
        return translate_group(t);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return translate_repeat(t);
    if (c == '\0')
        return refuse(t, "a NUL");
    t->can_repeat = c != '|' && c != '^' && c != '$';
    keep(t, tamis_utf8_len(c));
    return TAMIS_STATUS_OK;
}

tamis_status tamis_split_pattern_translate(char **out, const char *pattern, size_t bytes,
                                           const char *where, tamis_error *err)
{
    if (bytes > MAX_PATTERN_BYTES)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: a split pattern of %zu bytes, allowed: at most %d", where, bytes,
                          MAX_PATTERN_BYTES);
    translator t = {.at = pattern, .end = pattern + bytes, .where = where, .err = err};
    t.out = tamis_mem_alloc(TAMIS_MEM_MISC, bytes * GROWTH + 1);
    if (t.out == NULL)
        return tamis_fail_memory(err, "a split pattern", bytes * GROWTH + 1);
    tamis_status st = TAMIS_STATUS_OK;
    while (st == TAMIS_STATUS_OK && t.at < t.end)
        st = translate_one(&t);
    if (st != TAMIS_STATUS_OK) {
        tamis_mem_free(t.out);
        return st;
    }
    t.out[t.n_out] = '\0';
    *out = t.out;
    return TAMIS_STATUS_OK;
}
