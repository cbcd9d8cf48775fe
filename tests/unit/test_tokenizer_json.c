/* Damaged or foreign tokenizer.json and tokenizer_config.json: a status and a message that helps.
 */
#include "tokenizer_test.h"

#include "core/mem.h"
#include "support/rng.h"
#include "support/temp_dir.h"
#include "tokenizer/tokenizer_impl.h"

static size_t in_use(void)
{
    return tamis_mem_in_use(TAMIS_MEM_MISC) + tamis_mem_in_use(TAMIS_MEM_TOKENIZER);
}

static tamis_status open_bytes(const char *json, size_t bytes, const char *config,
                               tamis_tokenizer **out, tamis_error *err)
{
    *out = NULL;
    return tamis_tokenizer_open_text(out, json, bytes, "x/tokenizer.json", config,
                                     config != NULL ? strlen(config) : 0, "x/tokenizer_config.json",
                                     err);
}

/* A JSON text with its object at `path` ("model/merges/5") replaced; an empty value removes it. */
static char *changed_json(const char *text, size_t bytes, const char *path, const char *value)
{
    json_t *root = json_loadb(text, bytes, 0, NULL), *at = root;
    char copy[128], *name = copy, *slash;
    assert_non_null(root);
    snprintf(copy, sizeof copy, "%s", path);
    while ((slash = strchr(name, '/')) != NULL) {
        *slash = '\0';
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        assert_non_null(at);
        name = slash + 1;
    }
    if (value[0] == '\0') {
        assert_int_equal(json_object_del(at, name), 0);
    } else {
        json_t *replacement = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(replacement);
        const int rc = json_is_array(at) ? json_array_set_new(at, (size_t)atoi(name), replacement)
                                         : json_object_set_new(at, name, replacement);
        assert_int_equal(rc, 0);
    }
    char *changed = json_dumps(root, JSON_COMPACT);
    assert_non_null(changed);
    json_decref(root);
    return changed;
}

typedef struct change {
    const char *path, *value; /* "" removes */
    tamis_status status;
    const char *message; /* must be part of the error; NULL for OK */
} change;

#define FORMAT      TAMIS_STATUS_FORMAT
#define UNSUPPORTED TAMIS_STATUS_UNSUPPORTED
#define STEPS       "pre_tokenizer/pretokenizers"

