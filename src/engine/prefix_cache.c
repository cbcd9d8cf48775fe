#include "engine/prefix_cache.h"

#include <assert.h>
#include <string.h>

#include "core/size.h"

/* ---------------------------------------------------------------- tables */

void tamis_prefix_cache_layout(tamis_prefix_cache *cache, tamis_arena *arena)
{
    const size_t n_entries = (size_t)cache->max_entries, n_snapshots = (size_t)cache->max_snapshots;
    cache->n_buckets = 1;
    while (cache->n_buckets < cache->max_entries && cache->n_buckets < 1 << 30)
        cache->n_buckets *= 2;
    cache->entries = tamis_arena_take(arena, n_entries, sizeof *cache->entries);
    cache->tokens =
        tamis_arena_take(arena, n_entries * (size_t)cache->block_tokens, sizeof *cache->tokens);
    cache->buckets = tamis_arena_take(arena, (size_t)cache->n_buckets, sizeof *cache->buckets);
    cache->snapshots = tamis_arena_take(arena, n_snapshots, sizeof *cache->snapshots);
    cache->watches.items = tamis_arena_take(arena, n_snapshots, sizeof *cache->watches.items);
}

void tamis_prefix_cache_init(tamis_prefix_cache *cache)
{
    for (int32_t i = 0; i < cache->n_buckets; i++)
        cache->buckets[i] = TAMIS_PREFIX_NONE;
    for (int32_t i = 0; i < cache->max_entries; i++)
        cache->entries[i].next = i + 1 < cache->max_entries ? i + 1 : TAMIS_PREFIX_NONE;
    cache->unused = 0;
}

static const int32_t *tokens_of(const tamis_prefix_cache *cache, int32_t entry)
{
    return cache->tokens + (size_t)entry * (size_t)cache->block_tokens;
}

/* By parent and first token: whoever shares any token with an entry finds it in its bucket. */
static int32_t *bucket_of(const tamis_prefix_cache *cache, int32_t parent, int32_t first_token)
{
    uint64_t h = ((uint64_t)(uint32_t)parent << 32 | (uint32_t)first_token);
    h = (h ^ (h >> 31)) * UINT64_C(0x9E3779B97F4A7C15);
    return &cache->buckets[(h >> 32) & (uint64_t)(cache->n_buckets - 1)];
}

/* How many of n tokens an entry has in common with them. */
static int32_t num_common(const tamis_prefix_cache *cache, int32_t entry, const int32_t *tokens,
                          int32_t n)
{
    const int32_t *own = tokens_of(cache, entry);
    const int32_t end = (int32_t)tamis_min_i64(n, cache->entries[entry].n_tokens);
    int32_t i = 0;
    while (i < end && own[i] == tokens[i])
        i++;
    return i;
}

/* The child of parent that begins with these n tokens. */
static int32_t find_child(const tamis_prefix_cache *cache, int32_t parent, const int32_t *tokens,
                          int32_t n)
{
    int32_t e = *bucket_of(cache, parent, tokens[0]);
    while (e != TAMIS_PREFIX_NONE &&
           !(cache->entries[e].parent == parent && num_common(cache, e, tokens, n) == n))
        e = cache->entries[e].next;
    return e;
}

/* The entry that holds the last of tokens[0 .. n); what is on the way to it is used. */
static int32_t find_path(tamis_prefix_cache *cache, const int32_t *tokens, int32_t n)
{
    int32_t parent = TAMIS_PREFIX_NONE;
    for (int32_t start = 0; start < n; start += cache->block_tokens) {
        const int32_t m = (int32_t)tamis_min_i64(cache->block_tokens, n - start);
        parent = find_child(cache, parent, tokens + start, m);
        if (parent == TAMIS_PREFIX_NONE)
            break;
        cache->entries[parent].last_use = cache->clock;
    }
    return parent;
}

/* ---------------------------------------------------------------- entries */

static void unlink_from_bucket(tamis_prefix_cache *cache, int32_t entry)
{
    const tamis_prefix_entry *e = &cache->entries[entry];
    int32_t *link = bucket_of(cache, e->parent, tokens_of(cache, entry)[0]);
    while (*link != entry)
        link = &cache->entries[*link].next;
    *link = e->next;
}

static void free_snapshot(tamis_prefix_cache *cache, int32_t snapshot)
{
    tamis_history_watches *watches = &cache->watches;
    const uint8_t *history = tamis_prefix_cache_history(cache, snapshot);
    int32_t n = 0;
    for (int32_t i = 0; i < watches->n; i++) /* its place may be given to another one */
        if (watches->items[i].history != history)
            watches->items[n++] = watches->items[i];
    watches->n = n;
    cache->counts.n_snapshots -= cache->snapshots[snapshot].use == TAMIS_SNAPSHOT_KEPT;
    cache->snapshots[snapshot] = (tamis_prefix_snapshot){.use = TAMIS_SNAPSHOT_UNUSED};
}

