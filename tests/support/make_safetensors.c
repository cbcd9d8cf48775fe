#include "support/make_safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/temp_dir.h"

typedef struct test_buffer {
    char *bytes;
    size_t n, max;
} test_buffer;

struct test_safetensors {
    test_buffer entries; /* JSON of the tensors, separated by commas */
    test_buffer data;
    char *metadata; /* NULL: none */
    size_t residue, padding;
};

static void append(test_buffer *buffer, const void *bytes, size_t n)
{
    if (buffer->n + n + 1 > buffer->max) {
        buffer->max = 2 * (buffer->n + n + 1);
        buffer->bytes = realloc(buffer->bytes, buffer->max);
        if (buffer->bytes == NULL)
            abort();
    }
    if (n > 0)
        memcpy(buffer->bytes + buffer->n, bytes, n);
    buffer->n += n;
    buffer->bytes[buffer->n] = '\0';
}

static void append_text(test_buffer *buffer, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text)
        abort();
    append(buffer, text, (size_t)n);
}

test_safetensors *test_safetensors_new(void)
{
    test_safetensors *file = calloc(1, sizeof *file);
    if (file == NULL)
        abort();
    append(&file->entries, "", 0);
    append(&file->data, "", 0);
    return file;
}

void test_safetensors_free(test_safetensors *file)
{
    free(file->entries.bytes);
    free(file->data.bytes);
    free(file->metadata);
    free(file);
}

void test_safetensors_add(test_safetensors *file, const char *name, const char *dtype, int rank,
                          const int64_t *shape, const void *data, size_t bytes)
{
    const size_t begin = file->data.n;
    append_text(&file->entries, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                file->entries.n > 0 ? "," : "", name, dtype);
    for (int i = 0; i < rank; i++)
        append_text(&file->entries, "%s%lld", i > 0 ? "," : "", (long long)shape[i]);
    append_text(&file->entries, "],\"data_offsets\":[%zu,%zu]}", begin, begin + bytes);
    append(&file->data, data, bytes);
}

void test_safetensors_set_metadata(test_safetensors *file, const char *members)
{
    free(file->metadata);
    file->metadata = strdup(members);
    if (file->metadata == NULL)
        abort();
}

void test_safetensors_set_residue(test_safetensors *file, size_t residue)
{
    file->residue = residue % 8;
}

void test_safetensors_set_padding(test_safetensors *file, size_t bytes)
{
    file->padding = bytes;
}

static uint8_t *join(const char *header, size_t header_bytes, const void *data, size_t data_bytes,
                     size_t *bytes)
{
    *bytes = 8 + header_bytes + data_bytes;
    uint8_t *file = malloc(*bytes);
    if (file == NULL)
        abort();
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    if (data_bytes > 0)
        memcpy(file + 8 + header_bytes, data, data_bytes);
    return file;
}

uint8_t *test_safetensors_bytes(const test_safetensors *file, size_t *bytes)
{
    test_buffer header = {NULL, 0, 0};
    append(&header, "{", 1);
    if (file->metadata != NULL) {
        append(&header, "\"__metadata__\":{", strlen("\"__metadata__\":{"));
        append(&header, file->metadata, strlen(file->metadata));
        append(&header, "},", file->entries.n > 0 ? 2 : 1);
    }
    append(&header, file->entries.bytes, file->entries.n);
    append(&header, "}", 1);
    while (header.n % 8 != file->residue)
        append(&header, " ", 1);
    for (size_t i = 0; i < file->padding; i++)
        append(&header, " ", 1);
    uint8_t *all = join(header.bytes, header.n, file->data.bytes, file->data.n, bytes);
    free(header.bytes);
    return all;
}

void test_safetensors_write(const test_safetensors *file, const char *dir, const char *name)
{
    size_t bytes;
    uint8_t *all = test_safetensors_bytes(file, &bytes);
    test_file_write(dir, name, all, bytes);
    free(all);
}

uint8_t *test_safetensors_raw(const char *header, const void *data, size_t data_bytes,
                              size_t *bytes)
{
    return join(header, strlen(header), data, data_bytes, bytes);
}

void test_safetensors_copy_padded(const char *from_dir, const char *to_dir, const char *name,
                                  size_t residue)
{
    size_t bytes, header_bytes = 0, all_bytes;
    char *old = test_file_read(from_dir, name, &bytes);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | (uint8_t)old[i];
    test_buffer header = {NULL, 0, 0};
    append(&header, old + 8, header_bytes);
    while (header.n % 8 != residue % 8)
        append(&header, " ", 1);
    uint8_t *all =
        join(header.bytes, header.n, old + 8 + header_bytes, bytes - 8 - header_bytes, &all_bytes);
    test_file_write(to_dir, name, all, all_bytes);
    free(all);
    free(header.bytes);
    free(old);
}
