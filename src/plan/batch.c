#include "plan/batch.h"

#include "core/error.h"
#include "core/size.h"
#include "plan/closed_rows.h"

/* ---------------------------------------------------------------- checks */

tamis_status tamis_batch_check_starts(const int32_t *query_start_loc, int32_t num_reqs,
                                      tamis_error *err)
{
    if (query_start_loc == NULL || num_reqs < 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "batch: num_reqs is %d, must be at least 0; query_start_loc %s", num_reqs,
                          query_start_loc == NULL ? "is missing" : "is there");
    if (query_start_loc[0] != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "batch: query_start_loc[0] is %d, must be 0",
                          query_start_loc[0]);
    for (int32_t i = 0; i < num_reqs; i++)
        if (query_start_loc[i + 1] < query_start_loc[i])
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "batch: query_start_loc[%d] is %d, must be at least %d", i + 1,
                              query_start_loc[i + 1], query_start_loc[i]);
    return TAMIS_STATUS_OK;
}

/* So that the address of every request's row can be computed. */
static tamis_status check_stride(int64_t stride, int32_t n_reqs, tamis_error *err)
{
    const int64_t max = INT64_MAX / (int64_t)sizeof(int32_t) / tamis_max_i64(n_reqs, 1);
    if (stride >= 0 && stride <= max)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID,
                      "batch: block_table_stride is %lld, allowed 0..%lld", (long long)stride,
                      (long long)max);
}

/* Requests before the padding. */
static tamis_status count_real_reqs(const tamis_batch *batch, int32_t *num_real_reqs,
                                    tamis_error *err)
{
    int32_t n = batch->num_reqs;
    if (n > 0 && batch->seq_lens == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "batch: seq_lens is missing");
    while (n > 0 && batch->seq_lens[n - 1] == 0)
        n--;
    *num_real_reqs = n;
    return TAMIS_STATUS_OK;
}

static tamis_status check_new_tokens(const tamis_batch *batch, int32_t n_reqs, tamis_error *err)
{
    for (int32_t i = 0; i < n_reqs; i++) {
        const int32_t n_new = tamis_batch_query_len(batch, i);
        if (batch->seq_lens[i] == 0 && n_new > 0)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "request %d: seq_len is 0 with %d new tokens, but padding stands "
                              "behind the last real request, %d",
                              i, n_new, n_reqs - 1);
        if (batch->seq_lens[i] < n_new)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "request %d: seq_len is %d, must be at least its %d new tokens", i,
                              batch->seq_lens[i], n_new);
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_batch_check_seq_lens(const tamis_batch *batch, int32_t *num_real_reqs,
                                        tamis_error *err)
{
    int32_t n = 0;
    TAMIS_TRY(count_real_reqs(batch, &n, err));
    TAMIS_TRY(check_new_tokens(batch, n, err));
    *num_real_reqs = n;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_batch_check_lengths(const tamis_batch *batch, int32_t *num_real_reqs,
                                       tamis_error *err)
{
    int32_t n = 0;
    TAMIS_TRY(count_real_reqs(batch, &n, err));
    if (n > 0 && batch->block_table == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "batch: block_table is missing");
    TAMIS_TRY(check_stride(batch->block_table_stride, n, err));
    TAMIS_TRY(check_new_tokens(batch, n, err));
    *num_real_reqs = n;
    return TAMIS_STATUS_OK;
}

static tamis_status check_there(const char *name, bool is_there, tamis_error *err)
{
    return is_there ? TAMIS_STATUS_OK
                    : tamis_fail(err, TAMIS_STATUS_INVALID, "batch: %s is NULL", name);
}

static tamis_status check_batch(const tamis_batch *batch, int32_t *num_real_reqs, tamis_error *err)
{
    TAMIS_TRY(check_there("batch", batch != NULL, err));
    TAMIS_TRY(tamis_batch_check_starts(batch->query_start_loc, batch->num_reqs, err));
    return tamis_batch_check_lengths(batch, num_real_reqs, err);
}

static tamis_status check_range(const char *name, int64_t value, int32_t min, int32_t max,
                                tamis_error *err)
{
    return value >= min && value <= max
               ? TAMIS_STATUS_OK
               : tamis_fail(err, TAMIS_STATUS_INVALID, "batch: %s is %lld, allowed %d..%d", name,
                            (long long)value, min, max);
}

static tamis_status check_threshold(int32_t threshold, tamis_error *err)
{
    return check_range("decode_threshold", threshold, 1, TAMIS_MAX_DECODE_THRESHOLD, err);
}

/* Table columns [first, end) of a request name blocks that somebody may own. */
static tamis_status check_blocks(const tamis_batch *batch, int32_t req, int64_t first, int64_t end,
                                 tamis_error *err)
{
    const int32_t *table = batch->block_table + req * batch->block_table_stride;
    if (first < end && end > batch->block_table_stride)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "request %d: block table holds %lld blocks, %lld needed", req,
                          (long long)batch->block_table_stride, (long long)end);
    for (int64_t i = first; i < end; i++)
        if (table[i] < 1)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "request %d: block_table[%lld] is %d, must be at least 1", req,
                              (long long)i, table[i]);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- order */

