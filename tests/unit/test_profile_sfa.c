/*
 * Profiles official and ascend on the golden folders of V3.2 and GLM: every stage of every layer,
 * MTP block included, against a slow reference that rounds where docs/numerics-profiles.md says
 * (profile_ref_sfa.h). v32-fp8 has an indexer of 40 channels, which no Hadamard rotation fits:
 * refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden_compare.h"
#include "support/mtp_run.h"
#include "support/profile_ref_sfa.h"
#include "support/sanitized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tamis_model *open_model(const char *dir, tamis_profile profile)
{
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    tamis_error err;
    params.profile = profile;
    test_must(tamis_model_open_with(&model, dir, &params, &err), &err, dir);
    return model;
}

/* The first 1 / share of a folder's prompt in one step. A sanitizer sees less. */
static void check_folder(const char *dir, tamis_profile profile, tamis_dtype kv_cache_dtype,
                         int32_t share)
{
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int64_t n_ids;
    int32_t *ids = test_golden_ids(golden, "ids", &n_ids);
    const int32_t n = TEST_IS_SANITIZED ? 60 : (int32_t)n_ids / share - 1;
    test_engine model = {.model = open_model(dir, profile), .owns_model = true};
    tamis_session_params params = test_mtp_params(kv_cache_dtype, n, 3);
    params.mtp = strcmp(tamis_model_get_info(model.model)->drafter, "mtp") == 0;
    test_engine engine = test_engine_share(&model, &params);
    assert_string_equal(engine.info->profile, tamis_profile_name(profile));
    profile_case c = profile_case_open(dir, profile, kv_cache_dtype);
    profile_check_prompt(&c, &engine, ids, n);
    profile_case_close(&c);
    test_engine_close(&engine);
    test_engine_close(&model);
    free(ids);
    test_golden_close(golden);
}

/* Ascend's two cache types differ in their rows and in nothing else. */
static void check_profiles(const char *dir)
{
    check_folder(dir, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3, 1);
    check_folder(dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16, 1);
    check_folder(dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, 2);
}

static void v32_bf16(void **state)
{
    (void)state;
    check_profiles("tests/golden/v32-bf16");
}
static void glm5_bf16(void **state)
{
    (void)state;
    check_profiles("tests/golden/glm5-bf16");
}
static void glm52_fp8(void **state)
{
    (void)state;
    check_profiles("tests/golden/glm52-fp8");
}

/* ---------------------------------------------------------------- refusals */

static void expect_refused(const char *dir, tamis_profile profile, tamis_dtype kv_cache_dtype,
                           const char *const *parts, int n_parts)
{
    const tamis_session_params params = test_session_params(kv_cache_dtype, 64);
    tamis_model *model = open_model(dir, profile);
    tamis_session *session = NULL;
    tamis_memory_plan plan;
    tamis_error err;
    assert_int_equal(tamis_session_plan_memory(model, &params, &plan, &err),
                     TAMIS_STATUS_UNSUPPORTED);
    assert_int_equal(tamis_session_open(&session, model, &params, &err), TAMIS_STATUS_UNSUPPORTED);
    assert_null(session);
    for (int i = 0; i < n_parts; i++)
        if (strstr(err.text, parts[i]) == NULL)
            fail_msg("message \"%s\" does not name \"%s\"", err.text, parts[i]);
    tamis_model_close(&model);
}

static void odd_index_head_dim_is_refused(void **state)
{
    (void)state;
    const char *dir = "tests/golden/v32-fp8";
    expect_refused(dir, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO,
                   (const char *[]){"index_head_dim is 40", "official"}, 2);
    expect_refused(dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO,
                   (const char *[]){"index_head_dim is 40", "ascend"}, 2);
}

static void other_cache_types_are_refused(void **state)
{
    (void)state;
    const char *dir = "tests/golden/glm5-bf16";
    expect_refused(dir, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_BF16,
                   (const char *[]){"kv_cache_dtype is BF16", "F8_E4M3", "official"}, 3);
    expect_refused(dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3,
                   (const char *[]){"kv_cache_dtype is F8_E4M3", "BF16", "I8", "ascend"}, 4);
    expect_refused(dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F32,
                   (const char *[]){"kv_cache_dtype is F32", "ascend"}, 2);
    expect_refused(dir, TAMIS_PROFILE_EXACT, TAMIS_DTYPE_I8,
                   (const char *[]){"kv_cache_dtype is I8", "exact"}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v32_bf16),
        cmocka_unit_test(glm5_bf16),
        cmocka_unit_test(glm52_fp8),
        cmocka_unit_test(odd_index_head_dim_is_refused),
        cmocka_unit_test(other_cache_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
