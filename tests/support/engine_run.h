/*
 * Driving the engine through its public API: short calls for tests. A call that fails fails the
 * running cmocka test with the library's message.
 */
#ifndef TAMIS_TEST_ENGINE_RUN_H
#define TAMIS_TEST_ENGINE_RUN_H

#include "model/tap.h"
#include "tamis/engine.h"

/* Fails the test with what, status and message unless status is OK. */
void test_must(tamis_status status, const tamis_error *err, const char *what);

typedef struct test_engine {
    tamis_model *model;
    tamis_session *session;
    const tamis_model_info *info;
    bool owns_model;
} test_engine;

/*
 * One thread, one sequence, everything in one step if wanted: max_len tokens and logits rows.
 * Tests change what they are about.
 */
tamis_session_params test_session_params(tamis_dtype kv_cache_dtype, int32_t max_len);
test_engine test_engine_open(const char *dir, const tamis_session_params *params);
test_engine test_engine_open_as(const char *dir, tamis_profile profile,
                                const tamis_session_params *params);
/* A further session over the same model. */
test_engine test_engine_share(const test_engine *other, const tamis_session_params *params);
void test_engine_close(test_engine *engine);

int32_t test_seq_new(test_engine *engine);
void test_seq_drop(test_engine *engine, int32_t seq);
void test_seq_rollback(test_engine *engine, int32_t seq, int32_t len);
int32_t test_seq_fork(test_engine *engine, int32_t seq);

/* Feeds n ids in steps of `chunk` (0: one step); logits [n][vocab_size] of all, or NULL. */
void test_feed(test_engine *engine, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk,
               float *logits);
/* A new sequence fed with n ids and dropped: logits [n][vocab_size], to be freed by the caller. */
float *test_logits_of(test_engine *engine, const int32_t *ids, int32_t n, int32_t chunk);

/* A sequence on its way through ids; logits of every fed token arrive at their place. */
typedef struct test_track {
    const int32_t *ids;
    int32_t n, fed;
    int32_t seq;
    float *logits; /* [n][vocab_size] */
} test_track;
test_track test_track_open(test_engine *engine, const int32_t *ids, int32_t n);
void test_track_close(test_engine *engine, test_track *track); /* drops the sequence */
/* One step: counts[i] further tokens of tracks[i], in the order given (0 is fine). */
void test_step(test_engine *engine, test_track *const *tracks, const int32_t *counts, int32_t n);

/* Lowest id of the largest logit. */
int32_t test_argmax(const float *logits, int32_t n);
/* Largest |a - b|; infinite if either holds a NaN. *at (may be NULL): where. */
double test_max_diff(const float *a, const float *b, int64_t n, int64_t *at);
double test_max_diff_f64(const float *a, const double *b, int64_t n, int64_t *at);
/* Fails with row and column of the first value of [rows][cols] whose bits differ. */
void test_assert_same_bits(const float *seen, const float *expected, int64_t rows, int64_t cols,
                           const char *what);

/*
 * What a tap saw of one sequence: stage of a layer as [n_tokens][width]. Install with
 * tamis_session_set_tap(session, test_capture_tap, capture), one sequence only.
 */
#define TEST_CAPTURE_STAGES (TAMIS_TAP_HIDDEN + 1)
typedef struct test_capture_stage {
    void *data;
    int64_t width, n, capacity;
} test_capture_stage;
typedef struct test_capture {
    int32_t n_layers;
    test_capture_stage *stages; /* [n_layers][TEST_CAPTURE_STAGES] */
} test_capture;
test_capture test_capture_open(int32_t n_layers);
void test_capture_close(test_capture *capture);
void test_capture_tap(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                      int64_t n_tokens, int64_t width);
/* Row of token t; fails the test if the stage never came or t is not there. */
const float *test_capture_f32(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                              int64_t t);
const int32_t *test_capture_i32(const test_capture *capture, int32_t layer, tamis_tap_stage stage,
                                int64_t t);

#endif
