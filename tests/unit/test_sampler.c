/*
 * Sampler: each filter against a slow reference in double (sort everything, then cut), frequencies
 * against the exact distribution, seeds, borders, refused parameters, allocation failure.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "engine/sampler.h"
#include "support/rng.h"

#define MAX_VOCAB 700

/* ---------------------------------------------------------------- reference */

typedef struct reference {
    double p[MAX_VOCAB]; /* final probability by id; 0: filtered out */
} reference;

typedef struct ranked {
    double z; /* logit / temperature */
    double p;
    int id;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->id - y->id;
}

static void softmax(ranked *r, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += r[i].p = exp(r[i].z - r[0].z);
    for (int i = 0; i < n; i++)
        r[i].p /= sum;
}

/* Sort all, softmax, cut, and again for each filter: the order of tamis/sampler.h, literally. */
static reference reference_of(const float *logits, int n, const tamis_sampler_params *p)
{
    static ranked r[MAX_VOCAB];
    for (int i = 0; i < n; i++)
        r[i] = (ranked){(double)logits[i] / (double)p->temperature, 0.0, i};
    qsort(r, (size_t)n, sizeof *r, compare_ranked);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    softmax(r, n);
    if (p->top_p < 1.0f) {
        double mass = 0.0;
        int kept = 0;
        while (kept < n && (kept == 0 || mass < (double)p->top_p))
            mass += r[kept++].p;
        n = kept;
        softmax(r, n);
    }
    int kept = 1;
    while (kept < n && r[kept].p >= (double)p->min_p * r[0].p)
        kept++;
    n = kept;
    softmax(r, n);
    reference ref = {{0.0}};
    for (int i = 0; i < n; i++)
        ref.p[r[i].id] = r[i].p;
    return ref;
}

/* ---------------------------------------------------------------- comparing */

