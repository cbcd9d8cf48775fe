/*
 * Binding DeepSeek-V3.2 and GLM folders: every tensor where it belongs, the number formats of
 * scales, stacked experts, layers without indexer, MTP blocks.
 */
#include <math.h>

#include "weights_test.h"

#define V32_BF16  "tests/golden/v32-bf16"
#define V32_FP8   "tests/golden/v32-fp8"
#define GLM5_BF16 "tests/golden/glm5-bf16"
#define GLM52_FP8 "tests/golden/glm52-fp8"

static const char *const dirs[] = {V32_BF16, V32_FP8, GLM5_BF16, GLM52_FP8};
enum { N_DIRS = 4 };

/* Layer number in a name, -1 if there is none. */
static int32_t layer_of(const char *name)
{
    int layer = -1;
    sscanf(name, "model.layers.%d.", &layer);
    return layer;
}

/* ---------------------------------------------------------------- every tensor */

/* Looks tensors up by their names, and counts them. */
typedef struct lookup {
    test_bound *b;
    char prefix[128]; /* "model.layers.3." */
    int n_found;
} lookup;

static const tamis_tensor *look_up(lookup *l, const char *rest, const char *end)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s%s", l->prefix, rest, end);
    const tamis_tensor *tensor = tamis_checkpoint_find(l->b->checkpoint, name);
    if (tensor != NULL) {
        l->n_found++;
        if (!tensor->is_used)
            fail_msg("%s is not marked as used", name);
    }
    return tensor;
}

static double slow_fp8(uint8_t b)
{
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const double magnitude =
        exponent == 0 ? mantissa * pow(2, -9) : (1 + mantissa / 8.0) * pow(2, exponent - 7);
    return b & 0x80 ? -magnitude : magnitude;
}

/* Scales count by absolute row, also where a block begins inside a head. */
static void expect_fp8_values(const tamis_matrix *w, const tamis_tensor *data,
                              const tamis_tensor *scale)
{
    float row[512];
    assert_true(w->cols <= 512);
    for (int64_t r = 0; r < w->rows; r++) {
        tamis_kernels_current()->expand_row(row, w, r);
        for (int64_t c = 0; c < w->cols; c++) {
            float s;
            memcpy(&s, scale->data + 4 * (r / 128 * scale->shape[1] + c / 128), sizeof s);
            const float value = (float)slow_fp8(data->data[r * w->cols + c]) * s;
            if (row[c] != value)
                fail_msg("%s [%d][%d]: %g, not %g", data->name, (int)r, (int)c, (double)row[c],
                         (double)value);
        }
    }
}

/* The matrix lies in the mapping, with that shape and with the scales beside it. */
static void expect_matrix(lookup *l, const char *rest, const tamis_matrix *w, int64_t rows,
                          int64_t cols)
{
    const tamis_tensor *data = look_up(l, rest, ".weight");
    const tamis_tensor *scale = look_up(l, rest, ".weight_scale_inv");
    if (data == NULL)
        fail_msg("%s%s is not in the folder", l->prefix, rest);
    assert_ptr_equal(w->data, data->data);
    assert_int_equal(w->dtype, data->dtype);
    assert_int_equal(w->rows, rows);
    assert_int_equal(w->cols, cols);
    assert_int_equal(w->row_bytes, cols * tamis_dtype_bits(data->dtype) / 8);
    assert_int_equal(scale != NULL, data->dtype == TAMIS_DTYPE_F8_E4M3);
    if (scale == NULL) {
        assert_null(w->scale);
        return;
    }
    assert_ptr_equal(w->scale, scale->data);
    assert_int_equal(w->scale_dtype, TAMIS_DTYPE_F32);
    assert_int_equal(w->block_rows, 128);
    assert_int_equal(w->block_cols, 128);
    assert_int_equal(w->scale_row_bytes, 4 * ((cols + 127) / 128));
    assert_int_equal(scale->shape[0], (rows + 127) / 128);
    expect_fp8_values(w, data, scale);
}

