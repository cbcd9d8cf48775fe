/*
 * Sparse attention in the profiles that round: chunks under one running maximum, P as BF16 for the
 * values, the output as BF16. Outputs against doubles that do the same, element by element; the
 * same bits for any number of threads, wherever the outputs lie; rows of the layouts of both
 * families.
 */
#include <math.h>

#include "ops_attention_test.h"
#include "support/lowbit_ref.h"
#include "support/sanitized.h"

enum { MAX_DIM = 576 };

/* Rows as numbers: of F32 rows, or of packed ones by the reference's reading of their bytes. */
typedef struct row_values {
    double *values; /* [NUM_ROWS][head_dim] */
} row_values;

static row_values values_of(const attn_case *c, const lowbit_row *packed)
{
    row_values rows = {malloc((size_t)(NUM_ROWS * c->head_dim) * sizeof(double))};
    for (int64_t r = 0; r < NUM_ROWS; r++) {
        const uint8_t *bytes = c->rows + r * c->format.row_bytes;
        if (packed != NULL)
            lowbit_row_decode(rows.values + r * c->head_dim, packed, bytes);
        else
            for (int32_t d = 0; d < c->head_dim; d++)
                rows.values[r * c->head_dim + d] = (double)((const float *)(const void *)bytes)[d];
    }
    return rows;
}

/* One head in doubles. */
typedef struct running_head {
    double m, l, o[MAX_DIM];
    double slack[MAX_DIM]; /* how far o may be off where some P lies between two BF16 numbers */
} running_head;

/* Relative errors that f32 scores and exponentials may have. */
static const double P_ERROR = 3e-5;

/* Takes in the rows of one chunk. */
static void add_chunk(running_head *head, const attn_case *c, const row_values *rows,
                      const int32_t *list, int32_t n, const float *q)
{
    double s[TAMIS_ATTN_CHUNK], m = head->m, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        s[i] = 0;
        for (int32_t d = 0; list[i] >= 0 && d < c->head_dim; d++)
            s[i] += (double)q[d] * rows->values[(int64_t)list[i] * c->head_dim + d];
        s[i] *= (double)SCALE;
        m = list[i] >= 0 && s[i] > m ? s[i] : m;
    }
    const double shrink = head->l > 0 ? exp(head->m - m) : 0;
    for (int32_t d = 0; d < c->value_dim; d++) {
        head->o[d] *= shrink;
        head->slack[d] *= shrink;
    }
    for (int32_t i = 0; i < n; i++) {
        if (list[i] < 0)
            continue;
        const double p = exp(s[i] - m), rounded = lowbit_bf16(p);
        const bool may_flip = lowbit_bf16_border(p) < P_ERROR * p;
        sum += p;
        for (int32_t d = 0; d < c->value_dim; d++) {
            const double value = rows->values[(int64_t)list[i] * c->head_dim + d];
            head->o[d] += rounded * value;
            head->slack[d] += may_flip ? p * 0x1p-7 * fabs(value) : 0;
        }
    }
    head->l = head->l * shrink + sum;
    head->m = m;
}

/* Sink and division; returns the LSE. */
static double finish(running_head *head, const attn_case *c, int32_t h)
{
    double l = head->l, factor = 1;
    if (c->has_sink) {
        const double sink = (double)c->sink[h], m = sink > head->m ? sink : head->m;
        factor = head->l > 0 ? exp(head->m - m) : 0;
        l = head->l * factor + exp(sink - m);
        head->m = m;
    }
    for (int32_t d = 0; d < c->value_dim; d++) {
        head->o[d] *= l > 0 ? factor / l : 0;
        head->slack[d] *= l > 0 ? factor / l : 0;
    }
    return l > 0 ? head->m + log(l) : -INFINITY;
}

/* The BF16 number that a double is, or its neighbour if it lies as good as between two. */
static void check_output(float got, double want, double error)
{
    assert_true((double)got == lowbit_bf16((double)got));
    if (lowbit_bf16_border(want) > error)
        assert_true((double)got == lowbit_bf16(want));
    else
        assert_true(fabs((double)got - want) <= error + fabs(want) * 0x1p-8);
}

static void check_head(const attn_case *c, const row_values *rows, const attn_result *result,
                       int32_t t, int32_t h)
{
    running_head head = {.m = -INFINITY};
    const int64_t at = (int64_t)t * c->num_heads + h;
    for (int32_t i = 0; i < c->list_len[t]; i += TAMIS_ATTN_CHUNK) {
        const int32_t left = c->list_len[t] - i;
        add_chunk(&head, c, rows, c->list[t] + i, left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK,
                  c->q + at * c->head_dim);
    }
    const double lse = finish(&head, c, h);
    for (int32_t d = 0; d < c->value_dim; d++)
        check_output(result->o[at * c->value_dim + d], head.o[d], head.slack[d] + 2e-5);
    if (isinf(lse))
        assert_true(result->lse[at] == -INFINITY);
    else
        assert_true(fabs((double)result->lse[at] - lse) < 2e-5 * (1 + fabs(lse)));
}

static int check_case(attn_case *c, const lowbit_row *packed, int round)
{
    const row_values rows = values_of(c, packed);
    attn_result want = run_case(c, 1, TAMIS_CPU_PORTABLE, PLACE_PACKED, true);
    for (int32_t t = 0; t < c->n_tokens; t++)
        for (int32_t h = 0; h < c->num_heads; h++)
            check_head(c, &rows, &want, t, h);
    const int n_shared = expect_same_everywhere(c, &want, round);
    result_free(&want);
    free(rows.values);
    return n_shared;
}

