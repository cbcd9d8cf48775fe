/*
 * MLAPO: weights reordered as the kernel wants them; the fused operator against the unfused layer
 * on random weights, with padding, in both rotation layouts; what it refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "unit/mlapo_rig.h"

/* ---------------------------------------------------------------- weights */

static void weights_are_reordered(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("weights", 51);
    subject s = subject_open(TEST_SFA_V32, false, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_config *c = &s.layer.layer.config;
    const tamis_sfa_weights *w = &s.layer.layer.weights;
    const int32_t rope = c->qk_rope_head_dim, qk = c->qk_nope_head_dim + rope;
    const tamis_matrix *fused = &s.mlapo->qkv_a_proj, *q_b = &s.mlapo->q_b_proj;
    assert_int_equal(fused->rows, c->kv_lora_rank + rope + c->q_lora_rank);
    assert_int_equal(q_b->rows, c->num_heads * qk);
#define ASSERT_ROW(a, i, b, j)                                                                     \
    do {                                                                                           \
        assert_memory_equal((const int8_t *)(a)->data + (i) * (a)->row_bytes,                      \
                            (const int8_t *)(b)->data + (j) * (b)->row_bytes, (size_t)(a)->cols);  \
        assert_true((a)->input->deq_scale[i] == (b)->input->deq_scale[j]);                         \
        assert_int_equal((a)->input->quant_bias[i], (b)->input->quant_bias[j]);                    \
    } while (0)
    for (int32_t i = 0; i < c->kv_lora_rank; i++)
        ASSERT_ROW(fused, i, &w->kv_a_proj, i);
    for (int32_t i = 0; i < rope / 2; i++) {
        ASSERT_ROW(fused, c->kv_lora_rank + i, &w->kv_a_proj, c->kv_lora_rank + 2 * i);
        ASSERT_ROW(fused, c->kv_lora_rank + rope / 2 + i, &w->kv_a_proj,
                   c->kv_lora_rank + 2 * i + 1);
        for (int32_t h = 0; h < c->num_heads; h++) {
            const int32_t first = h * qk + c->qk_nope_head_dim;
            ASSERT_ROW(q_b, first + i, &w->q_b_proj, first + 2 * i);
            ASSERT_ROW(q_b, first + rope / 2 + i, &w->q_b_proj, first + 2 * i + 1);
        }
    }
    for (int32_t i = 0; i < c->q_lora_rank; i++)
        ASSERT_ROW(fused, c->kv_lora_rank + rope + i, &w->q_a_proj, i);
    for (int32_t h = 0; h < c->num_heads; h++)
        for (int32_t i = 0; i < c->qk_nope_head_dim; i++)
            ASSERT_ROW(q_b, h * qk + i, &w->q_b_proj, h * qk + i);
    subject_close(&s);
}

/* Spec 4.3: half_split_rope(perm(y)) == interleave_rope_B(y), bit for bit. */
static void rotating_halves_is_layout_b(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rotation", 52);
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
        const tamis_kernels *k = tamis_kernels_for((tamis_cpu_level)level);
        for (int32_t n_pairs = 1; n_pairs <= 40; n_pairs++) {
            float y[80], permuted[80], cos[40], sin[40];
            test_rng_fill_normal(&rng, y, 80);
            for (int32_t i = 0; i < n_pairs; i++) {
                const double angle = (double)test_rng_float(&rng, -7, 7);
                cos[i] = (float)cosl(angle);
                sin[i] = (float)sinl(angle);
                permuted[i] = y[2 * i];
                permuted[n_pairs + i] = y[2 * i + 1];
            }
            k->rope(y, cos, sin, n_pairs, false); /* layout A: B's values, in pairs */
            k->rope_halves(permuted, cos, sin, n_pairs, false);
            for (int32_t i = 0; i < n_pairs; i++) {
                assert_memory_equal(&permuted[i], &y[2 * i], sizeof *y);
                assert_memory_equal(&permuted[n_pairs + i], &y[2 * i + 1], sizeof *y);
            }
        }
    }
    /* the worked number of spec 7.7: angles (pi/2, pi), x = [1 2 3 4], B = [-2 -3 1 -4] */
    float x[4] = {1, 3, 2, 4};
    const float quarter_half_cos[2] = {0, -1}, quarter_half_sin[2] = {1, 0};
    tamis_kernels_current()->rope_halves(x, quarter_half_cos, quarter_half_sin, 2, false);
    assert_true(x[0] == -2 && x[1] == -3 && x[2] == 1 && x[3] == -4);
}

