/*
 * Single layers of tamis_bench_layer at real dimensions: finite figures, memory as planned, floors
 * that follow from the dimensions. Nothing timed is looked at: times are above 0, no more.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "measure/shapes.h"
#include "support/sanitized.h"

/* Round numbers, so that floors are easy to see. */
static const tamis_roof plain_roof = {1, 100, 200, 10, 5};

static uint64_t bytes_in_use(void)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

static tamis_bench_layer_params small(tamis_shape shape, tamis_bench_kind kind,
                                      tamis_profile profile)
{
    tamis_bench_layer_params p = tamis_bench_layer_params_default();
    p.shape = shape;
    p.kind = kind;
    p.profile = profile;
    p.context = 600;
    p.n_experts = kind == TAMIS_BENCH_MOE ? 8 : 0;
    p.vocab_size = kind == TAMIS_BENCH_HEAD ? 512 : 0;
    p.seconds = 0;
    return p;
}

static void run(const tamis_bench_layer_params *p, tamis_bench_layer_result *out)
{
    tamis_error err = {0};
    if (tamis_bench_layer(p, &plain_roof, out, &err) != TAMIS_STATUS_OK)
        fail_msg("%s %s, profile %s: %s", tamis_shape_name(p->shape),
                 tamis_bench_kind_name(p->kind), tamis_profile_name(p->profile), err.text);
}

static const tamis_bench_stage *stage_of(const tamis_bench_layer_result *r, const char *name)
{
    for (int32_t i = 0; i < r->n_stages; i++)
        if (strcmp(r->stages[i].name, name) == 0)
            return &r->stages[i];
    fail_msg("no stage %s", name);
    return NULL;
}

/* ---------------------------------------------------------------- every kind and profile */

static void check_result(const tamis_bench_layer_params *p, const tamis_bench_layer_result *r)
{
    double floor_ms = 0;
    assert_true(r->n_stages >= 1 && r->n_stages <= TAMIS_MAX_BENCH_STAGES);
    assert_true(r->ms > 0 && isfinite(r->ms));
    assert_true(r->other_ms >= 0 && r->other_ms < r->ms);
    for (int32_t i = 0; i < r->n_stages; i++) {
        const tamis_bench_stage *s = &r->stages[i];
        assert_true(isfinite(s->ms) && s->ms >= 0 && s->ms <= 1.001 * r->ms);
        assert_true(s->floor_ms >= 0 && s->f32_ops >= 0 && s->int8_ops >= 0);
        if (p->kind != TAMIS_BENCH_MOE && s->f32_ops + s->int8_ops > 0)
            assert_true(s->ms > 0); /* what has work was measured */
        if (p->profile != TAMIS_PROFILE_ASCEND && strcmp(s->name, "select") != 0)
            assert_true(s->int8_ops == 0);
        floor_ms += s->floor_ms;
    }
    assert_true(fabs(floor_ms - r->floor_ms) <= 1e-9 * floor_ms);
    const double off = fabs((double)r->taken_bytes / (double)r->planned_bytes - 1);
    if (off > 0.05)
        fail_msg("%s: planned %llu bytes, took %llu", tamis_bench_kind_name(p->kind),
                 (unsigned long long)r->planned_bytes, (unsigned long long)r->taken_bytes);
}

static void run_profiles(tamis_shape shape, tamis_bench_kind kind)
{
    const uint64_t before = bytes_in_use();
    for (int profile = 0; profile < TAMIS_NUM_PROFILES; profile++) {
        const tamis_bench_layer_params p = small(shape, kind, (tamis_profile)profile);
        tamis_bench_layer_result r;
        if (TEST_IS_SANITIZED && kind == TAMIS_BENCH_WINDOW && profile != TAMIS_PROFILE_EXACT)
            continue;
        run(&p, &r);
        check_result(&p, &r);
        const bool has_int8 = stage_of(&r, r.stages[r.n_stages - 1].name)->int8_ops > 0;
        if (kind != TAMIS_BENCH_HEAD)
            assert_true(has_int8 == (profile == TAMIS_PROFILE_ASCEND));
    }
    assert_int_equal(bytes_in_use(), before);
}

