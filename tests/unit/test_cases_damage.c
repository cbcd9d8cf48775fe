/*
 * Damaged folders as a whole: a NaN met in use is reported with its tensor, one that is not met
 * does not matter; flipped bits and cut files are refused or harmless, and never crash or hang.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/golden.h"
#include "support/rng.h"
#include "support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLASH "tests/golden/v4-flash-fp8"
enum { N = 24, MAX_LEN = 64 };

static const char *const shards[] = {"model-00001-of-00003.safetensors",
                                     "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors"};

typedef struct folder {
    char *dir;
    int32_t *ids;
    float *logits; /* [N][vocab_size] of the sound folder */
    int32_t vocab;
} folder;

/* Opens, runs N tokens and a little decoding; logits [N][vocab_size] or NULL. */
static tamis_status try_folder(const char *dir, const int32_t *ids, float *logits, tamis_error *err)
{
    tamis_model *model = NULL;
    tamis_session *session = NULL;
    int32_t seq;
    tamis_status st = tamis_model_open(&model, dir, err);
    if (st == TAMIS_STATUS_OK) {
        tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, MAX_LEN);
        const int32_t longest = tamis_model_get_info(model)->max_position_embeddings;
        params.max_model_len = longest < MAX_LEN ? longest : MAX_LEN; /* a damaged config */
        st = tamis_session_open(&session, model, &params, err);
    }
    if (st == TAMIS_STATUS_OK)
        st = tamis_seq_create(session, &seq, err);
    if (st == TAMIS_STATUS_OK) {
        const tamis_feed feed = {seq, ids, N, TAMIS_LOGITS_ALL, NULL};
        st = tamis_session_step(session, &feed, 1, err);
    }
    const size_t vocab =
        st == TAMIS_STATUS_OK ? (size_t)tamis_model_get_info(model)->vocab_size : 0;
    for (int32_t t = 0; logits != NULL && vocab > 0 && t < N; t++)
        memcpy(logits + (size_t)t * vocab, tamis_session_logits(session, t),
               vocab * sizeof *logits);
    for (int32_t t = 0; st == TAMIS_STATUS_OK && t < 3; t++) {
        const tamis_feed feed = {seq, ids + t, 1, TAMIS_LOGITS_LAST, NULL};
        st = tamis_session_step(session, &feed, 1, err);
    }
    tamis_session_close(&session);
    tamis_model_close(&model);
    return st;
}

static folder folder_open(void)
{
    folder f = {.dir = test_temp_dir_make(), .vocab = 240};
    test_dir_copy_files(FLASH, f.dir);
    test_golden *golden = test_golden_open(FLASH, "golden.safetensors");
    f.ids = test_golden_ids(golden, "ids", NULL);
    test_golden_close(golden);
    f.logits = calloc((size_t)(N * f.vocab), sizeof *f.logits);
    assert_non_null(f.logits);
    tamis_error err;
    test_must(try_folder(f.dir, f.ids, f.logits, &err), &err, "sound folder");
    return f;
}

static void folder_close(folder *f)
{
    test_temp_dir_remove(f->dir);
    free(f->ids);
    free(f->logits);
}

/* ---------------------------------------------------------------- NaN in use */

/* Which shard holds the tensor, and where. */
static const char *place_of(const char *tensor, test_tensor_place *place)
{
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++)
        if (test_safetensors_place(FLASH, shards[i], tensor, place))
            return shards[i];
    fail_msg("no tensor %s", tensor);
    return NULL;
}

/* Writes bytes into a copied tensor; undo with the sound ones. */
static void patch(const folder *f, const char *tensor, size_t offset, const void *bytes, size_t n)
{
    test_tensor_place place;
    const char *shard = place_of(tensor, &place);
    size_t size;
    char *file = test_file_read(f->dir, shard, &size);
    assert_true(offset + n <= place.bytes);
    memcpy(file + place.offset + offset, bytes, n);
    test_file_write(f->dir, shard, file, size);
    free(file);
}

static void restore(const folder *f, const char *tensor)
{
    test_tensor_place place;
    test_file_copy(FLASH, f->dir, place_of(tensor, &place));
}

