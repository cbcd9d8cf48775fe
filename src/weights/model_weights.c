/*
 * Binding runs twice over the same code: once with a measuring arena, which checks every tensor and
 * adds up the vectors, and once with the arena in place. Nothing is copied before all is checked.
 */
#include "weights/model_weights.h"

#include <string.h>

#include "core/arena.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "kernels/kernels.h"
#include "weights/expert_ids.h"
#include "weights/tensor_matrix.h"

/* The object behind a tamis_model_weights. */
typedef struct bound_weights {
    tamis_model_weights weights;   /* first: the public part */
    tamis_expert_weights *experts; /* [n_layers][n_routed_experts] */
    void *vectors;
} bound_weights;

typedef struct binder {
    tamis_checkpoint *checkpoint;
    const tamis_model_config *config;
    tamis_model_weights *weights;
    tamis_arena arena; /* f32 copies of vectors */
    int32_t layer, expert;
    tamis_error *err;
} binder;

/* ---------------------------------------------------------------- finding and checking */

static tamis_tensor *find(const binder *b, tamis_v4_name name)
{
    char text[TAMIS_V4_NAME_BYTES];
    for (int i = 0; tamis_v4_name_spell(text, name, b->layer, b->expert, i); i++) {
        tamis_tensor *tensor = tamis_checkpoint_find(b->checkpoint, text);
        if (tensor != NULL)
            return tensor;
    }
    return NULL;
}

static tamis_status require(const binder *b, tamis_v4_name name, tamis_tensor **out)
{
    char text[TAMIS_V4_NAME_BYTES];
    *out = find(b, name);
    if (*out != NULL)
        return TAMIS_STATUS_OK;
    tamis_v4_name_spell(text, name, b->layer, b->expert, 0);
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is missing, allowed: one of its spellings",
                      tamis_checkpoint_dir(b->checkpoint), text);
}

/* Where the config leaves a part out, its tensors must be absent: one of the two is damaged. */
static tamis_status refuse_left_over(const binder *b, tamis_v4_name name, const char *field,
                                     int32_t value)
{
    const tamis_tensor *tensor = find(b, name);
    if (tensor == NULL)
        return TAMIS_STATUS_OK;
    return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                      "%s: tensor %s is there, allowed: none of this part where config.json has "
                      "%s %d",
                      tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx), tensor->name,
                      field, (int)value);
}

static void use(const binder *b, tamis_tensor *tensor)
{
    tensor->is_used = true;
    b->weights->mapped_bytes += tensor->bytes;
}

/* ---------------------------------------------------------------- kinds of tensors */

/* A linear layer's weight: floats, or FP8 with its scales; FP4 only where experts are. */
static tamis_status bind_matrix(const binder *b, tamis_matrix *out, tamis_v4_name name,
                                int64_t rows, int64_t cols)
{
    tamis_tensor *tensor, *scale;
    const bool may_be_fp4 = name >= TAMIS_V4_FIRST_OF_EXPERT;
    TAMIS_TRY(require(b, name, &tensor));
    TAMIS_TRY(
        tamis_tensor_to_matrix(out, b->checkpoint, tensor, &scale, rows, cols, may_be_fp4, b->err));
    use(b, tensor);
    if (scale != NULL)
        use(b, scale);
    return TAMIS_STATUS_OK;
}

/* A matrix that the control path reads: floats only. */
static tamis_status bind_float_matrix(const binder *b, tamis_matrix *out, tamis_v4_name name,
                                      int64_t rows, int64_t cols)
{
    tamis_tensor *tensor;
    const int64_t shape[] = {rows, cols};
    TAMIS_TRY(require(b, name, &tensor));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, tensor, 2, shape, b->err));
    *out = tamis_tensor_float_matrix(tensor, tensor->data, rows, cols);
    use(b, tensor);
    return TAMIS_STATUS_OK;
}

/* An f32 copy of a tensor of that shape. */
static tamis_status bind_floats(binder *b, const float **out, tamis_v4_name name, int32_t rank,
                                const int64_t *shape)
{
    tamis_tensor *tensor;
    int64_t n = 1;
    TAMIS_TRY(require(b, name, &tensor));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, tensor, rank, shape, b->err));
    for (int32_t i = 0; i < rank; i++)
        n *= shape[i];
    float *copy = tamis_arena_take(&b->arena, (size_t)n, sizeof *copy);
    if (copy != NULL)
        tamis_kernels_current()->widen(copy, tensor->data, tensor->dtype, n);
    tensor->is_used = true;
    *out = copy;
    return TAMIS_STATUS_OK;
}

