/* What the tokenizer tests share: golden folders, JSON lines, ids out of JSON. */
#ifndef TAMIS_TESTS_TOKENIZER_TEST_H
#define TAMIS_TESTS_TOKENIZER_TEST_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tamis/tokenizer.h"

#define GOLDEN_DIR "tests/golden/tokenizer/"

static inline tamis_tokenizer *open_golden(const char *name)
{
    char dir[128];
    tamis_tokenizer *tokenizer = NULL;
    tamis_error err = {0};
    snprintf(dir, sizeof dir, GOLDEN_DIR "%s", name);
    if (tamis_tokenizer_open(&tokenizer, dir, &err) != TAMIS_STATUS_OK)
        fail_msg("%s: %s", dir, err.text);
    return tokenizer;
}

/* A whole file, NUL-terminated; free() it. */
static inline char *read_test_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *bytes, f), *bytes);
    text[*bytes] = '\0';
    fclose(f);
    return text;
}

typedef void (*json_line_fn)(const json_t *line, size_t line_no, void *user);

/* Calls fn for each line of a .jsonl file and returns how many there were. */
static inline size_t for_each_json_line(const char *path, json_line_fn fn, void *user)
{
    size_t bytes, n = 0;
    char *text = read_test_file(path, &bytes);
    for (char *at = text; at < text + bytes;) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        json_error_t error;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &error);
        if (line == NULL)
            fail_msg("%s line %zu: %s", path, n + 1, error.text);
        fn(line, ++n, user);
        json_decref(line);
        at = end + 1;
    }
    free(text);
    return n;
}

/* Ids of a JSON array; free() them. */
static inline int32_t *ids_of(const json_t *array, size_t *n)
{
    *n = json_array_size(array);
    int32_t *ids = malloc((*n + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; ++i)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

#endif