static void remove_entry(tamis_prefix_cache *cache, int32_t entry)
{
    tamis_prefix_entry *e = &cache->entries[entry];
    assert(e->block != 0 && e->n_children == 0);
    while (e->snapshots != TAMIS_PREFIX_NONE) {
        const int32_t s = e->snapshots;
        e->snapshots = cache->snapshots[s].next;
        free_snapshot(cache, s);
    }
    unlink_from_bucket(cache, entry);
    if (e->parent != TAMIS_PREFIX_NONE)
        cache->entries[e->parent].n_children--;
    tamis_block_pool_release(cache->pool, e->block);
    *e = (tamis_prefix_entry){.next = cache->unused};
    cache->unused = entry;
    cache->counts.n_entries--;
}

static void hang_snapshot(tamis_prefix_cache *cache, int32_t snapshot, int32_t entry)
{
    cache->snapshots[snapshot].entry = entry;
    cache->snapshots[snapshot].next = cache->entries[entry].snapshots;
    cache->entries[entry].snapshots = snapshot;
}

/* A new entry makes shorter ones of its tokens superfluous; their snapshots are its own now. */
static void absorb_shorter(tamis_prefix_cache *cache, int32_t entry)
{
    const tamis_prefix_entry *e = &cache->entries[entry];
    const int32_t *tokens = tokens_of(cache, entry);
    int32_t next;
    for (int32_t i = *bucket_of(cache, e->parent, tokens[0]); i != TAMIS_PREFIX_NONE; i = next) {
        tamis_prefix_entry *other = &cache->entries[i];
        next = other->next;
        if (i == entry || other->parent != e->parent || other->n_tokens >= e->n_tokens ||
            num_common(cache, i, tokens, e->n_tokens) < other->n_tokens)
            continue;
        while (other->snapshots != TAMIS_PREFIX_NONE) {
            const int32_t s = other->snapshots;
            other->snapshots = cache->snapshots[s].next;
            hang_snapshot(cache, s, entry);
        }
        remove_entry(cache, i);
    }
}

static int32_t add_entry(tamis_prefix_cache *cache, int32_t parent, const int32_t *tokens,
                         int32_t n, int32_t block)
{
    const int32_t entry = cache->unused;
    if (entry == TAMIS_PREFIX_NONE)
        return TAMIS_PREFIX_NONE;
    tamis_prefix_entry *e = &cache->entries[entry];
    int32_t *bucket = bucket_of(cache, parent, tokens[0]);
    cache->unused = e->next;
    *e = (tamis_prefix_entry){.block = block,
                              .parent = parent,
                              .n_tokens = n,
                              .next = *bucket,
                              .snapshots = TAMIS_PREFIX_NONE,
                              .last_use = cache->clock};
    *bucket = entry;
    memcpy(cache->tokens + (size_t)entry * (size_t)cache->block_tokens, tokens,
           (size_t)n * sizeof *tokens);
    if (parent != TAMIS_PREFIX_NONE)
        cache->entries[parent].n_children++;
    tamis_block_pool_retain(cache->pool, block);
    cache->counts.n_entries++;
    absorb_shorter(cache, entry);
    return entry;
}

void tamis_prefix_cache_publish(tamis_prefix_cache *cache, const int32_t *tokens, int32_t n,
                                const int32_t *table)
{
    int32_t parent = TAMIS_PREFIX_NONE;
    cache->clock++;
    for (int32_t start = 0; start < n; start += cache->block_tokens) {
        const int32_t m = (int32_t)tamis_min_i64(cache->block_tokens, n - start);
        int32_t e = find_child(cache, parent, tokens + start, m);
        if (e == TAMIS_PREFIX_NONE)
            e = add_entry(cache, parent, tokens + start, m, table[start / cache->block_tokens]);
        if (e == TAMIS_PREFIX_NONE)
            return;
        cache->entries[e].last_use = cache->clock;
        parent = e;
    }
}

/* ---------------------------------------------------------------- matching */