static const change changes[] = {
    {"version", "\"2.0\"", UNSUPPORTED, "version is \"2.0\", allowed: \"1.0\""},
    {"version", "1", FORMAT, "version is 1"},
    {"version", "", TAMIS_STATUS_OK, NULL},
    {"truncation", "{\"max_length\": 5}", UNSUPPORTED, "truncation is an object, allowed: null"},
    {"padding", "7", FORMAT, "padding is 7"},
    {"model", "", FORMAT, "model is absent, allowed: an object"},
    {"model", "[]", FORMAT, "model is an array of 0"},
    {"model/type", "\"Unigram\"", UNSUPPORTED, "model.type is \"Unigram\", allowed: \"BPE\""},
    {"model/type", "3", FORMAT, "model.type is 3"},
    {"model/dropout", "0.1", UNSUPPORTED, "model.dropout is 0.1"},
    {"model/dropout", "0.0", TAMIS_STATUS_OK, NULL},
    {"model/dropout", "\"x\"", FORMAT, "model.dropout is \"x\""},
    {"model/unk_token", "\"<unk>\"", UNSUPPORTED, "model.unk_token is \"<unk>\""},
    {"model/unk_token", "{}", FORMAT, "model.unk_token is an object"},
    {"model/byte_fallback", "true", UNSUPPORTED, "model.byte_fallback is true"},
    {"model/byte_fallback", "", TAMIS_STATUS_OK, NULL},
    {"model/continuing_subword_prefix", "\"##\"", UNSUPPORTED, "continuing_subword_prefix"},
    {"model/end_of_word_suffix", "\"</w>\"", UNSUPPORTED, "end_of_word_suffix is \"</w>\""},
    {"model/end_of_word_suffix", "\"\"", TAMIS_STATUS_OK, NULL},
    {"model/fuse_unk", "1", FORMAT, "model.fuse_unk is 1, allowed: true, false"},
    {"model/ignore_merges", "null", FORMAT, "model.ignore_merges is null"},
    {"model/vocab", "[1]", FORMAT, "model.vocab is an array of 1"},
    {"model/vocab/a", "\"7\"", FORMAT, "model.vocab[\"a\"] is \"7\""},
    {"model/vocab/a", "-1", FORMAT, "model.vocab[\"a\"] is -1, allowed: an integer 0..2097151"},
    {"model/vocab/a", "2097152", FORMAT, "is 2097152"},
    {"model/vocab/a", "1.5", FORMAT, "is 1.5"},
    {"model/vocab/a", "0", FORMAT, "allowed: an id that no other token has"},
    {"model/vocab/!", "", FORMAT, "no token for byte 0x21"},
    {"model/vocab/new", "9", FORMAT, "model.vocab[\"new\"] is 9"},
    {"model/vocab/new", "5000", TAMIS_STATUS_OK, NULL},
    {"model/merges", "{}", FORMAT, "model.merges is an object, allowed: an array"},
    {"model/merges/3", "\"ab\"", FORMAT, "model.merges[3] is \"ab\""},
    {"model/merges/3", "\"a b c\"", FORMAT, "model.merges[3]"},
    {"model/merges/3", "[\"a\"]", FORMAT, "model.merges[3] is an array of 1"},
    {"model/merges/3", "[\"a\", 1]", FORMAT, "model.merges[3] is an array of 2"},
    {"model/merges/3", "null", FORMAT, "model.merges[3] is null"},
    {"model/merges/3", "\"! !!!\"", FORMAT, "allowed: two tokens of model.vocab"},
    {"model/merges/3", "\"! \"", FORMAT, "allowed: two tokens of model.vocab"},
    {"model/merges/3", "\"! Z\"", FORMAT, "allowed: a pair whose union is in model.vocab"},
    {"added_tokens", "", TAMIS_STATUS_OK, NULL},
    {"added_tokens", "null", FORMAT, "added_tokens is null, allowed: an array"},
    {"added_tokens/1", "\"x\"", FORMAT, "added_tokens[1] is \"x\", allowed: an object"},
    {"added_tokens/1/id", "\"5\"", FORMAT, "added_tokens[1].id is \"5\""},
    {"added_tokens/1/id", "2960", FORMAT, "added_tokens[1].id is 2960"},
    {"added_tokens/1/id", "5", FORMAT, "allowed: an id that no other token has"},
    {"added_tokens/1/id", "99999999", FORMAT, "added_tokens[1].id is 99999999"},
    {"added_tokens/1/content", "\"\"", FORMAT, "added_tokens[1].content is \"\""},
    {"added_tokens/1/content", "17", FORMAT, "added_tokens[1].content is 17"},
    {"added_tokens/1/content", "\"[gMASK]\"", FORMAT, "allowed: a content that no other one has"},
    {"added_tokens/1/content", "\"!\"", FORMAT, "allowed: the id model.vocab gives this content"},
    {"added_tokens/1/special", "", FORMAT, "added_tokens[1].special is absent"},
    {"added_tokens/1/lstrip", "0", FORMAT, "added_tokens[1].lstrip is 0, allowed: true, false"},
    {"added_tokens/1/normalized", "null", FORMAT, "added_tokens[1].normalized is null"},
    {"normalizer", "{\"type\": \"Lowercase\"}", UNSUPPORTED, "normalizer is \"Lowercase\""},
    {"normalizer", "{\"type\": \"NFC\"}", TAMIS_STATUS_OK, NULL},
    {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}",
     TAMIS_STATUS_OK, NULL},
    {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}]}", UNSUPPORTED,
     "normalizer.normalizers[0] is \"NFKC\""},
    {"normalizer", "{\"type\": \"Sequence\"}", FORMAT, "normalizer.normalizers is absent"},
    {"normalizer", "{}", FORMAT, "normalizer.type is absent, allowed: a string"},
    {"normalizer", "\"NFC\"", FORMAT, "normalizer is \"NFC\", allowed: an object"},
    {"pre_tokenizer", "null", UNSUPPORTED, "pre_tokenizer is null"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\"}", UNSUPPORTED, "pre_tokenizer is \"Metaspace\""},
    {STEPS, "[]", FORMAT, "pre_tokenizer.pretokenizers is an array of 0"},
    {STEPS, "{}", FORMAT, "pre_tokenizer.pretokenizers is an object"},
    {STEPS "/0/type", "\"Digits\"", UNSUPPORTED, "pretokenizers[0] is \"Digits\""},
    {STEPS "/1/type", "\"Split\"", UNSUPPORTED, "allowed: \"ByteLevel\" as the last step"},
    {STEPS "/1/add_prefix_space", "true", UNSUPPORTED, "pretokenizers[1].add_prefix_space is true"},
    {STEPS "/1/use_regex", "", UNSUPPORTED, "pretokenizers[1].use_regex is absent, allowed: false"},
    {STEPS "/1/use_regex", "5", FORMAT, "pretokenizers[1].use_regex is 5"},
    {STEPS "/0/behavior", "\"Removed\"", UNSUPPORTED, "pretokenizers[0].behavior is \"Removed\""},
    {STEPS "/0/behavior", "[]", FORMAT, "pretokenizers[0].behavior is an array of 0"},
    {STEPS "/0/invert", "true", UNSUPPORTED, "pretokenizers[0].invert is true"},
    {STEPS "/0/pattern", "{\"String\": \"a\"}", UNSUPPORTED, "pretokenizers[0].pattern"},
    {STEPS "/0/pattern", "\"a\"", FORMAT, "pretokenizers[0].pattern is \"a\""},
    {STEPS "/0/pattern/Regex", "1", FORMAT, "pretokenizers[0].pattern is 1"},
    {STEPS "/0/pattern/Regex", "\"(\"", UNSUPPORTED, "does not compile: missing closing"},
    {STEPS "/0/pattern/Regex", "\"\\\\bx\"", UNSUPPORTED,
     "pretokenizers[0]: the split pattern has \\b"},
    {STEPS "/0/pattern/Regex", "\"[a&&b]\"", UNSUPPORTED, "has && inside [...]"},
    {STEPS "/0/pattern/Regex", "\"\\\\p{Han}\"", UNSUPPORTED, "no general category"},
    {STEPS "/0/pattern/Regex", "\"a(?i)b\"", UNSUPPORTED, "has a (?...) of another kind"},
    {STEPS "/0/pattern/Regex", "\"(?:(?:(?:a{99}){99}){99}){99}\"", UNSUPPORTED, "too large"},
    {"decoder", "null", UNSUPPORTED, "decoder is null, allowed: \"ByteLevel\""},
    {"decoder", "{\"type\": \"WordPiece\"}", UNSUPPORTED, "decoder is \"WordPiece\""},
    {"post_processor", "null", TAMIS_STATUS_OK, NULL},
    {"post_processor", "{\"type\": \"TemplateProcessing\"}", UNSUPPORTED,
     "post_processor is \"TemplateProcessing\", allowed: null or \"ByteLevel\""},
};

