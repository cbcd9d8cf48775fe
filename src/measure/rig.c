#include "measure/rig.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "engine/memory_plan.h"
#include "measure/random_rows.h"
#include "measure/random_weights.h"

/* Carves the rig's memory; fills it where there is some. */
typedef struct rig_builder {
    tamis_rig *rig;
    tamis_arena arena;
    tamis_noise noise;
} rig_builder;

/* ---------------------------------------------------------------- numbers */

static tamis_matrix matrix(rig_builder *b, tamis_weight_form form, int64_t rows, int64_t cols)
{
    tamis_matrix w = tamis_weight_form_matrix(form, rows, cols);
    const size_t data_bytes = tamis_matrix_data_bytes(&w);
    const size_t scale_bytes = tamis_matrix_scale_bytes(&w);
    void *data = tamis_arena_take(&b->arena, data_bytes, 1);
    void *scale = scale_bytes == 0 ? NULL : tamis_arena_take(&b->arena, scale_bytes, 1);
    if (data != NULL)
        tamis_noise_fill_data(&b->noise, data, data_bytes, w.dtype, cols);
    if (scale != NULL)
        tamis_noise_fill_scales(&b->noise, scale, scale_bytes, w.scale_dtype, w.dtype, cols);
    w.data = data;
    w.scale = scale;
    return w;
}

/* 1 plus or minus a little: a norm's weights. */
static const float *norm(rig_builder *b, int64_t n)
{
    float *values = tamis_arena_take(&b->arena, (size_t)n, sizeof *values);
    for (int64_t i = 0; values != NULL && i < n; i++)
        values[i] = 1.0f + 0.1f * tamis_noise_unit(&b->noise);
    return values;
}

static const float *small(rig_builder *b, int64_t n)
{
    float *values = tamis_arena_take(&b->arena, (size_t)n, sizeof *values);
    for (int64_t i = 0; values != NULL && i < n; i++)
        values[i] = 0.1f * tamis_noise_unit(&b->noise);
    return values;
}

/* Linear layers in the vendor's format of the shape, or int8 in profile ascend. */
static tamis_weight_form form_of(const tamis_rig *rig)
{
    if (rig->params.profile == TAMIS_PROFILE_ASCEND)
        return TAMIS_FORM_I8;
    if (tamis_shape_is_v4(rig->params.shape))
        return TAMIS_FORM_FP8_E8M0;
    return tamis_shape_is_bf16(rig->params.shape) ? TAMIS_FORM_BF16 : TAMIS_FORM_FP8_F32;
}

static tamis_weight_form expert_form_of(const tamis_rig *rig)
{
    const tamis_weight_form form = form_of(rig);
    return form == TAMIS_FORM_FP8_E8M0 ? TAMIS_FORM_FP4 : form;
}

/* ---------------------------------------------------------------- layers */

static tamis_compressor_weights compressor(rig_builder *b, const tamis_dsa_config *c, int64_t dim)
{
    const int64_t width = (c->compress_ratio == 4 ? 2 : 1) * dim;
    return (tamis_compressor_weights){.wkv = matrix(b, TAMIS_FORM_BF16, width, c->hidden_size),
                                      .wgate = matrix(b, TAMIS_FORM_BF16, width, c->hidden_size),
                                      .ape = small(b, c->compress_ratio * width),
                                      .norm = norm(b, dim)};
}

