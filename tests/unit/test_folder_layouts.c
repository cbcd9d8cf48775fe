/*
 * Folders laid out in ways a vendor may choose give the same bits: headers of any length (tensor
 * data may start at any byte), and the portable level, which reads the same unaligned data.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/golden.h"
#include "support/make_safetensors.h"
#include "support/temp_dir.h"

enum { N_IDS = 140 }; /* a row of ratio 128 closes */

static float *logits_of_folder(const char *dir, const int32_t *ids)
{
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_BF16, N_IDS);
    test_engine engine = test_engine_open(dir, &params);
    float *logits = test_logits_of(&engine, ids, N_IDS, 37);
    test_engine_close(&engine);
    return logits;
}

/* The folder with `residue` as header length modulo 8 in every model file. */
static char *padded_copy(const char *dir, const char *const *files, size_t residue)
{
    char *copy = test_temp_dir_make();
    test_dir_copy_files(dir, copy);
    for (int i = 0; files[i] != NULL; i++)
        test_safetensors_copy_padded(dir, copy, files[i], residue);
    return copy;
}

static void check_residues(const char *dir, const char *const *files, int32_t vocab_size)
{
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int32_t *ids = test_golden_ids(golden, "ids", NULL);
    float *expected = logits_of_folder(dir, ids);
    const size_t residues[] = {1, 3, 6};
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++) {
        char *copy = padded_copy(dir, files, residues[i]);
        assert_int_equal(
            tamis_cpu_level_set(i == 0 ? TAMIS_CPU_PORTABLE : tamis_cpu_level_available()),
            TAMIS_STATUS_OK);
        float *seen = logits_of_folder(copy, ids);
        test_assert_same_bits(seen, expected, N_IDS, vocab_size, "odd header length");
        free(seen);
        test_temp_dir_remove(copy);
    }
    free(expected);
    free(ids);
    test_golden_close(golden);
}

static void test_odd_header_one_file(void **state)
{
    (void)state;
    const char *const files[] = {"model.safetensors", NULL};
    check_residues("tests/golden/v4-pro-fp8", files, 180);
    check_residues("tests/golden/v4-flash-bf16", files, 240);
    check_residues("tests/golden/glm5-bf16", files, 256);
    check_residues("tests/golden/glm52-fp8", files, 192);
}

static void test_odd_header_shards(void **state)
{
    (void)state;
    const char *const files[] = {"model-00001-of-00003.safetensors",
                                 "model-00003-of-00003.safetensors", NULL};
    check_residues("tests/golden/v4-flash-fp8", files, 240);
    const char *const v32[] = {"model-00001-of-00002.safetensors",
                               "model-00002-of-00002.safetensors", NULL};
    check_residues("tests/golden/v32-fp8", v32, 176);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_header_one_file),
        cmocka_unit_test(test_odd_header_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
