#include "measure/shapes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* Fields that only one family has are 0 in the others. */
typedef struct shape_dims {
    const char *name, *model_type, *architecture;
    bool is_bf16; /* published without FP8 */
    int32_t hidden, heads, q_lora, moe_width, experts, per_token, vocab, positions;
    int32_t index_heads, index_topk;
    float routed_scale;
    /* V4 */
    int32_t o_groups;
    /* V3.2, GLM */
    int32_t nope, v_dim, dense_width, n_group, topk_group, index_freq;
    double eps, theta;
} shape_dims;

static const shape_dims shapes[TAMIS_NUM_SHAPES] = {
    [TAMIS_SHAPE_V4_FLASH] = {.name = "v4-flash",
                              .model_type = "deepseek_v4",
                              .architecture = "DeepseekV4ForCausalLM",
                              .hidden = 4096,
                              .heads = 64,
                              .q_lora = 1024,
                              .moe_width = 2048,
                              .experts = 256,
                              .per_token = 6,
                              .vocab = 129280,
                              .positions = 1048576,
                              .index_heads = 64,
                              .index_topk = 512,
                              .routed_scale = 1.5f,
                              .o_groups = 8,
                              .eps = 1e-6,
                              .theta = 10000},
    [TAMIS_SHAPE_V4_PRO] = {.name = "v4-pro",
                            .model_type = "deepseek_v4",
                            .architecture = "DeepseekV4ForCausalLM",
                            .hidden = 7168,
                            .heads = 128,
                            .q_lora = 1536,
                            .moe_width = 3072,
                            .experts = 384,
                            .per_token = 6,
                            .vocab = 129280,
                            .positions = 1048576,
                            .index_heads = 64,
                            .index_topk = 1024,
                            .routed_scale = 2.5f,
                            .o_groups = 16,
                            .eps = 1e-6,
                            .theta = 10000},
    [TAMIS_SHAPE_V32] = {.name = "v32",
                         .model_type = "deepseek_v32",
                         .architecture = "DeepseekV32ForCausalLM",
                         .hidden = 7168,
                         .heads = 128,
                         .q_lora = 1536,
                         .moe_width = 2048,
                         .experts = 256,
                         .per_token = 8,
                         .vocab = 129280,
                         .positions = 163840,
                         .index_heads = 64,
                         .index_topk = 2048,
                         .routed_scale = 2.5f,
                         .nope = 128,
                         .v_dim = 128,
                         .dense_width = 18432,
                         .n_group = 8,
                         .topk_group = 4,
                         .eps = 1e-6,
                         .theta = 10000},
    [TAMIS_SHAPE_GLM5] = {.name = "glm5",
                          .model_type = "glm_moe_dsa",
                          .architecture = "GlmMoeDsaForCausalLM",
                          .is_bf16 = true,
                          .hidden = 6144,
                          .heads = 64,
                          .q_lora = 2048,
                          .moe_width = 2048,
                          .experts = 256,
                          .per_token = 8,
                          .vocab = 154880,
                          .positions = 202752,
                          .index_heads = 32,
                          .index_topk = 2048,
                          .routed_scale = 2.5f,
                          .nope = 192,
                          .v_dim = 256,
                          .dense_width = 12288,
                          .n_group = 1,
                          .topk_group = 1,
                          .eps = 1e-5,
                          .theta = 1000000},
    [TAMIS_SHAPE_GLM52] = {.name = "glm52",
                           .model_type = "glm_moe_dsa",
                           .architecture = "GlmMoeDsaForCausalLM",
                           .is_bf16 = true,
                           .hidden = 6144,
                           .heads = 64,
                           .q_lora = 2048,
                           .moe_width = 2048,
                           .experts = 256,
                           .per_token = 8,
                           .vocab = 154880,
                           .positions = 1048576,
                           .index_heads = 32,
                           .index_topk = 2048,
                           .routed_scale = 2.5f,
                           .nope = 192,
                           .v_dim = 256,
                           .dense_width = 12288,
                           .n_group = 1,
                           .topk_group = 1,
                           .index_freq = 4,
                           .eps = 1e-5,
                           .theta = 8000000},
};

/* ---------------------------------------------------------------- names */

const char *tamis_shape_name(tamis_shape shape)
{
    return (unsigned)shape < (unsigned)TAMIS_NUM_SHAPES ? shapes[shape].name : "?";
}

tamis_shape tamis_shape_find(const char *name)
{
    int i = 0;
    while (i < TAMIS_NUM_SHAPES && (name == NULL || strcmp(name, shapes[i].name) != 0))
        i++;
    return (tamis_shape)i;
}

