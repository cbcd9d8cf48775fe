/* Router, experts and dense layers against a double-precision reference; groups, ties, hash rows,
 * clamps, batches. */
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

enum { MAX_T = 9, MAX_EXPERTS = 256 };

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
    const int64_t sw = c->is_dense_layer[0] ? c->intermediate_size : w * c->n_shared_experts;
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
                                .n_group = 1,
                                .topk_group = 1,
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
    if (!config->is_dense_layer[0])
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

/* Sum of the two largest of n values. */
static double two_best(const double *c, int32_t n)
{
    double best = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < i; j++)
            best = fmax(best, c[i] + c[j]);
    return best;
}

/* Experts outside of the best groups get -inf. */
static void mask_groups(const tamis_model_config *config, double *c)
{
    const int32_t size = config->n_routed_experts / config->n_group;
    bool is_kept[MAX_EXPERTS] = {false};
    for (int32_t i = 0; i < config->topk_group; i++) {
        int32_t best = -1;
        for (int32_t g = 0; g < config->n_group; g++)
            if (!is_kept[g] &&
                (best < 0 || two_best(c + g * size, size) > two_best(c + best * size, size)))
                best = g;
        is_kept[best] = true;
    }
    for (int32_t e = 0; e < config->n_routed_experts; e++)
        if (!is_kept[e / size])
            c[e] = -INFINITY;
}

static int32_t table_id(const layer *l, int32_t token, int32_t j)
{
    int64_t id;
    memcpy(&id, l->tid2eid + 1 + (size_t)(token * l->config.num_experts_per_tok + j) * 8, 8);
    return (int32_t)id;
}

/* How often each expert is chosen (a hash row may repeat one). */
static void reference_choice(const layer *l, int32_t token, const double *s, int32_t *count)
{
    const tamis_model_config *config = &l->config;
    double c[MAX_EXPERTS];
    for (int32_t e = 0; e < config->n_routed_experts; e++)
        c[e] = s[e] + l->bias[e];
    if (config->n_group > 1)
        mask_groups(config, c);
    memset(count, 0, (size_t)config->n_routed_experts * sizeof *count);
    for (int32_t j = 0; j < config->num_experts_per_tok; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < config->n_routed_experts; e++)
            if (count[e] == 0 && (best < 0 || c[e] > c[best]))
                best = e;
        count[l->weights.tid2eid != NULL ? table_id(l, token, j) : best]++;
    }
}

static void check_row(const float *y, const double *want, int32_t n, int32_t token)
{
    for (int32_t d = 0; d < n; d++)
        if (!(fabs((double)y[d] - want[d]) < 5e-5))
            fail_msg("token %d, channel %d: %.9g, expected %.9g", token, d, (double)y[d], want[d]);
}

