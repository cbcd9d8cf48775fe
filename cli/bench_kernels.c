/* tamis bench kernels: single kernels at real shapes, every CPU level of the machine. */
#include <stdio.h>
#include <string.h>

#include "bench_machine.h"
#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"

enum { OPERATOR_THREADS = 2 };

/* A line of an operator, to compare later ones with. */
typedef struct seen_line {
    char kernel[24], shape[64];
    int32_t n_threads;
    double us;
} seen_line;

enum { MAX_SEEN = 64, NOTE_BYTES = 64 };

typedef struct listing {
    json_t *lines;      /* NULL: text */
    tamis_roof roof[2]; /* of one thread and of OPERATOR_THREADS, measured before */
    seen_line seen[MAX_SEEN];
    int n_seen;
    int64_t n_lines;
} listing;

/* The larger of the shares of what arithmetic and memory of so many threads give. */
static double share_of_roof(const listing *l, const tamis_bench_kernel_line *line)
{
    const tamis_roof *roof = &l->roof[line->n_threads > 1 ? 1 : 0];
    const double ops = line->gops / (line->is_int8 ? roof->int8_gops : roof->f32_gflops);
    const double bytes = line->is_cold ? line->gbs / roof->stream_gbs : 0;
    return ops > bytes ? ops : bytes;
}

/* Microseconds of an earlier line; 0: there is none. */
static double seen_us(const listing *l, const char *kernel, const char *shape, int32_t n_threads)
{
    for (int i = 0; i < l->n_seen; i++)
        if (strcmp(l->seen[i].kernel, kernel) == 0 && strcmp(l->seen[i].shape, shape) == 0 &&
            l->seen[i].n_threads == n_threads)
            return l->seen[i].us;
    return 0;
}

static void remember(listing *l, const tamis_bench_kernel_line *line)
{
    if (l->n_seen == MAX_SEEN)
        return;
    seen_line *seen = &l->seen[l->n_seen++];
    snprintf(seen->kernel, sizeof seen->kernel, "%s", line->kernel);
    snprintf(seen->shape, sizeof seen->shape, "%s", line->shape);
    seen->n_threads = line->n_threads;
    seen->us = line->us;
}

/* What choosing the best adds to scoring; what further threads bring. */
static const char *note_of(listing *l, const tamis_bench_kernel_line *line, char note[NOTE_BYTES])
{
    size_t used = 0;
    note[0] = '\0';
    if (strcmp(line->kernel, "select_topk") == 0) {
        const double alone = seen_us(l, "select_score", line->shape, line->n_threads);
        if (alone > 0)
            used = (size_t)snprintf(note, NOTE_BYTES, "  top-k %+.1f %%",
                                    100 * (line->us / alone - 1));
    }
    if (line->n_threads > 1) {
        const double one = seen_us(l, line->kernel, line->shape, 1);
        if (one > 0)
            snprintf(note + used, NOTE_BYTES - used, "  %.2fx of one thread", one / line->us);
    }
    if (strncmp(line->kernel, "select_", 7) == 0 || strcmp(line->kernel, "attend") == 0 ||
        strcmp(line->kernel, "project") == 0)
        remember(l, line);
    return note;
}

static json_t *line_json(const tamis_bench_kernel_line *line, double share, const char *note)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:s}", "kernel", line->kernel,
                     "shape", line->shape, "level", tamis_cpu_level_name(line->level), "threads",
                     (int)line->n_threads, "us", line->us, "gops", line->gops, "gbs", line->gbs,
                     "of_roof", share, "note", note + strspn(note, " "));
}

static void print_roofs(const listing *l, const char *when)
{
    for (int i = 0; i < 2; i++)
        cli_outf("roof     %s, %d thread%s: f32 %.1f GFLOP/s, int8 %.1f GOP/s, stream %.1f GB/s\n",
                 when, (int)l->roof[i].n_threads, i == 0 ? "" : "s", l->roof[i].f32_gflops,
                 l->roof[i].int8_gops, l->roof[i].stream_gbs);
}

static void print_head(const listing *l)
{
    bench_print_machine();
    print_roofs(l, "before");
    cli_outf("%-18s %-45s %-8s %7s %12s %8s %8s %9s\n", "kernel", "shape", "level", "threads",
             "best us", "GOP/s", "GB/s", "of roof");
    cli_out_flush();
}

/* Kernels that only move data have no operations, and no roof while that lies in a cache. */
static void print_line(const tamis_bench_kernel_line *line, double share, const char *note)
{
    cli_outf("%-18s %-45s %-8s %7d %12.2f ", line->kernel, line->shape,
             tamis_cpu_level_name(line->level), (int)line->n_threads, line->us);
    if (line->gops > 0)
        cli_outf("%8.2f ", line->gops);
    else
        cli_outf("%8s ", "-");
    cli_outf("%8.2f ", line->gbs);
    if (share > 0)
        cli_outf("%7.1f %%%s\n", 100 * share, note);
    else
        cli_outf("%9s%s\n", "-", note);
}

static bool add(const tamis_bench_kernel_line *line, void *user)
{
    listing *l = user;
    char buffer[NOTE_BYTES];
    const double share = share_of_roof(l, line);
    const char *note = note_of(l, line, buffer);
    if (l->n_lines++ == 0 && l->lines == NULL)
        print_head(l);
    if (l->lines != NULL)
        json_array_append_new(l->lines, line_json(line, share, note));
    else
        print_line(line, share, note);
    return cli_out_flush() && !cli_interrupted();
}

static json_t *roofs_json(const listing *l)
{
    return json_pack("[o, o]", bench_roof_json(&l->roof[0]), bench_roof_json(&l->roof[1]));
}

static int measure_roofs(listing *l)
{
    int code = CLI_EXIT_OK;
    for (int i = 0; i < 2 && code == CLI_EXIT_OK; i++)
        code = bench_measure_roof(i == 0 ? 1 : OPERATOR_THREADS, 0.6, &l->roof[i]);
    return code;
}

/* Shares were taken to the roof before; that of now says whether the machine stayed the same. */
static int print_end(listing *l)
{
    json_t *before = roofs_json(l);
    const int code = measure_roofs(l);
    if (code == CLI_EXIT_OK && l->lines == NULL)
        print_roofs(l, "after");
    if (code == CLI_EXIT_OK && l->lines != NULL) {
        json_t *object = json_pack("{s:o, s:O, s:o, s:O}", "machine", bench_machine_json(), "roofs",
                                   before, "roofs_after", roofs_json(l), "kernels", l->lines);
        cli_out_json(object, 2);
        json_decref(object);
    }
    json_decref(before);
    return code;
}

static int run(const cli_args *args, listing *l)
{
    tamis_error err = {0};
    const tamis_status st = tamis_bench_kernels(bench_seconds(args, 0.2), OPERATOR_THREADS,
                                                cli_text(args, CLI_OPT_KERNEL), add, l, &err);
    if (st == TAMIS_STATUS_CANCELLED)
        return cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK; /* a closed pipe says so */
    if (st == TAMIS_STATUS_INVALID)
        return cli_refuse(args, CLI_OPT_KERNEL, err.text);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    return print_end(l);
}

int cli_cmd_bench_kernels(const cli_args *args)
{
    listing l = {.lines = cli_has(args, CLI_OPT_JSON) ? json_array() : NULL};
    int code = measure_roofs(&l);
    if (code == CLI_EXIT_OK)
        code = run(args, &l);
    json_decref(l.lines);
    return bench_end(code);
}
