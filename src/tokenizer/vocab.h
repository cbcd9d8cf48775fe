/*
 * The tables of a byte-level BPE: id <-> bytes, and which pair of ids merges into which id.
 *
 * A vocabulary string of tokenizer.json spells bytes with printable characters (GPT-2's map: byte
 * 0x20 is U+0120 and so on). Strings with any other character exist too; they stand for their own
 * UTF-8 bytes and can never come out of a merge, since every symbol starts as one byte. The two
 * kinds are kept apart by a flag, so that looking up (bytes, kind) is looking up the string.
 */
#ifndef TAMIS_TOKENIZER_VOCAB_H
#define TAMIS_TOKENIZER_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "tamis/base.h"

/* Ids are table indices: a damaged file must not make us allocate gigabytes. */
#define TAMIS_MAX_TOKEN_ID ((1 << 21) - 1)

/* Longest string of a token in the file: strings are joined and mapped in buffers on the stack. */
#define TAMIS_MAX_TOKEN_BYTES 4096

enum {
    TAMIS_TOKEN_BASE = 1,    /* an entry of model.vocab */
    TAMIS_TOKEN_SPELLED = 2, /* whose string is in the byte alphabet */
    TAMIS_TOKEN_ADDED = 4,   /* an entry of added_tokens */
    TAMIS_TOKEN_SPECIAL = 8  /* left out by skip_special */
};

typedef struct tamis_token_text {
    uint32_t at, bytes; /* in vocab.blob */
} tamis_token_text;

typedef struct tamis_token_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} tamis_token_slot;

typedef struct tamis_merge {
    int32_t left, right; /* left -1: free */
    int32_t rank, id;
} tamis_merge;

typedef struct tamis_vocab {
    char *blob;
    size_t blob_bytes, blob_capacity;
    int32_t num_ids;         /* highest id + 1 */
    tamis_token_text *base;  /* [num_ids] bytes of the base vocabulary's token */
    tamis_token_text *text;  /* [num_ids] bytes that decoding gives */
    uint8_t *flags;          /* [num_ids] TAMIS_TOKEN_*; 0: no such id */
    tamis_token_slot *slots; /* [slot_mask + 1] base tokens by bytes and kind */
    size_t slot_mask;
    tamis_merge *merges; /* [merge_mask + 1] by left and right */
    size_t merge_mask;
    size_t longest_base;  /* bytes of the longest base token */
    int32_t byte_id[256]; /* token of one byte, -1: none */
} tamis_vocab;

/* The bytes that a vocabulary string spells, at most `bytes`; false: not in the alphabet. */
bool tamis_byte_alphabet_decode(const char *text, size_t bytes, char *out, size_t *out_bytes);

/* Room for ids below num_ids, n_base base tokens, n_merges merges and blob_bytes of text. */
tamis_status tamis_vocab_init(tamis_vocab *vocab, int32_t num_ids, size_t n_base, size_t n_merges,
                              size_t blob_bytes, tamis_error *err);
void tamis_vocab_free(tamis_vocab *vocab); /* an all-zero one is fine */
size_t tamis_vocab_bytes(const tamis_vocab *vocab);

/* Add a base token by its vocabulary string; the id must be free and the string new. */
void tamis_vocab_add_base(tamis_vocab *vocab, int32_t id, const char *text, size_t bytes);
/* Make an id an added token with this text (a base id keeps its base bytes for merges). */
void tamis_vocab_add_added(tamis_vocab *vocab, int32_t id, const char *text, size_t bytes,
                           bool special);
/* Add a merge; of two with the same pair the later one counts, as in the reference. */
void tamis_vocab_add_merge(tamis_vocab *vocab, int32_t left, int32_t right, int32_t rank,
                           int32_t id);

/* Base token of these bytes and kind, -1 if there is none. */
int32_t tamis_vocab_find(const tamis_vocab *vocab, const char *text, size_t bytes, bool spelled);
/* Base token of this vocabulary string, -1 if there is none. */
int32_t tamis_vocab_find_string(const tamis_vocab *vocab, const char *text, size_t bytes);
/* What decoding the id gives; no bytes for an unknown id. */
const char *tamis_vocab_text(const tamis_vocab *vocab, int32_t id, size_t *bytes);

static inline uint64_t tamis_merge_hash(int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (key * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
}

/* The merge of two neighbours, NULL if they do not merge. */
static inline const tamis_merge *tamis_vocab_merge(const tamis_vocab *vocab, int32_t left,
                                                   int32_t right)
{
    size_t at = (size_t)tamis_merge_hash(left, right) & vocab->merge_mask;
    for (;; at = (at + 1) & vocab->merge_mask) {
        const tamis_merge *merge = &vocab->merges[at];
        if (merge->left == left && merge->right == right)
            return merge;
        if (merge->left < 0)
            return NULL;
    }
}

#endif
