/*
 * Layers of both families driven by hand-made batch descriptions: the example of the specification
 * end to end, padded buckets against unpadded steps, dummy runs, serial order, what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "support/batch_rig.h"
#include "support/engine_run.h"
#include "support/sanitized.h"

#define HIDDEN   TEST_BATCH_HIDDEN
#define COLUMNS  80
#define N_ROUNDS (TEST_IS_SANITIZED ? 12 : 60)

typedef struct sequence {
    int32_t slot, len, table[COLUMNS];
} sequence;

/* A batch description with the arrays it points to. */
typedef struct hand {
    int32_t n_reqs, query_start[TEST_BATCH_REQS + 1], seq_lens[TEST_BATCH_REQS];
    int32_t slots[TEST_BATCH_REQS], table[TEST_BATCH_REQS][COLUMNS];
    int32_t slot_mapping[TEST_BATCH_TOKENS];
} hand;

static void add(hand *h, sequence *seq, int32_t n_new)
{
    const int32_t i = h->n_reqs++;
    assert_true(i < TEST_BATCH_REQS);
    seq->len += n_new;
    h->query_start[i + 1] = h->query_start[i] + n_new;
    h->seq_lens[i] = seq->len;
    h->slots[i] = seq->slot;
    memcpy(h->table[i], seq->table, sizeof seq->table);
}

/* As a runner leaves a padded request: length 0, a row of null blocks, slot -1. */
static void add_padding(hand *h, int32_t n_tokens)
{
    sequence padding = {.slot = -1};
    add(h, &padding, n_tokens);
    h->seq_lens[h->n_reqs - 1] = 0;
}

static tamis_batch describe(const hand *h)
{
    return (tamis_batch){.num_reqs = h->n_reqs,
                         .query_start_loc = h->query_start,
                         .seq_lens = h->seq_lens,
                         .block_table = h->table[0],
                         .block_table_stride = COLUMNS,
                         .slots = h->slots};
}

static int32_t num_tokens(const hand *h)
{
    return h->query_start[h->n_reqs];
}

/* With the slots an engine would compute. */
static tamis_batch describe_with_slots(hand *h, int32_t block_tokens)
{
    tamis_batch batch = describe(h);
    assert_int_equal(
        tamis_batch_slot_mapping(&batch, block_tokens, h->slot_mapping, TEST_BATCH_TOKENS, NULL),
        TAMIS_STATUS_OK);
    batch.slot_mapping = h->slot_mapping;
    return batch;
}

static void run(test_batch_rig *rig, const tamis_batch *batch, const float *x, float *out)
{
    tamis_error err;
    test_must(test_batch_plan(rig, batch, &err), &err, "plan");
    test_batch_forward(rig, x, out);
}

static const float *row(const float *x, int64_t i)
{
    return x + i * HIDDEN;
}

static void assert_rows_equal(const float *a, const float *b, int32_t n)
{
    assert_memory_equal(a, b, (size_t)n * HIDDEN * sizeof *a);
}

static void assert_zero(const float *x, int32_t n)
{
    static const float zeros[TEST_BATCH_TOKENS * HIDDEN];
    assert_memory_equal(x, zeros, (size_t)n * HIDDEN * sizeof *x);
}

/* ---------------------------------------------------------------- the example by hand */

/* A: c tokens are there, 3 come, table 9 4 7. B: 2 tokens come, table 3. Padded to 8 tokens. */
typedef struct example {
    test_family family;
    int32_t block_tokens, c;
    int32_t slots[8];
} example;

