/* Tables of tamis bench model. Columns and test names are those of llama-bench, and a few more. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench_model.h"
#include "message.h"
#include "output.h"
#include "report.h"

/* Tokens per second of the repetitions. */
typedef struct speeds {
    double mean, deviation, best;
} speeds;

static speeds speeds_of(const bench_model *b, const bench_test *t)
{
    speeds s = {0};
    double squares = 0;
    for (int32_t i = 0; i < b->repetitions; i++) {
        const double speed = t->n / t->seconds[i];
        s.mean += speed / b->repetitions;
        s.best = speed > s.best ? speed : s.best;
    }
    for (int32_t i = 0; i < b->repetitions; i++) {
        const double off = t->n / t->seconds[i] - s.mean;
        squares += off * off;
    }
    s.deviation = b->repetitions > 1 ? sqrt(squares / (b->repetitions - 1)) : 0;
    return s;
}

static double floor_speed(const bench_test *t)
{
    return t->work.floor_ms > 0 ? 1e3 * t->n / t->work.floor_ms : 0;
}

/* Best time over floor. */
static double ratio(const bench_model *b, const bench_test *t)
{
    return floor_speed(t) / speeds_of(b, t).best;
}

enum { TEST_BYTES = 48 };

static const char *test_name(const bench_test *t, char text[TEST_BYTES])
{
    const int used = snprintf(text, TEST_BYTES, "%s%d", t->is_prompt ? "pp" : "tg", (int)t->n);
    if (t->depth > 0)
        snprintf(text + used, TEST_BYTES - (size_t)used, " @ d%d", (int)t->depth);
    return text;
}

static const char *fill_name(const bench_model *b, const bench_test *t)
{
    return t->depth == 0 ? "none" : b->is_random ? "random" : "computed";
}

static const char *level_name(void)
{
    return tamis_cpu_level_name(tamis_cpu_level_current());
}

/* ---------------------------------------------------------------- text */

static void print_test(const bench_model *b, const bench_test *t)
{
    const speeds s = speeds_of(b, t);
    char size[CLI_SIZE_BYTES], test[TEST_BYTES], speed[48];
    snprintf(speed, sizeof speed, "%.2f ± %.2f", s.mean, s.deviation);
    cli_outf("| %-20s | %11s | %-11s | %7d | %18s | %*s | %9.2f | %9.2f | %7.2f |\n",
             b->info->family, cli_format_size(b->bytes, size), level_name(), (int)t->n_threads,
             test_name(t, test), 17 + 1 /* the sign takes two bytes */, speed, s.best,
             floor_speed(t), ratio(b, t));
}

static void print_text(const bench_model *b)
{
    bool has_depth = false;
    bench_print_machine();
    cli_outf("model    %s, profile %s, %d layers, %.1f million parameters, caches %s, %d tokens a "
             "step, %d runs a test\n",
             b->dir, b->info->profile, (int)b->info->num_hidden_layers, 1e-6 * (double)b->n_params,
             cli_kv_cache_name(b->kv_cache_dtype), (int)b->step_tokens, (int)b->repetitions);
    for (size_t i = 0; i < b->n_groups; i++)
        bench_print_roofs(&b->groups[i].roofs);
    cli_outf("\n| %-20s | %11s | %-11s | %7s | %18s | %17s | %9s | %9s | %7s |\n", "model", "size",
             "backend", "threads", "test", "t/s", "best t/s", "floor t/s", "x floor");
    cli_outf("| -------------------- | ----------: | ----------- | ------: | -----------------: | "
             "----------------: | --------: | --------: | ------: |\n");
    for (size_t i = 0; i < b->n_tests; i++) {
        print_test(b, &b->tests[i]);
        has_depth = has_depth || b->tests[i].depth > 0;
    }
    cli_outf("\n");
    if (has_depth)
        cli_outf("depth    rows are %s\n", b->is_random ? "random numbers, not computed (--fill "
                                                          "random)"
                                                        : "computed as a prompt");
    for (size_t i = 0; i < b->n_groups; i++) {
        const bench_group *g = &b->groups[i];
        char planned[CLI_SIZE_BYTES], taken[CLI_SIZE_BYTES];
        cli_outf("memory   %d thread%s: planned %s, taken %s (anonymous; weights are mapped)\n",
                 (int)g->roofs.best.n_threads, g->roofs.best.n_threads == 1 ? "" : "s",
                 cli_format_size(g->planned_bytes, planned),
                 cli_format_size(g->taken_bytes, taken));
    }
}

/* ---------------------------------------------------------------- JSON */

