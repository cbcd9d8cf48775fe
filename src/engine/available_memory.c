/*
 * Linux: MemAvailable of /proc/meminfo, and for every memory cgroup the process is in its limit
 * less what it holds now; file pages count as free, since the kernel drops them on demand.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/memory_plan.h"

#define TEXT_BYTES 8192
#define PATH_BYTES 1024

/* The first TEXT_BYTES - 1 bytes of a file; these files are short. */
static bool read_text(char text[TEXT_BYTES], const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, TEXT_BYTES - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return n > 0;
}

/* The number behind `key` at the start of a line; `otherwise` if there is none ("max"). */
static uint64_t number_after(const char *text, const char *key, uint64_t otherwise)
{
    const size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0) {
            char *end;
            const unsigned long long value = strtoull(line + n, &end, 10);
            return end == line + n ? otherwise : value;
        }
        if (*line == '\0')
            break;
    }
    return otherwise;
}

static uint64_t read_number(const char *dir, const char *file, uint64_t otherwise)
{
    char path[PATH_BYTES + 64], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return read_text(text, path) ? number_after(text, "", otherwise) : otherwise;
}

/* What one cgroup leaves; names of its files differ between the two versions. */
static uint64_t room_in(const char *dir, const char *limit_file, const char *usage_file)
{
    char path[PATH_BYTES + 64], text[TEXT_BYTES];
    const uint64_t limit = read_number(dir, limit_file, UINT64_MAX);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = read_number(dir, usage_file, 0), files = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (read_text(text, path))
        files = number_after(text, "inactive_file ", 0) + number_after(text, "active_file ", 0);
    used = used > files ? used - files : 0;
    return limit > used ? limit - used : 0;
}

/* A cgroup and all above it: any of them may hold the limit. */
static uint64_t room_upwards(const char *root, const char *group, const char *limit_file,
                             const char *usage_file)
{
    char dir[PATH_BYTES];
    uint64_t room = UINT64_MAX;
    const size_t n_root = strlen(root);
    const int n = snprintf(dir, sizeof dir, "%s%s", root, strcmp(group, "/") == 0 ? "" : group);
    if (n < 0 || n >= (int)sizeof dir)
        return room_in(root, limit_file, usage_file);
    for (;;) {
        const uint64_t here = room_in(dir, limit_file, usage_file);
        room = here < room ? here : room;
        if (strlen(dir) <= n_root)
            return room;
        *strrchr(dir, '/') = '\0';
    }
}

/* The process's path in the hierarchy whose /proc/self/cgroup line holds `mark`. */
static void own_group(char group[PATH_BYTES], const char *text, const char *mark)
{
    const char *line = strstr(text, mark);
    const size_t n = line == NULL ? 0 : strcspn(line + strlen(mark), "\n");
    if (n == 0 || n >= PATH_BYTES || strstr(line, "/..") != NULL) {
        strcpy(group, "/");
        return;
    }
    memcpy(group, line + strlen(mark), n);
    group[n] = '\0';
}

static uint64_t room_in_cgroups(void)
{
    char text[TEXT_BYTES], group[PATH_BYTES];
    if (!read_text(text, "/proc/self/cgroup"))
        return UINT64_MAX;
    own_group(group, text, "0::");
    const uint64_t v2 = room_upwards("/sys/fs/cgroup", group, "memory.max", "memory.current");
    own_group(group, text, ":memory:");
    const uint64_t v1 = room_upwards("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                                     "memory.usage_in_bytes");
    return v1 < v2 ? v1 : v2;
}

uint64_t tamis_available_memory(void)
{
    char text[TEXT_BYTES];
    uint64_t available = UINT64_MAX;
    if (read_text(text, "/proc/meminfo")) {
        const uint64_t kib = number_after(text, "MemAvailable:", UINT64_MAX);
        if (kib < UINT64_MAX / 1024)
            available = kib * 1024;
    }
    const uint64_t room = room_in_cgroups();
    return room < available ? room : available;
}
