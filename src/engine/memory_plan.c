#include "engine/memory_plan.h"

#include <sched.h>
#include <unistd.h>

#include "caches/block_pool.h"
#include "core/error.h"
#include "core/size.h"
#include "engine/session_internal.h"
#include "model/cache_rows.h"

#define DEFAULT_MAX_MODEL_LEN 4096
#define MAX_DEFAULT_THREADS   64
#define MAX_SEQS              65536

/* CPUs this process may run on. */
static int32_t num_cpus(void)
{
    cpu_set_t set;
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
    n = n < 1 ? 1 : n;
    return n > MAX_DEFAULT_THREADS ? MAX_DEFAULT_THREADS : (int32_t)n;
}

tamis_session_params tamis_session_params_default(void)
{
    return (tamis_session_params){.struct_size = sizeof(tamis_session_params),
                                  .n_threads = num_cpus(),
                                  .max_num_seqs = 1,
                                  .max_num_batched_tokens = 512,
                                  .kv_cache_dtype = TAMIS_DTYPE_AUTO,
                                  .block_tokens = 256,
                                  .max_rollback = 8,
                                  .max_snapshots = 16};
}

/* ---------------------------------------------------------------- parameters */

static tamis_status check_ranges(const tamis_session_params *p, tamis_error *err)
{
    const struct {
        const char *name;
        int32_t value, min, max;
    } fields[] = {{"n_threads", p->n_threads, 1, 256},
                  {"max_model_len", p->max_model_len, 0, INT32_MAX},
                  {"max_num_seqs", p->max_num_seqs, 1, MAX_SEQS},
                  {"max_num_batched_tokens", p->max_num_batched_tokens, 1, 1 << 20},
                  {"max_num_logits", p->max_num_logits, 0, 1 << 20},
                  {"num_blocks", p->num_blocks, 0, INT32_MAX},
                  {"block_tokens", p->block_tokens, 128, 1 << 20},
                  {"max_rollback", p->max_rollback, 0, 1 << 16},
                  {"max_snapshots", p->max_snapshots, 1, 1 << 20}};
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "session: struct_size is %zu, must be %zu",
                          p->struct_size, sizeof *p);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "session: %s is %d, allowed %d..%d",
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    if (p->block_tokens % 128 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "session: block_tokens is %d, must be a multiple of 128",
                          p->block_tokens);
    if (p->num_blocks == 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "session: num_blocks is 1, must be 0 or at least 2 (block 0 holds "
                          "nothing)");
    return TAMIS_STATUS_OK;
}

/* What stands where an MTP block should. */
static const char *other_drafter(tamis_mtp_kind kind)
{
    switch (kind) {
    case TAMIS_MTP_DSPARK:
        return "a DSpark drafter, which tamis does not run";
    case TAMIS_MTP_ROTATED:
        return "a rotated model (is_rot_used), whose MTP block needs a rotation that tamis does "
               "not make";
    default:
        return "no MTP block";
    }
}

static tamis_status check_mtp(const tamis_model *model, const tamis_session_params *p,
                              tamis_error *err)
{
    if (!p->mtp || model->weights->mtp_kind == TAMIS_MTP_BLOCK)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "session: mtp is true, but the folder has %s, allowed: a folder with an MTP "
                      "block (e_proj and h_proj, or eh_proj)",
                      other_drafter(model->weights->mtp_kind));
}

/* AUTO becomes what it stands for. */
static tamis_status resolve_dtype(tamis_session_params *p, const tamis_model *model,
                                  tamis_error *err)
{
    tamis_cache_rows rows;
    TAMIS_TRY(tamis_cache_rows_find(&rows, &model->config, 0, p->kv_cache_dtype, err));
    p->kv_cache_dtype = rows.kv.dtype;
    return TAMIS_STATUS_OK;
}

static int32_t lower_to(int32_t value, int64_t bound)
{
    return (int32_t)tamis_min_i64(value, bound);
}

