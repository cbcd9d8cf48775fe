/* tamis tokenize: text <-> ids, one input or one JSON object per line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"
#include "run_engine.h"

typedef struct conversion {
    const cli_args *args;
    tamis_tokenizer *tokenizer;
    tamis_encode_mode mode;
    int32_t bos_id; /* to put in front; -1: nothing */
    bool decodes, is_json;
} conversion;

static int failed(tamis_status st, const tamis_error *err)
{
    return cli_fail(cli_exit_code(st), "%s", err->text);
}

/* ---------------------------------------------------------------- one input */

static void print_ids(const conversion *c, const int32_t *ids, size_t n)
{
    if (c->bos_id >= 0)
        cli_outf("%d%s", (int)c->bos_id, n > 0 ? " " : "");
    for (size_t i = 0; i < n; i++)
        cli_outf("%s%d", i > 0 ? " " : "", (int)ids[i]);
    cli_out("\n", 1);
}

static void print_ids_json(const conversion *c, const int32_t *ids, size_t n)
{
    json_t *array = json_array();
    if (c->bos_id >= 0)
        json_array_append_new(array, json_integer(c->bos_id));
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    json_t *object = json_pack("{s:o}", "ids", array);
    cli_out_json(object, 0);
    json_decref(object);
}

static int encode(const conversion *c, const char *text, size_t bytes)
{
    tamis_error err = {0};
    int32_t *ids;
    size_t n;
    const tamis_status st =
        tamis_tokenizer_encode(c->tokenizer, text, bytes, c->mode, &ids, &n, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    if (c->is_json)
        print_ids_json(c, ids, n);
    else
        print_ids(c, ids, n);
    tamis_ids_free(ids);
    return CLI_EXIT_OK;
}

static int decode(const conversion *c, const cli_ints *ids)
{
    tamis_error err = {0};
    char *text;
    size_t bytes;
    const tamis_status st =
        tamis_tokenizer_decode(c->tokenizer, ids->values, ids->n, false, &text, &bytes, &err);
    if (st != TAMIS_STATUS_OK)
        return failed(st, &err);
    if (c->is_json) {
        json_t *object = json_pack("{s:o}", "text", json_stringn(text, bytes));
        cli_out_json(object, 0);
        json_decref(object);
    } else {
        cli_out(text, bytes);
    }
    tamis_text_free(text);
    return CLI_EXIT_OK;
}

static int32_t highest_id(const conversion *c)
{
    return tamis_tokenizer_get_info(c->tokenizer).num_ids - 1;
}

static int convert_whole(const conversion *c)
{
    const cli_args *args = c->args;
    cli_buffer text = {0};
    cli_ints ids = {0};
    const bool is_prompt = cli_has(args, CLI_OPT_PROMPT);
    const char *path = cli_has(args, CLI_OPT_FILE) ? cli_text(args, CLI_OPT_FILE) : "-";
    int code = CLI_EXIT_OK;
    if (!is_prompt)
        code = cli_read_file(path, &text);
    const char *bytes = is_prompt ? cli_text(args, CLI_OPT_PROMPT) : text.bytes;
    const size_t n = is_prompt ? strlen(bytes) : text.n;
    if (code == CLI_EXIT_OK && !c->decodes)
        code = encode(c, bytes, n);
    if (code == CLI_EXIT_OK && c->decodes)
        code = cli_parse_ints(is_prompt                ? cli_source(args, CLI_OPT_PROMPT)
                              : strcmp(path, "-") == 0 ? "standard input"
                                                       : path,
                              bytes, n, 0, highest_id(c), &ids);
    if (code == CLI_EXIT_OK && c->decodes)
        code = decode(c, &ids);
    cli_buffer_free(&text);
    cli_ints_free(&ids);
    return code;
}

/* ---------------------------------------------------------------- JSON lines */

static int bad_line(const char *name, size_t line, const char *why)
{
    return cli_fail(CLI_EXIT_RUN, "%s:%zu: %s", name, line, why);
}

static int decode_object(const conversion *c, const json_t *object, const char *name, size_t line)
{
    const json_t *array = json_object_get(object, "ids");
    if (!json_is_array(array))
        return bad_line(name, line, "key \"ids\" is missing or not an array");
    cli_ints ids = {0};
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < json_array_size(array) && code == CLI_EXIT_OK; i++) {
        const json_t *item = json_array_get(array, i);
        const json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (value < 0 || value > highest_id(c))
            code = cli_fail(CLI_EXIT_RUN, "%s:%zu: ids[%zu], allowed: an integer from 0 to %d",
                            name, line, i, (int)highest_id(c));
        else
            cli_ints_push(&ids, (int32_t)value);
    }
    if (code == CLI_EXIT_OK)
        code = decode(c, &ids);
    cli_ints_free(&ids);
    return code;
}

