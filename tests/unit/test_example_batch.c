/*
 * What the example engine gives to a request does not depend on what it runs beside it, in which
 * chunks, behind which wrong guesses, in whose blocks: the bits of the request alone, token by
 * token.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/engine_run.h"
#include "support/rng.h"
#include "support/sanitized.h"

#define main example_main
#include "../../examples/batch_engine.c"
#undef main

enum { N_REQUESTS = 7 };

static model the_model;

/* Totals of everything that the compared runs went through: a test without it would show little. */
typedef struct run_totals {
    int32_t n_swaps, n_padding, n_right, n_wrong, n_waited;
} run_totals;

static void run(engine_limits limits, request *requests, int32_t n, run_totals *seen)
{
    static engine e;
    tamis_error err;
    test_must(engine_open(&e, &the_model, limits, &err), &err, "open");
    test_must(engine_run(&e, requests, n, NULL, &err), &err, "run");
    assert_int_equal(e.n_free_blocks, limits.num_blocks - 1);
    assert_int_equal(e.n_free_slots, limits.max_running);
    seen->n_swaps += e.n_swaps;
    seen->n_padding += e.n_padding;
    seen->n_right += e.n_right;
    seen->n_wrong += e.n_guessed - e.n_right;
    seen->n_waited += n > limits.max_running;
    engine_close(&e);
}

/* One request, one token per step, nothing guessed, one thread. */
static void run_alone(request *r)
{
    const engine_limits limits = {
        .max_step = 1, .max_running = 1, .num_blocks = MAX_BLOCKS + 1, .n_threads = 1};
    run_totals seen = {0};
    run(limits, r, 1, &seen);
    assert_int_equal(seen.n_padding + seen.n_right + seen.n_wrong, 0);
}

static void assert_same(const request *seen, const request *alone)
{
    assert_int_equal(seen->n_tokens, alone->n_total);
    assert_memory_equal(seen->tokens, alone->tokens, (size_t)alone->n_total * sizeof(int32_t));
    test_assert_same_bits(seen->out[0], alone->out[0], alone->n_total - 1, HIDDEN, "request");
}

static void every_request_gets_what_it_gets_alone(void **state)
{
    (void)state;
    static request start[N_REQUESTS], alone[N_REQUESTS], seen[N_REQUESTS];
    const engine_limits limits[] = {
        {.max_step = 48, .max_running = 3, .n_drafts = 2, .num_blocks = 7, .n_threads = 2},
        {.max_step = 7, .max_running = 4, .n_drafts = 7, .num_blocks = 5, .n_threads = 1},
        {.max_step = 64, .max_running = 4, .n_drafts = 0, .num_blocks = 13, .n_threads = 3},
        {.max_step = 31, .max_running = 2, .n_drafts = 15, .num_blocks = 32, .n_threads = 2},
    };
    const int n_limits = TEST_IS_SANITIZED ? 2 : (int)(sizeof limits / sizeof *limits);
    test_rng rng = test_rng_start("every_request_gets_what_it_gets_alone", 52);
    run_totals totals = {0};
    for (int i = 0; i < N_REQUESTS; i++) {
        const int32_t n_prompt = (int32_t)test_rng_int(&rng, 1, i % 2 == 0 ? 320 : 20);
        request_init(&start[i], n_prompt, n_prompt + (int32_t)test_rng_int(&rng, 1, 60));
        alone[i] = start[i];
        run_alone(&alone[i]);
    }
    for (int l = 0; l < n_limits; l++) {
        for (int i = 0; i < N_REQUESTS; i++)
            seen[i] = start[i];
        run(limits[l], seen, N_REQUESTS, &totals);
        for (int i = 0; i < N_REQUESTS; i++)
            assert_same(&seen[i], &alone[i]);
    }
    assert_true(totals.n_swaps > 0 && totals.n_padding > 0 && totals.n_waited > 0);
    assert_true(totals.n_right > 0 && totals.n_wrong > 0);
}

/* The comparison above can fail: a request whose last prompt token differs gives other bits. */
static void another_prompt_gives_other_bits(void **state)
{
    (void)state;
    static request a, b;
    request_init(&a, 30, 40);
    b = a;
    b.tokens[29] = (b.tokens[29] + 1) % VOCAB;
    run_alone(&a);
    run_alone(&b);
    assert_memory_equal(a.out[28], b.out[28], sizeof a.out[28]);
    assert_memory_not_equal(a.out[29], b.out[29], sizeof a.out[29]);
}

static void what_the_engine_cannot_have_is_refused(void **state)
{
    (void)state;
    static engine e;
    model m = the_model;
    tamis_error err;
    const engine_limits limits = {.max_step = 8, .max_running = 1, .num_blocks = 2, .n_threads = 1};
    m.layers[1].weights.wkv.rows++;
    assert_int_equal(engine_open(&e, &m, limits, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "wkv"));
    engine_close(&e);
}

static void the_example_runs(void **state)
{
    (void)state;
    assert_int_equal(example_main(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_runs),
        cmocka_unit_test(every_request_gets_what_it_gets_alone),
        cmocka_unit_test(another_prompt_gives_other_bits),
        cmocka_unit_test(what_the_engine_cannot_have_is_refused),
    };
    the_model = random_model();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
