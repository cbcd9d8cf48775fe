#include "plan/closed_rows.h"

void tamis_closed_rows_layout(tamis_closed_rows *rows, int32_t capacity, tamis_arena *arena)
{
    rows->req = tamis_arena_take(arena, (size_t)capacity, sizeof(int32_t));
    rows->idx = tamis_arena_take(arena, (size_t)capacity, sizeof(int32_t));
}

void tamis_closed_rows_build(tamis_closed_rows *rows, const tamis_step *step, int32_t ratio)
{
    rows->n = 0;
    for (int32_t req = 0; req < step->n_reqs; req++)
        for (int32_t j = step->start_pos[req] / ratio; j < step->seq_len[req] / ratio; j++) {
            rows->req[rows->n] = req;
            rows->idx[rows->n++] = j;
        }
}
