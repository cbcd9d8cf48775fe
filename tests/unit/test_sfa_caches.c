/* Caches and plan of V3.2 and GLM layers: sizes, addresses, copies, limits, refused memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/sfa/caches.h"
#include "core/mem.h"
#include "support/engine_run.h"
#include "support/sfa_rig.h"

#include <string.h>

static tamis_status measure_plan(const tamis_sfa_config *layers, int32_t n_layers,
                                 const tamis_plan_params *params, int32_t block_tokens,
                                 uint64_t *bytes, tamis_error *err)
{
    tamis_cache_params caches = tamis_cache_params_default();
    caches.block_tokens = block_tokens;
    return tamis_sfa_plan_measure(layers, n_layers, params, &caches, bytes, err);
}


enum { N_LAYERS = 3 };

/* With indexer, shared selection, without indexer. */
static void make_layers(tamis_sfa_config *layers)
{
    for (int i = 0; i < N_LAYERS; i++)
        layers[i] = test_sfa_odd_config(TEST_SFA_GLM);
    layers[1].reuse_topk = true;
    layers[2].index_topk = 0;
}

static tamis_cache_params small_params(tamis_dtype dtype)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.kv_cache_dtype = dtype;
    params.block_tokens = 5;
    params.num_blocks = 4;
    return params;
}

/* Bytes of the real models: 576 + 128 values per token and layer with indexer. */
static void sizes_of_real_models(void **state)
{
    (void)state;
    tamis_sfa_config layers[N_LAYERS];
    tamis_cache_params params = tamis_cache_params_default();
    tamis_cache_bytes bytes;
    make_layers(layers);
    for (int i = 0; i < N_LAYERS; i++) {
        layers[i].kv_lora_rank = 512;
        layers[i].qk_rope_head_dim = 64;
        layers[i].index_head_dim = 128;
    }
    params.block_tokens = 128;
    params.num_blocks = 1000;
    assert_int_equal(tamis_sfa_caches_measure(layers, 1, &params, &bytes, NULL), TAMIS_STATUS_OK);
    assert_int_equal(bytes.per_block, 131072 + 16384 + 32768); /* as in the specification, 6.1 */
    assert_int_equal(bytes.blocks, 1000 * (131072 + 16384 + 32768));
    assert_int_equal(bytes.per_slot, 0);
    assert_int_equal(tamis_sfa_caches_measure(layers, 3, &params, &bytes, NULL), TAMIS_STATUS_OK);
    assert_int_equal(bytes.per_block, 3 * (131072 + 16384) + 32768);
}

static uint8_t mark_of(int32_t layer, int role, int32_t block, int32_t row)
{
    return (uint8_t)(1 + layer * 97 + role * 53 + block * 11 + row);
}

/* Every row of every block is a place of its own, at any padding; copies move one block. */
static void check_places(tamis_dtype dtype, int32_t pad)
{
    tamis_sfa_config layers[N_LAYERS];
    tamis_cache_params params = small_params(dtype);
    tamis_sfa_caches *caches;
    tamis_cache_bytes bytes;
    tamis_error err;
    make_layers(layers);
    params.block_pad_bytes = pad;
    const size_t before = tamis_mem_in_use(TAMIS_MEM_CACHES);
    test_must(tamis_sfa_caches_measure(layers, N_LAYERS, &params, &bytes, &err), &err, "measure");
    test_must(tamis_sfa_caches_open(&caches, layers, N_LAYERS, &params, &err), &err, "caches");
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES) - before, bytes.blocks);
    for (int pass = 0; pass < 3; pass++) { /* write, read, read after a copy */
        if (pass == 2)
            test_must(tamis_sfa_caches_copy_block(caches, 1, 3, &err), &err, "copy");
        for (int32_t layer = 0; layer < N_LAYERS; layer++)
            for (int role = 0; role < TAMIS_SFA_NUM_ROLES; role++)
                for (int32_t block = 0; block < params.num_blocks; block++)
                    for (int32_t row = 0; row < params.block_tokens; row++) {
                        uint8_t *at = (uint8_t *)(uintptr_t)tamis_sfa_caches_row(
                            caches, layer, (tamis_sfa_role)role, block, row);
                        if (role == TAMIS_SFA_INDEX_KEY && layer > 0) {
                            assert_null(at);
                            continue;
                        }
                        const size_t n = (size_t)(role == TAMIS_SFA_LATENT ? 88 : 40) *
                                         (size_t)tamis_dtype_bits(dtype) / 8;
                        const int32_t from = pass == 2 && block == 1 ? 3 : block;
                        const uint8_t mark = mark_of(layer, role, from, row);
                        if (pass == 0)
                            memset(at, mark, n);
                        for (size_t b = 0; b < n; b++)
                            assert_int_equal(at[b], mark);
                    }
    }
    const int32_t n = params.num_blocks;
    const int32_t bad[][2] = {{0, 1}, {n, 1}, {-1, 1}, {INT32_MAX, 1}, {1, n}, {1, -1}, {2, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tamis_sfa_caches_copy_block(caches, bad[i][0], bad[i][1], &err),
                         TAMIS_STATUS_INVALID);
        assert_non_null(strstr(err.text, "copy of a block: "));
    }
    tamis_sfa_caches_close(&caches);
    assert_null(caches);
    tamis_sfa_caches_close(&caches); /* twice is fine */
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_CACHES), before);
}

