/* Whole models: sequences at a depth that nobody computed, and what a step has to do. */
#include <string.h>

#include "attention/dsa/caches.h"
#include "attention/sfa/caches.h"
#include "core/error.h"
#include "core/size.h"
#include "engine/model_internal.h"
#include "engine/session_internal.h"
#include "measure/random_rows.h"
#include "measure/work.h"

/* ---------------------------------------------------------------- random depth */

static tamis_status check_fill(tamis_session *session, int32_t seq, int32_t n, tamis_sequence **out,
                               tamis_error *err)
{
    TAMIS_TRY(tamis_session_check_awake(session, err));
    TAMIS_TRY(tamis_session_find_seq(session, seq, out, err));
    if ((*out)->len != 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "random rows: sequence %d has %d tokens, must be empty", seq,
                          (*out)->len);
    if (session->params.prefix_caching)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "random rows: prefix_caching is true, must be false");
    if (n < 0 || n > session->params.max_model_len)
        return tamis_fail(err, n < 0 ? TAMIS_STATUS_INVALID : TAMIS_STATUS_LIMIT,
                          "random rows: n is %d, allowed 0..%d (max_model_len)", n,
                          session->params.max_model_len);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_fill_random(tamis_session *session, int32_t seq, int32_t n, uint64_t seed,
                                   tamis_error *err)
{
    tamis_sequence *s = NULL;
    tamis_noise noise = {seed};
    TAMIS_TRY(check_fill(session, seq, n, &s, err));
    TAMIS_TRY(tamis_session_fill_table(session, seq, n, err));
    for (int32_t i = 0; i < s->n_blocks; i++)
        tamis_fill_block(session->net->store, s->table[i], &noise);
    tamis_fill_slot(session->net->store, seq, &noise);
    s->len = s->high = s->base = n;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- work of a step */

static void add_up(tamis_model_work *total, tamis_work_list *list, const tamis_roof *roof)
{
    total->floor_ms += tamis_stages_set_floors(list->stages, list->n, roof);
    for (int32_t i = 0; i < list->n; i++) {
        total->bytes += list->stages[i].bytes;
        total->f32_ops += list->stages[i].f32_ops;
        total->int8_ops += list->stages[i].int8_ops;
    }
    list->n = 0;
}

static tamis_status add_attention(const tamis_model *model, int32_t layer,
                                  const tamis_work_step *step, tamis_work_list *list,
                                  tamis_error *err)
{
    const tamis_layer_weights *w = &model->weights->layers[layer];
    tamis_cache_params params = tamis_cache_params_default();
    tamis_row_format row, key = {.dtype = TAMIS_DTYPE_F32};
    params.profile = step->profile;
    if (model->config.family == TAMIS_FAMILY_DEEPSEEK_V4) {
        TAMIS_TRY(tamis_dsa_row_formats(&row, &key, &w->dsa.config, &params, err));
        tamis_work_dsa(list, &w->dsa, &row, &key, step);
        tamis_work_linear(list, "hyper", &w->hc_attn.fn, step);
        tamis_work_linear(list, "hyper", &w->hc_ffn.fn, step);
    } else {
        TAMIS_TRY(tamis_sfa_row_formats(&row, &key, &w->sfa.config, &params, err));
        tamis_work_sfa(list, &w->sfa, &row, &key, step);
    }
    return TAMIS_STATUS_OK;
}

/* Last norm and head, of the tokens that want logits. */
static void add_head(const tamis_model *model, const tamis_work_step *step, tamis_work_list *list)
{
    if (model->config.family == TAMIS_FAMILY_DEEPSEEK_V4)
        tamis_work_linear(list, "hyper", &model->weights->hc_head.fn, step);
    tamis_work_linear(list, "head", &model->weights->head, step);
}

static tamis_status check_count(const tamis_model *model, int32_t context, int32_t num_tokens,
                                int32_t num_logits, tamis_error *err)
{
    if (context < 0 || context > model->config.max_position_embeddings)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "work: context is %d, allowed 0..%d", context,
                          model->config.max_position_embeddings);
    if (num_tokens < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "work: num_tokens is %d, allowed 1..",
                          num_tokens);
    if (num_logits < 0 || num_logits > num_tokens)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "work: num_logits is %d, allowed 0..%d",
                          num_logits, num_tokens);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_model_count_work(const tamis_model *model, int32_t context, int32_t num_tokens,
                                    int32_t num_logits, const tamis_roof *roof,
                                    tamis_model_work *out, tamis_error *err)
{
    if (model == NULL || roof == NULL || out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "work: model, roof or out is NULL");
    TAMIS_TRY(check_count(model, context, num_tokens, num_logits, err));
    const tamis_work_step step = {model->config.profile, context, num_tokens};
    const tamis_work_step last = {model->config.profile, context, num_logits};
    tamis_work_list list = {0};
    *out = (tamis_model_work){0};
    for (int32_t i = 0; i < model->config.num_hidden_layers; i++) {
        TAMIS_TRY(add_attention(model, i, &step, &list, err));
        add_up(out, &list, roof);
        tamis_work_moe(&list, &model->weights->layers[i].moe, model->config.num_experts_per_tok, -1,
                       &step);
        add_up(out, &list, roof);
    }
    if (num_logits > 0)
        add_head(model, &last, &list);
    add_up(out, &list, roof);
    return TAMIS_STATUS_OK;
}