static void expect_vector(lookup *l, const char *name, const float *seen, int64_t n)
{
    const tamis_tensor *tensor = look_up(l, name, "");
    float wide[512];
    assert_non_null(tensor);
    assert_true(n <= 512);
    assert_int_equal(tensor->rank, 1);
    assert_int_equal(tensor->shape[0], n);
    tamis_kernels_current()->widen(wide, tensor->data, tensor->dtype, n);
    assert_memory_equal(seen, wide, (size_t)n * sizeof *wide);
}

static void expect_mlp(lookup *l, const char *rest, const tamis_expert_weights *w, int64_t width)
{
    const int64_t hidden = l->b->config.hidden_size;
    char name[128];
    snprintf(name, sizeof name, "%sgate_proj", rest);
    expect_matrix(l, name, &w->w1, width, hidden);
    snprintf(name, sizeof name, "%sup_proj", rest);
    expect_matrix(l, name, &w->w3, width, hidden);
    snprintf(name, sizeof name, "%sdown_proj", rest);
    expect_matrix(l, name, &w->w2, hidden, width);
}

static void expect_moe(lookup *l, const tamis_moe_weights *moe)
{
    const tamis_model_config *c = &l->b->config;
    char rest[64];
    expect_matrix(l, "mlp.gate", &moe->gate, c->n_routed_experts, c->hidden_size);
    expect_vector(l, "mlp.gate.e_score_correction_bias", moe->bias, c->n_routed_experts);
    assert_null(moe->tid2eid);
    for (int32_t e = 0; e < c->n_routed_experts; e++) {
        snprintf(rest, sizeof rest, "mlp.experts.%d.", (int)e);
        expect_mlp(l, rest, &moe->experts[e], c->moe_intermediate_size);
    }
    expect_mlp(l, "mlp.shared_experts.", &moe->shared,
               (int64_t)c->n_shared_experts * c->moe_intermediate_size);
}

static void expect_indexer(lookup *l, const tamis_sfa_weights *w)
{
    const tamis_model_config *c = &l->b->config;
    expect_matrix(l, "self_attn.indexer.wq_b", &w->index_wq_b, c->index_n_heads * c->index_head_dim,
                  c->q_lora_rank);
    expect_matrix(l, "self_attn.indexer.wk", &w->index_wk, c->index_head_dim, c->hidden_size);
    expect_matrix(l, "self_attn.indexer.weights_proj", &w->index_weights_proj, c->index_n_heads,
                  c->hidden_size);
    expect_vector(l, "self_attn.indexer.k_norm.weight", w->index_k_norm, c->index_head_dim);
    expect_vector(l, "self_attn.indexer.k_norm.bias", w->index_k_norm_bias, c->index_head_dim);
}

static void expect_attention(lookup *l, const tamis_sfa_layer *layer, bool reuses)
{
    const tamis_model_config *c = &l->b->config;
    const tamis_sfa_weights *w = &layer->weights;
    const int32_t heads = c->num_attention_heads;
    const int32_t nope = c->qk_nope_head_dim, rope = c->qk_rope_head_dim;
    assert_int_equal(layer->config.num_heads, heads);
    assert_int_equal(layer->config.reuse_topk, reuses);
    expect_matrix(l, "self_attn.q_a_proj", &w->q_a_proj, c->q_lora_rank, c->hidden_size);
    expect_matrix(l, "self_attn.q_b_proj", &w->q_b_proj, heads * (nope + rope), c->q_lora_rank);
    expect_matrix(l, "self_attn.kv_a_proj_with_mqa", &w->kv_a_proj, c->kv_lora_rank + rope,
                  c->hidden_size);
    expect_matrix(l, "self_attn.kv_b_proj", &w->kv_b_proj, heads * (nope + c->v_head_dim),
                  c->kv_lora_rank);
    expect_matrix(l, "self_attn.o_proj", &w->o_proj, c->hidden_size, heads * c->v_head_dim);
    expect_vector(l, "self_attn.q_a_layernorm.weight", w->q_a_norm, c->q_lora_rank);
    expect_vector(l, "self_attn.kv_a_layernorm.weight", w->kv_a_norm, c->kv_lora_rank);
    if (!reuses)
        expect_indexer(l, w);
    else
        assert_true(w->index_wq_b.data == NULL && w->index_k_norm == NULL);
}

