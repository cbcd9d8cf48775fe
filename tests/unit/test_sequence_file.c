/*
 * A sequence that is saved and loaded goes on with the same bits: every family and cache type,
 * other blocks, slots, sizes, threads and processes, from any length, after rollbacks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/compress.h"
#include "core/file_stream.h"
#include "engine/session_internal.h"
#include "sequence_file_test.h"
#include "support/sanitized.h"

/* ---------------------------------------------------------------- what follows a load */

typedef struct saved {
    const char *path;
    int32_t ids[MAX_LEN];
    int32_t len;       /* of the saved sequence */
    const float *want; /* [MAX_LEN][vocab] of ids in one go */
    int32_t floor;     /* of the saved sequence */
} saved;

/* Loads it beside other sequences, goes on, goes back as far as allowed and on again. */
static void assert_goes_on(test_engine *e, const saved *s, int32_t n_more)
{
    const int32_t vocab = e->info->vocab_size;
    float *seen = calloc((size_t)MAX_LEN * (size_t)vocab, sizeof *seen);
    const int32_t other = test_seq_new(e);
    test_feed(e, other, s->ids + 3, 45, 0, NULL);
    const int32_t seq = load_new(e, s->path);
    assert_int_equal(tamis_seq_len(e->session, seq), s->len);
    test_feed(e, seq, s->ids + s->len, n_more, 5, seen);
    test_assert_same_bits(seen, s->want + (int64_t)s->len * vocab, n_more, vocab, "goes on");
    const int32_t floor = tamis_seq_rollback_floor(e->session, seq);
    assert_true(floor >= s->floor && floor <= s->len + n_more);
    test_seq_rollback(e, seq, floor);
    const int32_t n = s->len + n_more - floor;
    test_feed(e, seq, s->ids + floor, n, 3, seen);
    test_assert_same_bits(seen, s->want + (int64_t)floor * vocab, n, vocab, "after a rollback");
    test_seq_drop(e, seq);
    test_seq_drop(e, other);
    free(seen);
}

/* ---------------------------------------------------------------- families, sessions */

static tamis_session_params other_params(tamis_dtype dtype, int32_t max_rollback, int32_t n_threads)
{
    tamis_session_params p = file_params(dtype);
    p.n_threads = n_threads;
    p.max_num_seqs = 2;
    p.max_model_len = MAX_LEN - 9;
    p.max_num_batched_tokens = 64;
    p.max_num_logits = 64;
    p.max_rollback = max_rollback;
    p.block_order_seed = 77;
    return p;
}

static void check_profile(const char *dir, tamis_profile profile, tamis_dtype dtype,
                          const char *folder)
{
    test_rng rng = test_rng_start(dir, 71);
    tamis_session_params p = file_params(dtype);
    test_engine e = open_profile(dir, profile, dtype);
    char *path = test_path(folder, "seq");
    saved s = {.path = path, .len = 290};
    random_ids(&rng, e.info->vocab_size, s.ids, MAX_LEN);
    float *want = test_logits_of(&e, s.ids, MAX_LEN - 20, 155);
    s.want = want;
    const int32_t first = test_seq_new(&e), seq = test_seq_new(&e);
    test_feed(&e, first, s.ids, 30, 0, NULL);
    test_feed(&e, seq, s.ids, s.len, 120, NULL);
    s.floor = tamis_seq_rollback_floor(e.session, seq);
    save(&e, seq, path, 0);
    test_seq_drop(&e, first);
    assert_goes_on(&e, &s, 20);
    for (int32_t i = 0; i < 3; i++) {
        const int32_t rollback[] = {2, 12, 40}, threads[] = {1, 2, 3};
        p = other_params(dtype, rollback[i], threads[i]);
        test_engine f = test_engine_share(&e, &p);
        if (i == 2 && tamis_compress_is_available())
            save(&e, seq, path, 3);
        assert_goes_on(&f, &s, 20);
        test_engine_close(&f);
    }
    free(want);
    free(path);
    test_engine_close(&e);
}

static void check_family(const char *dir, tamis_dtype dtype, const char *folder)
{
    check_profile(dir, TAMIS_PROFILE_EXACT, dtype, folder);
}

