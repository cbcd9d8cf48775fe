/* Which family a config is of, and what each family has when its config is silent. */
#include "config/model_fields.h"

#include <math.h>
#include <string.h>

#include "core/error.h"

typedef struct family_row {
    tamis_family family;
    const char *name, *architecture;
    tamis_scoring_func scoring_func;
    bool index_rope_interleave;
    float top_p; /* what the vendor recommends */
} family_row;

static const family_row families[] = {
    {TAMIS_FAMILY_DEEPSEEK_V4, "deepseek_v4", "DeepseekV4ForCausalLM", TAMIS_SCORING_SQRTSOFTPLUS,
     false, 1.0f},
    {TAMIS_FAMILY_DEEPSEEK_V32, "deepseek_v32", "DeepseekV32ForCausalLM", TAMIS_SCORING_SIGMOID,
     false, 0.95f},
    {TAMIS_FAMILY_GLM_MOE_DSA, "glm_moe_dsa", "GlmMoeDsaForCausalLM", TAMIS_SCORING_SIGMOID, true,
     0.95f},
};

#define N_FAMILIES (sizeof families / sizeof *families)

static void set_defaults(tamis_model_config *out, const family_row *row)
{
    *out = (tamis_model_config){.family = row->family,
                                .family_name = row->name,
                                .index_rope_interleave = row->index_rope_interleave,
                                .n_group = 1,
                                .topk_group = 1,
                                .scoring_func = row->scoring_func,
                                .norm_topk_prob = true,
                                .swiglu_limit = INFINITY,
                                .bos_token_id = -1,
                                .do_sample = true,
                                .temperature = 1.0f,
                                .top_p = row->top_p};
}

/* architectures[0], or NULL */
static tamis_status read_architecture(const tamis_config_object *root, const char **out)
{
    const json_t *list = NULL;
    TAMIS_TRY(tamis_config_list(root, "architectures", 0, 16, &list));
    const json_t *first = json_array_get(list, 0);
    if (first != NULL && !json_is_string(first))
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "architectures[0]", first,
                                   "a string");
    *out = json_string_value(first);
    return TAMIS_STATUS_OK;
}

static tamis_status refuse_type(const tamis_config_object *root, const json_t *seen)
{
    return tamis_config_refuse(root, seen == NULL ? TAMIS_STATUS_FORMAT : TAMIS_STATUS_UNSUPPORTED,
                               "model_type", seen, "%s, %s, %s", families[0].name, families[1].name,
                               families[2].name);
}

static tamis_status refuse_architecture(const tamis_config_object *root, const family_row *row)
{
    const json_t *seen = json_array_get(tamis_config_get(root, "architectures"), 0);
    if (row != NULL)
        return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "architectures[0]", seen,
                                   "%s (model_type %s)", row->architecture, row->name);
    return tamis_config_refuse(root, TAMIS_STATUS_UNSUPPORTED, "architectures[0]", seen,
                               "%s, %s, %s", families[0].architecture, families[1].architecture,
                               families[2].architecture);
}

/* Similar configs of other families must not slip through: a name that is there must be known,
 * and if both are there they must name the same family. */
tamis_status tamis_config_read_family(tamis_model_config *out, const tamis_config_object *root)
{
    const char *architecture = NULL, *type = NULL;
    const family_row *row = NULL;
    TAMIS_TRY(read_architecture(root, &architecture));
    TAMIS_TRY(tamis_config_text(root, "model_type", &type));
    if (architecture == NULL && type == NULL)
        return refuse_type(root, NULL);
    for (size_t i = 0; i < N_FAMILIES && row == NULL; i++)
        if (strcmp(type != NULL ? type : architecture,
                   type != NULL ? families[i].name : families[i].architecture) == 0)
            row = &families[i];
    if (row == NULL && type != NULL)
        return refuse_type(root, tamis_config_get(root, "model_type"));
    if (row == NULL || (architecture != NULL && strcmp(architecture, row->architecture) != 0))
        return refuse_architecture(root, row);
    set_defaults(out, row);
    return TAMIS_STATUS_OK;
}
