#include "ops/sparse_attn.h"

#include <math.h>
#include <string.h>

#include "core/size.h"

/* What one chunk leaves: rows met, then m [heads], l [heads], o [heads][value_dim]. */
typedef struct chunk_record {
    float *n_rows, *m, *l, *o;
} chunk_record;

static size_t padded(int64_t n)
{
    return (size_t)tamis_round_up(n, TAMIS_LANES);
}

static size_t record_floats(int32_t num_heads, int32_t value_dim)
{
    return TAMIS_LANES + 2 * padded(num_heads) + padded((int64_t)num_heads * value_dim);
}

static chunk_record record_at(float *base, int32_t num_heads)
{
    float *m = base + TAMIS_LANES;
    return (chunk_record){base, m, m + padded(num_heads), m + 2 * padded(num_heads)};
}

size_t tamis_attn_scratch_floats(int32_t num_heads, int32_t head_dim, int32_t value_dim)
{
    return padded(num_heads) * (size_t)head_dim + 2 * padded(num_heads) +
           record_floats(num_heads, value_dim) +
           (size_t)tamis_round_up((int64_t)TAMIS_ATTN_SCRATCH(num_heads, head_dim), TAMIS_LANES);
}

size_t tamis_attn_partial_floats(int32_t num_heads, int32_t value_dim, int32_t max_chunks,
                                 int32_t n_threads)
{
    return (size_t)(n_threads - 1) * (size_t)max_chunks * record_floats(num_heads, value_dim);
}

/* Scratch of one thread. */
typedef struct attn_scratch {
    float *panels, *m, *l;
    chunk_record record;
    float *kernel;
} attn_scratch;

static attn_scratch carve(const tamis_attn_job *job, float *base)
{
    attn_scratch s;
    s.panels = base;
    s.m = s.panels + padded(job->num_heads) * (size_t)job->head_dim;
    s.l = s.m + padded(job->num_heads);
    s.record = record_at(s.l + padded(job->num_heads), job->num_heads);
    s.kernel = s.record.n_rows + record_floats(job->num_heads, job->value_dim);
    return s;
}

typedef struct attn_pass {
    const tamis_exec *exec;
    const tamis_attn_job *job;
} attn_pass;

static float *output_of(const tamis_attn_job *job, int32_t token)
{
    return job->o + token * job->o_stride;
}

static void run_chunk(const attn_pass *pass, const attn_scratch *s, int32_t token, int32_t chunk,
                      const chunk_record *out)
{
    const tamis_attn_job *job = pass->job;
    const void *rows[TAMIS_ATTN_CHUNK];
    const int32_t first = chunk * TAMIS_ATTN_CHUNK, left = job->list_len[token] - first;
    const int32_t n =
        job->rows(job->user, token, first, left < TAMIS_ATTN_CHUNK ? left : TAMIS_ATTN_CHUNK, rows);
    *out->n_rows = (float)n;
    if (n > 0)
        pass->exec->kernels->attn_chunk(out->m, out->l, out->o, job->value_dim, s->panels,
                                        job->num_heads, job->head_dim, job->value_dim, rows,
                                        job->format, n, job->scale, false, s->kernel);
}

static void start_state(float *m, float *l, float *o, int32_t n_heads, int32_t value_dim)
{
    for (int32_t h = 0; h < n_heads; h++)
        m[h] = -INFINITY;
    memset(l, 0, (size_t)n_heads * sizeof *l);
    memset(o, 0, (size_t)n_heads * (size_t)value_dim * sizeof *o);
}

/* Folds heads [h, h + n) of a record into the running state of these heads. */
static void merge_heads(const attn_pass *pass, float *m, float *l, float *o,
                        const chunk_record *record, int32_t h, int32_t n)
{
    const int64_t value_dim = pass->job->value_dim;
    if (*record->n_rows > 0)
        pass->exec->kernels->attn_merge(m, l, o, value_dim, record->m + h, record->l + h,
                                        record->o + h * value_dim, value_dim, n, value_dim);
}

static void finish_heads(const attn_pass *pass, int32_t token, float *m, float *l, int32_t h,
                         int32_t n)
{
    const tamis_attn_job *job = pass->job;
    float *o = output_of(job, token);
    float *lse = job->lse == NULL ? NULL : job->lse + (int64_t)token * job->num_heads + h;
    pass->exec->kernels->attn_finish(o + (int64_t)h * job->value_dim, job->value_dim, lse, m, l,
                                     job->sink == NULL ? NULL : job->sink + h, n, job->value_dim);
    if (job->done != NULL)
        job->done(job->user, token, o, h, h + n);
}

