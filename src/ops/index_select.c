#include "ops/index_select.h"

#include <stdatomic.h>
#include <string.h>

#include "core/size.h"

typedef struct index_pass {
    const tamis_exec *exec;
    const tamis_index_job *job;
    atomic_bool has_nan; /* some selection came out short */
} index_pass;

typedef struct index_scratch {
    void *query; /* of the token: panels, or what index_query_f4 or _i8 makes */
    float *scores, *kernel;
    tamis_candidate *candidates;
} index_scratch;

static size_t padded(int64_t n)
{
    return (size_t)tamis_round_up(n, TAMIS_LANES);
}

static size_t panel_floats(int32_t n_heads, int32_t head_dim)
{
    return padded(n_heads) * (size_t)head_dim;
}

/* Room for a query of any format. */
static size_t query_floats(int32_t n_heads, int32_t head_dim)
{
    const size_t packed = TAMIS_INDEX_QUERY_BYTES(head_dim, n_heads) / sizeof(float);
    const size_t panels = panel_floats(n_heads, head_dim);
    return padded((int64_t)(packed > panels ? packed : panels));
}

static size_t kernel_floats(int32_t n_heads, int32_t head_dim)
{
    return padded((int64_t)TAMIS_INDEX_SCRATCH(head_dim, n_heads));
}

size_t tamis_index_scratch_floats(int32_t n_heads, int32_t head_dim, int32_t topk)
{
    const size_t candidate_floats = sizeof(tamis_candidate) / sizeof(float);
    return query_floats(n_heads, head_dim) + TAMIS_INDEX_BLOCK + kernel_floats(n_heads, head_dim) +
           padded((int64_t)((size_t)tamis_topk_capacity(topk) * candidate_floats));
}

static index_scratch carve(const tamis_index_job *job, float *base)
{
    index_scratch s;
    s.query = base;
    s.scores = base + query_floats(job->n_heads, job->head_dim);
    s.kernel = s.scores + TAMIS_INDEX_BLOCK;
    s.candidates =
        (tamis_candidate *)(void *)(s.kernel + kernel_floats(job->n_heads, job->head_dim));
    return s;
}

/* The query of a token as the kernel that its keys' format needs reads it. */
static void prepare_query(const index_pass *pass, const index_scratch *s, int32_t token)
{
    const tamis_index_job *job = pass->job;
    const tamis_kernels *kernels = pass->exec->kernels;
    const int64_t first_head = token * (int64_t)padded(job->n_heads);
    const float *weights = job->weights + first_head;
    if (job->format->dtype == TAMIS_DTYPE_F4_E2M1)
        kernels->index_query_f4(s->query, job->q_codes + first_head * job->head_dim,
                                job->q_scales + first_head * tamis_row_num_groups(job->format),
                                weights, job->n_heads, job->head_dim, job->format->group_size);
    else if (job->format->dtype == TAMIS_DTYPE_I8)
        kernels->index_query_i8(s->query, job->q_codes + first_head * job->head_dim, weights,
                                job->n_heads, job->head_dim);
    else
        kernels->pack_heads(s->query, job->q + (int64_t)token * job->n_heads * job->head_dim,
                            job->n_heads, job->head_dim);
}

/* Keys at a constant stride, none where there are no more. */
typedef struct key_run {
    const void *keys;
    int64_t stride;
    int32_t n;
} key_run;

/* Keys of a token from j on, as far as they lie in one run of one unit. */
static key_run run_from(const tamis_index_job *job, int32_t token, int32_t j, int32_t end)
{
    key_run run = {0};
    const int32_t in_unit = TAMIS_INDEX_BLOCK - j % TAMIS_INDEX_BLOCK;
    if (j < end)
        run.keys = job->keys(job->user, token, j, end - j < in_unit ? end - j : in_unit, &run.n,
                             &run.stride);
    return run;
}

/* A run by the kernel that the keys' format needs; next are the keys of the run behind it. */
static void score_run(const index_pass *pass, const index_scratch *s, int32_t token,
                      const key_run *run, const void *next)
{
    const tamis_index_job *job = pass->job;
    const tamis_kernels *kernels = pass->exec->kernels;
    if (job->format->dtype == TAMIS_DTYPE_F4_E2M1)
        kernels->index_score_f4(s->scores, s->query, job->n_heads, job->head_dim, run->keys,
                                job->format, run->stride, run->n, next, s->kernel);
    else if (job->format->dtype == TAMIS_DTYPE_I8)
        kernels->index_score_i8(s->scores, s->query, job->n_heads, job->head_dim, run->keys,
                                job->format, run->stride, run->n, next, s->kernel);
    else
        kernels->index_score(
            s->scores, s->query, job->weights + token * (int64_t)padded(job->n_heads), job->n_heads,
            job->head_dim, run->keys, job->format, run->stride, run->n, next, s->kernel);
}

/* Keys [j, end) of a token. */
static void score_keys(const index_pass *pass, const index_scratch *s, int32_t token, int32_t j,
                       int32_t end, tamis_topk *topk)
{
    key_run run = run_from(pass->job, token, j, end);
    while (run.n > 0) {
        const key_run next = run_from(pass->job, token, j + run.n, end);
        score_run(pass, s, token, &run, next.keys);
        tamis_topk_push(topk, pass->exec->kernels, s->scores, run.n, j);
        j += run.n;
        run = next;
    }
}

