/*
 * Rows in the layouts of other engines: their bytes at the real models' sizes, pages with the
 * scales after the values, writing, reading and converting.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "kernels/formats.h"
#include "support/kernel_ref_lowbit.h"
#include "support/sanitized.h"
#include "tamis/rows.h"

#define MAX_VALUES 576

static tamis_row_format format_of(tamis_row_layout layout, int32_t num_values, int32_t num_plain)
{
    tamis_row_format f;
    tamis_error err;
    if (tamis_row_format_make(&f, layout, num_values, num_plain, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return f;
}

/* ---------------------------------------------------------------- layouts */

/* Sizes and offsets of the models: spec/v4-attention.md 6.3, spec/v32-attention.md 6.1 to 6.4. */
static void test_bytes_of_real_sizes(void **state)
{
    (void)state;
    const struct {
        tamis_row_layout layout;
        int32_t num_values, num_plain, row_bytes, coded_at, plain_at, scale_at, groups;
    } rows[] = {
        {TAMIS_ROWS_F32, 512, 0, 2048, 0, 0, 0, 0},
        {TAMIS_ROWS_BF16, 576, 0, 1152, 0, 0, 0, 0},
        {TAMIS_ROWS_V4_FP8, 512, 64, 584, 0, 448, 576, 7},
        {TAMIS_ROWS_V4_A5, 512, 64, 640, 128, 0, 576, 7},
        {TAMIS_ROWS_LATENT_FLASHMLA, 576, 64, 656, 0, 528, 512, 4},
        {TAMIS_ROWS_LATENT_ASCEND, 576, 64, 656, 0, 512, 640, 4},
        {TAMIS_ROWS_INDEX_FP8, 128, 0, 132, 0, 0, 128, 1},
        {TAMIS_ROWS_INDEX_FP4, 128, 0, 68, 0, 0, 64, 4},
        {TAMIS_ROWS_INDEX_INT8, 128, 0, 130, 0, 0, 128, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tamis_row_format f = format_of(rows[i].layout, rows[i].num_values, rows[i].num_plain);
        assert_int_equal(f.row_bytes, rows[i].row_bytes);
        assert_int_equal(f.coded_at, rows[i].coded_at);
        assert_int_equal(f.plain_at, rows[i].plain_at);
        assert_int_equal(f.scale_at, rows[i].scale_at);
        assert_int_equal(tamis_row_num_groups(&f), rows[i].groups);
    }
}

static void test_refused_formats(void **state)
{
    (void)state;
    const struct {
        int layout;
        int32_t num_values, num_plain;
        const char *part;
    } bad[] = {
        {-1, 128, 0, "layout"},
        {TAMIS_NUM_ROW_LAYOUTS, 128, 0, "layout"},
        {TAMIS_ROWS_V4_FP8, 0, 0, "num_values is 0"},
        {TAMIS_ROWS_V4_FP8, 65537, 0, "num_values is 65537"},
        {TAMIS_ROWS_V4_FP8, 64, 64, "num_plain is 64, allowed 0..63"},
        {TAMIS_ROWS_V4_A5, 64, -1, "num_plain is -1"},
        {TAMIS_ROWS_BF16, 64, 1, "num_plain is 1, allowed 0..0"},
        {TAMIS_ROWS_INDEX_FP8, 64, 1, "num_plain"},
        {TAMIS_ROWS_INDEX_FP4, 63, 0, "must be even"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tamis_row_format f;
        tamis_error err;
        assert_int_equal(tamis_row_format_make(&f, (tamis_row_layout)bad[i].layout,
                                               bad[i].num_values, bad[i].num_plain, &err),
                         TAMIS_STATUS_INVALID);
        if (strstr(err.text, bad[i].part) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].part);
    }
    for (int layout = 0; layout < TAMIS_NUM_ROW_LAYOUTS; layout++)
        assert_true(strlen(tamis_row_layout_name((tamis_row_layout)layout)) > 2);
    assert_string_equal(tamis_row_layout_name((tamis_row_layout)99), "?");
}

/* ---------------------------------------------------------------- pages */

/* vLLM's and DeepGEMM's pages: values of all rows, then scales of all rows. */
static void test_planar_pages(void **state)
{
    (void)state;
    const struct {
        tamis_row_layout layout;
        int32_t num_values, num_plain, row_stride, scale_stride, coded_at, plain_at;
    } pages[] = {
        {TAMIS_ROWS_V4_FP8, 512, 64, 576, 8, 0, 448}, /* 584 a token */
        {TAMIS_ROWS_V4_A5, 512, 64, 576, 8, 128, 0},
        {TAMIS_ROWS_LATENT_FLASHMLA, 576, 64, 640, 16, 0, 512},
        {TAMIS_ROWS_LATENT_ASCEND, 576, 64, 640, 16, 0, 512},
        {TAMIS_ROWS_INDEX_FP8, 128, 0, 128, 4, 0, 0}, /* 132 a token */
        {TAMIS_ROWS_INDEX_FP4, 128, 0, 64, 4, 0, 0},
        {TAMIS_ROWS_INDEX_INT8, 128, 0, 128, 2, 0, 0},
    };
    static uint8_t page[64 * 656];
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        const tamis_row_format f =
            format_of(pages[i].layout, pages[i].num_values, pages[i].num_plain);
        const tamis_rows rows = tamis_rows_planar_page(&f, page, 64);
        assert_int_equal(rows.row_stride, pages[i].row_stride);
        assert_int_equal(rows.scale_stride, pages[i].scale_stride);
        assert_ptr_equal(rows.scales, page + 64 * pages[i].row_stride);
        assert_int_equal(rows.format.coded_at, pages[i].coded_at);
        if (pages[i].num_plain != 0)
            assert_int_equal(rows.format.plain_at, pages[i].plain_at);
    }
    const tamis_row_format bf16 = format_of(TAMIS_ROWS_BF16, 128, 0);
    const tamis_rows plain = tamis_rows_planar_page(&bf16, page, 64);
    assert_int_equal(plain.row_stride, 256);
    assert_null(plain.scales);
}

