/*
 * Text to ids, in the order of the reference: added tokens with normalized = false, normal form,
 * added tokens with normalized = true, splits, merges.
 */
#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

typedef struct encoder {
    const tamis_tokenizer *tokenizer;
    bool find_added;
    tamis_id_list out;
    tamis_bpe_scratch bpe;
    tamis_split_scratch split;
    tamis_error *err;
} encoder;

static tamis_status encode_piece(void *user, const char *piece, size_t bytes, tamis_error *err)
{
    encoder *e = user;
    const tamis_vocab *vocab = &e->tokenizer->vocab;
    if (e->tokenizer->ignore_merges) {
        const int32_t id = tamis_vocab_find(vocab, piece, bytes, true);
        if (id >= 0) {
            TAMIS_TRY(tamis_id_list_reserve(&e->out, 1, err));
            e->out.ids[e->out.n++] = id;
            return TAMIS_STATUS_OK;
        }
    }
    return tamis_bpe_encode(vocab, &e->bpe, piece, bytes, &e->out, err);
}

static tamis_status encode_splits(encoder *e, const char *text, size_t bytes)
{
    return tamis_splitter_run(&e->tokenizer->splitter, &e->split, text, bytes, encode_piece, e,
                              e->err);
}

typedef tamis_status (*stretch_fn)(encoder *e, const char *text, size_t bytes);

/* Emit the added tokens of one pattern set; what lies between them goes to `rest`. */
static tamis_status encode_around(encoder *e, const tamis_trie *patterns, const char *text,
                                  size_t bytes, stretch_fn rest)
{
    tamis_added_scan scan = {
        .added = &e->tokenizer->added, .patterns = patterns, .text = text, .bytes = bytes};
    tamis_added_match match;
    size_t done = 0;
    while (tamis_added_scan_next(&scan, &match)) {
        TAMIS_TRY(rest(e, text + done, match.from - done));
        TAMIS_TRY(tamis_id_list_reserve(&e->out, 1, e->err));
        e->out.ids[e->out.n++] = match.id;
        done = match.to;
    }
    return rest(e, text + done, bytes - done);
}

static tamis_status encode_normal(encoder *e, const char *text, size_t bytes)
{
    if (!e->find_added || e->tokenizer->added.normalized.n_nodes == 0)
        return encode_splits(e, text, bytes);
    return encode_around(e, &e->tokenizer->added.normalized, text, bytes, encode_splits);
}

static bool is_ascii(const char *text, size_t bytes)
{
    unsigned char all = 0;
    for (size_t i = 0; i < bytes; ++i)
        all |= (unsigned char)text[i];
    return all < 0x80;
}

static tamis_status encode_raw(encoder *e, const char *text, size_t bytes)
{
    if (!e->tokenizer->normalize_nfc || is_ascii(text, bytes))
        return encode_normal(e, text, bytes);
    char *normal = NULL;
    size_t normal_bytes = 0;
    TAMIS_TRY(tamis_normalize_nfc(&normal, &normal_bytes, text, bytes, e->err));
    const tamis_status st = encode_normal(e, normal, normal_bytes);
    tamis_mem_free(normal);
    return st;
}

static tamis_status encode_valid(encoder *e, const char *text, size_t bytes)
{
    /* About one id per three bytes: most texts need no growing. */
    TAMIS_TRY(tamis_id_list_reserve(&e->out, bytes / 3 + 16, e->err));
    TAMIS_TRY(tamis_split_scratch_init(&e->split, &e->tokenizer->splitter, e->err));
    if (!e->find_added || e->tokenizer->added.raw.n_nodes == 0)
        return encode_raw(e, text, bytes);
    return encode_around(e, &e->tokenizer->added.raw, text, bytes, encode_raw);
}

static tamis_status encode_bytes(encoder *e, const char *text, size_t bytes)
{
    if (tamis_utf8_valid_prefix(text, bytes) == bytes)
        return encode_valid(e, text, bytes);
    const size_t room = bytes * TAMIS_UTF8_REPLACEMENT_BYTES;
    char *repaired = tamis_mem_alloc(TAMIS_MEM_MISC, room);
    if (repaired == NULL)
        return tamis_fail_memory(e->err, "a text without invalid UTF-8", room);
    size_t cut;
    const size_t n = tamis_utf8_repair(repaired, text, bytes, false, &cut);
    const tamis_status st = encode_valid(e, repaired, n);
    tamis_mem_free(repaired);
    return st;
}

tamis_status tamis_tokenizer_encode(const tamis_tokenizer *tokenizer, const char *text,
                                    size_t bytes, tamis_encode_mode mode, int32_t **ids,
                                    size_t *n_ids, tamis_error *err)
{
    if (tokenizer == NULL || (text == NULL && bytes > 0) || ids == NULL || n_ids == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "tamis_tokenizer_encode: a pointer is NULL, allowed: all given");
    /* A byte may become a U+FFFD of three. */
    if (bytes > TAMIS_MAX_PIECE_BYTES / TAMIS_UTF8_REPLACEMENT_BYTES)
        return tamis_fail(err, TAMIS_STATUS_LIMIT, "a text of %zu bytes, allowed: at most %zu",
                          bytes, TAMIS_MAX_PIECE_BYTES / TAMIS_UTF8_REPLACEMENT_BYTES);
    encoder e = {
        .tokenizer = tokenizer, .find_added = mode == TAMIS_ENCODE_ADDED_TOKENS, .err = err};
    const tamis_status st = encode_bytes(&e, text, bytes);
    tamis_bpe_scratch_free(&e.bpe);
    tamis_split_scratch_free(&e.split);
    if (st != TAMIS_STATUS_OK) {
        tamis_mem_free(e.out.ids);
        return st;
    }
    *ids = e.out.ids;
    *n_ids = e.out.n;
    return TAMIS_STATUS_OK;
}

void tamis_ids_free(int32_t *ids)
{
    tamis_mem_free(ids);
}
