#include "measure/work.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/size.h"
#include "measure/random_weights.h"
#include "plan/step.h"

/* The stage of that name, new if need be. */
static tamis_bench_stage *stage_of(tamis_work_list *list, const char *name)
{
    for (int32_t i = 0; i < list->n; i++)
        if (strcmp(list->stages[i].name, name) == 0)
            return &list->stages[i];
    assert(list->n < TAMIS_MAX_BENCH_STAGES);
    list->stages[list->n] = (tamis_bench_stage){.name = name};
    return &list->stages[list->n++];
}

static double matrix_bytes(const tamis_matrix *w)
{
    return (double)(tamis_matrix_data_bytes(w) + tamis_matrix_scale_bytes(w));
}

static bool is_integer(const tamis_matrix *w, const tamis_work_step *step)
{
    return step->profile == TAMIS_PROFILE_ASCEND &&
           (w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4);
}

/* n_rows rows of input meet the matrix. */
static void add_linear(tamis_work_list *list, const char *name, const tamis_matrix *w,
                       double n_rows, const tamis_work_step *step)
{
    tamis_bench_stage *stage = stage_of(list, name);
    const double ops = 2.0 * (double)w->rows * (double)w->cols * n_rows;
    *(is_integer(w, step) ? &stage->int8_ops : &stage->f32_ops) += ops;
    stage->bytes += matrix_bytes(w);
}

void tamis_work_linear(tamis_work_list *list, const char *name, const tamis_matrix *w,
                       const tamis_work_step *step)
{
    add_linear(list, name, w, (double)step->num_tokens, step);
}

/* ---------------------------------------------------------------- selection and attention */

/* Sums over the tokens of the step. */
typedef struct row_counts {
    double visible, listed, scored; /* rows a token may see, attends to, scores */
    double last_visible;
} row_counts;

/* window 0: none; topk 0: all visible rows; ratio 1: every token is a row, 0: no rows. */
static row_counts count_rows(const tamis_work_step *step, int32_t window, int32_t ratio,
                             int32_t topk)
{
    row_counts c = {0};
    for (int64_t t = 0; t < step->num_tokens; t++) {
        const double pos = (double)(step->context + t);
        const double visible = ratio == 0 ? 0 : floor((pos + 1) / ratio);
        const double in_window = fmin(window, pos + 1);
        c.visible += visible;
        c.listed += in_window + (topk > 0 ? fmin(visible, topk) : visible);
        c.scored += topk > 0 && visible > topk ? visible : 0;
        c.last_visible = visible;
    }
    return c;
}

/*
 * A key is read once a step: the tokens of a step share it. Only the products are counted, neither
 * the weighting of the heads nor the choice of the best.
 */
static void add_select(tamis_work_list *list, const row_counts *rows, int32_t heads, int32_t dim,
                       const tamis_row_format *key)
{
    tamis_bench_stage *stage = stage_of(list, "select");
    const bool is_integer = key->dtype == TAMIS_DTYPE_I8 || key->dtype == TAMIS_DTYPE_F4_E2M1;
    *(is_integer ? &stage->int8_ops : &stage->f32_ops) = rows->scored * heads * 2.0 * dim;
    stage->bytes = rows->scored > 0 ? rows->last_visible * key->row_bytes : 0;
}

/* Rows of a step are at most all there are. */
static void add_attend(tamis_work_list *list, const row_counts *rows, double all_rows,
                       int32_t heads, int32_t key_dim, int32_t value_dim,
                       const tamis_row_format *row)
{
    tamis_bench_stage *stage = stage_of(list, "attend");
    stage->f32_ops = rows->listed * heads * 2.0 * (key_dim + value_dim);
    stage->bytes = fmin(rows->listed, all_rows) * row->row_bytes;
}

/* ---------------------------------------------------------------- layers */

