#include "engine/session_internal.h"

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

/* ---------------------------------------------------------------- layout */

static size_t max_claims(const tamis_session_params *p)
{
    /* n new tokens of a request touch at most n / block_tokens + 2 blocks. */
    return (size_t)(p->max_num_batched_tokens / p->block_tokens) + 2 * (size_t)p->max_num_seqs;
}

static void layout_prefixes(tamis_session *session, tamis_arena *arena)
{
    const tamis_session_params *p = &session->params;
    const size_t n_seqs = (size_t)p->max_num_seqs, len = (size_t)p->max_model_len;
    int32_t *ids = tamis_arena_take(arena, n_seqs * len, sizeof *ids);
    for (size_t i = 0; ids != NULL && i < n_seqs; i++)
        session->sequences[i].ids = ids + i * len;
    session->prefix.block_tokens = p->block_tokens;
    session->prefix.max_entries = p->num_blocks;
    session->prefix.max_snapshots = p->max_snapshots;
    tamis_prefix_cache_layout(&session->prefix, arena);
}

/* Carves (or measures) everything that is not the network's; fills only pointers. */
static void layout(tamis_session *session, tamis_arena *arena)
{
    const tamis_session_params *p = &session->params;
    const size_t n_seqs = (size_t)p->max_num_seqs, width = (size_t)session->table_width;
    tamis_step_buffers *step = &session->step;
    session->sequences = tamis_arena_take(arena, n_seqs, sizeof *session->sequences);
    int32_t *tables = tamis_arena_take(arena, n_seqs * width, sizeof *tables);
    for (size_t i = 0; tables != NULL && i < n_seqs; i++)
        session->sequences[i].table = tables + i * width;
    step->seqs = tamis_arena_take(arena, n_seqs, sizeof *step->seqs);
    step->query_start = tamis_arena_take(arena, n_seqs + 1, sizeof *step->query_start);
    step->seq_lens = tamis_arena_take(arena, n_seqs, sizeof *step->seq_lens);
    step->block_table = tamis_arena_take(arena, n_seqs * width, sizeof *step->block_table);
    step->tokens = tamis_arena_take(arena, (size_t)p->max_num_batched_tokens, sizeof *step->tokens);
    step->logit_rows = tamis_arena_take(arena, (size_t)p->max_num_logits, sizeof *step->logit_rows);
    step->claims = tamis_arena_take(arena, max_claims(p), sizeof *step->claims);
    tamis_connector_request **requests = &session->connector.requests;
    *requests = tamis_arena_take(arena, n_seqs, sizeof **requests);
    if (p->prefix_caching)
        layout_prefixes(session, arena);
}

static void set_sizes(tamis_session *session, const tamis_model *model,
                      const tamis_session_params *params)
{
    session->model = model;
    session->params = *params;
    session->table_width = tamis_session_table_width(params);
    session->hidden_of = session->draft_of = -1;
}

tamis_status tamis_session_workspace_measure(const tamis_model *model,
                                             const tamis_session_params *params, size_t *workspace,
                                             size_t *logits, tamis_error *err)
{
    tamis_session sizes = {0};
    tamis_arena arena = {0};
    set_sizes(&sizes, model, params);
    layout(&sizes, &arena);
    if (arena.used == SIZE_MAX ||
        !tamis_size_mul((size_t)params->max_num_logits + (params->mtp ? 1 : 0),
                        (size_t)model->info.vocab_size * sizeof(float), logits))
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "session: tables of %d sequences and %d logits rows exceed the address "
                          "space",
                          params->max_num_seqs, params->max_num_logits);
    *workspace = arena.used;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- open and close */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static tamis_status check_limit(const tamis_memory_plan *plan, tamis_error *err)
{
    if (plan->total <= plan->limit)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_NO_MEMORY,
                      "session: needs %.1f MiB (widened weights %.1f, caches %.1f, rings %.1f, "
                      "snapshots %.1f, workspace %.1f, logits %.1f), the limit is %.1f MiB "
                      "(in bytes: needs %llu, the limit is %llu)",
                      mib(plan->total), mib(plan->weights_widened), mib(plan->cache_blocks),
                      mib(plan->cache_rings), mib(plan->cache_snapshots), mib(plan->workspace),
                      mib(plan->logits), mib(plan->limit), (unsigned long long)plan->total,
                      (unsigned long long)plan->limit);
}

