/*
 * Reading the golden files: an own small safetensors reader, so that a fault in the library's
 * reader cannot hide behind itself. Anything unexpected ends the test program with a message.
 */
#ifndef TAMIS_TEST_GOLDEN_H
#define TAMIS_TEST_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct test_golden test_golden;

/* Opens dir/name (usually "golden.safetensors"). */
test_golden *test_golden_open(const char *dir, const char *name);
void test_golden_close(test_golden *golden);

bool test_golden_has(const test_golden *golden, const char *name);
/* Dimension `axis` of a tensor. */
int64_t test_golden_dim(const test_golden *golden, const char *name, int axis);
/* Values of an F32 tensor; freed with the file. */
const float *test_golden_f32(const test_golden *golden, const char *name, int64_t *n);
/* Values of a BF16 tensor as floats; to be freed by the caller. */
float *test_golden_widened(const test_golden *golden, const char *name, int64_t *n);
/* Bytes of an F8_E8M0 tensor; freed with the file. */
const uint8_t *test_golden_e8m0(const test_golden *golden, const char *name, int64_t *n);
/* Values of an I64 or I32 tensor as int32; to be freed by the caller. */
int32_t *test_golden_ids(const test_golden *golden, const char *name, int64_t *n);
/* Metadata, which the files hold as decimal strings. */
double test_golden_meta(const test_golden *golden, const char *key);

/* Where the data of a tensor lies inside any safetensors file (for tests that damage one). */
typedef struct test_tensor_place {
    char dtype[16];
    size_t offset, bytes; /* in the file */
} test_tensor_place;
bool test_safetensors_place(const char *dir, const char *file, const char *tensor,
                            test_tensor_place *out);

#endif
