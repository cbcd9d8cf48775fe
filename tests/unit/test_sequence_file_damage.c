/*
 * Files that must be refused, with a message and without a trace: damaged, cut, too long, of
 * another model, type or size. And saving that fails on the way: no space, a kill, no memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/checksum.h"
#include "core/compress.h"
#include "core/mem.h"
#include "engine/fingerprint.h"
#include "engine/session_internal.h"
#include "sequence_file_test.h"
#include "support/sanitized.h"

enum { LEN = 140, N_FLIPS = 200, N_KILLS = TEST_IS_SANITIZED ? 6 : 25 };

/* A session with one fed sequence, its file, and an empty sequence to load into. */
typedef struct fixture {
    test_engine e;
    test_rng rng;
    char *folder, *path;
    int32_t ids[MAX_LEN];
    int32_t fed, empty;
} fixture;

static fixture fixture_open(const char *name, uint64_t seed)
{
    fixture f = {.rng = test_rng_start(name, seed), .folder = test_temp_dir_make()};
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    f.e = test_engine_open(V4_DIR, &p);
    f.path = test_path(f.folder, "seq");
    random_ids(&f.rng, f.e.info->vocab_size, f.ids, MAX_LEN);
    f.fed = test_seq_new(&f.e);
    f.empty = test_seq_new(&f.e);
    test_feed(&f.e, f.fed, f.ids, LEN, 0, NULL);
    save(&f.e, f.fed, f.path, 0);
    return f;
}

static void fixture_close(fixture *f)
{
    test_engine_close(&f->e);
    free(f->path);
    test_temp_dir_remove(f->folder);
}

