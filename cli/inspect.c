/* tamis inspect: what a model folder holds, as a table or as JSON. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "memory.h"
#include "message.h"
#include "numerics.h"
#include "output.h"
#include "report.h"
#include "run_engine.h"

/* ---------------------------------------------------------------- text */

static bool has_shared_layers(const tamis_inspection *in)
{
    for (int32_t i = 0; i < in->info->num_hidden_layers; i++)
        if (strcmp(in->layer_attention[i], "shared") == 0)
            return true;
    return false;
}

/* "0-1 window/hash, 2 C4/learned": runs of equal layers, in order. */
static void print_layers(const tamis_inspection *in)
{
    const int32_t n = in->info->num_hidden_layers;
    cli_outf("layers      %d:", (int)n);
    for (int32_t first = 0, end; first < n; first = end) {
        end = first + 1;
        while (end < n && strcmp(in->layer_attention[end], in->layer_attention[first]) == 0 &&
               strcmp(in->layer_mlp[end], in->layer_mlp[first]) == 0)
            end++;
        cli_outf("%s %d", first == 0 ? "" : ",", (int)first);
        if (end - first > 1)
            cli_outf("-%d", (int)end - 1);
        cli_outf(" %s/%s", in->layer_attention[first], in->layer_mlp[first]);
    }
    cli_outf("\n            (attention/feed-forward%s)\n",
             has_shared_layers(in) ? "; shared: uses an earlier layer's selection" : "");
}

static void print_groups(const tamis_inspection *in)
{
    size_t name_width = 5, dtype_width = 6;
    for (int32_t i = 0; i < in->n_groups; i++) {
        const size_t name = strlen(in->groups[i].name), dtype = strlen(in->groups[i].dtype);
        name_width = name > name_width ? name : name_width;
        dtype_width = dtype > dtype_width ? dtype : dtype_width;
    }
    cli_outf("\n%-*s  %-*s  %7s  %15s  %15s\n", (int)name_width, "group", (int)dtype_width,
             "format", "tensors", "parameters", "bytes");
    for (int32_t i = 0; i < in->n_groups; i++) {
        const tamis_tensor_group *g = &in->groups[i];
        cli_outf("%-*s  %-*s  %7lld  %15lld  %15llu%s\n", (int)name_width, g->name,
                 (int)dtype_width, g->dtype, (long long)g->n_tensors, (long long)g->n_params,
                 (unsigned long long)g->bytes, g->is_used ? "" : "  not run");
    }
    cli_outf("%-*s  %-*s  %7lld  %15lld  %15llu\n\n", (int)name_width, "total", (int)dtype_width,
             "", (long long)in->n_tensors, (long long)in->n_params,
             (unsigned long long)in->tensor_bytes);
}

/* "mtp.0.experts.12.w1" -> "mtp.*.experts.*.w1": numbered names on one line. */
static char *fold_numbers(const char *name)
{
    char *folded = cli_alloc(strlen(name) + 1, 1);
    char *end = folded;
    while (*name != '\0') {
        const size_t digits = strspn(name, "0123456789");
        const bool is_part = end == folded || end[-1] == '.';
        if (is_part && digits > 0 && (name[digits] == '.' || name[digits] == '\0')) {
            *end++ = '*';
            name += digits;
        } else {
            *end++ = *name++;
        }
    }
    return folded;
}

/* How many of names[0 .. n) equal names[i]; *first is the first one. */
static size_t count_equal(char *const *names, size_t n, size_t i, size_t *first)
{
    size_t count = 0;
    for (size_t j = n; j-- > 0;)
        if (strcmp(names[j], names[i]) == 0) {
            count++;
            *first = j;
        }
    return count;
}

