/* Stop strings against a slow reference that looks at every suffix after every byte. */
#include "tokenizer_test.h"

#include "core/mem.h"
#include "support/rng.h"

enum { MAX_TEXT = 64, MAX_STRINGS = 4, MAX_LENGTH = 6 };

static tamis_stop *open_stop(const char *const *strings, size_t n)
{
    tamis_stop *stop = NULL;
    assert_int_equal(tamis_stop_open(&stop, strings, n, NULL), TAMIS_STATUS_OK);
    return stop;
}

typedef struct expected {
    size_t n_shown; /* after all of the text */
    size_t n_flush;
    bool hit;
} expected;

static bool ends_with(const char *text, size_t n, const char *end, size_t n_end)
{
    return n_end <= n && memcmp(text + n - n_end, end, n_end) == 0;
}

static expected expect(const char *text, size_t n, const char *const *strings, size_t n_strings)
{
    size_t n_held = 0;
    for (size_t end = 1; end <= n; ++end) {
        size_t longest = 0;
        n_held = 0;
        for (size_t i = 0; i < n_strings; ++i) {
            const size_t length = strlen(strings[i]);
            if (length > longest && ends_with(text, end, strings[i], length))
                longest = length;
            for (size_t k = 1; k < length; ++k)
                if (k > n_held && ends_with(text, end, strings[i], k))
                    n_held = k;
        }
        if (longest > 0)
            return (expected){.n_shown = end - longest, .hit = true};
    }
    return (expected){.n_shown = n - n_held, .n_flush = n_held};
}

/* Feed text in pieces that end at the set bits of `cuts`; after each the shown text must be right.
 */
static void check_cuts(const char *text, const char *const *strings, size_t n_strings,
                       uint64_t cuts)
{
    char shown[MAX_TEXT + 1];
    const size_t n = strlen(text);
    size_t n_shown = 0, out_bytes, from = 0;
    const char *out;
    bool hit = false;
    tamis_stop *stop = open_stop(strings, n_strings);
    for (size_t to = 1; to <= n; ++to) {
        if (to < n && !(cuts >> to & 1))
            continue;
        assert_int_equal(
            tamis_stop_push(stop, text + from, to - from, &out, &out_bytes, &hit, NULL),
            TAMIS_STATUS_OK);
        assert_true(n_shown + out_bytes <= n);
        memcpy(shown + n_shown, out, out_bytes);
        n_shown += out_bytes;
        const expected want = expect(text, to, strings, n_strings);
        if (n_shown != want.n_shown || hit != want.hit || memcmp(shown, text, n_shown) != 0)
            fail_msg("\"%.*s\" shows %zu bytes, hit %d; wanted %zu, %d", (int)to, text, n_shown,
                     hit, want.n_shown, want.hit);
        from = to;
    }
    tamis_stop_flush(stop, &out, &out_bytes);
    const expected want = expect(text, n, strings, n_strings);
    assert_int_equal(out_bytes, want.n_flush);
    assert_memory_equal(out, text + n_shown, out_bytes);
    tamis_stop_flush(stop, &out, &out_bytes);
    assert_int_equal(out_bytes, 0);
    tamis_stop_close(&stop);
}

static void check_all_cuts(const char *text, const char *const *strings, size_t n_strings)
{
    const size_t n = strlen(text);
    assert_true(n <= 14);
    for (uint64_t cuts = 0; cuts < (uint64_t)1 << n; cuts += 2)
        check_cuts(text, strings, n_strings, cuts);
}

static void test_every_border(void **state)
{
    const char *const one[] = {"STOP"}, *const overlap[] = {"aab"},
                      *const nested[] = {"abcd", "bc"};
    const char *const several[] = {"\n\n", "User:", "<|end|>"};
    check_all_cuts("a STOP b", one, 1);
    check_all_cuts("STOSTOP", one, 1);
    check_all_cuts("STO", one, 1);
    check_all_cuts("aaab", overlap, 1);
    check_all_cuts("aaaabaab", overlap, 1);
    check_all_cuts("xabcdx", nested, 2);
    check_all_cuts("xabdabcx", nested, 2);
    check_all_cuts("a\nb\n\nUser:", several, 3);
    check_all_cuts("<|<|end|>x", several, 3);
    check_all_cuts("no such thing", several, 3);
    check_all_cuts("anything", NULL, 0);
}

