#include "support/temp_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what, const char *path)
{
    fprintf(stderr, "test support: cannot %s %s: %s\n", what, path, strerror(errno));
    abort();
}

static void *take(size_t bytes)
{
    void *block = malloc(bytes);
    if (block == NULL)
        die("allocate for", "a test");
    return block;
}

char *test_path(const char *dir, const char *name)
{
    const size_t bytes = strlen(dir) + strlen(name) + 2;
    char *path = take(bytes);
    snprintf(path, bytes, "%s/%s", dir, name);
    return path;
}

char *test_temp_dir_make(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = test_path(base != NULL && base[0] != '\0' ? base : "/tmp", "tamis-test-XXXXXX");
    if (mkdtemp(dir) == NULL)
        die("make folder", dir);
    return dir;
}

static void remove_tree(const char *dir)
{
    DIR *stream = opendir(dir);
    if (stream == NULL)
        die("open folder", dir);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *path = test_path(dir, entry->d_name);
        struct stat info;
        if (lstat(path, &info) != 0)
            die("stat", path);
        if (S_ISDIR(info.st_mode))
            remove_tree(path);
        else if (unlink(path) != 0)
            die("remove", path);
        free(path);
    }
    closedir(stream);
    if (rmdir(dir) != 0)
        die("remove folder", dir);
}

void test_temp_dir_remove(char *dir)
{
    remove_tree(dir);
    free(dir);
}

void test_file_write(const char *dir, const char *name, const void *data, size_t bytes)
{
    char *path = test_path(dir, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        die("create", path);
    if (fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        die("write", path);
    free(path);
}

void test_file_write_text(const char *dir, const char *name, const char *text)
{
    test_file_write(dir, name, text, strlen(text));
}

char *test_file_read(const char *dir, const char *name, size_t *bytes)
{
    char *path = test_path(dir, name);
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (file == NULL || fstat(fileno(file), &info) != 0)
        die("open", path);
    const size_t n = (size_t)info.st_size;
    char *text = take(n + 1);
    if (fread(text, 1, n, file) != n)
        die("read", path);
    fclose(file);
    text[n] = '\0';
    if (bytes != NULL)
        *bytes = n;
    free(path);
    return text;
}

void test_file_copy(const char *from_dir, const char *to_dir, const char *name)
{
    size_t bytes;
    char *text = test_file_read(from_dir, name, &bytes);
    test_file_write(to_dir, name, text, bytes);
    free(text);
}

void test_dir_copy_files(const char *from_dir, const char *to_dir)
{
    DIR *stream = opendir(from_dir);
    if (stream == NULL)
        die("open folder", from_dir);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char *path = test_path(from_dir, entry->d_name);
        struct stat info;
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode))
            test_file_copy(from_dir, to_dir, entry->d_name);
        free(path);
    }
    closedir(stream);
}
