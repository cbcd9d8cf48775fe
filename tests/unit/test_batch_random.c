/*
 * Random batches of both families against brute force (support/batch_ref.h): order, split, slots,
 * positions, compressed rows, visible rows, list lengths, partitions, and whether a batch is
 * refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/batch_ref.h"
#include "support/layer_rig.h"
#include "support/sanitized.h"
#include "support/sfa_rig.h"

#define N_BATCHES (TEST_IS_SANITIZED ? 8000 : 100000)

#define MAX_REQS   12
#define MAX_TOKENS 1024
#define MAX_LEN    640
#define COLUMNS    40

/* One family's plan and what its batches look like. */
typedef struct family {
    const char *name;
    int block_tokens, n_blocks; /* n_blocks - 1 is prime: see fill_table */
    int n_slots, n_layers, n_threads;
    tamis_dsa_caches *dsa_caches;
    tamis_dsa_plan *dsa;
    tamis_sfa_caches *sfa_caches;
    tamis_sfa_plan *sfa;
} family;

/* ---------------------------------------------------------------- families */

static tamis_plan_params plan_params(int n_threads)
{
    tamis_plan_params params = tamis_plan_params_default();
    params.max_num_batched_tokens = MAX_TOKENS;
    params.max_num_seqs = MAX_REQS;
    params.max_model_len = MAX_LEN;
    params.n_threads = n_threads;
    return params;
}

static tamis_cache_params cache_params(const family *f)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.block_tokens = f->block_tokens;
    params.num_blocks = f->n_blocks;
    params.num_slots = f->n_slots > 0 ? f->n_slots : 1;
    return params;
}

static const int v4_ratios[] = {0, 4, 128};
#define V4_WINDOW 16
#define V4_TOPK   70

static void open_v4(family *f)
{
    tamis_dsa_config layers[3];
    tamis_error err;
    for (int i = 0; i < 3; i++) {
        layers[i] = test_odd_config(v4_ratios[i]);
        layers[i].rope_head_dim = 2;
        layers[i].index_topk = V4_TOPK;
        assert_int_equal(layers[i].sliding_window, V4_WINDOW);
    }
    *f = (family){.name = "V4",
                  .block_tokens = 128,
                  .n_blocks = 80,
                  .n_slots = 14,
                  .n_layers = 3,
                  .n_threads = 3};
    const tamis_cache_params caches = cache_params(f);
    const tamis_plan_params plan = plan_params(f->n_threads);
    assert_int_equal(tamis_dsa_caches_open(&f->dsa_caches, layers, 3, &caches, &err),
                     TAMIS_STATUS_OK);
    assert_int_equal(tamis_dsa_plan_open(&f->dsa, f->dsa_caches, &plan, &err), TAMIS_STATUS_OK);
}

/* Layer 0 selects, layer 1 reuses, layer 2 attends to everything. */
static void open_v32(family *f)
{
    tamis_sfa_config layers[3];
    tamis_error err;
    for (int i = 0; i < 3; i++) {
        layers[i] = test_sfa_odd_config(TEST_SFA_V32);
        layers[i].qk_rope_head_dim = 2;
        layers[i].index_topk = i < 2 ? V4_TOPK : 0;
        layers[i].reuse_topk = i == 1;
    }
    *f = (family){
        .name = "V3.2", .block_tokens = 16, .n_blocks = 504, .n_layers = 3, .n_threads = 3};
    const tamis_cache_params caches = cache_params(f);
    const tamis_plan_params plan = plan_params(f->n_threads);
    assert_int_equal(tamis_sfa_caches_open(&f->sfa_caches, layers, 3, &caches, &err),
                     TAMIS_STATUS_OK);
    assert_int_equal(tamis_sfa_plan_open(&f->sfa, f->sfa_caches, &plan, &err), TAMIS_STATUS_OK);
}

static void close_family(family *f)
{
    tamis_dsa_plan_close(&f->dsa);
    tamis_dsa_caches_close(&f->dsa_caches);
    tamis_sfa_plan_close(&f->sfa);
    tamis_sfa_caches_close(&f->sfa_caches);
}

static tamis_status plan(family *f, const tamis_batch *batch, tamis_error *err)
{
    return f->dsa != NULL ? tamis_dsa_plan_build(f->dsa, batch, err)
                          : tamis_sfa_plan_build(f->sfa, batch, err);
}

