/*
 * A folder's tensors as a list that a test changes and writes as a new folder, a digest of
 * everything that layers read from bound weights, and what the tests of weights expect.
 */
#ifndef TAMIS_TEST_WEIGHTS_H
#define TAMIS_TEST_WEIGHTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "kernels/kernels.h"
#include "support/make_safetensors.h"
#include "support/temp_dir.h"
#include "weights/model_weights.h"

typedef struct test_item {
    char name[256], dtype[16];
    int rank;
    int64_t shape[TAMIS_MAX_RANK];
    uint8_t *data; /* owned */
    size_t bytes;
} test_item;

typedef struct test_items {
    test_item *items;
    int n, max;
    tamis_model_config config; /* of the folder they come from */
} test_items;

static inline test_item *test_items_add(test_items *list, const char *name, const char *dtype,
                                        int rank, const int64_t *shape, const void *data,
                                        size_t bytes)
{
    if (list->n == list->max) {
        list->max = list->max == 0 ? 256 : 2 * list->max;
        list->items = realloc(list->items, (size_t)list->max * sizeof *list->items);
        if (list->items == NULL)
            abort();
    }
    test_item *item = &list->items[list->n++];
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->dtype, sizeof item->dtype, "%s", dtype);
    item->rank = rank;
    if (rank > 0)
        memcpy(item->shape, shape, (size_t)rank * sizeof *shape);
    item->data = malloc(bytes + 1);
    if (item->data == NULL)
        abort();
    if (bytes > 0)
        memcpy(item->data, data, bytes);
    item->bytes = bytes;
    return item;
}

static inline test_items test_items_read(const char *dir)
{
    test_items list = {NULL, 0, 0, {0}};
    tamis_checkpoint *checkpoint;
    tamis_error err;
    if (tamis_model_config_read(&list.config, dir, &err) != TAMIS_STATUS_OK ||
        tamis_checkpoint_open(&checkpoint, dir, &err) != TAMIS_STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(checkpoint); i++) {
        const tamis_tensor *t = tamis_checkpoint_tensor(checkpoint, i);
        test_items_add(&list, t->name, tamis_dtype_name(t->dtype), t->rank, t->shape, t->data,
                       t->bytes);
    }
    tamis_checkpoint_close(&checkpoint);
    return list;
}

static inline void test_items_free(test_items *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->items[i].data);
    free(list->items);
}

/* The tensor, which must be there. */
static inline test_item *test_items_find(test_items *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    fprintf(stderr, "no tensor %s\n", name);
    abort();
}

static inline void test_items_drop(test_items *list, test_item *item)
{
    free(item->data);
    *item = list->items[--list->n];
}

/* Other bytes for a tensor. */
static inline void test_item_set(test_item *item, const char *dtype, const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, bytes);
    free(item->data);
    item->data = copy;
    item->bytes = bytes;
    if (dtype != item->dtype)
        snprintf(item->dtype, sizeof item->dtype, "%s", dtype);
}

/* model.safetensors in `dir`; the header length is odd, so every tensor is unaligned. */
static inline void test_items_write(const test_items *list, const char *dir)
{
    test_safetensors *file = test_safetensors_new();
    for (int i = 0; i < list->n; i++) {
        const test_item *item = &list->items[i];
        test_safetensors_add(file, item->name, item->dtype, item->rank, item->shape, item->data,
                             item->bytes);
    }
    test_safetensors_set_residue(file, 3);
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
}

/* ---------------------------------------------------------------- everything that layers read */

typedef void (*test_values_fn)(void *user, const float *values, int64_t n);

static inline void test_visit_matrix(const tamis_matrix *w, test_values_fn fn, void *user)
{
    float *row = malloc((size_t)(w->cols + 1) * sizeof *row);
    if (row == NULL)
        abort();
    for (int64_t r = 0; r < w->rows; r++) {
        tamis_kernels_current()->expand_row(row, w, r);
        fn(user, row, w->cols);
    }
    free(row);
}

