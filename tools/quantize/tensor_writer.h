/* The safetensors files of the output, one weight at a time. */
#ifndef QUANTIZE_TENSOR_WRITER_H
#define QUANTIZE_TENSOR_WRITER_H

#include "quantize/out_folder.h"
#include "quantize/weight_list.h"

/*
 * model.safetensors, or shards of about shard_bytes with their index. A row at a time is in memory,
 * and of a weight its scales and sums. *n_files and *bytes: what was written.
 * errors: FORMAT (a weight that is not finite: file, tensor, place), IO, NO_MEMORY
 */
tamis_status quant_write_tensors(out_folder *folder, const quant_list *list, int64_t shard_bytes,
                                 const tamis_checkpoint *source, int32_t *n_files, uint64_t *bytes,
                                 tamis_error *err);
/* quant_model_description.json */
tamis_status quant_write_description(out_folder *folder, const quant_list *list,
                                     tamis_quant_scheme model_scheme, tamis_error *err);

#endif
