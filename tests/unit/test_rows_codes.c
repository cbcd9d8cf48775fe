/*
 * Every code of every format through a row and back, at every level: E4M3, E2M1 and int8 codes,
 * E8M0 and FP16 scales, NaN codes, rows of zeros, subnormals and the floors of the scales.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/kernel_ref_lowbit.h"

static tamis_row_format format_of(tamis_row_layout layout, int32_t num_values, int32_t num_plain)
{
    tamis_row_format f;
    assert_int_equal(tamis_row_format_make(&f, layout, num_values, num_plain, NULL), 0);
    return f;
}

/* The row is read and what was read is written again. */
static void round_trip(const tamis_kernels *kernels, const tamis_row_format *f, const uint8_t *row,
                       uint8_t *again, float *x)
{
    kernels->unpack_row(x, row, row + f->scale_at, f);
    kernels->pack_row(again, again + f->scale_at, f, x);
}

/* ---------------------------------------------------------------- FP8 */

/* Each group of 64 has 63 codes and the largest, 448, which fixes the scale. */
static void fill_e4m3_row(uint8_t *row, const tamis_row_format *f, uint8_t scale)
{
    memset(row, 0, (size_t)f->row_bytes);
    for (int i = 0, code = 0; i < f->num_values; i++) {
        if (i % 64 == 0) {
            row[i] = 0x7e;
            continue;
        }
        row[i] = (uint8_t)(code < 256 && code % 128 != 127 ? code : 0x80);
        code++;
    }
    memset(row + f->scale_at, scale, (size_t)tamis_row_num_groups(f));
}

/*
 * 254 codes under 256 scales. Bytes come back where encoding would choose that scale: 448 times it
 * is above the floor 1e-4 (byte 105 and up) and finite (byte 246 and down).
 */
static void test_e4m3_codes_under_all_scales(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_V4_FP8, 320, 0);
    FOR_EACH_LEVEL(level)
    for (int scale = 0; scale < 256; scale++) {
        uint8_t row[336], again[336];
        float x[320];
        fill_e4m3_row(row, &f, (uint8_t)scale);
        round_trip(tamis_kernels_for(level_at(level)), &f, row, again, x);
        for (int i = 0; i < 320; i++)
            assert_true(kernel_same_f32(
                x[i], (float)lowbit_ref_bf16(lowbit_ref_f32(kernel_ref_e4m3(row[i]) *
                                                            kernel_ref_e8m0((uint8_t)scale)))));
        if (scale >= 105 && scale <= 246)
            assert_memory_equal(row, again, (size_t)f.row_bytes);
    }
}

/* The codes NaN are NaN, and nothing else of their group is; writing them makes all of it NaN. */
static void test_e4m3_nan_codes(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_V4_FP8, 128, 0);
    const uint8_t codes[2] = {0x7f, 0xff};
    FOR_EACH_LEVEL(level)
    for (int k = 0; k < 128; k++) {
        uint8_t row[136], again[136];
        float x[128];
        memset(row, 0x38, sizeof row);
        memset(row + f.scale_at, 127, 2);
        row[k] = codes[k % 2];
        round_trip(tamis_kernels_for(level_at(level)), &f, row, again, x);
        for (int i = 0; i < 128; i++) {
            assert_true(i == k ? isnan(x[i]) : x[i] == 1.0f);
            assert_int_equal(again[i], i / 64 == k / 64 ? 0x7f : 0x78); /* 1 / 2^-8 = 256 */
        }
        assert_int_equal(again[f.scale_at + k / 64], 255);
        assert_int_equal(again[f.scale_at + 1 - k / 64], 119);
    }
}

/* Every border between two codes: the tie goes to the even one, its neighbours to the nearer. */
static void test_e4m3_borders(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_V4_FP8, 64, 0);
    FOR_EACH_LEVEL(level)
    for (int code = 0; code < 126; code++)
        for (int sign = 0; sign < 2; sign++) {
            const double low = kernel_ref_e4m3((uint8_t)code),
                         high = kernel_ref_e4m3((uint8_t)(code + 1));
            const float tie = (float)((low + high) / 2);
            float x[64] = {448.0f, tie, nextafterf(tie, 0.0f), nextafterf(tie, 1000.0f)};
            uint8_t row[72];
            for (int i = 1; i < 4; i++)
                x[i] = sign ? -x[i] : x[i];
            tamis_kernels_for(level_at(level))->pack_row(row, row + f.scale_at, &f, x);
            assert_int_equal(row[f.scale_at], 127);
            assert_int_equal(row[1], (code % 2 ? code + 1 : code) | sign << 7);
            assert_int_equal(row[2], code | sign << 7);
            assert_int_equal(row[3], (code + 1) | sign << 7);
        }
}

