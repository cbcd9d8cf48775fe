#include "weights/model_weights.h"

#include "core/error.h"
#include "core/mem.h"
#include "weights/bind_attention.h"
#include "weights/bind_quantised.h"
#include "weights/left_over.h"
#include "weights/tensor_matrix.h"

/* The object behind a tamis_model_weights. */
typedef struct bound_weights {
    tamis_model_weights weights;   /* first: the public part */
    tamis_expert_weights *experts; /* [n_layers + n_mtp][n_routed_experts] */
    void *vectors;
} bound_weights;

/* ---------------------------------------------------------------- hyper-connections */

static tamis_status bind_hc(tamis_binder *b, tamis_hc_weights *out, tamis_weight fn,
                            int64_t n_outputs, int64_t n_scales)
{
    const int64_t width = (int64_t)b->config->hc_mult * b->config->hidden_size;
    TAMIS_TRY(tamis_bind_float_matrix(b, &out->fn, fn, n_outputs, width));
    TAMIS_TRY(tamis_bind_vector(b, &out->base, (tamis_weight)(fn + 1), n_outputs));
    return tamis_bind_vector(b, &out->scale, (tamis_weight)(fn + 2), n_scales);
}

/* ---------------------------------------------------------------- experts */

/* I64 only, as published; an id outside 0..n_routed_experts-1 would index past the experts. */
static tamis_status bind_tid2eid(tamis_binder *b, const void **out)
{
    const tamis_model_config *c = b->config;
    const int64_t shape[] = {c->vocab_size, c->num_experts_per_tok};
    tamis_tensor *tensor;
    TAMIS_TRY(tamis_binder_require(b, TAMIS_WEIGHT_TID2EID, &tensor));
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
    tamis_binder_use(b, tensor);
    return TAMIS_STATUS_OK;
}

static tamis_status bind_expert(tamis_binder *b, tamis_expert_weights *out, tamis_weight first,
                                int64_t width)
{
    const int64_t hidden = b->config->hidden_size;
    TAMIS_TRY(tamis_bind_matrix(b, &out->w1, first, width, hidden));
    TAMIS_TRY(tamis_bind_matrix(b, &out->w2, (tamis_weight)(first + 1), hidden, width));
    TAMIS_TRY(tamis_bind_matrix(b, &out->w3, (tamis_weight)(first + 2), width, hidden));
    return tamis_binder_expect_fused(b, tamis_binder_find(b, first), (tamis_weight)(first + 2));
}

/* All routed experts of a layer run as one module. */
static tamis_status expect_one_scheme(tamis_binder *b, const tamis_tensor *first)
{
    TAMIS_TRY(tamis_binder_expect_fused(b, first, TAMIS_WEIGHT_EXPERT_W1));
    return tamis_binder_expect_fused(b, first, TAMIS_WEIGHT_EXPERT_W2);
}

/* All experts of a layer in two tensors, floats only. */
static tamis_status bind_stacked_experts(tamis_binder *b, tamis_expert_weights *experts)
{
    const int64_t n = b->config->n_routed_experts, hidden = b->config->hidden_size;
    const int64_t width = b->config->moe_intermediate_size;
    const int64_t up_shape[] = {n, 2 * width, hidden}, down_shape[] = {n, hidden, width};
    tamis_tensor *up, *down;
    TAMIS_TRY(tamis_binder_require(b, TAMIS_WEIGHT_STACKED_GATE_UP, &up));
    TAMIS_TRY(tamis_tensor_check_float(b->checkpoint, up, 3, up_shape, b->err));
    TAMIS_TRY(tamis_binder_require(b, TAMIS_WEIGHT_STACKED_DOWN, &down));
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
    tamis_binder_use(b, up);
    tamis_binder_use(b, down);
    return TAMIS_STATUS_OK;
}

