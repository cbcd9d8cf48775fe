/*
 * Folders with an MTP block, without one, with half of one, with another kind of drafter: what is
 * bound, refused and listed, what a session takes for it, and damaged weights found by name.
 */
#include "core/mem.h"
#include "engine/session_internal.h"
#include "support/mtp_run.h"
#include "weights_test.h"

#define FLASH_BF16 "tests/golden/v4-flash-bf16"
#define FLASH_FP8  "tests/golden/v4-flash-fp8"
#define V32_FP8    "tests/golden/v32-fp8"
#define GLM52_FP8  "tests/golden/glm52-fp8"

/* ---------------------------------------------------------------- binding */

static bool is_of_block(const test_items *items, const char *name)
{
    int layer;
    if (items->config.family == TAMIS_FAMILY_DEEPSEEK_V4)
        return strncmp(name, "mtp.0.", 6) == 0;
    return sscanf(name, "model.layers.%d.", &layer) == 1 &&
           layer == items->config.num_hidden_layers;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Every tensor of the block in turn under another name. Scales and experts in the middle are bound
 * like those of main layers (test_weights_damage). */
static void test_half_a_block(void **state)
{
    (void)state;
    static const char *const dirs[] = {FLASH_FP8, V32_FP8, GLM52_FP8};
    for (int d = 0; d < 3; d++) {
        test_items items = test_items_read(dirs[d]);
        int n_tried = 0;
        for (int i = 0; i < items.n; i++) {
            test_item *item = &items.items[i];
            char name[256];
            if (!is_of_block(&items, item->name) || ends_with(item->name, "scale") ||
                ends_with(item->name, "scale_inv") || strstr(item->name, ".embed_tokens.") ||
                strstr(item->name, ".head.") ||
                (strstr(item->name, ".experts.") && !strstr(item->name, ".experts.7.")))
                continue;
            snprintf(name, sizeof name, "%s", item->name);
            snprintf(item->name, sizeof item->name, "elsewhere");
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, "is missing");
            snprintf(item->name, sizeof item->name, "%s", name);
            n_tried++;
        }
        assert_true(n_tried > 25);
        test_items_free(&items);
    }
}

/* The whole block away, or other numbers of blocks in the config: the main model stays. */
static void test_whole_block(void **state)
{
    (void)state;
    static const char *const dirs[] = {FLASH_FP8, V32_FP8, GLM52_FP8};
    for (int d = 0; d < 3; d++) {
        const uint64_t digest = test_digest_of(dirs[d], NULL);
        test_items items = test_items_read(dirs[d]);
        for (int32_t n = 0; n < 3; n++) {
            test_bound b = test_bind_ok(dirs[d], &items.config);
            assert_int_equal(b.weights->n_mtp, 1);
            test_unbind(&b);
            items.config.num_nextn_predict_layers = n;
        }
        for (int i = items.n - 1; i >= 0; i--)
            if (is_of_block(&items, items.items[i].name))
                test_items_drop(&items, &items.items[i]);
        char *dir = test_temp_dir_make();
        test_items_write(&items, dir);
        test_bound b = test_bind_ok(dir, &items.config);
        assert_int_equal(b.weights->mtp_kind, TAMIS_MTP_NONE);
        assert_int_equal(b.weights->n_mtp, 0);
        assert_true(test_weights_digest(b.weights, &b.config) == digest);
        test_unbind(&b);
        test_temp_dir_remove(dir);
        test_items_free(&items);
    }
}

/* Copies of embedding and head: V3.2's are used if they are there, V4's (of other tools) never;
 * blocks after the first are not run. */
