/*
 * Split patterns: what means the same to the reference's regular expressions and to PCRE2, and what
 * is refused. The wanted pieces are the reference's (tokenizers 0.23.3, Split(Regex, "isolated")).
 */
#include "tokenizer_test.h"

#include "tokenizer/newer_unicode.h"
#include "tokenizer/splitter.h"
#include "tokenizer/utf8.h"

static const struct {
    const char *pattern, *text, *pieces; /* joined by slashes */
} cases[] = {
    {"\\s+",
     "a\xe1\xa0\x8e"
     "b c\xc2\xa0"
     "d\xc2\x85"
     "e\xe2\x80\x8b"
     "f",
     "a\xe1\xa0\x8e"
     "b/ /c/\xc2\xa0/d/\xc2\x85/e\xe2\x80\x8b"
     "f"},
    {"\\S+",
     " a\xe1\xa0\x8e"
     "b c",
     " /a\xe1\xa0\x8e"
     "b/ /c"},
    {"[^\\S\\n]+",
     "a \x0a\x09"
     "b",
     "a/ /\x0a/\x09/b"},
    {"\\w+",
     "a_1\xc2\xb2\xcc\x81-b\xe2\x80\x8d"
     "c\xe2\x92\xb6",
     "a_1\xc2\xb2\xcc\x81/-/b/\xe2\x80\x8d/c\xe2\x92\xb6"},
    {"[\\w]+",
     "a\xc2\xb2"
     "b",
     "a/\xc2\xb2/b"},
    {"\\W", "a\xc2\xb2-b", "a\xc2\xb2/-/b"},
    {"[\\v]|\\v",
     "a\x0b"
     "b\x0c"
     "c\xe2\x80\xa8"
     "d",
     "a/\x0b/b\x0c"
     "c\xe2\x80\xa8"
     "d"},
    {"\\u00e9+",
     "a\xc3\xa9\xc3\xa9"
     "b",
     "a/\xc3\xa9\xc3\xa9/b"},
    {"\\x41|\\x{4e00}", "xAy\xe4\xb8\x80z", "x/A/y/\xe4\xb8\x80/z"},
    {"xa{,2}", "xaaaxx", "xaa/a/x/x"},
    {"^a|b$",
     "a\x0a"
     "ab\x0a"
     "b",
     "a/\x0a/a/b/\x0a/b"},
    {"^", "a\x0a", "a\x0a"},
    {"x*", "axxb", "a/xx/b"},
    {"|", "ab", "a/b"},
    {"(?i)k+|s", "xKK\xe2\x84\xaa\xc5\xbfy", "x/KK\xe2\x84\xaa/\xc5\xbf/y"},
    {"(?i:ab)c", "ABcabC", "ABc/abC"},
    {"(?<=\\d)\\p{L}", "1a2bc", "1/a/2/b/c"},
    {"(?<!\\p{L})\\p{Lu}\\p{Ll}*", "AbcDef Gh", "Abc/Def /Gh"},
    {"(?>a+)(?=\\s)", "aa aaa", "aa/ aaa"},
    {"\\d+|\\D", "1\xd9\xa1\xc2\xb2", "1\xd9\xa1/\xc2\xb2"},
    {"a++b|a", "aaac", "a/a/a/c"},
    {"\\p{^L}+", "a12b", "a/12/b"},
    {"[\\P{N}]+", "a1b", "a/1/b"},
    {"[\\-\\]^]", "a-b]c^", "a/-/b/]/c/^"},
    {".+",
     "a\x0a"
     "b\x0d",
     "a/\x0a/b\x0d"},
    {"\\A\\p{L}|\\p{L}\\z", "abc", "a/b/c"},
    {"\\p{L}+",
     "a\xf0\x96\xb5\x80\xf0\x96\xb5\x81"
     "b\xf0\x9e\x97\xae",
     "a\xf0\x96\xb5\x80\xf0\x96\xb5\x81"
     "b/\xf0\x9e\x97\xae"},
    {"\\p{Lu}", "\xea\x9f\x8b\xea\x9f\x8c\xf0\x90\xb5\x90",
     "\xea\x9f\x8b/\xea\x9f\x8c/\xf0\x90\xb5\x90"},
    {"\\p{N}{1,3}", "\xf0\x90\xb5\x80\xf0\x90\xb5\x81\xf0\x90\xb5\x82\xf0\x90\xb5\x83",
     "\xf0\x90\xb5\x80\xf0\x90\xb5\x81\xf0\x90\xb5\x82/\xf0\x90\xb5\x83"},
    {"[\\p{P}\\p{S}]+",
     "a\xe1\xad\x8e\xf0\x9f\xab\xa8"
     "b",
     "a/\xe1\xad\x8e\xf0\x9f\xab\xa8/b"},
    {"\\p{M}+",
     "a\xe0\xa2\x97\xf0\x9e\x97\xae\xf0\x90\xbb\xbc"
     "b",
     "a/\xe0\xa2\x97\xf0\x9e\x97\xae\xf0\x90\xbb\xbc/b"},
    {"[^\\p{Cn}]+", "\xf0\x9f\xab\xa8\xf0\x9f\x9b\x9cx\xcd\xb8",
     "\xf0\x9f\xab\xa8\xf0\x9f\x9b\x9cx/\xcd\xb8"},
};

static tamis_status join_piece(void *user, const char *piece, size_t bytes, tamis_error *err)
{
    char *joined = user;
    if (joined[0] != '\0')
        strcat(joined, "/");
    strncat(joined, piece, bytes);
    return TAMIS_STATUS_OK;
}

