/* Router and experts against a double-precision reference; ties, hash rows, clamps, batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "model/moe.h"
#include "support/exec.h"
#include "support/rng.h"

/* ---------------------------------------------------------------- a layer with f32 weights */

enum { MAX_T = 9 };

typedef struct layer {
    tamis_model_config config;
    tamis_moe_weights weights;
    tamis_moe moe;
    void *memory;
    float *gate, *bias, *w13, *w2, *shared; /* experts one after the other: w1, w3; w2 */
    uint8_t *tid2eid;                       /* one odd byte first: rows start anywhere */
} layer;

static float *random_floats(test_rng *rng, size_t n, float factor)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = factor * test_rng_normal(rng);
    return x;
}

static tamis_matrix matrix(const float *data, int64_t rows, int64_t cols)
{
    return (tamis_matrix){.dtype = TAMIS_DTYPE_F32,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols * (int64_t)sizeof *data};
}

static void make_experts(layer *l, test_rng *rng)
{
    const tamis_model_config *c = &l->config;
    const int64_t h = c->hidden_size, w = c->moe_intermediate_size, n = c->n_routed_experts;
    const int64_t sw = w * c->n_shared_experts;
    l->w13 = random_floats(rng, (size_t)(2 * n * w * h), 2 / sqrtf((float)h));
    l->w2 = random_floats(rng, (size_t)(n * w * h), 1 / sqrtf((float)w));
    l->shared = random_floats(rng, (size_t)(3 * sw * h), 1 / sqrtf((float)h));
    l->weights.experts = calloc((size_t)n, sizeof *l->weights.experts);
    assert_non_null(l->weights.experts);
    for (int64_t e = 0; e < n; e++)
        l->weights.experts[e] = (tamis_expert_weights){matrix(l->w13 + 2 * e * w * h, w, h),
                                                       matrix(l->w13 + (2 * e + 1) * w * h, w, h),
                                                       matrix(l->w2 + e * w * h, h, w)};
    l->weights.shared =
        (tamis_expert_weights){matrix(l->shared, sw, h), matrix(l->shared + sw * h, sw, h),
                               matrix(l->shared + 2 * sw * h, h, sw)};
}

static void make_table(layer *l, test_rng *rng)
{
    const tamis_model_config *c = &l->config;
    const int32_t n = c->vocab_size * c->num_experts_per_tok;
    l->tid2eid = malloc((size_t)n * 8 + 1);
    assert_non_null(l->tid2eid);
    for (int32_t i = 0; i < n; i++) {
        const int64_t id = test_rng_int(rng, 0, c->n_routed_experts - 1);
        memcpy(l->tid2eid + 1 + (size_t)i * 8, &id, 8);
    }
    l->weights.tid2eid = l->tid2eid + 1;
}

static tamis_model_config config_of(int32_t hidden, int32_t width, int32_t n_experts, int32_t k,
                                    int32_t n_shared)
{
    return (tamis_model_config){.vocab_size = 50,
                                .hidden_size = hidden,
                                .moe_intermediate_size = width,
                                .n_routed_experts = n_experts,
                                .num_experts_per_tok = k,
                                .n_shared_experts = n_shared,
                                .scoring_func = TAMIS_SCORING_SQRTSOFTPLUS,
                                .norm_topk_prob = true,
                                .routed_scaling_factor = 1.5f,
                                .swiglu_limit = 1.0f};
}

static layer *make_layer(test_rng *rng, const tamis_model_config *config, bool is_hash)
{
    layer *l = calloc(1, sizeof *l);
    assert_non_null(l);
    l->config = *config;
    const int64_t h = config->hidden_size, n = config->n_routed_experts;
    l->gate = random_floats(rng, (size_t)(n * h), 1 / sqrtf((float)h));
    l->bias = random_floats(rng, (size_t)n, 0.3f);
    l->weights.gate = matrix(l->gate, n, h);
    make_experts(l, rng);
    if (is_hash)
        make_table(l, rng);
    else
        l->weights.bias = l->bias;
    l->moe = (tamis_moe){.config = &l->config, .max_tokens = MAX_T};
    tamis_arena arena = {0};
    tamis_moe_layout(&l->moe, &arena);
    arena = (tamis_arena){.bytes = arena.used, .base = tamis_mem_alloc(TAMIS_MEM_MISC, arena.used)};
    l->memory = arena.base;
    assert_non_null(l->memory);
    tamis_moe_layout(&l->moe, &arena);
    return l;
}