static tamis_row_format random_format(test_rng *rng)
{
    const tamis_row_layout layout =
        (tamis_row_layout)test_rng_int(rng, 0, TAMIS_NUM_ROW_LAYOUTS - 1);
    const bool has_plain = layout >= TAMIS_ROWS_V4_FP8 && layout <= TAMIS_ROWS_LATENT_ASCEND;
    const int32_t n = 2 * (int32_t)test_rng_int(rng, 1, MAX_VALUES / 2 - 1);
    return format_of(layout, has_plain ? n + 1 : n,
                     has_plain ? (int32_t)test_rng_int(rng, 0, n) : 0);
}

/* Random rows of a page are written, read back and left alone by the others' writing. */
static void test_encode_and_decode(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    test_rng rng = test_rng_start("rows encode", 101);
    static float x[ROWS][MAX_VALUES], y[ROWS][MAX_VALUES];
    static double want[MAX_VALUES];
    for (int round = 0; round < (TEST_IS_SANITIZED ? 40 : 200); round++) {
        const tamis_row_format f = random_format(&rng);
        test_guard page = test_guard_new((size_t)(ROWS * f.row_bytes), (size_t)round % 9, &rng);
        const tamis_rows rows = round % 2 ? tamis_rows_planar_page(&f, page.data, ROWS)
                                          : tamis_rows_contiguous(&f, page.data);
        for (int i = 0; i < ROWS; i++)
            kernel_fill(&rng, (kernel_data)(round % KERNEL_NUM_DATA), x[i], MAX_VALUES);
        tamis_rows_encode(&rows, 2, ROWS - 2, x[2], MAX_VALUES);
        tamis_rows_encode(&rows, 0, 2, x[0], MAX_VALUES);
        assert_true(test_guard_intact(&page));
        tamis_rows_decode(&rows, 0, 1, y[0], MAX_VALUES);
        tamis_rows_decode(&rows, 1, ROWS - 1, y[1], MAX_VALUES);
        for (int i = 0; i < ROWS; i++) {
            lowbit_ref_round_trip(want, &rows.format, x[i]);
            for (int32_t k = 0; k < f.num_values; k++)
                assert_true(kernel_same_f32(y[i][k], (float)want[k]));
        }
        test_guard_free(&page);
    }
}