static void split_by(const char *const *patterns, int n_patterns, const char *text, char *joined)
{
    tamis_splitter splitter = {0};
    tamis_split_scratch scratch = {0};
    tamis_error err = {0};
    joined[0] = '\0';
    assert_int_equal(tamis_splitter_init(&splitter, &err), TAMIS_STATUS_OK);
    for (int i = 0; i < n_patterns; ++i)
        if (tamis_splitter_add(&splitter, patterns[i], strlen(patterns[i]), "test", &err) !=
            TAMIS_STATUS_OK)
            fail_msg("%s: %s", patterns[i], err.text);
    assert_int_equal(tamis_split_scratch_init(&scratch, &splitter, &err), TAMIS_STATUS_OK);
    assert_int_equal(
        tamis_splitter_run(&splitter, &scratch, text, strlen(text), join_piece, joined, &err),
        TAMIS_STATUS_OK);
    tamis_split_scratch_free(&scratch);
    tamis_splitter_free(&splitter);
}

static void test_like_the_reference(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char joined[256];
        split_by(&cases[i].pattern, 1, cases[i].text, joined);
        if (strcmp(joined, cases[i].pieces) != 0)
            fail_msg("%s cuts \"%s\" into %s, wanted %s", cases[i].pattern, cases[i].text, joined,
                     cases[i].pieces);
    }
}

/* Each pattern sees a piece of the one before as the whole text. */
static void test_several_patterns(void **state)
{
    static const char *const patterns[] = {"\\d+", "^[a-z]|[a-z]$"};
    char joined[256];
    split_by(patterns, 2, "abc12def3", joined);
    assert_string_equal(joined, "a/b/c/12/d/e/f/3");
    split_by(patterns, 0, "abc12", joined);
    assert_string_equal(joined, "abc12");
    split_by(patterns, 2, "", joined);
    assert_string_equal(joined, "");
}

static void test_refused(void **state)
{
    static const char *const patterns[] = {
        "\\b",         "\\B",    "\\h",      "\\R",        "\\X",    "\\K",         "\\G",
        "\\C",         "\\Q",    "\\1",      "\\k<a>",     "\\N",    "\\",          "[a[b]]",
        "[[:alpha:]]", "[a&&b]", "[]",       "[^]",        "[a",     "[\\W]",       "[\\b]",
        "[\\A]",       "\\pL",   "\\p{Han}", "\\p{Greek}", "\\p{l}", "\\p{Lx}",     "\\p{",
        "\\p",         "\\p{L",  "\\p{}",    "\\p{^}",     "\\xg",   "\\x",         "\\x{",
        "\\x{}",       "\\x{41", "\\x80",    "\\u123",     "\\u",    "\\x{110000}", "(?<n>a)",
        "(?P<n>a)",    "(?#c)",  "(?x)a",    "(?m:a)",     "a(?i)b", "(?R)",        "(?1)",
        "(*FAIL)",     "(?",     "(",        ")",          "a{2}?",  "a{2}+",       "a{1,2}+",
        "a{}",         "a{,}",   "a{x",      "a{12345}",   "a**",    "*a",          "(?:*)",
        "a|*",         "{1}",    "(?<=a+)b", "[z-a]",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; ++i) {
        tamis_splitter splitter = {0};
        tamis_error err = {0};
        assert_int_equal(tamis_splitter_init(&splitter, &err), TAMIS_STATUS_OK);
        if (tamis_splitter_add(&splitter, patterns[i], strlen(patterns[i]), "here", &err) !=
            TAMIS_STATUS_UNSUPPORTED)
            fail_msg("%s is not refused", patterns[i]);
        assert_non_null(strstr(err.text, "here"));
        assert_non_null(strstr(err.text, "allowed: "));
        tamis_splitter_free(&splitter);
    }
}

static void test_limits(void **state)
{
    tamis_splitter splitter = {0};
    tamis_error err = {0};
    char *longest = malloc(16385);
    memset(longest, 'a', 16385);
    assert_int_equal(tamis_splitter_init(&splitter, &err), TAMIS_STATUS_OK);
    assert_int_equal(tamis_splitter_add(&splitter, longest, 16385, "here", &err),
                     TAMIS_STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "16385 bytes, allowed: at most 16384"));
    for (int i = 0; i < TAMIS_MAX_SPLITS; ++i)
        assert_int_equal(tamis_splitter_add(&splitter, "a", 1, "here", &err), TAMIS_STATUS_OK);
    assert_int_equal(tamis_splitter_add(&splitter, "a", 1, "here", &err), TAMIS_STATUS_UNSUPPORTED);
    tamis_splitter_free(&splitter);
    free(longest);
}

/* Every character that stands in for a newer one keeps its length, and is not newer itself. */
static void test_stand_ins(void **state)
{
    int n_newer = 0;
    for (uint32_t c = 0x800; c < 0x110000; ++c) {
        char text[5] = {0};
        const size_t len = c < 0x10000 ? 3 : 4;
        for (size_t i = len - 1; i > 0; --i)
            text[i] = (char)(0x80 | (c >> 6 * (len - 1 - i) & 0x3f));
        text[0] = (char)(len == 3 ? 0xe0 | c >> 12 : 0xf0 | c >> 18);
        if (c >= 0xd800 && c < 0xe000)
            continue;
        if (tamis_newer_unicode_find(text, len, 0) == len)
            continue;
        ++n_newer;
        tamis_newer_unicode_replace(text);
        assert_int_equal(strlen(text), len);
        assert_int_equal(tamis_utf8_valid_prefix(text, len), len);
        assert_int_equal(tamis_newer_unicode_find(text, len, 0), len);
    }
    assert_int_equal(n_newer, 10302);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_the_reference),
        cmocka_unit_test(test_several_patterns),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stand_ins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