/* Packed rows of every layout. */
static void every_profile_goes_on_elsewhere(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make();
    check_profile(V4_DIR, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, folder);
    if (!TEST_IS_SANITIZED) {
        check_profile(V4_DIR, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, folder);
        check_profile(GOLDEN "v4-pro-fp8", TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, folder);
        check_profile(GOLDEN "glm52-fp8", TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, folder);
        check_profile(GLM5_DIR, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, folder);
    }
    test_temp_dir_remove(folder);
}

static void every_family_and_type_goes_on_elsewhere(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make();
    check_family(V4_DIR, TAMIS_DTYPE_BF16, folder);
    check_family(V32_DIR, TAMIS_DTYPE_BF16, folder);
    check_family(GLM5_DIR, TAMIS_DTYPE_BF16, folder);
    if (!TEST_IS_SANITIZED) {
        check_family(V4_DIR, TAMIS_DTYPE_F32, folder);
        check_family(V32_DIR, TAMIS_DTYPE_F32, folder);
        check_family(GOLDEN "v4-pro-fp8", TAMIS_DTYPE_BF16, folder);
        check_family(GOLDEN "glm52-fp8", TAMIS_DTYPE_F32, folder);
    }
    test_temp_dir_remove(folder);
}

/* ---------------------------------------------------------------- lengths */

/* Around blocks, groups of 4 and 128, the window, and nothing at all. */
static void any_length_goes_on(void **state)
{
    static const int32_t lens[] = {0, 1, 3, 4, 5, 8, 31, 127, 128, 129, 160, 255, 256, 257, 290};
    (void)state;
    test_rng rng = test_rng_start("any_length_goes_on", 72);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    saved s = {.path = path};
    random_ids(&rng, e.info->vocab_size, s.ids, MAX_LEN);
    float *want = test_logits_of(&e, s.ids, MAX_LEN, 110);
    s.want = want;
    const int32_t seq = test_seq_new(&e);
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        if (TEST_IS_SANITIZED && i % 3 == 1)
            continue;
        const int32_t n = lens[i] - s.len;
        test_feed(&e, seq, s.ids + s.len, n, n > 9 ? 0 : 1, NULL);
        s.len = lens[i];
        s.floor = tamis_seq_rollback_floor(e.session, seq);
        save(&e, seq, path, 0);
        assert_goes_on(&e, &s, 6);
    }
    free(want);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* After a rollback rings hold rows of positions that are no longer there, and less behind them: the
 * loaded sequence may go back as far as the saved one, no further, also where rings are larger. */
static void rollbacks_are_kept(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("rollbacks_are_kept", 73);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.max_rollback = 40;
    test_engine e = test_engine_open(V4_DIR, &p);
    saved s = {.path = path};
    random_ids(&rng, e.info->vocab_size, s.ids, MAX_LEN);
    float *want = test_logits_of(&e, s.ids, MAX_LEN, 110);
    s.want = want;
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, s.ids, 300, 0, NULL);
    s.floor = tamis_seq_rollback_floor(e.session, seq);
    for (s.len = 300; s.len > s.floor; s.len -= TEST_IS_SANITIZED ? 25 : 9) {
        test_seq_rollback(&e, seq, s.len);
        for (int32_t rollback = 8; rollback <= 90; rollback += 41) {
            save(&e, seq, path, 0);
            p = other_params(TAMIS_DTYPE_BF16, rollback, 1);
            test_engine f = test_engine_share(&e, &p);
            const int32_t loaded = load_new(&f, path);
            const int32_t floor = tamis_seq_rollback_floor(f.session, loaded);
            assert_true(floor >= s.floor && floor <= s.len);
            assert_true(rollback < 40 || floor == s.floor);
            save(&f, loaded, path, 0); /* from one session to the next changes nothing */
            test_seq_drop(&f, loaded);
            assert_goes_on(&f, &s, 8);
            test_engine_close(&f);
        }
    }
    free(want);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* ---------------------------------------------------------------- processes, forks, prefixes */

static int save_in_child(const int32_t *ids, const char *path)
{
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, ids, 200, 64, NULL);
    save(&e, seq, path, 0);
    test_engine_close(&e);
    return 0;
}