/* A row by hand: 2 groups, the second short, one rotated value; spec/v4-attention.md 6.3's order.
 */
static void test_row_by_hand(void **state)
{
    (void)state;
    float x[67] = {0};
    x[0] = 7.0f;    /* amax 7: scale 2^-6, code of 448 */
    x[1] = -3.5f;   /* -224 */
    x[64] = 448.0f; /* scale 1 */
    x[65] = 0.3f;   /* 0.3125 */
    x[66] = 1.0f;   /* rotated */
    uint8_t row[72];
    const tamis_row_format fp8 = format_of(TAMIS_ROWS_V4_FP8, 67, 1);
    assert_int_equal(fp8.row_bytes, 72);
    tamis_rows rows = tamis_rows_contiguous(&fp8, row);
    memset(row, 0xee, sizeof row);
    tamis_rows_encode(&rows, 0, 1, x, 67);
    uint8_t want[72] = {0x7e, 0xf6};
    want[64] = 0x7e;
    want[65] = 0x2a;
    want[66] = 0x80; /* bf16 1.0 is 0x3f80 */
    want[67] = 0x3f;
    want[68] = 121;
    want[69] = 127;
    assert_memory_equal(row, want, sizeof row);
    uint8_t a5[128], want_a5[128] = {0x80, 0x3f, 0x76, 0xee};
    const tamis_row_format rope_first = format_of(TAMIS_ROWS_V4_A5, 67, 1);
    assert_int_equal(rope_first.row_bytes, 128);
    rows = tamis_rows_contiguous(&rope_first, a5);
    tamis_rows_encode(&rows, 0, 1, x, 67);
    want_a5[66] = 0x76; /* one exponent up: 448 / 2, and 0.3 / 2 */
    want_a5[67] = 0x22;
    want_a5[68] = 122;
    want_a5[69] = 128;
    assert_memory_equal(a5, want_a5, sizeof a5);
}

/* ---------------------------------------------------------------- conversion */

static void encode_random(test_rng *rng, const tamis_rows *rows, int64_t n)
{
    float x[MAX_VALUES];
    for (int64_t i = 0; i < n; i++) {
        kernel_fill(rng, i == 0 ? KERNEL_DATA_SPECIAL : KERNEL_DATA_WIDE, x, MAX_VALUES);
        if (i == 1)
            memset(x, 0, sizeof x);
        tamis_rows_encode(rows, i, 1, x, MAX_VALUES);
    }
}

/*
 * Between layouts of the same codes nothing is lost: there and back is the same bytes, and both
 * sides read the same values.
 */
