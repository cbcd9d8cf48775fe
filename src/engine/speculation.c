/*
 * Generating with drafts. Between calls the sequence holds all tokens but the last one given out,
 * the pending one, and a call does one step:
 *
 *     tokens   p0 p1 ... p(n-2) | pending d1 d2 d3      d: drafted
 *     rows                      |    x1   x2 x3 x4      x: drawn, one after the other, as long as
 *                                                       x(i) == d(i)
 *
 * If d1 == x1 and d2 != x2, then x1 x2 are given out, the sequence is rolled back to p0 .. pending
 * d1, and x2 is the new pending token. Row i is the model's own logits after the tokens before it,
 * the same bits as in a step of one token, so the drawn tokens do not depend on the drafts.
 *
 * A prompt is fed without its last token, which becomes pending: so the first checking step is like
 * the others, and every token that was fed has a known successor, which the MTP block needs.
 */
#include "engine/speculation.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "engine/draft.h"

#define MAX_NGRAM 16
#define MAX_STEP  (1 + TAMIS_MAX_DRAFT)

struct tamis_spec {
    tamis_session *session;
    int32_t seq;
    uint64_t serial; /* of the sequence: its index may come again */
    tamis_spec_params params;
    int32_t stop_ids[TAMIS_MAX_EOS];
    int32_t *tokens;  /* [max_model_len + MAX_STEP] fed ones and the pending one */
    int32_t n_tokens; /* 0: no prompt yet */
    /* MTP: guesses made after the latest step */
    int32_t mtp_draft[TAMIS_MAX_DRAFT], n_mtp_draft;
    tamis_spec_stats stats;
};

const char *tamis_drafter_name(tamis_drafter drafter)
{
    static const char *const names[] = {"none", "mtp", "prompt-lookup", "custom"};
    return (unsigned)drafter <= TAMIS_DRAFTER_CUSTOM ? names[drafter] : "unknown";
}

tamis_spec_params tamis_spec_params_default(void)
{
    return (tamis_spec_params){.struct_size = sizeof(tamis_spec_params),
                               .drafter = TAMIS_DRAFTER_NONE,
                               .max_draft = 3,
                               .ngram_min = 1,
                               .ngram_max = 3};
}

/* ---------------------------------------------------------------- open and close */

static tamis_status check_params(const tamis_spec_params *p, tamis_error *err)
{
    const struct {
        const char *name;
        int32_t value, min, max;
    } fields[] = {{"drafter", (int32_t)p->drafter, 0, TAMIS_DRAFTER_CUSTOM},
                  {"max_draft", p->max_draft, 1, TAMIS_MAX_DRAFT},
                  {"ngram_max", p->ngram_max, 1, MAX_NGRAM},
                  {"ngram_min", p->ngram_min, 1, p->ngram_max},
                  {"n_stop_ids", p->n_stop_ids, 0, TAMIS_MAX_EOS}};
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: struct_size is %zu, must be %zu",
                          p->struct_size, sizeof *p);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: %s is %d, allowed %d..%d",
                              fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    if (p->drafter == TAMIS_DRAFTER_CUSTOM && p->fn == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "speculation: the drafter is custom, but fn is NULL");
    if (p->n_stop_ids > 0 && p->stop_ids == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: %d stop_ids at address NULL",
                          p->n_stop_ids);
    return TAMIS_STATUS_OK;
}

/* Rings forget what they overwrite; other caches keep every row. */
static bool has_rings(const tamis_session *session)
{
    return tamis_cache_store_rollback_floor(session->net->store, INT32_MAX / 2) > 0;
}

static tamis_status check_session(const tamis_session *session, const tamis_spec_params *p,
                                  tamis_error *err)
{
    const tamis_session_params *s = &session->params;
    const struct {
        const char *name;
        int32_t allowed;
    } limits[] = {{"max_num_logits - 1", s->max_num_logits - 1},
                  {"max_num_batched_tokens - 1", s->max_num_batched_tokens - 1},
                  {"max_rollback", has_rings(session) ? s->max_rollback : INT32_MAX}};
    if (p->drafter == TAMIS_DRAFTER_NONE)
        return TAMIS_STATUS_OK;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (p->max_draft > limits[i].allowed)
            return tamis_fail(err, TAMIS_STATUS_LIMIT,
                              "speculation: max_draft is %d, this session allows %d (%s)",
                              p->max_draft, limits[i].allowed, limits[i].name);
    if (p->drafter != TAMIS_DRAFTER_MTP || s->mtp)
        return TAMIS_STATUS_OK;
    if (session->model->weights->n_mtp == 0)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "speculation: the drafter is mtp, the folder's is %s",
                          session->model->info.drafter);
    return tamis_fail(err, TAMIS_STATUS_STATE,
                      "speculation: the drafter is mtp, but the session was opened without mtp");
}

