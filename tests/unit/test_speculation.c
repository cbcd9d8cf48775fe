/*
 * Drafts decide nothing: with every drafter and every number of drafts the tokens are those of
 * generating without one, greedy and sampled, drawn from the same bits (case 19 of docs/cases.md).
 */
#include "speculation_test.h"

enum { MAX_K = 8 };

/* ---------------------------------------------------------------- every drafter */

typedef struct drafter_case {
    const char *name;
    tamis_drafter drafter;
    int32_t n_right;
} drafter_case;
static const drafter_case drafter_cases[] = {
    {"none", TAMIS_DRAFTER_NONE, 0},
    {"mtp", TAMIS_DRAFTER_MTP, 0},
    {"prompt lookup", TAMIS_DRAFTER_PROMPT_LOOKUP, 0},
    {"random", TAMIS_DRAFTER_CUSTOM, -1},
    {"always right", TAMIS_DRAFTER_CUSTOM, TAMIS_MAX_DRAFT},
    {"always wrong", TAMIS_DRAFTER_CUSTOM, 0},
    {"right, then wrong", TAMIS_DRAFTER_CUSTOM, 1},
};
enum { N_DRAFTERS = sizeof drafter_cases / sizeof *drafter_cases };

static void check_stats(const drafter_case *c, int32_t k, const tamis_spec_stats *stats,
                        int32_t n_new, const char *where)
{
    const bool is_given =
        stats->n_tokens >= (uint64_t)n_new && stats->n_tokens == stats->n_steps + stats->n_accepted;
    if (!is_given || stats->n_accepted > stats->n_drafted)
        fail_msg("%s: %llu tokens, %llu steps, %llu drafted, %llu accepted", where,
                 (unsigned long long)stats->n_tokens, (unsigned long long)stats->n_steps,
                 (unsigned long long)stats->n_drafted, (unsigned long long)stats->n_accepted);
    if (c->drafter == TAMIS_DRAFTER_CUSTOM && c->n_right == 0)
        assert_int_equal(stats->n_accepted, 0);
    if (c->drafter == TAMIS_DRAFTER_CUSTOM && c->n_right == TAMIS_MAX_DRAFT)
        assert_int_equal(stats->n_steps, (n_new + k) / (k + 1));
    if (c->drafter == TAMIS_DRAFTER_NONE)
        assert_int_equal(stats->n_drafted, 0);
    if (c->drafter == TAMIS_DRAFTER_MTP) /* all but the first step */
        assert_true(stats->n_drafted >= (stats->n_steps - 2) * (uint64_t)k);
}

static void check_drafters(const char *dir, tamis_dtype dtype, int32_t n_new,
                           tamis_sampler_params sampling, int32_t step_k, test_rng *rng)
{
    const int32_t n_prompt = 60, max_len = n_prompt + n_new + MAX_K + 1;
    int32_t *ids = test_prompt(dir);
    tamis_session_params plain = test_session_params(dtype, max_len);
    test_engine base = test_engine_open(dir, &plain);
    spec_truth truth = spec_truth_make(&base, ids, n_prompt, n_new, sampling);
    for (int32_t k = 1; k <= MAX_K; k += TEST_IS_SANITIZED ? 4 : step_k) {
        const tamis_session_params params = spec_session(dtype, max_len, k, true);
        test_engine engine = test_engine_share(&base, &params);
        for (int i = 0; i < N_DRAFTERS; i++) {
            const drafter_case *c = &drafter_cases[i];
            spec_oracle oracle = {&truth, c->n_right, {test_rng_u64(rng)}};
            const tamis_spec_params p = spec_params(c->drafter, k, &oracle);
            char where[256];
            snprintf(where, sizeof where, "%s, %s, temperature %g, k %d", dir, c->name,
                     (double)sampling.temperature, k);
            const tamis_spec_stats stats = spec_check(&engine, &truth, &p, where);
            check_stats(c, k, &stats, n_new, where);
        }
        test_engine_close(&engine);
    }
    spec_truth_free(&truth);
    test_engine_close(&base);
    free(ids);
}

static void case_19_text_of_every_drafter(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("speculation", 51);
    for (int i = 0; i < (TEST_IS_SANITIZED ? 2 : 4); i++) {
        const bool is_demo = strcmp(spec_folders[i], SPEC_DEMO) == 0;
        const int32_t n_new = TEST_IS_SANITIZED ? 12 : is_demo ? 10 : 20;
        const uint64_t seed = test_rng_u64(&rng);
        const tamis_dtype dtype = i % 2 == 0 ? TAMIS_DTYPE_BF16 : TAMIS_DTYPE_F32;
        check_drafters(spec_folders[i], dtype, n_new, spec_sampling(0, 0), 1, &rng);
        check_drafters(spec_folders[i], dtype, n_new, spec_sampling(1, seed), 3, &rng);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_19_text_of_every_drafter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
