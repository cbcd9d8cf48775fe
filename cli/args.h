/* Command line and environment -> values by option, checked against the option table. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include "options.h"

#define CLI_MAX_STOPS   64
#define CLI_MAX_CHOICES 8
#define CLI_MAX_INTS    128

typedef struct cli_value {
    bool is_set;
    const char *source; /* as the user named it: "-n", "--max-tokens", "TAMIS_MAX_TOKENS" */
    const char *text;   /* as given */
    int64_t integer;    /* INT, SEED */
    uint64_t natural;   /* SIZE in bytes */
    double real;        /* REAL */
    int choices[CLI_MAX_CHOICES]; /* CHOICE: numbers within the option's choices */
    size_t n_choices;
    int32_t ints[CLI_MAX_INTS]; /* INTS */
    size_t n_ints;
} cli_value;

/* Points into argv and the environment, owns the names of environment variables. */
typedef struct cli_args {
    cli_command_id command;
    cli_value value[CLI_NUM_OPTIONS];
    const char *stops[CLI_MAX_STOPS];
    size_t n_stops;
    bool wants_help;
    char env_names[CLI_NUM_OPTIONS][CLI_ENV_NAME_BYTES];
} cli_args;

/* argv[0] is the first word after the command. Prints what is wrong; returns an exit code. */
int cli_args_parse(cli_args *args, cli_command_id command, int argc, char **argv);

static inline bool cli_has(const cli_args *args, cli_option_id id)
{
    return args->value[id].is_set;
}
static inline const char *cli_text(const cli_args *args, cli_option_id id)
{
    return args->value[id].text;
}
/* Number of the first choice, 0 where none was given. */
static inline int cli_choice(const cli_args *args, cli_option_id id)
{
    return args->value[id].choices[0];
}
/* The way the user named the option, for messages. */
static inline const char *cli_source(const cli_args *args, cli_option_id id)
{
    return args->value[id].source;
}

/* Usage error about an option that was given; returns CLI_EXIT_USAGE. */
int cli_refuse(const cli_args *args, cli_option_id id, const char *why);

#endif
