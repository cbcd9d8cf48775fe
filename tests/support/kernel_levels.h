/* Shapes, loops over CPU levels and comparisons of the tests of scores and attention. */
#ifndef TAMIS_TEST_KERNEL_LEVELS_H
#define TAMIS_TEST_KERNEL_LEVELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "kernels/math.h"
#include "support/kernel_ref.h"

static inline int64_t pick(test_rng *rng, const int64_t *list, int64_t n)
{
    return list[test_rng_int(rng, 0, n - 1)];
}
#define PICK(rng, list) pick(rng, list, (int64_t)(sizeof(list) / sizeof *(list)))

static const int64_t head_counts[] = {1, 2, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 32, 64};
static const int64_t head_dims[] = {1, 2, 7, 8, 15, 16, 17, 40, 48, 127, 128, 129, 144, 257, 320};
static const int64_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 60, 63, 64};

static inline test_guard new_floats(int64_t n, test_rng *rng)
{
    return test_guard_new((size_t)n * sizeof(float), 4 * (size_t)test_rng_int(rng, 0, 15), rng);
}
static inline int64_t panel_floats(int64_t n_heads, int64_t head_dim)
{
    return (n_heads + 15) / 16 * 16 * head_dim;
}
static inline tamis_cpu_level level_at(int level)
{
    return (tamis_cpu_level)level;
}
#define FOR_EACH_LEVEL(level)                                                                      \
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
#define FOR_EACH_LEVEL_ABOVE_PORTABLE(level)                                                       \
    for (int level = 1; level <= (int)tamis_cpu_level_available(); level++)

/* Fails at the first difference, after both guards were found intact. */
static inline void expect_same(const test_guard *want, const test_guard *got, const char *what)
{
    assert_true(test_guard_intact(want));
    assert_true(test_guard_intact(got));
    const int64_t at = kernel_first_difference(want->data, got->data, want->bytes / sizeof(float));
    if (at >= 0)
        fail_msg("%s[%lld] is %a, portable %a", what, (long long)at,
                 (double)((float *)got->data)[at], (double)((float *)want->data)[at]);
}

#endif
