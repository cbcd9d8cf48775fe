#include "quantize/weight_list.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "weights/names.h"
#include "weights/tensor_matrix.h"

#define MAX_COLS 65535 /* of what the reader accepts: integer sums of 32 bits */

typedef struct list_builder {
    quant_list *list;
    tamis_model *model;
    const tamis_names *names;
    const tamis_quantize_params *params;
    tamis_error *err;
} list_builder;

/* ---------------------------------------------------------------- schemes */

static tamis_quant_scheme without_calibration(tamis_quant_scheme scheme)
{
    return quant_is_fixed(scheme) ? TAMIS_SCHEME_W8A8_DYNAMIC : scheme;
}

static tamis_quant_scheme scheme_of(const tamis_quantize_params *p, tamis_weight weight,
                                    bool is_mtp)
{
    switch (weight) {
    case TAMIS_WEIGHT_WQ_A:
    case TAMIS_WEIGHT_WQ_B:
    case TAMIS_WEIGHT_WKV:
    case TAMIS_WEIGHT_WO_B:
    case TAMIS_WEIGHT_KV_A_PROJ:
    case TAMIS_WEIGHT_O_PROJ:
        return is_mtp ? without_calibration(p->attention) : p->attention;
    case TAMIS_WEIGHT_EXPERT_W1:
    case TAMIS_WEIGHT_EXPERT_W2:
    case TAMIS_WEIGHT_EXPERT_W3:
        return p->experts;
    case TAMIS_WEIGHT_DENSE_W1:
    case TAMIS_WEIGHT_DENSE_W2:
    case TAMIS_WEIGHT_DENSE_W3:
    case TAMIS_WEIGHT_SHARED_W1:
    case TAMIS_WEIGHT_SHARED_W2:
    case TAMIS_WEIGHT_SHARED_W3:
        return is_mtp ? without_calibration(p->others) : p->others;
    case TAMIS_WEIGHT_INDEX_WQ_B:
    case TAMIS_WEIGHT_INDEX_WK:
    case TAMIS_WEIGHT_MTP_EH_PROJ:
    case TAMIS_WEIGHT_MTP_E_PROJ:
    case TAMIS_WEIGHT_MTP_H_PROJ:
        return without_calibration(p->others);
    default:
        return TAMIS_SCHEME_FLOAT;
    }
}

