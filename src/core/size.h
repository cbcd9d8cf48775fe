/* Checked size arithmetic for anything that comes from a file or a caller. */
#ifndef TAMIS_CORE_SIZE_H
#define TAMIS_CORE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool tamis_size_add(size_t a, size_t b, size_t *out)
{
    *out = a + b;
    return *out >= a;
}
static inline bool tamis_size_mul(size_t a, size_t b, size_t *out)
{
    *out = a * b;
    return b == 0 || a <= SIZE_MAX / b;
}
static inline int64_t tamis_ceil_div(int64_t a, int64_t b) /* a >= 0, b > 0 */
{
    return (a + b - 1) / b;
}
static inline int64_t tamis_round_up(int64_t a, int64_t multiple)
{
    return tamis_ceil_div(a, multiple) * multiple;
}
static inline int64_t tamis_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tamis_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
