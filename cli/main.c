/* tamis: finds the command, parses its options, runs it. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tamis/base.h>

#include "args.h"
#include "commands.h"
#include "help.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"
#include "suggest.h"

static int (*const run_command[CLI_NUM_COMMANDS])(const cli_args *) = {
    [CLI_GENERATE] = cli_cmd_generate,
    [CLI_LOGITS] = cli_cmd_logits,
    [CLI_PPL] = cli_cmd_ppl,
    [CLI_TOKENIZE] = cli_cmd_tokenize,
    [CLI_INSPECT] = cli_cmd_inspect,
    [CLI_BENCH_ROOF] = cli_cmd_bench_roof,
    [CLI_BENCH_LAYER] = cli_cmd_bench_layer,
    [CLI_BENCH_MODEL] = cli_cmd_bench_model,
    [CLI_BENCH_KERNELS] = cli_cmd_bench_kernels,
    [CLI_BENCH_SYNTH] = cli_cmd_bench_synth,
};

/*
 * A file opened later must not become descriptor 0, 1 or 2. A missing one is replaced by one that
 * fails when used: standard input opened for writing only, the others for reading only.
 */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return;
}

static int finish_stdout(void)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return CLI_EXIT_OK;
    return cli_fail(CLI_EXIT_RUN, "standard output: it cannot be written");
}

static int unknown_command(const char *name)
{
    const char *near = cli_suggest_command(name);
    if (near != NULL)
        cli_fail(CLI_EXIT_USAGE, "unknown command '%s'; did you mean '%s'?", name, near);
    else
        cli_fail(CLI_EXIT_USAGE, "unknown command '%s'", name);
    cli_help_usage(stderr);
    return CLI_EXIT_USAGE;
}

/* Number of the command "bench WHAT"; -1: none. */
static int find_benchmark(const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "bench %s", what);
    return cli_command_find(name);
}

static int unknown_benchmark(const char *what)
{
    cli_fail(CLI_EXIT_USAGE, "unknown benchmark '%s'", what);
    cli_help_bench(stderr);
    return CLI_EXIT_USAGE;
}

static int help_bench(int argc, char **argv)
{
    const int command = argc == 0 ? -1 : find_benchmark(argv[0]);
    if (argc > 0 && command < 0)
        return unknown_benchmark(argv[0]);
    if (argc == 0)
        cli_help_bench(stdout);
    else
        cli_help_command(stdout, (cli_command_id)command);
    return finish_stdout();
}

static int help(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "bench") == 0)
        return help_bench(argc - 1, argv + 1);
    if (argc == 0) {
        cli_help_general(stdout);
    } else if (strcmp(argv[0], "help") == 0) {
        fputs("usage: tamis help [COMMAND]\n\nhelp about a command; without one about all\n",
              stdout);
    } else if (strcmp(argv[0], "version") == 0) {
        fputs("usage: tamis version\n\nprint the version\n", stdout);
    } else {
        const int command = cli_command_find(argv[0]);
        if (command < 0)
            return unknown_command(argv[0]);
        cli_help_command(stdout, (cli_command_id)command);
    }
    return finish_stdout();
}

static void pass_on_log(tamis_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == TAMIS_LOG_WARNING)
        cli_info("warning: %s", text);
}

static int run(int id, int argc, char **argv)
{
    static cli_args args;
    tamis_error err = {0};
    const int code = cli_args_parse(&args, (cli_command_id)id, argc, argv);
    if (code != CLI_EXIT_OK)
        return code;
    if (args.wants_help) {
        cli_help_command(stdout, (cli_command_id)id);
        return finish_stdout();
    }
    if (tamis_cpu_check_environment(&err) != TAMIS_STATUS_OK)
        return cli_fail(CLI_EXIT_USAGE, "%s", err.text);
    cli_message_set_quiet(cli_has(&args, CLI_OPT_QUIET));
    tamis_log_set(pass_on_log, NULL);
    const int ended = run_command[id](&args);
    return cli_out_finish(ended == CLI_EXIT_INTERRUPTED ? cli_interrupt_exit_code() : ended);
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int bench(int argc, char **argv)
{
    if (argc == 0) {
        cli_help_bench(stderr);
        return CLI_EXIT_USAGE;
    }
    if (is_help(argv[0]))
        return help_bench(argc - 1, argv + 1);
    const int command = find_benchmark(argv[0]);
    return command < 0 ? unknown_benchmark(argv[0]) : run(command, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    cli_interrupt_install();
    if (argc < 2) {
        cli_help_usage(stderr);
        return CLI_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (is_help(word))
        return help(argc - 2, argv + 2);
    if (strcmp(word, "version") == 0 || strcmp(word, "--version") == 0) {
        printf("tamis %s\n", TAMIS_VERSION);
        return finish_stdout();
    }
    if (strcmp(word, "bench") == 0)
        return bench(argc - 2, argv + 2);
    const int command = cli_command_find(word);
    return command < 0 ? unknown_command(word) : run(command, argc - 2, argv + 2);
}
