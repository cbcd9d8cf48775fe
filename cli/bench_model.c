/*
 * tamis bench model: prompts of N tokens and N tokens generated one by one, behind depths, for each
 * number of threads. Token ids are random; the next token does not depend on the logits, which are
 * computed for the last token of a prompt and for every generated one.
 *
 * A depth is filled once, into one sequence; each run works on a copy of it (blocks are shared), so
 * all runs begin with the same context. Floors are counted step by step for the better of the two
 * roofs.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench_model.h"
#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "progress.h"
#include "run_engine.h"

typedef struct runner {
    bench_model *bench;
    tamis_model *model;
    tamis_session *session;
    bench_list prompts, gens, depths, threads;
    int32_t longest, deepest; /* of tests and depths */
    int32_t *tokens;          /* [deepest + longest] */
    uint64_t anon_before;     /* when nothing was open yet */
} runner;

/* Anonymous memory of this process in bytes; 0: the system does not tell. */
static uint64_t anonymous_bytes(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return (uint64_t)kib * 1024;
}

static int failed(tamis_status st, const tamis_error *err)
{
    return cli_fail(cli_exit_code(st), "%s", err->text);
}

/* ---------------------------------------------------------------- steps */

/* Tokens [first, first + n) of the text, which ask for logits of the last one only. */
static int feed(runner *r, int32_t seq, int32_t first, int32_t n, bool wants_logits,
                cli_progress *progress)
{
    const int32_t most = r->bench->step_tokens;
    for (int32_t at = 0; at < n;) {
        tamis_error err = {0};
        const int32_t left = n - at, size = left < most ? left : most;
        const tamis_feed step = {.seq = seq,
                                 .tokens = r->tokens + first + at,
                                 .n_tokens = size,
                                 .logits = wants_logits && size == left ? TAMIS_LOGITS_LAST
                                                                        : TAMIS_LOGITS_NONE};
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        const tamis_status st = tamis_session_step(r->session, &step, 1, &err);
        if (st != TAMIS_STATUS_OK)
            return failed(st, &err);
        at += size;
        if (progress != NULL)
            cli_progress_show(progress, at);
    }
    return CLI_EXIT_OK;
}

static int run_test(runner *r, int32_t seq, const bench_test *t, double *seconds)
{
    const double started = cli_seconds();
    int code = CLI_EXIT_OK;
    if (t->is_prompt)
        code = feed(r, seq, t->depth, t->n, true, NULL);
    for (int32_t i = 0; !t->is_prompt && i < t->n && code == CLI_EXIT_OK; i++)
        code = feed(r, seq, t->depth + i, 1, true, NULL);
    *seconds = cli_seconds() - started;
    return code;
}

