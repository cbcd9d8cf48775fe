#include "core/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/mem.h"

/* No system takes a longer path, and the reason must not be lost behind it. */
static tamis_status fail_errno(tamis_error *err, const char *path, const char *what)
{
    return tamis_fail(err, errno == ENOMEM ? TAMIS_STATUS_NO_MEMORY : TAMIS_STATUS_IO,
                      "%.4096s: cannot %s: %s", path, what, strerror(errno));
}

/* Opens a regular file; O_NONBLOCK because opening a pipe by mistake must not hang. */
static tamis_status open_regular(int *out_fd, size_t *bytes, const char *path, tamis_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(err, path, "open");
    struct stat info;
    tamis_status st = TAMIS_STATUS_OK;
    if (fstat(fd, &info) != 0)
        st = fail_errno(err, path, "stat");
    else if (S_ISDIR(info.st_mode))
        st = tamis_fail(err, TAMIS_STATUS_IO, "%s: is a folder, not a file", path);
    else if (!S_ISREG(info.st_mode))
        st = tamis_fail(err, TAMIS_STATUS_IO, "%s: is not a regular file", path);
    if (st != TAMIS_STATUS_OK) {
        close(fd);
        return st;
    }
    *out_fd = fd;
    *bytes = (size_t)info.st_size;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_file_map_open(tamis_file_map *out, const char *path, tamis_error *err)
{
    int fd = -1;
    size_t bytes = 0;
    *out = (tamis_file_map){NULL, 0};
    TAMIS_TRY(open_regular(&fd, &bytes, path, err));
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            const tamis_status st = fail_errno(err, path, "map");
            close(fd);
            return st;
        }
#ifdef MADV_HUGEPAGE
        /* A wish: file systems with large folios (ext4, XFS of newer kernels) read and map 2 MiB.
         */
        (void)madvise(data, bytes, MADV_HUGEPAGE);
#endif
        *out = (tamis_file_map){data, bytes};
    }
    close(fd); /* the mapping stays */
    return TAMIS_STATUS_OK;
}

void tamis_file_map_close(tamis_file_map *map)
{
    if (map->data != NULL)
        munmap((void *)map->data, map->bytes);
    *map = (tamis_file_map){NULL, 0};
}

void tamis_file_map_release_pages(const tamis_file_map *map)
{
    if (map->data != NULL)
        madvise((void *)map->data, map->bytes, MADV_DONTNEED);
}

/* Reads up to `bytes` bytes; *got is less if the file shrank since it was opened. */
static tamis_status read_all(int fd, char *text, size_t bytes, size_t *got, const char *path,
                             tamis_error *err)
{
    *got = 0;
    while (*got < bytes) {
        const ssize_t n = read(fd, text + *got, bytes - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno(err, path, "read");
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_file_read(char **out, size_t *bytes, const char *path, size_t max_bytes,
                             tamis_error *err)
{
    int fd = -1;
    size_t file_bytes = 0;
    char *text = NULL;
    tamis_status st;
    *out = NULL;
    *bytes = 0;
    TAMIS_TRY(open_regular(&fd, &file_bytes, path, err));
    if (file_bytes > max_bytes) {
        st = tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: has %zu bytes, allowed at most %zu", path,
                        file_bytes, max_bytes);
        goto fail;
    }
    text = tamis_mem_alloc(TAMIS_MEM_MISC, file_bytes + 1);
    if (text == NULL) {
        st = tamis_fail_memory(err, path, file_bytes + 1);
        goto fail;
    }
    TAMIS_TRY_GOTO(read_all(fd, text, file_bytes, bytes, path, err));
    close(fd);
    *out = text;
    return TAMIS_STATUS_OK;
fail:
    *bytes = 0;
    tamis_mem_free(text);
    close(fd);
    return st;
}

char *tamis_path_join(const char *dir, const char *name)
{
    const size_t dir_len = strlen(dir), name_len = strlen(name);
    const bool slash = dir_len > 0 && dir[dir_len - 1] != '/';
    char *path = tamis_mem_array(TAMIS_MEM_MISC, dir_len + slash + name_len + 1, 1);
    if (path == NULL)
        return NULL;
    memcpy(path, dir, dir_len);
    if (slash)
        path[dir_len] = '/';
    memcpy(path + dir_len + slash, name, name_len);
    return path;
}

bool tamis_file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}