static void test_changes(void **state)
{
    size_t bytes;
    char *text = read_test_file(GOLDEN_DIR "glm/tokenizer.json", &bytes);
    const size_t before = in_use();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; ++i) {
        const change *c = &changes[i];
        char *changed = changed_json(text, bytes, c->path, c->value);
        tamis_error err = {0};
        tamis_tokenizer *tokenizer;
        const tamis_status st = open_bytes(changed, strlen(changed), NULL, &tokenizer, &err);
        if (st != c->status)
            fail_msg("%s = %s gives %s: %s", c->path, c->value, tamis_status_name(st), err.text);
        if (c->message != NULL &&
            (strstr(err.text, c->message) == NULL || strstr(err.text, "x/tokenizer.json") == NULL ||
             strstr(err.text, "allowed: ") == NULL))
            fail_msg("%s = %s says %s", c->path, c->value, err.text);
        assert_true((tokenizer != NULL) == (st == TAMIS_STATUS_OK));
        tamis_tokenizer_close(&tokenizer);
        free(changed);
    }
    assert_int_equal(in_use(), before);
    free(text);
}

static void check_text_damage(const char *json, const char *message)
{
    tamis_error err = {0};
    tamis_tokenizer *tokenizer;
    assert_int_equal(open_bytes(json, strlen(json), NULL, &tokenizer, &err), TAMIS_STATUS_FORMAT);
    if (strstr(err.text, message) == NULL)
        fail_msg("\"%.40s\" says %s", json, err.text);
}

static void test_damaged_text(void **state)
{
    check_text_damage("", "x/tokenizer.json: line 1");
    check_text_damage("[]", "the document is an array of 0, allowed: an object");
    check_text_damage("{\"a\": 1, \"a\": 2}", "duplicate object key");
    check_text_damage("{} {}", "end of file expected");
    check_text_damage("{\"a\": \"\xff\"}", "unable to decode byte 0xff");
    char *deep = malloc(1000001);
    memset(deep, '[', 1000000);
    deep[1000000] = '\0';
    check_text_damage(deep, "maximum parsing depth");
    free(deep);
}

