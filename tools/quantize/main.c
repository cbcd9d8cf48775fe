/* tamis-quantize: the command line of quantize.h. */
#include "quantize/quantize.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_DONE = 0, EXIT_RUN = 1, EXIT_USAGE = 2 };

static const char help[] =
    "usage: tamis-quantize -m DIR -o DIR [options]\n"
    "\n"
    "Writes a model folder as Ascend's quantiser would: int8 or int4 weights with a scale per row "
    "and\n"
    "quant_model_description.json. The source may hold floats, FP8 or FP4; embedding, head, "
    "norms,\n"
    "router, kv_b, wo_a, compressors, weights_proj and hyper-connections stay floats.\n"
    "\n"
    "  -m, --model DIR         the folder to read\n"
    "  -o, --output DIR        a new or an empty folder\n"
    "      --scheme S          of all linear layers: w8a8-dynamic (default), w8a8, w8a8-mix, "
    "float\n"
    "      --attention S       of the attention's projections, in place of --scheme\n"
    "      --experts S         of the routed experts: w8a8-dynamic, w4a8-dynamic, float; default:\n"
    "                          float with --scheme float, else w8a8-dynamic\n"
    "      --calibrate FILE    what fixes the input scales of w8a8 and w8a8-mix: token ids "
    "between\n"
    "                          white space (NAME.ids), or a text; default: 512 ids all over the\n"
    "                          vocabulary; give a text of the model's own kind where it matters\n"
    "      --threads N         of the calibration, 1..256; default 1\n"
    "      --shard-mib N       close a file of tensors at that size, 1..1048576; default 4096\n"
    "  -h, --help              this text\n"
    "\n"
    "Layers that a calibration does not reach, those of the indexer and of the MTP block, are\n"
    "w8a8-dynamic where w8a8 or w8a8-mix is asked for.\n"
    "exit codes: 0 done, 1 an error while running, 2 a wrong option or value\n";

typedef struct options {
    const char *model, *output, *scheme, *attention, *experts, *calibrate, *threads, *shard_mib;
} options;

typedef struct option_row {
    const char *name, *other;
    const char **value;
} option_row;

/* ---------------------------------------------------------------- reading */

/* "--name value", "--name=value" or "-n value" at argv[*i]; NULL: it is another option. */
static const char *match(const option_row *row, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    const size_t n = strlen(row->name);
    if (strncmp(arg, row->name, n) == 0 && arg[n] == '=')
        return arg + n + 1;
    if (strcmp(arg, row->name) != 0 && (row->other == NULL || strcmp(arg, row->other) != 0))
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

static int read_options(options *o, int argc, char **argv)
{
    const option_row rows[] = {
        {"--model", "-m", &o->model},     {"--output", "-o", &o->output},
        {"--scheme", NULL, &o->scheme},   {"--attention", NULL, &o->attention},
        {"--experts", NULL, &o->experts}, {"--calibrate", NULL, &o->calibrate},
        {"--threads", NULL, &o->threads}, {"--shard-mib", NULL, &o->shard_mib},
    };
    const size_t n_rows = sizeof rows / sizeof *rows;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = NULL;
        size_t row = 0;
        while (row < n_rows && (value = match(&rows[row], argc, argv, &i)) == NULL)
            row++;
        if (row == n_rows) {
            fprintf(stderr, "tamis-quantize: %s is no option, allowed: see --help\n", name);
            return EXIT_USAGE;
        }
        if (*value == '\0') {
            fprintf(stderr, "tamis-quantize: %s has no value, allowed: see --help\n",
                    rows[row].name);
            return EXIT_USAGE;
        }
        *rows[row].value = value;
    }
    return EXIT_DONE;
}

static const char *const scheme_spellings[TAMIS_NUM_SCHEMES] = {
    [TAMIS_SCHEME_FLOAT] = "float",
    [TAMIS_SCHEME_W8A8] = "w8a8",
    [TAMIS_SCHEME_W8A8_DYNAMIC] = "w8a8-dynamic",
    [TAMIS_SCHEME_W8A8_MIX] = "w8a8-mix",
    [TAMIS_SCHEME_W4A8_DYNAMIC] = "w4a8-dynamic",
};

