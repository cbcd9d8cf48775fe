#include "weights/checkpoint.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/json_load.h"
#include "core/mem.h"
#include "weights/name_table.h"

#define INDEX_NAME      "model.safetensors.index.json"
#define SINGLE_NAME     "model.safetensors"
#define MAX_INDEX_BYTES ((size_t)100000000)
#define MAX_FILES       10000
#define MAX_TENSORS     (1 << 26)

typedef struct checkpoint_file {
    char *name;
    tamis_file_map map;
    char *tensor_names; /* one block; every name is shorter than its JSON */
    size_t names_used;
} checkpoint_file;

struct tamis_checkpoint {
    char *dir;
    checkpoint_file *files;
    int32_t n_files, max_files;
    tamis_tensor *tensors;
    int32_t n_tensors, max_tensors;
    tamis_name_table table;
    tamis_quant_description *description; /* NULL: none */
};

/* Doubles an array that is full. */
static tamis_status grow(void **items, int32_t n, int32_t *max, size_t size, int32_t limit,
                         const char *what, tamis_error *err)
{
    if (n < *max)
        return TAMIS_STATUS_OK;
    if (n >= limit)
        return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: there are more than %d", what, limit);
    const int32_t wanted = *max == 0 ? 16 : 2 * *max;
    void *grown = tamis_mem_realloc(TAMIS_MEM_MISC, *items, (size_t)wanted * size);
    if (grown == NULL)
        return tamis_fail_memory(err, what, (size_t)wanted * size);
    *items = grown;
    *max = wanted;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- files */

static tamis_status add_file(tamis_checkpoint *c, const char *name, tamis_error *err)
{
    void *files = c->files;
    const tamis_status st = grow(&files, c->n_files, &c->max_files, sizeof *c->files, MAX_FILES,
                                 "shards of the folder", err);
    c->files = files;
    if (st != TAMIS_STATUS_OK)
        return st;
    checkpoint_file file = {.name = tamis_mem_strdup(TAMIS_MEM_MISC, name)};
    if (file.name == NULL)
        return tamis_fail_memory(err, name, strlen(name) + 1);
    c->files[c->n_files++] = file;
    return TAMIS_STATUS_OK;
}

static tamis_status check_shard_name(const char *path, const char *tensor, const json_t *file,
                                     tamis_error *err)
{
    const char *name = json_string_value(file);
    if (name == NULL)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: weight_map.%.160s is no string, allowed: a file name", path, tensor);
    bool is_fine = name[0] != '\0' && strchr(name, '/') == NULL && strchr(name, '\\') == NULL &&
                   strstr(name, "..") == NULL && strcmp(name, ".") != 0 && strlen(name) < 256;
    for (const char *c = name; *c != '\0'; c++)
        is_fine = is_fine && (unsigned char)*c >= 0x20 && *c != 0x7f;
    if (is_fine)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_FORMAT,
                      "%s: weight_map.%.160s is \"%.80s\", allowed: a file name of the same folder "
                      "(no '/', no '..')",
                      path, tensor, name);
}

/* The files that the index names, in order of first mention. */
static tamis_status list_shards(tamis_checkpoint *c, const char *path, const json_t *weight_map,
                                tamis_error *err)
{
    const char *tensor, *last = "";
    json_t *file;
    tamis_name_table seen;
    tamis_status st = TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_name_table_open(&seen, json_object_size(weight_map), err));
    json_object_foreach((json_t *)weight_map, tensor, file)
    {
        st = check_shard_name(path, tensor, file, err);
        if (st != TAMIS_STATUS_OK)
            break;
        const char *name = json_string_value(file);
        if (strcmp(name, last) != 0 && tamis_name_table_add(&seen, name, 0) < 0)
            st = add_file(c, name, err);
        if (st != TAMIS_STATUS_OK)
            break;
        last = name;
    }
    tamis_name_table_close(&seen);
    return st;
}

static tamis_status open_file(tamis_checkpoint *c, checkpoint_file *file, tamis_error *err)
{
    char *path = tamis_path_join(c->dir, file->name);
    if (path == NULL)
        return tamis_fail_memory(err, file->name, strlen(c->dir) + strlen(file->name) + 2);
    const tamis_status st = tamis_file_map_open(&file->map, path, err);
    tamis_mem_free(path);
    return st;
}

/* ---------------------------------------------------------------- tensors */

typedef struct tensor_sink {
    tamis_checkpoint *checkpoint;
    checkpoint_file *file;
    size_t names_bytes;
} tensor_sink;

static tamis_status add_tensor(void *user, const tamis_tensor *tensor, tamis_error *err)
{
    tensor_sink *sink = user;
    tamis_checkpoint *c = sink->checkpoint;
    checkpoint_file *file = sink->file;
    const size_t name_bytes = strlen(tensor->name) + 1;
    void *tensors = c->tensors;
    const tamis_status st = grow(&tensors, c->n_tensors, &c->max_tensors, sizeof *c->tensors,
                                 MAX_TENSORS, "tensors of the folder", err);
    c->tensors = tensors;
    if (st != TAMIS_STATUS_OK)
        return st;
    assert(file->names_used + name_bytes <= sink->names_bytes);
    char *name = file->tensor_names + file->names_used;
    memcpy(name, tensor->name, name_bytes);
    file->names_used += name_bytes;
    tamis_tensor *kept = &c->tensors[c->n_tensors++];
    *kept = *tensor;
    kept->name = name;
    kept->file_idx = (int32_t)(file - c->files);
    return TAMIS_STATUS_OK;
}

