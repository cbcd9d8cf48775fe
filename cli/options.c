#include "options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <tamis/speculation.h>

#define G       (1u << CLI_GENERATE)
#define L       (1u << CLI_LOGITS)
#define P       (1u << CLI_PPL)
#define T       (1u << CLI_TOKENIZE)
#define I       (1u << CLI_INSPECT)
#define BR      (1u << CLI_BENCH_ROOF)
#define BL      (1u << CLI_BENCH_LAYER)
#define BM      (1u << CLI_BENCH_MODEL)
#define BK      (1u << CLI_BENCH_KERNELS)
#define BS      (1u << CLI_BENCH_SYNTH)
#define MAX_INT 2147483647.0

/* clang-format off */
const cli_command cli_commands[CLI_NUM_COMMANDS] = {
    [CLI_GENERATE] = {
        "generate", "-m DIR (-p TEXT | -f FILE | --ids FILE) [options]",
        "continue a prompt; the new text goes to standard output as it comes",
        "  tamis generate -m models/demo -p 'In the beginning God' -n 64 --temp 0\n"
        "  tamis generate -m models/demo -f prompt.txt -n 200 --temp 0.7 --top-p 0.95 --seed 1\n"
        "  tamis generate -m models/demo --ids ids.txt -n 16 --print-ids\n"},
    [CLI_LOGITS] = {
        "logits", "-m DIR --ids FILE -o OUT.npy [options]",
        "write the logits of given token ids as float32 [n, vocabulary] to a .npy file",
        "  tamis logits -m models/demo --ids ids.txt -o logits.npy --kv-cache-dtype f32\n"
        "  tamis logits -m models/demo --ids ids.txt --positions last -o last.npy\n"},
    [CLI_PPL] = {
        "ppl", "-m DIR (-f FILE | --ids FILE) [options]",
        "measure how well the model predicts a text: nats per token, bits per byte",
        "  tamis ppl -m models/demo -f models/demo/valid.txt\n"
        "  tamis ppl -m models/demo -f text.txt --window 512 --json\n"
        "  tamis ppl -m models/demo -f text.txt --profile exact,official,ascend\n"},
    [CLI_TOKENIZE] = {
        "tokenize", "-m DIR [-p TEXT | -f FILE] [options]",
        "turn text into token ids, or ids into text; reads standard input unless -p or -f is given",
        "  tamis tokenize -m models/demo -p 'And it came to pass'\n"
        "  echo 12 34 56 | tamis tokenize -m models/demo --decode\n"
        "  tamis tokenize -m models/demo --json < texts.jsonl > ids.jsonl\n"},
    [CLI_INSPECT] = {
        "inspect", "DIR [options]",
        "list what a model folder holds: layers, formats, parameters, cache bytes, arithmetic",
        "  tamis inspect models/demo\n"
        "  tamis inspect models/demo --profile official\n"
        "  tamis inspect models/demo --json\n"},    [CLI_BENCH_ROOF] = {
        "bench roof", "[-t N] [options]",
        "measure what the machine gives: multiply-adds, byte products, memory",
        "  tamis bench roof\n"
        "  tamis bench roof -t 2 --json\n"},
    [CLI_BENCH_LAYER] = {
        "bench layer", "--shape SHAPE --kind KIND [options]",
        "time one layer at a published model's dimensions, stage by stage, beside its floor",
        "  tamis bench layer --shape v4-flash --kind c4 --context 4096,131072,1048576\n"
        "  tamis bench layer --shape v32 --kind sfa --context 131072 --tokens 1,512 -t 1,2\n"
        "  tamis bench layer --shape v4-flash --kind c4 --context 4096,32768,131072 --plot c4.svg\n"},
    [CLI_BENCH_MODEL] = {
        "bench model", "-m DIR [-p N] [-n N] [-d N] [options]",
        "time prompts and generation of a model folder at context depths, beside their floor",
        "  tamis bench model -m models/demo -p 512 -n 128\n"
        "  tamis bench model -m v4-cut -p 512 -n 32 -d 2048,131072 -t 2 --csv\n"},
    [CLI_BENCH_KERNELS] = {
        "bench kernels", "[--kernel WORD] [options]",
        "time every kernel at real shapes and CPU levels, one thread; project, select and attend on two",
        "  tamis bench kernels\n"
        "  tamis bench kernels --kernel index\n"},
    [CLI_BENCH_SYNTH] = {
        "bench synth", "--shape SHAPE -o DIR [options]",
        "write a model folder at a published model's dimensions with few layers and random weights",
        "  tamis bench synth --shape v4-flash --vocab 2048 -o v4-cut\n"
        "  tamis bench synth --shape v4-flash --layers 0,4,128,4 --experts 8 -o v4-cut\n"},
};

