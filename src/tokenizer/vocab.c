#include "tokenizer/vocab.h"

#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/utf8.h"

/*
 * GPT-2's alphabet: 33..126, 161..172 and 174..255 stand for themselves, the other 68 bytes are
 * U+0100, U+0101, ... in order.
 */
static int byte_of_code_point(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < 256 || c >= 256 + 68)
        return -1;
    const int n = (int)c - 256;
    return n < 33 ? n : n < 67 ? n - 33 + 127 : 173;
}

bool tamis_byte_alphabet_decode(const char *text, size_t bytes, char *out, size_t *out_bytes)
{
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t len = tamis_utf8_len(text[at]);
        assert(len <= bytes - at);
        const int byte = byte_of_code_point(tamis_utf8_code_point(text + at, len));
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
        at += len;
    }
    *out_bytes = n;
    return true;
}

/* At least twice as many slots as entries, so that a probe run stays short and always ends. */
static size_t table_slots(size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

tamis_status tamis_vocab_init(tamis_vocab *vocab, int32_t num_ids, size_t n_base, size_t n_merges,
                              size_t blob_bytes, tamis_error *err)
{
    const size_t n = (size_t)num_ids, n_slots = table_slots(n_base);
    const size_t n_merge_slots = table_slots(n_merges);
    assert(blob_bytes <= UINT32_MAX);
    vocab->num_ids = num_ids;
    vocab->blob_capacity = blob_bytes;
    vocab->slot_mask = n_slots - 1;
    vocab->merge_mask = n_merge_slots - 1;
    vocab->blob = tamis_mem_array(TAMIS_MEM_TOKENIZER, blob_bytes, 1);
    vocab->base = tamis_mem_array(TAMIS_MEM_TOKENIZER, n, sizeof *vocab->base);
    vocab->text = tamis_mem_array(TAMIS_MEM_TOKENIZER, n, sizeof *vocab->text);
    vocab->flags = tamis_mem_array(TAMIS_MEM_TOKENIZER, n, sizeof *vocab->flags);
    vocab->slots = tamis_mem_array(TAMIS_MEM_TOKENIZER, n_slots, sizeof *vocab->slots);
    vocab->merges = tamis_mem_array(TAMIS_MEM_TOKENIZER, n_merge_slots, sizeof *vocab->merges);
    if (!vocab->blob || !vocab->base || !vocab->text || !vocab->flags || !vocab->slots ||
        !vocab->merges)
        return tamis_fail_memory(err, "the vocabulary", tamis_vocab_bytes(vocab));
    for (size_t i = 0; i < n_slots; ++i)
        vocab->slots[i].id = -1;
    for (size_t i = 0; i < n_merge_slots; ++i)
        vocab->merges[i].left = -1;
    for (int i = 0; i < 256; ++i)
        vocab->byte_id[i] = -1;
    return TAMIS_STATUS_OK;
}

void tamis_vocab_free(tamis_vocab *vocab)
{
    tamis_mem_free(vocab->blob);
    tamis_mem_free(vocab->base);
    tamis_mem_free(vocab->text);
    tamis_mem_free(vocab->flags);
    tamis_mem_free(vocab->slots);
    tamis_mem_free(vocab->merges);
    *vocab = (tamis_vocab){0};
}

size_t tamis_vocab_bytes(const tamis_vocab *vocab)
{
    const size_t per_id = sizeof *vocab->base + sizeof *vocab->text + sizeof *vocab->flags;
    return vocab->blob_capacity + (size_t)vocab->num_ids * per_id +
           (vocab->slot_mask + 1) * sizeof *vocab->slots +
           (vocab->merge_mask + 1) * sizeof *vocab->merges;
}

static uint32_t hash_token(const char *text, size_t bytes, bool spelled)
{
    uint64_t hash = spelled ? UINT64_C(0xcbf29ce484222325) : UINT64_C(0x84222325cbf29ce4);
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(hash ^ hash >> 32);
}

/* The slot that holds this token, or the free one where it belongs. */
static tamis_token_slot *find_slot(const tamis_vocab *vocab, const char *text, size_t bytes,
                                   bool spelled, uint32_t hash)
{
    for (size_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        tamis_token_slot *slot = &vocab->slots[at];
        if (slot->id < 0)
            return slot;
        const tamis_token_text *base = &vocab->base[slot->id];
        if (slot->hash == hash && base->bytes == bytes &&
            ((vocab->flags[slot->id] & TAMIS_TOKEN_SPELLED) != 0) == spelled &&
            memcmp(vocab->blob + base->at, text, bytes) == 0)
            return slot;
    }
}

void tamis_vocab_add_base(tamis_vocab *vocab, int32_t id, const char *text, size_t bytes)
{
    assert(id >= 0 && id < vocab->num_ids && vocab->flags[id] == 0);
    assert(bytes <= vocab->blob_capacity - vocab->blob_bytes);
    char *dst = vocab->blob + vocab->blob_bytes;
    size_t n = 0;
    const bool spelled = tamis_byte_alphabet_decode(text, bytes, dst, &n);
    if (!spelled) {
        memcpy(dst, text, bytes);
        n = bytes;
    }
    const uint32_t hash = hash_token(dst, n, spelled);
    tamis_token_slot *slot = find_slot(vocab, dst, n, spelled, hash);
    assert(slot->id < 0);
    *slot = (tamis_token_slot){.hash = hash, .id = id};
    vocab->base[id] = (tamis_token_text){.at = (uint32_t)vocab->blob_bytes, .bytes = (uint32_t)n};
    vocab->text[id] = vocab->base[id];
    vocab->flags[id] = (uint8_t)(TAMIS_TOKEN_BASE | (spelled ? TAMIS_TOKEN_SPELLED : 0));
    vocab->blob_bytes += n;
    if (n > vocab->longest_base)
        vocab->longest_base = n;
    if (spelled && n == 1)
        vocab->byte_id[(unsigned char)dst[0]] = id;
}

void tamis_vocab_add_added(tamis_vocab *vocab, int32_t id, const char *text, size_t bytes,
                           bool special)
{
    assert(id >= 0 && id < vocab->num_ids);
    assert(bytes <= vocab->blob_capacity - vocab->blob_bytes);
    memcpy(vocab->blob + vocab->blob_bytes, text, bytes);
    vocab->text[id] =
        (tamis_token_text){.at = (uint32_t)vocab->blob_bytes, .bytes = (uint32_t)bytes};
    vocab->blob_bytes += bytes;
    vocab->flags[id] |= (uint8_t)(TAMIS_TOKEN_ADDED | (special ? TAMIS_TOKEN_SPECIAL : 0));
}

void tamis_vocab_add_merge(tamis_vocab *vocab, int32_t left, int32_t right, int32_t rank,
                           int32_t id)
{
    size_t at = (size_t)tamis_merge_hash(left, right) & vocab->merge_mask;
    while (vocab->merges[at].left >= 0 &&
           (vocab->merges[at].left != left || vocab->merges[at].right != right))
        at = (at + 1) & vocab->merge_mask;
    vocab->merges[at] = (tamis_merge){.left = left, .right = right, .rank = rank, .id = id};
}

int32_t tamis_vocab_find(const tamis_vocab *vocab, const char *text, size_t bytes, bool spelled)
{
    if (bytes > vocab->longest_base)
        return -1;
    return find_slot(vocab, text, bytes, spelled, hash_token(text, bytes, spelled))->id;
}

int32_t tamis_vocab_find_string(const tamis_vocab *vocab, const char *text, size_t bytes)
{
    char spelled[TAMIS_MAX_TOKEN_BYTES];
    size_t n;
    if (bytes > sizeof spelled)
        return -1;
    if (tamis_byte_alphabet_decode(text, bytes, spelled, &n))
        return tamis_vocab_find(vocab, spelled, n, true);
    return tamis_vocab_find(vocab, text, bytes, false);
}

const char *tamis_vocab_text(const tamis_vocab *vocab, int32_t id, size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || id >= vocab->num_ids)
        return "";
    *bytes = vocab->text[id].bytes;
    return vocab->blob + vocab->text[id].at;
}
