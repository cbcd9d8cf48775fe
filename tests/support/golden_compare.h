/*
 * Engine, oracle and golden folder held against each other: what the tests of both families check
 * alike. Every difference above the claim fails the running cmocka test with folder, layer, stage,
 * position and channel, so that a fault names its place.
 */
#ifndef TAMIS_TEST_GOLDEN_COMPARE_H
#define TAMIS_TEST_GOLDEN_COMPARE_H

#include "support/engine_run.h"
#include "support/golden.h"

/* ---------------------------------------------------------------- engine against golden */

/* A folder and the one-shot prefill of its prompt by the engine with f32 caches. */
typedef struct test_golden_run {
    const char *dir;
    double claim; /* largest difference allowed */
    test_golden *golden;
    test_engine engine;
    test_capture capture; /* of the prefill */
    int32_t *ids, *pos;
    int64_t n, n_pos;
    int32_t seq;   /* still alive, n tokens long */
    float *logits; /* [n][vocab_size] of the prefill */
} test_golden_run;

test_golden_run test_golden_run_open(const char *dir, double claim);
void test_golden_run_close(test_golden_run *run);

/* "layer.<layer>.<stage>" in a buffer that the next call overwrites. */
const char *test_golden_name(int32_t layer, const char *stage);
/* One row; keeps the largest difference in *worst. layer -1: not of a layer. */
void test_golden_row(const test_golden_run *run, int32_t layer, const char *stage, int32_t pos,
                     const float *seen, const float *expected, int64_t width, double *worst);
/* A stage of the taps at all debug positions. */
void test_golden_stage(const test_golden_run *run, int32_t layer, const char *name,
                       tamis_tap_stage stage, double *worst);
/* Selection: the same set, stored ascending, -1 after. */
void test_golden_topk(const test_golden_run *run, int32_t layer);
/* Experts as sets, the weight of each by its id. */
void test_golden_experts(const test_golden_run *run, int32_t layer, double *worst);
/* Logits of every position; prints the largest difference. */
void test_golden_logits(const test_golden_run *run);
/* Feeds the reply token by token: ids equal, logits within the claim. Once per run. */
void test_golden_greedy(test_golden_run *run);

/* Fails unless a and b hold the same n ids in any order. */
void test_golden_same_set(const char *dir, int32_t layer, const char *stage, int32_t pos,
                          const int32_t *seen, const int32_t *expected, int64_t n);

/*
 * An F32 tensor [rows][width] whose rotated channels first .. first + rope - 1 stand as two halves
 * (transformers), with them in neighbouring pairs (tamis). To be freed by the caller.
 */
float *test_golden_pairs(const test_golden *golden, const char *name, int64_t first, int64_t rope);

/* ---------------------------------------------------------------- oracle against golden */

typedef struct test_oracle_check {
    const char *dir;
    double claim;
    const test_golden *golden;
    const int32_t *pos; /* [n_pos] debug positions */
    int64_t n_pos;
    double worst; /* difference so far */
} test_oracle_check;

/* n values. */
void test_oracle_values(test_oracle_check *check, const char *name, const double *seen,
                        const float *expected, int64_t n);
/* Debug positions of a stage; seen [all tokens][width]. */
void test_oracle_stage(test_oracle_check *check, int32_t layer, const char *stage,
                       const double *seen);

/* ---------------------------------------------------------------- engine against oracle */

/*
 * Prompt lengths where faults hide, ascending: 1.. around vectors and blocks, and -1..+5 around
 * each centre. out has room for 64; returns how many are not above `longest`.
 */
int32_t test_border_lengths(int32_t *out, const int32_t *centres, int32_t n_centres,
                            int32_t longest);
/* The first n ids as a prompt of their own: last logits against row n - 1 of expected [..][vocab].
 * Returns the difference; fails above the claim. last (may be NULL): a copy of them. */
double test_prompt_against(test_engine *engine, const char *dir, const int32_t *ids, int32_t n,
                           const double *expected, double claim, float *last);

#endif