/* Takes over the furthest place to go on from within the first n_common tokens of an entry. */
static void improve_match(const tamis_prefix_cache *cache, tamis_prefix_match *best, int32_t entry,
                          int32_t start, int32_t n_common, int32_t limit)
{
    const int32_t end = (int32_t)tamis_min_i64(start + n_common, limit);
    if (!tamis_prefix_cache_has_rings(cache)) {
        if (end > best->n_tokens)
            *best = (tamis_prefix_match){end, entry, TAMIS_PREFIX_NONE};
        return;
    }
    for (int32_t s = cache->entries[entry].snapshots; s != TAMIS_PREFIX_NONE;
         s = cache->snapshots[s].next)
        if (cache->snapshots[s].pos <= end && cache->snapshots[s].pos > best->n_tokens)
            *best = (tamis_prefix_match){cache->snapshots[s].pos, entry, s};
}

tamis_prefix_match tamis_prefix_cache_match(tamis_prefix_cache *cache, const int32_t *tokens,
                                            int32_t n)
{
    tamis_prefix_match best = {0, TAMIS_PREFIX_NONE, TAMIS_PREFIX_NONE};
    int32_t parent = TAMIS_PREFIX_NONE;
    for (int32_t start = 0; start < n; start += cache->block_tokens) {
        int32_t full = TAMIS_PREFIX_NONE, e = *bucket_of(cache, parent, tokens[start]);
        for (; e != TAMIS_PREFIX_NONE; e = cache->entries[e].next) {
            if (cache->entries[e].parent != parent)
                continue;
            const int32_t n_common = num_common(cache, e, tokens + start, n - start);
            improve_match(cache, &best, e, start, n_common, n - 1);
            if (n_common == cache->block_tokens)
                full = e;
        }
        if (full == TAMIS_PREFIX_NONE)
            break;
        parent = full;
    }
    return best;
}

int32_t tamis_prefix_cache_share(tamis_prefix_cache *cache, const tamis_prefix_match *match,
                                 int32_t *table)
{
    const int32_t n_blocks = (int32_t)tamis_ceil_div(match->n_tokens, cache->block_tokens);
    int32_t e = match->entry;
    cache->clock++;
    for (int32_t i = n_blocks; i-- > 0; e = cache->entries[e].parent) {
        table[i] = cache->entries[e].block;
        tamis_block_pool_retain(cache->pool, table[i]);
        cache->entries[e].last_use = cache->clock;
    }
    assert(e == TAMIS_PREFIX_NONE);
    if (match->snapshot != TAMIS_PREFIX_NONE)
        cache->snapshots[match->snapshot].last_use = cache->clock;
    return n_blocks;
}

/* ---------------------------------------------------------------- snapshots */

uint8_t *tamis_prefix_cache_history(const tamis_prefix_cache *cache, int32_t snapshot)
{
    return cache->histories + (size_t)snapshot * cache->history_bytes;
}

static int32_t find_snapshot(const tamis_prefix_cache *cache, int32_t entry, int32_t pos)
{
    int32_t s = cache->entries[entry].snapshots;
    while (s != TAMIS_PREFIX_NONE && cache->snapshots[s].pos != pos)
        s = cache->snapshots[s].next;
    return s;
}

bool tamis_prefix_cache_has_snapshot(tamis_prefix_cache *cache, const int32_t *tokens, int32_t pos)
{
    cache->clock++;
    const int32_t entry = find_path(cache, tokens, pos);
    const int32_t s = entry == TAMIS_PREFIX_NONE ? entry : find_snapshot(cache, entry, pos);
    if (s == TAMIS_PREFIX_NONE)
        return false;
    cache->snapshots[s].last_use = cache->clock;
    return true;
}

static void take_off(tamis_prefix_cache *cache, int32_t snapshot)
{
    int32_t *link = &cache->entries[cache->snapshots[snapshot].entry].snapshots;
    while (*link != snapshot)
        link = &cache->snapshots[*link].next;
    *link = cache->snapshots[snapshot].next;
}

/* Of equally old ones the one nearest to the start: it saves least. */
static bool is_older(const tamis_prefix_snapshot *a, const tamis_prefix_snapshot *b)
{
    return a->last_use != b->last_use ? a->last_use < b->last_use : a->pos < b->pos;
}

int32_t tamis_prefix_cache_take_snapshot(tamis_prefix_cache *cache, int32_t pos)
{
    tamis_prefix_snapshot *all = cache->snapshots;
    int32_t oldest = TAMIS_PREFIX_NONE;
    for (int32_t i = 0; i < cache->max_snapshots; i++) {
        if (all[i].use == TAMIS_SNAPSHOT_UNUSED) {
            oldest = i;
            break;
        }
        if (all[i].use == TAMIS_SNAPSHOT_KEPT &&
            (oldest == TAMIS_PREFIX_NONE || is_older(&all[i], &all[oldest])))
            oldest = i;
    }
    if (oldest == TAMIS_PREFIX_NONE)
        return TAMIS_PREFIX_NONE;
    if (all[oldest].use == TAMIS_SNAPSHOT_KEPT) {
        take_off(cache, oldest);
        free_snapshot(cache, oldest);
        cache->counts.n_evicted_snapshots++;
    }
    all[oldest] = (tamis_prefix_snapshot){.use = TAMIS_SNAPSHOT_PENDING, .pos = pos};
    return oldest;
}

