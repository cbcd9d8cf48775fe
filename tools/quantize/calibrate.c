#include "quantize/calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"
#include "ops/linear.h"
#include "tamis/tokenizer.h"

#define NUM_FIXED_IDS  512
#define MAX_TEXT_BYTES ((size_t)64 << 20)
#define MAX_SEQ_TOKENS 2048 /* longer calibrations run as several sequences */

/* ---------------------------------------------------------------- tokens */

typedef struct id_list {
    int32_t *ids; /* of tamis_mem */
    size_t n;
} id_list;

static tamis_status take_ids(id_list *out, size_t n, tamis_error *err)
{
    out->n = n;
    out->ids = tamis_mem_array(TAMIS_MEM_MISC, n > 0 ? n : 1, sizeof *out->ids);
    return out->ids != NULL ? TAMIS_STATUS_OK
                            : tamis_fail_memory(err, "calibration ids", n * sizeof *out->ids);
}

/* All over the vocabulary, the same for everyone. */
static tamis_status fixed_ids(id_list *out, int32_t vocab_size, tamis_error *err)
{
    uint32_t state = 1;
    TAMIS_TRY(take_ids(out, NUM_FIXED_IDS, err));
    for (size_t i = 0; i < out->n; i++) {
        state = state * 1664525u + 1013904223u;
        out->ids[i] = (int32_t)((uint64_t)state * (uint32_t)vocab_size >> 32);
    }
    return TAMIS_STATUS_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* Of a word in a message. */
static int shown_bytes(const char *word)
{
    const size_t n = strcspn(word, " \n\t\r\v\f");
    return n < 24 ? (int)n : 24;
}

static tamis_status parse_ids(id_list *out, const char *path, const char *text, size_t bytes,
                              int32_t vocab_size, tamis_error *err)
{
    TAMIS_TRY(take_ids(out, bytes / 2 + 1, err)); /* a digit and a space each */
    out->n = 0;
    for (const char *at = text; *at != '\0';) {
        if (is_space(*at)) {
            at++;
            continue;
        }
        char *end;
        errno = 0;
        const long id = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (id < 0 || errno != 0 || id >= vocab_size || (*end != '\0' && !is_space(*end)))
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "%s: byte %lld is '%.*s', allowed: ids 0..%d between white space",
                              path, (long long)(at - text), shown_bytes(at), at,
                              (int)vocab_size - 1);
        out->ids[out->n++] = (int32_t)id;
        at = end;
    }
    return TAMIS_STATUS_OK;
}

