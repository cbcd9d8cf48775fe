/*
 * tamis bench layer: one layer at a published model's dimensions, for every combination of threads,
 * tokens and contexts. The roof is measured before and after the runs of a thread count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench_machine.h"
#include "bench_plot.h"
#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "output.h"

typedef struct run {
    tamis_bench_layer_params params;
    tamis_bench_layer_result result;
} run;

typedef struct bench {
    const cli_args *args;
    bench_list contexts, tokens, threads;
    int32_t default_threads;
    run *runs; /* contexts inmost, threads outmost */
    size_t n_runs;
    bench_roofs *roofs; /* [threads.n] */
} bench;

/* ---------------------------------------------------------------- parameters */

static tamis_profile profile_of(const cli_args *args)
{
    return cli_has(args, CLI_OPT_PROFILE) ? tamis_profile_find(cli_text(args, CLI_OPT_PROFILE))
                                          : TAMIS_PROFILE_EXACT;
}

static tamis_bench_layer_params params_of(const bench *b, int32_t threads, int32_t tokens,
                                          int32_t context)
{
    static const tamis_dtype dtypes[] = {TAMIS_DTYPE_AUTO, TAMIS_DTYPE_BF16, TAMIS_DTYPE_F32,
                                         TAMIS_DTYPE_F8_E4M3, TAMIS_DTYPE_I8};
    tamis_bench_layer_params p = tamis_bench_layer_params_default();
    p.shape = tamis_shape_find(cli_text(b->args, CLI_OPT_SHAPE));
    p.kind = tamis_bench_kind_find(cli_text(b->args, CLI_OPT_KIND));
    p.profile = profile_of(b->args);
    p.kv_cache_dtype = dtypes[cli_choice(b->args, CLI_OPT_KV_CACHE_DTYPE)];
    p.context = context;
    p.num_tokens = tokens;
    p.n_threads = threads;
    p.serial = cli_has(b->args, CLI_OPT_SERIAL);
    p.seconds = bench_seconds(b->args, 1.0);
    if (cli_has(b->args, CLI_OPT_EXPERTS))
        p.n_experts = (int32_t)b->args->value[CLI_OPT_EXPERTS].integer;
    if (cli_has(b->args, CLI_OPT_VOCAB))
        p.vocab_size = (int32_t)b->args->value[CLI_OPT_VOCAB].integer;
    return p;
}

/* Whether the drawing can be written: better known before an hour of measuring than after. */
static int check_writable(const char *path)
{
    const bool is_new = access(path, F_OK) != 0;
    FILE *file = fopen(path, "a");
    if (file == NULL)
        return cli_fail_errno(CLI_EXIT_RUN, path);
    fclose(file);
    if (is_new)
        remove(path);
    return CLI_EXIT_OK;
}

static int check_plot(const bench *b)
{
    if (!cli_has(b->args, CLI_OPT_PLOT))
        return CLI_EXIT_OK;
    if (b->tokens.n != 1 || b->threads.n != 1 || b->contexts.n < 2)
        return cli_refuse(b->args, CLI_OPT_PLOT,
                          "it needs several contexts, one --tokens and one --threads");
    for (size_t i = 1; i < b->contexts.n; i++)
        if (b->contexts.values[i] <= b->contexts.values[i - 1])
            return cli_refuse(b->args, CLI_OPT_PLOT, "it needs contexts that ascend");
    return check_writable(cli_text(b->args, CLI_OPT_PLOT));
}

/* ---------------------------------------------------------------- text */

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_stage(const tamis_bench_stage *s, double whole, const tamis_roof *roof)
{
    const double ops = s->f32_ops + s->int8_ops;
    const bool is_stream = s->bytes / roof->stream_gbs * 1e-6 >= s->floor_ms;
    const char *bound = is_stream ? "stream" : s->int8_ops > s->f32_ops ? "int8" : "f32";
    if (s->ms > 0)
        cli_outf("  %-12s %10.3f %6.1f %% %10.3f %7.2f %9.1f %7.1f %7.0f %%  %s\n", s->name, s->ms,
                 100 * ratio(s->ms, whole), s->floor_ms, ratio(s->ms, s->floor_ms),
                 ops / s->ms * 1e-6, s->bytes / s->ms * 1e-6, 100 * ratio(s->floor_ms, s->ms),
                 bound);
    else
        cli_outf("  %-12s %10s %8s %10.3f %7s %9s %7s %9s  %s\n", s->name, "-", "-", s->floor_ms,
                 "-", "-", "-", "-", bound);
}

