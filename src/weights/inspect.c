#include "weights/inspect.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "weights/quant_names.h"
#include "weights/tensor_matrix.h"

#define MAX_FORMAT_BYTES 48

/* One row while it is built; rows are few, so they are found by walking. */
typedef struct inspect_row {
    char format[MAX_FORMAT_BYTES];
    tamis_weight_group group;
    tamis_tensor_group sum;
} inspect_row;

struct tamis_inspect {
    tamis_inspection inspection;
    inspect_row *rows;
    int32_t n_rows, max_rows;
    tamis_tensor_group *groups;
    int32_t *layer_ratios;
    const char **layer_attention, **layer_mlp, **unused;
};

/* ---------------------------------------------------------------- what a tensor is */

/* By the folder's description; FLOAT for a scheme that binding has refused, or never looked at. */
static tamis_quant_scheme scheme_of(const tamis_checkpoint *checkpoint, const tamis_tensor *tensor)
{
    const tamis_quant_description *d = tamis_checkpoint_description(checkpoint);
    tamis_quant_scheme scheme = TAMIS_SCHEME_FLOAT;
    if (d == NULL || tensor->dtype != TAMIS_DTYPE_I8 ||
        tamis_quant_description_scheme(d, tensor->name, &scheme, NULL) != TAMIS_STATUS_OK)
        return TAMIS_SCHEME_FLOAT;
    return scheme;
}

/* The quantised weight beside which the tensor stands, or NULL. */
static tamis_tensor *quantised_owner_of(tamis_checkpoint *checkpoint, const tamis_tensor *tensor)
{
    char name[TAMIS_NAME_BYTES];
    tamis_tensor *owner =
        tamis_companion_owner(name, tensor->name) ? tamis_checkpoint_find(checkpoint, name) : NULL;
    return owner != NULL && scheme_of(checkpoint, owner) != TAMIS_SCHEME_FLOAT ? owner : NULL;
}

/* The weight that these scales belong to, or NULL. */
static tamis_tensor *owner_of(tamis_checkpoint *checkpoint, const tamis_tensor *tensor)
{
    char name[TAMIS_NAME_BYTES];
    tamis_tensor *quantised = quantised_owner_of(checkpoint, tensor);
    if (quantised != NULL)
        return quantised;
    tamis_tensor *owner =
        tamis_scale_owner(name, tensor->name) ? tamis_checkpoint_find(checkpoint, name) : NULL;
    return owner != NULL && tamis_tensor_find_scale(checkpoint, owner) == tensor ? owner : NULL;
}

/* I8 with 16 bytes per scale along a row: two FP4 values per byte. */
static bool is_fp4(const tamis_tensor *tensor, const tamis_tensor *scale)
{
    return tensor->dtype == TAMIS_DTYPE_I8 && scale != NULL && tensor->rank == 2 &&
           scale->rank == 2 && tensor->shape[0] == scale->shape[0] && tensor->shape[1] % 16 == 0 &&
           tensor->shape[1] / 16 == scale->shape[1];
}

static void name_format(char out[MAX_FORMAT_BYTES], const tamis_tensor *tensor,
                        const tamis_tensor *scale, tamis_quant_scheme scheme)
{
    const bool is_int4 = scheme == TAMIS_SCHEME_W4A8_DYNAMIC;
    if (scheme != TAMIS_SCHEME_FLOAT)
        snprintf(out, MAX_FORMAT_BYTES, "%s, %s",
                 tamis_dtype_name(is_int4 ? TAMIS_DTYPE_I4 : TAMIS_DTYPE_I8),
                 tamis_quant_scheme_name(scheme));
    else if (scale == NULL)
        snprintf(out, MAX_FORMAT_BYTES, "%s", tamis_dtype_name(tensor->dtype));
    else if (is_fp4(tensor, scale))
        snprintf(out, MAX_FORMAT_BYTES, "%s + %s per 1x32", tamis_dtype_name(TAMIS_DTYPE_F4_E2M1),
                 tamis_dtype_name(scale->dtype));
    else if (tensor->dtype == TAMIS_DTYPE_F8_E4M3)
        snprintf(out, MAX_FORMAT_BYTES, "%s + %s per 128x128", tamis_dtype_name(tensor->dtype),
                 tamis_dtype_name(scale->dtype));
    else
        snprintf(out, MAX_FORMAT_BYTES, "%s + %s", tamis_dtype_name(tensor->dtype),
                 tamis_dtype_name(scale->dtype));
}