/* ---------------------------------------------------------------- random lists */

static void test_random_lists(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("running attention", 21);
    int n_shared = 0;
    for (int round = 0; round < (TEST_IS_SANITIZED ? 6 : 25); round++) {
        attn_case *c = case_new(&rng, MAX_HEADS, 50);
        c->profile = round % 2 ? TAMIS_PROFILE_OFFICIAL : TAMIS_PROFILE_ASCEND;
        n_shared += check_case(c, NULL, round);
        case_free(c);
    }
    assert_true(n_shared > 0);
}

/* Case 12 of the profiles: no row at all, one row behind empty places, chunks of empty places. */
static void test_empty_places(void **state)
{
    (void)state;
    static const int32_t cases[][2] = {{17, 16}, {400, 390}, {0, 400}, {17, 400}, {200, 130}};
    test_rng rng = test_rng_start("running attention, empty places", 22);
    attn_case *c = case_new(&rng, MAX_HEADS, 50);
    c->profile = TAMIS_PROFILE_OFFICIAL;
    c->n_tokens = 1;
    for (size_t k = 0; k < 2 * sizeof cases / sizeof *cases; k++) {
        c->has_sink = k % 2 == 0;
        c->list_len[0] = cases[k / 2][0];
        for (int32_t i = 0; i < MAX_LIST; i++)
            c->list[0][i] = i == cases[k / 2][1] ? 5 : -1;
        check_case(c, NULL, (int)k);
    }
    case_free(c);
}

/* ---------------------------------------------------------------- packed rows */

/* Dimensions of the real models, rows written by the reference. */
static void check_layout(test_rng *rng, tamis_row_layout layout, lowbit_layout ref_layout,
                         int32_t head_dim, int32_t value_dim, int32_t row_bytes)
{
    const lowbit_row packed = lowbit_row_of(ref_layout, head_dim, 64);
    double *x = malloc((size_t)head_dim * sizeof *x);
    attn_case *c = calloc(1, sizeof *c);
    c->profile = TAMIS_PROFILE_OFFICIAL;
    c->n_tokens = 2;
    c->num_heads = TEST_IS_SANITIZED ? 17 : 33;
    c->head_dim = head_dim;
    c->value_dim = value_dim;
    assert_int_equal(tamis_row_format_make(&c->format, layout, head_dim, 64, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(c->format.row_bytes, row_bytes);
    assert_int_equal(packed.bytes, row_bytes);
    c->rows = malloc((size_t)(NUM_ROWS * row_bytes));
    for (int64_t r = 0; r < NUM_ROWS; r++) {
        for (int32_t d = 0; d < head_dim; d++)
            x[d] = (double)(0.3f * test_rng_normal(rng));
        lowbit_row_encode(c->rows + r * row_bytes, &packed, x);
    }
    case_fill(c, rng);
    check_case(c, &packed, 0);
    case_free(c);
    free(x);
}

static void test_packed_rows(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("running attention, packed rows", 23);
    check_layout(&rng, TAMIS_ROWS_V4_FP8, LOWBIT_ROW_V4_584, 512, 512, 584);
    check_layout(&rng, TAMIS_ROWS_V4_A5, LOWBIT_ROW_V4_640, 512, 512, 640);
    check_layout(&rng, TAMIS_ROWS_LATENT_FLASHMLA, LOWBIT_ROW_656_FLASHMLA, 576, 512, 656);
    check_layout(&rng, TAMIS_ROWS_LATENT_ASCEND, LOWBIT_ROW_656_ASCEND, 576, 512, 656);
}

/* ---------------------------------------------------------------- what the chunks decide */

/*
 * P is rounded under the maximum so far. The first row's score is ln 1.004 below the second's: in
 * one chunk it counts bf16(1 / 1.004) = 0.99609375; a chunk earlier it counts bf16(1), later times
 * 1 / 1.004 = 0.996016. Values of 1000 and -1000 leave the difference. Places count, not rows: 63
 * empty ones part the two.
 */
static void test_chunks_count_places(void **state)
{
    (void)state;
    const float larger = 1.004f;
    attn_case *c = calloc(1, sizeof *c);
    c->profile = TAMIS_PROFILE_OFFICIAL;
    c->n_tokens = 1;
    c->num_heads = 1;
    c->head_dim = 2;
    c->value_dim = 2;
    c->format = tamis_row_format_plain(TAMIS_DTYPE_F32, 2);
    c->q = malloc(2 * sizeof(float));
    c->o_done = malloc(2 * sizeof(float));
    c->rows = calloc(NUM_ROWS, 2 * sizeof(float));
    float *rows = (float *)(void *)c->rows;
    c->q[0] = 1;
    c->q[1] = 0;
    rows[1] = 1000;
    rows[2] = logf(larger) / SCALE;
    rows[3] = -1000;
    for (int apart = 0; apart < 2; apart++) {
        c->list_len[0] = apart ? 65 : 2;
        for (int32_t i = 0; i < MAX_LIST; i++)
            c->list[0][i] = i == 0 ? 0 : i == c->list_len[0] - 1 ? 1 : -1;
        attn_result got = run_case(c, 1, tamis_cpu_level_available(), PLACE_PACKED, true);
        const double p = 1 / (double)larger, first = apart ? p : 0.99609375;
        assert_true((double)got.o[1] == lowbit_bf16(1000 * (first - 1) / (1 + p)));
        result_free(&got);
    }
    case_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_lists),
        cmocka_unit_test(test_empty_places),
        cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_chunks_count_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