static void test_truncated(void **state)
{
    size_t bytes;
    char *text = read_test_file(GOLDEN_DIR "flags/tokenizer.json", &bytes);
    const size_t before = in_use();
    while (text[bytes - 1] == '\n')
        --bytes;
    for (size_t n = 0; n < bytes; n += n < 400 ? 1 : 37) {
        tamis_error err = {0};
        tamis_tokenizer *tokenizer;
        assert_int_equal(open_bytes(text, n, NULL, &tokenizer, &err), TAMIS_STATUS_FORMAT);
        assert_non_null(strstr(err.text, "x/tokenizer.json: line 1"));
    }
    assert_int_equal(in_use(), before);
    free(text);
}

/* A changed byte gives a status, or a tokenizer that works. */
static void check_flipped(const char *text, size_t bytes, int *n_open)
{
    tamis_error err = {0};
    tamis_tokenizer *tokenizer;
    const tamis_status st = open_bytes(text, bytes, NULL, &tokenizer, &err);
    if (st != TAMIS_STATUS_OK) {
        assert_true(st == TAMIS_STATUS_FORMAT || st == TAMIS_STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "allowed: "));
        return;
    }
    static const char sample[] = "attention word  1234\n vi\xe1\xba\xbf <a><b>ab< \xff";
    int32_t *ids;
    size_t n_ids, n_text;
    char *decoded;
    ++*n_open;
    assert_int_equal(tamis_tokenizer_encode(tokenizer, sample, sizeof sample - 1,
                                            TAMIS_ENCODE_ADDED_TOKENS, &ids, &n_ids, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(tamis_tokenizer_decode(tokenizer, ids, n_ids, true, &decoded, &n_text, NULL),
                     TAMIS_STATUS_OK);
    tamis_ids_free(ids);
    tamis_text_free(decoded);
    tamis_tokenizer_close(&tokenizer);
}

static void test_flipped_bytes(void **state)
{
    test_rng rng = test_rng_start("flipped bytes", 21);
    size_t bytes;
    int n_open = 0;
    char *text = read_test_file(GOLDEN_DIR "flags/tokenizer.json", &bytes);
    const size_t before = in_use();
    for (int round = 0; round < 1500; ++round) {
        const size_t at = (size_t)test_rng_int(&rng, 0, (int64_t)bytes - 1);
        const char old = text[at];
        text[at] = round % 2 ? (char)(old ^ 1 << test_rng_int(&rng, 0, 7)) /* one bit */
                             : "0129\"{}[],:\\ax"[test_rng_int(&rng, 0, 13)];
        check_flipped(text, bytes, &n_open);
        text[at] = old;
    }
    assert_int_equal(in_use(), before);
    print_message("%d of 1500 still open\n", n_open);
    free(text);
}

/* Encode n bytes of 'a' with the glm tokenizer and this split pattern. */
static tamis_status encode_by_pattern(const char *pattern, size_t n, size_t *n_ids,
                                      tamis_error *err)
{
    size_t bytes;
    char *text = read_test_file(GOLDEN_DIR "glm/tokenizer.json", &bytes), *sample = malloc(n);
    char *changed = changed_json(text, bytes, STEPS "/0/pattern/Regex", pattern);
    tamis_tokenizer *tokenizer;
    int32_t *ids = NULL;
    memset(sample, 'a', n);
    assert_int_equal(open_bytes(changed, strlen(changed), NULL, &tokenizer, err), TAMIS_STATUS_OK);
    const tamis_status st =
        tamis_tokenizer_encode(tokenizer, sample, n, TAMIS_ENCODE_PLAIN, &ids, n_ids, err);
    assert_true((ids != NULL) == (st == TAMIS_STATUS_OK));
    tamis_ids_free(ids);
    tamis_tokenizer_close(&tokenizer);
    free(changed);
    free(sample);
    free(text);
    return st;
}

/* A pattern that backtracks exponentially ends with a status, not never. */
static void test_hostile_pattern(void **state)
{
    tamis_error err = {0};
    size_t n_ids = 0;
    assert_int_equal(encode_by_pattern("\"(?:a|aa|a{1,9})+[bc]\"", 60, &n_ids, &err),
                     TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "split pattern"));
}

