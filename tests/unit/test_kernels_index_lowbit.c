/*
 * Index scores over FP8, FP4 and int8 keys: every level against portable bit for bit, portable
 * against the contract's steps in double precision with explicit roundings.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/kernel_ref_lowbit.h"
#include "support/sanitized.h"

static const int64_t key_dims[] = {2,  4,  14,  16,  18,  30,  32,  34,  62,
                                   64, 96, 100, 128, 160, 256, 508, 512, 600};
#define ROUNDS (TEST_IS_SANITIZED ? 60 : 300)

typedef struct low_case {
    int64_t heads, padded, dim, n_keys, key_stride;
    tamis_row_format format;
    kernel_page keys;
    int8_t *q;      /* [padded][dim], zeros after heads */
    float *q_scale; /* [padded][groups] */
    float *weights; /* [padded] */
} low_case;

static float as_bf16(float x)
{
    return (float)lowbit_ref_bf16((double)x);
}

/* special: any scale bytes and weights, NaN and infinities included. */
static void fill_case(test_rng *rng, low_case *c, bool special)
{
    const bool is_f4 = c->format.dtype == TAMIS_DTYPE_F4_E2M1;
    static const int8_t doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int32_t groups = tamis_row_num_groups(&c->format);
    const int64_t least =
        test_rng_int(rng, 0, 3) == 0 ? -128 : -127; /* -128 has a path of its own */
    for (int64_t j = 0; j < c->n_keys; j++) {
        uint8_t *row = (uint8_t *)c->keys.data + j * c->key_stride;
        test_rng_fill_bytes(rng, row, (size_t)c->format.row_bytes);
        for (int g = 0; is_f4 && !special && g < groups; g++)
            row[c->format.scale_at + g] = (uint8_t)test_rng_int(rng, 115, 135);
        if (!is_f4 && !special)
            row[c->format.scale_at + 1] = (uint8_t)test_rng_int(rng, 0x10, 0x3c);
    }
    for (int64_t h = 0; h < c->heads; h++) {
        for (int64_t d = 0; d < c->dim; d++) {
            const int8_t code = doubled[test_rng_int(rng, 0, 7)];
            const int8_t byte = (int8_t)test_rng_int(rng, least, 127);
            c->q[h * c->dim + d] = !is_f4 ? byte : byte < 0 ? (int8_t)-code : code;
        }
        for (int g = 0; g < groups; g++)
            c->q_scale[h * groups + g] = ldexpf(1.0f, (int)test_rng_int(rng, -20, 5));
        kernel_fill(rng, special ? KERNEL_DATA_SPECIAL : KERNEL_DATA_NORMAL, c->weights + h, 1);
        c->weights[h] =
            is_f4 ? as_bf16(c->weights[h]) : (float)lowbit_ref_f16((double)c->weights[h]);
    }
}

static low_case low_case_new(test_rng *rng, tamis_row_layout layout, bool special)
{
    low_case c = {.heads = PICK(rng, head_counts), .dim = PICK(rng, key_dims)};
    c.padded = (c.heads + 15) / 16 * 16;
    c.n_keys = PICK(rng, row_counts);
    assert_int_equal(tamis_row_format_make(&c.format, layout, (int32_t)c.dim, 0, NULL),
                     TAMIS_STATUS_OK);
    static const int32_t groups[] = {32, 32, 32, 4, 16, 64, 128, 6, 160};
    if (layout == TAMIS_ROWS_INDEX_FP4) {
        c.format.group_size = groups[test_rng_int(rng, 0, 8)];
        c.format.row_bytes = c.format.scale_at + tamis_row_num_groups(&c.format);
    }
    c.key_stride = c.format.row_bytes + test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 7);
    c.keys = kernel_page_new((size_t)((c.n_keys - 1) * c.key_stride + c.format.row_bytes));
    c.q = calloc((size_t)(c.padded * c.dim), 1);
    c.q_scale = calloc((size_t)(c.padded * tamis_row_num_groups(&c.format)), sizeof(float));
    c.weights = calloc((size_t)c.padded, sizeof(float));
    fill_case(rng, &c, special);
    return c;
}

static void low_case_free(low_case *c)
{
    kernel_page_free(&c->keys);
    free(c->q);
    free(c->q_scale);
    free(c->weights);
}

