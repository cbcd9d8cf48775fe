/*
 * jansson's parser that tells a shortage of memory from bad syntax.
 *
 * By itself jansson takes a refused allocation for a syntax error, or drops one character of a
 * string and goes on. Its allocator is process-wide; the first call puts a watcher in front of
 * whatever is set there, so that blocks still come from and go back to the program's own functions.
 */
#ifndef TAMIS_CORE_JSON_LOAD_H
#define TAMIS_CORE_JSON_LOAD_H

#include <jansson.h>

#include "tamis/base.h"

/* As json_loadb; *no_memory (set always) says that NULL comes from a refused allocation. */
json_t *tamis_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error,
                        bool *no_memory);

#endif