static void test_v4(void **state)
{
    (void)state;
    run_profiles(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_WINDOW);
    run_profiles(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_MOE);
    run_profiles(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_HEAD);
    if (TEST_IS_SANITIZED)
        return;
    run_profiles(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_C4);
    run_profiles(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_C128);
}

static void test_sfa(void **state)
{
    (void)state;
    if (TEST_IS_SANITIZED)
        skip();
    run_profiles(TAMIS_SHAPE_V32, TAMIS_BENCH_SFA);
    const tamis_bench_layer_params p =
        small(TAMIS_SHAPE_GLM52, TAMIS_BENCH_SHARED, TAMIS_PROFILE_ASCEND);
    tamis_bench_layer_result r;
    run(&p, &r);
    check_result(&p, &r);
    for (int32_t i = 0; i < r.n_stages; i++) /* it uses another layer's selection */
        assert_string_not_equal(r.stages[i].name, "select");
}

/* ---------------------------------------------------------------- counting */

static void assert_stage(const tamis_bench_layer_result *r, const char *name, double f32_ops,
                         double int8_ops, double bytes)
{
    const tamis_bench_stage *s = stage_of(r, name);
    if (s->f32_ops != f32_ops || s->int8_ops != int8_ops || s->bytes != bytes)
        fail_msg("%s: %.0f f32, %.0f int8 operations, %.0f bytes, expected %.0f, %.0f, %.0f", name,
                 s->f32_ops, s->int8_ops, s->bytes, f32_ops, int8_ops, bytes);
}

/* FP8 bytes of a matrix, and an E8M0 scale per 128 x 128. */
static double fp8(double rows, double cols)
{
    return rows * cols + ceil(rows / 128) * ceil(cols / 128);
}

/*
 * The C4 layer of V4-Flash, one token behind 131,071: 32,768 keys are scored, 128 + 512 rows
 * attended. Hidden 4096, 64 heads of 512, query rank 1024, 8 output groups of rank 1024; indexer 64
 * heads of 128.
 */
static void test_c4_by_hand(void **state)
{
    (void)state;
    tamis_bench_layer_params p = small(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_C4, TAMIS_PROFILE_EXACT);
    tamis_bench_layer_result r;
    if (TEST_IS_SANITIZED)
        skip();
    p.context = 131071;
    run(&p, &r);
    const double compressors = (2 * 1024 + 2 * 256 + 64) * 4096.0; /* BF16, with weights_proj */
    assert_int_equal(r.n_stages, 5);
    assert_stage(&r, "project_in", 2 * ((1024 + 512) * 4096.0 + compressors), 0,
                 fp8(1024, 4096) + fp8(512, 4096) + 2 * compressors);
    assert_stage(&r, "project_q", 2 * (32768 + 8192) * 1024.0, 0,
                 fp8(32768, 1024) + fp8(8192, 1024));
    assert_stage(&r, "select", 2 * 64 * 128 * 32768.0, 0, 32768 * 256.0);
    assert_stage(&r, "attend", 2 * 64 * 640 * (512.0 + 512), 0, 640 * 1024.0);
    assert_stage(&r, "project_out", 2 * (8192 * 4096.0 + 4096 * 8192.0), 0,
                 fp8(8192, 4096) + fp8(4096, 8192));
    /* 100 GFLOP/s and 10 GB/s: scoring is bound by arithmetic, projections by the stream */
    assert_true(fabs(stage_of(&r, "select")->floor_ms - 2 * 64 * 128 * 32768.0 / 100e6) < 1e-9);
    assert_true(fabs(stage_of(&r, "project_q")->floor_ms -
                     (fp8(32768, 1024) + fp8(8192, 1024)) / 10e6) < 1e-9);
    const tamis_roof twice = {1, 200, 400, 20, 10};
    const double floor_ms = r.floor_ms;
    tamis_bench_layer_set_roof(&r, &twice);
    assert_true(fabs(2 * r.floor_ms - floor_ms) < 1e-9);
}