static int32_t num_files(const char *folder)
{
    int32_t n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Refused with this status and a text that names the file and has this in it, without a trace. */
static void assert_refused_by(const test_engine *e, int32_t seq, const char *path,
                              tamis_status status, const char *text)
{
    const int32_t n_free = e->session->pool.n_free;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    const tamis_status st = tamis_seq_load(e->session, seq, path, &err);
    if (st != status || strstr(err.text, path) == NULL || strstr(err.text, text) == NULL)
        fail_msg("%s: status %s, \"%s\"; wanted %s and \"%s\"", path, tamis_status_name(st),
                 err.text, tamis_status_name(status), text);
    assert_int_equal(err.status, st);
    assert_int_equal(tamis_seq_len(e->session, seq), 0);
    assert_int_equal(e->session->pool.n_free, n_free);
}

static void assert_refused(const fixture *f, const char *path, tamis_status status,
                           const char *text)
{
    assert_refused_by(&f->e, f->empty, path, status, text);
}

/* ---------------------------------------------------------------- damage */

static void assert_good_file_loads(fixture *f)
{
    const int32_t vocab = f->e.info->vocab_size;
    float *logits = calloc((size_t)(4 * vocab), sizeof *logits);
    tamis_error err;
    test_must(tamis_seq_load(f->e.session, f->empty, f->path, &err), &err, "load");
    test_feed(&f->e, f->empty, f->ids + LEN, 2, 0, logits);
    test_feed(&f->e, f->fed, f->ids + LEN, 2, 0, logits + 2 * vocab);
    test_assert_same_bits(logits, logits + 2 * vocab, 2, vocab, "after all refusals");
    free(logits);
}

static void every_bit_flip_is_refused(fixture *f, size_t n_flips)
{
    size_t bytes = 0;
    char *data = test_file_read(f->folder, "seq", &bytes), *path = test_path(f->folder, "bad");
    for (size_t i = 0; i < n_flips; i++) {
        /* A third in the first bytes: headers are small. */
        const size_t at =
            (size_t)test_rng_int(&f->rng, 0, (int64_t)(i % 3 == 0 ? 1500 : bytes) - 1);
        const char bit = (char)(1 << test_rng_int(&f->rng, 0, 7));
        data[at] ^= bit;
        test_file_write(f->folder, "bad", data, bytes);
        tamis_error err = {TAMIS_STATUS_OK, ""};
        const tamis_status st = tamis_seq_load(f->e.session, f->empty, path, &err);
        if (st != TAMIS_STATUS_FORMAT && !(st == TAMIS_STATUS_UNSUPPORTED && at >= 8 && at < 12))
            fail_msg("byte %zu of %zu: %s: %s", at, bytes, tamis_status_name(st), err.text);
        assert_int_equal(tamis_seq_len(f->e.session, f->empty), 0);
        data[at] ^= bit;
    }
    free(data);
    free(path);
}

static void flipped_bits_are_refused(void **state)
{
    (void)state;
    fixture f = fixture_open("flipped_bits_are_refused", 81);
    const int32_t n_free = f.e.session->pool.n_free;
    every_bit_flip_is_refused(&f, N_FLIPS);
    if (tamis_compress_is_available()) {
        save(&f.e, f.fed, f.path, 1);
        every_bit_flip_is_refused(&f, N_FLIPS);
    }
    assert_int_equal(f.e.session->pool.n_free, n_free);
    assert_good_file_loads(&f);
    fixture_close(&f);
}

static void cut_and_longer_files_are_refused(void **state)
{
    (void)state;
    fixture f = fixture_open("cut_and_longer_files_are_refused", 82);
    size_t bytes = 0;
    char *data = test_file_read(f.folder, "seq", &bytes), *path = test_path(f.folder, "bad");
    char *longer = calloc(2, bytes);
    memcpy(longer, data, bytes);
    for (int i = 0; i < 60; i++) {
        const size_t n = i < 20   ? (size_t)i * 7
                         : i < 30 ? bytes - 1 - (size_t)(i - 20) * 5
                                  : (size_t)test_rng_int(&f.rng, 0, (int64_t)bytes - 1);
        test_file_write(f.folder, "bad", data, n);
        assert_refused(&f, path, TAMIS_STATUS_FORMAT, "byte");
    }
    test_file_write(f.folder, "bad", longer, bytes + 1);
    assert_refused(&f, path, TAMIS_STATUS_FORMAT, "allowed");
    memcpy(longer + bytes, data, bytes);
    test_file_write(f.folder, "bad", longer, 2 * bytes);
    assert_refused(&f, path, TAMIS_STATUS_FORMAT, "allowed");
    test_file_write_text(f.folder, "bad",
                         "not a sequence, but as long as a header has to be: it "
                         "takes 96 bytes for tamis to look at the first ones");
    assert_refused(&f, path, TAMIS_STATUS_FORMAT, "is no saved sequence");
    assert_good_file_loads(&f);
    free(longer);
    free(data);
    free(path);
    fixture_close(&f);
}

static void assert_same_prefixes(const tamis_session *session, const tamis_prefix_stats *before)
{
    const tamis_prefix_stats now = tamis_session_get_prefix_stats(session);
    assert_int_equal(now.n_blocks, before->n_blocks);
    assert_int_equal(now.n_blocks_alone, before->n_blocks_alone);
    assert_int_equal(now.n_snapshots, before->n_snapshots);
    assert_int_equal(now.n_evicted_blocks, before->n_evicted_blocks);
    assert_int_equal(now.n_evicted_snapshots, before->n_evicted_snapshots);
}

/* Kept prefixes hold every block: they go for a good file only. */
static void no_prefix_goes_for_a_damaged_file(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("no_prefix_goes_for_a_damaged_file", 85);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    p.num_blocks = 4;
    test_engine e = test_engine_open(V4_DIR, &p);
    int32_t ids[MAX_LEN];
    tamis_error err;
    size_t bytes = 0;
    random_ids(&rng, e.info->vocab_size, ids, MAX_LEN);
    const int32_t a = test_seq_new(&e);
    test_feed(&e, a, ids, LEN, 0, NULL);
    save(&e, a, path, 0);
    test_seq_rollback(&e, a, 0);
    tamis_session_drop_prefixes(e.session);
    test_feed(&e, a, ids + 9, 300, 0, NULL);
    test_must(tamis_seq_keep(e.session, a, &err), &err, "keep");
    test_seq_drop(&e, a);
    const tamis_prefix_stats before = tamis_session_get_prefix_stats(e.session);
    assert_true(before.n_blocks_alone == 3 && before.n_snapshots == 3);
    char *data = test_file_read(folder, "seq", &bytes), *bad = test_path(folder, "bad");
    const int32_t b = test_seq_new(&e);
    for (size_t n = bytes - 1; n > 0; n = n > 5000 ? n - 5000 : 0) {
        test_file_write(folder, "bad", data, n);
        assert_refused_by(&e, b, bad, TAMIS_STATUS_FORMAT, "byte");
        assert_same_prefixes(e.session, &before);
    }
    test_must(tamis_seq_load(e.session, b, path, &err), &err, "load");
    assert_int_equal(tamis_session_get_prefix_stats(e.session).n_evicted_blocks, 2);
    test_seq_rollback(&e, b, 0);
    free(data);
    free(bad);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* Where section n begins: behind the header's checksum, then head by head. */
static size_t section_at(const char *data, int32_t n)
{
    uint32_t n_caches;
    memcpy(&n_caches, data + 12, sizeof n_caches);
    size_t at = 96 + (size_t)n_caches * 56 + 8;
    while (n-- > 0) {
        uint64_t stored_bytes;
        memcpy(&stored_bytes, data + at + 16, sizeof stored_bytes);
        at += 32 + (size_t)stored_bytes;
    }
    return at;
}

/* Same header, same sizes, every section sound by itself, but from two files. */
static void parts_of_two_files_do_not_mix(void **state)
{
    (void)state;
    fixture f = fixture_open("parts_of_two_files_do_not_mix", 83);
    char *path = test_path(f.folder, "other");
    size_t bytes = 0, other_bytes = 0;
    test_seq_rollback(&f.e, f.fed, 0);
    test_feed(&f.e, f.fed, f.ids + 5, LEN, 0, NULL);
    save(&f.e, f.fed, path, 0);
    char *data = test_file_read(f.folder, "seq", &bytes);
    char *other = test_file_read(f.folder, "other", &other_bytes);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(data, other, section_at(data, 0));
    for (int32_t n = 1; n <= 4; n++) {
        const size_t at = section_at(data, n);
        char *mixed = malloc(bytes);
        memcpy(mixed, data, at);
        memcpy(mixed + at, other + at, bytes - at);
        test_file_write(f.folder, "other", mixed, bytes);
        assert_refused(&f, path, TAMIS_STATUS_FORMAT, "checksum");
        free(mixed);
    }
    free(data);
    free(other);
    free(path);
    fixture_close(&f);
}

/* ---------------------------------------------------------------- another session */

static void assert_session_refuses(const test_engine *e, const tamis_session_params *p,
                                   const char *path, tamis_status status, const char *text)
{
    test_engine other = test_engine_share(e, p);
    assert_refused_by(&other, test_seq_new(&other), path, status, text);
    test_engine_close(&other);
}

static void other_sessions_refuse(void **state)
{
    (void)state;
    fixture f = fixture_open("other_sessions_refuse", 84);
    tamis_session_params p = file_params(TAMIS_DTYPE_F32);
    assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_UNSUPPORTED,
                           "kv_cache_dtype is BF16, allowed F32");
    p = file_params(TAMIS_DTYPE_BF16);
    p.block_tokens = 256;
    assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_UNSUPPORTED,
                           "block_tokens is 128, allowed 256");
    p = file_params(TAMIS_DTYPE_BF16);
    p.max_model_len = LEN - 1;
    assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_LIMIT, "length is 140, allowed 0..139");
    p = file_params(TAMIS_DTYPE_BF16);
    p.num_blocks = 2;
    assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_NO_BLOCKS, "2 blocks, 1 of 1");
    p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_UNSUPPORTED, "has 0 token ids");
    p = file_params(TAMIS_DTYPE_BF16);
    p.mtp = true;
    if (strcmp(f.e.info->drafter, "mtp") == 0)
        assert_session_refuses(&f.e, &p, f.path, TAMIS_STATUS_UNSUPPORTED, "mtp");
    tamis_error err;
    assert_int_equal(tamis_seq_load(f.e.session, f.fed, f.path, &err), TAMIS_STATUS_STATE);
    assert_non_null(strstr(err.text, "has 140 tokens, allowed 0"));
    assert_int_equal(tamis_seq_load(f.e.session, 7, f.path, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_load(f.e.session, f.empty, NULL, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_save(f.e.session, 2, f.path, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_seq_save_packed(f.e.session, f.fed, f.path, 20, &err),
                     TAMIS_STATUS_INVALID);
    fixture_close(&f);
}

static void other_models_refuse(void **state)
{
    static const char *const dirs[] = {GOLDEN "v4-flash-fp8", V32_DIR, GLM5_DIR};
    static const char *const texts[] = {"another model", "family is deepseek_v4",
                                        "family is deepseek_v4"};
    (void)state;
    fixture f = fixture_open("other_models_refuse", 85);
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    for (int i = 0; i < 3; i++) {
        test_engine other = test_engine_open(dirs[i], &p);
        assert_refused_by(&other, test_seq_new(&other), f.path, TAMIS_STATUS_UNSUPPORTED, texts[i]);
        test_engine_close(&other);
    }
    fixture_close(&f);
}

/* The same folder opened with each profile: same fingerprint, other rows. */
static void other_profiles_refuse(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    test_engine engines[TAMIS_NUM_PROFILES];
    int32_t ids[MAX_LEN];
    test_rng rng = test_rng_start("other_profiles_refuse", 91);
    for (int i = 0; i < TAMIS_NUM_PROFILES; i++)
        engines[i] = open_profile(V4_DIR, (tamis_profile)i, TAMIS_DTYPE_AUTO);
    random_ids(&rng, engines[0].info->vocab_size, ids, MAX_LEN);
    for (int i = 0; i < TAMIS_NUM_PROFILES; i++) {
        const int32_t seq = test_seq_new(&engines[i]);
        test_feed(&engines[i], seq, ids, LEN, 0, NULL);
        save(&engines[i], seq, path, 0);
        for (int j = 0; j < TAMIS_NUM_PROFILES; j++) {
            char text[64];
            snprintf(text, sizeof text, "profile is %s, allowed %s",
                     tamis_profile_name((tamis_profile)i), tamis_profile_name((tamis_profile)j));
            const int32_t other = test_seq_new(&engines[j]);
            if (i != j)
                assert_refused_by(&engines[j], other, path, TAMIS_STATUS_UNSUPPORTED, text);
            test_seq_drop(&engines[j], other);
        }
    }
    for (int i = 0; i < TAMIS_NUM_PROFILES; i++)
        test_engine_close(&engines[i]);
    free(path);
    test_temp_dir_remove(folder);
}

/* The layout of before, and one to come. */
static void other_versions_refuse(void **state)
{
    (void)state;
    fixture f = fixture_open("other_versions_refuse", 92);
    size_t bytes = 0;
    char *data = test_file_read(f.folder, "seq", &bytes), *path = test_path(f.folder, "other");
    for (int32_t version = 1; version <= 3; version += 2) {
        memcpy(data + 8, &version, sizeof version);
        test_file_write(f.folder, "other", data, bytes);
        assert_refused(&f, path, TAMIS_STATUS_UNSUPPORTED,
                       version == 1 ? "version is 1, allowed 2" : "version is 3, allowed 2");
    }
    free(path);
    free(data);
    fixture_close(&f);
}

/* Another value in the middle of any tensor, or another number in the config, is another model. */
static void the_fingerprint_sees_every_tensor(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("the_fingerprint_sees_every_tensor", 86);
    char *folder = test_temp_dir_make();
    test_file_copy(V4_DIR, folder, "config.json");
    test_file_copy(V4_DIR, folder, "model.safetensors");
    tamis_error err;
    tamis_model *model = NULL;
    test_must(tamis_model_open(&model, folder, &err), &err, "open");
    const uint64_t before = tamis_model_fingerprint(model);
    for (int i = 0; i < 20; i++) {
        const int32_t n = tamis_checkpoint_num_tensors(model->checkpoint);
        tamis_tensor *t =
            tamis_checkpoint_tensor(model->checkpoint, (int32_t)test_rng_int(&rng, 0, n - 1));
        const tamis_tensor kept = *t;
        uint8_t *copy = malloc((size_t)t->bytes);
        memcpy(copy, t->data, (size_t)t->bytes);
        t->data = copy;
        assert_true(tamis_model_fingerprint(model) == before);
        copy[t->bytes / 2] ^= 1;
        assert_true(tamis_model_fingerprint(model) != before);
        *t = kept;
        free(copy);
    }
    model->config.reuse_topk[0] = !model->config.reuse_topk[0];
    assert_true(tamis_model_fingerprint(model) != before);
    model->config.reuse_topk[0] = !model->config.reuse_topk[0];
    model->config.rope_compress.theta += 1;
    assert_true(tamis_model_fingerprint(model) != before);
    tamis_model_close(&model);
    test_temp_dir_remove(folder);
}

/* ---------------------------------------------------------------- saving that fails */

/* What is under f->path, if anything, is `data`. */
static void assert_file_is(const fixture *f, const char *data, size_t bytes)
{
    size_t seen_bytes = 0;
    char *seen = test_file_read(f->folder, "seq", &seen_bytes);
    assert_int_equal(seen_bytes, bytes);
    assert_memory_equal(seen, data, bytes);
    free(seen);
}

static tamis_status save_with_room(fixture *f, rlim_t bytes, const char *path, tamis_error *err)
{
    struct rlimit old, limit;
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    const tamis_status st = tamis_seq_save(f->e.session, f->fed, path, err);
    setrlimit(RLIMIT_FSIZE, &old);
    return st;
}

/* The system lets files grow so far and no further, like a full disk. */
static void no_room_leaves_the_old_file(void **state)
{
    (void)state;
    fixture f = fixture_open("no_room_leaves_the_old_file", 87);
    size_t bytes = 0;
    char *data = test_file_read(f.folder, "seq", &bytes), *fresh = test_path(f.folder, "fresh");
    signal(SIGXFSZ, SIG_IGN);
    test_feed(&f.e, f.fed, f.ids + LEN, 3, 0, NULL);
    for (int i = 0; i < 30; i++) {
        const size_t n =
            i < 5 ? (size_t)i * 40 : (size_t)test_rng_int(&f.rng, 0, (int64_t)bytes / 2);
        tamis_error err = {TAMIS_STATUS_OK, ""};
        assert_int_equal(save_with_room(&f, n, f.path, &err), TAMIS_STATUS_IO);
        assert_non_null(strstr(err.text, f.path));
        assert_file_is(&f, data, bytes);
        assert_int_equal(save_with_room(&f, n, fresh, &err), TAMIS_STATUS_IO);
        assert_int_equal(num_files(f.folder), 1);
    }
    save(&f.e, f.fed, f.path, 0);
    assert_int_equal(num_files(f.folder), 1);
    free(fresh);
    free(data);
    fixture_close(&f);
}

static void places_that_cannot_be_written(void **state)
{
    (void)state;
    fixture f = fixture_open("places_that_cannot_be_written", 88);
    tamis_error err = {TAMIS_STATUS_OK, ""};
    char *missing = test_path(f.folder, "no/such/folder");
    assert_int_equal(tamis_seq_save(f.e.session, f.fed, missing, &err), TAMIS_STATUS_IO);
    assert_non_null(strstr(err.text, missing));
    assert_int_equal(tamis_seq_save(f.e.session, f.fed, f.folder, &err), TAMIS_STATUS_IO);
    assert_int_equal(tamis_seq_save(f.e.session, f.fed, "/dev/null", &err), TAMIS_STATUS_IO);
    assert_int_equal(tamis_seq_load(f.e.session, f.empty, missing, &err), TAMIS_STATUS_IO);
    assert_int_equal(tamis_seq_load(f.e.session, f.empty, f.folder, &err), TAMIS_STATUS_IO);
    assert_int_equal(num_files(f.folder), 1);
    free(missing);
    fixture_close(&f);
}

static void refused_memory_changes_nothing(void **state)
{
    (void)state;
    fixture f = fixture_open("refused_memory_changes_nothing", 89);
    size_t bytes = 0;
    char *data = test_file_read(f.folder, "seq", &bytes);
    tamis_error err;
    for (int call = 0; call < 2; call++) {
        tamis_status st = TAMIS_STATUS_NO_MEMORY;
        uint64_t n = 0;
        while (st == TAMIS_STATUS_NO_MEMORY) {
            const size_t in_use = tamis_mem_in_use(TAMIS_MEM_WORKSPACE);
            tamis_mem_fail_at(++n);
            st = call == 0 ? tamis_seq_save(f.e.session, f.fed, f.path, &err)
                           : tamis_seq_load(f.e.session, f.empty, f.path, &err);
            tamis_mem_fail_at(0);
            assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WORKSPACE), in_use);
            assert_file_is(&f, data, bytes);
            assert_int_equal(num_files(f.folder), 1);
        }
        /* The folder's name is the last block of a save: the file is already in place then. */
        test_must(st, &err, call == 0 ? "save" : "load");
        assert_true(n > 2);
    }
    free(data);
    fixture_close(&f);
}

