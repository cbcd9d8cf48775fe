/*
 * tamis in a miniature of somebody else's engine. The engine has its own scheduler, block allocator
 * and sampling: requests wait, run and end; prompts are read in chunks under a token budget; who
 * generates also brings guesses to be checked. tamis brings the caches, the plan of a step and two
 * DeepSeek-V4 attention layers, of ratio 4 and 128.
 *
 * What a request gets does not depend on what runs beside it, on the budget, the guesses or the
 * threads: tests/unit/test_example_batch.c compares the bits. docs/engine-integration.md explains
 * the calls.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tamis/dsa.h"

enum { HIDDEN = 64, VOCAB = 48, N_LAYERS = 2 };
enum { BLOCK = 128, MAX_BLOCKS = 3, MAX_LEN = MAX_BLOCKS * BLOCK };
enum { MAX_RUNNING = 4, MAX_STEP = 64, MAX_POOL = 32 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const tamis_status status_ = (call);                                                       \
        if (status_ != TAMIS_STATUS_OK)                                                            \
            return status_;                                                                        \
    } while (0)

typedef struct model {
    tamis_dsa_layer layers[N_LAYERS];
    const float *embedding, *head; /* [VOCAB][HIDDEN] */
} model;

typedef struct request {
    int32_t tokens[MAX_LEN]; /* the known ones, then guesses */
    int32_t n_tokens;        /* known: prompt and generated */
    int32_t n_total;         /* it ends when so many are known */
    int32_t n_computed;      /* of them, have their rows in the caches */
    int32_t n_new;           /* of this step, guesses included */
    int32_t blocks[MAX_BLOCKS], n_blocks, slot;
    float out[MAX_LEN][HIDDEN]; /* behind the last layer, for the checksum */
} request;

typedef struct engine_limits {
    int32_t max_step, max_running, n_drafts, num_blocks, n_threads;
} engine_limits;

typedef struct engine {
    const model *model;
    engine_limits limits;
    tamis_team *team;
    tamis_dsa_caches *caches;
    tamis_dsa_plan *plan;
    request *running[MAX_RUNNING]; /* in the order of the batch */
    int32_t n_running;
    int32_t free_blocks[MAX_POOL], n_free_blocks, free_slots[MAX_RUNNING], n_free_slots;
    float x[MAX_STEP][HIDDEN], out[MAX_STEP][HIDDEN];
    int32_t n_steps, n_swaps, n_padding, n_guessed, n_right; /* what happened */
} engine;

/* All memory is taken here, for every step that the limits allow. */
static tamis_status engine_open(engine *e, const model *m, engine_limits limits, tamis_error *err)
{
    *e = (engine){.model = m, .limits = limits};
    assert(limits.max_step <= MAX_STEP && limits.max_running <= MAX_RUNNING);
    for (int32_t block = 1; block < limits.num_blocks; block++) /* nobody owns block 0 */
        e->free_blocks[e->n_free_blocks++] = block;
    for (int32_t slot = 0; slot < limits.max_running; slot++)
        e->free_slots[e->n_free_slots++] = slot;
    tamis_cache_params cache_params = tamis_cache_params_default();
    cache_params.block_tokens = BLOCK;
    cache_params.num_blocks = limits.num_blocks;
    cache_params.num_slots = limits.max_running;
    cache_params.max_rollback = limits.n_drafts; /* all guesses may turn out wrong */
    tamis_plan_params plan_params = tamis_plan_params_default();
    plan_params.max_num_batched_tokens = limits.max_step;
    plan_params.max_num_seqs = limits.max_running + 1; /* one for the padding, see plan_step */
    plan_params.max_model_len = MAX_LEN;
    plan_params.n_threads = limits.n_threads;
    tamis_dsa_config configs[N_LAYERS];
    for (int32_t i = 0; i < N_LAYERS; i++) {
        TRY(tamis_dsa_layer_check(&m->layers[i], err));
        configs[i] = m->layers[i].config;
    }
    TRY(tamis_team_open(&e->team, limits.n_threads, err));
    TRY(tamis_dsa_caches_open(&e->caches, configs, N_LAYERS, &cache_params, err));
    return tamis_dsa_plan_open(&e->plan, e->caches, &plan_params, err);
}

/* After a failed open, too. */
static void engine_close(engine *e)
{
    tamis_dsa_plan_close(&e->plan);
    tamis_dsa_caches_close(&e->caches);
    tamis_team_close(&e->team);
}

static bool has_room(const engine *e, const request *r)
{
    return e->n_free_slots > 0 && e->n_free_blocks >= (r->n_total + BLOCK - 1) / BLOCK;
}