static int32_t *output_of(const tamis_index_job *job, int32_t token)
{
    return job->out + (int64_t)token * job->topk;
}

static void finish(index_pass *pass, int32_t token, tamis_topk *topk)
{
    const tamis_index_job *job = pass->job;
    int32_t *out = output_of(job, token);
    const int32_t n_wanted = (int32_t)tamis_min_i64(job->topk, job->visible[token]);
    const int32_t n =
        job->best_first ? tamis_topk_finish_ranked(topk, out) : tamis_topk_finish(topk, out);
    if (n < n_wanted)
        atomic_store_explicit(&pass->has_nan, true, memory_order_relaxed);
}

/* Units [begin, end) of a token; what a part finds of a shared token is kept for the merge. */
static void run_part(index_pass *pass, const index_scratch *s, int thread_idx, int32_t token,
                     int64_t begin, int64_t end)
{
    const tamis_index_job *job = pass->job;
    tamis_topk topk;
    tamis_topk_init(&topk, s->candidates, job->topk);
    prepare_query(pass, s, token);
    score_keys(pass, s, token, (int32_t)(begin * TAMIS_INDEX_BLOCK),
               (int32_t)tamis_min_i64(end * TAMIS_INDEX_BLOCK, job->visible[token]), &topk);
    if (begin == 0 && end == tamis_partition_units(job->partition, token)) {
        finish(pass, token, &topk);
        return;
    }
    /* slot 0: the token was begun by an earlier thread; slot 1: a later one goes on */
    const int32_t slot = 2 * thread_idx + (begin == 0);
    tamis_topk_reduce(&topk);
    memcpy(job->partials + (int64_t)slot * job->topk, topk.items,
           (size_t)topk.n * sizeof *topk.items);
    job->n_partials[slot] = topk.n;
}

static void select_all(const tamis_index_job *job, int32_t token)
{
    int32_t *out = output_of(job, token);
    for (int32_t i = 0; i < job->topk; i++)
        out[i] = i < job->visible[token] ? i : -1;
}

static void index_thread(void *arg, int thread_idx, int n_threads)
{
    index_pass *pass = arg;
    const tamis_index_job *job = pass->job;
    const tamis_partition *partition = job->partition;
    const index_scratch s = carve(job, tamis_exec_scratch(pass->exec, thread_idx));
    int64_t token_begin, token_end;
    tamis_team_range(job->n_tokens, 1, thread_idx, n_threads, &token_begin, &token_end);
    for (int64_t token = token_begin; token < token_end; token++)
        if (tamis_partition_units(partition, (int32_t)token) == 0)
            select_all(job, (int32_t)token);
    for (int32_t token = partition->first_item[thread_idx]; token < job->n_tokens; token++) {
        int64_t begin, end;
        if (partition->unit_start[token] >= partition->bounds[thread_idx + 1])
            break;
        if (tamis_partition_part(partition, thread_idx, token, &begin, &end))
            run_part(pass, &s, thread_idx, token, begin, end);
    }
}

/* Merges the parts of the token that the border after `first` cuts, if `first` began it. */
static void merge_after(index_pass *pass, const index_scratch *s, int32_t first)
{
    const tamis_index_job *job = pass->job;
    const tamis_partition *partition = job->partition;
    const int32_t token = partition->first_item[first + 1];
    int64_t begin, end;
    if (token >= job->n_tokens || !tamis_partition_part(partition, first, token, &begin, &end) ||
        begin != 0 || end == tamis_partition_units(partition, token))
        return;
    tamis_topk topk;
    tamis_topk_init(&topk, s->candidates, job->topk);
    for (int32_t part = first;
         part < partition->n_threads && partition->bounds[part] < partition->unit_start[token + 1];
         part++) {
        if (!tamis_partition_part(partition, part, token, &begin, &end))
            continue; /* an empty stretch in the middle */
        const int32_t slot = 2 * part + (begin == 0);
        tamis_topk_absorb(&topk, job->partials + (int64_t)slot * job->topk, job->n_partials[slot]);
    }
    finish(pass, token, &topk);
}

static void merge_thread(void *arg, int thread_idx, int n_threads)
{
    index_pass *pass = arg;
    const index_scratch s = carve(pass->job, tamis_exec_scratch(pass->exec, thread_idx));
    if (thread_idx + 1 < n_threads)
        merge_after(pass, &s, thread_idx);
}

bool tamis_index_run(const tamis_exec *exec, const tamis_index_job *job)
{
    index_pass pass = {.exec = exec, .job = job};
    atomic_init(&pass.has_nan, false);
    const int64_t n_units = job->partition->unit_start[job->n_tokens];
    const bool is_worth_waking =
        n_units * TAMIS_INDEX_BLOCK * (int64_t)panel_floats(job->n_heads, job->head_dim) >
        TAMIS_EXEC_SMALL_PASS;
    tamis_team_run_sized(exec->team, is_worth_waking, index_thread, &pass);
    if (job->partition->has_split_items)
        tamis_team_run_sized(exec->team, is_worth_waking, merge_thread, &pass);
    return !atomic_load(&pass.has_nan);
}
