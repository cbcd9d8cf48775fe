/* Batch -> step, closed rows, partition: the worked examples of the specs, bad batches, properties.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/partition.h"
#include "plan/closed_rows.h"
#include "support/rng.h"

typedef struct fixture {
    tamis_step step;
    tamis_closed_rows rows;
    void *memory;
} fixture;

static void layout(fixture *f, tamis_arena *arena)
{
    tamis_step_layout(&f->step, arena);
    tamis_closed_rows_layout(&f->rows, 4096, arena);
}

static void open_fixture(fixture *f, int32_t max_tokens, int32_t max_reqs, int32_t max_model_len)
{
    *f = (fixture){.step = {.max_tokens = max_tokens,
                            .max_reqs = max_reqs,
                            .max_model_len = max_model_len,
                            .block_tokens = 256,
                            .n_blocks = 1000,
                            .n_slots = max_reqs}};
    tamis_arena arena = {0};
    layout(f, &arena);
    f->memory = tamis_mem_alloc(TAMIS_MEM_MISC, arena.used);
    assert_non_null(f->memory);
    arena = (tamis_arena){.base = f->memory, .bytes = arena.used};
    layout(f, &arena);
}

static void close_fixture(fixture *f)
{
    tamis_mem_free(f->memory);
}

/* Requests of (start, new) with blocks 1, 2, 3, ... of their own. */
static tamis_status build(fixture *f, int32_t n, const int32_t *start, const int32_t *n_new,
                          tamis_error *err)
{
    static int32_t query_start[65], seq_lens[64], slots[64], table[64][64];
    query_start[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        query_start[i + 1] = query_start[i] + n_new[i];
        seq_lens[i] = start[i] + n_new[i];
        slots[i] = i;
        for (int32_t b = 0; b < 64; b++)
            table[i][b] = 1 + (i * 64 + b) % 999;
    }
    const tamis_batch batch = {.num_reqs = n,
                               .query_start_loc = query_start,
                               .seq_lens = seq_lens,
                               .block_table = table[0],
                               .block_table_stride = 64,
                               .slots = slots};
    return tamis_step_build(&f->step, &batch, err);
}

static void test_positions(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 8, 4, 1024);
    assert_int_equal(build(&f, 2, (int32_t[]){5, 0}, (int32_t[]){3, 2}, NULL), TAMIS_STATUS_OK);
    assert_int_equal(f.step.n_tokens, 5);
    assert_memory_equal(f.step.tok_pos, ((int32_t[]){5, 6, 7, 0, 1}), 5 * sizeof(int32_t));
    assert_memory_equal(f.step.tok_req, ((int32_t[]){0, 0, 0, 1, 1}), 5 * sizeof(int32_t));
    assert_int_equal(f.step.start_pos[0], 5);
    assert_int_equal(f.step.seq_len[0], 8);
    close_fixture(&f);
}

static void expect_rows(fixture *f, int32_t ratio, int32_t n, const int32_t *req,
                        const int32_t *idx)
{
    tamis_closed_rows_build(&f->rows, &f->step, ratio);
    assert_int_equal(f->rows.n, n);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(f->rows.req[i], req[i]);
        assert_int_equal(f->rows.idx[i], idx[i]);
    }
}

