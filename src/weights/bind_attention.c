#include "weights/bind_attention.h"

#include "core/error.h"
#include "weights/bind_quantised.h"

/* ---------------------------------------------------------------- V4 */

/* Four tensors in the order of the names: ape, wkv, wgate, norm. */
static tamis_status bind_compressor(tamis_binder *b, tamis_compressor_weights *out,
                                    tamis_weight first, int32_t ratio, int64_t head_dim)
{
    const int64_t width = (ratio == 4 ? 2 : 1) * head_dim, hidden = b->config->hidden_size;
    const int64_t ape_shape[] = {ratio, width};
    TAMIS_TRY(tamis_bind_floats(b, &out->ape, first, 2, ape_shape));
    TAMIS_TRY(tamis_bind_matrix(b, &out->wkv, (tamis_weight)(first + 1), width, hidden));
    TAMIS_TRY(tamis_bind_matrix(b, &out->wgate, (tamis_weight)(first + 2), width, hidden));
    return tamis_bind_vector(b, &out->norm, (tamis_weight)(first + 3), head_dim);
}

static tamis_status bind_dsa_indexer(tamis_binder *b, tamis_dsa_weights *w)
{
    const tamis_model_config *c = b->config;
    TAMIS_TRY(tamis_bind_matrix(b, &w->index_wq_b, TAMIS_WEIGHT_INDEX_WQ_B,
                                (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->index_weights_proj, TAMIS_WEIGHT_INDEX_WEIGHTS_PROJ,
                                c->index_n_heads, c->hidden_size));
    return bind_compressor(b, &w->index_compressor, TAMIS_WEIGHT_INDEX_APE, 4, c->index_head_dim);
}

tamis_status tamis_bind_dsa(tamis_binder *b, tamis_dsa_layer *layer)
{
    const tamis_model_config *c = b->config;
    tamis_dsa_weights *w = &layer->weights;
    const int64_t q_width = (int64_t)c->num_attention_heads * c->head_dim;
    const int64_t low_width = (int64_t)c->o_groups * c->o_lora_rank;
    layer->config = tamis_model_config_dsa(c, b->at.layer);
    const int32_t ratio = layer->config.compress_ratio;
    TAMIS_TRY(tamis_bind_matrix(b, &w->wq_a, TAMIS_WEIGHT_WQ_A, c->q_lora_rank, c->hidden_size));
    TAMIS_TRY(tamis_bind_vector(b, &w->q_norm, TAMIS_WEIGHT_Q_NORM, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->wq_b, TAMIS_WEIGHT_WQ_B, q_width, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->wkv, TAMIS_WEIGHT_WKV, c->head_dim, c->hidden_size));
    TAMIS_TRY(tamis_bind_vector(b, &w->kv_norm, TAMIS_WEIGHT_KV_NORM, c->head_dim));
    TAMIS_TRY(tamis_bind_matrix(b, &w->wo_a, TAMIS_WEIGHT_WO_A, low_width, q_width / c->o_groups));
    TAMIS_TRY(tamis_bind_matrix(b, &w->wo_b, TAMIS_WEIGHT_WO_B, c->hidden_size, low_width));
    TAMIS_TRY(tamis_bind_vector(b, &w->attn_sink, TAMIS_WEIGHT_ATTN_SINK, c->num_attention_heads));
    TAMIS_TRY(ratio == 0 ? tamis_binder_refuse(b, TAMIS_WEIGHT_COMPRESSOR_APE, "compress ratio", 0)
                         : bind_compressor(b, &w->compressor, TAMIS_WEIGHT_COMPRESSOR_APE, ratio,
                                           c->head_dim));
    /* A layer that reuses a selection runs no indexer, and need not have one. */
    return ratio == 4 && !layer->config.reuse_topk ? bind_dsa_indexer(b, w) : TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- V3.2, GLM */

/* weights_proj is never quantised: its products weigh the heads and are not normed afterwards. */
static tamis_status bind_sfa_indexer(tamis_binder *b, tamis_sfa_weights *w,
                                     const tamis_sfa_config *c)
{
    TAMIS_TRY(tamis_bind_matrix(b, &w->index_wq_b, TAMIS_WEIGHT_INDEX_WQ_B,
                                (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->index_wk, TAMIS_WEIGHT_INDEX_WK, c->index_head_dim,
                                c->hidden_size));
    TAMIS_TRY(tamis_bind_vector(b, &w->index_k_norm, TAMIS_WEIGHT_INDEX_K_NORM, c->index_head_dim));
    TAMIS_TRY(tamis_bind_vector(b, &w->index_k_norm_bias, TAMIS_WEIGHT_INDEX_K_NORM_BIAS,
                                c->index_head_dim));
    return tamis_bind_float_matrix(b, &w->index_weights_proj, TAMIS_WEIGHT_INDEX_WEIGHTS_PROJ,
                                   c->index_n_heads, c->hidden_size);
}

/* What the quantiser took out of the input's range goes back in behind the norm. */
static tamis_status bind_q_norm_bias(tamis_binder *b, tamis_sfa_weights *w, int64_t n)
{
    if (tamis_checkpoint_description(b->checkpoint) == NULL ||
        tamis_binder_find(b, TAMIS_WEIGHT_Q_NORM_BIAS) == NULL)
        return TAMIS_STATUS_OK;
    return tamis_bind_vector(b, &w->q_a_norm_bias, TAMIS_WEIGHT_Q_NORM_BIAS, n);
}

tamis_status tamis_bind_sfa(tamis_binder *b, tamis_sfa_layer *layer)
{
    tamis_sfa_weights *w = &layer->weights;
    layer->config = tamis_model_config_sfa(b->config, b->at.layer);
    const tamis_sfa_config *c = &layer->config;
    const int64_t heads = c->num_heads, rope = c->qk_rope_head_dim;
    const int64_t q_width = heads * (c->qk_nope_head_dim + rope);
    const int64_t kv_width = heads * (c->qk_nope_head_dim + c->v_head_dim);
    TAMIS_TRY(
        tamis_bind_matrix(b, &w->q_a_proj, TAMIS_WEIGHT_WQ_A, c->q_lora_rank, c->hidden_size));
    TAMIS_TRY(tamis_bind_vector(b, &w->q_a_norm, TAMIS_WEIGHT_Q_NORM, c->q_lora_rank));
    TAMIS_TRY(bind_q_norm_bias(b, w, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->q_b_proj, TAMIS_WEIGHT_WQ_B, q_width, c->q_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->kv_a_proj, TAMIS_WEIGHT_KV_A_PROJ, c->kv_lora_rank + rope,
                                c->hidden_size));
    TAMIS_TRY(tamis_binder_expect_fused(b, tamis_binder_find(b, TAMIS_WEIGHT_WQ_A),
                                        TAMIS_WEIGHT_KV_A_PROJ));
    TAMIS_TRY(tamis_bind_vector(b, &w->kv_a_norm, TAMIS_WEIGHT_KV_NORM, c->kv_lora_rank));
    TAMIS_TRY(
        tamis_bind_matrix(b, &w->kv_b_proj, TAMIS_WEIGHT_KV_B_PROJ, kv_width, c->kv_lora_rank));
    TAMIS_TRY(tamis_bind_matrix(b, &w->o_proj, TAMIS_WEIGHT_O_PROJ, c->hidden_size,
                                heads * c->v_head_dim));
    if (c->index_topk == 0)
        return tamis_binder_refuse(b, TAMIS_WEIGHT_INDEX_WQ_B, "index_topk", 0);
    /* As in V4: a layer that shares a selection need not have an indexer. */
    return c->reuse_topk ? TAMIS_STATUS_OK : bind_sfa_indexer(b, w, c);
}