static void test_copies_and_further_blocks(void **state)
{
    (void)state;
    static const char *const names[] = {"mtp.0.emb.tok_emb.weight", "mtp.0.head.weight",
                                        "mtp.1.enorm.weight"};
    test_items items = test_items_read(FLASH_FP8);
    for (int i = 0; i < 3; i++)
        test_items_add(&items, names[i], "I8", 1, (int64_t[]){2}, "ab", 2);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    for (int i = 0; i < 3; i++)
        assert_false(tamis_checkpoint_find(b.checkpoint, names[i])->is_used);
    assert_ptr_equal(b.weights->mtp.embed.data, b.weights->embed.data);
    assert_ptr_equal(b.weights->mtp.head.data, b.weights->head.data);
    test_unbind(&b);
    test_items_free(&items);

    items = test_items_read(V32_FP8);
    test_items_drop(&items, test_items_find(&items, "model.layers.3.embed_tokens.weight"));
    test_items_add(&items, "model.layers.4.enorm.weight", "I8", 1, (int64_t[]){2}, "ab", 2);
    test_items_write(&items, dir);
    b = test_bind_ok(dir, &items.config);
    assert_ptr_equal(b.weights->mtp.embed.data, b.weights->embed.data);
    assert_true(b.weights->mtp.head.data != b.weights->head.data);
    assert_false(tamis_checkpoint_find(b.checkpoint, "model.layers.4.enorm.weight")->is_used);
    test_unbind(&b);
    test_items_free(&items);
    test_temp_dir_remove(dir);
}

/* A block with a compressor would be another model. */
static void test_ratio_of_the_block(void **state)
{
    (void)state;
    test_items items = test_items_read(FLASH_FP8);
    items.config.compress_ratios[5] = 4;
    test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, "compress_ratios[5] is 4", "MTP block");
    test_items_free(&items);
}

/* ---------------------------------------------------------------- sessions */

/* FLASH_BF16 with a DSpark drafter's tensor beside it. */
static char *dspark_folder(void)
{
    char *dir = test_temp_dir_make();
    test_items items = test_items_read(FLASH_BF16);
    test_items_add(&items, "mtp.0.main_proj.weight", "BF16", 1, (int64_t[]){2}, "abcd", 4);
    test_items_add(&items, "mtp.0.attn_norm.weight", "BF16", 1, (int64_t[]){2}, "abcd", 4);
    test_items_write(&items, dir);
    test_file_copy(FLASH_BF16, dir, "config.json");
    test_items_free(&items);
    return dir;
}

static void expect_unsupported(const char *dir, const char *drafter, const char *part)
{
    tamis_session_params params = test_mtp_params(TAMIS_DTYPE_F32, 64, 1);
    tamis_session *session;
    tamis_model *model;
    tamis_memory_plan plan;
    tamis_error err;
    test_must(tamis_model_open(&model, dir, &err), &err, dir);
    assert_string_equal(tamis_model_get_info(model)->drafter, drafter);
    assert_int_equal(tamis_session_open(&session, model, &params, &err), TAMIS_STATUS_UNSUPPORTED);
    assert_null(session);
    test_expect_part(err.text, part);
    test_expect_part(err.text, "allowed: ");
    assert_int_equal(tamis_session_plan_memory(model, &params, &plan, &err),
                     TAMIS_STATUS_UNSUPPORTED);
    params.mtp = false; /* the main model runs */
    test_must(tamis_session_open(&session, model, &params, &err), &err, "without the block");
    tamis_session_close(&session);
    tamis_model_close(&model);
}

static void test_folders_without_a_block(void **state)
{
    (void)state;
    char *dspark = dspark_folder();
    expect_unsupported(FLASH_BF16, "none", "no MTP block");
    expect_unsupported("tests/golden/glm5-bf16", "none", "no MTP block");
    expect_unsupported(dspark, "dspark", "DSpark");
    test_temp_dir_remove(dspark);
}

