/* The public functions on batches: the worked numbers of the specifications, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tamis/attention.h"

static void expect_text(const tamis_error *err, const char *part)
{
    if (strstr(err->text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err->text, part);
}

/* ---------------------------------------------------------------- order */

static void expect_order(const int32_t *lens, int32_t n, int32_t threshold, int32_t n_expected,
                         const tamis_swap *expected, const int32_t *result)
{
    tamis_swap swaps[8];
    int32_t n_swaps = -1, moved[16];
    memcpy(moved, lens, (size_t)n * sizeof *lens);
    assert_int_equal(tamis_batch_reorder(lens, n, threshold, swaps, &n_swaps, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(n_swaps, n_expected);
    for (int32_t i = 0; i < n_swaps; i++) {
        assert_int_equal(swaps[i].a, expected[i].a);
        assert_int_equal(swaps[i].b, expected[i].b);
        const int32_t kept = moved[swaps[i].a];
        moved[swaps[i].a] = moved[swaps[i].b];
        moved[swaps[i].b] = kept;
    }
    assert_memory_equal(moved, result, (size_t)n * sizeof *result);
}

static void reorder_examples(void **state)
{
    (void)state;
    expect_order((int32_t[]){7, 1, 1, 9, 1}, 5, 1, 1, (tamis_swap[]){{0, 4}},
                 (int32_t[]){1, 1, 1, 9, 7});
    expect_order((int32_t[]){300, 3, 4, 900, 2, 1, 64}, 7, 4, 2, (tamis_swap[]){{0, 5}, {3, 4}},
                 (int32_t[]){1, 3, 4, 2, 900, 300, 64});
    expect_order((int32_t[]){1, 1, 0, 5}, 4, 1, 0, NULL, (int32_t[]){1, 1, 0, 5});
    expect_order((int32_t[]){5, 5}, 2, 1, 0, NULL, (int32_t[]){5, 5});
    expect_order((int32_t[]){5, 1}, 2, 1, 1, (tamis_swap[]){{0, 1}}, (int32_t[]){1, 5});
    expect_order((int32_t[]){0}, 0, 16, 0, NULL, (int32_t[]){0});
}

static void reorder_refuses(void **state)
{
    (void)state;
    tamis_swap swaps[2];
    int32_t n_swaps = 77;
    tamis_error err;
    const int32_t lens[] = {3, -1, 1};
    assert_int_equal(tamis_batch_reorder(lens, 3, 1, swaps, &n_swaps, &err), TAMIS_STATUS_INVALID);
    expect_text(&err, "query_lens[1] is -1");
    assert_int_equal(tamis_batch_reorder(lens, 1, 0, swaps, &n_swaps, &err), TAMIS_STATUS_INVALID);
    expect_text(&err, "decode_threshold is 0, allowed 1..16");
    assert_int_equal(tamis_batch_reorder(lens, 1, 17, swaps, &n_swaps, &err), TAMIS_STATUS_INVALID);
    expect_text(&err, "decode_threshold is 17, allowed 1..16");
    assert_int_equal(tamis_batch_reorder(lens, -1, 1, swaps, &n_swaps, &err), TAMIS_STATUS_INVALID);
    expect_text(&err, "num_reqs is -1");
    assert_int_equal(n_swaps, 77);
}

/* ---------------------------------------------------------------- split */

static void expect_split(const int32_t *start, int32_t n, const tamis_split_params *params,
                         int32_t decodes, int32_t decode_tokens)
{
    tamis_split split;
    assert_int_equal(tamis_batch_split(start, n, params, &split, NULL), TAMIS_STATUS_OK);
    assert_int_equal(split.num_decodes, decodes);
    assert_int_equal(split.num_prefills, n - decodes);
    assert_int_equal(split.num_decode_tokens, decode_tokens);
    assert_int_equal(split.num_prefill_tokens, start[n] - decode_tokens);
}

static void split_examples(void **state)
{
    (void)state;
    const int32_t start[] = {0, 1, 4, 8, 10, 910, 1210, 1274};
    const bool is_prefilling[] = {false, false, true, false, true, true, true};
    tamis_split_params p = tamis_split_params_default();
    assert_int_equal(p.decode_threshold, 1);
    p.decode_threshold = 4;
    expect_split(start, 7, &p, 4, 10); /* 3 prefills of 1264 tokens */
    expect_split(start, 4, &p, 4, 10);
    expect_split(start, 0, &p, 0, 0);
    p.treat_short_extends_as_decodes = false;
    p.is_prefilling = is_prefilling;
    expect_split(start, 7, &p, 2, 4); /* the tail of a prompt is a prefill, too */
    p = tamis_split_params_default();
    expect_split((int32_t[]){0, 5, 6}, 2, &p, 0, 0);
    expect_split(start, 7, &p, 1, 1);
    p.decode_threshold = 3;
    p.require_uniform = true;
    expect_split((int32_t[]){0, 2, 4, 6, 7, 16}, 5, &p, 3, 6);
    expect_split((int32_t[]){0, 2, 4, 6}, 3, &p, 3, 6);
    expect_split((int32_t[]){0, 4, 8}, 2, &p, 0, 0);
}

static void expect_split_refused(const int32_t *start, int32_t n, const tamis_split_params *params,
                                 const char *part)
{
    tamis_split split = {.num_decodes = 77};
    tamis_error err;
    assert_int_equal(tamis_batch_split(start, n, params, &split, &err), TAMIS_STATUS_INVALID);
    expect_text(&err, part);
    assert_int_equal(split.num_decodes, 77);
}

static void split_refuses(void **state)
{
    (void)state;
    const int32_t start[] = {0, 2, 1};
    tamis_split_params p = tamis_split_params_default();
    expect_split_refused(start, 2, &p, "query_start_loc[2] is 1, must be at least 2");
    expect_split_refused(start + 1, 0, &p, "query_start_loc[0] is 2");
    expect_split_refused(NULL, 0, &p, "query_start_loc is missing");
    p.treat_short_extends_as_decodes = false;
    expect_split_refused(start, 1, &p, "is_prefilling is missing");
    p = tamis_split_params_default();
    p.decode_threshold = 17;
    expect_split_refused(start, 1, &p, "decode_threshold is 17, allowed 1..16");
    p.struct_size = 0;
    expect_split_refused(start, 1, &p, "struct_size is 0");
}

/* ---------------------------------------------------------------- slots */

static void slot_examples(void **state)
{
    (void)state;
    const int32_t start[] = {0, 3, 5, 7}, lens[] = {8, 2, 0}, table[3][3] = {{9, 4, 7}, {3}};
    tamis_batch batch = {.num_reqs = 2,
                         .query_start_loc = start,
                         .seq_lens = lens,
                         .block_table = table[0],
                         .block_table_stride = 3};
    const int32_t expected[] = {17, 18, 19, 12, 13, -1, -1, -1};
    int32_t slots[8];
    assert_int_equal(tamis_batch_slot_mapping(&batch, 4, slots, 8, NULL), TAMIS_STATUS_OK);
    assert_memory_equal(slots, expected, sizeof expected);
    batch.num_reqs = 3; /* two of the three padded tokens belong to a request of length 0 */
    memset(slots, 0x55, sizeof slots);
    assert_int_equal(tamis_batch_slot_mapping(&batch, 4, slots, 8, NULL), TAMIS_STATUS_OK);
    assert_memory_equal(slots, expected, sizeof expected);
}

static void expect_slots_refused(const tamis_batch *batch, int32_t block_tokens, int32_t num_slots,
                                 tamis_status status, const char *part)
{
    int32_t slots[8], untouched[8];
    tamis_error err;
    memset(slots, 0x55, sizeof slots);
    memset(untouched, 0x55, sizeof untouched);
    assert_int_equal(tamis_batch_slot_mapping(batch, block_tokens, slots, num_slots, &err), status);
    expect_text(&err, part);
    assert_memory_equal(slots, untouched, sizeof slots);
}

static void slots_refuse(void **state)
{
    (void)state;
    int32_t start[] = {0, 3, 5}, lens[] = {8, 2}, table[2][3] = {{9, 4, 7}, {3}};
    tamis_batch batch = {.num_reqs = 2,
                         .query_start_loc = start,
                         .seq_lens = lens,
                         .block_table = table[0],
                         .block_table_stride = 3};
    const tamis_status invalid = TAMIS_STATUS_INVALID;
    expect_slots_refused(&batch, 0, 8, invalid, "block_tokens is 0");
    expect_slots_refused(&batch, 4, 4, invalid, "num_slots is 4, allowed 5..");
    table[1][0] = 0;
    expect_slots_refused(&batch, 4, 8, invalid,
                         "request 1: block_table[0] is 0, must be at least 1");
    table[1][0] = 1 << 29;
    expect_slots_refused(&batch, 4, 8, TAMIS_STATUS_LIMIT,
                         "request 1: the slot of position 0 is 2147483648");
    table[1][0] = 3;
    lens[0] = 13;
    expect_slots_refused(&batch, 4, 8, invalid, "request 0: block table holds 3 blocks, 4 needed");
    lens[0] = 2;
    expect_slots_refused(&batch, 4, 8, invalid, "request 0: seq_len is 2, must be at least its 3");
    lens[0] = 0;
    expect_slots_refused(&batch, 4, 8, invalid, "padding stands behind the last real request, 1");
    batch.seq_lens = NULL;
    expect_slots_refused(&batch, 4, 8, invalid, "seq_lens is missing");
    batch.seq_lens = lens;
    batch.block_table = NULL;
    expect_slots_refused(&batch, 4, 8, invalid, "block_table is missing");
}

static void slots_are_split_with_floor(void **state)
{
    (void)state;
    const int32_t slots[] = {-1, -4, -5, 0, 3, 4, 17, INT32_MAX};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        int32_t block, row;
        tamis_slot_split(slots[i], 4, &block, &row);
        assert_in_range(row, 0, 3);
        assert_true((int64_t)block * 4 + row == slots[i]);
    }
    int32_t block, row;
    tamis_slot_split(-1, 128, &block, &row);
    assert_int_equal(block, -1);
    assert_int_equal(row, 127);
}

/* ---------------------------------------------------------------- compressed rows */

/* Requests of n_new tokens behind start, each with a row of a table of two blocks. */
typedef struct row_case {
    int32_t ratio, rows_per_block, n_reqs;
    int32_t start[10], n_new[10], table[10][2];
    int32_t capacity; /* as the specification states it, 0: not stated */
    int32_t n_rows, req[40], block[40], row[40], rope_pos[40];
} row_case;

static void expect_rows(const row_case *c)
{
    int32_t query_start[11] = {0}, lens[10], n_rows = -1;
    tamis_compressed_row rows[40];
    for (int32_t i = 0; i < c->n_reqs; i++) {
        query_start[i + 1] = query_start[i] + c->n_new[i];
        lens[i] = c->start[i] + c->n_new[i];
    }
    const tamis_batch batch = {.num_reqs = c->n_reqs,
                               .query_start_loc = query_start,
                               .seq_lens = lens,
                               .block_table = c->table[0],
                               .block_table_stride = 2};
    const int32_t capacity =
        tamis_compressed_rows_capacity(query_start[c->n_reqs], c->n_reqs, c->ratio);
    if (c->capacity > 0)
        assert_int_equal(capacity, c->capacity);
    assert_in_range(capacity, c->n_rows, 40);
    assert_int_equal(tamis_batch_compressed_rows(&batch, c->ratio, c->rows_per_block, rows,
                                                 capacity, &n_rows, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(n_rows, c->n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        assert_int_equal(rows[i].req, c->req[i]);
        assert_int_equal(rows[i].block, c->block[i]);
        assert_int_equal(rows[i].row, c->row[i]);
        assert_int_equal(rows[i].rope_pos, c->rope_pos[i]);
        assert_int_equal(rows[i].idx, c->rope_pos[i] / c->ratio);
    }
    for (int32_t i = n_rows; i < capacity; i++) {
        assert_int_equal(rows[i].req, -1);
        assert_int_equal(rows[i].block, -1);
        assert_int_equal(rows[i].row, c->rows_per_block - 1);
    }
}

static void row_examples(void **state)
{
    (void)state;
    const row_case cases[] = {
        /* runtime 3.5: slots 37, 38, 39 in blocks of 4 rows; slot 11 in blocks of 2 */
        {.ratio = 4,
         .rows_per_block = 4,
         .n_reqs = 1,
         .start = {6},
         .n_new = {11},
         .table = {{9, 4}},
         .n_rows = 3,
         .block = {9, 9, 9},
         .row = {1, 2, 3},
         .rope_pos = {4, 8, 12}},
        {.ratio = 128,
         .rows_per_block = 2,
         .n_reqs = 1,
         .start = {250},
         .n_new = {10},
         .table = {{5}},
         .n_rows = 1,
         .block = {5},
         .row = {1},
         .rope_pos = {128}},
        /* V4 attention 8.5, blocks of 128 rows */
        {.ratio = 4,
         .rows_per_block = 128,
         .n_reqs = 2,
         .start = {130, 133},
         .n_new = {2, 2},
         .table = {{5}, {6}},
         .capacity = 3,
         .n_rows = 1,
         .block = {5},
         .row = {32},
         .rope_pos = {128}},
        {.ratio = 4,
         .rows_per_block = 128,
         .n_reqs = 1,
         .start = {508},
         .n_new = {8},
         .table = {{10, 11}},
         .n_rows = 2,
         .block = {10, 11},
         .row = {127, 0},
         .rope_pos = {508, 512}},
        {.ratio = 128,
         .rows_per_block = 128,
         .n_reqs = 1,
         .start = {16256},
         .n_new = {256},
         .table = {{20, 21}},
         .n_rows = 2,
         .block = {20, 21},
         .row = {127, 0},
         .rope_pos = {16256, 16384}},
        {.ratio = 128,
         .rows_per_block = 128,
         .n_reqs = 2,
         .start = {254, 257},
         .n_new = {2, 2},
         .table = {{7}, {8}},
         .capacity = 2,
         .n_rows = 1,
         .block = {7},
         .row = {1},
         .rope_pos = {128}},
        {.ratio = 4,
         .rows_per_block = 128,
         .n_reqs = 10,
         .start = {126, 127, 128, 129, 130, 131, 132, 133, 134, 135},
         .n_new = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
         .table = {{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}},
         .capacity = 15,
         .n_rows = 6,
         .req = {0, 1, 4, 5, 8, 9},
         .block = {1, 2, 5, 6, 9, 10},
         .row = {31, 31, 32, 32, 33, 33},
         .rope_pos = {124, 124, 128, 128, 132, 132}},
        {.ratio = 128,
         .rows_per_block = 128,
         .n_reqs = 4,
         .start = {0, 127, 254, 512},
         .n_new = {131, 260, 130, 10},
         .table = {{1}, {2}, {3}, {4}},
         .capacity = 8,
         .n_rows = 6,
         .req = {0, 1, 1, 1, 2, 2},
         .block = {1, 2, 2, 2, 3, 3},
         .row = {0, 0, 1, 2, 1, 2},
         .rope_pos = {0, 0, 128, 256, 128, 256}},
        /* nothing closes; one row for every token */
        {.ratio = 4,
         .rows_per_block = 64,
         .n_reqs = 2,
         .start = {0, 8},
         .n_new = {3, 0},
         .table = {{1}, {2}},
         .n_rows = 0},
        {.ratio = 1,
         .rows_per_block = 2,
         .n_reqs = 1,
         .start = {1},
         .n_new = {2},
         .table = {{3, 4}},
         .capacity = 2,
         .n_rows = 2,
         .block = {3, 4},
         .row = {1, 0},
         .rope_pos = {1, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_rows(&cases[i]);
    assert_int_equal(tamis_compressed_rows_capacity(13, 3, 1), 13);
    assert_int_equal(tamis_compressed_rows_capacity(13, 3, 4), 6);
    assert_int_equal(tamis_compressed_rows_capacity(13, 3, 128), 3);
}

/* The first line of 8.5: 32 rows in block 1 and one unused entry. */
static void rows_of_a_prompt(void **state)
{
    (void)state;
    row_case c = {.ratio = 4,
                  .rows_per_block = 128,
                  .n_reqs = 1,
                  .n_new = {131},
                  .table = {{1, 0}},
                  .capacity = 33,
                  .n_rows = 32};
    for (int32_t j = 0; j < 32; j++) {
        c.block[j] = 1;
        c.row[j] = j;
        c.rope_pos[j] = 4 * j;
    }
    expect_rows(&c);
}

static void rows_refuse(void **state)
{
    (void)state;
    const int32_t start[] = {0, 8}, lens[] = {8};
    int32_t table[] = {0, 2}, n_rows = 77;
    tamis_compressed_row rows[4];
    tamis_error err;
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = start,
                               .seq_lens = lens,
                               .block_table = table,
                               .block_table_stride = 2};
    const struct {
        int32_t ratio, rows_per_block, capacity;
        tamis_status status;
        const char *part;
    } cases[] = {
        {0, 2, 4, TAMIS_STATUS_INVALID, "ratio is 0"},
        {4, 0, 4, TAMIS_STATUS_INVALID, "rows_per_block is 0"},
        {4, 2, 4, TAMIS_STATUS_INVALID, "request 0: block_table[0] is 0, must be at least 1"},
        {2, 1, 4, TAMIS_STATUS_INVALID, "request 0: block table holds 2 blocks, 4 needed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tamis_batch_compressed_rows(&batch, cases[i].ratio,
                                                     cases[i].rows_per_block, rows,
                                                     cases[i].capacity, &n_rows, &err),
                         cases[i].status);
        expect_text(&err, cases[i].part);
    }
    table[0] = 1;
    assert_int_equal(tamis_batch_compressed_rows(&batch, 4, 2, rows, 1, &n_rows, &err),
                     TAMIS_STATUS_LIMIT);
    expect_text(&err, "2 rows of ratio 4 close, capacity is 1");
    assert_int_equal(n_rows, 77);
}

/* ---------------------------------------------------------------- at the edges */

static void capacity_and_split_have_an_answer_for_all_values(void **state)
{
    (void)state;
    const int32_t max = INT32_MAX, min = INT32_MIN;
    assert_int_equal(tamis_compressed_rows_capacity(max, max, 1), max);
    assert_int_equal(tamis_compressed_rows_capacity(max, max, 4), max);
    assert_int_equal(tamis_compressed_rows_capacity(max, 5, 4), max / 4 + 5);
    const int32_t none[][3] = {{13, 3, 0},  {13, 3, -4},  {13, 3, min},    {-1, 3, 4},
                               {13, -1, 4}, {min, 3, -1}, {min, min, min}, {0, 3, 4}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(tamis_compressed_rows_capacity(none[i][0], none[i][1], none[i][2]), 0);
    const int32_t no_blocks[] = {0, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof no_blocks / sizeof *no_blocks; i++) {
        int32_t block = 77, row = 77;
        tamis_slot_split(i == 0 ? 5 : min, no_blocks[i], &block, &row);
        assert_int_equal(block, -1);
        assert_int_equal(row, -1);
    }
}

static void expect_null_named(tamis_status status, const tamis_error *err, const char *name)
{
    assert_int_equal(status, TAMIS_STATUS_INVALID);
    expect_text(err, name);
    expect_text(err, "is NULL");
}

static void missing_arguments_are_named(void **state)
{
    (void)state;
    const int32_t start[] = {0, 2, 3}, lens[] = {2, 1}, table[] = {1, 2};
    const tamis_batch batch = {.num_reqs = 2,
                               .query_start_loc = start,
                               .seq_lens = lens,
                               .block_table = table,
                               .block_table_stride = 1};
    const tamis_split_params p = tamis_split_params_default();
    tamis_swap swaps[1];
    tamis_split split;
    tamis_compressed_row rows[3];
    int32_t n, slots[3];
    tamis_error e;
    expect_null_named(tamis_batch_reorder(NULL, 2, 1, swaps, &n, &e), &e, "query_lens");
    expect_null_named(tamis_batch_reorder(lens, 2, 1, NULL, &n, &e), &e, "swaps");
    expect_null_named(tamis_batch_reorder(lens, 2, 1, swaps, NULL, &e), &e, "num_swaps");
    expect_null_named(tamis_batch_split(start, 2, NULL, &split, &e), &e, "params");
    expect_null_named(tamis_batch_split(start, 2, &p, NULL, &e), &e, "out");
    expect_null_named(tamis_batch_slot_mapping(NULL, 4, slots, 3, &e), &e, "batch");
    expect_null_named(tamis_batch_slot_mapping(&batch, 4, NULL, 3, &e), &e, "slot_mapping");
    expect_null_named(tamis_batch_compressed_rows(NULL, 1, 2, rows, 3, &n, &e), &e, "batch");
    expect_null_named(tamis_batch_compressed_rows(&batch, 1, 2, NULL, 3, &n, &e), &e, "rows");
    expect_null_named(tamis_batch_compressed_rows(&batch, 1, 2, rows, 3, NULL, &e), &e, "num_rows");
    /* what is not needed may be missing */
    assert_int_equal(tamis_batch_reorder(NULL, 0, 1, NULL, &n, &e), TAMIS_STATUS_OK);
    assert_int_equal(tamis_batch_reorder(lens, 1, 1, NULL, &n, &e), TAMIS_STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reorder_examples),
        cmocka_unit_test(reorder_refuses),
        cmocka_unit_test(split_examples),
        cmocka_unit_test(split_refuses),
        cmocka_unit_test(slot_examples),
        cmocka_unit_test(slots_refuse),
        cmocka_unit_test(row_examples),
        cmocka_unit_test(rows_of_a_prompt),
        cmocka_unit_test(rows_refuse),
        cmocka_unit_test(slots_are_split_with_floor),
        cmocka_unit_test(capacity_and_split_have_an_answer_for_all_values),
        cmocka_unit_test(missing_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
