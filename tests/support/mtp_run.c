#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/mtp_run.h"

#include "engine/session_internal.h"

#include <stdlib.h>
#include <string.h>

static int32_t *take(int32_t n)
{
    int32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    if (ids == NULL)
        fail_msg("out of memory");
    return ids;
}

tamis_session_params test_mtp_params(tamis_dtype kv_cache_dtype, int32_t max_len, int32_t n_seqs)
{
    tamis_session_params params = test_session_params(kv_cache_dtype, max_len);
    params.mtp = true;
    params.max_num_seqs = n_seqs;
    return params;
}

static void must_be_fine(int32_t result)
{
    if (result != TAMIS_NET_FINE)
        fail_msg("MTP block: a NaN came up in layer %d", result);
}

void test_mtp_over_step(test_engine *engine, const int32_t *next, int32_t n, const int32_t *rows,
                        int32_t n_rows, float *logits)
{
    int32_t *all = take(n);
    for (int32_t i = 0; i < n; i++)
        all[i] = i;
    const tamis_net_draft draft = {.over_step = true,
                                   .next_tokens = next,
                                   .n_tokens = n,
                                   .rows = rows != NULL ? rows : all,
                                   .n_rows = rows != NULL ? n_rows : n,
                                   .logits = logits};
    must_be_fine(tamis_net_draft_forward(tamis_session_net(engine->session), &draft));
    free(all);
}

void test_mtp_go_on(test_engine *engine, const int32_t *seqs, const int32_t *seq_lens,
                    const int32_t *next, int32_t n, const int32_t *rows, int32_t n_rows,
                    float *logits)
{
    const int32_t width = tamis_session_table_width(tamis_session_get_params(engine->session));
    tamis_net *net = tamis_session_net(engine->session);
    int32_t *start = take(n + 1), *all = take(n), *table = take(n * width);
    tamis_error err;
    for (int32_t i = 0; i < n; i++) {
        int32_t n_blocks = 0;
        const int32_t *blocks = tamis_session_block_table(engine->session, seqs[i], &n_blocks);
        memcpy(table + (int64_t)i * width, blocks, (size_t)n_blocks * sizeof *table);
        all[i] = i;
        start[i + 1] = i + 1;
    }
    const tamis_batch batch = {.num_reqs = n,
                               .query_start_loc = start,
                               .seq_lens = seq_lens,
                               .block_table = table,
                               .block_table_stride = width,
                               .slots = seqs};
    const tamis_net_draft draft = {.next_tokens = next,
                                   .n_tokens = n,
                                   .rows = rows != NULL ? rows : all,
                                   .n_rows = rows != NULL ? n_rows : n,
                                   .logits = logits};
    test_must(tamis_net_plan_draft(net, &batch, &err), &err, "plan a draft");
    must_be_fine(tamis_net_draft_forward(net, &draft));
    free(start);
    free(all);
    free(table);
}

void test_mtp_feed(test_engine *engine, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk,
                   float *logits)
{
    const int64_t vocab = engine->info->vocab_size;
    chunk = chunk == 0 ? n : chunk;
    for (int32_t first = 0; first < n; first += chunk) {
        const int32_t count = n - first < chunk ? n - first : chunk;
        test_feed(engine, seq, ids + first, count, 0, NULL);
        test_mtp_over_step(engine, ids + first + 1, count, NULL, 0, logits + first * vocab);
    }
}
