#include "attention/common/indexer.h"

#include <math.h>

#include "core/size.h"

void tamis_indexer_layout(tamis_indexer *indexer, tamis_profile profile, tamis_indexer_dims max,
                          int32_t max_tokens, int32_t n_threads, tamis_arena *arena)
{
    const size_t n_tokens = (size_t)max_tokens, n_heads = (size_t)max.n_heads;
    const size_t padded = (size_t)tamis_round_up(max.n_heads, TAMIS_LANES);
    const size_t n_parts = 2 * (size_t)n_threads;
    indexer->q = tamis_arena_take(arena, n_tokens * n_heads * (size_t)max.head_dim, sizeof(float));
    indexer->w_raw = tamis_arena_take(arena, n_tokens * n_heads, sizeof(float));
    indexer->w = tamis_arena_take(arena, n_tokens * padded, sizeof(float));
    indexer->topk = tamis_arena_take(arena, n_tokens * (size_t)max.topk, sizeof(int32_t));
    indexer->partials =
        tamis_arena_take(arena, n_parts * (size_t)max.topk, sizeof *indexer->partials);
    indexer->n_partials = tamis_arena_take(arena, n_parts, sizeof(int32_t));
    if (profile == TAMIS_PROFILE_EXACT)
        return;
    const size_t n_groups = (size_t)tamis_ceil_div(max.head_dim, TAMIS_INDEX_GROUP);
    indexer->q_codes =
        tamis_arena_take(arena, n_tokens * padded * (size_t)max.head_dim, sizeof(int8_t));
    indexer->q_scales = tamis_arena_take(arena, n_tokens * padded * n_groups, sizeof(float));
}

size_t tamis_indexer_scratch_floats(tamis_indexer_dims dims)
{
    return dims.n_heads == 0 ? 0
                             : tamis_index_scratch_floats(dims.n_heads, dims.head_dim, dims.topk);
}

bool tamis_indexer_scale_weights(const tamis_indexer *indexer, const tamis_kernels *kernels,
                                 tamis_indexer_dims dims, int64_t token)
{
    const int64_t padded = tamis_round_up(dims.n_heads, TAMIS_LANES);
    const float factor = (1.0f / sqrtf((float)dims.head_dim)) * (1.0f / sqrtf((float)dims.n_heads));
    float *w = indexer->w + token * padded;
    kernels->scale(w, factor, indexer->w_raw + token * dims.n_heads, dims.n_heads);
    for (int64_t h = dims.n_heads; h < padded; h++)
        w[h] = 0;
    return kernels->all_finite(w, padded);
}

typedef struct key_source {
    const tamis_step *step;
    const tamis_cache *keys;
} key_source;

/* Keys j, j + 1, ... of the token's sequence as far as they lie in one block. */
static const void *find_keys(const void *user, int32_t token, int32_t j, int32_t n, int32_t *n_run,
                             int64_t *stride)
{
    const key_source *source = user;
    const tamis_step *step = source->step;
    const int32_t rows = source->keys->desc.rows, row = j % rows;
    *n_run = n < rows - row ? n : rows - row;
    *stride = source->keys->row_bytes;
    return tamis_cache_block_row(source->keys,
                                 tamis_step_table(step, step->tok_req[token])[j / rows], row);
}

bool tamis_indexer_select(const tamis_indexer *indexer, const tamis_exec *exec,
                          tamis_indexer_dims dims, const tamis_step *step, const tamis_cache *keys,
                          const int32_t *visible, const tamis_partition *partition)
{
    const key_source source = {step, keys};
    const tamis_index_job job = {.q = indexer->q,
                                 .weights = indexer->w,
                                 .n_tokens = step->n_tokens,
                                 .n_heads = dims.n_heads,
                                 .head_dim = dims.head_dim,
                                 .topk = dims.topk,
                                 .format = &keys->desc.format,
                                 .q_codes = indexer->q_codes,
                                 .q_scales = indexer->q_scales,
                                 .visible = visible,
                                 .partition = partition,
                                 .out = indexer->topk,
                                 .partials = indexer->partials,
                                 .n_partials = indexer->n_partials,
                                 .keys = find_keys,
                                 .user = &source};
    return tamis_index_run(exec, &job);
}
