/*
 * Index selection over keys of every format, ascending and best first: the scores of the contract
 * (kernels.h), computed key by key from the reference's reading of the bytes, then sorted. Scores
 * are equal to the bit, so the selection has to be the sorted one, ties included.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/size.h"
#include "ops/index_select.h"
#include "support/exec.h"
#include "support/lowbit_ref.h"
#include "support/rng.h"
#include "support/sanitized.h"

enum { MAX_THREADS = 4, MAX_TOKENS = 9, MAX_KEYS = 500, MAX_HEADS = 40, MAX_DIM = 128 };
enum { MAX_TOPK = 40, MAX_PADDED = 48, MAX_ROW = 160, MAX_GROUPS = 4 };

typedef struct index_case {
    int32_t n_tokens, n_heads, n_padded, head_dim, topk, run;
    bool best_first;
    tamis_row_format format;
    lowbit_row packed;
    uint8_t keys[MAX_KEYS * MAX_ROW];
    float q[MAX_TOKENS * MAX_HEADS * MAX_DIM];         /* FP8: what keys meet */
    int8_t q_codes[MAX_TOKENS * MAX_PADDED * MAX_DIM]; /* FP4 doubled, int8 */
    float q_scales[MAX_TOKENS * MAX_PADDED * MAX_GROUPS];
    float weights[MAX_TOKENS * MAX_PADDED];
    int32_t visible[MAX_TOKENS];
    float scores[MAX_TOKENS][MAX_KEYS];
    int32_t want[MAX_TOKENS * MAX_TOPK], got[MAX_TOKENS * MAX_TOPK];
} index_case;

static const struct {
    tamis_row_layout layout;
    lowbit_layout ref_layout;
} formats[] = {{TAMIS_ROWS_INDEX_FP4, LOWBIT_ROW_INDEX_FP4},
               {TAMIS_ROWS_INDEX_INT8, LOWBIT_ROW_INDEX_INT8},
               {TAMIS_ROWS_INDEX_FP8, LOWBIT_ROW_INDEX_FP8}};
enum { NUM_FORMATS = sizeof formats / sizeof *formats };

/* ---------------------------------------------------------------- data */

/* Codes of queries; weights that both BF16 and FP16 have. Few different ones: many scores tie. */
static void fill_queries(index_case *c, test_rng *rng)
{
    static const int8_t doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int32_t n_groups = tamis_row_num_groups(&c->format);
    for (int64_t h = 0; h < (int64_t)c->n_tokens * c->n_padded; h++) {
        const bool is_head = h % c->n_padded < c->n_heads;
        c->weights[h] = is_head ? (float)test_rng_int(rng, -16, 16) / 16 : 0;
        for (int32_t g = 0; g < n_groups; g++)
            c->q_scales[h * n_groups + g] = is_head ? ldexpf(1, (int)test_rng_int(rng, -3, 2)) : 0;
        for (int32_t d = 0; d < c->head_dim; d++) {
            const int8_t sign = test_rng_int(rng, 0, 1) ? -1 : 1;
            const int8_t size = c->format.dtype == TAMIS_DTYPE_F4_E2M1
                                    ? doubled[test_rng_int(rng, 0, 7)]
                                    : (int8_t)test_rng_int(rng, 0, 127);
            c->q_codes[h * c->head_dim + d] = (int8_t)(is_head ? sign * size : 0);
        }
    }
    for (int64_t i = 0; i < (int64_t)c->n_tokens * c->n_heads * c->head_dim; i++)
        c->q[i] = (float)lowbit_e4m3((double)(30 * test_rng_normal(rng)));
}

static void fill_keys(index_case *c, test_rng *rng)
{
    double x[MAX_DIM];
    for (int64_t j = 0; j < MAX_KEYS; j++) {
        const float size = ldexpf(1, (int)test_rng_int(rng, -2, 2));
        for (int32_t d = 0; d < c->head_dim; d++)
            x[d] = (double)(size * test_rng_normal(rng));
        lowbit_row_encode(c->keys + j * c->format.row_bytes, &c->packed, x);
    }
    for (int64_t j = 1; j < MAX_KEYS; j++) /* equal keys tie in every format */
        if (test_rng_int(rng, 0, 4) == 0)
            memcpy(c->keys + j * c->format.row_bytes,
                   c->keys + test_rng_int(rng, 0, j - 1) * c->format.row_bytes,
                   (size_t)c->format.row_bytes);
}

