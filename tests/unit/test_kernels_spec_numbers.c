/*
 * The worked numbers of the specifications, at every level: spec/v4-attention.md 8.8,
 * spec/v32-attention.md 7.8, 7.11, 7.12 and 7.14.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"

/* ---------------------------------------------------------------- V4 8.8 */

static tamis_row_format format_of(tamis_row_layout layout, int32_t num_values, int32_t num_plain)
{
    tamis_row_format f;
    assert_int_equal(tamis_row_format_make(&f, layout, num_values, num_plain, NULL), 0);
    return f;
}

/* The scale byte that a row of one group gets whose largest magnitude is amax. */
static int scale_byte(tamis_cpu_level level, tamis_row_layout layout, float amax)
{
    const float x[2] = {-amax, amax / 8};
    uint8_t row[128];
    const tamis_row_format f = format_of(layout, 2, 0);
    tamis_kernels_for(level)->pack_row(row, row + f.scale_at, &f, x);
    return row[f.scale_at];
}

static void test_v4_8_8_fp8_scale(void **state)
{
    (void)state;
    const struct {
        float amax;
        int byte;
    } cases[] = {{7.0f, 121}, {3.5f, 120}, {448.0f, 127}, {1.0f, 119}, {0.3f, 117}, {5e-5f, 105}};
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(scale_byte(level_at(level), TAMIS_ROWS_V4_FP8, cases[i].amax),
                         cases[i].byte);
}

static void test_v4_8_8_fp8_round_trip(void **state)
{
    (void)state;
    const float want[4] = {0.3125f, 1.0f, -0.75f, 0.009765625f};
    FOR_EACH_LEVEL(level)
    {
        float x[4] = {0.3f, 1.0f, -0.77f, 0.01f};
        tamis_kernels_for(level_at(level))->round_f8(x, x, 4, 64);
        assert_memory_equal(x, want, sizeof want);
    }
}

static void test_v4_8_8_a5_byte(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    assert_int_equal(scale_byte(level_at(level), TAMIS_ROWS_V4_A5, 7.0f), 122);
}

static void test_v4_8_8_fp4_scale(void **state)
{
    (void)state;
    const float amax[4] = {6.0f, 1.0f, 0.3f, 0.75f}, want[4] = {1.0f, 0.25f, 0.0625f, 0.125f};
    FOR_EACH_LEVEL(level)
    for (int i = 0; i < 4; i++) {
        int8_t q;
        float scale;
        tamis_kernels_for(level_at(level))->quantize_f4(&q, &scale, &amax[i], 1, 32);
        assert_true(scale == want[i]);
        assert_true(tamis_f8_e8m0_to_f32((uint8_t)scale_byte(level_at(level), TAMIS_ROWS_INDEX_FP4,
                                                             amax[i])) == want[i]);
    }
}

static void test_v4_8_8_fp4_round_trip(void **state)
{
    (void)state;
    const float x[6] = {1.0f, 0.6f, 0.3125f, -0.2f, 0.05f, 0};
    const float want[5] = {1.0f, 0.5f, 0.25f, -0.25f, 0};
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_FP4, 6, 0);
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        int8_t q[5];
        uint8_t row[8];
        float scale, y[6];
        kernels->quantize_f4(q, &scale, x, 5, 32);
        kernels->pack_row(row, row + f.scale_at, &f, x);
        kernels->unpack_row(y, row, row + f.scale_at, &f);
        for (int i = 0; i < 5; i++)
            assert_true(q[i] * 0.5f * scale == want[i] && y[i] == want[i]);
    }
}