static tamis_status take_memory(tamis_spec **out, const tamis_session *session, tamis_error *err)
{
    const size_t n = (size_t)session->params.max_model_len + MAX_STEP;
    tamis_spec *spec = *out = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *spec);
    if (spec != NULL)
        spec->tokens = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *spec->tokens);
    if (spec == NULL || spec->tokens == NULL)
        return tamis_fail_memory(err, "speculation", n * sizeof *spec->tokens);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_spec_open(tamis_spec **out, tamis_session *session, int32_t seq,
                             const tamis_spec_params *params, tamis_error *err)
{
    tamis_sequence *s = NULL;
    tamis_spec *spec = NULL;
    tamis_status st;
    if (out == NULL || session == NULL || params == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: out, session or params is NULL");
    *out = NULL;
    TAMIS_TRY(check_params(params, err));
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    TAMIS_TRY(check_session(session, params, err));
    if (s->len != 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "speculation: sequence %d has %d tokens, must be empty", seq, s->len);
    TAMIS_TRY_GOTO(take_memory(&spec, session, err));
    spec->session = session;
    spec->seq = seq;
    spec->serial = s->serial;
    spec->params = *params;
    for (int32_t i = 0; i < params->n_stop_ids; i++)
        spec->stop_ids[i] = params->stop_ids[i];
    spec->params.stop_ids = spec->stop_ids;
    *out = spec;
    return TAMIS_STATUS_OK;
fail:
    tamis_spec_close(&spec);
    return st;
}

void tamis_spec_close(tamis_spec **spec_ptr)
{
    if (spec_ptr == NULL || *spec_ptr == NULL)
        return;
    tamis_spec *spec = *spec_ptr;
    *spec_ptr = NULL;
    tamis_mem_free(spec->tokens);
    tamis_mem_free(spec);
}

tamis_spec_stats tamis_spec_get_stats(const tamis_spec *spec)
{
    return spec != NULL ? spec->stats : (tamis_spec_stats){0};
}

/* ---------------------------------------------------------------- steps */

/* Tokens in the sequence: all but the pending one. */
static int32_t num_fed(const tamis_spec *spec)
{
    return spec->n_tokens > 0 ? spec->n_tokens - 1 : 0;
}

static tamis_status check_ready(const tamis_spec *spec, tamis_error *err)
{
    tamis_sequence *s = NULL;
    TAMIS_TRY(tamis_session_find_seq(spec->session, spec->seq, &s, err));
    if (s->serial != spec->serial)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "speculation: sequence %d is another one now; the one at open was "
                          "dropped, or the session slept",
                          spec->seq);
    if (s->len != num_fed(spec))
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "speculation: sequence %d has %d tokens, must have %d: another call fed "
                          "it or took tokens back",
                          spec->seq, s->len, num_fed(spec));
    return TAMIS_STATUS_OK;
}

static tamis_status step(tamis_spec *spec, int32_t n, tamis_logits_want logits, tamis_error *err)
{
    const tamis_feed feed = {
        .seq = spec->seq, .tokens = spec->tokens + num_fed(spec), .n_tokens = n, .logits = logits};
    return tamis_session_step(spec->session, &feed, 1, err);
}

/* ---------------------------------------------------------------- prompt */

static tamis_status check_prompt(const tamis_spec *spec, const int32_t *tokens, int32_t n,
                                 tamis_error *err)
{
    const int32_t vocab_size = spec->session->model->info.vocab_size;
    const int32_t room = spec->session->params.max_model_len - spec->n_tokens;
    if (n < 0 || (n > 0 && tokens == NULL))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: %d tokens at address %p", n,
                          (const void *)tokens);
    if (n > room)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "speculation: %d tokens after %d exceed max_model_len %d", n,
                          spec->n_tokens, spec->session->params.max_model_len);
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "speculation: token %d is %d, allowed 0..%d", i, tokens[i],
                              vocab_size - 1);
    return TAMIS_STATUS_OK;
}

/* The MTP block sees the step that just fed tokens first_next[-1 ..]: each has a known successor.
 */
static tamis_status show_known(tamis_spec *spec, const int32_t *first_next, tamis_error *err)
{
    if (spec->params.drafter != TAMIS_DRAFTER_MTP)
        return TAMIS_STATUS_OK;
    return tamis_draft_over_step(spec->session, spec->seq, first_next, -1, err);
}

/* `n` more tokens, of which the pending one and all but the last go into one step. If that is done
 * and the MTP block fails, they are in all the same: it will only guess worse. */
