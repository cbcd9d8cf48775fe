#include "report.h"

#include "message.h"

typedef char size_text[CLI_SIZE_BYTES];

static void report_memory(const tamis_memory_plan *plan)
{
    size_text total, limit, mapped, blocks, per_token, rings, workspace, logits, widened;
    cli_info("memory: %s of %s allowed, beside %s of mapped weights",
             cli_format_size(plan->total, total), cli_format_size(plan->limit, limit),
             cli_format_size(plan->weights_mapped, mapped));
    cli_info("        cache blocks %s (%s per token), rings %s, workspace %s, logits %s, "
             "widened weights %s",
             cli_format_size(plan->cache_blocks, blocks),
             cli_format_size(plan->cache_bytes_per_token, per_token),
             cli_format_size(plan->cache_rings, rings), cli_format_size(plan->workspace, workspace),
             cli_format_size(plan->logits, logits),
             cli_format_size(plan->weights_widened, widened));
}

static void report_indexers(const tamis_model_info *info)
{
    if (info->num_shared_indexers == 0)
        return;
    cli_info("index:  %d layers use an earlier layer's selection (IndexCache)%s",
             (int)info->num_shared_indexers,
             info->is_index_cache_approximate
                 ? ": an approximation, config.json does not ask for it"
                 : ", as config.json says");
}

void cli_report(const cli_engine *engine, const tamis_session_params *params,
                const tamis_memory_plan *plan)
{
    if (cli_message_is_quiet())
        return;
    const tamis_model_info *info = engine->info;
    const tamis_cpu_level level = tamis_cpu_level_current();
    cli_info("model:  %s, profile %s, %d layers, vocabulary %d%s", info->family, info->profile,
             (int)info->num_hidden_layers, (int)info->vocab_size,
             engine->tokenizer == NULL ? ", no tokenizer" : "");
    cli_info("cpu:    %s kernels (this machine has %s), %d thread%s", tamis_cpu_level_name(level),
             tamis_cpu_level_name(tamis_cpu_level_available()), (int)params->n_threads,
             params->n_threads == 1 ? "" : "s");
    cli_info("run:    context %d tokens, %d per step, caches %s", (int)params->max_model_len,
             (int)params->max_num_batched_tokens,
             params->kv_cache_dtype == TAMIS_DTYPE_F32 ? "f32" : "bf16");
    report_indexers(info);
    if (engine->draft_tokens > 0)
        cli_info("draft:  %s, up to %d tokens per step", tamis_drafter_name(engine->drafter),
                 (int)engine->draft_tokens);
    report_memory(plan);
}