static test_guard low_case_run(const low_case *c, tamis_cpu_level level, test_rng noise)
{
    const tamis_kernels *kernels = tamis_kernels_for(level);
    test_guard out = new_floats(c->n_keys, &noise);
    test_guard scratch =
        test_guard_new(TAMIS_INDEX_SCRATCH(c->dim, c->heads) * sizeof(float), 0, &noise);
    test_guard query = test_guard_new(TAMIS_INDEX_QUERY_BYTES(c->dim, c->heads), 0, &noise);
    if (c->format.dtype == TAMIS_DTYPE_F4_E2M1) {
        kernels->index_query_f4(query.data, c->q, c->q_scale, c->weights, c->heads, c->dim,
                                c->format.group_size);
        kernels->index_score_f4(out.data, query.data, c->heads, c->dim, c->keys.data, &c->format,
                                c->key_stride, c->n_keys, c->keys.data, scratch.data);
    } else {
        kernels->index_query_i8(query.data, c->q, c->weights, c->heads, c->dim);
        kernels->index_score_i8(out.data, query.data, c->heads, c->dim, c->keys.data, &c->format,
                                c->key_stride, c->n_keys, c->keys.data, scratch.data);
    }
    assert_true(test_guard_intact(&scratch));
    assert_true(test_guard_intact(&query));
    test_guard_free(&query);
    test_guard_free(&scratch);
    return out;
}

/* lanes16's halving tree over f32. */
static float tree(float acc[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            acc[i] += acc[i + half];
    return acc[0];
}

static float ref_f4(const low_case *c, const uint8_t *row)
{
    const int32_t groups = tamis_row_num_groups(&c->format), group = c->format.group_size;
    float acc[16] = {0};
    for (int64_t h = 0; h < c->heads; h++) {
        double dot = 0;
        for (int32_t g = 0; g < groups; g++) {
            double sum = 0;
            for (int64_t d = g * group; d < c->dim && d < (g + 1) * group; d++)
                sum += c->q[h * c->dim + d] / 2.0 *
                       kernel_ref_e2m1((uint8_t)(row[d / 2] >> (d % 2 * 4) & 15));
            const double key_scale = kernel_ref_e8m0(row[c->format.scale_at + g]);
            dot = lowbit_ref_f32(
                dot + lowbit_ref_f32(sum * (double)c->q_scale[h * groups + g] * key_scale));
        }
        dot = lowbit_ref_bf16(dot);
        const double relu = dot <= 0 ? 0 : dot;
        acc[h % 16] += (float)lowbit_ref_bf16(lowbit_ref_f32((double)c->weights[h] * relu));
    }
    return as_bf16(tree(acc));
}

static float ref_i8(const low_case *c, const uint8_t *row)
{
    float acc[16] = {0};
    for (int64_t h = 0; h < c->heads; h++) {
        int64_t dot = 0;
        for (int64_t d = 0; d < c->dim; d++)
            dot += c->q[h * c->dim + d] * (row[d] < 128 ? row[d] : row[d] - 256);
        const double step = lowbit_ref_f16((double)(dot < 0 ? 0 : dot) / 1024);
        acc[h % 16] = fmaf(c->weights[h], (float)step, acc[h % 16]);
    }
    uint16_t half;
    memcpy(&half, row + c->format.scale_at, sizeof half);
    return tree(acc) * (float)kernel_ref_f16(half);
}

static void check_layout(tamis_row_layout layout, const char *name, uint64_t seed)
{
    test_rng rng = test_rng_start(name, seed);
    for (int round = 0; round < ROUNDS; round++) {
        const bool special = round % 4 == 3;
        low_case c = low_case_new(&rng, layout, special);
        test_guard want = low_case_run(&c, TAMIS_CPU_PORTABLE, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            test_guard got = low_case_run(&c, level_at(level), rng);
            expect_same(&want, &got, name);
            test_guard_free(&got);
        }
        for (int64_t j = 0; !special && j < c.n_keys; j++) {
            const uint8_t *row = (const uint8_t *)c.keys.data + j * c.key_stride;
            const float ref = layout == TAMIS_ROWS_INDEX_FP4 ? ref_f4(&c, row) : ref_i8(&c, row);
            if (!kernel_same_f32(((float *)want.data)[j], ref))
                fail_msg("%s, %lld heads, dim %lld, group %d, key %lld: %a, double says %a", name,
                         (long long)c.heads, (long long)c.dim, c.format.group_size, (long long)j,
                         (double)((float *)want.data)[j], (double)ref);
        }
        test_guard_free(&want);
        low_case_free(&c);
    }
}

static void test_index_score_f4(void **state)
{
    (void)state;
    check_layout(TAMIS_ROWS_INDEX_FP4, "index_score_f4", 91);
}

static void test_index_score_i8(void **state)
{
    (void)state;
    check_layout(TAMIS_ROWS_INDEX_INT8, "index_score_i8", 92);
}

/* All codes at their extremes: the sums of a group of 128 stay within the kernels' 16 bits. */
static void test_extreme_codes(void **state)
{
    (void)state;
    enum { DIM = 128 };
    static int8_t q[16 * DIM];
    static float q_scale[16], weights[16];
    _Alignas(64) static float scratch[TAMIS_INDEX_SCRATCH(DIM, 16)];
    _Alignas(64) static uint8_t query[TAMIS_INDEX_QUERY_BYTES(DIM, 16)];
    tamis_row_format f4, i8;
    assert_int_equal(tamis_row_format_make(&f4, TAMIS_ROWS_INDEX_FP4, DIM, 0, NULL), 0);
    assert_int_equal(tamis_row_format_make(&i8, TAMIS_ROWS_INDEX_INT8, DIM, 0, NULL), 0);
    f4.group_size = DIM;
    f4.row_bytes = f4.scale_at + 1;
    q_scale[0] = weights[0] = 1.0f;
    FOR_EACH_LEVEL(level)
    for (int sign = -1; sign < 2; sign += 2) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        uint8_t row[DIM + 2];
        float score;
        memset(row, sign < 0 ? 0xff : 0x77, DIM / 2);
        row[f4.scale_at] = 127;
        memset(q, 12 * sign, DIM);
        kernels->index_query_f4(query, q, q_scale, weights, 1, DIM, DIM);
        kernels->index_score_f4(&score, query, 1, DIM, row, &f4, f4.row_bytes, 1, NULL, scratch);
        assert_true(score == 6.0f * 6 * DIM); /* 4608: 8 bits hold it */
        row[DIM] = 0;
        row[DIM + 1] = 0x3c;
        for (int code = 127; code < 129; code++) {
            memset(row, sign < 0 ? -code : 127, DIM);
            memset(q, sign < 0 ? -code : 127, DIM);
            kernels->index_query_i8(query, q, weights, 1, DIM);
            kernels->index_score_i8(&score, query, 1, DIM, row, &i8, i8.row_bytes, 1, NULL,
                                    scratch);
            assert_true(score == (sign < 0 && code == 128 ? 2048.0f : 2016.0f)); /* of 2016.125 */
        }
        memset(row, -128, DIM);
        memset(q, 127 * sign, DIM);
        kernels->index_query_i8(query, q, weights, 1, DIM);
        kernels->index_score_i8(&score, query, 1, DIM, row, &i8, i8.row_bytes, 1, NULL, scratch);
        assert_true(score == (sign < 0 ? 2032.0f : 0.0f));
    }
}

