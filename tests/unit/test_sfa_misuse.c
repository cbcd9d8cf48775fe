/*
 * Mistakes of an engine author at tamis/sfa.h are refused by name, with the value seen and what is
 * allowed, before anything is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/sfa/caches.h"
#include "support/engine_run.h"
#include "support/sfa_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tamis_status measure_plan(const tamis_sfa_config *layers, int32_t n_layers,
                                 const tamis_plan_params *params, int32_t block_tokens,
                                 uint64_t *bytes, tamis_error *err)
{
    tamis_cache_params caches = tamis_cache_params_default();
    caches.block_tokens = block_tokens;
    return tamis_sfa_plan_measure(layers, n_layers, params, &caches, bytes, err);
}


enum { N_TOKENS = 9, N_BEFORE = 4, HIDDEN = 37, HEADS = 3, MAX_LEN = 64, TOPK = 8 };

/* Two layers, a plan of 9 tokens at positions 4..12, and a second rig whose parts are strangers. */
typedef struct fixture {
    test_sfa_layer owners[2];
    tamis_sfa_layer layers[2];
    test_sfa_rig rig, stranger;
    test_sfa_seq seq;
    float *x;
    uint8_t *rows_before;
} fixture;

static size_t cache_bytes(const test_sfa_rig *rig)
{
    const tamis_cache_bytes bytes = tamis_layer_caches_bytes(&rig->caches->base);
    return bytes.blocks;
}

static const void *cache_memory(const test_sfa_rig *rig)
{
    return rig->caches->base.store.caches[0].base;
}

static void plan_step(fixture *f)
{
    f->seq.len = N_BEFORE;
    test_sfa_plan(&f->rig, (test_sfa_seq *[]){&f->seq}, (int32_t[]){N_TOKENS}, 1);
}

static void open_fixture(fixture *f)
{
    test_rng rng = test_rng_start("misuse", 1);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    const tamis_cache_params params = test_sfa_params(MAX_LEN);
    for (int i = 0; i < 2; i++) {
        f->owners[i] = test_sfa_layer_random(&c, TAMIS_DTYPE_F32, &rng);
        f->layers[i] = f->owners[i].layer;
    }
    f->rig = test_sfa_rig_open(f->layers, 2, &params, MAX_LEN, 2);
    f->stranger = test_sfa_rig_open(f->layers, 2, &params, MAX_LEN, 1);
    f->seq = test_sfa_seq_open(&f->rig);
    f->x = test_inputs(N_TOKENS, HIDDEN, &rng);
    test_sfa_poison(&f->rig, 0.25f);
    f->rows_before = test_take((int64_t)cache_bytes(&f->rig), 1);
    memcpy(f->rows_before, cache_memory(&f->rig), cache_bytes(&f->rig));
    plan_step(f);
}

static void close_fixture(fixture *f)
{
    test_sfa_rig_close(&f->rig);
    test_sfa_rig_close(&f->stranger);
    for (int i = 0; i < 2; i++)
        test_sfa_layer_free(&f->owners[i]);
    free(f->x);
    free(f->rows_before);
}

/* ---------------------------------------------------------------- calls */

typedef enum operator_id { FORWARD, PREPROCESS, SELECT, ATTEND, OUTPUT, N_OPERATORS } operator_id;

typedef struct call {
    const tamis_sfa_layer *layer;
    int32_t layer_idx;
    tamis_sfa_caches *caches;
    tamis_team *team;
    const int32_t *indices;
    int32_t num_indices;
} call;

static call good_call(const fixture *f)
{
    return (call){&f->layers[0], 0, f->rig.caches, f->rig.team, NULL, 0};
}

static float out[N_TOKENS * HIDDEN], lse[N_TOKENS * HEADS];