static void test_lossless_conversions(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    test_rng rng = test_rng_start("rows convert", 102);
    static uint8_t a[ROWS * 2304], b[ROWS * 2304], back[ROWS * 2304];
    static float from[ROWS][MAX_VALUES], to[ROWS][MAX_VALUES];
    const tamis_row_layout pairs[][2] = {
        {TAMIS_ROWS_V4_FP8, TAMIS_ROWS_V4_A5},
        {TAMIS_ROWS_V4_A5, TAMIS_ROWS_V4_FP8},
        {TAMIS_ROWS_LATENT_FLASHMLA, TAMIS_ROWS_LATENT_FLASHMLA},
        {TAMIS_ROWS_LATENT_ASCEND, TAMIS_ROWS_LATENT_ASCEND},
        {TAMIS_ROWS_INDEX_FP8, TAMIS_ROWS_INDEX_FP8},
        {TAMIS_ROWS_INDEX_FP4, TAMIS_ROWS_INDEX_FP4},
        {TAMIS_ROWS_INDEX_INT8, TAMIS_ROWS_INDEX_INT8},
        {TAMIS_ROWS_BF16, TAMIS_ROWS_F32},
        {TAMIS_ROWS_F32, TAMIS_ROWS_F32},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int planar = 0; planar < 4; planar++) {
            const bool has_plain = pairs[i][0] >= TAMIS_ROWS_V4_FP8 && pairs[i][0] <= 5;
            const tamis_row_format fa = format_of(pairs[i][0], 576, has_plain ? 64 : 0);
            const tamis_row_format fb = format_of(pairs[i][1], 576, has_plain ? 64 : 0);
            memset(a, 0, sizeof a);
            memset(back, 0, sizeof back);
            const tamis_rows ra =
                planar & 1 ? tamis_rows_planar_page(&fa, a, ROWS) : tamis_rows_contiguous(&fa, a);
            const tamis_rows rb =
                planar & 2 ? tamis_rows_planar_page(&fb, b, ROWS) : tamis_rows_contiguous(&fb, b);
            tamis_rows again = ra;
            again.data = back;
            if (ra.scales)
                again.scales = back + ((uint8_t *)ra.scales - a);
            encode_random(&rng, &ra, ROWS);
            assert_int_equal(tamis_rows_convert(&rb, &ra, ROWS, NULL), TAMIS_STATUS_OK);
            assert_int_equal(tamis_rows_convert(&again, &rb, ROWS, NULL), TAMIS_STATUS_OK);
            assert_memory_equal(a, back, sizeof a);
            tamis_rows_decode(&ra, 0, ROWS, from[0], MAX_VALUES);
            tamis_rows_decode(&rb, 0, ROWS, to[0], MAX_VALUES);
            assert_int_equal(kernel_first_difference(from[0], to[0], ROWS * MAX_VALUES), -1);
        }
}

/* Other codes: what decoding and encoding give. */
static void test_conversions_through_values(void **state)
{
    (void)state;
    enum { ROWS = 4 };
    test_rng rng = test_rng_start("rows convert values", 103);
    static uint8_t a[ROWS * 2304], b[ROWS * 2304], want[ROWS * 2304];
    static float x[ROWS][MAX_VALUES];
    for (int src = 0; src < TAMIS_NUM_ROW_LAYOUTS; src++)
        for (int dst = 0; dst < TAMIS_NUM_ROW_LAYOUTS; dst++) {
            const bool plain_src = src >= TAMIS_ROWS_V4_FP8 && src <= TAMIS_ROWS_LATENT_ASCEND;
            const bool plain_dst = dst >= TAMIS_ROWS_V4_FP8 && dst <= TAMIS_ROWS_LATENT_ASCEND;
            const tamis_row_format fa =
                format_of((tamis_row_layout)src, MAX_VALUES, plain_src ? 64 : 0);
            const tamis_row_format fb =
                format_of((tamis_row_layout)dst, MAX_VALUES, plain_dst ? 64 : 0);
            const bool both_scaled = fa.group_size != 0 && fb.group_size != 0;
            if (both_scaled && (plain_src != plain_dst || fa.dtype == fb.dtype))
                continue;
            const tamis_rows ra = tamis_rows_contiguous(&fa, a), rb = tamis_rows_contiguous(&fb, b);
            const tamis_rows rw = tamis_rows_contiguous(&fb, want);
            encode_random(&rng, &ra, ROWS);
            assert_int_equal(tamis_rows_convert(&rb, &ra, ROWS, NULL), TAMIS_STATUS_OK);
            tamis_rows_decode(&ra, 0, ROWS, x[0], MAX_VALUES);
            tamis_rows_encode(&rw, 0, ROWS, x[0], MAX_VALUES);
            assert_memory_equal(b, want, (size_t)(ROWS * fb.row_bytes));
        }
}

