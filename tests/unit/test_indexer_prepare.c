/*
 * Index queries, head weights and index keys in the profiles of both families, against doubles by
 * docs/numerics-profiles.md. Inputs hold few enough bits that sums in f32 are exact, so codes,
 * scales and weights are compared to the bit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/common/indexer.h"
#include "core/size.h"
#include "support/exec.h"
#include "support/lowbit_ref.h"
#include "support/rng.h"

enum { MAX_TOKENS = 3, MAX_HEADS = 20, MAX_PADDED = 32, MAX_DIM = 128, MAX_GROUPS = 4 };

/* A line of the tables. */
typedef struct variant {
    tamis_profile profile;
    tamis_index_family family;
    tamis_row_layout layout;
} variant;

static const variant variants[] = {
    {TAMIS_PROFILE_OFFICIAL, TAMIS_INDEX_V4, TAMIS_ROWS_INDEX_FP4},
    {TAMIS_PROFILE_OFFICIAL, TAMIS_INDEX_LATENT, TAMIS_ROWS_INDEX_FP8},
    {TAMIS_PROFILE_ASCEND, TAMIS_INDEX_V4, TAMIS_ROWS_INDEX_INT8},
    {TAMIS_PROFILE_ASCEND, TAMIS_INDEX_LATENT, TAMIS_ROWS_INDEX_INT8}};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants };

typedef struct buffers {
    float q[MAX_TOKENS * MAX_HEADS * MAX_DIM], w_raw[MAX_TOKENS * MAX_HEADS];
    float w[MAX_TOKENS * MAX_PADDED], q_scales[MAX_TOKENS * MAX_PADDED * MAX_GROUPS];
    int8_t q_codes[MAX_TOKENS * MAX_PADDED * MAX_DIM];
} buffers;

static tamis_indexer indexer_of(buffers *b, tamis_index_family family)
{
    return (tamis_indexer){.family = family,
                           .q = b->q,
                           .w_raw = b->w_raw,
                           .w = b->w,
                           .q_codes = b->q_codes,
                           .q_scales = b->q_scales};
}

/* n values that rounding to BF16 changes, near 1 to 16: sums over 128 of them are exact in f32. */
static void fill_values(test_rng *rng, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (test_rng_int(rng, 0, 1) ? 1 : -1) * test_rng_float(rng, 1, 16);
}

static void fill(test_rng *rng, buffers *b, tamis_indexer_dims dims, bool is_bf16)
{
    memset(b, 0x55, sizeof *b);
    fill_values(rng, b->q, (int64_t)MAX_TOKENS * dims.n_heads * dims.head_dim);
    for (int i = 0; i < MAX_TOKENS * dims.n_heads; i++) {
        const float w = test_rng_normal(rng);
        b->w_raw[i] = is_bf16 ? (float)lowbit_bf16((double)w) : w;
    }
}

/* ---------------------------------------------------------------- by the definitions */

/* x after rounding and rotation. */
static void rotate_slowly(double *out, const float *x, int64_t n, const variant *v)
{
    double rounded[MAX_DIM];
    const double unit = lowbit_f32(1 / sqrt((double)n));
    const bool is_ascend = v->profile == TAMIS_PROFILE_ASCEND;
    for (int64_t i = 0; i < n; i++)
        rounded[i] = lowbit_bf16((double)x[i]);
    lowbit_hadamard(out, rounded, n);
    for (int64_t i = 0; i < n; i++) {
        assert_true(lowbit_f32(out[i]) == out[i]); /* or nothing is said about the bits */
        if (is_ascend && v->family == TAMIS_INDEX_V4)
            out[i] = lowbit_bf16(lowbit_f32(lowbit_bf16(out[i]) * unit));
        else
            out[i] = lowbit_bf16(lowbit_f32(out[i] * (is_ascend ? lowbit_bf16(unit) : unit)));
    }
}