static tamis_step_view step_of(const family *f)
{
    return f->dsa != NULL ? tamis_dsa_plan_step(f->dsa) : tamis_sfa_plan_step(f->sfa);
}

static tamis_layer_plan_view layer_of(const family *f, int i)
{
    return f->dsa != NULL ? tamis_dsa_plan_layer(f->dsa, i) : tamis_sfa_plan_layer(f->sfa, i);
}

/* ---------------------------------------------------------------- random batches */

typedef struct arrays {
    int n_reqs, stride;
    bool has_slot_mapping;
    int32_t n_new[MAX_REQS + 1], query_start[MAX_REQS + 2], seq_len[MAX_REQS + 1];
    int32_t slot[MAX_REQS + 1], table[(MAX_REQS + 1) * COLUMNS], slot_mapping[MAX_TOKENS];
} arrays;

static int pick(test_rng *rng, int low, int high)
{
    return (int)test_rng_int(rng, low, high);
}
static bool one_in(test_rng *rng, int n)
{
    return test_rng_u64(rng) % (uint64_t)n == 0;
}

static int pick_new(test_rng *rng)
{
    const int kind = pick(rng, 0, 99);
    return kind < 50   ? 1
           : kind < 75 ? pick(rng, 0, 4)
           : kind < 96 ? pick(rng, 5, 40)
                       : pick(rng, 41, 300);
}

/* Lengths at which blocks, C4 and C128 groups end, one more, one less, and others. */
static int pick_len(test_rng *rng, int n_new)
{
    const int kind = pick(rng, 0, 9);
    int len = kind < 3   ? n_new
              : kind < 6 ? 128 * pick(rng, 0, 5) + pick(rng, -1, 1)
              : kind < 8 ? 16 * pick(rng, 0, 40) + pick(rng, -1, 1)
                         : pick(rng, 1, MAX_LEN);
    len = kind % 2 ? len : len + n_new; /* the start at the border, too */
    len = len < n_new ? n_new : len;
    return len > MAX_LEN && !one_in(rng, 50) ? MAX_LEN : len;
}

/* Different blocks everywhere, in the order of a random step through 1 .. n_blocks - 1. */
static void fill_table(arrays *a, const family *f, test_rng *rng)
{
    const int n = f->n_blocks - 1, step = pick(rng, 1, n - 1);
    int at = pick(rng, 0, n - 1);
    for (int i = 0; i < a->n_reqs * a->stride; i++) {
        a->table[i] = 1 + at;
        at = (at + step) % n;
    }
    if (a->n_reqs > 1 && one_in(rng, 4)) /* a common prefix, perhaps one that is written */
        a->table[pick(rng, 0, a->n_reqs - 1) * a->stride] =
            a->table[pick(rng, 0, a->n_reqs - 1) * a->stride];
}

static void fill(arrays *a, const family *f, test_rng *rng)
{
    const int n_padded = one_in(rng, 3) ? pick(rng, 1, 3) : 0;
    a->n_reqs = pick(rng, 1, MAX_REQS);
    a->stride = (MAX_LEN + f->block_tokens - 1) / f->block_tokens;
    a->query_start[0] = 0;
    for (int i = 0; i < a->n_reqs; i++) {
        const bool is_padding = i >= a->n_reqs - n_padded;
        a->n_new[i] = is_padding ? pick(rng, 0, 4) : pick_new(rng);
        a->seq_len[i] = is_padding ? 0 : pick_len(rng, a->n_new[i]);
        a->query_start[i + 1] = a->query_start[i] + a->n_new[i];
        a->slot[i] = is_padding ? -1 : (i * 5 + a->n_reqs) % 14;
    }
    fill_table(a, f, rng);
    for (int i = (a->n_reqs - n_padded) * a->stride; n_padded > 0 && i < a->n_reqs * a->stride; i++)
        if (i >= 0)
            a->table[i] = 0;
    a->has_slot_mapping = false;
}

static tamis_batch batch_of(const arrays *a, const family *f)
{
    return (tamis_batch){.num_reqs = a->n_reqs,
                         .query_start_loc = a->query_start,
                         .seq_lens = a->seq_len,
                         .block_table = a->table,
                         .block_table_stride = a->stride,
                         .slots = f->n_slots > 0 ? a->slot : NULL,
                         .slot_mapping = a->has_slot_mapping ? a->slot_mapping : NULL};
}

