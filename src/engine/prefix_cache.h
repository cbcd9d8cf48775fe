/*
 * Which block holds which tokens after which prefix: the blocks that sequences left behind, or
 * still use, and that a new sequence with the same first tokens can share instead of computing
 * them.
 *
 *   entry     one block: its token ids and its parent, the entry of the block before it. A row in a
 *             cache depends on nothing but the tokens up to its own, so an entry's path from the
 *             root says what is in its block. Entries are told apart by comparing the ids
 *             themselves; a hash only finds the bucket, so nobody can be given another's text. An
 *             entry of fewer than block_tokens tokens (the end of a prompt) has no children.
 *             Each entry holds one reference on its block; whoever goes on writing into that block
 *             finds it shared and copies it first.
 *   snapshot  families with rings only: the history of the rings (caches/ring_history.h) at one
 *             position inside or at the end of an entry. Without one, nobody can go on there.
 *
 * Both are kept until room is needed, then the least recently used goes. Using an entry uses all of
 * its path, so no parent is older than its children, and the oldest entry can be taken out with
 * what hangs on it. Tables have fixed sizes; nothing is allocated, and no call here fails: an entry
 * or snapshot that has no place is just not kept.
 */
#ifndef TAMIS_ENGINE_PREFIX_CACHE_H
#define TAMIS_ENGINE_PREFIX_CACHE_H

#include "caches/block_pool.h"
#include "caches/ring_history.h"
#include "core/arena.h"

#define TAMIS_PREFIX_NONE (-1)

typedef struct tamis_prefix_entry {
    int32_t block;    /* 0: not in use */
    int32_t parent;   /* TAMIS_PREFIX_NONE: at the start */
    int32_t n_tokens; /* 1 .. block_tokens */
    int32_t n_children;
    int32_t next;      /* in its bucket, or of the unused ones */
    int32_t snapshots; /* first of a list */
    uint64_t last_use;
} tamis_prefix_entry;

typedef enum tamis_snapshot_use {
    TAMIS_SNAPSHOT_UNUSED = 0,
    TAMIS_SNAPSHOT_PENDING, /* being filled, not found by anybody */
    TAMIS_SNAPSHOT_KEPT
} tamis_snapshot_use;

typedef struct tamis_prefix_snapshot {
    tamis_snapshot_use use;
    int32_t pos;
    int32_t entry, next; /* of its entry */
    uint64_t last_use;
} tamis_prefix_snapshot;

typedef struct tamis_prefix_counts {
    int32_t n_entries, n_snapshots;
    uint64_t n_evicted_blocks, n_evicted_snapshots;
} tamis_prefix_counts;

typedef struct tamis_prefix_cache {
    /* set before layout */
    int32_t block_tokens, max_entries, max_snapshots;
    /* set before use; histories [max_snapshots][history_bytes] is NULL without rings */
    tamis_block_pool *pool;
    uint8_t *histories;
    size_t history_bytes;

    tamis_prefix_entry *entries;      /* [max_entries] */
    int32_t *tokens;                  /* [max_entries][block_tokens] */
    int32_t *buckets;                 /* [n_buckets] first entry */
    int32_t n_buckets;                /* a power of two */
    int32_t unused;                   /* first unused entry */
    tamis_prefix_snapshot *snapshots; /* [max_snapshots] */
    tamis_history_watches watches;    /* pending or fresh snapshots that the step's rows go to */
    uint64_t clock;
    tamis_prefix_counts counts;
} tamis_prefix_cache;

/* Takes (or measures) the tables. */
void tamis_prefix_cache_layout(tamis_prefix_cache *cache, tamis_arena *arena);
/* The tables are zero: make them an empty cache. */
void tamis_prefix_cache_init(tamis_prefix_cache *cache);
static inline bool tamis_prefix_cache_has_rings(const tamis_prefix_cache *cache)
{
    return cache->history_bytes > 0;
}

/* ---------------------------------------------------------------- finding and keeping */

/* The longest usable prefix of tokens[0 .. n) that is shorter than n. */
typedef struct tamis_prefix_match {
    int32_t n_tokens; /* 0: none */
    int32_t entry;    /* holds the last of them */
    int32_t snapshot; /* TAMIS_PREFIX_NONE without rings */
} tamis_prefix_match;
tamis_prefix_match tamis_prefix_cache_match(tamis_prefix_cache *cache, const int32_t *tokens,
                                            int32_t n);
/* Writes the blocks of a match into table, first to last, each with a new reference; counts as use.
 */
int32_t tamis_prefix_cache_share(tamis_prefix_cache *cache, const tamis_prefix_match *match,
                                 int32_t *table);

/* Makes entries of the blocks of tokens[0 .. n), as far as there are none of the same tokens. */
void tamis_prefix_cache_publish(tamis_prefix_cache *cache, const int32_t *tokens, int32_t n,
                                const int32_t *table);

/* ---------------------------------------------------------------- snapshots */

/* Whether tokens[0 .. pos) lead to a snapshot; counts as use. */
bool tamis_prefix_cache_has_snapshot(tamis_prefix_cache *cache, const int32_t *tokens, int32_t pos);
/* A pending snapshot: unused, or the least recently used one; TAMIS_PREFIX_NONE if all are pending.
 */
int32_t tamis_prefix_cache_take_snapshot(tamis_prefix_cache *cache, int32_t pos);
uint8_t *tamis_prefix_cache_history(const tamis_prefix_cache *cache, int32_t snapshot);
/* Hangs a pending snapshot on the entry that its tokens lead to; lets it go if there is none. */
void tamis_prefix_cache_keep_snapshot(tamis_prefix_cache *cache, int32_t snapshot,
                                      const int32_t *tokens);
/* Lets all pending snapshots go. */
void tamis_prefix_cache_drop_pending(tamis_prefix_cache *cache);

/* ---------------------------------------------------------------- letting go */

/* Entries that hold their block alone. */
int32_t tamis_prefix_cache_num_alone(const tamis_prefix_cache *cache);
/*
 * The least recently used entry whose block nobody else holds goes, with what hangs on it. If there
 * is none, the least recently used entry without children goes: somebody's block is then shared no
 * longer. false: there are no entries.
 */
bool tamis_prefix_cache_evict(tamis_prefix_cache *cache);
void tamis_prefix_cache_clear(tamis_prefix_cache *cache);
/* Entries without their blocks, to see what a step could have at most: between the two calls the
 * pool may be used if it is put back as it was. */
void tamis_prefix_cache_let_go(tamis_prefix_cache *cache);
void tamis_prefix_cache_hold_again(tamis_prefix_cache *cache);

#endif