static tamis_status bind_routed_experts(tamis_binder *b, tamis_expert_weights *experts)
{
    if (tamis_binder_find(b, TAMIS_WEIGHT_STACKED_GATE_UP) != NULL)
        return bind_stacked_experts(b, experts);
    b->at.expert = 0;
    const tamis_tensor *first = tamis_binder_find(b, TAMIS_WEIGHT_EXPERT_W1);
    for (; b->at.expert < b->config->n_routed_experts; b->at.expert++) {
        TAMIS_TRY(bind_expert(b, &experts[b->at.expert], TAMIS_WEIGHT_EXPERT_W1,
                              b->config->moe_intermediate_size));
        TAMIS_TRY(expect_one_scheme(b, first));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status bind_dense_mlp(tamis_binder *b, tamis_expert_weights *mlp)
{
    TAMIS_TRY(tamis_binder_refuse(b, TAMIS_WEIGHT_GATE, "a dense MLP in layer", b->at.layer));
    return bind_expert(b, mlp, TAMIS_WEIGHT_DENSE_W1, b->config->intermediate_size);
}

static tamis_status bind_moe(tamis_binder *b, tamis_moe_weights *moe)
{
    const tamis_model_config *c = b->config;
    if (c->is_dense_layer[b->at.layer])
        return bind_dense_mlp(b, &moe->shared);
    TAMIS_TRY(tamis_binder_refuse(b, TAMIS_WEIGHT_DENSE_W1, "experts in layer", b->at.layer));
    TAMIS_TRY(
        tamis_bind_matrix(b, &moe->gate, TAMIS_WEIGHT_GATE, c->n_routed_experts, c->hidden_size));
    if (c->is_hash_layer[b->at.layer])
        TAMIS_TRY(bind_tid2eid(b, &moe->tid2eid));
    else
        TAMIS_TRY(tamis_bind_vector(b, &moe->bias, TAMIS_WEIGHT_GATE_BIAS, c->n_routed_experts));
    TAMIS_TRY(bind_routed_experts(b, moe->experts));
    if (c->n_shared_experts == 0)
        return tamis_binder_refuse(b, TAMIS_WEIGHT_SHARED_W1, "n_shared_experts", 0);
    return bind_expert(b, &moe->shared, TAMIS_WEIGHT_SHARED_W1,
                       (int64_t)c->n_shared_experts * c->moe_intermediate_size);
}

/* ---------------------------------------------------------------- model */

/* V4: hyper-connections around attention and experts. */
static tamis_status bind_v4_layer(tamis_binder *b, tamis_layer_weights *layer)
{
    const int64_t m = b->config->hc_mult, n_outputs = (2 + m) * m;
    TAMIS_TRY(bind_hc(b, &layer->hc_attn, TAMIS_WEIGHT_HC_ATTN_FN, n_outputs, 3));
    TAMIS_TRY(bind_hc(b, &layer->hc_ffn, TAMIS_WEIGHT_HC_FFN_FN, n_outputs, 3));
    return tamis_bind_dsa(b, &layer->dsa);
}

/* A larger num_hidden_layers would run an MTP block as a main layer: it has all of its tensors. */
static tamis_status bind_sfa_layer(tamis_binder *b, tamis_layer_weights *layer)
{
    if (!b->at.is_mtp)
        TAMIS_TRY(tamis_binder_refuse(b, TAMIS_WEIGHT_MTP_EH_PROJ, "num_hidden_layers",
                                      b->config->num_hidden_layers));
    return tamis_bind_sfa(b, &layer->sfa);
}

static tamis_status bind_layer(tamis_binder *b, tamis_layer_weights *layer)
{
    const int64_t hidden = b->config->hidden_size;
    TAMIS_TRY(tamis_bind_vector(b, &layer->attn_norm, TAMIS_WEIGHT_ATTN_NORM, hidden));
    TAMIS_TRY(tamis_bind_vector(b, &layer->ffn_norm, TAMIS_WEIGHT_FFN_NORM, hidden));
    TAMIS_TRY(b->config->family == TAMIS_FAMILY_DEEPSEEK_V4 ? bind_v4_layer(b, layer)
                                                            : bind_sfa_layer(b, layer));
    return bind_moe(b, &layer->moe);
}

/*
 * A smaller num_hidden_layers would run another model without a word: the layer behind the last
 * must not be there. V3.2 and GLM: unless it is an MTP block, whatever num_nextn_predict_layers
 * says.
 */
static tamis_status refuse_more_layers(const tamis_binder *b)
{
    if (b->names->mtp_prefix == NULL)
        for (int w = TAMIS_WEIGHT_MTP_ENORM; w <= TAMIS_WEIGHT_MTP_HEAD; w++)
            if (tamis_binder_find(b, (tamis_weight)w) != NULL)
                return TAMIS_STATUS_OK;
    return tamis_binder_refuse(b, TAMIS_WEIGHT_ATTN_NORM, "num_hidden_layers",
                               b->config->num_hidden_layers);
}

/* ---------------------------------------------------------------- MTP block */

static tamis_weight_place mtp_place(const tamis_model_config *config)
{
    return (tamis_weight_place){.layer = config->num_hidden_layers, .is_mtp = true};
}

/* The hidden state of a rotated model would have to be turned back before the block reads it. */
static bool is_rotated(const tamis_binder *b)
{
    const tamis_quant_description *d = tamis_checkpoint_description(b->checkpoint);
    return d != NULL && tamis_quant_description_is_rotated(d);
}

/* One tensor is enough to make a block, which then has to be complete. */
static tamis_mtp_kind find_mtp(const tamis_binder *binder)
{
    tamis_binder b = *binder;
    b.at = mtp_place(b.config);
    if (tamis_binder_find(&b, TAMIS_WEIGHT_DSPARK_MAIN_PROJ) != NULL)
        return TAMIS_MTP_DSPARK;
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(b.checkpoint); i++) {
        const tamis_tensor_place place =
            tamis_tensor_place_of(b.config, tamis_checkpoint_tensor(b.checkpoint, i)->name);
        if (place.layer == b.at.layer && place.group == TAMIS_GROUP_MTP)
            return is_rotated(&b) ? TAMIS_MTP_ROTATED : TAMIS_MTP_BLOCK;
    }
    return TAMIS_MTP_NONE;
}

/* The hidden state meets the embedding: a sum of two projections, for every stream. */
static tamis_status bind_v4_mtp(tamis_binder *b, tamis_mtp_weights *mtp)
{
    const tamis_model_config *c = b->config;
    const int64_t hidden = c->hidden_size;
    const int32_t ratio = c->compress_ratios[b->at.layer];
    if (ratio != 0)
        return tamis_fail(b->err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: config.json: compress_ratios[%d] is %d, allowed: 0 for an MTP block",
                          tamis_checkpoint_dir(b->checkpoint), (int)b->at.layer, (int)ratio);
    TAMIS_TRY(tamis_bind_matrix(b, &mtp->e_proj, TAMIS_WEIGHT_MTP_E_PROJ, hidden, hidden));
    TAMIS_TRY(tamis_bind_matrix(b, &mtp->h_proj, TAMIS_WEIGHT_MTP_H_PROJ, hidden, hidden));
    return bind_hc(b, &mtp->hc_head, TAMIS_WEIGHT_MTP_HC_HEAD_FN, c->hc_mult, 1);
}

/* One projection of both side by side; V3.2 brings copies of embedding and head. */
static tamis_status bind_sfa_mtp(tamis_binder *b, tamis_mtp_weights *mtp)
{
    const tamis_model_config *c = b->config;
    const int64_t hidden = c->hidden_size;
    TAMIS_TRY(tamis_bind_matrix(b, &mtp->eh_proj, TAMIS_WEIGHT_MTP_EH_PROJ, hidden, 2 * hidden));
    if (tamis_binder_find(b, TAMIS_WEIGHT_MTP_EMBED) != NULL)
        TAMIS_TRY(tamis_bind_matrix(b, &mtp->embed, TAMIS_WEIGHT_MTP_EMBED, c->vocab_size, hidden));
    if (tamis_binder_find(b, TAMIS_WEIGHT_MTP_HEAD) != NULL)
        TAMIS_TRY(tamis_bind_matrix(b, &mtp->head, TAMIS_WEIGHT_MTP_HEAD, c->vocab_size, hidden));
    return TAMIS_STATUS_OK;
}

static tamis_status bind_mtp(tamis_binder *b, tamis_model_weights *w)
{
    const int64_t hidden = b->config->hidden_size;
    tamis_mtp_weights *mtp = &w->mtp;
    b->at = mtp_place(b->config);
    mtp->embed = w->embed;
    mtp->head = w->head;
    TAMIS_TRY(tamis_bind_vector(b, &mtp->enorm, TAMIS_WEIGHT_MTP_ENORM, hidden));
    TAMIS_TRY(tamis_bind_vector(b, &mtp->hnorm, TAMIS_WEIGHT_MTP_HNORM, hidden));
    TAMIS_TRY(tamis_bind_vector(b, &mtp->norm, TAMIS_WEIGHT_MTP_NORM, hidden));
    TAMIS_TRY(b->config->family == TAMIS_FAMILY_DEEPSEEK_V4 ? bind_v4_mtp(b, mtp)
                                                            : bind_sfa_mtp(b, mtp));
    return bind_layer(b, &w->layers[w->n_layers]);
}

/* ---------------------------------------------------------------- all of it */

static tamis_status bind_model(tamis_binder *b, tamis_model_weights *w)
{
    const tamis_model_config *c = b->config;
    b->mapped_bytes = 0;
    b->at = (tamis_weight_place){0};
    TAMIS_TRY(tamis_bind_matrix(b, &w->embed, TAMIS_WEIGHT_EMBED, c->vocab_size, c->hidden_size));
    TAMIS_TRY(tamis_bind_matrix(b, &w->head, TAMIS_WEIGHT_HEAD, c->vocab_size, c->hidden_size));
    TAMIS_TRY(tamis_bind_vector(b, &w->norm, TAMIS_WEIGHT_NORM, c->hidden_size));
    if (c->family == TAMIS_FAMILY_DEEPSEEK_V4)
        TAMIS_TRY(bind_hc(b, &w->hc_head, TAMIS_WEIGHT_HC_HEAD_FN, c->hc_mult, 1));
    for (b->at.layer = 0; b->at.layer < w->n_layers; b->at.layer++)
        TAMIS_TRY(bind_layer(b, &w->layers[b->at.layer]));
    TAMIS_TRY(refuse_more_layers(b));
    if (w->n_mtp > 0)
        TAMIS_TRY(bind_mtp(b, w));
    w->mapped_bytes = b->mapped_bytes;
    return TAMIS_STATUS_OK;
}

/* n_mtp must be set. */
static tamis_status take_tables(bound_weights *bound, const tamis_model_config *c, tamis_error *err)
{
    tamis_model_weights *w = &bound->weights;
    const size_t n_layers = (size_t)(c->num_hidden_layers + w->n_mtp);
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
    tamis_binder b = {.checkpoint = checkpoint,
                      .config = config,
                      .names = tamis_names_of(config->family),
                      .err = err};
    weights->mtp_kind = find_mtp(&b);
    weights->n_mtp = weights->mtp_kind == TAMIS_MTP_BLOCK ? 1 : 0;
    TAMIS_TRY_GOTO(take_tables(bound, config, err));
    TAMIS_TRY_GOTO(bind_model(&b, weights));
    TAMIS_TRY_GOTO(tamis_binder_refuse_left_over(&b));
    const size_t bytes = b.arena.used;
    bound->vectors = tamis_mem_alloc(TAMIS_MEM_WEIGHTS, bytes);
    if (bound->vectors == NULL) {
        st = tamis_fail_memory(err, "widened weights", bytes);
        goto fail;
    }
    b.arena = (tamis_arena){bound->vectors, bytes, 0};
    TAMIS_TRY_GOTO(bind_model(&b, weights));
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