static void free_layer(layer *l)
{
    free(l->gate);
    free(l->bias);
    free(l->w13);
    free(l->w2);
    free(l->shared);
    free(l->tid2eid);
    free(l->weights.experts);
    tamis_mem_free(l->memory);
    free(l);
}

static tamis_exec open_exec(const layer *l, int n_threads, tamis_cpu_level level)
{
    return test_exec_open(n_threads, level, tamis_moe_scratch_floats(&l->config));
}

/* ---------------------------------------------------------------- the reference */

static double dot(const float *w, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

static void add_expert(const tamis_expert_weights *e, double weight, double limit, const float *x,
                       double *y)
{
    const int64_t w = e->w1.rows, h = e->w1.cols;
    double *inner = calloc((size_t)w + 1, sizeof *inner);
    for (int64_t i = 0; i < w; i++) {
        const double g = fmin(dot((const float *)e->w1.data + i * h, x, h), limit);
        const double u = fmax(fmin(dot((const float *)e->w3.data + i * h, x, h), limit), -limit);
        inner[i] = g / (1 + exp(-g)) * u;
    }
    for (int64_t d = 0; d < h; d++)
        for (int64_t i = 0; i < w; i++)
            y[d] += weight * inner[i] * ((const float *)e->w2.data)[d * w + i];
    free(inner);
}

static void reference_scores(const layer *l, const float *x, double *s)
{
    const tamis_model_config *c = &l->config;
    double sum = 0;
    for (int32_t e = 0; e < c->n_routed_experts; e++) {
        const double logit = dot(l->gate + e * c->hidden_size, x, c->hidden_size);
        s[e] = c->scoring_func == TAMIS_SCORING_SIGMOID   ? 1 / (1 + exp(-logit))
               : c->scoring_func == TAMIS_SCORING_SOFTMAX ? exp(logit)
                                                          : sqrt(log1p(exp(logit)));
        sum += s[e];
    }
    for (int32_t e = 0; c->scoring_func == TAMIS_SCORING_SOFTMAX && e < c->n_routed_experts; e++)
        s[e] /= sum;
}

/* How often each expert is chosen (a hash row may repeat one). */
static void reference_choice(const layer *l, int32_t token, const double *s, int32_t *count)
{
    const tamis_model_config *c = &l->config;
    memset(count, 0, (size_t)c->n_routed_experts * sizeof *count);
    for (int32_t j = 0; j < c->num_experts_per_tok; j++) {
        int32_t best = -1;
        if (l->weights.tid2eid != NULL) {
            int64_t id;
            memcpy(&id, l->tid2eid + 1 + (size_t)(token * c->num_experts_per_tok + j) * 8, 8);
            best = (int32_t)id;
        } else {
            for (int32_t e = 0; e < c->n_routed_experts; e++)
                if (count[e] == 0 && (best < 0 || s[e] + l->bias[e] > s[best] + l->bias[best]))
                    best = e;
        }
        count[best]++;
    }
}

static void check_token(const layer *l, int32_t t, int32_t token, const float *x, const float *y)
{
    const tamis_model_config *c = &l->config;
    const int32_t k = c->num_experts_per_tok;
    double s[64], want[256] = {0}, sum = 0;
    int32_t count[64], n = 0;
    reference_scores(l, x, s);
    reference_choice(l, token, s, count);
    for (int32_t e = 0; e < c->n_routed_experts; e++)
        sum += s[e] * count[e];
    for (int32_t e = 0; e < c->n_routed_experts; e++)
        for (int32_t i = 0; i < count[e]; i++, n++) {
            const double w = s[e] / (c->norm_topk_prob ? sum : 1) * c->routed_scaling_factor;
            assert_int_equal(l->moe.ids[t * k + n], e);
            assert_true(fabs((double)l->moe.weights[t * k + n] - w) < 1e-5);
            add_expert(&l->weights.experts[e], w, (double)c->swiglu_limit, x, want);
        }
    add_expert(&l->weights.shared, 1, (double)c->swiglu_limit, x, want);
    for (int32_t d = 0; d < c->hidden_size; d++)
        if (!(fabs((double)y[d] - want[d]) < 5e-5))
            fail_msg("token %d, channel %d: %.9g, expected %.9g", t, d, (double)y[d], want[d]);
}

/* ---------------------------------------------------------------- tests */

static void check_layer(test_rng *rng, const tamis_model_config *config, bool is_hash,
                        int32_t n_tokens)
{
    layer *l = make_layer(rng, config, is_hash);
    tamis_exec exec = open_exec(l, 2, tamis_cpu_level_available());
    float *x = random_floats(rng, (size_t)(n_tokens * config->hidden_size), 1);
    float *y = random_floats(rng, (size_t)(n_tokens * config->hidden_size), 1);
    int32_t tokens[MAX_T];
    for (int32_t t = 0; t < n_tokens; t++)
        tokens[t] = (int32_t)test_rng_int(rng, 0, config->vocab_size - 1);
    assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens, x, n_tokens, y));
    for (int32_t t = 0; t < n_tokens; t++)
        check_token(l, t, tokens[t], x + t * config->hidden_size, y + t * config->hidden_size);
    free(x);
    free(y);
    test_exec_close(&exec);
    free_layer(l);
}

