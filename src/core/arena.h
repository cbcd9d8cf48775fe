/*
 * A bump arena over one block: workspaces of a step. Measuring and carving use the same calls:
 * with base == NULL nothing is handed out, `used` still grows, so the layout function that carves
 * is also the one that tells the size.
 */
#ifndef TAMIS_CORE_ARENA_H
#define TAMIS_CORE_ARENA_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define TAMIS_ARENA_ALIGN 64

typedef struct tamis_arena {
    uint8_t *base; /* NULL: measuring */
    size_t bytes;  /* capacity; ignored while measuring */
    size_t used;   /* SIZE_MAX after an overflow */
} tamis_arena;

static inline void *tamis_arena_take(tamis_arena *arena, size_t n, size_t size)
{
    if (arena->used == SIZE_MAX || (size != 0 && n > (SIZE_MAX / 2 - arena->used) / size)) {
        arena->used = SIZE_MAX;
        return NULL;
    }
    const size_t at = arena->used;
    arena->used += (n * size + TAMIS_ARENA_ALIGN - 1) / TAMIS_ARENA_ALIGN * TAMIS_ARENA_ALIGN;
    if (arena->base == NULL)
        return NULL;
    assert(arena->used <= arena->bytes);
    return arena->base + at;
}

#endif
