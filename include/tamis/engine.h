/*
 * tamis/engine.h - a model folder, sessions over it, and sequences in a session.
 *
 *     tamis_model *model;  tamis_session *session;  tamis_error err;  int32_t seq;
 *     if (tamis_model_open(&model, "models/demo", &err)) die(err.text);
 *     tamis_session_params p = tamis_session_params_default();
 *     if (tamis_session_open(&session, model, &p, &err)) die(err.text);
 *     if (tamis_seq_create(session, &seq, &err)) die(err.text);
 *     tamis_feed feed = {.seq = seq, .tokens = ids, .n_tokens = n, .logits = TAMIS_LOGITS_LAST};
 *     if (tamis_session_step(session, &feed, 1, &err)) die(err.text);
 *     const float *logits = tamis_session_logits(session, 0);      // [vocab_size]
 *     ...
 *     tamis_session_close(&session);  tamis_model_close(&model);
 *
 * A model is immutable after open; several sessions may share it. A session belongs to one thread
 * at a time. Model outlives session.
 */
#ifndef TAMIS_ENGINE_H
#define TAMIS_ENGINE_H

#include "tamis/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TAMIS_MAX_EOS 16

/* ---------------------------------------------------------------- model */

typedef struct tamis_model tamis_model;

/**
 * Open a model folder: config.json, generation_config.json, model.safetensors or
 * model.safetensors.index.json with its shards. Files stay mapped and are used in place.
 *
 * errors   IO, FORMAT (file, tensor or key, value seen and allowed), UNSUPPORTED (another family,
 *          a number format or ratio tamis does not run: its name), NO_MEMORY
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_open(tamis_model **out, const char *dir,
                                                         tamis_error *err);

/** What may be chosen when a folder is opened. */
typedef struct tamis_model_params {
    size_t struct_size;
    tamis_profile profile; /* whose arithmetic; default exact */
    /*
     * IndexCache: layers that use the selection of the nearest earlier layer that makes one, run no
     * indexer and keep no index keys. Either of the two replaces what config.json says, in its own
     * spelling; counted are the layers that can have an indexer (V4: those of ratio 4).
     */
    int32_t index_topk_freq;        /* the first two layers (GLM: index_skip_topk_offset), then every
                                       freq-th select for themselves; 0: as config.json says */
    const char *index_topk_pattern; /* a letter per layer, F: its own selection, S: an earlier one;
                                       past its end all are F; NULL: as config.json says */
} tamis_model_params;
TAMIS_API tamis_model_params tamis_model_params_default(void);
/**
 * The same with parameters, which tamis_model_open leaves at their defaults. errors: as above;
 * INVALID (a parameter: value seen and allowed; a layer is to select for itself, and the folder has
 * no indexer for it: its number)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_open_with(tamis_model **out, const char *dir,
                                                              const tamis_model_params *params,
                                                              tamis_error *err);
TAMIS_API void tamis_model_close(tamis_model **model);

typedef struct tamis_model_info {
    const char *family; /* model_type: "deepseek_v4", "deepseek_v32", "glm_moe_dsa" */
    const char *profile; /* "exact", "official", "ascend" */
    int32_t vocab_size, hidden_size, num_hidden_layers, max_position_embeddings;
    int32_t bos_token_id; /* config.json; -1: none */
    int32_t eos_token_ids[TAMIS_MAX_EOS];
    int32_t n_eos_token_ids;
    /* generation_config.json, with the family's defaults where it is silent */
    bool do_sample;
    float temperature, top_p, min_p;
    int32_t top_k; /* 0: off */
    uint64_t weight_bytes_mapped;  /* tensors used in place */
    uint64_t weight_bytes_widened; /* copies made at open */
    int32_t index_topk;            /* rows that sparse attention selects for a token: of tokens, in
                                      V4 of compressed rows. Up to as many, nothing is left out */
    bool has_index_cache;          /* the config asks for top-k reuse between layers */
    int32_t num_shared_indexers;   /* layers that use an earlier layer's selection, as it is run */
    bool is_index_cache_approximate; /* one of them selects for itself by the config: the parameters
                                        changed that, so the model is not quite the vendor's */
    int32_t num_nextn_predict_layers; /* MTP blocks by config.json */
    const char *drafter; /* what the folder holds: "mtp" (can draft), "dspark" (another kind of
                            drafter) and "rotated mtp" (a quantised folder with is_rot_used): listed,
                            not run; "none" */
} tamis_model_info;
/** Strings live as long as the model. */
TAMIS_API const tamis_model_info *tamis_model_get_info(const tamis_model *model);
/** V4: compress_ratio of a layer, 0, 4 or 128. Other families: 0. -1 if there is no such layer. */
TAMIS_API int32_t tamis_model_layer_ratio(const tamis_model *model, int32_t layer);

