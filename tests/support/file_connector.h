/*
 * A connector that keeps one sequence in a folder, a file per cache: rows in blocks as soon as they
 * are written, rings when a layer is done. It knows nothing of tamis but its public headers.
 */
#ifndef TAMIS_TEST_FILE_CONNECTOR_H
#define TAMIS_TEST_FILE_CONNECTOR_H

#include "tamis/connector.h"

typedef struct test_file_connector {
    const char *folder;
    int32_t seq;      /* the sequence that is saved; -1: only loads */
    int32_t n_loaded; /* layers */
    bool has_begun;   /* start_load was called, wait_for_save not yet */
} test_file_connector;

/* `connector` must outlive its use. */
tamis_connector_hooks test_file_connector_hooks(test_file_connector *connector);

#endif
