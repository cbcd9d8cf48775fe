/* Sessions that run at the same time over one model, each with a team of its own: the same bits. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"

enum { N_SIDES = 2, N_TOKENS = 150 };

typedef struct side {
    test_engine engine;
    const int32_t *ids;
    float *logits;
} side;

static void *run_side(void *arg)
{
    side *s = arg;
    s->logits = test_logits_of(&s->engine, s->ids, N_TOKENS, 31);
    return NULL;
}

static void check_sides(const char *dir, tamis_dtype dtype)
{
    int32_t *ids = test_prompt(dir);
    tamis_session_params params = test_session_params(dtype, N_TOKENS);
    test_engine engine = test_engine_open(dir, &params);
    float *want = test_logits_of(&engine, ids, N_TOKENS, 0);
    side sides[N_SIDES];
    pthread_t threads[N_SIDES];
    params.n_threads = 2;
    for (int i = 0; i < N_SIDES; i++) {
        sides[i] = (side){.engine = test_engine_share(&engine, &params), .ids = ids};
        assert_int_equal(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
    }
    for (int i = 0; i < N_SIDES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        test_assert_same_bits(sides[i].logits, want, N_TOKENS, engine.info->vocab_size,
                              test_where(dir, dtype, "session", i));
        free(sides[i].logits);
        test_engine_close(&sides[i].engine);
    }
    free(want);
    test_engine_close(&engine);
    free(ids);
}

static void sessions_share_a_model(void **state)
{
    (void)state;
    test_every_folder(check_sides);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sessions_share_a_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