/* A scale that is no power of two has no place in an E8M0 byte: that row alone is encoded anew. */
static void test_scales_that_do_not_fit(void **state)
{
    (void)state;
    float x[2][64], y[2][64];
    uint8_t a[2 * 68], b[2 * 72];
    tamis_row_format amax = format_of(TAMIS_ROWS_INDEX_FP8, 64, 0);
    const tamis_row_format pow2 = format_of(TAMIS_ROWS_V4_FP8, 64, 0);
    amax.scale_rule = TAMIS_SCALE_AMAX;
    for (int k = 0; k < 64; k++) {
        x[0][k] = 448.0f * (float)(k - 32) / 32.0f; /* amax 448: scale 1 */
        x[1][k] = 300.0f * (float)(k - 32) / 32.0f; /* scale 300 / 448 */
    }
    const tamis_rows ra = tamis_rows_contiguous(&amax, a), rb = tamis_rows_contiguous(&pow2, b);
    tamis_rows_encode(&ra, 0, 2, x[0], 64);
    assert_int_equal(tamis_rows_convert(&rb, &ra, 2, NULL), TAMIS_STATUS_OK);
    assert_memory_equal(b, a, 64);
    assert_int_equal(b[64], 127);
    assert_int_equal(b[72 + 64], 127); /* 2^ceil(log2(300 / 448)) */
    tamis_rows_decode(&ra, 1, 1, x[1], 64);
    tamis_rows_decode(&rb, 1, 1, y[1], 64);
    for (int k = 0; k < 64; k++)
        assert_true(fabsf(x[1][k] - y[1][k]) <= fabsf(x[1][k]) / 16);
}

static void test_refused_conversions(void **state)
{
    (void)state;
    uint8_t a[1024], b[1024];
    tamis_error err;
    const tamis_row_format f = format_of(TAMIS_ROWS_V4_FP8, 128, 64);
    const tamis_row_format more = format_of(TAMIS_ROWS_V4_FP8, 130, 64);
    const tamis_row_format other = format_of(TAMIS_ROWS_V4_A5, 128, 32);
    const tamis_row_format bf16 = format_of(TAMIS_ROWS_BF16, 128, 0);
    const tamis_rows src = tamis_rows_contiguous(&f, a);
    memset(a, 0, sizeof a);
    tamis_rows dst = tamis_rows_contiguous(&more, b);
    assert_int_equal(tamis_rows_convert(&dst, &src, 1, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "num_values is 130, of the source 128"));
    dst = tamis_rows_contiguous(&other, b);
    assert_int_equal(tamis_rows_convert(&dst, &src, 1, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "num_plain is 32, of the source 64"));
    dst = tamis_rows_contiguous(&bf16, b); /* all of it is plain */
    assert_int_equal(tamis_rows_convert(&dst, &src, 1, &err), TAMIS_STATUS_OK);
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_rows_convert(&dst, &src, 1, &err), TAMIS_STATUS_NO_MEMORY);
}

static void test_pairs_and_halves(void **state)
{
    (void)state;
    const float pairs[6] = {1, 2, 3, 4, 5, 6}, halves[6] = {1, 3, 5, 2, 4, 6};
    float out[6];
    tamis_rope_pairs_to_halves(out, pairs, 6);
    assert_memory_equal(out, halves, sizeof out);
    tamis_rope_halves_to_pairs(out, halves, 6);
    assert_memory_equal(out, pairs, sizeof out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_real_sizes),
        cmocka_unit_test(test_refused_formats),
        cmocka_unit_test(test_planar_pages),
        cmocka_unit_test(test_encode_and_decode),
        cmocka_unit_test(test_row_by_hand),
        cmocka_unit_test(test_lossless_conversions),
        cmocka_unit_test(test_conversions_through_values),
        cmocka_unit_test(test_scales_that_do_not_fit),
        cmocka_unit_test(test_refused_conversions),
        cmocka_unit_test(test_pairs_and_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
