/*
 * What the speculation tests share: a text with the logits it was drawn from, made without any
 * drafter, and runs with drafters that must give the same tokens from the same bits.
 */
#ifndef TAMIS_SPECULATION_TEST_H
#define TAMIS_SPECULATION_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/property.h"
#include "support/rng.h"

#include "engine/session_internal.h"
#include "tamis/speculation.h"

/* Folders that hold an MTP block, the demo model last. */
static const char *const spec_folders[] = {"tests/golden/v4-flash-fp8", "tests/golden/glm52-fp8",
                                           "tests/golden/v32-fp8", "models/demo"};
#define SPEC_DEMO "models/demo"

static inline tamis_sampler_params spec_sampling(float temperature, uint64_t seed)
{
    tamis_sampler_params p = tamis_sampler_params_default();
    p.temperature = temperature;
    p.seed = seed;
    return p;
}

static inline tamis_sampler *spec_sampler(const tamis_model_info *info,
                                          const tamis_sampler_params *params)
{
    tamis_sampler *sampler = NULL;
    tamis_error err;
    test_must(tamis_sampler_open(&sampler, info->vocab_size, params, &err), &err, "open sampler");
    return sampler;
}

/* ids[n_prompt ..] were drawn one by one; row i of logits is what ids[n_prompt + i] came from. */
typedef struct spec_truth {
    tamis_sampler_params sampling;
    int32_t *ids;
    int32_t n_prompt, n, vocab;
    float *logits;
} spec_truth;

static inline spec_truth spec_truth_make(test_engine *engine, const int32_t *prompt,
                                         int32_t n_prompt, int32_t n_new,
                                         tamis_sampler_params sampling)
{
    const int32_t vocab = engine->info->vocab_size;
    spec_truth t = {sampling, NULL, n_prompt, n_prompt + n_new, vocab, NULL};
    t.ids = malloc((size_t)t.n * sizeof *t.ids);
    t.logits = malloc((size_t)n_new * (size_t)vocab * sizeof *t.logits);
    assert_true(t.ids != NULL && t.logits != NULL);
    memcpy(t.ids, prompt, (size_t)n_prompt * sizeof *prompt);
    tamis_sampler *sampler = spec_sampler(engine->info, &sampling);
    const int32_t seq = test_seq_new(engine);
    test_feed(engine, seq, prompt, n_prompt - 1, 0, NULL);
    for (int32_t i = 0; i < n_new; i++) {
        float *row = t.logits + (int64_t)i * vocab;
        test_feed(engine, seq, t.ids + n_prompt + i - 1, 1, 1, row);
        t.ids[n_prompt + i] = tamis_sampler_draw(sampler, row, vocab);
    }
    test_seq_drop(engine, seq);
    tamis_sampler_close(&sampler);
    return t;
}

static inline void spec_truth_free(spec_truth *t)
{
    free(t->ids);
    free(t->logits);
    *t = (spec_truth){0};
}

/* ---------------------------------------------------------------- drafters */

/* Right for exactly n_right tokens, then wrong. n_right -1: at random; above k: always right. */
typedef struct spec_oracle {
    const spec_truth *truth;
    int32_t n_right;
    test_rng rng;
} spec_oracle;

static inline int32_t spec_oracle_draft(void *user, const int32_t *tokens, int32_t n_tokens,
                                        int32_t *draft, int32_t max_draft)
{
    spec_oracle *o = user;
    (void)tokens;
    for (int32_t i = 0; i < max_draft; i++) {
        const int32_t right = n_tokens + i < o->truth->n ? o->truth->ids[n_tokens + i] : 0;
        draft[i] = o->n_right < 0   ? (int32_t)test_rng_int(&o->rng, 0, o->truth->vocab - 1)
                   : i < o->n_right ? right
                                    : (right + 1) % o->truth->vocab;
    }
    return max_draft;
}

static inline tamis_spec_params spec_params(tamis_drafter drafter, int32_t k, spec_oracle *oracle)
{
    tamis_spec_params p = tamis_spec_params_default();
    p.drafter = drafter;
    p.max_draft = k;
    p.fn = spec_oracle_draft;
    p.user = oracle;
    return p;
}