static void another_process_goes_on(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("another_process_goes_on", 74);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    saved s = {.path = path, .len = 200};
    random_ids(&rng, 200, s.ids, MAX_LEN);
    const pid_t child = fork();
    if (child == 0)
        _exit(save_in_child(s.ids, path));
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V4_DIR, &p);
    float *want = test_logits_of(&e, s.ids, 220, 110);
    s.want = want;
    assert_goes_on(&e, &s, 20);
    free(want);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* Shared blocks are saved like others, and saving and loading change nothing for the other holder.
 */
static void a_fork_is_saved_and_goes_on(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("a_fork_is_saved_and_goes_on", 75);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V32_DIR, &p);
    const int32_t vocab = e.info->vocab_size;
    saved s = {.path = path, .len = 200};
    random_ids(&rng, vocab, s.ids, MAX_LEN);
    float *want = test_logits_of(&e, s.ids, 220, 110), *seen = calloc((size_t)(20 * vocab), 4);
    s.want = want;
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, s.ids, s.len, 0, NULL);
    const int32_t copy = test_seq_fork(&e, seq);
    const int32_t n_free = e.session->pool.n_free;
    save(&e, copy, path, 0);
    test_seq_drop(&e, copy);
    const int32_t loaded = load_new(&e, path);
    assert_int_equal(e.session->pool.n_free, n_free - 1); /* the full block is no longer shared */
    test_feed(&e, loaded, s.ids, 20, 0, seen);            /* other tokens */
    test_feed(&e, seq, s.ids + s.len, 20, 0, seen);
    test_assert_same_bits(seen, want + (int64_t)s.len * vocab, 20, vocab, "the other one");
    free(want);
    free(seen);
    free(path);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* A sequence that took over a prefix has no older rows in its rings; its ids are found again. */
static void taken_over_prefixes_are_saved(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("taken_over_prefixes_are_saved", 76);
    char *folder = test_temp_dir_make(), *path = test_path(folder, "seq");
    tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    p.prefix_caching = true;
    test_engine e = test_engine_open(V4_DIR, &p), f = test_engine_share(&e, &p);
    saved s = {.path = path, .len = 140};
    random_ids(&rng, e.info->vocab_size, s.ids, MAX_LEN);
    float *want = test_logits_of(&e, s.ids, MAX_LEN, 110);
    s.want = want;
    int32_t n_reused = 0;
    tamis_error err;
    const int32_t seq = test_seq_new(&e);
    test_must(tamis_seq_match(e.session, seq, s.ids, 200, &n_reused, &err), &err, "match");
    assert_int_equal(n_reused, 128);
    test_feed(&e, seq, s.ids + 128, s.len - 128, 0, NULL);
    s.floor = tamis_seq_rollback_floor(e.session, seq);
    assert_int_equal(s.floor, 128);
    save(&e, seq, path, 0);
    assert_goes_on(&f, &s, 10);
    const int32_t loaded = load_new(&f, path);
    test_feed(&f, loaded, s.ids + s.len, 130, 0, NULL); /* fills block 1: published by its ids */
    const int32_t next = test_seq_new(&f);
    test_must(tamis_seq_match(f.session, next, s.ids, MAX_LEN, &n_reused, &err), &err, "match");
    assert_int_equal(n_reused, 256);
    p.prefix_caching = false; /* ids that nobody needs are passed over */
    test_engine g = test_engine_share(&e, &p);
    assert_goes_on(&g, &s, 10);
    test_engine_close(&g);
    test_engine_close(&f);
    test_engine_close(&e);
    free(want);
    free(path);
    test_temp_dir_remove(folder);
}

/* ---------------------------------------------------------------- names */

static void write_text(const char *path, const char *text)
{
    tamis_file_writer file;
    tamis_error err;
    test_must(tamis_file_writer_open(&file, path, &err), &err, "open");
    test_must(tamis_file_writer_write(&file, text, strlen(text), &err), &err, "write");
    test_must(tamis_file_writer_commit(&file, &err), &err, "commit");
}