static tamis_dsa_layer dsa_layer(rig_builder *b, const tamis_dsa_config *c)
{
    const tamis_weight_form form = form_of(b->rig);
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    tamis_dsa_layer layer = {.config = *c,
                             .weights = {.wq_a = matrix(b, form, c->q_lora_rank, c->hidden_size),
                                         .wq_b = matrix(b, form, q_width, c->q_lora_rank),
                                         .wkv = matrix(b, form, c->head_dim, c->hidden_size),
                                         .wo_a = matrix(b, form, low, q_width / c->o_groups),
                                         .wo_b = matrix(b, form, c->hidden_size, low),
                                         .q_norm = norm(b, c->q_lora_rank),
                                         .kv_norm = norm(b, c->head_dim),
                                         .attn_sink = small(b, c->num_heads)}};
    if (c->compress_ratio != 0)
        layer.weights.compressor = compressor(b, c, c->head_dim);
    if (c->compress_ratio != 4)
        return layer;
    layer.weights.index_wq_b =
        matrix(b, form, (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
    layer.weights.index_weights_proj = matrix(b, TAMIS_FORM_BF16, c->index_n_heads, c->hidden_size);
    layer.weights.index_compressor = compressor(b, c, c->index_head_dim);
    return layer;
}

static tamis_sfa_layer sfa_layer(rig_builder *b, const tamis_sfa_config *c)
{
    const tamis_weight_form form = form_of(b->rig);
    /* kv_b stays a float matrix where others are int8 */
    const tamis_weight_form kv_b = form == TAMIS_FORM_I8 ? TAMIS_FORM_BF16 : form;
    const int64_t heads = c->num_heads, nope = c->qk_nope_head_dim, rope = c->qk_rope_head_dim;
    tamis_sfa_layer layer = {
        .config = *c,
        .weights = {.q_a_proj = matrix(b, form, c->q_lora_rank, c->hidden_size),
                    .q_b_proj = matrix(b, form, heads * (nope + rope), c->q_lora_rank),
                    .kv_a_proj = matrix(b, form, c->kv_lora_rank + rope, c->hidden_size),
                    .kv_b_proj = matrix(b, kv_b, heads * (nope + c->v_head_dim), c->kv_lora_rank),
                    .o_proj = matrix(b, form, c->hidden_size, heads * c->v_head_dim),
                    .q_a_norm = norm(b, c->q_lora_rank),
                    .kv_a_norm = norm(b, c->kv_lora_rank)}};
    if (c->index_topk == 0 || c->reuse_topk)
        return layer;
    layer.weights.index_wq_b =
        matrix(b, form, (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
    layer.weights.index_wk = matrix(b, form, c->index_head_dim, c->hidden_size);
    layer.weights.index_weights_proj = matrix(b, TAMIS_FORM_BF16, c->index_n_heads, c->hidden_size);
    layer.weights.index_k_norm = norm(b, c->index_head_dim);
    layer.weights.index_k_norm_bias = small(b, c->index_head_dim);
    return layer;
}

static tamis_expert_weights expert(rig_builder *b, tamis_weight_form form, int64_t width)
{
    const int64_t hidden = b->rig->config.hidden_size;
    return (tamis_expert_weights){.w1 = matrix(b, form, width, hidden),
                                  .w3 = matrix(b, form, width, hidden),
                                  .w2 = matrix(b, form, hidden, width)};
}

static void build_moe(rig_builder *b)
{
    tamis_rig *rig = b->rig;
    const tamis_model_config *c = &rig->config;
    rig->moe_weights.gate = matrix(b, TAMIS_FORM_BF16, c->n_routed_experts, c->hidden_size);
    rig->moe_weights.bias = small(b, c->n_routed_experts);
    rig->experts = tamis_arena_take(&b->arena, (size_t)c->n_routed_experts, sizeof *rig->experts);
    for (int32_t e = 0; e < c->n_routed_experts; e++) {
        const tamis_expert_weights w = expert(b, expert_form_of(rig), c->moe_intermediate_size);
        if (rig->experts != NULL)
            rig->experts[e] = w;
    }
    rig->moe_weights.experts = rig->experts;
    rig->moe_weights.shared =
        expert(b, form_of(rig), (int64_t)c->moe_intermediate_size * c->n_shared_experts);
    rig->moe.config = c;
    rig->moe.max_tokens = rig->params.num_tokens;
    tamis_moe_layout(&rig->moe, &b->arena);
    rig->exec.scratch_floats = tamis_moe_scratch_floats(c);
    rig->exec.input_bytes = rig->params.profile == TAMIS_PROFILE_EXACT
                                ? 0
                                : tamis_moe_input_bytes(c, rig->params.num_tokens);
}

static void build_head(rig_builder *b)
{
    tamis_rig *rig = b->rig;
    const tamis_model_config *c = &rig->config;
    rig->head = matrix(b, TAMIS_FORM_BF16, c->vocab_size, c->hidden_size);
    rig->norm = norm(b, c->hidden_size);
    rig->exec.scratch_floats = TAMIS_LINEAR_SCRATCH(c->hidden_size);
    rig->exec.input_bytes =
        rig->params.profile == TAMIS_PROFILE_EXACT
            ? 0
            : tamis_linear_input_bytes(1, rig->params.num_tokens, c->hidden_size);
}

static void build_attention(rig_builder *b)
{
    tamis_rig *rig = b->rig;
    for (int32_t i = 0; i < rig->n_layers; i++) {
        const int32_t layer = rig->first_layer + i;
        if (tamis_shape_is_v4(rig->params.shape)) {
            const tamis_dsa_config c = tamis_model_config_dsa(&rig->config, layer);
            rig->dsa[i] = dsa_layer(b, &c);
        } else {
            const tamis_sfa_config c = tamis_model_config_sfa(&rig->config, layer);
            rig->sfa[i] = sfa_layer(b, &c);
        }
    }
}

static void build(rig_builder *b)
{
    tamis_rig *rig = b->rig;
    const size_t n_tokens = (size_t)rig->params.num_tokens;
    const size_t hidden = (size_t)rig->config.hidden_size;
    const bool is_head = rig->params.kind == TAMIS_BENCH_HEAD;
    b->noise = (tamis_noise){rig->params.seed};
    if (rig->params.kind == TAMIS_BENCH_MOE)
        build_moe(b);
    else if (is_head)
        build_head(b);
    else
        build_attention(b);
    rig->exec.scratch_floats = (size_t)tamis_round_up((int64_t)rig->exec.scratch_floats, 16);
    rig->exec.scratch = tamis_arena_take(
        &b->arena, rig->exec.scratch_floats * (size_t)rig->params.n_threads, sizeof(float));
    rig->exec.inputs = tamis_arena_take(&b->arena, rig->exec.input_bytes, 1);
    rig->x = tamis_arena_take(&b->arena, n_tokens * hidden, sizeof(float));
    rig->out = tamis_arena_take(
        &b->arena, n_tokens * (is_head ? (size_t)rig->config.vocab_size : hidden), sizeof(float));
    for (size_t i = 0; rig->x != NULL && i < n_tokens * hidden; i++)
        rig->x[i] = tamis_noise_unit(&b->noise);
    if (rig->x != NULL) /* layers of other profiles than exact want BF16 values */
        tamis_kernels_current()->round_bf16(rig->x, (int64_t)(n_tokens * hidden));
}

/* ---------------------------------------------------------------- parameters */

static const struct {
    const char *name;
    int32_t ratio;             /* of V4 attention, -1: none */
    bool is_sfa, is_attention; /* V3.2, GLM attention */
} kinds[TAMIS_NUM_BENCH_KINDS] = {
    [TAMIS_BENCH_WINDOW] = {"window", 0, false, true},
    [TAMIS_BENCH_C4] = {"c4", 4, false, true},
    [TAMIS_BENCH_C128] = {"c128", 128, false, true},
    [TAMIS_BENCH_SFA] = {"sfa", -1, true, true},
    [TAMIS_BENCH_SHARED] = {"shared", -1, true, true},
    [TAMIS_BENCH_MOE] = {"moe", -1, false, false},
    [TAMIS_BENCH_HEAD] = {"head", -1, false, false},
};

const char *tamis_bench_kind_name(tamis_bench_kind kind)
{
    return (unsigned)kind < (unsigned)TAMIS_NUM_BENCH_KINDS ? kinds[kind].name : "?";
}

tamis_bench_kind tamis_bench_kind_find(const char *name)
{
    int i = 0;
    while (i < TAMIS_NUM_BENCH_KINDS && (name == NULL || strcmp(name, kinds[i].name) != 0))
        i++;
    return (tamis_bench_kind)i;
}

tamis_bench_layer_params tamis_bench_layer_params_default(void)
{
    return (tamis_bench_layer_params){.struct_size = sizeof(tamis_bench_layer_params),
                                      .shape = TAMIS_SHAPE_V4_FLASH,
                                      .kind = TAMIS_BENCH_C4,
                                      .kv_cache_dtype = TAMIS_DTYPE_AUTO,
                                      .context = 4096,
                                      .num_tokens = 1,
                                      .n_threads = 1,
                                      .seconds = 1,
                                      .seed = 1};
}

static tamis_status check_range(const char *name, int64_t value, int64_t min, int64_t max,
                                tamis_error *err)
{
    if (value >= min && value <= max)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: %s is %lld, allowed %lld..%lld", name,
                      (long long)value, (long long)min, (long long)max);
}

static tamis_status check_params(const tamis_bench_layer_params *p, tamis_error *err)
{
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: struct_size is %zu, must be %zu",
                          p->struct_size, sizeof *p);
    TAMIS_TRY(check_range("shape", p->shape, 0, TAMIS_NUM_SHAPES - 1, err));
    TAMIS_TRY(check_range("kind", p->kind, 0, TAMIS_NUM_BENCH_KINDS - 1, err));
    TAMIS_TRY(check_range("profile", p->profile, 0, TAMIS_NUM_PROFILES - 1, err));
    TAMIS_TRY(check_range("context", p->context, 0, 1 << 20, err));
    TAMIS_TRY(check_range("num_tokens", p->num_tokens, 1, 4096, err));
    TAMIS_TRY(check_range("n_threads", p->n_threads, 1, 256, err));
    if (!(p->seconds >= 0 && p->seconds <= 3600))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: seconds is %g, allowed 0..3600",
                          p->seconds);
    const bool is_v4 = tamis_shape_is_v4(p->shape);
    const bool fits = !kinds[p->kind].is_attention || kinds[p->kind].is_sfa != is_v4;
    if (!fits || (p->kind == TAMIS_BENCH_SHARED && p->shape != TAMIS_SHAPE_GLM52))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "bench: kind is %s, allowed for %s: %s, moe, head", kinds[p->kind].name,
                          tamis_shape_name(p->shape),
                          is_v4                           ? "window, c4, c128"
                          : p->shape == TAMIS_SHAPE_GLM52 ? "sfa, shared"
                                                          : "sfa");
    return TAMIS_STATUS_OK;
}