static void print_run(const run *r, const tamis_roof *roof)
{
    const tamis_bench_layer_result *out = &r->result;
    char planned[CLI_SIZE_BYTES], taken[CLI_SIZE_BYTES];
    cli_outf("\n%d token%s behind %d, %d thread%s\n", (int)r->params.num_tokens,
             r->params.num_tokens == 1 ? "" : "s", (int)r->params.context, (int)r->params.n_threads,
             r->params.n_threads == 1 ? "" : "s");
    cli_outf("  %-12s %10s %8s %10s %7s %9s %7s %9s  %s\n", "stage", "ms", "of time", "floor ms",
             "x floor", "GOP/s", "GB/s", "of roof", "bound by");
    for (int32_t i = 0; i < out->n_stages; i++)
        print_stage(&out->stages[i], out->ms, roof);
    if (out->other_ms > 0)
        cli_outf("  %-12s %10.3f %6.1f %%\n", "other", out->other_ms,
                 100 * ratio(out->other_ms, out->ms));
    cli_outf("  %-12s %10.3f %8s %10.3f %7.2f\n", "layer", out->ms, "", out->floor_ms,
             ratio(out->ms, out->floor_ms));
    cli_outf("  memory planned %s, taken %s\n", cli_format_size(out->planned_bytes, planned),
             cli_format_size(out->taken_bytes, taken));
}

static void print_text(const bench *b)
{
    const size_t per_threads = b->contexts.n * b->tokens.n;
    const tamis_bench_layer_params *p = &b->runs[0].params;
    bench_print_machine();
    cli_outf("layer    %s %s, profile %s, caches %s%s; random weights and rows\n",
             tamis_shape_name(p->shape), tamis_bench_kind_name(p->kind),
             tamis_profile_name(p->profile),
             cli_has(b->args, CLI_OPT_KV_CACHE_DTYPE) ? cli_text(b->args, CLI_OPT_KV_CACHE_DTYPE)
                                                      : "auto",
             p->serial ? ", serial" : "");
    for (size_t t = 0; t < b->threads.n; t++) {
        bench_print_roofs(&b->roofs[t]);
        for (size_t i = 0; i < per_threads; i++)
            print_run(&b->runs[t * per_threads + i], &b->roofs[t].best);
    }
}

/* ---------------------------------------------------------------- JSON */

static json_t *stage_json(const tamis_bench_stage *s)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "name", s->name, "ms", s->ms, "floor_ms",
                     s->floor_ms, "f32_ops", s->f32_ops, "int8_ops", s->int8_ops, "bytes",
                     s->bytes);
}

static json_t *run_json(const run *r)
{
    const tamis_bench_layer_result *out = &r->result;
    json_t *stages = json_array();
    for (int32_t i = 0; i < out->n_stages; i++)
        json_array_append_new(stages, stage_json(&out->stages[i]));
    return json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:o}", "threads",
                     (int)r->params.n_threads, "tokens", (int)r->params.num_tokens, "context",
                     (int)r->params.context, "ms", out->ms, "floor_ms", out->floor_ms, "ratio",
                     ratio(out->ms, out->floor_ms), "other_ms", out->other_ms, "planned_bytes",
                     (json_int_t)out->planned_bytes, "taken_bytes", (json_int_t)out->taken_bytes,
                     "stages", stages);
}

static void print_json(const bench *b)
{
    const tamis_bench_layer_params *p = &b->runs[0].params;
    json_t *runs = json_array(), *roofs = json_array();
    for (size_t i = 0; i < b->threads.n; i++)
        json_array_append_new(roofs, bench_roofs_json(&b->roofs[i]));
    for (size_t i = 0; i < b->n_runs; i++)
        json_array_append_new(runs, run_json(&b->runs[i]));
    json_t *object = json_pack(
        "{s:o, s:s, s:s, s:s, s:s, s:b, s:b, s:o, s:o}", "machine", bench_machine_json(), "shape",
        tamis_shape_name(p->shape), "kind", tamis_bench_kind_name(p->kind), "profile",
        tamis_profile_name(p->profile), "kv_cache_dtype",
        cli_has(b->args, CLI_OPT_KV_CACHE_DTYPE) ? cli_text(b->args, CLI_OPT_KV_CACHE_DTYPE)
                                                 : "auto",
        "serial", p->serial, "random_rows", 1, "roofs", roofs, "runs", runs);
    cli_out_json(object, 2);
    json_decref(object);
}