static tamis_status run(fixture *f, operator_id op, const call *c, tamis_error *err)
{
    tamis_sfa_plan *plan = f->rig.plan;
    switch (op) {
    case FORWARD:
        return tamis_sfa_forward(c->layer, c->layer_idx, plan, c->caches, f->x, out, c->team, err);
    case PREPROCESS:
        return tamis_sfa_preprocess(c->layer, c->layer_idx, plan, c->caches, f->x, c->team, err);
    case SELECT:
        return tamis_sfa_select(c->layer, c->layer_idx, plan, c->caches, c->team, err);
    case ATTEND:
        return tamis_sfa_attend(c->layer, c->layer_idx, plan, c->caches, c->indices, c->num_indices,
                                lse, c->team, err);
    default:
        return tamis_sfa_output(c->layer, c->layer_idx, plan, c->caches, out, c->team, err);
    }
}

static void assert_text(const tamis_error *err, const char *part)
{
    if (strstr(err->text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err->text, part);
}

static void assert_untouched(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(((const unsigned char *)bytes)[i], 0x55);
}

/* The operator refuses; out and lse are untouched. */
static void expect(fixture *f, operator_id op, const call *c, tamis_status status, const char *part)
{
    tamis_error err = {0};
    memset(out, 0x55, sizeof out);
    memset(lse, 0x55, sizeof lse);
    assert_int_equal(run(f, op, c, &err), status);
    assert_text(&err, part);
    assert_int_equal(err.status, status);
    assert_untouched(out, sizeof out);
    assert_untouched(lse, sizeof lse);
    assert_int_equal(run(f, op, c, NULL), status); /* and without an error to fill */
}

static void expect_ok(fixture *f, operator_id op, const call *c)
{
    tamis_error err = {0};
    test_must(run(f, op, c, &err), &err, "operator");
}

/* Every operator refuses, and no cache row has changed. */
static void expect_invalid(fixture *f, const call *c, const char *part)
{
    for (int op = 0; op < N_OPERATORS; op++)
        expect(f, (operator_id)op, c, TAMIS_STATUS_INVALID, part);
    assert_memory_equal(cache_memory(&f->rig), f->rows_before, cache_bytes(&f->rig));
}

/* ---------------------------------------------------------------- wrong arguments */

static void wrong_arguments(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    call c = good_call(&f);
    c.team = f.stranger.team;
    expect_invalid(&f, &c, "the team has 1 threads, the plan was opened for 2");
    c = good_call(&f);
    c.caches = f.stranger.caches;
    expect_invalid(&f, &c, "the plan belongs to other caches");
    c = good_call(&f);
    c.layer_idx = 2;
    expect_invalid(&f, &c, "layer_idx is 2, allowed 0..1");
    c.layer_idx = -1;
    expect_invalid(&f, &c, "layer_idx is -1, allowed 0..1");
    c = good_call(&f);
    c.team = NULL;
    expect_invalid(&f, &c, "team is NULL");
    for (int i = 0; i < 4; i++)
        assert_null(tamis_sfa_plan_latent_out(f.rig.plan,
                                              (int32_t[]){-1, N_TOKENS, INT32_MIN, INT32_MAX}[i]));
    assert_non_null(tamis_sfa_plan_latent_out(f.rig.plan, N_TOKENS - 1));
    close_fixture(&f);
}

#define WITH(change)                                                                               \
    do {                                                                                           \
        bad = f.layers[0];                                                                         \
        change;                                                                                    \
    } while (0)

/* Any field of the config counts: rows in the caches depend on nearly all of them. */
static void wrong_configs(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    tamis_sfa_layer bad;
    call c = good_call(&f);
    c.layer = &bad;
    const char *part = "config differs from that of layer 0";
    WITH(bad.config.hidden_size++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.num_heads++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.q_lora_rank++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.kv_lora_rank++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.qk_nope_head_dim++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.qk_rope_head_dim += 2);
    expect_invalid(&f, &c, part);
    WITH(bad.config.v_head_dim++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.index_n_heads++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.index_head_dim++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.index_topk++);
    expect_invalid(&f, &c, part);
    WITH(bad.config.index_rope_interleave = true);
    expect_invalid(&f, &c, part);
    WITH(bad.config.reuse_topk = true);
    expect_invalid(&f, &c, part);
    WITH(bad.config.rms_norm_eps *= 2);
    expect_invalid(&f, &c, part);
    WITH(bad.config.softmax_scale *= 2);
    expect_invalid(&f, &c, part);
    WITH(bad.config.rope.theta *= 2);
    expect_invalid(&f, &c, part);
    WITH(bad.config.rope.yarn_factor *= 2);
    expect_invalid(&f, &c, part);
    close_fixture(&f);
}

static void wrong_weights(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    tamis_sfa_layer bad;
    const float scale = 1;
    call c = good_call(&f);
    c.layer = &bad;
    WITH(bad.weights.q_a_proj.rows--);
    expect_invalid(&f, &c, "q_a_proj is [87][37], must be [88][37]");
    WITH(bad.weights.q_b_proj.cols++);
    expect_invalid(&f, &c, "q_b_proj is [120][89], must be [120][88]");
    WITH(bad.weights.kv_a_proj.row_bytes = 0);
    expect_invalid(&f, &c, "kv_a_proj has row_bytes 0, allowed 148..");
    WITH(bad.weights.kv_a_proj.row_bytes = INT64_MAX / 8);
    expect_invalid(&f, &c, "kv_a_proj has row_bytes 1152921504606846975, allowed 148..");
    WITH(bad.weights.kv_b_proj.rows++);
    expect_invalid(&f, &c, "kv_b_proj is [193][72], must be [192][72]");
    WITH(bad.weights.o_proj.data = NULL);
    expect_invalid(&f, &c, "o_proj has no data");
    WITH(bad.weights.o_proj.scale = &scale; bad.weights.o_proj.scale_dtype = TAMIS_DTYPE_F32;
         bad.weights.o_proj.block_rows = bad.weights.o_proj.block_cols = 128);
    expect_invalid(&f, &c, "o_proj has scale_row_bytes 0, allowed 4..");
    bad.weights.o_proj.block_rows = 2;
    bad.weights.o_proj.scale_row_bytes = INT64_MAX / 8;
    expect_invalid(&f, &c, "o_proj has scale_row_bytes 1152921504606846975");
    WITH(bad.weights.q_a_norm = NULL);
    expect_invalid(&f, &c, "q_a_norm is missing");
    WITH(bad.weights.kv_a_norm = NULL);
    expect_invalid(&f, &c, "kv_a_norm is missing");
    WITH(bad.weights.index_wq_b.rows = 1);
    expect_invalid(&f, &c, "index_wq_b is [1][88], must be [200][88]");
    WITH(bad.weights.index_wk.cols = 38);
    expect_invalid(&f, &c, "index_wk is [40][38], must be [40][37]");
    WITH(bad.weights.index_weights_proj.rows = 6);
    expect_invalid(&f, &c, "index_weights_proj is [6][37], must be [5][37]");
    WITH(bad.weights.index_k_norm = NULL);
    expect_invalid(&f, &c, "index_k_norm is missing");
    WITH(bad.weights.index_k_norm_bias = NULL);
    expect_invalid(&f, &c, "index_k_norm_bias is missing");
    WITH(bad.weights.q_a_proj.dtype = TAMIS_DTYPE_U8);
    for (int op = 0; op < N_OPERATORS; op++)
        expect(&f, (operator_id)op, &c, TAMIS_STATUS_UNSUPPORTED, "q_a_proj is U8, allowed F32");
    WITH(bad.config.index_topk = 0);
    bad.weights.index_wk = (tamis_matrix){.rows = 0};
    assert_int_equal(tamis_sfa_layer_check(&bad, NULL), TAMIS_STATUS_OK); /* indexer not read */
    close_fixture(&f);
}

static void bad_dimensions(void **state)
{
    (void)state;
    const tamis_sfa_config good = test_sfa_odd_config(TEST_SFA_GLM);
    tamis_sfa_config c;
    tamis_error err;
    const tamis_cache_params params = test_sfa_params(MAX_LEN);
    tamis_cache_bytes bytes;
#define EXPECT_CONFIG(change, part)                                                                \
    do {                                                                                           \
        c = good;                                                                                  \
        change;                                                                                    \
        assert_int_equal(tamis_sfa_caches_measure(&c, 1, &params, &bytes, &err),                   \
                         TAMIS_STATUS_INVALID);                                                    \
        assert_text(&err, part);                                                                   \
    } while (0)
    EXPECT_CONFIG(c.hidden_size = 0, "hidden_size is 0, allowed 1..");
    EXPECT_CONFIG(c.num_heads = 1025, "num_heads is 1025, allowed 1..1024");
    EXPECT_CONFIG(c.q_lora_rank = -1, "q_lora_rank is -1");
    EXPECT_CONFIG(c.kv_lora_rank = 0, "kv_lora_rank is 0");
    EXPECT_CONFIG(c.qk_nope_head_dim = 0, "qk_nope_head_dim is 0");
    EXPECT_CONFIG(c.qk_rope_head_dim = 0, "qk_rope_head_dim is 0");
    EXPECT_CONFIG(c.qk_rope_head_dim = 17, "qk_rope_head_dim is 17, must be even");
    EXPECT_CONFIG(c.v_head_dim = 0, "v_head_dim is 0");
    EXPECT_CONFIG(c.index_topk = -1, "index_topk is -1, allowed 0..8192");
    EXPECT_CONFIG(c.index_topk = 8193, "index_topk is 8193, allowed 0..8192");
    EXPECT_CONFIG(c.index_n_heads = 0, "index_n_heads is 0");
    EXPECT_CONFIG(c.index_head_dim = 15, "index_head_dim is 15, allowed 16..");
    EXPECT_CONFIG(c.rms_norm_eps = 0, "rms_norm_eps is 0");
    EXPECT_CONFIG(c.softmax_scale = NAN, "softmax_scale");
    EXPECT_CONFIG(c.rms_norm_eps = INFINITY, "rms_norm_eps is inf");
    EXPECT_CONFIG(c.softmax_scale = INFINITY, "softmax_scale is inf");
    EXPECT_CONFIG(c.rope.theta = 1, "theta is 1, must be above 1");
    EXPECT_CONFIG(c.rope.theta = INFINITY, "theta is inf");
    EXPECT_CONFIG(c.rope.yarn_factor = NAN, "yarn_factor is nan, must be at least 0");
    EXPECT_CONFIG(c.rope.yarn_factor = INFINITY, "yarn_factor is inf");
    EXPECT_CONFIG(c.rope.yarn_factor = -1, "yarn_factor is -1");
    const tamis_rope_config yarn = {1e4f, 40, 4096, 32, 1};
#define EXPECT_YARN(change, part) EXPECT_CONFIG(c.rope = yarn; change, part)
    EXPECT_YARN(c.rope.original_max_position = 0, "original_max_position is 0, allowed 1..");
    EXPECT_YARN(c.rope.beta_slow = 0, "beta_slow is 0, must be above 0");
    EXPECT_YARN(c.rope.beta_slow = NAN, "beta_slow is nan");
    EXPECT_YARN(c.rope.beta_fast = INFINITY, "beta_fast is inf");
    EXPECT_YARN(c.rope.beta_fast = 0.5f, "beta_fast is 0.5, must be at least beta_slow 1");
    c.rope = yarn;
    assert_int_equal(tamis_sfa_caches_measure(&c, 1, &params, &bytes, &err), TAMIS_STATUS_OK);
    c.rope =
        (tamis_rope_config){1e4f, 1, 0, NAN, -1}; /* without YaRN its parameters are not read */
    assert_int_equal(tamis_sfa_caches_measure(&c, 1, &params, &bytes, &err), TAMIS_STATUS_OK);
    EXPECT_CONFIG(c.index_topk = 0; c.reuse_topk = true, "reuse_topk is set, but index_topk is 0");
    const tamis_plan_params plan = tamis_plan_params_default();
    uint64_t plan_bytes;
    c = good;
    c.reuse_topk = true;
    assert_int_equal(measure_plan(&c, 1, &plan, 16, &plan_bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_text(&err, "layer 0 reuses a selection, but no earlier layer selects");
    const tamis_sfa_config pair[] = {good, c};
    assert_int_equal(measure_plan(pair, 2, &plan, 16, &plan_bytes, &err),
                     TAMIS_STATUS_OK);
}

/* ---------------------------------------------------------------- order of operators */

static void operators_in_order(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    const call c = good_call(&f);
    call second = c;
    second.layer = &f.layers[1];
    second.layer_idx = 1;
    const tamis_status refused = TAMIS_STATUS_STATE;
    expect(&f, SELECT, &c, refused,
           "layer 0: select comes after preprocess, the last one was nothing");
    expect(&f, ATTEND, &c, refused, "layer 0: attend comes after select, the last one was nothing");
    expect(&f, OUTPUT, &c, refused, "layer 0: output comes after attend, the last one was nothing");
    assert_memory_equal(cache_memory(&f.rig), f.rows_before, cache_bytes(&f.rig));
    expect_ok(&f, PREPROCESS, &c);
    expect(&f, ATTEND, &c, refused, "attend comes after select, the last one was preprocess");
    expect(&f, OUTPUT, &c, refused, "output comes after attend, the last one was preprocess");
    expect(&f, SELECT, &second, refused, "layer 1: select comes after preprocess");
    expect_ok(&f, SELECT, &c);
    expect_ok(&f, SELECT, &c); /* again: the same lists */
    expect(&f, OUTPUT, &c, refused, "output comes after attend, the last one was select");
    expect(&f, ATTEND, &second, refused, "layer 1: attend comes after select");
    expect_ok(&f, ATTEND, &c);
    expect(&f, ATTEND, &c, refused, "the last one was attend"); /* its query is gone */
    expect(&f, SELECT, &c, refused, "the last one was attend");
    expect(&f, OUTPUT, &second, refused, "layer 1: output comes after attend");
    expect_ok(&f, OUTPUT, &c);
    expect(&f, OUTPUT, &c, refused, "the last one was nothing");
    expect_ok(&f, PREPROCESS, &c);
    expect_ok(&f, SELECT, &c);
    plan_step(&f); /* a new step starts from nothing */
    expect(&f, ATTEND, &c, refused, "the last one was nothing");
    close_fixture(&f);
}

static void bad_indices(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    int32_t indices[N_TOKENS * TOPK];
    for (int i = 0; i < N_TOKENS * TOPK; i++)
        indices[i] = N_BEFORE + i / TOPK; /* the latest position that each token sees */
    call c = good_call(&f);
    c.indices = indices;
    c.num_indices = TOPK;
    expect(&f, ATTEND, &c, TAMIS_STATUS_STATE, "attend comes after preprocess");
    expect_ok(&f, PREPROCESS, &c);
    const tamis_status refused = TAMIS_STATUS_INVALID;
    indices[3 * TOPK + 5] = N_BEFORE + 4;
    expect(&f, ATTEND, &c, refused, "token 3, entry 5 is position 8, allowed -1..7");
    indices[3 * TOPK + 5] = -2;
    expect(&f, ATTEND, &c, refused, "token 3, entry 5 is position -2, allowed -1..7");
    indices[3 * TOPK + 5] = INT32_MIN;
    expect(&f, ATTEND, &c, refused, "token 3, entry 5 is position -2147483648");
    indices[3 * TOPK + 5] = INT32_MAX;
    expect(&f, ATTEND, &c, refused, "token 3, entry 5 is position 2147483647");
    indices[3 * TOPK + 5] = 0;
    c.num_indices = TOPK + 1;
    expect(&f, ATTEND, &c, refused, "num_indices is 9, allowed 0..8");
    c.num_indices = -1;
    expect(&f, ATTEND, &c, refused, "num_indices is -1, allowed 0..8");
    c.num_indices = TOPK;
    expect_ok(&f, ATTEND, &c); /* without select: the lists are given */
    expect_ok(&f, OUTPUT, &c);
    close_fixture(&f);
}

/* ---------------------------------------------------------------- batches */

static void expect_batch(fixture *f, const tamis_batch *batch, tamis_status status,
                         const char *part)
{
    tamis_error err = {0};
    const call c = good_call(f);
    plan_step(f);
    assert_int_equal(tamis_sfa_plan_num_tokens(f->rig.plan), N_TOKENS);
    assert_int_equal(tamis_sfa_plan_build(f->rig.plan, batch, &err), status);
    assert_text(&err, part);
    assert_int_equal(tamis_sfa_plan_num_tokens(f->rig.plan), 0); /* the previous plan is void */
    for (int op = 0; op < N_OPERATORS; op++)
        expect(f, (operator_id)op, &c, TAMIS_STATUS_STATE, "no step is planned");
}

static void bad_batches(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    int32_t start[TEST_SFA_MAX_SEQS + 2] = {0, 4, 8}, lens[] = {4, 60}, table[2][1] = {{1}, {2}};
    const tamis_batch good = {2, start, lens, table[0], 1, NULL, NULL}; /* slots are not needed */
    tamis_batch batch = good;
    tamis_error err = {0};
    test_must(tamis_sfa_plan_build(f.rig.plan, &batch, &err), &err, "good batch");
    batch.num_reqs = TEST_SFA_MAX_SEQS + 1;
    expect_batch(&f, &batch, TAMIS_STATUS_LIMIT, "num_reqs is 9, allowed 0..8");
    batch = good;
    start[2] = 2 * MAX_LEN + 1;
    expect_batch(&f, &batch, TAMIS_STATUS_LIMIT, "129 tokens, allowed 0..128");
    start[2] = 3;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "query_start_loc[2] is 3, must be at least 4");
    start[2] = 8;
    lens[1] = MAX_LEN + 1;
    expect_batch(&f, &batch, TAMIS_STATUS_LIMIT, "request 1: seq_len is 65, allowed 0..64");
    lens[1] = 3;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "request 1: seq_len is 3");
    lens[1] = 4;
    table[1][0] = 0;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "request 1: block_table[0] is 0, allowed 1..8");
    table[1][0] = 9;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "request 1: block_table[0] is 9, allowed 1..8");
    table[1][0] = 1;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "block_table[0] is 1, which request 1 writes");
    table[1][0] = 2;
    batch.block_table_stride = 0;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "block table holds 0 blocks, 1 needed");
    batch.block_table_stride = INT64_MAX;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "block_table_stride is 9223372036854775807");
    batch.block_table_stride = -1;
    expect_batch(&f, &batch, TAMIS_STATUS_INVALID, "block_table_stride is -1, allowed 0..");
    assert_memory_equal(cache_memory(&f.rig), f.rows_before, cache_bytes(&f.rig));
    close_fixture(&f);
}

