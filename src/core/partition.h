/*
 * Work of a step cut over threads: items (tokens) of unequal numbers of units (chunks of a list),
 * laid on one line; every thread takes an equal stretch.
 *
 * With many items the stretches end at item borders; with few (decode) they cut items, and what
 * several threads found of one item is merged afterwards in unit order. Units are fixed by the
 * numerics contract, so neither the cut nor the number of threads shows in the results.
 */
#ifndef TAMIS_CORE_PARTITION_H
#define TAMIS_CORE_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"

typedef struct tamis_partition {
    int32_t n_items, n_threads;
    int64_t *unit_start;  /* [n_items + 1] units before each item */
    int64_t *bounds;      /* [n_threads + 1] units where the stretches begin and end */
    int32_t *first_item;  /* [n_threads] item that holds (or follows) bounds[i] */
    bool has_split_items; /* some item belongs to more than one thread */
} tamis_partition;

/* Takes the arrays for at most max_items items. */
void tamis_partition_layout(tamis_partition *partition, int32_t max_items, int32_t n_threads,
                            tamis_arena *arena);
/* Cuts n_items items of units[i] units each. */
void tamis_partition_set(tamis_partition *partition, const int32_t *units, int32_t n_items);
/* The same when the caller has filled n_items and unit_start. */
void tamis_partition_build(tamis_partition *partition);

/* Units [*begin, *end) of `item` that belong to the thread, counted within the item. */
static inline bool tamis_partition_part(const tamis_partition *partition, int thread_idx,
                                        int32_t item, int64_t *begin, int64_t *end)
{
    const int64_t start = partition->unit_start[item], stop = partition->unit_start[item + 1];
    const int64_t b = partition->bounds[thread_idx], e = partition->bounds[thread_idx + 1];
    *begin = (b > start ? b : start) - start;
    *end = (e < stop ? e : stop) - start;
    return *begin < *end;
}
static inline int64_t tamis_partition_units(const tamis_partition *partition, int32_t item)
{
    return partition->unit_start[item + 1] - partition->unit_start[item];
}

#endif
