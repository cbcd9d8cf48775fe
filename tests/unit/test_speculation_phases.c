/*
 * Rejected tokens leave no trace: every number of accepted drafts at every phase of the groups of 4
 * and 128 tokens, in rings that are as short as max_rollback allows (V4), and across blocks. The
 * drafter is right for exactly as many tokens as the test wants.
 */
#include "speculation_test.h"

enum { PHASES = 128, MAX_K = 8 };

typedef struct coverage {
    int32_t k, n_left;
    bool is_done[PHASES][MAX_K + 1];
} coverage;

/* An accept count that this phase has not seen, or some other that moves on. */
static int32_t next_count(coverage *c, int32_t phase, test_rng *rng)
{
    for (int32_t a = 0; a <= c->k; a++)
        if (!c->is_done[phase][a]) {
            c->is_done[phase][a] = true;
            c->n_left--;
            return a;
        }
    return (int32_t)test_rng_int(rng, 0, c->k);
}

/* One run over the truth, which ends before the context does. */
static void run_once(test_engine *engine, const spec_truth *truth, int32_t n_given, coverage *c,
                     test_rng *rng)
{
    spec_oracle oracle = {.truth = truth};
    const tamis_spec_params p = spec_params(TAMIS_DRAFTER_CUSTOM, c->k, &oracle);
    spec_run run = spec_run_open(engine, truth, &p);
    spec_run_prompt(&run, n_given);
    while (run.n + c->k + 1 < truth->n) {
        char where[64];
        snprintf(where, sizeof where, "k %d, position %d", c->k, run.n - 1);
        oracle.n_right = next_count(c, (run.n - 1) % PHASES, rng);
        assert_int_equal(spec_run_next(&run, where), oracle.n_right + 1);
    }
    spec_run_close(&run);
}

static void check_phases(const char *dir, tamis_dtype dtype, int32_t max_len, int32_t k,
                         test_rng *rng)
{
    int32_t *ids = test_prompt(dir);
    const tamis_session_params plain = test_session_params(dtype, max_len);
    tamis_session_params params = spec_session(dtype, max_len, k, false);
    params.block_tokens = 128;
    test_engine base = test_engine_open(dir, &plain), engine = test_engine_share(&base, &params);
    const tamis_sampler_params sampling = spec_sampling(1, test_rng_u64(rng));
    spec_truth truth = spec_truth_make(&base, ids, 5, max_len - 5, sampling);
    coverage c = {.k = k, .n_left = PHASES * (k + 1)};
    int n_runs = 0;
    for (; c.n_left > 0; n_runs++) {
        if (n_runs == 40)
            fail_msg("%s: %d phases left", dir, c.n_left);
        run_once(&engine, &truth, n_runs, &c, rng);
    }
    printf("%s: every count 0..%d at every phase of 128 in %d runs\n", dir, k, n_runs);
    spec_truth_free(&truth);
    test_engine_close(&engine);
    test_engine_close(&base);
    free(ids);
}

static void case_19_every_count_at_every_phase(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("phases", 128);
    if (TEST_IS_SANITIZED) {
        check_phases("tests/golden/v4-flash-fp8", TAMIS_DTYPE_F32, 400, 1, &rng);
        return;
    }
    check_phases("tests/golden/v4-flash-fp8", TAMIS_DTYPE_BF16, 1000, 8, &rng);
    check_phases("tests/golden/v4-pro-fp8", TAMIS_DTYPE_F32, 1000, 3, &rng);
    check_phases("tests/golden/v32-fp8", TAMIS_DTYPE_F32, 512, 2, &rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_19_every_count_at_every_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