static void test_random(void **state)
{
    test_rng rng = test_rng_start("stop strings", 20261130);
    for (int round = 0; round < 20000; ++round) {
        char text[MAX_TEXT + 1], strings[MAX_STRINGS][MAX_LENGTH + 1];
        const char *list[MAX_STRINGS];
        const int n_letters = (int)test_rng_int(&rng, 1, 3);
        const size_t n_strings = (size_t)test_rng_int(&rng, 0, MAX_STRINGS);
        const size_t n = (size_t)test_rng_int(&rng, 0, MAX_TEXT - 1);
        for (size_t i = 0; i < n_strings; ++i) {
            const size_t length = (size_t)test_rng_int(&rng, 1, MAX_LENGTH);
            for (size_t k = 0; k < length; ++k)
                strings[i][k] = (char)('a' + test_rng_int(&rng, 0, n_letters));
            strings[i][length] = '\0';
            list[i] = strings[i];
        }
        for (size_t i = 0; i < n; ++i)
            text[i] = (char)('a' + test_rng_int(&rng, 0, n_letters));
        text[n] = '\0';
        check_cuts(text, list, n_strings, test_rng_u64(&rng) & test_rng_u64(&rng));
    }
}

static void test_nothing_after_a_hit(void **state)
{
    const char *const strings[] = {"ab"};
    const char *out;
    size_t n;
    bool hit = false;
    tamis_stop *stop = open_stop(strings, 1);
    assert_int_equal(tamis_stop_push(stop, "xxabyy", 6, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_true(hit);
    assert_int_equal(n, 2);
    hit = false;
    assert_int_equal(tamis_stop_push(stop, "more", 4, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_true(hit);
    assert_int_equal(n, 0);
    tamis_stop_flush(stop, &out, &n);
    assert_int_equal(n, 0);
    tamis_stop_close(&stop);
    assert_null(stop);
    tamis_stop_close(&stop);
    tamis_stop_close(NULL);
}

static void test_long_text(void **state)
{
    enum { N = 1 << 20 };
    const char *const strings[] = {"aaaaaaaaab"};
    char *text = malloc(N);
    const char *out;
    size_t n;
    bool hit;
    memset(text, 'a', N);
    tamis_stop *stop = open_stop(strings, 1);
    assert_int_equal(tamis_stop_push(stop, text, N, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_false(hit);
    assert_int_equal(n, N - 9);
    assert_memory_equal(out, text, n);
    assert_int_equal(tamis_stop_push(stop, NULL, 0, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(tamis_stop_push(stop, "b", 1, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_true(hit);
    assert_int_equal(n, 0);
    tamis_stop_close(&stop);
    free(text);
}

static void test_invalid(void **state)
{
    const char *const empty[] = {"a", ""}, *const null[] = {NULL};
    tamis_error err = {0};
    tamis_stop *stop = NULL;
    assert_int_equal(tamis_stop_open(&stop, empty, 2, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "stop string 1"));
    assert_int_equal(tamis_stop_open(&stop, null, 1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_stop_open(&stop, NULL, 1, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_stop_open(NULL, empty, 1, &err), TAMIS_STATUS_INVALID);
    assert_null(stop);
}

static void test_memory(void **state)
{
    const char *const strings[] = {"abc", "bcd", "x"};
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC) + tamis_mem_in_use(TAMIS_MEM_TOKENIZER);
    tamis_stop *stop = NULL;
    const char *out;
    size_t n;
    bool hit;
    int n_failures = 0;
    for (uint64_t at = 1; stop == NULL; ++at, ++n_failures) {
        tamis_mem_fail_at(at);
        const tamis_status st = tamis_stop_open(&stop, strings, 3, NULL);
        assert_true(st == TAMIS_STATUS_OK || st == TAMIS_STATUS_NO_MEMORY);
    }
    assert_true(n_failures > 4);
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_stop_push(stop, "zab", 3, &out, &n, &hit, NULL), TAMIS_STATUS_NO_MEMORY);
    assert_int_equal(tamis_stop_push(stop, "zab", 3, &out, &n, &hit, NULL), TAMIS_STATUS_OK);
    assert_int_equal(n, 1);
    tamis_stop_close(&stop);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC) + tamis_mem_in_use(TAMIS_MEM_TOKENIZER),
                     before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_border),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_nothing_after_a_hit),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_invalid),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
