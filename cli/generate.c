/* tamis generate: prompt -> steps -> sampled ids -> streamed text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "output.h"
#include "run_engine.h"

typedef enum finish_reason {
    GOING_ON = 0,
    FINISH_EOS,
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_CONTEXT,
    FINISH_INTERRUPTED,
    FINISH_OUTPUT_FAILED
} finish_reason;

typedef struct generation {
    const cli_args *args;
    cli_engine engine;
    cli_ints prompt, ids; /* ids: what was generated and is shown */
    cli_buffer text;      /* --json: all text */
    tamis_sampler_params sampling;
    tamis_sampler *sampler;
    tamis_stream *stream; /* NULL: no tokenizer */
    tamis_stop *stop;
    tamis_spec *spec;
    int64_t max_tokens;
    int32_t num_ids; /* ids that may be drawn: 0 .. num_ids-1 */
    bool prints_ids, is_json, keeps_eos;
    finish_reason finish;
    int32_t eos_id; /* the one that ended it */
    size_t n_prompt_fed;
    double prompt_seconds, seconds;
} generation;

/* ---------------------------------------------------------------- settings */

static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    return seed >> 32; /* short enough to type again */
}

/*
 * generation_config.json unless flags are given. Where it says do_sample false, only a flag that
 * asks for sampling switches it on.
 */
static void choose_sampling(generation *g)
{
    const cli_args *args = g->args;
    const tamis_model_info *info = g->engine.info;
    tamis_sampler_params *p = &g->sampling;
    *p = tamis_sampler_params_default();
    const bool samples = info->do_sample || cli_has(args, CLI_OPT_TOP_K) ||
                         cli_has(args, CLI_OPT_TOP_P) || cli_has(args, CLI_OPT_MIN_P);
    p->temperature = samples ? info->temperature : 0.0f;
    p->top_k = info->top_k;
    p->top_p = info->top_p;
    p->min_p = info->min_p;
    if (cli_has(args, CLI_OPT_TEMP))
        p->temperature = (float)args->value[CLI_OPT_TEMP].real;
    if (cli_has(args, CLI_OPT_TOP_K)) {
        const int64_t k = args->value[CLI_OPT_TOP_K].integer;
        p->top_k = k < 0 ? 0 : (int32_t)k;
    }
    if (cli_has(args, CLI_OPT_TOP_P))
        p->top_p = (float)args->value[CLI_OPT_TOP_P].real;
    if (cli_has(args, CLI_OPT_MIN_P))
        p->min_p = (float)args->value[CLI_OPT_MIN_P].real;
    const int64_t seed = cli_has(args, CLI_OPT_SEED) ? args->value[CLI_OPT_SEED].integer : -1;
    p->seed = seed < 0 ? random_seed() : (uint64_t)seed;
    if (p->temperature <= 0.0f)
        cli_info("sample: greedy");
    else
        cli_info("sample: temperature %g, top-k %d, top-p %g, min-p %g, seed %llu",
                 (double)p->temperature, (int)p->top_k, (double)p->top_p, (double)p->min_p,
                 (unsigned long long)p->seed);
}

static void choose_drafter(generation *g)
{
    static const tamis_drafter drafters[] = {TAMIS_DRAFTER_MTP, TAMIS_DRAFTER_PROMPT_LOOKUP};
    const cli_args *args = g->args;
    for (int i = 0; i < 2; i++)
        if (cli_has(args, CLI_OPT_DRAFT) &&
            strcmp(cli_text(args, CLI_OPT_DRAFT), tamis_drafter_name(drafters[i])) == 0)
            g->engine.drafter = drafters[i];
}

