/*
 * What a token gives in the profiles official and ascend depends on the tokens before it alone:
 * cuts into steps down to single tokens, threads, blocks, CPU level, company in the batch and
 * tokens taken back change no bit. Every golden folder that the profile takes, every layout of
 * rows; folders of Ascend's quantiser as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "quantize_test.h"
#include "support/property.h"
#include "support/rng.h"

/* Rows of ratio 128 close, more rows are visible than topk; the portable level is slow. */
enum { LEN = 290, LEN_PORTABLE = 80, MAX_SEQS = 4, STEP_LIMIT = LEN + 2, MAX_ROLLBACK = 9 };

/* v32-fp8 is none of them: its index_head_dim of 40 has no Hadamard rotation. */
static const struct {
    const char *dir;
    tamis_dtype packed; /* of ascend's second layout of rows */
} folders[] = {
    {"tests/golden/v4-flash-fp8", TAMIS_DTYPE_F8_E4M3}, {"tests/golden/glm52-fp8", TAMIS_DTYPE_I8},
    {"tests/golden/v4-pro-fp8", TAMIS_DTYPE_F8_E4M3},   {"tests/golden/v32-bf16", TAMIS_DTYPE_I8},
    {"tests/golden/v4-official", TAMIS_DTYPE_F8_E4M3},  {"tests/golden/glm5-bf16", TAMIS_DTYPE_I8},
    {"tests/golden/v4-flash-bf16", TAMIS_DTYPE_F8_E4M3}};
enum { N_FOLDERS = TEST_IS_SANITIZED ? 2 : (int)(sizeof folders / sizeof *folders) };

/* A folder in a profile, and what its prompt gives in one step on one thread. */
typedef struct subject {
    const char *dir;
    tamis_dtype dtype;
    tamis_session_params params;
    test_engine engine;
    int32_t *ids;
    float *whole; /* [LEN][vocab_size] */
} subject;

static test_rng rng;

/* prompt_dir: the golden folder whose prompt is fed, dir itself or what it was made of. */
static subject subject_open(const char *dir, const char *prompt_dir, tamis_profile profile,
                            tamis_dtype dtype)
{
    subject s = {.dir = dir, .dtype = dtype, .params = test_session_params(dtype, LEN)};
    s.params.max_num_seqs = MAX_SEQS;
    s.params.max_num_batched_tokens = s.params.max_num_logits = STEP_LIMIT;
    s.params.max_rollback = MAX_ROLLBACK;
    s.engine = test_engine_open_as(dir, profile, &s.params);
    s.ids = test_prompt(prompt_dir);
    s.whole = test_logits_of(&s.engine, s.ids, LEN, 0);
    return s;
}

static void subject_close(subject *s)
{
    free(s->whole);
    free(s->ids);
    test_engine_close(&s->engine);
}

/* Logits of tokens first .. first + n - 1 are what they are in one step. */
static void expect_rows(const subject *s, const float *seen, int32_t first, int32_t n,
                        const char *what, int32_t value)
{
    const int64_t vocab = s->engine.info->vocab_size;
    test_assert_same_bits(seen, s->whole + first * vocab, n, vocab,
                          test_where(s->dir, s->dtype, what, value));
}

static void expect_prompt(const subject *s, test_engine *engine, int32_t n, int32_t chunk,
                          const char *what, int32_t value)
{
    float *seen = test_logits_of(engine, s->ids, n, chunk);
    expect_rows(s, seen, 0, n, what, value);
    free(seen);
}

/* ---------------------------------------------------------------- properties */

static void check_chunks(subject *s)
{
    expect_prompt(s, &s->engine, LEN, 1, "chunk", 1);
    expect_prompt(s, &s->engine, LEN, 67, "chunk", 67);
}

static void check_places(subject *s)
{
    for (int32_t n_threads = 2; n_threads <= 3; n_threads++) {
        tamis_session_params params = s->params;
        params.n_threads = n_threads;
        params.block_tokens = 128 * (n_threads - 1);
        params.num_blocks = 12; /* more than needed, so that their order is a real choice */
        params.block_order_seed = n_threads;
        test_engine engine = test_engine_share(&s->engine, &params);
        expect_prompt(s, &engine, LEN, n_threads == 3 ? 2 : 90, "threads", n_threads);
        test_engine_close(&engine);
    }
}

static void check_level(subject *s)
{
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_PORTABLE), TAMIS_STATUS_OK);
    expect_prompt(s, &s->engine, LEN_PORTABLE, 60, "portable, length", LEN_PORTABLE);
    assert_int_equal(tamis_cpu_level_set(tamis_cpu_level_available()), TAMIS_STATUS_OK);
}

