/*
 * Rotary embeddings. V4's window layers rotate plainly with rope_theta, its compressed layers with
 * compress_rope_theta and YaRN; V3.2 and GLM rotate alike in every layer. Three spellings:
 *
 *   rope_scaling    {type, factor, ...}                       the vendor's
 *   rope_parameters {rope_type, factor, ...}                  the same under its new name
 *   rope_parameters {main: {...}, compress: {..., rope_theta}} V4 as transformers saves it
 *
 * V4 scales neither cos and sin nor the softmax: mscale keys are ignored, as the reference does.
 * V3.2 scales the softmax by mscale_all_dim, and cos and sin by a quotient of the two mscale keys
 * that is 1 if they are equal: tamis knows only that.
 */
#include "config/model_fields.h"

#include <math.h>
#include <string.h>

#include "core/error.h"

#define MIN_THETA 1.0001f
#define MAX_THETA 1e12f

static const tamis_rope_config plain = {0, 1.0f, 0, 32.0f, 1.0f};

/* The two objects that describe rotation; json is NULL where there is none. */
typedef struct rope_objects {
    tamis_config_object window, compress;
    bool is_nested;
} rope_objects;

static tamis_status find_objects(rope_objects *out, const tamis_config_object *root)
{
    tamis_config_object flat;
    const bool is_new = tamis_config_get(root, "rope_parameters") != NULL;
    TAMIS_TRY(is_new ? tamis_config_child(root, "rope_parameters", "rope_parameters.", &flat)
                     : tamis_config_child(root, "rope_scaling", "rope_scaling.", &flat));
    out->is_nested =
        tamis_config_get(&flat, "main") != NULL || tamis_config_get(&flat, "compress") != NULL;
    out->window = out->compress = flat;
    if (!out->is_nested)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_config_require(&flat, "main"));
    TAMIS_TRY(tamis_config_require(&flat, "compress"));
    TAMIS_TRY(tamis_config_child(
        &flat, "main", is_new ? "rope_parameters.main." : "rope_scaling.main.", &out->window));
    return tamis_config_child(&flat, "compress",
                              is_new ? "rope_parameters.compress." : "rope_scaling.compress.",
                              &out->compress);
}

/* "default" or "yarn"; absent is "default". */
static tamis_status read_type(const tamis_config_object *rope, bool *is_yarn)
{
    const char *key = tamis_config_get(rope, "rope_type") != NULL ? "rope_type" : "type";
    const char *type = "default";
    TAMIS_TRY(tamis_config_text(rope, key, &type));
    *is_yarn = strcmp(type, "yarn") == 0;
    if (*is_yarn || strcmp(type, "default") == 0)
        return TAMIS_STATUS_OK;
    return tamis_config_refuse(rope, TAMIS_STATUS_UNSUPPORTED, key, tamis_config_get(rope, key),
                               "default, yarn");
}

static tamis_status read_yarn(tamis_rope_config *out, const tamis_config_object *rope)
{
    float attention_factor = 1.0f;
    bool truncate = true;
    TAMIS_TRY(tamis_config_require(rope, "factor"));
    TAMIS_TRY(tamis_config_require(rope, "original_max_position_embeddings"));
    TAMIS_TRY(tamis_config_float(rope, "factor", 1.0f, 65536.0f, &out->yarn_factor));
    TAMIS_TRY(tamis_config_int(rope, "original_max_position_embeddings", 1, 1 << 30,
                               &out->original_max_position));
    TAMIS_TRY(tamis_config_float(rope, "beta_fast", 1e-3f, 1e6f, &out->beta_fast));
    TAMIS_TRY(tamis_config_float(rope, "beta_slow", 1e-3f, 1e6f, &out->beta_slow));
    if (out->beta_slow > out->beta_fast)
        return tamis_config_refuse(rope, TAMIS_STATUS_FORMAT, "beta_slow",
                                   tamis_config_get(rope, "beta_slow"), "at most beta_fast (%g)",
                                   (double)out->beta_fast);
    TAMIS_TRY(tamis_config_float(rope, "attention_factor", 0.0f, 1e6f, &attention_factor));
    if (attention_factor != 1.0f)
        return tamis_config_refuse(rope, TAMIS_STATUS_UNSUPPORTED, "attention_factor",
                                   tamis_config_get(rope, "attention_factor"), "1");
    TAMIS_TRY(tamis_config_bool(rope, "truncate", &truncate));
    if (!truncate)
        return tamis_config_refuse(rope, TAMIS_STATUS_UNSUPPORTED, "truncate",
                                   tamis_config_get(rope, "truncate"), "true");
    return TAMIS_STATUS_OK;
}

