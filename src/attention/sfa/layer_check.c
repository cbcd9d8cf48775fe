#include "attention/common/layer_checks.h"
#include "attention/common/profile_checks.h"
#include "attention/sfa/caches.h"
#include "core/error.h"
#include "ops/linear_inputs.h"

#define TRY_RANGES(fields)                                                                         \
    TAMIS_TRY(tamis_check_ranges("layer", fields, sizeof(fields) / sizeof *(fields), err))

static tamis_status check_indexer(const tamis_sfa_config *c, tamis_error *err)
{
    const tamis_field_range topk[] = {{"index_topk", c->index_topk, 0, 8192}};
    const tamis_field_range fields[] = {
        {"index_n_heads", c->index_n_heads, 1, 1024},
        {"index_head_dim", c->index_head_dim, c->qk_rope_head_dim, 4096},
    };
    TRY_RANGES(topk);
    if (c->index_topk == 0 && c->reuse_topk)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: reuse_topk is set, but index_topk is 0");
    if (c->index_topk > 0)
        TRY_RANGES(fields);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_sfa_config_check(const tamis_sfa_config *c, tamis_error *err)
{
    const tamis_field_range fields[] = {
        {"hidden_size", c->hidden_size, 1, 1 << 20},
        {"num_heads", c->num_heads, 1, 1024},
        {"q_lora_rank", c->q_lora_rank, 1, 1 << 16},
        {"kv_lora_rank", c->kv_lora_rank, 1, 4096},
        {"qk_nope_head_dim", c->qk_nope_head_dim, 1, 4096},
        {"qk_rope_head_dim", c->qk_rope_head_dim, 2, 4096},
        {"v_head_dim", c->v_head_dim, 1, 4096},
    };
    TRY_RANGES(fields);
    if (c->qk_rope_head_dim % 2 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: qk_rope_head_dim is %d, must be even",
                          c->qk_rope_head_dim);
    TAMIS_TRY(tamis_check_above("rms_norm_eps", c->rms_norm_eps, 0, err));
    TAMIS_TRY(tamis_check_above("softmax_scale", c->softmax_scale, 0, err));
    TAMIS_TRY(tamis_check_rope(&c->rope, err));
    return check_indexer(c, err);
}

bool tamis_sfa_config_equal(const tamis_sfa_config *a, const tamis_sfa_config *b)
{
    return a->hidden_size == b->hidden_size && a->num_heads == b->num_heads &&
           a->q_lora_rank == b->q_lora_rank && a->kv_lora_rank == b->kv_lora_rank &&
           a->qk_nope_head_dim == b->qk_nope_head_dim &&
           a->qk_rope_head_dim == b->qk_rope_head_dim && a->v_head_dim == b->v_head_dim &&
           a->index_n_heads == b->index_n_heads && a->index_head_dim == b->index_head_dim &&
           a->index_topk == b->index_topk && a->index_rope_interleave == b->index_rope_interleave &&
           a->reuse_topk == b->reuse_topk && a->rms_norm_eps == b->rms_norm_eps &&
           a->softmax_scale == b->softmax_scale && tamis_rope_config_equal(&a->rope, &b->rope);
}

static tamis_status check_index_weights(const tamis_sfa_layer *layer, tamis_error *err)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    TAMIS_TRY(tamis_check_matrix("index_wq_b", &w->index_wq_b,
                                 (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank,
                                 err));
    TAMIS_TRY(tamis_check_matrix("index_wk", &w->index_wk, c->index_head_dim, c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix("index_weights_proj", &w->index_weights_proj, c->index_n_heads,
                                 c->hidden_size, err));
    TAMIS_TRY(tamis_check_vector("index_k_norm", w->index_k_norm, err));
    return tamis_check_vector("index_k_norm_bias", w->index_k_norm_bias, err);
}

tamis_status tamis_sfa_layer_check(const tamis_sfa_layer *layer, tamis_error *err)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    TAMIS_TRY(tamis_sfa_config_check(c, err));
    const int64_t heads = c->num_heads, qk = c->qk_nope_head_dim + c->qk_rope_head_dim;
    TAMIS_TRY(tamis_check_matrix("q_a_proj", &w->q_a_proj, c->q_lora_rank, c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix("q_b_proj", &w->q_b_proj, heads * qk, c->q_lora_rank, err));
    TAMIS_TRY(tamis_check_matrix("kv_a_proj", &w->kv_a_proj, tamis_sfa_row_values(c),
                                 c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix("kv_b_proj", &w->kv_b_proj,
                                 heads * (c->qk_nope_head_dim + c->v_head_dim), c->kv_lora_rank,
                                 err));
    TAMIS_TRY(tamis_check_matrix("o_proj", &w->o_proj, c->hidden_size, heads * c->v_head_dim, err));
    TAMIS_TRY(tamis_check_vector("q_a_norm", w->q_a_norm, err));
    TAMIS_TRY(tamis_check_vector("kv_a_norm", w->kv_a_norm, err));
    return tamis_sfa_has_indexer(c) ? check_index_weights(layer, err) : TAMIS_STATUS_OK;
}

tamis_status tamis_sfa_profile_check(const tamis_sfa_layer *layer, tamis_profile profile,
                                     const char *object, tamis_error *err)
{
    const tamis_sfa_weights *w = &layer->weights;
    const bool has_indexer = tamis_sfa_has_indexer(&layer->config);
    const struct {
        const char *name;
        const tamis_matrix *matrix;
        bool is_there;
    } matrices[] = {{"q_a_proj", &w->q_a_proj, true},
                    {"q_b_proj", &w->q_b_proj, true},
                    {"kv_a_proj", &w->kv_a_proj, true},
                    {"kv_b_proj", &w->kv_b_proj, true},
                    {"o_proj", &w->o_proj, true},
                    {"index_wq_b", &w->index_wq_b, has_indexer},
                    {"index_wk", &w->index_wk, has_indexer},
                    {"index_weights_proj", &w->index_weights_proj, has_indexer}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        if (matrices[i].is_there)
            TAMIS_TRY(tamis_check_profile_matrix(object, matrices[i].name, matrices[i].matrix,
                                                 profile, err));
    /* its halves are read as they are, transposed: no integer product */
    if (profile != TAMIS_PROFILE_EXACT && tamis_linear_is_integer(&w->kv_b_proj))
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: kv_b_proj is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1 (profile "
                          "%s)",
                          object, tamis_dtype_name(w->kv_b_proj.dtype),
                          tamis_profile_name(profile));
    return TAMIS_STATUS_OK;
}
