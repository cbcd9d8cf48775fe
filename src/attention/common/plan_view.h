/* What a plan shows of itself and how a layer deals with padding: the same in both back ends. */
#ifndef TAMIS_ATTENTION_COMMON_PLAN_VIEW_H
#define TAMIS_ATTENTION_COMMON_PLAN_VIEW_H

#include <string.h>

#include "core/partition.h"
#include "plan/step.h"

static inline tamis_work_view tamis_work_show(const tamis_partition *partition)
{
    return (tamis_work_view){.num_items = partition->n_items,
                             .num_threads = partition->n_threads,
                             .unit_start = partition->unit_start,
                             .bounds = partition->bounds};
}

/* Rows of a layer's output that belong to padding. */
static inline void tamis_clear_padding(const tamis_step *step, float *out, int64_t row_floats)
{
    const int64_t n = step->n_input_tokens - step->n_tokens;
    if (n > 0)
        memset(out + step->n_tokens * row_floats, 0, (size_t)(n * row_floats) * sizeof *out);
}

#endif