/* Wide integers are tables of ids (tid2eid), which no training moved; I4 is stored two by two. */
static int64_t count_params(const tamis_tensor *tensor, const tamis_tensor *scale,
                            tamis_quant_scheme scheme)
{
    if (tensor->dtype == TAMIS_DTYPE_I64 || tensor->dtype == TAMIS_DTYPE_I32)
        return 0;
    const int64_t n = (int64_t)(tensor->bytes * 8 / (uint64_t)tamis_dtype_bits(tensor->dtype));
    return scheme == TAMIS_SCHEME_W4A8_DYNAMIC || is_fp4(tensor, scale) ? 2 * n : n;
}

/* ---------------------------------------------------------------- rows */

static tamis_status find_row(tamis_inspect *inspect, tamis_weight_group group, const char *format,
                             bool is_used, inspect_row **out, tamis_error *err)
{
    for (int32_t i = 0; i < inspect->n_rows; i++) {
        inspect_row *row = &inspect->rows[i];
        if (row->group == group && row->sum.is_used == is_used &&
            strcmp(row->format, format) == 0) {
            *out = row;
            return TAMIS_STATUS_OK;
        }
    }
    if (inspect->n_rows == inspect->max_rows) {
        const int32_t wanted = inspect->max_rows == 0 ? 32 : 2 * inspect->max_rows;
        const size_t bytes = (size_t)wanted * sizeof *inspect->rows;
        inspect_row *rows = tamis_mem_realloc(TAMIS_MEM_MISC, inspect->rows, bytes);
        if (rows == NULL)
            return tamis_fail_memory(err, "inspection", bytes);
        inspect->rows = rows;
        inspect->max_rows = wanted;
    }
    inspect_row *row = &inspect->rows[inspect->n_rows++];
    *row = (inspect_row){.group = group, .sum = {.is_used = is_used}};
    snprintf(row->format, sizeof row->format, "%s", format);
    *out = row;
    return TAMIS_STATUS_OK;
}

/* A DSpark drafter has taken over the names of an MTP block. */
static tamis_weight_group group_of(const tamis_inspect *inspect, const tamis_model_config *config,
                                   const char *name)
{
    const tamis_model_info *info = inspect->inspection.info;
    const tamis_weight_group group = tamis_tensor_place_of(config, name).group;
    const bool is_dspark =
        info != NULL && info->drafter != NULL && strcmp(info->drafter, "dspark") == 0;
    return group == TAMIS_GROUP_MTP && is_dspark ? TAMIS_GROUP_DSPARK : group;
}

static tamis_status add_tensor(tamis_inspect *inspect, tamis_checkpoint *checkpoint,
                               const tamis_model_config *config, tamis_tensor *tensor,
                               tamis_error *err)
{
    char format[MAX_FORMAT_BYTES];
    inspect_row *row = NULL;
    tamis_tensor *owner = owner_of(checkpoint, tensor);
    tamis_tensor *weight = owner != NULL ? owner : tensor;
    tamis_tensor *scale = owner != NULL ? tensor : tamis_tensor_find_scale(checkpoint, tensor);
    const tamis_quant_scheme scheme = scheme_of(checkpoint, weight);
    const int64_t n_params = owner != NULL ? 0 : count_params(tensor, scale, scheme);
    name_format(format, weight, scale, scheme);
    TAMIS_TRY(find_row(inspect, group_of(inspect, config, weight->name), format, weight->is_used,
                       &row, err));
    row->sum.n_tensors++;
    row->sum.n_params += n_params;
    row->sum.bytes += tensor->bytes;
    inspect->inspection.n_tensors++;
    inspect->inspection.n_params += n_params;
    inspect->inspection.tensor_bytes += tensor->bytes;
    if (!tensor->is_used)
        inspect->unused[inspect->inspection.n_unused++] = tensor->name;
    return TAMIS_STATUS_OK;
}

/* Rows in the order of the groups; within a group as they were met. */
static tamis_status order_rows(tamis_inspect *inspect, tamis_error *err)
{
    const size_t n = (size_t)inspect->n_rows;
    int32_t n_groups = 0;
    inspect->groups = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *inspect->groups);
    if (inspect->groups == NULL)
        return tamis_fail_memory(err, "inspection", n * sizeof *inspect->groups);
    for (int group = 0; group < TAMIS_NUM_GROUPS; group++)
        for (int32_t i = 0; i < inspect->n_rows; i++) {
            inspect_row *row = &inspect->rows[i];
            if ((int)row->group != group)
                continue;
            row->sum.name = tamis_weight_group_name(row->group);
            row->sum.dtype = row->format;
            inspect->groups[n_groups++] = row->sum;
        }
    inspect->inspection.groups = inspect->groups;
    inspect->inspection.n_groups = n_groups;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- build */

