/* Binding tensors to weights: spellings, number formats, values. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "weights_test.h"

#define FLASH_BF16 "tests/golden/v4-flash-bf16"
#define FLASH_FP8  "tests/golden/v4-flash-fp8"
#define PRO_FP8    "tests/golden/v4-pro-fp8"

/* ---------------------------------------------------------------- golden folders */

static void test_golden_folders(void **state)
{
    (void)state;
    static const char *const dirs[] = {FLASH_BF16, FLASH_FP8, PRO_FP8, "tests/golden/v4-official",
                                       "models/demo"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        test_bound b = test_bind_ok(dirs[i], NULL);
        uint64_t mapped = 0, in_memory = 0;
        assert_int_equal(b.weights->n_layers, b.config.num_hidden_layers);
        for (int32_t t = 0; t < tamis_checkpoint_num_tensors(b.checkpoint); t++) {
            const tamis_tensor *tensor = tamis_checkpoint_tensor(b.checkpoint, t);
            assert_true(tensor->is_used);
            mapped += tensor->bytes;
        }
        /* Vectors are copied, the rest is used in place. */
        assert_true(b.weights->mapped_bytes < mapped && b.weights->mapped_bytes > mapped / 2);
        in_memory = tamis_mem_in_use(TAMIS_MEM_WEIGHTS);
        assert_int_equal(b.weights->widened_bytes, in_memory);
        test_unbind(&b);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), 0);
        tamis_model_weights_free(&b.weights); /* NULL is fine */
    }
}

static void test_matrix_of_the_flash_folder(void **state)
{
    (void)state;
    test_bound b = test_bind_ok(FLASH_FP8, NULL);
    const tamis_layer_weights *layer = &b.weights->layers[2];
    const tamis_tensor *data = tamis_checkpoint_find(b.checkpoint, "layers.2.attn.wq_b.weight");
    const tamis_tensor *scale = tamis_checkpoint_find(b.checkpoint, "layers.2.attn.wq_b.scale");
    const tamis_matrix *w = &layer->dsa.weights.wq_b;
    assert_int_equal(w->dtype, TAMIS_DTYPE_F8_E4M3);
    assert_int_equal(w->rows, 256);
    assert_int_equal(w->cols, 64);
    assert_ptr_equal(w->data, data->data);
    assert_int_equal(w->row_bytes, 64);
    assert_ptr_equal(w->scale, scale->data);
    assert_int_equal(w->scale_dtype, TAMIS_DTYPE_F8_E8M0);
    assert_int_equal(w->block_rows, 128);
    assert_int_equal(w->block_cols, 128);
    assert_int_equal(w->scale_row_bytes, 1);
    w = &layer->moe.experts[7].w1;
    assert_int_equal(w->dtype, TAMIS_DTYPE_F4_E2M1);
    assert_int_equal(w->rows, 32);
    assert_int_equal(w->cols, 96);
    assert_int_equal(w->row_bytes, 48);
    assert_int_equal(w->block_rows, 1);
    assert_int_equal(w->block_cols, 32);
    assert_int_equal(w->scale_row_bytes, 3);
    w = &b.weights->embed;
    assert_int_equal(w->dtype, TAMIS_DTYPE_BF16);
    assert_null(w->scale);
    assert_int_equal(w->row_bytes, 2 * 96);
    assert_int_equal(layer->hc_attn.fn.dtype, TAMIS_DTYPE_F32);
    assert_int_equal(layer->dsa.config.compress_ratio, 4);
    /* Hash layers have a table and no bias, learned ones the opposite. */
    for (int32_t i = 0; i < 5; i++) {
        const tamis_moe_weights *moe = &b.weights->layers[i].moe;
        assert_int_equal(moe->tid2eid != NULL, i < 3);
        assert_int_equal(moe->bias != NULL, i >= 3);
    }
    assert_null(b.weights->layers[0].dsa.weights.compressor.ape);
    assert_null(b.weights->layers[3].dsa.weights.index_wq_b.data);
    test_unbind(&b);
}

/* ---------------------------------------------------------------- slow decode of every matrix */

