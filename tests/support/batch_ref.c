#include "support/batch_ref.h"

#include <stddef.h>

static int64_t n_new(const ref_batch *b, int req)
{
    return (int64_t)b->query_start[req + 1] - b->query_start[req];
}

int ref_num_real(const ref_batch *b)
{
    int last = -1;
    for (int i = 0; i < b->n_reqs; i++)
        if (b->seq_len[i] != 0)
            last = i;
    return last + 1;
}

/* Which column of the table holds a position: counted. */
static int column_of(const ref_batch *b, int pos)
{
    int column = 0;
    while (pos >= (column + 1) * b->block_tokens)
        column++;
    return column;
}

static int block_of(const ref_batch *b, int req, int column)
{
    return b->table[req * b->table_stride + column];
}

/* ---------------------------------------------------------------- validity */

static const char *bad_shape(const ref_batch *b)
{
    if (b->n_reqs > b->max_reqs)
        return "too many requests";
    if (b->query_start[0] != 0)
        return "first start is not 0";
    for (int i = 0; i < b->n_reqs; i++)
        if (n_new(b, i) < 0)
            return "starts decrease";
    if (b->query_start[b->n_reqs] > b->max_tokens)
        return "too many tokens";
    for (int i = 0; i < ref_num_real(b); i++) {
        if (b->seq_len[i] < n_new(b, i))
            return "shorter than its new tokens, or padding before a request";
        if (b->seq_len[i] > b->max_len)
            return "longer than the model";
    }
    return NULL;
}

static const char *bad_places(const ref_batch *b)
{
    const int n = ref_num_real(b);
    for (int i = 0; i < n; i++)
        for (int pos = 0; pos < b->seq_len[i]; pos += b->block_tokens) {
            if (column_of(b, pos) >= b->table_stride)
                return "table too narrow";
            if (block_of(b, i, column_of(b, pos)) < 1 ||
                block_of(b, i, column_of(b, pos)) >= b->n_blocks)
                return "block that does not exist";
        }
    for (int i = 0; b->slot != NULL && i < n; i++) {
        if (b->slot[i] < 0 || b->slot[i] >= b->n_slots)
            return "slot that does not exist";
        for (int j = 0; j < i; j++)
            if (b->slot[i] == b->slot[j])
                return "slot used twice";
    }
    return NULL;
}

/* A block that a new token goes into stands in one place of one table only. */
static const char *bad_sharing(const ref_batch *b)
{
    const int n = ref_num_real(b);
    for (int i = 0; i < n; i++)
        for (int pos = (int)(b->seq_len[i] - n_new(b, i)); pos < b->seq_len[i];) {
            const int column = column_of(b, pos), block = block_of(b, i, column);
            for (int j = 0; j < n; j++)
                for (int c = 0; c * b->block_tokens < b->seq_len[j]; c++)
                    if (block_of(b, j, c) == block && (j != i || c != column))
                        return "written block in two places";
            while (pos < b->seq_len[i] && column_of(b, pos) == column)
                pos++;
        }
    return NULL;
}

static const char *bad_slot_mapping(const ref_batch *b)
{
    static ref_token tokens[REF_MAX_TOKENS];
    if (b->slot_mapping == NULL)
        return NULL;
    const int n = ref_tokens(b, tokens);
    for (int t = 0; t < n; t++)
        if (b->slot_mapping[t] != tokens[t].slot)
            return "slot_mapping";
    for (int t = n; t < b->query_start[b->n_reqs]; t++)
        if (b->slot_mapping[t] != -1)
            return "slot_mapping of padding";
    return NULL;
}

bool ref_is_valid(const ref_batch *b, const char **why)
{
    const char *(*const rules[])(const ref_batch *) = {bad_shape, bad_places, bad_sharing,
                                                       bad_slot_mapping};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        *why = rules[i](b);
        if (*why != NULL)
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- tokens and rows */

int ref_tokens(const ref_batch *b, ref_token *out)
{
    int n = 0;
    for (int i = 0; i < ref_num_real(b); i++)
        for (int j = 0; j < n_new(b, i); j++) {
            const int pos = (int)(b->seq_len[i] - n_new(b, i)) + j;
            const int column = column_of(b, pos);
            const long offset = pos - column * b->block_tokens;
            out[n++] = (ref_token){i, pos, (long)block_of(b, i, column) * b->block_tokens + offset};
        }
    return n;
}

/* Token c ratio + ratio - 1 completes row c. */
int ref_rows(const ref_batch *b, int ratio, int rows_per_block, ref_row *out)
{
    static ref_token tokens[REF_MAX_TOKENS];
    const int n_tokens = ref_tokens(b, tokens);
    int n = 0;
    for (int t = 0; t < n_tokens; t++)
        for (int c = 0; c * ratio + ratio - 1 <= tokens[t].pos; c++)
            if (c * ratio + ratio - 1 == tokens[t].pos) {
                int column = 0, row = c;
                for (; row >= rows_per_block; row -= rows_per_block)
                    column++;
                out[n++] = (ref_row){tokens[t].req, c, block_of(b, tokens[t].req, column), row};
            }
    return n;
}

int ref_visible(int pos, int ratio)
{
    int n = 0;
    for (int c = 0; ratio > 0 && c * ratio + ratio - 1 <= pos; c++)
        n++;
    return n;
}

int ref_window(int pos, int window)
{
    int n = 0;
    for (int q = 0; q <= pos; q++)
        n += pos - q < window;
    return n;
}

/* ---------------------------------------------------------------- order */

int ref_reorder(const int32_t *query_lens, int n_reqs, int threshold, int32_t (*swaps)[2])
{
    int decodes[REF_MAX_REQS], prefills[REF_MAX_REQS], n_decodes = 0, n_prefills = 0, n = 0;
    for (int i = 0; i < n_reqs; i++) {
        if (query_lens[i] <= threshold)
            decodes[n_decodes++] = i;
        else
            prefills[n_prefills++] = i;
    }
    for (int i = 1; i <= n_decodes && i <= n_prefills; i++) {
        const int decode = decodes[n_decodes - i];
        if (decode < n_decodes)
            break;
        swaps[n][0] = prefills[n];
        swaps[n][1] = decode;
        n++;
    }
    return n;
}

int ref_num_decodes(const int32_t *query_start, int n_reqs, int threshold, bool is_uniform,
                    const bool *is_prefilling)
{
    for (int i = 0; i < n_reqs; i++) {
        const int len = query_start[i + 1] - query_start[i];
        if (len > threshold)
            return i;
        if (is_uniform && len != query_start[1] - query_start[0])
            return i;
        if (is_prefilling != NULL && is_prefilling[i])
            return i;
    }
    return n_reqs;
}