/* 4096 channels: the largest int8 codes are the last that FP16 holds, -128 overflows it. */
static void test_largest_dim_i8(void **state)
{
    (void)state;
    enum { DIM = 4096 };
    static int8_t q[16 * DIM];
    static const float weights[16] = {1.0f};
    _Alignas(64) static float scratch[TAMIS_INDEX_SCRATCH(DIM, 1)];
    _Alignas(64) static uint8_t query[TAMIS_INDEX_QUERY_BYTES(DIM, 1)];
    static uint8_t row[DIM + 2];
    tamis_row_format i8;
    assert_int_equal(tamis_row_format_make(&i8, TAMIS_ROWS_INDEX_INT8, DIM, 0, NULL), 0);
    row[DIM + 1] = 0x3c;
    FOR_EACH_LEVEL(level)
    for (int code = -128; code < 128; code += 255) {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        float score;
        memset(row, code, DIM);
        memset(q, code, DIM);
        kernels->index_query_i8(query, q, weights, 1, DIM);
        kernels->index_score_i8(&score, query, 1, DIM, row, &i8, i8.row_bytes, 1, NULL, scratch);
        assert_true(score == (code < 0 ? INFINITY : 64512.0f)); /* 64516 is no FP16 number */
    }
}

/* A row of -128 and 0 whose dot with codes of -127, and 1 in the last place, is what is wanted. */
static void row_with_dot(int8_t *row, int64_t dim, int32_t dot)
{
    int32_t left = dot / 127;
    for (int64_t d = 0; d < dim - 1; d++) {
        const int32_t take = left < 128 ? left : 128;
        row[d] = (int8_t)-take;
        left -= take;
    }
    row[dim - 1] = (int8_t)(dot % 127);
    assert_int_equal(left, 0);
}

