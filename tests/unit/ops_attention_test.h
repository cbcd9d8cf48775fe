/* What the tests of sparse attention share: random lists over rows of any format, run with any
 * number of threads and outputs anywhere. */
#ifndef TAMIS_TEST_OPS_ATTENTION_TEST_H
#define TAMIS_TEST_OPS_ATTENTION_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/sparse_attn.h"
#include "support/exec.h"
#include "support/rng.h"

enum { MAX_THREADS = 5, MAX_TOKENS = 14, MAX_HEADS = 40, MAX_LIST = 400, NUM_ROWS = 400 };
enum { MAX_CHUNKS = (MAX_LIST + TAMIS_ATTN_CHUNK - 1) / TAMIS_ATTN_CHUNK };
static const float SCALE = 0.3f;

typedef struct attn_case {
    tamis_profile profile;
    int32_t n_tokens, num_heads, head_dim, value_dim;
    float *q;
    tamis_row_format format;
    uint8_t *rows; /* [NUM_ROWS][format.row_bytes] */
    float sink[MAX_HEADS];
    bool has_sink;
    int32_t list[MAX_TOKENS][MAX_LIST], list_len[MAX_TOKENS]; /* row numbers or -1 */
    int64_t unit_start[MAX_TOKENS + 1], bounds[MAX_THREADS + 1];
    int32_t first_item[MAX_THREADS];
    /* of the running job: times that each head was done, and what it was then */
    uint8_t n_done[MAX_TOKENS][MAX_HEADS];
    float *o_done;
} attn_case;

/* Where the outputs of a run go. */
typedef enum place {
    PLACE_PACKED, /* tokens side by side */
    PLACE_SPACED, /* a gap behind each token */
    PLACE_OF_Q,   /* in the queries' array */
    NUM_PLACES
} place;

typedef struct attn_result {
    float *o, *lse; /* [n_tokens][num_heads][value_dim], [n_tokens][num_heads] */
    bool was_shared;
} attn_result;

static int32_t case_rows(const void *user, int32_t token, int32_t first, int32_t n,
                         const void **out)
{
    const attn_case *c = user;
    int32_t n_found = 0;
    for (int32_t i = first; i < first + n; i++)
        if (c->list[token][i] >= 0)
            out[n_found++] = c->rows + (int64_t)c->list[token][i] * c->format.row_bytes;
    return n_found;
}

static size_t q_floats(const attn_case *c)
{
    return (size_t)c->n_tokens * (size_t)c->num_heads * (size_t)c->head_dim;
}
static int64_t o_row(const attn_case *c)
{
    return (int64_t)c->num_heads * c->value_dim;
}

static void case_done(const void *user, int32_t token, float *o, int32_t begin, int32_t end)
{
    attn_case *c = (attn_case *)(uintptr_t)user;
    const int64_t first = (int64_t)begin * c->value_dim;
    for (int32_t h = begin; h < end; h++)
        c->n_done[token][h]++;
    memcpy(c->o_done + token * o_row(c) + first, o + first,
           (size_t)((end - begin) * c->value_dim) * sizeof *o);
}

/* Rows of noise, one place in ten empty. Dimensions and profile are set. */
static void case_fill(attn_case *c, test_rng *rng)
{
    c->has_sink = test_rng_int(rng, 0, 1) == 0;
    c->q = malloc(q_floats(c) * sizeof(float));
    c->o_done = malloc((size_t)(c->n_tokens * o_row(c)) * sizeof(float));
    test_rng_fill_normal(rng, c->q, q_floats(c));
    test_rng_fill_normal(rng, c->sink, MAX_HEADS);
    for (int32_t t = 0; t < c->n_tokens; t++) {
        c->list_len[t] = (int32_t)test_rng_int(rng, t == 0 ? 0 : 1, MAX_LIST);
        for (int32_t i = 0; i < MAX_LIST; i++)
            c->list[t][i] =
                test_rng_int(rng, 0, 9) == 0 ? -1 : (int32_t)test_rng_int(rng, 0, NUM_ROWS - 1);
    }
}

static attn_case *case_new(test_rng *rng, int32_t max_heads, int32_t max_dim)
{
    attn_case *c = calloc(1, sizeof *c);
    c->n_tokens = (int32_t)test_rng_int(rng, 1, test_rng_int(rng, 0, 1) ? 3 : MAX_TOKENS);
    c->num_heads = (int32_t)test_rng_int(rng, 1, max_heads);
    c->head_dim = (int32_t)test_rng_int(rng, 1, max_dim);
    c->value_dim =
        test_rng_int(rng, 0, 2) == 0 ? c->head_dim : (int32_t)test_rng_int(rng, 1, c->head_dim);
    c->format = tamis_row_format_plain(TAMIS_DTYPE_F32, c->head_dim);
    c->rows = malloc((size_t)(NUM_ROWS * c->format.row_bytes));
    test_rng_fill_normal(rng, (float *)(void *)c->rows, (size_t)(NUM_ROWS * c->head_dim));
    case_fill(c, rng);
    return c;
}

static void case_free(attn_case *c)
{
    free(c->q);
    free(c->rows);
    free(c->o_done);
    free(c);
}