static double slow_fp8(uint8_t b)
{
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const double magnitude =
        exponent == 0 ? mantissa * pow(2, -9) : (1 + mantissa / 8.0) * pow(2, exponent - 7);
    return b & 0x80 ? -magnitude : magnitude;
}

static double slow_fp4(uint8_t code)
{
    static const double magnitude[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

static void expect_slow_decode(test_bound *b, const char *base, const tamis_matrix *w)
{
    char name[256];
    float row[512];
    snprintf(name, sizeof name, "%s.weight", base);
    const tamis_tensor *data = tamis_checkpoint_find(b->checkpoint, name);
    snprintf(name, sizeof name, "%s.scale", base);
    const tamis_tensor *scale = tamis_checkpoint_find(b->checkpoint, name);
    assert_non_null(data);
    assert_non_null(scale);
    const bool is_fp4 = data->dtype == TAMIS_DTYPE_I8;
    const int64_t grid_cols = scale->shape[1];
    assert_true(w->cols <= 512);
    for (int64_t r = 0; r < w->rows; r++) {
        tamis_kernels_current()->expand_row(row, w, r);
        for (int64_t c = 0; c < w->cols; c++) {
            const uint8_t byte = data->data[is_fp4 ? r * (w->cols / 2) + c / 2 : r * w->cols + c];
            const double value =
                is_fp4 ? slow_fp4(c % 2 == 0 ? byte & 15 : byte >> 4) : slow_fp8(byte);
            const uint8_t power = is_fp4 ? scale->data[r * grid_cols + c / 32]
                                         : scale->data[r / 128 * grid_cols + c / 128];
            if ((double)row[c] != value * pow(2, power - 127))
                fail_msg("%s [%lld][%lld]: %g", base, (long long)r, (long long)c, (double)row[c]);
        }
    }
}

/* Partial edge blocks in rows and columns; the golden folders hold no NaN. */
static void test_slow_decode(void **state)
{
    (void)state;
    static const char *const dirs[] = {PRO_FP8, FLASH_FP8};
    for (int d = 0; d < 2; d++) {
        test_bound b = test_bind_ok(dirs[d], NULL);
        for (int32_t i = 0; i < b.weights->n_layers; i++) {
            const tamis_dsa_weights *attn = &b.weights->layers[i].dsa.weights;
            const tamis_moe_weights *moe = &b.weights->layers[i].moe;
            const struct {
                const char *rest;
                const tamis_matrix *w;
            } matrices[] = {
                {"attn.wq_a", &attn->wq_a},
                {"attn.wq_b", &attn->wq_b},
                {"attn.wkv", &attn->wkv},
                {"attn.wo_a", &attn->wo_a},
                {"attn.wo_b", &attn->wo_b},
                {"ffn.shared_experts.w1", &moe->shared.w1},
                {"ffn.shared_experts.w2", &moe->shared.w2},
                {"ffn.shared_experts.w3", &moe->shared.w3},
                {"ffn.experts.0.w1", &moe->experts[0].w1},
                {"ffn.experts.5.w2", &moe->experts[5].w2},
                {"ffn.experts.3.w3", &moe->experts[3].w3},
                {"attn.indexer.wq_b", &attn->index_wq_b},
            };
            for (size_t k = 0; k < sizeof matrices / sizeof *matrices; k++) {
                char base[128];
                if (matrices[k].w->data == NULL)
                    continue;
                snprintf(base, sizeof base, "layers.%d.%s", (int)i, matrices[k].rest);
                expect_slow_decode(&b, base, matrices[k].w);
            }
        }
        test_unbind(&b);
    }
}

static void test_e8m0_values(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0, 120, 127, 254, 255};
    static const double values[] = {0x1p-127, 0x1p-7, 1, 0x1p127, NAN};
    const uint8_t one[] = {0x38, 0x38, 0x38, 0x38, 0x38}; /* 1.0 in FP8 */
    const uint8_t nibbles[] = {0x22, 0x22, 0x22, 0x22, 0x22};
    for (int level = 0; level <= (int)tamis_cpu_level_available(); level++) {
        const tamis_kernels *kernels = tamis_kernels_for((tamis_cpu_level)level);
        for (int i = 0; i < 5; i++) {
            float row[2];
            const tamis_matrix fp8 = {TAMIS_DTYPE_F8_E4M3, 5, 1,   one, 1, bytes,
                                      TAMIS_DTYPE_F8_E8M0, 1, 128, 1, NULL};
            kernels->expand_row(row, &fp8, i);
            assert_true(isnan(values[i]) ? isnan(row[0]) : (double)row[0] == values[i]);
            const tamis_matrix fp4 = {TAMIS_DTYPE_F4_E2M1, 5, 2,  nibbles, 1, bytes,
                                      TAMIS_DTYPE_F8_E8M0, 1, 32, 1, NULL};
            kernels->expand_row(row, &fp4, i);
            assert_true(isnan(values[i]) ? isnan(row[1]) : (double)row[1] == values[i]);
        }
    }
}

/* ---------------------------------------------------------------- names */

typedef struct rename_rule {
    const char *official, *internal;
} rename_rule;

/* As transformers names its modules; applied to the rest behind "layers.N.", first match. */
static const rename_rule internal_rules[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"hc_attn_", "attn_hc."},
    {"hc_ffn_", "ffn_hc."},
    {"attn.wq_a.", "self_attn.q_a_proj."},
    {"attn.q_norm.", "self_attn.q_a_norm."},
    {"attn.wq_b.", "self_attn.q_b_proj."},
    {"attn.wkv.", "self_attn.kv_proj."},
    {"attn.kv_norm.", "self_attn.kv_norm."},
    {"attn.wo_a.", "self_attn.o_a_proj."},
    {"attn.wo_b.", "self_attn.o_b_proj."},
    {"attn.attn_sink", "self_attn.sinks"},
    {"attn.compressor.ape", "self_attn.compressor.position_bias"},
    {"attn.compressor.wkv.", "self_attn.compressor.kv_proj."},
    {"attn.compressor.wgate.", "self_attn.compressor.gate_proj."},
    {"attn.compressor.norm.", "self_attn.compressor.kv_norm."},
    {"attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."},
    {"attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."},
    {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"},
    {"attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."},
    {"attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."},
    {"attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."},
    {"ffn.gate.weight", "mlp.gate.weight"},
    {"ffn.gate.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn.gate.tid2eid", "mlp.gate.tid2eid"},
    {"ffn.shared_experts.w1.", "mlp.shared_experts.gate_proj."},
    {"ffn.shared_experts.w2.", "mlp.shared_experts.down_proj."},
    {"ffn.shared_experts.w3.", "mlp.shared_experts.up_proj."},
};

static void rename_model_tensor(char out[256], const char *name, const char *head)
{
    if (strcmp(name, "embed.weight") == 0)
        snprintf(out, 256, "model.embed_tokens.weight");
    else if (strcmp(name, "head.weight") == 0)
        snprintf(out, 256, "%s", head);
    else if (strncmp(name, "hc_head_", 8) == 0)
        snprintf(out, 256, "model.hc_head.hc_%s", name + 8);
    else
        snprintf(out, 256, "model.%s", name);
}

/* model.layers.N. + the official rest, as transformers 5.24 saves it. */
static void rename_saved(char out[256], const char *name)
{
    if (strncmp(name, "layers.", 7) != 0) {
        rename_model_tensor(out, name, "head.weight");
        return;
    }
    const char *kv_norm = strstr(name, ".attn.kv_norm.weight");
    if (kv_norm != NULL)
        snprintf(out, 256, "model.%.*s.attn.norm.weight", (int)(kv_norm - name), name);
    else
        snprintf(out, 256, "model.%s", name);
}

static void rename_internal(char out[256], const char *name)
{
    int layer, expert, w, used = 0;
    if (sscanf(name, "layers.%d.%n", &layer, &used) != 1 || used == 0) {
        rename_model_tensor(out, name, "lm_head.weight");
        return;
    }
    const char *rest = name + used;
    if (sscanf(rest, "ffn.experts.%d.w%d.%n", &expert, &w, &used) == 2) {
        static const char *const parts[] = {"", "gate_proj", "down_proj", "up_proj"};
        snprintf(out, 256, "model.layers.%d.mlp.experts.%d.%s.%s", layer, expert, parts[w],
                 rest + used);
        return;
    }
    for (size_t i = 0; i < sizeof internal_rules / sizeof *internal_rules; i++) {
        const size_t n = strlen(internal_rules[i].official);
        if (strncmp(rest, internal_rules[i].official, n) == 0) {
            snprintf(out, 256, "model.layers.%d.%s%s", layer, internal_rules[i].internal, rest + n);
            return;
        }
    }
    fail_msg("no rule for %s", name);
}

static void rename_all(test_items *items, void (*rename_fn)(char *, const char *))
{
    for (int i = 0; i < items->n; i++) {
        char name[256];
        if (strncmp(items->items[i].name, "mtp.", 4) == 0)
            continue;
        rename_fn(name, items->items[i].name);
        memcpy(items->items[i].name, name, sizeof name);
    }
}

static void test_three_spellings(void **state)
{
    (void)state;
    static const char *const dirs[] = {FLASH_BF16, FLASH_FP8, PRO_FP8};
    for (int d = 0; d < 3; d++) {
        const uint64_t digest = test_digest_of(dirs[d], NULL);
        test_items items = test_items_read(dirs[d]);
        assert_true(test_digest_of_items(&items) == digest);
        rename_all(&items, rename_saved);
        assert_true(test_digest_of_items(&items) == digest);
        test_items_free(&items);
        items = test_items_read(dirs[d]);
        rename_all(&items, rename_internal);
        assert_true(test_digest_of_items(&items) == digest);
        /* A digest that ignores its input would pass all this. */
        for (int i = 0; i < items.n; i++)
            if (strstr(items.items[i].name, "indexer.position_bias") != NULL) {
                items.items[i].data[5] ^= 1;
                break;
            }
        assert_true(test_digest_of_items(&items) != digest);
        test_items_free(&items);
    }
}

/* Scales under the name that transformers gives them. */
static void test_scale_names(void **state)
{
    (void)state;
    const uint64_t digest = test_digest_of(PRO_FP8, NULL);
    test_items items = test_items_read(PRO_FP8);
    rename_all(&items, rename_internal);
    for (int i = 0; i < items.n; i++) {
        char *name = items.items[i].name, *end = strstr(name, ".scale");
        if (end != NULL && end[6] == '\0' && strstr(name, "_hc.") == NULL)
            strcpy(end, ".weight_scale_inv");
    }
    test_items_find(&items, "model.layers.2.mlp.experts.0.gate_proj.weight_scale_inv");
    assert_true(test_digest_of_items(&items) == digest);
    test_items_free(&items);
}

/* E8M0 scales stored as U8 or I8 bytes, or widened to F32. */
static void test_scale_dtypes(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"U8", "I8", "F32"};
    const uint64_t digest = test_digest_of(PRO_FP8, NULL);
    for (int d = 0; d < 3; d++) {
        test_items items = test_items_read(PRO_FP8);
        for (int i = 0; i < items.n; i++) {
            test_item *item = &items.items[i];
            if (strcmp(item->dtype, "F8_E8M0") != 0)
                continue;
            float *wide = malloc((item->bytes + 1) * sizeof *wide);
            assert_non_null(wide);
            for (size_t k = 0; k < item->bytes; k++)
                wide[k] = (float)pow(2, item->data[k] - 127);
            if (d == 2)
                test_item_set(item, "F32", wide, item->bytes * sizeof *wide);
            else
                strcpy(item->dtype, dtypes[d]);
            free(wide);
        }
        assert_true(test_digest_of_items(&items) == digest);
        test_items_free(&items);
    }
}

