/*
 * Synthetic model folders at real dimensions: the same bytes for the same seed, a model that opens,
 * steps and has the work that its dimensions say; nothing left behind where writing stops.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/mem.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "tamis/bench.h"

static const int32_t window_only[] = {0};

/* 200 MB: one window layer of V4-Flash with 6 experts and 64 tokens. */
static tamis_synth_params small(void)
{
    tamis_synth_params p = tamis_synth_params_default();
    p.layers = window_only;
    p.n_layers = 1;
    p.n_experts = 6;
    p.vocab_size = 64;
    return p;
}

static bool go_on(uint64_t done, uint64_t total, void *user)
{
    uint64_t *last = user;
    assert_true(done > *last && done <= total);
    *last = done;
    return true;
}

static bool stop(uint64_t done, uint64_t total, void *user)
{
    (void)done, (void)total, (void)user;
    return false;
}

static int num_entries(const char *dir)
{
    int n = 0;
    DIR *folder = opendir(dir);
    assert_non_null(folder);
    for (const struct dirent *e; (e = readdir(folder)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(folder);
    return n;
}

static void write_folder(const tamis_synth_params *p, const char *dir)
{
    tamis_error err = {0};
    uint64_t last = 0;
    if (tamis_synth_write(p, dir, go_on, &last, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    assert_true(last > 0);
}

static void remove_model(const char *dir)
{
    char *model = test_path(dir, "model.safetensors"), *config = test_path(dir, "config.json");
    assert_int_equal(remove(model), 0);
    assert_int_equal(remove(config), 0);
    assert_int_equal(remove(dir), 0); /* nothing else is in there */
    free(model);
    free(config);
}

/* ---------------------------------------------------------------- a folder */

/* Bytes that differ between two files of one size. */
static int64_t num_different(const char *a, const char *b)
{
    static uint8_t x[1 << 16], y[1 << 16];
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int64_t n_different = 0;
    assert_true(f != NULL && g != NULL);
    for (size_t n; (n = fread(x, 1, sizeof x, f)) > 0;) {
        assert_int_equal(fread(y, 1, n, g), n);
        for (size_t i = 0; memcmp(x, y, n) != 0 && i < n; i++)
            n_different += x[i] != y[i];
    }
    assert_int_equal(fread(y, 1, 1, g), 0);
    fclose(f);
    fclose(g);
    return n_different;
}

static int64_t compare_with_seed(const char *dir, const char *first, uint64_t seed)
{
    tamis_synth_params p = small();
    char *other = test_path(dir, "other");
    p.seed = seed;
    write_folder(&p, other);
    char *a = test_path(first, "model.safetensors"), *b = test_path(other, "model.safetensors");
    const int64_t n = num_different(a, b);
    free(a);
    free(b);
    remove_model(other);
    free(other);
    return n;
}

static double fp8(double rows, double cols)
{
    return rows * cols + ceil(rows / 128) * ceil(cols / 128);
}

/* One token of this model, whose 6 experts are all chosen: every weight but the embedding once. */
static void check_work(const tamis_model *model)
{
    const tamis_roof roof = {1, 100, 200, 10, 5};
    const double expert = 3 * 2048 * 4096.0;
    const double hyper = 2 * 24 * 4 * 4096.0, hyper_head = 4 * 4 * 4096.0; /* F32 */
    const double projections = 4096.0 * (1024 + 512) + 32768 * 1024.0 + 2 * 8192 * 4096.0;
    const double rows = 101; /* token 100 of a window of 128 */
    tamis_model_work w, without;
    tamis_error err = {0};
    if (tamis_model_count_work(model, 100, 1, 1, &roof, &w, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    const double bytes = fp8(1024, 4096) + fp8(512, 4096) + fp8(32768, 1024) + fp8(8192, 4096) +
                         fp8(4096, 8192) + rows * 1024 + 6 * 4096 * 2 +
                         6 * expert * (0.5 + 1. / 32) + 2 * fp8(2048, 4096) + fp8(4096, 2048) +
                         4 * (hyper + hyper_head) + 64 * 4096 * 2;
    const double ops = 2 * (projections + rows * 64 * 1024 + 6 * 4096 + 7 * expert + hyper +
                            hyper_head + 64 * 4096);
    assert_true(w.int8_ops == 0);
    if (fabs(w.bytes - bytes) > 0.5 || fabs(w.f32_ops - ops) > 0.5)
        fail_msg("%.0f bytes, %.0f operations, expected %.0f, %.0f", w.bytes, w.f32_ops, bytes,
                 ops);
    assert_true(w.floor_ms >= bytes / 10e6 && w.floor_ms <= bytes / 10e6 + ops / 100e6);
    assert_int_equal(tamis_model_count_work(model, 100, 1, 0, &roof, &without, NULL), 0);
    assert_true(w.f32_ops - without.f32_ops == 2 * (64 * 4096 + hyper_head));
    assert_int_equal(tamis_model_count_work(model, -1, 1, 0, &roof, &w, NULL),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_model_count_work(model, 0, 0, 0, &roof, &w, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_model_count_work(model, 0, 1, 2, &roof, &w, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_model_count_work(model, 0, 1, 1, NULL, &w, NULL), TAMIS_STATUS_INVALID);
}

/* Tokens behind random rows. */
static void check_step(const tamis_model *model)
{
    static const int32_t tokens[] = {3, 60, 7};
    tamis_session_params p = tamis_session_params_default();
    tamis_session *session = NULL;
    tamis_error err = {0};
    int32_t seq;
    p.n_threads = 1;
    p.max_model_len = 512;
    p.max_num_batched_tokens = 8;
    if (tamis_session_open(&session, model, &p, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(tamis_seq_create(session, &seq, &err), TAMIS_STATUS_OK);
    assert_int_equal(tamis_seq_fill_random(session, seq, 300, 1, &err), TAMIS_STATUS_OK);
    const tamis_feed feed = {
        .seq = seq, .tokens = tokens, .n_tokens = 3, .logits = TAMIS_LOGITS_LAST};
    if (tamis_session_step(session, &feed, 1, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    double squares = 0;
    for (int i = 0; i < 64; i++)
        squares += pow(tamis_session_logits(session, 0)[i], 2) / 64;
    assert_true(squares > 1e-4 && squares < 1e4); /* weights of a sensible size */
    tamis_session_close(&session);
}

static void test_folder(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make(), *first = test_path(dir, "model"), *slash;
    const tamis_synth_params p = small();
    const tamis_inspection *in;
    tamis_model *model = NULL;
    tamis_error err = {0};
    slash = test_path(dir, "model//"); /* slashes at the end are nothing */
    write_folder(&p, slash);
    assert_int_equal(num_entries(dir), 1);
    assert_int_equal(num_entries(first), 2);
    if (tamis_model_open(&model, first, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(tamis_model_inspect(model, &in, &err), TAMIS_STATUS_OK);
    assert_int_equal(in->n_unused, 0);
    assert_int_equal(in->info->num_hidden_layers, 1);
    assert_int_equal(in->info->vocab_size, 64);
    check_work(model);
    check_step(model);
    tamis_model_close(&model);
    if (!TEST_IS_SANITIZED) {
        assert_int_equal(compare_with_seed(dir, first, 1), 0);
        assert_true(compare_with_seed(dir, first, 2) > 100000000);
    }
    /* what is there is not touched */
    assert_int_equal(tamis_synth_write(&p, first, NULL, NULL, &err), TAMIS_STATUS_IO);
    assert_non_null(strstr(err.text, "is there"));
    assert_int_equal(num_entries(dir), 1);
    remove_model(first);
    free(first);
    free(slash);
    test_temp_dir_remove(dir);
}

/* Every shape begins to be written, and goes when it is stopped. */
static void test_every_shape_stops(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make(), *path = test_path(dir, "m");
    for (int shape = 0; shape < TAMIS_NUM_SHAPES; shape++) {
        tamis_synth_params p = tamis_synth_params_default();
        p.shape = (tamis_shape)shape;
        assert_int_equal(tamis_synth_write(&p, path, stop, NULL, NULL), TAMIS_STATUS_CANCELLED);
        assert_int_equal(num_entries(dir), 0);
    }
    free(path);
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- what stops it */

static void test_refused_parameters(void **state)
{
    (void)state;
    static const int32_t ratios[] = {0, 8};
    char *dir = test_temp_dir_make(), *path = test_path(dir, "m");
    tamis_synth_params p;
    tamis_error err;
#define REFUSED(field, value, word)                                                                \
    (p = small(), p.field = (value),                                                               \
     assert_int_equal(tamis_synth_write(&p, path, NULL, NULL, &err), TAMIS_STATUS_INVALID),        \
     assert_non_null(strstr(err.text, word)))
    REFUSED(struct_size, 0, "struct_size is 0");
    REFUSED(shape, (tamis_shape)5, "shape is 5, allowed 0..4");
    REFUSED(n_experts, 5, "n_experts is 5, allowed 6..256");
    REFUSED(n_experts, 257, "n_experts is 257");
    REFUSED(vocab_size, 1, "vocab_size is 1, allowed 2..129280");
    REFUSED(n_layers, 129, "n_layers is 129");
    REFUSED(n_layers, -1, "n_layers is -1");
#undef REFUSED
    p = small();
    p.layers = ratios;
    p.n_layers = 2;
    assert_int_equal(tamis_synth_write(&p, path, NULL, NULL, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "layer 1 has ratio 8, allowed 0, 4, 128"));
    p = small();
    assert_int_equal(tamis_synth_write(NULL, path, NULL, NULL, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_synth_write(&p, NULL, NULL, NULL, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_synth_write(&p, "", NULL, NULL, &err), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_synth_write(&p, "/no/such/folder/m", NULL, NULL, &err), TAMIS_STATUS_IO);
    assert_int_equal(num_entries(dir), 0);
    free(path);
    test_temp_dir_remove(dir);
}

/* The disk refuses in the middle: a limit on the size of files. */
static void test_full_disk(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make(), *path = test_path(dir, "m");
    const tamis_synth_params p = small();
    struct rlimit before, limit;
    tamis_error err = {0};
    uint64_t last = 0;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 5 << 20;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const tamis_status st = tamis_synth_write(&p, path, go_on, &last, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(st, TAMIS_STATUS_IO);
    assert_true(last > 0);
    assert_int_equal(num_entries(dir), 0);
    free(path);
    test_temp_dir_remove(dir);
}

static void test_no_memory(void **state)
{
    (void)state;
    char *dir = test_temp_dir_make(), *path = test_path(dir, "m");
    const tamis_synth_params p = small();
    tamis_status st = TAMIS_STATUS_NO_MEMORY;
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    for (uint64_t n = 1; st != TAMIS_STATUS_CANCELLED; n++) {
        assert_true(n < 1000);
        tamis_mem_fail_at(n);
        st = tamis_synth_write(&p, path, stop, NULL, NULL);
        tamis_mem_fail_at(0);
        assert_true(st == TAMIS_STATUS_CANCELLED || st == TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
        assert_int_equal(num_entries(dir), 0);
    }
    free(path);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_every_shape_stops),
        cmocka_unit_test(test_refused_parameters),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