/* The step fails with FORMAT, and the message names the tensor and what is wrong with it. */
static void check_named(const folder *f, const char *tensor, size_t offset, const void *bytes,
                        size_t n)
{
    tamis_error err = {.text = ""};
    patch(f, tensor, offset, bytes, n);
    const tamis_status st = try_folder(f->dir, f->ids, NULL, &err);
    if (st != TAMIS_STATUS_FORMAT || strstr(err.text, tensor) == NULL)
        fail_msg("%s damaged: %s: %s", tensor, tamis_status_name(st), err.text);
    restore(f, tensor);
}

static void test_nan_is_named(void **state)
{
    (void)state;
    folder f = folder_open();
    const uint8_t fp8_nan = 0x7f, fp8_nan_minus = 0xff, e8m0_nan = 255;
    const uint16_t bf16_nan = 0x7fc0, bf16_inf = 0xff80;
    const float f32_nan = NAN;
    check_named(&f, "layers.0.attn.wq_a.weight", 5, &fp8_nan, 1);
    check_named(&f, "layers.0.attn.wkv.weight", 0, &fp8_nan_minus, 1);
    check_named(&f, "layers.3.attn.wo_a.weight", 77, &fp8_nan, 1);
    check_named(&f, "layers.4.attn.wo_b.weight", 100, &fp8_nan_minus, 1);
    check_named(&f, "layers.2.attn.wkv.scale", 0, &e8m0_nan, 1);
    check_named(&f, "layers.1.attn.wq_b.scale", 1, &e8m0_nan, 1);
    check_named(&f, "layers.4.ffn.shared_experts.w2.scale", 0, &e8m0_nan, 1);
    check_named(&f, "layers.2.attn.compressor.wkv.weight", 10, &bf16_nan, 2);
    check_named(&f, "layers.4.attn.indexer.compressor.wgate.weight", 4, &bf16_inf, 2);
    check_named(&f, "layers.1.ffn.gate.weight", 0, &bf16_nan, 2);
    check_named(&f, "layers.3.ffn.gate.bias", 8, &f32_nan, 4);
    check_named(&f, "layers.2.hc_attn_fn", 40, &f32_nan, 4);
    check_named(&f, "layers.0.ffn_norm.weight", 2, &bf16_nan, 2);
    check_named(&f, "head.weight", 6, &bf16_nan, 2);
    check_named(&f, "embed.weight", (size_t)f.ids[3] * 96 * 2, &bf16_nan, 2);
    folder_close(&f);
}

/* Experts of a layer that the prompt uses, by a tap on the sound folder. */
static void used_experts(const folder *f, int32_t layer, bool *is_used)
{
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, MAX_LEN);
    test_engine engine = test_engine_open(f->dir, &params);
    test_capture capture = test_capture_open(engine.info->num_hidden_layers);
    tamis_session_set_tap(engine.session, test_capture_tap, &capture);
    const int32_t seq = test_seq_new(&engine);
    test_feed(&engine, seq, f->ids, 2, 0, NULL);
    for (int32_t t = 0; t < 2; t++)
        for (int i = 0; i < 2; i++)
            is_used[test_capture_i32(&capture, layer, TAMIS_TAP_EXPERTS, t)[i]] = true;
    test_capture_close(&capture);
    test_engine_close(&engine);
}

/* Two tokens through a model with a damaged expert. */
static tamis_status run_two(const folder *f, float *logits, tamis_error *err)
{
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, MAX_LEN);
    test_engine engine = test_engine_open(f->dir, &params);
    const int32_t seq = test_seq_new(&engine);
    const tamis_feed feed = {seq, f->ids, 2, TAMIS_LOGITS_ALL, NULL};
    const tamis_status st = tamis_session_step(engine.session, &feed, 1, err);
    for (int32_t t = 0; st == TAMIS_STATUS_OK && t < 2; t++)
        memcpy(logits + t * f->vocab, tamis_session_logits(engine.session, t),
               (size_t)f->vocab * sizeof *logits);
    test_engine_close(&engine);
    return st;
}

