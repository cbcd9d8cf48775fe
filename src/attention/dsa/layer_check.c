#include "attention/common/compressor.h"
#include "attention/common/layer_checks.h"
#include "attention/common/profile_checks.h"
#include "attention/dsa/caches.h"
#include "core/error.h"

static tamis_status check_dims(const tamis_dsa_config *c, tamis_error *err)
{
    const tamis_field_range fields[] = {
        {"hidden_size", c->hidden_size, 1, 1 << 20},
        {"num_heads", c->num_heads, 1, 1024},
        {"head_dim", c->head_dim, 2, 4096},
        {"rope_head_dim", c->rope_head_dim, 2, c->head_dim},
        {"q_lora_rank", c->q_lora_rank, 1, 1 << 16},
        {"o_groups", c->o_groups, 1, TAMIS_DSA_MAX_GROUPS},
        {"o_lora_rank", c->o_lora_rank, 1, 1 << 16},
        {"sliding_window", c->sliding_window, 1, 1 << 16},
    };
    TAMIS_TRY(tamis_check_ranges("layer", fields, sizeof fields / sizeof *fields, err));
    if (c->compress_ratio != 0 && c->compress_ratio != 4 && c->compress_ratio != 128)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: compress_ratio is %d, allowed 0, 4, 128", c->compress_ratio);
    if (c->rope_head_dim % 2 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: rope_head_dim is %d, must be even",
                          c->rope_head_dim);
    if (c->num_heads % c->o_groups != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: o_groups is %d, must divide num_heads %d", c->o_groups,
                          c->num_heads);
    TAMIS_TRY(tamis_check_above("rms_norm_eps", c->rms_norm_eps, 0, err));
    TAMIS_TRY(tamis_check_rope(&c->rope, err));
    if (c->compress_ratio != 4)
        return TAMIS_STATUS_OK;
    const tamis_field_range index_fields[] = {
        {"index_n_heads", c->index_n_heads, 1, 1024},
        {"index_head_dim", c->index_head_dim, c->rope_head_dim, 4096},
        {"index_topk", c->index_topk, 1, 8192},
    };
    return tamis_check_ranges("layer", index_fields, sizeof index_fields / sizeof *index_fields,
                              err);
}

static tamis_status check_compressor(const char *name, const tamis_compressor_weights *w,
                                     const tamis_dsa_config *c, int32_t head_dim, tamis_error *err)
{
    const int64_t width = (int64_t)tamis_compressor_halves(c->compress_ratio) * head_dim;
    TAMIS_TRY(tamis_check_matrix(name, &w->wkv, width, c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix(name, &w->wgate, width, c->hidden_size, err));
    TAMIS_TRY(tamis_check_vector(name, w->ape, err));
    return tamis_check_vector(name, w->norm, err);
}

bool tamis_dsa_config_equal(const tamis_dsa_config *a, const tamis_dsa_config *b)
{
    return a->hidden_size == b->hidden_size && a->num_heads == b->num_heads &&
           a->head_dim == b->head_dim && a->rope_head_dim == b->rope_head_dim &&
           a->q_lora_rank == b->q_lora_rank && a->o_groups == b->o_groups &&
           a->o_lora_rank == b->o_lora_rank && a->sliding_window == b->sliding_window &&
           a->compress_ratio == b->compress_ratio && a->index_n_heads == b->index_n_heads &&
           a->index_head_dim == b->index_head_dim && a->index_topk == b->index_topk &&
           a->reuse_topk == b->reuse_topk && a->rms_norm_eps == b->rms_norm_eps &&
           tamis_rope_config_equal(&a->rope, &b->rope);
}

tamis_status tamis_dsa_config_check(const tamis_dsa_config *config, tamis_error *err)
{
    return check_dims(config, err);
}

tamis_status tamis_dsa_layer_check(const tamis_dsa_layer *layer, tamis_error *err)
{
    const tamis_dsa_config *c = &layer->config;
    const tamis_dsa_weights *w = &layer->weights;
    TAMIS_TRY(check_dims(c, err));
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low_width = (int64_t)c->o_groups * c->o_lora_rank;
    TAMIS_TRY(tamis_check_matrix("wq_a", &w->wq_a, c->q_lora_rank, c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix("wq_b", &w->wq_b, q_width, c->q_lora_rank, err));
    TAMIS_TRY(tamis_check_matrix("wkv", &w->wkv, c->head_dim, c->hidden_size, err));
    TAMIS_TRY(tamis_check_matrix("wo_a", &w->wo_a, low_width, q_width / c->o_groups, err));
    TAMIS_TRY(tamis_check_matrix("wo_b", &w->wo_b, c->hidden_size, low_width, err));
    TAMIS_TRY(tamis_check_vector("q_norm", w->q_norm, err));
    TAMIS_TRY(tamis_check_vector("kv_norm", w->kv_norm, err));
    TAMIS_TRY(tamis_check_vector("attn_sink", w->attn_sink, err));
    if (c->compress_ratio == 0)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_compressor("compressor", &w->compressor, c, c->head_dim, err));
    if (c->compress_ratio != 4 || c->reuse_topk)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_check_matrix("index_wq_b", &w->index_wq_b,
                                 (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank,
                                 err));
    TAMIS_TRY(tamis_check_matrix("index_weights_proj", &w->index_weights_proj, c->index_n_heads,
                                 c->hidden_size, err));
    return check_compressor("index_compressor", &w->index_compressor, c, c->index_head_dim, err);
}

tamis_status tamis_dsa_profile_check(const tamis_dsa_layer *layer, tamis_profile profile,
                                     const char *object, tamis_error *err)
{
    const tamis_dsa_config *c = &layer->config;
    const tamis_dsa_weights *w = &layer->weights;
    const struct {
        const char *name;
        const tamis_matrix *matrix;
        bool is_there;
    } matrices[] = {
        {"wq_a", &w->wq_a, true},
        {"wq_b", &w->wq_b, true},
        {"wkv", &w->wkv, true},
        {"wo_a", &w->wo_a, true},
        {"wo_b", &w->wo_b, true},
        {"compressor", &w->compressor.wkv, c->compress_ratio != 0},
        {"compressor", &w->compressor.wgate, c->compress_ratio != 0},
        {"index_wq_b", &w->index_wq_b, tamis_dsa_has_indexer(c)},
        {"index_weights_proj", &w->index_weights_proj, tamis_dsa_has_indexer(c)},
        {"index_compressor", &w->index_compressor.wkv, tamis_dsa_has_indexer(c)},
        {"index_compressor", &w->index_compressor.wgate, tamis_dsa_has_indexer(c)},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        if (matrices[i].is_there)
            TAMIS_TRY(tamis_check_profile_matrix(object, matrices[i].name, matrices[i].matrix,
                                                 profile, err));
    return TAMIS_STATUS_OK;
}
