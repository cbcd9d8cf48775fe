/*
 * A shard is a run of weights. Its header is made from their shapes before any number is, so the
 * numbers are written once, in order: weight after weight, then the offsets of inputs.
 */
#include "quantize/tensor_writer.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "kernels/kernels.h"
#include "quantize/calibrate.h"
#include "quantize/codes.h"
#include "quantize/out_tensors.h"
#include "quantize/text.h"

#define HEADER_ALIGN 64

typedef struct tensor_writer {
    out_folder *folder;
    const quant_list *list;
    const tamis_checkpoint *source;
    tamis_file_writer file;
    /* of the widest weight */
    float *row, *scales; /* [cols], [rows] */
    int8_t *codes;       /* [2][cols] */
    uint8_t *packed;     /* [cols], or a row of BF16 */
    int32_t *sums;       /* [rows] of codes */
    float *scale_bias;   /* [rows][16] */
    tamis_error *err;
} tensor_writer;

static tamis_status put(tensor_writer *w, const void *data, uint64_t bytes)
{
    return tamis_file_writer_write(&w->file, data, (size_t)bytes, w->err);
}

/* ---------------------------------------------------------------- one weight */

static tamis_status put_dequantised(tensor_writer *w, const quant_weight *weight)
{
    const tamis_matrix *m = &weight->matrix;
    const tamis_kernels *kernels = tamis_kernels_current();
    for (int64_t r = 0; r < m->rows; r++) {
        kernels->expand_row(w->row, m, r);
        kernels->narrow(w->packed, w->row, TAMIS_DTYPE_BF16, m->cols);
        TAMIS_TRY(put(w, w->packed, (uint64_t)m->cols * 2));
    }
    return TAMIS_STATUS_OK;
}

/* What kernels on half bytes need: 8 times the values of each part of a row. */
static void sum_parts(tensor_writer *w, const quant_weight *weight, int64_t row,
                      const int8_t *codes)
{
    const int64_t n_parts = out_scale_bias_parts(weight), part = weight->matrix.cols / n_parts;
    for (int64_t i = 0; i < n_parts; i++)
        w->scale_bias[row * n_parts + i] =
            8.0f * (float)quant_sum(codes, i * part, (i + 1) * part) * w->scales[row];
}

static tamis_status quantise_row(tensor_writer *w, const quant_weight *weight, int64_t row,
                                 int8_t *codes)
{
    const bool is_int4 = weight->scheme == TAMIS_SCHEME_W4A8_DYNAMIC;
    const tamis_matrix *m = &weight->matrix;
    tamis_kernels_current()->expand_row(w->row, m, row);
    if (!quant_row(codes, &w->scales[row], w->row, m->cols, is_int4 ? 7 : 127))
        return tamis_fail(w->err, TAMIS_STATUS_FORMAT,
                          "%s: %s: row %lld, column %lld is not finite, allowed: numbers",
                          tamis_checkpoint_file_name(w->source, weight->tensor->file_idx),
                          weight->tensor->name, (long long)row, (long long)w->scales[row]);
    w->sums[row] = quant_sum(codes, 0, m->cols);
    if (is_int4)
        sum_parts(w, weight, row, codes);
    return TAMIS_STATUS_OK;
}

static tamis_status put_codes(tensor_writer *w, const quant_weight *weight)
{
    const tamis_matrix *m = &weight->matrix;
    const uint64_t cols = (uint64_t)m->cols;
    if (weight->scheme != TAMIS_SCHEME_W4A8_DYNAMIC) {
        for (int64_t r = 0; r < m->rows; r++) {
            TAMIS_TRY(quantise_row(w, weight, r, w->codes));
            TAMIS_TRY(put(w, w->codes, cols));
        }
        return TAMIS_STATUS_OK;
    }
    for (int64_t r = 0; r < m->rows; r += 2) {
        TAMIS_TRY(quantise_row(w, weight, r, w->codes));
        TAMIS_TRY(quantise_row(w, weight, r + 1, w->codes + cols));
        quant_pack_rows(w->packed, w->codes, w->codes + cols, m->cols);
        TAMIS_TRY(put(w, w->packed, cols));
    }
    return TAMIS_STATUS_OK;
}