/* Takes blocks for its whole life, so that nobody has to be thrown out later. They come as the last
 * owner left them: rows are written before they are read. A ring slot is to be cleared. */
static tamis_status admit(engine *e, request *r, tamis_error *err)
{
    r->n_blocks = (r->n_total + BLOCK - 1) / BLOCK;
    for (int32_t i = 0; i < r->n_blocks; i++)
        r->blocks[i] = e->free_blocks[--e->n_free_blocks];
    r->slot = e->free_slots[--e->n_free_slots];
    e->running[e->n_running++] = r;
    return tamis_dsa_caches_clear_slot(e->caches, r->slot, err);
}

static void retire(engine *e, int32_t row)
{
    const request *r = e->running[row];
    for (int32_t i = 0; i < r->n_blocks; i++)
        e->free_blocks[e->n_free_blocks++] = r->blocks[i];
    e->free_slots[e->n_free_slots++] = r->slot;
    e->running[row] = e->running[--e->n_running];
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Guesses what followed the last token when it came up before. Returns how many tokens to bring. */
static int32_t guess(request *r, int32_t n_drafts)
{
    int32_t n = r->n_tokens;
    while (n - r->n_tokens < n_drafts && n + 1 < r->n_total) {
        int32_t at = n - 2;
        while (at > 0 && r->tokens[at] != r->tokens[n - 1])
            at--;
        r->tokens[n] = r->tokens[at + 1];
        n++;
    }
    return n - r->n_computed;
}

/* Who generates comes first; the others read on in their prompts with equal shares of the rest. */
static void schedule(engine *e)
{
    int32_t budget = e->limits.max_step, n_reading = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        request *r = e->running[i];
        const bool is_reading = r->n_tokens - r->n_computed > 1;
        n_reading += is_reading;
        r->n_new = is_reading ? 0 : smaller(guess(r, e->limits.n_drafts), budget);
        budget -= r->n_new;
    }
    for (int32_t i = 0; i < e->n_running; i++) {
        request *r = e->running[i];
        const int32_t n_left = r->n_tokens - r->n_computed;
        if (n_left == 1)
            continue;
        r->n_new = smaller(n_left, budget / n_reading--);
        budget -= r->n_new;
    }
}

/* All that this engine keeps per row of the batch is a pointer; others exchange more. */
static tamis_status put_decodes_first(engine *e, tamis_error *err)
{
    int32_t query_lens[MAX_RUNNING], n_swaps = 0;
    tamis_swap swaps[MAX_RUNNING / 2];
    for (int32_t i = 0; i < e->n_running; i++)
        query_lens[i] = e->running[i]->n_new;
    const int32_t threshold = 1 + e->limits.n_drafts;
    TRY(tamis_batch_reorder(query_lens, e->n_running, threshold, swaps, &n_swaps, err));
    for (int32_t i = 0; i < n_swaps; i++) {
        request *a = e->running[swaps[i].a];
        e->running[swaps[i].a] = e->running[swaps[i].b];
        e->running[swaps[i].b] = a;
    }
    e->n_swaps += n_swaps;
    return TAMIS_STATUS_OK;
}

/*
 * Every step has the same shape, max_step tokens of max_running + 1 requests: requests of length 0
 * at the end are padding, the first of them holds the tokens that nobody needs.
 */
static tamis_status plan_step(engine *e, tamis_split *split, tamis_error *err)
{
    int32_t query_start_loc[MAX_RUNNING + 2] = {0}, seq_lens[MAX_RUNNING + 1] = {0};
    int32_t table[MAX_RUNNING + 1][MAX_BLOCKS] = {{0}}, slots[MAX_RUNNING + 1] = {0};
    int32_t slot_mapping[MAX_STEP];
    for (int32_t i = 0; i <= e->limits.max_running; i++) {
        const request *r = i < e->n_running ? e->running[i] : NULL;
        query_start_loc[i + 1] = r == NULL ? e->limits.max_step : query_start_loc[i] + r->n_new;
        if (r == NULL)
            continue;
        seq_lens[i] = r->n_computed + r->n_new; /* smaller than before where guesses were wrong */
        slots[i] = r->slot;
        memcpy(table[i], r->blocks, sizeof r->blocks);
    }
    tamis_batch batch = {.num_reqs = e->limits.max_running + 1, .query_start_loc = query_start_loc,
                         .seq_lens = seq_lens, .block_table = table[0],
                         .block_table_stride = MAX_BLOCKS, .slots = slots};
    tamis_split_params split_params = tamis_split_params_default();
    split_params.decode_threshold = 1 + e->limits.n_drafts;
    TRY(tamis_batch_split(query_start_loc, e->n_running, &split_params, split, err));
    TRY(tamis_batch_slot_mapping(&batch, BLOCK, slot_mapping, e->limits.max_step, err));
    batch.slot_mapping = slot_mapping; /* not needed; an engine that has its own gets it checked */
    return tamis_dsa_plan_build(e->plan, &batch, err);
}