/* The same in ascend at 4,095: 1,024 keys of 130 bytes, int8 weights with a scale per row. */
static void test_c4_in_ascend(void **state)
{
    (void)state;
    tamis_bench_layer_params p = small(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_C4, TAMIS_PROFILE_ASCEND);
    tamis_bench_layer_result r;
    if (TEST_IS_SANITIZED)
        skip();
    p.context = 4094; /* two tokens see 1,023 and 1,024 keys */
    p.num_tokens = 2;
    run(&p, &r);
    const double compressors = (2 * 1024 + 2 * 256 + 64) * 4096.0;
    assert_stage(&r, "project_in", 2 * 2 * compressors, 2 * 2 * (1024 + 512) * 4096.0,
                 (1024 + 512) * (4096.0 + 4) + 2 * compressors);
    assert_stage(&r, "project_q", 0, 2 * 2 * (32768 + 8192) * 1024.0,
                 (32768 + 8192) * (1024.0 + 4));
    assert_stage(&r, "select", 0, 2 * 64 * 128 * (1023.0 + 1024), 1024 * 130.0);
    assert_true(stage_of(&r, "attend")->f32_ops == 2 * 64 * (640 + 640) * (512.0 + 512));
}

/* ---------------------------------------------------------------- shapes */

static void test_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < TAMIS_NUM_SHAPES; i++) {
        const tamis_shape shape = (tamis_shape)i;
        const tamis_shape_cut cut = {.n_experts = -1};
        tamis_model_config c;
        tamis_error err = {0};
        assert_int_equal(tamis_shape_find(tamis_shape_name(shape)), shape);
        if (tamis_shape_config(shape, &cut, &c, &err) != TAMIS_STATUS_OK)
            fail_msg("%s: %s", tamis_shape_name(shape), err.text);
        assert_int_equal(c.num_hidden_layers, 4);
        assert_int_equal(c.n_routed_experts, shape == TAMIS_SHAPE_V4_PRO ? 384 : 256);
        assert_int_equal(c.index_head_dim, 128);
        assert_int_equal(c.num_attention_heads % 64, 0);
        assert_int_equal(c.family == TAMIS_FAMILY_DEEPSEEK_V4, tamis_shape_is_v4(shape));
        for (int32_t l = 0; l < 4; l++) {
            static const int32_t usual[] = {0, 4, 128, 4};
            assert_int_equal(c.compress_ratios[l], tamis_shape_is_v4(shape) ? usual[l] : 0);
            assert_int_equal(c.reuse_topk[l], shape == TAMIS_SHAPE_GLM52 && l == 3);
        }
    }
    assert_int_equal(tamis_shape_find("v5"), TAMIS_NUM_SHAPES);
    assert_int_equal(tamis_shape_find(NULL), TAMIS_NUM_SHAPES);
    assert_string_equal(tamis_shape_name(TAMIS_NUM_SHAPES), "?");
    assert_int_equal(tamis_bench_kind_find("c128"), TAMIS_BENCH_C128);
    assert_int_equal(tamis_bench_kind_find(NULL), TAMIS_NUM_BENCH_KINDS);
    assert_string_equal(tamis_bench_kind_name((tamis_bench_kind)-1), "?");
}

