/* Experts: how many, in which groups, and how a token chooses among them. */
#include "config/model_fields.h"

#include <string.h>

#include "core/error.h"

/* Three names for the same number; those that are there must agree. */
static tamis_status read_num_experts(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const keys[] = {"n_routed_experts", "num_local_experts", "num_experts"};
    int32_t min = 1, max = 4096;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        TAMIS_TRY(tamis_config_int(root, keys[i], min, max, &out->n_routed_experts));
        if (tamis_config_get(root, keys[i]) != NULL)
            min = max = out->n_routed_experts;
    }
    if (out->n_routed_experts == 0)
        return tamis_config_require(root, keys[0]);
    if (out->num_experts_per_tok > out->n_routed_experts)
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "num_experts_per_tok",
                                   tamis_config_get(root, "num_experts_per_tok"),
                                   "at most n_routed_experts %d", out->n_routed_experts);
    return TAMIS_STATUS_OK;
}

/* A group's score is the sum of its two best experts; the token's experts come from the
 * topk_group best groups. */
static tamis_status read_groups(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(tamis_config_int(root, "n_group", 1, out->n_routed_experts, &out->n_group));
    TAMIS_TRY(tamis_config_int(root, "topk_group", 1, out->n_group, &out->topk_group));
    if (out->n_group > 1) /* no number of groups goes without saying */
        TAMIS_TRY(tamis_config_require(root, "topk_group"));
    const int32_t group_size = out->n_routed_experts / out->n_group;
    if (group_size * out->n_group != out->n_routed_experts || (out->n_group > 1 && group_size < 2))
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "n_group",
                                   tamis_config_get(root, "n_group"),
                                   "1 or groups of equal size of at least 2 out of "
                                   "n_routed_experts %d",
                                   out->n_routed_experts);
    if (out->topk_group * group_size < out->num_experts_per_tok)
        return tamis_config_refuse(
            root, TAMIS_STATUS_FORMAT, "topk_group", tamis_config_get(root, "topk_group"),
            "groups of %d that hold num_experts_per_tok %d", group_size, out->num_experts_per_tok);
    return TAMIS_STATUS_OK;
}

static tamis_status read_scoring(tamis_model_config *out, const tamis_config_object *root)
{
    static const char *const names[] = {[TAMIS_SCORING_SQRTSOFTPLUS] = "sqrtsoftplus",
                                        [TAMIS_SCORING_SIGMOID] = "sigmoid",
                                        [TAMIS_SCORING_SOFTMAX] = "softmax"};
    const char *name = names[out->scoring_func];
    TAMIS_TRY(tamis_config_text(root, "scoring_func", &name));
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0 &&
            (!tamis_config_has_latent(out) || i == TAMIS_SCORING_SIGMOID)) {
            out->scoring_func = (tamis_scoring_func)i;
            return TAMIS_STATUS_OK;
        }
    return tamis_config_refuse(
        root, TAMIS_STATUS_UNSUPPORTED, "scoring_func", tamis_config_get(root, "scoring_func"),
        tamis_config_has_latent(out) ? "sigmoid" : "sqrtsoftplus, sigmoid, softmax");
}

tamis_status tamis_config_read_experts(tamis_model_config *out, const tamis_config_object *root)
{
    TAMIS_TRY(read_num_experts(out, root));
    if (tamis_config_has_latent(out))
        TAMIS_TRY(read_groups(out, root));
    TAMIS_TRY(tamis_config_bool(root, "norm_topk_prob", &out->norm_topk_prob));
    return read_scoring(out, root);
}