/* The rows' scales and sums are there; they make way for what is derived from them. */
static tamis_status put_companion(tensor_writer *w, const quant_weight *weight, const out_tensor *t)
{
    const int64_t rows = weight->matrix.rows;
    float input_scale;
    int8_t offset;
    quant_fixed_input(weight, &input_scale, &offset);
    switch (t->companion) {
    case TAMIS_COMPANION_WEIGHT_SCALE:
        return put(w, w->scales, t->bytes);
    case TAMIS_COMPANION_WEIGHT_OFFSET:
        for (int64_t r = 0; r < rows; r++)
            TAMIS_TRY(put(w, &(float){0}, sizeof(float)));
        return TAMIS_STATUS_OK;
    case TAMIS_COMPANION_SCALE_BIAS:
        return put(w, w->scale_bias, t->bytes);
    case TAMIS_COMPANION_DEQ_SCALE:
        for (int64_t r = 0; r < rows; r++)
            w->scales[r] *= input_scale;
        return put(w, w->scales, t->bytes);
    case TAMIS_COMPANION_QUANT_BIAS:
        for (int64_t r = 0; r < rows; r++)
            w->sums[r] *= -offset;
        return put(w, w->sums, t->bytes);
    case TAMIS_COMPANION_INPUT_SCALE:
        return put(w, &input_scale, sizeof input_scale);
    default:
        return put(w, &offset, sizeof offset);
    }
}

static tamis_status put_weight(tensor_writer *w, const quant_weight *weight)
{
    out_tensor tensors[OUT_MAX_TENSORS];
    const int n = out_tensors_of(tensors, weight);
    if (weight->data != NULL)
        return put(w, weight->data, tensors[0].bytes);
    if (weight->scheme == TAMIS_SCHEME_FLOAT)
        return put_dequantised(w, weight);
    TAMIS_TRY(put_codes(w, weight));
    for (int i = 1; i < n; i++)
        if (!out_tensor_is_tail(&tensors[i]))
            TAMIS_TRY(put_companion(w, weight, &tensors[i]));
    return TAMIS_STATUS_OK;
}

static tamis_status put_tails(tensor_writer *w, const quant_weight *weight)
{
    out_tensor tensors[OUT_MAX_TENSORS];
    const int n = out_tensors_of(tensors, weight);
    for (int i = 0; i < n; i++)
        if (out_tensor_is_tail(&tensors[i]))
            TAMIS_TRY(put_companion(w, weight, &tensors[i]));
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- headers */

static tamis_status add_entry(quant_text *header, const quant_weight *weight, const out_tensor *t,
                              uint64_t *at, tamis_error *err)
{
    char name[TAMIS_NAME_BYTES];
    if (!out_tensor_name(name, weight, t))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "%s: is too long a name, allowed: %d bytes",
                          weight->name, TAMIS_NAME_BYTES - 16);
    TAMIS_TRY(quant_text_add(header, err, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                             header->n > 0 ? "," : "{", name, tamis_dtype_name(t->dtype)));
    for (int32_t i = 0; i < t->rank; i++)
        TAMIS_TRY(quant_text_add(header, err, "%s%lld", i > 0 ? "," : "", (long long)t->shape[i]));
    TAMIS_TRY(quant_text_add(header, err, "],\"data_offsets\":[%llu,%llu]}",
                             (unsigned long long)*at, (unsigned long long)(*at + t->bytes)));
    *at += t->bytes;
    return TAMIS_STATUS_OK;
}

/* Entries of weights begin .. end - 1 in the order of their data; *bytes: of the data. */
static tamis_status make_header(quant_text *header, const quant_list *list, int32_t begin,
                                int32_t end, uint64_t *bytes, tamis_error *err)
{
    *bytes = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = begin; i < end; i++) {
            out_tensor tensors[OUT_MAX_TENSORS];
            const int n = out_tensors_of(tensors, &list->items[i]);
            for (int j = 0; j < n; j++)
                if (out_tensor_is_tail(&tensors[j]) == (pass == 1))
                    TAMIS_TRY(add_entry(header, &list->items[i], &tensors[j], bytes, err));
        }
    TAMIS_TRY(quant_text_add(header, err, "}"));
    while ((header->n + 8) % HEADER_ALIGN != 0)
        TAMIS_TRY(quant_text_add(header, err, " "));
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- shards */

