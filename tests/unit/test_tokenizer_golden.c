/* Every vector and stream of tests/golden/tokenizer, made with the reference implementation. */
#include "tokenizer_test.h"

typedef struct golden_run {
    const char *name;
    tamis_tokenizer *tokenizer;
    size_t n_plain, n_newer;
    size_t n_newer_equal;
} golden_run;

static bool encodes_to(const golden_run *run, const json_t *text, tamis_encode_mode mode,
                       const json_t *ids)
{
    int32_t *got = NULL;
    size_t n_got, n;
    assert_int_equal(tamis_tokenizer_encode(run->tokenizer, json_string_value(text),
                                            json_string_length(text), mode, &got, &n_got, NULL),
                     TAMIS_STATUS_OK);
    int32_t *want = ids_of(ids, &n);
    const bool equal = n == n_got && (n == 0 || memcmp(want, got, n * sizeof *got) == 0);
    free(want);
    tamis_ids_free(got);
    return equal;
}

static void check_decode(const golden_run *run, const json_t *ids, bool skip_special,
                         const json_t *text, size_t line_no)
{
    size_t n, bytes;
    int32_t *list = ids_of(ids, &n);
    char *got = NULL;
    assert_int_equal(
        tamis_tokenizer_decode(run->tokenizer, list, n, skip_special, &got, &bytes, NULL),
        TAMIS_STATUS_OK);
    if (bytes != json_string_length(text) || memcmp(got, json_string_value(text), bytes) != 0)
        fail_msg("%s vector %zu decodes to \"%s\"", run->name, line_no, got);
    tamis_text_free(got);
    free(list);
}

static void check_vector(const json_t *line, size_t line_no, void *user)
{
    golden_run *run = user;
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *plain = json_object_get(line, "plain_ids");
    const json_t *decoded = json_object_get(line, "decoded");
    const json_t *skipped = json_object_get(line, "decoded_skip_special");
    decoded = decoded != NULL ? decoded : text;
    run->n_plain += plain != NULL;
    const bool same = encodes_to(run, text, TAMIS_ENCODE_ADDED_TOKENS, ids);
    const bool same_plain = encodes_to(run, text, TAMIS_ENCODE_PLAIN, plain != NULL ? plain : ids);
    if (json_object_get(line, "needs_unicode") != NULL) {
        run->n_newer++;
        run->n_newer_equal += same && same_plain;
    } else if (!same || !same_plain) {
        fail_msg("%s vector %zu: %s ids differ for \"%s\"", run->name, line_no, same ? "plain" : "",
                 json_string_value(text));
    }
    check_decode(run, ids, false, decoded, line_no);
    check_decode(run, ids, true, skipped != NULL ? skipped : decoded, line_no);
}

static void check_vectors(const char *name, size_t n_vectors)
{
    char path[128];
    golden_run run = {.name = name, .tokenizer = open_golden(name)};
    snprintf(path, sizeof path, GOLDEN_DIR "%s/vectors.jsonl", name);
    assert_int_equal(for_each_json_line(path, check_vector, &run), n_vectors);
    print_message("%s: %zu vectors equal, %zu with plain_ids; %zu of %zu with characters newer "
                  "than Unicode 14 equal\n",
                  name, n_vectors - run.n_newer, run.n_plain, run.n_newer_equal, run.n_newer);
    tamis_tokenizer_close(&run.tokenizer);
}

static void check_delta(const golden_run *run, const json_t *want, const char *text, size_t bytes,
                        size_t line_no)
{
    assert_int_equal(text[bytes], 0);
    if (bytes != json_string_length(want) || memcmp(text, json_string_value(want), bytes) != 0)
        fail_msg("%s stream %zu sends \"%s\" for \"%s\"", run->name, line_no, text,
                 json_string_value(want));
}

static void check_stream(const json_t *line, size_t line_no, void *user)
{
    golden_run *run = user;
    const json_t *deltas = json_object_get(line, "deltas");
    size_t n, bytes;
    int32_t *ids = ids_of(json_object_get(line, "ids"), &n);
    const char *text;
    tamis_stream *stream = NULL;
    assert_int_equal(n, json_array_size(deltas));
    assert_int_equal(tamis_stream_open(&stream, run->tokenizer,
                                       json_is_true(json_object_get(line, "skip_special")), NULL),
                     TAMIS_STATUS_OK);
    for (size_t i = 0; i < n; ++i) {
        assert_int_equal(tamis_stream_push(stream, ids[i], &text, &bytes, NULL), TAMIS_STATUS_OK);
        check_delta(run, json_array_get(deltas, i), text, bytes, line_no);
    }
    tamis_stream_flush(stream, &text, &bytes);
    check_delta(run, json_object_get(line, "flush"), text, bytes, line_no);
    tamis_stream_flush(stream, &text, &bytes);
    assert_int_equal(bytes, 0);
    tamis_stream_close(&stream);
    free(ids);
}

static void check_streams(const char *name, size_t n_streams)
{
    char path[128];
    golden_run run = {.name = name, .tokenizer = open_golden(name)};
    snprintf(path, sizeof path, GOLDEN_DIR "%s/stream.jsonl", name);
    assert_int_equal(for_each_json_line(path, check_stream, &run), n_streams);
    tamis_tokenizer_close(&run.tokenizer);
}

static void test_ds_vectors(void **state)
{
    check_vectors("ds", 1048);
}
static void test_glm_vectors(void **state)
{
    check_vectors("glm", 1078);
}
static void test_flags_vectors(void **state)
{
    check_vectors("flags", 292);
}
static void test_ds_streams(void **state)
{
    check_streams("ds", 261);
}
static void test_glm_streams(void **state)
{
    check_streams("glm", 277);
}
static void test_flags_streams(void **state)
{
    check_streams("flags", 244);
}

static void test_info(void **state)
{
    tamis_tokenizer *ds = open_golden("ds"), *glm = open_golden("glm");
    const tamis_tokenizer_info info = tamis_tokenizer_get_info(ds);
    assert_int_equal(info.num_ids, 2973);
    assert_int_equal(info.bos_id, 0);
    assert_int_equal(info.eos_id, 1);
    assert_false(info.add_bos_token);
    assert_true(info.memory_bytes > 100000 && info.memory_bytes < 4000000);
    assert_int_equal(tamis_tokenizer_get_info(glm).bos_id, -1);
    assert_int_equal(tamis_tokenizer_get_info(glm).eos_id, 2960);
    assert_int_equal(tamis_tokenizer_find(glm, "[gMASK]", 7), 2962);
    assert_int_equal(tamis_tokenizer_find(glm, "!", 1), 0);
    assert_true(tamis_tokenizer_find(glm, " the", 4) > 255);
    assert_int_equal(tamis_tokenizer_find(glm, "no such token", 13), -1);
    assert_int_equal(tamis_tokenizer_find(glm, "", 0), -1);
    tamis_tokenizer_close(&ds);
    tamis_tokenizer_close(&glm);
    assert_null(ds);
    tamis_tokenizer_close(&ds);
    tamis_tokenizer_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),          cmocka_unit_test(test_ds_vectors),
        cmocka_unit_test(test_glm_vectors),   cmocka_unit_test(test_flags_vectors),
        cmocka_unit_test(test_ds_streams),    cmocka_unit_test(test_glm_streams),
        cmocka_unit_test(test_flags_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
