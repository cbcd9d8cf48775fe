/*
 * Runs a fuzz target over the files of a folder, without a fuzzer: the test run replays every
 * corpus this way. usage: replay_NAME FOLDER
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &info) != 0)
        return -1;
    const size_t bytes = (size_t)info.st_size;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1); /* exact size, so that ASan sees one byte over */
    if (data == NULL || fread(data, 1, bytes, file) != bytes)
        return -1;
    fclose(file);
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    int n_files = 0;
    if (folder == NULL) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (replay_file(path) != 0) {
            fprintf(stderr, "%s: cannot be read\n", path);
            return 1;
        }
        n_files++;
    }
    closedir(folder);
    printf("%d inputs\n", n_files);
    return n_files > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