/* Names that differ in numbers only are counted where the first of them stands. */
static void print_unused(const tamis_inspection *in)
{
    const size_t n = (size_t)in->n_unused;
    char **folded = cli_alloc(n, sizeof *folded);
    cli_outf("not run     %zu tensor%s\n", n, n == 1 ? "" : "s");
    for (size_t i = 0; i < n; i++)
        folded[i] = fold_numbers(in->unused[i]);
    for (size_t i = 0; i < n; i++) {
        size_t first = i;
        const size_t count = count_equal(folded, n, i, &first);
        const char *name = count == 1 ? in->unused[i] : folded[i];
        if (first != i)
            continue;
        cli_out("  ", 2);
        cli_out(name, strlen(name)); /* of any length */
        if (count > 1)
            cli_outf(" (%zu)", count);
        cli_out("\n", 1);
    }
    for (size_t i = 0; i < n; i++)
        free(folded[i]);
    free(folded);
}

/* "bf16 caches  rows bf16 1152 bytes, ...": the first is what is taken without --kv-cache-dtype. */
static void print_caches(const tamis_inspection *in)
{
    for (int32_t i = 0; i < in->n_caches; i++) {
        const tamis_cache_choice *c = &in->caches[i];
        cli_outf("%-12s%s: %llu bytes per token, all layers", i == 0 ? "KV cache" : "",
                 cli_kv_cache_name(c->kv_cache_dtype), (unsigned long long)c->bytes_per_token);
        if (c->ring_bytes > 0)
            cli_outf(" (rings: %llu per sequence)", (unsigned long long)c->ring_bytes);
        cli_outf("; rows %s of %d", c->kv_rows, (int)c->kv_row_bytes);
        if (c->index_rows != NULL)
            cli_outf(", index keys %s of %d", c->index_rows, (int)c->index_row_bytes);
        cli_outf("\n");
    }
}

static void print_text(const tamis_inspection *in, bool has_tokenizer)
{
    const tamis_model_info *info = in->info;
    char mapped[CLI_SIZE_BYTES], widened[CLI_SIZE_BYTES];
    cli_outf("family      %s, profile %s\n", info->family, info->profile);
    cli_outf("shape       vocabulary %d, hidden size %d, context at most %d\n",
             (int)info->vocab_size, (int)info->hidden_size, (int)info->max_position_embeddings);
    print_layers(in);
    if (info->index_topk > 0)
        cli_outf("index       top %d of %s%s\n", (int)info->index_topk,
                 in->layer_ratios != NULL ? "compressed rows" : "tokens",
                 info->has_index_cache ? ", some layers reuse the top-k of an earlier one" : "");
    if (strcmp(info->drafter, "none") != 0)
        cli_outf("drafter     %s%s\n", info->drafter,
                 strcmp(info->drafter, "mtp") == 0 ? " block" : ", not run");
    cli_outf("tokenizer   %s\n", has_tokenizer ? "tokenizer.json" : "none: ids only");
    print_groups(in);
    print_caches(in);
    cli_outf("weights     %s used in place, %s widened at load\n",
             cli_format_size(info->weight_bytes_mapped, mapped),
             cli_format_size(info->weight_bytes_widened, widened));
    print_unused(in);
}

/* ---------------------------------------------------------------- JSON */

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *layers_json(const tamis_inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->info->num_hidden_layers; i++) {
        json_t *layer = json_object();
        json_object_set_new(layer, "kind", json_string(in->layer_attention[i]));
        if (in->layer_ratios != NULL)
            json_object_set_new(layer, "compress_ratio", json_integer(in->layer_ratios[i]));
        json_object_set_new(layer, "routing", json_string(in->layer_mlp[i]));
        json_array_append_new(array, layer);
    }
    return array;
}

static json_t *groups_json(const tamis_inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->n_groups; i++) {
        const tamis_tensor_group *g = &in->groups[i];
        json_array_append_new(array,
                              json_pack("{s:s, s:s, s:I, s:I, s:o, s:b}", "name", g->name, "format",
                                        g->dtype, "tensors", (json_int_t)g->n_tensors, "parameters",
                                        (json_int_t)g->n_params, "bytes", integer(g->bytes),
                                        "is_used", (int)g->is_used));
    }
    return array;
}

