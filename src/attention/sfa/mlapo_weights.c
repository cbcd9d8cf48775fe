/* The weights of a layer in MLAPO's order. Source: sfa_v1.py _process_weights_for_fused_mlapo. */
#include <math.h>
#include <string.h>

#include "attention/common/profile_checks.h"
#include "attention/sfa/caches.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/mem.h"

/* What tamis_mlapo_prepare allocates: one block, the arrays behind it. */
typedef struct mlapo_object {
    tamis_mlapo shown; /* first: what the caller holds */
    tamis_static_quant qkv_a, q_b;
} mlapo_object;

/* ---------------------------------------------------------------- checks */

static tamis_status check_static(const char *name, const tamis_matrix *w, tamis_error *err)
{
    if (w->dtype != TAMIS_DTYPE_I8 || w->input == NULL)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "mlapo: %s is %s%s, allowed I8 with an input scale (W8A8 static)", name,
                          tamis_dtype_name(w->dtype),
                          w->dtype == TAMIS_DTYPE_I8 ? " without an input scale" : "");
    return tamis_check_profile_matrix("mlapo", name, w, TAMIS_PROFILE_ASCEND, err);
}

static tamis_status check_weights(const tamis_sfa_weights *w, float eps, tamis_error *err)
{
    TAMIS_TRY(check_static("q_a_proj", &w->q_a_proj, err));
    TAMIS_TRY(check_static("kv_a_proj", &w->kv_a_proj, err));
    TAMIS_TRY(check_static("q_b_proj", &w->q_b_proj, err));
    const tamis_static_quant *q = w->q_a_proj.input, *kv = w->kv_a_proj.input;
    if (q->input_scale != kv->input_scale || q->input_offset != kv->input_offset)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "mlapo: kv_a_proj has input_scale %g and input_offset %g, must be "
                          "q_a_proj's %g and %g",
                          (double)kv->input_scale, (double)kv->input_offset, (double)q->input_scale,
                          (double)q->input_offset);
    if (!(eps > 0) || !isfinite(eps))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "mlapo: eps is %g, must be above 0 and finite",
                          (double)eps);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- reordering */

/* Row of the unpermuted part that stands at `row`: even rows, then odd ones (trans_rope_weight). */
static int64_t rotated_row(int64_t row, int64_t rope)
{
    return row < rope / 2 ? 2 * row : 2 * (row - rope / 2) + 1;
}

static void copy_row(tamis_matrix *to, int64_t to_row, const tamis_matrix *from, int64_t from_row)
{
    const tamis_static_quant *quant = to->input;
    memcpy((int8_t *)to->data + to_row * to->row_bytes,
           (const int8_t *)from->data + from_row * from->row_bytes, (size_t)from->cols);
    ((float *)quant->deq_scale)[to_row] = from->input->deq_scale[from_row];
    ((int32_t *)quant->quant_bias)[to_row] = from->input->quant_bias[from_row];
}

/* n rows whose last `rope` are rotated, from from_row on to to_row on. */
static void copy_rotated(tamis_matrix *to, int64_t to_row, const tamis_matrix *from,
                         int64_t from_row, int64_t n, int64_t rope)
{
    const int64_t plain = n - rope;
    for (int64_t i = 0; i < plain; i++)
        copy_row(to, to_row + i, from, from_row + i);
    for (int64_t i = 0; i < rope; i++)
        copy_row(to, to_row + plain + i, from, from_row + plain + rotated_row(i, rope));
}

static void fill(mlapo_object *object, const tamis_sfa_layer *layer)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    const int64_t kv_rows = tamis_sfa_row_values(c), rope = c->qk_rope_head_dim;
    const int64_t qk = c->qk_nope_head_dim + rope;
    tamis_matrix *qkv_a = &object->shown.qkv_a_proj;
    copy_rotated(qkv_a, 0, &w->kv_a_proj, 0, kv_rows, rope);
    for (int64_t i = 0; i < c->q_lora_rank; i++)
        copy_row(qkv_a, kv_rows + i, &w->q_a_proj, i);
    for (int64_t h = 0; h < c->num_heads; h++)
        copy_rotated(&object->shown.q_b_proj, h * qk, &w->q_b_proj, h * qk, qk, rope);
}

/* ---------------------------------------------------------------- object */

/* A matrix with room for its rows; quant: of its input. */
static tamis_matrix lay_out_matrix(tamis_arena *arena, int64_t rows, int64_t cols,
                                   const tamis_static_quant *like, tamis_static_quant *quant)
{
    const size_t n = (size_t)rows;
    quant->input_scale = like->input_scale;
    quant->input_offset = like->input_offset;
    quant->deq_scale = tamis_arena_take(arena, n, sizeof(float));
    quant->quant_bias = tamis_arena_take(arena, n, sizeof(int32_t));
    return (tamis_matrix){.dtype = TAMIS_DTYPE_I8,
                          .rows = rows,
                          .cols = cols,
                          .data = tamis_arena_take(arena, n * (size_t)cols, sizeof(int8_t)),
                          .row_bytes = cols,
                          .input = quant};
}

/* Carves (or measures) the object and its arrays; `quants` are where measuring leaves them. */
static mlapo_object *lay_out(tamis_arena *arena, const tamis_sfa_layer *layer,
                             mlapo_object *measured)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    mlapo_object *object = tamis_arena_take(arena, 1, sizeof *object);
    mlapo_object *to = arena->base == NULL ? measured : object;
    to->shown.qkv_a_proj = lay_out_matrix(arena, tamis_sfa_row_values(c) + c->q_lora_rank,
                                          c->hidden_size, w->q_a_proj.input, &to->qkv_a);
    to->shown.q_b_proj =
        lay_out_matrix(arena, w->q_b_proj.rows, c->q_lora_rank, w->q_b_proj.input, &to->q_b);
    return object;
}

tamis_status tamis_mlapo_prepare(tamis_mlapo **out, const tamis_sfa_layer *layer, float eps,
                                 tamis_error *err)
{
    mlapo_object measured;
    tamis_arena arena = {0};
    *out = NULL;
    TAMIS_TRY(tamis_sfa_layer_check(layer, err));
    TAMIS_TRY(check_weights(&layer->weights, eps, err));
    lay_out(&arena, layer, &measured);
    const size_t bytes = arena.used;
    arena = (tamis_arena){.base = tamis_mem_alloc(TAMIS_MEM_WEIGHTS, bytes), .bytes = bytes};
    if (arena.base == NULL)
        return tamis_fail_memory(err, "MLAPO weights", bytes);
    mlapo_object *object = lay_out(&arena, layer, &measured);
    object->shown.eps = eps;
    fill(object, layer);
    *out = &object->shown;
    return TAMIS_STATUS_OK;
}

void tamis_mlapo_free(tamis_mlapo **mlapo)
{
    if (mlapo == NULL)
        return;
    tamis_mem_free(*mlapo); /* the object's first field */
    *mlapo = NULL;
}