/* Dots beside and at the ties of FP16, up to the largest of 510 channels. */
static void test_steps_i8(void **state)
{
    (void)state;
    enum { DIM = 510, LARGEST = 509 * 127 * 128 };
    static int8_t q[16 * DIM], row[DIM + 2];
    static const float weights[16] = {1.0f};
    _Alignas(64) static float scratch[TAMIS_INDEX_SCRATCH(DIM, 1)];
    _Alignas(64) static uint8_t query[TAMIS_INDEX_QUERY_BYTES(DIM, 1)];
    tamis_row_format i8;
    assert_int_equal(tamis_row_format_make(&i8, TAMIS_ROWS_INDEX_INT8, DIM, 0, NULL), 0);
    row[DIM + 1] = 0x3c;
    memset(q, -127, DIM - 1);
    q[DIM - 1] = 1;
    FOR_EACH_LEVEL(level)
    {
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        kernels->index_query_i8(query, q, weights, 1, DIM);
        for (int32_t power = 2048; power <= LARGEST; power *= 2)
            for (int32_t i = 0; i < 3 * 64; i++) {
                const int32_t step = power / 1024, tie = (i / 3 * 16 + 15) * step + step / 2;
                const int32_t dot = power + tie + i % 3 - 1;
                if (dot > LARGEST)
                    break;
                float score;
                row_with_dot(row, DIM, dot);
                kernels->index_score_i8(&score, query, 1, DIM, row, &i8, i8.row_bytes, 1, NULL,
                                        scratch);
                assert_true(score == (float)lowbit_ref_f16((double)dot * 0x1p-10));
            }
    }
}

/* ---------------------------------------------------------------- FP8 keys */

static void test_index_score_f8(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("index_score f8", 93);
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t heads = PICK(&rng, head_counts), dim = PICK(&rng, head_dims);
        const int64_t n_keys = PICK(&rng, row_counts);
        const kernel_data kind = round % 4 == 3 ? KERNEL_DATA_SPECIAL : KERNEL_DATA_NORMAL;
        tamis_row_format f;
        assert_int_equal(tamis_row_format_make(&f, TAMIS_ROWS_INDEX_FP8, (int32_t)dim, 0, NULL), 0);
        const int64_t stride = f.row_bytes + test_rng_int(&rng, 0, 3);
        kernel_page keys = kernel_page_new((size_t)((n_keys - 1) * stride + f.row_bytes));
        float *x = malloc((size_t)(dim + heads * dim) * sizeof(float)), *q = x + dim;
        float *panels = malloc((size_t)panel_floats(heads, dim) * sizeof(float));
        float *weights = calloc((size_t)panel_floats(heads, 1), sizeof(float));
        for (int64_t j = 0; j < n_keys; j++) {
            uint8_t *row = (uint8_t *)keys.data + j * stride;
            kernel_fill(&rng, kind, x, (size_t)dim);
            tamis_pack_row_c(row, row + f.scale_at, &f, x);
        }
        kernel_fill(&rng, kind, q, (size_t)(heads * dim));
        kernel_fill(&rng, kind, weights, (size_t)heads);
        tamis_pack_heads_c(panels, q, heads, dim);
        test_guard want = {0};
        FOR_EACH_LEVEL(level)
        {
            test_rng noise = rng;
            test_guard out = new_floats(n_keys, &noise);
            test_guard scratch =
                test_guard_new(TAMIS_INDEX_SCRATCH(dim, heads) * sizeof(float), 0, &noise);
            tamis_kernels_for(level_at(level))
                ->index_score(out.data, panels, weights, heads, dim, keys.data, &f, stride, n_keys,
                              keys.data, scratch.data);
            assert_true(test_guard_intact(&scratch));
            test_guard_free(&scratch);
            if (level == 0) {
                want = out;
                continue;
            }
            expect_same(&want, &out, "score");
            test_guard_free(&out);
        }
        for (int64_t j = 0; kind == KERNEL_DATA_NORMAL && j < n_keys; j++) {
            const uint8_t *row = (const uint8_t *)keys.data + j * stride;
            double magnitude, scale = kernel_ref_cached(row + f.scale_at, TAMIS_DTYPE_F32, 0);
            for (int64_t d = 0; d < dim; d++)
                x[d] = (float)kernel_ref_e4m3(row[d]);
            const double score = scale * kernel_ref_index_score(q, weights, heads, dim, x,
                                                                TAMIS_DTYPE_F32, &magnitude);
            const double bound = (double)(dim + heads / 16 + 6) * 0x1p-24 * magnitude * scale;
            assert_true(fabs((double)((float *)want.data)[j] - score) <= bound + 1e-40);
        }
        test_guard_free(&want);
        kernel_page_free(&keys);
        free(x);
        free(panels);
        free(weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_score_f4), cmocka_unit_test(test_index_score_i8),
        cmocka_unit_test(test_extreme_codes),  cmocka_unit_test(test_largest_dim_i8),
        cmocka_unit_test(test_steps_i8),       cmocka_unit_test(test_index_score_f8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
