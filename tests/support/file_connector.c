#include "support/file_connector.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static tamis_status fail_io(tamis_error *err, const char *path)
{
    snprintf(err->text, sizeof err->text, "%s: %s", path, strerror(errno));
    return TAMIS_STATUS_IO;
}

/* Moves row `row` between the file, where rows lie one after the other, and memory. */
static bool move_row(int fd, const tamis_cache_view *view, int64_t row, uint8_t *at, bool to_file)
{
    const off_t offset = (off_t)(row * view->row_bytes);
    const size_t bytes = (size_t)view->row_bytes;
    return to_file ? pwrite(fd, at, bytes, offset) == (ssize_t)bytes
                   : pread(fd, at, bytes, offset) == (ssize_t)bytes;
}

static uint8_t *block_row(const tamis_cache_view *view, const tamis_connector_request *r,
                          int32_t row)
{
    return view->base + r->block_table[row / view->rows] * view->stride +
           row % view->rows * view->row_bytes;
}

/* Rows first .. end - 1 of a cache in blocks, or of these positions of a ring. */
static tamis_status move_rows(const test_file_connector *c, const tamis_connector_request *r,
                              int32_t layer, const tamis_cache_view *view, int32_t first,
                              int32_t end, bool to_file, tamis_error *err)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%d.%s", c->folder, layer, view->name);
    const int fd = open(path, to_file ? O_RDWR | O_CREAT : O_RDONLY, 0600);
    if (fd < 0)
        return fail_io(err, path);
    bool is_fine = true;
    errno = 0;
    for (int32_t row = first; is_fine && row < end; row++) {
        uint8_t *at = view->is_ring
                          ? view->base + r->seq * view->stride + row % view->rows * view->row_bytes
                          : block_row(view, r, row);
        is_fine = move_row(fd, view, row, at, to_file);
    }
    close(fd);
    return is_fine ? TAMIS_STATUS_OK : fail_io(err, path);
}

/* Everything of a layer that lies in blocks, or in rings, of tokens `start` .. `end` - 1. */
static tamis_status move_layer(const test_file_connector *c, const tamis_connector_step *step,
                               const tamis_connector_request *r, int32_t layer, bool rings,
                               int32_t start, int32_t end, bool to_file, tamis_error *err)
{
    for (int32_t i = 0; i < tamis_session_num_caches(step->session, layer); i++) {
        const tamis_cache_view view = tamis_session_get_cache(step->session, layer, i);
        if (view.is_ring != rings)
            continue;
        const int32_t first =
            rings ? tamis_cache_ring_first(&view, end) : start / view.tokens_per_row;
        const tamis_status st = move_rows(c, r, layer, &view, first,
                                          rings ? end : end / view.tokens_per_row, to_file, err);
        if (st != TAMIS_STATUS_OK)
            return st;
    }
    return TAMIS_STATUS_OK;
}

static const tamis_connector_request *find_request(const tamis_connector_step *step, int32_t seq)
{
    for (int32_t i = 0; i < step->n_requests; i++)
        if (step->requests[i].seq == seq)
            return &step->requests[i];
    return NULL;
}

/* ---------------------------------------------------------------- hooks */

static tamis_status start_load(void *user, const tamis_connector_step *step, tamis_error *err)
{
    test_file_connector *c = user;
    (void)step, (void)err;
    c->has_begun = true;
    return TAMIS_STATUS_OK;
}

static tamis_status wait_for_layer_load(void *user, const tamis_connector_step *step, int32_t layer,
                                        tamis_error *err)
{
    test_file_connector *c = user;
    for (int32_t i = 0; i < step->n_requests; i++) {
        const tamis_connector_request *r = &step->requests[i];
        for (int rings = 0; r->n_expected > 0 && rings < 2; rings++) {
            const tamis_status st =
                move_layer(c, step, r, layer, rings == 1, 0, r->n_expected, false, err);
            if (st != TAMIS_STATUS_OK)
                return st;
            c->n_loaded += rings;
        }
    }
    return TAMIS_STATUS_OK;
}

static tamis_status save(void *user, const tamis_connector_step *step, int32_t layer, bool rings,
                         tamis_error *err)
{
    const test_file_connector *c = user;
    const tamis_connector_request *r = find_request(step, c->seq);
    return r == NULL
               ? TAMIS_STATUS_OK
               : move_layer(c, step, r, layer, rings, r->start, r->start + r->n_tokens, true, err);
}

static tamis_status notify_written(void *user, const tamis_connector_step *step, int32_t layer,
                                   tamis_error *err)
{
    return save(user, step, layer, false, err);
}

static tamis_status save_layer(void *user, const tamis_connector_step *step, int32_t layer,
                               tamis_error *err)
{
    return save(user, step, layer, true, err);
}

static tamis_status wait_for_save(void *user, const tamis_connector_step *step, tamis_error *err)
{
    test_file_connector *c = user;
    (void)step, (void)err;
    c->has_begun = false;
    return TAMIS_STATUS_OK;
}

tamis_connector_hooks test_file_connector_hooks(test_file_connector *connector)
{
    tamis_connector_hooks hooks = tamis_connector_hooks_default();
    hooks.user = connector;
    hooks.start_load = start_load;
    hooks.wait_for_layer_load = wait_for_layer_load;
    hooks.notify_written = notify_written;
    hooks.save_layer = save_layer;
    hooks.wait_for_save = wait_for_save;
    return hooks;
}
