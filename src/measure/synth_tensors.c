#include "measure/synth_tensors.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct walker {
    const tamis_model_config *config;
    bool is_bf16; /* of what other folders have as FP8 */
    tamis_synth_visit_fn fn;
    void *user;
    bool goes_on;
    char prefix[64];
} walker;

static void emit(walker *w, tamis_synth_tensor *tensor, const char *name)
{
    const int64_t n = tensor->shape[0] * (tensor->rank == 2 ? tensor->shape[1] : 1);
    if (!w->goes_on)
        return;
    snprintf(tensor->name, sizeof tensor->name, "%s%s", w->prefix, name);
    tensor->bytes = (uint64_t)n * (uint64_t)tamis_dtype_bits(tensor->dtype) / 8;
    w->goes_on = w->fn(w->user, tensor);
}

static void vector(walker *w, const char *name, tamis_dtype dtype, tamis_synth_fill fill, int64_t n)
{
    tamis_synth_tensor t = {
        .dtype = dtype, .shape = {n}, .rank = 1, .fill = fill, .of = dtype, .cols = n};
    emit(w, &t, name);
}

static void norm(walker *w, const char *name, int64_t n)
{
    vector(w, name, TAMIS_DTYPE_BF16, TAMIS_FILL_NORM, n);
}

static void plain(walker *w, const char *name, tamis_dtype dtype, tamis_synth_fill fill,
                  int64_t rows, int64_t cols)
{
    tamis_synth_tensor t = {
        .dtype = dtype, .shape = {rows, cols}, .rank = 2, .fill = fill, .of = dtype, .cols = cols};
    emit(w, &t, name);
}

static void bf16(walker *w, const char *name, int64_t rows, int64_t cols)
{
    plain(w, name, TAMIS_DTYPE_BF16, TAMIS_FILL_WEIGHT, rows, cols);
}

/* A matrix and its scales: name.weight and name.scale or name.weight_scale_inv. */
static void quantised(walker *w, const char *name, tamis_weight_form form, int64_t rows,
                      int64_t cols)
{
    char full[96];
    const tamis_matrix m = tamis_weight_form_matrix(form, rows, cols);
    tamis_synth_tensor t = {
        .dtype = m.dtype, .shape = {rows, cols}, .rank = 2, .of = m.dtype, .cols = cols};
    if (m.dtype == TAMIS_DTYPE_F4_E2M1) {
        t.dtype = TAMIS_DTYPE_I8;
        t.shape[1] = cols / 2;
    }
    snprintf(full, sizeof full, "%s.weight", name);
    emit(w, &t, full);
    if (m.block_rows == 0)
        return;
    t.dtype = m.scale_dtype;
    t.fill = TAMIS_FILL_SCALE;
    t.shape[0] = (rows + m.block_rows - 1) / m.block_rows;
    t.shape[1] = (cols + m.block_cols - 1) / m.block_cols;
    snprintf(full, sizeof full, "%s.%s", name,
             m.scale_dtype == TAMIS_DTYPE_F8_E8M0 ? "scale" : "weight_scale_inv");
    emit(w, &t, full);
}

static void set_prefix(walker *w, const char *format, ...) TAMIS_PRINTF(2, 3);
static void set_prefix(walker *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(w->prefix, sizeof w->prefix, format, args);
    va_end(args);
}

/* ---------------------------------------------------------------- V4 */

static void v4_hyper(walker *w, const char *site, int64_t n_coefs, int64_t n_scales)
{
    const tamis_model_config *c = w->config;
    char name[64];
    snprintf(name, sizeof name, "%s_fn", site);
    plain(w, name, TAMIS_DTYPE_F32, TAMIS_FILL_WEIGHT, n_coefs,
          (int64_t)c->hc_mult * c->hidden_size);
    snprintf(name, sizeof name, "%s_base", site);
    vector(w, name, TAMIS_DTYPE_F32, TAMIS_FILL_SMALL, n_coefs);
    snprintf(name, sizeof name, "%s_scale", site);
    vector(w, name, TAMIS_DTYPE_F32, TAMIS_FILL_NORM, n_scales);
}