/* The config of a model that has the wanted layer, and which one that is. */
static tamis_status pick_layer(tamis_rig *rig, tamis_error *err)
{
    const tamis_bench_layer_params *p = &rig->params;
    const int32_t ratio[] = {kinds[p->kind].ratio < 0 ? 0 : kinds[p->kind].ratio};
    const bool is_shared = p->kind == TAMIS_BENCH_SHARED;
    const tamis_shape_cut cut = {.layers = ratio,
                                 .n_layers = is_shared ? 4 : 1,
                                 .n_experts = p->n_experts == 0 ? -1 : p->n_experts,
                                 .vocab_size = p->vocab_size};
    rig->first_layer = is_shared ? 2 : 0; /* GLM-5.2: layers 0, 1, 2 select, 3 shares with 2 */
    rig->n_layers = is_shared ? 2 : 1;
    return tamis_shape_config(p->shape, &cut, &rig->config, err);
}

/* ---------------------------------------------------------------- caches and plan */

static tamis_cache_params cache_params(const tamis_rig *rig)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.profile = rig->params.profile;
    params.kv_cache_dtype = rig->params.kv_cache_dtype;
    params.num_blocks =
        2 + (rig->params.context + rig->params.num_tokens - 1) / params.block_tokens;
    return params;
}

