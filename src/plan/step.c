#include "plan/step.h"

#include <string.h>

#include "core/error.h"
#include "core/size.h"
#include "plan/batch.h"

void tamis_step_layout(tamis_step *step, tamis_arena *arena)
{
    const size_t n_reqs = (size_t)step->max_reqs, n_tokens = (size_t)step->max_tokens;
    step->table_width = (int32_t)tamis_ceil_div(step->max_model_len, step->block_tokens);
    step->query_start = tamis_arena_take(arena, n_reqs + 1, sizeof(int32_t));
    step->start_pos = tamis_arena_take(arena, n_reqs, sizeof(int32_t));
    step->seq_len = tamis_arena_take(arena, n_reqs, sizeof(int32_t));
    step->slot = tamis_arena_take(arena, n_reqs, sizeof(int32_t));
    step->table = tamis_arena_take(arena, n_reqs * (size_t)step->table_width, sizeof(int32_t));
    step->tok_req = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    step->tok_pos = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    step->units = tamis_arena_take(arena, n_tokens, sizeof(int32_t));
    step->writer = tamis_arena_take(arena, (size_t)step->n_blocks, sizeof(int64_t));
    step->slot_owner = tamis_arena_take(arena, (size_t)step->n_slots, sizeof(int32_t));
}

/* Leaves the number of requests before the padding in step->n_reqs. */
static tamis_status check_batch(tamis_step *step, const tamis_batch *batch, tamis_error *err)
{
    int32_t n_reqs = 0;
    if (batch->num_reqs < 0 || batch->num_reqs > step->max_reqs)
        return tamis_fail(err, TAMIS_STATUS_LIMIT, "batch: num_reqs is %d, allowed 0..%d",
                          batch->num_reqs, step->max_reqs);
    TAMIS_TRY(tamis_batch_check_starts(batch->query_start_loc, batch->num_reqs, err));
    if (batch->query_start_loc[batch->num_reqs] > step->max_tokens)
        return tamis_fail(err, TAMIS_STATUS_LIMIT, "batch: %d tokens, allowed 0..%d",
                          batch->query_start_loc[batch->num_reqs], step->max_tokens);
    TAMIS_TRY(tamis_batch_check_lengths(batch, &n_reqs, err));
    if (n_reqs > 0 && step->n_slots > 0 && batch->slots == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "batch: slots is missing");
    for (int32_t req = 0; req < n_reqs; req++)
        if (batch->seq_lens[req] > step->max_model_len)
            return tamis_fail(err, TAMIS_STATUS_LIMIT, "request %d: seq_len is %d, allowed 0..%d",
                              req, batch->seq_lens[req], step->max_model_len);
    step->n_reqs = n_reqs;
    return TAMIS_STATUS_OK;
}

/* Steps over layers without rings have no slots. */
static tamis_status take_slot(tamis_step *step, const tamis_batch *batch, int32_t req,
                              tamis_error *err)
{
    if (step->n_slots == 0)
        return TAMIS_STATUS_OK;
    const int32_t slot = batch->slots[req];
    if (slot < 0 || slot >= step->n_slots)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "request %d: slot is %d, allowed 0..%d", req,
                          slot, step->n_slots - 1);
    if (step->slot_owner[slot] >= 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "request %d: slot %d belongs to request %d",
                          req, slot, step->slot_owner[slot]);
    step->slot_owner[slot] = req;
    step->slot[req] = slot;
    return TAMIS_STATUS_OK;
}

static tamis_status copy_table(tamis_step *step, const tamis_batch *batch, int32_t req,
                               tamis_error *err)
{
    const int32_t n = (int32_t)tamis_ceil_div(batch->seq_lens[req], step->block_tokens);
    const int32_t *table = batch->block_table + req * batch->block_table_stride;
    if (n > batch->block_table_stride)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "request %d: block table holds %lld blocks, %d needed for %d tokens", req,
                          (long long)batch->block_table_stride, n, batch->seq_lens[req]);
    for (int32_t i = 0; i < n; i++)
        if (table[i] < 1 || table[i] >= step->n_blocks)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "request %d: block_table[%d] is %d, allowed 1..%d", req, i, table[i],
                              step->n_blocks - 1);
    if (n > 0)
        memcpy(step->table + (int64_t)req * step->table_width, table, (size_t)n * sizeof *table);
    return TAMIS_STATUS_OK;
}

/* One request, checked and copied; its tokens follow those of the requests before it. */
static tamis_status add_request(tamis_step *step, const tamis_batch *batch, int32_t req,
                                tamis_error *err)
{
    TAMIS_TRY(take_slot(step, batch, req, err));
    TAMIS_TRY(copy_table(step, batch, req, err));
    const int32_t begin = batch->query_start_loc[req], end = batch->query_start_loc[req + 1];
    step->query_start[req + 1] = end;
    step->seq_len[req] = batch->seq_lens[req];
    step->start_pos[req] = batch->seq_lens[req] - (end - begin);
    for (int32_t i = begin; i < end; i++) {
        step->tok_req[i] = req;
        step->tok_pos[i] = step->start_pos[req] + (i - begin);
    }
    return TAMIS_STATUS_OK;
}