static void v4_compressor(walker *w, const char *of, int64_t ratio, int64_t dim)
{
    const int64_t width = (ratio == 4 ? 2 : 1) * dim, hidden = w->config->hidden_size;
    char name[64];
    snprintf(name, sizeof name, "attn.%scompressor.ape", of);
    plain(w, name, TAMIS_DTYPE_F32, TAMIS_FILL_SMALL, ratio, width);
    snprintf(name, sizeof name, "attn.%scompressor.wkv.weight", of);
    bf16(w, name, width, hidden);
    snprintf(name, sizeof name, "attn.%scompressor.wgate.weight", of);
    bf16(w, name, width, hidden);
    snprintf(name, sizeof name, "attn.%scompressor.norm.weight", of);
    norm(w, name, dim);
}

static void v4_attention(walker *w, int32_t ratio)
{
    const tamis_model_config *c = w->config;
    const tamis_weight_form form = TAMIS_FORM_FP8_E8M0;
    const int64_t q_width = (int64_t)c->num_attention_heads * c->head_dim;
    const int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    quantised(w, "attn.wq_a", form, c->q_lora_rank, c->hidden_size);
    norm(w, "attn.q_norm.weight", c->q_lora_rank);
    quantised(w, "attn.wq_b", form, q_width, c->q_lora_rank);
    quantised(w, "attn.wkv", form, c->head_dim, c->hidden_size);
    norm(w, "attn.kv_norm.weight", c->head_dim);
    quantised(w, "attn.wo_a", form, low, q_width / c->o_groups);
    quantised(w, "attn.wo_b", form, c->hidden_size, low);
    vector(w, "attn.attn_sink", TAMIS_DTYPE_F32, TAMIS_FILL_SMALL, c->num_attention_heads);
    if (ratio != 0)
        v4_compressor(w, "", ratio, c->head_dim);
    if (ratio != 4)
        return;
    quantised(w, "attn.indexer.wq_b", form, (int64_t)c->index_n_heads * c->index_head_dim,
              c->q_lora_rank);
    bf16(w, "attn.indexer.weights_proj.weight", c->index_n_heads, c->hidden_size);
    v4_compressor(w, "indexer.", ratio, c->index_head_dim);
}

static void v4_experts(walker *w, int32_t layer)
{
    const tamis_model_config *c = w->config;
    const int64_t width = c->moe_intermediate_size, hidden = c->hidden_size;
    static const char *const names[] = {"w1", "w3", "w2"};
    char name[64];
    bf16(w, "ffn.gate.weight", c->n_routed_experts, hidden);
    if (c->is_hash_layer[layer])
        plain(w, "ffn.gate.tid2eid", TAMIS_DTYPE_I64, TAMIS_FILL_IDS, c->vocab_size,
              c->num_experts_per_tok);
    else
        vector(w, "ffn.gate.bias", TAMIS_DTYPE_F32, TAMIS_FILL_SMALL, c->n_routed_experts);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "ffn.shared_experts.%s", names[i]);
        quantised(w, name, TAMIS_FORM_FP8_E8M0, i < 2 ? width : hidden, i < 2 ? hidden : width);
    }
    for (int32_t e = 0; e < c->n_routed_experts; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "ffn.experts.%d.%s", e, names[i]);
            quantised(w, name, TAMIS_FORM_FP4, i < 2 ? width : hidden, i < 2 ? hidden : width);
        }
}

static void v4_layer(walker *w, int32_t layer)
{
    const tamis_model_config *c = w->config;
    const int64_t n_coefs = (int64_t)(2 + c->hc_mult) * c->hc_mult;
    set_prefix(w, "layers.%d.", layer);
    norm(w, "attn_norm.weight", c->hidden_size);
    norm(w, "ffn_norm.weight", c->hidden_size);
    v4_hyper(w, "hc_attn", n_coefs, 3);
    v4_hyper(w, "hc_ffn", n_coefs, 3);
    v4_attention(w, c->compress_ratios[layer]);
    v4_experts(w, layer);
}

static void v4_model(walker *w)
{
    const tamis_model_config *c = w->config;
    set_prefix(w, "%s", "");
    bf16(w, "embed.weight", c->vocab_size, c->hidden_size);
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        v4_layer(w, i);
    set_prefix(w, "%s", "");
    v4_hyper(w, "hc_head", c->hc_mult, 1);
    norm(w, "norm.weight", c->hidden_size);
    bf16(w, "head.weight", c->vocab_size, c->hidden_size);
}

