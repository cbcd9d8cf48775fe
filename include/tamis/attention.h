/*
 * tamis/attention.h - what the two attention back ends share: rotary frequencies, the batch of a
 * step and the functions that an engine's scheduler needs around it, the sizes of caches and plans,
 * what a plan shows. tamis/dsa.h is DeepSeek-V4, tamis/sfa.h is DeepSeek-V3.2 and GLM-5.
 * docs/engine-integration.md walks through it. A program that uses only these headers and
 * tamis/base.h needs no other library: -ltamis -lm -lpthread.
 *
 * Parameter structs carry their own size so that a library of another version refuses them instead
 * of misreading them; _default() fills it in.
 */
#ifndef TAMIS_ATTENTION_H
#define TAMIS_ATTENTION_H

#include "tamis/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Rotary frequencies of one layer: plain (yarn_factor <= 1) or YaRN; cos and sin are not scaled.
 * With yarn_factor > 1 all fields are required (0 is refused, there are no defaults), else the last
 * three are not read. Values: config.json, rope_scaling; the usual ones are beta_fast 32, beta_slow 1.
 */
typedef struct tamis_rope_config {
    float theta;                   /* above 1 */
    float yarn_factor;             /* 0.. */
    int32_t original_max_position; /* of YaRN: 1.. (original_max_position_embeddings) */
    float beta_fast, beta_slow;    /* of YaRN: above 0, beta_slow at most beta_fast */
} tamis_rope_config;

typedef struct tamis_cache_params {
    size_t struct_size;
    tamis_profile profile;      /* whose arithmetic the layers over these caches have; default exact */
    /* rows that attention reads; AUTO (default): the first of
     * exact     BF16 or F32, index keys the same
     * official  F8_E4M3: V4 584-byte rows, index keys FP4; V3.2, GLM 656-byte rows (FlashMLA's),
     *           index keys FP8
     * ascend    BF16; V4 also F8_E4M3 (A5's 640-byte rows), V3.2 and GLM I8 (Ascend's 656-byte
     *           rows); index keys int8
     * tamis/rows.h describes the rows */
    tamis_dtype kv_cache_dtype;
    int32_t block_tokens;       /* raw tokens per block, default 256; V4: a multiple of 128 */
    int32_t num_blocks;         /* including block 0, the null block, which no table should own;
                                   default 2: one that can be used */
    int32_t num_slots;          /* V4: ring slots, sequences alive at once, default 1. V3.2, GLM:
                                   not used */
    int32_t max_rollback;       /* V4: tokens that may be rolled back at least; default 8 */
    int32_t block_pad_bytes;    /* extra distance of two blocks of one cache; default 0 */
} tamis_cache_params;
TAMIS_API tamis_cache_params tamis_cache_params_default(void);

/** Bytes of all caches: paged (blocks) and rings (slots). */
typedef struct tamis_cache_bytes {
    uint64_t blocks, rings;
    uint64_t per_block, per_slot;
    uint64_t per_history; /* rows of a slot that going on from one position may read */
} tamis_cache_bytes;

/* ---------------------------------------------------------------- batch */

/**
 * One step's requests, tokens concatenated in request order. Arrays are read while a call runs only.
 *
 * Request i brings query_start_loc[i + 1] - query_start_loc[i] new tokens, at positions
 * start_pos .. seq_len - 1 with start_pos = seq_len - new tokens. It may bring none.
 *
 * Padding: the requests at the end with seq_lens 0, however many tokens query_start_loc gives them.
 * Their tokens are padding: table rows and ring slots are not read, x is not read, no cache is
 * touched (the seeds let them write into the null block, block 0; tamis writes nothing), their rows
 * of the layer's output are zeros. A request with seq_len 0 and new tokens before another that has
 * a length is an error.
 *
 * All block tables and slots are those of one cache group with block_tokens raw tokens per block;
 * in tamis' own caches one block id addresses every layer and cache of a sequence.
 */
