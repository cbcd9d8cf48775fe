/*
 * One attention layer of each family at moderate dimensions: milliseconds of a step of 1 and of 64
 * tokens behind a context of 8,192, independent projections side by side in one pass (as tamis runs
 * them) and one pass each (tamis_plan_params.serial), with the stages of the former.
 *
 *     bench_layer [THREADS]
 *
 * Four layers with weights of their own take turns, so that no weight stays in a cache; the two
 * orders take turns, too. Not a test.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention/dsa/dsa_internal.h"
#include "attention/sfa/sfa_internal.h"

#define CONTEXT  8192
#define MAX_STEP 64
#define N_LAYERS 4
#define MAX_RUNS 25
#define HIDDEN   2048

#define SECONDS_PER_CASE 5.0

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(tamis_status status, const tamis_error *err)
{
    if (status == TAMIS_STATUS_OK)
        return;
    fprintf(stderr, "bench_layer: %s\n", err->text);
    exit(1);
}

/* ---------------------------------------------------------------- data */

static uint32_t random_bits(void)
{
    static uint32_t s = 12345;
    s = s * 1664525u + 1013904223u;
    return s >> 8;
}

/* n bf16 values of either sign, of the size of `top` = upper byte of a bf16 without its sign; pairs
 * of them are good f32 values, too. */
