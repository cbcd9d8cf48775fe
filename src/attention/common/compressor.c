#include "attention/common/compressor.h"

#include <string.h>

#include "attention/common/indexer.h"
#include "attention/common/ring.h"

#define MAX_SLOTS 256

static const float *state_row(const tamis_compressor *c, const tamis_step *step, int32_t req,
                              int32_t pos)
{
    if (pos >= step->start_pos[req]) {
        const int32_t token = step->query_start[req] + (pos - step->start_pos[req]);
        return c->state + (int64_t)token * 2 * tamis_compressor_width(c);
    }
    return (const float *)(const void *)tamis_cache_ring_row(c->ring, step->slot[req], pos);
}

void tamis_compressor_add_ape(const tamis_compressor *c, const tamis_kernels *kernels,
                              const tamis_step *step, int32_t token)
{
    const int32_t width = tamis_compressor_width(c);
    float *z = c->state + (int64_t)token * 2 * width + width;
    kernels->add(z, c->weights->ape + (int64_t)(step->tok_pos[token] % c->ratio) * width, width);
}

/* The slots of row j in order: previous window (first halves), own window (last half). */
static int gather_slots(const tamis_compressor *c, const tamis_step *step, int32_t req, int32_t j,
                        const float **value, const float **score)
{
    const int32_t halves = tamis_compressor_halves(c->ratio), width = tamis_compressor_width(c);
    const int32_t own = j * c->ratio, first = halves == 2 && j > 0 ? own - c->ratio : own;
    int n = 0;
    for (int32_t pos = first; pos < own + c->ratio; pos++) {
        const float *row = state_row(c, step, req, pos);
        const int32_t half = pos >= own ? halves - 1 : 0;
        value[n] = row + half * c->head_dim;
        score[n++] = row + width + half * c->head_dim;
    }
    return n;
}

/* Official: each stage leaves BF16; ascend: the last one. */
static void round_row(const tamis_compressor *c, const tamis_kernels *kernels, float *row,
                      bool is_last)
{
    if (c->profile == TAMIS_PROFILE_OFFICIAL || (c->profile == TAMIS_PROFILE_ASCEND && is_last))
        kernels->round_bf16(row, c->head_dim);
}

bool tamis_compressor_close_row(const tamis_compressor *c, const tamis_kernels *kernels,
                                const tamis_step *step, int32_t req, int32_t j, const float *cos,
                                const float *sin, float *scratch)
{
    const float *value[MAX_SLOTS], *score[MAX_SLOTS];
    const int n_slots = gather_slots(c, step, req, j, value, score);
    kernels->pool(scratch, value, score, n_slots, c->head_dim);
    round_row(c, kernels, scratch, false);
    kernels->rmsnorm(scratch, scratch, c->weights->norm, c->head_dim, c->eps);
    round_row(c, kernels, scratch, false);
    kernels->rope(scratch + c->head_dim - c->rope_dim, cos, sin, c->rope_dim / 2, false);
    round_row(c, kernels, scratch, true);
    if (c->is_index)
        tamis_indexer_rotate_key(kernels, c->profile, TAMIS_INDEX_V4, scratch, c->head_dim);
    const int32_t rows = c->out->desc.rows;
    const tamis_row_format *format = &c->out->desc.format;
    uint8_t *row = tamis_cache_block_row(c->out, tamis_step_table(step, req)[j / rows], j % rows);
    kernels->pack_row(row, row + format->scale_at, format, scratch);
    return kernels->all_finite(scratch, c->head_dim);
}

void tamis_compressor_keep_state(const tamis_compressor *c, const tamis_step *step, int32_t token)
{
    const int64_t width = 2 * tamis_compressor_width(c);
    tamis_ring_keep(c->ring, step, token, c->state + token * width);
}