/*
 * With n decodes in all, the i-th decode from the end changes places with the i-th prefill from the
 * front as long as it stands at n or behind: then that prefill stands before n, because as many
 * prefills stand before n as decodes at n or behind.
 */
tamis_status tamis_batch_reorder(const int32_t *query_lens, int32_t num_reqs,
                                 int32_t decode_threshold, tamis_swap *swaps, int32_t *num_swaps,
                                 tamis_error *err)
{
    int32_t n_decodes = 0, n_swaps = 0, prefill = 0;
    TAMIS_TRY(check_threshold(decode_threshold, err));
    TAMIS_TRY(check_range("num_reqs", num_reqs, 0, INT32_MAX, err));
    TAMIS_TRY(check_there("query_lens", query_lens != NULL || num_reqs == 0, err));
    TAMIS_TRY(check_there("swaps", swaps != NULL || num_reqs < 2, err));
    TAMIS_TRY(check_there("num_swaps", num_swaps != NULL, err));
    for (int32_t i = 0; i < num_reqs; i++) {
        if (query_lens[i] < 0)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "batch: query_lens[%d] is %d, must be at least 0", i, query_lens[i]);
        n_decodes += query_lens[i] <= decode_threshold;
    }
    for (int32_t decode = num_reqs - 1; decode >= n_decodes; decode--) {
        if (query_lens[decode] > decode_threshold)
            continue;
        while (query_lens[prefill] <= decode_threshold)
            prefill++;
        swaps[n_swaps++] = (tamis_swap){prefill++, decode};
    }
    *num_swaps = n_swaps;
    return TAMIS_STATUS_OK;
}

tamis_split_params tamis_split_params_default(void)
{
    return (tamis_split_params){.struct_size = sizeof(tamis_split_params),
                                .decode_threshold = 1,
                                .treat_short_extends_as_decodes = true};
}

static bool is_decode(const int32_t *start, int32_t req, const tamis_split_params *params)
{
    const int32_t n_new = start[req + 1] - start[req];
    return n_new <= params->decode_threshold &&
           (!params->require_uniform || n_new == start[1] - start[0]) &&
           (params->treat_short_extends_as_decodes || !params->is_prefilling[req]);
}

tamis_status tamis_batch_split(const int32_t *query_start_loc, int32_t num_reqs,
                               const tamis_split_params *params, tamis_split *out, tamis_error *err)
{
    int32_t n_decodes = 0;
    TAMIS_TRY(check_there("params", params != NULL, err));
    TAMIS_TRY(check_there("out", out != NULL, err));
    if (params->struct_size != sizeof *params)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "split params: struct_size is %zu, must be %zu", params->struct_size,
                          sizeof *params);
    TAMIS_TRY(check_threshold(params->decode_threshold, err));
    TAMIS_TRY(tamis_batch_check_starts(query_start_loc, num_reqs, err));
    if (!params->treat_short_extends_as_decodes && params->is_prefilling == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "split params: is_prefilling is missing, short extends need it");
    while (n_decodes < num_reqs && is_decode(query_start_loc, n_decodes, params))
        n_decodes++;
    *out =
        (tamis_split){.num_decodes = n_decodes,
                      .num_prefills = num_reqs - n_decodes,
                      .num_decode_tokens = query_start_loc[n_decodes],
                      .num_prefill_tokens = query_start_loc[num_reqs] - query_start_loc[n_decodes]};
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- slots */