static tamis_plan_params plan_params(const tamis_rig *rig)
{
    tamis_plan_params params = tamis_plan_params_default();
    params.max_num_batched_tokens = rig->params.num_tokens;
    params.max_model_len = rig->params.context + rig->params.num_tokens;
    params.n_threads = rig->params.n_threads;
    params.serial = rig->params.serial;
    return params;
}

/* Bytes of caches and plan; block tables beside them. */
static tamis_status measure_caches(tamis_rig *rig, tamis_error *err)
{
    const tamis_cache_params caches = cache_params(rig);
    const tamis_plan_params plan = plan_params(rig);
    tamis_dsa_config dsa[TAMIS_RIG_MAX_LAYERS];
    tamis_sfa_config sfa[TAMIS_RIG_MAX_LAYERS];
    const int32_t n = rig->n_layers;
    tamis_cache_bytes bytes;
    uint64_t plan_bytes;
    for (int32_t i = 0; i < n; i++) {
        dsa[i] = rig->dsa[i].config;
        sfa[i] = rig->sfa[i].config;
    }
    if (kinds[rig->params.kind].is_sfa) {
        TAMIS_TRY(tamis_sfa_caches_measure(sfa, n, &caches, &bytes, err));
        TAMIS_TRY(tamis_sfa_plan_measure(sfa, n, &plan, &caches, &plan_bytes, err));
    } else {
        TAMIS_TRY(tamis_dsa_caches_measure(dsa, n, &caches, &bytes, err));
        TAMIS_TRY(tamis_dsa_plan_measure(dsa, n, &plan, &caches, &plan_bytes, err));
    }
    rig->planned_bytes +=
        bytes.blocks + bytes.rings + plan_bytes + 8u * (uint64_t)caches.num_blocks;
    return TAMIS_STATUS_OK;
}