/* On a copy of the sequence that holds the depth. */
static int repeat(runner *r, int32_t base, bench_test *t, int32_t i)
{
    tamis_error err = {0};
    int32_t seq;
    tamis_status st = tamis_seq_fork(r->session, base, &seq, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    const int code = run_test(r, seq, t, &t->seconds[i]);
    st = tamis_seq_drop(r->session, seq, &err);
    if (code == CLI_EXIT_OK && st != TAMIS_STATUS_OK)
        return failed(st, &err);
    return code;
}

static int fill(runner *r, int32_t seq, int32_t depth)
{
    tamis_error err = {0};
    cli_progress progress;
    if (depth == 0)
        return CLI_EXIT_OK;
    if (r->bench->is_random) {
        const tamis_status st = tamis_seq_fill_random(r->session, seq, depth, 1, &err);
        return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : failed(st, &err);
    }
    cli_progress_start(&progress, "depth", depth);
    const int code = feed(r, seq, 0, depth, false, &progress);
    cli_progress_clear(&progress);
    return code;
}

/* ---------------------------------------------------------------- tests */

static int add_test(runner *r, bench_group *g, int32_t base, bench_test test)
{
    bench_model *b = r->bench;
    int code = CLI_EXIT_OK;
    test.seconds = cli_alloc((size_t)b->repetitions, sizeof *test.seconds);
    bench_test *t = &b->tests[b->n_tests++];
    *t = test;
    g->n_tests++;
    for (int32_t i = 0; i < b->repetitions && code == CLI_EXIT_OK; i++)
        code = repeat(r, base, t, i);
    const uint64_t anon = anonymous_bytes();
    if (anon > r->anon_before && anon - r->anon_before > g->taken_bytes)
        g->taken_bytes = anon - r->anon_before;
    if (code == CLI_EXIT_OK)
        cli_info("%s%d @ d%d, %d threads: %.3f s", t->is_prompt ? "pp" : "tg", (int)t->n,
                 (int)t->depth, (int)t->n_threads, t->seconds[b->repetitions - 1]);
    return code;
}

static int run_depth(runner *r, bench_group *g, int32_t depth, int32_t n_threads)
{
    tamis_error err = {0};
    int32_t base;
    tamis_status st = tamis_seq_create(r->session, &base, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    int code = fill(r, base, depth);
    for (size_t i = 0; i < r->prompts.n && code == CLI_EXIT_OK; i++)
        if (r->prompts.values[i] > 0)
            code = add_test(r, g, base,
                            (bench_test){.is_prompt = true,
                                         .n = r->prompts.values[i],
                                         .depth = depth,
                                         .n_threads = n_threads});
    for (size_t i = 0; i < r->gens.n && code == CLI_EXIT_OK; i++)
        if (r->gens.values[i] > 0)
            code = add_test(
                r, g, base,
                (bench_test){.n = r->gens.values[i], .depth = depth, .n_threads = n_threads});
    st = tamis_seq_drop(r->session, base, &err);
    return code == CLI_EXIT_OK && st != TAMIS_STATUS_OK ? failed(st, &err) : code;
}

/* A prompt and a token whose times nobody sees: weights come into memory, threads wake up. */
static int warm_up(runner *r)
{
    const int32_t most = r->bench->step_tokens;
    const int32_t n = most < r->longest ? most : r->longest;
    tamis_error err = {0};
    int32_t seq;
    tamis_status st = tamis_seq_create(r->session, &seq, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    int code = feed(r, seq, 0, n, true, NULL);
    st = tamis_seq_drop(r->session, seq, &err);
    return code == CLI_EXIT_OK && st != TAMIS_STATUS_OK ? failed(st, &err) : code;
}

/* ---------------------------------------------------------------- floors */

static int add_step(const runner *r, bench_test *t, int32_t context, int32_t n, bool has_logits,
                    const tamis_roof *roof)
{
    tamis_model_work work;
    tamis_error err = {0};
    const tamis_status st =
        tamis_model_count_work(r->model, context, n, has_logits ? 1 : 0, roof, &work, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    t->work.f32_ops += work.f32_ops;
    t->work.int8_ops += work.int8_ops;
    t->work.bytes += work.bytes;
    t->work.floor_ms += work.floor_ms;
    return CLI_EXIT_OK;
}

static int set_floor(const runner *r, bench_test *t, const tamis_roof *roof)
{
    const int32_t most = t->is_prompt ? r->bench->step_tokens : 1;
    int code = CLI_EXIT_OK;
    t->work = (tamis_model_work){0};
    for (int32_t at = 0; at < t->n && code == CLI_EXIT_OK;) {
        const int32_t left = t->n - at, size = left < most ? left : most;
        code = add_step(r, t, t->depth + at, size, size == left || !t->is_prompt, roof);
        at += size;
    }
    return code;
}

/* ---------------------------------------------------------------- session */

static int32_t blocks_of(int32_t tokens, int32_t block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

static tamis_session_params session_params(const runner *r, int32_t n_threads)
{
    const cli_args *args = r->bench->args;
    tamis_session_params p = tamis_session_params_default();
    p.n_threads = n_threads;
    p.max_model_len = r->deepest + r->longest;
    p.max_num_seqs = 2; /* one that holds the depth, a copy that goes on */
    p.max_num_batched_tokens = r->bench->step_tokens;
    p.num_blocks =
        3 + blocks_of(p.max_model_len, p.block_tokens) + blocks_of(r->longest, p.block_tokens);
    if (cli_has(args, CLI_OPT_MEMORY_LIMIT))
        p.memory_limit_bytes = args->value[CLI_OPT_MEMORY_LIMIT].natural;
    return p;
}

static int open_session(runner *r, bench_group *g, int32_t n_threads)
{
    const tamis_session_params p = session_params(r, n_threads);
    tamis_memory_plan plan;
    tamis_error err = {0};
    tamis_status st = tamis_session_plan_memory(r->model, &p, &plan, &err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_session_open(&r->session, r->model, &p, &err);
    if (st == TAMIS_STATUS_LIMIT || st == TAMIS_STATUS_INVALID)
        return cli_fail(CLI_EXIT_USAGE, "%s", err.text);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    g->planned_bytes = plan.total;
    r->bench->kv_cache_dtype = plan.kv_cache_dtype;
    return CLI_EXIT_OK;
}

static int run_session(runner *r, bench_group *g, int32_t n_threads)
{
    int code = open_session(r, g, n_threads);
    if (code == CLI_EXIT_OK)
        code = warm_up(r);
    for (size_t i = 0; i < r->depths.n && code == CLI_EXIT_OK; i++)
        code = run_depth(r, g, r->depths.values[i], n_threads);
    tamis_session_close(&r->session);
    return code;
}

static int run_threads(runner *r, int32_t n_threads)
{
    bench_model *b = r->bench;
    const double seconds = bench_seconds(b->args, 1.0);
    bench_group *g = &b->groups[b->n_groups++];
    g->first_test = b->n_tests;
    int code = bench_roofs_begin(&g->roofs, n_threads, seconds);
    if (code == CLI_EXIT_OK)
        code = run_session(r, g, n_threads);
    if (code == CLI_EXIT_OK)
        code = bench_roofs_end(&g->roofs, seconds);
    for (size_t i = 0; i < g->n_tests && code == CLI_EXIT_OK; i++)
        code = set_floor(r, &b->tests[g->first_test + i], &g->roofs.best);
    return code;
}

/* ---------------------------------------------------------------- the command */

static int32_t largest(bench_list list)
{
    int32_t most = 0;
    for (size_t i = 0; i < list.n; i++)
        most = list.values[i] > most ? list.values[i] : most;
    return most;
}

static int read_options(runner *r)
{
    static const int32_t usual_prompt = 512, usual_gen = 128, usual_depth = 0;
    static int32_t usual_threads;
    bench_model *b = r->bench;
    const cli_args *args = b->args;
    usual_threads = bench_default_threads();
    r->prompts = bench_list_of(args, CLI_OPT_N_PROMPT, &usual_prompt);
    r->gens = bench_list_of(args, CLI_OPT_N_GEN, &usual_gen);
    r->depths = bench_list_of(args, CLI_OPT_N_DEPTH, &usual_depth);
    r->threads = bench_list_of(args, CLI_OPT_THREAD_LIST, &usual_threads);
    r->deepest = largest(r->depths);
    r->longest = largest(r->prompts);
    if (largest(r->gens) > r->longest)
        r->longest = largest(r->gens);
    b->is_random = cli_choice(args, CLI_OPT_FILL) == 0;
    b->repetitions =
        cli_has(args, CLI_OPT_REPETITIONS) ? (int32_t)args->value[CLI_OPT_REPETITIONS].integer : 3;
    b->step_tokens = cli_has(args, CLI_OPT_MAX_NUM_BATCHED_TOKENS)
                         ? (int32_t)args->value[CLI_OPT_MAX_NUM_BATCHED_TOKENS].integer
                         : 512;
    if (cli_has(args, CLI_OPT_JSON) && cli_has(args, CLI_OPT_CSV))
        return cli_refuse(args, CLI_OPT_CSV, "not together with --json");
    if (r->longest == 0)
        return cli_refuse(args, cli_has(args, CLI_OPT_N_PROMPT) ? CLI_OPT_N_PROMPT : CLI_OPT_N_GEN,
                          "nothing to measure: -p and -n are both 0");
    return CLI_EXIT_OK;
}

static int open_model(runner *r)
{
    bench_model *b = r->bench;
    tamis_model_params params = tamis_model_params_default();
    const tamis_inspection *in;
    tamis_error err = {0};
    params.profile = cli_profile(b->args, 0);
    b->dir = cli_text(b->args, CLI_OPT_MODEL);
    tamis_status st = tamis_model_open_with(&r->model, b->dir, &params, &err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_model_inspect(r->model, &in, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code_of_model(st), "%s", err.text);
    b->info = in->info;
    b->bytes = in->tensor_bytes;
    b->n_params = in->n_params;
    return CLI_EXIT_OK;
}

static void make_tokens(runner *r)
{
    const size_t n = (size_t)r->deepest + (size_t)r->longest;
    uint64_t state = 1;
    r->tokens = cli_alloc(n, sizeof *r->tokens);
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        r->tokens[i] = (int32_t)((state >> 33) % (uint64_t)r->bench->info->vocab_size);
    }
}

static int run_all(runner *r)
{
    bench_model *b = r->bench;
    r->anon_before = anonymous_bytes();
    int code = open_model(r);
    if (code != CLI_EXIT_OK)
        return code;
    make_tokens(r);
    b->groups = cli_alloc(r->threads.n, sizeof *b->groups);
    b->tests = cli_alloc(r->threads.n * r->depths.n * (r->prompts.n + r->gens.n), sizeof *b->tests);
    for (size_t i = 0; i < r->threads.n && code == CLI_EXIT_OK; i++)
        code = run_threads(r, r->threads.values[i]);
    if (code == CLI_EXIT_OK)
        bench_model_print(b);
    return code;
}

int cli_cmd_bench_model(const cli_args *args)
{
    bench_model bench = {.args = args};
    runner r = {.bench = &bench};
    int code = read_options(&r);
    if (code == CLI_EXIT_OK)
        code = run_all(&r);
    for (size_t i = 0; i < bench.n_tests; i++)
        free(bench.tests[i].seconds);
    free(bench.tests);
    free(bench.groups);
    free(r.tokens);
    tamis_model_close(&r.model);
    return bench_end(code);
}