static ref_batch ref_of(const arrays *a, const family *f)
{
    return (ref_batch){.n_reqs = a->n_reqs,
                       .query_start = a->query_start,
                       .seq_len = a->seq_len,
                       .table = a->table,
                       .table_stride = a->stride,
                       .slot = f->n_slots > 0 ? a->slot : NULL,
                       .slot_mapping = a->has_slot_mapping ? a->slot_mapping : NULL,
                       .block_tokens = f->block_tokens,
                       .n_blocks = f->n_blocks,
                       .n_slots = f->n_slots,
                       .max_reqs = MAX_REQS,
                       .max_tokens = MAX_TOKENS,
                       .max_len = MAX_LEN};
}

static void fill_slot_mapping(arrays *a, const family *f)
{
    static ref_token tokens[REF_MAX_TOKENS];
    const ref_batch ref = ref_of(a, f);
    const char *why;
    if (!ref_is_valid(&ref, &why))
        return;
    const int n = ref_tokens(&ref, tokens);
    for (int t = 0; t < a->query_start[a->n_reqs]; t++)
        a->slot_mapping[t] = t < n ? (int32_t)tokens[t].slot : -1;
    a->has_slot_mapping = true;
}

/* One value changed, which may make the batch wrong. */
static void damage(arrays *a, const family *f, test_rng *rng)
{
    static const int32_t odd[] = {0, -1, 1, 2000, INT32_MIN};
    const int req = pick(rng, 0, a->n_reqs - 1), total = a->query_start[a->n_reqs];
    const int32_t value = odd[pick(rng, 0, 4)];
    switch (pick(rng, 0, 8)) {
    case 0:
        a->seq_len[req] = a->n_new[req] - 1;
        break;
    case 1:
        a->seq_len[req] = MAX_LEN + pick(rng, 0, 1);
        break;
    case 2:
        a->seq_len[req] = 0;
        break;
    case 3:
        a->table[req * a->stride + pick(rng, 0, a->stride - 1)] = value;
        break;
    case 4:
        a->table[req * a->stride] = one_in(rng, 2) ? f->n_blocks : f->n_blocks - 1;
        break;
    case 5:
        a->slot[req] = one_in(rng, 2) ? pick(rng, 0, f->n_slots) : value;
        break;
    case 6:
        a->query_start[req] = one_in(rng, 2) ? value : a->query_start[req] + pick(rng, -2, 2);
        break;
    case 7:
        a->stride = pick(rng, 0, a->stride);
        break;
    default:
        if (a->has_slot_mapping && total > 0)
            a->slot_mapping[pick(rng, 0, total - 1)] =
                one_in(rng, 3) ? value : a->slot_mapping[pick(rng, 0, total - 1)];
    }
}

/* ---------------------------------------------------------------- comparisons */

static int chunks_of_64(int n)
{
    int chunks = 0;
    for (; n > 0; n -= 64)
        chunks++;
    return chunks;
}

/* Every unit is in the stretch of one thread; no stretch is longer than a fair share and an item.
 */
static void check_work(const tamis_work_view *work, const int *units, int n, int n_threads)
{
    static uint8_t owners[MAX_TOKENS * 16];
    int64_t total = 0;
    int largest = 0;
    assert_int_equal(work->num_items, n);
    assert_int_equal(work->num_threads, n_threads);
    for (int i = 0; i < n; i++) {
        assert_int_equal(work->unit_start[i], total);
        total += units[i];
        largest = units[i] > largest ? units[i] : largest;
    }
    assert_int_equal(work->unit_start[n], total);
    memset(owners, 0, (size_t)total);
    for (int t = 0; t < n_threads; t++) {
        assert_true(work->bounds[t + 1] - work->bounds[t] <= total / n_threads + largest + 1);
        for (int64_t u = work->bounds[t]; u < work->bounds[t + 1]; u++)
            owners[u]++;
    }
    for (int64_t u = 0; u < total; u++)
        assert_int_equal(owners[u], 1);
}

