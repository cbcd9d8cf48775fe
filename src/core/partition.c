#include "core/partition.h"

/* From this many items a thread on, whole items balance well enough. */
#define ITEMS_PER_THREAD 4

/* First item whose units end after `unit`; n_items if there is none. */
static int32_t item_at(const tamis_partition *partition, int64_t unit)
{
    int32_t lo = 0, hi = partition->n_items;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (partition->unit_start[mid + 1] > unit)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void tamis_partition_layout(tamis_partition *partition, int32_t max_items, int32_t n_threads,
                            tamis_arena *arena)
{
    partition->n_threads = n_threads;
    partition->unit_start = tamis_arena_take(arena, (size_t)max_items + 1, sizeof(int64_t));
    partition->bounds = tamis_arena_take(arena, (size_t)n_threads + 1, sizeof(int64_t));
    partition->first_item = tamis_arena_take(arena, (size_t)n_threads, sizeof(int32_t));
}

void tamis_partition_set(tamis_partition *partition, const int32_t *units, int32_t n_items)
{
    partition->n_items = n_items;
    partition->unit_start[0] = 0;
    for (int32_t i = 0; i < n_items; i++)
        partition->unit_start[i + 1] = partition->unit_start[i] + units[i];
    tamis_partition_build(partition);
}

void tamis_partition_build(tamis_partition *partition)
{
    const int64_t total = partition->unit_start[partition->n_items];
    const int32_t n_threads = partition->n_threads;
    const bool whole_items = partition->n_items >= ITEMS_PER_THREAD * n_threads;
    partition->has_split_items = false;
    partition->bounds[0] = 0;
    partition->bounds[n_threads] = total;
    for (int32_t i = 1; i < n_threads; i++) {
        int64_t bound = total / n_threads * i + total % n_threads * i / n_threads;
        const int32_t item = item_at(partition, bound);
        if (item < partition->n_items && partition->unit_start[item] != bound) {
            if (whole_items)
                bound = partition->unit_start[item];
            else
                partition->has_split_items = true;
        }
        partition->bounds[i] = bound;
    }
    for (int32_t i = 0; i < n_threads; i++)
        partition->first_item[i] = item_at(partition, partition->bounds[i]);
}
