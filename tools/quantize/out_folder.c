#include "quantize/out_folder.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"

static tamis_status expect_empty(const char *path, tamis_error *err)
{
    DIR *dir = opendir(path);
    tamis_status st = TAMIS_STATUS_OK;
    if (dir == NULL)
        return tamis_fail(err, TAMIS_STATUS_IO, "%s: %s", path, strerror(errno));
    for (struct dirent *entry; st == TAMIS_STATUS_OK && (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            st = tamis_fail(err, TAMIS_STATUS_INVALID,
                            "%s: holds %s, allowed: a new or an empty folder", path, entry->d_name);
    closedir(dir);
    return st;
}

tamis_status out_folder_open(out_folder *folder, const char *dir, tamis_error *err)
{
    *folder = (out_folder){.dir = dir};
    if (mkdir(dir, 0777) == 0) {
        folder->is_new = true;
        return TAMIS_STATUS_OK;
    }
    if (errno != EEXIST)
        return tamis_fail(err, TAMIS_STATUS_IO, "%s: %s", dir, strerror(errno));
    return expect_empty(dir, err);
}

static tamis_status remember(out_folder *folder, char *path, tamis_error *err)
{
    if (folder->n_paths == folder->capacity) {
        const int32_t wanted = folder->capacity == 0 ? 16 : 2 * folder->capacity;
        const size_t bytes = (size_t)wanted * sizeof *folder->paths;
        char **paths = tamis_mem_realloc(TAMIS_MEM_MISC, folder->paths, bytes);
        if (paths == NULL)
            return tamis_fail_memory(err, "list of files", bytes);
        folder->paths = paths;
        folder->capacity = wanted;
    }
    folder->paths[folder->n_paths++] = path;
    return TAMIS_STATUS_OK;
}

/* The writer's files are their owner's alone; a model is for whom the user's umask lets. */
static tamis_status open_writer(tamis_file_writer *writer, const char *path, tamis_error *err)
{
    const mode_t mask = umask(0);
    umask(mask);
    TAMIS_TRY(tamis_file_writer_open(writer, path, err));
    if (fchmod(writer->fd, 0666 & ~mask) == 0)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_IO, "%s: cannot set its mode: %s", path, strerror(errno));
}

tamis_status out_folder_begin(out_folder *folder, const char *name, tamis_file_writer *writer,
                              tamis_error *err)
{
    char *path = tamis_path_join(folder->dir, name);
    if (path == NULL)
        return tamis_fail_memory(err, name, strlen(folder->dir) + strlen(name) + 2);
    const tamis_status st = remember(folder, path, err);
    if (st != TAMIS_STATUS_OK) {
        tamis_mem_free(path);
        return st;
    }
    return open_writer(writer, path, err);
}

tamis_status out_folder_write(out_folder *folder, const char *name, const void *data, size_t bytes,
                              tamis_error *err)
{
    tamis_file_writer writer = {0};
    tamis_status st = out_folder_begin(folder, name, &writer, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_file_writer_write(&writer, data, bytes, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_file_writer_commit(&writer, err);
    tamis_file_writer_abandon(&writer);
    return st;
}

void out_folder_close(out_folder *folder, bool is_done)
{
    for (int32_t i = 0; i < folder->n_paths; i++) {
        if (!is_done)
            unlink(folder->paths[i]);
        tamis_mem_free(folder->paths[i]);
    }
    if (!is_done && folder->is_new)
        rmdir(folder->dir);
    tamis_mem_free(folder->paths);
    *folder = (out_folder){0};
}
