/*
 * Batches by brute force: what spec and seeds say of them, written out with lists and counting
 * loops and no arithmetic that could be wrong twice. Slow, separate from src, the second opinion of
 * test_batch_random. Everything takes plain arrays.
 */
#ifndef TAMIS_TEST_BATCH_REF_H
#define TAMIS_TEST_BATCH_REF_H

#include <stdbool.h>
#include <stdint.h>

#define REF_MAX_REQS   16
#define REF_MAX_TOKENS 2048

/* A batch and the limits of the plan and caches that shall take it. */
typedef struct ref_batch {
    int n_reqs;
    const int32_t *query_start, *seq_len;
    const int32_t *table; /* [n_reqs][table_stride] */
    int table_stride;
    const int32_t *slot;         /* NULL: layers without rings */
    const int32_t *slot_mapping; /* or NULL */
    int block_tokens, n_blocks, n_slots;
    int max_reqs, max_tokens, max_len;
} ref_batch;

/* Whether a plan has to take the batch; if not, *why says what is wrong. */
bool ref_is_valid(const ref_batch *b, const char **why);

/* Requests before the padding at the end. */
int ref_num_real(const ref_batch *b);

typedef struct ref_token {
    int req, pos;
    long slot;
} ref_token;
/* Real tokens in order; returns their number. */
int ref_tokens(const ref_batch *b, ref_token *out);

typedef struct ref_row {
    int req, idx, block, row;
} ref_row;
/* Rows of `ratio` tokens that the step completes, for blocks of rows_per_block rows. */
int ref_rows(const ref_batch *b, int ratio, int rows_per_block, ref_row *out);
/* Rows that a query at a position may see. */
int ref_visible(int pos, int ratio);
/* Positions in the sliding window of a query. */
int ref_window(int pos, int window);

/* The seeds' exchanges as pairs (prefill, decode); returns their number. */
int ref_reorder(const int32_t *query_lens, int n_reqs, int threshold, int32_t (*swaps)[2]);
/* Decodes at the front of a batch; is_prefilling NULL: short extends are decodes. */
int ref_num_decodes(const int32_t *query_start, int n_reqs, int threshold, bool is_uniform,
                    const bool *is_prefilling);

#endif
