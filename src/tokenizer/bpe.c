/*
 * Byte pair encoding: start with one symbol per byte; while any neighbours merge, merge the pair of
 * lowest rank, the leftmost of several.
 *
 * Short pieces (nearly all: words, numbers) look through all pairs for every merge, which is
 * quadratic but lives in two small arrays. Long ones keep the symbols in a linked list and the
 * pairs in a binary heap of (rank, position), O(n log n): a merge changes the pairs on its two
 * sides, which are pushed anew, and an entry whose rank is no longer that of its position is
 * skipped when it comes up. Each merge pushes at most two entries, so the heap never holds more
 * than 3n.
 */
#include "tokenizer/bpe.h"

#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

enum { SHORT_PIECE = 48, NO_RANK = INT32_MAX };

tamis_status tamis_id_list_reserve(tamis_id_list *list, size_t more, tamis_error *err)
{
    if (more <= list->capacity - list->n)
        return TAMIS_STATUS_OK;
    size_t capacity = list->capacity ? list->capacity : 64;
    while (capacity - list->n < more)
        capacity *= 2;
    void *grown = tamis_mem_realloc(TAMIS_MEM_MISC, list->ids, capacity * sizeof *list->ids);
    if (grown == NULL)
        return tamis_fail_memory(err, "the ids of a text", capacity * sizeof *list->ids);
    list->ids = grown;
    list->capacity = capacity;
    return TAMIS_STATUS_OK;
}

void tamis_bpe_scratch_free(tamis_bpe_scratch *scratch)
{
    tamis_mem_free(scratch->ids);
    tamis_mem_free(scratch->prev);
    tamis_mem_free(scratch->next);
    tamis_mem_free(scratch->ranks);
    tamis_mem_free(scratch->heap);
    *scratch = (tamis_bpe_scratch){0};
}

static tamis_status scratch_reserve(tamis_bpe_scratch *s, size_t n, tamis_error *err)
{
    if (n <= s->capacity)
        return TAMIS_STATUS_OK;
    if (n < 2 * s->capacity)
        n = 2 * s->capacity;
    tamis_bpe_scratch_free(s);
    s->ids = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *s->ids);
    s->prev = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *s->prev);
    s->next = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *s->next);
    s->ranks = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *s->ranks);
    s->heap = tamis_mem_array(TAMIS_MEM_MISC, 3 * n, sizeof *s->heap);
    if (!s->ids || !s->prev || !s->next || !s->ranks || !s->heap)
        return tamis_fail_memory(err, "a long piece of text", 40 * n);
    s->capacity = n;
    return TAMIS_STATUS_OK;
}

/* Bytes of valid UTF-8 always have a token: opening checks it. */
static void bytes_to_ids(const tamis_vocab *vocab, const char *piece, size_t bytes, int32_t *ids)
{
    for (size_t i = 0; i < bytes; ++i) {
        ids[i] = vocab->byte_id[(unsigned char)piece[i]];
        assert(ids[i] >= 0);
    }
}

static int32_t pair_rank(const tamis_vocab *vocab, int32_t left, int32_t right)
{
    const tamis_merge *merge = tamis_vocab_merge(vocab, left, right);
    return merge != NULL ? merge->rank : NO_RANK;
}

static size_t encode_short(const tamis_vocab *vocab, const char *piece, size_t n, int32_t *ids)
{
    int32_t ranks[SHORT_PIECE]; /* of the pair (i, i + 1) */
    bytes_to_ids(vocab, piece, n, ids);
    for (size_t i = 0; i + 1 < n; ++i)
        ranks[i] = pair_rank(vocab, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; ++i)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = tamis_vocab_merge(vocab, ids[best], ids[best + 1])->id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best - 2) * sizeof *ranks);
        --n;
        if (best > 0)
            ranks[best - 1] = pair_rank(vocab, ids[best - 1], ids[best]);
        if (best + 1 < n)
            ranks[best] = pair_rank(vocab, ids[best], ids[best + 1]);
    }
    return n;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2] > key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0], last = heap[--*n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= *n)
            break;
        if (child + 1 < *n && heap[child + 1] < heap[child])
            ++child;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Look up the pair that starts at `at` again and put it on the heap. */
static void refresh_pair(const tamis_vocab *vocab, tamis_bpe_scratch *s, int32_t at, size_t *n_heap)
{
    const int32_t next = s->next[at];
    s->ranks[at] = next < 0 ? NO_RANK : pair_rank(vocab, s->ids[at], s->ids[next]);
    if (s->ranks[at] != NO_RANK)
        heap_push(s->heap, n_heap, (uint64_t)(uint32_t)s->ranks[at] << 32 | (uint32_t)at);
}

static void merge_all(const tamis_vocab *vocab, tamis_bpe_scratch *s, size_t n)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n; ++i) {
        s->prev[i] = (int32_t)i - 1;
        s->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        refresh_pair(vocab, s, (int32_t)i, &n_heap);
    }
    while (n_heap > 0) {
        const uint64_t top = heap_pop(s->heap, &n_heap);
        const int32_t at = (int32_t)(uint32_t)top;
        if ((uint64_t)(uint32_t)s->ranks[at] != top >> 32)
            continue; /* this pair has changed or gone since it was pushed */
        const int32_t gone = s->next[at];
        s->ids[at] = tamis_vocab_merge(vocab, s->ids[at], s->ids[gone])->id;
        s->ranks[gone] = NO_RANK;
        s->next[at] = s->next[gone];
        if (s->next[at] >= 0)
            s->prev[s->next[at]] = at;
        refresh_pair(vocab, s, at, &n_heap);
        if (s->prev[at] >= 0)
            refresh_pair(vocab, s, s->prev[at], &n_heap);
    }
}

tamis_status tamis_bpe_encode(const tamis_vocab *vocab, tamis_bpe_scratch *scratch,
                              const char *piece, size_t bytes, tamis_id_list *out, tamis_error *err)
{
    assert(bytes > 0 && bytes <= TAMIS_MAX_PIECE_BYTES);
    if (bytes <= SHORT_PIECE) {
        TAMIS_TRY(tamis_id_list_reserve(out, SHORT_PIECE, err));
        out->n += encode_short(vocab, piece, bytes, out->ids + out->n);
        return TAMIS_STATUS_OK;
    }
    TAMIS_TRY(scratch_reserve(scratch, bytes, err));
    bytes_to_ids(vocab, piece, bytes, scratch->ids);
    merge_all(vocab, scratch, bytes);
    size_t n = 0;
    for (int32_t at = 0; at >= 0; at = scratch->next[at])
        ++n;
    TAMIS_TRY(tamis_id_list_reserve(out, n, err));
    for (int32_t at = 0; at >= 0; at = scratch->next[at])
        out->ids[out->n++] = scratch->ids[at];
    return TAMIS_STATUS_OK;
}
