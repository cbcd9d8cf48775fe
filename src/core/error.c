#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOG_BYTES     1024
#define LONGEST_BYTES 8192 /* of a text before it is shortened: a path may have 4096 */
#define GAP           " ... "

/* Written by tamis_log_set before other threads start, only read afterwards. */
static tamis_log_fn log_fn;
static void *log_user;

const char *tamis_status_name(tamis_status status)
{
    switch (status) {
    case TAMIS_STATUS_OK: return "ok";
    case TAMIS_STATUS_INVALID: return "invalid argument";
    case TAMIS_STATUS_NO_MEMORY: return "out of memory";
    case TAMIS_STATUS_NO_BLOCKS: return "out of cache blocks";
    case TAMIS_STATUS_LIMIT: return "limit exceeded";
    case TAMIS_STATUS_IO: return "input/output error";
    case TAMIS_STATUS_FORMAT: return "bad format";
    case TAMIS_STATUS_UNSUPPORTED: return "unsupported";
    case TAMIS_STATUS_STATE: return "wrong state";
    case TAMIS_STATUS_PEER: return "peer failed";
    case TAMIS_STATUS_CANCELLED: return "cancelled";
    }
    return "unknown status";
}

/* A text cut by its buffer may end inside a UTF-8 character: drop the broken rest of it. */
static void trim_broken_utf8(char *text)
{
    size_t n = strlen(text);
    size_t tail = 0; /* continuation bytes at the end */
    while (tail < 3 && tail < n && ((unsigned char)text[n - 1 - tail] & 0xC0) == 0x80)
        tail++;
    if (tail >= n)
        return;
    const unsigned char lead = (unsigned char)text[n - 1 - tail];
    const size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (tail < want)
        text[n - 1 - tail] = '\0';
}

/* Leaves out the middle of a text that does not fit: the object's name begins it, mostly a path
 * that may be long, and the reason ends it. */
static void copy_shortened(char *text, size_t bytes, const char *whole)
{
    const size_t n = strlen(whole);
    if (n < bytes) {
        memcpy(text, whole, n + 1);
        return;
    }
    const size_t head = (bytes - sizeof GAP) / 2;
    const char *tail = whole + n - (bytes - sizeof GAP - head);
    while (((unsigned char)*tail & 0xC0) == 0x80)
        tail++;
    memcpy(text, whole, head);
    text[head] = '\0';
    trim_broken_utf8(text);
    strcat(strcat(text, GAP), tail);
}

/* The arguments may point into text (adding context to an error), so it is formatted aside. */
static void format_text(char *text, size_t bytes, const char *fmt, va_list args)
{
    char whole[LONGEST_BYTES];
    const int n = vsnprintf(whole, sizeof whole, fmt, args);
    if (n < 0)
        whole[0] = '\0';
    else if ((size_t)n >= sizeof whole)
        trim_broken_utf8(whole);
    copy_shortened(text, bytes, whole);
}

tamis_status tamis_fail(tamis_error *err, tamis_status status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        format_text(err->text, sizeof err->text, fmt, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

tamis_status tamis_fail_memory(tamis_error *err, const char *what, size_t bytes)
{
    return tamis_fail(err, TAMIS_STATUS_NO_MEMORY, "%s: no memory for %zu bytes", what, bytes);
}

void tamis_log_set(tamis_log_fn fn, void *user)
{
    log_fn = fn;
    log_user = user;
}

void tamis_log(tamis_log_level level, const char *fmt, ...)
{
    if (log_fn == NULL)
        return;
    char text[LOG_BYTES];
    va_list args;
    va_start(args, fmt);
    format_text(text, sizeof text, fmt, args);
    va_end(args);
    log_fn(level, text, log_user);
}
