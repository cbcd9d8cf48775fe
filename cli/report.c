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

const char *cli_kv_cache_name(tamis_dtype dtype)
{
    switch (dtype) {
    case TAMIS_DTYPE_BF16:
        return "bf16";
    case TAMIS_DTYPE_F32:
        return "f32";
    case TAMIS_DTYPE_F8_E4M3:
        return "fp8";
    case TAMIS_DTYPE_I8:
        return "int8";
    default:
        return tamis_dtype_name(dtype);
    }
}

/* Also where a flag changes nothing. An approximation is a warning: quiet does not hide it. */
static void report_indexers(const cli_engine *engine)
{
    const tamis_model_info *info = engine->info;
    const int n = (int)info->num_shared_indexers;
    const char *const layers = n == 1 ? "layer uses" : "layers use";
    const bool is_given = cli_has(engine->args, CLI_OPT_INDEX_TOPK_FREQ) ||
                          cli_has(engine->args, CLI_OPT_INDEX_TOPK_PATTERN);
    if (info->is_index_cache_approximate)
        cli_warn("index:  %d %s an earlier layer's selection (IndexCache): an approximation, "
                 "config.json does not ask for it",
                 n, layers);
    else if (n > 0)
        cli_info("index:  %d %s an earlier layer's selection (IndexCache), as config.json %s", n,
                 layers, is_given ? "allows" : "says");
    else if (is_given)
        cli_info("index:  0 layers share: every layer with an indexer selects for itself");
}

void cli_report(const cli_engine *engine, const tamis_session_params *params,
                const tamis_memory_plan *plan)
{
    const tamis_model_info *info = engine->info;
    const tamis_cpu_level level = tamis_cpu_level_current();
    cli_info("model:  %s, profile %s, %d layers, vocabulary %d%s", info->family, info->profile,
             (int)info->num_hidden_layers, (int)info->vocab_size,
             engine->tokenizer == NULL ? ", no tokenizer" : "");
    cli_info("cpu:    %s kernels (this machine has %s), %d thread%s", tamis_cpu_level_name(level),
             tamis_cpu_level_name(tamis_cpu_level_available()), (int)params->n_threads,
             params->n_threads == 1 ? "" : "s");
    cli_info("run:    context %d tokens, %d per step, caches %s", (int)params->max_model_len,
             (int)params->max_num_batched_tokens, cli_kv_cache_name(plan->kv_cache_dtype));
    report_indexers(engine);
    if (engine->draft_tokens > 0)
        cli_info("draft:  %s, up to %d token%s per step", tamis_drafter_name(engine->drafter),
                 (int)engine->draft_tokens, engine->draft_tokens == 1 ? "" : "s");
    report_memory(plan);
}