/* ---------------------------------------------------------------- plot */

static int plot(const bench *b)
{
    char title[160], subtitle[400], date[BENCH_DATE_BYTES];
    const tamis_bench_layer_params *p = &b->runs[0].params;
    bench_plot_column *columns = cli_alloc(b->n_runs, sizeof *columns);
    for (size_t i = 0; i < b->n_runs; i++)
        columns[i] =
            (bench_plot_column){b->runs[i].params.context, p->num_tokens, &b->runs[i].result};
    snprintf(title, sizeof title, "%s %s layer, profile %s: %d token%s a step, %d thread%s",
             tamis_shape_name(p->shape), tamis_bench_kind_name(p->kind),
             tamis_profile_name(p->profile), (int)p->num_tokens, p->num_tokens == 1 ? "" : "s",
             (int)p->n_threads, p->n_threads == 1 ? "" : "s");
    snprintf(subtitle, sizeof subtitle, "%s, %s kernels, %s; random weights and rows",
             bench_cpu_name(), tamis_cpu_level_name(tamis_cpu_level_current()), bench_date(date));
    const int code =
        bench_plot_write(cli_text(b->args, CLI_OPT_PLOT), title, subtitle, columns, b->n_runs);
    free(columns);
    return code;
}

/* ---------------------------------------------------------------- run */

/* The parameters come from flags, so a refusal is a usage error. */
static int failed(tamis_status st, const tamis_error *err)
{
    const bool is_usage = st == TAMIS_STATUS_INVALID || st == TAMIS_STATUS_UNSUPPORTED;
    return cli_fail(is_usage ? CLI_EXIT_USAGE : cli_exit_code(st), "%s", err->text);
}

static int run_one(run *r, const tamis_roof *roof)
{
    tamis_error err = {0};
    if (cli_interrupted())
        return CLI_EXIT_INTERRUPTED;
    const tamis_status st = tamis_bench_layer(&r->params, roof, &r->result, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    cli_info("%s %s, %d tokens behind %d, %d threads: %.3f ms", tamis_shape_name(r->params.shape),
             tamis_bench_kind_name(r->params.kind), (int)r->params.num_tokens,
             (int)r->params.context, (int)r->params.n_threads, r->result.ms);
    return CLI_EXIT_OK;
}

static int run_threads(bench *b, size_t t)
{
    const double seconds = bench_seconds(b->args, 1.0);
    const size_t first = b->n_runs;
    int code = bench_roofs_begin(&b->roofs[t], b->threads.values[t], seconds);
    for (size_t m = 0; m < b->tokens.n; m++)
        for (size_t c = 0; c < b->contexts.n && code == CLI_EXIT_OK; c++) {
            run *r = &b->runs[b->n_runs++];
            r->params =
                params_of(b, b->threads.values[t], b->tokens.values[m], b->contexts.values[c]);
            code = run_one(r, &b->roofs[t].before);
        }
    if (code == CLI_EXIT_OK)
        code = bench_roofs_end(&b->roofs[t], seconds);
    for (size_t i = first; i < b->n_runs && code == CLI_EXIT_OK; i++)
        tamis_bench_layer_set_roof(&b->runs[i].result, &b->roofs[t].best);
    return code;
}

static int run_all(bench *b)
{
    int code = check_plot(b);
    for (size_t t = 0; t < b->threads.n && code == CLI_EXIT_OK; t++)
        code = run_threads(b, t);
    if (code != CLI_EXIT_OK)
        return code;
    if (cli_has(b->args, CLI_OPT_JSON))
        print_json(b);
    else
        print_text(b);
    return cli_has(b->args, CLI_OPT_PLOT) ? plot(b) : CLI_EXIT_OK;
}

int cli_cmd_bench_layer(const cli_args *args)
{
    static const int32_t usual_context = 4096, usual_tokens = 1;
    bench b = {.args = args, .default_threads = bench_default_threads()};
    b.contexts = bench_list_of(args, CLI_OPT_CONTEXT, &usual_context);
    b.tokens = bench_list_of(args, CLI_OPT_TOKENS, &usual_tokens);
    b.threads = bench_list_of(args, CLI_OPT_THREAD_LIST, &b.default_threads);
    b.runs = cli_alloc(b.contexts.n * b.tokens.n * b.threads.n, sizeof *b.runs);
    b.roofs = cli_alloc(b.threads.n, sizeof *b.roofs);
    const int code = run_all(&b);
    free(b.runs);
    free(b.roofs);
    return bench_end(code);
}
