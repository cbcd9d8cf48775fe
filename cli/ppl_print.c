#include <math.h>

#include "output.h"
#include "ppl.h"
#include "report.h"

static double mean_nats(const cli_ppl *ppl, const cli_ppl_run *run)
{
    return run->nats / (double)ppl->n_predicted;
}

static double bits_per_byte(const cli_ppl *ppl, const cli_ppl_run *run)
{
    return run->nats / log(2.0) / (double)ppl->n_bytes;
}

static double tokens_per_second(const cli_ppl *ppl, const cli_ppl_run *run)
{
    return run->seconds > 0.0 ? (double)ppl->n_predicted / run->seconds : 0.0;
}

static double same_argmax(const cli_ppl *ppl, const cli_ppl_run *run)
{
    return (double)run->n_same_argmax / (double)ppl->n_predicted;
}

/* ---------------------------------------------------------------- text */

static void print_counts(const cli_ppl *ppl)
{
    cli_outf("tokens         %lld predicted, in %lld window%s of %lld\n",
             (long long)ppl->n_predicted, (long long)ppl->n_windows, ppl->n_windows == 1 ? "" : "s",
             (long long)ppl->window);
}

static void print_one(const cli_ppl *ppl)
{
    const cli_ppl_run *run = &ppl->runs[0];
    cli_outf("nats per token %.6f\n", mean_nats(ppl, run));
    if (ppl->n_bytes > 0)
        cli_outf("bits per byte  %.6f\n", bits_per_byte(ppl, run));
    cli_outf("perplexity     %.4f\n", exp(mean_nats(ppl, run)));
    print_counts(ppl);
}

/* A line for each profile; the last columns but the speed are against the first one. */
static void print_several(const cli_ppl *ppl)
{
    cli_outf("%-8s  %-6s  %8s  %14s  %10s  %11s  %12s  %11s  %8s  %8s\n", "profile", "caches",
             "tokens", "nats per token", "perplexity", "same argmax", "mean |d nll|", "max |d nll|",
             "seconds", "tok/s");
    for (int i = 0; i < ppl->n_runs; i++) {
        const cli_ppl_run *run = &ppl->runs[i];
        cli_outf("%-8s  %-6s  %8lld  %14.6f  %10.4f  %9.2f %%  %12.6f  %11.6f  %8.2f  %8.1f\n",
                 run->engine.info->profile, cli_kv_cache_name(run->plan.kv_cache_dtype),
                 (long long)ppl->n_predicted, mean_nats(ppl, run), exp(mean_nats(ppl, run)),
                 100.0 * same_argmax(ppl, run), run->diff_sum / (double)ppl->n_predicted,
                 run->diff_max, run->seconds, tokens_per_second(ppl, run));
    }
    print_counts(ppl);
}

/* ---------------------------------------------------------------- JSON */

static void add_bytes(json_t *object, const cli_ppl *ppl)
{
    json_object_set_new(object, "bytes", json_integer((json_int_t)ppl->n_bytes));
}

static void add_measures(json_t *object, const cli_ppl *ppl, const cli_ppl_run *run)
{
    json_object_set_new(object, "nats_per_token", json_real(mean_nats(ppl, run)));
    if (ppl->n_bytes > 0)
        json_object_set_new(object, "bits_per_byte", json_real(bits_per_byte(ppl, run)));
    if (ppl->n_bytes > 0 && ppl->n_runs == 1)
        add_bytes(object, ppl);
    json_object_set_new(object, "perplexity", json_real(exp(mean_nats(ppl, run))));
}

static json_t *run_json(const cli_ppl *ppl, const cli_ppl_run *run)
{
    json_t *object = json_object();
    json_object_set_new(object, "profile", json_string(run->engine.info->profile));
    json_object_set_new(object, "kv_cache_dtype",
                        json_string(cli_kv_cache_name(run->plan.kv_cache_dtype)));
    add_measures(object, ppl, run);
    json_object_set_new(object, "same_argmax", json_real(same_argmax(ppl, run)));
    json_object_set_new(object, "mean_nll_difference",
                        json_real(run->diff_sum / (double)ppl->n_predicted));
    json_object_set_new(object, "max_nll_difference", json_real(run->diff_max));
    json_object_set_new(object, "seconds", json_real(run->seconds));
    json_object_set_new(object, "tokens_per_second", json_real(tokens_per_second(ppl, run)));
    return object;
}

static json_t *runs_json(const cli_ppl *ppl)
{
    json_t *array = json_array();
    for (int i = 0; i < ppl->n_runs; i++)
        json_array_append_new(array, run_json(ppl, &ppl->runs[i]));
    return array;
}

static void print_json(const cli_ppl *ppl)
{
    const cli_ppl_run *first = &ppl->runs[0];
    json_t *object = json_object();
    if (ppl->n_runs == 1)
        add_measures(object, ppl, first);
    else if (ppl->n_bytes > 0)
        add_bytes(object, ppl);
    json_object_set_new(object, "tokens", json_integer(ppl->n_predicted));
    json_object_set_new(object, "windows", json_integer(ppl->n_windows));
    json_object_set_new(object, "window", json_integer(ppl->window));
    json_object_set_new(object, "index_cache", json_string(cli_engine_index_cache(&first->engine)));
    if (ppl->n_runs == 1)
        json_object_set_new(object, "profile", json_string(first->engine.info->profile));
    else
        json_object_set_new(object, "profiles", runs_json(ppl));
    cli_out_json(object, 0);
    json_decref(object);
}

void cli_ppl_print(const cli_ppl *ppl)
{
    if (cli_has(ppl->args, CLI_OPT_JSON))
        print_json(ppl);
    else if (ppl->n_runs == 1)
        print_one(ppl);
    else
        print_several(ppl);
}
