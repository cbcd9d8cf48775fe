#include "quantize/quantize.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"
#include "quantize/calibrate.h"
#include "quantize/out_folder.h"
#include "quantize/tensor_writer.h"

#define MAX_COPY_BYTES ((size_t)512 << 20)

/* ---------------------------------------------------------------- parameters */

static tamis_status check_params(const tamis_quantize_params *p, tamis_error *err)
{
    if (p->attention == TAMIS_SCHEME_W4A8_DYNAMIC || p->others == TAMIS_SCHEME_W4A8_DYNAMIC)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "quantize: attention or another linear layer is W4A8_DYNAMIC, allowed: "
                          "FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX");
    if (quant_is_fixed(p->experts))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "quantize: experts are %s, allowed: FLOAT, W8A8_DYNAMIC, W4A8_DYNAMIC",
                          tamis_quant_scheme_name(p->experts));
    if (p->calibrate != NULL && !quant_is_fixed(p->attention) && !quant_is_fixed(p->others))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "quantize: calibration by %s, allowed: none, for no input scale is fixed "
                          "(W8A8, W8A8_MIX)",
                          p->calibrate);
    if (p->shard_bytes < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "quantize: shard_bytes is %lld, allowed: 1..",
                          (long long)p->shard_bytes);
    return TAMIS_STATUS_OK;
}

static tamis_status expect_not_quantised(const tamis_model *model, tamis_error *err)
{
    const tamis_quant_description *d = tamis_checkpoint_description(model->checkpoint);
    if (d == NULL)
        return TAMIS_STATUS_OK;
    return tamis_fail(
        err, TAMIS_STATUS_INVALID,
        "%s: is there, allowed: a folder that is not quantised yet (floats, FP8, FP4)",
        tamis_quant_description_path(d));
}

/* ---------------------------------------------------------------- small files */

static tamis_status read_source(const char *dir, const char *name, char **text, size_t *bytes,
                                tamis_error *err)
{
    char *path = tamis_path_join(dir, name);
    *text = NULL;
    if (path == NULL)
        return tamis_fail_memory(err, name, strlen(dir) + strlen(name) + 2);
    const tamis_status st = tamis_file_exists(path)
                                ? tamis_file_read(text, bytes, path, MAX_COPY_BYTES, err)
                                : TAMIS_STATUS_OK;
    tamis_mem_free(path);
    return st;
}

static tamis_status copy_file(out_folder *folder, const char *dir, const char *name,
                              tamis_error *err)
{
    char *text;
    size_t bytes = 0;
    TAMIS_TRY(read_source(dir, name, &text, &bytes, err));
    const tamis_status st =
        text == NULL ? TAMIS_STATUS_OK : out_folder_write(folder, name, text, bytes, err);
    tamis_mem_free(text);
    return st;
}

static tamis_status copy_files(out_folder *folder, const char *dir, tamis_error *err)
{
    static const char *const names[] = {
        "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
        "special_tokens_map.json", "tokenizer.model",   "chat_template.jinja",
        "chat_template.json",      "added_tokens.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TAMIS_TRY(copy_file(folder, dir, names[i], err));
    return TAMIS_STATUS_OK;
}

/* Enough digits that the numbers stay what they are, and no more than people would write. */
static char *dump(const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *again = text != NULL ? json_loads(text, 0, NULL) : NULL;
    if (!json_equal(json, again)) {
        free(text);
        text = json_dumps(json, JSON_INDENT(2));
    }
    json_decref(again);
    return text;
}

/* Without what it says about FP8 and FP4, which are gone. */
static tamis_status write_config(out_folder *folder, const char *dir, tamis_error *err)
{
    char *text;
    size_t bytes = 0;
    TAMIS_TRY(read_source(dir, "config.json", &text, &bytes, err));
    json_t *json = text != NULL ? json_loadb(text, bytes, 0, NULL) : NULL;
    const bool is_stale = json_object_get(json, "quantization_config") != NULL ||
                          json_object_get(json, "expert_dtype") != NULL;
    json_object_del(json, "quantization_config");
    json_object_del(json, "expert_dtype");
    char *changed = is_stale ? dump(json) : NULL;
    tamis_status st;
    if (json == NULL || (is_stale && changed == NULL))
        st = tamis_fail_memory(err, "config.json", bytes);
    else if (is_stale)
        st = out_folder_write(folder, "config.json", changed, strlen(changed), err);
    else
        st = out_folder_write(folder, "config.json", text, bytes, err);
    free(changed);
    json_decref(json);
    tamis_mem_free(text);
    return st;
}

/* ---------------------------------------------------------------- all of it */

static void count(tamis_quantize_report *report, const quant_list *list)
{
    report->n_unused = list->n_unused;
    for (int32_t i = 0; i < list->n; i++)
        report->n_weights[list->items[i].scheme]++;
}

/* config.json last: until then nobody takes it for a model. */
static tamis_status write_folder(out_folder *folder, const quant_list *list,
                                 const tamis_model *model, const tamis_quantize_params *p,
                                 tamis_quantize_report *report, tamis_error *err)
{
    TAMIS_TRY(quant_write_tensors(folder, list, p->shard_bytes, model->checkpoint, &report->n_files,
                                  &report->bytes, err));
    TAMIS_TRY(quant_write_description(folder, list, p->attention, err));
    TAMIS_TRY(copy_files(folder, p->source, err));
    return write_config(folder, p->source, err);
}

static tamis_status quantize(const tamis_quantize_params *p, tamis_model *model,
                             tamis_quantize_report *report, tamis_error *err)
{
    quant_list list = {0};
    out_folder folder;
    TAMIS_TRY(expect_not_quantised(model, err));
    TAMIS_TRY(out_folder_open(&folder, p->output, err));
    tamis_status st = quant_list_build(&list, model, p, err);
    if (st == TAMIS_STATUS_OK)
        st = quant_calibrate(&list, model, p, &report->n_tokens, err);
    if (st == TAMIS_STATUS_OK)
        st = write_folder(&folder, &list, model, p, report, err);
    out_folder_close(&folder, st == TAMIS_STATUS_OK);
    count(report, &list);
    quant_list_free(&list);
    return st;
}

tamis_status tamis_quantize_folder(const tamis_quantize_params *params,
                                   tamis_quantize_report *report, tamis_error *err)
{
    tamis_model *model;
    *report = (tamis_quantize_report){0};
    TAMIS_TRY(check_params(params, err));
    TAMIS_TRY(tamis_model_open(&model, params->source, err));
    const tamis_status st = quantize(params, model, report, err);
    tamis_model_close(&model);
    return st;
}
