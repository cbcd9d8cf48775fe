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
           (size_t)tamis_round_up((int64_t)TAMIS_ATTN_SCRATCH(num_heads, head_dim), TAMIS_LANES);
}

size_t tamis_attn_partial_floats(int32_t num_heads, int32_t value_dim, int32_t max_chunks,
                                 int32_t n_threads)
{
    return (size_t)(n_threads - 1) * (size_t)max_chunks * record_floats(num_heads, value_dim);
}

/* Scratch of one thread. */
typedef struct attn_scratch {
    float *panels, *m, *l, *kernel;
} attn_scratch;

static attn_scratch carve(const tamis_attn_job *job, float *base)
{
    attn_scratch s;
    s.panels = base;
    s.m = s.panels + padded(job->num_heads) * (size_t)job->head_dim;
    s.l = s.m + padded(job->num_heads);
    s.kernel = s.l + padded(job->num_heads);
    return s;
}

typedef struct attn_pass {
    const tamis_exec *exec;
    const tamis_attn_job *job;
    tamis_attn_fold fold; /* of chunks that follow one another */
} attn_pass;

static float *output_of(const tamis_attn_job *job, int32_t token)
{
    return job->o + token * job->o_stride;
}

/* Rows of the chunk at work and of the next one, which the kernel may fetch meanwhile. */
typedef struct chunk_rows {
    const void *at[2][TAMIS_ATTN_CHUNK]; /* chunk i in i % 2 */
    int32_t n[2];
} chunk_rows;

static void find_chunk(const tamis_attn_job *job, chunk_rows *rows, int32_t token, int32_t chunk,
                       int32_t end)
{
    const int32_t first = chunk * TAMIS_ATTN_CHUNK;
    const int32_t places =
        (int32_t)tamis_min_i64(job->list_len[token] - (int64_t)first, TAMIS_ATTN_CHUNK);
    rows->n[chunk % 2] =
        chunk < end ? job->rows(job->user, token, first, places, rows->at[chunk % 2]) : 0;
}

/*
 * A chunk that has been found into m, l and o of the n_heads packed heads; finds the next one, if
 * it lies before `end`. Returns how many rows the chunk has.
 */
