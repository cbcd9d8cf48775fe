/*
 * quant_model_description.json, which Ascend's quantiser writes beside the tensors: the scheme of
 * every tensor by its name, and a few facts about the folder.
 */
#ifndef TAMIS_WEIGHTS_QUANT_DESCRIPTION_H
#define TAMIS_WEIGHTS_QUANT_DESCRIPTION_H

#include "tamis/base.h"

typedef enum tamis_quant_scheme {
    TAMIS_SCHEME_FLOAT = 0,
    TAMIS_SCHEME_W8A8,         /* int8, the input's scale and offset are fixed */
    TAMIS_SCHEME_W8A8_DYNAMIC, /* int8, every token's input has its own scale */
    TAMIS_SCHEME_W8A8_MIX,     /* has what both need; run as W8A8_DYNAMIC */
    TAMIS_SCHEME_W4A8_DYNAMIC, /* int4, two rows in one */
    TAMIS_NUM_SCHEMES
} tamis_quant_scheme;

/* "FLOAT", "W8A8", ... */
const char *tamis_quant_scheme_name(tamis_quant_scheme scheme);

typedef struct tamis_quant_description tamis_quant_description;

/*
 * Reads dir/quant_model_description.json, or quant_model_descriptions.json. *out is NULL if there
 * is neither. errors: IO, FORMAT (both are there; not one JSON object; a key twice; a fact of the
 * wrong type), NO_MEMORY
 */
tamis_status tamis_quant_description_read(tamis_quant_description **out, const char *dir,
                                          tamis_error *err);
/* The same from text; `path` names the file in messages. */
tamis_status tamis_quant_description_parse(tamis_quant_description **out, const char *path,
                                           const char *text, size_t bytes, tamis_error *err);
void tamis_quant_description_free(tamis_quant_description **description);

/* The file, for messages. */
const char *tamis_quant_description_path(const tamis_quant_description *description);
/* Whether it says anything about that tensor. */
bool tamis_quant_description_has(const tamis_quant_description *description, const char *tensor);
/*
 * FLOAT for a tensor that it does not name. Keys are looked at when they are asked for: what else
 * stands in the file is not tamis' business. errors: FORMAT (no string), UNSUPPORTED (a scheme that
 * tamis does not run: the tensor, the scheme, the allowed ones)
 */
tamis_status tamis_quant_description_scheme(const tamis_quant_description *description,
                                            const char *tensor, tamis_quant_scheme *out,
                                            tamis_error *err);
/* The residual stream was rotated before quantising (is_rot_used). */
bool tamis_quant_description_is_rotated(const tamis_quant_description *description);
/* Columns per scale of int4 weights; 0: whole rows, -1: the file does not say. */
int32_t tamis_quant_description_group_size(const tamis_quant_description *description);

#endif