static json_t *test_json(const bench_model *b, const bench_test *t)
{
    const speeds s = speeds_of(b, t);
    char name[TEST_BYTES];
    json_t *runs = json_array();
    for (int32_t i = 0; i < b->repetitions; i++)
        json_array_append_new(runs, json_real(t->seconds[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f}",
                     "test", test_name(t, name), "n_prompt", t->is_prompt ? (int)t->n : 0, "n_gen",
                     t->is_prompt ? 0 : (int)t->n, "n_depth", (int)t->depth, "n_threads",
                     (int)t->n_threads, "fill", fill_name(b, t), "avg_ts", s.mean, "stddev_ts",
                     s.deviation, "best_ts", s.best, "seconds", runs, "floor_ms", t->work.floor_ms,
                     "ratio", ratio(b, t), "f32_ops", t->work.f32_ops, "int8_ops", t->work.int8_ops,
                     "bytes", t->work.bytes);
}

static json_t *group_json(const bench_group *g)
{
    return json_pack("{s:i, s:o, s:I, s:I}", "n_threads", (int)g->roofs.best.n_threads, "roofs",
                     bench_roofs_json(&g->roofs), "planned_bytes", (json_int_t)g->planned_bytes,
                     "taken_bytes", (json_int_t)g->taken_bytes);
}

static void print_json(const bench_model *b)
{
    json_t *tests = json_array(), *groups = json_array();
    for (size_t i = 0; i < b->n_tests; i++)
        json_array_append_new(tests, test_json(b, &b->tests[i]));
    for (size_t i = 0; i < b->n_groups; i++)
        json_array_append_new(groups, group_json(&b->groups[i]));
    json_t *object = json_pack(
        "{s:o, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:o, s:o}", "machine", bench_machine_json(),
        "model", b->dir, "family", b->info->family, "profile", b->info->profile, "kv_cache_dtype",
        cli_kv_cache_name(b->kv_cache_dtype), "size", (json_int_t)b->bytes, "n_params",
        (json_int_t)b->n_params, "n_ubatch", (int)b->step_tokens, "groups", groups, "tests", tests);
    cli_out_json(object, 2);
    json_decref(object);
}

/* ---------------------------------------------------------------- CSV */

/* A field in quotation marks; those within are doubled. */
static void put_quoted(const char *text)
{
    cli_out("\"", 1);
    for (; *text != '\0'; text++)
        cli_out(*text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    cli_out("\",", 2);
}

static void print_csv_line(const bench_model *b, const bench_group *g, const bench_test *t)
{
    const speeds s = speeds_of(b, t);
    const tamis_roof *roof = &g->roofs.best;
    char date[BENCH_DATE_BYTES];
    put_quoted(bench_cpu_name());
    cli_outf("%s,%s,%s,", level_name(), TAMIS_VERSION, bench_date(date));
    put_quoted(b->dir);
    cli_outf("%s,%s,%s,%llu,%lld,%d,%d,%d,%d,%d,%s,%.6g,%.6g,%.6g,%.6g,%.6g,", b->info->family,
             b->info->profile, cli_kv_cache_name(b->kv_cache_dtype), (unsigned long long)b->bytes,
             (long long)b->n_params, (int)t->n_threads, (int)b->step_tokens,
             t->is_prompt ? (int)t->n : 0, t->is_prompt ? 0 : (int)t->n, (int)t->depth,
             fill_name(b, t), s.mean, s.deviation, s.best, t->work.floor_ms, ratio(b, t));
    cli_outf("%.6g,%.6g,%.6g,%llu,%llu\n", roof->f32_gflops, roof->int8_gops, roof->stream_gbs,
             (unsigned long long)g->planned_bytes, (unsigned long long)g->taken_bytes);
}

static void print_csv(const bench_model *b)
{
    cli_outf("cpu,backend,version,date,model,family,profile,kv_cache_dtype,model_size,"
             "model_n_params,n_threads,n_ubatch,n_prompt,n_gen,n_depth,fill,avg_ts,stddev_ts,"
             "best_ts,floor_ms,ratio,f32_gflops,int8_gops,stream_gbs,planned_bytes,taken_bytes\n");
    for (size_t g = 0; g < b->n_groups; g++)
        for (size_t i = 0; i < b->groups[g].n_tests; i++)
            print_csv_line(b, &b->groups[g], &b->tests[b->groups[g].first_test + i]);
}

void bench_model_print(const bench_model *b)
{
    if (cli_has(b->args, CLI_OPT_JSON))
        print_json(b);
    else if (cli_has(b->args, CLI_OPT_CSV))
        print_csv(b);
    else
        print_text(b);
}
