/*
 * A folder's tensors: safetensors files mapped read-only, one table of names.
 *
 * model.safetensors.index.json with its shards, or model.safetensors; never any other file. Data
 * is used where it lies and may start at any byte.
 */
#ifndef TAMIS_WEIGHTS_CHECKPOINT_H
#define TAMIS_WEIGHTS_CHECKPOINT_H

#include "core/file_map.h"
#include "tamis/base.h"

#define TAMIS_MAX_RANK 8

typedef struct tamis_tensor {
    const char *name;
    tamis_dtype dtype;
    int32_t rank;
    int64_t shape[TAMIS_MAX_RANK];
    const uint8_t *data; /* in the mapping */
    uint64_t bytes;
    int32_t file_idx;
    bool is_used;        /* set by whoever binds it to a weight */
} tamis_tensor;

typedef struct tamis_checkpoint tamis_checkpoint;

/*
 * Opens and checks every header: length, JSON, dtypes, begin <= end <= file, size = elements x width,
 * no overlap, no duplicates, shard names without '/' or '..', every tensor of the index in its shard.
 * errors: IO, FORMAT (file, tensor, value seen and allowed), UNSUPPORTED (dtype), NO_MEMORY
 */
tamis_status tamis_checkpoint_open(tamis_checkpoint **out, const char *dir, tamis_error *err);
void tamis_checkpoint_close(tamis_checkpoint **checkpoint);

int32_t tamis_checkpoint_num_tensors(const tamis_checkpoint *checkpoint);
/* i-th tensor in file order. */
tamis_tensor *tamis_checkpoint_tensor(tamis_checkpoint *checkpoint, int32_t i);
/* NULL if there is none. */
tamis_tensor *tamis_checkpoint_find(tamis_checkpoint *checkpoint, const char *name);
const char *tamis_checkpoint_file_name(const tamis_checkpoint *checkpoint, int32_t file_idx);

/*
 * The header parser alone (fuzz target): calls visit for every tensor in header order.
 * data_bytes: bytes after the header.
 */
typedef tamis_status (*tamis_tensor_visit_fn)(void *user, const tamis_tensor *tensor,
                                              uint64_t begin, tamis_error *err);
tamis_status tamis_safetensors_parse_header(const char *file_name, const uint8_t *file, size_t file_bytes,
                                            tamis_tensor_visit_fn visit, void *user,
                                            tamis_error *err);

#endif