/* BF16 tensors widened to F32 have the same values; so have vectors stored as F16. */
static void test_float_dtypes(void **state)
{
    (void)state;
    const uint64_t digest = test_digest_of(FLASH_BF16, NULL);
    test_items items = test_items_read(FLASH_BF16);
    for (int i = 0; i < items.n; i++) {
        test_item *item = &items.items[i];
        if (strcmp(item->dtype, "BF16") != 0)
            continue;
        const size_t n = item->bytes / 2;
        float *wide = malloc((n + 1) * sizeof *wide);
        assert_non_null(wide);
        tamis_kernels_current()->widen(wide, item->data, TAMIS_DTYPE_BF16, (int64_t)n);
        test_item_set(item, "F32", wide, n * sizeof *wide);
        free(wide);
    }
    assert_true(test_digest_of_items(&items) == digest);
    /* Values that F16 holds exactly, in a vector and in a matrix. */
    static const char *const names[] = {"layers.1.attn_norm.weight", "layers.1.hc_attn_fn",
                                        "layers.1.attn.wq_a.weight"};
    uint64_t digests[2];
    for (int k = 0; k < 3; k++) {
        test_item *item = test_items_find(&items, names[k]);
        for (size_t j = 0; j < item->bytes / 4; j++) {
            const float value = (float)(int)(j % 37) * 0.125f - 2.0f;
            memcpy(item->data + 4 * j, &value, 4);
        }
    }
    digests[0] = test_digest_of_items(&items);
    for (int k = 0; k < 3; k++) {
        test_item *item = test_items_find(&items, names[k]);
        const size_t n = item->bytes / 4;
        uint16_t *half = malloc((n + 1) * sizeof *half);
        float *wide = malloc((n + 1) * sizeof *wide);
        assert_true(half != NULL && wide != NULL);
        memcpy(wide, item->data, n * sizeof *wide);
        tamis_kernels_current()->narrow(half, wide, TAMIS_DTYPE_F16, (int64_t)n);
        test_item_set(item, "F16", half, n * sizeof *half);
        free(half);
        free(wide);
    }
    digests[1] = test_digest_of_items(&items);
    assert_true(digests[0] == digests[1]);
    test_items_free(&items);
}

