/*
 * attn_chunk over packed rows and in its running form: every level against portable bit for bit,
 * portable against a softmax in double precision.
 */
#include "kernels/formats.h"
#include "support/kernel_levels.h"
#include "support/kernel_ref_lowbit.h"
#include "support/sanitized.h"

#define MAX_DIM  320
#define MAX_ROWS 200

typedef struct rows_case {
    int64_t heads, dim, value_dim, n_rows, o_stride;
    tamis_row_format format;
    kernel_page storage;
    const void *rows[MAX_ROWS];
    float *values; /* [n_rows][dim] as they are read back */
    float *q, *panels;
    float scale;
} rows_case;

/* Rows at any address, in any order, the last one before a protected page. */
static void fill_rows(test_rng *rng, rows_case *c, kernel_data kind)
{
    float x[MAX_DIM];
    c->storage = kernel_page_new((size_t)(c->n_rows * c->format.row_bytes));
    for (int64_t j = 0; j < c->n_rows; j++) {
        uint8_t *row = (uint8_t *)c->storage.data + j * c->format.row_bytes;
        kernel_fill(rng, kind, x, (size_t)c->dim);
        tamis_pack_row_c(row, row + c->format.scale_at, &c->format, x);
        tamis_unpack_row_c(c->values + j * c->dim, row, row + c->format.scale_at, &c->format);
        c->rows[j] = row;
    }
}

static rows_case *rows_case_new(test_rng *rng, int64_t n_rows, kernel_data kind)
{
    rows_case *c = calloc(1, sizeof *c);
    const tamis_row_layout layout =
        (tamis_row_layout)test_rng_int(rng, TAMIS_ROWS_F32, TAMIS_ROWS_LATENT_ASCEND);
    c->heads = PICK(rng, head_counts);
    c->dim = PICK(rng, head_dims);
    c->value_dim = test_rng_int(rng, 1, c->dim);
    c->n_rows = n_rows;
    c->o_stride = c->value_dim + test_rng_int(rng, 0, 5);
    c->scale = 1.0f / sqrtf((float)c->dim);
    const int32_t plain =
        layout < TAMIS_ROWS_V4_FP8 ? 0 : (int32_t)test_rng_int(rng, 0, c->dim - 1);
    assert_int_equal(tamis_row_format_make(&c->format, layout, (int32_t)c->dim, plain, NULL), 0);
    c->values = malloc((size_t)(n_rows * c->dim) * sizeof(float));
    c->q = malloc((size_t)(c->heads * c->dim) * sizeof(float));
    c->panels = malloc((size_t)panel_floats(c->heads, c->dim) * sizeof(float));
    fill_rows(rng, c, kind);
    kernel_fill(rng, kind, c->q, (size_t)(c->heads * c->dim));
    tamis_pack_heads_c(c->panels, c->q, c->heads, c->dim);
    return c;
}

static void rows_case_free(rows_case *c)
{
    kernel_page_free(&c->storage);
    free(c->values);
    free(c->q);
    free(c->panels);
    free(c);
}

typedef struct run_result {
    test_guard m, l, o;
} run_result;

/* All rows in chunks, running; or the first chunk alone. */
static run_result run(const rows_case *c, tamis_cpu_level level, bool is_running, test_rng noise)
{
    run_result r = {new_floats(c->heads, &noise), new_floats(c->heads, &noise),
                    new_floats(c->heads * c->o_stride, &noise)};
    float *m = r.m.data, *l = r.l.data, *o = r.o.data;
    for (int64_t h = 0; is_running && h < c->heads; h++) {
        m[h] = -INFINITY;
        l[h] = 0.0f;
        memset(o + h * c->o_stride, 0, (size_t)c->value_dim * sizeof *o);
    }
    for (int64_t first = 0; first < c->n_rows; first += TAMIS_ATTN_CHUNK) {
        const int64_t left = c->n_rows - first;
        const int64_t n_rows = left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK;
        const int64_t ahead = left - n_rows;
        test_guard scratch =
            test_guard_new(TAMIS_ATTN_SCRATCH(c->heads, c->dim) * sizeof(float), 0, &noise);
        tamis_kernels_for(level)->attn_chunk(m, l, o, c->o_stride, c->panels, c->heads, c->dim,
                                             c->value_dim, c->rows + first, &c->format, n_rows,
                                             c->rows + first + n_rows,
                                             ahead < TAMIS_ATTN_CHUNK ? ahead : TAMIS_ATTN_CHUNK,
                                             c->scale, is_running, scratch.data);
        assert_true(test_guard_intact(&scratch));
        test_guard_free(&scratch);
    }
    return r;
}

static void run_result_free(run_result *r)
{
    test_guard_free(&r->m);
    test_guard_free(&r->l);
    test_guard_free(&r->o);
}