static void expect_layer(lookup *l, int32_t i)
{
    const tamis_layer_weights *layer = &l->b->weights->layers[i];
    const tamis_model_config *c = &l->b->config;
    snprintf(l->prefix, sizeof l->prefix, "model.layers.%d.", (int)i);
    expect_vector(l, "input_layernorm.weight", layer->attn_norm, c->hidden_size);
    expect_vector(l, "post_attention_layernorm.weight", layer->ffn_norm, c->hidden_size);
    expect_attention(l, &layer->sfa, c->reuse_topk[i]);
    if (!c->is_dense_layer[i]) {
        expect_moe(l, &layer->moe);
    } else {
        assert_int_equal(layer->moe.gate.rows, 0);
        assert_null(layer->moe.bias);
        expect_mlp(l, "mlp.", &layer->moe.shared, c->intermediate_size);
    }
}

/* The layer behind the last, and what stands around it. */
static void expect_mtp(lookup *l, bool has_copies)
{
    const tamis_model_weights *w = l->b->weights;
    const tamis_mtp_weights *mtp = &w->mtp;
    const tamis_model_config *c = &l->b->config;
    assert_int_equal(w->mtp_kind, TAMIS_MTP_BLOCK);
    expect_layer(l, w->n_layers);
    assert_true(w->layers[w->n_layers].moe.gate.rows > 0);
    expect_vector(l, "enorm.weight", mtp->enorm, c->hidden_size);
    expect_vector(l, "hnorm.weight", mtp->hnorm, c->hidden_size);
    expect_vector(l, "shared_head.norm.weight", mtp->norm, c->hidden_size);
    expect_matrix(l, "eh_proj", &mtp->eh_proj, c->hidden_size, 2 * c->hidden_size);
    if (has_copies) {
        expect_matrix(l, "embed_tokens", &mtp->embed, c->vocab_size, c->hidden_size);
        expect_matrix(l, "shared_head.head", &mtp->head, c->vocab_size, c->hidden_size);
    } else {
        assert_ptr_equal(mtp->embed.data, w->embed.data);
        assert_ptr_equal(mtp->head.data, w->head.data);
    }
}

static void test_every_tensor(void **state)
{
    (void)state;
    for (int d = 0; d < N_DIRS; d++) {
        test_bound b = test_bind_ok(dirs[d], NULL);
        lookup l = {&b, "", 0};
        const tamis_model_config *c = &b.config;
        int n_used = 0;
        expect_matrix(&l, "model.embed_tokens", &b.weights->embed, c->vocab_size, c->hidden_size);
        expect_matrix(&l, "lm_head", &b.weights->head, c->vocab_size, c->hidden_size);
        expect_vector(&l, "model.norm.weight", b.weights->norm, c->hidden_size);
        for (int32_t i = 0; i < b.weights->n_layers; i++)
            expect_layer(&l, i);
        assert_int_equal(b.weights->n_mtp, d % 2); /* the FP8 folders have a block */
        if (b.weights->n_mtp == 1)
            expect_mtp(&l, d == 1);
        for (int32_t t = 0; t < tamis_checkpoint_num_tensors(b.checkpoint); t++) {
            const tamis_tensor *tensor = tamis_checkpoint_tensor(b.checkpoint, t);
            assert_true(tensor->is_used);
            n_used += tensor->is_used;
        }
        assert_int_equal(l.n_found, n_used); /* none was forgotten above */
        assert_int_equal(b.weights->widened_bytes, tamis_mem_in_use(TAMIS_MEM_WEIGHTS));
        test_unbind(&b);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), 0);
    }
}