/* All n tokens of a sequence in one step of its own. */
static void run_alone(const example *e, const float *x, int32_t n, float *out)
{
    test_batch_rig rig = test_batch_rig_open(e->family, e->block_tokens, 1, false, 5);
    sequence seq = {.slot = 1, .table = {1, 2, 6}};
    hand h = {0};
    add(&h, &seq, n);
    const tamis_batch batch = describe(&h);
    float *all = test_inputs(TEST_BATCH_LAYERS * n, HIDDEN, &(test_rng){1});
    for (int32_t done = 0; done < n; done += TEST_BATCH_TOKENS) { /* in steps that fit */
        const int32_t count = n - done < TEST_BATCH_TOKENS ? n - done : TEST_BATCH_TOKENS;
        seq.len = done;
        h = (hand){0};
        add(&h, &seq, count);
        run(&rig, &batch, row(x, done), all);
        for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++)
            memcpy(out + ((int64_t)i * n + done) * HIDDEN, row(all, (int64_t)i * count),
                   (size_t)count * HIDDEN * sizeof *out);
    }
    free(all);
    test_batch_rig_close(&rig);
}

static void feed(test_batch_rig *rig, sequence *seq, const float *x, int32_t n)
{
    static float out[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    for (int32_t done = 0; done < n;) {
        hand h = {0};
        const int32_t count = n - done < 50 ? n - done : 50;
        add(&h, seq, count);
        const tamis_batch batch = describe(&h);
        run(rig, &batch, row(x, done), out);
        done += count;
    }
}

static void check_example(const example *e)
{
    test_rng rng = test_rng_start("example", 3);
    const int32_t n_a = e->c + 3, n_b = 2;
    float *x_a = test_inputs(n_a, HIDDEN, &rng), *x_b = test_inputs(n_b, HIDDEN, &rng);
    float *alone_a = test_take((int64_t)TEST_BATCH_LAYERS * n_a * HIDDEN, sizeof(float));
    float *alone_b = test_take((int64_t)TEST_BATCH_LAYERS * n_b * HIDDEN, sizeof(float));
    run_alone(e, x_a, n_a, alone_a);
    run_alone(e, x_b, n_b, alone_b);

    test_batch_rig rig = test_batch_rig_open(e->family, e->block_tokens, 2, false, 5);
    sequence a = {.slot = 5, .table = {9, 4, 7}}, b = {.slot = 2, .table = {3}};
    feed(&rig, &a, x_a, e->c);
    hand h = {0};
    add(&h, &a, 3);
    add(&h, &b, 2);
    add_padding(&h, 3);
    const tamis_batch batch = describe_with_slots(&h, e->block_tokens);
    assert_memory_equal(h.query_start, ((int32_t[]){0, 3, 5, 8}), 4 * sizeof(int32_t));
    assert_memory_equal(h.slot_mapping, e->slots, sizeof e->slots);
    float x[8 * HIDDEN], out[TEST_BATCH_LAYERS * 8 * HIDDEN];
    memcpy(x, row(x_a, e->c), 3 * HIDDEN * sizeof *x);
    memcpy(x + 3 * HIDDEN, x_b, 2 * HIDDEN * sizeof *x);
    for (int32_t i = 5 * HIDDEN; i < 8 * HIDDEN; i++)
        x[i] = NAN;
    run(&rig, &batch, x, out);
    const tamis_step_view step = test_batch_step(&rig);
    const int32_t positions[] = {e->c, e->c + 1, e->c + 2, 0, 1};
    assert_memory_equal(step.positions, positions, sizeof positions);
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        assert_rows_equal(row(out, 8 * i), row(alone_a, i * n_a + e->c), 3);
        assert_rows_equal(row(out, 8 * i + 3), row(alone_b, i * n_b), 2);
        assert_zero(row(out, 8 * i + 5), 3);
    }
    test_batch_rig_close(&rig);
    free(x_a), free(x_b), free(alone_a), free(alone_b);
}

static void example_v32(void **state)
{
    (void)state;
    check_example(&(example){TEST_V32, 4, 5, {17, 18, 19, 12, 13, -1, -1, -1}});
}

/* The same with V4's blocks of 128 tokens: positions 126, 127, 128 close rows of both ratios. */
static void example_v4(void **state)
{
    (void)state;
    check_example(&(example){
        TEST_V4, 128, 126, {9 * 128 + 126, 9 * 128 + 127, 4 * 128, 384, 385, -1, -1, -1}});
}

