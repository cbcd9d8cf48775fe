#include "args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "suggest.h"

static const char *name_of(const cli_args *args)
{
    return cli_commands[args->command].name;
}

static int usage_hint(const cli_args *args)
{
    fprintf(stderr, "tamis: 'tamis help %s' lists what is allowed\n", name_of(args));
    return CLI_EXIT_USAGE;
}

int cli_refuse(const cli_args *args, cli_option_id id, const char *why)
{
    cli_fail(CLI_EXIT_USAGE, "%s: %s: %s", name_of(args), cli_source(args, id), why);
    return usage_hint(args);
}

static int bad_value(const cli_args *args, const cli_option *option, const cli_value *value)
{
    char allowed[128];
    cli_option_describe_allowed(option, args->command, allowed, sizeof allowed);
    cli_fail(CLI_EXIT_USAGE, "%s: %s: value seen '%s', allowed: %s", name_of(args), value->source,
             value->text, allowed);
    return usage_hint(args);
}

/* ---------------------------------------------------------------- values */

static bool starts_like_number(const char *text)
{
    return *text == '-' || *text == '+' || *text == '.' || (*text >= '0' && *text <= '9');
}

static bool parse_int(const cli_option *option, cli_value *value)
{
    char *end;
    errno = 0;
    value->integer = strtoll(value->text, &end, 10);
    return errno == 0 && starts_like_number(value->text) && *end == '\0' &&
           (double)value->integer >= option->min && (double)value->integer <= option->max;
}

static bool parse_ints(const cli_option *option, cli_value *value)
{
    for (const char *at = value->text;; at++) {
        char *end;
        errno = 0;
        const long long number = strtoll(at, &end, 10);
        if (errno != 0 || !starts_like_number(at) || (double)number < option->min ||
            (double)number > option->max || value->n_ints == CLI_MAX_INTS)
            return false;
        value->ints[value->n_ints++] = (int32_t)number;
        at = end;
        if (*at == '\0')
            return true;
        if (*at != ',')
            return false;
    }
}

static bool parse_seed(cli_value *value)
{
    char *end;
    errno = 0;
    value->integer = strtoll(value->text, &end, 10);
    return errno == 0 && starts_like_number(value->text) && *end == '\0' && value->integer >= -1;
}

static bool parse_real(const cli_option *option, cli_value *value)
{
    char *end;
    value->real = strtod(value->text, &end);
    return starts_like_number(value->text) && *end == '\0' && value->real >= option->min &&
           value->real <= option->max;
}

static bool parse_size(cli_value *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1.0},     {"B", 1.0},      {"KiB", 0x1p10}, {"K", 0x1p10},   {"MiB", 0x1p20},
                 {"M", 0x1p20}, {"GiB", 0x1p30}, {"G", 0x1p30},   {"TiB", 0x1p40}, {"T", 0x1p40}};
    char *end;
    const double number = strtod(value->text, &end);
    if (!(value->text[0] >= '0' && value->text[0] <= '9'))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0) {
            const double bytes = number * units[i].bytes;
            if (!(bytes >= 1.0 && bytes < 0x1p63))
                return false;
            value->natural = (uint64_t)bytes;
            return true;
        }
    return false;
}

/* Number of the choice that is spelled by the first `bytes` of text; -1: none. */
static int find_choice(const cli_option *option, const char *text, size_t bytes)
{
    for (int i = 0; option->choices[i] != NULL; i++)
        if (strlen(option->choices[i]) == bytes && memcmp(option->choices[i], text, bytes) == 0)
            return i;
    return -1;
}

static bool parse_choices(const cli_option *option, bool is_list, cli_value *value)
{
    for (const char *at = value->text;; at++) {
        const size_t bytes = is_list ? strcspn(at, ",") : strlen(at);
        const int choice = find_choice(option, at, bytes);
        if (choice < 0 || value->n_choices == CLI_MAX_CHOICES)
            return false;
        value->choices[value->n_choices++] = choice;
        at += bytes;
        if (*at == '\0')
            return true;
    }
}