bool tamis_shape_is_v4(tamis_shape shape)
{
    return shapes[shape].o_groups != 0;
}

bool tamis_shape_is_bf16(tamis_shape shape)
{
    return shapes[shape].is_bf16;
}

/* ---------------------------------------------------------------- cut */

/* A published model cut down: what is left to write. */
typedef struct cut_model {
    const shape_dims *dims;
    int32_t ratios[TAMIS_SHAPE_MAX_LAYERS];
    int32_t n_layers, n_experts, vocab, n_group, topk_group;
} cut_model;

static tamis_status cut_layers(cut_model *m, const tamis_shape_cut *cut, tamis_error *err)
{
    static const int32_t usual[] = {0, 4, 128, 4};
    const bool is_given = cut->n_layers != 0;
    m->n_layers = is_given ? cut->n_layers : 4;
    if (m->n_layers < 1 || m->n_layers > TAMIS_SHAPE_MAX_LAYERS)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "shape %s: n_layers is %d, allowed 1..%d",
                          m->dims->name, m->n_layers, TAMIS_SHAPE_MAX_LAYERS);
    for (int32_t i = 0; m->dims->o_groups != 0 && i < m->n_layers; i++) {
        const int32_t ratio = is_given && cut->layers != NULL ? cut->layers[i] : usual[i % 4];
        if (ratio != 0 && ratio != 4 && ratio != 128)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "shape %s: layer %d has ratio %d, allowed 0, 4, 128", m->dims->name,
                              i, ratio);
        m->ratios[i] = ratio;
    }
    return TAMIS_STATUS_OK;
}

/* With fewer experts than the model has, groups must keep two experts each. */
static tamis_status cut_experts(cut_model *m, const tamis_shape_cut *cut, tamis_error *err)
{
    const shape_dims *d = m->dims;
    m->n_experts = cut->n_experts == -1 ? d->experts : cut->n_experts == 0 ? 8 : cut->n_experts;
    if (m->n_experts < d->per_token || m->n_experts > d->experts)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "shape %s: n_experts is %d, allowed %d..%d",
                          d->name, m->n_experts, d->per_token, d->experts);
    const bool keeps_groups = d->n_group > 1 && m->n_experts % d->n_group == 0 &&
                              m->n_experts / d->n_group * d->topk_group >= d->per_token &&
                              m->n_experts / d->n_group >= 2;
    m->n_group = keeps_groups ? d->n_group : 1;
    m->topk_group = keeps_groups ? d->topk_group : 1;
    return TAMIS_STATUS_OK;
}

static tamis_status cut_down(cut_model *m, tamis_shape shape, const tamis_shape_cut *cut,
                             tamis_error *err)
{
    if ((unsigned)shape >= (unsigned)TAMIS_NUM_SHAPES)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "shape is %d, allowed 0..%d", (int)shape,
                          TAMIS_NUM_SHAPES - 1);
    *m = (cut_model){.dims = &shapes[shape]};
    m->vocab = cut->vocab_size == 0 ? m->dims->vocab : cut->vocab_size;
    if (m->vocab < 2 || m->vocab > m->dims->vocab)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "shape %s: vocab_size is %d, allowed 2..%d",
                          m->dims->name, m->vocab, m->dims->vocab);
    TAMIS_TRY(cut_layers(m, cut, err));
    return cut_experts(m, cut, err);
}

/* ---------------------------------------------------------------- text */

typedef struct text_writer {
    char *text;
    size_t used;
} text_writer;

static void put(text_writer *w, const char *format, ...) TAMIS_PRINTF(2, 3);
static void put(text_writer *w, const char *format, ...)
{
    const size_t left = TAMIS_SHAPE_TEXT_BYTES - w->used;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->text + w->used, left, format, args);
    va_end(args);
    w->used += n > 0 && (size_t)n < left ? (size_t)n : left - 1;
}