/* Groups of experts stay where the cut allows it. */
static void test_cut_experts(void **state)
{
    (void)state;
    static const int32_t cases[][3] = {{256, 8, 4}, {64, 8, 4}, {16, 8, 4}, {8, 1, 1}, {17, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tamis_shape_cut cut = {.n_experts = cases[i][0]};
        tamis_model_config c;
        assert_int_equal(tamis_shape_config(TAMIS_SHAPE_V32, &cut, &c, NULL), TAMIS_STATUS_OK);
        assert_int_equal(c.n_group, cases[i][1]);
        assert_int_equal(c.topk_group, cases[i][2]);
    }
}

/* ---------------------------------------------------------------- refusals */

static void assert_refused(tamis_bench_layer_params p, tamis_status status, const char *word)
{
    tamis_bench_layer_result r;
    tamis_error err = {0};
    const uint64_t before = bytes_in_use();
    const tamis_roof roof = {p.n_threads, 1, 1, 1, 1};
    assert_int_equal(tamis_bench_layer(&p, &roof, &r, &err), status);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, word);
    assert_int_equal(bytes_in_use(), before);
}

static void test_refusals(void **state)
{
    (void)state;
    const tamis_bench_layer_params good = tamis_bench_layer_params_default();
    tamis_bench_layer_result r;
    tamis_bench_layer_params p;
    assert_int_equal(tamis_bench_layer(NULL, &plain_roof, &r, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_layer(&good, NULL, &r, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_layer(&good, &plain_roof, NULL, NULL), TAMIS_STATUS_INVALID);
#define REFUSED(field, value, word)                                                                \
    (p = good, p.field = (value), assert_refused(p, TAMIS_STATUS_INVALID, word))
    REFUSED(struct_size, 1, "struct_size is 1");
    REFUSED(shape, (tamis_shape)9, "shape is 9");
    REFUSED(kind, (tamis_bench_kind)-1, "kind is ");
    REFUSED(kind, TAMIS_BENCH_SFA, "allowed for v4-flash: window, c4, c128, moe, head");
    REFUSED(shape, TAMIS_SHAPE_V32, "kind is c4, allowed for v32: sfa, moe, head");
    REFUSED(profile, (tamis_profile)7, "profile is 7");
    REFUSED(context, -1, "context is -1");
    REFUSED(context, (1 << 20) + 1, "context is 1048577");
    REFUSED(num_tokens, 0, "num_tokens is 0");
    REFUSED(n_threads, 0, "n_threads is 0");
    REFUSED(seconds, -1, "seconds is -1");
    REFUSED(seconds, (double)NAN, "seconds is ");
#undef REFUSED
    p = small(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_MOE, TAMIS_PROFILE_EXACT);
    p.n_experts = 5;
    assert_refused(p, TAMIS_STATUS_INVALID, "n_experts is 5, allowed 6..256");
    p = good;
    p.kv_cache_dtype = TAMIS_DTYPE_I8;
    assert_refused(p, TAMIS_STATUS_UNSUPPORTED, "kv_cache_dtype is I8");
    p = good;
    p.n_threads = 2; /* not that of the roof */
    assert_int_equal(tamis_bench_layer(&p, &plain_roof, &r, NULL), TAMIS_STATUS_INVALID);
}

/* Whatever allocation fails, everything else is given back. */
static void test_no_memory(void **state)
{
    (void)state;
    const tamis_bench_layer_params p =
        small(TAMIS_SHAPE_V4_FLASH, TAMIS_BENCH_HEAD, TAMIS_PROFILE_EXACT);
    tamis_bench_layer_result r;
    const uint64_t before = bytes_in_use();
    tamis_status st = TAMIS_STATUS_NO_MEMORY;
    for (uint64_t n = 1; st != TAMIS_STATUS_OK; n++) {
        assert_true(n < 1000);
        tamis_mem_fail_at(n);
        st = tamis_bench_layer(&p, &plain_roof, &r, NULL);
        tamis_mem_fail_at(0);
        assert_true(st == TAMIS_STATUS_OK || st == TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(bytes_in_use(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_cut_experts),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_c4_by_hand), cmocka_unit_test(test_c4_in_ascend),
        cmocka_unit_test(test_v4),         cmocka_unit_test(test_sfa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
