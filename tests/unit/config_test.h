/* What the tests of config.json share: parsing a text, changing members of one, refusals. */
#ifndef TAMIS_TEST_CONFIG_H
#define TAMIS_TEST_CONFIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "config/model_config.h"
#include "core/mem.h"

/* A field of a text changed, and what the refusal must name. */
typedef struct test_damage {
    const char *path, *value; /* value NULL: the key is removed */
    tamis_status status;
    const char *key, *seen;
} test_damage;

#define BAD(path, value, key, seen)                                                                \
    {                                                                                              \
        path, value, TAMIS_STATUS_FORMAT, key, seen                                                \
    }
#define NO(path, value, key, seen)                                                                 \
    {                                                                                              \
        path, value, TAMIS_STATUS_UNSUPPORTED, key, seen                                           \
    }

static inline tamis_status parse(tamis_model_config *out, const char *text, const char *generation,
                                 tamis_error *err)
{
    return tamis_model_config_parse(out, "config.json", text, strlen(text), generation,
                                    generation == NULL ? 0 : strlen(generation), err);
}

static inline tamis_model_config parse_ok(const char *text, const char *generation)
{
    tamis_model_config config;
    tamis_error err;
    if (parse(&config, text, generation, &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return config;
}

static inline void expect_part(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        fail_msg("message \"%s\" does not name \"%s\"", message, part);
}

/* Sets the member at a dotted path to the given JSON; NULL removes it. Numbers index lists. */
static inline void set_member(json_t *root, const char *path, const char *value)
{
    char part[64];
    json_t *at = root;
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        at = json_object_get(at, part);
        assert_non_null(at);
        path = dot + 1;
    }
    json_t *item = value == NULL ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
    if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)atoi(path), item), 0);
    else if (value == NULL)
        assert_int_equal(json_object_del(at, path), 0);
    else
        assert_int_equal(json_object_set_new(at, path, item), 0);
}

/* `text` with some members changed: path, value, path, value, ..., NULL; to be freed. */
static inline char *edited(const char *text, ...)
{
    json_t *root = json_loads(text, 0, NULL);
    const char *path;
    va_list args;
    assert_non_null(root);
    va_start(args, text);
    while ((path = va_arg(args, const char *)) != NULL)
        set_member(root, path, va_arg(args, const char *));
    va_end(args);
    char *out = json_dumps(root, 0);
    json_decref(root);
    return out;
}

static inline void expect_refused(const char *text, tamis_status status, const char *key,
                                  const char *seen)
{
    tamis_model_config config, before;
    tamis_error err;
    memset(&config, 0x5a, sizeof config);
    memcpy(&before, &config, sizeof config);
    const tamis_status st = parse(&config, text, NULL, &err);
    if (st != status)
        fail_msg("%s: status %d, not %d: %s", key, st, status,
                 st == TAMIS_STATUS_OK ? "ok" : err.text);
    assert_int_equal(err.status, status);
    expect_part(err.text, "config.json: ");
    expect_part(err.text, key);
    expect_part(err.text, seen);
    expect_part(err.text, "allowed: ");
    assert_memory_equal(&config, &before, sizeof config);
}

static inline void expect_same(const tamis_model_config *a, const tamis_model_config *b)
{
#define SAME(member) assert_memory_equal(&a->member, &b->member, sizeof a->member)
    SAME(family);
    SAME(family_name);
    SAME(vocab_size);
    SAME(hidden_size);
    SAME(num_hidden_layers);
    SAME(num_nextn_predict_layers);
    SAME(max_position_embeddings);
    SAME(rms_norm_eps);
    SAME(num_attention_heads);
    SAME(head_dim);
    SAME(qk_rope_head_dim);
    SAME(q_lora_rank);
    SAME(kv_lora_rank);
    SAME(qk_nope_head_dim);
    SAME(v_head_dim);
    SAME(o_groups);
    SAME(o_lora_rank);
    SAME(sliding_window);
    SAME(index_n_heads);
    SAME(index_head_dim);
    SAME(index_topk);
    SAME(n_compress_ratios);
    SAME(compress_ratios);
    SAME(reuse_topk);
    SAME(has_index_cache);
    SAME(index_share_for_mtp_iteration);
    SAME(rope_window);
    SAME(rope_compress);
    SAME(rope);
    SAME(mscale_all_dim);
    SAME(index_rope_interleave);
    SAME(moe_intermediate_size);
    SAME(n_routed_experts);
    SAME(n_shared_experts);
    SAME(num_experts_per_tok);
    SAME(is_hash_layer);
    SAME(is_dense_layer);
    SAME(intermediate_size);
    SAME(n_group);
    SAME(topk_group);
    SAME(scoring_func);
    SAME(norm_topk_prob);
    SAME(routed_scaling_factor);
    SAME(swiglu_limit);
    SAME(hc_mult);
    SAME(hc_sinkhorn_iters);
    SAME(hc_eps);
    SAME(has_quantization);
    SAME(weight_block_rows);
    SAME(weight_block_cols);
    SAME(bos_token_id);
    SAME(eos_token_ids);
    SAME(n_eos_token_ids);
    SAME(do_sample);
    SAME(temperature);
    SAME(top_p);
    SAME(min_p);
    SAME(top_k);
#undef SAME
}

static inline void expect_all_refused(const char *good, const test_damage *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *text = edited(good, cases[i].path, cases[i].value, NULL);
        expect_refused(text, cases[i].status, cases[i].key, cases[i].seen);
        free(text);
    }
}

static inline void expect_all_required(const char *good, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *text = edited(good, keys[i], NULL, NULL);
        expect_refused(text, TAMIS_STATUS_FORMAT, keys[i], "absent");
        free(text);
        text = edited(good, keys[i], "null", NULL);
        expect_refused(text, TAMIS_STATUS_FORMAT, keys[i], "absent");
        free(text);
    }
}

#endif
