/*
 * What the bitwise property tests share: the golden folders of both attention back ends, both cache
 * types, and prompts that cross the borders that matter (rows of ratio 128 close, more rows are
 * visible than topk).
 */
#ifndef TAMIS_TEST_PROPERTY_H
#define TAMIS_TEST_PROPERTY_H

#include "support/engine_run.h"
#include "support/golden.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers look for memory faults and races: one folder of each back end, one cache type each,
 * runs through all of their code. */
static const char *const test_folders[] = {
    "tests/golden/v4-flash-fp8",  "tests/golden/glm52-fp8",   "tests/golden/v32-fp8",
    "tests/golden/v4-pro-fp8",    "tests/golden/glm5-bf16",   "tests/golden/v32-bf16",
    "tests/golden/v4-flash-bf16", "tests/golden/v4-official",
};
#define TEST_N_FOLDERS (TEST_IS_SANITIZED ? 2 : (int)(sizeof test_folders / sizeof *test_folders))
static const tamis_dtype test_kv_dtypes[] = {TAMIS_DTYPE_F32, TAMIS_DTYPE_BF16};
#define TEST_N_KV_DTYPES 2

/* V4 keeps rings, which limit how far a sequence may be rolled back; the others keep every row. */
static inline bool test_has_rings(const test_engine *engine)
{
    return strcmp(engine->info->family, "deepseek_v4") == 0;
}

/* The golden prompt of a folder, to be freed by the caller. */
static inline int32_t *test_prompt(const char *dir)
{
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    test_golden_close(golden);
    return ids;
}

/* Other ids of the same vocabulary: every id moved by `shift`. */
static inline int32_t *test_shifted(const int32_t *ids, int32_t n, int32_t shift, int32_t vocab)
{
    int32_t *out = malloc((size_t)n * sizeof *out + 1);
    if (out == NULL)
        abort();
    for (int32_t i = 0; i < n; i++)
        out[i] = (ids[i] + shift) % vocab;
    return out;
}

/* Runs body(dir, dtype) for every folder and cache type; under sanitizers one type per folder. */
static inline void test_every_folder(void (*body)(const char *dir, tamis_dtype dtype))
{
    for (int i = 0; i < TEST_N_FOLDERS; i++)
        for (int d = 0; d < TEST_N_KV_DTYPES; d++)
            if (!TEST_IS_SANITIZED || i == d)
                body(test_folders[i], test_kv_dtypes[d]);
}

/* "dir, BF16 caches, what 7": where a comparison failed; valid until the next call. */
static inline const char *test_where(const char *dir, tamis_dtype dtype, const char *what,
                                     int32_t value)
{
    static char text[256];
    snprintf(text, sizeof text, "%s, %s caches, %s %d", dir, tamis_dtype_name(dtype), what, value);
    return text;
}

#endif