void tamis_work_dsa(tamis_work_list *list, const tamis_dsa_layer *layer, const tamis_row_format *kv,
                    const tamis_row_format *index_key, const tamis_work_step *step)
{
    const tamis_dsa_config *c = &layer->config;
    const tamis_dsa_weights *w = &layer->weights;
    const bool has_indexer = c->compress_ratio == 4 && !c->reuse_topk;
    const row_counts rows = count_rows(step, c->sliding_window, c->compress_ratio,
                                       c->compress_ratio == 4 ? c->index_topk : 0);
    tamis_work_linear(list, "project_in", &w->wq_a, step);
    tamis_work_linear(list, "project_in", &w->wkv, step);
    if (c->compress_ratio != 0) {
        tamis_work_linear(list, "project_in", &w->compressor.wkv, step);
        tamis_work_linear(list, "project_in", &w->compressor.wgate, step);
    }
    tamis_work_linear(list, "project_q", &w->wq_b, step);
    if (has_indexer) {
        tamis_work_linear(list, "project_in", &w->index_compressor.wkv, step);
        tamis_work_linear(list, "project_in", &w->index_compressor.wgate, step);
        tamis_work_linear(list, "project_in", &w->index_weights_proj, step);
        tamis_work_linear(list, "project_q", &w->index_wq_b, step);
        add_select(list, &rows, c->index_n_heads, c->index_head_dim, index_key);
    }
    add_attend(list, &rows, (double)(step->num_tokens + c->sliding_window) + rows.last_visible,
               c->num_heads, c->head_dim, c->head_dim, kv);
    tamis_work_linear(list, "project_out", &w->wo_a, step);
    tamis_work_linear(list, "project_out", &w->wo_b, step);
}

void tamis_work_sfa(tamis_work_list *list, const tamis_sfa_layer *layer,
                    const tamis_row_format *latent, const tamis_row_format *index_key,
                    const tamis_work_step *step)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    const row_counts rows = count_rows(step, 0, 1, c->index_topk);
    tamis_work_linear(list, "project_in", &w->q_a_proj, step);
    tamis_work_linear(list, "project_in", &w->kv_a_proj, step);
    tamis_work_linear(list, "project_q", &w->q_b_proj, step);
    if (c->index_topk > 0 && !c->reuse_topk) {
        tamis_work_linear(list, "project_in", &w->index_wk, step);
        tamis_work_linear(list, "project_in", &w->index_weights_proj, step);
        tamis_work_linear(list, "project_q", &w->index_wq_b, step);
        add_select(list, &rows, c->index_n_heads, c->index_head_dim, index_key);
    }
    /* kv_b is read twice: its key rows with the query, its value rows with the output. */
    const double key_share =
        (double)c->qk_nope_head_dim / (double)(c->qk_nope_head_dim + c->v_head_dim);
    tamis_bench_stage *absorb = stage_of(list, "project_q");
    const double bytes = matrix_bytes(&w->kv_b_proj);
    const double ops =
        2.0 * (double)w->kv_b_proj.rows * (double)w->kv_b_proj.cols * (double)step->num_tokens;
    absorb->f32_ops += ops * key_share;
    absorb->bytes += bytes * key_share;
    add_attend(list, &rows, rows.last_visible, c->num_heads, c->kv_lora_rank + c->qk_rope_head_dim,
               c->kv_lora_rank, latent);
    tamis_work_linear(list, "project_out", &w->o_proj, step);
    tamis_bench_stage *up = stage_of(list, "project_out");
    up->f32_ops += ops * (1 - key_share);
    up->bytes += bytes * (1 - key_share);
}

void tamis_work_moe(tamis_work_list *list, const tamis_moe_weights *weights, int32_t per_token,
                    double n_touched, const tamis_work_step *step)
{
    const tamis_expert_weights *shared = &weights->shared;
    const double n = (double)step->num_tokens, n_experts = (double)weights->gate.rows;
    if (n_experts > 0) {
        tamis_work_linear(list, "router", &weights->gate, step);
        if (n_touched < 0)
            n_touched = n_experts * (1 - pow(1 - per_token / n_experts, n));
        const tamis_expert_weights *e = &weights->experts[0];
        const tamis_matrix *matrices[] = {&e->w1, &e->w3, &e->w2};
        for (int i = 0; i < 3; i++) {
            tamis_bench_stage *stage = stage_of(list, "experts");
            add_linear(list, "experts", matrices[i], n * per_token, step);
            stage->bytes += matrix_bytes(matrices[i]) * (n_touched - 1);
        }
    }
    if (shared->w1.rows > 0) {
        tamis_work_linear(list, "shared", &shared->w1, step);
        tamis_work_linear(list, "shared", &shared->w3, step);
        tamis_work_linear(list, "shared", &shared->w2, step);
    }
}

double tamis_stages_set_floors(tamis_bench_stage *stages, int32_t n, const tamis_roof *roof)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        tamis_bench_stage *s = &stages[i];
        const double compute = s->f32_ops / roof->f32_gflops + s->int8_ops / roof->int8_gops;
        s->floor_ms = fmax(s->bytes / roof->stream_gbs, compute) * 1e-6;
        sum += s->floor_ms;
    }
    return sum;
}