/* In a used expert it is an error, in one that no token meets it is none and changes nothing. */
static void test_experts_met_and_not_met(void **state)
{
    (void)state;
    folder f = folder_open();
    const uint8_t e8m0_nan = 255;
    float *logits = calloc((size_t)(2 * f.vocab), sizeof *logits);
    assert_non_null(logits);
    int n_met = 0, n_unmet = 0;
    bool is_used[8] = {false};
    used_experts(&f, 4, is_used);
    for (int e = 0; e < 8; e++) {
        char tensor[64];
        tamis_error err;
        snprintf(tensor, sizeof tensor, "layers.4.ffn.experts.%d.w%d.scale", e, 1 + e % 3);
        patch(&f, tensor, 3, &e8m0_nan, 1);
        const tamis_status st = run_two(&f, logits, &err);
        if (is_used[e]) {
            assert_int_equal(st, TAMIS_STATUS_FORMAT);
            assert_non_null(strstr(err.text, tensor));
            n_met++;
        } else {
            test_must(st, &err, tensor);
            test_assert_same_bits(logits, f.logits, 2, f.vocab, tensor);
            n_unmet++;
        }
        restore(&f, tensor);
    }
    assert_true(n_met >= 2 && n_unmet >= 2);
    free(logits);
    folder_close(&f);
}

/* A token whose embedding is damaged hurts its own sequence only; the session stays usable. */
static void test_session_survives(void **state)
{
    (void)state;
    folder f = folder_open();
    const uint16_t bf16_nan = 0x7fc0;
    int32_t bad = 0;
    for (int32_t t = 0; t < N; t++) /* an id that the prompt does not hold */
        if (f.ids[t] == bad) {
            bad++;
            t = -1;
        }
    patch(&f, "embed.weight", (size_t)bad * 96 * 2 + 8, &bf16_nan, 2);
    tamis_session_params params = test_session_params(TAMIS_DTYPE_F32, MAX_LEN);
    params.max_num_seqs = 2;
    test_engine engine = test_engine_open(f.dir, &params);
    float *seen = calloc((size_t)(N * f.vocab), sizeof *seen);
    assert_non_null(seen);
    const int32_t good = test_seq_new(&engine), doomed = test_seq_new(&engine);
    test_feed(&engine, good, f.ids, 10, 0, seen);
    test_feed(&engine, doomed, f.ids, 6, 0, NULL);
    tamis_error err;
    const tamis_feed feed = {doomed, &bad, 1, TAMIS_LOGITS_LAST, NULL};
    assert_int_equal(tamis_session_step(engine.session, &feed, 1, &err), TAMIS_STATUS_FORMAT);
    assert_non_null(strstr(err.text, "embed.weight"));
    assert_int_equal(tamis_session_num_logits(engine.session), 0);
    assert_int_equal(tamis_seq_len(engine.session, doomed), 6);
    const tamis_feed again = {doomed, f.ids, 1, TAMIS_LOGITS_LAST, NULL};
    assert_int_not_equal(tamis_session_step(engine.session, &again, 1, &err), TAMIS_STATUS_OK);
    test_feed(&engine, good, f.ids + 10, N - 10, 3, seen + 10 * f.vocab);
    test_assert_same_bits(seen, f.logits, N, f.vocab, "the other sequence");
    test_seq_drop(&engine, doomed);
    const int32_t fresh = test_seq_new(&engine); /* the doomed one's slot and blocks */
    test_feed(&engine, fresh, f.ids, N, 0, seen);
    test_assert_same_bits(seen, f.logits, N, f.vocab, "a new sequence");
    free(seen);
    test_engine_close(&engine);
    folder_close(&f);
}

/* ---------------------------------------------------------------- flips and cuts */

static void flip(const folder *f, const char *name, size_t byte, int bit)
{
    size_t size;
    char *file = test_file_read(f->dir, name, &size);
    assert_true(byte < size);
    file[byte] = (char)(file[byte] ^ 1 << bit);
    test_file_write(f->dir, name, file, size);
    free(file);
}

static size_t header_bytes(const char *name)
{
    uint64_t n;
    char *file = test_file_read(FLASH, name, NULL);
    memcpy(&n, file, sizeof n);
    free(file);
    return (size_t)n + 8;
}

static size_t file_bytes(const char *name)
{
    size_t size;
    free(test_file_read(FLASH, name, &size));
    return size;
}

