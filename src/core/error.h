/* Filling a tamis_error, logging, and the two macros most functions use. */
#ifndef TAMIS_CORE_ERROR_H
#define TAMIS_CORE_ERROR_H

#include "tamis/base.h"

/* Fills *err (if any) and returns `status`: `return tamis_fail(err, TAMIS_STATUS_IO, "...", ...)`. */
tamis_status tamis_fail(tamis_error *err, tamis_status status, const char *fmt, ...)
    TAMIS_PRINTF(3, 4);
/* The message every refused allocation uses. */
tamis_status tamis_fail_memory(tamis_error *err, const char *what, size_t bytes);
void tamis_log(tamis_log_level level, const char *fmt, ...) TAMIS_PRINTF(2, 3);

/* Return the status of a failing call. */
#define TAMIS_TRY(call)                                \
    do {                                               \
        tamis_status try_status_ = (call);             \
        if (try_status_ != TAMIS_STATUS_OK)            \
            return try_status_;                        \
    } while (0)
/* Same, but go to the function's one `fail:` label; needs a local `tamis_status st`. */
#define TAMIS_TRY_GOTO(call)                           \
    do {                                               \
        st = (call);                                   \
        if (st != TAMIS_STATUS_OK)                     \
            goto fail;                                 \
    } while (0)

#endif