static tamis_status open_dsa(tamis_rig *rig, tamis_error *err)
{
    const tamis_cache_params caches = cache_params(rig);
    const tamis_plan_params plan = plan_params(rig);
    TAMIS_TRY(tamis_dsa_caches_open(&rig->dsa_caches, &rig->dsa[0].config, 1, &caches, err));
    TAMIS_TRY(tamis_dsa_plan_open(&rig->dsa_plan, rig->dsa_caches, &plan, err));
    tamis_dsa_plan_set_profile(rig->dsa_plan, &rig->profile);
    return TAMIS_STATUS_OK;
}

static tamis_status open_sfa(tamis_rig *rig, tamis_error *err)
{
    const tamis_cache_params caches = cache_params(rig);
    const tamis_plan_params plan = plan_params(rig);
    tamis_sfa_config configs[TAMIS_RIG_MAX_LAYERS];
    for (int32_t i = 0; i < rig->n_layers; i++)
        configs[i] = rig->sfa[i].config;
    TAMIS_TRY(tamis_sfa_caches_open(&rig->sfa_caches, configs, rig->n_layers, &caches, err));
    TAMIS_TRY(tamis_sfa_plan_open(&rig->sfa_plan, rig->sfa_caches, &plan, err));
    tamis_sfa_plan_set_profile(rig->sfa_plan, &rig->profile);
    return TAMIS_STATUS_OK;
}