/* ---------------------------------------------------------------- session */

typedef struct tamis_session tamis_session;

typedef struct tamis_session_params {
    size_t struct_size;
    int32_t n_threads;              /* default: CPUs online, at most 64 */
    int32_t max_model_len;          /* 0: the model's max_position_embeddings, at most 4096 */
    int32_t max_num_seqs;           /* default 1 */
    int32_t max_num_batched_tokens; /* tokens per step, default 512; lowered to what all sequences hold */
    int32_t max_num_logits;         /* logits rows per step; 0 (default): max_num_seqs */
    tamis_dtype kv_cache_dtype;     /* as in tamis_cache_params; AUTO (default): the profile's first */
    int32_t num_blocks;             /* 0: enough for max_num_seqs sequences of max_model_len */
    int32_t block_tokens;           /* a multiple of 128, default 256 */
    int32_t max_rollback;           /* V4: tokens that may be taken back at least, default 8. Other
                                       families keep no rings: any length may be gone back to */
    uint64_t memory_limit_bytes;    /* 0: what the system reports as available */
    int32_t block_order_seed;       /* tests: != 0 hands out blocks in a shuffled order */
    bool mtp;                       /* take caches and buffers for the model's MTP block, which
                                       drafting needs (tamis/speculation.h); default false */
    bool prefix_caching;            /* keep blocks for sequences that begin with the same tokens
                                       (see "prefix reuse"); default false */
    int32_t max_snapshots;          /* V4, with prefix_caching: places to go on from that are kept,
                                       default 16, at least 1; each costs the history rows of all
                                       rings. Other families need none */
} tamis_session_params;
TAMIS_API tamis_session_params tamis_session_params_default(void);

/** What a session takes, in bytes, before it is taken. Anonymous memory unless said. (Hooks take some
 * more, V4: see tamis_session_set_connector.) */
typedef struct tamis_memory_plan {
    uint64_t weights_mapped;  /* file pages, shared with the page cache; not in total */
    uint64_t weights_widened; /* already taken by the model */
    uint64_t cache_blocks, cache_rings; /* rings: V4 only */
    uint64_t cache_snapshots; /* of rings, with prefix_caching; V4 only */
    uint64_t cache_bytes_per_token; /* growth of one sequence, all layers */
    tamis_dtype kv_cache_dtype;     /* in force: AUTO is what it stands for */
    uint64_t workspace;       /* plan, activations */
    uint64_t logits;
    uint64_t total;           /* widened + blocks + rings + snapshots + workspace + logits */
    uint64_t limit;           /* memory_limit_bytes, or what the system reports as available */
} tamis_memory_plan;
/**
 * Compute the plan without taking memory. errors: INVALID (a parameter: value seen, allowed),
 * LIMIT (max_model_len above the model's), UNSUPPORTED (a kv_cache_dtype that the profile has not:
 * both names; a dimension that its rows or its indexer cannot have; mtp, and the folder has no MTP
 * block or a drafter of another kind: its name). Does not fail if the plan exceeds its limit.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_plan_memory(const tamis_model *model,
                                                                  const tamis_session_params *params,
                                                                  tamis_memory_plan *out,
                                                                  tamis_error *err);
/** errors as above, and NO_MEMORY if the plan's total exceeds its limit: nothing was taken. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_open(tamis_session **out,
                                                           const tamis_model *model,
                                                           const tamis_session_params *params,
                                                           tamis_error *err);
/** Not from a hook or a drafter of the session: does nothing there, and *session stays. */
TAMIS_API void tamis_session_close(tamis_session **session);
/** Parameters in force (defaults resolved). */
TAMIS_API const tamis_session_params *tamis_session_get_params(const tamis_session *session);

