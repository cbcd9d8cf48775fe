/* float32 arrays in NumPy's .npy format, version 1.0, C order. A refused call ends the program. */
#ifndef TAMIS_TEST_NPY_H
#define TAMIS_TEST_NPY_H

#include <stddef.h>
#include <stdint.h>

#define TEST_NPY_MAX_DIMS 4

typedef struct test_npy {
    int n_dims;
    int64_t shape[TEST_NPY_MAX_DIMS];
    float *data; /* product of shape values, freed by test_npy_free */
} test_npy;

test_npy test_npy_read(const char *path);
void test_npy_write(const char *path, const float *data, int n_dims, const int64_t *shape);
int64_t test_npy_count(const test_npy *array); /* number of values */
void test_npy_free(test_npy *array);

#endif
