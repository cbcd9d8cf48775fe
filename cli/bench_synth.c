/* tamis bench synth: a model folder at a published model's dimensions, with random weights. */
#include <stdio.h>

#include <tamis/bench.h>

#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"
#include "progress.h"

/* The bar counts MiB. */
static bool show(uint64_t done, uint64_t total, void *user)
{
    cli_progress *progress = user;
    progress->total = (int64_t)(total >> 20);
    cli_progress_show(progress, (int64_t)(done >> 20));
    return !cli_interrupted();
}

static tamis_synth_params params_of(const cli_args *args)
{
    const cli_value *layers = &args->value[CLI_OPT_LAYERS];
    tamis_synth_params p = tamis_synth_params_default();
    p.shape = tamis_shape_find(cli_text(args, CLI_OPT_SHAPE));
    if (layers->is_set) {
        p.layers = layers->ints;
        p.n_layers = (int32_t)layers->n_ints;
    }
    if (cli_has(args, CLI_OPT_EXPERTS))
        p.n_experts = (int32_t)args->value[CLI_OPT_EXPERTS].integer;
    if (cli_has(args, CLI_OPT_VOCAB))
        p.vocab_size = (int32_t)args->value[CLI_OPT_VOCAB].integer;
    if (cli_has(args, CLI_OPT_SYNTH_SEED))
        p.seed = (uint64_t)args->value[CLI_OPT_SYNTH_SEED].integer;
    return p;
}

/* The parameters come from flags, so a refusal is a usage error. */
static int failed(tamis_status st, const tamis_error *err)
{
    if (st == TAMIS_STATUS_CANCELLED)
        return cli_fail(CLI_EXIT_INTERRUPTED, "%s", err->text);
    return cli_fail(st == TAMIS_STATUS_INVALID ? CLI_EXIT_USAGE : cli_exit_code(st), "%s",
                    err->text);
}

/* What was written, from the folder itself. */
static int report(const cli_args *args, const tamis_synth_params *params, double seconds)
{
    const char *dir = cli_text(args, CLI_OPT_FOLDER);
    const tamis_inspection *in;
    tamis_model *model = NULL;
    tamis_error err = {0};
    char size[CLI_SIZE_BYTES];
    tamis_status st = tamis_model_open(&model, dir, &err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_model_inspect(model, &in, &err);
    if (st == TAMIS_STATUS_OK && cli_has(args, CLI_OPT_JSON)) {
        json_t *object =
            json_pack("{s:s, s:s, s:I, s:i, s:I, s:I, s:f}", "folder", dir, "shape",
                      tamis_shape_name(params->shape), "seed", (json_int_t)params->seed, "layers",
                      (int)in->info->num_hidden_layers, "parameters", (json_int_t)in->n_params,
                      "bytes", (json_int_t)in->tensor_bytes, "seconds", seconds);
        cli_out_json(object, 2);
        json_decref(object);
    } else if (st == TAMIS_STATUS_OK) {
        cli_outf(
            "%s: %s with %d layers, %.1f million parameters, %s, random weights of seed %llu\n",
            dir, tamis_shape_name(params->shape), (int)in->info->num_hidden_layers,
            1e-6 * (double)in->n_params, cli_format_size(in->tensor_bytes, size),
            (unsigned long long)params->seed);
    }
    tamis_model_close(&model);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : cli_fail(cli_exit_code(st), "%s", err.text);
}

int cli_cmd_bench_synth(const cli_args *args)
{
    const tamis_synth_params params = params_of(args);
    const double started = cli_seconds();
    cli_progress progress;
    tamis_error err = {0};
    cli_progress_start(&progress, "writing", 0);
    progress.unit = "MiB";
    const tamis_status st =
        tamis_synth_write(&params, cli_text(args, CLI_OPT_FOLDER), show, &progress, &err);
    cli_progress_clear(&progress);
    return st == TAMIS_STATUS_OK ? report(args, &params, cli_seconds() - started)
                                 : failed(st, &err);
}
