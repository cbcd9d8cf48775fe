#include "attention/common/indexer.h"

#include <math.h>
#include <string.h>

#include "core/size.h"

/* ---------------------------------------------------------------- rules */

/* Hadamard rotation of n values, a power of two; every form ends in BF16. */
typedef enum rotation_form {
    ROTATE_NOT = 0,
    ROTATE_SCALED,       /* f32 sums times n^-0.5, rounded once */
    ROTATE_BF16_ENTRIES, /* product with a matrix of +-bf16(n^-0.5) */
    ROTATE_UNIT_ENTRIES  /* product with a matrix of +-1, rounded, then times n^-0.5, rounded */
} rotation_form;

/* Head weights; s: scale of the head's codes, c: head_dim^-0.5 n_heads^-0.5. */
typedef enum weight_form {
    WEIGHTS_F32 = 0,     /* w c */
    WEIGHTS_BF16,        /* bf16(w c); s is part of the scores */
    WEIGHTS_SCALES_F32,  /* ((w n_heads^-0.5) s) head_dim^-0.5 */
    WEIGHTS_BF16_SCALES, /* f16(f16(bf16(w c)) f16(s)) */
    WEIGHTS_PLAIN_SCALES /* f16(f16(w) f16(s)) */
} weight_form;

typedef struct index_rules {
    rotation_form rotation;
    weight_form weights;
    bool is_ranked;
} index_rules;

static const index_rules *rules_of(tamis_profile profile, tamis_index_family family)
{
    static const index_rules rules[][2] = {
        [TAMIS_PROFILE_EXACT] = {[TAMIS_INDEX_V4] = {ROTATE_NOT, WEIGHTS_F32, false},
                                 [TAMIS_INDEX_LATENT] = {ROTATE_NOT, WEIGHTS_F32, false}},
        [TAMIS_PROFILE_OFFICIAL] = {[TAMIS_INDEX_V4] = {ROTATE_SCALED, WEIGHTS_BF16, true},
                                    [TAMIS_INDEX_LATENT] = {ROTATE_SCALED, WEIGHTS_SCALES_F32,
                                                            false}},
        [TAMIS_PROFILE_ASCEND] = {
            [TAMIS_INDEX_V4] = {ROTATE_UNIT_ENTRIES, WEIGHTS_BF16_SCALES, false},
            [TAMIS_INDEX_LATENT] = {ROTATE_BF16_ENTRIES, WEIGHTS_PLAIN_SCALES, false}}};
    return &rules[profile][family];
}

bool tamis_indexer_is_ranked(tamis_profile profile, tamis_index_family family)
{
    return rules_of(profile, family)->is_ranked;
}

/* ---------------------------------------------------------------- buffers */

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

/* ---------------------------------------------------------------- rotation and codes */

static void rotate(const tamis_kernels *kernels, rotation_form form, float *x, int64_t n)
{
    float scale = (float)(1.0 / sqrt((double)n));
    if (form == ROTATE_NOT)
        return;
    if (form == ROTATE_BF16_ENTRIES)
        kernels->round_bf16(&scale, 1);
    kernels->round_bf16(x, n);
    kernels->hadamard(x, n, form == ROTATE_UNIT_ENTRIES ? 1.0f : scale);
    kernels->round_bf16(x, n);
    if (form != ROTATE_UNIT_ENTRIES)
        return;
    kernels->scale(x, scale, x, n);
    kernels->round_bf16(x, n);
}

void tamis_indexer_rotate_key(const tamis_kernels *kernels, tamis_profile profile,
                              tamis_index_family family, float *key, int32_t n)
{
    rotate(kernels, rules_of(profile, family)->rotation, key, n);
}

/* Where a token's heads have their codes and scales; heads are padded to whole panels. */
typedef struct head_codes {
    int8_t *codes;
    float *scales;
    int64_t n_padded;
    int64_t n_scales; /* of a head */
} head_codes;

static head_codes codes_of(const tamis_indexer *indexer, tamis_indexer_dims dims,
                           const tamis_row_format *key_format, int64_t token)
{
    const int64_t n_padded = tamis_round_up(dims.n_heads, TAMIS_LANES);
    const int64_t n_scales = tamis_row_num_groups(key_format), first = token * n_padded;
    return (head_codes){.codes = indexer->q_codes + first * dims.head_dim,
                        .scales = indexer->q_scales + first * n_scales,
                        .n_padded = n_padded,
                        .n_scales = n_scales};
}

/* A head as FP8 codes: the scores read their values as f32. */
static void code_f8(const tamis_kernels *kernels, float *q, int8_t *codes, float *scale,
                    const tamis_row_format *key_format)
{
    tamis_row_format format = *key_format;
    format.coded_at = 0;
    kernels->pack_row(codes, scale, &format, q);
    kernels->widen(q, codes, TAMIS_DTYPE_F8_E4M3, format.num_values);
}

