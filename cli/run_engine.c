#include "run_engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "message.h"
#include "report.h"

/* ---------------------------------------------------------------- model and tokenizer */

int cli_open_tokenizer(const char *dir, tamis_tokenizer **tokenizer)
{
    tamis_error err = {0};
    const tamis_status st = tamis_tokenizer_open(tokenizer, dir, &err);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK
                                 : cli_fail(cli_exit_code_of_model(st), "%s", err.text);
}

bool cli_has_tokenizer(const char *dir)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

tamis_profile cli_profile(const cli_args *args, size_t i)
{
    const cli_value *value = &args->value[CLI_OPT_PROFILE];
    return value->n_choices == 0
               ? TAMIS_PROFILE_EXACT
               : tamis_profile_find(cli_options[CLI_OPT_PROFILE].choices[value->choices[i]]);
}

static tamis_model_params model_params(const cli_args *args, tamis_profile profile)
{
    tamis_model_params p = tamis_model_params_default();
    p.profile = profile;
    if (cli_has(args, CLI_OPT_INDEX_TOPK_FREQ))
        p.index_topk_freq = (int32_t)args->value[CLI_OPT_INDEX_TOPK_FREQ].integer;
    if (cli_has(args, CLI_OPT_INDEX_TOPK_PATTERN))
        p.index_topk_pattern = cli_text(args, CLI_OPT_INDEX_TOPK_PATTERN);
    return p;
}

/* What these parameters can do wrong is INVALID. */
static int open_failed(const cli_args *args, tamis_status st, const tamis_error *err)
{
    if (st == TAMIS_STATUS_INVALID && cli_has(args, CLI_OPT_INDEX_TOPK_FREQ))
        return cli_refuse(args, CLI_OPT_INDEX_TOPK_FREQ, err->text);
    if (st == TAMIS_STATUS_INVALID && cli_has(args, CLI_OPT_INDEX_TOPK_PATTERN))
        return cli_refuse(args, CLI_OPT_INDEX_TOPK_PATTERN, err->text);
    return cli_fail(cli_exit_code_of_model(st), "%s", err->text);
}

int cli_engine_open_model(cli_engine *engine, const cli_args *args, tamis_profile profile)
{
    tamis_error err = {0};
    const tamis_model_params params = model_params(args, profile);
    engine->args = args;
    engine->dir = cli_text(args, CLI_OPT_MODEL);
    const tamis_status st = tamis_model_open_with(&engine->model, engine->dir, &params, &err);
    if (st != TAMIS_STATUS_OK)
        return open_failed(args, st, &err);
    engine->info = tamis_model_get_info(engine->model);
    if (!cli_has_tokenizer(engine->dir))
        return CLI_EXIT_OK;
    return cli_open_tokenizer(engine->dir, &engine->tokenizer);
}

int32_t cli_engine_bos_id(const cli_engine *engine)
{
    if (engine->tokenizer != NULL) {
        const int32_t id = tamis_tokenizer_get_info(engine->tokenizer).bos_id;
        if (id >= 0)
            return id;
    }
    return engine->info->bos_token_id;
}

static int check_ids(const cli_engine *engine, const cli_ints *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        if (ids->values[i] >= engine->info->vocab_size)
            return cli_fail(CLI_EXIT_MODEL,
                            "%s/tokenizer.json: token id seen %d, allowed: below %d (vocab_size)",
                            engine->dir, (int)ids->values[i], (int)engine->info->vocab_size);
    return CLI_EXIT_OK;
}

static cli_bos bos_rule(const cli_engine *engine, const int32_t *ids, size_t n)
{
    const int32_t bos = cli_engine_bos_id(engine);
    if (bos < 0)
        return CLI_BOS_NONE;
    if (n > 0 && ids[0] == bos)
        return CLI_BOS_IN_TEXT;
    return tamis_tokenizer_get_info(engine->tokenizer).add_bos_token ? CLI_BOS_ADDED : CLI_BOS_NONE;
}