/* One that remembers every step outgrows the JIT's stack, then the heap it may have. */
static void test_greedy_pattern(void **state)
{
    static const char pattern[] = "\"(?:a(?=a|$)|b)+\"";
    tamis_error err = {0};
    size_t n_ids = 0;
    assert_int_equal(encode_by_pattern(pattern, 50000, &n_ids, &err), TAMIS_STATUS_OK);
    assert_int_equal(n_ids, 50000); /* the vocabulary merges no two a */
    assert_int_equal(encode_by_pattern(pattern, 3000000, &n_ids, &err), TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "split pattern"));
}

static void test_config(void **state)
{
    static const struct {
        const char *config;
        tamis_status status;
        int32_t bos, eos;
        bool add_bos;
        const char *message;
    } cases[] = {
        {"{}", TAMIS_STATUS_OK, -1, -1, false, NULL},
        {"{\"bos_token\": \"<sop>\", \"eos_token\": null}", TAMIS_STATUS_OK, 2964, -1, false, NULL},
        {"{\"eos_token\": {\"__type\": \"AddedToken\", \"content\": \"<|user|>\"}, "
         "\"add_bos_token\": true}",
         TAMIS_STATUS_OK, -1, 2967, true, NULL},
        {"{\"bos_token\": \"!\", \"add_bos_token\": null}", TAMIS_STATUS_OK, 0, -1, false, NULL},
        {"{\"bos_token\": 5}", FORMAT, 0, 0, false, "bos_token is 5"},
        {"{\"bos_token\": {\"text\": \"a\"}}", FORMAT, 0, 0, false, "bos_token is absent"},
        {"{\"eos_token\": \"<nope>\"}", FORMAT, 0, 0, false,
         "eos_token is \"<nope>\", allowed: a token of tokenizer.json"},
        {"{\"add_bos_token\": \"yes\"}", FORMAT, 0, 0, false, "add_bos_token is \"yes\""},
        {"7", FORMAT, 0, 0, false, "line 1"},
        {"[]", FORMAT, 0, 0, false, "the document is an array of 0"},
    };
    size_t bytes;
    char *text = read_test_file(GOLDEN_DIR "glm/tokenizer.json", &bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        tamis_error err = {0};
        tamis_tokenizer *tokenizer;
        const tamis_status st = open_bytes(text, bytes, cases[i].config, &tokenizer, &err);
        if (st != cases[i].status)
            fail_msg("%s gives %s: %s", cases[i].config, tamis_status_name(st), err.text);
        if (st != TAMIS_STATUS_OK) {
            assert_non_null(strstr(err.text, "x/tokenizer_config.json"));
            assert_non_null(strstr(err.text, cases[i].message));
            continue;
        }
        const tamis_tokenizer_info info = tamis_tokenizer_get_info(tokenizer);
        assert_int_equal(info.bos_id, cases[i].bos);
        assert_int_equal(info.eos_id, cases[i].eos);
        assert_int_equal(info.add_bos_token, cases[i].add_bos);
        tamis_tokenizer_close(&tokenizer);
    }
    free(text);
}

static void test_folder(void **state)
{
    char *dir = test_temp_dir_make();
    tamis_error err = {0};
    tamis_tokenizer *tokenizer = NULL;
    assert_int_equal(tamis_tokenizer_open(&tokenizer, dir, &err), TAMIS_STATUS_IO);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    test_file_copy(GOLDEN_DIR "flags", dir, "tokenizer.json");
    assert_int_equal(tamis_tokenizer_open(&tokenizer, dir, &err), TAMIS_STATUS_OK);
    assert_int_equal(tamis_tokenizer_get_info(tokenizer).bos_id, -1);
    tamis_tokenizer_close(&tokenizer);
    test_file_write_text(dir, "tokenizer_config.json", "{\"bos_token\": 1}");
    assert_int_equal(tamis_tokenizer_open(&tokenizer, dir, &err), TAMIS_STATUS_FORMAT);
    assert_non_null(strstr(err.text, dir));
    assert_non_null(strstr(err.text, "tokenizer_config.json: bos_token is 1"));
    test_file_write_text(dir, "tokenizer.json", "");
    assert_int_equal(tamis_tokenizer_open(&tokenizer, dir, &err), TAMIS_STATUS_FORMAT);
    assert_null(tokenizer);
    assert_int_equal(tamis_tokenizer_open(NULL, dir, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_tokenizer_open(&tokenizer, NULL, NULL), TAMIS_STATUS_INVALID);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes),         cmocka_unit_test(test_damaged_text),
        cmocka_unit_test(test_truncated),       cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_hostile_pattern), cmocka_unit_test(test_greedy_pattern),
        cmocka_unit_test(test_config),          cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