static json_t *caches_json(const tamis_inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->n_caches; i++) {
        const tamis_cache_choice *c = &in->caches[i];
        json_array_append_new(
            array, json_pack("{s:s, s:s, s:i, s:s?, s:i, s:o, s:o}", "kv_cache_dtype",
                             cli_kv_cache_name(c->kv_cache_dtype), "kv_rows", c->kv_rows,
                             "kv_row_bytes", (int)c->kv_row_bytes, "index_rows", c->index_rows,
                             "index_row_bytes", (int)c->index_row_bytes, "bytes_per_token",
                             integer(c->bytes_per_token), "ring_bytes", integer(c->ring_bytes)));
    }
    return array;
}

static json_t *numerics_json(const tamis_inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->n_numerics; i++) {
        const tamis_numerics_line *l = &in->numerics[i];
        json_array_append_new(array, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?, s:i, s:s, s:s}",
                                               "layers", l->layers, "stage", l->stage, "weights",
                                               l->weights, "input", l->input, "output", l->output,
                                               "rows", l->rows, "row_bytes", (int)l->row_bytes,
                                               "class", l->numeric, "source", l->source));
    }
    return array;
}

static json_t *unused_json(const tamis_inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->n_unused; i++)
        json_array_append_new(array, json_string(in->unused[i]));
    return array;
}

static void print_json(const tamis_inspection *in, bool has_tokenizer)
{
    const tamis_model_info *info = in->info;
    json_t *object = json_object();
    json_object_set_new(object, "family", json_string(info->family));
    json_object_set_new(object, "profile", json_string(info->profile));
    json_object_set_new(object, "vocab_size", json_integer(info->vocab_size));
    json_object_set_new(object, "hidden_size", json_integer(info->hidden_size));
    json_object_set_new(object, "max_position_embeddings",
                        json_integer(info->max_position_embeddings));
    json_object_set_new(object, "index_topk", json_integer(info->index_topk));
    json_object_set_new(object, "has_index_cache", json_boolean(info->has_index_cache));
    json_object_set_new(object, "num_nextn_predict_layers",
                        json_integer(info->num_nextn_predict_layers));
    json_object_set_new(object, "drafter", json_string(info->drafter));
    json_object_set_new(object, "has_tokenizer", json_boolean(has_tokenizer));
    json_object_set_new(object, "layers", layers_json(in));
    json_object_set_new(object, "groups", groups_json(in));
    json_object_set_new(object, "tensors", json_integer(in->n_tensors));
    json_object_set_new(object, "parameters", json_integer(in->n_params));
    json_object_set_new(object, "bytes", integer(in->tensor_bytes));
    json_object_set_new(object, "weight_bytes_mapped", integer(info->weight_bytes_mapped));
    json_object_set_new(object, "weight_bytes_widened", integer(info->weight_bytes_widened));
    json_object_set_new(object, "caches", caches_json(in));
    json_object_set_new(object, "numerics", numerics_json(in));
    json_object_set_new(object, "unused", unused_json(in));
    cli_out_json(object, 2);
    json_decref(object);
}

/* ---------------------------------------------------------------- the command */

static void print(const cli_args *args, const tamis_inspection *in)
{
    const bool has_tokenizer = cli_has_tokenizer(cli_text(args, CLI_OPT_MODEL));
    if (cli_has(args, CLI_OPT_JSON)) {
        print_json(in, has_tokenizer);
        return;
    }
    print_text(in, has_tokenizer);
    if (cli_has(args, CLI_OPT_PROFILE))
        cli_print_numerics(in);
}

int cli_cmd_inspect(const cli_args *args)
{
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    const tamis_inspection *in;
    tamis_error err = {0};
    params.profile = cli_profile(args, 0);
    tamis_status st = tamis_model_open_with(&model, cli_text(args, CLI_OPT_MODEL), &params, &err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_model_inspect(model, &in, &err);
    if (st == TAMIS_STATUS_OK)
        print(args, in);
    tamis_model_close(&model);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK
                                 : cli_fail(cli_exit_code_of_model(st), "%s", err.text);
}
