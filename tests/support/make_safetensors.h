/*
 * Writing safetensors files, also unusual and damaged ones. A refused call ends the program.
 *
 *     test_safetensors *file = test_safetensors_new();
 *     test_safetensors_add(file, "norm.weight", "BF16", 1, (int64_t[]){4}, data, 8);
 *     test_safetensors_write(file, dir, "model.safetensors");
 *     test_safetensors_free(file);
 */
#ifndef TAMIS_TEST_MAKE_SAFETENSORS_H
#define TAMIS_TEST_MAKE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#define TEST_MAX_RANK 8

typedef struct test_safetensors test_safetensors;

test_safetensors *test_safetensors_new(void);
void test_safetensors_free(test_safetensors *file);

/* Appends a tensor; data is copied and placed behind that of the tensors before. */
void test_safetensors_add(test_safetensors *file, const char *name, const char *dtype, int rank,
                          const int64_t *shape, const void *data, size_t bytes);
/* Raw JSON members for __metadata__, e.g. "\"format\":\"pt\"". */
void test_safetensors_set_metadata(test_safetensors *file, const char *members);
/* Spaces behind the header until its length is `residue` modulo 8 (default 0, as writers do). */
void test_safetensors_set_residue(test_safetensors *file, size_t residue);
/* Spaces behind the header, on top of that. */
void test_safetensors_set_padding(test_safetensors *file, size_t bytes);

/* The file in memory, to be freed by the caller. */
uint8_t *test_safetensors_bytes(const test_safetensors *file, size_t *bytes);
void test_safetensors_write(const test_safetensors *file, const char *dir, const char *name);

/* A file from any header text and data. */
uint8_t *test_safetensors_raw(const char *header, const void *data, size_t data_bytes,
                              size_t *bytes);

/* Copies a file with spaces behind its header, so that its length is `residue` modulo 8. */
void test_safetensors_copy_padded(const char *from_dir, const char *to_dir, const char *name,
                                  size_t residue);

#endif
