/* Byte pair encoding of one piece of text. */
#ifndef TAMIS_TOKENIZER_BPE_H
#define TAMIS_TOKENIZER_BPE_H

#include "tokenizer/vocab.h"

/* A growing list of ids; the one place where encoding puts its result. */
typedef struct tamis_id_list {
    int32_t *ids;
    size_t n, capacity;
} tamis_id_list;

tamis_status tamis_id_list_reserve(tamis_id_list *list, size_t more, tamis_error *err);

/* Working memory for long pieces, kept between pieces. All-zero is empty. */
typedef struct tamis_bpe_scratch {
    int32_t *ids, *prev, *next, *ranks; /* [capacity] */
    uint64_t *heap;                     /* [3 * capacity] */
    size_t capacity;
} tamis_bpe_scratch;

void tamis_bpe_scratch_free(tamis_bpe_scratch *scratch);

/* Longest piece: positions are 32 bits. */
#define TAMIS_MAX_PIECE_BYTES ((size_t)1 << 30)

/* Append the ids of a piece: valid UTF-8, 1..TAMIS_MAX_PIECE_BYTES bytes. */
tamis_status tamis_bpe_encode(const tamis_vocab *vocab, tamis_bpe_scratch *scratch,
                              const char *piece, size_t bytes, tamis_id_list *out,
                              tamis_error *err);

#endif
