/* One function per command; each returns an exit code and has printed what is wrong. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "args.h"

int cli_cmd_generate(const cli_args *args);
int cli_cmd_logits(const cli_args *args);
int cli_cmd_ppl(const cli_args *args);
int cli_cmd_tokenize(const cli_args *args);
int cli_cmd_inspect(const cli_args *args);
int cli_cmd_bench_roof(const cli_args *args);
int cli_cmd_bench_layer(const cli_args *args);
int cli_cmd_bench_model(const cli_args *args);
int cli_cmd_bench_kernels(const cli_args *args);
int cli_cmd_bench_synth(const cli_args *args);

#endif
