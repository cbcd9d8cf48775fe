/*
 * A folder's tensors: safetensors files mapped read-only, one table of names.
 *
 * model.safetensors.index.json with its shards, or model.safetensors, and the description of a
 * quantised folder; never any other file. Data is used where it lies and may start at any byte.
 */
#ifndef TAMIS_WEIGHTS_CHECKPOINT_H
#define TAMIS_WEIGHTS_CHECKPOINT_H

#include "weights/quant_description.h"
#include "weights/safetensors.h"

typedef struct tamis_checkpoint tamis_checkpoint;

/*
 * Opens and checks every header: what safetensors.h says, and that the tensors of a file lie
 * without overlap or gap up to its end, that no name occurs twice in the folder, that shard names
 * have no
 * '/' and no '..', that every tensor of the index is in its shard. Tensors of a shard that the
 * index does not name count like the others. errors: IO, FORMAT (file, tensor, value seen and
 * allowed), UNSUPPORTED (dtype), NO_MEMORY
 */
tamis_status tamis_checkpoint_open(tamis_checkpoint **out, const char *dir, tamis_error *err);
void tamis_checkpoint_close(tamis_checkpoint **checkpoint);

/* Lets all resident pages of the files go; tensors stay where they are and are read again on use.
 */
void tamis_checkpoint_release_pages(const tamis_checkpoint *checkpoint);

int32_t tamis_checkpoint_num_tensors(const tamis_checkpoint *checkpoint);
/* i-th tensor in file order. */
tamis_tensor *tamis_checkpoint_tensor(tamis_checkpoint *checkpoint, int32_t i);
/* NULL if there is none. */
tamis_tensor *tamis_checkpoint_find(tamis_checkpoint *checkpoint, const char *name);
/* The folder as given to open. */
const char *tamis_checkpoint_dir(const tamis_checkpoint *checkpoint);
/* NULL if the folder has none. */
const tamis_quant_description *tamis_checkpoint_description(const tamis_checkpoint *checkpoint);
const char *tamis_checkpoint_file_name(const tamis_checkpoint *checkpoint, int32_t file_idx);

#endif
