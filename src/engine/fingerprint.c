#include "engine/fingerprint.h"

#include <string.h>

#include "core/checksum.h"

#define SAMPLE_BYTES 256

/* ---------------------------------------------------------------- config */

static uint64_t add_ints(uint64_t sum, const int32_t *values, size_t n)
{
    return tamis_checksum(values, n * sizeof *values, sum);
}

static uint64_t add_flags(uint64_t sum, const bool *flags, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const uint8_t flag = flags[i];
        sum = tamis_checksum(&flag, 1, sum);
    }
    return sum;
}

static uint64_t add_rope(uint64_t sum, const tamis_rope_config *rope)
{
    const float floats[] = {rope->theta, rope->yarn_factor, rope->beta_fast, rope->beta_slow};
    sum = add_ints(sum, &rope->original_max_position, 1);
    return tamis_checksum(floats, sizeof floats, sum);
}

/* Structs hold padding and pointers, so fields are named one by one. */
static uint64_t config_sum(const tamis_model_config *c)
{
    const int32_t n_layers = c->num_hidden_layers + c->num_nextn_predict_layers;
    const int32_t ints[] = {c->vocab_size,
                            c->hidden_size,
                            c->num_hidden_layers,
                            c->n_compress_ratios,
                            c->num_attention_heads,
                            c->head_dim,
                            c->qk_rope_head_dim,
                            c->q_lora_rank,
                            c->o_groups,
                            c->o_lora_rank,
                            c->sliding_window,
                            c->kv_lora_rank,
                            c->qk_nope_head_dim,
                            c->v_head_dim,
                            c->index_n_heads,
                            c->index_head_dim,
                            c->index_topk,
                            c->index_rope_interleave,
                            c->n_routed_experts,
                            c->moe_intermediate_size,
                            c->n_shared_experts,
                            c->intermediate_size,
                            c->num_experts_per_tok,
                            c->n_group,
                            c->topk_group,
                            (int32_t)c->scoring_func,
                            c->norm_topk_prob,
                            c->hc_mult,
                            c->hc_sinkhorn_iters,
                            c->index_share_for_mtp_iteration};
    const float floats[] = {c->rms_norm_eps, c->mscale_all_dim, c->routed_scaling_factor,
                            c->swiglu_limit, c->hc_eps};
    uint64_t sum = tamis_checksum(c->family_name, strlen(c->family_name), 0);
    sum = add_ints(sum, ints, sizeof ints / sizeof *ints);
    sum = tamis_checksum(floats, sizeof floats, sum);
    sum = add_ints(sum, c->compress_ratios, (size_t)c->n_compress_ratios);
    sum = add_flags(sum, c->reuse_topk, n_layers);
    sum = add_flags(sum, c->is_hash_layer, n_layers);
    sum = add_flags(sum, c->is_dense_layer, n_layers);
    sum = add_rope(sum, &c->rope_window);
    sum = add_rope(sum, &c->rope_compress);
    return add_rope(sum, &c->rope);
}

/* ---------------------------------------------------------------- tensors */

/* How a folder's description means a tensor: the same bytes may be W8A8 or W8A8_MIX. */
static int32_t scheme_of(const tamis_model *model, const tamis_tensor *tensor)
{
    const tamis_quant_description *d = tamis_checkpoint_description(model->checkpoint);
    tamis_quant_scheme scheme;
    if (d == NULL ||
        tamis_quant_description_scheme(d, tensor->name, &scheme, NULL) != TAMIS_STATUS_OK)
        return TAMIS_SCHEME_FLOAT;
    return (int32_t)scheme;
}

static uint64_t tensor_sum(const tamis_model *model, const tamis_tensor *tensor)
{
    const int32_t dtype = (int32_t)tensor->dtype + (scheme_of(model, tensor) << 8);
    const size_t n = tensor->bytes < SAMPLE_BYTES ? (size_t)tensor->bytes : SAMPLE_BYTES;
    uint64_t sum = tamis_checksum(tensor->name, strlen(tensor->name), 0);
    sum = add_ints(sum, &dtype, 1);
    sum = tamis_checksum(tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape, sum);
    return tamis_checksum(tensor->data + (tensor->bytes - n) / 2, n, sum);
}

uint64_t tamis_model_fingerprint(const tamis_model *model)
{
    const int32_t n = tamis_checkpoint_num_tensors(model->checkpoint);
    uint64_t tensors = 0; /* a plain sum: any order of files and tensors */
    for (int32_t i = 0; i < n; i++)
        tensors += tensor_sum(model, tamis_checkpoint_tensor(model->checkpoint, i));
    return tamis_checksum(&tensors, sizeof tensors, config_sum(&model->config));
}
