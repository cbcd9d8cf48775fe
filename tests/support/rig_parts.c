#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/rig_parts.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

void *test_take(int64_t n, size_t size)
{
    void *block = calloc((size_t)n + 1, size);
    if (block == NULL)
        fail_msg("out of memory");
    return block;
}

/* ---------------------------------------------------------------- weights */

static void *keep(test_owned *owned, int64_t n, size_t size)
{
    assert_true(owned->n_blocks < (int)(sizeof owned->blocks / sizeof *owned->blocks));
    return owned->blocks[owned->n_blocks++] = test_take(n, size);
}

void test_owned_free(test_owned *owned)
{
    while (owned->n_blocks > 0)
        free(owned->blocks[--owned->n_blocks]);
}

/* Upper half of a float: truncated, any bf16 will do. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Any sign and mantissa, size between 1/8 and 4. */
static uint8_t random_e4m3(uint64_t random)
{
    return (uint8_t)((random & 0x80) | ((4 << 3) + (random >> 32) % (5 << 3)));
}

static tamis_matrix random_fp8(test_owned *owned, int64_t rows, int64_t cols, int32_t block_size,
                               test_rng *rng)
{
    const int64_t block_rows = (rows + block_size - 1) / block_size;
    const int64_t block_cols = (cols + block_size - 1) / block_size;
    uint8_t *data = keep(owned, rows * cols, 1);
    float *scale = keep(owned, block_rows * block_cols, sizeof *scale);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = random_e4m3(test_rng_u64(rng));
    for (int64_t i = 0; i < block_rows * block_cols; i++)
        scale[i] = test_rng_float(rng, 0.3f, 1.0f) / sqrtf((float)cols);
    return (tamis_matrix){.dtype = TAMIS_DTYPE_F8_E4M3,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols,
                          .scale = scale,
                          .scale_dtype = TAMIS_DTYPE_F32,
                          .block_rows = block_size,
                          .block_cols = block_size,
                          .scale_row_bytes = block_cols * (int64_t)sizeof *scale};
}

tamis_matrix test_random_matrix(test_owned *owned, tamis_dtype dtype, int64_t rows, int64_t cols,
                                int32_t block_size, test_rng *rng)
{
    if (dtype == TAMIS_DTYPE_F8_E4M3)
        return random_fp8(owned, rows, cols, block_size, rng);
    const size_t width = dtype == TAMIS_DTYPE_F32 ? 4 : 2;
    uint8_t *data = keep(owned, rows * cols, width);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = test_rng_normal(rng) / sqrtf((float)cols);
        const uint16_t high = bf16_of(value);
        memcpy(data + (size_t)i * width, width == 4 ? (const void *)&value : &high, width);
    }
    return (tamis_matrix){.dtype = dtype,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols * (int64_t)width};
}

const float *test_random_vector(test_owned *owned, int64_t n, float mean, float deviation,
                                test_rng *rng)
{
    float *values = keep(owned, n, sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = mean + deviation * test_rng_normal(rng);
    return values;
}

float *test_inputs(int32_t n, int32_t hidden_size, test_rng *rng)
{
    float *x = test_take((int64_t)n * hidden_size, sizeof *x);
    test_rng_fill_normal(rng, x, (size_t)n * (size_t)hidden_size);
    return x;
}

double *test_widened(const float *x, int64_t n)
{
    double *wide = test_take(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    return wide;
}

/* ---------------------------------------------------------------- caches */

static void fill_row(const tamis_cache *cache, uint8_t *row, float value)
{
    const tamis_row_format *format = &cache->desc.format;
    float *values = test_take(format->num_values, sizeof *values);
    for (int32_t i = 0; i < format->num_values; i++)
        values[i] = value;
    tamis_kernels_current()->pack_row(row, row + format->scale_at, format, values);
    free(values);
}

void test_store_fill(const tamis_cache_store *store, float value)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        const bool is_ring = cache->desc.life == TAMIS_CACHE_RING;
        for (int32_t b = 0; b < (is_ring ? store->n_slots : store->n_blocks); b++)
            for (int32_t r = 0; r < cache->desc.rows; r++)
                fill_row(cache,
                         is_ring ? tamis_cache_ring_row(cache, b, r)
                                 : tamis_cache_block_row(cache, b, r),
                         value);
    }
}

float *test_cache_row(const tamis_cache *cache, const void *row)
{
    const tamis_row_format *format = &cache->desc.format;
    float *out = test_take(format->num_values, sizeof *out);
    tamis_kernels_current()->unpack_row(out, row, (const uint8_t *)row + format->scale_at, format);
    return out;
}
