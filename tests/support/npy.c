#include "support/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "\x93NUMPY\x01\x00" /* version 1.0: a 16-bit header length follows */
#define MAGIC_BYTES 8
#define PREFIX_BYTES 10

static void die(const char *path, const char *what)
{
    fprintf(stderr, "test support: %s: %s\n", path, what);
    abort();
}

/* "(3, 4)", "(3,)" or "()" after 'shape': */
static void parse_shape(test_npy *array, const char *header, const char *path)
{
    const char *at = strstr(header, "'shape':");
    at = at != NULL ? strchr(at, '(') : NULL;
    if (at == NULL)
        die(path, "header without shape");
    at++;
    for (;;) {
        at += strspn(at, ", ");
        if (*at == ')')
            return;
        char *end;
        const long long dim = strtoll(at, &end, 10);
        if (end == at || dim < 0 || array->n_dims == TEST_NPY_MAX_DIMS)
            die(path, "bad shape");
        array->shape[array->n_dims++] = dim;
        at = end;
    }
}

int64_t test_npy_count(const test_npy *array)
{
    int64_t n = 1;
    for (int i = 0; i < array->n_dims; i++)
        n *= array->shape[i];
    return n;
}

test_npy test_npy_read(const char *path)
{
    test_npy array = {0, {0}, NULL};
    unsigned char prefix[PREFIX_BYTES];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die(path, "cannot be opened");
    if (fread(prefix, 1, PREFIX_BYTES, file) != PREFIX_BYTES ||
        memcmp(prefix, MAGIC, MAGIC_BYTES) != 0)
        die(path, "is not an .npy file of version 1.0");
    const size_t header_bytes = prefix[8] | (size_t)prefix[9] << 8;
    char *header = calloc(header_bytes + 1, 1);
    if (header == NULL || fread(header, 1, header_bytes, file) != header_bytes)
        die(path, "short header");
    if (strstr(header, "'<f4'") == NULL || strstr(header, "'fortran_order': False") == NULL)
        die(path, "is not little-endian float32 in C order");
    parse_shape(&array, header, path);
    free(header);
    const size_t n = (size_t)test_npy_count(&array);
    array.data = malloc(n * sizeof(float) + 1);
    if (array.data == NULL || fread(array.data, sizeof(float), n, file) != n || fgetc(file) != EOF)
        die(path, "size of the data differs from the shape");
    fclose(file);
    return array;
}

void test_npy_write(const char *path, const float *data, int n_dims, const int64_t *shape)
{
    char header[256];
    size_t n = 1;
    int at = snprintf(header, sizeof header,
                      "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < n_dims; i++) {
        at += snprintf(header + at, sizeof header - (size_t)at, "%lld,", (long long)shape[i]);
        n *= (size_t)shape[i];
    }
    at += snprintf(header + at, sizeof header - (size_t)at, "), }");
    while ((PREFIX_BYTES + at + 1) % 64 != 0) /* the data starts at a multiple of 64 */
        header[at++] = ' ';
    header[at++] = '\n';
    const unsigned char length[2] = {(unsigned char)(at & 0xFF), (unsigned char)(at >> 8)};
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(MAGIC, 1, MAGIC_BYTES, file) != MAGIC_BYTES ||
        fwrite(length, 1, 2, file) != 2 || fwrite(header, 1, (size_t)at, file) != (size_t)at ||
        fwrite(data, sizeof(float), n, file) != n || fclose(file) != 0)
        die(path, "cannot be written");
}

void test_npy_free(test_npy *array)
{
    free(array->data);
    *array = (test_npy){0, {0}, NULL};
}