typedef struct tamis_batch {
    int32_t num_reqs;               /* padding included */
    const int32_t *query_start_loc; /* [num_reqs + 1], first 0, non-decreasing */
    const int32_t *seq_lens;        /* [num_reqs] length including this step's tokens */
    const int32_t *block_table;     /* [num_reqs][block_table_stride] block of tokens i*block_tokens.. */
    int64_t block_table_stride;     /* 0.., the whole table within the address space */
    const int32_t *slots;           /* [num_reqs] ring slot, distinct; V3.2, GLM: may be NULL */
    /* NULL, or [query_start_loc[num_reqs]] flat slot of every token, as tamis_batch_slot_mapping
     * would compute it (-1 for padding): only checked against the block table, never needed */
    const int32_t *slot_mapping;
} tamis_batch;

/** Largest decode_threshold: 1 + tokens drafted per request. */
#define TAMIS_MAX_DECODE_THRESHOLD 16

/** Exchange all state of two requests: tokens, lengths, sampling, rows of every block table. */
typedef struct tamis_swap {
    int32_t a, b;
} tamis_swap;

/**
 * Decodes first, prefills last, with as few exchanges as possible and decodes left where they are
 * if they may stay. A decode is a request with at most decode_threshold new tokens. The order
 * within the two parts is not kept. tamis does not need this order, results are the same bits in
 * any; it is for engines that run the two parts apart, and for tamis_batch_split.
 *
 * shapes   query_lens [num_reqs] new tokens of each request
 *          swaps      [num_reqs / 2] at least; *num_swaps of them are written, to be made in order
 * range    decode_threshold 1..16
 * errors   INVALID (NULL, a negative count, decode_threshold); nothing is written then
 * source   dsa_v1.py reorder_batch. (sfa_v1.py never moves anything.)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_batch_reorder(const int32_t *query_lens,
                                                            int32_t num_reqs,
                                                            int32_t decode_threshold,
                                                            tamis_swap *swaps, int32_t *num_swaps,
                                                            tamis_error *err);

typedef struct tamis_split_params {
    size_t struct_size;
    int32_t decode_threshold;  /* 1..16; default 1 */
    bool require_uniform;      /* a decode has exactly as many tokens as request 0; default false */
    /* false: requests that still prefill are prefills whatever their length; default true */
    bool treat_short_extends_as_decodes;
    const bool *is_prefilling; /* [num_reqs] no token generated yet; read if the above is false */
} tamis_split_params;
TAMIS_API tamis_split_params tamis_split_params_default(void);

typedef struct tamis_split {
    int32_t num_decodes, num_prefills;
    int32_t num_decode_tokens, num_prefill_tokens;
} tamis_split;

/**
 * Where the decodes at the front of a batch end: the first request that is none, and everything
 * behind it, is the prefill part. Wants the order of tamis_batch_reorder.
 *
 * shapes   query_start_loc [num_reqs + 1]
 * errors   INVALID (NULL, query_start_loc, decode_threshold, is_prefilling missing); *out is left
 *          alone
 * source   vLLM split_decodes_and_prefills as dsa_v1.py calls it
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_batch_split(const int32_t *query_start_loc,
                                                          int32_t num_reqs,
                                                          const tamis_split_params *params,
                                                          tamis_split *out, tamis_error *err);

/**
 * Flat slot of every token: position p of a request lies at
 * block_table[p / block_tokens] * block_tokens + p % block_tokens; -1 for padding.
 *
 * shapes   slot_mapping [num_slots], num_slots >= query_start_loc[num_reqs]; the rest is -1, too
 * errors   INVALID (NULL, the batch, a block that is missing or below 1, num_slots), LIMIT (a slot
 *          above INT32_MAX); nothing is written then
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_batch_slot_mapping(const tamis_batch *batch,
                                                                 int32_t block_tokens,
                                                                 int32_t *slot_mapping,
                                                                 int32_t num_slots,
                                                                 tamis_error *err);
/**
 * Block and row of a flat slot. The division is a floor, so -1 (padding) is (-1, block_tokens - 1)
 * as in the seeds' two-column form, and never row -1 of the null block. block_tokens below 1: both
 * are -1, for there are no such blocks.
 */