int cli_engine_encode(const cli_engine *engine, const char *text, size_t bytes, cli_ints *ids,
                      cli_bos *bos)
{
    tamis_error err = {0};
    int32_t *encoded;
    size_t n;
    if (engine->tokenizer == NULL)
        return cli_refuse(engine->args,
                          cli_has(engine->args, CLI_OPT_PROMPT) ? CLI_OPT_PROMPT : CLI_OPT_FILE,
                          "the model folder has no tokenizer.json; give token ids with --ids");
    const tamis_status st = tamis_tokenizer_encode(engine->tokenizer, text, bytes,
                                                   TAMIS_ENCODE_ADDED_TOKENS, &encoded, &n, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    const cli_bos rule = bos_rule(engine, encoded, n);
    if (bos != NULL)
        *bos = rule;
    if (rule == CLI_BOS_ADDED)
        cli_ints_push(ids, cli_engine_bos_id(engine));
    for (size_t i = 0; i < n; i++)
        cli_ints_push(ids, encoded[i]);
    tamis_ids_free(encoded);
    return check_ids(engine, ids);
}

/* ---------------------------------------------------------------- session */

int32_t cli_engine_context(const cli_engine *engine, int64_t wanted)
{
    if (cli_has(engine->args, CLI_OPT_MAX_MODEL_LEN))
        return (int32_t)engine->args->value[CLI_OPT_MAX_MODEL_LEN].integer;
    const int64_t most = engine->info->max_position_embeddings;
    return (int32_t)(wanted > most ? most : wanted < 1 ? 1 : wanted);
}

int32_t cli_engine_step_tokens(const cli_engine *engine, int32_t context, bool all_logits)
{
    const int64_t row_bytes = (int64_t)engine->info->vocab_size * (int64_t)sizeof(float);
    int64_t tokens = 512;
    if (cli_has(engine->args, CLI_OPT_MAX_NUM_BATCHED_TOKENS))
        tokens = engine->args->value[CLI_OPT_MAX_NUM_BATCHED_TOKENS].integer;
    else if (all_logits && tokens * row_bytes > (64 << 20))
        tokens = (64 << 20) / row_bytes < 8 ? 8 : (64 << 20) / row_bytes;
    return (int32_t)(tokens < context ? tokens : context);
}

static tamis_dtype kv_cache_dtype(const cli_args *args)
{
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_AUTO, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F32,
                                         TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_I8};
    return dtypes[cli_choice(args, CLI_OPT_KV_CACHE_DTYPE)];
}

static tamis_session_params session_params(const cli_engine *engine, int32_t context,
                                           int32_t step_tokens, int32_t num_logits)
{
    const cli_args *args = engine->args;
    tamis_session_params p = tamis_session_params_default();
    p.max_model_len = context;
    p.max_num_batched_tokens = step_tokens;
    p.max_num_logits = num_logits + engine->draft_tokens;
    p.max_rollback = p.max_rollback < engine->draft_tokens ? engine->draft_tokens : p.max_rollback;
    p.mtp = engine->drafter == TAMIS_DRAFTER_MTP && engine->draft_tokens > 0;
    if (cli_has(args, CLI_OPT_THREADS))
        p.n_threads = (int32_t)args->value[CLI_OPT_THREADS].integer;
    p.kv_cache_dtype = kv_cache_dtype(args);
    if (cli_has(args, CLI_OPT_MEMORY_LIMIT))
        p.memory_limit_bytes = args->value[CLI_OPT_MEMORY_LIMIT].natural;
    return p;
}

/* Whether the profile lacks the rows that --kv-cache-dtype names, and nothing else is wrong. */
static bool is_dtype_refused(const cli_engine *engine, const tamis_session_params *params)
{
    tamis_memory_plan plan;
    tamis_session_params p = *params;
    p.kv_cache_dtype = TAMIS_DTYPE_AUTO;
    return params->kv_cache_dtype != TAMIS_DTYPE_AUTO &&
           tamis_session_plan_memory(engine->model, &p, &plan, NULL) == TAMIS_STATUS_OK;
}