static void result_free(attn_result *result)
{
    free(result->o);
    free(result->lse);
}

/* What lies behind a token's outputs must still be what it was: noise, or the end of its query. */
static void collect(const attn_case *c, float *packed, const float *o, const float *before,
                    int64_t stride)
{
    const size_t row = (size_t)o_row(c), gap = (size_t)stride - row;
    for (int32_t t = 0; t < c->n_tokens; t++) {
        memcpy(packed + (size_t)t * row, o + t * stride, row * sizeof *o);
        if (gap > 0)
            assert_memory_equal(o + t * stride + row, before + t * stride + row, gap * sizeof *o);
        for (int32_t h = 0; h < c->num_heads; h++)
            assert_int_equal(c->n_done[t][h], 1);
    }
    assert_memory_equal(c->o_done, packed, (size_t)c->n_tokens * row * sizeof *o);
}

static tamis_attn_job job_of(attn_case *c, const tamis_partition *partition)
{
    return (tamis_attn_job){.n_tokens = c->n_tokens,
                            .num_heads = c->num_heads,
                            .head_dim = c->head_dim,
                            .value_dim = c->value_dim,
                            .format = &c->format,
                            .scale = SCALE,
                            .sink = c->has_sink ? c->sink : NULL,
                            .partition = partition,
                            .list_len = c->list_len,
                            .max_chunks = c->profile == TAMIS_PROFILE_EXACT ? MAX_CHUNKS : 1,
                            .rows = case_rows,
                            .done = case_done,
                            .user = c};
}

/* Runs a job whose places are set, with just the memory that it may use. */
static void run_job(attn_case *c, tamis_attn_job *job, int n_threads, tamis_cpu_level level)
{
    const size_t floats =
        tamis_attn_partial_floats(c->num_heads, c->value_dim, job->max_chunks, n_threads);
    tamis_exec exec = test_exec_open(
        n_threads, level, tamis_attn_scratch_floats(c->num_heads, c->head_dim, c->value_dim));
    exec.profile = c->profile;
    memset(c->n_done, 0, sizeof c->n_done);
    job->partials = malloc(floats * sizeof(float) + 1);
    tamis_attn_run(&exec, job);
    free(job->partials);
    test_exec_close(&exec);
}

static attn_result run_case(attn_case *c, int n_threads, tamis_cpu_level level, place where,
                            bool wants_lse)
{
    tamis_partition p = {c->n_tokens, n_threads, c->unit_start, c->bounds, c->first_item, false};
    for (int32_t t = 0; t < c->n_tokens; t++) /* a list without entries still has its output */
        c->unit_start[t + 1] =
            c->unit_start[t] + (c->list_len[t] > 0 ? tamis_attn_num_chunks(c->list_len[t]) : 1);
    tamis_partition_build(&p);
    const int64_t q_stride = (int64_t)c->num_heads * c->head_dim;
    const int64_t stride = where == PLACE_OF_Q ? q_stride : o_row(c) + (where == PLACE_SPACED) * 9;
    const size_t o_bytes = (size_t)(c->n_tokens * stride) * sizeof(float);
    const size_t n_lse = (size_t)(c->n_tokens * c->num_heads);
    float *o = malloc(o_bytes), *before = malloc(o_bytes);
    attn_result result = {malloc((size_t)(c->n_tokens * o_row(c)) * sizeof(float)),
                          malloc(n_lse * sizeof(float)), p.has_split_items};
    memset(o, 0x55, o_bytes);
    memset(result.lse, 0x55, n_lse * sizeof(float));
    if (where == PLACE_OF_Q)
        memcpy(o, c->q, o_bytes);
    memcpy(before, o, o_bytes);
    tamis_attn_job job = job_of(c, &p);
    job.q = where == PLACE_OF_Q ? o : c->q;
    job.o = o;
    job.o_stride = stride;
    job.lse = wants_lse ? result.lse : NULL;
    run_job(c, &job, n_threads, level);
    collect(c, result.o, o, before, stride);
    free(o);
    free(before);
    return result;
}

static void expect_same(const attn_case *c, const attn_result *want, const attn_result *got,
                        bool with_lse)
{
    assert_memory_equal(got->o, want->o, (size_t)(c->n_tokens * o_row(c)) * sizeof(float));
    if (with_lse)
        assert_memory_equal(got->lse, want->lse,
                            (size_t)(c->n_tokens * c->num_heads) * sizeof(float));
}

/* Any number of threads, any place of the outputs: what one portable thread has. Returns how many
 * runs shared tokens between threads. */
static int expect_same_everywhere(attn_case *c, const attn_result *want, int round)
{
    int n_shared = 0;
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++)
        for (int where = 0; where < NUM_PLACES; where++) {
            const bool wants_lse = (n_threads + where + round) % 4 != 0;
            attn_result got =
                run_case(c, n_threads, tamis_cpu_level_available(), (place)where, wants_lse);
            expect_same(c, want, &got, wants_lse);
            n_shared += got.was_shared;
            result_free(&got);
        }
    return n_shared;
}

#endif