static uint64_t weight_bytes(const quant_weight *weight)
{
    out_tensor tensors[OUT_MAX_TENSORS];
    const int n = out_tensors_of(tensors, weight);
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += tensors[i].bytes;
    return bytes;
}

/* The weight behind the last of the shard that begins at `begin`. */
static int32_t shard_end(const quant_list *list, int32_t begin, int64_t shard_bytes)
{
    uint64_t bytes = 0;
    int32_t i = begin;
    do
        bytes += weight_bytes(&list->items[i++]);
    while (i < list->n && bytes < (uint64_t)shard_bytes);
    return i;
}

static void name_shard(char out[64], int32_t shard, int32_t n_shards)
{
    if (n_shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", (int)shard + 1, (int)n_shards);
}

static tamis_status write_data(tensor_writer *w, const quant_text *header, int32_t begin,
                               int32_t end)
{
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header->n >> (8 * i));
    TAMIS_TRY(put(w, length, sizeof length));
    TAMIS_TRY(put(w, header->bytes, header->n));
    for (int32_t i = begin; i < end; i++)
        TAMIS_TRY(put_weight(w, &w->list->items[i]));
    for (int32_t i = begin; i < end; i++)
        TAMIS_TRY(put_tails(w, &w->list->items[i]));
    return tamis_file_writer_commit(&w->file, w->err);
}

static tamis_status write_shard(tensor_writer *w, const char *name, int32_t begin, int32_t end,
                                uint64_t *bytes)
{
    quant_text header = {NULL, 0, 0};
    tamis_status st = make_header(&header, w->list, begin, end, bytes, w->err);
    if (st == TAMIS_STATUS_OK)
        st = out_folder_begin(w->folder, name, &w->file, w->err);
    if (st == TAMIS_STATUS_OK)
        st = write_data(w, &header, begin, end);
    tamis_file_writer_abandon(&w->file);
    quant_text_free(&header);
    return st;
}

static tamis_status add_to_index(quant_text *index, const quant_list *list, int32_t begin,
                                 int32_t end, const char *file, tamis_error *err)
{
    for (int32_t i = begin; i < end; i++) {
        out_tensor tensors[OUT_MAX_TENSORS];
        const int n = out_tensors_of(tensors, &list->items[i]);
        for (int j = 0; j < n; j++) {
            char name[TAMIS_NAME_BYTES];
            out_tensor_name(name, &list->items[i], &tensors[j]);
            TAMIS_TRY(quant_text_add(index, err, "%s\n    \"%s\": \"%s\"",
                                     i == 0 && j == 0 ? "" : ",", name, file));
        }
    }
    return TAMIS_STATUS_OK;
}

