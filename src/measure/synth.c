/*
 * tamis_synth_write: two walks over the tensors, one for the header, one for the data, a MiB at a
 * time. Everything is written into a folder beside the wanted one, which is renamed when it is
 * complete.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/file_stream.h"
#include "core/mem.h"
#include "kernels/formats.h"
#include "measure/shapes.h"
#include "measure/synth_tensors.h"

#define PIECE_BYTES ((size_t)1 << 20)

typedef struct synth {
    const tamis_synth_params *params;
    tamis_model_config config;
    bool is_bf16;
    char *header; /* JSON, growing */
    size_t header_used, header_bytes;
    uint64_t data_bytes, done;
    int32_t n_tensors;
    tamis_file_writer writer;
    void *piece;
    tamis_synth_progress_fn progress;
    void *user;
    tamis_status status;
    tamis_error *err;
} synth;

/* ---------------------------------------------------------------- header */

static bool reserve(synth *s, size_t more)
{
    if (s->header_used + more <= s->header_bytes)
        return true;
    const size_t bytes = 2 * s->header_bytes + more;
    char *grown = tamis_mem_realloc(TAMIS_MEM_MISC, s->header, bytes);
    if (grown == NULL) {
        s->status = tamis_fail_memory(s->err, "header of a synthetic model", bytes);
        return false;
    }
    s->header = grown;
    s->header_bytes = bytes;
    return true;
}

static bool add_to_header(void *user, const tamis_synth_tensor *t)
{
    synth *s = user;
    char shape[48];
    if (!reserve(s, 512))
        return false;
    if (t->rank == 2)
        snprintf(shape, sizeof shape, "%lld,%lld", (long long)t->shape[0], (long long)t->shape[1]);
    else
        snprintf(shape, sizeof shape, "%lld", (long long)t->shape[0]);
    s->header_used += (size_t)snprintf(
        s->header + s->header_used, s->header_bytes - s->header_used,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
        s->n_tensors == 0 ? "{" : ",", t->name, tamis_dtype_name(t->dtype), shape,
        (unsigned long long)s->data_bytes, (unsigned long long)(s->data_bytes + t->bytes));
    s->data_bytes += t->bytes;
    s->n_tensors++;
    return true;
}