/* 6.2: ties go to the even code. */
static void test_v4_6_2_fp4_ties(void **state)
{
    (void)state;
    const float x[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
    const int8_t doubled[8] = {0, 2, 2, 4, 4, 8, 8, 12};
    FOR_EACH_LEVEL(level)
    {
        int8_t q[8];
        float scale;
        tamis_kernels_for(level_at(level))->quantize_f4(q, &scale, x, 8, 32);
        assert_true(scale == 1.0f);
        assert_memory_equal(q, doubled, sizeof q);
    }
}

static void test_v4_8_8_int8_row(void **state)
{
    (void)state;
    const float x[4] = {1.0f, -0.5f, 0.26f, 0.004f};
    const int8_t want[4] = {127, -64, 33, 1}; /* -63.5 to even */
    FOR_EACH_LEVEL(level)
    {
        int8_t q[4];
        float scale;
        tamis_kernels_for(level_at(level))->quantize_i8(q, &scale, x, 4);
        assert_true(scale == 1.0f / 127.0f && fabs((double)scale - 0.00787402) < 5e-9);
        assert_memory_equal(q, want, sizeof q);
    }
}

static void test_v4_8_8_hadamard_of_unit_vectors(void **state)
{
    (void)state;
    const float scale = (float)(1 / sqrt(128.0));
    FOR_EACH_LEVEL(level)
    for (int unit = 0; unit < 2; unit++) {
        float x[128] = {0};
        x[unit] = 1.0f;
        tamis_kernels_for(level_at(level))->hadamard(x, 128, scale);
        for (int i = 0; i < 128; i++)
            assert_true(x[i] == (unit == 1 && i % 2 ? -scale : scale));
        assert_true(fabs((double)x[0] - 0.0883883) < 5e-8);
    }
}

/* ---------------------------------------------------------------- V3.2 7 */

static void test_v32_7_8_hadamard(void **state)
{
    (void)state;
    const float want[4] = {5, -1, -2, 0}, once[4] = {1, 2, 3, 4};
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        float x[4] = {1, 2, 3, 4}, wide[16];
        kernels->hadamard(x, 4, 0.5f);
        assert_memory_equal(x, want, sizeof want);
        kernels->hadamard(x, 4, 0.5f);
        assert_memory_equal(x, once, sizeof once);
        for (int i = 0; i < 16; i++) /* 4 x 4, wide enough for vectors */
            wide[i] = once[i / 4];
        kernels->hadamard(wide, 16, 0.125f);
        for (int i = 0; i < 16; i++)
            assert_true(wide[i] == (i % 4 ? 0.0f : want[i / 4]));
    }
}

static void test_v32_7_11_int8_row(void **state)
{
    (void)state;
    const float x[4] = {0.5f, -1.27f, 0.9f, 0.02f};
    const int8_t want[4] = {50, -127, 90, 2};
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_INT8, 4, 0);
    FOR_EACH_LEVEL(level)
    {
        uint8_t row[6];
        float scale;
        int8_t q[4];
        tamis_kernels_for(level_at(level))->pack_row(row, row + f.scale_at, &f, x);
        assert_memory_equal(row, want, sizeof want);
        assert_true(fabs((double)tamis_f16_to_f32(tamis_load_u16(row + 4)) - 0.01000213623) <
                    5e-12);
        tamis_kernels_for(level_at(level))->quantize_i8(q, &scale, x, 4);
        assert_memory_equal(q, want, sizeof want);
        assert_true(fabs((double)scale - 0.01) < 1e-9);
    }
}

/* Dots of 5000 and 5001 tie: both are 4.8828125 after 2^-10 in FP16. */
static void test_v32_7_11_fp16_tie(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_INT8, 2, 0);
    const uint8_t keys[3][4] = {{50, 0, 0, 0x3c}, {50, 1, 0, 0x3c}, {51, 0, 0, 0x3c}};
    int8_t q[16 * 2] = {100, 1};
    const float weights[16] = {1.0f};
    _Alignas(64) float scratch[TAMIS_INDEX_SCRATCH(2, 1)];
    _Alignas(64) uint8_t query[TAMIS_INDEX_QUERY_BYTES(2, 1)];
    FOR_EACH_LEVEL(level)
    {
        float scores[3];
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        kernels->index_query_i8(query, q, weights, 1, 2);
        kernels->index_score_i8(scores, query, 1, 2, keys, &f, 4, 3, NULL, scratch);
        assert_true(scores[0] == 4.8828125f && scores[1] == 4.8828125f);
        assert_true(scores[2] > 4.9f);
    }
}

