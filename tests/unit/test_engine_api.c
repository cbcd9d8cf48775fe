/*
 * The engine's calls at their edges: every refusal says why and changes nothing, memory is what
 * the plan says, a refused allocation at any place leaves no trace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"
#include "tamis/connector.h"
#include "tamis/speculation.h"

#define MODEL_DIR TAMIS_SOURCE_DIR "/tests/golden/v4-flash-bf16"
#define FP8_DIR   TAMIS_SOURCE_DIR "/tests/golden/v4-pro-fp8"
#define SFA_DIR   TAMIS_SOURCE_DIR "/tests/golden/glm52-fp8"

static tamis_session_params small_params(void)
{
    tamis_session_params p = test_session_params(TAMIS_DTYPE_F32, 400);
    p.block_tokens = 128;
    p.max_num_seqs = 3;
    p.max_num_batched_tokens = 64;
    p.max_num_logits = 8;
    p.num_blocks = 6; /* fewer than three whole sequences need */
    return p;
}

static void random_ids(test_rng *rng, int32_t *ids, int32_t n, int32_t vocab_size)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)test_rng_int(rng, 0, vocab_size - 1);
}

/* ---------------------------------------------------------------- model */

static void a_model_that_is_not_there(void **state)
{
    (void)state;
    tamis_model *model = (tamis_model *)1;
    tamis_error err;
    assert_int_equal(tamis_model_open(&model, "/nonexistent", &err), TAMIS_STATUS_IO);
    assert_null(model);
    assert_non_null(strstr(err.text, "/nonexistent"));
    assert_int_equal(tamis_model_open(NULL, MODEL_DIR, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_model_open(&model, NULL, NULL), TAMIS_STATUS_INVALID);
    tamis_model_close(&model);
    tamis_model_close(NULL);
    tamis_session_close(NULL);
}

static void what_a_model_says_of_itself(void **state)
{
    (void)state;
    tamis_error err;
    tamis_model *model;
    test_must(tamis_model_open(&model, MODEL_DIR, &err), &err, "open");
    const tamis_model_info *info = tamis_model_get_info(model);
    assert_string_equal(info->family, "deepseek_v4");
    assert_string_equal(info->profile, "exact");
    assert_int_equal(info->vocab_size, 240);
    assert_int_equal(info->max_position_embeddings, 1024);
    assert_int_equal(info->n_eos_token_ids, 1);
    assert_int_equal(info->eos_token_ids[0], 1);
    assert_int_equal(info->index_topk, 8);
    assert_false(info->has_index_cache);
    const int32_t ratios[7] = {-1, 0, 0, 4, 128, 4, -1};
    for (int32_t i = 0; i < 7; i++)
        assert_int_equal(tamis_model_layer_ratio(model, i - 1), ratios[i]);
    const tamis_inspection *inspection, *again;
    test_must(tamis_model_inspect(model, &inspection, &err), &err, "inspect");
    test_must(tamis_model_inspect(model, &again, &err), &err, "inspect again");
    assert_ptr_equal(inspection, again);
    /* bf16, rows of ratio 4 (two layers: 64 kv, 32 key values) and 128 (one layer: 64 kv) */
    assert_int_equal(inspection->n_caches, 2);
    const tamis_cache_choice *bf16 = &inspection->caches[0], *f32 = &inspection->caches[1];
    assert_int_equal(bf16->kv_cache_dtype, TAMIS_DTYPE_BF16);
    assert_string_equal(bf16->kv_rows, "bf16");
    assert_int_equal(bf16->kv_row_bytes, 2 * 64);
    assert_int_equal(f32->index_row_bytes, 4 * 32);
    assert_int_equal(bf16->bytes_per_token, 2 * (2 * (64 + 32) / 4) + 2 * 64 / 128);
    assert_int_equal(f32->bytes_per_token, 2 * bf16->bytes_per_token);
    assert_true(f32->ring_bytes > bf16->ring_bytes);
    assert_int_equal(tamis_model_inspect(NULL, &again, NULL), TAMIS_STATUS_INVALID);
    tamis_model_close(&model);
}

/* A family without rings and compression. */
static void what_a_glm_model_says_of_itself(void **state)
{
    (void)state;
    const tamis_session_params p = small_params();
    test_engine engine = test_engine_open(SFA_DIR, &p);
    assert_string_equal(engine.info->family, "glm_moe_dsa");
    assert_int_equal(engine.info->index_topk, 16);
    assert_true(engine.info->has_index_cache);
    assert_int_equal(engine.info->num_nextn_predict_layers, 1);
    for (int32_t i = -1; i <= 6; i++)
        assert_int_equal(tamis_model_layer_ratio(engine.model, i), i < 0 || i == 6 ? -1 : 0);
    const tamis_inspection *inspection;
    tamis_memory_plan plan;
    tamis_error err;
    test_must(tamis_model_inspect(engine.model, &inspection, &err), &err, "inspect");
    /* bf16: six layers of 64 + 16 latent and rotated values, three with keys of 32 */
    assert_int_equal(inspection->n_caches, 2);
    const tamis_cache_choice *bf16 = &inspection->caches[0], *f32 = &inspection->caches[1];
    assert_int_equal(bf16->bytes_per_token, 2 * (6 * (64 + 16) + 3 * 32));
    assert_int_equal(f32->bytes_per_token, 2 * bf16->bytes_per_token);
    assert_int_equal(bf16->ring_bytes + f32->ring_bytes, 0);
    test_must(tamis_session_plan_memory(engine.model, &p, &plan, &err), &err, "plan");
    assert_int_equal(plan.cache_bytes_per_token, f32->bytes_per_token);
    assert_int_equal(plan.cache_rings, 0);
    test_engine_close(&engine);
}

/* ---------------------------------------------------------------- parameters */

typedef void (*change_fn)(tamis_session_params *p);
static void bad_size(tamis_session_params *p)
{
    p->struct_size -= 4;
}
static void no_threads(tamis_session_params *p)
{
    p->n_threads = 0;
}
static void many_threads(tamis_session_params *p)
{
    p->n_threads = 257;
}
static void negative_len(tamis_session_params *p)
{
    p->max_model_len = -1;
}
static void long_len(tamis_session_params *p)
{
    p->max_model_len = 1025;
}
static void no_seqs(tamis_session_params *p)
{
    p->max_num_seqs = 0;
}
static void no_tokens(tamis_session_params *p)
{
    p->max_num_batched_tokens = 0;
}
static void negative_logits(tamis_session_params *p)
{
    p->max_num_logits = -1;
}
static void odd_block(tamis_session_params *p)
{
    p->block_tokens = 200;
}
static void small_block(tamis_session_params *p)
{
    p->block_tokens = 64;
}
static void null_block_only(tamis_session_params *p)
{
    p->num_blocks = 1;
}
static void negative_rollback(tamis_session_params *p)
{
    p->max_rollback = -1;
}
static void fp8_cache(tamis_session_params *p)
{
    p->kv_cache_dtype = TAMIS_DTYPE_F8_E4M3;
}
static void little_memory(tamis_session_params *p)
{
    p->memory_limit_bytes = 100000;
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    const struct {
        change_fn change;
        tamis_status status;
        const char *text; /* the field, and somewhere after it what is allowed */
    } cases[] = {
        {bad_size, TAMIS_STATUS_INVALID, "struct_size"},
        {no_threads, TAMIS_STATUS_INVALID, "n_threads is 0, allowed 1..256"},
        {many_threads, TAMIS_STATUS_INVALID, "n_threads is 257, allowed 1..256"},
        {negative_len, TAMIS_STATUS_INVALID, "max_model_len is -1"},
        {long_len, TAMIS_STATUS_LIMIT, "max_model_len is 1025, the model allows 1..1024"},
        {no_seqs, TAMIS_STATUS_INVALID, "max_num_seqs is 0"},
        {no_tokens, TAMIS_STATUS_INVALID, "max_num_batched_tokens is 0"},
        {negative_logits, TAMIS_STATUS_INVALID, "max_num_logits is -1"},
        {odd_block, TAMIS_STATUS_INVALID, "block_tokens is 200, must be a multiple of 128"},
        {small_block, TAMIS_STATUS_INVALID, "block_tokens is 64"},
        {null_block_only, TAMIS_STATUS_INVALID, "num_blocks is 1"},
        {negative_rollback, TAMIS_STATUS_INVALID, "max_rollback is -1"},
        {fp8_cache, TAMIS_STATUS_UNSUPPORTED,
         "kv_cache_dtype is F8_E4M3, allowed BF16, F32 (profile exact)"},
        {little_memory, TAMIS_STATUS_NO_MEMORY, "the limit is 0.1 MiB"}};
    tamis_error err;
    tamis_model *model;
    tamis_session *session;
    test_must(tamis_model_open(&model, MODEL_DIR, &err), &err, "open");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tamis_session_params p = small_params();
        tamis_memory_plan plan;
        cases[i].change(&p);
        const uint64_t allocs = tamis_mem_num_allocs();
        session = (tamis_session *)1;
        assert_int_equal(tamis_session_open(&session, model, &p, &err), cases[i].status);
        assert_null(session);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
        /* The plan alone is not refused for being too large. */
        const bool fits_no_limit = cases[i].status == TAMIS_STATUS_NO_MEMORY;
        assert_int_equal(tamis_session_plan_memory(model, &p, &plan, &err),
                         fits_no_limit ? TAMIS_STATUS_OK : cases[i].status);
        if (!fits_no_limit)
            assert_int_equal(tamis_mem_num_allocs(), allocs);
    }
    tamis_session_params p = small_params();
    assert_int_equal(tamis_session_open(NULL, model, &p, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_session_open(&session, NULL, &p, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_session_open(&session, model, NULL, NULL), TAMIS_STATUS_INVALID);
    tamis_model_close(&model);
}

static void defaults_are_filled_in(void **state)
{
    (void)state;
    const tamis_session_params p = tamis_session_params_default();
    test_engine engine = test_engine_open(MODEL_DIR, &p);
    const tamis_session_params *q = tamis_session_get_params(engine.session);
    assert_int_equal(q->max_model_len, 1024); /* 4096, but the model has less */
    assert_int_equal(q->max_num_batched_tokens, 512);
    assert_int_equal(q->max_num_logits, 1);
    assert_int_equal(q->num_blocks, 5);
    assert_int_equal(q->kv_cache_dtype, TAMIS_DTYPE_BF16);
    assert_true(q->n_threads >= 1 && q->n_threads <= 64);
    test_engine_close(&engine);
    tamis_session_params r = p;
    r.max_model_len = 100;
    r.max_num_seqs = 2;
    r.max_num_logits = 1000;
    engine = test_engine_open(MODEL_DIR, &r);
    q = tamis_session_get_params(engine.session);
    assert_int_equal(q->max_num_batched_tokens, 200); /* no step could hold more */
    assert_int_equal(q->max_num_logits, 200);
    assert_int_equal(q->num_blocks, 3);
    test_engine_close(&engine);
}

/* ---------------------------------------------------------------- memory */

static uint64_t in_use(void)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

static void check_plans(const char *dir)
{
    tamis_error err;
    tamis_model *model;
    test_must(tamis_model_open(&model, dir, &err), &err, "open");
    for (int round = 0; round < 4; round++) {
        tamis_session_params p = small_params();
        tamis_memory_plan plan;
        tamis_session *session;
        if (round == 1)
            p.kv_cache_dtype = TAMIS_DTYPE_BF16;
        if (round == 2)
            p.num_blocks = 100;
        if (round == 3)
            p.n_threads = 3;
        test_must(tamis_session_plan_memory(model, &p, &plan, &err), &err, "plan");
        assert_int_equal(plan.total, plan.weights_widened + plan.cache_blocks + plan.cache_rings +
                                         plan.workspace + plan.logits);
        assert_true(plan.limit > plan.total);
        const uint64_t before = in_use();
        test_must(tamis_session_open(&session, model, &p, &err), &err, "open");
        const uint64_t taken = in_use() - before, planned = plan.total - plan.weights_widened;
        if (taken > planned + 16384 || planned > taken + 16384)
            fail_msg("planned %llu bytes, took %llu", (unsigned long long)planned,
                     (unsigned long long)taken);
        tamis_session_close(&session);
        assert_int_equal(in_use(), before);
        /* A limit of exactly the total is enough, a byte less is not. */
        p.memory_limit_bytes = plan.total;
        test_must(tamis_session_open(&session, model, &p, &err), &err, "open at the limit");
        tamis_session_close(&session);
        p.memory_limit_bytes--;
        assert_int_equal(tamis_session_open(&session, model, &p, &err), TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(in_use(), before);
        char bytes[80]; /* which tell what rounded sizes do not */
        snprintf(bytes, sizeof bytes, "needs %llu, the limit is %llu",
                 (unsigned long long)plan.total, (unsigned long long)plan.total - 1);
        assert_non_null(strstr(err.text, bytes));
    }
    tamis_model_close(&model);
}

/* What is allocated is what was planned, but for a few small objects. */
static void the_plan_is_what_is_taken(void **state)
{
    (void)state;
    check_plans(MODEL_DIR);
    check_plans(SFA_DIR);
}

static void the_system_says_what_is_available(void **state)
{
    (void)state;
    const uint64_t bytes = tamis_available_memory();
    assert_true(bytes > (uint64_t)1 << 20);
}

static void total_in_use(size_t out[TAMIS_NUM_MEM_KINDS])
{
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        out[kind] = tamis_mem_in_use((tamis_mem_kind)kind);
}

/* Opening with the n-th allocation refused, n = 1, 2, ... until it works. */
static void check_refused_allocations(const char *dir)
{
    size_t before[TAMIS_NUM_MEM_KINDS], after[TAMIS_NUM_MEM_KINDS];
    tamis_model *model = NULL;
    tamis_session *session = NULL;
    const tamis_session_params p = small_params();
    uint64_t n = 0;
    total_in_use(before);
    while (model == NULL) {
        tamis_mem_fail_at(++n);
        if (tamis_model_open(&model, dir, NULL) == TAMIS_STATUS_OK)
            break;
        assert_null(model);
        total_in_use(after);
        assert_memory_equal(before, after, sizeof before);
    }
    assert_true(n > 5);
    total_in_use(before);
    for (n = 0; session == NULL;) {
        tamis_error err;
        tamis_mem_fail_at(++n);
        if (tamis_session_open(&session, model, &p, &err) == TAMIS_STATUS_OK)
            break;
        assert_int_equal(err.status, TAMIS_STATUS_NO_MEMORY);
        total_in_use(after);
        assert_memory_equal(before, after, sizeof before);
    }
    tamis_mem_fail_at(0);
    assert_true(n > 5);
    const tamis_inspection *inspection = NULL;
    total_in_use(before);
    for (n = 0; inspection == NULL;) {
        tamis_mem_fail_at(++n);
        if (tamis_model_inspect(model, &inspection, NULL) == TAMIS_STATUS_OK)
            break;
        total_in_use(after);
        assert_memory_equal(before, after, sizeof before);
    }
    tamis_mem_fail_at(0);
    int32_t seq;
    assert_int_equal(tamis_seq_create(session, &seq, NULL), TAMIS_STATUS_OK);
    const tamis_feed feed = {.seq = seq, .tokens = (int32_t[]){1, 2}, .n_tokens = 2};
    assert_int_equal(tamis_session_step(session, &feed, 1, NULL), TAMIS_STATUS_OK);
    tamis_session_close(&session);
    tamis_model_close(&model);
}

static void a_refused_allocation_leaves_nothing(void **state)
{
    (void)state;
    check_refused_allocations(MODEL_DIR);
    check_refused_allocations(SFA_DIR);
}

/* ---------------------------------------------------------------- calls that are refused */

typedef struct snapshot {
    tamis_sequence sequences[3];
    int32_t tables[3][8], pool_free[8], pool_refs[8], n_free, n_logits;
    float logits[240];
} snapshot;

static snapshot take_snapshot(const tamis_session *s)
{
    snapshot shot;
    memset(&shot, 0, sizeof shot);
    for (int i = 0; i < 3; i++) {
        shot.sequences[i] = s->sequences[i];
        shot.sequences[i].in_step = 0; /* a mark, not state */
        memcpy(shot.tables[i], s->sequences[i].table,
               (size_t)s->sequences[i].n_blocks * sizeof(int32_t));
    }
    shot.n_free = s->pool.n_free;
    memcpy(shot.pool_free, s->pool.free, (size_t)s->pool.n_free * sizeof(int32_t));
    memcpy(shot.pool_refs, s->pool.refs, (size_t)s->pool.n_blocks * sizeof(int32_t));
    shot.n_logits = s->n_logits;
    memcpy(shot.logits, s->logits, sizeof shot.logits);
    return shot;
}

static void assert_refused(const tamis_session *session, const snapshot *before,
                           tamis_status status, tamis_status want, const tamis_error *err,
                           const char *text)
{
    assert_int_equal(status, want);
    assert_int_equal(err->status, want);
    if (strstr(err->text, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->text, text);
    const snapshot after = take_snapshot(session);
    assert_memory_equal(&after, before, sizeof after);
}

/* Two sequences: 0 holds 300 tokens in 3 blocks, 1 holds 200 in 2; no block is left. */
static test_engine full_engine(const int32_t ids[500])
{
    const tamis_session_params p = small_params();
    test_engine engine = test_engine_open(MODEL_DIR, &p);
    assert_int_equal(test_seq_new(&engine), 0);
    assert_int_equal(test_seq_new(&engine), 1);
    test_feed(&engine, 0, ids, 300, 60, NULL);
    test_feed(&engine, 1, ids + 300, 200, 64, NULL);
    test_feed(&engine, 1, ids, 1, 0, NULL);
    assert_int_equal(engine.session->pool.n_free, 0);
    return engine;
}

static void steps_that_are_refused_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("steps_that_are_refused_change_nothing", 31);
    int32_t ids[500], bad_low[3] = {5, 6, -1}, bad_high[1] = {240};
    random_ids(&rng, ids, 500, 240);
    test_engine e = full_engine(ids);
    tamis_session *s = e.session;
    tamis_error err;
    const tamis_feed last = {.seq = 1, .tokens = ids, .n_tokens = 3, .logits = TAMIS_LOGITS_LAST};
    test_must(tamis_session_step(s, &last, 1, &err), &err, "step");
    const snapshot before = take_snapshot(s);
    const uint8_t mask[64] = {[0 ... 8] = 1};
#define REFUSED(status, text, n, ...)                                                              \
    do {                                                                                           \
        const tamis_feed feeds[] = {__VA_ARGS__};                                                  \
        assert_refused(s, &before, tamis_session_step(s, feeds, n, &err), status, &err, text);     \
    } while (0)
    REFUSED(TAMIS_STATUS_INVALID, "sequence 2 does not exist", 1, {2, ids, 1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "sequence -1 does not exist", 1, {-1, ids, 1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "sequence 3 does not exist", 2, {0, ids, 1, 0, NULL},
            {3, ids, 1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "sequence 1 is named twice", 3, {1, ids, 1, 0, NULL},
            {0, ids, 1, 0, NULL}, {1, ids, 0, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "token 2 of this step is -1, allowed 0..239", 1,
            {0, bad_low, 3, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "is 240, allowed 0..239", 1, {0, bad_high, 1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "sequence 0: -1 tokens", 1, {0, ids, -1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "sequence 0: 1 tokens", 1, {0, NULL, 1, 0, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "logits is 3", 1, {0, ids, 1, TAMIS_LOGITS_MASK, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "logits is 9", 1, {0, ids, 1, (tamis_logits_want)9, NULL});
    REFUSED(TAMIS_STATUS_INVALID, "-1 feeds", -1, {0, ids, 1, 0, NULL});
    assert_refused(s, &before, tamis_session_step(s, NULL, 1, &err), TAMIS_STATUS_INVALID, &err,
                   "1 feeds");
    REFUSED(TAMIS_STATUS_LIMIT, "65 tokens, allowed 64", 2, {0, ids, 33, 0, NULL},
            {1, ids, 32, 0, NULL});
    REFUSED(TAMIS_STATUS_LIMIT, "9 logits rows, allowed 8", 1, {0, ids, 9, TAMIS_LOGITS_ALL, NULL});
    REFUSED(TAMIS_STATUS_LIMIT, "9 logits rows, allowed 8", 1,
            {0, ids, 64, TAMIS_LOGITS_MASK, mask});
    REFUSED(TAMIS_STATUS_LIMIT, "101 tokens after 300 exceed max_model_len 400", 1,
            {0, ids, 101, 0, NULL});
    /* Sequence 1 fits, 0 needs a fourth block after it: nothing of either may remain. */
    REFUSED(TAMIS_STATUS_NO_BLOCKS, "sequence 1: no block for tokens 256..", 2,
            {0, ids, 2, 0, NULL}, {1, ids, 60, 0, NULL});
    assert_int_equal(tamis_session_step(NULL, NULL, 0, &err), TAMIS_STATUS_INVALID);
    test_engine_close(&e);
}

static void sequence_calls_that_are_refused_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("sequence_calls_that_are_refused_change_nothing", 32);
    int32_t ids[500], seq;
    random_ids(&rng, ids, 500, 240);
    test_engine e = full_engine(ids);
    tamis_session *s = e.session;
    tamis_error err;
    const snapshot before = take_snapshot(s);
    assert_refused(s, &before, tamis_seq_drop(s, 2, &err), TAMIS_STATUS_INVALID, &err,
                   "sequence 2");
    assert_refused(s, &before, tamis_seq_drop(s, -5, &err), TAMIS_STATUS_INVALID, &err,
                   "sequence -5");
    assert_refused(s, &before, tamis_seq_rollback(s, 7, 0, &err), TAMIS_STATUS_INVALID, &err,
                   "sequence 7");
    assert_refused(s, &before, tamis_seq_rollback(s, 0, 301, &err), TAMIS_STATUS_INVALID, &err,
                   "rollback to 301, its length is 300");
    assert_refused(s, &before, tamis_seq_rollback(s, 0, -1, &err), TAMIS_STATUS_INVALID, &err,
                   "rollback to -1");
    const int32_t floor = tamis_seq_rollback_floor(s, 0);
    assert_true(floor > 0 && floor <= 300 - 8);
    assert_refused(s, &before, tamis_seq_rollback(s, 0, floor - 1, &err), TAMIS_STATUS_LIMIT, &err,
                   "allowed");
    assert_refused(s, &before, tamis_seq_fork(s, 9, &seq, &err), TAMIS_STATUS_INVALID, &err,
                   "sequence 9");
    assert_refused(s, &before, tamis_seq_fork(s, 0, NULL, &err), TAMIS_STATUS_INVALID, &err,
                   "new_seq");
    assert_refused(s, &before, tamis_seq_fork(s, 0, &seq, &err), TAMIS_STATUS_NO_BLOCKS, &err,
                   "0 of 5 are free");
    assert_int_equal(tamis_seq_len(s, 2), -1);
    assert_int_equal(tamis_seq_len(s, -1), -1);
    assert_int_equal(tamis_seq_rollback_floor(s, 2), -1);
    assert_int_equal(test_seq_new(&e), 2);
    const snapshot full = take_snapshot(s);
    assert_refused(s, &full, tamis_seq_create(s, &seq, &err), TAMIS_STATUS_NO_BLOCKS, &err,
                   "all 3 sequences");
    assert_refused(s, &full, tamis_seq_fork(s, 2, &seq, &err), TAMIS_STATUS_NO_BLOCKS, &err,
                   "all 3 sequences");
    test_seq_drop(&e, 2);
    assert_int_equal(tamis_seq_drop(s, 2, &err), TAMIS_STATUS_INVALID);
    test_engine_close(&e);
}

/* ---------------------------------------------------------------- steps that do little */

static void empty_steps_and_logits_rows(void **state)
{
    (void)state;
    const tamis_session_params p = small_params();
    test_engine e = test_engine_open(MODEL_DIR, &p);
    tamis_session *s = e.session;
    const int32_t ids[6] = {9, 8, 7, 6, 5, 4}, a = test_seq_new(&e), b = test_seq_new(&e);
    tamis_error err;
    test_must(tamis_session_step(s, NULL, 0, &err), &err, "no feeds");
    assert_int_equal(tamis_session_num_logits(s), 0);
    assert_null(tamis_session_logits(s, 0));
    const tamis_feed none[2] = {{a, NULL, 0, TAMIS_LOGITS_LAST, NULL},
                                {b, NULL, 0, TAMIS_LOGITS_ALL, NULL}};
    test_must(tamis_session_step(s, none, 2, &err), &err, "no tokens");
    assert_int_equal(tamis_session_num_logits(s), 0);
    assert_int_equal(tamis_seq_len(s, a), 0);
    /* Rows come in feed order, then token order. */
    float *want = test_logits_of(&e, ids, 6, 0);
    const uint8_t mask[6] = {0, 1, 0, 0, 1, 0};
    const tamis_feed mixed[2] = {{b, ids, 6, TAMIS_LOGITS_MASK, mask},
                                 {a, ids, 4, TAMIS_LOGITS_LAST, NULL}};
    test_must(tamis_session_step(s, mixed, 2, &err), &err, "mixed");
    const int32_t rows[3] = {1, 4, 3};
    assert_int_equal(tamis_session_num_logits(s), 3);
    for (int32_t i = 0; i < 3; i++)
        assert_memory_equal(tamis_session_logits(s, i), want + rows[i] * 240, 240 * sizeof *want);
    assert_null(tamis_session_logits(s, 3));
    assert_null(tamis_session_logits(s, -1));
    const tamis_feed quiet = {a, ids + 4, 1, TAMIS_LOGITS_NONE, NULL};
    test_must(tamis_session_step(s, &quiet, 1, &err), &err, "no logits");
    assert_int_equal(tamis_session_num_logits(s), 0);
    free(want);
    test_engine_close(&e);
    assert_int_equal(tamis_num_allocs_in_run(), 0);
}

static void no_session_has_nothing(void **state)
{
    (void)state;
    const tamis_prefix_stats no_prefixes = {0};
    const tamis_spec_stats no_drafts = {0};
    const tamis_prefix_stats prefixes = tamis_session_get_prefix_stats(NULL);
    const tamis_spec_stats drafts = tamis_spec_get_stats(NULL);
    assert_memory_equal(&prefixes, &no_prefixes, sizeof prefixes);
    assert_memory_equal(&drafts, &no_drafts, sizeof drafts);
    assert_int_equal(tamis_session_sleep_level(NULL), -1);
    assert_int_equal(tamis_session_num_layers(NULL), 0);
    assert_int_equal(tamis_session_num_logits(NULL), 0);
    assert_null(tamis_session_logits(NULL, 0));
    assert_int_equal(tamis_seq_len(NULL, 0), -1);
    assert_int_equal(tamis_seq_rollback_floor(NULL, 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_is_not_there),
        cmocka_unit_test(what_a_model_says_of_itself),
        cmocka_unit_test(what_a_glm_model_says_of_itself),
        cmocka_unit_test(parameters_out_of_range_are_refused),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(the_plan_is_what_is_taken),
        cmocka_unit_test(the_system_says_what_is_available),
        cmocka_unit_test(a_refused_allocation_leaves_nothing),
        cmocka_unit_test(steps_that_are_refused_change_nothing),
        cmocka_unit_test(sequence_calls_that_are_refused_change_nothing),
        cmocka_unit_test(empty_steps_and_logits_rows),
        cmocka_unit_test(no_session_has_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