static tamis_status check_fit(const list_builder *b, const quant_weight *w)
{
    const int64_t rows = w->matrix.rows, cols = w->matrix.cols;
    if (w->scheme == TAMIS_SCHEME_FLOAT)
        return TAMIS_STATUS_OK;
    if (cols > MAX_COLS)
        return tamis_fail(b->err, TAMIS_STATUS_INVALID,
                          "%s: has %lld columns, allowed for %s: up to %d", w->tensor->name,
                          (long long)cols, tamis_quant_scheme_name(w->scheme), MAX_COLS);
    if (w->scheme == TAMIS_SCHEME_W4A8_DYNAMIC && rows % 2 != 0)
        return tamis_fail(b->err, TAMIS_STATUS_INVALID,
                          "%s: has %lld rows, allowed for W4A8_DYNAMIC: an even number",
                          w->tensor->name, (long long)rows);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- items */

static tamis_status add_item(const list_builder *b, quant_weight **out)
{
    quant_list *list = b->list;
    if (list->n == list->capacity) {
        const int32_t wanted = list->capacity == 0 ? 256 : 2 * list->capacity;
        const size_t bytes = (size_t)wanted * sizeof *list->items;
        quant_weight *items = tamis_mem_realloc(TAMIS_MEM_MISC, list->items, bytes);
        if (items == NULL)
            return tamis_fail_memory(b->err, "list of weights", bytes);
        list->items = items;
        list->capacity = wanted;
    }
    *out = &list->items[list->n++];
    memset(*out, 0, sizeof **out);
    return TAMIS_STATUS_OK;
}

static bool is_float(tamis_dtype dtype)
{
    return dtype == TAMIS_DTYPE_F32 || dtype == TAMIS_DTYPE_BF16 || dtype == TAMIS_DTYPE_F16;
}

/* FP8, and FP4 in the bytes of I8. */
static bool has_scales(const list_builder *b, const tamis_tensor *tensor)
{
    return (tensor->dtype == TAMIS_DTYPE_F8_E4M3 || tensor->dtype == TAMIS_DTYPE_I8) &&
           tamis_tensor_find_scale(b->model->checkpoint, tensor) != NULL;
}

static tamis_status set_matrix(const list_builder *b, quant_weight *w)
{
    const tamis_tensor *t = w->tensor;
    tamis_tensor *scale;
    if (t->rank != 2 || !(is_float(t->dtype) || has_scales(b, t)))
        return TAMIS_STATUS_OK;
    const bool is_fp4 = t->dtype == TAMIS_DTYPE_I8;
    return tamis_tensor_to_matrix(&w->matrix, b->model->checkpoint, t, &scale, t->shape[0],
                                  is_fp4 ? 2 * t->shape[1] : t->shape[1], is_fp4, b->err);
}

/* How it is written, by its scheme and what it is in the source. */
static void set_form(quant_weight *w)
{
    w->dtype = w->tensor->dtype;
    w->rank = w->tensor->rank;
    memcpy(w->shape, w->tensor->shape, sizeof w->shape);
    if (w->matrix.rows > 0) {
        w->rank = 2;
        w->shape[0] = w->matrix.rows;
        w->shape[1] = w->matrix.cols;
    }
    if (w->scheme != TAMIS_SCHEME_FLOAT)
        w->dtype = w->scheme == TAMIS_SCHEME_W4A8_DYNAMIC ? TAMIS_DTYPE_I4 : TAMIS_DTYPE_I8;
    else if (w->matrix.rows > 0 && w->matrix.scale != NULL)
        w->dtype = TAMIS_DTYPE_BF16;
    else
        w->data = w->matrix.rows > 0 ? w->matrix.data : w->tensor->data;
}

static tamis_status finish_item(const list_builder *b, quant_weight *w, tamis_weight weight,
                                tamis_weight_place place)
{
    tamis_names_spell(b->names, w->name, weight, place, 0);
    w->is_down = weight == TAMIS_WEIGHT_EXPERT_W2;
    w->scheme =
        w->matrix.rows > 0 ? scheme_of(b->params, weight, place.is_mtp) : TAMIS_SCHEME_FLOAT;
    set_form(w);
    return check_fit(b, w);
}

static tamis_tensor *find(const list_builder *b, tamis_weight weight, tamis_weight_place place)
{
    char name[TAMIS_NAME_BYTES];
    for (int i = 0; tamis_names_spell(b->names, name, weight, place, i); i++) {
        tamis_tensor *tensor = tamis_checkpoint_find(b->model->checkpoint, name);
        if (tensor != NULL && tensor->is_used)
            return tensor;
    }
    return NULL;
}

static tamis_status add_weight(const list_builder *b, tamis_weight weight, tamis_weight_place place)
{
    const tamis_tensor *tensor = find(b, weight, place);
    quant_weight *w = NULL;
    if (tensor == NULL)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(add_item(b, &w));
    w->tensor = tensor;
    TAMIS_TRY(set_matrix(b, w));
    return finish_item(b, w, weight, place);
}

/* Rows of all experts in one tensor become the weights of each. */
static tamis_status add_stacked_part(const list_builder *b, const tamis_tensor *tensor,
                                     tamis_weight weight, tamis_weight_place place,
                                     int64_t first_row, int64_t rows)
{
    const int64_t cols = tensor->shape[2];
    const int64_t row_bytes = cols * tamis_dtype_bits(tensor->dtype) / 8;
    quant_weight *w = NULL;
    TAMIS_TRY(add_item(b, &w));
    w->tensor = tensor;
    w->matrix = tamis_tensor_float_matrix(tensor, tensor->data + first_row * row_bytes, rows, cols);
    return finish_item(b, w, weight, place);
}

static tamis_status add_stacked(const list_builder *b, tamis_weight_place place)
{
    const tamis_tensor *up = find(b, TAMIS_WEIGHT_STACKED_GATE_UP, place);
    const tamis_tensor *down = find(b, TAMIS_WEIGHT_STACKED_DOWN, place);
    if (up == NULL || down == NULL)
        return TAMIS_STATUS_OK;
    const int64_t width = up->shape[1] / 2, hidden = down->shape[1];
    for (place.expert = 0; place.expert < up->shape[0]; place.expert++) {
        const int64_t e = place.expert;
        TAMIS_TRY(add_stacked_part(b, up, TAMIS_WEIGHT_EXPERT_W1, place, 2 * e * width, width));
        TAMIS_TRY(add_stacked_part(b, down, TAMIS_WEIGHT_EXPERT_W2, place, e * hidden, hidden));
        TAMIS_TRY(
            add_stacked_part(b, up, TAMIS_WEIGHT_EXPERT_W3, place, (2 * e + 1) * width, width));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status add_layer(const list_builder *b, tamis_weight_place place)
{
    const int last = place.is_mtp ? TAMIS_WEIGHT_DSPARK_MAIN_PROJ : TAMIS_WEIGHT_STACKED_GATE_UP;
    for (int w = TAMIS_WEIGHT_ATTN_NORM; w < last; w++)
        if (w != TAMIS_WEIGHT_STACKED_GATE_UP && w != TAMIS_WEIGHT_STACKED_DOWN)
            TAMIS_TRY(add_weight(b, (tamis_weight)w, place));
    TAMIS_TRY(add_stacked(b, place));
    for (place.expert = 0; place.expert < b->model->config.n_routed_experts; place.expert++)
        for (int w = TAMIS_WEIGHT_EXPERT_W1; w <= TAMIS_WEIGHT_EXPERT_W3; w++)
            TAMIS_TRY(add_weight(b, (tamis_weight)w, place));
    return TAMIS_STATUS_OK;
}

static tamis_status add_all(const list_builder *b)
{
    const int32_t n_layers = b->model->weights->n_layers;
    for (int w = TAMIS_WEIGHT_EMBED; w <= TAMIS_WEIGHT_HC_HEAD_SCALE; w++)
        TAMIS_TRY(add_weight(b, (tamis_weight)w, (tamis_weight_place){0}));
    for (int32_t i = 0; i < n_layers; i++)
        TAMIS_TRY(add_layer(b, (tamis_weight_place){.layer = i}));
    return b->model->weights->n_mtp == 0
               ? TAMIS_STATUS_OK
               : add_layer(b, (tamis_weight_place){.layer = n_layers, .is_mtp = true});
}

tamis_status quant_list_build(quant_list *list, tamis_model *model,
                              const tamis_quantize_params *params, tamis_error *err)
{
    const list_builder b = {list, model, tamis_names_of(model->config.family), params, err};
    *list = (quant_list){0};
    TAMIS_TRY(add_all(&b));
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(model->checkpoint); i++)
        list->n_unused += !tamis_checkpoint_tensor(model->checkpoint, i)->is_used;
    return TAMIS_STATUS_OK;
}

void quant_list_free(quant_list *list)
{
    tamis_mem_free(list->items);
    *list = (quant_list){0};
}
