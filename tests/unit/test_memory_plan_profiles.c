/*
 * What a token of context takes in every profile and type of cache: measured at the real models'
 * dimensions it is the table of docs/numerics-table.md, measured on open sessions it is what the
 * rows of the specifications add up to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "caches/block_pool.h"
#include "core/mem.h"
#include "core/size.h"
#include "engine/session_internal.h"
#include "support/engine_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN TAMIS_SOURCE_DIR "/tests/golden/"
#define TABLE  TAMIS_SOURCE_DIR "/docs/numerics-table.md"

/* The columns of the table. */
static const struct column {
    tamis_profile profile;
    tamis_dtype dtype;
} columns[] = {
    {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_BF16},       {TAMIS_PROFILE_EXACT, TAMIS_DTYPE_F32},
    {TAMIS_PROFILE_OFFICIAL, TAMIS_DTYPE_F8_E4M3}, {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_BF16},
    {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_F8_E4M3},   {TAMIS_PROFILE_ASCEND, TAMIS_DTYPE_I8}};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* ---------------------------------------------------------------- the table in the documents */

enum { MAX_LAYERS = 80 };

static tamis_dsa_config v4_layer(int32_t ratio)
{
    return (tamis_dsa_config){.hidden_size = 4096,
                              .num_heads = 64,
                              .head_dim = 512,
                              .rope_head_dim = 64,
                              .q_lora_rank = 1024,
                              .o_groups = 8,
                              .o_lora_rank = 1024,
                              .sliding_window = 128,
                              .compress_ratio = ratio,
                              .index_n_heads = 64,
                              .index_head_dim = 128,
                              .index_topk = 512,
                              .rms_norm_eps = 1e-6f,
                              .rope = {.theta = 10000.0f}};
}

static tamis_sfa_config latent_layer(bool is_shared)
{
    return (tamis_sfa_config){.hidden_size = 7168,
                              .num_heads = 128,
                              .q_lora_rank = 1536,
                              .kv_lora_rank = 512,
                              .qk_nope_head_dim = 128,
                              .qk_rope_head_dim = 64,
                              .v_head_dim = 128,
                              .index_n_heads = 64,
                              .index_head_dim = 128,
                              .index_topk = 2048,
                              .reuse_topk = is_shared,
                              .rms_norm_eps = 1e-6f,
                              .softmax_scale = 0.1f,
                              .rope = {.theta = 10000.0f}};
}

/* A line of the table: so many layers of each kind. */
static const struct table_line {
    const char *name;
    bool is_v4;
    int32_t n_window, n_c4, n_c128; /* V4 */
    int32_t n_full, n_shared;
} table_lines[] = {{.name = "V4 window layer", .is_v4 = true, .n_window = 1},
                   {.name = "V4 C4 layer", .is_v4 = true, .n_c4 = 1},
                   {.name = "V4 C128 layer", .is_v4 = true, .n_c128 = 1},
                   {.name = "V3.2, GLM full layer", .n_full = 1},
                   {.name = "V3.2, GLM shared layer", .n_full = 1, .n_shared = 1},
                   /* ratios 0 0 (4 128)x20 4; 128 128 (4 128)x29 4 */
                   {.name = "V4-Flash", .is_v4 = true, .n_window = 2, .n_c4 = 21, .n_c128 = 20},
                   {.name = "V4-Pro", .is_v4 = true, .n_c4 = 30, .n_c128 = 31},
                   {.name = "V3.2", .n_full = 61},
                   {.name = "GLM-5", .n_full = 78}};

static int32_t fill_v4(tamis_dsa_config *layers, const struct table_line *line)
{
    int32_t n = 0;
    for (int32_t i = 0; i < line->n_window; i++)
        layers[n++] = v4_layer(0);
    for (int32_t i = 0; i < line->n_c4; i++)
        layers[n++] = v4_layer(4);
    for (int32_t i = 0; i < line->n_c128; i++)
        layers[n++] = v4_layer(128);
    return n;
}

static tamis_status measure_latents(int32_t n_full, int32_t n_shared,
                                    const tamis_cache_params *params, tamis_cache_bytes *bytes)
{
    tamis_sfa_config layers[MAX_LAYERS];
    for (int32_t i = 0; i < n_full + n_shared; i++)
        layers[i] = latent_layer(i >= n_full);
    return tamis_sfa_caches_measure(layers, n_full + n_shared, params, bytes, NULL);
}