static tamis_status take_arrays(tamis_inspect *inspect, int32_t n_layers, int32_t n_tensors,
                                tamis_error *err)
{
    const size_t layers = (size_t)n_layers, tensors = (size_t)n_tensors;
    inspect->layer_ratios = tamis_mem_array(TAMIS_MEM_MISC, layers, sizeof(int32_t));
    inspect->layer_attention = tamis_mem_array(TAMIS_MEM_MISC, layers, sizeof(char *));
    inspect->layer_mlp = tamis_mem_array(TAMIS_MEM_MISC, layers, sizeof(char *));
    inspect->unused = tamis_mem_array(TAMIS_MEM_MISC, tensors, sizeof(char *));
    if (inspect->layer_ratios == NULL || inspect->layer_attention == NULL ||
        inspect->layer_mlp == NULL || inspect->unused == NULL)
        return tamis_fail_memory(err, "inspection", tensors * sizeof(char *));
    return TAMIS_STATUS_OK;
}

static const char *attention_of(const tamis_model_config *config, int32_t layer)
{
    if (config->family != TAMIS_FAMILY_DEEPSEEK_V4)
        return config->index_topk == 0 ? "all" : config->reuse_topk[layer] ? "shared" : "full";
    const int32_t ratio = config->compress_ratios[layer];
    return ratio == 0 ? "window" : ratio == 4 ? "C4" : "C128";
}

static void describe_layers(tamis_inspect *inspect, const tamis_model_config *config)
{
    tamis_inspection *inspection = &inspect->inspection;
    for (int32_t i = 0; i < config->num_hidden_layers; i++) {
        inspect->layer_ratios[i] = config->compress_ratios[i];
        inspect->layer_attention[i] = attention_of(config, i);
        inspect->layer_mlp[i] = config->is_hash_layer[i]    ? "hash"
                                : config->is_dense_layer[i] ? "dense"
                                                            : "learned";
    }
    inspection->layer_ratios =
        config->family == TAMIS_FAMILY_DEEPSEEK_V4 ? inspect->layer_ratios : NULL;
    inspection->layer_attention = inspect->layer_attention;
    inspection->layer_mlp = inspect->layer_mlp;
    inspection->unused = inspect->unused;
}

tamis_status tamis_inspect_build(tamis_inspect **out, tamis_checkpoint *checkpoint,
                                 const tamis_model_config *config, const tamis_model_info *info,
                                 tamis_error *err)
{
    tamis_status st;
    const int32_t n = tamis_checkpoint_num_tensors(checkpoint);
    *out = NULL;
    tamis_inspect *inspect = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *inspect);
    if (inspect == NULL)
        return tamis_fail_memory(err, "inspection", sizeof *inspect);
    TAMIS_TRY_GOTO(take_arrays(inspect, config->num_hidden_layers, n, err));
    inspect->inspection.info = info;
    describe_layers(inspect, config);
    for (int32_t i = 0; i < n; i++)
        TAMIS_TRY_GOTO(
            add_tensor(inspect, checkpoint, config, tamis_checkpoint_tensor(checkpoint, i), err));
    TAMIS_TRY_GOTO(order_rows(inspect, err));
    *out = inspect;
    return TAMIS_STATUS_OK;
fail:
    tamis_inspect_free(&inspect);
    return st;
}

tamis_inspection *tamis_inspect_get(tamis_inspect *inspect)
{
    return &inspect->inspection;
}

void tamis_inspect_free(tamis_inspect **inspect)
{
    if (*inspect == NULL)
        return;
    tamis_mem_free((*inspect)->rows);
    tamis_mem_free((*inspect)->groups);
    tamis_mem_free((*inspect)->layer_ratios);
    tamis_mem_free((void *)(*inspect)->layer_attention);
    tamis_mem_free((void *)(*inspect)->layer_mlp);
    tamis_mem_free((void *)(*inspect)->unused);
    tamis_mem_free(*inspect);
    *inspect = NULL;
}
