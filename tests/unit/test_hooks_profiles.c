/*
 * Connectors over the packed rows of the profiles: a sequence carried from one session to another
 * goes on with the same bits, and a view tells how its rows are coded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "sequence_file_test.h"
#include "support/file_connector.h"
#include "support/sanitized.h"

enum { N_MORE = 12 };

static void set_connector(test_engine *e, test_file_connector *c)
{
    const tamis_connector_hooks hooks = test_file_connector_hooks(c);
    tamis_error err;
    test_must(tamis_session_set_connector(e->session, &hooks, &err), &err, "set connector");
}

/* Another session of the model, which loads the first n tokens and computes the others. */
static void receive(const test_engine *e, test_file_connector *c, const int32_t *ids, int32_t n,
                    float *seen)
{
    tamis_session_params p = file_params(TAMIS_DTYPE_AUTO);
    tamis_error err;
    p.kv_cache_dtype = tamis_session_get_params(e->session)->kv_cache_dtype;
    p.n_threads = 2;
    p.max_rollback = 30;
    p.block_order_seed = 99;
    test_engine f = test_engine_share(e, &p);
    set_connector(&f, c);
    const int32_t seq = test_seq_new(&f);
    test_must(tamis_seq_expect(f.session, seq, ids, n, &err), &err, "expect");
    test_feed(&f, seq, ids + n, N_MORE, 5, seen);
    assert_int_equal(c->n_loaded, f.info->num_hidden_layers);
    test_engine_close(&f);
}

static void carry(const char *dir, tamis_profile profile, tamis_dtype dtype, int32_t n)
{
    test_rng rng = test_rng_start(dir, 94);
    char *folder = test_temp_dir_make();
    test_engine e = open_profile(dir, profile, dtype);
    const int32_t vocab = e.info->vocab_size;
    int32_t ids[MAX_LEN];
    random_ids(&rng, vocab, ids, MAX_LEN);
    float *want = test_logits_of(&e, ids, n + N_MORE, 150);
    float *seen = calloc((size_t)(N_MORE * vocab), sizeof *seen);
    test_file_connector from = {.folder = folder, .seq = test_seq_new(&e)};
    test_file_connector to = {.folder = folder, .seq = -1};
    set_connector(&e, &from);
    test_feed(&e, from.seq, ids, n, 75, NULL);
    receive(&e, &to, ids, n, seen);
    test_assert_same_bits(seen, want + (int64_t)n * vocab, N_MORE, vocab, "carried");
    free(want);
    free(seen);
    test_engine_close(&e);
    test_temp_dir_remove(folder);
}

/* Codes and scales of every layout that a session keeps. */
static void packed_rows_are_carried(void **state)
{
    (void)state;
    carry(V4_DIR, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, 203);
    carry(GLM5_DIR, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8, 150);
    if (TEST_IS_SANITIZED)
        return;
    carry(V4_DIR, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, 130);
    carry(V32_DIR, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, 150);
}

/* ---------------------------------------------------------------- views */

/* The first n rows of a block or slot are numbers, most of them not zero, in the view's format. */
static void assert_holds_numbers(const tamis_cache_view *view, int64_t block, int32_t n)
{
    const int64_t n_values = (int64_t)n * view->format.num_values;
    float *x = calloc((size_t)n_values, sizeof *x);
    const tamis_rows rows = {.format = view->format,
                             .data = view->base + block * view->stride,
                             .row_stride = view->row_bytes};
    int64_t n_zeros = 0;
    assert_int_equal(view->format.row_bytes, view->row_bytes);
    tamis_rows_decode(&rows, 0, n, x, view->format.num_values);
    for (int64_t i = 0; i < n_values; i++) {
        assert_true(x[i] > -1e4f && x[i] < 1e4f);
        n_zeros += x[i] == 0.0f;
    }
    assert_true(n_zeros < n_values / 2);
    free(x);
}

static void check_views(const char *dir, tamis_profile profile)
{
    enum { N = 140 };
    test_rng rng = test_rng_start(dir, 95);
    test_engine e = open_profile(dir, profile, TAMIS_DTYPE_AUTO);
    int32_t ids[MAX_LEN], n_blocks = 0;
    random_ids(&rng, e.info->vocab_size, ids, MAX_LEN);
    const int32_t seq = test_seq_new(&e);
    test_feed(&e, seq, ids, N, 0, NULL);
    const int32_t *table = tamis_session_block_table(e.session, seq, &n_blocks);
    for (int32_t layer = 0; layer < tamis_session_num_layers(e.session); layer++)
        for (int32_t i = 0; i < tamis_session_num_caches(e.session, layer); i++) {
            const tamis_cache_view view = tamis_session_get_cache(e.session, layer, i);
            const int32_t n_written = view.is_ring ? N : N / view.tokens_per_row;
            assert_holds_numbers(&view, view.is_ring ? seq : table[0],
                                 n_written < view.rows ? n_written : view.rows);
        }
    test_engine_close(&e);
}

static void views_tell_how_rows_are_coded(void **state)
{
    (void)state;
    for (int p = 0; p < TAMIS_NUM_PROFILES; p++) {
        check_views(V4_DIR, (tamis_profile)p);
        check_views(GLM5_DIR, (tamis_profile)p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows_are_carried),
        cmocka_unit_test(views_tell_how_rows_are_coded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