static tamis_status write_shards(tensor_writer *w, int64_t shard_bytes, int32_t n_shards,
                                 quant_text *index, uint64_t *total)
{
    int32_t shard = 0;
    for (int32_t begin = 0; begin < w->list->n; shard++) {
        const int32_t end = shard_end(w->list, begin, shard_bytes);
        char name[64];
        uint64_t bytes;
        name_shard(name, shard, n_shards);
        TAMIS_TRY(write_shard(w, name, begin, end, &bytes));
        TAMIS_TRY(add_to_index(index, w->list, begin, end, name, w->err));
        *total += bytes;
        begin = end;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status write_index(tensor_writer *w, const quant_text *map, uint64_t total)
{
    quant_text index = {NULL, 0, 0};
    tamis_status st = quant_text_add(
        &index, w->err,
        "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {%s\n  }\n}\n",
        (unsigned long long)total, map->bytes);
    if (st == TAMIS_STATUS_OK)
        st = out_folder_write(w->folder, "model.safetensors.index.json", index.bytes, index.n,
                              w->err);
    quant_text_free(&index);
    return st;
}

/* ---------------------------------------------------------------- all of it */

static tamis_status take_buffers(tensor_writer *w)
{
    size_t rows = 1, cols = 1;
    for (int32_t i = 0; i < w->list->n; i++) {
        const tamis_matrix *m = &w->list->items[i].matrix;
        rows = (size_t)m->rows > rows ? (size_t)m->rows : rows;
        cols = (size_t)m->cols > cols ? (size_t)m->cols : cols;
    }
    w->row = tamis_mem_array(TAMIS_MEM_MISC, cols, sizeof *w->row);
    w->codes = tamis_mem_array(TAMIS_MEM_MISC, cols, 2 * sizeof *w->codes);
    w->packed = tamis_mem_array(TAMIS_MEM_MISC, cols, 2);
    w->scales = tamis_mem_array(TAMIS_MEM_MISC, rows, sizeof *w->scales);
    w->sums = tamis_mem_array(TAMIS_MEM_MISC, rows, sizeof *w->sums);
    w->scale_bias = tamis_mem_array(TAMIS_MEM_MISC, rows, 16 * sizeof *w->scale_bias);
    if (w->row == NULL || w->codes == NULL || w->packed == NULL || w->scales == NULL ||
        w->sums == NULL || w->scale_bias == NULL)
        return tamis_fail_memory(w->err, "rows of a weight", 72 * rows + 8 * cols);
    return TAMIS_STATUS_OK;
}

static void free_buffers(tensor_writer *w)
{
    tamis_mem_free(w->row);
    tamis_mem_free(w->codes);
    tamis_mem_free(w->packed);
    tamis_mem_free(w->scales);
    tamis_mem_free(w->sums);
    tamis_mem_free(w->scale_bias);
}

tamis_status quant_write_tensors(out_folder *folder, const quant_list *list, int64_t shard_bytes,
                                 const tamis_checkpoint *source, int32_t *n_files, uint64_t *bytes,
                                 tamis_error *err)
{
    tensor_writer w = {.folder = folder, .list = list, .source = source, .err = err};
    quant_text map = {NULL, 0, 0};
    *n_files = 0;
    *bytes = 0;
    for (int32_t i = 0; i < list->n; i = shard_end(list, i, shard_bytes))
        ++*n_files;
    tamis_status st = take_buffers(&w);
    if (st == TAMIS_STATUS_OK)
        st = write_shards(&w, shard_bytes, *n_files, &map, bytes);
    if (st == TAMIS_STATUS_OK && *n_files > 1)
        st = write_index(&w, &map, *bytes);
    free_buffers(&w);
    quant_text_free(&map);
    return st;
}

/* ---------------------------------------------------------------- description */

static tamis_status describe(quant_text *text, const quant_list *list,
                             tamis_quant_scheme model_scheme, tamis_error *err)
{
    TAMIS_TRY(quant_text_add(text, err,
                             "{\n  \"model_quant_type\": \"%s\",\n  \"version\": \"1.0.0\",\n"
                             "  \"group_size\": 0",
                             tamis_quant_scheme_name(model_scheme)));
    for (int32_t i = 0; i < list->n; i++) {
        out_tensor tensors[OUT_MAX_TENSORS];
        const int n = out_tensors_of(tensors, &list->items[i]);
        for (int j = 0; j < n; j++) {
            char name[TAMIS_NAME_BYTES];
            out_tensor_name(name, &list->items[i], &tensors[j]);
            TAMIS_TRY(quant_text_add(text, err, ",\n  \"%s\": \"%s\"", name,
                                     tamis_quant_scheme_name(list->items[i].scheme)));
        }
    }
    return quant_text_add(text, err, "\n}\n");
}

tamis_status quant_write_description(out_folder *folder, const quant_list *list,
                                     tamis_quant_scheme model_scheme, tamis_error *err)
{
    quant_text text = {NULL, 0, 0};
    tamis_status st = describe(&text, list, model_scheme, err);
    if (st == TAMIS_STATUS_OK)
        st = out_folder_write(folder, "quant_model_description.json", text.bytes, text.n, err);
    quant_text_free(&text);
    return st;
}
