/*
 * config.json, then (after the first zero byte, if any) generation_config.json. What is accepted
 * must be sound: attention accepts every layer, and no product of dimensions overflows.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attention/dsa/caches.h"
#include "attention/sfa/caches.h"
#include "config/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool is_true)
{
    if (!is_true)
        abort();
}

static void check_v4(const tamis_model_config *c)
{
    require(c->n_compress_ratios >= c->num_hidden_layers);
    require(c->n_compress_ratios <= TAMIS_MAX_LAYERS);
    require((int64_t)c->num_attention_heads * c->head_dim <= INT32_MAX);
    require((int64_t)c->hc_mult * c->hidden_size <= INT32_MAX);
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const tamis_dsa_config layer = tamis_model_config_dsa(c, i);
        require(tamis_dsa_config_check(&layer, NULL) == TAMIS_STATUS_OK);
    }
}

static void check_latent(const tamis_model_config *c)
{
    const int64_t widest =
        c->qk_nope_head_dim +
        (c->v_head_dim > c->qk_rope_head_dim ? c->v_head_dim : c->qk_rope_head_dim);
    require(c->num_attention_heads * widest <= INT32_MAX);
    require(c->n_routed_experts % c->n_group == 0 && c->topk_group <= c->n_group);
    require(c->n_routed_experts / c->n_group * c->topk_group >= c->num_experts_per_tok);
    require(!c->reuse_topk[0]);
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const tamis_sfa_config layer = tamis_model_config_sfa(c, i);
        require(tamis_sfa_config_check(&layer, NULL) == TAMIS_STATUS_OK);
        require(layer.index_topk > 0);
        require(!c->is_dense_layer[i] || c->intermediate_size > 0);
    }
}

static void check(const tamis_model_config *c)
{
    require(c->num_experts_per_tok <= c->n_routed_experts);
    require(c->n_eos_token_ids >= 0 && c->n_eos_token_ids <= TAMIS_MAX_EOS);
    require(c->bos_token_id >= -1 && c->bos_token_id < c->vocab_size);
    require((int64_t)c->n_shared_experts * c->moe_intermediate_size <= INT32_MAX);
    if (c->family == TAMIS_FAMILY_DEEPSEEK_V4)
        check_v4(c);
    else
        check_latent(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t bytes = end != NULL ? (size_t)(end - data) : size;
    const char *generation = end != NULL ? (const char *)end + 1 : NULL;
    tamis_model_config config;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    const tamis_status st =
        tamis_model_config_parse(&config, "config.json", (const char *)data, bytes, generation,
                                 end != NULL ? size - bytes - 1 : 0, &err);
    if (st == TAMIS_STATUS_OK)
        check(&config);
    else
        require(err.status == st && err.text[0] != '\0');
    return 0;
}