static const char *const profiles[] = {"exact", "official", "ascend", NULL};
static const char *const kv_cache_dtypes[] = {"auto", "bf16", "f32", "fp8", "int8", NULL};
static const char *const shapes[] = {"v4-flash", "v4-pro", "v32", "glm5", "glm52", NULL};
static const char *const kinds[] = {"window", "c4", "c128", "sfa", "shared", "moe", "head", NULL};
static const char *const fills[] = {"random", "computed", NULL};
static const char *const drafters[] = {"none", "mtp", "prompt-lookup", NULL};

const cli_option cli_options[CLI_NUM_OPTIONS] = {
    [CLI_OPT_MODEL] = {"model", {"-m"}, "Input", "DIR",
        "model folder: config.json, model.safetensors or its index, tokenizer.json", NULL,
        CLI_KIND_TEXT, .commands = G | L | P | T | I | BM, .required = G | L | P | T | I | BM},
    [CLI_OPT_PROMPT] = {"prompt", {"-p"}, "Input", "TEXT", "the text itself", NULL,
        CLI_KIND_TEXT, CLI_GROUP_INPUT, .commands = G | T},
    [CLI_OPT_FILE] = {"file", {"-f"}, "Input", "FILE",
        "text from a file, every byte of it (-: standard input)", NULL,
        CLI_KIND_TEXT, CLI_GROUP_INPUT, .commands = G | P | T},
    [CLI_OPT_IDS] = {"ids", {NULL}, "Input", "FILE",
        "token ids, integers between white space, taken as they are (-: standard input)", NULL,
        CLI_KIND_TEXT, CLI_GROUP_INPUT, .commands = G | L | P, .required = L},

    [CLI_OPT_MAX_TOKENS] = {"max-tokens", {"-n", "--n-predict"}, "Generation", "N",
        "new tokens at most; -1: until the context is full", "128",
        CLI_KIND_INT, .commands = G, .min = -1, .max = MAX_INT},
    [CLI_OPT_STOP] = {"stop", {NULL}, "Generation", "S",
        "end before this string appears in the text; may be repeated", NULL,
        CLI_KIND_TEXTS, .commands = G},
    [CLI_OPT_IGNORE_EOS] = {"ignore-eos", {NULL}, "Generation", NULL,
        "go on after an end-of-text token", NULL, CLI_KIND_FLAG, .commands = G},

    [CLI_OPT_TEMP] = {"temp", {"--temperature"}, "Sampling", "T",
        "temperature; 0: always the most likely token. The model's defaults are those of its "
        "generation_config.json", "the model's",
        CLI_KIND_REAL, .commands = G, .min = 0, .max = 1000},
    [CLI_OPT_TOP_K] = {"top-k", {NULL}, "Sampling", "K",
        "keep the K most likely tokens; 0 or -1: all", "the model's",
        CLI_KIND_INT, .commands = G, .min = -1, .max = MAX_INT},
    [CLI_OPT_TOP_P] = {"top-p", {NULL}, "Sampling", "P",
        "keep the most likely tokens that together reach P; 1: all", "the model's",
        CLI_KIND_REAL, .commands = G, .min = 0, .max = 1},
    [CLI_OPT_MIN_P] = {"min-p", {NULL}, "Sampling", "P",
        "keep tokens with at least P times the probability of the best; 0: all", "the model's",
        CLI_KIND_REAL, .commands = G, .min = 0, .max = 1},
    [CLI_OPT_SEED] = {"seed", {"-s"}, "Sampling", "N",
        "the same seed gives the same text, at any thread count; -1: random", "random, printed",
        CLI_KIND_SEED, .commands = G},

    [CLI_OPT_DRAFT] = {"draft", {NULL}, "Drafting", "HOW",
        "guess further tokens, which the model checks in one step; the text stays the same. mtp: the "
        "model's own MTP block; prompt-lookup: what followed the last tokens earlier in the text",
        "none", CLI_KIND_CHOICE, .commands = G, .choices = drafters},
    [CLI_OPT_DRAFT_TOKENS] = {"draft-tokens", {"--draft-max"}, "Drafting", "N",
        "tokens to guess per step", "3", CLI_KIND_INT, .commands = G, .min = 1,
        .max = TAMIS_MAX_DRAFT},

    [CLI_OPT_POSITIONS] = {"positions", {NULL}, "Output", "all|last|FILE",
        "which rows to write, in this order; a file holds integers from 0", "all",
        CLI_KIND_TEXT, .commands = L},
    [CLI_OPT_OUTPUT] = {"output", {"-o"}, "Output", "OUT.npy",
        "the file to write; it appears under its name only when it is complete", NULL,
        CLI_KIND_TEXT, .commands = L, .required = L},
    [CLI_OPT_WINDOW] = {"window", {NULL}, "Measure", "N",
        "measure N tokens at a time, each window behind a beginning-of-text token not counted in N",
        "1024, at most --max-model-len", CLI_KIND_INT, .commands = P, .min = 2, .max = MAX_INT},
    [CLI_OPT_DECODE] = {"decode", {NULL}, "Conversion", NULL,
        "the input is ids, the output is text", NULL, CLI_KIND_FLAG, .commands = T},
    [CLI_OPT_ADD_BOS] = {"add-bos", {NULL}, "Conversion", NULL,
        "put the beginning-of-text id in front", NULL, CLI_KIND_FLAG, .commands = T},
    [CLI_OPT_PLAIN] = {"plain", {NULL}, "Conversion", NULL,
        "read special tokens inside the text as ordinary text", NULL,
        CLI_KIND_FLAG, .commands = T},
    [CLI_OPT_PRINT_IDS] = {"print-ids", {NULL}, "Output", NULL,
        "print the new token ids instead of text", NULL, CLI_KIND_FLAG, .commands = G},
    [CLI_OPT_JSON] = {"json", {NULL}, "Output", NULL,
        "JSON for programs (tokenize: one object per line in, one per line out)", NULL,
        CLI_KIND_FLAG, .commands = G | P | T | I | BR | BL | BM | BK | BS},

    [CLI_OPT_THREADS] = {"threads", {"-t"}, "Engine", "N",
        "threads; the results do not depend on it", "CPUs this process may use, at most 64",
        CLI_KIND_INT, .commands = G | L | P | BR, .min = 1, .max = 256},
    [CLI_OPT_MAX_MODEL_LEN] = {"max-model-len", {"-c", "--ctx-size"}, "Engine", "N",
        "context length in tokens, for which memory is reserved", "what the run needs",
        CLI_KIND_INT, .commands = G | L | P, .min = 1, .max = MAX_INT},
    [CLI_OPT_MAX_NUM_BATCHED_TOKENS] = {"max-num-batched-tokens", {"-ub", "--ubatch-size"}, "Engine",
        "N", "tokens per step, capped by the context; the results do not depend on it", "512",
        CLI_KIND_INT, .commands = G | L | P | BM, .min = 1, .max = 1048576},
    [CLI_OPT_PROFILE] = {"profile", {NULL}, "Engine", "NAME",
        "whose arithmetic: exact (weights dequantised, float32 between the caches), official (the "
        "vendor's rounding, 8-bit and 4-bit caches) or ascend (W8A8 and the int8 indexer of "
        "Ascend NPUs); ppl: several with commas, to compare them; inspect: prints its stages", "exact",
        CLI_KIND_CHOICE, .commands = G | L | P | I | BL | BM, .choices = profiles, .lists = P},
    [CLI_OPT_KV_CACHE_DTYPE] = {"kv-cache-dtype", {NULL}, "Engine", "TYPE",
        "number format of cached keys and values: bf16, f32, fp8 or int8, of those that the profile "
        "has; auto: its first. tamis inspect lists them", "auto",
        CLI_KIND_CHOICE, .commands = G | L | P | BL, .choices = kv_cache_dtypes},
    [CLI_OPT_INDEX_TOPK_FREQ] = {"index-topk-freq", {NULL}, "Engine", "N",
        "IndexCache: of the layers with an indexer the first two (GLM: config.json's "
        "index_skip_topk_offset) and then every N-th select for themselves, the others use that; "
        "the results change unless the model was made for it",
        "the model's",
        CLI_KIND_INT, CLI_GROUP_INDEX, .commands = G | L | P, .min = 1, .max = MAX_INT},
    [CLI_OPT_INDEX_TOPK_PATTERN] = {"index-topk-pattern", {NULL}, "Engine", "FS..",
        "the same, layer by layer: F its own selection, S an earlier layer's", "the model's",
        CLI_KIND_TEXT, CLI_GROUP_INDEX, .commands = G | L | P},
    [CLI_OPT_MEMORY_LIMIT] = {"memory-limit", {NULL}, "Engine", "SIZE",
        "refuse to take more than this: 800MiB, 12GiB, or bytes", "what the system has available",
        CLI_KIND_SIZE, .commands = G | L | P | BM},

    [CLI_OPT_SHAPE] = {"shape", {NULL}, "Benchmark", "SHAPE",
        "dimensions of this published model: v4-flash, v4-pro, v32, glm5, glm52", NULL,
        CLI_KIND_CHOICE, .commands = BL | BS, .required = BL | BS, .choices = shapes},
    [CLI_OPT_KIND] = {"kind", {NULL}, "Benchmark", "KIND",
        "layer: attention window, c4, c128 (V4), sfa (V3.2, GLM), shared (GLM-5.2: an earlier "
        "selection); moe: router and experts; head", NULL,
        CLI_KIND_CHOICE, .commands = BL, .required = BL, .choices = kinds},
    [CLI_OPT_CONTEXT] = {"context", {NULL}, "Benchmark", "N,..",
        "tokens before those that are measured, whose cache rows are random", "4096",
        CLI_KIND_INTS, .commands = BL, .min = 0, .max = 1048576},
    [CLI_OPT_TOKENS] = {"tokens", {NULL}, "Benchmark", "N,..",
        "new tokens of a step, all of one sequence", "1",
        CLI_KIND_INTS, .commands = BL, .min = 1, .max = 4096},
    [CLI_OPT_N_PROMPT] = {"n-prompt", {"-p"}, "Benchmark", "N,..",
        "length of prompts (test ppN); 0: none", "512",
        CLI_KIND_INTS, .commands = BM, .min = 0, .max = 1048576},
    [CLI_OPT_N_GEN] = {"n-gen", {"-n"}, "Benchmark", "N,..",
        "tokens to generate one by one (test tgN); 0: none", "128",
        CLI_KIND_INTS, .commands = BM, .min = 0, .max = 1048576},
    [CLI_OPT_N_DEPTH] = {"n-depth", {"-d"}, "Benchmark", "N,..",
        "tokens that the context holds before a test (@ dN)", "0",
        CLI_KIND_INTS, .commands = BM, .min = 0, .max = 1048576},
    [CLI_OPT_FILL] = {"fill", {NULL}, "Benchmark", "HOW",
        "where the rows of a depth come from: random (numbers in the right format, at once) or "
        "computed (as a prompt)", "random",
        CLI_KIND_CHOICE, .commands = BM, .choices = fills},
    [CLI_OPT_REPETITIONS] = {"repetitions", {"-r"}, "Benchmark", "N",
        "runs of each test", "3",
        CLI_KIND_INT, .commands = BM, .min = 1, .max = 1000},
    [CLI_OPT_THREAD_LIST] = {"threads", {"-t"}, "Benchmark", "N,..",
        "threads; each number is measured by itself", "CPUs this process may use, at most 64",
        CLI_KIND_INTS, .commands = BL | BM, .min = 1, .max = 256},
    [CLI_OPT_LAYERS] = {"layers", {NULL}, "Benchmark", "R,..",
        "V4: compress ratio of each layer, 0, 4 or 128; other shapes: only their number counts",
        "0,4,128,4", CLI_KIND_INTS, .commands = BS, .min = 0, .max = 128},
    [CLI_OPT_EXPERTS] = {"experts", {NULL}, "Benchmark", "N",
        "routed experts of a layer (bench layer: of kind moe)", "synth: 8; layer: the shape's",
        CLI_KIND_INT, .commands = BL | BS, .min = 1, .max = 1024},
    [CLI_OPT_VOCAB] = {"vocab", {NULL}, "Benchmark", "N",
        "tokens of the vocabulary (bench layer: of kind head)", "the shape's",
        CLI_KIND_INT, .commands = BL | BS, .min = 2, .max = 1048576},
    [CLI_OPT_SYNTH_SEED] = {"seed", {"-s"}, "Benchmark", "N",
        "the same seed writes the same bytes", "1",
        CLI_KIND_INT, .commands = BS, .min = 0, .max = MAX_INT},
    [CLI_OPT_FOLDER] = {"output", {"-o"}, "Benchmark", "DIR",
        "the folder to write; it must not be there, and appears only when it is complete", NULL,
        CLI_KIND_TEXT, .commands = BS, .required = BS},
    [CLI_OPT_KERNEL] = {"kernel", {NULL}, "Benchmark", "WORD",
        "only kernels with this word in their names", NULL, CLI_KIND_TEXT, .commands = BK},
    [CLI_OPT_SERIAL] = {"serial", {NULL}, "Benchmark", NULL,
        "give independent projections a pass each, instead of one side by side", NULL,
        CLI_KIND_FLAG, .commands = BL},
    [CLI_OPT_SECONDS] = {"seconds", {NULL}, "Benchmark", "S",
        "repeat each measurement for about so long, the roof too; the best counts. bench model: "
        "that of the roof only",
        "1; kernels: 0.2",
        CLI_KIND_REAL, .commands = BR | BL | BM | BK, .min = 0.05, .max = 60},
    [CLI_OPT_PLOT] = {"plot", {NULL}, "Benchmark", "FILE.svg",
        "draw time per token against context, stages stacked, with the floor", NULL,
        CLI_KIND_TEXT, .commands = BL},
    [CLI_OPT_CSV] = {"csv", {NULL}, "Benchmark", NULL,
        "comma-separated values for spreadsheets", NULL, CLI_KIND_FLAG, .commands = BM},

    [CLI_OPT_QUIET] = {"quiet", {"-q"}, "Engine", NULL,
        "nothing on standard error but errors and warnings", NULL, CLI_KIND_FLAG, .commands = G | L | P | T | I | BR | BL | BM | BK | BS},
};
/* clang-format on */

