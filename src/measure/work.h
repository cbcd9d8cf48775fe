/*
 * Operations and bytes of the stages of a layer: what a floor is made of. A multiply-add counts as
 * two operations; bytes are those of weights and cache rows, each counted once per step.
 */
#ifndef TAMIS_MEASURE_WORK_H
#define TAMIS_MEASURE_WORK_H

#include "tamis/bench.h"
#include "weights/model_weights.h"

/* A step of num_tokens tokens of one sequence behind `context` tokens. */
typedef struct tamis_work_step {
    tamis_profile profile;
    int64_t context, num_tokens;
} tamis_work_step;

/* Stages by name, as far as they have a floor. */
typedef struct tamis_work_list {
    int32_t n;
    tamis_bench_stage stages[TAMIS_MAX_BENCH_STAGES];
} tamis_work_list;

/* Attention: project_in, project_q, select, attend, project_out. Row formats are the caches'. */
void tamis_work_dsa(tamis_work_list *list, const tamis_dsa_layer *layer, const tamis_row_format *kv,
                    const tamis_row_format *index_key, const tamis_work_step *step);
void tamis_work_sfa(tamis_work_list *list, const tamis_sfa_layer *layer,
                    const tamis_row_format *latent, const tamis_row_format *index_key,
                    const tamis_work_step *step);
/*
 * Experts: router, experts, shared. n_touched routed experts are read; -1: as many as are expected
 * where every token chooses at random.
 */
void tamis_work_moe(tamis_work_list *list, const tamis_moe_weights *weights, int32_t per_token,
                    double n_touched, const tamis_work_step *step);
/* One matrix over n_tokens tokens. */
void tamis_work_linear(tamis_work_list *list, const char *name, const tamis_matrix *w,
                       const tamis_work_step *step);
/* floor_ms of every stage; returns their sum. */
double tamis_stages_set_floors(tamis_bench_stage *stages, int32_t n, const tamis_roof *roof);

#endif