static void code_heads(const tamis_kernels *kernels, float *q, const head_codes *to,
                       tamis_indexer_dims dims, const tamis_row_format *key_format)
{
    const int64_t n = dims.head_dim, n_unused = to->n_padded - dims.n_heads;
    for (int64_t h = 0; h < dims.n_heads; h++) {
        int8_t *codes = to->codes + h * n;
        float *scales = to->scales + h * to->n_scales;
        if (key_format->dtype == TAMIS_DTYPE_F4_E2M1)
            kernels->quantize_f4(codes, scales, q + h * n, n, key_format->group_size);
        else if (key_format->dtype == TAMIS_DTYPE_I8)
            kernels->quantize_i8(codes, scales, q + h * n, n);
        else
            code_f8(kernels, q + h * n, codes, scales, key_format);
    }
    memset(to->codes + dims.n_heads * n, 0, (size_t)(n_unused * n));
    memset(to->scales + dims.n_heads * to->n_scales, 0,
           (size_t)(n_unused * to->n_scales) * sizeof *to->scales);
}

/* ---------------------------------------------------------------- weights */

static void round_f16(const tamis_kernels *kernels, float *x)
{
    uint16_t half;
    kernels->narrow(&half, x, TAMIS_DTYPE_F16, 1);
    kernels->widen(x, &half, TAMIS_DTYPE_F16, 1);
}

static float f16_product(const tamis_kernels *kernels, float w, float scale)
{
    round_f16(kernels, &w);
    round_f16(kernels, &scale);
    w *= scale;
    round_f16(kernels, &w);
    return w;
}

/* Profile exact: w_raw times one factor. */
static bool scale_weights(const tamis_indexer *indexer, const tamis_kernels *kernels,
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

/* w of n_heads heads from w_raw; scale: of each head's codes. Constants are rounded once. */
static void weigh(const tamis_kernels *kernels, weight_form form, float *w, const float *w_raw,
                  const float *scale, tamis_indexer_dims dims)
{
    const double by_dim = 1.0 / sqrt((double)dims.head_dim);
    const double by_heads = 1.0 / sqrt((double)dims.n_heads);
    const int64_t n = dims.n_heads;
    const bool has_constant = form == WEIGHTS_BF16 || form == WEIGHTS_BF16_SCALES;
    kernels->scale(w, has_constant ? (float)(by_dim * by_heads) : 1.0f, w_raw, n);
    if (form != WEIGHTS_SCALES_F32)
        kernels->round_bf16(w, n);
    for (int64_t h = 0; h < n; h++)
        if (form == WEIGHTS_SCALES_F32)
            w[h] = ((w[h] * (float)by_heads) * scale[h]) * (float)by_dim;
        else if (form != WEIGHTS_BF16)
            w[h] = f16_product(kernels, w[h], scale[h]);
}

bool tamis_indexer_prepare(const tamis_indexer *indexer, const tamis_exec *exec,
                           tamis_indexer_dims dims, const tamis_row_format *key_format,
                           int64_t token)
{
    const tamis_kernels *kernels = exec->kernels;
    const index_rules *rules = rules_of(exec->profile, indexer->family);
    if (exec->profile == TAMIS_PROFILE_EXACT)
        return scale_weights(indexer, kernels, dims, token);
    const int64_t n_values = (int64_t)dims.n_heads * dims.head_dim;
    const head_codes codes = codes_of(indexer, dims, key_format, token);
    float *q = indexer->q + token * n_values, *w = indexer->w + token * codes.n_padded;
    for (int64_t h = 0; h < dims.n_heads; h++)
        rotate(kernels, rules->rotation, q + h * dims.head_dim, dims.head_dim);
    const bool is_finite = kernels->all_finite(q, n_values);
    code_heads(kernels, q, &codes, dims, key_format);
    weigh(kernels, rules->weights, w, indexer->w_raw + token * dims.n_heads, codes.scales, dims);
    memset(w + dims.n_heads, 0, (size_t)(codes.n_padded - dims.n_heads) * sizeof *w);
    return kernels->all_finite(w, codes.n_padded) && is_finite;
}

/* ---------------------------------------------------------------- selection */

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
                                 .best_first =
                                     tamis_indexer_is_ranked(exec->profile, indexer->family),
                                 .visible = visible,
                                 .partition = partition,
                                 .out = indexer->topk,
                                 .partials = indexer->partials,
                                 .n_partials = indexer->n_partials,
                                 .keys = find_keys,
                                 .user = &source};
    return tamis_index_run(exec, &job);
}