/* What each folder is there for (golden/README-sfa.md). */
static void test_what_the_folders_add(void **state)
{
    (void)state;
    test_bound b = test_bind_ok(V32_FP8, NULL);
    const tamis_sfa_weights *w = &b.weights->layers[0].sfa.weights;
    assert_int_equal(w->kv_a_proj.rows, 160); /* blocks of 128 and 32 rows */
    assert_int_equal(w->kv_a_proj.scale_row_bytes, 8);
    assert_int_equal(w->index_weights_proj.dtype, TAMIS_DTYPE_BF16);
    assert_false(b.weights->layers[0].sfa.config.index_rope_interleave);
    test_unbind(&b);
    b = test_bind_ok(GLM52_FP8, NULL);
    w = &b.weights->layers[0].sfa.weights;
    assert_int_equal(w->kv_b_proj.rows, 5 * 56); /* blocks cut through heads */
    assert_int_equal(w->kv_b_proj.block_rows, 128);
    assert_true(b.weights->layers[0].sfa.config.index_rope_interleave);
    static const bool shared[] = {false, false, true, true, false, true};
    for (int i = 0; i < 6; i++)
        assert_int_equal(b.weights->layers[i].sfa.config.reuse_topk, shared[i]);
    test_unbind(&b);
}

/* ---------------------------------------------------------------- spellings and formats */

static uint8_t e8m0_of(const uint8_t *f32)
{
    uint32_t bits;
    memcpy(&bits, f32, sizeof bits);
    assert_int_equal(bits & 0x7fffff, 0); /* a power of two */
    return (uint8_t)(bits >> 23);
}

/* Scales under the other name, and as E8M0 bytes under three names of the type. */
static void test_scales(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"F8_E8M0", "U8", "I8"};
    const uint64_t digest = test_digest_of(V32_FP8, NULL);
    test_items items = test_items_read(V32_FP8);
    for (int i = 0; i < items.n; i++) {
        char *end = strstr(items.items[i].name, ".weight_scale_inv");
        if (end != NULL)
            strcpy(end, ".scale");
    }
    assert_true(test_digest_of_items(&items) == digest);
    for (int i = 0; i < items.n; i++) {
        test_item *item = &items.items[i];
        uint8_t bytes[16];
        if (strstr(item->name, ".scale") == NULL)
            continue;
        const size_t n = item->bytes / 4;
        assert_true(n <= sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = e8m0_of(item->data + 4 * k);
        test_item_set(item, dtypes[i % 3], bytes, n);
    }
    assert_true(test_digest_of_items(&items) == digest);
    test_items_free(&items);
}

/* BF16 widened to F32, norms of the indexer among them. */
static void test_float_dtypes(void **state)
{
    (void)state;
    const uint64_t digest = test_digest_of(GLM5_BF16, NULL);
    test_items items = test_items_read(GLM5_BF16);
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
    /* A digest that ignores its input would pass all this. */
    static const char *const names[] = {
        "model.layers.1.self_attn.indexer.k_norm.bias", "model.layers.3.self_attn.kv_b_proj.weight",
        "model.layers.0.mlp.up_proj.weight", "model.layers.2.mlp.experts.3.down_proj.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias"};
    for (int i = 0; i < 5; i++) {
        test_item *item = test_items_find(&items, names[i]);
        item->data[5] ^= 1;
        assert_true(test_digest_of_items(&items) != digest);
        item->data[5] ^= 1;
    }
    test_items_free(&items);
}

/* All experts of a layer in two tensors. */
static void stack_experts(test_items *items, int layer)
{
    const tamis_model_config *c = &items->config;
    const int64_t n = c->n_routed_experts, hidden = c->hidden_size;
    const int64_t width = c->moe_intermediate_size;
    const size_t part = (size_t)(width * hidden) * 2;
    uint8_t *up = malloc((size_t)n * 2 * part), *down = malloc((size_t)n * part);
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[256];
    assert_true(up != NULL && down != NULL);
    for (size_t e = 0; e < (size_t)n; e++)
        for (size_t k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, (int)e,
                     parts[k]);
            test_item *item = test_items_find(items, name);
            assert_int_equal(item->bytes, part);
            memcpy(k == 2 ? down + e * part : up + (2 * e + k) * part, item->data, part);
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
    static const char *const folders[] = {V32_BF16, GLM5_BF16};
    for (int d = 0; d < 2; d++) {
        const uint64_t digest = test_digest_of(folders[d], NULL);
        test_items items = test_items_read(folders[d]);
        for (int i = 1; i < items.config.num_hidden_layers; i++)
            stack_experts(&items, i);
        assert_true(test_digest_of_items(&items) == digest);
        test_items_drop(&items, test_items_find(&items, "model.layers.1.mlp.experts.down_proj"));
        test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.1.mlp.experts.down_proj",
                            "missing");
        test_items_free(&items);
    }
}