/* Bytes of a block of 256 tokens; -1: there are no such rows. */
static int64_t block_bytes(const struct table_line *line, const struct column *column)
{
    tamis_dsa_config layers[MAX_LAYERS];
    tamis_cache_params params = tamis_cache_params_default();
    tamis_cache_bytes bytes = {0}, full = {0};
    params.profile = column->profile;
    params.kv_cache_dtype = column->dtype;
    assert_int_equal(params.block_tokens, 256);
    tamis_status st =
        line->is_v4 ? tamis_dsa_caches_measure(layers, fill_v4(layers, line), &params, &bytes, NULL)
                    : measure_latents(line->n_full, line->n_shared, &params, &bytes);
    if (st == TAMIS_STATUS_UNSUPPORTED)
        return -1;
    assert_int_equal(st, TAMIS_STATUS_OK);
    /* A layer that shares stands behind one that selects. */
    if (line->n_shared > 0)
        assert_int_equal(measure_latents(line->n_full, 0, &params, &full), TAMIS_STATUS_OK);
    return (int64_t)(bytes.per_block - full.per_block);
}

/* "| V4 C4 layer | 320 | 640 | ... |" from the page, behind the name. */
static char *find_line(char *page, const char *name)
{
    char start[64];
    snprintf(start, sizeof start, "\n| %s |", name);
    char *at = strstr(page, start);
    if (at == NULL)
        fail_msg("%s has no line of %s", TABLE, name);
    return at + strlen(start);
}

static char *read_page(void)
{
    FILE *file = fopen(TABLE, "rb");
    assert_non_null(file);
    char *page = calloc(1, 1 << 16);
    assert_non_null(page);
    assert_in_range(fread(page, 1, (1 << 16) - 1, file), 1000, (1 << 16) - 2);
    fclose(file);
    return page;
}

static void real_models_take_what_the_table_says(void **state)
{
    (void)state;
    char *page = read_page();
    for (size_t i = 0; i < sizeof table_lines / sizeof *table_lines; i++) {
        const char *at = find_line(page, table_lines[i].name);
        for (int c = 0; c < N_COLUMNS; c++) {
            const int64_t bytes = block_bytes(&table_lines[i], &columns[c]);
            char cell[32] = " - |";
            if (bytes >= 0)
                snprintf(cell, sizeof cell, " %.9g |", (double)bytes / 256.0);
            if (strncmp(at, cell, strlen(cell)) != 0)
                fail_msg("%s, column %d: measured%s the table goes on with%.20s",
                         table_lines[i].name, c + 1, cell, at);
            at += strlen(cell);
        }
    }
    free(page);
}

/* ---------------------------------------------------------------- sessions */

/* Bytes of a row as the specifications have them: d values, the last p of them rotated. */
static int64_t row_bytes(const char *layout, int64_t d, int64_t p)
{
    if (strcmp(layout, "bf16") == 0)
        return 2 * d;
    if (strcmp(layout, "f32") == 0)
        return 4 * d;
    if (strcmp(layout, "v4-fp8") == 0)
        return tamis_round_up(d - p + 2 * p + tamis_ceil_div(d - p, 64), 8);
    if (strcmp(layout, "v4-a5") == 0)
        return tamis_round_up(d - p + 2 * p + tamis_ceil_div(d - p, 64), 64);
    if (strncmp(layout, "latent-", 7) == 0)
        return d - p + 4 * tamis_ceil_div(d - p, 128) + 2 * p;
    if (strcmp(layout, "index-fp4") == 0)
        return d / 2 + tamis_ceil_div(d, 32);
    if (strcmp(layout, "index-fp8") == 0)
        return d + 4;
    assert_string_equal(layout, "index-int8");
    return d + 2;
}

static int64_t cache_block(int64_t n_rows, int64_t bytes)
{
    return tamis_round_up(n_rows * bytes, 64);
}

