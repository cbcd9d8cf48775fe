/*
 * What the kernel tests share: slow double-precision references written from the contracts (not
 * from src/kernels), data that reaches branches, memory that ends at a protected page, and the
 * comparison "same bits, NaN equals NaN".
 */
#ifndef TAMIS_TEST_KERNEL_REF_H
#define TAMIS_TEST_KERNEL_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "support/guard.h"
#include "support/rng.h"
#include "tamis/base.h"

/* ---------------------------------------------------------------- formats, by arithmetic */

double kernel_ref_bf16(uint16_t h);
double kernel_ref_f16(uint16_t h);
double kernel_ref_e4m3(uint8_t b);
double kernel_ref_e2m1(uint8_t nibble);
double kernel_ref_e8m0(uint8_t b);
/* decode * scale of element (row, c), in double. */
double kernel_ref_weight(const tamis_matrix *w, int64_t row, int64_t c);
/* Elements of a storage type (F32 or BF16) at any address. */
double kernel_ref_cached(const void *row, tamis_dtype dtype, int64_t c);

/* ---------------------------------------------------------------- operators, in double */

/* softmax(scores with an optional sink) over n entries; returns the log of the denominator. */
double kernel_ref_softmax(double *p, const double *scores, int64_t n, const float *sink);
/* One head over n rows: out [value_dim]; returns the LSE. q [head_dim]. */
double kernel_ref_attention(double *out, const float *q, int64_t head_dim, int64_t value_dim,
                            const void *const *rows, tamis_dtype dtype, int64_t n, double scale,
                            const float *sink);
/* sum over h of weight[h] * relu(q[h] . key); *magnitude gets the sum of absolute terms. */
double kernel_ref_index_score(const float *q, const float *weights, int64_t n_heads,
                              int64_t head_dim, const void *key, tamis_dtype dtype,
                              double *magnitude);

/* ---------------------------------------------------------------- data */

typedef enum kernel_data {
    KERNEL_DATA_NORMAL,  /* standard normal */
    KERNEL_DATA_EQUAL,   /* one value everywhere: ties */
    KERNEL_DATA_WIDE,    /* magnitudes from 2^-40 to 2^40 */
    KERNEL_DATA_TINY,    /* denormals, zeros of both signs */
    KERNEL_DATA_SPECIAL, /* some infinities, NaN, zeros among normal values */
    KERNEL_NUM_DATA
} kernel_data;

void kernel_fill(test_rng *rng, kernel_data kind, float *out, size_t n);
/* n values of F32 or BF16 at any address. */
void kernel_fill_cached(test_rng *rng, kernel_data kind, void *out, tamis_dtype dtype, size_t n);

/* ---------------------------------------------------------------- memory */

/* `bytes` bytes that end where an unreadable page begins. */
typedef struct kernel_page {
    void *data;
    void *map;
    size_t map_bytes;
} kernel_page;
kernel_page kernel_page_new(size_t bytes);
void kernel_page_free(kernel_page *page);

/* A random matrix whose data and scales each end at a protected page. */
typedef struct kernel_matrix {
    tamis_matrix view;
    kernel_page data, scale;
} kernel_matrix;
/* special: all bytes occur, NaN codes and extreme scales included; else finite, moderate values. */
kernel_matrix kernel_matrix_new(test_rng *rng, tamis_dtype dtype, int64_t rows, int64_t cols,
                                bool scaled, bool special);
void kernel_matrix_free(kernel_matrix *matrix);

/* ---------------------------------------------------------------- comparison */

/* Same bits or both NaN. */
bool kernel_same_f32(float a, float b);
/* First index where a and b differ, or -1. */
int64_t kernel_first_difference(const float *a, const float *b, size_t n);

#endif
