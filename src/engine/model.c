#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "engine/model_internal.h"
#include "model/cache_rows.h"
#include "model/net.h"
#include "weights/names.h"

static const char *name_drafter(tamis_mtp_kind kind)
{
    static const char *const names[] = {
        [TAMIS_MTP_NONE] = "none",
        [TAMIS_MTP_BLOCK] = "mtp",
        [TAMIS_MTP_DSPARK] = "dspark",
        [TAMIS_MTP_ROTATED] = "rotated mtp",
    };
    return names[kind];
}

/* ---------------------------------------------------------------- IndexCache */

static bool has_indexer(tamis_checkpoint *checkpoint, const tamis_model_config *config,
                        int32_t layer)
{
    const tamis_names *names = tamis_names_of(config->family);
    char name[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_names_spell(names, name, TAMIS_WEIGHT_INDEX_WQ_B,
                                      (tamis_weight_place){.layer = layer}, i);
         i++)
        if (tamis_checkpoint_find(checkpoint, name) != NULL)
            return true;
    return false;
}

/* The parameters' rule in place of the config's. */
static tamis_status set_sharing(tamis_model *model, const tamis_model_params *params,
                                tamis_error *err)
{
    tamis_model_config *c = &model->config;
    bool before[TAMIS_MAX_LAYERS];
    memcpy(before, c->reuse_topk, sizeof before);
    TAMIS_TRY(
        tamis_config_set_sharing(c, params->index_topk_freq, params->index_topk_pattern, err));
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        if (before[i] && !c->reuse_topk[i] && !has_indexer(model->checkpoint, c, i))
            return tamis_fail(
                err, TAMIS_STATUS_INVALID,
                "model: %s makes layer %d select for itself, but the folder has no "
                "indexer for it, allowed: S",
                params->index_topk_freq != 0 ? "index_topk_freq" : "index_topk_pattern", i);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- open and close */

static void fill_info(tamis_model *model)
{
    const tamis_model_config *c = &model->config;
    model->info = (tamis_model_info){.family = c->family_name,
                                     .profile = tamis_profile_name(c->profile),
                                     .vocab_size = c->vocab_size,
                                     .hidden_size = c->hidden_size,
                                     .num_hidden_layers = c->num_hidden_layers,
                                     .max_position_embeddings = c->max_position_embeddings,
                                     .bos_token_id = c->bos_token_id,
                                     .n_eos_token_ids = c->n_eos_token_ids,
                                     .do_sample = c->do_sample,
                                     .temperature = c->temperature,
                                     .top_p = c->top_p,
                                     .min_p = c->min_p,
                                     .top_k = c->top_k,
                                     .weight_bytes_mapped = model->weights->mapped_bytes,
                                     .weight_bytes_widened = model->weights->widened_bytes,
                                     .index_topk = c->index_topk,
                                     .has_index_cache = c->has_index_cache,
                                     .is_index_cache_approximate = c->is_index_cache_approximate,
                                     .num_nextn_predict_layers = c->num_nextn_predict_layers,
                                     .drafter = name_drafter(model->weights->mtp_kind)};
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        model->info.num_shared_indexers += c->reuse_topk[i];
    for (int32_t i = 0; i < c->n_eos_token_ids; i++)
        model->info.eos_token_ids[i] = c->eos_token_ids[i];
}

static tamis_status open_parts(tamis_model *model, const char *dir,
                               const tamis_model_params *params, tamis_error *err)
{
    TAMIS_TRY(tamis_model_config_read(&model->config, dir, err));
    model->config.profile = params->profile;
    TAMIS_TRY(tamis_checkpoint_open(&model->checkpoint, dir, err));
    TAMIS_TRY(set_sharing(model, params, err));
    TAMIS_TRY(tamis_model_weights_bind(&model->weights, model->checkpoint, &model->config, err));
    fill_info(model);
    return TAMIS_STATUS_OK;
}

tamis_model_params tamis_model_params_default(void)
{
    return (tamis_model_params){.struct_size = sizeof(tamis_model_params)};
}

tamis_status tamis_model_open(tamis_model **out, const char *dir, tamis_error *err)
{
    const tamis_model_params params = tamis_model_params_default();
    return tamis_model_open_with(out, dir, &params, err);
}

tamis_status tamis_model_open_with(tamis_model **out, const char *dir,
                                   const tamis_model_params *params, tamis_error *err)
{
    tamis_status st;
    if (out == NULL || dir == NULL || params == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "model: out, dir or params is NULL");
    *out = NULL;
    if (params->struct_size != sizeof *params)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "model: struct_size is %zu, must be %zu",
                          params->struct_size, sizeof *params);
    if ((unsigned)params->profile >= (unsigned)TAMIS_NUM_PROFILES)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "model: profile is %d, allowed 0..%d",
                          (int)params->profile, TAMIS_NUM_PROFILES - 1);
    TAMIS_TRY(tamis_cpu_check_environment(err));
    tamis_model *model = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *model);
    if (model == NULL)
        return tamis_fail_memory(err, "model", sizeof *model);
    TAMIS_TRY_GOTO(open_parts(model, dir, params, err));
    *out = model;
    return TAMIS_STATUS_OK;