static void fill(void *data, size_t n, uint16_t top)
{
    uint16_t *values = data;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = random_bits();
        values[i] = (uint16_t)((uint32_t)top << 8 | (bits & 0x7f) | (bits & 0x100) << 7);
    }
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) {
        fprintf(stderr, "bench_layer: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* About 1 / sqrt(cols) in size; never freed. */
static tamis_matrix matrix(int64_t rows, int64_t cols)
{
    void *data = take((size_t)(rows * cols) * 2);
    fill(data, (size_t)(rows * cols), 0x3c);
    return (tamis_matrix){
        .dtype = TAMIS_DTYPE_BF16, .rows = rows, .cols = cols, .data = data, .row_bytes = cols * 2};
}

static const float *ones(int64_t n)
{
    float *values = take((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = 1;
    return values;
}

/* Every row of every cache: scores without ties, as in a real context. */
static void fill_caches(const tamis_cache_store *store)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        const int32_t n = cache->desc.life == TAMIS_CACHE_RING ? store->n_slots : store->n_blocks;
        fill(cache->base, (size_t)cache->stride * (size_t)n / 2, 0x3f);
    }
}

/* ---------------------------------------------------------------- layers */

static tamis_dsa_config dsa_config(void)
{
    return (tamis_dsa_config){.hidden_size = HIDDEN,
                              .num_heads = 16,
                              .head_dim = 512,
                              .rope_head_dim = 64,
                              .q_lora_rank = 768,
                              .o_groups = 4,
                              .o_lora_rank = 512,
                              .sliding_window = 128,
                              .compress_ratio = 4,
                              .index_n_heads = 32,
                              .index_head_dim = 128,
                              .index_topk = 512,
                              .rms_norm_eps = 1e-6f,
                              .rope = {.theta = 160000, .yarn_factor = 1}};
}

static tamis_compressor_weights compressor(const tamis_dsa_config *c, int64_t d)
{
    return (tamis_compressor_weights){.wkv = matrix(2 * d, c->hidden_size),
                                      .wgate = matrix(2 * d, c->hidden_size),
                                      .ape = ones(c->compress_ratio * 2 * d),
                                      .norm = ones(d)};
}

static tamis_dsa_layer dsa_layer(const tamis_dsa_config *c)
{
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    return (tamis_dsa_layer){
        .config = *c,
        .weights = {.wq_a = matrix(c->q_lora_rank, c->hidden_size),
                    .wq_b = matrix(q_width, c->q_lora_rank),
                    .wkv = matrix(c->head_dim, c->hidden_size),
                    .wo_a = matrix(low, q_width / c->o_groups),
                    .wo_b = matrix(c->hidden_size, low),
                    .q_norm = ones(c->q_lora_rank),
                    .kv_norm = ones(c->head_dim),
                    .attn_sink = ones(c->num_heads),
                    .compressor = compressor(c, c->head_dim),
                    .index_wq_b =
                        matrix((int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank),
                    .index_weights_proj = matrix(c->index_n_heads, c->hidden_size),
                    .index_compressor = compressor(c, c->index_head_dim)}};
}

static tamis_sfa_config sfa_config(void)
{
    return (tamis_sfa_config){.hidden_size = HIDDEN,
                              .num_heads = 16,
                              .q_lora_rank = 768,
                              .kv_lora_rank = 512,
                              .qk_nope_head_dim = 128,
                              .qk_rope_head_dim = 64,
                              .v_head_dim = 128,
                              .index_n_heads = 32,
                              .index_head_dim = 128,
                              .index_topk = 1024,
                              .rms_norm_eps = 1e-6f,
                              .softmax_scale = tamis_sfa_softmax_scale(192, 1, 0),
                              .rope = {.theta = 10000, .yarn_factor = 1}};
}

static tamis_sfa_layer sfa_layer(const tamis_sfa_config *c)
{
    const int64_t heads = c->num_heads, nope = c->qk_nope_head_dim, rope = c->qk_rope_head_dim;
    return (tamis_sfa_layer){
        .config = *c,
        .weights = {.q_a_proj = matrix(c->q_lora_rank, c->hidden_size),
                    .q_b_proj = matrix(heads * (nope + rope), c->q_lora_rank),
                    .kv_a_proj = matrix(c->kv_lora_rank + rope, c->hidden_size),
                    .kv_b_proj = matrix(heads * (nope + c->v_head_dim), c->kv_lora_rank),
                    .o_proj = matrix(c->hidden_size, heads * c->v_head_dim),
                    .q_a_norm = ones(c->q_lora_rank),
                    .kv_a_norm = ones(c->kv_lora_rank),
                    .index_wq_b =
                        matrix((int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank),
                    .index_wk = matrix(c->index_head_dim, c->hidden_size),
                    .index_weights_proj = matrix(c->index_n_heads, c->hidden_size),
                    .index_k_norm = ones(c->index_head_dim),
                    .index_k_norm_bias = ones(c->index_head_dim)}};
}

/* ---------------------------------------------------------------- one family */

/* Either family: four layers, their caches, and a plan for each order. */
typedef struct stack {
    const char *name;
    bool is_v4;
    tamis_dsa_layer dsa[N_LAYERS];
    tamis_sfa_layer sfa[N_LAYERS];
    tamis_dsa_caches *dsa_caches;
    tamis_sfa_caches *sfa_caches;
    tamis_dsa_plan *dsa_plan[2];
    tamis_sfa_plan *sfa_plan[2];
    tamis_team *team;
    tamis_attn_profile profile; /* of plan 0 */
    float *x, *out;
} stack;

static tamis_cache_params cache_params(void)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.num_blocks = 2 + (CONTEXT + MAX_STEP) / params.block_tokens;
    return params;
}

static tamis_plan_params plan_params(int n_threads, bool is_serial)
{
    tamis_plan_params params = tamis_plan_params_default();
    params.max_num_batched_tokens = MAX_STEP;
    params.max_model_len = CONTEXT + MAX_STEP;
    params.n_threads = n_threads;
    params.serial = is_serial;
    return params;
}

static void open_dsa(stack *s, int n_threads)
{
    const tamis_cache_params caches = cache_params();
    tamis_dsa_config configs[N_LAYERS];
    tamis_error err;
    for (int i = 0; i < N_LAYERS; i++) {
        configs[i] = dsa_config();
        s->dsa[i] = dsa_layer(&configs[i]);
    }
    must(tamis_dsa_caches_open(&s->dsa_caches, configs, N_LAYERS, &caches, &err), &err);
    fill_caches(tamis_dsa_caches_store(s->dsa_caches));
    for (int order = 0; order < 2; order++) {
        const tamis_plan_params plan = plan_params(n_threads, order == 1);
        must(tamis_dsa_plan_open(&s->dsa_plan[order], s->dsa_caches, &plan, &err), &err);
    }
    tamis_dsa_plan_set_profile(s->dsa_plan[0], &s->profile);
}

static void open_sfa(stack *s, int n_threads)
{
    const tamis_cache_params caches = cache_params();
    tamis_sfa_config configs[N_LAYERS];
    tamis_error err;
    for (int i = 0; i < N_LAYERS; i++) {
        configs[i] = sfa_config();
        s->sfa[i] = sfa_layer(&configs[i]);
    }
    must(tamis_sfa_caches_open(&s->sfa_caches, configs, N_LAYERS, &caches, &err), &err);
    fill_caches(tamis_sfa_caches_store(s->sfa_caches));
    for (int order = 0; order < 2; order++) {
        const tamis_plan_params plan = plan_params(n_threads, order == 1);
        must(tamis_sfa_plan_open(&s->sfa_plan[order], s->sfa_caches, &plan, &err), &err);
    }
    tamis_sfa_plan_set_profile(s->sfa_plan[0], &s->profile);
}

static void open_stack(stack *s, bool is_v4, int n_threads)
{
    tamis_error err;
    memset(s, 0, sizeof *s);
    s->is_v4 = is_v4;
    s->name = is_v4 ? "V4, ratio 4" : "V3.2";
    if (is_v4)
        open_dsa(s, n_threads);
    else
        open_sfa(s, n_threads);
    must(tamis_team_open(&s->team, n_threads, &err), &err);
    s->x = take(MAX_STEP * HIDDEN * sizeof *s->x);
    s->out = take(MAX_STEP * HIDDEN * sizeof *s->out);
    fill(s->x, (size_t)2 * MAX_STEP * HIDDEN, 0x3f);
}

static void plan_step(stack *s, int32_t n_tokens)
{
    const int32_t start[] = {0, n_tokens}, len = CONTEXT + n_tokens, slot = 0;
    int32_t table[1 + (CONTEXT + MAX_STEP) / 256];
    tamis_error err;
    for (int32_t i = 0; i < (int32_t)(sizeof table / sizeof *table); i++)
        table[i] = 1 + i;
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = start,
                               .seq_lens = &len,
                               .block_table = table,
                               .block_table_stride = (int64_t)(sizeof table / sizeof *table),
                               .slots = &slot};
    for (int order = 0; order < 2; order++)
        must(s->is_v4 ? tamis_dsa_plan_build(s->dsa_plan[order], &batch, &err)
                      : tamis_sfa_plan_build(s->sfa_plan[order], &batch, &err),
             &err);
}

/* Milliseconds of a layer, over all four. */
static double run_layers(stack *s, int order)
{
    tamis_error err;
    const double started = now();
    for (int i = 0; i < N_LAYERS; i++)
        must(s->is_v4 ? tamis_dsa_forward(&s->dsa[i], i, s->dsa_plan[order], s->dsa_caches, s->x,
                                          s->out, s->team, &err)
                      : tamis_sfa_forward(&s->sfa[i], i, s->sfa_plan[order], s->sfa_caches, s->x,
                                          s->out, s->team, &err),
             &err);
    return 1e3 * (now() - started) / N_LAYERS;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs of both orders in turn; ms[order] ascending, *best the profile of the best run of order 0.
 */
static int measure(stack *s, double (*ms)[MAX_RUNS], tamis_attn_profile *best)
{
    double shortest = HUGE_VAL;
    int n = 0;
    run_layers(s, 0); /* pages and caches are warm from here on */
    for (const double started = now();
         n < MAX_RUNS && (n < 3 || now() - started < SECONDS_PER_CASE); n++)
        for (int order = 0; order < 2; order++) {
            memset(&s->profile, 0, sizeof s->profile);
            ms[order][n] = run_layers(s, order);
            if (order == 0 && ms[0][n] < shortest) {
                shortest = ms[0][n];
                *best = s->profile;
            }
        }
    for (int order = 0; order < 2; order++)
        qsort(ms[order], (size_t)n, sizeof **ms, compare_doubles);
    return n;
}

static void bench(stack *s, int32_t n_tokens)
{
    double ms[2][MAX_RUNS], stage[TAMIS_NUM_STAGES] = {0};
    tamis_attn_profile best = {0};
    plan_step(s, n_tokens);
    const int n = measure(s, ms, &best);
    for (int kind = 0; kind < TAMIS_PROFILE_KINDS; kind++)
        for (int i = 0; i < TAMIS_NUM_STAGES; i++)
            stage[i] += 1e-6 * (double)best.ns[kind][i] / N_LAYERS;
    printf("%-12s %6d  %8.3f %8.3f  %8.3f %8.3f  %8.3f %8.3f %8.3f %8.3f\n", s->name, n_tokens,
           ms[0][0], ms[0][n / 2], ms[1][0], ms[1][n / 2],
           stage[TAMIS_STAGE_PROJECT_IN] + stage[TAMIS_STAGE_PROJECT_Q] + stage[TAMIS_STAGE_PROJECT_OUT],
           stage[TAMIS_STAGE_ROWS], stage[TAMIS_STAGE_SELECT], stage[TAMIS_STAGE_ATTEND]);
}

static void print_machine(int n_threads)
{
    char line[256], name[256] = "unknown CPU";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %255[^\n]", name) == 1)
            break;
    if (file != NULL)
        fclose(file);
    printf("%s, %s, %d threads, context %d, bf16 weights and caches; ms of a layer\n", name,
           tamis_cpu_level_name(tamis_cpu_level_current()), n_threads, CONTEXT);
    printf("%19s  %17s  %17s  %35s\n", "", "side by side", "serial", "stages of the best run");
    printf("%-12s %6s  %8s %8s  %8s %8s  %8s %8s %8s %8s\n", "layer", "tokens", "best", "median",
           "best", "median", "project", "rows", "select", "attend");
}

int main(int argc, char **argv)
{
    static stack s;
    const int n_threads = argc > 1 ? atoi(argv[1]) : 2;
    print_machine(n_threads);
    for (int is_v4 = 1; is_v4 >= 0; is_v4--) {
        open_stack(&s, is_v4 == 1, n_threads);
        bench(&s, 1);
        bench(&s, MAX_STEP);
        tamis_team_close(&s.team);
        for (int order = 0; order < 2; order++) {
            tamis_dsa_plan_close(&s.dsa_plan[order]);
            tamis_sfa_plan_close(&s.sfa_plan[order]);
        }
        tamis_dsa_caches_close(&s.dsa_caches);
        tamis_sfa_caches_close(&s.sfa_caches);
    }
    return 0;
}
