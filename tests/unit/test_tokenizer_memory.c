/* Refused allocations: at every n-th call a status, no leak, and the library goes on working. */
#include "tokenizer_test.h"

#include "core/mem.h"
#include "tokenizer/tokenizer_impl.h"

static size_t in_use(void)
{
    return tamis_mem_in_use(TAMIS_MEM_MISC) + tamis_mem_in_use(TAMIS_MEM_TOKENIZER);
}

static void *jansson_alloc(size_t bytes)
{
    return tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
}

/* jansson's own allocations fail too. */
static int use_core_allocator(void **state)
{
    json_set_alloc_funcs(jansson_alloc, tamis_mem_free);
    return 0;
}

static int use_libc_allocator(void **state)
{
    json_set_alloc_funcs(malloc, free);
    return 0;
}

static uint64_t allocs_of_open(const char *dir)
{
    tamis_tokenizer *tokenizer = NULL;
    const uint64_t before = tamis_mem_num_allocs();
    assert_int_equal(tamis_tokenizer_open(&tokenizer, dir, NULL), TAMIS_STATUS_OK);
    const uint64_t n = tamis_mem_num_allocs() - before;
    tamis_tokenizer_close(&tokenizer);
    return n;
}

static void check_open(const char *dir, uint64_t min_allocs, uint64_t max_tries)
{
    const size_t before = in_use();
    const uint64_t n = allocs_of_open(dir);
    const uint64_t step = n > max_tries ? n / max_tries : 1;
    uint64_t n_refused = 0;
    assert_true(n >= min_allocs);
    for (uint64_t at = 1; at <= n; at += step) {
        tamis_error err = {0};
        tamis_tokenizer *tokenizer = NULL;
        tamis_mem_fail_at(at);
        const tamis_status st = tamis_tokenizer_open(&tokenizer, dir, &err);
        tamis_mem_fail_at(0);
        /* OK: PCRE2 does without its JIT when that gets no memory. */
        if (st != TAMIS_STATUS_OK && st != TAMIS_STATUS_NO_MEMORY)
            fail_msg("allocation %d gives %s: %s", (int)at, tamis_status_name(st), err.text);
        assert_true((tokenizer != NULL) == (st == TAMIS_STATUS_OK));
        assert_true((err.text[0] != '\0') == (st != TAMIS_STATUS_OK));
        n_refused += st != TAMIS_STATUS_OK;
        tamis_tokenizer_close(&tokenizer);
        assert_int_equal(in_use(), before);
    }
    assert_true(n_refused >= 10);
    print_message("%s: %d allocations, %d of them refused in turn\n", dir, (int)n, (int)n_refused);
    assert_int_equal(allocs_of_open(dir), n);
}

static void test_open(void **state)
{
    check_open(GOLDEN_DIR "ds", 15, 1000);
    check_open(GOLDEN_DIR "glm", 15, 1000);
    check_open(GOLDEN_DIR "flags", 15, 1000);
}

static void test_open_with_jansson(void **state)
{
    check_open(GOLDEN_DIR "flags", 500, 700);
}

/* Long and short pieces, invalid bytes, newer characters, a character to normalize. */
static const char *const texts[] = {
    "attention word <left> 1234 vi\xe1\xba\xbf <a><b>ab<s>",
    "e\xcc\x81\xcc\xa3 \xff \xf0\x9f\xab\xa8 \xf0\x96\xb5\x80",
    ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"),
    "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6",
};

static int check_encode(const tamis_tokenizer *tokenizer, const char *text)
{
    int32_t *want = NULL, *ids = NULL;
    size_t n_want, n_ids;
    int n_refused = 0;
    assert_int_equal(tamis_tokenizer_encode(tokenizer, text, strlen(text),
                                            TAMIS_ENCODE_ADDED_TOKENS, &want, &n_want, NULL),
                     TAMIS_STATUS_OK);
    const size_t before = in_use();
    for (uint64_t at = 1; ids == NULL; ++at) {
        tamis_error err = {0};
        tamis_mem_fail_at(at);
        const tamis_status st = tamis_tokenizer_encode(
            tokenizer, text, strlen(text), TAMIS_ENCODE_ADDED_TOKENS, &ids, &n_ids, &err);
        tamis_mem_fail_at(0);
        if (st == TAMIS_STATUS_OK)
            break;
        assert_int_equal(st, TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(err.status, TAMIS_STATUS_NO_MEMORY);
        assert_null(ids);
        assert_int_equal(in_use(), before);
        ++n_refused;
    }
    assert_int_equal(n_ids, n_want);
    assert_memory_equal(ids, want, n_ids * sizeof *ids);
    tamis_ids_free(ids);
    tamis_ids_free(want);
    return n_refused;
}

static void test_encode(void **state)
{
    const char *const names[] = {"ds", "glm", "flags"};
    for (size_t i = 0; i < 3; ++i) {
        tamis_tokenizer *tokenizer = open_golden(names[i]);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; ++k)
            assert_true(check_encode(tokenizer, texts[k]) >= 3);
        tamis_tokenizer_close(&tokenizer);
    }
}

static void test_decode(void **state)
{
    tamis_tokenizer *ds = open_golden("ds");
    const int32_t ids[] = {172, 257, 225, 50, 60}; /* invalid UTF-8: two blocks */
    const size_t before = in_use();
    char *text = NULL;
    size_t n;
    for (uint64_t at = 1; at <= 2; ++at) {
        tamis_mem_fail_at(at);
        assert_int_equal(tamis_tokenizer_decode(ds, ids, 5, false, &text, &n, NULL),
                         TAMIS_STATUS_NO_MEMORY);
        assert_null(text);
        assert_int_equal(in_use(), before);
    }
    tamis_mem_fail_at(0);
    assert_int_equal(tamis_tokenizer_decode(ds, ids, 5, false, &text, &n, NULL), TAMIS_STATUS_OK);
    tamis_text_free(text);
    tamis_tokenizer_close(&ds);
}

/* A refused push does not add the id: repeating it gives what would have come. */
static void test_stream(void **state)
{
    tamis_tokenizer *ds = open_golden("ds");
    const int32_t ids[] = {175, 256, 249, 225, 50}; /* U+1F600 byte by byte, then a character */
    const size_t before = in_use();
    char shown[64] = "";
    const char *text;
    size_t n;
    tamis_stream *stream = NULL;
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_stream_open(&stream, ds, false, NULL), TAMIS_STATUS_NO_MEMORY);
    assert_int_equal(tamis_stream_open(&stream, ds, false, NULL), TAMIS_STATUS_OK);
    for (uint64_t at = 1; at <= 2; ++at) {
        tamis_mem_fail_at(at);
        assert_int_equal(tamis_stream_push(stream, ids[0], &text, &n, NULL),
                         TAMIS_STATUS_NO_MEMORY);
    }
    tamis_mem_fail_at(0);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; ++i) {
        assert_int_equal(tamis_stream_push(stream, ids[i], &text, &n, NULL), TAMIS_STATUS_OK);
        strcat(shown, text);
    }
    assert_memory_equal(shown, "\xf0\x9f\x98\x80", 4);
    assert_int_equal(strlen(shown), 5);
    tamis_stream_close(&stream);
    assert_int_equal(in_use(), before);
    tamis_tokenizer_close(&ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test_setup_teardown(test_open_with_jansson, use_core_allocator,
                                        use_libc_allocator),
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