/* Blocks that a request's new tokens lie in: [first, end) of its table. */
static void written_blocks(const tamis_step *step, int32_t req, int32_t *first, int32_t *end)
{
    const bool has_tokens = step->start_pos[req] < step->seq_len[req];
    *first = step->start_pos[req] / step->block_tokens;
    *end = has_tokens ? (int32_t)tamis_ceil_div(step->seq_len[req], step->block_tokens) : *first;
}

static int64_t entry_number(const tamis_step *step, int32_t req, int32_t i)
{
    return 1 + (int64_t)req * step->table_width + i;
}

static void mark_writers(tamis_step *step, int32_t n_reqs, bool is_mark)
{
    for (int32_t req = 0; req < n_reqs; req++) {
        int32_t first, end;
        written_blocks(step, req, &first, &end);
        for (int32_t i = first; i < end; i++)
            step->writer[tamis_step_table(step, req)[i]] = is_mark ? entry_number(step, req, i) : 0;
    }
}

/* A block may be shared as long as nobody writes it: two places would see each other's rows. */
static tamis_status check_shared_blocks(tamis_step *step, int32_t n_reqs, tamis_error *err)
{
    tamis_status st = TAMIS_STATUS_OK;
    mark_writers(step, n_reqs, true);
    for (int32_t req = 0; req < n_reqs && st == TAMIS_STATUS_OK; req++) {
        const int32_t n = (int32_t)tamis_ceil_div(step->seq_len[req], step->block_tokens);
        for (int32_t i = 0; i < n && st == TAMIS_STATUS_OK; i++) {
            const int32_t block = tamis_step_table(step, req)[i];
            const int64_t writer = step->writer[block];
            if (writer != 0 && writer != entry_number(step, req, i))
                st = tamis_fail(err, TAMIS_STATUS_INVALID,
                                "request %d: block_table[%d] is %d, which request %d writes in "
                                "this step through block_table[%d]",
                                req, i, block, (int)((writer - 1) / step->table_width),
                                (int)((writer - 1) % step->table_width));
        }
    }
    mark_writers(step, n_reqs, false);
    return st;
}

/* The engine's own slots, where it hands them over, are those that the block tables give. */
static tamis_status check_slot_mapping(const tamis_step *step, const int32_t *slots,
                                       tamis_error *err)
{
    for (int32_t t = 0; t < step->n_tokens; t++) {
        const int32_t req = step->tok_req[t], pos = step->tok_pos[t];
        const int64_t expected =
            tamis_flat_slot(tamis_step_table(step, req), pos, step->block_tokens);
        if (slots[t] != expected)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "batch: slot_mapping[%d] is %d, the block table of request %d gives "
                              "%lld for position %d",
                              t, slots[t], req, (long long)expected, pos);
    }
    for (int32_t t = step->n_tokens; t < step->n_input_tokens; t++)
        if (slots[t] != -1)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "batch: slot_mapping[%d] is %d, must be -1 for padding", t, slots[t]);
    return TAMIS_STATUS_OK;
}

static tamis_status build(tamis_step *step, const tamis_batch *batch, tamis_error *err)
{
    TAMIS_TRY(check_batch(step, batch, err));
    for (int32_t i = 0; i < step->n_slots; i++)
        step->slot_owner[i] = -1;
    for (int32_t req = 0; req < step->n_reqs; req++)
        TAMIS_TRY(add_request(step, batch, req, err));
    TAMIS_TRY(check_shared_blocks(step, step->n_reqs, err));
    step->n_tokens = step->query_start[step->n_reqs];
    step->n_input_tokens = batch->query_start_loc[batch->num_reqs];
    if (batch->slot_mapping != NULL)
        TAMIS_TRY(check_slot_mapping(step, batch->slot_mapping, err));
    return TAMIS_STATUS_OK;
}

static void empty(tamis_step *step)
{
    step->n_tokens = step->n_input_tokens = step->n_reqs = 0;
    step->query_start[0] = 0;
}

tamis_status tamis_step_build(tamis_step *step, const tamis_batch *batch, tamis_error *err)
{
    empty(step);
    const tamis_status st = build(step, batch, err);
    if (st != TAMIS_STATUS_OK)
        empty(step);
    return st;
}

tamis_status tamis_step_build_dummy(tamis_step *step, int32_t n_tokens, tamis_error *err)
{
    empty(step);
    if (n_tokens < 0 || n_tokens > step->max_tokens)
        return tamis_fail(err, TAMIS_STATUS_LIMIT, "dummy step: %d tokens, allowed 0..%d", n_tokens,
                          step->max_tokens);
    step->n_input_tokens = n_tokens;
    return TAMIS_STATUS_OK;
}

tamis_step_view tamis_step_show(const tamis_step *step)
{
    return (tamis_step_view){.num_tokens = step->n_tokens,
                             .num_input_tokens = step->n_input_tokens,
                             .num_reqs = step->n_reqs,
                             .query_start_loc = step->query_start,
                             .start_pos = step->start_pos,
                             .seq_lens = step->seq_len,
                             .positions = step->tok_pos,
                             .req_of_token = step->tok_req};
}