static tamis_status plan_step(tamis_rig *rig, tamis_error *err)
{
    const int32_t n = rig->params.num_tokens, len = rig->params.context + n, slot = 0;
    const int32_t start[] = {0, n}, n_blocks = cache_params(rig).num_blocks - 1;
    int32_t *table = tamis_mem_array(TAMIS_MEM_MISC, (size_t)n_blocks, sizeof *table);
    if (table == NULL)
        return tamis_fail_memory(err, "block table", (size_t)n_blocks * sizeof *table);
    for (int32_t i = 0; i < n_blocks; i++)
        table[i] = 1 + i;
    const tamis_batch batch = {.num_reqs = 1,
                               .query_start_loc = start,
                               .seq_lens = &len,
                               .block_table = table,
                               .block_table_stride = n_blocks,
                               .slots = &slot};
    const tamis_status st = rig->dsa_plan != NULL
                                ? tamis_dsa_plan_build(rig->dsa_plan, &batch, err)
                                : tamis_sfa_plan_build(rig->sfa_plan, &batch, err);
    tamis_mem_free(table);
    return st;
}

static void fill_caches(tamis_rig *rig)
{
    tamis_noise noise = {rig->params.seed + 1};
    const tamis_cache_store *store = rig->dsa_caches != NULL
                                         ? tamis_dsa_caches_store(rig->dsa_caches)
                                         : tamis_sfa_caches_store(rig->sfa_caches);
    for (int32_t i = 1; i < store->n_blocks; i++)
        tamis_fill_block(store, i, &noise);
    tamis_fill_slot(store, 0, &noise);
}

/* ---------------------------------------------------------------- open and close */

/* Bytes of everything, before anything is taken; leaves those of the weights in *bytes. */
static tamis_status measure(tamis_rig *rig, size_t *bytes, tamis_error *err)
{
    rig_builder measuring = {.rig = rig};
    build(&measuring);
    *bytes = measuring.arena.used;
    if (*bytes == SIZE_MAX)
        return tamis_fail_memory(err, "bench: weights of a layer", *bytes);
    rig->planned_bytes = *bytes;
    if (kinds[rig->params.kind].is_attention)
        TAMIS_TRY(measure_caches(rig, err));
    /* a system that promises more than it has would end the process instead */
    if (rig->planned_bytes > tamis_available_memory())
        return tamis_fail(
            err, TAMIS_STATUS_NO_MEMORY, "bench: the layer needs %.2f GiB, %.2f GiB are available",
            (double)rig->planned_bytes / (1 << 30), (double)tamis_available_memory() / (1 << 30));
    return TAMIS_STATUS_OK;
}

static tamis_status take_memory(tamis_rig *rig, tamis_error *err)
{
    size_t bytes;
    TAMIS_TRY(measure(rig, &bytes, err));
    rig->memory = tamis_mem_alloc(TAMIS_MEM_WEIGHTS, bytes);
    if (rig->memory == NULL)
        return tamis_fail_memory(err, "bench: weights of a layer", bytes);
    rig_builder b = {.rig = rig, .arena = {.base = rig->memory, .bytes = bytes}};
    build(&b);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_rig_open(tamis_rig *rig, const tamis_bench_layer_params *params,
                            tamis_error *err)
{
    memset(rig, 0, sizeof *rig);
    rig->params = *params;
    TAMIS_TRY(check_params(params, err));
    TAMIS_TRY(pick_layer(rig, err));
    TAMIS_TRY(take_memory(rig, err));
    TAMIS_TRY(tamis_team_open(&rig->team, params->n_threads, err));
    rig->exec.team = rig->team;
    rig->exec.kernels = tamis_kernels_current();
    rig->exec.profile = params->profile;
    if (!kinds[params->kind].is_attention)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(kinds[params->kind].is_sfa ? open_sfa(rig, err) : open_dsa(rig, err));
    fill_caches(rig);
    return plan_step(rig, err);
}

void tamis_rig_close(tamis_rig *rig)
{
    tamis_dsa_plan_close(&rig->dsa_plan);
    tamis_sfa_plan_close(&rig->sfa_plan);
    tamis_dsa_caches_close(&rig->dsa_caches);
    tamis_sfa_caches_close(&rig->sfa_caches);
    tamis_team_close(&rig->team);
    tamis_mem_free(rig->memory);
    rig->memory = NULL;
}

/* ---------------------------------------------------------------- run */

static tamis_status run_moe(tamis_rig *rig, tamis_error *err)
{
    if (tamis_moe_forward(&rig->moe, &rig->exec, &rig->moe_weights, NULL, rig->x,
                          rig->params.num_tokens, rig->out))
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_FORMAT, "bench: experts met a NaN or an infinity");
}

