/*
 * Guarded buffers: noise inside, a fixed pattern of 128 bytes on either side, any start offset.
 *
 *     test_guard out = test_guard_new(n * sizeof(float), 4, &rng);    // 4: misaligned by 4 bytes
 *     kernel(out.data, ...);
 *     assert_true(test_guard_intact(&out));
 *     test_guard_free(&out);
 */
#ifndef TAMIS_TEST_GUARD_H
#define TAMIS_TEST_GUARD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "support/rng.h"

#define TEST_GUARD_BYTES ((size_t)128)

typedef struct test_guard {
    void *data;   /* 64-byte aligned plus offset */
    size_t bytes;
    size_t offset;
    uint8_t *block;
} test_guard;

/* Position-dependent, so that a shifted copy of the guard does not pass for it. */
static inline uint8_t test_guard_pattern(size_t i) { return (uint8_t)(0xA5 ^ (i * 37)); }

/* offset < 64 */
static inline test_guard test_guard_new(size_t bytes, size_t offset, test_rng *rng)
{
    test_guard guard = {NULL, bytes, offset, NULL};
    const size_t total = TEST_GUARD_BYTES + offset + bytes + TEST_GUARD_BYTES;
    guard.block = aligned_alloc(64, (total + 63) / 64 * 64);
    if (guard.block == NULL || offset >= 64)
        abort();
    for (size_t i = 0; i < total; i++)
        guard.block[i] = test_guard_pattern(i);
    guard.data = guard.block + TEST_GUARD_BYTES + offset;
    test_rng_fill_bytes(rng, guard.data, bytes);
    return guard;
}
static inline bool test_guard_intact(const test_guard *guard)
{
    const size_t begin = TEST_GUARD_BYTES + guard->offset, end = begin + guard->bytes;
    for (size_t i = 0; i < begin; i++)
        if (guard->block[i] != test_guard_pattern(i))
            return false;
    for (size_t i = end; i < end + TEST_GUARD_BYTES; i++)
        if (guard->block[i] != test_guard_pattern(i))
            return false;
    return true;
}
static inline void test_guard_free(test_guard *guard)
{
    free(guard->block);
    *guard = (test_guard){NULL, 0, 0, NULL};
}

#endif