static bool parse_value(cli_args *args, const cli_option *option, cli_value *value)
{
    switch (option->kind) {
    case CLI_KIND_INT:
        return parse_int(option, value);
    case CLI_KIND_INTS:
        return parse_ints(option, value);
    case CLI_KIND_SEED:
        return parse_seed(value);
    case CLI_KIND_REAL:
        return parse_real(option, value);
    case CLI_KIND_SIZE:
        return parse_size(value);
    case CLI_KIND_CHOICE:
        return parse_choices(option, (option->lists & (1u << args->command)) != 0, value);
    case CLI_KIND_TEXTS:
        if (value->text[0] == '\0' || args->n_stops == CLI_MAX_STOPS)
            return false;
        args->stops[args->n_stops++] = value->text;
        return true;
    case CLI_KIND_TEXT: /* -m "$UNSET" is a mistake; only a prompt may be empty */
        return value->text[0] != '\0' || option == &cli_options[CLI_OPT_PROMPT];
    default:
        return true;
    }
}

static int set_value(cli_args *args, int id, const char *source, const char *text)
{
    cli_value *value = &args->value[id];
    *value = (cli_value){.is_set = true, .source = source, .text = text};
    if (parse_value(args, &cli_options[id], value))
        return CLI_EXIT_OK;
    return bad_value(args, &cli_options[id], value);
}

/* ---------------------------------------------------------------- command line */

static int unknown_option(const cli_args *args, const char *word, size_t bytes)
{
    const char *near = cli_suggest_option(word, bytes, 1u << args->command);
    if (near != NULL)
        cli_fail(CLI_EXIT_USAGE, "%s: unknown option '%.*s'; did you mean '%s'?", name_of(args),
                 (int)bytes, word, near);
    else
        cli_fail(CLI_EXIT_USAGE, "%s: unknown option '%.*s'", name_of(args), (int)bytes, word);
    return usage_hint(args);
}

static int other_commands_option(const cli_args *args, const char *word, size_t bytes, int id)
{
    char users[128] = "";
    for (int c = 0; c < CLI_NUM_COMMANDS; c++)
        if (cli_options[id].commands & (1u << c)) {
            const size_t used = strlen(users);
            snprintf(users + used, sizeof users - used, "%s%s", used == 0 ? "" : ", ",
                     cli_commands[c].name);
        }
    cli_fail(CLI_EXIT_USAGE, "%s: option '%.*s' does not belong to this command, but to: %s",
             name_of(args), (int)bytes, word, users);
    return usage_hint(args);
}

static int parse_positional(cli_args *args, const char *word)
{
    if (args->command == CLI_INSPECT && !cli_has(args, CLI_OPT_MODEL))
        return set_value(args, CLI_OPT_MODEL, "DIR", word);
    cli_fail(CLI_EXIT_USAGE, "%s: unexpected argument '%s'", name_of(args), word);
    return usage_hint(args);
}

static int missing_value(const cli_args *args, const char *word, const cli_option *option)
{
    cli_fail(CLI_EXIT_USAGE, "%s: %s: a value is missing: %s", name_of(args), word,
             option->metavar);
    return usage_hint(args);
}

static int value_of_switch(const cli_args *args, const cli_option *option, const char *value)
{
    cli_fail(CLI_EXIT_USAGE, "%s: --%s: value seen '%s', allowed: none, it is a switch",
             name_of(args), option->name, value);
    return usage_hint(args);
}

/* One option at argv[*at], with its value if it has one; moves *at on. The last of two wins. */
static int parse_option(cli_args *args, int argc, char **argv, int *at)
{
    char *word = argv[(*at)++];
    char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    const size_t bytes = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const int id = cli_option_find(args->command, word, bytes);
    if (id < 0)
        return unknown_option(args, word, bytes);
    const cli_option *option = &cli_options[id];
    if ((option->commands & (1u << args->command)) == 0)
        return other_commands_option(args, word, bytes, id);
    if (option->kind == CLI_KIND_FLAG)
        return equals != NULL ? value_of_switch(args, option, equals + 1)
                              : set_value(args, id, word, "1");
    if (equals != NULL) {
        *equals = '\0'; /* so that the word names the option in messages */
        return set_value(args, id, word, equals + 1);
    }
    if (*at == argc)
        return missing_value(args, word, option);
    return set_value(args, id, word, argv[(*at)++]);
}

static bool is_help(const char *word)
{
    return strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0;
}