/* ---------------------------------------------------------------- runs */

typedef struct spec_run {
    test_engine *engine;
    const spec_truth *truth;
    tamis_spec *spec;
    tamis_sampler *sampler;
    int32_t seq, n; /* n: tokens there, prompt and given out */
} spec_run;

static inline spec_run spec_run_open(test_engine *engine, const spec_truth *truth,
                                     const tamis_spec_params *params)
{
    tamis_error err;
    spec_run run = {.engine = engine, .truth = truth, .seq = test_seq_new(engine)};
    run.sampler = spec_sampler(engine->info, &truth->sampling);
    test_must(tamis_spec_open(&run.spec, engine->session, run.seq, params, &err), &err,
              "open speculation");
    return run;
}

/* The truth's prompt and the first n_given tokens drawn behind it, for which the sampler draws. */
static inline void spec_run_prompt(spec_run *run, int32_t n_given)
{
    const spec_truth *t = run->truth;
    tamis_error err;
    run->n = t->n_prompt + n_given;
    test_must(tamis_spec_prompt(run->spec, t->ids, run->n, &err), &err, "prompt");
    for (int32_t i = 0; i < n_given; i++)
        tamis_sampler_draw(run->sampler, t->logits + (int64_t)i * t->vocab, t->vocab);
}

/* The sequence holds the tokens given out but the last, and blocks for these. */
static inline void spec_check_sequence(const spec_run *run, int32_t len)
{
    tamis_session *session = run->engine->session;
    const int32_t block_tokens = tamis_session_get_params(session)->block_tokens;
    int32_t n_blocks = -1;
    assert_int_equal(tamis_seq_len(session, run->seq), len);
    assert_non_null(tamis_session_block_table(session, run->seq, &n_blocks));
    assert_int_equal(n_blocks, (len + block_tokens - 1) / block_tokens);
}

/* One call; its tokens and the logits behind them are those of the truth, as far as that goes. */
static inline int32_t spec_run_next(spec_run *run, const char *where)
{
    int32_t tokens[1 + TAMIS_MAX_DRAFT], n;
    const spec_truth *t = run->truth;
    tamis_error err;
    test_must(tamis_spec_next(run->spec, run->sampler, t->vocab, tokens, &n, &err), &err, where);
    spec_check_sequence(run, run->n + n - 1);
    for (int32_t i = 0; i < n && run->n < t->n; i++, run->n++) {
        if (tokens[i] != t->ids[run->n])
            fail_msg("%s: token %d is %d, expected %d", where, run->n, tokens[i], t->ids[run->n]);
        test_assert_same_bits(tamis_session_logits(run->engine->session, i),
                              t->logits + (int64_t)(run->n - t->n_prompt) * t->vocab, 1, t->vocab,
                              where);
    }
    return n;
}

static inline tamis_spec_stats spec_run_close(spec_run *run)
{
    const tamis_spec_stats stats = tamis_spec_get_stats(run->spec);
    tamis_spec_close(&run->spec);
    tamis_sampler_close(&run->sampler);
    test_seq_drop(run->engine, run->seq);
    return stats;
}

/* All of the truth's text with a drafter. */
static inline tamis_spec_stats spec_check(test_engine *engine, const spec_truth *truth,
                                          const tamis_spec_params *params, const char *where)
{
    spec_run run = spec_run_open(engine, truth, params);
    spec_run_prompt(&run, 0);
    while (run.n < truth->n)
        spec_run_next(&run, where);
    return spec_run_close(&run);
}

/* A session for k drafts, its rings as short as they may be. */
static inline tamis_session_params spec_session(tamis_dtype dtype, int32_t max_len, int32_t k,
                                                bool mtp)
{
    tamis_session_params p = test_session_params(dtype, max_len);
    p.max_num_logits = 1 + k;
    p.max_num_batched_tokens = 64;
    p.max_rollback = k;
    p.mtp = mtp;
    return p;
}

#endif