/* Embedding, then attention and residual; a real model has norms and experts, too. Rows of padding
 * are not read, so nothing has to be put there. */
static tamis_status run_layers(engine *e, tamis_error *err)
{
    const tamis_step_view step = tamis_dsa_plan_step(e->plan);
    e->n_padding += step.num_input_tokens - step.num_tokens;
    for (int32_t t = 0; t < step.num_tokens; t++) {
        const request *r = e->running[step.req_of_token[t]];
        const float *row = e->model->embedding + r->tokens[step.positions[t]] * HIDDEN;
        memcpy(e->x[t], row, sizeof e->x[t]);
    }
    for (int32_t i = 0; i < N_LAYERS; i++) {
        TRY(tamis_dsa_forward(&e->model->layers[i], i, e->plan, e->caches, e->x[0], e->out[0],
                              e->team, err));
        for (int32_t t = 0; t < step.num_tokens; t++)
            for (int j = 0; j < HIDDEN; j++)
                e->x[t][j] += e->out[t][j];
    }
    return TAMIS_STATUS_OK;
}

/* The likeliest token behind a token's output. */
static int32_t sample(const model *m, const float *x)
{
    int32_t best = 0;
    float best_logit = -INFINITY;
    for (int32_t v = 0; v < VOCAB; v++) {
        float logit = 0;
        for (int j = 0; j < HIDDEN; j++)
            logit += m->head[v * HIDDEN + j] * x[j];
        if (logit > best_logit)
            best = v, best_logit = logit;
    }
    return best;
}

/* Takes what a request's tokens of this step gave; guesses count as far as they were right. Rows of
 * wrong ones stay in the caches: the next step goes on before them and writes over them. */
static void take_results(engine *e, request *r, const float *x)
{
    const int32_t start = r->n_computed, end = start + r->n_new;
    if (r->n_new > 0)
        memcpy(r->out[start], x, (size_t)r->n_new * sizeof r->out[0]);
    r->n_computed = end;
    if (end < r->n_tokens)
        return; /* the prompt goes on */
    e->n_guessed += end - r->n_tokens;
    for (bool is_right = true; is_right;) {
        const int32_t next = sample(e->model, r->out[r->n_tokens - 1]);
        is_right = r->n_tokens < end && r->tokens[r->n_tokens] == next;
        r->tokens[r->n_tokens++] = next;
        e->n_right += is_right;
    }
    r->n_computed = r->n_tokens - 1;
}

static void report_step(const engine *e, const request *first, const tamis_split *split, FILE *f)
{
    const tamis_step_view step = tamis_dsa_plan_step(e->plan);
    fprintf(f, "step %2d: %d decodes (%d tokens), %d prefills (%d), %d padding:", e->n_steps,
            split->num_decodes, split->num_decode_tokens, split->num_prefills,
            split->num_prefill_tokens, step.num_input_tokens - step.num_tokens);
    for (int32_t i = 0; i < step.num_reqs; i++) /* computed + new */
        fprintf(f, " %c %d+%d", (int)('A' + (e->running[i] - first)), step.start_pos[i],
                step.seq_lens[i] - step.start_pos[i]);
    fputc('\n', f);
}