void cli_option_env_name(const cli_option *option, char name[CLI_ENV_NAME_BYTES])
{
    snprintf(name, CLI_ENV_NAME_BYTES, "TAMIS_%s", option->name);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static bool is_word(const char *name, const char *word, size_t bytes)
{
    return name != NULL && strlen(name) == bytes && memcmp(name, word, bytes) == 0;
}

static bool is_named(const cli_option *option, const char *word, size_t bytes)
{
    if (bytes > 2 && memcmp(word, "--", 2) == 0 && is_word(option->name, word + 2, bytes - 2))
        return true;
    for (int i = 0; i < CLI_MAX_NAMES; i++)
        if (is_word(option->other[i], word, bytes))
            return true;
    return false;
}

int cli_option_find(cli_command_id command, const char *word, size_t bytes)
{
    int found = -1;
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        if (!is_named(&cli_options[id], word, bytes))
            continue;
        if (cli_options[id].commands & (1u << command))
            return id;
        found = found < 0 ? id : found;
    }
    return found;
}

int cli_command_find(const char *name)
{
    for (int id = 0; id < CLI_NUM_COMMANDS; id++)
        if (strcmp(cli_commands[id].name, name) == 0)
            return id;
    return -1;
}

static void describe_choices(const cli_option *option, bool is_list, char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; option->choices[i] != NULL && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i == 0 ? "" : " or ",
                                 option->choices[i]);
    if (is_list && used < bytes)
        snprintf(text + used, bytes - used, ", or several with commas");
}

void cli_option_describe_allowed(const cli_option *option, cli_command_id command, char *text,
                                 size_t bytes)
{
    switch (option->kind) {
    case CLI_KIND_INT:
        snprintf(text, bytes, "an integer from %.0f to %.0f", option->min, option->max);
        break;
    case CLI_KIND_INTS:
        snprintf(text, bytes, "integers from %.0f to %.0f, with commas between", option->min,
                 option->max);
        break;
    case CLI_KIND_SEED:
        snprintf(text, bytes, "an integer from 0 to 9223372036854775807, or -1 (random)");
        break;
    case CLI_KIND_REAL:
        snprintf(text, bytes, "a number from %g to %g", option->min, option->max);
        break;
    case CLI_KIND_SIZE:
        snprintf(text, bytes, "bytes, or a number with KiB, MiB, GiB or TiB, such as 1.5GiB");
        break;
    case CLI_KIND_CHOICE:
        describe_choices(option, (option->lists & (1u << command)) != 0, text, bytes);
        break;
    case CLI_KIND_FLAG:
        snprintf(text, bytes, "1 or 0");
        break;
    case CLI_KIND_TEXT:
    case CLI_KIND_TEXTS:
        snprintf(text, bytes, "a text that is not empty");
        break;
    }
}