static int parse_words(cli_args *args, int argc, char **argv)
{
    bool options_ended = false;
    for (int at = 0; at < argc;) {
        const char *word = argv[at];
        int code;
        if (!options_ended && strcmp(word, "--") == 0) {
            options_ended = true;
            at++;
            continue;
        }
        if (!options_ended && is_help(word)) {
            args->wants_help = true;
            return CLI_EXIT_OK;
        }
        if (options_ended || word[0] != '-' || word[1] == '\0') {
            code = parse_positional(args, word);
            at++;
        } else {
            code = parse_option(args, argc, argv, &at);
        }
        if (code != CLI_EXIT_OK)
            return code;
    }
    return CLI_EXIT_OK;
}

/* ---------------------------------------------------------------- environment */

static bool is_group_set(const cli_args *args, cli_option_group group)
{
    for (int id = 0; id < CLI_NUM_OPTIONS; id++)
        if (group != CLI_GROUP_NONE && cli_options[id].group == group && args->value[id].is_set)
            return true;
    return false;
}

static bool is_any_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

static int set_from_environment(cli_args *args, int id, const char *name, const char *text)
{
    static const char *const on[] = {"1", "true", "yes", "on", NULL};
    static const char *const off[] = {"0", "false", "no", "off", NULL};
    if (cli_options[id].kind == CLI_KIND_FLAG && is_any_of(text, off))
        return CLI_EXIT_OK;
    if (cli_options[id].kind == CLI_KIND_FLAG && !is_any_of(text, on))
        return bad_value(args, &cli_options[id], &(cli_value){.source = name, .text = text});
    return set_value(args, id, name, text);
}

/*
 * What the command line left open. A flag also silences the variables of its whole group, so that
 * TAMIS_PROMPT does not get in the way of -f.
 */
static int parse_environment(cli_args *args)
{
    bool taken[CLI_NUM_OPTIONS];
    for (int id = 0; id < CLI_NUM_OPTIONS; id++)
        taken[id] = args->value[id].is_set || is_group_set(args, cli_options[id].group);
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        cli_option_env_name(&cli_options[id], args->env_names[id]);
        const char *text = getenv(args->env_names[id]);
        if (taken[id] || text == NULL || text[0] == '\0' ||
            (cli_options[id].commands & (1u << args->command)) == 0)
            continue;
        const int code = set_from_environment(args, id, args->env_names[id], text);
        if (code != CLI_EXIT_OK)
            return code;
    }
    return CLI_EXIT_OK;
}

/* ---------------------------------------------------------------- the whole */

static int check_group(const cli_args *args, cli_option_group group)
{
    int first = -1;
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        if (cli_options[id].group != group || !args->value[id].is_set)
            continue;
        if (first >= 0) {
            cli_fail(CLI_EXIT_USAGE, "%s: %s and %s exclude each other", name_of(args),
                     args->value[first].source, args->value[id].source);
            return usage_hint(args);
        }
        first = id;
    }
    return CLI_EXIT_OK;
}

static int check_groups(const cli_args *args)
{
    int code = check_group(args, CLI_GROUP_INPUT);
    if (code == CLI_EXIT_OK)
        code = check_group(args, CLI_GROUP_INDEX);
    const unsigned needs_input = 1u << CLI_GENERATE | 1u << CLI_PPL;
    if (code != CLI_EXIT_OK || is_group_set(args, CLI_GROUP_INPUT) ||
        (needs_input & (1u << args->command)) == 0)
        return code;
    cli_fail(CLI_EXIT_USAGE, "%s: an input is missing: %s", name_of(args),
             args->command == CLI_PPL ? "-f FILE or --ids FILE" : "-p TEXT, -f FILE or --ids FILE");
    return usage_hint(args);
}

static int check_required(const cli_args *args)
{
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        const cli_option *option = &cli_options[id];
        if (args->value[id].is_set || (option->required & (1u << args->command)) == 0)
            continue;
        cli_fail(CLI_EXIT_USAGE, "%s: option --%s %s is missing", name_of(args), option->name,
                 option->metavar);
        return usage_hint(args);
    }
    return check_groups(args);
}

int cli_args_parse(cli_args *args, cli_command_id command, int argc, char **argv)
{
    *args = (cli_args){.command = command};
    int code = parse_words(args, argc, argv);
    if (code != CLI_EXIT_OK || args->wants_help)
        return code;
    code = parse_environment(args);
    return code != CLI_EXIT_OK ? code : check_required(args);
}