/* Tokens per step that are drafts: with the token before them they have to fit into a step. */
static int choose_draft_tokens(generation *g, int32_t context, int32_t step_tokens)
{
    const cli_args *args = g->args;
    int64_t n = tamis_spec_params_default().max_draft;
    if (g->engine.drafter == TAMIS_DRAFTER_NONE)
        return CLI_EXIT_OK;
    if (cli_has(args, CLI_OPT_DRAFT_TOKENS))
        n = args->value[CLI_OPT_DRAFT_TOKENS].integer;
    n = n < context ? n : context - 1; /* more would never be guessed */
    if (n > step_tokens - 1) {
        char why[128];
        snprintf(why, sizeof why,
                 "value seen %d, allowed: at least %d, for the drafts and the token before them "
                 "(--draft-tokens + 1)",
                 (int)step_tokens, (int)n + 1);
        return cli_refuse(args, CLI_OPT_MAX_NUM_BATCHED_TOKENS, why);
    }
    g->engine.draft_tokens = (int32_t)n;
    return CLI_EXIT_OK;
}

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text); /* refuses everything else */
    json_decref(string);
    return string != NULL;
}

/* Why a folder's own drafter cannot draft. */
static const char *no_mtp_text(const char *drafter)
{
    if (strcmp(drafter, "dspark") == 0)
        return "the model folder has a DSpark drafter, which tamis does not run; allowed: none, "
               "prompt-lookup";
    if (strcmp(drafter, "rotated mtp") == 0)
        return "the model folder is rotated (is_rot_used), and tamis does not run the MTP block of "
               "such a folder; allowed: none, prompt-lookup";
    return "the model folder has no MTP block; allowed: none, prompt-lookup";
}

static int check_options(const generation *g)
{
    const cli_args *args = g->args;
    if (g->engine.tokenizer == NULL && cli_has(args, CLI_OPT_STOP))
        return cli_refuse(args, CLI_OPT_STOP,
                          "the model folder has no tokenizer.json, so there is "
                          "no text to look for it in");
    for (size_t i = 0; i < args->n_stops; i++)
        if (!is_utf8(args->stops[i]))
            return cli_refuse(args, CLI_OPT_STOP, "the string is not UTF-8");
    if (cli_has(args, CLI_OPT_DRAFT_TOKENS) && g->engine.drafter == TAMIS_DRAFTER_NONE)
        return cli_refuse(args, CLI_OPT_DRAFT_TOKENS, "needs --draft mtp or --draft prompt-lookup");
    if (g->engine.drafter == TAMIS_DRAFTER_MTP && strcmp(g->engine.info->drafter, "mtp") != 0)
        return cli_refuse(args, CLI_OPT_DRAFT, no_mtp_text(g->engine.info->drafter));
    if (cli_has(args, CLI_OPT_JSON) && cli_has(args, CLI_OPT_PRINT_IDS))
        return cli_refuse(args, CLI_OPT_PRINT_IDS, "not together with --json, which has the ids");
    return CLI_EXIT_OK;
}

static int read_prompt(generation *g)
{
    const cli_args *args = g->args;
    if (cli_has(args, CLI_OPT_IDS))
        return cli_read_ints(cli_text(args, CLI_OPT_IDS), 0, g->engine.info->vocab_size - 1,
                             &g->prompt);
    if (cli_has(args, CLI_OPT_PROMPT)) {
        const char *text = cli_text(args, CLI_OPT_PROMPT);
        return cli_engine_encode(&g->engine, text, strlen(text), &g->prompt, NULL);
    }
    cli_buffer text;
    int code = cli_read_file(cli_text(args, CLI_OPT_FILE), &text);
    if (code == CLI_EXIT_OK)
        code = cli_engine_encode(&g->engine, text.bytes, text.n, &g->prompt, NULL);
    cli_buffer_free(&text);
    return code;
}

static bool is_eos(const generation *g, int32_t id)
{
    const tamis_model_info *info = g->engine.info;
    for (int32_t i = 0; i < info->n_eos_token_ids; i++)
        if (info->eos_token_ids[i] == id)
            return true;
    return info->n_eos_token_ids == 0 && g->engine.tokenizer != NULL &&
           tamis_tokenizer_get_info(g->engine.tokenizer).eos_id == id;
}

/* The drafter, if any; the prompt and the steps go through it in any case. */
static int open_speculation(generation *g)
{
    tamis_error err = {0};
    tamis_spec_params p = tamis_spec_params_default();
    if (g->engine.draft_tokens > 0) {
        p.drafter = g->engine.drafter;
        p.max_draft = g->engine.draft_tokens;
    }
    const tamis_status st = tamis_spec_open(&g->spec, g->engine.session, g->engine.seq, &p, &err);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : cli_fail(cli_exit_code(st), "%s", err.text);
}