/* The nested spelling names each theta in its own object; the flat one at the top. */
static tamis_status read_theta(float *out, const tamis_config_object *root,
                               const tamis_config_object *rope, const char *top_key,
                               bool may_be_inside)
{
    const bool is_inside = may_be_inside && tamis_config_get(rope, "rope_theta") != NULL;
    const tamis_config_object *object = is_inside ? rope : root;
    const char *key = is_inside ? "rope_theta" : top_key;
    TAMIS_TRY(tamis_config_require(object, key));
    return tamis_config_float(object, key, MIN_THETA, MAX_THETA, out);
}

/* ---------------------------------------------------------------- V4 */

static bool has_compressed_layer(const tamis_model_config *config)
{
    for (int32_t i = 0; i < config->n_compress_ratios; i++)
        if (config->compress_ratios[i] != 0)
            return true;
    return false;
}

static tamis_status read_rotations(tamis_model_config *out, const tamis_config_object *root,
                                   const rope_objects *objects)
{
    bool is_yarn = false;
    out->rope_window = out->rope_compress = plain;
    /* A flat object without the top-level key: newer writers move rope_theta into it. */
    const bool theta_inside = objects->is_nested || tamis_config_get(root, "rope_theta") == NULL;
    TAMIS_TRY(
        read_theta(&out->rope_window.theta, root, &objects->window, "rope_theta", theta_inside));
    if (objects->is_nested) {
        TAMIS_TRY(read_type(&objects->window, &is_yarn));
        if (is_yarn)
            return tamis_config_refuse(&objects->window, TAMIS_STATUS_UNSUPPORTED, "rope_type",
                                       tamis_config_get(&objects->window, "rope_type"), "default");
    }
    if (!has_compressed_layer(out))
        return TAMIS_STATUS_OK;
    TAMIS_TRY(read_theta(&out->rope_compress.theta, root, &objects->compress, "compress_rope_theta",
                         objects->is_nested));
    TAMIS_TRY(read_type(&objects->compress, &is_yarn));
    return is_yarn ? read_yarn(&out->rope_compress, &objects->compress) : TAMIS_STATUS_OK;
}

/* qk_rope_head_dim, or partial_rotary_factor at the top or beside the window's theta. */
static tamis_status read_rotated_channels(tamis_model_config *out, const tamis_config_object *root,
                                          const rope_objects *objects)
{
    static const char *const key = "partial_rotary_factor";
    float factor = 0.0f;
    const tamis_config_object *object =
        tamis_config_get(root, key) == NULL && tamis_config_get(&objects->window, key) != NULL
            ? &objects->window
            : root;
    if (tamis_config_get(root, "qk_rope_head_dim") != NULL)
        return tamis_config_int(root, "qk_rope_head_dim", 2, out->head_dim, &out->qk_rope_head_dim);
    if (tamis_config_get(object, key) == NULL)
        return tamis_config_require(root, "qk_rope_head_dim");
    TAMIS_TRY(tamis_config_float(object, key, 0.0f, 1.0f, &factor));
    const float channels = roundf(factor * (float)out->head_dim);
    if (channels < 2.0f || fabsf(channels - factor * (float)out->head_dim) > 1e-3f)
        return tamis_config_refuse(object, TAMIS_STATUS_FORMAT, key, tamis_config_get(object, key),
                                   "a fraction of head_dim %d that is an even number of channels",
                                   out->head_dim);
    out->qk_rope_head_dim = (int32_t)channels;
    return TAMIS_STATUS_OK;
}