void tamis_prefix_cache_keep_snapshot(tamis_prefix_cache *cache, int32_t snapshot,
                                      const int32_t *tokens)
{
    tamis_prefix_snapshot *s = &cache->snapshots[snapshot];
    assert(s->use == TAMIS_SNAPSHOT_PENDING);
    const int32_t entry = find_path(cache, tokens, s->pos);
    if (entry == TAMIS_PREFIX_NONE || find_snapshot(cache, entry, s->pos) != TAMIS_PREFIX_NONE) {
        free_snapshot(cache, snapshot);
        return;
    }
    s->use = TAMIS_SNAPSHOT_KEPT;
    s->last_use = cache->clock;
    hang_snapshot(cache, snapshot, entry);
    cache->counts.n_snapshots++;
}

void tamis_prefix_cache_drop_pending(tamis_prefix_cache *cache)
{
    for (int32_t i = 0; i < cache->max_snapshots; i++)
        if (cache->snapshots[i].use == TAMIS_SNAPSHOT_PENDING)
            free_snapshot(cache, i);
}

/* ---------------------------------------------------------------- letting go */

static bool is_held_alone(const tamis_prefix_cache *cache, int32_t entry)
{
    const int32_t block = cache->entries[entry].block;
    return block != 0 && !tamis_block_pool_is_shared(cache->pool, block);
}

int32_t tamis_prefix_cache_num_alone(const tamis_prefix_cache *cache)
{
    int32_t n = 0;
    for (int32_t i = 0; i < cache->max_entries; i++)
        n += is_held_alone(cache, i);
    return n;
}

/* Of equally old ones, which lie on one path, one without children if there is any. */
static int32_t find_oldest(const tamis_prefix_cache *cache, bool held_alone)
{
    int32_t oldest = TAMIS_PREFIX_NONE;
    for (int32_t i = 0; i < cache->max_entries; i++) {
        const tamis_prefix_entry *e = &cache->entries[i];
        if (held_alone ? !is_held_alone(cache, i) : e->block == 0 || e->n_children > 0)
            continue;
        const tamis_prefix_entry *o = oldest == TAMIS_PREFIX_NONE ? NULL : &cache->entries[oldest];
        if (o == NULL || e->last_use < o->last_use ||
            (e->last_use == o->last_use && e->n_children == 0))
            oldest = i;
    }
    return oldest;
}

static int32_t any_child(const tamis_prefix_cache *cache, int32_t entry)
{
    int32_t i = 0;
    while (cache->entries[i].block == 0 || cache->entries[i].parent != entry)
        i++;
    return i;
}

bool tamis_prefix_cache_evict(tamis_prefix_cache *cache)
{
    int32_t victim = find_oldest(cache, true);
    if (victim == TAMIS_PREFIX_NONE)
        victim = find_oldest(cache, false);
    if (victim == TAMIS_PREFIX_NONE)
        return false;
    for (int32_t e = TAMIS_PREFIX_NONE; e != victim;) {
        e = victim;
        while (cache->entries[e].n_children > 0)
            e = any_child(cache, e);
        cache->counts.n_evicted_blocks++;
        remove_entry(cache, e);
    }
    return true;
}

void tamis_prefix_cache_clear(tamis_prefix_cache *cache)
{
    tamis_prefix_cache_let_go(cache);
    memset(cache->entries, 0, (size_t)cache->max_entries * sizeof *cache->entries);
    memset(cache->snapshots, 0, (size_t)cache->max_snapshots * sizeof *cache->snapshots);
    cache->watches.n = 0;
    cache->counts.n_entries = cache->counts.n_snapshots = 0;
    tamis_prefix_cache_init(cache);
}

void tamis_prefix_cache_let_go(tamis_prefix_cache *cache)
{
    for (int32_t i = 0; i < cache->max_entries; i++)
        if (cache->entries[i].block != 0)
            tamis_block_pool_release(cache->pool, cache->entries[i].block);
}

void tamis_prefix_cache_hold_again(tamis_prefix_cache *cache)
{
    for (int32_t i = cache->max_entries; i-- > 0;)
        if (cache->entries[i].block != 0)
            tamis_block_pool_unrelease(cache->pool, cache->entries[i].block);
}