/* Pieces of any size, files that end on both sides of what the writer keeps back. */
static void pieces_become_a_file(void **state)
{
    (void)state;
    enum { BLOCK = 2 << 20, LARGEST = 2 * BLOCK + 1 };
    static const size_t sizes[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 1, LARGEST};
    static const size_t pieces[] = {LARGEST, BLOCK, 1000003, 4099};
    char *folder = test_temp_dir_make(), *path = test_path(folder, "pieces");
    test_rng rng = test_rng_start("pieces", 71);
    uint8_t *data = malloc(LARGEST);
    tamis_error err;
    test_rng_fill_bytes(&rng, data, LARGEST);
    for (size_t i = 0; i < 6; i++)
        for (size_t p = 0; p < 4; p++) {
            tamis_file_writer file;
            size_t seen_bytes = 0;
            test_must(tamis_file_writer_open(&file, path, &err), &err, "open");
            for (size_t at = 0; at < sizes[i]; at += pieces[p]) {
                const size_t left = sizes[i] - at, n = left < pieces[p] ? left : pieces[p];
                test_must(tamis_file_writer_write(&file, data + at, n, &err), &err, "write");
            }
            test_must(tamis_file_writer_commit(&file, &err), &err, "commit");
            char *seen = test_file_read(folder, "pieces", &seen_bytes);
            assert_int_equal(seen_bytes, sizes[i]);
            assert_int_equal(memcmp(seen, data, sizes[i]), 0);
            free(seen);
        }
    free(data);
    free(path);
    test_temp_dir_remove(folder);
}

/* A link to a link in another folder: both stay, what they lead to is replaced. */
static void links_are_followed(void **state)
{
    (void)state;
    char *a = test_temp_dir_make(), *b = test_temp_dir_make(), seen_link[512] = "";
    char *link_path = test_path(a, "link"), *second = test_path(b, "second");
    tamis_file_writer file;
    tamis_error err;
    test_file_write_text(b, "file", "old");
    assert_int_equal(symlink(second, link_path), 0);
    assert_int_equal(symlink("file", second), 0);
    write_text(link_path, "new");
    char *seen = test_file_read(b, "file", NULL);
    assert_string_equal(seen, "new");
    assert_true(readlink(link_path, seen_link, sizeof seen_link - 1) > 0);
    assert_string_equal(seen_link, second);
    assert_int_equal(readlink(second, seen_link, sizeof seen_link - 1), 4);
    assert_int_equal(unlink(second), 0); /* now the first leads nowhere */
    assert_int_equal(tamis_file_writer_open(&file, link_path, &err), TAMIS_STATUS_IO);
    assert_non_null(strstr(err.text, "follow the link"));
    free(seen);
    free(link_path);
    free(second);
    test_temp_dir_remove(a);
    test_temp_dir_remove(b);
}

static void strange_names_are_refused(void **state)
{
    (void)state;
    const tamis_session_params p = file_params(TAMIS_DTYPE_BF16);
    test_engine e = test_engine_open(V32_DIR, &p);
    const int32_t seq = test_seq_new(&e);
    static char path[20001];
    tamis_error err;
    assert_int_equal(tamis_seq_save(e.session, seq, "", &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "path is empty"));
    assert_int_equal(tamis_seq_load(e.session, seq, "", &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "path is empty"));
    for (size_t n = 300; n < sizeof path; n *= 4) {
        memset(path, 'x', n);
        assert_int_equal(tamis_seq_save(e.session, seq, path, &err), TAMIS_STATUS_IO);
        assert_non_null(strstr(err.text, "name too long"));
        assert_int_equal(tamis_seq_load(e.session, seq, path, &err), TAMIS_STATUS_IO);
        assert_non_null(strstr(err.text, "name too long"));
    }
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_process_goes_on), /* forks: before there are threads */
        cmocka_unit_test(every_family_and_type_goes_on_elsewhere),
        cmocka_unit_test(every_profile_goes_on_elsewhere),
        cmocka_unit_test(any_length_goes_on),
        cmocka_unit_test(rollbacks_are_kept),
        cmocka_unit_test(a_fork_is_saved_and_goes_on),
        cmocka_unit_test(taken_over_prefixes_are_saved),
        cmocka_unit_test(pieces_become_a_file),
        cmocka_unit_test(links_are_followed),
        cmocka_unit_test(strange_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