static void layers_agree_with_the_reference(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("layers_agree_with_the_reference", 21);
    for (int is_hash = 0; is_hash < 2; is_hash++)
        for (int scoring = 0; scoring < 3; scoring++) {
            tamis_model_config c = config_of(96, 40, 12, 3, 1);
            c.scoring_func = (tamis_scoring_func)scoring;
            check_layer(&rng, &c, is_hash, 7);
            c.norm_topk_prob = false;
            c.swiglu_limit = INFINITY;
            check_layer(&rng, &c, is_hash, 1);
            c = config_of(33, 17, 64, 6, 2);
            check_layer(&rng, &c, is_hash, MAX_T);
            c = config_of(20, 8, 5, 5, 0); /* all experts, none shared */
            check_layer(&rng, &c, is_hash, 4);
            c = config_of(15, 7, 1, 1, 1);
            check_layer(&rng, &c, is_hash, 2);
        }
}

/* A learned layer whose scores are all equal but for the bias, which is given. */
static void choose_with_bias(test_rng *rng, const float *bias, int32_t n_experts, int32_t k,
                             const int32_t *want)
{
    const tamis_model_config c = config_of(16, 8, n_experts, k, 1);
    layer *l = make_layer(rng, &c, false);
    float x[16], y[16];
    memset(l->gate, 0, (size_t)n_experts * 16 * sizeof *l->gate);
    memcpy(l->bias, bias, (size_t)n_experts * sizeof *bias);
    tamis_exec exec = open_exec(l, 1, tamis_cpu_level_available());
    test_rng_fill_normal(rng, x, 16);
    assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, (int32_t[]){0}, x, 1, y));
    for (int32_t j = 0; j < k; j++) {
        assert_int_equal(l->moe.ids[j], want[j]);
        /* the bias selects only: equal scores weigh the same */
        assert_true(fabsf(l->moe.weights[j] - 1.5f / (float)k) < 1e-6f);
    }
    test_exec_close(&exec);
    free_layer(l);
}

static void ties_take_the_lower_expert_and_the_bias_only_selects(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("ties_take_the_lower_expert_and_the_bias_only_selects", 22);
    choose_with_bias(&rng, (float[]){0, 0, 0, 0, 0, 0}, 6, 3, (int32_t[]){0, 1, 2});
    choose_with_bias(&rng, (float[]){0, 1, 0, 1, 1, 2}, 6, 3, (int32_t[]){1, 3, 5});
    choose_with_bias(&rng, (float[]){-1, 0, 3, 0, -2, 0}, 6, 2, (int32_t[]){1, 2});
    float bias[64] = {0};
    bias[63] = bias[40] = 1; /* ties across the blocks of the selection */
    choose_with_bias(&rng, bias, 64, 4, (int32_t[]){0, 1, 40, 63});
}

