#include "model/numerics.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "kernels/formats.h"
#include "model/cache_rows.h"
#include "model/numerics_table.h"

#define MAX_FORMATS 8 /* that the weights of one stage are stored in */

struct tamis_numerics_text {
    char layers[64], weights[64];
};

/* A format of a stage's weights and the kinds of layers that have it. */
typedef struct stage_format {
    char name[64];
    const tamis_matrix *weight; /* one of them; NULL: the stage has none */
    unsigned kinds;
} stage_format;

typedef struct stage_formats {
    stage_format list[MAX_FORMATS];
    int32_t n;
} stage_formats;

/* ---------------------------------------------------------------- kinds of layers */

static const struct {
    unsigned kind;
    const char *name;
} kind_names[] = {
    {TAMIS_AT_ENDS, "ends"},           {TAMIS_AT_WINDOW, "window"}, {TAMIS_AT_C4, "C4"},
    {TAMIS_AT_C4_SHARED, "C4 shared"}, {TAMIS_AT_C128, "C128"},     {TAMIS_AT_FULL, "full"},
    {TAMIS_AT_SHARED, "shared"},       {TAMIS_AT_ALL, "all"},       {TAMIS_AT_EXPERTS, "experts"},
    {TAMIS_AT_DENSE, "dense"},         {TAMIS_AT_MTP, "mtp"}};

static unsigned attention_kind(const tamis_model_config *config, int32_t layer)
{
    if (config->family != TAMIS_FAMILY_DEEPSEEK_V4)
        return config->index_topk == 0     ? TAMIS_AT_ALL
               : config->reuse_topk[layer] ? TAMIS_AT_SHARED
                                           : TAMIS_AT_FULL;
    const int32_t ratio = config->compress_ratios[layer];
    return ratio == 0                  ? TAMIS_AT_WINDOW
           : ratio != 4                ? TAMIS_AT_C128
           : config->reuse_topk[layer] ? TAMIS_AT_C4_SHARED
                                       : TAMIS_AT_C4;
}

static unsigned layer_kinds(const tamis_model_config *config, int32_t layer)
{
    const unsigned experts =
        config->family == TAMIS_FAMILY_DEEPSEEK_V4 ? TAMIS_AT_EXPERTS_V4 : TAMIS_AT_EXPERTS_LATENT;
    return attention_kind(config, layer) |
           (config->is_dense_layer[layer] ? TAMIS_AT_DENSE : experts);
}

/* Kinds that the folder has. */
static unsigned all_kinds(const tamis_model_config *config, const tamis_model_weights *weights)
{
    unsigned kinds = TAMIS_AT_ENDS | (weights->n_mtp > 0 ? TAMIS_AT_MTP : 0);
    for (int32_t i = 0; i < config->num_hidden_layers; i++)
        kinds |= layer_kinds(config, i);
    return kinds;
}

static void name_kinds(char *text, size_t size, unsigned kinds, unsigned all)
{
    const unsigned attention = TAMIS_AT_V4 | TAMIS_AT_LATENT;
    text[0] = '\0';
    if ((kinds & attention) != 0 && (kinds & attention) == (all & attention)) {
        snprintf(text, size, "all");
        return;
    }
    for (size_t i = 0; i < sizeof kind_names / sizeof *kind_names; i++) {
        const size_t used = strlen(text);
        if ((kinds & kind_names[i].kind) != 0)
            snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ", kind_names[i].name);
    }
}

/* ---------------------------------------------------------------- formats of weights */

static bool is_integer(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4;
}

/* Integers by the name that quant_model_description.json has for them. */
static void name_format(char *text, size_t size, const tamis_matrix *w)
{
    const char *dtype = tamis_dtype_name(w->dtype);
    if (is_integer(w))
        snprintf(text, size, "%s, %s", dtype,
                 w->input != NULL             ? "W8A8"
                 : w->dtype == TAMIS_DTYPE_I4 ? "W4A8_DYNAMIC"
                                              : "W8A8_DYNAMIC");
    else if (w->scale == NULL)
        snprintf(text, size, "%s", dtype);
    else
        snprintf(text, size, "%s + %s per %dx%d", dtype, tamis_dtype_name(w->scale_dtype),
                 w->block_rows, w->block_cols);
}

/* A matrix without rows is one that the layer has not. */
static void add_format(stage_formats *formats, const tamis_matrix *w, unsigned kind)
{
    char name[64];
    if (w->rows == 0)
        return;
    name_format(name, sizeof name, w);
    for (int32_t i = 0; i < formats->n; i++)
        if (strcmp(formats->list[i].name, name) == 0) {
            formats->list[i].kinds |= kind;
            return;
        }
    if (formats->n == MAX_FORMATS)
        return;
    stage_format *format = &formats->list[formats->n++];
    *format = (stage_format){.weight = w, .kinds = kind};
    snprintf(format->name, sizeof format->name, "%s", name);
}

static const tamis_matrix *matrix_at(const void *base, size_t offset)
{
    return (const tamis_matrix *)((const char *)base + offset);
}

static void add_layer(stage_formats *formats, const tamis_stage_rule *rule,
                      const tamis_model_config *config, const tamis_layer_weights *layer,
                      unsigned kind)
{
    if (rule->base == TAMIS_BASE_LAYER) {
        add_format(formats, matrix_at(layer, rule->weight_at), kind);
        return;
    }
    for (int32_t e = 0; e < config->n_routed_experts; e++)
        add_format(formats, matrix_at(&layer->moe.experts[e], rule->weight_at), kind);
}