static double weight_slowly(double w, double scale, tamis_indexer_dims dims, const variant *v)
{
    const double by_dim = 1 / sqrt((double)dims.head_dim),
                 by_heads = 1 / sqrt((double)dims.n_heads);
    if (v->family == TAMIS_INDEX_V4)
        w = lowbit_bf16(lowbit_f32(w * lowbit_f32(by_dim * by_heads)));
    if (v->profile == TAMIS_PROFILE_ASCEND)
        return lowbit_f16(lowbit_f16(w) * lowbit_f16(scale));
    if (v->family == TAMIS_INDEX_V4)
        return w;
    w = lowbit_f32(w * lowbit_f32(by_heads));
    return lowbit_f32(lowbit_f32(w * scale) * lowbit_f32(by_dim));
}

/* Codes of a head as numbers; returns the (last) scale, which weights hold but for FP4. */
static double code_slowly(double *codes, double *scales, const double *x, int64_t n,
                          const variant *v)
{
    if (v->layout != TAMIS_ROWS_INDEX_FP4)
        return lowbit_quantize(codes, x, n,
                               v->layout == TAMIS_ROWS_INDEX_FP8 ? LOWBIT_E4M3 : LOWBIT_INT8,
                               v->layout == TAMIS_ROWS_INDEX_FP8 ? LOWBIT_POW2 : LOWBIT_AMAX);
    for (int64_t g = 0; g * 32 < n; g++)
        scales[g] = lowbit_quantize(codes + g * 32, x + g * 32, 32, LOWBIT_E2M1, LOWBIT_POW2);
    return NAN;
}

/* ---------------------------------------------------------------- queries and weights */

static void check_head(const buffers *b, const float *before, tamis_indexer_dims dims, int64_t t,
                       int64_t h, const variant *v)
{
    const int64_t n = dims.head_dim, padded = tamis_round_up(dims.n_heads, TAMIS_LANES);
    const int64_t at = t * padded + h;
    const float *q = b->q + (t * dims.n_heads + h) * n;
    double x[MAX_DIM], codes[MAX_DIM], scales[MAX_GROUPS];
    rotate_slowly(x, before + (t * dims.n_heads + h) * n, n, v);
    const double scale = code_slowly(codes, scales, x, n, v);
    for (int64_t d = 0; d < n; d++) {
        const double got = v->layout == TAMIS_ROWS_INDEX_FP8   ? (double)q[d]
                           : v->layout == TAMIS_ROWS_INDEX_FP4 ? b->q_codes[at * n + d] / 2.0
                                                               : b->q_codes[at * n + d];
        assert_true(got == codes[d]);
    }
    for (int64_t g = 0; g < n / 32 && v->layout == TAMIS_ROWS_INDEX_FP4; g++)
        assert_true((double)b->q_scales[at * (n / 32) + g] == scales[g]);
    assert_true((double)b->w[at] ==
                weight_slowly((double)b->w_raw[t * dims.n_heads + h], scale, dims, v));
}

static void check_unused(const buffers *b, tamis_indexer_dims dims, int64_t t, const variant *v)
{
    const int64_t n = dims.head_dim, padded = tamis_round_up(dims.n_heads, TAMIS_LANES);
    for (int64_t h = dims.n_heads; h < padded; h++) {
        assert_true(b->w[t * padded + h] == 0);
        for (int64_t d = 0; d < n && v->layout != TAMIS_ROWS_INDEX_FP8; d++)
            assert_int_equal(b->q_codes[(t * padded + h) * n + d], 0);
        for (int64_t g = 0; g < n / 32 && v->layout == TAMIS_ROWS_INDEX_FP4; g++)
            assert_true(b->q_scales[(t * padded + h) * (n / 32) + g] == 0);
    }
}

static void test_queries(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index queries", 51);
    buffers *b = malloc(sizeof *b), *before = malloc(sizeof *b);
    for (int round = 0; round < 80; round++) {
        const variant *v = &variants[round % NUM_VARIANTS];
        const tamis_indexer_dims dims = {(int32_t)test_rng_int(&rng, 1, MAX_HEADS),
                                         32 << test_rng_int(&rng, 0, 2), 8};
        const tamis_indexer indexer = indexer_of(b, v->family);
        tamis_row_format format;
        tamis_exec exec = {.kernels = tamis_kernels_for(round / NUM_VARIANTS % 2
                                                            ? TAMIS_CPU_PORTABLE
                                                            : tamis_cpu_level_available()),
                           .profile = v->profile};
        assert_int_equal(tamis_row_format_make(&format, v->layout, dims.head_dim, 0, NULL),
                         TAMIS_STATUS_OK);
        fill(&rng, b, dims, v->family == TAMIS_INDEX_V4 || v->profile == TAMIS_PROFILE_ASCEND);
        *before = *b;
        for (int64_t t = 0; t < MAX_TOKENS; t++)
            assert_true(tamis_indexer_prepare(&indexer, &exec, dims, &format, t));
        for (int64_t t = 0; t < MAX_TOKENS; t++) {
            for (int64_t h = 0; h < dims.n_heads; h++)
                check_head(b, before->q, dims, t, h, v);
            check_unused(b, dims, t, v);
        }
    }
    free(b);
    free(before);
}