static tamis_status read_v4_rope(tamis_model_config *out, const tamis_config_object *root)
{
    rope_objects objects;
    TAMIS_TRY(find_objects(&objects, root));
    TAMIS_TRY(read_rotations(out, root, &objects));
    return read_rotated_channels(out, root, &objects);
}

/* ---------------------------------------------------------------- V3.2, GLM */

/* The one object that describes rotation; under both names it must be the same. */
static tamis_status find_object(tamis_config_object *out, const tamis_config_object *root)
{
    const json_t *new_value = tamis_config_get(root, "rope_parameters");
    const json_t *old_value = tamis_config_get(root, "rope_scaling");
    if (new_value == NULL)
        return tamis_config_child(root, "rope_scaling", "rope_scaling.", out);
    if (old_value != NULL && !json_equal(new_value, old_value))
        return tamis_config_refuse(root, TAMIS_STATUS_FORMAT, "rope_parameters", new_value,
                                   "what rope_scaling says, or only one of the two");
    return tamis_config_child(root, "rope_parameters", "rope_parameters.", out);
}

/* At the top, inside the object, or the same in both. */
static tamis_status read_latent_theta(float *out, const tamis_config_object *root,
                                      const tamis_config_object *rope)
{
    const bool is_inside = tamis_config_get(rope, "rope_theta") != NULL;
    float top = 0.0f;
    TAMIS_TRY(read_theta(out, root, rope, "rope_theta", is_inside));
    TAMIS_TRY(tamis_config_float(root, "rope_theta", MIN_THETA, MAX_THETA, &top));
    if (is_inside && top != 0.0f && top != *out)
        return tamis_config_refuse(rope, TAMIS_STATUS_FORMAT, "rope_theta",
                                   tamis_config_get(rope, "rope_theta"),
                                   "what rope_theta at the top says (%g)", (double)top);
    return TAMIS_STATUS_OK;
}

/* An absent mscale counts as 1, an absent mscale_all_dim as 0, as the reference reads them. */
static tamis_status read_mscale(float *out, const tamis_config_object *rope)
{
    float mscale = 1.0f, mscale_all_dim = 0.0f;
    TAMIS_TRY(tamis_config_float(rope, "mscale", 0.0f, 100.0f, &mscale));
    TAMIS_TRY(tamis_config_float(rope, "mscale_all_dim", 0.0f, 100.0f, &mscale_all_dim));
    if (mscale_all_dim == 0.0f || mscale_all_dim != mscale)
        return tamis_config_refuse(
            rope, TAMIS_STATUS_UNSUPPORTED, "mscale_all_dim",
            tamis_config_get(rope, "mscale_all_dim"),
            "above 0 and equal to mscale (%.9g), so that cos and sin are not "
            "scaled",
            (double)mscale);
    *out = mscale_all_dim;
    return TAMIS_STATUS_OK;
}

static tamis_status read_latent_rope(tamis_model_config *out, const tamis_config_object *root)
{
    tamis_config_object rope;
    bool is_yarn = false;
    out->rope = plain;
    TAMIS_TRY(find_object(&rope, root));
    TAMIS_TRY(read_latent_theta(&out->rope.theta, root, &rope));
    TAMIS_TRY(read_type(&rope, &is_yarn));
    if (!is_yarn)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(read_yarn(&out->rope, &rope));
    return read_mscale(&out->mscale_all_dim, &rope);
}

tamis_status tamis_config_read_rope(tamis_model_config *out, const tamis_config_object *root)
{
    return tamis_config_has_latent(out) ? read_latent_rope(out, root) : read_v4_rope(out, root);
}
