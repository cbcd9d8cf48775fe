/*
 * tamis/attention.h - what the two attention back ends share: rotary frequencies, the batch of a
 * step, the sizes of caches and plans. tamis/dsa.h is DeepSeek-V4, tamis/sfa.h is DeepSeek-V3.2
 * and GLM-5.
 *
 * Parameter structs carry their own size so that a library of another version refuses them instead
 * of misreading them; _default() fills it in.
 */
#ifndef TAMIS_ATTENTION_H
#define TAMIS_ATTENTION_H

#include "tamis/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Rotary frequencies of one layer: plain (yarn_factor <= 1) or YaRN; cos and sin are not scaled. */
typedef struct tamis_rope_config {
    float theta;
    float yarn_factor;
    int32_t original_max_position; /* of YaRN */
    float beta_fast, beta_slow;
} tamis_rope_config;

typedef struct tamis_cache_params {
    size_t struct_size;
    tamis_dtype kv_cache_dtype; /* rows that attention and indexer read: BF16 or F32 */
    int32_t block_tokens;       /* raw tokens per block, default 256; V4: a multiple of 128 */
    int32_t num_blocks;         /* including block 0, the null block, which no table should own */
    int32_t num_slots;          /* V4: ring slots, sequences alive at once. V3.2, GLM: not used */
    int32_t max_rollback;       /* V4: tokens that may be rolled back at least; default 8 */
    int32_t block_pad_bytes;    /* extra distance of two blocks of one cache; default 0 */
} tamis_cache_params;
TAMIS_API tamis_cache_params tamis_cache_params_default(void);

/** Bytes of all caches: paged (blocks) and rings (slots). */
typedef struct tamis_cache_bytes {
    uint64_t blocks, rings;
    uint64_t per_block, per_slot;
} tamis_cache_bytes;

/**
 * One step's requests, tokens concatenated in request order. Arrays are read while the plan is
 * built only.
 */
typedef struct tamis_batch {
    int32_t num_reqs;
    const int32_t *query_start_loc; /* [num_reqs + 1], first 0, non-decreasing */
    const int32_t *seq_lens;        /* [num_reqs] length including this step's tokens */
    const int32_t *block_table;     /* [num_reqs][block_table_stride] block of tokens i*block_tokens.. */
    int64_t block_table_stride;
    const int32_t *slots;           /* [num_reqs] ring slot, distinct; V3.2, GLM: may be NULL */
} tamis_batch;

typedef struct tamis_plan_params {
    size_t struct_size;
    int32_t max_num_batched_tokens;
    int32_t max_num_seqs;
    int32_t max_model_len;
    int32_t n_threads; /* of the team that will run it */
} tamis_plan_params;
TAMIS_API tamis_plan_params tamis_plan_params_default(void);

#ifdef __cplusplus
}
#endif
#endif