/* ---------------------------------------------------------------- FP4 */

static void test_e2m1_codes_under_all_scales(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_FP4, 64, 0);
    FOR_EACH_LEVEL(level)
    for (int scale = 0; scale < 256; scale++) {
        uint8_t row[34], again[34];
        float x[64];
        for (int i = 0; i < 32; i++) /* both nibbles run through 16 codes in each group */
            row[i] = (uint8_t)(i % 16 | (15 - i % 16) << 4);
        row[32] = row[33] = (uint8_t)scale;
        round_trip(tamis_kernels_for(level_at(level)), &f, row, again, x);
        for (int i = 0; i < 64; i++)
            assert_true(kernel_same_f32(
                x[i], (float)lowbit_ref_bf16(lowbit_ref_f32(
                          kernel_ref_e2m1((uint8_t)(row[i / 2] >> (i % 2 * 4) & 15)) *
                          kernel_ref_e8m0((uint8_t)scale)))));
        if (scale >= 1 && scale <= 252) /* 2^-126, the floor, to 6 * 2^125 */
            assert_memory_equal(row, again, sizeof row);
        if (scale == 255) /* NaN: codes 0 */
            for (int i = 0; i < 34; i++)
                assert_int_equal(again[i], i < 32 ? 0 : 255);
    }
}

/* ---------------------------------------------------------------- int8 */

/* All 256 codes are read; the 255 that are written come back (with a scale of few bits). */
static void test_int8_codes(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_LATENT_ASCEND, 256, 0);
    FOR_EACH_LEVEL(level)
    {
        uint8_t row[256 + 8], again[256 + 8];
        float x[256];
        const float scale[2] = {0x1p-5f, 0x1p+3f};
        for (int i = 0; i < 256; i++)
            row[i] = (uint8_t)(i < 128 ? 127 - i : 127 + i); /* 127 .. 0 and -1 .. -128 */
        memcpy(row + f.scale_at, scale, sizeof scale);
        row[128] = 0x81; /* -127 fixes the scale of the second group */
        round_trip(tamis_kernels_for(level_at(level)), &f, row, again, x);
        for (int i = 0; i < 256; i++)
            assert_true(x[i] == (float)(int8_t)row[i] * scale[i / 128]);
        assert_memory_equal(row, again, 128);
        for (int code = -127; code < 128; code++) {
            float y[256] = {127.0f * 0x1p-5f, (float)code * 0x1p-5f};
            tamis_kernels_for(level_at(level))->pack_row(again, again + f.scale_at, &f, y);
            assert_int_equal((int8_t)again[1], code);
            assert_true(tamis_load_f32(again + f.scale_at) == 0x1p-5f);
        }
    }
}

/* Halves between two codes go to the even one. */
static void test_int8_ties(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_INT8, 256, 0);
    FOR_EACH_LEVEL(level)
    {
        float x[256];
        uint8_t row[258];
        for (int i = 0; i < 256; i++) /* -126.5 to 126.5, then what makes the scale 1 */
            x[i] = i < 254 ? (float)i - 126.5f : 127.0f;
        tamis_kernels_for(level_at(level))->pack_row(row, row + f.scale_at, &f, x);
        for (int i = 0; i < 256; i++)
            assert_int_equal((int8_t)row[i], (int)nearbyint((double)x[i]));
    }
}

/* Every FP16 scale: written from rows that have it exactly, and read. */
static void test_f16_scales(void **state)
{
    (void)state;
    const tamis_row_format f = format_of(TAMIS_ROWS_INDEX_INT8, 16, 0);
    FOR_EACH_LEVEL(level)
    for (int half = 0; half < 65536; half++) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        const double scale = kernel_ref_f16((uint16_t)half);
        uint8_t row[18] = {1, 0x81, 127};
        float x[16] = {0}, y[16];
        row[16] = (uint8_t)half;
        row[17] = (uint8_t)(half >> 8);
        kernels->unpack_row(y, row, row + f.scale_at, &f);
        assert_true(kernel_same_f32(y[0], (float)lowbit_ref_bf16(scale)));
        assert_true(kernel_same_f32(y[1], (float)lowbit_ref_bf16(lowbit_ref_f32(-127 * scale))));
        if (half >= 0x7c00) /* infinity, NaN, negative: no scale of a row */
            continue;
        uint8_t want[18] = {1, 0x81, 127};
        memcpy(want + 16, row + 16, 2);
        x[0] = (float)scale;
        x[1] = (float)(-127 * scale);
        x[2] = (float)(127 * scale);
        if (half == 0)
            memset(want, 0, sizeof want);
        kernels->pack_row(row, row + f.scale_at, &f, x);
        assert_memory_equal(row, want, sizeof want);
    }
}

