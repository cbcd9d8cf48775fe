/*
 * Steps and sequences spread over ranks: the worked numbers of the specification, random batches
 * against brute force over single tokens, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/rng.h"
#include "support/sanitized.h"
#include "tamis/attention.h"

#define MAX_REQS   24
#define MAX_TOKENS 256
#define NOISE      77

static void expect_text(const tamis_error *err, const char *part)
{
    if (strstr(err->text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err->text, part);
}

/* One rank's part of a batch; slots has a guard behind it. */
typedef struct part {
    tamis_dsa_cp_range range;
    int32_t starts[MAX_REQS + 1], lens[MAX_REQS], slots[MAX_TOKENS + 1];
} part;

static part part_of(const tamis_batch *batch, int32_t n_input, int32_t n_ranks, int32_t rank)
{
    part p;
    tamis_error err;
    for (int32_t i = 0; i <= MAX_TOKENS; i++)
        p.slots[i] = NOISE;
    if (tamis_dsa_cp_partition(batch, n_input, n_ranks, rank, &p.range, p.starts, p.lens,
                               batch->slot_mapping != NULL ? p.slots : NULL,
                               &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return p;
}

/* ---------------------------------------------------------------- worked numbers */

static void expect_part(const tamis_batch *batch, int32_t n_ranks, int32_t rank,
                        const int32_t *range, const int32_t *ends, const int32_t *lens)
{
    const part p = part_of(batch, batch->query_start_loc[batch->num_reqs], n_ranks, rank);
    assert_int_equal(p.range.num_padded_tokens, range[0]);
    assert_int_equal(p.range.begin, range[1]);
    assert_int_equal(p.range.end, range[2]);
    assert_int_equal(p.range.real_end, range[3]);
    assert_int_equal(p.starts[0], 0);
    assert_memory_equal(p.starts + 1, ends, (size_t)batch->num_reqs * sizeof *ends);
    assert_memory_equal(p.lens, lens, (size_t)batch->num_reqs * sizeof *lens);
}

/* Keys that the local queries see, queries in order. */
static void expect_visible(const tamis_batch *batch, int32_t n_ranks, int32_t rank,
                           const int32_t *visible, int32_t n)
{
    const part p = part_of(batch, batch->query_start_loc[batch->num_reqs], n_ranks, rank);
    assert_int_equal(p.starts[batch->num_reqs], n);
    for (int32_t req = 0; req < batch->num_reqs; req++)
        for (int32_t t = p.starts[req]; t < p.starts[req + 1]; t++)
            assert_int_equal(p.lens[req] - (p.starts[req + 1] - 1 - t), visible[t]);
}

static void requests_cut(void **state) /* spec v32-attention.md 7.3 */
{
    (void)state;
    const tamis_batch batch = {.num_reqs = 3,
                               .query_start_loc = (int32_t[]){0, 3, 4, 10},
                               .seq_lens = (int32_t[]){3, 9, 20}};
    expect_part(&batch, 2, 0, (int32_t[]){10, 0, 5, 5}, (int32_t[]){3, 4, 5},
                (int32_t[]){3, 9, 15});
    expect_visible(&batch, 2, 0, (int32_t[]){1, 2, 3, 9, 15}, 5);
    expect_part(&batch, 2, 1, (int32_t[]){10, 5, 10, 10}, (int32_t[]){0, 0, 5},
                (int32_t[]){0, 0, 20});
    expect_visible(&batch, 2, 1, (int32_t[]){16, 17, 18, 19, 20}, 5);
}

static void a_row_of_padding(void **state) /* 7.4 */
{
    (void)state;
    const tamis_batch batch = {.num_reqs = 3,
                               .query_start_loc = (int32_t[]){0, 2, 3, 7},
                               .seq_lens = (int32_t[]){2, 5, 4},
                               .slot_mapping = (int32_t[]){10, 11, 24, 30, 31, 32, 33}};
    expect_part(&batch, 2, 0, (int32_t[]){8, 0, 4, 4}, (int32_t[]){2, 3, 4}, (int32_t[]){2, 5, 1});
    expect_visible(&batch, 2, 0, (int32_t[]){1, 2, 5, 1}, 4);
    expect_part(&batch, 2, 1, (int32_t[]){8, 4, 8, 7}, (int32_t[]){0, 0, 3}, (int32_t[]){0, 0, 4});
    expect_visible(&batch, 2, 1, (int32_t[]){2, 3, 4}, 3);
    const part p = part_of(&batch, 7, 2, 1);
    assert_memory_equal(p.slots, ((int32_t[]){31, 32, 33, -1, NOISE}), 5 * sizeof(int32_t));
}

static void decodes(void **state) /* 7.5 */
{
    (void)state;
    const tamis_batch batch = {.num_reqs = 3,
                               .query_start_loc = (int32_t[]){0, 1, 2, 3},
                               .seq_lens = (int32_t[]){5, 130, 2049}};
    expect_part(&batch, 2, 0, (int32_t[]){4, 0, 2, 2}, (int32_t[]){1, 2, 2},
                (int32_t[]){5, 130, 0});
    expect_part(&batch, 2, 1, (int32_t[]){4, 2, 4, 3}, (int32_t[]){0, 0, 1},
                (int32_t[]){0, 0, 2049});
}

static void slots_of_vllm_ascend(void **state) /* 7.6 */
{
    (void)state;
    const tamis_batch batch = {.num_reqs = 2,
                               .query_start_loc = (int32_t[]){0, 3, 5},
                               .seq_lens = (int32_t[]){3, 5},
                               .slot_mapping = (int32_t[]){0, 1, 2, 3, 4}};
    expect_part(&batch, 2, 1, (int32_t[]){6, 3, 6, 5}, (int32_t[]){0, 2}, (int32_t[]){0, 5});
    const part first = part_of(&batch, 5, 2, 0), second = part_of(&batch, 5, 2, 1);
    assert_memory_equal(first.slots, ((int32_t[]){0, 1, 2, NOISE}), 4 * sizeof(int32_t));
    assert_memory_equal(second.slots, ((int32_t[]){3, 4, -1, NOISE}), 4 * sizeof(int32_t));
}

/* 7.6: 9 real requests of 4 tokens among 20; slot 17 spans 68..71 and is cut at 70. */
static void padding_of_a_graph(void **state)
{
    (void)state;
    int32_t starts[21], lens[20] = {0};
    for (int32_t i = 0; i <= 20; i++)
        starts[i] = 4 * i;
    for (int32_t i = 0; i < 9; i++)
        lens[i] = 100 + i;
    const tamis_batch batch = {.num_reqs = 20, .query_start_loc = starts, .seq_lens = lens};
    const part p = part_of(&batch, 80, 8, 6);
    assert_int_equal(p.range.begin, 60);
    assert_int_equal(p.range.end, 70);
    assert_int_equal(p.range.real_end, 60);
    assert_memory_equal(p.starts + 15, ((int32_t[]){0, 4, 8, 10, 10, 10}), 6 * sizeof(int32_t));
    for (int32_t i = 0; i < 20; i++)
        assert_int_equal(p.lens[i], 0);
    const part last_real = part_of(&batch, 80, 8, 3); /* 30..39, of which 30..35 are real */
    assert_int_equal(last_real.range.real_end, 36);
    assert_memory_equal(last_real.starts + 7, ((int32_t[]){0, 2, 6, 10}), 4 * sizeof(int32_t));
    assert_memory_equal(last_real.lens + 6, ((int32_t[]){0, 107, 108, 0}), 4 * sizeof(int32_t));
}

/* ---------------------------------------------------------------- random batches */

typedef struct case_batch {
    tamis_batch batch;
    int32_t starts[MAX_REQS + 1], lens[MAX_REQS], slots[MAX_TOKENS];
    int32_t n_input, n_tokens, n_real, n_ranks;
} case_batch;

static void draw(case_batch *c, test_rng *rng)
{
    const int32_t n_reqs = (int32_t)test_rng_int(rng, 0, MAX_REQS);
    const int32_t n_real_reqs = (int32_t)test_rng_int(rng, 0, n_reqs);
    c->starts[0] = c->n_real = 0;
    for (int32_t i = 0; i < n_reqs; i++) {
        const int32_t n_new = (int32_t)test_rng_int(rng, 0, 9);
        const int32_t context = (int32_t)test_rng_int(rng, n_new == 0 ? 1 : 0, 3000);
        c->starts[i + 1] = c->starts[i] + n_new;
        c->lens[i] = i < n_real_reqs ? context + n_new : 0;
        c->n_real = i < n_real_reqs ? c->starts[i + 1] : c->n_real;
    }
    c->n_tokens = c->starts[n_reqs];
    c->n_input = c->n_tokens + (int32_t)test_rng_int(rng, 0, 9);
    c->n_ranks = (int32_t)test_rng_int(rng, 1, 20);
    for (int32_t t = 0; t < c->n_tokens; t++)
        c->slots[t] = t < c->n_real ? (int32_t)test_rng_int(rng, 256, 1 << 20) : -1;
    c->batch = (tamis_batch){.num_reqs = n_reqs,
                             .query_start_loc = c->starts,
                             .seq_lens = c->lens,
                             .slot_mapping = c->slots};
}

/* Local query t of the rank is token begin + t of the batch: same request, position, slot. */
static void check_tokens(const case_batch *c, const part *p)
{
    const int32_t n_local = p->range.end - p->range.begin;
    int32_t req = 0, local_req = 0;
    for (int32_t t = 0; t < n_local; t++) {
        const int32_t token = p->range.begin + t;
        assert_int_equal(p->slots[t], token < c->n_tokens ? c->slots[token] : -1);
        assert_int_equal(token < p->range.real_end, token < c->n_real);
        if (token >= c->n_tokens)
            continue;
        while (c->starts[req + 1] <= token)
            req++;
        while (p->starts[local_req + 1] <= t)
            local_req++;
        assert_int_equal(local_req, req);
        if (token < c->n_real)
            assert_int_equal(p->lens[req] - (p->starts[req + 1] - t),
                             c->lens[req] - (c->starts[req + 1] - token));
        else
            assert_int_equal(p->lens[req], 0);
    }
    assert_int_equal(p->slots[n_local], NOISE);
}

/* A rank's part is a batch that the library takes: its slots are asked for with an own table. */
static void check_is_batch(const case_batch *c, const part *p)
{
    static int32_t table[MAX_REQS][4];
    int32_t slots[MAX_TOKENS];
    tamis_batch local = c->batch;
    local.query_start_loc = p->starts;
    local.seq_lens = p->lens;
    local.slot_mapping = NULL;
    local.block_table = &table[0][0];
    local.block_table_stride = 4;
    for (int32_t i = 0; i < MAX_REQS; i++)
        for (int32_t j = 0; j < 4; j++)
            table[i][j] = 1 + 4 * i + j;
    tamis_error err;
    if (tamis_batch_slot_mapping(&local, 1024, slots, MAX_TOKENS, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
}

static void random_batches(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("context_parallel", 20261130);
    for (int n = 0; n < (TEST_IS_SANITIZED ? 1000 : 20000); n++) {
        case_batch c;
        draw(&c, &rng);
        int32_t next = 0, n_queries = 0, n_padded = 0;
        for (int32_t rank = 0; rank < c.n_ranks; rank++) {
            const part p = part_of(&c.batch, c.n_input, c.n_ranks, rank);
            assert_int_equal(p.range.begin, next);
            next = p.range.end;
            n_padded = p.range.num_padded_tokens;
            n_queries += p.starts[c.batch.num_reqs];
            assert_int_equal((p.range.end - p.range.begin) * c.n_ranks, n_padded);
            check_tokens(&c, &p);
            check_is_batch(&c, &p);
        }
        assert_int_equal(next, n_padded);
        assert_int_equal(n_queries, c.n_tokens);
        assert_in_range(n_padded, c.n_input, c.n_input + c.n_ranks - 1);
    }
}

/* ---------------------------------------------------------------- refusals */

static void expect_refused(const tamis_batch *batch, int32_t n_input, int32_t n_ranks, int32_t rank,
                           tamis_status status, const char *part_of_text)
{
    tamis_dsa_cp_range range = {NOISE, NOISE, NOISE, NOISE};
    int32_t starts[4] = {NOISE, NOISE, NOISE, NOISE}, lens[3] = {NOISE, NOISE, NOISE}, slots[8];
    tamis_error err;
    slots[0] = NOISE;
    assert_int_equal(
        tamis_dsa_cp_partition(batch, n_input, n_ranks, rank, &range, starts, lens, slots, &err),
        status);
    expect_text(&err, part_of_text);
    assert_int_equal(range.begin, NOISE);
    assert_int_equal(starts[0], NOISE);
    assert_int_equal(lens[0], NOISE);
    assert_int_equal(slots[0], NOISE);
}

static void partition_refuses(void **state)
{
    (void)state;
    const tamis_status invalid = TAMIS_STATUS_INVALID;
    tamis_batch batch = {.num_reqs = 2,
                         .query_start_loc = (int32_t[]){0, 3, 5},
                         .seq_lens = (int32_t[]){3, 5},
                         .slot_mapping = (int32_t[]){0, 1, 2, 3, 4}};
    expect_refused(NULL, 5, 2, 0, invalid, "batch is NULL");
    expect_refused(&batch, 4, 2, 0, invalid,
                   "num_input_tokens is 4, must be at least the batch's 5");
    expect_refused(&batch, 5, 0, 0, invalid, "num_ranks is 0, allowed 1..65536");
    expect_refused(&batch, 5, 65537, 0, invalid, "num_ranks is 65537, allowed 1..65536");
    expect_refused(&batch, 5, 2, 2, invalid, "rank is 2, allowed 0..1");
    expect_refused(&batch, 5, 2, -1, invalid, "rank is -1, allowed 0..1");
    expect_refused(&batch, INT32_MAX, 2, 0, TAMIS_STATUS_LIMIT, "padded to 2147483648");
    batch.slot_mapping = NULL;
    expect_refused(&batch, 5, 2, 0, invalid, "slot_mapping is wanted");
    batch.seq_lens = (int32_t[]){2, 5};
    expect_refused(&batch, 5, 2, 0, invalid, "request 0: seq_len is 2, must be at least its 3");
    batch.seq_lens = NULL;
    expect_refused(&batch, 5, 2, 0, invalid, "seq_lens is missing");
    batch.query_start_loc = (int32_t[]){0, 3, 2};
    expect_refused(&batch, 5, 2, 0, invalid, "query_start_loc[2] is 2");
}

static void partition_refuses_null(void **state)
{
    (void)state;
    const tamis_batch batch = {
        .num_reqs = 1, .query_start_loc = (int32_t[]){0, 3}, .seq_lens = (int32_t[]){3}};
    part p;
    tamis_error err;
    assert_int_equal(tamis_dsa_cp_partition(&batch, 3, 1, 0, NULL, p.starts, p.lens, NULL, &err),
                     TAMIS_STATUS_INVALID);
    expect_text(&err, "range is NULL");
    assert_int_equal(tamis_dsa_cp_partition(&batch, 3, 1, 0, &p.range, NULL, p.lens, NULL, &err),
                     TAMIS_STATUS_INVALID);
    expect_text(&err, "query_start_loc is NULL");
    assert_int_equal(tamis_dsa_cp_partition(&batch, 3, 1, 0, &p.range, p.starts, NULL, NULL, NULL),
                     TAMIS_STATUS_INVALID);
}

/* ---------------------------------------------------------------- rows of a sequence */

static void dcp_lengths(void **state) /* 7.15 */
{
    (void)state;
    const int32_t lens[] = {0, 3, 4, 5, 8, 9, 12};
    const int32_t rank0[] = {0, 3, 4, 4, 4, 5, 8}, rank1[] = {0, 0, 0, 1, 4, 4, 4};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(tamis_dcp_local_len(lens[i], 2, 4, 0), rank0[i]);
        assert_int_equal(tamis_dcp_local_len(lens[i], 2, 4, 1), rank1[i]);
    }
}

/* Walk a sequence token by token: every owner's places fill in order, and its length counts them.
 */
static void dcp_walk(void **state)
{
    (void)state;
    for (int32_t n_ranks = 1; n_ranks <= 9; n_ranks++)
        for (int32_t interleave = 1; interleave <= 17; interleave++) {
            int32_t filled[9] = {0};
            for (int32_t pos = 0; pos < 400; pos++) {
                for (int32_t rank = 0; rank < n_ranks; rank++)
                    assert_int_equal(tamis_dcp_local_len(pos, n_ranks, interleave, rank),
                                     filled[rank]);
                const int32_t owner = tamis_dcp_owner(pos, n_ranks, interleave);
                assert_in_range(owner, 0, n_ranks - 1);
                if (pos % interleave != 0) /* a run of interleave tokens stays together */
                    assert_int_equal(owner, tamis_dcp_owner(pos - 1, n_ranks, interleave));
                assert_int_equal(tamis_dcp_local_pos(pos, n_ranks, interleave), filled[owner]++);
            }
        }
}

static void dcp_limits(void **state)
{
    (void)state;
    const int32_t max = INT32_MAX;
    assert_int_equal(tamis_dcp_owner(-1, 2, 4), -1);
    assert_int_equal(tamis_dcp_owner(0, 0, 4), -1);
    assert_int_equal(tamis_dcp_local_pos(0, 2, 0), -1);
    assert_int_equal(tamis_dcp_local_len(-1, 2, 4, 0), 0);
    assert_int_equal(tamis_dcp_local_len(9, 2, 4, 2), 0);
    assert_int_equal(tamis_dcp_local_len(9, 2, 4, -1), 0);
    assert_int_equal(tamis_dcp_local_len(max, 1, max, 0), max);
    assert_int_equal(tamis_dcp_local_len(max, max, max, 0), max);
    assert_int_equal(tamis_dcp_local_len(max, max, max, max - 1), 0);
    assert_int_equal(tamis_dcp_local_len(max, max, 1, max - 1), 1);
    assert_int_equal(tamis_dcp_local_pos(max, 2, 1 << 30), max - (1 << 30));
    assert_int_equal(tamis_dcp_owner(max, 2, 1 << 30), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_cut),
        cmocka_unit_test(a_row_of_padding),
        cmocka_unit_test(decodes),
        cmocka_unit_test(slots_of_vllm_ascend),
        cmocka_unit_test(padding_of_a_graph),
        cmocka_unit_test(random_batches),
        cmocka_unit_test(partition_refuses),
        cmocka_unit_test(partition_refuses_null),
        cmocka_unit_test(dcp_lengths),
        cmocka_unit_test(dcp_walk),
        cmocka_unit_test(dcp_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