/* The parameters come from flags, so a refusal is a usage error. */
static int plan_failed(const cli_engine *engine, const tamis_session_params *params,
                       tamis_status st, const tamis_error *err)
{
    const cli_args *args = engine->args;
    if (st == TAMIS_STATUS_LIMIT && cli_has(args, CLI_OPT_MAX_MODEL_LEN))
        return cli_refuse(args, CLI_OPT_MAX_MODEL_LEN, err->text);
    if (st == TAMIS_STATUS_UNSUPPORTED && is_dtype_refused(engine, params))
        return cli_refuse(args, CLI_OPT_KV_CACHE_DTYPE, err->text);
    if (st == TAMIS_STATUS_LIMIT || st == TAMIS_STATUS_INVALID)
        return cli_fail(CLI_EXIT_USAGE, "%s", err->text);
    return cli_fail(cli_exit_code(st), "%s", err->text);
}

static int check_plan(const tamis_memory_plan *plan)
{
    char total[CLI_SIZE_BYTES], limit[CLI_SIZE_BYTES];
    if (plan->total <= plan->limit)
        return CLI_EXIT_OK;
    return cli_fail(
        CLI_EXIT_MEMORY,
        "the memory plan needs %s, allowed: %s; lower -c or -ub, or raise --memory-limit",
        cli_format_size(plan->total, total), cli_format_size(plan->limit, limit));
}

int cli_engine_plan(const cli_engine *engine, int32_t context, int32_t step_tokens,
                    int32_t num_logits, tamis_memory_plan *plan)
{
    tamis_error err = {0};
    const tamis_session_params p = session_params(engine, context, step_tokens, num_logits);
    const tamis_status st = tamis_session_plan_memory(engine->model, &p, plan, &err);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : plan_failed(engine, &p, st, &err);
}

int cli_engine_open_session(cli_engine *engine, int32_t context, int32_t step_tokens,
                            int32_t num_logits)
{
    tamis_error err = {0};
    tamis_memory_plan plan;
    const tamis_session_params p = session_params(engine, context, step_tokens, num_logits);
    int code = cli_engine_plan(engine, context, step_tokens, num_logits, &plan);
    if (code != CLI_EXIT_OK)
        return code;
    cli_report(engine, &p, &plan);
    code = check_plan(&plan);
    if (code != CLI_EXIT_OK)
        return code;
    tamis_status st = tamis_session_open(&engine->session, engine->model, &p, &err);
    if (st != TAMIS_STATUS_OK)
        return plan_failed(engine, &p, st, &err);
    st = tamis_seq_create(engine->session, &engine->seq, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    engine->max_model_len = context;
    engine->step_tokens = step_tokens;
    return CLI_EXIT_OK;
}

const char *cli_engine_index_cache(const cli_engine *engine)
{
    const tamis_model_info *info = engine->info;
    return info->is_index_cache_approximate ? "approximate"
           : info->num_shared_indexers > 0  ? "config"
                                            : "none";
}

int cli_engine_step(cli_engine *engine, const int32_t *tokens, int32_t n, tamis_logits_want want,
                    const uint8_t *mask)
{
    tamis_error err = {0};
    const tamis_feed feed = {
        .seq = engine->seq, .tokens = tokens, .n_tokens = n, .logits = want, .logits_mask = mask};
    const tamis_status st = tamis_session_step(engine->session, &feed, 1, &err);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : cli_fail(cli_exit_code(st), "%s", err.text);
}

void cli_engine_close(cli_engine *engine)
{
    tamis_session_close(&engine->session);
    tamis_tokenizer_close(&engine->tokenizer);
    tamis_model_close(&engine->model);
}