static tamis_status feed_chunk(tamis_spec *spec, const int32_t *tokens, int32_t n, tamis_error *err)
{
    const int32_t n_feed = spec->n_tokens + n - 1 - num_fed(spec);
    memcpy(spec->tokens + spec->n_tokens, tokens, (size_t)n * sizeof *tokens);
    spec->n_mtp_draft = 0;
    if (n_feed > 0)
        TAMIS_TRY(step(spec, n_feed, TAMIS_LOGITS_NONE, err));
    const int32_t *first_next = spec->tokens + num_fed(spec) + 1;
    spec->n_tokens += n;
    return n_feed > 0 ? show_known(spec, first_next, err) : TAMIS_STATUS_OK;
}

/* What other sequences with the same first tokens left; *n of them are no longer to be fed. */
static tamis_status reuse_prefix(tamis_spec *spec, const int32_t *tokens, int32_t n_tokens,
                                 int32_t *n, tamis_error *err)
{
    int32_t n_reused = 0;
    *n = 0;
    if (n_tokens == 0 || spec->n_tokens > 0 || !spec->session->params.prefix_caching)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_seq_match(spec->session, spec->seq, tokens, n_tokens, &n_reused, err));
    if (n_reused == 0)
        return TAMIS_STATUS_OK;
    *n = spec->n_tokens = n_reused + 1; /* at least one is left, and becomes the pending one */
    memcpy(spec->tokens, tokens, (size_t)*n * sizeof *tokens);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_spec_prompt(tamis_spec *spec, const int32_t *tokens, int32_t n, tamis_error *err)
{
    int32_t at = 0;
    if (spec == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation is NULL");
    TAMIS_TRY(check_ready(spec, err));
    TAMIS_TRY(check_prompt(spec, tokens, n, err));
    TAMIS_TRY(reuse_prefix(spec, tokens, n, &at, err));
    const int32_t most = spec->session->params.max_num_batched_tokens;
    while (at < n) {
        const int32_t chunk = n - at < most ? n - at : most;
        TAMIS_TRY(feed_chunk(spec, tokens + at, chunk, err));
        at += chunk;
    }
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- drafts */

/* The caller's drafter may not change the session, or this sequence under our feet. */
static int32_t call_drafter(const tamis_spec *spec, int32_t *draft, int32_t max_draft)
{
    const tamis_spec_params *p = &spec->params;
    spec->session->is_calling_out = true;
    const int32_t n = p->fn(p->user, spec->tokens, spec->n_tokens, draft, max_draft);
    spec->session->is_calling_out = false;
    return n;
}

static int32_t guess(const tamis_spec *spec, int32_t *draft, int32_t max_draft)
{
    const tamis_spec_params *p = &spec->params;
    switch (p->drafter) {
    case TAMIS_DRAFTER_NONE:
        return 0;
    case TAMIS_DRAFTER_MTP:
        memcpy(draft, spec->mtp_draft, sizeof spec->mtp_draft);
        return spec->n_mtp_draft;
    case TAMIS_DRAFTER_PROMPT_LOOKUP:
        return tamis_draft_lookup(spec->tokens, spec->n_tokens, p->ngram_min, p->ngram_max, draft,
                                  max_draft);
    case TAMIS_DRAFTER_CUSTOM:
        return call_drafter(spec, draft, max_draft);
    }
    return 0;
}

/* Guesses that may be fed: behind the pending token, and up to the first that cannot be drawn. */
static int32_t find_draft(const tamis_spec *spec, int32_t num_ids, int32_t *draft)
{
    const int32_t room = spec->session->params.max_model_len - spec->n_tokens;
    const int32_t most = room < spec->params.max_draft ? room : spec->params.max_draft;
    int32_t n = 0;
    if (most <= 0)
        return 0;
    const int32_t n_guessed = guess(spec, draft, most);
    while (n < n_guessed && n < most && draft[n] >= 0 && draft[n] < num_ids)
        n++;
    return n;
}

/* Feeds the pending token and the draft: as much of it as finds blocks. */
static tamis_status check_draft(tamis_spec *spec, const int32_t *draft, int32_t *n_draft,
                                tamis_error *err)
{
    const int32_t block_tokens = spec->session->params.block_tokens;
    const int32_t in_block = block_tokens - 1 - num_fed(spec) % block_tokens;
    memcpy(spec->tokens + spec->n_tokens, draft, (size_t)*n_draft * sizeof *draft);
    tamis_status st = step(spec, 1 + *n_draft, TAMIS_LOGITS_ALL, err);
    if (st == TAMIS_STATUS_NO_BLOCKS && *n_draft > in_block) {
        *n_draft = in_block;
        st = step(spec, 1 + *n_draft, TAMIS_LOGITS_ALL, err);
    }
    return st;
}

static bool is_stop(const tamis_spec *spec, int32_t id)
{
    for (int32_t i = 0; i < spec->params.n_stop_ids; i++)
        if (spec->stop_ids[i] == id)
            return true;
    return false;
}

/* Returns the number of tokens drawn; all but the last are drafts that were right. */
static int32_t draw(tamis_spec *spec, tamis_sampler *sampler, int32_t num_ids, const int32_t *draft,
                    int32_t n_draft, int32_t *tokens)
{
    tamis_spec_stats *stats = &spec->stats;
    int32_t n = 0;
    for (bool goes_on = true; goes_on; n++) {
        tokens[n] = tamis_sampler_draw(sampler, tamis_session_logits(spec->session, n), num_ids);
        const bool is_right = n < n_draft && tokens[n] == draft[n];
        stats->n_accepted += is_right;
        goes_on = is_right && !is_stop(spec, tokens[n]);
    }
    stats->n_steps++;
    stats->n_drafted += (uint64_t)n_draft;
    stats->n_tokens += (uint64_t)n;
    return n;
}

/* Token i of the step is followed by tokens[i]; of what was rejected nobody reads the row. */
static tamis_status run_mtp_over_step(tamis_spec *spec, const int32_t *tokens, int32_t n,
                                      tamis_error *err)
{
    int32_t next[MAX_STEP] = {0};
    memcpy(next, tokens, (size_t)n * sizeof *next);
    return tamis_draft_over_step(spec->session, spec->seq, next, n - 1, err);
}

/* The step's tokens up to the last that was drawn stay. */
static tamis_status keep_drawn(tamis_spec *spec, const int32_t *tokens, int32_t n, tamis_error *err)
{
    TAMIS_TRY(tamis_seq_rollback(spec->session, spec->seq, num_fed(spec) + n, err));
    memcpy(spec->tokens + spec->n_tokens, tokens, (size_t)n * sizeof *tokens);
    spec->n_tokens += n;
    return TAMIS_STATUS_OK;
}

/* The MTP block sees the step before the rejected tokens' blocks go; if it fails, what was drawn
 * stays drawn. */
static tamis_status settle(tamis_spec *spec, int32_t num_ids, const int32_t *tokens, int32_t n,
                           tamis_error *err)
{
    spec->n_mtp_draft = 0;
    if (spec->params.drafter != TAMIS_DRAFTER_MTP)
        return keep_drawn(spec, tokens, n, err);
    const tamis_status st = run_mtp_over_step(spec, tokens, n, err);
    if (spec->session->sequences[spec->seq].is_faulty)
        return st; /* it may only be dropped */
    TAMIS_TRY(keep_drawn(spec, tokens, n, st == TAMIS_STATUS_OK ? err : NULL));
    if (st != TAMIS_STATUS_OK)
        return st;
    return tamis_draft_tokens(spec->session, spec->seq, num_ids, spec->params.max_draft,
                              spec->mtp_draft, &spec->n_mtp_draft, err);
}

static tamis_status check_next(const tamis_spec *spec, const tamis_sampler *sampler,
                               int32_t num_ids, const int32_t *tokens, const int32_t *n,
                               tamis_error *err)
{
    if (spec == NULL || sampler == NULL || tokens == NULL || n == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "speculation: spec, sampler, tokens or n is NULL");
    const int32_t vocab_size = spec->session->model->info.vocab_size;
    const int32_t max_model_len = spec->session->params.max_model_len;
    if (num_ids < 1 || num_ids > vocab_size)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "speculation: num_ids is %d, allowed 1..%d",
                          num_ids, vocab_size);
    TAMIS_TRY(check_ready(spec, err));
    if (spec->n_tokens == 0)
        return tamis_fail(err, TAMIS_STATUS_STATE, "speculation: there is no prompt yet");
    if (spec->n_tokens > max_model_len)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "speculation: sequence %d is full (max_model_len %d)", spec->seq,
                          max_model_len);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_spec_next(tamis_spec *spec, tamis_sampler *sampler, int32_t num_ids,
                             int32_t *tokens, int32_t *n, tamis_error *err)
{
    int32_t draft[TAMIS_MAX_DRAFT];
    TAMIS_TRY(check_next(spec, sampler, num_ids, tokens, n, err));
    int32_t n_draft = find_draft(spec, num_ids, draft);
    *n = 0;
    TAMIS_TRY(check_draft(spec, draft, &n_draft, err));
    *n = draw(spec, sampler, num_ids, draft, n_draft, tokens);
    return settle(spec, num_ids, tokens, *n, err);
}
