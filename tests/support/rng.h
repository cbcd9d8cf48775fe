/*
 * A small seeded generator for tests (splitmix64). test_rng_start prints the seed it used; the
 * environment variable TAMIS_TEST_SEED replaces the default one, so a failure can be repeated and
 * other seeds can be tried.
 */
#ifndef TAMIS_TEST_RNG_H
#define TAMIS_TEST_RNG_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct test_rng {
    uint64_t state;
} test_rng;

static inline test_rng test_rng_start(const char *name, uint64_t default_seed)
{
    const char *text = getenv("TAMIS_TEST_SEED");
    test_rng rng = {text != NULL ? strtoull(text, NULL, 0) : default_seed};
    printf("%s: seed %llu\n", name, (unsigned long long)rng.state);
    return rng;
}
static inline uint64_t test_rng_u64(test_rng *rng)
{
    uint64_t z = rng->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
/* An integer in [low, high], both included. */
static inline int64_t test_rng_int(test_rng *rng, int64_t low, int64_t high)
{
    return low + (int64_t)(test_rng_u64(rng) % ((uint64_t)(high - low) + 1));
}
/* A float in [low, high). */
static inline float test_rng_float(test_rng *rng, float low, float high)
{
    return low + (high - low) * (float)(test_rng_u64(rng) >> 40) * 0x1p-24f;
}
/* Standard normal. */
static inline float test_rng_normal(test_rng *rng)
{
    const double u = ((double)(test_rng_u64(rng) >> 11) + 1.0) * 0x1p-53;
    const double v = (double)(test_rng_u64(rng) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
static inline void test_rng_fill_normal(test_rng *rng, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = test_rng_normal(rng);
}
static inline void test_rng_fill_bytes(test_rng *rng, void *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = (uint8_t)test_rng_u64(rng);
}
/* Fisher-Yates over 0 .. n-1. */
static inline void test_rng_permutation(test_rng *rng, int32_t *out, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t j = (int32_t)test_rng_int(rng, 0, i);
        out[i] = out[j];
        out[j] = i;
    }
}

#endif
