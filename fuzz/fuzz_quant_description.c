/*
 * quant_model_description.json: what is accepted answers for every key it has, with a scheme or
 * with an error that says why not, and for keys that it has not.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_json.h"
#include "weights/quant_description.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool is_true)
{
    if (!is_true)
        abort();
}

static void check_key(const tamis_quant_description *d, const char *key, const json_t *value)
{
    tamis_quant_scheme scheme = TAMIS_NUM_SCHEMES;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    const tamis_status st = tamis_quant_description_scheme(d, key, &scheme, &err);
    require(tamis_quant_description_has(d, key) == (value != NULL));
    if (st != TAMIS_STATUS_OK) {
        require(value != NULL && err.status == st && strstr(err.text, "allowed: ") != NULL);
        return;
    }
    require((unsigned)scheme < TAMIS_NUM_SCHEMES);
    require(value == NULL ? scheme == TAMIS_SCHEME_FLOAT
                          : strcmp(json_string_value(value), tamis_quant_scheme_name(scheme)) == 0);
}

/* The same text once more, for its keys. */
static void check(const tamis_quant_description *d, const char *text, size_t bytes)
{
    json_t *json;
    const char *key;
    json_t *value;
    require(tamis_config_json_parse(&json, "again", text, bytes, NULL) == TAMIS_STATUS_OK);
    json_object_foreach(json, key, value) check_key(d, key, value);
    json_decref(json);
    check_key(d, "a key that is not there", NULL);
    require(tamis_quant_description_group_size(d) >= -1);
    require(strcmp(tamis_quant_description_path(d), "description.json") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tamis_quant_description *d;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    char *text = malloc(size + 1); /* as files are read: with a NUL behind */
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    const tamis_status st = tamis_quant_description_parse(&d, "description.json", text, size, &err);
    if (st == TAMIS_STATUS_OK)
        check(d, text, size);
    else
        require(d == NULL && err.status == st && err.text[0] != '\0');
    tamis_quant_description_free(&d);
    free(text);
    return 0;
}