/* ---------------------------------------------------------------- stacked experts */

static void stack_layer(test_items *items, int layer)
{
    const tamis_model_config *c = &items->config;
    const int64_t n = c->n_routed_experts, hidden = c->hidden_size;
    const int64_t width = c->moe_intermediate_size;
    const size_t part = (size_t)(width * hidden) * 2;
    uint8_t *up = malloc((size_t)n * 2 * part), *down = malloc((size_t)n * part);
    char name[256];
    assert_true(up != NULL && down != NULL);
    for (int e = 0; e < (int)n; e++)
        for (int w = 1; w <= 3; w++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e,
                     w == 1   ? "gate_proj"
                     : w == 2 ? "down_proj"
                              : "up_proj");
            test_item *item = test_items_find(items, name);
            assert_int_equal(item->bytes, part);
            uint8_t *to =
                w == 2 ? down + (size_t)e * part : up + ((size_t)e * 2 + (w == 3 ? 1 : 0)) * part;
            memcpy(to, item->data, part);
            test_items_drop(items, item);
        }
    const int64_t up_shape[] = {n, 2 * width, hidden}, down_shape[] = {n, hidden, width};
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    test_items_add(items, name, "BF16", 3, up_shape, up, (size_t)n * 2 * part);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
    test_items_add(items, name, "BF16", 3, down_shape, down, (size_t)n * part);
    free(up);
    free(down);
}