static tamis_status check_slots(const tamis_batch *batch, int32_t req, int32_t block_tokens,
                                tamis_error *err)
{
    const int32_t *table = batch->block_table + req * batch->block_table_stride;
    const int32_t start = tamis_batch_start_pos(batch, req), end = batch->seq_lens[req];
    const int64_t first = start / block_tokens;
    TAMIS_TRY(check_blocks(batch, req, first,
                           start < end ? tamis_ceil_div(end, block_tokens) : first, err));
    for (int32_t pos = start; pos < end; pos++)
        if (tamis_flat_slot(table, pos, block_tokens) > INT32_MAX)
            return tamis_fail(err, TAMIS_STATUS_LIMIT,
                              "request %d: the slot of position %d is %lld, allowed 0..%d", req,
                              pos, (long long)tamis_flat_slot(table, pos, block_tokens), INT32_MAX);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_batch_slot_mapping(const tamis_batch *batch, int32_t block_tokens,
                                      int32_t *slot_mapping, int32_t num_slots, tamis_error *err)
{
    int32_t n_reqs = 0, n = 0;
    TAMIS_TRY(check_batch(batch, &n_reqs, err));
    TAMIS_TRY(check_range("block_tokens", block_tokens, 1, 1 << 20, err));
    TAMIS_TRY(check_range("num_slots", num_slots, batch->query_start_loc[batch->num_reqs],
                          INT32_MAX, err));
    TAMIS_TRY(check_there("slot_mapping", slot_mapping != NULL || num_slots == 0, err));
    for (int32_t req = 0; req < n_reqs; req++)
        TAMIS_TRY(check_slots(batch, req, block_tokens, err));
    for (int32_t req = 0; req < n_reqs; req++)
        for (int32_t pos = tamis_batch_start_pos(batch, req); pos < batch->seq_lens[req]; pos++)
            slot_mapping[n++] = (int32_t)tamis_flat_slot(
                batch->block_table + req * batch->block_table_stride, pos, block_tokens);
    while (n < num_slots)
        slot_mapping[n++] = -1;
    return TAMIS_STATUS_OK;
}

void tamis_slot_split(int32_t slot, int32_t block_tokens, int32_t *block, int32_t *row)
{
    if (block_tokens < 1) {
        *block = *row = -1;
        return;
    }
    const int32_t rest = slot % block_tokens;
    *row = rest < 0 ? rest + block_tokens : rest;
    *block = slot / block_tokens - (rest < 0);
}

/* ---------------------------------------------------------------- compressed rows */

int32_t tamis_compressed_rows_capacity(int32_t num_tokens, int32_t num_reqs, int32_t ratio)
{
    return num_tokens < 0 || num_reqs < 0 || ratio < 1
               ? 0
               : tamis_closed_rows_capacity(num_tokens, num_reqs, ratio);
}

/* Rows [*first, *end) that a request completes. */
static void closed_rows_of(const tamis_batch *batch, int32_t req, int32_t ratio, int32_t *first,
                           int32_t *end)
{
    *first = tamis_batch_start_pos(batch, req) / ratio;
    *end = batch->seq_lens[req] / ratio;
}

static tamis_status check_rows(const tamis_batch *batch, int32_t n_reqs, int32_t ratio,
                               int32_t rows_per_block, int32_t capacity, tamis_error *err)
{
    int64_t n = 0;
    for (int32_t req = 0; req < n_reqs; req++) {
        int32_t first, end;
        closed_rows_of(batch, req, ratio, &first, &end);
        const int64_t column = first / rows_per_block;
        TAMIS_TRY(check_blocks(batch, req, column,
                               first < end ? tamis_ceil_div(end, rows_per_block) : column, err));
        n += end - first;
    }
    return n <= capacity ? TAMIS_STATUS_OK
                         : tamis_fail(err, TAMIS_STATUS_LIMIT,
                                      "batch: %lld rows of ratio %d close, capacity is %d",
                                      (long long)n, ratio, capacity);
}

tamis_status tamis_batch_compressed_rows(const tamis_batch *batch, int32_t ratio,
                                         int32_t rows_per_block, tamis_compressed_row *rows,
                                         int32_t capacity, int32_t *num_rows, tamis_error *err)
{
    int32_t n_reqs = 0, n = 0;
    TAMIS_TRY(check_batch(batch, &n_reqs, err));
    TAMIS_TRY(check_range("ratio", ratio, 1, 1 << 20, err));
    TAMIS_TRY(check_range("rows_per_block", rows_per_block, 1, 1 << 20, err));
    TAMIS_TRY(check_there("rows", rows != NULL || capacity <= 0, err));
    TAMIS_TRY(check_there("num_rows", num_rows != NULL, err));
    TAMIS_TRY(check_rows(batch, n_reqs, ratio, rows_per_block, capacity, err));
    for (int32_t req = 0; req < n_reqs; req++) {
        const int32_t *table = batch->block_table + req * batch->block_table_stride;
        int32_t first, end;
        closed_rows_of(batch, req, ratio, &first, &end);
        for (int32_t j = first; j < end; j++)
            rows[n++] = (tamis_compressed_row){.req = req,
                                               .idx = j,
                                               .block = table[j / rows_per_block],
                                               .row = j % rows_per_block,
                                               .rope_pos = j * ratio};
    }
    *num_rows = n;
    while (n < capacity)
        rows[n++] = (tamis_compressed_row){-1, -1, -1, rows_per_block - 1, 0};
    return TAMIS_STATUS_OK;
}