/* Flips one bit of [begin, end) of a file; an accepted folder must give the same logits. */
static void check_flips(const folder *f, const char *name, size_t begin, size_t end, int n_flips,
                        bool is_same_if_ok, test_rng *rng)
{
    float *logits = calloc((size_t)(N * f->vocab), sizeof *logits);
    int n_ok = 0;
    assert_non_null(logits);
    for (int i = 0; i < n_flips; i++) {
        const size_t byte = (size_t)test_rng_int(rng, (int64_t)begin, (int64_t)end - 1);
        const int bit = (int)test_rng_int(rng, 0, 7);
        tamis_error err = {.text = ""};
        flip(f, name, byte, bit);
        const tamis_status st = try_folder(f->dir, f->ids, is_same_if_ok ? logits : NULL, &err);
        n_ok += st == TAMIS_STATUS_OK;
        if (st != TAMIS_STATUS_OK && err.text[0] == '\0')
            fail_msg("%s, byte %zu, bit %d: %s without a message", name, byte, bit,
                     tamis_status_name(st));
        if (st == TAMIS_STATUS_OK && is_same_if_ok)
            test_assert_same_bits(logits, f->logits, N, f->vocab, name);
        test_file_copy(FLASH, f->dir, name);
    }
    printf("%s: %d of %d flips accepted\n", name, n_ok, n_flips);
    free(logits);
}

static void test_flips_in_headers(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("flips in headers", 31);
    folder f = folder_open();
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++)
        check_flips(&f, shards[i], 0, header_bytes(shards[i]), 60, true, &rng);
    const char *index = "model.safetensors.index.json";
    check_flips(&f, index, 0, file_bytes(index), 100, true, &rng);
    folder_close(&f);
}

static void test_flips_in_data(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("flips in data", 32);
    folder f = folder_open();
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++)
        check_flips(&f, shards[i], header_bytes(shards[i]), file_bytes(shards[i]), 60, false, &rng);
    folder_close(&f);
}

/* A flipped digit can be another legal value, so only soundness is asked for. */
static void test_flips_in_config(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("flips in config", 33);
    folder f = folder_open();
    check_flips(&f, "config.json", 0, file_bytes("config.json"), 150, false, &rng);
    folder_close(&f);
}

static void check_cut(const folder *f, const char *name, size_t length)
{
    tamis_error err = {.text = ""};
    size_t size;
    char *file = test_file_read(FLASH, name, &size);
    test_file_write(f->dir, name, file, length);
    free(file);
    const tamis_status st = try_folder(f->dir, f->ids, NULL, &err);
    if ((st != TAMIS_STATUS_FORMAT && st != TAMIS_STATUS_IO) || strstr(err.text, name) == NULL)
        fail_msg("%s cut to %zu of %zu bytes: %s: %s", name, length, size, tamis_status_name(st),
                 err.text);
    test_file_copy(FLASH, f->dir, name);
}

static void test_cut_files(void **state)
{
    (void)state;
    folder f = folder_open();
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        const size_t header = header_bytes(shards[i]), size = file_bytes(shards[i]);
        const size_t lengths[] = {0, 4, 8, header / 2, header - 1, header, size / 2, size - 1};
        for (size_t c = 0; c < sizeof lengths / sizeof *lengths; c++)
            check_cut(&f, shards[i], lengths[c]);
    }
    const char *const texts[] = {"model.safetensors.index.json", "config.json"};
    for (size_t i = 0; i < 2; i++) {
        const size_t size = file_bytes(texts[i]);
        check_cut(&f, texts[i], 0);
        check_cut(&f, texts[i], size / 3);
        check_cut(&f, texts[i], size - 3);
    }
    folder_close(&f);
}

/* Each file missing in turn is an error that names it. */
static void test_missing_files(void **state)
{
    (void)state;
    folder f = folder_open();
    for (size_t i = 0; i < 4; i++) {
        const char *name = i < 3 ? shards[i] : "config.json";
        tamis_error err = {.text = ""};
        char *path = test_path(f.dir, name);
        assert_int_equal(unlink(path), 0);
        const tamis_status st = try_folder(f.dir, f.ids, NULL, &err);
        if (st != TAMIS_STATUS_IO || strstr(err.text, name) == NULL)
            fail_msg("without %s: %s: %s", name, tamis_status_name(st), err.text);
        test_file_copy(FLASH, f.dir, name);
        free(path);
    }
    folder_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nan_is_named),     cmocka_unit_test(test_experts_met_and_not_met),
        cmocka_unit_test(test_session_survives), cmocka_unit_test(test_flips_in_headers),
        cmocka_unit_test(test_flips_in_data),    cmocka_unit_test(test_flips_in_config),
        cmocka_unit_test(test_cut_files),        cmocka_unit_test(test_missing_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