static void check_rows(const family *f, const tamis_batch *batch, const ref_batch *ref, int ratio,
                       const tamis_layer_plan_view *layer)
{
    static ref_row expected[REF_MAX_TOKENS];
    static tamis_compressed_row rows[REF_MAX_TOKENS];
    const int rows_per_block = f->block_tokens / ratio,
              n = ref_rows(ref, ratio, rows_per_block, expected);
    const int32_t capacity = tamis_compressed_rows_capacity(batch->query_start_loc[batch->num_reqs],
                                                            batch->num_reqs, ratio);
    int32_t n_rows = -1;
    assert_true(n <= capacity);
    assert_int_equal(
        tamis_batch_compressed_rows(batch, ratio, rows_per_block, rows, capacity, &n_rows, NULL),
        TAMIS_STATUS_OK);
    assert_int_equal(n_rows, n);
    assert_int_equal(layer->num_closed_rows, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(rows[i].req, expected[i].req);
        assert_int_equal(rows[i].idx, expected[i].idx);
        assert_int_equal(rows[i].block, expected[i].block);
        assert_int_equal(rows[i].row, expected[i].row);
        assert_int_equal(rows[i].rope_pos, expected[i].idx * ratio);
        assert_int_equal(layer->closed_req[i], expected[i].req);
        assert_int_equal(layer->closed_row[i], expected[i].idx);
    }
    for (int i = n; i < capacity; i++)
        assert_int_equal(rows[i].block, -1);
}

static void check_layer(const family *f, const tamis_batch *batch, const ref_batch *ref, int i,
                        const ref_token *tokens, int n)
{
    static int list_units[MAX_TOKENS], index_units[MAX_TOKENS];
    const tamis_layer_plan_view layer = layer_of(f, i);
    const bool is_v4 = f->dsa != NULL;
    const int ratio = is_v4 ? v4_ratios[i] : 1;
    const bool is_sparse = is_v4 ? ratio == 4 : i < 2, has_indexer = is_v4 ? ratio == 4 : i == 0;
    assert_int_equal(layer.compress_ratio, ratio);
    for (int t = 0; t < n; t++) {
        const int visible = ref_visible(tokens[t].pos, ratio);
        const int taken = is_sparse && visible > V4_TOPK ? V4_TOPK : visible;
        const int list = taken + (is_v4 ? ref_window(tokens[t].pos, V4_WINDOW) : 0);
        assert_int_equal(layer.visible_rows[t], visible);
        assert_int_equal(layer.list_len[t], list);
        list_units[t] = chunks_of_64(list);
        index_units[t] = visible <= V4_TOPK ? 0 : chunks_of_64(visible);
    }
    check_work(&layer.attention, list_units, n, f->n_threads);
    if (has_indexer)
        check_work(&layer.index_scores, index_units, n, f->n_threads);
    else
        assert_int_equal(layer.index_scores.num_threads, 0);
    if (is_v4 && ratio > 0)
        check_rows(f, batch, ref, ratio, &layer);
    else
        assert_int_equal(layer.num_closed_rows, 0);
}

static void check_step(const family *f, const tamis_batch *batch, const ref_batch *ref)
{
    static ref_token tokens[REF_MAX_TOKENS];
    static int32_t slots[MAX_TOKENS + 3];
    const tamis_step_view step = step_of(f);
    const int n = ref_tokens(ref, tokens), n_input = ref->query_start[ref->n_reqs];
    assert_int_equal(step.num_tokens, n);
    assert_int_equal(step.num_input_tokens, n_input);
    assert_int_equal(step.num_reqs, ref_num_real(ref));
    assert_int_equal(tamis_batch_slot_mapping(batch, f->block_tokens, slots, n_input + 3, NULL), 0);
    for (int t = 0; t < n; t++) {
        assert_int_equal(step.positions[t], tokens[t].pos);
        assert_int_equal(step.req_of_token[t], tokens[t].req);
        assert_int_equal(slots[t], tokens[t].slot);
    }
    for (int t = n; t < n_input + 3; t++)
        assert_int_equal(slots[t], -1);
    for (int i = 0; i < step.num_reqs; i++) {
        assert_int_equal(step.seq_lens[i], ref->seq_len[i]);
        assert_int_equal(step.start_pos[i],
                         ref->seq_len[i] - (ref->query_start[i + 1] - ref->query_start[i]));
        assert_int_equal(step.query_start_loc[i + 1], ref->query_start[i + 1]);
    }
    for (int i = 0; i < f->n_layers; i++)
        check_layer(f, batch, ref, i, tokens, n);
}

