#include "help.h"

#include <string.h>

#include <tamis/base.h>

void cli_help_usage(FILE *out)
{
    fputs("usage: tamis COMMAND [options]\n\ncommands:\n", out);
    for (int i = 0; i < CLI_NUM_COMMANDS; i++)
        if (strchr(cli_commands[i].name, ' ') == NULL)
            fprintf(out, "  %-10s %s\n", cli_commands[i].name, cli_commands[i].summary);
    fputs("  bench      measure speed: tamis help bench\n"
          "  help       help about a command: tamis help generate\n"
          "  version    print the version\n",
          out);
}

void cli_help_bench(FILE *out)
{
    fputs("usage: tamis bench WHAT [options]\n\nwhat:\n", out);
    for (int i = 0; i < CLI_NUM_COMMANDS; i++) {
        const char *space = strchr(cli_commands[i].name, ' ');
        if (space != NULL)
            fprintf(out, "  %-10s %s\n", space + 1, cli_commands[i].summary);
    }
    fputs(
        "\n'tamis help bench WHAT' lists its options. On a busy machine figures are too low: what\n"
        "counts is the ratio to the roof that was measured in the same run.\n",
        out);
}

void cli_help_general(FILE *out)
{
    fprintf(out, "tamis %s: sparse-attention language models on plain CPUs\n\n", TAMIS_VERSION);
    cli_help_usage(out);
    fputs("\nEvery option may also be given as an environment variable: --max-model-len 2048 as\n"
          "TAMIS_MAX_MODEL_LEN=2048, --json as TAMIS_JSON=1. The command line wins.\n"
          "TAMIS_CPU=portable|avx2 lowers the CPU level; the results stay the same, bit for bit.\n"
          "Results go to standard output, everything else to standard error.\n"
          "\nexit codes:\n"
          "  0  done                            3  the model is bad or not supported\n"
          "  1  an error while running          4  not enough memory\n"
          "  2  a wrong option or value         130  interrupted (SIGTERM 143, SIGHUP 129)\n",
          out);
}

/* "  -m, --model DIR"; the first short name leads, other spellings go to the end of the text. */
static size_t print_names(FILE *out, const cli_option *option)
{
    const char *lead = option->other[0];
    const int is_short = lead != NULL && lead[1] != '-';
    int n = is_short ? fprintf(out, "  %3s, --%s", lead, option->name)
                     : fprintf(out, "       --%s", option->name);
    if (option->metavar != NULL)
        n += fprintf(out, " %s", option->metavar);
    return n < 0 ? 0 : (size_t)n;
}

static void print_other_names(FILE *out, const cli_option *option)
{
    for (int i = 0; i < CLI_MAX_NAMES; i++)
        if (option->other[i] != NULL && option->other[i][1] == '-')
            fprintf(out, "[also %s] ", option->other[i]);
}

/* Words up to column 80, further lines from `column` on; the cursor stands at `column`. */
static void print_wrapped(FILE *out, const char *text, size_t column)
{
    size_t at = column;
    for (size_t n; *text != '\0'; text += n) {
        text += strspn(text, " ");
        n = strcspn(text, " ");
        if (at > column && at + 1 + n > 80)
            fprintf(out, "\n%*s", (int)(at = column), "");
        else if (at > column)
            at += (size_t)fprintf(out, " ");
        at += (size_t)fprintf(out, "%.*s", (int)n, text);
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const cli_option *option)
{
    enum { TEXT_COLUMN = 36 };
    char env[CLI_ENV_NAME_BYTES];
    cli_option_env_name(option, env);
    const size_t used = print_names(out, option);
    if (used + 2 > TEXT_COLUMN)
        fprintf(out, "\n%*s", TEXT_COLUMN, "");
    else
        fprintf(out, "%*s", (int)(TEXT_COLUMN - used), "");
    print_wrapped(out, option->help, TEXT_COLUMN);
    fprintf(out, "%*s", TEXT_COLUMN, "");
    print_other_names(out, option);
    if (option->default_text != NULL)
        fprintf(out, "[default: %s] ", option->default_text);
    fprintf(out, "[%s]\n", env);
}

void cli_help_command(FILE *out, cli_command_id command)
{
    const cli_command *c = &cli_commands[command];
    fprintf(out, "usage: tamis %s %s\n\n%s\n", c->name, c->synopsis, c->summary);
    const char *section = "";
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        const cli_option *option = &cli_options[id];
        if ((option->commands & (1u << command)) == 0)
            continue;
        if (strcmp(section, option->section) != 0)
            fprintf(out, "\n%s:\n", section = option->section);
        print_option(out, option);
    }
    fputs("   -h, --help                       this text\n\nexamples:\n", out);
    fputs(c->examples, out);
}
