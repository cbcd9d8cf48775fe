/* What the tests of prefix reuse share: sessions with prefix_caching, a prompt that is left to
 * others, a prompt that takes over what it can. */
#ifndef TAMIS_TEST_PREFIX_TEST_H
#define TAMIS_TEST_PREFIX_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/rng.h"
#include "support/sanitized.h"

#define GOLDEN  TAMIS_SOURCE_DIR "/tests/golden/"
#define V4_DIR  GOLDEN "v4-flash-bf16"
#define GLM_DIR GOLDEN "glm52-fp8"
enum { MAX_LEN = 720, BLOCK = 256 };

static const char *const dirs[] = {V4_DIR,
                                   GOLDEN "v4-flash-fp8",
                                   GOLDEN "v4-pro-fp8",
                                   GOLDEN "v32-bf16",
                                   GOLDEN "v32-fp8",
                                   GOLDEN "glm5-bf16",
                                   GLM_DIR};
enum { N_DIRS = sizeof dirs / sizeof *dirs };

static inline tamis_session_params params_of(tamis_dtype dtype)
{
    tamis_session_params p = test_session_params(dtype, MAX_LEN);
    p.max_model_len = 0; /* the model's: 1,024 of V4, 512 of the others */
    p.max_num_seqs = 3;
    p.prefix_caching = true;
    return p;
}

static inline void random_ids(test_rng *rng, const test_engine *e, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)test_rng_int(rng, 0, e->info->vocab_size - 1);
}

/* Tokens that a sequence of this test may have. */
static inline int32_t limit_of(const test_engine *e)
{
    const int32_t len = tamis_session_get_params(e->session)->max_model_len;
    return len < MAX_LEN ? len : MAX_LEN;
}

static inline bool has_rings(const test_engine *e)
{
    return e->session->net->store->slot_bytes > 0;
}

/* A new sequence that takes over what it can. */
static inline int32_t match(test_engine *e, const int32_t *ids, int32_t n, int32_t *n_reused)
{
    tamis_error err;
    const int32_t seq = test_seq_new(e);
    test_must(tamis_seq_match(e->session, seq, ids, n, n_reused, &err), &err, "match");
    assert_int_equal(tamis_seq_len(e->session, seq), *n_reused);
    return seq;
}

static inline void keep(test_engine *e, int32_t seq)
{
    tamis_error err;
    test_must(tamis_seq_keep(e->session, seq, &err), &err, "keep");
}

/* Computes a prompt and leaves it to others. */
static inline void leave(test_engine *e, const int32_t *ids, int32_t n, int32_t chunk)
{
    const int32_t seq = test_seq_new(e);
    test_feed(e, seq, ids, n, chunk, NULL);
    keep(e, seq);
    test_seq_drop(e, seq);
}

/* Feeds ids[from .. n) and compares with the rows of a cold run. */
static inline void assert_goes_on(test_engine *e, int32_t seq, const int32_t *ids, int32_t from,
                                  int32_t n, int32_t chunk, const float *cold)
{
    const int64_t vocab = e->info->vocab_size;
    float *seen = calloc((size_t)(n - from) * (size_t)vocab + 1, sizeof *seen);
    test_feed(e, seq, ids + from, n - from, chunk, seen);
    test_assert_same_bits(seen, cold + from * vocab, n - from, vocab, "after a prefix");
    free(seen);
}

static inline void poison_slot(test_engine *e, int32_t slot)
{
    const tamis_cache_store *store = e->session->net->store;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *c = &store->caches[i];
        if (c->desc.life == TAMIS_CACHE_RING)
            memset(c->base + slot * c->stride, 0xFF, (size_t)c->stride); /* NaN in any type */
    }
}

#endif
