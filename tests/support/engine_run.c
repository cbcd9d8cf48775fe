#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/engine_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t n, size_t size)
{
    void *block = calloc(n + 1, size);
    if (block == NULL)
        fail_msg("out of memory");
    return block;
}

void test_must(tamis_status status, const tamis_error *err, const char *what)
{
    if (status != TAMIS_STATUS_OK)
        fail_msg("%s: %s: %s", what, tamis_status_name(status), err->text);
}

/* ---------------------------------------------------------------- sessions */

tamis_session_params test_session_params(tamis_dtype kv_cache_dtype, int32_t max_len)
{
    tamis_session_params params = tamis_session_params_default();
    params.n_threads = 1;
    params.kv_cache_dtype = kv_cache_dtype;
    params.max_model_len = max_len;
    params.max_num_batched_tokens = max_len;
    params.max_num_logits = max_len;
    return params;
}

static void open_session(test_engine *engine, const tamis_session_params *params)
{
    tamis_error err;
    engine->info = tamis_model_get_info(engine->model);
    test_must(tamis_session_open(&engine->session, engine->model, params, &err), &err,
              "open session");
}

test_engine test_engine_open(const char *dir, const tamis_session_params *params)
{
    return test_engine_open_as(dir, TAMIS_PROFILE_EXACT, params);
}

test_engine test_engine_open_as(const char *dir, tamis_profile profile,
                                const tamis_session_params *params)
{
    tamis_error err;
    test_engine engine = {.owns_model = true};
    tamis_model_params model = tamis_model_params_default();
    model.profile = profile;
    test_must(tamis_model_open_with(&engine.model, dir, &model, &err), &err, dir);
    open_session(&engine, params);
    return engine;
}

test_engine test_engine_share(const test_engine *other, const tamis_session_params *params)
{
    test_engine engine = {.model = other->model};
    open_session(&engine, params);
    return engine;
}

void test_engine_close(test_engine *engine)
{
    tamis_session_close(&engine->session);
    if (engine->owns_model)
        tamis_model_close(&engine->model);
    *engine = (test_engine){0};
}

/* ---------------------------------------------------------------- sequences */

int32_t test_seq_new(test_engine *engine)
{
    tamis_error err;
    int32_t seq = -1;
    test_must(tamis_seq_create(engine->session, &seq, &err), &err, "create sequence");
    return seq;
}

void test_seq_drop(test_engine *engine, int32_t seq)
{
    tamis_error err;
    test_must(tamis_seq_drop(engine->session, seq, &err), &err, "drop sequence");
}

void test_seq_rollback(test_engine *engine, int32_t seq, int32_t len)
{
    tamis_error err;
    test_must(tamis_seq_rollback(engine->session, seq, len, &err), &err, "roll back");
    assert_int_equal(tamis_seq_len(engine->session, seq), len);
}

int32_t test_seq_fork(test_engine *engine, int32_t seq)
{
    tamis_error err;
    int32_t copy = -1;
    test_must(tamis_seq_fork(engine->session, seq, &copy, &err), &err, "fork");
    return copy;
}

void test_feed(test_engine *engine, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk,
               float *logits)
{
    const int32_t vocab = engine->info->vocab_size;
    chunk = chunk == 0 ? n : chunk;
    for (int32_t first = 0; first < n; first += chunk) {
        const int32_t count = n - first < chunk ? n - first : chunk;
        const tamis_feed feed = {.seq = seq,
                                 .tokens = ids + first,
                                 .n_tokens = count,
                                 .logits = logits == NULL ? TAMIS_LOGITS_NONE : TAMIS_LOGITS_ALL};
        tamis_error err;
        test_must(tamis_session_step(engine->session, &feed, 1, &err), &err, "step");
        if (logits == NULL)
            continue;
        assert_int_equal(tamis_session_num_logits(engine->session), count);
        for (int32_t i = 0; i < count; i++)
            memcpy(logits + (int64_t)(first + i) * vocab, tamis_session_logits(engine->session, i),
                   (size_t)vocab * sizeof *logits);
    }
}

float *test_logits_of(test_engine *engine, const int32_t *ids, int32_t n, int32_t chunk)
{
    float *logits = take((size_t)n * (size_t)engine->info->vocab_size, sizeof *logits);
    const int32_t seq = test_seq_new(engine);
    test_feed(engine, seq, ids, n, chunk, logits);
    test_seq_drop(engine, seq);
    return logits;
}

test_track test_track_open(test_engine *engine, const int32_t *ids, int32_t n)
{
    test_track track = {.ids = ids, .n = n, .seq = test_seq_new(engine)};
    track.logits = take((size_t)n * (size_t)engine->info->vocab_size, sizeof *track.logits);
    return track;
}

