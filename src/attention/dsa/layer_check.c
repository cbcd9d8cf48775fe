#include "core/error.h"
#include "core/size.h"
#include "tamis/dsa.h"

#include "attention/common/compressor.h"

typedef struct field_range {
    const char *name;
    int32_t value, min, max;
} field_range;

static tamis_status check_ranges(const field_range *fields, int n, tamis_error *err)
{
    for (int i = 0; i < n; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s is %d, allowed %d..%d",
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    return TAMIS_STATUS_OK;
}

static tamis_status check_dims(const tamis_dsa_config *c, tamis_error *err)
{
    const field_range fields[] = {
        {"hidden_size", c->hidden_size, 1, 1 << 20},
        {"num_heads", c->num_heads, 1, 1024},
        {"head_dim", c->head_dim, 2, 4096},
        {"rope_head_dim", c->rope_head_dim, 2, c->head_dim},
        {"q_lora_rank", c->q_lora_rank, 1, 1 << 16},
        {"o_groups", c->o_groups, 1, TAMIS_DSA_MAX_GROUPS},
        {"o_lora_rank", c->o_lora_rank, 1, 1 << 16},
        {"sliding_window", c->sliding_window, 1, 1 << 16},
    };
    TAMIS_TRY(check_ranges(fields, (int)(sizeof fields / sizeof *fields), err));
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
    if (!(c->rms_norm_eps > 0) || !(c->rope.theta > 1))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: rms_norm_eps is %g, must be above 0; rope theta is %g, must be "
                          "above 1",
                          (double)c->rms_norm_eps, (double)c->rope.theta);
    if (c->compress_ratio != 4)
        return TAMIS_STATUS_OK;
    const field_range index_fields[] = {
        {"index_n_heads", c->index_n_heads, 1, 1024},
        {"index_head_dim", c->index_head_dim, c->rope_head_dim, 4096},
        {"index_topk", c->index_topk, 1, 8192},
    };
    return check_ranges(index_fields, (int)(sizeof index_fields / sizeof *index_fields), err);
}

static tamis_status check_matrix(const char *name, const tamis_matrix *w, int64_t rows,
                                 int64_t cols, tamis_error *err)
{
    if (w->data == NULL || w->rows != rows || w->cols != cols)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s is [%lld][%lld], must be [%lld][%lld]", name,
                          (long long)w->rows, (long long)w->cols, (long long)rows, (long long)cols);
    if (w->dtype > TAMIS_DTYPE_F4_E2M1)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "layer: %s is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1", name,
                          tamis_dtype_name(w->dtype));
    if (w->row_bytes < tamis_ceil_div(cols * tamis_dtype_bits(w->dtype), 8))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has row_bytes %lld, a row of %lld %s needs %lld", name,
                          (long long)w->row_bytes, (long long)cols, tamis_dtype_name(w->dtype),
                          (long long)tamis_ceil_div(cols * tamis_dtype_bits(w->dtype), 8));
    if (w->scale != NULL &&
        (w->block_rows < 1 || w->block_cols < 1 ||
         (w->scale_dtype != TAMIS_DTYPE_F32 && w->scale_dtype != TAMIS_DTYPE_F8_E8M0)))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has scales of %s in blocks of %dx%d, allowed F32 or F8_E8M0",
                          name, tamis_dtype_name(w->scale_dtype), w->block_rows, w->block_cols);
    if (w->scale != NULL && w->scale_row_bytes < tamis_ceil_div(cols, w->block_cols) *
                                                     tamis_dtype_bits(w->scale_dtype) / 8)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "layer: %s has scale_row_bytes %lld, a row of %lld scales needs more",
                          name, (long long)w->scale_row_bytes,
                          (long long)tamis_ceil_div(cols, w->block_cols));
    return TAMIS_STATUS_OK;
}

static tamis_status check_vector(const char *name, const float *vector, tamis_error *err)
{
    return vector != NULL ? TAMIS_STATUS_OK
                          : tamis_fail(err, TAMIS_STATUS_INVALID, "layer: %s is missing", name);
}

static tamis_status check_compressor(const char *name, const tamis_compressor_weights *w,
                                     const tamis_dsa_config *c, int32_t head_dim, tamis_error *err)
{
    const int64_t width = (int64_t)tamis_compressor_halves(c->compress_ratio) * head_dim;
    TAMIS_TRY(check_matrix(name, &w->wkv, width, c->hidden_size, err));
    TAMIS_TRY(check_matrix(name, &w->wgate, width, c->hidden_size, err));
    TAMIS_TRY(check_vector(name, w->ape, err));
    return check_vector(name, w->norm, err);
}

bool tamis_rope_config_equal(const tamis_rope_config *a, const tamis_rope_config *b)
{
    return a->theta == b->theta && a->yarn_factor == b->yarn_factor &&
           a->original_max_position == b->original_max_position && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow;
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
    TAMIS_TRY(check_matrix("wq_a", &w->wq_a, c->q_lora_rank, c->hidden_size, err));
    TAMIS_TRY(check_matrix("wq_b", &w->wq_b, q_width, c->q_lora_rank, err));
    TAMIS_TRY(check_matrix("wkv", &w->wkv, c->head_dim, c->hidden_size, err));
    TAMIS_TRY(check_matrix("wo_a", &w->wo_a, low_width, q_width / c->o_groups, err));
    TAMIS_TRY(check_matrix("wo_b", &w->wo_b, c->hidden_size, low_width, err));
    TAMIS_TRY(check_vector("q_norm", w->q_norm, err));
    TAMIS_TRY(check_vector("kv_norm", w->kv_norm, err));
    TAMIS_TRY(check_vector("attn_sink", w->attn_sink, err));
    if (c->compress_ratio == 0)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_compressor("compressor", &w->compressor, c, c->head_dim, err));
    if (c->compress_ratio != 4 || c->reuse_topk)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(check_matrix("index_wq_b", &w->index_wq_b,
                           (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank, err));
    TAMIS_TRY(check_matrix("index_weights_proj", &w->index_weights_proj, c->index_n_heads,
                           c->hidden_size, err));
    return check_compressor("index_compressor", &w->index_compressor, c, c->index_head_dim, err);
}