static void test_stacked_experts(void **state)
{
    (void)state;
    const uint64_t digest = test_digest_of(FLASH_BF16, NULL);
    test_items items = test_items_read(FLASH_BF16);
    rename_all(&items, rename_internal);
    for (int layer = 0; layer < items.config.num_hidden_layers; layer++)
        stack_layer(&items, layer);
    assert_true(test_digest_of_items(&items) == digest);
    test_item *up = test_items_find(&items, "model.layers.1.mlp.experts.gate_up_proj");
    up->shape[1] /= 2;
    up->shape[2] *= 2;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "gate_up_proj: shape is [8, 32, 192]",
                        "[8, 64, 96]");
    up->shape[1] *= 2;
    up->shape[2] /= 2;
    strcpy(up->dtype, "I16");
    test_expect_refused(&items, TAMIS_STATUS_UNSUPPORTED, "gate_up_proj: dtype is I16", "BF16");
    strcpy(up->dtype, "BF16");
    test_items_drop(&items, test_items_find(&items, "model.layers.1.mlp.experts.down_proj"));
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "layers.1.ffn.experts.down_proj", "missing");
    test_items_free(&items);
}

/* ---------------------------------------------------------------- what is needed and what not */

/* Tensors nobody asks for stay unused: other blocks, names we do not know, what changes nothing. */
static void test_unused_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"mtp.0.main_proj.weight", "mtp.0.emb.tok_emb.weight",
                                        "layers.9.attn.wq_a.weight", "something.else",
                                        "layers.0.ffn.gate.bias"};
    const uint64_t digest = test_digest_of(FLASH_BF16, NULL);
    const int64_t shape[] = {1, 2};
    test_items items = test_items_read(FLASH_BF16);
    for (int i = 0; i < 5; i++)
        test_items_add(&items, names[i], "I8", 2, shape, "ab", 2);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_true(test_weights_digest(b.weights, &b.config) == digest);
    for (int i = 0; i < 5; i++)
        assert_false(tamis_checkpoint_find(b.checkpoint, names[i])->is_used);
    assert_null(b.weights->layers[0].moe.bias);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