static tamis_status make_header(synth *s)
{
    if (!tamis_synth_walk(&s->config, s->is_bf16, add_to_header, s) || !reserve(s, 16))
        return s->status;
    s->header[s->header_used++] = '}';
    while (s->header_used % 8 != 0) /* so that data begin at a multiple of 8 */
        s->header[s->header_used++] = ' ';
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- data */

static void fill_around(tamis_noise *noise, void *to, size_t bytes, tamis_dtype dtype, float base,
                        float spread)
{
    uint8_t *at = to;
    const size_t size = dtype == TAMIS_DTYPE_BF16 ? 2 : 4;
    for (size_t i = 0; i < bytes; i += size) {
        const float v = base + spread * tamis_noise_unit(noise);
        const uint16_t h = tamis_f32_to_bf16(v);
        if (size == 2)
            memcpy(at + i, &h, sizeof h);
        else
            memcpy(at + i, &v, sizeof v);
    }
}

/* Rows of distinct ids: experts that follow one another. */
static void fill_ids(tamis_noise *noise, void *to, size_t bytes, int64_t per_row, int32_t n_experts)
{
    int64_t *ids = to;
    for (size_t i = 0; i < bytes / 8; i++) {
        if (i % (size_t)per_row == 0)
            ids[i] = (int64_t)(tamis_noise_next(noise) % (uint64_t)n_experts);
        else
            ids[i] = (ids[i - 1] + 1) % n_experts;
    }
}

static void fill_piece(const synth *s, tamis_noise *noise, const tamis_synth_tensor *t,
                       size_t bytes)
{
    switch (t->fill) {
    case TAMIS_FILL_WEIGHT:
        tamis_noise_fill_data(noise, s->piece, bytes, t->of, t->cols);
        break;
    case TAMIS_FILL_SCALE:
        tamis_noise_fill_scales(noise, s->piece, bytes, t->dtype, t->of, t->cols);
        break;
    case TAMIS_FILL_NORM:
        fill_around(noise, s->piece, bytes, t->dtype, 1.0f, 0.1f);
        break;
    case TAMIS_FILL_SMALL:
        fill_around(noise, s->piece, bytes, t->dtype, 0.0f, 0.1f);
        break;
    case TAMIS_FILL_IDS:
        fill_ids(noise, s->piece, bytes, t->cols, s->config.n_routed_experts);
        break;
    }
}

/* A row of ids is never cut: pieces are whole multiples of every row of 8-byte ids. */
static size_t piece_bytes(const tamis_synth_tensor *t)
{
    if (t->fill != TAMIS_FILL_IDS)
        return PIECE_BYTES;
    const size_t row = (size_t)t->cols * 8;
    return PIECE_BYTES / row * row;
}

static bool write_tensor(void *user, const tamis_synth_tensor *t)
{
    synth *s = user;
    tamis_noise noise = {s->params->seed + 0x632be59bd9b4e019u * (uint64_t)++s->n_tensors};
    const size_t most = piece_bytes(t);
    for (uint64_t at = 0; at < t->bytes;) {
        const size_t bytes = t->bytes - at < most ? (size_t)(t->bytes - at) : most;
        fill_piece(s, &noise, t, bytes);
        s->status = tamis_file_writer_write(&s->writer, s->piece, bytes, s->err);
        if (s->status != TAMIS_STATUS_OK)
            return false;
        at += bytes;
        s->done += bytes;
        if (s->progress != NULL && !s->progress(s->done, s->data_bytes, s->user)) {
            s->status = tamis_fail(s->err, TAMIS_STATUS_CANCELLED, "synthetic model: stopped");
            return false;
        }
    }
    return true;
}

static tamis_status write_model(synth *s, const char *path)
{
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)s->header_used >> 8 * i);
    TAMIS_TRY(tamis_file_writer_open(&s->writer, path, s->err));
    tamis_status st;
    TAMIS_TRY_GOTO(tamis_file_writer_write(&s->writer, length, sizeof length, s->err));
    TAMIS_TRY_GOTO(tamis_file_writer_write(&s->writer, s->header, s->header_used, s->err));
    s->n_tensors = 0;
    if (!tamis_synth_walk(&s->config, s->is_bf16, write_tensor, s))
        st = s->status;
    TAMIS_TRY_GOTO(st);
    return tamis_file_writer_commit(&s->writer, s->err);
fail:
    tamis_file_writer_abandon(&s->writer);
    return st;
}

static tamis_status write_config(const char *path, const char *text, tamis_error *err)
{
    tamis_file_writer writer;
    TAMIS_TRY(tamis_file_writer_open(&writer, path, err));
    const tamis_status st = tamis_file_writer_write(&writer, text, strlen(text), err);
    if (st == TAMIS_STATUS_OK)
        return tamis_file_writer_commit(&writer, err);
    tamis_file_writer_abandon(&writer);
    return st;
}

/* ---------------------------------------------------------------- folder */

static tamis_status fail_errno(tamis_error *err, const char *path, const char *what)
{
    return tamis_fail(err, TAMIS_STATUS_IO, "%.3000s: cannot %s: %s", path, what, strerror(errno));
}

static tamis_status check_space(const synth *s, const char *folder)
{
    struct statvfs info;
    const uint64_t need = s->data_bytes + s->header_used;
    if (statvfs(folder, &info) != 0)
        return fail_errno(s->err, folder, "ask for free space");
    const uint64_t left = (uint64_t)info.f_bavail * info.f_frsize;
    if (left >= need)
        return TAMIS_STATUS_OK;
    return tamis_fail(s->err, TAMIS_STATUS_IO,
                      "%.3000s: the model takes %.2f GiB, %.2f GiB are free", folder,
                      (double)need / (1 << 30), (double)left / (1 << 30));
}

static const char *const file_names[] = {"model.safetensors", "config.json"};