static int compare_places(const void *a, const void *b)
{
    const tamis_tensor *x = *(const tamis_tensor *const *)a, *y = *(const tamis_tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/*
 * Data must follow data from the first byte to the last, as the official reader demands: a wrong
 * header length that still parses (trailing spaces cut off) would otherwise shift every tensor.
 */
static tamis_status check_places(const char *file_name, const tamis_tensor **places, int32_t n,
                                 const uint8_t *begin, const uint8_t *end, tamis_error *err)
{
    const uint8_t *at = begin;
    qsort(places, (size_t)n, sizeof *places, compare_places);
    for (int32_t i = 0; i < n; i++) {
        if (places[i]->data != at)
            return tamis_fail(err, TAMIS_STATUS_FORMAT,
                              "%s: %.160s: data begins at byte %lld, allowed: %lld (no overlap, no "
                              "gap)",
                              file_name, places[i]->name, (long long)(places[i]->data - begin),
                              (long long)(at - begin));
        at += places[i]->bytes;
    }
    if (at != end)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: has %lld bytes of data, allowed: %lld, what its tensors take",
                          file_name, (long long)(end - begin), (long long)(at - begin));
    return TAMIS_STATUS_OK;
}

static tamis_status check_file_places(const tamis_checkpoint *c, const checkpoint_file *file,
                                      int32_t first, size_t data_bytes, tamis_error *err)
{
    const int32_t n = c->n_tensors - first;
    const uint8_t *end = file->map.data + file->map.bytes;
    const tamis_tensor **places =
        tamis_mem_array(TAMIS_MEM_MISC, (size_t)n, sizeof(tamis_tensor *));
    if (places == NULL)
        return tamis_fail_memory(err, file->name, (size_t)n * sizeof(tamis_tensor *));
    for (int32_t i = 0; i < n; i++)
        places[i] = &c->tensors[first + i];
    const tamis_status st = check_places(file->name, places, n, end - data_bytes, end, err);
    tamis_mem_free(places);
    return st;
}

static tamis_status read_tensors(tamis_checkpoint *c, checkpoint_file *file, tamis_error *err)
{
    const int32_t first = c->n_tensors;
    size_t header_bytes = 0, data_bytes = 0;
    TAMIS_TRY(tamis_safetensors_header_bytes(file->name, file->map.data, file->map.bytes,
                                             &header_bytes, err));
    file->tensor_names = tamis_mem_alloc(TAMIS_MEM_MISC, header_bytes);
    if (file->tensor_names == NULL)
        return tamis_fail_memory(err, file->name, header_bytes);
    tensor_sink sink = {c, file, header_bytes};
    TAMIS_TRY(tamis_safetensors_parse_header(file->name, file->map.data, file->map.bytes,
                                             add_tensor, &sink, &data_bytes, err));
    return check_file_places(c, file, first, data_bytes, err);
}

static tamis_status build_table(tamis_checkpoint *c, tamis_error *err)
{
    TAMIS_TRY(tamis_name_table_open(&c->table, (size_t)c->n_tensors, err));
    for (int32_t i = 0; i < c->n_tensors; i++) {
        const int32_t other = tamis_name_table_add(&c->table, c->tensors[i].name, i);
        if (other >= 0)
            return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: %.160s: is also in %s, allowed: once",
                              c->files[c->tensors[i].file_idx].name, c->tensors[i].name,
                              c->files[c->tensors[other].file_idx].name);
    }
    return TAMIS_STATUS_OK;
}

