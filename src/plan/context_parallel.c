/* A step's tokens over ranks (DSA-CP), a sequence's cache rows over ranks (DCP). */
#include "core/error.h"
#include "core/size.h"
#include "plan/batch.h"

/* ---------------------------------------------------------------- tokens of a step */

static tamis_status check_pointers(const tamis_batch *batch, const tamis_dsa_cp_range *range,
                                   const int32_t *query_start_loc, const int32_t *seq_lens,
                                   tamis_error *err)
{
    const char *missing = batch == NULL                             ? "batch"
                          : range == NULL                           ? "range"
                          : query_start_loc == NULL                 ? "query_start_loc"
                          : seq_lens == NULL && batch->num_reqs > 0 ? "seq_lens"
                                                                    : NULL;
    return missing == NULL ? TAMIS_STATUS_OK
                           : tamis_fail(err, TAMIS_STATUS_INVALID, "dsa-cp: %s is NULL", missing);
}

#define MAX_RANKS 65536

static tamis_status check_ranks(int32_t num_input_tokens, int32_t num_batch_tokens,
                                int32_t num_ranks, int32_t rank, tamis_error *err)
{
    if (num_input_tokens < num_batch_tokens)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "dsa-cp: num_input_tokens is %d, must be at least the batch's %d",
                          num_input_tokens, num_batch_tokens);
    if (num_ranks < 1 || num_ranks > MAX_RANKS)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "dsa-cp: num_ranks is %d, allowed 1..%d",
                          num_ranks, MAX_RANKS);
    if (rank < 0 || rank >= num_ranks)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "dsa-cp: rank is %d, allowed 0..%d", rank,
                          num_ranks - 1);
    const int64_t num_padded = tamis_round_up(num_input_tokens, num_ranks);
    return num_padded <= INT32_MAX
               ? TAMIS_STATUS_OK
               : tamis_fail(err, TAMIS_STATUS_LIMIT,
                            "dsa-cp: %d tokens for %d ranks are padded to %lld, allowed 0..%d",
                            num_input_tokens, num_ranks, (long long)num_padded, INT32_MAX);
}

/*
 * A rank's part ends so many tokens before the request does, so its last query sees as many less.
 * Padding has length 0 already, and a part of it must not fall below.
 */
static void cut_requests(const tamis_batch *batch, int32_t begin, int32_t end,
                         int32_t *query_start_loc, int32_t *seq_lens)
{
    query_start_loc[0] = 0;
    for (int32_t i = 0; i < batch->num_reqs; i++) {
        const int32_t req_end = batch->query_start_loc[i + 1];
        const int32_t first = batch->query_start_loc[i] > begin ? batch->query_start_loc[i] : begin;
        const int32_t last = req_end < end ? req_end : end;
        const int32_t n = last > first ? last - first : 0;
        const int32_t len = batch->seq_lens[i] - (req_end - last);
        query_start_loc[i + 1] = query_start_loc[i] + n;
        seq_lens[i] = n > 0 && len > 0 ? len : 0;
    }
}

tamis_status tamis_dsa_cp_partition(const tamis_batch *batch, int32_t num_input_tokens,
                                    int32_t num_ranks, int32_t rank, tamis_dsa_cp_range *range,
                                    int32_t *query_start_loc, int32_t *seq_lens,
                                    int32_t *slot_mapping, tamis_error *err)
{
    int32_t n_real_reqs = 0;
    TAMIS_TRY(check_pointers(batch, range, query_start_loc, seq_lens, err));
    TAMIS_TRY(tamis_batch_check_starts(batch->query_start_loc, batch->num_reqs, err));
    TAMIS_TRY(tamis_batch_check_seq_lens(batch, &n_real_reqs, err));
    const int32_t n_tokens = batch->query_start_loc[batch->num_reqs];
    const int32_t n_real = batch->query_start_loc[n_real_reqs];
    TAMIS_TRY(check_ranks(num_input_tokens, n_tokens, num_ranks, rank, err));
    if (slot_mapping != NULL && batch->slot_mapping == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "dsa-cp: slot_mapping is wanted, but the batch has none");
    const int32_t share = (int32_t)tamis_ceil_div(num_input_tokens, num_ranks);
    const int32_t begin = rank * share, end = begin + share;
    *range = (tamis_dsa_cp_range){
        .num_padded_tokens = num_ranks * share,
        .begin = begin,
        .end = end,
        .real_end = (int32_t)tamis_max_i64(begin, tamis_min_i64(end, n_real)),
    };
    cut_requests(batch, begin, end, query_start_loc, seq_lens);
    if (slot_mapping != NULL)
        for (int32_t t = begin; t < end; t++)
            slot_mapping[t - begin] = t < n_tokens ? batch->slot_mapping[t] : -1;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- rows of a sequence */

static bool is_dealt(int32_t pos, int32_t num_ranks, int32_t interleave)
{
    return pos >= 0 && num_ranks >= 1 && interleave >= 1;
}

int32_t tamis_dcp_owner(int32_t pos, int32_t num_ranks, int32_t interleave)
{
    return is_dealt(pos, num_ranks, interleave) ? pos / interleave % num_ranks : -1;
}

int32_t tamis_dcp_local_pos(int32_t pos, int32_t num_ranks, int32_t interleave)
{
    if (!is_dealt(pos, num_ranks, interleave))
        return -1;
    return pos / interleave / num_ranks * interleave + pos % interleave;
}

int32_t tamis_dcp_local_len(int32_t seq_len, int32_t num_ranks, int32_t interleave, int32_t rank)
{
    if (!is_dealt(seq_len, num_ranks, interleave) || rank < 0 || rank >= num_ranks)
        return 0;
    const int64_t whole_rounds = seq_len / interleave / num_ranks * (int64_t)interleave;
    const int64_t rest = seq_len - whole_rounds * num_ranks - (int64_t)rank * interleave;
    return (int32_t)(whole_rounds + tamis_max_i64(0, tamis_min_i64(rest, interleave)));
}