void test_track_close(test_engine *engine, test_track *track)
{
    test_seq_drop(engine, track->seq);
    free(track->logits);
    *track = (test_track){0};
}

#define MAX_FEEDS 64

void test_step(test_engine *engine, test_track *const *tracks, const int32_t *counts, int32_t n)
{
    const int32_t vocab = engine->info->vocab_size;
    tamis_feed feeds[MAX_FEEDS] = {{0}};
    tamis_error err;
    assert_true(n <= MAX_FEEDS);
    for (int32_t i = 0; i < n; i++) {
        assert_true(tracks[i]->fed + counts[i] <= tracks[i]->n);
        feeds[i] = (tamis_feed){.seq = tracks[i]->seq,
                                .tokens = tracks[i]->ids + tracks[i]->fed,
                                .n_tokens = counts[i],
                                .logits = TAMIS_LOGITS_ALL};
    }
    test_must(tamis_session_step(engine->session, feeds, n, &err), &err, "step");
    int32_t row = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < counts[i]; t++)
            memcpy(tracks[i]->logits + (int64_t)tracks[i]->fed++ * vocab,
                   tamis_session_logits(engine->session, row++), (size_t)vocab * sizeof(float));
    assert_int_equal(tamis_session_num_logits(engine->session), row);
}

/* ---------------------------------------------------------------- comparing */

int32_t test_argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

double test_max_diff(const float *a, const float *b, int64_t n, int64_t *at)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - (double)b[i]);
        diff = isnan(diff) ? INFINITY : diff;
        if (diff > worst && at != NULL)
            *at = i;
        worst = diff > worst ? diff : worst;
    }
    return worst;
}

double test_max_diff_f64(const float *a, const double *b, int64_t n, int64_t *at)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - b[i]);
        diff = isnan(diff) ? INFINITY : diff;
        if (diff > worst && at != NULL)
            *at = i;
        worst = diff > worst ? diff : worst;
    }
    return worst;
}

void test_assert_same_bits(const float *seen, const float *expected, int64_t rows, int64_t cols,
                           const char *what)
{
    if (memcmp(seen, expected, (size_t)(rows * cols) * sizeof *seen) == 0)
        return;
    for (int64_t i = 0; i < rows * cols; i++)
        if (memcmp(&seen[i], &expected[i], sizeof *seen) != 0)
            fail_msg("%s: row %lld of %lld, column %lld: %.9g, expected the bits of %.9g", what,
                     (long long)(i / cols), (long long)rows, (long long)(i % cols), (double)seen[i],
                     (double)expected[i]);
}

/* ---------------------------------------------------------------- taps */

test_capture test_capture_open(int32_t n_layers)
{
    test_capture capture = {.n_layers = n_layers};
    capture.stages = take((size_t)n_layers * TEST_CAPTURE_STAGES, sizeof *capture.stages);
    return capture;
}

void test_capture_close(test_capture *capture)
{
    for (int32_t i = 0; i < capture->n_layers * TEST_CAPTURE_STAGES; i++)
        free(capture->stages[i].data);
    free(capture->stages);
    *capture = (test_capture){0};
}

static test_capture_stage *stage_of(const test_capture *capture, int32_t layer,
                                    tamis_tap_stage stage)
{
    assert_in_range(layer, 0, capture->n_layers - 1);
    return &capture->stages[layer * TEST_CAPTURE_STAGES + (int32_t)stage];
}

/* float and int32_t are equally wide, so one buffer type serves both. */
void test_capture_tap(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                      int64_t n_tokens, int64_t width)
{
    test_capture_stage *s = stage_of(user, layer, stage);
    const size_t row_bytes = (size_t)width * sizeof(float);
    if (s->n + n_tokens > s->capacity) {
        s->capacity = 2 * s->capacity + n_tokens;
        s->data = realloc(s->data, (size_t)s->capacity * row_bytes + 1);
        if (s->data == NULL)
            fail_msg("out of memory");
    }
    assert_true(s->n == 0 || s->width == width);
    s->width = width;
    memcpy((char *)s->data + (size_t)s->n * row_bytes, data, (size_t)n_tokens * row_bytes);
    s->n += n_tokens;
}

static const void *captured_row(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                                int64_t t)
{
    const test_capture_stage *s = stage_of(capture, layer, stage);
    if (t >= s->n)
        fail_msg("layer %d, stage %d: row %lld was not captured, %lld are there", layer, (int)stage,
                 (long long)t, (long long)s->n);
    return (const char *)s->data + (size_t)(t * s->width) * sizeof(float);
}

const float *test_capture_f32(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                              int64_t t)
{
    return captured_row(capture, layer, stage, t);
}

const int32_t *test_capture_i32(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                                int64_t t)
{
    return captured_row(capture, layer, stage, t);
}