/* What the plan says of the V4 example: window 16, top-k 4. */
static void views_of_the_example(void **state)
{
    (void)state;
    test_batch_rig rig = test_batch_rig_open(TEST_V4, 128, 2, false, 5);
    sequence a = {.slot = 5, .len = 126, .table = {9, 4, 7}}, b = {.slot = 2, .table = {3}};
    hand h = {0};
    add(&h, &a, 3);
    add(&h, &b, 2);
    add_padding(&h, 3);
    const tamis_batch batch = describe(&h);
    tamis_error err;
    test_must(test_batch_plan(&rig, &batch, &err), &err, "plan");
    const tamis_step_view step = test_batch_step(&rig);
    assert_int_equal(step.num_tokens, 5);
    assert_int_equal(step.num_input_tokens, 8);
    assert_int_equal(step.num_reqs, 2);
    assert_memory_equal(step.start_pos, ((int32_t[]){126, 0}), 2 * sizeof(int32_t));
    assert_memory_equal(step.req_of_token, ((int32_t[]){0, 0, 0, 1, 1}), 5 * sizeof(int32_t));
    const int32_t lists[3][5] = {{16, 16, 16, 1, 2}, {20, 20, 20, 1, 2}, {16, 17, 17, 1, 2}};
    const int32_t visible[3][5] = {{0}, {31, 32, 32, 0, 0}, {0, 1, 1, 0, 0}};
    const int32_t closed[3] = {0, 1, 1}, row_number[3] = {0, 31, 0};
    for (int32_t i = 0; i < 3; i++) {
        const tamis_layer_plan_view layer = test_batch_layer(&rig, i);
        assert_memory_equal(layer.list_len, lists[i], sizeof lists[i]);
        assert_memory_equal(layer.visible_rows, visible[i], sizeof visible[i]);
        assert_int_equal(layer.num_closed_rows, closed[i]);
        if (closed[i] > 0) {
            assert_int_equal(layer.closed_req[0], 0);
            assert_int_equal(layer.closed_row[0], row_number[i]);
        }
        assert_int_equal(layer.attention.unit_start[5], 5); /* lists of one chunk each */
        assert_int_equal(layer.index_scores.num_items, i == 1 ? 5 : 0);
    }
    assert_null(test_batch_layer(&rig, 3).list_len);
    assert_null(test_batch_layer(&rig, -1).list_len);
    test_batch_rig_close(&rig);
}

/* ---------------------------------------------------------------- buckets */

/* Sequences with blocks of their own, in descending order. */
static void open_sequences(sequence *seqs, int32_t n, int32_t block_tokens)
{
    const int32_t n_columns = (TEST_BATCH_LEN + block_tokens - 1) / block_tokens;
    assert_true(n_columns <= COLUMNS);
    for (int32_t i = 0; i < n; i++) {
        seqs[i] = (sequence){.slot = i};
        for (int32_t c = 0; c < n_columns; c++)
            seqs[i].table[c] = TEST_BATCH_REQS * n_columns - (i * n_columns + c);
    }
}

/* Some of the sequences, 1 + k tokens each or of mixed lengths. */
static void pick_requests(hand *h, sequence *seqs, int32_t n_seqs, int32_t k, test_rng *rng)
{
    for (int32_t i = 0; i < n_seqs; i++) {
        const int32_t n_new = k >= 0 ? 1 + k : (int32_t)test_rng_int(rng, 0, 12);
        if (test_rng_u64(rng) % 3 == 0 || seqs[i].len + n_new > TEST_BATCH_LEN)
            continue;
        add(h, &seqs[i], n_new);
    }
}

/* The bucket's remaining requests; one of them takes what is missing, or each has 1 + k tokens. */
static void pad(hand *h, int32_t k, test_rng *rng)
{
    while (h->n_reqs < TEST_BATCH_REQS) {
        const int32_t left = TEST_BATCH_TOKENS - num_tokens(h);
        const int32_t n = k >= 0 ? 1 + k : (int32_t)test_rng_int(rng, 0, left);
        add_padding(h, n < left ? n : left);
    }
}

