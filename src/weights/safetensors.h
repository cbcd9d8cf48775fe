/*
 * The header of a safetensors file: u64 little-endian length n, n bytes of JSON, data.
 *
 * The JSON is read entry by entry, so that a header of 100 MB costs no tree of it.
 */
#ifndef TAMIS_WEIGHTS_SAFETENSORS_H
#define TAMIS_WEIGHTS_SAFETENSORS_H

#include "tamis/base.h"

#define TAMIS_MAX_RANK 8

typedef struct tamis_tensor {
    const char *name;
    tamis_dtype dtype;
    int32_t rank;
    int64_t shape[TAMIS_MAX_RANK];
    const uint8_t *data; /* in the mapping; any alignment */
    uint64_t bytes;
    int32_t file_idx;
    bool is_used; /* set by whoever binds it to a weight */
} tamis_tensor;

/* Bytes of the JSON. errors: FORMAT (shorter than its length field, longer than file or limit) */
tamis_status tamis_safetensors_header_bytes(const char *file_name, const uint8_t *file,
                                            size_t file_bytes, size_t *out, tamis_error *err);

/* Called once per tensor; tensor->name is valid during the call only. A failure ends the parse. */
typedef tamis_status (*tamis_tensor_visit_fn)(void *user, const tamis_tensor *tensor,
                                              tamis_error *err);
/*
 * Checks the header of a file of which all bytes are in memory and calls visit for every tensor in
 * header order: JSON, dtype, shape, begin <= end <= data, size = elements x width. Whether tensors
 * overlap or repeat is for the caller, who keeps them. `*data_bytes` gets the bytes after the
 * header. errors: FORMAT (file, tensor, value seen and allowed), UNSUPPORTED (dtype, rank),
 * NO_MEMORY
 */
tamis_status tamis_safetensors_parse_header(const char *file_name, const uint8_t *file,
                                            size_t file_bytes, tamis_tensor_visit_fn visit,
                                            void *user, size_t *data_bytes, tamis_error *err);

#endif