TAMIS_API void tamis_slot_split(int32_t slot, int32_t block_tokens, int32_t *block, int32_t *row);

/** One compressed row that a step completes; see tamis_batch_compressed_rows. */
typedef struct tamis_compressed_row {
    int32_t req;      /* request; -1: unused entry */
    int32_t idx;      /* number of the row within its sequence: tokens idx*ratio .. +ratio-1 */
    int32_t block;    /* where it is stored; -1 in an unused entry */
    int32_t row;      /* within the block; rows_per_block - 1 in an unused entry */
    int32_t rope_pos; /* position that rotates it: idx * ratio */
} tamis_compressed_row;

/**
 * min(T, T / ratio + B): no step of T tokens of B requests completes more rows. 0 if T or B is
 * negative or ratio below 1.
 */
TAMIS_API int32_t tamis_compressed_rows_capacity(int32_t num_tokens, int32_t num_reqs,
                                                 int32_t ratio);
/**
 * The compressed rows that a step completes, request after request: of a sequence that grows from
 * s to n tokens the rows s / ratio .. n / ratio - 1. None is a legal answer. Padding completes none.
 *
 * units    rows_per_block: compressed rows in a block of batch->block_table, which so covers
 *          rows_per_block * ratio tokens. tamis' own caches: block_tokens / ratio
 * shapes   rows [capacity]; entries from *num_rows on are set to unused
 * range    ratio, rows_per_block 1..2^20
 * errors   INVALID (NULL, the batch, ratio, rows_per_block, a block that is missing or below 1),
 *          LIMIT (more rows than capacity); nothing is written then
 * source   dsa_v1.py, compressor_metadata
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_batch_compressed_rows(
    const tamis_batch *batch, int32_t ratio, int32_t rows_per_block, tamis_compressed_row *rows,
    int32_t capacity, int32_t *num_rows, tamis_error *err);

/* ---------------------------------------------------------------- context parallel */

/*
 * Index arithmetic for engines that spread one step over ranks, as vllm-ascend does. tamis itself
 * runs one rank; a rank's part of a batch is a batch like any other.
 */

/** The tokens of a step that one rank computes. */
typedef struct tamis_dsa_cp_range {
    int32_t num_padded_tokens; /* of all ranks: num_input_tokens up to a multiple of num_ranks */
    int32_t begin, end;        /* the rank's: begin .. end - 1, equally many on every rank */
    int32_t real_end;          /* begin .. real_end - 1 are no padding, the rest is */
} tamis_dsa_cp_range;

/**
 * DSA-CP: every rank holds all caches and all heads and computes an equal, contiguous part of the
 * step's tokens; a boundary may cut a request. With query_start_loc and seq_lens replaced by the
 * results (num_reqs and block table stay), the batch describes the rank's tokens, and each of them
 * sees the keys that it sees in the whole batch: a request whose last n tokens are left to later
 * ranks is n shorter. A request without tokens on this rank has no query and length 0.
 *
 * units    num_input_tokens: tokens of the step, padding behind the last request included
 * shapes   query_start_loc [num_reqs + 1], seq_lens [num_reqs]
 *          slot_mapping [range->end - range->begin], -1 behind the batch's tokens; or NULL
 *          batch: its block_table and slots are not read
 * range    num_input_tokens query_start_loc[num_reqs] at least; num_ranks 1..65536; rank below it
 * errors   INVALID (NULL, the batch, a range, slot_mapping wanted but missing in the batch), LIMIT
 *          (num_padded_tokens above INT32_MAX); nothing is written then
 * source   sfa_v1.py, DSACPContext. Padding that a boundary cuts gets length 0 as in the later
 *          vllm-ascend; the seed's falls below 0
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_dsa_cp_partition(
    const tamis_batch *batch, int32_t num_input_tokens, int32_t num_ranks, int32_t rank,
    tamis_dsa_cp_range *range, int32_t *query_start_loc, int32_t *seq_lens, int32_t *slot_mapping,
    tamis_error *err);

/**
 * DCP: the tokens of a sequence are dealt out to num_ranks ranks in turn, interleave tokens at a
 * time; each rank stores its own side by side. Which rank stores position pos, and at which of its
 * places; how many of the first seq_len tokens a rank has. -1, -1 and 0 if pos or seq_len is
 * negative, num_ranks or interleave below 1, or rank none of 0 .. num_ranks - 1.
 */