static float *padded_inputs(const hand *h, int32_t n_real, test_rng *rng)
{
    float *x = test_inputs(num_tokens(h), HIDDEN, rng);
    for (int64_t i = (int64_t)n_real * HIDDEN; i < (int64_t)num_tokens(h) * HIDDEN; i++)
        x[i] = i % 2 ? NAN : INFINITY;
    return x;
}

static void assert_same_caches(const test_batch_rig *a, const test_batch_rig *b)
{
    size_t n_a, n_b;
    uint8_t *bytes_a = test_batch_bytes(a, &n_a), *bytes_b = test_batch_bytes(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a), free(bytes_b);
}

/* One step unpadded in one rig and as a bucket in the other: outputs, caches, nothing else. */
static void compare_step(test_batch_rig *plain, test_batch_rig *bucket, const hand *real, hand *h,
                         test_rng *rng)
{
    static float expected[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    static float out[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    const int32_t n_real = num_tokens(real), n = num_tokens(h);
    float *x = padded_inputs(h, n_real, rng);
    const tamis_batch unpadded = describe(real);
    const tamis_batch padded = describe_with_slots(h, bucket->block_tokens);
    size_t n_bytes;
    uint8_t *before = test_batch_bytes(bucket, &n_bytes);
    memset(out, 0x55, sizeof out);
    run(plain, &unpadded, x, expected);
    run(bucket, &padded, x, out);
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        assert_rows_equal(row(out, (int64_t)i * n), row(expected, (int64_t)i * n_real), n_real);
        assert_zero(row(out, (int64_t)i * n + n_real), n - n_real);
    }
    assert_same_caches(plain, bucket);
    test_batch_assert_only_own_rows(bucket, &padded, before);
    free(before), free(x);
}

/* A dummy run between steps: zeros, no byte of any cache. */
static void run_dummy(test_batch_rig *rig, int32_t n)
{
    const size_t n_floats = (size_t)TEST_BATCH_LAYERS * (size_t)n * HIDDEN;
    float *out = test_take((int64_t)n_floats, sizeof *out);
    tamis_error err;
    size_t n_bytes;
    uint8_t *before = test_batch_bytes(rig, &n_bytes);
    for (size_t i = 0; i < n_floats; i++)
        out[i] = NAN;
    test_must(test_batch_plan_dummy(rig, n, &err), &err, "dummy");
    assert_int_equal(test_batch_step(rig).num_tokens, 0);
    assert_int_equal(test_batch_step(rig).num_input_tokens, n);
    test_batch_forward(rig, NULL, out); /* x is not read */
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++)
        assert_zero(row(out, (int64_t)i * n), n);
    uint8_t *after = test_batch_bytes(rig, &n_bytes);
    assert_memory_equal(before, after, n_bytes);
    free(before), free(after), free(out);
}

static void check_buckets(test_family family, int32_t block_tokens)
{
    test_rng rng = test_rng_start(family == TEST_V4 ? "buckets of V4" : "buckets of V3.2", 11);
    test_batch_rig plain = test_batch_rig_open(family, block_tokens, 1, false, 7);
    test_batch_rig bucket = test_batch_rig_open(family, block_tokens, 2, false, 7);
    sequence seqs[5];
    open_sequences(seqs, 5, block_tokens);
    const tamis_step_view first = test_batch_step(&bucket);
    for (int32_t i = 0; i < N_ROUNDS; i++) {
        const int32_t k = (int32_t)test_rng_int(&rng, -1, 3);
        hand real = {0};
        pick_requests(&real, seqs, 5, k, &rng);
        hand h = real;
        pad(&h, k, &rng);
        compare_step(&plain, &bucket, &real, &h, &rng);
        if (i % 4 == 0)
            run_dummy(&bucket, i == 0 ? 1 : (int32_t)test_rng_int(&rng, 0, TEST_BATCH_TOKENS));
        const tamis_step_view now = test_batch_step(&bucket);
        assert_ptr_equal(now.positions, first.positions);
        assert_ptr_equal(now.query_start_loc, first.query_start_loc);
    }
    test_batch_rig_close(&plain);
    test_batch_rig_close(&bucket);
}

