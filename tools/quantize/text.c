#include "quantize/text.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"
#include "core/mem.h"

tamis_status quant_text_add(quant_text *text, tamis_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int wanted = vsnprintf(NULL, 0, format, args);
    va_end(args);
    const size_t needed = text->n + (size_t)wanted + 1;
    if (needed > text->capacity) {
        const size_t capacity = needed > 2 * text->capacity ? needed : 2 * text->capacity;
        char *bytes = tamis_mem_realloc(TAMIS_MEM_MISC, text->bytes, capacity);
        if (bytes == NULL)
            return tamis_fail_memory(err, "text", capacity);
        text->bytes = bytes;
        text->capacity = capacity;
    }
    va_start(args, format);
    vsnprintf(text->bytes + text->n, text->capacity - text->n, format, args);
    va_end(args);
    text->n += (size_t)wanted;
    return TAMIS_STATUS_OK;
}

void quant_text_free(quant_text *text)
{
    tamis_mem_free(text->bytes);
    *text = (quant_text){NULL, 0, 0};
}