fail:
    tamis_model_close(&model);
    return st;
}

void tamis_model_close(tamis_model **model_ptr)
{
    if (model_ptr == NULL || *model_ptr == NULL)
        return;
    tamis_model *model = *model_ptr;
    *model_ptr = NULL;
    tamis_inspect_free(&model->inspect);
    tamis_numerics_free(&model->numerics);
    tamis_model_weights_free(&model->weights);
    tamis_checkpoint_close(&model->checkpoint);
    tamis_mem_free(model);
}

const tamis_model_info *tamis_model_get_info(const tamis_model *model)
{
    return &model->info;
}

int32_t tamis_model_layer_ratio(const tamis_model *model, int32_t layer)
{
    if (layer < 0 || layer >= model->info.num_hidden_layers)
        return -1;
    return model->config.compress_ratios[layer];
}

/* ---------------------------------------------------------------- inspection */

/* Growing bytes of a token and fixed bytes of a sequence, at the engine's own block size. */
static tamis_status add_bytes(const tamis_model *model, tamis_cache_choice *choice,
                              tamis_error *err)
{
    tamis_net_params params = {tamis_cache_params_default(), tamis_plan_params_default(), 1, false};
    tamis_net_bytes bytes = {0};
    params.cache.profile = model->config.profile;
    params.cache.kv_cache_dtype = choice->kv_cache_dtype;
    TAMIS_TRY(tamis_net_measure(&model->config, model->weights, &params, &bytes, err));
    choice->bytes_per_token = bytes.caches.per_block / (uint64_t)params.cache.block_tokens;
    choice->ring_bytes = bytes.caches.per_slot;
    return TAMIS_STATUS_OK;
}

/* errors: UNSUPPORTED if the profile has no such rows */
static tamis_status choose_rows(const tamis_model *model, tamis_dtype dtype,
                                tamis_cache_choice *choice, tamis_error *err)
{
    const tamis_model_config *config = &model->config;
    *choice = (tamis_cache_choice){0};
    for (int32_t i = 0; i < config->num_hidden_layers; i++) {
        tamis_cache_rows rows;
        TAMIS_TRY(tamis_cache_rows_find(&rows, config, i, dtype, err));
        choice->kv_cache_dtype = rows.kv.dtype;
        choice->kv_rows = tamis_row_layout_name(tamis_row_layout_of(&rows.kv));
        choice->kv_row_bytes = rows.kv.row_bytes;
        if (rows.index_key.row_bytes == 0)
            continue;
        choice->index_rows = tamis_row_layout_name(tamis_row_layout_of(&rows.index_key));
        choice->index_row_bytes = rows.index_key.row_bytes;
    }
    return add_bytes(model, choice, err);
}

/* What AUTO takes, then all others that the profile has. */
static tamis_status list_caches(tamis_model *model, tamis_inspection *inspection, tamis_error *err)
{
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_BF16, TAMIS_DTYPE_F32, TAMIS_DTYPE_F8_E4M3,
                                         TAMIS_DTYPE_I8};
    tamis_cache_choice *caches = model->caches;
    int32_t n = 1;
    TAMIS_TRY(choose_rows(model, TAMIS_DTYPE_AUTO, &caches[0], err));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && n < TAMIS_MAX_CACHE_CHOICES; i++)
        if (dtypes[i] != caches[0].kv_cache_dtype &&
            choose_rows(model, dtypes[i], &caches[n], NULL) == TAMIS_STATUS_OK)
            n++;
    inspection->caches = caches;
    inspection->n_caches = n;
    return TAMIS_STATUS_OK;
}

static tamis_status inspect(tamis_model *model, tamis_error *err)
{
    tamis_status st;
    TAMIS_TRY(
        tamis_inspect_build(&model->inspect, model->checkpoint, &model->config, &model->info, err));
    tamis_inspection *i = tamis_inspect_get(model->inspect);
    TAMIS_TRY_GOTO(list_caches(model, i, err));
    TAMIS_TRY_GOTO(tamis_numerics_make(&model->numerics, &model->config, model->weights, err));
    i->numerics = model->numerics.lines;
    i->n_numerics = model->numerics.n_lines;
    return TAMIS_STATUS_OK;
fail:
    tamis_inspect_free(&model->inspect);
    return st;
}

tamis_status tamis_model_inspect(tamis_model *model, const tamis_inspection **out, tamis_error *err)
{
    if (model == NULL || out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "inspect: model or out is NULL");
    if (model->inspect == NULL)
        TAMIS_TRY(inspect(model, err));
    *out = tamis_inspect_get(model->inspect);
    return TAMIS_STATUS_OK;
}