/* ---------------------------------------------------------------- V3.2, GLM */

static tamis_weight_form sfa_form(const walker *w)
{
    return w->is_bf16 ? TAMIS_FORM_BF16 : TAMIS_FORM_FP8_F32;
}

static void sfa_mlp(walker *w, const char *of, int64_t width)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const int64_t hidden = w->config->hidden_size;
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "mlp.%s%s", of, names[i]);
        quantised(w, name, sfa_form(w), i < 2 ? width : hidden, i < 2 ? hidden : width);
    }
}

static void sfa_attention(walker *w, int32_t layer)
{
    const tamis_model_config *c = w->config;
    const tamis_weight_form form = sfa_form(w);
    const int64_t heads = c->num_attention_heads, nope = c->qk_nope_head_dim;
    quantised(w, "self_attn.q_a_proj", form, c->q_lora_rank, c->hidden_size);
    norm(w, "self_attn.q_a_layernorm.weight", c->q_lora_rank);
    quantised(w, "self_attn.q_b_proj", form, heads * (nope + c->qk_rope_head_dim), c->q_lora_rank);
    quantised(w, "self_attn.kv_a_proj_with_mqa", form, c->kv_lora_rank + c->qk_rope_head_dim,
              c->hidden_size);
    norm(w, "self_attn.kv_a_layernorm.weight", c->kv_lora_rank);
    quantised(w, "self_attn.kv_b_proj", form, heads * (nope + c->v_head_dim), c->kv_lora_rank);
    quantised(w, "self_attn.o_proj", form, c->hidden_size, heads * c->v_head_dim);
    if (c->reuse_topk[layer])
        return;
    quantised(w, "self_attn.indexer.wq_b", form, (int64_t)c->index_n_heads * c->index_head_dim,
              c->q_lora_rank);
    quantised(w, "self_attn.indexer.wk", form, c->index_head_dim, c->hidden_size);
    norm(w, "self_attn.indexer.k_norm.weight", c->index_head_dim);
    vector(w, "self_attn.indexer.k_norm.bias", TAMIS_DTYPE_BF16, TAMIS_FILL_SMALL,
           c->index_head_dim);
    bf16(w, "self_attn.indexer.weights_proj.weight", c->index_n_heads, c->hidden_size);
}

static void sfa_layer(walker *w, int32_t layer)
{
    const tamis_model_config *c = w->config;
    char of[32];
    set_prefix(w, "model.layers.%d.", layer);
    norm(w, "input_layernorm.weight", c->hidden_size);
    norm(w, "post_attention_layernorm.weight", c->hidden_size);
    sfa_attention(w, layer);
    if (c->is_dense_layer[layer]) {
        sfa_mlp(w, "", c->intermediate_size);
        return;
    }
    bf16(w, "mlp.gate.weight", c->n_routed_experts, c->hidden_size);
    vector(w, "mlp.gate.e_score_correction_bias", TAMIS_DTYPE_F32, TAMIS_FILL_SMALL,
           c->n_routed_experts);
    sfa_mlp(w, "shared_experts.", (int64_t)c->moe_intermediate_size * c->n_shared_experts);
    for (int32_t e = 0; e < c->n_routed_experts; e++) {
        snprintf(of, sizeof of, "experts.%d.", e);
        sfa_mlp(w, of, c->moe_intermediate_size);
    }
}

static void sfa_model(walker *w)
{
    const tamis_model_config *c = w->config;
    set_prefix(w, "%s", "");
    bf16(w, "model.embed_tokens.weight", c->vocab_size, c->hidden_size);
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        sfa_layer(w, i);
    set_prefix(w, "%s", "");
    norm(w, "model.norm.weight", c->hidden_size);
    bf16(w, "lm_head.weight", c->vocab_size, c->hidden_size);
}

bool tamis_synth_walk(const tamis_model_config *config, bool is_bf16, tamis_synth_visit_fn fn,
                      void *user)
{
    walker w = {.config = config, .is_bf16 = is_bf16, .fn = fn, .user = user, .goes_on = true};
    if (config->family == TAMIS_FAMILY_DEEPSEEK_V4)
        v4_model(&w);
    else
        sfa_model(&w);
    return w.goes_on;
}