static tamis_sampler *open_sampler(int32_t vocab, tamis_sampler_params p)
{
    tamis_sampler *sampler = NULL;
    tamis_error err = {0};
    if (tamis_sampler_open(&sampler, vocab, &p, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return sampler;
}

/*
 * Upper bound of a chi-square value with `df` degrees of freedom: mean + 5 standard deviations
 * + 20. By Wilson and Hilferty that is beyond the 0.9999 quantile for every df >= 1; the seed is
 * fixed, so the outcome is too.
 */
static double chi_square_bound(int df)
{
    return df + 5.0 * sqrt(2.0 * df) + 20.0;
}

/* Draws and compares: nothing outside the reference's set, and the frequencies inside it. */
static void check_draws(const float *logits, int vocab, int num_ids, tamis_sampler_params p,
                        int n_draws)
{
    static int counts[MAX_VOCAB];
    memset(counts, 0, sizeof counts);
    const reference ref = reference_of(logits, num_ids, &p);
    tamis_sampler *sampler = open_sampler(vocab, p);
    for (int i = 0; i < n_draws; i++) {
        const int32_t id = tamis_sampler_draw(sampler, logits, num_ids);
        assert_in_range(id, 0, num_ids - 1);
        counts[id]++;
    }
    tamis_sampler_close(&sampler);
    double chi = 0.0, rest_expected = 0.0, rest_count = 0.0;
    int n_cells = 0;
    for (int i = 0; i < num_ids; i++) {
        const double expected = ref.p[i] * n_draws;
        if (ref.p[i] == 0.0 && counts[i] != 0)
            fail_msg("id %d was drawn %d times but is filtered out (k %d, p %g, min_p %g, T %g)", i,
                     counts[i], (int)p.top_k, (double)p.top_p, (double)p.min_p,
                     (double)p.temperature);
        if (expected < 10.0) { /* too few for chi-square: one cell together */
            rest_expected += expected;
            rest_count += counts[i];
            continue;
        }
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        n_cells++;
    }
    if (rest_expected >= 10.0) {
        chi += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
        n_cells++;
    }
    if (n_cells > 1 && chi > chi_square_bound(n_cells - 1))
        fail_msg("chi-square %g with %d cells (k %d, p %g, min_p %g, T %g)", chi, n_cells,
                 (int)p.top_k, (double)p.top_p, (double)p.min_p, (double)p.temperature);
}

static tamis_sampler_params params(float temperature, int32_t top_k, float top_p, float min_p)
{
    tamis_sampler_params p = tamis_sampler_params_default();
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    p.seed = 12345;
    return p;
}

/* ---------------------------------------------------------------- tests */

/* First outputs for the state 1, 2, 3, 4 and the splitmix64 stream of seed 1234567, as published.
 */
static void test_generator_known_values(void **state)
{
    const uint64_t known[] = {11520u, 0u, 1509978240u, UINT64_C(1215971899390074240)};
    tamis_prng prng = {{1, 2, 3, 4}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(tamis_prng_next(&prng), known[i]);
    const uint64_t seeded[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                               UINT64_C(9817491932198370423), UINT64_C(4593380528125082431)};
    prng = tamis_prng_start(1234567);
    for (int i = 0; i < 4; i++)
        assert_int_equal(prng.s[i], seeded[i]);
    for (int i = 0; i < 1000; i++) {
        const double u = tamis_prng_next_double(&prng);
        assert_true(u >= 0.0 && u < 1.0);
    }
}

static void test_frequencies_100000(void **state)
{
    test_rng rng = test_rng_start("frequencies", 1);
    float logits[40];
    test_rng_fill_normal(&rng, logits, 40);
    const tamis_sampler_params cases[] = {
        params(1.0f, 0, 1.0f, 0.0f),  params(0.7f, 0, 1.0f, 0.0f),  params(2.5f, 0, 1.0f, 0.0f),
        params(1.0f, 5, 1.0f, 0.0f),  params(1.0f, 0, 0.8f, 0.0f),  params(1.0f, 0, 1.0f, 0.15f),
        params(0.8f, 12, 0.9f, 0.1f), params(1.3f, 30, 0.6f, 0.0f), params(1.3f, 0, 0.9f, 0.2f),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_draws(logits, 40, 40, cases[i], 100000);
}

/*
 * Random shapes and settings. top_p is put in the middle between two partial sums, so that the
 * reference's rounding and the sampler's cannot choose different borders.
 */
static void test_random_settings(void **state)
{
    test_rng rng = test_rng_start("random settings", 2);
    static float logits[MAX_VOCAB];
    const int sizes[] = {1, 2, 3, 7, 8, 64, 129, MAX_VOCAB};
    for (int round = 0; round < 120; round++) {
        const int vocab = sizes[round % 8];
        const int num_ids = round % 3 == 0 ? (int)test_rng_int(&rng, 1, vocab) : vocab;
        test_rng_fill_normal(&rng, logits, (size_t)vocab);
        for (int i = 0; i < vocab; i++)
            logits[i] = round % 2 == 0 ? 3.0f * logits[i] : roundf(logits[i]); /* odd: many ties */
        tamis_sampler_params p = params(test_rng_float(&rng, 0.3f, 2.0f), 0, 1.0f, 0.0f);
        if (round % 4 & 1)
            p.top_k = (int32_t)test_rng_int(&rng, 1, vocab + 3);
        if (round % 5 & 1) {
            const reference ref = reference_of(logits, num_ids, &p);
            static double sorted[MAX_VOCAB];
            int n = 0;
            for (int i = 0; i < num_ids; i++)
                if (ref.p[i] > 0.0)
                    sorted[n++] = ref.p[i];
            for (int i = 0; i < n; i++) /* selection sort: obvious */
                for (int j = i + 1; j < n; j++)
                    if (sorted[j] > sorted[i]) {
                        const double swap = sorted[i];
                        sorted[i] = sorted[j];
                        sorted[j] = swap;
                    }
            const int keep = (int)test_rng_int(&rng, 1, n);
            double mass = 0.0;
            for (int i = 0; i < keep - 1; i++)
                mass += sorted[i];
            p.top_p = (float)(mass + 0.5 * sorted[keep - 1]);
        }
        if (round % 7 & 1)
            p.min_p = test_rng_float(&rng, 0.0f, 0.5f);
        check_draws(logits, vocab, num_ids, p, 1000);
    }
}

static void test_ties_lower_id_first(void **state)
{
    float logits[16];
    for (int i = 0; i < 16; i++)
        logits[i] = 0.5f;
    check_draws(logits, 16, 16, params(1.0f, 3, 1.0f, 0.0f), 3000);     /* ids 0, 1, 2 */
    check_draws(logits, 16, 16, params(1.0f, 0, 0.28125f, 0.0f), 3000); /* 4.5 of 16: ids 0..4 */
    check_draws(logits, 16, 16, params(1.0f, 0, 0.25f, 0.0f), 3000); /* exactly 4 of 16: ids 0..3 */
    check_draws(logits, 16, 16, params(1.0f, 0, 1.0f, 1.0f), 3000);  /* all */
    logits[3] = logits[9] = 2.0f;
    check_draws(logits, 16, 16, params(1.0f, 1, 1.0f, 0.0f), 100);
    check_draws(logits, 16, 16, params(1.0f, 3, 1.0f, 0.0f), 3000); /* 3, 9, 0 */
    logits[0] = -0.0f, logits[1] = 0.0f;                            /* equal as numbers */
    check_draws(logits, 2, 2, params(1.0f, 1, 1.0f, 0.0f), 100);    /* 0 */
}

static void expect_always(const float *logits, int vocab, int num_ids, tamis_sampler_params p,
                          int id)
{
    tamis_sampler *sampler = open_sampler(vocab, p);
    for (int i = 0; i < 50; i++)
        assert_int_equal(tamis_sampler_draw(sampler, logits, num_ids), id);
    tamis_sampler_close(&sampler);
}

static void test_borders(void **state)
{
    const float logits[8] = {0.0f, 1.0f, 4.0f, -2.0f, 4.0f, 3.0f, 9.0f, 9.5f};
    expect_always(logits, 8, 8, params(0.0f, 0, 1.0f, 0.0f), 7);
    expect_always(logits, 8, 8, params(-1.0f, 3, 0.5f, 0.1f), 7);
    expect_always(logits, 8, 6, params(0.0f, 0, 1.0f, 0.0f), 2); /* a tie: the lower id */
    expect_always(logits, 8, 8, params(1.0f, 0, 0.0f, 0.0f), 7); /* top_p 0 keeps one */
    expect_always(logits, 8, 8, params(1.0f, 0, 1.0f, 1.0f), 7); /* min_p 1: equals of the best */
    expect_always(logits, 8, 8, params(1.0f, 1, 1.0f, 0.0f), 7);
    expect_always(logits, 8, 8, params(1e-6f, 0, 1.0f, 0.0f), 7);
    expect_always(logits, 8, 8, params(1e-40f, 0, 1.0f, 0.0f), 7); /* a subnormal temperature */
    expect_always(logits, 8, 1, params(1.0f, 0, 1.0f, 0.0f), 0);
    check_draws(logits, 8, 8, params(3e38f, 0, 1.0f, 0.0f), 8000);   /* practically uniform */
    check_draws(logits, 8, 8, params(1.0f, 1000, 1.0f, 0.0f), 8000); /* k > vocab: off */
    check_draws(logits, 8, 8, params(1.0f, 8, 1.0f, 0.0f), 8000);
}

static void test_infinite_logits(void **state)
{
    float logits[6];
    for (int i = 0; i < 6; i++)
        logits[i] = -INFINITY;
    expect_always(logits, 6, 6, params(1.0f, 0, 1.0f, 0.0f), 0); /* nothing to choose from */
    logits[4] = -3.0f;
    expect_always(logits, 6, 6, params(1.0f, 0, 1.0f, 0.0f), 4);
    expect_always(logits, 6, 6, params(1.0f, 3, 0.9f, 0.0f), 4);
    expect_always(logits, 6, 6, params(1.0f, 0, 0.9999f, 0.0f), 4);
    expect_always(logits, 6, 6, params(0.0f, 0, 1.0f, 0.0f), 4);
    logits[5] = INFINITY;
    expect_always(logits, 6, 6, params(1.0f, 0, 1.0f, 0.0f), 5);
    const float huge[3] = {-3e38f, 3e38f, 0.0f};
    expect_always(huge, 3, 3, params(1.0f, 0, 0.95f, 0.01f), 1);
}

static void test_same_seed_same_draws(void **state)
{
    test_rng rng = test_rng_start("seeds", 3);
    static float logits[MAX_VOCAB];
    tamis_sampler_params p = params(0.8f, 50, 0.95f, 0.02f);
    tamis_sampler *a = open_sampler(MAX_VOCAB, p), *b = open_sampler(MAX_VOCAB, p);
    p.seed++;
    tamis_sampler *c = open_sampler(MAX_VOCAB, p);
    int n_differences = 0;
    for (int i = 0; i < 500; i++) {
        test_rng_fill_normal(&rng, logits, MAX_VOCAB);
        const int32_t id = tamis_sampler_draw(a, logits, MAX_VOCAB);
        assert_int_equal(id, tamis_sampler_draw(b, logits, MAX_VOCAB));
        n_differences += id != tamis_sampler_draw(c, logits, MAX_VOCAB);
    }
    assert_in_range(n_differences, 400, 500);
    tamis_sampler_close(&a);
    tamis_sampler_close(&b);
    tamis_sampler_close(&c);
}

/* One number of the generator per draw, whatever the filters: later draws do not shift. */
static void test_one_number_per_draw(void **state)
{
    float peaked[64], flat[64] = {0.0f};
    for (int i = 0; i < 64; i++)
        peaked[i] = i == 3 ? 50.0f : 0.0f;
    tamis_sampler *a = open_sampler(64, params(1.0f, 0, 1.0f, 0.0f));
    tamis_sampler *b = open_sampler(64, params(1.0f, 0, 1.0f, 0.0f));
    for (int i = 0; i < 20; i++)
        assert_int_equal(tamis_sampler_draw(a, peaked, 64), 3);
    for (int i = 0; i < 20; i++)
        (void)tamis_sampler_draw(b, flat, 64);
    for (int i = 0; i < 20; i++)
        assert_int_equal(tamis_sampler_draw(a, flat, 64), tamis_sampler_draw(b, flat, 64));
    tamis_sampler_close(&a);
    tamis_sampler_close(&b);
}

static void expect_refused(int32_t vocab, tamis_sampler_params p, const char *words)
{
    tamis_sampler *sampler = NULL;
    tamis_error err = {0};
    assert_int_equal(tamis_sampler_open(&sampler, vocab, &p, &err), TAMIS_STATUS_INVALID);
    assert_null(sampler);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, words);
}

static void test_refused_parameters(void **state)
{
    const tamis_sampler_params fine = params(1.0f, 0, 1.0f, 0.0f);
    expect_refused(0, fine, "vocab_size is 0");
    expect_refused(8, params(NAN, 0, 1.0f, 0.0f), "temperature is nan");
    expect_refused(8, params(INFINITY, 0, 1.0f, 0.0f), "temperature is inf");
    expect_refused(8, params(1.0f, -1, 1.0f, 0.0f), "top_k is -1, allowed is 0 or more");
    expect_refused(8, params(1.0f, 0, 1.5f, 0.0f), "top_p is 1.5, allowed is 0 to 1");
    expect_refused(8, params(1.0f, 0, -0.5f, 0.0f), "top_p is -0.5");
    expect_refused(8, params(1.0f, 0, NAN, 0.0f), "top_p is nan");
    expect_refused(8, params(1.0f, 0, 1.0f, 2.0f), "min_p is 2");
    expect_refused(8, params(1.0f, 0, 1.0f, NAN), "min_p is nan");
    tamis_sampler_params old = fine;
    old.struct_size = 4;
    expect_refused(8, old, "struct_size is 4");
    tamis_sampler *sampler = NULL;
    assert_int_equal(tamis_sampler_open(NULL, 8, &fine, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_sampler_open(&sampler, 8, NULL, NULL), TAMIS_STATUS_INVALID);
    tamis_sampler_close(NULL);
    tamis_sampler_close(&sampler);
}

static void test_allocation(void **state)
{
    const tamis_sampler_params p = params(1.0f, 0, 1.0f, 0.0f);
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    tamis_sampler *sampler = NULL;
    int n_refused = 0;
    for (uint64_t n = 1; sampler == NULL; n++) {
        tamis_mem_fail_at(n);
        const tamis_status st = tamis_sampler_open(&sampler, 100, &p, NULL);
        n_refused += st == TAMIS_STATUS_NO_MEMORY;
        assert_true(st == TAMIS_STATUS_NO_MEMORY || sampler != NULL);
    }
    tamis_mem_fail_at(0);
    assert_int_equal(n_refused, 2);
    const float logits[100] = {0.0f};
    const uint64_t n_allocs = tamis_mem_num_allocs();
    (void)tamis_sampler_draw(sampler, logits, 100);
    assert_int_equal(tamis_mem_num_allocs(), n_allocs);
    tamis_sampler_close(&sampler);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator_known_values),
        cmocka_unit_test(test_frequencies_100000),
        cmocka_unit_test(test_random_settings),
        cmocka_unit_test(test_ties_lower_id_first),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_infinite_logits),
        cmocka_unit_test(test_same_seed_same_draws),
        cmocka_unit_test(test_one_number_per_draw),
        cmocka_unit_test(test_refused_parameters),
        cmocka_unit_test(test_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