/* A layer needs a step whose build succeeded; one of no tokens is a step. */
static void unplanned(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    call c = good_call(&f);
    tamis_sfa_plan *const planned = f.rig.plan;
    tamis_error err = {0};
    f.rig.plan = f.stranger.plan; /* never built */
    c.caches = f.stranger.caches;
    c.team = f.stranger.team;
    for (int op = 0; op < N_OPERATORS; op++)
        expect(&f, (operator_id)op, &c, TAMIS_STATUS_STATE, "no step is planned");
    f.rig.plan = planned;
    c = good_call(&f);
    const tamis_batch empty = {.num_reqs = 0, .query_start_loc = (int32_t[]){0}};
    for (int i = 0; i < 2; i++) {
        test_must(i == 0 ? tamis_sfa_plan_build(planned, &empty, &err)
                         : tamis_sfa_plan_build_dummy(planned, 0, &err),
                  &err, "empty step");
        memset(out, 0x55, sizeof out);
        expect_ok(&f, FORWARD, &c);
        assert_untouched(out, sizeof out);
        assert_int_equal(tamis_sfa_plan_build_dummy(planned, -1, &err), TAMIS_STATUS_LIMIT);
        expect(&f, FORWARD, &c, TAMIS_STATUS_STATE, "no step is planned");
    }
    assert_memory_equal(cache_memory(&f.rig), f.rows_before, cache_bytes(&f.rig));
    close_fixture(&f);
}

