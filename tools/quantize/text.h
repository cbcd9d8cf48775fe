/* A text that grows: headers, index, description. */
#ifndef QUANTIZE_TEXT_H
#define QUANTIZE_TEXT_H

#include "tamis/base.h"

typedef struct quant_text {
    char *bytes; /* NUL-terminated; NULL while empty */
    size_t n, capacity;
} quant_text;

/* errors: NO_MEMORY */
tamis_status quant_text_add(quant_text *text, tamis_error *err, const char *format, ...)
    TAMIS_PRINTF(3, 4);
void quant_text_free(quant_text *text);

#endif
