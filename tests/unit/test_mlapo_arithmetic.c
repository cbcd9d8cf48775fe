/* MLAPO step by step in doubles, from the layer's own weights (spec 4.1, 4.2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "support/lowbit_ref.h"
#include "unit/mlapo_rig.h"

/* ---------------------------------------------------------------- its own arithmetic */

/* bf16((codes . row r + bias) deq), by integers and doubles. */
static double product(const tamis_matrix *w, int64_t r, const double *codes)
{
    int64_t sum = w->input->quant_bias[r];
    for (int64_t i = 0; i < w->cols; i++)
        sum += (int64_t)codes[i] * ((const int8_t *)w->data)[r * w->row_bytes + i];
    return lowbit_bf16(lowbit_f32((double)(float)sum * (double)w->input->deq_scale[r]));
}

static void quantise(double *codes, const double *x, int64_t n, const tamis_static_quant *quant)
{
    lowbit_quantize_static(codes, x, n, quant->input_scale, quant->input_offset, true);
}

/* Whether a is b, or the neighbouring BF16 number where b's f32 sums decided the rounding. */
static bool near_bf16(double seen, double expected)
{
    return fabs(seen - lowbit_bf16(expected)) <= 0x1p-7 * fabs(expected) + 1e-30;
}

/* y = norm(x) weight + bias. */
static void norm(double *y, const double *x, int32_t n, const float *weight, const float *bias,
                 float eps)
{
    double ss = 0;
    for (int32_t i = 0; i < n; i++)
        ss += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(ss / n + (double)eps) * (double)weight[i] +
               (bias == NULL ? 0 : (double)bias[i]);
}

/* atol: f32 steps of parts that cancel. */
static void check_bf16(const float *seen, const double *expected, int64_t n, double atol,
                       const char *what, int64_t token)
{
    for (int64_t i = 0; i < n; i++)
        if (!near_bf16((double)seen[i], expected[i]) &&
            !(fabs((double)seen[i] - expected[i]) <= atol))
            fail_msg("%s of token %lld, channel %lld: %.9g, expected %.9g", what, (long long)token,
                     (long long)i, (double)seen[i], expected[i]);
}

/* Rotation keeps the length of a pair; at position 0 it keeps the pair. x: bf16 products. */
static void check_rotated(const float *seen, const double *x, int32_t rope, int64_t token,
                          const char *what)
{
    for (int32_t i = 0; i < rope; i += 2) {
        const double before = hypot(x[i], x[i + 1]);
        const double after = hypot((double)seen[i], (double)seen[i + 1]);
        if (!(fabs(after - before) <= 0x1p-8 * before) ||
            (token == 0 && ((double)seen[i] != x[i] || (double)seen[i + 1] != x[i + 1])))
            fail_msg("%s of token %lld, pair %d: (%.9g, %.9g) from (%.9g, %.9g)", what,
                     (long long)token, i / 2, (double)seen[i], (double)seen[i + 1], x[i], x[i + 1]);
    }
}

/* Steps 1, 2, 5 of spec 4.2 for a token, from the layer's own, unpermuted weights; q_c as step 3
 * has it before it is rounded. */
static void check_inputs(const subject *s, const result *r, int64_t t, double *q_c)
{
    const tamis_sfa_config *c = &s->layer.layer.config;
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    const int32_t lk = c->kv_lora_rank, rope = c->qk_rope_head_dim;
    double x[64], codes[64], q[128], kv[128], latent[128];
    assert_true(c->hidden_size <= 64 && c->q_lora_rank <= 128 && lk + rope <= 128);
    for (int32_t i = 0; i < c->hidden_size; i++)
        x[i] = (double)s->x[t * c->hidden_size + i];
    quantise(codes, x, c->hidden_size, w->q_a_proj.input);
    for (int32_t i = 0; i < c->q_lora_rank; i++)
        q[i] = product(&w->q_a_proj, i, codes);
    for (int32_t i = 0; i < lk + rope; i++)
        kv[i] = product(&w->kv_a_proj, i, codes);
    norm(q_c, q, c->q_lora_rank, w->q_a_norm, w->q_a_norm_bias, s->mlapo->eps);
    norm(latent, kv, lk, w->kv_a_norm, NULL, s->mlapo->eps);
    check_bf16(r->q_c + t * c->q_lora_rank, q_c, c->q_lora_rank, 1e-6, "q_c", t);
    check_bf16(r->latent + t * lk, latent, lk, 0, "latent", t);
    check_rotated(r->key_rope + t * rope, kv + lk, rope, t, "key");
}