static tamis_status take_workspace(tamis_session *session, tamis_error *err)
{
    size_t bytes, logits;
    TAMIS_TRY(
        tamis_session_workspace_measure(session->model, &session->params, &bytes, &logits, err));
    session->workspace = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    session->logits = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, logits);
    if (session->workspace == NULL || session->logits == NULL)
        return tamis_fail_memory(err, "session workspace", bytes + logits);
    tamis_arena arena = {.base = session->workspace, .bytes = bytes};
    layout(session, &arena);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_session_take_snapshots(tamis_session *session, tamis_error *err)
{
    tamis_prefix_cache *prefix = &session->prefix;
    const size_t bytes =
        (size_t)tamis_session_snapshot_bytes(&session->params, prefix->history_bytes);
    if (bytes == 0)
        return TAMIS_STATUS_OK;
    prefix->histories = tamis_mem_alloc(TAMIS_MEM_CACHES, bytes);
    return prefix->histories != NULL ? TAMIS_STATUS_OK
                                     : tamis_fail_memory(err, "snapshots of rings", bytes);
}

static tamis_status open_prefixes(tamis_session *session, tamis_error *err)
{
    tamis_prefix_cache *prefix = &session->prefix;
    tamis_cache_store *store = session->net->store;
    prefix->pool = &session->pool;
    prefix->history_bytes = (size_t)store->history_bytes;
    tamis_prefix_cache_init(prefix);
    TAMIS_TRY(tamis_session_take_snapshots(session, err));
    if (prefix->histories != NULL)
        tamis_history_set_watches(store, &prefix->watches);
    return TAMIS_STATUS_OK;
}

static tamis_status open_parts(tamis_session *session, tamis_error *err)
{
    const tamis_model *model = session->model;
    const tamis_session_params *p = &session->params;
    const tamis_net_params net_params = tamis_session_net_params(model, p);
    TAMIS_TRY(take_workspace(session, err));
    TAMIS_TRY(tamis_block_pool_open(&session->pool, p->num_blocks, p->block_order_seed, err));
    TAMIS_TRY(tamis_net_open(&session->net, &model->config, model->weights, &net_params, err));
    TAMIS_TRY(tamis_team_open(&session->team, p->n_threads, err));
    session->net->exec.team = session->team;
    return p->prefix_caching ? open_prefixes(session, err) : TAMIS_STATUS_OK;
}

tamis_status tamis_session_open(tamis_session **out, const tamis_model *model,
                                const tamis_session_params *params, tamis_error *err)
{
    tamis_session_params resolved;
    tamis_memory_plan plan;
    tamis_status st;
    if (out == NULL || model == NULL || params == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "session: out, model or params is NULL");
    *out = NULL;
    TAMIS_TRY(tamis_session_params_resolve(&resolved, model, params, err));
    TAMIS_TRY(tamis_memory_plan_make(&plan, model, &resolved, err));
    TAMIS_TRY(check_limit(&plan, err));
    tamis_session *session = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *session);
    if (session == NULL)
        return tamis_fail_memory(err, "session", sizeof *session);
    set_sizes(session, model, &resolved);
    TAMIS_TRY_GOTO(open_parts(session, err));
    *out = session;
    return TAMIS_STATUS_OK;
fail:
    tamis_session_close(&session);
    return st;
}

void tamis_session_close(tamis_session **session_ptr)
{
    if (session_ptr == NULL || *session_ptr == NULL || (*session_ptr)->is_calling_out)
        return; /* a step returns through the session once its hook does */
    tamis_session *session = *session_ptr;
    *session_ptr = NULL;
    tamis_team_close(&session->team);
    tamis_net_close(&session->net);
    tamis_block_pool_close(&session->pool);
    tamis_mem_free(session->prefix.histories);
    tamis_mem_free(session->connector.journal);
    tamis_mem_free(session->workspace);
    tamis_mem_free(session->logits);
    tamis_mem_free(session);
}

const tamis_session_params *tamis_session_get_params(const tamis_session *session)
{
    return &session->params;
}

/* ---------------------------------------------------------------- for tests */

void tamis_session_set_tap(tamis_session *session, tamis_tap_fn fn, void *user)
{
    session->net->tap = (tamis_tap){fn, user};
}

tamis_net *tamis_session_net(tamis_session *session)
{
    return session->net;
}

const int32_t *tamis_session_block_table(const tamis_session *session, int32_t seq,
                                         int32_t *n_blocks)
{
    if (seq < 0 || seq >= session->params.max_num_seqs || !session->sequences[seq].is_live)
        return NULL;
    *n_blocks = session->sequences[seq].n_blocks;
    return session->sequences[seq].table;
}