static void run_head(tamis_rig *rig)
{
    tamis_linear_job job = tamis_linear_full(&rig->head, rig->x, rig->out, rig->params.num_tokens);
    job.keep_output = true;
    tamis_linear_run(&rig->exec, &job, 1);
}

static tamis_status run_layer(tamis_rig *rig, int32_t i, tamis_error *err)
{
    if (rig->dsa_plan != NULL)
        return tamis_dsa_forward(&rig->dsa[i], i, rig->dsa_plan, rig->dsa_caches, rig->x, rig->out,
                                 rig->team, err);
    return tamis_sfa_forward(&rig->sfa[i], i, rig->sfa_plan, rig->sfa_caches, rig->x, rig->out,
                             rig->team, err);
}

tamis_status tamis_rig_prepare(tamis_rig *rig, tamis_error *err)
{
    return rig->n_layers > 1 ? run_layer(rig, 0, err) : TAMIS_STATUS_OK;
}

tamis_status tamis_rig_run(tamis_rig *rig, tamis_error *err)
{
    if (rig->params.kind == TAMIS_BENCH_MOE)
        return run_moe(rig, err);
    if (rig->params.kind == TAMIS_BENCH_HEAD) {
        run_head(rig);
        return TAMIS_STATUS_OK;
    }
    return run_layer(rig, rig->n_layers - 1, err);
}

/* ---------------------------------------------------------------- work */

/* Formats of the rows that the measured layer reads; index keys may be none. */
static void formats_of(const tamis_rig *rig, tamis_row_format *row, tamis_row_format *key)
{
    const int32_t i = rig->n_layers - 1;
    const tamis_layer_caches *caches = rig->dsa_caches != NULL
                                           ? tamis_dsa_caches_layers(rig->dsa_caches)
                                           : tamis_sfa_caches_layers(rig->sfa_caches);
    const tamis_cache *rows = tamis_layer_cache(
        caches, i, rig->dsa_caches != NULL ? (int)TAMIS_DSA_WINDOW : (int)TAMIS_SFA_LATENT);
    const tamis_cache *keys = tamis_layer_cache(
        caches, i, rig->dsa_caches != NULL ? (int)TAMIS_DSA_INDEX_KEY : (int)TAMIS_SFA_INDEX_KEY);
    *row = rows->desc.format;
    *key = keys != NULL ? keys->desc.format : (tamis_row_format){.dtype = TAMIS_DTYPE_F32};
}

/* Routed experts that some token of the last step chose. */
static double num_touched(const tamis_rig *rig)
{
    double n = 0;
    for (int32_t e = 0; e < rig->config.n_routed_experts; e++)
        n += rig->moe.first_row[e + 1] > rig->moe.first_row[e];
    return n;
}

void tamis_rig_count(const tamis_rig *rig, tamis_work_list *list)
{
    const tamis_work_step step = {rig->params.profile, rig->params.context, rig->params.num_tokens};
    const int32_t last = rig->n_layers - 1;
    tamis_row_format row, key;
    if (rig->params.kind == TAMIS_BENCH_MOE) {
        tamis_work_moe(list, &rig->moe_weights, rig->config.num_experts_per_tok, num_touched(rig),
                       &step);
        return;
    }
    if (rig->params.kind == TAMIS_BENCH_HEAD) {
        tamis_work_linear(list, "head", &rig->head, &step);
        return;
    }
    formats_of(rig, &row, &key);
    if (rig->dsa_caches != NULL)
        tamis_work_dsa(list, &rig->dsa[last], &row, &key, &step);
    else
        tamis_work_sfa(list, &rig->sfa[last], &row, &key, &step);
}
