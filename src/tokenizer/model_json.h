/* The tables of tokenizer.json: model (vocab and merges) and added_tokens. */
#ifndef TAMIS_TOKENIZER_MODEL_JSON_H
#define TAMIS_TOKENIZER_MODEL_JSON_H

#include "tokenizer/json_read.h"
#include "tokenizer/tokenizer_impl.h"

/* Fill vocab, added and ignore_merges; normalize_nfc is already set. added_tokens may be NULL. */
tamis_status tamis_tokenizer_read_model(tamis_tokenizer *tokenizer, const json_t *model,
                                        const json_t *added_tokens, const tamis_json_source *src);

#endif