static void places(void **state)
{
    (void)state;
    check_places(TAMIS_DTYPE_F32, 0);
    check_places(TAMIS_DTYPE_BF16, 0);
    check_places(TAMIS_DTYPE_BF16, 192);
}

/* ---------------------------------------------------------------- refusals */

static void expect_params(tamis_cache_params params, tamis_status status, const char *part)
{
    tamis_sfa_config layers[N_LAYERS];
    tamis_sfa_caches *caches;
    tamis_cache_bytes bytes;
    tamis_error err = {0};
    make_layers(layers);
    memset(&bytes, 0x55, sizeof bytes);
    assert_int_equal(tamis_sfa_caches_open(&caches, layers, N_LAYERS, &params, &err), status);
    assert_null(caches);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
    if (status == TAMIS_STATUS_NO_MEMORY)
        return;
    assert_int_equal(tamis_sfa_caches_measure(layers, N_LAYERS, &params, &bytes, &err), status);
    assert_int_equal(bytes.per_block, UINT64_C(0x5555555555555555));
}

static void bad_cache_params(void **state)
{
    (void)state;
    const tamis_cache_params good = tamis_cache_params_default();
    tamis_cache_params p = good;
    p.struct_size = sizeof p - 1;
    expect_params(p, TAMIS_STATUS_INVALID, "struct_size is");
    p = good;
    p.kv_cache_dtype = TAMIS_DTYPE_F16;
    expect_params(p, TAMIS_STATUS_UNSUPPORTED, "kv_cache_dtype is F16, allowed BF16, F32");
    p = good;
    p.block_tokens = 0;
    expect_params(p, TAMIS_STATUS_INVALID, "block_tokens is 0");
    p = good;
    p.num_blocks = 0;
    expect_params(p, TAMIS_STATUS_INVALID, "num_blocks is 0");
    p = good;
    p.block_pad_bytes = 32;
    expect_params(p, TAMIS_STATUS_INVALID, "block_pad_bytes is 32, must be a multiple of 64");
    tamis_sfa_config layer = test_sfa_odd_config(TEST_SFA_GLM);
    tamis_sfa_caches *caches;
    tamis_error err = {0};
    assert_int_equal(tamis_sfa_caches_open(&caches, &layer, 0, &good, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "n_layers is 0, must be at least 1"));
}