/* Worked examples: which rows a step closes. */
static void test_closed_rows_examples(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 1024, 16, 16384 + 512);
    /* ten tokens of ratio 4: rows 0 and 1, tokens 8 and 9 stay open */
    assert_int_equal(build(&f, 1, (int32_t[]){0}, (int32_t[]){10}, NULL), TAMIS_STATUS_OK);
    expect_rows(&f, 4, 2, (int32_t[]){0, 0}, (int32_t[]){0, 1});
    /* start 6, 11 tokens: rows 1, 2, 3 */
    assert_int_equal(build(&f, 1, (int32_t[]){6}, (int32_t[]){11}, NULL), TAMIS_STATUS_OK);
    expect_rows(&f, 4, 3, (int32_t[]){0, 0, 0}, (int32_t[]){1, 2, 3});
    /* ratio 128, start 250, 10 tokens: row 1 */
    assert_int_equal(build(&f, 1, (int32_t[]){250}, (int32_t[]){10}, NULL), TAMIS_STATUS_OK);
    expect_rows(&f, 128, 1, (int32_t[]){0}, (int32_t[]){1});
    /* ten requests at 126..135, two tokens each: requests 0,1 (31), 4,5 (32), 8,9 (33) */
    int32_t start[10], n_new[10];
    for (int i = 0; i < 10; i++) {
        start[i] = 126 + i;
        n_new[i] = 2;
    }
    assert_int_equal(build(&f, 10, start, n_new, NULL), TAMIS_STATUS_OK);
    expect_rows(&f, 4, 6, (int32_t[]){0, 1, 4, 5, 8, 9}, (int32_t[]){31, 31, 32, 32, 33, 33});
    /* lengths 131, 260, 130, 10 at 0, 127, 254, 512 with ratio 128 */
    assert_int_equal(
        build(&f, 4, (int32_t[]){0, 127, 254, 512}, (int32_t[]){131, 260, 130, 10}, NULL),
        TAMIS_STATUS_OK);
    expect_rows(&f, 128, 6, (int32_t[]){0, 1, 1, 1, 2, 2}, (int32_t[]){0, 0, 1, 2, 1, 2});
    close_fixture(&f);
}

static void test_visible_rows(void **state)
{
    (void)state;
    const int32_t expected[13] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3};
    for (int32_t p = 0; p < 13; p++)
        assert_int_equal(tamis_visible_rows(p, 4), expected[p]);
    assert_int_equal(tamis_visible_rows(126, 128), 0);
    assert_int_equal(tamis_visible_rows(127, 128), 1);
    assert_int_equal(tamis_visible_rows(254, 128), 1);
    assert_int_equal(tamis_visible_rows(255, 128), 2);
    assert_int_equal(tamis_visible_rows(383, 128), 3);
    assert_int_equal(tamis_visible_rows(2050, 4), 512);
    assert_int_equal(tamis_visible_rows(2051, 4), 513);
    assert_int_equal(tamis_visible_rows(5000, 0), 0);
    assert_int_equal(tamis_closed_rows_capacity(13, 3, 1), 13);
    assert_int_equal(tamis_closed_rows_capacity(13, 3, 4), 6);
    assert_int_equal(tamis_closed_rows_capacity(13, 3, 128), 3);
}

/* Rows counted over any cut of 0..300 tokens: n / r after n tokens, capacity never exceeded. */
static void test_row_counts(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("plan row counts", 1);
    fixture f;
    open_fixture(&f, 600, 4, 1024);
    for (int32_t ratio = 4; ratio <= 128; ratio += 124) {
        int32_t len = 0, rows = 0;
        while (len < 300) {
            const int32_t n_new = (int32_t)(test_rng_u64(&rng) % 40);
            assert_int_equal(build(&f, 1, &len, &n_new, NULL), TAMIS_STATUS_OK);
            tamis_closed_rows_build(&f.rows, &f.step, ratio);
            assert_true(f.rows.n <= tamis_closed_rows_capacity(n_new, 1, ratio));
            for (int32_t i = 0; i < f.rows.n; i++)
                assert_int_equal(f.rows.idx[i], rows++);
            len += n_new;
            assert_int_equal(rows, len / ratio);
        }
    }
    close_fixture(&f);
}

static void expect_error(fixture *f, const tamis_batch *batch, tamis_status status,
                         const char *part)
{
    tamis_error err = {0};
    assert_int_equal(tamis_step_build(&f->step, batch, &err), status);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
}