/* Context for the prompt and all new tokens; 4096 if their number is open. */
static int open_session(generation *g)
{
    const int64_t n_new =
        cli_has(g->args, CLI_OPT_MAX_TOKENS) ? g->args->value[CLI_OPT_MAX_TOKENS].integer : 128;
    g->max_tokens = n_new < 0 ? INT64_MAX : n_new;
    const int64_t n_prompt = (int64_t)g->prompt.n;
    const int32_t context = cli_engine_context(&g->engine, n_new < 0 ? 4096 : n_prompt + n_new);
    if (n_prompt == 0)
        return cli_fail(CLI_EXIT_RUN, "the prompt has no tokens, allowed: at least 1");
    if (n_prompt > context || (n_prompt == context && n_new != 0))
        return cli_fail(
            CLI_EXIT_RUN,
            "the prompt has %lld tokens, allowed: %d (context %d with room for one more; "
            "the model's maximum is %d, -c sets less or more up to it)",
            (long long)n_prompt, (int)(context - (n_new != 0)), (int)context,
            (int)g->engine.info->max_position_embeddings);
    const int32_t step_tokens = cli_engine_step_tokens(&g->engine, context, false);
    const int code = choose_draft_tokens(g, context, step_tokens);
    return code != CLI_EXIT_OK ? code
                               : cli_engine_open_session(&g->engine, context, step_tokens, 1);
}

static int open_sampling(generation *g)
{
    tamis_error err = {0};
    const int32_t vocab_size = g->engine.info->vocab_size;
    tamis_tokenizer *tokenizer = g->engine.tokenizer;
    choose_sampling(g);
    g->num_ids = vocab_size;
    tamis_status st = tamis_sampler_open(&g->sampler, vocab_size, &g->sampling, &err);
    if (st == TAMIS_STATUS_OK && tokenizer != NULL) {
        const int32_t num_ids = tamis_tokenizer_get_info(tokenizer).num_ids;
        g->num_ids = num_ids < vocab_size ? num_ids : vocab_size;
        st = tamis_stream_open(&g->stream, tokenizer, true, &err);
    }
    if (st == TAMIS_STATUS_OK && tokenizer != NULL)
        st = tamis_stop_open(&g->stop, g->args->stops, g->args->n_stops, &err);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : cli_fail(cli_exit_code(st), "%s", err.text);
}

/* ---------------------------------------------------------------- showing */

static void show_text(generation *g, const char *text, size_t bytes)
{
    if (g->is_json) {
        g->text.bytes = cli_grow(g->text.bytes, &g->text.capacity, g->text.n + bytes + 1, 1);
        memcpy(g->text.bytes + g->text.n, text, bytes);
        g->text.n += bytes;
    } else if (!g->prints_ids) {
        cli_out(text, bytes);
    }
}

