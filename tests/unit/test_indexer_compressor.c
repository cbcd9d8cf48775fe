/*
 * Where the compressor rounds: pooling, norm and rotation by their kernels, each BF16 step of the
 * profile in between, the row's bytes by the reference - for compressed rows and for index keys.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "attention/common/compressor.h"
#include "attention/common/indexer.h"
#include "support/lowbit_ref.h"
#include "support/rng.h"

enum { RATIO = 4, DIM = 128, ROPE = 64, WIDTH = 2 * DIM, NUM_TOKENS = 8, NUM_ROWS = 2, ROW = 512 };

typedef struct variant {
    tamis_profile profile;
    bool is_index, rounds_pooled, rounds_normed;
    tamis_row_layout layout;
    lowbit_layout ref_layout;
    int32_t n_plain;
} variant;

static const variant variants[] = {
    {TAMIS_PROFILE_EXACT, false, false, false, TAMIS_ROWS_F32, LOWBIT_ROW_F32, 0},
    {TAMIS_PROFILE_EXACT, true, false, false, TAMIS_ROWS_BF16, LOWBIT_ROW_BF16, 0},
    {TAMIS_PROFILE_OFFICIAL, false, true, true, TAMIS_ROWS_V4_FP8, LOWBIT_ROW_V4_584, ROPE},
    {TAMIS_PROFILE_OFFICIAL, true, true, true, TAMIS_ROWS_INDEX_FP4, LOWBIT_ROW_INDEX_FP4, 0},
    {TAMIS_PROFILE_ASCEND, false, false, false, TAMIS_ROWS_BF16, LOWBIT_ROW_BF16, 0},
    {TAMIS_PROFILE_ASCEND, false, false, false, TAMIS_ROWS_V4_A5, LOWBIT_ROW_V4_640, ROPE},
    {TAMIS_PROFILE_ASCEND, true, false, false, TAMIS_ROWS_INDEX_INT8, LOWBIT_ROW_INDEX_INT8, 0}};

/* A request of 8 new tokens: row 1 pools positions 0 to 7. */
typedef struct setting {
    float state[NUM_TOKENS * 2 * WIDTH], norm[DIM], cos[ROPE / 2], sin[ROPE / 2];
    uint8_t rows[NUM_ROWS * ROW];
    int32_t query_start[2], start_pos[1], seq_len[1], slot[1], table[1];
    tamis_compressor_weights weights;
    tamis_cache cache;
    tamis_step step;
    tamis_compressor compressor;
} setting;

static void set_up(setting *s, test_rng *rng, const variant *v)
{
    memset(s, 0, sizeof *s);
    test_rng_fill_normal(rng, s->state, sizeof s->state / sizeof(float));
    test_rng_fill_normal(rng, s->norm, DIM);
    for (int i = 0; i < ROPE / 2; i++) {
        const float angle = test_rng_float(rng, 0, 6);
        s->cos[i] = cosf(angle);
        s->sin[i] = sinf(angle);
    }
    s->query_start[1] = s->seq_len[0] = NUM_TOKENS;
    s->weights.norm = s->norm;
    s->cache = (tamis_cache){.desc = {.rows = NUM_ROWS}, .base = s->rows, .row_bytes = ROW};
    assert_int_equal(tamis_row_format_make(&s->cache.desc.format, v->layout, DIM, v->n_plain, NULL),
                     TAMIS_STATUS_OK);
    s->step = (tamis_step){.query_start = s->query_start,
                           .start_pos = s->start_pos,
                           .seq_len = s->seq_len,
                           .slot = s->slot,
                           .table = s->table,
                           .table_width = 1};
    s->compressor = (tamis_compressor){.weights = &s->weights,
                                       .ratio = RATIO,
                                       .head_dim = DIM,
                                       .rope_dim = ROPE,
                                       .eps = 1e-6f,
                                       .state = s->state,
                                       .out = &s->cache,
                                       .profile = v->profile,
                                       .is_index = v->is_index};
}

static void round_all(float *x)
{
    for (int i = 0; i < DIM; i++)
        x[i] = (float)lowbit_bf16((double)x[i]);
}

/* Row 1: first halves of tokens 0 to 3, second halves of 4 to 7. */
static void expected_row(const setting *s, const variant *v, double *out)
{
    const tamis_kernels *k = tamis_kernels_current();
    const float *value[NUM_TOKENS], *score[NUM_TOKENS];
    float row[DIM];
    for (int t = 0; t < NUM_TOKENS; t++) {
        value[t] = s->state + (int64_t)t * 2 * WIDTH + t / RATIO * DIM;
        score[t] = value[t] + WIDTH;
    }
    k->pool(row, value, score, NUM_TOKENS, DIM);
    if (v->rounds_pooled)
        round_all(row);
    k->rmsnorm(row, row, s->norm, DIM, 1e-6f);
    if (v->rounds_normed)
        round_all(row);
    k->rope(row + DIM - ROPE, s->cos, s->sin, ROPE / 2, false);
    if (v->profile != TAMIS_PROFILE_EXACT)
        round_all(row);
    if (v->is_index)
        tamis_indexer_rotate_key(k, v->profile, TAMIS_INDEX_V4, row, DIM);
    for (int i = 0; i < DIM; i++)
        out[i] = (double)row[i];
}

static void test_rounding_points(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("compressor", 61);
    for (size_t i = 0; i < 6 * sizeof variants / sizeof *variants; i++) {
        const variant *v = &variants[i / 6];
        const lowbit_row packed = lowbit_row_of(v->ref_layout, DIM, v->n_plain);
        uint8_t want[ROW] = {0};
        double values[DIM];
        float scratch[DIM];
        setting s;
        set_up(&s, &rng, v);
        expected_row(&s, v, values);
        lowbit_row_encode(want, &packed, values);
        assert_true(tamis_compressor_close_row(&s.compressor, tamis_kernels_current(), &s.step, 0,
                                               1, s.cos, s.sin, scratch));
        assert_memory_equal(s.rows + ROW, want, (size_t)packed.bytes);
        for (int at = 0; at < ROW; at++)
            assert_int_equal(s.rows[at], 0);
        s.state[3] = NAN;
        assert_false(tamis_compressor_close_row(&s.compressor, tamis_kernels_current(), &s.step, 0,
                                                1, s.cos, s.sin, scratch));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding_points)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
