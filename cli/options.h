/*
 * The one option table: names, kind, range, commands and help text of every option. The argument
 * parser, the environment variables (TAMIS_ + long name) and the help texts are read from it.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cli_command_id {
    CLI_GENERATE = 0,
    CLI_LOGITS,
    CLI_PPL,
    CLI_TOKENIZE,
    CLI_INSPECT,
    CLI_BENCH_ROOF, /* "bench roof": two words name these */
    CLI_BENCH_LAYER,
    CLI_BENCH_MODEL,
    CLI_BENCH_KERNELS,
    CLI_BENCH_SYNTH,
    CLI_NUM_COMMANDS
} cli_command_id;

typedef struct cli_command {
    const char *name;
    const char *synopsis;
    const char *summary;
    const char *examples; /* lines for the end of the help text */
} cli_command;

typedef enum cli_option_id {
    CLI_OPT_MODEL = 0,
    CLI_OPT_PROMPT,
    CLI_OPT_FILE,
    CLI_OPT_IDS,
    CLI_OPT_MAX_TOKENS,
    CLI_OPT_STOP,
    CLI_OPT_IGNORE_EOS,
    CLI_OPT_TEMP,
    CLI_OPT_TOP_K,
    CLI_OPT_TOP_P,
    CLI_OPT_MIN_P,
    CLI_OPT_SEED,
    CLI_OPT_DRAFT,
    CLI_OPT_DRAFT_TOKENS,
    CLI_OPT_POSITIONS,
    CLI_OPT_OUTPUT,
    CLI_OPT_WINDOW,
    CLI_OPT_DECODE,
    CLI_OPT_ADD_BOS,
    CLI_OPT_PLAIN,
    CLI_OPT_PRINT_IDS,
    CLI_OPT_JSON,
    CLI_OPT_THREADS,
    CLI_OPT_MAX_MODEL_LEN,
    CLI_OPT_MAX_NUM_BATCHED_TOKENS,
    CLI_OPT_PROFILE,
    CLI_OPT_KV_CACHE_DTYPE,
    CLI_OPT_INDEX_TOPK_FREQ,
    CLI_OPT_INDEX_TOPK_PATTERN,
    CLI_OPT_MEMORY_LIMIT,
    CLI_OPT_SHAPE,
    CLI_OPT_KIND,
    CLI_OPT_CONTEXT,
    CLI_OPT_TOKENS,
    CLI_OPT_N_PROMPT,
    CLI_OPT_N_GEN,
    CLI_OPT_N_DEPTH,
    CLI_OPT_FILL,
    CLI_OPT_REPETITIONS,
    CLI_OPT_THREAD_LIST,
    CLI_OPT_LAYERS,
    CLI_OPT_EXPERTS,
    CLI_OPT_VOCAB,
    CLI_OPT_SYNTH_SEED,
    CLI_OPT_FOLDER,
    CLI_OPT_KERNEL,
    CLI_OPT_SERIAL,
    CLI_OPT_SECONDS,
    CLI_OPT_PLOT,
    CLI_OPT_CSV,
    CLI_OPT_QUIET,
    CLI_NUM_OPTIONS
} cli_option_id;

typedef enum cli_option_kind {
    CLI_KIND_FLAG = 0,
    CLI_KIND_TEXT,
    CLI_KIND_TEXTS, /* may be repeated */
    CLI_KIND_INT,   /* min .. max */
    CLI_KIND_INTS,  /* same, several with commas between */
    CLI_KIND_SEED,  /* 0 .. 2^63-1; -1: random */
    CLI_KIND_REAL,  /* min .. max */
    CLI_KIND_SIZE,  /* bytes, with an optional unit */
    CLI_KIND_CHOICE
} cli_option_kind;

/* At most one option of a group other than none may be given. */
typedef enum cli_option_group {
    CLI_GROUP_NONE = 0,
    CLI_GROUP_INPUT,
    CLI_GROUP_INDEX /* which layers select */
} cli_option_group;

#define CLI_MAX_NAMES 3

typedef struct cli_option {
    const char *name;                 /* long name, without the dashes; unique in a command */
    const char *other[CLI_MAX_NAMES]; /* further spellings, with dashes: "-m", "--ctx-size" */
    const char *section;              /* heading in the help text */
    const char *metavar;              /* NULL: a flag */
    const char *help;
    const char *default_text; /* NULL: none worth a word */
    cli_option_kind kind;
    cli_option_group group;
    unsigned commands; /* bit per cli_command_id */
    unsigned required; /* same */
    double min, max;
    const char *const *choices; /* NULL-terminated */
    unsigned lists; /* bit per command that takes several choices, with commas between */
} cli_option;

extern const cli_command cli_commands[CLI_NUM_COMMANDS];
extern const cli_option cli_options[CLI_NUM_OPTIONS];

#define CLI_ENV_NAME_BYTES 64
/* "max-model-len" -> "TAMIS_MAX_MODEL_LEN". */
void cli_option_env_name(const cli_option *option, char name[CLI_ENV_NAME_BYTES]);
/*
 * Option that a word ("-m", "--model", without "=value") names: that of the command, or else any; -1:
 * none.
 */
int cli_option_find(cli_command_id command, const char *word, size_t bytes);
/* Command of that name; -1: none. */
int cli_command_find(const char *name);
/* What values of this option a command allows: "an integer from 1 to 256". */
void cli_option_describe_allowed(const cli_option *option, cli_command_id command, char *text,
                                 size_t bytes);

#endif