static int pass_stop(generation *g, const char *text, size_t bytes)
{
    tamis_error err = {0};
    const char *shown;
    size_t n_shown;
    bool hit = false;
    const tamis_status st = tamis_stop_push(g->stop, text, bytes, &shown, &n_shown, &hit, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    show_text(g, shown, n_shown);
    if (hit)
        g->finish = FINISH_STOP;
    return CLI_EXIT_OK;
}

static int show_id(generation *g, int32_t id)
{
    cli_ints_push(&g->ids, id);
    if (g->prints_ids)
        cli_outf("%s%d", g->ids.n > 1 ? " " : "", (int)id);
    if (g->stream == NULL)
        return CLI_EXIT_OK;
    tamis_error err = {0};
    const char *text;
    size_t bytes;
    const tamis_status st = tamis_stream_push(g->stream, id, &text, &bytes, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    return pass_stop(g, text, bytes);
}

/* What stream and stop matcher still hold back; the held text may complete a stop string. */
static int show_rest(generation *g)
{
    const char *text;
    size_t bytes;
    if (g->stream == NULL)
        return CLI_EXIT_OK;
    tamis_stream_flush(g->stream, &text, &bytes);
    const int code = pass_stop(g, text, bytes);
    if (code != CLI_EXIT_OK)
        return code;
    tamis_stop_flush(g->stop, &text, &bytes);
    show_text(g, text, bytes);
    return CLI_EXIT_OK;
}

/* ---------------------------------------------------------------- running */

static int feed_prompt(generation *g)
{
    cli_progress progress;
    tamis_error err = {0};
    const int32_t n = (int32_t)g->prompt.n;
    const double started = cli_seconds();
    cli_progress_start(&progress, "prompt", n);
    for (int32_t at = 0; at < n && !cli_interrupted();) {
        const int32_t left = n - at;
        const int32_t chunk = left < g->engine.step_tokens ? left : g->engine.step_tokens;
        const tamis_status st = tamis_spec_prompt(g->spec, g->prompt.values + at, chunk, &err);
        if (st != TAMIS_STATUS_OK)
            return cli_fail(cli_exit_code(st), "%s", err.text);
        at += chunk;
        g->n_prompt_fed = (size_t)at;
        cli_progress_show(&progress, at);
    }
    cli_progress_clear(&progress);
    g->prompt_seconds = cli_seconds() - started;
    return CLI_EXIT_OK;
}

static finish_reason limit_reached(const generation *g)
{
    if (cli_interrupted())
        return FINISH_INTERRUPTED;
    if ((int64_t)g->ids.n >= g->max_tokens)
        return FINISH_LENGTH;
    if ((int64_t)(g->prompt.n + g->ids.n) >= g->engine.max_model_len)
        return FINISH_CONTEXT;
    return GOING_ON;
}

/* A token that was drawn: shown, unless it ends the text; may be the last one. */
static int take_token(generation *g, int32_t id)
{
    if (!g->keeps_eos && is_eos(g, id)) {
        g->finish = FINISH_EOS;
        g->eos_id = id;
        return CLI_EXIT_OK;
    }
    const int code = show_id(g, id);
    if (code == CLI_EXIT_OK && !cli_out_flush())
        g->finish = FINISH_OUTPUT_FAILED; /* the message comes with the last flush */
    if (code == CLI_EXIT_OK && g->finish == GOING_ON)
        g->finish = limit_reached(g);
    return code;
}

/* One step; what was drawn behind the end is not looked at. */
static int generate_step(generation *g)
{
    int32_t tokens[1 + TAMIS_MAX_DRAFT], n;
    tamis_error err = {0};
    const tamis_status st = tamis_spec_next(g->spec, g->sampler, g->num_ids, tokens, &n, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    int code = CLI_EXIT_OK;
    for (int32_t i = 0; i < n && code == CLI_EXIT_OK && g->finish == GOING_ON; i++)
        code = take_token(g, tokens[i]);
    return code;
}

static int run_steps(generation *g)
{
    int code = feed_prompt(g);
    const double started = cli_seconds();
    if (code == CLI_EXIT_OK)
        g->finish = limit_reached(g);
    while (code == CLI_EXIT_OK && g->finish == GOING_ON)
        code = generate_step(g);
    const int rest = show_rest(g);
    g->seconds = cli_seconds() - started;
    return code != CLI_EXIT_OK ? code : rest;
}

/* ---------------------------------------------------------------- the end */

static const char *finish_word(finish_reason reason)
{
    static const char *const words[] = {"error",   "eos",         "stop",         "length",
                                        "context", "interrupted", "output failed"};
    return words[reason];
}

static void print_json(const generation *g)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < g->ids.n; i++)
        json_array_append_new(ids, json_integer(g->ids.values[i]));
    json_t *object = json_object();
    if (g->stream != NULL)
        json_object_set_new(object, "text",
                            json_stringn(g->text.n ? g->text.bytes : "", g->text.n));
    json_object_set_new(object, "ids", ids);
    json_object_set_new(object, "finish_reason", json_string(finish_word(g->finish)));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)g->prompt.n));
    json_object_set_new(object, "generated_tokens", json_integer((json_int_t)g->ids.n));
    if (g->engine.draft_tokens > 0) {
        const tamis_spec_stats s = tamis_spec_get_stats(g->spec);
        json_object_set_new(object, "drafted_tokens", json_integer((json_int_t)s.n_drafted));
        json_object_set_new(object, "accepted_tokens", json_integer((json_int_t)s.n_accepted));
    }
    if (g->sampling.temperature > 0.0f)
        json_object_set_new(object, "seed", json_integer((json_int_t)g->sampling.seed));
    json_object_set_new(object, "index_cache", json_string(cli_engine_index_cache(&g->engine)));
    json_object_set_new(object, "profile", json_string(g->engine.info->profile));
    cli_out_json(object, 0);
    json_decref(object);
}