static void find_formats(stage_formats *formats, const tamis_stage_rule *rule,
                         const tamis_model_config *config, const tamis_model_weights *weights,
                         unsigned all)
{
    *formats = (stage_formats){0};
    if (rule->base == TAMIS_BASE_NONE) {
        formats->list[formats->n++] = (stage_format){.name = "-", .kinds = rule->where & all};
    } else if (rule->base == TAMIS_BASE_MODEL) {
        add_format(formats, matrix_at(weights, rule->weight_at), rule->where);
    } else {
        for (int32_t i = 0; i < config->num_hidden_layers; i++) {
            const unsigned kind = rule->where & layer_kinds(config, i);
            if (kind != 0)
                add_layer(formats, rule, config, &weights->layers[i], kind);
        }
    }
}

/* ---------------------------------------------------------------- lines */

/* A text that stands for this profile and those behind it that have none. */
static const char *text_of(const char *const *texts, tamis_profile profile)
{
    int i = (int)profile;
    while (i > 0 && texts[i] == NULL)
        i--;
    return texts[i];
}

/* What ops/linear.h does with the input of such a weight. */
static const char *linear_input(const tamis_matrix *w, tamis_profile profile)
{
    if (profile == TAMIS_PROFILE_EXACT)
        return tamis_f4_in_blocks(w) ? "24-bit integers, groups of 32" : "as it is";
    if (w->dtype == TAMIS_DTYPE_F8_E4M3 || w->dtype == TAMIS_DTYPE_F4_E2M1)
        return profile == TAMIS_PROFILE_OFFICIAL ? "FP8, groups of 128" : "FP8, groups of 32";
    if (!is_integer(w))
        return "as it is";
    return w->input != NULL ? "int8, scale and offset of the folder" : "int8, scale per token";
}

static void set_input(tamis_numerics_line *line, const tamis_stage_rule *rule,
                      const tamis_matrix *weight, tamis_profile profile)
{
    const bool is_kept = (rule->kept & 1u << profile) != 0;
    const bool is_linear = rule->input[0] == NULL;
    line->input = !is_linear ? text_of(rule->input, profile)
                  : is_kept  ? "as it is"
                             : linear_input(weight, profile);
    line->numeric = rule->numeric;
    if (line->numeric == NULL)
        line->numeric =
            profile != TAMIS_PROFILE_EXACT && !is_kept && is_integer(weight) ? "exact" : "ordered";
}

static void set_rows(tamis_numerics_line *line, tamis_stage_rows rows,
                     const tamis_cache_rows *formats)
{
    const tamis_row_format *format =
        rows == TAMIS_STAGE_ROWS_KV ? &formats->kv : &formats->index_key;
    if (rows == TAMIS_STAGE_ROWS_NONE)
        return;
    line->rows = tamis_row_layout_name(tamis_row_layout_of(format));
    line->row_bytes = format->row_bytes;
}

/* Rows of a layer that keeps index keys, or of any. */
static tamis_status find_rows(tamis_cache_rows *rows, const tamis_model_config *config,
                              tamis_error *err)
{
    for (int32_t i = config->num_hidden_layers - 1; i >= 0; i--) {
        TAMIS_TRY(tamis_cache_rows_find(rows, config, i, TAMIS_DTYPE_AUTO, err));
        if (rows->index_key.row_bytes > 0)
            break;
    }
    return TAMIS_STATUS_OK;
}

static void add_lines(tamis_numerics *out, const tamis_stage_rule *rule,
                      const stage_formats *formats, unsigned all, const tamis_cache_rows *rows,
                      tamis_profile profile)
{
    for (int32_t i = 0; i < formats->n; i++) {
        const stage_format *format = &formats->list[i];
        struct tamis_numerics_text *text = &out->texts[out->n_lines];
        tamis_numerics_line *line = &out->lines[out->n_lines];
        if (format->kinds == 0)
            continue;
        out->n_lines++;
        name_kinds(text->layers, sizeof text->layers, format->kinds, all);
        snprintf(text->weights, sizeof text->weights, "%s", format->name);
        *line = (tamis_numerics_line){.layers = text->layers,
                                      .stage = rule->stage,
                                      .weights = text->weights,
                                      .output = text_of(rule->output, profile),
                                      .source = text_of(rule->source, profile)};
        set_input(line, rule, format->weight, profile);
        set_rows(line, rule->rows, rows);
    }
}

tamis_status tamis_numerics_make(tamis_numerics *out, const tamis_model_config *config,
                                 const tamis_model_weights *weights, tamis_error *err)
{
    const unsigned all = all_kinds(config, weights);
    const size_t most = tamis_num_stage_rules * MAX_FORMATS;
    tamis_cache_rows rows;
    *out = (tamis_numerics){0};
    TAMIS_TRY(find_rows(&rows, config, err));
    out->lines = tamis_mem_array(TAMIS_MEM_MISC, most, sizeof *out->lines);
    out->texts = tamis_mem_array(TAMIS_MEM_MISC, most, sizeof *out->texts);
    if (out->lines == NULL || out->texts == NULL) {
        tamis_numerics_free(out);
        return tamis_fail_memory(err, "inspection", most * sizeof *out->lines);
    }
    for (size_t i = 0; i < tamis_num_stage_rules; i++) {
        const tamis_stage_rule *rule = &tamis_stage_rules[i];
        stage_formats formats;
        if ((rule->where & all) == 0)
            continue;
        find_formats(&formats, rule, config, weights, all);
        add_lines(out, rule, &formats, all, &rows, config->profile);
    }
    return TAMIS_STATUS_OK;
}

void tamis_numerics_free(tamis_numerics *numerics)
{
    tamis_mem_free(numerics->lines);
    tamis_mem_free(numerics->texts);
    *numerics = (tamis_numerics){0};
}