/* ---------------------------------------------------------------- fused and unfused */

/* Largest |seen - expected| over the root mean square of expected. */
static double relative(const float *seen, const float *expected, int64_t n)
{
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)seen[i] - (double)expected[i]));
        sum += (double)expected[i] * (double)expected[i];
    }
    return largest / sqrt(sum / (double)n);
}

/* Codes of the second quantisation flip where the FP16 step or the BF16 rounding of q_c crosses a
 * half, or where a code of x did; each flip is one step. */
static void check_second_quantisation(const subject *s, const result *fused, const result *plain)
{
    const tamis_sfa_config *c = &s->layer.layer.config;
    const tamis_static_quant *quant = s->layer.layer.weights.q_b_proj.input;
    int64_t n_flips = 0, n = (int64_t)N * c->q_lora_rank;
    int8_t *a = test_take(n, 1), *b = test_take(n, 1);
    const tamis_kernels *k = tamis_kernels_current();
    k->quantize_i8_static(a, fused->q_c, n, quant->input_scale, quant->input_offset, true);
    k->quantize_i8_static(b, plain->q_c, n, quant->input_scale, quant->input_offset, false);
    for (int64_t i = 0; i < n; i++) {
        assert_true(abs(a[i] - b[i]) <= 1);
        n_flips += a[i] != b[i];
    }
    print_message("%lld of %lld codes differ by a step\n", (long long)n_flips, (long long)n);
    assert_true(n_flips * 10 < n);
    free(a);
    free(b);
}

/* The unfused path's normed query: what its index queries and q_b read, recomputed. */
static void unfused_query(const subject *s, float *q_c)
{
    const tamis_sfa_config *c = &s->layer.layer.config;
    const tamis_sfa_weights *w = &s->layer.layer.weights;
    const tamis_kernels *k = tamis_kernels_current();
    const tamis_static_quant *quant = w->q_a_proj.input;
    int8_t *codes = test_take(c->hidden_size, 1);
    for (int64_t t = 0; t < N; t++) {
        float *q = q_c + t * c->q_lora_rank;
        k->quantize_i8_static(codes, s->x + t * c->hidden_size, c->hidden_size, quant->input_scale,
                              quant->input_offset, false);
        k->linear_i8(q, c->q_lora_rank, codes, c->hidden_size, NULL, 1, &w->q_a_proj,
                     quant->deq_scale, quant->quant_bias, 0, c->q_lora_rank, NULL);
        k->round_bf16(q, c->q_lora_rank);
        k->rmsnorm(q, q, w->q_a_norm, c->q_lora_rank, c->rms_norm_eps);
        if (w->q_a_norm_bias != NULL)
            k->add(q, w->q_a_norm_bias, c->q_lora_rank);
        k->round_bf16(q, c->q_lora_rank);
    }
    free(codes);
}

static void check_fused(test_sfa_family family, bool has_bias, tamis_dtype kv_cache_dtype,
                        test_rng *rng)
{
    subject s = subject_open(family, has_bias, TAMIS_MLAPO_EPS, rng);
    const tamis_sfa_config *c = &s.layer.layer.config;
    const int64_t row = c->kv_lora_rank + c->qk_rope_head_dim;
    result fused = run(&s, true, kv_cache_dtype, 1, N, false);
    result plain = run(&s, false, kv_cache_dtype, 1, N, false);
    unfused_query(&s, plain.q_c);
    check_second_quantisation(&s, &fused, &plain);
    const double q_c = relative(fused.q_c, plain.q_c, (int64_t)N * c->q_lora_rank);
    const double rows = relative(fused.rows, plain.rows, N * row);
    const double query = relative(fused.query, plain.query, N * c->num_heads * row);
    print_message("relative to rms: q_c %.4f, rows %.4f, query %.4f\n", q_c, rows, query);
    /* a code of x one step off is input_scale 0.03 of one of 37 channels; BF16 steps of the
     * largest values, about 4 rms, are 2^-7 to 2^-6 */
    assert_true(q_c < 0.1 && rows < 0.1 && query < 0.1);
    result_free(&fused);
    result_free(&plain);
    subject_close(&s);
}