/* Whether no code hangs on the last bits of the f32 sums. */
static bool has_firm_codes(double *codes, const double *x, int64_t n,
                           const tamis_static_quant *quant)
{
    double low[128], high[128], other[128];
    quantise(codes, x, n, quant);
    for (int64_t i = 0; i < n; i++) {
        low[i] = x[i] - 2e-6 * fmax(fabs(x[i]), 0.1);
        high[i] = x[i] + 2e-6 * fmax(fabs(x[i]), 0.1);
    }
    quantise(other, low, n, quant);
    bool is_firm = memcmp(other, codes, (size_t)n * sizeof *codes) == 0;
    quantise(other, high, n, quant);
    return is_firm && memcmp(other, codes, (size_t)n * sizeof *codes) == 0;
}

/* Element (r, k) of a BF16 matrix. */
static double element(const tamis_matrix *w, int64_t r, int64_t k)
{
    uint16_t half;
    memcpy(&half, (const uint8_t *)w->data + r * w->row_bytes + 2 * k, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Steps 3 (second half), 4, 6 and 7; false: a code is too near a border to tell. */
static bool check_queries(const subject *s, const result *r, int64_t t, const double *q_c)
{
    const tamis_sfa_config *c = &s->layer.layer.config;
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    const int32_t nope = c->qk_nope_head_dim, rope = c->qk_rope_head_dim, lk = c->kv_lora_rank;
    double codes[128], q[64], absorbed[128];
    assert_true(nope + rope <= 64);
    if (!has_firm_codes(codes, q_c, c->q_lora_rank, w->q_b_proj.input))
        return false;
    for (int64_t h = 0; h < c->num_heads; h++) {
        double size = 0;
        memset(absorbed, 0, sizeof absorbed);
        for (int32_t i = 0; i < nope + rope; i++)
            q[i] = product(&w->q_b_proj, h * (nope + rope) + i, codes);
        for (int32_t p = 0; p < nope; p++) {
            size += fabs(q[p]);
            for (int32_t k = 0; k < lk; k++)
                absorbed[k] += q[p] * element(&w->kv_b_proj, h * (nope + c->v_head_dim) + p, k);
        }
        check_bf16(r->query_nope + (t * c->num_heads + h) * lk, absorbed, lk, 1e-6 * size,
                   "absorbed query", t);
        check_rotated(r->query_rope + (t * c->num_heads + h) * rope, q + nope, rope, t, "query");
    }
    return true;
}

/* A large eps shows that it is the kernel's own, not the layer's. */
static void arithmetic_is_the_kernels(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("arithmetic", 54);
    for (int i = 0; i < 2; i++) {
        subject s = subject_open(TEST_SFA_GLM, i == 1, i == 1 ? 0.25f : TAMIS_MLAPO_EPS, &rng);
        result r = run(&s, true, TAMIS_DTYPE_BF16, 1, N, false);
        int32_t n_firm = 0;
        for (int64_t t = 0; t < N; t++) {
            double q_c[128];
            check_inputs(&s, &r, t, q_c);
            n_firm += check_queries(&s, &r, t, q_c);
        }
        print_message("codes of %d of %d tokens are firm\n", n_firm, N);
        assert_true(n_firm > N / 2);
        result_free(&r);
        subject_close(&s);
    }
}

/* Worked numbers of spec 7.11 and 7.14: W8A8 static, and where the FP16 step rounds twice. */
static void worked_numbers(void **state)
{
    (void)state;
    const tamis_kernels *k = tamis_kernels_current();
    const int8_t w8[3] = {10, -20, 5};
    const float x[3] = {1.3f, -0.7f, 0.2f}, deq_scale = 0.001f;
    const int32_t bias = 15;
    const tamis_matrix w = {
        .dtype = TAMIS_DTYPE_I8, .rows = 1, .cols = 3, .data = w8, .row_bytes = 3};
    int8_t codes[3];
    float y;
    k->quantize_i8_static(codes, x, 3, 0.05f, 3, true);
    assert_true(codes[0] == 29 && codes[1] == -11 && codes[2] == 7);
    k->linear_i8(&y, 1, codes, 3, NULL, 1, &w, &deq_scale, &bias, 0, 1, NULL);
    assert_true(fabsf(y - 0.56f) < 1e-7f);
    const float tie = 64.5004f;
    k->quantize_i8_static(codes, &tie, 1, 1, 0, false);
    assert_int_equal(codes[0], 65);
    k->quantize_i8_static(codes, &tie, 1, 1, 0, true);
    assert_int_equal(codes[0], 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_the_kernels),
        cmocka_unit_test(worked_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