/* Runs n requests to their ends, in as many steps as it takes; report may be NULL. */
static tamis_status engine_run(engine *e, request *requests, int32_t n, FILE *report,
                               tamis_error *err)
{
    for (int32_t next = 0; next < n || e->n_running > 0; e->n_steps++) {
        tamis_split split;
        while (next < n && has_room(e, &requests[next]))
            TRY(admit(e, &requests[next++], err));
        schedule(e);
        TRY(put_decodes_first(e, err));
        TRY(plan_step(e, &split, err)); /* what is wrong with a batch is found here */
        TRY(run_layers(e, err));        /* fails on misuse and NaN only */
        if (report != NULL)
            report_step(e, requests, &split, report);
        for (int32_t i = 0, t = 0; i < e->n_running; t += e->running[i++]->n_new)
            take_results(e, e->running[i], e->x[t]);
        for (int32_t i = e->n_running - 1; i >= 0; i--)
            if (e->running[i]->n_tokens == e->running[i]->n_total)
                retire(e, i);
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- random weights and prompts */

static uint32_t random_bits(void)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(state >> 40); /* 24 bits */
}

static float *random_floats(int64_t n, float factor)
{
    static float pool[1 << 18];
    static int64_t n_used;
    float *x = pool + n_used;
    n_used += n;
    assert(n_used <= (int64_t)(sizeof pool / sizeof *pool));
    for (int64_t i = 0; i < n; i++)
        x[i] = factor * ((float)random_bits() * 0x1p-23f - 1.0f);
    return x;
}

/* F32 here; BF16, FP8 with scales and FP4 work as well, as they lie in the checkpoint. */
static tamis_matrix matrix(int64_t rows, int64_t cols)
{
    return (tamis_matrix){.dtype = TAMIS_DTYPE_F32, .rows = rows, .cols = cols,
                          .data = random_floats(rows * cols, 0.2f), .row_bytes = cols * 4};
}

static tamis_compressor_weights compressor(int32_t ratio, int32_t dim)
{
    const int32_t width = ratio == 4 ? 2 * dim : dim; /* groups of four overlap */
    return (tamis_compressor_weights){.wkv = matrix(width, HIDDEN), .wgate = matrix(width, HIDDEN),
                                      .ape = random_floats(ratio * width, 1),
                                      .norm = random_floats(dim, 1)};
}

static tamis_dsa_layer random_layer(int32_t ratio)
{
    enum { HEADS = 4, DIM = 32, RANK = 48, GROUPS = 2, LOW = 24, INDEX_HEADS = 2, INDEX_DIM = 32 };
    tamis_dsa_layer layer = {
        .config = {.hidden_size = HIDDEN, .num_heads = HEADS, .head_dim = DIM, .rope_head_dim = 16,
                   .q_lora_rank = RANK, .o_groups = GROUPS, .o_lora_rank = LOW,
                   .sliding_window = 16, .compress_ratio = ratio, .rms_norm_eps = 1e-6f,
                   .rope = {.theta = 160000, .yarn_factor = 1}},
        .weights = {.wq_a = matrix(RANK, HIDDEN), .wq_b = matrix(HEADS * DIM, RANK),
                    .wkv = matrix(DIM, HIDDEN), .wo_a = matrix(GROUPS * LOW, HEADS * DIM / GROUPS),
                    .wo_b = matrix(HIDDEN, GROUPS * LOW), .q_norm = random_floats(RANK, 1),
                    .kv_norm = random_floats(DIM, 1), .attn_sink = random_floats(HEADS, 1),
                    .compressor = compressor(ratio, DIM)}};
    if (ratio == 4) { /* it selects the 8 best of its compressed rows */
        layer.config.index_n_heads = INDEX_HEADS;
        layer.config.index_head_dim = INDEX_DIM;
        layer.config.index_topk = 8;
        layer.weights.index_wq_b = matrix(INDEX_HEADS * INDEX_DIM, RANK);
        layer.weights.index_weights_proj = matrix(INDEX_HEADS, HIDDEN);
        layer.weights.index_compressor = compressor(ratio, INDEX_DIM);
    }
    return layer;
}

static model random_model(void)
{
    return (model){.layers = {random_layer(4), random_layer(128)},
                   .embedding = random_floats(VOCAB * HIDDEN, 1),
                   .head = random_floats(VOCAB * HIDDEN, 1)};
}

static void request_init(request *r, int32_t n_prompt, int32_t n_total)
{
    *r = (request){.n_tokens = n_prompt, .n_total = n_total};
    for (int32_t i = 0; i < n_prompt; i++)
        r->tokens[i] = (int32_t)(random_bits() % VOCAB);
}

int main(void)
{
    enum { N = 6 };
    static const int32_t n_prompt[N] = {37, 150, 5, 290, 128, 60};
    static const engine_limits limits = {.max_step = 48, .max_running = 3, .n_drafts = 2,
                                         .num_blocks = 7, .n_threads = 2};
    static request requests[N];
    static engine e;
    const model m = random_model();
    for (int i = 0; i < N; i++)
        request_init(&requests[i], n_prompt[i], n_prompt[i] + 40);
    tamis_error err;
    tamis_status st = engine_open(&e, &m, limits, &err);
    if (st == TAMIS_STATUS_OK)
        st = engine_run(&e, requests, N, stdout, &err);
    uint32_t sum = 0, bits;
    for (int i = 0; i < N; i++)
        for (int32_t j = 0; j < (requests[i].n_total - 1) * HIDDEN; j++)
            sum = sum * 31 + (memcpy(&bits, &requests[i].out[j / HIDDEN][j % HIDDEN], 4), bits);
    if (st == TAMIS_STATUS_OK)
        printf("%d guesses, %d right; checksum of the outputs' bits: %08" PRIx32 "\n", e.n_guessed,
               e.n_right, sum);
    else
        fprintf(stderr, "%s\n", err.text);
    engine_close(&e);
    return st != TAMIS_STATUS_OK;
}