TAMIS_API int32_t tamis_dcp_owner(int32_t pos, int32_t num_ranks, int32_t interleave);
TAMIS_API int32_t tamis_dcp_local_pos(int32_t pos, int32_t num_ranks, int32_t interleave);
TAMIS_API int32_t tamis_dcp_local_len(int32_t seq_len, int32_t num_ranks, int32_t interleave,
                                      int32_t rank);

/* ---------------------------------------------------------------- plan */

/**
 * Limits of a plan. A plan is a bucket: all its buffers are taken when it is opened, at addresses
 * that stay, and every build refills them, for any batch up to these limits.
 */
typedef struct tamis_plan_params {
    size_t struct_size;
    int32_t max_num_batched_tokens; /* tokens of a step, padding included; default 512 */
    int32_t max_num_seqs;           /* requests of a step, padding included; default 1 */
    int32_t max_model_len;          /* longest sequence; default 4096 */
    int32_t n_threads;              /* of the team that will run it; default 1 */
    /* for measuring: independent projections one after the other instead of side by side in one
     * pass; same bits. Default false */
    bool serial;
} tamis_plan_params;
TAMIS_API tamis_plan_params tamis_plan_params_default(void);

/** The planned step; arrays belong to the plan, keep their addresses, change with the next build. */
typedef struct tamis_step_view {
    int32_t num_tokens;             /* real tokens: rows of x that are read */
    int32_t num_input_tokens;       /* rows of x and out, padding included */
    int32_t num_reqs;               /* real requests */
    const int32_t *query_start_loc; /* [num_reqs + 1] */
    const int32_t *start_pos;       /* [num_reqs] tokens before this step */
    const int32_t *seq_lens;        /* [num_reqs] */
    const int32_t *positions;       /* [num_tokens] */
    const int32_t *req_of_token;    /* [num_tokens] */
} tamis_step_view;

/**
 * How the work of an operator is shared out: items (tokens) of unit_start[i + 1] - unit_start[i]
 * units stand on one line, thread t does units bounds[t] .. bounds[t + 1] - 1. All zero: no work
 * of this sort in the layer.
 */
typedef struct tamis_work_view {
    int32_t num_items, num_threads;
    const int64_t *unit_start; /* [num_items + 1] */
    const int64_t *bounds;     /* [num_threads + 1] */
} tamis_work_view;

/** What was planned for a layer; shared by all layers of its kind. */
typedef struct tamis_layer_plan_view {
    int32_t compress_ratio;       /* V4: 0, 4, 128; V3.2, GLM: 1, every token is a row */
    const int32_t *visible_rows;  /* [num_tokens] compressed rows (V3.2, GLM: tokens) it may see */
    const int32_t *list_len;      /* [num_tokens] rows it attends to: window + visible or selected;
                                     V4 official: the window counts as sliding_window places */
    int32_t num_closed_rows;      /* compressed rows that the step completes; V3.2, GLM: 0 */
    const int32_t *closed_req;    /* [num_closed_rows] their requests */
    const int32_t *closed_row;    /* [num_closed_rows] their numbers within the sequences */
    tamis_work_view attention;    /* units: 64 entries of a token's list */
    tamis_work_view index_scores; /* units: 64 keys; layers that select */
} tamis_layer_plan_view;

#ifdef __cplusplus
}
#endif
#endif