static tamis_status check_index(tamis_checkpoint *c, const char *path, const json_t *weight_map,
                                tamis_error *err)
{
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)weight_map, name, file)
    {
        const tamis_tensor *tensor = tamis_checkpoint_find(c, name);
        const char *shard = json_string_value(file);
        if (tensor == NULL)
            return tamis_fail(err, TAMIS_STATUS_FORMAT,
                              "%s: weight_map.%.160s is \"%s\", but no shard has that tensor", path,
                              name, shard);
        if (strcmp(c->files[tensor->file_idx].name, shard) != 0)
            return tamis_fail(err, TAMIS_STATUS_FORMAT,
                              "%s: weight_map.%.160s is \"%s\", allowed: \"%s\", where it is", path,
                              name, shard, c->files[tensor->file_idx].name);
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- open */

static tamis_status read_files(tamis_checkpoint *c, tamis_error *err)
{
    for (int32_t i = 0; i < c->n_files; i++)
        TAMIS_TRY(open_file(c, &c->files[i], err));
    for (int32_t i = 0; i < c->n_files; i++)
        TAMIS_TRY(read_tensors(c, &c->files[i], err));
    return build_table(c, err);
}

static tamis_status parse_index(json_t **out, const char *path, tamis_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error = {.line = 0};
    TAMIS_TRY(tamis_file_read(&text, &bytes, path, MAX_INDEX_BYTES, err));
    bool no_memory;
    *out = tamis_json_load(text, bytes, JSON_REJECT_DUPLICATES, &error, &no_memory);
    tamis_mem_free(text);
    if (*out != NULL)
        return TAMIS_STATUS_OK;
    if (no_memory)
        return tamis_fail_memory(err, path, bytes);
    return tamis_fail(err, TAMIS_STATUS_FORMAT,
                      "%s: line %d, column %d: %s, allowed: one JSON object", path, error.line,
                      error.column, error.text);
}

static tamis_status read_sharded(tamis_checkpoint *c, const char *path, tamis_error *err)
{
    json_t *index = NULL;
    TAMIS_TRY(parse_index(&index, path, err));
    const json_t *weight_map = json_object_get(index, "weight_map");
    tamis_status st = TAMIS_STATUS_OK;
    if (!json_is_object(weight_map))
        st = tamis_fail(err, TAMIS_STATUS_FORMAT,
                        "%s: weight_map is absent or no object, allowed: {tensor: file}", path);
    if (st == TAMIS_STATUS_OK)
        st = list_shards(c, path, weight_map, err);
    if (st == TAMIS_STATUS_OK)
        st = read_files(c, err);
    if (st == TAMIS_STATUS_OK)
        st = check_index(c, path, weight_map, err);
    json_decref(index);
    return st;
}

static tamis_status read_folder(tamis_checkpoint *c, tamis_error *err)
{
    char *index_path = tamis_path_join(c->dir, INDEX_NAME);
    if (index_path == NULL)
        return tamis_fail_memory(err, INDEX_NAME, strlen(c->dir) + sizeof INDEX_NAME);
    tamis_status st;
    if (tamis_file_exists(index_path)) {
        st = read_sharded(c, index_path, err);
    } else {
        st = add_file(c, SINGLE_NAME, err);
        if (st == TAMIS_STATUS_OK)
            st = read_files(c, err);
    }
    tamis_mem_free(index_path);
    return st;
}

tamis_status tamis_checkpoint_open(tamis_checkpoint **out, const char *dir, tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_checkpoint *c = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *c);
    if (c == NULL)
        return tamis_fail_memory(err, dir, sizeof *c);
    c->dir = tamis_mem_strdup(TAMIS_MEM_MISC, dir);
    if (c->dir == NULL) {
        st = tamis_fail_memory(err, dir, strlen(dir) + 1);
        goto fail;
    }
    TAMIS_TRY_GOTO(read_folder(c, err));
    TAMIS_TRY_GOTO(tamis_quant_description_read(&c->description, dir, err));
    *out = c;
    return TAMIS_STATUS_OK;
fail:
    tamis_checkpoint_close(&c);
    return st;
}

void tamis_checkpoint_close(tamis_checkpoint **checkpoint)
{
    tamis_checkpoint *c = *checkpoint;
    if (c == NULL)
        return;
    for (int32_t i = 0; i < c->n_files; i++) {
        tamis_mem_free(c->files[i].name);
        tamis_mem_free(c->files[i].tensor_names);
        tamis_file_map_close(&c->files[i].map);
    }
    tamis_mem_free(c->files);
    tamis_mem_free(c->tensors);
    tamis_name_table_close(&c->table);
    tamis_quant_description_free(&c->description);
    tamis_mem_free(c->dir);
    tamis_mem_free(c);
    *checkpoint = NULL;
}

void tamis_checkpoint_release_pages(const tamis_checkpoint *checkpoint)
{
    for (int32_t i = 0; i < checkpoint->n_files; i++)
        tamis_file_map_release_pages(&checkpoint->files[i].map);
}

int32_t tamis_checkpoint_num_tensors(const tamis_checkpoint *checkpoint)
{
    return checkpoint->n_tensors;
}

tamis_tensor *tamis_checkpoint_tensor(tamis_checkpoint *checkpoint, int32_t i)
{
    assert(i >= 0 && i < checkpoint->n_tensors);
    return &checkpoint->tensors[i];
}

tamis_tensor *tamis_checkpoint_find(tamis_checkpoint *checkpoint, const char *name)
{
    const int32_t i = tamis_name_table_find(&checkpoint->table, name);
    return i < 0 ? NULL : &checkpoint->tensors[i];
}

const char *tamis_checkpoint_dir(const tamis_checkpoint *checkpoint)
{
    return checkpoint->dir;
}

const tamis_quant_description *tamis_checkpoint_description(const tamis_checkpoint *checkpoint)
{
    return checkpoint->description;
}

const char *tamis_checkpoint_file_name(const tamis_checkpoint *checkpoint, int32_t file_idx)
{
    assert(file_idx >= 0 && file_idx < checkpoint->n_files);
    return checkpoint->files[file_idx].name;
}