static double per_second(size_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

/* `2>&1`: the closing lines do not run on in the text's last one; standard output stays exact. */
static void start_fresh_line(void)
{
    if (!cli_out_is_at_line_start() && !cli_message_is_quiet() && cli_out_is_shared_with_stderr())
        fputc('\n', stderr);
}

static void print_drafts(const generation *g)
{
    const tamis_spec_stats s = tamis_spec_get_stats(g->spec);
    if (g->engine.draft_tokens > 0)
        cli_info("draft:  %s, %llu tokens guessed, %llu right (%.1f %%); %.2f tokens per step",
                 tamis_drafter_name(g->engine.drafter), (unsigned long long)s.n_drafted,
                 (unsigned long long)s.n_accepted,
                 s.n_drafted > 0 ? 100.0 * (double)s.n_accepted / (double)s.n_drafted : 0.0,
                 s.n_steps > 0 ? (double)s.n_tokens / (double)s.n_steps : 0.0);
}

static void print_end(const generation *g)
{
    if (g->is_json)
        print_json(g);
    else if (g->prints_ids)
        cli_out("\n", 1);
    else if (cli_out_is_terminal() && !cli_out_is_at_line_start())
        cli_out("\n", 1);
    cli_out_flush();
    start_fresh_line();
    if (g->finish == FINISH_EOS)
        cli_info("finish: eos (token %d)", (int)g->eos_id);
    else if (g->finish == FINISH_CONTEXT)
        cli_info("finish: context full (%d tokens)", (int)g->engine.max_model_len);
    else
        cli_info("finish: %s", finish_word(g->finish));
    cli_info("speed:  prompt %zu tokens, %.1f tok/s; generated %zu tokens, %.1f tok/s",
             g->n_prompt_fed, per_second(g->n_prompt_fed, g->prompt_seconds), g->ids.n,
             per_second(g->ids.n, g->seconds));
    print_drafts(g);
}

static int run(generation *g)
{
    int code = cli_engine_open_model(&g->engine, g->args, cli_profile(g->args, 0));
    choose_drafter(g);
    if (code == CLI_EXIT_OK)
        code = check_options(g);
    if (code == CLI_EXIT_OK)
        code = read_prompt(g);
    if (code == CLI_EXIT_OK)
        code = open_session(g);
    if (code == CLI_EXIT_OK)
        code = open_sampling(g);
    if (code == CLI_EXIT_OK)
        code = open_speculation(g);
    if (code != CLI_EXIT_OK)
        return code;
    g->prints_ids = !g->is_json && (g->stream == NULL || cli_has(g->args, CLI_OPT_PRINT_IDS));
    code = run_steps(g);
    print_end(g);
    if (code == CLI_EXIT_OK && g->finish == FINISH_INTERRUPTED)
        return CLI_EXIT_INTERRUPTED;
    return code;
}

int cli_cmd_generate(const cli_args *args)
{
    generation g = {.args = args,
                    .is_json = cli_has(args, CLI_OPT_JSON),
                    .keeps_eos = cli_has(args, CLI_OPT_IGNORE_EOS)};
    const int code = run(&g);
    tamis_spec_close(&g.spec);
    tamis_stop_close(&g.stop);
    tamis_stream_close(&g.stream);
    tamis_sampler_close(&g.sampler);
    cli_engine_close(&g.engine);
    cli_buffer_free(&g.text);
    cli_ints_free(&g.prompt);
    cli_ints_free(&g.ids);
    return code;
}