/**
 * Give memory back while nobody needs the session. Level 1: blocks, rings and snapshots; all
 * sequences and kept prefixes are forgotten. Level 2: also the pages of the model's files that this
 * process holds. The model stays open, parameters, workspace, threads and connector stay, and so do
 * the few weights that were widened at open; pages of weights come back as they are used, for other
 * sessions over the model, too. Until tamis_session_wake every call on the session that can fail is
 * refused with STATE, but sleep (a lower level than before changes nothing), wake and close.
 * errors: INVALID (level)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_sleep(tamis_session *session, int32_t level,
                                                            tamis_error *err);
/**
 * Take the memory again; a session that is awake stays as it is. errors: NO_MEMORY (refused, or more
 * than the system has left, unless there is a memory_limit_bytes): it sleeps on
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_wake(tamis_session *session,
                                                           tamis_error *err);
/** 0: awake; -1: session is NULL. */
TAMIS_API int32_t tamis_session_sleep_level(const tamis_session *session);

/* ---------------------------------------------------------------- sequences */

/** A new empty sequence. errors: NO_BLOCKS (max_num_seqs are alive). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_create(tamis_session *session, int32_t *seq,
                                                         tamis_error *err);
/** Forget a sequence and free its blocks. errors: INVALID (no such sequence). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_drop(tamis_session *session, int32_t seq,
                                                       tamis_error *err);
/** Tokens in the sequence; -1 if there is no such sequence. */
TAMIS_API int32_t tamis_seq_len(const tamis_session *session, int32_t seq);
/** Smallest length the sequence may be rolled back to now (0 is always allowed too); 0 without rings. */
TAMIS_API int32_t tamis_seq_rollback_floor(const tamis_session *session, int32_t seq);
/**
 * Forget all tokens from position `len` on; what is fed next replaces them.
 * errors: INVALID (len > length), LIMIT (below the rollback floor: value seen, allowed).
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_rollback(tamis_session *session, int32_t seq,
                                                           int32_t len, tamis_error *err);
/** A copy of a sequence as it is now; full blocks are shared until one side overwrites them. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_fork(tamis_session *session, int32_t seq,
                                                       int32_t *new_seq, tamis_error *err);

/**
 * Save a sequence to a file, so that another session of the same model, in this or another process,
 * goes on with the same bits. The file appears under `path` complete or not at all: whoever kills
 * the process leaves the old file, the new one, or none (and at most a temporary one beside it,
 * PATH.XXXXXX). A symbolic link stays: the file it leads to is replaced. The file holds rows of the
 * caches and, with prefix_caching, the token ids: like the text itself it should be read by its
 * owner only, and is created so.
 * errors: INVALID (no such sequence, an empty path), STATE (faulty), IO (no space, no such folder,
 * a link to nothing, ...: nothing is left behind), NO_MEMORY (about twice the rows of one block)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_save(const tamis_session *session, int32_t seq,
                                                       const char *path, tamis_error *err);
/** The same, packed with zstd at level 1..19 (0: not). errors: UNSUPPORTED too: built without it */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_save_packed(const tamis_session *session,
                                                              int32_t seq, const char *path,
                                                              int32_t level, tamis_error *err);
/**
 * Load a saved sequence into an empty one. Threads, numbers of sequences and blocks, tokens per
 * step and max_rollback of the two sessions may differ; the rollback floor is that of the saved
 * sequence, or higher where this session's rings are smaller. Nothing has changed on failure.
 *
 * Logits are not in the file. To have those of the last token: tamis_seq_rollback by one (unless the
 * rollback floor is the length itself) and feed it again; they are the same bits as before the save.
 * With prefix_caching the loaded blocks are not found by other sequences until tamis_seq_keep, or
 * until a step fills the next block of this one.
 *
 * errors   FORMAT (damaged, cut or too long, no saved sequence), UNSUPPORTED (version, another
 *          model, profile, kv_cache_dtype, block_tokens, mtp; no token ids, which prefix_caching
 *          needs), LIMIT (longer than max_model_len), each with the file, the field, the value seen and the
 *          one allowed; NO_BLOCKS; STATE (the sequence is not empty); IO, NO_MEMORY, INVALID
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_load(tamis_session *session, int32_t seq,
                                                       const char *path, tamis_error *err);

/* ---------------------------------------------------------------- steps */