static void check_token(const layer *l, int32_t t, int32_t token, const float *x, const float *y)
{
    const tamis_model_config *c = &l->config;
    const int32_t k = c->num_experts_per_tok;
    double s[MAX_EXPERTS], want[256] = {0}, sum = 0;
    int32_t count[MAX_EXPERTS], n = 0;
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
    check_row(y, want, c->hidden_size, t);
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
static void choose_in_groups(test_rng *rng, const float *bias, int32_t n_experts, int32_t n_group,
                             int32_t topk_group, int32_t k, const int32_t *want)
{
    tamis_model_config c = config_of(16, 8, n_experts, k, 1);
    c.n_group = n_group;
    c.topk_group = topk_group;
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

static void choose_with_bias(test_rng *rng, const float *bias, int32_t n_experts, int32_t k,
                             const int32_t *want)
{
    choose_in_groups(rng, bias, n_experts, 1, 1, k, want);
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

static void groups_agree_with_the_reference(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("groups_agree_with_the_reference", 26);
    static const int32_t shapes[][5] = {/* hidden, experts, groups, kept groups, per token */
                                        {96, 12, 6, 2, 3},   {33, 12, 4, 2, 4},  {21, 12, 3, 1, 4},
                                        {40, 12, 4, 4, 5},   {17, 16, 4, 2, 8},  {19, 15, 3, 2, 2},
                                        {24, 160, 2, 1, 40}, {50, 256, 8, 4, 8}, {8, 4, 2, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int scoring = 0; scoring < 3; scoring++) {
            const int32_t *shape = shapes[i];
            tamis_model_config c = config_of(shape[0], 13, shape[1], shape[4], 1);
            c.n_group = shape[2];
            c.topk_group = shape[3];
            c.scoring_func = (tamis_scoring_func)scoring;
            c.swiglu_limit = INFINITY;
            check_layer(&rng, &c, false, 5);
        }
}

/* Biased scores may all be negative: experts of other groups are out, not worth 0. */
static void groups_are_chosen_by_their_two_best(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("groups_are_chosen_by_their_two_best", 27);
    choose_in_groups(&rng, (float[6]){0}, 6, 3, 2, 3, (int32_t[]){0, 1, 2});
    choose_in_groups(&rng, (float[]){0, 0, 1, 1, 1, 1}, 6, 3, 1, 1, (int32_t[]){2});
    /* the best expert of all, in a poor group */
    choose_in_groups(&rng, (float[]){5, -9, 0, 0, 1, 1}, 6, 3, 2, 3, (int32_t[]){2, 4, 5});
    choose_in_groups(&rng, (float[]){-10, -10, -11, -3, -20, -1}, 6, 3, 1, 2, (int32_t[]){2, 3});
    choose_in_groups(&rng, (float[]){-9, -7, -8, -2, -3, -4}, 6, 2, 1, 2, (int32_t[]){3, 4});
    const float fours[12] = {3, 0, 0, 0, 1, 1, 1, 1, 2, 2, -9, -9};
    choose_in_groups(&rng, fours, 12, 3, 2, 4, (int32_t[]){0, 1, 8, 9});
    /* the sum is one f32 addition: both groups have 2^24 */
    const float large[4] = {0x1p24f, 0, 0x1p24f, 0.1f};
    choose_in_groups(&rng, large, 4, 2, 1, 2, (int32_t[]){0, 1});
    float wide[160] = {0}; /* groups wider than a block of the selection */
    wide[79] = wide[80] = wide[159] = 1;
    choose_in_groups(&rng, wide, 160, 2, 1, 3, (int32_t[]){80, 81, 159});
}

static tamis_model_config dense_config(int32_t hidden, int32_t intermediate)
{
    tamis_model_config c = config_of(hidden, 3, 6, 2, 1);
    c.num_hidden_layers = 1;
    c.is_dense_layer[0] = true;
    c.intermediate_size = intermediate;
    return c;
}

/* Dense layers do not touch the routing of the layer before. */
static void check_dense(test_rng *rng, const tamis_model_config *config, int n_threads,
                        int32_t n_tokens)
{
    layer *l = make_layer(rng, config, false);
    const int32_t h = config->hidden_size, k = config->num_experts_per_tok;
    tamis_exec exec = open_exec(l, n_threads, tamis_cpu_level_available());
    float *x = random_floats(rng, (size_t)(n_tokens * h), 1);
    float *y = random_floats(rng, (size_t)(n_tokens * h), 1);
    for (int32_t i = 0; i < MAX_T * k; i++)
        l->moe.ids[i] = -7;
    assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, NULL, x, n_tokens, y));
    for (int32_t t = 0; t < n_tokens; t++) {
        double want[256] = {0};
        add_expert(&l->weights.shared, 1, (double)config->swiglu_limit, x + t * h, want);
        check_row(y + t * h, want, h, t);
    }
    for (int32_t i = 0; i < MAX_T * k; i++)
        assert_int_equal(l->moe.ids[i], -7);
    free(x);
    free(y);
    test_exec_close(&exec);
    free_layer(l);
}

static void dense_layers_are_their_shared_expert(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("dense_layers_are_their_shared_expert", 28);
    const int32_t hidden[] = {1, 17, 96, 200}, intermediate[] = {1, 33, 301, 64};
    for (int i = 0; i < 4; i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            tamis_model_config c = dense_config(hidden[i], intermediate[i]);
            check_dense(&rng, &c, n_threads, 1);
            c.swiglu_limit = INFINITY;
            check_dense(&rng, &c, n_threads, MAX_T);
        }
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

/* Token by token on one thread with the portable kernels; then every level, thread count, split. */
static void check_same_bits(test_rng *rng, const tamis_model_config *config, bool is_hash)
{
    enum { T = MAX_T, H = 300 };
    layer *l = make_layer(rng, config, is_hash);
    float *x = random_floats(rng, T * H, 1), want[T * H], y[T * H];
    int32_t tokens[T];
    for (int t = 0; t < T; t++)
        tokens[t] = (int32_t)test_rng_int(rng, 0, 49);
    tamis_exec one = open_exec(l, 1, TAMIS_CPU_PORTABLE);
    for (int t = 0; t < T; t++)
        assert_true(
            tamis_moe_forward(&l->moe, &one, &l->weights, tokens + t, x + t * H, 1, want + t * H));
    test_exec_close(&one);
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            tamis_exec exec = open_exec(l, n_threads, (tamis_cpu_level)level);
            for (int first = 0, n; first < T; first += n) {
                n = (int)test_rng_int(rng, 1, T - first);
                assert_true(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens + first,
                                              x + first * H, n, y + first * H));
            }
            assert_memory_equal(y, want, sizeof y);
            test_exec_close(&exec);
        }
    free(x);
    free_layer(l);
}

static void batch_threads_and_level_do_not_show(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("batch_threads_and_level_do_not_show", 24);
    tamis_model_config c = config_of(300, 24, 6, 2, 1);
    check_same_bits(&rng, &c, false);
    check_same_bits(&rng, &c, true);
    c.n_group = 3;
    c.topk_group = 2;
    c.scoring_func = TAMIS_SCORING_SIGMOID;
    check_same_bits(&rng, &c, false);
    c = dense_config(300, 291);
    check_same_bits(&rng, &c, false);
}

static void check_faults(test_rng *rng, const tamis_model_config *config)
{
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        layer *l = make_layer(rng, config, false);
        tamis_exec exec = open_exec(l, 2, tamis_cpu_level_available());
        float x[2 * 24], y[2 * 24];
        test_rng_fill_normal(rng, x, 2 * 24);
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

static void a_score_that_is_not_a_number_is_reported(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_score_that_is_not_a_number_is_reported", 25);
    tamis_model_config c = config_of(24, 8, 6, 2, 1);
    check_faults(&rng, &c);
    c.n_group = 3; /* in a group that is not kept, too */
    check_faults(&rng, &c);
}

/* Scores of infinite logits are 0 and 1 (sigmoid): they would go unseen. */
static void check_infinite_logits(test_rng *rng, const tamis_model_config *config, bool is_hash)
{
    const float bad[2] = {INFINITY, -INFINITY};
    for (int i = 0; i < 2; i++)
        for (int32_t e = 0; e < config->n_routed_experts; e++) {
            layer *l = make_layer(rng, config, is_hash);
            tamis_exec exec = open_exec(l, 1, tamis_cpu_level_available());
            float x[2 * 24], y[2 * 24];
            test_rng_fill_normal(rng, x, 2 * 24);
            const int32_t tokens[2] = {1, 2};
            l->gate[e * 24 + 7] = bad[i];
            assert_false(tamis_moe_forward(&l->moe, &exec, &l->weights, tokens, x, 2, y));
            test_exec_close(&exec);
            free_layer(l);
        }
}

static void an_infinite_logit_is_reported(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("an_infinite_logit_is_reported", 29);
    for (int scoring = 0; scoring < 3; scoring++)
        for (int is_hash = 0; is_hash < 2; is_hash++) {
            tamis_model_config c = config_of(24, 8, 6, 2, 1);
            c.scoring_func = (tamis_scoring_func)scoring;
            check_infinite_logits(&rng, &c, is_hash != 0);
            c.n_group = is_hash ? 1 : 3;
            check_infinite_logits(&rng, &c, is_hash != 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_agree_with_the_reference),
        cmocka_unit_test(ties_take_the_lower_expert_and_the_bias_only_selects),
        cmocka_unit_test(groups_agree_with_the_reference),
        cmocka_unit_test(groups_are_chosen_by_their_two_best),
        cmocka_unit_test(dense_layers_are_their_shared_expert),
        cmocka_unit_test(the_gate_is_clamped_above_only),
        cmocka_unit_test(batch_threads_and_level_do_not_show),
        cmocka_unit_test(a_score_that_is_not_a_number_is_reported),
        cmocka_unit_test(an_infinite_logit_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
