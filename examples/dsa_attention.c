/*
 * One DeepSeek-V4 attention layer in somebody else's engine: own weights, own block table, own
 * batch; tamis brings the caches, the plan and the layer. A prompt is read in one step, then
 * tokens follow one at a time; the layer's outputs do not depend on that cut.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tamis/dsa.h"

/*
 * x [n_tokens][hidden_size] -> out: a first step of n_prompt tokens, the others one by one.
 * `layer` is the only layer of the model here; an engine opens caches and plan once for all.
 */
static tamis_status run_layer(const tamis_dsa_layer *layer, tamis_dtype kv_cache_dtype,
                              int32_t n_prompt, int32_t n_tokens, const float *x, float *out,
                              int n_threads, tamis_error *err)
{
    const int64_t hidden = layer->config.hidden_size;
    int32_t table[64]; /* blocks of our one sequence: ours to choose, here backwards */
    tamis_cache_params cache_params = tamis_cache_params_default();
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
    tamis_dsa_caches *caches = NULL;
    tamis_dsa_plan *plan = NULL;
    tamis_status st = tamis_dsa_layer_check(layer, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_team_open(&team, n_threads, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_dsa_caches_open(&caches, &layer->config, 1, &cache_params, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_dsa_plan_open(&plan, caches, &plan_params, err);

    /* Every step: describe the batch, plan it (this may fail), run the layers (only NaN or misuse stops them). */
    for (int32_t done = 0, n; st == TAMIS_STATUS_OK && done < n_tokens; done += n) {
        n = done == 0 && n_prompt > 0 ? n_prompt : 1;
        const int32_t query_start_loc[2] = {0, n}, seq_lens[1] = {done + n}, slots[1] = {0};
        const tamis_batch batch = {.num_reqs = 1, .query_start_loc = query_start_loc,
                                   .seq_lens = seq_lens, .block_table = table,
                                   .block_table_stride = n_blocks, .slots = slots};
        st = tamis_dsa_plan_build(plan, &batch, err);
        if (st == TAMIS_STATUS_OK)
            st = tamis_dsa_forward(layer, 0, plan, caches, x + done * hidden, out + done * hidden,
                                   team, err);
    }
    tamis_dsa_plan_close(&plan);
    tamis_dsa_caches_close(&caches);
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

/* A [rows][cols] weight in BF16, as in a checkpoint; F32, FP8 with scales and FP4 work as well. */
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
    enum { HIDDEN = 128, HEADS = 4, DIM = 64, RANK = 96, GROUPS = 2, LOW = 48, RATIO = 128,
           N = 300 /* tokens */ };
    const tamis_dsa_layer layer = {
        .config = {.hidden_size = HIDDEN, .num_heads = HEADS, .head_dim = DIM, .rope_head_dim = 32,
                   .q_lora_rank = RANK, .o_groups = GROUPS, .o_lora_rank = LOW,
                   .sliding_window = 16, .compress_ratio = RATIO, .rms_norm_eps = 1e-6f,
                   .rope = {.theta = 160000, .yarn_factor = 1}},
        .weights = {.wq_a = matrix(RANK, HIDDEN), .wq_b = matrix(HEADS * DIM, RANK),
                    .wkv = matrix(DIM, HIDDEN), .wo_a = matrix(GROUPS * LOW, HEADS * DIM / GROUPS),
                    .wo_b = matrix(HIDDEN, GROUPS * LOW), .q_norm = random_floats(RANK, 1),
                    .kv_norm = random_floats(DIM, 1), .attn_sink = random_floats(HEADS, 1),
                    .compressor = {.wkv = matrix(DIM, HIDDEN), .wgate = matrix(DIM, HIDDEN),
                                   .ape = random_floats(RATIO * DIM, 1),
                                   .norm = random_floats(DIM, 1)}}};
    float *x = random_floats(N * HIDDEN, 1), *out = random_floats(N * HIDDEN, 0);
    uint32_t sum = 0, bits;
    tamis_error err = {.text = "a NaN or infinity came up"};
    const tamis_status st = run_layer(&layer, TAMIS_DTYPE_BF16, 200, N, x, out, 2, &err);
    for (int i = 0; i < N * HIDDEN; i++)
        sum = sum * 31 + (memcpy(&bits, &out[i], 4), bits);
    if (st == TAMIS_STATUS_OK)
        printf("%d tokens, checksum of the outputs' bits: %08" PRIx32 "\n", N, sum);
    else
        fprintf(stderr, "%s\n", err.text);
    while (n_owned > 0)
        free(owned[--n_owned]);
    return st != TAMIS_STATUS_OK;
}