static inline void test_visit_hc(const tamis_hc_weights *hc, int64_t n, int64_t n_scales,
                                 test_values_fn fn, void *user)
{
    test_visit_matrix(&hc->fn, fn, user);
    fn(user, hc->base, n);
    fn(user, hc->scale, n_scales);
}

static inline void test_visit_compressor(const tamis_compressor_weights *w, int64_t ratio,
                                         int64_t head_dim, test_values_fn fn, void *user)
{
    test_visit_matrix(&w->wkv, fn, user);
    test_visit_matrix(&w->wgate, fn, user);
    fn(user, w->ape, ratio * w->wkv.rows);
    fn(user, w->norm, head_dim);
}

static inline void test_visit_attention(const tamis_dsa_layer *layer, test_values_fn fn, void *user)
{
    const tamis_dsa_config *c = &layer->config;
    const tamis_dsa_weights *w = &layer->weights;
    const tamis_matrix *matrices[] = {&w->wq_a, &w->wq_b, &w->wkv, &w->wo_a, &w->wo_b};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        test_visit_matrix(matrices[i], fn, user);
    fn(user, w->q_norm, c->q_lora_rank);
    fn(user, w->kv_norm, c->head_dim);
    fn(user, w->attn_sink, c->num_heads);
    if (c->compress_ratio != 0)
        test_visit_compressor(&w->compressor, c->compress_ratio, c->head_dim, fn, user);
    if (c->compress_ratio != 4 || c->reuse_topk)
        return;
    test_visit_matrix(&w->index_wq_b, fn, user);
    test_visit_matrix(&w->index_weights_proj, fn, user);
    test_visit_compressor(&w->index_compressor, 4, c->index_head_dim, fn, user);
}

static inline void test_visit_sfa(const tamis_sfa_layer *layer, test_values_fn fn, void *user)
{
    const tamis_sfa_config *c = &layer->config;
    const tamis_sfa_weights *w = &layer->weights;
    const tamis_matrix *matrices[] = {&w->q_a_proj, &w->q_b_proj, &w->kv_a_proj, &w->kv_b_proj,
                                      &w->o_proj};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        test_visit_matrix(matrices[i], fn, user);
    fn(user, w->q_a_norm, c->q_lora_rank);
    fn(user, w->kv_a_norm, c->kv_lora_rank);
    if (c->reuse_topk)
        return;
    test_visit_matrix(&w->index_wq_b, fn, user);
    test_visit_matrix(&w->index_wk, fn, user);
    test_visit_matrix(&w->index_weights_proj, fn, user);
    fn(user, w->index_k_norm, c->index_head_dim);
    fn(user, w->index_k_norm_bias, c->index_head_dim);
}

static inline void test_visit_expert(const tamis_expert_weights *w, test_values_fn fn, void *user)
{
    test_visit_matrix(&w->w1, fn, user);
    test_visit_matrix(&w->w2, fn, user);
    test_visit_matrix(&w->w3, fn, user);
}

static inline void test_visit_moe(const tamis_moe_weights *moe, const tamis_model_config *c,
                                  test_values_fn fn, void *user)
{
    const int64_t n_ids = (int64_t)c->vocab_size * c->num_experts_per_tok;
    test_visit_matrix(&moe->gate, fn, user);
    if (moe->bias != NULL)
        fn(user, moe->bias, c->n_routed_experts);
    for (int64_t e = 0; moe->tid2eid != NULL && e < n_ids; e++) {
        int64_t id;
        memcpy(&id, (const uint8_t *)moe->tid2eid + 8 * e, sizeof id);
        const float as_float = (float)id;
        fn(user, &as_float, 1);
    }
    for (int32_t e = 0; e < c->n_routed_experts; e++)
        test_visit_expert(&moe->experts[e], fn, user);
}