static void test_bad_batches(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 16, 2, 512);
    int32_t start[4] = {0, 4, 8, 9}, lens[3] = {4, 4, 1}, slots[3] = {0, 1, 0};
    int32_t table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    const tamis_batch good = {2, start, lens, table[0], 2, slots, NULL};
    tamis_batch batch = good;
    assert_int_equal(tamis_step_build(&f.step, &batch, NULL), TAMIS_STATUS_OK);
    batch.num_reqs = 3;
    expect_error(&f, &batch, TAMIS_STATUS_LIMIT, "num_reqs is 3, allowed 0..2");
    batch = good;
    start[0] = 1;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "query_start_loc[0] is 1");
    start[0] = 0;
    start[1] = 9;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "query_start_loc[2] is 8, must be at least 9");
    start[1] = 4;
    start[2] = 17;
    expect_error(&f, &batch, TAMIS_STATUS_LIMIT, "17 tokens, allowed 0..16");
    start[2] = 8;
    lens[1] = 3;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "request 1: seq_len is 3");
    lens[1] = 513;
    expect_error(&f, &batch, TAMIS_STATUS_LIMIT, "request 1: seq_len is 513, allowed 0..512");
    lens[1] = 4;
    slots[1] = 2;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "slot is 2, allowed 0..1");
    slots[1] = 0;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "slot 0 belongs to request 0");
    slots[1] = 1;
    table[1][0] = 0;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "block_table[0] is 0, allowed 1..999");
    table[1][0] = 1000;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "block_table[0] is 1000");
    table[1][0] = -5;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "block_table[0] is -5");
    table[1][0] = 1;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID,
                 "request 0: block_table[0] is 1, which request 1 writes");
    table[1][0] = 3;
    batch.block_table_stride = 0;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "block table holds 0 blocks, 1 needed");
    batch.block_table_stride = INT64_MAX;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID,
                 "block_table_stride is 9223372036854775807, allowed 0..");
    batch.block_table_stride = INT64_MIN;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "block_table_stride is -9223372036854775808");
    batch = good;
    assert_int_equal(tamis_step_build(&f.step, &batch, NULL), TAMIS_STATUS_OK);
    close_fixture(&f);
}

/* Blocks that hold only tokens before the step may be shared; one that is written may not. */
static void test_shared_blocks(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 16, 2, 1024);
    const int32_t start[3] = {0, 1, 2}, slots[2] = {0, 1};
    int32_t lens[2] = {257, 300}, table[2][4] = {{7, 8, 0, 0}, {7, 9, 0, 0}};
    const tamis_batch batch = {2, start, lens, table[0], 4, slots, NULL};
    assert_int_equal(tamis_step_build(&f.step, &batch, NULL), TAMIS_STATUS_OK);
    table[1][1] = 8;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID,
                 "request 0: block_table[1] is 8, which request 1");
    table[1][1] = 7;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID,
                 "request 0: block_table[0] is 7, which request 1");
    lens[0] = 600;
    table[1][1] = 9;
    table[0][2] = 7;
    expect_error(&f, &batch, TAMIS_STATUS_INVALID, "through block_table[2]");
    table[0][2] = 10;
    assert_int_equal(tamis_step_build(&f.step, &batch, NULL), TAMIS_STATUS_OK);
    close_fixture(&f);
}

/* Every unit belongs to exactly one thread, threads in unit order, balanced within a unit or item.
 */
static void check_partition(test_rng *rng, int32_t n_items, int32_t n_threads)
{
    static int64_t unit_start[301], bounds[65];
    static int32_t first_item[64];
    tamis_partition p = {n_items, n_threads, unit_start, bounds, first_item, false};
    int64_t largest = 1;
    unit_start[0] = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const int64_t units = (int64_t)(test_rng_u64(rng) % 5) * (int64_t)(test_rng_u64(rng) % 7);
        unit_start[i + 1] = unit_start[i] + units;
        largest = units > largest ? units : largest;
    }
    tamis_partition_build(&p);
    int64_t covered = 0, splits = 0;
    for (int32_t t = 0; t < n_threads; t++)
        for (int32_t item = p.first_item[t]; item < n_items; item++) {
            int64_t begin, end;
            if (!tamis_partition_part(&p, t, item, &begin, &end))
                continue;
            assert_int_equal(unit_start[item] + begin, covered);
            covered += end - begin;
            splits += end - begin < tamis_partition_units(&p, item);
        }
    assert_int_equal(covered, unit_start[n_items]);
    assert_int_equal(splits > 0, p.has_split_items);
    if (n_items >= 4 * n_threads)
        assert_false(p.has_split_items);
    for (int32_t t = 0; t < n_threads; t++)
        assert_true(bounds[t + 1] - bounds[t] <= unit_start[n_items] / n_threads + largest + 1);
}

static void test_partition(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("partition", 2);
    for (int round = 0; round < 2000; round++)
        check_partition(&rng, (int32_t)(test_rng_u64(&rng) % (round % 2 ? 9 : 300)),
                        1 + (int32_t)(test_rng_u64(&rng) % 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions),    cmocka_unit_test(test_closed_rows_examples),
        cmocka_unit_test(test_visible_rows), cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_bad_batches),  cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_partition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