static void fused_is_unfused_to_a_step(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("fused", 53);
    check_fused(TEST_SFA_V32, false, TAMIS_DTYPE_BF16, &rng);
    check_fused(TEST_SFA_V32, true, TAMIS_DTYPE_BF16, &rng);
    check_fused(TEST_SFA_GLM, true, TAMIS_DTYPE_I8, &rng);
}

/* ---------------------------------------------------------------- outputs */

/* What is given out is what plan and caches hold, in either layout. */
static void outputs_are_what_is_stored(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("outputs", 55);
    subject s = subject_open(TEST_SFA_V32, true, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_config *c = &s.layer.layer.config;
    const int64_t lk = c->kv_lora_rank, rope = c->qk_rope_head_dim, row = lk + rope;
    result a = run(&s, true, TAMIS_DTYPE_BF16, 1, N, false);
    result b = run(&s, true, TAMIS_DTYPE_BF16, 1, N, true);
    for (int64_t i = 0; i < N * c->num_heads; i++) {
        assert_memory_equal(a.query_nope + i * lk, a.query + i * row, (size_t)lk * sizeof(float));
        assert_memory_equal(a.query_rope + i * rope, a.query + i * row + lk,
                            (size_t)rope * sizeof(float));
    }
    for (int64_t t = 0; t < N; t++) {
        assert_memory_equal(a.latent + t * lk, a.rows + t * row, (size_t)lk * sizeof(float));
        assert_memory_equal(a.key_rope + t * rope, a.rows + t * row + lk,
                            (size_t)rope * sizeof(float));
    }
    for (int64_t i = 0; i < N * c->num_heads; i++)
        for (int64_t j = 0; j < rope / 2; j++) {
            const float *pairs = a.query_rope + i * rope, *halves = b.query_rope + i * rope;
            assert_true(halves[j] == pairs[2 * j] && halves[rope / 2 + j] == pairs[2 * j + 1]);
        }
    for (int64_t t = 0; t < N; t++)
        for (int64_t j = 0; j < rope / 2; j++) {
            const float *pairs = a.key_rope + t * rope, *halves = b.key_rope + t * rope;
            assert_true(halves[j] == pairs[2 * j] && halves[rope / 2 + j] == pairs[2 * j + 1]);
        }
    test_assert_same_bits(b.out, a.out, N, c->hidden_size, "layouts");
    result_free(&a);
    result_free(&b);
    subject_close(&s);
}

/* Steps fused and not mix in one sequence: their rows are of one layout. */
static void steps_may_mix(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("mixed", 56);
    subject s = subject_open(TEST_SFA_V32, false, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_layer *layer = &s.layer.layer;
    const int32_t hidden = layer->config.hidden_size, prompt = N - 20, one = 1;
    result plain = run(&s, false, TAMIS_DTYPE_BF16, 1, N, false);
    test_sfa_rig rig = open_rig(&s, TAMIS_DTYPE_BF16, 2);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    float *out = test_take((int64_t)N * hidden, sizeof *out);
    int64_t n_same = 0;
    test_sfa_feed(&rig, &seq, s.x, prompt, 0, out);
    for (int64_t t = prompt; t < N; t++) {
        tamis_error err;
        test_sfa_plan(&rig, seqs, &one, 1);
        test_must(tamis_mlapo_preprocess(s.mlapo, layer, 0, rig.plan, rig.caches, s.x + t * hidden,
                                         NULL, rig.team, &err),
                  &err, "preprocess");
        finish_layer(&rig, layer, out + t * hidden);
        /* one flipped code may change a selection, and with it the whole output: of most tokens
         * it does not */
        n_same += relative(out + t * hidden, plain.out + t * hidden, hidden) < 0.2;
    }
    assert_true(n_same >= 14);
    free(out);
    result_free(&plain);
    test_sfa_rig_close(&rig);
    subject_close(&s);
}

static void chunks_and_threads_change_nothing(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("chunks", 57);
    subject s = subject_open(TEST_SFA_GLM, true, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_config *c = &s.layer.layer.config;
    result whole = run(&s, true, TAMIS_DTYPE_I8, 1, N, false);
    const int32_t chunks[] = {1, 7, 32};
    for (int i = 0; i < 3; i++) {
        result cut = run(&s, true, TAMIS_DTYPE_I8, 2 + i, chunks[i], false);
        test_assert_same_bits(cut.out, whole.out, N, c->hidden_size, "output");
        test_assert_same_bits(cut.q_c, whole.q_c, N, c->q_lora_rank, "q_c");
        assert_memory_equal(cut.topk, whole.topk, N * (size_t)c->index_topk * sizeof(int32_t));
        result_free(&cut);
    }
    result_free(&whole);
    subject_close(&s);
}

/* Rows of padding, NaN here, are neither read nor stored. */
static void padding_is_skipped(void **state)
{
    (void)state;
    enum { REAL = 5, PADDING = 4 };
    test_rng rng = test_rng_start("padding", 58);
    subject s = subject_open(TEST_SFA_V32, false, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_layer *layer = &s.layer.layer;
    const int32_t hidden = layer->config.hidden_size;
    test_sfa_rig rig = open_rig(&s, TAMIS_DTYPE_BF16, 1);
    test_sfa_seq seq = test_sfa_seq_open(&rig);
    float *x = test_take((REAL + PADDING) * (int64_t)hidden, sizeof *x);
    float *out = test_take((REAL + PADDING) * (int64_t)hidden, sizeof *out);
    const tamis_cache_store *store = tamis_sfa_caches_store(rig.caches);
    const size_t n_bytes = (size_t)store->block_bytes;
    uint8_t *null_block = test_take((int64_t)n_bytes, 1);
    int32_t tables[2][TEST_SFA_BLOCKS] = {{0}}, slots[REAL + PADDING];
    tamis_error err;
    memcpy(tables[0], seq.table, sizeof tables[0]);
    memcpy(x, s.x, REAL * (size_t)hidden * sizeof *x);
    for (int32_t i = REAL * hidden; i < (REAL + PADDING) * hidden; i++)
        x[i] = NAN;
    for (int32_t t = 0; t < REAL + PADDING; t++)
        slots[t] = t < REAL ? seq.table[0] * rig.params.block_tokens + t : -1;
    memcpy(null_block, store->caches[0].base,
           (size_t)store->caches[0].row_bytes * (size_t)store->caches[0].desc.rows);
    const tamis_batch batch = {.num_reqs = 2,
                               .query_start_loc = (int32_t[]){0, REAL, REAL + PADDING},
                               .seq_lens = (int32_t[]){REAL, 0},
                               .block_table = &tables[0][0],
                               .block_table_stride = TEST_SFA_BLOCKS,
                               .slot_mapping = slots};
    test_must(tamis_sfa_plan_build(rig.plan, &batch, &err), &err, "plan");
    test_must(
        tamis_mlapo_preprocess(s.mlapo, layer, 0, rig.plan, rig.caches, x, NULL, rig.team, &err),
        &err, "preprocess");
    finish_layer(&rig, layer, out);
    assert_memory_equal(null_block, store->caches[0].base,
                        (size_t)store->caches[0].row_bytes * (size_t)store->caches[0].desc.rows);
    result alone = run(&s, true, TAMIS_DTYPE_BF16, 1, N, false);
    test_assert_same_bits(out, alone.out, REAL, hidden, "real tokens");
    for (int32_t i = REAL * hidden; i < (REAL + PADDING) * hidden; i++)
        assert_true(out[i] == 0);
    result_free(&alone);
    free(null_block);
    free(x);
    free(out);
    test_sfa_rig_close(&rig);
    subject_close(&s);
}

/* ---------------------------------------------------------------- refusals */

static void assert_names(const tamis_error *err, tamis_status status, const char *const *parts,
                         int n_parts)
{
    assert_int_equal(err->status, status);
    for (int i = 0; i < n_parts; i++)
        if (strstr(err->text, parts[i]) == NULL)
            fail_msg("\"%s\" does not name %s", err->text, parts[i]);
}
#define ASSERT_REFUSED(call, status, err, ...)                                                     \
    do {                                                                                           \
        assert_int_equal(call, status);                                                            \
        assert_names(err, status, (const char *[]){__VA_ARGS__},                                   \
                     (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)));                 \
    } while (0)

static void other_weights_are_refused(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("refusals", 59);
    subject s = subject_open(TEST_SFA_V32, false, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_config *c = &s.layer.layer.config;
    const tamis_matrix dynamic =
        int8_dynamic(&s.layer.owned, s.layer.layer.weights.q_b_proj.rows, c->q_lora_rank, &rng);
    const tamis_matrix plain = test_random_matrix(&s.layer.owned, TAMIS_DTYPE_BF16, c->q_lora_rank,
                                                  c->hidden_size, 1, &rng);
    tamis_sfa_layer layer = s.layer.layer;
    tamis_static_quant quant = *layer.weights.kv_a_proj.input;
    tamis_mlapo *mlapo = NULL;
    tamis_error err;
    layer.weights.q_a_proj = plain;
    ASSERT_REFUSED(tamis_mlapo_prepare(&mlapo, &layer, TAMIS_MLAPO_EPS, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "mlapo", "q_a_proj is BF16", "W8A8 static");
    layer = s.layer.layer;
    layer.weights.q_b_proj = dynamic;
    ASSERT_REFUSED(tamis_mlapo_prepare(&mlapo, &layer, TAMIS_MLAPO_EPS, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "q_b_proj is I8 without an input scale");
    layer = s.layer.layer;
    layer.weights.kv_a_proj.input = &quant;
    quant.input_scale = 0.5f;
    ASSERT_REFUSED(tamis_mlapo_prepare(&mlapo, &layer, TAMIS_MLAPO_EPS, &err), TAMIS_STATUS_INVALID,
                   &err, "kv_a_proj has input_scale 0.5", "q_a_proj's 0.03");
    ASSERT_REFUSED(tamis_mlapo_prepare(&mlapo, &s.layer.layer, 0, &err), TAMIS_STATUS_INVALID, &err,
                   "eps is 0");
    assert_null(mlapo);
    subject_close(&s);
}

static void other_plans_are_refused(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("plans", 60);
    subject s = subject_open(TEST_SFA_V32, false, TAMIS_MLAPO_EPS, &rng);
    const tamis_sfa_layer *layer = &s.layer.layer;
    const tamis_cache_params params = int8_params(TAMIS_PROFILE_EXACT, TAMIS_DTYPE_BF16, N, 16);
    test_sfa_rig exact = test_sfa_rig_open(layer, 1, &params, N, 1);
    test_sfa_rig rig = open_rig(&s, TAMIS_DTYPE_BF16, 1);
    test_sfa_seq seq = test_sfa_seq_open(&exact), *seqs[] = {&seq};
    const int32_t one = 1;
    tamis_mlapo other = *s.mlapo;
    tamis_error err;
    test_sfa_plan(&exact, seqs, &one, 1);
    ASSERT_REFUSED(tamis_mlapo_preprocess(s.mlapo, layer, 0, exact.plan, exact.caches, s.x, NULL,
                                          exact.team, &err),
                   TAMIS_STATUS_UNSUPPORTED, &err, "profile is exact", "allowed ascend");
    ASSERT_REFUSED(
        tamis_mlapo_preprocess(s.mlapo, layer, 0, rig.plan, rig.caches, s.x, NULL, rig.team, &err),
        TAMIS_STATUS_STATE, &err, "no step is planned");
    seq = test_sfa_seq_open(&rig);
    test_sfa_plan(&rig, seqs, &one, 1);
    other.q_b_proj.rows--;
    ASSERT_REFUSED(
        tamis_mlapo_preprocess(&other, layer, 0, rig.plan, rig.caches, s.x, NULL, rig.team, &err),
        TAMIS_STATUS_INVALID, &err, "q_b_proj");
    ASSERT_REFUSED(
        tamis_mlapo_preprocess(NULL, layer, 0, rig.plan, rig.caches, s.x, NULL, rig.team, &err),
        TAMIS_STATUS_INVALID, &err, "NULL");
    test_sfa_rig_close(&exact);
    test_sfa_rig_close(&rig);
    subject_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_reordered),
        cmocka_unit_test(rotating_halves_is_layout_b),
        cmocka_unit_test(fused_is_unfused_to_a_step),
        cmocka_unit_test(outputs_are_what_is_stored),
        cmocka_unit_test(steps_may_mix),
        cmocka_unit_test(chunks_and_threads_change_nothing),
        cmocka_unit_test(padding_is_skipped),
        cmocka_unit_test(other_weights_are_refused),
        cmocka_unit_test(other_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