/* Calls fn with every row and vector, always in the same order. */
static inline void test_visit_weights(const tamis_model_weights *w, const tamis_model_config *c,
                                      test_values_fn fn, void *user)
{
    const bool is_v4 = c->family == TAMIS_FAMILY_DEEPSEEK_V4;
    const int64_t m = c->hc_mult;
    test_visit_matrix(&w->embed, fn, user);
    test_visit_matrix(&w->head, fn, user);
    fn(user, w->norm, c->hidden_size);
    if (is_v4)
        test_visit_hc(&w->hc_head, m, 1, fn, user);
    for (int32_t i = 0; i < w->n_layers; i++) {
        const tamis_layer_weights *layer = &w->layers[i];
        fn(user, layer->attn_norm, c->hidden_size);
        fn(user, layer->ffn_norm, c->hidden_size);
        if (is_v4) {
            test_visit_hc(&layer->hc_attn, (2 + m) * m, 3, fn, user);
            test_visit_hc(&layer->hc_ffn, (2 + m) * m, 3, fn, user);
            test_visit_attention(&layer->dsa, fn, user);
        } else {
            test_visit_sfa(&layer->sfa, fn, user);
        }
        if (!c->is_dense_layer[i])
            test_visit_moe(&layer->moe, c, fn, user);
        if (layer->moe.shared.w1.rows > 0)
            test_visit_expert(&layer->moe.shared, fn, user);
    }
}

/* FNV-1a over the bits of all values. */
static inline void test_digest_values(void *user, const float *values, int64_t n)
{
    uint64_t *digest = user;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        *digest = (*digest ^ bits) * UINT64_C(0x100000001b3);
    }
}

static inline uint64_t test_weights_digest(const tamis_model_weights *w,
                                           const tamis_model_config *c)
{
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    test_visit_weights(w, c, test_digest_values, &digest);
    return digest;
}

/* ---------------------------------------------------------------- bind, compare, expect */

typedef struct test_bound {
    tamis_model_config config;
    tamis_checkpoint *checkpoint;
    tamis_model_weights *weights;
} test_bound;

static inline tamis_status test_bind(test_bound *out, const char *dir,
                                     const tamis_model_config *config, tamis_error *err)
{
    *out = (test_bound){.checkpoint = NULL};
    tamis_status st = TAMIS_STATUS_OK;
    if (config != NULL)
        out->config = *config;
    else
        st = tamis_model_config_read(&out->config, dir, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_checkpoint_open(&out->checkpoint, dir, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_model_weights_bind(&out->weights, out->checkpoint, &out->config, err);
    return st;
}

static inline void test_unbind(test_bound *b)
{
    tamis_model_weights_free(&b->weights);
    tamis_checkpoint_close(&b->checkpoint);
}

static inline test_bound test_bind_ok(const char *dir, const tamis_model_config *config)
{
    test_bound b;
    tamis_error err;
    if (test_bind(&b, dir, config, &err) != TAMIS_STATUS_OK)
        fail_msg("%s: %s", dir, err.text);
    return b;
}

static inline uint64_t test_digest_of(const char *dir, const tamis_model_config *config)
{
    test_bound b = test_bind_ok(dir, config);
    const uint64_t digest = test_weights_digest(b.weights, &b.config);
    test_unbind(&b);
    return digest;
}

static inline uint64_t test_digest_of_items(const test_items *items)
{
    char *dir = test_temp_dir_make();
    test_items_write(items, dir);
    const uint64_t digest = test_digest_of(dir, &items->config);
    test_temp_dir_remove(dir);
    return digest;
}

static inline void test_expect_part(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", message, part);
}

/* Writing these tensors gives a folder that is refused so. */
static inline void test_expect_refused(const test_items *items, tamis_status status,
                                       const char *part, const char *part2)
{
    char *dir = test_temp_dir_make();
    test_bound b;
    tamis_error err;
    const size_t before = tamis_mem_in_use(TAMIS_MEM_WEIGHTS);
    test_items_write(items, dir);
    const tamis_status st = test_bind(&b, dir, &items->config, &err);
    if (st != status)
        fail_msg("%s: status %d instead of %d: %s", part, st, status,
                 st == TAMIS_STATUS_OK ? "ok" : err.text);
    assert_null(b.weights);
    test_expect_part(err.text, part);
    test_expect_part(err.text, part2);
    test_expect_part(err.text, "allowed: ");
    test_unbind(&b);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_WEIGHTS), before);
    test_temp_dir_remove(dir);
}

#endif