/* ---------------------------------------------------------------- what is not run */

/* A layer that shares a selection may hold an indexer if the caller makes it share, but not by the
 * config of a GLM folder; one that does not share must. */
static void test_shared_layers(void **state)
{
    (void)state;
    const uint64_t digest = test_digest_of(GLM52_FP8, NULL);
    test_items items = test_items_read(GLM52_FP8);
    for (int i = 0, n = items.n; i < n; i++) {
        char name[256];
        const test_item *item = &items.items[i];
        const char *rest = strstr(item->name, "self_attn.indexer.");
        if (rest == NULL || layer_of(item->name) != 4)
            continue;
        snprintf(name, sizeof name, "model.layers.5.%s", rest);
        const test_item copy = *item;
        test_items_add(&items, name, copy.dtype, copy.rank, copy.shape, copy.data, copy.bytes);
    }
    test_items_find(&items, "model.layers.5.self_attn.indexer.wk.weight_scale_inv");
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.5.self_attn.indexer.",
                        "by config.json layer 5 shares");
    items.config.is_sharing_given = true;
    assert_true(test_digest_of_items(&items) == digest);
    char *dir = test_temp_dir_make();
    test_items_write(&items, dir);
    test_bound b = test_bind_ok(dir, &items.config);
    assert_false(
        tamis_checkpoint_find(b.checkpoint, "model.layers.5.self_attn.indexer.wk.weight")->is_used);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    items.config.reuse_topk[5] = false; /* now it is run */
    assert_true(test_digest_of_items(&items) != digest);
    items.config.reuse_topk[3] = false;
    test_expect_refused(&items, TAMIS_STATUS_FORMAT, "model.layers.3.self_attn.indexer.wq_b.weight",
                        "missing");
    test_items_free(&items);
}

static void drop_layer(test_items *items, int32_t layer)
{
    for (int i = items->n - 1; i >= 0; i--)
        if (layer_of(items->items[i].name) == layer)
            test_items_drop(items, &items->items[i]);
}

/* Blocks may be there or not, whatever the config says; V3.2's bring an embedding and a head. */
static void test_mtp_blocks(void **state)
{
    (void)state;
    static const char *const folders[] = {V32_FP8, GLM52_FP8};
    for (int d = 0; d < 2; d++) {
        const uint64_t digest = test_digest_of(folders[d], NULL);
        test_items items = test_items_read(folders[d]);
        const int32_t mtp = items.config.num_hidden_layers;
        assert_int_equal(items.config.num_nextn_predict_layers, 1);
        items.config.num_nextn_predict_layers = 0;
        assert_true(test_digest_of_items(&items) == digest);
        items.config.num_nextn_predict_layers = 1;
        drop_layer(&items, mtp);
        assert_true(test_digest_of_items(&items) == digest);
        test_items_free(&items);
    }
}

/* Names nobody asks for: listed, not run. */
static void test_unused_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.0.self_attn.rotary_emb.inv_freq",
                                        "model.layers.9.eh_proj.weight", "something.else",
                                        "layers.9.attn.wq_a.weight"};
    const uint64_t digest = test_digest_of(V32_BF16, NULL);
    const int64_t shape[] = {1, 2};
    test_items items = test_items_read(V32_BF16);
    for (int i = 0; i < 4; i++)
        test_items_add(&items, names[i], "I8", 2, shape, "ab", 2);
    assert_true(test_digest_of_items(&items) == digest);
    test_items_free(&items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor),    cmocka_unit_test(test_what_the_folders_add),
        cmocka_unit_test(test_scales),          cmocka_unit_test(test_float_dtypes),
        cmocka_unit_test(test_stacked_experts), cmocka_unit_test(test_shared_layers),
        cmocka_unit_test(test_mtp_blocks),      cmocka_unit_test(test_unused_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
