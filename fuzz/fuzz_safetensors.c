/*
 * A safetensors file, or, if the input begins with '{', an index over a fixed shard (no safetensors
 * file begins so: its header would have to be longer than the limit). The header parser gets the
 * bytes as they are; then a folder with them is opened, and every tensor must lie within its file.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/checkpoint.h"
#include "weights/weight_fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];

static void remove_folder(void)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "a.safetensors"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void require(bool is_true)
{
    if (!is_true)
        abort();
}

static void write_file(const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void make_folder(void)
{
    strcpy(folder, "/tmp/tamis-fuzz-XXXXXX");
    require(mkdtemp(folder) != NULL);
    atexit(remove_folder);
}

/* Two tensors for the index to name. */
static void write_shard(void)
{
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}";
    char file[8 + sizeof header - 1 + 3] = {(char)(sizeof header - 1)};
    memcpy(file + 8, header, sizeof header - 1);
    write_file("a.safetensors", file, sizeof file);
}

static tamis_status visit(void *user, const tamis_tensor *tensor, tamis_error *err)
{
    uint64_t *sum = user;
    (void)err;
    for (uint64_t i = 0; i < tensor->bytes; i++) /* the sanitizer watches the bounds */
        *sum += tensor->data[i];
    return TAMIS_STATUS_OK;
}

static void open_folder(void)
{
    tamis_checkpoint *checkpoint;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    tamis_weight_fault fault;
    uint64_t sum = 0;
    const tamis_status st = tamis_checkpoint_open(&checkpoint, folder, &err);
    if (st != TAMIS_STATUS_OK) {
        require(err.status == st && err.text[0] != '\0' && checkpoint == NULL);
        return;
    }
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(checkpoint); i++) {
        tamis_tensor *tensor = tamis_checkpoint_tensor(checkpoint, i);
        require(tamis_checkpoint_find(checkpoint, tensor->name) == tensor);
        visit(&sum, tensor, NULL);
        tensor->is_used = true;
    }
    for (int family = 0; family < 3; family++) { /* each reads names in its own way */
        const tamis_model_config config = {.family = (tamis_family)family, .num_hidden_layers = 4};
        for (int32_t layer = -2; layer < 4; layer++)
            tamis_weights_find_fault(checkpoint, &config, layer, &fault);
    }
    tamis_checkpoint_close(&checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t sum = 0;
    size_t data_bytes = 0;
    if (folder[0] == '\0')
        make_folder();
    if (size > 0 && data[0] == '{') {
        write_shard();
        write_file("model.safetensors.index.json", data, size);
        open_folder();
        char path[128];
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
        unlink(path);
        return 0;
    }
    tamis_error err;
    const tamis_status st =
        tamis_safetensors_parse_header("input", data, size, visit, &sum, &data_bytes, &err);
    require(st == TAMIS_STATUS_OK || err.text[0] != '\0');
    write_file("model.safetensors", data, size);
    open_folder();
    return 0;
}