static tamis_status bind_vector(binder *b, const float **out, tamis_v4_name name, int64_t n)
{
    return bind_floats(b, out, name, 1, &n);
}

/* ---------------------------------------------------------------- hyper-connections */

static tamis_status bind_hc(binder *b, tamis_hc_weights *out, tamis_v4_name fn, int64_t n_outputs,
                            int64_t n_scales)
{
    const int64_t width = (int64_t)b->config->hc_mult * b->config->hidden_size;
    TAMIS_TRY(bind_float_matrix(b, &out->fn, fn, n_outputs, width));
    TAMIS_TRY(bind_vector(b, &out->base, (tamis_v4_name)(fn + 1), n_outputs));
    return bind_vector(b, &out->scale, (tamis_v4_name)(fn + 2), n_scales);
}

/* ---------------------------------------------------------------- attention */

/* Four tensors in the order of the names: ape, wkv, wgate, norm. */
static tamis_status bind_compressor(binder *b, tamis_compressor_weights *out, tamis_v4_name first,
                                    int32_t ratio, int64_t head_dim)
{
    const int64_t width = (ratio == 4 ? 2 : 1) * head_dim;
    const int64_t ape_shape[] = {ratio, width};
    TAMIS_TRY(bind_floats(b, &out->ape, first, 2, ape_shape));
    TAMIS_TRY(bind_matrix(b, &out->wkv, (tamis_v4_name)(first + 1), width, b->config->hidden_size));
    TAMIS_TRY(
        bind_matrix(b, &out->wgate, (tamis_v4_name)(first + 2), width, b->config->hidden_size));
    return bind_vector(b, &out->norm, (tamis_v4_name)(first + 3), head_dim);
}