/* Returns whether the batch was taken. */
static bool check_batch(family *f, const arrays *a)
{
    const tamis_batch batch = batch_of(a, f);
    const ref_batch ref = ref_of(a, f);
    tamis_error err = {0};
    const char *why = "";
    const bool is_valid = ref_is_valid(&ref, &why);
    const tamis_status st = plan(f, &batch, &err);
    if ((st == TAMIS_STATUS_OK) != is_valid)
        fail_msg("%s: brute force says \"%s\", the plan \"%s\"", f->name, is_valid ? "right" : why,
                 st == TAMIS_STATUS_OK ? "right" : err.text);
    if (is_valid) {
        check_step(f, &batch, &ref);
        return true;
    }
    assert_true(st == TAMIS_STATUS_INVALID || st == TAMIS_STATUS_LIMIT);
    assert_true(err.text[0] != '\0');
    assert_int_equal(step_of(f).num_input_tokens, 0);
    return false;
}

/* ---------------------------------------------------------------- order and split */

static void check_order(const arrays *a, test_rng *rng)
{
    int32_t expected[REF_MAX_REQS][2], lens[REF_MAX_REQS], n_swaps = -1;
    tamis_swap swaps[REF_MAX_REQS / 2];
    const int threshold = one_in(rng, 2) ? 1 : pick(rng, 1, 16);
    const int n = ref_reorder(a->n_new, a->n_reqs, threshold, expected);
    assert_int_equal(tamis_batch_reorder(a->n_new, a->n_reqs, threshold, swaps, &n_swaps, NULL), 0);
    assert_int_equal(n_swaps, n);
    memcpy(lens, a->n_new, sizeof a->n_new);
    for (int i = 0; i < n; i++) {
        assert_int_equal(swaps[i].a, expected[i][0]);
        assert_int_equal(swaps[i].b, expected[i][1]);
        const int32_t kept = lens[swaps[i].a];
        lens[swaps[i].a] = lens[swaps[i].b];
        lens[swaps[i].b] = kept;
    }
    for (int i = 1; i < a->n_reqs; i++) /* what it is for */
        assert_true(lens[i - 1] <= threshold || lens[i] > threshold);
}

static void check_split(const arrays *a, test_rng *rng)
{
    bool is_prefilling[REF_MAX_REQS];
    for (int i = 0; i < a->n_reqs; i++)
        is_prefilling[i] = one_in(rng, 3);
    tamis_split_params params = tamis_split_params_default();
    params.decode_threshold = pick(rng, 1, 16);
    params.require_uniform = one_in(rng, 3);
    params.treat_short_extends_as_decodes = !one_in(rng, 3);
    params.is_prefilling = is_prefilling;
    tamis_split split;
    const int decodes =
        ref_num_decodes(a->query_start, a->n_reqs, params.decode_threshold, params.require_uniform,
                        params.treat_short_extends_as_decodes ? NULL : is_prefilling);
    assert_int_equal(tamis_batch_split(a->query_start, a->n_reqs, &params, &split, NULL), 0);
    assert_int_equal(split.num_decodes, decodes);
    assert_int_equal(split.num_prefills, a->n_reqs - decodes);
    assert_int_equal(split.num_decode_tokens, a->query_start[decodes]);
    assert_int_equal(split.num_prefill_tokens, a->query_start[a->n_reqs] - a->query_start[decodes]);
}

/* ---------------------------------------------------------------- tests */

static void run_family(family *f, const char *name, uint64_t seed)
{
    static arrays a;
    test_rng rng = test_rng_start(name, seed);
    int n_taken = 0;
    for (int i = 0; i < N_BATCHES / 2; i++) {
        fill(&a, f, &rng);
        check_order(&a, &rng);
        check_split(&a, &rng);
        if (one_in(&rng, 3))
            fill_slot_mapping(&a, f);
        if (one_in(&rng, 3))
            damage(&a, f, &rng);
        n_taken += check_batch(f, &a);
    }
    printf("%s: %d of %d batches taken\n", name, n_taken, N_BATCHES / 2);
    assert_in_range(n_taken, N_BATCHES / 4, N_BATCHES / 2 - N_BATCHES / 40); /* both sorts */
    close_family(f);
}

static void v4_batches(void **state)
{
    (void)state;
    family f;
    open_v4(&f);
    run_family(&f, "batches of V4", 1);
}

static void v32_batches(void **state)
{
    (void)state;
    family f;
    open_v32(&f);
    run_family(&f, "batches of V3.2", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v4_batches),
        cmocka_unit_test(v32_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
