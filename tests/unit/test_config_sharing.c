/* Which layers of V3.2 and GLM use an earlier selection: frequency, pattern, list. V4:
 * test_config.c. */
#include "config_v32_test.h"

/* Twelve layers of `good` with two members changed. */
static void expect_pattern(const char *good, const char *expected, const char *key,
                           const char *value, const char *key2, const char *value2)
{
    char *text = edited(good, "num_hidden_layers", "12", key, value, key2, value2, NULL);
    char pattern[TAMIS_MAX_LAYERS + 1];
    const tamis_model_config c = parse_ok(text, NULL);
    free(text);
    write_pattern(pattern, &c);
    assert_string_equal(pattern, expected);
}

static void test_glm_sharing(void **state)
{
    (void)state;
    static const char freq[] = "index_topk_freq", offset[] = "index_skip_topk_offset";
    char types[512];
    expect_pattern(glm5, "FFFSSSFSSSFS", freq, "4", offset, "3"); /* spec 7.16 */
    expect_pattern(glm5, "FFSSSFSSSFSS", freq, "4", offset, "2");
    expect_pattern(glm5, "FFSSSFSSSFSS", freq, "4", offset, "null"); /* 2 is the default */
    expect_pattern(glm5, "FSSSFSSSFSSS", freq, "4", offset, "1");
    expect_pattern(glm5, "FFSSFSSFSSFS", freq, "3", offset, "2");
    expect_pattern(glm5, "FFFFFFFFFFFF", freq, "4", offset, "12");
    expect_pattern(glm5, "FFFFFFFFFFFF", freq, "4", offset, "2147483647");
    expect_pattern(glm5, "FSSSSSSSSSSS", freq, "2147483647", offset, "1");
    /* A pattern or a list wins over the frequency, and may be longer than the layers. */
    expect_pattern(glm5, "FSSFSSFSSFSS", freq, "2", "index_topk_pattern", "\"FSSFSSFSSFSSFF\"");
    write_list(types, sizeof types, "FSFSSSSSSSSSS", 14, "full", "shared");
    expect_pattern(glm5, "FSFSSSSSSSSS", freq, "2", "indexer_types", types);
    expect_pattern(glm5, "FSFSSSSSSSSS", "index_topk_pattern", "\"FSFSSSSSSSSSF\"", "indexer_types",
                   types);
    /* ... also over an offset that alone would be refused. */
    expect_pattern(glm5, "FSFSSSSSSSSS", offset, "0", "indexer_types", types);
}

static void test_v32_sharing(void **state)
{
    (void)state;
    char *on = edited(v32, "use_index_cache", "true", NULL);
    expect_pattern(on, "FFFFFFFFFFFF", "index_topk_freq", "1", "index_topk_pattern", "null");
    expect_pattern(on, "FFSSSFSSSFSS", "index_topk_freq", "4", "index_topk_pattern", "null");
    expect_pattern(on, "FSSFSFFFFFFF", "index_topk_freq", "4", "index_topk_pattern", "\"FSSFS\"");
    /* These keys are GLM's. */
    expect_pattern(on, "FFSFSFSFSFSF", "index_topk_freq", "2", "index_skip_topk_offset", "3");
    expect_pattern(v32, "FFFFFFFFFFFF", "index_topk_freq", "4", "index_topk_pattern", "\"FS\"");
    free(on);
}

static void test_bad_sharing(void **state)
{
    (void)state;
    static const test_damage glm_cases[] = {
        BAD("index_topk_freq", "0", "index_topk_freq", " 0,"),
        BAD("index_topk_freq", "1.5", "index_topk_freq", "1.5"),
        BAD("index_skip_topk_offset", "-1", "index_skip_topk_offset", "-1"),
        BAD("index_skip_topk_offset", "0", "index_skip_topk_offset", " 0,"),
        BAD("index_topk_pattern", "\"SFFFFF\"", "index_topk_pattern", "\"SFFFFF\""),
        BAD("index_topk_pattern", "\"FFSSF\"", "index_topk_pattern", "at least 6 characters"),
        BAD("index_topk_pattern", "\"FFSSFX\"", "index_topk_pattern", "\"FFSSFX\""),
        BAD("index_topk_pattern", "\"\"", "index_topk_pattern", "\"\""),
        BAD("index_topk_pattern", "[\"F\"]", "index_topk_pattern", "a list of 1"),
        BAD("index_topk_pattern", "\"FFSSFF\"", "indexer_types[5]", "\"shared\""),
        BAD("indexer_types", "[\"full\"]", "indexer_types", "a list of 1"),
        BAD("indexer_types", "\"full\"", "indexer_types", "\"full\""),
        BAD("indexer_types.0", "\"shared\"", "indexer_types[0]", "\"shared\""),
        BAD("indexer_types.2", "1", "indexer_types[2]", " 1,"),
        BAD("indexer_types.2", "null", "indexer_types[2]", "null"),
        NO("indexer_types.2", "\"sparse\"", "indexer_types[2]", "\"sparse\""),
    };
    char *text = edited(glm5, "num_hidden_layers", "6", "index_topk_freq", "3", "indexer_types",
                        "[\"full\", \"full\", \"shared\", \"shared\", \"full\", \"shared\"]", NULL);
    for (size_t i = 0; i < sizeof glm_cases / sizeof *glm_cases; i++) {
        /* The offset counts only without a list. */
        const bool is_zero = strcmp(glm_cases[i].value, "0") == 0;
        char *good = is_zero ? edited(text, "indexer_types", NULL, NULL) : strdup(text);
        expect_all_refused(good, &glm_cases[i], 1);
        free(good);
    }
    free(text);
    static const test_damage v32_cases[] = {
        BAD("use_index_cache", "1", "use_index_cache", " 1,"),
        BAD("index_topk_freq", "0", "index_topk_freq", " 0,"),
        BAD("index_topk_pattern", "\"SF\"", "index_topk_pattern", "\"SF\""),
        BAD("index_topk_pattern", "\"\"", "index_topk_pattern", "\"\""),
    };
    EXPECT_ALL_REFUSED(v32, v32_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glm_sharing),
        cmocka_unit_test(test_v32_sharing),
        cmocka_unit_test(test_bad_sharing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
