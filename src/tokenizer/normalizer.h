/* Unicode normal form C, the only normalizer the model families' tokenizers use. */
#ifndef TAMIS_TOKENIZER_NORMALIZER_H
#define TAMIS_TOKENIZER_NORMALIZER_H

#include <stddef.h>

#include "tamis/base.h"

/* Normalize valid UTF-8 into a block of the core allocator. Errors: NO_MEMORY. */
tamis_status tamis_normalize_nfc(char **out, size_t *out_bytes, const char *text, size_t bytes,
                                 tamis_error *err);

#endif
