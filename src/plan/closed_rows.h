/*
 * Compressed rows that a step completes: row j of ratio r covers tokens j r .. j r + r - 1 and is
 * closed by the last of them; a query at position p sees rows j < (p + 1) / r.
 */
#ifndef TAMIS_PLAN_CLOSED_ROWS_H
#define TAMIS_PLAN_CLOSED_ROWS_H

#include "plan/step.h"

typedef struct tamis_closed_rows {
    int32_t n;
    int32_t *req; /* [capacity] request of each row, requests in batch order */
    int32_t *idx; /* [capacity] row number j within its sequence */
} tamis_closed_rows;

/* min(T, T / r + B) bounds the rows of T tokens of B requests; r at least 1, T and B at least 0. */
static inline int32_t tamis_closed_rows_capacity(int32_t n_tokens, int32_t n_reqs, int32_t ratio)
{
    const int64_t bound = (int64_t)(n_tokens / ratio) + n_reqs;
    return n_tokens < bound ? n_tokens : (int32_t)bound;
}
static inline int32_t tamis_visible_rows(int32_t pos, int32_t ratio)
{
    return ratio == 0 ? 0 : (pos + 1) / ratio;
}

void tamis_closed_rows_layout(tamis_closed_rows *rows, int32_t capacity, tamis_arena *arena);
void tamis_closed_rows_build(tamis_closed_rows *rows, const tamis_step *step, int32_t ratio);

#endif