/* cases.md 22, through the routed and the shared expert alike. */
static void the_gate_is_clamped_above_only(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_gate_is_clamped_above_only", 23);
    tamis_model_config c = config_of(1, 1, 1, 1, 1);
    c.swiglu_limit = 10;
    c.routed_scaling_factor = 1;
    const float gates[3] = {50, -50, 3}, ups[3] = {-50, 50, 20};
    for (int i = 0; i < 3; i++) {
        layer *l = make_layer(&rng, &c, false);
        tamis_exec exec = open_exec(l, 1, tamis_cpu_level_available());
        float x = 1, y;
        l->w13[0] = l->shared[0] = gates[i];
        l->w13[1] = l->shared[1] = ups[i];
        l->w2[0] = 1;
        l->shared[2] = 2; /* tells the two apart */
        assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, (int32_t[]){0}, &x, 1, &y));
        const double g = fmin((double)gates[i], 10), u = fmax(fmin((double)ups[i], 10), -10);
        const double want = 3 * g / (1 + exp(-g)) * u;
        assert_true(fabs((double)y - want) <= 2e-6 * fabs(want));
        test_exec_close(&exec);
        free_layer(l);
    }
}

static void batch_threads_and_level_do_not_show(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("batch_threads_and_level_do_not_show", 24);
    enum { T = 9, H = 300 };
    for (int is_hash = 0; is_hash < 2; is_hash++) {
        const tamis_model_config c = config_of(H, 24, 6, 2, 1);
        layer *l = make_layer(&rng, &c, is_hash);
        float *x = random_floats(&rng, T * H, 1), want[T * H], y[T * H];
        int32_t tokens[T];
        for (int t = 0; t < T; t++)
            tokens[t] = (int32_t)test_rng_int(&rng, 0, 49);
        tamis_exec one = open_exec(l, 1, TAMIS_CPU_PORTABLE);
        for (int t = 0; t < T; t++)
            assert_true(tamis_moe_forward(&l->moe, &one, &l->weights, tokens + t, x + t * H, 1,
                                          want + t * H));
        test_exec_close(&one);
        for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
            for (int n_threads = 1; n_threads <= 3; n_threads++) {
                tamis_exec exec = open_exec(l, n_threads, (tamis_cpu_level)level);
                for (int first = 0, n; first < T; first += n) {
                    n = (int)test_rng_int(&rng, 1, T - first);
                    assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens + first,
                                                  x + first * H, n, y + first * H));
                }
                assert_memory_equal(y, want, sizeof y);
                test_exec_close(&exec);
            }
        free(x);
        free_layer(l);
    }
}

static void a_score_that_is_not_a_number_is_reported(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_score_that_is_not_a_number_is_reported", 25);
    const tamis_model_config c = config_of(24, 8, 6, 2, 1);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        layer *l = make_layer(&rng, &c, false);
        tamis_exec exec = open_exec(l, 2, tamis_cpu_level_available());
        float x[2 * 24], y[2 * 24];
        test_rng_fill_normal(&rng, x, 2 * 24);
        const int32_t tokens[2] = {1, 2};
        assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens, x, 2, y));
        l->bias[4] = bad[i];
        assert_false(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens, x, 2, y));
        l->bias[4] = 0;
        l->gate[5 * 24 + 7] = NAN;
        assert_false(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens, x, 2, y));
        test_exec_close(&exec);
        free_layer(l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_agree_with_the_reference),
        cmocka_unit_test(ties_take_the_lower_expert_and_the_bias_only_selects),
        cmocka_unit_test(the_gate_is_clamped_above_only),
        cmocka_unit_test(batch_threads_and_level_do_not_show),
        cmocka_unit_test(a_score_that_is_not_a_number_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