/* Others come and go beside it; every step has some of each, in changing order. */
static void check_company(subject *s)
{
    const int32_t vocab = s->engine.info->vocab_size;
    tamis_session_params params = s->params;
    params.n_threads = 2;
    test_engine engine = test_engine_share(&s->engine, &params);
    test_track tracks[MAX_SEQS];
    int32_t *others = test_shifted(s->ids, LEN, 17, vocab);
    for (int i = 0; i < MAX_SEQS; i++)
        tracks[i] = test_track_open(&engine, i == 0 ? s->ids : others + 9 * i, LEN - 9 * i);
    while (tracks[0].fed < LEN) {
        test_track *order[MAX_SEQS];
        int32_t counts[MAX_SEQS], turn = (int32_t)test_rng_int(&rng, 0, MAX_SEQS - 1);
        for (int i = 0; i < MAX_SEQS; i++) {
            test_track *track = order[i] = &tracks[(i + turn) % MAX_SEQS];
            const int64_t most = test_rng_int(&rng, 0, 2) == 0 ? 70 : 3,
                          left = track->n - track->fed;
            counts[i] = (int32_t)test_rng_int(&rng, 0, most < left ? most : left);
        }
        test_step(&engine, order, counts, MAX_SEQS);
    }
    expect_rows(s, tracks[0].logits, 0, LEN, "sequences", MAX_SEQS);
    for (int i = 0; i < MAX_SEQS; i++)
        test_track_close(&engine, &tracks[i]);
    free(others);
    test_engine_close(&engine);
}

/* Back by every amount, over other tokens that went there, and on. */
static void check_rollback(subject *s)
{
    static const int32_t lengths[] = {10, 132, 258};
    const int32_t vocab = s->engine.info->vocab_size, seq = test_seq_new(&s->engine);
    int32_t *others = test_shifted(s->ids, LEN, 31, vocab), fed = 0;
    float *seen = malloc((size_t)(LEN * vocab) * sizeof *seen);
    assert_non_null(seen);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int32_t len = lengths[i];
        test_feed(&s->engine, seq, s->ids + fed, len - fed, 0, NULL);
        for (int32_t back = 1; back <= MAX_ROLLBACK; back++) {
            test_seq_rollback(&s->engine, seq, len - back);
            test_feed(&s->engine, seq, others, back, back % 3, NULL);
            test_seq_rollback(&s->engine, seq, len - back);
            test_feed(&s->engine, seq, s->ids + len - back, back, back % 2, seen);
            expect_rows(s, seen, len - back, back, "back by", back);
        }
        fed = len;
    }
    test_feed(&s->engine, seq, s->ids + fed, LEN - fed, 8, seen);
    expect_rows(s, seen, fed, LEN - fed, "on from", fed);
    test_seq_drop(&s->engine, seq);
    free(others);
    free(seen);
}

/* Sanitizers look for memory faults and races: steps of all kinds on two threads pass all code. */
static void check_all(const char *dir, const char *prompt_dir, tamis_profile profile,
                      tamis_dtype dtype)
{
    subject s = subject_open(dir, prompt_dir, profile, dtype);
    check_company(&s);
    if (!TEST_IS_TSAN) /* one thread */
        check_rollback(&s);
    if (!TEST_IS_SANITIZED) {
        check_chunks(&s);
        check_places(&s);
        check_level(&s);
    }
    subject_close(&s);
}

/* ---------------------------------------------------------------- profiles */

static void test_official(void **state)
{
    (void)state;
    rng = test_rng_start("official", 81);
    for (int i = 0; i < N_FOLDERS; i++)
        check_all(folders[i].dir, folders[i].dir, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO);
}

static void test_ascend(void **state)
{
    (void)state;
    rng = test_rng_start("ascend", 82);
    for (int i = 0; i < N_FOLDERS; i++) /* two of each family by turns */
        check_all(folders[i].dir, folders[i].dir, TAMIS_PROFILE_ASCEND,
                  i / 2 % 2 == 0 ? folders[i].packed : TAMIS_DTYPE_BF16);
}

/* Integer linears: fixed input scales with int4 experts, and scales of every token. */
static void test_ascend_folders(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        tamis_quant_scheme attention, experts;
    } twins[] = {
        {"tests/golden/glm5-bf16", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W4A8_DYNAMIC},
        {"tests/golden/v4-flash-fp8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC},
        {"tests/golden/v4-official", TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W4A8_DYNAMIC}};
    rng = test_rng_start("ascend folders", 83);
    for (size_t i = 0; i < (TEST_IS_SANITIZED ? 1 : sizeof twins / sizeof *twins); i++) {
        char *dir = quantize_ok(
            quantize_params(twins[i].source, twins[i].attention, twins[i].experts), NULL);
        check_all(dir, twins[i].source, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO);
        test_temp_dir_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_official),
        cmocka_unit_test(test_ascend),
        cmocka_unit_test(test_ascend_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