/* Both files into `folder`, which is there and empty. */
static tamis_status fill_folder(synth *s, const char *folder, const char *config_text)
{
    char *model = tamis_path_join(folder, file_names[0]);
    char *config = tamis_path_join(folder, file_names[1]);
    tamis_status st = TAMIS_STATUS_OK;
    if (config == NULL || model == NULL)
        st = tamis_fail_memory(s->err, "path of a synthetic model", strlen(folder));
    if (st == TAMIS_STATUS_OK)
        st = check_space(s, folder);
    if (st == TAMIS_STATUS_OK)
        st = write_model(s, model);
    if (st == TAMIS_STATUS_OK)
        st = write_config(config, config_text, s->err);
    tamis_mem_free(config);
    tamis_mem_free(model);
    return st;
}

static void remove_folder(const char *folder)
{
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names; i++) {
        char *path = tamis_path_join(folder, file_names[i]);
        if (path != NULL)
            unlink(path);
        tamis_mem_free(path);
    }
    rmdir(folder);
}

/* dir has no slash at its end; temp is room for its name and a suffix. */
static tamis_status write_beside(synth *s, const char *dir, char *temp, size_t temp_bytes,
                                 const char *config_text)
{
    struct stat info;
    if (lstat(dir, &info) == 0)
        return tamis_fail(s->err, TAMIS_STATUS_IO, "%.3000s: is there, allowed: a new folder", dir);
    snprintf(temp, temp_bytes, "%s.XXXXXX", dir);
    if (mkdtemp(temp) == NULL)
        return fail_errno(s->err, dir, "create a folder beside it");
    tamis_status st = fill_folder(s, temp, config_text);
    if (st == TAMIS_STATUS_OK && (chmod(temp, 0755) != 0 || rename(temp, dir) != 0))
        st = fail_errno(s->err, dir, "put the folder in place");
    if (st != TAMIS_STATUS_OK)
        remove_folder(temp);
    return st;
}

static tamis_status write_folder(synth *s, const char *dir, const char *config_text)
{
    size_t n = strlen(dir);
    const size_t temp_bytes = n + sizeof ".XXXXXX";
    char *trimmed = tamis_mem_strdup(TAMIS_MEM_MISC, dir);
    char *temp = tamis_mem_alloc(TAMIS_MEM_MISC, temp_bytes);
    tamis_status st = TAMIS_STATUS_OK;
    if (trimmed == NULL || temp == NULL)
        st = tamis_fail_memory(s->err, "path of a synthetic model", temp_bytes);
    while (trimmed != NULL && n > 1 && trimmed[n - 1] == '/')
        trimmed[--n] = '\0';
    if (st == TAMIS_STATUS_OK)
        st = write_beside(s, trimmed, temp, temp_bytes, config_text);
    tamis_mem_free(trimmed);
    tamis_mem_free(temp);
    return st;
}

/* ---------------------------------------------------------------- public */

tamis_synth_params tamis_synth_params_default(void)
{
    return (tamis_synth_params){.struct_size = sizeof(tamis_synth_params), .seed = 1};
}

static tamis_status run(synth *s, const char *dir)
{
    const tamis_synth_params *p = s->params;
    const tamis_shape_cut cut = {p->layers, p->n_layers, p->n_experts, p->vocab_size};
    char text[TAMIS_SHAPE_TEXT_BYTES];
    TAMIS_TRY(tamis_shape_config_text(p->shape, &cut, text, s->err));
    TAMIS_TRY(tamis_shape_config(p->shape, &cut, &s->config, s->err));
    s->is_bf16 = tamis_shape_is_bf16(p->shape);
    s->piece = tamis_mem_alloc(TAMIS_MEM_MISC, PIECE_BYTES);
    if (s->piece == NULL)
        return tamis_fail_memory(s->err, "synthetic model", PIECE_BYTES);
    TAMIS_TRY(make_header(s));
    return write_folder(s, dir, text);
}

tamis_status tamis_synth_write(const tamis_synth_params *params, const char *dir,
                               tamis_synth_progress_fn progress, void *user, tamis_error *err)
{
    if (params == NULL || dir == NULL || dir[0] == '\0')
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "synthetic model: params or dir is NULL or empty");
    if (params->struct_size != sizeof *params)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "synthetic model: struct_size is %zu, must be %zu", params->struct_size,
                          sizeof *params);
    synth s = {.params = params, .progress = progress, .user = user, .err = err};
    const tamis_status st = run(&s, dir);
    tamis_mem_free(s.header);
    tamis_mem_free(s.piece);
    return st;
}
