#include "core/file_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"

#define TEMP_SUFFIX  ".XXXXXX"
#define BUFFER_BYTES ((size_t)2 << 20)

/* No system takes a longer path, and the reason must not be lost behind it. */
static tamis_status fail_errno(tamis_error *err, const char *path, const char *what)
{
    return tamis_fail(err, TAMIS_STATUS_IO, "%.4096s: cannot %s: %s", path, what, strerror(errno));
}

/* ---------------------------------------------------------------- writer */

/* A device or a folder of that name must not be replaced by a file. */
static tamis_status check_place(const char *path, tamis_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? TAMIS_STATUS_OK : fail_errno(err, path, "look at");
    if (!S_ISREG(info.st_mode))
        return tamis_fail(err, TAMIS_STATUS_IO,
                          "%s: is there and is no regular file, allowed: one, or nothing", path);
    return TAMIS_STATUS_OK;
}

static tamis_status create_beside(tamis_file_writer *writer, char *temp_path, tamis_error *err)
{
    writer->fd = mkostemp(temp_path, O_CLOEXEC);
    if (writer->fd < 0)
        return fail_errno(err, writer->path, "create a file beside it");
    writer->temp_path = temp_path;
    return TAMIS_STATUS_OK;
}

/* A link stays, and what it leads to is replaced: *path becomes that name, in target. */
static tamis_status follow_link(const char **path, char target[PATH_MAX], tamis_error *err)
{
    struct stat info;
    if (lstat(*path, &info) != 0 || !S_ISLNK(info.st_mode))
        return TAMIS_STATUS_OK;
    if (realpath(*path, target) == NULL)
        return fail_errno(err, *path, "follow the link");
    *path = target;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_file_writer_open(tamis_file_writer *writer, const char *path, tamis_error *err)
{
    char target[PATH_MAX];
    TAMIS_TRY(check_place(path, err));
    TAMIS_TRY(follow_link(&path, target, err));
    const size_t bytes = strlen(path) + sizeof TEMP_SUFFIX;
    char *temp_path = tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
    *writer = (tamis_file_writer){.path = tamis_mem_strdup(TAMIS_MEM_MISC, path),
                                  .fd = -1,
                                  .buffer = tamis_mem_alloc(TAMIS_MEM_MISC, BUFFER_BYTES)};
    tamis_status st = TAMIS_STATUS_OK;
    if (writer->path == NULL || temp_path == NULL) {
        st = tamis_fail_memory(err, path, 2 * bytes);
    } else {
        snprintf(temp_path, bytes, "%s%s", path, TEMP_SUFFIX);
        st = create_beside(writer, temp_path, err);
    }
    if (st != TAMIS_STATUS_OK) {
        tamis_mem_free(temp_path);
        tamis_file_writer_abandon(writer);
    }
    return st;
}

static tamis_status write_all(tamis_file_writer *writer, const uint8_t *data, size_t bytes,
                              tamis_error *err)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(writer->fd, data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno(err, writer->path, "write");
        done += (size_t)n;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status flush(tamis_file_writer *writer, tamis_error *err)
{
    const size_t bytes = writer->buffered;
    writer->buffered = 0;
    return write_all(writer, writer->buffer, bytes, err);
}

tamis_status tamis_file_writer_write(tamis_file_writer *writer, const void *data, size_t bytes,
                                     tamis_error *err)
{
    const uint8_t *from = data;
    if (writer->buffer == NULL)
        return write_all(writer, from, bytes, err);
    while (bytes > 0) {
        const size_t room = BUFFER_BYTES - writer->buffered, n = bytes < room ? bytes : room;
        memcpy(writer->buffer + writer->buffered, from, n);
        writer->buffered += n;
        from += n;
        bytes -= n;
        if (writer->buffered == BUFFER_BYTES)
            TAMIS_TRY(flush(writer, err));
    }
    return TAMIS_STATUS_OK;
}

/* The name of the new file must survive a power cut as well. Not every file system can do that. */
static tamis_status sync_folder(const char *path, tamis_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = tamis_path_join(slash == NULL ? "." : path, "");
    if (folder == NULL)
        return tamis_fail_memory(err, path, strlen(path));
    if (slash != NULL)
        folder[slash - path + 1] = '\0';
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool is_fine = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    const tamis_status st =
        is_fine ? TAMIS_STATUS_OK
                : fail_errno(err, path, "make sure that it lasts (it is written): sync the folder");
    if (fd >= 0)
        close(fd);
    tamis_mem_free(folder);
    return st;
}

/* Everything up to the rename; the file is closed afterwards in any case. */
static tamis_status finish(tamis_file_writer *writer, tamis_error *err)
{
    tamis_status st = flush(writer, err);
    if (st == TAMIS_STATUS_OK && fsync(writer->fd) != 0)
        st = fail_errno(err, writer->path, "sync");
    if (close(writer->fd) != 0 && st == TAMIS_STATUS_OK)
        st = fail_errno(err, writer->path, "close");
    writer->fd = -1;
    TAMIS_TRY(st);
    return rename(writer->temp_path, writer->path) == 0
               ? TAMIS_STATUS_OK
               : fail_errno(err, writer->path, "rename the new file to this name");
}

tamis_status tamis_file_writer_commit(tamis_file_writer *writer, tamis_error *err)
{
    tamis_status st = finish(writer, err);
    if (st == TAMIS_STATUS_OK) {
        tamis_mem_free(writer->temp_path);
        writer->temp_path = NULL; /* it has become the file */
        st = sync_folder(writer->path, err);
    }
    tamis_file_writer_abandon(writer);
    return st;
}

void tamis_file_writer_abandon(tamis_file_writer *writer)
{
    if (writer->path != NULL && writer->fd >= 0)
        close(writer->fd);
    if (writer->temp_path != NULL)
        unlink(writer->temp_path);
    tamis_mem_free(writer->path);
    tamis_mem_free(writer->temp_path);
    tamis_mem_free(writer->buffer);
    *writer = (tamis_file_writer){.fd = -1};
}

/* ---------------------------------------------------------------- reader */

tamis_status tamis_file_reader_open(tamis_file_reader *reader, const char *path, tamis_error *err)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang */
    if (fd < 0)
        return fail_errno(err, path, "open");
    tamis_status st = TAMIS_STATUS_OK;
    if (fstat(fd, &info) != 0)
        st = fail_errno(err, path, "stat");
    else if (!S_ISREG(info.st_mode))
        st = tamis_fail(err, TAMIS_STATUS_IO, "%s: is not a regular file", path);
    if (st != TAMIS_STATUS_OK) {
        close(fd);
        return st;
    }
    *reader = (tamis_file_reader){.path = path, .fd = fd, .bytes = (uint64_t)info.st_size};
    return TAMIS_STATUS_OK;
}

tamis_status tamis_file_reader_read(tamis_file_reader *reader, void *data, size_t bytes,
                                    const char *what, tamis_error *err)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = read(reader->fd, (char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno(err, reader->path, "read");
        if (n == 0)
            return tamis_fail(err, TAMIS_STATUS_FORMAT,
                              "%s: ends at byte %llu, allowed: at least %llu (within %s)",
                              reader->path, (unsigned long long)reader->at,
                              (unsigned long long)(reader->at + bytes - done), what);
        done += (size_t)n;
        reader->at += (uint64_t)n;
    }
    return TAMIS_STATUS_OK;
}

void tamis_file_reader_close(tamis_file_reader *reader)
{
    if (reader->path != NULL)
        close(reader->fd);
    *reader = (tamis_file_reader){.fd = -1};
}