static void test_v32_7_12_power_of_two_scales(void **state)
{
    (void)state;
    const struct {
        float amax, scale, flashmla; /* 6.3: the floor 1e-4 on the quotient there (trap T22) */
    } cases[] = {{3.0f, 0x1p-7f, 0x1p-7f},
                 {2.0f, 0x1p-7f, 0x1p-7f},
                 {448.0f, 1.0f, 1.0f},
                 {449.0f, 2.0f, 2.0f},
                 {1e-6f, 0x1p-22f, 0x1p-13f}};
    tamis_row_format f = format_of(TAMIS_ROWS_INDEX_FP8, 2, 0);
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        const float x[2] = {0.0f, -cases[i].amax};
        uint8_t row[6];
        f.scale_rule = TAMIS_SCALE_POW2;
        kernels->pack_row(row, row + 2, &f, x);
        assert_true(tamis_load_f32(row + 2) == cases[i].scale);
        f.scale_rule = TAMIS_SCALE_POW2_QUOTIENT;
        kernels->pack_row(row, row + 2, &f, x);
        assert_true(tamis_load_f32(row + 2) == cases[i].flashmla);
    }
}

static void test_v32_7_14_static_linear(void **state)
{
    (void)state;
    const float x[3] = {1.3f, -0.7f, 0.2f}, deq = 0.05f * 0.02f;
    const int8_t codes[3] = {29, -11, 7}, weights[3] = {10, -20, 5};
    const int32_t bias = -3 * (10 - 20 + 5);
    const tamis_matrix w = {
        .dtype = TAMIS_DTYPE_I8, .rows = 1, .cols = 3, .data = weights, .row_bytes = 3};
    assert_int_equal(bias, 15);
    FOR_EACH_LEVEL(level)
    for (int half = 0; half < 2; half++) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        int8_t q[3];
        float y;
        kernels->quantize_i8_static(q, x, 3, 0.05f, 3.0f, half != 0);
        assert_memory_equal(q, codes, sizeof q);
        kernels->linear_i8(&y, 1, q, 3, NULL, 1, &w, &deq, &bias, 0, 1, NULL);
        assert_true(fabs((double)y - 0.56) < 1e-7);
    }
}

/* 64.5004: 65 directly, 64 through FP16, whose nearest is the tie 64.5. */
static void test_v32_7_14_double_rounding(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        float x[20];
        int8_t q[20];
        for (int i = 0; i < 20; i++)
            x[i] = 64.5004f;
        kernels->quantize_i8_static(q, x, 20, 1.0f, 0.0f, false);
        for (int i = 0; i < 20; i++)
            assert_int_equal(q[i], 65);
        kernels->quantize_i8_static(q, x, 20, 1.0f, 0.0f, true);
        for (int i = 0; i < 20; i++)
            assert_int_equal(q[i], 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v4_8_8_fp8_scale),
        cmocka_unit_test(test_v4_8_8_fp8_round_trip),
        cmocka_unit_test(test_v4_8_8_a5_byte),
        cmocka_unit_test(test_v4_8_8_fp4_scale),
        cmocka_unit_test(test_v4_8_8_fp4_round_trip),
        cmocka_unit_test(test_v4_6_2_fp4_ties),
        cmocka_unit_test(test_v4_8_8_int8_row),
        cmocka_unit_test(test_v4_8_8_hadamard_of_unit_vectors),
        cmocka_unit_test(test_v32_7_8_hadamard),
        cmocka_unit_test(test_v32_7_11_int8_row),
        cmocka_unit_test(test_v32_7_11_fp16_tie),
        cmocka_unit_test(test_v32_7_12_power_of_two_scales),
        cmocka_unit_test(test_v32_7_14_static_linear),
        cmocka_unit_test(test_v32_7_14_double_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