static tamis_status bind_indexer(binder *b, tamis_dsa_weights *w)
{
    const tamis_model_config *c = b->config;
    TAMIS_TRY(bind_matrix(b, &w->index_wq_b, TAMIS_V4_INDEX_WQ_B,
                          (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank));
    TAMIS_TRY(bind_matrix(b, &w->index_weights_proj, TAMIS_V4_INDEX_WEIGHTS_PROJ, c->index_n_heads,
                          c->hidden_size));
    return bind_compressor(b, &w->index_compressor, TAMIS_V4_INDEX_APE, 4, c->index_head_dim);
}

static tamis_status bind_attention(binder *b, tamis_dsa_layer *layer)
{
    const tamis_model_config *c = b->config;
    tamis_dsa_weights *w = &layer->weights;
    const int64_t q_width = (int64_t)c->num_attention_heads * c->head_dim;
    const int64_t low_width = (int64_t)c->o_groups * c->o_lora_rank;
    layer->config = tamis_model_config_dsa(c, b->layer);
    const int32_t ratio = layer->config.compress_ratio;
    TAMIS_TRY(bind_matrix(b, &w->wq_a, TAMIS_V4_WQ_A, c->q_lora_rank, c->hidden_size));
    TAMIS_TRY(bind_vector(b, &w->q_norm, TAMIS_V4_Q_NORM, c->q_lora_rank));
    TAMIS_TRY(bind_matrix(b, &w->wq_b, TAMIS_V4_WQ_B, q_width, c->q_lora_rank));
    TAMIS_TRY(bind_matrix(b, &w->wkv, TAMIS_V4_WKV, c->head_dim, c->hidden_size));
    TAMIS_TRY(bind_vector(b, &w->kv_norm, TAMIS_V4_KV_NORM, c->head_dim));
    TAMIS_TRY(bind_matrix(b, &w->wo_a, TAMIS_V4_WO_A, low_width, q_width / c->o_groups));
    TAMIS_TRY(bind_matrix(b, &w->wo_b, TAMIS_V4_WO_B, c->hidden_size, low_width));
    TAMIS_TRY(bind_vector(b, &w->attn_sink, TAMIS_V4_ATTN_SINK, c->num_attention_heads));
    TAMIS_TRY(ratio == 0 ? refuse_left_over(b, TAMIS_V4_COMPRESSOR_APE, "compress ratio", 0)
                         : bind_compressor(b, &w->compressor, TAMIS_V4_COMPRESSOR_APE, ratio,
                                           c->head_dim));
    /* A layer that reuses a selection runs no indexer, and need not have one. */
    return ratio == 4 && !layer->config.reuse_topk ? bind_indexer(b, w) : TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- experts */

/* I64 only, as published; an id outside 0..n_routed_experts-1 would index past the experts. */
static tamis_status bind_tid2eid(const binder *b, const void **out)
{
    const tamis_model_config *c = b->config;
    const int64_t shape[] = {c->vocab_size, c->num_experts_per_tok};
    tamis_tensor *tensor;
    TAMIS_TRY(require(b, TAMIS_V4_TID2EID, &tensor));
    if (tensor->dtype != TAMIS_DTYPE_I64)
        return tamis_tensor_refuse_dtype(b->checkpoint, tensor, "I64", b->err);
    TAMIS_TRY(tamis_tensor_check_shape(b->checkpoint, tensor, 2, shape, b->err));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        const int64_t id = tamis_tensor_i64(tensor, i);
        if (id < 0 || id >= c->n_routed_experts)
            return tamis_fail(b->err, TAMIS_STATUS_FORMAT,
                              "%s: %s: element %lld is %lld, allowed: an expert id in 0..%d",
                              tamis_checkpoint_file_name(b->checkpoint, tensor->file_idx),
                              tensor->name, (long long)i, (long long)id,
                              (int)c->n_routed_experts - 1);
    }
    *out = tensor->data;
    use(b, tensor);
    return TAMIS_STATUS_OK;
}

static tamis_status bind_expert(const binder *b, tamis_expert_weights *out, tamis_v4_name first,
                                int64_t width)
{
    const int64_t hidden = b->config->hidden_size;
    TAMIS_TRY(bind_matrix(b, &out->w1, first, width, hidden));
    TAMIS_TRY(bind_matrix(b, &out->w2, (tamis_v4_name)(first + 1), hidden, width));
    return bind_matrix(b, &out->w3, (tamis_v4_name)(first + 2), width, hidden);
}

/* All experts of a layer in two tensors, floats only. */
static tamis_status bind_stacked_experts(const binder *b, tamis_expert_weights *experts)
{
    const int64_t n = b->config->n_routed_experts, hidden = b->config->hidden_size;
    const int64_t width = b->config->moe_intermediate_size;
    const int64_t up_shape[] = {n, 2 * width, hidden}, down_shape[] = {n, hidden, width};
    tamis_tensor *up, *down;
    TAMIS_TRY(require(b, TAMIS_V4_STACKED_GATE_UP, &up));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, up, 3, up_shape, b->err));
    TAMIS_TRY(require(b, TAMIS_V4_STACKED_DOWN, &down));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, down, 3, down_shape, b->err));
    const int64_t part = width * hidden;
    const int64_t up_bytes = part * tamis_dtype_bits(up->dtype) / 8;
    const int64_t down_bytes = part * tamis_dtype_bits(down->dtype) / 8;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *gate = up->data + 2 * i * up_bytes;
        experts[i].w1 = tamis_tensor_float_matrix(up, gate, width, hidden);
        experts[i].w3 = tamis_tensor_float_matrix(up, gate + up_bytes, width, hidden);
        experts[i].w2 = tamis_tensor_float_matrix(down, down->data + i * down_bytes, hidden, width);
    }
    use(b, up);
    use(b, down);
    return TAMIS_STATUS_OK;
}

static tamis_status bind_routed_experts(binder *b, tamis_expert_weights *experts)
{
    if (find(b, TAMIS_V4_STACKED_GATE_UP) != NULL)
        return bind_stacked_experts(b, experts);
    for (b->expert = 0; b->expert < b->config->n_routed_experts; b->expert++)
        TAMIS_TRY(bind_expert(b, &experts[b->expert], TAMIS_V4_EXPERT_W1,
                              b->config->moe_intermediate_size));
    return TAMIS_STATUS_OK;
}

static tamis_status bind_moe(binder *b, tamis_moe_weights *moe)
{
    const tamis_model_config *c = b->config;
    TAMIS_TRY(bind_matrix(b, &moe->gate, TAMIS_V4_GATE, c->n_routed_experts, c->hidden_size));
    if (c->is_hash_layer[b->layer])
        TAMIS_TRY(bind_tid2eid(b, &moe->tid2eid));
    else
        TAMIS_TRY(bind_vector(b, &moe->bias, TAMIS_V4_GATE_BIAS, c->n_routed_experts));
    TAMIS_TRY(bind_routed_experts(b, moe->experts));
    if (c->n_shared_experts == 0)
        return refuse_left_over(b, TAMIS_V4_SHARED_W1, "n_shared_experts", 0);
    return bind_expert(b, &moe->shared, TAMIS_V4_SHARED_W1,
                       (int64_t)c->n_shared_experts * c->moe_intermediate_size);
}