static void test_levels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("packed and running attention", 95);
    static const int64_t counts[] = {1, 2, 5, 6, 7, 63, 64, 65, 128, 130, 200};
    for (int round = 0; round < (TEST_IS_SANITIZED ? 60 : 300); round++) {
        const bool is_running = round % 3 != 0;
        rows_case *c = rows_case_new(&rng, is_running ? PICK(&rng, counts) : PICK(&rng, row_counts),
                                     (kernel_data)(round % KERNEL_NUM_DATA));
        run_result want = run(c, TAMIS_CPU_PORTABLE, is_running, rng);
        FOR_EACH_LEVEL_ABOVE_PORTABLE(level)
        {
            run_result got = run(c, level_at(level), is_running, rng);
            expect_same(&want.m, &got.m, "m");
            expect_same(&want.l, &got.l, "l");
            expect_same(&want.o, &got.o, "o");
            run_result_free(&got);
        }
        run_result_free(&want);
        rows_case_free(c);
    }
}

/*
 * One head in double, P rounded to BF16 under the running maximum of its chunk. A p near the middle
 * between two BF16 numbers may fall on either side in f32: *slack is what one such step of every p
 * could move.
 */
static void running_ref(const rows_case *c, int64_t h, double *out, double *total, double *slack)
{
    double m = -INFINITY, l = 0, moved = 0, s[TAMIS_ATTN_CHUNK];
    memset(out, 0, (size_t)c->value_dim * sizeof *out);
    for (int64_t first = 0; first < c->n_rows; first += TAMIS_ATTN_CHUNK) {
        const int64_t left = c->n_rows - first;
        const int64_t n = left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK;
        double top = m;
        for (int64_t j = 0; j < n; j++) {
            s[j] = 0;
            for (int64_t d = 0; d < c->dim; d++)
                s[j] += (double)c->q[h * c->dim + d] * (double)c->values[(first + j) * c->dim + d];
            s[j] *= (double)c->scale;
            top = fmax(top, s[j]);
        }
        const double shrink = exp(m - top);
        l *= shrink;
        moved *= shrink;
        for (int64_t d = 0; d < c->value_dim; d++)
            out[d] *= shrink;
        for (int64_t j = 0; j < n; j++) {
            const double p = exp(s[j] - top), rounded = lowbit_ref_bf16(p);
            double largest = 0;
            l += p;
            for (int64_t d = 0; d < c->value_dim; d++) {
                const double value = (double)c->values[(first + j) * c->dim + d];
                out[d] += rounded * value;
                largest = fmax(largest, fabs(value));
            }
            moved += p * largest * 0x1p-8;
        }
        m = top;
    }
    *total = l;
    *slack = moved;
}

static void test_running_against_double(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("running attention double", 96);
    int64_t far = 0, all = 0;
    for (int round = 0; round < (TEST_IS_SANITIZED ? 10 : 40); round++) {
        rows_case *c = rows_case_new(&rng, 1 + 66 * (round % 4), KERNEL_DATA_NORMAL);
        run_result r = run(c, TAMIS_CPU_PORTABLE, true, rng);
        for (int64_t h = 0; h < c->heads; h++) {
            double out[MAX_DIM], l, slack;
            running_ref(c, h, out, &l, &slack);
            assert_true(fabs((double)((float *)r.l.data)[h] - l) < 1e-4 * l);
            for (int64_t d = 0; d < c->value_dim; d++) {
                const double off = fabs((double)((float *)r.o.data)[h * c->o_stride + d] - out[d]);
                assert_true(off <= slack + 1e-5 * l);
                far += off > 1e-4 * l;
                all++;
            }
        }
        run_result_free(&r);
        rows_case_free(c);
    }
    assert_true(far * 20 < all); /* without the rounding of P nearly all would be far */
}

/* A NaN of any payload in a row, also one whose bits a rounding could carry over, stays visible. */
static void test_nan_payloads(void **state)
{
    (void)state;
    const uint32_t payloads[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u};
    for (int k = 0; k < 4; k++)
        FOR_EACH_LEVEL(level)
    for (int is_running = 0; is_running < 2; is_running++) {
        const float rows[3][2] = {{1, 1}, {tamis_float_of(payloads[k]), 2}, {0, 3}};
        const void *pointers[3] = {rows[0], rows[1], rows[2]};
        const float q[2] = {1, 0};
        float panels[2 * 16], m = -INFINITY, l = 0, o[2] = {0};
        _Alignas(64) float scratch[TAMIS_ATTN_SCRATCH(1, 2)];
        const tamis_kernels *kernels = tamis_kernels_for(level_at(level));
        const tamis_row_format f32 = tamis_row_format_plain(TAMIS_DTYPE_F32, 2);
        kernels->pack_heads(panels, q, 1, 2);
        kernels->attn_chunk(&m, &l, o, 2, panels, 1, 2, 2, pointers, &f32, 3, NULL, 0, 1.0f,
                            is_running != 0, scratch);
        assert_true(isnan(l) && isnan(o[0]) && isnan(o[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_running_against_double),
        cmocka_unit_test(test_nan_payloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
