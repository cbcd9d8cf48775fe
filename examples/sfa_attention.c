/*
 * One DeepSeek-V3.2 / GLM-5 attention layer in somebody else's engine: own weights, own block table,
 * own batch; tamis brings the caches, the plan and the layer's operators. A prompt is read in one
 * step, then tokens follow one at a time; outputs and selections do not depend on that cut.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tamis/sfa.h"

/* The layer operator by operator, as an engine would that wants the selection or the LSE between
 * them; tamis_sfa_forward is the same in one call. lse [n][num_heads] of this step's tokens. */
static tamis_status run_step(const tamis_sfa_layer *layer, tamis_sfa_plan *plan,
                             tamis_sfa_caches *caches, const float *x, float *out, float *lse,
                             tamis_team *team, tamis_error *err)
{
    tamis_status st = tamis_sfa_preprocess(layer, 0, plan, caches, x, team, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_sfa_select(layer, 0, plan, caches, team, err);
    if (st == TAMIS_STATUS_OK) /* NULL: attend to what was selected */
        st = tamis_sfa_attend(layer, 0, plan, caches, NULL, 0, lse, team, err);
    return st == TAMIS_STATUS_OK ? tamis_sfa_output(layer, 0, plan, caches, out, team, err) : st;
}

/*
 * x [n_tokens][hidden_size] -> out: a first step of n_prompt tokens, the others one by one.
 * `layer` is the only layer of the model here; an engine opens caches and plan once for all.
 */
static tamis_status run_layer(const tamis_sfa_layer *layer, tamis_dtype kv_cache_dtype,
                              int32_t n_prompt, int32_t n_tokens, const float *x, float *out,
                              float *lse, int n_threads, tamis_error *err)
{
    const int64_t hidden = layer->config.hidden_size, heads = layer->config.num_heads;
    int32_t table[64]; /* blocks of our one sequence: ours to choose, here backwards */
    tamis_cache_params cache_params = tamis_cache_params_default();
    cache_params.block_tokens = 64;
    const int32_t n_blocks = (n_tokens + cache_params.block_tokens - 1) / cache_params.block_tokens;
    if (n_blocks > 64)
        return TAMIS_STATUS_LIMIT;
    for (int32_t i = 0; i < n_blocks; i++)
        table[i] = n_blocks - i; /* never 0, the null block */
    cache_params.kv_cache_dtype = kv_cache_dtype;
    cache_params.num_blocks = n_blocks + 1;
    tamis_plan_params plan_params = tamis_plan_params_default();
    plan_params.max_num_batched_tokens = n_prompt > 1 ? n_prompt : 1;
    plan_params.max_model_len = n_tokens;
    plan_params.n_threads = n_threads;

    /* At start: shapes are checked, all memory is taken. */
    tamis_team *team = NULL;
    tamis_sfa_caches *caches = NULL;
    tamis_sfa_plan *plan = NULL;
    tamis_status st = tamis_sfa_layer_check(layer, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_team_open(&team, n_threads, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_sfa_caches_open(&caches, &layer->config, 1, &cache_params, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_sfa_plan_open(&plan, caches, &plan_params, err);

    /* Every step: describe the batch, plan it (this may fail), run the layers. */
    for (int32_t done = 0, n; st == TAMIS_STATUS_OK && done < n_tokens; done += n) {
        n = done == 0 && n_prompt > 0 ? n_prompt : 1;
        const int32_t query_start_loc[2] = {0, n}, seq_lens[1] = {done + n};
        const tamis_batch batch = {.num_reqs = 1, .query_start_loc = query_start_loc,
                                   .seq_lens = seq_lens, .block_table = table,
                                   .block_table_stride = n_blocks};
        st = tamis_sfa_plan_build(plan, &batch, err);
        if (st == TAMIS_STATUS_OK)
            st = run_step(layer, plan, caches, x + done * hidden, out + done * hidden,
                          lse + done * heads, team, err);
    }
    tamis_sfa_plan_close(&plan);
    tamis_sfa_caches_close(&caches);
    tamis_team_close(&team);
    return st;
}

static float *owned[32]; /* freed at the end */
static int n_owned;

static float *random_floats(int64_t n, float factor)
{
    static uint64_t state = 1;
    float *x = owned[n_owned++] = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x != NULL && i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        x[i] = factor * ((float)(state >> 40) * 0x1p-23f - 1.0f);
    }
    return x;
}

/* A [rows][cols] weight in BF16, as in a checkpoint; F32, and FP8 with scales, work as well. */
static tamis_matrix matrix(int64_t rows, int64_t cols)
{
    float *x = random_floats(rows * cols, 0.1f);
    for (int64_t i = 0; x != NULL && i < rows * cols; i++)
        memcpy((char *)x + 2 * i, (char *)(x + i) + 2, 2); /* upper half of an f32 */
    return (tamis_matrix){.dtype = TAMIS_DTYPE_BF16, .rows = rows, .cols = cols, .data = x,
                          .row_bytes = cols * 2};
}

int main(void)
{
    enum { HIDDEN = 128, HEADS = 4, RANK = 96, LATENT = 64, NOPE = 32, ROPE = 16, V = 40,
           INDEX_HEADS = 4, INDEX_DIM = 32, N = 300 /* tokens */ };
    const tamis_sfa_layer layer = {
        .config = {.hidden_size = HIDDEN, .num_heads = HEADS, .q_lora_rank = RANK,
                   .kv_lora_rank = LATENT, .qk_nope_head_dim = NOPE, .qk_rope_head_dim = ROPE,
                   .v_head_dim = V, .index_n_heads = INDEX_HEADS, .index_head_dim = INDEX_DIM,
                   .index_topk = 32, .rms_norm_eps = 1e-6f,
                   .softmax_scale = tamis_sfa_softmax_scale(NOPE + ROPE, 1, 0),
                   .rope = {.theta = 10000, .yarn_factor = 1}},
        .weights = {.q_a_proj = matrix(RANK, HIDDEN),
                    .q_b_proj = matrix(HEADS * (NOPE + ROPE), RANK),
                    .kv_a_proj = matrix(LATENT + ROPE, HIDDEN),
                    .kv_b_proj = matrix(HEADS * (NOPE + V), LATENT),
                    .o_proj = matrix(HIDDEN, HEADS * V),
                    .q_a_norm = random_floats(RANK, 1), .kv_a_norm = random_floats(LATENT, 1),
                    .index_wq_b = matrix(INDEX_HEADS * INDEX_DIM, RANK),
                    .index_wk = matrix(INDEX_DIM, HIDDEN),
                    .index_weights_proj = matrix(INDEX_HEADS, HIDDEN),
                    .index_k_norm = random_floats(INDEX_DIM, 1),
                    .index_k_norm_bias = random_floats(INDEX_DIM, 1)}};
    float *x = random_floats(N * HIDDEN, 1), *out = random_floats(N * HIDDEN, 0);
    float *lse = random_floats(N * HEADS, 0);
    uint32_t sum = 0, bits;
    tamis_error err = {.text = "no memory"};
    const tamis_status st = run_layer(&layer, TAMIS_DTYPE_BF16, 200, N, x, out, lse, 2, &err);
    for (int i = 0; i < N * HIDDEN; i++)
        sum = sum * 31 + (memcpy(&bits, &out[i], 4), bits);
    if (st == TAMIS_STATUS_OK)
        printf("%d tokens, checksum of the outputs' bits: %08" PRIx32 ", last lse %.4f\n", N, sum,
               (double)lse[N * HEADS - 1]);
    else
        fprintf(stderr, "%s\n", err.text);
    while (n_owned > 0)
        free(owned[--n_owned]);
    return st != TAMIS_STATUS_OK;
}