/* ---------------------------------------------------------------- model */

static tamis_status bind_layer(binder *b, tamis_layer_weights *layer)
{
    const int64_t m = b->config->hc_mult, n_outputs = (2 + m) * m;
    TAMIS_TRY(bind_vector(b, &layer->attn_norm, TAMIS_V4_ATTN_NORM, b->config->hidden_size));
    TAMIS_TRY(bind_vector(b, &layer->ffn_norm, TAMIS_V4_FFN_NORM, b->config->hidden_size));
    TAMIS_TRY(bind_hc(b, &layer->hc_attn, TAMIS_V4_HC_ATTN_FN, n_outputs, 3));
    TAMIS_TRY(bind_hc(b, &layer->hc_ffn, TAMIS_V4_HC_FFN_FN, n_outputs, 3));
    TAMIS_TRY(bind_attention(b, &layer->dsa));
    return bind_moe(b, &layer->moe);
}

static tamis_status bind_model(binder *b)
{
    tamis_model_weights *w = b->weights;
    const tamis_model_config *c = b->config;
    w->mapped_bytes = 0;
    TAMIS_TRY(bind_matrix(b, &w->embed, TAMIS_V4_EMBED, c->vocab_size, c->hidden_size));
    TAMIS_TRY(bind_matrix(b, &w->head, TAMIS_V4_HEAD, c->vocab_size, c->hidden_size));
    TAMIS_TRY(bind_vector(b, &w->norm, TAMIS_V4_NORM, c->hidden_size));
    TAMIS_TRY(bind_hc(b, &w->hc_head, TAMIS_V4_HC_HEAD_FN, c->hc_mult, 1));
    for (b->layer = 0; b->layer < w->n_layers; b->layer++)
        TAMIS_TRY(bind_layer(b, &w->layers[b->layer]));
    return refuse_left_over(b, TAMIS_V4_ATTN_NORM, "num_hidden_layers", w->n_layers);
}

static tamis_status take_tables(bound_weights *bound, const tamis_model_config *c, tamis_error *err)
{
    tamis_model_weights *w = &bound->weights;
    const size_t n_layers = (size_t)c->num_hidden_layers;
    const size_t n_experts = n_layers * (size_t)c->n_routed_experts;
    w->layers = tamis_mem_array(TAMIS_MEM_WEIGHTS, n_layers, sizeof *w->layers);
    bound->experts = tamis_mem_array(TAMIS_MEM_WEIGHTS, n_experts, sizeof *bound->experts);
    if (w->layers == NULL || bound->experts == NULL)
        return tamis_fail_memory(err, "tables of weights", n_experts * sizeof *bound->experts);
    w->n_layers = c->num_hidden_layers;
    w->widened_bytes =
        sizeof *bound + n_layers * sizeof *w->layers + n_experts * sizeof *bound->experts;
    for (size_t i = 0; i < n_layers; i++)
        w->layers[i].moe.experts = bound->experts + i * (size_t)c->n_routed_experts;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_model_weights_bind(tamis_model_weights **out, tamis_checkpoint *checkpoint,
                                      const tamis_model_config *config, tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    bound_weights *bound = tamis_mem_alloc(TAMIS_MEM_WEIGHTS, sizeof *bound);
    if (bound == NULL)
        return tamis_fail_memory(err, "weights", sizeof *bound);
    tamis_model_weights *weights = &bound->weights;
    binder b = {checkpoint, config, weights, {NULL, 0, 0}, 0, 0, err};
    TAMIS_TRY_GOTO(take_tables(bound, config, err));
    TAMIS_TRY_GOTO(bind_model(&b));
    const size_t bytes = b.arena.used;
    bound->vectors = tamis_mem_alloc(TAMIS_MEM_WEIGHTS, bytes);
    if (bound->vectors == NULL) {
        st = tamis_fail_memory(err, "widened weights", bytes);
        goto fail;
    }
    b.arena = (tamis_arena){bound->vectors, bytes, 0};
    TAMIS_TRY_GOTO(bind_model(&b));
    weights->widened_bytes += bytes;
    *out = weights;
    return TAMIS_STATUS_OK;
fail:
    tamis_model_weights_free(&weights);
    return st;
}

void tamis_model_weights_free(tamis_model_weights **weights)
{
    bound_weights *bound = (bound_weights *)*weights;
    if (bound == NULL)
        return;
    tamis_mem_free(bound->weights.layers);
    tamis_mem_free(bound->experts);
    tamis_mem_free(bound->vectors);
    tamis_mem_free(bound);
    *weights = NULL;
}