/* Of a block over all main layers. */
static int64_t expected_block(const tamis_model_config *c, const tamis_inspection *in,
                              const tamis_cache_choice *rows, int32_t block_tokens)
{
    const bool is_v4 = c->family == TAMIS_FAMILY_DEEPSEEK_V4;
    const int64_t d = is_v4 ? c->head_dim : c->kv_lora_rank + c->qk_rope_head_dim;
    int64_t bytes = 0;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const char *kind = in->layer_attention[i];
        const int32_t ratio = is_v4 ? c->compress_ratios[i] : 1;
        if (ratio == 0)
            continue;
        bytes +=
            cache_block(block_tokens / ratio, row_bytes(rows->kv_rows, d, c->qk_rope_head_dim));
        if (strcmp(kind, "full") == 0 || (strcmp(kind, "C4") == 0 && !c->reuse_topk[i]))
            bytes += cache_block(block_tokens / ratio,
                                 row_bytes(rows->index_rows, c->index_head_dim, 0));
    }
    return bytes;
}

static uint64_t in_use(void)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

typedef struct taken {
    uint64_t planned, allocated;
} taken;

/* Caches of a session for one sequence of n_blocks blocks. */
static taken take(const tamis_model *model, tamis_dtype dtype, int32_t block_tokens,
                  int32_t n_blocks)
{
    tamis_session_params p = test_session_params(dtype, block_tokens * n_blocks);
    tamis_memory_plan plan;
    tamis_session *session = NULL;
    tamis_error err;
    p.block_tokens = block_tokens;
    p.max_num_batched_tokens = 64;
    p.max_num_logits = 1;
    test_must(tamis_session_plan_memory(model, &p, &plan, &err), &err, "plan");
    const size_t before = tamis_mem_in_use(TAMIS_MEM_CACHES);
    const uint64_t all_before = in_use();
    test_must(tamis_session_open(&session, model, &p, &err), &err, "session");
    const size_t after = tamis_mem_in_use(TAMIS_MEM_CACHES);
    /* all of it, quantised inputs of linear layers included, but for small objects */
    const uint64_t all = in_use() - all_before, planned = plan.total - plan.weights_widened;
    assert_in_range(all, planned - 16384, planned + 16384);
    assert_int_equal(tamis_session_get_params(session)->kv_cache_dtype, dtype);
    assert_int_equal(plan.kv_cache_dtype, dtype);
    tamis_session_close(&session);
    const uint64_t pool = tamis_block_pool_bytes(n_blocks + 1); /* the list of free blocks */
    assert_int_equal(after - before, plan.cache_blocks + plan.cache_rings);
    return (taken){plan.cache_blocks - pool, after - before - pool};
}

static void check_folder(const char *dir, tamis_profile profile)
{
    enum { SHORT = 2, LONG = 4, BLOCK = 128 };
    tamis_model_params params = tamis_model_params_default();
    tamis_model *model = NULL;
    const tamis_inspection *in;
    tamis_error err;
    params.profile = profile;
    test_must(tamis_model_open_with(&model, dir, &params, &err), &err, dir);
    test_must(tamis_model_inspect(model, &in, &err), &err, dir);
    for (int32_t i = 0; i < in->n_caches; i++) {
        const tamis_cache_choice *rows = &in->caches[i];
        const int64_t block = expected_block(&model->config, in, rows, BLOCK);
        const taken a = take(model, rows->kv_cache_dtype, BLOCK, SHORT);
        const taken b = take(model, rows->kv_cache_dtype, BLOCK, LONG);
        printf("%s, %s, %s: %.2f bytes per token\n", strrchr(dir, '/') + 1,
               tamis_profile_name(profile), rows->kv_rows, (double)block / BLOCK);
        assert_int_equal(b.planned - a.planned, block * (LONG - SHORT));
        assert_int_equal(b.allocated - a.allocated, block * (LONG - SHORT));
        /* at the engine's own block size */
        assert_int_equal(rows->bytes_per_token,
                         expected_block(&model->config, in, rows, 256) / 256);
    }
    tamis_model_close(&model);
}

static void sessions_take_what_the_rows_add_up_to(void **state)
{
    static const char *const dirs[] = {GOLDEN "v4-flash-bf16", GOLDEN "v4-pro-fp8",
                                       GOLDEN "v32-bf16", GOLDEN "glm52-fp8"};
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        for (int p = 0; p < TAMIS_NUM_PROFILES; p++)
            check_folder(dirs[i], (tamis_profile)p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_models_take_what_the_table_says),
        cmocka_unit_test(sessions_take_what_the_rows_add_up_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