static tamis_status encode(id_list *out, const char *dir, const char *text, size_t bytes,
                           tamis_error *err)
{
    tamis_tokenizer *tokenizer;
    int32_t *ids = NULL;
    size_t n = 0;
    TAMIS_TRY(tamis_tokenizer_open(&tokenizer, dir, err));
    tamis_status st =
        tamis_tokenizer_encode(tokenizer, text, bytes, TAMIS_ENCODE_PLAIN, &ids, &n, err);
    tamis_tokenizer_close(&tokenizer);
    TAMIS_TRY(st);
    st = take_ids(out, n, err);
    if (st == TAMIS_STATUS_OK && n > 0)
        memcpy(out->ids, ids, n * sizeof *ids);
    tamis_ids_free(ids);
    return st;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static tamis_status read_ids(id_list *out, const tamis_quantize_params *p, int32_t vocab_size,
                             tamis_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    if (p->calibrate == NULL)
        return fixed_ids(out, vocab_size, err);
    TAMIS_TRY(tamis_file_read(&text, &bytes, p->calibrate, MAX_TEXT_BYTES, err));
    tamis_status st = ends_with(p->calibrate, ".ids")
                          ? parse_ids(out, p->calibrate, text, bytes, vocab_size, err)
                          : encode(out, p->source, text, bytes, err);
    tamis_mem_free(text);
    if (st == TAMIS_STATUS_OK && out->n == 0)
        st = tamis_fail(err, TAMIS_STATUS_INVALID, "%s: is empty, allowed: at least one token",
                        p->calibrate);
    return st;
}

/* ---------------------------------------------------------------- watching */

/* A job may read a copy of the matrix; the weights' bytes tell which it is. */
static quant_weight *find_weight(quant_list *list, const tamis_matrix *matrix)
{
    for (int32_t i = 0; i < list->n; i++)
        if (quant_is_fixed(list->items[i].scheme) && list->items[i].matrix.data == matrix->data)
            return &list->items[i];
    return NULL;
}

static void watch(void *user, const tamis_linear_job *jobs, int64_t n_jobs)
{
    for (int64_t i = 0; i < n_jobs; i++) {
        quant_weight *w = jobs[i].n_tokens > 0 ? find_weight(user, jobs[i].w) : NULL;
        for (int64_t t = 0; w != NULL && t < jobs[i].n_tokens; t++)
            for (int64_t c = 0; c < jobs[i].w->cols; c++) {
                const float x = jobs[i].x[t * jobs[i].x_stride + c];
                w->min = x < w->min ? x : w->min;
                w->max = x > w->max ? x : w->max;
                w->is_seen = true;
            }
    }
}

static tamis_status run_sequence(tamis_session *session, const int32_t *ids, size_t n,
                                 tamis_error *err)
{
    const size_t step = (size_t)tamis_session_get_params(session)->max_num_batched_tokens;
    int32_t seq;
    TAMIS_TRY(tamis_seq_create(session, &seq, err));
    for (size_t i = 0; i < n; i += step) {
        const tamis_feed feed = {
            .seq = seq, .tokens = ids + i, .n_tokens = (int32_t)(n - i < step ? n - i : step)};
        TAMIS_TRY(tamis_session_step(session, &feed, 1, err));
    }
    return tamis_seq_drop(session, seq, err);
}

static tamis_status run(quant_list *list, tamis_model *model, const id_list *ids, int32_t n_threads,
                        tamis_error *err)
{
    tamis_session_params p = tamis_session_params_default();
    tamis_session *session;
    const int32_t longest = model->config.max_position_embeddings;
    p.max_model_len = longest < MAX_SEQ_TOKENS ? longest : MAX_SEQ_TOKENS;
    p.n_threads = n_threads;
    TAMIS_TRY(tamis_session_open(&session, model, &p, err));
    const size_t part = (size_t)p.max_model_len;
    tamis_status st = TAMIS_STATUS_OK;
    tamis_linear_watch(watch, list);
    for (size_t i = 0; st == TAMIS_STATUS_OK && i < ids->n; i += part)
        st = run_sequence(session, ids->ids + i, ids->n - i < part ? ids->n - i : part, err);
    tamis_linear_watch(NULL, NULL);
    tamis_session_close(&session);
    return st;
}

static tamis_status expect_all_seen(const quant_list *list, tamis_error *err)
{
    for (int32_t i = 0; i < list->n; i++)
        if (quant_is_fixed(list->items[i].scheme) && !list->items[i].is_seen)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "%s: saw no input in the calibration, allowed for %s: tokens that "
                              "reach it",
                              list->items[i].name, tamis_quant_scheme_name(list->items[i].scheme));
    return TAMIS_STATUS_OK;
}

tamis_status quant_calibrate(quant_list *list, tamis_model *model,
                             const tamis_quantize_params *params, int64_t *n_tokens,
                             tamis_error *err)
{
    id_list ids = {NULL, 0};
    bool is_needed = false;
    *n_tokens = 0;
    for (int32_t i = 0; i < list->n; i++)
        is_needed = is_needed || quant_is_fixed(list->items[i].scheme);
    if (!is_needed)
        return TAMIS_STATUS_OK;
    tamis_status st = read_ids(&ids, params, model->config.vocab_size, err);
    if (st == TAMIS_STATUS_OK)
        st = run(list, model, &ids, params->n_threads, err);
    if (st == TAMIS_STATUS_OK)
        st = expect_all_seen(list, err);
    *n_tokens = (int64_t)ids.n;
    tamis_mem_free(ids.ids);
    return st;
}

void quant_fixed_input(const quant_weight *weight, float *scale, int8_t *offset)
{
    const float range = (weight->max - weight->min) / 255.0f;
    *scale = range > 1e-30f ? range : 1.0f; /* an input of zeros */
    const float wanted = rintf(-128.0f - weight->min / *scale);
    *offset = (int8_t)(range > 1e-30f ? fminf(fmaxf(wanted, -128.0f), 127.0f) : 0.0f);
}