/* out may begin where x ends, and no earlier. */
static void overlap(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    enum { N = N_TOKENS * HIDDEN };
    static float memory[3 * N];
    float *x = memory + N;
    const int distances[] = {0, 1 - N, N - 1, -N, N};
    memcpy(x, f.x, N * sizeof *x);
    for (int i = 0; i < 5; i++) {
        tamis_error err = {0};
        assert_int_equal(tamis_sfa_forward(&f.layers[0], 0, f.rig.plan, f.rig.caches, x,
                                           x + distances[i], f.rig.team, &err),
                         i < 3 ? TAMIS_STATUS_INVALID : TAMIS_STATUS_OK);
        if (i >= 3)
            continue;
        assert_text(&err, "out overlaps x");
        assert_memory_equal(cache_memory(&f.rig), f.rows_before, cache_bytes(&f.rig));
    }
    close_fixture(&f);
}

/* ---------------------------------------------------------------- damage */

/* A NaN or infinity in x, a NaN in any weight, and a row too large for its norm are reported. */
static void damage_is_reported(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    const call c = good_call(&f);
    tamis_error err = {0};
    const float bad_values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        const float kept = f.x[5];
        f.x[5] = bad_values[i];
        assert_int_equal(run(&f, FORWARD, &c, &err), TAMIS_STATUS_FORMAT);
        assert_text(&err, "layer 0: attention met a NaN or an infinity");
        f.x[5] = kept;
    }
    float kept_x[N_TOKENS * HIDDEN];
    memcpy(kept_x, f.x, sizeof kept_x);
    for (int i = 0; i < N_TOKENS * HIDDEN; i++)
        f.x[i] = 1e20f;
    assert_int_equal(run(&f, FORWARD, &c, &err), TAMIS_STATUS_FORMAT);
    assert_text(&err, "layer 0: attention met a NaN or an infinity");
    memcpy(f.x, kept_x, sizeof kept_x);
    const tamis_sfa_weights *w = &f.layers[0].weights;
    const void *places[] = {w->q_a_proj.data,  w->q_b_proj.data,
                            w->kv_a_proj.data, w->kv_b_proj.data,
                            w->o_proj.data,    w->q_a_norm,
                            w->kv_a_norm,      w->index_wq_b.data,
                            w->index_wk.data,  w->index_weights_proj.data,
                            w->index_k_norm,   w->index_k_norm_bias};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        float *place = (float *)(uintptr_t)places[i];
        const float kept = *place;
        *place = NAN;
        plan_step(&f);
        if (run(&f, FORWARD, &c, &err) != TAMIS_STATUS_FORMAT)
            fail_msg("damage %zu was not reported", i);
        *place = kept;
    }
    plan_step(&f);
    expect_ok(&f, FORWARD, &c); /* nothing sticks */
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(wrong_configs),
        cmocka_unit_test(wrong_weights),
        cmocka_unit_test(bad_dimensions),
        cmocka_unit_test(operators_in_order),
        cmocka_unit_test(bad_indices),
        cmocka_unit_test(bad_batches),
        cmocka_unit_test(unplanned),
        cmocka_unit_test(overlap),
        cmocka_unit_test(damage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