/* IndexCache: a layer that reuses a selection needs no indexer. */
static void test_reused_selection(void **state)
{
    (void)state;
    test_items items = test_items_read(FLASH_BF16);
    items.config.reuse_topk[4] = true;
    char *dir = test_temp_dir_make();
    for (int i = items.n - 1; i >= 0; i--)
        if (strstr(items.items[i].name, "layers.4.attn.indexer") != NULL)
            test_items_drop(&items, &items.items[i]);
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_true(b.weights->layers[4].dsa.config.reuse_topk);
    assert_null(b.weights->layers[4].dsa.weights.index_wq_b.data);
    assert_non_null(b.weights->layers[4].dsa.weights.compressor.ape);
    assert_non_null(b.weights->layers[2].dsa.weights.index_wq_b.data);
    test_unbind(&b);
    items.config.reuse_topk[4] = false;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "layers.4.attn.indexer", "missing");
    test_items_free(&items);
    test_temp_dir_remove(dir);
}

/* A config that leaves out what the folder holds would give another model's text without a word. */
static void test_left_over_tensors(void **state)
{
    (void)state;
    test_items items = test_items_read(FLASH_BF16);
    const tamis_model_config good = items.config;
    for (int32_t i = 0; i < good.num_hidden_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.attn.compressor.ape is there", (int)i);
        items.config.compress_ratios[i] = 0;
        if (good.compress_ratios[i] != 0)
            test_expect_refused(&items, TAMIS_STATUS_FORMAT, name, "compress ratio 0");
        items.config.compress_ratios[i] = good.compress_ratios[i];
    }
    items.config.num_hidden_layers--;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "attn_norm.weight is there",
                        "num_hidden_layers");
    items.config = good;
    items.config.n_shared_experts = 0;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "layers.0.ffn.shared_experts.w1.weight",
                        "n_shared_experts 0");
    test_items_free(&items);
}

static void test_no_or_more_shared_experts(void **state)
{
    (void)state;
    test_items items = test_items_read(FLASH_BF16);
    items.config.n_shared_experts = 2;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "shared_experts.w1.weight: shape is [32, 96]",
                        "[64, 96]");
    items.config.n_shared_experts = 0;
    for (int i = items.n - 1; i >= 0; i--)
        if (strstr(items.items[i].name, ".ffn.shared_experts.") != NULL)
            test_items_drop(&items, &items.items[i]);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_int_equal(b.weights->layers[0].moe.shared.w1.rows, 0);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_items_free(&items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_folders),    cmocka_unit_test(test_matrix_of_the_flash_folder),
        cmocka_unit_test(test_slow_decode),       cmocka_unit_test(test_e8m0_values),
        cmocka_unit_test(test_three_spellings),   cmocka_unit_test(test_scale_names),
        cmocka_unit_test(test_scale_dtypes),      cmocka_unit_test(test_float_dtypes),
        cmocka_unit_test(test_stacked_experts),   cmocka_unit_test(test_unused_tensors),
        cmocka_unit_test(test_reused_selection),  cmocka_unit_test(test_no_or_more_shared_experts),
        cmocka_unit_test(test_left_over_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
