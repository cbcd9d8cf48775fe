/*
 * utf8proc decomposes, composes and encodes. Its own ordering of combining marks is a bubble sort,
 * quadratic in a run of marks that a user may type, so the ordering in between is done here.
 */
#include "tokenizer/normalizer.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/utf8.h"

/* No canonical decomposition of one character is longer. */
enum { MAX_DECOMPOSITION = 4, N_CLASSES = 256 };

static int combining_class(int32_t code_point)
{
    return utf8proc_get_property(code_point)->combining_class;
}

static size_t decompose(int32_t *out, const char *text, size_t bytes)
{
    size_t n = 0;
    int boundary = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t len = tamis_utf8_len(text[at]);
        const int32_t code_point = (int32_t)tamis_utf8_code_point(text + at, len);
        n += (size_t)utf8proc_decompose_char(code_point, out + n, MAX_DECOMPOSITION,
                                             UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        at += len;
    }
    return n;
}

/* Stable sort of a run of marks by class: counting sort, through `spare` of the same length. */
static void order_run(int32_t *run, size_t n, int32_t *spare)
{
    size_t starts[N_CLASSES + 1] = {0};
    for (size_t i = 0; i < n; ++i)
        ++starts[combining_class(run[i]) + 1];
    for (int c = 0; c < N_CLASSES; ++c)
        starts[c + 1] += starts[c];
    for (size_t i = 0; i < n; ++i)
        spare[starts[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static void order_marks(int32_t *text, size_t n, int32_t *spare)
{
    for (size_t at = 0; at < n;) {
        size_t end = at;
        bool sorted = true;
        for (int last = 0; end < n; ++end) {
            const int class = combining_class(text[end]);
            if (class == 0)
                break;
            sorted &= class >= last;
            last = class;
        }
        if (!sorted)
            order_run(text + at, end - at, spare);
        at = end + 1;
    }
}

tamis_status tamis_normalize_nfc(char **out, size_t *out_bytes, const char *text, size_t bytes,
                                 tamis_error *err)
{
    /* Each character is at least one byte and becomes at most MAX_DECOMPOSITION code points. */
    const size_t room = (MAX_DECOMPOSITION * bytes + 1) * sizeof(int32_t);
    int32_t *buffer = tamis_mem_alloc(TAMIS_MEM_MISC, room);
    int32_t *spare = tamis_mem_alloc(TAMIS_MEM_MISC, room);
    if (buffer == NULL || spare == NULL) {
        tamis_mem_free(buffer);
        tamis_mem_free(spare);
        return tamis_fail_memory(err, "normalized text", 2 * room);
    }
    const size_t n = decompose(buffer, text, bytes);
    order_marks(buffer, n, spare);
    const utf8proc_ssize_t written =
        utf8proc_reencode(buffer, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    tamis_mem_free(spare);
    *out = (char *)buffer;
    *out_bytes = written > 0 ? (size_t)written : 0;
    return TAMIS_STATUS_OK;
}
