/*
 * V4 in the profiles official and ascend against the slow reference (support/profile_ref_v4.h):
 * attention, experts, streams and head of the golden folders, every stage from the engine's own
 * inputs. Dimensions are those of the folders, so groups of 32, 64 and 128 end short in most.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden.h"
#include "support/layer_rig.h"
#include "support/profile_ref_v4_run.h"

#include <math.h>
#include <stdlib.h>

/* In the caches that a profile has; TAMIS_DTYPE_AUTO is the first. */
static void check_profiles(const char *dir)
{
    test_golden *golden = test_golden_open(dir, "golden.safetensors");
    int64_t n;
    int32_t *ids = test_golden_ids(golden, "ids", &n);
    assert_true(n >= PV4_TOKENS);
    pv4_check_folder_attention(dir, dir, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, ids);
    pv4_check_folder_attention(dir, dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, ids);
    pv4_check_folder_attention(dir, dir, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, ids);
    pv4_check_folder_model(dir, dir, TAMIS_PROFILE_OFFICIAL, ids);
    pv4_check_folder_model(dir, dir, TAMIS_PROFILE_ASCEND, ids);
    free(ids);
    test_golden_close(golden);
}

static void test_v4_flash_bf16(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-flash-bf16");
}
static void test_v4_flash_fp8(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-flash-fp8");
}
static void test_v4_pro_fp8(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-pro-fp8");
}
static void test_v4_official(void **state)
{
    (void)state;
    check_profiles("tests/golden/v4-official");
}

/* ---------------------------------------------------------------- odd dimensions, wide inputs */

/*
 * What the folders do not reach: dimensions that fit no group, a number of index heads whose root
 * is no power of two, F32 scales of FP8 blocks, and inputs whose channels differ so much that the
 * small ones are subnormal FP8 numbers beside the large ones: there the group of a scale shows.
 */
static tamis_dsa_config odd_config(int32_t ratio)
{
    tamis_dsa_config c = test_odd_config(ratio);
    c.hidden_size = 170;
    c.num_heads = 2;
    c.head_dim = 90;
    c.o_groups = 2;
    c.q_lora_rank = 140;
    c.o_lora_rank = 75;
    c.index_n_heads = 6;
    c.index_head_dim = 16;
    return c;
}

static void make_fp8(test_layer *layer, tamis_matrix *w, test_rng *rng)
{
    *w = test_random_matrix(&layer->owned, TAMIS_DTYPE_F8_E4M3, w->rows, w->cols, 128, rng);
}

/* Zeros in the columns of the large inputs: outputs are then made of the small ones. */
static void blank_large_columns(const tamis_matrix *w)
{
    uint8_t *data = (uint8_t *)(uintptr_t)w->data; /* the layer's own memory */
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c++)
            if (c / 32 % 3 == 0)
                data[r * w->row_bytes + c] = 0;
}

static test_layer odd_layer(int32_t ratio, bool is_fp8, test_rng *rng)
{
    const tamis_dsa_config config = odd_config(ratio);
    test_layer layer = test_layer_random(&config, TAMIS_DTYPE_BF16, rng);
    tamis_dsa_weights *w = &layer.layer.weights;
    if (!is_fp8)
        return layer;
    make_fp8(&layer, &w->wq_a, rng);
    make_fp8(&layer, &w->wq_b, rng);
    make_fp8(&layer, &w->wkv, rng);
    make_fp8(&layer, &w->wo_a, rng);
    make_fp8(&layer, &w->wo_b, rng);
    if (ratio == 4)
        make_fp8(&layer, &w->index_wq_b, rng);
    blank_large_columns(&w->wq_a);
    blank_large_columns(&w->wkv);
    return layer;
}

/* BF16 values; every third run of 32 channels is smaller by 2^14 or 2^22. */
static float *wide_inputs(int32_t n, int32_t hidden, test_rng *rng)
{
    float *x = test_inputs(n, hidden, rng);
    for (int64_t i = 0; i < (int64_t)n * hidden; i++) {
        const int64_t run = i % hidden / 32 % 3;
        x[i] = (float)lowbit_bf16(ldexp((double)x[i], run == 0 ? 0 : run == 1 ? -14 : -22));
    }
    return x;
}

static void check_odd(int32_t ratio, bool is_fp8, tamis_profile profile, tamis_dtype dtype,
                      test_rng *rng)
{
    test_layer layer = odd_layer(ratio, is_fp8, rng);
    pv4_report report = {.folder = is_fp8 ? "odd FP8 layer" : "odd BF16 layer",
                         .profile = tamis_profile_name(profile),
                         .layer = ratio};
    float *x = wide_inputs(PV4_TOKENS, layer.layer.config.hidden_size, rng);
    uint8_t *want = pv4_wanted(&layer.layer.config);
    v4_stages s = v4_stages_run(&layer.layer, profile, dtype, x, PV4_TOKENS, 100);
    pv4_check_attention(&report, &layer.layer, profile, x, &s, want);
    assert_true(pv4_report_worst_share(&report) < 0.10); /* of some 200 values only */
    v4_stages_free(&s);
    test_layer_free(&layer);
    free(want);
    free(x);
}

static void odd_layers_and_wide_inputs(void **state)
{
    (void)state;
    static const int32_t ratios[] = {0, 4, 128};
    test_rng rng = test_rng_start("odd_layers_and_wide_inputs", 31);
    for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++)
        for (int is_fp8 = 0; is_fp8 < 2; is_fp8++) {
            check_odd(ratios[r], is_fp8, TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_AUTO, &rng);
            check_odd(ratios[r], is_fp8, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_AUTO, &rng);
            check_odd(ratios[r], is_fp8, TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3, &rng);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v4_flash_bf16),
        cmocka_unit_test(test_v4_flash_fp8),
        cmocka_unit_test(test_v4_pro_fp8),
        cmocka_unit_test(test_v4_official),
        cmocka_unit_test(odd_layers_and_wide_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