typedef enum tamis_logits_want {
    TAMIS_LOGITS_NONE = 0,
    TAMIS_LOGITS_LAST, /* of the last token fed */
    TAMIS_LOGITS_ALL,
    TAMIS_LOGITS_MASK  /* of the tokens i with logits_mask[i] != 0 */
} tamis_logits_want;

/** Tokens to append to one sequence in a step. */
typedef struct tamis_feed {
    int32_t seq;
    const int32_t *tokens;
    int32_t n_tokens; /* 0 is legal and does nothing */
    tamis_logits_want logits;
    const uint8_t *logits_mask;
} tamis_feed;

/**
 * Run one step over any mix of sequences: prompts, parts of prompts, single tokens. A sequence may
 * appear once.
 *
 * Fails before anything changed with INVALID (unknown sequence, one named twice, token id outside
 * 0..vocab_size-1), LIMIT (tokens per step, logits rows, max_model_len), NO_BLOCKS (pool exhausted).
 * FORMAT: a NaN or infinity came up while running (a damaged weight: the tensor is named if it can
 * be found); the sequences of this step keep their old length but may only be dropped.
 * numeric  class ordered: same bits for any chunking, batch, thread count, blocks, CPU level
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_step(tamis_session *session,
                                                           const tamis_feed *feeds, int32_t n_feeds,
                                                           tamis_error *err);
/** Logits rows of the last step: in feed order, then token order; 0 if session is NULL. */
TAMIS_API int32_t tamis_session_num_logits(const tamis_session *session);
/** Row of [vocab_size] f32, valid until the next step; NULL if there is no such row. */
TAMIS_API const float *tamis_session_logits(const tamis_session *session, int32_t row);
/** Allocator calls made between run begin and run end since process start (always 0). */
TAMIS_API uint64_t tamis_num_allocs_in_run(void);

/* ---------------------------------------------------------------- prefix reuse */

/*
 * With params.prefix_caching every block that a step fills stays findable by its tokens, also when
 * its sequence is gone, until blocks run short: then the least recently used goes. A new sequence
 * that begins with the same tokens takes them over instead of computing them:
 *
 *     tamis_seq_create(session, &seq, &err);
 *     tamis_seq_match(session, seq, prompt, n, &n_reused, &err);
 *     feed prompt[n_reused .. n) in steps;
 *     tamis_seq_keep(session, seq, &err);          // the prompt's end, too
 *
 * What follows has the same bits as if everything had been computed. Tokens are compared, not
 * hashes of them, so no sequence ever gets another text's rows.
 */

/**
 * Let an empty sequence take over the longest kept prefix of tokens[0 .. n) that leaves at least
 * one token to feed; feed tokens[*n_reused ..] next. V4 goes on at block boundaries and where
 * tamis_seq_keep was called, as far as their snapshots are still there (max_snapshots), and cannot
 * be rolled back to before *n_reused then, except to 0; other families go on anywhere.
 * errors: INVALID (no such sequence, it is not empty), STATE (no prefix_caching; faulty)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_match(tamis_session *session, int32_t seq,
                                                        const int32_t *tokens, int32_t n,
                                                        int32_t *n_reused, tamis_error *err);
/**
 * Make the end of a sequence findable: its last, partly filled block, and, V4, a snapshot at its
 * last token, so that the same tokens again compute their last one only. Call it when a prompt has
 * been fed. For a system prompt that many texts begin with: feed the shared part, keep, then feed
 * the rest. What does not fit is not kept: see the stats. errors: INVALID (no such sequence), STATE
 * (no prefix_caching; faulty)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_keep(tamis_session *session, int32_t seq,
                                                       tamis_error *err);
/** Forget all kept prefixes; sequences stay. Does nothing in a hook or a drafter of the session. */
TAMIS_API void tamis_session_drop_prefixes(tamis_session *session);