/* ---------------------------------------------------------------- zeros, NaN, floors */

static void test_rows_of_zeros(void **state)
{
    (void)state;
    const struct {
        tamis_row_layout layout;
        float scale;
    } layouts[] = {
        {TAMIS_ROWS_V4_FP8, 0x1p-22f},          {TAMIS_ROWS_V4_A5, 0x1p-22f},
        {TAMIS_ROWS_LATENT_FLASHMLA, 0x1p-22f}, {TAMIS_ROWS_LATENT_ASCEND, 0.0f},
        {TAMIS_ROWS_INDEX_FP8, 0x1p-22f},       {TAMIS_ROWS_INDEX_FP4, 0x1p-126f},
        {TAMIS_ROWS_INDEX_INT8, 0.0f},
    };
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        const tamis_row_format f = format_of(layouts[i].layout, 130, 0);
        float x[130] = {0}, y[130];
        uint8_t row[256];
        kernels->pack_row(row, row + f.scale_at, &f, x);
        assert_true(tamis_scale_load(row + f.scale_at, f.scale_dtype) == layouts[i].scale);
        kernels->unpack_row(y, row, row + f.scale_at, &f);
        assert_memory_equal(x, y, sizeof x);
    }
}

/* amax of one subnormal, of the floor and of what lies just above it. */
static void test_floors(void **state)
{
    (void)state;
    const struct {
        tamis_row_layout layout;
        float amax, scale;
    } cases[] = {
        {TAMIS_ROWS_V4_FP8, 0x1p-149f, 0x1p-22f},
        {TAMIS_ROWS_V4_FP8, 1e-4f, 0x1p-22f},
        {TAMIS_ROWS_V4_FP8, 1.1e-4f, 0x1p-21f},
        {TAMIS_ROWS_INDEX_FP4, 0x1p-149f, 0x1p-126f},
        {TAMIS_ROWS_INDEX_FP4, 0x1p-126f, 0x1p-126f},
        {TAMIS_ROWS_INDEX_FP4, 6 * 0x1p-126f, 0x1p-126f},
        {TAMIS_ROWS_INDEX_FP4, 7 * 0x1p-126f, 0x1p-125f},
        {TAMIS_ROWS_LATENT_ASCEND, 0x1p-149f, 0.0f},
        {TAMIS_ROWS_LATENT_ASCEND, 127 * 0x1p-149f, 0x1p-149f},
    };
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tamis_row_format f = format_of(cases[i].layout, 2, 0);
        const float x[2] = {-cases[i].amax, 0.0f};
        uint8_t row[64];
        tamis_kernels_for(level_at(level))->pack_row(row, row + f.scale_at, &f, x);
        assert_true(tamis_scale_load(row + f.scale_at, f.scale_dtype) == cases[i].scale);
    }
}

/* A NaN or an infinity anywhere makes its group NaN and no other, in bytes that are fixed. */
static void test_bad_numbers(void **state)
{
    (void)state;
    const float bad[5] = {NAN, -NAN, INFINITY, -INFINITY, tamis_float_of(0xffffffffu)};
    for (int layout = TAMIS_ROWS_V4_FP8; layout < TAMIS_NUM_ROW_LAYOUTS; layout++)
        for (int k = 0; k < 100; k++)
            FOR_EACH_LEVEL(level)
            {
                const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
                const tamis_row_format f = format_of((tamis_row_layout)layout, 100, 0);
                const bool is_f4 = f.dtype == TAMIS_DTYPE_F4_E2M1;
                float x[100], y[100];
                uint8_t row[192];
                for (int i = 0; i < 100; i++)
                    x[i] = i == k ? bad[k % 5] : 1.0f;
                kernels->pack_row(row, row + f.scale_at, &f, x);
                kernels->unpack_row(y, row, row + f.scale_at, &f);
                for (int i = 0; i < 100; i++) {
                    const bool same_group = i / f.group_size == k / f.group_size;
                    const uint8_t code = row[f.coded_at + (is_f4 ? i / 2 : i)];
                    assert_true(same_group ? isnan(y[i]) : y[i] == 1.0f);
                    if (same_group)
                        assert_int_equal(code, f.dtype == TAMIS_DTYPE_F8_E4M3 ? 0x7f : 0);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_codes_under_all_scales),
        cmocka_unit_test(test_e4m3_nan_codes),
        cmocka_unit_test(test_e4m3_borders),
        cmocka_unit_test(test_e2m1_codes_under_all_scales),
        cmocka_unit_test(test_int8_codes),
        cmocka_unit_test(test_int8_ties),
        cmocka_unit_test(test_f16_scales),
        cmocka_unit_test(test_rows_of_zeros),
        cmocka_unit_test(test_floors),
        cmocka_unit_test(test_bad_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
