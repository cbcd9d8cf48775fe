/* Usage and help texts, made from the option table. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdio.h>

#include "options.h"

void cli_help_usage(FILE *out);   /* commands, one line each */
void cli_help_bench(FILE *out);   /* list of benchmarks */
void cli_help_general(FILE *out); /* usage, exit codes, environment */
void cli_help_command(FILE *out, cli_command_id command);

#endif