static int32_t run_chunk(const attn_pass *pass, const attn_scratch *s, chunk_rows *rows,
                         int32_t token, int32_t chunk, int32_t end, int32_t n_heads,
                         tamis_attn_fold fold, float *m, float *l, float *o)
{
    const tamis_attn_job *job = pass->job;
    const int32_t this = chunk % 2, next = (chunk + 1) % 2;
    find_chunk(job, rows, token, chunk + 1, end);
    if (rows->n[this] > 0)
        pass->exec->kernels->attn_chunk(m, l, o, job->value_dim, s->panels, n_heads, job->head_dim,
                                        job->value_dim, rows->at[this], job->format, rows->n[this],
                                        rows->at[next], rows->n[next], job->scale, fold, s->kernel);
    return rows->n[this];
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

/* Sink, division and LSE of heads [h, h + n); o points at head h. */
static void normalise(const attn_pass *pass, int32_t token, float *m, float *l, float *o, int32_t h,
                      int32_t n)
{
    const tamis_attn_job *job = pass->job;
    float *lse = job->lse == NULL ? NULL : job->lse + (int64_t)token * job->num_heads + h;
    pass->exec->kernels->attn_finish(o, job->value_dim, lse, m, l,
                                     job->sink == NULL ? NULL : job->sink + h, n, job->value_dim);
    tamis_exec_round(pass->exec, o, (int64_t)n * job->value_dim);
}

static void hand_over(const tamis_attn_job *job, int32_t token, int32_t h, int32_t n)
{
    if (job->done != NULL)
        job->done(job->user, token, output_of(job, token), h, h + n);
}

static void finish_heads(const attn_pass *pass, int32_t token, float *m, float *l, int32_t h,
                         int32_t n)
{
    float *o = output_of(pass->job, token) + (int64_t)h * pass->job->value_dim;
    normalise(pass, token, m, l, o, h, n);
    hand_over(pass->job, token, h, n);
}

/* All chunks for heads [h, h + n), whose output is o, which doubles as the running state. */
static void run_heads(const attn_pass *pass, const attn_scratch *s, int32_t token, int32_t h,
                      int32_t n, float *o)
{
    const tamis_attn_job *job = pass->job;
    const int64_t first_head = (int64_t)token * job->num_heads + h;
    const int32_t n_chunks = tamis_attn_num_chunks(job->list_len[token]);
    chunk_rows rows;
    pass->exec->kernels->pack_heads(s->panels, job->q + first_head * job->head_dim, n,
                                    job->head_dim);
    start_state(s->m, s->l, o, n, job->value_dim);
    find_chunk(job, &rows, token, 0, n_chunks);
    for (int32_t chunk = 0; chunk < n_chunks; chunk++)
        run_chunk(pass, s, &rows, token, chunk, n_chunks, n, pass->fold, s->m, s->l, o);
    normalise(pass, token, s->m, s->l, o, h, n);
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

/*
 * Chunks [begin, end) of a shared token. The first ones are merged at once, into the record of the
 * first: merging that record into an empty state changes nothing.
 */
static void run_shared(const attn_pass *pass, const attn_scratch *s, int32_t token, int64_t begin,
                       int64_t end)
{
    const tamis_attn_job *job = pass->job;
    const int32_t border = first_border(job->partition, token);
    const chunk_record first = shared_record(job, border, 0);
    const int32_t last = (int32_t)end;
    chunk_rows rows;
    int32_t n_rows = 0;
    pass->exec->kernels->pack_heads(s->panels,
                                    job->q + (int64_t)token * job->num_heads * job->head_dim,
                                    job->num_heads, job->head_dim);
    find_chunk(job, &rows, token, (int32_t)begin, last);
    if (begin == 0)
        start_state(first.m, first.l, first.o, job->num_heads, job->value_dim);
    for (int32_t chunk = (int32_t)begin; chunk < last; chunk++) {
        const chunk_record own = shared_record(job, border, chunk);
        const chunk_record *out = begin == 0 ? &first : &own;
        const int32_t n =
            run_chunk(pass, s, &rows, token, chunk, last, job->num_heads,
                      begin == 0 ? TAMIS_ATTN_MERGED : TAMIS_ATTN_ALONE, out->m, out->l, out->o);
        *own.n_rows = begin == 0 ? 0.0f : (float)n;
        n_rows += n;
    }
    if (begin == 0)
        *first.n_rows = (float)n_rows;
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
        if (begin == 0 && end == tamis_partition_units(partition, token)) {
            run_heads(pass, &s, token, 0, job->num_heads, output_of(job, token));
            hand_over(job, token, 0, job->num_heads);
        } else
            run_shared(pass, &s, token, begin, end);
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

/* ---------------------------------------------------------------- one running maximum */

/*
 * Chunks follow one another, so threads share a token by panels of heads. On a line of costs a
 * token is its panels one behind the other, each of as many units as the list has chunks; a thread
 * owns the panels that begin in its stretch. A head's numbers depend on its own token alone.
 * (Where chunks may be merged this is slower: every row is read twice, and from far where threads
 * share no cache.)
 */

static int32_t num_panels(const tamis_attn_job *job)
{
    return (int32_t)tamis_ceil_div(job->num_heads, TAMIS_LANES);
}

/* Where stretch i begins. Stretches of whole tokens stay as the partition has them. */
static int64_t panel_bound(const tamis_attn_job *job, int32_t i)
{
    const tamis_partition *partition = job->partition;
    if (!partition->has_split_items)
        return partition->bounds[i] * num_panels(job);
    return partition->unit_start[job->n_tokens] * num_panels(job) * i / partition->n_threads;
}

/* The token's first panel that begins at or after the bound; num_panels if none does. */
static int32_t panel_at(const tamis_attn_job *job, int32_t token, int64_t bound)
{
    const int64_t units = tamis_partition_units(job->partition, token);
    const int64_t cost = bound - job->partition->unit_start[token] * num_panels(job);
    if (cost <= 0 || units == 0)
        return 0;
    return (int32_t)tamis_min_i64(tamis_ceil_div(cost, units), num_panels(job));
}

/* First border of two stretches that shares the token out; 0: none, one thread has it all. */
static int32_t sharing_border(const tamis_attn_job *job, int32_t token)
{
    if (!job->partition->has_split_items)
        return 0;
    for (int32_t i = 1; i < job->partition->n_threads; i++) {
        const int32_t panel = panel_at(job, token, panel_bound(job, i));
        if (panel > 0 && panel < num_panels(job))
            return i;
    }
    return 0;
}

/* Outputs may lie where other heads' queries are, so those of a shared token wait here. */
static chunk_record waiting_record(const tamis_attn_job *job, int32_t border)
{
    return record_at(job->partials +
                         (size_t)(border - 1) * record_floats(job->num_heads, job->value_dim),
                     job->num_heads);
}

static void heads_thread(void *arg, int thread_idx, int n_threads)
{
    const attn_pass *pass = arg;
    const tamis_attn_job *job = pass->job;
    const attn_scratch s = carve(job, tamis_exec_scratch(pass->exec, thread_idx));
    const int64_t from = panel_bound(job, thread_idx), to = panel_bound(job, thread_idx + 1);
    int32_t token = job->partition->has_split_items ? 0 : job->partition->first_item[thread_idx];
    (void)n_threads;
    for (; token < job->n_tokens; token++) {
        if (job->partition->unit_start[token] * num_panels(job) >= to)
            break;
        const int32_t h = panel_at(job, token, from) * TAMIS_LANES;
        const int32_t end =
            (int32_t)tamis_min_i64(panel_at(job, token, to) * (int64_t)TAMIS_LANES, job->num_heads);
        const int32_t border = sharing_border(job, token);
        if (h >= end)
            continue;
        float *o = border == 0 ? output_of(job, token) : waiting_record(job, border).o;
        run_heads(pass, &s, token, h, end - h, o + (int64_t)h * job->value_dim);
        if (border == 0)
            hand_over(job, token, h, end - h);
    }
}

/* Shared tokens: all queries are read now, every thread moves its share of the heads. */
static void move_thread(void *arg, int thread_idx, int n_threads)
{
    const attn_pass *pass = arg;
    const tamis_attn_job *job = pass->job;
    int64_t h, end;
    tamis_team_range(job->num_heads, 1, thread_idx, n_threads, &h, &end);
    for (int32_t token = 0; token < job->n_tokens && h < end; token++) {
        const int32_t border = sharing_border(job, token);
        if (border == 0)
            continue;
        memcpy(output_of(job, token) + h * job->value_dim,
               waiting_record(job, border).o + h * job->value_dim,
               (size_t)((end - h) * job->value_dim) * sizeof(float));
        hand_over(job, token, (int32_t)h, (int32_t)(end - h));
    }
}

void tamis_attn_run(const tamis_exec *exec, const tamis_attn_job *job)
{
    const bool is_exact = exec->profile == TAMIS_PROFILE_EXACT;
    attn_pass pass = {exec, job, is_exact ? TAMIS_ATTN_MERGED : TAMIS_ATTN_RUNNING};
    const int64_t n_chunks = job->partition->unit_start[job->n_tokens];
    const bool is_worth_waking =
        n_chunks * TAMIS_ATTN_CHUNK * 2 * (int64_t)padded(job->num_heads) * job->head_dim >
        TAMIS_EXEC_SMALL_PASS;
    tamis_team_run_sized(exec->team, is_worth_waking, is_exact ? attn_thread : heads_thread, &pass);
    if (job->partition->has_split_items)
        tamis_team_run_sized(exec->team, is_worth_waking, is_exact ? merge_thread : move_thread,
                             &pass);
}