/* ---------------------------------------------------------------- kills */

/* Saves two lengths in turns until it is killed. */
static void save_for_ever(fixture *f)
{
    for (;;) {
        tamis_error err;
        test_seq_rollback(&f->e, f->fed, LEN);
        if (tamis_seq_save(f->e.session, f->fed, f->path, &err) != TAMIS_STATUS_OK)
            _exit(1);
        test_feed(&f->e, f->fed, f->ids + LEN, 3, 0, NULL);
        if (tamis_seq_save(f->e.session, f->fed, f->path, &err) != TAMIS_STATUS_OK)
            _exit(1);
    }
}

static void remove_leftovers(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strncmp(entry->d_name, "seq.", 4) == 0) {
            char *path = test_path(folder, entry->d_name);
            unlink(path);
            free(path);
        }
    closedir(dir);
}

static void a_kill_leaves_a_whole_file(void **state)
{
    (void)state;
    fixture f = fixture_open("a_kill_leaves_a_whole_file", 90);
    int n_short = 0, n_long = 0, n_none = 0;
    for (int i = 0; i < N_KILLS; i++) {
        if (i % 5 == 0)
            unlink(f.path);
        const pid_t child = fork();
        if (child == 0)
            save_for_ever(&f);
        const struct timespec pause = {0, test_rng_int(&f.rng, 100000, 30000000)};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        if (access(f.path, F_OK) != 0) {
            n_none++;
        } else {
            tamis_error err;
            test_must(tamis_seq_load(f.e.session, f.empty, f.path, &err), &err, "load");
            const int32_t len = tamis_seq_len(f.e.session, f.empty);
            assert_true(len == LEN || len == LEN + 3);
            n_short += len == LEN;
            n_long += len != LEN;
            test_seq_rollback(&f.e, f.empty, 0);
        }
        remove_leftovers(f.folder);
    }
    printf("a_kill_leaves_a_whole_file: %d short, %d long, %d none\n", n_short, n_long, n_none);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_bits_are_refused),
        cmocka_unit_test(cut_and_longer_files_are_refused),
        cmocka_unit_test(no_prefix_goes_for_a_damaged_file),
        cmocka_unit_test(parts_of_two_files_do_not_mix),
        cmocka_unit_test(other_sessions_refuse),
        cmocka_unit_test(other_models_refuse),
        cmocka_unit_test(other_profiles_refuse),
        cmocka_unit_test(other_versions_refuse),
        cmocka_unit_test(the_fingerprint_sees_every_tensor),
        cmocka_unit_test(no_room_leaves_the_old_file),
        cmocka_unit_test(places_that_cannot_be_written),
        cmocka_unit_test(refused_memory_changes_nothing),
        cmocka_unit_test(a_kill_leaves_a_whole_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