static void put_shared(text_writer *w, const cut_model *m)
{
    const shape_dims *d = m->dims;
    put(w, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", d->architecture,
        d->model_type);
    put(w, "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"num_hidden_layers\": %d,\n",
        m->vocab, d->hidden, m->n_layers);
    put(w, "  \"num_attention_heads\": %d,\n  \"q_lora_rank\": %d,\n  \"qk_rope_head_dim\": 64,\n",
        d->heads, d->q_lora);
    put(w, "  \"index_n_heads\": %d,\n  \"index_head_dim\": 128,\n  \"index_topk\": %d,\n",
        d->index_heads, d->index_topk);
    put(w, "  \"n_routed_experts\": %d,\n  \"num_experts_per_tok\": %d,\n", m->n_experts,
        d->per_token);
    put(w, "  \"n_shared_experts\": 1,\n  \"moe_intermediate_size\": %d,\n", d->moe_width);
    put(w, "  \"norm_topk_prob\": true,\n  \"routed_scaling_factor\": %g,\n",
        (double)d->routed_scale);
    put(w, "  \"topk_method\": \"noaux_tc\",\n  \"hidden_act\": \"silu\",\n");
    put(w, "  \"rms_norm_eps\": %g,\n  \"rope_theta\": %.0f,\n", d->eps, d->theta);
    put(w, "  \"max_position_embeddings\": %d,\n  \"tie_word_embeddings\": false,\n", d->positions);
    put(w, "  \"attention_bias\": false,\n  \"num_nextn_predict_layers\": 0,\n");
    put(w, "  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n  \"torch_dtype\": \"bfloat16\",\n");
    if (!d->is_bf16)
        put(w, "  \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
               "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128], "
               "\"scale_fmt\": \"ue8m0\"},\n");
}

static void put_v4(text_writer *w, const cut_model *m)
{
    put(w, "  \"num_key_value_heads\": 1,\n  \"head_dim\": 512,\n  \"sliding_window\": 128,\n");
    put(w, "  \"o_groups\": %d,\n  \"o_lora_rank\": 1024,\n  \"compress_rope_theta\": 160000,\n",
        m->dims->o_groups);
    put(w, "  \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32, "
           "\"beta_slow\": 1, \"original_max_position_embeddings\": 65536},\n");
    put(w, "  \"scoring_func\": \"sqrtsoftplus\",\n  \"swiglu_limit\": 10.0,\n");
    put(w, "  \"hc_mult\": 4,\n  \"hc_sinkhorn_iters\": 20,\n  \"hc_eps\": 1e-06,\n");
    put(w, "  \"num_hash_layers\": 1,\n  \"expert_dtype\": \"fp4\",\n  \"compress_ratios\": [");
    for (int32_t i = 0; i < m->n_layers; i++)
        put(w, "%s%d", i == 0 ? "" : ", ", m->ratios[i]);
    put(w, "]\n}\n");
}

static void put_sfa(text_writer *w, const cut_model *m)
{
    const shape_dims *d = m->dims;
    put(w, "  \"num_key_value_heads\": %d,\n  \"kv_lora_rank\": 512,\n", d->heads);
    put(w, "  \"qk_nope_head_dim\": %d,\n  \"v_head_dim\": %d,\n", d->nope, d->v_dim);
    put(w, "  \"intermediate_size\": %d,\n  \"first_k_dense_replace\": %d,\n", d->dense_width,
        m->n_layers > 1 ? 1 : 0);
    put(w, "  \"n_group\": %d,\n  \"topk_group\": %d,\n  \"moe_layer_freq\": 1,\n", m->n_group,
        m->topk_group);
    if (strcmp(d->model_type, "deepseek_v32") == 0)
        put(w, "  \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0, "
               "\"mscale_all_dim\": 1.0, \"beta_fast\": 32, \"beta_slow\": 1, "
               "\"original_max_position_embeddings\": 4096},\n");
    else
        put(w, "  \"rope_interleave\": true,\n  \"indexer_rope_interleave\": true,\n");
    if (d->index_freq > 0)
        put(w, "  \"index_topk_freq\": %d,\n  \"index_skip_topk_offset\": 3,\n", d->index_freq);
    put(w, "  \"scoring_func\": \"sigmoid\"\n}\n");
}

tamis_status tamis_shape_config_text(tamis_shape shape, const tamis_shape_cut *cut,
                                     char text[TAMIS_SHAPE_TEXT_BYTES], tamis_error *err)
{
    cut_model m = {0};
    text_writer w = {text, 0};
    TAMIS_TRY(cut_down(&m, shape, cut, err));
    put_shared(&w, &m);
    if (tamis_shape_is_v4(shape))
        put_v4(&w, &m);
    else
        put_sfa(&w, &m);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_shape_config(tamis_shape shape, const tamis_shape_cut *cut,
                                tamis_model_config *out, tamis_error *err)
{
    char text[TAMIS_SHAPE_TEXT_BYTES];
    TAMIS_TRY(tamis_shape_config_text(shape, cut, text, err));
    return tamis_model_config_parse(out, tamis_shape_name(shape), text, strlen(text), NULL, 0, err);
}