/* All chunks of a token on one thread; its output row doubles as the running state. */
static void run_token(const attn_pass *pass, const attn_scratch *s, int32_t token)
{
    const tamis_attn_job *job = pass->job;
    const int32_t n_chunks = tamis_attn_num_chunks(job->list_len[token]);
    float *o = output_of(job, token);
    start_state(s->m, s->l, o, job->num_heads, job->value_dim);
    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        run_chunk(pass, s, token, chunk, &s->record);
        merge_heads(pass, s->m, s->l, o, &s->record, 0, job->num_heads);
    }
    finish_heads(pass, token, s->m, s->l, 0, job->num_heads);
}

/* Number of the first stretch border inside the token: shared tokens keep their chunks under it. */
static int32_t first_border(const tamis_partition *partition, int32_t token)
{
    int32_t i = 1;
    while (partition->bounds[i] <= partition->unit_start[token])
        i++;
    return i;
}

static chunk_record shared_record(const tamis_attn_job *job, int32_t border, int64_t chunk)
{
    const int64_t number = (int64_t)(border - 1) * job->max_chunks + chunk;
    return record_at(job->partials + (size_t)number * record_floats(job->num_heads, job->value_dim),
                     job->num_heads);
}

static void attn_thread(void *arg, int thread_idx, int n_threads)
{
    const attn_pass *pass = arg;
    const tamis_attn_job *job = pass->job;
    const tamis_partition *partition = job->partition;
    const attn_scratch s = carve(job, tamis_exec_scratch(pass->exec, thread_idx));
    (void)n_threads;
    for (int32_t token = partition->first_item[thread_idx]; token < job->n_tokens; token++) {
        int64_t begin, end;
        if (partition->unit_start[token] >= partition->bounds[thread_idx + 1])
            break;
        if (!tamis_partition_part(partition, thread_idx, token, &begin, &end))
            continue;
        pass->exec->kernels->pack_heads(s.panels,
                                        job->q + (int64_t)token * job->num_heads * job->head_dim,
                                        job->num_heads, job->head_dim);
        if (begin == 0 && end == tamis_partition_units(partition, token)) {
            run_token(pass, &s, token);
            continue;
        }
        const int32_t border = first_border(partition, token);
        for (int64_t chunk = begin; chunk < end; chunk++) {
            const chunk_record record = shared_record(job, border, chunk);
            run_chunk(pass, &s, token, (int32_t)chunk, &record);
        }
    }
}

/* Shared tokens: every thread merges its share of the heads. */
static void merge_thread(void *arg, int thread_idx, int n_threads)
{
    const attn_pass *pass = arg;
    const tamis_attn_job *job = pass->job;
    const tamis_partition *partition = job->partition;
    const attn_scratch s = carve(job, tamis_exec_scratch(pass->exec, thread_idx));
    int64_t head, head_end;
    tamis_team_range(job->num_heads, 1, thread_idx, n_threads, &head, &head_end);
    const int32_t h = (int32_t)head, n = (int32_t)(head_end - head);
    for (int32_t border = 1; border < partition->n_threads && n > 0; border++) {
        const int64_t bound = partition->bounds[border];
        const int32_t token = partition->first_item[border];
        if (token >= job->n_tokens || partition->unit_start[token] >= bound ||
            partition->unit_start[token] < partition->bounds[border - 1])
            continue; /* between tokens, or counted under an earlier border */
        float *o = output_of(job, token) + (int64_t)h * job->value_dim;
        start_state(s.m, s.l, o, n, job->value_dim);
        for (int64_t chunk = 0; chunk < tamis_partition_units(partition, token); chunk++) {
            const chunk_record record = shared_record(job, border, chunk);
            merge_heads(pass, s.m, s.l, o, &record, h, n);
        }
        finish_heads(pass, token, s.m, s.l, h, n);
    }
}

void tamis_attn_run(const tamis_exec *exec, const tamis_attn_job *job)
{
    attn_pass pass = {exec, job};
    const int64_t n_chunks = job->partition->unit_start[job->n_tokens];
    const bool is_worth_waking =
        n_chunks * TAMIS_ATTN_CHUNK * 2 * (int64_t)padded(job->num_heads) * job->head_dim >
        TAMIS_EXEC_SMALL_PASS;
    tamis_team_run_sized(exec->team, is_worth_waking, attn_thread, &pass);
    if (job->partition->has_split_items)
        tamis_team_run_sized(exec->team, is_worth_waking, merge_thread, &pass);
}