/* One of the schemes in the set of bits; NULL leaves *out as it was. */
static int read_scheme(tamis_quant_scheme *out, const char *name, const char *value, unsigned set)
{
    const char *separator = "";
    for (int i = 0; value != NULL && i < TAMIS_NUM_SCHEMES; i++)
        if ((set >> i & 1) != 0 && strcmp(value, scheme_spellings[i]) == 0) {
            *out = (tamis_quant_scheme)i;
            return EXIT_DONE;
        }
    if (value == NULL)
        return EXIT_DONE;
    fprintf(stderr, "tamis-quantize: %s is '%s', allowed: ", name, value);
    for (int i = 0; i < TAMIS_NUM_SCHEMES; i++)
        if ((set >> i & 1) != 0) {
            fprintf(stderr, "%s%s", separator, scheme_spellings[i]);
            separator = ", ";
        }
    fputc('\n', stderr);
    return EXIT_USAGE;
}

static int read_number(int64_t *out, const char *name, const char *value, int64_t max)
{
    char *end;
    if (value == NULL)
        return EXIT_DONE;
    const long long number = *value >= '0' && *value <= '9' ? strtoll(value, &end, 10) : 0;
    if (number >= 1 && number <= max && *end == '\0') {
        *out = number;
        return EXIT_DONE;
    }
    fprintf(stderr, "tamis-quantize: %s is '%s', allowed: 1..%" PRId64 "\n", name, value, max);
    return EXIT_USAGE;
}

static int read_params(tamis_quantize_params *p, const options *o)
{
    const unsigned linear = 1u << TAMIS_SCHEME_FLOAT | 1u << TAMIS_SCHEME_W8A8 |
                            1u << TAMIS_SCHEME_W8A8_DYNAMIC | 1u << TAMIS_SCHEME_W8A8_MIX;
    const unsigned experts = 1u << TAMIS_SCHEME_FLOAT | 1u << TAMIS_SCHEME_W8A8_DYNAMIC |
                             1u << TAMIS_SCHEME_W4A8_DYNAMIC;
    int64_t n_threads = 1, shard_mib = 4096;
    p->others = TAMIS_SCHEME_W8A8_DYNAMIC;
    int code = read_scheme(&p->others, "--scheme", o->scheme, linear);
    p->attention = p->others;
    p->experts = p->others == TAMIS_SCHEME_FLOAT ? TAMIS_SCHEME_FLOAT : TAMIS_SCHEME_W8A8_DYNAMIC;
    if (code == EXIT_DONE)
        code = read_scheme(&p->attention, "--attention", o->attention, linear);
    if (code == EXIT_DONE)
        code = read_scheme(&p->experts, "--experts", o->experts, experts);
    if (code == EXIT_DONE)
        code = read_number(&n_threads, "--threads", o->threads, 256);
    if (code == EXIT_DONE)
        code = read_number(&shard_mib, "--shard-mib", o->shard_mib, 1 << 20);
    p->source = o->model;
    p->output = o->output;
    p->calibrate = o->calibrate;
    p->n_threads = (int32_t)n_threads;
    p->shard_bytes = shard_mib << 20;
    if (code == EXIT_DONE && (o->model == NULL || o->output == NULL)) {
        fprintf(stderr, "tamis-quantize: %s is missing, allowed: a folder\n",
                o->model == NULL ? "--model" : "--output");
        code = EXIT_USAGE;
    }
    return code;
}

/* ---------------------------------------------------------------- run */

static void print_report(const tamis_quantize_params *p, const tamis_quantize_report *r)
{
    printf("%s: %d file%s of tensors, %" PRIu64 " bytes\n", p->output, (int)r->n_files,
           r->n_files == 1 ? "" : "s", r->bytes);
    for (int i = TAMIS_NUM_SCHEMES - 1; i >= 0; i--)
        if (r->n_weights[i] > 0)
            printf("  %-12s %" PRId64 "\n", tamis_quant_scheme_name((tamis_quant_scheme)i),
                   r->n_weights[i]);
    if (r->n_tokens > 0)
        printf("  calibrated with %" PRId64 " tokens%s\n", r->n_tokens,
               p->calibrate == NULL ? " that are no text (see --calibrate)" : "");
    if (r->n_unused > 0)
        printf("  left out: %d tensors that the model does not run\n", (int)r->n_unused);
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    options o = {0};
    tamis_quantize_params params = {0};
    tamis_quantize_report report;
    tamis_error err;
    if (wants_help(argc, argv)) {
        fputs(help, stdout);
        return fflush(stdout) == 0 ? EXIT_DONE : EXIT_RUN;
    }
    int code = read_options(&o, argc, argv);
    if (code == EXIT_DONE)
        code = read_params(&params, &o);
    if (code != EXIT_DONE)
        return code;
    if (tamis_quantize_folder(&params, &report, &err) != TAMIS_STATUS_OK) {
        fprintf(stderr, "tamis-quantize: %s\n", err.text);
        return EXIT_RUN;
    }
    print_report(&params, &report);
    return fflush(stdout) == 0 ? EXIT_DONE : EXIT_RUN;
}
