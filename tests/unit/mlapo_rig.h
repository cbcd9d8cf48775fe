/* A layer that MLAPO can run, and what one run of it leaves: for the tests of MLAPO. */
#ifndef TAMIS_TEST_MLAPO_RIG_H
#define TAMIS_TEST_MLAPO_RIG_H

#include <stdlib.h>

#include "support/engine_run.h"
#include "unit/int8_weights.h"

enum { N = 60 };

/* A layer with W8A8 static projections, a prompt, the fused weights. */
typedef struct subject {
    test_sfa_layer layer;
    tamis_mlapo *mlapo;
    float *x; /* [N][hidden_size] */
} subject;

static inline subject subject_open(test_sfa_family family, bool has_bias, float eps, test_rng *rng)
{
    const tamis_sfa_config c = int8_config(family);
    subject s = {.layer = test_sfa_layer_random(&c, TAMIS_DTYPE_BF16, rng),
                 .x = test_inputs(N, c.hidden_size, rng)};
    tamis_error err;
    int8_make_static(&s.layer, rng);
    int8_to_bf16(s.x, (int64_t)N * c.hidden_size);
    if (has_bias)
        s.layer.layer.weights.q_a_norm_bias =
            test_random_vector(&s.layer.owned, c.q_lora_rank, 0, 0.3f, rng);
    test_must(tamis_mlapo_prepare(&s.mlapo, &s.layer.layer, eps, &err), &err, "prepare");
    return s;
}

static inline void subject_close(subject *s)
{
    tamis_mlapo_free(&s->mlapo);
    assert_null(s->mlapo);
    test_sfa_layer_free(&s->layer);
    free(s->x);
}

/* Everything that one preprocess leaves for a step of n tokens. */
typedef struct result {
    float *q_c, *query_nope, *query_rope, *latent, *key_rope;
    float *query, *rows, *out;
    int32_t *topk;
} result;

static inline result result_take(const tamis_sfa_config *c, int64_t n)
{
    const int64_t heads = n * c->num_heads, row = c->kv_lora_rank + c->qk_rope_head_dim;
    return (result){.q_c = test_take(n * c->q_lora_rank, sizeof(float)),
                    .query_nope = test_take(heads * c->kv_lora_rank, sizeof(float)),
                    .query_rope = test_take(heads * c->qk_rope_head_dim, sizeof(float)),
                    .latent = test_take(n * c->kv_lora_rank, sizeof(float)),
                    .key_rope = test_take(n * c->qk_rope_head_dim, sizeof(float)),
                    .query = test_take(heads * row, sizeof(float)),
                    .rows = test_take(n * row, sizeof(float)),
                    .out = test_take(n * c->hidden_size, sizeof(float)),
                    .topk = test_take(n * c->index_topk, sizeof(int32_t))};
}

static inline void result_free(result *r)
{
    float *arrays[] = {r->q_c,      r->query_nope, r->query_rope, r->latent,
                       r->key_rope, r->query,      r->rows,       r->out};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(r->topk);
}

static inline test_sfa_rig open_rig(const subject *s, tamis_dtype kv_cache_dtype, int n_threads)
{
    const tamis_cache_params params = int8_params(TAMIS_PROFILE_ASCEND, kv_cache_dtype, N, 16);
    test_sfa_rig rig = test_sfa_rig_open(&s->layer.layer, 1, &params, N, n_threads);
    test_sfa_poison(&rig, NAN);
    return rig;
}

static inline void finish_layer(test_sfa_rig *rig, const tamis_sfa_layer *layer, float *out)
{
    tamis_error err;
    test_must(tamis_sfa_select(layer, 0, rig->plan, rig->caches, rig->team, &err), &err, "select");
    test_must(tamis_sfa_attend(layer, 0, rig->plan, rig->caches, NULL, 0, NULL, rig->team, &err),
              &err, "attend");
    test_must(tamis_sfa_output(layer, 0, rig->plan, rig->caches, out, rig->team, &err), &err,
              "output");
}

/* All N tokens in steps of `chunk`, fused or not. */
static inline result run(const subject *s, bool is_fused, tamis_dtype kv_cache_dtype, int n_threads,
                         int32_t chunk, bool halves)
{
    const tamis_sfa_layer *layer = &s->layer.layer;
    const tamis_sfa_config *c = &layer->config;
    const int64_t row = c->kv_lora_rank + c->qk_rope_head_dim, heads = c->num_heads;
    test_sfa_rig rig = open_rig(s, kv_cache_dtype, n_threads);
    test_sfa_seq seq = test_sfa_seq_open(&rig), *seqs[] = {&seq};
    result r = result_take(c, N);
    tamis_error err;
    for (int64_t t = 0; t < N; t += chunk) {
        const int32_t n = N - t < chunk ? (int32_t)(N - t) : chunk;
        const float *x = s->x + t * c->hidden_size;
        const tamis_mlapo_outputs outputs = {
            .q_c = r.q_c + t * c->q_lora_rank,
            .query_nope = r.query_nope + t * heads * c->kv_lora_rank,
            .query_rope = r.query_rope + t * heads * c->qk_rope_head_dim,
            .latent = r.latent + t * c->kv_lora_rank,
            .key_rope = r.key_rope + t * c->qk_rope_head_dim,
            .halves = halves};
        test_sfa_plan(&rig, seqs, &n, 1);
        test_must(is_fused
                      ? tamis_mlapo_preprocess(s->mlapo, layer, 0, rig.plan, rig.caches, x,
                                               &outputs, rig.team, &err)
                      : tamis_sfa_preprocess(layer, 0, rig.plan, rig.caches, x, rig.team, &err),
                  &err, "preprocess");
        memcpy(r.query + t * heads * row, tamis_sfa_plan_query(rig.plan),
               (size_t)(n * heads * row) * sizeof(float));
        finish_layer(&rig, layer, r.out + t * c->hidden_size);
        memcpy(r.topk + t * c->index_topk, tamis_sfa_plan_topk(rig.plan),
               (size_t)n * (size_t)c->index_topk * sizeof(int32_t));
    }
    for (int32_t t = 0; t < N; t++) {
        float *stored = test_sfa_row(&rig, &seq, 0, TAMIS_SFA_LATENT, t);
        memcpy(r.rows + t * row, stored, (size_t)row * sizeof(float));
        free(stored);
    }
    test_sfa_rig_close(&rig);
    return r;
}

#endif
