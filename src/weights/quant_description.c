#include "weights/quant_description.h"

#include <string.h>

#include "config/config_json.h"
#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"

/* Seven entries of 80 bytes for each of a hundred thousand matrices. */
#define MAX_DESCRIPTION_BYTES ((size_t)256 << 20)

struct tamis_quant_description {
    json_t *json;
    char *path;
    bool is_rotated;
    int32_t group_size;
};

static const char *const scheme_names[TAMIS_NUM_SCHEMES] = {
    [TAMIS_SCHEME_FLOAT] = "FLOAT",
    [TAMIS_SCHEME_W8A8] = "W8A8",
    [TAMIS_SCHEME_W8A8_DYNAMIC] = "W8A8_DYNAMIC",
    [TAMIS_SCHEME_W8A8_MIX] = "W8A8_MIX",
    [TAMIS_SCHEME_W4A8_DYNAMIC] = "W4A8_DYNAMIC",
};

const char *tamis_quant_scheme_name(tamis_quant_scheme scheme)
{
    return scheme_names[scheme];
}

/* ---------------------------------------------------------------- read */

static tamis_status read_facts(tamis_quant_description *d, tamis_error *err)
{
    const tamis_config_object root = {d->json, d->path, "", err};
    d->group_size = -1;
    TAMIS_TRY(tamis_config_bool(&root, "is_rot_used", &d->is_rotated));
    return tamis_config_int(&root, "group_size", 0, INT32_MAX, &d->group_size);
}

tamis_status tamis_quant_description_parse(tamis_quant_description **out, const char *path,
                                           const char *text, size_t bytes, tamis_error *err)
{
    tamis_status st;
    *out = NULL;
    tamis_quant_description *d = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *d);
    if (d == NULL)
        return tamis_fail_memory(err, path, sizeof *d);
    d->path = tamis_mem_strdup(TAMIS_MEM_MISC, path);
    if (d->path == NULL) {
        st = tamis_fail_memory(err, path, strlen(path) + 1);
        goto fail;
    }
    TAMIS_TRY_GOTO(tamis_config_json_parse(&d->json, d->path, text, bytes, err));
    TAMIS_TRY_GOTO(read_facts(d, err));
    *out = d;
    return TAMIS_STATUS_OK;
fail:
    tamis_quant_description_free(&d);
    return st;
}

/* "dir/quant_model_description.json", the plural, or NULL in *path. */
static tamis_status find_file(char **path, const char *dir, tamis_error *err)
{
    static const char *const names[] = {"quant_model_description.json",
                                        "quant_model_descriptions.json"};
    *path = NULL;
    for (size_t i = 0; i < 2; i++) {
        char *candidate = tamis_path_join(dir, names[i]);
        if (candidate == NULL) {
            tamis_mem_free(*path);
            *path = NULL;
            return tamis_fail_memory(err, names[i], strlen(dir) + strlen(names[i]) + 2);
        }
        const bool is_there = tamis_file_exists(candidate);
        if (is_there && *path != NULL) {
            const tamis_status st = tamis_fail(err, TAMIS_STATUS_FORMAT,
                                               "%s: %s and %s are both there, allowed: one of them",
                                               dir, names[0], names[1]);
            tamis_mem_free(candidate);
            tamis_mem_free(*path);
            *path = NULL;
            return st;
        }
        if (is_there)
            *path = candidate;
        else
            tamis_mem_free(candidate);
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_quant_description_read(tamis_quant_description **out, const char *dir,
                                          tamis_error *err)
{
    char *path = NULL, *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    TAMIS_TRY(find_file(&path, dir, err));
    if (path == NULL)
        return TAMIS_STATUS_OK;
    tamis_status st = tamis_file_read(&text, &bytes, path, MAX_DESCRIPTION_BYTES, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_quant_description_parse(out, path, text, bytes, err);
    tamis_mem_free(text);
    tamis_mem_free(path);
    return st;
}

void tamis_quant_description_free(tamis_quant_description **description)
{
    tamis_quant_description *d = *description;
    if (d == NULL)
        return;
    json_decref(d->json);
    tamis_mem_free(d->path);
    tamis_mem_free(d);
    *description = NULL;
}

/* ---------------------------------------------------------------- ask */

const char *tamis_quant_description_path(const tamis_quant_description *description)
{
    return description->path;
}

bool tamis_quant_description_has(const tamis_quant_description *description, const char *tensor)
{
    return json_object_get(description->json, tensor) != NULL;
}

tamis_status tamis_quant_description_scheme(const tamis_quant_description *description,
                                            const char *tensor, tamis_quant_scheme *out,
                                            tamis_error *err)
{
    const tamis_config_object root = {description->json, description->path, "", err};
    const json_t *value = json_object_get(description->json, tensor);
    *out = TAMIS_SCHEME_FLOAT;
    if (value == NULL)
        return TAMIS_STATUS_OK;
    for (int i = 0; json_is_string(value) && i < TAMIS_NUM_SCHEMES; i++)
        if (strcmp(json_string_value(value), scheme_names[i]) == 0) {
            *out = (tamis_quant_scheme)i;
            return TAMIS_STATUS_OK;
        }
    return tamis_config_refuse(
        &root, json_is_string(value) ? TAMIS_STATUS_UNSUPPORTED : TAMIS_STATUS_FORMAT, tensor,
        value, "FLOAT, W8A8, W8A8_DYNAMIC, W8A8_MIX, W4A8_DYNAMIC");
}

bool tamis_quant_description_is_rotated(const tamis_quant_description *description)
{
    return description->is_rotated;
}

int32_t tamis_quant_description_group_size(const tamis_quant_description *description)
{
    return description->group_size;
}