/* Profile exact: the query stays, the weights are scaled. */
static void test_exact(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index queries, exact", 52);
    const tamis_indexer_dims dims = {5, 40, 8};
    const tamis_row_format format = tamis_row_format_plain(TAMIS_DTYPE_F32, 40);
    const tamis_exec exec = {.kernels = tamis_kernels_current()};
    buffers *b = malloc(sizeof *b), *before = malloc(sizeof *b);
    const tamis_indexer indexer = indexer_of(b, TAMIS_INDEX_LATENT);
    fill(&rng, b, dims, false);
    *before = *b;
    assert_true(tamis_indexer_prepare(&indexer, &exec, dims, &format, 1));
    assert_memory_equal(b->q, before->q, sizeof b->q);
    for (int h = 0; h < 16; h++)
        assert_true(fabs((double)b->w[16 + h] - (h < 5 ? (double)b->w_raw[5 + h] / sqrt(200) : 0)) <
                    1e-7);
    free(b);
    free(before);
}

/* A NaN or an infinity in query or weights is reported, in every profile. */
static void test_no_numbers(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index queries, NaN", 53);
    const tamis_indexer_dims dims = {3, 32, 8};
    buffers *b = malloc(sizeof *b);
    for (int round = 0; round < 4 * NUM_VARIANTS; round++) {
        const variant *v = &variants[round / 4];
        const tamis_indexer indexer = indexer_of(b, v->family);
        const tamis_exec exec = {.kernels = tamis_kernels_current(), .profile = v->profile};
        tamis_row_format format;
        assert_int_equal(tamis_row_format_make(&format, v->layout, 32, 0, NULL), TAMIS_STATUS_OK);
        fill(&rng, b, dims, true);
        *(round % 2 ? &b->q[2 * 32 + 7] : &b->w_raw[2]) = round / 2 % 2 ? NAN : INFINITY;
        assert_false(tamis_indexer_prepare(&indexer, &exec, dims, &format, 0));
        assert_true(tamis_indexer_prepare(&indexer, &exec, dims, &format, 1));
    }
    free(b);
}

/* ---------------------------------------------------------------- keys, ranks */

static void test_keys(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index keys", 54);
    const tamis_kernels *kernels = tamis_kernels_current();
    for (int round = 0; round < 40; round++) {
        const variant *v = &variants[round % NUM_VARIANTS];
        const int32_t n = 32 << test_rng_int(&rng, 0, 2);
        float key[MAX_DIM], before[MAX_DIM];
        double want[MAX_DIM];
        fill_values(&rng, before, n);
        memcpy(key, before, sizeof key);
        tamis_indexer_rotate_key(kernels, TAMIS_PROFILE_EXACT, v->family, key, n);
        assert_memory_equal(key, before, (size_t)n * sizeof *key);
        tamis_indexer_rotate_key(kernels, v->profile, v->family, key, n);
        rotate_slowly(want, before, n, v);
        for (int32_t i = 0; i < n; i++)
            assert_true((double)key[i] == want[i]);
    }
}

/* Only V4's official code attends to rows in the order of their scores. */
static void test_ranks(void **state)
{
    (void)state;
    for (int profile = 0; profile < TAMIS_NUM_PROFILES; profile++) {
        assert_false(tamis_indexer_is_ranked((tamis_profile)profile, TAMIS_INDEX_LATENT));
        assert_true(tamis_indexer_is_ranked((tamis_profile)profile, TAMIS_INDEX_V4) ==
                    (profile == TAMIS_PROFILE_OFFICIAL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queries),    cmocka_unit_test(test_exact),
        cmocka_unit_test(test_no_numbers), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