tamis_status tamis_session_params_resolve(tamis_session_params *out, const tamis_model *model,
                                          const tamis_session_params *params, tamis_error *err)
{
    tamis_session_params p = *params;
    const int32_t model_len = model->info.max_position_embeddings;
    TAMIS_TRY(check_ranges(&p, err));
    TAMIS_TRY(resolve_dtype(&p, model, err));
    TAMIS_TRY(check_mtp(model, &p, err));
    if (p.max_model_len > model_len)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "session: max_model_len is %d, the model allows 1..%d "
                          "(max_position_embeddings)",
                          p.max_model_len, model_len);
    if (p.max_model_len == 0)
        p.max_model_len = lower_to(DEFAULT_MAX_MODEL_LEN, model_len);
    /* More tokens than all sequences hold together could never be used, nor more logits. */
    p.max_num_batched_tokens =
        lower_to(p.max_num_batched_tokens, (int64_t)p.max_num_seqs * p.max_model_len);
    if (p.max_num_logits == 0)
        p.max_num_logits = p.max_num_seqs;
    p.max_num_logits = lower_to(p.max_num_logits, p.max_num_batched_tokens);
    const int64_t all_blocks = (int64_t)p.max_num_seqs * tamis_session_table_width(&p) + 1;
    if (p.num_blocks == 0 && all_blocks > INT32_MAX)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "session: %d sequences of %d tokens need %lld blocks, allowed %d",
                          p.max_num_seqs, p.max_model_len, (long long)all_blocks, INT32_MAX);
    if (p.num_blocks == 0)
        p.num_blocks = (int32_t)all_blocks;
    *out = p;
    return TAMIS_STATUS_OK;
}

uint64_t tamis_session_snapshot_bytes(const tamis_session_params *p, uint64_t history_bytes)
{
    return p->prefix_caching ? (uint64_t)p->max_snapshots * history_bytes : 0;
}

int32_t tamis_session_table_width(const tamis_session_params *p)
{
    return (int32_t)tamis_ceil_div(p->max_model_len, p->block_tokens);
}

tamis_net_params tamis_session_net_params(const tamis_model *model, const tamis_session_params *p)
{
    tamis_cache_params cache = tamis_cache_params_default();
    tamis_plan_params plan = tamis_plan_params_default();
    cache.profile = model->config.profile;
    cache.kv_cache_dtype = p->kv_cache_dtype;
    cache.block_tokens = p->block_tokens;
    cache.num_blocks = p->num_blocks;
    cache.num_slots = p->max_num_seqs;
    cache.max_rollback = p->max_rollback;
    plan.max_num_batched_tokens = p->max_num_batched_tokens;
    plan.max_num_seqs = p->max_num_seqs;
    plan.max_model_len = p->max_model_len;
    plan.n_threads = p->n_threads;
    return (tamis_net_params){cache, plan, p->max_num_logits, p->mtp};
}

/* ---------------------------------------------------------------- plan */

tamis_status tamis_memory_plan_make(tamis_memory_plan *out, const tamis_model *model,
                                    const tamis_session_params *params, tamis_error *err)
{
    const tamis_net_params net_params = tamis_session_net_params(model, params);
    tamis_net_bytes net;
    size_t tables, logits;
    TAMIS_TRY(tamis_net_measure(&model->config, model->weights, &net_params, &net, err));
    TAMIS_TRY(tamis_session_workspace_measure(model, params, &tables, &logits, err));
    *out = (tamis_memory_plan){
        .weights_mapped = model->info.weight_bytes_mapped,
        .weights_widened = model->info.weight_bytes_widened,
        .cache_blocks = net.caches.blocks + tamis_block_pool_bytes(params->num_blocks),
        .cache_rings = net.caches.rings,
        .cache_snapshots = tamis_session_snapshot_bytes(params, net.caches.per_history),
        .cache_bytes_per_token = net.caches.per_block / (uint64_t)params->block_tokens,
        .kv_cache_dtype = params->kv_cache_dtype,
        .workspace = net.workspace + tables,
        .logits = logits};
    out->total = out->weights_widened + out->cache_blocks + out->cache_rings +
                 out->cache_snapshots + out->workspace + out->logits;
    out->limit = params->memory_limit_bytes;
    if (out->limit == 0) {
        const uint64_t available = tamis_available_memory();
        /* What was widened at open is in the total, but no longer in what the system has left. */
        out->limit = available > UINT64_MAX - out->weights_widened
                         ? UINT64_MAX
                         : available + out->weights_widened;
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_plan_memory(const tamis_model *model, const tamis_session_params *params,
                                       tamis_memory_plan *out, tamis_error *err)
{
    tamis_session_params resolved;
    if (model == NULL || params == NULL || out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "session: model, params or out is NULL");
    TAMIS_TRY(tamis_session_params_resolve(&resolved, model, params, err));
    return tamis_memory_plan_make(out, model, &resolved, err);
}
