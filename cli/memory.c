#include "memory.h"

#include <stdint.h>
#include <stdlib.h>

#include "message.h"

static _Noreturn void refused(size_t n, size_t size)
{
    exit(cli_fail(CLI_EXIT_MEMORY, "the system refused %zu items of %zu bytes", n, size));
}

void *cli_alloc(size_t n, size_t size)
{
    void *block = calloc(n == 0 ? 1 : n, size);
    if (block == NULL)
        refused(n, size);
    return block;
}

void *cli_grow(void *array, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return array;
    size_t wanted = *capacity < 64 ? 64 : *capacity;
    while (wanted < n)
        wanted = wanted > SIZE_MAX / 2 ? n : wanted * 2;
    if (wanted > SIZE_MAX / size)
        refused(wanted, size);
    void *grown = realloc(array, wanted * size);
    if (grown == NULL)
        refused(wanted, size);
    *capacity = wanted;
    return grown;
}