typedef struct tamis_prefix_stats {
    int32_t n_blocks;       /* that can be found */
    int32_t n_blocks_alone; /* of them in use by no sequence: these go when blocks run short */
    int32_t n_snapshots;
    uint64_t n_matches; /* calls of tamis_seq_match */
    uint64_t n_hits;    /* of them with n_reused > 0 */
    uint64_t n_tokens_reused;
    uint64_t n_evicted_blocks, n_evicted_snapshots;
} tamis_prefix_stats;
/** All zero if session is NULL. */
TAMIS_API tamis_prefix_stats tamis_session_get_prefix_stats(const tamis_session *session);

/* ---------------------------------------------------------------- inspection */

/** Tensors of one kind and number format: "attention / F8_E4M3". */
typedef struct tamis_tensor_group {
    const char *name;   /* embedding, attention, compressor, indexer, experts, shared experts, ... */
    const char *dtype;  /* as stored, e.g. "F8_E4M3 + F8_E8M0 per 128x128" */
    int64_t n_tensors;
    int64_t n_params;   /* weights; scales and tables of ids (I64, I32) not counted */
    uint64_t bytes;     /* data and scales */
    bool is_used;       /* false: recognised, not run (DSpark, MTP blocks after the first), or
                           unknown */
} tamis_tensor_group;

/** Rows that the profile can keep, by the kv_cache_dtype that chooses them. */
typedef struct tamis_cache_choice {
    tamis_dtype kv_cache_dtype;
    const char *kv_rows;      /* layout of the rows that attention reads: "bf16", "v4-fp8", ... as
                                 tamis_row_layout_name has them (tamis/rows.h) */
    int32_t kv_row_bytes;
    const char *index_rows;   /* of the index keys; NULL: no layer keeps any */
    int32_t index_row_bytes;
    uint64_t bytes_per_token; /* growing part, all layers */
    uint64_t ring_bytes;      /* fixed part of a sequence; V4 only */
} tamis_cache_choice;

/**
 * What the model's profile does in one stage of one kind of layer. A stage whose weights are stored
 * in several formats has a line for each. docs/numerics-table.md prints them for the three families.
 */
typedef struct tamis_numerics_line {
    const char *layers;  /* as in layer_attention and layer_mlp, "all", or "ends": embedding, head */
    const char *stage;   /* "Q1 wq_a" */
    const char *weights; /* as stored: "F8_E4M3 + F8_E8M0 per 128x128"; "-": it has none */
    const char *input;   /* what the input goes through before the sum, or the steps of the stage */
    const char *output;  /* what the result is rounded to */
    const char *rows;    /* layout of the cache rows that it leaves; NULL: none */
    int32_t row_bytes;
    const char *numeric; /* "exact" or "ordered": docs/numerics.md */
    const char *source;  /* where that is taken from */
} tamis_numerics_line;

typedef struct tamis_inspection {
    const tamis_model_info *info;
    /* [num_hidden_layers] V4: "window", "C4", "C128". V3.2, GLM: "full" (own indexer), "shared" (an
     * earlier layer's selection), "all" (attends to all tokens) */
    const char *const *layer_attention;
    const char *const *layer_mlp; /* [num_hidden_layers] "hash", "learned", "dense" */
    const int32_t *layer_ratios;  /* [num_hidden_layers] V4: compress ratio; NULL: other families */
    const tamis_tensor_group *groups;
    int32_t n_groups;
    int64_t n_tensors, n_params; /* whole folder */
    uint64_t tensor_bytes;
    const char *const *unused;   /* names of tensors not run, in file order */
    int32_t n_unused;
    const tamis_cache_choice *caches; /* [n_caches] of the profile; the first is what AUTO takes */
    int32_t n_caches;
    const tamis_numerics_line *numerics; /* [n_numerics] with the rows that AUTO takes */
    int32_t n_numerics;
} tamis_inspection;
/** What is in an open model; lives as long as the model. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_inspect(tamis_model *model,
                                                            const tamis_inspection **out,
                                                            tamis_error *err);

#ifdef __cplusplus
}
#endif
#endif