static void buckets_v4(void **state)
{
    (void)state;
    check_buckets(TEST_V4, 128);
}
static void buckets_v32(void **state)
{
    (void)state;
    check_buckets(TEST_V32, 16);
}

static void builds_allocate_nothing(void **state)
{
    (void)state;
    static float out[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    for (int family = TEST_V4; family <= TEST_V32; family++) {
        test_rng rng = test_rng_start("allocations", 4);
        test_batch_rig rig = test_batch_rig_open((test_family)family, 128, 2, false, 7);
        sequence seqs[5];
        open_sequences(seqs, 5, 128);
        float *x = test_inputs(TEST_BATCH_TOKENS, HIDDEN, &rng);
        const uint64_t n_allocs = tamis_mem_num_allocs();
        for (int32_t i = 0; i < 4; i++) {
            hand h = {0};
            pick_requests(&h, seqs, 5, i, &rng);
            pad(&h, i, &rng);
            const tamis_batch batch = describe(&h);
            run(&rig, &batch, x, out);
            tamis_error err;
            test_must(test_batch_plan_dummy(&rig, 3, &err), &err, "dummy");
            test_batch_forward(&rig, x, out);
        }
        assert_int_equal(tamis_mem_num_allocs(), n_allocs);
        free(x);
        test_batch_rig_close(&rig);
    }
}

/* ---------------------------------------------------------------- serial order */

static void serial_order_is_the_same_bits(void **state)
{
    (void)state;
    static float expected[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    static float out[TEST_BATCH_LAYERS * TEST_BATCH_TOKENS * HIDDEN];
    for (int family = TEST_V4; family <= TEST_V32; family++) {
        test_rng rng = test_rng_start("serial order", 6);
        test_batch_rig side = test_batch_rig_open((test_family)family, 128, 2, false, 7);
        test_batch_rig serial = test_batch_rig_open((test_family)family, 128, 2, true, 7);
        sequence seqs[5];
        open_sequences(seqs, 5, 128);
        for (int32_t i = 0; i < 6; i++) {
            hand h = {0};
            pick_requests(&h, seqs, 5, i % 2 ? -1 : 0, &rng);
            const tamis_batch batch = describe(&h);
            float *x = test_inputs(num_tokens(&h), HIDDEN, &rng);
            run(&side, &batch, x, expected);
            run(&serial, &batch, x, out);
            assert_rows_equal(out, expected, TEST_BATCH_LAYERS * num_tokens(&h));
            assert_same_caches(&side, &serial);
            free(x);
        }
        test_batch_rig_close(&side);
        test_batch_rig_close(&serial);
    }
}

/* ---------------------------------------------------------------- refusals */

static void expect_refused(test_batch_rig *rig, const tamis_batch *batch, tamis_status status,
                           const char *part)
{
    tamis_error err = {0};
    assert_int_equal(test_batch_plan(rig, batch, &err), status);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
    assert_int_equal(test_batch_step(rig).num_input_tokens, 0);
    assert_int_equal(test_batch_step(rig).num_reqs, 0);
    for (int32_t i = 0; i < TEST_BATCH_LAYERS; i++) {
        const tamis_layer_plan_view layer = test_batch_layer(rig, i);
        assert_int_equal(layer.num_closed_rows, 0);
        assert_int_equal(layer.attention.num_items, 0);
    }
}

/* Two sequences at 100, 5 and 3 tokens, 2 tokens of padding. */
static void bad_batches(void **state)
{
    (void)state;
    const tamis_status invalid = TAMIS_STATUS_INVALID;
    for (int family = TEST_V4; family <= TEST_V32; family++) {
        test_batch_rig rig = test_batch_rig_open((test_family)family, 128, 1, false, 7);
        sequence seqs[2];
        open_sequences(seqs, 2, 128);
        seqs[0].len = seqs[1].len = 100;
        hand h = {0};
        add(&h, &seqs[0], 5);
        add(&h, &seqs[1], 3);
        add_padding(&h, 2);
        tamis_batch batch = describe_with_slots(&h, 128);
        tamis_error err;
        const int32_t slot_6 = h.slot_mapping[6];
        test_must(test_batch_plan(&rig, &batch, &err), &err, "good batch");
        h.slot_mapping[6]++;
        expect_refused(
            &rig, &batch, invalid,
            "slot_mapping[6] is 2790, the block table of request 1 gives 2789 for position 101");
        h.slot_mapping[6] = -1;
        expect_refused(&rig, &batch, invalid,
                       "slot_mapping[6] is -1, the block table of request 1");
        h.slot_mapping[6] = slot_6;
        h.slot_mapping[9] = 5;
        expect_refused(&rig, &batch, invalid, "slot_mapping[9] is 5, must be -1 for padding");
        h.slot_mapping[9] = -1;
        h.seq_lens[0] = 0;
        expect_refused(&rig, &batch, invalid, "request 0: seq_len is 0 with 5 new tokens");
        h.seq_lens[0] = 105;
        h.seq_lens[2] = 1;
        expect_refused(&rig, &batch, invalid, "request 2: seq_len is 1, must be at least its 2");
        h.seq_lens[2] = -1;
        expect_refused(&rig, &batch, invalid, "request 2: seq_len is -1");
        h.seq_lens[2] = 0;
        h.seq_lens[1] = TEST_BATCH_LEN + 1;
        expect_refused(&rig, &batch, TAMIS_STATUS_LIMIT,
                       "request 1: seq_len is 321, allowed 0..320");
        h.seq_lens[1] = 103;
        h.query_start[3] = TEST_BATCH_TOKENS + 1;
        expect_refused(&rig, &batch, TAMIS_STATUS_LIMIT, "65 tokens, allowed 0..64");
        h.query_start[3] = 10;
        batch.num_reqs = TEST_BATCH_REQS + 1;
        expect_refused(&rig, &batch, TAMIS_STATUS_LIMIT, "num_reqs is 9, allowed 0..8");
        batch.num_reqs = 3;
        if (family == TEST_V4) {
            batch.slots = NULL;
            expect_refused(&rig, &batch, invalid, "slots is missing");
            batch.slots = h.slots;
        }
        assert_int_equal(test_batch_plan_dummy(&rig, TEST_BATCH_TOKENS + 1, &err),
                         TAMIS_STATUS_LIMIT);
        assert_non_null(strstr(err.text, "dummy step: 65 tokens, allowed 0..64"));
        assert_int_equal(test_batch_plan_dummy(&rig, -1, &err), TAMIS_STATUS_LIMIT);
        test_must(test_batch_plan(&rig, &batch, &err), &err, "good batch");
        test_batch_rig_close(&rig);
    }
}

/* A step of padding alone, tables and slots not even there. */
static void nothing_but_padding(void **state)
{
    (void)state;
    const int32_t start[] = {0, 2, 2, 5}, lens[] = {0, 0, 0};
    const tamis_batch batch = {.num_reqs = 3, .query_start_loc = start, .seq_lens = lens};
    float out[TEST_BATCH_LAYERS * 5 * HIDDEN];
    for (int family = TEST_V4; family <= TEST_V32; family++) {
        test_batch_rig rig = test_batch_rig_open((test_family)family, 128, 1, false, 7);
        size_t n_bytes;
        uint8_t *before = test_batch_bytes(&rig, &n_bytes);
        memset(out, 0x55, sizeof out);
        run(&rig, &batch, NULL, out);
        assert_zero(out, TEST_BATCH_LAYERS * 5);
        uint8_t *after = test_batch_bytes(&rig, &n_bytes);
        assert_memory_equal(before, after, n_bytes);
        free(before), free(after);
        test_batch_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_v32),
        cmocka_unit_test(example_v4),
        cmocka_unit_test(views_of_the_example),
        cmocka_unit_test(buckets_v4),
        cmocka_unit_test(buckets_v32),
        cmocka_unit_test(builds_allocate_nothing),
        cmocka_unit_test(serial_order_is_the_same_bits),
        cmocka_unit_test(bad_batches),
        cmocka_unit_test(nothing_but_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
