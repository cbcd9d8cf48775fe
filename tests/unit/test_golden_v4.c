/*
 * The engine with f32 caches against what transformers computed for the golden folders: logits at
 * every position, greedy continuation, and every stage of every layer at the debug positions, so
 * that a fault names its layer and stage. Claim: 5e-5 (tests/golden/README-v4.md).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "attention/dsa/dsa_internal.h"
#include "engine/session_internal.h"
#include "model/v4.h"
#include "support/golden_compare.h"

#include <stdio.h>

#define CLAIM 5e-5

static const struct {
    const char *name;
    tamis_tap_stage stage;
} stages[] = {{"attn_in", TAMIS_TAP_ATTN_IN},
              {"attn_out", TAMIS_TAP_ATTN_OUT},
              {"ffn_in", TAMIS_TAP_FFN_IN},
              {"ffn_out", TAMIS_TAP_FFN_OUT},
              {"hidden", TAMIS_TAP_HIDDEN}};

/* Every row of a paged cache, read through the sequence's block table. */
static void check_rows(const test_golden_run *f, int32_t layer, const char *stage,
                       tamis_dsa_role role, double *worst)
{
    const char *name = test_golden_name(layer, stage);
    const tamis_dsa_caches *caches = tamis_v4_caches(tamis_session_net(f->engine.session));
    const int32_t per_block = tamis_dsa_caches_rows_per_block(caches, layer, role);
    if (!test_golden_has(f->golden, name)) {
        assert_int_equal(per_block, 0);
        return;
    }
    const float *golden = test_golden_f32(f->golden, name, NULL);
    const int64_t n_rows = test_golden_dim(f->golden, name, 0);
    const int64_t width = test_golden_dim(f->golden, name, 1);
    int32_t n_blocks;
    const int32_t *table = tamis_session_block_table(f->engine.session, f->seq, &n_blocks);
    assert_int_equal(n_rows, f->n / tamis_model_layer_ratio(f->engine.model, layer));
    for (int32_t j = 0; j < n_rows; j++) {
        assert_true(per_block > 0 && j / per_block < n_blocks);
        const float *row =
            tamis_dsa_caches_row(caches, layer, role, table[j / per_block], j % per_block);
        test_golden_row(f, layer, stage, j, row, golden + j * width, width, worst);
    }
}

static void check_folder(const char *dir)
{
    test_golden_run f = test_golden_run_open(dir, CLAIM);
    double worst = 0, worst_rows = 0;
    for (int32_t layer = 0; layer < f.engine.info->num_hidden_layers; layer++) {
        for (size_t s = 0; s < sizeof stages / sizeof *stages; s++)
            test_golden_stage(&f, layer, stages[s].name, stages[s].stage, &worst);
        if (tamis_model_layer_ratio(f.engine.model, layer) == 4)
            test_golden_topk(&f, layer);
        test_golden_experts(&f, layer, &worst);
        check_rows(&f, layer, "ckv", TAMIS_DSA_CKV, &worst_rows);
        check_rows(&f, layer, "ikeys", TAMIS_DSA_INDEX_KEY, &worst_rows);
    }
    printf("%s: stages within %.2e at %lld positions, cache rows within %.2e\n", dir, worst,
           (long long)f.n_pos, worst_rows);
    test_golden_logits(&f);
    test_golden_greedy(&f);
    test_golden_run_close(&f);
}

static void test_v4_flash_bf16(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-flash-bf16");
}
static void test_v4_flash_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-flash-fp8");
}
static void test_v4_pro_fp8(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-pro-fp8");
}
static void test_v4_official(void **state)
{
    (void)state;
    check_folder("tests/golden/v4-official");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v4_flash_bf16),
        cmocka_unit_test(test_v4_flash_fp8),
        cmocka_unit_test(test_v4_pro_fp8),
        cmocka_unit_test(test_v4_official),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
