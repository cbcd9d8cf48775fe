/*
 * tamis/connector.h - hooks through which rows of the caches come and go while steps run: from a
 * prefill node to a decode node, to and from a disk or a shared store.
 *
 * Order of the calls in a step, each exactly once per step or per layer and step:
 *
 *     start_load                     before anything is computed: begin to load
 *     for every layer, in ascending order:
 *         wait_for_layer_load        before the layer's caches are first touched: rows that come
 *                                    from elsewhere must be in place when it returns
 *         notify_written             rows of this step that lie in blocks are in place, attention
 *                                    has not read any: sending may begin while it runs
 *         save_layer                 after the output projection. V4: the rings are complete only
 *                                    here, because a step reads their history before it overwrites
 *                                    it
 *     wait_for_save                  at the end: when it returns, the rows may be overwritten
 *
 * A step without tokens calls start_load and wait_for_save only. A run of the MTP block is a step
 * of its own with is_draft set; its one layer has the number behind the last. (An engine that drives
 * layers itself needs no hooks: it calls tamis_dsa_preprocess, tamis_sfa_preprocess and so on, and
 * knows where it is.)
 *
 * A hook that does not return OK ends the step: what it wrote into *err is what the step fails with.
 * Nothing has changed then, and the step may be tried again: lengths, blocks and rollback floors are
 * those of before; rows that were written lie behind the sequences' tokens and are written again.
 * After a failed run of the MTP block, its rows of that step may be missing: that costs accepted
 * drafts later, never text.
 *
 * Hooks run on the thread that called the step, and may take their time there or leave the work to
 * threads of their own. They may read and write rows (tamis_session_get_cache) and call what only
 * gives a value (tamis_seq_len, ...); every other call on this session is refused with STATE, and
 * tamis_session_drop_prefixes and tamis_session_close do nothing. The model must not be closed.
 */
#ifndef TAMIS_CONNECTOR_H
#define TAMIS_CONNECTOR_H

#include "tamis/engine.h"
#include "tamis/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A sequence in a step. Its rows: see tamis_cache_view. */
typedef struct tamis_connector_request {
    int32_t seq;        /* its index is also its ring slot */
    int32_t start;      /* tokens before this step's */
    int32_t n_tokens;   /* this step's */
    int32_t n_expected; /* the first so many tokens are to be loaded now: 0 or start */
    const int32_t *block_table; /* [n_blocks] block of tokens i*block_tokens.. */
    int32_t n_blocks;
} tamis_connector_request;

/** Valid until the hook returns. */
typedef struct tamis_connector_step {
    const tamis_session *session;
    const tamis_connector_request *requests; /* [n_requests] those with tokens, in feed order */
    int32_t n_requests;
    bool is_draft; /* a run of the MTP block */
} tamis_connector_step;

typedef tamis_status (*tamis_connector_step_fn)(void *user, const tamis_connector_step *step,
                                                tamis_error *err);
typedef tamis_status (*tamis_connector_layer_fn)(void *user, const tamis_connector_step *step,
                                                 int32_t layer, tamis_error *err);

/** Any of the functions may be NULL: not called. */
typedef struct tamis_connector_hooks {
    size_t struct_size;
    void *user;
    tamis_connector_step_fn start_load;
    tamis_connector_layer_fn wait_for_layer_load;
    tamis_connector_layer_fn notify_written;
    tamis_connector_layer_fn save_layer;
    tamis_connector_step_fn wait_for_save;
} tamis_connector_hooks;
TAMIS_API tamis_connector_hooks tamis_connector_hooks_default(void);

/**
 * Hooks for all steps from now on; NULL: none. `hooks` is copied. V4: takes memory for the rows of
 * rings that a step overwrites, so that a failed one can be undone: at most max_num_batched_tokens
 * rows of every ring. The memory plan, made before, does not count them; there must be room for them
 * beside it. errors: INVALID (struct_size), NO_MEMORY (refused, or more than memory_limit_bytes or
 * the system leaves: bytes needed and left); the hooks of before stay
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_session_set_connector(
    tamis_session *session, const tamis_connector_hooks *hooks, tamis_error *err);

/**
 * Let the rows of an empty sequence's first n tokens come from the connector: blocks are taken, the
 * length becomes n, and the next step that feeds it has n_expected = n; until that step succeeds,
 * the sequence can only be fed, rolled back to 0 or dropped. It cannot be rolled back to between 0
 * and n later. Needed of each cache are
 *
 *   blocks   rows 0 .. n / tokens_per_row - 1
 *   rings    rows of positions tamis_cache_ring_first(&view, n) .. n - 1
 *
 * tokens [n] are the ids of these tokens; kept with prefix_caching, else only checked. (V4: the step
 * that loads them leaves no snapshot at a block boundary that needs some of their ring rows.)
 * errors: INVALID (no such sequence, n outside 1..max_model_len - 1, an id), STATE (no connector;
 * the sequence is not empty, faulty), NO_BLOCKS; nothing has changed then
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_expect(tamis_session *session, int32_t seq,
                                                         const int32_t *tokens, int32_t n,
                                                         tamis_error *err);

/**
 * Where the rows of one cache of one layer lie. Row r of a sequence's cache in blocks is row
 * r % rows of block block_table[r / rows]; the row of position p in a ring is row p % rows of the
 * sequence's slot:
 *
 *     base + block_or_slot * stride + row * row_bytes
 *
 * Rows of one block or slot are contiguous. A row in blocks belongs to tokens_per_row tokens and
 * exists as soon as the last of them does.
 *
 * How a row is coded follows from the model's profile and kv_cache_dtype, and is in `format`: floats,
 * or groups of FP8, FP4 or int8 codes with their scales and a BF16 part. Both sides of a connector
 * with equal formats move row_bytes bytes as they are. A row that comes in another layout, or planar
 * from another engine's page, is brought into this one by tamis_rows_convert (tamis/rows.h), with
 *
 *     tamis_rows rows = {.format = view.format, .data = block's or slot's first row,
 *                        .row_stride = view.row_bytes};
 *
 * which gives equal bits where both hold the same codes and scales, and rounds again where not.
 */
typedef struct tamis_cache_view {
    const char *name; /* V4: "window", "state", "index_state" (rings), "ckv", "index_key"; V3.2,
                         GLM: "latent", "index_key" */
    bool is_ring;
    tamis_row_format format; /* of a row; compressor states ("state") are F32 in every profile */
    int32_t rows; /* of a block, or of the ring */
    int32_t tokens_per_row;
    int64_t row_bytes; /* format.row_bytes: rows lie side by side */
    uint8_t *base;
    int64_t stride;
    int32_t align, lead; /* ring: see tamis_cache_ring_first */
} tamis_cache_view;

/** Layers with caches, with params.mtp the MTP block's included; 0 if session is NULL. */
TAMIS_API int32_t tamis_session_num_layers(const tamis_session *session);
/** Caches of a layer; 0 if there is no such layer. */
TAMIS_API int32_t tamis_session_num_caches(const tamis_session *session, int32_t layer);
/** The i-th of them, all zero if there is none. Addresses hold as long as the session is awake. */
TAMIS_API tamis_cache_view tamis_session_get_cache(const tamis_session *session, int32_t layer,
                                                   int32_t i);
/** First position whose row in a ring is read by whoever goes on at position n. */
static inline int32_t tamis_cache_ring_first(const tamis_cache_view *ring, int32_t n)
{
    const int32_t first = n / ring->align * ring->align - ring->lead;
    return first > 0 ? first : 0;
}

#ifdef __cplusplus
}
#endif
#endif