static void expect_plan(const tamis_sfa_caches *caches, tamis_plan_params params, const char *part)
{
    tamis_sfa_config layers[N_LAYERS];
    tamis_sfa_plan *plan;
    uint64_t bytes = 77;
    tamis_error err = {0};
    make_layers(layers);
    assert_int_equal(tamis_sfa_plan_open(&plan, caches, &params, &err), TAMIS_STATUS_INVALID);
    assert_null(plan);
    if (strstr(err.text, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", err.text, part);
    assert_int_equal(measure_plan(layers, N_LAYERS, &params, 64, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(bytes, 77);
}

static void bad_plan_params(void **state)
{
    (void)state;
    const tamis_plan_params good = tamis_plan_params_default();
    const tamis_cache_params params = small_params(TAMIS_DTYPE_F32);
    tamis_sfa_config layers[N_LAYERS];
    tamis_sfa_caches *caches;
    tamis_error err;
    uint64_t bytes = 77;
    make_layers(layers);
    test_must(tamis_sfa_caches_open(&caches, layers, N_LAYERS, &params, &err), &err, "caches");
    tamis_plan_params p = good;
    p.struct_size = 0;
    expect_plan(caches, p, "struct_size is 0");
    p = good;
    p.max_num_batched_tokens = 0;
    expect_plan(caches, p, "max_num_batched_tokens is 0");
    p = good;
    p.max_num_seqs = 0;
    expect_plan(caches, p, "max_num_seqs is 0");
    p = good;
    p.max_model_len = 0;
    expect_plan(caches, p, "max_model_len is 0");
    p = good;
    p.n_threads = 257;
    expect_plan(caches, p, "n_threads is 257, allowed 1..256");
    tamis_sfa_caches_close(&caches);
    assert_int_equal(measure_plan(layers, N_LAYERS, &good, 0, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "block_tokens 0"));
    assert_int_equal(measure_plan(layers, 0, &good, 64, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "n_layers is 0"));
    layers[1].v_head_dim = 0;
    assert_int_equal(measure_plan(layers, N_LAYERS, &good, 64, &bytes, &err),
                     TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "v_head_dim is 0"));
    assert_int_equal(bytes, 77);
}

/* Layers may differ in anything; only so many rotary tables and list lengths fit. */
static void kinds_of_layers(void **state)
{
    (void)state;
    const tamis_plan_params params = tamis_plan_params_default();
    tamis_sfa_config layers[9];
    uint64_t bytes;
    tamis_error err;
    for (int i = 0; i < 9; i++) {
        layers[i] = test_sfa_odd_config(TEST_SFA_GLM);
        layers[i].index_topk = 8 + i;
    }
    assert_int_equal(measure_plan(layers, 8, &params, 64, &bytes, &err), TAMIS_STATUS_OK);
    assert_int_equal(measure_plan(layers, 9, &params, 64, &bytes, &err),
                     TAMIS_STATUS_LIMIT);
    assert_non_null(strstr(err.text, "layer 8: more than 8 different kinds"));
}

/* ---------------------------------------------------------------- memory */

static void plan_takes_what_was_measured(void **state)
{
    (void)state;
    const tamis_cache_params params = small_params(TAMIS_DTYPE_BF16);
    const tamis_plan_params plan_params = tamis_plan_params_default();
    tamis_sfa_config layers[N_LAYERS];
    tamis_sfa_caches *caches;
    tamis_sfa_plan *plan;
    tamis_error err;
    uint64_t bytes;
    make_layers(layers);
    test_must(tamis_sfa_caches_open(&caches, layers, N_LAYERS, &params, &err), &err, "caches");
    size_t before = 0, after = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        before += tamis_mem_in_use((tamis_mem_kind)kind);
    test_must(tamis_sfa_plan_open(&plan, caches, &plan_params, &err), &err, "plan");
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        after += tamis_mem_in_use((tamis_mem_kind)kind);
    test_must(
        measure_plan(layers, N_LAYERS, &plan_params, params.block_tokens, &bytes, &err),
        &err, "measure");
    const size_t of_blocks = 8 * (size_t)params.num_blocks;
    assert_in_range(after - before, bytes + of_blocks, bytes + of_blocks + 64);
    tamis_sfa_plan_close(&plan);
    assert_null(plan);
    tamis_sfa_plan_close(&plan);
    tamis_sfa_caches_close(&caches);
}

/* Each allocation in turn is refused: NO_MEMORY, nothing kept. */
static void refused_allocations(void **state)
{
    (void)state;
    const tamis_cache_params params = small_params(TAMIS_DTYPE_BF16);
    const tamis_plan_params plan_params = tamis_plan_params_default();
    tamis_sfa_config layers[N_LAYERS];
    size_t before[TAMIS_NUM_MEM_KINDS];
    make_layers(layers);
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        before[kind] = tamis_mem_in_use((tamis_mem_kind)kind);
    int n_refused = 0;
    for (tamis_status st = TAMIS_STATUS_NO_MEMORY; st != TAMIS_STATUS_OK; n_refused++) {
        tamis_sfa_caches *caches = NULL;
        tamis_sfa_plan *plan = NULL;
        tamis_error err = {0};
        tamis_mem_fail_at((uint64_t)n_refused + 1);
        st = tamis_sfa_caches_open(&caches, layers, N_LAYERS, &params, &err);
        if (st == TAMIS_STATUS_OK)
            st = tamis_sfa_plan_open(&plan, caches, &plan_params, &err);
        tamis_mem_fail_at(0);
        assert_true(st == TAMIS_STATUS_OK || st == TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(plan != NULL, st == TAMIS_STATUS_OK);
        tamis_sfa_plan_close(&plan);
        tamis_sfa_caches_close(&caches);
        for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
            assert_int_equal(tamis_mem_in_use((tamis_mem_kind)kind), before[kind]);
    }
    assert_true(n_refused > 6);
}

/* Steps of any kind allocate nothing. */
static void steps_allocate_nothing(void **state)
{
    (void)state;
    enum { N = 80 };
    test_rng rng = test_rng_start("no allocation", 1);
    const tamis_sfa_config c = test_sfa_odd_config(TEST_SFA_V32);
    test_sfa_layer layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, &rng);
    const tamis_cache_params params = test_sfa_params(N);
    test_sfa_rig rig = test_sfa_rig_open(&layer.layer, 1, &params, N, 2);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    float *x = test_inputs(N, c.hidden_size, &rng);
    float *out = test_take(N * c.hidden_size, sizeof *out);
    const uint64_t n_before = tamis_mem_num_allocs();
    test_sfa_feed(&rig, &seq, x, N, 33, out);
    seq.len = 10;
    test_sfa_feed(&rig, &seq, x, N - 10, 1, out);
    assert_int_equal(tamis_mem_num_allocs(), n_before);
    free(x);
    free(out);
    test_sfa_rig_close(&rig);
    test_sfa_layer_free(&layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_real_models), cmocka_unit_test(places),
        cmocka_unit_test(bad_cache_params),     cmocka_unit_test(bad_plan_params),
        cmocka_unit_test(kinds_of_layers),      cmocka_unit_test(plan_takes_what_was_measured),
        cmocka_unit_test(refused_allocations),  cmocka_unit_test(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