static int convert_line(const conversion *c, const char *text, size_t bytes, const char *name,
                        size_t line)
{
    json_error_t error;
    json_t *object = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    int code;
    if (object == NULL)
        return bad_line(name, line, error.text);
    const json_t *string = json_object_get(object, "text");
    if (!json_is_object(object))
        code = bad_line(name, line, "not a JSON object");
    else if (c->decodes)
        code = decode_object(c, object, name, line);
    else if (!json_is_string(string))
        code = bad_line(name, line, "key \"text\" is missing or not a string");
    else
        code = encode(c, json_string_value(string), json_string_length(string));
    json_decref(object);
    if (code == CLI_EXIT_OK && !cli_out_flush()) /* a line at a time, for whoever waits for it */
        code = CLI_EXIT_RUN;
    return code;
}

static int convert_lines(const conversion *c)
{
    const char *path = cli_has(c->args, CLI_OPT_FILE) ? cli_text(c->args, CLI_OPT_FILE) : "-";
    const bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (file == NULL)
        return cli_fail_errno(CLI_EXIT_RUN, path);
    char *text = NULL;
    size_t capacity = 0;
    int code = CLI_EXIT_OK;
    for (size_t line = 1; code == CLI_EXIT_OK; line++) {
        const ssize_t bytes = getline(&text, &capacity, file);
        if (cli_interrupted())
            code = CLI_EXIT_INTERRUPTED;
        else if (bytes >= 0)
            code = convert_line(c, text, (size_t)bytes, name, line);
        else
            break;
    }
    if (code == CLI_EXIT_OK && !feof(file))
        code = cli_fail_errno(CLI_EXIT_RUN, name);
    free(text);
    if (!is_stdin)
        fclose(file);
    return code;
}

/* ---------------------------------------------------------------- options */

static int check_options(const cli_args *args)
{
    if (cli_has(args, CLI_OPT_JSON) && cli_has(args, CLI_OPT_PROMPT))
        return cli_refuse(args, CLI_OPT_PROMPT, "not together with --json, which reads lines");
    if (!cli_has(args, CLI_OPT_DECODE))
        return CLI_EXIT_OK;
    if (cli_has(args, CLI_OPT_ADD_BOS))
        return cli_refuse(args, CLI_OPT_ADD_BOS, "not together with --decode");
    if (cli_has(args, CLI_OPT_PLAIN))
        return cli_refuse(args, CLI_OPT_PLAIN, "not together with --decode");
    return CLI_EXIT_OK;
}

static int run(conversion *c)
{
    int code = check_options(c->args);
    if (code == CLI_EXIT_OK)
        code = cli_open_tokenizer(cli_text(c->args, CLI_OPT_MODEL), &c->tokenizer);
    if (code != CLI_EXIT_OK)
        return code;
    if (cli_has(c->args, CLI_OPT_ADD_BOS))
        c->bos_id = tamis_tokenizer_get_info(c->tokenizer).bos_id;
    if (cli_has(c->args, CLI_OPT_ADD_BOS) && c->bos_id < 0)
        return cli_refuse(c->args, CLI_OPT_ADD_BOS, "tokenizer_config.json names no bos_token");
    return c->is_json ? convert_lines(c) : convert_whole(c);
}

int cli_cmd_tokenize(const cli_args *args)
{
    conversion c = {.args = args,
                    .bos_id = -1,
                    .mode = cli_has(args, CLI_OPT_PLAIN) ? TAMIS_ENCODE_PLAIN
                                                         : TAMIS_ENCODE_ADDED_TOKENS,
                    .decodes = cli_has(args, CLI_OPT_DECODE),
                    .is_json = cli_has(args, CLI_OPT_JSON)};
    const int code = run(&c);
    tamis_tokenizer_close(&c.tokenizer);
    return code;
}
