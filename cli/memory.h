/* Allocation for the command line: a refusal ends the program with CLI_EXIT_MEMORY. */
#ifndef CLI_MEMORY_H
#define CLI_MEMORY_H

#include <stddef.h>

void *cli_alloc(size_t n, size_t size); /* zeroed */
/* Grow an array so that it holds n items of `size`; *capacity is in items. */
void *cli_grow(void *array, size_t *capacity, size_t n, size_t size);

#endif