static void fill_case(index_case *c, test_rng *rng, int format)
{
    c->n_tokens = (int32_t)test_rng_int(rng, 1, MAX_TOKENS);
    c->n_heads = (int32_t)test_rng_int(rng, 1, MAX_HEADS);
    c->n_padded = (int32_t)tamis_round_up(c->n_heads, TAMIS_LANES);
    c->head_dim = 32 << test_rng_int(rng, 0, 2);
    c->topk = (int32_t)test_rng_int(rng, 1, MAX_TOPK);
    c->run = 32 << test_rng_int(rng, 0, 2);
    assert_int_equal(
        tamis_row_format_make(&c->format, formats[format].layout, c->head_dim, 0, NULL),
        TAMIS_STATUS_OK);
    c->packed = lowbit_row_of(formats[format].ref_layout, c->head_dim, 0);
    assert_int_equal(c->packed.bytes, c->format.row_bytes);
    fill_queries(c, rng);
    fill_keys(c, rng);
    for (int32_t t = 0; t < c->n_tokens; t++)
        c->visible[t] = (int32_t)test_rng_int(rng, 0, test_rng_int(rng, 0, 2) ? MAX_KEYS : c->topk);
}

/* ---------------------------------------------------------------- scores by the contract */

static float lanes_sum(float acc[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            acc[i] += acc[i + half];
    return acc[0];
}

/* One head's term of a score. */
static float head_term(const index_case *c, int32_t t, int32_t h, const double *codes,
                       const double *scales, float acc)
{
    const int64_t head = (int64_t)t * c->n_padded + h, n = c->head_dim;
    const float weight = c->weights[head];
    if (c->format.dtype == TAMIS_DTYPE_F8_E4M3) {
        float dot = 0;
        for (int64_t d = 0; d < n; d++)
            dot = fmaf(c->q[((int64_t)t * c->n_heads + h) * n + d], (float)codes[d], dot);
        return fmaf(weight, dot > 0 ? dot : 0, acc);
    }
    double dot = 0; /* exact: few bits, scales that lie close together */
    for (int64_t d = 0; d < n; d++) {
        const double q = c->q_codes[head * n + d];
        dot +=
            c->format.dtype == TAMIS_DTYPE_I8
                ? q * codes[d]
                : q / 2 * codes[d] * scales[d / 32] * (double)c->q_scales[head * (n / 32) + d / 32];
    }
    dot = dot > 0 ? dot : 0;
    if (c->format.dtype == TAMIS_DTYPE_I8)
        return fmaf(weight, (float)lowbit_f16(dot / 1024), acc);
    return acc + (float)lowbit_bf16((double)weight * lowbit_bf16(dot));
}

static float slow_score(const index_case *c, int32_t t, int32_t j)
{
    double codes[MAX_DIM], scales[MAX_GROUPS];
    float acc[16] = {0};
    lowbit_row_codes(codes, scales, &c->packed, c->keys + (int64_t)j * c->format.row_bytes);
    for (int32_t h = 0; h < c->n_heads; h++)
        acc[h % 16] = head_term(c, t, h, codes, scales, acc[h % 16]);
    const float sum = lanes_sum(acc);
    if (c->format.dtype == TAMIS_DTYPE_F4_E2M1)
        return (float)lowbit_bf16((double)sum);
    return sum * (float)scales[0];
}

static void select_slowly(index_case *c)
{
    for (int32_t t = 0; t < c->n_tokens; t++) {
        bool taken[MAX_KEYS] = {false};
        int32_t *out = c->want + t * c->topk, n = 0;
        for (int32_t j = 0; j < c->visible[t]; j++)
            c->scores[t][j] = slow_score(c, t, j);
        while (n < c->topk && n < c->visible[t]) {
            int32_t best = -1;
            for (int32_t j = 0; j < c->visible[t]; j++)
                if (!taken[j] && (best < 0 || c->scores[t][j] > c->scores[t][best]))
                    best = j;
            taken[best] = true;
            out[n++] = best;
        }
        for (int32_t j = 0, at = 0; j < c->visible[t] && !c->best_first; j++)
            if (taken[j])
                out[at++] = j;
        while (n < c->topk)
            out[n++] = -1;
    }
}

/* ---------------------------------------------------------------- runs */

static const void *case_keys(const void *user, int32_t token, int32_t j, int32_t n, int32_t *n_run,
                             int64_t *stride)
{
    const index_case *c = user;
    const int32_t left = c->run - j % c->run; /* keys are contiguous up to block borders */
    (void)token;
    *n_run = n < left ? n : left;
    *stride = c->format.row_bytes;
    return c->keys + (int64_t)j * c->format.row_bytes;
}

static bool run_case(index_case *c, int n_threads, tamis_cpu_level level)
{
    int64_t unit_start[MAX_TOKENS + 1] = {0}, bounds[MAX_THREADS + 1];
    int32_t first_item[MAX_THREADS], n_partials[2 * MAX_THREADS];
    tamis_candidate partials[2 * MAX_THREADS * MAX_TOPK];
    tamis_partition p = {c->n_tokens, n_threads, unit_start, bounds, first_item, false};
    for (int32_t t = 0; t < c->n_tokens; t++)
        unit_start[t + 1] =
            unit_start[t] + tamis_index_units(c->visible[t], c->topk, c->best_first);
    tamis_partition_build(&p);
    tamis_exec exec = test_exec_open(n_threads, level,
                                     tamis_index_scratch_floats(c->n_heads, c->head_dim, c->topk));
    const tamis_index_job job = {.q = c->q,
                                 .weights = c->weights,
                                 .n_tokens = c->n_tokens,
                                 .n_heads = c->n_heads,
                                 .head_dim = c->head_dim,
                                 .topk = c->topk,
                                 .format = &c->format,
                                 .q_codes = c->q_codes,
                                 .q_scales = c->q_scales,
                                 .best_first = c->best_first,
                                 .visible = c->visible,
                                 .partition = &p,
                                 .out = c->got,
                                 .partials = partials,
                                 .n_partials = n_partials,
                                 .keys = case_keys,
                                 .user = c};
    memset(c->got, 0x55, sizeof c->got);
    const bool ok = tamis_index_run(&exec, &job);
    test_exec_close(&exec);
    return ok;
}

/* Whether some token's selection hangs on the id: a score equal to the worst chosen was left. */
static bool has_tie(const index_case *c)
{
    for (int32_t t = 0; t < c->n_tokens; t++) {
        float worst = INFINITY;
        int n_equal = 0, n_chosen = 0;
        for (int32_t i = 0; i < c->topk && c->visible[t] > c->topk; i++)
            worst = fminf(worst, c->scores[t][c->want[t * c->topk + i]]);
        for (int32_t j = 0; j < c->visible[t]; j++)
            n_equal += c->scores[t][j] == worst;
        for (int32_t i = 0; i < c->topk && c->visible[t] > c->topk; i++)
            n_chosen += c->scores[t][c->want[t * c->topk + i]] == worst;
        if (n_equal > n_chosen)
            return true;
    }
    return false;
}

static void test_selection(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index formats", 31);
    index_case *c = calloc(1, sizeof *c);
    int n_ties[NUM_FORMATS] = {0};
    for (int round = 0; round < (TEST_IS_TSAN ? 30 : 60); round++) {
        const int format = round % NUM_FORMATS;
        c->best_first = round / NUM_FORMATS % 2 == 0;
        fill_case(c, &rng, format);
        select_slowly(c);
        n_ties[format] += has_tie(c);
        const size_t bytes = (size_t)(c->n_tokens * c->topk) * sizeof *c->got;
        assert_true(run_case(c, 1, TAMIS_CPU_PORTABLE));
        assert_memory_equal(c->got, c->want, bytes);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            assert_true(run_case(c, n_threads, tamis_cpu_level_available()));
            assert_memory_equal(c->got, c->want, bytes);
        }
    }
    for (int format = 0; format < NUM_FORMATS; format++)
        assert_true(n_ties[format] > 0);
    free(c);
}

/* Codes of a key with a NaN or an infinity: never chosen, and reported where it leaves too few -
 * where all visible keys are wanted, too. */
static void test_no_numbers(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index formats, NaN", 32);
    index_case *c = calloc(1, sizeof *c);
    for (int format = 0; format < NUM_FORMATS; format++) {
        float x[MAX_DIM] = {1};
        fill_case(c, &rng, format);
        c->best_first = true;
        for (int32_t t = 0; t < c->n_tokens; t++)
            c->visible[t] = c->topk + 1;
        x[1] = NAN;
        tamis_kernels_current()->pack_row(c->keys, c->keys + c->format.scale_at, &c->format, x);
        assert_true(run_case(c, 3, tamis_cpu_level_available()));
        for (int32_t i = 0; i < c->n_tokens * c->topk; i++)
            assert_in_range(c->got[i], 1, c->topk);
        c->visible[0] = c->topk;
        assert_false(run_case(c, 3, tamis_cpu_level_available()));
        assert_int_equal(c->got[c->topk - 1], -1);
    }
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selection),
        cmocka_unit_test(test_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