static void test_inspection_names_dspark(void **state)
{
    (void)state;
    char *dir = dspark_folder();
    const tamis_inspection *seen;
    tamis_model *model;
    tamis_error err;
    test_must(tamis_model_open(&model, dir, &err), &err, dir);
    test_must(tamis_model_inspect(model, &seen, &err), &err, "inspect");
    const tamis_tensor_group *last = &seen->groups[seen->n_groups - 1];
    assert_string_equal(last->name, "dspark");
    assert_int_equal(last->n_tensors, 2);
    assert_false(last->is_used);
    assert_int_equal(seen->n_unused, 2);
    assert_string_equal(seen->unused[0], "mtp.0.main_proj.weight");
    tamis_model_close(&model);
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- memory */

static size_t in_use(void)
{
    size_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

static tamis_memory_plan plan_of(const tamis_model *model, const tamis_session_params *params)
{
    tamis_memory_plan plan;
    tamis_error err;
    test_must(tamis_session_plan_memory(model, params, &plan, &err), &err, "plan");
    return plan;
}

/* What is taken is what was planned, with the block and without; in between it costs something. */
static void test_memory(void **state)
{
    (void)state;
    static const char *const dirs[] = {FLASH_FP8, V32_FP8, GLM52_FP8};
    for (int d = 0; d < 3; d++) {
        tamis_error err;
        tamis_model *model;
        uint64_t total[2];
        test_must(tamis_model_open(&model, dirs[d], &err), &err, dirs[d]);
        for (int mtp = 0; mtp < 2; mtp++) {
            tamis_session *session;
            tamis_session_params params = test_mtp_params(TAMIS_DTYPE_BF16, 300, 5);
            params.max_num_logits = 1; /* fewer than rows that may be drafted from */
            params.mtp = mtp == 1;
            const tamis_memory_plan plan = plan_of(model, &params);
            const size_t before = in_use();
            test_must(tamis_session_open(&session, model, &params, &err), &err, "open");
            const int64_t taken = (int64_t)(in_use() - before);
            const int64_t planned = (int64_t)(plan.total - plan.weights_widened);
            if (taken - planned > 16384 || planned - taken > 16384)
                fail_msg("%s: planned %lld bytes, took %lld", dirs[d], (long long)planned,
                         (long long)taken);
            total[mtp] = plan.total;
            tamis_session_close(&session);
            assert_int_equal(in_use(), before);
        }
        assert_true(total[1] > total[0] + 10000);
        tamis_model_close(&model);
    }
}

/* A session without the block takes as much from a folder that has one as from one that has not. */
static void test_memory_without_the_block(void **state)
{
    (void)state;
    const tamis_session_params params = test_session_params(TAMIS_DTYPE_BF16, 300);
    tamis_model *models[2];
    tamis_error err;
    char *dir = test_temp_dir_make();
    test_items items = test_items_read(FLASH_FP8);
    for (int i = items.n - 1; i >= 0; i--)
        if (is_of_block(&items, items.items[i].name))
            test_items_drop(&items, &items.items[i]);
    test_items_write(&items, dir);
    test_items_free(&items);
    test_file_copy(FLASH_FP8, dir, "config.json");
    test_must(tamis_model_open(&models[0], FLASH_FP8, &err), &err, "with a block");
    test_must(tamis_model_open(&models[1], dir, &err), &err, "without one");
    const tamis_memory_plan a = plan_of(models[0], &params), b = plan_of(models[1], &params);
    assert_int_equal(a.total - a.weights_widened, b.total - b.weights_widened);
    assert_int_equal(a.cache_bytes_per_token, b.cache_bytes_per_token);
    tamis_model_close(&models[0]);
    tamis_model_close(&models[1]);
    test_temp_dir_remove(dir);
}

/* ---------------------------------------------------------------- damaged weights */

typedef struct damage {
    const char *dir, *tensor;
    size_t at;
    uint8_t bytes[2];
    int32_t where;
} damage;

/* The main model's step is fine; the block's run says in which part it is not. */
static void expect_fault(const damage *d)
{
    static const int32_t ids[] = {3, 4, 5, 6, 7};
    const tamis_session_params params = test_mtp_params(TAMIS_DTYPE_F32, 64, 8);
    char *dir = test_temp_dir_make();
    test_items items = test_items_read(d->dir);
    memcpy(test_items_find(&items, d->tensor)->data + d->at, d->bytes, 2);
    test_items_write(&items, dir);
    test_items_free(&items);
    test_file_copy(d->dir, dir, "config.json");
    test_engine engine = test_engine_open(dir, &params);
    const int32_t rows[] = {0, 3}, seq = test_seq_new(&engine);
    float *logits = calloc(2 * (size_t)engine.info->vocab_size, sizeof *logits);
    test_feed(&engine, seq, ids, 4, 0, NULL);
    const tamis_net_draft draft = {.over_step = true,
                                   .next_tokens = ids + 1,
                                   .n_tokens = 4,
                                   .rows = rows,
                                   .n_rows = 2,
                                   .logits = logits};
    const int32_t where = tamis_net_draft_forward(tamis_session_net(engine.session), &draft);
    if (where != d->where)
        fail_msg("%s: fault in %d instead of %d", d->tensor, (int)where, (int)d->where);
    tamis_weight_fault fault;
    assert_true(
        tamis_weights_find_fault(engine.model->checkpoint, &engine.model->config, where, &fault));
    assert_string_equal(fault.tensor, d->tensor);
    free(logits);
    test_engine_close(&engine);
    test_temp_dir_remove(dir);
}

static void test_damaged_blocks(void **state)
{
    (void)state;
    static const damage cases[] = {
        {FLASH_FP8, "mtp.0.e_proj.weight", 100, {0x7f, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.h_proj.weight", 100, {0x7f, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.enorm.weight", 4, {0xc0, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.hnorm.weight", 4, {0x80, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.norm.weight", 4, {0xc0, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.hc_head_base", 2, {0xc0, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.hc_ffn_scale", 2, {0xc0, 0x7f}, 5},
        {FLASH_FP8, "mtp.0.attn.wo_b.weight", 7, {0xff, 0xff}, 5},
        {FLASH_FP8, "mtp.0.ffn.gate.bias", 2, {0xc0, 0x7f}, 5},
        {FLASH_FP8, "embed.weight", 2 * 96 * 7 + 4, {0xc0, 0x7f}, TAMIS_NET_FAULT_ENDS},
        {FLASH_FP8, "head.weight", 4, {0xc0, 0x7f}, TAMIS_NET_FAULT_ENDS},
        {V32_FP8, "model.layers.3.eh_proj.weight", 4, {0xc0, 0x7f}, 3},
        {V32_FP8, "model.layers.3.enorm.weight", 4, {0xc0, 0x7f}, 3},
        {V32_FP8, "model.layers.3.hnorm.weight", 4, {0xc0, 0x7f}, 3},
        {V32_FP8, "model.layers.3.shared_head.norm.weight", 4, {0x80, 0x7f}, 3},
        {V32_FP8, "model.layers.3.embed_tokens.weight", 2 * 160 * 7, {0xc0, 0x7f}, 3},
        {V32_FP8, "model.layers.3.shared_head.head.weight", 4, {0xc0, 0x7f}, 3},
        {V32_FP8, "model.layers.3.self_attn.indexer.wk.weight", 4, {0x7f, 0x7f}, 3},
        {GLM52_FP8, "model.layers.6.mlp.gate.weight", 4, {0xc0, 0x7f}, 6},
        {GLM52_FP8, "model.embed_tokens.weight", 2 * 160 * 7, {0xc0, 0x7f}, TAMIS_NET_FAULT_ENDS},
        {GLM52_FP8, "lm_head.weight", 4, {0xc0, 0x7f}, TAMIS_NET_FAULT_ENDS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_fault(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_a_block),
        cmocka_unit_test(test_whole_block),
        cmocka_unit_test(test_copies_and_further_blocks),
        cmocka_unit_test(test_ratio_of_the_block),
        cmocka_unit_test(test_folders_without_a_block),
        cmocka_unit_test(test_inspection_names_dspark),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_without_the_block),
        cmocka_unit_test(test_damaged_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
